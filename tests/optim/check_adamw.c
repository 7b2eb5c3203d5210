/*
 * check_adamw.c - AdamW and Adam against torch.optim written out, and against its numbers.
 */
#include "ck_optimizer.h"

enum { COUNT = 203, STEPS = 20 };

static ek_optimizer *make(const ek_adamw_options *options) {
  CK_GOT(ek_optimizer *, optimizer, ek_adamw_create(&optimizer, options));
  ck_assert_ptr_nonnull(optimizer);
  return optimizer;
}

static ek_adamw_options options_of(double rate, double beta2, double decay, bool coupled) {
  CK_WITH(ek_adamw_options, o, EK_ADAMW_OPTIONS_INIT, .learning_rate = rate, .beta2 = beta2,
          .weight_decay = decay, .coupled = coupled);
  return o;
}

/* _single_tensor_adamw and _single_tensor_adam of torch/optim, line by line, for one element. */
static void torch_adam(const ek_adamw_options *o, double *param, double *exp_avg,
                       double *exp_avg_sq, double grad, int step) {
  if (!o->coupled) {
    *param *= 1 - o->learning_rate * o->weight_decay;
  } else if (o->weight_decay != 0) {
    grad += *param * o->weight_decay;
  }
  *exp_avg = *exp_avg * o->beta1 + (1 - o->beta1) * grad;
  *exp_avg_sq = *exp_avg_sq * o->beta2 + (1 - o->beta2) * grad * grad;
  const double bias_correction1 = 1 - pow(o->beta1, step);
  const double bias_correction2 = 1 - pow(o->beta2, step);
  const double step_size = o->learning_rate / bias_correction1;
  const double denom = sqrt(*exp_avg_sq) / sqrt(bias_correction2) + o->epsilon;
  *param += -step_size * *exp_avg / denom;
}

/*
 * The bound of one step, for gradients with LEAST <= |g| <= 1. m and v are means of 1 / (1 - beta)
 * steps at most, each of which rounds four times or so, the constants included:
 *   m / (1 - beta1^t)        has an absolute error of 4 u min(t, 10) <= 40 u (beta1 is 0.9)
 *   v / (1 - beta2^t)        has a relative error of 4 u t, its root of 2 u t <= 40 u
 *   their quotient           40 u / LEAST + 40 u / LEAST, for the root is LEAST or more
 * and 8 u / LEAST for the roundings after that. The parameter itself rounds four times.
 */
static const double least = 0.125;
static double step_bound(const struct ck_rig *rig, const ek_adamw_options *o, double p) {
  return rig->unit * (4.0 * p + 88.0 * o->learning_rate / least);
}

/* +- (low .. 1): no gradient is near to zero, where m / sqrt(v) may be anything. */
static double *gradients(struct ck_rig *rig, double low) {
  double *g = ck_values(rig, COUNT, low, 1);
  for (int i = 0; i < COUNT; i++) {
    if (ck_random_integer(&rig->random, 0, 1) == 1) g[i] = -g[i];
  }
  return g;
}

CK_LOOP(equals_torch_written_out, 5 * CK_VARIANTS) {
  const ek_adamw_options all[] = {
      options_of(1e-3, 0.999, 0, false), options_of(1e-2, 0.95, 0.1, false),
      options_of(1e-2, 0.999, 0, true), options_of(1e-2, 0.95, 0.01, true),
      options_of(0.5, 0.0, 0.01, false)};
  const ek_adamw_options *o = &all[_i / CK_VARIANTS];
  struct ck_rig *rig = ck_rig_variant(_i % CK_VARIANTS);
  double *p = ck_values(rig, COUNT, -2, 2), *m = ck_zeros(rig, COUNT), *v = ck_zeros(rig, COUNT);
  double *bound = ck_zeros(rig, COUNT), largest = 2;
  struct ck_range range = ck_range_open(rig, make(o), p, COUNT);
  ck_assert_uint_eq(ek_optimizer_states(range.optimizer), 2);
  ck_assert(ek_optimizer_learning_rate(range.optimizer) == o->learning_rate);
  for (int step = 1; step <= STEPS; step++) {
    /* A coupled decay of 0.01 moves a gradient by less than 0.025. */
    const double *g = gradients(rig, least + 0.025);
    ck_range_step(&range, g, NULL);
    for (int i = 0; i < COUNT; i++) {
      torch_adam(o, &p[i], &m[i], &v[i], g[i], step);
      largest = fmax(largest, fabs(p[i]));
    }
    for (int i = 0; i < COUNT; i++) bound[i] = step * step_bound(rig, o, largest);
    ck_within("parameters", ck_read(rig, range.parameters), p, bound, COUNT);
  }
  for (int i = 0; i < COUNT; i++) bound[i] = 40 * rig->unit; /* see above */
  ck_within("m", ck_read(rig, &range.states[0]), m, bound, COUNT);
  for (int i = 0; i < COUNT; i++) bound[i] = 4 * STEPS * rig->unit * v[i];
  if (!o->coupled) ck_within("v", ck_read(rig, &range.states[1]), v, bound, COUNT);
}

/*
 * Python 3.11, PyTorch 1.13, torch.set_default_dtype(torch.float64), the script of ck_optimizer.h:
 *
 * adamw: torch.optim.AdamW(p, lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
 * adam:  torch.optim.Adam(p, lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
 */
