/*
 * check_data_parallel_criterion.c - the loss where the outputs are.
 *
 * That mean losses and their gradients are right for every cut is in tests/whole/check_equality.c;
 * here are the other reductions, what happens to the outputs, and wrong use.
 */
#include "ck_training.h"

enum { DEVICES = 3, SAMPLES = 8, CASES = CK_WORKLOADS * CK_PLACEMENTS };

static struct ck_setup setup_of(int number, ek_type type, const char *spec) {
  struct ck_setup setup =
      ck_setup_at(&ck_workloads[number / CK_PLACEMENTS], spec, number % CK_PLACEMENTS);
  ck_assign(setup, .options.type = type, .optimizer = NULL);
  return setup;
}

static double *read_gradients(struct ck_training *t) {
  double *gradients = ck_training_read(t, CK_GRADIENTS);
  ck_ok(ek_data_parallel_model_discard(t->model));
  return gradients;
}

/* ---- reductions ---- */

/* A sum is the mean times the weight, and its gradient is too. */
CK_PART_LOOP(a_sum_is_not_divided, CASES) {
  struct ck_setup setup = setup_of(_i, EK_F64, "cpu:3"), alone = setup_of(_i, EK_F64, "cpu:1");
  struct ck_batch batch = ck_batch_make(setup.workload, EK_F64, SAMPLES, 0.3, 1);
  double want_loss = 0, loss = 0, weight = 0;
  setup.reduction = alone.reduction = EK_REDUCTION_SUM;
  setup.optimizer = ck_clipped_adamw;
  struct ck_training one = ck_training_opened(&alone);
  struct ck_training many = ck_training_opened(&setup);
  ck_ok(ck_training_backward(&one, &batch, NULL, false, &want_loss));
  ck_ok(ck_training_backward(&many, &batch, NULL, false, &loss));
  ck_ok(ek_data_parallel_criterion_loss(&loss, &weight, many.loss));
  ck_assert_double_eq_tol(loss, want_loss, 1e-12 * want_loss);
  ck_assert_double_gt(weight, 1);
  ck_runs_agree(&many, &one, CK_GRADIENTS, 1e-12);
  ck_ok(ek_data_parallel_model_discard(one.model));
  CK_GOT(ek_step_result, result, ek_data_parallel_optimizer_step(&result, many.optimizer));
  ck_assert_double_eq(result.loss, loss);
  ck_assert_double_eq(result.weight, 0);
  ck_assert(!result.empty);
}

struct forwarded {
  ek_shards outputs[CK_BATCH_TENSORS];
};

static void forward(struct forwarded *f, struct ck_training *t, const struct ck_batch *batch) {
  memset(f, 0, sizeof *f);
  ck_ok(ek_data_parallel_model_forward(f->outputs, t->model, batch->input, batch->inputs, NULL));
  ck_ok(ek_data_parallel_criterion_forward(t->loss, f->outputs, ek_module_outputs(t->module),
                                           batch->target, batch->targets));
}

static void drop(struct forwarded *f, const struct ck_training *t) {
  for (size_t i = 0; i < ek_module_outputs(t->module); i++) ek_shards_free(&f->outputs[i]);
}

/* Single losses, gathered, are the loss of `sum`; factors of 2 double the gradient. */
CK_PART_LOOP(single_losses_and_factors, 2 * CK_PLACEMENTS) {
  struct ck_setup setup = setup_of(_i, EK_F64, "cpu:3");
  const int64_t rows = _i / CK_PLACEMENTS == 1 ? SAMPLES * 5 : SAMPLES;
  struct ck_batch batch = ck_batch_make(setup.workload, EK_F64, SAMPLES, 0.3, 2);
  struct forwarded f;
  double numbers[SAMPLES * 5], loss = 0, sum = 0;
  double *gradients[2];
  const int64_t shape[] = {SAMPLES, 5};
  ek_shards losses = {0}, factors = {0};
  ek_tensor host;
  setup.reduction = EK_REDUCTION_NONE;
  struct ck_training t = ck_training_opened(&setup);
  for (int doubled = 0; doubled < 2; doubled++) {
    ek_criterion_backward_options options = EK_CRITERION_BACKWARD_OPTIONS_INIT;
    forward(&f, &t, &batch);
    ck_ok(ek_data_parallel_criterion_losses(&losses, t.loss));
    ck_ok(ek_tensor_host(&host, numbers, EK_F64, losses.parts[0].rank, shape));
    ck_ok(ek_gather_host(&host, &losses));
    ck_ok(ek_data_parallel_criterion_loss(&loss, NULL, t.loss));
    sum = 0;
    for (int64_t i = 0; i < rows; i++) sum += numbers[i];
    ck_assert_double_eq_tol(loss, sum, 1e-12 * sum);
    for (int64_t i = 0; i < rows; i++) numbers[i] = 2;
    if (doubled == 1) { /* in the order of the losses */
      int64_t sizes[DEVICES];
      for (size_t k = 0; k < DEVICES; k++) sizes[k] = losses.offsets[k + 1] - losses.offsets[k];
      const ek_scatter_options cut = {.size = sizeof cut, .kind = EK_SCATTER_SIZES, .sizes = sizes};
      ck_ok(ek_scatter(&factors, t.group, &host, EK_MEMORY_LOSS, &cut));
      options.factors = &factors;
    }
    ck_ok(ek_data_parallel_criterion_backward(t.loss, &options));
    gradients[doubled] = read_gradients(&t);
    ek_shards_free(&losses);
    ek_shards_free(&factors);
    drop(&f, &t);
  }
  for (int64_t i = 0; i < ck_count(gradients[0]); i++) gradients[0][i] *= 2;
  ck_assert_double_le(ck_arrays_off(gradients[1], gradients[0]), 1e-13);
}

