/*
 * chain.c - children one after the other: what a sequential, a GPT and its blocks are.
 *
 * A linear with GELU behind it runs as one operation. Where another linear follows, so does the way
 * back through that one and GELU: the gradient of GELU's result is nowhere held, and the bias of
 * the first linear gets its gradient in the same go. What is saved on the pass is what the modules
 * save one by one, so forward and backward need not agree on what they join.
 */
#include <evenkeel/products.h>

#include "module/layer_internal.h"

static void free_all(ek_tensor *tensors) {
  for (size_t i = 0; i < EK_MAX_TENSORS; i++) ek_tensor_free(&tensors[i]);
}

/* Moves references: `from` becomes zeros. */
static void move_all(ek_tensor *to, ek_tensor *from, size_t count) {
  for (size_t i = 0; i < count; i++) {
    to[i] = from[i];
    from[i] = (ek_tensor){0};
  }
}

/* ---- forward ---- */

static ek_status linear_gelu(ek_pass *pass, size_t child, const ek_module *linear,
                             const ek_tensor *x, ek_tensor *y) {
  EK_TRY(ek_pass_enter(pass, child));
  EK_TRY(ek__linear_gelu_forward(linear, pass, x, y));
  return ek_pass_leave(pass);
}

ek_status ek__chain_forward(ek_pass *pass, size_t first, ek_module *const *modules, size_t count,
                            const ek_tensor *inputs, ek_tensor *outputs) {
  ek_status status = EK_OK;
  ek_tensor held[EK_MAX_TENSORS] = {{0}}; /* what the module before gave; empty for the first */
  size_t ran = 0;
  for (size_t i = 0; i < count; i += ran) {
    ek_tensor results[EK_MAX_TENSORS] = {{0}};
    const ek_tensor *from = i == 0 ? inputs : held;
    ran = i + 1 < count && ek__is_linear(modules[i]) && ek__is_gelu(modules[i + 1]) ? 2 : 1;
    status = ran == 2 ? linear_gelu(pass, first + i, modules[i], from, results)
                      : ek_pass_child_forward(results, pass, first + i, from);
    free_all(held);
    if (status != EK_OK) {
      free_all(results);
      return status;
    }
    move_all(i + ran == count ? outputs : held, results, modules[i + ran - 1]->outputs);
  }
  return EK_OK;
}

/* ---- backward ---- */

/* The modules before *last and it are a linear, GELU, a linear. */
static bool ends_feed_forward(ek_module *const *last, size_t before) {
  return before >= 2 && ek__is_linear(last[0]) && ek__is_gelu(last[-1]) && ek__is_linear(last[-2]);
}

/*
 * The backward of child number `child`, which is *last, and of GELU before it. dpre comes out, and
 * the linear before them gets the gradient of its bias.
 */
static ek_status gelu_linear(ek_pass *pass, size_t child, ek_module *const *last, bool bias_done,
                             const ek_tensor *dy, ek_tensor *dpre) {
  const bool has_bias = ek__linear_has_bias(last[-2]);
  ek_tensor weight = {0}, dbias = {0}, pre = {0};
  double beta = 0;
  EK_TRY(ek_pass_enter(pass, child));
  EK_TRY(ek__linear_gradients(last[0], pass, dy, bias_done));
  EK_TRY(ek_pass_parameter(&weight, pass, EK__LINEAR_WEIGHT));
  EK_TRY(ek_pass_leave(pass));
  if (has_bias) {
    EK_TRY(ek_pass_enter(pass, child - 2));
    EK_TRY(ek_pass_gradient(&dbias, &beta, pass, EK__LINEAR_BIAS));
    EK_TRY(ek_pass_leave(pass));
  }
  EK_TRY(ek_pass_take(&pre, pass));
  ek_status status = ek__layer_result(dpre, pass, &pre);
  if (status == EK_OK) {
    status = ek_op_gelu_linear_backward(ek_pass_stream(pass), dpre, has_bias ? &dbias : NULL, beta,
                                        dy, &weight, &pre);
  }
  ek_tensor_free(&pre);
  return status;
}

static ek_status linear_without_bias(ek_pass *pass, size_t child, const ek_module *linear,
                                     const ek_tensor *dy, ek_tensor *dx) {
  EK_TRY(ek_pass_enter(pass, child));
  EK_TRY(ek__linear_backward(linear, pass, dy, dx, true));
  return ek_pass_leave(pass);
}

ek_status ek__chain_backward(ek_pass *pass, size_t first, ek_module *const *modules, size_t count,
                             const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  ek_status status = EK_OK;
  ek_tensor held[EK_MAX_TENSORS] = {{0}};
  bool bias_done = false; /* of the module that is next, a linear */
  size_t ran = 0;
  for (size_t left = count; left > 0; left -= ran) {
    ek_tensor results[EK_MAX_TENSORS] = {{0}};
    const size_t last = left - 1, child = first + last;
    const ek_tensor *from = left == count ? grad_outputs : held;
    ran = ends_feed_forward(&modules[last], last) ? 2 : 1;
    ek_tensor *to = left > ran || grad_inputs != NULL ? results : NULL;
    if (ran == 2) {
      status = gelu_linear(pass, child, &modules[last], bias_done, from, to);
    } else if (bias_done) {
      status = linear_without_bias(pass, child, modules[last], from, to);
    } else {
      status = ek_pass_child_backward(to, pass, child, from);
    }
    bias_done = ran == 2;
    free_all(held);
    if (status != EK_OK) {
      free_all(results);
      return status;
    }
    if (to != NULL)
      move_all(left == ran ? grad_inputs : held, results, modules[left - ran]->inputs);
  }
  return EK_OK;
}
