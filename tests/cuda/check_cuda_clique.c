/*
 * check_cuda_clique.c - NCCL's communicators, and threads that wait for each other by way of the
 * GPUs: no two threads are in one communicator, loading code does not stop a step, and whoever is
 * stuck in a call of CUDA comes back after the time limit.
 *
 * Runs on tests/cuemu: see CMakeLists.txt here.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "ck_emulated.h"
#include "ck_gpt.h"
#include "ck_processes.h"
#include "ck_training.h"
#include "cuda_runtime_api.h"

enum { DEVICES = 2, COUNT = 100 };

/* ---- two GPUs, a communicator, and a tensor of ones on each ---- */

struct pair {
  ek_group *group;
  ek_communicator *communicator;
  ek_tensor ones[DEVICES];
  int test;
  atomic_int stage; /* of what the devices do one after the other */
};

static void fill(ek_tensor *tensor, double value) {
  ck_ok(ek_op_fill(ek_device_stream(tensor->device, EK_STREAM_COMPUTE), tensor, value));
}

/* A tensor of ones on a device. */
static ek_tensor ones_on(ek_device *device) {
  ek_tensor ones = ck_upload(device, EK_F32, NULL, CK_SHAPE(COUNT));
  fill(&ones, 1);
  return ones;
}

static void open_pair(struct pair *pair, double time_limit) {
  memset(pair, 0, sizeof *pair);
  pair->group = ck_open_limited("cuda:0-1@48MiB", time_limit);
  ck_kept(ek_communicator_open(&pair->communicator, pair->group), pair->communicator);
  ck_assert_str_eq(ek_communicator_name(pair->communicator), "nccl");
  ck_assert_int_eq(cuemu_nccl_most_ctas(), 16);
  for (size_t k = 0; k < DEVICES; k++) pair->ones[k] = ones_on(ek_group_device(pair->group, k));
  ck_ok(ek_group_synchronize(pair->group));
}

/* Nothing is asserted on a worker. */
static void come_to(struct pair *pair, int stage) { atomic_store(&pair->stage, stage); }

static void wait_for(struct pair *pair, int stage) {
  while (atomic_load(&pair->stage) < stage) usleep(100);
}

static ek_status add_up(struct pair *pair, ek_device *device, size_t index) {
  return ek_communicator_all_reduce(pair->communicator, device, &pair->ones[index]);
}

CK_JOB(once) {
  struct pair *pair = context;
  EK_TRY(add_up(pair, device, index));
  return ek_communicator_wait(pair->communicator, device);
}

/* A time limit that only a wait in vain reaches: on a busy machine opening NCCL alone may take
 * longer than the 0.3 seconds that are plenty otherwise. */
static double choose_limit(void) {
  struct pair pair;
  const size_t mark = ck_mark();
  const double before = ck_now();
  open_pair(&pair, 60);
  ck_ok(ek_group_apply(pair.group, once, &pair));
  ck_release(mark);
  const double took = ck_now() - before;
  return took < 0.03 ? 0.3 : 10 * took;
}

static void says_limit(double limit) {
  const char *text = ck_text("%g seconds", limit);
  ck_assert_msg(ck_contains(ek_error_message(), text), "%s: %s", text, ek_error_message());
}

/* ---- one thread at a time ---- */

CK_JOB(many) {
  for (int i = 0; i < 20; i++) EK_TRY(once(context, device, index));
  return EK_OK;
}

static void *wait_for_stream(void *raw) {
  static ek_status status;
  status = ek_stream_synchronize(raw);
  return &status;
}

/* A thread that waits for a GPU asks the communicators now and then whether there was an error. */
CK_TEST(one_thread_in_a_communicator) {
  struct pair pair;
  pthread_t thread;
  void *status = NULL;
  ck_emulate(nccl_call_us, 200);
  open_pair(&pair, 60);
  ek_stream *stream = ek_device_stream(ek_group_device(pair.group, 0), EK_STREAM_COMPUTE);
  cuemu_hang(0, CUEMU_KERNEL, 1);
  ck_ok(ek_op_fill(stream, &pair.ones[0], 1));
  ck_assert_int_eq(pthread_create(&thread, NULL, wait_for_stream, stream), 0);
  usleep(10000);
  ck_ok(ek_group_apply(pair.group, many, &pair));
  cuemu_release();
  pthread_join(thread, &status);
  ck_assert_int_eq(*(ek_status *)status, EK_OK);
  ck_assert_uint_eq(cuemu_counted(CUEMU_NCCL_OVERLAPS), 0);
}

