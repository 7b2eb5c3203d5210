/*
 * check_cuemu_nccl.cc - communicators of one thread and of a thread for each rank, collectives,
 * aborts.
 */
#include "self.h"

#include <atomic>
#include <nccl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { RANKS = 4, COUNT = 50 };

#define NCCL_OK(call) ck_assert_str_eq(ncclGetErrorString(call), "no error")

/* ---- a thread for each rank, non-blocking communicators ---- */

struct rank {
  int rank, test;
  ncclUniqueId id;
  ncclComm_t comm;
  cudaStream_t stream;
  pthread_barrier_t *barrier;
  float *send, *receive;
};

static ncclResult_t settle(ncclComm_t comm) { /* until it is no longer in progress */
  ncclResult_t state;
  do NCCL_OK(ncclCommGetAsyncError(comm, &state));
  while (state == ncclInProgress);
  return state;
}

static void finish(rank *r, ncclResult_t called) {
  ck_assert_int_eq(called, ncclInProgress);
  NCCL_OK(settle(r->comm));
  CUDA_OK(cudaStreamSynchronize(r->stream));
}

static float value(int rank, int i) { return 0.1f * (float)(rank + 1) + (float)(i % 13); }

/* The sum in rank order, in float: results are equal to the last bit. */
static float sum(int i) {
  float total = value(0, i);
  for (int r = 1; r < RANKS; r++) total += value(r, i);
  return total;
}

static void all_collectives(rank *r) {
  float host[RANKS * COUNT];
  ncclComm_t comm = r->comm;
  finish(r, ncclAllReduce(r->send, r->receive, COUNT, ncclFloat32, ncclSum, comm, r->stream));
  to_host(host, r->receive, COUNT);
  for (int i = 0; i < COUNT; i++) ck_assert_float_eq(host[i], sum(i));
  finish(r, ncclReduceScatter(r->send, r->receive, COUNT, ncclFloat32, ncclSum, comm, r->stream));
  to_host(host, r->receive, COUNT);
  for (int i = 0; i < COUNT; i++) ck_assert_float_eq(host[i], sum(r->rank * COUNT + i));
  finish(r, ncclAllGather(r->send, r->receive, COUNT, ncclFloat32, comm, r->stream));
  to_host(host, r->receive, RANKS * COUNT);
  for (int i = 0; i < RANKS * COUNT; i++) ck_assert_float_eq(host[i], value(i / COUNT, i % COUNT));
  finish(r, ncclBroadcast(r->send, r->receive, COUNT, ncclFloat32, 2, comm, r->stream));
  to_host(host, r->receive, COUNT);
  for (int i = 0; i < COUNT; i++) ck_assert_float_eq(host[i], value(2, i));
  finish(r, ncclReduce(r->send, r->receive, COUNT, ncclFloat32, ncclSum, 1, comm, r->stream));
  to_host(host, r->receive, COUNT);
  for (int i = 0; i < COUNT; i++) ck_assert_float_eq(host[i], r->rank == 1 ? sum(i) : value(2, i));
  finish(r, ncclAllReduce(r->send, r->send, COUNT, ncclFloat32, ncclSum, comm,
                          r->stream)); /* in place */
  to_host(host, r->send, COUNT);
  for (int i = 0; i < COUNT; i++) ck_assert_float_eq(host[i], sum(i));
  finish(r, ncclCommFinalize(comm));
  NCCL_OK(ncclCommDestroy(comm));
}

/* Rank 2 has a fault or a hang, or does not come: the others wait until they abort. */
static void one_rank_fails(rank *r) {
  ncclResult_t called = ncclSuccess;
  if (r->test != 2 || r->rank != 2) {
    called = ncclAllReduce(r->send, r->receive, COUNT, ncclFloat32, ncclSum, r->comm, r->stream);
  }
  if (r->test == 3 && r->rank == 2) {
    ck_assert_int_eq(called, ncclSystemError);
  } else if (called != ncclSuccess) {
    ck_assert_int_eq(called, ncclInProgress);
    NCCL_OK(settle(r->comm));
  }
  while (r->test == 1 && cuemu_hanging() == 0) usleep(100); /* however late its stream begins */
  usleep(30000);
  bool waits = r->rank != 2 || r->test == 1;
  ck_assert_int_eq(cudaStreamQuery(r->stream), waits ? cudaErrorNotReady : cudaSuccess);
  pthread_barrier_wait(r->barrier);
  if (r->rank == 0) ck_assert_uint_eq(cuemu_hanging(), r->test == 1 ? 1 : 0);
  pthread_barrier_wait(r->barrier);
  NCCL_OK(ncclCommAbort(r->comm));
  CUDA_OK(cudaStreamSynchronize(r->stream));
  pthread_barrier_wait(r->barrier);
}

