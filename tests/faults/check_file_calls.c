/*
 * check_file_calls.c - a save is refused, or its process killed, at every call of the system that
 * it makes. Afterwards the old state loads whole or the new one, never anything else; a refused
 * save says so, training goes on, and the next save succeeds.
 *
 * One call in four is refused or killed; which ones differs between foreground and background and
 * between faults (EVENKEEL_TEST_EVERY=1: each call in both, with each fault).
 *
 * Each try is a process of its own, forked from this one, which never opens a group: 0 the old
 * state is there, 1 the new one.
 */
#include "ck_folder.h"
#include "ck_fork.h"
#include "ck_state.h"
#include "ck_training.h"

#include <errno.h>
#include <signal.h>
#include <sys/stat.h>

#include "file_calls.h"

enum { SAMPLES = 5, STEPS = 3, LEFT_OUT = 9 };

static char folder[64];

static void go(struct ck_training *t, int steps) {
  CK_HELD(struct ck_batch, batch, ck_batch_make(t->setup.workload, EK_F32, SAMPLES, 0.2, 50));
  for (int i = 0; i < steps; i++) ck_ok(ck_training_step(t, &batch, NULL));
}

/* One weight is large enough for whole pages to be written past the page cache. */
static ek_status large_module(ek_module **module) {
  static const int64_t sizes[] = {7, 300, 250, 5};
  return ek_mlp_create(module, sizes, 4, EK_ACTIVATION_GELU);
}

static struct ck_setup setup_of(void) {
  static struct ck_workload large;
  large = *ck_workload("mlp");
  large.module = large_module;
  return ck_setup_mode(&large, "cpu:2", EK_MODE_SHARDED);
}

static struct ck_training opened(void) { return ck_training_of(setup_of()); }

/* In a process of its own: `body` gives its exit code. */
static int apart(int (*body)(enum file_fault fault, int n), enum file_fault fault, int n) {
  int code = -1;
  if (ck_forked(&code)) _exit(body(fault, n));
  return code;
}

static ek_status save(const struct ck_training *t, bool background) {
  ek_checkpoint_write *write = NULL;
  CK_WITH(ek_checkpoint_options, options, EK_CHECKPOINT_OPTIONS_INIT, .keep = 2);
  if (!background) return ek_checkpoint_save(t->model, folder, &options);
  EK_TRY(ek_checkpoint_begin(&write, t->model, folder, &options));
  return ek_checkpoint_end(write);
}

/* Saves the states of steps 1 and 2, then that of step 3 with the fault. */
static int run(enum file_fault fault, int n) {
  struct ck_training t = opened();
  for (int step = 1; step < STEPS; step++) {
    go(&t, 1);
    const ek_status status = save(&t, false);
    if (status == EK_ERR_UNSUPPORTED) return LEFT_OUT;
    ck_ok(status);
  }
  go(&t, 1);
  file_calls_begin(fault, n < 0 ? -n : n);
  const ek_status status = save(&t, n < 0);
  const int calls = file_calls_end();
  if (fault == FILE_NONE) {
    ck_ok(status);
    printf("%s\n", file_calls_sequence());
    return calls;
  }
  ck_assert_msg(status == EK_OK || status == EK_ERR_IO || status == EK_ERR_NOT_FOUND, "%s: %s",
                ek_status_name(status), ek_error_message());
  if (status != EK_OK) {
    const char *error = strerror(fault == FILE_ENOSPC ? ENOSPC : EIO);
    ck_assert_msg(strstr(ek_error_message(), error) != NULL, "%s", ek_error_message());
  }
  go(&t, 1);
  ck_ok(save(&t, n < 0));
  ck_training_close(&t);
  return status == EK_OK ? 1 : 0;
}

/* What the last state of the folder is: step 2, 3 or 4, and as it must be. */
static int look(enum file_fault fault, int n) {
  (void)fault, (void)n;
  struct ck_training t = opened();
  struct ck_training want = opened();
  CK_GOT(ek_checkpoint_info, info, ek_checkpoint_load(&info, t.model, folder));
  go(&want, (int)info.step);
  ck_states_same("the last state", t.model, want.model);
  return (int)info.step;
}

