/*
 * between.c - the memory that the processes of a clique share.
 *
 * The process that makes an id makes a file without a name, which the others open through /proc: so
 * nothing is left when all have ended, however they end. An id says the process and the number of
 * the file there. The file stays open until a clique of the id ends in that process, or until FILES
 * more ids have been made.
 */
#include "collective.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { FILES = 64 };

struct name { /* the first bytes of an id */
  uint64_t number;
  int process, file;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct name made[FILES];
static uint64_t last;

static struct name name_of(const ncclUniqueId *id) {
  struct name name;
  memcpy(&name, id->internal, sizeof(name));
  return name;
}

/* The lock is held. */
static void forget(struct name *name) {
  if (name->number) (void)close(name->file);
  *name = (struct name){0, 0, 0};
}

static struct shared *map(int file) {
  void *memory = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return memory == MAP_FAILED ? NULL : memory;
}

ncclResult_t cuemu_make_id(ncclUniqueId *id) {
  struct shared *shared = NULL;
  memset(id, 0, sizeof(*id));
  int file = memfd_create("cuemu", MFD_CLOEXEC);
  if (file >= 0 && ftruncate(file, sizeof(struct shared)) == 0) shared = map(file);
  if (!shared) {
    if (file >= 0) (void)close(file);
    return ncclSystemError;
  }
  pthread_mutex_lock(&mutex);
  struct name name = {++last, (int)getpid(), file};
  forget(&made[last % FILES]);
  made[last % FILES] = name;
  pthread_mutex_unlock(&mutex);
  memcpy(id->internal, &name, sizeof(name));
  shared->id = *id;
  cuemu_unmap(shared);
  return ncclSuccess;
}

struct shared *cuemu_map_id(const ncclUniqueId *id) {
  struct name name = name_of(id);
  char path[64];
  (void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", name.process, name.file);
  int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return NULL;
  /* The number may be that of another file by now. */
  bool right = lseek(file, 0, SEEK_END) == (off_t)sizeof(struct shared);
  struct shared *shared = right ? map(file) : NULL;
  (void)close(file);
  if (!shared || memcmp(&shared->id, id, sizeof(*id)) == 0) return shared;
  cuemu_unmap(shared);
  return NULL;
}

void cuemu_unmap(struct shared *shared) { (void)munmap(shared, sizeof(*shared)); }

void cuemu_unmap_id(struct shared *shared) {
  struct name name = name_of(&shared->id);
  pthread_mutex_lock(&mutex);
  struct name *own = &made[name.number % FILES];
  if (own->number == name.number && own->process == name.process) forget(own);
  pthread_mutex_unlock(&mutex);
  cuemu_unmap(shared);
}

static bool all_have_come(const struct clique *clique) {
  for (int r = 0; r < clique->ranks; r++) {
    if (__atomic_load_n(&clique->shared->phase[r], __ATOMIC_ACQUIRE) < clique->phase) return false;
  }
  return true;
}

bool cuemu_meet(struct clique *clique) {
  clique->phase++;
  for (int r = 0; r < clique->ranks; r++) {
    if (!clique->is_local[r]) continue;
    __atomic_store_n(&clique->shared->phase[r], clique->phase, __ATOMIC_RELEASE);
  }
  for (unsigned asked = 0; !all_have_come(clique); asked++) {
    if (cuemu_read(&clique->shared->aborted)) return false;
    pthread_mutex_unlock(&clique->mutex);
    if (asked < 20) {
      (void)sched_yield();
    } else {
      (void)usleep(50);
    }
    pthread_mutex_lock(&clique->mutex);
  }
  return !cuemu_read(&clique->shared->aborted);
}
