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
#include <glob.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ck_folder.h"
#include "ck_processes.h"
#include "ck_training.h"
#include "file_calls.h"

enum { ROWS = 8, GRAINS = 4 };

/* What a test asks of the processes that it starts: by the environment, which they inherit. */
static struct {
  const char *folder; /* of all; with `disks` the one that has theirs, */
  const char *disks;  /* and here is the name of each process's, a letter; or NULL */
  int workload, mode, background, fault, victim, call;
} job;

static void give(const char *name, int value) {
  ck_assert_int_eq(setenv(name, ck_text("%d", value), 1), 0);
}

static int given(const char *name) {
  const char *text = getenv(name);
  return text == NULL ? 0 : atoi(text);
}

static void give_job(void) {
  ck_assert_int_eq(setenv("CK_FOLDER", job.folder, 1), 0);
  ck_assert_int_eq(setenv("CK_DISKS", job.disks == NULL ? "" : job.disks, 1), 0);
  give("CK_WORKLOAD", job.workload);
  give("CK_MODE", job.mode);
  give("CK_BACKGROUND", job.background);
  give("CK_FAULT", job.fault);
  give("CK_VICTIM", job.victim);
  give("CK_CALL", job.call);
}

/* The job of these processes; NULL: the library was built without files. */
static struct ck_outcome *done(const char *part, const size_t *devices, size_t count) {
  give_job();
  struct ck_outcome *outcomes = ck_processes_outcomes(part, devices, count);
  if (strstr(outcomes[0].message, "without xxHash") != NULL) return NULL;
  ck_processes_well(outcomes, count);
  return outcomes;
}

static void take_job(void) {
  ck_assign(job, .folder = getenv("CK_FOLDER"), .disks = getenv("CK_DISKS"),
            .workload = given("CK_WORKLOAD"), .mode = given("CK_MODE"),
            .background = given("CK_BACKGROUND"), .fault = given("CK_FAULT"),
            .victim = given("CK_VICTIM"), .call = given("CK_CALL"));
}

/* The folder of a process; a static array. */
static const char *disk_of(size_t process) {
  static char path[CK_FOLDER_SIZE + 8];
  const bool own = job.disks != NULL && process < strlen(job.disks);
  (void)snprintf(path, sizeof path, own ? "%s/%c" : "%s", job.folder, own ? job.disks[process] : 0);
  return path;
}

/* ---- a training ---- */

/* Large enough for several pieces in each process, and for writes past the page cache. */
static ek_status large_module(ek_module **module) {
  static const int64_t sizes[] = {7, 500, 450, 5};
  return ek_mlp_create(module, sizes, 4, EK_ACTIVATION_GELU);
}

enum { LARGE = CK_WORKLOADS }; /* as a number of a workload */

static struct ck_setup setup_of(int workload, int mode, const char *spec) {
  static struct ck_workload large;
  large = *ck_workload("mlp");
  large.module = large_module;
  CK_WITH(struct ck_setup, setup,
          ck_setup_mode(workload == LARGE ? &large : &ck_workloads[workload], spec, (ek_mode)mode),
          .optimizer = ck_clipped_adamw, .options.reproducible = GRAINS,
          .options.bucket_bytes = 200000);
  return setup;
}

struct side {
  const struct ck_process *process;
  struct ck_outcome *outcome;
  struct ck_setup setup;
  struct ck_training training;
  ek_group *group;
};

static bool open_side(struct side *side, struct ck_outcome *outcome,
                      const struct ck_process *process, int mode) {
  *side = (struct side){.process = process, .outcome = outcome};
  side->setup = setup_of(job.workload, mode, "");
  return ck_went(outcome, ck_process_open(&side->group, process, 5)) &&
         ck_went(outcome, ck_training_try(&side->training, &side->setup, side->group));
}

static void close_side(struct side *side) {
  ck_training_free(&side->training);
  ck_went(side->outcome, ek_group_close(side->group));
}

