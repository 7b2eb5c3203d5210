/*
 * check_patterns.c - patterns of parameter names (module.h), and what a container freezes by path.
 * Frozen parameters are, to the bit and the byte, those that a module declares frozen, in every
 * mode and after a resume. Rates and decays of single parameters give what the formula of a plain
 * update gives. Wrong patterns are refused.
 */
#include <unistd.h>

#include "ck_blend.h"
#include "ck_folder.h"
#include "ck_frozen.h"
#include "ck_gpt.h"
#include "ck_rule.h"
#include "ck_state.h"
#include "ck_training.h"

static const char *const names[] = {
    "tokens.weight", "tokens.positions", "blocks.0.attention.qkv.weight", "blocks.0.ln_2.weight",
    "blocks.0.ln_2.bias", "blocks.0.expand.weight", "blocks.0.contract.bias",
    "blocks.1.expand.bias", "blocks.1.contract.weight", "blocks.1.attention.qkv.bias"};
enum { NAMES = sizeof names / sizeof *names };
static const char *const fused_names[] = {"0.weight", "0.positions", "1.weight", "2.weight",
                                          "2.bias"};
enum { FUSED = sizeof fused_names / sizeof *fused_names };

/* Number 0 is the table, which is the weight of the head too. */
static const unsigned masks[] = {(1u << NAMES) - 1, 0x2D6, 0x1};
enum { MASKS = sizeof masks / sizeof *masks };

/* How a model is trained. */
static const struct variant {
  ek_precision precision;
  size_t reproducible;
  bool fused;
  ek_recompute_kind recompute;
  int64_t micro_batches;
} variants[] = {{EK_PRECISION_DEFAULT, 0, false, EK_RECOMPUTE_NONE, 2},
                {EK_PRECISION_BF16, 0, true, EK_RECOMPUTE_SQRT, 0},
                {EK_PRECISION_DEFAULT, 4, true, EK_RECOMPUTE_ALL, 0},
                {EK_PRECISION_F16, 0, false, EK_RECOMPUTE_CHEAP, 0}};
enum { VARIANTS = sizeof variants / sizeof *variants };

static ek_status make_body(ek_module **module, ek_recompute_kind recompute) {
  ek_module *parts[3] = {NULL};
  CK_WITH(ek_sequential_options, options, EK_SEQUENTIAL_OPTIONS_INIT, .recompute.kind = recompute);
  ck_ok(ek_embedding_create(&parts[0], 13, 8, 5));
  ck_ok(ek_layer_norm_create(&parts[1], 8, 1e-5));
  ck_ok(ek_linear_create(&parts[2], 8, 8, true));
  return ck_sequential(module, parts, 3, &options);
}

enum how { BY_PATTERN, BY_PATH, DECLARED };

static ek_module *freeze(ek_module *inner, const char *const *list, size_t count, unsigned mask,
                         enum how how) {
  if (how == BY_PATTERN) mask = 0;
  return how == BY_PATH ? ck_frozen_by_path(inner, list, count, mask)
                        : ck_frozen_create(inner, list, count, mask);
}

/* A model that computes its loss, with a head whose weight is the table. */
static ek_module *make_fused(const struct variant *v, unsigned mask, enum how how) {
  ek_linear_cross_entropy_options fused = EK_LINEAR_CROSS_ENTROPY_OPTIONS_INIT;
  CK_FREED(module) *body = NULL;
  ck_ok(make_body(&body, v->recompute));
  body = freeze(body, fused_names, FUSED, mask & ((1u << FUSED) - 1), how);
  fused.bias = true;
  CK_SCOPED(ek_criterion *, head, ek_linear_cross_entropy_create(&head, 8, 13, &fused));
  CK_WITH(ek_with_criterion_options, o, EK_WITH_CRITERION_OPTIONS_INIT, .tied = "weight",
          .source = "own0");
  CK_GOT(ek_module *, whole, ek_with_criterion_create_with(&whole, body, head, &o));
  return whole;
}

