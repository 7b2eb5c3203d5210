/*
 * dropout.c - sets elements to zero at random in training.
 *
 * Nothing is saved: backward computes the same mask again from the pass's key.
 */
#include <evenkeel/dropout.h>

#include <evenkeel/elementwise.h>

#include "core/error.h"
#include "module/layer_internal.h"

struct dropout {
  ek_module base;
  double p;
};

/* The same for both directions: y = x * mask / (1 - p), or y is x when nothing is dropped. */
static ek_status apply(const struct dropout *m, ek_pass *pass, ek_tensor *y, const ek_tensor *x) {
  if (m->p == 0.0 || !ek_pass_is_training(pass)) return ek_tensor_share(y, x);
  EK_TRY(ek__layer_result(y, pass, x));
  return ek_op_dropout(ek_pass_stream(pass), y, x, m->p, ek_pass_random(pass),
                       ek_pass_first_sample(pass));
}

static ek_status dropout_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                                 ek_tensor *outputs) {
  EK_TRY(ek__layer_check(pass, &inputs[0], -1));
  return apply((const struct dropout *)self, pass, &outputs[0], &inputs[0]);
}

static ek_status dropout_backward(const ek_module *self, ek_pass *pass,
                                  const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  if (grad_inputs == NULL) return EK_OK;
  return apply((const struct dropout *)self, pass, &grad_inputs[0], &grad_outputs[0]);
}

static const ek_module_ops dropout_ops = {
    EK__LAYER("dropout", dropout_forward, dropout_backward, ek__layer_free)};

ek_status ek_dropout_create(ek_module **module, double p) {
  EK__FAIL_IF(!(p >= 0.0 && p < 1.0), EK_ERR_INVALID_ARGUMENT,
              "dropout: p is %g, expected 0 <= p < 1", p);
  const struct dropout made = {.p = p};
  return ek__layer_create(module, &made, sizeof made, &dropout_ops, 1, 1);
}
