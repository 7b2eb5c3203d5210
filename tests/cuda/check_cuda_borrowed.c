/*
 * check_cuda_borrowed.c - streams and memory of the program's on emulated GPUs: what runs in their
 * order, what is refused, what stays when the group is gone; and ranges for a tool.
 */
#include <time.h>

#include "ck_emulated.h"
#include "ck_training.h"
#include "cuda_runtime_api.h"

#define MIB ((uint64_t)1 << 20)
enum { COUNT = 8 };

/* The group keeps some MiB of a device for itself. */
#define ARENA (128 * MIB)

static ek_group *open_with(const char *spec, const ek_device_resources *resources, size_t count) {
  CK_WITH(ek_group_options, options, EK_GROUP_OPTIONS_INIT, .resources = resources,
          .resource_count = count);
  CK_OPENED(ek_group *, group, ek_group_open(&group, spec, &options));
  return group;
}

static ek_status try_with(const char *spec, const ek_device_resources *resources, size_t count) {
  CK_WITH(ek_group_options, options, EK_GROUP_OPTIONS_INIT, .resources = resources,
          .resource_count = count);
  ek_group *group = NULL;
  const ek_status status = ek_group_open(&group, spec, &options);
  ck_assert_ptr_null(group);
  return status;
}

static void destroy_stream(void *stream) { cuda_ok(cudaStreamDestroy(stream)); }
static void free_kept(void *memory) { cuda_ok(cudaFree(memory)); }

/* Both are kept. */
static cudaStream_t new_stream(int gpu) {
  cudaStream_t stream = NULL;
  cuda_ok(cudaSetDevice(gpu));
  cuda_ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  ck_keep_by(stream, destroy_stream);
  return stream;
}

static void *new_memory(int gpu, size_t bytes) {
  void *memory = NULL;
  cuda_ok(cudaSetDevice(gpu));
  cuda_ok(cudaMalloc(&memory, bytes));
  ck_keep_by(memory, free_kept);
  return memory;
}

/* A step of the program's own that takes its time. */
static void be_slow(void *ignored) {
  (void)ignored;
  const struct timespec moment = {.tv_nsec = 20000000};
  (void)nanosleep(&moment, NULL);
}

/* The program's slow copies before and after an operation, on its own stream and nothing else. */
CK_TEST(the_compute_stream_is_the_programs) {
  const cudaStream_t streams[] = {new_stream(0), new_stream(1)};
  const ek_device_resources resources[] = {{streams[0], NULL, 0}, {streams[1], NULL, 0}};
  const size_t mark = ck_mark();
  ek_group *group = open_with("cuda:0-1@64MiB", resources, 2);
  for (int i = 0; i < 2; i++) {
    ek_device *device = ek_group_device(group, (size_t)i);
    ek_stream *stream = ek_device_stream(device, EK_STREAM_COMPUTE);
    ck_assert_ptr_eq(ek_stream_native(stream), streams[i]);
    ek_tensor x = ck_upload(device, EK_F32, NULL, CK_SHAPE(COUNT));
    float first[COUNT] = {1, 2, 3, 4, 5, 6, 7, 8}, last[COUNT] = {0};
    cuda_ok(cudaSetDevice(i));
    cuda_ok(cudaLaunchHostFunc(streams[i], be_slow, NULL));
    cuda_ok(cudaMemcpyAsync(x.data, first, sizeof first, cudaMemcpyDefault, streams[i]));
    ck_ok(ek_op_scale(stream, &x, &x, 3));
    cuda_ok(cudaMemcpyAsync(last, x.data, sizeof last, cudaMemcpyDefault, streams[i]));
    cuda_ok(cudaStreamSynchronize(streams[i]));
    for (int k = 0; k < COUNT; k++) ck_assert_float_eq(last[k], 3 * first[k]);
  }
  ck_release(mark);
  for (int i = 0; i < 2; i++) cuda_ok(cudaStreamQuery(streams[i])); /* they are still there */
}

