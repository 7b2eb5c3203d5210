/*
 * check_device.c - device strings, groups and their workers, streams, events, and the list of what
 * there is.
 */
#include "ek_check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

/* ---- device strings ---- */

#define MIB ((uint64_t)1 << 20)

static const struct {
  const char *spec;
  size_t count;
  uint64_t capacity; /* 0: what the machine has */
} good[] = {
    {"cpu", 1, 0},
    {"cpu:1", 1, 0},
    {"cpu:4", 4, 0},
    {"cpu:007", 7, 0},
    {"plan:64", 64, 0},
    {"cpu@512MiB", 1, 512 * MIB},
    {"cpu:2@512MiB", 2, 512 * MIB},
    {"plan@256", 1, 256},
    {"plan@256B", 1, 256},
    {"plan@1023", 1, 768}, /* whole units */
    {"plan@1KiB", 1, 1024},
    {"plan@1KB", 1, 768},
    {"plan@0.5KiB", 1, 512},
    {"plan@1.5GiB", 1, 1536 * MIB},
    {"plan@2.5MB", 1, 2500000 / 256 * 256},
    {"plan@3GB", 1, UINT64_C(3000000000) / 256 * 256},
    {"plan@1TB", 1, UINT64_C(1000000000000)},
    {"plan@1024TiB", 1, MIB *MIB * 1024},
    {"plan@0.1234567890123MiB", 1, 129453 / 256 * 256},
    {"plan:8@80GiB", 8, 80 * 1024 * MIB},
};

CK_LOOP(a_good_string_opens, sizeof good / sizeof good[0]) {
  CK_OPENED(ek_group *, group, ek_group_open(&group, good[_i].spec, NULL));
  ck_assert_uint_eq(ek_group_size(group), good[_i].count);
  ck_assert_str_eq(ek_group_spec(group), good[_i].spec);
  for (size_t i = 0; i < good[_i].count; i++) {
    ek_device *device = ek_group_device(group, i);
    const char *name = ck_text("%.*s:%zu", (int)strspn(good[_i].spec, "cpulan"), good[_i].spec, i);
    ck_assert_str_eq(ek_device_name(device), name);
    ck_assert_uint_eq(ek_device_index(device), i);
    ck_assert_ptr_eq(ek_device_group(device), group);
    ck_assert(strncmp(ek_device_backend(device), name, strlen(ek_device_backend(device))) == 0);
    ck_assert(ek_device_counts_only(device) == (good[_i].spec[0] == 'p'));
    ek_device_mark_work(device); /* what is counted: blocks_of_logits_cost_alike, check_advise.c */
    ck_assert(ek_device_repeat_work(device, 3) == ek_device_counts_only(device));
    ck_assert(!ek_device_repeat_work(device, -1));
    ck_assert_int_ge(ek_device_threads(device), 1);
    CK_GOT(ek_memory_usage, usage, ck_memory_stats(&usage, device));
    if (good[_i].capacity != 0) ck_assert_uint_eq(usage.capacity_bytes, good[_i].capacity);
    ck_assert_uint_ge(usage.capacity_bytes, 256);
  }
  ck_assert_ptr_null(ek_group_device(group, good[_i].count));
}

