/*
 * check_together.c - a state that all processes of a world write at once: the file is that of one
 * process, byte for byte, or, where folders are not shared, one such file or one part in each;
 * whatever call of one process fails, all have the same error and the older state is whole;
 * whichever process is killed in front of whichever call, whole states alone are left, and other
 * processes in another mode go on from them.
 *
 * EVENKEEL_TEST_EVERY=1 takes every call; without it one in several.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "together_parts.h"

/* The job of these processes; NULL: the library was built without files. */
static struct ck_outcome *done(const char *part, const size_t *devices, size_t count) {
  give_job();
  struct ck_outcome *outcomes = ck_processes_outcomes(part, devices, count);
  if (strstr(outcomes[0].message, "without xxHash") != NULL) return NULL;
  ck_processes_well(outcomes, count);
  return outcomes;
}

static void says(const struct ck_outcome *outcome, const char *words) {
  ck_assert_msg(strstr(outcome->message, words) != NULL, "%s", outcome->message);
}

/* As many files and folders on each of the first two disks. */
static void disks_have(int entries) {
  for (size_t p = 0; p < 2; p++) ck_assert_int_eq(ck_folder_entries(disk_of(p)), entries);
}

/* ---- the same bytes ---- */

/* Of a state in a folder, which is removed. */
static char *bytes_of(const char *folder, int number, size_t *size) {
  const char *path = ck_text("%s/step-%012d.safetensors", folder, number);
  char *bytes = ck_read_file(size, path);
  ck_assert_msg(bytes != NULL, "%s is not there", path);
  ck_assert_int_eq(unlink(path), 0);
  return bytes;
}

/* A state is in the folder, and goes. */
static void remove_state(const char *folder, int number) {
  size_t size = 0;
  (void)bytes_of(folder, number, &size);
}

/* The bytes of one process, in that folder as well. */
static void has_bytes(const char *folder, const char *want, size_t want_size) {
  size_t size = 0;
  const char *got = bytes_of(folder, 2, &size);
  ck_assert_msg(size == want_size && memcmp(got, want, size) == 0, "%s: other bytes", folder);
}

static const struct place {
  int workload;
  ek_mode mode;
  size_t count, devices[CK_PROCESSES];
} places[] = {{LARGE, EK_MODE_REPLICATED, 3, {1, 2, 1}},
              {LARGE, EK_MODE_SHARDED, 2, {2, 1}},
              {LARGE, EK_MODE_FULLY_SHARDED, 4, {1, 1, 1, 1}},
              {1, EK_MODE_SHARDED_GRADIENTS, 3, {1, 1, 2}},
              {3, EK_MODE_SHARDED, 2, {1, 1}}};

enum { PLACES = sizeof places / sizeof places[0] };

static void empty(void *folder) {
  char command[CK_FOLDER_SIZE + 32];
  (void)snprintf(command, sizeof command, "rm -rf %s/*", (char *)folder);
  ck_assert_int_eq(system(command), 0);
}

/* The job's. What is on disks of their own goes with it; else nothing may be left when the test
 * ends. */
static const char *open_folder(const char *disks) {
  char *folder = ck_folder();
  if (disks != NULL) ck_keep_by(folder, empty);
  ck_assign(job, .folder = folder, .disks = disks);
  return folder;
}

/* The file that one process writes. */
static char *bytes_alone(const struct place *place, size_t *size) {
  const char *folder = open_folder(NULL);
  struct ck_outcome *outcome = ck_array(1, sizeof *outcome);
  const struct ck_process alone = ck_process_alone("save once", 2);
  ck_assign(job, .workload = place->workload, .mode = (int)place->mode);
  save_once(outcome, &alone);
  if (strstr(outcome->message, "without xxHash") != NULL) return NULL;
  ck_assert_msg(outcome->status == EK_OK, "%s", outcome->message);
  return bytes_of(folder, 2, size);
}

