/*
 * check_trainer_run.c - the loop of a run: interrupted anywhere it takes the steps of the whole
 * run; validation, the best state, patience; several processes; and what goes wrong on the way.
 */
#include "ck_processes.h"

#include <float.h>
#include <unistd.h>

#include "ck_folder.h"

enum { SAMPLES = 37, BATCH = 5, STEPS = 20, GRAINS = 4 };

static const char *folder, *states, *best;

static void make(void) {
  folder = ck_folder();
  states = ck_file(folder, "run");
  best = ck_file(folder, "best");
}

static void clear(void) { ck_assert_int_eq(system(ck_text("rm -rf %s %s", states, best)), 0); }

/* ---- x [2] and the product of its numbers, by the number of the sample ---- */

struct products {
  ek_source base;
  int64_t fails_at; /* a sample that cannot be read, or -1 */
};

static ek_status read_products(const ek_source *self, const ek_source_request *request,
                               ek_tensor *tensors) {
  const struct products *of = (const struct products *)self;
  for (int64_t i = 0; i < request->count; i++) {
    const int64_t sample = request->samples[i];
    float *x = (float *)tensors[0].data + 2 * i;
    if (sample == __atomic_load_n(&of->fails_at, __ATOMIC_RELAXED)) {
      return ek_error_set(EK_ERR_IO, "sample %lld is damaged", (long long)sample);
    }
    x[0] = (float)(sample % 6) / 3 - 1;
    x[1] = (float)(sample / 6) / 3 - 1;
    ((float *)tensors[1].data)[i] = x[0] * x[1];
  }
  return EK_OK;
}

static void free_products(ek_source *self) { free(self); }

static ek_status make_products(ek_source **source) {
  static const ek_source_ops ops = {
      .size = sizeof ops, .kind = "products", .read = read_products, .free = free_products};
  static const ek_source_tensor tensors[] = {{EK_F32, 1, {2}}, {EK_F32, 1, {1}}};
  struct products *made = calloc(1, sizeof *made);
  ek_source_options options = EK_SOURCE_OPTIONS_INIT;
  if (made == NULL) return ek_error_set(EK_ERR_OUT_OF_MEMORY, "no memory");
  made->fails_at = -1;
  ck_assign(options, .samples = SAMPLES, .tensors = tensors, .seed = 4);
  *source = &made->base;
  return ek_source_init(*source, &ops, &options);
}

static ek_source *open_products(void) {
  CK_OPENED(ek_source *, source, make_products(&source));
  return source;
}

/* On devices, or on a group. */
static ek_status make_trainer(ek_trainer **trainer, const char *devices, ek_group *group,
                              double rate) {
  static const int64_t sizes[] = {2, 8, 1};
  CK_FREED(module) *mlp = NULL;
  CK_FREED(criterion) *loss = NULL;
  CK_FREED(optimizer) *adamw = NULL;
  CK_WITH(ek_data_parallel_model_options, model, EK_DATA_PARALLEL_MODEL_OPTIONS_INIT,
          .reproducible = GRAINS);
  CK_WITH(ek_adamw_options, rule, EK_ADAMW_OPTIONS_INIT, .learning_rate = rate);
  CK_WITH(ek_trainer_options, options, EK_TRAINER_OPTIONS_INIT, .model = &model, .group = group,
          .micro_batches = 2);
  EK_TRY(ek_mlp_create(&mlp, sizes, 3, EK_ACTIVATION_GELU));
  EK_TRY(ek_mean_squared_error_create(&loss, EK_REDUCTION_MEAN));
  EK_TRY(ek_adamw_create(&adamw, &rule));
  return ek_trainer_open(trainer, devices, mlp, loss, adamw, &options);
}

static ek_trainer *open_trainer(const char *devices, double rate) {
  CK_OPENED(ek_trainer *, trainer, make_trainer(&trainer, devices, NULL, rate));
  return trainer;
}

/* ---- what a run has told ---- */

struct story {
  int64_t count, stop_at; /* 0: never */
  double losses[STEPS + 1], validations[STEPS + 1];
  int64_t positions[STEPS + 1];
};

