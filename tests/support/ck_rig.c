/*
 * ck_rig.c - one device and all that a test makes on it; finite differences: see ek_check.h.
 */
#include "ek_check.h"

/* ---- memory after a tensor ---- */

#if CK_ASAN
#include <sanitizer/asan_interface.h>

/* Memory comes in units; the next request gets what is after the last one. */
static void close_behind(struct ck_rig *rig, size_t number) {
  const ek_tensor *tensor = &rig->tensor[number];
  ek_tensor *gap = &rig->gap[number];
  const size_t bytes = ek_tensor_bytes(tensor);
  if (ek_device_counts_only(rig->device)) return;
  const int64_t elements = EK_MEMORY_UNIT / sizeof(double);
  ck_ok(ek_tensor_create(gap, rig->device, EK_MEMORY_WORKSPACE, EK_F64, 1, &elements));
  ck_ok(ek_stream_synchronize(rig->stream)); /* a kernel that is queued may read what was freed */
  ASAN_POISON_MEMORY_REGION(gap->data, EK_MEMORY_UNIT);
  const size_t rest = (size_t)EK_MEMORY_UNIT - ((uintptr_t)tensor->data + bytes) % EK_MEMORY_UNIT;
  if (tensor->data != NULL && rest < EK_MEMORY_UNIT) {
    ASAN_POISON_MEMORY_REGION((char *)tensor->data + bytes, rest);
  }
}

static void open_behind(struct ck_rig *rig, size_t number) {
  const ek_tensor *tensor = &rig->tensor[number], *gap = &rig->gap[number];
  if (gap->data == NULL) return;
  ASAN_UNPOISON_MEMORY_REGION(gap->data, EK_MEMORY_UNIT);
  ASAN_UNPOISON_MEMORY_REGION((char *)tensor->data + ek_tensor_bytes(tensor), EK_MEMORY_UNIT);
  ek_tensor_free(&rig->gap[number]);
}
#else
static void close_behind(struct ck_rig *rig, size_t number) { (void)rig, (void)number; }
static void open_behind(struct ck_rig *rig, size_t number) { (void)rig, (void)number; }
#endif

/* ---- the rig ---- */

static void close_rig(void *rig) { ck_rig_close(rig); }

/* The group of the last rig, for the next. */
static struct {
  ek_group *group; /* NULL: there is none */
  const char *spec;
  int threads;
} spare;

static void free_spare(void *unused) {
  (void)unused;
  ek_group *group = spare.group;
  spare.group = NULL;
  ek_group_free(group);
}

static void set_aside(const struct ck_rig *rig) {
  if (spare.group != NULL) {
    ck_forget(&spare);
    free_spare(NULL);
  }
  ck_forget(rig->group);
  ck_assign(spare, .group = rig->group, .spec = rig->spec, .threads = rig->threads);
  ck_keep_by(&spare, free_spare);
}

static ek_group *take_spare(const char *spec, int threads) {
  if (spare.group == NULL || spare.threads != threads || strcmp(spare.spec, spec) != 0) return NULL;
  ek_group *group = spare.group;
  spare.group = NULL;
  ck_forget(&spare);
  return ck_keep(group);
}

/* Groups of variants, with one thread and with two, which are the same on a GPU; NULL while a rig
 * has one. Programs of operations have hundreds of tests that take less than to open a group. */
static ek_group *of_variants[2];

void ck_rigs_end(void) {
  for (int i = 0; i < 2; i++) {
    ek_group_free(of_variants[i]);
    of_variants[i] = NULL;
  }
}

static ek_group *take_from(ek_group **place) {
  if (place == NULL || *place == NULL) return NULL;
  ek_group *group = *place;
  *place = NULL;
  return ck_keep(group);
}

/* Whether the group stays there. */
static bool put_back(const struct ck_rig *rig) {
  if (rig->place == NULL || *rig->place != NULL) return false;
  ck_forget(rig->group);
  *rig->place = rig->group;
  return true;
}

