/*
 * trainer_run.c - the loop of a training run over a source.
 *
 * What a state keeps for the run besides the trainer's own is one extra, "run": the steps, the
 * least validation loss, its step, and the number n of validations since. It is kept as -1 - n if
 * the validation after the last step has failed and is still to come.
 *
 * It uses public functions, except for two things in a world of several processes: one of them
 * shares what it has read of a state, and a failure in one process, such as that of its source,
 * ends the run in all. Results of steps and evaluations are equal in all processes, so all make the
 * same decisions; a process whose `report` wants to stop asks the world to.
 */
#include <evenkeel/trainer_run.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <evenkeel/safetensors.h>
#include <evenkeel/world.h>

#include "core/error.h"
#include "core/options.h"
#include "device/device_internal.h"
#include "world/world_internal.h"

/* The run's own entry of a state. Numbers that f64 holds exactly. */
enum { KEPT_STEP, KEPT_BEST, KEPT_BEST_STEP, KEPT_SINCE, KEPT };

struct run {
  ek_trainer *trainer;
  ek_world *world; /* of several processes; NULL: there is one */
  ek_world *stops; /* the run ends when this one is asked to stop; or NULL */
  ek_trainer_run_options options;
  ek_data_loader *loader, *held_out;
  ek_run_result result;
  int64_t steps, since; /* the last step; validations since the best */
  bool owes;            /* the validation after the step before, if one is due */
  int64_t saved;        /* the step of the last save; -1: none */
  int64_t rows;         /* trained on in this call */
  double began, kept[KEPT];
};

EK__OPTIONS_INIT(ek_trainer_run_options, EK_TRAINER_RUN_OPTIONS_INIT)

static double seconds_now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* ---- states ---- */

/* only: in the folder of the best state, which holds no other, whichever run saved it. */
static ek_status save(struct run *run, const char *folder, bool only) {
  const int64_t shape[] = {KEPT};
  ek_checkpoint_options options = EK_CHECKPOINT_OPTIONS_INIT;
  ek_checkpoint_extra extra = {.name = "run"};
  run->kept[KEPT_STEP] = (double)run->result.step;
  run->kept[KEPT_BEST] = run->result.best;
  run->kept[KEPT_BEST_STEP] = (double)run->result.best_step;
  run->kept[KEPT_SINCE] = (double)(run->owes ? -1 - run->since : run->since);
  EK_TRY(ek_tensor_host(&extra.value, run->kept, EK_F64, 1, shape));
  options.position = run->result.position;
  options.keep = run->options.keep;
  options.only = only;
  options.extras = &extra;
  options.extra_count = 1;
  return ek_trainer_save_begin(run->trainer, folder, &options);
}

static ek_status save_state(struct run *run) {
  if (run->options.folder == NULL || run->saved == run->result.step) return EK_OK;
  EK_TRY(save(run, run->options.folder, false));
  run->saved = run->result.step;
  return EK_OK;
}

/* The extra of a state, which the first process reads that sees one of its files; a state that
 * another program saved has none. */
static ek_status read_kept(struct run *run, const char *path) {
  const int64_t shape[] = {KEPT};
  const size_t processes = ek_world_processes(run->world);
  ek_safetensors *file = NULL;
  ek_tensor host;
  EK_TRY(ek_tensor_host(&host, run->kept, EK_F64, 1, shape));
  ek_status status = ek_safetensors_open(&file, path);
  if (status == EK_OK && ek_safetensors_find(file, "user/run") != NULL) {
    status = ek_safetensors_read(&host, file, "user/run");
  }
  ek_safetensors_free(file);
  const bool passes = status == EK_ERR_NOT_FOUND || status == EK_ERR_CORRUPT; /* others have it */
  if (processes == 1 || (status != EK_OK && !passes)) return status;
  const int64_t *heard = NULL, own = status == EK_OK;
  size_t first = 0;
  ek__world_lock(run->world);
  status = ek__world_agree_on(run->world, "going on with a run", 0, &own, 1, &heard);
  while (status == EK_OK && first < processes && heard[first * EK__TOPIC_WORDS + 1] == 0) first++;
  ek__world_unlock(run->world);
  EK_TRY(status);
  EK__FAIL_IF(first == processes, EK_ERR_NOT_FOUND, "%s: no process finds this file any more",
              path);
  return ek__world_share_from(run->world, first, run->kept, sizeof run->kept);
}

