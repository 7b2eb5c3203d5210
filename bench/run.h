/*
 * run.h - runs a task from beginning to end and keeps what was seen: losses, seconds, memory.
 */
#ifndef BENCH_RUN_H
#define BENCH_RUN_H

#include "statistics.h"
#include "training.h"

/* What a group is made of. */
struct kind {
  size_t devices;
  int threads;         /* of the first device */
  bool counts_only;    /* backend `plan`: no losses, no seconds */
  bool tf32;           /* products round to TF32 if they are allowed to, or plans say so */
  const char *planner; /* ek_device_planner() */
};
struct kind group_kind(const ek_group *group);

/* Of a world: a process, and a device of any process. */
struct process_figures {
  const char *host; /* the world's */
  int64_t rows;     /* of the last measured step */
  double busy;      /* ek_world_busy() of a measured step, the mean */
};
struct rank_figures {
  int64_t process, rows, peak_bytes; /* rows: of the process */
  char name[32];
};

struct run {
  ek_mode mode;
  enum precision precision;
  const char *spec;
  struct kind kind; /* all zero if the group did not open */
  ek_status status; /* EK_OK, or why it stopped; the figures below are those until then */
  char *message;    /* of a status that is not EK_OK */
  ek_memory_usage usage[BENCH_MAX_DEVICES];
  ek_memory_outside outside[BENCH_MAX_DEVICES]; /* at the end; zeros where there is no GPU */
  double *losses, *seconds;                     /* of the measured steps */
  size_t steps;                                 /* how many there are */
  int64_t skipped_steps;                        /* by the loss scale, also in the warm-up */
  double loss_scale;                            /* of the last step; 1 for none */
  struct split *splits;
  size_t split_count;
  double begun_seconds; /* of a step that is begun before the result of the last is read, the mean;
                         * 0: was not measured */
  ek_memory_event *events; /* device 0's timeline, if it was asked for */
  size_t event_count, events_dropped;
  struct process_figures *processes; /* NULL: the run had one, or did not end */
  struct rank_figures *ranks;        /* their devices, all of them */
  size_t process_count, rank_count;
  struct step_timeline *timeline; /* NULL: none was asked for, or there was no room for it */
};

/* What every device held over one step after the measured ones. */
struct device_timeline {
  double *seconds; /* since the step's beginning; from then on `bytes` are held */
  uint64_t *bytes;
  uint64_t (*categories)[EK_MEMORY_CATEGORIES]; /* which add up to `bytes` */
  size_t count;
};
struct step_timeline {
  struct phases phases; /* in the same seconds */
  struct device_timeline devices[BENCH_MAX_DEVICES];
  size_t dropped; /* events without room; the timeline ends before them */
};

struct run_extras {
  size_t splits;        /* split steps after the measured ones */
  bool begun;           /* as many steps as the measured ones, one begun after the other */
  size_t events;        /* room for events of device 0's timeline; 0: none */
  const char *trace;    /* of the measured steps, written there; NULL: none */
  const char *snapshot; /* of a step after the others, or of a step that ran out of memory */
  bool timeline;        /* a step after the others, and what every device held in it */
};

/*
 * Trains warmup + steps steps in a group of its own. `extras` may be NULL. Says nothing; shows
 * progress. *run is overwritten and to be freed.
 */
void run_task(struct run *run, const struct task *task, const struct run_extras *extras);

/*
 * The same task on devices that only count, as many as `like` had, without a cap: the peaks that a
 * run without limits has.
 */
void run_plan(struct run *run, const struct task *task, const struct run *like);

void run_free(struct run *run);

/* What tables and messages call its mode: "sharded", "sharded, bf16", and "sharded, f32" where
 * other precisions are asked for as well, which name_modes() says before the first. */
void name_modes(const struct options *options);
const char *run_name(const struct run *run);
const char *mode_name(ek_mode mode, enum precision precision);

struct summary run_seconds(const struct run *run);
/* Of the median step; NaN for a run that only counts or that did not end. */
/* "batch 8 x 1024 tokens", "batch 16 x 224 x 224 pixels": of this many rows or pictures. Until the
 * next call. */
const char *batch_text(const struct shape *shape);
const char *speed_text(const struct shape *shape); /* what a second is full of: "tokens/s" */
double run_tokens_per_second(const struct run *run, const struct shape *shape);

/* How even the peaks are. A ratio that makes no sense is NaN. */
struct balance {
  double max_over_mean, max_over_min, first_over_rest;
};
struct balance run_balance(const struct run *run);

#endif