static void clear(void) { ck_assert_int_eq(system(ck_text("rm -rf %s", folder)), 0); }

CK_LOOP(every_call_of_a_save, 6) {
  const enum file_fault fault = (enum file_fault)(1 + _i % 3);
  const int sign = _i < 3 ? 1 : -1; /* in the background */
  const int calls = apart(run, FILE_NONE, sign);
  int points = 0;
  clear();
  if (calls == LEFT_OUT) {
    puts("built without xxHash: left out");
    return;
  }
  ck_assert_int_gt(calls, 20);
  const int every = (int)ck_every(4);
  for (int n = 1; n <= calls; n++) {
    if (!ck_part(n) || (n + _i) % every != 0) continue;
    const int ended = apart(run, fault, sign * n);
    const int step = apart(look, FILE_NONE, 0);
    if (fault == FILE_KILL) {
      ck_assert_int_eq(ended, CK_KILLED + SIGKILL);
      ck_assert_msg(step == STEPS - 1 || step == STEPS, "killed at call %d: exit %d", n, step);
    } else {
      ck_assert_msg(ended == 0 || ended == 1, "%s at call %d: exit %d", file_fault_names[fault], n,
                    ended);
      ck_assert_int_eq(step, STEPS + 1);
    }
    clear();
    points++;
  }
  printf("%s at %d of %d calls: 0 corrupt\n", file_fault_names[fault], points, calls);
}

/* No rename before its bytes are synced, and the folder's sync after it. */
CK_LOOP(what_lasts_comes_first, 2) {
  struct ck_training t = opened();
  file_calls_begin(FILE_NONE, 0);
  const ek_status status = save(&t, _i == 1);
  (void)file_calls_end();
  if (ck_no_files(status)) return;
  const char *calls = file_calls_sequence();
  const char *sync = strchr(calls, 's'), *name = strchr(calls, 'r'), *made = strchr(calls, 'm');
  ck_assert_msg(sync != NULL && name != NULL && made != NULL, "%s", calls);
  ck_assert_msg(sync < name && strchr(name, 'f') != NULL, "%s", calls);
  /* A folder that was made is on the disk before its first file begins. */
  const char *kept = strchr(made, 'f'), *begun = strchr(made, 'a');
  ck_assert_msg(kept != NULL && begun != NULL && kept < begun, "%s", calls);
  ck_assert_msg(strchr(sync, 'w') == NULL, "%s: bytes are written after the sync", calls);
}

/* A folder whose parent cannot be synced is not made: the next save makes it again, and syncs. */
CK_TEST(a_folder_is_made_for_good) {
  struct ck_training t = opened();
  file_calls_begin(FILE_NONE, 0);
  ek_status status = save(&t, false);
  (void)file_calls_end();
  if (ck_no_files(status)) return;
  const char *calls = file_calls_sequence(), *made = strchr(calls, 'm');
  ck_assert_msg(made != NULL && strchr(made, 'f') != NULL, "%s", calls);
  const int sync = (int)(strchr(made, 'f') - calls) + 1;
  clear();
  file_calls_begin(FILE_EIO, sync);
  status = save(&t, false);
  (void)file_calls_end();
  ck_assert_int_eq(status, EK_ERR_IO);
  ck_assert_msg(access(folder, F_OK) != 0, "the folder that was not synced is there");
  ck_ok(save(&t, false));
}