/* ---- loading ---- */

/* A product of a shape that is used for the first time in this process. */
static ek_status new_product(ek_device *device, int64_t side) {
  ek_stream *stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  ek_tensor c = {0}, a = {0};
  const int64_t shape[] = {side, side};
  ek_status status = ek_tensor_create(&c, device, EK_MEMORY_INPUTS, EK_F32, 2, shape);
  if (status == EK_OK) status = ek_tensor_create(&a, device, EK_MEMORY_INPUTS, EK_F32, 2, shape);
  if (status == EK_OK) status = ek_op_fill(stream, &a, 1);
  if (status == EK_OK) status = ek_op_matmul(stream, &c, &a, false, &a, false, 0);
  ek_tensor_free(&c);
  ek_tensor_free(&a);
  return status;
}

/* Device 0 has queued its part of a collective and loads code; device 1 has arrived at it, but has
 * not queued its part, and loads code. */
CK_JOB(load_in_the_middle) {
  struct pair *pair = context;
  if (index == 0) {
    wait_for(pair, 1);
    EK_TRY(add_up(pair, device, index));
    EK_TRY(ek_communicator_progress(pair->communicator, device));
    come_to(pair, 2);
    EK_TRY(new_product(device, 37));
  } else {
    EK_TRY(add_up(pair, device, index));
    come_to(pair, 1);
    wait_for(pair, 2);
    usleep(20000);
    EK_TRY(new_product(device, 37));
  }
  return ek_communicator_wait(pair->communicator, device);
}

CK_TEST(loading_waits_for_no_peer) {
  struct pair pair;
  ck_emulate(load_drains, true);
  open_pair(&pair, 5);
  ck_ok(ek_group_apply(pair.group, load_in_the_middle, &pair));
  ck_ok(ek_group_synchronize(pair.group));
  for (size_t k = 0; k < DEVICES; k++) {
    ck_assert_double_eq(ck_got(&pair.ones[k])[COUNT - 1], DEVICES);
  }
}

/* ---- stuck ---- */

/* Device 0 is ahead by a collective, and its call of CUDA waits for that; device 1 comes when
 * device 0 is back. */
CK_JOB(get_stuck) {
  struct pair *pair = context;
  ek_stream *stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  if (index == 1) {
    EK_TRY(add_up(pair, device, index));
    come_to(pair, 1);
    wait_for(pair, 2);
    return ek_communicator_wait(pair->communicator, device);
  }
  wait_for(pair, 1);
  ek_status status = add_up(pair, device, index);
  if (status == EK_OK) status = ek_communicator_progress(pair->communicator, device);
  if (status == EK_OK && pair->test == 0) {
    cuemu_stall(0, CUEMU_LAUNCH, 1);
    status = ek_op_fill(stream, &pair->ones[index], 3);
  } else if (status == EK_OK) {
    (void)cudaStreamSynchronize(
        ek_stream_native(ek_device_stream(device, EK_STREAM_COMMUNICATION)));
  }
  come_to(pair, 2);
  return status;
}

/* In a call of ours, and in one of the program's. */
CK_LOOP(a_stuck_worker_comes_back, 2) {
  struct pair pair;
  const double limit = choose_limit();
  open_pair(&pair, limit);
  pair.test = _i;
  ck_fails(ek_group_apply(pair.group, get_stuck, &pair), EK_ERR_UNAVAILABLE, "cuda:0");
  says_limit(limit);
  for (size_t k = 0; k < DEVICES; k++) fill(&pair.ones[k], 2);
  ck_ok(ek_group_apply(pair.group, once, &pair)); /* with communicators that are new */
  ck_ok(ek_group_synchronize(pair.group));
  ck_holds(&pair.ones[1], 4);
}

/* ---- peers that do not come ---- */

enum { TOGETHER, CROSSED, ONE_STAYS, ONE_LEAVES }; /* ways to meet */

struct crossing {
  struct pair pair;
  ek_communicator *second;
  ek_tensor more[DEVICES];
  int way;
};

