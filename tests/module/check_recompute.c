/*
 * check_recompute.c - a recomputed module trains like the same module that is not, bit for bit, and
 * keeps its inputs alone; unread results are not computed again; a module of a program's own that
 * makes a norm again; how often each policy runs a module; what is refused. More about the policies
 * of containers: check_policies.c.
 */
#include "ck_mixer.h"
#include "ck_module.h"
#include "ck_parent.h"
#include "ck_training.h"

/* ---- modules ---- */

static const int64_t mlp_sizes[] = {3, 6, 2};
CK_CREATE_AROUND(create_mlp, ek_recompute_create,
                 ek_mlp_create(&inner, mlp_sizes, 3, EK_ACTIVATION_GELU))
CK_CREATE_AROUND(create_once, ek_recompute_create, ek_attention_create(&inner, 4, 2))
CK_CREATE_AROUND(create_twice, ek_recompute_create, create_once(&inner))
CK_CREATE_AROUND(create_mixer, ek_recompute_create, ck_mixer_twice_create(&inner))
CK_CREATE_AROUND(create_embedding, ek_recompute_create, ek_embedding_create(&inner, 7, 3, 4))

/* ---- a module of a program's own that makes a norm again ---- */

struct own {
  struct ck_parent parent; /* a norm, and a linear that keeps what the norm was computed from */
  size_t made_by;
};

CK_PARAMETERS(own) {
  EK_TRY(ek_declare_module(declaration, "norm", ck_child(self, 0)));
  return ek_declare_module(declaration, "linear", ck_child(self, 1));
}

CK_FORWARD(own) {
  CK_FREED(tensor) h = {0};
  CK_WITH(ek_child_options, options, EK_CHILD_OPTIONS_INIT,
          .made_by = ((const struct own *)self)->made_by, .made_from = inputs);
  EK_TRY(ek_pass_child_forward(&h, pass, 0, inputs));
  return ek_pass_child_forward_with(outputs, pass, 1, &h, &options);
}

static const ek_module_ops own_ops = {
    CK_OPS("own", own_forward, ck_parent_backward, ck_parent_free), .parameters = own_parameters,
    .types = EK_TYPES_F32 | EK_TYPES_F64};

static ek_status own_create(ek_module **module, size_t made_by) {
  struct own *m = ck_module_new(sizeof *m, &own_ops, 1, 1);
  m->made_by = made_by;
  ck_ok(ek_layer_norm_create(&m->parent.children[0], 3, 1e-5));
  ck_ok(ek_linear_create(&m->parent.children[1], 3, 2, true));
  *module = &m->parent.base;
  return EK_OK;
}

static ek_status create_own(ek_module **module) { return own_create(module, 0); }

static const struct ck_module_case cases[] = {
    CK_CASE("a norm made again", create_own, 4, 12, 2, {0, 2, {4, 3}, -1, 1}),
    CK_CASE("mlp", create_mlp, 6, 4, 0, {0, 2, {4, 3}, -1, 1}),
    CK_CASE("attention, twice", create_twice, 12, 8, 0, {0, 3, {2, 3, 4}, -1, 1}),
    CK_CASE("two inputs, three outputs", create_mixer, 5, 3, 0,
            {0, 2, {5, CK_MIXER_WIDTH}, -1, 1}, {EK_I32, 1, {5}, 0, CK_MIXER_KINDS - 1}),
    CK_CASE("integers", create_embedding, 8, 1, 0, {EK_I32, 2, {2, 4}, 0, 6}),
};
CK_MODULE_CASES(cases)

/* ---- training ---- */

static const struct ck_workload *of_model;
CK_CREATE_AROUND(recomputed_workload, ek_recompute_create, of_model->module(&inner))

/* A GPT with tied parameters and dropout, several inputs and outputs, buffers: in each mode. */
CK_LOOP(whole_models, CK_WORKLOADS * CK_PLACEMENTS) {
  of_model = &ck_workloads[_i / CK_PLACEMENTS];
  ck_trains_alike(of_model, NULL, recomputed_workload, "cpu:3", _i % CK_PLACEMENTS);
}

/* ---- memory ---- */

enum { DEEP = 6, ROWS = 64 };

