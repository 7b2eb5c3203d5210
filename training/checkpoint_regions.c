/*
 * checkpoint_regions.c - which process writes which region of a file of a state, and how the values
 * get there. Which files there are is found out in checkpoint_parts.c.
 *
 * The processes that see a file each write a region at the same time: whole entries, end to end,
 * cut so that regions are as equal as the largest entry permits. Whole, because the checksum of an
 * entry is over its bytes in order. Entries that are cut are cut over all processes, so that
 * another choice of entries for a part would save no traffic.
 *
 * A region is filled in rounds, a piece in each. In a round every process reads from its own
 * devices what it can of its piece; where entries are cut over the processes, every two processes
 * swap the parts that they have of each other's pieces, packed into one message. So each process
 * moves about 1/P of the state, and needs memory for two pieces besides those that are being
 * written.
 *
 * What each process has of another one's piece follows from the layout, which all of them compute
 * alike. A conversation opens each round: a process that has failed is heard there, and all end
 * with its error. Within a round a process that cannot read a value goes on to the end, so that the
 * bytes on the wire stay in step, and fails after it.
 *
 * The leader of each file alone gives it its name, after its regions are on the disk. A part gets
 * the name of one that waits, and loses that word after all parts have theirs: so a part that does
 * not wait says that there are all of them, or were. Older states are removed after that.
 */
#include <string.h>

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

/* ---- cutting a part into regions ---- */

static void measure(struct ek__region *region, const ek_checkpoint_write *self) {
  const struct ek__state_part *part = region->part;
  if (region->first == region->last) return;
  region->begin = part->begin + part->place[region->first];
  region->end = part->begin + part->place[region->last - 1] +
                ek__entry_bytes(self, part->order[region->last - 1]);
  region->page = region->begin - region->begin % EK__FILE_PAGE;
  const uint64_t eighth = (region->end - region->page) / 8;
  region->piece = eighth < LEAST_PIECE  ? LEAST_PIECE
                  : eighth > MOST_PIECE ? MOST_PIECE
                                        : (size_t)(eighth - eighth % EK__FILE_PAGE);
}