static const double adamw[] = {
    -1.2282889979568643, -0.74545682722172846, -0.27220527809339318,
    0.27662691696055447, 0.7223479961175856,   1.2488335930662988,
};
static const double adam[] = {
    -1.2200596597199767, -0.72857465084712258, -0.27047343436394861,
    0.27473186787535403, 0.71697261355817909,  1.2402047146511042,
};

CK_LOOP(equals_pytorch, 4) {
  const bool coupled = _i % 2 == 1;
  struct ck_rig *rig = ck_rig_open(NULL, EK_F64, 1);
  const ek_adamw_options o = options_of(0.01, 0.95, 0.1, coupled);
  const double weight = _i < 2 ? 1.0 : 64.0; /* exact either way */
  ck_range_five_steps(rig, make(&o), weight, step_bound(rig, &o, 1.3), coupled ? adam : adamw);
}

/* The first step is the rate times the sign, whatever the size of the gradient (epsilon aside). */
CK_RIG_LOOP(the_first_step_is_the_sign, CK_VARIANTS) {
  const double start[] = {1, -2, 4}, gradient[] = {1e-3, -1e3, 7};
  const double want[] = {0.75, -1.75, 3.75};
  double bound[3];
  CK_WITH(ek_adamw_options, o, options_of(0.25, 0.999, 0, false), .epsilon = 1e-14);
  for (int i = 0; i < 3; i++) bound[i] = step_bound(rig, &o, 4) + 0.25 * 1e-11;
  struct ck_range range = ck_range_open(rig, make(&o), start, 3);
  ck_range_step(&range, gradient, NULL);
  ck_within("parameters", ck_read(rig, range.parameters), want, bound, 3);
}

CK_RIG_LOOP(clipping_and_dividing, CK_VARIANTS) {
  /* The norm is 5, so the clipped gradient is a fifth; m shows it: (1 - beta1) g. */
  const double start[] = {1, -2, 4}, gradient[] = {3, 0, 4};
  CK_WITH(ek_adamw_options, o, options_of(0.25, 0.999, 0, false), .clip_norm = 1.0);
  const double clip = 1.0 / (5.0 + 1e-6);
  const double want[] = {0.1 * 3 * clip, 0, 0.1 * 4 * clip};
  double bound[3];
  for (int i = 0; i < 3; i++) bound[i] = 8 * rig->unit * want[i];
  struct ck_range range = ck_range_open(rig, make(&o), start, 3);
  ck_range_step_divided(&range, gradient, 3.0);
  ck_within("m", ck_read(rig, &range.states[0]), want, bound, 3);
}

CK_TEST(refused) {
  ek_optimizer *optimizer = NULL;
  const double bad[] = {-0.1, (double)NAN, (double)INFINITY};
  ck_invalid(ek_adamw_create(NULL, NULL), "optimizer is NULL");
  ek_adamw_options o = EK_ADAMW_OPTIONS_INIT;
  ck_bad(o, size, 1000, ek_adamw_create(&optimizer, &o), "ek_adamw_options.size");
#define BAD(member, value) ck_bad(o, member, value, ek_adamw_create(&optimizer, &o), #member)
  for (size_t i = 0; i < 3; i++) {
    BAD(learning_rate, bad[i]);
    BAD(beta1, bad[i]);
    BAD(beta2, bad[i]);
    BAD(epsilon, bad[i]);
    BAD(weight_decay, bad[i]);
    BAD(clip_norm, bad[i]);
  }
  BAD(beta1, 1.0);
  BAD(beta2, 1.0);
  BAD(epsilon, 0.0);
#undef BAD
  ek_host_memory_fail_at(1);
  ck_fails(ek_adamw_create(&optimizer, NULL), EK_ERR_OUT_OF_MEMORY, "adamw");
  ck_assert_ptr_null(optimizer);

  ck_ok(ek_adamw_create(&optimizer, NULL));
  ck_assert(ek_optimizer_learning_rate(optimizer) == 1e-3 &&
            ek_optimizer_clip_norm(optimizer) == 0.0);
  struct ck_rig *rig = ck_rig_open(NULL, EK_F32, 1);
  const double start[] = {1, 2};
  ek_update update = {.step = 1};
  ck_invalid(ek_optimizer_table(optimizer)->update(optimizer, rig->stream, NULL),
             "adamw: update is NULL");
  ck_invalid(ek_optimizer_table(optimizer)->update(optimizer, rig->stream, &update), "states");
  struct ck_range range = ck_range_open(rig, optimizer, start, 2);
  update = (ek_update){.parameters = range.parameters, .gradients = range.gradients,
                       .states = range.states, .step = 0};
  ck_invalid(ek_optimizer_table(optimizer)->update(optimizer, rig->stream, &update), "step is 0");
  ck_assign(update, .step = 1, .gradients = ck_poisoned(rig, CK_SHAPE(3)));
  ck_fails(ek_optimizer_table(optimizer)->update(optimizer, rig->stream, &update), EK_ERR_SHAPE,
           "gradients");
  ck_within("parameters", ck_read(rig, range.parameters), start, NULL, 2);
}

CK_SUITE("adamw")