static bool hear(void *context, const ek_run_event *event) {
  struct story *story = context;
  char line[160];
  story->count++;
  story->losses[event->step] = event->result->loss;
  story->validations[event->step] = event->validation;
  story->positions[event->step] = event->position;
  return event->steps == STEPS && strstr(ek_run_line(line, sizeof line, event), "loss") != NULL &&
         event->step != story->stop_at;
}

static ek_trainer_run_options options_of(struct story *story) {
  CK_WITH(ek_trainer_run_options, options, EK_TRAINER_RUN_OPTIONS_INIT, .batch = BATCH,
          .report = hear, .context = story);
  return options;
}

static ek_status run_on(ek_run_result *result, const char *devices, ek_source *source,
                        const ek_trainer_run_options *options) {
  return ek_trainer_run(result, open_trainer(devices, 0.05), source, STEPS, options);
}

/* A run from 0 to STEPS without an interruption, and without files. */
static void run_whole(struct story *story, const ek_trainer_run_options *like) {
  ek_run_result result;
  CK_WITH(ek_trainer_run_options, options, *like, .context = story);
  options.folder = options.best_folder = NULL;
  options.save_every = 0;
  ck_ok(run_on(&result, "cpu:2", open_products(), &options));
  ck_assert(result.end == EK_RUN_DONE && result.first == 0 && result.step == STEPS);
  ck_assert(result.position == STEPS * BATCH && story->count == STEPS);
  ck_assert(result.loss == story->losses[STEPS]);
}

/* The whole run's steps, in four pieces on 1 to 4 devices; two pieces are stopped by `report`. */
CK_TEST(an_interrupted_run_takes_the_steps_of_the_whole_run) {
  static const char *const devices[] = {"cpu:3", "cpu:1", "cpu:4", "cpu:2"};
  static const int64_t ends[] = {6, 7, 13, STEPS};
  struct story whole = {0}, pieces = {0};
  ek_source *source = open_products(), *held_out = NULL;
  ck_kept(ek_source_part_create(&held_out, source, 5, 9, NULL), held_out);
  CK_WITH(ek_trainer_run_options, options, options_of(&whole), .validation = held_out,
          .validation_every = 4, .validation_batch = 4, .save_every = 3, .folder = states);
  run_whole(&whole, &options);
  options.context = &pieces;
  for (size_t i = 0; i < 4; i++) {
    ek_run_result result;
    pieces.stop_at = ends[i];
    ck_assign(options, .threads = 1 + i % 2, .ahead = i);
    if (ck_no_files(run_on(&result, devices[i], source, &options))) return;
    ck_assert(result.end == (i < 3 ? EK_RUN_STOPPED : EK_RUN_DONE));
    ck_assert(result.step == ends[i] && result.first == (i == 0 ? 0 : ends[i - 1]));
  }
  ck_assert_int_eq(pieces.count, STEPS);
  for (int64_t step = 1; step <= STEPS; step++) {
    ck_assert(pieces.losses[step] == whole.losses[step]);
    ck_assert(pieces.positions[step] == BATCH * step);
    ck_assert(isnan(whole.validations[step]) == (step % 4 != 0));
    if (step % 4 == 0) ck_assert(pieces.validations[step] == whole.validations[step]);
  }
}

/* The loss over all samples by a forward of the program's own. */
CK_TEST(validation_is_the_loss_over_the_rows_that_are_asked_for) {
  struct story story = {0};
  ek_source *source = open_products();
  ek_trainer *trainer = open_trainer("cpu:3", 0.05);
  CK_WITH(ek_trainer_run_options, options, options_of(&story), .validation = source,
          .validation_rows = 11, .validation_batch = 4 /* 4, 4 and 3 */);
  CK_GOT(ek_run_result, result, ek_trainer_run(&result, trainer, source, STEPS, &options));
  ck_assert(result.best == result.validation && result.best_step == STEPS);
  ck_assert(result.seconds > 0 && result.waited >= 0 && result.waited <= result.seconds);
  float x[11][2], y[11];
  const int64_t x_shape[] = {11, 2}, y_shape[] = {11, 1};
  ek_tensor tensors[2];
  ck_ok(ek_tensor_host(&tensors[0], x, EK_F32, 2, x_shape));
  ck_ok(ek_tensor_host(&tensors[1], y, EK_F32, 2, y_shape));
  ck_ok(ek_source_read(tensors, 2, source, 0, 11));
  CK_GOT(double, loss, ek_trainer_evaluate(&loss, NULL, trainer, &tensors[0], 1, &tensors[1], 1));
  /* Sums of 11 squares in f32, in another order: 11 roundings of each. */
  ck_assert_double_le(fabs(loss - result.validation), 22 * ldexp(loss, -24));
}

