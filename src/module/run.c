/*
 * run.c - runs modules: the stack of frames.
 *
 * A frame stands for a running function of a module: the node it runs as, whether it saves, in
 * which type it computes. Calling a child pushes a frame, which is popped when the child's function
 * returns; so parameter numbers, children and random numbers are always those of the node that
 * runs. A module that does a child's work itself pushes a frame of the child on top of its own. A
 * frame inherits from the one below unless its caller asks for something else: a child of a module
 * that runs without saving does not save, and a forward within a backward is a recomputation.
 *
 * What a backward has postponed runs later, in a frame of its own on top of whichever module's
 * function is running then.
 *
 * When a function returns, contract.c checks what it gives and leaves behind; it keeps a record of
 * each forward whose backward has not come.
 */
#include <string.h>

#include <evenkeel/elementwise.h>

#include "core/error.h"
#include "core/options.h"
#include "device/track.h"
#include "device/types.h"
#include "module/layer_internal.h"
#include "module/pass_internal.h"

/* ---- one function of one module ---- */

static ek_status check_type(const struct ek__node *node, ek_type values) {
  char path[EK__PATH_SIZE];
  if ((EK__TABLE_TYPES(ek_module_table(node->module)) >> values & 1u) != 0) return EK_OK;
  return ek__types_check(EK__TABLE_TYPES(ek_module_table(node->module)), values,
                         ek__node_path(path, node));
}

/* A criterion that has not called ek_pass_totals() has put its totals elsewhere. */
static ek_status place_totals(ek_pass *pass, ek_tensor *given, const ek_tensor *totals) {
  if (totals == NULL || (given->memory == totals->memory && given->data == totals->data)) {
    return EK_OK;
  }
  ek_tensor placed = {0};
  EK_TRY(ek_tensor_share(&placed, totals));
  const ek_status status = ek_op_copy(ek_pass_stream(pass), &placed, given);
  ek_tensor_free(status == EK_OK ? given : &placed);
  if (status == EK_OK) *given = placed;
  return status;
}

/* The inputs hold their gradients, and the module's backward will not run: they are all that is
 * saved. */
static ek_status keep_inputs(ek_pass *pass, size_t record, const ek_tensor *inputs) {
  const struct ek__node *node = pass->records[record].node;
  if (pass->record_count > record + 1) ek__record_drop(pass, record + 1); /* of children */
  while (pass->saved_count > pass->records[record].below) ek__saved_drop(pass);
  for (size_t i = 0; i < node->inputs - node->targets; i++) {
    EK_TRY(ek__saved_push(pass, &inputs[i], EK__NO_RECIPE));
  }
  pass->records[record].above = pass->saved_count;
  pass->records[record].written = true;
  return EK_OK;
}

/* Instead of such a module's backward. */
static void give_inputs(ek_pass *pass, size_t record, ek_tensor *grad_inputs) {
  const struct ek__node *node = pass->records[record].node;
  if (grad_inputs != NULL) memset(grad_inputs, 0, node->inputs * sizeof *grad_inputs);
  for (size_t i = node->inputs - node->targets; i-- > 0 && grad_inputs != NULL;) {
    grad_inputs[i] = pass->saved[--pass->saved_count];
  }
  ek__record_drop(pass, record);
}

/*
 * A module that recomputes may run a child in backward any number of times without saving: one
 * record is enough to show that its backward does not follow, and that of the first forward is
 * used.
 */
static bool wants_record(const ek_pass *pass, const struct ek__frame *frame) {
  if (!pass->frame->saving) return false;
  return frame->saving || !frame->backward || ek__record_find(pass, frame->node) == EK__NO_RECORD;
}

/* ---- in which precision a module runs ---- */

struct ways {
  ek_precision outer;     /* of the caller's tensors */
  ek_precision precision; /* that the module runs in */
  ek_precision children;  /* that its children are to run in */
};

/* f32 if the module is to run in 16 bits and does not support them; its children decide for
 * themselves. */
static struct ways ways_of(const struct ek__node *node, ek_precision outer, ek_precision asked) {
  const ek_type values = ek_precision_type(asked);
  const bool knows =
      ek__types_choose(EK__TABLE_TYPES(ek_module_table(node->module)), values) == values;
  return (struct ways){outer, knows ? asked : EK_PRECISION_F32, asked};
}

