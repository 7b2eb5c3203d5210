/*
 * check_sgd.c - SGD against torch.optim.SGD written out, and against its numbers.
 */
#include "ck_optimizer.h"

enum { COUNT = 203, STEPS = 20 };

static ek_optimizer *make(const ek_sgd_options *options) {
  CK_GOT(ek_optimizer *, optimizer, ek_sgd_create(&optimizer, options));
  ck_assert_ptr_nonnull(optimizer);
  return optimizer;
}

static ek_sgd_options options_of(double momentum, double dampening, double decay, bool nesterov) {
  CK_WITH(ek_sgd_options, o, EK_SGD_OPTIONS_INIT, .learning_rate = 0.1, .momentum = momentum,
          .dampening = dampening, .weight_decay = decay, .nesterov = nesterov);
  return o;
}

/* _single_tensor_sgd of torch/optim/sgd.py, line by line, for one element. */
static void torch_sgd(const ek_sgd_options *o, double *param, double *buf, bool *has_buf,
                      double grad) {
  if (o->weight_decay != 0) grad += *param * o->weight_decay;
  if (o->momentum != 0) {
    if (!*has_buf) {
      *buf = grad;
      *has_buf = true;
    } else {
      *buf = *buf * o->momentum + grad * (1 - o->dampening);
    }
    if (o->nesterov) {
      grad += o->momentum * *buf;
    } else {
      grad = *buf;
    }
  }
  *param += -o->learning_rate * grad;
}

/* Each step rounds what it adds to a parameter a few times (g, the buffer, the products and the
 * constants of the rule: 16 covers it) and the parameter twice. An error of the buffer lives on, m
 * times smaller each step: 1 / (1 - m) of them. P, G: the largest parameter and |g + decay p|. */
static double step_bound(const struct ck_rig *rig, const ek_sgd_options *o, double p, double g) {
  return rig->unit *
         (4.0 * p + 16.0 * o->learning_rate * g * (1.0 + o->momentum) / (1.0 - o->momentum));
}

CK_LOOP(equals_torch_written_out, 5 * CK_VARIANTS) {
  const ek_sgd_options all[] = {options_of(0, 0, 0, false), options_of(0, 0, 0.05, false),
                                options_of(0.9, 0, 0, false), options_of(0.9, 0, 0.01, true),
                                options_of(0.5, 0.25, 0.02, false)};
  const ek_sgd_options *o = &all[_i / CK_VARIANTS];
  struct ck_rig *rig = ck_rig_variant(_i % CK_VARIANTS);
  double *p = ck_values(rig, COUNT, -2, 2), *buf = ck_zeros(rig, COUNT), largest = 2, steepest = 1;
  bool has_buf[COUNT] = {false};
  struct ck_range range = ck_range_open(rig, make(o), p, COUNT);
  ck_assert_uint_eq(ek_optimizer_states(range.optimizer), o->momentum == 0 ? 0 : 1);
  ck_assert(ek_optimizer_learning_rate(range.optimizer) == 0.1);
  double *bound = ck_zeros(rig, COUNT);
  for (int step = 0; step < STEPS; step++) {
    const double *g = ck_values(rig, COUNT, -1, 1);
    ck_range_step(&range, g, NULL);
    for (int i = 0; i < COUNT; i++) {
      torch_sgd(o, &p[i], &buf[i], &has_buf[i], g[i]);
      largest = fmax(largest, fabs(p[i]));
    }
    steepest = 1 + o->weight_decay * largest;
    for (int i = 0; i < COUNT; i++) bound[i] = (step + 1) * step_bound(rig, o, largest, steepest);
    ck_within("parameters", ck_read(rig, range.parameters), p, bound, COUNT);
  }
  if (o->momentum != 0) ck_within("momentum", ck_read(rig, &range.states[0]), buf, bound, COUNT);
}

/*
 * Python 3.11, PyTorch 1.13, torch.set_default_dtype(torch.float64), the script of ck_optimizer.h:
 *
 * nesterov: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True)
 * dampened: torch.optim.SGD(p, lr=0.1, momentum=0.8, dampening=0.3)
 * clipped:  torch.optim.SGD(p, lr=0.1), before each step
 *           torch.nn.utils.clip_grad_norm_([p], 0.25)
 */
