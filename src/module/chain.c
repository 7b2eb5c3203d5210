/*
 * chain.c - children one after the other, some of them in one go: what a sequential, a GPT and its
 * blocks are.
 *
 * What modules compute they declare (ek_formula), so a program's own and wrapped ones take part. A
 * linear followed by GELU is a *pair*, and runs as one operation. Where another linear follows,
 * so does the way back through that one and GELU: the gradient of GELU's result is nowhere held,
 * and the bias of the first linear gets its gradient in the same go.
 *
 * Of a module that takes part neither function is called, in neither direction: what is saved, and
 * when, is the chain's affair alone.
 *
 * A chain that recomputes (recompute.h) is cut into segments, of which forward keeps the inputs and
 * nothing else; no segment begins between modules that run in one go, so that all of them run as
 * they would without. Backward runs a segment again, saving, and then its backward; what the
 * segment's last module gives is not read then, so a product there is spared. With `all` the
 * segments are as short as can be, and only the chain's own inputs are kept: each segment's are
 * computed from them. With `cheap` there are no segments: the result of a cheap module is not kept
 * for the next one (ek_child_options.made_from).
 */
#include <math.h>

#include <evenkeel/elementwise.h>
#include <evenkeel/products.h>

#include "core/options.h"
#include "module/composite.h"
#include "module/layer_internal.h"
#include "module/product.h"

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
  bool save;                   /* false: what runs now runs again in backward */
  const struct ek__made *made; /* of the inputs; NULL if they are to be kept */
  bool cheap;                  /* cheap results are made again */
  size_t unread;               /* the module whose outputs are not read; SIZE_MAX: none */
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

/* Module i is a linear after a pair. */
static bool follows_pair(ek_formula *linear, const struct chain *chain, size_t i) {
  return i >= 2 && begins_pair(linear, chain, i - 2) && is_linear(linear, chain, i);
}

/* Modules i - 1 and i run in one go, in one direction at least. */
static bool joined(const struct chain *chain, size_t i) {
  ek_formula linear;
  return i > 0 && i < chain->count &&
         (begins_pair(&linear, chain, i - 1) || follows_pair(&linear, chain, i));
}

static bool is_cheap(const struct chain *chain, size_t i) {
  const ek_module *module = chain->children[i].module;
  return EK__TABLE_SLOT(ek_module_table(module), cheap) && ek_module_inputs(module) == 1 &&
         ek_module_outputs(module) == 1;
}

static ek_status enter(const struct chain *chain, size_t i) {
  return ek_pass_child_enter(chain->pass, chain->first + i);
}

/* ---- forward ---- */

/* Between two steps: what the last module gave, and what it gave that from. */
struct results {
  ek_tensor last[EK_MAX_TENSORS]; /* nothing before the first step */
  ek_tensor from;                 /* exists if the next step need not keep last[0] */
};

/*
 * Runs module i, and perhaps the next; *ran says how many. *inner becomes what went into the last
 * of several, if it is needed.
 */
static ek_status step_forward(const struct chain *chain, size_t i, size_t *ran,
                              const struct ek__made *made, const ek_tensor *inputs, ek_tensor *to,
                              ek_tensor *inner) {
  ek_formula linear;
  const bool pair = begins_pair(&linear, chain, i);
  ek_child_options options = EK_CHILD_OPTIONS_INIT;
  options.save = chain->save;
  if (made != NULL) {
    options.made_by = made->by;
    options.made_from = made->from;
  }
  *ran = pair ? 2 : 1;
  options.unread = i + *ran - 1 == chain->unread;
  if (!pair && !follows_pair(&linear, chain, i)) {
    return ek_pass_child_forward_with(to, chain->pass, chain->first + i, inputs, &options);
  }
  EK_TRY(ek_pass_child_enter_with(chain->pass, chain->first + i, inputs, &options));
  EK_TRY(pair ? ek__product_gelu_forward(&linear, chain->pass, inputs, inner, to)
              : ek__product_forward(&linear, chain->pass, inputs, to, 0));
  return ek_pass_child_leave(chain->pass);
}

