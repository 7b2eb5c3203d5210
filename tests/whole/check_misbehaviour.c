/*
 * check_misbehaviour.c - modules of a program's own that give or take back the wrong things.
 *
 * Each fault is found when the function that has it returns, on the device where it happens, and
 * the message names the module by path and kind, once. The step that met it is lost and nothing
 * else: afterwards training goes on as if it had never been.
 */
#include "ck_training.h"

enum { SAMPLES = 5, WIDTH = 4 }; /* 3 and 2 samples on two devices */

/* ---- a module that does what it is told ---- */

/* Within a model: what comes of it, the function that is named, and what is said. */
#define FAULTS(X)                                                                                  \
  X(NO_OUTPUT, EK_ERR_STATE, "forward", "it did not set output number 0")                          \
  X(HOST_OUTPUT, EK_ERR_DEVICE, "forward", "output number 0 is in host memory, expected on ")      \
  X(OTHER_DEVICE_OUTPUT, EK_ERR_DEVICE, "forward", "output number 0 is on ")                       \
  X(OTHER_TYPE_OUTPUT, EK_ERR_TYPE, "forward", "output number 0 is f64, expected f32")             \
  X(COPIED_OUTPUT, EK_ERR_STATE, "forward", "output number 0 holds no reference")                  \
  X(DROPPED_OUTPUT, EK_ERR_STATE, "forward", "output number 0 holds no reference")                 \
  X(OUTPUT_WITHOUT_MEMORY, EK_ERR_SHAPE, "forward", "output number 0 has elements but no memory")  \
  X(OUTPUT_OF_RANK_9, EK_ERR_SHAPE, "forward", "output number 0 has rank 9")                       \
  X(OUTPUT_OUTSIDE_OF_MEMORY, EK_ERR_SHAPE, "forward",                                             \
    "output number 0 has elements outside of its memory")                                          \
  X(OUTPUT_OF_NO_TYPE, EK_ERR_STATE, "forward", "it did not set output number 0")                  \
  X(OUTPUT_OF_NEGATIVE_SIZE, EK_ERR_SHAPE, "forward",                                              \
    "output number 0 has size -1 of dimension 1")                                                  \
  X(FORWARD_WORKSPACE, EK_ERR_STATE, "forward", "without freeing 512 B of workspace")              \
  X(TAKES_IN_FORWARD, EK_ERR_STATE, "forward", "it takes more tensors back than it saved")         \
  X(FAILS, EK_ERR_IO, "forward", "the disk is gone")                                               \
  X(FAILS_WITHOUT_A_WORD, EK_ERR_IO, "forward", "the operating system refused to read or write")   \
  X(NO_GRADIENT, EK_ERR_STATE, "backward", "the gradient of input number 0 was not given")         \
  X(HOST_GRADIENT, EK_ERR_DEVICE, "backward",                                                      \
    "the gradient of input number 0 is in host memory, expected on ")                              \
  X(OTHER_DEVICE_GRADIENT, EK_ERR_DEVICE, "backward", "the gradient of input number 0 is on ")     \
  X(OTHER_TYPE_GRADIENT, EK_ERR_TYPE, "backward",                                                  \
    "the gradient of input number 0 is f64, expected f32")                                         \
  X(OTHER_SHAPE_GRADIENT, EK_ERR_SHAPE, "backward", "the gradient of input number 0 is [4 x ")     \
  X(SHORT_GRADIENT, EK_ERR_SHAPE, "backward", " x 4], expected [")                                 \
  X(COPIED_GRADIENT, EK_ERR_STATE, "backward", "input number 0 holds no reference")                \
  X(GRADIENT_WITHOUT_MEMORY, EK_ERR_SHAPE, "backward",                                             \
    "the gradient of input number 0 has elements but no memory")                                   \
  X(GRADIENT_OF_RANK_9, EK_ERR_SHAPE, "backward", "the gradient of input number 0 has rank 9")     \
  X(TAKES_TOO_LITTLE, EK_ERR_STATE, "backward", "saved tensors (activations) not taken back: 1")   \
  X(TAKES_TOO_MUCH, EK_ERR_STATE, "backward", "it takes more tensors back than it saved")          \
  X(BACKWARD_WORKSPACE, EK_ERR_STATE, "backward", "without freeing 512 B of workspace")            \
  X(FAILS_BACK, EK_ERR_IO, "backward", "the disk is gone again")
