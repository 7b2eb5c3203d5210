/*
 * check_world.c - one process among several: samples, masks and memory count over the world.
 *
 * There is one process here. What several would do is asked of groups that state their place in a
 * world (`plan`), and of models that each take a part of one batch.
 */
#include "ck_training.h"

static ek_group *open_place(const char *spec, size_t first_rank, size_t world_size) {
  CK_WITH(ek_group_options, options, EK_GROUP_OPTIONS_INIT, .first_rank = first_rank,
          .world_size = world_size);
  CK_GOT(ek_group *, group, ek_group_open(&group, spec, &options));
  return ck_keep(group);
}

/* ---- ranks ---- */

static void has_ranks(ek_group *group, size_t first_rank, size_t world_size) {
  CK_GOT(ek_communicator *, communicator, ek_communicator_open(&communicator, group));
  ck_assert_uint_eq(ek_communicator_first_rank(communicator), first_rank);
  ck_assert_uint_eq(ek_communicator_world_size(communicator), world_size);
  ek_communicator_free(communicator);
  ck_ok(ek_group_close(group));
}

CK_TEST(places_in_a_world) {
  ek_group *group = NULL;
  has_ranks(ck_open("cpu:3", 1), 0, 3);
  has_ranks(open_place("plan:2", 0, 0), 0, 2);
  has_ranks(open_place("plan:2", 6, 8), 6, 8);
  has_ranks(open_place("plan:2", 0, 100000), 0, 100000);
  has_ranks(open_place("cpu:2", 0, 2), 0, 2);
  ck_assert_uint_eq(ek_communicator_first_rank(NULL), 0);
  ck_assert_uint_eq(ek_communicator_world_size(NULL), 0);
  CK_WITH(ek_group_options, options, EK_GROUP_OPTIONS_INIT, .world_size = 4);
  ck_invalid(ek_group_open(&group, "cpu:2", &options),
             "a world of 4 devices, of which this process has 2, needs options.world");
  ck_bad(options, first_rank, 3, ek_group_open(&group, "plan:2", &options),
         "2 devices from rank 3 on in a world of 4");
  ck_bad(options, first_rank, SIZE_MAX, ek_group_open(&group, "plan:2", &options), "world of 4");
  options.world_size = 1;
  ck_bad(options, first_rank, 0, ek_group_open(&group, "plan:2", &options), "world of 1");
  options.world_size = 0;
  ck_bad(options, first_rank, 1, ek_group_open(&group, "cpu:2", &options), "world of 2");
  ck_assert_ptr_null(group);
}

/* Roots and offsets are those of the world, also where no device of the group has them. */
CK_TEST(collectives_count_ranks) {
  ek_group *group = open_place("plan:2", 2, 6);
  ek_device *device = ek_group_device(group, 0);
  ek_tensor tensor = ck_upload(device, EK_F32, NULL, CK_SHAPE(12));
  const int64_t offsets[] = {0, 2, 4, 6, 8, 10, 12}, few[] = {0, 6, 12, 12, 12, 12, 11};
  CK_OPENED(ek_communicator *, c, ek_communicator_open(&c, group));
  ck_ok(ek_communicator_broadcast(c, device, &tensor, 5));
  ck_ok(ek_communicator_reduce(c, device, &tensor, 0));
  ck_invalid(ek_communicator_reduce(c, device, &tensor, 6), "no rank 6");
  ck_ok(ek_communicator_reduce_scatter(c, device, &tensor, offsets));
  ck_ok(ek_communicator_all_gather(c, device, &tensor, offsets));
  ck_invalid(ek_communicator_all_gather(c, device, &tensor, few), "12");
}

/* ---- samples ---- */

enum { WIDTH = 16, MOST = 9 };

/* A model that only drops: what it gives shows its masks. */
struct dropper {
  ek_group *group;
  ek_data_parallel_model *model;
};

static struct dropper open_dropper(const char *spec, ek_module *module) {
  struct dropper it = {.group = ck_open(spec, 1)};
  CK_WITH(ek_data_parallel_model_options, options, EK_DATA_PARALLEL_MODEL_OPTIONS_INIT, .seed = 77);
  ck_kept(ek_data_parallel_model_open(&it.model, it.group, module, &options), it.model);
  return it;
}

/* One micro-batch of ones: samples first .. first + samples - 1 of `all`. */
static void drop(struct dropper *it, float *out, int64_t first, int64_t samples, int64_t all) {
  float ones[MOST * WIDTH];
  ek_forward_options forward = EK_FORWARD_OPTIONS_INIT;
  for (int i = 0; i < MOST * WIDTH; i++) ones[i] = 1;
  CK_GOT(ek_tensor, x, ek_tensor_host(&x, ones, EK_F32, CK_SHAPE(samples, WIDTH)));
  CK_GOT(ek_tensor, y, ek_tensor_host(&y, out, EK_F32, CK_SHAPE(samples, WIDTH)));
  ck_assign(forward, .first_sample = first, .batch_samples = all);
  CK_WITH(ek_backward_options, backward, EK_BACKWARD_OPTIONS_INIT, .accumulate = true);
  CK_SCOPED(ek_shards, outputs,
            ek_data_parallel_model_forward(&outputs, it->model, &x, 1, &forward));
  ck_ok(ek_gather_host(&y, &outputs));
  ck_ok(ek_data_parallel_model_backward(it->model, &outputs, 1, &backward));
}

