/*
 * check_communicator.c - the collectives: sums bit for bit in the order of the devices, the ring,
 * misfits, failures and aborts.
 *
 * Workers record what they saw; the test asserts when they have come back.
 */
#include "ek_check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

enum { DEVICES = 8 };

enum kind { BROADCAST, REDUCE, ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, KINDS };
static const char *const kind_names[] = {"broadcast", "reduce", "all_reduce", "reduce_scatter",
                                         "all_gather"};

/* ---- the bed: a group, its communicator, and one tensor a device ---- */

struct bed {
  ek_group *group;
  ek_communicator *communicator;
  size_t devices;
  ek_type type;
  int64_t count;
  ek_tensor tensors[DEVICES];
  double *values[DEVICES], *got;
  int64_t offsets[DEVICES + 1];
  enum kind kind;
  size_t root;
  ek_status seen[DEVICES];
};

static bool on_cpu(const struct bed *bed) {
  return strcmp(ek_device_backend(ek_group_device(bed->group, 0)), "cpu") == 0;
}

static void fill_bed(struct bed *bed, ek_type type, int64_t count) {
  bed->type = type;
  bed->count = count;
  bed->got = ck_array((size_t)count, sizeof(double));
  for (size_t i = 0; i < bed->devices; i++) {
    bed->values[i] = ck_array((size_t)count, sizeof(double));
    bed->tensors[i] =
        ck_upload(ek_group_device(bed->group, i), type, bed->values[i], CK_SHAPE(count));
  }
}

static void open_bed(struct bed *bed, const char *backend, size_t devices, ek_type type,
                     int64_t count) {
  const char *spec = ck_text("%s:%zu@16MiB", backend, devices);
  *bed = (struct bed){.group = ck_open(spec, 1), .devices = devices};
  ck_kept(ek_communicator_open(&bed->communicator, bed->group), bed->communicator);
  fill_bed(bed, type, count);
}

static void upload_values(struct bed *bed) {
  for (size_t i = 0; i < bed->devices; i++) ck_set(&bed->tensors[i], bed->values[i]);
}

/* Cuts 0 .. count at random places; some parts are empty. */
static void cut(struct bed *bed, struct ck_random *random) {
  for (size_t i = 1; i < bed->devices; i++) {
    const int64_t left = bed->count - bed->offsets[i - 1];
    bed->offsets[i] = bed->offsets[i - 1] + ck_random_integer(random, 0, left);
  }
  bed->offsets[bed->devices] = bed->count;
}

static ek_status call(struct bed *bed, ek_device *device, ek_tensor *tensor) {
  switch (bed->kind) {
  case BROADCAST: return ek_communicator_broadcast(bed->communicator, device, tensor, bed->root);
  case REDUCE: return ek_communicator_reduce(bed->communicator, device, tensor, bed->root);
  case ALL_REDUCE: return ek_communicator_all_reduce(bed->communicator, device, tensor);
  case REDUCE_SCATTER:
    return ek_communicator_reduce_scatter(bed->communicator, device, tensor, bed->offsets);
  default: return ek_communicator_all_gather(bed->communicator, device, tensor, bed->offsets);
  }
}

CK_JOB(once) {
  struct bed *bed = context;
  EK_TRY(call(bed, device, &bed->tensors[index]));
  return ek_communicator_wait(bed->communicator, device);
}

/* What element `i` of device `k` must be: added up in the type or, of 16 bits, in f32 and
 * rounded. */
CK_UNWATCHED static double expected(const struct bed *bed, size_t k, int64_t i) {
  size_t owner = 0;
  while (owner + 1 < bed->devices && i >= bed->offsets[owner + 1]) owner++;
  float narrow = (float)bed->values[0][i];
  double wide = bed->values[0][i];
  for (size_t d = 1; d < bed->devices; d++) {
    narrow = narrow + (float)bed->values[d][i];
    wide = wide + bed->values[d][i];
  }
  const double sum = bed->type == EK_F64 ? wide : ck_round_to(bed->type, (double)narrow);
  switch (bed->kind) {
  case BROADCAST: return bed->values[bed->root][i];
  case REDUCE: return k == bed->root ? sum : bed->values[k][i];
  case ALL_REDUCE: return sum;
  case REDUCE_SCATTER: return k == owner ? sum : bed->values[k][i];
  default: return bed->values[owner][i];
  }
}