#define NAME(fault, status, function, text) fault,
/* The last four are those of a model. */
enum fault { NO_FAULT, FAULTS(NAME) FEWER_ROWS, NO_ROWS, TWICE_THE_ROWS, INTEGERS };

struct fiend {
  ek_module base;
  enum fault fault;
  size_t device; /* where; SIZE_MAX: everywhere */
};

/* What was leaked, one slot per device, so that a test can free it. */
static ek_tensor leaked[2];
static float host_numbers[SAMPLES * WIDTH];

static enum fault fault_of(const ek_module *self, const ek_pass *pass) {
  const struct fiend *f = (const struct fiend *)self;
  const bool here = f->device == SIZE_MAX || f->device == ek_device_index(ek_pass_device(pass));
  return here ? f->fault : NO_FAULT;
}

static ek_status on_other_device(ek_tensor *tensor, ek_pass *pass, const ek_tensor *like) {
  ek_device *device = ek_pass_device(pass);
  ek_group *group = ek_device_group(device);
  return ek_tensor_create(tensor, ek_group_device(group, 1 - ek_device_index(device)),
                          EK_MEMORY_ACTIVATIONS, like->type, like->rank, like->shape);
}

static ek_status leak(ek_pass *pass) {
  const int64_t shape[] = {100};
  return ek_pass_workspace(&leaked[ek_device_index(ek_pass_device(pass))], pass, EK_F32, 1, shape);
}

/* Memory like that of `like`, and a struct that does not describe it. */
static ek_status damaged(ek_tensor *tensor, ek_pass *pass, const ek_tensor *like,
                         enum fault fault) {
  EK_TRY(ek_pass_output(tensor, pass, like->type, like->rank, like->shape));
  switch (fault) {
  case OUTPUT_OUTSIDE_OF_MEMORY: tensor->shape[0] += 1000; break;
  case OUTPUT_OF_NO_TYPE: tensor->type = (ek_type)77; break;
  case OUTPUT_OF_NEGATIVE_SIZE: tensor->shape[1] = -1; break;
  case OUTPUT_OF_RANK_9:
  case GRADIENT_OF_RANK_9: tensor->rank = EK_MAX_RANK + 1; break;
  default: tensor->data = NULL;
  }
  return EK_OK;
}

CK_FORWARD(fiend) {
  const ek_tensor *x = &inputs[0];
  const enum fault fault = fault_of(self, pass);
  ek_tensor taken = {0};
  const int64_t fewer[] = {x->shape[0] - 1, WIDTH}, none[] = {0, WIDTH};
  const int64_t twice[] = {2 * x->shape[0], WIDTH};
  EK_TRY(ek_pass_save(pass, x));
  EK_TRY(ek_pass_save(pass, x));
  switch (fault) {
  case NO_OUTPUT: return EK_OK;
  case HOST_OUTPUT: return ek_tensor_host(&outputs[0], host_numbers, x->type, x->rank, x->shape);
  case OTHER_DEVICE_OUTPUT: return on_other_device(&outputs[0], pass, x);
  case OTHER_TYPE_OUTPUT: return ek_pass_output(&outputs[0], pass, EK_F64, x->rank, x->shape);
  case OUTPUT_OUTSIDE_OF_MEMORY: return damaged(&outputs[0], pass, x, fault);
  case OUTPUT_OF_NO_TYPE: return damaged(&outputs[0], pass, x, fault);
  case COPIED_OUTPUT: outputs[0] = *x; return EK_OK;
  case DROPPED_OUTPUT:
    EK_TRY(ek_pass_output(&outputs[0], pass, x->type, x->rank, x->shape));
    taken = outputs[0];
    ek_tensor_free(&taken);
    return EK_OK;
  case OUTPUT_WITHOUT_MEMORY: return damaged(&outputs[0], pass, x, fault);
  case OUTPUT_OF_RANK_9: return damaged(&outputs[0], pass, x, fault);
  case OUTPUT_OF_NEGATIVE_SIZE: return damaged(&outputs[0], pass, x, fault);
  case FORWARD_WORKSPACE: EK_TRY(leak(pass)); break;
  case TAKES_IN_FORWARD:
    for (int i = 0; i < 3; i++) {
      EK_TRY(ek_pass_take(&taken, pass));
      ek_tensor_free(&taken);
    }
    break;
  case FAILS: return ek_error_set(EK_ERR_IO, "the disk is gone");
  case FAILS_WITHOUT_A_WORD: return EK_ERR_IO;
  case FEWER_ROWS: return ek_pass_output(&outputs[0], pass, x->type, 2, fewer);
  case TWICE_THE_ROWS: return ek_pass_output(&outputs[0], pass, x->type, 2, twice);
  case NO_ROWS: return ek_pass_output(&outputs[0], pass, x->type, 2, none);
  case INTEGERS: return ek_pass_output(&outputs[0], pass, EK_I32, x->rank, x->shape);
  default: break;
  }
  return ek_tensor_share(&outputs[0], x);
}