static ek_status go_on(struct run *run, const ek_checkpoint_info *info) {
  EK__FAIL_IF(run->options.fresh, EK_ERR_STATE,
              "ek_trainer_run: %s has a state, and options.fresh asks for a new run",
              run->options.folder);
  run->kept[KEPT_STEP] = (double)info->step;
  run->kept[KEPT_BEST] = NAN;
  EK_TRY(read_kept(run, info->path));
  run->result.first = run->result.step = (int64_t)run->kept[KEPT_STEP];
  run->result.position = info->position;
  run->result.best = run->kept[KEPT_BEST];
  run->result.best_step = (int64_t)run->kept[KEPT_BEST_STEP];
  run->since = (int64_t)run->kept[KEPT_SINCE];
  run->owes = run->since < 0;
  if (run->owes) run->since = -1 - run->since;
  run->saved = run->result.step;
  if (run->options.metrics == NULL) return EK_OK;
  const ek_status status =
      ek_metrics_resume(run->options.metrics, (double)info->position * run->options.tokens_per_row);
  return status == EK_ERR_STATE ? EK_OK : status; /* they count on from an earlier call's steps */
}

/* ---- validation ---- */

static ek_status evaluate(struct run *run, double *loss) {
  double sum = 0, weights = 0;
  EK_TRY(ek_data_loader_seek(run->held_out, 0));
  for (;;) {
    ek_batch batch;
    double part = 0, weight = 0;
    EK_TRY(ek_data_loader_next(&batch, run->held_out));
    if (batch.rows == 0) break;
    EK_TRY(ek_trainer_evaluate(&part, &weight, run->trainer, batch.inputs, batch.input_count,
                               batch.targets, batch.target_count));
    if (weight > 0) sum += part * weight;
    weights += weight;
  }
  *loss = weights > 0 ? sum / weights : NAN;
  return EK_OK;
}

static bool is_due(int64_t every, const struct run *run) {
  return run->result.step == run->steps || (every > 0 && run->result.step % every == 0);
}

static ek_status validate(struct run *run, double *loss) {
  ek_run_result *r = &run->result;
  *loss = NAN;
  run->owes = run->held_out != NULL && is_due(run->options.validation_every, run);
  if (!run->owes) return EK_OK;
  EK_TRY(evaluate(run, loss));
  run->owes = false;
  r->validation = *loss;
  const bool better = !(*loss >= r->best) && !isnan(*loss);
  run->since = better ? 0 : run->since + 1;
  if (run->options.metrics != NULL) {
    EK_TRY(ek_metrics_put(run->options.metrics, "validation_loss", *loss));
  }
  if (!better) return EK_OK;
  r->best = *loss;
  r->best_step = r->step;
  return run->options.best_folder == NULL ? EK_OK : save(run, run->options.best_folder, true);
}

static ek_status validate_late(struct run *run) {
  double loss = NAN;
  run->saved = -1; /* the state that says so is saved again */
  return validate(run, &loss);
}

/* ---- steps ---- */

static bool tell(struct run *run, const ek_step_result *step, int64_t rows, double validation) {
  const double seconds = seconds_now() - run->began;
  const ek_run_event event = {.result = step,
                              .step = run->result.step,
                              .steps = run->steps,
                              .position = run->result.position,
                              .rows = rows,
                              .seconds = seconds,
                              .rows_per_second = seconds > 0 ? (double)run->rows / seconds : 0,
                              .validation = validation,
                              .best = run->result.best};
  if (run->options.report == NULL || run->options.report(run->options.context, &event)) return true;
  ek_world_request_stop(run->world);
  return ek_world_processes(run->world) > 1; /* then all stop together */
}

