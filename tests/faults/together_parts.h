/*
 * together_parts.h - what check_together.c runs in processes of their own: trainings that save and
 * load with faults, by a job that the test gives them.
 */
#ifndef TOGETHER_PARTS_H
#define TOGETHER_PARTS_H

#include "ck_folder.h"
#include "ck_processes.h"
#include "ck_training.h"
#include "file_calls.h"

enum { ROWS = 8, GRAINS = 4 };
/* As numbers of workloads: large enough for several pieces in each process, and for writes past the
 * page cache; and 48 MB of state. */
enum { LARGE = CK_WORKLOADS, WIDE };
enum { MEMORY = FILE_FAULTS }; /* as a fault: a request for host memory or a thread */

/* What a test asks of the processes that it starts: by the environment, which they inherit. */
struct job {
  const char *folder; /* of all; with `disks` the one that has theirs, */
  const char *disks;  /* and here is the name of each process's, a letter; or NULL */
  int workload, mode, background, fault, victim, call;
};
extern struct job job;
void give_job(void);

/* The folder of a process; a static array. */
const char *disk_of(size_t process);

/* A process's training of the job's workload. */
struct side {
  const struct ck_process *process;
  struct ck_outcome *outcome;
  struct ck_setup setup;
  struct ck_training training;
  ek_group *group;
};
bool open_side(struct side *side, struct ck_outcome *outcome, const struct ck_process *process,
               int mode);
void close_side(struct side *side);
ek_status step(struct side *side);
/* Of all entries of the state; 52 bits, for a double. */
double hash_state(struct side *side);

/* The parts; those that a test runs itself, too, and all. */
void save_once(struct ck_outcome *outcome, const struct ck_process *process);
void load_once(struct ck_outcome *outcome, const struct ck_process *process);
void go_on(struct ck_outcome *outcome, const struct ck_process *process);
extern const struct ck_part together_parts[];

#endif /* TOGETHER_PARTS_H */
