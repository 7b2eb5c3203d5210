/*
 * check_cudnn_graph.c - the real cuDNN takes our graph of attention and makes plans of it, for GPUs
 * that need not be here.
 *
 * Since 9.8 a plan may be made for a GPU that is described in words instead of the GPU of a handle.
 * Then no GPU is needed, only a library called libcuda.so.1 that takes the code (cuda_taker.c).
 * Skipped without cuDNN. Prints workspaces; a step has 32 MiB for them.
 */
#include <stdio.h>

#include "backend/cuda/cuda_cudnn.h"

enum { SKIPPED = 77, DEVICE_PROPERTIES = 38, JSON = 2702, OF_CHARACTERS = 24, OF_DESCRIPTOR = 15 };
enum { HEURISTIC_MODE = 200, HEURISTIC_PROPERTIES = 204, PLAN_HANDLE = 400, PLAN_PROPERTIES = 407 };
enum { GRAPH_HANDLE = 800 };

/* GPUs, and a shape for each: rows of q, k and v are a step of elements apart. */
static const struct gpu {
  const char *name;
  int capability, processors, shared, cache, clock, memory_clock;
  int64_t batch, tokens, heads, width, step;
  ek_type type;
} gpus[] = {{"H100", 900, 132, 232448, 52428800, 1980000, 2619000, /* packed, as a GPT has it */
             8, 1024, 12, 64, 2304, EK_BF16},
            {"A100", 800, 108, 166912, 41943040, 1410000, 1593000, /* in tensors of their own */
             2, 101, 4, 32, 128, EK_F16}};

static struct ek__cudnn cudnn;
static void *properties; /* of the GPU; given where the library gives a handle */

static int describe(const struct gpu *gpu) {
  char text[1024];
  const int length = snprintf(
      text, sizeof text,
      "{\"deviceVer\":%d,\"driverVer\":13000,\"cudaDeviceId\":0,\"deviceName\":\"%s\","
      "\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],"
      "\"regsPerBlock\":65536,\"multiProcessorCount\":%d,\"smCountOrigin\":0,\"warpSize\":32,"
      "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":%d,"
      "\"oversizedSharedMemoryPerBlock\":0,\"reservedSharedMemoryPerBlock\":1024,"
      "\"maxRegistersPerSM\":65536,\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,"
      "\"maxThreadsPerSM\":2048,\"pciDeviceId\":0,\"isTccDriver\":0,\"supportCoopLaunch\":1,"
      "\"totalGlobalMem\":85017755648,\"smClockRateKHz\":%d,\"memClockRateKHz\":%d,"
      "\"l2CacheSize\":%d}",
      gpu->capability, gpu->name, gpu->processors, gpu->shared, gpu->clock, gpu->memory_clock,
      gpu->cache);
  int status = cudnn.BackendCreateDescriptor(DEVICE_PROPERTIES, &properties);
  if (status != 0) return status;
  status = cudnn.BackendSetAttribute(properties, JSON, OF_CHARACTERS, length, text);
  return status == 0 ? cudnn.BackendFinalize(properties) : status;
}

/* Sets properties where the library sets a handle. */
static int set(void *descriptor, int name, int type, int64_t count, const void *values) {
  if (name == GRAPH_HANDLE) return 0;
  if (name == PLAN_HANDLE || name == HEURISTIC_MODE) {
    const int of = name == PLAN_HANDLE ? PLAN_PROPERTIES : HEURISTIC_PROPERTIES;
    const int status = cudnn.BackendSetAttribute(descriptor, of, OF_DESCRIPTOR, 1, &properties);
    if (status != 0 || name == PLAN_HANDLE) return status;
  }
  return cudnn.BackendSetAttribute(descriptor, name, type, count, values);
}

static int check(const struct gpu *gpu) {
  const struct ek__attention_args args = {.q_step = gpu->step, .k_step = gpu->step,
                                          .v_step = gpu->step, .batch = gpu->batch,
                                          .tokens = gpu->tokens, .heads = gpu->heads,
                                          .head_width = gpu->width, .types.value = gpu->type};
  struct ek__cudnn_plan plan;
  struct ek__cudnn without_handle = cudnn;
  without_handle.BackendSetAttribute = set;
  const int status = ek__cudnn_plan_open(&plan, &without_handle, properties, &args);
  printf("%s, %lld x %lld x %lld x %lld: status %d, workspace %lld\n", gpu->name,
         (long long)gpu->batch, (long long)gpu->tokens, (long long)gpu->heads,
         (long long)gpu->width, status, (long long)plan.workspace);
  ek__cudnn_plan_close(&plan);
  return status == 0 ? 0 : 1;
}

int main(void) {
  int failed = 0;
  const char *missing = ek__cudnn_load(&cudnn, "libcudnn.so.9");
  if (missing != NULL) {
    printf("cuDNN: %s\n", missing);
    return SKIPPED;
  }
  printf("cuDNN %zu\n", cudnn.GetVersion());
  for (size_t i = 0; i < sizeof gpus / sizeof gpus[0]; i++) {
    if (describe(&gpus[i]) != 0) return 1;
    failed += check(&gpus[i]);
    (void)cudnn.BackendDestroyDescriptor(properties);
  }
  return failed != 0;
}
