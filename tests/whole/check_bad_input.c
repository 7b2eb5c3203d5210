/*
 * check_bad_input.c - wrong arguments to the data-parallel functions.
 *
 * Each call fails with the status that its header names and a message, leaves its results as they
 * were and nothing behind, and keeps what the step had accumulated.
 */
#include <limits.h>

#include "ck_training.h"

enum { SAMPLES = 6 };

static const ek_status bad = EK_ERR_INVALID_ARGUMENT;

/* A training with one micro-batch accumulated; the gradient that a second one will give. */
struct bench {
  struct ck_training t;
  struct ck_batch batch;
  double *want;
};

static void accumulate(struct bench *b) {
  ck_ok(ck_training_backward(&b->t, &b->batch, NULL, true, NULL));
}

static void open_bench(struct bench *b, const char *workload, int placement) {
  struct ck_setup setup = ck_setup_at(ck_workload(workload), "cpu:3", placement);
  b->t = ck_training_opened(&setup);
  b->batch = ck_batch_make(setup.workload, EK_F32, SAMPLES, 0, 1);
  accumulate(b);
  ck_ok(ck_training_backward(&b->t, &b->batch, NULL, false, NULL));
  b->want = ck_training_read(&b->t, CK_GRADIENTS);
  ck_ok(ek_data_parallel_model_discard(b->t.model));
  accumulate(b);
}

/* The first micro-batch is still there. */
static void close_bench(struct bench *b) {
  ck_ok(ck_training_backward(&b->t, &b->batch, NULL, false, NULL));
  double *got = ck_training_read(&b->t, CK_GRADIENTS);
  ck_arrays_same("gradients", got, b->want);
  ck_training_close(&b->t);
}

/* ---- NULL ---- */

CK_LOOP(null_is_refused, CK_MODES) {
  ek_shards shards[CK_BATCH_TENSORS] = {{0}};
  ek_tensor host = {0};
  double number = 0;
  ek_data_parallel_model *model = NULL;
  ek_data_parallel_criterion *loss = NULL;
  ek_data_parallel_optimizer *optimizer = NULL;
  ek_state_info info;
  CK_SET_UP(struct bench, b, open_bench(&b, "mlp", _i));
  struct ck_training *t = &b.t;
  const ek_tensor *x = b.batch.input, *y = b.batch.target;
  const ek_status got[] = {ek_data_parallel_model_open(NULL, t->group, t->module, NULL),
                           ek_data_parallel_model_open(&model, NULL, t->module, NULL),
                           ek_data_parallel_model_open(&model, t->group, NULL, NULL),
                           ek_data_parallel_model_forward(shards, NULL, x, 1, NULL),
                           ek_data_parallel_model_forward(NULL, t->model, x, 1, NULL),
                           ek_data_parallel_model_forward(shards, t->model, NULL, 1, NULL),
                           ek_data_parallel_model_backward(NULL, shards, 1, NULL),
                           ek_data_parallel_model_backward(t->model, NULL, 1, NULL),
                           ek_data_parallel_model_discard(NULL),
                           ek_state_entry(&info, NULL, 0),
                           ek_state_entry(&info, t->model, 9999),
                           ek_state_entry(NULL, t->model, 0),
                           ek_state_find(&info, NULL, "0.weight"),
                           ek_state_find(&info, t->model, NULL),
                           ek_state_find(NULL, t->model, "0.weight"),
                           ek_state_read(&host, NULL, "0.weight"),
                           ek_state_read(&host, t->model, NULL),
                           ek_state_read(NULL, t->model, "0.weight"),
                           ek_state_read(&host, t->model, "0.weight"), /* no data */
                           ek_state_write(NULL, "0.weight", &host),
                           ek_state_write(t->model, NULL, &host),
                           ek_state_write(t->model, "0.weight", NULL),
                           ek_data_parallel_model_gradient(&host, NULL, "0.weight"),
                           ek_data_parallel_model_gradient(&host, t->model, NULL),
                           ek_data_parallel_criterion_open(NULL, t->model, t->criterion, NULL),
                           ek_data_parallel_criterion_open(&loss, NULL, t->criterion, NULL),
                           ek_data_parallel_criterion_open(&loss, t->model, NULL, NULL),
                           ek_data_parallel_criterion_forward(NULL, shards, 1, y, 1),
                           ek_data_parallel_criterion_forward(t->loss, NULL, 1, y, 1),
                           ek_data_parallel_criterion_forward(t->loss, shards, 1, NULL, 1),
                           ek_data_parallel_criterion_loss(NULL, &number, t->loss),
                           ek_data_parallel_criterion_loss(&number, NULL, NULL),
                           ek_data_parallel_criterion_losses(NULL, t->loss),
                           ek_data_parallel_criterion_losses(shards, NULL),
                           ek_data_parallel_criterion_backward(NULL, NULL),
                           ek_data_parallel_optimizer_open(NULL, t->model, t->rule, NULL),
                           ek_data_parallel_optimizer_open(&optimizer, NULL, t->rule, NULL),
                           ek_data_parallel_optimizer_open(&optimizer, t->model, NULL, NULL),
                           ek_data_parallel_optimizer_step(NULL, NULL),
                           ek_data_parallel_optimizer_set_learning_rate(NULL, 1)};
  for (size_t i = 0; i < sizeof got / sizeof got[0]; i++) {
    ck_assert_msg(got[i] == bad, "call %zu gave %s", i, ek_status_name(got[i]));
  }
  ck_assert_str_ne(ek_error_message(), "");
  ck_assert(model == NULL && loss == NULL && optimizer == NULL);
  ek_data_parallel_model_free(NULL);
  ek_data_parallel_criterion_free(NULL);
  ek_data_parallel_optimizer_free(NULL);
  ck_assert_ptr_null(ek_data_parallel_model_group(NULL));
  ck_assert_ptr_null(ek_data_parallel_model_replica(NULL, 0));
  ck_assert_uint_eq(ek_state_count(NULL), 0);
  ck_assert_ptr_null(ek_data_parallel_criterion_totals(NULL));
  ck_assert_int_eq(ek_data_parallel_optimizer_steps(NULL), 0);
  close_bench(&b);
}

