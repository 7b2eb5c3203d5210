/*
 * thread.h - starts the library's own threads, each with a stack of a stated size, and keeps
 * handlers of signals away from them.
 *
 * The default stack would be the soft limit of the process (`ulimit -s`), which may be too small
 * for a kernel, or for the functions of a program's own modules, and is gigabytes elsewhere.
 *
 * A handler runs on the stack of the thread that it interrupts, and foreign code that computes
 * there may keep data where the handler's frame is put (cpu_onednn.c). So the library's threads
 * have signals blocked for life: a signal to the process goes to a thread of the program. Not
 * blocked are the signals that an instruction of the thread itself raises (SIGSEGV, SIGBUS, SIGFPE,
 * SIGILL, SIGTRAP, SIGSYS): if they were, the kernel would end the process without a call of the
 * program's handler, which may report the crash or mend its cause. The C library keeps two signals
 * for itself that nothing can block (pthread_cancel(), and setuid() and its relatives).
 */
#ifndef EK_THREAD_H
#define EK_THREAD_H

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>

#include <evenkeel/status.h>

/* A thread that runs functions of the program. */
#define EK__WORKER_STACK ((size_t)8 << 20)
/* A thread that runs kernels alone: ours keep less than 16 KiB in a frame. */
#define EK__HELPER_STACK ((size_t)1 << 20)

/* EK_ERR_OUT_OF_MEMORY, with a message, if the system refuses. */
ek_status ek__thread_start(pthread_t *thread, size_t stack, void *(*function)(void *), void *arg);

/* Called first by threads of ek__thread_start() that compute: for them the next two do nothing. */
void ek__thread_stays_deaf(void);
/* Blocks signals on the calling thread, which may be the program's, and restores its mask. */
struct ek__thread_signals {
  bool changed;
  sigset_t before;
};
void ek__thread_block(struct ek__thread_signals *signals);
void ek__thread_unblock(const struct ek__thread_signals *signals);

/* What is blocked; inline for the CUDA module, which starts threads and links nothing of this. */
static inline void ek__signals_that_interrupt(sigset_t *set) {
  static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
  (void)sigfillset(set);
  for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) (void)sigdelset(set, own[i]);
}

/* pthread_create() of a thread that has them blocked from its first instruction on. */
static inline int ek__thread_create(pthread_t *thread, const pthread_attr_t *attributes,
                                    void *(*function)(void *), void *arg) {
  sigset_t set, before;
  ek__signals_that_interrupt(&set);
  (void)pthread_sigmask(SIG_BLOCK, &set, &before);
  const int error = pthread_create(thread, attributes, function, arg);
  (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
  return error;
}

#endif /* EK_THREAD_H */