static ek_status step(struct side *side) {
  int64_t first = 0, count = 0;
  struct ck_batch whole = ck_batch_make(side->setup.workload, EK_F32, ROWS, 0.2, 9);
  EK_TRY(ek_world_rows(&first, &count, side->group, ROWS, GRAINS));
  const struct ck_batch batch = ck_batch_samples(&whole, first, count);
  return ck_training_step(&side->training, &batch, NULL);
}

static ek_status save(struct side *side, size_t keep) {
  static const int64_t numbers[] = {3, 1, 4};
  ek_checkpoint_extra extra = {.name = "sampler"};
  ek_checkpoint_write *write = NULL;
  const char *folder = disk_of(side->process->number);
  EK_TRY(ek_tensor_host(&extra.value, (void *)(uintptr_t)numbers, EK_I64, CK_SHAPE(3)));
  CK_WITH(ek_checkpoint_options, options, EK_CHECKPOINT_OPTIONS_INIT, .keep = keep, .position = 77);
  if (side->process->number == 0) ck_assign(options, .extras = &extra, .extra_count = 1);
  if (!job.background) return ek_checkpoint_save(side->training.model, folder, &options);
  EK_TRY(ek_checkpoint_begin(&write, side->training.model, folder, &options));
  return ek_checkpoint_end(write);
}

static uint64_t hash_of(uint64_t hash, const void *bytes, size_t count) {
  for (size_t i = 0; i < count; i++) {
    hash = (hash ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
  }
  return hash;
}

/* Of all entries; 52 bits, for a double. */
static uint64_t hash_state(struct side *side) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  const ek_data_parallel_model *model = side->training.model;
  for (size_t i = 0; i < ek_state_count(model); i++) {
    ek_state_info info;
    if (!ck_went(side->outcome, ek_state_entry(&info, model, i))) return 0;
    ek_tensor host = info.like;
    host.data = calloc(1, ek_tensor_bytes(&host) + 1);
    ck_went(side->outcome, ek_state_read(&host, model, info.name));
    hash = hash_of(hash, host.data, ek_tensor_bytes(&host));
    free(host.data);
  }
  return hash >> 12;
}

/* ---- the same bytes ---- */

static void save_once(struct ck_outcome *outcome, const struct ck_process *process) {
  struct side side;
  if (process->count > 1) take_job();
  if (!open_side(&side, outcome, process, job.mode)) return;
  for (int i = 0; i < 2; i++) ck_went(outcome, step(&side));
  ck_went(outcome, save(&side, 0));
  ck_outcome_add(outcome, (double)hash_state(&side));
  close_side(&side);
}

static char *bytes_of(const char *folder, int number, size_t *size) {
  struct stat about;
  const char *path = ck_text("%s/step-%012d.safetensors", folder, number);
  const int file = open(path, O_RDONLY);
  ck_assert_msg(file >= 0 && fstat(file, &about) == 0, "%s is not there", path);
  *size = (size_t)about.st_size;
  char *bytes = ck_array(*size + 1, 1);
  ck_assert_int_eq(read(file, bytes, *size), (ssize_t)*size);
  ck_assert_int_eq(close(file), 0);
  ck_assert_int_eq(unlink(path), 0);
  return bytes;
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
    size_t size = 0, alone_size = 0;
    const char *want = bytes_alone(place, &alone_size);
    if (want == NULL) return;
    const char *folder = open_folder(NULL);
    ck_assert_ptr_nonnull(done("save once", place->devices, place->count));
    const char *got = bytes_of(folder, 2, &size);
    ck_assert_msg(size == alone_size && memcmp(got, want, size) == 0, "place %d: other bytes", i);
  }
}

/* ---- disks that are not shared ---- */

/* Where each process has all of the state, each disk gets all of it. Another one's file of that
 * name is on one of them. */