static ek_module *make_model(const struct variant *v, unsigned mask, enum how how) {
  if (v->fused) return make_fused(v, mask, how);
  ek_gpt_options options = ck_gpt_sizes(13, 5, 8, 2, 2); /* of the workload "gpt" */
  ck_assign(options, .dropout = 0.25, .recompute.kind = v->recompute);
  CK_GOT(ek_module *, inner, ek_gpt_create(&inner, &options));
  return freeze(inner, names, NAMES, mask, how);
}

/* One pattern for each bit, by turns for the name and for the other name of a tied parameter. */
static size_t patterns_of(ek_parameter_pattern patterns[NAMES], char text[NAMES][64],
                          const struct variant *v, unsigned mask) {
  size_t count = 0;
  for (size_t i = 0; i < (size_t)(v->fused ? FUSED : NAMES); i++) {
    if ((mask >> i & 1u) == 0) continue;
    if (i % 2 == 0) {
      (void)snprintf(text[count], sizeof text[count], "inner.%s",
                     v->fused ? fused_names[i] : names[i]);
    } else {
      (void)snprintf(text[count], sizeof text[count], "own%zu", i);
    }
    patterns[count] = (ek_parameter_pattern){.pattern = text[count], .frozen = true};
    count++;
  }
  return count;
}

static ek_trainer *open_model(const struct variant *v, ek_mode mode, unsigned mask, enum how how) {
  ek_criterion *loss = NULL;
  ek_parameter_pattern patterns[NAMES];
  char text[NAMES][64];
  if (!v->fused) ck_ok(ek_cross_entropy_create(&loss, NULL));
  CK_WITH(struct ck_setup, setup, ck_setup_own(make_model(v, mask, how), loss, "cpu:3", mode),
          .options.precision = v->precision, .options.reproducible = v->reproducible,
          .options.seed = 3, .options.patterns = patterns);
  if (how == BY_PATTERN) setup.options.pattern_count = patterns_of(patterns, text, v, mask);
  ck_assign(setup, .micro_batches = v->micro_batches, .optimizer = ck_clipped_adamw);
  return ck_trainer_open(&setup);
}

/* The second batch leaves a device without rows. */
static void take_step(ek_trainer *trainer, int number) {
  struct ck_batch batch =
      ck_batch_make(ck_workload("gpt"), EK_F32, number == 1 ? 2 : 7, 0, 5 + (uint64_t)number);
  ck_ok(ek_trainer_step(NULL, trainer, batch.input, 1, batch.target, 1));
}

static void same_memory(ek_trainer *a, ek_trainer *b) {
  for (size_t k = 0; k < 3; k++) {
    CK_GOT(ek_memory_usage, got, ck_memory_stats(&got, ek_group_device(ek_trainer_group(a), k)));
    CK_GOT(ek_memory_usage, want, ck_memory_stats(&want, ek_group_device(ek_trainer_group(b), k)));
    ck_assert_uint_eq(got.peak_bytes, want.peak_bytes);
    ck_assert_mem_eq(got.at_peak, want.at_peak, sizeof want.at_peak);
  }
}

static void same_state(const char *what, ek_trainer *a, ek_trainer *b) {
  ck_states_same(what, ek_trainer_model(a), ek_trainer_model(b));
}

/* Saved after two steps; the third is taken by a trainer that loads. */
static void resume(ek_trainer **trainer, const struct variant *v, ek_mode mode, unsigned mask,
                   enum how how) {
  const char *folder = ck_folder();
  ek_checkpoint_info info;
  const ek_status status = ek_trainer_save(*trainer, folder, NULL);
  if (ck_no_files(status)) return;
  ck_ok(ek_trainer_close(*trainer));
  *trainer = open_model(v, mode, mask, how);
  ck_ok(ek_trainer_load(&info, *trainer, folder));
  ck_assert_int_eq(info.step, 2);
  ek_trainer *other = open_model(v, mode, mask ^ 2u, how);
  ck_fails(ek_trainer_load(&info, other, folder), EK_ERR_MISMATCH, "own1");
  ck_assert_msg(strstr(ek_error_message(), "frozen") != NULL, "%s", ek_error_message());
  ck_ok(ek_trainer_close(other));
  ck_assert_int_eq(unlink(ck_state_file(folder, 2)), 0);
}

