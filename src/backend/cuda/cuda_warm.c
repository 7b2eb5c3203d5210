/*
 * cuda_warm.c - makes a GPU load now what it would load later, to see what that costs.
 *
 * CUDA loads the code of a kernel when it is first used, takes memory for its threads' stacks when
 * it first runs, and NCCL takes its buffers for a kind of collective when that is first called. So
 * before the memory of a group is taken, each kernel of ours, each kind of matrix product and each
 * collective runs once on a few numbers, and what the GPU has less of afterwards is known.
 *
 * The second reason: loading in the middle of a step may wait for the whole GPU (cuda_wait.c).
 * So all forms that a kernel of ours has are run (tests/emulated holds it against all operations).
 *
 * More is loaded later: cuBLASLt has other kernels for other shapes, and a second model opens a
 * second NCCL communicator. So the reserve of a GPU, which only a default capacity leaves free, is
 * the measured amount again, rounded up to the pieces in which CUDA takes memory, plus one piece
 * for each device's events and handles.
 *
 * Code stays until the GPU is reset or the process ends: it is loaded once for all groups.
 */
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda_internal.h"

/* CUDA takes the memory of a GPU in pieces of this size. */
#define GRANULE ((uint64_t)2 << 20)

/* ---- what is known of a GPU in this process ---- */

enum { KNOWN_GPUS = 256 };
struct known {
  bool loaded;
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
  EK_TRY(EK__CUDA_GPU(gpu->physical, cudaSetDevice, gpu->physical));
  EK_TRY(EK__CUDA_GPU(gpu->physical, cudaMemGetInfo, &left, &total));
  *bytes = left;
  return EK_OK;
}

/* ---- kernels: a matrix of a few numbers, all zero, in all roles; 8 make a pack of 16 bits ---- */

enum { ROWS = 8, WIDTH = 16, TALL = 1024, PART = 64 << 10, PARTS = 8 };

/* One of each kind of arguments. What is read as an index or a target is where nothing writes. */
struct samples {
  struct ek__convert_args convert;
  struct ek__elementwise_args elementwise;
  struct ek__matrix_args matrix;
  struct ek__activation_args activation;
  struct ek__binary_args binary;
  struct ek__unary_args unary;
  struct ek__row_args row;
  struct ek__dropout_args dropout;
  struct ek__layer_norm_args layer_norm;
  struct ek__channel_args channel;
  struct ek__lookup_args lookup;
  struct ek__unfold_args unfold;
  struct ek__permute_args permute;
  struct ek__window_args window;
  struct ek__rotary_args rotary;
  struct ek__attention_args attention;
  struct ek__documents_args documents;
  struct ek__loss_args loss;
  struct ek__combine_args combine;
  struct ek__update_args update;
  struct ek__reduce_args reduce;
  struct ek__matmul_args product;
};

