/*
 * check_prefetch.c - training whose next batch is sent ahead is the training that scatters inside
 * forward, bit for bit, in every placement; and shards that do not fit are refused without harm.
 */
#include "ck_training.h"

enum { STEPS = 3, SAMPLES = 11 };

/* A batch on its devices. */
struct sent {
  ek_shards inputs[CK_BATCH_TENSORS], targets[CK_BATCH_TENSORS];
};

static void forget(struct sent *sent) {
  for (size_t i = 0; i < CK_BATCH_TENSORS; i++) {
    ek_shards_free(&sent->inputs[i]);
    ek_shards_free(&sent->targets[i]);
  }
}

/* Where the outputs will be: with the inputs, or in mode gather all on one device. */
static ek_status send_targets(struct sent *sent, const struct ck_training *training,
                              const struct ck_batch *batch, const ek_shards *lead,
                              const ek_scatter_options *options) {
  for (size_t i = 0; i < batch->targets; i++) {
    if (training->setup.options.outputs == EK_OUTPUTS_STAY) {
      EK_TRY(ek_scatter_like(&sent->targets[i], lead, &batch->target[i], EK_MEMORY_INPUTS));
      continue;
    }
    int64_t sizes[CK_MAX_DEVICES] = {0};
    sizes[training->setup.options.output_device] = batch->target[i].shape[0];
    CK_WITH(ek_scatter_options, all, *options, .kind = EK_SCATTER_SIZES, .sizes = sizes);
    EK_TRY(
        ek_scatter(&sent->targets[i], training->group, &batch->target[i], EK_MEMORY_INPUTS, &all));
  }
  return EK_OK;
}

static ek_status send_batch(struct sent *sent, const struct ck_training *training,
                            const struct ck_batch *batch, bool ahead) {
  CK_WITH(ek_scatter_options, options, EK_SCATTER_OPTIONS_INIT, .ahead = ahead);
  const ek_shards *lead = NULL;
  memset(sent, 0, sizeof *sent);
  for (size_t i = 0; i < batch->inputs; i++) {
    if ((batch->broadcast >> i & 1) != 0) {
      EK_TRY(ek_scatter_broadcast(&sent->inputs[i], training->group, &batch->input[i],
                                  EK_MEMORY_INPUTS));
    } else {
      EK_TRY(ek_scatter(&sent->inputs[i], training->group, &batch->input[i], EK_MEMORY_INPUTS,
                        &options));
      lead = &sent->inputs[i];
    }
  }
  return send_targets(sent, training, batch, lead, &options);
}

static ek_status step_of(struct ck_training *training, struct sent *sent,
                         const struct ck_batch *batch, ek_step_result *result) {
  ek_shards outputs[CK_BATCH_TENSORS] = {{0}};
  const size_t count = ek_module_outputs(training->module);
  ek_status status = ek_data_parallel_model_forward_shards(outputs, training->model, sent->inputs,
                                                           batch->inputs, NULL);
  if (status == EK_OK) {
    status = ek_data_parallel_criterion_forward_shards(training->loss, outputs, count,
                                                       sent->targets, batch->targets);
  }
  forget(sent); /* what is still needed is held */
  if (status == EK_OK) status = ek_data_parallel_criterion_backward(training->loss, NULL);
  for (size_t i = 0; i < count; i++) ek_shards_free(&outputs[i]);
  if (status != EK_OK) return status;
  return ek_data_parallel_optimizer_step(result, training->optimizer);
}

static struct ck_setup setup_of(int number) {
  const struct ck_workload *workload = &ck_workloads[number / CK_PLACEMENTS];
  struct ck_setup setup = ck_setup_at(workload, test_devices("cpu:3"), number % CK_PLACEMENTS);
  setup.optimizer = ck_clipped_adamw;
  return setup;
}

static struct ck_batch batch_of(const struct ck_setup *setup, int step) {
  /* The last batch has fewer samples than there are devices. */
  return ck_batch_make(setup->workload, EK_F32, step == STEPS - 1 ? 2 : SAMPLES, 0.2,
                       (uint64_t)(90 + step));
}

/* The programs' own modules compute on the host, in memory that must be the host's. */
static bool on_host(void) { return strncmp(test_devices("cpu:3"), "cpu", 3) == 0; }

