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
 *
 * Where a process has more, what its devices have of a piece is added up before it is sent
 * (`folds`), into a buffer: then a process sends what it would with one device. But
 * (a + b) + (c + d) is not ((a + b) + c) + d, so a `deterministic` group, which is to have the bits
 * of one process, does without, and so do 16-bit types, whose sums are rounded once.
 *
 * Ranges go in pieces. Nothing is copied to be sent: a piece goes from the memory of its device,
 * and a sum is received where it belongs. Pieces to be added wait in buffers, two for each rank of
 * the others: while one is added up, the next one comes, and in an all_reduce the sum of the one
 * before goes out. In each round of a step all pairs of processes move the piece of one device in
 * each direction; a step has as many rounds as the process with the most devices has of them.
 *
 * Shares that are within each process (EK__REACH_SHARES) are summed in two levels: the devices of
 * the process first, each range into the memory of its own device, and then each range over the
 * processes, as an all_reduce in which a process has one rank. That moves what a ring over
 * processes moves, whatever the number of devices, and its sums are (a + b) + (c + d).
 *
 * A small all_reduce of an urgent communicator has one trip instead of three (conversation, adding,
 * spreading), where each process has one device: all elements go with the message of the
 * conversation, and every process adds up all of them in the order of the ranks, with the same
 * bits.
 *
 * Data moves by steps that do not wait (ek__between_advance). A step tells the world which moves it
 * needs, and the world calls the next step when those are done.
 *
 * The buffers are memory of the devices, in equal parts, and `plan` counts the same
 * (ek__between_reserve): at most two chunks in each process.
 */
#include <string.h>

#include "core/error.h"
#include "device/between_struct.h"

/* Elements first .. last - 1. */
struct range {
  int64_t first, last;
};

static size_t bytes_of(const struct ek__between_run *run, struct range range) {
  return (size_t)(range.last - range.first) * run->element;
}

static char *at(const struct ek__between_run *run, size_t member, int64_t element) {
  return (char *)run->data[member] + (size_t)element * run->element;
}

/* Where the range of a process begins. */
static int64_t border(const struct ek__between_run *run, size_t process) {
  const struct ek__between *self = run->self;
  if (run->folds && run->what->kind == EK__ALL_REDUCE) {
    return ek__part_begin(run->what->count, process, self->peers + 1);
  }
  return ek__between_edge(run, self->first[process]);
}

static struct range range_of(const struct ek__between_run *run, size_t process) {
  return (struct range){border(run, process), border(run, process + 1)};
}

static struct range meet(struct range a, struct range b) {
  struct range both = {a.first > b.first ? a.first : b.first, a.last < b.last ? a.last : b.last};
  if (both.last < both.first) both.last = both.first;
  return both;
}

/* Piece number `step` of a range. */
static struct range piece_of(const struct ek__between_run *run, struct range range, int64_t step) {
  const int64_t most = (int64_t)(run->piece / run->element);
  const struct range piece = {range.first + step * most, range.first + (step + 1) * most};
  return meet(piece, range);
}

/* ---- moves ---- */

/* Of the other processes, in an order in which all pairs can exchange at once. */
static size_t peer_of(const struct ek__between *self, size_t i) {
  const size_t own = ek_world_process(self->world), processes = self->peers + 1;
  const size_t to_self = 2 * own % processes; /* the round without a peer */
  return ek__world_peer(self->world, i < to_self ? i : i + 1);
}

static ek_status begin(struct ek__between_run *run, size_t set, size_t i,
                       const struct ek__move *wanted) {
  struct ek__between *self = run->self;
  struct ek__move *move = &self->moves[set * self->peers + i];
  *move = *wanted;
  move->peer = peer_of(self, i);
  move->bulk = !self->urgent;
  move->done = move->out_bytes == 0 && move->in_bytes == 0;
  if (move->done) return EK_OK;
  run->sent += move->out_bytes;
  run->received += move->in_bytes;
  return ek__world_move(self->world, move);
}

/* Whether the moves of a set are done. */
static ek_status are_done(const struct ek__between_run *run, size_t set, struct ek__bulk *wait,
                          bool *done) {
  const struct ek__between *self = run->self;
  wait->moves = self->lists + set * self->peers;
  wait->count = self->peers;
  EK_TRY(ek__world_test(self->world, wait->moves, wait->count, done));
  wait->waits += *done;
  return EK_OK;
}

static ek_status reduce(ek_device *device, const struct ek__reduce_args *args) {
  ek_stream *stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  return ek__device_table(device)->kernels->reduce(stream, args);
}

/* A sum that fails does not end the moves: the other processes go on with theirs. */
static void note(struct ek__between_run *run, ek_status status) {
  if (status != EK_OK) ek__place_fail(run->self->place, status);
  run->failed = run->failed || status != EK_OK;
}

