/*
 * check_policies.c - what containers recompute: the same training bit for bit, over random trees of
 * modules and in every mode; the bytes that docs/memory.md says; texts, planning, and what is
 * refused.
 */
#include "ck_gpt.h"
#include "ck_module.h"
#include "ck_training.h"

/* ---- policies ---- */

static ek_recompute policy_of(const char *text) {
  CK_GOT(ek_recompute, policy, ek_recompute_parse(&policy, text));
  return policy;
}

static const char *gpt_policy;
CK_GPT(gpt_with_policy, ck_gpt_sizes(13, 5, 8, 5, 2), .dropout = 0.25,
       .recompute = policy_of(gpt_policy))
static ek_status gpt_without(ek_module **module) {
  const char *policy = gpt_policy;
  gpt_policy = "none";
  const ek_status status = gpt_with_policy(module);
  gpt_policy = policy;
  return status;
}

static const char *const policies[] = {"every=1", "every=2", "every=9", "sqrt", "all", "cheap"};
enum { POLICIES = sizeof policies / sizeof policies[0], CHEAP = POLICIES - 1 };

CK_PART_LOOP(policies_of_gpt, POLICIES * CK_PLACEMENTS) {
  gpt_policy = policies[_i / CK_PLACEMENTS];
  ck_deterministic(_i / CK_PLACEMENTS == CHEAP); /* numerics.md */
  ck_trains_alike(ck_workload("gpt"), gpt_without, gpt_with_policy, "cpu:3", _i % CK_PLACEMENTS);
}

CK_TEST(texts) {
  static const struct {
    const char *text;
    ek_recompute is;
  } good[] = {{"none", {EK_RECOMPUTE_NONE, 0, 0}},    {"every=3", {EK_RECOMPUTE_EVERY, 3, 0}},
              {"sqrt", {EK_RECOMPUTE_SQRT, 0, 0}},    {"all", {EK_RECOMPUTE_ALL, 0, 0}},
              {"cheap", {EK_RECOMPUTE_CHEAP, 0, 0}},  {"64KiB", {EK_RECOMPUTE_BYTES, 0, 65536}},
              {"4096", {EK_RECOMPUTE_BYTES, 0, 4096}}};
  static const char *const bad[] = {"",
                                    "every",
                                    "every=",
                                    "every=0",
                                    "every=-1",
                                    "every=2x",
                                    "Sqrt",
                                    "sqrt ",
                                    "64 MiB",
                                    "-1",
                                    "every=99999999999999999999",
                                    "nan",
                                    "0"};
  ek_recompute got;
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    ck_ok(ek_recompute_parse(&got, good[i].text));
    ck_assert_int_eq(got.kind, good[i].is.kind);
    ck_assert_int_eq(got.every, good[i].is.every);
    ck_assert_uint_eq(got.bytes, good[i].is.bytes);
  }
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    ck_invalid(ek_recompute_parse(&got, bad[i]), bad[i]);
  }
  ck_invalid(ek_recompute_parse(NULL, "all"), "recompute is NULL");
  ck_invalid(ek_recompute_parse(&got, NULL), "text is NULL");
}

CK_TEST(bad_policies) {
  static const struct {
    ek_recompute is;
    const char *text;
  } bad[] = {{{EK_RECOMPUTE_EVERY, 0, 0}, "every 0 modules"},
             {{EK_RECOMPUTE_BYTES, 0, 4096}, "must first be planned"},
             {{(ek_recompute_kind)17, 0, 0}, "unknown recomputation 17"}};
  ek_module *module = NULL;
  CK_SCOPED(ek_module *, relu, ek_activation_create(&relu, EK_ACTIVATION_RELU));
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    ek_sequential_options sequential = EK_SEQUENTIAL_OPTIONS_INIT;
    ek_gpt_options gpt = EK_GPT_OPTIONS_INIT;
    sequential.recompute = gpt.recompute = bad[i].is;
    ck_invalid(ek_sequential_create_with(&module, &relu, 1, &sequential), bad[i].text);
    ck_invalid(ek_gpt_create(&module, &gpt), bad[i].text);
  }
}

/* Peaks as one might count them: none, cheap, every=1, 2, 3, 4, sqrt, all. 0: out of memory, 1: an
 * error. */
struct counted {
  const uint64_t *peaks;
  int calls;
};

