/*
 * checkpoint_regions.c - which process writes which part of a state's file, and how the values get
 * there.
 *
 * The file of several processes is that of one process, byte for byte. Process 0 creates it, and
 * the others look for it under its temporary name. The processes that see it, by a token in it,
 * each write a region at the same time: whole entries, end to end, cut so that regions are as equal
 * as the largest entry permits. Whole, because the checksum of an entry is over its bytes in order.
 * Where no file system is shared, process 0 writes everything, and where some processes share one
 * with process 0, these do.
 *
 * A region is filled in rounds, a piece in each. In a round every process reads from its own devices
 * what it can of its piece; where entries are cut over the processes, every two processes swap the
 * parts that they have of each other's pieces, packed into one message. So each process moves about
 * 1/P of the state, and needs memory for two pieces besides those that are being written.
 *
 * What each process has of another one's piece follows from the layout, which all of them compute
 * alike. A conversation opens each round: a process that has failed is heard there, and all end with
 * its error. Within a round a process that cannot read a value goes on to the end, so that the bytes
 * on the wire stay in step, and fails after it.
 *
 * Process 0 alone gives the file its name, after all regions are on the disk.
 */
#define _GNU_SOURCE /* getrandom() */
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "checkpoint_write.h"
#include "core/alloc.h"
#include "core/error.h"
#include "io/file.h"
#include "io/writer.h"
#include "parallel/optimizer_internal.h"
#include "world/world_internal.h"

/* A piece is an eighth of a region, within these bounds: small files, too, are written by
 * several threads. */
enum { LEAST_PIECE = 256 << 10, MOST_PIECE = 8 << 20 };

static const char memory_of[] = "a state to save", doing[] = "saving a state";

/* ---- finding the file ---- */

static ek_status make_offer(struct ek__region_offer *offer, const ek_checkpoint_write *self) {
  const char *path = ek__safetensors_temporary(self->file), *slash = strrchr(path, '/');
  const char *name = slash == NULL ? path : slash + 1;
  EK__FAIL_IF(strlen(name) >= sizeof offer->name, EK_ERR_INVALID_ARGUMENT,
              "%s: the name is too long", path);
  memcpy(offer->name, name, strlen(name) + 1);
  offer->begin = ek__safetensors_begin(self->file);
  offer->step = self->step;
  offer->extras = self->extra_count;
  offer->read_back = self->read_back;
  if (getrandom(offer->token, sizeof offer->token, 0) != (ssize_t)sizeof offer->token) {
    return ek__file_refused(path, "no random bytes");
  }
  return ek__safetensors_offer(self->file, offer->token);
}

ek_status ek__regions_meet(ek_checkpoint_write *self) {
  if (self->several == 0) return EK_OK;
  if (self->me == 0) EK_TRY(make_offer(&self->offer, self));
  EK_TRY(ek__world_share(self->world, &self->offer, sizeof self->offer));
  if (self->me == 0) return EK_OK;
  self->offer.name[sizeof self->offer.name - 1] = '\0';
  self->step = self->offer.step;
  self->read_back = self->offer.read_back;
  self->extra_count = (size_t)self->offer.extras;
  return EK_OK;
}

static ek_status join(ek_checkpoint_write *self, bool *sees, const char *folder) {
  const struct ek__region_offer *offer = &self->offer;
  char *path = NULL;
  const size_t length = strlen(folder), name = strlen(offer->name) + 1;
  EK_TRY(ek__new(&path, length + 1 + name, 1, memory_of));
  memcpy(path, folder, length);
  path[length] = '/';
  memcpy(path + length + 1, offer->name, name);
  struct ek__writer_offer there = {.temporary = path, .begin = offer->begin};
  memcpy(there.token, offer->token, sizeof there.token);
  const ek_status status =
      ek__safetensors_join(&self->file, sees, &there, self->entries, self->count);
  ek__free(path);
  return status;
}