/* What a recomputed module of 4 x DEEP layers keeps is its input. */
CK_TEST(keeps_its_inputs) {
  ek_module *parts[DEEP], *inner = NULL;
  ek_device *device = ck_device("cpu:1");
  for (int i = 0; i < DEEP; i++) ck_ok(ek_activation_create(&parts[i], EK_ACTIVATION_RELU));
  ck_ok(ck_sequential(&inner, parts, DEEP, NULL));
  CK_OPENED(ek_module *, module, ck_around(&module, inner, ek_recompute_create));
  CK_OPENED(ek_replica *, replica, ek_replica_open(&replica, device, module, NULL));
  CK_OPENED(ek_tensor, x,
            ek_tensor_create(&x, device, EK_MEMORY_INPUTS, EK_F32, 2, (const int64_t[]){ROWS, 64}));
  ck_set(&x, (const double[ROWS * 64]){0});
  CK_GOT(ek_memory_usage, usage, ck_memory_stats(&usage, device));
  const uint64_t before = usage.current_bytes, unit = sizeof(float) * ROWS * 64;
  CK_OPENED(ek_pass *, pass, ek_pass_open(&pass, replica, NULL));
  CK_OPENED(ek_tensor, y, ek_pass_run_forward(&y, pass, &x));
  ck_ok(ck_memory_stats(&usage, device));
  ck_assert_uint_eq(usage.current_bytes, before + unit); /* y */
  ck_ok(ek_memory_reset_peak(device));
  ck_ok(ek_pass_run_backward(NULL, pass, &y));
  ck_ok(ck_memory_stats(&usage, device));
  /* y, the results of all layers, and one gradient more. */
  ck_assert_uint_eq(usage.peak_bytes, before + (1 + DEEP + 1) * unit);
}

/* ---- results that are not read ---- */

static void fragile_free(ek_module *self) { self->private_members.ops = NULL; }

/* y = x; says in which of its forwards y was wanted, and spoils it in the others. */
struct asked {
  ek_module base;
  int forwards;
  bool wanted[2];
};

CK_FORWARD(asked) {
  struct asked *m = (struct asked *)(uintptr_t)self;
  const bool wanted = m->wanted[m->forwards++ & 1] = ek_pass_wants_outputs(pass);
  EK_TRY(ek_pass_output(&outputs[0], pass, EK_F32, inputs[0].rank, inputs[0].shape));
  ek_stream *stream = ek_pass_stream(pass);
  return wanted ? ek_op_copy(stream, &outputs[0], &inputs[0])
                : ek_op_fill(stream, &outputs[0], (double)NAN);
}

static const ek_module_ops asked_ops = {
    CK_OPS("asked", asked_forward, ck_share_backward, fragile_free)};

/* Takes over the references. */
static ek_module *in_sequence(ek_module *first, ek_module *second) {
  CK_GOT(ek_module *, module, ck_sequential(&module, (ek_module *[]){first, second}, 2, NULL));
  return module;
}

/* Forward and backward on x, of which *dx becomes the gradient if the result's is 1. */
static ek_status run_once(ek_replica *replica, const ek_tensor *x, ek_tensor *dx) {
  ek_pass *pass = NULL;
  ek_tensor y = {0};
  ek_status status = ek_pass_open(&pass, replica, NULL);
  if (status == EK_OK) status = ek_pass_run_forward(&y, pass, x);
  if (status == EK_OK) status = ek_op_fill(ek_pass_stream(pass), &y, 1);
  if (status == EK_OK) status = ek_pass_run_backward(dx, pass, &y);
  ek_tensor_free(&y);
  ek_pass_free(pass);
  return status;
}

enum { MOST_ASKED = 4 };
static struct asked asked[MOST_ASKED]; /* freed after the test */

static void make_asked(void) {
  memset(asked, 0, sizeof asked);
  for (int i = 0; i < MOST_ASKED; i++) ck_ok(ek_module_init(&asked[i].base, &asked_ops, 1, 1));
}

/* Bit i of `again`: the result of number i of `count` is wanted again. */
static void check_asked(ek_module *module, int count, unsigned again, double gradient) {
  ek_device *device = ck_device("cpu:1");
  ek_tensor x = ck_upload(device, EK_F32, (const double[]){1, 2}, CK_SHAPE(2));
  CK_OPENED(ek_replica *, replica, ek_replica_open(&replica, device, module, NULL));
  CK_OPENED(ek_tensor, dx, run_once(replica, &x, &dx));
  for (int i = 0; i < count; i++) {
    ck_assert_int_eq(asked[i].forwards, 2);
    ck_assert(asked[i].wanted[0]);
    ck_assert(asked[i].wanted[1] == (again >> i & 1u));
  }
  ck_holds(&dx, gradient, gradient);
}

