/*
 * between.c - collectives between processes whose devices compute in the memory of the host.
 *
 * Every collective has two halves, each of which may be absent. The elements are cut into one
 * range per rank (all for the root, even parts, or the caller's offsets), and the ranges of a
 * process's ranks follow each other.
 *
 *   adding     A process gets its range of every rank of the others, and adds up all ranks in
 *              their order, by the kernel and in the order that one process would use: so any
 *              number of processes gives the bits of one. (reduce, all_reduce, reduce_scatter)
 *   spreading  A process sends its range, as its ranks have it, to all others.
 *              (broadcast, all_reduce, all_gather)
 *
 * A process with M of W ranks sends M (W - M) / W of the elements for the first half of an
 * all_reduce and 1 - M / W for the second: as much as a ring sends, if each process has one device.
 * Devices of one process are not added up first, because ((a + b) + c) + d is not
 * (a + b) + (c + d).
 *
 * Adding goes in pieces of a fixed size through two buffers, which are allocated when the
 * communicator is opened. They are in host memory, at most BUFFERS bytes if ranks are few enough,
 * and belong to no device: they are in no ledger.
 */
#include "device/between.h"

#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sizes.h"

/* Bytes of both buffers, and of one rank's piece in them. */
enum { BUFFERS = 16 << 20, LEAST_PIECE = 4096, LARGEST_PIECE = 256 << 10 };

struct ek__between {
  struct ek__place *place;
  ek_world *world;
  ek_group *group;
  size_t members, first_rank, ranks;
  size_t piece;         /* bytes */
  char *out;            /* of each member, one after the other */
  char *in;             /* of each rank of the other processes, in their order */
  void **destinations;  /* one per member */
  const void **sources; /* one per rank */
};

struct run {
  struct ek__between *self;
  const struct ek__collective *what;
  void *const *data;
  size_t element; /* bytes */
};

/* Elements first .. last - 1. */
struct range {
  int64_t first, last;
};

static size_t bytes_of(const struct run *run, struct range range) {
  return (size_t)(range.last - range.first) * run->element;
}

static char *at(const struct run *run, size_t member, int64_t element) {
  return (char *)run->data[member] + (size_t)element * run->element;
}

