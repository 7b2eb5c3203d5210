/*
 * kernels.c - which operations that memory bounds are measured, and what they are called with.
 *
 * Bytes are those of the floor that the head of each src/backend/cuda/cuda_*.cu names: every
 * element read or written once. An operation that needs more passes than that shows as slower than
 * a copy.
 */
#include "kernels.h"

#include <stdlib.h>
#include <string.h>

/* GPT-2: its vocabulary; its width, heads and longest sequence in the smallest of the models. */
enum { CLASSES = 50257, WIDTH = 768, HEADS = 12, SEQUENCE = 1024, TERMS = 3 };

static ek_status call_listed(struct bed *bed) {
  return bed->operation->call(bed->stream, bed->given, &bed->parameters);
}

#define LISTED(title, row, width)                                                                  \
  .name = title, .operation = row, .columns = width, .call = call_listed

const struct kernel copy_kernel = {LISTED("copy", "copy", 1)};

static const struct kernel kernels[] = {
    {LISTED("cross_entropy_forward", "cross_entropy_forward", CLASSES)},
    /* In place, as in training. What is there then are no logits, which does not matter to its
     * speed. */
    {LISTED("cross_entropy_backward", "cross_entropy_backward", CLASSES), .shared = 0, .with = 1},
    {LISTED("layer_norm_forward", "layer_norm_forward", WIDTH)},
    /* dx, 3, and in a pass of its own dgamma and dbeta, 2 */
    {LISTED("layer_norm_backward", "layer_norm_backward", WIDTH), .values_more = 2},
    {LISTED("gelu_forward", "gelu_forward", WIDTH)},
    {LISTED("gelu_backward", "gelu_backward", WIDTH)},
    {LISTED("multiply_rows", "binary by rows", WIDTH), .flag = {false, true}},
    {LISTED("row_mean", "row_reduce", WIDTH), .flag = {true}, .shared = 2, .with = 1},
    {LISTED("softmax_forward", "softmax_forward", WIDTH)},
    {LISTED("softmax_backward", "softmax_backward", WIDTH)},
    {LISTED("add", "add", WIDTH)},
    {LISTED("adamw", "adamw", WIDTH),
     .real = {3e-4, 0.9, 0.999, 0.01},
     .flag = {true},
     .copy = true},
};
enum { KERNELS = sizeof kernels / sizeof kernels[0] };

const struct kernel *memory_kernel_at(size_t index) {
  return index < KERNELS ? &kernels[index] : NULL;
}

const struct kernel *listed_kernel_at(size_t index) {
  static struct kernel listed[MOST_OPERATIONS];
  if (index >= operation_count) return NULL;
  const char *name = operations[index].name;
  listed[index] = (struct kernel){LISTED(name, name, WIDTH), .plain = true};
  return &listed[index];
}

/* ---- what they are called with ---- */

static const struct operation *operation_of(const struct kernel *kernel) {
  size_t i = 0;
  while (strcmp(operations[i].name, kernel->operation) != 0) i++;
  return &operations[i];
}

static bool is_shared(const struct kernel *kernel, int i) {
  return kernel->with > 0 && i == kernel->shared;
}

/* Optional sources are absent, and so is the copy that a row does not ask for. */
static bool is_given(const struct kernel *kernel, const struct operand *operand, ek_type type) {
  if (strcmp(operand->name, "copy") == 0) return kernel->copy && type != EK_F32;
  return !operand->optional || operand->written || (kernel->plain && operand->needed);
}

static bool is_of_sums(const struct operand *operand) { return operand->sum || operand->either; }

int kernel_bytes(const struct kernel *kernel, ek_type type) {
  const struct operation *operation = operation_of(kernel);
  const int value = (int)ek_type_size(type);
  int bytes = kernel->values_more * value;
  for (int i = 0; i < operation->count; i++) {
    const struct operand *operand = &operation->operand[i];
    const bool large = strcmp(operand->shape, "RC") == 0 || strcmp(operand->shape, "RW") == 0;
    const bool counts = is_shared(kernel, i) ? operand->written : is_given(kernel, operand, type);
    const int size = is_of_sums(operand) ? (int)sizeof(float) : value;
    if (large && counts) bytes += size * (operand->updated ? 2 : 1);
  }
  return bytes;
}

/* Random numbers between 0 and 1, the second moments of AdamW among them. */
ek_status bed_sums(ek_tensor *tensor, const struct bed *bed, int rank, const int64_t *shape) {
  EK_TRY(ek_tensor_create(tensor, bed->device, EK_MEMORY_WORKSPACE, EK_F32, rank, shape));
  if (bed->random == NULL) return ek_op_fill(bed->stream, tensor, 1.0);
  ek_tensor host;
  EK_TRY(ek_tensor_host(&host, (void *)(uintptr_t)bed->random, EK_F32, rank, shape));
  return ek_tensor_copy(tensor, &host);
}

