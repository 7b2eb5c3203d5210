/*
 * group_open.c - opens and closes a group of devices.
 *
 * In a world all processes open their groups at the same time, and none has one if one of them
 * could not.
 */
#include <pthread.h>
#include <string.h>

#include "core/alloc.h"
#include "core/options.h"
#include "core/thread.h"
#include "device/backends.h"
#include "device/device_spec.h"
#include "device/guard.h"
#include "device/group_struct.h"

/* The cores are divided evenly; a device always has one thread. */
static ek_status threads_for(int *threads, const struct ek__backend *backend, size_t count,
                             const ek_group_options *options) {
  if (options != NULL && options->threads_per_device > 0) {
    *threads = options->threads_per_device;
    return EK_OK;
  }
  *threads = 1;
  if (!backend->shared_memory) return EK_OK; /* nothing computes on the host */
  ek_device_description description;
  size_t found = 0;
  EK_TRY(backend->describe(&description, 1, &found));
  const int share = found > 0 ? description.cores / (int)count : 1;
  *threads = share > 1 ? share : 1;
  return EK_OK;
}

/* Asks the other processes for their devices. Devices that only count need to know no more. */
static ek_status join_world(ek_group *group, ek_world *world, bool counts) {
  EK_TRY(ek__place_open(&group->place, world, group->deterministic, group->count));
  group->first_rank = ek__place_first_rank(group->place, ek_world_process(world));
  group->world_size = ek__place_ranks(group->place);
  if (counts) {
    ek__place_close(group->place);
    group->place = NULL;
  } else {
    ek__world_count_group(world, 1);
  }
  return EK_OK;
}

/* The group's place among the devices of all processes. */
static ek_status take_ranks(ek_group *group, const ek_group_options *options) {
  const bool counts = group->backend->kernels == NULL;
  const size_t all = options->world_size == 0 ? group->count : options->world_size;
  group->time_limit = options->time_limit;
  if (options->world != NULL) {
    EK__FAIL_IF(options->world_size != 0 || options->first_rank != 0, EK_ERR_INVALID_ARGUMENT,
                "ek_group_open: options.world says which ranks the group has: world_size and "
                "first_rank must be 0");
    return ek_world_processes(options->world) > 1 ? join_world(group, options->world, counts)
                                                  : EK_OK;
  }
  EK__FAIL_IF(all < group->count || options->first_rank > all - group->count,
              EK_ERR_INVALID_ARGUMENT,
              "ek_group_open: %zu devices from rank %zu on in a world of %zu", group->count,
              options->first_rank, all);
  EK__FAIL_IF(all != group->count && !counts, EK_ERR_INVALID_ARGUMENT,
              "ek_group_open: a world of %zu devices, of which this process has %zu, needs "
              "options.world to reach the other processes; only `plan` counts without it",
              all, group->count);
  group->first_rank = options->first_rank;
  group->world_size = all;
  return EK_OK;
}

static ek_status read_options(ek_group_options *o, const ek_group_options *options) {
  EK_TRY(ek__options_read(o, sizeof *o, options, "ek_group_options"));
  EK__FAIL_IF(o->threads_per_device < 0 || o->threads_per_device > 1024, EK_ERR_INVALID_ARGUMENT,
              "ek_group_open: options.threads_per_device is %d, expected 0 to 1024",
              o->threads_per_device);
  EK__FAIL_IF(!(o->time_limit >= 0 && o->time_limit <= 1e9), EK_ERR_INVALID_ARGUMENT,
              "ek_group_open: options.time_limit is %g seconds, expected 0 to 1e9", o->time_limit);
  if (o->time_limit == 0) o->time_limit = 600;
  return EK_OK;
}

/* Stops the workers and frees everything, even of a group that did not open completely. */
static void destroy(ek_group *group) {
  ek__group_stop_workers(group);
  for (size_t i = 0; i < EK__ENDS * group->count; i++) {
    struct ek__worker *worker = &group->workers[i / EK__ENDS];
    if (worker->ends[i % EK__ENDS] != NULL) ek__device_count_event(worker->device, 1);
    ek_event_free(worker->ends[i % EK__ENDS]);
  }
  for (size_t i = 0; i < group->count; i++) ek__device_close(group->workers[i].device);
  if (group->native != NULL) group->backend->group_close(group->native);
  ek__world_count_group(ek__place_world(group->place), group->place == NULL ? 0 : -1);
  ek__place_close(group->place);
  ek__host_blocks_close(&group->blocks);
  pthread_cond_destroy(&group->turn);
  pthread_cond_destroy(&group->done);
  pthread_mutex_destroy(&group->mutex);
  ek__free(group->workers);
  ek__free(group->spec);
  ek__free(group);
}

/* A backend may be a library of its own, which cannot call these by name. */
static const struct ek__agreeing agreeing = {
    .share = ek__world_share, .compare = ek__world_compare, .misses = ek__world_misses};

