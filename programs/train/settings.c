/*
 * settings.c - the command line, by argp.
 *
 * A flag is a row of a table: its name, where its value goes, and what values it takes. argp's own
 * table, the reading of values and their messages follow from it. What flags mean together is
 * checked at the end.
 */
#include "settings.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "recipe.h"
#include "terminal.h"

enum { MOST_WORDS = 16, FIRST_KEY = 256 };

/* What words stand for is their number in the list; the first is the default unless said. */
static const char *rule_words[MOST_WORDS], *schedule_words[MOST_WORDS], *one_mode[BENCH_MODES + 1];
static const char *const raw_words[] = {"u16", "u32", NULL};
static const char *const loss_words[] = {"whole", "fused", NULL};
static const char *const type_words[] = {"f32", "bf16", "f16", NULL};

/* What a flag has: a value of one of these, which is written at an offset of the settings. */
enum kind {
  HEADING,
  WHOLE, /* int64_t from least to most */
  REAL,  /* double from least to most */
  WORD,  /* int64_t: the number of the word in a list */
  TEXT,  /* const char * */
  FILES, /* struct files: the flag's word and those after it */
  FLAG   /* bool, without a value */
};

struct flag {
  const char *name, *value; /* the value's name in --help */
  enum kind kind;
  size_t offset;
  double least, most;
  const char *const *words;
  const char *text;
};

#define AT(field) offsetof(struct settings, field)
#define WHOLE_(name, field, least, most, text)                                                     \
  { name, "N", WHOLE, AT(field), least, most, NULL, text }
#define REAL_(name, field, least, most, text)                                                      \
  { name, "X", REAL, AT(field), least, most, NULL, text }
#define WORD_(name, field, words, text) { name, "NAME", WORD, AT(field), 0, 0, words, text }
#define TEXT_(name, value, field, text) { name, value, TEXT, AT(field), 0, 0, NULL, text }
#define FILES_(name, field, text) { name, "FILE...", FILES, AT(field), 0, 0, NULL, text }
#define FLAG_(name, field, text) { name, NULL, FLAG, AT(field), 0, 0, NULL, text }
#define HEADING_(text) { NULL, NULL, HEADING, 0, 0, 0, NULL, text }

