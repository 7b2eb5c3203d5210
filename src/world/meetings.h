/*
 * meetings.h - the ways in which processes learn where process 0 is.
 */
#ifndef EK_MEETINGS_H
#define EK_MEETINGS_H

#include "world/rendezvous.h"

enum { EK__PORTS = 8 };

/* By the name of the host of process 0. It listens on the first of these ports that is free, and
 * the others try all of them: other programs may have some. */
struct ek__by_name {
  const char *host;
  const char *address; /* this and the limit as in ek__meeting */
  double limit;
  uint16_t ports[EK__PORTS];
  size_t count;
  unsigned char token[EK__TOKEN];
};
void ek__by_name(struct ek__meeting *meeting, struct ek__by_name *name);

/*
 * By a file on a file system that all share. Process 0 writes the file beside its name and renames
 * it, so a file is whole, and one that an earlier job left is replaced. What an earlier job wrote
 * is refused where it leads, and then the others read the file again. Process 0 removes the file
 * when all have come. The file system must make a renamed file visible to the other machines before
 * the limit (NFS: some seconds).
 */
struct ek__by_file {
  const char *path;
  const char *address;
  const char *token; /* NULL: none but the random bytes of the file */
  struct ek__host host;
};
void ek__by_file(struct ek__meeting *meeting, struct ek__by_file *file);

/* By a function that all processes call once: struct ek_world_gather. */
struct ek__by_gather {
  ek_status (*gather)(void *context, const void *mine, size_t bytes, void *all);
  void *context;
  size_t process, processes;
  const char *address;
  const char *token;
  bool gathered;
  struct ek__host host;
};
void ek__by_gather(struct ek__meeting *meeting, struct ek__by_gather *gather);

#endif /* EK_MEETINGS_H */