static const struct {
  const char *spec, *text;
  int place; /* of the mark */
} bad[] = {
    {"", "a backend", 0},
    {":4", "a backend", 0},
    {"gpu:1", "a backend", 0},
    {"CPU:1", "a backend", 0},
    {"cpux:1", "a backend", 0},
    {"averyveryverylongname", "a backend", 0},
    {" cpu", "a backend", 0},
    {"cpu4", "the end", 3},
    {"cpu 4", "the end", 3},
    {"cpu:", "a number of devices", 4},
    {"cpu:x", "a number of devices", 4},
    {"cpu:-1", "a number of devices", 4},
    {"cpu:@1GiB", "a number of devices", 4},
    {"cpu:0", "at least one device", 4},
    {"cpu:65", "at most 64 devices", 4},
    {"plan:99999999999999999999999", "at most 64 devices", 5},
    {"cpu:4,", "the end", 5},
    {"cpu:4@", "a size", 6},
    {"cpu:4@MiB", "a size", 6},
    {"cpu:4@-1MiB", "a size", 6},
    {"cpu:4@.5MiB", "a size", 6},
    {"cpu:4@1.MiB", "digits", 8},
    {"cpu:4@1024.5.5MiB", "the end", 12},
    {"cpu:4@1mib", "a unit", 7},
    {"cpu:4@1MiBs", "a unit", 7},
    {"cpu:4@1M", "a unit", 7},
    {"cpu:4@1024 MiB", "the end", 10},
    {"cpu:4@1MiB MiB", "the end", 10},
    {"cpu:4@1MiB ", "the end", 10},
    {"cpu:4@1MiB:4", "the end", 10},
    {"cpu:4@5 MB", "the end, or directly after the number a unit", 7},
    {"cpu:4@5\tMB", "the end, or directly after the number a unit", 7},
    {"cpu:4@5,2", "the end, or directly after the number a unit", 7},
    {"cpu:4@ 5MB", "a size", 6},
    {"cpu:4@0", "at least 256 bytes", 6},
    {"cpu:4@255B", "at least 256 bytes", 6},
    {"cpu:4@0.24KiB", "at least 256 bytes", 6},
    {"plan@8388608TiB", "fits in 63 bits", 5},
    {"plan@16777216TiB", "fits in 63 bits", 5},
    {"plan@9223372036854775808", "fits in 63 bits", 5},
    {"plan@18446744073709551616", "fits in 63 bits", 5},
    {"plan@18446744073709551610", "fits in 63 bits", 5},
    {"plan@184467440737095516160", "fits in 63 bits", 5},
    {"plan@99999999999999999999999999TiB", "fits in 63 bits", 5},
};

CK_LOOP(a_bad_string_is_refused_and_shown, sizeof bad / sizeof bad[0]) {
  ek_group *group = NULL;
  ck_invalid(ek_group_open(&group, bad[_i].spec, NULL), bad[_i].text);
  ck_assert_ptr_null(group);
  /* The second line is the string, the third the mark under the place. */
  const char *want = ck_text("\n  %s\n  %*s^", bad[_i].spec, bad[_i].place, "");
  const char *message = ek_error_message();
  const size_t length = strlen(message);
  ck_assert_msg(length > strlen(want) && strcmp(message + length - strlen(want), want) == 0,
                "the mark is wrong:\n%s", message);
}

CK_TEST(other_refusals) {
  ek_group *group = NULL;
  ck_invalid(ek_group_open(NULL, "cpu", NULL), "NULL");
  ck_invalid(ek_group_open(&group, NULL, NULL), "NULL");
  ck_fails(ek_group_open(&group, "plan@1025TiB", NULL), EK_ERR_OUT_OF_MEMORY, "plan");
  /* 2^63 - 1 is a size; there is only no such memory. */
  ck_fails(ek_group_open(&group, "cpu:1@9223372036854775807", NULL), EK_ERR_OUT_OF_MEMORY,
           "8.00 EiB");
  ck_fails(ek_group_open(&group, "plan:1@9223372036854775807", NULL), EK_ERR_OUT_OF_MEMORY,
           "at most");
  static char longer[6000];
  memset(longer, '1', sizeof longer - 1);
  ck_invalid(ek_group_open(&group, longer, NULL), "a backend");
  ck_assert_ptr_null(group);
}

/* A number that no machine has, alone and among others. */
CK_TEST(a_gpu_that_is_not_there) {
  static const char *const specs[] = {"cuda:4095", "cuda:0,4095", "cuda:4095x4@8GiB"};
  ek_group *group = NULL;
  for (int i = 0; i < 3; i++) {
    ck_fails(ek_group_open(&group, specs[i], NULL), EK_ERR_UNAVAILABLE, "cuda: ");
    ck_assert_ptr_null(group);
  }
}

