/*
 * check_module.c - the base of a module: its table, its references, and its declarations.
 */
#include <pthread.h>

#include "ck_module.h"

/* ---- a module that declares what a test tells it to, and is never run ---- */

struct declarer {
  ek_module base;
  ek_status (*declare)(ek_declaration *declaration, ek_module *child);
  ek_module *child;
  int freed;
};

CK_PARAMETERS(declarer) {
  const struct declarer *m = (const struct declarer *)self;
  return m->declare == NULL ? EK_OK : m->declare(declaration, m->child);
}

CK_FORWARD(declarer) { return ek_error_set(EK_ERR_INTERNAL, "declarer: was run"); }

CK_BACKWARD(declarer) { return ek_error_set(EK_ERR_INTERNAL, "declarer: was run"); }

/* The struct is the test's own: only counted. */
static void declarer_free(ek_module *self) { ((struct declarer *)self)->freed++; }

CK_MODULE_OPS_WITH(declarer, .parameters = declarer_parameters);

static ek_module *linear(void) {
  CK_OPENED(ek_module *, module, ek_linear_create(&module, 3, 2, true));
  return module;
}

/* ---- the table ---- */

CK_TEST(init) {
  CK_GOT(ek_module, module, ek_module_init(&module, &declarer_ops, 1, 1));
  ck_ok(ek_module_init(&module, &declarer_ops, EK_MAX_TENSORS, EK_MAX_TENSORS));
  ck_assert_ptr_eq(ek_module_table(&module), &declarer_ops);
  ck_assert_uint_eq(ek_module_inputs(&module), EK_MAX_TENSORS);
  ck_assert_uint_eq(ek_module_outputs(&module), EK_MAX_TENSORS);

  CK_WITH(ek_module_ops, ops, declarer_ops, .parameters = NULL);
  ck_ok(ek_module_init(&module, &ops, 1, 1));
  ck_invalid(ek_module_init(NULL, &ops, 1, 1), "");
  ck_invalid(ek_module_init(&module, NULL, 1, 1), "");
  ck_invalid(ek_module_init(&module, &ops, EK_MAX_TENSORS + 1, 1), "");
  ck_invalid(ek_module_init(&module, &ops, 1, SIZE_MAX), "");
  ck_ok(ek_module_init_with(&module, &ops, NULL));
  ck_assert(ek_module_inputs(&module) == 1 && ek_module_outputs(&module) == 1 &&
            ek_module_targets(&module) == 0);
  ck_assert_ptr_null(ek_criterion_of(&module));
  ck_assert_ptr_null(ek_criterion_of(NULL));
  CK_WITH(ek_module_options, options, EK_MODULE_OPTIONS_INIT, .targets = EK_MAX_TENSORS,
          .inputs = 2);
  ck_ok(ek_module_init_with(&module, &ops, &options));
  ck_assert(ek_module_inputs(&module) == 2 + EK_MAX_TENSORS &&
            ek_module_targets(&module) == EK_MAX_TENSORS);
  options.predictions = 1; /* without the slot */
  ck_invalid(ek_module_init_with(&module, &ops, &options), "0 to 0 predictions, not 1");
  ck_bad(options, targets, SIZE_MAX, ek_module_init_with(&module, &ops, &options), "targets");
  ck_bad(options, inputs, 0, ek_module_init_with(&module, &ops, &options), "inputs");
  ck_invalid(ek_module_init(&module, &ops, 0, 1), "");
  ck_invalid(ek_module_init(&module, &ops, 1, 0), "");
  ck_bad(ops, forward, NULL, ek_module_init(&module, &ops, 1, 1), "forward");
  ck_bad(ops, backward, NULL, ek_module_init(&module, &ops, 1, 1), "backward");
  ck_bad(ops, free, NULL, ek_module_init(&module, &ops, 1, 1), "free");
  ck_bad(ops, kind, NULL, ek_module_init(&module, &ops, 1, 1), "kind");
  ck_bad(ops, size, 0, ek_module_init(&module, &ops, 1, 1), "");
}

/* ---- references ---- */

