/*
 * world.h - the processes that train together, on one machine or on several.
 *
 * A world is opened once in each of its processes, all at the same time. Groups that are opened
 * with it (ek_group_options.world) make up one group that spans all processes: their devices have
 * ranks that follow each other, process by process.
 *
 * Each process gives the rows of a batch that it has, which may be none. All processes make the
 * same calls in the same order. A call that fails in one process fails in all of them, with the
 * same status and a message that names the process and its host, and changes nothing. After a
 * process has died, or has not arrived within the time limit, every call that needs the others
 * fails.
 *
 * A program that opens no world opens no connection.
 */
#ifndef EVENKEEL_WORLD_H
#define EVENKEEL_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <evenkeel/status.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_world ek_world;

/*
 * From where a process takes its number, the number of processes, and a way to reach the others:
 *
 *   "auto"      one of the following four, by the environment. A program that none of them started
 *               is a world of one process. Sources that contradict each other are refused, and so
 *               is a launcher that started several programs of one process each.
 *   "mpi"       mpirun of Open MPI or MPICH: MPI, by the module libevenkeel_mpi, which initialises
 *               and ends MPI if the program does not
 *   "torchrun"  RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
 *   "slurm"     SLURM_PROCID, SLURM_NTASKS, SLURM_STEP_NODELIST or SLURM_JOB_NODELIST, SLURM_JOB_ID
 *   "file"      EVENKEEL_WORLD_FILE: a path on a file system that all processes share;
 *               EVENKEEL_WORLD_PROCESS, EVENKEEL_WORLD_PROCESSES
 *   "none"      one process, whatever the environment says
 *
 * device.h explains all variables. docs/several-processes.md has a script for each launcher.
 */
typedef struct ek_world_options {
  size_t size;        /* sizeof(ek_world_options) */
  const char *source; /* NULL: "auto" */
  const char *address; /* at which the others reach this process: a name, an address or a network
                          interface; NULL: EVENKEEL_WORLD_ADDRESS or, without it, the address from
                          which this process reaches the first one */
  double open_limit;  /* seconds until all processes have arrived; 0: 120 */
  double time_limit;  /* seconds that one wait for another process may take; 0: 600 */
} ek_world_options;
#define EK_WORLD_OPTIONS_INIT                                                                      \
  {                                                                                                \
    .size = sizeof(ek_world_options), .source = NULL, .address = NULL, .open_limit = 0,            \
    .time_limit = 0                                                                                \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_world_options_init(ek_world_options *options, size_t size);

/*
 * Opens the world that started the program. `options` may be NULL. EK_ERR_UNAVAILABLE if some
 * processes did not arrive within the limit (the message names them), or if a module is not
 * installed; EK_ERR_INVALID_ARGUMENT if the environment is incomplete or contradicts itself.
 */
EK_API EK_CHECKED ek_status ek_world_open(ek_world **world, const ek_world_options *options);

/*
 * A way of the program's own to find the other processes. `gather` is called while the world opens,
 * in all processes alike: it gets `bytes` bytes of this process and fills `all` with those of all
 * processes, in the order of their numbers. It is not called after ek_world_open_gather() has
 * returned. Bytes of training go over sockets that are opened with what was gathered.
 */
typedef struct ek_world_gather {
  size_t size;      /* sizeof(ek_world_gather) */
  size_t process;   /* number of this one */
  size_t processes; /* how many there are */
  ek_status (*gather)(void *context, const void *mine, size_t bytes, void *all);
  void *context; /* of `gather` */
} ek_world_gather;
#define EK_WORLD_GATHER_INIT                                                                       \
  {                                                                                                \
    .size = sizeof(ek_world_gather), .process = 0, .processes = 1, .gather = NULL, .context = NULL \
  }
EK_API EK_CHECKED ek_status ek_world_gather_init(ek_world_gather *gather, size_t size);

/* Opens a world by the program's function; options.source must be NULL. Errors: as ek_world_open(),
 * and what `gather` returns. */
EK_API EK_CHECKED ek_status ek_world_open_gather(ek_world **world, const ek_world_gather *gather,
                                                 const ek_world_options *options);

/*
 * Opens a world from an MPI communicator of the program's; use ek_world_open_mpi() of
 * <evenkeel/mpi.h>, which calls this one. `mpi` is "openmpi" or "mpich"; `communicator` points to
 * an MPI_Comm of `bytes` bytes.
 */
EK_API EK_CHECKED ek_status ek_world_open_communicator(ek_world **world, const char *mpi,
                                                       const void *communicator, size_t bytes,
                                                       const ek_world_options *options);

/*
 * Closes the connections, in each process for itself. EK_ERR_STATE while a group of the world is
 * open; then nothing is closed. NULL is legal.
 */
EK_API EK_CHECKED ek_status ek_world_close(ek_world *world);
EK_API void ek_world_free(ek_world *world); /* the same, as a free: status.h */

/* This process's number, and how many there are. NULL: 0 of 1. */
EK_API size_t ek_world_process(const ek_world *world);
EK_API size_t ek_world_processes(const ek_world *world);
/* The host and the process number (pid) of a process, as it gave them; "" and 0 for a process that
 * is not in the world. The text belongs to the world. */
EK_API const char *ek_world_host(const ek_world *world, size_t process);
EK_API int64_t ek_world_pid(const ek_world *world, size_t process);
/* What the world was opened from and what carries its bytes, such as "torchrun, sockets". */
EK_API const char *ek_world_source(const ek_world *world);

/*
 * Stopping together. ek_world_request_stop() may be called in any process and at any time, also
 * from a signal handler. ek_world_stop_requested() is true in all processes after the same call of
 * a training step, an evaluation or another call that all processes make: the first that began in
 * all of them after the request. NULL: false.
 */
EK_API void ek_world_request_stop(ek_world *world);
EK_API bool ek_world_stop_requested(const ek_world *world);

/* Bytes that this process has sent to others since the world was opened, and received from them:
 * data of collectives and of states that are saved, without headers. */
EK_API uint64_t ek_world_sent(const ek_world *world);
EK_API uint64_t ek_world_received(const ek_world *world);

/*
 * Seconds that the busiest device of a process has been at work in a group of the world, without
 * waiting for other devices: as of the last call that all processes made, such as a step. The
 * difference between two steps shows which process the others wait for. 0 for a process that is not
 * in the world, and in a world of one process. For devices that queue their work (cuda) it is the
 * time of the host.
 */
EK_API double ek_world_busy(const ek_world *world, size_t process);

EK_END_DECLARATIONS

#endif /* EVENKEEL_WORLD_H */
