/*
 * options.h - the command line.
 */
#ifndef BENCH_OPTIONS_H
#define BENCH_OPTIONS_H

#include "output.h"
#include "parse.h"
#include "presets.h"

/* The program's exit codes. If several apply: 1, 2, 5, 3, 4 in this order. */
enum exit_code {
  EXIT_GOOD = 0,
  EXIT_ERROR = 1,        /* a run-time error */
  EXIT_USAGE = 2,        /* the command line makes no sense */
  EXIT_DISAGREE = 3,     /* modes disagree in loss */
  EXIT_UNEVEN = 4,       /* above --fail-above */
  EXIT_OUT_OF_MEMORY = 5 /* a mode did not fit; fit: nothing does */
};

enum command {
  COMMAND_MEMORY,
  COMMAND_MAX_BATCH,
  COMMAND_STEP,
  COMMAND_TECHNIQUES,
  COMMAND_FIT,
  COMMAND_PLAN,
  COMMAND_DEVICES
};

enum format { FORMAT_TABLE, FORMAT_MARKDOWN, FORMAT_CSV, FORMAT_JSON };

enum rule { RULE_ADAMW, RULE_SGD };

/* The most --devices of one `step`. */
#define BENCH_SPECS 16

struct options {
  enum command command;
  /* what is trained */
  const char *preset;
  struct shape shape;
  ek_mode modes[BENCH_MODES];
  size_t mode_count;
  enum rule rule;
  bool fused_loss;     /* the logits never whole */
  size_t reproducible; /* grains of a batch; 0: off */
  const char *scatter_text, *recompute_text;
  struct scatter scatter;
  uint64_t seed;
  const char **data;
  size_t data_count;
  /* where */
  const char *specs[BENCH_SPECS];
  size_t spec_count;
  int threads; /* of each device; 0: the library divides the cores */
  bool deterministic;
  enum precision precisions[BENCH_PRECISIONS];
  size_t precision_count;
  enum precision gradients; /* that gradients are kept in: f32, bf16 or f16 */
  size_t bucket_bytes;      /* 0: the library's choice */
  /* plan, fit: processes with devices each, 0 where --world is not given; and their link */
  const char *world_text, *link_text;
  int64_t processes, world_devices;
  char world_spec[32]; /* devices of a process, where --devices is not given */
  double link_bytes, link_seconds; /* 0: not given */
  ek_world *world; /* the processes that train together; NULL before options_enter() */
  bool modes_said;
  /* what comes of it */
  int64_t measure;              /* fit: how many of the choices */
  double fail_above;            /* negative: never */
  const char *trace, *snapshot; /* where to; the library writes them whole or not at all */
  struct output *timeline;
  enum format format;
  struct output *export_json, *export_csv, *page;
  bool wide, quiet;
};

/*
 * Reads the arguments of a subcommand; argv[0] is what usage messages call the program. Prints help
 * or a usage error and ends the program where that is called for.
 */
void options_parse(struct options *options, enum command command, int argc, char **argv);
void options_free(struct options *options);

/* Takes the world that the program was started in, a loan. False, after a message, if the command
 * line makes no sense in it. Without a world it is that of one process. */
bool options_enter(struct options *options, ek_world *world);

/* How a group is opened for a run. */
ek_group_options group_options(const struct options *options, int threads);

const char *command_name(enum command command);
const char *rule_name(enum rule rule);
/* "whole" or "fused". */
const char *loss_name(const struct options *options);
/* What follows the rule in a heading: ", fused loss", ", bf16" where that is the only one and not
 * f32, both or nothing. */
const char *precision_name(const struct options *options);

#endif