/* Which processes see the file; `all` of them are told. */
static ek_status tell_sight(bool *all, const ek_checkpoint_write *self, bool sees) {
  const int64_t *heard = NULL, own = sees;
  ek__world_lock(self->world);
  const ek_status status = ek__world_agree_on(self->world, doing, self->step, &own, 1, &heard);
  for (size_t p = 0; p < self->several && status == EK_OK; p++) {
    all[p] = p == 0 || heard[p * EK__TOPIC_WORDS + 1] != 0;
  }
  ek__world_unlock(self->world);
  return status;
}

/* The others know the extras, and open the file. */
static ek_status find(bool *all, ek_checkpoint_write *self, const char *folder) {
  bool sees = true;
  if (self->extra_count > 0) {
    EK_TRY(ek__world_share(self->world, self->infos + self->own,
                           self->extra_count * sizeof *self->infos));
  }
  for (size_t i = self->own; i < self->count; i++) self->entries[i].like = self->infos[i].like;
  if (self->me != 0) EK_TRY(join(self, &sees, folder));
  return tell_sight(all, self, sees);
}

/* ---- cutting it ---- */

static uint64_t place_of(const ek_checkpoint_write *self, size_t index) {
  return ek__safetensors_place(self->file, index);
}

static uint64_t bytes_of(const ek_checkpoint_write *self, size_t index) {
  return ek_tensor_bytes(&self->infos[index].like);
}

static void measure(struct ek__region *region, const ek_checkpoint_write *self) {
  if (region->first == region->last) return;
  const size_t last = self->order[region->last - 1];
  region->begin = place_of(self, self->order[region->first]);
  region->end = place_of(self, last) + bytes_of(self, last);
  region->page = region->begin - region->begin % EK__FILE_PAGE;
  const uint64_t eighth = (region->end - region->page) / 8;
  region->piece = eighth < LEAST_PIECE  ? LEAST_PIECE
                  : eighth > MOST_PIECE ? MOST_PIECE
                                        : (size_t)(eighth - eighth % EK__FILE_PAGE);
}

/* Each process that sees the file takes entries until it has its part of what is left. */
static void cut(ek_checkpoint_write *self, const bool *sees, size_t processes) {
  uint64_t left = 0, writers = 0;
  size_t next = 0;
  for (size_t i = 0; i < self->count; i++) left += bytes_of(self, i);
  for (size_t p = 0; p < processes; p++) writers += sees[p];
  for (size_t p = 0; p < processes; p++) {
    struct ek__region *region = &self->regions[p];
    uint64_t taken = 0;
    region->first = region->next = next;
    while (sees[p] && next < self->count) {
      const uint64_t bytes = bytes_of(self, self->order[next]);
      if (writers > 1 && taken + bytes / 2 > left / writers) break;
      taken += bytes;
      next++;
    }
    region->last = next;
    writers -= sees[p];
    left -= taken;
    measure(region, self);
  }
}

bool ek__region_piece(struct ek__stretch *piece, const struct ek__region *region, size_t round) {
  const uint64_t page = region->page + round * region->piece;
  if (region->begin >= region->end || page >= region->end) return false;
  piece->page = page;
  piece->from = page > region->begin ? page : region->begin;
  piece->to = region->end - page < region->piece ? region->end : page + region->piece;
  return true;
}

/* Where the values of an entry come from, for the process that writes it. */
enum source {
  HERE,  /* it has them */
  FIRST, /* from process 0: the program's extras, and buffers, which processes may have unlike */
  PARTS  /* each process has some */
};

static enum source source_of(const ek_checkpoint_write *self, const ek_data_parallel_model *model,
                             size_t index, size_t writer) {
  if (index >= self->own || self->infos[index].kind == EK_STATE_KIND_BUFFER) {
    return writer == 0 ? HERE : FIRST;
  }
  return ek__state_is_cut(model, &self->infos[index]) ? PARTS : HERE;
}

