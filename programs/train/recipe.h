/*
 * recipe.h - what a run is made of, by name: rules of updates, schedules of their rate, models.
 *
 * A rule and a schedule are rows of tables. A row names the flags that are its own: another row's
 * are refused by the command line. A new one is a row and its function.
 */
#ifndef TRAIN_RECIPE_H
#define TRAIN_RECIPE_H

#include "settings.h"

struct rule {
  const char *name;
  const char *flags;        /* that it has, with blanks around each */
  double rate, tuning_rate; /* the usual ones, of a new model and of one that is trained further */
  ek_status (*create)(ek_optimizer **rule, const struct settings *settings);
};

struct schedule_kind {
  const char *name;
  const char *flags;
  ek_status (*make)(ek_schedule *schedule, const struct settings *settings, int64_t steps);
};

/* NULL after the last one. The first is the default. */
const struct rule *rule_at(size_t index);
const struct schedule_kind *schedule_at(size_t index);

/* The rule of the settings, with averages of the weights where they ask for them. */
ek_status recipe_rule(ek_optimizer **rule, const struct settings *settings);
/* The schedule of the settings, over this many steps. */
ek_status recipe_schedule(ek_schedule *schedule, const struct settings *settings, int64_t steps);
/* The highest rate. */
double recipe_rate(const struct settings *settings);

/*
 * Reads --model: a folder with config.json, "gpt2", "gpt2:SIZE", "llama" or "llama:SIZE", with the
 * sizes of the presets. Of a model that is to be made it fills settings->shape. False with a
 * message in `text`, which has room for UNKNOWN_TEXT.
 */
bool recipe_model(struct settings *settings, char *text);

/* Makes the module and, unless the loss is fused, its criterion; both are the caller's. */
ek_status recipe_module(ek_module **module, ek_criterion **criterion,
                        const struct settings *settings, const ek_recompute *recompute, bool fused);

/* What a module says of itself: the sizes of its vocabulary, and of its longest sample; 0 for one
 * that it does not say. */
void recipe_limits(int64_t *vocabulary, int64_t *longest, const ek_module *module);

#endif
