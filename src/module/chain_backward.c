/*
 * chain_backward.c - the steps of a chain, backward.
 *
 * Where a branch ends the gradient goes both ways, and at the branch's input the two gradients are
 * added, by the norm there if the branch begins with one.
 */
#include <string.h>

#include <evenkeel/elementwise.h>
#include <evenkeel/products.h>

#include "core/error.h"
#include "module/joins.h"
#include "module/layer_internal.h"
#include "module/product.h"

static ek_status enter(const struct ek__chain *chain, size_t i) {
  return ek_pass_child_enter(chain->pass, ek__step_child(chain, i));
}

/* The way back through linear i and through GELU of the pair before it: dpre comes out, and the
 * pair's linear gets the gradient of its bias. */
static ek_status gelu_linear(const struct ek__backward *at) {
  const struct ek__chain *chain = at->chain;
  ek_pass *pass = chain->pass;
  ek_formula linear, before;
  ek_tensor loan = {0}, weight = {0}, dbias = {0}, pre = {0};
  double beta = 0;
  (void)ek__part_of(&linear, chain, at->i);
  (void)ek__part_of(&before, chain, at->i - 2);
  EK_TRY(enter(chain, at->i));
  EK_TRY(ek__product_gradients(&linear, pass, at->given, at->bias_done));
  EK_TRY(ek_pass_parameter(&loan, pass, linear.weight));
  EK_TRY(ek_tensor_share(&weight, &loan)); /* it is needed beyond its child */
  ek_status status = ek_pass_child_leave(pass);
  bool wanted = false;
  if (status == EK_OK && before.has_bias) {
    status = enter(chain, at->i - 2);
    wanted = status == EK_OK && ek_pass_trains(pass, before.bias);
    if (wanted) status = ek_pass_gradient(&dbias, &beta, pass, before.bias);
    if (status == EK_OK) status = ek_pass_child_leave(pass);
  }
  if (status == EK_OK) status = ek_pass_take(&pre, pass);
  if (status == EK_OK) status = ek__layer_result(at->results, pass, &pre);
  if (status == EK_OK) {
    status = ek_op_gelu_linear_backward(ek_pass_stream(pass), at->results, wanted ? &dbias : NULL,
                                        at->given, &weight, &pre, beta);
  }
  ek_tensor_free(&pre);
  ek_tensor_free(&weight);
  return status;
}

/* Adds the gradient past the norm, if there is one, to that of its input. */
static ek_status norm_backward(const struct ek__backward *at) {
  ek_formula norm;
  (void)ek__part_of(&norm, at->chain, at->i);
  EK_TRY(enter(at->chain, at->i));
  EK_TRY(ek__norm_backward(&norm, at->chain->pass, at->given, at->residual, at->results));
  return ek_pass_child_leave(at->chain->pass);
}

static ek_status linear_backward(const struct ek__backward *at) {
  ek_formula linear;
  (void)ek__part_of(&linear, at->chain, at->i);
  EK_TRY(enter(at->chain, at->i));
  EK_TRY(ek__product_backward(&linear, at->chain->pass, at->given, at->results, at->bias_done));
  return ek_pass_child_leave(at->chain->pass);
}

/* dx over dy where the chain alone holds that, else a new tensor. */
static ek_status overwrite(ek_tensor *dx, const struct ek__backward *at) {
  if (at->own == NULL || ek_tensor_holders(at->own) != 1) {
    return ek__layer_result(dx, at->chain->pass, at->given);
  }
  ek__move_all(dx, at->own, 1);
  return EK_OK;
}

/* Through an activation that has kept its result. */
static ek_status result_backward(const struct ek__backward *at) {
  ek_pass *pass = at->chain->pass;
  const size_t child = ek__step_child(at->chain, at->i);
  const ek_tensor dy = *at->given;
  ek_tensor kept = {0};
  ek_formula formula;
  ek__step_formula(&formula, at->chain, at->i);
  if (child != SIZE_MAX) EK_TRY(enter(at->chain, at->i));
  EK_TRY(ek_pass_take(&kept, pass));
  ek_status status = at->results == NULL ? EK_OK : overwrite(at->results, at);
  if (at->results != NULL && status == EK_OK) {
    status = ek_op_activation_backward(ek_pass_stream(pass), at->results, &dy, &kept,
                                       formula.activation);
  }
  ek_tensor_free(&kept);
  if (status != EK_OK || child == SIZE_MAX) return status;
  return ek_pass_child_leave(pass);
}