/* As a child of the frame on top ran last; its caller may have done its work without asking. */
static struct ways ways_of_last(const ek_pass *pass, const struct ek__node *node) {
  const size_t found = ek__record_find(pass, node);
  if (found == EK__NO_RECORD) return ways_of(node, pass->frame->precision, pass->frame->children);
  const struct ek__record *it = &pass->records[found];
  const ek_precision outer = it->cast.from != 0 ? (ek_precision)it->cast.from : it->precision;
  return (struct ways){outer, it->precision, it->children};
}

/* ---- what is made again ---- */

static ek_status run_maker(ek_pass *pass, const struct ek__recipe *recipe, ek_tensor *made);

/* As the maker, a child of the frame on top, ran last. */
static struct ek__recipe recipe_of(const ek_pass *pass, const struct ek__node *maker,
                                   const ek_tensor *like) {
  const struct ways ways = ways_of_last(pass, maker);
  return (struct ek__recipe){.run = run_maker,
                             .maker = maker,
                             .outer = ways.outer,
                             .children = ways.children,
                             .record = ek__record_find(pass, maker),
                             .like = *like};
}

/* Opens a recipe for the input of a child of the frame on top that is to be made again: remake.c.
 * *recipe becomes EK__NO_RECIPE if nothing is saved, or nothing made again. */
static ek_status open_recipe(size_t *recipe, ek_pass *pass, bool saving, size_t inputs,
                             const ek_tensor *input, const ek_child_options *options) {
  *recipe = EK__NO_RECIPE;
  if (options->made_from == NULL) return EK_OK;
  EK__FAIL_IF(options->made_by >= pass->frame->node->child_count, EK_ERR_INVALID_ARGUMENT,
              "made_by: no child number %zu", options->made_by);
  const struct ek__node *maker = pass->frame->node->children[options->made_by];
  char path[EK__PATH_SIZE];
  EK__FAIL_IF(inputs == 0 || maker->inputs != 1 || maker->outputs != 1, EK_ERR_INVALID_ARGUMENT,
              "made_by: %s has %zu inputs and %zu outputs, and its output is the first of %zu "
              "inputs; expected 1, 1 and 1 or more",
              ek__node_path(path, maker), maker->inputs, maker->outputs, inputs);
  EK_TRY(ek__check_tensors("made_from", pass, options->made_from, 1));
  if (!saving) return EK_OK;
  const struct ek__recipe how = recipe_of(pass, maker, input);
  return ek__recipe_open(recipe, pass, &how, options->made_from);
}

ek_status ek__recipe_open_activated(size_t *recipe, ek_pass *pass, size_t maker,
                                    const ek_tensor *from, ek_activation activation,
                                    const ek_tensor *result) {
  *recipe = EK__NO_RECIPE;
  if (!pass->frame->saving) return EK_OK;
  struct ek__recipe how = recipe_of(pass, pass->frame->node->children[maker], result);
  how.activated = true;
  how.activation = activation;
  return ek__recipe_open(recipe, pass, &how, from);
}

/* ---- values that are lent (lender.h) ---- */

static ek_status borrow(const ek_pass *pass, const struct ek__node *node, enum ek__way way) {
  if (pass->lender == NULL || pass->lender->enter == NULL) return EK_OK;
  return pass->lender->enter(pass->lender, node, way);
}

static void give_back(const ek_pass *pass, const struct ek__node *node) {
  if (pass->lender != NULL && pass->lender->leave != NULL) pass->lender->leave(pass->lender, node);
}

/* ---- one call ---- */

/* A call of a module's function, until its results have been checked. */
struct call {
  struct ek__frame frames[2]; /* its own, and one for a child that it enters */
  const char *function;
  uint64_t errors;             /* the thread's ek__error_number() before it */
  struct ek__place place;      /* what is taken is whose, before it */
  bool tf32;                   /* whether products may round, before it */
  struct ek__track_span *span; /* NULL where nothing is traced, and no tool listens */
};