CK_BACKWARD(fiend) {
  const ek_tensor *dy = &grad_outputs[0];
  const enum fault fault = fault_of(self, pass);
  const int takes = fault == TAKES_TOO_LITTLE ? 1 : fault == TAKES_TOO_MUCH ? 3 : 2;
  const int64_t turned[] = {WIDTH, dy->shape[0]}, fewer[] = {dy->shape[0] - 1, WIDTH};
  ek_tensor taken = {0};
  for (int i = 0; i < takes; i++) {
    EK_TRY(ek_pass_take(&taken, pass));
    ek_tensor_free(&taken);
  }
  if (fault == BACKWARD_WORKSPACE) EK_TRY(leak(pass));
  if (fault == FAILS_BACK) return ek_error_set(EK_ERR_IO, "the disk is gone again");
  if (grad_inputs == NULL) return EK_OK;
  switch (fault) {
  case NO_GRADIENT: return EK_OK;
  case HOST_GRADIENT:
    return ek_tensor_host(&grad_inputs[0], host_numbers, dy->type, dy->rank, dy->shape);
  case OTHER_DEVICE_GRADIENT: return on_other_device(&grad_inputs[0], pass, dy);
  case OTHER_TYPE_GRADIENT:
    return ek_pass_output(&grad_inputs[0], pass, EK_F64, dy->rank, dy->shape);
  case OTHER_SHAPE_GRADIENT: return ek_pass_output(&grad_inputs[0], pass, dy->type, 2, turned);
  case COPIED_GRADIENT: grad_inputs[0] = *dy; return EK_OK;
  case GRADIENT_WITHOUT_MEMORY: return damaged(&grad_inputs[0], pass, dy, fault);
  case GRADIENT_OF_RANK_9: return damaged(&grad_inputs[0], pass, dy, fault);
  case SHORT_GRADIENT: return ek_pass_output(&grad_inputs[0], pass, dy->type, 2, fewer);
  default: return ek_tensor_share(&grad_inputs[0], dy);
  }
}

CK_PLAIN_OPS(fiend, .types = EK_TYPES_F32 | EK_TYPES_F64);

static struct fiend *fiend_create(void) {
  return ck_module_new(sizeof(struct fiend), &fiend_ops, 1, 1);
}

/* ---- a training with it inside ---- */

struct bench {
  struct fiend *fiend;
  struct ck_training training;
  float x[SAMPLES * WIDTH], t[SAMPLES * WIDTH];
};

/* linear, {fiend}, linear: the fiend is "1.0". Or nothing but the fiend. */
static ek_module *surround(ek_module *fiend) {
  CK_SCOPED(ek_module *, first, ek_linear_create(&first, WIDTH, WIDTH, true));
  CK_SCOPED(ek_module *, last, ek_linear_create(&last, WIDTH, WIDTH, true));
  CK_SCOPED(ek_module *, inner, ek_sequential_create(&inner, &fiend, 1));
  CK_GOT(ek_module *, whole, ek_sequential_create(&whole, (ek_module *[]){first, inner, last}, 3));
  return whole;
}

static void bench_open(struct bench *b, ek_mode mode, bool surrounded) {
  struct ck_random random = ck_random_start(1);
  for (int i = 0; i < SAMPLES * WIDTH; i++) {
    b->x[i] = (float)ck_random_integer(&random, -3, 3);
    b->t[i] = (float)ck_random_integer(&random, -3, 3);
  }
  b->fiend = fiend_create();
  ck_keep(&b->fiend->base);
  CK_GOT(ek_criterion *, loss, ek_mean_squared_error_create(&loss, EK_REDUCTION_MEAN));
  const struct ck_setup setup =
      ck_setup_own(surrounded ? surround(&b->fiend->base) : ek_module_share(&b->fiend->base), loss,
                   "cpu:2", mode);
  b->training = ck_training_opened(&setup);
}

