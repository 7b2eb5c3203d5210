/*
 * evenkeel-train - trains a language model on files of tokens: a new one, or one from a folder.
 *
 *     evenkeel-train --model gpt2 --data 'train-*.bin' --out model
 *     evenkeel-train --model llama-3.2-1b --data 'notes-*.bin' --save run --out tuned
 *
 * main.c opens the world and takes signals; settings.c reads the flags; recipe.c has the rules,
 * schedules and models by name; choice.c asks for a mode that fits; session.c trains; folders.c
 * looks after what is left on the disk. Everything that it does, a program can do with public
 * functions.
 */
#include <argp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "session.h"
#include "terminal.h"

static void print_version(FILE *stream, struct argp_state *state) {
  (void)state;
  fprintf(stream, "evenkeel-train %s (libevenkeel %s)\n", EK_VERSION_STRING, ek_version_string());
}

static void on_log(void *context, ek_log_level level, const char *line) {
  (void)context;
  (void)level;
  say_error("warning: %s", line);
}

static ek_world *world; /* of the program, for the signals */

static void on_stop(int number) {
  (void)number;
  ek_world_request_stop(world);
}

/* The first signal asks the run to stop; a second one ends the program at once. A signal that is
 * ignored (nohup, a job in the background) stays ignored. */
static void stop_on_signals(void) {
  const int numbers[] = {SIGINT, SIGTERM};
  struct sigaction action, old;
  memset(&action, 0, sizeof action);
  action.sa_handler = on_stop;
  action.sa_flags = (int)(SA_RESETHAND | SA_RESTART);
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
    if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler == SIG_IGN) continue;
    (void)sigaction(numbers[i], &action, NULL);
  }
  (void)signal(SIGPIPE, SIG_IGN); /* a reader that goes away costs no run */
}

/* The processes that were started with this one, of which the first prints. */
static bool enter_world(void) {
  if (ek_world_open(&world, NULL) != EK_OK) {
    say_error("%s", ek_error_message());
    return false;
  }
  stop_on_signals();
  if (ek_world_process(world) == 0) return true;
  terminal_hush();
  return freopen("/dev/null", "w", stdout) != NULL;
}

int main(int argc, char **argv) {
  struct settings settings;
  argp_program_version_hook = print_version;
  argp_err_exit_status = EXIT_USAGE;
  terminal_program = "evenkeel-train";
  settings_parse(&settings, argc, argv);
  terminal_start(settings.quiet);
  ek_log_set(EK_LOG_WARNING, on_log, NULL);
  const enum exit_code code = enter_world() ? session_run(&settings, world) : EXIT_ERROR;
  ek_world_free(world);
  settings_free(&settings);
  return (int)code;
}
