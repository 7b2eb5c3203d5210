/*
 * joins.c - the steps of a chain, some of them in one go.
 *
 * Modules declare what they compute (ek_formula), so modules of a program's own and wrapped ones
 * take part. The table of joins says which neighbours run in one go. If a child takes part in a
 * join in either direction, neither of its functions is called: in the other direction, where it
 * runs alone, the chain computes its formula. The chain alone decides what is saved, and when.
 *
 * A residual connection begins at its input, which flows on twice: through the steps, and past them
 * to the EK_CHAIN_ADD that adds the two. In backward the gradient of the sum flows back both ways,
 * and the two gradients are added at the input.
 */
#include "module/joins.h"

#include <evenkeel/elementwise.h>
#include <evenkeel/products.h>

#include "core/error.h"
#include "core/options.h"
#include "module/layer_internal.h"
#include "module/product.h"

/* ---- steps ---- */

enum part { OTHER, ADD, LINEAR, GELU, NORM };

static const ek_module *module_of(const struct ek__chain *chain, size_t i) {
  return chain->node->children[ek__step_child(chain, i)]->module;
}

size_t ek__step_inputs(const struct ek__chain *chain, size_t i) {
  return ek__is_add(chain, i) ? 1 : ek_module_inputs(module_of(chain, i));
}

size_t ek__step_outputs(const struct ek__chain *chain, size_t i) {
  return ek__is_add(chain, i) ? 1 : ek_module_outputs(module_of(chain, i));
}

static enum part part_of(ek_formula *formula, const struct ek__chain *chain, size_t i) {
  if (ek__is_add(chain, i)) return ADD;
  ek_module_formula(formula, module_of(chain, i));
  switch (formula->kind) {
  case EK_FORMULA_LINEAR: return LINEAR;
  case EK_FORMULA_NORM:
  case EK_FORMULA_RMS_NORM: return NORM;
  case EK_FORMULA_ACTIVATION: return formula->activation == EK_ACTIVATION_GELU ? GELU : OTHER;
  default: return OTHER;
  }
}

/* Whether the input of step i is also the residual of a later addition. */
static bool branches(const struct ek__chain *chain, size_t i) {
  return i < chain->adds && (i == 0 || ek__is_add(chain, i - 1));
}

size_t ek__last_child(const struct ek__chain *chain, size_t begin, size_t end) {
  while (end > begin && ek__is_add(chain, end - 1)) end--;
  return end > begin ? end - 1 : SIZE_MAX;
}

/* ---- joins ---- */

/* The tensors that flow in and out of one step, or of several joined ones, forward. */
struct forward {
  const struct ek__chain *chain;
  size_t i;
  const ek_tensor *given, *residual; /* loans */
  ek_tensor *own;                    /* given, where its references may be taken over; NULL */
  const struct made *made;           /* what given[0] can be made from again; NULL: it is kept */
  ek_tensor *results;
  ek_tensor *inner; /* what went into the last of several, if anything may need it */
  ek_tensor *sum;   /* the next residual */
};

/* The same, backward. */
struct backward {
  const struct ek__chain *chain;
  size_t i;                  /* the last step of them */
  const ek_tensor *given;    /* the gradient of its results */
  const ek_tensor *residual; /* the gradient that reaches the input of a NORM past it; NULL */
  bool bias_done;            /* the gradient of the linear's bias has been computed */
  ek_tensor *results;        /* NULL: not wanted */
};

typedef ek_status forward_function(struct forward *at);
typedef ek_status backward_function(const struct backward *at);
static forward_function linear_gelu, add_norm;
static backward_function gelu_linear, norm_backward;

enum { PARTS = 3 };
static const struct join {
  size_t count, before; /* parts, and how many of the first are only looked at */
  enum part parts[PARTS];
  bool branches;             /* only where a residual connection begins */
  bool cut;                  /* a segment may begin within: alone the parts give the same bits */
  forward_function *forward; /* one of the two is NULL */
  backward_function *backward;
} joins[] = {
    {.count = 2, .parts = {LINEAR, GELU}, .forward = linear_gelu},
    {.count = 2, .parts = {ADD, NORM}, .cut = true, .forward = add_norm},
    {.count = 3, .before = 1, .parts = {LINEAR, GELU, LINEAR}, .backward = gelu_linear},
    {.count = 1, .parts = {NORM}, .branches = true, .cut = true, .backward = norm_backward},
};
enum { JOINS = sizeof joins / sizeof joins[0] };

/* The join's parts are the chain's steps from `first` on. */
static bool matches(const struct join *join, const struct ek__chain *chain, size_t first) {
  ek_formula formula;
  if (first + join->count > chain->count || (join->branches && !branches(chain, first))) {
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
  return (i >= chain->adds || ek__is_add(chain, i - 1)) && !joined(chain, i, false);
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
  ek_tensor residual;               /* of the next EK_CHAIN_ADD, if it is not the chain's input */
  /* The norm before that addition, which nothing needs: freed where the addition comes. Freed
   * earlier it would leave a hole for a result that outlives its neighbours: a higher arena. */
  ek_tensor norm;
  struct made made;
};

static void flow_free(struct flow *flow) {
  ek__free_all(flow->values, EK_MAX_TENSORS);
  ek_tensor_free(&flow->residual);
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
              "a residual connection goes around modules that change the shape of its input");
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
  EK_TRY(residual_add(at->chain->pass, at->results, at->residual));
  return ek_tensor_share(at->sum, at->results);
}

