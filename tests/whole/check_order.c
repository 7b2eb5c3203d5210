/*
 * check_order.c - calls in an order that would give a wrong gradient are refused, each with its own
 * reason, and the right order goes on afterwards as if they had not been made.
 */
#include "ck_snapshot.h"

enum { SAMPLES = 7 };

struct bed {
  struct ck_training t;
  struct ck_batch batch[2];
  ek_shards out[2][CK_BATCH_TENSORS]; /* of a forward of each batch */
};

static void bed_open(struct bed *bed, const char *workload, ek_mode mode) {
  const struct ck_setup setup = ck_setup_mode(ck_workload(workload), "cpu:3", mode);
  memset(bed, 0, sizeof *bed);
  for (int i = 0; i < 2; i++) {
    bed->batch[i] = ck_batch_make(setup.workload, EK_F32, SAMPLES, 0, 40 + (uint64_t)i);
  }
  bed->t = ck_training_opened(&setup);
}

static void bed_drop(struct bed *bed, int i) {
  for (size_t j = 0; j < CK_BATCH_TENSORS; j++) ek_shards_free(&bed->out[i][j]);
}

/* Of a failure nothing is kept: what there was is. */
static ek_status forward(struct bed *bed, int i, const ek_forward_options *options) {
  EK_TRY(ek_data_parallel_model_forward(bed->out[i], bed->t.model, bed->batch[i].input,
                                        bed->batch[i].inputs, options));
  for (size_t j = 0; j < CK_BATCH_TENSORS; j++) ck_keep(bed->out[i][j]);
  return EK_OK;
}

static ek_status loss_forward(struct bed *bed, int i) {
  return ek_data_parallel_criterion_forward(bed->t.loss, bed->out[i],
                                            ek_module_outputs(bed->t.module), bed->batch[i].target,
                                            bed->batch[i].targets);
}

static ek_status loss_backward(struct bed *bed) {
  return ek_data_parallel_criterion_backward(bed->t.loss, NULL);
}

/* The gradient of batch 0, undisturbed; and whether it is what a disturbed bed gives now. */
static void same_as_undisturbed(struct bed *bed, const char *workload, ek_mode mode) {
  CK_SCENE(struct bed, fresh, bed_open(&fresh, workload, mode));
  ck_ok(ck_training_backward(&fresh.t, &fresh.batch[0], NULL, false, NULL));
  ck_ok(ck_training_backward(&bed->t, &bed->batch[0], NULL, false, NULL));
  ck_runs_agree(&bed->t, &fresh.t, CK_GRADIENTS, 0);
}

/* forward(A), forward(B), criterion(A's outputs), backward: B's pass would get A's gradient. */
CK_LOOP(outputs_of_an_earlier_forward, CK_MODES) {
  double loss[2] = {0, 0};
  CK_SET_UP(struct bed, bed, bed_open(&bed, "mlp", (ek_mode)_i));
  ck_ok(forward(&bed, 0, NULL));
  ck_ok(loss_forward(&bed, 0));
  ck_ok(ek_data_parallel_criterion_loss(&loss[0], NULL, bed.t.loss));
  ck_ok(forward(&bed, 1, NULL));
  ck_ok(loss_forward(&bed, 0)); /* the loss of A is what it was */
  ck_ok(ek_data_parallel_criterion_loss(&loss[1], NULL, bed.t.loss));
  ck_assert_double_eq(loss[0], loss[1]);
  ck_fails(loss_backward(&bed), EK_ERR_STATE, "not those of the model's last forward");
  ck_ok(loss_forward(&bed, 1)); /* nothing was lost: B goes on */
  ck_ok(loss_backward(&bed));
  ck_ok(ek_data_parallel_optimizer_step(NULL, bed.t.optimizer));
}