/*
 * What the next step may make again instead of keeping it: the result of a cheap module i, which
 * was given *from. One that was made again itself keeps its result: it holds nothing else.
 */
static ek_status remember(const struct chain *chain, size_t i, bool remade, const ek_tensor *from,
                          ek_tensor *kept) {
  if (!chain->cheap || remade || !is_cheap(chain, i) || !ek_tensor_exists(from)) return EK_OK;
  return ek_tensor_share(kept, from);
}

/* Runs modules begin .. end - 1. */
static ek_status forward(const struct chain *chain, size_t begin, size_t end,
                         const ek_tensor *inputs, ek_tensor *outputs) {
  struct results now = {.last = {{0}}};
  ek_status status = EK_OK;
  size_t ran = 0;
  for (size_t i = begin; i < end && status == EK_OK; i += ran) {
    struct results next = {.last = {{0}}};
    ek_tensor inner = {0};
    const ek_tensor *given = i == begin ? inputs : now.last;
    const struct ek__made before = {chain->first + i - 1, &now.from};
    const struct ek__made *made = i == 0 ? chain->made : NULL;
    if (ek_tensor_exists(&now.from)) made = &before;
    status = step_forward(chain, i, &ran, made, given, next.last, &inner);
    if (status == EK_OK) {
      status = remember(chain, i + ran - 1, ran == 1 && made != NULL, ran == 1 ? given : &inner,
                        &next.from);
    }
    ek_tensor_free(&inner);
    ek_tensor_free(&now.from);
    ek__free_all(now.last, EK_MAX_TENSORS);
    now = next;
  }
  ek_tensor_free(&now.from);
  if (status == EK_OK) {
    move_all(outputs, now.last, ek_module_outputs(chain->children[end - 1].module));
  }
  ek__free_all(now.last, EK_MAX_TENSORS);
  return status;
}

/* ---- backward ---- */

/* The way back through linear i and through GELU of the pair before it: dpre comes out, and the
 * pair's linear gets the gradient of its bias. */
static ek_status gelu_linear(const struct chain *chain, size_t i, const ek_formula *linear,
                             bool bias_done, const ek_tensor *dy, ek_tensor *dpre) {
  ek_pass *pass = chain->pass;
  ek_formula before;
  ek_tensor loan = {0}, weight = {0}, dbias = {0}, pre = {0};
  double beta = 0;
  EK_TRY(enter(chain, i));
  EK_TRY(ek__product_gradients(linear, pass, dy, bias_done));
  EK_TRY(ek_pass_parameter(&loan, pass, linear->weight));
  EK_TRY(ek_tensor_share(&weight, &loan)); /* it is needed beyond its child */
  ek_status status = ek_pass_child_leave(pass);
  ek_module_formula(&before, chain->children[i - 2].module);
  bool wanted = false;
  if (status == EK_OK && before.has_bias) {
    status = enter(chain, i - 2);
    wanted = status == EK_OK && ek_pass_trains(pass, before.bias);
    if (wanted) status = ek_pass_gradient(&dbias, &beta, pass, before.bias);
    if (status == EK_OK) status = ek_pass_child_leave(pass);
  }
  if (status == EK_OK) status = ek_pass_take(&pre, pass);
  if (status == EK_OK) status = ek__layer_result(dpre, pass, &pre);
  if (status == EK_OK) {
    status = ek_op_gelu_linear_backward(ek_pass_stream(pass), dpre, wanted ? &dbias : NULL, dy,
                                        &weight, &pre, beta);
  }
  ek_tensor_free(&pre);
  ek_tensor_free(&weight);
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
  if (i > 0 && begins_pair(&own, chain, i - 1)) {
    return ek__activation_backward(chain->pass, EK_ACTIVATION_GELU, from, to);
  }
  return ek_pass_child_backward(to, chain->pass, chain->first + i, from);
}

