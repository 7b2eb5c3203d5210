/*
 * cuda_warm.c - makes a GPU load now what it would load later, to see what that costs.
 *
 * CUDA loads the code of a kernel when it is first used, takes memory for its threads' stacks when
 * it first runs, and NCCL takes its buffers for a kind of collective when that is first called. So
 * before the memory of a group is taken, each kernel of ours, each kind of matrix product and each
 * collective runs once on a few numbers, and what the GPU has less of afterwards is known.
 *
 * What was not seen is of the same kind: cuBLASLt has other kernels for other shapes, ours have
 * forms for memory that is not aligned, and a second model opens a second NCCL communicator. So the
 * reserve of a GPU, which only the default capacity leaves alone, is as much again, in whole pieces
 * of those that CUDA takes memory in, and one piece more for each device's events and handles.
 *
 * Code stays until the GPU is reset or the process ends: it is loaded once for all groups.
 */
#include "backend/cuda/cuda_internal.h"

/* CUDA takes the memory of a GPU in pieces of this size. */
#define GRANULE ((uint64_t)2 << 20)

/* ---- what is known of a GPU in this process ---- */

enum { KNOWN_GPUS = 256 };
struct known {
  bool loaded, loaded_tf32;
  uint64_t code; /* bytes that loading took */
};
static pthread_mutex_t known_mutex = PTHREAD_MUTEX_INITIALIZER; /* held while a GPU loads */
static struct known known[KNOWN_GPUS];

void ek__cuda_warm_forget(int physical) {
  if (physical >= KNOWN_GPUS) return;
  pthread_mutex_lock(&known_mutex);
  known[physical] = (struct known){.code = 0};
  pthread_mutex_unlock(&known_mutex);
}

static ek_status read_free(uint64_t *bytes, const struct ek__cuda_gpu *gpu) {
  size_t left = 0, total = 0;
  EK_TRY(ek__cuda_check_gpu(gpu->physical, cudaSetDevice(gpu->physical), "cudaSetDevice"));
  EK_TRY(ek__cuda_check_gpu(gpu->physical, cudaMemGetInfo(&left, &total), "cudaMemGetInfo"));
  *bytes = left;
  return EK_OK;
}

/* ---- kernels: a matrix of a few numbers, all zero, in all roles ---- */

enum { ROWS = 2, WIDTH = 16, TOKENS = 4 };

struct place {
  cudaStream_t stream;
  char *data; /* zeros; parts of PART bytes */
  void *workspace;
  const struct ek__cuda_device *device;
};
enum { PART = 64 << 10, PARTS = 8 };

static void *part(const struct place *at, int number) { return at->data + (size_t)number * PART; }

static cudaError_t first_error(const cudaError_t *errors, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (errors[i] != cudaSuccess) return errors[i];
  }
  return cudaSuccess;
}
#define FIRST_ERROR(...)                                                                           \
  first_error((const cudaError_t[]){__VA_ARGS__},                                                  \
              sizeof((const cudaError_t[]){__VA_ARGS__}) / sizeof(cudaError_t))

static cudaError_t warm_elements(const struct place *at, ek_type type) {
  const cudaStream_t stream = at->stream;
  const struct ek__elementwise_args flat = {.y = part(at, 0),
                                            .a = part(at, 1),
                                            .b = part(at, 2),
                                            .count = (int64_t)ROWS * WIDTH,
                                            .value = 1,
                                            .type = type};
  const struct ek__matrix_args matrix = {.y = part(at, 0),
                                         .a = part(at, 1),
                                         .b = part(at, 2),
                                         .rows = ROWS,
                                         .columns = WIDTH,
                                         .type = type};
  const struct ek__dropout_args dropout = {.y = part(at, 0),
                                           .x = part(at, 1),
                                           .samples = ROWS,
                                           .per_sample = WIDTH,
                                           .p = 0.5,
                                           .type = type};
  return FIRST_ERROR(
      ek__cuda_fill(stream, &flat), ek__cuda_add(stream, &flat), ek__cuda_scale(stream, &flat),
      ek__cuda_add_bias(stream, &matrix), ek__cuda_column_sum(stream, &matrix, at->workspace),
      ek__cuda_dropout(stream, &dropout), ek__cuda_square_norm(stream, &flat, at->workspace));
}