CK_UNWATCHED static void check_result(const struct bed *bed) {
  for (size_t k = 0; k < bed->devices; k++) {
    ck_get(bed->got, &bed->tensors[k]);
    for (int64_t i = 0; i < bed->count; i++) {
      const double want = expected(bed, k, i);
      if (memcmp(&bed->got[i], &want, sizeof want) == 0) continue;
      ck_abort_msg("%s of %s over %zu devices: element %lld of %lld on %zu is %a, not %a",
                   kind_names[bed->kind], ek_type_name(bed->type), bed->devices, (long long)i,
                   (long long)bed->count, k, bed->got[i], want);
    }
  }
}

static void run_once(struct bed *bed) {
  upload_values(bed);
  ck_ok(ek_group_apply(bed->group, once, bed));
  check_result(bed);
}

/* ---- results ---- */

static const int64_t counts[] = {0, 1, 15, 16, 17, 1000, 100003};
enum { COUNTS = sizeof counts / sizeof counts[0] };

/* Whose sums over all devices the type has: up to 256 in bf16. */
static void fill_integers(struct bed *bed, struct ck_random *random) {
  const int64_t most = ek_type_size(bed->type) == 2 ? 256 / DEVICES : 1000;
  for (size_t d = 0; d < bed->devices; d++) {
    for (int64_t i = 0; i < bed->count; i++) {
      bed->values[d][i] = (double)ck_random_integer(random, -most, most);
    }
  }
}

static bool has_sums(const struct bed *bed) {
  return (ek_device_types(ek_group_device(bed->group, 0)) >> bed->type & 1u) != 0;
}

/* Whether expected() is what a sum must be, whatever is added up. */
static bool one_rounding(const struct bed *bed) {
  const bool nccl = strcmp(ek_communicator_name(bed->communicator), "nccl") == 0;
  return has_sums(bed) && !(nccl && ek_type_size(bed->type) == 2);
}

CK_LOOP_FROM(every_collective_for_every_number_of_devices, 1, DEVICES + 1) {
  static const ek_type types[] = {EK_F32, EK_F64, EK_I32, EK_BF16, EK_F16};
  struct ck_random random = ck_random_start((uint64_t)_i);
  CK_SET_UP(struct bed, bed, open_bed(&bed, "cpu", (size_t)_i, EK_F32, 0));
  const char *name = ek_communicator_name(bed.communicator);
  ck_assert(on_cpu(&bed) ? strcmp(name, "host") == 0
                         : strcmp(name, "peer") == 0 || strcmp(name, "nccl") == 0);
  for (int c = 0; c < COUNTS; c++) {
    for (int t = 0; t < 5; t++) {
      /* What is cut in pieces is cut by its bytes: f32 and bf16 show it. */
      if (counts[c] > 1003 && t != 0 && (CK_TSAN || t != 3)) continue;
      const size_t mark = ck_mark();
      fill_bed(&bed, types[t], counts[c]);
      fill_integers(&bed, &random);
      for (int kind = 0; kind < KINDS; kind++) {
        bed.kind = (enum kind)kind;
        if (!has_sums(&bed) && kind != BROADCAST && kind != ALL_GATHER) continue;
        bed.root = (size_t)ck_random_integer(&random, 0, _i - 1);
        cut(&bed, &random);
        run_once(&bed);
      }
      ck_release(mark);
    }
  }
}

static const ek_type summed[] = {EK_F32, EK_F64, EK_BF16, EK_F16};
enum { SUMMED = sizeof summed / sizeof summed[0] };