/* The last one's result is dropped when it runs again; that of the one before it is read. */
CK_TEST(outputs_that_nobody_reads) {
  make_asked();
  ek_module *inner = in_sequence(&asked[1].base, &asked[2].base);
  CK_GOT(ek_module *, residual, ck_around(&residual, inner, ek_residual_create));
  CK_OPENED(ek_module *, module,
            ck_around(&module, in_sequence(&asked[0].base, residual), ek_recompute_create));
  check_asked(module, 3, 3, 2);
}

/* The `asked` one after the other, which this is recomputed of. */
static ek_module *sequence_of_asked(ek_recompute recompute) {
  ek_module *all[MOST_ASKED], *module = NULL;
  CK_WITH(ek_sequential_options, options, EK_SEQUENTIAL_OPTIONS_INIT, .recompute = recompute);
  make_asked();
  for (int i = 0; i < MOST_ASKED; i++) all[i] = &asked[i].base;
  ck_ok(ck_sequential(&module, all, MOST_ASKED, &options));
  return ck_keep(module);
}

/* Of a container's segments of two, which run again one by one, too. */
CK_TEST(outputs_of_segments) {
  const ek_recompute pairs = {.kind = EK_RECOMPUTE_EVERY, .every = 2};
  check_asked(sequence_of_asked(pairs), MOST_ASKED, 5, 1);
}

/* How often each of four modules runs: with `all`, number i again 4 - i times (recompute.h). */
CK_TEST(runs_of_policies) {
  static const struct {
    const char *policy;
    int runs[MOST_ASKED];
  } rows[] = {{"none", {1, 1, 1, 1}},    {"cheap", {1, 1, 1, 1}}, {"every=1", {2, 2, 2, 2}},
              {"every=3", {2, 2, 2, 2}}, {"sqrt", {2, 2, 2, 2}},  {"all", {5, 4, 3, 2}}};
  ek_device *device = ck_device("cpu:1");
  ek_tensor x = ck_upload(device, EK_F32, (const double[]){1, 2}, CK_SHAPE(2));
  for (size_t row = 0; row < sizeof rows / sizeof *rows; row++) {
    CK_GOT(ek_recompute, policy, ek_recompute_parse(&policy, rows[row].policy));
    ek_module *module = sequence_of_asked(policy);
    CK_SCOPED(ek_replica *, replica, ek_replica_open(&replica, device, module, NULL));
    CK_SCOPED(ek_tensor, dx, run_once(replica, &x, &dx));
    for (int i = 0; i < MOST_ASKED; i++) {
      ck_assert_msg(asked[i].forwards == rows[row].runs[i], "%s: number %d ran %d times",
                    rows[row].policy, i, asked[i].forwards);
    }
    ek_module_free(module); /* before its parts are made again */
  }
}

static ek_status create_linear(ek_module **module) { return ek_linear_create(module, 4, 4, true); }
CK_CREATE_AROUND(create_linear_residual, ek_residual_create, create_linear(&inner))
static ek_status create_attention(ek_module **module) { return ek_attention_create(module, 4, 2); }
static ek_status create_swiglu(ek_module **module) { return ek_swiglu_create(module, 4, 8, true); }
static ek_status create_plain_mlp(ek_module **module) {
  return ek_mlp_create(module, (const int64_t[]){4, 8, 4}, 3, EK_ACTIVATION_GELU);
}

/* The second forward leaves the last product out; `again`: pieces of work that it has
 * nevertheless. */
static const struct spared {
  ek_status (*create)(ek_module **);
  uint64_t again;
} spared[] = {{create_linear, 0},
              {create_linear_residual, 0},
              {create_attention, 2},  /* q, k and v; attention */
              {create_swiglu, 3},     /* two products and the gate */
              {create_plain_mlp, 1}}; /* linear and GELU in one go */
enum { SPARED = sizeof spared / sizeof spared[0] };

