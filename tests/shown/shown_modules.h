/*
 * shown_modules.h - the modules and the criterion that headers and docs/own-model.md show. A part
 * of test_shown.c, as how_do_i.h.
 */
#ifndef SHOWN_MODULES_H
#define SHOWN_MODULES_H

/* module.h: y[r][c] = x[r][c] factor[c] */

CK_FORWARD(scale);
CK_BACKWARD(scale);
static void scale_free(ek_module *self) { free(self); }

#include "module_1.inc"

CK_FORWARD(scale) {
  const int64_t width = ((const scale_module *)self)->width;
  ek_tensor factor;
  EK_TRY(ek_pass_parameter(&factor, pass, 0));
  EK_TRY(ek_pass_output(&outputs[0], pass, EK_F32, 2, inputs[0].shape));
  for (int64_t i = 0; i < inputs[0].shape[0] * width; i++) {
    floats(&outputs[0])[i] = floats(&inputs[0])[i] * floats(&factor)[i % width];
  }
  return ek_pass_save(pass, &inputs[0]);
}

static ek_status scale_gradient(ek_pass *pass, const ek_tensor *dy, const ek_tensor *x) {
  const int64_t width = x->shape[1];
  ek_tensor dw;
  double beta = 0;
#define W2 0
#include "own_model_8.inc"
#undef W2
  if (beta != 1) return ek_error_set(EK_ERR_INTERNAL, "the second call finds beta %g", beta);
  for (int64_t i = 0; i < x->shape[0] * width; i++) {
    floats(&dw)[i % width] += floats(dy)[i] * floats(x)[i];
  }
  return EK_OK;
}

CK_BACKWARD(scale) {
  const int64_t width = ((const scale_module *)self)->width;
  CK_FREED(tensor) x = {0};
  ek_tensor factor;
  EK_TRY(ek_pass_take(&x, pass));
  EK_TRY(scale_gradient(pass, &grad_outputs[0], &x));
  if (grad_inputs == NULL) return EK_OK;
  EK_TRY(ek_pass_parameter(&factor, pass, 0));
  EK_TRY(ek_pass_output(&grad_inputs[0], pass, EK_F32, 2, grad_outputs[0].shape));
  for (int64_t i = 0; i < grad_outputs[0].shape[0] * width; i++) {
    floats(&grad_inputs[0])[i] = floats(&grad_outputs[0])[i] * floats(&factor)[i % width];
  }
  return EK_OK;
}

/* docs/own-model.md: a module of two others, and something foreign on each device */

struct pair {
  ek_module base;
  ek_module *encoder, *decoder;
};

static atomic_int foreign_parts; /* the workers open their devices' parts at once */

static void *foreign_create(size_t device) {
  foreign_parts++;
  return calloc(1, device + 1);
}

static void foreign_free(void *part) {
  foreign_parts--;
  free(part);
}

#include "own_model_12.inc"

CK_PARAMETERS(pair) {
  const struct pair *m = (const struct pair *)self;
#include "own_model_14.inc"
  return EK_OK;
}

CK_FORWARD(pair) {
  const int64_t row = 0;
  const uint32_t block = 0;
  uint32_t bits[4];
  if (ek_pass_state(pass) == NULL) return ek_error_set(EK_ERR_INTERNAL, "no state");
#include "own_model_13.inc"
#include "own_model_15.inc"
}

CK_BACKWARD(pair) {
#include "own_model_16.inc"
}

static void pair_free(ek_module *self) {
  ek_module_free(((struct pair *)self)->encoder);
  ek_module_free(((struct pair *)self)->decoder);
  free(self);
}

CK_MODULE_OPS_WITH(pair, .parameters = pair_parameters, .open = pair_open, .close = pair_close);

/* criterion.h: a criterion of the program's own, with the square for the absolute value */

static ek_status absolute_sum(ek_stream *stream, ek_tensor *totals, const ek_tensor *y,
                              const ek_tensor *t) {
  return ek_op_squared_error_forward(stream, NULL, totals, y, t);
}

static ek_status absolute_signs(ek_stream *stream, ek_tensor *gradient, const ek_tensor *y,
                                const ek_tensor *t, const ek_tensor *scale) {
  return ek_op_squared_error_backward(stream, gradient, y, t, scale, NULL);
}

#define forward shown_loss_forward
#define backward shown_loss_backward
#include "criterion_1.inc"
#undef forward
#undef backward

static const ek_module_ops shown_loss_ops = {
    CK_OPS("absolute", shown_loss_forward, shown_loss_backward, ck_plain_free)};

/* chain.h: the block of a decoder, with a linear instead of attention; check_chain.c has the way
 * back. */
#define forward shown_block_forward
#include "chain_1.inc"
#undef forward

CK_PARAMETERS(shown_block) {
  static const char *const names[] = {"ln_1", "attention", "ln_2", "expand", "gelu", "contract"};
  for (size_t i = 0; i <= CONTRACT; i++) {
    EK_TRY(ek_declare_module(declaration, names[i], ck_child(self, i)));
  }
  return EK_OK;
}

CK_BACKWARD(shown_block) {
  CK_WITH(ek_chain, chain, EK_CHAIN_INIT, .steps = path, .count = sizeof path / sizeof *path);
  return ek_chain_backward(grad_inputs, pass, grad_outputs, &chain);
}

CK_PARENT_OPS(shown_block, .parameters = shown_block_parameters);

SHOWN(shown_chain) {
  struct ck_parent *block = ck_module_new(sizeof *block, &shown_block_ops, 1, 1);
  CK_FREED(module) *module = &block->base;
  CK_FREED(replica) *replica = NULL;
  CK_FREED(pass) *pass = NULL;
  CK_FREED(tensor) x = {0}, y = {0};
  ek_device *device = ek_group_device(s->group, 0);
  EK_TRY(ek_layer_norm_create(&block->children[LN_1], WIDTH, 1e-5));
  EK_TRY(ek_linear_create(&block->children[ATTENTION], WIDTH, WIDTH, true));
  EK_TRY(ek_layer_norm_create(&block->children[LN_2], WIDTH, 1e-5));
  EK_TRY(ek_linear_create(&block->children[EXPAND], WIDTH, 3, true));
  EK_TRY(ek_activation_create(&block->children[GELU], EK_ACTIVATION_GELU));
  EK_TRY(ek_linear_create(&block->children[CONTRACT], 3, WIDTH, true));
  EK_TRY(ek_replica_open(&replica, device, module, NULL));
  EK_TRY(ek_tensor_create(&x, device, EK_MEMORY_INPUTS, EK_F32, 2, s->inputs[0].shape));
  EK_TRY(use(&x));
  EK_TRY(ek_pass_open(&pass, replica, NULL));
  EK_TRY(ek_pass_run_forward(&y, pass, &x));
  return ek_pass_run_backward(NULL, pass, &y);
}

#endif /* SHOWN_MODULES_H */
