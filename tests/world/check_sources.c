/*
 * check_sources.c - what a world is opened from: variables of launchers that agree, contradict each
 * other or are wrong, and worlds of several processes, of which one ends.
 */
#define _GNU_SOURCE /* setenv(), kill() beside C11 */
#include <signal.h>
#include <unistd.h>

#include "ck_folder.h"
#include "ck_processes.h"

static const char *const variables[] = {
    "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NODELIST",
    "SLURM_JOB_NODELIST", "SLURM_JOB_ID", "SLURM_STEP_ID", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
    "EVENKEEL_WORLD_FILE", "EVENKEEL_WORLD_PROCESS", "EVENKEEL_WORLD_PROCESSES",
    "EVENKEEL_WORLD_ADDRESS", "EVENKEEL_WORLD_PORT", "EVENKEEL_WORLD_TOKEN"};

/* "A=1 B=2": these variables and no other one of launchers. */
static void set_environment(const char *words) {
  char copy[512], *rest = copy;
  (void)snprintf(copy, sizeof copy, "%s", words);
  for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) (void)unsetenv(variables[i]);
  for (char *word = strtok_r(copy, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
    char *value = strchr(word, '=');
    *value = '\0';
    (void)setenv(word, value + 1, 1);
  }
}

/* ---- the environment ---- */

#define SLURM(n) "SLURM_PROCID=0 SLURM_NTASKS=" #n " SLURM_JOB_NODELIST=n[1-2] SLURM_JOB_ID=7 "
#define TORCH(n) "RANK=0 WORLD_SIZE=" #n " MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 "
#define ELASTIC "TORCHELASTIC_RUN_ID=none "
#define NAMED(n)                                                                                   \
  "EVENKEEL_WORLD_FILE=sources.world EVENKEEL_WORLD_PROCESS=0 EVENKEEL_WORLD_PROCESSES=" #n " "
#define WRONG EK_ERR_INVALID_ARGUMENT

