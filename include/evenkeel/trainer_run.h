/*
 * trainer_run.h - the loop of a training run: batches of a source, validation, saved states, going
 * on after an interruption, stopping early.
 *
 *     ek_source *text = NULL, *train = NULL, *held_out = NULL;
 *     ek_tokens_options tokens = EK_TOKENS_OPTIONS_INIT;
 *     ek_trainer_run_options run = EK_TRAINER_RUN_OPTIONS_INIT;
 *     tokens.sequence = 4;
 *     EK_TRY_GOTO(status, ek_tokens_open(&text, "train-*.bin", &tokens), cleanup);
 *     EK_TRY_GOTO(status, ek_source_part_create(&held_out, text, 0, 4, NULL), cleanup);
 *     EK_TRY_GOTO(status, ek_source_part_create(&train, text, 4, 20, NULL), cleanup);
 *     run.batch = 8;
 *     run.validation = held_out;
 *     run.validation_every = 2;
 *     run.folder = "text-run";          // states; a run that finds one there goes on from it
 *     EK_TRY_GOTO(status, ek_trainer_run(NULL, trainer, train, 5, &run), cleanup);
 *   cleanup:
 *     ek_source_free(train);
 *     ek_source_free(held_out);
 *     ek_source_free(text);
 *     return status;
 *
 * The batch of step k, counted from 0, has the `batch` samples of the source from position
 * k * batch on (source.h). A run that was interrupted and goes on, with any number of devices and
 * processes and in any mode, takes the steps that the whole run would have taken, on the samples
 * that it would have had; another batch size goes on at the same sample.
 */
#ifndef EVENKEEL_TRAINER_RUN_H
#define EVENKEEL_TRAINER_RUN_H

#include <evenkeel/data_loader.h>
#include <evenkeel/metrics.h>

EK_BEGIN_DECLARATIONS

/* A step that has ended, for ek_trainer_run_options.report; a loan, like `result` in it. */
typedef struct ek_run_event {
  const ek_step_result *result;
  int64_t step;          /* batches so far, with those before an interruption: 1 after the first */
  int64_t steps;         /* the number with which the run ends */
  int64_t position;      /* of the next sample */
  int64_t rows;          /* of the batch, in all processes */
  double seconds;        /* since the call of ek_trainer_run() */
  double rows_per_second; /* since then, with the time of validation and saves */
  double validation;     /* the loss of a validation after this step; else NaN */
  double best;           /* the least one so far; NaN before the first */
} ek_run_event;

typedef struct ek_trainer_run_options {
  size_t size;
  int64_t batch;  /* rows of a batch, over all devices and processes: above 0 */
  size_t ahead;   /* batches that are read ahead, and threads that read them (data_loader.h) */
  size_t threads;
  /*
   * Validation: the loss over rows of another source after every `validation_every` steps and at
   * the end, in batches of `validation_batch` rows (0: `batch`). NULL: none.
   */
  ek_source *validation;
  int64_t validation_every; /* 0: at the end alone */
  int64_t validation_rows;  /* 0: every sample once; else those at positions 0 to this - 1 */
  int64_t validation_batch;
  int64_t patience; /* stop after this many validations without a new least loss; 0: never */
  /*
   * States (checkpoint.h). `folder` gets one every `save_every` steps (0: none on the way), written
   * in the background, and one when the run ends, is stopped or fails; the last `keep` of them stay
   * (0: all). A run goes on from the last state that it finds there, unless `fresh` is true: then a
   * folder with a state is EK_ERR_STATE. `best_folder` gets the state of the least validation loss
   * and holds one state: that of an earlier run goes when this one saves its first. NULL: none.
   */
  const char *folder, *best_folder;
  int64_t save_every;
  size_t keep;
  bool fresh;
  /* Each step's figures, and "validation_loss" from the first validation on. NULL: none. A row
   * counts as `tokens_per_row` there. Those of an earlier call count on; new ones begin with the
   * rows before an interruption. */
  ek_metrics *metrics;
  double tokens_per_row;
  /* Called after each step, in every process; false stops the run after this step. With several
   * processes all stop, after this step or the next. NULL: none. */
  bool (*report)(void *context, const ek_run_event *event);
  void *context;
  ek_world *world; /* whose ek_world_request_stop() stops the run; NULL: that of the trainer's
                      devices, if it has several processes */
} ek_trainer_run_options;
#define EK_TRAINER_RUN_OPTIONS_INIT                                                                \
  {                                                                                                \
    .size = sizeof(ek_trainer_run_options), .batch = 0, .ahead = 2, .threads = 1,                  \
    .validation = NULL, .validation_every = 0, .validation_rows = 0, .validation_batch = 0,        \
    .patience = 0, .folder = NULL, .best_folder = NULL, .save_every = 0, .keep = 2,                \
    .fresh = false, .metrics = NULL, .tokens_per_row = 1, .report = NULL, .context = NULL,         \
    .world = NULL                                                                                  \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_trainer_run_options_init(ek_trainer_run_options *options,
                                                        size_t size);

/* Why a run has ended. */
typedef enum ek_run_end {
  EK_RUN_DONE = 0,     /* it has taken all steps */
  EK_RUN_STOPPED = 1,  /* `report` or ek_world_request_stop() (world.h) */
  EK_RUN_PATIENCE = 2, /* the validation loss did not fall any more */
  EK_RUN_FAILED = 3    /* ek_trainer_run() has returned an error */
} ek_run_end;

typedef struct ek_run_result {
  ek_run_end end;
  int64_t first, step; /* batches before this call, and with it */
  int64_t position;    /* of the next sample */
  double loss;         /* of the last step; NaN without one */
  double validation;   /* the last; NaN without one */
  double best;         /* the least, and the step after which it was */
  int64_t best_step;
  double seconds; /* that the call took, and those of it that steps waited for their batches */
  double waited;
} ek_run_result;

/*
 * Takes steps until the run has `steps` of them. `result`, which may be NULL, is filled in after an
 * error as well. A run whose state has `steps` steps or more takes none. The loop takes no memory
 * once its sources, saves and validation have what they need.
 *
 * A signal handler stops a run with ek_world_request_stop(). Its world may be one of a single
 * process. The run then ends after the step that is under way, with a saved state.
 *
 * Returns the error of the reading, step, validation, save or metric that fails; the trainer then
 * has the state of the steps before, and so has `folder`, unless this save fails too, which goes to
 * the log. In a world of several processes it fails in all of them. A run that does not fail has
 * waited for its saves. EK_ERR_INVALID_ARGUMENT for options that make no
 * sense; EK_ERR_STATE for `fresh` (above), and without an optimizer.
 */
EK_API EK_CHECKED ek_status ek_trainer_run(ek_run_result *result, ek_trainer *trainer,
                                           ek_source *source, int64_t steps,
                                           const ek_trainer_run_options *options);

/* Writes "step 12 of 300, loss 2.3456, validation 2.4000, 1234 rows/s, 2:05 left" for people, and
 * returns `text`. The longest line has 159 characters. */
EK_API const char *ek_run_line(char *text, size_t size, const ek_run_event *event);

EK_END_DECLARATIONS

#endif /* EVENKEEL_TRAINER_RUN_H */
