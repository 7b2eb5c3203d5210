/*
 * check_saves.c - what is in a folder of states besides states, and saves beside each other: of one
 * model and of several, of one step, of a process and its child. No save is lost, none removes what
 * another writes, and nothing that is no state hides one or counts as one.
 */
#include "ck_folder.h"
#include "ck_fork.h"
#include "ck_linears.h"
#include "ck_state.h"
#include "ck_training.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>

enum { SAMPLES = 7 };

static const char *folder;
static struct ck_training t;
static bool files;

static const char *in_folder(const char *name) { return ck_file(folder, name); }

static void go(int steps) {
  struct ck_batch batch = ck_batch_make(t.setup.workload, EK_F32, SAMPLES, 0.2, 50);
  for (int i = 0; i < steps; i++) ck_ok(ck_training_step(&t, &batch, NULL));
}

static ek_status save(size_t keep) {
  CK_WITH(ek_checkpoint_options, options, EK_CHECKPOINT_OPTIONS_INIT, .keep = keep);
  return ek_checkpoint_save(t.model, folder, &options);
}

static void open_all(void) {
  static struct ck_setup setup;
  setup = ck_setup_mode(ck_workload("mlp"), "cpu:2", EK_MODE_SHARDED);
  folder = ck_folder();
  t = ck_training_opened(&setup);
  files = !ck_no_files(save(0));
  (void)unlink(ck_state_file(folder, 0));
}

static void close_all(void) {
  ck_training_close(&t);
  ck_assert_int_eq(system(ck_text("rm -rf %s/*", folder)), 0);
}

static bool exists(const char *name) {
  struct stat about;
  return lstat(in_folder(name), &about) == 0;
}

static void put(const char *name, const char *text) {
  ck_write_file(in_folder(name), text, strlen(text));
}

static void last_is(int64_t step) {
  CK_GOT(ek_checkpoint_info, info, ek_checkpoint_latest(&info, folder));
  ck_assert_int_eq(info.step, step);
}

/* ---- what is no state ---- */

CK_TEST(what_is_no_state_counts_for_nothing) {
  if (!files) return;
  go(1);
  ck_ok(save(0));
  go(1);
  ck_ok(save(0));
  ck_assert_int_eq(mkdir(ck_state_file(folder, 11), 0700), 0);
  ck_assert_int_eq(mkfifo(ck_state_file(folder, 12), 0600), 0);
  ck_assert_int_eq(symlink(ck_state_file(folder, 13), ck_state_file(folder, 13)), 0);
  ck_assert_int_eq(symlink("/nobody/has/this", ck_state_file(folder, 14)), 0);
  put("step-15.safetensors", "x"); /* names that the library does not write */
  put("step-0000000000016.safetensors", "x");
  put("step-000000000017.safetensors2", "x");
  last_is(2);
  CK_GOT(ek_checkpoint_info, info, ek_checkpoint_load(&info, t.model, folder));
  ck_assert_int_eq(info.step, 2);
  put("step-1.safetensors", "x");
  put("step-02.safetensors", "x");
  go(1);
  ck_ok(save(2)); /* of states, and all else stays */
  ck_assert(!exists("step-000000000001.safetensors") && exists("step-000000000002.safetensors"));
  ck_assert(exists("step-000000000003.safetensors") && exists("step-1.safetensors"));
  ck_assert_int_eq(ck_folder_entries(folder), 11);
  /* A link to a state is one. */
  ck_assert_int_eq(symlink("step-000000000002.safetensors", ck_state_file(folder, 9)), 0);
  ck_ok(ek_checkpoint_latest(&info, folder));
  ck_assert(ck_contains(info.path, "step-000000000009"));
}

/* Removed by the next save: what a process left that was killed. Not: what others write, or put. */
CK_TEST(leftovers_are_removed) {
  if (!files) return;
  put("victim", "what was there");
  put("step-000000000001.safetensors.tmp", "left"); /* under the very name of the next save */
  put("step-000000000007.safetensors.tmp", "left");
  put("step-000000000008.safetensors.12.tmp", "left");
  put("step-000000000009.safetensors.tmp", "locked");
  put("step-000000000009.safetensors.x.tmp", "not ours");
  put("step-9.safetensors.tmp", "not ours");
  const char *const temporary = in_folder("step-000000000002.safetensors.tmp");
  ck_assert_int_eq(symlink(in_folder("victim"), temporary), 0);
  ck_assert_int_eq(mkfifo(in_folder("step-000000000003.safetensors.tmp"), 0600), 0);
  const int locked = open(in_folder("step-000000000009.safetensors.tmp"), O_RDONLY);
  ck_assert_int_ge(locked, 0);
  ck_assert_int_eq(flock(locked, LOCK_EX | LOCK_NB), 0);
  for (int step = 1; step <= 3; step++) {
    struct stat about;
    go(1);
    ck_ok(save(0));
    last_is(step);
    ck_assert_int_eq(lstat(ck_state_file(folder, step), &about), 0);
    ck_assert(S_ISREG(about.st_mode));
  }
  ck_assert(!exists("step-000000000001.safetensors.tmp"));
  ck_assert(!exists("step-000000000007.safetensors.tmp"));
  ck_assert(!exists("step-000000000008.safetensors.12.tmp"));
  ck_assert_int_eq(ck_folder_entries(folder), 3 + 6);
  struct stat about;
  ck_assert_int_eq(stat(in_folder("victim"), &about), 0);
  ck_assert_int_eq(about.st_size, (off_t)strlen("what was there"));
  ck_assert_int_eq(close(locked), 0);
  ck_ok(save(0));
  ck_assert(!exists("step-000000000009.safetensors.tmp"));
}