/* Pieces of work of a forward and its backward: the first that need not fail is after them. */
static uint64_t pieces(ek_device *device, ek_module *module) {
  ek_tensor x = ck_upload(device, EK_F32, (const double[24]){1, 2}, CK_SHAPE(2, 3, 4));
  CK_GOT(ek_replica *, replica, ek_replica_open(&replica, device, module, NULL));
  for (uint64_t n = 1;; n++) {
    ek_tensor dx = {0};
    ck_ok(ek_fault_at(device, n, EK_ERR_UNAVAILABLE));
    const ek_status status = run_once(replica, &x, &dx);
    ck_ok(ek_fault_at(device, 0, EK_OK));
    ek_tensor_free(&dx);
    if (status != EK_OK) continue;
    ek_replica_free(replica);
    ek_tensor_free(&x);
    return n - 1;
  }
}

CK_LOOP(last_products_are_spared, SPARED) {
  ek_device *device = ek_group_device(ck_open("cpu:1", 1), 0);
  CK_OPENED(ek_module *, plain, spared[_i].create(&plain));
  CK_OPENED(ek_module *, module, ek_recompute_create(&module, plain));
  ck_assert_uint_eq(pieces(device, module), pieces(device, plain) + spared[_i].again);
}

/* ---- what is made again, between types ---- */

/* y = x / 2, in f32 alone; saves x, which in 16 bits is a copy of what the norm before it gave. */
CK_FORWARD(halves) {
  const ek_tensor *x = &inputs[0];
  EK_TRY(ek_pass_save(pass, x));
  EK_TRY(ek_pass_output(&outputs[0], pass, x->type, x->rank, x->shape));
  return ek_op_scale(ek_pass_stream(pass), &outputs[0], x, 0.5);
}

CK_BACKWARD(halves) {
  const ek_tensor *dy = &grad_outputs[0];
  ek_tensor x = {0};
  EK_TRY(ek_pass_take(&x, pass));
  const ek_type type = x.type;
  ek_tensor_free(&x);
  ck_assert_int_eq(type, EK_F32);
  if (grad_inputs == NULL) return EK_OK;
  EK_TRY(ek_pass_output(&grad_inputs[0], pass, dy->type, dy->rank, dy->shape));
  return ek_op_scale(ek_pass_stream(pass), &grad_inputs[0], dy, 0.5);
}

static const ek_module_ops halves_ops = {
    CK_OPS("halves", halves_forward, halves_backward, ck_plain_free)};
static ek_recompute_kind with;

static ek_status create_halves(ek_module **module) {
  ek_module *parts[3] = {NULL};
  CK_WITH(ek_sequential_options, options, EK_SEQUENTIAL_OPTIONS_INIT, .recompute.kind = with);
  ck_ok(ek_layer_norm_create(&parts[0], 7, 1e-5));
  ck_ok(ck_plain_create(&parts[1], &halves_ops, 1, 1));
  ck_ok(ek_linear_create(&parts[2], 7, 5, true));
  return ck_sequential(module, parts, 3, &options);
}

/* A cheap result that is converted for the next module is not made again: what that saves is its
 * own. */
CK_LOOP(what_is_converted_is_kept, ck_if_halves(1)) {
  double *values[2];
  CK_WITH(struct ck_workload, workload, *ck_workload("mlp"), .module = create_halves);
  for (int i = 0; i < 2; i++) {
    struct ck_batch batch = ck_batch_make(&workload, EK_F32, 5, 0.2, 7);
    with = i == 0 ? EK_RECOMPUTE_NONE : EK_RECOMPUTE_CHEAP;
    CK_TRAINING(t, ck_setup_mode(&workload, "cpu:2", EK_MODE_REPLICATED),
                .options.precision = EK_PRECISION_BF16);
    ck_ok(ck_training_backward(&t, &batch, NULL, false, NULL));
    values[i] = ck_training_read(&t, CK_GRADIENTS);
  }
  ck_arrays_same("gradients", values[1], values[0]);
}

/* ---- what a maker has kept ---- */

static int counted, read_again;