static ek_status shortcut_backward(const struct ek__backward *at, const ek_tensor *given) {
  return ek_pass_child_backward(at->past, at->chain->pass, ek__step_child(at->chain, at->i), given);
}

/* Through the product: dfactor goes to the shortcut's child. */
static ek_status factors_backward(const struct ek__backward *at, ek_tensor *dx, ek_tensor *dfactor,
                                  const ek_tensor *x, const ek_tensor *factor) {
  ek_stream *stream = ek_pass_stream(at->chain->pass);
  const ek_tensor dy = *at->given;
  ek_formula gate;
  EK_TRY(ek__layer_result(dfactor, at->chain->pass, factor));
  EK_TRY(overwrite(dx, at));
  if (at->i > 0 && ek__part_of(&gate, at->chain, at->i - 1) == EK__PART_GATE) {
    return ek_op_gate_backward(stream, dx, dfactor, &dy, x, factor, gate.activation);
  }
  EK_TRY(ek_op_binary(stream, dfactor, &dy, x, EK_BINARY_MULTIPLY, EK_SPREAD_NONE));
  return ek_op_binary(stream, dx, &dy, factor, EK_BINARY_MULTIPLY, EK_SPREAD_NONE);
}

static ek_status multiply_backward(const struct ek__backward *at) {
  ek_tensor saved[2], dfactor = {0}, unwanted = {0};
  EK_TRY(ek__layer_take(saved, at->chain->pass, 2));
  ek_status status = factors_backward(at, at->results != NULL ? at->results : &unwanted, &dfactor,
                                      &saved[0], &saved[1]);
  ek__free_all(saved, 2);
  ek_tensor_free(&unwanted);
  if (status == EK_OK) status = shortcut_backward(at, &dfactor);
  ek_tensor_free(&dfactor);
  return status;
}

/* A child alone: its backward, or its formula's if it is part of a join. */
static ek_status child_backward(const struct ek__backward *at) {
  ek_pass *pass = at->chain->pass;
  ek_formula formula;
  if (!ek__is_joined(at->chain, at->i)) {
    return ek_pass_child_backward(at->results, pass, ek__step_child(at->chain, at->i), at->given);
  }
  switch (ek__part_of(&formula, at->chain, at->i)) {
  case EK__PART_LINEAR: return linear_backward(at);
  case EK__PART_NORM: return norm_backward(at);
  default: return ek__activation_backward(pass, EK_ACTIVATION_GELU, at->given, at->results);
  }
}

/* Between two steps back. */
struct gradients {
  ek_tensor values[EK_MAX_TENSORS]; /* `count` references; those of the chain's result are loans */
  size_t count;
  ek_tensor sum;          /* the gradient of an addition, until its branch begins */
  ek_tensor shortcut;     /* the gradient that a shortcut's child gave */
  const ek_tensor *value; /* where the gradients are */
  const ek_tensor *past;  /* the gradient that flows past the steps, or NULL */
  bool bias_done;
};

/* An addition: the gradient of the sum flows on both ways. */
static ek_status split(struct gradients *now, const struct ek__backward *at) {
  const bool child = ek__step_child(at->chain, at->i) != SIZE_MAX;
  if (child) EK_TRY(shortcut_backward(at, at->given));
  if (now->value == now->values) {
    ek__move_all(&now->sum, now->values, 1);
    now->value = &now->sum;
  }
  if (!child) now->past = now->value;
  return EK_OK;
}

/* Where a branch begins: `results`, the gradient that flowed through its steps, if there are any,
 * becomes the sum with the one that flowed past them. */
static ek_status merge(struct gradients *now, const struct ek__chain *chain, ek_tensor *results) {
  if (now->past == NULL) return EK_OK;
  if (!ek_tensor_exists(results)) EK_TRY(ek_tensor_share(results, now->value));
  if (now->past != &now->shortcut) return ek__residual_add(chain->pass, results, now->past);
  EK_TRY(ek__residual_add(chain->pass, &now->shortcut, results));
  ek_tensor_free(results);
  ek__move_all(results, &now->shortcut, 1);
  return EK_OK;
}