static struct samples samples_of(void *const part[PARTS], ek_type type) {
  const struct ek__types types = ek__types_in(type);
  return (struct samples){
      .convert = {part[0], part[1], (int64_t)ROWS * WIDTH, EK_F32, EK_F64},
      .elementwise = {part[0], part[1], part[2], (int64_t)ROWS * WIDTH, 1, types},
      .matrix = {part[0], part[1], part[2], ROWS, WIDTH, WIDTH, 0, types},
      .activation = {.y = part[0],
                     .x = part[1],
                     .dy = part[3],
                     .factor = part[2],
                     .dfactor = part[4],
                     .rows = ROWS,
                     .columns = WIDTH,
                     .types = types},
      .binary = {.y = part[0],
                 .a = part[1],
                 .b = part[2],
                 .rows = ROWS,
                 .columns = WIDTH,
                 .types = types},
      .unary = {.y = part[0],
                .x = part[1],
                .count = (int64_t)ROWS * WIDTH,
                .offset = 1,
                .types = types},
      .row = {.y = part[0],
              .a = part[1],
              .b = part[2],
              .rows = ROWS,
              .columns = WIDTH,
              .types = types},
      .dropout = {.y = part[0],
                  .x = part[1],
                  .samples = ROWS,
                  .per_sample = WIDTH,
                  .p = 0.5,
                  .types = types},
      .layer_norm = {.y = part[0],
                     .mean = part[1],
                     .rstd = part[2],
                     .sum = part[3],
                     .x = part[3],
                     .gamma = part[4],
                     .beta = part[4],
                     .dx = part[0],
                     .dgamma = part[5],
                     .dbeta = part[6],
                     .dy = part[3],
                     .epsilon = 1,
                     .rows = ROWS,
                     .width = WIDTH,
                     .types = types},
      .channel = {.y = part[0],
                  .x = part[1],
                  .dy = part[2],
                  .weight = part[3],
                  .bias = part[3],
                  .mean = part[4],
                  .rstd = part[5],
                  .average_g = part[4],
                  .average_gn = part[5],
                  .dweight = part[6],
                  .dbias = part[6],
                  .running_mean = part[4],
                  .running_variance = part[5],
                  .batches = part[6],
                  .sums = part[0],
                  .host_count = 1,
                  .epsilon = 1,
                  .rows = ROWS,
                  .channels = WIDTH,
                  .samples = 1,
                  .pieces = 1,
                  .groups = 1,
                  .types = types},
      .lookup = {.y = part[0],
                 .table = part[1],
                 .index = part[7],
                 .positions = part[2],
                 .rows = ROWS,
                 .width = WIDTH,
                 .entries = ROWS,
                 .period = 1,
                 .types = types},
      .unfold = {.y = part[0],
                 .x = part[1],
                 .rows = ROWS,
                 .height = 1,
                 .width = ROWS,
                 .channels = WIDTH,
                 .groups = 1,
                 .out_height = 1,
                 .out_width = ROWS,
                 .kernel = {1, 1},
                 .step = {1, 1},
                 .spread = {1, 1},
                 .dilation = {1, 1},
                 .types = types},
      .permute = {.y = part[0],
                  .x = part[1],
                  .size = {1, 1, ROWS, WIDTH},
                  .step = {0, 0, WIDTH, 1},
                  .types = types},
      .window = {.kind = EK__WINDOW_AVERAGE,
                 .y = part[0],
                 .x = part[1],
                 .places = part[2],
                 .images = 1,
                 .channels = WIDTH,
                 .side = {{.pixels = 1, .windows = 1, .kernel = 1, .stride = 1, .dilation = 1},
                          {.pixels = 1, .windows = 1, .kernel = 1, .stride = 1, .dilation = 1}},
                 .types = types},
      .rotary = {.x = part[0],
                 .samples = 1,
                 .tokens = ROWS,
                 .columns = WIDTH,
                 .heads = 1,
                 .head_width = 2,
                 .types = types},
      .attention = {.out = part[0],
                    .lse = part[1],
                    .dq = part[2],
                    .dk = part[5],
                    .dv = part[6],
                    .q = part[3],
                    .k = part[3],
                    .v = part[3],
                    .dout = part[4],
                    .q_step = 32,
                    .k_step = 32,
                    .v_step = 32,
                    .batch = 1,
                    .tokens = ROWS,
                    .heads = 1,
                    .kv_heads = 1,
                    .head_width = 32,
                    .types = types},
      .loss = {.losses = part[0],
               .normalizer = part[1],
               .totals = part[2],
               .gradient = part[3],
               .outputs = part[4],
               .targets = part[7],
               .rows = ROWS,
               .classes = WIDTH,
               .columns = WIDTH,
               .ignore_index = -1,
               .types = types},
      .documents = {.segments = part[7], .samples = 1, .tokens = ROWS},
      .combine = {part[0], part[1], part[2], {1}, 1, true},
      .update = {.p = part[0],
                 .state0 = part[1],
                 .state1 = part[2],
                 .g = part[3],
                 .count = WIDTH,
                 .epsilon = 1,
                 .correction1 = 1,
                 .correction2 = 1,
                 .types = types},
      .reduce = {&part[0], (const void *const *)&part[1], 1, 1, WIDTH, type},
      .product = ek__cuda_dense((struct ek__matmul_args){.c = part[0],
                                                         .a = part[1],
                                                         .b = part[2],
                                                         .m = ROWS,
                                                         .n = WIDTH,
                                                         .k = WIDTH,
                                                         .types = types})};
}

/* Runs ek__cuda_<name> over its sample, unless something failed before. A kernel that does not fit
 * into the shared memory of this GPU loads nothing here, and is an error when it is used. */
#define WARM(name, kind)                                                                           \
  if (error == cudaSuccess) error = ek__cuda_##name(at, &of->kind);                                \
  if (error == cudaErrorNotSupported) error = cudaSuccess;
#define WARM_ROW(name, kind, cut) WARM(name, kind)

/* What is added up by columns is added up in two stages where there are many rows. */
static cudaError_t warm_tall(const struct ek__cuda_place *at, struct samples *of) {
  cudaError_t error = cudaSuccess;
  of->matrix.rows = of->layer_norm.rows = TALL;
  of->matrix.columns = of->matrix.pitch = of->layer_norm.width = 1;
  WARM(column_sum, matrix)
  WARM(layer_norm_columns, layer_norm)
  of->channel.channels = 1; /* no pair of 16 bits */
  WARM(channel_moments, channel)
  WARM(channel_slopes, channel)
  return error;
}

/* What stands in for cuBLASLt. */
static cudaError_t warm_products(const struct ek__cuda_place *at, struct samples *of) {
  cudaError_t error = cudaSuccess;
  for (int gradient = 0; gradient < 2; gradient++) {
    of->product.gradient = gradient == 1;
    WARM(multiply_plainly, product)
  }
  WARM(spread_bias, matrix)
  return error;
}