CK_LOOP(sums_are_in_the_order_of_the_devices, SUMMED) {
  /* 1e8 + 1 - 1e8 is 0 in f32, 1e8 - 1e8 + 1 is 1: any other order or width gives other bits. So
   * does a rounding to 16 bits on the way, to infinity where 6e4 and 5e4 meet in f16. */
  static const double values[SUMMED][DEVICES] = {{1e8, 1, -1e8, 3, 0.1, 1e-7, 1e4, -0.3},
                                                 {1e17, 1, -1e17, 3, 0.1, 1e-17, 1e14, -0.3},
                                                 {1e8, 1, -1e8, 3, 0.1, 1e-7, 1e4, -0.3},
                                                 {6e4, 1e-3, 5e4, -6e4, 0.1, -5e4, 1e3, -0.3}};
  struct ck_random random = ck_random_start(99);
  for (size_t devices = 3; devices <= DEVICES; devices++) {
    const size_t mark = ck_mark();
    CK_SET_UP(struct bed, bed, open_bed(&bed, "cpu", devices, summed[_i], 1003));
    for (int kind = REDUCE; kind <= REDUCE_SCATTER; kind++) {
      for (int64_t i = 0; i < bed.count; i++) {
        for (size_t d = 0; d < devices; d++) {
          /* In turn, so that every device has each of the values somewhere. */
          bed.values[d][i] = ck_round_to(bed.type, values[_i][(d + (size_t)i) % DEVICES]);
        }
      }
      bed.kind = (enum kind)kind;
      bed.root = (size_t)ck_random_integer(&random, 0, (int64_t)devices - 1);
      cut(&bed, &random);
      if (one_rounding(&bed)) run_once(&bed);
    }
    ck_release(mark);
  }
}

CK_LOOP(runs_repeat_bit_for_bit, SUMMED) {
  struct ck_random random = ck_random_start(7);
  CK_SET_UP(struct bed, bed, open_bed(&bed, "cpu", 5, summed[_i], 10007));
  for (size_t d = 0; d < bed.devices; d++) {
    for (int64_t i = 0; i < bed.count; i++) {
      bed.values[d][i] = ck_round_to(bed.type, ck_random_uniform(&random, -1, 1));
    }
  }
  bed.kind = ALL_REDUCE;
  /* expected() is one fixed order */
  const int runs = ck_in_parts() ? 10 : 50;
  for (int run = 0; run < runs && one_rounding(&bed); run++) run_once(&bed);
}

/* ---- many at a time ---- */

struct chain {
  struct bed bed;
  int rounds, after; /* wait after this many; 0: at the end */
  bool progress;
};

/* Sums of ones: after r rounds over n devices every element is n^(r - 1) times the first sum. */
CK_JOB(run_chain) {
  struct chain *chain = context;
  struct bed *bed = &chain->bed;
  for (int r = 0; r < chain->rounds; r++) {
    ek_tensor part = {0};
    EK_TRY(ek_tensor_rows(&part, &bed->tensors[index], r, 1));
    ck_keep(part); /* which its free takes out, and not the whole */
    const ek_status status = ek_communicator_all_reduce(bed->communicator, device, &part);
    ek_tensor_free(&part);
    EK_TRY(status);
    if (chain->progress) EK_TRY(ek_communicator_progress(bed->communicator, device));
    if (chain->after > 0 && r % chain->after == 0) {
      EK_TRY(ek_communicator_wait(bed->communicator, device));
    }
    /* Devices that are out of step meet all the states of the ring. */
    if ((size_t)r % (50 * (index + 1)) == 49) {
      const struct timespec pause = {.tv_nsec = 200000};
      nanosleep(&pause, NULL);
    }
  }
  return ek_communicator_wait(bed->communicator, device);
}

