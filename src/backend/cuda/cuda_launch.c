/*
 * cuda_launch.c - slots of kernels: each queues its kernel on the given stream. Products have
 * files of their own.
 */
#include "backend/cuda/cuda_internal.h"

_Static_assert(EK__CUDA_KERNEL_BYTES >= EK__CUDA_WORKSPACE, "the kernels' workspace is too small");

/* ---- slots that launch kernels of ours ---- */

static ek_status check_head(const struct ek__cuda_device *device, const void *raw) {
  const struct ek__attention_args *args = raw;
  if (args->head_width <= EK__CUDA_MAX_HEAD_WIDTH) return EK_OK;
  return ek__cuda_host->error_set(
      EK_ERR_UNSUPPORTED, "%s: attention: heads are %lld wide; the kernels support at most %d",
      device->name, (long long)args->head_width, EK__CUDA_MAX_HEAD_WIDTH);
}

static ek_status check_nothing(const struct ek__cuda_device *device, const void *raw) {
  (void)device;
  (void)raw;
  return EK_OK;
}

/* The error of a launch: a GPU may have too little shared memory for a kernel. */
static ek_status check_launch(const struct ek__cuda_device *device, cudaError_t error,
                              const char *name) {
  if (error != cudaErrorNotSupported) return ek__cuda_check(device, error, name);
  return ek__cuda_host->error_set(
      EK_ERR_UNSUPPORTED,
      "%s: %s: needs more shared memory than the %d KiB that a block of this GPU may have",
      device->name, name, device->gpu->shared_bytes >> 10);
}

/* With `debug_memory`: an error that a call of the program left on this thread, and which would be
 * taken for the kernel's. */
static ek_status check_left(const struct ek__cuda_device *device, const char *name) {
  if (!device->group->options.debug_memory) return EK_OK;
  const cudaError_t error = cudaPeekAtLastError();
  if (error == cudaSuccess || ek__cuda_is_final(error)) return EK_OK; /* the launch gives it */
  (void)cudaGetLastError();
  return ek__cuda_host->error_set(
      EK_ERR_UNAVAILABLE,
      "%s: %s: an earlier CUDA call by the program in this thread left the error %s; clear it with "
      "cudaGetLastError()",
      device->name, name, cudaGetErrorName(error));
}

/* What a kernel cannot do, by the kind of its arguments. */
#define CHECK(args)                                                                                \
  _Generic(*(args), struct ek__attention_args : check_head, default : check_nothing)

/* Attention has another way. */
static ek_status by_nothing(bool *done, const struct ek__cuda_stream *stream, const void *raw) {
  (void)done;
  (void)stream;
  (void)raw;
  return EK_OK;
}
#define TRY_LIBRARY(args)                                                                          \
  _Generic(*(args), struct ek__attention_args : ek__cuda_attend_by_cudnn, default : by_nothing)

#define LAUNCHING_SLOT(name, kind, cut)                                                            \
  ek_status ek__cuda_slot_##name EK__ARGS(kind) {                                                  \
    const struct ek__cuda_stream *it = ek__cuda_stream_of(stream);                                 \
    struct ek__cuda_device *device = it->device;                                                   \
    const struct ek__cuda_place at = ek__cuda_place_on(it);                                        \
    EK_TRY(CHECK(args)(device, args));                                                             \
    const int before = ek__cuda_current();                                                         \
    EK_TRY(check_left(device, #name));                                                             \
    EK_TRY(ek__cuda_enter(device));                                                                \
    ek__cuda_call_begins(device);                                                                  \
    bool done = false;                                                                             \
    ek_status status = TRY_LIBRARY(args)(&done, it, args);                                         \
    if (status == EK_OK && !done) {                                                                \
      status = check_launch(device, ek__cuda_##name(&at, args), #name);                            \
    }                                                                                              \
    return ek__cuda_leave(before, ek__cuda_call_ends(device, status));                             \
  }
EK__KERNEL_LIST(LAUNCHING_SLOT)

/* ---- slots of CUDA's own ---- */

ek_status ek__cuda_slot_zero(ek_stream *stream, void *y, size_t bytes) {
  const struct ek__cuda_stream *it = ek__cuda_stream_of(stream);
  if (bytes == 0) return EK_OK;
  const int before = ek__cuda_current();
  EK_TRY(ek__cuda_enter(it->device));
  ek__cuda_call_begins(it->device);
  const cudaError_t error = cudaMemsetAsync(y, 0, bytes, it->handle);
  return ek__cuda_leave(
      before,
      ek__cuda_call_ends(it->device, ek__cuda_check(it->device, error, "zero: cudaMemsetAsync")));
}

/* Also between GPUs, where the communicator `peer` asks for it. */
ek_status ek__cuda_slot_copy(ek_stream *stream, void *y, const void *x, size_t bytes) {
  const struct ek__cuda_stream *it = ek__cuda_stream_of(stream);
  if (bytes == 0) return EK_OK;
  const int before = ek__cuda_current();
  EK_TRY(ek__cuda_enter(it->device));
  ek__cuda_call_begins(it->device);
  const cudaError_t error = cudaMemcpyAsync(y, x, bytes, cudaMemcpyDefault, it->handle);
  return ek__cuda_leave(
      before,
      ek__cuda_call_ends(it->device, ek__cuda_check(it->device, error, "copy: cudaMemcpyAsync")));
}