/* "cuda" means those that the list calls available. */
CK_TEST(every_gpu_that_is_there) {
  ek_device_description list[CK_MAX_DEVICES];
  size_t count = 0, gpus = 0;
  ck_ok(ek_device_list(list, &count, CK_MAX_DEVICES));
  ck_assert_uint_le(count, CK_MAX_DEVICES);
  for (size_t i = 0; i < count; i++) {
    if (strncmp(list[i].name, "cuda", 4) == 0 && list[i].available) gpus++;
  }
  ek_group *group = NULL;
  if (gpus == 0) {
    ck_fails(ek_group_open(&group, "cuda", NULL), EK_ERR_UNAVAILABLE, "cuda: ");
    ck_assert_ptr_null(group);
  } else {
    ck_kept(ek_group_open(&group, "cuda", NULL), group);
    ck_assert_uint_eq(ek_group_size(group), gpus);
  }
}

CK_TEST(options_are_checked_and_used) {
  ek_group *group = NULL;
  ek_group_options options = EK_GROUP_OPTIONS_INIT;
#define BAD(member, value, text)                                                                   \
  ck_bad(options, member, value, ek_group_open(&group, "cpu", &options), text)
  BAD(threads_per_device, -1, "threads_per_device");
  BAD(threads_per_device, 1025, "threads_per_device");
  BAD(size, 0, "ek_group_options.size is 0");
  ck_assert_ptr_null(group);
  for (int threads = 1; threads <= 5; threads += 2) {
    CK_HELD(ek_group *, opened, ck_open("cpu:2", threads));
    for (size_t i = 0; i < 2; i++) {
      ck_assert_int_eq(ek_device_threads(ek_group_device(opened, i)), threads);
    }
  }
}

CK_TEST(cores_are_shared_evenly) {
  ek_device_description list[8];
  CK_GOT(size_t, count, ek_device_list(list, &count, 8));
  ck_assert_str_eq(list[0].name, "cpu");
  for (size_t devices = 1; devices <= 4; devices++) {
    CK_HELD(ek_group *, group, ck_open_exactly(ck_text("cpu:%zu", devices), 0));
    const int share = list[0].cores / (int)devices;
    for (size_t i = 0; i < devices; i++) {
      ck_assert_int_eq(ek_device_threads(ek_group_device(group, i)), share > 1 ? share : 1);
    }
  }
}

CK_TEST(nothing_is_asked_of_nothing) {
  ck_assert_uint_eq(ek_group_size(NULL), 0);
  ck_assert_ptr_null(ek_group_device(NULL, 0));
  ck_assert_ptr_nonnull(ek_group_spec(NULL));
  ck_assert_uint_eq(ek_device_index(NULL), 0);
  ck_assert_str_eq(ek_device_name(NULL), "host");
  ck_assert_str_eq(ek_device_backend(NULL), "host");
  ck_assert_str_eq(ek_device_planner(NULL), "");
  ck_assert_ptr_null(ek_device_group(NULL));
  ck_assert_int_eq(ek_device_threads(NULL), 0);
  ck_assert(!ek_device_counts_only(NULL));
  ek_device_mark_work(NULL);
  ck_assert(!ek_device_repeat_work(NULL, 1));
  ek_group_free(NULL);
  ck_invalid(ek_group_synchronize(NULL), "NULL");
}

CK_TEST(the_list_names_every_backend) {
  CK_GOT(size_t, count, ek_device_list(NULL, &count, 0));
  ck_assert_uint_ge(count, 3);
  ek_device_description list[16], cut[2];
  CK_GOT(size_t, again, ek_device_list(list, &again, 16));
  ck_assert_uint_eq(again, count);
  ck_ok(ek_device_list(cut, &again, 2));
  ck_assert_uint_eq(again, count);
  ck_assert_str_eq(cut[1].name, list[1].name);
  bool cpu = false, plan = false, cuda = false;
  for (size_t i = 0; i < count; i++) {
    ck_assert_uint_gt(strlen(list[i].text), 0);
    if (strcmp(list[i].name, "cpu") == 0) {
      cpu = list[i].available && list[i].cores >= 1 && list[i].memory_bytes > MIB;
    }
    if (strcmp(list[i].name, "plan") == 0) plan = list[i].available;
    if (strncmp(list[i].name, "cuda", 4) == 0) cuda = true;
  }
  ck_assert(cpu && plan && cuda);
  ck_invalid(ek_device_list(list, NULL, 16), "count");
  ck_invalid(ek_device_list(NULL, &count, 1), "descriptions");
}