static struct ck_rig *open_rig(const char *spec, ek_type type, int threads, ek_group **place) {
  static uint64_t stream = 0; /* every rig draws other numbers */
  struct ck_rig *rig = calloc(1, sizeof *rig);
  ck_assert_ptr_nonnull(rig);
  rig->spec = spec != NULL ? spec : test_devices("cpu:1");
  rig->threads = threads;
  rig->place = place;
  rig->group = take_from(place);
  if (rig->group == NULL) rig->group = take_spare(rig->spec, threads);
  if (rig->group == NULL) rig->group = ck_open(rig->spec, threads);
  rig->device = ek_group_device(rig->group, 0);
  rig->stream = ek_device_stream(rig->device, EK_STREAM_COMPUTE);
  ck_assert_ptr_nonnull(rig->stream);
  rig->type = type;
  rig->sum = type == EK_F64 ? EK_F64 : EK_F32;
  rig->unit = type == EK_F64 ? 0x1p-53 : 0x1p-24;
  rig->random = ck_random_start(stream++);
  ck_keep_by(rig, close_rig);
  return rig;
}

struct ck_rig *ck_rig_open(const char *spec, ek_type type, int threads) {
  return open_rig(spec, type, threads, NULL);
}

int ck_variants(void) { return ck_has_halves() ? 2 * CK_VARIANTS : CK_VARIANTS; }

bool ck_turn(int variant, int number) {
  if (variant >= CK_VARIANTS && number % 2 != variant % CK_VARIANTS / 2) return false;
  return ck_part(number);
}

struct ck_rig *ck_rig_variant(int variant) {
  static const ek_type types[] = {EK_F32, EK_F64, EK_BF16, EK_F16};
  const ek_type type = types[variant / CK_VARIANTS * 2 + variant % 2];
  const int second = variant % CK_VARIANTS / 2;
  struct ck_rig *rig = open_rig(NULL, type, 1 + second, &of_variants[ck_on_gpu() ? 0 : second]);
  rig->shift = second;
  return rig;
}

struct ck_rig *ck_rig_tf32(int64_t shift) {
  struct ck_rig *rig = ck_rig_open(NULL, EK_F32, 0);
  ck_assert(!ek_stream_allow_tf32(rig->stream, true));
  rig->shift = shift;
  rig->operand = 0x1p-11;
  return rig;
}

void ck_rig_close(struct ck_rig *rig) {
  ck_forget(rig);
  const ek_status end = ek_stream_synchronize(rig->stream); /* a failure was the test's to see */
  (void)ek_stream_allow_tf32(rig->stream, false);
  for (size_t i = 0; i < rig->tensors; i++) {
    open_behind(rig, i);
    ek_tensor_free(&rig->tensor[i]);
  }
  for (size_t i = 0; i < rig->arrays; i++) free(rig->array[i]);
  ck_no_memory_held(rig->group);
  if (end != EK_OK) {
    ek_group_free(rig->group);
  } else if (!put_back(rig)) {
    set_aside(rig);
  }
  free(rig);
}

double ck_round(const struct ck_rig *rig, double value) { return ck_round_to(rig->type, value); }

double *ck_zeros(struct ck_rig *rig, int64_t count) {
  ck_assert_msg(rig->arrays < CK_RIG_ARRAYS, "the rig has no room for another array");
  double *array = calloc((size_t)count + 1, sizeof *array);
  ck_assert_ptr_nonnull(array);
  rig->array[rig->arrays++] = array;
  return array;
}

double *ck_values_of(struct ck_rig *rig, ek_type type, int64_t count, double low, double high) {
  double *array = ck_zeros(rig, count);
  for (int64_t i = 0; i < count; i++) {
    array[i] = ck_round_to(type, ck_random_uniform(&rig->random, low, high));
  }
  return array;
}

double *ck_values(struct ck_rig *rig, int64_t count, double low, double high) {
  return ck_values_of(rig, rig->type, count, low, high);
}

double *ck_integers(struct ck_rig *rig, int64_t count, int64_t low, int64_t high) {
  double *array = ck_zeros(rig, count);
  for (int64_t i = 0; i < count; i++) array[i] = (double)ck_random_integer(&rig->random, low, high);
  return array;
}

ek_tensor *ck_blank(struct ck_rig *rig, ek_type type, int rank, const int64_t *shape) {
  ck_assert_msg(rig->tensors < CK_RIG_TENSORS, "the rig has no room for another tensor");
  const size_t number = rig->tensors++;
  ek_tensor *tensor = &rig->tensor[number];
  if (rig->shift == 0) {
    ck_ok(ek_tensor_create(tensor, rig->device, EK_MEMORY_WORKSPACE, type, rank, shape));
  } else {
    ek_tensor whole = {0}, rows = {0};
    int64_t count = 1;
    for (int i = 0; i < rank; i++) count *= shape[i];
    const int64_t more = count + rig->shift;
    ck_ok(ek_tensor_create(&whole, rig->device, EK_MEMORY_WORKSPACE, type, 1, &more));
    ck_ok(ek_tensor_rows(&rows, &whole, rig->shift, count));
    ck_ok(ek_tensor_reshape(tensor, &rows, rank, shape));
    ek_tensor_free(&rows);
    ek_tensor_free(&whole);
  }
  close_behind(rig, number);
  return tensor;
}

