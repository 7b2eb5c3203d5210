/*
 * ranges.c - NVTX, with a tool that keeps the names it hears.
 */
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum { MOST = 4096 };

struct nvtxDomainRegistration_st {
  size_t length;
  char names[MOST];
};
static struct nvtxDomainRegistration_st domain;
static _Thread_local int depth;

nvtxDomainHandle_t nvtxDomainCreateA(const char *name) {
  const char *text = getenv("CUEMU_NVTX");
  if (!text || strcmp(text, "1") != 0) return NULL;
  cuemu_lock();
  domain.length = (size_t)snprintf(domain.names, MOST, "%s:", name);
  cuemu_unlock();
  return &domain;
}

int nvtxDomainRangePushEx(nvtxDomainHandle_t handle, const nvtxEventAttributes_t *attributes) {
  if (!handle) return -1;
  const char *name = attributes->message.ascii;
  cuemu_lock();
  if (domain.length + strlen(name) + 2 < MOST) {
    domain.length += (size_t)sprintf(domain.names + domain.length, " %s", name);
  }
  cuemu_unlock();
  return depth++;
}

int nvtxDomainRangePop(nvtxDomainHandle_t handle) {
  if (!handle || depth == 0) return -1;
  return --depth;
}

size_t cuemu_heard(char *text, size_t size) {
  cuemu_lock();
  size_t length = domain.length;
  (void)snprintf(text, size, "%s", domain.names);
  cuemu_unlock();
  return length;
}

int cuemu_range_depth(void) { return depth; }
