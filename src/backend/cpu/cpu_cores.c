/*
 * cpu_cores.c - how many processors this process may use.
 *
 * A file of its own because sched_getaffinity() is a GNU extension.
 */
#define _GNU_SOURCE
#include "backend/cpu/cpu_internal.h"

#include <sched.h>
#include <unistd.h>

int ek__cpu_cores(void) {
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  return online > 0 ? (int)online : 1;
}
