/*
 * ck_own_criteria.c - criteria of a program's own: see ck_own_criteria.h.
 */
#include "ck_own_criteria.h"

/* ---- a criterion of our own: s = sum of w[c] |y - t|, d = sum of w[c] ---- */

enum { COLUMNS = CK_ABSOLUTE_COLUMNS };

/* It computes on the host, so that it runs on any backend. */

/* The gradient of every loss over the outputs if it is the time for it, else saved for backward.
 * What is saved in the first case, large as it is, is to be dropped. */
static ek_status keep_signs(ek_pass *pass, const ek_tensor *output, double *signs) {
  double scale = 0;
  CK_FREED(tensor) saved = {0};
  if (ek_pass_gradient_now(&scale, pass)) {
    ek_tensor gradient = *output;
    for (int64_t i = 0; i < ek_tensor_count(output); i++) signs[i] *= scale;
    ck_set(&gradient, signs);
    const int64_t large = CK_ABSOLUTE_DROPPED;
    EK_TRY(ek_pass_output(&saved, pass, output->type, 1, &large));
    return ek_pass_save(pass, &saved);
  }
  EK_TRY(ek_pass_output(&saved, pass, output->type, output->rank, output->shape));
  ck_set(&saved, signs);
  EK_TRY(ek_pass_save(pass, output));
  return ek_pass_save(pass, &saved);
}

static ek_status absolute_declare(const ek_module *self, ek_declaration *declaration) {
  const struct ck_absolute_error *a = (const struct ck_absolute_error *)self;
  const int64_t shape[] = {COLUMNS};
  return ek_declare_buffer(declaration, "weights", 1, shape, ek_initializer_values(a->weights));
}

CK_FORWARD(absolute) {
  const struct ck_absolute_error *a = (const struct ck_absolute_error *)self;
  const int64_t count = ek_tensor_count(&inputs[0]), pair[] = {1, 2};
  ek_tensor weights = {0};
  EK_TRY(ek_pass_parameter(&weights, pass, 0));
  EK_TRY(a->fault == CK_OWN_TOTALS ? ek_pass_output(&outputs[0], pass, EK_F64, 2, pair)
                                   : ek_pass_totals(&outputs[0], pass));
  if (ek_module_outputs(self) == 2)
    EK_TRY(ek_pass_output(&outputs[1], pass, inputs[0].type, 1, &count));
  double *y = ck_got(&inputs[0]), *t = ck_got(&inputs[1]), *w = ck_got(&weights);
  double sum[2] = {0, 0};
  double *losses = ck_array((size_t)count, sizeof *losses);
  for (int64_t i = 0; i < count; i++) {
    losses[i] = w[i % COLUMNS] * fabs(y[i] - t[i]);
    sum[0] += losses[i];
    sum[1] += w[i % COLUMNS];
    y[i] = w[i % COLUMNS] * (y[i] > t[i] ? 1 : -1);
  }
  ck_set(&outputs[0], sum);
  if (ek_module_outputs(self) == 2) ck_set(&outputs[1], losses);
  const ek_status status = keep_signs(pass, &inputs[0], y);
  ck_drop(y), ck_drop(t), ck_drop(w), ck_drop(losses);
  if (status != EK_OK) return status;
  return a->fault == CK_FAILS_FORWARD ? ek_error_set(EK_ERR_UNSUPPORTED, "absolute: no") : EK_OK;
}

CK_BACKWARD(absolute) {
  const struct ck_absolute_error *a = (const struct ck_absolute_error *)self;
  if (a->fault == CK_NO_GRADIENT) return EK_OK;
  if (a->fault == CK_WRONG_GRADIENT) {
    const int64_t shape[] = {1};
    return ek_pass_output(&grad_inputs[0], pass, ek_pass_type(pass), 1, shape);
  }
  ek_tensor signs = {0}, output = {0};
  EK_TRY(ek_pass_take(&signs, pass));
  EK_TRY(ek_pass_take(&output, pass));
  double *g = ck_got(&signs), scale = 1, *factors = NULL;
  const ek_tensor given = ek_criterion_scale(&grad_outputs[0], 0);
  if (ek_module_outputs(self) == 2) {
    factors = ck_got(&grad_outputs[1]);
  } else {
    ck_get(&scale, &given);
  }
  ek_tensor_free(&signs);
  for (int64_t i = 0; i < ek_tensor_count(&output); i++) {
    g[i] *= factors == NULL ? scale : factors[i];
  }
  ek_status status = ek_pass_input_gradient(&grad_inputs[0], pass, &output);
  if (status == EK_OK) ck_set(&grad_inputs[0], g);
  ek_tensor_free(&output);
  ck_drop(g), ck_drop(factors);
  if (status == EK_OK && a->fault == CK_TARGET_GRADIENT) {
    status = ek_pass_output(&grad_inputs[1], pass, grad_inputs[0].type, grad_inputs[0].rank,
                            grad_inputs[0].shape);
  }
  if (status == EK_OK && a->fault == CK_TAKES_TOO_MUCH) status = ek_pass_take(&signs, pass);
  if (status == EK_OK && a->fault == CK_FAILS_BACKWARD) {
    status = ek_error_set(EK_ERR_UNSUPPORTED, "absolute: not back");
  }
  return status;
}

