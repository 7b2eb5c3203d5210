/*
 * session.c - see session.h.
 *
 * What can be wrong with the command line, the data and the folders is found before the first step.
 * A file of --metrics that fails during the run is reported, and the run goes on.
 */
#include "session.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "choice.h"
#include "folders.h"
#include "recipe.h"
#include "terminal.h"

struct session {
  const struct settings *settings;
  ek_world *world;
  ek_group *group;
  ek_optimizer *rule;
  ek_trainer *trainer;
  ek_source *text, *train, *held_out;
  ek_metrics *metrics;
  ek_schedule schedule;
  ek_advice advice;
  int64_t vocabulary, sequence, steps;
  bool counts_only, begun, resumed, metrics_failed;
};

/* ---- what is trained, on what ---- */

static ek_status look_at_model(struct session *it) {
  const struct settings *s = it->settings;
  const ek_recompute none = {EK_RECOMPUTE_NONE, 0, 0};
  ek_module *module = NULL;
  ek_criterion *loss = NULL;
  int64_t longest = 0;
  EK_TRY(recipe_module(&module, &loss, s, &none, false));
  recipe_limits(&it->vocabulary, &longest, module);
  ek_criterion_free(loss);
  ek_module_free(module);
  it->sequence = s->sequence > 0 ? s->sequence : longest > 0 && longest < 1024 ? longest : 1024;
  if (it->vocabulary > 0 && s->document_end >= it->vocabulary) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "--document-end %" PRId64 ": the tokens of %s are 0 to %" PRId64,
                        s->document_end, s->model, it->vocabulary - 1);
  }
  if (longest == 0 || it->sequence <= longest) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT, "--sequence %" PRId64 ": %s takes at most %" PRId64,
                      it->sequence, s->model, longest);
}

/* All GPUs, or the CPU. */
static const char *usual_devices(void) {
  ek_device_description list[64];
  size_t count = 0;
  if (ek_device_list(list, &count, 64) != EK_OK) return "cpu:1";
  for (size_t i = 0; i < count && i < 64; i++) {
    if (list[i].available && strncmp(list[i].name, "cuda", 4) == 0) return "cuda";
  }
  return "cpu:1";
}

static ek_status open_group(struct session *it) {
  const struct settings *s = it->settings;
  ek_group_options options = EK_GROUP_OPTIONS_INIT;
  options.threads_per_device = (int)s->threads;
  options.deterministic = s->reproducible > 0;
  options.world = it->world;
  const char *devices = s->devices != NULL ? s->devices : usual_devices();
  const ek_status status = ek_group_open(&it->group, devices, &options);
  if (status == EK_ERR_INVALID_ARGUMENT) { /* the message has the string, and shows where */
    char message[1024];
    (void)snprintf(message, sizeof message, "%s", ek_error_message());
    return ek_error_set(status, "--devices: %s", message);
  }
  EK_TRY(status);
  it->counts_only = ek_device_counts_only(ek_group_device(it->group, 0));
  return EK_OK;
}

static ek_status open_tokens(ek_source **source, const struct session *it,
                             const struct files *files, bool in_order) {
  ek_tokens_options options = EK_TOKENS_OPTIONS_INIT;
  options.sequence = it->sequence;
  options.vocabulary = it->vocabulary;
  options.raw = it->settings->raw == 1 ? EK_U32 : EK_U16;
  options.document_end = it->settings->document_end;
  options.ignore_after_end = options.document_end >= 0;
  options.seed = (uint64_t)it->settings->seed;
  options.in_order = in_order;
  options.more = files->paths + 1;
  options.more_count = files->count - 1;
  return ek_tokens_open(source, files->paths[0], &options);
}

/* The last samples are held out. */
static ek_status split(struct session *it) {
  const double part = it->settings->validation_split;
  const int64_t all = ek_source_samples(it->text);
  int64_t held = (int64_t)llround(part * (double)all);
  if (held == 0) held = 1;
  if (held >= all) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "--validation-split %g: --data has %" PRId64 " samples, and none is left",
                        part, all);
  }
  EK_TRY(ek_source_part_create(&it->held_out, it->text, all - held, held, NULL));
  return ek_source_part_create(&it->train, it->text, 0, all - held, NULL);
}

