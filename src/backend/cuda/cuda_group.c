/*
 * cuda_group.c - opens and closes the GPUs that the devices of a group share.
 *
 * Opening: reads devices and GPUs from the string; makes everything of the devices except their
 * memory; enables peer access between GPUs that must reach each other's memory; loads all code;
 * disables peer access that does not work; measures the memory left and takes it. Closing undoes
 * this, even if a device has failed or work is stuck on a stream.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda_internal.h"

/* How many groups of this process use a GPU: the last one resets a GPU that has failed. */
enum { COUNTED_GPUS = 256 };
static pthread_mutex_t users_mutex = PTHREAD_MUTEX_INITIALIZER;
static unsigned users[COUNTED_GPUS];

static unsigned add_user(int physical, unsigned change) {
  if (physical >= COUNTED_GPUS) return 1;
  pthread_mutex_lock(&users_mutex);
  const unsigned left = users[physical] += change;
  pthread_mutex_unlock(&users_mutex);
  return left;
}

/* ---- opening ---- */

static struct ek__cuda_gpu *gpu_of(struct ek__cuda_group *group, int physical) {
  for (size_t i = 0; i < group->gpu_count; i++) {
    if (group->gpus[i].physical == physical) return &group->gpus[i];
  }
  struct ek__cuda_gpu *gpu = &group->gpus[group->gpu_count++];
  gpu->physical = physical;
  gpu->first = group->count;
  (void)add_user(physical, 1);
  return gpu;
}

/* The devices of one GPU follow each other in the string. */
static void place_devices(struct ek__cuda_group *group, const struct ek__device_spec *spec) {
  for (size_t i = 0; i < spec->count; i++) {
    const struct ek__device_place *place = &spec->places[i];
    struct ek__cuda_device *device = &group->devices[i];
    device->group = group;
    device->gpu = gpu_of(group, place->physical);
    device->gpu->count++;
    device->index = i;
    if (place->parts > 1) {
      (void)snprintf(device->name, sizeof device->name, "cuda:%d#%d", place->physical, place->part);
    } else {
      (void)snprintf(device->name, sizeof device->name, "cuda:%d", place->physical);
    }
    group->count++;
  }
}

/* One algorithm whatever the size and the links: see ek_group_options. NCCL's configuration has no
 * word for it, and to set the environment of a process with threads is an error. */
static ek_status check_fixed_nccl(void) {
  const char *missing = NULL;
  if (getenv("NCCL_NVLS_ENABLE") == NULL) missing = "NCCL_NVLS_ENABLE";
  if (getenv("NCCL_PROTO") == NULL) missing = "NCCL_PROTO";
  if (getenv("NCCL_ALGO") == NULL) missing = "NCCL_ALGO";
  if (missing != NULL) {
    return ek__cuda_host->error_set(
        EK_ERR_UNSUPPORTED,
        "cuda: deterministic: these GPUs do not reach each other's memory, and NCCL chooses its "
        "algorithms itself: start the program with NCCL_ALGO=Ring NCCL_PROTO=Simple "
        "NCCL_NVLS_ENABLE=0 (%s is not set)",
        missing);
  }
  return EK_OK;
}

/* Between processes it is NCCL or nothing. */
static ek_status choose_between_processes(struct ek__cuda_group *group) {
  const bool distinct = group->gpu_count == group->count;
  const char *missing = distinct ? ek__cuda_nccl_missing() : "NCCL takes each GPU only once";
  if (missing != NULL) {
    return ek__cuda_host->error_set(
        EK_ERR_UNSUPPORTED, "cuda: devices of several processes need NCCL, each on its own GPU: %s",
        missing);
  }
  group->nccl = true;
  return group->options.deterministic ? check_fixed_nccl() : EK_OK;
}

/* EVENKEEL_CUDA_LINK=nccl: NCCL even for one GPU, where nothing has to be exchanged. So all calls
 * of NCCL run, and can be tested, on a machine with one GPU. */