/* Another stream of the program's fills, and reads, what the library's stream works on. */
CK_TEST(streams_wait_for_each_other) {
  ek_device *device = ek_group_device(ck_open("cuda:0@64MiB", 0), 0);
  ek_stream *stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  const cudaStream_t theirs = new_stream(0), elsewhere = new_stream(1);
  float first[COUNT] = {1, 2, 3, 4, 5, 6, 7, 8}, last[COUNT] = {0};
  ek_tensor x = ck_upload(device, EK_F32, NULL, CK_SHAPE(COUNT));
  ck_ok(ek_stream_synchronize(stream));
  cuda_ok(cudaLaunchHostFunc(theirs, be_slow, NULL));
  cuda_ok(cudaMemcpyAsync(x.data, first, sizeof first, cudaMemcpyDefault, theirs));
  ck_ok(ek_stream_wait_native(stream, theirs));
  ck_ok(ek_op_scale(stream, &x, &x, 5));
  ck_ok(ek_stream_native_wait(theirs, stream));
  cuda_ok(cudaMemcpyAsync(last, x.data, sizeof last, cudaMemcpyDefault, theirs));
  cuda_ok(cudaStreamSynchronize(theirs));
  for (int k = 0; k < COUNT; k++) ck_assert_float_eq(last[k], 5 * first[k]);
  ck_fails(ek_stream_wait_native(stream, elsewhere), EK_ERR_INTERNAL, "cudaEventRecord");
}

CK_TEST(streams_that_are_refused) {
  const cudaStream_t stream = new_stream(1);
  const ek_device_resources per_thread[] = {{cudaStreamPerThread, NULL, 0}};
  const ek_device_resources elsewhere[] = {{stream, NULL, 0}};
  const ek_device_resources twice[] = {{stream, NULL, 0}, {stream, NULL, 0}};
  ck_invalid(try_with("cuda:0@64MiB", per_thread, 1), "cudaStreamPerThread");
  ck_invalid(try_with("cuda:0@64MiB", elsewhere, 1), "not a stream of GPU 0");
  ck_invalid(try_with("cuda:1x2@64MiB", twice, 2), "have one stream");
}

/* Two logical devices of one GPU, each in a piece of the program's memory; it is not freed. */
CK_TEST(tensors_lie_in_memory_of_the_program) {
  char *memory = new_memory(0, 2 * ARENA);
  const ek_device_resources resources[] = {{NULL, memory, ARENA}, {NULL, memory + ARENA, ARENA}};
  ek_group *group = open_with("cuda:0x2", resources, 2);
  double got[COUNT];
  const double values[COUNT] = {8, 7, 6, 5, 4, 3, 2, 1};
  for (int i = 0; i < 2; i++) {
    ek_device *device = ek_group_device(group, (size_t)i);
    CK_GOT(ek_memory_usage, usage, ek_memory_stats(&usage, device));
    ck_assert_uint_eq(usage.capacity_bytes, ARENA);
    const ek_tensor x = ck_upload(device, EK_F32, values, CK_SHAPE(COUNT));
    ck_assert((char *)x.data >= memory + (uint64_t)i * ARENA &&
              (char *)x.data < memory + (uint64_t)(i + 1) * ARENA);
    ck_get(got, &x);
    ck_same_bits("values", got, values, COUNT);
  }
}

CK_TEST(memory_that_is_refused) {
  static _Alignas(EK_MEMORY_UNIT) char host[4096];
  char *memory = new_memory(1, ARENA);
  const ek_device_resources pageable[] = {{NULL, host, sizeof host}};
  const ek_device_resources elsewhere[] = {{NULL, memory, ARENA}};
  const ek_device_resources beyond[] = {{NULL, memory, 2 * ARENA}};
  ck_invalid(try_with("cuda:0", pageable, 1), "no memory that CUDA knows");
  ck_invalid(try_with("cuda:0", elsewhere, 1), "memory of GPU 1; expected");
  ck_invalid(try_with("cuda:1", beyond, 1), "no memory that CUDA knows");
}

static int freed;
static void free_memory(void *memory) {
  freed++;
  ck_forget(memory);
  cuda_ok(cudaFree(memory));
}

