/*
 * ck_fork.c - a test that goes on in a child of fork(): see ck_fork.h.
 */
#include "ck_fork.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

bool ck_forked(int *code) {
  int state = -1;
  (void)fflush(NULL);
  const pid_t child = fork();
  if (child == 0) {
    /* Check's handlers kill the process group: all of tests/run. */
    (void)signal(SIGALRM, SIG_DFL);
    (void)signal(SIGINT, SIG_DFL);
    (void)signal(SIGTERM, SIG_DFL);
    (void)alarm(60);
    return true;
  }
  ck_assert(child > 0 && waitpid(child, &state, 0) == child);
  *code = WIFEXITED(state) ? WEXITSTATUS(state) : CK_KILLED + WTERMSIG(state);
  return false;
}

void *ck_shared(size_t bytes) {
  enum { ROOM = 4096 };
  static void *memory;
  ck_assert_uint_le(bytes, ROOM);
  if (memory == NULL) {
    memory = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(memory != MAP_FAILED);
  }
  return memset(memory, 0, bytes);
}
