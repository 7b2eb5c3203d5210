/*
 * chain_forward.c - the steps of a chain, forward.
 *
 * A branch begins at its input, which flows on twice: through the steps, and past them on the
 * shortcut to the step that ends the branch, where the two are added or multiplied. A tensor is
 * freed when the step that needs it last has run.
 */
#include <string.h>

#include <evenkeel/elementwise.h>

#include "core/error.h"
#include "core/options.h"
#include "module/joins.h"
#include "module/layer_internal.h"
#include "module/product.h"

/* The result of a cheap child can be made again by that child from this tensor. */
struct ek__made {
  size_t by;
  ek_tensor from; /* need not exist */
};

/* Between two steps. */
struct flow {
  ek_tensor values[EK_MAX_TENSORS]; /* the `count` tensors that the last step gave */
  size_t count;                     /* 0 before the first */
  ek_tensor shortcut;               /* to the next end of a branch, if not the chain's input */
  /* The norm before that end, which nothing needs: freed where the end comes. Freed earlier it
   * would leave a hole for a result that outlives its neighbours: a higher arena. */
  ek_tensor norm;
  struct ek__made made;
  size_t recipe; /* for the value, if it is an activation of what can be made again */
};

static void flow_begin(struct flow *flow, size_t count) {
  memset(flow->values, 0, count * sizeof *flow->values);
  flow->count = count;
  flow->shortcut = flow->norm = flow->made.from = (ek_tensor){0};
  flow->recipe = EK__NO_RECIPE;
}

static void flow_free(ek_pass *pass, struct flow *flow) {
  ek__recipe_close(pass, flow->recipe);
  ek__free_all(flow->values, flow->count);
  ek_tensor_free(&flow->shortcut);
  ek_tensor_free(&flow->norm);
  ek_tensor_free(&flow->made.from);
}

/* How child i runs, which may be the last of a join or not. */
static ek_child_options options_of(const struct ek__forward *at, size_t last) {
  ek_child_options options = EK_CHILD_OPTIONS_INIT;
  options.save = at->chain->save;
  options.unread = last == at->chain->unread;
  if (at->made != NULL) {
    options.made_by = at->made->by;
    options.made_from = &at->made->from;
  }
  return options;
}

static ek_status linear_gelu(struct ek__forward *at) {
  ek_pass *pass = at->chain->pass;
  const ek_child_options options = options_of(at, at->i + 1);
  ek_formula linear;
  (void)ek__part_of(&linear, at->chain, at->i);
  EK_TRY(ek_pass_child_enter_with(pass, ek__step_child(at->chain, at->i), at->given, &options));
  EK_TRY(ek__product_gelu_forward(&linear, pass, at->given, at->inner, at->results,
                                  at->chain->remakes));
  return ek_pass_child_leave(pass);
}

ek_status ek__residual_add(ek_pass *pass, ek_tensor *sum, const ek_tensor *x) {
  EK__FAIL_IF(!ek_tensor_same_shape(sum, x), EK_ERR_SHAPE,
              "a residual connection adds two tensors of different shapes");
  ek_stream *stream = ek_pass_stream(pass);
  if (ek_tensor_holders(sum) == 1) return ek_op_add(stream, sum, sum, x);

  ek_tensor fresh = {0};
  EK_TRY(ek__layer_result(&fresh, pass, x));
  const ek_status status = ek_op_add(stream, &fresh, sum, x);
  ek_tensor_free(status == EK_OK ? sum : &fresh);
  if (status == EK_OK) *sum = fresh;
  return status;
}

/* A reference to the given tensor, owned by the caller. */
static ek_status take_given(ek_tensor *tensor, const struct ek__forward *at) {
  if (at->own == NULL) return ek_tensor_share(tensor, at->given);
  ek__move_all(tensor, at->own, 1);
  return EK_OK;
}

/* ---- an addition at the end of a chain, with the norm that the next one begins with ---- */

static bool is_chain(const struct ek__chain *chain, size_t i) {
  if (ek__step_kind(chain, i) != EK__STEP_CHILD) return false;
  const struct ek__node *child = chain->node->children[ek__step_child(chain, i)];
  return EK__TABLE_SLOT(ek_module_table(child->module), chain);
}

