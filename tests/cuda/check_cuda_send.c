/*
 * check_cuda_send.c - memory that was just taken is filled while the device computes, and never
 * before who had the memory has done with it; on emulated GPUs.
 */
#include <time.h>

#include "ck_emulated.h"

static void sleep_ms(long milliseconds) {
  const struct timespec time = {.tv_nsec = milliseconds * 1000000};
  (void)nanosleep(&time, NULL);
}

static void wait_until_something_hangs(void) {
  while (cuemu_hanging() == 0) sleep_ms(1);
}

/* A host tensor of f32 whose numbers tell where they belong; they are kept. */
static ek_tensor numbers_of(int64_t count, int salt) {
  float *numbers = ck_array((size_t)count, sizeof *numbers);
  for (int64_t i = 0; i < count; i++) numbers[i] = (float)((i + salt) % 8191);
  CK_GOT(ek_tensor, host, ek_tensor_host(&host, numbers, EK_F32, 1, &count));
  return host;
}

static ek_tensor on_device(ek_device *device, int64_t count) {
  CK_OPENED(ek_tensor, tensor,
            ek_tensor_create(&tensor, device, EK_MEMORY_INPUTS, EK_F32, 1, &count));
  return tensor;
}

/* Every number is factor times that of the host tensor. */
static void must_hold(const ek_tensor *tensor, const ek_tensor *host, float factor) {
  const int64_t count = ek_tensor_count(host);
  ek_tensor back = numbers_of(count, 0);
  ck_ok(ek_tensor_copy(&back, tensor));
  const float *got = back.data, *want = host->data;
  for (int64_t i = 0; i < count; i++) {
    if (got[i] != factor * want[i]) {
      ck_abort_msg("number %lld is %g, not %g", (long long)i, (double)got[i],
                   (double)(factor * want[i]));
    }
  }
  ck_drop(back.data);
}

/* 20 MiB: more than is pinned, so the call returns when the first of them have arrived. */
enum { LARGE = 5 << 20 };

/* Not ahead, the compute stream waits for the arrival, and the copy still need not wait for it. */
CK_LOOP(it_travels_while_the_device_computes, 2) {
  ek_device *device = ek_group_device(ck_open("cuda:0x2@100MiB", 0), 1);
  ek_stream *stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  ek_tensor host = numbers_of(LARGE, 3), y = on_device(device, LARGE);
  cuemu_hang(0, CUEMU_KERNEL, 1);
  ck_ok(ek_op_fill(stream, &y, 1));
  wait_until_something_hangs();
  CK_OPENED(ek_tensor, sent,
            ek_tensor_create_from(&sent, device, EK_MEMORY_INPUTS, &host, _i == 0));
  ck_assert_uint_eq(cuemu_hanging(), 1); /* and it is the kernel, in front of all that follows */
  if (_i == 0) ck_ok(ek_tensor_wait(&sent));
  ck_ok(ek_op_scale(stream, &y, &sent, 2));
  cuemu_release();
  must_hold(&y, &host, 2);
  must_hold(&sent, &host, 1);
}

CK_TEST(a_batch_is_scattered_while_the_devices_compute) {
  ek_group *group = ck_open("cuda:0x2,1@100MiB", 0);
  ek_device *device = ek_group_device(group, 2);
  CK_WITH(ek_scatter_options, options, EK_SCATTER_OPTIONS_INIT, .ahead = true);
  ek_tensor host = numbers_of(3 * (int64_t)LARGE, 5), whole = numbers_of(3 * (int64_t)LARGE, 0);
  ek_tensor y = on_device(device, LARGE);
  cuemu_hang(1, CUEMU_KERNEL, 1);
  ck_ok(ek_op_fill(ek_device_stream(device, EK_STREAM_COMPUTE), &y, 1));
  wait_until_something_hangs();
  CK_OPENED(ek_shards, shards, ek_scatter(&shards, group, &host, EK_MEMORY_INPUTS, &options));
  CK_OPENED(ek_shards, like, ek_scatter_like(&like, &shards, &host, EK_MEMORY_INPUTS));
  ck_assert(shards.private_members.ahead && like.private_members.ahead);
  ck_assert_uint_eq(cuemu_hanging(), 1);
  cuemu_release();
  ck_ok(ek_gather_host(&whole, &like));
  ck_assert_mem_eq(whole.data, host.data, ek_tensor_bytes(&host));
  ck_ok(ek_shards_wait(&shards));
  ck_ok(ek_op_scale(ek_device_stream(device, EK_STREAM_COMPUTE), &y, &shards.parts[2], 3));
  CK_GOT(ek_tensor, last, ek_tensor_rows(&last, &host, shards.offsets[2], LARGE));
  must_hold(&y, &last, 3);
}

