/*
 * check_chain.c - a module's children one after the other, with residual connections.
 */
#include "ck_chained.h"
#include "ck_module.h"

enum { WIDTH = 4, LETTERS = 10 };

/* Children are hidden in sequentials of one: nothing is joined, and each function is called. */
static bool hidden;

static ek_status hide(ek_module **child) {
  return hidden ? ck_sequential(child, (ek_module *[]){*child}, 1, NULL) : EK_OK;
}

/* The step of a letter, whose child is the next. */
static size_t step_of(char letter, size_t child) {
  switch (letter) {
  case '+': return EK_CHAIN_ADD;
  case 'P': return EK_CHAIN_ADD_CHILD(child);
  case 'M': return EK_CHAIN_MULTIPLY_CHILD(child);
  case 'G': return hidden ? child : EK_CHAIN_ACTIVATION(EK_ACTIVATION_GELU);
  case 'T': return hidden ? child : EK_CHAIN_ACTIVATION(EK_ACTIVATION_RELU);
  default: return child;
  }
}

/* A chain by a letter for each step: l is a linear, g GELU, r ReLU, s SiLU, N a layer norm, D
 * dropout, I what only shares its input; G and T are GELU and ReLU without a child; + adds, P adds
 * a linear on the shortcut, M multiplies with one. With `recompute`. */
static ek_status create_steps(ek_module **module, const char *letters, ek_recompute recompute) {
  ek_module *children[CK_CHAINED_CHILDREN + 1] = {NULL};
  size_t steps[LETTERS + 1], count = 0, i = 0;
  ek_status status = EK_OK;
  CK_WITH(ek_layer_norm_options, no_bias, EK_LAYER_NORM_OPTIONS_INIT, .bias = false);
  for (; letters[i] != '\0' && status == EK_OK; i++) {
    steps[i] = step_of(letters[i], count);
    if (strchr("+GT", letters[i]) != NULL && !(hidden && letters[i] != '+')) continue;
    ek_module **child = &children[count++];
    switch (letters[i]) {
    case 'G':
    case 'g': status = ek_activation_create(child, EK_ACTIVATION_GELU); break;
    case 'T': status = ek_activation_create(child, EK_ACTIVATION_RELU); break;
    case 'r': status = ek_activation_create(child, EK_ACTIVATION_RELU); break;
    case 's': status = ek_activation_create(child, EK_ACTIVATION_SILU); break;
    case 'N': status = ek_layer_norm_create(child, WIDTH, 1e-5); break;
    case 'n': status = ek_layer_norm_create_with(child, WIDTH, &no_bias); break;
    case 'D': status = ek_dropout_create(child, 0.3); break;
    case 'I': status = ek_dropout_create(child, 0.0); break;
    default: status = ek_linear_create(child, WIDTH, WIDTH, true); break;
    }
    if (status == EK_OK) status = hide(child);
  }
  steps[i] = CK_CHAINED_END;
  if (status == EK_OK) return ck_chained_create(module, children, NULL, steps, recompute);
  for (size_t k = 0; k < count; k++) ek_module_free(children[k]);
  return status;
}

/* A chain of chains, of which '|' separates the steps. */
static ek_status create_nested(ek_module **module, const char *letters, ek_recompute recompute,
                               ek_recompute inner) {
  ek_module *children[CK_CHAINED_CHILDREN + 1] = {NULL};
  size_t count = 0;
  ek_status status = EK_OK;
  for (const char *from = letters; from != NULL && status == EK_OK;) {
    const char *const bar = strchr(from, '|');
    char part[LETTERS + 1] = "";
    memcpy(part, from, bar == NULL ? strlen(from) : (size_t)(bar - from));
    status = create_steps(&children[count], part, inner);
    if (status == EK_OK) count++;
    from = bar == NULL ? NULL : bar + 1;
  }
  if (status == EK_OK) return ck_chained_create(module, children, NULL, NULL, recompute);
  for (size_t k = 0; k < count; k++) ek_module_free(children[k]);
  return status;
}

