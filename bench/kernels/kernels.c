/*
 * kernels.c - which operations that memory bounds are measured, and what they are called with.
 *
 * Bytes are those of the floor that the head of each src/backend/cuda/cuda_*.cu names: every
 * element read or written once. An operation that needs more passes than that shows as slower than
 * a copy.
 */
#include "kernels.h"

#include <stdlib.h>

/* GPT-2: its vocabulary, and its width in the smallest of the models. */
enum { CLASSES = 50257, WIDTH = 768 };

static const ek_cross_entropy_terms plain_loss = {.ignore_index = -1};

static ek_status call_copy(struct bed *bed) {
  return ek_op_copy(bed->stream, &bed->large[1], &bed->large[0]);
}

static ek_status call_add(struct bed *bed) {
  return ek_op_add(bed->stream, &bed->large[2], &bed->large[0], &bed->large[1]);
}

static ek_status call_multiply_rows(struct bed *bed) {
  return ek_op_binary(bed->stream, &bed->large[1], &bed->large[0], EK_BINARY_MULTIPLY,
                      &bed->per_row[0], EK_SPREAD_ROWS);
}

static ek_status call_row_mean(struct bed *bed) {
  return ek_op_row_reduce(bed->stream, &bed->per_row[0], EK_ROW_MEAN, &bed->large[0],
                          &bed->large[0]);
}

static ek_status call_softmax_forward(struct bed *bed) {
  return ek_op_softmax_forward(bed->stream, &bed->large[1], &bed->large[0]);
}

static ek_status call_softmax_backward(struct bed *bed) {
  return ek_op_softmax_backward(bed->stream, &bed->large[2], &bed->large[1], &bed->large[0]);
}

static ek_status call_adamw(struct bed *bed) {
  const ek_adamw_terms terms = {.learning_rate = 3e-4,
                                .beta1 = 0.9,
                                .beta2 = 0.999,
                                .epsilon = 1e-8,
                                .weight_decay = 0.01,
                                .decoupled = true,
                                .step = 2}; /* the first step does not read the moments */
  const ek_update_scale scale = {.copy = ek_tensor_exists(&bed->copy) ? &bed->copy : NULL};
  return ek_op_adamw(bed->stream, &bed->large[0], &bed->large[1], &bed->large[2], &bed->large[3],
                     &terms, &scale);
}

static ek_status call_layer_norm_forward(struct bed *bed) {
  return ek_op_layer_norm_forward(bed->stream, &bed->large[1], &bed->per_row[0], &bed->per_row[1],
                                  &bed->large[0], &bed->per_column[0], &bed->per_column[1], 1e-5);
}

static ek_status call_layer_norm_backward(struct bed *bed) {
  return ek_op_layer_norm_backward(bed->stream, &bed->large[2], false, &bed->per_column[2], 0,
                                   &bed->per_column[3], 0, &bed->large[1], &bed->large[0],
                                   &bed->per_row[0], &bed->per_row[1], &bed->per_column[0]);
}

static ek_status call_cross_entropy_forward(struct bed *bed) {
  return ek_op_cross_entropy_forward(bed->stream, &bed->per_row[0], &bed->normalizer, &bed->totals,
                                     &bed->large[0], &bed->targets, &plain_loss);
}

/* In place, as in training. What is there then are no logits, which does not matter to its speed.
 */
static ek_status call_cross_entropy_backward(struct bed *bed) {
  return ek_op_cross_entropy_backward(bed->stream, &bed->large[0], &bed->large[0], &bed->normalizer,
                                      &bed->targets, &plain_loss, NULL, NULL);
}

static ek_status call_gelu_forward(struct bed *bed) {
  return ek_op_activation_forward(bed->stream, &bed->large[1], &bed->large[0], NULL,
                                  EK_ACTIVATION_GELU);
}

static ek_status call_gelu_backward(struct bed *bed) {
  return ek_op_activation_backward(bed->stream, &bed->large[2], &bed->large[1], &bed->large[0],
                                   EK_ACTIVATION_GELU);
}

const struct kernel copy_kernel = {
    .name = "copy", .columns = 1, .values = 2, .large = 2, .call = call_copy};

