/*
 * fault_internal.h - the calls that begin work on a device, which ek_fault_at() counts.
 */
#ifndef EK_FAULT_INTERNAL_H
#define EK_FAULT_INTERNAL_H

#include <stdatomic.h>

#include <evenkeel/device.h>

struct ek__fault {
  _Atomic uint64_t left; /* pieces of work up to the one that fails, included; 0: none */
  atomic_int status;
};

/* Of a device: device.c. */
struct ek__fault *ek__device_fault(const ek_device *device);

/* The slow path of ek__fault_point(). */
ek_status ek__fault_reached(struct ek__fault *fault, const ek_device *device, const char *what);

/* Called once for each piece of work, before it; `what` names it in the message. */
static inline ek_status ek__fault_point(const ek_device *device, const char *what) {
  struct ek__fault *fault = ek__device_fault(device);
  if (atomic_load_explicit(&fault->left, memory_order_relaxed) == 0) return EK_OK;
  return ek__fault_reached(fault, device, what);
}

#endif /* EK_FAULT_INTERNAL_H */
