/*
 * check_memory_snapshot.c - snapshots are read back, as JSON and as pickles, by a reader of each
 * that knows no more than PyTorch's viewer does; what is in them is the ledger's, events lead to the
 * blocks that are held, and modules have what they took.
 */
#include "ek_check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <evenkeel/evenkeel.h>

#include "ck_folder.h"

enum { DEVICES = 2, SAMPLES = 6, WIDTH = 64 };

/* ---- values ---- */

struct value {
  char kind; /* { [ " or 0 for a number */
  uint64_t number;
  char *text;
  struct value *first, *last, *next; /* items; of a dictionary keys and values in turns */
};

static struct value *make_value(char kind) {
  struct value *made = calloc(1, sizeof *made);
  ck_assert_ptr_nonnull(made);
  made->kind = kind;
  return made;
}

static void append(struct value *to, struct value *item) {
  if (to->first == NULL) to->first = item;
  if (to->last != NULL) to->last->next = item;
  to->last = item;
}

static void free_value(struct value *value) {
  for (struct value *item = value->first; item != NULL;) {
    struct value *next = item->next;
    free_value(item);
    item = next;
  }
  free(value->text);
  free(value);
}

static const struct value *find(const struct value *dictionary, const char *key) {
  ck_assert(dictionary->kind == '{');
  for (const struct value *k = dictionary->first; k != NULL; k = k->next->next) {
    if (strcmp(k->text, key) == 0) return k->next;
  }
  return NULL;
}

static const struct value *get(const struct value *dictionary, const char *key, char kind) {
  const struct value *value = find(dictionary, key);
  ck_assert_msg(value != NULL && value->kind == kind, "no %s, or of another kind", key);
  return value;
}

static uint64_t get_number(const struct value *dictionary, const char *key) {
  return get(dictionary, key, 0)->number;
}

static const char *get_text(const struct value *dictionary, const char *key) {
  return get(dictionary, key, '"')->text;
}

static size_t count_items(const struct value *list) {
  size_t count = 0;
  for (const struct value *item = list->first; item != NULL; item = item->next) count++;
  return count;
}

static bool same_value(const struct value *a, const struct value *b) {
  if (a->kind != b->kind || a->number != b->number) return false;
  if (a->kind == '"' && strcmp(a->text, b->text) != 0) return false;
  const struct value *x = a->first, *y = b->first;
  for (; x != NULL && y != NULL; x = x->next, y = y->next) {
    if (!same_value(x, y)) return false;
  }
  return x == y;
}

/* ---- the two readers ---- */

static struct value *take_text(const char *from, size_t length) {
  struct value *made = make_value('"');
  made->text = calloc(length + 1, 1);
  memcpy(made->text, from, length);
  return made;
}

static struct value *read_json(const char **at) {
  *at += strspn(*at, ",: \n");
  if (**at == '"') { /* nothing here is escaped */
    const size_t length = strcspn(++*at, "\"\\");
    struct value *made = take_text(*at, length);
    *at += length;
    ck_assert(*(*at)++ == '"');
    return made;
  }
  if (**at != '{' && **at != '[') {
    struct value *made = make_value(0);
    char *end = NULL;
    made->number = strtoull(*at, &end, 10);
    ck_assert_msg(end > *at, "no value: %.20s", *at);
    *at = end;
    return made;
  }
  struct value *made = make_value(*(*at)++);
  const char closing = made->kind == '{' ? '}' : ']';
  while (**at != closing) append(made, read_json(at));
  ++*at;
  return made;
}

static uint64_t little_endian(const unsigned char *from, int bytes) {
  uint64_t number = 0;
  for (int i = bytes; i-- > 0;) number = number << 8 | from[i];
  return number;
}

