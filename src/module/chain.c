/*
 * chain.c - children one after the other: what a sequential, a residual, a GPT and its blocks are,
 * and what a program's own containers may be. joins.c runs the steps.
 *
 * A chain that recomputes (recompute.h) is cut into segments. Forward keeps only the inputs of a
 * segment, so a segment begins where a single value flows, and not within a join whose bits differ
 * from those of its parts. Backward runs a segment again, saving, and then runs its backward; the
 * result of the segment's last child is not read then, so a product there is spared. With `all` the
 * segments are as short as possible, and only the chain's own inputs are kept: those of each
 * segment are computed from them. With `cheap` there are no segments: the result of a cheap module
 * is not kept for the next one (ek_child_options.made_from).
 */
#include <evenkeel/chain.h>

#include <math.h>

#include "core/error.h"
#include "core/options.h"
#include "module/composite.h"
#include "module/joins.h"
#include "module/layer_internal.h"

/* ---- segments ---- */

/* Steps in a segment; 0: no segments. */
static size_t segment(const ek_recompute *recompute, size_t count) {
  switch (recompute->kind) {
  case EK_RECOMPUTE_ALL: return 1;
  case EK_RECOMPUTE_EVERY: return (size_t)recompute->every;
  case EK_RECOMPUTE_SQRT: return (size_t)ceil(sqrt((double)count));
  default: return 0;
  }
}

/*
 * Segments begin at multiples of `length`, or at the next step at which a segment may begin.
 * Returns the end of the segment that begins at `begin`:
 */
static size_t end_of(const struct ek__chain *chain, size_t length, size_t begin) {
  if (length >= chain->count) return chain->count;
  size_t end = (begin / length + 1) * length;
  while (end < chain->count && !ek__may_begin(chain, end)) end++;
  return end < chain->count ? end : chain->count;
}

/* The beginning of the segment that ends at `end`. */
static size_t begin_of(const struct ek__chain *chain, size_t length, size_t end) {
  size_t begin = 0;
  for (size_t i = end - 1; i > 0; i--) {
    if (ek__may_begin(chain, i)) begin = i;
    if (i % length == 0 && begin != 0) return begin;
  }
  return 0;
}

/* Runs the segments and keeps the inputs of each, or only of the first. */
static ek_status forward_segments(const struct ek__chain *chain, size_t length, bool all,
                                  const ek_tensor *inputs, ek_tensor *outputs) {
  ek_tensor held[EK_MAX_TENSORS] = {{0}};
  ek_status status = EK_OK;
  struct ek__chain unsaved = *chain;
  unsaved.save = false;
  for (size_t begin = 0, end = 0; begin < chain->count && status == EK_OK; begin = end) {
    ek_tensor results[EK_MAX_TENSORS] = {{0}};
    const ek_tensor *given = begin == 0 ? inputs : held;
    const size_t count = begin == 0 || !all ? ek__step_inputs(chain, begin) : 0;
    end = end_of(chain, length, begin);
    for (size_t i = 0; i < count && status == EK_OK; i++) {
      status = ek_pass_save(chain->pass, &given[i]);
    }
    if (status == EK_OK) status = ek__steps_forward(&unsaved, begin, end, given, results);
    ek__free_all(held, EK_MAX_TENSORS);
    ek__move_all(held, results, EK_MAX_TENSORS);
  }
  for (size_t i = 0; i < chain->shared && status == EK_OK; i++) { /* backward takes them first */
    status = ek_pass_save(chain->pass, &chain->shared_inputs[i]);
  }
  if (status == EK_OK) ek__move_all(outputs, held, ek__step_outputs(chain, chain->count - 1));
  ek__free_all(held, EK_MAX_TENSORS);
  return status;
}

/* The inputs of step `begin`: those that forward kept, or computed from those of the first. */
static ek_status take_inputs(const struct ek__chain *chain, size_t begin, ek_tensor *inputs) {
  return ek__layer_take(inputs, chain->pass, ek__step_inputs(chain, begin));
}

static ek_status compute_inputs(const struct ek__chain *chain, size_t begin, ek_tensor *first,
                                ek_tensor *inputs) {
  struct ek__chain unsaved = *chain;
  unsaved.save = false;
  unsaved.unread = SIZE_MAX;
  if (begin > 0) return ek__steps_forward(&unsaved, 0, begin, first, inputs);
  ek__move_all(inputs, first, EK_MAX_TENSORS);
  return EK_OK;
}