/* Every width, causal alone and by the general rule, of f32 also in TF32. */
static cudaError_t warm_attention(const struct ek__cuda_place *at, struct samples *of) {
  cudaError_t error = cudaSuccess;
  const int forms = of->attention.types.value == EK_F32 ? 4 : 2;
  for (int form = 0; form < forms; form++) {
    of->attention.causal = form % 2 == 1;
    of->attention.types.tf32 = form / 2 == 1;
    for (int64_t width = 32; width <= EK__CUDA_MAX_HEAD_WIDTH; width *= 2) {
      of->attention.head_width = width;
      of->attention.q_step = of->attention.k_step = of->attention.v_step = width;
      WARM(attention_forward, attention)
      WARM(attention_backward, attention)
    }
  }
  return error;
}

/* All pairs of types that there are. */
static cudaError_t warm_conversions(const struct ek__cuda_place *at, struct samples *of) {
  static const ek_type pairs[][2] = {{EK_F64, EK_F32},  {EK_F32, EK_BF16}, {EK_BF16, EK_F32},
                                     {EK_F32, EK_F16},  {EK_F16, EK_F32},  {EK_BF16, EK_F16},
                                     {EK_F16, EK_BF16}, {EK_F32, EK_F64}};
  cudaError_t error = cudaSuccess;
  for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
    of->convert.to = pairs[i][0];
    of->convert.from = pairs[i][1];
    WARM(convert, convert)
  }
  return error;
}

/* All kernels, and then those that have more than one form. */
static cudaError_t warm_samples(const struct ek__cuda_place *at, struct samples *of,
                                void *const part[PARTS]) {
  cudaError_t error = cudaSuccess;
  EK__KERNEL_LIST(WARM_ROW)
  of->binary.spread = EK__SPREAD_ROWS;
  WARM(binary, binary)
  of->binary.spread = EK__SPREAD_COLUMNS;
  WARM(binary, binary)
  of->layer_norm.residual = part[7];
  WARM(layer_norm_forward, layer_norm)
  WARM(layer_norm_backward, layer_norm)
  WARM(layer_norm_columns, layer_norm)
  void *const dgamma = of->layer_norm.dgamma, *const dbeta = of->layer_norm.dbeta;
  of->layer_norm.dgamma = of->layer_norm.dbeta = NULL;
  WARM(layer_norm_backward, layer_norm)
  of->layer_norm.residual = NULL;
  WARM(layer_norm_backward, layer_norm)
  of->layer_norm.dgamma = dgamma;
  of->layer_norm.dbeta = dbeta;
  of->loss.soft = true;
  WARM(cross_entropy_forward, loss)
  WARM(cross_entropy_gradient, loss)
  WARM(cross_entropy_backward, loss)
  of->loss.soft = false;
  of->window.kind = EK__WINDOW_MAX;
  WARM(window_forward, window)
  WARM(window_backward, window)
  if (error == cudaSuccess) error = warm_attention(at, of);
  if (error == cudaSuccess) error = warm_conversions(at, of);
  if (error == cudaSuccess) error = warm_products(at, of);
#define ACTIVATION(NAME, name, kept)                                                               \
  of->activation.kind = EK_ACTIVATION_##NAME;                                                      \
  of->activation.bias = NULL;                                                                      \
  WARM(activation_forward, activation)                                                             \
  WARM(activation_backward, activation)                                                            \
  WARM(gate_forward, activation)                                                                   \
  WARM(gate_backward, activation)                                                                  \
  of->activation.bias = part[2];                                                                   \
  WARM(activation_forward, activation)
  EK_ACTIVATION_LIST(ACTIVATION)
  of->update.state0 = NULL;
  WARM(sgd, update)
  of->update.state0 = part[1];
  of->update.momentum = 0.5;
  WARM(sgd, update)
  of->loss.class_weights = part[5];
  of->loss.label_smoothing = 0.5;
  WARM(cross_entropy_backward, loss)
  return error == cudaSuccess ? warm_tall(at, of) : error;
}

/* In every type that is computed in. */
static ek_status warm_kernels(const struct ek__cuda_device *device, const struct ek__cuda_place *at,
                              char *zeros) {
  static const ek_type types[] = {EK_F32, EK_F64, EK_BF16, EK_F16};
  EK_TRY(EK__CUDA(device, cudaMemsetAsync, zeros, 0, (size_t)PARTS * PART, at->stream));
  for (size_t i = 0; i < 2 * sizeof types / sizeof types[0]; i++) {
    const ek_type type = types[i / 2];
    void *part[PARTS]; /* also beside 16 bytes, where other kernels read and write */
    if ((EK__CUDA_VALUES >> type & 1U) == 0) continue;
    for (size_t k = 0; k < PARTS; k++) part[k] = zeros + k * PART + i % 2 * sizeof(double);
    struct samples samples = samples_of(part, type);
    EK_TRY(ek__cuda_check(device, warm_samples(at, &samples, part), "loading the kernels"));
  }
  return EK_OK;
}