/* Whether the child of step i may leave its last addition to the one after it. */
static bool may_leave(const struct ek__chain *chain, size_t i) {
  if (i == chain->unread || ek__step_outputs(chain, i) != 1) return false;
  return i + 1 < chain->count ? is_chain(chain, i + 1) : chain->leaves_sum;
}

/* Leaves `sum` += residual open if it would be computed in place; the chain's caller holds `sum`,
 * and nothing reads it before. */
static ek_status leave_sum(bool *left, const struct ek__chain *chain, const ek_tensor *sum,
                           const ek_tensor *residual) {
  *left = ek_tensor_holders(sum) == 1 && ek_tensor_same_shape(sum, residual);
  if (!*left) return EK_OK;
  chain->pass->open_sum.place = *sum;
  return ek_tensor_share(&chain->pass->open_sum.residual, residual);
}

/* What becomes of a sum that is open where step `begin` is given it: a norm computes it, a chain
 * looks for itself, and for all others it is computed here. */
static ek_status begin_with(const struct ek__chain *chain, size_t begin, const ek_tensor *given) {
  const struct ek__open_sum *it = &chain->pass->open_sum;
  if (!ek_tensor_exists(&it->residual)) return EK_OK;
  const bool here = it->place.memory == given->memory && it->place.data == given->data;
  const bool takes =
      is_chain(chain, begin) || (ek__is_norm(chain, begin) && ek__is_joined(chain, begin));
  return here && takes ? EK_OK : ek__sum_close(chain->pass);
}

static ek_status norm_forward(const struct ek__forward *at, const ek_formula *norm) {
  ek_pass *pass = at->chain->pass;
  ek_tensor x = at->given[0];
  if (!ek_tensor_exists(&pass->open_sum.residual)) {
    return ek__norm_forward(norm, pass, &x, NULL, at->results);
  }
  const ek_status status =
      ek__norm_forward_over(norm, pass, &x, &pass->open_sum.residual, at->results);
  ek__sum_drop(pass);
  return status;
}

static ek_status add(struct ek__forward *at) {
  EK_TRY(take_given(at->results, at));
  if (at->i > at->chain->unread) return EK_OK;
  if (at->chain->leaves_sum && at->i + 1 == at->chain->count) {
    bool left = false;
    EK_TRY(leave_sum(&left, at->chain, at->results, at->shortcut));
    if (left) return EK_OK;
  }
  EK_TRY(ek__residual_add(at->chain->pass, at->results, at->shortcut));
  return ek_tensor_share(at->sum, at->results);
}

static ek_status add_norm(struct ek__forward *at) {
  ek_pass *pass = at->chain->pass;
  const ek_child_options options = options_of(at, at->i + 1);
  ek_formula norm;
  (void)ek__part_of(&norm, at->chain, at->i + 1);
  EK_TRY(take_given(at->inner, at));
  EK_TRY(ek_pass_child_enter_with(pass, ek__step_child(at->chain, at->i + 1), NULL, &options));
  EK_TRY(ek__norm_forward(&norm, pass, at->inner, at->shortcut, at->results));
  EK_TRY(ek_pass_child_leave(pass));
  return ek_tensor_share(at->sum, at->inner);
}

/* One without a child. */
static ek_status activation_forward(struct ek__forward *at) {
  ek_formula formula;
  ek__step_formula(&formula, at->chain, at->i);
  return ek__activation_forward(at->chain->pass, formula.activation, at->given, at->results,
                                at->chain->save);
}

/*
 * An activation whose backward needs its result, which is written over its input where nothing else
 * holds that. Where the input can be made again so can the result, by the same module: as long as
 * the next step runs, and here, it is a recipe that is saved. The last step's result is its
 * caller's, who may save it.
 */
