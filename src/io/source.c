/*
 * source.c - the base of sources: what they have, the order of an epoch, parts of a source.
 *
 * Reads go to the source's function in pieces of up to PIECE samples of one epoch. A
 * part is a source without a function of its own: its samples are moved and read from the whole.
 */
#include <evenkeel/source.h>

#include <inttypes.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"
#include "core/sizes.h"

enum { PIECE = 256, ROUNDS = 8, ORDER_STREAM = 0 };

/* ---- the order ---- */

/* Rounds change the lower `low` bits by the others, and the others by them. */
static uint64_t permute_bits(ek_random_key key, uint64_t value, int bits) {
  const int low = bits / 2;
  const uint64_t low_mask = (UINT64_C(1) << low) - 1;
  const uint64_t high_mask = (UINT64_C(1) << (bits - low)) - 1;
  uint64_t a = value & low_mask, b = value >> low;
  for (uint32_t round = 0; round < ROUNDS; round++) {
    uint32_t random[4];
    ek_random_bits(key, (uint32_t)(round % 2 == 0 ? b : a), round, random);
    if (round % 2 == 0) a ^= random[0] & low_mask;
    if (round % 2 != 0) b ^= random[0] & high_mask;
  }
  return b << low | a;
}

/* The permutation of 0 .. count - 1 at `index`. */
static int64_t permute(ek_random_key key, int64_t index, int64_t count) {
  int bits = 2;
  while (bits < 62 && (UINT64_C(1) << bits) < (uint64_t)count) bits++;
  uint64_t value = (uint64_t)index;
  do {
    value = permute_bits(key, value, bits);
  } while (value >= (uint64_t)count);
  return (int64_t)value;
}

/* ---- making ---- */

EK__OPTIONS_INIT(ek_source_options, EK_SOURCE_OPTIONS_INIT)

static ek_status check_tensor(const char *kind, const ek_source_tensor *tensor, size_t number,
                              int64_t samples) {
  int64_t bytes = (int64_t)ek_type_size(tensor->type);
  EK__FAIL_IF(bytes == 0, EK_ERR_INVALID_ARGUMENT, "source %s: tensor %zu has no type", kind,
              number);
  EK__FAIL_IF(tensor->rank < 0 || tensor->rank >= EK_MAX_RANK, EK_ERR_INVALID_ARGUMENT,
              "source %s: tensor %zu: rank %d, expected 0 to %d", kind, number, tensor->rank,
              EK_MAX_RANK - 1);
  for (int i = 0; i < tensor->rank; i++) {
    EK__FAIL_IF(tensor->shape[i] < 0, EK_ERR_INVALID_ARGUMENT,
                "source %s: tensor %zu: dimension %d is %" PRId64 ", expected 0 or more", kind,
                number, i, tensor->shape[i]);
    EK__FAIL_IF(!ek__multiply(&bytes, bytes, tensor->shape[i]), EK_ERR_OVERFLOW,
                "source %s: tensor %zu: the bytes of a sample do not fit", kind, number);
  }
  EK__FAIL_IF(samples > INT64_C(1) << 62, EK_ERR_OVERFLOW,
              "source %s: %" PRId64 " samples, expected at most 2^62", kind, samples);
  return EK_OK;
}

ek_status ek_source_init(ek_source *source, const ek_source_ops *ops,
                         const ek_source_options *options) {
  ek_source_options o = EK_SOURCE_OPTIONS_INIT;
  ek_source_ops table = {.size = sizeof table};
  EK__NOT_NULL("ek_source_init", source, ops, options);
  EK_TRY(ek__options_read(&table, sizeof table, ops, "ek_source_ops"));
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_source_options"));
  const char *missing = table.kind == NULL ? "kind" : table.read == NULL ? "read" : "free";
  EK__FAIL_IF(table.kind == NULL || table.read == NULL || table.free == NULL,
              EK_ERR_INVALID_ARGUMENT, "ek_source_init: ops.%s is missing", missing);
  EK__FAIL_IF(o.samples <= 0, EK_ERR_INVALID_ARGUMENT,
              "source %s: %" PRId64 " samples, expected above 0", ops->kind, o.samples);
  EK_TRY(ek__check_count("source", ops->kind, "inputs", o.inputs, 1, EK_MAX_TENSORS));
  EK_TRY(ek__check_count("source", ops->kind, "targets", o.targets, 0, EK_MAX_TENSORS));
  EK__FAIL_IF(o.tensors == NULL, EK_ERR_INVALID_ARGUMENT,
              "source %s: options.tensors is NULL, expected %zu tensors", ops->kind,
              o.inputs + o.targets);
  struct ek__source_private made = {.ops = ops,
                                    .samples = o.samples,
                                    .seed = o.seed,
                                    .inputs = o.inputs,
                                    .targets = o.targets,
                                    .references = 1,
                                    .in_order = o.in_order};
  for (size_t i = 0; i < o.inputs + o.targets; i++) {
    EK_TRY(check_tensor(ops->kind, &o.tensors[i], i, o.samples));
    made.tensors[i] = o.tensors[i];
  }
  source->private_members = made;
  return EK_OK;
}

