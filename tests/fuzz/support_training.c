/*
 * support_training.c - see fuzz_training.h.
 */
#include "fuzz_training.h"

#include <stdlib.h>
#include <string.h>

struct fuzz_setup fuzz_setup(struct fuzz_input *input) {
  struct fuzz_setup setup = {.model = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT,
                             .criterion = EK_DATA_PARALLEL_CRITERION_OPTIONS_INIT,
                             .optimizer = EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT};
  FUZZ_OK(ek_data_parallel_model_options_set_mode(&setup.model, (ek_mode)fuzz_choice(input, 4)));
  setup.model.seed = 7;
  setup.model.type = fuzz_one_in(input, 4) ? EK_F64 : EK_F32;
  setup.model.bucket_bytes = fuzz_one_in(input, 2) ? 256 : 4u << 20;
  const int gradient = fuzz_choice(input, 3);
  setup.criterion.keep_outputs = gradient == 1;
  setup.criterion.gradient_in_forward = gradient == 2;
  const int look = fuzz_choice(input, 3);
  setup.optimizer.gradient_norm = look != 1;
  setup.optimizer.refuse_not_finite = look == 2;
  return setup;
}

static void close_parallel(struct fuzz_training *training) {
  ek_data_parallel_optimizer_free(training->optimizer);
  ek_data_parallel_criterion_free(training->loss);
  ek_data_parallel_model_free(training->model);
  training->optimizer = NULL;
  training->loss = NULL;
  training->model = NULL;
}

ek_status fuzz_training_open(struct fuzz_training *training, const struct fuzz_setup *setup) {
  ek_status status = EK_OK;
  EK_TRY_GOTO(status,
              ek_data_parallel_model_open(&training->model, training->group, training->module,
                                          &setup->model),
              cleanup);
  EK_TRY_GOTO(status,
              ek_data_parallel_criterion_open(&training->loss, training->model, training->criterion,
                                              &setup->criterion),
              cleanup);
  EK_TRY_GOTO(status,
              ek_data_parallel_optimizer_open(&training->optimizer, training->model, training->rule,
                                              &setup->optimizer),
              cleanup);
  return EK_OK;
cleanup:
  close_parallel(training);
  return status;
}

void fuzz_training_close(struct fuzz_training *training) {
  close_parallel(training);
  ek_optimizer_free(training->rule);
  ek_criterion_free(training->criterion);
  ek_module_free(training->module);
  training->rule = NULL;
  training->criterion = NULL;
  training->module = NULL;
}

static ek_status run_batch(struct fuzz_training *training, const struct fuzz_batch *batch,
                           bool accumulate) {
  ek_shards outputs[FUZZ_BATCH_TENSORS] = {{0}};
  const size_t count = ek_module_outputs(training->module);
  ek_forward_options forward = EK_FORWARD_OPTIONS_INIT;
  ek_criterion_backward_options backward = EK_CRITERION_BACKWARD_OPTIONS_INIT;
  forward.scatter = batch->scatter;
  backward.accumulate = accumulate;
  ek_status status = EK_OK;
  EK_TRY_GOTO(status,
              ek_data_parallel_model_forward(outputs, training->model, batch->input, batch->inputs,
                                             &forward),
              cleanup);
  EK_TRY_GOTO(status,
              ek_data_parallel_criterion_forward(training->loss, outputs, count, batch->target,
                                                 batch->targets),
              cleanup);
  EK_TRY_GOTO(status, ek_data_parallel_criterion_backward(training->loss, &backward), cleanup);
cleanup:
  for (size_t i = 0; i < count; i++) ek_shards_free(&outputs[i]);
  return status;
}

ek_status fuzz_training_step(struct fuzz_training *training, const struct fuzz_batch *batch,
                             size_t count, ek_step_result *result) {
  for (size_t i = 0; i < count; i++) EK_TRY(run_batch(training, &batch[i], i + 1 < count));
  return ek_data_parallel_optimizer_step(result, training->optimizer);
}

unsigned char *fuzz_training_state(const struct fuzz_training *training, size_t *size) {
  unsigned char *bytes = NULL;
  *size = 0;
  for (size_t i = 0; i < ek_state_count(training->model); i++) {
    ek_state_info info;
    FUZZ_OK(ek_state_entry(&info, training->model, i));
    ek_tensor host = info.like;
    const size_t more = ek_tensor_bytes(&host);
    bytes = realloc(bytes, *size + more + 1);
    FUZZ_EXPECT(bytes != NULL, "the harness has no memory");
    memset(bytes + *size, 0, more);
    host.data = bytes + *size;
    FUZZ_OK(ek_state_read(&host, training->model, info.name));
    *size += more;
  }
  return bytes;
}