ek_status bed_values(ek_tensor *tensor, const struct bed *bed, int rank, const int64_t *shape) {
  if (bed->type == EK_F32) return bed_sums(tensor, bed, rank, shape);
  ek_tensor wide = {0};
  ek_status status = bed_sums(&wide, bed, rank, shape);
  if (status == EK_OK) {
    status = ek_tensor_create(tensor, bed->device, EK_MEMORY_WORKSPACE, bed->type, rank, shape);
  }
  if (status == EK_OK) status = ek_op_convert(bed->stream, tensor, &wide);
  ek_tensor_free(&wide);
  return status;
}

static ek_status make_index(ek_tensor *tensor, const struct bed *bed, int rank,
                            const int64_t *shape, int64_t below) {
  EK_TRY(ek_tensor_create(tensor, bed->device, EK_MEMORY_WORKSPACE, EK_I32, rank, shape));
  const int64_t count = ek_tensor_count(tensor);
  int32_t *index = malloc((size_t)count * sizeof *index);
  if (!index) return ek_error_set(EK_ERR_OUT_OF_MEMORY, "out of host memory for an index");
  for (int64_t r = 0; r < count; r++) index[r] = (int32_t)(r * 7919 % below);
  ek_tensor host;
  ek_status status = ek_tensor_host(&host, index, EK_I32, rank, shape);
  if (status == EK_OK) status = ek_tensor_copy(tensor, &host);
  free(index);
  return status;
}

static ek_status make_operand(struct bed *bed, int i, const struct sizes *sizes) {
  const struct operand *operand = &bed->operation->operand[i];
  ek_tensor *tensor = &bed->operands[i];
  int64_t shape[EK_MAX_RANK], count = 1;
  const int rank = operand_shape(shape, operand, sizes);
  for (int d = 0; d < rank; d++) count *= shape[d];
  bed->given[i] = tensor;
  if (operand->type == EK_I32) {
    return make_index(tensor, bed, rank, shape, operation_size(sizes, operand->index_below));
  }
  if (operand->type == EK_F64) {
    EK_TRY(ek_tensor_create(tensor, bed->device, EK_MEMORY_WORKSPACE, EK_F64, rank, shape));
    return ek_op_fill(bed->stream, tensor, 1.0);
  }
  struct bed filled = *bed; /* random numbers are enough for a large tensor */
  if (count > bed->rows * bed->columns) filled.random = NULL;
  return (is_of_sums(operand) ? bed_sums : bed_values)(tensor, &filled, rank, shape);
}

static struct sizes sizes_of(const struct kernel *kernel, int64_t elements) {
  const int64_t rows = elements / kernel->columns > 0 ? elements / kernel->columns : 1;
  const int64_t length = kernel->plain && rows > SEQUENCE ? SEQUENCE : rows;
  return (struct sizes){.r = kernel->plain ? rows - rows % length : rows,
                        .c = kernel->columns,
                        .w = kernel->columns,
                        .k = WIDTH,
                        .e = SEQUENCE,
                        .p = length,
                        .b = rows / length,
                        .t = length,
                        .h = HEADS,
                        .j = TERMS};
}

ek_status bed_open(struct bed *bed, const struct kernel *kernel, int64_t elements) {
  if (kernel->open != NULL) return kernel->open(bed);
  const struct sizes sizes = sizes_of(kernel, elements);
  bed->operation = operation_of(kernel);
  bed->parameters = operation_parameters(&sizes);
  if (!kernel->plain) {
    bed->parameters.chance = 0; /* no smoothing */
    memcpy(bed->parameters.real, kernel->real, sizeof kernel->real);
    memcpy(bed->parameters.flag, kernel->flag, sizeof kernel->flag);
  }
  bed->rows = sizes.r;
  bed->columns = sizes.c;
  bed->bytes = (double)bed->rows * (double)bed->columns * kernel_bytes(kernel, bed->type);
  const bool has_large = bed->bytes > 0;
  for (int i = 0; i < bed->operation->count; i++) {
    const struct operand *operand = &bed->operation->operand[i];
    if (is_shared(kernel, i)) continue;
    if (is_given(kernel, operand, bed->type)) EK_TRY(make_operand(bed, i, &sizes));
    if (!has_large) bed->bytes += (double)ek_tensor_bytes(&bed->operands[i]);
  }
  if (kernel->with > 0) bed->given[kernel->shared] = bed->given[kernel->with];
  return EK_OK;
}

void bed_close(struct bed *bed) {
  for (size_t i = 0; i < MOST_OPERANDS; i++) ek_tensor_free(&bed->operands[i]);
}