/* With a rate of 10 the loss rises after the first validations. */
CK_TEST(patience_ends_a_run_and_the_best_state_stays) {
  struct story story = {0};
  ek_source *source = open_products();
  ek_run_result result, again;
  CK_WITH(ek_trainer_run_options, options, options_of(&story), .validation = source,
          .validation_every = 1, .patience = 3, .folder = states, .best_folder = best);
  ek_trainer *diverges = open_trainer("cpu:2", 10);
  if (ck_no_files(ek_trainer_run(&result, diverges, source, STEPS, &options))) return;
  ck_assert(result.end == EK_RUN_PATIENCE && result.step == result.best_step + 3);
  ck_assert(result.best == story.validations[result.best_step]);
  for (int64_t i = 1; i < 4; i++) ck_assert(story.validations[result.best_step + i] >= result.best);
  ck_assert(story.count == result.step);

  ek_trainer *evaluates = open_trainer("cpu:1", 0);
  CK_GOT(ek_checkpoint_info, info, ek_trainer_load(&info, evaluates, best));
  ck_assert(info.step == result.best_step && info.position == BATCH * result.best_step);

  /* What a run knows of its best survives it: the next validation that is no better ends it. */
  ck_ok(ek_trainer_run(&again, open_trainer("cpu:1", 10), source, STEPS, &options));
  ck_assert(again.end == EK_RUN_PATIENCE && again.best == result.best);
  ck_assert(again.first == result.step && again.best_step == result.best_step);
  ck_assert(again.step == result.step + 1);
}

/* A run without a folder begins anew, and its best step may be before that of the last run. */
CK_TEST(the_best_folder_holds_the_state_of_the_last_run) {
  struct story story = {0};
  ek_source *source = open_products();
  ek_trainer_run_options options = options_of(&story);
  ek_run_result whole, cut;
  ck_assign(options, .validation = source, .validation_every = 1, .best_folder = best);
  if (ck_no_files(run_on(&whole, "cpu:2", source, &options))) return;
  story.stop_at = 2;
  ck_ok(run_on(&cut, "cpu:2", source, &options));
  ck_assert(whole.best_step > 2 && cut.best_step <= 2);
  CK_GOT(ek_checkpoint_info, info, ek_checkpoint_latest(&info, best));
  ck_assert_int_eq(info.step, cut.best_step);
}

/* The validation is made up for, whether steps follow or not, and once. */
CK_LOOP(a_validation_that_fails_comes_later, 2) {
  static const int64_t at[] = {12, STEPS};
  struct story whole = {0}, story = {0};
  ek_source *source = open_products(), *held_out = open_products();
  struct products *products = (struct products *)held_out;
  ek_trainer_run_options options = options_of(&story);
  ek_run_result result, later;
  ck_assign(options, .validation = held_out, .validation_every = at[_i]);
  run_whole(&whole, &options);
  ck_assign(options, .folder = states, .best_folder = best);
  ek_trainer *trainer = open_trainer("cpu:2", 0.05);
  if (ck_no_files(ek_trainer_save(trainer, best, NULL))) return;
  products->fails_at = 1;
  ck_fails(ek_trainer_run(&result, trainer, source, STEPS, &options), EK_ERR_IO,
           "products: sample");
  ck_assert(result.step == at[_i] && isnan(result.validation));
  products->fails_at = -1;
  for (int again = 0; again < 2; again++) {
    ck_ok(ek_trainer_run(&later, open_trainer("cpu:3", 0.05), source, at[_i], &options));
    ck_assert(later.first == at[_i] && later.best == whole.validations[at[_i]]);
    ck_assert(later.best_step == at[_i] && isnan(later.validation) == (again == 1));
  }
  CK_GOT(ek_checkpoint_info, info, ek_checkpoint_latest(&info, best));
  ck_assert_int_eq(info.step, at[_i]);
}