/* Where the range of a rank begins; of the number of ranks: where the last one ends. */
static int64_t edge(const struct run *run, size_t rank) {
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

static struct range range_of(const struct run *run, size_t process) {
  const struct ek__place *place = run->self->place;
  return (struct range){edge(run, ek__place_first_rank(place, process)),
                        edge(run, ek__place_first_rank(place, process + 1))};
}

static struct range meet(struct range a, struct range b) {
  struct range both = {a.first > b.first ? a.first : b.first, a.last < b.last ? a.last : b.last};
  if (both.last < both.first) both.last = both.first;
  return both;
}

/* Piece number `step` of a range. */
static struct range piece_of(const struct run *run, struct range range, int64_t step) {
  const int64_t most = (int64_t)(run->self->piece / run->element);
  const struct range piece = {range.first + step * most, range.first + (step + 1) * most};
  return meet(piece, range);
}

/* ---- adding ---- */

/* The place in `in` of a rank of another process. */
static char *received(const struct ek__between *self, size_t rank) {
  const size_t own = rank > self->first_rank ? self->members : 0;
  return self->in + (rank - own) * self->piece;
}

/* Sends the piece that the peer adds up, of every device, and gets what this process adds up. */
static ek_status swap_pieces(const struct run *run, size_t peer, int64_t step) {
  struct ek__between *self = run->self;
  const size_t first = ek__place_first_rank(self->place, peer);
  const size_t count = ek__place_first_rank(self->place, peer + 1) - first;
  const struct range theirs = piece_of(run, range_of(run, peer), step);
  const struct range own = piece_of(run, range_of(run, ek_world_process(self->world)), step);
  const size_t out = bytes_of(run, theirs), in = bytes_of(run, own);
  for (size_t k = 0; k < self->members && out > 0; k++) {
    memcpy(self->out + k * out, at(run, k, theirs.first), out);
  }
  char *to = received(self, first);
  EK_TRY(ek__world_swap(self->world, peer, self->out, self->members * out, to, count * in));
  /* They come end to end, and are a piece apart. */
  for (size_t i = count; i-- > 1;) memmove(to + i * self->piece, to + i * in, in);
  return EK_OK;
}

/* Elements of one piece, in the memory of member `k` alone, or of all of them. */
static ek_status add_range(const struct run *run, struct range piece, struct range range, size_t k,
                           bool all) {
  struct ek__between *self = run->self;
  ek_device *device = ek_group_device(self->group, 0);
  if (range.first == range.last) return EK_OK;
  for (size_t rank = 0; rank < self->ranks; rank++) {
    const size_t member = rank - self->first_rank; /* huge below the first */
    const size_t skipped = (size_t)(range.first - piece.first) * run->element;
    self->sources[rank] =
        member < self->members ? at(run, member, range.first) : received(self, rank) + skipped;
  }
  for (size_t i = 0; i < self->members; i++) self->destinations[i] = at(run, i, range.first);
  const struct ek__reduce_args args = {.destinations =
                                           all ? self->destinations : self->destinations + k,
                                       .sources = self->sources,
                                       .destination_count = all ? self->members : 1,
                                       .source_count = self->ranks,
                                       .count = range.last - range.first,
                                       .type = run->what->type};
  return ek__device_table(device)->kernels->reduce(ek_device_stream(device, EK_STREAM_COMPUTE),
                                                   &args);
}

static ek_status add_piece(const struct run *run, int64_t step) {
  const struct ek__between *self = run->self;
  const size_t own = ek_world_process(self->world);
  const struct range piece = piece_of(run, range_of(run, own), step);
  if (run->what->kind == EK__ALL_REDUCE) return add_range(run, piece, piece, 0, true);
  for (size_t k = 0; k < self->members; k++) {
    const size_t rank = self->first_rank + k;
    const struct range part = {edge(run, rank), edge(run, rank + 1)};
    EK_TRY(add_range(run, piece, meet(piece, part), k, false));
  }
  return EK_OK;
}

static ek_status add(const struct run *run) {
  struct ek__between *self = run->self;
  const size_t processes = ek_world_processes(self->world);
  const int64_t most = (int64_t)(self->piece / run->element);
  int64_t longest = 0;
  for (size_t p = 0; p < processes; p++) {
    const struct range range = range_of(run, p);
    if (range.last - range.first > longest) longest = range.last - range.first;
  }
  for (int64_t step = 0; step * most < longest; step++) {
    for (size_t round = 0; round < processes; round++) {
      const size_t peer = ek__world_peer(self->world, round);
      if (peer != ek_world_process(self->world)) EK_TRY(swap_pieces(run, peer, step));
    }
    EK_TRY(add_piece(run, step));
  }
  return EK_OK;
}

/* ---- spreading ---- */

/* Of one range, from the device that has it to the other devices of this process. */
static void copy_to_members(const struct run *run, struct range range, size_t from) {
  if (range.first == range.last) return;
  for (size_t k = 0; k < run->self->members; k++) {
    if (k != from)
      memcpy(at(run, k, range.first), at(run, from, range.first), bytes_of(run, range));
  }
}

static ek_status spread(const struct run *run) {
  const struct ek__between *self = run->self;
  const size_t own = ek_world_process(self->world);
  const struct range sent = range_of(run, own);
  for (size_t k = 0; k < self->members && run->what->kind != EK__ALL_REDUCE; k++) {
    const size_t rank = self->first_rank + k;
    copy_to_members(run, (struct range){edge(run, rank), edge(run, rank + 1)}, k);
  }
  for (size_t round = 0; round < ek_world_processes(self->world); round++) {
    const size_t peer = ek__world_peer(self->world, round);
    if (peer == own) continue;
    const struct range range = range_of(run, peer);
    EK_TRY(ek__world_swap(self->world, peer, at(run, 0, sent.first), bytes_of(run, sent),
                          at(run, 0, range.first), bytes_of(run, range)));
    copy_to_members(run, range, 0);
  }
  return EK_OK;
}

ek_status ek__between_run(struct ek__between *between, uint64_t communicator,
                          const struct ek__collective *what, void *const *data) {
  const struct run run = {between, what, data, ek__type_size(what->type)};
  EK_TRY(ek__place_meet(between->place, communicator, what));
  if (what->kind != EK__BROADCAST && what->kind != EK__ALL_GATHER) EK_TRY(add(&run));
  if (what->kind != EK__REDUCE && what->kind != EK__REDUCE_SCATTER) EK_TRY(spread(&run));
  return EK_OK;
}

/* ---- opening ---- */

static const char memory_of[] = "a communicator between processes";

static ek_status allocate(struct ek__between *self) {
  size_t piece = BUFFERS / self->ranks;
  if (piece > LARGEST_PIECE) piece = LARGEST_PIECE;
  if (piece < LEAST_PIECE) piece = LEAST_PIECE;
  self->piece = piece / 8 * 8; /* whole elements of every type */
  EK_TRY(ek__new(&self->out, self->members, self->piece, memory_of));
  EK_TRY(ek__new(&self->in, self->ranks - self->members, self->piece, memory_of));
  EK_TRY(ek__new(&self->destinations, self->members, sizeof *self->destinations, memory_of));
  return ek__new(&self->sources, self->ranks, sizeof *self->sources, memory_of);
}

ek_status ek__between_open(struct ek__between **between, ek_group *group) {
  struct ek__between *self = NULL;
  EK_TRY(ek__new(&self, 1, sizeof *self, memory_of));
  self->place = ek__group_place(group);
  self->world = ek__group_world(group);
  self->group = group;
  self->members = ek_group_size(group);
  self->first_rank = ek__group_first_rank(group);
  self->ranks = ek__place_ranks(self->place);
  const ek_status status = allocate(self);
  if (status == EK_OK) {
    *between = self;
  } else {
    ek__between_close(self);
  }
  return status;
}

void ek__between_close(struct ek__between *between) {
  if (between == NULL) return;
  ek__free(between->sources);
  ek__free(between->destinations);
  ek__free(between->in);
  ek__free(between->out);
  ek__free(between);
}
