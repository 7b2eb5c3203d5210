/*
 * model_step.c - the factor of a step's gradients, the end of a step and of a forward without a
 * backward, and torn models.
 *
 * A failure before the update has written nothing that counts. A failure inside the update may have
 * written parameters on some devices and not on others, or half of an all-gather. Then the model is
 * torn: it refuses all later calls except those that write its state, and is whole again when all
 * of its state has been written since it tore.
 *
 * On devices that work asynchronously (cuda) an update ends after the call that queued it has
 * returned. If work fails that was queued before a failing job, it may have been the update: the
 * group reports it (group.c), and the model is torn. Between processes the group lets an update end
 * before it cuts anything off; what a step has begun then is dropped.
 *
 * Invariant: `updating` is set before the first byte of an update is written, and cleared when
 * every device has queued all of it. Tears are counted, so a tear that the group reports while
 * state is being written is not mistaken for the one that the writing repairs.
 */
#include "core/error.h"
#include "forward.h"
#include "optimizer_internal.h"

void ek__passes_drop(ek_pass **passes, size_t count) {
  for (size_t i = 0; i < count; i++) {
    ek_pass_free(passes[i]);
    passes[i] = NULL;
  }
}

void ek__model_drop_forward(ek_data_parallel_model *model) {
  EK__EACH_RANK(rank, &model->run) {
    ek__passes_drop(rank->passes, rank->pass_count);
    ek__keeper_drop(rank);
    for (struct ek__loss_rank *own = rank->losses; own != NULL; own = own->next) {
      ek__passes_drop(own->passes, own->pass_count);
    }
  }
  model->last.pending = 0;
}

/* All micro-batches of a step have one scale, even if the state is written in between. */
struct ek__scaling ek__model_scaling(const ek_data_parallel_model *model, int64_t targets) {
  const struct ek__update *update = model->update;
  struct ek__scaling scaling = {1, 1};
  if (model->step.stage != EK__STEP_EMPTY) return model->step.scaling;
  if (update == NULL || update->loss_scale.kind == EK_LOSS_SCALE_NONE) return scaling;
  while (scaling.unit < (double)targets) scaling.unit *= 2;
  scaling.factor = update->scaler.scale / scaling.unit;
  return scaling;
}

void ek__model_end_step(ek_data_parallel_model *model, bool taken) {
  ek__model_drop_forward(model);
  model->step.stage = EK__STEP_EMPTY;
  model->step.norm = false;
  model->step.late = NULL;
  model->step.samples = 0;
  model->step.micro_batches = 0;
  for (struct ek__loss *it = model->losses; it != NULL; it = it->next) it->verify = false;
  if (!taken) return;
  model->step.taken++;
  if (ek__placement(model)->master) model->run.replicas_stale = true;
}

/* ---- updates that fail halfway ---- */

static bool is_torn(const ek_data_parallel_model *model) {
  return atomic_load(&model->torn.updating) ||
         atomic_load(&model->torn.tears) != model->torn.mended;
}

ek_status ek__model_check(const ek_data_parallel_model *model) {
  EK__FAIL_IF(is_torn(model), EK_ERR_TORN,
              "an update of the model failed halfway, so its devices may differ: load a whole "
              "state, or open the model and its optimizer again");
  return EK_OK;
}

static const char cut_off[] = "the step was cut off when another call failed: begin it again";

ek_status ek__model_check_kept(const ek_data_parallel_model *model) {
  EK_TRY(ek__model_check(model));
  return atomic_load(&model->torn.cut) ? ek_error_set(EK_ERR_STATE, "%s", cut_off) : EK_OK;
}

ek_status ek__model_check_step(ek_data_parallel_model *model) {
  EK_TRY(ek__model_check(model));
  if (!atomic_exchange(&model->torn.cut, false)) return EK_OK;
  const bool begun = model->step.stage != EK__STEP_EMPTY || model->last.pending > 0;
  ek__model_end_step(model, false);
  return begun ? ek_error_set(EK_ERR_STATE, "%s", cut_off) : EK_OK;
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
  model->step.norm = false;
  model->step.taken = 0;
  if (is_torn(model))
    atomic_fetch_add(&model->torn.tears, 1); /* what is to be written has changed */
}

/* ---- reports of the group ---- */

static ek_data_parallel_model *model_of(struct ek__abortable *watch) {
  return (ek_data_parallel_model *)(void *)((char *)watch -
                                            offsetof(ek_data_parallel_model, torn.watch));
}

/* A job of the group has failed, whoever asked for it. */
static void watch_failed(struct ek__abortable *watch, enum ek__left left) {
  struct ek__torn *torn = &model_of(watch)->torn;
  if (left == EK__LEFT_TORN) atomic_fetch_add(&torn->tears, 1);
  if (left == EK__LEFT_CUT) atomic_store(&torn->cut, true);
}

static bool watch_is_torn(struct ek__abortable *watch) { return is_torn(model_of(watch)); }

void ek__model_watch(ek_data_parallel_model *model) {
  model->torn.watch.failed = watch_failed;
  model->torn.watch.is_torn = watch_is_torn;
  ek__group_attach(model->run.group, &model->torn.watch);
}

void ek__model_unwatch(ek_data_parallel_model *model) {
  if (model->torn.watch.failed != NULL) ek__group_detach(model->run.group, &model->torn.watch);
}
