/*
 * ck_own_criteria.c - criteria of a program's own: see ck_own_criteria.h.
 */
#include "ck_own_criteria.h"

#include <math.h>
#include <stdlib.h>

#include "ek_check.h"

/* ---- a criterion of our own: s = sum of w[c] |y - t|, d = sum of w[c] ---- */

enum { COLUMNS = CK_ABSOLUTE_COLUMNS };

/* It computes on the host, so that it runs on any backend. */
static double *fetch(const ek_tensor *tensor) {
  double *values = calloc((size_t)ek_tensor_count(tensor) + 1, sizeof *values);
  ck_assert_ptr_nonnull(values);
  ck_get(values, tensor);
  return values;
}

/* The gradient of every loss over the outputs if it is the time for it, else saved for backward. */
static ek_status keep_signs(ek_criterion_pass *pass, const ek_tensor *output, double *signs) {
  double scale = 0;
  if (ek_criterion_pass_gradient_now(&scale, pass)) {
    ek_tensor gradient = *output;
    for (int64_t i = 0; i < ek_tensor_count(output); i++) signs[i] *= scale;
    ck_set(&gradient, signs);
    return EK_OK;
  }
  ek_tensor saved = {0};
  EK_TRY(ek_criterion_pass_create(&saved, pass, output->type, output->rank, output->shape));
  ck_set(&saved, signs);
  const ek_status status = ek_criterion_pass_save(pass, &saved);
  ek_tensor_free(&saved);
  return status;
}

static ek_status absolute_forward(const ek_criterion *self, ek_criterion_pass *pass,
                                  const ek_tensor *outputs, const ek_tensor *targets,
                                  ek_tensor *totals) {
  const struct ck_absolute_error *a = (const struct ck_absolute_error *)self;
  ek_tensor weights = {0}, number = {0};
  EK_TRY(ek_criterion_pass_constant(&weights, pass, 0));
  EK_TRY(ek_criterion_pass_constant(&number, pass, 1));
  const int64_t count = ek_tensor_count(&outputs[0]);
  double *y = fetch(&outputs[0]), *t = fetch(&targets[0]), *w = fetch(&weights);
  double *n = fetch(&number);
  double sum[2] = {0, 0};
  double *losses = calloc((size_t)count, sizeof *losses);
  ck_assert_int_eq((int32_t)n[0], a->number);
  for (int64_t i = 0; i < count; i++) {
    losses[i] = w[i % COLUMNS] * fabs(y[i] - t[i]);
    sum[0] += losses[i];
    sum[1] += w[i % COLUMNS];
    y[i] = w[i % COLUMNS] * (y[i] > t[i] ? 1 : -1);
  }
  ck_set(totals, sum);
  ek_status status = keep_signs(pass, &outputs[0], y);
  if (status == EK_OK && self->reduction == EK_REDUCTION_NONE) {
    ek_tensor kept = {0};
    status = ek_criterion_pass_create(&kept, pass, outputs[0].type, 1, &count);
    if (status == EK_OK) {
      ck_set(&kept, losses);
      status = ek_criterion_pass_losses(pass, &kept);
      ek_tensor_free(&kept);
    }
  }
  free(y), free(t), free(w), free(n), free(losses);
  if (status != EK_OK) return status;
  return a->fault == CK_FAILS_FORWARD ? ek_error_set(EK_ERR_UNSUPPORTED, "absolute: no") : EK_OK;
}

static ek_status absolute_backward(const ek_criterion *self, ek_criterion_pass *pass,
                                   const ek_tensor *outputs, const ek_tensor *targets,
                                   const ek_tensor *scales, ek_tensor *gradients) {
  (void)targets;
  const struct ck_absolute_error *a = (const struct ck_absolute_error *)self;
  if (a->fault == CK_NO_GRADIENT) return EK_OK;
  if (a->fault == CK_WRONG_GRADIENT) {
    const int64_t shape[] = {1};
    return ek_criterion_pass_create(&gradients[0], pass, EK_F32, 1, shape);
  }
  ek_tensor signs = {0}, given = {0};
  EK_TRY(ek_criterion_pass_take(&signs, pass));
  double *g = fetch(&signs), *scale = fetch(scales), *factors = NULL;
  if (ek_criterion_pass_loss_factors(&given, pass)) factors = fetch(&given);
  ek_tensor_free(&signs);
  for (int64_t i = 0; i < ek_tensor_count(&outputs[0]); i++) {
    g[i] *= scale[0] * (factors == NULL ? 1.0 : factors[i]);
  }
  ek_status status = ek_criterion_pass_gradient(&gradients[0], pass, &outputs[0]);
  if (status == EK_OK) ck_set(&gradients[0], g);
  free(g), free(scale), free(factors);
  if (status == EK_OK && a->fault == CK_TAKES_TOO_MUCH)
    status = ek_criterion_pass_take(&signs, pass);
  if (status == EK_OK && a->fault == CK_FAILS_BACKWARD) {
    status = ek_error_set(EK_ERR_UNSUPPORTED, "absolute: not back");
  }
  return status;
}