/* ---- options ---- */

CK_TEST(wrong_options) {
  ek_data_parallel_model *model = NULL;
  ek_data_parallel_criterion *loss = NULL;
  ek_data_parallel_optimizer *optimizer = NULL;
  ek_shards outputs[1] = {{0}};
  CK_SET_UP(struct bench, b, open_bench(&b, "mlp", 2));
  struct ck_training *t = &b.t;
  ek_data_parallel_model_options m = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  const ek_data_parallel_model_options defaults = m;
  for (int i = 0; i < 5; i++) {
    m = defaults;
    if (i == 0) m.size = 0;
    if (i == 1) m.outputs = (ek_output_placement)2;
    if (i == 2) m.state = (ek_state_placement)-1;
    if (i == 3) m.output_device = 3;
    if (i == 4) m.type = EK_I32;
    ck_assert_int_eq(ek_data_parallel_model_open(&model, t->group, t->module, &m), bad);
  }
  const ek_data_parallel_criterion_options c = {.size = 3};
  const ek_data_parallel_optimizer_options o = {.size = 3};
  const ek_forward_options f = {.size = 3};
  const ek_backward_options w = {.size = 3};
  const ek_criterion_backward_options l = {.size = 3};
  ck_invalid(ek_data_parallel_criterion_open(&loss, t->model, t->criterion, &c),
             "_options.size is 3");
  ck_invalid(ek_data_parallel_optimizer_open(&optimizer, t->model, t->rule, &o),
             "_options.size is 3");
  ck_invalid(ek_data_parallel_model_forward(outputs, t->model, b.batch.input, 1, &f),
             "_options.size is 3");
  ck_invalid(ek_data_parallel_model_backward(t->model, outputs, 1, &w), "_options.size is 3");
  ck_invalid(ek_data_parallel_criterion_backward(t->loss, &l), "_options.size is 3");
  ek_criterion *three = NULL; /* looks at three outputs, the model has one */
  ck_ok(ck_workload("mixer")->criterion(&three, EK_REDUCTION_MEAN));
  ck_invalid(ek_data_parallel_criterion_open(&loss, t->model, three, NULL), "3 outputs");
  ek_criterion_free(three);
  ck_assert(model == NULL && loss == NULL && optimizer == NULL);
  close_bench(&b);
}

/* ---- inputs ---- */