CK_TEST(a_source_that_fails_ends_the_run_and_loses_no_step) {
  struct story whole = {0}, story = {0};
  ek_source *source = open_products();
  struct products *products = (struct products *)source;
  ek_trainer *trainer = open_trainer("cpu:3", 0.05);
  ek_trainer_run_options options = options_of(&story);
  ek_run_result result;
  run_whole(&whole, &options);
  ck_ok(ek_source_at(&products->fails_at, NULL, source, 3 * BATCH + 2));
  options.ahead = 3;
  ck_fails(ek_trainer_run(&result, trainer, source, STEPS, &options), EK_ERR_IO,
           "products: sample");
  ck_assert(result.end == EK_RUN_FAILED && result.step == 3 && result.position == 3 * BATCH);
  ck_assert(story.count == 3 && story.losses[3] == whole.losses[3]);

  /* With a folder, its steps are saved, also those after the last state; the next call goes on. */
  ek_trainer *other = open_trainer("cpu:1", 0.05);
  ck_assign(options, .folder = states, .save_every = 2);
  if (ck_no_files(ek_trainer_save(trainer, best, NULL))) return;
  ck_fails(ek_trainer_run(&result, other, source, STEPS, &options), EK_ERR_IO, "products: sample");
  ck_assert(result.end == EK_RUN_FAILED && result.step == 3);
  __atomic_store_n(&products->fails_at, -1, __ATOMIC_RELAXED);
  ck_ok(ek_trainer_run(&result, trainer, source, STEPS, &options));
  ck_assert(result.first == 3 && result.end == EK_RUN_DONE);
  ck_assert(story.losses[STEPS] == whole.losses[STEPS]);
}

CK_TEST(a_signal_stops_a_run) {
  struct story story = {0};
  CK_WITH(ek_world_options, none, EK_WORLD_OPTIONS_INIT, .source = "none");
  CK_GOT(ek_world *, world, ek_world_open(&world, &none));
  ek_run_result result;
  CK_WITH(ek_trainer_run_options, options, options_of(&story), .world = world);
  ek_world_request_stop(world);
  ck_ok(run_on(&result, "cpu:2", open_products(), &options));
  ck_assert(result.end == EK_RUN_STOPPED && result.step == 0 && isnan(result.loss));
  ck_ok(ek_world_close(world));
}

CK_TEST(a_folder_that_has_a_state_is_not_new) {
  struct story story = {0};
  ek_source *source = open_products();
  ek_run_result result;
  CK_WITH(ek_trainer_run_options, options, options_of(&story), .folder = states, .fresh = true);
  if (ck_no_files(run_on(&result, "cpu:2", source, &options))) return;
  ck_fails(run_on(&result, "cpu:2", source, &options), EK_ERR_STATE, "asks for a new run");
  options.fresh = false;
  story.count = 0;
  ck_ok(run_on(&result, "cpu:2", source, &options));
  ck_assert(story.count == 0 && result.step == STEPS && result.end == EK_RUN_DONE);
}

/* A trainer, and metrics of it in a file. */
static ek_trainer *open_measured(ek_trainer_run_options *options, const char *path) {
  ek_trainer *trainer = open_trainer("cpu:2", 0.05);
  ck_kept(ek_metrics_open(&options->metrics, ek_trainer_group(trainer), NULL, path),
          options->metrics);
  return trainer;
}

/* From where the file has the first text on to the second. */
static const char *found_after(const char *path, const char *first, const char *second) {
  const char *text = ck_read_file(NULL, path);
  ck_assert_ptr_nonnull(text);
  ck_assert_ptr_nonnull(text = strstr(text, first));
  ck_assert_ptr_nonnull(text = strstr(text, second));
  return text + strlen(second);
}

