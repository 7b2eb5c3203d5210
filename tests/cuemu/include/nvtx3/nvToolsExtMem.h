/*
 * nvToolsExtMem.h - the part of NVTX's annotations of memory that cuemu offers. cuemu is the tool:
 * what it is told must make sense, and is counted (cuemu_regions() in cuemu.h).
 */
#ifndef CUEMU_NVTOOLSEXTMEM_H
#define CUEMU_NVTOOLSEXTMEM_H

#include "nvToolsExt.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NVTX_EXT_COMPATID_MEM 0x0102
#define NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR 0x1
#define NVTX_MEM_TYPE_VIRTUAL_ADDRESS 0x1
#define NVTX_MEM_REGION_REF_TYPE_POINTER 0x1

typedef struct nvtxMemHeap_v1 *nvtxMemHeapHandle_t;
typedef struct nvtxMemRegion_v1 *nvtxMemRegionHandle_t;

typedef union nvtxMemRegionRef_t {
  void const *pointer;
  nvtxMemRegionHandle_t handle;
} nvtxMemRegionRef_t;

typedef struct nvtxMemVirtualRangeDesc_v1 {
  size_t size;
  void const *ptr;
} nvtxMemVirtualRangeDesc_t;

typedef struct nvtxMemHeapDesc_v1 {
  uint16_t extCompatID, structSize;
  uint32_t reserved0, usage, type;
  size_t typeSpecificDescSize;
  void const *typeSpecificDesc;
  uint32_t category, messageType;
  union {
    const char *ascii;
  } message;
} nvtxMemHeapDesc_t;

typedef struct nvtxMemRegionsRegisterBatch_v1 {
  uint16_t extCompatID, structSize;
  uint32_t regionType;
  nvtxMemHeapHandle_t heap;
  size_t regionCount, regionDescElementSize;
  void const *regionDescElements;
  nvtxMemRegionHandle_t *regionHandleElementsOut;
} nvtxMemRegionsRegisterBatch_t;

typedef struct nvtxMemRegionsUnregisterBatch_v1 {
  uint16_t extCompatID, structSize;
  uint32_t refType;
  size_t refCount, refElementSize;
  nvtxMemRegionRef_t const *refElements;
} nvtxMemRegionsUnregisterBatch_t;

nvtxMemHeapHandle_t nvtxMemHeapRegister(nvtxDomainHandle_t domain, nvtxMemHeapDesc_t const *desc);
/* Its regions are gone with it. */
void nvtxMemHeapUnregister(nvtxDomainHandle_t domain, nvtxMemHeapHandle_t heap);
void nvtxMemRegionsRegister(nvtxDomainHandle_t domain, nvtxMemRegionsRegisterBatch_t const *desc);
void nvtxMemRegionsUnregister(nvtxDomainHandle_t domain,
                              nvtxMemRegionsUnregisterBatch_t const *desc);

#ifdef __cplusplus
}
#endif
#endif