/* Device 0 sums up alone. */
static ek_status meet_alone(struct crossing *it, ek_device *device, size_t index) {
  if (index == 1) {
    if (it->way == ONE_STAYS) wait_for(&it->pair, 1);
    return EK_OK;
  }
  ek_status status = add_up(&it->pair, device, index);
  if (status == EK_OK) status = ek_communicator_wait(it->pair.communicator, device);
  come_to(&it->pair, 1);
  return status;
}

CK_JOB(meet) {
  struct crossing *it = context;
  if (it->way == ONE_STAYS || it->way == ONE_LEAVES) return meet_alone(it, device, index);
  ek_communicator *both[] = {it->pair.communicator, it->second};
  ek_tensor *sums[] = {&it->pair.ones[index], &it->more[index]};
  const size_t first = it->way == CROSSED ? index : 0;
  EK_TRY(ek_communicator_all_reduce(both[first], device, sums[first]));
  EK_TRY(ek_communicator_all_reduce(both[1 - first], device, sums[1 - first]));
  EK_TRY(ek_communicator_wait(both[first], device));
  return ek_communicator_wait(both[1 - first], device);
}

static const struct {
  ek_status status;
  const char *text, *more;
} late[] = {
    [CROSSED] = {EK_ERR_UNAVAILABLE, "has not joined after",
                 "with several communicators, all devices must call the collectives in one order"},
    [ONE_STAYS] = {EK_ERR_UNAVAILABLE, "cuda:1 has not joined after", "cuda:0"},
    [ONE_LEAVES] = {EK_ERR_SHAPE, "cuda:1 ended its work", "cuda:0 waits for"}};

/* In another order on each device; a device that does not come, and stays in its job or ends it. */
CK_LOOP_FROM(who_does_not_come_is_given_up, CROSSED, ONE_LEAVES + 1) {
  struct crossing it = {.way = TOGETHER};
  const double limit = choose_limit();
  open_pair(&it.pair, limit);
  ck_kept(ek_communicator_open(&it.second, it.pair.group), it.second);
  for (size_t k = 0; k < DEVICES; k++) it.more[k] = ones_on(ek_group_device(it.pair.group, k));
  ck_ok(ek_group_apply(it.pair.group, meet, &it));
  it.way = _i;
  ck_fails(ek_group_apply(it.pair.group, meet, &it), late[_i].status, late[_i].text);
  ck_assert_msg(ck_contains(ek_error_message(), late[_i].more), "%s", ek_error_message());
  if (late[_i].status == EK_ERR_UNAVAILABLE) says_limit(limit);
  for (size_t k = 0; k < DEVICES; k++) fill(&it.more[k], 2);
  it.way = TOGETHER; /* with communicators that are new */
  ck_ok(ek_group_apply(it.pair.group, meet, &it));
  ck_ok(ek_group_synchronize(it.pair.group));
  for (size_t k = 0; k < DEVICES; k++) ck_holds(&it.more[k], 4);
}

/* ---- another group opens and closes meanwhile ---- */

struct training {
  struct pair pair;
  atomic_bool stop;
  ek_status status;
  char message[512];
};

/* Device 1 is late at each collective, so that its part is missing for a while. */
CK_JOB(one_behind) {
  struct training *it = context;
  for (int i = 0; i < 5; i++) {
    EK_TRY(add_up(&it->pair, device, index));
    if (index == 1) usleep(1000);
    EK_TRY(ek_communicator_progress(it->pair.communicator, device));
  }
  return ek_communicator_wait(it->pair.communicator, device);
}

static void *train(void *raw) {
  struct training *it = raw;
  while (!atomic_load(&it->stop) && it->status == EK_OK) {
    it->status = ek_group_apply(it->pair.group, one_behind, it);
  }
  if (it->status != EK_OK) {
    (void)snprintf(it->message, sizeof it->message, "%s", ek_error_message());
  }
  return NULL;
}

/* Freeing waits for all GPUs, and keeps NCCL's calls out: with a part missing it waits for ever. */
CK_TEST(groups_open_and_close_beside_collectives) {
  struct training it = {.status = EK_OK};
  pthread_t thread;
  ck_emulate(free_blocks, true);
  open_pair(&it.pair, CK_TSAN ? 60 : 10);
  ck_assert_int_eq(pthread_create(&thread, NULL, train, &it), 0);
  for (int i = 0; i < (CK_TSAN ? 2 : 5); i++) {
    ek_group *other = ck_open_limited("cuda:0-1@48MiB", 60);
    CK_GOT(ek_communicator *, communicator, ek_communicator_open(&communicator, other));
    ek_communicator_free(communicator);
    ek_group_free(other);
  }
  atomic_store(&it.stop, true);
  pthread_join(thread, NULL);
  ck_assert_msg(it.status == EK_OK, "%s", it.message);
}