/* ---- ek_group_apply; workers record, the test asserts after they came back ---- */

struct job {
  ek_group *group;
  pthread_t threads[CK_MAX_DEVICES];
  atomic_int calls[CK_MAX_DEVICES];
  atomic_int present;
  atomic_bool wrong;
  ek_status give[CK_MAX_DEVICES];
  bool silent; /* fail without a message */
};

CK_JOB(work) {
  struct job *job = context;
  if (ek_group_device(job->group, index) != device || ek_device_index(device) != index) {
    atomic_store(&job->wrong, true);
  }
  job->threads[index] = pthread_self();
  atomic_fetch_add(&job->calls[index], 1);
  /* All at the same time: no worker goes on before all are there. */
  atomic_fetch_add(&job->present, 1);
  const struct timespec pause = {.tv_nsec = 100000};
  while (atomic_load(&job->present) < (int)ek_group_size(job->group)) nanosleep(&pause, NULL);
  if (job->give[index] == EK_OK || job->silent) return job->give[index];
  return ek_error_set(job->give[index], "worker %zu is unhappy", index);
}

static ek_status apply(struct job *job) {
  atomic_store(&job->present, 0);
  return ek_group_apply(job->group, work, job);
}

CK_TEST(apply_runs_once_on_each_worker_and_the_threads_stay) {
  static struct job job;
  memset(&job, 0, sizeof job);
  job.group = ck_open("plan:8", 1);
  pthread_t before[8];
  for (int round = 1; round <= 100; round++) {
    ck_ok(apply(&job));
    for (int i = 0; i < 8; i++) {
      ck_assert_int_eq(atomic_load(&job.calls[i]), round);
      ck_assert(round == 1 || pthread_equal(before[i], job.threads[i]));
      before[i] = job.threads[i];
    }
  }
  ck_assert(!atomic_load(&job.wrong));
  for (int i = 0; i < 8; i++) {
    ck_assert(!pthread_equal(job.threads[i], pthread_self()));
    for (int j = 0; j < i; j++) ck_assert(!pthread_equal(job.threads[i], job.threads[j]));
  }
}

CK_TEST(the_lowest_failing_device_speaks) {
  static struct job job;
  memset(&job, 0, sizeof job);
  ck_assign(job, .group = ck_open("cpu:4@1MiB", 1), .give[2] = EK_ERR_IO, .give[3] = EK_ERR_SHAPE);
  ck_fails(apply(&job), EK_ERR_IO, "replica 2 on cpu:2: worker 2 is unhappy");
  ck_assert(strncmp(ek_error_message(), "replica 2 on ", 13) == 0);
  /* A device that only gave up does not speak while another has an error of its own. */
  job.give[0] = EK_ERR_ABORTED;
  ck_fails(apply(&job), EK_ERR_IO, "replica 2 on cpu:2: worker 2 is unhappy");
  job.give[2] = job.give[3] = EK_ERR_ABORTED;
  ck_fails(apply(&job), EK_ERR_ABORTED, "replica 0 on cpu:0: worker 0 is unhappy");
  memset(job.give, 0, sizeof job.give);
  job.silent = true;
  ck_bad_with(EK_ERR_STATE, job, give[1], EK_ERR_STATE, apply(&job), "replica 1 on cpu:1: ");
  ck_assert(ck_contains(ek_error_message(), ek_status_text(EK_ERR_STATE)));
  memset(job.give, 0, sizeof job.give);
  ck_ok(apply(&job));
}

CK_JOB(speak_long) {
  return index == 1 ? ek_error_set(EK_ERR_IO, "%s", (const char *)context) : EK_OK;
}

