/*
 * environment.c - what the environment says of what started this process.
 *
 * One source says both number and count. Which one it is if there are several:
 *
 *   - A file is named by the user, and comes first; the others must not contradict it.
 *   - torchrun and mpirun start processes inside an allocation of Slurm, whose variables they pass
 *     on, and torchrun may be started by mpirun: the inner one counts. But if it says that there is
 *     one process and the outer one started several, each of these would train alone.
 *   - RANK and WORLD_SIZE without torchrun are set by hand, or by an operator of Kubernetes: what
 *     else there is must say the same.
 */
#include "world/environment.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "world/address.h"
#include "world/mpi_loader.h"

enum { MOST_PROCESSES = 1 << 20 };

/* An empty value counts as not set. */
static const char *value_of(const char *value) {
  return value == NULL || *value == '\0' ? NULL : value;
}

const char *ek__started_address(void) { return value_of(getenv("EVENKEEL_WORLD_ADDRESS")); }
const char *ek__started_file(void) { return value_of(getenv("EVENKEEL_WORLD_FILE")); }
const char *ek__started_token(void) { return value_of(getenv("EVENKEEL_WORLD_TOKEN")); }

/* A number of digits from `least` to `most`. */
static ek_status read_number(size_t *number, const char *name, const char *value, size_t least,
                             size_t most) {
  size_t read = 0;
  bool good = *value != '\0';
  for (const char *at = value; *at != '\0' && good; at++) {
    good = *at >= '0' && *at <= '9' && read <= most;
    if (good) read = read * 10 + (size_t)(*at - '0');
  }
  EK__FAIL_IF(!good || read < least || read > most, EK_ERR_INVALID_ARGUMENT,
              "world: %s is \"%.40s\"; expected a number from %zu to %zu", name, value, least,
              most);
  *number = read;
  return EK_OK;
}

/* Number and count of a source that has two variables. */
static ek_status read_pair(struct ek__started *started, const char *number_name, const char *number,
                           const char *count) {
  EK__FAIL_IF(count == NULL, EK_ERR_INVALID_ARGUMENT,
              "world: %s is set and %s is not; set both or none", number_name, started->count_name);
  EK_TRY(read_number(&started->processes, started->count_name, count, 1, MOST_PROCESSES));
  EK__FAIL_IF(number == NULL, EK_ERR_INVALID_ARGUMENT,
              "world: %s is %zu and %s is not set; set both or none", started->count_name,
              started->processes, number_name);
  return read_number(&started->process, number_name, number, 0, started->processes - 1);
}

/* ---- the sources: *has, whether the environment has them ---- */

static ek_status read_file(struct ek__started *started, bool *has) {
  const char *process = value_of(getenv("EVENKEEL_WORLD_PROCESS"));
  const char *processes = value_of(getenv("EVENKEEL_WORLD_PROCESSES"));
  *has = ek__started_file() != NULL;
  if (!*has) return EK_OK;
  started->count_name = "EVENKEEL_WORLD_PROCESSES";
  return read_pair(started, "EVENKEEL_WORLD_PROCESS", process, processes);
}

static ek_status read_torchrun(struct ek__started *started, bool *has) {
  const char *process = value_of(getenv("RANK")), *processes = value_of(getenv("WORLD_SIZE"));
  /* One of them alone, other than a count of several, is some other program's. */
  *has = processes != NULL && (process != NULL || strcmp(processes, "1") != 0);
  if (!*has) return EK_OK;
  started->count_name = "WORLD_SIZE";
  return read_pair(started, "RANK", process, processes);
}

static ek_status read_slurm(struct ek__started *started, bool *has) {
  const char *process = value_of(getenv("SLURM_PROCID"));
  const char *processes = value_of(getenv("SLURM_NTASKS"));
  *has = processes != NULL && (process != NULL || strcmp(processes, "1") != 0);
  if (!*has) return EK_OK;
  started->count_name = "SLURM_NTASKS";
  EK__FAIL_IF(process == NULL, EK_ERR_INVALID_ARGUMENT,
              "world: the job of Slurm has %.40s tasks, and srun did not start this program: start "
              "it with \"srun PROGRAM\", or open the world \"none\" for a single process",
              processes);
  return read_pair(started, "SLURM_PROCID", process, processes);
}