static ek_status result_forward(struct ek__forward *at) {
  ek_pass *pass = at->chain->pass;
  const size_t child = ek__step_child(at->chain, at->i);
  ek_formula formula;
  ek__step_formula(&formula, at->chain, at->i);
  if (child != SIZE_MAX) EK_TRY(ek_pass_child_enter(pass, child));
  EK_TRY(ek__layer_check(pass, at->given, -1));
  EK_TRY(take_given(at->results, at));
  EK_TRY(ek__activate(pass, formula.activation, at->results));
  if (child != SIZE_MAX) EK_TRY(ek_pass_child_leave(pass));
  if (!at->chain->save) return EK_OK;
  if (at->made != NULL && at->i + 1 < at->chain->count) {
    EK_TRY(ek__recipe_open_activated(at->recipe, pass, at->made->by, &at->made->from,
                                     formula.activation, at->results));
  }
  return ek_pass_save(pass, at->results);
}

/* The product with the shortcut's result, after an activation or not. Backward needs both. */
static ek_status multiply(struct ek__forward *at) {
  ek_pass *pass = at->chain->pass;
  ek_stream *stream = ek_pass_stream(pass);
  ek_formula gate;
  EK_TRY(ek__layer_result(at->results, pass, at->given));
  if (at->last != at->chain->unread) {
    EK_TRY(ek__part_of(&gate, at->chain, at->i) == EK__PART_GATE
               ? ek_op_gate_forward(stream, at->results, at->given, at->shortcut, gate.activation)
               : ek_op_binary(stream, at->results, at->given, at->shortcut, EK_BINARY_MULTIPLY,
                              EK_SPREAD_NONE));
  }
  if (at->chain->save) EK_TRY(ek_pass_save(pass, at->given));
  if (at->chain->save) EK_TRY(ek_pass_save(pass, at->shortcut));
  return ek_tensor_share(at->sum, at->results);
}

/* What a child makes of the shortcut's value. */
static ek_status shortcut_forward(ek_tensor *made, const struct ek__forward *at) {
  ek_child_options options = EK_CHILD_OPTIONS_INIT;
  options.save = at->chain->save;
  options.unread = at->last > at->chain->unread;
  return ek_pass_child_forward_with(made, at->chain->pass, ek__step_child(at->chain, at->end),
                                    at->shortcut, &options);
}

/* Calls a child's forward. */
static ek_status call_child(struct ek__forward *at, const ek_tensor *inputs) {
  ek_pass *pass = at->chain->pass;
  const ek_child_options options = options_of(at, at->i);
  pass->leaves_sum = is_chain(at->chain, at->i) && may_leave(at->chain, at->i);
  const ek_status status = ek_pass_child_forward_with(
      at->results, pass, ek__step_child(at->chain, at->i), inputs, &options);
  pass->leaves_sum = false; /* also if it was not called */
  return status;
}

/* A child alone: its forward, or its formula if it is part of a join. */
static ek_status child_forward(struct ek__forward *at) {
  ek_pass *pass = at->chain->pass;
  const ek_child_options options = options_of(at, at->i);
  const size_t child = ek__step_child(at->chain, at->i);
  ek_formula formula;
  if (ek__takes_shared(at->chain, at->i)) {
    ek_tensor inputs[EK_MAX_TENSORS] = {at->given[0]};
    memcpy(inputs + 1, at->chain->shared_inputs, at->chain->shared * sizeof *inputs);
    return call_child(at, inputs);
  }
  if (!ek__is_joined(at->chain, at->i)) return call_child(at, at->given);
  EK_TRY(ek_pass_child_enter_with(pass, child, at->given, &options));
  if (ek__part_of(&formula, at->chain, at->i) == EK__PART_LINEAR) {
    EK_TRY(ek__product_forward(&formula, pass, at->given, at->results, 0));
  } else { /* a norm: GELU and the activation of a gate are never alone, others are a join */
    EK_TRY(norm_forward(at, &formula));
  }
  return ek_pass_child_leave(pass);
}

static bool is_cheap(const struct ek__chain *chain, size_t i) {
  if (ek__step_kind(chain, i) != EK__STEP_CHILD || ek__takes_shared(chain, i)) return false;
  if (ek__step_inputs(chain, i) != 1 || ek__step_outputs(chain, i) != 1) return false;
  const struct ek__node *child = chain->node->children[ek__step_child(chain, i)];
  return EK__TABLE_SLOT(ek_module_table(child->module), cheap);
}

