/*
 * together_parts.c - what check_together.c runs in processes: see together_parts.h.
 */
#include "together_parts.h"

#include <glob.h>

struct job job;

static const struct {
  const char *name;
  int *value;
} told[] = {{"CK_WORKLOAD", &job.workload}, {"CK_MODE", &job.mode},
            {"CK_BACKGROUND", &job.background}, {"CK_FAULT", &job.fault},
            {"CK_VICTIM", &job.victim}, {"CK_CALL", &job.call}};
enum { TOLD = sizeof told / sizeof told[0] };

void give_job(void) {
  ck_assert_int_eq(setenv("CK_FOLDER", job.folder, 1), 0);
  ck_assert_int_eq(setenv("CK_DISKS", job.disks == NULL ? "" : job.disks, 1), 0);
  for (int i = 0; i < TOLD; i++) {
    ck_assert_int_eq(setenv(told[i].name, ck_text("%d", *told[i].value), 1), 0);
  }
}

static void take_job(void) {
  ck_assign(job, .folder = getenv("CK_FOLDER"), .disks = getenv("CK_DISKS"));
  for (int i = 0; i < TOLD; i++) *told[i].value = atoi(getenv(told[i].name));
}

const char *disk_of(size_t process) {
  static char path[CK_FOLDER_SIZE + 8];
  const bool own = job.disks != NULL && process < strlen(job.disks);
  (void)snprintf(path, sizeof path, own ? "%s/%c" : "%s", job.folder, own ? job.disks[process] : 0);
  return path;
}

/* ---- a training ---- */

static ek_status large_module(ek_module **module) {
  static const int64_t sizes[] = {7, 500, 450, 5};
  return ek_mlp_create(module, sizes, 4, EK_ACTIVATION_GELU);
}

static ek_status wide_module(ek_module **module) {
  static const int64_t sizes[] = {7, 1000, 1000, 1000, 1000, 1000, 5};
  return ek_mlp_create(module, sizes, 7, EK_ACTIVATION_GELU);
}

static struct ck_setup setup_of(int workload, int mode) {
  static struct ck_workload own;
  own = workload < LARGE ? ck_workloads[workload] : *ck_workload("mlp");
  if (workload >= LARGE) own.module = workload == LARGE ? large_module : wide_module;
  CK_WITH(struct ck_setup, setup, ck_setup_mode(&own, "", (ek_mode)mode),
          .optimizer = ck_clipped_adamw, .options.reproducible = GRAINS,
          .options.bucket_bytes = 200000);
  return setup;
}

bool open_side(struct side *side, struct ck_outcome *outcome, const struct ck_process *process,
               int mode) {
  *side = (struct side){.process = process, .outcome = outcome};
  side->setup = setup_of(job.workload, mode);
  return ck_went(outcome, ck_process_open(&side->group, process, 5)) &&
         ck_went(outcome, ck_training_try(&side->training, &side->setup, side->group));
}

void close_side(struct side *side) {
  ck_training_free(&side->training);
  ck_went(side->outcome, ek_group_close(side->group));
}

ek_status step(struct side *side) {
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

double hash_state(struct side *side) {
  uint64_t hash = CK_HASH;
  const ek_data_parallel_model *model = side->training.model;
  for (size_t i = 0; i < ek_state_count(model); i++) {
    ek_state_info info;
    if (!ck_went(side->outcome, ek_state_entry(&info, model, i))) return 0;
    ek_tensor host = info.like;
    host.data = calloc(1, ek_tensor_bytes(&host) + 1);
    ck_went(side->outcome, ek_state_read(&host, model, info.name));
    hash = ck_hash(hash, host.data, ek_tensor_bytes(&host));
    free(host.data);
  }
  return (double)(hash >> 12);
}

/* ---- without faults ---- */

void save_once(struct ck_outcome *outcome, const struct ck_process *process) {
  struct side side;
  if (process->count > 1) take_job();
  if (!open_side(&side, outcome, process, job.mode)) return;
  for (int i = 0; i < 2; i++) ck_went(outcome, step(&side));
  ck_went(outcome, save(&side, 0));
  ck_outcome_add(outcome, hash_state(&side));
  close_side(&side);
}

/* Loads from the process's disk; says the step, the state, and whether the extra was found. */
void load_once(struct ck_outcome *outcome, const struct ck_process *process) {
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
    ck_outcome_add(outcome, hash_state(&side));
    ck_outcome_add(outcome, info.position == 77 && (!sees || numbers[2] == 4));
  }
  close_side(&side);
}

/* ---- one call fails in one process ---- */

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

static uint64_t message_of(int64_t status) {
  return ck_hash(CK_HASH, ek_error_message(), status == EK_OK ? 0 : strlen(ek_error_message()));
}

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