CK_LOOP(more_collectives_than_the_ring_has_places, 7) {
  static const struct {
    int rounds, after;
    bool progress;
  } ways[] = {{64, 0, false},  {65, 0, false},   {1000, 0, false}, {1000, 0, true},
              {500, 1, false}, {1000, 63, true}, {1000, 65, false}};
  struct chain chain = {
      .rounds = ways[_i].rounds, .after = ways[_i].after, .progress = ways[_i].progress};
  struct ck_random random = ck_random_start(3);
  open_bed(&chain.bed, "cpu", 4, EK_F32, chain.rounds);
  fill_integers(&chain.bed, &random);
  upload_values(&chain.bed);
  chain.bed.kind = ALL_REDUCE;
  ck_ok(ek_group_apply(chain.bed.group, run_chain, &chain));
  check_result(&chain.bed);
}

struct early {
  struct bed bed;
  atomic_int arrived, done;
};

/* Device 0 polls progress() and sees the sum although no device has called wait(). */
CK_JOB(progress_only) {
  struct early *early = context;
  struct bed *bed = &early->bed;
  EK_TRY(ek_communicator_all_reduce(bed->communicator, device, &bed->tensors[index]));
  atomic_fetch_add(&early->arrived, 1);
  while (atomic_load(&early->arrived) < (int)bed->devices) {
  }
  EK_TRY(ek_communicator_progress(bed->communicator, device));
  atomic_fetch_add(&early->done, 1);
  while (atomic_load(&early->done) < (int)bed->devices) {
  }
  bed->seen[index] = ek_communicator_progress(bed->communicator, device);
  /* All devices have done their parts: the sum is there, before any wait. GPUs may still run. */
  if (index == 0 && on_cpu(bed) && ((const float *)bed->tensors[0].data)[bed->count - 1] != 3.0f) {
    bed->seen[0] = EK_ERR_INTERNAL;
  }
  return ek_communicator_wait(bed->communicator, device);
}

CK_TEST(progress_works_before_wait) {
  struct early early = {0};
  open_bed(&early.bed, "cpu", 2, EK_F32, 1000);
  for (int64_t i = 0; i < 1000; i++) early.bed.values[0][i] = 1, early.bed.values[1][i] = 2;
  upload_values(&early.bed);
  ck_ok(ek_group_apply(early.bed.group, progress_only, &early));
  for (size_t i = 0; i < 2; i++) ck_assert_int_eq(early.bed.seen[i], EK_OK);
}

CK_JOB(both) {
  struct bed *beds = context;
  ek_communicator *first = beds[0].communicator, *second = beds[1].communicator;
  /* Odd devices start with the second communicator: they have nothing to do with each other. NCCL's
   * collectives wait for each other on the devices' streams and want one order. */
  const bool odd = index % 2 == 1 && strcmp(ek_communicator_name(first), "nccl") != 0;
  ek_tensor *a = &beds[0].tensors[index], *b = &beds[1].tensors[index];
  if (!odd) EK_TRY(ek_communicator_all_reduce(first, device, a));
  EK_TRY(ek_communicator_all_reduce(second, device, b));
  if (odd) EK_TRY(ek_communicator_all_reduce(first, device, a));
  EK_TRY(ek_communicator_wait(first, device));
  return ek_communicator_wait(second, device);
}

CK_TEST(several_communicators_at_once) {
  struct bed beds[2];
  struct ck_random random = ck_random_start(4);
  open_bed(&beds[0], "cpu", 4, EK_F32, 1000);
  /* The second is on the same group, with tensors of its own. */
  beds[1] = beds[0];
  ck_kept(ek_communicator_open(&beds[1].communicator, beds[0].group), beds[1].communicator);
  for (size_t i = 0; i < 4; i++) {
    beds[1].tensors[i] = ck_upload(ek_group_device(beds[0].group, i), EK_F32, NULL, CK_SHAPE(1000));
  }
  fill_integers(&beds[0], &random);
  beds[0].kind = beds[1].kind = ALL_REDUCE;
  for (int round = 0; round < 50; round++) {
    upload_values(&beds[0]);
    upload_values(&beds[1]);
    ck_ok(ek_group_apply(beds[0].group, both, beds));
    check_result(&beds[0]);
    check_result(&beds[1]);
  }
}

/* ---- misfits ---- */