CK_TEST(a_long_message_comes_through) {
  static char text[6000];
  memset(text, 'z', sizeof text - 1);
  ek_group *group = ck_open("plan:2", 1);
  ck_fails(ek_group_apply(group, speak_long, text), EK_ERR_IO, "replica 1 on plan:1: zzz");
  ck_assert_uint_eq(strlen(ek_error_message()), 4095);
}

/* The device's name once, also where the message of a failure begins with it, or has it behind
 * what a module put before it. `context` is a format for the name; NULL: memory runs out. */
CK_JOB(take_too_much) {
  ek_tensor tensor;
  const int64_t count = (int64_t)1 << 40;
  const char *words = context, *name = ek_device_name(device);
  if (index == 0) return EK_OK;
  if (words != NULL) {
    const char *place = strchr(words, '@');
    return ek_error_set(EK_ERR_IO, "%.*s%s%s", (int)(place - words), words, name, place + 1);
  }
  return ek_tensor_create(&tensor, device, EK_MEMORY_INPUTS, EK_F32, 1, &count);
}

CK_TEST(a_failure_names_its_device_once) {
  ek_group *group = ck_open("plan:2@1MiB", 1);
  const char *name = ek_device_name(ek_group_device(group, 1));
  const char *want = ck_text("replica 1 on %s: out of memory: ", name);
  ck_fails(ek_group_apply(group, take_too_much, NULL), EK_ERR_OUT_OF_MEMORY, want);
  ck_assert(strncmp(ek_error_message(), want, strlen(want)) == 0);
  char another[] = "@x: another word", between[] = "mlp, forward: @: full", inside[] = "to @: no";
  ck_fails(ek_group_apply(group, take_too_much, another), EK_ERR_IO,
           ck_text("replica 1 on %s: %sx: another word", name, name));
  ck_fails(ek_group_apply(group, take_too_much, between), EK_ERR_IO,
           ck_text("replica 1 on %s: mlp, forward: full", name));
  ck_fails(ek_group_apply(group, take_too_much, inside), EK_ERR_IO,
           ck_text("replica 1 on %s: to %s: no", name, name));
}

struct nested {
  ek_group *group, *other;
  ek_status statuses[2], foreign[2];
};

CK_JOB(nothing) {
  return EK_OK;
}

CK_JOB(nest) {
  struct nested *nested = context;
  nested->statuses[index] = ek_group_apply(nested->group, nothing, NULL);
  if (index == 0) nested->foreign[0] = ek_group_apply(nested->other, nothing, NULL);
  return EK_OK;
}

CK_TEST(apply_from_a_worker_is_refused) {
  struct nested nested = {.group = ck_open("plan:2", 1), .other = ck_open("plan:2", 1)};
  ck_ok(ek_group_apply(nested.group, nest, &nested));
  ck_assert_int_eq(nested.statuses[0], EK_ERR_STATE);
  ck_assert_int_eq(nested.statuses[1], EK_ERR_STATE);
  ck_assert_int_eq(nested.foreign[0], EK_OK); /* of another group it may be */
  ck_ok(ek_group_apply(nested.group, nothing, NULL));
  ck_invalid(ek_group_apply(NULL, nothing, NULL), "NULL");
  ck_invalid(ek_group_apply(nested.group, NULL, NULL), "NULL");
}

/* ---- streams and events ---- */

