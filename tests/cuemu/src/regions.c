/*
 * regions.c - NVTX's heaps and regions of memory. A heap that is no memory of a device, a region
 * that is in no heap or in another region, and one that is not there end the program.
 */
#include <nvtx3/nvToolsExtMem.h>
#include <stdio.h>
#include <stdlib.h>

#include "internal.h"

struct span {
  struct span *next;
  const char *begin, *end;
};
struct nvtxMemHeap_v1 {
  struct nvtxMemHeap_v1 *next;
  const char *begin, *end;
  struct span *regions;
};

static struct nvtxMemHeap_v1 *heaps;
static struct cuemu_regions counts;

static void refuse(const char *what) {
  fprintf(stderr, "cuemu: NVTX: %s\n", what);
  abort();
}

nvtxMemHeapHandle_t nvtxMemHeapRegister(nvtxDomainHandle_t domain, nvtxMemHeapDesc_t const *desc) {
  if (!domain) return NULL;
  const nvtxMemVirtualRangeDesc_t *range = desc->typeSpecificDesc;
  if (desc->extCompatID != NVTX_EXT_COMPATID_MEM || desc->structSize != sizeof *desc ||
      desc->usage != NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR ||
      desc->type != NVTX_MEM_TYPE_VIRTUAL_ADDRESS || desc->typeSpecificDescSize != sizeof *range) {
    refuse("a heap is described wrongly");
  }
  struct nvtxMemHeap_v1 *heap = cuemu_new(sizeof *heap);
  cuemu_lock();
  const char *begin = range->ptr;
  *heap = (struct nvtxMemHeap_v1){heaps, begin, begin + range->size, NULL};
  heaps = heap;
  counts.heaps++;
  cuemu_unlock();
  return heap;
}

void nvtxMemHeapUnregister(nvtxDomainHandle_t domain, nvtxMemHeapHandle_t heap) {
  if (!domain) return;
  cuemu_lock();
  struct nvtxMemHeap_v1 **link = &heaps;
  while (*link && *link != heap) link = &(*link)->next;
  if (!*link) refuse("no such heap");
  *link = heap->next;
  while (heap->regions) {
    struct span *region = heap->regions;
    heap->regions = region->next;
    counts.regions--;
    free(region);
  }
  counts.heaps--;
  free(heap);
  cuemu_unlock();
}

void nvtxMemRegionsRegister(nvtxDomainHandle_t domain, nvtxMemRegionsRegisterBatch_t const *desc) {
  if (!domain) return;
  const nvtxMemVirtualRangeDesc_t *range = desc->regionDescElements;
  if (desc->extCompatID != NVTX_EXT_COMPATID_MEM || desc->structSize != sizeof *desc ||
      desc->regionType != NVTX_MEM_TYPE_VIRTUAL_ADDRESS || desc->regionCount != 1 ||
      desc->regionDescElementSize != sizeof *range || range->size == 0) {
    refuse("a region is described wrongly");
  }
  const char *begin = range->ptr, *end = begin + range->size;
  struct span *region = cuemu_new(sizeof *region);
  cuemu_lock();
  if (begin < desc->heap->begin || end > desc->heap->end) refuse("a region beyond its heap");
  for (const struct span *other = desc->heap->regions; other; other = other->next) {
    if (begin < other->end && end > other->begin) refuse("a region in another region");
  }
  *region = (struct span){desc->heap->regions, begin, end};
  desc->heap->regions = region;
  counts.regions++;
  counts.registered++;
  cuemu_unlock();
  cuemu_note(NULL, "region");
}

static struct span **find(const void *begin) {
  for (struct nvtxMemHeap_v1 *heap = heaps; heap; heap = heap->next) {
    for (struct span **link = &heap->regions; *link; link = &(*link)->next) {
      if ((*link)->begin == begin) return link;
    }
  }
  return NULL;
}

void nvtxMemRegionsUnregister(nvtxDomainHandle_t domain,
                              nvtxMemRegionsUnregisterBatch_t const *desc) {
  if (!domain) return;
  if (desc->extCompatID != NVTX_EXT_COMPATID_MEM || desc->structSize != sizeof *desc ||
      desc->refType != NVTX_MEM_REGION_REF_TYPE_POINTER || desc->refCount != 1 ||
      desc->refElementSize != sizeof *desc->refElements) {
    refuse("the end of a region is described wrongly");
  }
  cuemu_lock();
  struct span **link = find(desc->refElements->pointer);
  if (!link) refuse("no such region");
  struct span *region = *link;
  *link = region->next;
  counts.regions--;
  cuemu_unlock();
  free(region);
}

void cuemu_regions(struct cuemu_regions *now) {
  cuemu_lock();
  *now = counts;
  cuemu_unlock();
}