CK_TEST(metrics_have_the_validation_loss) {
  struct story story = {0};
  const char *path = ck_file(folder, "run.jsonl");
  ek_source *source = open_products();
  ek_trainer_run_options options = options_of(&story);
  ek_trainer *trainer = open_measured(&options, path);
  ck_assign(options, .validation = source, .validation_every = 10, .tokens_per_row = 3);
  ck_ok(ek_trainer_run(NULL, trainer, source, STEPS, &options));
  (void)found_after(path, "\"step\": 10,", "\"tokens\": 150,");
  const char *value = found_after(path, "\"step\": 10,", "\"validation_loss\": ");
  ck_assert_double_eq_tol(strtod(value, NULL), story.validations[10], 1e-9);
}

/* A run in several calls; the counts of the metrics are those of one. */
CK_TEST(metrics_count_on_in_the_next_call) {
  struct story story = {0};
  const char *path = ck_file(folder, "calls.jsonl");
  ek_source *source = open_products();
  ek_trainer_run_options options = options_of(&story);
  ek_trainer *trainer = open_measured(&options, path);
  options.folder = states;
  story.stop_at = 3;
  if (ck_no_files(ek_trainer_run(NULL, trainer, source, STEPS, &options))) return;
  ck_ok(ek_trainer_run(NULL, trainer, source, STEPS, &options));
  (void)found_after(path, "\"step\": 20,", "\"tokens\": 100,");
}

/* Whatever allocation fails, the run fails or is whole, and the next one is as if nothing were. */
CK_TEST(no_memory) {
  struct story whole = {0}, story = {0};
  ek_trainer_run_options options = options_of(&story);
  ek_source *source = open_products();
  ek_run_result result;
  run_whole(&whole, &options);
  ck_assign(options, .validation = source, .validation_every = 10);
  uint64_t n = 0;
  for (bool failed = true; failed;) {
    const size_t mark = ck_mark();
    ek_trainer *trainer = open_trainer("cpu:2", 0.05);
    failed = ck_host_fails(&n, ek_trainer_run(&result, trainer, source, STEPS, &options));
    ck_assert(failed == (result.end != EK_RUN_DONE));
    ck_release(mark);
  }
  ck_assert_uint_ge(n, 8);
  ck_assert(story.losses[STEPS] == whole.losses[STEPS]);
}

/* ---- several processes ---- */

static bool hear_loss(void *context, const ek_run_event *event) {
  ck_outcome_add(context, event->result->loss);
  if (!isnan(event->validation)) ck_outcome_add(context, event->validation);
  return true;
}

/* Part "damaged FOLDER": process 1 cannot read one of its rows of the fourth batch, whose
 * micro-batches have 3 and 2 rows: it has the third row. States are saved in the folder. Part "goes
 * on FOLDER" does not fail. After "@N" process P has a folder of its own, number (P + N) % 3. */
static const char damaged_part[] = "damaged ", going_part[] = "goes on ";

/* Where a process saves its states. */
static const char *folder_of(const struct ck_process *process) {
  static char own[CK_FOLDER_SIZE + 24];
  (void)snprintf(own, sizeof own, "%s", process->part + sizeof damaged_part - 1);
  char *shift = strchr(own, '@');
  if (shift != NULL) {
    (void)snprintf(shift, 8, "-%zu", (process->number + (size_t)atoi(shift + 1)) % 3);
  }
  return own;
}

/* What a program's function is given, in a run that fails. */
struct listener {
  struct ck_outcome *outcome;
  ek_trainer *trainer;
};

/* Looks for a state that is not there, and goes on: an error that all processes have, and drop. */
static bool hear_and_look(void *context, const ek_run_event *event) {
  const struct listener *listener = context;
  const ek_status status = ek_trainer_load(NULL, listener->trainer, "no/such/folder");
  return hear_loss(listener->outcome, event) && status == EK_ERR_NOT_FOUND;
}