static ek_status take_step(struct run *run, bool *more) {
  ek_batch batch;
  ek_step_result step;
  double validation = NAN;
  EK_TRY(ek_data_loader_next(&batch, run->loader));
  EK_TRY(ek_trainer_step(&step, run->trainer, batch.inputs, batch.input_count, batch.targets,
                         batch.target_count));
  run->result.step++;
  run->result.position = batch.next;
  run->result.loss = step.loss;
  run->rows += batch.rows;
  EK_TRY(validate(run, &validation));
  if (run->options.metrics != NULL) {
    EK_TRY(ek_metrics_step(run->options.metrics, &step,
                           (double)batch.rows * run->options.tokens_per_row));
  }
  if (run->options.save_every > 0 && run->result.step % run->options.save_every == 0) {
    EK_TRY(save_state(run));
  }
  *more = tell(run, &step, batch.rows, validation);
  if (ek_world_stop_requested(run->stops)) *more = false;
  return EK_OK;
}

static ek_status take_steps(struct run *run) {
  const int64_t patience = run->options.patience;
  bool more = !ek_world_stop_requested(run->stops);
  run->result.end = more ? EK_RUN_DONE : EK_RUN_STOPPED;
  while (more && run->result.step < run->steps) {
    EK_TRY(take_step(run, &more));
    if (!more) run->result.end = EK_RUN_STOPPED;
    if (!more || patience == 0 || run->since < patience) continue;
    run->result.end = EK_RUN_PATIENCE;
    break;
  }
  if (run->result.end == EK_RUN_STOPPED && run->result.step >= run->steps) {
    run->result.end = EK_RUN_DONE;
  }
  return save_state(run);
}

/* ---- a run ---- */

static ek_status check(const ek_trainer_run_options *o, const ek_trainer *trainer, int64_t steps) {
  EK__FAIL_IF(ek_trainer_optimizer(trainer) == NULL, EK_ERR_STATE,
              "ek_trainer_run: the trainer has no optimizer");
  EK__FAIL_IF(steps < 0 || o->batch <= 0, EK_ERR_INVALID_ARGUMENT,
              "ek_trainer_run: %" PRId64 " steps of %" PRId64
              " rows, expected 0 or more steps, and 1 row or more",
              steps, o->batch);
  EK__FAIL_IF(o->validation_every < 0 || o->validation_rows < 0 || o->validation_batch < 0 ||
                  o->patience < 0 || o->save_every < 0,
              EK_ERR_INVALID_ARGUMENT,
              "ek_trainer_run: validation_every, validation_rows, validation_batch, patience and "
              "save_every must be 0 or more");
  EK__FAIL_IF(o->validation == NULL && (o->patience > 0 || o->best_folder != NULL),
              EK_ERR_INVALID_ARGUMENT,
              "ek_trainer_run: options.patience and options.best_folder need options.validation");
  EK__FAIL_IF(o->folder == NULL && (o->save_every > 0 || o->fresh), EK_ERR_INVALID_ARGUMENT,
              "ek_trainer_run: options.save_every and options.fresh need options.folder");
  EK__FAIL_IF(o->folder != NULL && o->best_folder != NULL && strcmp(o->folder, o->best_folder) == 0,
              EK_ERR_INVALID_ARGUMENT,
              "ek_trainer_run: options.folder and options.best_folder are the same");
  return ek__check_number("ek_trainer_run", "options.tokens_per_row", o->tokens_per_row);
}

static ek_status open_loaders(struct run *run, ek_source *source) {
  const ek_trainer_run_options *o = &run->options;
  ek_data_loader_options options = EK_DATA_LOADER_OPTIONS_INIT;
  options.batch = o->batch;
  options.position = run->result.position;
  options.ahead = o->ahead;
  options.threads = o->threads;
  EK_TRY(ek_data_loader_open(&run->loader, source, run->trainer, &options));
  if (o->validation == NULL) return EK_OK;
  options.batch = o->validation_batch > 0 ? o->validation_batch : o->batch;
  options.position = 0;
  options.end = o->validation_rows > 0 ? o->validation_rows : ek_source_samples(o->validation);
  return ek_data_loader_open(&run->held_out, o->validation, run->trainer, &options);
}

