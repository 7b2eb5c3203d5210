/*
 * optimizer_result.c - the result of a step: when the host reads the numbers that it is made of.
 *
 * Of a step whose result is wanted later, or of one on a single device, rank 0 writes two notes
 * (device/note.h): the totals as the last backward begins, and the square of the norm before the
 * update. The host waits for the first before it queues the update, and for the second when it
 * needs the result. There is one note of each, because the totals of a step are read after the norm
 * of the step before has arrived.
 */
#include <math.h>
#include <string.h>

#include "core/error.h"
#include "optimizer_internal.h"

ek_status ek__reading_forward(ek_data_parallel_model *model, double totals[2]) {
  const struct ek__update *update = model->update;
  const ek_status status = ek__note_read(totals, update->forward);
  if (status != EK_OK && update->late) ek__model_tear(model); /* of a step that was begun before */
  EK_TRY(status);
  return ek__device_check_found(model->run.ranks[0].device);
}

void ek__reading_totals(struct ek__reading *reading, const ek_data_parallel_model *model,
                        bool norm, const double totals[2]) {
  const struct ek__step *step = &model->step;
  ek_step_result *result = &reading->result;
  const double weight = step->divided ? totals[1] : 0;
  result->empty = step->divided && totals[1] == 0;
  result->weight = weight;
  result->loss = !step->divided ? totals[0] : result->empty ? 0 : totals[0] / weight;
  result->gradient_norm = -1;
  /* On a `plan` device nothing is computed, so nothing is wrong. */
  result->finite = ek_device_counts_only(model->run.ranks[0].device) || isfinite(result->loss);
  result->learning_rate = model->update->rate;
  result->loss_scale = step->scaling.factor * step->scaling.unit;
  result->step = step->taken + 1;
  reading->factor = step->scaling.factor;
  reading->divided = step->divided;
  reading->norm = norm;
}

void ek__reading_norm(struct ek__reading *reading, const ek_data_parallel_model *model,
                      double square_norm) {
  ek_step_result *result = &reading->result;
  if (!reading->norm) return;
  result->gradient_norm = sqrt(square_norm) / reading->factor;
  if (reading->divided) result->gradient_norm /= result->weight;
  if (result->empty && isfinite(square_norm)) result->gradient_norm = 0;
  if (ek_device_counts_only(model->run.ranks[0].device) || isfinite(square_norm)) return;
  result->finite = false;
  result->skipped = ek__update_scales(model->update);
  result->step -= result->skipped;
}

ek_status ek__reading_late(struct ek__reading *reading, ek_data_parallel_model *model) {
  double square_norm = NAN;
  const ek_status status = ek__note_read(&square_norm, model->update->square_norm);
  if (status != EK_OK) {
    ek__model_tear(model);
    return status;
  }
  ek__reading_norm(reading, model, square_norm);
  return EK_OK;
}

ek_status ek__begun_complete(ek_data_parallel_model *model) {
  struct ek__update *update = model->update;
  if (!update->late) return EK_OK;
  update->late = false;
  const ek_status status = ek__reading_late(&update->begun[update->begun_count - 1], model);
  if (status != EK_OK) update->begun_count--;
  return status;
}

void ek__begun_add(struct ek__update *update, const struct ek__reading *reading, bool late) {
  update->begun[update->begun_count++] = *reading;
  update->late = late;
}

ek_status ek__begun_take(ek_step_result *result, ek_data_parallel_model *model) {
  struct ek__update *update = model->update;
  EK__FAIL_IF(update->begun_count == 0, EK_ERR_STATE,
              "optimizer step_end: no step was begun whose result was not taken");
  if (update->begun_count == 1) EK_TRY(ek__begun_complete(model));
  *result = update->begun[0].result;
  update->begun_count--;
  memmove(update->begun, update->begun + 1, update->begun_count * sizeof update->begun[0]);
  return EK_OK;
}
