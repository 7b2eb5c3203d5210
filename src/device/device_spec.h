/*
 * device_spec.h - reads device strings such as "cpu:4@512MiB" or "cuda:0x2,1x2@8GiB".
 */
#ifndef EK_DEVICE_SPEC_H
#define EK_DEVICE_SPEC_H

#include "backend/backend.h"

/* The caller frees *spec. The error shows the string and a mark under the place of the mistake. */
ek_status ek__device_spec_parse(struct ek__device_spec *spec, const char *text);
void ek__device_spec_free(struct ek__device_spec *spec);

#endif /* EK_DEVICE_SPEC_H */