static ek_status prepare_exchange(ek_checkpoint_write *self, const ek_data_parallel_model *model) {
  for (size_t p = 0; p < self->several; p++) {
    const struct ek__region *region = &self->regions[p];
    if (region->piece > self->packed_bytes) self->packed_bytes = region->piece;
    for (size_t i = region->first; i < region->last; i++) {
      if (source_of(self, model, self->order[i], p) != HERE) self->exchanges = true;
    }
  }
  EK_TRY(ek__new(&self->sums, self->count, sizeof *self->sums, memory_of));
  return self->exchanges ? ek__new(&self->packed, 2, self->packed_bytes, memory_of) : EK_OK;
}

ek_status ek__regions_open(ek_checkpoint_write *self, const ek_data_parallel_model *model,
                           const char *folder) {
  const size_t processes = self->several == 0 ? 1 : self->several;
  bool *sees = NULL;
  ek_status status = EK_OK;
  EK_TRY(ek__new(&sees, processes, sizeof *sees, memory_of));
  sees[0] = true;
  if (self->several > 0) EK_TRY_GOTO(status, find(sees, self, folder), cleanup);
  EK_TRY_GOTO(status, ek__new(&self->order, self->count, sizeof *self->order, memory_of), cleanup);
  EK_TRY_GOTO(status, ek__new(&self->regions, processes, sizeof *self->regions, memory_of),
              cleanup);
  for (size_t i = 0; i < self->count; i++) {
    self->order[ek__safetensors_order(self->file, i)] = i;
  }
  cut(self, sees, processes);
  for (size_t p = 0; p < processes; p++) {
    struct ek__stretch piece;
    while (ek__region_piece(&piece, &self->regions[p], self->rounds)) self->rounds++;
  }
  if (self->several > 0) EK_TRY_GOTO(status, prepare_exchange(self, model), cleanup);
cleanup:
  ek__free(sees);
  return status;
}

void ek__regions_close(ek_checkpoint_write *self) {
  ek__free(self->sums);
  ek__free(self->packed);
  ek__free(self->regions);
  ek__free(self->order);
}

/* ---- filling ---- */

/* Elements of one entry within a piece; they are at `place` in the file. Elements are not cut: they
 * are at multiples of their size, as pages are. */
struct run {
  size_t index, size; /* of the entry; bytes of an element */
  int64_t first, count;
  uint64_t place;
};

/* *at: where to go on in the order; region->next at first. */
static bool next_run(struct run *run, size_t *at, const ek_checkpoint_write *self,
                     const struct ek__region *region, const struct ek__stretch *piece) {
  while (*at < region->last) {
    const size_t index = self->order[*at];
    const uint64_t place = place_of(self, index), end = place + bytes_of(self, index);
    if (place >= piece->to) break;
    (*at)++;
    const uint64_t first = place > piece->from ? place : piece->from;
    const uint64_t last = end < piece->to ? end : piece->to;
    if (first >= last) continue;
    const size_t size = ek_type_size(self->infos[index].like.type);
    *run = (struct run){index, size, (int64_t)((first - place) / size),
                        (int64_t)((last - first) / size), first};
    return true;
  }
  return false;
}

/* Elements that this process has, of the model or of an extra. */
static ek_status read_here(void *data, const ek_checkpoint_write *self,
                           const ek_data_parallel_model *model, size_t index, int64_t first,
                           int64_t count) {
  const ek_type type = self->infos[index].like.type;
  ek_tensor host = {.data = data, .type = type, .rank = 1, .shape = {count}};
  if (index < self->own) return ek__state_read_own(&host, model, index, first);
  const size_t size = ek_type_size(type);
  const char *value = self->extras[index - self->own].value.data;
  if (count > 0) memcpy(data, value + (size_t)first * size, (size_t)count * size);
  return EK_OK;
}

enum deed { COUNT, PACK, UNPACK };

/* One process's piece and another's parts of it. */
struct exchange {
  ek_checkpoint_write *self;
  const ek_data_parallel_model *model;
  size_t writer, owner, round;
  char *packed;
  char *image; /* of the writer, which is this process: begins with byte `page` of the file */
  uint64_t page;
};

