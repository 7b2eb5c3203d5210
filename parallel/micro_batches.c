/*
 * micro_batches.c - cuts a batch in parts of whole samples. No copies: a part is a view of rows.
 */
#include "micro_batches.h"

#include <string.h>

#include "core/error.h"
#include "core/sizes.h"
#include "device/flaw.h"

struct ek__batch ek__batch_for(ek_tensor all[EK_MAX_INPUTS], const ek_module *module,
                               const struct ek__batch *batch) {
  const size_t inputs = batch->input_count, targets = batch->target_count;
  if (targets == 0 || module->targets != targets || module->inputs > EK_MAX_INPUTS ||
      module->inputs != inputs + targets) {
    return *batch;
  }
  memcpy(all, batch->inputs, inputs * sizeof *all);
  memcpy(all + inputs, batch->targets, targets * sizeof *all);
  return (struct ek__batch){all, NULL, module->inputs, 0, batch->broadcast};
}

static bool is_cut(const struct ek__batch *batch, size_t input) {
  return input >= 64 || (batch->broadcast >> input & 1) == 0;
}

static ek_status check_rows(const char *what, size_t index, const ek_tensor *tensor,
                            int64_t samples) {
  char text[EK__FLAW_TEXT];
  const char *flaw = ek__tensor_flaw(text, tensor);
  EK__FAIL_IF(flaw != NULL, EK_ERR_INVALID_ARGUMENT, "micro-batches: %s number %zu has %s", what,
              index, flaw);
  const int64_t rows = tensor->rank > 0 ? tensor->shape[0] : 0;
  EK__FAIL_IF(tensor->rank == 0, EK_ERR_SHAPE, "micro-batches: %s number %zu has no rows", what,
              index);
  EK__FAIL_IF(samples == 0 ? rows != 0 : rows % samples != 0, EK_ERR_SHAPE,
              "micro-batches: %s number %zu: %lld rows are no multiple of %lld samples", what,
              index, (long long)rows, (long long)samples);
  return EK_OK;
}

ek_status ek__batch_samples(int64_t *samples, const struct ek__batch *batch) {
  size_t lead = 0;
  EK__FAIL_IF(batch->input_count > EK_MAX_INPUTS || batch->target_count > EK_MAX_TENSORS,
              EK_ERR_INVALID_ARGUMENT,
              "micro-batches: %zu inputs and %zu targets, at most %d and %d", batch->input_count,
              batch->target_count, EK_MAX_INPUTS, EK_MAX_TENSORS);
  while (lead < batch->input_count && !is_cut(batch, lead)) lead++;
  EK__FAIL_IF(lead == batch->input_count, EK_ERR_INVALID_ARGUMENT,
              "micro-batches: every input is broadcast; one must be cut");
  const ek_tensor *first = &batch->inputs[lead];
  *samples = first->rank > 0 ? first->shape[0] : 0;
  for (size_t i = lead; i < batch->input_count; i++) {
    if (is_cut(batch, i)) EK_TRY(check_rows("input", i, &batch->inputs[i], *samples));
  }
  for (size_t i = 0; i < batch->target_count; i++) {
    EK_TRY(check_rows("target", i, &batch->targets[i], *samples));
  }
  return EK_OK;
}

/* Rows of samples first .. first + count - 1. */
static ek_tensor view(const ek_tensor *whole, int64_t samples, int64_t first, int64_t count) {
  ek_tensor part = *whole;
  const int64_t per_sample = whole->shape[0] / samples;
  const size_t row = (size_t)ek_tensor_row_elements(whole) * ek_type_size(whole->type);
  part.shape[0] = count * per_sample;
  if (whole->data != NULL) {
    part.data = (char *)whole->data + (size_t)(first * per_sample) * row;
  }
  return part;
}

void ek__batch_cut(struct ek__batch_part *part, const struct ek__batch *batch, int64_t samples,
                   int64_t count, int64_t index) {
  const int64_t first = ek__even_begin(samples, (size_t)index, (size_t)count);
  const int64_t size = ek__even_begin(samples, (size_t)index + 1, (size_t)count) - first;
  part->batch = *batch;
  part->batch.inputs = part->inputs;
  part->batch.targets = part->targets;
  for (size_t i = 0; i < batch->input_count; i++) {
    part->inputs[i] =
        is_cut(batch, i) ? view(&batch->inputs[i], samples, first, size) : batch->inputs[i];
  }
  for (size_t i = 0; i < batch->target_count; i++) {
    part->targets[i] = view(&batch->targets[i], samples, first, size);
  }
}
