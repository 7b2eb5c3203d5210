/*
 * ck_processes.h - a test program that runs parts of itself in processes of their own.
 *
 * A part is started by exec, so that threads and sanitizers find a fresh process, and has a socket
 * to each other one. It never asserts: it fills an outcome, which the test that started it gets.
 *
 *     static void train(struct ck_outcome *outcome, const struct ck_process *process) { ... }
 *     static const struct ck_part parts[] = {{"train", train}, {NULL, NULL}};
 *     ...
 *       ck_processes_run(outcomes, "train", (const size_t[]){1, 2}, 2);
 *     ...
 *     CK_PARTS_SUITE("name", parts)           main()
 */
#ifndef CK_PROCESSES_H
#define CK_PROCESSES_H

#include "ek_check.h"

enum { CK_PROCESSES = 4, CK_OUTCOME_NUMBERS = 4096 };

struct ck_process {
  const char *part;             /* what is run */
  size_t number, count;         /* of processes */
  size_t devices[CK_PROCESSES]; /* of each of them */
  size_t first_rank, world;
  int sockets[CK_PROCESSES]; /* to each of the others; -1 to itself */
  ek_world *mpi;             /* of all processes, instead of sockets: mpirun has started them */
};

struct ck_outcome {
  ek_status status;
  char message[1024];
  double seconds;
  size_t count;
  double numbers[CK_OUTCOME_NUMBERS];
  bool whole; /* it came back; set by the test that started it */
  int exit;   /* as waitpid() gives it; likewise */
};

struct ck_part {
  const char *name; /* in the last row NULL: all other parts, if `run` is one */
  void (*run)(struct ck_outcome *outcome, const struct ck_process *process);
};

/* Adds a number to an outcome; those that have no room are an error of the part. */
void ck_outcome_add(struct ck_outcome *outcome, double number);

/* Keeps the first failure of a part; whether the call went well. */
bool ck_went(struct ck_outcome *outcome, ek_status status);

/* The only process of a world, for the same function in the test itself. */
struct ck_process ck_process_alone(const char *part, size_t devices);

/* Sends some bytes to all others and gets theirs; `all` has room for those of all processes. */
ek_status ck_process_gather(const struct ck_process *process, const void *mine, size_t bytes,
                            void *all);

/* A world that the processes find over the sockets. time_limit 0: the library's own. */
ek_status ck_process_world(ek_world **world, const struct ck_process *process, double time_limit);

/* "cpu:N", or GPUs 0 to N - 1 of each process if EVENKEEL_TEST_PROCESSES is "cuda", in a world that
 * is opened with the first group, with this time limit, and freed when the part ends. */
ek_status ck_process_open(ek_group **group, const struct ck_process *process, double time_limit);

/* Declares such a group in a part, which ends here where it cannot be opened. The group is closed
 * at the end of the block, and a failure of that is the part's, too. */
#define CK_PROCESS_GROUP(name, outcome, process, time_limit)                                       \
  __attribute__((cleanup(ck_process_close))) struct ck_process_group of_part = {outcome, NULL};    \
  if (!ck_went(outcome, ck_process_open(&of_part.group, process, time_limit))) return;             \
  ek_group *const name = of_part.group
struct ck_process_group {
  struct ck_outcome *outcome;
  ek_group *group;
};
void ck_process_close(struct ck_process_group *group);

/* The same, of a group that is not deterministic: sums go inside a process first. */
ek_status ck_process_open_folding(ek_group **group, const struct ck_process *process,
                                  double time_limit);
/* That world; NULL for a process alone. */
ek_world *ck_process_opened(const struct ck_process *process);

/*
 * Runs a part in `count` processes at the same time and waits for all of them, a minute at most.
 * EVENKEEL_TEST_MPIRUN, a command with its arguments apart from the number of processes, starts
 * them: their world is that of "mpi", and there are no sockets.
 */
void ck_processes_run(struct ck_outcome *outcomes, const char *part, const size_t *devices,
                      size_t count);

/* The same with outcomes for CK_PROCESSES, and one more for a process alone, which are kept. */
struct ck_outcome *ck_processes_outcomes(const char *part, const size_t *devices, size_t count);

/* The same, and all of them came back well. */
struct ck_outcome *ck_processes_done(const char *part, const size_t *devices, size_t count);

/* What a part gives in the test itself, as the only process of a world. It goes well. */
struct ck_outcome *ck_processes_alone(const char *part,
                                      void (*run)(struct ck_outcome *, const struct ck_process *),
                                      size_t devices);

/* All of them came back without an error of their own or of a sanitizer. */
void ck_processes_well(const struct ck_outcome *outcomes, size_t count);

/* As CK_SUITE() and CK_SUITE_WITH(). */
#define CK_PARTS_SUITE(name, parts) CK_PARTS_SUITE_WITH(name, parts, NULL, NULL)
#define CK_PARTS_SUITE_WITH(name, parts, set_up, tear_down)                                        \
  int main(int argc, char **argv) {                                                                \
    return ck_parts_main(argc, argv, parts, name, set_up, tear_down);                              \
  }
int ck_parts_main(int argc, char **argv, const struct ck_part *parts, const char *name,
                  void (*set_up)(void), void (*tear_down)(void));

#endif /* CK_PROCESSES_H */
