/*
 * between_struct.h - a communicator between processes, a collective of it that is under way, and
 * what moving the data (between.c) and counting it (between_open.c) have to agree on: the halves of
 * a collective, its ranges and its pieces. between.c explains them.
 */
#ifndef EK_BETWEEN_STRUCT_H
#define EK_BETWEEN_STRUCT_H

#include "core/sizes.h"
#include "device/between.h"

/* Bytes of the pieces of all ranks of other processes, and of one piece at least. */
enum { EK__BETWEEN_CHUNK = 1 << 20, EK__BETWEEN_LEAST = 4096 };

/* Moves that are under way with one process: two rounds of adding, two steps of spreading. */
enum { EK__BETWEEN_ADDING = 0, EK__BETWEEN_SPREADING = 2, EK__BETWEEN_SETS = 4 };

struct ek__between_run {
  struct ek__between *self;
  const struct ek__collective *what;
  void *const *data;
  size_t element; /* bytes */
  size_t sent, received;
  size_t piece; /* bytes */
  bool folds;   /* the devices of a process are added up before they are sent */
  bool rode;    /* what the others have is in the buffers */
  bool failed;  /* a sum */
  /* Where it is: */
  int64_t steps;  /* pieces of the longest range; 1 for spreading alone, which takes ranges whole */
  int64_t rounds; /* of adding, over all steps */
  int64_t round;  /* that is waited for */
  bool added;     /* that one, and the spreading before it is waited for */
  int64_t spread; /* steps whose spreading is over */
  /* Of EK__REACH_SHARES, one device after the other: */
  size_t share;
  struct ek__collective part;
  void *range;
};

struct ek__between {
  struct ek__place *place;
  ek_world *world;
  ek_group *group;
  enum ek__reach reach;
  bool urgent;
  size_t devices; /* of the group */
  /* Devices that are ranks here: those of the group; one for EK__REACH_SHARES. */
  size_t members, first_rank, ranks;
  size_t *first;              /* rank of each process; after the last one `ranks` */
  bool folds;                 /* sums that may: a process has several devices */
  size_t peers;               /* other processes */
  size_t rounds;              /* of a step of adding */
  size_t piece;               /* bytes */
  ek_tensor *buffers;         /* of each member */
  struct ek__move *moves;     /* of each set, for each peer */
  struct ek__move **lists;    /* to them */
  void **destinations;        /* one per member */
  const void **sources;       /* one per rank */
  struct ek__collective what; /* that is under way */
  void *const *data;          /* likewise */
  struct ek__between_run run; /* likewise, or one share of it */
};

/* Sums are rounded once: those of 16-bit types are not taken apart. */
static inline bool ek__between_folds_type(ek_type type) { return type == EK_F32 || type == EK_F64; }

/* The halves that a collective has. */
static inline bool ek__between_adds(const struct ek__collective *what) {
  return what->kind != EK__BROADCAST && what->kind != EK__ALL_GATHER;
}

static inline bool ek__between_spreads(const struct ek__collective *what) {
  return what->kind != EK__REDUCE && what->kind != EK__REDUCE_SCATTER;
}

/* Whole elements of every type, and the same in all processes. */
static inline size_t ek__between_piece(size_t ranks) {
  const size_t piece = EK__BETWEEN_CHUNK / (ranks - 1);
  return piece < EK__BETWEEN_LEAST ? EK__BETWEEN_LEAST : piece / 64 * 64;
}

/* Bytes that go with the conversation; 0: none do. */
static inline size_t ek__between_ride(const struct ek__between *self,
                                      const struct ek__collective *what) {
  const size_t most = self->piece < EK__RIDE ? self->piece : EK__RIDE;
  const size_t element = ek__type_size(what->type);
  const bool rides = self->urgent && self->rounds == 1 && what->kind == EK__ALL_REDUCE &&
                     (size_t)what->count <= most / element;
  return rides ? (size_t)what->count * element : 0;
}

/* Where the range of a rank begins; of the number of ranks: where the last one ends. */
static inline int64_t ek__between_edge(const struct ek__between_run *run, size_t rank) {
  const struct ek__collective *what = run->what;
  switch (what->kind) {
  case EK__BROADCAST:
  case EK__REDUCE: return rank <= what->root ? 0 : what->count;
  case EK__ALL_REDUCE: return ek__part_begin(what->count, rank, run->self->ranks);
  case EK__REDUCE_SCATTER:
  case EK__ALL_GATHER: break;
  }
  return what->offsets[rank];
}

#endif /* EK_BETWEEN_STRUCT_H */
