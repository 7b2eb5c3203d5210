/*
 * joins.c - the steps of a chain, some of them in one go.
 *
 * Modules declare what they compute (ek_formula), so modules of a program's own and wrapped ones
 * take part. The table of joins says which neighbours run in one go. If a child takes part in a
 * join in either direction, neither of its functions is called: in the other direction, where it
 * runs alone, the chain computes its formula. The chain alone decides what is saved, and when.
 *
 * A branch begins at its input, which flows on twice: through the steps, and past them on the
 * shortcut to the step that ends the branch, where the two are added or multiplied. In backward the
 * gradient goes both ways from there, and the two gradients are added at the input.
 *
 * A row's operation is defined as its parts one after the other (op.h), and how it is computed is
 * the backend's affair: one that has no kernel for it, or none for these sizes, runs the parts.
 */
#include "module/joins.h"

#include <evenkeel/elementwise.h>
#include <evenkeel/products.h>

#include "core/error.h"
#include "core/options.h"
#include "module/layer_internal.h"
#include "module/product.h"

/* ---- steps ---- */

/* GATE is an activation whose result is multiplied. */
enum part { OTHER, ADD, MULTIPLY, LINEAR, GELU, GATE, NORM };

static const ek_module *module_of(const struct ek__chain *chain, size_t i) {
  if (ek__step_kind(chain, i) != EK__STEP_CHILD) return NULL;
  return chain->node->children[ek__step_child(chain, i)]->module;
}

size_t ek__step_inputs(const struct ek__chain *chain, size_t i) {
  const ek_module *module = module_of(chain, i);
  return module == NULL ? 1 : ek_module_inputs(module);
}

size_t ek__step_outputs(const struct ek__chain *chain, size_t i) {
  const ek_module *module = module_of(chain, i);
  return module == NULL ? 1 : ek_module_outputs(module);
}

static void formula_of(ek_formula *formula, const struct ek__chain *chain, size_t i) {
  if (ek__step_kind(chain, i) == EK__STEP_CHILD) {
    ek_module_formula(formula, module_of(chain, i));
    return;
  }
  const size_t activation = ek__step_code(chain, i) % EK_CHAIN_MULTIPLY_CHILD(0);
  *formula = (ek_formula){.kind = EK_FORMULA_ACTIVATION, .activation = (ek_activation)activation};
}

static enum part part_of(ek_formula *formula, const struct ek__chain *chain, size_t i) {
  if (ek__ends_branch(chain, i)) return ek__step_kind(chain, i) == EK__STEP_ADD ? ADD : MULTIPLY;
  formula_of(formula, chain, i);
  switch (formula->kind) {
  case EK_FORMULA_LINEAR: return LINEAR;
  case EK_FORMULA_NORM:
  case EK_FORMULA_RMS_NORM: return NORM;
  case EK_FORMULA_ACTIVATION:
    if (i + 1 < chain->count && ek__step_kind(chain, i + 1) == EK__STEP_MULTIPLY) return GATE;
    return formula->activation == EK_ACTIVATION_GELU ? GELU : OTHER;
  default: return OTHER;
  }
}

/* Whether the input of step i is also that of a shortcut. */
static bool begins_branch(const struct ek__chain *chain, size_t i) {
  return i < chain->branched && (i == 0 || ek__ends_branch(chain, i - 1));
}

size_t ek__last_result(const struct ek__chain *chain, size_t begin, size_t end) {
  while (end > begin && ek__step_kind(chain, end - 1) == EK__STEP_ADD) {
    end--;
    const bool reads = ek__step_child(chain, end) != SIZE_MAX && begins_branch(chain, end);
    if (reads) return SIZE_MAX; /* the child reads what the step before gives */
  }
  return end > begin ? end - 1 : SIZE_MAX;
}

/* ---- joins ---- */

/* The tensors that flow in and out of one step, or of several joined ones, forward. */
struct forward {
  const struct ek__chain *chain;
  size_t i, last;                    /* the first step and the last */
  size_t end;                        /* the one of them that ends a branch; else last + 1 */
  const ek_tensor *given, *shortcut; /* loans */
  ek_tensor *own;                    /* given, where its references may be taken over; NULL */
  const struct made *made;           /* what given[0] can be made from again; NULL: it is kept */
  ek_tensor *results;
  ek_tensor *inner; /* what went into the last of several, if anything may need it */
  ek_tensor *sum;   /* the input of the next branch */
};

