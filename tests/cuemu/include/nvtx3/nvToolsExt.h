/*
 * nvToolsExt.h - the part of NVTX that cuemu offers, for C and C++. cuemu itself is the tool: it
 * listens if the environment has CUEMU_NVTX=1 when the first domain is made, and keeps what it
 * hears (cuemu_heard() in cuemu.h).
 */
#ifndef CUEMU_NVTOOLSEXT_H
#define CUEMU_NVTOOLSEXT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NVTX_VERSION 3
#define NVTX_EVENT_ATTRIB_STRUCT_SIZE ((uint16_t)sizeof(nvtxEventAttributes_t))
#define NVTX_MESSAGE_TYPE_ASCII 1

typedef struct nvtxDomainRegistration_st *nvtxDomainHandle_t;

typedef struct nvtxEventAttributes_v2 {
  uint16_t version, size;
  int32_t messageType;
  union {
    const char *ascii;
  } message;
} nvtxEventAttributes_t;

/* NULL where no tool listens. */
nvtxDomainHandle_t nvtxDomainCreateA(const char *name);
/* The depth of the range, from 0; negative without a domain. */
int nvtxDomainRangePushEx(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *attributes);
int nvtxDomainRangePop(nvtxDomainHandle_t domain);

#ifdef __cplusplus
}
#endif
#endif