/* Runs back through modules end - 1 .. begin. */
static ek_status backward(const struct chain *chain, size_t begin, size_t end,
                          const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  ek_tensor held[EK_MAX_TENSORS] = {{0}};
  bool bias_done = false;
  size_t ran = 0;
  for (size_t left = end; left > begin; left -= ran) {
    ek_tensor results[EK_MAX_TENSORS] = {{0}};
    ek_formula linear;
    const ek_tensor *from = left == end ? grad_outputs : held;
    const bool behind = follows_pair(&linear, chain, left - 1);
    ran = behind ? 2 : 1;
    ek_tensor *to = left > begin + ran || grad_inputs != NULL ? results : NULL;
    const ek_status status =
        step_backward(chain, left - 1, behind ? &linear : NULL, &bias_done, from, to);
    ek__free_all(held, EK_MAX_TENSORS);
    if (status != EK_OK) {
      ek__free_all(results, EK_MAX_TENSORS);
      return status;
    }
    if (to != NULL)
      move_all(left == begin + ran ? grad_inputs : held, results,
               ek_module_inputs(chain->children[left - ran].module));
  }
  return EK_OK;
}

/* ---- segments ---- */

/* Modules in a segment; 0: there are none. */
static size_t segment(const ek_recompute *recompute, size_t count) {
  switch (recompute->kind) {
  case EK_RECOMPUTE_ALL: return 1;
  case EK_RECOMPUTE_EVERY: return (size_t)recompute->every;
  case EK_RECOMPUTE_SQRT: return (size_t)ceil(sqrt((double)count));
  default: return 0;
  }
}

/*
 * Segments begin at multiples of `length`, or after the modules that run in one go with the one
 * there. The end of the one that begins at `begin`, which is such a place:
 */
static size_t end_of(const struct chain *chain, size_t length, size_t begin) {
  if (length >= chain->count) return chain->count;
  size_t end = (begin / length + 1) * length;
  while (end < chain->count && joined(chain, end)) end++;
  return end < chain->count ? end : chain->count;
}

/* Where the one begins that ends at `end`. */
static size_t begin_of(const struct chain *chain, size_t length, size_t end) {
  size_t begin = 0;
  for (size_t i = end - 1; i > 0; i--) {
    if (!joined(chain, i)) begin = i;
    if (i % length == 0 && begin != 0) return begin;
  }
  return 0;
}

/* Runs the segments and keeps the inputs of each, or only of the first. */
static ek_status forward_segments(const struct chain *chain, size_t length, bool all,
                                  const ek_tensor *inputs, ek_tensor *outputs) {
  ek_tensor held[EK_MAX_TENSORS] = {{0}};
  ek_status status = EK_OK;
  struct chain unsaved = *chain;
  unsaved.save = false;
  for (size_t begin = 0, end = 0; begin < chain->count && status == EK_OK; begin = end) {
    ek_tensor results[EK_MAX_TENSORS] = {{0}};
    const ek_tensor *given = begin == 0 ? inputs : held;
    const size_t count = begin == 0 || !all ? ek_module_inputs(chain->children[begin].module) : 0;
    end = end_of(chain, length, begin);
    for (size_t i = 0; i < count && status == EK_OK; i++) {
      status = ek_pass_save(chain->pass, &given[i]);
    }
    if (status == EK_OK) status = forward(&unsaved, begin, end, given, results);
    ek__free_all(held, EK_MAX_TENSORS);
    move_all(held, results, EK_MAX_TENSORS);
  }
  if (status == EK_OK)
    move_all(outputs, held, ek_module_outputs(chain->children[chain->count - 1].module));
  ek__free_all(held, EK_MAX_TENSORS);
  return status;
}

/* The inputs of module `begin` that forward has kept, or computes from those of the first. */
static ek_status take_inputs(const struct chain *chain, size_t begin, ek_tensor *inputs) {
  return ek__layer_take(inputs, chain->pass, ek_module_inputs(chain->children[begin].module));
}