CK_LOOP(streams_and_events, 2) {
  ek_group *group = ck_open(_i == 0 ? "cpu:2@1MiB" : "plan:2", 1);
  ek_device *device = ek_group_device(group, 0), *peer = ek_group_device(group, 1);
  ek_stream *compute = ek_device_stream(device, EK_STREAM_COMPUTE);
  ek_stream *communication = ek_device_stream(device, EK_STREAM_COMMUNICATION);
  ck_assert_ptr_nonnull(compute);
  ck_assert_ptr_nonnull(communication);
  ck_assert_ptr_ne(compute, communication);
  ck_assert_ptr_eq(ek_stream_device(communication), device);
  const bool cuda = strcmp(ek_device_backend(device), "cuda") == 0;
  ck_assert_int_eq(ek_stream_native(compute) != NULL, cuda);
  const bool like_cuda = strstr(ek_device_backend(device), "cuda") != NULL;
  ck_assert_str_eq(ek_device_planner(device), like_cuda ? "plan-cuda" : "plan");
  ck_assert_str_eq(ek_device_planner(ck_device("plan-cuda:1")), "plan-cuda");
  ck_assert_ptr_null(ek_device_stream(device, (ek_stream_kind)2));
  ck_assert_ptr_null(ek_device_stream(device, (ek_stream_kind)-1));
  ck_assert_ptr_null(ek_device_stream(NULL, EK_STREAM_COMPUTE));
  ck_assert_ptr_null(ek_stream_device(NULL));
  ck_assert_ptr_null(ek_stream_native(NULL));
  CK_OPENED(ek_event *, event, ek_event_create(&event, device));
  ck_ok(ek_stream_wait(communication, event)); /* nothing was recorded */
  ck_ok(ek_event_record(event, compute));
  ck_ok(ek_stream_wait(communication, event));
  ck_ok(ek_stream_wait(ek_device_stream(peer, EK_STREAM_COMPUTE), event));
  ck_ok(ek_stream_synchronize(communication));
  ck_ok(ek_group_synchronize(group));
  ck_fails(ek_event_record(event, ek_device_stream(peer, EK_STREAM_COMPUTE)), EK_ERR_DEVICE,
           _i == 0 ? "cpu:1" : "plan:1");
  ck_invalid(ek_event_record(NULL, compute), "NULL");
  ck_invalid(ek_event_record(event, NULL), "NULL");
  ck_invalid(ek_stream_wait(NULL, event), "NULL");
  ck_invalid(ek_stream_wait(compute, NULL), "NULL");
  ck_invalid(ek_stream_synchronize(NULL), "NULL");
  ck_invalid(ek_event_create(NULL, device), "NULL");
  ck_invalid(ek_event_create(&event, NULL), "NULL");
  ek_event_free(NULL);
}

/* ---- opening when the host is short ---- */

CK_LOOP(every_allocation_of_open_may_fail, 3) {
  static const char *const specs[] = {"cpu:3@1MiB", "plan:9@80GiB", "cpu:2"};
  ek_group *group = NULL;
  CK_WITH(ek_group_options, options, EK_GROUP_OPTIONS_INIT, .threads_per_device = 2);
  uint64_t n = 0;
  while (ck_host_fails(&n, ek_group_open(&group, specs[_i], &options))) {
    ck_assert_ptr_null(group);
    ck_ok(ek_group_open(&group, specs[_i], &options));
    ck_ok(ek_group_apply(group, nothing, NULL));
    ek_group_free(group);
    group = NULL;
  }
  ck_keep(group);
  ck_ok(ek_group_apply(group, nothing, NULL));
}

CK_TEST(many_groups_at_once) {
  enum { GROUPS = 12 };
  ek_group *groups[GROUPS];
  for (int i = 0; i < GROUPS; i++)
    groups[i] = ck_open(i % 2 == 0 ? "cpu:3@1MiB" : "plan:64@1TiB", 1);
  for (int i = 0; i < GROUPS; i++) ck_ok(ek_group_apply(groups[i], nothing, NULL));
  for (int i = 0; i < GROUPS; i++) ek_group_free(groups[(i * 5) % GROUPS]);
}

/* ---- what a program gives ---- */

enum { GIVEN = 64 << 10 };
static _Alignas(EK_MEMORY_UNIT) unsigned char given_memory[2][GIVEN];

static ek_group_options with_resources(const ek_device_resources *resources, size_t count) {
  CK_WITH(ek_group_options, options, EK_GROUP_OPTIONS_INIT, .resources = resources,
          .resource_count = count);
  return options;
}