/* ---- adding ---- */

/* One of the places in the buffers. */
static char *block_at(const struct ek__between_run *run, size_t block) {
  const struct ek__between *self = run->self;
  return (char *)self->buffers[block % self->devices].data + block / self->devices * run->piece;
}

/* What comes from a process for a piece: of each of its devices, or of all of them. */
static size_t parts_from(const struct ek__between_run *run, size_t process) {
  const size_t *first = run->self->first;
  return run->folds ? 1 : first[process + 1] - first[process];
}

/* Where part `k` of a piece from another process comes to; two steps are under way. */
static char *received(const struct ek__between_run *run, size_t process, size_t k, int64_t step) {
  const struct ek__between *self = run->self;
  const bool after = process > ek_world_process(self->world);
  const size_t other =
      run->folds ? process - after : self->first[process] + k - (after ? self->members : 0);
  return block_at(run, 2 * other + (size_t)(step % 2));
}

/* What this process sends of a range to number `i` of the others: added up, after what is received
 * in the buffers. */
static const char *fold(struct ek__between_run *run, size_t i, int64_t step, struct range range) {
  struct ek__between *self = run->self;
  ek_device *device = ek_group_device(self->group, 0);
  char *sum = block_at(run, 2 * (self->peers + i) + (size_t)(step % 2));
  void *const destinations[] = {sum};
  if (self->members == 1 || range.first == range.last) return at(run, 0, range.first);
  for (size_t k = 0; k < self->members; k++) self->sources[k] = at(run, k, range.first);
  const struct ek__reduce_args args = {.destinations = destinations,
                                       .sources = self->sources,
                                       .destination_count = 1,
                                       .source_count = self->members,
                                       .count = range.last - range.first,
                                       .type = run->what->type};
  note(run, reduce(device, &args));
  return sum;
}

/* Of a step: one for each device of the process with the most of them. */
static int64_t rounds_of(const struct ek__between_run *run) {
  return run->folds ? 1 : (int64_t)run->self->rounds;
}

/* Round number `round`, counted over all steps: device `round % rounds` of each process. */
static ek_status begin_round(struct ek__between_run *run, int64_t round) {
  struct ek__between *self = run->self;
  const int64_t rounds = rounds_of(run), step = round / rounds;
  const size_t k = (size_t)(round % rounds);
  if (step >= run->steps) return EK_OK;
  const struct range own = piece_of(run, range_of(run, ek_world_process(self->world)), step);
  for (size_t i = 0; i < self->peers; i++) {
    const size_t peer = peer_of(self, i);
    const struct range theirs = piece_of(run, range_of(run, peer), step);
    struct ek__move move = {0};
    if (k < parts_from(run, ek_world_process(self->world))) {
      move.out = run->folds ? fold(run, i, step, theirs) : at(run, k, theirs.first);
      move.out_bytes = bytes_of(run, theirs);
    }
    if (k < parts_from(run, peer)) {
      move.in = received(run, peer, k, step);
      move.in_bytes = bytes_of(run, own);
    }
    EK_TRY(begin(run, EK__BETWEEN_ADDING + (size_t)(round % 2), i, &move));
  }
  return EK_OK;
}

/* Where the elements of one piece are, in the order of the ranks; returns how many there are. */
static size_t find_sources(const struct ek__between_run *run, int64_t step, struct range piece,
                           struct range range) {
  struct ek__between *self = run->self;
  const size_t skipped = (size_t)(range.first - piece.first) * run->element;
  size_t count = 0;
  for (size_t p = 0; p <= self->peers; p++) {
    const bool own = p == ek_world_process(self->world);
    const size_t parts = own ? self->members : parts_from(run, p);
    for (size_t k = 0; k < parts; k++) {
      self->sources[count++] = own ? at(run, k, range.first) : received(run, p, k, step) + skipped;
    }
  }
  return count;
}

/* Elements of one piece, in the memory of member `k` alone, or of all of them. */
static ek_status add_range(const struct ek__between_run *run, int64_t step, struct range piece,
                           struct range range, size_t k, bool all) {
  struct ek__between *self = run->self;
  ek_device *device = ek_group_device(self->group, 0);
  if (range.first == range.last) return EK_OK;
  for (size_t i = 0; i < self->members; i++) self->destinations[i] = at(run, i, range.first);
  const struct ek__reduce_args args = {.destinations =
                                           all ? self->destinations : self->destinations + k,
                                       .sources = self->sources,
                                       .destination_count = all ? self->members : 1,
                                       .source_count = find_sources(run, step, piece, range),
                                       .count = range.last - range.first,
                                       .type = run->what->type};
  return reduce(device, &args);
}