CK_LOOP(the_same_training, (on_host() ? CK_WORKLOADS : 2) * CK_PLACEMENTS) {
  const struct ck_setup setup = setup_of(_i);
  struct ck_training plain = ck_training_opened(&setup);
  CK_GOT(struct ck_training, early, ck_training_try(&early, &setup, plain.group));
  ek_step_result want[STEPS], got[STEPS];
  struct ck_batch batch[STEPS];
  for (int step = 0; step < STEPS; step++) {
    batch[step] = batch_of(&setup, step);
    ck_ok(ck_training_step(&plain, &batch[step], &want[step]));
  }
  struct sent now, next;
  ck_ok(send_batch(&now, &early, &batch[0], true));
  for (int step = 0; step < STEPS; step++) {
    memset(&next, 0, sizeof next);
    if (step + 1 < STEPS) ck_ok(send_batch(&next, &early, &batch[step + 1], step % 2 == 0));
    ck_ok(step_of(&early, &now, &batch[step], &got[step]));
    now = next;
  }
  for (int step = 0; step < STEPS; step++) {
    ck_same_bits("loss", &got[step].loss, &want[step].loss, 1);
    ck_same_bits("weight", &got[step].weight, &want[step].weight, 1);
  }
  ck_runs_agree(&early, &plain, CK_VALUES, 0);
}

/* A plan has the peak of the real thing, with two batches at a time, too. */
CK_LOOP(plan_has_the_same_peak, on_host() ? CK_WORKLOADS * CK_PLACEMENTS : 0) {
  struct ck_setup setup = setup_of(_i);
  ek_memory_usage usage[2];
  for (int planned = 0; planned < 2; planned++) {
    if (planned == 1) setup.spec = "plan:3";
    CK_HELD(struct ck_training, training, ck_training_opened(&setup));
    struct ck_batch batch = batch_of(&setup, 0);
    struct sent now, next;
    ck_ok(send_batch(&now, &training, &batch, true));
    for (int step = 0; step < 2; step++) {
      ck_ok(send_batch(&next, &training, &batch, true));
      ck_ok(step_of(&training, &now, &batch, NULL));
      now = next;
    }
    forget(&now);
    ck_ok(ek_memory_stats(&usage[planned], ek_group_device(training.group, 0)));
  }
  ck_assert_uint_eq(usage[0].peak_bytes, usage[1].peak_bytes);
}

/* ---- what does not fit ---- */

CK_TEST(wrong_inputs_are_refused) {
  struct ck_training training = ck_training_of(
      ck_setup_mode(ck_workload("mixer"), test_devices("cpu:3"), EK_MODE_REPLICATED));
  struct ck_batch batch = ck_batch_make(training.setup.workload, EK_F32, SAMPLES, 0, 5);
  CK_GOT(struct sent, sent, send_batch(&sent, &training, &batch, true));
  ek_data_parallel_model *model = training.model;
  ek_shards outputs[CK_BATCH_TENSORS] = {{0}}, inputs[2] = {sent.inputs[0], sent.inputs[1]};
  ek_scatter_options cut = EK_SCATTER_OPTIONS_INIT;
  ek_forward_options options = EK_FORWARD_OPTIONS_INIT;
#define REFUSED(wanted, text)                                                                      \
  ck_fails(ek_data_parallel_model_forward_shards(outputs, model, inputs, 2, &options), wanted, text)
  options.scatter = &cut;
  REFUSED(EK_ERR_INVALID_ARGUMENT, "already cut");
  options = (ek_forward_options)EK_FORWARD_OPTIONS_INIT;
  options.size++;
  REFUSED(EK_ERR_INVALID_ARGUMENT, "ek_forward_options.size");
  options.size--;
  ck_invalid(ek_data_parallel_model_forward_shards(outputs, NULL, inputs, 2, NULL), "NULL");
  ck_invalid(ek_data_parallel_model_forward_shards(outputs, model, NULL, 2, NULL), "NULL");
  ck_invalid(ek_data_parallel_model_forward_shards(outputs, model, inputs, 1, NULL),
             "takes 2 inputs");
  inputs[1].group = NULL;
  REFUSED(EK_ERR_DEVICE, "input number 1");
  inputs[1] = sent.inputs[1];
  inputs[1].broadcast = true;
  REFUSED(EK_ERR_INVALID_ARGUMENT, "is broadcast");
  inputs[1] = sent.inputs[1];
  const ek_tensor right = inputs[1].parts[0]; /* what is after a copy is the shards' own */
  inputs[1].parts[0] = inputs[1].parts[1];
  REFUSED(EK_ERR_DEVICE, "input number 1: its part number 0");
  inputs[1].parts[0] = right;
  inputs[1].offsets[1]--;
  REFUSED(EK_ERR_SHAPE, "rows of the cut");
  inputs[1].offsets[1]++;
  inputs[1].samples[1]--;
  REFUSED(EK_ERR_SHAPE, "cut differently");
  inputs[1].samples[1]++;
  CK_GOT(ek_shards, freed, ek_shards_create(&freed, training.group));
  inputs[1] = freed;
  ek_shards_free(&freed);
  REFUSED(EK_ERR_STATE, "freed through a copy");
  inputs[1] = sent.inputs[1];
  /* Nothing was lost by all this. */
  ck_ok(ek_data_parallel_model_forward_shards(outputs, model, inputs, 2, &options));
  for (size_t i = 0; i < CK_BATCH_TENSORS; i++) ek_shards_free(&outputs[i]);
  ck_ok(ek_data_parallel_model_discard(model));
  forget(&sent);
  ck_training_close(&training);
#undef REFUSED
}