CK_LOOP(each_reason, CK_MODES) {
  CK_WITH(ek_forward_options, without, EK_FORWARD_OPTIONS_INIT, .gradient = false);
  CK_SET_UP(struct bed, bed, bed_open(&bed, "mlp", (ek_mode)_i));
  ck_fails(loss_backward(&bed), EK_ERR_STATE, "no criterion forward");
  ck_ok(forward(&bed, 0, &without));
  ck_ok(loss_forward(&bed, 0));
  ck_fails(loss_backward(&bed), EK_ERR_STATE, "without gradient");
  bed_drop(&bed, 0);
  ck_ok(forward(&bed, 0, NULL));
  ck_ok(loss_forward(&bed, 0));
  bed_drop(&bed, 0);
  ck_fails(loss_backward(&bed), EK_ERR_STATE, "freed or replaced");
  ck_ok(forward(&bed, 0, NULL));
  ck_ok(loss_forward(&bed, 0));
  ck_ok(ek_data_parallel_model_discard(bed.t.model));
  ck_fails(loss_backward(&bed), EK_ERR_STATE, "has already run, or was discarded");
  bed_drop(&bed, 0);
  ck_ok(forward(&bed, 0, NULL));
  ck_ok(loss_forward(&bed, 0));
  ck_ok(loss_backward(&bed));
  ck_fails(loss_backward(&bed), EK_ERR_STATE, "has already run");
  ck_fails(loss_forward(&bed, 0), EK_ERR_STATE, "output number 0 was overwritten");
  ck_ok(ek_data_parallel_model_discard(bed.t.model));
  bed_drop(&bed, 0);
  same_as_undisturbed(&bed, "mlp", (ek_mode)_i);
}

/* Another model of the same module, in the same group. */
CK_LOOP(outputs_of_another_model, CK_MODES) {
  CK_SET_UP(struct bed, bed, bed_open(&bed, "mlp", (ek_mode)_i));
  CK_GOT(struct ck_training, other, ck_training_try(&other, &bed.t.setup, bed.t.group));
  ck_ok(forward(&bed, 0, NULL));
  ck_ok(ek_data_parallel_model_forward(bed.out[1], other.model, bed.batch[1].input,
                                       bed.batch[1].inputs, NULL));
  ck_ok(ek_data_parallel_criterion_forward(other.loss, bed.out[0], 1, bed.batch[0].target, 1));
  ck_fails(ek_data_parallel_criterion_backward(other.loss, NULL), EK_ERR_STATE,
           "not those of the model's last forward");
  ck_fails(ek_data_parallel_model_backward(bed.t.model, bed.out[1], 1, NULL), EK_ERR_STATE,
           "gradient number 0");
  ck_training_free(&other);
  bed_drop(&bed, 0);
  bed_drop(&bed, 1);
  same_as_undisturbed(&bed, "mlp", (ek_mode)_i);
}

/* Two outputs of one shape in the wrong order: each would get the other's gradient. */
CK_LOOP(outputs_that_are_swapped, CK_MODES) {
  ek_shards keep;
  CK_SET_UP(struct bed, bed, bed_open(&bed, "mixer", (ek_mode)_i));
  ck_ok(forward(&bed, 0, NULL));
  ek_shards *out = bed.out[0];
  keep = out[0], out[0] = out[1], out[1] = keep;
  ck_invalid(loss_forward(&bed, 0), "is not output number 0");
  keep = out[0], out[0] = out[1], out[1] = keep;
  ck_ok(loss_forward(&bed, 0));
  keep = out[0], out[0] = out[1], out[1] = keep;
  ck_fails(loss_backward(&bed), EK_ERR_STATE, "freed or replaced");
  keep = out[0], out[0] = out[1], out[1] = keep;
  ck_ok(loss_backward(&bed));
}

/* Tensors that a program made itself have a loss and no backward. */
CK_TEST(outputs_of_ones_own) {
  CK_SET_UP(struct bed, bed, bed_open(&bed, "mlp", EK_MODE_REPLICATED));
  ck_ok(forward(&bed, 0, NULL));
  ek_shards *own = &bed.out[0][0];
  own->private_members.forward = 0;
  ck_ok(loss_forward(&bed, 0));
  CK_GOT(double, loss, ek_data_parallel_criterion_loss(&loss, NULL, bed.t.loss));
  ck_fails(loss_backward(&bed), EK_ERR_STATE, "do not come from a forward");
}

/* A forward that fails, early or late, leaves what `outputs` holds. */
CK_LOOP(a_failing_forward_leaves_outputs, CK_MODES) {
  ek_shards held[CK_BATCH_TENSORS];
  CK_SET_UP(struct bed, bed, bed_open(&bed, "mixer", (ek_mode)_i));
  ck_ok(forward(&bed, 0, NULL));
  memcpy(held, bed.out[0], sizeof held);
  uint64_t n = 0;
  while (ck_device_fails(&n, ek_group_device(bed.t.group, 1), forward(&bed, 0, NULL))) {
    ck_assert_mem_eq(held, bed.out[0], sizeof held);
  }
}

CK_SUITE("order")