static ek_status step(struct bench *b, double *loss) {
  struct ck_batch batch = {.samples = SAMPLES, .inputs = 1, .targets = 1};
  ek_step_result result = {0};
  ck_ok(ek_tensor_host(&batch.input[0], b->x, EK_F32, CK_SHAPE(SAMPLES, WIDTH)));
  ck_ok(ek_tensor_host(&batch.target[0], b->t, EK_F32, CK_SHAPE(SAMPLES, WIDTH)));
  const ek_status status = ck_training_step(&b->training, &batch, &result);
  *loss = result.loss;
  return status;
}

/* The losses of three steps that nothing disturbs. */
static void undisturbed(double losses[3], ek_mode mode) {
  CK_SET_UP(struct bench, b, bench_open(&b, mode, true));
  for (int i = 0; i < 3; i++) ck_ok(step(&b, &losses[i]));
  ck_training_close(&b.training);
}

static const struct {
  enum fault fault;
  const char *name;
  ek_status status;
  const char *function, *text;
} faults[] = {
#define ROW(fault, status, function, text) {fault, #fault, status, function, text},
    FAULTS(ROW)};

enum { INNER_FAULTS = sizeof faults / sizeof faults[0] };

static int occurrences(const char *text, const char *part) {
  int count = 0;
  for (const char *at = text; (at = strstr(at, part)) != NULL; at++) count++;
  return count;
}

/* Every fault in every mode, on either device and on both. */
CK_LOOP(a_fault_is_named_and_costs_the_step_alone, INNER_FAULTS * CK_MODES) {
  const ek_mode mode = (ek_mode)(_i % CK_MODES);
  const size_t devices[] = {0, 1, SIZE_MAX};
  const int which = _i / CK_MODES;
  double want[3], got = 0;
  const char *text = ck_text("1.0 (fiend), %s: ", faults[which].function);
  undisturbed(want, mode);
  for (size_t d = 0; d < 3; d++) {
    CK_SET_UP(struct bench, b, bench_open(&b, mode, true));
    ck_ok(step(&b, &got));
    b.fiend->fault = faults[which].fault;
    b.fiend->device = devices[d];
    ek_error_clear();
    const ek_status status = step(&b, &got);
    const char *message = ek_error_message();
    ck_assert_msg(status == faults[which].status, "%s gave %s: %s", faults[which].name,
                  ek_status_name(status), message);
    ck_assert_msg(strstr(message, text) != NULL && strstr(message, faults[which].text) != NULL,
                  "%s: \"%s\" does not say \"%s\" and \"%s\"", faults[which].name, message, text,
                  faults[which].text);
    ck_assert_msg(occurrences(message, "fiend") == 1 && occurrences(message, "sequential") == 0,
                  "named more than once: %s", message);
    for (size_t k = 0; k < 2; k++) ek_tensor_free(&leaked[k]);
    b.fiend->fault = NO_FAULT;
    for (int i = 1; i < 3; i++) {
      ck_ok(step(&b, &got));
      ck_assert_double_eq(got, want[i]);
    }
    ck_training_close(&b.training);
  }
}

/* What comes out of a model must fit its samples, and have a gradient. */
CK_LOOP(a_root_gives_rows_for_its_samples, 6 * CK_MODES) {
  static const struct {
    enum fault fault;
    ek_status status;
    const char *text;
  } roots[] = {
      {FEWER_ROWS, EK_ERR_SHAPE, "fiend, forward: output number 0 has 2 rows, expected a multiple"},
      {TWICE_THE_ROWS, EK_ERR_SHAPE,
       "fiend, forward: output number 0 has 2 rows per sample on cpu:0 and 1 on cpu:1"},
      {NO_ROWS, EK_ERR_SHAPE, "of the 3 samples"},
      {INTEGERS, EK_ERR_TYPE, "fiend, forward: output number 0 is i32, which has no gradient"},
      {HOST_OUTPUT, EK_ERR_DEVICE, "fiend, forward: output number 0 is in host memory"},
      {NO_OUTPUT, EK_ERR_STATE, "fiend, forward: it did not set output number 0"}};
  double loss = 0;
  const ek_mode mode = (ek_mode)(_i % CK_MODES);
  CK_SET_UP(struct bench, b, bench_open(&b, mode, false));
  b.fiend->fault = roots[_i / CK_MODES].fault;
  b.fiend->device = 0;
  ck_fails(step(&b, &loss), roots[_i / CK_MODES].status, roots[_i / CK_MODES].text);
  b.fiend->fault = NO_FAULT;
  ck_ok(step(&b, &loss));
}

