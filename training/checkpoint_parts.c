/*
 * checkpoint_parts.c - which files a state is saved in, which entries are in each, and its header.
 *
 * Which processes see one folder is found out by looking: process 0 creates its file with a random
 * token in it, and the others look for it in their own folders. The first process that does not see
 * it creates one, those that are left look for that, and so on: one round where all share a folder,
 * and one for each machine where disks are local. The processes that see a file write it together.
 *
 * If there is one file, it is that of one process, byte for byte. If there are several, and each
 * process has all of the state (mode replicated, or shares inside processes), each is that file
 * too: any of them is the whole state, whatever happens to the other disks. Otherwise each is a
 * part of the state, in proportion to the processes that write it: whole entries, and the program's
 * extras in each.
 *
 * The schedule in the header is looked up in the optimizer; it is not public.
 */
#define _GNU_SOURCE /* getrandom() */
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include <evenkeel/version.h>

#include "checkpoint_write.h"
#include "core/alloc.h"
#include "core/c_locale.h"
#include "core/error.h"
#include "io/file.h"
#include "io/writer.h"
#include "model_config.h"
#include "parallel/optimizer_internal.h"
#include "world/world_internal.h"

enum { NUMBER_SIZE = 32, SCHEDULE_SIZE = 256, PART_SIZE = 64 };

static const char memory_of[] = "a state to save", doing[] = "saving a state";

/* ---- finding the files ---- */

static const size_t nowhere = SIZE_MAX; /* a process that has not seen a file yet */

bool ek__region_leads(const ek_checkpoint_write *self) {
  const size_t part = self->part_of == NULL ? nowhere : self->part_of[self->me];
  return part < self->part_count && self->parts[part].leader == self->me;
}

ek_status ek__regions_meet(ek_checkpoint_write *self) {
  if (self->several == 0) return EK_OK;
  while (self->me == 0 && self->plan.save == 0) {
    if (getrandom(&self->plan.save, sizeof self->plan.save, 0) != (ssize_t)sizeof self->plan.save) {
      return ek__file_refused(self->folder, "no random bytes");
    }
  }
  return ek__world_share(self->world, &self->plan, sizeof self->plan);
}

/* What a process tells the others of the file that it has created. */
struct offer {
  char name[EK__CHECKPOINT_NAME_SIZE]; /* in the folder */
  unsigned char token[EK__WRITER_TOKEN];
};

static ek_status make_file(struct offer *offer, ek_checkpoint_write *self) {
  char path[EK_CHECKPOINT_PATH_SIZE];
  EK_TRY(ek__checkpoint_make_folder(self->folder));
  if (self->several > 0) {
    const struct ek__state_stay stay = ek__save_stay(self);
    self->read_back = ek__checkpoint_replaces(self->folder, &self->name, &stay);
  }
  EK_TRY(ek__checkpoint_path(path, self->folder, &self->name));
  EK_TRY(ek__new(&self->made.path, strlen(path) + EK__FILE_BESIDE_SIZE, 1, memory_of));
  EK_TRY(ek__file_create_beside(&self->made.file, self->made.path, path));
  if (self->several == 0) return EK_OK;
  const char *slash = strrchr(self->made.path, '/');
  (void)snprintf(offer->name, sizeof offer->name, "%s", slash + 1);
  if (getrandom(offer->token, sizeof offer->token, 0) != (ssize_t)sizeof offer->token) {
    return ek__file_refused(path, "no random bytes");
  }
  return ek__writer_file_offer(&self->made, offer->token);
}

static ek_status look(int64_t *sight, ek_checkpoint_write *self, struct offer *offer) {
  offer->name[sizeof offer->name - 1] = '\0';
  const size_t length = strlen(self->folder), name = strlen(offer->name) + 1;
  EK_TRY(ek__new(&self->made.path, length + 1 + name, 1, memory_of));
  memcpy(self->made.path, self->folder, length);
  self->made.path[length] = '/';
  memcpy(self->made.path + length + 1, offer->name, name);
  *sight = (int64_t)ek__writer_file_look(&self->made, offer->token);
  if (*sight == EK__SIGHT_NONE) ek__writer_file_close(&self->made, false);
  return EK_OK;
}