/* Each process that writes a part takes entries until it has its share of what is left. */
static void cut(ek_checkpoint_write *self, size_t number) {
  const struct ek__state_part *part = &self->parts[number];
  const size_t processes = self->several == 0 ? 1 : self->several;
  uint64_t left = 0;
  size_t next = 0, writers = part->writers;
  for (size_t i = 0; i < part->count; i++) left += ek__entry_bytes(self, part->order[i]);
  for (size_t p = 0; p < processes; p++) {
    struct ek__region *region = &self->regions[p];
    uint64_t taken = 0;
    if (self->part_of[p] != number || !self->writes[p]) continue;
    region->part = part;
    region->first = region->next = next;
    for (; next < part->count; next++) {
      const uint64_t bytes = ek__entry_bytes(self, part->order[next]);
      if (ek__is_enough(taken, bytes, left, 1, writers)) break;
      taken += bytes;
    }
    region->last = next;
    writers--;
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
  return ek__state_is_cut(model, self->infos[index].kind) ? PARTS : HERE;
}

static ek_status prepare_exchange(ek_checkpoint_write *self, const ek_data_parallel_model *model) {
  for (size_t p = 0; p < self->several; p++) {
    const struct ek__region *region = &self->regions[p];
    if (region->piece > self->packed_bytes) self->packed_bytes = region->piece;
    for (size_t i = region->first; i < region->last; i++) {
      if (source_of(self, model, region->part->order[i], p) != HERE) self->exchanges = true;
    }
  }
  EK_TRY(ek__new(&self->sums, self->count, sizeof *self->sums, memory_of));
  return self->exchanges ? ek__new(&self->packed, 2, self->packed_bytes, memory_of) : EK_OK;
}

ek_status ek__regions_open(ek_checkpoint_write *self, const ek_data_parallel_model *model) {
  const size_t processes = self->several == 0 ? 1 : self->several;
  EK_TRY(ek__parts_open(self, model));
  EK_TRY(ek__new(&self->regions, processes, sizeof *self->regions, memory_of));
  for (size_t i = 0; i < self->part_count; i++) cut(self, i);
  for (size_t p = 0; p < processes; p++) {
    struct ek__stretch piece;
    while (ek__region_piece(&piece, &self->regions[p], self->rounds)) self->rounds++;
  }
  return self->several > 0 ? prepare_exchange(self, model) : EK_OK;
}

void ek__regions_close(ek_checkpoint_write *self) {
  ek__free(self->sums);
  ek__free(self->packed);
  ek__free(self->regions);
  ek__parts_close(self);
}

/* ---- filling ---- */

/* Elements of one entry within a piece; they are at `place` in the file. Elements are not cut: they
 * are at multiples of their size, as pages are. */
struct run {
  size_t index, at, size; /* of the entry; its number in the part; bytes of an element */
  int64_t first, count;
  uint64_t place;
};

/* *at: where to go on in the order; region->next at first. */
static bool next_run(struct run *run, size_t *at, const ek_checkpoint_write *self,
                     const struct ek__region *region, const struct ek__stretch *piece) {
  while (*at < region->last) {
    const size_t index = region->part->order[*at], number = *at;
    const uint64_t place = region->part->begin + region->part->place[*at];
    const uint64_t end = place + ek__entry_bytes(self, index);
    if (place >= piece->to) break;
    (*at)++;
    const uint64_t first = place > piece->from ? place : piece->from;
    const uint64_t last = end < piece->to ? end : piece->to;
    if (first >= last) continue;
    const size_t size = ek_type_size(self->infos[index].like.type);
    *run = (struct run){index, number, size, (int64_t)((first - place) / size),
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
    struct ek__state_spans parts = {x->model, x->owner, run.index, run.first, run.count, 0};
    int64_t first = 0, count = 0;
    if (source == FIRST && x->owner == 0) {
      EK_TRY(handle(x, deed, &run, run.first, run.count, used));
    }
    while (source == PARTS && ek__state_next_span(&first, &count, &parts)) {
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
                                  .words = {self->plan.step, (int64_t)round}};
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
      EK_TRY(ek__safetensors_sum(self->file, run.at, data, (size_t)run.count * run.size));
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
      const struct ek__state_part *part = region->part;
      const uint64_t place = part->begin + part->place[region->next];
      if (place + ek__entry_bytes(self, part->order[region->next]) > piece.to) break;
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
  if (!ek__region_leads(self)) EK_TRY(ek__safetensors_sync(self->file));
  if (!self->read_back) return EK_OK;
  return ek__safetensors_compare(self->file, region->first, region->last);
}

/* Of each part, to its leader. The lock is held. */
static ek_status swap_sums(ek_checkpoint_write *self) {
  for (size_t i = 0; i < self->several; i++) {
    const size_t peer = ek__world_peer(self->world, i);
    const bool leads = ek__region_leads(self);
    if (peer == self->me || self->part_of[peer] != self->part_of[self->me]) continue;
    if (!leads && self->parts[self->part_of[peer]].leader != peer) continue;
    const struct ek__region *region = &self->regions[leads ? peer : self->me];
    const size_t bytes = (region->last - region->first) * sizeof *self->sums;
    uint64_t *sums = self->sums + region->first;
    EK_TRY(ek__world_swap(self->world, peer, sums, leads ? 0 : bytes, sums, leads ? bytes : 0));
  }
  return EK_OK;
}

ek_status ek__save_agree(ek_checkpoint_write *self, enum ek__save_stage stage, bool *met,
                         ek_status own, ek_status (*next)(ek_checkpoint_write *self)) {
  const struct ek__topic topic = {.kind = EK__TOPIC_AGREE,
                                  .doing = doing,
                                  .same = 2,
                                  .words = {self->plan.step, stage, own != EK_OK}};
  const int64_t *heard = NULL;
  bool failed = false;
  ek__world_lock(self->world);
  ek_status status = ek__world_talk(self->world, &topic, &heard);
  *met = status == EK_OK;
  for (size_t p = 0; p < self->several && status == EK_OK; p++) {
    failed = failed || heard[p * EK__TOPIC_WORDS + 2] != 0;
  }
  if (status == EK_OK && !failed) status = next(self);
  ek__world_unlock(self->world);
  if (status != EK_OK || !failed || own != EK_OK) return status;
  /* Here the others' error is heard. */
  return ek__world_agree(self->world, doing, self->plan.step);
}

ek_status ek__regions_collect(ek_checkpoint_write *self, ek_status status) {
  const struct ek__region *mine = &self->regions[self->me];
  char before[EK__MESSAGE_SIZE];
  if (self->several == 0) return status;
  ek__error_keep(before);
  for (size_t i = mine->first; i < mine->last && status == EK_OK; i++) {
    self->sums[i] = ek__safetensors_sum_of(self->file, i);
  }
  EK_TRY(ek__save_agree(self, EK__SAVE_WRITTEN, &self->collected, status, swap_sums));
  if (status != EK_OK) return ek_error_set(status, "%s", before);
  for (size_t i = mine->last; ek__region_leads(self) && i < mine->part->count; i++) {
    ek__safetensors_set_sum(self->file, i, self->sums[i]);
  }
  return EK_OK;
}

/* What there is in the folders of all leaders, sorted. One that cannot be read counts as empty:
 * then more states stay. */
static ek_status list_all(struct ek__state_name **all, size_t *count, ek_checkpoint_write *self) {
  struct ek__state_name *own = NULL;
  size_t own_count = 0, *ends = NULL;
  if (ek__region_leads(self) && ek__checkpoint_list(&own, &own_count, self->folder) != EK_OK) {
    own_count = 0;
  }
  ek_status status = ek__new(&ends, self->several, sizeof *ends, memory_of);
  if (status == EK_OK) {
    status = ek__world_gather(all, ends, self->world, doing, own, own_count * sizeof *own);
  }
  if (status == EK_OK) {
    *count = ends[self->several - 1] / sizeof *own;
    ek__checkpoint_sort(*all, *count);
  }
  ek__free(ends);
  ek__free(own);
  return status;
}

/* All parts are on the disks when the first conversation is over: no part is removed any more,
 * since with a part that does not wait the state is whole, and older states may go. */
ek_status ek__regions_end(ek_checkpoint_write *self) {
  struct ek__state_name *all = NULL;
  size_t count = 0;
  EK_TRY(list_all(&all, &count, self));
  ek_status status = EK_OK;
  if (self->apart && ek__region_leads(self)) {
    self->waits = false;
    status = ek__checkpoint_commit(self->folder, &self->name);
  }
  if (status == EK_OK && ek__region_leads(self)) {
    const struct ek__state_stay stay = ek__save_stay(self);
    ek__checkpoint_prune(self->folder, &self->name, &stay, all, count);
  }
  ek__free(all);
  return status;
}