/* No module follows: integers may come out. */
CK_TEST(a_root_without_gradient_may_give_integers) {
  CK_SET_UP(struct bench, b, bench_open(&b, EK_MODE_REPLICATED, false));
  CK_WITH(ek_forward_options, options, EK_FORWARD_OPTIONS_INIT, .gradient = false);
  b.fiend->fault = INTEGERS;
  b.fiend->device = SIZE_MAX;
  CK_GOT(ek_tensor, x, ek_tensor_host(&x, b.x, EK_F32, CK_SHAPE(SAMPLES, WIDTH)));
  CK_OPENED(ek_shards, outputs,
            ek_data_parallel_model_forward(&outputs, b.training.model, &x, 1, &options));
  ck_assert_int_eq(outputs.parts[1].type, EK_I32);
}

/* The device is full within a module: its path is named, and the device once. */
CK_TEST(a_full_device_names_the_module) {
  CK_SET_UP(struct bench, b, bench_open(&b, EK_MODE_REPLICATED, true));
  CK_GOT(double, loss, step(&b, &loss));
  int named = 0;
  uint64_t n = 0;
  while (ck_device_fails(&n, ek_group_device(b.training.group, 1), step(&b, &loss))) {
    const char *message = ek_error_message();
    if (strstr(message, "0 (linear), forward: ") != NULL) named |= 1;
    if (strstr(message, "2 (linear), forward: ") != NULL) named |= 2;
    if (strstr(message, "2 (linear), backward: ") != NULL) named |= 4;
    ck_assert_int_le(occurrences(message, "(linear)"), 1);
    ck_assert_int_eq(occurrences(message, "sequential"), 0);
  }
  ck_assert_int_eq(named, 7);
}

/* ---- modules made of modules ---- */

enum parent_fault {
  PARENT_GOOD,
  PARENT_SAVES_AFTER,    /* saves after the child's forward, and does not take it back before */
  PARENT_TAKES_CHILD,    /* takes what the child saved */
  PARENT_SKIPS_CHILD,    /* never calls the child's backward */
  PARENT_NO_INPUT,       /* runs the child on nothing */
  PARENT_HOST_INPUT,     /* on host memory */
  PARENT_NO_GRADIENT,    /* gives its backward nothing */
  PARENT_OTHER_GRADIENT, /* a gradient of another shape */
  PARENT_RECOVERS,       /* runs the child once more after it has failed */
  PARENT_FAULTS
};

struct parent {
  ek_module base;
  enum parent_fault fault;
  struct fiend *child;
};

CK_PARAMETERS(parent) {
  return ek_declare_module(declaration, "child", &((const struct parent *)self)->child->base);
}

CK_FORWARD(parent) {
  const struct parent *p = (const struct parent *)self;
  ek_tensor other = {0};
  if (p->fault == PARENT_HOST_INPUT) {
    EK_TRY(ek_tensor_host(&other, host_numbers, EK_F32, 2, inputs[0].shape));
  }
  const bool wrong = p->fault == PARENT_NO_INPUT || p->fault == PARENT_HOST_INPUT;
  if (p->fault == PARENT_RECOVERS) {
    p->child->fault = FAILS;
    const ek_status failed = ek_pass_child_forward(outputs, pass, 0, inputs);
    p->child->fault = NO_FAULT;
    if (failed != EK_ERR_IO) return EK_ERR_INTERNAL;
  }
  EK_TRY(ek_pass_child_forward(outputs, pass, 0, wrong ? &other : inputs));
  return p->fault == PARENT_SAVES_AFTER ? ek_pass_save(pass, &outputs[0]) : EK_OK;
}

CK_BACKWARD(parent) {
  const struct parent *p = (const struct parent *)self;
  CK_FREED(tensor) other = {0}, taken = {0};
  if (p->fault == PARENT_SKIPS_CHILD) return ek_tensor_share(&grad_inputs[0], &grad_outputs[0]);
  if (p->fault == PARENT_TAKES_CHILD) EK_TRY(ek_pass_take(&taken, pass));
  const int64_t shape[] = {1, WIDTH};
  if (p->fault == PARENT_OTHER_GRADIENT) EK_TRY(ek_pass_output(&other, pass, EK_F32, 2, shape));
  const bool wrong = p->fault == PARENT_OTHER_GRADIENT || p->fault == PARENT_NO_GRADIENT;
  return ek_pass_child_backward(grad_inputs, pass, 0, wrong ? &other : grad_outputs);
}