static ek_status run_part(struct ck_outcome *outcome, const struct ck_process *process,
                          ek_trainer *trainer) {
  CK_FREED(source) *source = NULL;
  ek_run_result result;
  const size_t length = sizeof damaged_part - 1;
  const bool fails = strncmp(process->part, damaged_part, length) == 0;
  const bool saves = fails || strncmp(process->part, going_part, length) == 0;
  const bool damaged = fails && process->number == 1;
  EK_TRY(make_products(&source));
  CK_WITH(ek_trainer_run_options, options, EK_TRAINER_RUN_OPTIONS_INIT, .batch = BATCH,
          .validation = source, .validation_every = 7, .report = hear_loss, .context = outcome);
  struct listener listener = {outcome, trainer};
  if (saves) {
    ck_assign(options, .folder = folder_of(process), .report = hear_and_look, .context = &listener);
  }
  if (damaged) {
    EK_TRY(ek_source_at(&((struct products *)source)->fails_at, NULL, source, 3 * BATCH + 2));
  }
  return ek_trainer_run(&result, trainer, source, STEPS, &options);
}

static void run_in_process(struct ck_outcome *outcome, const struct ck_process *process) {
  ek_group *group = NULL;
  ek_trainer *trainer = NULL;
  ek_status status = ck_process_open(&group, process, 0);
  if (status == EK_OK) status = make_trainer(&trainer, NULL, group, 0.05);
  if (status == EK_OK) status = run_part(outcome, process, trainer);
  (void)ck_went(outcome, status);
  ek_trainer_free(trainer);
  ek_group_free(group);
}

CK_LOOP(processes_take_the_steps_of_one, 2) {
  static const size_t devices[2][3] = {{1, 1, 0}, {1, 2, 1}};
  const struct ck_outcome *alone = ck_processes_alone("run", run_in_process, 2);
  const size_t count = _i == 0 ? 2 : 3;
  ck_assert_uint_eq(alone->count, STEPS + 3);
  const struct ck_outcome *outcomes = ck_processes_done("run", devices[_i], count);
  for (size_t p = 0; p < count; p++) {
    ck_assert_uint_eq(outcomes[p].count, alone->count);
    ck_assert_mem_eq(outcomes[p].numbers, alone->numbers, alone->count * sizeof(double));
  }
}

CK_TEST(a_source_that_fails_in_one_process_ends_the_run_in_all) {
  static const size_t devices[] = {1, 1};
  struct ck_outcome *outcomes = ck_array(CK_PROCESSES, sizeof *outcomes);
  ck_processes_run(outcomes, ck_text("%s%s", damaged_part, states), devices, 2);
  for (size_t p = 0; p < 2; p++) {
    ck_assert_msg(outcomes[p].whole && outcomes[p].status == EK_ERR_IO, "%s", outcomes[p].message);
    ck_assert_msg(strstr(outcomes[p].message, "products: sample") != NULL, "%s",
                  outcomes[p].message);
    ck_assert_uint_eq(outcomes[p].count, 3);
  }
  /* Both have saved their steps: one process goes on. */
  struct story whole = {0}, story = {0};
  ek_trainer_run_options options = options_of(&story);
  ek_run_result result;
  run_whole(&whole, &options);
  options.folder = states;
  if (ck_no_files(run_on(&result, "cpu:3", open_products(), &options))) return;
  ck_assert(result.first == 3 && result.end == EK_RUN_DONE);
  ck_assert(story.losses[4] == whole.losses[4] && story.losses[STEPS] == whole.losses[STEPS]);
}

/* The processes go on on the disks of others; process 0 has none. */
CK_TEST(a_run_goes_on_where_disks_are_not_shared) {
  static const size_t devices[] = {1, 1};
  struct ck_outcome *outcomes = ck_array(CK_PROCESSES, sizeof *outcomes);
  char own[CK_FOLDER_SIZE];
  ck_folder_make(own);
  ck_processes_run(outcomes, ck_text("%s%s/disk@0", damaged_part, own), devices, 2);
  for (size_t p = 0; p < 2; p++) ck_assert_int_eq(outcomes[p].status, EK_ERR_IO);
  ck_processes_run(outcomes, ck_text("%s%s/disk@2", going_part, own), devices, 2);
  ck_assert_int_eq(system(ck_text("rm -r %s", own)), 0);
  if (ck_no_files(outcomes[0].status)) return;
  ck_processes_well(outcomes, 2);
  const struct ck_outcome *alone = ck_processes_alone("run", run_in_process, 2);
  for (size_t p = 0; p < 2; p++) {
    ck_assert_uint_eq(outcomes[p].count, alone->count - 3);
    ck_assert_mem_eq(outcomes[p].numbers, alone->numbers + 3,
                     outcomes[p].count * sizeof alone->numbers[0]);
  }
}

