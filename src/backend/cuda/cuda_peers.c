/*
 * cuda_peers.c - lets the GPUs of a group read and write each other's memory, and checks that this
 * works.
 *
 * Some platforms report peer access and break it (an IOMMU or ACS between the GPUs, some virtual
 * machines): reads then give wrong data, and no CUDA call fails. So when code is loaded, every GPU
 * copies a few KiB from each of its peers and adds them to its own in a kernel, the two ways in
 * which peers are read. If either result differs from the host's, the pair is not used: copies go
 * through the host, and sums through NCCL or not at all.
 *
 * All of it is in the scratch of the warm-up (cuda_warm.c), which has loaded the kernel.
 */
#include <string.h>

#include "backend/cuda/cuda_internal.h"

enum { NUMBERS = 1024 }; /* of each GPU, as f32: sums of two are exact */

/* In the scratch of a GPU: its numbers, and for each peer those that it copied, and the sums. */
static float *place(const struct ek__cuda_gpu *gpu, size_t number) {
  return (float *)gpu->scratch + number * NUMBERS;
}
static float *copied_from(const struct ek__cuda_gpu *gpu, size_t peer) {
  return place(gpu, 1 + 2 * peer);
}
static float *sums_with(const struct ek__cuda_gpu *gpu, size_t peer) {
  return place(gpu, 2 + 2 * peer);
}

static float number_of(size_t gpu, size_t i) { return (float)((gpu + 1) * NUMBERS + i); }

static bool reaches(const struct ek__cuda_gpu *gpu, size_t peer) {
  return (gpu->peers >> peer & 1) != 0;
}

static ek_status enable_peer(struct ek__cuda_group *group, size_t i, size_t j) {
  const int from = group->gpus[i].physical, to = group->gpus[j].physical;
  int can = 0;
  EK_TRY(EK__CUDA_GPU(from, cudaDeviceCanAccessPeer, &can, from, to));
  if (can == 0) return EK_OK;
  const cudaError_t error = cudaDeviceEnablePeerAccess(to, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled || error == cudaErrorTooManyPeers) {
    (void)cudaGetLastError();
  } else {
    EK_TRY(ek__cuda_check_gpu(from, error, "cudaDeviceEnablePeerAccess"));
  }
  if (error != cudaErrorTooManyPeers) group->gpus[i].peers |= UINT64_C(1) << j;
  return EK_OK;
}

ek_status ek__cuda_peers_open(struct ek__cuda_group *group) {
  for (size_t i = 0; i < group->gpu_count; i++) {
    EK_TRY(EK__CUDA_GPU(group->gpus[i].physical, cudaSetDevice, group->gpus[i].physical));
    for (size_t j = 0; j < group->gpu_count; j++) {
      if (i != j) EK_TRY(enable_peer(group, i, j));
    }
  }
  return EK_OK;
}

/* ---- whether it works ---- */

static struct ek__cuda_stream *stream_of(struct ek__cuda_group *group, size_t gpu) {
  return &group->devices[group->gpus[gpu].first].streams[EK_STREAM_COMPUTE];
}

/* Pinned, and not yet used by copies: EK__CUDA_STAGE_BYTES. */
static float *host_of(struct ek__cuda_group *group, size_t gpu) {
  return (float *)(void *)group->devices[group->gpus[gpu].first].ring.stages[0].memory;
}

static ek_status write_numbers(struct ek__cuda_group *group, size_t gpu) {
  struct ek__cuda_stream *stream = stream_of(group, gpu);
  float *host = host_of(group, gpu);
  for (size_t i = 0; i < NUMBERS; i++) host[i] = number_of(gpu, i);
  EK_TRY(ek__cuda_enter(stream->device));
  EK_TRY(EK__CUDA(stream->device, cudaMemcpyAsync, place(&group->gpus[gpu], 0), host,
                  NUMBERS * sizeof *host, cudaMemcpyHostToDevice, stream->handle));
  return ek__cuda_finish(stream, "peer access: numbers");
}