/* Initial values go to a GPU in the pieces of pinned memory, with a copy for each, after zeros. */
CK_TEST(initial_values_in_large_pieces) {
  enum { ENTRIES = 1031, WIDTH = 1024 }; /* 4 MiB and 28 KiB */
  ek_group *cpu = ck_open("cpu:1", 0), *cuda = ck_open("cuda:0@100MiB", 0);
  CK_WITH(ek_replica_options, options, EK_REPLICA_OPTIONS_INIT, .gradients = false);
  CK_OPENED(ek_module *, module, ek_embedding_create(&module, ENTRIES, WIDTH, 0));
  CK_OPENED(ek_replica *, want, ek_replica_open(&want, ek_group_device(cpu, 0), module, &options));
  const unsigned long before = cuemu_calls(0, CUEMU_COPY);
  CK_OPENED(ek_replica *, got, ek_replica_open(&got, ek_group_device(cuda, 0), module, &options));
  ck_assert_uint_eq(cuemu_calls(0, CUEMU_COPY) - before, 4);
  must_hold(ek_replica_parameters(got), ek_replica_parameters(want), 1);
}

/* A part that was sent ahead and becomes the whole: what reads the whole waits for the arrival. */
CK_TEST(what_is_gathered_has_arrived) {
  const int64_t count = 3000;
  ek_group *group = ck_open("cuda:0@100MiB", 0);
  ek_device *device = ek_group_device(group, 0);
  ek_tensor host = numbers_of(count, 7), y = on_device(device, count);
  CK_WITH(ek_scatter_options, options, EK_SCATTER_OPTIONS_INIT, .ahead = true);
  cuemu_hang(0, CUEMU_COPY, 1);
  CK_GOT(ek_shards, shards, ek_scatter(&shards, group, &host, EK_MEMORY_INPUTS, &options));
  wait_until_something_hangs();
  CK_OPENED(ek_tensor, whole, ek_gather_move(&whole, &shards, 0, EK_MEMORY_INPUTS));
  ck_ok(ek_op_scale(ek_device_stream(device, EK_STREAM_COMPUTE), &y, &whole, 2));
  sleep_ms(50);
  cuemu_release();
  must_hold(&y, &host, 2);
}

/* Targets that were sent ahead: a criterion waits for the arrival. */
CK_TEST(targets_have_arrived) {
  enum { ROWS = 4, SIZE = 3 };
  ek_group *group = ck_open("cuda:0@100MiB", 0);
  ek_tensor host = numbers_of((int64_t)ROWS * SIZE, 7);
  ck_assign(host, .rank = 2, .shape[0] = ROWS, .shape[1] = SIZE);
  CK_WITH(ek_scatter_options, options, EK_SCATTER_OPTIONS_INIT, .ahead = true);
  CK_OPENED(ek_module *, module, ek_linear_create(&module, SIZE, SIZE, true));
  CK_OPENED(ek_criterion *, criterion, ek_mean_squared_error_create(&criterion, EK_REDUCTION_MEAN));
  CK_OPENED(ek_data_parallel_model *, model,
            ek_data_parallel_model_open(&model, group, module, NULL));
  CK_OPENED(ek_data_parallel_criterion *, loss,
            ek_data_parallel_criterion_open(&loss, model, criterion, NULL));
  CK_OPENED(ek_shards, outputs, ek_data_parallel_model_forward(&outputs, model, &host, 1, NULL));
  ck_ok(ek_data_parallel_criterion_forward(loss, &outputs, 1, &host, 1));
  CK_GOT(double, want, ek_data_parallel_criterion_loss(&want, NULL, loss));
  cuemu_hang(0, CUEMU_COPY, 1);
  CK_OPENED(ek_shards, targets, ek_scatter(&targets, group, &host, EK_MEMORY_INPUTS, &options));
  wait_until_something_hangs();
  ck_ok(ek_data_parallel_criterion_forward_shards(loss, &outputs, 1, &targets, 1));
  sleep_ms(50);
  cuemu_release();
  CK_GOT(double, got, ek_data_parallel_criterion_loss(&got, NULL, loss));
  ck_assert_double_eq(got, want);
}