CK_LOOP(frozen_by_name_is_frozen_by_declaration, 2 * MASKS * VARIANTS * CK_MODES) {
  if (!ck_part(_i) || ck_precision() != 0) return;
  const ek_mode mode = (ek_mode)(_i % CK_MODES);
  const struct variant *v = &variants[_i / CK_MODES % VARIANTS];
  const unsigned mask = masks[_i / CK_MODES / VARIANTS % MASKS];
  const enum how how = _i / CK_MODES / VARIANTS / MASKS == 0 ? BY_PATTERN : BY_PATH;
  if (v->precision != 0 && !ck_has_halves()) return;
  ek_trainer *got = open_model(v, mode, mask, how), *want = open_model(v, mode, mask, DECLARED);
  for (int i = 0; i < 2; i++) {
    take_step(got, i);
    take_step(want, i);
  }
  same_state("two steps", got, want);
  same_memory(got, want);
  resume(&got, v, mode, mask, how);
  take_step(got, 2);
  take_step(want, 2);
  same_state("a third step", got, want);
  ck_ok(ek_trainer_close(got));
  ck_ok(ek_trainer_close(want));
}

/* ---- rates and decays ---- */

static const double rate = 0.01;

CK_ADAMW(plain_adamw, .learning_rate = rate, .weight_decay = 0)

CK_ADAMW(decayed_adamw, .learning_rate = rate, .weight_decay = 0.125)

CK_SGD(plain_sgd, .learning_rate = rate)

CK_SGD(decayed_sgd, .learning_rate = rate, .weight_decay = 0.125)

/* Of the parameters of an ek_mlp: the last pattern that matches holds, alone. */
static const ek_parameter_pattern wishes[] = {
    {.pattern = "*", .rate_scale = 3, .frozen = true},
    {.pattern = "*.weight"},
    {.pattern = "*.bia?", .rate_scale = 2},
    {.pattern = "0.*", .rate_scale = 4, .weight_decay = 0.25}};
static const struct {
  const char *name;
  double scale, decay;
} wanted[] = {{"0.weight", 4, 0.25}, {"0.bias", 4, 0.25}, {"2.weight", 1, 0.125}, {"2.bias", 2, 0}};
enum { WISHES = 4 };

/* A parameter before a step, and after it. */
static void read_values(double *values, const struct ck_training *t, const char *name) {
  CK_WITH(ek_tensor, host, ck_like(t, name), .data = values);
  ck_ok(ek_state_read(&host, t->model, name));
}

/* A plain step without decay goes by -rate * u; one with these goes by -scale * rate * (u + decay *
 * p): for both rules, whose decay is decoupled, or without momentum. */
CK_LOOP(rates_and_decays_are_of_the_formula, 2 * CK_PLACEMENTS) {
  enum { MOST = 16 * 16 };
  static double before[4][MOST], plain[MOST], got[MOST];
  const bool adamw = _i >= CK_PLACEMENTS;
  struct ck_setup setup = ck_setup_at(ck_workload("mlp"), "cpu:3", _i % CK_PLACEMENTS);
  ck_assign(setup.options, .type = EK_F64, .bucket_bytes = 512);
  setup.optimizer = adamw ? plain_adamw : plain_sgd;
  struct ck_training one = ck_training_opened(&setup);
  ck_assign(setup, .optimizer = adamw ? decayed_adamw : decayed_sgd, .options.patterns = wishes,
            .options.pattern_count = WISHES);
  struct ck_training other = ck_training_opened(&setup);
  for (int i = 0; i < 4; i++) read_values(before[i], &one, wanted[i].name);
  struct ck_batch batch = ck_batch_make(setup.workload, EK_F64, 7, 0, 5);
  ck_ok(ck_training_step(&one, &batch, NULL));
  ck_ok(ck_training_step(&other, &batch, NULL));
  for (int i = 0; i < 4; i++) {
    ek_parameter_info info;
    ck_ok(ek_replica_find(&info, ek_data_parallel_model_replica(other.model, 0), wanted[i].name));
    ck_assert(!info.frozen && info.rate_scale == wanted[i].scale);
    ck_assert_double_eq(info.weight_decay, i < 2 ? wanted[i].decay : 0);
    const double s = wanted[i].scale;
    const ek_tensor like = ck_like(&one, wanted[i].name);
    ck_assert_int_le(ek_tensor_count(&like), MOST);
    read_values(plain, &one, wanted[i].name);
    read_values(got, &other, wanted[i].name);
    for (int64_t j = 0; j < ek_tensor_count(&like); j++) {
      const double p = before[i][j];
      const double want = p - s * (p - plain[j]) - s * rate * wanted[i].decay * p;
      ck_assert_msg(fabs(got[j] - want) <= 1e-13, "%s[%d]: %.17g, expected %.17g", wanted[i].name,
                    (int)j, got[j], want);
    }
  }
}