/* Two models that take a part of each micro-batch have the masks of one that takes them whole. */
CK_TEST(masks_are_those_of_the_batch) {
  static const int64_t batches[][2] = {{4, 2}, {3, 6}, {0, 5}}; /* samples of each model */
  CK_OPENED(ek_module *, module, ek_dropout_create(&module, 0.5));
  struct dropper whole = open_dropper("cpu:3", module), parts[2];
  parts[0] = open_dropper("cpu:2", module);
  parts[1] = open_dropper("cpu:1", module);
  for (size_t i = 0; i < 3; i++) {
    float want[MOST * WIDTH], got[MOST * WIDTH];
    const int64_t first = batches[i][0], all = first + batches[i][1];
    int dropped = 0;
    drop(&whole, want, 0, all, 0);
    drop(&parts[0], got, 0, first, all);
    drop(&parts[1], got + first * WIDTH, first, all - first, all);
    ck_assert_mem_eq(got, want, (size_t)(all * WIDTH) * sizeof *got);
    for (int64_t k = 0; k < all * WIDTH; k++) dropped += want[k] == 0;
    ck_assert_int_gt(dropped, 0);
    ck_assert_int_lt(dropped, (int)all * WIDTH);
  }
}

CK_TEST(wrong_places_are_refused) {
  static const struct {
    int64_t first, all;
    ek_status status;
  } wrong[] = {{1, 0, EK_ERR_INVALID_ARGUMENT},  {-1, 9, EK_ERR_INVALID_ARGUMENT},
               {7, 9, EK_ERR_INVALID_ARGUMENT},  {0, 2, EK_ERR_INVALID_ARGUMENT},
               {0, -5, EK_ERR_INVALID_ARGUMENT}, {INT64_MAX, 9, EK_ERR_INVALID_ARGUMENT},
               {0, INT64_MAX, EK_ERR_OVERFLOW}};
  float ones[3 * WIDTH] = {0};
  ek_shards outputs = {0};
  CK_OPENED(ek_module *, module, ek_dropout_create(&module, 0.5));
  struct dropper it = open_dropper("cpu:2", module);
  drop(&it, ones, 0, 3, 0); /* the step has samples before these */
  CK_GOT(ek_tensor, x, ek_tensor_host(&x, ones, EK_F32, CK_SHAPE(3, WIDTH)));
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    CK_WITH(ek_forward_options, options, EK_FORWARD_OPTIONS_INIT, .first_sample = wrong[i].first,
            .batch_samples = wrong[i].all);
    ck_assert_int_eq(ek_data_parallel_model_forward(&outputs, it.model, &x, 1, &options),
                     wrong[i].status);
    ck_assert_ptr_null(outputs.group);
  }
  drop(&it, ones, 6, 3, 9); /* nothing was lost */
}

/* ---- memory ---- */

/* Bytes on each device for what goes to other processes and comes from them. */
static uint64_t buffers_of(ek_group *group) {
  CK_SCOPED(ek_communicator *, communicator, ek_communicator_open(&communicator, group));
  return ck_usage(ek_group_device(group, 0)).current[EK_MEMORY_COMMUNICATION];
}

/* What one process of four takes is what its devices take where one process has them all, and the
 * buffers: two chunks of 1 MiB in a process at most. */
CK_LOOP(memory_of_one_process, 6) {
  enum { WORLD = 8, DEVICES = 2, PER_DEVICE = 3 };
  const char *const names[] = {"gpt", "mlp"};
  struct ck_setup setup = ck_setup_at(ck_workload(names[_i % 2]), "", 1 + _i / 2);
  setup.optimizer = ck_clipped_adamw;
  struct ck_training whole, part;
  struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, WORLD * PER_DEVICE, 0, 1);
  struct ck_batch few = ck_batch_make(setup.workload, EK_F32, DEVICES * PER_DEVICE, 0, 1);
  ek_group *all = open_place("plan:8", 0, 0);
  ck_ok(ck_training_try(&whole, &setup, all));
  for (size_t first = 0; first < WORLD; first += DEVICES) {
    ek_group *group = open_place("plan:2", first, WORLD);
    const uint64_t buffers = buffers_of(group);
    ck_assert_uint_gt(buffers, 0);
    ck_assert_uint_le(DEVICES * buffers, 2 << 20);
    ck_ok(ck_training_try(&part, &setup, group));
    for (int step = 0; step < 2; step++) {
      if (first == 0) ck_ok(ck_training_step(&whole, &batch, NULL));
      ck_ok(ck_training_step(&part, &few, NULL));
    }
    for (size_t k = 0; k < DEVICES; k++) {
      CK_GOT(ek_memory_usage, want, ck_memory_stats(&want, ek_group_device(all, first + k)));
      CK_GOT(ek_memory_usage, got, ck_memory_stats(&got, ek_group_device(group, k)));
      want.peak_bytes += buffers;
      want.at_peak[EK_MEMORY_COMMUNICATION] += buffers;
      want.current[EK_MEMORY_COMMUNICATION] += buffers;
      ck_assert_uint_eq(got.peak_bytes, want.peak_bytes);
      ck_assert_mem_eq(got.at_peak, want.at_peak, sizeof got.at_peak);
      ck_assert_mem_eq(got.current, want.current, sizeof got.current);
    }
    ck_training_close(&part);
    ck_ok(ek_group_close(group));
  }
}

CK_SUITE("world")
