/*
 * cuda_nccl.c - collectives between different GPUs by NCCL.
 *
 * A rank's collectives are queued by its device's worker, on the device's communication stream. The
 * life of its communicator, and which threads may call NCCL for it: cuda_clique.h.
 *
 * Sums are computed in the type itself, by SUM: AVG would multiply by a rounded 1/n first. So
 * 16-bit numbers are rounded at every addition; a ring of N devices makes N - 1 of them.
 */
#include "backend/cuda/cuda_internal.h"

#ifdef EK_CUDA_HAVE_NCCL

#include "backend/cuda/cuda_clique.h"

/* ---- collectives ---- */

struct call {
  size_t rank, ranks;
  ncclComm_t communicator;
  cudaStream_t stream;
  const struct ek__collective *what;
  ncclDataType_t type;
  size_t element, width; /* bytes of an element; NCCL elements in one of ours */
};

static char *at(const struct call *call, int64_t element) {
  return (char *)call->what->data + (size_t)element * call->element;
}

static size_t elements(const struct call *call, int64_t count) {
  return (size_t)count * call->width;
}

static bool equal_parts(const struct call *call) {
  const int64_t *offsets = call->what->offsets;
  for (size_t i = 0; i < call->ranks; i++) {
    if (offsets[i + 1] - offsets[i] != offsets[1]) return false;
  }
  return true;
}

/* Parts of different sizes: one collective for each part, in one group. */
static ncclResult_t by_parts(const struct call *call) {
  const int64_t *offsets = call->what->offsets;
  ncclResult_t result = ek__nccl.GroupStart();
  for (size_t i = 0; i < call->ranks && result == ncclSuccess; i++) {
    const size_t count = elements(call, offsets[i + 1] - offsets[i]);
    char *part = at(call, offsets[i]);
    if (count == 0) continue;
    result = call->what->kind == EK__ALL_GATHER
                 ? ek__nccl.Broadcast(part, part, count, call->type, (int)i, call->communicator,
                                      call->stream)
                 : ek__nccl.Reduce(part, part, count, call->type, ncclSum, (int)i,
                                   call->communicator, call->stream);
    if (result == ncclInProgress) result = ncclSuccess; /* inside a group it says nothing yet */
  }
  const ncclResult_t end = ek__nccl.GroupEnd();
  return result == ncclSuccess ? end : result;
}

static ncclResult_t issue(const struct call *call) {
  const struct ek__collective *what = call->what;
  const size_t count = elements(call, what->count);
  void *data = what->data;
  switch (what->kind) {
  case EK__BROADCAST:
    return ek__nccl.Broadcast(data, data, count, call->type, (int)what->root, call->communicator,
                              call->stream);
  case EK__REDUCE:
    return ek__nccl.Reduce(data, data, count, call->type, ncclSum, (int)what->root,
                           call->communicator, call->stream);
  case EK__ALL_REDUCE:
    return ek__nccl.AllReduce(data, data, count, call->type, ncclSum, call->communicator,
                              call->stream);
  case EK__REDUCE_SCATTER:
    if (!equal_parts(call)) return by_parts(call);
    return ek__nccl.ReduceScatter(data, at(call, what->offsets[call->rank]),
                                  elements(call, what->offsets[1]), call->type, ncclSum,
                                  call->communicator, call->stream);
  case EK__ALL_GATHER:
    if (!equal_parts(call)) return by_parts(call);
    return ek__nccl.AllGather(at(call, what->offsets[call->rank]), data,
                              elements(call, what->offsets[1]), call->type, call->communicator,
                              call->stream);
  }
  return ncclInvalidArgument;
}

static struct call call_of(const struct ek__cuda_clique *clique, size_t rank,
                           const struct ek__collective *what) {
  static const ncclDataType_t types[] = {[EK_F32] = ncclFloat32,
                                         [EK_F64] = ncclFloat64,
                                         [EK_BF16] = ncclBfloat16,
                                         [EK_F16] = ncclFloat16};
  const size_t element = ek__type_size(what->type);
  const bool sums = what->type != EK_I32 && what->type != EK_I64;
  return (struct call){
      .rank = ek__cuda_clique_rank(clique, rank),
      .ranks = ek__cuda_clique_ranks(clique),
      .stream = ek__cuda_clique_device(clique, rank)->streams[EK_STREAM_COMMUNICATION].handle,
      .what = what,
      .type = sums ? types[what->type] : ncclUint8,
      .element = element,
      .width = sums ? 1 : element};
}

static ek_status not_renewed(const struct ek__cuda_device *device) {
  return ek__cuda_host->error_set(EK_ERR_UNAVAILABLE,
                                  "%s: NCCL: the communicator could not be rebuilt after a "
                                  "failure; close the group",
                                  device->name);
}

/* The rank's parts of `count` collectives. Several are one call of NCCL: a non-blocking one starts
 * and joins a thread of NCCL's. The member's mutex is held. */
