/*
 * check_advise.c - what is advised runs, with the peak that was predicted; nothing is advised that
 * does not fit; and what is said when nothing fits.
 */
#include <time.h>

#include "ek_check.h"

enum { STEPS = 3, MOST = 64, MOST_TOKENS = 4096, SHAPES = 20 };

/* A sanitizer sees the same code in one case as in all, and in one layer as in three. */
enum { EVERY = CK_ASAN ? 5 : 1 };

/* ---- a GPT to be advised on ---- */

struct subject {
  ek_gpt_options gpt;
  ek_optimizer *rule;
  ek_data_parallel_model_options model;
  ek_trainer_options trainer;
  ek_group_options group;
  int32_t ids[MOST_TOKENS];
  ek_tensor tokens;
  ek_advise_task task;
};

static ek_status build(void *context, const ek_settings *settings, ek_module **module,
                       ek_criterion **criterion) {
  CK_WITH(ek_gpt_options, gpt, *(const ek_gpt_options *)context, .recompute = settings->recompute,
          .fused_loss = settings->fused_loss);
  EK_TRY(ek_gpt_create(module, &gpt));
  return gpt.fused_loss ? EK_OK : ek_cross_entropy_create(criterion, NULL);
}

/* Is filled where it stays: the task points into it. */
static void subject_open(struct subject *s, int layers, int width, int64_t samples,
                         int64_t sequence, int vocabulary) {
  memset(s, 0, sizeof *s);
  s->gpt = (ek_gpt_options)EK_GPT_OPTIONS_INIT;
  ck_assign(s->gpt, .layers = layers, .width = width, .heads = 2, .sequence = sequence,
            .vocabulary = vocabulary, .logits_bytes = 2048);
  ck_assert_int_le(samples * sequence, MOST_TOKENS);
  for (int64_t i = 0; i < samples * sequence; i++) s->ids[i] = (int32_t)(i * 7 % vocabulary);
  ck_ok(ek_tensor_host(&s->tokens, s->ids, EK_I32, CK_SHAPE(samples, sequence)));
  ck_kept(ek_adamw_create(&s->rule, NULL), s->rule);
  s->group = (ek_group_options)EK_GROUP_OPTIONS_INIT;
  s->group.threads_per_device = 1;
  s->trainer = (ek_trainer_options)EK_TRAINER_OPTIONS_INIT;
  s->model = (ek_data_parallel_model_options)EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  ck_assign(s->trainer, .model = &s->model, .group_options = &s->group);
  s->task = (ek_advise_task)EK_ADVISE_TASK_INIT;
  ck_assign(s->task, .build = build, .context = &s->gpt, .optimizer = s->rule);
  s->task.inputs = s->task.targets = &s->tokens;
  s->task.input_count = s->task.target_count = 1;
  s->task.trainer = &s->trainer;
}

static ek_status open_choice(ek_trainer **trainer, const struct subject *s, const char *devices,
                             const ek_settings *settings) {
  CK_FREED(module) *module = NULL;
  CK_FREED(criterion) *criterion = NULL;
  CK_WITH(ek_data_parallel_model_options, model_options, s->model,
          .precision = settings->precision);
  CK_WITH(ek_trainer_options, options, s->trainer, .model = &model_options,
          .micro_batches = settings->micro_batches);
  ck_ok(ek_data_parallel_model_options_set_mode(&model_options, settings->mode));
  ck_ok(build((void *)(uintptr_t)&s->gpt, settings, &module, &criterion));
  return ek_trainer_open(trainer, devices, module, criterion, s->rule, &options);
}

static const char *describe(const struct subject *s, const char *devices, const ek_advice *advice) {
  char recompute[EK_RECOMPUTE_TEXT];
  return ck_text("seed %" PRIu64 ", %d layers of %d, %d x %d, on %s: %s, %s, %s, %d", ck_seed(),
                 s->gpt.layers, (int)s->gpt.width, (int)s->tokens.shape[0], (int)s->tokens.shape[1],
                 devices, ek_mode_name(advice->settings.mode),
                 ek_recompute_format(recompute, &advice->settings.recompute),
                 advice->settings.fused_loss ? "fused" : "whole",
                 (int)advice->settings.micro_batches);
}

