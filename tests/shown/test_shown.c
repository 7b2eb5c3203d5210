/*
 * test_shown.c - the code of README.md, docs/ and the headers, run with every allocation failing.
 *
 * extract.awk makes a file of each piece; here they are included, each in a function of its own,
 * with the variables that it speaks of. check_shown.sh looks that none is left out. Pieces that
 * stand in examples/own_model.c are run there: the example is included as well.
 *
 * Each allocation on a device and on the host fails once. The error must come out, nothing may be
 * held afterwards that was not held before, and the same code must succeed when it is run again.
 *
 * Macros here stand for functions of the library and for `printf`, and hold for every piece, also
 * of the headers shown_modules.h, shown_files.h and how_do_i.h.
 */
#include <stdarg.h>
#include <stdatomic.h>

#define CK_REAL_FREES /* it has frees of its own */
#include "ck_folder.h"
#include "ck_gpt.h"
#include "ck_parent.h"

enum { STEPS_SHOWN = 3, SAMPLES_SHOWN = 5, WIDTH = 3, SEQUENCE = 4, VOCABULARY = 11 };

/* ---- what shown code calls, where it opens and closes a group by itself ---- */

static struct {
  uint64_t fail_at; /* allocation of `device` after opening; 0: none */
  size_t device;
  int open;      /* groups */
  uint64_t held; /* when they were closed */
} opened;

static ek_status open_shown(ek_group **group, const char *spec, const ek_group_options *options) {
  EK_TRY(ek_group_open(group, spec, options));
  opened.open++;
  return ek_memory_fail_at(ek_group_device(*group, opened.device), opened.fail_at);
}

static void close_shown(ek_group *group) {
  if (group == NULL) return;
  opened.open--;
  opened.held += ck_bytes_held(group);
  ek_group_free(group);
}

/* A smaller one than the default, which has 124 million parameters. */
static ek_status create_gpt(ek_module **module, const ek_gpt_options *options) {
  ck_assert_ptr_null(options);
  const ek_gpt_options small = ck_gpt_sizes(VOCABULARY, SEQUENCE, 4, 1, 1);
  return ek_gpt_create(module, &small);
}

/* A trainer opens a group too. */
static ek_status open_trainer_shown(ek_trainer **trainer, const char *spec, ek_module *module,
                                    ek_criterion *criterion, ek_optimizer *optimizer,
                                    const ek_trainer_options *options) {
  ek_trainer_options o = EK_TRAINER_OPTIONS_INIT;
  if (options != NULL) o = *options;
  ek_group_options deterministic = EK_GROUP_OPTIONS_INIT;
  deterministic.deterministic = o.model != NULL && o.model->reproducible > 0;
  EK_TRY(open_shown(&o.group, spec, &deterministic));
  const ek_status status = ek_trainer_open(trainer, NULL, module, criterion, optimizer, &o);
  if (status != EK_OK) close_shown(o.group);
  return status;
}

static void close_trainer_shown(ek_trainer *trainer) {
  ek_group *group = ek_trainer_group(trainer);
  ek_trainer_free(trainer);
  close_shown(group);
}

static void trainer_shown(ek_trainer **trainer) { close_trainer_shown(*trainer); }

/* A trainer that is closed at the end of its block: as CK_FREED(), for what opens a group. */
#define SHOWN_TRAINER __attribute__((cleanup(trainer_shown))) ek_trainer

static int lines;      /* that were printed */
static char line[200]; /* the last of them */

static int print_shown(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int length = vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  lines++;
  return length;
}

/* Plans by the dozen: its calls fail in check_advise.c. */
#include "advise_1.inc"

static void shown_advice(void) {
  int32_t ids[SAMPLES_SHOWN * SEQUENCE] = {0};
  const int64_t shape[] = {SAMPLES_SHOWN, SEQUENCE};
  ek_gpt_options gpt = ck_gpt_sizes(VOCABULARY, SEQUENCE, 1, 1, 1);
  CK_GOT(ek_tensor, tokens, ek_tensor_host(&tokens, ids, EK_I32, 2, shape));
  CK_GOT(ek_optimizer *, adamw, ek_adamw_create(&adamw, NULL));
  CK_GOT(ek_trainer *, trainer, open_best(&trainer, "cpu:2", &gpt, adamw, &tokens, &tokens));
  ck_ok(ek_trainer_step(NULL, trainer, &tokens, 1, &tokens, 1));
  ck_ok(ek_trainer_close(trainer));
  ek_optimizer_free(adamw);
}