/* The frame of a child of the one on top, from which it inherits. */
static struct ek__frame child_frame(const ek_pass *pass, const struct ek__node *node) {
  struct ek__frame *caller = pass->frame;
  return (struct ek__frame){.node = node,
                            .below = caller,
                            .precision = caller->precision,
                            .children = caller->children,
                            .saving = caller->saving,
                            .backward = caller->backward,
                            .floor = caller->floor,
                            .records = pass->record_count,
                            .recipe = EK__NO_RECIPE,
                            .converted = pass->converted_count};
}

/* Puts the call's frame on top. From now on memory is charged to its module, and products round as
 * the frame says. */
static void begin(struct call *call, ek_pass *pass, const char *function) {
  const struct ek__node *node = call->frames->node;
  struct ek__place *here = ek__place_here();
  char path[EK__PATH_SIZE];
  pass->frame = call->frames;
  call->function = function;
  call->errors = ek__error_number();
  call->span = ek__track_span_begin(ek_pass_device(pass), EK__LANE_COMPUTE, function, 0);
  if (call->span != NULL) ek__track_span_name(call->span, ek__node_path(path, node));
  call->tf32 =
      ek_stream_allow_tf32(ek_pass_stream(pass), call->frames->precision == EK_PRECISION_TF32);
  call->place = *here;
  *here = (struct ek__place){
      .device = ek_pass_device(pass), .holder = &node->holder, .function = function};
}

/* The module on top does another's work. */
static void move_place(const struct ek__node *from, const struct ek__node *to) {
  struct ek__place *here = ek__place_here();
  if (here->holder == &from->holder) here->holder = &to->holder;
}

/* Takes the frame of a child that was entered off the stack. */
static void leave(ek_pass *pass) {
  const struct ek__frame *child = pass->frame;
  give_back(pass, child->node);
  move_place(child->node, child->below->node);
  ek__cast_drop_parameters(pass, child->converted);
  ek__recipe_close(pass, child->recipe);
  child->below->workspace = child->workspace;
  pass->frame = child->below;
}

/* After a function, which may have entered a child and not left it. */
static void finish(const struct call *call, ek_pass *pass, ek_status status) {
  if (status != EK_OK) ek__name_failure(pass, call->function, status, call->errors);
  if (pass->frame != call->frames) leave(pass);
}

static ek_status run(struct call *call, ek_pass *pass, enum ek__way way,
                     ek_status (*function)(const ek_module *self, ek_pass *pass,
                                           const ek_tensor *given, ek_tensor *made),
                     const ek_tensor *given, ek_tensor *made) {
  const struct ek__node *node = call->frames->node;
  EK_TRY(borrow(pass, node, way));
  const ek_status status = function(node->module, pass, given, made);
  finish(call, pass, status);
  give_back(pass, node);
  ek__cast_drop_parameters(pass, call->frames->converted);
  return status;
}

/* Takes the call's frame off the stack. `status`: of the call, and of the checks after it. */
static ek_status end(const struct call *call, ek_pass *pass, ek_status status) {
  if (status != EK_OK) ek__name_failure(pass, call->function, status, call->errors);
  ek__recipe_close(pass, call->frames->recipe);
  *ek__place_here() = call->place;
  (void)ek_stream_allow_tf32(ek_pass_stream(pass), call->tf32);
  ek__track_span_end(call->span);
  pass->frame = call->frames->below;
  return status;
}

/* ---- forward and backward ---- */

/* Fills the rest of the frame of a forward, or of a predict, which saves nothing, and makes the
 * objects that last until it has returned. */
static ek_status prepare(struct ek__frame *frame, size_t *record, ek_pass *pass,
                         const ek_child_options *options, bool predict) {
  const struct ek__node *node = frame->node;
  char path[EK__PATH_SIZE];
  frame->saving = frame->saving && options->save && !predict;
  frame->unread = options->unread;
  frame->promise = options->promise;
  *record = EK__NO_RECORD;
  EK__FAIL_IF(predict && node->predictions == 0, EK_ERR_UNSUPPORTED, "%s has no predictions",
              ek__node_path(path, node));
  if (node->terms != 1 || node->outputs != 1) frame->promise.gradient_now = 0;
  if (frame->promise.totals != NULL) EK_TRY(ek__check_totals(pass, node, frame->promise.totals));
  EK_TRY(check_type(node, ek_precision_type(frame->precision)));
  if (frame->cast.inputs == 0) { /* else what is saved is another tensor */
    EK_TRY(open_recipe(&frame->recipe, pass, frame->saving, node->inputs, frame->inputs, options));
  }
  if (!predict && wants_record(pass, frame)) {
    const ek_status pushed = ek__record_push(record, pass, frame, frame->inputs);
    if (pushed != EK_OK) ek__recipe_close(pass, frame->recipe);
    EK_TRY(pushed);
  }
  frame->floor = pass->saved_count;
  frame->records = pass->record_count;
  return EK_OK;
}

