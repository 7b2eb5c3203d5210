/*
 * ck_processes.c - starts parts of a test program as processes, with a socket between every two.
 */
#include "ck_processes.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ck_folder.h"

extern char **environ;

enum { SECONDS = 60 * (1 + 4 * CK_TSAN) };

void ck_outcome_add(struct ck_outcome *outcome, double number) {
  if (outcome->count < CK_OUTCOME_NUMBERS) {
    outcome->numbers[outcome->count++] = number;
  } else if (outcome->status == EK_OK) {
    outcome->status = EK_ERR_INTERNAL;
    (void)snprintf(outcome->message, sizeof outcome->message, "too many numbers");
  }
}

bool ck_went(struct ck_outcome *outcome, ek_status status) {
  if (status == EK_OK || outcome->status != EK_OK) return status == EK_OK;
  outcome->status = status;
  (void)snprintf(outcome->message, sizeof outcome->message, "%s", ek_error_message());
  return false;
}

/* ---- the world ---- */

ek_status ck_process_gather(const struct ck_process *process, const void *mine, size_t bytes,
                            void *all) {
  memcpy((char *)all + process->number * bytes, mine, bytes);
  for (size_t p = 0; p < process->count; p++) {
    if (p == process->number) continue;
    if (send(process->sockets[p], mine, bytes, MSG_NOSIGNAL) != (ssize_t)bytes) {
      return ek_error_set(EK_ERR_IO, "process %zu takes no bytes", p);
    }
  }
  for (size_t p = 0; p < process->count; p++) {
    char *to = (char *)all + p * bytes;
    if (p == process->number) continue;
    if (recv(process->sockets[p], to, bytes, MSG_WAITALL) != (ssize_t)bytes) {
      return ek_error_set(EK_ERR_IO, "process %zu gives no bytes", p);
    }
  }
  return EK_OK;
}

static ek_status gather(void *context, const void *mine, size_t bytes, void *all) {
  return ck_process_gather(context, mine, bytes, all);
}

ek_status ck_process_world(ek_world **world, const struct ck_process *process, double time_limit) {
  CK_WITH(ek_world_options, options, EK_WORLD_OPTIONS_INIT, .address = "127.0.0.1",
          .time_limit = time_limit);
  CK_WITH(ek_world_gather, how, EK_WORLD_GATHER_INIT, .process = process->number,
          .processes = process->count, .gather = gather, .context = (void *)(uintptr_t)process);
  return ek_world_open_gather(world, &how, &options);
}

static ek_world *shared_world;

struct ck_process ck_process_alone(const char *part, size_t devices) {
  return (struct ck_process){.part = part, .count = 1, .devices = {devices}, .world = devices,
                             .sockets = {-1, -1, -1, -1}};
}

static ek_status open_group(ek_group **group, const struct ck_process *process, double time_limit,
                            bool deterministic) {
  ek_group_options options = EK_GROUP_OPTIONS_INIT;
  char spec[32];
  if (process->count > 1 && process->mpi == NULL && shared_world == NULL) {
    EK_TRY(ck_process_world(&shared_world, process, time_limit));
  }
  ck_assign(options, .threads_per_device = 1, .deterministic = deterministic,
            .world = process->mpi != NULL ? process->mpi : shared_world);
  const size_t devices = process->devices[process->number];
  const char *kind = getenv("EVENKEEL_TEST_PROCESSES");
  if (kind != NULL && strcmp(kind, "cuda") == 0) {
    (void)snprintf(spec, sizeof spec, "cuda:0-%zu", devices - 1);
  } else {
    (void)snprintf(spec, sizeof spec, "cpu:%zu", devices);
  }
  return ek_group_open(group, spec, &options);
}

ek_status ck_process_open(ek_group **group, const struct ck_process *process, double time_limit) {
  return open_group(group, process, time_limit, true);
}

ek_status ck_process_open_folding(ek_group **group, const struct ck_process *process,
                                  double time_limit) {
  return open_group(group, process, time_limit, false);
}