/* ---- outputs ---- */

/* Outputs of device 0's part. */
static double *read_part(const struct forwarded *f) { return ck_got(&f->outputs[0].parts[0]); }

/* With keep_outputs they survive; without, they hold the gradient. Both give the same gradients. */
CK_PART_LOOP(outputs_are_kept_or_not, CASES) {
  double *gradients[2];
  struct ck_training t;
  for (int keep = 0; keep < 2; keep++) {
    struct ck_setup setup = setup_of(_i, EK_F32, "cpu:3");
    struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, SAMPLES, 0.3, 3);
    setup.keep_outputs = keep == 1;
    t = ck_training_opened(&setup);
    CK_SET_UP(struct forwarded, f, forward(&f, &t, &batch));
    const double *before = read_part(&f);
    ck_ok(ek_data_parallel_criterion_backward(t.loss, NULL));
    const double *after = read_part(&f);
    if (keep == 1) ck_arrays_same("output", after, before);
    if (keep == 0) ck_assert_double_gt(ck_arrays_off(after, before), 0.01);
    const ek_status again = ek_data_parallel_criterion_forward(
        t.loss, f.outputs, ek_module_outputs(t.module), batch.target, batch.targets);
    ck_assert_int_eq(again, keep == 1 ? EK_OK : EK_ERR_STATE);
    gradients[keep] = ck_training_read(&t, CK_GRADIENTS);
    drop(&f, &t);
    ck_training_close(&t);
  }
  ck_arrays_same("gradients", gradients[0], gradients[1]);
}

/* Outputs with another holder are not overwritten. */
CK_TEST(outputs_that_others_hold) {
  struct ck_training t = ck_training_of(setup_of(2, EK_F32, "cpu:3"));
  struct ck_batch batch = ck_batch_make(t.setup.workload, EK_F32, SAMPLES, 0, 4);
  CK_SET_UP(struct forwarded, f, forward(&f, &t, &batch));
  CK_GOT(ek_tensor, held, ek_tensor_share(&held, &f.outputs[0].parts[0]));
  const double *before = read_part(&f);
  ck_ok(ek_data_parallel_criterion_backward(t.loss, NULL));
  ck_arrays_same("held", read_part(&f), before);
  ek_tensor_free(&held);
  drop(&f, &t);
}

/*
 * Losses and gradients over two uneven micro-batches are the same whether the gradient of the
 * outputs is written in forward or in backward: the same formula, once with a scale that is 1 and
 * once with c D / D; 1e-12 leaves ten thousand roundings of f64. Cross-entropy does it in forward,
 * the workloads of several terms do not.
 */
CK_PART_LOOP(the_gradient_in_forward, CASES) {
  double *gradients[2], losses[2][2];
  struct ck_training t;
  for (int early = 0; early < 2; early++) {
    struct ck_setup setup = setup_of(_i, EK_F64, "cpu:3");
    setup.gradient_in_forward = early == 1;
    t = ck_training_opened(&setup);
    for (int micro = 0; micro < 2; micro++) { /* the second one leaves a device without rows */
      struct ck_batch batch =
          ck_batch_make(setup.workload, EK_F64, micro == 0 ? 7 : 2, 0.3, (uint64_t)(11 + micro));
      ck_ok(ck_training_backward(&t, &batch, NULL, micro == 0, &losses[early][micro]));
    }
    gradients[early] = ck_training_read(&t, CK_GRADIENTS);
    ck_training_close(&t);
  }
  for (int micro = 0; micro < 2; micro++) {
    ck_assert_double_eq_tol(losses[1][micro], losses[0][micro], 1e-12 * fabs(losses[0][micro]));
  }
  ck_assert_double_le(ck_arrays_off(gradients[1], gradients[0]), 1e-12);
}