/* ---- what holds for every module ---- */

#define NONE                                                                                       \
  { EK_RECOMPUTE_NONE, 0, 0 }
#define EVERY(n)                                                                                   \
  { EK_RECOMPUTE_EVERY, n, 0 }
#define ALL                                                                                        \
  { EK_RECOMPUTE_ALL, 0, 0 }
#define CHEAP                                                                                      \
  { EK_RECOMPUTE_CHEAP, 0, 0 }

/* X(function, steps, recomputation, operations one after the other, tensors kept). */
#define CHAINS(X)                                                                                  \
  X(plain, "lgl", NONE, 10, 2)                                                                     \
  X(around, "Nl+", NONE, 16, 3)                                                                    \
  X(without_bias, "nl+n", NONE, 26, 6)                                                             \
  X(norm_alone, "N+", NONE, 12, 2)                                                                 \
  X(decoder, "Nl+NlgD+", NONE, 44, 8)                                                              \
  X(after, "l+N", NONE, 16, 3)                                                                     \
  X(childless, "lGlT", NONE, 12, 3)                                                                \
  X(gated, "lsMl", NONE, 16, 3)                                                                    \
  X(gated_with_gelu, "lGMl", NONE, 16, 3)                                                          \
  X(multiplied, "lM", NONE, 12, 2)                                                                 \
  X(multiplied_at_once, "M", NONE, 8, 1)                                                           \
  X(activated_at_once, "TM", NONE, 8, 1)                                                           \
  X(gate_after_a_pair, "lglsM", NONE, 24, 4)                                                       \
  X(shared_gradient, "lMI", NONE, 12, 2)                                                           \
  X(second_projection, "lPNlP", NONE, 32, 4)                                                       \
  X(projected, "lrlP", NONE, 16, 1)                                                                \
  X(projected_at_once, "Pr", NONE, 8, 1)                                                           \
  X(projected_norm, "NlPNl", NONE, 32, 7)                                                          \
  X(gates_by_one, "NlsMlP", EVERY(1), 40, 1)                                                       \
  X(cheap_gate, "NlsMNl+", CHEAP, 44, 7)                                                           \
  X(twice, "l++l+", NONE, 12, 1)                                                                   \
  X(first, "+l+", NONE, 8, 1)                                                                      \
  X(shared, "I+r+", NONE, 8, 1)                                                                    \
  X(by_one, "Nl+Nlgl+l", EVERY(1), 52, 2)                                                          \
  X(by_three, "Nl+Nlgl+l", EVERY(3), 52, 2)                                                        \
  X(from_the_first, "l+Nr+lg", ALL, 40, 0)                                                         \
  X(cheap_result, "Nrl", CHEAP, 20, 2)                                                             \
  X(cheap_result_at_the_end, "lNr", CHEAP, 20, 4)                                                  \
  X(cheap_results, "NrlNrlNr+", CHEAP, 60, 8)                                                      \
  X(cheap, "Nl+NlgD+", CHEAP, 44, 6)

#define CREATE(name, steps, policy, depth, kept)                                                   \
  static ek_status create_##name(ek_module **module) {                                             \
    return create_steps(module, steps, (ek_recompute)policy);                                      \
  }
CHAINS(CREATE)

#define CASE(name_, steps, policy, depth_, kept)                                                   \
  {.name = #name_ " " steps,                                                                       \
   .create = create_##name_,                                                                       \
   .input = {{0, 2, {5, WIDTH}, -1, 1, 0.01}},                                                     \
   .longest = 5,                                                                                   \
   .depth = (depth_),                                                                              \
   .saved = (kept)},
static const struct ck_module_case cases[] = {CHAINS(CASE)};
CK_MODULE_CASES(cases)

/* ---- bits ---- */