static const struct {
  const char *environment, *source;
  ek_status status;  /* EK_OK: a world of one process */
  const char *words; /* of the message, or the source of the world */
} cases[] = {
    {"", NULL, EK_OK, "none"},
    {"", "none", EK_OK, "none"},
    {TORCH(8) SLURM(4), "none", EK_OK, "none"},
    {TORCH(1), NULL, EK_OK, "torchrun"},
    {SLURM(1), NULL, EK_OK, "slurm"},
    {NAMED(1), NULL, EK_OK, "file"},
    {TORCH(1), "slurm", EK_ERR_UNAVAILABLE, "no variables of \"slurm\""},
    {"", "lam", WRONG, "unknown source \"lam\"; expected auto, mpi, torchrun, slurm, file, none"},
    {"WORLD_SIZE=1", NULL, EK_OK, "none"}, /* of some other program */
    {"RANK=0", NULL, EK_OK, "none"},
    {"WORLD_SIZE= RANK=", NULL, EK_OK, "none"}, /* empty is not set */
    /* incomplete or wrong */
    {"WORLD_SIZE=2", NULL, WRONG, "WORLD_SIZE is 2 and RANK is not set"},
    {"RANK=0 WORLD_SIZE=2", NULL, WRONG, "MASTER_ADDR is not set"},
    {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1", NULL, WRONG, "MASTER_PORT is not set"},
    {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=65536", NULL, WRONG, "from 1 to 65535"},
    {"RANK=2 WORLD_SIZE=2", NULL, WRONG, "RANK is \"2\"; expected a number from 0 to 1"},
    {"RANK=-1 WORLD_SIZE=2", NULL, WRONG, "RANK is \"-1\""},
    {"RANK=0 WORLD_SIZE=0", NULL, WRONG, "WORLD_SIZE is \"0\""},
    {"RANK=0 WORLD_SIZE=18446744073709551617", NULL, WRONG, "expected a number from 1 to 1048576"},
    {"RANK=0 WORLD_SIZE=2x", NULL, WRONG, "WORLD_SIZE is \"2x\""},
    {TORCH(2) "EVENKEEL_WORLD_PORT=x", NULL, WRONG, "EVENKEEL_WORLD_PORT is \"x\""},
    {"SLURM_PROCID=0 SLURM_NTASKS=2", NULL, WRONG, "SLURM_JOB_NODELIST is set"},
    {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_JOB_NODELIST=n1", NULL, WRONG, "SLURM_JOB_ID is not set"},
    {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_JOB_NODELIST=n[1 SLURM_JOB_ID=1", NULL, WRONG,
     "\"n[1\" is not a Slurm node list"},
    {"EVENKEEL_WORLD_FILE=sources.world", NULL, WRONG, "EVENKEEL_WORLD_PROCESS is set and"},
    {"EVENKEEL_WORLD_FILE=sources.world EVENKEEL_WORLD_PROCESSES=2", NULL, WRONG,
     "EVENKEEL_WORLD_PROCESSES is 2 and EVENKEEL_WORLD_PROCESS is not set"},
    {"OMPI_COMM_WORLD_SIZE=2 PMI_SIZE=2", NULL, WRONG, "both OMPI_COMM_WORLD_SIZE"},
    /* sources that contradict each other */
    {TORCH(4) SLURM(2), NULL, WRONG, "WORLD_SIZE is 4 and SLURM_NTASKS is 2"},
    {TORCH(2) "SLURM_PROCID=1 SLURM_NTASKS=2", NULL, WRONG, "different numbers of this process"},
    {NAMED(2) TORCH(3), NULL, WRONG, "file and torchrun contradict each other"},
    {NAMED(2) "OMPI_COMM_WORLD_SIZE=3", NULL, WRONG, "OMPI_COMM_WORLD_SIZE is 3"},
    {TORCH(2) "PMI_SIZE=3", NULL, WRONG, "mpi and torchrun contradict each other: PMI_SIZE is 3"},
    /* several processes of one each */
    {TORCH(1) SLURM(4), NULL, WRONG, "each of 4 processes would train alone"},
    {TORCH(1) ELASTIC SLURM(4), NULL, WRONG, "one torchrun, with --nnodes"},
    {TORCH(1) ELASTIC "OMPI_COMM_WORLD_SIZE=4", NULL, WRONG, "would train alone"},
    {"OMPI_COMM_WORLD_SIZE=1 " SLURM(4), NULL, WRONG, "one \"mpirun -n N PROGRAM\""},
    {"PMI_SIZE=1 " TORCH(4), NULL, WRONG, "each of 4 processes would train alone"},
    {"SLURM_NTASKS=4", NULL, WRONG,
     "srun did not start this program: start it with \"srun PROGRAM\""},
    /* one inside the other: they go on to wait for the others, and none comes */
    {TORCH(4) ELASTIC SLURM(2), NULL, EK_ERR_UNAVAILABLE,
     "have not reached process 0 at 127.0.0.1"},
    {TORCH(4) SLURM(4), NULL, EK_ERR_UNAVAILABLE, "have not reached process 0 at 127.0.0.1"},
    {TORCH(3), NULL, EK_ERR_UNAVAILABLE, "have not reached process 0 at 127.0.0.1:29500: 1, 2"},
    {TORCH(3) "EVENKEEL_WORLD_PORT=29501", NULL, EK_ERR_UNAVAILABLE, "127.0.0.1:29501: 1, 2"},
    {TORCH(3) "EVENKEEL_WORLD_ADDRESS=lo", NULL, EK_ERR_UNAVAILABLE, "127.0.0.1:29500: 1, 2"},
    {TORCH(3) "EVENKEEL_WORLD_ADDRESS=nowhere.invalid", NULL, WRONG, "\"nowhere.invalid\" is no"},
    {"RANK=1 WORLD_SIZE=2 MASTER_ADDR=nowhere.invalid MASTER_PORT=1", NULL, EK_ERR_UNAVAILABLE,
     "the address of \"nowhere.invalid\" is not known"},
    {NAMED(2) TORCH(2), NULL, EK_ERR_UNAVAILABLE, "have not reached"},
};

CK_LOOP(the_environment, sizeof cases / sizeof cases[0]) {
  ek_world *world = NULL;
  CK_WITH(ek_world_options, options, EK_WORLD_OPTIONS_INIT, .source = cases[_i].source,
          .open_limit = 0.05);
  set_environment(cases[_i].environment);
  const ek_status status = ek_world_open(&world, &options);
  set_environment("");
  const char *said = status == EK_OK ? ek_world_source(world) : ek_error_message();
  ck_assert_msg(status == cases[_i].status && strstr(said, cases[_i].words) != NULL,
                "%s: %s: %s, expected \"%s\"", cases[_i].environment, ek_status_name(status), said,
                cases[_i].words);
  ck_assert(status == EK_OK || world == NULL);
  ck_assert_uint_eq(ek_world_processes(world), 1);
  ek_world_free(world);
}

CK_TEST(options) {
  ek_world *world = NULL;
  ek_world_options o = EK_WORLD_OPTIONS_INIT;
  ek_world_gather gather = EK_WORLD_GATHER_INIT;
  set_environment("");
  ck_invalid(ek_world_open(NULL, NULL), "world is NULL");
  ck_bad(o, open_limit, -1, ek_world_open(&world, &o), "options.open_limit is -1");
  ck_bad(o, time_limit, -1, ek_world_open(&world, &o), "options.time_limit is -1");
  o = (ek_world_options)EK_WORLD_OPTIONS_INIT;
  ck_invalid(ek_world_open_gather(&world, NULL, NULL), "gather is NULL");
  gather.processes = 2;
  ck_invalid(ek_world_open_gather(&world, &gather, NULL), "gather.gather is NULL");
  gather.process = 2;
  ck_invalid(ek_world_open_gather(&world, &gather, NULL), "process is 2 and processes is 2");
  gather.process = gather.processes = 0;
  ck_invalid(ek_world_open_gather(&world, &gather, NULL), "processes is 0");
  o.source = "slurm";
  ck_invalid(ek_world_open_gather(&world, &gather, &o), "options.source is \"slurm\"");
  ck_assert_ptr_null(world);
  gather = (ek_world_gather)EK_WORLD_GATHER_INIT;
  ck_ok(ek_world_open_gather(&world, &gather, NULL)); /* one process needs no function */
  ck_assert_str_eq(ek_world_source(world), "gather");
  ek_world_free(world);
}

/* ---- several processes ---- */

static void set_up(void) {
  ck_assert_int_eq(setenv("CHECK_SOURCES_FILE", ck_file(ck_folder(), "world"), 1), 0);
}

static void the_file_is_gone(void) {
  ck_assert_int_ne(access(getenv("CHECK_SOURCES_FILE"), F_OK), 0);
}

static ek_status open_group(ek_group **group, ek_world *world) {
  CK_WITH(ek_group_options, options, EK_GROUP_OPTIONS_INIT, .threads_per_device = 1,
          .world = world);
  return ek_group_open(group, "cpu:1", &options);
}

static void check_place(struct ck_outcome *outcome, const struct ck_process *process,
                        const ek_world *world) {
  ck_outcome_add(outcome, ek_world_process(world) == process->number);
  ck_outcome_add(outcome, ek_world_processes(world) == process->count);
  ck_outcome_add(outcome, ek_world_pid(world, process->number) == (int64_t)getpid());
}

/* The environment that a launcher gives process number and count, in `words`. */
static void launched(struct ck_outcome *outcome, const struct ck_process *process,
                     const char *words) {
  ek_world *world = NULL;
  ek_group *group = NULL;
  CK_WITH(ek_world_options, options, EK_WORLD_OPTIONS_INIT, .open_limit = 40);
  set_environment(words);
  ek_status status = ek_world_open(&world, &options);
  if (status == EK_OK) status = open_group(&group, world);
  if (status == EK_OK) check_place(outcome, process, world);
  ck_went(outcome, status);
  ek_group_free(group);
  ek_world_free(world);
}

static void by_torchrun(struct ck_outcome *outcome, const struct ck_process *process) {
  launched(outcome, process,
           ck_text("RANK=%zu WORLD_SIZE=%zu MASTER_ADDR=127.0.0.1 MASTER_PORT=29567 "
                   "TORCHELASTIC_RUN_ID=%ld TORCHELASTIC_USE_AGENT_STORE=True",
                   process->number, process->count, (long)getppid()));
}

static void by_slurm(struct ck_outcome *outcome, const struct ck_process *process) {
  launched(outcome, process,
           ck_text("SLURM_PROCID=%zu SLURM_NTASKS=%zu SLURM_JOB_ID=%ld SLURM_STEP_ID=0 "
                   "SLURM_STEP_NODELIST=localhost,n[2-7]",
                   process->number, process->count, (long)getppid()));
}

static const char *file_words(const struct ck_process *process) {
  return ck_text("EVENKEEL_WORLD_FILE=%s EVENKEEL_WORLD_PROCESS=%zu EVENKEEL_WORLD_PROCESSES=%zu "
                 "EVENKEEL_WORLD_TOKEN=secret",
                 getenv("CHECK_SOURCES_FILE"), process->number, process->count);
}

static void by_file(struct ck_outcome *outcome, const struct ck_process *process) {
  launched(outcome, process, file_words(process));
}

/* Process 1 is killed, and the others come to open a group. */
static void one_is_killed(struct ck_outcome *outcome, const struct ck_process *process) {
  ek_world *world = NULL;
  ek_group *group = NULL;
  CK_WITH(ek_world_options, options, EK_WORLD_OPTIONS_INIT, .open_limit = 40);
  set_environment(file_words(process));
  ck_went(outcome, ek_world_open(&world, &options));
  if (outcome->status != EK_OK) return;
  if (process->number == 1) (void)raise(SIGKILL);
  ck_went(outcome, open_group(&group, world));
  ek_group_free(group);
  ek_world_free(world);
}

static const struct ck_part parts[] = {
    {"torchrun", by_torchrun}, {"slurm", by_slurm}, {"file", by_file}, {"killed", one_is_killed},
    {NULL, NULL}};

CK_LOOP(processes_of_a_launcher_become_a_world, 3) {
  const size_t devices[] = {1, 1, 1};
  const struct ck_outcome *outcomes = ck_processes_done(parts[_i].name, devices, 3);
  for (size_t p = 0; p < 3; p++) {
    ck_assert_uint_eq(outcomes[p].count, 3);
    for (size_t i = 0; i < 3; i++) ck_assert_double_eq(outcomes[p].numbers[i], 1);
  }
}

CK_TEST(a_process_that_is_killed_is_named) {
  static struct ck_outcome outcomes[CK_PROCESSES];
  ck_processes_run(outcomes, "killed", (const size_t[]){1, 1, 1}, 3);
  for (size_t p = 0; p < 3; p += 2) {
    ck_assert_msg(outcomes[p].whole && outcomes[p].status == EK_ERR_UNAVAILABLE, "process %zu: %s",
                  p, outcomes[p].message);
    ck_assert_ptr_nonnull(strstr(outcomes[p].message, "process 1 on "));
    ck_assert_double_lt(outcomes[p].seconds, 5);
  }
}

CK_PARTS_SUITE_WITH("sources", parts, set_up, the_file_is_gone)