static ek_status read_peer(struct ek__cuda_group *group, size_t i, size_t j) {
  const struct ek__cuda_stream *stream = stream_of(group, i);
  const struct ek__cuda_gpu *gpu = &group->gpus[i], *peer = &group->gpus[j];
  const struct ek__cuda_place at = {.stream = stream->handle, .bad = stream->device->bad};
  void *const sums[] = {sums_with(gpu, j)};
  const void *const numbers[] = {place(gpu, 0), place(peer, 0)};
  const struct ek__reduce_args args = {sums, numbers, 1, 2, NUMBERS, EK_F32};
  EK_TRY(EK__CUDA(stream->device, cudaMemcpyPeerAsync, copied_from(gpu, j), gpu->physical,
                  place(peer, 0), peer->physical, NUMBERS * sizeof(float), stream->handle));
  return ek__cuda_check(stream->device, ek__cuda_reduce(&at, &args), "peer access: a sum");
}

static bool is_right(const float *copied, const float *sums, size_t i, size_t j) {
  for (size_t k = 0; k < NUMBERS; k++) {
    if (copied[k] != number_of(j, k) || sums[k] != number_of(i, k) + number_of(j, k)) return false;
  }
  return true;
}

/* Neither of the two reads the other from now on. */
static void disable_pair(struct ek__cuda_group *group, size_t i, size_t j) {
  const size_t pair[] = {i, j};
  ek__cuda_host->log(EK_LOG_WARNING,
                     "cuda: peer access between cuda:%d and cuda:%d is reported as possible but "
                     "gives wrong numbers: evenkeel does not use it; set NCCL_P2P_DISABLE=1 to "
                     "keep NCCL from using it",
                     group->gpus[i].physical, group->gpus[j].physical);
  for (size_t k = 0; k < 2; k++) {
    struct ek__cuda_gpu *gpu = &group->gpus[pair[k]];
    if (!reaches(gpu, pair[1 - k])) continue;
    (void)cudaSetDevice(gpu->physical);
    if (cudaDeviceDisablePeerAccess(group->gpus[pair[1 - k]].physical) != cudaSuccess) {
      (void)cudaGetLastError();
    }
    gpu->peers &= ~(UINT64_C(1) << pair[1 - k]);
  }
}

/* `bad`: a bit for each peer of which it reads something else. */
static ek_status look_at_peers(uint64_t *bad, struct ek__cuda_group *group, size_t i) {
  struct ek__cuda_stream *stream = stream_of(group, i);
  float *host = host_of(group, i);
  const size_t all = (1 + 2 * group->gpu_count) * NUMBERS;
  EK_TRY(ek__cuda_enter(stream->device));
  for (size_t j = 0; j < group->gpu_count; j++) {
    if (reaches(&group->gpus[i], j)) EK_TRY(read_peer(group, i, j));
  }
  EK_TRY(EK__CUDA(stream->device, cudaMemcpyAsync, host, place(&group->gpus[i], 0),
                  all * sizeof *host, cudaMemcpyDeviceToHost, stream->handle));
  EK_TRY(ek__cuda_finish(stream, "peer access: copies and sums"));
  for (size_t j = 0; j < group->gpu_count; j++) {
    const float *copied = host + (1 + 2 * j) * NUMBERS;
    if (!reaches(&group->gpus[i], j)) continue;
    if (!is_right(copied, copied + NUMBERS, i, j)) *bad |= UINT64_C(1) << j;
  }
  return EK_OK;
}

ek_status ek__cuda_peers_check(bool *all, struct ek__cuda_group *group) {
  uint64_t bad[EK__CUDA_MOST_GPUS] = {0};
  _Static_assert((1 + 2 * EK__CUDA_MOST_GPUS) * NUMBERS * sizeof(float) <= EK__CUDA_STAGE_BYTES,
                 "a stage is too small");
  for (size_t i = 0; i < group->gpu_count; i++) EK_TRY(write_numbers(group, i));
  for (size_t i = 0; i < group->gpu_count; i++) EK_TRY(look_at_peers(&bad[i], group, i));
  *all = true;
  for (size_t i = 0; i < group->gpu_count; i++) {
    for (size_t j = 0; j < group->gpu_count; j++) {
      const bool wrong = (bad[i] >> j & 1) != 0;
      if (wrong && (reaches(&group->gpus[i], j) || reaches(&group->gpus[j], i))) {
        disable_pair(group, i, j);
      }
    }
  }
  for (size_t i = 0; i < group->gpu_count; i++) {
    for (size_t j = 0; j < group->gpu_count; j++) {
      *all = *all && (i == j || reaches(&group->gpus[i], j));
    }
  }
  return EK_OK;
}