static const char *const paths[] = {"Nl+NlgD+", "Nl+Nlgl+l", "l+Nr+lg", "l++l+", "+N+", "DN+gl",
                                    "lsMlP",    "NGMl+",     "lgMNlP",  "lMTl+", "PNM", "s+P+lr",
                                    "NrlNrlNr+", "NrDl", "Nr+lrl"};
static const ek_recompute policies[] = {CHEAP,    EVERY(1), EVERY(2),
                                        EVERY(3), ALL,      {EK_RECOMPUTE_SQRT, 0, 0}};
enum { PATHS = sizeof paths / sizeof *paths, POLICIES = sizeof policies / sizeof *policies };

static const char *chosen;
static ek_recompute how;
static ek_recompute inner = NONE; /* of the chains in a chain */
static ek_status create_chosen(ek_module **module) {
  if (strchr(chosen, '|') != NULL) return create_nested(module, chosen, how, inner);
  return create_steps(module, chosen, how);
}

static struct ck_results *run(ek_recompute recompute, const char *path, ek_type type,
                              uint64_t *held) {
  how = recompute;
  chosen = path;
  struct ck_bed *bed = CK_BED(create_chosen, type, 0, 2, {5, WIDTH}, -1, 1, 0);
  struct ck_results *results = ck_bed_backward(bed, true);
  *held = ck_bed_held(bed);
  ck_bed_close(bed);
  return results;
}

/* Segments begin after an addition, too, where an addition and a norm otherwise run in one go. */
CK_LOOP(recomputed_to_the_same_bits, POLICIES) {
  uint64_t held, before;
  for (int path = 0; path < PATHS; path++) {
    for (int type = 0; type < 2; type++) {
      const ek_type t = type == 0 ? EK_F32 : EK_F64;
      struct ck_results *want = run((ek_recompute)NONE, paths[path], t, &before);
      struct ck_results *got = run(policies[_i], paths[path], t, &held);
      ck_results_same(got, want);
      ck_assert_uint_eq(held, before);
    }
  }
}

/* Random paths: recomputed they have the same bits, and the numbers of children that run one by
 * one, which add up in another order: 1e-10 is 10 operations of 4 terms each, a thousand times over
 * for norms of rows that are nearly constant. */
CK_LOOP(random_paths, 120) {
  static const char letters[] = "llgrNNI+++sGTMP";
  struct ck_random random = ck_random_start((uint64_t)_i + 1);
  char path[LETTERS + 1] = "";
  uint64_t held, before;
  const int length = (int)ck_random_integer(&random, 1, LETTERS);
  for (int i = 0, children = 0; i < length; i++) {
    do {
      path[i] = letters[ck_random_integer(&random, 0, (int64_t)sizeof letters - 2)];
    } while (path[i] != '+' && children == CK_CHAINED_CHILDREN);
    children += path[i] != '+';
    path[i + 1] = '\0';
  }
  if (strspn(path, "+GT") == strlen(path)) path[0] = 'l'; /* a module has children */
  struct ck_results *want = run((ek_recompute)NONE, path, EK_F64, &before);
  struct ck_results *again = run(policies[_i % POLICIES], path, EK_F64, &held);
  ck_results_same(again, want);
  ck_assert_uint_eq(held, before);
  hidden = true;
  struct ck_results *apart = run((ek_recompute)NONE, path, EK_F64, &held);
  hidden = false;
  ck_assert_msg(ck_results_near(want, apart, 1e-10), "%s", path);
}

/* An addition that a chain leaves to the norm of the next one has the bits of its own, with any
 * neighbour and policy. Three in a row: with and without a branch, after dropout, beside what is no
 * norm, over a projection, and a norm without a branch. */