/* Of a pickle's opcodes those that a snapshot needs. */
static struct value *read_pickle(const unsigned char *at, const unsigned char *end) {
  enum { DEPTH = 4096 };
  static struct value *stack[DEPTH];
  static size_t marks[DEPTH];
  size_t depth = 0, marked = 0;
  ck_assert(at[0] == 0x80 && at[1] == 2);
  at += 2;
  while (at < end && *at != '.') {
    ck_assert(depth + 1 < DEPTH);
    const unsigned char opcode = *at++;
    if (opcode == '}' || opcode == ']') {
      stack[depth++] = make_value(opcode == '}' ? '{' : '[');
    } else if (opcode == '(') {
      marks[marked++] = depth;
    } else if (opcode == 'u' || opcode == 'e') {
      const size_t mark = marks[--marked];
      struct value *to = stack[mark - 1];
      ck_assert(to->kind == (opcode == 'u' ? '{' : '[') &&
                (opcode == 'e' || (depth - mark) % 2 == 0));
      ck_assert(opcode == 'u' || depth - mark <= 1000);
      for (size_t i = mark; i < depth; i++) append(to, stack[i]);
      depth = mark;
    } else if (opcode == 'X') {
      const size_t length = (size_t)little_endian(at, 4);
      stack[depth++] = take_text((const char *)at + 4, length);
      at += 4 + length;
    } else {
      const int bytes = opcode == 'J' ? 4 : at[0];
      ck_assert_msg(opcode == 'J' || (opcode == 0x8a && bytes == 8), "opcode %#x", opcode);
      at += opcode == 0x8a;
      stack[depth] = make_value(0);
      stack[depth++]->number = little_endian(at, bytes);
      at += bytes;
    }
  }
  ck_assert(at + 1 == end && depth == 1 && marked == 0);
  return stack[0];
}

static struct value *read_snapshot(const char *path) {
  FILE *file = fopen(path, "rb");
  ck_assert_msg(file != NULL, "%s is not there", path);
  static char text[16 << 20];
  const size_t length = fread(text, 1, sizeof text - 1, file);
  ck_assert(fclose(file) == 0 && length < sizeof text - 1);
  text[length] = '\0';
  if (text[0] != '{') {
    return read_pickle((const unsigned char *)text, (const unsigned char *)text + length);
  }
  const char *at = text;
  struct value *value = read_json(&at);
  ck_assert_str_eq(at, "\n");
  return value;
}

/* ---- the rules ---- */

