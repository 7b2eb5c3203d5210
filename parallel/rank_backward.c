/*
 * rank_backward.c - the backward of one rank, and the totals of the step.
 *
 * What is run back, and how the gradients of the ranks are added up, is the reduction's to say. A
 * rank without samples takes part in every collective with a gradient of zeros; where modules have
 * collectives of their own it runs them without rows.
 */
#include <evenkeel/elementwise.h>

#include "core/error.h"
#include "forward.h"

static ek_status add_totals(const struct ek__backward *job, struct ek__rank *rank,
                            const ek_tensor *more) {
  ek_stream *stream = ek_device_stream(rank->device, EK_STREAM_COMPUTE);
  ek_tensor *totals = &rank->totals;
  if (job->model->step.stage == EK__STEP_EMPTY || job->running) {
    return more == NULL ? ek_op_zero(stream, totals) : ek_op_copy(stream, totals, more);
  }
  return more == NULL ? EK_OK : ek_op_add(stream, totals, totals, more);
}

/* Its rows of every gradient. The totals of a model that computes its loss itself have the same
 * gradient for all pieces. */
static ek_status take_gradients(ek_tensor *rows, bool *loans, const ek_data_parallel_model *model,
                                const struct ek__rank *rank, const struct ek__pieces *pieces,
                                const struct ek__piece *piece, const ek_tensor *gradients) {
  const bool whole = model->run.reduction->whole;
  for (size_t i = 0; i < model->module->outputs; i++) {
    const ek_tensor *output = &rank->outputs[i];
    if (model->module->terms > 0) {
      rows[i] = gradients[i];
      loans[i] = true;
    } else if (piece->count == 0 && output->rank > 0) {
      rows[i] = *output; /* without elements, it needs no memory */
      rows[i].shape[0] = 0;
      loans[i] = true;
    } else if (piece->count == 0) {
      EK_TRY(ek_tensor_create(&rows[i], rank->device, EK_MEMORY_LOSS, output->type, 0, NULL));
      EK_TRY(ek_op_zero(ek_device_stream(rank->device, EK_STREAM_COMPUTE), &rows[i]));
    } else {
      EK_TRY(ek__piece_rows(&rows[i], model, pieces, piece, &gradients[i], EK_MEMORY_LOSS));
      loans[i] = whole;
    }
  }
  return EK_OK;
}

ek_status ek__rank_backward_piece(const ek_data_parallel_model *model, struct ek__rank *rank,
                                  const struct ek__pieces *pieces, const struct ek__piece *piece,
                                  size_t round, const ek_tensor *gradients) {
  ek_tensor rows[EK_MAX_TENSORS] = {{0}};
  bool loans[EK_MAX_TENSORS] = {false};
  ek_status status = take_gradients(rows, loans, model, rank, pieces, piece, gradients);
  if (status == EK_OK) status = ek_pass_run_backward(NULL, rank->passes[round], rows);
  for (size_t i = 0; i < model->module->outputs; i++) {
    if (!loans[i]) ek_tensor_free(&rows[i]);
  }
  if (model->run.reduction->whole) return status;
  ek_pass_free(rank->passes[round]);
  rank->passes[round] = NULL;
  return status;
}

ek_status ek__rank_backward(const struct ek__backward *job, struct ek__rank *rank,
                            const ek_tensor *gradients, const ek_tensor *totals) {
  EK_TRY(add_totals(job, rank, totals));
  return job->model->run.reduction->backward(job, rank, gradients);
}