CK_TEST(no_step_is_saved_that_no_load_takes) {
  if (!files) return;
  const int64_t step = INT64_MAX - 1;
  ek_tensor host = {.data = (void *)(uintptr_t)&step, .type = EK_I64};
  ck_ok(ek_state_write(t.model, "run/step", &host));
  ck_ok(save(0));
  ck_ok(ek_checkpoint_load(NULL, t.model, folder));
  go(1);
  ck_invalid(save(0), "run/step cannot be 9223372036854775807");
  last_is(step);
}

/* ---- a load that ends halfway ---- */

/* At each allocation: the model is what it was, or says that it is torn, and a load mends it. */
CK_TEST(half_a_load_is_torn) {
  if (!files) return;
  go(1);
  ck_ok(save(0));
  go(1);
  int torn = 0;
  struct ck_state before = ck_state_take(t.model);
  uint64_t n = 0;
  while (ck_host_fails(&n, ek_checkpoint_load(NULL, t.model, folder))) {
    float number = 0;
    ek_tensor host = {.data = &number, .type = EK_I64};
    if (ek_state_read(&host, t.model, "no such entry") == EK_ERR_TORN) {
      torn++;
      ck_ok(ck_state_put(t.model, &before));
    } else {
      ck_state_is("after half a load", t.model, &before);
    }
  }
  ck_assert_int_gt(torn, 1);
}

/* Copies the state of step 1 to that of step 2, with EK_I32 for one entry. */
static void retype(const char *name) {
  enum { MOST = 64 };
  const char *from = ck_state_file(folder, 1), *to = ck_state_file(folder, 2);
  const ek_safetensors_pair pairs[] = {{"evenkeel.state", "1"}, {"evenkeel.position", "0"}};
  ek_safetensors_entry list[MOST];
  CK_SCOPED(ek_safetensors *, file, ek_safetensors_open(&file, from));
  const size_t count = ek_safetensors_count(file);
  ck_assert_uint_le(count, MOST);
  for (size_t i = 0; i < count; i++) {
    list[i] = *ek_safetensors_at(file, i);
    if (strcmp(list[i].name, name) == 0) list[i].like.type = EK_I32;
  }
  CK_SCOPED(ek_safetensors_writer *, writer,
            ek_safetensors_create(&writer, to, list, count, pairs, 2));
  for (size_t i = 0; i < count; i++) {
    ek_tensor host = ek_safetensors_at(file, i)->like;
    host.data = ck_array(1, ek_tensor_bytes(&host) + 1);
    ck_ok(ek_safetensors_read(&host, file, list[i].name));
    ck_ok(ek_safetensors_write(writer, i, host.data, ek_tensor_bytes(&list[i].like)));
  }
  ck_ok(ek_safetensors_finish(writer));
}

/* Seen before anything is written, for the last entry as for the first; and 32 bits are no seed. */
CK_TEST(whole_numbers_are_no_weights) {
  if (!files) return;
  go(1);
  ck_ok(save(0));
  go(1);
  struct ck_state before = ck_state_take(t.model);
  for (size_t i = 0; i < before.count; i++) {
    const char *name = before.info[i].name;
    if (before.info[i].like.type != EK_F32 && strcmp(name, "run/seed") != 0) continue;
    retype(name);
    ck_fails(ek_checkpoint_load(NULL, t.model, folder), EK_ERR_MISMATCH, "has another type");
    ck_state_is("after a state of whole numbers", t.model, &before);
  }
}

/* ---- saves beside each other ---- */

/* Two in the background and one in the foreground, of three steps or of one. */
CK_LOOP(saves_overlap, 2) {
  enum { ROUNDS = 12 };
  if (!files) return;
  CK_WITH(ek_checkpoint_options, options, EK_CHECKPOINT_OPTIONS_INIT, .keep = 3);
  for (int round = 0; round < ROUNDS; round++) {
    ek_checkpoint_write *writes[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
      if (_i == 0) go(1);
      ck_ok(ek_checkpoint_begin(&writes[i], t.model, folder, &options));
    }
    if (_i == 0) go(1);
    ck_ok(save(3));
    for (int i = 0; i < 2; i++) ck_ok(ek_checkpoint_end(writes[i]));
    last_is(_i == 0 ? 3 * (round + 1) : 0);
    ck_ok(ek_checkpoint_load(NULL, t.model, folder));
    ck_assert_int_le(ck_folder_entries(folder), _i == 0 ? 5 : 1);
  }
  ck_ok(save(3));
  ck_assert_int_eq(ck_folder_entries(folder), _i == 0 ? 3 : 1); /* no file beside them is left */
}