/* Tensors use it up to its last byte, and the group does not free it. */
CK_LOOP(tensors_in_memory_of_the_program, 2) {
  const ek_device_resources resources[] = {{NULL, given_memory[0], GIVEN},
                                           {NULL, given_memory[1], GIVEN}};
  const ek_group_options options = with_resources(resources, 2);
  const int64_t whole[] = {GIVEN}, more[] = {GIVEN / 4 + 1};
  ek_tensor x = {0}, y = {0};
  CK_GOT(ek_group *, group, ek_group_open(&group, _i == 0 ? "cpu:2" : "plan:2", &options));
  CK_GOT(ek_memory_usage, usage, ek_memory_stats(&usage, ek_group_device(group, 1)));
  ck_assert_uint_eq(usage.capacity_bytes, GIVEN);
  ck_ok(ek_tensor_create(&x, ek_group_device(group, 1), EK_MEMORY_INPUTS, EK_F32, 1,
                         (const int64_t[]){whole[0] / 4}));
  ck_assert_ptr_eq(x.data, given_memory[1]);
  ck_fails(ek_tensor_create(&y, ek_group_device(group, 0), EK_MEMORY_INPUTS, EK_F32, 1, more),
           EK_ERR_OUT_OF_MEMORY, "0");
  if (_i == 0) memset(x.data, 7, GIVEN);
  ek_tensor_free(&x);
  ck_ok(ek_group_close(group));
  if (_i == 0) ck_assert_int_eq(given_memory[1][GIVEN - 1], 7);
}

static const struct {
  const char *spec;
  ek_device_resources of[2];
  size_t count;
  ek_status status;
  const char *text;
} bad_resources[] = {
    {"cpu:2", {{NULL, given_memory[0], GIVEN}}, 1, EK_ERR_INVALID_ARGUMENT, "is 1, expected 2"},
    {"cpu:2", {{NULL, given_memory[0], GIVEN}}, 2, EK_ERR_INVALID_ARGUMENT, "all or none"},
    {"cpu:1", {{NULL, given_memory[0], 0}}, 1, EK_ERR_INVALID_ARGUMENT, "or neither"},
    {"cpu:1", {{NULL, NULL, GIVEN}}, 1, EK_ERR_INVALID_ARGUMENT, "or neither"},
    {"cpu:1", {{NULL, given_memory[0] + 64, 512}}, 1, EK_ERR_INVALID_ARGUMENT, "multiple of 256"},
    {"cpu:1", {{NULL, given_memory[0], 255}}, 1, EK_ERR_INVALID_ARGUMENT, "at least 256"},
    {"cpu:1@1MiB", {{NULL, given_memory[0], GIVEN}}, 1, EK_ERR_INVALID_ARGUMENT, "larger than"},
    {"cpu:1", {{given_memory, NULL, 0}}, 1, EK_ERR_UNSUPPORTED, "have no streams"},
    {"plan:1", {{given_memory, NULL, 0}}, 1, EK_ERR_UNSUPPORTED, "have no streams"}};

CK_LOOP(resources_that_are_refused, sizeof bad_resources / sizeof bad_resources[0]) {
  const ek_group_options options = with_resources(bad_resources[_i].of, bad_resources[_i].count);
  ek_group *group = NULL;
  ck_fails(ek_group_open(&group, bad_resources[_i].spec, &options), bad_resources[_i].status,
           bad_resources[_i].text);
  ck_assert_ptr_null(group);
}

CK_TEST(resources_without_an_array) {
  const ek_group_options options = with_resources(NULL, 1);
  ek_group *group = NULL;
  ck_invalid(ek_group_open(&group, "cpu:1", &options), "is 1, expected 0");
}

CK_TEST(streams_of_the_program_where_work_is_done_at_once) {
  ek_stream *stream = ek_device_stream(ek_group_device(ck_open_exactly("cpu:1", 1), 0),
                                       EK_STREAM_COMPUTE);
  ck_ok(ek_stream_wait_native(stream, NULL));
  ck_ok(ek_stream_native_wait(NULL, stream));
  ck_invalid(ek_stream_wait_native(NULL, NULL), "NULL");
  ck_invalid(ek_stream_native_wait(NULL, NULL), "NULL");
}

CK_SUITE("device")