ek_tensor *ck_ghost(struct ck_rig *rig, ek_type type, int rank, const int64_t *shape) {
  ck_assert(ek_device_counts_only(rig->device));
  ck_assert_msg(rig->tensors < CK_RIG_TENSORS, "the rig has no room for another tensor");
  ek_tensor *tensor = &rig->tensor[rig->tensors++];
  *tensor = (ek_tensor){.device = rig->device, .type = type, .rank = rank};
  memcpy(tensor->shape, shape, (size_t)rank * sizeof *shape);
  tensor->data = (void *)(rig->ghosts += 256); /* never read; apart, so that none overlap */
  rig->ghosts += ek_tensor_bytes(tensor);
  return tensor;
}

ek_tensor *ck_tensor_of(struct ck_rig *rig, ek_type type, const double *values, int rank,
                        const int64_t *shape) {
  ek_tensor *tensor = ck_blank(rig, type, rank, shape);
  ck_set(tensor, values);
  return tensor;
}

ek_tensor *ck_tensor(struct ck_rig *rig, const double *values, int rank, const int64_t *shape) {
  return ck_tensor_of(rig, rig->type, values, rank, shape);
}

ek_tensor *ck_poisoned(struct ck_rig *rig, int rank, const int64_t *shape) {
  return ck_tensor_of(rig, rig->type, NULL, rank, shape);
}

ek_tensor *ck_sums(struct ck_rig *rig, const double *values, int rank, const int64_t *shape) {
  return ck_tensor_of(rig, rig->sum, values, rank, shape);
}

ek_tensor *ck_poisoned_sums(struct ck_rig *rig, int rank, const int64_t *shape) {
  return ck_sums(rig, NULL, rank, shape);
}

double *ck_read(struct ck_rig *rig, const ek_tensor *tensor) {
  double *array = ck_zeros(rig, ek_tensor_count(tensor));
  ck_get(array, tensor);
  return array;
}

double ck_weighed(const ek_tensor *tensor, const double *weights) {
  CK_HELD(double *, values, ck_got(tensor));
  long double sum = 0;
  for (int64_t i = 0; i < ck_count(values); i++) sum += (long double)values[i] * weights[i];
  return (double)sum;
}

struct ck_differences ck_differences_start(struct ck_rig *rig, ek_tensor *x,
                                           const ek_tensor *gradient, int64_t probes) {
  const int64_t count = ek_tensor_count(x);
  struct ck_differences d = {.rig = rig, .x = x, .all = probes >= count};
  ck_assert_int_eq(rig->type, EK_F64);
  d.probes = d.all ? count : probes;
  d.values = ck_read(rig, x), d.gradient = ck_read(rig, gradient);
  d.got = ck_zeros(rig, d.probes), d.want = ck_zeros(rig, d.probes);
  return d;
}

bool ck_differences_more(struct ck_differences *d) {
  const int64_t number = d->calls / 2;
  const double h = d->calls % 2 == 0 ? 1e-6 : -1e-6;
  if (number == d->probes) return false;
  if (h > 0) {
    d->place = d->all ? number : ck_random_integer(&d->rig->random, 0, ek_tensor_count(d->x) - 1);
    d->kept = d->values[d->place];
  }
  d->values[d->place] = d->kept + h;
  ck_set(d->x, d->values);
  return true;
}

void ck_differences_take(struct ck_differences *d, double value) {
  const double step = d->values[d->place] - d->kept; /* h as it was rounded */
  if (d->calls++ % 2 == 0) {
    d->above = value, d->step = step;
    return;
  }
  d->want[(d->calls - 1) / 2] = (d->above - value) / (d->step - step);
  d->got[(d->calls - 1) / 2] = d->gradient[d->place];
  d->values[d->place] = d->kept;
}

void ck_differences_end(struct ck_differences *d, const char *what) {
  const double error = ck_rel_l2(d->got, d->want, d->probes);
  ck_set(d->x, d->values);
  ck_assert_msg(error <= 1e-6, "%s: the gradient is off by %.3g (relative)", what, error);
}