/* Trains with the settings on the devices, and compares the peak. */
static void run_choice(const struct subject *s, const char *devices, const ek_advice *advice) {
  const char *what = describe(s, devices, advice);
  ck_assert(advice->fits && advice->missing_bytes == 0 && advice->seconds > 0);
  CK_GOT(ek_trainer *, trainer, open_choice(&trainer, s, devices, &advice->settings));
  for (int i = 0; i < STEPS; i++) {
    ek_status status = ek_trainer_step(NULL, trainer, &s->tokens, 1, &s->tokens, 1);
    ck_assert_msg(status == EK_OK, "%s: %s", what, ek_error_message());
  }
  uint64_t peak = 0;
  for (size_t k = 0; k < ek_group_size(ek_trainer_group(trainer)); k++) {
    ek_memory_usage usage;
    ck_ok(ek_memory_stats(&usage, ek_group_device(ek_trainer_group(trainer), k)));
    if (k == advice->fullest) ck_assert_uint_eq(usage.peak_bytes, advice->peak_bytes);
    if (usage.peak_bytes > peak) peak = usage.peak_bytes;
  }
  ck_assert_msg(peak == advice->peak_bytes, "%s: %" PRIu64 " bytes, predicted were %" PRIu64, what,
                peak, advice->peak_bytes);
  ck_ok(ek_trainer_close(trainer));
}

/* ---- what is advised runs ---- */

/* The peak of the fastest choice of mode sharded without a cap. */
static uint64_t peak_without_cap(const struct subject *s, const char *devices) {
  ek_advise_task task = s->task;
  size_t count = 0;
  task.modes = UINT64_C(1) << EK_MODE_SHARDED;
  CK_GOT(ek_advice, best, ek_advise(&best, &count, 1, devices, &task));
  ck_assert_uint_gt(count, 1);
  return best.peak_bytes;
}

CK_LOOP(first_choice_runs, SHAPES) {
  struct ck_random random = ck_random_start(100 + (uint64_t)_i);
  if (!ck_part(_i) || _i % EVERY != 0) return;
  const int layers = (int)ck_random_integer(&random, 0, 4);
  const int width = 2 * (int)ck_random_integer(&random, 1, 12);
  const int64_t samples = ck_random_integer(&random, 1, 21);
  const int64_t sequence = ck_random_integer(&random, 1, 16);
  const int vocabulary = (int)ck_random_integer(&random, 2, 200);
  CK_SET_UP(struct subject, s, subject_open(&s, layers, width, samples, sequence, vocabulary));
  const double share = ck_random_uniform(&random, 0.4, 1.2);
  const uint64_t cap = (uint64_t)(share * (double)peak_without_cap(&s, "plan:4"));
  ek_advice choices[2];
  size_t count = 0;
  const char *spec = ck_spec(ck_text("cpu:4@%" PRIu64 "B", cap));
  ek_status status = ek_advise(choices, &count, 1, spec, &s.task);
  if (status == EK_ERR_OUT_OF_MEMORY) { /* then with what it lacks it does */
    ck_assert_uint_eq(count, 1);
    ck_assert(!choices[0].fits && choices[0].missing_bytes > 0);
    spec = ck_spec(ck_text("cpu:4@%" PRIu64 "B", cap + choices[0].missing_bytes));
    status = ek_advise(choices, &count, 1, spec, &s.task);
  }
  ck_ok(status);
  ck_assert_uint_ge(count, 1);
  run_choice(&s, spec, &choices[0]);
}