CK_LOOP(a_whole_state_on_each_disk, 2) {
  static const size_t devices[] = {1, 2, 1};
  size_t alone_size = 0, size = 0;
  job.background = _i;
  const char *want = bytes_alone(&places[0], &alone_size);
  if (want == NULL) return;
  const char *folder = open_folder("010");
  ck_assert_int_eq(mkdir(ck_text("%s/1", folder), 0700), 0);
  ck_write_file(ck_text("%s/1/step-%012d.safetensors.tmp", folder, 2), folder, strlen(folder));
  ck_assert_ptr_nonnull(done("save once", devices, 3));
  for (size_t p = 0; p < 2; p++) {
    ck_assert_int_eq(ck_folder_entries(disk_of(p)), 1);
    const char *got = bytes_of(disk_of(p), 2, &size);
    ck_assert_msg(size == alone_size && memcmp(got, want, size) == 0, "disk %zu: other bytes", p);
  }
}

/* Loads from the process's disk; says the step, the state, and whether the extra was found. */
static void load_once(struct ck_outcome *outcome, const struct ck_process *process) {
  struct side side;
  ek_checkpoint_info info = {.step = -1};
  int64_t numbers[3] = {0};
  ek_safetensors *file = NULL;
  ek_tensor extra;
  if (process->count > 1) take_job();
  if (!open_side(&side, outcome, process, job.mode)) return;
  const ek_world *world = ck_process_opened(process);
  const uint64_t sent = ek_world_sent(world);
  const bool shared = job.disks == NULL && job.call > 0;
  const char *path = shared ? getenv("CK_PATH") : disk_of(process->number);
  if (ck_went(outcome, ek_checkpoint_load(&info, side.training.model, path))) {
    ck_went(outcome, ek_tensor_host(&extra, numbers, EK_I64, CK_SHAPE(3)));
    const bool sees = ek_safetensors_open(&file, info.path) == EK_OK;
    if (sees) ck_went(outcome, ek_safetensors_read(&extra, file, "user/sampler"));
    ek_safetensors_free(file);
    ck_outcome_add(outcome, (double)info.step);
    ck_outcome_add(outcome, (double)(ek_world_sent(world) - sent));
    ck_outcome_add(outcome, (double)hash_state(&side));
    ck_outcome_add(outcome, info.position == 77 && (!sees || numbers[2] == 4));
  }
  close_side(&side);
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
  ck_assert_msg(strstr(alone->message, "part 2 of ") != NULL &&
                    strstr(alone->message, "step 2 is missing; process 1 on ") != NULL &&
                    strstr(alone->message, "-00002-of-0000") != NULL, "%s", alone->message);
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
  ck_assert_msg(strstr(outcomes[1].message, "damaged: its checksum differs") != NULL, "%s",
                outcomes[1].message);
  flip_a_byte(paths[0]);
  size_t size = 0;
  const char *bytes = bytes_alone(&places[3], &size); /* of another model */
  ck_write_file(paths[1], bytes, size);
  ck_assign(job, .folder = folder, .workload = LARGE);
  outcomes = load_on_disks();
  for (size_t p = 0; p < 2; p++) {
    ck_assert_int_eq(outcomes[p].status, EK_ERR_MISMATCH);
    ck_assert_msg(strstr(outcomes[p].message, "not of one save") != NULL, "%s",
                  outcomes[p].message);
  }
}

/* ---- one call fails in one process ---- */

enum { MEMORY = FILE_FAULTS }; /* as a fault: a request for host memory or a thread */

static void begin_fault(int fault, int n) {
  if (fault == MEMORY) {
    ek_host_memory_fail_at((uint64_t)n);
  } else {
    file_calls_begin((enum file_fault)fault, n);
  }
}

static int end_fault(int fault) {
  if (fault != MEMORY) return file_calls_end();
  ek_host_memory_fail_at(0);
  return 0;
}