enum { LARGE = 1 << 24 };
static const struct flag flags[] = {
    HEADING_("Model:"),
    TEXT_("model", "MODEL", model,
          "A folder with config.json and model.safetensors, which is trained further; or a new "
          "model: gpt2, gpt2:SIZE, llama or llama:SIZE, with the sizes of evenkeel-bench's presets "
          "(124m, 355m, 774m, 1.5b; 160m, 1b, 8b, 70b)"),
    WHOLE_("layers", shape.layers, 0, 100000, "Blocks of a new model"),
    WHOLE_("width", shape.width, 1, LARGE, "Width of a new model, a multiple of --heads"),
    WHOLE_("heads", shape.heads, 1, LARGE, "Attention heads of a new model"),
    WHOLE_("hidden", shape.hidden, 1, LARGE, "Width of the feed-forward layers of a new Llama"),
    WHOLE_("kv-heads", shape.kv_heads, 1, LARGE,
           "Heads of keys and values of a new Llama, a divisor of --heads"),
    WHOLE_("vocab", shape.vocab, 1, INT32_MAX, "Size of the vocabulary of a new model"),
    REAL_("dropout", dropout, 0, 1, "Part of the activations that is dropped; default 0"),

    HEADING_("Data:"),
    FILES_("data", data,
           "Files of tokens: those of llm.c, or u16 and u32 alone; patterns of the shell"),
    FILES_("validation", validation, "Files of tokens to evaluate on"),
    REAL_("validation-split", validation_split, 0, 1,
          "Part of the samples of --data to evaluate on instead of training on it: the last ones"),
    WHOLE_("validation-every", validation_every, 1, INT32_MAX,
           "Steps from one evaluation to the next; default: a tenth of the run"),
    WHOLE_("validation-rows", validation_rows, 1, INT32_MAX,
           "Samples of an evaluation; default: all"),
    WHOLE_("sequence", sequence, 1, LARGE,
           "Tokens of a sample; default: 1024, or fewer if the model takes no more; a new model "
           "takes as many as this"),
    WHOLE_("batch", batch, 1, INT32_MAX,
           "Samples of a step, over all devices and processes; default 8"),
    WORD_("raw", raw, raw_words, "Tokens of files without a header"),
    WHOLE_("document-end", document_end, 0, UINT32_MAX,
           "The token that ends a document, such as 50256 of GPT-2: tokens see those of their own "
           "document alone, and no document's first token is predicted from the one before it"),

    HEADING_("Run:"),
    WHOLE_("steps", steps, 1, 1000000000, "Steps of the whole run; default: those of --epochs"),
    REAL_("epochs", epochs, 0, 1e6, "How often the data is gone through; default 1"),
    WHOLE_("seed", seed, 0, INT64_MAX >> 10,
           "For initial values, dropout and the order of samples; default 0"),
    TEXT_("save", "FOLDER", save,
          "Save states of the run there; a run that finds one there goes on from it"),
    WHOLE_("save-every", save_every, 1, INT32_MAX,
           "Steps from one state to the next; default: a tenth of the run"),
    WHOLE_("keep", keep, 0, 1000000, "States that stay; default 2; 0: all"),
    FLAG_("fresh", fresh, "Refuse a --save folder that has a state"),
    TEXT_("best", "FOLDER", best, "Keep the state of the least validation loss there"),
    WHOLE_("patience", patience, 1, INT32_MAX,
           "Stop after this many evaluations without a new least loss"),
    TEXT_("out", "FOLDER", out,
          "Write the trained model there at the end, as transformers has it: config.json and "
          "model.safetensors; of the best state with --best, and the averages with --ema"),
    TEXT_("metrics", "PREFIX", metrics,
          "Write PREFIX.jsonl, a line for each step, and PREFIX.prom for Prometheus"),
    WHOLE_("log-every", log_every, 1, INT32_MAX,
           "Steps from one printed line to the next; default: a hundredth of the run"),
    FLAG_("quiet", quiet, "Print nothing except errors"),

    HEADING_("Update:"),
    WORD_("optimizer", rule, rule_words, "Rule of the updates"),
    REAL_("rate", rate, 0, 1e6,
          "Highest learning rate; default 6e-4 or, of a folder's model, 5e-5; of sgd 0.1 or "
          "0.01"),
    WORD_("schedule", schedule, schedule_words, "How the rate changes"),
    WHOLE_("warmup", warmup, 0, INT32_MAX,
           "Steps until the highest rate; default a twentieth of the run, of one-cycle 3 tenths"),
    REAL_("floor", floor, 0, 1e6,
          "Last rate; default of cosine a tenth of --rate, of one-cycle 4e-6 of it, else 0"),
    WHOLE_("decay", decay, 0, INT32_MAX,
           "Steps of stable in which the rate falls; default a fifth of the run"),
    WHOLE_("period", period, 1, INT32_MAX,
           "Steps after which steps multiplies the rate; default a third of the run"),
    REAL_("factor", factor, 0, 1, "What it is multiplied by; default 0.1"),
    REAL_("weight-decay", weight_decay, 0, 1e6,
          "Not of biases and norms; default 0.1, of sgd 0"),
    REAL_("clip", clip, 0, 1e9, "Largest norm of the gradient; default 1; 0: any"),
    REAL_("beta1", beta1, 0, 1, "Of adamw, also beside muon; default 0.9"),
    REAL_("beta2", beta2, 0, 1, "Of adamw, also beside muon; default 0.95"),
    REAL_("epsilon", epsilon, 0, 1, "Of adamw, also beside muon; default 1e-8"),
    REAL_("momentum", momentum, 0, 1, "Of sgd, default 0.9, and of muon, default 0.95"),
    FLAG_("nesterov", nesterov, "Nesterov's momentum, of sgd"),
    REAL_("ema", ema, 0, 1, "Decay of an average of the weights, such as 0.999; default: none"),
    REAL_("loss-scale", loss_scale, 1, 1e30,
          "First dynamic scale of the loss, a power of two; default: 65536 with f16, else none"),

    HEADING_("Devices:"),
    TEXT_("devices", "SPEC", devices,
          "Devices of each process, such as cuda, cuda:0-3, cpu:4; default: all GPUs, else cpu:1. "
          "With plan:8@80GiB the program only says whether the run fits"),
    WORD_("mode", mode, one_mode,
          "Where state and outputs are; default: what `evenkeel-bench fit` finds the fastest, with "
          "a recomputation, a loss and a number of micro-batches where they are not given; one of"),
    WORD_("precision", precision, precision_words, "What the model computes in"),
    WORD_("gradient-type", gradient_type, type_words, "What gradients are kept and summed in"),
    WHOLE_("micro-batches", micro_batches, 1, INT32_MAX,
           "Parts of a batch that are computed one after the other; with --mode; default 1"),
    TEXT_("recompute", "WHAT", recompute_text,
          "What backward computes again: none (default with --mode), every=K, sqrt, all, cheap"),
    WORD_("loss", loss, loss_words, "Whether logits are whole in memory, or in blocks"),
    WHOLE_("reproducible", reproducible, 1, 256,
           "Compute the same bits on any number of devices up to this many"),
    WHOLE_("threads", threads, 0, 1024, "Threads of each device; default: the cores, divided"),
};
enum { FLAGS = sizeof flags / sizeof flags[0] };