/* Parts of two sizes, and more of each than are planned; every choice, not only the first. */
CK_LOOP(every_choice_runs, 3) {
  static const struct {
    double share;
    int64_t samples;
    bool debug;
  } cases[] = {{0.55, 22, false}, {0.45, 34, false}, {0.7, 16, true}};
  if (!ck_part(_i) || _i % EVERY != 0) return;
  ek_advice choices[MOST];
  CK_SET_UP(struct subject, s, subject_open(&s, 3, 8, cases[_i].samples, 6, 23));
  s.group.debug_memory = cases[_i].debug;
  const uint64_t cap = (uint64_t)(cases[_i].share * (double)peak_without_cap(&s, "plan:2"));
  const char *spec = ck_spec(ck_text("cpu:2@%" PRIu64 "B", cap));
  CK_GOT(size_t, count, ek_advise(choices, &count, MOST, spec, &s.task));
  ck_assert(count > 1 && count <= MOST);
  bool more = false;
  for (size_t i = 0; i < count; i++) {
    run_choice(&s, spec, &choices[i]);
    more = more || choices[i].settings.micro_batches > 4;
    if (i > 0) ck_assert(choices[i].seconds > 0.998 * choices[i - 1].seconds);
  }
  ck_assert(more || _i != 1);
}

/* ---- what is chosen ---- */

CK_TEST(plenty_of_memory_gives_up_no_speed) {
  ek_advice choices[MOST];
  CK_SET_UP(struct subject, s, subject_open(&s, 2, 8, 6, 4, 11));
  CK_GOT(size_t, count, ek_advise(choices, &count, MOST, "plan:2@1GiB", &s.task));
  for (size_t i = 0; i < count; i++) {
    ck_assert_int_eq(choices[i].settings.recompute.kind, EK_RECOMPUTE_NONE);
    ck_assert_int_eq(choices[i].settings.micro_batches, 1);
  }
  const size_t all = count;
  /* Each mode once with each loss. */
  s.task.modes = UINT64_C(1) << EK_MODE_SHARDED | UINT64_C(1) << EK_MODE_GATHER;
  ck_ok(ek_advise(choices, &count, MOST, "plan:2@1GiB", &s.task));
  ck_assert_uint_eq(count, 4);
  ck_assert_uint_gt(all, count);
  for (size_t i = 0; i < count; i++) {
    const ek_mode mode = choices[i].settings.mode;
    ck_assert(mode == EK_MODE_SHARDED || mode == EK_MODE_GATHER);
  }
  /* How many there are, and the first of them. */
  CK_GOT(ek_advice, first, ek_advise(&first, &count, 1, "plan:2@1GiB", &s.task));
  ck_assert_uint_eq(count, 4);
  ck_assert_uint_eq(first.peak_bytes, choices[0].peak_bytes);
  ck_ok(ek_advise(NULL, &count, 0, "plan:2@1GiB", &s.task));
  ck_assert_uint_eq(count, 4);
}

static double fastest(const struct subject *s, const char *devices, ek_precision precision) {
  ek_advise_task task = s->task;
  size_t count = 0;
  ck_assign(task, .modes = UINT64_C(1) << EK_MODE_SHARDED, .precisions = 1u << precision);
  CK_GOT(ek_advice, best, ek_advise(&best, &count, 1, devices, &task));
  ck_assert_int_eq(best.settings.precision, precision);
  return best.seconds;
}

/*
 * Of two precisions both are advised, and run with the peaks that were predicted. On a GPU 16 bits
 * are predicted to be faster, on a CPU about as fast: its rates are those of products without
 * matrix units, 6 / 5.5 in time, and of half the bytes at 6 / 2.5.
 */