#define ek_group_open open_shown
#define ek_group_free close_shown
#define ek_gpt_create create_gpt
#define ek_trainer_open open_trainer_shown
#define ek_trainer_free close_trainer_shown
#undef printf /* with _FORTIFY_SOURCE it may be a macro */
#define printf print_shown
#define SHOWN_REST ((void)0)

/* What is open already, for pieces that speak of it, and a function for one. */
struct scene {
  ek_group *group;
  ek_data_parallel_model *model;
  ek_data_parallel_criterion *criterion;
  ek_data_parallel_optimizer *optimizer;
  ek_module *module;
  ek_criterion *loss;
  ek_optimizer *rule;
  float numbers[STEPS_SHOWN][SAMPLES_SHOWN * WIDTH];
  ek_tensor inputs[STEPS_SHOWN], targets[STEPS_SHOWN];
  ek_trainer *trainer; /* on the same devices, with a model of its own */
};
#define SHOWN(name) static ek_status name(struct scene *s CK_ATTRIBUTE_UNUSED)

/* ---- the pieces ---- */

#define train train_readme
#include "README_1.inc"
#undef train

#define main tutorial_main
#include "evenkeel_1.inc"
#undef main

#define main own_model_main
#include "own_model.c"
#undef main

static ek_status train_longer(const ek_tensor *tokens, const ek_tensor *targets, int steps) {
  double validation = 0;
#include "trainer_1.inc"
}

static int shown_status(void) {
#include "status_1.inc"
  ek_group_free(group);
  return 0;
}

static ek_status shown_message(int columns) {
#include "status_2.inc"
}

static ek_status use(ek_tensor *x) {
  return ek_op_fill(ek_device_stream(x->device, EK_STREAM_COMPUTE), x, 1.0);
}

static ek_status shown_tensor(ek_device *device) {
#include "tensor_1.inc"
}

#if __has_include(<evenkeel/fault.h>)
static ek_status shown_fault(ek_device *device) {
#define step() shown_tensor(device)
#include "fault_1.inc"
#undef step
  return EK_OK;
}
#else
static ek_status shown_fault(ek_device *device) { return shown_tensor(device); }
#endif

#include "shown_modules.h"

/* ---- on what is open already ---- */

static ek_status one_step(double *loss, ek_data_parallel_model *model,
                          ek_data_parallel_criterion *criterion,
                          ek_data_parallel_optimizer *optimizer, const ek_tensor tokens,
                          const ek_tensor targets) {
#include "data_parallel_criterion_1.inc"
}

SHOWN(shown_step) {
  double loss = -1;
  EK_TRY(one_step(&loss, s->model, s->criterion, s->optimizer, s->inputs[0], s->targets[0]));
  ck_assert_double_ge(loss, 0);
  return EK_OK;
}

static ek_status steps_ahead(ek_group *group, ek_data_parallel_model *model,
                             ek_data_parallel_criterion *criterion,
                             ek_data_parallel_optimizer *optimizer, const ek_tensor *inputs,
                             const ek_tensor *targets, int steps) {
#include "data_parallel_model_1.inc"
}

/* with_criterion.h, around the criterion of criterion.h */
static ek_status one_module(ek_group *group, ek_module *model, ek_criterion *criterion,
                            const ek_tensor inputs, const ek_tensor targets) {
  CK_FREED(module) *whole = NULL;
  CK_FREED(data_parallel_model) *m = NULL;
  CK_FREED(data_parallel_criterion) *c = NULL;
  CK_FREED(shards) totals = {0};
  ek_status status;
#include "with_criterion_1.inc"
cleanup:
  return status;
}