CK_TEST(references) {
  struct declarer module = {.freed = 0};
  ck_ok(ek_module_init(&module.base, &declarer_ops, 1, 1));
  ck_assert_ptr_eq(ek_module_share(&module.base), &module.base);
  ck_assert_ptr_eq(ek_module_share(&module.base), &module.base);
  ek_module_free(&module.base);
  ek_module_free(&module.base);
  ck_assert_int_eq(module.freed, 0);
  ek_module_free(&module.base);
  ck_assert_int_eq(module.freed, 1);
  ck_assert_ptr_null(ek_module_share(NULL));
  ek_module_free(NULL);
}

static void *share_and_free(void *module) {
  for (int i = 0; i < 10000; i++) ek_module_free(ek_module_share(module));
  return NULL;
}

CK_TEST(references_from_threads) {
  struct declarer module = {.freed = 0};
  ck_ok(ek_module_init(&module.base, &declarer_ops, 1, 1));
  pthread_t threads[4];
  for (int i = 0; i < 4; i++) {
    ck_assert_int_eq(pthread_create(&threads[i], NULL, share_and_free, &module), 0);
  }
  for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
  ck_assert_int_eq(module.freed, 0);
  ek_module_free(&module.base);
  ck_assert_int_eq(module.freed, 1);
}

/* A replica keeps a reference: the module may be given up before it. */
CK_TEST(replica_keeps_a_reference) {
  struct declarer module = {.freed = 0};
  ck_ok(ek_module_init(&module.base, &declarer_ops, 1, 1));
  CK_GOT(ek_replica *, replica, ek_replica_open(&replica, ck_device("cpu:1"), &module.base, NULL));
  ek_module_free(&module.base);
  ck_assert_int_eq(module.freed, 0);
  ck_assert_ptr_eq(ek_replica_module(replica), &module.base);
  ek_replica_free(replica);
  ck_assert_int_eq(module.freed, 1);
}

/* ---- declarations ---- */

static const int64_t two_three[] = {2, 3}, three_two[] = {3, 2};

/* What the module of a test declares. */
#define DECLARES(name)                                                                             \
  static ek_status name(ek_declaration *d CK_ATTRIBUTE_UNUSED, ek_module *child CK_ATTRIBUTE_UNUSED)

static ek_status parameter(ek_declaration *d, const char *name, int rank, const int64_t *shape) {
  return ek_declare_parameter(d, name, rank, shape, ek_initializer_zeros());
}