CK_TEST(precisions_are_chosen) {
  enum { MOST_CHOICES = 64 };
  ek_advice choices[MOST_CHOICES];
  size_t count = 0, of[EK_PRECISION_F16 + 1] = {0};
  ek_group *group = ck_open_exactly("cpu:2", 1);
  const unsigned types = ek_device_types(ek_group_device(group, 0));
  ck_ok(ek_group_close(group));
  ck_assert((types & EK_TYPES_BF16) != 0);
  CK_SET_UP(struct subject, s, subject_open(&s, 2, 32, 8, 8, 64));
  s.task.precisions = EK_PRECISIONS_F32 | EK_PRECISIONS_BF16;
  s.task.modes = UINT64_C(1) << EK_MODE_SHARDED | UINT64_C(1) << EK_MODE_FULLY_SHARDED;
  const uint64_t cap = peak_without_cap(&s, "cpu:2") - 4096;
  const char *devices = ck_text("cpu:2@%" PRIu64, cap);
  ck_ok(ek_advise(choices, &count, MOST_CHOICES, devices, &s.task));
  for (size_t i = 0; i < count && i < MOST_CHOICES; i++) {
    of[choices[i].settings.precision]++;
    if (i < 4) run_choice(&s, devices, &choices[i]);
  }
  ck_assert_uint_gt(of[EK_PRECISION_F32], 0);
  ck_assert_uint_gt(of[EK_PRECISION_BF16], 0);
  ck_assert_uint_eq(of[EK_PRECISION_F16], 0);
  const double gpu =
      fastest(&s, "plan-cuda:2", EK_PRECISION_BF16) / fastest(&s, "plan-cuda:2", EK_PRECISION_F32);
  const double cpu =
      fastest(&s, "cpu:2", EK_PRECISION_BF16) / fastest(&s, "cpu:2", EK_PRECISION_F32);
  ck_assert_msg(gpu < 1, "on a GPU %g of f32's time", gpu);
  ck_assert_msg(cpu > 0.9 && cpu < 1.3, "on a CPU %g of f32's time", cpu);
  s.task.precisions = 1u << EK_I32;
  ck_fails(ek_advise(choices, &count, 1, "cpu:2", &s.task), EK_ERR_UNSUPPORTED, "compute in f32");
}

/* In tf32 a GPU is predicted to be between f32 and bf16, with the memory of f32; no choice where
 * products do not round. */
CK_TEST(tf32_is_chosen) {
  ek_advice choices[MOST];
  size_t count = 0, tf32 = 0;
  CK_SET_UP(struct subject, s, subject_open(&s, 2, 32, 8, 8, 64));
  const double own = fastest(&s, "plan-cuda:2", EK_PRECISION_TF32);
  ck_assert(own < fastest(&s, "plan-cuda:2", EK_PRECISION_F32) &&
            own > fastest(&s, "plan-cuda:2", EK_PRECISION_BF16));
  s.task.precisions = EK_PRECISIONS_F32 | EK_PRECISIONS_TF32;
  s.task.modes = UINT64_C(1) << EK_MODE_SHARDED;
  ck_ok(ek_advise(choices, &count, MOST, "plan-cuda:2", &s.task));
  ck_assert_int_eq(choices[0].settings.precision, EK_PRECISION_TF32);
  for (size_t i = 0; i < count; i++) {
    if (choices[i].settings.precision != EK_PRECISION_TF32) continue;
    tf32++;
    bool found = false;
    for (size_t k = 0; k < count; k++) {
      found = found || (choices[k].settings.precision == EK_PRECISION_F32 &&
                        choices[k].settings.fused_loss == choices[i].settings.fused_loss &&
                        choices[k].peak_bytes == choices[i].peak_bytes);
    }
    ck_assert(found);
  }
  ck_assert_uint_eq(2 * tf32, count);
  ck_ok(ek_advise(choices, &count, MOST, "cpu:2@1GiB", &s.task));
  for (size_t i = 0; i < count; i++)
    ck_assert_int_eq(choices[i].settings.precision, EK_PRECISION_F32);
  s.task.precisions = EK_PRECISIONS_TF32;
  ck_fails(ek_advise(choices, &count, MOST, "cpu:2@1GiB", &s.task), EK_ERR_UNSUPPORTED,
           "the devices compute in f32, f64, bf16 and f16");
  ck_assign(s, .task.precisions = 0, .model.precision = EK_PRECISION_TF32);
  ck_ok(ek_advise(choices, &count, MOST, "cpu:2@1GiB", &s.task));
  ck_assert_int_eq(choices[0].settings.precision, EK_PRECISION_TF32);
}