SHOWN(shown_whole) {
  CK_FREED(criterion) *criterion = calloc(1, sizeof *criterion);
  ck_assert_ptr_nonnull(criterion);
  ck_ok(ek_criterion_init(criterion, &shown_loss_ops, 1, 1, EK_REDUCTION_MEAN));
  return one_module(s->group, s->module, criterion, s->inputs[0], s->targets[0]);
}

/* linear_cross_entropy.h */
static ek_status run_head(void) {
  const int64_t width = 3, classes = 5, in[] = {4, 3}, out[] = {4};
  float x[12] = {1};
  int32_t y[4] = {0, 4, 2, 2};
  ek_tensor inputs, targets;
  CK_FREED(module) *body = NULL, *whole = NULL;
  CK_FREED(criterion) *head = NULL;
  CK_FREED(optimizer) *adamw = NULL;
  SHOWN_TRAINER *trainer = NULL;
  CK_FREED(shards) logits = {0};
  ek_step_result result;
  ek_status status;
  EK_TRY(ek_tensor_host(&inputs, x, EK_F32, 2, in));
  EK_TRY(ek_tensor_host(&targets, y, EK_I32, 1, out));
  EK_TRY(ek_linear_create(&body, 3, 3, true));
  EK_TRY(ek_adamw_create(&adamw, NULL));
#include "linear_cross_entropy_1.inc"
cleanup:
  return status;
}

SHOWN(shown_ahead) {
  return steps_ahead(s->group, s->model, s->criterion, s->optimizer, s->inputs, s->targets,
                     STEPS_SHOWN);
}

SHOWN(shown_average) {
  ek_optimizer *adamw = NULL, *rule = NULL;
  ek_status status;
#include "averaged_1.inc"
  if (status == EK_OK) ck_assert_uint_eq(ek_optimizer_states(rule), 3);
  ek_optimizer_free(rule);
  return status;
}

SHOWN(shown_muon) {
  const ek_adamw_options adamw_options = EK_ADAMW_OPTIONS_INIT;
  ek_optimizer *adamw = NULL, *rule = NULL;
  ek_status status;
#include "muon_1.inc"
  if (status == EK_OK) ck_assert_uint_eq(ek_optimizer_states(rule), 3);
  ek_optimizer_free(rule);
  return status;
}

static ek_status make_loss(ek_criterion **made) {
  ek_criterion *criterion = NULL;
#include "elementwise_loss_1.inc"
  *made = criterion;
  return EK_OK;
}

static ek_status make_weighted_loss(ek_criterion **made) {
  ek_criterion *criterion = NULL;
  const ek_element_loss loss = ek_huber(1.0);
#include "elementwise_loss_2.inc"
  *made = criterion;
  return EK_OK;
}

SHOWN(shown_huber) {
  CK_FREED(criterion) *plain = NULL, *weighted = NULL;
  EK_TRY(make_loss(&plain));
  return make_weighted_loss(&weighted);
}

static ek_status make_gradient(ek_tensor *y) { return use(y); }

static ek_status by_hand(const ek_tensor x, ek_replica *replica) {
#include "pass_1.inc"
}

SHOWN(shown_pass) {
  CK_FREED(tensor) x = {0};
  ek_device *device = ek_group_device(s->group, 0);
  EK_TRY(ek_tensor_create(&x, device, EK_MEMORY_INPUTS, EK_F32, 2, s->inputs[0].shape));
  EK_TRY(use(&x));
  return by_hand(x, ek_data_parallel_model_replica(s->model, 0));
}

SHOWN(shown_tensors) {
  return shown_tensor(ek_group_device(s->group, 0));
}

static void note_theirs(ek_dlpack *theirs) { theirs->flags = EK_DLPACK_COPIED; }

static ek_status import_theirs(ek_device *device, ek_dlpack *theirs) {
#include "dlpack_1.inc"
}

SHOWN(shown_dlpack) {
  static float numbers[2];
  int64_t shape[] = {2};
  ek_dlpack theirs = {.major = 1, .deleter = note_theirs,
                      .tensor = {.data = numbers, .device_type = EK_DLPACK_CPU, .rank = 1,
                                 .code = EK_DLPACK_FLOAT, .bits = 32, .lanes = 1, .shape = shape}};
  const ek_status status = import_theirs(ek_group_device(s->group, 0), &theirs);
  ck_assert((theirs.flags == EK_DLPACK_COPIED) == (status == EK_OK));
  return status;
}

