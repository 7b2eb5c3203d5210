/*
 * chain.c - children one after the other, some of them in one go: what a sequential, a GPT and its
 * blocks are.
 *
 * What modules compute they declare (ek_formula), so a program's own and wrapped ones take part. A
 * linear with GELU behind it is a *pair*, and runs as one operation. Where another linear follows,
 * so does the way back through that one and GELU: the gradient of GELU's result is nowhere held,
 * and the bias of the first linear gets its gradient in the same go.
 *
 * Of a module that takes part neither function is called, in neither direction: what is saved, and
 * when, is the chain's affair alone.
 */
#include <evenkeel/elementwise.h>
#include <evenkeel/products.h>

#include "module/composite.h"
#include "module/layer_internal.h"
#include "module/product.h"

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

/* ---- who takes part ---- */

struct chain {
  ek_pass *pass;
  const struct ek__child *children; /* the first is the module's child number `first` */
  size_t first, count;
};

static bool is_linear(ek_formula *formula, const struct chain *chain, size_t i) {
  ek_module_formula(formula, chain->children[i].module);
  return formula->kind == EK_FORMULA_LINEAR;
}

static bool is_gelu(const struct chain *chain, size_t i) {
  ek_formula formula;
  ek_module_formula(&formula, chain->children[i].module);
  return formula.kind == EK_FORMULA_ACTIVATION && formula.activation == EK_ACTIVATION_GELU;
}

/* Module i is the linear of a pair, whose formula this is. */
static bool begins_pair(ek_formula *linear, const struct chain *chain, size_t i) {
  return i + 1 < chain->count && is_linear(linear, chain, i) && is_gelu(chain, i + 1);
}

/* Module i is a linear behind a pair. */
static bool follows_pair(ek_formula *linear, const struct chain *chain, size_t i) {
  return i >= 2 && begins_pair(linear, chain, i - 2) && is_linear(linear, chain, i);
}

static ek_status enter(const struct chain *chain, size_t i) {
  return ek_pass_child_enter(chain->pass, chain->first + i);
}

/* ---- forward ---- */

/* Runs module i, and perhaps the next; *ran says how many. */
static ek_status step_forward(const struct chain *chain, size_t i, size_t *ran,
                              const ek_tensor *from, ek_tensor *to) {
  ek_formula linear;
  const bool pair = begins_pair(&linear, chain, i);
  *ran = pair ? 2 : 1;
  if (!pair && !follows_pair(&linear, chain, i)) {
    return ek_pass_child_forward(to, chain->pass, chain->first + i, from);
  }
  EK_TRY(enter(chain, i));
  EK_TRY((pair ? ek__product_gelu_forward : ek__product_forward)(&linear, chain->pass, from, to));
  return ek_pass_child_leave(chain->pass);
}

ek_status ek__chain_forward(const struct ek__composite *m, ek_pass *pass, size_t first,
                            size_t count, const ek_tensor *inputs, ek_tensor *outputs) {
  const struct chain chain = {pass, m->children + first, first, count};
  ek_tensor held[EK_MAX_TENSORS] = {{0}}; /* what the module before gave; empty for the first */
  size_t ran = 0;
  for (size_t i = 0; i < count; i += ran) {
    ek_tensor results[EK_MAX_TENSORS] = {{0}};
    const ek_status status = step_forward(&chain, i, &ran, i == 0 ? inputs : held, results);
    free_all(held);
    if (status != EK_OK) {
      free_all(results);
      return status;
    }
    move_all(i + ran == count ? outputs : held, results,
             chain.children[i + ran - 1].module->outputs);
  }
  return EK_OK;
}

/* ---- backward ---- */

/* The way back through linear i and through GELU of the pair before it: dpre comes out, and the
 * pair's linear gets the gradient of its bias. */
static ek_status gelu_linear(const struct chain *chain, size_t i, const ek_formula *linear,
                             bool bias_done, const ek_tensor *dy, ek_tensor *dpre) {
  ek_pass *pass = chain->pass;
  ek_formula before;
  ek_tensor weight = {0}, dbias = {0}, pre = {0};
  double beta = 0;
  EK_TRY(enter(chain, i));
  EK_TRY(ek__product_gradients(linear, pass, dy, bias_done));
  EK_TRY(ek_pass_parameter(&weight, pass, linear->weight));
  EK_TRY(ek_pass_child_leave(pass));
  ek_module_formula(&before, chain->children[i - 2].module);
  if (before.has_bias) {
    EK_TRY(enter(chain, i - 2));
    EK_TRY(ek_pass_gradient(&dbias, &beta, pass, before.bias));
    EK_TRY(ek_pass_child_leave(pass));
  }
  EK_TRY(ek_pass_take(&pre, pass));
  ek_status status = ek__layer_result(dpre, pass, &pre);
  if (status == EK_OK) {
    status = ek_op_gelu_linear_backward(ek_pass_stream(pass), dpre, before.has_bias ? &dbias : NULL,
                                        beta, dy, &weight, &pre);
  }
  ek_tensor_free(&pre);
  return status;
}

/* The way back through GELU of a pair alone. */
static ek_status gelu(const struct chain *chain, const ek_tensor *dy, ek_tensor *dpre) {
  ek_tensor pre = {0};
  EK_TRY(ek_pass_take(&pre, chain->pass));
  ek_status status = ek__layer_result(dpre, chain->pass, &pre);
  if (status == EK_OK) {
    status =
        ek_op_activation_backward(ek_pass_stream(chain->pass), dpre, dy, &pre, EK_ACTIVATION_GELU);
  }
  ek_tensor_free(&pre);
  return status;
}

/*
 * Runs back through module i, and through the one before it if `linear` is that of a module that
 * follows a pair. *bias_done: whether the bias of module i has its gradient; then the same of the
 * module that is next.
 */
static ek_status step_backward(const struct chain *chain, size_t i, const ek_formula *linear,
                               bool *bias_done, const ek_tensor *from, ek_tensor *to) {
  ek_formula own;
  const bool done = *bias_done;
  *bias_done = linear != NULL;
  if (linear != NULL) return gelu_linear(chain, i, linear, done, from, to);
  if (begins_pair(&own, chain, i)) {
    EK_TRY(enter(chain, i));
    EK_TRY(ek__product_backward(&own, chain->pass, from, to, done));
    return ek_pass_child_leave(chain->pass);
  }
  if (i > 0 && begins_pair(&own, chain, i - 1)) return gelu(chain, from, to);
  return ek_pass_child_backward(to, chain->pass, chain->first + i, from);
}

ek_status ek__chain_backward(const struct ek__composite *m, ek_pass *pass, size_t first,
                             size_t count, const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  const struct chain chain = {pass, m->children + first, first, count};
  ek_tensor held[EK_MAX_TENSORS] = {{0}};
  bool bias_done = false;
  size_t ran = 0;
  for (size_t left = count; left > 0; left -= ran) {
    ek_tensor results[EK_MAX_TENSORS] = {{0}};
    ek_formula linear;
    const ek_tensor *from = left == count ? grad_outputs : held;
    const bool behind = follows_pair(&linear, &chain, left - 1);
    ran = behind ? 2 : 1;
    ek_tensor *to = left > ran || grad_inputs != NULL ? results : NULL;
    const ek_status status =
        step_backward(&chain, left - 1, behind ? &linear : NULL, &bias_done, from, to);
    free_all(held);
    if (status != EK_OK) {
      free_all(results);
      return status;
    }
    if (to != NULL)
      move_all(left == ran ? grad_inputs : held, results,
               chain.children[left - ran].module->inputs);
  }
  return EK_OK;
}
