/*
 * checkpoint_write.h - a save from the inside: checkpoint.c begins and ends it, checkpoint_parts.c
 * finds out which files there are, and checkpoint_regions.c which process writes which region.
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

/* A file of the state, written by the processes that see one folder: all of the state, or a
 * part. */
struct ek__state_part {
  size_t leader; /* the first of these processes: it creates the file and gives it its name */
  size_t writers;
  size_t count;    /* of entries; */
  size_t *order;   /* which, as they are in the file, */
  uint64_t *place; /* and where, from `begin` on */
  uint64_t begin;
};

/* What one process writes: whole entries, end to end in the file. */
struct ek__region {
  const struct ek__state_part *part; /* NULL: it writes nothing */
  size_t first, last;        /* entries order[first] .. order[last - 1] of the part */
  size_t next;               /* the first of them that is not filled to its end */
  uint64_t page, begin, end; /* of the file: entries are from `begin` on, which is in this page */
  size_t piece;              /* bytes that are filled and written at a time; whole pages */
};

/* Bytes from .. to - 1 of the file, in an image that begins with `page`. */
struct ek__stretch {
  uint64_t page, from, to;
};

/* What process 0 tells the others of the save. */
struct ek__save_plan {
  int64_t step, position;
  uint64_t save; /* random, not 0 */
  uint64_t keep, extras;
  uint64_t only; /* 0 or 1 */
};

struct ek_checkpoint_write {
  ek_world *world;    /* NULL: there is one process */
  size_t me, several; /* the number of this process; how many there are, 0 for one */
  char *folder;
  const ek_data_parallel_model *model; /* a loan, while the caller is here */
  struct ek__save_plan plan;
  bool read_back;       /* each process reads its region again */
  size_t own, count;    /* entries of the model; with the program's extras, which follow them */
  ek_state_info *infos; /* of all */
  const ek_checkpoint_extra *extras; /* of process 0, else NULL; a loan, while the caller is here */
  ek_safetensors_entry *entries; /* their names are those of infos */
  struct ek__writer_file made;   /* this process's, until it has a writer */
  ek_safetensors_writer *file;   /* its entries are in the order of the part; or NULL */
  size_t *order;                 /* all entries, as in a file of all */
  size_t part_count;
  struct ek__state_part *parts;
  size_t *part_of;            /* of each process, the number of the part that it sees */
  bool *writes;               /* and may write */
  bool apart;                 /* the parts have different entries; else each has all */
  struct ek__state_name name; /* of the file of this process */
  struct ek__region *regions; /* of each process */
  size_t rounds;              /* as many as the region with the most pieces has */
  bool exchanges;             /* a process needs values that others have */
  char *packed;               /* twice `packed_bytes`: what is sent, what is received */
  size_t packed_bytes;
  uint64_t *sums;             /* as in the part: of regions, on the way to the leader */
  char *memory;               /* in the background: for the region from its page on, */
  char *image;                /* it begins here, at a page */
  struct ek__process process; /* which has the thread */
  pthread_t thread;
  bool running;     /* `thread` is there */
  bool collected;   /* the leaders have all checksums and end the files, or all have an error */
  bool ended;       /* all have met after that, or need not */
  bool waits;       /* the file of this process has its name, and may be alone */
  ek_status status; /* the first failure, with its message */
  char message[EK__MESSAGE_SIZE];
};

/* What stays in a folder after the save. */
static inline struct ek__state_stay ek__save_stay(const ek_checkpoint_write *self) {
  return (struct ek__state_stay){(size_t)self->plan.keep, self->plan.only != 0};
}

/* Whether this process creates a file, and gives it its name. */
bool ek__region_leads(const ek_checkpoint_write *self);

/* Process 0, which has described the save, tells the others of it: they know then how many extras
 * to list. A call of all processes. */
ek_status ek__regions_meet(ek_checkpoint_write *self);

/* After the entries are listed: finds out which processes see one folder, chooses the entries of
 * their file, and begins it: checkpoint_parts.c. A call of all processes. */
ek_status ek__parts_open(ek_checkpoint_write *self, const ek_data_parallel_model *model);
void ek__parts_close(ek_checkpoint_write *self);

uint64_t ek__entry_bytes(const ek_checkpoint_write *self, size_t index);

/* Of a share of `left` bytes for `mine` of `all` processes: whether it is complete without an entry
 * that more than half would be too much of. */
bool ek__is_enough(uint64_t taken, uint64_t bytes, uint64_t left, size_t mine, size_t all);

/* The same, and cuts the files into the regions of the processes. */
ek_status ek__regions_open(ek_checkpoint_write *self, const ek_data_parallel_model *model);
void ek__regions_close(ek_checkpoint_write *self);

/* Begins the file of this process's part, or joins it. */
ek_status ek__region_begin_file(ek_checkpoint_write *self, const ek_safetensors_entry *entries);

/* Piece number `round` of a region; false: it has fewer. */
bool ek__region_piece(struct ek__stretch *piece, const struct ek__region *region, size_t round);

/* Fills piece number `round` of this process's region, if it has that many, into an image that
 * begins with byte `page` of the file, and helps the others with theirs. All processes call it, for
 * each round in turn. */
ek_status ek__regions_fill(ek_checkpoint_write *self, const ek_data_parallel_model *model,
                           size_t round, char *image, uint64_t page);

/* What this process has written is on the disk and, if wanted, was found there. */
ek_status ek__region_settle(ek_checkpoint_write *self);

/* How far a save in the background is when its processes meet. */
enum ek__save_stage {
  EK__SAVE_WRITTEN = -1, /* the regions are on the disks; rounds of a copy are counted from 0 */
  EK__SAVE_ENDED = -2    /* and the files */
};
/*
 * All tell each other whether they have failed, this one with `own`; *met: they have. If none has,
 * `next` is called, with the lock of conversations. If others have, returns the error of one of
 * them; a process that has failed gets EK_OK, and is to tell its error by ek__world_end().
 */
ek_status ek__save_agree(ek_checkpoint_write *self, enum ek__save_stage stage, bool *met,
                         ek_status own, ek_status (*next)(ek_checkpoint_write *self));

/* The leaders get the checksums of their parts' regions. A call of all processes; `status` is that
 * of this process's region, and a failure is returned in all. `collected` says that they have
 * met. */
ek_status ek__regions_collect(ek_checkpoint_write *self, ek_status status);

/* After the leaders have ended their files: parts wait no longer, and older states are removed. A
 * call of all processes, if there is more than one file. */
ek_status ek__regions_end(ek_checkpoint_write *self);

#endif /* EK_CHECKPOINT_WRITE_H */