/* The same, backward. */
struct backward {
  const struct ek__chain *chain;
  size_t i;                  /* the last step of them */
  const ek_tensor *given;    /* the gradient of its results */
  ek_tensor *own;            /* given, where its references may be taken over; NULL */
  const ek_tensor *residual; /* the gradient that reaches the input of a NORM past it; NULL */
  bool bias_done;            /* the gradient of the linear's bias has been computed */
  ek_tensor *results;        /* NULL: not wanted */
  ek_tensor *past;           /* the gradient on a shortcut with a child; NULL: not wanted */
};

typedef ek_status forward_function(struct forward *at);
typedef ek_status backward_function(const struct backward *at);
static forward_function linear_gelu, add_norm, multiply;
static backward_function gelu_linear, norm_backward, multiply_backward;

enum { PARTS = 3 };
static const struct join {
  size_t count, before; /* parts, and how many of the first are only looked at */
  enum part parts[PARTS];
  bool branches;             /* only where a branch begins */
  bool cut;                  /* a segment may begin within: alone the parts give the same bits */
  forward_function *forward; /* NULL: one by one in this direction */
  backward_function *backward;
} joins[] = {
    {.count = 2, .parts = {LINEAR, GELU}, .forward = linear_gelu},
    {.count = 2, .parts = {GATE, MULTIPLY}, .forward = multiply, .backward = multiply_backward},
    {.count = 2, .parts = {ADD, NORM}, .cut = true, .forward = add_norm},
    {.count = 3, .before = 1, .parts = {LINEAR, GELU, LINEAR}, .backward = gelu_linear},
    {.count = 1, .parts = {NORM}, .branches = true, .cut = true, .backward = norm_backward},
};
enum { JOINS = sizeof joins / sizeof joins[0] };

/* The join's parts are the chain's steps from `first` on. */
static bool matches(const struct join *join, const struct ek__chain *chain, size_t first) {
  ek_formula formula;
  if (first + join->count > chain->count || (join->branches && !begins_branch(chain, first))) {
    return false;
  }
  for (size_t k = 0; k < join->count; k++) {
    if (part_of(&formula, chain, first + k) != join->parts[k]) return false;
  }
  return true;
}

/* Step i is part of a join that is not `cut`, and not the first; or of any join. */
static bool joined(const struct ek__chain *chain, size_t i, bool any) {
  for (const struct join *join = joins; join < joins + JOINS; join++) {
    for (size_t k = any ? 0 : 1; k < join->count && k <= i; k++) {
      if ((any || !join->cut) && matches(join, chain, i - k)) return true;
    }
  }
  return false;
}

bool ek__may_begin(const struct ek__chain *chain, size_t i) {
  return (i >= chain->branched || ek__ends_branch(chain, i - 1)) && !joined(chain, i, false);
}

/* The join forward that begins at step i and is over at `end`; NULL: none does. */
static const struct join *forward_join(const struct ek__chain *chain, size_t i, size_t end) {
  for (const struct join *join = joins; join < joins + JOINS; join++) {
    if (join->forward != NULL && i + join->count <= end && matches(join, chain, i)) return join;
  }
  return NULL;
}

/* The join back that begins with step i. */
static const struct join *backward_join(const struct ek__chain *chain, size_t i) {
  for (const struct join *join = joins; join < joins + JOINS; join++) {
    if (join->backward != NULL && i + 1 >= join->count &&
        matches(join, chain, i + 1 - join->count)) {
      return join;
    }
  }
  return NULL;
}

static bool is_norm(const struct ek__chain *chain, size_t i) {
  ek_formula formula;
  return part_of(&formula, chain, i) == NORM;
}

static ek_status enter(const struct ek__chain *chain, size_t i) {
  return ek_pass_child_enter(chain->pass, ek__step_child(chain, i));
}

/* ---- forward ---- */

/* The result of a cheap child can be made again by that child from this tensor. */
struct made {
  size_t by;
  ek_tensor from; /* need not exist */
};