/* Overwritten by forward where a backward is to follow, and by one only; not in evaluation. */
CK_PART_LOOP(when_forward_overwrites, CASES) {
  struct ck_setup setup = setup_of(_i, EK_F32, "cpu:3");
  struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, SAMPLES, 0.3, 9);
  const bool writes = setup.workload->ignores; /* cross-entropy */
  struct forwarded f;
  ek_forward_options evaluation = EK_FORWARD_OPTIONS_INIT;
  evaluation.gradient = evaluation.training = false;
  setup.gradient_in_forward = true;
  struct ck_training t = ck_training_opened(&setup);
  for (int trains = 0; trains < 2; trains++) {
    memset(&f, 0, sizeof f);
    ck_ok(ek_data_parallel_model_forward(f.outputs, t.model, batch.input, batch.inputs,
                                         trains ? NULL : &evaluation));
    const double *before = read_part(&f);
    ck_ok(ek_data_parallel_criterion_forward(t.loss, f.outputs, ek_module_outputs(t.module),
                                             batch.target, batch.targets));
    const double change = ck_arrays_off(read_part(&f), before);
    ck_assert_msg(trains && writes ? change > 0.01 : change == 0, "changed by %g", change);
    const ek_status again = ek_data_parallel_criterion_forward(
        t.loss, f.outputs, ek_module_outputs(t.module), batch.target, batch.targets);
    ck_assert_int_eq(again, trains ? EK_ERR_STATE : EK_OK);
    if (trains) ck_ok(ek_data_parallel_criterion_backward(t.loss, NULL));
    drop(&f, &t);
  }
}

/* Whatever allocation of a step fails, the parameters are those of before, and the next goes well.
 */
CK_PART_LOOP(a_failure_with_the_gradient_in_forward, 2 * CK_PLACEMENTS) {
  struct ck_setup setup = setup_of(_i, EK_F32, "cpu:3");
  struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, SAMPLES, 0.3, 10);
  ck_assign(setup, .gradient_in_forward = true, .optimizer = ck_clipped_adamw);
  struct ck_training t = ck_training_opened(&setup);
  ck_ok(ck_training_step(&t, &batch, NULL));
  const double *before = ck_training_read(&t, CK_VALUES);
  uint64_t n = 0;
  while (ck_device_fails(&n, ek_group_device(t.group, 1), ck_training_step(&t, &batch, NULL))) {
    ck_arrays_same("parameters", ck_training_read(&t, CK_VALUES), before);
  }
  ck_ok(ck_training_step(&t, &batch, NULL));
}

/* The totals are the same on every device, and are what the loss is made of. */
CK_PART_LOOP(totals_are_everywhere, CASES) {
  struct ck_training t = ck_training_of(setup_of(_i, EK_F32, "cpu:3"));
  struct ck_batch batch = ck_batch_make(t.setup.workload, EK_F32, SAMPLES, 0.3, 5);
  double loss = 0, weight = 0;
  CK_SET_UP(struct forwarded, f, forward(&f, &t, &batch));
  ck_ok(ek_data_parallel_criterion_loss(&loss, &weight, t.loss));
  const ek_tensor *totals = ek_data_parallel_criterion_totals(t.loss);
  for (size_t k = 0; k < DEVICES; k++) {
    double pair[2];
    ck_assert_ptr_eq(totals[k].device, ek_group_device(t.group, k));
    ck_get(pair, &totals[k]);
    ck_assert_double_eq(pair[0] / pair[1], loss);
    ck_assert_double_eq(pair[1], weight);
  }
  drop(&f, &t);
}

/* ---- wrong use ---- */

CK_LOOP(calls_out_of_order, CASES) {
  struct ck_training t = ck_training_of(setup_of(_i, EK_F32, "cpu:3"));
  struct ck_batch batch = ck_batch_make(t.setup.workload, EK_F32, SAMPLES, 0, 6);
  struct forwarded f, g;
  double loss = 0;
  ek_shards losses = {0};
  ck_fails(ek_data_parallel_criterion_loss(&loss, NULL, t.loss), EK_ERR_STATE, "no forward");
  ck_fails(ek_data_parallel_criterion_losses(&losses, t.loss), EK_ERR_STATE, "none");
  ck_fails(ek_data_parallel_criterion_backward(t.loss, NULL), EK_ERR_STATE,
           "no criterion forward has run");
  forward(&f, &t, &batch);
  ck_fails(ek_data_parallel_criterion_losses(&losses, t.loss), EK_ERR_STATE, "none");
  drop(&f, &t); /* another forward of the model: the criterion saw those of the first */
  memset(&g, 0, sizeof g);
  ck_ok(ek_data_parallel_model_forward(g.outputs, t.model, batch.input, batch.inputs, NULL));
  ck_fails(ek_data_parallel_criterion_backward(t.loss, NULL), EK_ERR_STATE,
           "not those of the model's last forward");
  drop(&g, &t);
  forward(&f, &t, &batch);
  ck_ok(ek_data_parallel_criterion_backward(t.loss, NULL));
  ck_fails(ek_data_parallel_criterion_backward(t.loss, NULL), EK_ERR_STATE, "has already run");
  ck_ok(ek_data_parallel_criterion_loss(&loss, NULL, t.loss)); /* still known */
  drop(&f, &t);
}