/* Memory of cudaMalloc() and pinned memory, as tensors. */
CK_TEST(foreign_memory_as_a_tensor) {
  static char pageable[64];
  ek_device *device = ek_group_device(ck_open("cuda:0@64MiB", 0), 0);
  ek_stream *stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  void *memory = new_memory(0, COUNT * sizeof(float)), *pinned = NULL;
  void *elsewhere = new_memory(1, COUNT * sizeof(float));
  double got[COUNT];
  ek_tensor x = {0}, y = {0};
  freed = 0;
  cuda_ok(cudaSetDevice(0));
  cuda_ok(cudaHostAlloc(&pinned, COUNT * sizeof(float), cudaHostAllocMapped));
  for (int k = 0; k < COUNT; k++) ((float *)pinned)[k] = (float)k;
  ck_ok(ek_tensor_wrap(&x, device, memory, EK_F32, CK_SHAPE(COUNT), free_memory, memory));
  ck_ok(ek_tensor_wrap(&y, device, pinned, EK_F32, CK_SHAPE(COUNT), NULL, NULL));
  ck_ok(ek_op_scale(stream, &x, &y, 2));
  ck_get(got, &x);
  for (int k = 0; k < COUNT; k++) ck_assert_double_eq(got[k], 2 * k);
  ek_tensor_free(&x);
  ek_tensor_free(&y);
  ck_assert_int_eq(freed, 1);
  ck_invalid(ek_tensor_wrap(&x, device, pageable, EK_F32, CK_SHAPE(COUNT), free_memory, pageable),
             "no memory that CUDA knows");
  ck_invalid(ek_tensor_wrap(&x, device, elsewhere, EK_F32, CK_SHAPE(COUNT), free_memory, elsewhere),
             "memory of GPU 1; expected memory of GPU 0");
  ck_assert_int_eq(freed, 1);
  cuda_ok(cudaFreeHost(pinned));
}

/* A program that takes memory with cudaMallocAsync() beside a training, hands it to operations, and
 * frees it in the order of its stream: the host waits for nothing, and steps have the same bits. */
CK_TEST(a_program_with_a_pool_of_its_own) {
  enum { ROUNDS = 4 };
  const struct ck_setup setup =
      ck_setup_mode(ck_workload("mlp"), "cuda:0@64MiB", EK_MODE_REPLICATED);
  struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, 5, 0, 3);
  struct ck_training training = ck_training_opened(&setup), alone = ck_training_opened(&setup);
  ek_device *device = ek_group_device(training.group, 0);
  ek_stream *stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  const cudaStream_t theirs = new_stream(0);
  const float first[COUNT] = {1, 2, 3, 4, 5, 6, 7, 8};
  struct cuemu_usage before, usage;
  double got[COUNT];
  ek_tensor x = {0}, y = {0};
  ck_ok(ek_tensor_create(&y, device, EK_MEMORY_INPUTS, EK_F32, CK_SHAPE(ROUNDS, COUNT)));
  cuemu_usage(0, &before);
  for (int i = 0; i < ROUNDS; i++) {
    void *memory = NULL;
    CK_GOT(ek_tensor, row, ek_tensor_rows(&row, &y, i, 1));
    cuda_ok(cudaMallocAsync(&memory, sizeof first, theirs));
    cuda_ok(cudaLaunchHostFunc(theirs, be_slow, NULL));
    cuda_ok(cudaMemcpyAsync(memory, first, sizeof first, cudaMemcpyDefault, theirs));
    ck_ok(ek_tensor_wrap(&x, device, memory, EK_F32, CK_SHAPE(1, COUNT), NULL, NULL));
    ck_ok(ek_stream_wait_native(stream, theirs));
    ck_ok(ek_op_scale(stream, &row, &x, i + 1));
    ek_tensor_free(&row);
    ek_tensor_free(&x);
    ck_ok(ek_stream_native_wait(theirs, stream));
    cuda_ok(cudaFreeAsync(memory, theirs));
    ck_ok(ck_training_step(&training, &batch, NULL));
    ck_ok(ck_training_step(&alone, &batch, NULL));
  }
  for (int i = 0; i < ROUNDS; i++) {
    CK_GOT(ek_tensor, row, ek_tensor_rows(&row, &y, i, 1));
    ck_get(got, &row);
    ek_tensor_free(&row);
    for (int k = 0; k < COUNT; k++) ck_assert_double_eq(got[k], (i + 1) * (double)first[k]);
  }
  ek_tensor_free(&y);
  ck_runs_agree(&training, &alone, CK_VALUES, 0);
  cuda_ok(cudaStreamSynchronize(theirs));
  cuemu_usage(0, &usage);
  ck_assert_uint_eq(usage.allocations, before.allocations);
}

/* Their stream fills the memory while it is imported; the deleter waits for our work. */
static float *their_memory;
static float after[COUNT];
static void delete_theirs(ek_dlpack *self) {
  (void)self;
  cuda_ok(cudaMemcpy(after, their_memory, sizeof after, cudaMemcpyDefault));
}