static const ek_module_ops parent_ops = {
    CK_OPS("parent", parent_forward, parent_backward, ck_no_free),
    .parameters = parent_parameters, .types = EK_TYPES_F32};

/* A forward and a backward by hand of {parent {child}}; what the one that fails says. */
static ek_status run_parent(struct parent *p, ek_device *device) {
  ek_module *module = &p->base;
  CK_SCOPED(ek_module *, root, ek_sequential_create(&root, &module, 1));
  CK_SCOPED(ek_replica *, replica, ek_replica_open(&replica, device, root, NULL));
  CK_SCOPED(ek_pass *, pass, ek_pass_open(&pass, replica, NULL));
  CK_FREED(tensor) x = ck_upload(device, EK_F32, NULL, CK_SHAPE(3, WIDTH)), y = {0}, dx = {0};
  EK_TRY(ek_pass_run_forward(&y, pass, &x));
  const ek_status status = ek_pass_run_backward(&dx, pass, &x);
  ck_assert(status == EK_OK || !ek_tensor_exists(&dx));
  return status;
}

CK_LOOP(a_parent_is_named_for_what_it_does_to_its_child, PARENT_FAULTS) {
  static const struct {
    ek_status status;
    const char *text;
  } want[PARENT_FAULTS] = {
      [PARENT_GOOD] = {EK_OK, ""},
      [PARENT_SAVES_AFTER] =
          {EK_ERR_STATE, "0 (parent), backward: backward of 0.child (fiend): tensors that were "
                         "saved after its forward remain: 1"},
      [PARENT_TAKES_CHILD] = {EK_ERR_STATE,
                              "0 (parent), backward: backward of 0.child (fiend): tensors that its "
                              "forward saved are gone: 1"},
      [PARENT_SKIPS_CHILD] =
          {EK_ERR_STATE, "0 (parent), backward: saved tensors (activations) not taken back: 2"},
      [PARENT_NO_INPUT] =
          {EK_ERR_INVALID_ARGUMENT,
           "0 (parent), forward: ek_pass_child_forward: tensor number 0 is NULL or absent"},
      [PARENT_HOST_INPUT] = {EK_ERR_DEVICE,
                             "0 (parent), forward: ek_pass_child_forward: tensor number 0 "
                             "is in host memory"},
      [PARENT_NO_GRADIENT] = {EK_ERR_INVALID_ARGUMENT,
                              "0 (parent), backward: backward of 0.child (fiend): the gradient of "
                              "output number 0 is missing"},
      [PARENT_OTHER_GRADIENT] =
          {EK_ERR_SHAPE, "0 (parent), backward: backward of 0.child (fiend): the gradient of "
                         "output number 0 is [1 x 4], expected [3 x 4]"},
      [PARENT_RECOVERS] = {EK_OK, ""},
  };
  ek_group *group = ck_open("cpu:1", 1);
  struct parent p = {.fault = (enum parent_fault)_i, .child = fiend_create()};
  p.child->device = SIZE_MAX;
  ck_ok(ek_module_init(&p.base, &parent_ops, 1, 1));
  if (want[_i].status == EK_OK) {
    ck_ok(run_parent(&p, ek_group_device(group, 0)));
  } else {
    ck_fails(run_parent(&p, ek_group_device(group, 0)), want[_i].status, want[_i].text);
  }
  ek_module_free(&p.child->base);
}

/* The tables of a pass have grown in the first step; a later one asks the host for no memory. */
CK_LOOP(a_step_takes_no_memory_of_the_host, CK_MODES) {
  double loss = 0;
  CK_SET_UP(struct bench, b, bench_open(&b, (ek_mode)_i, true));
  for (int i = 0; i < 2; i++) ck_ok(step(&b, &loss));
  for (int i = 0; i < 3; i++) {
    ek_host_memory_fail_at(1);
    ck_ok(step(&b, &loss));
  }
  ek_host_memory_fail_at(0);
}

CK_SUITE("misbehaviour")