CK_TEST(wrong_targets_are_refused) {
  struct ck_training training =
      ck_training_of(ck_setup_mode(ck_workload("gpt"), test_devices("cpu:3"), EK_MODE_REPLICATED));
  struct ck_batch batch = ck_batch_make(training.setup.workload, EK_F32, SAMPLES, 0, 5);
  CK_GOT(struct sent, sent, send_batch(&sent, &training, &batch, true));
  ek_shards outputs = {0}, target = sent.targets[0];
  ck_ok(ek_data_parallel_model_forward_shards(&outputs, training.model, sent.inputs, 1, NULL));
#define REFUSED(wanted, text)                                                                      \
  ck_fails(ek_data_parallel_criterion_forward_shards(training.loss, &outputs, 1, &target, 1),      \
           wanted, text)
  ck_invalid(ek_data_parallel_criterion_forward_shards(training.loss, &outputs, 1, NULL, 1),
             "NULL");
  ck_invalid(ek_data_parallel_criterion_forward_shards(training.loss, &outputs, 1, &target, 2),
             "targets");
  target.group = NULL;
  REFUSED(EK_ERR_DEVICE, "target number 0");
  target = sent.targets[0];
  target.broadcast = true;
  REFUSED(EK_ERR_SHAPE, "cut at the samples");
  target = sent.targets[0];
  target.offsets[1]++;
  REFUSED(EK_ERR_SHAPE, "cut at the samples");
  target.offsets[1]--;
  const ek_tensor right = target.parts[1]; /* what is after a copy is the shards' own */
  target.parts[1] = target.parts[0];
  REFUSED(EK_ERR_DEVICE, "target number 0: its part number 1");
  target.parts[1] = right;
  ck_ok(ek_data_parallel_criterion_forward_shards(training.loss, &outputs, 1, &target, 1));
  forget(&sent);
  ck_ok(ek_data_parallel_criterion_backward(training.loss, NULL));
  ek_shards_free(&outputs);
  ck_training_close(&training);
#undef REFUSED
}

/* Memory that runs out at any allocation of a step leaves the shards whole and the step to be
 * taken again. Steps of emulated GPUs are slow: every ninth there. */
CK_LOOP(out_of_memory_at_every_allocation, CK_PLACEMENTS) {
  struct ck_setup setup = setup_of(CK_PLACEMENTS + _i);
  struct ck_training training = ck_training_opened(&setup);
  struct ck_batch batch = batch_of(&setup, 0);
  ek_device *device = ek_group_device(training.group, 0);
  const uint64_t stride = strcmp(ek_device_backend(device), "cuda") == 0 ? 9 : 1;
  for (uint64_t n = 1;; n += stride) {
    struct sent sent;
    ck_assert_uint_lt(n, 10000);
    ck_ok(ek_memory_fail_at(device, n));
    ek_status status = send_batch(&sent, &training, &batch, n % 2 == 0);
    if (status == EK_OK) status = step_of(&training, &sent, &batch, NULL);
    forget(&sent);
    if (status == EK_OK) break;
    ck_assert_int_eq(status, EK_ERR_OUT_OF_MEMORY);
    ck_ok(send_batch(&sent, &training, &batch, n % 2 == 0));
    ck_ok(step_of(&training, &sent, &batch, NULL));
  }
  ck_ok(ek_memory_fail_at(device, 0));
}

CK_SUITE("prefetch")