CK_LOOP(wrong_inputs, CK_PLACEMENTS) {
  ek_shards outputs[CK_BATCH_TENSORS], before[CK_BATCH_TENSORS];
  memset(outputs, 0x5A, sizeof outputs);
  memcpy(before, outputs, sizeof before);
  CK_SET_UP(struct bench, b, open_bench(&b, "mixer", _i));
  struct ck_training *t = &b.t;
  ek_group *elsewhere = ck_open("cpu:1", 1);
  ek_tensor foreign = ck_upload(ek_group_device(elsewhere, 0), EK_F32, NULL, CK_SHAPE(SAMPLES, 3));
  ek_tensor x[2];
  for (int i = 0; i < 5; i++) {
    static const ek_status wanted[] = {EK_ERR_INVALID_ARGUMENT, EK_ERR_SHAPE, EK_ERR_SHAPE,
                                       EK_ERR_DEVICE, EK_ERR_OVERFLOW};
    memcpy(x, b.batch.input, sizeof x);
    if (i == 0) memset(&x[1], 0, sizeof x[1]);
    if (i == 1) x[1].rank = 0;
    if (i == 2) x[1].shape[0] = SAMPLES - 1;
    if (i == 3) x[0] = foreign;
    if (i == 4) x[0].shape[0] = INT64_MAX;
    ck_assert_int_eq(ek_data_parallel_model_forward(outputs, t->model, x, 2, NULL), wanted[i]);
  }
  memcpy(x, b.batch.input, sizeof x);
  ck_invalid(ek_data_parallel_model_forward(outputs, t->model, x, 1, NULL),
             "takes 2 inputs, not 1");
  const int64_t sizes[] = {1, 2, 4};
  ek_scatter_options cut = {.size = sizeof cut, .kind = EK_SCATTER_SIZES, .sizes = sizes};
  CK_WITH(ek_forward_options, forward, EK_FORWARD_OPTIONS_INIT, .scatter = &cut);
  ck_invalid(ek_data_parallel_model_forward(outputs, t->model, x, 2, &forward), "size");
  ck_assert_mem_eq(outputs, before, sizeof outputs);
  ek_tensor_free(&foreign);
  ek_group_free(elsewhere);
  close_bench(&b);
}

CK_LOOP(every_input_broadcast, CK_MODES) {
  struct ck_setup setup = ck_setup_mode(ck_workload("mlp"), "cpu:2", (ek_mode)_i);
  struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, SAMPLES, 0, 1);
  ek_shards output[1] = {{0}};
  setup.options.broadcast_inputs = UINT64_MAX;
  struct ck_training t = ck_training_opened(&setup);
  ck_invalid(ek_data_parallel_model_forward(output, t.model, batch.input, 1, NULL),
             "one must be cut");
}

/* What only the module can know comes back with its message; the step is dropped, nothing leaks. */
CK_LOOP(inputs_that_the_module_refuses, CK_PLACEMENTS) {
  struct ck_training t = ck_training_of(ck_setup_at(ck_workload("mlp"), "cpu:3", _i));
  struct ck_batch batch = ck_batch_make(t.setup.workload, EK_F32, SAMPLES, 0, 1);
  struct ck_batch fine = ck_batch_make(t.setup.workload, EK_F64, SAMPLES, 0, 1);
  /* Where parameters are gathered, the first to see it makes the others give up. */
  const char *first =
      t.setup.options.state == EK_STATE_FULLY_SHARDED ? "replica " : "replica 0 on cpu:0";
  CK_WITH(struct ck_batch, narrow, batch, .input[0].shape[1] = 5);
  CK_GOT(ek_memory_usage, before, ck_memory_stats(&before, ek_group_device(t.group, 1)));
  ck_fails(ck_training_backward(&t, &narrow, NULL, false, NULL), EK_ERR_SHAPE, first);
  ck_fails(ck_training_backward(&t, &fine, NULL, false, NULL), EK_ERR_TYPE, first);
  ck_assert_uint_eq(ck_usage(ek_group_device(t.group, 1)).current_bytes, before.current_bytes);
  ck_ok(ck_training_step(&t, &batch, NULL));
}

/* ---- gradients ---- */

/* A wrong token and a wrong target are named by their place in the batch, wherever it was cut, and
 * the step can go on. A GPU finds them later, but before the loss is read. */
CK_LOOP(wrong_numbers_are_counted_over_the_batch, CK_PLACEMENTS) {
  enum { TOKENS = 5, PLACE = 3 * TOKENS + 1 };
  struct bench b;
  for (int target = 0; target < 2; target++) {
    open_bench(&b, "gpt", _i);
    int32_t *numbers = target == 1 ? b.batch.target[0].data : b.batch.input[0].data;
    const int32_t right = numbers[PLACE];
    double loss = 0;
    numbers[PLACE] = numbers[PLACE + TOKENS] = 99; /* the first of two is told */
    /* Where parameters are gathered, any device may be the first that gives up. */
    if (b.t.setup.options.state == EK_STATE_FULLY_SHARDED) numbers[PLACE + TOKENS] = right;
    ck_fails(ck_training_backward(&b.t, &b.batch, NULL, true, &loss), bad,
             target == 1 ? "cross_entropy: target 99 at row 16 of the batch"
                         : "lookup: index 99 at position 16 of the batch");
    numbers[PLACE] = numbers[PLACE + TOKENS] = right;
    ck_ok(ek_data_parallel_model_discard(b.t.model));
    ck_ok(ck_training_backward(&b.t, &b.batch, NULL, false, &loss));
    ck_training_close(&b.t);
  }
}

