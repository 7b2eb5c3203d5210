/*
 * options.c - what the options of a command are called, what they mean for a group, and what a
 * world leaves of them.
 */
#include "options.h"

#include <stdlib.h>
#include <string.h>

#include "terminal.h"

const char *command_name(enum command command) {
  static const char *const names[] = {"memory",     "max-batch", "step",
                                      "techniques", "fit",       "plan",
                                      "devices"};
  return names[command];
}

const char *rule_name(enum rule rule) { return rule == RULE_SGD ? "sgd" : "adamw"; }

const char *loss_name(const struct options *options) {
  return options->fused_loss ? "fused" : "whole";
}

const char *precision_name(const struct options *options) {
  static const char *const names[2][BENCH_PRECISIONS] = {
      {"", ", TF32", ", bf16", ", f16"},
      {", fused loss", ", fused loss, TF32", ", fused loss, bf16", ", fused loss, f16"}};
  const bool one = options->precision_count == 1;
  return names[options->fused_loss][one ? options->precisions[0] : PRECISION_F32];
}

ek_group_options group_options(const struct options *options, int threads) {
  ek_group_options group = EK_GROUP_OPTIONS_INIT;
  group.threads_per_device = threads;
  group.deterministic = options->deterministic || options->reproducible > 0;
  group.world = options->world;
  return group;
}

bool options_enter(struct options *options, ek_world *world) {
  size_t kept = 0;
  options->world = world;
  if (ek_world_processes(world) == 1) return true;
  if (options->command == COMMAND_FIT) {
    say_error("fit plans for several processes in one: start it alone, with --world %zuxD for D "
              "devices in each", ek_world_processes(world));
    return false;
  }
  if (options->scatter.kind != EK_SCATTER_EVEN) {
    say_error("--scatter %s is for the devices of one process; between processes a batch is cut "
              "evenly", options->scatter_text);
    return false;
  }
  for (size_t i = 0; i < options->mode_count; i++) { /* unless they were asked for by name */
    const ek_mode mode = options->modes[i];
    const bool master = mode == EK_MODE_GATHER || mode == EK_MODE_BALANCED;
    if (options->modes_said || !master) options->modes[kept++] = mode;
  }
  options->mode_count = kept;
  return true;
}

void options_free(struct options *options) {
  free(options->data);
  output_free(options->timeline);
  output_free(options->page);
  output_free(options->export_json);
  output_free(options->export_csv);
  memset(options, 0, sizeof *options);
}
