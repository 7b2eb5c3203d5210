/*
 * evenkeel-bench - what data-parallel training costs, device by device.
 *
 *     evenkeel-bench memory      peak memory of each device in every mode
 *     evenkeel-bench max-batch   the largest batch under a cap
 *     evenkeel-bench step        the time of a training step
 *     evenkeel-bench techniques  what each way to use less memory saves and costs
 *     evenkeel-bench fit         which settings fit, the fastest first
 *     evenkeel-bench plan        memory, bytes sent and time of several processes
 *     evenkeel-bench devices     what is there
 *
 * main.c picks the subcommand; options.c reads its flags; run_<command>.c does the work; run.c and
 * training.c train; report*.c writes. docs/benchmark.md describes every flag and figure.
 */
#include <argp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "report.h"
#include "run.h"
#include "terminal.h"

static void print_version(FILE *stream, struct argp_state *state) {
  (void)state;
  fprintf(stream, "evenkeel-bench %s (libevenkeel %s)\n", EK_VERSION_STRING, ek_version_string());
}

static const struct {
  const char *name;
  enum exit_code (*run)(const struct options *options);
} commands[] = {[COMMAND_MEMORY] = {"memory", run_memory},
                [COMMAND_MAX_BATCH] = {"max-batch", run_max_batch},
                [COMMAND_STEP] = {"step", run_step},
                [COMMAND_TECHNIQUES] = {"techniques", run_techniques},
                [COMMAND_FIT] = {"fit", run_fit},
                [COMMAND_PLAN] = {"plan", run_fit},
                [COMMAND_DEVICES] = {"devices", run_devices}};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

/* Where the subcommand stands in argv. */
struct choice {
  enum command command;
  int index;
};

static void refuse(struct argp_state *state, const char *word) {
  const char *words[COMMANDS + 1] = {NULL};
  char message[UNKNOWN_TEXT];
  for (size_t i = 0; i < COMMANDS; i++) words[i] = commands[i].name;
  argp_error(state, "%s", unknown_word(message, "command", word, words));
}

static error_t parse(int key, char *text, struct argp_state *state) {
  struct choice *choice = state->input;
  switch (key) {
  case 'h': argp_state_help(state, stdout, ARGP_HELP_STD_HELP); return 0;
  case ARGP_KEY_ARG:
    for (size_t i = 0; i < COMMANDS; i++) {
      if (strcmp(text, commands[i].name) != 0) continue;
      choice->command = (enum command)i;
      choice->index = state->next - 1;
      state->next = state->argc; /* the rest is the subcommand's */
      return 0;
    }
    refuse(state, text);
    return 0;
  case ARGP_KEY_NO_ARGS: argp_error(state, "which subcommand?"); return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp_option top_options[] = {{NULL, 'h', NULL, OPTION_HIDDEN, NULL, 0},
                                                 {NULL, 0, NULL, 0, NULL, 0}};
static const struct argp top = {
    top_options,
    parse,
    "COMMAND [OPTION...]",
    "Measures data-parallel training: memory, largest batch, speed.\vCommands:\n  memory      peak "
    "memory of each device in every mode, by category\n  max-batch   the largest batch that trains "
    "under a cap per device\n  step        the time of a training step and of its parts\n  "
    "techniques  what each way to use less memory saves and costs\n  fit         which settings "
    "fit, the fastest first\n  plan        memory, bytes sent and predicted time of several "
    "processes\n  devices     the devices of this machine\n\nCOMMAND --help lists its "
    "options.\n\nExit codes: 0 ok, 1 run-time error, 2 usage, 3 the modes disagree in loss, 4 "
    "above --fail-above, 5 out of memory.",
    NULL,
    NULL,
    NULL};

static void on_log(void *context, ek_log_level level, const char *line) {
  (void)context;
  (void)level;
  say_error("warning: %s", line);
}

/* Those that train do it together with the processes that were started with this one. */
static bool trains(enum command command) {
  return command != COMMAND_PLAN && command != COMMAND_DEVICES;
}

static ek_world *world; /* of the program, for the signal */

static void on_stop(int number) {
  (void)number;
  ek_world_request_stop(world);
}

/* One process prints; a signal to any of them stops all after the same step. */
static bool enter_world(struct options *options) {
  if (!trains(options->command)) return true;
  if (ek_world_open(&world, NULL) != EK_OK) {
    say_error("%s", ek_error_message());
    return false;
  }
  if (ek_world_processes(world) > 1) (void)signal(SIGTERM, on_stop);
  if (ek_world_process(world) > 0) terminal_hush();
  return options_enter(options, world);
}

int main(int argc, char **argv) {
  argp_program_version_hook = print_version;
  argp_err_exit_status = EXIT_USAGE;
  output_watch_standard();
  report_prepare();
  struct choice choice = {COMMAND_MEMORY, 0};
  if (argp_parse(&top, argc, argv, ARGP_IN_ORDER, NULL, &choice) != 0) return EXIT_USAGE;

  /* The subcommand's own messages begin with both names. */
  char name[64];
  snprintf(name, sizeof name, "evenkeel-bench %s", commands[choice.command].name);
  argv[choice.index] = name;
  struct options options;
  options_parse(&options, choice.command, argc - choice.index, argv + choice.index);
  name_modes(&options);
  terminal_start(options.quiet);
  ek_log_set(EK_LOG_WARNING, on_log, NULL);
  const enum exit_code code =
      enter_world(&options) ? commands[choice.command].run(&options) : EXIT_ERROR;
  ek_world_free(world);
  options_free(&options);
  return (int)code;
}