static ek_status compute_inputs(const struct chain *chain, size_t begin, ek_tensor *first,
                                ek_tensor *inputs) {
  struct chain unsaved = *chain;
  unsaved.save = false;
  unsaved.unread = SIZE_MAX;
  if (begin > 0) return forward(&unsaved, 0, begin, first, inputs);
  move_all(inputs, first, EK_MAX_TENSORS);
  return EK_OK;
}

/* Runs a segment again, for what it saves; what it ran on and what it gave are freed. */
static ek_status run_again(const struct chain *chain, size_t begin, size_t end, ek_tensor *inputs) {
  ek_tensor outputs[EK_MAX_TENSORS] = {{0}};
  struct chain again = *chain;
  again.unread = end - 1;
  const ek_status status = forward(&again, begin, end, inputs, outputs);
  ek__free_all(outputs, EK_MAX_TENSORS);
  ek__free_all(inputs, EK_MAX_TENSORS);
  return status;
}

static ek_status backward_segments(const struct chain *chain, size_t length, bool all,
                                   const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  ek_tensor first[EK_MAX_TENSORS] = {{0}}, held[EK_MAX_TENSORS] = {{0}};
  ek_status status = all ? take_inputs(chain, 0, first) : EK_OK;
  for (size_t end = chain->count, begin = 0; end > 0 && status == EK_OK; end = begin) {
    ek_tensor inputs[EK_MAX_TENSORS] = {{0}}, results[EK_MAX_TENSORS] = {{0}};
    begin = begin_of(chain, length, end);
    status = all ? compute_inputs(chain, begin, first, inputs) : take_inputs(chain, begin, inputs);
    if (status == EK_OK) status = run_again(chain, begin, end, inputs);
    if (status == EK_OK) {
      status = backward(chain, begin, end, end == chain->count ? grad_outputs : held,
                        begin > 0 || grad_inputs != NULL ? results : NULL);
    }
    ek__free_all(inputs, EK_MAX_TENSORS);
    ek__free_all(held, EK_MAX_TENSORS);
    move_all(held, results, EK_MAX_TENSORS);
  }
  if (status == EK_OK && grad_inputs != NULL) {
    move_all(grad_inputs, held, ek_module_inputs(chain->children[0].module));
  }
  ek__free_all(held, EK_MAX_TENSORS);
  ek__free_all(first, EK_MAX_TENSORS);
  return status;
}

/* ---- the chain ---- */

ek_status ek__chain_forward(const struct ek__composite *m, ek_pass *pass, size_t first,
                            size_t count, const struct ek__made *made, const ek_tensor *inputs,
                            ek_tensor *outputs) {
  const bool cheap = m->recompute.kind == EK_RECOMPUTE_CHEAP && ek_pass_wants_gradient(pass);
  const bool unread = first + count == m->count && !ek_pass_wants_outputs(pass);
  const struct chain chain = {pass, m->children + first,  first, count,
                              true, cheap ? made : NULL, cheap, unread ? count - 1 : SIZE_MAX};
  const size_t length = segment(&m->recompute, count);
  if (length == 0 || !ek_pass_wants_gradient(pass)) {
    return forward(&chain, 0, count, inputs, outputs);
  }
  return forward_segments(&chain, length, m->recompute.kind == EK_RECOMPUTE_ALL, inputs, outputs);
}

ek_status ek__chain_backward(const struct ek__composite *m, ek_pass *pass, size_t first,
                             size_t count, const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  const struct chain chain = {pass,  m->children + first, first, count, true, NULL,
                              false, SIZE_MAX};
  const size_t length = segment(&m->recompute, count);
  if (length == 0) return backward(&chain, 0, count, grad_outputs, grad_inputs);
  return backward_segments(&chain, length, m->recompute.kind == EK_RECOMPUTE_ALL, grad_outputs,
                           grad_inputs);
}