/* Runs a segment again, so that it saves its tensors; frees its inputs and its results. */
static ek_status run_again(const struct ek__chain *chain, size_t begin, size_t end,
                           ek_tensor *inputs) {
  ek_tensor outputs[EK_MAX_TENSORS] = {{0}};
  struct ek__chain again = *chain;
  again.unread = ek__last_result(chain, begin, end);
  const ek_status status = ek__steps_forward(&again, begin, end, inputs, outputs);
  ek__free_all(outputs, EK_MAX_TENSORS);
  ek__free_all(inputs, EK_MAX_TENSORS);
  return status;
}

static ek_status backward_segments(struct ek__chain *chain, size_t length, bool all,
                                   const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  ek_tensor first[EK_MAX_TENSORS] = {{0}}, held[EK_MAX_TENSORS] = {{0}};
  ek_tensor shared[EK_MAX_TENSORS] = {{0}};
  EK_TRY(ek__layer_take(shared, chain->pass, chain->shared));
  chain->shared_inputs = shared;
  ek_status status = all ? take_inputs(chain, 0, first) : EK_OK;
  for (size_t end = chain->count, begin = 0; end > 0 && status == EK_OK; end = begin) {
    ek_tensor inputs[EK_MAX_TENSORS] = {{0}}, results[EK_MAX_TENSORS] = {{0}};
    begin = begin_of(chain, length, end);
    status = all ? compute_inputs(chain, begin, first, inputs) : take_inputs(chain, begin, inputs);
    if (status == EK_OK) status = run_again(chain, begin, end, inputs);
    if (status == EK_OK) {
      status = ek__steps_backward(chain, begin, end, end == chain->count ? grad_outputs : held,
                                  begin > 0 || grad_inputs != NULL ? results : NULL);
    }
    ek__free_all(inputs, EK_MAX_TENSORS);
    ek__free_all(held, EK_MAX_TENSORS);
    ek__move_all(held, results, EK_MAX_TENSORS);
  }
  if (status == EK_OK && grad_inputs != NULL)
    ek__move_all(grad_inputs, held, ek__step_inputs(chain, 0));
  ek__free_all(held, EK_MAX_TENSORS);
  ek__free_all(first, EK_MAX_TENSORS);
  ek__free_all(shared, EK_MAX_TENSORS);
  return status;
}

/* ---- the chain ---- */

/* Its child exists; on a shortcut it has one input and one output. */
static ek_status check_step(const struct ek__chain *chain, const char *who, size_t i) {
  const size_t child = ek__step_child(chain, i);
  if (child == SIZE_MAX) return EK_OK;
  EK__FAIL_IF(child >= chain->node->child_count, EK_ERR_INVALID_ARGUMENT,
              "%s: step %zu is child number %zu; the module has %zu children", who, i, child,
              chain->node->child_count);
  const ek_module *module = chain->node->children[child]->module;
  if (!ek__ends_branch(chain, i)) return EK_OK;
  EK__FAIL_IF(ek_module_inputs(module) != 1 || ek_module_outputs(module) != 1,
              EK_ERR_INVALID_ARGUMENT,
              "%s: step %zu has child number %zu on the shortcut, with %zu inputs and %zu outputs; "
              "expected 1 and 1",
              who, i, child, ek_module_inputs(module), ek_module_outputs(module));
  return EK_OK;
}