/* A save that failed leaves nothing beside the older state. Copies are not looked at, because some
 * are whole before others; nor is a disk of the victim's own, where a part stays that has its name
 * but not the folder's sync. */
static bool left_nothing(const struct side *side, int n) {
  const size_t number = side->process->number;
  const bool apart = *job.disks != '\0';
  if (apart && job.mode == EK_MODE_REPLICATED) return true;
  if (apart && job.disks[number] == job.disks[job.victim]) return true;
  const int entries = ck_folder_entries(disk_of(number));
  if (entries == 1) return true;
  (void)ek_error_set(EK_ERR_INTERNAL, "call %d: %d files on the disk of process %zu", n, entries,
                     number);
  return ck_went(side->outcome, EK_ERR_INTERNAL);
}

/* A step, a save with the fault, and what is in the folder then; a save without one follows. */
static bool try_call(struct side *side, struct ck_training *reader, int n, int64_t now,
                     struct word *all) {
  const bool victim = (size_t)job.victim == side->process->number;
  struct word mine = {0};
  if (!ck_went(side->outcome, step(side))) return false;
  if (victim) begin_fault(job.fault, n);
  mine.status = save(side, 1);
  if (victim) mine.calls = end_fault(job.fault);
  mine.message = message_of(mine.status);
  if (!find_latest(side, reader, &mine.latest)) return false;
  if (!compare_words(side, &mine, n, now, all)) return false;
  if (all[0].status != EK_OK && all[0].latest == now - 1 && !left_nothing(side, n)) return false;
  return ck_went(side->outcome, step(side)) && ck_went(side->outcome, save(side, 1));
}

/* A training that has saved a step, and another one. */
static bool open_both(struct side *side, struct ck_training *reader, struct ck_outcome *outcome,
                      const struct ck_process *process) {
  return open_side(side, outcome, process, job.mode) &&
         ck_went(outcome, ck_training_try(reader, &side->setup, side->group)) &&
         ck_went(outcome, step(side)) && ck_went(outcome, save(side, 1));
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
  if (!open_both(&side, &reader, outcome, process)) return;
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

/* Each call of one process's load fails: all have the same, and the next load is whole. */
static void fail_load(struct ck_outcome *outcome, const struct ck_process *process) {
  struct side side;
  struct ck_training reader = {0};
  struct word mine = {0}, all[CK_PROCESSES] = {{0}};
  int failed = 0, rounds = 0;
  take_job();
  const bool victim = (size_t)job.victim == process->number;
  const int every = (int)ck_every(17);
  if (!open_both(&side, &reader, outcome, process)) return;
  const double want = hash_state(&side);
  ck_training_free(&side.training);
  side.training = reader;
  for (int n = 1 + job.call % every, quiet = 0; n < 400 && quiet < 8; n += every, rounds++) {
    if (victim) begin_fault(job.fault, n);
    mine.status = ek_checkpoint_load(NULL, reader.model, disk_of(process->number));
    if (victim) mine.calls = end_fault(job.fault);
    ck_assign(mine, .message = message_of(mine.status), .latest = 1);
    if (!compare_words(&side, &mine, n, 1 + (mine.status != EK_OK), all)) break;
    failed += mine.status != EK_OK;
    const bool more = job.fault == MEMORY ? mine.status != EK_OK : all[job.victim].calls >= n;
    quiet = more ? 0 : quiet + every;
    if (!ck_went(outcome, ek_checkpoint_load(NULL, reader.model, disk_of(process->number)))) break;
    if (hash_state(&side) != want) ck_went(outcome, EK_ERR_INTERNAL);
  }
  ck_outcome_add(outcome, failed);
  ck_outcome_add(outcome, rounds);
  close_side(&side);
}

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
void go_on(struct ck_outcome *outcome, const struct ck_process *process) {
  struct side side;
  ek_checkpoint_info info = {.step = 0};
  if (process->count > 1) take_job();
  if (!open_side(&side, outcome, process, job.mode)) return;
  const char *disk = disk_of(process->number);
  ck_went(outcome, ek_checkpoint_load(&info, side.training.model, disk));
  ck_outcome_add(outcome, (double)info.step);
  ck_outcome_add(outcome, hash_state(&side));
  ck_went(outcome, step(&side));
  ck_went(outcome, save(&side, 1));
  close_side(&side);
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

static void measure(struct ck_outcome *outcome, const struct ck_process *process) {
  struct side side;
  take_job();
  if (!open_side(&side, outcome, process, job.mode) || !ck_went(outcome, step(&side))) return;
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

const struct ck_part together_parts[] = {
    {"save once", save_once}, {"fail each", fail_each}, {"die at", die_at}, {"go on", go_on},
    {"measure", measure}, {"save behind", save_behind}, {"load once", load_once},
    {"fail load", fail_load}, {NULL, NULL}};
