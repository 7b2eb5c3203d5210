/*
 * settings.h - the command line of evenkeel-train.
 */
#ifndef TRAIN_SETTINGS_H
#define TRAIN_SETTINGS_H

#include "parse.h"
#include "presets.h"

/* The program's exit codes. */
enum exit_code {
  EXIT_DONE = 0,
  EXIT_ERROR = 1,   /* a run-time error */
  EXIT_USAGE = 2,   /* the command line makes no sense */
  EXIT_STOPPED = 3, /* by a signal, before the last step */
  EXIT_NO_ROOM = 5  /* the devices do not hold it */
};

/* Words after a flag: files, or patterns of the shell. */
struct files {
  const char **paths;
  size_t count;
};

enum loss_kind { LOSS_WHOLE, LOSS_FUSED };

/* What the flags say. A number that is negative was not said, and has no other value that is. */
struct settings {
  /* the model */
  const char *model; /* as it was given */
  bool from_folder;  /* it is a folder; else `shape` is what to make */
  struct shape shape;
  double dropout;
  /* the data */
  struct files data, validation;
  double validation_split;
  int64_t raw; /* of files without a header: 0 u16, 1 u32 */
  int64_t document_end; /* a token, or -1 */
  int64_t sequence, batch, validation_every, validation_rows;
  /* the run */
  int64_t steps, seed;
  double epochs;
  const char *save, *best, *out, *metrics;
  int64_t save_every, keep, patience, log_every;
  bool fresh, quiet;
  /* the update */
  int64_t rule, schedule; /* of the tables in recipe.h */
  double rate, floor, weight_decay, clip, ema;
  double beta1, beta2, epsilon, momentum, factor;
  bool nesterov;
  int64_t warmup, decay, period;
  double loss_scale;
  /* the devices */
  const char *devices;
  int64_t threads, mode, precision, gradient_type, loss, micro_batches, reproducible;
  const char *recompute_text;
  ek_recompute recompute;
};

/* Reads the arguments. Prints help or a usage error and ends the program where that is called
 * for. */
void settings_parse(struct settings *settings, int argc, char **argv);
void settings_free(struct settings *settings);

ek_precision settings_precision(const struct settings *settings);
ek_type settings_gradient_type(const struct settings *settings); /* 0: that of the parameters */

#endif