/* A run that has failed, in all processes, keeps the steps that it has taken. The error is that of
 * the run, also if this fails. */
static void save_after_failure(struct run *run) {
  char kept[EK__MESSAGE_SIZE];
  if (run->options.folder == NULL || run->result.step == run->result.first) return;
  ek__error_keep(kept);
  ek_status saved = save_state(run);
  if (saved == EK_OK) saved = ek_trainer_save_end(run->trainer);
  ek__error_restore(kept, saved);
}

static ek_status find_state(struct run *run) {
  ek_checkpoint_info info;
  const ek_status status = ek_trainer_load(&info, run->trainer, run->options.folder);
  if (status == EK_ERR_NOT_FOUND) return EK_OK;
  return status == EK_OK ? go_on(run, &info) : status;
}

static ek_status run_from(struct run *run, ek_source *source) {
  if (run->options.folder != NULL) EK_TRY(find_state(run));
  EK_TRY(open_loaders(run, source));
  if (run->owes) EK_TRY(validate_late(run));
  EK_TRY(take_steps(run));
  return ek_trainer_save_end(run->trainer);
}

static ek_status run_all(struct run *run, ek_source *source) {
  const uint64_t began = ek__world_begin(run->world);
  const ek_status status = ek__world_end(run->world, began, run_from(run, source));
  if (status != EK_OK) save_after_failure(run);
  return status;
}

ek_status ek_trainer_run(ek_run_result *result, ek_trainer *trainer, ek_source *source,
                         int64_t steps, const ek_trainer_run_options *options) {
  struct run run = {.trainer = trainer, .steps = steps, .saved = -1};
  run.options = (ek_trainer_run_options)EK_TRAINER_RUN_OPTIONS_INIT;
  run.result = (ek_run_result){
      .end = EK_RUN_FAILED, .loss = NAN, .validation = NAN, .best = NAN, .best_step = 0};
  EK__NOT_NULL("ek_trainer_run", trainer, source, options);
  EK_TRY(ek__options_read(&run.options, sizeof run.options, options, "ek_trainer_run_options"));
  EK_TRY(check(&run.options, trainer, steps));
  run.world = ek__group_world(ek_trainer_group(trainer));
  run.stops = run.options.world != NULL ? run.options.world : run.world;
  run.began = seconds_now();
  const ek_status status = run_all(&run, source);
  run.result.waited = ek_data_loader_waited(run.loader);
  ek_data_loader_free(run.held_out);
  ek_data_loader_free(run.loader);
  run.result.seconds = seconds_now() - run.began;
  if (status != EK_OK) run.result.end = EK_RUN_FAILED;
  if (result != NULL) *result = run.result;
  return status;
}

/* A number of at most 16 characters. */
static const char *write_number(char text[24], double number, int digits) {
  (void)snprintf(text, 24, fabs(number) < 1e9 || isnan(number) ? "%.*f" : "%.*e", digits, number);
  return text;
}

const char *ek_run_line(char *text, size_t size, const ek_run_event *event) {
  char loss[24], rate[24], number[24], validation[40] = "", left[40] = "";
  if (text == NULL || size == 0) return text;
  text[0] = '\0';
  if (event == NULL) return text;
  if (!isnan(event->validation)) {
    (void)snprintf(validation, sizeof validation, ", validation %s",
                   write_number(number, event->validation, 4));
  }
  if (event->rows_per_second > 0 && event->rows > 0 && event->step < event->steps) {
    const double seconds =
        (double)(event->steps - event->step) * (double)event->rows / event->rows_per_second;
    if (seconds < 1e7) {
      (void)snprintf(left, sizeof left, ", %d:%02d left", (int)seconds / 60, (int)seconds % 60);
    }
  }
  (void)snprintf(text, size, "step %" PRId64 " of %" PRId64 ", loss %s%s%s, %s rows/s%s",
                 event->step, event->steps,
                 write_number(loss, event->result == NULL ? NAN : event->result->loss, 4),
                 event->result != NULL && event->result->skipped ? " (skipped)" : "", validation,
                 write_number(rate, event->rows_per_second, 0), left);
  return text;
}