CK_LOOP(the_bytes_of_one_process, 2) {
  job.background = _i;
  for (int i = 0; i < PLACES; i++) {
    const struct place *place = &places[i];
    size_t size = 0;
    const char *want = bytes_alone(place, &size);
    if (want == NULL) return;
    const char *folder = open_folder(NULL);
    ck_assert_ptr_nonnull(done("save once", place->devices, place->count));
    has_bytes(folder, want, size);
  }
}

/* ---- disks that are not shared ---- */

/* Where each process has all of the state, each disk gets all of it. Another one's file of that
 * name is on one of them. */
CK_LOOP(a_whole_state_on_each_disk, 2) {
  static const size_t devices[] = {1, 2, 1};
  size_t size = 0;
  job.background = _i;
  const char *want = bytes_alone(&places[0], &size);
  if (want == NULL) return;
  const char *folder = open_folder("010");
  ck_assert_int_eq(mkdir(ck_text("%s/1", folder), 0700), 0);
  ck_write_file(ck_text("%s/1/step-%012d.safetensors.tmp", folder, 2), folder, strlen(folder));
  ck_assert_ptr_nonnull(done("save once", devices, 3));
  disks_have(1);
  for (size_t p = 0; p < 2; p++) has_bytes(disk_of(p), want, size);
}

static const struct parting {
  ek_mode mode;
  size_t count, devices[CK_PROCESSES];
  const char *disks;
} partings[] = {{EK_MODE_SHARDED, 3, {1, 2, 1}, "010"},
                {EK_MODE_FULLY_SHARDED, 4, {1, 1, 1, 1}, "0123"},
                {EK_MODE_SHARDED_GRADIENTS, 3, {1, 2, 1}, "011"}},
  receivers[] = {{EK_MODE_REPLICATED, 4, {1, 1, 1, 1}, "3210"},
                 {EK_MODE_SHARDED, 4, {1, 1, 1, 1}, "3012"},
                 {EK_MODE_FULLY_SHARDED, 3, {2, 1, 1}, "103"}};

/* All parts into the first folder; the path of one. */
static void move_parts(const char *folder, char *path, size_t size) {
  const char *move = "for d in 1 2 3; do mv %s/$d/* %s/0/; done 2> /dev/null; exit 0";
  ck_assert_int_eq(system(ck_text(move, folder, folder)), 0);
  FILE *list = popen(ck_text("ls %s/0/* | tail -n 1", folder), "r");
  ck_assert(list != NULL && fgets(path, (int)size, list) != NULL && pclose(list) == 0);
  path[strcspn(path, "\n")] = '\0';
}

/* A process alone sees a folder. */
static struct ck_outcome *load_alone(const char *folder, const char *path) {
  struct ck_outcome *outcome = ck_array(1, sizeof *outcome);
  const struct ck_process alone = ck_process_alone("load once", 2);
  ck_assert_int_eq(setenv("CK_PATH", path, 1), 0);
  ck_assign(job, .mode = EK_MODE_REPLICATED, .folder = folder, .disks = NULL, .call = 1);
  load_once(outcome, &alone);
  return outcome;
}

static void is_state(const struct ck_outcome *outcome, double step, double hash) {
  ck_assert_msg(outcome->status == EK_OK, "%s", outcome->message);
  ck_assert_double_eq(outcome->numbers[0], step);
  ck_assert_double_eq(outcome->numbers[2], hash);
  ck_assert_double_eq(outcome->numbers[3], 1);
}

