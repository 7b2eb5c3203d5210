/*
 * device_spec.h - reads device strings such as "cpu:4@512MiB".
 */
#ifndef EK_DEVICE_SPEC_H
#define EK_DEVICE_SPEC_H

#include <stddef.h>
#include <stdint.h>

#include <evenkeel/status.h>

struct ek__device_spec {
  char backend[16];
  size_t count;
  uint64_t capacity; /* 0: not given */
};

/* The error shows the string and a mark under the place that is wrong. */
ek_status ek__device_spec_parse(struct ek__device_spec *spec, const char *text);

#endif /* EK_DEVICE_SPEC_H */