/* In its type. */
static ek_status forward_in_type(struct call *call, ek_pass *pass, ek_tensor *given,
                                 const ek_child_options *options, bool predict) {
  const struct ek__frame *frame = call->frames;
  const struct ek__node *node = frame->node;
  const ek_module_ops *ops = ek_module_table(node->module);
  size_t record = 0;
  EK_TRY(prepare(call->frames, &record, pass, options, predict));
  begin(call, pass, predict ? "predict" : frame->backward ? "forward again" : "forward");
  ek_status status = ek__check_inputs(pass, frame->inputs, ek__node_given(node, predict));
  if (status == EK_OK) {
    status = run(call, pass, frame->backward ? EK__WAY_AGAIN : EK__WAY_FORWARD,
                 predict ? ops->predict : ops->forward, frame->inputs, given);
  }
  if (status == EK_OK) {
    status = ek__check_forward(pass, node, record, frame->inputs, given, predict);
  }
  if (status == EK_OK) status = place_totals(pass, given, frame->promise.totals);
  if (status == EK_OK && frame->written) status = keep_inputs(pass, record, frame->inputs);
  if (status != EK_OK && record != EK__NO_RECORD) ek__record_drop(pass, record);
  return end(call, pass, status);
}

/* With casts before and after, if necessary. The caller gets the results of a function when all of
 * them have been checked: until then they are here. */
static ek_status run_in(ek_pass *pass, const struct ek__node *node, const ek_tensor *inputs,
                        ek_tensor *outputs, const struct ways *ways,
                        const ek_child_options *options, bool predict, size_t kept) {
  const ek_type type = ek_precision_type(ways->precision), outer = ek_precision_type(ways->outer);
  const size_t input_count = ek__node_given(node, predict);
  const size_t count = predict ? node->predictions : node->outputs;
  ek_tensor inside[EK_MAX_INPUTS], given[EK_MAX_TENSORS];
  struct call call;
  struct ek__cast *const cast = &call.frames->cast;
  call.frames[0] = child_frame(pass, node);
  call.frames->precision = ways->precision;
  call.frames->children = ways->children;
  call.frames->inputs = inside;
  call.frames->kept = kept;
  ek__cast_plan(cast, pass, node, inputs, input_count, type, outer, predict);
  const bool chain = EK__TABLE_SLOT(ek_module_table(node->module), chain) && !predict;
  call.frames->leaves_sum = pass->leaves_sum && chain && cast->outputs == 0;
  pass->leaves_sum = false;
  if (!chain || cast->inputs != 0) EK_TRY(ek__sum_close(pass));
  EK_TRY(ek__cast_tensors(inside, pass, inputs, input_count, cast->inputs, type));
  memset(given, 0, count * sizeof *given);
  ek_status status = forward_in_type(&call, pass, given, options, predict);
  ek__cast_free(inside, input_count, cast->inputs);
  if (status == EK_OK && cast->outputs != 0) {
    const uint32_t set = ek__cast_set(given, count, cast->outputs);
    status = ek__cast_move(given, pass, count, set, cast->outputs);
  }
  if (status == EK_OK) {
    memcpy(outputs, given, count * sizeof *given);
  } else {
    ek__free_all(given, count);
    ek__sum_drop(pass);
  }
  return status;
}

/* In the type that was asked for, or the caller's. */
ek_status ek__run_forward(ek_pass *pass, const struct ek__node *node, const ek_tensor *inputs,
                          ek_tensor *outputs, const ek_child_options *options, bool predict) {
  const struct ek__frame *caller = pass->frame;
  const struct ways ways = options->precision != EK_PRECISION_DEFAULT
                               ? ways_of(node, options->precision, options->precision)
                               : ways_of(node, caller->precision, caller->children);
  return run_in(pass, node, inputs, outputs, &ways, options, predict, 0);
}