CK_LOOP(parts_on_disks_are_read_by_any_processes, 3) {
  const struct parting *parting = &partings[_i], *receiver = &receivers[_i];
  const char *folder = open_folder(parting->disks);
  char path[EK_CHECKPOINT_PATH_SIZE];
  ck_assign(job, .workload = LARGE, .background = _i == 1, .mode = (int)parting->mode, .call = 0);
  struct ck_outcome *outcomes = done("save once", parting->devices, parting->count);
  if (outcomes == NULL) return;
  const double hash = outcomes[0].numbers[0];
  ck_assign(job, .mode = (int)receiver->mode, .disks = receiver->disks);
  outcomes = done("load once", receiver->devices, receiver->count);
  for (size_t p = 0; p < receiver->count; p++) is_state(&outcomes[p], 2, hash);
  /* One machine's part alone is not enough; all in one folder are, and each of them names all. */
  const struct ck_outcome *alone = load_alone(folder, ck_text("%s/0", folder));
  ck_assert_int_eq(alone->status, EK_ERR_IO);
  says(alone, "part 2 of ");
  says(alone, "step 2 is missing; process 1 on ");
  says(alone, "-00002-of-0000");
  move_parts(folder, path, sizeof path);
  is_state(load_alone(folder, path), 2, hash);
  is_state(load_alone(folder, ck_text("%s/0", folder)), 2, hash);
}

static void flip_a_byte(const char *path) {
  unsigned char byte = 0;
  struct stat about;
  const int file = open(path, O_RDWR);
  ck_assert(file >= 0 && fstat(file, &about) == 0);
  ck_assert_int_eq(pread(file, &byte, 1, about.st_size - 100), 1);
  byte ^= 4u;
  ck_assert_int_eq(pwrite(file, &byte, 1, about.st_size - 100), 1);
  ck_assert_int_eq(close(file), 0);
}

static const size_t two[] = {1, 1};

static struct ck_outcome *load_on_disks(void) {
  ck_assign(job, .mode = EK_MODE_SHARDED, .disks = "01", .call = 0);
  give_job();
  return ck_processes_outcomes("load once", two, 2);
}

/* One disk's copy of a state is damaged: the other's is taken. Then it is another state. */
CK_TEST(copies_that_are_damaged_or_differ) {
  const char *folder = open_folder("01"), *paths[2];
  ck_assign(job, .workload = LARGE, .mode = EK_MODE_REPLICATED, .background = 0);
  const struct ck_outcome *outcomes = done("save once", two, 2);
  if (outcomes == NULL) return;
  const double hash = outcomes[0].numbers[0];
  for (int disk = 0; disk < 2; disk++) {
    paths[disk] = ck_text("%s/%d/step-%012d.safetensors", folder, disk, 2);
    flip_a_byte(paths[disk]);
    outcomes = load_on_disks();
    ck_processes_well(outcomes, 2);
    for (size_t p = 0; p < 2; p++) is_state(&outcomes[p], 2, hash);
    flip_a_byte(paths[disk]);
  }
  for (int disk = 0; disk < 2; disk++) flip_a_byte(paths[disk]);
  outcomes = load_on_disks();
  for (size_t p = 0; p < 2; p++) ck_assert_int_eq(outcomes[p].status, EK_ERR_NOT_FOUND);
  says(&outcomes[1], "damaged: its checksum differs");
  flip_a_byte(paths[0]);
  size_t size = 0;
  const char *bytes = bytes_alone(&places[3], &size); /* of another model */
  ck_write_file(paths[1], bytes, size);
  ck_assign(job, .folder = folder, .workload = LARGE);
  outcomes = load_on_disks();
  for (size_t p = 0; p < 2; p++) {
    ck_assert_int_eq(outcomes[p].status, EK_ERR_MISMATCH);
    says(&outcomes[p], "not of one save");
  }
}

/* ---- one call fails in one process ---- */

/* All processes save a large state. */
static const char *choose_job(const char *disks, ek_mode mode) {
  ck_assign(job, .workload = LARGE, .mode = (int)mode);
  return open_folder(disks);
}

static const size_t three[] = {1, 2, 1};

/* A job with faults, and what it came to; NULL: it is left out. */
static const struct ck_outcome *all_went(const char *part, const char *what) {
  const struct ck_outcome *outcomes = done(part, three, 3);
  if (outcomes == NULL) return NULL;
  printf("%s%s in process %d: %.0f of %.0f failed\n", what,
         job.fault == MEMORY ? "no memory" : file_fault_names[job.fault], job.victim,
         outcomes[0].numbers[0], outcomes[0].numbers[1]);
  return outcomes;
}