#include "how_do_i.h"
#include "shown_files.h"

#undef ek_group_open
#undef ek_group_free
#undef ek_gpt_create
#undef ek_trainer_open
#undef ek_trainer_free
#undef printf

/* ---- failures in what opens and closes everything by itself ---- */

static ek_status run_training(ek_status (*trains)(const ek_tensor *tokens, const ek_tensor *targets,
                                                  int steps)) {
  static int32_t numbers[SAMPLES_SHOWN * SEQUENCE];
  const int64_t shape[] = {SAMPLES_SHOWN, SEQUENCE};
  for (int i = 0; i < SAMPLES_SHOWN * SEQUENCE; i++) numbers[i] = i * 7 % VOCABULARY;
  ek_tensor batch[2];
  for (int i = 0; i < 2; i++) EK_TRY(ek_tensor_host(&batch[i], numbers, EK_I32, 2, shape));
  return trains(batch, batch, 2);
}

/* The example's own functions, with two of its steps instead of all. */
static ek_status run_own_model(void) {
  static float samples[SAMPLES * IN], targets[SAMPLES];
  const int64_t x_shape[] = {SAMPLES, IN}, target_shape[] = {SAMPLES, 1};
  ek_tensor x, target;
  double loss;
  make_samples(samples, targets);
  EK_TRY(ek_tensor_host(&x, samples, EK_F32, 2, x_shape));
  EK_TRY(ek_tensor_host(&target, targets, EK_F32, 2, target_shape));
  struct training training = {0};
  ek_status status = open_training(&training);
  for (int i = 0; i < 2 && status == EK_OK; i++) status = step(&training, &x, &target, &loss);
  close_training(&training);
  return status;
}

/* Each has one of the three. */
static const struct {
  const char *name;
  ek_status (*run)(void);
  ek_status (*trains)(const ek_tensor *tokens, const ek_tensor *targets, int steps);
  int (*main)(void);
} programs[] = {{"README.md", .trains = train_readme},
                {"evenkeel.h", .main = tutorial_main},
                {"trainer.h", .trains = train_longer},
                {"linear_cross_entropy.h", .run = run_head},
                {"own_model.c", .run = run_own_model},
                {"how-do-i.md, options", .trains = answer_options},
                {"how-do-i.md, a plan", .trains = answer_plan},
                {"how-do-i.md, pixels", .run = answer_pixels},
                {"how-do-i.md, optimizer", .run = answer_optimizer},
                {"status.h", .main = shown_status}};
enum { PROGRAMS = sizeof programs / sizeof programs[0] };

static ek_status run_it(int program) {
  if (programs[program].run != NULL) return programs[program].run();
  if (programs[program].trains != NULL) return run_training(programs[program].trains);
  return programs[program].main() == 0 ? EK_OK : EK_ERR_OUT_OF_MEMORY;
}

static ek_status run_program(int program, const char *what, uint64_t n) {
  const ek_status status = run_it(program);
  ck_assert_msg(status == EK_OK || status == EK_ERR_OUT_OF_MEMORY, "%s, %s %d: %s: %s",
                programs[program].name, what, (int)n, ek_status_name(status), ek_error_message());
  ck_assert_msg(opened.open == 0 && opened.held == 0,
                "%s, %s %d: %d groups stay open, %llu bytes were held at their end",
                programs[program].name, what, (int)n, opened.open, (unsigned long long)opened.held);
  return status;
}

/* Each allocation of the first steps, and fewer of the later ones, which make the same. */
static uint64_t next(uint64_t n) { return n < 400 ? n + 1 : n + n / 16; }

/* Where it fails is all the same to what is shown: a sanitizer, which looks at that, sees one
 * device. */
#if CK_ASAN
enum { LAST_DEVICE = 4, VICTIMS = 1 };
#else
enum { LAST_DEVICE = 3, VICTIMS = 3 };
#endif

