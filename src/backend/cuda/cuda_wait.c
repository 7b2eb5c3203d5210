/*
 * cuda_wait.c - waiting for a GPU.
 *
 * A wait asks again and again instead of sleeping in CUDA, because a call of CUDA would never
 * return while work is stuck (in a collective whose peer died, for example). After the group's
 * time limit the wait fails, says what it waited for, and gives the group up (cuda_stream.c).
 */
#include <stdio.h>

#include "backend/cuda/cuda_internal.h"

/* Appends what each device of the group is stuck in: the late one is the one to look at. */
static void describe_streams(char *text, size_t size, const struct ek__cuda_group *group) {
  static const char *const names[EK__CUDA_STREAMS] = {"compute", "communication", "copy"};
  size_t used = 0;
  for (size_t i = 0; i < group->count && used < size; i++) {
    const struct ek__cuda_device *device = &group->devices[i];
    if (ek__cuda_enter(device) != EK_OK) continue;
    for (int kind = 0; kind < EK__CUDA_STREAMS && used < size; kind++) {
      if (ek__cuda_query(&device->streams[kind]) != cudaErrorNotReady) continue;
      const int written = snprintf(text + used, size - used, "%s%s's %s stream",
                                   used == 0 ? "" : ", ", device->name, names[kind]);
      if (written > 0) used += (size_t)written;
    }
  }
}

static ek_status took_too_long(const struct ek__cuda_device *device, const char *what) {
  char where[320] = "", reason[512];
  describe_streams(where, sizeof where, device->group);
  (void)snprintf(reason, sizeof reason, "%s: %s: not complete after %g seconds; still to do: %s",
                 device->name, what, device->group->time_limit, where);
  return ek__cuda_give_up(device->group, reason);
}

/* EK_OK if there is no reason not to go on waiting: what is waited for may hang on another GPU. */
static ek_status look_around(const struct ek__cuda_device *device, double since, const char *what) {
  struct ek__cuda_group *group = device->group;
  char reason[512] = "";
  if (group->gpu_count > 1) {
    EK_TRY(ek__cuda_check_gpus(group));
    EK_TRY(ek__cuda_enter(device));
  }
  if (group->nccl) {
    pthread_mutex_lock(&group->failure_mutex);
    const bool failed = ek__cuda_nccl_failed(group, reason, sizeof reason);
    pthread_mutex_unlock(&group->failure_mutex);
    if (failed) return ek__cuda_give_up(group, reason);
  }
  return ek__cuda_now() - since > group->time_limit ? took_too_long(device, what) : EK_OK;
}

/* `peers`: it may be for a collective, which ends in no other way where a peer's worker has
 * failed. Any wait may be where peers are in other processes, which queue theirs in no job of this
 * group. */
static ek_status wait_until_done(const struct ek__cuda_device *device, cudaStream_t stream,
                                 cudaEvent_t event, bool peers, const char *what) {
  EK_TRY(ek__cuda_enter(device));
  double since = 0;
  for (unsigned asked = 0;; asked++) {
    const cudaError_t error =
        ek__cuda_answer(event != NULL ? cudaEventQuery(event) : cudaStreamQuery(stream));
    if (error != cudaErrorNotReady && error != cudaSuccess) {
      return ek__cuda_check(device, error, what);
    }
    /* Also where nothing is left to wait for: what was stuck has been ended, not done. */
    EK_TRY(ek__cuda_check_stuck(device->group));
    if (error == cudaSuccess) return EK_OK;
    const bool ends = peers || device->group->members.world != NULL;
    if (ends && ek__cuda_nccl_aborted(device->group)) return ek__cuda_given_up();
    ek__cuda_call_goes_on(&device->group->devices[device->index]);
    if (asked == 0) since = ek__cuda_now();
    if (asked >= 100 && asked % 8 == 0) EK_TRY(look_around(device, since, what));
    ek__cuda_pause(asked);
  }
}