static void absolute_free(ek_module *self) {
  struct ck_absolute_error *a = (struct ck_absolute_error *)self;
  if (a->freed != NULL) ++*a->freed;
  free(a);
}

CK_MODULE_OPS_WITH(absolute, .parameters = absolute_declare, .types = EK_TYPES_F32 | EK_TYPES_F64);

ek_criterion *ck_absolute_error(const double *weights, ek_reduction reduction, enum ck_fault fault,
                                int *freed) {
  struct ck_absolute_error *a = calloc(1, sizeof *a);
  ck_assert_ptr_nonnull(a);
  ck_ok(ek_criterion_init(&a->base, &absolute_ops, 1, 1, reduction));
  a->fault = fault;
  a->freed = freed;
  a->weights = weights;
  return &a->base;
}

/* ---- one made of two others ---- */

struct pair {
  ek_criterion base;
  ek_criterion *children[2];
};

static ek_status pair_declare(const ek_module *self, ek_declaration *declaration) {
  const struct pair *p = (const struct pair *)self;
  EK_TRY(ek_declare_module(declaration, "first", &p->children[0]->base));
  EK_TRY(ek_declare_buffer(declaration, "own", 0, NULL, ek_initializer_constant(41)));
  return ek_declare_module(declaration, "second", &p->children[1]->base);
}

CK_FORWARD(pair) {
  EK_TRY(ek_pass_totals(&outputs[0], pass));
  for (size_t i = 0; i < 2; i++) {
    const ek_tensor own[] = {inputs[i], inputs[2 + i]};
    ek_tensor rows = {0}, totals = {0};
    EK_TRY(ek_tensor_rows(&rows, &outputs[0], (int64_t)i, 1));
    CK_WITH(ek_child_options, options, EK_CHILD_OPTIONS_INIT, .promise.totals = &rows);
    const ek_status status = ek_pass_child_forward_with(&totals, pass, i, own, &options);
    ek_tensor_free(&totals);
    ek_tensor_free(&rows);
    if (status != EK_OK) return status;
  }
  ek_tensor number = {0};
  EK_TRY(ek_pass_parameter(&number, pass, 0)); /* its own scope again */
  ck_assert_int_eq(number.rank, 0);
  return EK_OK;
}

CK_BACKWARD(pair) {
  for (size_t i = 2; i-- > 0;) {
    ek_tensor rows = {0}, own[2] = {{0}};
    EK_TRY(ek_tensor_rows(&rows, &grad_outputs[0], (int64_t)i, 1));
    const ek_status status = ek_pass_child_backward(own, pass, i, &rows);
    ek_tensor_free(&rows);
    if (status != EK_OK) return status;
    grad_inputs[i] = own[0];
  }
  return EK_OK;
}

static void pair_free(ek_module *self) {
  struct pair *p = (struct pair *)self;
  ek_criterion_free(p->children[0]);
  ek_criterion_free(p->children[1]);
  free(p);
}

CK_MODULE_OPS_WITH(pair, .parameters = pair_declare, .types = EK_TYPES_F32 | EK_TYPES_F64);

ek_criterion *ck_pair(const double *first, const double *second, enum ck_fault fault) {
  struct pair *p = calloc(1, sizeof *p);
  ck_assert_ptr_nonnull(p);
  ek_criterion_options options = EK_CRITERION_OPTIONS_INIT;
  options.outputs = options.targets = options.terms = 2;
  options.reduction = EK_REDUCTION_SUM;
  ck_ok(ek_criterion_init_with(&p->base, &pair_ops, &options));
  p->children[0] = ck_absolute_error(first, EK_REDUCTION_SUM, CK_OWN_TOTALS, NULL);
  p->children[1] = ck_absolute_error(second, EK_REDUCTION_SUM, fault, NULL);
  return &p->base;
}