/* ---- a GPU ---- */

/* What stands in for a GPU in tests may be told that all that is launched in between is to be
 * loaded, and need not run: there that took longer than most tests. */
#ifdef EK__CUDA_WARMING
void EK__CUDA_WARMING(bool on);
#else
#define EK__CUDA_WARMING(on) ((void)0)
#endif

/* On the first device of the GPU, in memory that the arenas have later. */
static ek_status run_all(struct ek__cuda_gpu *gpu, struct ek__cuda_device *device) {
  char *scratch = gpu->scratch;
  const struct ek__cuda_place at = {.stream = device->streams[EK_STREAM_COMPUTE].handle,
                                    .workspace = scratch + EK__CUDA_PRODUCT_BYTES,
                                    .bad = device->bad,
                                    .gpu = gpu->physical,
                                    .shared_bytes = gpu->shared_bytes};
  EK_TRY(warm_kernels(device, &at, scratch));
  device->workspace = scratch; /* products work here, on numbers in the kernels' part */
  const ek_status status =
      ek__cuda_products_warm(&device->streams[EK_STREAM_COMPUTE], scratch + EK__CUDA_PRODUCT_BYTES);
  device->workspace = NULL;
  EK_TRY(status);
  return ek__cuda_finish(&device->streams[EK_STREAM_COMPUTE], "loading code");
}

static ek_status load_code(struct ek__cuda_gpu *gpu, struct ek__cuda_device *device) {
  EK_TRY(ek__cuda_enter(device));
  EK__CUDA_WARMING(true);
  const ek_status status = run_all(gpu, device);
  EK__CUDA_WARMING(false);
  return status;
}

static ek_status load_once(struct ek__cuda_group *group, struct ek__cuda_gpu *gpu) {
  struct known own = {.code = 0};
  struct known *it = gpu->physical < KNOWN_GPUS ? &known[gpu->physical] : &own;
  uint64_t before = 0, after = 0;
  EK_TRY(read_free(&before, gpu));
  if (!it->loaded) {
    EK_TRY(load_code(gpu, &group->devices[gpu->first]));
    it->loaded = true;
  }
  EK_TRY(read_free(&after, gpu));
  it->code += before > after ? before - after : 0;
  gpu->loaded = it->code;
  return EK_OK;
}

/* No more than a device needs later for itself. */
static ek_status take_scratch(struct ek__cuda_gpu *gpu) {
  EK_TRY(EK__CUDA_GPU(gpu->physical, cudaSetDevice, gpu->physical));
  return EK__CUDA_GPU(gpu->physical, cudaMalloc, &gpu->scratch, EK__CUDA_DEVICE_BYTES);
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

/* EVENKEEL_CUDA_WARM=0 (device.h): under a tool that slows kernels down this takes minutes. */
static bool is_left_out(void) {
  const char *text = getenv("EVENKEEL_CUDA_WARM");
  return text != NULL && strcmp(text, "0") == 0;
}

static ek_status warm_gpus(struct ek__cuda_group *group) {
  for (size_t i = 0; i < group->gpu_count; i++) EK_TRY(take_scratch(&group->gpus[i]));
  if (is_left_out()) return EK_OK;
  for (size_t i = 0; i < group->gpu_count; i++) EK_TRY(load_once(group, &group->gpus[i]));
  return EK_OK;
}

ek_status ek__cuda_warm(struct ek__cuda_group *group) {
  pthread_mutex_lock(&known_mutex);
  const ek_status status = warm_gpus(group);
  pthread_mutex_unlock(&known_mutex);
  return status;
}

ek_status ek__cuda_warm_link(struct ek__cuda_group *group) {
  /* Nothing of this process may wait for other processes with its lock. */
  const bool alone = group->members.world == NULL;
  ek_status status = EK_OK;
  if (group->nccl) {
    if (alone) pthread_mutex_lock(&known_mutex);
    status = warm_communicator(group);
    if (alone) pthread_mutex_unlock(&known_mutex);
  }
  /* Where it failed, work may be stuck: the closing of the group waits for that first. */
  if (status != EK_OK) return status;
  for (size_t i = 0; i < group->gpu_count; i++) {
    struct ek__cuda_gpu *gpu = &group->gpus[i];
    ek__cuda_warm_end(gpu);
    gpu->reserve = (gpu->loaded + GRANULE - 1) / GRANULE * GRANULE + gpu->count * GRANULE;
  }
  return EK_OK;
}
