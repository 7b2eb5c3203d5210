/*
 * ck_biased.c - see ck_biased.h.
 */
#include "ck_biased.h"

struct biased {
  ek_criterion base;
  bool early; /* it computes gradients in forward where it can */
};

static ek_status biased_declare(const ek_module *self, ek_declaration *declaration) {
  const int64_t shape[] = {CK_BIASED_COLUMNS};
  (void)self;
  return ek_declare_parameter(declaration, "bias", 1, shape, ek_initializer_constant(0.25));
}

/* z becomes the gradient of y, and its columns go to the bias. */
static ek_status biased_gradients(ek_pass *pass, ek_tensor *z, const ek_tensor *target,
                                  double scale) {
  ek_stream *stream = ek_pass_stream(pass);
  ek_tensor bias = {0};
  double beta = 0;
  EK_TRY(ek_op_squared_error_backward(stream, z, z, target, NULL, NULL));
  EK_TRY(ek_op_scale(stream, z, z, scale));
  EK_TRY(ek_pass_gradient(&bias, &beta, pass, 0));
  EK_TRY(ek_op_column_sum(stream, &bias, z, beta));
  return ek_pass_gradient_complete(pass, 0);
}

CK_FORWARD(biased) {
  const ek_tensor *y = &inputs[0], *target = &inputs[1];
  ek_stream *stream = ek_pass_stream(pass);
  CK_FREED(tensor) z = {0};
  ek_tensor bias = {0};
  double scale = 0;
  EK_TRY(ek_pass_parameter(&bias, pass, 0));
  EK_TRY(ek_pass_totals(&outputs[0], pass));
  EK_TRY(ek_pass_output(&z, pass, y->type, y->rank, y->shape));
  EK_TRY(ek_op_copy(stream, &z, y));
  EK_TRY(ek_op_add_bias(stream, &z, &bias));
  EK_TRY(ek_op_squared_error_forward(stream, NULL, &outputs[0], &z, target));
  const bool early = ((const struct biased *)self)->early && ek_pass_known_scale(&scale, pass);
  if (early) EK_TRY(biased_gradients(pass, &z, target, scale));
  EK_TRY(ek_pass_save(pass, &z));
  return early ? EK_OK : ek_pass_save(pass, target);
}

CK_BACKWARD(biased) {
  const ek_tensor scale = ek_criterion_scale(&grad_outputs[0], 0);
  ek_stream *stream = ek_pass_stream(pass);
  CK_FREED(tensor) z = {0}, target = {0};
  ek_tensor bias = {0};
  double beta = 0, known = 0;
  if (((const struct biased *)self)->early && ek_pass_known_scale(&known, pass)) {
    return ek_pass_take(&grad_inputs[0], pass);
  }
  EK_TRY(ek_pass_take(&target, pass));
  EK_TRY(ek_pass_take(&z, pass));
  EK_TRY(ek_pass_input_gradient(&grad_inputs[0], pass, &z));
  ck_assert(grad_inputs[0].data == z.data); /* nothing else needs it */
  EK_TRY(ek_op_squared_error_backward(stream, &grad_inputs[0], &z, &target, &scale, NULL));
  EK_TRY(ek_pass_gradient(&bias, &beta, pass, 0));
  return ek_op_column_sum(stream, &bias, &grad_inputs[0], beta);
}

CK_PLAIN_OPS(biased, .parameters = biased_declare, .types = EK_TYPES_F32 | EK_TYPES_F64);

ek_criterion *ck_biased_with(bool early, ek_reduction reduction) {
  struct biased *b = calloc(1, sizeof *b);
  ck_assert_ptr_nonnull(b);
  b->early = early;
  ck_ok(ek_criterion_init(&b->base, &biased_ops, 1, 1, reduction));
  return &b->base;
}

ek_criterion *ck_biased(void) { return ck_biased_with(false, EK_REDUCTION_MEAN); }

ek_module *ck_together(ek_module *model, ek_criterion *criterion) {
  CK_GOT(ek_module *, module, ek_with_criterion_create(&module, model, criterion));
  ek_module_free(model);
  ek_criterion_free(criterion);
  return ck_keep(module);
}
