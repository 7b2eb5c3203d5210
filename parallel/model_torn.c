/*
 * model_torn.c - whether all devices have made the same update.
 *
 * What fails before an update has written nothing that counts. What fails inside one may have
 * written parameters on some devices and not on others, or half of an all-gather. Then the model is
 * torn: it refuses every later call but those that write its state, and is good again when all of
 * that was written since it tore.
 *
 * Where devices work by themselves (cuda), an update ends after the call that queued it has
 * returned. If work that was queued before a failing job does not end well, it may have been the
 * update: the group tells (group.c), and the model is torn.
 *
 * Invariant: `updating` is set before the first byte of an update is written, and cleared when
 * every device has queued all of it. Tears are counted, so that one that the group tells of while
 * state is being written is not taken for the one that the writing mends.
 */
#include "parallel_internal.h"

static bool is_torn(const ek_data_parallel_model *model) {
  return atomic_load(&model->torn.updating) ||
         atomic_load(&model->torn.tears) != model->torn.mended;
}

ek_status ek__model_check(const ek_data_parallel_model *model) {
  if (!is_torn(model)) return EK_OK;
  return ek_error_set(EK_ERR_TORN,
                      "an update of the model failed halfway, so its devices may differ: load a "
                      "whole state, or open the model and its optimizer again");
}

void ek__model_update_begins(ek_data_parallel_model *model) {
  atomic_store(&model->torn.updating, true);
}

void ek__model_update_ended(ek_data_parallel_model *model) {
  atomic_store(&model->torn.updating, false);
}

/* ---- mending ---- */

void ek__model_tear(ek_data_parallel_model *model) { atomic_fetch_add(&model->torn.tears, 1); }

void ek__model_write_begins(uint64_t *tear, ek_data_parallel_model *model) {
  if (atomic_exchange(&model->torn.updating, false)) atomic_fetch_add(&model->torn.tears, 1);
  const uint64_t tears = atomic_load(&model->torn.tears);
  *tear = tears == model->torn.mended ? 0 : tears;
  ek__model_update_begins(model); /* as with an update: a copy that fails leaves devices apart */
}

void ek__model_write_ended(ek_data_parallel_model *model, uint64_t tear, uint64_t *written,
                           size_t entries) {
  ek__model_update_ended(model);
  if (tear == 0) return;
  if (model->torn.mending != tear) {
    model->torn.mending = tear;
    model->torn.written_count = 0;
  }
  if (*written != tear) model->torn.written_count++;
  *written = tear;
  if (model->torn.written_count < entries) return;
  ek__model_end_step(model, false);
  model->torn.mended = tear;
}

void ek__model_lose_update(ek_data_parallel_model *model) {
  model->update = NULL;
  model->step.taken = 0;
  if (is_torn(model))
    atomic_fetch_add(&model->torn.tears, 1); /* what is to be written has changed */
}

/* ---- what the group tells ---- */

/* A job of the group has failed, whoever asked for it. */
static void watch(struct ek__abortable *abortable, bool ended_well) {
  ek_data_parallel_model *model =
      (ek_data_parallel_model *)(void *)((char *)abortable -
                                         offsetof(ek_data_parallel_model, torn.watch));
  if (!ended_well) atomic_fetch_add(&model->torn.tears, 1);
}

static void keep(struct ek__abortable *abortable) { (void)abortable; }

void ek__model_watch(ek_data_parallel_model *model) {
  model->torn.watch.abort = watch;
  model->torn.watch.renew = keep;
  ek__group_attach(model->run.group, &model->torn.watch);
}

void ek__model_unwatch(ek_data_parallel_model *model) {
  if (model->torn.watch.abort != NULL) ek__group_detach(model->run.group, &model->torn.watch);
}
