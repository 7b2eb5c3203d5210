/*
 * between_open.c - opens the communicators between processes of between.c, with their buffers, and
 * counts what they send.
 */
#include <string.h>

#include "core/alloc.h"
#include "device/between_struct.h"

/* ---- counting ---- */

/* Elements that a process with ranks first .. end - 1 sends: for each of its `copies` devices what
 * is the others' to add up, and its own range to each of them. */
static int64_t elements_sent(const struct ek__between_run *run, size_t first, size_t end,
                             size_t copies) {
  const int64_t own = ek__between_edge(run, end) - ek__between_edge(run, first);
  int64_t sent = 0;
  if (ek__between_adds(run->what)) sent += (run->what->count - own) * (int64_t)copies;
  if (ek__between_spreads(run->what)) sent += own * (int64_t)run->self->peers;
  return sent;
}

bool ek__between_in_host(const ek_group *group) {
  return strcmp(ek_device_planner(ek_group_device(group, 0)), "plan") == 0;
}

struct ek__traffic ek__between_traffic(const ek_group *group, enum ek__reach reach, bool urgent,
                                       const struct ek__collective *what) {
  const size_t devices = ek_group_size(group), world = ek__group_world_size(group);
  const size_t first = ek__group_first_rank(group);
  const size_t processes = (world + devices - 1) / devices;
  const bool shares = reach == EK__REACH_SHARES;
  struct ek__between place = {.ranks = shares ? processes : world,
                              .peers = processes - 1,
                              .urgent = urgent,
                              .rounds = devices};
  struct ek__between_run run = {.self = &place, .what = what};
  const bool in_host = ek__between_in_host(group);
  const bool folds = in_host && !shares && devices > 1 && ek__between_folds_type(what->type) &&
                     ek__between_adds(what) && !ek_group_is_deterministic(group);
  struct ek__traffic traffic = {0, (unsigned)ek__between_adds(what) +
                                       (unsigned)ek__between_spreads(what)};
  int64_t elements = 0;
  if (processes == 1 || reach == EK__REACH_PROCESS) return traffic;
  place.piece = ek__between_piece(place.ranks);
  if (in_host && ek__between_ride(&place, what) > 0) {
    return (struct ek__traffic){ek__between_ride(&place, what) * place.peers, 0};
  }
  if (folds && what->kind == EK__ALL_REDUCE) {
    place.ranks = processes;
    elements = elements_sent(&run, first / devices, first / devices + 1, 1);
  } else if (!shares) {
    elements = elements_sent(&run, first, first + devices, in_host && !folds ? devices : 1);
  }
  for (size_t k = 0; k < devices && shares; k++) {
    const struct ek__collective part = {.kind = EK__ALL_REDUCE,
                                        .count = what->offsets[k + 1] - what->offsets[k]};
    run.what = &part;
    elements += elements_sent(&run, first / devices, first / devices + 1, 1);
    traffic.halves = 2;
  }
  traffic.bytes = (uint64_t)elements * ek__type_size(what->type);
  return traffic;
}

/* ---- opening ---- */

static const char memory_of[] = "a communicator between processes";

ek_status ek__between_reserve(ek_tensor *buffers, ek_group *group, enum ek__reach reach) {
  const bool shares = reach == EK__REACH_SHARES;
  const size_t members = ek_group_size(group);
  const size_t ranks = ek__group_world_size(group) / (shares ? members : 1);
  const size_t others = 2 * (ranks - (shares ? 1 : members));
  const size_t blocks = (others + members - 1) / members;
  const int64_t count = (int64_t)(blocks * ek__between_piece(ranks) / sizeof(float));
  for (size_t k = 0; k < members; k++) {
    EK_TRY(ek_tensor_create(&buffers[k], ek_group_device(group, k), EK_MEMORY_COMMUNICATION, EK_F32,
                            1, &count));
  }
  return EK_OK;
}

static ek_status allocate(struct ek__between *self) {
  const size_t moves = EK__BETWEEN_SETS * self->peers;
  EK_TRY(ek__new(&self->moves, moves, sizeof *self->moves, memory_of));
  EK_TRY(ek__new(&self->lists, moves, sizeof *self->lists, memory_of));
  const size_t sources = self->ranks > self->devices ? self->ranks : self->devices;
  EK_TRY(ek__new(&self->destinations, self->members, sizeof *self->destinations, memory_of));
  EK_TRY(ek__new(&self->sources, sources, sizeof *self->sources, memory_of));
  EK_TRY(ek__new(&self->buffers, self->devices, sizeof *self->buffers, memory_of));
  for (size_t i = 0; i < moves; i++) self->lists[i] = &self->moves[i];
  return ek__between_reserve(self->buffers, self->group, self->reach);
}

/* Which ranks each process has. */
static ek_status place_ranks(struct ek__between *self) {
  const bool shares = self->reach == EK__REACH_SHARES;
  const size_t own = ek_world_process(self->world);
  EK_TRY(ek__new(&self->first, self->peers + 2, sizeof *self->first, memory_of));
  for (size_t p = 0; p <= self->peers; p++) {
    const size_t count =
        ek__place_first_rank(self->place, p + 1) - ek__place_first_rank(self->place, p);
    self->first[p + 1] = self->first[p] + (shares ? 1 : count);
    if (self->first[p + 1] - self->first[p] > self->rounds) {
      self->rounds = self->first[p + 1] - self->first[p];
    }
  }
  self->folds = !shares && self->rounds > 1 && !ek_group_is_deterministic(self->group);
  self->first_rank = self->first[own];
  self->members = self->first[own + 1] - self->first[own];
  self->ranks = self->first[self->peers + 1];
  self->piece = ek__between_piece(self->ranks);
  return EK_OK;
}

ek_status ek__between_open(struct ek__between **between, ek_group *group, enum ek__reach reach,
                           bool urgent) {
  struct ek__between *self = NULL;
  EK_TRY(ek__new(&self, 1, sizeof *self, memory_of));
  self->place = ek__group_place(group);
  self->world = ek__group_world(group);
  self->group = group;
  self->reach = reach;
  self->urgent = urgent;
  self->devices = ek_group_size(group);
  self->peers = ek_world_processes(self->world) - 1;
  ek_status status = place_ranks(self);
  if (status == EK_OK) status = allocate(self);
  if (status == EK_OK) {
    *between = self;
  } else {
    ek__between_close(self);
  }
  return status;
}

void ek__between_close(struct ek__between *between) {
  if (between == NULL) return;
  for (size_t k = 0; k < between->devices && between->buffers != NULL; k++) {
    ek_tensor_free(&between->buffers[k]);
  }
  ek__free(between->buffers);
  ek__free(between->first);
  ek__free(between->sources);
  ek__free(between->destinations);
  ek__free(between->lists);
  ek__free(between->moves);
  ek__free(between);
}