struct reading {
  struct settings *settings;
  struct files *files; /* that a word would be added to; NULL: none */
  bool said[FLAGS];
};

/* ---- argp's table ---- */

/* "TEXT: a (default), b, c" */
static char *text_with_words(const struct flag *flag) {
  char text[1024];
  const bool all_equal = flag->words == one_mode; /* no default among them */
  size_t used = (size_t)snprintf(text, sizeof text, "%s:", flag->text);
  for (size_t i = 0; flag->words[i] != NULL && used < sizeof text; i++) {
    used += (size_t)snprintf(text + used, sizeof text - used, "%s %s%s", i > 0 ? "," : "",
                             flag->words[i], i == 0 && !all_equal ? " (default)" : "");
  }
  return need_copy(text, strlen(text));
}

static void fill_words(void) {
  for (size_t i = 0; i + 1 < MOST_WORDS && rule_at(i) != NULL; i++) {
    rule_words[i] = rule_at(i)->name;
  }
  for (size_t i = 0; i + 1 < MOST_WORDS && schedule_at(i) != NULL; i++) {
    schedule_words[i] = schedule_at(i)->name;
  }
  for (size_t i = 0; i < BENCH_MODES; i++) one_mode[i] = mode_words[i];
}

/* Texts of rows with words are made here, and stay for the program's life. */
static struct argp_option *make_options(void) {
  struct argp_option *options = need_memory(FLAGS + 2, sizeof *options);
  int group = 0; /* argp numbers group 0 itself */
  for (size_t i = 0; i < FLAGS; i++) {
    const struct flag *flag = &flags[i];
    if (flag->kind == HEADING) group++;
    options[i].name = flag->name;
    options[i].key = flag->kind == HEADING ? 0 : FIRST_KEY + (int)i;
    options[i].arg = flag->value;
    options[i].doc = flag->kind == WORD ? text_with_words(flag) : flag->text;
    options[i].group = group;
  }
  options[FLAGS].key = 'h';
  options[FLAGS].flags = OPTION_HIDDEN;
  return options;
}

static void free_options(struct argp_option *options) {
  for (size_t i = 0; i < FLAGS; i++) {
    if (flags[i].kind == WORD) free((void *)(uintptr_t)options[i].doc);
  }
  free(options);
}

/* ---- values; argp_error() does not come back ---- */

static void read_word(int64_t *value, const struct flag *flag, const char *text,
                      struct argp_state *state) {
  char message[UNKNOWN_TEXT];
  for (size_t i = 0; flag->words[i] != NULL; i++) {
    if (strcmp(text, flag->words[i]) != 0) continue;
    *value = (int64_t)i;
    return;
  }
  argp_error(state, "--%s: %s", flag->name, unknown_word(message, "name", text, flag->words));
}

static void read_value(struct reading *reading, const struct flag *flag, const char *text,
                       struct argp_state *state) {
  void *place = (char *)reading->settings + flag->offset;
  int64_t whole = 0;
  double real = 0;
  reading->files = NULL;
  switch (flag->kind) {
  case HEADING: return;
  case WHOLE:
    if (!parse_whole(&whole, text, (int64_t)flag->least, (int64_t)flag->most)) {
      argp_error(state, "--%s must be a whole number from %.0f to %.0f, not \"%s\"", flag->name,
                 flag->least, flag->most, text);
    }
    memcpy(place, &whole, sizeof whole);
    return;
  case REAL:
    if (!parse_real(&real, text, flag->least, flag->most)) {
      argp_error(state, "--%s must be a number from %g to %g, not \"%s\"", flag->name, flag->least,
                 flag->most, text);
    }
    memcpy(place, &real, sizeof real);
    return;
  case WORD:
    read_word(&whole, flag, text, state);
    memcpy(place, &whole, sizeof whole);
    return;
  case TEXT:
    if (text[0] == '\0') argp_error(state, "--%s is empty, expected %s", flag->name, flag->value);
    memcpy(place, &text, sizeof text);
    return;
  case FLAG: memcpy(place, &(bool){true}, sizeof(bool)); return;
  case FILES: reading->files = place; return;
  }
}

