/*
 * check_deep.c - a model of 100,000 layers is planned in seconds.
 *
 * Everything that a step does once a layer (names, memory, saved tensors) must not look at all
 * other layers. The bound is processor time, seven times what it takes where nothing is in the way;
 * work that grows with the square of the layers takes hundreds of times as long.
 */
#include <stdlib.h>
#include <time.h>

#include <evenkeel/evenkeel.h>

#include "ck_training.h"

#if CK_ASAN || CK_TSAN
enum { LAYERS = 10000 };
#else
enum { LAYERS = 100000 };
#endif
enum { WIDTH = 8, ROWS = 2, MOST_SECONDS = 10 };

static double seconds(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static ek_status stack_of(ek_module **module, size_t layers) {
  ek_module **children = calloc(layers, sizeof *children);
  ck_assert_ptr_nonnull(children);
  ek_status status = EK_OK;
  for (size_t i = 0; i < layers && status == EK_OK; i++) {
    status = ek_linear_create(&children[i], WIDTH, WIDTH, true);
  }
  if (status == EK_OK) status = ek_sequential_create(module, children, layers);
  for (size_t i = 0; i < layers; i++) ek_module_free(children[i]);
  free(children);
  return status;
}

/* The peak of device 0 over two steps. */
static uint64_t plan(size_t layers, ek_mode mode) {
  ek_group *group = ck_open_exactly("plan:2", 1);
  ek_module *module = NULL;
  ek_criterion *criterion = NULL;
  ek_optimizer *rule = NULL;
  ek_data_parallel_model *model = NULL;
  ek_data_parallel_criterion *loss = NULL;
  ek_data_parallel_optimizer *optimizer = NULL;
  const struct ck_setup setup = ck_setup_mode(ck_workload("mlp"), "plan:2", mode);
  ck_ok(stack_of(&module, layers));
  ck_ok(ek_mean_squared_error_create(&criterion, EK_REDUCTION_MEAN));
  ck_ok(ek_adamw_create(&rule, NULL));
  ck_ok(ek_data_parallel_model_open(&model, group, module, &setup.options));
  ck_ok(ek_data_parallel_criterion_open(&loss, model, criterion, NULL));
  ck_ok(ek_data_parallel_optimizer_open(&optimizer, model, rule, NULL));
  float zeros[ROWS * WIDTH] = {0};
  ek_tensor batch;
  ck_ok(ek_tensor_host(&batch, zeros, EK_F32, 2, (const int64_t[]){ROWS, WIDTH}));
  for (int i = 0; i < 2; i++) {
    ek_shards outputs;
    ek_step_result result;
    ck_ok(ek_data_parallel_model_forward(&outputs, model, &batch, 1, NULL));
    ck_ok(ek_data_parallel_criterion_forward(loss, &outputs, 1, &batch, 1));
    ck_ok(ek_data_parallel_criterion_backward(loss, NULL));
    ck_ok(ek_data_parallel_optimizer_step(&result, optimizer));
    ek_shards_free(&outputs);
  }
  ek_memory_usage usage;
  ck_ok(ek_memory_stats(&usage, ek_group_device(group, 0)));
  ek_data_parallel_optimizer_free(optimizer);
  ek_data_parallel_criterion_free(loss);
  ek_data_parallel_model_free(model);
  ek_optimizer_free(rule);
  ek_criterion_free(criterion);
  ek_module_free(module);
  ck_ok(ek_group_close(group));
  return usage.peak_bytes;
}

CK_LOOP(a_deep_model_is_planned_in_seconds, 2) {
  const ek_mode mode = _i == 0 ? EK_MODE_GATHER : EK_MODE_SHARDED;
  const uint64_t one = plan(LAYERS / 10, mode), two = plan(LAYERS / 5, mode);
  const double start = seconds();
  const uint64_t ten = plan(LAYERS, mode);
  const double spent = seconds() - start;
  ck_assert_msg(spent < MOST_SECONDS, "%d layers took %.1f s", (int)LAYERS, spent);
  /* Each further layer costs the same. */
  ck_assert_uint_eq(ten - two, 8 * (two - one));
}

CK_SUITE("deep")
