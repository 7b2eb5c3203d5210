/*
 * check_deep.c - a model of 100,000 layers is planned in seconds.
 *
 * Everything that a step does once a layer (names, memory, saved tensors) must not look at all
 * other layers. The bound is processor time, seven times what it takes where nothing is in the way;
 * work that grows with the square of the layers takes hundreds of times as long.
 */
#include <time.h>

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

static ek_module *stack_of(size_t layers) {
  ek_module **children = ck_array(layers, sizeof *children);
  for (size_t i = 0; i < layers; i++) children[i] = ck_linear(WIDTH, WIDTH, true);
  CK_GOT(ek_module *, module, ck_sequential(&module, children, layers, NULL));
  ck_drop(children);
  return module;
}

/* The peak of device 0 over two steps. */
static uint64_t plan(size_t layers, ek_mode mode) {
  ek_group *group = ck_open_exactly("plan:2", 1);
  struct ck_batch batch = {.samples = ROWS, .inputs = 1, .targets = 1};
  float zeros[ROWS * WIDTH] = {0};
  CK_GOT(ek_criterion *, loss, ek_mean_squared_error_create(&loss, EK_REDUCTION_MEAN));
  struct ck_setup setup = ck_setup_own(stack_of(layers), loss, NULL, mode);
  setup.options.bucket_bytes = 256;
  ck_ok(ek_tensor_host(&batch.input[0], zeros, EK_F32, 2, (const int64_t[]){ROWS, WIDTH}));
  batch.target[0] = batch.input[0];
  CK_GOT(struct ck_training, t, ck_training_try(&t, &setup, group));
  for (int i = 0; i < 2; i++) ck_ok(ck_training_step(&t, &batch, NULL));
  CK_GOT(ek_memory_usage, usage, ek_memory_stats(&usage, ek_group_device(group, 0)));
  ck_training_close(&t);
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