void ck_process_close(struct ck_process_group *it) {
  if (it->group != NULL) ck_went(it->outcome, ek_group_close(it->group));
}

ek_world *ck_process_opened(const struct ck_process *process) {
  return process->mpi != NULL ? process->mpi : shared_world;
}

/* ---- the parent ---- */

struct child {
  pid_t pid;
  int pipe; /* where its outcome comes from; -1: closed */
  size_t got;
};

/* argv: the program, "--part", its name, number, count, the file to write to, and for each process
 * its devices and its socket. */
enum { ARGUMENTS = 6 + 2 * CK_PROCESSES, TEXT = 24 };

static void start(struct child *child, const char *part, const size_t *devices, size_t count,
                  size_t number, const int *sockets) {
  char texts[ARGUMENTS][TEXT], *argv[ARGUMENTS + 1] = {NULL};
  char path[4096] = "";
  int pipes[2];
  size_t used = 0;
  posix_spawn_file_actions_t actions;
  ck_assert_int_gt(readlink("/proc/self/exe", path, sizeof path - 1), 0);
  ck_assert_int_eq(pipe(pipes), 0);
  ck_assert_int_eq(posix_spawn_file_actions_init(&actions), 0);
  ck_assert_int_eq(posix_spawn_file_actions_addclose(&actions, pipes[0]), 0);
  argv[used++] = path;
  argv[used++] = (char *)(uintptr_t) "--part";
  argv[used++] = (char *)(uintptr_t)part;
  const long numbers[] = {(long)number, (long)count, pipes[1]};
  for (size_t i = 0; i < 3 + 2 * count; i++) {
    const size_t of = (i - 3) / 2;
    const long value = i < 3 ? numbers[i] : i % 2 == 1 ? (long)devices[of] : sockets[of];
    (void)snprintf(texts[i], TEXT, "%ld", value);
    argv[used++] = texts[i];
  }
  ck_assert_int_eq(posix_spawn(&child->pid, path, &actions, NULL, argv, environ), 0);
  (void)posix_spawn_file_actions_destroy(&actions);
  (void)close(pipes[1]);
  child->pipe = pipes[0];
}

/* Reads the outcomes of all children until their ends are closed, or time is up. */
static void collect(struct child *children, struct ck_outcome *outcomes, size_t count) {
  const double until = ck_now() + SECONDS;
  for (size_t open = count; open > 0 && ck_now() < until;) {
    struct pollfd waits[CK_PROCESSES];
    for (size_t i = 0; i < count; i++) {
      waits[i] = (struct pollfd){.fd = children[i].pipe, .events = POLLIN};
    }
    if (poll(waits, count, 200) <= 0) continue;
    for (size_t i = 0; i < count; i++) {
      struct child *child = &children[i];
      char *to = (char *)&outcomes[i] + child->got;
      if (child->pipe < 0 || waits[i].revents == 0) continue;
      const ssize_t got = read(child->pipe, to, sizeof outcomes[i] - child->got);
      if (got > 0) child->got += (size_t)got;
      if (got > 0 && child->got < sizeof outcomes[i]) continue;
      (void)close(child->pipe);
      child->pipe = -1;
      open--;
    }
  }
}

/* ---- the parent, with mpirun ---- */

enum { PATH_SIZE = CK_FOLDER_SIZE + TEXT };

static void outcome_path(char path[PATH_SIZE], const char *folder, size_t number) {
  (void)snprintf(path, PATH_SIZE, "%s/%zu", folder, number);
}

static void read_outcome(struct ck_outcome *outcome, const char *folder, size_t number) {
  char path[PATH_SIZE];
  outcome_path(path, folder, number);
  FILE *file = fopen(path, "rb");
  outcome->whole = file != NULL && fread(outcome, sizeof *outcome, 1, file) == 1;
  if (file != NULL) (void)fclose(file);
  (void)unlink(path);
}

/* Each process leaves its outcome in a file. argv: the command, the program, "--part", the part's
 * name, "mpi", the number of processes, the folder, and the devices of each process. */