/* ---- one GPU, by EVENKEEL_CUDA_LINK ---- */

struct single {
  ek_communicator *communicator;
  ek_tensor tensor;
};

/* All five collectives, of the only rank. */
CK_JOB(all_kinds) {
  static const int64_t whole[] = {0, COUNT};
  struct single *it = context;
  EK_TRY(ek_communicator_broadcast(it->communicator, device, &it->tensor, 0));
  EK_TRY(ek_communicator_reduce(it->communicator, device, &it->tensor, 0));
  EK_TRY(ek_communicator_all_reduce(it->communicator, device, &it->tensor));
  EK_TRY(ek_communicator_reduce_scatter(it->communicator, device, &it->tensor, whole));
  EK_TRY(ek_communicator_all_gather(it->communicator, device, &it->tensor, whole));
  return ek_communicator_wait(it->communicator, device);
}

CK_JOB(all_kinds_to_the_end) {
  EK_TRY(all_kinds(context, device, index));
  return ek_stream_synchronize(ek_device_stream(device, EK_STREAM_COMPUTE));
}

/* They are NCCL's, and leave what was there; after one that hangs there is a new communicator.
 * Without the variable NCCL is not called. */
CK_LOOP(one_rank_by_nccl, 2) {
  struct single it = {0};
  if (_i == 1) ck_variable("EVENKEEL_CUDA_LINK", "nccl");
  ek_group *group = ck_open_limited("cuda:0@48MiB", 0.5);
  ck_kept(ek_communicator_open(&it.communicator, group), it.communicator);
  ck_assert_str_eq(ek_communicator_name(it.communicator), _i == 1 ? "nccl" : "peer");
  ek_device *device = ek_group_device(group, 0);
  it.tensor = ck_upload(device, EK_F32, NULL, CK_SHAPE(COUNT));
  fill(&it.tensor, 7);
  const unsigned long before = cuemu_calls(0, CUEMU_NCCL);
  ck_ok(ek_group_apply(group, all_kinds, &it));
  ck_ok(ek_group_synchronize(group));
  ck_assert_uint_eq(cuemu_calls(0, CUEMU_NCCL) - before, _i == 1 ? 5 : 0);
  if (_i == 1) {
    cuemu_hang(0, CUEMU_NCCL, 2);
    ck_fails(ek_group_apply(group, all_kinds_to_the_end, &it), EK_ERR_UNAVAILABLE, "cuda:0");
    ck_ok(ek_group_apply(group, all_kinds, &it));
    ck_ok(ek_group_synchronize(group));
  }
  const double *values = ck_got(&it.tensor);
  for (int i = 0; i < COUNT; i++) ck_assert_double_eq(values[i], 7);
}

CK_TEST(a_link_that_cannot_be) {
  ek_group *group = NULL;
  ck_variable("EVENKEEL_CUDA_LINK", "ncll");
  ck_invalid(ek_group_open(&group, "cuda:0@48MiB", NULL), "unknown link \"ncll\"; expected nccl");
  ck_variable("EVENKEEL_CUDA_LINK", "nccl");
  ck_fails(ek_group_open(&group, "cuda:0x2@48MiB", NULL), EK_ERR_UNAVAILABLE,
           "EVENKEEL_CUDA_LINK=nccl: NCCL accepts each GPU only once");
  ck_emulate(nccl_version, 22203);
  ck_fails(ek_group_open(&group, "cuda:0@48MiB", NULL), EK_ERR_UNAVAILABLE, "NCCL 2.22.3");
  ck_variable("EVENKEEL_CUDA_LINK", "");
  ck_kept(ek_group_open(&group, "cuda:0@48MiB", NULL), group);
}

/* ---- a group for each of two processes ---- */

/* The emulated NCCL is one process's, so each "process" is a thread. It records, and does not
 * assert. */
struct half {
  pthread_t thread;
  struct ck_process process;
  ek_world *world;
  ek_group *group;
  ek_communicator *communicator;
  ek_tensor tensor;
  size_t first_rank;
  float sums[COUNT], taken[COUNT];
  ek_status status;
  char name[16], message[512];
};