static const double nesterov[] = {
    -1.1600765105203512, -0.77421756818079168, -0.37432521635217353,
    0.41853719973604103, 0.58162042656465918,  1.2547542269794323,
};
static const double dampened[] = {
    -1.1703499999999998, -0.76939000000000002, -0.35078999999999999, 0.34431,
    0.65265999999999991, 1.2771999999999999,
};
static const double clipped[] = {
    -1.2491562108784988, -0.75796220531741043, -0.25764940817003823,
    0.26722331124200638, 0.73181444130702866,  1.258730113950467,
};

static void five_steps(const ek_sgd_options *o, double weight, const double *want) {
  struct ck_rig *rig = ck_rig_open(NULL, EK_F64, 1);
  ck_range_five_steps(rig, make(o), weight, step_bound(rig, o, 1.3, 0.4), want);
}

CK_LOOP(equals_pytorch, 2) {
  const double weight = _i == 0 ? 1.0 : 64.0; /* exact either way */
  ek_sgd_options o = options_of(0.9, 0, 0.01, true);
  five_steps(&o, weight, nesterov);
  o = options_of(0.8, 0.3, 0, false);
  five_steps(&o, weight, dampened);
  o = options_of(0, 0, 0, false);
  o.clip_norm = 0.25;
  five_steps(&o, weight, clipped);
}

CK_RIG_LOOP(an_empty_step_adds_no_gradient, CK_VARIANTS) {
  const double start[] = {1, -2, 4}, gradient[] = {8, 8, 8}, totals[] = {0, 0};
  const double want[] = {0.9375, -1.875, 3.75}; /* 1 - 0.125 * 0.5 of each */
  CK_WITH(ek_sgd_options, o, options_of(0, 0, 0.5, false), .learning_rate = 0.125);
  struct ck_range range = ck_range_open(rig, make(&o), start, 3);
  ck_set(range.totals, totals);
  const ek_update_scale scale = {.totals = range.totals};
  ck_range_step(&range, gradient, &scale);
  ck_within("parameters", ck_read(rig, range.parameters), want, NULL, 3);
}

CK_RIG_LOOP(a_small_gradient_is_not_clipped, CK_VARIANTS) {
  const double start[] = {1, -2, 4}, gradient[] = {3, 0, 4}, want[] = {0.25, -2, 3};
  CK_WITH(ek_sgd_options, o, options_of(0, 0, 0, false), .learning_rate = 0.25);
  o.clip_norm = 5.25; /* the norm is 5 */
  struct ck_range range = ck_range_open(rig, make(&o), start, 3);
  ck_range_step_divided(&range, gradient, 2.0);
  ck_within("parameters", ck_read(rig, range.parameters), want, NULL, 3);
}

CK_TEST(refused) {
  ek_optimizer *optimizer = NULL;
  const double bad[] = {-0.1, (double)NAN, (double)INFINITY};
  ck_invalid(ek_sgd_create(NULL, NULL), "optimizer is NULL");
  ek_sgd_options o = EK_SGD_OPTIONS_INIT;
  ck_bad(o, size, 3, ek_sgd_create(&optimizer, &o), "ek_sgd_options.size");
#define BAD(member) ck_bad(o, member, bad[i], ek_sgd_create(&optimizer, &o), #member)
  for (size_t i = 0; i < 3; i++) {
    BAD(learning_rate);
    BAD(momentum);
    BAD(weight_decay);
    BAD(clip_norm);
    if (i > 0) BAD(dampening); /* a negative one is legal */
  }
#undef BAD
  o = options_of(0, 0, 0, true);
  ck_invalid(ek_sgd_create(&optimizer, &o), "nesterov");
  o = options_of(0.9, 0.1, 0, true);
  ck_invalid(ek_sgd_create(&optimizer, &o), "nesterov");
  ek_host_memory_fail_at(1);
  ck_fails(ek_sgd_create(&optimizer, NULL), EK_ERR_OUT_OF_MEMORY, "sgd");
  ck_assert_ptr_null(optimizer);

  ck_ok(ek_sgd_create(&optimizer, NULL));
  ck_assert(ek_optimizer_learning_rate(optimizer) == 0.01 && ek_optimizer_states(optimizer) == 0);
  ek_optimizer_free(optimizer);
  struct ck_rig *rig = ck_rig_open(NULL, EK_F32, 1);
  o = options_of(0.9, 0, 0, false);
  optimizer = make(&o);
  const ek_update update = {.step = 1};
  ck_invalid(ek_optimizer_table(optimizer)->update(optimizer, rig->stream, NULL),
             "sgd: update is NULL");
  ck_invalid(ek_optimizer_table(optimizer)->update(optimizer, rig->stream, &update), "states");
  ek_optimizer_free(optimizer);
}

CK_SUITE("sgd")