/* The kernel that reads the memory has not run when it is given back and taken again. */
CK_LOOP(who_had_the_memory_has_done_with_it, 4) {
  const int64_t count = 30000;
  ek_device *device = ek_group_device(ck_open("cuda:0@60MiB", 0), 0);
  ek_stream *stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  ek_tensor first = numbers_of(count, 1), second = numbers_of(count, 4000);
  ek_tensor x = {0}, y = on_device(device, count);
  ck_ok(ek_tensor_create_from(&x, device, EK_MEMORY_INPUTS, &first, _i % 2 == 0));
  ck_ok(ek_tensor_wait(&x));
  ck_ok(ek_stream_synchronize(stream));
  cuemu_hang(0, CUEMU_KERNEL, 1);
  ck_ok(ek_op_scale(stream, &y, &x, 2));
  wait_until_something_hangs();
  const void *place = x.data;
  ek_tensor_free(&x);
  CK_OPENED(ek_tensor, z,
            ek_tensor_create_from(&z, device, EK_MEMORY_INPUTS, &second, _i / 2 == 0));
  ck_assert_ptr_eq(z.data, place);
  sleep_ms(30);
  cuemu_release();
  must_hold(&y, &first, 2);
  must_hold(&z, &second, 1);
}

/* Two neighbours are given back, one long ago, one while a kernel still reads it; the memory of
 * both becomes one tensor. */
CK_LOOP(neighbours_wait_for_the_later_one, 2) {
  const int64_t count = 6400; /* whole units, so that the two are neighbours */
  ek_device *device = ek_group_device(ck_open("cuda:0@60MiB", 0), 0);
  ek_stream *stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  ek_tensor small = numbers_of(64, 0), host = numbers_of(count, 1);
  ek_tensor both = numbers_of(2 * count, 4000);
  ek_tensor place = {0}, pair[2] = {{0}}, z = {0};
  ck_ok(ek_tensor_create_from(&place, device, EK_MEMORY_INPUTS, &small, false));
  (void)on_device(device, 64); /* a wall between the two */
  for (int i = 0; i < 2; i++) {
    ck_ok(ek_tensor_create_from(&pair[i], device, EK_MEMORY_INPUTS, &host, false));
  }
  ek_tensor y = on_device(device, count);
  const void *first = pair[0].data;
  const int late = _i; /* which of them is read late */
  ek_tensor_free(&pair[1 - late]);
  ek_tensor_free(&place); /* what is sent there marks the stream, after both */
  ck_ok(ek_tensor_create_from(&place, device, EK_MEMORY_INPUTS, &small, false));
  ck_ok(ek_stream_synchronize(stream));
  cuemu_hang(0, CUEMU_KERNEL, 1);
  ck_ok(ek_op_scale(stream, &y, &pair[late], 2));
  wait_until_something_hangs();
  ek_tensor_free(&pair[late]);
  ck_kept(ek_tensor_create_from(&z, device, EK_MEMORY_INPUTS, &both, true), z);
  ck_assert_ptr_eq(z.data, first);
  sleep_ms(30);
  cuemu_release();
  must_hold(&y, &host, 2);
  must_hold(&z, &both, 1);
  ek_tensor_free(&place);
}

/* Content that was never waited for does not overwrite what the next one put into its memory. */
CK_LOOP(a_batch_that_is_dropped_on_its_way, 2) {
  const int64_t count = 30000, longer = 40000;
  ek_device *device = ek_group_device(ck_open("cuda:0@60MiB", 0), 0);
  ek_tensor host = numbers_of(count, 1), sent = {0}, next = {0}, seven = numbers_of(longer, 0);
  for (int64_t i = 0; i < longer; i++) ((float *)seven.data)[i] = 7;
  cuemu_hang(0, CUEMU_COPY, 1);
  ck_ok(ek_tensor_create_from(&sent, device, EK_MEMORY_INPUTS, &host, true));
  wait_until_something_hangs();
  const void *place = sent.data;
  ek_tensor_free(&sent);
  if (_i == 0) {
    next = on_device(device, longer);
    ck_assert_ptr_eq(next.data, place);
  } else { /* by growing into it */
    bool grown = false;
    next = on_device(device, 64);
    ck_assert_ptr_eq(next.data, place);
    ck_ok(ek_tensor_grow(&grown, &next, longer));
    ck_assert(grown);
  }
  ck_ok(ek_op_fill(ek_device_stream(device, EK_STREAM_COMPUTE), &next, 7));
  sleep_ms(30);
  cuemu_release();
  must_hold(&next, &seven, 1);
}

/* Tensors of random sizes are sent, read by a kernel, given back at once, dropped on their way, or
 * kept for a while, so that blocks split and merge and marks get old, while streams dawdle. */