static ek_status read_mpi(struct ek__started *started, bool *has) {
  const char *mpi = NULL;
  EK_TRY(ek__mpi_started(&mpi, &started->processes));
  *has = mpi != NULL;
  started->count_name = *has && strcmp(mpi, "mpich") == 0 ? "PMI_SIZE" : "OMPI_COMM_WORLD_SIZE";
  started->process = SIZE_MAX;
  return EK_OK;
}

enum { BY_FILE, BY_MPI, BY_TORCHRUN, BY_SLURM, SOURCES };
static const struct {
  const char *name;
  ek_status (*read)(struct ek__started *started, bool *has);
} sources[SOURCES] = {[BY_FILE] = {"file", read_file},
                      [BY_MPI] = {"mpi", read_mpi},
                      [BY_TORCHRUN] = {"torchrun", read_torchrun},
                      [BY_SLURM] = {"slurm", read_slurm}};

/* ---- which one ---- */

/* Of two sources: whether the first one starts its processes inside those of the other one. */
static bool is_inside(int inner, int outer) {
  const bool elastic = value_of(getenv("TORCHELASTIC_RUN_ID")) != NULL;
  if (inner == BY_TORCHRUN && elastic) return outer == BY_MPI || outer == BY_SLURM;
  return inner == BY_MPI && outer == BY_SLURM;
}

static ek_status compare(const struct ek__started *chosen, const struct ek__started *other,
                         bool inside) {
  const bool alone = chosen->processes == 1 && other->processes > 1;
  if (inside && !alone) return EK_OK;
  EK__FAIL_IF(alone, EK_ERR_INVALID_ARGUMENT,
              "world: %s is 1 and %s is %zu: each of %zu processes would train alone. Start all of "
              "them with %s, or open the world \"%s\" in options.source, or \"none\" for single "
              "processes",
              chosen->count_name, other->count_name, other->processes, other->processes,
              strcmp(chosen->source, "mpi") == 0        ? "one \"mpirun -n N PROGRAM\""
              : strcmp(chosen->source, "torchrun") == 0 ? "one torchrun, with --nnodes and "
                                                          "--nproc-per-node"
                                                        : "one launcher",
              other->source);
  const bool known = chosen->process != SIZE_MAX && other->process != SIZE_MAX;
  EK__FAIL_IF(chosen->processes != other->processes || (known && chosen->process != other->process),
              EK_ERR_INVALID_ARGUMENT,
              "world: %s and %s contradict each other: %s is %zu and %s is %zu%s; unset those of "
              "one, or name the source in options.source",
              chosen->source, other->source, chosen->count_name, chosen->processes,
              other->count_name, other->processes,
              chosen->processes == other->processes ? ", with different numbers of this process"
                                                    : "");
  return EK_OK;
}

static ek_status choose(struct ek__started *started) {
  struct ek__started all[SOURCES];
  bool has[SOURCES] = {false};
  int chosen = -1;
  for (int i = 0; i < SOURCES; i++) {
    all[i] = (struct ek__started){.source = sources[i].name, .processes = 1};
    const ek_status status = sources[i].read(&all[i], &has[i]);
    /* Inside mpirun or torchrun it does not matter what Slurm has not started. */
    if (status != EK_OK && i == BY_SLURM && chosen >= 0) has[i] = false;
    if (status != EK_OK && !(i == BY_SLURM && chosen >= 0)) return status;
    if (has[i] && (chosen < 0 || is_inside(i, chosen))) chosen = i;
  }
  if (chosen < 0) return EK_OK;
  for (int i = 0; i < SOURCES; i++) {
    if (has[i] && i != chosen) EK_TRY(compare(&all[chosen], &all[i], is_inside(chosen, i)));
  }
  *started = all[chosen];
  return EK_OK;
}