CK_TEST(a_group_is_looked_at_and_left_alone) {
  ek_advice by_name[MOST], by_group[MOST];
  size_t count = 0, same = 0;
  CK_SET_UP(struct subject, s, subject_open(&s, 1, 4, 5, 4, 11));
  ck_ok(ek_advise(by_name, &count, MOST, ck_spec("cpu:2@2MiB"), &s.task));
  ek_group *group = ck_open("cpu:2@2MiB", 1);
  ck_assign(s.trainer, .group_options = NULL, .group = group);
  ck_ok(ek_advise(by_group, &same, MOST, NULL, &s.task));
  ck_assert_uint_eq(count, same);
  for (size_t i = 0; i < count; i++) {
    ck_assert_uint_eq(by_name[i].peak_bytes, by_group[i].peak_bytes);
    ck_assert_int_eq(by_name[i].settings.mode, by_group[i].settings.mode);
    ck_assert(by_name[i].seconds == by_group[i].seconds);
  }
}

/* ---- a model of the program's own ---- */

struct own {
  int calls;
  ek_status status; /* of a whole loss without recomputation */
};

static ek_status build_own(void *context, const ek_settings *settings, ek_module **module,
                           ek_criterion **criterion) {
  static const int64_t widths[] = {3, 5, 2};
  struct own *own = context;
  own->calls++;
  if (settings->fused_loss || settings->recompute.kind != EK_RECOMPUTE_NONE) {
    return ek_error_set(EK_ERR_UNSUPPORTED, "no such form");
  }
  if (own->status != EK_OK) return ek_error_set(own->status, "no model today");
  EK_TRY(ek_mlp_create(module, widths, 3, EK_ACTIVATION_RELU));
  return ek_mean_squared_error_create(criterion, EK_REDUCTION_MEAN);
}

CK_TEST(own_models) {
  static const ek_status failures[] = {EK_ERR_SHAPE, EK_ERR_OUT_OF_MEMORY};
  float numbers[9 * 3] = {0};
  const int64_t x[] = {9, 3}, y[] = {9, 2};
  struct own own = {0, EK_OK};
  ek_advice choices[MOST];
  size_t count = 7;
  CK_GOT(ek_tensor, input, ek_tensor_host(&input, numbers, EK_F32, 2, x));
  CK_GOT(ek_tensor, target, ek_tensor_host(&target, numbers, EK_F32, 2, y));
  CK_OPENED(ek_optimizer *, sgd, ek_sgd_create(&sgd, NULL));
  CK_WITH(ek_advise_task, task, EK_ADVISE_TASK_INIT, .build = build_own, .context = &own,
          .optimizer = sgd, .inputs = &input, .targets = &target);
  task.input_count = task.target_count = 1;
  ck_ok(ek_advise(choices, &count, MOST, "plan:3@1MiB", &task));
  ck_assert_uint_ge(count, 4);
  for (size_t i = 0; i < count; i++) ck_assert(!choices[i].settings.fused_loss);
  for (size_t i = 0; i < 2; i++) {
    own.status = failures[i];
    ek_error_clear();
    ck_assert_int_eq(ek_advise(choices, &count, MOST, "plan:3@1MiB", &task), failures[i]);
    ck_assert_str_eq(ek_error_message(), "no model today");
    ck_assert_uint_eq(count, 0);
  }
  own.status = EK_ERR_UNSUPPORTED;
  ck_fails(ek_advise(choices, &count, MOST, "plan:3@1MiB", &task), EK_ERR_UNSUPPORTED,
           "no model for any of the settings");
}

static ek_status build_nothing(void *context, const ek_settings *settings, ek_module **module,
                               ek_criterion **criterion) {
  (void)context, (void)settings, (void)module, (void)criterion;
  return EK_OK;
}

