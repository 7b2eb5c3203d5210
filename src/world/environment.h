/*
 * environment.h - what the environment says of what started this process.
 */
#ifndef EK_ENVIRONMENT_H
#define EK_ENVIRONMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <evenkeel/status.h>

struct ek__started {
  const char *source;     /* "mpi", "torchrun", "slurm", "file" or "none" */
  const char *count_name; /* of the variable that has the number of processes */
  size_t process;         /* SIZE_MAX: only the source itself knows */
  size_t processes;
};

/*
 * `name` is that of a source, or "auto". EK_ERR_INVALID_ARGUMENT: there is no such source, its
 * variables are incomplete or wrong, or two sources contradict each other. EK_ERR_UNAVAILABLE: the
 * environment has nothing of the source.
 */
ek_status ek__started_by(struct ek__started *started, const char *name);

/* Where process 0 of torchrun or Slurm is to be found: texts of the environment, and in `host` room
 * for a name. The port is 0 if it follows from the job's token. */
ek_status ek__started_host(const char **host, char room[256], uint16_t *port,
                           const struct ek__started *started);

/* What all processes of the job have in common, and no other job; `count` texts, some of them may
 * be NULL. With EVENKEEL_WORLD_TOKEN that alone. */
enum { EK__JOB_TEXTS = 5 };
size_t ek__started_job(const char *texts[EK__JOB_TEXTS], const struct ek__started *started);

/* EVENKEEL_WORLD_ADDRESS, EVENKEEL_WORLD_FILE, EVENKEEL_WORLD_TOKEN; NULL: not set. */
const char *ek__started_address(void);
const char *ek__started_file(void);
const char *ek__started_token(void);

#endif /* EK_ENVIRONMENT_H */