/* ---- all of it frozen ---- */

CK_LOOP(all_may_be_frozen, CK_MODES) {
  static const ek_parameter_pattern all = {.pattern = "*", .frozen = true};
  CK_TRAINING(t, ck_setup_mode(ck_workload("blend"), "cpu:3", (ek_mode)_i),
              .options.patterns = &all, .options.pattern_count = 1, .optimizer = ck_clipped_adamw);
  double *before = ck_training_read(&t, CK_VALUES);
  struct ck_batch batch = ck_batch_make(t.setup.workload, t.setup.options.type, 7, 0, 5);
  CK_GOT(ek_step_result, result, ck_training_step(&t, &batch, &result));
  ck_assert(result.finite && result.gradient_norm == 0);
  double *after = ck_training_read(&t, CK_VALUES);
  ck_arrays_same("frozen", after, before);
}

/* ---- what is refused ---- */

static const int64_t mlp_sizes[] = {3, 4, 2};

static ek_status open_with(const ek_parameter_pattern *patterns, size_t count) {
  CK_HELD(ek_group *, group, ck_open_exactly("plan:2", 1));
  ek_data_parallel_model *model = NULL;
  CK_SCOPED(ek_module *, mlp, ek_mlp_create(&mlp, mlp_sizes, 3, EK_ACTIVATION_RELU));
  CK_WITH(ek_data_parallel_model_options, options, EK_DATA_PARALLEL_MODEL_OPTIONS_INIT,
          .patterns = patterns, .pattern_count = count);
  const ek_status status = ek_data_parallel_model_open(&model, group, mlp, &options);
  ck_assert((status == EK_OK) == (model != NULL));
  ek_data_parallel_model_free(model);
  ck_no_memory_held(group);
  return status;
}

CK_TEST(wrong_patterns) {
  const ek_status bad = EK_ERR_INVALID_ARGUMENT;
  static const struct {
    ek_parameter_pattern pattern;
    ek_status status;
    const char *words;
  } cases[] = {
      {{.pattern = NULL}, EK_ERR_INVALID_ARGUMENT, "number 1"},
      {{.pattern = ""}, EK_ERR_INVALID_ARGUMENT, "number 1"},
      {{.pattern = "0.weight", .rate_scale = -1}, EK_ERR_INVALID_ARGUMENT, "rate_scale -1"},
      {{.pattern = "0.weight", .rate_scale = INFINITY}, EK_ERR_INVALID_ARGUMENT, "rate_scale inf"},
      {{.pattern = "0.weight", .weight_decay = NAN}, EK_ERR_INVALID_ARGUMENT, "weight_decay"},
      {{.pattern = "0.bias", .no_decay = true, .weight_decay = 1},
       EK_ERR_INVALID_ARGUMENT,
       "one of"},
      {{.pattern = "0.weigth"},
       EK_ERR_NOT_FOUND,
       "\"0.weigth\" matches no parameter; the nearest name is \"0.weight\""},
      {{.pattern = "2.bias?"}, EK_ERR_NOT_FOUND, "nearest name is \"2.bias\""},
      {{.pattern = "1.weight"}, EK_ERR_NOT_FOUND, "\"0.weight\""}, /* of equally near ones the */
      {{.pattern = "1.bias"}, EK_ERR_NOT_FOUND, "\"0.bias\""},     /* first in the alphabet */
      {{.pattern = "2.b*s.*"}, EK_ERR_NOT_FOUND, "nearest name is \"2.bias\""}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const ek_parameter_pattern two[] = {{.pattern = "*"}, cases[i].pattern};
    ck_fails(open_with(two, 2), cases[i].status, cases[i].words);
  }
  ck_fails(open_with(NULL, 1), bad, "NULL");
  static const ek_parameter_pattern matching[] = {{.pattern = "**0*.*w*t"}, {.pattern = "?.bias"}};
  ck_ok(open_with(matching, 2));
}

