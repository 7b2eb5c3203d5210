/*
 * criterion_grains.c - the loss of a reproducible model: a pass for each grain (grains.h).
 *
 * A device runs the grains of which it has the outputs, which in mode gather are all of them on one
 * device. Every grain has a leaf for its totals; the leaves of all devices are gathered, and every
 * device adds them up along the tree by itself.
 *
 * The gradients of a device's outputs overwrite these, unless they are kept or somebody else holds
 * them: a grain's are made in memory of their own and copied to its rows.
 */
#include <evenkeel/communicator.h>
#include <evenkeel/elementwise.h>

#include "core/error.h"
#include "criterion_internal.h"
#include "grains.h"

/* ---- which grains ---- */

/* Those with samples that the device has outputs of: first .. last - 1. */
static void grains_here(size_t *first, size_t *last, const ek_data_parallel_criterion *self,
                        size_t index) {
  const int64_t *samples = self->seen[0].samples, all = samples[self->count];
  const size_t used = ek__grains_used(self->model, all);
  *first = *last = 0;
  while (*first < used && ek__grain_at(self->model, *first, all).first < samples[index]) ++*first;
  *last = *first;
  while (*last < used && ek__grain_at(self->model, *last, all).first < samples[index + 1]) ++*last;
}

static struct ek__grain_place place_of(const ek_data_parallel_criterion *self, size_t index,
                                       size_t number) {
  const int64_t *samples = self->seen[0].samples;
  const struct ek__grain grain = ek__grain_at(self->model, number, samples[self->count]);
  return (struct ek__grain_place){grain.first - samples[index], grain.count,
                                  samples[index + 1] - samples[index]};
}

/* Its rows of what the device has of a tensor. Views of outputs are loans, as outputs live until
 * backward is done: so the passes of other grains do not count as holders of them. */
static ek_status rows_of(ek_tensor *rows, const ek_tensor *part,
                         const struct ek__grain_place *place, ek_memory_category category) {
  const int64_t per_sample = part->shape[0] / place->all;
  EK_TRY(
      ek__grain_rows(rows, part, per_sample * place->before, per_sample * place->count, category));
  if (category != EK_MEMORY_OUTPUTS || rows->memory != part->memory) return EK_OK;
  ek_tensor loan = *rows;
  ek_tensor_free(rows);
  loan.memory = NULL;
  *rows = loan;
  return EK_OK;
}

/* ---- forward ---- */

static int64_t leaf_size(const ek_data_parallel_criterion *self) {
  return 2 * (int64_t)self->terms;
}

static ek_tensor leaf(const ek_data_parallel_criterion *self, size_t index, size_t number) {
  const ek_tensor *leaves = &self->devices[index].leaves;
  ek_tensor one = ek__flat_range(leaves, (int64_t)number * leaf_size(self), leaf_size(self));
  one.rank = 2;
  one.shape[0] = (int64_t)self->terms;
  one.shape[1] = 2;
  return one;
}

static ek_status run_grain(ek_data_parallel_criterion *self, size_t index, size_t number,
                           const ek_shards *targets) {
  const struct ek__grain_place place = place_of(self, index, number);
  ek_pass **pass = &self->passes[number];
  ek_tensor inputs[EK_MAX_INPUTS] = {{0}}, results[EK_MAX_TENSORS] = {{0}}, totals = {0};
  ek_status status = EK_OK;
  for (size_t i = 0; i < self->outputs + self->targets; i++) {
    const ek_shards *from = i < self->outputs ? &self->seen[i] : &targets[i - self->outputs];
    const ek_memory_category category = i < self->outputs ? EK_MEMORY_OUTPUTS : EK_MEMORY_INPUTS;
    EK_TRY_GOTO(status, rows_of(&inputs[i], &from->parts[index], &place, category), cleanup);
  }
  EK_TRY_GOTO(
      status,
      ek__criterion_open_pass(pass, self, index, self->seen[0].samples[index] + place.before, NULL),
      cleanup);
  EK_TRY_GOTO(status, ek_pass_run_forward(results, *pass, inputs), cleanup);
  totals = leaf(self, index, number);
  EK_TRY_GOTO(status, ek_op_copy(ek_pass_stream(*pass), &totals, &results[0]), cleanup);
  if (self->reduction == EK_REDUCTION_NONE) {
    EK_TRY_GOTO(status,
                ek__grain_append(&self->devices[index].losses, &results[1], &place, EK_MEMORY_LOSS),
                cleanup);
  }
  if (self->gradient) goto cleanup;
  ek_pass_free(*pass);
  *pass = NULL;
cleanup:
  for (size_t i = 0; i < EK_MAX_TENSORS; i++) ek_tensor_free(&results[i]);
  for (size_t i = 0; i < self->outputs + self->targets; i++) ek_tensor_free(&inputs[i]);
  return status;
}

