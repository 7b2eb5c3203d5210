/*
 * check_memory_snapshot.c - snapshots are read back, as JSON and as pickles, by a reader of each
 * that knows no more than PyTorch's viewer does; what is in them is the ledger's, events lead to
 * the blocks that are held, and modules have what they took.
 */
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "ck_folder.h"
#include "ck_fork.h"
#include "ck_linears.h"
#include "ck_viewer.h"

enum { DEVICES = 2, WIDTH = 64 };

/* ---- the rules ---- */

static void check_frames(const struct ck_value *frames) {
  for (const struct ck_value *frame = frames->first; frame != NULL; frame = frame->next) {
    ck_assert(ck_value_text(frame, "filename")[0] != '\0' &&
              ck_value_text(frame, "name")[0] != '\0');
    ck_assert_uint_eq(ck_value_number(frame, "line"), 0);
  }
}

static int find_category(const char *name) {
  for (int c = 0; c < EK_MEMORY_CATEGORIES; c++) {
    if (strcmp(name, ek_memory_category_name((ek_memory_category)c)) == 0) return c;
  }
  return -1;
}

enum { BLOCKS = 4096 };
struct blocks {
  size_t count;
  struct {
    uint64_t address, size;
  } list[BLOCKS];
};

/* Blocks follow each other through the whole segment, and add up to the ledger. */
static void check_segment(struct blocks *held, const struct ck_value *segment,
                          const ek_device *device) {
  uint64_t address = ck_value_number(segment, "address"), sums[EK_MEMORY_CATEGORIES] = {0}, sum = 0;
  const uint64_t end = address + ck_value_number(segment, "total_size");
  CK_GOT(ek_memory_usage, usage, ek_memory_stats(&usage, device));
  ck_assert_uint_eq(ck_value_number(segment, "device"), ek_device_index(device));
  ck_assert_uint_eq(ck_value_number(segment, "stream"), 0);
  held->count = 0;
  const struct ck_value *blocks = ck_value_get(segment, "blocks", '[');
  for (const struct ck_value *block = blocks->first; block != NULL; block = block->next) {
    const uint64_t size = ck_value_number(block, "size");
    const bool used = strcmp(ck_value_text(block, "state"), "active_allocated") == 0;
    ck_assert(used || strcmp(ck_value_text(block, "state"), "inactive") == 0);
    ck_assert_uint_eq(ck_value_number(block, "address"), address);
    ck_assert(size > 0 && ck_value_number(block, "requested_size") == size);
    check_frames(ck_value_get(block, "frames", '['));
    address += size;
    if (!used) continue;
    ck_assert(ck_value_get(block, "frames", '[')->first != NULL && held->count < BLOCKS);
    held->list[held->count].address = address - size;
    held->list[held->count++].size = size;
    const int category = find_category(ck_value_text(block, "category"));
    ck_assert_int_ge(category, 0);
    sums[category] += size;
    sum += size;
  }
  ck_assert_uint_eq(address, end);
  ck_assert_uint_eq(sum, usage.current_bytes);
  ck_assert_uint_eq(ck_value_number(segment, "allocated_size"), sum);
  for (int c = 0; c < EK_MEMORY_CATEGORIES; c++) ck_assert_uint_eq(sums[c], usage.current[c]);
}

static size_t place_of(const struct blocks *blocks, uint64_t address) {
  size_t i = 0;
  while (i < blocks->count && blocks->list[i].address != address) i++;
  return i;
}