/* Device 1 differs in one thing; every device records what it saw. */
CK_JOB(misfit) {
  struct chain *chain = context;
  struct bed own = chain->bed;
  ek_tensor part = {0};
  ek_tensor *tensor = &own.tensors[index];
  ek_status status = EK_OK;
  if (index == 1 && chain->rounds == 0) {
    EK_TRY(ek_tensor_rows(&part, tensor, 0, own.count - 1));
    ck_keep(part);
    tensor = &part;
    own.offsets[own.devices]--;
  }
  if (index == 1 && chain->rounds == 1) own.kind = (enum kind)((own.kind + 1) % KINDS);
  if (index == 1 && chain->rounds == 2) own.root = 1, own.offsets[1]++;
  ek_tensor *good = &chain->bed.tensors[index];
  if (chain->progress) status = ek_communicator_all_reduce(own.communicator, device, good);
  if (status == EK_OK) status = call(&own, device, tensor);
  if (status == EK_OK && chain->after) {
    status = ek_communicator_all_reduce(own.communicator, device, good);
  }
  if (status == EK_OK) status = ek_communicator_wait(own.communicator, device);
  ek_tensor_free(&part);
  chain->bed.seen[index] = status;
  return status;
}

CK_LOOP(a_misfit_is_everybodys_error, 3 * KINDS) {
  struct chain chain = {.rounds = _i / KINDS};
  struct bed *bed = &chain.bed;
  open_bed(bed, "cpu", 4, EK_F32, 1000);
  for (size_t i = 0; i <= 4; i++) bed->offsets[i] = (int64_t)i * 250;
  for (int round = 0; round < 40; round++) {
    bed->kind = (enum kind)(_i % KINDS);
    bed->root = 0;
    chain.progress = round % 2 == 1;                         /* one that fits before it */
    chain.after = round / 2 % 2;                             /* and one after it */
    if (chain.rounds == 2 && bed->kind == ALL_REDUCE) break; /* has neither root nor offsets */
    const double since = ck_now();
    ck_fails(ek_group_apply(bed->group, misfit, &chain), EK_ERR_SHAPE, "different");
    ck_assert_double_lt(ck_now() - since, 10);
    for (size_t i = 0; i < 4; i++) ck_assert_int_eq(bed->seen[i], EK_ERR_SHAPE);
    bed->kind = ALL_REDUCE;
    run_once(bed);
  }
}

/* ---- failures ---- */

CK_JOB(fail_on_one) {
  struct bed *bed = context;
  if (index == bed->root) return ek_error_set(EK_ERR_IO, "the disk is full");
  bed->seen[index] = call(bed, device, &bed->tensors[index]);
  if (bed->seen[index] == EK_OK) bed->seen[index] = ek_communicator_wait(bed->communicator, device);
  return bed->seen[index];
}

/* Waiting devices look at the others once a second by themselves. What is told by an abort is told
 * earlier; on a busy machine not every time, so that the quickest of several rounds counts. */
static void keep_least(double *least, double seconds) {
  if (*least == 0 || seconds < *least) *least = seconds;
}

CK_TEST(a_failing_device_leaves_nobody_waiting) {
  double least[KINDS] = {0};
  struct ck_random random = ck_random_start(5);
  CK_SET_UP(struct bed, bed, open_bed(&bed, "cpu", 4, EK_F32, 100));
  fill_integers(&bed, &random);
  cut(&bed, &random);
  for (int round = 0; round < 40; round++) {
    ck_assign(bed, .root = (size_t)round % 4, .kind = (enum kind)(round % KINDS));
    const double since = ck_now();
    const char *text = ck_text("replica %zu on cpu:%zu: the disk is full", bed.root, bed.root);
    ck_fails(ek_group_apply(bed.group, fail_on_one, &bed), EK_ERR_IO, text);
    keep_least(&least[bed.kind], ck_now() - since);
    for (size_t i = 0; i < 4; i++) {
      if (i != bed.root) ck_assert_int_eq(bed.seen[i], EK_ERR_ABORTED);
    }
    run_once(&bed); /* as new */
  }
  for (int kind = 0; kind < KINDS; kind++) ck_assert_double_lt(least[kind], 1);
}