/* ---- what is refused ---- */

CK_TEST(options_that_make_no_sense) {
  struct story story = {0};
  ek_source *source = open_products();
  ek_trainer *trainer = open_trainer("cpu:1", 0.05), *predicts = NULL;
  ek_trainer_run_options good = options_of(&story);
#define BAD(member, value, text)                                                                   \
  ck_bad(good, member, value, ek_trainer_run(NULL, trainer, source, STEPS, &good), text)
  BAD(batch, 0, "steps of 0 rows");
  BAD(validation_every, -1, "must be 0 or more");
  BAD(validation_rows, -1, "must be 0 or more");
  BAD(validation_batch, -1, "must be 0 or more");
  BAD(patience, -1, "must be 0 or more");
  BAD(save_every, -1, "must be 0 or more");
  BAD(patience, 1, "need options.validation");
  BAD(best_folder, "x", "need options.validation");
  BAD(save_every, 1, "need options.folder");
  BAD(fresh, true, "need options.folder");
  BAD(threads, 0, "0 threads");
  BAD(tokens_per_row, NAN, "tokens_per_row is nan");
  ck_assign(good, .validation = source, .folder = "same");
  BAD(best_folder, "same", "are the same");
#undef BAD
  ck_invalid(ek_trainer_run(NULL, trainer, source, -1, &good), "-1 steps");
  ck_invalid(ek_trainer_run(NULL, NULL, source, 1, &good), "trainer is NULL");
  ck_invalid(ek_trainer_run(NULL, trainer, NULL, 1, &good), "source is NULL");
  ck_invalid(ek_trainer_run(NULL, trainer, source, 1, NULL), "options is NULL");
  CK_SCOPED(ek_module *, mlp, ek_linear_create(&mlp, 2, 1, true));
  ck_kept(ek_trainer_open(&predicts, "cpu:1", mlp, NULL, NULL, NULL), predicts);
  ck_fails(ek_trainer_run(NULL, predicts, source, 1, &good), EK_ERR_STATE, "has no optimizer");
  ck_assert_int_eq(story.count, 0);
}

CK_TEST(lines_for_people) {
  ek_step_result step = {.loss = 2.25};
  ek_run_event event = {.result = &step, .step = 12, .steps = 312, .rows = 8, .rows_per_second = 32,
                        .validation = 2.5};
  char text[160], little[8];
  ck_assert_str_eq(ek_run_line(text, sizeof text, &event),
                   "step 12 of 312, loss 2.2500, validation 2.5000, 32 rows/s, 1:15 left");
  ck_assign(event, .validation = NAN, .step = 312);
  step.skipped = true;
  ck_assert_str_eq(ek_run_line(text, sizeof text, &event),
                   "step 312 of 312, loss 2.2500 (skipped), 32 rows/s");
  ck_assert_str_eq(ek_run_line(little, sizeof little, &event), "step 31");
  char longest[200];
  step.loss = -DBL_MAX;
  ck_assign(event, .step = INT64_MAX - 1, .steps = INT64_MAX, .validation = -DBL_MAX, .rows = 1,
            .rows_per_second = DBL_MAX);
  ck_assert_uint_le(strlen(ek_run_line(longest, sizeof longest, &event)), 159);
  ck_assert_ptr_nonnull(strstr(longest, "loss -1.7977e+308 (skipped), validation -1.7977e+308, "));
  ck_assert_str_eq(ek_run_line(text, sizeof text, NULL), "");
  ck_assert_ptr_null(ek_run_line(NULL, 0, &event));
}

static const struct ck_part parts[] = {{"run", run_in_process}, {NULL, run_in_process}};

CK_PARTS_SUITE_WITH("trainer_run", parts, make, clear)