/* What is taken is not held, what is given back is, and what is left is what the segment has. */
static void check_trace(const struct ck_value *trace, const struct blocks *held) {
  static struct blocks now;
  bool unknown = false;
  now.count = 0;
  for (const struct ck_value *event = trace->first; event != NULL; event = event->next) {
    const char *action = ck_value_text(event, "action"),
               *category = ck_value_text(event, "category");
    unknown = unknown || strcmp(category, "unknown") == 0;
    ck_assert(find_category(category) >= 0 || strcmp(category, "unknown") == 0);
    check_frames(ck_value_get(event, "frames", '['));
    if (strcmp(action, "oom") == 0) {
      ck_assert(ck_value_number(event, "size") > 0 && ck_value_find(event, "device_free") != NULL);
      continue;
    }
    const uint64_t address = ck_value_number(event, "addr"), size = ck_value_number(event, "size");
    const size_t at = place_of(&now, address);
    if (strcmp(action, "alloc") == 0) {
      ck_assert(at == now.count && now.count < BLOCKS);
      now.list[now.count].address = address;
      now.list[now.count++].size = size;
    } else if (strcmp(action, "free_requested") == 0) {
      ck_assert_str_eq(ck_value_text(event->next, "action"), "free_completed");
      ck_assert_uint_eq(ck_value_number(event->next, "addr"), address);
    } else if (strcmp(action, "free_completed") == 0) {
      ck_assert(at < now.count && now.list[at].size == size);
      now.list[at] = now.list[--now.count];
    } else {
      ck_assert_str_eq(action, "snapshot");
    }
  }
  ck_assert_msg(unknown, "the viewer needs a category \"unknown\"");
  ck_assert_uint_eq(now.count, held->count);
  for (size_t i = 0; i < now.count; i++) {
    const size_t at = place_of(held, now.list[i].address);
    ck_assert(at < held->count && held->list[at].size == now.list[i].size);
  }
}

static void check_holders(const struct ck_value *about, const ek_device *device) {
  uint64_t sum = 0, last = UINT64_MAX;
  const struct ck_value *holders = ck_value_get(about, "holders", '[');
  ck_assert_str_eq(ck_value_text(about, "name"), ek_device_name(device));
  for (const struct ck_value *it = holders->first; it != NULL; it = it->next) {
    ck_assert(ck_value_number(it, "bytes") <= last && ck_value_number(it, "blocks") > 0);
    last = ck_value_number(it, "bytes");
    sum += last;
  }
  ck_assert_uint_eq(sum, ck_value_number(about, "held_bytes"));
  static ek_memory_holder list[BLOCKS];
  CK_GOT(size_t, count, ek_memory_holders(list, &count, BLOCKS, device, false));
  ck_assert_uint_eq(count, ck_value_count(holders));
  ck_assert(count == 0 || strcmp(list[0].name, ck_value_text(holders->first, "name")) == 0);
}

/* The group is at rest. Gives the number of events. */
static size_t check_snapshot(const struct ck_value *snapshot, const ek_group *group) {
  static struct blocks held;
  const struct ck_value *segment = ck_value_get(snapshot, "segments", '[')->first;
  const struct ck_value *trace = ck_value_get(snapshot, "device_traces", '[')->first;
  const struct ck_value *about =
      ck_value_get(ck_value_get(snapshot, "evenkeel", '{'), "devices", '[')->first;
  size_t events = 0;
  for (size_t k = 0; k < ek_group_size(group); k++) {
    ck_assert(segment != NULL && trace != NULL && about != NULL);
    check_segment(&held, segment, ek_group_device(group, k));
    check_trace(trace, &held);
    check_holders(about, ek_group_device(group, k));
    events += ck_value_count(trace);
    segment = segment->next;
    trace = trace->next;
    about = about->next;
  }
  ck_assert(segment == NULL && trace == NULL && about == NULL);
  return events;
}

/* Writes a snapshot, which is right; the number of events in it. */
static size_t events_of(ek_group *group, const char *file) {
  ck_ok(ek_memory_snapshot(group, file));
  return check_snapshot(ck_read_snapshot(file), group);
}

static size_t find_holder(const ek_memory_holder *list, size_t count, const char *name) {
  size_t i = 0;
  while (i < count && strcmp(list[i].name, name) != 0) i++;
  return i;
}

/* Two linears of WIDTH: masters of four bytes an element, copies of `bytes`, each by its name. */
static void check_masters_and_copies(const ek_device *device, uint64_t bytes) {
  const uint64_t elements = 2 * (WIDTH * WIDTH + WIDTH);
  ek_memory_holder list[16];
  CK_GOT(size_t, count, ek_memory_holders(list, &count, 16, device, false));
  const size_t masters = find_holder(list, count, "(parameters)");
  const size_t copies = find_holder(list, count, "(copies)");
  ck_assert(masters < count && list[masters].bytes == 4 * elements);
  ck_assert(bytes > 0 ? copies < count && list[copies].bytes == bytes * elements : copies == count);
}