/* ---- batches of any size ---- */

/* Samples of the fullest device in a step of `parts` micro-batches, one after another. */
static int64_t rows_of_step(int64_t samples, int64_t devices, int64_t parts) {
  int64_t rows = 0;
  for (int64_t i = 0; i < parts; i++) {
    const int64_t size = samples / parts + (i < samples % parts);
    rows += (size + devices - 1) / devices;
  }
  return rows;
}

static int64_t parts_for(int64_t samples, int64_t devices, int64_t rows) {
  return (samples + rows * devices - 1) / (rows * devices);
}

static bool parts_fit(const struct subject *s, const char *devices, const ek_settings *settings,
                      int64_t parts) {
  ek_trainer *trainer = NULL;
  CK_WITH(ek_settings, cut, *settings, .micro_batches = parts);
  ek_status status = open_choice(&trainer, s, devices, &cut);
  for (int i = 0; i < 2 && status == EK_OK; i++) {
    status = ek_trainer_step(NULL, trainer, &s->tokens, 1, &s->tokens, 1);
  }
  ck_assert(status == EK_OK || status == EK_ERR_OUT_OF_MEMORY);
  ck_ok(ek_trainer_close(trainer));
  return status == EK_OK;
}

/*
 * Row by row: the most samples at once that fit, and the next fewer that leave the fullest device
 * less to do in a step. One of the two numbers of micro-batches is advised; true: the second.
 */
static bool is_cut_as_row_by_row(const struct subject *s, const char *spec, int64_t devices,
                                 const ek_settings *settings, const char *what) {
  const int64_t samples = s->tokens.shape[0], advised = settings->micro_batches;
  int64_t rows = (samples + devices - 1) / devices;
  while (!parts_fit(s, spec, settings, parts_for(samples, devices, rows))) {
    rows--;
    ck_assert_int_gt(rows, 0);
  }
  const int64_t fewest = parts_for(samples, devices, rows);
  int64_t evener = rows - 1;
  while (evener > 0 && rows_of_step(samples, devices, parts_for(samples, devices, evener)) >=
                           rows_of_step(samples, devices, fewest)) {
    evener--;
  }
  const int64_t more = evener > 0 ? parts_for(samples, devices, evener) : fewest;
  ck_assert_msg(advised == fewest || advised == more, "%s: not %d or %d", what, (int)fewest,
                (int)more);
  return advised != fewest;
}

CK_TEST(cuts_are_those_of_a_search_row_by_row) {
  struct ck_random random = ck_random_start(300);
  int chosen = 0, evener = 0;
  for (int round = 0; round < 8; round++) {
    struct subject s;
    ek_advice all[MOST];
    size_t count = 0;
    const int64_t devices = ck_random_integer(&random, 2, 5);
    subject_open(&s, 1, 1024, 4, 1024, 11); /* a sample is work, a micro-batch little more */
    s.tokens.shape[0] = ck_random_integer(&random, 20, 200);
    const uint64_t peak = peak_without_cap(&s, ck_text("plan:%d", (int)devices));
    const char *spec = ck_text("plan:%d@%" PRIu64 "B", (int)devices,
                               peak / 64 * (uint64_t)ck_random_integer(&random, 16, 60));
    s.task.modes = UINT64_C(1) << EK_MODE_SHARDED | UINT64_C(1) << EK_MODE_FULLY_SHARDED;
    const ek_status status = ek_advise(all, &count, MOST, spec, &s.task);
    ck_assert(status == EK_OK || status == EK_ERR_OUT_OF_MEMORY);
    for (size_t i = 0; status == EK_OK && i < count; i++, chosen++) {
      const char *what = describe(&s, spec, &all[i]);
      evener += is_cut_as_row_by_row(&s, spec, devices, &all[i].settings, what);
    }
  }
  ck_assert_int_gt(evener, 0);
  ck_assert_int_gt(chosen, evener);
}