static ncclResult_t issue_all(struct ek__cuda_clique *clique, size_t rank,
                              const struct ek__collective *list, size_t count) {
  struct ek__cuda_member *member = &clique->members[rank];
  ncclResult_t result = count > 1 ? ek__nccl.GroupStart() : ncclSuccess;
  for (size_t i = 0; i < count && result == ncclSuccess; i++) {
    struct call call = call_of(clique, rank, &list[i]);
    call.communicator = member->communicator;
    member->queued++; /* of shares, some may be empty */
    if (list[i].count == 0) continue;
    result = issue(&call);
    if (count > 1 && result == ncclInProgress) result = ncclSuccess;
  }
  if (count == 1) return result;
  const ncclResult_t end = ek__nccl.GroupEnd();
  return result == ncclSuccess ? end : result;
}

/* Queues the rank's parts, and waits until NCCL has them on the stream. */
static ek_status queue(struct ek__cuda_clique *clique, size_t rank,
                       const struct ek__collective *list, size_t count, const char *name) {
  struct ek__cuda_member *member = &clique->members[rank];
  ncclResult_t result = ncclSuccess;
  pthread_mutex_lock(&member->mutex);
  const bool there = member->communicator != NULL;
  if (there) result = issue_all(clique, rank, list, count);
  pthread_mutex_unlock(&member->mutex);
  if (!there) return ek__cuda_given_up();
  return ek__cuda_clique_settle(clique, rank, result, name);
}

/* The device's share of what a reduce_scatter has added up in this process, over the processes. */
static struct ek__collective share_of(const struct ek__collective *what, size_t rank) {
  struct ek__collective share = {.kind = EK__ALL_REDUCE, .type = what->type};
  share.count = what->offsets[rank + 1] - what->offsets[rank];
  share.data = (char *)what->data + (size_t)what->offsets[rank] * ek__type_size(what->type);
  return share;
}

static ek_status clique_run(void *self, ek_device *raw, const struct ek__collective *list,
                            size_t count) {
  struct ek__cuda_clique *clique = self;
  const struct ek__cuda_device *device = ek__cuda_device_of(raw);
  const size_t rank = device->index;
  struct ek__collective shares[EK__COLLECTIVES_TOGETHER];
  EK_TRY(ek__cuda_check_stuck(clique->group));
  if (clique->broken) return not_renewed(device);
  if (count == 1 && list->count == 0) return EK_OK;
  if (clique->inside != NULL) {
    EK_TRY(clique_run(clique->inside, raw, list, count));
    for (size_t i = 0; i < count; i++) shares[i] = share_of(&list[i], rank);
    list = shares;
  }
  EK_TRY(ek__cuda_enter(device));
  ek__cuda_gate_begin(clique, rank);
  const ek_status status = queue(clique, rank, list, count, ek__collective_name(list->kind));
  ek__cuda_gate_end(clique, rank);
  if (status != EK_OK) atomic_store(&clique->failed, true);
  return status;
}

/* ---- before the first collective ---- */

/* Elements, as many as a bucket of gradients has; a build for another NCCL may say less. */
#ifndef EK__CUDA_LARGE_COLLECTIVE
#define EK__CUDA_LARGE_COLLECTIVE ((int64_t)1 << 20)
#endif

static ek_status warm_collective(struct ek__cuda_clique *clique, size_t rank,
                                 enum ek__collective_kind kind, ek_type type, int64_t part,
                                 int64_t *offsets) {
  const int64_t ranks = (int64_t)ek__cuda_clique_ranks(clique);
  for (int64_t k = 0; k <= ranks; k++) offsets[k] = k * part;
  const struct ek__collective collective = {
      .kind = kind,
      .data = ek__cuda_clique_device(clique, rank)->gpu->scratch,
      .count = offsets[ranks],
      .type = type,
      .offsets = offsets};
  return queue(clique, rank, &collective, 1, "opening NCCL");
}

/* Every kind, small and large, because NCCL has different ways for them; and every type that is
 * summed, because what only moves bytes is the same for all. Totals and norms are f64, which is
 * only all-reduced. */
static ek_status warm_rank(struct ek__cuda_clique *clique, size_t rank, const void *context) {
  static const ek_type types[] = {EK_F32, EK_BF16, EK_F16, EK_F64};
  const int64_t ranks = (int64_t)ek__cuda_clique_ranks(clique);
  int64_t *offsets = ek__cuda_new(((size_t)ranks + 1) * sizeof *offsets, "NCCL");
  if (offsets == NULL) return EK_ERR_OUT_OF_MEMORY;
  ek_status status = EK_OK;
  const int64_t sizes[] = {16, EK__CUDA_LARGE_COLLECTIVE / ranks}; /* of a rank's part */
  (void)context;
  for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
    if ((EK__CUDA_VALUES >> types[t] & 1u) == 0) continue;
    for (int kind = 0; kind <= EK__ALL_GATHER; kind++) {
      if (t > 0 && (kind == EK__BROADCAST || kind == EK__ALL_GATHER)) continue;
      if (types[t] == EK_F64 && kind != EK__ALL_REDUCE) continue;
      for (size_t i = 0; i < 2 && status == EK_OK; i++) {
        status = warm_collective(clique, rank, (enum ek__collective_kind)kind, types[t], sizes[i],
                                 offsets);
      }
    }
  }
  ek__cuda_host->free(offsets);
  if (status != EK_OK) return status;
  return ek__cuda_finish_collectives(ek__cuda_clique_device(clique, rank), "opening NCCL");
}

