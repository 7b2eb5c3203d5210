/*
 * options_parse.c - the flags of every subcommand, by argp.
 */
#include <stdlib.h>
#include <string.h>

#include "options_reading.h"
#include "terminal.h"

enum key {
  KEY_PRESET = 256,
  KEY_LAYERS, /* the fields of a shape, in the order of shape_flags */
  KEY_WIDTH,
  KEY_HEADS,
  KEY_SEQ,
  KEY_VOCAB,
  KEY_BATCH,
  KEY_STEPS,
  KEY_WARMUP,
  KEY_MICRO_BATCHES,
  KEY_HIDDEN,
  KEY_KV_HEADS,
  KEY_IMAGE,
  KEY_DEVICES,
  KEY_MODES,
  KEY_THREADS,
  KEY_SEED,
  KEY_OPTIMIZER,
  KEY_DATA,
  KEY_SCATTER,
  KEY_RECOMPUTE,
  KEY_KEEP_OUTPUTS,
  KEY_NO_KEEP_OUTPUTS,
  KEY_LOSS,
  KEY_TF32,
  KEY_GRADIENT_TYPE,
  KEY_BUCKET_BYTES,
  KEY_PRECISION,
  KEY_DETERMINISTIC,
  KEY_REPRODUCIBLE,
  KEY_FAIL_ABOVE,
  KEY_MEASURE,
  KEY_WORLD,
  KEY_LINK,
  KEY_TIMELINE,
  KEY_TRACE,
  KEY_SNAPSHOT,
  KEY_REPORT,
  KEY_EXPORT_JSON,
  KEY_EXPORT_CSV,
  KEY_WIDE
};

_Static_assert(KEY_BATCH - KEY_LAYERS == SHAPE_BATCH && KEY_IMAGE - KEY_LAYERS + 1 == SHAPE_FLAGS,
               "shape_flags has another number of keys, or the batch at another place");