CK_LOOP(programs_end_with_nothing_held, PROGRAMS) {
  uint64_t n;
  const bool without = programs[_i].main == shown_status; /* of any allocation on a device */
  ck_ok(run_program(_i, "nothing", 0));
  for (opened.device = 0; opened.device < 4; opened.device += LAST_DEVICE) {
    for (n = 1; !without; n = next(n)) {
      opened.fail_at = n;
      if (run_program(_i, "device allocation", n) == EK_OK) break;
    }
    ck_assert_msg(without || n > 10, "%d allocations", (int)n);
    opened.fail_at = 0;
  }
  opened.device = 0;
  for (n = 1;; n = next(n)) {
    ek_host_memory_fail_at(n);
    const ek_status status = run_program(_i, "host allocation", n);
    ek_host_memory_fail_at(0);
    if (status == EK_OK) break;
  }
  ck_assert_uint_gt(n, 10);
}

/* ---- failures on what is open already ---- */

static ek_module *make_module(void) {
  struct pair *m = calloc(1, sizeof *m);
  ck_assert_ptr_nonnull(m);
  ck_ok(scale_create(&m->encoder, WIDTH));
  ck_ok(scale_create(&m->decoder, WIDTH));
  ck_ok(ek_module_init(&m->base, &pair_ops, 1, 1));
  return &m->base;
}

static void scene_open(struct scene *s) {
  ek_trainer_options on_group = EK_TRAINER_OPTIONS_INIT;
  const int64_t shape[] = {SAMPLES_SHOWN, WIDTH};
  for (int i = 0; i < STEPS_SHOWN; i++) {
    for (int j = 0; j < SAMPLES_SHOWN * WIDTH; j++) s->numbers[i][j] = (float)((i + j) % 5 - 2);
    ck_ok(ek_tensor_host(&s->inputs[i], s->numbers[i], EK_F32, 2, shape));
    s->targets[i] = s->inputs[i];
  }
  s->module = make_module();
  ck_ok(ek_group_open(&s->group, "cpu:3", NULL));
  ck_ok(ek_data_parallel_model_open(&s->model, s->group, s->module, NULL));
  ck_ok(ek_mean_squared_error_create(&s->loss, EK_REDUCTION_MEAN));
  ck_ok(ek_data_parallel_criterion_open(&s->criterion, s->model, s->loss, NULL));
  ck_ok(ek_sgd_create(&s->rule, NULL));
  ck_ok(ek_data_parallel_optimizer_open(&s->optimizer, s->model, s->rule, NULL));
  on_group.group = s->group;
  ck_ok(ek_trainer_open(&s->trainer, NULL, s->module, s->loss, s->rule, &on_group));
}

static void scene_close(struct scene *s) {
  (void)remove(shown_state_file);
  (void)remove("run");
  (void)remove("checkpoints/step-000000000000.safetensors");
  (void)remove("checkpoints");
  ck_ok(ek_trainer_close(s->trainer));
  ek_data_parallel_optimizer_free(s->optimizer);
  ek_data_parallel_criterion_free(s->criterion);
  ek_data_parallel_model_free(s->model);
  ek_optimizer_free(s->rule);
  ek_criterion_free(s->loss);
  ek_module_free(s->module);
  ck_assert_uint_eq(ck_bytes_held(s->group), 0);
  ck_assert_int_eq(foreign_parts, 0);
  ek_group_free(s->group);
}