static int child_of(ek_checkpoint_write *write, ek_safetensors_writer *writer) {
  const float number = 2;
  const char *owner = ck_text("process %ld", (long)getppid());
  if (ek_safetensors_write(writer, 0, &number, 4) != EK_ERR_STATE) return 1;
  if (!ck_contains(ek_error_message(), owner)) return 2;
  if (ek_safetensors_finish(writer) != EK_ERR_STATE) return 3;
  ek_safetensors_writer_free(writer);
  if (ek_checkpoint_end(write) != EK_ERR_STATE) return 4;
  return ck_contains(ek_error_message(), owner) ? 0 : 5;
}

/* A child ends nothing of its parent's. */
CK_TEST(a_child_leaves_saves_alone) {
  const ek_safetensors_entry entry = {"number", {.type = EK_F32}};
  const float number = 1;
  float read = 0;
  ek_tensor host = {.data = &read, .type = EK_F32};
  const char *path = in_folder("number");
  int code = -1;
  if (!files || CK_TSAN) return; /* it cannot follow threads of a child of fork() */
  CK_GOT(ek_safetensors_writer *, writer, ek_safetensors_create(&writer, path, &entry, 1, NULL, 0));
  CK_GOT(ek_checkpoint_write *, write, ek_checkpoint_begin(&write, t.model, folder, NULL));
  if (ck_forked(&code)) _exit(child_of(write, writer));
  ck_assert_int_eq(code, 0);
  ck_assert(exists("number.tmp"));
  ck_ok(ek_checkpoint_end(write));
  ck_ok(ek_safetensors_write(writer, 0, &number, 4));
  ck_ok(ek_safetensors_finish(writer));
  ek_safetensors_writer_free(writer);
  last_is(0);
  CK_OPENED(ek_safetensors *, file, ek_safetensors_open(&file, path));
  ck_ok(ek_safetensors_read(&host, file, "number"));
  ck_assert(read == 1);
}

/* Nor by way of a trainer, which its child frees, too. */
CK_TEST(a_child_leaves_a_trainers_save_alone) {
  struct ck_linears it;
  int code = -1;
  if (!files || CK_TSAN) return; /* it cannot follow threads of a child of fork() */
  ck_linears_open(&it, "cpu:2", CK_LINEARS_WIDTH, EK_MODE_SHARDED);
  ck_ok(ck_linears_step(&it));
  ck_ok(ek_trainer_save_begin(it.trainer, folder, NULL));
  if (ck_forked(&code)) {
    if (ek_trainer_save_end(it.trainer) != EK_ERR_STATE) _exit(1);
    _exit(ek_trainer_close(it.trainer) == EK_OK ? 0 : 2);
  }
  ck_assert_int_eq(code, 0);
  ck_ok(ek_trainer_save_end(it.trainer));
  CK_GOT(ek_checkpoint_info, info, ek_trainer_load(&info, it.trainer, folder));
  ck_assert_int_eq(info.step, 1);
  ck_ok(ck_linears_step(&it));
}

/* ---- small stacks ---- */

enum { STACK = 64 << 10 }; /* docs/misuse.md: 32 KiB; builds without optimisation need more */

struct calls {
  ek_status save, latest, load;
};

static void *all_calls(void *arg) {
  static ek_checkpoint_info info;
  struct calls *calls = arg;
  calls->save = save(1);
  calls->latest = ek_checkpoint_latest(&info, folder);
  calls->load = ek_checkpoint_load(NULL, t.model, folder);
  return NULL;
}

CK_TEST(small_stacks_have_room) {
  struct calls calls = {EK_ERR_INTERNAL, EK_ERR_INTERNAL, EK_ERR_INTERNAL};
  pthread_attr_t attributes;
  pthread_t thread;
  if (!files || CK_ASAN || CK_TSAN) return;
  ck_assert_int_eq(pthread_attr_init(&attributes), 0);
  ck_assert_int_eq(pthread_attr_setstacksize(&attributes, STACK), 0);
  ck_assert_int_eq(pthread_create(&thread, &attributes, all_calls, &calls), 0);
  ck_assert_int_eq(pthread_join(thread, NULL), 0);
  (void)pthread_attr_destroy(&attributes);
  ck_ok(calls.save);
  ck_ok(calls.latest);
  ck_ok(calls.load);
}

CK_SUITE_WITH("saves", open_all, close_all)