/* y = x + 1, of which it saves the 1. Made again it reads that. */
CK_FORWARD(counts) {
  ek_tensor one = {0}, kept = {0};
  ck_assert(!ek_pass_kept(NULL, pass, 0) && !ek_pass_kept(&kept, NULL, 0));
  if (ek_pass_kept(&kept, pass, 0)) {
    ck_assert(ek_pass_is_recomputing(pass) && !ek_pass_kept(&one, pass, 1));
    read_again++;
    EK_TRY(ek_tensor_share(&one, &kept));
  } else {
    ck_assert(!ek_pass_is_recomputing(pass));
    counted++;
    EK_TRY(ek_pass_output(&one, pass, ek_pass_type(pass), inputs[0].rank, inputs[0].shape));
    EK_TRY(ek_op_fill(ek_pass_stream(pass), &one, 1));
  }
  EK_TRY(ek_pass_output(&outputs[0], pass, ek_pass_type(pass), inputs[0].rank, inputs[0].shape));
  EK_TRY(ek_op_add(ek_pass_stream(pass), &outputs[0], &inputs[0], &one));
  EK_TRY(ek_pass_save(pass, &one));
  ek_tensor_free(&one);
  return EK_OK;
}
CK_BACKWARD(counts) {
  ek_tensor one = {0}, kept;
  ck_assert(!ek_pass_kept(&kept, pass, 0));
  EK_TRY(ek_pass_take(&one, pass));
  ek_tensor_free(&one);
  return ck_share_backward(self, pass, grad_outputs, grad_inputs);
}
static const ek_module_ops counts_ops = {
    CK_OPS("counts", counts_forward, counts_backward, ck_no_free), .cheap = true};

/* The linear and the ReLU read a result that is made again once, from what was kept. */
CK_TEST(makers_read_what_they_kept) {
  static ek_module counts;
  ek_module *parts[4] = {NULL, &counts, NULL, NULL}, *module = NULL;
  ek_sequential_options options = EK_SEQUENTIAL_OPTIONS_INIT;
  options.recompute.kind = EK_RECOMPUTE_CHEAP;
  ck_ok(ek_module_init(&counts, &counts_ops, 1, 1));
  ck_ok(ek_linear_create(&parts[0], 2, 2, true));
  ck_ok(ek_activation_create(&parts[2], EK_ACTIVATION_RELU));
  ck_ok(ek_linear_create(&parts[3], 2, 2, true));
  ck_kept(ck_sequential(&module, parts, 4, &options), module);
  ek_device *device = ck_device("cpu:1");
  CK_OPENED(ek_replica *, replica, ek_replica_open(&replica, device, module, NULL));
  ek_tensor x = ck_upload(device, EK_F32, (const double[]){1, 2, 3, 4}, CK_SHAPE(2, 2));
  CK_OPENED(ek_pass *, pass, ek_pass_open(&pass, replica, NULL));
  CK_OPENED(ek_tensor, y, ek_pass_run_forward(&y, pass, &x));
  ck_assert_int_eq(read_again, 0);
  ck_ok(ek_pass_run_backward(NULL, pass, &y));
  ck_assert_int_eq(counted, 1);
  ck_assert_int_eq(read_again, 1);
}

/* ---- misuse ---- */

enum { IN = 7, WIDTH = 16, CLASSES = 5 }; /* those of the workload "mlp" */

/* y = x; fails when it runs again. */
CK_FORWARD(fragile) {
  if (ek_pass_is_recomputing(pass)) return ek_error_set(EK_ERR_UNSUPPORTED, "once is enough");
  return ek_tensor_share(&outputs[0], &inputs[0]);
}
static const ek_module_ops fragile_ops = {
    CK_OPS("fragile", fragile_forward, ck_share_backward, fragile_free)};

static ek_module fragile;
static ek_status create_fragile(ek_module **module) {
  ek_module *parts[3] = {NULL}, *inner = NULL;
  ck_ok(ek_module_init(&fragile, &fragile_ops, 1, 1));
  ck_ok(ck_sequential(&inner, (ek_module *[]){&fragile}, 1, NULL));
  ck_ok(ek_linear_create(&parts[0], IN, WIDTH, true));
  ck_ok(ck_around(&parts[1], inner, ek_recompute_create));
  ck_ok(ek_linear_create(&parts[2], WIDTH, CLASSES, true));
  return ck_sequential(module, parts, 3, NULL);
}

/* y = x; looks at a target, which must be the same the second time. */
CK_FORWARD(looks) {
  ck_assert_uint_eq(ek_module_targets(self), 1);
  ck_assert_int_eq(inputs[1].type, EK_I32);
  EK_TRY(ek_pass_save(pass, &inputs[1]));
  return ek_tensor_share(&outputs[0], &inputs[0]);
}
CK_BACKWARD(looks) {
  ek_tensor target = {0};
  EK_TRY(ek_pass_take(&target, pass));
  ck_holds(&target, 3, 5);
  ek_tensor_free(&target);
  return ck_share_backward(self, pass, grad_outputs, grad_inputs);
}
static const ek_module_ops looks_ops = {
    CK_OPS("looks", looks_forward, looks_backward, fragile_free)};

