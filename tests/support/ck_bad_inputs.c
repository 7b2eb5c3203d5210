/*
 * ck_bad_inputs.c - wrong arguments for one operation, systematically: see ck_bad_inputs.h.
 */
#include "ck_bad_inputs.h"

#include "ek_check.h"

/* Few of one value, so that no operand fits where another one belongs. */
static const struct sizes sizes = {
    .r = 6, .c = 4, .w = 4, .k = 5, .e = 7, .p = 2, .b = 2, .t = 3, .h = 2, .j = 3};

struct trial {
  const struct operation *operation;
  struct parameters parameters;
  ek_group *group, *foreign;
  ek_stream *stream;
  ek_type type;                    /* of the floating operands */
  ek_tensor tensor[MOST_OPERANDS]; /* good ones */
  ek_tensor *t[MOST_OPERANDS];     /* what the call gets */
};

static const ek_type halves[] = {EK_BF16, EK_F16};

static ek_tensor make(ek_device *device, ek_type type, int rank, const int64_t *shape) {
  ek_tensor tensor = {0};
  ck_ok(ek_tensor_create(&tensor, device, EK_MEMORY_WORKSPACE, type, rank, shape));
  return tensor;
}

static ek_type type_of(const struct trial *trial, int i) {
  const struct operand *operand = &trial->operation->operand[i];
  const ek_type sum = trial->type == EK_F64 ? EK_F64 : EK_F32;
  return operand->type != 0 ? operand->type : operand->sum ? sum : trial->type;
}

/* The call with operand i replaced must fail. */
static void expect(struct trial *trial, int i, ek_tensor *bad, ek_status wanted, const char *why) {
  const struct operation *operation = trial->operation;
  ek_tensor *kept = trial->t[i];
  trial->t[i] = bad;
  ek_error_clear();
  const ek_status status = operation->call(trial->stream, trial->t, &trial->parameters);
  trial->t[i] = kept;
  ck_assert_msg(status == wanted, "%s, %s %s: %s, not %s (%s)", operation->name,
                operation->operand[i].name, why, ek_status_name(status), ek_status_name(wanted),
                ek_error_message());
  ck_assert_msg(ck_contains(ek_error_message(), operation->message),
                "%s, %s %s: the message does not name it: %s", operation->name,
                operation->operand[i].name, why, ek_error_message());
}

static void try_absent(struct trial *trial, int i) {
  ek_tensor absent = {0};
  const struct operand *operand = &trial->operation->operand[i];
  if (!operand->optional || operand->needed) {
    expect(trial, i, NULL, EK_ERR_INVALID_ARGUMENT, "NULL");
  }
  expect(trial, i, &absent, EK_ERR_INVALID_ARGUMENT, "absent");
}

static void try_places(struct trial *trial, int i) {
  double memory[1024] = {0};
  const ek_tensor *good = &trial->tensor[i];
  ck_assert_uint_le(ek_tensor_bytes(good), sizeof memory);
  CK_GOT(ek_tensor, host, ek_tensor_host(&host, memory, good->type, good->rank, good->shape));
  expect(trial, i, &host, EK_ERR_DEVICE, "in host memory");

  ek_tensor far = make(ek_group_device(trial->foreign, 0), good->type, good->rank, good->shape);
  expect(trial, i, &far, EK_ERR_DEVICE, "in another group");
  ek_tensor_free(&far);
}

static void try_type(struct trial *trial, int i, ek_type type, ek_status wanted, const char *why) {
  const ek_tensor *good = &trial->tensor[i];
  ek_tensor bad = make(good->device, type, good->rank, good->shape);
  expect(trial, i, &bad, wanted, why);
  ek_tensor_free(&bad);
}

static void try_types(struct trial *trial, int i) {
  const struct operation *operation = trial->operation;
  const struct operand *operand = &operation->operand[i];
  if (operand->any_type) {
    if (operation->count > 1) try_type(trial, i, EK_I32, EK_ERR_TYPE, "i32");
    return;
  }
  if (operand->type == EK_I32 || operand->type == EK_F64) {
    try_type(trial, i, EK_F32, EK_ERR_TYPE, "f32");
    return;
  }
  try_type(trial, i, EK_I32, EK_ERR_TYPE, "i32");
  if (operand->any_float) return;
  int floats = 0, values = 0;
  for (int j = 0; j < operation->count; j++) {
    const struct operand *other = &operation->operand[j];
    floats += other->type == 0;
    values += other->type == 0 && !other->sum && !other->either;
  }
  if (floats > 1) {
    try_type(trial, i, type_of(trial, i) == EK_F64 ? EK_F32 : EK_F64, EK_ERR_TYPE,
             "of a second type");
  }
  const unsigned computed = ek_device_types(trial->tensor[i].device);
  for (size_t k = 0; k < 2; k++) {
    const bool known = operand->sum || (computed >> halves[k] & 1u) != 0;
    const bool fits = operand->either || values == 1 || halves[k] == trial->type;
    if (operand->sum || !known || !fits) {
      try_type(trial, i, halves[k], known ? EK_ERR_TYPE : EK_ERR_UNSUPPORTED,
               ek_type_name(halves[k]));
    }
  }
}