static void check_frames(const struct value *frames) {
  for (const struct value *frame = frames->first; frame != NULL; frame = frame->next) {
    ck_assert(get_text(frame, "filename")[0] != '\0' && get_text(frame, "name")[0] != '\0');
    ck_assert_uint_eq(get_number(frame, "line"), 0);
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
static void check_segment(struct blocks *held, const struct value *segment,
                          const ek_device *device) {
  uint64_t address = get_number(segment, "address"), sums[EK_MEMORY_CATEGORIES] = {0}, sum = 0;
  const uint64_t end = address + get_number(segment, "total_size");
  ek_memory_usage usage;
  ck_ok(ek_memory_stats(&usage, device));
  ck_assert_uint_eq(get_number(segment, "device"), ek_device_index(device));
  ck_assert_uint_eq(get_number(segment, "stream"), 0);
  held->count = 0;
  const struct value *blocks = get(segment, "blocks", '[');
  for (const struct value *block = blocks->first; block != NULL; block = block->next) {
    const uint64_t size = get_number(block, "size");
    const bool used = strcmp(get_text(block, "state"), "active_allocated") == 0;
    ck_assert(used || strcmp(get_text(block, "state"), "inactive") == 0);
    ck_assert_uint_eq(get_number(block, "address"), address);
    ck_assert(size > 0 && get_number(block, "requested_size") == size);
    check_frames(get(block, "frames", '['));
    address += size;
    if (!used) continue;
    ck_assert(get(block, "frames", '[')->first != NULL && held->count < BLOCKS);
    held->list[held->count].address = address - size;
    held->list[held->count++].size = size;
    const int category = find_category(get_text(block, "category"));
    ck_assert_int_ge(category, 0);
    sums[category] += size;
    sum += size;
  }
  ck_assert_uint_eq(address, end);
  ck_assert_uint_eq(sum, usage.current_bytes);
  ck_assert_uint_eq(get_number(segment, "allocated_size"), sum);
  for (int c = 0; c < EK_MEMORY_CATEGORIES; c++) ck_assert_uint_eq(sums[c], usage.current[c]);
}

static size_t place_of(const struct blocks *blocks, uint64_t address) {
  size_t i = 0;
  while (i < blocks->count && blocks->list[i].address != address) i++;
  return i;
}

/* What is taken is not held, what is given back is, and what is left is what the segment has. */
static void check_trace(const struct value *trace, const struct blocks *held) {
  static struct blocks now;
  bool unknown = false;
  now.count = 0;
  for (const struct value *event = trace->first; event != NULL; event = event->next) {
    const char *action = get_text(event, "action"), *category = get_text(event, "category");
    unknown = unknown || strcmp(category, "unknown") == 0;
    ck_assert(find_category(category) >= 0 || strcmp(category, "unknown") == 0);
    check_frames(get(event, "frames", '['));
    if (strcmp(action, "oom") == 0) {
      ck_assert(get_number(event, "size") > 0 && find(event, "device_free") != NULL);
      continue;
    }
    const uint64_t address = get_number(event, "addr"), size = get_number(event, "size");
    const size_t at = place_of(&now, address);
    if (strcmp(action, "alloc") == 0) {
      ck_assert(at == now.count && now.count < BLOCKS);
      now.list[now.count].address = address;
      now.list[now.count++].size = size;
    } else if (strcmp(action, "free_requested") == 0) {
      ck_assert_str_eq(get_text(event->next, "action"), "free_completed");
      ck_assert_uint_eq(get_number(event->next, "addr"), address);
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

static void check_holders(const struct value *about, const ek_device *device) {
  uint64_t sum = 0, last = UINT64_MAX;
  const struct value *holders = get(about, "holders", '[');
  ck_assert_str_eq(get_text(about, "name"), ek_device_name(device));
  for (const struct value *it = holders->first; it != NULL; it = it->next) {
    ck_assert(get_number(it, "bytes") <= last && get_number(it, "blocks") > 0);
    last = get_number(it, "bytes");
    sum += last;
  }
  ck_assert_uint_eq(sum, get_number(about, "held_bytes"));
  size_t count = 0;
  static ek_memory_holder list[BLOCKS];
  ck_ok(ek_memory_holders(list, &count, BLOCKS, device, false));
  ck_assert_uint_eq(count, count_items(holders));
  ck_assert(count == 0 || strcmp(list[0].name, get_text(holders->first, "name")) == 0);
}

/* The group is at rest. Gives the number of events. */
static size_t check_snapshot(const struct value *snapshot, const ek_group *group) {
  static struct blocks held;
  const struct value *segment = get(snapshot, "segments", '[')->first;
  const struct value *trace = get(snapshot, "device_traces", '[')->first;
  const struct value *about = get(get(snapshot, "evenkeel", '{'), "devices", '[')->first;
  size_t events = 0;
  for (size_t k = 0; k < ek_group_size(group); k++) {
    ck_assert(segment != NULL && trace != NULL && about != NULL);
    check_segment(&held, segment, ek_group_device(group, k));
    check_trace(trace, &held);
    check_holders(about, ek_group_device(group, k));
    events += count_items(trace);
    segment = segment->next;
    trace = trace->next;
    about = about->next;
  }
  ck_assert(segment == NULL && trace == NULL && about == NULL);
  return events;
}

/* ---- something that holds memory ---- */

static char folder[CK_FOLDER_SIZE], path[128], json[128];

static void make_folder(void) {
  ck_folder_make(folder);
  (void)snprintf(path, sizeof path, "%s/snapshot.pickle", folder);
  (void)snprintf(json, sizeof json, "%s/snapshot.json", folder);
}

static void remove_folder(void) {
  (void)unlink(path);
  (void)unlink(json);
  ck_folder_remove(folder);
}

struct training {
  ek_group *group;
  ek_module *module;
  ek_criterion *loss;
  ek_optimizer *rule;
  ek_trainer *trainer;
};

static void open_training(struct training *it, const char *spec) {
  ek_module *parts[2] = {NULL};
  memset(it, 0, sizeof *it);
  it->group = ck_open(spec, 1);
  for (int i = 0; i < 2; i++) ck_ok(ek_linear_create(&parts[i], WIDTH, WIDTH, true));
  ck_ok(ek_sequential_create(&it->module, parts, 2));
  for (int i = 0; i < 2; i++) ek_module_free(parts[i]);
  ck_ok(ek_mean_squared_error_create(&it->loss, EK_REDUCTION_MEAN));
  ck_ok(ek_sgd_create(&it->rule, NULL));
  ek_trainer_options options = EK_TRAINER_OPTIONS_INIT;
  options.group = it->group;
  ck_ok(ek_trainer_open(&it->trainer, NULL, it->module, it->loss, it->rule, &options));
}

static ek_status take_step(struct training *it) {
  static float rows[SAMPLES * WIDTH];
  const int64_t shape[] = {SAMPLES, WIDTH};
  ek_tensor batch;
  ck_ok(ek_tensor_host(&batch, rows, EK_F32, 2, shape));
  return ek_trainer_step(NULL, it->trainer, &batch, 1, &batch, 1);
}

static void close_training(struct training *it) {
  ek_trainer_free(it->trainer);
  ek_optimizer_free(it->rule);
  ek_criterion_free(it->loss);
  ek_module_free(it->module);
  ck_ok(ek_group_free(it->group));
}

/* ---- tests ---- */

START_TEST(a_snapshot_is_what_is_held) {
  struct training it;
  make_folder();
  open_training(&it, _i == 0 ? "cpu:2" : "plan:2");
  ck_ok(take_step(&it));
  size_t held = 0;
  for (int recorded = 0; recorded < 2; recorded++) {
    for (size_t k = 0; k < DEVICES && recorded == 1; k++) {
      ck_ok(ek_memory_record_start(ek_group_device(it.group, k), 10000));
    }
    ck_ok(take_step(&it));
    ck_ok(ek_memory_snapshot(it.group, path));
    ck_ok(ek_memory_snapshot(it.group, json));
    struct value *pickled = read_snapshot(path), *written = read_snapshot(json);
    ck_assert(same_value(pickled, written));
    const size_t events = check_snapshot(pickled, it.group);
    ck_assert_msg(recorded == 0 || events > held + 30, "%zu events, %zu blocks", events, held);
    held = events;
    free_value(pickled);
    free_value(written);
  }
  close_training(&it);
  remove_folder();
}
END_TEST

/* A recording that has dropped something is not all that happened, so nothing of it is shown. */
START_TEST(a_part_of_a_recording_is_not_shown) {
  struct training it;
  make_folder();
  open_training(&it, "plan:2");
  for (size_t k = 0; k < DEVICES; k++) {
    ck_ok(ek_memory_record_start(ek_group_device(it.group, k), 3));
  }
  ck_ok(take_step(&it));
  ck_ok(ek_memory_snapshot(it.group, json));
  struct value *snapshot = read_snapshot(json);
  (void)check_snapshot(snapshot, it.group);
  free_value(snapshot);
  close_training(&it);
  remove_folder();
}
END_TEST

/* The event of the request that found no room, among a device's. */
static const struct value *find_refused(const struct value *snapshot, size_t device) {
  const struct value *trace = get(snapshot, "device_traces", '[')->first;
  for (; device > 0; device--) trace = trace->next;
  for (const struct value *event = trace->first; event != NULL; event = event->next) {
    if (strcmp(get_text(event, "action"), "oom") == 0) return event;
  }
  return NULL;
}

/* Device 1 has no room for the n-th request of a step, for each n that happens in a module: the
 * error names it and those who hold most, and the snapshot says the same. */
START_TEST(memory_runs_out) {
  struct training it;
  make_folder();
  open_training(&it, "cpu:2");
  ck_ok(take_step(&it));
  size_t named = 0;
  for (uint64_t n = 1; n < 40; n++) {
    ck_ok(ek_memory_snapshot_when_full(it.group, json));
    ck_ok(ek_memory_fail_at(ek_group_device(it.group, 1), n));
    const ek_status status = take_step(&it);
    if (status == EK_OK) break;
    ck_assert_int_eq(status, EK_ERR_OUT_OF_MEMORY);
    ck_assert_msg(ck_contains(ek_error_message(), "failure asked for by a test"), "%s",
                  ek_error_message());
    const bool modules = ck_contains(ek_error_message(), "; most by modules: ");
    struct value *snapshot = read_snapshot(json);
    const struct value *event = find_refused(snapshot, 1);
    ck_assert(event != NULL && find_refused(snapshot, 0) == NULL);
    const struct value *frame = get(event, "frames", '[')->first;
    if (frame != NULL && strcmp(get_text(frame, "filename"), "1") == 0) {
      ck_assert(ck_contains(ek_error_message(), "1 (linear)") && modules);
      named++;
    }
    free_value(snapshot);
    /* Once. */
    ck_assert(unlink(json) == 0);
    ck_ok(ek_memory_fail_at(ek_group_device(it.group, 0), n));
    ck_assert_int_eq(take_step(&it), EK_ERR_OUT_OF_MEMORY);
    ck_assert(access(json, F_OK) != 0);
  }
  ck_assert_uint_ge(named, 2);
  ck_ok(ek_memory_fail_at(ek_group_device(it.group, 1), 0));
  /* Not where it cannot be written, and the error stays; and not when it was taken back. */
  ck_ok(ek_memory_snapshot_when_full(it.group, "/nowhere/at/all"));
  for (int i = 0; i < 2; i++) {
    ck_ok(ek_memory_fail_at(ek_group_device(it.group, 1), 1));
    ck_fails(take_step(&it), EK_ERR_OUT_OF_MEMORY, "failure asked for by a test");
    ck_ok(ek_memory_snapshot_when_full(it.group, i == 0 ? json : NULL));
    if (i == 0) ck_ok(ek_memory_snapshot_when_full(it.group, NULL));
  }
  ck_assert(access(json, F_OK) != 0);
  ck_ok(take_step(&it));
  close_training(&it);
  remove_folder();
}
END_TEST

static size_t find_holder(const ek_memory_holder *list, size_t count, const char *name) {
  size_t i = 0;
  while (i < count && strcmp(list[i].name, name) != 0) i++;
  return i;
}

/* The outputs of three linear layers, as long as a pass has them saved, and of a model that is
 * gone. */
START_TEST(modules_hold_what_they_took) {
  enum { LAYERS = 3 };
  ek_group *group = ck_open("cpu:1", 1);
  ek_device *device = ek_group_device(group, 0);
  ek_module *parts[LAYERS] = {NULL}, *inner = NULL, *model = NULL;
  for (int i = 0; i < LAYERS; i++) ck_ok(ek_linear_create(&parts[i], WIDTH, WIDTH, true));
  ck_ok(ek_sequential_create(&inner, parts, LAYERS - 1));
  ck_ok(ek_sequential_create(&model, (ek_module *[]){inner, parts[2]}, 2));
  ek_replica *replica = NULL;
  ek_pass *pass = NULL;
  ck_ok(ek_replica_open(&replica, device, model, NULL));
  ek_pass_options options = EK_PASS_OPTIONS_INIT;
  options.gradient = true;
  ck_ok(ek_pass_open(&pass, replica, &options));
  const int64_t shape[] = {SAMPLES, WIDTH};
  const uint64_t bytes = sizeof(float) * SAMPLES * WIDTH;
  ek_tensor input, output;
  ck_ok(ek_tensor_create(&input, device, EK_MEMORY_INPUTS, EK_F32, 2, shape));
  ck_ok(ek_pass_run_forward(&output, pass, &input));
  ek_memory_holder list[16];
  size_t count = 0;
  ck_ok(ek_memory_holders(list, &count, 16, device, false));
  for (int i = 0; i < LAYERS; i++) {
    static const char *const names[] = {"0.0", "0.1", "1"};
    const size_t at = find_holder(list, count, names[i]);
    ck_assert_msg(at < count && list[at].bytes == bytes && list[at].blocks == 1, "%s", names[i]);
  }
  ck_assert(find_holder(list, count, "(parameters)") < count);
  ck_assert(find_holder(list, count, "(inputs)") < count);
  size_t alike = 0;
  ck_ok(ek_memory_holders(list, &alike, 16, device, true));
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
  ek_tensor_free(&output);
  ek_tensor_free(&input);
  ek_module_free(model);
  ek_module_free(inner);
  for (int i = 0; i < LAYERS; i++) ek_module_free(parts[i]);
  ck_ok(ek_group_free(group));
}
END_TEST

static atomic_bool stop_writing;

static void *write_on(void *group) {
  ek_status status = EK_OK;
  while (status == EK_OK && !atomic_load(&stop_writing)) status = ek_memory_snapshot(group, json);
  return status == EK_OK ? NULL : group;
}

/* Beside a training, and while a model goes. */
START_TEST(another_thread_writes) {
  struct training it;
  make_folder();
  open_training(&it, "cpu:2");
  for (size_t k = 0; k < DEVICES; k++) {
    ck_ok(ek_memory_record_start(ek_group_device(it.group, k), 1000));
  }
  pthread_t thread;
  void *failed = NULL;
  atomic_store(&stop_writing, false);
  ck_assert(pthread_create(&thread, NULL, write_on, it.group) == 0);
  ek_status status = EK_OK;
  for (int i = 0; i < 6 && status == EK_OK; i++) status = take_step(&it);
  ek_trainer_free(it.trainer);
  it.trainer = NULL;
  atomic_store(&stop_writing, true);
  ck_assert(pthread_join(thread, &failed) == 0);
  ck_ok(status);
  ck_assert_ptr_null(failed);
  struct value *snapshot = read_snapshot(json);
  free_value(snapshot);
  ck_ok(ek_memory_snapshot(it.group, json));
  snapshot = read_snapshot(json);
  (void)check_snapshot(snapshot, it.group);
  free_value(snapshot);
  close_training(&it);
  remove_folder();
}
END_TEST

START_TEST(misuse_is_refused) {
  make_folder();
  char nowhere[160];
  (void)snprintf(nowhere, sizeof nowhere, "%s/no/where.json", folder);
  ek_group *group = ck_open("cpu:2", 1);
  ek_device *device = ek_group_device(group, 0);
  size_t count = 0;
  ck_fails(ek_memory_snapshot(NULL, path), EK_ERR_INVALID_ARGUMENT, "group is NULL");
  ck_fails(ek_memory_snapshot(group, NULL), EK_ERR_INVALID_ARGUMENT, "path is NULL");
  ck_fails(ek_memory_snapshot(group, nowhere), EK_ERR_NOT_FOUND, "where.json");
  ck_fails(ek_memory_snapshot(group, folder), EK_ERR_IO, "no regular file");
  ck_fails(ek_memory_snapshot_when_full(NULL, path), EK_ERR_INVALID_ARGUMENT, "group is NULL");
  ck_fails(ek_memory_holders(NULL, &count, 1, device, true), EK_ERR_INVALID_ARGUMENT, "holders");
  ck_fails(ek_memory_holders(NULL, NULL, 0, device, true), EK_ERR_INVALID_ARGUMENT, "count");
  ck_fails(ek_memory_holders(NULL, &count, 0, NULL, true), EK_ERR_INVALID_ARGUMENT, "device");
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = ek_memory_snapshot(group, path) == EK_ERR_STATE &&
                         ek_memory_snapshot_when_full(group, path) == EK_ERR_STATE &&
                         ek_memory_holders(NULL, &count, 0, device, true) == EK_ERR_STATE;
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ck_assert(waitpid(child, &status, 0) == child && status == 0);
  ck_ok(ek_memory_snapshot_when_full(group, path)); /* the group frees what that needs */
  ck_ok(ek_group_free(group));
  remove_folder();
}
END_TEST

/* Each request for the host's memory fails once: no file, and nothing else is lost. */
START_TEST(the_host_is_out_of_memory) {
  make_folder();
  ek_group *group = ck_open("cpu:2", 1);
  ek_tensor tensor;
  const int64_t shape[] = {WIDTH};
  ck_ok(ek_tensor_create(&tensor, ek_group_device(group, 0), EK_MEMORY_INPUTS, EK_F32, 1, shape));
  for (int which = 0; which < 3; which++) {
    int failures = 0;
    size_t count = 0;
    for (ek_status status = EK_ERR_OUT_OF_MEMORY; status != EK_OK; failures++) {
      ek_host_memory_fail_at((uint64_t)failures + 1);
      status = which == 0   ? ek_memory_snapshot(group, path)
               : which == 1 ? ek_memory_snapshot_when_full(group, path)
                            : ek_memory_holders(NULL, &count, 0, ek_group_device(group, 0), true);
      ek_host_memory_fail_at(0);
      ck_assert(status == EK_OK || status == EK_ERR_OUT_OF_MEMORY);
      ck_assert(which > 0 || status == EK_OK || access(path, F_OK) != 0);
    }
    ck_assert_int_ge(failures, which == 0 ? 6 : 2);
  }
  struct value *snapshot = read_snapshot(path);
  (void)check_snapshot(snapshot, group);
  free_value(snapshot);
  ek_tensor_free(&tensor);
  ck_ok(ek_group_free(group));
  remove_folder();
}
END_TEST

static Suite *make_suite(void) {
  Suite *suite = suite_create("memory_snapshot");
  TCase *tests = ck_case(suite, "memory_snapshot");
  tcase_add_loop_test(tests, a_snapshot_is_what_is_held, 0, 2);
  tcase_add_test(tests, a_part_of_a_recording_is_not_shown);
  tcase_add_test(tests, memory_runs_out);
  tcase_add_test(tests, modules_hold_what_they_took);
  tcase_add_test(tests, another_thread_writes);
  tcase_add_test(tests, misuse_is_refused);
  tcase_add_test(tests, the_host_is_out_of_memory);
  return suite;
}
CK_MAIN(make_suite)
