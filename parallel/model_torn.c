/*
 * model_torn.c - whether all devices have made the same update.
 *
 * What fails before an update has written nothing that counts. What fails inside one may have
 * written parameters on some devices and not on others, or half of an all-gather. Then the model is
 * torn: it refuses every later call.
 *
 * Where devices work by themselves (cuda), an update ends after the call that queued it has
 * returned. If work that was queued before a failing job does not end well, it may have been the
 * update: the group tells (group.c), and the model is torn.
 *
 * Invariant: `torn` is set before the first byte of an update is written, and cleared when every
 * device has queued all of it.
 */
#include "parallel_internal.h"

ek_status ek__model_check(const ek_data_parallel_model *model) {
  if (!atomic_load(&model->torn)) return EK_OK;
  return ek_error_set(EK_ERR_TORN,
                      "an update of the model failed halfway, so that its devices may differ: open "
                      "the model and its optimizer again");
}

void ek__model_update_begins(ek_data_parallel_model *model) { atomic_store(&model->torn, true); }

void ek__model_update_ended(ek_data_parallel_model *model) { atomic_store(&model->torn, false); }

/* A job of the group has failed, whoever asked for it. */
static void watch(struct ek__abortable *abortable, bool ended_well) {
  ek_data_parallel_model *model =
      (ek_data_parallel_model *)(void *)((char *)abortable -
                                         offsetof(ek_data_parallel_model, watch));
  if (!ended_well) atomic_store(&model->torn, true);
}

static void keep(struct ek__abortable *abortable) { (void)abortable; }

void ek__model_watch(ek_data_parallel_model *model) {
  model->watch.abort = watch;
  model->watch.renew = keep;
  ek__group_attach(model->group, &model->watch);
}

void ek__model_unwatch(ek_data_parallel_model *model) {
  if (model->watch.abort != NULL) ek__group_detach(model->group, &model->watch);
}