/* What a load finds now: in folders that are not shared all processes look, with another model. */
static bool find_latest(struct side *side, struct ck_training *reader, int64_t *step) {
  ek_checkpoint_info info = {.step = 0};
  if (job.disks != NULL) {
    const char *disk = disk_of(side->process->number);
    if (!ck_went(side->outcome, ek_checkpoint_load(&info, reader->model, disk))) return false;
  } else if (side->process->number == 0 &&
             !ck_went(side->outcome, ek_checkpoint_latest(&info, job.folder))) {
    return false;
  }
  *step = info.step;
  return true;
}

struct word {
  int64_t status, calls, latest;
  uint64_t message;
};

/* The processes' words; those of process 0 say what the folder has. */
static bool compare_words(struct side *side, const struct word *mine, int n, int64_t now,
                          struct word *all) {
  struct ck_outcome *outcome = side->outcome;
  if (!ck_went(outcome, ck_process_gather(side->process, mine, sizeof *mine, all))) return false;
  for (size_t p = 0; p < side->process->count; p++) {
    const bool alike = all[p].status == all[0].status && all[p].message == all[0].message;
    const int64_t want = all[0].status == EK_OK ? now : now - 1;
    /* After a failed sync of the folder the new state may be there. */
    const bool there = all[0].latest == want || all[0].latest == now;
    if (alike && there) continue;
    (void)ek_error_set(EK_ERR_INTERNAL, "call %d: status %d of process 0, %d of %zu; state %d", n,
                       (int)all[0].status, (int)all[p].status, p, (int)all[0].latest);
    return ck_went(outcome, EK_ERR_INTERNAL);
  }
  return true;
}

/* A step, a save with the fault, and what is in the folder then; a save without one follows. */
static bool try_call(struct side *side, struct ck_training *reader, int n, int64_t now,
                     struct word *all) {
  const bool victim = (size_t)job.victim == side->process->number;
  struct word mine = {0};
  if (!ck_went(side->outcome, step(side))) return false;
  if (victim) begin_fault(job.fault, n);
  mine.status = save(side, 1);
  mine.message =
      hash_of(1, ek_error_message(), mine.status == EK_OK ? 0 : strlen(ek_error_message()));
  if (victim) mine.calls = end_fault(job.fault);
  if (!find_latest(side, reader, &mine.latest)) return false;
  if (!compare_words(side, &mine, n, now, all)) return false;
  return ck_went(side->outcome, step(side)) && ck_went(side->outcome, save(side, 1));
}

static void fail_each(struct ck_outcome *outcome, const struct ck_process *process) {
  struct side side;
  struct ck_training reader = {0};
  struct word all[CK_PROCESSES] = {{0}};
  int failed = 0, late = 0, rounds = 0;
  take_job();
  const int coarse = *job.disks == '\0' ? 1 : 3;
  const int often = coarse * (job.fault == FILE_FLIP ? 5 : 17); /* few calls write */
  const int every = (int)ck_every((uint64_t)often);
  if (!open_side(&side, outcome, process, job.mode)) return;
  if (!ck_went(outcome, ck_training_try(&reader, &side.setup, side.group))) return;
  if (!ck_went(outcome, step(&side)) || !ck_went(outcome, save(&side, 1))) return;
  for (int n = 1 + job.call % every, quiet = 0; n < 400 && quiet < 8; n += every) {
    rounds++;
    if (!try_call(&side, &reader, n, 2 * (int64_t)rounds, all)) break;
    if (all[0].status != EK_OK) failed++;
    if (all[0].status != EK_OK && all[0].latest == 2 * rounds) late++;
    const bool more = job.fault == MEMORY ? all[0].status != EK_OK : all[job.victim].calls >= n;
    quiet = more ? 0 : quiet + every;
  }
  ck_outcome_add(outcome, failed);
  ck_outcome_add(outcome, rounds);
  ck_outcome_add(outcome, late);
  ck_training_free(&reader);
  close_side(&side);
}

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
  ck_assert_double_le(outcomes[0].numbers[2], 2); /* the folder's sync, after the new name */
  return outcomes;
}