static const struct kernel kernels[] = {
    {.name = "cross_entropy_forward",
     .columns = CLASSES,
     .values = 1,
     .large = 1,
     .per_row = 1,
     .losses = true,
     .call = call_cross_entropy_forward},
    {.name = "cross_entropy_backward",
     .columns = CLASSES,
     .values = 2,
     .large = 1,
     .losses = true,
     .call = call_cross_entropy_backward},
    {.name = "layer_norm_forward",
     .columns = WIDTH,
     .values = 2,
     .large = 2,
     .per_row = 2,
     .per_column = 2,
     .call = call_layer_norm_forward},
    /* dx, 3, and in a pass of its own dgamma and dbeta, 2 */
    {.name = "layer_norm_backward",
     .columns = WIDTH,
     .values = 5,
     .large = 3,
     .per_row = 2,
     .per_column = 4,
     .call = call_layer_norm_backward},
    {.name = "gelu_forward", .columns = WIDTH, .values = 2, .large = 2, .call = call_gelu_forward},
    {.name = "gelu_backward",
     .columns = WIDTH,
     .values = 3,
     .large = 3,
     .call = call_gelu_backward},
    {.name = "multiply_rows",
     .columns = WIDTH,
     .values = 2,
     .large = 2,
     .per_row = 1,
     .call = call_multiply_rows},
    {.name = "row_mean",
     .columns = WIDTH,
     .values = 1,
     .large = 1,
     .per_row = 1,
     .call = call_row_mean},
    {.name = "softmax_forward",
     .columns = WIDTH,
     .values = 2,
     .large = 2,
     .call = call_softmax_forward},
    {.name = "softmax_backward",
     .columns = WIDTH,
     .values = 3,
     .large = 3,
     .call = call_softmax_backward},
    {.name = "add", .columns = WIDTH, .values = 3, .large = 3, .call = call_add},
    {.name = "adamw", .columns = WIDTH, .sums = 7, .large = 4, .state = true, .call = call_adamw},
};

int kernel_bytes(const struct kernel *kernel, ek_type type) {
  const int value = (int)ek_type_size(type), sum = (int)sizeof(float);
  const int copied = kernel->state && type != EK_F32 ? value : 0;
  return kernel->values * value + kernel->sums * sum + copied;
}

const struct kernel *memory_kernel_at(size_t index) {
  return index < sizeof kernels / sizeof kernels[0] ? &kernels[index] : NULL;
}

/* ---- what they are called with ---- */

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

static ek_status make_targets(struct bed *bed) {
  const int64_t totals[] = {2}, pairs[] = {bed->rows, 2};
  EK_TRY(bed_sums(&bed->normalizer, bed, 2, pairs));
  EK_TRY(ek_tensor_create(&bed->targets, bed->device, EK_MEMORY_WORKSPACE, EK_I32, 1, &bed->rows));
  EK_TRY(ek_tensor_create(&bed->totals, bed->device, EK_MEMORY_WORKSPACE, EK_F64, 1, totals));
  int32_t *targets = malloc((size_t)bed->rows * sizeof *targets);
  if (!targets) return ek_error_set(EK_ERR_OUT_OF_MEMORY, "out of host memory for the targets");
  for (int64_t r = 0; r < bed->rows; r++) targets[r] = (int32_t)(r * 7919 % bed->columns);
  ek_tensor host;
  ek_status status = ek_tensor_host(&host, targets, EK_I32, 1, &bed->rows);
  if (status == EK_OK) status = ek_tensor_copy(&bed->targets, &host);
  free(targets);
  return status;
}

ek_status bed_open(struct bed *bed, const struct kernel *kernel, int64_t elements) {
  if (kernel->open != NULL) return kernel->open(bed);
  bed->columns = kernel->columns;
  bed->rows = elements / kernel->columns > 0 ? elements / kernel->columns : 1;
  bed->bytes = (double)bed->rows * (double)bed->columns * kernel_bytes(kernel, bed->type);
  const int64_t shape[] = {bed->rows, bed->columns};
  for (int i = 0; i < kernel->large; i++) {
    EK_TRY((kernel->state ? bed_sums : bed_values)(&bed->large[i], bed, 2, shape));
  }
  for (int i = 0; i < kernel->per_row; i++) EK_TRY(bed_sums(&bed->per_row[i], bed, 1, &bed->rows));
  for (int i = 0; i < kernel->per_column; i++) { /* gamma and beta; their gradients */
    EK_TRY((i < 2 ? bed_values : bed_sums)(&bed->per_column[i], bed, 1, &bed->columns));
  }
  if (kernel->state && bed->type != EK_F32) EK_TRY(bed_values(&bed->copy, bed, 2, shape));
  return kernel->losses ? make_targets(bed) : EK_OK;
}

void bed_close(struct bed *bed) {
  for (size_t i = 0; i < 4; i++) ek_tensor_free(&bed->large[i]);
  for (size_t i = 0; i < 2; i++) ek_tensor_free(&bed->per_row[i]);
  for (size_t i = 0; i < 4; i++) ek_tensor_free(&bed->per_column[i]);
  ek_tensor_free(&bed->targets);
  ek_tensor_free(&bed->totals);
  ek_tensor_free(&bed->normalizer);
  ek_tensor_free(&bed->copy);
  for (size_t i = 0; i < BED_OPERANDS; i++) ek_tensor_free(&bed->operands[i]);
}
