/*
 * options_finish.c - what a command line says when all of it was read.
 *
 * A preset fills in what no flag says, wherever on the line either of them stands: flags set a
 * field and mark it, and the preset is laid under the fields without a mark at the end.
 * argp_error() does not come back.
 */
#include <stdio.h>
#include <string.h>

#include "options_reading.h"

/* Token ids are 32 bits, hence the largest vocabulary. */
const struct shape_flag shape_flags[SHAPE_FLAGS] = {
    {"layers", offsetof(struct shape, layers), 0, 100000},
    {"width", offsetof(struct shape, width), 1, 1 << 24},
    {"heads", offsetof(struct shape, heads), 1, 1 << 24},
    {"seq", offsetof(struct shape, seq), 1, 1 << 24},
    {"vocab", offsetof(struct shape, vocab), 1, INT32_MAX},
    {"batch", offsetof(struct shape, batch), 1, INT32_MAX},
    {"steps", offsetof(struct shape, steps), 1, 1000000},
    {"warmup", offsetof(struct shape, warmup), 0, 1000000},
    {"micro-batches", offsetof(struct shape, micro_batches), 1, INT32_MAX},
    {"hidden", offsetof(struct shape, hidden), 0, 1 << 24},
    {"kv-heads", offsetof(struct shape, kv_heads), 0, 1 << 24},
    {"image", offsetof(struct shape, image), 0, 1 << 16},
};

void refuse_word(struct argp_state *state, const char *flag, const char *what, const char *word,
                 const char *const *words) {
  char text[UNKNOWN_TEXT];
  argp_error(state, "%s: %s", flag, unknown_word(text, what, word, words));
}

/* The same of an item of a list, which may also be a good word that is there twice. */
static void refuse_item(struct argp_state *state, const char *flag, const char *what,
                        const char *word, const char *const *words) {
  if (strcmp(word, "all") == 0) argp_error(state, "%s: \"all\" cannot be combined with other "
                                                  "names", flag);
  for (size_t i = 0; words[i] != NULL; i++) {
    if (strcmp(word, words[i]) == 0) {
      argp_error(state, "%s: \"%s\" is given twice", flag, word);
    }
  }
  refuse_word(state, flag, what, word, words);
}

static const char *usual_modes(const struct options *options) {
  if (options->command == COMMAND_TECHNIQUES) return "sharded";
  if (options->processes > 1) return "replicated,sharded,sharded-gradients,fully-sharded";
  return "all";
}

static void check_world_modes(const struct options *options, struct argp_state *state) {
  for (size_t i = 0; i < options->mode_count; i++) {
    const ek_mode mode = options->modes[i];
    if (options->processes < 2 || (mode != EK_MODE_GATHER && mode != EK_MODE_BALANCED)) continue;
    argp_error(state,
               "--modes %s works within one process only; with --world expected replicated, "
               "sharded, sharded-gradients, fully-sharded",
               ek_mode_name(mode));
  }
}

static void read_modes(struct reading *reading, struct argp_state *state) {
  struct options *options = reading->options;
  char bad[64];
  const char *text = reading->modes_text != NULL ? reading->modes_text : usual_modes(options);
  options->modes_said = reading->modes_text != NULL;
  if (!parse_modes(options->modes, &options->mode_count, text, bad)) {
    refuse_item(state, "--modes", "mode", bad, mode_words);
  }
}

static void read_precisions(struct reading *reading, struct argp_state *state) {
  struct options *options = reading->options;
  const char *text = reading->precision_text == NULL ? "f32" : reading->precision_text;
  char bad[64] = "";
  if (!parse_precisions(options->precisions, &options->precision_count, text, bad)) {
    refuse_item(state, "--precision", "precision", bad, precision_words);
  }
  if (options->precision_count == 1) return;
  if (options->trace != NULL) argp_error(state, "--precision: --trace needs exactly one");
}

/* Gradients of 16 bits have the type of a precision of 16 bits. */
static void check_gradients(const struct options *options, struct argp_state *state) {
  for (size_t i = 0; i < options->precision_count; i++) {
    const enum precision own = options->precisions[i];
    if (own == PRECISION_F32 || own == PRECISION_TF32) continue;
    if (options->gradients == PRECISION_F32 || options->gradients == own) continue;
    argp_error(state, "--gradient-type %s cannot be combined with --precision %s",
               precision_text(options->gradients), precision_text(own));
  }
}

/* Lays a preset under what was not said. */
static void apply_preset(struct reading *reading, const struct preset *preset) {
  struct shape shape = preset->shape;
  if (reading->options->command == COMMAND_MAX_BATCH) {
    /* The second step meets what the first has left behind; more would tell nothing new. */
    shape.warmup = 1;
    shape.steps = 1;
  }
  for (size_t i = 0; i < SHAPE_FLAGS; i++) {
    const size_t offset = shape_flags[i].offset;
    if (reading->said[i]) continue;
    memcpy((char *)&reading->options->shape + offset, (const char *)&shape + offset,
           sizeof(int64_t));
  }
  reading->options->shape.untied = shape.untied;
  reading->options->shape.segments = shape.segments;
  if (!reading->said_keep) {
    reading->options->shape.keep_outputs = shape.keep_outputs && !reading->options->fused_loss;
  }
}