static const struct ck_outcome *fail_everywhere(const char *disks, int i) {
  static const int faults[] = {FILE_EIO, FILE_ENOSPC, FILE_FLIP, MEMORY};
  static const ek_mode modes[] = {EK_MODE_SHARDED, EK_MODE_REPLICATED, EK_MODE_FULLY_SHARDED};
  (void)choose_job(disks, modes[i % 3]);
  ck_assign(job, .fault = faults[i % 4], .victim = i / 4 % 2, .background = i / 8, .call = i);
  const struct ck_outcome *outcomes = all_went("fail each", "");
  if (outcomes == NULL) return NULL;
  if (disks == NULL) ck_assert_double_ge(outcomes[0].numbers[0], 1);
  /* Some copies are whole before others. */
  if (disks != NULL && job.mode == EK_MODE_REPLICATED) return outcomes;
  /* After the new name its folder is opened and synced. A state of parts is whole as soon as one
   * part does not wait: then the other part's new name may fail as well. */
  ck_assert_double_le(outcomes[0].numbers[2], disks == NULL ? 2 : 3);
  return outcomes;
}

/* EIO, no space, a flipped bit and no memory; in process 0 and in another one; now and behind. */
CK_LOOP(each_failure_is_one_in_all, 16) {
  const struct ck_outcome *outcomes = fail_everywhere(NULL, _i);
  if (outcomes == NULL) return;
  /* The last one alone is left, and nothing that was begun. */
  remove_state(job.folder, 2 * (int)outcomes[0].numbers[1] + 1);
}

/* The same on disks of their own: each has one file in the end. */
CK_LOOP(each_failure_is_one_in_all_disks, 8) {
  if (fail_everywhere("010", _i + 8 * (_i % 3 == 0)) == NULL) return;
  disks_have(1);
}

CK_LOOP(each_failure_of_a_load_is_one_in_all, 4) {
  static const int faults[] = {FILE_EIO, MEMORY};
  const char *disks = _i < 2 ? NULL : "010";
  const char *folder = choose_job(disks, _i % 3 == 0 ? EK_MODE_REPLICATED : EK_MODE_SHARDED);
  ck_assign(job, .fault = faults[_i % 2], .victim = _i == 1 || _i == 2, .background = 0,
            .call = _i);
  const struct ck_outcome *outcomes = all_went("fail load", "load: ");
  if (outcomes == NULL) return;
  ck_assert_double_ge(outcomes[0].numbers[0], 1);
  if (disks == NULL) remove_state(folder, 1);
}

/* ---- killed ---- */

/* The hash of the state after these steps. */
static double want_after(int steps) {
  static double hashes[4];
  struct side side;
  struct ck_outcome *outcome = ck_array(1, sizeof *outcome);
  const struct ck_process alone = ck_process_alone("", 1);
  if (hashes[steps] != 0) return hashes[steps];
  ck_assert_msg(open_side(&side, outcome, &alone, EK_MODE_REPLICATED), "%s", outcome->message);
  for (int i = 0; i < steps; i++) ck_ok(step(&side));
  hashes[steps] = hash_state(&side);
  close_side(&side);
  return hashes[steps];
}

static const struct reader {
  ek_mode mode;
  size_t count, devices[CK_PROCESSES];
} readers[] = {{EK_MODE_FULLY_SHARDED, 2, {1, 1}},
               {EK_MODE_REPLICATED, 1, {3}},
               {EK_MODE_SHARDED_GRADIENTS, 4, {1, 1, 1, 1}},
               {EK_MODE_SHARDED, 2, {3, 1}}};