CK_LOOP(sums_of_neighbours, POLICIES + 1) {
  static const char *const chains[] = {"Nl+|NlgD+|Nl+", "l+|l+|N+",   "NlP|Nl+|N",  "Nl+|N|Nl+",
                                       "lD+|Nr+|NlsM",  "NlsM|Nl+|+", "+|N+|+|N+", "Nl+|Nr|Nl"};
  const ek_recompute outer = _i < POLICIES ? policies[_i] : (ek_recompute)NONE;
  uint64_t held, before;
  for (size_t i = 0; i < sizeof chains / sizeof *chains; i++) {
    for (int type = 0; type < 2; type++) {
      const ek_type t = type == 0 ? EK_F32 : EK_F64;
      inner = i % 2 == 0 ? (ek_recompute)NONE : policies[_i % POLICIES];
      ck_chained_apart = true;
      struct ck_results *want = run((ek_recompute)NONE, chains[i], t, &before);
      ck_chained_apart = false;
      struct ck_results *got = run(outer, chains[i], t, &held);
      ck_results_same(got, want);
      if (_i == POLICIES) ck_assert_uint_eq(held, before);
    }
  }
  inner = (ek_recompute)NONE;
}

/* ---- failures ---- */

static ek_status there_and_back(const struct ck_bed *bed) {
  ek_tensor y = {0}, dx = {0};
  CK_SCOPED(ek_pass *, pass, ek_pass_open(&pass, bed->replica, &bed->options));
  ek_status status = ek_pass_run_forward(&y, pass, bed->input);
  if (status == EK_OK) status = ek_pass_run_backward(&dx, pass, bed->grad_output);
  ek_tensor_free(&y);
  ek_tensor_free(&dx);
  return status;
}

/* Each piece of work fails once, and nothing is held afterwards. */
CK_LOOP(failures_leave_nothing, POLICIES + 1) {
  ek_status status = EK_ERR_UNAVAILABLE;
  uint64_t failed = 0;
  chosen = _i < POLICIES ? "NGMlPN+lsM" : "Nl+|NlgD+|Nl+|l+|N+";
  how = _i < POLICIES ? policies[_i] : (ek_recompute)NONE;
  struct ck_bed *bed = CK_BED(create_chosen, EK_F32, 0, 2, {5, WIDTH}, -1, 1, 0);
  const uint64_t held = ck_bed_held(bed);
  for (uint64_t n = 1; status != EK_OK; n++) {
    ck_ok(ek_fault_at(bed->device, n, EK_ERR_UNAVAILABLE));
    status = there_and_back(bed);
    ck_ok(ek_fault_at(bed->device, 0, EK_OK));
    if (status != EK_OK) ck_assert_int_eq(status, EK_ERR_UNAVAILABLE);
    failed += status != EK_OK;
    ck_assert_uint_eq(ck_bed_held(bed), held);
  }
  ck_assert_uint_gt(failed, 20);
  ck_bed_close(bed);
}

/* ---- modules of a program's own that declare formulas ---- */

/* A layer norm by its formula, whose functions must not be called. */
struct declared {
  ek_module base;
  ek_formula formula;
};

CK_PARAMETERS(declared) {
  EK_TRY(ek_declare_parameter(declaration, "bias", CK_SHAPE(WIDTH), ek_initializer_zeros()));
  return ek_declare_parameter(declaration, "weight", CK_SHAPE(WIDTH), ek_initializer_ones());
}

static void declared_formula(const ek_module *self, ek_formula *formula) {
  *formula = ((const struct declared *)self)->formula;
}

static ek_status never(const ek_module *self, ek_pass *pass, const ek_tensor *given,
                       ek_tensor *made) {
  (void)self, (void)pass, (void)given, (void)made;
  return ek_error_set(EK_ERR_INTERNAL, "this function must not be called");
}

static const ek_module_ops declared_ops = {
    CK_OPS("declared", never, never, ck_plain_free), .parameters = declared_parameters,
    .types = EK_TYPES_F32 | EK_TYPES_F64, .formula = declared_formula};

static double epsilon;
static size_t weight;