/* What is queued before the state was asked for is not ordered: an event recorded there comes
 * first. */
static void polls_too_late(rank *r) {
  ck_assert_int_eq(
      ncclAllReduce(r->send, r->receive, COUNT, ncclFloat32, ncclSum, r->comm, r->stream),
      ncclInProgress);
  ck_assert_int_eq(
      ncclAllReduce(r->send, r->receive, COUNT, ncclFloat32, ncclSum, r->comm, r->stream),
      ncclInvalidArgument);
  CUDA_OK(cudaStreamSynchronize(r->stream)); /* there is nothing yet */
  float first;
  to_host(&first, r->receive, 1);
  ck_assert(std::isnan(first));
  NCCL_OK(settle(r->comm));
  CUDA_OK(cudaStreamSynchronize(r->stream));
  to_host(&first, r->receive, 1);
  ck_assert_float_eq(first, sum(0));
  NCCL_OK(ncclCommDestroy(r->comm));
}

static void *run_rank(void *argument) {
  auto *r = static_cast<rank *>(argument);
  float host[RANKS * COUNT];
  CUDA_OK(cudaSetDevice(r->rank));
  r->stream = new_stream();
  for (int i = 0; i < RANKS * COUNT; i++) host[i] = value(r->rank, i);
  r->send = device_copy(host, RANKS * COUNT);
  r->receive = device_new<float>(RANKS * COUNT);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ck_assert_int_eq(ncclCommInitRankConfig(&r->comm, RANKS, r->id, r->rank, &config),
                   ncclInProgress);
  NCCL_OK(settle(r->comm));
  pthread_barrier_wait(r->barrier);
  if (r->rank == 2 && r->test == 1) cuemu_hang(2, CUEMU_NCCL, 1);
  if (r->rank == 2 && r->test == 3) cuemu_fail(2, CUEMU_NCCL, 1, 0);
  pthread_barrier_wait(r->barrier);
  if (r->test == 0)
    all_collectives(r);
  else if (r->test == 4)
    polls_too_late(r);
  else
    one_rank_fails(r);
  return NULL;
}

SELF_LOOP(a_thread_for_each_rank, 5) {
  pthread_t threads[RANKS];
  rank ranks[RANKS] = {};
  pthread_barrier_t barrier;
  ncclUniqueId id;
  NCCL_OK(ncclGetUniqueId(&id));
  pthread_barrier_init(&barrier, NULL, RANKS);
  for (int i = 0; i < RANKS; i++) {
    ranks[i].rank = i;
    ranks[i].test = _i;
    ranks[i].id = id;
    ranks[i].barrier = &barrier;
    pthread_create(&threads[i], NULL, run_rank, &ranks[i]);
  }
  for (pthread_t thread : threads) pthread_join(thread, NULL);
  pthread_barrier_destroy(&barrier);
}

/* ---- one thread ---- */

/* Blocking ones, which a thread may make as a group. */
static void make_all(ncclComm_t *comms, int ranks) {
  ncclUniqueId id;
  NCCL_OK(ncclGetUniqueId(&id));
  NCCL_OK(ncclGroupStart());
  for (int r = 0; r < ranks; r++) {
    CUDA_OK(cudaSetDevice(r));
    NCCL_OK(ncclCommInitRankConfig(&comms[r], ranks, id, r, NULL));
  }
  NCCL_OK(ncclGroupEnd());
  CUDA_OK(cudaSetDevice(0));
}