static ek_status choose_by_name(struct ek__cuda_group *group, const char *name) {
  if (strcmp(name, "nccl") != 0) {
    return ek__cuda_host->error_set(EK_ERR_INVALID_ARGUMENT,
                                    "cuda: EVENKEEL_CUDA_LINK: unknown link \"%s\"; expected nccl",
                                    name);
  }
  const bool distinct = group->gpu_count == group->count;
  const char *missing = distinct ? ek__cuda_nccl_missing() : "NCCL accepts each GPU only once";
  if (missing != NULL) {
    return ek__cuda_host->error_set(EK_ERR_UNAVAILABLE, "cuda: EVENKEEL_CUDA_LINK=nccl: %s",
                                    missing);
  }
  group->nccl = true;
  return group->options.deterministic && group->count > 1 ? check_fixed_nccl() : EK_OK;
}

/* NCCL takes a GPU once; else, and for a fixed order of sums, the devices read each other's memory.
 */
static ek_status choose_communicator(struct ek__cuda_group *group) {
  if (group->members.world != NULL) return choose_between_processes(group);
  const char *name = getenv("EVENKEEL_CUDA_LINK");
  if (name != NULL && *name != '\0') return choose_by_name(group, name);
  if (group->gpu_count == 1) return EK_OK;
  bool peers = false;
  EK_TRY(ek__cuda_peers_check(&peers, group));
  const bool distinct = group->gpu_count == group->count;
  const bool fixed_order = group->options.deterministic && peers;
  const char *missing = distinct && !fixed_order ? ek__cuda_nccl_missing() : NULL;
  group->nccl = distinct && !fixed_order && missing == NULL;
  if (group->nccl) return group->options.deterministic ? check_fixed_nccl() : EK_OK;
  if (peers) return EK_OK;
  return ek__cuda_host->error_set(
      EK_ERR_UNAVAILABLE,
      "cuda: these GPUs do not reach each other's memory (no peer access), and %s",
      missing == NULL ? "NCCL accepts each GPU only once" : missing);
}

static ek_status read_model(struct ek__cuda_gpu *gpu) {
  static const enum cudaDeviceAttr attributes[] = {cudaDevAttrComputeCapabilityMajor,
                                                   cudaDevAttrComputeCapabilityMinor,
                                                   cudaDevAttrMultiProcessorCount};
  gpu->model = 0;
  for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; i++) {
    int value = 0;
    EK_TRY(
        EK__CUDA_GPU(gpu->physical, cudaDeviceGetAttribute, &value, attributes[i], gpu->physical));
    gpu->model = gpu->model * 1000 + value;
  }
  return EK_OK;
}

static ek_status prepare_here(struct ek__cuda_group *group) {
  for (size_t i = 0; i < group->count; i++) EK_TRY(ek__cuda_device_prepare(&group->devices[i]));
  EK_TRY(ek__cuda_peers_open(group));
  EK_TRY(ek__cuda_warm(group));
  return choose_communicator(group);
}

static ek_status prepare_link(struct ek__cuda_group *group, uint64_t capacity) {
  EK_TRY(ek__cuda_warm_link(group));
  for (size_t i = 0; i < group->gpu_count; i++) {
    EK_TRY(ek__cuda_memory_open(group, &group->gpus[i], capacity));
  }
  return EK_OK;
}

static ek_status prepare(struct ek__cuda_group *group, uint64_t capacity) {
  for (size_t i = 0; i < group->gpu_count; i++) {
    struct ek__cuda_gpu *gpu = &group->gpus[i];
    EK_TRY(EK__CUDA_GPU(gpu->physical, cudaDeviceGetAttribute, &gpu->shared_bytes,
                        cudaDevAttrMaxSharedMemoryPerBlockOptin, gpu->physical));
    EK_TRY(read_model(gpu));
  }
  ek__cuda_gate_close(group->time_limit);
  const ek_status status = prepare_here(group);
  ek__cuda_gate_open();
  EK_TRY(status);
  /* Other processes are not waited for with the gate closed. */
  const bool gated = group->members.world == NULL;
  if (gated) ek__cuda_gate_close(group->time_limit);
  const ek_status linked = prepare_link(group, capacity);
  if (gated) ek__cuda_gate_open();
  return linked;
}