CK_TEST(targets) {
  ek_device *device = ck_device("cpu:1");
  ek_tensor in[2] = {ck_upload(device, EK_F32, (const double[]){1, 2}, CK_SHAPE(2)),
                     ck_upload(device, EK_I32, (const double[]){3, 5}, CK_SHAPE(2))};
  ek_tensor y = {0}, gradient[2] = {{0}};
  CK_WITH(ek_module_options, options, EK_MODULE_OPTIONS_INIT, .targets = 1);
  CK_GOT(ek_module, looks, ek_module_init_with(&looks, &looks_ops, &options));
  CK_SCOPED(ek_module *, module, ek_recompute_create(&module, &looks));
  ek_module_free(&looks);
  ck_assert_uint_eq(ek_module_inputs(module), 2);
  ck_assert_uint_eq(ek_module_targets(module), 1);
  CK_GOT(ek_replica *, replica, ek_replica_open(&replica, device, module, NULL));
  CK_GOT(ek_pass *, pass, ek_pass_open(&pass, replica, NULL));
  ck_ok(ek_pass_run_forward(&y, pass, in));
  ek_tensor_free(&in[1]);
  ck_ok(ek_pass_run_backward(gradient, pass, &y));
  ck_assert(ek_tensor_exists(&gradient[0]) && !ek_tensor_exists(&gradient[1]));
  ek_tensor_free(&gradient[0]);
  ek_tensor_free(&in[0]);
  ek_tensor_free(&y);
  ek_pass_free(pass);
  ek_replica_free(replica);
  ek_module_free(module);
  ck_assert_ptr_null(ek_module_table(&looks));
}

CK_TEST(errors_of_the_second_forward) {
  CK_WITH(struct ck_workload, mlp, *ck_workload("mlp"), .module = create_fragile);
  struct ck_training training = ck_training_of(ck_setup_mode(&mlp, "cpu:2", EK_MODE_REPLICATED));
  struct ck_batch batch = ck_batch_make(&mlp, EK_F32, 4, 0, 1);
  ck_fails(ck_training_backward(&training, &batch, NULL, false, NULL), EK_ERR_UNSUPPORTED,
           "1.0 (fragile), forward again: once is enough");
}

CK_TEST(bad_input) {
  ek_module *module = NULL, two = {0};
  CK_OPENED(ek_module *, relu, ek_activation_create(&relu, EK_ACTIVATION_RELU));
  CK_OPENED(ek_criterion *, loss, ek_cross_entropy_create(&loss, NULL));
  ck_invalid(ek_recompute_create(NULL, relu), "recompute");
  ck_invalid(ek_recompute_create(&module, NULL), "inner module is NULL");
  ck_invalid(ek_recompute_create(&module, &two), "or not initialised");
  ck_invalid(ek_recompute_create(&module, &loss->base), "recompute: cross_entropy is a criterion");
  ck_ok(ek_module_init(&two, &fragile_ops, 1, 1));
  two.private_members.inputs = 0;
  ck_invalid(ek_recompute_create(&module, &two), "fragile has 0 inputs");
  ck_assert_ptr_null(module);
  ck_host_failures(create_mlp);
}

CK_TEST(bad_maker) {
  CK_OPENED(ek_module *, none, own_create(&none, 2));
  ck_forward_fails(none, EK_ERR_INVALID_ARGUMENT, "own, forward: made_by: no child number 2",
                   EK_F32, CK_SHAPE(4, 3));
  /* Another shape comes out when it is made again. */
  CK_OPENED(ek_module *, module, own_create(&module, 1));
  ek_device *device = ck_device("cpu:1");
  ek_tensor x = ck_upload(device, EK_F32, (const double[12]){1, 2, 3}, CK_SHAPE(4, 3));
  CK_OPENED(ek_replica *, replica, ek_replica_open(&replica, device, module, NULL));
  CK_OPENED(ek_pass *, pass, ek_pass_open(&pass, replica, NULL));
  CK_OPENED(ek_tensor, y, ek_pass_run_forward(&y, pass, &x));
  ck_fails(ek_pass_run_backward(NULL, pass, &y), EK_ERR_SHAPE,
           "linear (linear) gave another type or shape when it ran again");
}

CK_SUITE("recompute")