static ek_status count_peak(void *context, const ek_recompute *recompute, uint64_t *peak) {
  static const ek_recompute_kind kinds[] = {
      EK_RECOMPUTE_NONE,  EK_RECOMPUTE_CHEAP, EK_RECOMPUTE_EVERY, EK_RECOMPUTE_EVERY,
      EK_RECOMPUTE_EVERY, EK_RECOMPUTE_EVERY, EK_RECOMPUTE_SQRT,  EK_RECOMPUTE_ALL};
  struct counted *c = context;
  ck_assert_int_lt(c->calls, 8);
  ck_assert_int_eq(recompute->kind, kinds[c->calls]);
  *peak = c->peaks[c->calls++];
  if (*peak == 0) return ek_error_set(EK_ERR_OUT_OF_MEMORY, "full");
  return *peak == 1 ? ek_error_set(EK_ERR_DEVICE, "broken") : EK_OK;
}

CK_TEST(planning) {
  static const struct {
    uint64_t bytes, peaks[8];
    ek_status status;
    ek_recompute is;
    uint64_t peak;
    int calls;
    const char *text;
  } rows[] = {
      {900, {900}, EK_OK, {EK_RECOMPUTE_NONE, 0, 0}, 900, 1, NULL},
      {899, {900, 800}, EK_OK, {EK_RECOMPUTE_CHEAP, 0, 0}, 800, 2, NULL},
      {500, {900, 800, 501, 500}, EK_OK, {EK_RECOMPUTE_EVERY, 2, 0}, 500, 4, NULL},
      {500, {0, 0, 0, 900, 800, 700, 600, 400}, EK_OK, {EK_RECOMPUTE_ALL, 0, 0}, 400, 8, NULL},
      {9,
       {90, 80, 70, 50, 60, 61, 62, 63},
       EK_ERR_OUT_OF_MEMORY,
       {EK_RECOMPUTE_EVERY, 2, 0},
       50,
       8,
       "nothing fits 9 B; every=2 comes nearest, with 50 B"},
      {9, {0}, EK_ERR_OUT_OF_MEMORY, {EK_RECOMPUTE_NONE, 0, 0}, UINT64_MAX, 8, "no policy fits"},
      {9, {90, 1}, EK_ERR_DEVICE, {(ek_recompute_kind)-1, 0, 0}, 7, 2, "broken"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct counted c = {rows[i].peaks, 0};
    ek_recompute got = {(ek_recompute_kind)-1, 0, 0};
    uint64_t peak = 7;
    if (rows[i].text == NULL) {
      ck_ok(ek_recompute_plan(&got, &peak, rows[i].bytes, count_peak, &c));
    } else {
      ck_fails(ek_recompute_plan(&got, &peak, rows[i].bytes, count_peak, &c), rows[i].status,
               rows[i].text);
    }
    ck_assert_int_eq(got.kind, rows[i].is.kind);
    ck_assert_int_eq(got.every, rows[i].is.every);
    ck_assert_uint_eq(peak, rows[i].peak);
    ck_assert_int_eq(c.calls, rows[i].calls);
  }
  ek_recompute got;
  ck_invalid(ek_recompute_plan(NULL, NULL, 9, count_peak, NULL), "NULL");
  ck_invalid(ek_recompute_plan(&got, NULL, 9, NULL, NULL), "plan is NULL");
}

/* ---- every check of a module ---- */

/* A linear, GELU, a linear, a norm, a linear, a norm, dropout of nothing, ReLU, a linear. */
static ek_status stack(ek_module **module, const char *policy) {
  ek_module *p[9] = {NULL};
  CK_WITH(ek_sequential_options, options, EK_SEQUENTIAL_OPTIONS_INIT,
          .recompute = policy_of(policy));
  for (int i = 0; i < 9; i += 2) {
    if (i != 6) ck_ok(ek_linear_create(&p[i], 4, 4, i != 4));
  }
  ck_ok(ek_activation_create(&p[1], EK_ACTIVATION_GELU));
  ck_ok(ek_layer_norm_create(&p[3], 4, 1e-5));
  ck_ok(ek_layer_norm_create(&p[5], 4, 1e-5));
  ck_ok(ek_dropout_create(&p[6], 0));
  ck_ok(ek_activation_create(&p[7], EK_ACTIVATION_RELU));
  return ck_sequential(module, p, 9, &options);
}
static ek_status stack_every_1(ek_module **module) { return stack(module, "every=1"); }
static ek_status stack_sqrt(ek_module **module) { return stack(module, "sqrt"); }
static ek_status stack_all(ek_module **module) { return stack(module, "all"); }
static ek_status stack_cheap(ek_module **module) { return stack(module, "cheap"); }

#define STACK(kept)                                                                                \
  .input = {{0, 2, {5, 4}, -1, 1, 0}}, .longest = 5, .depth = 40, .saved = kept
static const struct ck_module_case cases[] = {
    /* The inputs of modules 3, 4, 5, 6 (and 7, the same), and 8; 0 to 2 are one. */
    {.name = "every=1", .create = stack_every_1, STACK(5)},
    {.name = "sqrt", .create = stack_sqrt, STACK(2)},
    {.name = "all", .create = stack_all, STACK(0)},
    /* pre; both norms' inputs, mean and rstd each; ReLU's result. Not GELU's result and the first
     * norm's; the second one's, which goes through dropout, is not kept. */
    {.name = "cheap", .create = stack_cheap, STACK(8)},
};
CK_MODULE_CASES(cases)

/* ---- random trees ---- */

enum { IN = 7, WIDTH = 16, CLASSES = 5 }; /* those of the workload "mlp" */

/* Draws the same tree whether it wraps or not. */
struct tree {
  struct ck_random random;
  bool wrap, cheap; /* not cheap: such policies are left out */
};

static ek_module *draw(struct tree *tree, int depth);

static ek_module *draw_sequential(struct tree *tree, int depth) {
  const int64_t count = ck_random_integer(&tree->random, 1, 8);
  ek_module *parts[8] = {NULL}, *module = NULL;
  for (int64_t i = 0; i < count; i++) parts[i] = draw(tree, depth + 1);
  ek_sequential_options options = EK_SEQUENTIAL_OPTIONS_INIT;
  const int64_t policy = ck_random_integer(&tree->random, 0, 2 * POLICIES - 1);
  if (tree->wrap && policy < (tree->cheap ? POLICIES : CHEAP)) {
    options.recompute = policy_of(policies[policy]);
  }
  ck_ok(ek_sequential_create_with(&module, parts, (size_t)count, &options));
  for (int64_t i = 0; i < count; i++) ek_module_free(parts[i]);
  return module;
}

static ek_module *draw_residual(struct tree *tree, int depth) {
  ek_module *inner = draw(tree, depth + 1), *module = NULL;
  ck_ok(ek_residual_create(&module, inner));
  ek_module_free(inner);
  return module;
}

static ek_module *draw_leaf(struct tree *tree) {
  ek_module *module = NULL;
  switch (ck_random_integer(&tree->random, 0, 5)) {
  case 0:
  case 1: ck_ok(ek_linear_create(&module, WIDTH, WIDTH, true)); break;
  case 2: ck_ok(ek_activation_create(&module, EK_ACTIVATION_GELU)); break;
  case 3: ck_ok(ek_activation_create(&module, EK_ACTIVATION_RELU)); break;
  case 4: ck_ok(ek_dropout_create(&module, 0.25)); break;
  default: ck_ok(ek_layer_norm_create(&module, WIDTH, 1e-5)); break;
  }
  return module;
}

static ek_module *draw(struct tree *tree, int depth) {
  const int64_t kind = depth > 3 ? 9 : ck_random_integer(&tree->random, 0, 9);
  const bool wrap = ck_random_integer(&tree->random, 0, 2) == 0 && tree->wrap;
  ek_module *inner = kind < 3   ? draw_sequential(tree, depth)
                     : kind < 5 ? draw_residual(tree, depth)
                                : draw_leaf(tree);
  if (!wrap) return inner;
  ck_ok(ck_around(&inner, inner, ek_recompute_create));
  return inner;
}

static struct tree of_tree;
static ek_status random_tree(ek_module **module, bool wrap) {
  ek_module *parts[3] = {NULL};
  CK_WITH(struct tree, tree, of_tree, .wrap = wrap);
  ck_ok(ek_linear_create(&parts[0], IN, WIDTH, true));
  parts[1] = draw_sequential(&tree, 0);
  ck_ok(ek_linear_create(&parts[2], WIDTH, CLASSES, true));
  return ck_sequential(module, parts, 3, NULL);
}
static ek_status plain_tree(ek_module **module) { return random_tree(module, false); }
static ek_status wrapped_tree(ek_module **module) { return random_tree(module, true); }

CK_PART_LOOP(random_trees, 36) {
  ck_assign(of_tree, .random = ck_random_start((uint64_t)_i), .cheap = _i % 4 < 2);
  ck_deterministic(of_tree.cheap);
  ck_trains_alike(ck_workload("mlp"), plain_tree, wrapped_tree, _i % 2 == 0 ? "cpu:2" : "cpu:3",
                  _i % CK_PLACEMENTS);
}

/* ---- memory ---- */

/* Bytes on a device that only counts, for a GPT of some layers: what is held between forward and
 * backward, and at the peak. Parameters and gradients do not count. */
struct bytes {
  uint64_t between, peak, at_peak;
};

enum { TOKENS = 128, C = 64, HEADS = 4, VOCABULARY = 16 };
#define KEPT (4ull * TOKENS * C)                      /* one activation */
#define SMALL (4ull * TOKENS)                         /* one statistic */
#define BLOCK (16 * KEPT + 4 * SMALL + HEADS * SMALL) /* docs/memory.md */

static struct bytes measure(int layers, const char *policy) {
  struct bytes bytes;
  ek_gpt_options options = ck_gpt_sizes(VOCABULARY, TOKENS, C, layers, HEADS);
  options.recompute = policy_of(policy);
  CK_SCOPED(ek_module *, module, ek_gpt_create(&module, &options));
  CK_SCOPED(ek_group *, group, ek_group_open(&group, "plan:1", NULL));
  ek_device *device = ek_group_device(group, 0);
  CK_SCOPED(ek_replica *, replica, ek_replica_open(&replica, device, module, NULL));
  CK_SCOPED(ek_tensor, x,
            ek_tensor_create(&x, device, EK_MEMORY_INPUTS, EK_I32, CK_SHAPE(1, TOKENS)));
  CK_GOT(ek_memory_usage, usage, ck_memory_stats(&usage, device));
  const uint64_t before = usage.current_bytes;
  ck_ok(ek_memory_reset_peak(device));
  CK_SCOPED(ek_pass *, pass, ek_pass_open(&pass, replica, NULL));
  CK_SCOPED(ek_tensor, y, ek_pass_run_forward(&y, pass, &x));
  ck_ok(ck_memory_stats(&usage, device));
  bytes.between = usage.current[EK_MEMORY_ACTIVATIONS];
  ck_ok(ek_pass_run_backward(NULL, pass, &y));
  ck_ok(ck_memory_stats(&usage, device));
  bytes.peak = usage.peak_bytes - before;
  bytes.at_peak = usage.at_peak[EK_MEMORY_ACTIVATIONS];
  return bytes;
}

/* The arithmetic of docs/memory.md, to the byte: TOKENS and C make whole units of the arena. */
CK_TEST(arithmetic_of_policies) {
  const uint64_t last = 2 * KEPT + 2 * SMALL; /* the last norm's */
  const int layers[] = {12, 24, 48};
  for (int i = 0; i < 3; i++) {
    const uint64_t l = (uint64_t)layers[i], k = (uint64_t)ceil(sqrt((double)l));
    const uint64_t plain = measure(layers[i], "none").between;
    ck_assert_uint_eq(plain, l * BLOCK + last);
    ck_assert_uint_eq(measure(layers[i], "cheap").between, plain - l * 6 * KEPT - KEPT);
    ck_assert_uint_eq(measure(layers[i], "every=1").between, l * KEPT + last);
    ck_assert_uint_eq(measure(layers[i], "all").between, KEPT + last);
    ck_assert_uint_eq(measure(layers[i], "sqrt").between, (l + k - 1) / k * KEPT + last);
    ck_assert_uint_eq(measure(layers[i], "all").peak, measure(12, "all").peak);
    /* The last but one segment of sqrt is whole. What is more are gradients on their way. */
    const uint64_t segments = (l + k - 1) / k;
    const uint64_t sqrt_peak = (l % k == 0 ? segments - 1 : segments - 2) * KEPT + k * BLOCK;
    ck_assert_uint_ge(measure(layers[i], "sqrt").at_peak, sqrt_peak);
    ck_assert_uint_le(measure(layers[i], "sqrt").at_peak, sqrt_peak + sqrt_peak / 10);
    ck_assert_uint_le(100 * measure(layers[i], "cheap").at_peak,
                      65 * measure(layers[i], "none").at_peak);
  }
}

CK_SUITE("policies")
