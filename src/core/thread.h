/*
 * thread.h - starts the library's own threads, each with a stack of a stated size.
 *
 * The default would be the soft limit of the process (`ulimit -s`), which may be too small for a
 * kernel, or for the functions of a program's own modules, and is gigabytes elsewhere.
 */
#ifndef EK_THREAD_H
#define EK_THREAD_H

#include <pthread.h>

#include <evenkeel/status.h>

/* A thread that runs functions of the program. */
#define EK__WORKER_STACK ((size_t)8 << 20)
/* A thread that runs kernels alone: ours keep less than 16 KiB in a frame. */
#define EK__HELPER_STACK ((size_t)1 << 20)

/* EK_ERR_OUT_OF_MEMORY, with a message, if the system refuses. */
ek_status ek__thread_start(pthread_t *thread, size_t stack, void *(*function)(void *), void *arg);

#endif /* EK_THREAD_H */