/* The values of a batch are not read, so it needs no tokens. The searches take some tenths of a
 * second on an idle processor; one that looked at the samples would take minutes for the first. */
CK_TEST(a_batch_may_have_any_size) {
  size_t count = 0;
  CK_SET_UP(struct subject, s, subject_open(&s, 1, 4, 4, 4, 11));
  s.task.modes = UINT64_C(1) << EK_MODE_SHARDED | UINT64_C(1) << EK_MODE_GATHER;
  const clock_t start = clock();
  s.tokens.shape[0] = (INT64_C(1) << 28) + 1;
  CK_GOT(ek_advice, best, ek_advise(&best, &count, 1, "plan:4@1MiB", &s.task));
  ck_assert_int_gt(best.settings.micro_batches, 1 << 14);
  s.tokens.shape[0] = (INT64_C(1) << 40) + 1;
  ck_ok(ek_advise(&best, &count, 1, "plan:4@1MiB", &s.task));
  const double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
  ck_assert_msg(seconds < 20, "two searches took %.1f s of the processor", seconds);
}

/* One micro-batch of it is more than a device that counts can hold, or than 63 bits. */
CK_TEST(a_batch_may_be_too_large_to_count) {
  static const int64_t sizes[] = {INT64_C(1) << 40, INT64_C(1) << 52};
  ek_advice best;
  size_t count = 0;
  CK_SET_UP(struct subject, s, subject_open(&s, 1, 64, 4, 16, 11));
  s.task.modes = UINT64_C(1) << EK_MODE_SHARDED;
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    s.tokens.shape[0] = sizes[i];
    ck_fails(ek_advise(&best, &count, 1, "plan:2@64KiB", &s.task), EK_ERR_OUT_OF_MEMORY,
             "nothing fits; mode sharded");
    ck_ok(ek_advise(&best, &count, 1, "plan:2@1GiB", &s.task));
    ck_assert(best.fits);
    ck_assert_int_gt(best.settings.micro_batches, 1);
  }
}

/* ---- what is refused, and what fails ---- */

CK_TEST(nothing_fits) {
  ek_advice nearest[2];
  size_t count = 0;
  CK_SET_UP(struct subject, s, subject_open(&s, EVERY > 1 ? 1 : 3, 8, 13, 6, 23));
  ck_fails(ek_advise(nearest, &count, 2, "plan:3@16KiB", &s.task), EK_ERR_OUT_OF_MEMORY,
           "nothing fits; mode ");
  ck_assert_uint_eq(count, 1);
  ck_assert(!nearest[0].fits);
  ck_assert_uint_eq(nearest[0].missing_bytes, nearest[0].peak_bytes - 16 * 1024);
  /* Not with a unit less than it needs, and with what it needs. */
  const uint64_t peak = nearest[0].peak_bytes;
  const char *devices = ck_text("plan:3@%" PRIu64 "B", peak - EK_MEMORY_UNIT);
  ck_fails(ek_advise(nearest, &count, 2, devices, &s.task), EK_ERR_OUT_OF_MEMORY, "short by 256 B");
  ck_ok(ek_advise(nearest, &count, 2, ck_text("plan:3@%" PRIu64 "B", peak), &s.task));
  ck_assert_uint_eq(nearest[0].peak_bytes, peak);
}