static ek_status create_declared(ek_module **module) {
  struct declared *norm = ck_module_new(sizeof *norm, &declared_ops, 1, 1);
  ek_module *children[] = {NULL, NULL, NULL};
  static const size_t steps[] = {0, EK_CHAIN_ADD, 1, CK_CHAINED_END};
  norm->formula = (ek_formula){.kind = EK_FORMULA_NORM, .weight = weight, .has_bias = true};
  norm->formula.epsilon = epsilon;
  children[1] = &norm->base;
  ck_ok(ek_linear_create(&children[0], WIDTH, WIDTH, true));
  return ck_chained_create(module, children, NULL, steps, (ek_recompute)NONE);
}

static ek_status create_like_it(ek_module **module) {
  return create_steps(module, "l+N", (ek_recompute)NONE);
}

/* A layer norm of a program's own has the bits of the stock one; a wrong formula is an error. */
CK_TEST(a_norm_is_known_by_its_formula) {
  const char *const names[] = {"0.weight", "0.bias", "1.weight", "1.bias"};
  weight = 1;
  epsilon = 1e-5;
  struct ck_bed *stock = CK_BED(create_like_it, EK_F32, 0, 2, {5, WIDTH}, -1, 1, 0);
  struct ck_bed *own = CK_BED(create_declared, EK_F32, 0, 2, {5, WIDTH}, -1, 1, 0);
  for (int i = 0; i < 4; i++) {
    CK_GOT(ek_parameter_info, info, ek_replica_find(&info, stock->replica, names[i]));
    ck_bed_set(own, names[i], ck_got(&info.value));
  }
  struct ck_results *want = ck_bed_backward(stock, true), *got = ck_bed_backward(own, true);
  ck_same_bits("y", got->output[0], want->output[0], want->output_count[0]);
  ck_same_bits("dx", got->grad_input[0], want->grad_input[0], want->input_count[0]);
  ck_bed_close(own);
  ck_bed_close(stock);
  ek_module *module = NULL;
  for (weight = 0; weight < 3; weight += 2) {
    epsilon = weight == 0 ? -1.0 : 1e-5;
    ck_ok(create_declared(&module));
    ck_forward_fails(module, EK_ERR_INVALID_ARGUMENT, weight == 0 ? "epsilon" : "no parameter",
                     EK_F32, CK_SHAPE(2, WIDTH));
    ek_module_free(module);
  }
}

/* ---- wrong use ---- */

/* A container that hands on what a test says. */
struct raw {
  ek_module base, *children[2];
  ek_chain forward, backward;
};

CK_PARAMETERS(raw) {
  const struct raw *m = (const struct raw *)self;
  EK_TRY(ek_declare_module(declaration, "wide", m->children[0]));
  return ek_declare_module(declaration, "narrow", m->children[1]);
}

CK_FORWARD(raw) {
  return ek_chain_forward(outputs, pass, inputs, &((const struct raw *)self)->forward);
}

CK_BACKWARD(raw) {
  return ek_chain_backward(grad_inputs, pass, grad_outputs, &((const struct raw *)self)->backward);
}

static const ek_module_ops raw_ops = {CK_OPS("raw", raw_forward, raw_backward, ck_no_free),
                                      .parameters = raw_parameters};

/* A pass there and back with these chains; the devices hold nothing afterwards. */
static ek_status pass_with(const ek_chain *forward, const ek_chain *backward) {
  struct raw m = {.forward = *forward, .backward = *backward};
  ck_ok(ek_linear_create(&m.children[0], WIDTH, WIDTH, true));
  ck_ok(ek_linear_create(&m.children[1], WIDTH, 2, true));
  ck_ok(ek_module_init(&m.base, &raw_ops, 1, 1));
  CK_HELD(ek_group *, group, ck_open("cpu:1", 1));
  ek_device *device = ek_group_device(group, 0);
  ek_tensor x = ck_upload(device, EK_F32, NULL, CK_SHAPE(3, WIDTH)), y = {0};
  CK_GOT(ek_replica *, replica, ek_replica_open(&replica, device, &m.base, NULL));
  CK_GOT(ek_pass *, pass, ek_pass_open(&pass, replica, NULL));
  ek_status status = ek_pass_run_forward(&y, pass, &x);
  if (status == EK_OK) status = ek_pass_run_backward(NULL, pass, &y);
  ek_tensor_free(&y);
  ek_tensor_free(&x);
  ek_pass_free(pass);
  ek_replica_free(replica);
  ek_module_free(&m.base);
  for (int i = 0; i < 2; i++) ek_module_free(m.children[i]);
  return status;
}