ek_status ek__cuda_finish(const struct ek__cuda_stream *stream, const char *what) {
  return wait_until_done(stream->device, stream->handle, NULL, false, what);
}

ek_status ek__cuda_finish_collectives(const struct ek__cuda_device *device, const char *what) {
  return wait_until_done(device, device->streams[EK_STREAM_COMMUNICATION].handle, NULL, true, what);
}

/*
 * Before the first product or attention of a shape, whose code cuBLASLt or cuDNN may have to load.
 * Loading may wait for all that the GPU has, and hold up the other GPUs' loading meanwhile. If a
 * collective of NCCL is among it, which goes on when every peer has queued its own, and a peer is
 * held up before it has, all wait for ever. A wait that holds up no device ends: of the devices
 * that wait here, one has queued the fewest collectives, and all of those have been queued by every
 * device.
 */
ek_status ek__cuda_let_collectives_end(const struct ek__cuda_device *device) {
  if (!device->group->nccl) return EK_OK;
  return ek__cuda_finish_collectives(device, "collectives before the first product of a shape");
}

ek_status ek__cuda_finish_event(const struct ek__cuda_device *device, cudaEvent_t event,
                                const char *what) {
  return wait_until_done(device, NULL, event, false, what);
}

/* How an error calls what one word of struct ek__cuda_bad is about. */
struct bad_words {
  const char *op, *value, *place, *limits;
};
static const struct bad_words bad_index = {"lookup", "index", "position", "table"};
static const struct bad_words bad_target = {"cross_entropy", "target", "row", "classes"};

/* Forgets what it has told. */
static ek_status check_bad(const struct ek__cuda_device *device, unsigned long long *word,
                           struct bad_words words) {
  const unsigned long long bad = __atomic_exchange_n(word, EK__CUDA_NOTHING_BAD, __ATOMIC_RELAXED);
  if (bad == EK__CUDA_NOTHING_BAD) return EK_OK;
  char value[16] = "";
  if (bad < EK__CUDA_ROW_ALONE) (void)snprintf(value, sizeof value, " %d", (int)(int32_t)bad);
  const unsigned long long row = bad < EK__CUDA_ROW_ALONE ? bad >> 32 : bad - EK__CUDA_ROW_ALONE;
  return ek__cuda_host->error_set(
      EK_ERR_INVALID_ARGUMENT, "%s: %s: %s%s at %s %llu of the batch is outside the %s",
      device->name, words.op, words.value, value, words.place, row, words.limits);
}

static ek_status check_indices(struct ek__cuda_group *group) {
  ek_status status = EK_OK;
  for (size_t i = group->count; i-- > 0;) { /* the lowest device's message is the last */
    struct ek__cuda_device *device = &group->devices[i];
    const ek_status target = check_bad(device, &device->bad->target, bad_target);
    const ek_status index = check_bad(device, &device->bad->index, bad_index);
    status = index != EK_OK ? index : target != EK_OK ? target : status;
  }
  return status;
}

ek_status ek__cuda_check_group(struct ek__cuda_group *group) {
  EK_TRY(ek__cuda_check_gpus(group));
  return check_indices(group);
}

ek_status ek__cuda_check_found(ek_device *device) {
  return ek__cuda_check_group(ek__cuda_device_of(device)->group);
}

ek_status ek__cuda_event_synchronize(void *event, ek_device *device) {
  return ek__cuda_finish_event(ek__cuda_device_of(device), event, "waiting for an event");
}

ek_status ek__cuda_stream_synchronize(ek_stream *stream) {
  const struct ek__cuda_stream *it = ek__cuda_stream_of(stream);
  EK_TRY(ek__cuda_finish(it, "waiting for a stream"));
  /* What was sent ahead belongs to the compute stream, though it does not wait for it yet. */
  if (it == &it->device->streams[EK_STREAM_COMPUTE]) {
    EK_TRY(ek__cuda_finish(&it->device->streams[EK__CUDA_COPIES], "waiting for copies"));
  }
  return ek__cuda_check_group(it->device->group);
}