static void try_shapes(struct trial *trial, int i) {
  const struct operand *operand = &trial->operation->operand[i];
  const ek_tensor *good = &trial->tensor[i];
  int64_t shape[EK_MAX_RANK];
  memcpy(shape, good->shape, sizeof shape);
  shape[good->rank - 1]++;
  if (!operand->any_shape) {
    ek_tensor wide = make(good->device, good->type, good->rank, shape);
    expect(trial, i, &wide, EK_ERR_SHAPE, "one too wide");
    ek_tensor_free(&wide);
  }

  ek_tensor damaged = *good; /* ek_tensor is a plain struct: a caller may fill it with anything */
  damaged.rank = EK_MAX_RANK + 1;
  expect(trial, i, &damaged, EK_ERR_INVALID_ARGUMENT, "of rank 9");
  damaged.rank = -1;
  expect(trial, i, &damaged, EK_ERR_INVALID_ARGUMENT, "of rank -1");
  damaged = *good;
  damaged.shape[0] = -1;
  expect(trial, i, &damaged, EK_ERR_INVALID_ARGUMENT, "of negative size");
  damaged = *good;
  ck_assign(damaged, .rank = 2, .shape[0] = INT64_C(1) << 31, .shape[1] = INT64_C(1) << 32);
  expect(trial, i, &damaged, EK_ERR_OVERFLOW, "of 2^63 elements");
}

/* Destination i in the memory of j, from its first byte on or one element further. */
static void try_overlap(struct trial *trial, int i, int j) {
  const struct operand *y = &trial->operation->operand[i];
  const struct operand *x = &trial->operation->operand[j];
  const bool allowed = ((y->may_be >> j) & 1u) != 0 || (x->written && ((x->may_be >> i) & 1u) != 0);
  CK_WITH(ek_tensor, shifted, trial->tensor[i], .data = trial->tensor[j].data);
  if (!allowed) expect(trial, i, &shifted, EK_ERR_INVALID_ARGUMENT, "overlapping");
  if (ek_tensor_count(&trial->tensor[j]) < 2) return;
  shifted.data = (char *)trial->tensor[j].data + ek_type_size(trial->tensor[j].type);
  expect(trial, i, &shifted, EK_ERR_INVALID_ARGUMENT, "overlapping, shifted");
}

/* Destinations are one after another in `bytes`. */
static size_t read_destinations(struct trial *trial, unsigned char *bytes) {
  size_t used = 0;
  for (int i = 0; i < trial->operation->count; i++) {
    const ek_tensor *tensor = &trial->tensor[i];
    if (!trial->operation->operand[i].written) continue;
    ek_tensor host;
    ck_ok(ek_tensor_host(&host, bytes + used, tensor->type, tensor->rank, tensor->shape));
    ck_ok(ek_tensor_copy(&host, tensor));
    used += (ek_tensor_bytes(tensor) + 7) / 8 * 8;
  }
  return used;
}

static void try_all(struct trial *trial) {
  const struct operation *operation = trial->operation;
  static unsigned char before[65536], after[65536];
  memset(before, 0, sizeof before);
  memset(after, 0, sizeof after);
  const size_t used = read_destinations(trial, before);
  ck_assert_uint_le(used, sizeof before);

  ck_fails(operation->call(NULL, trial->t, &trial->parameters), EK_ERR_INVALID_ARGUMENT,
           operation->message);
  for (int i = 0; i < operation->count; i++) {
    try_absent(trial, i);
    try_places(trial, i);
    try_types(trial, i);
    try_shapes(trial, i);
    for (int j = 0; j < operation->count && operation->operand[i].written; j++) {
      if (j != i) try_overlap(trial, i, j);
    }
  }
  read_destinations(trial, after);
  ck_assert_msg(memcmp(before, after, used) == 0, "%s wrote although it failed", operation->name);
}

void ck_bad_inputs(const struct operation *operation, const char *spec) {
  static const ek_type types[] = {EK_F32, EK_F64, EK_BF16};
  for (int pass = 0; pass < 3; pass++) {
    struct trial trial = {.operation = operation, .parameters = operation_parameters(&sizes),
                          .type = types[pass]};
    trial.group = ck_open(spec, 1);
    ek_device *device = ek_group_device(trial.group, 0);
    if ((ek_device_types(device) >> types[pass] & 1u) == 0) {
      ek_group_free(trial.group);
      continue;
    }
    trial.foreign = ck_open(spec, 1);
    trial.stream = ek_device_stream(device, EK_STREAM_COMPUTE);
    for (int i = 0; i < operation->count; i++) {
      int64_t shape[EK_MAX_RANK], count = 1;
      const int rank = operand_shape(shape, &operation->operand[i], &sizes);
      for (int d = 0; d < rank; d++) count *= shape[d];
      double *zeros = calloc((size_t)count, sizeof *zeros);
      ck_assert_ptr_nonnull(zeros);
      trial.tensor[i] = ck_upload(device, type_of(&trial, i), zeros, rank, shape);
      free(zeros);
      trial.t[i] = &trial.tensor[i];
    }
    try_all(&trial);
    /* So it was not for another reason. */
    ck_ok(operation->call(trial.stream, trial.t, &trial.parameters));
    for (int i = 0; i < operation->count; i++) ek_tensor_free(&trial.tensor[i]);
    ck_no_memory_held(trial.group);
    ck_no_memory_held(trial.foreign);
    ek_group_free(trial.group);
    ek_group_free(trial.foreign);
  }
}