static ek_status open_sources(struct session *it) {
  const struct settings *s = it->settings;
  it->steps = s->steps > 0 ? s->steps : 1;
  if (s->data.count == 0) {
    if (it->counts_only) return EK_OK;
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "--data is needed: files of tokens, or patterns such as 'train-*.bin'");
  }
  EK_TRY(open_tokens(&it->text, it, &s->data, false));
  if (s->validation.count > 0) EK_TRY(open_tokens(&it->held_out, it, &s->validation, true));
  if (s->validation_split > 0) EK_TRY(split(it));
  const ek_source *train = it->train != NULL ? it->train : it->text;
  const double rows = (s->epochs > 0 ? s->epochs : 1) * (double)ek_source_samples(train);
  if (s->steps < 0) it->steps = (int64_t)ceil(rows / (double)s->batch);
  return EK_OK;
}

/* ---- the trainer ---- */

struct parts {
  ek_data_parallel_model_options model;
  ek_data_parallel_optimizer_options optimizer;
  ek_loss_scale loss_scale;
};

static void fill_parts(struct parts *parts, const struct session *it) {
  const struct settings *s = it->settings;
  *parts = (struct parts){EK_DATA_PARALLEL_MODEL_OPTIONS_INIT,
                          EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT, EK_LOSS_SCALE_INIT};
  parts->model.seed = (uint64_t)s->seed;
  parts->model.precision = settings_precision(s);
  parts->model.gradient_type = settings_gradient_type(s);
  parts->model.reproducible = (size_t)s->reproducible;
  parts->optimizer.schedule = &it->schedule;
  parts->optimizer.refuse_not_finite = true;
  parts->loss_scale.scale = s->loss_scale;
  if (s->loss_scale > 0) parts->optimizer.loss_scale = &parts->loss_scale;
}

static ek_status choose(struct session *it) {
  struct parts parts;
  fill_parts(&parts, it);
  const struct plan plan = {.settings = it->settings,
                            .group = it->group,
                            .rule = it->rule,
                            .processes = ek_world_processes(it->world),
                            .sequence = it->sequence,
                            .tokens = it->text == NULL ? EK_U16
                                                       : ek_source_tensor_of(it->text, 0)->type,
                            .model = &parts.model,
                            .optimizer = &parts.optimizer};
  return choice_make(&it->advice, &plan);
}

static ek_status open_trainer(struct session *it) {
  const ek_settings *choice = &it->advice.settings;
  struct parts parts;
  ek_trainer_options options = EK_TRAINER_OPTIONS_INIT;
  ek_module *module = NULL;
  ek_criterion *loss = NULL;
  fill_parts(&parts, it);
  EK_TRY(ek_data_parallel_model_options_set_mode(&parts.model, choice->mode));
  parts.model.shard_over = choice->shard_over;
  options.model = &parts.model;
  options.optimizer = &parts.optimizer;
  options.group = it->group;
  options.micro_batches = choice->micro_batches;
  EK_TRY(recipe_module(&module, &loss, it->settings, &choice->recompute, choice->fused_loss));
  const ek_status status = ek_trainer_open(&it->trainer, NULL, module, loss, it->rule, &options);
  ek_criterion_free(loss);
  ek_module_free(module);
  EK_TRY(status);
  return it->settings->from_folder
             ? ek_weights_load(ek_trainer_model(it->trainer), it->settings->model, NULL)
             : EK_OK;
}

/* A run that goes on has the order of samples that it began with. The state is loaded to look at
 * its seed; ek_trainer_run() loads it again. */
static ek_status check_seed(const struct session *it) {
  const struct settings *s = it->settings;
  const int64_t one[] = {1};
  int64_t seed = 0;
  ek_tensor host;
  if (s->save == NULL || s->fresh) return EK_OK;
  const ek_status loaded = ek_trainer_load(NULL, it->trainer, s->save);
  if (loaded == EK_ERR_NOT_FOUND) return EK_OK; /* a new run */
  EK_TRY(loaded);
  EK_TRY(ek_tensor_host(&host, &seed, EK_I64, 1, one));
  EK_TRY(ek_state_read(&host, ek_trainer_model(it->trainer), "run/seed"));
  if (seed == s->seed) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                      "--seed %" PRId64 ": the run in %s began with seed %" PRId64
                      "; expected --seed %" PRId64 ", or another --save folder",
                      s->seed, s->save, seed, seed);
}

/* ---- the run ---- */