/* Between two steps. */
struct flow {
  ek_tensor values[EK_MAX_TENSORS]; /* what the last step gave; nothing before the first */
  ek_tensor shortcut;               /* to the next end of a branch, if not the chain's input */
  /* The norm before that end, which nothing needs: freed where the end comes. Freed earlier it
   * would leave a hole for a result that outlives its neighbours: a higher arena. */
  ek_tensor norm;
  struct made made;
};

static void flow_free(struct flow *flow) {
  ek__free_all(flow->values, EK_MAX_TENSORS);
  ek_tensor_free(&flow->shortcut);
  ek_tensor_free(&flow->norm);
  ek_tensor_free(&flow->made.from);
}

/* How child i runs, which may be the last of a join or not. */
static ek_child_options options_of(const struct forward *at, size_t last) {
  ek_child_options options = EK_CHILD_OPTIONS_INIT;
  options.save = at->chain->save;
  options.unread = last == at->chain->unread;
  if (at->made != NULL) {
    options.made_by = at->made->by;
    options.made_from = &at->made->from;
  }
  return options;
}

static ek_status linear_gelu(struct forward *at) {
  ek_pass *pass = at->chain->pass;
  const ek_child_options options = options_of(at, at->i + 1);
  ek_formula linear;
  (void)part_of(&linear, at->chain, at->i);
  EK_TRY(ek_pass_child_enter_with(pass, ek__step_child(at->chain, at->i), at->given, &options));
  EK_TRY(ek__product_gelu_forward(&linear, pass, at->given, at->inner, at->results));
  return ek_pass_child_leave(pass);
}

/* sum += x, in place if the chain alone holds `sum`, else into a new tensor that replaces it: it
 * may have been saved, or it may be x itself. */