ek_status ek__cuda_nccl_warm(struct ek__cuda_group *group) {
  EK_TRY(ek__cuda_clique_open(&group->spare, group, EK__REACH_WORLD));
  const ek_status status = ek__cuda_on_all_ranks(group->spare, warm_rank, NULL);
  if (status != EK_OK) group->spare->broken = true; /* it ends by an abort */
  return status;
}

void ek__cuda_nccl_end(struct ek__cuda_group *group) {
  if (group->spare != NULL) ek__cuda_clique_close(group->spare);
  group->spare = NULL;
}

/* ---- the link ---- */

/* That of the whole world, which has run collectives already; NULL: it is in use. */
static struct ek__cuda_clique *take_spare(struct ek__cuda_group *group) {
  pthread_mutex_lock(&group->failure_mutex);
  struct ek__cuda_clique *clique = group->spare;
  group->spare = NULL;
  pthread_mutex_unlock(&group->failure_mutex);
  return clique;
}

static ek_status open_shares(struct ek__cuda_clique **opened, struct ek__cuda_group *group) {
  struct ek__cuda_clique *inside = NULL;
  EK_TRY(ek__cuda_clique_open(&inside, group, EK__REACH_PROCESS));
  const ek_status status = ek__cuda_clique_open(opened, group, EK__REACH_SHARES);
  if (status == EK_OK) {
    (*opened)->inside = inside;
  } else {
    ek__cuda_clique_close(inside);
  }
  return status;
}

static ek_status clique_open(void **self, void *raw, enum ek__reach reach) {
  struct ek__cuda_group *group = raw;
  struct ek__cuda_clique *clique = reach == EK__REACH_WORLD ? take_spare(group) : NULL;
  const int before = ek__cuda_current();
  /* NCCL allocates. Other processes are not waited for with the gate closed. */
  const bool gated = clique == NULL && group->members.world == NULL;
  ek_status status = EK_OK;
  if (gated) ek__cuda_gate_close(group->time_limit);
  if (reach == EK__REACH_SHARES) {
    status = open_shares(&clique, group);
  } else if (clique == NULL) {
    status = ek__cuda_clique_open(&clique, group, reach);
  }
  if (gated) ek__cuda_gate_open();
  if (status == EK_OK) *self = clique;
  return ek__cuda_leave(before, status);
}

static void clique_abort(void *self) {
  struct ek__cuda_clique *clique = self;
  if (clique->inside != NULL) atomic_store(&clique->inside->aborted, true);
  atomic_store(&clique->aborted, true);
}

static bool clique_renew(void *self) {
  struct ek__cuda_clique *clique = self;
  const int before = ek__cuda_current();
  bool cut = clique->inside != NULL && ek__cuda_clique_renew(clique->inside);
  cut = ek__cuda_clique_renew(clique) || cut;
  (void)ek__cuda_leave(before, EK_OK);
  return cut;
}

static void close_one(struct ek__cuda_clique *clique) {
  const struct ek__cuda_group *group = clique->group;
  const bool gated = group->members.world == NULL;
  ek__cuda_gate_forget(clique); /* no worker runs: ranks that a failure left behind do not come */
  if (gated) ek__cuda_gate_close(group->time_limit);
  ek__cuda_clique_close(clique);
  if (gated) ek__cuda_gate_open();
}

static void clique_close(void *self) {
  struct ek__cuda_clique *clique = self, *inside = clique->inside;
  const int before = ek__cuda_current();
  close_one(clique);
  if (inside != NULL) close_one(inside);
  (void)ek__cuda_leave(before, EK_OK);
}

static const struct ek__link link_table = {.name = "nccl",
                                           .open = clique_open,
                                           .run = clique_run,
                                           .abort = clique_abort,
                                           .renew = clique_renew,
                                           .close = clique_close};

const struct ek__link *const ek__cuda_nccl = &link_table;

#else

const struct ek__link *const ek__cuda_nccl = NULL;

ek_status ek__cuda_nccl_warm(struct ek__cuda_group *group) {
  (void)group;
  return EK_OK;
}

void ek__cuda_nccl_end(struct ek__cuda_group *group) { (void)group; }

#endif