/* A process creates a file, and those that have seen none look for it. The lock is held. */
static ek_status find_one(ek_checkpoint_write *self, size_t leader) {
  const size_t part = self->part_count;
  struct offer offer = {0};
  int64_t own[2] = {EK__SIGHT_NONE, 0};
  const int64_t *heard = NULL;
  self->parts[part].leader = leader;
  self->part_of[leader] = part;
  self->writes[leader] = true;
  self->part_count++;
  if (self->me == leader) {
    EK_TRY(make_file(&offer, self));
    own[1] = self->read_back;
  }
  if (self->several == 0) return EK_OK;
  EK_TRY(ek__world_share_from(self->world, leader, &offer, sizeof offer));
  if (self->part_of[self->me] == nowhere) EK_TRY(look(&own[0], self, &offer));
  EK_TRY(ek__world_agree_on(self->world, doing, self->plan.step, own, 2, &heard));
  if (heard[leader * EK__TOPIC_WORDS + 2] != 0) self->read_back = true;
  for (size_t p = 0; p < self->several; p++) {
    const int64_t sight = heard[p * EK__TOPIC_WORDS + 1];
    if (self->part_of[p] != nowhere || sight == EK__SIGHT_NONE) continue;
    self->part_of[p] = part;
    self->writes[p] = sight == EK__SIGHT_WRITE;
  }
  return EK_OK;
}

static ek_status find_all(ek_checkpoint_write *self) {
  const size_t processes = self->several == 0 ? 1 : self->several;
  ek_status status = EK_OK;
  EK_TRY(ek__new(&self->parts, processes, sizeof *self->parts, memory_of));
  EK_TRY(ek__new(&self->part_of, processes, sizeof *self->part_of, memory_of));
  EK_TRY(ek__new(&self->writes, processes, sizeof *self->writes, memory_of));
  for (size_t p = 0; p < processes; p++) self->part_of[p] = nowhere;
  for (size_t p = 0; p < processes && status == EK_OK; p++) {
    if (self->part_of[p] != nowhere) continue;
    ek__world_lock(self->world);
    status = find_one(self, p);
    ek__world_unlock(self->world);
  }
  for (size_t p = 0; p < processes && status == EK_OK; p++) {
    self->parts[self->part_of[p]].writers += self->writes[p];
  }
  return status;
}

/* The others learn what the program's extras are. */
static ek_status share_extras(ek_checkpoint_write *self) {
  if (self->several == 0 || self->plan.extras == 0) return EK_OK;
  EK_TRY(ek__world_share(self->world, self->infos + self->own,
                         (size_t)self->plan.extras * sizeof *self->infos));
  for (size_t i = self->own; i < self->count; i++) self->entries[i].like = self->infos[i].like;
  return EK_OK;
}

/* ---- cutting the state into parts ---- */

uint64_t ek__entry_bytes(const ek_checkpoint_write *self, size_t index) {
  return ek_tensor_bytes(&self->infos[index].like);
}

bool ek__is_enough(uint64_t taken, uint64_t bytes, uint64_t left, size_t mine, size_t all) {
  const double share = (double)left * (double)mine / (double)all;
  return all > mine && (double)taken + (double)bytes / 2 > share;
}

static ek_status set_places(struct ek__state_part *part, const ek_checkpoint_write *self) {
  uint64_t place = 0;
  EK_TRY(ek__new(&part->place, part->count, sizeof *part->place, memory_of));
  for (size_t i = 0; i < part->count; i++) {
    part->place[i] = place;
    place += ek__entry_bytes(self, part->order[i]);
  }
  return EK_OK;
}

/* The entries of the model that a part takes, from *next of all on, and every extra. */
static ek_status take_entries(struct ek__state_part *part, ek_checkpoint_write *self, size_t *next,
                              uint64_t *left, size_t *writers) {
  const size_t first = *next;
  uint64_t taken = 0;
  for (; *next < self->count; ++*next) {
    const size_t index = self->order[*next];
    if (index >= self->own) continue;
    const uint64_t bytes = ek__entry_bytes(self, index);
    if (ek__is_enough(taken, bytes, *left, part->writers, *writers)) break;
    taken += bytes;
  }
  *left -= taken;
  *writers -= part->writers;
  EK_TRY(ek__new(&part->order, self->count, sizeof *part->order, memory_of));
  for (size_t i = 0; i < self->count; i++) {
    const bool mine = (i >= first && i < *next) || self->order[i] >= self->own;
    if (mine) part->order[part->count++] = self->order[i];
  }
  return set_places(part, self);
}