static ek_status residual_add(ek_pass *pass, ek_tensor *sum, const ek_tensor *x) {
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
static ek_status take_given(ek_tensor *tensor, const struct forward *at) {
  if (at->own == NULL) return ek_tensor_share(tensor, at->given);
  ek__move_all(tensor, at->own, 1);
  return EK_OK;
}

static ek_status add(struct forward *at) {
  EK_TRY(take_given(at->results, at));
  if (at->i > at->chain->unread) return EK_OK;
  EK_TRY(residual_add(at->chain->pass, at->results, at->shortcut));
  return ek_tensor_share(at->sum, at->results);
}

static ek_status add_norm(struct forward *at) {
  ek_pass *pass = at->chain->pass;
  const ek_child_options options = options_of(at, at->i + 1);
  ek_formula norm;
  (void)part_of(&norm, at->chain, at->i + 1);
  EK_TRY(take_given(at->inner, at));
  EK_TRY(ek_pass_child_enter_with(pass, ek__step_child(at->chain, at->i + 1), NULL, &options));
  EK_TRY(ek__norm_forward(&norm, pass, at->inner, at->shortcut, at->results));
  EK_TRY(ek_pass_child_leave(pass));
  return ek_tensor_share(at->sum, at->inner);
}

/* One without a child. */
static ek_status activation_forward(struct forward *at) {
  ek_formula formula;
  formula_of(&formula, at->chain, at->i);
  return ek__activation_forward(at->chain->pass, formula.activation, at->given, at->results,
                                at->chain->save);
}

/* The product with the shortcut's result, after an activation or not. Backward needs both. */
static ek_status multiply(struct forward *at) {
  ek_pass *pass = at->chain->pass;
  ek_stream *stream = ek_pass_stream(pass);
  ek_formula gate;
  EK_TRY(ek__layer_result(at->results, pass, at->given));
  if (at->last != at->chain->unread) {
    EK_TRY(part_of(&gate, at->chain, at->i) == GATE
               ? ek_op_gate_forward(stream, at->results, at->given, at->shortcut, gate.activation)
               : ek_op_binary(stream, at->results, at->given, at->shortcut, EK_BINARY_MULTIPLY,
                              EK_SPREAD_NONE));
  }
  if (at->chain->save) EK_TRY(ek_pass_save(pass, at->given));
  if (at->chain->save) EK_TRY(ek_pass_save(pass, at->shortcut));
  return ek_tensor_share(at->sum, at->results);
}

/* What a child makes of the shortcut's value. */
static ek_status shortcut_forward(ek_tensor *made, const struct forward *at) {
  ek_child_options options = EK_CHILD_OPTIONS_INIT;
  options.save = at->chain->save;
  options.unread = at->last > at->chain->unread;
  return ek_pass_child_forward_with(made, at->chain->pass, ek__step_child(at->chain, at->end),
                                    at->shortcut, &options);
}

/* A child alone: its forward, or its formula if it is part of a join. */
static ek_status child_forward(struct forward *at) {
  ek_pass *pass = at->chain->pass;
  const ek_child_options options = options_of(at, at->i);
  const size_t child = ek__step_child(at->chain, at->i);
  ek_formula formula;
  if (!joined(at->chain, at->i, true)) {
    return ek_pass_child_forward_with(at->results, pass, child, at->given, &options);
  }
  EK_TRY(ek_pass_child_enter_with(pass, child, at->given, &options));
  if (part_of(&formula, at->chain, at->i) == LINEAR) {
    EK_TRY(ek__product_forward(&formula, pass, at->given, at->results, 0));
  } else { /* a NORM: GELU and GATE are never alone */
    ek_tensor x = at->given[0];
    EK_TRY(ek__norm_forward(&formula, pass, &x, NULL, at->results));
  }
  return ek_pass_child_leave(pass);
}

static bool is_cheap(const struct ek__chain *chain, size_t i) {
  if (ek__step_kind(chain, i) != EK__STEP_CHILD) return false;
  if (ek__step_inputs(chain, i) != 1 || ek__step_outputs(chain, i) != 1) return false;
  return EK__TABLE_SLOT(ek_module_table(module_of(chain, i)), cheap);
}

/*
 * The next step may make its input again instead of keeping it, if that is the result of a cheap
 * step i with the input *from. A step whose own input is made again keeps its result: it holds
 * nothing else.
 */
static ek_status remember(struct made *made, const struct ek__chain *chain, size_t i, bool remade,
                          const ek_tensor *from) {
  if (!chain->cheap || remade || !is_cheap(chain, i) || !ek_tensor_exists(from)) return EK_OK;
  made->by = ek__step_child(chain, i);
  return ek_tensor_share(&made->from, from);
}

static ek_status one_forward(struct forward *at) {
  switch (ek__step_kind(at->chain, at->i)) {
  case EK__STEP_ACTIVATION: return activation_forward(at);
  case EK__STEP_ADD: return add(at);
  case EK__STEP_MULTIPLY: return multiply(at);
  default: return child_forward(at);
  }
}

/* Runs the step at->i, or the join that begins there, to at->last. */
static ek_status step_forward(struct forward *at, size_t end, struct flow *now,
                              struct flow *next) {
  const struct ek__chain *chain = at->chain;
  const struct join *join = forward_join(chain, at->i, end);
  ek_tensor inner = {0}, shortcut = {0};
  ek_status status = EK_OK;
  at->last = at->i + (join == NULL ? 1 : join->count) - 1;
  at->inner = &inner;
  for (at->end = at->i; at->end <= at->last && !ek__ends_branch(chain, at->end);) at->end++;
  const bool ends = at->end <= at->last;
  if (at->end > at->i && ek_tensor_exists(&now->made.from)) at->made = &now->made;
  if (ends) ek_tensor_free(&now->norm);
  if (ends && ek__step_child(chain, at->end) != SIZE_MAX) {
    status = shortcut_forward(&shortcut, at);
    at->shortcut = &shortcut;
  }
  if (status == EK_OK) status = join != NULL ? join->forward(at) : one_forward(at);
  ek_tensor_free(&shortcut);
  if (!ends) ek__move_all(&next->shortcut, &now->shortcut, 1);
  ek__move_all(&next->norm, &now->norm, 1);
  if (at->last + 1 >= chain->branched) ek_tensor_free(&next->shortcut); /* no branch begins */
  if (status == EK_OK) {
    const bool one = at->last == at->i;
    status = remember(&next->made, chain, at->last, one && at->made != NULL,
                      one ? at->given : &inner);
  }
  ek_tensor_free(&inner);
  if (status != EK_OK || at->last + 1 >= chain->branched || !is_norm(chain, at->last)) {
    return status;
  }
  ek_tensor_free(&next->norm);
  return ek_tensor_share(&next->norm, next->values);
}

ek_status ek__steps_forward(const struct ek__chain *chain, size_t begin, size_t end,
                            const ek_tensor *inputs, ek_tensor *outputs) {
  struct flow now = {.values = {{0}}};
  ek_status status = EK_OK;
  for (size_t i = begin; i < end && status == EK_OK;) {
    struct flow next = {.values = {{0}}};
    struct forward at = {.chain = chain,
                         .i = i,
                         .given = i == begin ? inputs : now.values,
                         .own = i == begin ? NULL : now.values,
                         .shortcut = ek_tensor_exists(&now.shortcut) ? &now.shortcut : inputs,
                         .results = next.values,
                         .sum = &next.shortcut};
    status = step_forward(&at, end, &now, &next);
    i = at.last + 1;
    flow_free(&now);
    now = next;
  }
  if (status == EK_OK) ek__move_all(outputs, now.values, ek__step_outputs(chain, end - 1));
  flow_free(&now);
  return status;
}

/* ---- backward ---- */

/* The way back through linear i and through GELU of the pair before it: dpre comes out, and the
 * pair's linear gets the gradient of its bias. */
static ek_status gelu_linear(const struct backward *at) {
  const struct ek__chain *chain = at->chain;
  ek_pass *pass = chain->pass;
  ek_formula linear, before;
  ek_tensor loan = {0}, weight = {0}, dbias = {0}, pre = {0};
  double beta = 0;
  (void)part_of(&linear, chain, at->i);
  (void)part_of(&before, chain, at->i - 2);
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
static ek_status norm_backward(const struct backward *at) {
  ek_formula norm;
  (void)part_of(&norm, at->chain, at->i);
  EK_TRY(enter(at->chain, at->i));
  EK_TRY(ek__norm_backward(&norm, at->chain->pass, at->given, at->residual, at->results));
  return ek_pass_child_leave(at->chain->pass);
}

static ek_status linear_backward(const struct backward *at) {
  ek_formula linear;
  (void)part_of(&linear, at->chain, at->i);
  EK_TRY(enter(at->chain, at->i));
  EK_TRY(ek__product_backward(&linear, at->chain->pass, at->given, at->results, at->bias_done));
  return ek_pass_child_leave(at->chain->pass);
}

/* dx over dy where the chain alone holds that, else a new tensor. */
static ek_status overwrite(ek_tensor *dx, const struct backward *at) {
  if (at->own == NULL || ek_tensor_holders(at->own) != 1) {
    return ek__layer_result(dx, at->chain->pass, at->given);
  }
  ek__move_all(dx, at->own, 1);
  return EK_OK;
}

static ek_status shortcut_backward(const struct backward *at, const ek_tensor *given) {
  return ek_pass_child_backward(at->past, at->chain->pass, ek__step_child(at->chain, at->i), given);
}

/* Through the product: dfactor goes to the shortcut's child. */
static ek_status factors_backward(const struct backward *at, ek_tensor *dx, ek_tensor *dfactor,
                                  const ek_tensor *x, const ek_tensor *factor) {
  ek_stream *stream = ek_pass_stream(at->chain->pass);
  const ek_tensor dy = *at->given;
  ek_formula gate;
  EK_TRY(ek__layer_result(dfactor, at->chain->pass, factor));
  EK_TRY(overwrite(dx, at));
  if (at->i > 0 && part_of(&gate, at->chain, at->i - 1) == GATE) {
    return ek_op_gate_backward(stream, dx, dfactor, &dy, x, factor, gate.activation);
  }
  EK_TRY(ek_op_binary(stream, dfactor, &dy, x, EK_BINARY_MULTIPLY, EK_SPREAD_NONE));
  return ek_op_binary(stream, dx, &dy, factor, EK_BINARY_MULTIPLY, EK_SPREAD_NONE);
}

static ek_status multiply_backward(const struct backward *at) {
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
static ek_status child_backward(const struct backward *at) {
  ek_pass *pass = at->chain->pass;
  ek_formula formula;
  if (!joined(at->chain, at->i, true)) {
    return ek_pass_child_backward(at->results, pass, ek__step_child(at->chain, at->i), at->given);
  }
  switch (part_of(&formula, at->chain, at->i)) {
  case LINEAR: return linear_backward(at);
  case NORM: return norm_backward(at);
  default: return ek__activation_backward(pass, EK_ACTIVATION_GELU, at->given, at->results);
  }
}

/* Between two steps back. */
struct gradients {
  ek_tensor values[EK_MAX_TENSORS]; /* references; those of the chain's result are loans */
  ek_tensor sum;          /* the gradient of an addition, until its branch begins */
  ek_tensor shortcut;     /* the gradient that a shortcut's child gave */
  const ek_tensor *value; /* where the gradients are */
  const ek_tensor *past;  /* the gradient that flows past the steps, or NULL */
  bool bias_done;
};

/* An addition: the gradient of the sum flows on both ways. */
static ek_status split(struct gradients *now, const struct backward *at) {
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
  if (now->past != &now->shortcut) return residual_add(chain->pass, results, now->past);
  EK_TRY(residual_add(chain->pass, &now->shortcut, results));
  ek_tensor_free(results);
  ek__move_all(results, &now->shortcut, 1);
  return EK_OK;
}

/* Whether the input of the branch that step i ends has a gradient. */
static bool wants_past(const struct ek__chain *chain, size_t i, size_t begin, bool wanted) {
  while (i > begin && !ek__ends_branch(chain, i - 1)) i--;
  return i > begin || wanted;
}

static ek_status one_backward(struct gradients *now, const struct backward *at) {
  ek_formula formula;
  switch (ek__step_kind(at->chain, at->i)) {
  case EK__STEP_ACTIVATION:
    formula_of(&formula, at->chain, at->i);
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
  ek_tensor results[EK_MAX_TENSORS] = {{0}}, past = {0};
  const size_t i = left - 1;
  const bool ends = ek__ends_branch(chain, i), adds = ek__step_kind(chain, i) == EK__STEP_ADD;
  const struct join *join = backward_join(chain, i);
  *ran = join == NULL ? 1 : join->count - join->before;
  const size_t first = left - *ran;
  const bool wanted = first > begin || grad_inputs != NULL;
  const bool begins = first == begin || ek__ends_branch(chain, first - 1);
  const bool merges = join != NULL && join->branches;
  const bool passes = ends && wants_past(chain, i, begin, grad_inputs != NULL);
  const struct backward at = {.chain = chain,
                              .i = i,
                              .given = now->value,
                              .own = now->value == now->values ? now->values : NULL,
                              .residual = merges ? now->past : NULL,
                              .bias_done = now->bias_done,
                              .results = wanted ? results : NULL,
                              .past = passes ? &past : NULL};
  ek_status status = join != NULL ? join->backward(&at) : one_backward(now, &at);
  if (ek_tensor_exists(&past)) {
    ek__move_all(&now->shortcut, &past, 1);
    now->past = &now->shortcut;
  }
  now->bias_done = join != NULL && join->before > 0;
  if (status == EK_OK && begins && wanted && !merges) status = merge(now, chain, results);
  if (adds && !begins) return status; /* both go on from where they are */
  ek__free_all(now->values, EK_MAX_TENSORS);
  if (begins) {
    ek_tensor_free(&now->shortcut);
    ek_tensor_free(&now->sum);
    now->past = NULL;
  }
  now->value = now->values;
  if (status == EK_OK && wanted) {
    ek__move_all(first == begin ? grad_inputs : now->values, results,
                 ek__step_inputs(chain, first));
  }
  ek__free_all(results, EK_MAX_TENSORS);
  return status;
}

ek_status ek__steps_backward(const struct ek__chain *chain, size_t begin, size_t end,
                             const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  struct gradients now = {.value = grad_outputs};
  ek_status status = EK_OK;
  size_t ran = 0;
  for (size_t left = end; left > begin && status == EK_OK; left -= ran) {
    status = step_backward(&now, chain, left, begin, grad_inputs, &ran);
  }
  ek__free_all(now.values, EK_MAX_TENSORS);
  ek_tensor_free(&now.shortcut);
  ek_tensor_free(&now.sum);
  return status;
}