CK_TEST(bad_calls) {
  ek_advice choices[2];
  size_t count = 0;
  CK_SET_UP(struct subject, s, subject_open(&s, 1, 4, 4, 4, 11));
  const ek_advise_task good = s.task;
  const ek_tensor tokens = s.tokens;
  ck_invalid(ek_advise(choices, NULL, 2, "plan:2", &s.task), "count is NULL");
  ck_invalid(ek_advise(choices, &count, 2, "plan:2", NULL), "task is NULL");
  ck_invalid(ek_advise(NULL, &count, 2, "plan:2", &s.task), "choices is NULL");
  ck_invalid(ek_advise(choices, &count, 2, NULL, &s.task), "either a string");
  ck_invalid(ek_advise(choices, &count, 2, "plan:0", &s.task), "plan:0");
  ck_bad(s, task.build, NULL, ek_advise(choices, &count, 2, "plan:2", &s.task), "is missing");
  ck_bad(s, task.optimizer, NULL, ek_advise(choices, &count, 2, "plan:2", &s.task), "is missing");
  ck_assign(s, .task = good, .task.targets = NULL);
  ck_invalid(ek_advise(choices, &count, 2, "plan:2", &s.task), "targets is NULL");
  ck_assign(s, .task = good, .task.build = build_nothing);
  ck_invalid(ek_advise(choices, &count, 2, "plan:2", &s.task), "without a module");
  s.task = good;
  ck_bad(s, tokens.shape[0], 0, ek_advise(choices, &count, 2, "plan:2", &s.task), "is empty");
  ck_assign(s, .tokens = tokens, .tokens.type = EK_F32);
  ck_fails(ek_advise(choices, &count, 2, "plan:2", &s.task), EK_ERR_TYPE, "");
  ck_assert_uint_eq(count, 0);
}

/* Memory that fails somewhere: an error, no advice, and nothing is left. */
CK_TEST(host_memory_fails) {
  ek_advice choices[2];
  size_t count = 0;
  CK_SET_UP(struct subject, s, subject_open(&s, 1, 4, 5, 4, 11));
  s.task.modes = UINT64_C(1) << EK_MODE_SHARDED;
  bool failed = true;
  for (uint64_t n = 1; failed; n += 1 + n / (EVERY > 1 ? 2 : 5)) {
    ek_host_memory_fail_at(n);
    const ek_status status = ek_advise(choices, &count, 2, "plan:2@1MiB", &s.task);
    ek_host_memory_fail_at(0);
    failed = status != EK_OK;
    if (!failed) continue;
    ck_assert_int_eq(status, EK_ERR_OUT_OF_MEMORY);
    ck_assert_uint_eq(count, 0);
  }
  ck_assert_uint_eq(count, 2);
}

/* The seconds of a choice whose loss is fused and that recomputes nothing. */
static double fused_seconds(const struct subject *s) {
  ek_advice choices[MOST];
  size_t count = 0, i = 0;
  ck_ok(ek_advise(choices, &count, MOST, "plan:1@1GiB", &s->task));
  while (i < count && i < MOST &&
         !(choices[i].settings.fused_loss && choices[i].settings.micro_batches == 1 &&
           choices[i].settings.recompute.kind == EK_RECOMPUTE_NONE)) {
    i++;
  }
  ck_assert(i < count && i < MOST);
  return choices[i].seconds;
}

/* Each further block of logits costs the same, however many are counted by one. */
CK_TEST(blocks_of_logits_cost_alike) {
  enum { LEAST = 3, BLOCKS = 5, ROWS = 15 * 16, VOCABULARY = 64 };
  double seconds[BLOCKS];
  CK_SET_UP(struct subject, s, subject_open(&s, 1, 8, ROWS / 16, 16, VOCABULARY));
  s.task.modes = 1u << EK_MODE_REPLICATED;
  for (int i = 0; i < BLOCKS; i++) {
    s.gpt.logits_bytes = (uint64_t)ROWS / (uint64_t)(LEAST + i + (i == BLOCKS - 1)) *
                         VOCABULARY * sizeof(float);
    seconds[i] = fused_seconds(&s);
  }
  const double one = seconds[1] - seconds[0]; /* of 3, 4, 5, 6 and 8 blocks */
  ck_assert_double_gt(one, 0);
  for (int i = 2; i < BLOCKS; i++) {
    const double more = i == BLOCKS - 1 ? 2 * one : one;
    ck_assert_double_eq_tol(seconds[i] - seconds[i - 1], more, 1e-6 * one);
  }
}

CK_SUITE("advise")