/*
 * The next step may make its input again instead of keeping it, if that is the result of a cheap
 * step i with the input *from. A step whose own input is made again keeps its result: it holds
 * nothing else.
 */
static ek_status remember(struct ek__made *made, const struct ek__chain *chain, size_t i,
                          bool remade, const ek_tensor *from) {
  if (!chain->cheap || remade || !is_cheap(chain, i) || !ek_tensor_exists(from)) return EK_OK;
  made->by = ek__step_child(chain, i);
  return ek_tensor_share(&made->from, from);
}

static ek_status join_forward(struct ek__forward *at, const struct ek__join *join) {
  switch (join->operation) {
  case EK__JOINED_LINEAR_GELU: return linear_gelu(at);
  case EK__JOINED_GATE: return multiply(at);
  case EK__JOINED_RESULT: return result_forward(at);
  default: return add_norm(at);
  }
}

static ek_status one_forward(struct ek__forward *at) {
  switch (ek__step_kind(at->chain, at->i)) {
  case EK__STEP_ACTIVATION: return activation_forward(at);
  case EK__STEP_ADD: return add(at);
  case EK__STEP_MULTIPLY: return multiply(at);
  default: return child_forward(at);
  }
}

/* Runs the step at->i, or the join that begins there, to at->last. */
static ek_status step_forward(struct ek__forward *at, size_t end, struct flow *now,
                              struct flow *next) {
  const struct ek__chain *chain = at->chain;
  const struct ek__join *join = ek__join_forward(chain, at->i, end);
  ek_tensor inner = {0}, shortcut = {0};
  ek_status status = EK_OK;
  at->last = at->i + (join == NULL ? 1 : join->count) - 1;
  at->inner = &inner;
  flow_begin(next, ek__step_outputs(chain, at->last));
  for (at->end = at->i; at->end <= at->last && !ek__ends_branch(chain, at->end);) at->end++;
  const bool ends = at->end <= at->last;
  if (at->end > at->i && ek_tensor_exists(&now->made.from)) at->made = &now->made;
  if (ends) ek_tensor_free(&now->norm);
  if (ends && ek__step_child(chain, at->end) != SIZE_MAX) {
    status = shortcut_forward(&shortcut, at);
    at->shortcut = &shortcut;
  }
  if (status == EK_OK) status = join != NULL ? join_forward(at, join) : one_forward(at);
  ek_tensor_free(&shortcut);
  if (!ends) ek__move_all(&next->shortcut, &now->shortcut, 1);
  ek__move_all(&next->norm, &now->norm, 1);
  if (at->last + 1 >= chain->branched) ek_tensor_free(&next->shortcut); /* no branch begins */
  if (status == EK_OK) {
    const bool one = at->last == at->i;
    status =
        remember(&next->made, chain, at->last, one && at->made != NULL, one ? at->given : &inner);
  }
  ek_tensor_free(&inner);
  if (status != EK_OK || at->last + 1 >= chain->branched || !ek__is_norm(chain, at->last)) {
    return status;
  }
  ek_tensor_free(&next->norm);
  return ek_tensor_share(&next->norm, next->values);
}

ek_status ek__steps_forward(const struct ek__chain *chain, size_t begin, size_t end,
                            const ek_tensor *inputs, ek_tensor *outputs) {
  struct flow flows[2], *now = flows, *next = flows + 1;
  ek_status status = EK_OK;
  flow_begin(now, 0);
  EK_TRY(begin_with(chain, begin, inputs));
  for (size_t i = begin; i < end && status == EK_OK;) {
    struct ek__forward at = {.chain = chain,
                             .i = i,
                             .given = i == begin ? inputs : now->values,
                             .own = i == begin ? NULL : now->values,
                             .shortcut = ek_tensor_exists(&now->shortcut) ? &now->shortcut : inputs,
                             .results = next->values,
                             .sum = &next->shortcut,
                             .recipe = &next->recipe};
    status = step_forward(&at, end, now, next);
    flow_free(chain->pass, now);
    struct flow *const ran = next;
    next = now;
    now = ran;
    i = at.last + 1;
  }
  if (status == EK_OK) ek__move_all(outputs, now->values, now->count);
  flow_free(chain->pass, now);
  return status;
}