static ek_status cut_apart(ek_checkpoint_write *self) {
  uint64_t left = 0;
  size_t next = 0, writers = 0;
  for (size_t i = 0; i < self->own; i++) left += ek__entry_bytes(self, i);
  for (size_t i = 0; i < self->part_count; i++) writers += self->parts[i].writers;
  for (size_t i = 0; i < self->part_count; i++) {
    EK_TRY(take_entries(&self->parts[i], self, &next, &left, &writers));
  }
  return EK_OK;
}

/* Each file has all entries. */
static ek_status copy_parts(ek_checkpoint_write *self) {
  struct ek__state_part *first = &self->parts[0];
  EK_TRY(ek__new_copy(&first->order, self->order, self->count * sizeof *self->order, memory_of));
  first->count = self->count;
  EK_TRY(set_places(first, self));
  for (size_t i = 1; i < self->part_count; i++) {
    struct ek__state_part *part = &self->parts[i];
    part->count = first->count;
    part->order = first->order;
    part->place = first->place;
  }
  return EK_OK;
}

static ek_status make_parts(ek_checkpoint_write *self, const ek_data_parallel_model *model) {
  EK_TRY(ek__new(&self->order, self->count, sizeof *self->order, memory_of));
  ek__safetensors_order(self->order, self->entries, self->count);
  for (size_t i = 0; i < self->own && self->part_count > 1; i++) {
    self->apart = self->apart || ek__state_is_cut(model, self->infos[i].kind);
  }
  if (!self->apart) return copy_parts(self);
  self->name.save = self->plan.save;
  self->name.part = (uint32_t)self->part_of[self->me] + 1;
  self->name.parts = (uint32_t)self->part_count;
  self->name.waits = 1;
  return cut_apart(self);
}

/* The leader of each part begins its file; then all know where its entries are; then the others
 * join it. */
static ek_status begin_files(ek_checkpoint_write *self) {
  const size_t me = self->me;
  struct ek__state_part *part = &self->parts[self->part_of[me]];
  ek_safetensors_entry *entries = NULL;
  const int64_t *heard = NULL;
  EK_TRY(ek__new(&entries, part->count, sizeof *entries, memory_of));
  for (size_t i = 0; i < part->count; i++) entries[i] = self->entries[part->order[i]];
  ek_status status = ek__region_leads(self) ? ek__region_begin_file(self, entries) : EK_OK;
  if (status == EK_OK && self->file != NULL) part->begin = ek__safetensors_begin(self->file);
  const int64_t begin = (int64_t)part->begin;
  ek__world_lock(self->world);
  if (status == EK_OK && self->several > 0) {
    status = ek__world_agree_on(self->world, doing, self->plan.step, &begin, 1, &heard);
  }
  for (size_t i = 0; i < self->part_count && status == EK_OK && heard != NULL; i++) {
    const size_t leader = self->parts[i].leader;
    self->parts[i].begin = (uint64_t)heard[leader * EK__TOPIC_WORDS + 1];
  }
  ek__world_unlock(self->world);
  if (status == EK_OK && !ek__region_leads(self) && self->writes[me]) {
    status = ek__region_begin_file(self, entries);
  }
  ek__free(entries);
  return status;
}

/* ---- all of it ---- */

ek_status ek__parts_open(ek_checkpoint_write *self, const ek_data_parallel_model *model) {
  EK_TRY(share_extras(self));
  EK_TRY(find_all(self));
  EK_TRY(make_parts(self, model));
  return begin_files(self);
}

void ek__parts_close(ek_checkpoint_write *self) {
  const size_t *shared = self->parts == NULL ? NULL : self->parts[0].order;
  for (size_t i = 0; i < self->part_count; i++) {
    if (i > 0 && self->parts[i].order == shared) continue;
    ek__free(self->parts[i].order);
    ek__free(self->parts[i].place);
  }
  ek__free(self->order);
  ek__free(self->writes);
  ek__free(self->part_of);
  ek__free(self->parts);
}

/* ---- beginning the files ---- */

/* What the header of a file says besides its entries. */
struct pairs {
  ek_safetensors_pair *list;
  size_t count;
  char number[NUMBER_SIZE], schedule[SCHEDULE_SIZE], part[PART_SIZE];
  char *texts; /* of parts: a key and a value for each */
  struct ek__state_fact *facts;
};