static ek_status open_parts(ek_group *group, const struct ek__device_spec *spec,
                            const ek_group_options *options) {
  const struct ek__backend *backend = group->backend;
  int threads = 1;
  for (group->count = 0; group->count < spec->count; group->count++) {
    struct ek__worker *worker = &group->workers[group->count];
    worker->group = group;
    (void)sem_init(&worker->work, 0, 0);
  }
  group->deterministic = options->deterministic;
  group->first_rank = 0;
  group->world_size = spec->count;
  EK_TRY(take_ranks(group, options));
  EK_TRY(threads_for(&threads, backend, spec->count, options));
  const struct ek__members members = {.first_rank = group->first_rank,
                                      .ranks = group->world_size,
                                      .world = ek__place_world(group->place),
                                      .agreeing = &agreeing};
  if (backend->group_open != NULL) {
    EK_TRY(backend->group_open(&group->native, spec, options, &members));
  }
  for (size_t i = 0; i < group->count; i++) {
    EK_TRY(ek__device_open(&group->workers[i].device, group, group->native, backend, spec, i,
                           i > 0 ? group->workers[0].device : NULL, threads, options));
    if (options->debug_memory) ek__guard_start(group->workers[i].device);
  }
  for (size_t i = 0; i < EK__ENDS * group->count; i++) {
    struct ek__worker *worker = &group->workers[i / EK__ENDS];
    EK_TRY(ek_event_create(&worker->ends[i % EK__ENDS], worker->device));
    ek__device_count_event(worker->device, -1); /* not one of those that a program must free */
  }
  return ek__group_start_workers(group);
}

static ek_status open_named(ek_group **group, const char *text, struct ek__device_spec *spec,
                            const ek_group_options *options) {
  const struct ek__backend *backend = NULL;
  EK_TRY(ek__backend_load(&backend, spec->backend));
  if (backend->resolve != NULL) EK_TRY(backend->resolve(spec));
  EK_TRY(ek__device_check_resources(options, backend, spec));
  EK_TRY(ek__process_watch());
  ek_group *result = NULL;
  EK_TRY(ek__new(&result, 1, sizeof *result, "a group"));
  result->backend = backend;
  result->process = ek__process_this();
  pthread_mutex_init(&result->mutex, NULL);
  pthread_condattr_t steady; /* a wait with an end; the clock of the day may be set meanwhile */
  pthread_condattr_init(&steady);
  pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);
  pthread_cond_init(&result->done, &steady);
  pthread_condattr_destroy(&steady);
  pthread_cond_init(&result->turn, NULL);
  ek__host_blocks_open(&result->blocks);
  ek_status status = ek__new_copy(&result->spec, text, strlen(text) + 1, "a group");
  if (status == EK_OK) {
    status = ek__new(&result->workers, spec->count, sizeof *result->workers, "a group");
  }
  if (status == EK_OK) status = open_parts(result, spec, options);
  if (status == EK_OK) {
    *group = result;
  } else {
    destroy(result);
  }
  return status;
}

static ek_status open_spec(ek_group **group, const char *spec, const ek_group_options *options) {
  struct ek__device_spec parsed;
  EK_TRY(ek__device_spec_parse(&parsed, spec));
  ek_status status = open_named(group, spec, &parsed, options);
  ek__device_spec_free(&parsed);
  if (status == EK_OK) status = ek__world_agree(options->world, "opening a group", 0);
  return status;
}

ek_status ek_group_open(ek_group **group, const char *spec, const ek_group_options *options) {
  EK__NOT_NULL("ek_group_open", group, spec);
  ek_group_options o = EK_GROUP_OPTIONS_INIT;
  ek_group *opened = NULL;
  EK_TRY(read_options(&o, options));
  if (ek_world_processes(o.world) == 1) {
    EK_TRY(open_spec(&opened, spec, &o));
  } else {
    const uint64_t began = ek__world_begin(o.world);
    const ek_status status = ek__world_end(o.world, began, open_spec(&opened, spec, &o));
    if (status != EK_OK) {
      if (opened != NULL) destroy(opened);
      return status;
    }
    ek__group_recovers(opened);
  }
  *group = opened;
  return EK_OK;
}

/* Finds objects that would dangle or hang if the group were freed now. */
static ek_status check_unused(ek_group *group) {
  pthread_mutex_lock(&group->mutex);
  const bool busy = group->drawn != group->served, communicators = group->abortables != NULL;
  pthread_mutex_unlock(&group->mutex);
  EK__FAIL_IF(busy, EK_ERR_STATE, "ek_group_close: another thread is using the group");
  EK__FAIL_IF(communicators, EK_ERR_STATE,
              "ek_group_close: a model or a communicator is still open");
  for (size_t i = 0; i < group->count; i++) {
    EK_TRY(ek__device_check_unused(group->workers[i].device, "ek_group_close"));
  }
  EK__FAIL_IF(ek__host_blocks_lent(&group->blocks) > 0, EK_ERR_STATE,
              "ek_group_close: shards of the group were not freed");
  return EK_OK;
}

ek_status ek_group_close(ek_group *group) {
  if (group == NULL) return EK_OK;
  EK_TRY(ek__group_check(group, "ek_group_close"));
  EK__FAIL_IF(ek__group_worker_device(group) != NULL, EK_ERR_STATE,
              "ek_group_close: called from a worker of the same group");
  EK_TRY(check_unused(group));
  ek__group_recovers_no_more(group);
  destroy(group);
  return EK_OK;
}

void ek_group_free(ek_group *group) {
  char before[EK__MESSAGE_SIZE];
  ek__error_keep(before);
  ek__error_restore(before, ek_group_close(group));
}