enum { KEPT = 6, ROUNDS = 400, MOST = 20000 };

struct kept {
  ek_tensor host, sent, y;
  float factor;
};

static void look_at(struct kept *kept) {
  if (!ek_tensor_exists(&kept->host)) return;
  must_hold(&kept->y, &kept->host, kept->factor);
  ek_tensor_free(&kept->sent);
  ek_tensor_free(&kept->y);
  ck_drop(kept->host.data);
  memset(kept, 0, sizeof *kept);
}

CK_LOOP(sending_and_freeing_in_any_order, 2) {
  struct ck_random random = ck_random_start(77 + (uint64_t)_i);
  struct kept kept[KEPT];
  memset(kept, 0, sizeof kept);
  ek_group *group = ck_open("cuda:0x2@37MiB", 0);
  ek_device *device = ek_group_device(group, (size_t)_i);
  ek_stream *stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  for (int round = 0; round < ROUNDS; round++) {
    struct kept *it = &kept[ck_random_integer(&random, 0, KEPT - 1)];
    look_at(it);
    const int64_t count = ck_random_integer(&random, 1, MOST);
    ek_tensor host = numbers_of(count, round);
    const bool ahead = ck_random_integer(&random, 0, 3) > 0;
    it->factor = (float)ck_random_integer(&random, 1, 8);
    it->y = on_device(device, count);
    ck_ok(ek_tensor_create_from(&it->sent, device, EK_MEMORY_INPUTS, &host, ahead));
    if (ck_random_integer(&random, 0, 7) == 0) { /* dropped */
      ek_tensor_free(&it->sent);
      ek_tensor_free(&it->y);
      ck_drop(host.data);
      continue;
    }
    it->host = host;
    if (ahead) ck_ok(ek_tensor_wait(&it->sent));
    ck_ok(ek_op_scale(stream, &it->y, &it->sent, (double)it->factor));
    if (ck_random_integer(&random, 0, 2) > 0) ek_tensor_free(&it->sent);
  }
  for (size_t i = 0; i < KEPT; i++) look_at(&kept[i]);
}

/* ---- failures ---- */

CK_LOOP(every_copy_of_a_scatter_fails, 2) {
  ek_group *group = ck_open("cuda:0-1@60MiB", 0);
  CK_WITH(ek_scatter_options, options, EK_SCATTER_OPTIONS_INIT, .ahead = _i == 0);
  ek_tensor host = numbers_of(2 * (int64_t)LARGE, 0), whole = numbers_of(2 * (int64_t)LARGE, 1);
  unsigned long n = 1;
  for (;; n++) {
    ek_shards shards = {0};
    cuemu_fail(1, CUEMU_COPY, n, 0);
    ek_error_clear();
    const ek_status status = ek_scatter(&shards, group, &host, EK_MEMORY_INPUTS, &options);
    cuemu_fail(1, CUEMU_COPY, 0, 0);
    if (status == EK_OK) {
      ek_shards_free(&shards);
      break;
    }
    ck_assert_msg(ck_contains(ek_error_message(), "cuda:1"), "%s", ek_error_message());
    ck_assert_msg(ck_contains(ek_error_message(), "upload"), "%s", ek_error_message());
    ck_no_memory_held(group);
    ck_ok(ek_scatter(&shards, group, &host, EK_MEMORY_INPUTS, &options));
    ck_ok(ek_gather_host(&whole, &shards));
    ck_assert_mem_eq(whole.data, host.data, ek_tensor_bytes(&host));
    ek_shards_free(&shards);
  }
  ck_assert_uint_eq(n, 11); /* 20 MiB in pieces of 2 MiB */
}

/* A copy that does not end is found by a wait for the device, and named. */
CK_TEST(a_copy_hangs) {
  ek_group *group = ck_open_limited("cuda:0x2@60MiB", 1);
  ek_tensor host = numbers_of(1000, 0);
  cuemu_hang(0, CUEMU_COPY, 1);
  CK_OPENED(ek_tensor, sent,
            ek_tensor_create_from(&sent, ek_group_device(group, 1), EK_MEMORY_INPUTS, &host, true));
  ck_fails(ek_group_synchronize(group), EK_ERR_UNAVAILABLE, "cuda:0#1's copy stream");
  cuemu_release();
}

static void let_streams_dawdle(void) {
  ck_emulate(jitter_us, 200);
  ck_emulated_begin();
}

CK_SUITE_WITH("cuda send", let_streams_dawdle, ck_emulated_end)
