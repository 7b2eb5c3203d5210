/*
 * check_cudnn_graph.c - the real cuDNN takes our graphs of attention and makes plans of them, for
 * GPUs that need not be here.
 *
 * Since 9.8 a plan may be made for a GPU that is described in words. No handle and no GPU are
 * needed, only NVRTC and a library called libcuda.so.1 that takes the code (cuda_taker.c). Skipped
 * without cuDNN. Prints workspaces; a step has 32 MiB for them.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "backend/cuda/cuda_cudnn.h"

enum { SKIPPED = 77, DEVICE_PROPERTIES = 38, JSON = 2702, OF_CHARACTERS = 24 };

/* What differs of an H100 and an A100. */
static const struct gpu {
  const char *name;
  int capability, processors, shared, cache, clock, memory_clock;
} gpus[] = {{"H100", 900, 132, 232448, 52428800, 1980000, 2619000},
            {"A100", 800, 108, 166912, 41943040, 1410000, 1593000}};

static int describe(void **properties, const struct ek__cudnn *cudnn, const struct gpu *gpu) {
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
  int status = cudnn->BackendCreateDescriptor(DEVICE_PROPERTIES, properties);
  if (status != 0) return status;
  status = cudnn->BackendSetAttribute(*properties, JSON, OF_CHARACTERS, length, text);
  return status == 0 ? cudnn->BackendFinalize(*properties) : status;
}

static int check(const struct ek__cudnn *cudnn, const struct gpu *gpu, void *properties,
                 const struct ek__cudnn_shape *shape) {
  struct ek__cudnn_plan plan;
  const int status = ek__cudnn_plan_open(&plan, cudnn, shape, NULL, properties);
  printf("%s, %s %s: status %d, workspace %llu\n", gpu->name, shape->bf16 ? "bf16" : "f16",
         shape->backward ? "backward" : "forward", status, (unsigned long long)plan.workspace);
  ek__cudnn_plan_close(&plan);
  return status == 0 ? 0 : 1;
}

int main(void) {
  /* Packed, as a GPT has it; and a short one in tensors of their own. */
  static const struct ek__cudnn_shape shapes[] = {{8, 1024, 12, 64, 2304, 2304, 2304, 1, 0},
                                                  {8, 1024, 12, 64, 2304, 2304, 2304, 1, 1},
                                                  {2, 100, 4, 32, 128, 128, 128, 0, 1}};
  static const size_t end[] = {2, 3}; /* of those for each GPU */
  struct ek__cudnn cudnn;
  int failed = 0;
  void *library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return SKIPPED;
#define ENTRY(result, name, parameters)                                                            \
  void *name = dlsym(library, "cudnn" #name);                                                      \
  if (name == NULL) return 1;                                                                      \
  memcpy(&cudnn.name, &name, sizeof name);
  EK__CUDNN_LIST(ENTRY)
  printf("cuDNN %zu\n", cudnn.GetVersion());
  if (cudnn.GetVersion() < 91900) return SKIPPED;
  for (size_t i = 0, k = 0; i < sizeof gpus / sizeof gpus[0]; i++) {
    void *properties = NULL;
    if (describe(&properties, &cudnn, &gpus[i]) != 0) return 1;
    for (; k < end[i]; k++) failed += check(&cudnn, &gpus[i], properties, &shapes[k]);
    (void)cudnn.BackendDestroyDescriptor(properties);
  }
  return failed != 0;
}