/* Each activation with a bias, without one, and back. */
static cudaError_t warm_activations(const struct place *at, ek_type type) {
  static const ek_activation kinds[] = {
#define KIND(NAME, name, kept) EK_ACTIVATION_##NAME,
      EK_ACTIVATION_LIST(KIND)};
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
    struct ek__activation_args args = {.kind = kinds[i],
                                       .y = part(at, 0),
                                       .x = part(at, 1),
                                       .dy = part(at, 3),
                                       .rows = ROWS,
                                       .columns = WIDTH,
                                       .type = type};
    struct ek__activation_args with_bias = args;
    with_bias.bias = part(at, 2);
    const cudaError_t error = FIRST_ERROR(ek__cuda_activation_forward(at->stream, &args),
                                          ek__cuda_activation_forward(at->stream, &with_bias),
                                          ek__cuda_activation_backward(at->stream, &args));
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

static cudaError_t warm_layers(const struct place *at, ek_type type) {
  const cudaStream_t stream = at->stream;
  const struct ek__layer_norm_args norm = {.y = part(at, 0),
                                           .mean = part(at, 1),
                                           .rstd = part(at, 2),
                                           .x = part(at, 3),
                                           .gamma = part(at, 4),
                                           .beta = part(at, 4),
                                           .dx = part(at, 0),
                                           .dgamma = part(at, 5),
                                           .dbeta = part(at, 6),
                                           .dy = part(at, 3),
                                           .epsilon = 1,
                                           .rows = ROWS,
                                           .width = WIDTH,
                                           .type = type};
  struct ek__layer_norm_args of_a_sum = norm;
  of_a_sum.sum = part(at, 3);
  of_a_sum.residual = part(at, 7);
  const struct ek__lookup_args lookup = {.y = part(at, 0),
                                         .table = part(at, 1),
                                         .index = part(at, 7),
                                         .positions = part(at, 2),
                                         .rows = ROWS,
                                         .width = WIDTH,
                                         .entries = ROWS,
                                         .period = 1,
                                         .type = type};
  return FIRST_ERROR(ek__cuda_layer_norm_forward(stream, &norm),
                     ek__cuda_layer_norm_backward(stream, &norm, at->workspace),
                     ek__cuda_layer_norm_forward(stream, &of_a_sum),
                     ek__cuda_layer_norm_backward(stream, &of_a_sum, at->workspace),
                     ek__cuda_lookup_forward(stream, &lookup, at->device->bad),
                     ek__cuda_lookup_backward(stream, &lookup, at->device->bad),
                     ek__cuda_positions_backward(stream, &lookup));
}

/* The kernels are made for heads of up to 32, 64, 128 and 256. */
static cudaError_t warm_attention(const struct place *at, ek_type type) {
  for (int64_t head = 32; head <= EK__CUDA_MAX_HEAD_WIDTH; head *= 2) {
    const struct ek__attention_args args = {.out = part(at, 0),
                                            .lse = part(at, 1),
                                            .dqkv = part(at, 2),
                                            .qkv = part(at, 3),
                                            .dout = part(at, 4),
                                            .batch = 1,
                                            .tokens = TOKENS,
                                            .heads = 1,
                                            .head_width = head,
                                            .type = type};
    const cudaError_t error = FIRST_ERROR(ek__cuda_attention_forward(at->stream, &args),
                                          ek__cuda_attention_backward(at->stream, &args));
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

static cudaError_t warm_losses(const struct place *at, ek_type type) {
  const cudaStream_t stream = at->stream;
  const struct ek__loss_args entropy = {.losses = part(at, 0),
                                        .normalizer = part(at, 1),
                                        .totals = part(at, 2),
                                        .gradient = part(at, 3),
                                        .outputs = part(at, 4),
                                        .targets = part(at, 7),
                                        .rows = ROWS,
                                        .classes = WIDTH,
                                        .ignore_index = -1,
                                        .type = type};
  struct ek__loss_args squared = entropy;
  squared.rows = (int64_t)ROWS * WIDTH;
  squared.classes = 1;
  squared.targets = part(at, 5);
  const struct ek__combine_args combine = {.combined = part(at, 0),
                                           .scales = part(at, 1),
                                           .totals = part(at, 2),
                                           .coefficients = {1},
                                           .terms = 1,
                                           .divide = true};
  return FIRST_ERROR(
      ek__cuda_cross_entropy_forward(stream, &entropy, at->workspace, at->device->bad),
      ek__cuda_cross_entropy_backward(stream, &entropy, at->workspace, at->device->bad),
      ek__cuda_cross_entropy_gradient(stream, &entropy, at->workspace, at->device->bad),
      ek__cuda_squared_error_forward(stream, &squared, at->workspace),
      ek__cuda_squared_error_backward(stream, &squared), ek__cuda_combine_totals(stream, &combine));
}

static cudaError_t warm_training(const struct place *at, ek_type type) {
  const struct ek__update_args update = {.p = part(at, 0),
                                         .state0 = part(at, 1),
                                         .state1 = part(at, 2),
                                         .g = part(at, 3),
                                         .count = WIDTH,
                                         .epsilon = 1,
                                         .correction1 = 1,
                                         .correction2 = 1,
                                         .type = type};
  void *destination = part(at, 0);
  const void *source = part(at, 1);
  const struct ek__reduce_args reduce = {.destinations = &destination,
                                         .sources = &source,
                                         .destination_count = 1,
                                         .source_count = 1,
                                         .count = WIDTH,
                                         .type = type};
  return FIRST_ERROR(ek__cuda_sgd(at->stream, &update), ek__cuda_adamw(at->stream, &update),
                     ek__cuda_reduce(at->stream, &reduce));
}

static ek_status warm_kernels(const struct place *at) {
  static const ek_type types[] = {EK_F32, EK_F64};
  EK_TRY(ek__cuda_check(at->device, cudaMemsetAsync(at->data, 0, (size_t)PARTS * PART, at->stream),
                        "cudaMemsetAsync"));
  for (size_t i = 0; i < 2; i++) {
    const cudaError_t error = FIRST_ERROR(
        warm_elements(at, types[i]), warm_activations(at, types[i]), warm_layers(at, types[i]),
        warm_attention(at, types[i]), warm_losses(at, types[i]), warm_training(at, types[i]));
    EK_TRY(ek__cuda_check(at->device, error, "loading the kernels"));
  }
  return EK_OK;
}

/* ---- a GPU ---- */

/* On the first device of the GPU, in memory that the arenas have later. */
static ek_status load_code(struct ek__cuda_gpu *gpu, struct ek__cuda_device *device) {
  char *scratch = gpu->scratch;
  const struct place at = {.stream = device->streams[EK_STREAM_COMPUTE].handle,
                           .data = scratch,
                           .workspace = scratch + EK__CUDA_PRODUCT_BYTES,
                           .device = device};
  EK_TRY(ek__cuda_enter(device));
  EK_TRY(warm_kernels(&at));
  device->workspace = scratch; /* products work here, on numbers in the kernels' part */
  const ek_status status =
      ek__cuda_products_warm(&device->streams[EK_STREAM_COMPUTE], scratch + EK__CUDA_PRODUCT_BYTES);
  device->workspace = NULL;
  EK_TRY(status);
  return ek__cuda_finish(&device->streams[EK_STREAM_COMPUTE], "loading code");
}

static ek_status load_once(struct ek__cuda_group *group, struct ek__cuda_gpu *gpu) {
  struct known own = {.code = 0};
  struct known *it = gpu->physical < KNOWN_GPUS ? &known[gpu->physical] : &own;
  uint64_t before = 0, after = 0;
  if (!it->loaded || (group->options.allow_tf32 && !it->loaded_tf32)) {
    EK_TRY(read_free(&before, gpu));
    EK_TRY(load_code(gpu, &group->devices[gpu->first]));
    EK_TRY(read_free(&after, gpu));
    it->loaded = true;
    it->loaded_tf32 = it->loaded_tf32 || group->options.allow_tf32;
    it->code += before > after ? before - after : 0;
  }
  gpu->loaded = it->code;
  return EK_OK;
}

static ek_status take_scratch(struct ek__cuda_gpu *gpu) {
  EK_TRY(ek__cuda_check_gpu(gpu->physical, cudaSetDevice(gpu->physical), "cudaSetDevice"));
  return ek__cuda_check_gpu(gpu->physical, cudaMalloc(&gpu->scratch, EK__CUDA_DEVICE_BYTES),
                            "cudaMalloc");
}

void ek__cuda_warm_end(struct ek__cuda_gpu *gpu) {
  if (gpu->scratch == NULL) return;
  (void)cudaSetDevice(gpu->physical);
  (void)cudaFree(gpu->scratch);
  gpu->scratch = NULL;
}

static ek_status warm_communicator(struct ek__cuda_group *group) {
  for (size_t i = 0; i < group->gpu_count; i++) {
    EK_TRY(read_free(&group->gpus[i].before, &group->gpus[i]));
  }
  EK_TRY(ek__cuda_nccl_warm(group));
  for (size_t i = 0; i < group->gpu_count; i++) {
    struct ek__cuda_gpu *gpu = &group->gpus[i];
    uint64_t after = 0;
    EK_TRY(read_free(&after, gpu));
    gpu->loaded += gpu->before > after ? gpu->before - after : 0;
  }
  return EK_OK;
}

static ek_status warm_gpus(struct ek__cuda_group *group) {
  for (size_t i = 0; i < group->gpu_count; i++) EK_TRY(take_scratch(&group->gpus[i]));
  for (size_t i = 0; i < group->gpu_count; i++) EK_TRY(load_once(group, &group->gpus[i]));
  return group->nccl ? warm_communicator(group) : EK_OK;
}

ek_status ek__cuda_warm(struct ek__cuda_group *group) {
  pthread_mutex_lock(&known_mutex);
  const ek_status status = warm_gpus(group);
  pthread_mutex_unlock(&known_mutex);
  /* Where it failed, work may be stuck: the closing of the group waits for that first. */
  if (status != EK_OK) return status;
  for (size_t i = 0; i < group->gpu_count; i++) {
    struct ek__cuda_gpu *gpu = &group->gpus[i];
    ek__cuda_warm_end(gpu);
    gpu->reserve = (gpu->loaded + GRANULE - 1) / GRANULE * GRANULE + gpu->count * GRANULE;
  }
  return EK_OK;
}