CK_JOB(wait_for_ever) {
  struct bed *bed = context;
  if (index == 0) { /* does not come, and waits with the rest, for what no device will send */
    ek_communicator *communicator = bed->communicator;
    const struct timespec pause = {.tv_nsec = 1000000};
    ek_status status = EK_OK;
    while ((status = ek_communicator_progress(communicator, device)) == EK_OK) {
      nanosleep(&pause, NULL);
    }
    return status;
  }
  return once(context, device, index);
}

static void *abort_later(void *argument) {
  const struct timespec pause = {.tv_nsec = 20000000};
  nanosleep(&pause, NULL);
  ek_communicator_abort(argument);
  return NULL;
}

CK_TEST(another_thread_may_abort) {
  double least = 0;
  CK_SET_UP(struct bed, bed, open_bed(&bed, "cpu", 3, EK_F32, 100));
  bed.kind = ALL_REDUCE;
  for (int round = 0; round < 5; round++) {
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, abort_later, bed.communicator), 0);
    const double since = ck_now();
    const ek_status status = ek_group_apply(bed.group, wait_for_ever, &bed);
    keep_least(&least, ck_now() - since);
    pthread_join(thread, NULL);
    ck_assert_int_eq(status, EK_ERR_ABORTED);
    ck_assert(ck_contains(ek_error_message(), "replica 0 on cpu:0: "));
    run_once(&bed);
  }
  ck_assert_double_lt(least, 1);
  /* An abort without a waiting thread stops the next call. */
  ek_communicator_abort(bed.communicator);
  ck_fails(ek_group_apply(bed.group, once, &bed), EK_ERR_ABORTED, "replica 0");
  run_once(&bed);
}

/* ---- devices that count, and wrong arguments ---- */

CK_TEST(the_counting_communicator_never_waits) {
  struct chain chain = {.rounds = 200};
  open_bed(&chain.bed, "plan", 3, EK_F32, 200);
  ck_assert_str_eq(ek_communicator_name(chain.bed.communicator), "count");
  ck_ok(ek_group_apply(chain.bed.group, run_chain, &chain));
  for (int kind = 0; kind < KINDS; kind++) {
    ck_assign(chain.bed, .kind = (enum kind)kind, .offsets[3] = 200);
    ck_ok(ek_group_apply(chain.bed.group, once, &chain.bed));
  }
  chain.bed.root = 1;
  ck_fails(ek_group_apply(chain.bed.group, fail_on_one, &chain.bed), EK_ERR_IO, "plan:1");
  ek_communicator_abort(chain.bed.communicator);
}