static void run_with(const char *mpirun, struct ck_outcome *outcomes, const char *part,
                     const size_t *devices, size_t count) {
  char folder[CK_FOLDER_SIZE], numbers[1 + CK_PROCESSES][TEXT], path[4096] = "";
  char *words = strdup(mpirun), *rest = NULL, *argv[64];
  size_t used = 0;
  pid_t pid = 0;
  int ended = 0;
  ck_folder_make(folder);
  ck_assert_int_gt(readlink("/proc/self/exe", path, sizeof path - 1), 0);
  for (char *word = strtok_r(words, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
    ck_assert_uint_lt(used, 40);
    argv[used++] = word;
  }
  (void)snprintf(numbers[0], TEXT, "%zu", count);
  char *const fixed[] = {
      (char *)(uintptr_t) "-n", numbers[0], path, (char *)(uintptr_t) "--part",
      (char *)(uintptr_t)part, (char *)(uintptr_t) "mpi", numbers[0], folder};
  for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++) argv[used++] = fixed[i];
  for (size_t i = 0; i < count; i++) {
    (void)snprintf(numbers[1 + i], TEXT, "%zu", devices[i]);
    argv[used++] = numbers[1 + i];
  }
  argv[used] = NULL;
  ck_assert_int_eq(posix_spawnp(&pid, argv[0], NULL, NULL, argv, environ), 0);
  ck_assert_int_eq(waitpid(pid, &ended, 0), pid);
  for (size_t i = 0; i < count; i++) {
    read_outcome(&outcomes[i], folder, i);
    outcomes[i].exit = ended;
  }
  ck_folder_remove(folder);
  free(words);
}

void ck_processes_run(struct ck_outcome *outcomes, const char *part, const size_t *devices,
                      size_t count) {
  const char *mpirun = getenv("EVENKEEL_TEST_MPIRUN");
  struct child children[CK_PROCESSES] = {{0}};
  int sockets[CK_PROCESSES][CK_PROCESSES];
  ck_assert_uint_le(count, CK_PROCESSES);
  memset(outcomes, 0, count * sizeof *outcomes);
  if (mpirun != NULL) {
    run_with(mpirun, outcomes, part, devices, count);
    return;
  }
  memset(sockets, -1, sizeof sockets);
  for (size_t i = 0; i < count; i++) {
    for (size_t k = i + 1; k < count; k++) {
      int pair[2];
      ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
      sockets[i][k] = pair[0];
      sockets[k][i] = pair[1];
    }
  }
  for (size_t i = 0; i < count; i++) start(&children[i], part, devices, count, i, sockets[i]);
  for (size_t i = 0; i < count * count; i++) {
    if (sockets[i / count][i % count] >= 0) (void)close(sockets[i / count][i % count]);
  }
  collect(children, outcomes, count);
  for (size_t i = 0; i < count; i++) {
    if (children[i].pipe >= 0) (void)close(children[i].pipe);
    if (children[i].pipe >= 0) (void)kill(children[i].pid, SIGKILL);
    outcomes[i].whole = children[i].got == sizeof outcomes[i];
    ck_assert_int_eq(waitpid(children[i].pid, &outcomes[i].exit, 0), children[i].pid);
  }
}

struct ck_outcome *ck_processes_outcomes(const char *part, const size_t *devices, size_t count) {
  struct ck_outcome *outcomes = ck_array(CK_PROCESSES + 1, sizeof *outcomes);
  ck_processes_run(outcomes, part, devices, count);
  return outcomes;
}

struct ck_outcome *ck_processes_done(const char *part, const size_t *devices, size_t count) {
  struct ck_outcome *outcomes = ck_processes_outcomes(part, devices, count);
  ck_processes_well(outcomes, count);
  return outcomes;
}