static ek_status handle(const struct exchange *x, enum deed deed, const struct run *run,
                        int64_t first, int64_t count, size_t *used) {
  const size_t bytes = (size_t)count * run->size;
  char *packed = x->packed + *used;
  *used += bytes;
  if (deed == PACK) return read_here(packed, x->self, x->model, run->index, first, count);
  if (deed == UNPACK) {
    const uint64_t place = run->place + (uint64_t)(first - run->first) * run->size;
    memcpy(x->image + (place - x->page), packed, bytes);
  }
  return EK_OK;
}

/* Counts, packs or unpacks the owner's parts of the writer's piece. *used: their bytes. */
static ek_status exchange(const struct exchange *x, enum deed deed, size_t *used) {
  const struct ek__region *region = &x->self->regions[x->writer];
  struct ek__stretch piece;
  struct run run;
  *used = 0;
  if (!ek__region_piece(&piece, region, x->round)) return EK_OK;
  for (size_t at = region->next; next_run(&run, &at, x->self, region, &piece);) {
    const enum source source = source_of(x->self, x->model, run.index, x->writer);
    struct ek__state_parts parts = {x->model, x->owner, run.index, run.first, run.count, 0};
    int64_t first = 0, count = 0;
    if (source == FIRST && x->owner == 0) {
      EK_TRY(handle(x, deed, &run, run.first, run.count, used));
    }
    while (source == PARTS && ek__state_next_part(&first, &count, &parts)) {
      EK_TRY(handle(x, deed, &run, first, count, used));
    }
  }
  return EK_OK;
}

/* Sends a process what this one has of its piece, and receives the same. *status: the first failure
 * of this process; the status that is returned is the wire's. */
static ek_status swap_with(size_t peer, ek_checkpoint_write *self,
                           const ek_data_parallel_model *model, size_t round, char *image,
                           uint64_t page, ek_status *status) {
  struct exchange out = {self, model, peer, self->me, round, self->packed, NULL, 0};
  struct exchange in = {self, model, self->me, peer, round, self->packed + self->packed_bytes,
                        image, page};
  size_t out_bytes = 0, in_bytes = 0, used = 0;
  (void)exchange(&out, COUNT, &out_bytes);
  (void)exchange(&in, COUNT, &in_bytes);
  if (out_bytes > 0 && *status == EK_OK) *status = exchange(&out, PACK, &used);
  if (out_bytes + in_bytes > 0) {
    EK_TRY(ek__world_swap(self->world, peer, out.packed, out_bytes, in.packed, in_bytes));
    ek__world_count(self->world, out_bytes, in_bytes);
  }
  return exchange(&in, UNPACK, &used);
}

static ek_status swap_all(ek_checkpoint_write *self, const ek_data_parallel_model *model,
                          size_t round, char *image, uint64_t page) {
  const struct ek__topic topic = {.kind = EK__TOPIC_AGREE,
                                  .doing = doing,
                                  .same = 2,
                                  .words = {self->step, (int64_t)round}};
  ek_status failed = EK_OK;
  ek__world_lock(self->world);
  ek_status status = ek__world_talk(self->world, &topic, NULL);
  for (size_t i = 0; i < self->several && status == EK_OK && self->exchanges; i++) {
    const size_t peer = ek__world_peer(self->world, i);
    if (peer != self->me) {
      status = swap_with(peer, self, model, round, image, page, &failed);
    }
  }
  ek__world_unlock(self->world);
  return status == EK_OK ? failed : status;
}

/* Reads what is here of this process's piece, or sums what has come. */
static ek_status fill_own(ek_checkpoint_write *self, const ek_data_parallel_model *model,
                          const struct ek__stretch *piece, char *image, uint64_t page, bool come) {
  const struct ek__region *region = &self->regions[self->me];
  struct run run;
  for (size_t at = region->next; next_run(&run, &at, self, region, piece);) {
    const enum source source = source_of(self, model, run.index, self->me);
    char *data = image + (run.place - page);
    if (!come && source != FIRST) {
      EK_TRY(read_here(data, self, model, run.index, run.first, run.count));
    }
    if (come == (source != HERE)) {
      EK_TRY(ek__safetensors_sum(self->file, run.index, data, (size_t)run.count * run.size));
    }
  }
  return EK_OK;
}

