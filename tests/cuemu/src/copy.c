/*
 * copy.c - copies and memsets.
 *
 * Addresses are checked against the allocations, as far as the direction says what they are. Copies
 * from and to pageable host memory behave as CUDA's do: from it, the bytes are taken before the
 * call returns; to it, the call waits for the stream. Only pinned memory is really asynchronous.
 *
 * A copy counts on the device of its stream.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

struct copy {
  void *to;
  const void *from;
  size_t bytes;
  int value;
  bool broken; /* from a peer that gives NaN: cuemu_settings.broken_peer */
  void *staged; /* our own copy of pageable memory */
};

static cudaError_t run_copy(cudaStream_t stream, void *argument) {
  (void)stream;
  struct copy *c = argument;
  memmove(c->to, c->from, c->bytes);
  if (c->broken) memset(c->to, 0xff, c->bytes);
  return cudaSuccess;
}

static cudaError_t run_set(cudaStream_t stream, void *argument) {
  (void)stream;
  struct copy *c = argument;
  memset(c->to, c->value, c->bytes);
  return cudaSuccess;
}

static void release(void *argument) {
  struct copy *c = argument;
  free(c->staged);
  free(c);
}

/* `wanted`: 'd' device, 'h' host, '?' either */
static bool check(char wanted, const void *pointer, size_t bytes, enum cuemu_place *place,
                  int *device) {
  bool whole;
  *place = cuemu_find(pointer, bytes, device, &whole);
  if (!whole || (!pointer && bytes)) return false;
  if (wanted == 'd') return *place == CUEMU_ON_DEVICE;
  return wanted != 'h' || *place != CUEMU_ON_DEVICE;
}

static cudaError_t call_error(cudaStream_t stream) {
  cudaError_t error = cuemu_enter();
  if (error != cudaSuccess) return error;
  int device = cuemu_stream_device(stream);
  error = (cudaError_t)cuemu_call(device, CUEMU_COPY);
  if (cuemu_is_sticky_error(error)) cuemu_set_sticky(device, error);
  return error;
}

static cudaError_t queue_copy(struct copy copy, enum cudaMemcpyKind kind, cudaStream_t stream) {
  static const char *const wanted[] = {"hh", "dh", "hd", "dd", "??"}; /* to, from */
  cudaError_t error = call_error(stream);
  if (error != cudaSuccess) return error;
  if ((unsigned)kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
  if (!copy.bytes) return cudaSuccess;
  enum cuemu_place to, from;
  int to_device, from_device;
  if (!check(wanted[kind][0], copy.to, copy.bytes, &to, &to_device) ||
      !check(wanted[kind][1], copy.from, copy.bytes, &from, &from_device)) {
    return cudaErrorInvalidValue;
  }
  const bool between = to == CUEMU_ON_DEVICE && from == CUEMU_ON_DEVICE && to_device != from_device;
  const bool staged = between && !cuemu_reaches(to_device, from_device) &&
                      !cuemu_reaches(from_device, to_device);
  if (staged) cuemu_add(CUEMU_STAGED_COPIES);
  struct copy *c = cuemu_new(sizeof(*c));
  *c = copy;
  c->broken = between && !staged && cuemu_settings.broken_peer;
  if (from == CUEMU_PAGEABLE) {
    c->from = c->staged = memcpy(cuemu_new(copy.bytes), copy.from, copy.bytes);
  }
  cuemu_enqueue(stream, CUEMU_COPY, run_copy, release, c);
  return to == CUEMU_PAGEABLE ? cudaStreamSynchronize(stream) : cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return cuemu_result(
      queue_copy((struct copy){.to = to, .from = from, .bytes = bytes}, kind, stream));
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
  cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, NULL);
  return error != cudaSuccess ? error : cudaStreamSynchronize(NULL);
}

static cudaError_t check_peer(const void *pointer, size_t bytes, int device) {
  bool whole;
  int found;
  if (!bytes) return cudaSuccess;
  enum cuemu_place place = cuemu_find(pointer, bytes, &found, &whole);
  if (place != CUEMU_ON_DEVICE || !whole) return cudaErrorInvalidValue;
  return found == device ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
                                size_t bytes, cudaStream_t stream) {
  cudaError_t error = cuemu_enter();
  if (error == cudaSuccess) error = check_peer(to, bytes, to_device);
  if (error == cudaSuccess) error = check_peer(from, bytes, from_device);
  if (error != cudaSuccess) return cuemu_result(error);
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}

static cudaError_t queue_set(void *to, int value, size_t bytes, cudaStream_t stream) {
  cudaError_t error = call_error(stream);
  if (error != cudaSuccess || !bytes) return error;
  enum cuemu_place place;
  int device;
  if (!check('?', to, bytes, &place, &device) || place == CUEMU_PAGEABLE)
    return cudaErrorInvalidValue;
  struct copy *c = cuemu_new(sizeof(*c));
  *c = (struct copy){.to = to, .bytes = bytes, .value = value};
  cuemu_enqueue(stream, CUEMU_COPY, run_set, release, c);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
  return cuemu_result(queue_set(to, value, bytes, stream));
}

cudaError_t cudaMemset(void *to, int value, size_t bytes) {
  cudaError_t error = cudaMemsetAsync(to, value, bytes, NULL);
  return error != cudaSuccess ? error : cudaStreamSynchronize(NULL);
}