static ek_status add_piece(const struct ek__between_run *run, int64_t step) {
  const struct ek__between *self = run->self;
  const size_t own = ek_world_process(self->world);
  const struct range piece = piece_of(run, range_of(run, own), step);
  if (run->what->kind == EK__ALL_REDUCE) return add_range(run, step, piece, piece, 0, true);
  for (size_t k = 0; k < self->members; k++) {
    const size_t rank = self->first_rank + k;
    const struct range part = {ek__between_edge(run, rank), ek__between_edge(run, rank + 1)};
    EK_TRY(add_range(run, step, piece, meet(piece, part), k, false));
  }
  return EK_OK;
}

/* ---- spreading ---- */

/* Of one range, from the device that has it to the other devices of this process. */
static void copy_to_members(const struct ek__between_run *run, struct range range, size_t from) {
  if (range.first == range.last) return;
  for (size_t k = 0; k < run->self->members; k++) {
    if (k != from)
      memcpy(at(run, k, range.first), at(run, from, range.first), bytes_of(run, range));
  }
}

/* A piece of a process's range, or all of it. */
static struct range spread_of(const struct ek__between_run *run, size_t process, int64_t step) {
  const struct range range = range_of(run, process);
  return ek__between_adds(run->what) ? piece_of(run, range, step) : range;
}

/* Of a process's range, which device 0 has, to all others, whose device 0 gets it. */
static ek_status begin_spreading(struct ek__between_run *run, int64_t step) {
  const struct ek__between *self = run->self;
  const struct range own = spread_of(run, ek_world_process(self->world), step);
  for (size_t i = 0; i < self->peers; i++) {
    const struct range theirs = spread_of(run, peer_of(self, i), step);
    const struct ek__move move = {.out = at(run, 0, own.first),
                                  .out_bytes = bytes_of(run, own),
                                  .in = at(run, 0, theirs.first),
                                  .in_bytes = bytes_of(run, theirs)};
    EK_TRY(begin(run, EK__BETWEEN_SPREADING + (size_t)(step % 2), i, &move));
  }
  return EK_OK;
}

/* Of the steps before `end`; *done: it is over. */
static ek_status end_spreading(struct ek__between_run *run, int64_t end, struct ek__bulk *wait,
                               bool *done) {
  const struct ek__between *self = run->self;
  *done = true;
  for (; run->spread < end; run->spread++) {
    EK_TRY(are_done(run, EK__BETWEEN_SPREADING + (size_t)(run->spread % 2), wait, done));
    if (!*done) return EK_OK;
    for (size_t i = 0; i < self->peers; i++) {
      copy_to_members(run, spread_of(run, peer_of(self, i), run->spread), 0);
    }
  }
  return EK_OK;
}

/* ---- both ---- */

static int64_t steps_of(const struct ek__between_run *run) {
  const int64_t most = (int64_t)(run->piece / run->element);
  int64_t longest = 0;
  for (size_t p = 0; p <= run->self->peers; p++) {
    const struct range range = range_of(run, p);
    if (range.last - range.first > longest) longest = range.last - range.first;
  }
  return longest / most + (longest % most != 0);
}

static ek_status begin_run(struct ek__between_run *run) {
  const struct ek__between *self = run->self;
  if (run->rode) return EK_OK;
  if (ek__between_adds(run->what)) {
    run->steps = steps_of(run);
    run->rounds = run->steps * rounds_of(run);
    EK_TRY(begin_round(run, 0));
    return begin_round(run, 1);
  }
  for (size_t k = 0; k < self->members; k++) {
    const size_t rank = self->first_rank + k;
    copy_to_members(
        run, (struct range){ek__between_edge(run, rank), ek__between_edge(run, rank + 1)}, k);
  }
  run->steps = 1;
  return begin_spreading(run, 0);
}

/* The rounds of adding from `run->round` on; *done: they are over. */
static ek_status advance_adding(struct ek__between_run *run, struct ek__bulk *wait, bool *done) {
  const bool spreads = ek__between_spreads(run->what);
  for (*done = true; run->round < run->rounds; run->round++, run->added = false) {
    const int64_t rounds = rounds_of(run), step = run->round / rounds;
    const bool whole = run->round % rounds == rounds - 1;
    if (!run->added) {
      EK_TRY(are_done(run, EK__BETWEEN_ADDING + (size_t)(run->round % 2), wait, done));
      if (!*done) return EK_OK;
      if (whole && !run->failed) note(run, add_piece(run, step));
      run->added = true;
    }
    if (whole && spreads) {
      EK_TRY(end_spreading(run, step - 1, wait, done));
      if (!*done) return EK_OK;
      EK_TRY(begin_spreading(run, step));
    }
    EK_TRY(begin_round(run, run->round + 2));
  }
  return EK_OK;
}

