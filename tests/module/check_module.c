/*
 * check_module.c - the base of a module: its table, its references, and its declarations.
 */
#include <pthread.h>

#include "ck_module.h"

/* ---- a module that declares what a test tells it to, and is never run ---- */

/* One call of a declaration; in arrays of them the last one has the kind 0. */
struct call {
  enum { END, PARAMETER, BUFFER, CHILD, TIE, WRAP, FREEZE } kind;
  const char *name, *source; /* source: of a tie */
  int rank;
  const int64_t *shape;
  bool null; /* NULL instead of the child */
};

struct declarer {
  ek_module base;
  const struct call *calls; /* or NULL; then what `declare` does, or nothing */
  ek_status (*declare)(ek_declaration *declaration, ek_module *child);
  ek_module *child;
  int freed;
};

static ek_status declare(ek_declaration *d, const struct call *call, ek_module *child) {
  switch (call->kind) {
  case END: return EK_OK;
  case PARAMETER:
    return ek_declare_parameter(d, call->name, call->rank, call->shape, ek_initializer_zeros());
  case BUFFER:
    return ek_declare_buffer(d, call->name, call->rank, call->shape, ek_initializer_zeros());
  case CHILD: return ek_declare_module(d, call->name, call->null ? NULL : child);
  case TIE: return ek_declare_tie(d, call->name, call->source);
  case WRAP: return ek_declare_wrapped(d, call->null ? NULL : child);
  case FREEZE: return ek_declare_frozen(d, call->name);
  }
  return EK_ERR_INTERNAL;
}

CK_PARAMETERS(declarer) {
  const struct declarer *m = (const struct declarer *)self;
  for (const struct call *call = m->calls; call != NULL && call->kind != END; call++) {
    EK_TRY(declare(declaration, call, m->child));
  }
  return m->declare == NULL ? EK_OK : m->declare(declaration, m->child);
}

CK_FORWARD(declarer) { return ek_error_set(EK_ERR_INTERNAL, "declarer: was run"); }

/* The struct is the test's own: only counted. */
static void declarer_free(ek_module *self) { ((struct declarer *)self)->freed++; }

static const ek_module_ops declarer_ops = {
    CK_OPS("declarer", declarer_forward, declarer_forward, declarer_free),
    .parameters = declarer_parameters};

#define DECLARER(module, ...)                                                                      \
  struct declarer module = {__VA_ARGS__};                                                          \
  ck_ok(ek_module_init(&(module).base, &declarer_ops, 1, 1))

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
  DECLARER(module, .freed = 0);
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
  DECLARER(module, .freed = 0);
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
  DECLARER(module, .freed = 0);
  CK_GOT(ek_replica *, replica, ek_replica_open(&replica, ck_device("cpu:1"), &module.base, NULL));
  ek_module_free(&module.base);
  ck_assert_int_eq(module.freed, 0);
  ck_assert_ptr_eq(ek_replica_module(replica), &module.base);
  ek_replica_free(replica);
  ck_assert_int_eq(module.freed, 1);
}

/* ---- declarations ---- */

static const int64_t two_three[] = {2, 3}, three_two[] = {3, 2},
                     nine[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1}, negative[] = {2, -3},
                     huge[] = {INT64_C(1) << 40, INT64_C(1) << 40}, large[] = {INT64_C(1) << 60};
static char long_path[700];

#define DECLARED(name_, rank_, shape_)                                                             \
  { .kind = PARAMETER, .name = name_, .rank = rank_, .shape = shape_ }
#define MATRIX(name_) DECLARED(name_, 2, two_three)
#define VECTOR(name_) DECLARED(name_, 1, two_three)
#define BUFFER(name_)                                                                              \
  { .kind = BUFFER, .name = name_, .rank = 2, .shape = two_three }
#define CHILD(name_)                                                                               \
  { .kind = CHILD, .name = name_ }
#define TIE(name_, source_)                                                                        \
  { .kind = TIE, .name = name_, .source = source_ }
#define WRAPS                                                                                      \
  { .kind = WRAP }
#define FREEZE(name_)                                                                              \
  { .kind = FREEZE, .name = name_ }