CK_LOOP(wrong_gradients, CK_PLACEMENTS) {
  CK_SET_UP(struct bench, b, open_bench(&b, "mlp", _i));
  struct ck_training *t = &b.t;
  ek_shards outputs[1] = {{0}};
  ek_backward_options options = EK_BACKWARD_OPTIONS_INIT;
  options.totals = ek_data_parallel_criterion_totals(t->loss);
  ck_fails(ek_data_parallel_model_backward(t->model, outputs, 1, NULL), EK_ERR_STATE, "no forward");
  ck_ok(ek_data_parallel_model_forward(outputs, t->model, b.batch.input, 1, NULL));
  for (int i = 0; i < 6; i++) {
    ek_shards wrong = outputs[0];
    ek_tensor *part = &wrong.parts[0], right = *part;
    if (i == 0) memset(&wrong, 0, sizeof wrong);
    if (i == 1) part->shape[0]--;
    if (i == 2) part->shape[1]++;
    if (i == 3) part->rank = 1;
    if (i == 4) part->type = EK_F64;
    if (i == 5) part->device = NULL;
    ck_fails(ek_data_parallel_model_backward(t->model, &wrong, 1, &options), EK_ERR_SHAPE,
             "number 0");
    *part = right;
  }
  ck_invalid(ek_data_parallel_model_backward(t->model, outputs, 2, &options), "1 outputs, not 2");
  /* Accumulated were gradients to be divided; these are not. */
  ck_fails(ek_data_parallel_model_backward(t->model, outputs, 1, NULL), EK_ERR_STATE, "divided");
  ek_tensor totals[3]; /* all of device 0 */
  for (size_t k = 0; k < 3; k++) totals[k] = ek_data_parallel_criterion_totals(t->loss)[0];
  options.totals = totals;
  ck_invalid(ek_data_parallel_model_backward(t->model, outputs, 1, &options), "number 1");
  ek_shards_free(&outputs[0]);
  close_bench(&b);
}

/* ---- sizes ---- */

/* On devices that only count: shapes of which a product leaves 63 bits, or the device's memory. */
CK_LOOP(huge_batches, CK_PLACEMENTS) {
  static const int64_t samples[] = {INT64_MAX, INT64_MAX / 4, INT64_C(1) << 40};
  struct ck_training t = ck_training_of(ck_setup_at(ck_workload("mlp"), "plan:3@80GiB", _i));
  struct ck_batch small = ck_batch_make(t.setup.workload, EK_F32, SAMPLES, 0, 1);
  for (size_t i = 0; i < 3; i++) {
    ek_shards output[1] = {{0}};
    CK_WITH(ek_tensor, x, small.input[0], .shape[0] = samples[i]);
    const ek_status status = ek_data_parallel_model_forward(output, t.model, &x, 1, NULL);
    ck_assert_msg(status == EK_ERR_OVERFLOW || status == EK_ERR_OUT_OF_MEMORY, "%s: %s",
                  ek_status_name(status), ek_error_message());
    ck_assert_ptr_null(output[0].group);
  }
  ck_ok(ck_training_step(&t, &small, NULL));
}

/* 2^31 elements are nothing special: an output of 3 x 2^31 over three devices that count. */
CK_LOOP(more_than_31_bits, CK_MODES) {
  struct ck_setup setup = ck_setup_mode(ck_workload("mlp"), "plan:3@1TiB", (ek_mode)_i);
  struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, SAMPLES, 0, 1);
  ek_shards output[1] = {{0}};
  ek_tensor x = batch.input[0], y = batch.target[0];
  struct ck_training t = ck_training_opened(&setup);
  x.shape[0] = y.shape[0] = INT64_C(3) << 29; /* 5 classes: 2.5 x 2^30 logits on each */
  ck_ok(ek_data_parallel_model_forward(output, t.model, &x, 1, NULL));
  ck_ok(ek_data_parallel_criterion_forward(t.loss, output, 1, &y, 1));
  ck_ok(ek_data_parallel_criterion_backward(t.loss, NULL));
  ck_ok(ek_data_parallel_optimizer_step(NULL, t.optimizer));
  CK_GOT(double, loss, ek_data_parallel_criterion_loss(&loss, NULL, t.loss));
  ck_assert(isnan(loss)); /* as the header says of `plan` */
  ek_shards_free(&output[0]);
}

CK_SUITE("bad input")