static const struct argp_option training_options[] = {
    {"preset", KEY_PRESET, "NAME", 0,
     "Model and batch to start from: quick (default), lm-40k, gpt2-124m, gpt2-355m, gpt2-774m, "
     "gpt2-1.5b, llama-7b, llama-160m, llama-1b, llama-8b, llama-70b, gpt3-175b, resnet18, "
     "resnet50, fcn50; flags override it",
     0},
    {"devices", KEY_DEVICES, "SPEC", 0, "Devices, such as cpu:4, cpu:4@512MiB, plan:8@80GiB", 0},
    {"modes", KEY_MODES, "LIST", 0,
     "Any of gather,balanced,replicated,sharded,sharded-gradients,fully-sharded; default all", 0},
    {"threads", KEY_THREADS, "N", 0, "Threads per device; 0 (default) divides the cores", 0},
    {"precision", KEY_PRECISION, "LIST", 0,
     "Any of f32 (default), bf16, f16, and tf32, which is f32 whose products on cuda devices round "
     "to 10 bits of mantissa",
     0},
    {"tf32", KEY_TF32, NULL, 0, "The same as --precision tf32", 0},
    {"gradient-type", KEY_GRADIENT_TYPE, "TYPE", 0,
     "Type in which gradients of parameters are kept and summed: f32 (default), bf16 or f16", 0},
    {"bucket-bytes", KEY_BUCKET_BYTES, "N", 0,
     "Bytes of gradients that devices sum at once while backward goes on; 0 (default): 25 MiB on "
     "cuda devices, 4 MiB on others",
     0},
    {"deterministic", KEY_DETERMINISTIC, NULL, 0,
     "Sum between GPUs in the order of the devices, as other devices always do", 0},
    {"reproducible", KEY_REPRODUCIBLE, "GRAINS", OPTION_ARG_OPTIONAL,
     "Compute the same bits on any number of devices up to GRAINS (default 8), the number of parts "
     "that every batch is cut into; the command memory also shows the cost",
     0},
    {"layers", KEY_LAYERS, "N", 0, "Blocks of the model", 1},
    {"width", KEY_WIDTH, "N", 0, "Width of the model, a multiple of --heads", 1},
    {"heads", KEY_HEADS, "N", 0, "Attention heads", 1},
    {"hidden", KEY_HIDDEN, "N", 0,
     "Width of gated feed-forward layers: the model is a Llama; 0 (default): a GPT-2", 1},
    {"kv-heads", KEY_KV_HEADS, "N", 0,
     "Heads of keys and values of a Llama, a divisor of --heads; 0 (default): as many", 1},
    {"image", KEY_IMAGE, "N", 0,
     "Pixels of a side of pictures: the model is a ResNet of depth --layers (18, 34, 50, 101, "
     "152), with --width channels in its first stage and --vocab classes; 0 (default): a language "
     "model",
     1},
    {"seq", KEY_SEQ, "N", 0, "Tokens in a sample", 1},
    {"vocab", KEY_VOCAB, "N", 0, "Size of the vocabulary", 1},
    {"batch", KEY_BATCH, "N", 0, "Samples in the global batch (not for max-batch)", 1},
    {"steps", KEY_STEPS, "N", 0, "Measured steps", 1},
    {"warmup", KEY_WARMUP, "N", 0, "Steps before the measured ones", 1},
    {"seed", KEY_SEED, "N", 0, "For initial values and the choice of samples; default 1234", 1},
    {"optimizer", KEY_OPTIMIZER, "NAME", 0, "adamw (default) or sgd (with momentum)", 1},
    {"data", KEY_DATA, "FILE...", 0,
     "Text to train on, any files; default: the licences in /usr/share/common-licenses, or a text "
     "built into the program",
     1},
    {"scatter", KEY_SCATTER, "HOW", 0, "even (default), chunk, sizes=A,B,..., weights=A,B,...", 1},
    {"micro-batches", KEY_MICRO_BATCHES, "N", 0,
     "Parts that a step cuts the batch into and computes one after the other; default 1", 1},
    {"recompute", KEY_RECOMPUTE, "WHAT", 0,
     "none (default), every=K, sqrt, all, cheap, or a peak per device such as 64MiB: the cheapest "
     "policy that stays below it",
     1},
    {"keep-outputs", KEY_KEEP_OUTPUTS, NULL, 0,
     "Keep the outputs: the gradient of the loss gets its own memory", 1},
    {"no-keep-outputs", KEY_NO_KEEP_OUTPUTS, NULL, 0,
     "Let the gradient of the loss overwrite the outputs, as all presets except lm-40k and fcn50 "
     "do",
     1},
    {"trace", KEY_TRACE, "FILE", 0,
     "Write what every device did in the measured steps, for Perfetto; memory and step, with one "
     "of --modes and one of --devices",
     1},
    {"snapshot", KEY_SNAPSHOT, "FILE", 0,
     "Write which module holds which memory during one step after the measured ones, or when "
     "memory ran out, for PyTorch's memory_viz (FILE.json: as JSON); restricted like --trace",
     1},
    {"loss", KEY_LOSS, "HOW", 0,
     "whole (default), or fused: head and loss computed together over blocks of rows, so that no "
     "outputs are kept",
     1},
    {NULL, 0, NULL, 0, NULL, 0}};

static const struct argp_option memory_options[] = {
    {"fail-above", KEY_FAIL_ABOVE, "RATIO", 0,
     "Exit with 4 if the largest peak is above RATIO "
     "times the mean in mode balanced, replicated or sharded",
     0},
    {"timeline", KEY_TIMELINE, "FILE", 0, "Write device 0's memory over time as CSV", 0},
    {NULL, 0, NULL, 0, NULL, 0}};

static const struct argp_option fit_options[] = {{"measure", KEY_MEASURE, "N", OPTION_ARG_OPTIONAL,
                                                  "Also train with the best N; default 4", 0},
                                                 {NULL, 0, NULL, 0, NULL, 0}};