ek_status ek__started_by(struct ek__started *started, const char *name) {
  *started = (struct ek__started){.source = "none", .count_name = "none", .processes = 1};
  if (strcmp(name, "none") == 0) return EK_OK;
  if (strcmp(name, "auto") == 0) return choose(started);
  for (int i = 0; i < SOURCES; i++) {
    bool has = false;
    if (strcmp(name, sources[i].name) != 0) continue;
    started->source = sources[i].name;
    EK_TRY(sources[i].read(started, &has));
    EK__FAIL_IF(!has, EK_ERR_UNAVAILABLE, "world: the environment has no variables of \"%s\"",
                name);
    return EK_OK;
  }
  return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                      "world: unknown source \"%.40s\"; expected auto, mpi, torchrun, slurm, file, "
                      "none",
                      name);
}

/* ---- where process 0 is ---- */

static ek_status host_of_torchrun(const char **host, uint16_t *port) {
  const char *given = value_of(getenv("MASTER_PORT"));
  const char *agent = value_of(getenv("TORCHELASTIC_USE_AGENT_STORE"));
  size_t number = 0;
  *host = value_of(getenv("MASTER_ADDR"));
  EK__FAIL_IF(*host == NULL || given == NULL, EK_ERR_INVALID_ARGUMENT,
              "world: %s is not set; torchrun sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
              *host == NULL ? "MASTER_ADDR" : "MASTER_PORT");
  EK_TRY(read_number(&number, "MASTER_PORT", given, 1, 65535));
  /* torchrun itself has the port then. */
  *port = agent != NULL && strcmp(agent, "True") == 0 ? 0 : (uint16_t)number;
  return EK_OK;
}

static ek_status host_of_slurm(const char **host, char room[256]) {
  const char *list = value_of(getenv("SLURM_STEP_NODELIST"));
  if (list == NULL) list = value_of(getenv("SLURM_JOB_NODELIST"));
  EK__FAIL_IF(list == NULL, EK_ERR_INVALID_ARGUMENT,
              "world: neither SLURM_STEP_NODELIST nor SLURM_JOB_NODELIST is set");
  EK__FAIL_IF(value_of(getenv("SLURM_JOB_ID")) == NULL, EK_ERR_INVALID_ARGUMENT,
              "world: SLURM_JOB_ID is not set");
  EK__FAIL_IF(!ek__first_host(room, 256, list), EK_ERR_INVALID_ARGUMENT,
              "world: \"%.100s\" is not a Slurm node list", list);
  *host = room;
  return EK_OK;
}

ek_status ek__started_host(const char **host, char room[256], uint16_t *port,
                           const struct ek__started *started) {
  const char *given = value_of(getenv("EVENKEEL_WORLD_PORT"));
  size_t number = 0;
  *port = 0;
  if (strcmp(started->source, "slurm") == 0) {
    EK_TRY(host_of_slurm(host, room));
  } else {
    EK_TRY(host_of_torchrun(host, port));
  }
  if (given == NULL) return EK_OK;
  EK_TRY(read_number(&number, "EVENKEEL_WORLD_PORT", given, 1, 65535));
  *port = (uint16_t)number;
  return EK_OK;
}

size_t ek__started_job(const char *texts[EK__JOB_TEXTS], const struct ek__started *started) {
  size_t count = 0;
  texts[count++] = ek__started_token();
  if (texts[0] != NULL) return count;
  if (strcmp(started->source, "slurm") == 0) {
    texts[count++] = getenv("SLURM_JOB_ID");
    texts[count++] = getenv("SLURM_STEP_ID");
    texts[count++] = getenv("SLURM_RESTART_COUNT");
  } else {
    texts[count++] = getenv("TORCHELASTIC_RUN_ID");
    texts[count++] = getenv("TORCHELASTIC_RESTART_COUNT");
    texts[count++] = getenv("MASTER_PORT");
  }
  return count;
}