static void add_file(struct files *files, const char *path) {
  files->paths = need_more(files->paths, files->count + 1, sizeof *files->paths);
  files->paths[files->count++] = path;
}

/* ---- what flags mean together ---- */

static bool said(const struct reading *reading, const char *name) {
  for (size_t i = 0; i < FLAGS; i++) {
    if (flags[i].name != NULL && strcmp(flags[i].name, name) == 0) return reading->said[i];
  }
  return false;
}

/* Flags, with blanks between them, that need another one. */
static void need(const struct reading *reading, bool there, const char *names, const char *what,
                 struct argp_state *state) {
  char name[32];
  int used = 0;
  for (; !there && sscanf(names, " %31s%n", name, &used) == 1; names += used) {
    if (said(reading, name)) argp_error(state, "--%s needs %s", name, what);
  }
}

static void exclude(const struct reading *reading, const char *one, const char *other,
                    struct argp_state *state) {
  if (said(reading, one) && said(reading, other)) {
    argp_error(state, "--%s cannot be combined with --%s; give one of them", one, other);
  }
}

static void refuse_foreign(const struct reading *reading, const char *option, const char *row,
                           const char *row_flags, const char *own, struct argp_state *state) {
  char name[32], pattern[40];
  int used = 0;
  for (const char *rest = row_flags; sscanf(rest, " %31s%n", name, &used) == 1; rest += used) {
    (void)snprintf(pattern, sizeof pattern, " %s ", name);
    if (said(reading, name) && strstr(own, pattern) == NULL) {
      argp_error(state, "--%s is of --%s %s, and cannot be combined with another %s", name, option,
                 row, option);
    }
  }
}

/* Flags of rules and schedules that were not chosen. */
static void check_rows(const struct reading *reading, struct argp_state *state) {
  const struct settings *s = reading->settings;
  const char *rule = rule_at((size_t)s->rule)->flags;
  const char *schedule = schedule_at((size_t)s->schedule)->flags;
  for (size_t i = 0; rule_at(i) != NULL; i++) {
    refuse_foreign(reading, "optimizer", rule_at(i)->name, rule_at(i)->flags, rule, state);
  }
  for (size_t i = 0; schedule_at(i) != NULL; i++) {
    refuse_foreign(reading, "schedule", schedule_at(i)->name, schedule_at(i)->flags, schedule,
                   state);
  }
}

/* A preset gives the sizes of a new model that no flag says. */
static void finish_model(const struct reading *reading, struct argp_state *state) {
  struct settings *s = reading->settings;
  const struct shape given = s->shape;
  char message[UNKNOWN_TEXT];
  if (s->model == NULL) {
    argp_error(state, "--model is needed: a folder, gpt2, gpt2:SIZE, llama or llama:SIZE");
  }
  if (!recipe_model(s, message)) argp_error(state, "--model: %s", message);
  need(reading, !s->from_folder, "layers width heads hidden kv-heads vocab",
       "a new model, such as --model gpt2; a folder has its own sizes", state);
  if (s->from_folder) return;
  need(reading, s->shape.hidden > 0, "hidden kv-heads", "--model llama", state);
  if (said(reading, "layers")) s->shape.layers = given.layers;
  if (said(reading, "width")) s->shape.width = given.width;
  if (said(reading, "heads")) s->shape.heads = given.heads;
  if (said(reading, "hidden")) s->shape.hidden = given.hidden;
  if (said(reading, "vocab")) s->shape.vocab = given.vocab;
  /* As many heads of keys and values as others, if only the number of these is said. */
  if (said(reading, "kv-heads") || said(reading, "heads")) s->shape.kv_heads = given.kv_heads;
  if (s->sequence < 0) s->sequence = s->shape.seq > 1024 ? s->shape.seq : 1024;
  s->shape.seq = s->sequence;
}

