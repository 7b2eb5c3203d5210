/*
 * plan_backend.c - devices that only count.
 *
 * No kernels, no memory: every decision about memory is made by the same code as for real devices,
 * on addresses that are never read. Each reservation gets a range of its own in the part of the
 * 64-bit address space that x86-64 and AArch64 leave unused, so that two devices never seem to
 * overlap and a program that touches one stops at once.
 *
 * `plan-cuda` counts what `cuda` devices take: the same, and the workspace of each.
 */
#include "backend/backend.h"
#include "backend/cuda/cuda_workspace.h"

#include <stdatomic.h>
#include <stdio.h>

#include "core/error.h"
#include "core/sizes.h"

#define MEMORY_BYTES ((uint64_t)1 << 50)
#define FIRST_BASE ((uint64_t)1 << 60)
#define BASE_STEP ((uint64_t)1 << 51)
#define BASES 1024 /* 2^60 .. 2^61; then the ranges are used again */

static ek_status describe(ek_device_description *descriptions, size_t capacity, size_t *count) {
  *count = 1;
  if (capacity == 0) return EK_OK;
  descriptions[0] = (ek_device_description){.name = "plan", .available = true};
  (void)snprintf(descriptions[0].text, sizeof descriptions[0].text,
                 "counts memory, computes nothing; any capacity up to 1 PiB");
  return EK_OK;
}

static ek_status memory_size(uint64_t *bytes, const ek_device *device, size_t devices) {
  (void)devices;
  (void)device;
  *bytes = MEMORY_BYTES;
  return EK_OK;
}

static ek_status memory_reserve(void **base, uint64_t bytes, const ek_device *device) {
  (void)device;
  static atomic_uint next;
  char most[32], wanted[32];
  EK__FAIL_IF(bytes > MEMORY_BYTES, EK_ERR_OUT_OF_MEMORY,
              "a plan device can have at most %s, not %s",
              ek__size_text(most, sizeof most, MEMORY_BYTES),
              ek__size_text(wanted, sizeof wanted, bytes));
  const uint64_t number = atomic_fetch_add(&next, 1u) % BASES;
  *base = (void *)(uintptr_t)(FIRST_BASE + number * BASE_STEP);
  return EK_OK;
}

static void memory_release(void *base, uint64_t bytes) {
  (void)base;
  (void)bytes;
}

static ek_status stream_open(void **native, ek_device *device, ek_stream_kind kind, int threads) {
  (void)device;
  (void)kind;
  (void)threads;
  *native = NULL;
  return EK_OK;
}

static void stream_close(void *native) { (void)native; }

#define PLAN(name)                                                                                 \
  EK__BACKEND_REQUIRED(name, describe, memory_size, memory_reserve, memory_release, stream_open,   \
                       stream_close)

const struct ek__backend ek__plan_backend = {PLAN("plan"),
                                             .values = EK_TYPES_F32 | EK_TYPES_F64 | EK_TYPES_BF16 |
                                                       EK_TYPES_F16,
                                             .tf32 = true,
                                             .shared_memory = true};

const struct ek__backend ek__plan_cuda_backend = {PLAN("plan-cuda"), .values = EK__CUDA_VALUES,
                                                  .planner = "plan-cuda",
                                                  .tf32 = true,
                                                  .workspace_bytes = EK__CUDA_DEVICE_BYTES,
                                                  .bucket_bytes = EK__CUDA_BUCKET_BYTES,
                                                  .table_rows = EK__CUDA_TABLE_ROWS};
