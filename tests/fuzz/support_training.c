/*
 * support_training.c - see fuzz_training.h.
 */
#include "fuzz_training.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- devices ---- */

enum { MOST_GROUPS = 32 };

static struct {
  ek_group *group;
  int threads;
} kept[MOST_GROUPS];
static size_t kept_count;

static void close_groups(void) {
  while (kept_count > 0) FUZZ_OK(ek_group_close(kept[--kept_count].group));
}

ek_group *fuzz_group(const char *spec, int threads) {
  for (size_t i = 0; i < kept_count; i++) {
    if (kept[i].threads == threads && strcmp(ek_group_spec(kept[i].group), spec) == 0) {
      return kept[i].group;
    }
  }
  if (kept_count == 0) atexit(close_groups);
  FUZZ_EXPECT(kept_count < MOST_GROUPS, "too many groups are kept");
  ek_group_options options = EK_GROUP_OPTIONS_INIT;
  options.threads_per_device = threads;
  FUZZ_OK(ek_group_open(&kept[kept_count].group, spec, &options));
  kept[kept_count].threads = threads;
  return kept[kept_count++].group;
}

ek_group *fuzz_devices(const char *backend, size_t count) {
  char spec[16];
  snprintf(spec, sizeof spec, "%s:%zu", backend, count);
  ek_group *group = fuzz_group(spec, 1);
  for (size_t i = 0; i < count; i++) FUZZ_OK(ek_memory_reset_peak(ek_group_device(group, i)));
  return group;
}

ek_memory_usage fuzz_memory(const ek_group *group, size_t device) {
  ek_memory_usage usage;
  FUZZ_OK(ek_memory_stats(&usage, ek_group_device(group, device)));
  return usage;
}

void fuzz_expect_nothing_held(const ek_group *group) {
  for (size_t i = 0; i < ek_group_size(group); i++) {
    const ek_memory_usage usage = fuzz_memory(group, i);
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++) {
      FUZZ_EXPECT(usage.current[c] == 0, "%s holds %llu bytes of %s",
                  ek_device_name(ek_group_device(group, i)), (unsigned long long)usage.current[c],
                  ek_memory_category_name((ek_memory_category)c));
    }
  }
}

void fuzz_expect_explained(ek_status status) {
  FUZZ_EXPECT(strcmp(ek_status_name(status), "EK_ERR_UNKNOWN") != 0, "a status of %d", (int)status);
  FUZZ_EXPECT(status == EK_OK || ek_error_message()[0] != '\0', "%s without a message",
              ek_status_name(status));
  FUZZ_EXPECT(status != EK_ERR_INTERNAL, "%s", ek_error_message());
}

/* ---- a training ---- */

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

static ek_status open_parallel(struct fuzz_training *t, const struct fuzz_setup *setup) {
  EK_TRY(ek_data_parallel_model_open(&t->model, t->group, t->module, &setup->model));
  EK_TRY(ek_data_parallel_criterion_open(&t->loss, t->model, t->criterion, &setup->criterion));
  return ek_data_parallel_optimizer_open(&t->optimizer, t->model, t->rule, &setup->optimizer);
}

ek_status fuzz_training_open(struct fuzz_training *training, const struct fuzz_setup *setup) {
  const ek_status status = open_parallel(training, setup);
  if (status != EK_OK) close_parallel(training);
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

static ek_status run_batch(ek_shards *outputs, struct fuzz_training *t,
                           const struct fuzz_batch *batch, bool accumulate) {
  ek_forward_options forward = EK_FORWARD_OPTIONS_INIT;
  ek_criterion_backward_options backward = EK_CRITERION_BACKWARD_OPTIONS_INIT;
  forward.scatter = batch->scatter;
  backward.accumulate = accumulate;
  EK_TRY(ek_data_parallel_model_forward(outputs, t->model, batch->input, batch->inputs, &forward));
  EK_TRY(ek_data_parallel_criterion_forward(t->loss, outputs, ek_module_outputs(t->module),
                                            batch->target, batch->targets));
  return ek_data_parallel_criterion_backward(t->loss, &backward);
}

ek_status fuzz_training_step(struct fuzz_training *training, const struct fuzz_batch *batch,
                             size_t count, ek_step_result *result) {
  for (size_t i = 0; i < count; i++) {
    ek_shards outputs[FUZZ_BATCH_TENSORS] = {{0}};
    const ek_status status = run_batch(outputs, training, &batch[i], i + 1 < count);
    for (size_t k = 0; k < FUZZ_BATCH_TENSORS; k++) ek_shards_free(&outputs[k]);
    EK_TRY(status);
  }
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