/* ---- something that holds memory ---- */

static const char *folder, *path, *json;

static void make_folder(void) {
  folder = ck_folder();
  path = ck_file(folder, "snapshot.pickle");
  json = ck_file(folder, "snapshot.json");
}

static void record(const ek_group *group, size_t events) {
  for (size_t k = 0; k < DEVICES; k++)
    ck_ok(ek_memory_record_start(ek_group_device(group, k), events));
}

/* ---- tests ---- */

/* On devices that compute and that count, in f32 and in bf16. */
CK_LOOP(a_snapshot_is_what_is_held, ck_has_halves() ? 4 : 2) {
  CK_SET_UP(struct ck_linears, it,
            ck_linears_open_in(&it, _i % 2 == 0 ? "cpu:2" : "plan:2@3GiB", WIDTH,
                               EK_MODE_REPLICATED, _i < 2 ? EK_PRECISION_F32 : EK_PRECISION_BF16));
  ck_ok(ck_linears_step(&it));
  size_t held = 0;
  for (int recorded = 0; recorded < 2; recorded++) {
    if (recorded == 1) record(it.group, 10000);
    ck_ok(ck_linears_step(&it));
    ck_ok(ek_memory_snapshot(it.group, path));
    ck_ok(ek_memory_snapshot(it.group, json));
    const struct ck_value *pickled = ck_read_snapshot(path), *written = ck_read_snapshot(json);
    ck_assert(ck_value_same(pickled, written));
    const size_t events = check_snapshot(pickled, it.group);
    ck_assert_msg(recorded == 0 || events > held + 30, "%zu events, %zu blocks", events, held);
    held = events;
    check_masters_and_copies(ek_group_device(it.group, 1), _i < 2 ? 0 : 2);
  }
}

/* A recording that has dropped something is not all that happened, so nothing of it is shown. */
CK_TEST(a_part_of_a_recording_is_not_shown) {
  CK_SET_UP(struct ck_linears, it, ck_linears_open(&it, "plan:2", WIDTH, EK_MODE_REPLICATED));
  record(it.group, 3);
  ck_ok(ck_linears_step(&it));
  (void)events_of(it.group, json);
}

/* In a pickle they are appended by the thousand, which the reader counts. */
CK_TEST(a_long_recording_is_shown) {
  CK_SET_UP(struct ck_linears, it, ck_linears_open(&it, "plan:2", WIDTH, EK_MODE_REPLICATED));
  record(it.group, 10000);
  for (int i = 0; i < 140; i++) ck_ok(ck_linears_step(&it));
  ck_assert_uint_gt(events_of(it.group, path), DEVICES * 2400);
}

/* Blocks that were taken before the recording and in it, the last request before it among them;
 * each grows once. */
CK_TEST(blocks_grow) {
  enum { BEFORE = 2, ALL = 4 };
  ek_group *group = ck_open("cpu:1", 1);
  ek_device *device = ek_group_device(group, 0);
  ek_tensor tensors[ALL];
  for (int i = 0; i < ALL; i++) {
    if (i == BEFORE) ck_ok(ek_memory_record_start(device, 100));
    ck_ok(ek_tensor_create(&tensors[i], device, EK_MEMORY_INPUTS, EK_F32, CK_SHAPE(2, WIDTH)));
    (void)events_of(group, json);
  }
  for (int i = ALL - 1; i >= 0; i--) { /* each into the room of the one after it */
    bool grown = false;
    ck_ok(ek_tensor_grow(&grown, &tensors[i], 3));
    ck_assert(grown);
    (void)events_of(group, json);
    ek_tensor_free(&tensors[i]);
  }
}

/* The event of the request that found no room, among a device's. */
static const struct ck_value *find_refused(const struct ck_value *snapshot, size_t device) {
  const struct ck_value *trace = ck_value_get(snapshot, "device_traces", '[')->first;
  for (; device > 0; device--) trace = trace->next;
  for (const struct ck_value *event = trace->first; event != NULL; event = event->next) {
    if (strcmp(ck_value_text(event, "action"), "oom") == 0) return event;
  }
  return NULL;
}