/* A model that computes its loss itself has the totals of its grains one behind the other. */
static ek_status take_leaves(const ek_data_parallel_criterion *self, ek_stream *stream,
                             size_t index, size_t first, size_t last) {
  if (first == last) return EK_OK;
  const int64_t size = leaf_size(self), count = (int64_t)(last - first) * size;
  const ek_tensor *part = &self->seen[0].parts[index];
  EK__FAIL_IF(ek_tensor_count(part) != count, EK_ERR_SHAPE,
              "criterion forward: %lld numbers are not the totals of %zu grains",
              (long long)ek_tensor_count(part), last - first);
  ek_tensor to = ek__flat_range(&self->devices[index].leaves, (int64_t)first * size, count);
  return ek_op_copy(stream, &to, part);
}

/* Everybody's leaves to everybody. */
static ek_status gather_leaves(const ek_data_parallel_criterion *self, ek_device *device,
                               size_t index, size_t used) {
  struct ek__criterion_device *own = &self->devices[index];
  ek_communicator *communicator = self->model->communicator;
  const int64_t size = leaf_size(self);
  own->offsets[0] = 0;
  for (size_t k = 0; k < self->count; k++) {
    size_t first = 0, last = 0;
    grains_here(&first, &last, self, k);
    own->offsets[k + 1] = (int64_t)last * size;
  }
  own->offsets[self->count] = (int64_t)used * size;
  ek_tensor leaves = ek__flat_range(&own->leaves, 0, (int64_t)used * size);
  EK_TRY(ek_communicator_all_gather(communicator, device, &leaves, own->offsets));
  return ek_communicator_wait(communicator, device);
}

ek_status ek__criterion_grains_forward(ek_data_parallel_criterion *self, ek_device *device,
                                       size_t index, const ek_shards *targets) {
  ek_stream *stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  const size_t used = ek__grains_used(self->model, self->seen[0].samples[self->count]);
  ek_tensor *leaves = &self->devices[index].leaves;
  size_t first = 0, last = 0;
  grains_here(&first, &last, self, index);
  if (self->of_model) {
    EK_TRY(take_leaves(self, stream, index, first, last));
  } else {
    for (size_t i = first; i < last; i++) EK_TRY(run_grain(self, index, i, targets));
  }
  if (used > 0 && self->count > 1) EK_TRY(gather_leaves(self, device, index, used));
  EK_TRY(ek__fold_leaves(stream, leaves, leaf_size(self), used));
  const ek_tensor sum = leaf(self, index, 0);
  return ek_op_copy(stream, &self->devices[index].totals, &sum);
}

/* ---- backward ---- */

/* Where the gradient of all rows goes. */
static ek_status place_gradient(ek_tensor *gradient, const ek_data_parallel_criterion *self,
                                const ek_tensor *output) {
  const bool here = !self->options.keep_outputs && ek_tensor_holders(output) == 1;
  if (here) return ek_tensor_share(gradient, output);
  return ek_tensor_create(gradient, output->device, EK_MEMORY_LOSS, output->type, output->rank,
                          output->shape);
}

static ek_status run_grain_backward(const ek_tensor *gradients, ek_data_parallel_criterion *self,
                                    size_t index, const ek_tensor *factors, size_t number) {
  const struct ek__grain_place place = place_of(self, index, number);
  ek_tensor given[] = {self->devices[index].scales, {0}}, results[EK_MAX_INPUTS] = {{0}};
  ek_stream *stream = ek_pass_stream(self->passes[number]);
  ek_status status = EK_OK;
  if (ek_tensor_exists(factors)) {
    EK_TRY_GOTO(status, rows_of(&given[1], factors, &place, EK_MEMORY_LOSS), cleanup);
  }
  EK_TRY_GOTO(status, ek_pass_run_backward(results, self->passes[number], given), cleanup);
  for (size_t i = 0; i < self->outputs; i++) {
    ek_tensor to = {0};
    const int64_t per_sample = gradients[i].shape[0] / place.all;
    EK_TRY_GOTO(
        status,
        ek_tensor_rows(&to, &gradients[i], per_sample * place.before, per_sample * place.count),
        cleanup);
    if (to.data != results[i].data) status = ek_op_copy(stream, &to, &results[i]);
    ek_tensor_free(&to);
    if (status != EK_OK) goto cleanup;
  }
cleanup:
  for (size_t i = 0; i < EK_MAX_INPUTS; i++) ek_tensor_free(&results[i]);
  ek_tensor_free(&given[1]);
  return status;
}

ek_status ek__criterion_grains_backward(ek_tensor *gradients, ek_data_parallel_criterion *self,
                                        size_t index, const ek_tensor *factors) {
  size_t first = 0, last = 0;
  ek_status status = EK_OK;
  grains_here(&first, &last, self, index);
  for (size_t i = 0; i < self->outputs; i++) {
    EK_TRY_GOTO(status, place_gradient(&gradients[i], self, &self->seen[i].parts[index]), cleanup);
  }
  for (size_t grain = first; grain < last; grain++) {
    EK_TRY_GOTO(status, run_grain_backward(gradients, self, index, factors, grain), cleanup);
  }
  return EK_OK;
cleanup:
  for (size_t i = 0; i < self->outputs; i++) ek_tensor_free(&gradients[i]);
  return status;
}