ek_source *ek_source_share(ek_source *source) {
  if (source != NULL) __atomic_fetch_add(&source->private_members.references, 1, __ATOMIC_RELAXED);
  return source;
}

void ek_source_free(ek_source *source) {
  if (source == NULL) return;
  struct ek__source_private *s = &source->private_members;
  if (__atomic_sub_fetch(&s->references, 1, __ATOMIC_ACQ_REL) == 0) s->ops->free(source);
}

/* ---- a part ---- */

static ek_status read_part(const ek_source *self, const ek_source_request *request,
                           ek_tensor *tensors) {
  const struct ek__source_private *s = &self->private_members;
  ek_source_request moved = *request;
  int64_t samples[PIECE]; /* as many as a request of ek_source_read() has at most */
  for (int64_t i = 0; i < request->count; i++) samples[i] = s->first + request->samples[i];
  moved.samples = samples;
  return s->of->private_members.ops->read(s->of, &moved, tensors);
}

static void free_part(ek_source *self) {
  ek_source_free(self->private_members.of);
  ek__free(self);
}

ek_status ek_source_part_create(ek_source **part, ek_source *whole, int64_t first, int64_t count,
                                const ek_source_options *options) {
  static const ek_source_ops ops = {
      .size = sizeof ops, .kind = "part", .read = read_part, .free = free_part};
  ek_source_options o = EK_SOURCE_OPTIONS_INIT;
  EK__NOT_NULL("ek_source_part_create", part, whole);
  const struct ek__source_private *w = &whole->private_members;
  o.seed = w->seed;
  o.in_order = w->in_order;
  if (options != NULL) EK_TRY(ek__options_read(&o, sizeof o, options, "ek_source_options"));
  EK__FAIL_IF(first < 0 || count <= 0 || first >= w->samples || count > w->samples - first,
              EK_ERR_INVALID_ARGUMENT, "ek_source_part_create: %" PRId64 " samples from %" PRId64
                                       " on; the source has %" PRId64,
              count, first, w->samples);
  ek_source *made = NULL;
  EK_TRY(ek__new(&made, 1, sizeof *made, "a source"));
  made->private_members = *w;
  struct ek__source_private *m = &made->private_members;
  m->ops = &ops;
  m->of = ek_source_share(whole);
  m->samples = count;
  m->first = first;
  m->seed = o.seed;
  m->in_order = o.in_order;
  m->references = 1;
  *part = made;
  return EK_OK;
}

/* ---- what it has ---- */

const char *ek_source_kind(const ek_source *source) {
  return source == NULL ? "" : source->private_members.ops->kind;
}

int64_t ek_source_samples(const ek_source *source) {
  return source == NULL ? 0 : source->private_members.samples;
}

size_t ek_source_inputs(const ek_source *source) {
  return source == NULL ? 0 : source->private_members.inputs;
}

size_t ek_source_targets(const ek_source *source) {
  return source == NULL ? 0 : source->private_members.targets;
}

const ek_source_tensor *ek_source_tensor_of(const ek_source *source, size_t index) {
  if (index >= ek_source_inputs(source) + ek_source_targets(source)) return NULL;
  return &source->private_members.tensors[index];
}

/* ---- reading ---- */

