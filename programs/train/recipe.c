/*
 * recipe.c - the tables of rules, schedules and models.
 */
#include "recipe.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* ---- rules ---- */

double recipe_rate(const struct settings *s) {
  const struct rule *rule = rule_at((size_t)s->rule);
  return s->rate >= 0 ? s->rate : s->from_folder ? rule->tuning_rate : rule->rate;
}

static ek_status create_adamw(ek_optimizer **rule, const struct settings *s) {
  ek_adamw_options options = EK_ADAMW_OPTIONS_INIT;
  options.learning_rate = recipe_rate(s);
  options.beta1 = s->beta1 >= 0 ? s->beta1 : 0.9;
  options.beta2 = s->beta2 >= 0 ? s->beta2 : 0.95;
  options.epsilon = s->epsilon >= 0 ? s->epsilon : 1e-8;
  options.weight_decay = s->weight_decay >= 0 ? s->weight_decay : 0.1;
  options.clip_norm = s->clip;
  return ek_adamw_create(rule, &options);
}

static ek_status create_sgd(ek_optimizer **rule, const struct settings *s) {
  ek_sgd_options options = EK_SGD_OPTIONS_INIT;
  options.learning_rate = recipe_rate(s);
  options.momentum = s->momentum >= 0 ? s->momentum : 0.9;
  options.nesterov = s->nesterov;
  options.weight_decay = s->weight_decay >= 0 ? s->weight_decay : 0;
  options.clip_norm = s->clip;
  return ek_sgd_create(rule, &options);
}

/* With AdamW's rate and decay, and AdamW for what are no hidden matrices. */
static ek_status create_muon(ek_optimizer **rule, const struct settings *s) {
  ek_muon_options options = EK_MUON_OPTIONS_INIT;
  struct settings rest = *s;
  ek_optimizer *adamw = NULL;
  rest.clip = 0; /* muon clips the whole gradient */
  options.learning_rate = recipe_rate(s);
  options.momentum = s->momentum >= 0 ? s->momentum : 0.95;
  options.weight_decay = s->weight_decay >= 0 ? s->weight_decay : 0.1;
  options.factor = EK_MUON_MATCH_RMS_ADAMW;
  options.clip_norm = s->clip;
  EK_TRY(create_adamw(&adamw, &rest));
  const ek_status status = ek_muon_create(rule, adamw, &options);
  ek_optimizer_free(adamw);
  return status;
}

static const struct rule rules[] = {
    {"adamw", " beta1 beta2 epsilon ", 6e-4, 5e-5, create_adamw},
    {"sgd", " momentum nesterov ", 0.1, 0.01, create_sgd},
    {"muon", " beta1 beta2 epsilon momentum ", 6e-4, 5e-5, create_muon},
};

const struct rule *rule_at(size_t index) {
  return index < sizeof rules / sizeof rules[0] ? &rules[index] : NULL;
}

ek_status recipe_rule(ek_optimizer **rule, const struct settings *s) {
  ek_optimizer *plain = NULL;
  EK_TRY(rule_at((size_t)s->rule)->create(s->ema >= 0 ? &plain : rule, s));
  if (s->ema < 0) return EK_OK;
  const ek_status status = ek_averaged_create(rule, plain, s->ema);
  ek_optimizer_free(plain);
  return status;
}

/* ---- schedules ---- */

static double floor_of(const struct settings *s, double usual) {
  return s->floor >= 0 ? s->floor : usual;
}

/* 5 % of the run, unless it is said. */
static int64_t warmup_of(const struct settings *s, int64_t steps) {
  return s->warmup >= 0 ? s->warmup : steps / 20;
}

static ek_status make_cosine(ek_schedule *schedule, const struct settings *s, int64_t steps) {
  const double rate = recipe_rate(s);
  return ek_schedule_warmup_cosine(schedule, rate, floor_of(s, rate / 10), warmup_of(s, steps),
                                   steps);
}

static ek_status make_stable(ek_schedule *schedule, const struct settings *s, int64_t steps) {
  const int64_t warmup = warmup_of(s, steps), decay = s->decay >= 0 ? s->decay : steps / 5;
  return ek_schedule_warmup_stable(schedule, recipe_rate(s), floor_of(s, 0), warmup, decay, steps);
}

static ek_status make_linear(ek_schedule *schedule, const struct settings *s, int64_t steps) {
  const int64_t warmup = warmup_of(s, steps), decay = steps > warmup ? steps - warmup : 0;
  return ek_schedule_warmup_stable(schedule, recipe_rate(s), floor_of(s, 0), warmup, decay, steps);
}

static ek_status make_steps(ek_schedule *schedule, const struct settings *s, int64_t steps) {
  const int64_t third = steps / 3 > 0 ? steps / 3 : 1;
  return ek_schedule_steps(schedule, recipe_rate(s), s->factor >= 0 ? s->factor : 0.1,
                           s->period >= 0 ? s->period : third, floor_of(s, 0));
}

/* torch's defaults. */
static ek_status make_one_cycle(ek_schedule *schedule, const struct settings *s, int64_t steps) {
  const double rate = recipe_rate(s);
  const int64_t rise = (int64_t)(0.3 * (double)steps);
  return ek_schedule_one_cycle(schedule, rate / 25, rate, floor_of(s, rate / 25e4),
                               s->warmup >= 0 ? s->warmup : rise > 0 ? rise : 1, steps);
}