/* A file system may not know writes past the page cache, and say so late: they are made again. */
CK_LOOP(direct_writes_may_be_unknown, 2) {
  ek_checkpoint_info info;
  int calls = 1, good = 0;
  struct ck_training t = opened();
  for (int n = 0; n <= calls; n++) {
    go(&t, 1);
    file_calls_begin(n == 0 ? FILE_NONE : FILE_EINVAL, n);
    const ek_status status = save(&t, _i == 1);
    const int made = file_calls_end();
    if (status == EK_ERR_UNSUPPORTED) break;
    if (n == 0) calls = made;
    if (status != EK_OK) continue;
    ck_ok(ek_checkpoint_latest(&info, folder));
    ck_assert_int_eq(info.step, n + 1);
    good++;
  }
  /* One without a fault, one whose open and three whose writes were refused, and closing. */
  if (calls > 1) ck_assert_int_ge(good, 5);
}

/* A call that a signal interrupts is made again, and what was written or read by half goes on. */
CK_LOOP(interrupted_calls_are_continued, 4) {
  static const enum file_fault faults[] = {FILE_EINTR, FILE_SHORT};
  const enum file_fault fault = faults[_i % 2];
  const bool background = _i / 2 == 1;
  ek_checkpoint_info info;
  struct ck_training t = opened();
  go(&t, 1);
  for (int n = 1, calls = 1; n <= calls; n++) {
    file_calls_begin(fault, n);
    ek_status status = save(&t, background);
    int made = file_calls_end();
    if (status == EK_ERR_UNSUPPORTED) break;
    ck_assert_msg(status == EK_OK, "%s at call %d of %s: %s", file_fault_names[fault], n,
                  file_calls_sequence(), ek_error_message());
    file_calls_begin(fault, n);
    status = ek_checkpoint_load(&info, t.model, folder);
    if (file_calls_end() > made) made = file_calls_end();
    ck_assert_msg(status == EK_OK && info.step == 1, "%s at call %d of %s: %s",
                  file_fault_names[fault], n, file_calls_sequence(), ek_error_message());
    if (made > calls) calls = made;
  }
}

/* A load that is refused anything says so: it never takes an older state, nor calls a whole one
 * damaged. */
CK_LOOP(every_call_of_a_load, 2) {
  ek_checkpoint_info info;
  int calls = 1, refused = 0;
  struct ck_training t = opened();
  for (int step = 0; step < STEPS; step++) {
    go(&t, 1);
    if (ck_no_files(save(&t, false))) return;
  }
  for (int n = 0; n <= calls; n++) {
    file_calls_begin(n == 0 ? FILE_NONE : FILE_EIO, n);
    const ek_status status =
        _i == 0 ? ek_checkpoint_load(&info, t.model, folder) : ek_checkpoint_latest(&info, folder);
    const int made = file_calls_end();
    if (made > calls) calls = made;
    if (status == EK_OK) {
      ck_assert_int_eq(info.step, STEPS);
      continue;
    }
    ck_assert_msg(status == EK_ERR_IO && ck_contains(ek_error_message(), strerror(EIO)),
                  "call %d of %s: %s: %s", n, file_calls_sequence(), ek_status_name(status),
                  ek_error_message());
    refused++;
  }
  ck_assert_int_gt(refused, 6);
  ck_ok(ek_checkpoint_load(&info, t.model, folder));
  ck_assert_int_eq(info.step, STEPS);
}

/* A state that another process removed after the folder was read: it has saved a later one, so the
 * folder is read again. */
CK_TEST(a_state_is_removed_meanwhile) {
  ek_checkpoint_info info;
  int gone = 0;
  struct ck_training t = opened();
  go(&t, 1);
  if (ck_no_files(save(&t, false))) return;
  for (int n = 1, made = 1; n <= made; n++) {
    file_calls_begin(FILE_GONE, n);
    const ek_status status = ek_checkpoint_load(&info, t.model, folder);
    made = file_calls_end();
    ck_assert_msg(status == EK_OK && info.step == 1, "call %d of %s: %s", n, file_calls_sequence(),
                  ek_error_message());
    gone += file_calls_sequence()[n - 1] == 'o';
  }
  ck_assert_int_gt(gone, 0);
}

/* A disk that writes other bytes than it was given: the state before stays, and the save says so.
 * */