static void add_pair(struct pairs *pairs, const char *key, const char *value) {
  pairs->list[pairs->count++] = (ek_safetensors_pair){key, value};
}

/* Which process has written each part, for a reader that misses one. */
static ek_status describe_parts(struct pairs *pairs, const ek_checkpoint_write *self) {
  char *text = NULL;
  EK_TRY(ek__new(&pairs->texts, self->part_count, (size_t)2 * EK__CHECKPOINT_WRITER_SIZE,
                 memory_of));
  (void)snprintf(pairs->part, sizeof pairs->part, EK__CHECKPOINT_PART_FORMAT, self->name.part,
                 self->name.parts, self->name.save);
  add_pair(pairs, EK__CHECKPOINT_PART_KEY, pairs->part);
  for (size_t i = 0; i < self->part_count; i++) {
    const size_t leader = self->parts[i].leader;
    text = pairs->texts + i * 2 * EK__CHECKPOINT_WRITER_SIZE;
    char *value = text + EK__CHECKPOINT_WRITER_SIZE;
    (void)snprintf(text, EK__CHECKPOINT_WRITER_SIZE, EK__CHECKPOINT_PART_KEY "/%zu", i + 1);
    (void)snprintf(value, EK__CHECKPOINT_WRITER_SIZE, "process %zu on %s", leader,
                   ek_world_host(self->world, leader));
    add_pair(pairs, text, value);
  }
  return EK_OK;
}

static void describe_schedule(struct pairs *pairs, const ek_schedule *s) {
  const locale_t before = ek__c_locale_begin();
  (void)snprintf(pairs->schedule, sizeof pairs->schedule, "%d %a %a %lld %lld %lld %a %a",
                 (int)s->kind, s->peak, s->floor, (long long)s->warmup, (long long)s->total,
                 (long long)s->decay, s->first, s->factor);
  ek__c_locale_end(before);
  add_pair(pairs, EK__CHECKPOINT_SCHEDULE_KEY, pairs->schedule);
}

static ek_status describe_file(struct pairs *pairs, const ek_checkpoint_write *self) {
  const struct ek__update *update = self->model->update;
  const struct ek__layout *layout = &self->model->run.ranks[0].replica->layout;
  size_t facts = 0;
  for (struct ek__state_fact fact = {0}; ek__config_next_state_fact(&fact, layout);) facts++;
  EK_TRY(ek__new(&pairs->facts, facts, sizeof *pairs->facts, memory_of));
  EK_TRY(ek__new(&pairs->list, self->part_count + facts + 5, sizeof *pairs->list, memory_of));
  (void)snprintf(pairs->number, sizeof pairs->number, "%lld", (long long)self->plan.position);
  add_pair(pairs, EK__CHECKPOINT_FORMAT_KEY, EK__CHECKPOINT_FORMAT);
  add_pair(pairs, EK__CHECKPOINT_VERSION_KEY, ek_version_string());
  add_pair(pairs, EK__CHECKPOINT_POSITION_KEY, pairs->number);
  if (update != NULL && update->schedule.kind != EK_SCHEDULE_FUNCTION) {
    describe_schedule(pairs, &update->schedule);
  }
  struct ek__state_fact fact = {0};
  for (size_t i = 0; ek__config_next_state_fact(&fact, layout); i++) {
    pairs->facts[i] = fact;
    add_pair(pairs, pairs->facts[i].key, pairs->facts[i].value);
  }
  return self->apart ? describe_parts(pairs, self) : EK_OK;
}

ek_status ek__region_begin_file(ek_checkpoint_write *self, const ek_safetensors_entry *entries) {
  const struct ek__state_part *part = &self->parts[self->part_of[self->me]];
  char path[EK_CHECKPOINT_PATH_SIZE];
  struct pairs pairs = {0};
  if (!ek__region_leads(self)) {
    return ek__safetensors_join(&self->file, &self->made, part->begin, entries, part->count);
  }
  ek_status status = ek__checkpoint_path(path, self->folder, &self->name);
  if (status == EK_OK) status = describe_file(&pairs, self);
  if (status == EK_OK) {
    status = ek__safetensors_create(&self->file, &self->made, path, entries, part->count,
                                    pairs.list, pairs.count);
  }
  ek__free(pairs.facts);
  ek__free(pairs.texts);
  ek__free(pairs.list);
  return status;
}
