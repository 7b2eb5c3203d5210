/*
 * checkpoint_write.h - a save from the inside: checkpoint.c begins and ends it, and
 * checkpoint_regions.c knows which process writes which part of the file.
 */
#ifndef EK_CHECKPOINT_WRITE_H
#define EK_CHECKPOINT_WRITE_H

#include <pthread.h>

#include <evenkeel/safetensors.h>
#include <evenkeel/state.h>

#include "checkpoint_internal.h"
#include "core/error.h"
#include "core/process.h"
#include "io/writer.h"

/* What one process writes: whole entries, end to end in the file. */
struct ek__region {
  size_t first, last;        /* entries order[first] .. order[last - 1] */
  size_t next;               /* the first of them that is not filled to its end */
  uint64_t page, begin, end; /* of the file: the entries are from `begin` on, which is in this page */
  size_t piece;              /* bytes that are filled and written at a time; whole pages */
};

/* Bytes from .. to - 1 of the file, in an image that begins with `page`. */
struct ek__stretch {
  uint64_t page, from, to;
};

/* What process 0 tells the others of its file. */
struct ek__region_offer {
  char name[EK__CHECKPOINT_NAME_SIZE]; /* in the folder */
  unsigned char token[EK__WRITER_TOKEN];
  uint64_t begin; /* of the tensors */
  int64_t step;
  uint64_t extras;
  bool read_back;
};

struct ek_checkpoint_write {
  ek_world *world;    /* NULL: there is one process */
  size_t me, several; /* the number of this process; how many there are, 0 for one */
  char *folder;       /* of process 0, as all that follows to `keep` */
  size_t keep;
  bool read_back; /* each process reads its region again */
  int64_t step;
  struct ek__region_offer offer;
  size_t own, count;    /* entries of the model; with the program's extras, which follow them */
  ek_state_info *infos; /* of all */
  const ek_checkpoint_extra *extras; /* of process 0, else NULL; a loan, while the caller is here */
  size_t extra_count;
  ek_safetensors_entry *entries; /* their names are those of infos */
  ek_safetensors_writer *file;
  size_t *order;              /* entries as they are in the file */
  struct ek__region *regions; /* of each process; without entries if it does not see the file */
  size_t rounds;              /* as many as the region with the most pieces has */
  bool exchanges;             /* a process needs values that others have */
  char *packed;               /* twice `packed_bytes`: what is sent, what is received */
  size_t packed_bytes;
  uint64_t *sums;             /* as in `order`: of regions, on the way to process 0 */
  char *memory;               /* in the background: for the region from its page on, */
  char *image;                /* it begins here, at a page */
  struct ek__process process; /* which has the thread */
  pthread_t thread;
  bool running;   /* `thread` is there */
  bool collected; /* process 0 has all checksums and ends the file, or all have an error */
  ek_status status; /* the first failure, with its message */
  char message[EK__MESSAGE_SIZE];
};

/* Process 0, which has created the file, tells the others of it: they know then how many extras to
 * list. A call of all processes. */
ek_status ek__regions_meet(ek_checkpoint_write *self);

/* After the entries are listed: cuts the file into the regions of the processes that see it. A call
 * of all processes. `folder`: where this process looks for the file. */
ek_status ek__regions_open(ek_checkpoint_write *self, const ek_data_parallel_model *model,
                           const char *folder);
void ek__regions_close(ek_checkpoint_write *self);

/* Piece number `round` of a region; false: it has fewer. */
bool ek__region_piece(struct ek__stretch *piece, const struct ek__region *region, size_t round);

/* Fills piece number `round` of this process's region, if it has that many, into an image that
 * begins with byte `page` of the file, and helps the others with theirs. All processes call it, for
 * each round in turn. */
ek_status ek__regions_fill(ek_checkpoint_write *self, const ek_data_parallel_model *model,
                           size_t round, char *image, uint64_t page);

/* What this process has written is on the disk and, if wanted, was found there. */
ek_status ek__region_settle(ek_checkpoint_write *self);

/* Process 0 gets the checksums of all regions. A call of all processes; `status` is that of this
 * process's region, and a failure is returned in all. `collected` says that they have met. */
ek_status ek__regions_collect(ek_checkpoint_write *self, ek_status status);

#endif /* EK_CHECKPOINT_WRITE_H */