/* What the module of a test declares otherwise. */
#define DECLARES(name)                                                                             \
  static ek_status name(ek_declaration *d CK_ATTRIBUTE_UNUSED, ek_module *child CK_ATTRIBUTE_UNUSED)

DECLARES(unknown_start) {
  const ek_initializer initializer = {(ek_initializer_kind)9, 0, 0, NULL};
  return ek_declare_parameter(d, "weight", 2, two_three, initializer);
}
DECLARES(null_values) {
  return ek_declare_buffer(d, "weight", 2, two_three, ek_initializer_values(NULL));
}
DECLARES(own_error) {
  return ek_error_set(EK_ERR_IO, "declarer: no such table on this %s", "shelf");
}

#define WRONG(status_, text_, ...)                                                                 \
  { .calls = {__VA_ARGS__}, .status = status_, .text = text_ }
#define INVALID(text_, ...) WRONG(EK_ERR_INVALID_ARGUMENT, text_, __VA_ARGS__)
static const struct {
  struct call calls[4];
  ek_status (*declare)(ek_declaration *declaration, ek_module *child);
  ek_status status;
  const char *text;
} wrong[] = {
    INVALID("weight", MATRIX("weight"), VECTOR("weight")),
    INVALID("weight", BUFFER("weight"), VECTOR("weight")),
    INVALID("layer", CHILD("layer"), CHILD("layer")),
    INVALID("layer", CHILD("layer"), VECTOR("layer")),
    INVALID("a.b", VECTOR("a.b")),
    INVALID("a.b", CHILD("a.b")),
    INVALID("is not UTF-8, or begins with", VECTOR("gr\xf6\xdf" "e")),
    INVALID("the name \"__metadata__\" is not UTF-8, or begins", CHILD("__metadata__")),
    INVALID("", VECTOR("")),
    INVALID("", VECTOR(NULL)),
    INVALID("", {.kind = CHILD, .name = "layer", .null = true}),
    INVALID("", DECLARED("weight", 1, NULL)),
    INVALID("", DECLARED("weight", 9, nine)),
    INVALID("", DECLARED("weight", 2, negative)),
    WRONG(EK_ERR_OVERFLOW, "", DECLARED("weight", 2, huge)),
    WRONG(EK_ERR_OVERFLOW, "", DECLARED("a", 1, large), DECLARED("b", 1, large),
          DECLARED("c", 1, large)),
    {.declare = unknown_start, .status = EK_ERR_INVALID_ARGUMENT, .text = ""},
    {.declare = null_values, .status = EK_ERR_INVALID_ARGUMENT,
     .text = "the initial values of weight are NULL"},
    WRONG(EK_ERR_NOT_FOUND, "layer.nothing", CHILD("layer"), TIE("layer.nothing", "layer.weight")),
    WRONG(EK_ERR_NOT_FOUND, "layers.weight", CHILD("layer"), TIE("layer.weight", "layers.weight")),
    WRONG(EK_ERR_SHAPE, "weight", CHILD("layer"), DECLARED("weight", 2, three_two),
          TIE("layer.weight", "weight")), /* layer.weight is 2 x 3 */
    WRONG(EK_ERR_SHAPE, "cannot tie layer.weight to mean", CHILD("layer"), BUFFER("mean"),
          TIE("layer.weight", "mean")),
    INVALID("", CHILD("layer"), TIE(NULL, "layer.weight")),
    INVALID("cannot also wrap another module", CHILD("layer"), WRAPS),
    INVALID("NULL", {.kind = WRAP, .null = true}),
    INVALID("weight is declared twice", MATRIX("weight"), WRAPS),
    WRONG(EK_ERR_NOT_FOUND,
          "cannot freeze \"layer.weights\": no parameter or module of this name is declared "
          "before; the nearest name is \"layer.weight\"",
          CHILD("layer"), FREEZE("layer.weights")),
    WRONG(EK_ERR_NOT_FOUND, "the nearest name is \"layer\"", CHILD("layer"), FREEZE("lay")),
    WRONG(EK_ERR_NOT_FOUND, "\"layer\": nothing is declared before it", FREEZE("layer"),
          CHILD("layer")),
    INVALID("cannot freeze mean: it is a buffer", BUFFER("mean"), FREEZE("mean")),
    INVALID("NULL", FREEZE(NULL)),
    INVALID("is too long", FREEZE(long_path)),
    {.declare = own_error, .status = EK_ERR_IO, .text = "declarer: no such table on this shelf"},
};

