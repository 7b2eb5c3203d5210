/*
 * fault.c - makes the n-th piece of work on a device fail, for tests.
 *
 * Every checked entry point that gives work to a device calls ek__fault_point() first. Unless a
 * test has armed the device, that is one relaxed load.
 */
#include <evenkeel/fault.h>

#include "core/error.h"
#include "device/fault_internal.h"

ek_status ek_fault_at(ek_device *device, uint64_t n, ek_status status) {
  EK__FAIL_IF(device == NULL || (n > 0 && status == EK_OK), EK_ERR_INVALID_ARGUMENT,
              "ek_fault_at: %s", device == NULL ? "device may not be NULL" : "status may not be "
                                                                             "EK_OK");
  struct ek__fault *fault = ek__device_fault(device);
  /* The status first: a thread that sees the new count sees it too. */
  atomic_store_explicit(&fault->status, (int)status, memory_order_relaxed);
  atomic_store_explicit(&fault->left, n, memory_order_release);
  return EK_OK;
}

ek_status ek__fault_reached(struct ek__fault *fault, const ek_device *device, const char *what) {
  uint64_t left = atomic_load_explicit(&fault->left, memory_order_acquire);
  while (left != 0) {
    if (!atomic_compare_exchange_weak(&fault->left, &left, left - 1)) continue;
    if (left > 1) return EK_OK;
    return ek_error_set((ek_status)atomic_load_explicit(&fault->status, memory_order_relaxed),
                        "%s: %s: (failure requested by a test)", ek_device_name(device), what);
  }
  return EK_OK;
}
