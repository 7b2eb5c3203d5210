/*
 * cuda_regions.c - the tensors of an arena as regions of NVTX, for compute-sanitizer.
 *
 * An arena is one allocation of CUDA, so that a tool that knows CUDA's allocations alone sees no
 * tensor's end, and takes for initialised what an earlier tensor wrote. With
 * EVENKEEL_CUDA_REGIONS=1 in the environment and a tool that listens, an arena is a heap, and each
 * block in use a region of it, with the bytes that its tensor asked for. A block is given back when
 * the host drops it, while work on the stream may still use it: run such a program with
 * CUDA_LAUNCH_BLOCKING=1. Memory that the program has lent is no heap of ours.
 */
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda_internal.h"

/* Older toolkits do not have it. */
#if __has_include(<nvtx3/nvToolsExtMem.h>)
#include <nvtx3/nvToolsExtMem.h>

static bool is_asked_for(void) {
  const char *text = getenv("EVENKEEL_CUDA_REGIONS");
  return text != NULL && strcmp(text, "1") == 0 && ek__cuda_listens();
}

void ek__cuda_heap_open(struct ek__cuda_device *device, const void *base, uint64_t bytes) {
  if (!is_asked_for()) return;
  const nvtxMemVirtualRangeDesc_t range = {.size = (size_t)bytes, .ptr = base};
  const nvtxMemHeapDesc_t heap = {.extCompatID = NVTX_EXT_COMPATID_MEM,
                                  .structSize = sizeof heap,
                                  .usage = NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR,
                                  .type = NVTX_MEM_TYPE_VIRTUAL_ADDRESS,
                                  .typeSpecificDescSize = sizeof range,
                                  .typeSpecificDesc = &range,
                                  .messageType = NVTX_MESSAGE_TYPE_ASCII,
                                  .message.ascii = device->name};
  device->heap = nvtxMemHeapRegister(ek__cuda_domain(), &heap);
}

void ek__cuda_heap_close(struct ek__cuda_device *device) {
  if (device->heap != NULL) nvtxMemHeapUnregister(ek__cuda_domain(), device->heap);
  device->heap = NULL;
}

void ek__cuda_block_taken(const ek_device *raw, const void *address, uint64_t bytes) {
  const struct ek__cuda_device *device = ek__cuda_device_of(raw);
  if (device->heap == NULL) return;
  const nvtxMemVirtualRangeDesc_t range = {.size = (size_t)bytes, .ptr = address};
  const nvtxMemRegionsRegisterBatch_t batch = {.extCompatID = NVTX_EXT_COMPATID_MEM,
                                               .structSize = sizeof batch,
                                               .regionType = NVTX_MEM_TYPE_VIRTUAL_ADDRESS,
                                               .heap = device->heap,
                                               .regionCount = 1,
                                               .regionDescElementSize = sizeof range,
                                               .regionDescElements = &range};
  nvtxMemRegionsRegister(ek__cuda_domain(), &batch);
}

void ek__cuda_block_given(const ek_device *raw, const void *address) {
  if (ek__cuda_device_of(raw)->heap == NULL) return;
  const nvtxMemRegionRef_t region = {.pointer = address};
  const nvtxMemRegionsUnregisterBatch_t batch = {.extCompatID = NVTX_EXT_COMPATID_MEM,
                                                 .structSize = sizeof batch,
                                                 .refType = NVTX_MEM_REGION_REF_TYPE_POINTER,
                                                 .refCount = 1,
                                                 .refElementSize = sizeof region,
                                                 .refElements = &region};
  nvtxMemRegionsUnregister(ek__cuda_domain(), &batch);
}

#else

void ek__cuda_heap_open(struct ek__cuda_device *device, const void *base, uint64_t bytes) {
  (void)device, (void)base, (void)bytes;
}

void ek__cuda_heap_close(struct ek__cuda_device *device) { (void)device; }

void ek__cuda_block_taken(const ek_device *device, const void *address, uint64_t bytes) {
  (void)device, (void)address, (void)bytes;
}

void ek__cuda_block_given(const ek_device *device, const void *address) {
  (void)device, (void)address;
}

#endif