/* Whether the input of the branch that step i ends has a gradient. */
static bool wants_past(const struct ek__chain *chain, size_t i, size_t begin, bool wanted) {
  while (i > begin && !ek__ends_branch(chain, i - 1)) i--;
  return i > begin || wanted;
}

static ek_status join_backward(const struct ek__backward *at, const struct ek__join *join) {
  switch (join->operation) {
  case EK__JOINED_GELU_LINEAR: return gelu_linear(at);
  case EK__JOINED_GATE: return multiply_backward(at);
  case EK__JOINED_RESULT: return result_backward(at);
  default: return norm_backward(at);
  }
}

static ek_status one_backward(struct gradients *now, const struct ek__backward *at) {
  ek_formula formula;
  switch (ek__step_kind(at->chain, at->i)) {
  case EK__STEP_ACTIVATION:
    ek__step_formula(&formula, at->chain, at->i);
    return ek__activation_backward(at->chain->pass, formula.activation, at->given, at->results);
  case EK__STEP_ADD: return split(now, at);
  case EK__STEP_MULTIPLY: return multiply_backward(at);
  default: return child_backward(at);
  }
}

/* Runs back through the step before `left`, or the join that ends there; *ran is the number of
 * steps. */
static ek_status step_backward(struct gradients *now, const struct ek__chain *chain, size_t left,
                               size_t begin, ek_tensor *grad_inputs, size_t *ran) {
  ek_tensor results[EK_MAX_TENSORS], past = {0};
  const size_t i = left - 1;
  const bool ends = ek__ends_branch(chain, i), adds = ek__step_kind(chain, i) == EK__STEP_ADD;
  const struct ek__join *join = ek__join_backward(chain, i);
  *ran = join == NULL ? 1 : join->count - join->before;
  const size_t first = left - *ran, count = ek__step_inputs(chain, first);
  memset(results, 0, count * sizeof *results);
  const bool wanted = first > begin || grad_inputs != NULL;
  const bool begins = first == begin || ek__ends_branch(chain, first - 1);
  const bool merges = join != NULL && join->branches;
  const bool passes = ends && wants_past(chain, i, begin, grad_inputs != NULL);
  const struct ek__backward at = {.chain = chain,
                                  .i = i,
                                  .given = now->value,
                                  .own = now->value == now->values ? now->values : NULL,
                                  .residual = merges ? now->past : NULL,
                                  .bias_done = now->bias_done,
                                  .results = wanted ? results : NULL,
                                  .past = passes ? &past : NULL};
  ek_status status = join != NULL ? join_backward(&at, join) : one_backward(now, &at);
  if (ek_tensor_exists(&past)) {
    ek__move_all(&now->shortcut, &past, 1);
    now->past = &now->shortcut;
  }
  now->bias_done = join != NULL && join->before > 0;
  if (status == EK_OK && begins && wanted && !merges) status = merge(now, chain, results);
  if (adds && !begins) return status; /* both go on from where they are */
  ek__free_all(now->values, now->count);
  now->count = 0;
  if (begins) {
    ek_tensor_free(&now->shortcut);
    ek_tensor_free(&now->sum);
    now->past = NULL;
  }
  now->value = now->values;
  if (status == EK_OK && wanted) {
    now->count = first == begin ? 0 : count;
    ek__move_all(first == begin ? grad_inputs : now->values, results, count);
  }
  ek__free_all(results, count);
  return status;
}

ek_status ek__steps_backward(const struct ek__chain *chain, size_t begin, size_t end,
                             const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  struct gradients now = {.count = 0, .value = grad_outputs};
  ek_status status = EK_OK;
  size_t ran = 0;
  for (size_t left = end; left > begin && status == EK_OK; left -= ran) {
    status = step_backward(&now, chain, left, begin, grad_inputs, &ran);
  }
  ek__free_all(now.values, now.count);
  ek_tensor_free(&now.shortcut);
  ek_tensor_free(&now.sum);
  return status;
}