/* Passes over the entries that a round has ended. */
static void advance(ek_checkpoint_write *self, size_t round) {
  for (size_t p = 0; p == 0 || p < self->several; p++) {
    struct ek__region *region = &self->regions[p];
    struct ek__stretch piece;
    if (!ek__region_piece(&piece, region, round)) continue;
    while (region->next < region->last) {
      const size_t index = self->order[region->next];
      if (place_of(self, index) + bytes_of(self, index) > piece.to) break;
      region->next++;
    }
  }
}

ek_status ek__regions_fill(ek_checkpoint_write *self, const ek_data_parallel_model *model,
                           size_t round, char *image, uint64_t page) {
  struct ek__stretch piece;
  const bool mine = ek__region_piece(&piece, &self->regions[self->me], round);
  if (mine) EK_TRY(fill_own(self, model, &piece, image, page, false));
  if (self->several > 0) {
    EK_TRY(swap_all(self, model, round, image, page));
    if (mine) EK_TRY(fill_own(self, model, &piece, image, page, true));
  }
  advance(self, round);
  return EK_OK;
}

/* ---- ending ---- */

ek_status ek__region_settle(ek_checkpoint_write *self) {
  const struct ek__region *region = &self->regions[self->me];
  if (self->several == 0 || region->first == region->last) return EK_OK;
  if (self->me != 0) EK_TRY(ek__safetensors_sync(self->file));
  if (!self->read_back) return EK_OK;
  return ek__safetensors_compare(self->file, self->order + region->first,
                                 region->last - region->first);
}

/* The lock is held. */
static ek_status swap_sums(ek_checkpoint_write *self) {
  for (size_t i = 0; i < self->several; i++) {
    const size_t peer = ek__world_peer(self->world, i);
    const size_t writer = self->me == 0 ? peer : self->me;
    const struct ek__region *region = &self->regions[writer];
    const size_t bytes = (region->last - region->first) * sizeof *self->sums;
    uint64_t *sums = self->sums + region->first;
    if (peer == self->me || (peer != 0 && self->me != 0) || bytes == 0) continue;
    EK_TRY(ek__world_swap(self->world, peer, sums, self->me == 0 ? 0 : bytes, sums,
                          self->me == 0 ? bytes : 0));
  }
  return EK_OK;
}

/* All tell each other whether their regions are on the disk; then the sums move. */
static ek_status meet_again(ek_checkpoint_write *self, ek_status own) {
  const struct ek__topic topic = {.kind = EK__TOPIC_AGREE,
                                  .doing = doing,
                                  .same = 2,
                                  .words = {self->step, -1, own != EK_OK}};
  const int64_t *heard = NULL;
  bool failed = false;
  ek__world_lock(self->world);
  ek_status status = ek__world_talk(self->world, &topic, &heard);
  if (status == EK_OK) self->collected = true;
  for (size_t p = 0; p < self->several && status == EK_OK; p++) {
    failed = failed || heard[p * EK__TOPIC_WORDS + 2] != 0;
  }
  if (status == EK_OK && !failed) status = swap_sums(self);
  ek__world_unlock(self->world);
  if (status != EK_OK || !failed || own != EK_OK) return status;
  /* Here the others' error is heard. */
  return ek__world_agree(self->world, doing, self->step);
}

ek_status ek__regions_collect(ek_checkpoint_write *self, ek_status status) {
  const struct ek__region *mine = &self->regions[self->me];
  char before[EK__MESSAGE_SIZE];
  if (self->several == 0) return status;
  ek__error_keep(before);
  for (size_t i = mine->first; i < mine->last && status == EK_OK; i++) {
    self->sums[i] = ek__safetensors_sum_of(self->file, self->order[i]);
  }
  EK_TRY(meet_again(self, status));
  if (status != EK_OK) return ek_error_set(status, "%s", before);
  for (size_t i = mine->last; self->me == 0 && i < self->count; i++) {
    ek__safetensors_set_sum(self->file, self->order[i], self->sums[i]);
  }
  return EK_OK;
}