static ek_status run_maker(ek_pass *pass, const struct ek__recipe *recipe, ek_tensor *made) {
  const struct ways ways = ways_of(recipe->maker, recipe->outer, recipe->children);
  ek_child_options options = EK_CHILD_OPTIONS_INIT;
  options.save = false;
  const size_t kept = recipe->record == EK__NO_RECORD ? 0 : recipe->record + 1;
  EK_TRY(run_in(pass, recipe->maker, &recipe->from, made, &ways, &options, false, kept));
  if (!recipe->activated) return EK_OK;
  const ek_status status = ek__activate(pass, recipe->activation, made);
  if (status != EK_OK) ek_tensor_free(made);
  return status;
}

/* The function itself, with gradients as they are in its type. */
static ek_status backward_in_type(ek_pass *pass, const struct ek__node *node, size_t record,
                                  const ek_tensor *grad_outputs, ek_tensor *wanted) {
  struct call call;
  call.frames[0] = child_frame(pass, node);
  call.frames->saving = call.frames->backward = true;
  if (record != EK__NO_RECORD) {
    const struct ek__record *of = &pass->records[record];
    call.frames->precision = of->precision;
    call.frames->children = of->children;
    call.frames->promise = of->promise;
    call.frames->floor = of->below;
    call.frames->records = record + 1;
  }
  begin(&call, pass, "backward");
  ek_status status = run(&call, pass, EK__WAY_BACKWARD, ek_module_table(node->module)->backward,
                         grad_outputs, wanted);
  if (status == EK_OK) status = ek__check_backward(pass, node, record, grad_outputs, wanted);
  if (record != EK__NO_RECORD) ek__record_drop(pass, record);
  return end(&call, pass, status);
}

/* If the record of the forward has a cast, gradients are converted the other way. */
ek_status ek__run_backward(ek_pass *pass, const struct ek__node *node,
                           const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  const size_t record = ek__record_find(pass, node);
  ek_tensor inside[EK_MAX_TENSORS], given[EK_MAX_INPUTS];
  ek_tensor *const wanted = grad_inputs == NULL ? NULL : given;
  struct ek__cast cast = {0};
  ek_status status = EK_OK;
  memset(given, 0, node->inputs * sizeof *given);
  if (record != EK__NO_RECORD) {
    EK_TRY(ek__check_grad_outputs(pass, record, grad_outputs));
    cast = pass->records[record].cast;
  }
  if (record != EK__NO_RECORD && pass->records[record].written) {
    give_inputs(pass, record, wanted);
  } else {
    const ek_type type = cast.outputs == 0 ? 0 : ek_precision_type(pass->records[record].precision);
    const uint32_t set = type == 0 ? 0 : ek__cast_set(grad_outputs, node->outputs, type);
    EK_TRY(ek__cast_tensors(inside, pass, grad_outputs, node->outputs, set, type));
    status = backward_in_type(pass, node, record, inside, wanted);
    ek__cast_free(inside, node->outputs, set);
  }
  if (status == EK_OK && wanted != NULL) {
    const uint32_t set = cast.inputs & ek__cast_set(wanted, node->inputs, cast.from);
    status = ek__cast_move(wanted, pass, node->inputs, set, cast.from);
  }
  if (status != EK_OK) {
    ek__free_all(wanted, node->inputs);
  } else if (wanted != NULL) {
    memcpy(grad_inputs, given, node->inputs * sizeof *given);
  }
  return status;
}

/* ---- what a module postpones ---- */

/* In a frame on top of that of the module that happens to run. */
static ek_status run_postponed(ek_pass *pass) {
  struct ek__postponed it = pass->postponed;
  struct call call;
  const ek_module *module = it.node->module;
  pass->postponed = (struct ek__postponed){.node = NULL};
  call.frames[0] = child_frame(pass, it.node);
  call.frames->precision = it.precision;
  call.frames->children = it.children;
  call.frames->saving = call.frames->backward = true;
  call.frames->floor = pass->saved_count;
  begin(&call, pass, "backward");
  ek_status status = ek_module_table(module)->backward_later(module, pass, it.kept);
  finish(&call, pass, status);
  ek__cast_drop_parameters(pass, call.frames->converted);
  if (status == EK_OK) status = ek__check_backward(pass, it.node, EK__NO_RECORD, NULL, NULL);
  status = end(&call, pass, status);
  ek__free_all(it.kept, EK_MAX_POSTPONED);
  return status;
}