/* Mean and sum in one step: refused, and what the mean had added is kept. */
CK_PART_LOOP(mean_and_sum_do_not_mix, CASES) {
  struct ck_training t = ck_training_of(setup_of(_i, EK_F32, "cpu:3"));
  struct ck_batch batch = ck_batch_make(t.setup.workload, EK_F32, SAMPLES, 0, 7);
  struct ck_training other; /* the same model with another criterion */
  struct forwarded f;
  double *gradients[2];
  other = t;
  CK_GOT(ek_criterion *, sum, t.setup.workload->criterion(&sum, EK_REDUCTION_SUM));
  ck_ok(ek_data_parallel_criterion_open(&other.loss, t.model, sum, NULL));
  for (int refused = 0; refused < 2; refused++) {
    ck_ok(ck_training_backward(&t, &batch, NULL, true, NULL));
    forward(&f, &other, &batch);
    if (refused == 1) {
      ck_fails(ek_data_parallel_criterion_backward(other.loss, NULL), EK_ERR_STATE, "mean");
    }
    drop(&f, &t);
    ck_ok(ck_training_backward(&t, &batch, NULL, false, NULL));
    gradients[refused] = ck_training_read(&t, CK_GRADIENTS);
    ck_ok(ek_data_parallel_model_discard(t.model));
  }
  ck_arrays_same("kept", gradients[1], gradients[0]);
  ek_data_parallel_criterion_free(other.loss);
  ek_criterion_free(sum);
}

/* Bad targets: the forward fails, and what was accumulated is kept. */
CK_TEST(wrong_targets) {
  struct ck_training t = ck_training_of(setup_of(2, EK_F32, "cpu:3"));
  struct ck_batch batch = ck_batch_make(t.setup.workload, EK_F32, SAMPLES, 0, 8);
  ek_shards outputs[1] = {{0}}, none[1] = {{0}};
  ek_tensor absent = {0}, few = batch.target[0], scalar = batch.target[0];
  ek_tensor foreign = ck_upload(ck_device("cpu:1"), EK_I32, NULL, CK_SHAPE(SAMPLES));
  few.shape[0] = SAMPLES - 1;
  scalar.rank = 0;
  ck_ok(ck_training_backward(&t, &batch, NULL, true, NULL));
  ck_ok(ek_data_parallel_model_forward(outputs, t.model, batch.input, 1, NULL));
  const struct {
    const ek_tensor *target;
    ek_status status;
  } cases[] = {
      {&absent, EK_ERR_INVALID_ARGUMENT}, {&few, EK_ERR_SHAPE}, {&scalar, EK_ERR_SHAPE},
      {&foreign, EK_ERR_DEVICE}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    ck_assert_int_eq(ek_data_parallel_criterion_forward(t.loss, outputs, 1, cases[i].target, 1),
                     cases[i].status);
  }
  const ek_tensor *good = &batch.target[0];
  ck_invalid(ek_data_parallel_criterion_forward(t.loss, outputs, 2, good, 1),
             "1 outputs and 1 targets, not 2 and 1");
  ck_fails(ek_data_parallel_criterion_forward(t.loss, none, 1, good, 1), EK_ERR_DEVICE, "group");
  ck_ok(ek_data_parallel_criterion_forward(t.loss, outputs, 1, good, 1));
  ck_ok(ek_data_parallel_criterion_backward(t.loss, NULL));
  (void)ck_training_read(&t, CK_GRADIENTS); /* the step was not dropped */
  ek_shards_free(&outputs[0]);
}

CK_TEST(kept_and_overwritten) {
  struct ck_setup setup = setup_of(2, EK_F32, "cpu:3");
  struct ck_training t;
  ek_group *group = ck_open("cpu:3", 1);
  setup.keep_outputs = setup.gradient_in_forward = true;
  ck_invalid(ck_training_try(&t, &setup, group), "keep_outputs and gradient_in_forward");
}

CK_SUITE("data-parallel criterion")