static int kill_at(int call, const char *disks) {
  const char *folder = open_folder(disks);
  const struct reader *reader = &readers[disks == NULL ? call % 4 : call % 2 * 2];
  ck_assign(job, .mode = call % 2 == 0 ? EK_MODE_SHARDED : EK_MODE_FULLY_SHARDED, .call = call);
  give_job();
  const struct ck_outcome *outcomes = ck_processes_outcomes("die at", three, 3);
  const struct ck_outcome *victim = &outcomes[job.victim];
  const bool killed = WIFSIGNALED(victim->exit) && WTERMSIG(victim->exit) == SIGKILL;
  ck_assert_msg(killed || (victim->whole && victim->status == EK_OK), "%s", victim->message);
  job.mode = (int)reader->mode;
  job.disks = disks == NULL ? NULL : "1010"; /* the others sit there */
  give_job();
  outcomes = reader->count > 1 ? ck_processes_done("go on", reader->devices, reader->count)
                               : ck_processes_alone("go on", go_on, reader->devices[0]);
  const int at = (int)outcomes[0].numbers[0];
  ck_assert_msg(at == 1 || at == 2, "killed at call %d: state %d", call, at);
  for (size_t p = 0; p < reader->count; p++) {
    ck_assert_msg(outcomes[p].numbers[1] == want_after(at), "killed at call %d: other bits", call);
  }
  /* Nothing is left of the save that was killed. */
  disks_have(1);
  if (disks == NULL) remove_state(folder, at + 1);
  return killed;
}

CK_LOOP(killed_processes_leave_whole_states, 6) {
  int points = 0;
  const int every = (int)ck_every(_i < 4 ? 18 : 54);
  ck_assign(job, .workload = LARGE, .fault = FILE_KILL, .victim = _i % 2,
            .background = _i < 4 ? _i / 2 : _i % 2);
  for (int call = 1 + _i % every, alive = 0; alive < 2 && call < 400; call += every) {
    if (kill_at(call, _i < 4 ? NULL : "010")) {
      points++;
      alive = 0;
    } else {
      alive++;
    }
  }
  printf("process %d killed at %d calls: whole states alone\n", job.victim, points);
  ck_assert_int_ge(points, 1);
}

/* ---- in the background, and the memory of a save ---- */

CK_LOOP(saves_in_the_background_end_in_calls_of_all, 2) {
  const char *folder = choose_job(_i == 1 ? "010" : NULL, EK_MODE_SHARDED);
  const struct ck_outcome *outcomes = done("save behind", three, 3);
  if (outcomes == NULL) return;
  for (size_t p = 0; p < 3; p++) {
    for (size_t i = 0; i < 3; i++) ck_assert_double_eq(outcomes[p].numbers[i], 1);
  }
  for (int number = 0; number < 3 && _i == 0; number++) remove_state(folder, number);
  if (_i == 1) disks_have(3);
}

/* 48 MB of state. Now: five pieces and two for what is exchanged, an eighth of a region each; in
 * the background the region and the two. */
CK_TEST(memory_is_that_of_a_region) {
  const char *folder = open_folder(NULL);
  const double state = 4.02e6 * 12 / (1 << 20), slack = 3;
  ck_assign(job, .workload = WIDE, .mode = EK_MODE_SHARDED);
  const struct ck_outcome *outcomes = done("measure", (const size_t[]){1, 1, 1, 1}, 4);
  if (outcomes == NULL) return;
  for (size_t p = 0; p < 4; p++) {
    const double now = outcomes[p].numbers[0], behind = outcomes[p].numbers[1];
    const double region = state * 0.30; /* of equal ones 0.25; the largest entry has 0.083 */
    printf("process %zu: %.1f and %.1f MiB of %.1f\n", p, now, behind, state);
    if (now < 0) continue; /* a system that resets no peak */
    ck_assert_double_lt(now, 7 * region / 8 + slack);
    ck_assert_double_lt(behind, region + 2 * region / 8 + slack);
  }
  remove_state(folder, 1);
}

CK_PARTS_SUITE("together", together_parts)
