/*
 * model_step.c - the end of a step, and of a forward that has no backward: the passes of the model
 * and of its criteria go.
 */
#include "criterion_internal.h"
#include "keeper.h"
#include "optimizer_internal.h"

static void drop_pass(ek_pass **pass) {
  ek_pass_free(*pass);
  *pass = NULL;
}

void ek__model_drop_forward(ek_data_parallel_model *model) {
  for (size_t k = 0; k < model->pass_count && model->passes != NULL; k++) {
    drop_pass(&model->passes[k]);
  }
  for (ek_data_parallel_criterion *it = model->criteria; it != NULL; it = it->next) {
    for (size_t k = 0; k < it->pass_count && it->passes != NULL; k++) drop_pass(&it->passes[k]);
  }
  for (size_t k = 0; k < model->count && model->keepers != NULL; k++) {
    ek__keeper_drop(model->keepers[k]);
  }
  model->pending = 0;
}

/* All micro-batches of a step have one scale, also where the state is written in between. */
struct ek__scaling ek__model_scaling(const ek_data_parallel_model *model, int64_t targets) {
  const ek_data_parallel_optimizer *optimizer = model->optimizer;
  struct ek__scaling scaling = {1, 1};
  if (model->stage != EK__STEP_EMPTY) return model->scaling;
  if (optimizer == NULL || optimizer->loss_scale.kind == EK_LOSS_SCALE_NONE) return scaling;
  while (scaling.unit < (double)targets) scaling.unit *= 2;
  scaling.factor = optimizer->scaler.scale / scaling.unit;
  return scaling;
}

/* The criterion whose gradient begins in the model's own forward, or NULL. */
static const ek_data_parallel_criterion *own_criterion(const ek_data_parallel_model *model) {
  const ek_data_parallel_criterion *it = model->criteria;
  while (it != NULL && !it->of_model) it = it->next;
  return it;
}

struct ek__scaling ek__model_own_scaling(const ek_data_parallel_model *model,
                                         const ek_shards *inputs, size_t lead) {
  const ek_data_parallel_criterion *criterion = own_criterion(model);
  const size_t targets = model->module->targets, first = model->module->inputs - targets;
  if (criterion == NULL) return (struct ek__scaling){1, 1};
  if (criterion->reduction != EK_REDUCTION_MEAN) return ek__model_scaling(model, 0);
  const int64_t samples = inputs[lead].samples[model->count];
  return ek__model_scaling(model, ek__targets_most(NULL, inputs + first, targets, samples));
}

double ek__model_scale(const ek_data_parallel_model *model) {
  /* The forwards of all grains come before the first backward: their gradients would mix. */
  if (model->options.reproducible > 0) return 0;
  for (const ek_data_parallel_criterion *it = model->criteria; it != NULL; it = it->next) {
    if (it->of_model && it->terms == 1 && it->options.gradient_in_forward) {
      return it->coefficients[0] * model->last_scaling.factor;
    }
  }
  return 0;
}

void ek__model_end_step(ek_data_parallel_model *model, bool taken) {
  ek__model_drop_forward(model);
  model->stage = EK__STEP_EMPTY;
  model->step_samples = 0;
  model->micro_batches = 0;
  model->before_update = NULL;
  if (!taken) return;
  model->step++;
  if (ek__placement(model)->master) model->replicas_stale = true;
}