static void finish(const struct reading *reading, struct argp_state *state) {
  struct settings *s = reading->settings;
  const bool validates = s->validation.count > 0 || said(reading, "validation-split");
  finish_model(reading, state);
  exclude(reading, "validation", "validation-split", state);
  exclude(reading, "steps", "epochs", state);
  need(reading, validates, "validation-every validation-rows best patience",
       "--validation or --validation-split", state);
  need(reading, s->save != NULL, "save-every keep fresh", "--save", state);
  need(reading, s->mode >= 0, "micro-batches",
       "--mode; without a mode, the number of micro-batches is found with it", state);
  check_rows(reading, state);
  if (s->validation_split == 0 || s->validation_split == 1) {
    argp_error(state, "--validation-split %g leaves no samples to %s", s->validation_split,
               s->validation_split == 0 ? "evaluate on" : "train on");
  }
  if (s->epochs == 0) argp_error(state, "--epochs 0 takes no step; expected more than 0");
  if (s->save != NULL && s->best != NULL && strcmp(s->save, s->best) == 0) {
    argp_error(state, "--save and --best name the same folder; each needs its own");
  }
  if (s->recompute_text == NULL) return;
  if (ek_recompute_parse(&s->recompute, s->recompute_text) != EK_OK) {
    argp_error(state, "--recompute: %s", ek_error_message());
  }
  if (s->recompute.kind == EK_RECOMPUTE_BYTES) {
    argp_error(state, "--recompute %s: expected none, every=K, sqrt, all or cheap; without --mode "
                      "and --recompute, what fits is found",
               s->recompute_text);
  }
}

static error_t parse(int key, char *text, struct argp_state *state) {
  struct reading *reading = state->input;
  if (key >= FIRST_KEY && key < FIRST_KEY + FLAGS) {
    const struct flag *flag = &flags[key - FIRST_KEY];
    reading->said[key - FIRST_KEY] = true;
    read_value(reading, flag, text, state);
    if (flag->kind == FILES) add_file(reading->files, text);
    return 0;
  }
  switch (key) {
  case 'h': argp_state_help(state, stdout, ARGP_HELP_STD_HELP); return 0;
  case ARGP_KEY_ARG:
    if (reading->files == NULL) {
      argp_error(state, "unexpected argument \"%s\"; files are named after --data", text);
    }
    add_file(reading->files, text);
    return 0;
  case ARGP_KEY_END: finish(reading, state); return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

void settings_parse(struct settings *settings, int argc, char **argv) {
  static const char text[] =
      "Trains a language model on files of tokens, over all devices and processes.\vStarted by "
      "mpirun, torchrun --no-python or srun, the processes train one model together: --devices are "
      "those of each, and the first one prints.\n\nSIGINT and SIGTERM stop the run after the step "
      "that is under way, with a state in --save; the same command goes on from it.\n\nExit codes: "
      "0 done, 1 run-time error, 2 usage, 3 stopped by a signal, 5 the devices do not hold it.";
  *settings = (struct settings){.validation_split = -1, .document_end = -1,
                                .sequence = -1, .batch = 8,
                                .validation_every = -1, .validation_rows = 0, .steps = -1,
                                .epochs = -1, .save_every = -1, .keep = 2, .log_every = -1,
                                .rate = -1, .floor = -1, .weight_decay = -1, .clip = 1, .ema = -1,
                                .beta1 = -1, .beta2 = -1, .epsilon = -1, .momentum = -1,
                                .factor = -1, .warmup = -1, .decay = -1, .period = -1, .mode = -1,
                                .loss = -1, .loss_scale = -1};
  fill_words();
  struct argp_option *options = make_options();
  const struct argp argp = {options, parse, "", text, NULL, NULL, NULL};
  struct reading reading = {.settings = settings};
  const bool good = argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &reading) == 0;
  free_options(options);
  if (!good) exit(EXIT_USAGE);
}

void settings_free(struct settings *settings) {
  free(settings->data.paths);
  free(settings->validation.paths);
}

ek_precision settings_precision(const struct settings *settings) {
  return precision_value((enum precision)settings->precision);
}

ek_type settings_gradient_type(const struct settings *settings) {
  static const ek_type types[] = {(ek_type)0, EK_BF16, EK_F16};
  return types[settings->gradient_type];
}