/* Device 1 has no room for the n-th request of a step, for each n that happens in a module: the
 * error names it and the largest holders, and the snapshot says the same. */
CK_TEST(memory_runs_out) {
  CK_SET_UP(struct ck_linears, it, ck_linears_open(&it, "cpu:2", WIDTH, EK_MODE_REPLICATED));
  ck_ok(ck_linears_step(&it));
  size_t named = 0;
  for (uint64_t n = 1; n < 40; n++) {
    ck_ok(ek_memory_snapshot_when_full(it.group, json));
    ck_ok(ek_memory_fail_at(ek_group_device(it.group, 1), n));
    const ek_status status = ck_linears_step(&it);
    if (status == EK_OK) break;
    ck_assert_int_eq(status, EK_ERR_OUT_OF_MEMORY);
    ck_assert_msg(ck_contains(ek_error_message(), "failure requested by a test"), "%s",
                  ek_error_message());
    const bool modules = ck_contains(ek_error_message(), "; most by modules: ");
    const struct ck_value *snapshot = ck_read_snapshot(json);
    const struct ck_value *event = find_refused(snapshot, 1);
    ck_assert(event != NULL && find_refused(snapshot, 0) == NULL);
    const struct ck_value *frame = ck_value_get(event, "frames", '[')->first;
    if (frame != NULL && strcmp(ck_value_text(frame, "filename"), "1") == 0) {
      ck_assert(ck_contains(ek_error_message(), "1 (linear)") && modules);
      named++;
    }
    /* Once. */
    ck_assert(unlink(json) == 0);
    ck_ok(ek_memory_fail_at(ek_group_device(it.group, 0), n));
    ck_assert_int_eq(ck_linears_step(&it), EK_ERR_OUT_OF_MEMORY);
    ck_assert(access(json, F_OK) != 0);
  }
  ck_assert_uint_ge(named, 2);
  ck_ok(ek_memory_fail_at(ek_group_device(it.group, 1), 0));
  /* Not where it cannot be written, and the error stays; and not when it was taken back. */
  ck_ok(ek_memory_snapshot_when_full(it.group, "/nowhere/at/all"));
  for (int i = 0; i < 2; i++) {
    ck_ok(ek_memory_fail_at(ek_group_device(it.group, 1), 1));
    ck_fails(ck_linears_step(&it), EK_ERR_OUT_OF_MEMORY, "failure requested by a test");
    ck_ok(ek_memory_snapshot_when_full(it.group, i == 0 ? json : NULL));
    if (i == 0) ck_ok(ek_memory_snapshot_when_full(it.group, NULL));
  }
  ck_assert(access(json, F_OK) != 0);
  ck_ok(ck_linears_step(&it));
}

/* The outputs of three linear layers, as long as a pass has them saved, and of a model that is
 * gone. */