static ek_status bad_chain(const size_t *steps, size_t count, ek_recompute recompute) {
  CK_WITH(ek_chain, chain, EK_CHAIN_INIT, .steps = steps, .count = count, .recompute = recompute);
  return pass_with(&chain, &chain);
}

CK_TEST(bad_steps) {
  static const size_t unknown[] = {0, 2}, shrinks[] = {1, EK_CHAIN_ADD}, right[] = {0, 1},
                      narrow[] = {1, 0}, no_shortcut[] = {0, EK_CHAIN_ADD_CHILD(2)},
                      no_factor[] = {0, EK_CHAIN_MULTIPLY_CHILD(3)},
                      adds_less[] = {0, EK_CHAIN_ADD_CHILD(1)},
                      multiplies_less[] = {0, EK_CHAIN_MULTIPLY_CHILD(1)},
                      no_activation[] = {0, EK_CHAIN_ACTIVATION(99)};
  const ek_recompute none = NONE, bytes = {EK_RECOMPUTE_BYTES, 0, 64},
                     negative = {EK_RECOMPUTE_EVERY, -1, 0};
  const ek_status bad = EK_ERR_INVALID_ARGUMENT;
  ck_ok(bad_chain(right, 2, none));
  ck_fails(bad_chain(unknown, 2, none), bad, "step 1 is child number 2; the module has 2 children");
  ck_fails(bad_chain(shrinks, 2, none), EK_ERR_SHAPE, "adds two tensors of different shapes");
  ck_fails(bad_chain(no_shortcut, 2, none), bad, "step 1 is child number 2");
  ck_fails(bad_chain(no_factor, 2, none), bad, "step 1 is child number 3");
  ck_fails(bad_chain(adds_less, 2, none), EK_ERR_SHAPE, "adds two tensors of different shapes");
  ck_fails(bad_chain(multiplies_less, 2, none), EK_ERR_SHAPE, "binary");
  ck_fails(bad_chain(no_activation, 2, none), bad, "activation");
  ck_fails(bad_chain(narrow, 2, none), EK_ERR_SHAPE, "input has 2 columns, expected 4");
  ck_fails(bad_chain(right, 2, bytes), bad, "ek_recompute_plan");
  ck_fails(bad_chain(right, 2, negative), bad, "expected 1 or more");
  ck_fails(bad_chain(NULL, 2, none), bad, "2 steps at NULL; expected both, or neither");
  ck_fails(bad_chain(right, 0, none), bad, "0 steps at an address");
  ck_fails(ek_chain_forward(NULL, NULL, NULL, NULL), bad, "ek_chain_forward: outputs is NULL");
  ck_fails(ek_chain_backward(NULL, NULL, NULL, NULL), bad, "ek_chain_backward: pass is NULL");
}

/* Another way back than there is an error. */
CK_TEST(another_way_back) {
  static const size_t both[] = {0, 1}, more[] = {0, 0, 1};
  ek_chain two = EK_CHAIN_INIT, one = EK_CHAIN_INIT, three = EK_CHAIN_INIT;
  two.steps = one.steps = both;
  two.count = 2;
  one.count = 1;
  ck_assign(three, .steps = more, .count = 3);
  ck_fails(pass_with(&two, &one), EK_ERR_STATE, "raw");
  ck_fails(pass_with(&one, &two), EK_ERR_STATE, "raw");
  ck_fails(pass_with(&two, &three), EK_ERR_STATE, "more tensors back than it saved");
}

CK_SUITE("chain")