static void absolute_free(ek_criterion *self) {
  struct ck_absolute_error *a = (struct ck_absolute_error *)self;
  if (a->freed != NULL) ++*a->freed;
  free(a);
}

static const ek_criterion_ops absolute_ops = {.size = sizeof(ek_criterion_ops),
                                              .kind = "absolute",
                                              .forward = absolute_forward,
                                              .backward = absolute_backward,
                                              .free = absolute_free,
                                              .types = EK_TYPES_F32 | EK_TYPES_F64};

/* `weights` lives as long as the criterion. */
ek_criterion *ck_absolute_error(double *weights, ek_reduction reduction, enum ck_fault fault,
                                int *freed) {
  struct ck_absolute_error *a = calloc(1, sizeof *a);
  ck_assert_ptr_nonnull(a);
  a->fault = fault;
  a->freed = freed;
  a->number = 41;
  ck_ok(ek_criterion_init(&a->base, &absolute_ops, 1, 1, reduction));
  ck_ok(ek_tensor_host(&a->constants[0], weights, EK_F64, CK_SHAPE(COLUMNS)));
  ck_ok(ek_tensor_host(&a->constants[1], &a->number, EK_I32, 0, NULL));
  a->base.constants = a->constants;
  a->base.constant_count = 2;
  return &a->base;
}

/* ---- one made of two others ---- */

struct pair {
  ek_criterion base;
  ek_criterion *children[2];
  ek_tensor constants[4];
  size_t shift; /* added to where the second child's constants begin */
};

static ek_status pair_forward(const ek_criterion *self, ek_criterion_pass *pass,
                              const ek_tensor *outputs, const ek_tensor *targets,
                              ek_tensor *totals) {
  const struct pair *p = (const struct pair *)self;
  for (size_t i = 0; i < 2; i++) {
    ek_tensor own = {0};
    EK_TRY(ek_tensor_rows(&own, totals, (int64_t)i, 1));
    const ek_status status = ek_criterion_pass_forward(pass, p->children[i], i * 2 + i * p->shift,
                                                       &outputs[i], &targets[i], &own);
    ek_tensor_free(&own);
    if (status != EK_OK) return status;
  }
  ek_tensor first = {0};
  EK_TRY(ek_criterion_pass_constant(&first, pass, 3)); /* its own scope again */
  ck_assert_int_eq(first.type, EK_I32);
  return EK_OK;
}

static ek_status pair_backward(const ek_criterion *self, ek_criterion_pass *pass,
                               const ek_tensor *outputs, const ek_tensor *targets,
                               const ek_tensor *scales, ek_tensor *gradients) {
  const struct pair *p = (const struct pair *)self;
  for (size_t i = 2; i-- > 0;) {
    ek_tensor own = {0};
    EK_TRY(ek_tensor_rows(&own, scales, (int64_t)i, 1));
    const ek_status status = ek_criterion_pass_backward(pass, p->children[i], i * 2, &outputs[i],
                                                        &targets[i], &own, &gradients[i]);
    ek_tensor_free(&own);
    if (status != EK_OK) return status;
  }
  return EK_OK;
}

static void pair_free(ek_criterion *self) {
  struct pair *p = (struct pair *)self;
  ek_criterion_free(p->children[0]);
  ek_criterion_free(p->children[1]);
  free(p);
}

static const ek_criterion_ops pair_ops = {.size = sizeof(ek_criterion_ops),
                                          .kind = "pair",
                                          .forward = pair_forward,
                                          .backward = pair_backward,
                                          .free = pair_free,
                                          .types = EK_TYPES_F32 | EK_TYPES_F64};

ek_criterion *ck_pair(double *first, double *second, size_t shift, enum ck_fault fault) {
  struct pair *p = calloc(1, sizeof *p);
  ck_assert_ptr_nonnull(p);
  ck_ok(ek_criterion_init(&p->base, &pair_ops, 2, 2, EK_REDUCTION_SUM));
  p->children[0] = ck_absolute_error(first, EK_REDUCTION_SUM, CK_NO_FAULT, NULL);
  p->children[1] = ck_absolute_error(second, EK_REDUCTION_SUM, fault, NULL);
  for (size_t i = 0; i < 4; i++) p->constants[i] = p->children[i / 2]->constants[i % 2];
  p->shift = shift;
  p->base.constants = p->constants;
  p->base.constant_count = 4;
  p->base.terms = 2;
  return &p->base;
}