/* EIO, no space, a flipped bit and no memory; in process 0 and in another one; now and behind. */
CK_LOOP(each_failure_is_one_in_all, 16) {
  size_t size = 0;
  const struct ck_outcome *outcomes = fail_everywhere(NULL, _i);
  if (outcomes == NULL) return;
  /* The last one alone is left, and nothing that was begun. */
  (void)bytes_of(job.folder, 2 * (int)outcomes[0].numbers[1] + 1, &size);
}

/* The same on disks of their own: each has one file in the end. */
CK_LOOP(each_failure_is_one_in_all_disks, 8) {
  if (fail_everywhere("010", _i + 8 * (_i % 3 == 0)) == NULL) return;
  for (size_t p = 0; p < 2; p++) ck_assert_int_eq(ck_folder_entries(disk_of(p)), 1);
}

/* ---- a load fails ---- */

/* Each call of one process's load fails: all have the same, and the next load is whole. */
static void fail_load(struct ck_outcome *outcome, const struct ck_process *process) {
  struct side side;
  struct ck_training reader = {0};
  struct word mine = {0}, all[CK_PROCESSES] = {{0}};
  int failed = 0, rounds = 0;
  take_job();
  const bool victim = (size_t)job.victim == process->number;
  const int every = (int)ck_every(17);
  if (!open_side(&side, outcome, process, job.mode)) return;
  if (!ck_went(outcome, ck_training_try(&reader, &side.setup, side.group))) return;
  if (!ck_went(outcome, step(&side)) || !ck_went(outcome, save(&side, 1))) return;
  const double want = (double)hash_state(&side);
  ck_training_free(&side.training);
  side.training = reader;
  for (int n = 1 + job.call % every, quiet = 0; n < 400 && quiet < 8; n += every, rounds++) {
    if (victim) begin_fault(job.fault, n);
    mine.status = ek_checkpoint_load(NULL, reader.model, disk_of(process->number));
    const size_t length = mine.status == EK_OK ? 0 : strlen(ek_error_message());
    ck_assign(mine, .message = hash_of(1, ek_error_message(), length), .latest = 1);
    if (victim) mine.calls = end_fault(job.fault);
    if (!compare_words(&side, &mine, n, 1 + (mine.status != EK_OK), all)) break;
    failed += mine.status != EK_OK;
    const bool more = job.fault == MEMORY ? mine.status != EK_OK : all[job.victim].calls >= n;
    quiet = more ? 0 : quiet + every;
    if (!ck_went(outcome, ek_checkpoint_load(NULL, reader.model, disk_of(process->number)))) break;
    if ((double)hash_state(&side) != want) ck_went(outcome, EK_ERR_INTERNAL);
  }
  ck_outcome_add(outcome, failed);
  ck_outcome_add(outcome, rounds);
  close_side(&side);
}

CK_LOOP(each_failure_of_a_load_is_one_in_all, 4) {
  static const int faults[] = {FILE_EIO, MEMORY};
  const char *disks = _i < 2 ? NULL : "010";
  const char *folder = choose_job(disks, _i % 3 == 0 ? EK_MODE_REPLICATED : EK_MODE_SHARDED);
  size_t size = 0;
  ck_assign(job, .fault = faults[_i % 2], .victim = _i == 1 || _i == 2, .background = 0,
            .call = _i);
  const struct ck_outcome *outcomes = all_went("fail load", "load: ");
  if (outcomes == NULL) return;
  ck_assert_double_ge(outcomes[0].numbers[0], 1);
  if (disks == NULL) (void)bytes_of(folder, 1, &size);
}

/* ---- killed ---- */

static void die_at(struct ck_outcome *outcome, const struct ck_process *process) {
  struct side side;
  take_job();
  if (!open_side(&side, outcome, process, job.mode)) return;
  if (!ck_went(outcome, step(&side)) || !ck_went(outcome, save(&side, 1))) return;
  if (!ck_went(outcome, step(&side))) return;
  if ((size_t)job.victim == process->number) begin_fault(job.fault, job.call);
  ck_went(outcome, save(&side, 1));
  if ((size_t)job.victim == process->number) ck_outcome_add(outcome, end_fault(job.fault));
  close_side(&side);
}

