/*
 * model_step.c - the end of a step, and of a forward that has no backward: the passes of the ranks
 * and of the losses go. And what a step's gradients are multiplied with.
 */
#include "criterion_internal.h"
#include "keeper.h"
#include "optimizer_internal.h"

static void drop_passes(ek_pass **passes, size_t count) {
  for (size_t i = 0; i < count; i++) {
    ek_pass_free(passes[i]);
    passes[i] = NULL;
  }
}

void ek__loss_drop_passes(struct ek__loss *loss) {
  for (size_t k = 0; k < loss->count && loss->ranks != NULL; k++) {
    drop_passes(loss->ranks[k].passes, loss->ranks[k].pass_count);
  }
}

void ek__model_drop_forward(ek_data_parallel_model *model) {
  for (size_t k = 0; k < model->run.count; k++) {
    struct ek__rank *rank = &model->run.ranks[k];
    drop_passes(rank->passes, rank->pass_count);
  }
  for (struct ek__loss *it = model->losses; it != NULL; it = it->next) ek__loss_drop_passes(it);
  for (size_t k = 0; k < model->run.count; k++) ek__keeper_drop(model->run.ranks[k].keeper);
  model->last.pending = 0;
}

/* All micro-batches of a step have one scale, also where the state is written in between. */
struct ek__scaling ek__model_scaling(const ek_data_parallel_model *model, int64_t targets) {
  const struct ek__update *update = model->update;
  struct ek__scaling scaling = {1, 1};
  if (model->step.stage != EK__STEP_EMPTY) return model->step.scaling;
  if (update == NULL || update->loss_scale.kind == EK_LOSS_SCALE_NONE) return scaling;
  while (scaling.unit < (double)targets) scaling.unit *= 2;
  scaling.factor = update->scaler.scale / scaling.unit;
  return scaling;
}

/* The loss whose gradient begins in the model's own forward, or NULL. */
static const struct ek__loss *own_loss(const ek_data_parallel_model *model) {
  const struct ek__loss *it = model->losses;
  while (it != NULL && !it->form->promises) it = it->next;
  return it;
}

struct ek__scaling ek__model_own_scaling(const ek_data_parallel_model *model, int64_t targets) {
  const struct ek__loss *loss = own_loss(model);
  if (loss == NULL) return (struct ek__scaling){1, 1};
  return ek__model_scaling(model, loss->reduction == EK_REDUCTION_MEAN ? targets : 0);
}

double ek__model_scale(const ek_data_parallel_model *model) {
  /* The forwards of all pieces come before the first backward: their gradients would mix. */
  if (!model->run.reduction->whole) return 0;
  for (const struct ek__loss *it = model->losses; it != NULL; it = it->next) {
    if (it->form->promises && it->terms == 1 && it->options.gradient_in_forward) {
      return it->coefficients[0] * model->last.scaling.factor;
    }
  }
  return 0;
}

void ek__model_end_step(ek_data_parallel_model *model, bool taken) {
  ek__model_drop_forward(model);
  model->step.stage = EK__STEP_EMPTY;
  model->step.samples = 0;
  model->step.micro_batches = 0;
  for (struct ek__loss *it = model->losses; it != NULL; it = it->next) it->verify = false;
  if (!taken) return;
  model->step.taken++;
  if (ek__placement(model)->master) model->run.replicas_stale = true;
}