CK_TEST(modules_hold_what_they_took) {
  enum { LAYERS = 3 };
  ek_device *device = ck_device("cpu:1");
  ek_module *parts[LAYERS] = {NULL}, *inner = NULL, *model = NULL;
  for (int i = 0; i < LAYERS; i++) {
    ck_kept(ek_linear_create(&parts[i], WIDTH, WIDTH, true), parts[i]);
  }
  ck_kept(ek_sequential_create(&inner, parts, LAYERS - 1), inner);
  ck_kept(ek_sequential_create(&model, (ek_module *[]){inner, parts[2]}, 2), model);
  CK_OPENED(ek_replica *, replica, ek_replica_open(&replica, device, model, NULL));
  CK_WITH(ek_pass_options, options, EK_PASS_OPTIONS_INIT, .gradient = true);
  CK_OPENED(ek_pass *, pass, ek_pass_open(&pass, replica, &options));
  const int64_t shape[] = {CK_LINEARS_SAMPLES, WIDTH};
  const uint64_t bytes = sizeof(float) * CK_LINEARS_SAMPLES * WIDTH;
  CK_OPENED(ek_tensor, input, ek_tensor_create(&input, device, EK_MEMORY_INPUTS, EK_F32, 2, shape));
  CK_OPENED(ek_tensor, output, ek_pass_run_forward(&output, pass, &input));
  ek_memory_holder list[16];
  CK_GOT(size_t, count, ek_memory_holders(list, &count, 16, device, false));
  for (int i = 0; i < LAYERS; i++) {
    static const char *const names[] = {"0.0", "0.1", "1"};
    const size_t at = find_holder(list, count, names[i]);
    ck_assert_msg(at < count && list[at].bytes == bytes && list[at].blocks == 1, "%s", names[i]);
  }
  ck_assert(find_holder(list, count, "(parameters)") < count);
  ck_assert(find_holder(list, count, "(inputs)") < count);
  CK_GOT(size_t, alike, ek_memory_holders(list, &alike, 16, device, true));
  ck_assert_uint_eq(alike + 1, count);
  const size_t both = find_holder(list, alike, "*.*");
  ck_assert(both == alike || list[both].bytes == 2 * bytes);
  ck_assert(both < alike || find_holder(list, alike, "0.*") < alike);
  ck_ok(ek_memory_holders(NULL, &count, 0, device, true));
  ck_assert_uint_eq(count, alike);
  /* A request that finds no room says it. */
  ek_tensor more;
  ck_ok(ek_memory_fail_at(device, 1));
  ck_fails(ek_tensor_create(&more, device, EK_MEMORY_INPUTS, EK_F32, 2, shape),
           EK_ERR_OUT_OF_MEMORY, "; most by modules: *.* 3.00 KiB, 1 1.50 KiB");
  ek_pass_free(pass);
  ek_replica_free(replica);
  ck_ok(ek_memory_holders(list, &count, 16, device, false));
  ck_assert_uint_ge(count, 2);
  ck_assert(find_holder(list, count, "(outputs)") < count &&
            find_holder(list, count, "1") == count);
}

/* A thread that writes snapshots of a group until it is to stop. */
struct writer {
  ek_group *group;
  pthread_t thread;
  sem_t begun; /* after the first snapshot, or its failure */
  atomic_bool stop;
  ek_status status;
};

static void *write_on(void *argument) {
  struct writer *writer = argument;
  writer->status = ek_memory_snapshot(writer->group, json);
  (void)sem_post(&writer->begun);
  while (writer->status == EK_OK && !atomic_load(&writer->stop)) {
    writer->status = ek_memory_snapshot(writer->group, json);
  }
  return NULL;
}

/* Comes back when it has written once. */
static void start_writer(struct writer *writer, ek_group *group) {
  *writer = (struct writer){.group = group};
  atomic_init(&writer->stop, false);
  ck_assert(sem_init(&writer->begun, 0, 0) == 0);
  ck_assert(pthread_create(&writer->thread, NULL, write_on, writer) == 0);
  while (sem_wait(&writer->begun) != 0) continue;
}

static void stop_writer(struct writer *writer) {
  atomic_store(&writer->stop, true);
  ck_assert(pthread_join(writer->thread, NULL) == 0);
  ck_assert(sem_destroy(&writer->begun) == 0);
  ck_assert_int_eq(writer->status, EK_OK);
}

/* Beside a training, and while a model goes. */
CK_TEST(another_thread_writes) {
  CK_SET_UP(struct ck_linears, it, ck_linears_open(&it, "cpu:2", WIDTH, EK_MODE_REPLICATED));
  record(it.group, 1000);
  CK_SET_UP(struct writer, writer, start_writer(&writer, it.group));
  ek_status status = EK_OK;
  for (int i = 0; i < 6 && status == EK_OK; i++) status = ck_linears_step(&it);
  ek_trainer_free(it.trainer);
  it.trainer = NULL;
  stop_writer(&writer);
  ck_ok(status);
  (void)ck_read_snapshot(json);
  (void)events_of(it.group, json);
}

