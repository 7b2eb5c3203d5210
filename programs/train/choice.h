/*
 * choice.h - how a run is laid over its devices: what --mode and the flags beside it say, or,
 * without a mode, what ek_advise() finds the fastest that fits.
 */
#ifndef TRAIN_CHOICE_H
#define TRAIN_CHOICE_H

#include "settings.h"

/* What a run is planned with. Loans. */
struct plan {
  const struct settings *settings;
  ek_group *group;
  ek_optimizer *rule;
  size_t processes;
  int64_t sequence;
  ek_type tokens; /* the type of the source's */
  const ek_data_parallel_model_options *model;
  const ek_data_parallel_optimizer_options *optimizer;
};

/*
 * Fills *advice. Without --mode, and on devices that only count, all of it; otherwise its settings
 * alone. If `advice->fits` is false, the call has succeeded. EK_ERR_OUT_OF_MEMORY: no mode fits.
 */
ek_status choice_make(ek_advice *advice, const struct plan *plan);

/* "fully-sharded, f32, recompute sqrt, fused loss, 4 micro-batches"; returns `text`. */
enum { CHOICE_TEXT = 160 };
const char *choice_text(char text[CHOICE_TEXT], const ek_settings *settings);

#endif