static ek_status add_norm(struct forward *at) {
  ek_pass *pass = at->chain->pass;
  const ek_child_options options = options_of(at, at->i + 1);
  ek_formula norm;
  (void)part_of(&norm, at->chain, at->i + 1);
  EK_TRY(take_given(at->inner, at));
  EK_TRY(ek_pass_child_enter_with(pass, ek__step_child(at->chain, at->i + 1), NULL, &options));
  EK_TRY(ek__norm_forward(&norm, pass, at->inner, at->residual, at->results));
  EK_TRY(ek_pass_child_leave(pass));
  return ek_tensor_share(at->sum, at->inner);
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
  } else { /* a NORM: GELU is never alone */
    ek_tensor x = at->given[0];
    EK_TRY(ek__norm_forward(&formula, pass, &x, NULL, at->results));
  }
  return ek_pass_child_leave(pass);
}

static bool is_cheap(const struct ek__chain *chain, size_t i) {
  if (ek__is_add(chain, i) || ek__step_inputs(chain, i) != 1 || ek__step_outputs(chain, i) != 1)
    return false;
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

/* Runs the step at->i, or the join that begins there; *ran is the number of steps. */
static ek_status step_forward(struct forward *at, size_t end, size_t *ran, struct flow *now,
                              struct flow *next) {
  const struct ek__chain *chain = at->chain;
  const struct join *join = forward_join(chain, at->i, end);
  const bool adds = ek__is_add(chain, at->i);
  ek_tensor inner = {0};
  *ran = join == NULL ? 1 : join->count;
  if (!adds && ek_tensor_exists(&now->made.from)) at->made = &now->made;
  at->inner = &inner;
  if (adds) ek_tensor_free(&now->norm);
  ek_status status = join != NULL ? join->forward(at) : adds ? add(at) : child_forward(at);
  const size_t last = at->i + *ran - 1;
  if (!adds) ek__move_all(&next->residual, &now->residual, 1);
  ek__move_all(&next->norm, &now->norm, 1);
  if (last + 1 >= chain->adds) ek_tensor_free(&next->residual); /* nothing adds it any more */
  if (status == EK_OK) {
    status = remember(&next->made, chain, last, *ran == 1 && at->made != NULL,
                      *ran == 1 ? at->given : &inner);
  }
  ek_tensor_free(&inner);
  if (status != EK_OK || last + 1 >= chain->adds || !is_norm(chain, last)) return status;
  ek_tensor_free(&next->norm);
  return ek_tensor_share(&next->norm, next->values);
}

ek_status ek__steps_forward(const struct ek__chain *chain, size_t begin, size_t end,
                            const ek_tensor *inputs, ek_tensor *outputs) {
  struct flow now = {.values = {{0}}};
  ek_status status = EK_OK;
  size_t ran = 0;
  for (size_t i = begin; i < end && status == EK_OK; i += ran) {
    struct flow next = {.values = {{0}}};
    struct forward at = {.chain = chain,
                         .i = i,
                         .given = i == begin ? inputs : now.values,
                         .own = i == begin ? NULL : now.values,
                         .residual = ek_tensor_exists(&now.residual) ? &now.residual : inputs,
                         .results = next.values,
                         .sum = &next.residual};
    status = step_forward(&at, end, &ran, &now, &next);
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
  ek_tensor values[EK_MAX_TENSORS],
      residual;           /* references; those of the chain's result are loans */
  const ek_tensor *value; /* where the gradients are */
  const ek_tensor *past;  /* the gradient that flows past the steps, or NULL */
  bool bias_done;
};

/* EK_CHAIN_ADD: the gradient of the sum flows on twice. */
static void split(struct gradients *now) {
  if (now->value == now->values) {
    ek_tensor_free(&now->residual);
    ek__move_all(&now->residual, now->values, 1);
    now->value = &now->residual;
  }
  now->past = now->value;
}

/* At the input of a residual connection: adds the gradient that flowed past the steps to `results`,
 * the one that flowed through them. Without steps it is the former alone. */
static ek_status merge(struct gradients *now, const struct ek__chain *chain, ek_tensor *results) {
  if (now->past == NULL) return EK_OK;
  ek_status status = EK_OK;
  if (!ek_tensor_exists(results)) status = ek_tensor_share(results, now->past);
  if (status == EK_OK) status = residual_add(chain->pass, results, now->past);
  return status;
}

/* Runs back through the step before `left`, or the join that ends there; *ran is the number of
 * steps. */
static ek_status step_backward(struct gradients *now, const struct ek__chain *chain, size_t left,
                               size_t begin, ek_tensor *grad_inputs, size_t *ran) {
  ek_tensor results[EK_MAX_TENSORS] = {{0}};
  const size_t i = left - 1;
  const bool adds = ek__is_add(chain, i);
  const struct join *join = adds ? NULL : backward_join(chain, i);
  *ran = join == NULL ? 1 : join->count - join->before;
  const size_t first = left - *ran;
  const bool wanted = first > begin || grad_inputs != NULL;
  const bool meets =
      first == begin || ek__is_add(chain, first - 1); /* gradients, if there are two */
  const bool joins_them = join != NULL && join->branches;
  const struct backward at = {.chain = chain,
                              .i = i,
                              .given = now->value,
                              .residual = joins_them ? now->past : NULL,
                              .bias_done = now->bias_done,
                              .results = wanted ? results : NULL};
  ek_status status = EK_OK;
  if (adds) {
    split(now);
  } else {
    status = join != NULL ? join->backward(&at) : child_backward(&at);
  }
  now->bias_done = *ran > 1;
  if (status == EK_OK && meets && wanted && !joins_them) status = merge(now, chain, results);
  if (adds && !meets) return status; /* both go on from where they are */
  ek__free_all(now->values, EK_MAX_TENSORS);
  if (meets) {
    ek_tensor_free(&now->residual);
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
  ek_tensor_free(&now.residual);
  return status;
}