/* Reads a program's description, and checks that each step takes the outputs of the one before. */
static ek_status read_chain(struct ek__chain *chain, ek_chain *o, const char *who, ek_pass *pass,
                            const ek_chain *given) {
  EK_TRY(ek__options_read(o, sizeof *o, given, "ek_chain"));
  const struct ek__node *node = pass->frame->node;
  EK__FAIL_IF((o->steps == NULL) != (o->count == 0), EK_ERR_INVALID_ARGUMENT,
              "%s: %zu steps at %s; expected both, or neither for all children", who, o->count,
              o->steps == NULL ? "NULL" : "an address");
  if (o->steps == NULL) o->count = node->child_count;
  EK__FAIL_IF(o->count == 0, EK_ERR_INVALID_ARGUMENT, "%s: the module has no children", who);
  EK_TRY(ek__recompute_check(who, &o->recompute));
  *chain = (struct ek__chain){.pass = pass,
                              .node = node,
                              .steps = o->steps,
                              .count = o->count,
                              .unread = SIZE_MAX,
                              .shared = o->shared,
                              .save = true};
  const size_t all = ek_module_inputs(node->module);
  EK__FAIL_IF(o->shared > 0 && (o->shared >= all || o->shared >= EK_MAX_TENSORS),
              EK_ERR_INVALID_ARGUMENT,
              "%s: %zu shared inputs of a module that takes %zu, expected fewer", who, o->shared,
              all);
  for (size_t i = 0, flow = 0; i < o->count; i++) {
    EK_TRY(check_step(chain, who, i));
    const size_t inputs = ek__step_inputs(chain, i);
    const bool known = i > 0 || o->shared > 0;
    if (i == 0 && known) flow = 1;
    EK__FAIL_IF(inputs > EK_MAX_TENSORS || (known && inputs != flow), EK_ERR_INVALID_ARGUMENT,
                "%s: step %zu takes %zu tensors, and is given %zu", who, i, inputs,
                known ? flow : (size_t)EK_MAX_TENSORS);
    if (ek__ends_branch(chain, i)) chain->branched = i + 1;
    flow = ek__step_outputs(chain, i);
  }
  EK__FAIL_IF(chain->branched > 0 && ek__step_inputs(chain, 0) != 1, EK_ERR_INVALID_ARGUMENT,
              "%s: a residual connection of %zu tensors, expected 1", who,
              ek__step_inputs(chain, 0));
  return EK_OK;
}

/* The shared inputs of the running module: those after the one that flows. */
static ek_status set_shared(struct ek__chain *chain, const char *who, const ek_tensor *inputs) {
  chain->shared_inputs = chain->shared > 0 ? inputs + 1 : NULL;
  for (size_t i = 0; i < chain->shared; i++) {
    const ek_type type = chain->shared_inputs[i].type;
    EK__FAIL_IF(ek_tensor_exists(&chain->shared_inputs[i]) && type != EK_I32 && type != EK_I64,
                EK_ERR_TYPE, "%s: shared input %zu is %s, expected i32 or i64, without a gradient",
                who, i, ek_type_name(type));
  }
  return EK_OK;
}

ek_status ek_chain_forward(ek_tensor *outputs, ek_pass *pass, const ek_tensor *inputs,
                           const ek_chain *chain) {
  static const char *const who = "ek_chain_forward";
  struct ek__chain c;
  ek_chain o = EK_CHAIN_INIT;
  EK__NOT_NULL(who, outputs, pass, inputs);
  EK_TRY(read_chain(&c, &o, who, pass, chain));
  if (c.branched > 0) EK_TRY(ek__layer_check(pass, inputs, -1));
  EK_TRY(set_shared(&c, who, inputs));
  const bool again = ek_pass_wants_gradient(pass);
  const size_t length = again ? segment(&o.recompute, c.count) : 0;
  c.remakes = o.recompute.kind == EK_RECOMPUTE_CHEAP;
  c.cheap = again && c.remakes;
  c.leaves_sum = pass->frame->leaves_sum && !o.unread;
  if (o.unread) c.unread = ek__last_result(&c, 0, c.count);
  if (length == 0) return ek__steps_forward(&c, 0, c.count, inputs, outputs);
  return forward_segments(&c, length, o.recompute.kind == EK_RECOMPUTE_ALL, inputs, outputs);
}

ek_status ek_chain_backward(ek_tensor *grad_inputs, ek_pass *pass, const ek_tensor *grad_outputs,
                            const ek_chain *chain) {
  static const char *const who = "ek_chain_backward";
  struct ek__chain c;
  ek_chain o = EK_CHAIN_INIT;
  EK__NOT_NULL(who, pass, grad_outputs);
  EK__FAIL_IF(!pass->frame->saving, EK_ERR_STATE, "%s: no gradient is requested", who);
  EK_TRY(read_chain(&c, &o, who, pass, chain));
  const size_t length = segment(&o.recompute, c.count);
  if (length == 0) return ek__steps_backward(&c, 0, c.count, grad_outputs, grad_inputs);
  return backward_segments(&c, length, o.recompute.kind == EK_RECOMPUTE_ALL, grad_outputs,
                           grad_inputs);
}

EK__OPTIONS_INIT(ek_chain, EK_CHAIN_INIT)