ek_status ek_pass_postpone(ek_pass *pass, const ek_tensor *tensors, size_t count) {
  static const char *const who = "ek_pass_postpone";
  EK__NOT_NULL(who, pass, tensors);
  const struct ek__frame *frame = pass->frame;
  EK__FAIL_IF(!ek_pass_can_postpone(pass), EK_ERR_STATE,
              "%s: not possible here; ask ek_pass_can_postpone()", who);
  EK__FAIL_IF(EK__TABLE_SLOT(ek_module_table(frame->node->module), backward_later) == NULL,
              EK_ERR_STATE, "%s: the module's table has no backward_later", who);
  EK__FAIL_IF(count > EK_MAX_POSTPONED, EK_ERR_INVALID_ARGUMENT,
              "%s: %zu tensors, expected %d at most", who, count, EK_MAX_POSTPONED);
  EK_TRY(ek__check_tensors(who, pass, tensors, count));
  EK_TRY(ek__postponed_run(pass));
  struct ek__postponed *it = &pass->postponed;
  for (size_t i = 0; i < count; i++) {
    const ek_status status = ek_tensor_share(&it->kept[i], &tensors[i]);
    if (status != EK_OK) ek__postponed_drop(pass);
    EK_TRY(status);
  }
  it->node = frame->node;
  it->precision = frame->precision;
  it->children = frame->children;
  it->run = run_postponed;
  return EK_OK;
}

/* ---- children ---- */

ek_status ek__child_node(const struct ek__node **node, const char *who, const ek_pass *pass,
                         size_t child) {
  EK__FAIL_IF(child >= pass->frame->node->child_count, EK_ERR_INVALID_ARGUMENT,
              "%s: no child number %zu", who, child);
  *node = pass->frame->node->children[child];
  return EK_OK;
}

ek_status ek_pass_child_enter_with(ek_pass *pass, size_t child, const ek_tensor *input,
                                   const ek_child_options *options) {
  static const char *const who = "ek_pass_child_enter";
  const struct ek__node *node = NULL;
  ek_child_options o = EK_CHILD_OPTIONS_INIT;
  EK__NOT_NULL(who, pass);
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_child_options"));
  EK__FAIL_IF(o.precision != EK_PRECISION_DEFAULT || o.promise.totals != NULL,
              EK_ERR_INVALID_ARGUMENT, "%s: options with a precision or totals", who);
  EK__FAIL_IF(pass->frame->entered, EK_ERR_STATE, "%s: the module is already in a child", who);
  EK_TRY(ek__child_node(&node, who, pass, child));
  if (o.made_from != NULL) EK_TRY(ek__check_tensors(who, pass, input, input == NULL ? 0 : 1));
  struct ek__frame *caller = pass->frame, *entered = caller + 1;
  *entered = *caller;
  entered->node = node;
  entered->below = caller;
  entered->entered = true;
  entered->saving = caller->saving && o.save;
  entered->unread = o.unread;
  entered->kept = 0;
  entered->converted = pass->converted_count;
  const size_t inputs = input == NULL ? 0 : 1;
  EK_TRY(open_recipe(&entered->recipe, pass, entered->saving, inputs, input, &o));
  const ek_status status =
      borrow(pass, node, caller->backward ? EK__WAY_BACKWARD : EK__WAY_FORWARD);
  if (status != EK_OK) {
    ek__recipe_close(pass, entered->recipe);
    return status;
  }
  move_place(caller->node, node);
  pass->frame = entered;
  return EK_OK;
}

ek_status ek_pass_child_enter(ek_pass *pass, size_t child) {
  return ek_pass_child_enter_with(pass, child, NULL, NULL);
}

ek_status ek_pass_child_leave(ek_pass *pass) {
  EK__NOT_NULL("ek_pass_child_leave", pass);
  EK__FAIL_IF(!pass->frame->entered, EK_ERR_STATE,
              "ek_pass_child_leave: the module has not entered a child");
  leave(pass);
  return EK_OK;
}