CK_TEST(an_import_waits_for_their_stream_and_a_deletion_for_ours) {
  ek_device *device = ek_group_device(ck_open("cuda:1@64MiB", 0), 0);
  ek_stream *stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  const cudaStream_t theirs = new_stream(1);
  float first[COUNT] = {1, 2, 3, 4, 5, 6, 7, 8};
  int64_t shape[] = {COUNT};
  their_memory = new_memory(1, sizeof first);
  ek_dlpack head = {.major = 1, .deleter = delete_theirs,
                    .tensor = {.data = their_memory, .device_type = EK_DLPACK_CUDA,
                               .device_id = 1, .rank = 1, .code = EK_DLPACK_FLOAT, .bits = 32,
                               .lanes = 1, .shape = shape}};
  cuda_ok(cudaLaunchHostFunc(theirs, be_slow, NULL));
  cuda_ok(cudaMemcpyAsync(their_memory, first, sizeof first, cudaMemcpyDefault, theirs));
  CK_GOT(ek_tensor, x, ek_dlpack_import(&x, device, &head, theirs));
  ck_ok(ek_op_scale(stream, &x, &x, 7));
  ek_tensor_free(&x);
  for (int k = 0; k < COUNT; k++) ck_assert_float_eq(after[k], 7 * first[k]);
}

/* A tool hears of modules, copies and what the program marks, and a trace changes nothing of it. */
CK_LOOP(a_tool_hears_ranges, 2) {
  static char text[4096];
  ek_group *group = ck_open("cuda:0@64MiB", 0);
  ek_device *device = ek_group_device(group, 0);
  const size_t before = cuemu_heard(text, sizeof text);
  ck_assert(before >= strlen("evenkeel:") && strncmp(text, "evenkeel:", 9) == 0);
  if (_i == 1) ck_ok(ek_trace_start(group, 1)); /* with room for one span */
  const ek_trace_span outer = ek_trace_begin(device, "outer"), inner = ek_trace_begin(device, "in");
  ck_assert_int_eq(cuemu_range_depth(), 2);
  (void)ck_upload(device, EK_F32, NULL, CK_SHAPE(COUNT));
  ck_assert_int_eq(cuemu_range_depth(), 2);
  ek_trace_end(inner);
  ek_trace_end(outer);
  ck_assert_int_eq(cuemu_range_depth(), 0);
  if (_i == 1) ck_ok(ek_trace_stop(group));
  (void)cuemu_heard(text, sizeof text);
  ck_assert_str_eq(text + before, " outer in host to device");
}

/* ---- blocks of the arena as regions for a tool ---- */

/* Each tensor is a region of the bytes that it asked for: the stand-in refuses one that is in
 * another or beyond its heap, and the end of one that is not there. */
CK_LOOP(a_tool_learns_of_tensors, 2) {
  struct cuemu_regions before, now;
  ck_variable("EVENKEEL_CUDA_REGIONS", _i == 1 ? "1" : "0");
  cuemu_regions(&before);
  ek_group *group = ck_open("cuda:0x2@64MiB", 0);
  ek_device *device = ek_group_device(group, 1);
  cuemu_regions(&now);
  ck_assert_uint_eq(now.heaps, _i == 1 ? 2 : 0);
  const unsigned long own = now.regions; /* the workspace of each device */
  ck_assert_uint_eq(own, now.heaps);
  const int64_t count = 33, more = 5000;
  CK_OPENED(ek_tensor, x, ek_tensor_create(&x, device, EK_MEMORY_INPUTS, EK_F32, 1, &count));
  CK_OPENED(ek_tensor, y, ek_tensor_create(&y, device, EK_MEMORY_INPUTS, EK_F32, 1, &count));
  ek_tensor_free(&x);
  CK_OPENED(ek_tensor, z, ek_tensor_create(&z, device, EK_MEMORY_INPUTS, EK_F32, 1, &more));
  cuemu_regions(&now);
  ck_assert_uint_eq(now.regions, own + (_i == 1 ? 2 : 0));
  ck_assert_uint_eq(now.registered - before.registered, _i == 1 ? own + 3 : 0);
  ek_tensor_free(&z);
  ek_tensor_free(&y);
  ek_group_free(group);
  cuemu_regions(&now);
  ck_assert_uint_eq(now.heaps + now.regions, 0);
}

CK_EMULATED_SUITE("cuda borrowed")