static const int64_t thirds[] = {0, COUNT / 3, COUNT};

CK_JOB(add_with_other) {
  struct half *half = context;
  ek_communicator *c = half->communicator;
  ek_tensor *tensor = &half->tensor;
  EK_TRY(ek_op_fill(ek_device_stream(device, EK_STREAM_COMPUTE), tensor,
                    1 + (double)half->process.number));
  EK_TRY(ek_communicator_reduce_scatter(c, device, tensor, thirds));
  EK_TRY(ek_communicator_all_gather(c, device, tensor, thirds));
  EK_TRY(ek_communicator_all_reduce(c, device, tensor));
  return ek_communicator_wait(c, device);
}

CK_JOB(take_from_other) {
  struct half *half = context;
  EK_TRY(ek_op_fill(ek_device_stream(device, EK_STREAM_COMPUTE), &half->tensor,
                    (double)half->process.number));
  EK_TRY(ek_communicator_broadcast(half->communicator, device, &half->tensor, 1));
  return ek_communicator_wait(half->communicator, device);
}

static ek_status run_and_read(struct half *half, ek_apply_function function, float *values) {
  ek_tensor host;
  EK_TRY(ek_group_apply(half->group, function, half));
  EK_TRY(ek_tensor_host(&host, values, EK_F32, 1, (int64_t[]){COUNT}));
  return ek_tensor_copy(&host, &half->tensor);
}

static ek_status run_half(struct half *half) {
  EK_TRY(ck_process_world(&half->world, &half->process, 60));
  CK_WITH(ek_group_options, options, EK_GROUP_OPTIONS_INIT, .world = half->world, .time_limit = 60);
  EK_TRY(ek_group_open(&half->group, half->process.number == 0 ? "cuda:0@48MiB" : "cuda:1@48MiB",
                       &options));
  EK_TRY(ek_communicator_open(&half->communicator, half->group));
  half->first_rank = ek_communicator_first_rank(half->communicator);
  (void)snprintf(half->name, sizeof half->name, "%s", ek_communicator_name(half->communicator));
  EK_TRY(ek_tensor_create(&half->tensor, ek_group_device(half->group, 0), EK_MEMORY_INPUTS, EK_F32,
                          1, (int64_t[]){COUNT}));
  EK_TRY(run_and_read(half, add_with_other, half->sums));
  return run_and_read(half, take_from_other, half->taken);
}

static void *half_main(void *argument) {
  struct half *half = argument;
  half->status = run_half(half);
  if (half->status != EK_OK) {
    (void)snprintf(half->message, sizeof half->message, "%s", ek_error_message());
  }
  ek_tensor_free(&half->tensor);
  ek_communicator_free(half->communicator);
  const ek_status freed = ek_group_close(half->group);
  if (half->status == EK_OK) half->status = freed;
  ek_world_free(half->world);
  return NULL;
}

/* NCCL's ranks are those of the world: the second group has one device, with the rank 1. */
CK_TEST(groups_of_two_processes_meet) {
  struct half halves[2] = {{.process = {.number = 0}}, {.process = {.number = 1}}};
  int pair[2];
  ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  for (size_t k = 0; k < 2; k++) {
    halves[k].process.count = 2;
    halves[k].process.sockets[1 - k] = pair[k];
    ck_assert_int_eq(pthread_create(&halves[k].thread, NULL, half_main, &halves[k]), 0);
  }
  for (size_t k = 0; k < 2; k++) pthread_join(halves[k].thread, NULL);
  for (size_t k = 0; k < 2; k++) {
    (void)close(pair[k]);
    ck_assert_msg(halves[k].status == EK_OK, "%s", halves[k].message);
    ck_assert_str_eq(halves[k].name, "nccl");
    ck_assert_uint_eq(halves[k].first_rank, k);
    for (int i = 0; i < COUNT; i++) {
      ck_assert_float_eq(halves[k].sums[i], 6); /* 1 + 2 in each, twice */
      ck_assert_float_eq(halves[k].taken[i], 1);
    }
  }
}

/* ---- several collectives ---- */

/* The gathers of all buckets after an update are one call of NCCL on each GPU; the norm is another
 * one. The parameters are those of one device. */