static ek_status check_positions(const struct ek__source_private *s, int64_t first, int64_t count) {
  int64_t end = 0;
  const bool good = first >= 0 && count >= 0 && ek__add(&end, first, count) &&
                    (end == 0 || (end - 1) / s->samples <= UINT32_MAX);
  EK__FAIL_IF(!good, EK_ERR_INVALID_ARGUMENT,
              "source %s: %" PRId64 " positions from %" PRId64
              " on, expected positions from 0 on, below 2^32 epochs",
              s->ops->kind, count, first);
  return EK_OK;
}

static ek_random_key key_of(const struct ek__source_private *s, int64_t position) {
  const ek_random_key key = {s->seed, (uint32_t)(position / s->samples), ORDER_STREAM};
  return key;
}

static int64_t sample_at(const struct ek__source_private *s, int64_t position) {
  const int64_t index = position % s->samples;
  return s->in_order ? index : permute(key_of(s, position), index, s->samples);
}

ek_status ek_source_at(int64_t *sample, int64_t *epoch, const ek_source *source, int64_t position) {
  EK__NOT_NULL("ek_source_at", sample, source);
  const struct ek__source_private *s = &source->private_members;
  EK_TRY(check_positions(s, position, 1));
  *sample = sample_at(s, position);
  if (epoch != NULL) *epoch = position / s->samples;
  return EK_OK;
}

static ek_status check_target(const struct ek__source_private *s, const ek_tensor *tensor, size_t i,
                              int64_t count) {
  const ek_source_tensor *want = &s->tensors[i];
  EK__FAIL_IF(tensor->device != NULL || !ek_tensor_exists(tensor), EK_ERR_INVALID_ARGUMENT,
              "source %s: tensor %zu is not in host memory", s->ops->kind, i);
  EK__FAIL_IF(tensor->type != want->type, EK_ERR_TYPE, "source %s: tensor %zu is %s, expected %s",
              s->ops->kind, i, ek_type_name(tensor->type), ek_type_name(want->type));
  EK__FAIL_IF(tensor->rank < 1 || tensor->shape[0] != count ||
                  !ek__same_sizes(tensor->rank - 1, tensor->shape + 1, want->rank, want->shape),
              EK_ERR_SHAPE, "source %s: tensor %zu must have %" PRId64
                            " rows of the source's shape",
              s->ops->kind, i, count);
  return EK_OK;
}

/* Rows done .. done + count - 1, of one epoch. */
static ek_status read_piece(ek_tensor *tensors, const ek_source *source, int64_t first,
                            int64_t done, int64_t count) {
  const struct ek__source_private *s = &source->private_members;
  int64_t samples[PIECE];
  ek_tensor rows[EK_MAX_INPUTS];
  for (size_t i = 0; i < s->inputs + s->targets; i++) {
    rows[i] = tensors[i];
    rows[i].shape[0] = count;
    const size_t row = (size_t)ek_tensor_row_elements(&tensors[i]) * ek_type_size(tensors[i].type);
    if (row > 0) rows[i].data = (char *)tensors[i].data + row * (size_t)done;
  }
  for (int64_t i = 0; i < count; i++) samples[i] = sample_at(s, first + done + i);
  const ek_source_request request = {samples, count, key_of(s, first + done)};
  const uint64_t before = ek__error_number();
  const ek_status status = s->ops->read(source, &request, rows);
  if (status != EK_OK) ek__error_name(s->ops->kind, status, before);
  return status;
}

ek_status ek_source_read(ek_tensor *tensors, size_t count_of_tensors, const ek_source *source,
                         int64_t first, int64_t count) {
  EK__NOT_NULL("ek_source_read", tensors, source);
  const struct ek__source_private *s = &source->private_members;
  EK__FAIL_IF(count_of_tensors != s->inputs + s->targets, EK_ERR_INVALID_ARGUMENT,
              "source %s: %zu tensors, expected %zu inputs and %zu targets", s->ops->kind,
              count_of_tensors, s->inputs, s->targets);
  EK_TRY(check_positions(s, first, count));
  for (size_t i = 0; i < count_of_tensors; i++) EK_TRY(check_target(s, &tensors[i], i, count));
  for (int64_t done = 0; done < count;) {
    int64_t piece = s->samples - (first + done) % s->samples;
    if (piece > count - done) piece = count - done;
    if (piece > PIECE) piece = PIECE;
    EK_TRY(read_piece(tensors, source, first, done, piece));
    done += piece;
  }
  return EK_OK;
}
