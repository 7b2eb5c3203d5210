/*
 * world.h - the processes that train together, on one machine or on several.
 *
 * A world is opened once in each of its processes, all at the same time. Groups that are opened
 * with it (ek_group_options.world) are parts of one group that spans all processes: their devices
 * have ranks that follow each other, process by process.
 *
 * Each process gives the rows of a batch that it has, which may be none. All processes make the
 * same calls in the same order. A call that fails in one process fails in all of them, with the
 * same status and a message that names the process and its host, and changes nothing. After a
 * process has died, or has not come within the time limit, every call that needs the others fails.
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
 * Closes the connections, in each process for itself. EK_ERR_STATE while a group of the world is
 * open; then nothing is closed. ek_world_free() closes without a status. NULL is nothing.
 */
EK_API EK_CHECKED ek_status ek_world_close(ek_world *world);
EK_API void ek_world_free(ek_world *world);

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
 * data of collectives alone, without headers. */
EK_API uint64_t ek_world_sent(const ek_world *world);
EK_API uint64_t ek_world_received(const ek_world *world);

EK_END_DECLARATIONS

#endif /* EVENKEEL_WORLD_H */