CK_LOOP(wrong_declaration, sizeof wrong / sizeof *wrong) {
  DECLARER(module, .calls = wrong[_i].calls, .declare = wrong[_i].declare, .child = linear());
  memset(long_path, 'n', sizeof long_path - 1);
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
  DECLARER(module, .declare = all_kinds, .child = linear());
  CK_GOT(ek_replica *, replica, ek_replica_open(&replica, ck_device("cpu:1"), &module.base, NULL));
  CK_GOT(ek_parameter_info, info, ek_replica_find(&info, replica, "scalar"));
  ck_assert_int_eq(info.value.rank, 0);
  ck_holds(&info.value, 2.5);
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
  DECLARER(module, .freed = 0);
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

#define TWO_LAYERS MATRIX("own"), BUFFER("layer_mean"), CHILD("layer"), CHILD("layer_1")
static const struct {
  struct call calls[7];
  const char *frozen; /* names, each with a blank before and after it */
} by_path[] = {
    {{TWO_LAYERS}, " "},
    {{TWO_LAYERS, FREEZE("layer")}, " layer.weight layer.bias "},
    {{TWO_LAYERS, FREEZE("layer_1.bias"), FREEZE("layer_1.bias")}, " layer_1.bias "},
    {{TWO_LAYERS, FREEZE(""), MATRIX("later")},
     " own layer.weight layer.bias layer_1.weight layer_1.bias "},
    {{TWO_LAYERS, FREEZE("layer_1"), TIE("layer_1.weight", "layer.weight")},
     " layer.weight layer_1.bias "},
    {{TWO_LAYERS, TIE("layer_1.weight", "layer.weight"), FREEZE("layer_1.weight")},
     " layer.weight "}};

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
  DECLARER(module, .calls = by_path[_i].calls, .child = linear());
  frozen_are(&module.base, by_path[_i].frozen);
  ek_module_free(&module.base);
}

/* A wrapped child, whose names are beside its wrapper's, freezes its own parameters only. */
CK_TEST(wrapped_child_freezes_its_own) {
  static const struct call own[] = {MATRIX("weight"), FREEZE(""), {END}};
  static const struct call of_others[] = {FREEZE("scale"), {END}};
  static const struct call wrapper[] = {MATRIX("scale"), WRAPS, {END}};
  DECLARER(child, .calls = own);
  DECLARER(module, .calls = wrapper, .child = &child.base);
  frozen_are(&module.base, " weight ");
  child.calls = of_others;
  ck_replica_fails(&module.base, "plan:1", EK_ERR_NOT_FOUND, "cannot freeze \"scale\"");
  ek_module_free(&module.base);
  ek_module_free(&child.base);
}

/* A wrapper has the names of what it wraps, its own and ties beside them. */
CK_TEST(wrapped) {
  static const struct call calls[] = {WRAPS, MATRIX("scale"), TIE("scale", "weight"), {END}};
  ek_module *child = linear();
  DECLARER(module, .calls = calls, .child = child);
  ek_group *group = ck_open("cpu:1", 1);
  ek_replica *replica = NULL, *alone = NULL;
  ck_ok(ek_replica_open(&replica, ek_group_device(group, 0), &module.base, NULL));
  ck_ok(ek_replica_open(&alone, ek_group_device(group, 0), child, NULL));
  ck_assert_uint_eq(ek_replica_parameter_count(replica), 2);
  for (size_t i = 0; i < 2; i++) {
    CK_GOT(ek_parameter_info, mine, ek_replica_parameter(&mine, replica, i));
    CK_GOT(ek_parameter_info, its, ek_replica_parameter(&its, alone, i));
    ck_assert_str_eq(mine.name, its.name);
    ck_arrays_same(its.name, ck_got(&mine.value), ck_got(&its.value));
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