DECLARES(twice) {
  EK_TRY(parameter(d, "weight", 2, two_three));
  return parameter(d, "weight", 1, two_three);
}
DECLARES(buffer_and_parameter) {
  EK_TRY(ek_declare_buffer(d, "weight", 2, two_three, ek_initializer_zeros()));
  return parameter(d, "weight", 1, two_three);
}
DECLARES(child_twice) {
  EK_TRY(ek_declare_module(d, "layer", child));
  return ek_declare_module(d, "layer", child);
}
DECLARES(child_and_parameter) {
  EK_TRY(ek_declare_module(d, "layer", child));
  return parameter(d, "layer", 1, two_three);
}
DECLARES(dotted) {
  return parameter(d, "a.b", 1, two_three);
}
DECLARES(dotted_child) {
  return ek_declare_module(d, "a.b", child);
}
DECLARES(empty) {
  return parameter(d, "", 1, two_three);
}
DECLARES(no_name) {
  return parameter(d, NULL, 1, two_three);
}
DECLARES(no_child) {
  return ek_declare_module(d, "layer", NULL);
}
DECLARES(no_shape) {
  return parameter(d, "weight", 1, NULL);
}
DECLARES(rank_nine) {
  static const int64_t shape[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
  return parameter(d, "weight", 9, shape);
}
DECLARES(negative) { return parameter(d, "weight", CK_SHAPE(2, -3)); }
DECLARES(huge) { return parameter(d, "weight", CK_SHAPE(INT64_C(1) << 40, INT64_C(1) << 40)); }
DECLARES(huge_sum) {
  static const int64_t shape[] = {INT64_C(1) << 60};
  EK_TRY(parameter(d, "a", 1, shape));
  EK_TRY(parameter(d, "b", 1, shape));
  return parameter(d, "c", 1, shape);
}
DECLARES(unknown_start) {
  const ek_initializer initializer = {(ek_initializer_kind)9, 0, 0, NULL};
  return ek_declare_parameter(d, "weight", 2, two_three, initializer);
}
DECLARES(null_values) {
  return ek_declare_buffer(d, "weight", 2, two_three, ek_initializer_values(NULL));
}
DECLARES(tie_unknown_name) {
  EK_TRY(ek_declare_module(d, "layer", child));
  return ek_declare_tie(d, "layer.nothing", "layer.weight");
}
DECLARES(tie_unknown_source) {
  EK_TRY(ek_declare_module(d, "layer", child));
  return ek_declare_tie(d, "layer.weight", "layers.weight");
}
DECLARES(tie_other_shape) {
  EK_TRY(ek_declare_module(d, "layer", child)); /* weight is 2 x 3 */
  EK_TRY(parameter(d, "weight", 2, three_two));
  return ek_declare_tie(d, "layer.weight", "weight");
}
DECLARES(tie_to_a_buffer) {
  EK_TRY(ek_declare_module(d, "layer", child));
  EK_TRY(ek_declare_buffer(d, "mean", 2, two_three, ek_initializer_zeros()));
  return ek_declare_tie(d, "layer.weight", "mean");
}
DECLARES(tie_nothing) {
  EK_TRY(ek_declare_module(d, "layer", child));
  return ek_declare_tie(d, NULL, "layer.weight");
}
DECLARES(wrap_second) {
  EK_TRY(ek_declare_module(d, "layer", child));
  return ek_declare_wrapped(d, child);
}
DECLARES(wrap_nothing) {
  return ek_declare_wrapped(d, NULL);
}
DECLARES(wrap_same_name) {
  EK_TRY(parameter(d, "weight", 2, two_three));
  return ek_declare_wrapped(d, child); /* weight and bias */
}
DECLARES(freeze_unknown) {
  EK_TRY(ek_declare_module(d, "layer", child));
  return ek_declare_frozen(d, "layer.weights");
}
DECLARES(freeze_part_of_a_name) {
  EK_TRY(ek_declare_module(d, "layer", child));
  return ek_declare_frozen(d, "lay");
}
DECLARES(freeze_too_early) {
  EK_TRY(ek_declare_frozen(d, "layer"));
  return ek_declare_module(d, "layer", child);
}
DECLARES(freeze_buffer) {
  EK_TRY(ek_declare_buffer(d, "mean", 2, two_three, ek_initializer_zeros()));
  return ek_declare_frozen(d, "mean");
}
DECLARES(freeze_nothing) {
  return ek_declare_frozen(d, NULL);
}
DECLARES(freeze_too_long) {
  static char path[700];
  memset(path, 'n', sizeof path - 1);
  return ek_declare_frozen(d, path);
}
DECLARES(not_text) {
  return parameter(d, "gr\xf6\xdf" "e", 1, two_three);
}
DECLARES(underscores) {
  return ek_declare_module(d, "__metadata__", child);
}
DECLARES(own_error) {
  return ek_error_set(EK_ERR_IO, "declarer: no such table on this %s", "shelf");
}

static const struct {
  ek_status (*declare)(ek_declaration *declaration, ek_module *child);
  ek_status status;
  const char *text;
} wrong[] = {
    {twice, EK_ERR_INVALID_ARGUMENT, "weight"},
    {buffer_and_parameter, EK_ERR_INVALID_ARGUMENT, "weight"},
    {child_twice, EK_ERR_INVALID_ARGUMENT, "layer"},
    {child_and_parameter, EK_ERR_INVALID_ARGUMENT, "layer"},
    {dotted, EK_ERR_INVALID_ARGUMENT, "a.b"},
    {dotted_child, EK_ERR_INVALID_ARGUMENT, "a.b"},
    {not_text, EK_ERR_INVALID_ARGUMENT, "is not UTF-8, or begins with"},
    {underscores, EK_ERR_INVALID_ARGUMENT, "the name \"__metadata__\" is not UTF-8, or begins"},
    {empty, EK_ERR_INVALID_ARGUMENT, ""},
    {no_name, EK_ERR_INVALID_ARGUMENT, ""},
    {no_child, EK_ERR_INVALID_ARGUMENT, ""},
    {no_shape, EK_ERR_INVALID_ARGUMENT, ""},
    {rank_nine, EK_ERR_INVALID_ARGUMENT, ""},
    {negative, EK_ERR_INVALID_ARGUMENT, ""},
    {huge, EK_ERR_OVERFLOW, ""},
    {huge_sum, EK_ERR_OVERFLOW, ""},
    {unknown_start, EK_ERR_INVALID_ARGUMENT, ""},
    {null_values, EK_ERR_INVALID_ARGUMENT, "the initial values of weight are NULL"},
    {tie_unknown_name, EK_ERR_NOT_FOUND, "layer.nothing"},
    {tie_unknown_source, EK_ERR_NOT_FOUND, "layers.weight"},
    {tie_other_shape, EK_ERR_SHAPE, "weight"},
    {tie_to_a_buffer, EK_ERR_SHAPE, "cannot tie layer.weight to mean"},
    {tie_nothing, EK_ERR_INVALID_ARGUMENT, ""},
    {wrap_second, EK_ERR_INVALID_ARGUMENT, "cannot also wrap another module"},
    {wrap_nothing, EK_ERR_INVALID_ARGUMENT, "NULL"},
    {wrap_same_name, EK_ERR_INVALID_ARGUMENT, "weight is declared twice"},
    {freeze_unknown, EK_ERR_NOT_FOUND,
     "cannot freeze \"layer.weights\": no parameter or module of this name is declared before; the "
     "nearest name is \"layer.weight\""},
    {freeze_part_of_a_name, EK_ERR_NOT_FOUND, "the nearest name is \"layer\""},
    {freeze_too_early, EK_ERR_NOT_FOUND, "\"layer\": nothing is declared before it"},
    {freeze_buffer, EK_ERR_INVALID_ARGUMENT, "cannot freeze mean: it is a buffer"},
    {freeze_nothing, EK_ERR_INVALID_ARGUMENT, "NULL"},
    {freeze_too_long, EK_ERR_INVALID_ARGUMENT, "is too long"},
    {own_error, EK_ERR_IO, "declarer: no such table on this shelf"},
};

CK_LOOP(wrong_declaration, sizeof wrong / sizeof *wrong) {
  ek_module *child = linear();
  struct declarer module = {.declare = wrong[_i].declare, .child = child};
  ck_ok(ek_module_init(&module.base, &declarer_ops, 1, 1));
  ck_replica_fails(&module.base, "plan:1", wrong[_i].status, wrong[_i].text);
  ek_module_free(&module.base);
  ck_assert_int_eq(module.freed, 1);
}

DECLARES(all_kinds) {
  EK_TRY(ek_declare_parameter(d, "scalar", 0, NULL, ek_initializer_constant(2.5)));
  EK_TRY(ek_declare_buffer(d, "running", 2, two_three, ek_initializer_ones()));
  EK_TRY(ek_declare_module(d, "layer", child));
  EK_TRY(ek_declare_parameter(d, "weight", 2, two_three, ek_initializer_normal(1, 0.1)));
  return ek_declare_tie(d, "layer.weight", "weight");
}

CK_TEST(right_declaration) {
  ek_module *child = linear();
  struct declarer module = {.declare = all_kinds, .child = child};
  ck_ok(ek_module_init(&module.base, &declarer_ops, 1, 1));
  CK_GOT(ek_replica *, replica, ek_replica_open(&replica, ck_device("cpu:1"), &module.base, NULL));
  double value = 0;
  CK_GOT(ek_parameter_info, info, ek_replica_find(&info, replica, "scalar"));
  ck_assert_int_eq(info.value.rank, 0);
  ck_get(&value, &info.value);
  ck_assert(value == 2.5);
  ck_ok(ek_replica_find(&info, replica, "running"));
  ck_assert(info.buffer);
  ck_assert(!ek_tensor_exists(&info.gradient));
  ck_ok(ek_replica_find(&info, replica, "weight"));
  CK_GOT(ek_parameter_info, tied, ek_replica_find(&tied, replica, "layer.weight"));
  ck_assert_ptr_eq(info.value.data, tied.value.data);
  ck_assert_ptr_eq(info.gradient.data, tied.gradient.data);
  ck_assert_uint_eq(ek_replica_parameter_count(replica), 4); /* scalar running layer.bias weight */
  ek_replica_free(replica);
  ek_module_free(&module.base);
}

/* Only a criterion has totals: a module that claims them is never taken for one. */
CK_TEST(terms_without_a_criterion) {
  struct declarer module = {.declare = NULL};
  ck_ok(ek_module_init(&module.base, &declarer_ops, 1, 1));
  module.base.private_members.terms = 1;
  ck_assert_ptr_null(ek_criterion_of(&module.base));
  ck_assert(!ek_module_is_criterion(&module.base));
  ck_replica_fails(&module.base, "plan:1", EK_ERR_INVALID_ARGUMENT, "0 to 0 terms, not 1");
  ek_module_free(&module.base);
}

CK_TEST(what_a_module_is_can_be_read) {
  struct declarer module = {.declare = NULL};
  CK_WITH(ek_module_options, options, EK_MODULE_OPTIONS_INIT, .inputs = 2, .outputs = 4,
          .targets = 3);
  ck_ok(ek_module_init_with(&module.base, &declarer_ops, &options));
  ck_assert_ptr_eq(ek_module_table(&module.base), &declarer_ops);
  ck_assert_str_eq(ek_module_kind(&module.base), declarer_ops.kind);
  ck_assert_uint_eq(ek_module_inputs(&module.base), 5);
  ck_assert_uint_eq(ek_module_outputs(&module.base), 4);
  ck_assert_uint_eq(ek_module_targets(&module.base), 3);
  ck_assert(ek_module_predictions(&module.base) == 0 && ek_module_terms(&module.base) == 0);
  ek_module_free(&module.base);
  ck_assert(ek_module_table(NULL) == NULL && strcmp(ek_module_kind(NULL), "") == 0);
  ck_assert(ek_module_inputs(NULL) + ek_module_outputs(NULL) + ek_module_targets(NULL) == 0);
  ck_assert(ek_module_predictions(NULL) + ek_module_terms(NULL) == 0);
  ck_assert(!ek_module_is_criterion(NULL) && ek_criterion_coefficients(NULL) == NULL);
  ck_assert(ek_criterion_outputs(NULL) == 0 && ek_criterion_reduction(NULL) == EK_REDUCTION_MEAN);
}

CK_TEST(no_declaration) {
  const ek_initializer zeros = ek_initializer_zeros();
  CK_OPENED(ek_module *, child, ek_linear_create(&child, 3, 2, true));
  ck_invalid(ek_declare_parameter(NULL, "a", 2, two_three, zeros), "");
  ck_invalid(ek_declare_buffer(NULL, "a", 2, two_three, zeros), "");
  ck_invalid(ek_declare_module(NULL, "a", child), "");
  ck_invalid(ek_declare_wrapped(NULL, child), "");
  ck_invalid(ek_declare_tie(NULL, "a", "b"), "");
  ck_invalid(ek_declare_frozen(NULL, "a"), "");
}

/* ---- frozen by path ---- */

DECLARES(two_layers) {
  EK_TRY(ek_declare_parameter(d, "own", 2, two_three, ek_initializer_ones()));
  EK_TRY(ek_declare_buffer(d, "layer_mean", 2, two_three, ek_initializer_ones()));
  EK_TRY(ek_declare_module(d, "layer", child));
  return ek_declare_module(d, "layer_1", child);
}
DECLARES(freeze_child) {
  EK_TRY(two_layers(d, child));
  return ek_declare_frozen(d, "layer");
}
DECLARES(freeze_bias) {
  EK_TRY(two_layers(d, child));
  EK_TRY(ek_declare_frozen(d, "layer_1.bias"));
  return ek_declare_frozen(d, "layer_1.bias");
}
DECLARES(freeze_all) {
  EK_TRY(two_layers(d, child));
  EK_TRY(ek_declare_frozen(d, ""));
  return ek_declare_parameter(d, "later", 2, two_three, ek_initializer_ones());
}
DECLARES(freeze_then_tie) {
  EK_TRY(two_layers(d, child));
  EK_TRY(ek_declare_frozen(d, "layer_1"));
  return ek_declare_tie(d, "layer_1.weight", "layer.weight");
}
DECLARES(tie_then_freeze) {
  EK_TRY(two_layers(d, child));
  EK_TRY(ek_declare_tie(d, "layer_1.weight", "layer.weight"));
  return ek_declare_frozen(d, "layer_1.weight");
}

static const struct {
  ek_status (*declare)(ek_declaration *declaration, ek_module *child);
  const char *frozen; /* names, each with a blank before and after it */
} by_path[] = {{two_layers, " "},
               {freeze_child, " layer.weight layer.bias "},
               {freeze_bias, " layer_1.bias "},
               {freeze_all, " own layer.weight layer.bias layer_1.weight layer_1.bias "},
               {freeze_then_tie, " layer.weight layer_1.bias "},
               {tie_then_freeze, " layer.weight "}};

static void frozen_are(ek_module *module, const char *names) {
  CK_HELD(ek_group *, group, ck_open("plan:1", 1));
  CK_SCOPED(ek_replica *, replica,
            ek_replica_open(&replica, ek_group_device(group, 0), module, NULL));
  for (size_t i = 0; i < ek_replica_parameter_count(replica); i++) {
    CK_GOT(ek_parameter_info, info, ek_replica_parameter(&info, replica, i));
    const char *name = ck_text(" %s ", info.name);
    ck_assert_msg(info.frozen == (strstr(names, name) != NULL), "%s", info.name);
  }
}

CK_LOOP(frozen_by_path, sizeof by_path / sizeof *by_path) {
  ek_module *child = linear();
  struct declarer module = {.declare = by_path[_i].declare, .child = child};
  ck_ok(ek_module_init(&module.base, &declarer_ops, 1, 1));
  frozen_are(&module.base, by_path[_i].frozen);
  ek_module_free(&module.base);
}

DECLARES(freeze_myself) {
  EK_TRY(parameter(d, "weight", 2, two_three));
  return ek_declare_frozen(d, "");
}
DECLARES(freeze_of_others) {
  return ek_declare_frozen(d, "scale");
}
DECLARES(scale_and_wrap) {
  EK_TRY(parameter(d, "scale", 2, two_three));
  return ek_declare_wrapped(d, child);
}

/* A wrapped child, whose names are beside its wrapper's, freezes its own parameters only. */
CK_TEST(wrapped_child_freezes_its_own) {
  struct declarer child = {.declare = freeze_myself};
  struct declarer module = {.declare = scale_and_wrap, .child = &child.base};
  ck_ok(ek_module_init(&child.base, &declarer_ops, 1, 1));
  ck_ok(ek_module_init(&module.base, &declarer_ops, 1, 1));
  frozen_are(&module.base, " weight ");
  child.declare = freeze_of_others;
  ck_replica_fails(&module.base, "plan:1", EK_ERR_NOT_FOUND, "cannot freeze \"scale\"");
  ek_module_free(&module.base);
  ek_module_free(&child.base);
}

/* A wrapper has the names of what it wraps, its own and ties beside them. */
DECLARES(wrap_and_add) {
  EK_TRY(ek_declare_wrapped(d, child));
  EK_TRY(ek_declare_parameter(d, "scale", 2, two_three, ek_initializer_ones()));
  return ek_declare_tie(d, "scale", "weight");
}

CK_TEST(wrapped) {
  ek_module *child = linear();
  struct declarer module = {.declare = wrap_and_add, .child = child};
  ck_ok(ek_module_init(&module.base, &declarer_ops, 1, 1));
  ek_group *group = ck_open("cpu:1", 1);
  ek_replica *replica = NULL, *alone = NULL;
  ck_ok(ek_replica_open(&replica, ek_group_device(group, 0), &module.base, NULL));
  ck_ok(ek_replica_open(&alone, ek_group_device(group, 0), child, NULL));
  ck_assert_uint_eq(ek_replica_parameter_count(replica), 2);
  for (size_t i = 0; i < 2; i++) {
    double a[6], b[6];
    CK_GOT(ek_parameter_info, mine, ek_replica_parameter(&mine, replica, i));
    CK_GOT(ek_parameter_info, its, ek_replica_parameter(&its, alone, i));
    ck_assert_str_eq(mine.name, its.name);
    ck_get(a, &mine.value);
    ck_get(b, &its.value);
    ck_same_bits(its.name, a, b, ek_tensor_count(&its.value));
  }
  ek_replica_free(replica);
  ek_replica_free(alone);
  ek_module_free(&module.base);
  /* One that wraps itself has no end. */
  module = (struct declarer){.declare = ek_declare_wrapped};
  ck_ok(ek_module_init(&module.base, &declarer_ops, 1, 1));
  module.child = &module.base;
  ck_invalid(ek_replica_open(&replica, ek_group_device(group, 0), &module.base, NULL),
             "does a module contain itself?");
  ek_module_free(&module.base);
}

CK_SUITE("module")