/* Other processes, in another mode, load what is there, and save a step more. */
static void go_on(struct ck_outcome *outcome, const struct ck_process *process) {
  struct side side;
  ek_checkpoint_info info = {.step = 0};
  if (process->count > 1) take_job();
  if (!open_side(&side, outcome, process, job.mode)) return;
  const char *disk = disk_of(process->number);
  ck_went(outcome, ek_checkpoint_load(&info, side.training.model, disk));
  ck_outcome_add(outcome, (double)info.step);
  ck_outcome_add(outcome, (double)hash_state(&side));
  ck_went(outcome, step(&side));
  ck_went(outcome, save(&side, 1));
  close_side(&side);
}

/* The hash of the state after these steps. */
static double want_after(int steps) {
  static double hashes[4];
  struct side side;
  struct ck_outcome *outcome = ck_array(1, sizeof *outcome);
  const struct ck_process alone = ck_process_alone("", 1);
  if (hashes[steps] != 0) return hashes[steps];
  ck_assert_msg(open_side(&side, outcome, &alone, EK_MODE_REPLICATED), "%s", outcome->message);
  for (int i = 0; i < steps; i++) ck_ok(step(&side));
  hashes[steps] = (double)hash_state(&side);
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
  size_t size = 0;
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
  for (size_t p = 0; p < 2; p++) ck_assert_int_eq(ck_folder_entries(disk_of(p)), 1);
  if (disks == NULL) (void)bytes_of(folder, at + 1, &size);
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

/* ---- in the background ---- */

/* A state, or a part that does not wait, on the first disk. */
static bool is_there(int number) {
  glob_t found = {0};
  const char *pattern = ck_text("%s/step-%012d*.safetensors", disk_of(0), number);
  const bool there = glob(pattern, 0, NULL, &found) == 0;
  globfree(&found);
  return there;
}

/* Whether process 0 sees it, in all processes. */
static bool all_see(struct ck_outcome *outcome, const struct ck_process *process, int number) {
  const bool mine = is_there(number);
  bool all[CK_PROCESSES] = {false};
  return ck_went(outcome, ck_process_gather(process, &mine, sizeof mine, all)) && all[0];
}

/* Two saves at once, ended in the other order; then one of a trainer, which steps end. */
static void save_behind(struct ck_outcome *outcome, const struct ck_process *process) {
  struct side side;
  ek_checkpoint_write *first = NULL, *second = NULL;
  ek_step_result result;
  take_job();
  const char *disk = disk_of(process->number);
  char own[CK_FOLDER_SIZE + 8];
  (void)snprintf(own, sizeof own, "%s", disk);
  if (!open_side(&side, outcome, process, job.mode)) return;
  ck_went(outcome, step(&side));
  ck_went(outcome, ek_checkpoint_begin(&first, side.training.model, own, NULL));
  ck_went(outcome, step(&side));
  ck_went(outcome, ek_checkpoint_begin(&second, side.training.model, own, NULL));
  ck_went(outcome, step(&side));
  ck_went(outcome, ek_checkpoint_end(second));
  ck_outcome_add(outcome, all_see(outcome, process, 2) && !all_see(outcome, process, 1));
  ck_went(outcome, ek_checkpoint_end(first));
  ck_outcome_add(outcome, all_see(outcome, process, 1));
  ck_training_free(&side.training);
  side.setup.group = side.group;
  ek_trainer *trainer = ck_trainer_open(&side.setup);
  const struct ck_batch whole = ck_batch_make(side.setup.workload, EK_F32, ROWS, 0, 9);
  int64_t from = 0, count = 0;
  bool there = false;
  ck_went(outcome, ek_world_rows(&from, &count, side.group, ROWS, GRAINS));
  const struct ck_batch batch = ck_batch_samples(&whole, from, count);
  ck_went(outcome, ek_trainer_save_begin(trainer, own, NULL));
  for (int i = 0; i < 500 && !there && outcome->status == EK_OK; i++) {
    ck_went(outcome, ek_trainer_step(&result, trainer, batch.input, batch.inputs, batch.target,
                                     batch.targets));
    there = all_see(outcome, process, 0);
  }
  ck_outcome_add(outcome, there);
  ck_went(outcome, ek_trainer_save_end(trainer));
  ek_trainer_free(trainer);
  ck_went(outcome, ek_group_close(side.group));
}

CK_LOOP(saves_in_the_background_end_in_calls_of_all, 2) {
  const char *folder = choose_job(_i == 1 ? "010" : NULL, EK_MODE_SHARDED);
  size_t size = 0;
  const struct ck_outcome *outcomes = done("save behind", three, 3);
  if (outcomes == NULL) return;
  for (size_t p = 0; p < 3; p++) {
    for (size_t i = 0; i < 3; i++) ck_assert_double_eq(outcomes[p].numbers[i], 1);
  }
  for (int number = 0; number < 3 && _i == 0; number++) (void)bytes_of(folder, number, &size);
  for (size_t p = 0; p < 2 && _i == 1; p++) ck_assert_int_eq(ck_folder_entries(disk_of(p)), 3);
}

/* ---- the memory of a save ---- */

/* The most that the process has held since the last call, in KiB, above what it holds now. */
static long peak_kib(const char *which) {
  char line[128];
  long value = 0;
  FILE *file = fopen("/proc/self/status", "r");
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    if (strncmp(line, which, strlen(which)) == 0) value = atol(line + strlen(which));
  }
  if (file != NULL) (void)fclose(file);
  return value;
}