SELF_TEST(groups_of_one_thread) {
  ncclComm_t comms[3];
  cudaStream_t streams[3];
  double *memory[3], host[8];
  make_all(comms, 3);
  for (int d = 0; d < 3; d++) {
    CUDA_OK(cudaSetDevice(d));
    streams[d] = new_stream();
    for (int i = 0; i < 8; i++) host[i] = 100 * d + i;
    memory[d] = device_copy(host, 8);
  }
  NCCL_OK(ncclGroupStart());
  for (int d = 0; d < 3; d++) {
    NCCL_OK(ncclAllReduce(memory[d], memory[d], 8, ncclFloat64, ncclSum, comms[d], streams[d]));
  }
  NCCL_OK(ncclGroupEnd());
  for (int d = 0; d < 3; d++) {
    CUDA_OK(cudaSetDevice(d));
    CUDA_OK(cudaStreamSynchronize(streams[d]));
    to_host(host, memory[d], 8);
    for (int i = 0; i < 8; i++) ck_assert_double_eq(host[i], 300 + 3 * i);
    NCCL_OK(ncclCommDestroy(comms[d]));
  }
}

/* 2 + 1 in each type, and what is wrong. */
SELF_TEST(types) {
  static const struct {
    ncclDataType_t type;
    uint64_t one, two, three;
  } types[] = {{ncclUint8, 1, 2, 3},
               {ncclFloat16, 0x3c00, 0x4000, 0x4200},
               {ncclBfloat16, 0x3f80, 0x4000, 0x4040},
               {ncclFloat32, 0x3f800000, 0x40000000, 0x40400000},
               {ncclFloat64, 0x3ff0000000000000, 0x4000000000000000, 0x4008000000000000}};
  ncclComm_t comms[2];
  make_all(comms, 2);
  for (const auto &it : types) {
    uint64_t sum, *here = device_copy(&it.one, 1);
    CUDA_OK(cudaSetDevice(1));
    uint64_t *there = device_copy(&it.two, 1);
    NCCL_OK(ncclAllReduce(there, there, 1, it.type, ncclSum, comms[1], NULL));
    CUDA_OK(cudaSetDevice(0));
    NCCL_OK(ncclAllReduce(here, here, 1, it.type, ncclSum, comms[0], NULL));
    to_host(&sum, here, 1);
    ck_assert_uint_eq(sum, it.three);
  }
  uint8_t bytes[2] = {}, *b = device_copy(bytes, 2);
  const ncclDataType_t none = (ncclDataType_t)55, type = ncclUint8;
  for (int i = 0; i < 3; i++) { /* no such type, memory of the host, beyond the end */
    ck_assert_int_eq(ncclAllReduce(b, i == 1 ? bytes : b, i == 2 ? 3 : 2, i == 0 ? none : type,
                                   ncclSum, comms[0], NULL),
                     ncclInvalidArgument);
  }
  for (ncclComm_t comm : comms) NCCL_OK(ncclCommDestroy(comm));
}

SELF_TEST(a_device_is_one_rank) {
  ncclComm_t comms[2];
  ncclUniqueId id;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  NCCL_OK(ncclGetUniqueId(&id));
  for (int r = 0; r < 2; r++) {
    ck_assert_int_eq(ncclCommInitRankConfig(&comms[r], 2, id, r, &config), ncclInProgress);
  }
  ck_assert_ptr_nonnull(strstr(ncclGetLastError(NULL), "Duplicate GPU"));
  for (ncclComm_t comm : comms) {
    ck_assert_int_eq(settle(comm), ncclInvalidUsage);
    NCCL_OK(ncclCommAbort(comm));
  }
}

SELF_TEST(ranks_have_to_agree) {
  ncclComm_t comms[2];
  float *memory[2];
  ncclResult_t state;
  make_all(comms, 2);
  for (int d = 0; d < 2; d++) {
    CUDA_OK(cudaSetDevice(d));
    memory[d] = device_new<float>(8);
    NCCL_OK(
        ncclAllReduce(memory[d], memory[d], (size_t)(d + 1), ncclFloat32, ncclSum, comms[d], NULL));
  }
  CUDA_OK(cudaStreamSynchronize(NULL));
  for (int d = 0; d < 2; d++) {
    NCCL_OK(ncclCommGetAsyncError(comms[d], &state));
    ck_assert_int_eq(state, ncclInvalidUsage);
    NCCL_OK(ncclCommAbort(comms[d]));
  }
}
