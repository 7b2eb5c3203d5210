/*
 * cuda_ranges.c - the library's spans as ranges of NVTX, for nsys, ncu and compute-sanitizer.
 *
 * NVTX is a header: it looks for a tool when it is called first, and without one its functions do
 * nothing. A domain is then no domain, by which the library knows that no tool listens.
 */
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>

#include "backend/cuda/cuda_internal.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static nvtxDomainHandle_t domain;

static void open_domain(void) { domain = nvtxDomainCreateA("evenkeel"); }

bool ek__cuda_listens(void) {
  (void)pthread_once(&once, open_domain);
  return domain != NULL;
}

struct nvtxDomainRegistration_st *ek__cuda_domain(void) {
  return ek__cuda_listens() ? domain : NULL;
}

void ek__cuda_range_begin(const char *name) {
  nvtxEventAttributes_t attributes = {.version = NVTX_VERSION,
                                      .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
                                      .messageType = NVTX_MESSAGE_TYPE_ASCII,
                                      .message.ascii = name};
  (void)nvtxDomainRangePushEx(domain, &attributes);
}

void ek__cuda_range_end(void) { (void)nvtxDomainRangePop(domain); }