/* What is advised is a trainer's: it keeps no outputs, and cuts a batch evenly. */
static void finish_fit(const struct reading *reading, struct argp_state *state) {
  struct options *options = reading->options;
  const char *command = command_name(options->command);
  if (reading->said_keep && options->shape.keep_outputs) {
    argp_error(state, "--keep-outputs: %s does not take it", command);
  }
  if (options->scatter.kind != EK_SCATTER_EVEN) {
    argp_error(state, "--scatter %s: %s does not take it", options->scatter_text, command);
  }
  if (options->reproducible > 0) argp_error(state, "--reproducible: %s does not take it", command);
  options->shape.keep_outputs = false;
}

/* The devices of a process, unless the command line names them. */
static void finish_world(struct options *options, struct argp_state *state) {
  const bool plan = options->command == COMMAND_PLAN;
  if (plan && options->processes == 0) {
    argp_error(state, "plan needs --world PxD, such as --world 16x8");
  }
  if (options->link_text != NULL && options->processes == 0) {
    argp_error(state, "--link needs --world PxD, such as --world 16x8");
  }
  if (plan && options->shape.recompute.kind == EK_RECOMPUTE_BYTES) {
    argp_error(state, "--recompute %s: plan takes a policy; expected none, every=K, sqrt, all or "
                      "cheap", options->recompute_text);
  }
  if (options->measure > 0 && options->processes > 1) {
    argp_error(state, "--measure trains in this process alone and cannot be combined with "
                      "--world %s", options->world_text);
  }
  check_world_modes(options, state);
  if (options->processes == 0 || options->spec_count > 0) return;
  (void)snprintf(options->world_spec, sizeof options->world_spec, "plan:%lld",
                 (long long)options->world_devices);
  options->specs[options->spec_count++] = options->world_spec;
}

/* A trace and a snapshot are of one group. */
static void check_one_group(const struct options *options, const char *option,
                            struct argp_state *state) {
  if (options->command != COMMAND_MEMORY && options->command != COMMAND_STEP) {
    argp_error(state, "%s: only memory and step write one", option);
  }
  if (options->mode_count != 1 || options->spec_count > 1) {
    argp_error(state, "%s needs exactly one of --modes and one of --devices", option);
  }
}

static void refuse_preset(struct argp_state *state, const char *name) {
  const char *words[32] = {NULL};
  const size_t room = sizeof words / sizeof words[0] - 1;
  for (size_t i = 0; i < room && preset_at(i) != NULL; i++) words[i] = preset_at(i)->name;
  refuse_word(state, "--preset", "preset", name, words);
}

static void check_images(const struct options *options, struct argp_state *state) {
  const struct shape *shape = &options->shape;
  if (shape->image == 0 && shape->segments) argp_error(state, "--image 0: expected 1 or more");
  if (shape->image == 0) return;
  if (shape->seq != 1 || shape->heads != 1 || shape->hidden != 0) {
    argp_error(state, "--image %lld: pictures have no --seq, --heads or --hidden",
               (long long)shape->image);
  }
  if (options->fused_loss) argp_error(state, "--loss fused: only language models have it");
}

void finish_training(struct reading *reading, struct argp_state *state) {
  struct options *options = reading->options;
  const struct preset *preset = preset_find(options->preset);
  if (preset == NULL) refuse_preset(state, options->preset);
  apply_preset(reading, preset);
  read_modes(reading, state);
  read_precisions(reading, state);
  check_gradients(options, state);
  const struct shape *shape = &options->shape;
  if (options->fused_loss && shape->keep_outputs) {
    argp_error(state, "--keep-outputs: --loss fused has no outputs to keep");
  }
  if (shape->width % shape->heads != 0) {
    argp_error(state, "--width %lld is not a multiple of --heads %lld", (long long)shape->width,
               (long long)shape->heads);
  }
  if (shape->kv_heads > 0 && (shape->hidden == 0 || shape->heads % shape->kv_heads != 0)) {
    argp_error(state, "--kv-heads %lld: expected a divisor of --heads %lld, with --hidden",
               (long long)shape->kv_heads, (long long)shape->heads);
  }
  check_images(options, state);
  if (options->shape.micro_batches == 0) options->shape.micro_batches = 1;
  if (options->shape.micro_batches > 1 && options->scatter.kind == EK_SCATTER_SIZES) {
    argp_error(state, "--scatter sizes=... describes whole batches and cannot be combined with "
                      "--micro-batches");
  }
  if ((options->command == COMMAND_TECHNIQUES || options->command == COMMAND_FIT) &&
      (options->shape.recompute.kind != EK_RECOMPUTE_NONE || options->shape.micro_batches > 1 ||
       options->fused_loss)) {
    argp_error(state, "%s tries --recompute, --micro-batches and --loss itself",
               command_name(options->command));
  }
  if (options->reproducible > 0 && options->scatter.kind != EK_SCATTER_EVEN) {
    argp_error(state, "--scatter %s: --reproducible always cuts grains evenly",
               options->scatter_text);
  }
  if (options->command == COMMAND_FIT || options->command == COMMAND_PLAN) {
    finish_fit(reading, state);
    finish_world(options, state);
  }
  if (options->trace != NULL) check_one_group(options, "--trace", state);
  if (options->snapshot != NULL) check_one_group(options, "--snapshot", state);
  if (options->command != COMMAND_MAX_BATCH) return;
  if (reading->said[SHAPE_BATCH]) {
    argp_error(state, "--batch: max-batch looks for the batch itself");
  }
  if (options->scatter.kind == EK_SCATTER_SIZES) {
    argp_error(state, "--scatter sizes=...: max-batch tries batches of many sizes");
  }
}