struct ck_outcome *ck_processes_alone(const char *part,
                                      void (*run)(struct ck_outcome *, const struct ck_process *),
                                      size_t devices) {
  struct ck_outcome *outcome = ck_array(1, sizeof *outcome);
  const struct ck_process alone = ck_process_alone(part, devices);
  run(outcome, &alone);
  ck_assert_msg(outcome->status == EK_OK, "%s", outcome->message);
  return outcome;
}

void ck_processes_well(const struct ck_outcome *outcomes, size_t count) {
  for (size_t i = 0; i < count; i++) {
    ck_assert_msg(outcomes[i].whole && outcomes[i].exit == 0, "process %zu ended with %d", i,
                  outcomes[i].exit);
    ck_assert_msg(outcomes[i].status == EK_OK, "process %zu: %s", i, outcomes[i].message);
  }
}

/* ---- the child ---- */

static bool write_all(int file, const void *from, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t wrote = write(file, (const char *)from + done, bytes - done);
    if (wrote < 0 && errno != EINTR) return false;
    if (wrote > 0) done += (size_t)wrote;
  }
  return true;
}

/* Sockets of other processes stay open in this one unless it closes them: a process that dies
 * would not be seen to. */
static void close_others(const struct ck_process *process, int file) {
  for (int i = 3; i < 256; i++) {
    bool own = i == file;
    for (size_t k = 0; k < process->count; k++) own = own || process->sockets[k] == i;
    if (!own) (void)close(i);
  }
}

/* Runs the part and writes its outcome; the exit code. */
static int run_part(struct ck_process *process, const struct ck_part *parts, int file) {
  struct ck_outcome *outcome = calloc(1, sizeof *outcome);
  for (size_t i = 0; i < process->count; i++) {
    if (i < process->number) process->first_rank += process->devices[i];
    process->world += process->devices[i];
  }
  while (parts->name != NULL && strcmp(parts->name, process->part) != 0) parts++;
  if (outcome == NULL || parts->run == NULL || file < 0) return 2;
  const double begin = ck_now();
  parts->run(outcome, process);
  ek_world_free(shared_world);
  ek_world_free(process->mpi);
  outcome->seconds = ck_now() - begin;
  const bool wrote = write_all(file, outcome, sizeof *outcome);
  free(outcome);
  return close(file) == 0 && wrote ? 0 : 3;
}

/* A process that mpirun has started. */
static int run_mpi_part(char **argv, const struct ck_part *parts) {
  struct ck_process process = {.part = argv[2], .count = strtoul(argv[4], NULL, 10)};
  char path[PATH_SIZE];
  CK_WITH(ek_world_options, options, EK_WORLD_OPTIONS_INIT, .source = "mpi");
  if (ek_world_open(&process.mpi, &options) != EK_OK) {
    (void)fprintf(stderr, "%s\n", ek_error_message());
    return 2;
  }
  process.number = ek_world_process(process.mpi);
  if (ek_world_processes(process.mpi) != process.count) return 2;
  for (size_t i = 0; i < process.count; i++) process.devices[i] = strtoul(argv[6 + i], NULL, 10);
  outcome_path(path, argv[5], process.number);
  return run_part(&process, parts, open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
}

static int run_spawned(char **argv, const struct ck_part *parts) {
  struct ck_process process = {
      .part = argv[2], .number = strtoul(argv[3], NULL, 10), .count = strtoul(argv[4], NULL, 10)};
  const int file = atoi(argv[5]);
  for (size_t i = 0; i < process.count; i++) {
    process.devices[i] = strtoul(argv[6 + 2 * i], NULL, 10);
    process.sockets[i] = atoi(argv[7 + 2 * i]);
  }
  close_others(&process, file);
  return run_part(&process, parts, file);
}

int ck_parts_main(int argc, char **argv, const struct ck_part *parts, const char *name,
                  void (*set_up)(void), void (*tear_down)(void)) {
  if (argc > 6 && strcmp(argv[1], "--part") == 0) {
    return strcmp(argv[3], "mpi") == 0 ? run_mpi_part(argv, parts) : run_spawned(argv, parts);
  }
  return ck_run(ck_suite(name, set_up, tear_down));
}