static ek_status make_constant(ek_schedule *schedule, const struct settings *s, int64_t steps) {
  (void)steps;
  return ek_schedule_constant(schedule, recipe_rate(s));
}

static const struct schedule_kind schedules[] = {
    {"cosine", " floor warmup ", make_cosine},
    {"stable", " floor warmup decay ", make_stable},
    {"linear", " floor warmup ", make_linear},
    {"steps", " floor period factor ", make_steps},
    {"one-cycle", " floor warmup ", make_one_cycle},
    {"constant", " ", make_constant},
};

const struct schedule_kind *schedule_at(size_t index) {
  return index < sizeof schedules / sizeof schedules[0] ? &schedules[index] : NULL;
}

ek_status recipe_schedule(ek_schedule *schedule, const struct settings *s, int64_t steps) {
  return schedule_at((size_t)s->schedule)->make(schedule, s, steps > 0 ? steps : 1);
}

/* ---- models ---- */

static ek_status make_new(ek_module **module, const struct settings *s, const ek_recompute *again,
                          bool fused) {
  struct shape shape = s->shape;
  shape.recompute = *again;
  shape.documents = s->document_end >= 0;
  return shape_language_model(module, &shape, s->dropout, fused, 0);
}

static ek_status open_folder(ek_module **module, const struct settings *s,
                             const ek_recompute *again, bool fused) {
  ek_model_folder_options options = EK_MODEL_FOLDER_OPTIONS_INIT;
  options.dropout = s->dropout;
  options.recompute = *again;
  options.fused_loss = fused;
  options.segments = s->document_end >= 0;
  return ek_model_from_folder(module, s->model, &options);
}

ek_status recipe_module(ek_module **module, ek_criterion **criterion,
                        const struct settings *s, const ek_recompute *recompute, bool fused) {
  EK_TRY((s->from_folder ? open_folder : make_new)(module, s, recompute, fused));
  return fused ? EK_OK : ek_cross_entropy_create(criterion, NULL);
}

void recipe_limits(int64_t *vocabulary, int64_t *longest, const ek_module *module) {
  const ek_module_ops *table = ek_module_table(module);
  size_t count = 0;
  *vocabulary = *longest = 0;
  if (table->facts == NULL) return;
  const ek_fact *facts = table->facts(module, &count);
  for (size_t i = 0; i < count; i++) {
    const char *key = facts[i].key;
    if (strcmp(key, "vocab_size") == 0) *vocabulary = (int64_t)facts[i].number;
    if (strcmp(key, "n_positions") == 0 || strcmp(key, "max_position_embeddings") == 0) {
      *longest = (int64_t)facts[i].number;
    }
  }
}

/* A preset's name is FAMILY-SIZE; those of a Llama's family that are no Llamas are left out. */
static bool is_of_family(const struct preset *preset, const char *family) {
  const size_t length = strlen(family);
  return strncmp(preset->name, family, length) == 0 && preset->name[length] == '-' &&
         (preset->shape.hidden > 0) == (strcmp(family, "llama") == 0);
}

static const struct preset *find_size(const char *family, const char *size) {
  for (size_t i = 0; preset_at(i) != NULL; i++) {
    const struct preset *preset = preset_at(i);
    if (!is_of_family(preset, family)) continue;
    if (size == NULL || strcmp(preset->name + strlen(family) + 1, size) == 0) return preset;
  }
  return NULL;
}

static void list_sizes(char *text, const char *family, const char *word) {
  enum { MOST = 16 };
  const char *words[MOST + 1] = {NULL};
  size_t count = 0;
  for (size_t i = 0; preset_at(i) != NULL && count < MOST; i++) {
    const struct preset *preset = preset_at(i);
    if (is_of_family(preset, family)) words[count++] = preset->name + strlen(family) + 1;
  }
  (void)unknown_word(text, "size", word, words);
}

static bool has_model(const char *folder) {
  char config[4096];
  struct stat status;
  const int needed = snprintf(config, sizeof config, "%s/config.json", folder);
  return needed > 0 && (size_t)needed < sizeof config && stat(config, &status) == 0;
}

bool recipe_model(struct settings *s, char *text) {
  static const char *const families[] = {"gpt2", "llama"};
  for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
    const size_t length = strlen(families[i]);
    if (strncmp(s->model, families[i], length) != 0) continue;
    if (s->model[length] != '\0' && s->model[length] != ':') continue;
    const char *size = s->model[length] == ':' ? s->model + length + 1 : NULL;
    const struct preset *preset = find_size(families[i], size);
    if (has_model(s->model)) {
      (void)snprintf(text, UNKNOWN_TEXT,
                     "%.60s is a new model, and a folder here; expected ./%.60s for the folder, or "
                     "a size such as %s:%s",
                     s->model, s->model, families[i],
                     find_size(families[i], NULL)->name + length + 1);
      return false;
    }
    if (preset == NULL) list_sizes(text, families[i], size);
    else s->shape = preset->shape;
    return preset != NULL;
  }
  s->from_folder = true;
  if (has_model(s->model)) return true;
  (void)snprintf(text, UNKNOWN_TEXT,
                 "\"%.200s\" is no folder with config.json; expected one, gpt2, gpt2:SIZE, llama "
                 "or llama:SIZE",
                 s->model);
  return false;
}