/* Of --metrics, once. */
static void record(struct session *it, const ek_run_event *event) {
  const double tokens = (double)it->sequence;
  ek_status status = EK_OK;
  if (it->metrics == NULL || it->metrics_failed) return;
  if (!it->resumed) {
    it->resumed = true;
    status = ek_metrics_resume(it->metrics, (double)(event->position - event->rows) * tokens);
  }
  if (status == EK_OK && !isnan(event->validation)) {
    status = ek_metrics_put(it->metrics, "validation_loss", event->validation);
  }
  if (status == EK_OK) {
    status = ek_metrics_step(it->metrics, event->result, (double)event->rows * tokens);
  }
  if (status == EK_OK) return;
  it->metrics_failed = true;
  say_error("--metrics: %s; the run goes on without", ek_error_message());
}

static bool report(void *context, const ek_run_event *event) {
  struct session *it = context;
  const struct settings *s = it->settings;
  const int64_t every = s->log_every > 0 ? s->log_every : event->steps / 100 + 1;
  char line[160];
  record(it, event);
  if (s->quiet) return true;
  if (event->step % every == 0 || event->step == event->steps || !isnan(event->validation)) {
    progress_clear();
    printf("%s\n", ek_run_line(line, sizeof line, event));
    (void)fflush(stdout); /* what it does not take is said at the end */
  }
  if (event->step < event->steps) {
    progress_show((size_t)event->step, (size_t)event->steps, "loss %.4f, %.0f tokens/s",
                  event->result->loss, event->rows_per_second * (double)it->sequence);
  }
  return true;
}

static int64_t tenth(int64_t said, int64_t steps) {
  return said > 0 ? said : steps < 10 ? 1 : steps / 10;
}

static ek_status take_steps(ek_run_result *result, struct session *it) {
  const struct settings *s = it->settings;
  ek_trainer_run_options options = EK_TRAINER_RUN_OPTIONS_INIT;
  options.batch = s->batch;
  options.validation = it->held_out;
  options.validation_every = it->held_out == NULL ? 0 : tenth(s->validation_every, it->steps);
  options.validation_rows = s->validation_rows;
  options.patience = s->patience;
  options.folder = s->save;
  options.best_folder = s->best;
  options.save_every = s->save == NULL ? 0 : tenth(s->save_every, it->steps);
  options.keep = (size_t)s->keep;
  options.fresh = s->fresh;
  options.report = report;
  options.context = it;
  options.world = it->world;
  it->begun = true;
  progress_run(0, 1);
  ek_source *samples = it->train != NULL ? it->train : it->text;
  const ek_status status = ek_trainer_run(result, it->trainer, samples, it->steps, &options);
  progress_clear();
  return status;
}

static ek_status write_out(struct session *it, const ek_run_result *result) {
  const struct settings *s = it->settings;
  ek_weights_options options = EK_WEIGHTS_OPTIONS_INIT;
  if (s->out == NULL) return EK_OK;
  if (s->best != NULL && !isnan(result->best)) EK_TRY(ek_trainer_load(NULL, it->trainer, s->best));
  options.average = s->ema >= 0;
  EK_TRY(ek_model_to_folder(ek_trainer_model(it->trainer), s->out, &options));
  if (ek_world_process(it->world) != 0 || !s->from_folder) return EK_OK;
  return folders_copy_tokenizer(s->out, s->model);
}

static void say_end(const struct session *it, const ek_run_result *result) {
  const struct settings *s = it->settings;
  if (s->quiet) return;
  if (result->end == EK_RUN_STOPPED) {
    printf("stopped after step %" PRId64 " of %" PRId64 "; %s\n", result->step, it->steps,
           s->save != NULL ? "the same command goes on" : "without --save, no state is kept");
  } else if (result->end == EK_RUN_PATIENCE) {
    printf("no better for %" PRId64 " evaluations: ended after step %" PRId64 "\n", s->patience,
           result->step);
  } else if (result->first >= it->steps) {
    printf("%s has all %" PRId64 " steps already\n", s->save, it->steps);
  }
  if (!isnan(result->best)) {
    printf("least validation loss %.4f, after step %" PRId64 "\n", result->best, result->best_step);
  }
  if (result->step > result->first) {
    printf("%" PRId64 " steps in %.1f s, including %.3f s of waiting for data\n",
           result->step - result->first, result->seconds, result->waited);
  }
}

/* ---- one call ---- */