static const struct argp_option world_options[] = {
    {"world", KEY_WORLD, "PxD", 0,
     "Plan for the first of P processes with D devices each, such as 16x8; --batch is that of all",
     0},
    {"link", KEY_LINK, "RATE[,LATENCY]", 0,
     "What a process sends to the others in a second, and how long a byte takes: 25GB/s,5us or "
     "100Gbit/s; for the predicted time",
     0},
    {NULL, 0, NULL, 0, NULL, 0}};

static const struct argp_option output_options[] = {
    {"output", 'o', "FORMAT", 0, "table (default), md, csv or json, to standard output", 0},
    {"wide", KEY_WIDE, NULL, 0,
     "Print all columns of a table even if it is wider than the terminal; always so if standard "
     "output is not a terminal and COLUMNS is not set",
     0},
    {"report", KEY_REPORT, "FILE", 0,
     "Also write a page with charts (HTML) to FILE", 0},
    {"export-json", KEY_EXPORT_JSON, "FILE", 0, "Also write JSON to FILE", 0},
    {"export-csv", KEY_EXPORT_CSV, "FILE", 0, "Also write CSV to FILE", 0},
    {"quiet", 'q', NULL, 0, "No progress bar and no notes", 0},
    {NULL, 'h', NULL, OPTION_HIDDEN, NULL, 0},
    {NULL, 0, NULL, 0, NULL, 0}};

/* argp_error() does not come back. */
static void read_shape_flag(struct reading *reading, size_t index, const char *text,
                            struct argp_state *state) {
  const struct shape_flag *flag = &shape_flags[index];
  int64_t value;
  if (!parse_whole(&value, text, flag->least, flag->most)) {
    argp_error(state, "--%s must be a whole number from %lld to %lld, not \"%s\"", flag->name,
               (long long)flag->least, (long long)flag->most, text);
  }
  memcpy((char *)&reading->options->shape + flag->offset, &value, sizeof value);
  reading->said[index] = true;
}

static void read_keep(struct reading *reading, bool keep) {
  reading->options->shape.keep_outputs = keep;
  reading->said_keep = true;
}

static void add_data(struct options *options, const char *path) {
  options->data = need_more(options->data, options->data_count + 1, sizeof *options->data);
  options->data[options->data_count++] = path;
}

static void add_devices(struct options *options, const char *spec, struct argp_state *state) {
  if (options->spec_count == BENCH_SPECS) argp_error(state, "too many --devices");
  if (options->spec_count == 1 && options->command != COMMAND_STEP) {
    argp_error(state, "only the subcommand step takes several --devices");
  }
  options->specs[options->spec_count++] = spec;
}

static void read_gradients(struct options *options, const char *text, struct argp_state *state) {
  for (enum precision i = PRECISION_F32; i < BENCH_PRECISIONS; i++) {
    if (i == PRECISION_TF32 || strcmp(text, precision_text(i)) != 0) continue;
    options->gradients = i;
    return;
  }
  static const char *const words[] = {"f32", "bf16", "f16", NULL};
  refuse_word(state, "--gradient-type", "type", text, words);
}

static void read_rule(struct options *options, const char *text, struct argp_state *state) {
  if (strcmp(text, "adamw") == 0) {
    options->rule = RULE_ADAMW;
  } else if (strcmp(text, "sgd") == 0) {
    options->rule = RULE_SGD;
  } else {
    static const char *const words[] = {"adamw", "sgd", NULL};
    refuse_word(state, "--optimizer", "optimizer", text, words);
  }
}

static void read_loss(struct options *options, const char *text, struct argp_state *state) {
  if (strcmp(text, "whole") != 0 && strcmp(text, "fused") != 0) {
    static const char *const words[] = {"whole", "fused", NULL};
    refuse_word(state, "--loss", "loss", text, words);
  }
  options->fused_loss = strcmp(text, "fused") == 0;
}