static const struct {
  const char *name;
  ek_status (*run)(struct scene *s);
  uint64_t allocations; /* the least number on device 0 */
} pieces[] = {{"data_parallel_criterion.h", shown_step, 3},
              {"data_parallel_model.h", shown_ahead, 9},
              {"pass.h", shown_pass, 2},
              {"chain.h", shown_chain, 9},
              {"state.h", shown_state, 0},
              {"safetensors.h", shown_files, 0},
              {"checkpoint.h", shown_checkpoint, 0},
              {"averaged.h", shown_average, 0},
              {"muon.h", shown_muon, 0},
              {"trace.h", shown_trace, 0},
              {"memory_snapshot.h", shown_snapshot, 0},
              {"metrics.h", shown_metrics, 0},
              {"data_loader.h", shown_loader, 0},
              {"elementwise_loss.h", shown_huber, 0},
              {"trainer_run.h", shown_run, 0},
              {"with_criterion.h, criterion.h", shown_whole, 10},
              {"tensor.h", shown_tensors, 1},
              {"dlpack.h", shown_dlpack, 0},
              {"how-do-i.md, own data", answer_own_data, 3},
              {"trainer.h, a step in two calls", answer_two_calls, 3},
              {"how-do-i.md, validation", answer_validation, 3},
              {"how-do-i.md, documents", answer_packed, 0},
              {"how-do-i.md, rate", answer_rate, 3},
              {"how-do-i.md, parts", answer_parts, 9},
              {"how-do-i.md, losses", answer_losses, 0},
              {"how-do-i.md, average", answer_average, 0},
              {"how-do-i.md, predictions", answer_predict, 0},
              {"how-do-i.md, how many", answer_count, 0},
              {"how-do-i.md, resuming", answer_resume, 0},
              {"how-do-i.md, weights", answer_weights, 0},
              {"how-do-i.md, trace", answer_trace, 3},
              {"how-do-i.md, metrics", answer_metrics, 0}};
enum { PIECES = sizeof pieces / sizeof pieces[0] };

/* True if it failed, as it should, and left everything as it was; then it succeeds. */
static bool fails_well(struct scene *s, int piece, const char *what, uint64_t n, uint64_t before,
                       ek_status status) {
  if (status == EK_OK) return false;
  ck_assert_msg(status == EK_ERR_OUT_OF_MEMORY, "%s, %s %d: %s: %s", pieces[piece].name, what,
                (int)n, ek_status_name(status), ek_error_message());
  const uint64_t after = ck_bytes_held(s->group);
  ck_assert_msg(after == before, "%s, %s %d: %llu bytes are held, %llu were", pieces[piece].name,
                what, (int)n, (unsigned long long)after, (unsigned long long)before);
  ck_ok(pieces[piece].run(s));
  ck_assert_uint_eq(ck_bytes_held(s->group), before);
  return true;
}

CK_LOOP(pieces_leave_nothing_behind, PIECES) {
  static struct scene s;
  scene_open(&s);
  ck_ok(pieces[_i].run(&s));
  const uint64_t held = ck_bytes_held(s.group);
  for (size_t k = 0; k < VICTIMS; k++) {
    ek_device *device = ek_group_device(s.group, k);
    uint64_t n = 1;
    for (bool failed = true; failed; n++) {
      ck_ok(ek_memory_fail_at(device, n));
      const ek_status status = pieces[_i].run(&s);
      ck_ok(ek_memory_fail_at(device, 0));
      failed = fails_well(&s, _i, "device allocation", n, held, status);
    }
    ck_assert_msg(k > 0 || n > pieces[_i].allocations, "only %d allocations", (int)n);
  }
  bool failed = true;
  for (uint64_t n = 1; failed; n++) {
    ek_host_memory_fail_at(n);
    const ek_status status = pieces[_i].run(&s);
    ek_host_memory_fail_at(0);
    failed = fails_well(&s, _i, "host allocation", n, held, status);
  }
  scene_close(&s);
}

CK_TEST(the_rest) {
  ck_fails(shown_message(3), EK_ERR_SHAPE, "mixer: expected 3 columns");
  lines = 0;
  ck_ok(run_training(train_readme));
  ck_ok(run_training(train_longer));
  ck_assert_int_eq(lines, 2 + 3);
  lines = 0;
  ck_assert_int_eq(tutorial_main(), 0);
  ck_assert_int_eq(lines, 4);
  ck_assert_msg(strncmp(line, "step 40: loss 0.00", 18) == 0, "%s", line); /* it learns */
  lines = 0;
  ck_assert_int_eq(own_model_main(), 0);
  ck_assert_int_gt(lines, 5);
  shown_advice();
  ek_group *group = ck_open_exactly("cpu:1", 0);
  ck_ok(shown_fault(ek_group_device(group, 0)));
}

CK_SUITE("shown")
