/*
 * ck_blend.c - a module with two outputs, a broadcast input and a buffer: see ck_blend.h.
 */
#include "ck_blend.h"

#include "ck_mirror.h"

enum { N = CK_BLEND_WIDTH, A = 0, C = 1, B = 2 };

CK_PARAMETERS(blend) {
  static const int64_t shape[] = {N};
  EK_TRY(ek_declare_parameter(declaration, "a", 1, shape, ek_initializer_normal(0, 1)));
  EK_TRY(ek_declare_buffer(declaration, "c", 1, shape, ek_initializer_constant(0.5)));
  return ek_declare_parameter(declaration, "b", 1, shape, ek_initializer_uniform(-1, 1));
}

CK_FORWARD(blend) {
  const ek_tensor *w = &inputs[0], *x = &inputs[1];
  ek_tensor a, b, c;
  if (w->rank != 1 || w->shape[0] != N || x->rank != 2 || x->shape[1] != N ||
      x->type != ek_pass_type(pass) || w->type != x->type) {
    return ek_error_set(EK_ERR_SHAPE, "blend: expected [%d] and [B, %d]", N, N);
  }
  EK_TRY(ek_pass_parameter(&a, pass, A));
  EK_TRY(ek_pass_parameter(&b, pass, B));
  EK_TRY(ek_pass_parameter(&c, pass, C));
  EK_TRY(ek_pass_output(&outputs[0], pass, x->type, 2, x->shape));
  EK_TRY(ek_pass_output(&outputs[1], pass, x->type, 2, x->shape));
  CK_MIRRORS(m, 2, &outputs[0], &outputs[1], &a, &b, &c, w, x);
  const ek_tensor *h = m.host;
  for (int64_t i = 0; i < ek_tensor_count(x); i++) {
    const double value = ck_at(&h[6], i), factor = ck_at(&h[2], i % N);
    ck_put(&m.host[0], i, value * factor * ck_at(&h[5], i % N) + ck_at(&h[4], i % N));
    ck_put(&m.host[1], i, value + factor * ck_at(&h[3], i % N));
  }
  EK_TRY(ck_mirrors_close(&m));
  EK_TRY(ek_pass_save(pass, w));
  return ek_pass_save(pass, x);
}

static ek_status gradients(ek_pass *pass, const ek_tensor *w, const ek_tensor *x,
                           const ek_tensor *dy) {
  ek_tensor a, b, da, db;
  EK_TRY(ek_pass_parameter(&a, pass, A));
  EK_TRY(ek_pass_parameter(&b, pass, B));
  EK_TRY(ek_pass_gradient(&db, NULL, pass, B));
  EK_TRY(ek_pass_gradient(&da, NULL, pass, A));
  CK_MIRRORS(m, 2, &da, &db, &a, &b, w, x, &dy[0], &dy[1]);
  ek_tensor *h = m.host;
  for (int64_t i = 0; i < ek_tensor_count(x); i++) {
    const int64_t j = i % N;
    const double dy0 = ck_at(&h[6], i), dy1 = ck_at(&h[7], i);
    ck_put(&h[0], j,
           ck_at(&h[0], j) + dy0 * ck_at(&h[5], i) * ck_at(&h[4], j) + dy1 * ck_at(&h[3], j));
    ck_put(&h[1], j, ck_at(&h[1], j) + dy1 * ck_at(&h[2], j));
  }
  EK_TRY(ck_mirrors_close(&m));
  EK_TRY(ek_pass_gradient_complete(pass, B));
  return ek_pass_gradient_complete(pass, A);
}

/* As the root of a model it is never asked for the gradients of its inputs. */
CK_BACKWARD(blend) {
  CK_FREED(tensor) w = {0}, x = {0};
  if (grad_inputs != NULL) return ek_error_set(EK_ERR_UNSUPPORTED, "blend: no gradient of inputs");
  EK_TRY(ek_pass_take(&x, pass));
  EK_TRY(ek_pass_take(&w, pass));
  return gradients(pass, &w, &x, grad_outputs);
}

CK_PLAIN_OPS(blend, .parameters = blend_parameters, .types = EK_TYPES_F32 | EK_TYPES_F64);

ek_status ck_blend_create(ek_module **module) { return ck_plain_create(module, &blend_ops, 2, 2); }