CK_LOOP(wrong_arguments, 2) {
  struct bed bed, other;
  open_bed(&bed, _i == 0 ? "cpu" : "plan", 2, EK_F32, 10);
  open_bed(&other, _i == 0 ? "cpu" : "plan", 2, EK_I32, 10);
  ek_communicator *c = bed.communicator;
  ek_device *device = ek_group_device(bed.group, 0), *foreign = ek_group_device(other.group, 0);
  ek_tensor *t = &bed.tensors[0], none = {0}, ints = ck_upload(device, EK_I32, NULL, CK_SHAPE(10));
  const int64_t offsets[] = {0, 4, 10}, late[] = {1, 4, 10}, short_[] = {0, 4, 9},
                back[] = {0, 11, 10};
  ck_invalid(ek_communicator_open(NULL, bed.group), "NULL");
  ck_invalid(ek_communicator_open(&c, NULL), "NULL");
  ck_invalid(ek_communicator_all_reduce(NULL, device, t), "all_reduce");
  ck_invalid(ek_communicator_all_reduce(c, NULL, t), "all_reduce");
  ck_invalid(ek_communicator_all_reduce(c, device, NULL), "all_reduce");
  ck_invalid(ek_communicator_all_reduce(c, device, &none), "all_reduce");
  ck_fails(ek_communicator_all_reduce(c, foreign, t), EK_ERR_DEVICE, "all_reduce");
  ck_fails(ek_communicator_all_reduce(c, device, &bed.tensors[1]), EK_ERR_DEVICE,
           ek_device_name(ek_group_device(bed.group, 1)));
  ck_fails(ek_communicator_all_reduce(c, device, &ints), EK_ERR_TYPE, "i32");
  ck_fails(ek_communicator_reduce(c, device, &ints, 0), EK_ERR_TYPE, "i32");
  ck_invalid(ek_communicator_reduce(c, device, t, 2), "no rank 2");
  ck_invalid(ek_communicator_broadcast(c, device, t, 2), "no rank 2");
  ck_fails(ek_communicator_reduce_scatter(c, device, &ints, offsets), EK_ERR_TYPE, "i32");
  ck_invalid(ek_communicator_reduce_scatter(c, device, t, NULL), "offsets");
  ck_invalid(ek_communicator_all_gather(c, device, t, late), "offsets");
  ck_invalid(ek_communicator_all_gather(c, device, t, short_), "offsets");
  ck_invalid(ek_communicator_all_gather(c, device, t, back), "offsets");
  ck_invalid(ek_communicator_progress(NULL, device), "progress");
  ck_invalid(ek_communicator_wait(c, NULL), "wait");
  ck_fails(ek_communicator_wait(c, foreign), EK_ERR_DEVICE, "wait");
  ck_assert_str_eq(ek_communicator_name(NULL), "");
  ek_communicator_abort(NULL);
  ek_communicator_free(NULL);
  bed.kind = ALL_REDUCE;
  ck_ok(ek_group_apply(bed.group, once, &bed)); /* none of them was queued */
}

/* ---- one device ---- */

CK_JOB(every_kind) {
  ek_communicator *alone = context;
  const int64_t offsets[] = {0, 3};
  const float values[] = {3, -0.0f, 5};
  float got[3];
  ek_tensor x = {0}, host;
  EK_TRY(ek_tensor_host(&host, (void *)(uintptr_t)values, EK_F32, CK_SHAPE(3)));
  EK_TRY(ek_tensor_create_from(&x, device, EK_MEMORY_INPUTS, &host, false));
  ek_status status = ek_communicator_all_reduce(alone, device, &x);
  if (status == EK_OK) status = ek_communicator_reduce_scatter(alone, device, &x, offsets);
  if (status == EK_OK) status = ek_communicator_all_gather(alone, device, &x, offsets);
  if (status == EK_OK) status = ek_communicator_reduce(alone, device, &x, 0);
  if (status == EK_OK) status = ek_communicator_broadcast(alone, device, &x, 0);
  if (status == EK_OK) status = ek_communicator_wait(alone, device);
  if (status == EK_OK) status = ek_tensor_host(&host, got, EK_F32, CK_SHAPE(3));
  if (status == EK_OK) status = ek_tensor_copy(&host, &x);
  ek_tensor_free(&x);
  if (status == EK_OK && memcmp(got, values, sizeof got) != 0) status = EK_ERR_INTERNAL;
  return status;
}

/* Collectives of the only rank change no bit and do no work: a trace has none of them. */
CK_TEST(one_device_has_nothing_to_exchange) {
  ek_group *group = ck_open("cpu:1", 1);
  CK_OPENED(ek_communicator *, alone, ek_communicator_open(&alone, group));
  ck_ok(ek_trace_start(group, 0));
  ck_ok(ek_group_apply(group, every_kind, alone));
  ck_ok(ek_trace_stop(group));
  const char *path = ck_text("alone-%ld.json", (long)getpid());
  CK_GOT(ek_trace_summary, summary, ek_trace_write(&summary, group, path));
  (void)remove(path);
  ck_assert_uint_eq(summary.spans, 2); /* the two copies */
}

CK_SUITE("communicator")