CK_LOOP(what_is_written_wrong_removes_nothing, 2) {
  ek_checkpoint_info info;
  int calls = 1, refused = 0;
  /* Where the step is the same it replaces a state without `keep`. */
  CK_WITH(ek_checkpoint_options, options, EK_CHECKPOINT_OPTIONS_INIT, .keep = _i == 0 ? 1 : 0);
  struct ck_training t = opened();
  go(&t, 1);
  ek_status status = ek_checkpoint_save(t.model, folder, &options);
  if (ck_no_files(status)) return;
  for (int n = 1; n <= calls; n++) {
    if (_i == 0 && n == 1) go(&t, 1); /* else it takes the place of its own step's */
    ek_checkpoint_write *write = NULL;
    file_calls_begin(FILE_FLIP, n);
    if (n % 2 == 0) {
      status = ek_checkpoint_save(t.model, folder, &options);
    } else {
      status = ek_checkpoint_begin(&write, t.model, folder, &options);
      if (status == EK_OK) status = ek_checkpoint_end(write);
    }
    const int made = file_calls_end();
    if (n == 1) calls = made + 2;
    const int fault = n <= made ? file_calls_sequence()[n - 1] : 0;
    if (fault == 'w') {
      ck_assert_msg(status == EK_ERR_IO && ck_contains(ek_error_message(), "gives other bytes"),
                    "call %d of %s: %s: %s", n, file_calls_sequence(), ek_status_name(status),
                    ek_error_message());
      refused++;
    } else {
      ck_ok(status);
      if (_i == 0) go(&t, 1);
    }
    ck_ok(ek_checkpoint_latest(&info, folder));
  }
  ck_assert_int_gt(refused, 3);
}

/* What a file system says only when a file is closed is an error of the save. */
CK_LOOP(a_refused_close_is_an_error, 2) {
  struct ck_training t = opened();
  if (ck_no_files(save(&t, _i == 1))) return;
  file_calls_begin(FILE_NONE, 0);
  ck_ok(save(&t, _i == 1));
  (void)file_calls_end();
  const char *calls = file_calls_sequence(), *sync = strchr(calls, 's');
  ck_assert_msg(sync != NULL && strchr(sync, 'c') != NULL, "%s", calls);
  file_calls_begin(FILE_EIO, (int)(strchr(sync, 'c') - calls) + 1);
  ck_fails(save(&t, _i == 1), EK_ERR_IO, "cannot be closed");
  (void)file_calls_end();
}

/* A text that is written in several pieces: the first that fails is an error, and the old file
 * stays. */
CK_TEST(every_call_of_a_snapshot) {
  struct stat old, now;
  int calls = 1, pieces = 0;
  const char *path = ck_text("%s.json", folder);
  struct ck_training t = opened();
  ck_ok(ek_memory_record_start(ek_group_device(t.group, 0), 10000));
  go(&t, 10);
  ck_ok(ek_memory_snapshot(t.group, path));
  ck_assert_int_eq(stat(path, &old), 0);
  for (int n = 1; n <= calls; n++) {
    file_calls_begin(FILE_EIO, n);
    const ek_status status = ek_memory_snapshot(t.group, path);
    const int made = file_calls_end();
    const char call = n <= made ? file_calls_sequence()[n - 1] : 0;
    if (made > calls) calls = made;
    ck_assert_msg(status == EK_ERR_IO || (status == EK_OK && call != 'w'), "call %d of %s: %s", n,
                  file_calls_sequence(), ek_status_name(status));
    ck_assert_int_eq(stat(path, &now), 0);
    ck_assert_int_eq(now.st_size, old.st_size);
    pieces += call == 'w';
  }
  ck_assert_int_gt(pieces, 1);
  ck_assert_int_eq(unlink(path), 0);
}

static void choose_folder(void) {
  const bool memory = access("/dev/shm", W_OK) == 0;
  (void)snprintf(folder, sizeof folder, "%s/evenkeel-files-%d", memory ? "/dev/shm" : "/tmp",
                 (int)getpid());
}

CK_SUITE_WITH("file_calls", choose_folder, clear)