static ek_status advance_run(struct ek__between_run *run, struct ek__bulk *wait, bool *done) {
  EK_TRY(advance_adding(run, wait, done));
  return *done && ek__between_spreads(run->what) ? end_spreading(run, run->steps, wait, done)
                                                 : EK_OK;
}

/* What came with the conversation. */
static void add_rides(struct ek__between_run *run) {
  struct ek__between *self = run->self;
  ek_device *device = ek_group_device(self->group, 0);
  const size_t bytes = (size_t)run->what->count * run->element;
  char *all = block_at(run, 0);
  for (size_t p = 0; p <= self->peers; p++) {
    self->sources[p] = p == ek_world_process(self->world) ? run->data[0] : all + p * bytes;
  }
  const struct ek__reduce_args args = {.destinations = (void *const *)run->data,
                                       .sources = self->sources,
                                       .destination_count = 1,
                                       .source_count = self->peers + 1,
                                       .count = run->what->count,
                                       .type = run->what->type};
  note(run, reduce(device, &args));
  run->sent = run->received = bytes * self->peers;
}

/* ---- shares within each process ---- */

/* The devices' range of one of them, into its memory. */
static ek_status add_inside(const struct ek__between *self, const struct ek__collective *what,
                            void *const *data, size_t member) {
  ek_device *device = ek_group_device(self->group, 0);
  const size_t skipped = (size_t)what->offsets[member] * ek__type_size(what->type);
  for (size_t k = 0; k < self->devices; k++) self->sources[k] = (const char *)data[k] + skipped;
  self->destinations[0] = (char *)data[member] + skipped;
  const struct ek__reduce_args args = {.destinations = self->destinations,
                                       .sources = self->sources,
                                       .destination_count = 1,
                                       .source_count = self->devices,
                                       .count = what->offsets[member + 1] - what->offsets[member],
                                       .type = what->type};
  if (args.count == 0) return EK_OK;
  return reduce(device, &args);
}

static ek_status begin_share(struct ek__between *self, size_t k) {
  const struct ek__collective *what = &self->what;
  struct ek__between_run *run = &self->run;
  const bool failed = run->failed;
  *run = (struct ek__between_run){.self = self,
                                  .what = &run->part,
                                  .data = &run->range,
                                  .element = ek__type_size(what->type),
                                  .piece = self->piece,
                                  .failed = failed,
                                  .share = k,
                                  .part = {.kind = EK__ALL_REDUCE,
                                           .count = what->offsets[k + 1] - what->offsets[k],
                                           .type = what->type}};
  run->range = (char *)self->data[k] + (size_t)what->offsets[k] * run->element;
  note(run, add_inside(self, what, self->data, k));
  return begin_run(run);
}

/* ---- a collective ---- */

ek_status ek__between_meet(struct ek__between *between, uint64_t communicator,
                           const struct ek__collective *what, void *const *data) {
  const bool shares = between->reach == EK__REACH_SHARES;
  struct ek__collective with = *what;
  with.data = data[0];
  return ek__place_meet(between->place, communicator, &with,
                        shares ? between->devices : between->ranks, between->buffers[0].data,
                        ek__between_ride(between, what));
}

ek_status ek__between_begin(struct ek__between *between, const struct ek__collective *what,
                            void *const *data) {
  struct ek__between_run *run = &between->run;
  between->what = *what;
  between->data = data;
  *run = (struct ek__between_run){.self = between,
                                  .what = &between->what,
                                  .data = data,
                                  .element = ek__type_size(what->type),
                                  .piece = between->piece,
                                  .folds = between->folds && ek__between_adds(what) &&
                                           ek__between_folds_type(what->type),
                                  .rode = ek__between_ride(between, what) > 0};
  if (between->reach == EK__REACH_SHARES) return begin_share(between, 0);
  if (run->folds) run->piece = run->piece / 128 * 64; /* half: what is sent is in buffers as well */
  if (run->rode) add_rides(run);
  return begin_run(run);
}

ek_status ek__between_advance(struct ek__between *between, struct ek__bulk *bulk, bool *done) {
  struct ek__between_run *run = &between->run;
  for (;;) {
    EK_TRY(advance_run(run, bulk, done));
    if (!*done) return EK_OK;
    ek__world_count(between->world, run->sent, run->received);
    const bool shares = between->reach == EK__REACH_SHARES;
    if (!shares || run->share + 1 == between->devices) return EK_OK;
    EK_TRY(begin_share(between, run->share + 1));
  }
}

ek_status ek__between_finish(struct ek__between *between) {
  struct ek__bulk wait = {0};
  bool done = false;
  for (;;) {
    EK_TRY(ek__between_advance(between, &wait, &done));
    if (done) return EK_OK;
    EK_TRY(ek__world_finish(between->world, wait.moves, wait.count));
  }
}

bool ek__between_went_well(const struct ek__between *between) { return !between->run.failed; }