static ek_status wide_module(ek_module **module) {
  static const int64_t sizes[] = {7, 1000, 1000, 1000, 1000, 1000, 5};
  return ek_mlp_create(module, sizes, 7, EK_ACTIVATION_GELU);
}

static void measure(struct ck_outcome *outcome, const struct ck_process *process) {
  struct side side = {.process = process, .outcome = outcome};
  static struct ck_workload wide;
  take_job();
  wide = *ck_workload("mlp");
  wide.module = wide_module;
  ck_assign(side, .setup = setup_of(LARGE, job.mode, ""), .setup.workload = &wide);
  if (!ck_went(outcome, ck_process_open(&side.group, process, 5)) ||
      !ck_went(outcome, ck_training_try(&side.training, &side.setup, side.group)) ||
      !ck_went(outcome, step(&side))) {
    return;
  }
  for (int i = 0; i < 2; i++) {
    job.background = i;
    FILE *file = fopen("/proc/self/clear_refs", "w");
    const bool resets = file != NULL && fputs("5", file) >= 0;
    if (file != NULL && fclose(file) != 0) (void)fputs("not reset\n", stderr);
    const long before = peak_kib("VmRSS:");
    ck_went(outcome, save(&side, 0));
    ck_outcome_add(outcome, resets ? (double)(peak_kib("VmHWM:") - before) / 1024 : -1);
  }
  close_side(&side);
}

/* 48 MB of state. Now: five pieces and two for what is exchanged, an eighth of a region each; in
 * the background the region and the two. */
CK_TEST(memory_is_that_of_a_region) {
  const char *folder = open_folder(NULL);
  const double state = 4.02e6 * 12 / (1 << 20), slack = 3;
  size_t size = 0;
  job.mode = EK_MODE_SHARDED;
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
  (void)bytes_of(folder, 1, &size);
}

static const struct ck_part parts[] = {
    {"save once", save_once}, {"fail each", fail_each}, {"die at", die_at}, {"go on", go_on},
    {"measure", measure}, {"save behind", save_behind}, {"load once", load_once},
    {"fail load", fail_load}, {NULL, NULL}};

CK_PARTS_SUITE("together", parts)