/* Snapshots of different lengths to one path: a reader finds one or the other. */
CK_TEST(two_threads_write_one_path) {
  enum { BLOCKS_HELD = 300, READS = 200 };
  ek_group *small = ck_open("cpu:1", 1), *large = ck_open("cpu:1", 1);
  struct writer writers[2];
  for (int i = 0; i < BLOCKS_HELD; i++) {
    (void)ck_upload(ek_group_device(large, 0), EK_F32, NULL, CK_SHAPE(1));
  }
  start_writer(&writers[0], small);
  start_writer(&writers[1], large);
  for (int i = 0; i < READS; i++) {
    const size_t mark = ck_mark();
    (void)ck_read_snapshot(json);
    ck_release(mark);
  }
  stop_writer(&writers[0]);
  stop_writer(&writers[1]);
}

/* What has the name of the temporary file is not written to: a link's target, a pipe. */
CK_TEST(temporary_names_are_not_followed) {
  const char *temporary = ck_file(folder, "snapshot.pickle.tmp");
  const char *target = ck_file(folder, "target");
  ek_group *group = ck_open("cpu:1", 1);
  ck_write_file(target, "kept", 4);
  for (int kind = 0; kind < 2; kind++) {
    ck_assert((kind == 0 ? symlink(target, temporary) : mkfifo(temporary, 0600)) == 0);
    ck_ok(ek_memory_snapshot(group, path));
    struct stat about;
    ck_assert(lstat(path, &about) == 0 && S_ISREG(about.st_mode));
    (void)ck_read_snapshot(path);
    ck_assert(unlink(temporary) == 0 && unlink(path) == 0);
    ck_assert(stat(target, &about) == 0 && about.st_size == 4);
  }
}

CK_TEST(misuse_is_refused) {
  const char *nowhere = ck_file(folder, "no/where.json");
  ek_group *group = ck_open("cpu:2", 1);
  ek_device *device = ek_group_device(group, 0);
  size_t count = 0;
  ck_invalid(ek_memory_snapshot(NULL, path), "group is NULL");
  ck_invalid(ek_memory_snapshot(group, NULL), "path is NULL");
  ck_fails(ek_memory_snapshot(group, nowhere), EK_ERR_NOT_FOUND, "where.json");
  ck_fails(ek_memory_snapshot(group, folder), EK_ERR_IO, "not a regular file");
  ck_invalid(ek_memory_snapshot_when_full(NULL, path), "group is NULL");
  ck_invalid(ek_memory_holders(NULL, &count, 1, device, true), "holders");
  ck_invalid(ek_memory_holders(NULL, NULL, 0, device, true), "count");
  ck_invalid(ek_memory_holders(NULL, &count, 0, NULL, true), "device");
  int code = -1;
  if (ck_forked(&code)) {
    const bool refused = ek_memory_snapshot(group, path) == EK_ERR_STATE &&
                         ek_memory_snapshot_when_full(group, path) == EK_ERR_STATE &&
                         ek_memory_holders(NULL, &count, 0, device, true) == EK_ERR_STATE;
    _exit(refused ? 0 : 1);
  }
  ck_assert_int_eq(code, 0);
  ck_ok(ek_memory_snapshot_when_full(group, path)); /* the group frees what that needs */
}

/* Each request for the host's memory fails once: no file, and nothing else is lost. */
CK_TEST(the_host_is_out_of_memory) {
  ek_group *group = ck_open("cpu:2", 1);
  (void)ck_upload(ek_group_device(group, 0), EK_F32, NULL, CK_SHAPE(WIDTH));
  for (int which = 0; which < 3; which++) {
    uint64_t n = 0;
    size_t count = 0;
    while (ck_host_fails(
        &n, which == 0   ? ek_memory_snapshot(group, path)
            : which == 1 ? ek_memory_snapshot_when_full(group, path)
                         : ek_memory_holders(NULL, &count, 0, ek_group_device(group, 0), true))) {
      ck_assert(which > 0 || access(path, F_OK) != 0);
    }
    ck_assert_uint_ge(n, which == 0 ? 6 : 2);
  }
  (void)check_snapshot(ck_read_snapshot(path), group);
}

CK_SUITE_WITH("memory_snapshot", make_folder, NULL)