CK_LOOP(gathers_after_an_update_are_one_call, 2) {
  const ek_mode mode = _i == 0 ? EK_MODE_SHARDED : EK_MODE_SHARDED_GRADIENTS;
  struct ck_setup setup = ck_setup_mode(ck_workload("mlp"), "cuda:0-1@48MiB", mode);
  struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, 6, 0, 2);
  struct ck_training training = ck_training_opened(&setup);
  ck_ok(ck_training_step(&training, &batch, NULL));
  ck_ok(ck_training_backward(&training, &batch, NULL, false, NULL));
  ck_ok(ek_group_synchronize(training.group));
  const unsigned long launches = cuemu_counted(CUEMU_NCCL_LAUNCHES),
                      parts = cuemu_calls(0, CUEMU_NCCL);
  ck_ok(ek_data_parallel_optimizer_step(NULL, training.optimizer));
  ck_ok(ek_group_synchronize(training.group));
  ck_assert_uint_eq(cuemu_counted(CUEMU_NCCL_LAUNCHES) - launches, 2 * DEVICES);
  ck_assert_uint_gt(cuemu_calls(0, CUEMU_NCCL) - parts, 3);
  ck_training_replicas_agree(&training);
}

/* Biases are complete with the first layer's matrix: with all matrices in one bucket and the biases
 * in the next, both sums are one call of NCCL on each GPU; the sum of the totals is another. So it
 * is for a GPU without rows, which queues its sums at the end. */
CK_LOOP(sums_that_are_complete_together_are_one_call, 2 * 3) {
  static const ek_mode modes[] = {EK_MODE_REPLICATED, EK_MODE_SHARDED, EK_MODE_SHARDED_GRADIENTS};
  struct ck_setup setup = ck_setup_mode(ck_workload("mlp"), "cuda:0-1@48MiB", modes[_i % 3]);
  struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, _i < 3 ? 6 : 1, 0, 2);
  setup.options.bucket_bytes = (7 * 19 + 19 * 9 + 9 * 5) * sizeof(float); /* the matrices */
  struct ck_training training = ck_training_opened(&setup);
  ck_ok(ek_group_synchronize(training.group));
  const unsigned long launches = cuemu_counted(CUEMU_NCCL_LAUNCHES),
                      parts = cuemu_calls(0, CUEMU_NCCL);
  ck_ok(ck_training_backward(&training, &batch, NULL, false, NULL));
  ck_ok(ek_group_synchronize(training.group));
  ck_assert_uint_eq(cuemu_counted(CUEMU_NCCL_LAUNCHES) - launches, 2 * DEVICES);
  ck_assert_uint_ge(cuemu_calls(0, CUEMU_NCCL) - parts, 3); /* uneven shares are one each */
  ck_ok(ek_data_parallel_optimizer_step(NULL, training.optimizer));
  ck_training_replicas_agree(&training);
}

static int blocks;

static ek_status gpt_of_blocks(ek_module **module) {
  const ek_gpt_options options = ck_gpt_sizes(13, 5, 8, blocks, 2);
  return ek_gpt_create(module, &options);
}

/* Fully sharded, a block is gathered forward and backward, and its gradients are summed: three
 * collectives, of which the sum and the gather of a block before it are one call. */
CK_TEST(a_sum_and_the_next_gather_are_one_call) {
  unsigned long calls[2];
  CK_WITH(struct ck_workload, workload, *ck_workload("gpt"), .module = gpt_of_blocks);
  for (int more = 0; more < 2; more++) {
    blocks = 3 + more;
    struct ck_setup setup = ck_setup_mode(&workload, "cuda:0-1@48MiB", EK_MODE_FULLY_SHARDED);
    struct ck_batch batch = ck_batch_make(&workload, EK_F32, 3, 0, 2);
    struct ck_training training = ck_training_opened(&setup);
    ck_ok(ek_group_synchronize(training.group));
    const unsigned long before = cuemu_counted(CUEMU_NCCL_LAUNCHES);
    ck_ok(ck_training_backward(&training, &batch, NULL, false, NULL));
    ck_ok(ek_group_synchronize(training.group));
    calls[more] = cuemu_counted(CUEMU_NCCL_LAUNCHES) - before;
  }
  ck_assert_uint_eq(calls[1] - calls[0], 2 * DEVICES);
}

CK_EMULATED_SUITE("cuda clique")