ek_status ek__cuda_group_open(void **native, const struct ek__device_spec *spec,
                              const ek_group_options *options, const struct ek__members *members) {
  const size_t each = sizeof(struct ek__cuda_device) + sizeof(struct ek__cuda_gpu);
  struct ek__cuda_group *group = ek__cuda_new(sizeof *group + spec->count * each, "a group");
  if (group == NULL) return EK_ERR_OUT_OF_MEMORY;
  group->gpus = (struct ek__cuda_gpu *)(void *)(group->devices + spec->count);
  group->options = *options;
  group->members = *members;
  group->time_limit = options->time_limit;
  if (pthread_mutex_init(&group->failure_mutex, NULL) != 0) {
    ek__cuda_host->free(group);
    return ek__cuda_host->error_set(EK_ERR_OUT_OF_MEMORY, "cuda: a mutex could not be created");
  }
  place_devices(group, spec);
  const ek_status status = prepare(group, spec->capacity);
  if (status != EK_OK) {
    ek__cuda_group_close(group);
    return status;
  }
  *native = group;
  return EK_OK;
}

/* ---- closing: nothing is reported but what is lost, and nothing can fail ---- */

/* Lets a stream run dry until `deadline`; one of a GPU that has failed counts as dry. */
static bool runs_dry(const struct ek__cuda_stream *stream, double deadline) {
  if (stream->handle == NULL) return true;
  (void)cudaSetDevice(stream->device->gpu->physical); /* else another GPU's failure is the answer */
  for (unsigned asked = 0; ek__cuda_query(stream) == cudaErrorNotReady; asked++) {
    if (ek__cuda_now() > deadline) return false;
    ek__cuda_pause(asked);
  }
  /* A GPU that has failed answers a question at once, perhaps before it has come to rest. */
  (void)cudaStreamSynchronize(stream->handle);
  return true;
}

/* False if work does not end: freeing memory would then wait for it for ever. All GPUs come first,
 * because they may read each other's memory. Where work was stuck before, it has a moment to end
 * after what it waited for was aborted. */
static bool settle(const struct ek__cuda_group *group) {
  const double moment = atomic_load(&group->stuck) && group->time_limit > 1 ? 1 : group->time_limit;
  const double deadline = ek__cuda_now() + moment;
  bool dry = true;
  for (size_t i = 0; i < group->count; i++) {
    const struct ek__cuda_device *device = &group->devices[i];
    for (int kind = 0; kind < EK__CUDA_STREAMS; kind++)
      dry = runs_dry(&device->streams[kind], deadline) && dry;
  }
  return dry;
}

static void close_gpu(struct ek__cuda_group *group, struct ek__cuda_gpu *gpu) {
  (void)cudaSetDevice(gpu->physical);
  for (size_t i = 0; i < gpu->count; i++) ek__cuda_device_discard(&group->devices[gpu->first + i]);
  ek__cuda_warm_end(gpu);
  if (gpu->memory != NULL) (void)cudaFree(gpu->memory);
  /* After a final error every call fails until the GPU is reset, which ends what others of this
   * process have on it; after any other error theirs still works, and stays. */
  const bool last = add_user(gpu->physical, (unsigned)-1) == 0;
  if (last && ek__cuda_is_final(cudaDeviceSynchronize())) {
    (void)cudaDeviceReset();
    ek__cuda_warm_forget(gpu->physical);
    ek__cuda_grants_forget(gpu->physical);
  }
  (void)cudaGetLastError();
}

void ek__cuda_group_close(void *native) {
  struct ek__cuda_group *group = native;
  const bool gated = group->members.world == NULL;
  if (gated) ek__cuda_gate_close(group->time_limit);
  ek__cuda_nccl_end(group);
  if (gated) ek__cuda_gate_open();
  if (settle(group)) {
    ek__cuda_gate_close(group->time_limit);
    for (size_t i = 0; i < group->gpu_count; i++) close_gpu(group, &group->gpus[i]);
    ek__cuda_gate_open();
    pthread_mutex_destroy(&group->failure_mutex);
    ek__cuda_host->free(group);
    return;
  }
  ek__cuda_host->log(EK_LOG_WARNING,
                     "cuda: work on a GPU does not end; the group's memory cannot be freed");
}
