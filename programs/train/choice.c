/*
 * choice.c - see choice.h.
 */
#include "choice.h"

#include <inttypes.h>
#include <stdio.h>

#include "recipe.h"

/* Settings that contradict a flag are left out of the search. */
static ek_status build(void *context, const ek_settings *settings, ek_module **module,
                       ek_criterion **criterion) {
  const struct settings *s = context;
  if (s->loss >= 0 && settings->fused_loss != (s->loss == LOSS_FUSED)) return EK_ERR_UNSUPPORTED;
  if (s->recompute_text != NULL && (settings->recompute.kind != s->recompute.kind ||
                                    settings->recompute.every != s->recompute.every)) {
    return EK_ERR_UNSUPPORTED;
  }
  return recipe_module(module, criterion, s, &settings->recompute, settings->fused_loss);
}

static ek_settings settings_said(const struct settings *s, ek_precision precision) {
  return (ek_settings){.mode = (ek_mode)(s->mode >= 0 ? s->mode : EK_MODE_REPLICATED),
                       .recompute = s->recompute,
                       .fused_loss = s->loss == LOSS_FUSED,
                       .micro_batches = s->micro_batches > 0 ? s->micro_batches : 1,
                       .precision = precision,
                       .shard_over = EK_SHARD_WORLD};
}

ek_status choice_make(ek_advice *advice, const struct plan *plan) {
  const struct settings *s = plan->settings;
  const bool counts_only = ek_device_counts_only(ek_group_device(plan->group, 0));
  *advice = (ek_advice){.settings = settings_said(s, plan->model->precision), .fits = true};
  if (s->mode >= 0 && !counts_only) return EK_OK;

  /* The rows of a process: the most that one has. */
  const int64_t processes = (int64_t)plan->processes;
  const int64_t shape[] = {(s->batch + processes - 1) / processes, plan->sequence};
  const uint32_t none[1] = {0}; /* of a batch only type and shape are read */
  ek_trainer_options trainer = EK_TRAINER_OPTIONS_INIT;
  ek_advise_task task = EK_ADVISE_TASK_INIT;
  ek_tensor inputs[2], target; /* with documents: their numbers, and targets that may be ignored */
  const bool documents = s->document_end >= 0;
  void *at = (void *)(uintptr_t)none;
  EK_TRY(ek_tensor_host(&inputs[0], at, plan->tokens, 2, shape));
  EK_TRY(ek_tensor_host(&inputs[1], at, EK_I32, 2, shape));
  EK_TRY(ek_tensor_host(&target, at, documents ? EK_I32 : plan->tokens, 2, shape));
  trainer.group = plan->group;
  trainer.model = plan->model;
  trainer.optimizer = plan->optimizer;
  task.build = build;
  task.context = (void *)(uintptr_t)s;
  task.optimizer = plan->rule;
  task.inputs = inputs;
  task.targets = &target;
  task.input_count = documents ? 2 : 1;
  task.target_count = 1;
  task.trainer = &trainer;
  if (s->mode >= 0) return ek_plan_step(advice, NULL, &task, &advice->settings);
  size_t count = 0;
  return ek_advise(advice, &count, 1, NULL, &task);
}

const char *choice_text(char text[CHOICE_TEXT], const ek_settings *settings) {
  char recompute[EK_RECOMPUTE_TEXT];
  (void)snprintf(text, CHOICE_TEXT,
                 "mode %s, %s, recompute %s, %s loss, %" PRId64 " micro-batch%s%s",
                 ek_mode_name(settings->mode), ek_precision_name(settings->precision),
                 ek_recompute_format(recompute, &settings->recompute),
                 settings->fused_loss ? "fused" : "whole", settings->micro_batches,
                 settings->micro_batches == 1 ? "" : "es",
                 settings->shard_over == EK_SHARD_PROCESS ? ", shares over a process" : "");
  return text;
}