CK_UPDATE(stay) {
  return EK_OK;
}

/* A rule of the program's that does not read ek_update.weight_decay. */
CK_TEST(a_rule_that_takes_no_decay) {
  static const ek_parameter_pattern decay = {.pattern = "0.*", .weight_decay = 0.5};
  ek_group *group = ck_open_exactly("plan:2", 1);
  ek_data_parallel_optimizer *optimizer = NULL;
  CK_OPENED(ek_optimizer *, rule, ck_rule_create(&rule, "stay", stay));
  CK_OPENED(ek_module *, mlp, ek_mlp_create(&mlp, mlp_sizes, 3, EK_ACTIVATION_RELU));
  CK_WITH(ek_data_parallel_model_options, options, EK_DATA_PARALLEL_MODEL_OPTIONS_INIT,
          .patterns = &decay, .pattern_count = 1);
  CK_OPENED(ek_data_parallel_model *, model,
            ek_data_parallel_model_open(&model, group, mlp, &options));
  ck_fails(ek_data_parallel_optimizer_open(&optimizer, model, rule, NULL), EK_ERR_UNSUPPORTED,
           "stay");
  ck_assert_ptr_null(optimizer);
}

/* ---- how many ---- */

CK_TEST(numbers_of_a_model) {
  static const ek_parameter_pattern frozen = {.pattern = "tokens.*", .frozen = true};
  static const ek_parameter_pattern wrong = {.pattern = "token.*", .frozen = true};
  const ek_gpt_options sizes = ck_gpt_sizes(13, 5, 8, 2, 2);
  const int64_t tables = 13 * 8 + 5 * 8; /* the table is the head's weight too */
  const int64_t block = 2 * 2 * 8 + (8 * 24 + 24) + (8 * 8 + 8) + (8 * 32 + 32) + (32 * 8 + 8);
  ek_parameter_totals totals = {-1, -1, -1};
  ek_module *blend = NULL;
  CK_OPENED(ek_module *, gpt, ek_gpt_create(&gpt, &sizes));
  ck_invalid(ek_parameter_count(NULL, gpt, NULL, 0), "NULL");
  ck_invalid(ek_parameter_count(&totals, NULL, NULL, 0), "NULL");
  ck_fails(ek_parameter_count(&totals, gpt, &wrong, 1), EK_ERR_NOT_FOUND, "tokens.");
  ck_assert_int_eq(totals.parameters, -1);
  ck_ok(ek_parameter_count(&totals, gpt, NULL, 0));
  ck_assert_int_eq(totals.parameters, tables + 2 * block + 2 * 8);
  ck_assert_int_eq(totals.trained, totals.parameters);
  ck_assert_int_eq(totals.buffers, 0);
  ck_ok(ek_parameter_count(&totals, gpt, &frozen, 1));
  ck_assert_int_eq(totals.trained, totals.parameters - tables);
  ck_ok(ck_workload("blend")->module(&blend));
  ck_ok(ek_parameter_count(&totals, blend, NULL, 0));
  ck_assert_int_eq(totals.buffers, CK_BLEND_WIDTH);
  ek_module_free(blend);
}

CK_SUITE("patterns")