static error_t parse_training(int key, char *text, struct argp_state *state) {
  struct reading *reading = state->input;
  struct options *options = reading->options;
  int64_t whole;
  if (key >= KEY_LAYERS && key < KEY_LAYERS + SHAPE_FLAGS) {
    read_shape_flag(reading, (size_t)(key - KEY_LAYERS), text, state);
    return 0;
  }
  switch (key) {
  case KEY_PRESET: options->preset = text; return 0;
  case KEY_DEVICES: add_devices(options, text, state); return 0;
  case KEY_MODES: reading->modes_text = text; return 0;
  case KEY_TRACE: options->trace = text; return 0;
  case KEY_SNAPSHOT: options->snapshot = text; return 0;
  case KEY_OPTIMIZER: read_rule(options, text, state); return 0;
  case KEY_LOSS: read_loss(options, text, state); return 0;
  case KEY_GRADIENT_TYPE: read_gradients(options, text, state); return 0;
  case KEY_DATA: add_data(options, text); return 0;
  case KEY_KEEP_OUTPUTS: read_keep(reading, true); return 0;
  case KEY_NO_KEEP_OUTPUTS: read_keep(reading, false); return 0;
  case KEY_PRECISION:
  case KEY_TF32:
    if (reading->precision_text != NULL) argp_error(state, "give either --precision or --tf32, and "
                                                           "only once");
    reading->precision_text = key == KEY_TF32 ? "tf32" : text;
    return 0;
  case KEY_BUCKET_BYTES:
    if (!parse_whole(&whole, text, 0, INT64_MAX)) {
      argp_error(state, "--bucket-bytes must be a whole number from 0 on, not \"%s\"", text);
    }
    options->bucket_bytes = (size_t)whole;
    return 0;
  case KEY_DETERMINISTIC: options->deterministic = true; return 0;
  case KEY_REPRODUCIBLE:
    if (!parse_whole(&whole, text == NULL ? "8" : text, 1, 256)) {
      argp_error(state, "--reproducible must be a whole number from 1 to 256, not \"%s\"", text);
    }
    options->reproducible = (size_t)whole;
    return 0;
  case KEY_THREADS:
    if (!parse_whole(&whole, text, 0, 1024)) {
      argp_error(state, "--threads must be a whole number from 0 to 1024, not \"%s\"", text);
    }
    options->threads = (int)whole;
    return 0;
  case KEY_SEED:
    if (!parse_seed(&options->seed, text)) argp_error(state, "--seed: \"%s\" is not a number from "
                                                             "0 to 2^64 - 1", text);
    return 0;
  case KEY_SCATTER:
    if (!parse_scatter(&options->scatter, text)) {
      static const char *const words[] = {"even", "chunk", "sizes=A,B,...", "weights=A,B,...",
                                          NULL};
      refuse_word(state, "--scatter", "scatter", text, words);
    }
    options->scatter_text = text;
    return 0;
  case KEY_RECOMPUTE:
    if (ek_recompute_parse(&options->shape.recompute, text) != EK_OK) {
      if (strncmp(text, "every=", 6) == 0) argp_error(state, "--%s", ek_error_message());
      static const char *const words[] = {"none", "every=K", "sqrt",           "all",
                                          "cheap", "a size such as 64MiB", NULL};
      refuse_word(state, "--recompute", "policy", text, words);
    }
    options->recompute_text = text;
    return 0;
  case ARGP_KEY_ARG:
    /* So that --data *.txt works: words after the flags are more files. */
    if (options->data_count == 0)
      argp_error(state, "unexpected argument \"%s\"; files are named after --data", text);
    add_data(options, text);
    return 0;
  case ARGP_KEY_END: finish_training(reading, state); return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

/* The last of several counts. */
static void set_output(struct output **output, const char *path) {
  output_free(*output);
  *output = output_create(path);
}

static error_t parse_memory(int key, char *text, struct argp_state *state) {
  struct options *options = ((struct reading *)state->input)->options;
  switch (key) {
  case KEY_FAIL_ABOVE:
    if (!parse_real(&options->fail_above, text, 0, 1e6)) {
      argp_error(state, "--fail-above must be a ratio such as 1.05, not \"%s\"", text);
    }
    return 0;
  case KEY_TIMELINE: set_output(&options->timeline, text); return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

static error_t parse_fit(int key, char *text, struct argp_state *state) {
  struct options *options = ((struct reading *)state->input)->options;
  if (key != KEY_MEASURE) return ARGP_ERR_UNKNOWN;
  if (!parse_whole(&options->measure, text == NULL ? "4" : text, 1, 1000)) {
    argp_error(state, "--measure must be a whole number from 1 to 1000, not \"%s\"", text);
  }
  return 0;
}

static error_t parse_world_options(int key, char *text, struct argp_state *state) {
  struct options *options = ((struct reading *)state->input)->options;
  switch (key) {
  case KEY_WORLD:
    if (!parse_world(&options->processes, &options->world_devices, text)) {
      argp_error(state,
                 "--world must be processes x devices of each, such as 16x8, at most 2^20 devices "
                 "in all, not \"%s\"",
                 text);
    }
    options->world_text = text;
    return 0;
  case KEY_LINK:
    if (!parse_link(&options->link_bytes, &options->link_seconds, text)) {
      argp_error(state,
                 "--link must be a rate and, after a comma, a latency, such as 25GB/s,5us or "
                 "100Gbit/s, not \"%s\"",
                 text);
    }
    options->link_text = text;
    return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

static error_t parse_output(int key, char *text, struct argp_state *state) {
  static const char *const formats[] = {"table", "md", "csv", "json", NULL};
  struct options *options = ((struct reading *)state->input)->options;
  switch (key) {
  case 'o':
    for (size_t i = 0; formats[i] != NULL; i++) {
      if (strcmp(text, formats[i]) == 0) {
        options->format = (enum format)i;
        return 0;
      }
    }
    refuse_word(state, "-o", "format", text, formats);
    return 0;
  case 'q': options->quiet = true; return 0;
  case 'h': argp_state_help(state, stdout, ARGP_HELP_STD_HELP); return 0;
  case KEY_WIDE: options->wide = true; return 0;
  case KEY_REPORT: set_output(&options->page, text); return 0;
  case KEY_EXPORT_JSON: set_output(&options->export_json, text); return 0;
  case KEY_EXPORT_CSV: set_output(&options->export_csv, text); return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

static error_t parse_command(int key, char *text, struct argp_state *state);

static const struct argp training_argp = {
    training_options, parse_training, NULL, NULL, NULL, NULL, NULL};
static const struct argp memory_argp = {memory_options, parse_memory, NULL, NULL, NULL, NULL, NULL};
static const struct argp fit_argp = {fit_options, parse_fit, NULL, NULL, NULL, NULL, NULL};
static const struct argp world_argp = {
    world_options, parse_world_options, NULL, NULL, NULL, NULL, NULL};
static const struct argp output_argp = {output_options, parse_output, NULL, NULL, NULL, NULL, NULL};
static const struct argp_child memory_children[] = {{&training_argp, 0, "Training:", 1},
                                                    {&memory_argp, 0, "Memory:", 2},
                                                    {&output_argp, 0, "Output:", 3},
                                                    {NULL, 0, NULL, 0}};
static const struct argp_child fit_children[] = {{&training_argp, 0, "Training:", 1},
                                                 {&fit_argp, 0, "Fit:", 2},
                                                 {&world_argp, 0, "Several processes:", 3},
                                                 {&output_argp, 0, "Output:", 4},
                                                 {NULL, 0, NULL, 0}};
static const struct argp_child plan_children[] = {{&training_argp, 0, "Training:", 1},
                                                  {&world_argp, 0, "Several processes:", 2},
                                                  {&output_argp, 0, "Output:", 3},
                                                  {NULL, 0, NULL, 0}};
static const struct argp_child training_children[] = {
    {&training_argp, 0, "Training:", 1}, {&output_argp, 0, "Output:", 3}, {NULL, 0, NULL, 0}};
static const struct argp_child devices_children[] = {{&output_argp, 0, "Output:", 1},
                                                     {NULL, 0, NULL, 0}};

static const struct argp commands[] = {
    [COMMAND_MEMORY] = {NULL, parse_command, "",
                        "Trains in every mode and shows each device's peak memory by category, how "
                        "uneven the load is, the losses and the speed.",
                        memory_children, NULL, NULL},
    [COMMAND_MAX_BATCH] = {NULL, parse_command, "",
                           "Finds the largest global batch that each mode trains under a cap per "
                           "device, by training, and the prediction of `plan`. The cap is part of "
                           "--devices: cpu:4@64MiB.",
                           training_children, NULL, NULL},
    [COMMAND_STEP] = {NULL, parse_command, "",
                      "Times a training step in every mode on each of the --devices, which may be "
                      "given several times.",
                      training_children, NULL, NULL},
    [COMMAND_TECHNIQUES] =
        {NULL, parse_command, "",
         "Trains with each technique that saves memory and shows the peak of the fullest device "
         "(also as planned), the speed, both as ratios to plain training, and the loss. The "
         "techniques run in turns, --steps times; --modes is sharded by default.",
         training_children, NULL, NULL},
    [COMMAND_FIT] =
        {NULL, parse_command, "",
         "Plans which modes, recomputations, losses and numbers of micro-batches fit the devices, "
         "the fastest first: the peak of the fullest device and the cost of a step relative to the "
         "first choice. With --measure the best few also train, in turns, --steps times.",
         fit_children, NULL, NULL},
    [COMMAND_PLAN] =
        {NULL, parse_command, "",
         "Plans a step of several processes, --world, in every mode that is possible between them, "
         "with the devices of one --devices in each (default plan:D): memory of the fullest device "
         "of the first process, bytes that this process sends, and the time that a model predicts. "
         "Nothing is measured.",
         plan_children, NULL, NULL},
    [COMMAND_DEVICES] = {NULL, parse_command, "", "Lists the devices of this machine.",
                         devices_children, NULL, NULL}};

/* Every child works on the parent's reading. argp puts a parser of its own above the command's, so
 * state->root_argp is not the command's. */
static error_t parse_command(int key, char *text, struct argp_state *state) {
  const struct reading *reading = state->input;
  (void)text;
  if (key != ARGP_KEY_INIT) return ARGP_ERR_UNKNOWN;
  const struct argp_child *children = commands[reading->options->command].children;
  for (size_t i = 0; children[i].argp != NULL; i++) state->child_inputs[i] = state->input;
  return 0;
}

void options_parse(struct options *options, enum command command, int argc, char **argv) {
  memset(options, 0, sizeof *options);
  options->command = command;
  options->preset = preset_at(0)->name;
  options->scatter_text = "even";
  options->recompute_text = "none";
  options->seed = 1234;
  options->fail_above = -1;
  struct reading reading = {.options = options};
  if (argp_parse(&commands[command], argc, argv, 0, NULL, &reading) != 0) exit(EXIT_USAGE);
  static const char *const step_specs[] = {"cpu:1", "cpu:2", "cpu:4"};
  if (options->spec_count == 0) {
    if (command == COMMAND_STEP) {
      memcpy(options->specs, step_specs, sizeof step_specs);
      options->spec_count = 3;
    } else {
      options->specs[0] = command == COMMAND_MAX_BATCH ? "cpu:4@32MiB" : "cpu:4";
      options->spec_count = 1;
    }
  }
}