static void say_begin(const struct session *it) {
  const struct settings *s = it->settings;
  char choice[CHOICE_TEXT], peak[BYTES_TEXT];
  if (s->quiet) return;
  printf("%s on %s%s: %s\n", s->model, ek_group_spec(it->group),
         s->mode < 0 ? ", chosen by fit" : "", choice_text(choice, &it->advice.settings));
  if (it->advice.peak_bytes > 0) {
    printf("planned peak of the fullest device: %s\n", bytes_text(peak, it->advice.peak_bytes));
  }
  if (it->text == NULL) return;
  printf("%" PRId64 " samples of %" PRId64 " tokens",
         ek_source_samples(it->train != NULL ? it->train : it->text), it->sequence);
  if (it->held_out != NULL) printf(", %" PRId64 " to evaluate on", ek_source_samples(it->held_out));
  printf("; %" PRId64 " steps of %" PRId64 "; %s, %s, rate %g\n", it->steps, s->batch,
         rule_at((size_t)s->rule)->name, schedule_at((size_t)s->schedule)->name, recipe_rate(s));
  (void)fflush(stdout);
}

/* On devices that only count. */
static ek_status say_plan(const struct session *it) {
  const ek_advice *advice = &it->advice;
  char peak[BYTES_TEXT], missing[BYTES_TEXT];
  if (advice->fits) {
    if (!it->settings->quiet) printf("it fits\n");
    return EK_OK;
  }
  return ek_error_set(EK_ERR_OUT_OF_MEMORY,
                      "it does not fit: the fullest device needs %s, %s too many",
                      bytes_text(peak, advice->peak_bytes),
                      bytes_text(missing, advice->missing_bytes));
}

static ek_status prepare(struct session *it) {
  const struct settings *s = it->settings;
  EK_TRY(look_at_model(it));
  EK_TRY(open_group(it));
  EK_TRY(open_sources(it));
  if (ek_world_process(it->world) == 0 && !it->counts_only) EK_TRY(folders_check(s));
  EK_TRY(recipe_schedule(&it->schedule, s, it->steps));
  EK_TRY(recipe_rule(&it->rule, s));
  EK_TRY(choose(it));
  say_begin(it);
  if (it->counts_only) return say_plan(it);
  EK_TRY(open_trainer(it));
  EK_TRY(check_seed(it));
  if (s->metrics != NULL) EK_TRY(folders_open_metrics(&it->metrics, it->group, s->metrics));
  return EK_OK;
}

/* Without the name of a function at its beginning. */
static void say_status(void) {
  const char *message = ek_error_message(), *words = strstr(message, ": ");
  say_error("%s", strncmp(message, "ek_", 3) == 0 && words != NULL ? words + 2 : message);
}

static enum exit_code code_of(const struct session *it, ek_status status) {
  if (status == EK_OK) return EXIT_DONE;
  if (status == EK_ERR_OUT_OF_MEMORY) return EXIT_NO_ROOM;
  return status == EK_ERR_INVALID_ARGUMENT && !it->begun ? EXIT_USAGE : EXIT_ERROR;
}

static enum exit_code train(struct session *it) {
  ek_run_result result = {0};
  ek_status status = prepare(it);
  if (status == EK_OK && !it->counts_only) {
    status = take_steps(&result, it);
    if (status == EK_OK) say_end(it, &result);
    /* A run that was stopped goes on from its state; without one, the folder is what is left. */
    const bool ended = result.end != EK_RUN_STOPPED || it->settings->save == NULL;
    if (status == EK_OK && ended) status = write_out(it, &result);
  }
  if (status != EK_OK) say_status();
  enum exit_code code = code_of(it, status);
  if (ek_metrics_close(it->metrics) != EK_OK && !it->metrics_failed) {
    say_error("--metrics: %s", ek_error_message());
    it->metrics_failed = true;
  }
  if (code == EXIT_DONE && it->metrics_failed) code = EXIT_ERROR;
  return code == EXIT_DONE && result.end == EK_RUN_STOPPED ? EXIT_STOPPED : code;
}

enum exit_code session_run(const struct settings *settings, ek_world *world) {
  struct session it = {.settings = settings, .world = world};
  enum exit_code code = train(&it);
  ek_trainer_free(it.trainer);
  ek_optimizer_free(it.rule);
  ek_source_free(it.train);
  ek_source_free(it.held_out);
  ek_source_free(it.text);
  ek_group_free(it.group);
  if (fflush(stdout) == 0 && !ferror(stdout)) return code;
  say_error("standard output: it could not be written");
  return code == EXIT_DONE ? EXIT_ERROR : code;
}
