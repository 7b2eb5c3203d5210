/*
 * safetensors_writer.c - tensors into a file that appears when it is complete.
 *
 * The header's length is known from the start, because a checksum has a fixed number of digits, and
 * its memory is taken then. Tensors are written after it, each at its own place, by any thread; the
 * header comes last, when the checksums are known. An abandoned file begins with zeros, which no
 * reader takes for a header.
 *
 * Durability order: the bytes are synced before the rename, and the folder before finish returns. A
 * child of fork() closes its descriptors and leaves the file to its parent.
 */
#include <evenkeel/safetensors.h>

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/process.h"
#include "core/sizes.h"
#include "io/file.h"
#include "io/header.h"
#include "io/writer.h"

/* One of the caller's entries: its own place, how much of it was given, and its checksum so far. */
struct part {
  size_t tensor; /* its number in the order of the file */
  uint64_t given;
  struct ek__checksum *sum;
};

struct ek_safetensors_writer {
  char *path, *temporary;
  int file;                        /* -1: not open */
  int direct;                      /* a second descriptor (file.h), or -1 */
  atomic_bool usable;              /* it is */
  struct ek__process process;      /* which writes */
  char *header;                    /* the first `begin` bytes of the file */
  uint64_t begin, bytes;           /* of the tensors, which are end to end */
  struct ek__file_tensor *tensors; /* in the order of the file; names are the writer's */
  struct part *parts;              /* in the order of the caller */
  size_t count;
  ek_safetensors_pair *pairs; /* the writer's */
  size_t pair_count;
  atomic_bool failed;
};

/* ---- beginning ---- */

static const char memory_of[] = "a file that is written";

static ek_status copy_text(const char **copy, const char *text, const char *what) {
  EK__FAIL_IF(text == NULL, EK_ERR_INVALID_ARGUMENT, "ek_safetensors_create: %s is NULL", what);
  return ek__new_copy(copy, text, strlen(text) + 1, memory_of);
}

static ek_status copy_entry(ek_safetensors_writer *self, size_t index,
                            const ek_safetensors_entry *entry) {
  struct ek__file_tensor *tensor = &self->tensors[index];
  int64_t count = 1, bytes = 0;
  const ek_tensor *like = &entry->like;
  EK_TRY(copy_text(&tensor->entry.name, entry->name, "a name"));
  const size_t size = ek_type_size(like->type);
  EK__FAIL_IF(size == 0 || like->rank < 0 || like->rank > EK_MAX_RANK, EK_ERR_TYPE,
              "ek_safetensors_create: %s has no type or no rank", entry->name);
  for (int i = 0; i < like->rank; i++) {
    EK__FAIL_IF(like->shape[i] < 0 || !ek__multiply(&count, count, like->shape[i]), EK_ERR_OVERFLOW,
                "ek_safetensors_create: the shape of %s is negative or "
                "too large",
                entry->name);
    tensor->entry.like.shape[i] = like->shape[i];
  }
  EK__FAIL_IF(!ek__multiply(&bytes, count, (int64_t)size), EK_ERR_OVERFLOW,
              "ek_safetensors_create: %s is too large", entry->name);
  tensor->entry.like.type = like->type;
  tensor->entry.like.rank = like->rank;
  tensor->bytes = (uint64_t)bytes;
  tensor->first = index; /* of the caller, until the tensors have their places */
  return EK_OK;
}

static int by_size_of_type(const void *left, const void *right) {
  const struct ek__file_tensor *a = left, *b = right;
  const size_t sa = ek_type_size(a->entry.like.type), sb = ek_type_size(b->entry.like.type);
  if (sa != sb) return sa > sb ? -1 : 1;
  return a->first < b->first ? -1 : 1;
}

static ek_status lay_out(ek_safetensors_writer *self) {
  int64_t end = 0;
  if (self->count > 0) {
    qsort(self->tensors, self->count, sizeof *self->tensors, by_size_of_type);
  }
  for (size_t i = 0; i < self->count; i++) {
    struct ek__file_tensor *tensor = &self->tensors[i];
    self->parts[tensor->first].tensor = i;
    tensor->first = (uint64_t)end;
    EK__FAIL_IF(!ek__add(&end, end, (int64_t)tensor->bytes), EK_ERR_OVERFLOW,
                "ek_safetensors_create: the tensors are too large");
  }
  self->bytes = (uint64_t)end;
  return EK_OK;
}

static ek_status copy_all(ek_safetensors_writer *self, const ek_safetensors_entry *entries,
                          const ek_safetensors_pair *pairs) {
  for (size_t i = 0; i < self->count; i++) EK_TRY(copy_entry(self, i, &entries[i]));
  for (size_t i = 0; i < self->pair_count; i++) {
    EK_TRY(copy_text(&self->pairs[i].key, pairs[i].key, "a key"));
    EK_TRY(copy_text(&self->pairs[i].value, pairs[i].value, "a value"));
  }
  for (size_t i = 0; i < self->count; i++) {
    self->parts[i].sum = ek__checksum_new();
    EK__FAIL_IF(self->parts[i].sum == NULL, EK_ERR_OUT_OF_MEMORY, "out of host memory for %s",
                memory_of);
  }
  return lay_out(self);
}

enum { PREFIX = 8 }; /* bytes, of the length of the header's text */

static ek_status make_header(ek_safetensors_writer *self) {
  size_t length = 0;
  EK_TRY(ek__header_length(&length, self->tensors, self->count, self->pairs, self->pair_count));
  self->begin = PREFIX + length;
  return ek__new(&self->header, 1, (size_t)self->begin, memory_of);
}

static ek_status write_header(ek_safetensors_writer *self) {
  const size_t length = (size_t)self->begin - PREFIX;
  for (size_t i = 0; i < PREFIX; i++) self->header[i] = (char)(uint8_t)(length >> 8 * i);
  ek__header_write(self->header + PREFIX, self->tensors, self->count, self->pairs,
                   self->pair_count);
  return ek__file_write(self->file, self->temporary, self->header, (size_t)self->begin, 0);
}

static ek_status prepare(ek_safetensors_writer *self, const char *path,
                         const ek_safetensors_entry *entries, const ek_safetensors_pair *pairs) {
  const size_t length = strlen(path);
  EK_TRY(ek__process_watch());
  self->process = ek__process_this();
  EK_TRY(ek__new_copy(&self->path, path, length + 1, memory_of));
  EK_TRY(ek__new(&self->temporary, 1, length + EK__FILE_BESIDE_SIZE, memory_of));
  EK_TRY(ek__new(&self->tensors, self->count, sizeof *self->tensors, memory_of));
  EK_TRY(ek__new(&self->parts, self->count, sizeof *self->parts, memory_of));
  EK_TRY(ek__new(&self->pairs, self->pair_count, sizeof *self->pairs, memory_of));
  EK_TRY(copy_all(self, entries, pairs));
  EK_TRY(make_header(self));
  EK_TRY(ek__file_create_beside(&self->file, self->temporary, path));
  self->direct = ek__file_open_direct(self->temporary);
  atomic_store(&self->usable, self->direct >= 0);
  return self->direct < 0
             ? EK_OK
             : ek__file_reserve(self->file, self->temporary, self->begin + self->bytes);
}

ek_status ek_safetensors_create(ek_safetensors_writer **writer, const char *path,
                                const ek_safetensors_entry *entries, size_t count,
                                const ek_safetensors_pair *pairs, size_t pair_count) {
  EK__NOT_NULL("ek_safetensors_create", writer, path);
  EK__FAIL_IF((entries == NULL && count > 0) || (pairs == NULL && pair_count > 0),
              EK_ERR_INVALID_ARGUMENT, "ek_safetensors_create: entries or pairs are NULL");
  ek_safetensors_writer *self = NULL;
  EK_TRY(ek__new(&self, 1, sizeof *self, memory_of));
  self->file = self->direct = -1;
  self->count = count;
  self->pair_count = pair_count;
  const ek_status status = prepare(self, path, entries, pairs);
  if (status == EK_OK) {
    *writer = self;
  } else {
    ek_safetensors_writer_free(self);
  }
  return status;
}

/* ---- tensors ---- */

static ek_status check_open(const ek_safetensors_writer *self) {
  EK__FAIL_IF(ek__process_is_child(&self->process), EK_ERR_STATE,
              "%s: it is written by process %ld; a child made by fork() cannot use "
              "it", self->path, self->process.id);
  EK__FAIL_IF(self->file < 0 || atomic_load(&self->failed), EK_ERR_STATE,
              "%s: the file is finished, or a write has failed", self->path);
  return EK_OK;
}

ek_status ek__safetensors_sum(ek_safetensors_writer *writer, size_t index, const void *data,
                              size_t bytes) {
  struct part *part = &writer->parts[index];
  const struct ek__file_tensor *tensor = &writer->tensors[part->tensor];
  EK__FAIL_IF(bytes > tensor->bytes - part->given, EK_ERR_SHAPE,
              "%s: tensor %s: more bytes were written than it "
              "has", writer->path, tensor->entry.name);
  ek__checksum_add(part->sum, data, bytes);
  part->given += bytes;
  return EK_OK;
}

ek_status ek__safetensors_put(ek_safetensors_writer *writer, const void *data, size_t bytes,
                              uint64_t place) {
  EK_TRY(check_open(writer));
  const ek_status status = ek__file_write_pages(writer->file, writer->direct, &writer->usable,
                                                writer->temporary, data, bytes, place);
  if (status != EK_OK) atomic_store(&writer->failed, true);
  return status;
}

uint64_t ek__safetensors_place(const ek_safetensors_writer *writer, size_t index) {
  return writer->begin + writer->tensors[writer->parts[index].tensor].first;
}

size_t ek__safetensors_order(const ek_safetensors_writer *writer, size_t index) {
  return writer->parts[index].tensor;
}

ek_status ek_safetensors_write(ek_safetensors_writer *writer, size_t index, const void *data,
                               size_t bytes) {
  EK__NOT_NULL("ek_safetensors_write", writer);
  EK__FAIL_IF(index >= writer->count || (data == NULL && bytes > 0), EK_ERR_INVALID_ARGUMENT,
              "ek_safetensors_write: no tensor number %zu, or data is NULL", index);
  EK_TRY(check_open(writer));
  const uint64_t place = ek__safetensors_place(writer, index) + writer->parts[index].given;
  EK_TRY(ek__safetensors_sum(writer, index, data, bytes));
  return ek__safetensors_put(writer, data, bytes, place);
}

/* ---- ending ---- */

static ek_status complete(ek_safetensors_writer *self) {
  EK_TRY(check_open(self));
  for (size_t i = 0; i < self->count; i++) {
    struct ek__file_tensor *tensor = &self->tensors[self->parts[i].tensor];
    EK__FAIL_IF(self->parts[i].given < tensor->bytes, EK_ERR_STATE, "%s: tensor %s is not complete",
                self->path, tensor->entry.name);
    tensor->checksum = ek__checksum_end(self->parts[i].sum);
  }
  return EK_OK;
}

/* The reader takes it as it stands on the disk, with all of its checksums. */
static ek_status read_again(const ek_safetensors_writer *self) {
  ek_safetensors *file = NULL;
  ek_status status = ek_safetensors_open(&file, self->temporary);
  if (status == EK_OK && !ek_safetensors_has_checksums(file)) {
    status = ek_error_set(EK_ERR_CORRUPT, "%s: checksums are missing", self->temporary);
  }
  if (status == EK_OK) status = ek_safetensors_check(file);
  ek_safetensors_free(file);
  if (status != EK_ERR_CORRUPT) return status;
  return ek_error_set(EK_ERR_IO, "reading the file back gives other bytes than were written: %s",
                      ek_error_message());
}

ek_status ek__safetensors_finish(ek_safetensors_writer *writer, bool read_back) {
  EK_TRY(complete(writer));
  ek_status status = write_header(writer);
  if (status == EK_OK && read_back) status = read_again(writer);
  if (status != EK_OK) {
    atomic_store(&writer->failed, true);
    return status;
  }
  ek__file_close(writer->direct);
  writer->direct = -1;
  status = ek__file_replace(writer->file, writer->temporary, writer->path, true);
  writer->file = -1;
  return status;
}

ek_status ek_safetensors_finish(ek_safetensors_writer *writer) {
  EK__NOT_NULL("ek_safetensors_finish", writer);
  return ek__safetensors_finish(writer, false);
}

void ek_safetensors_writer_free(ek_safetensors_writer *writer) {
  if (writer == NULL) return;
  ek__file_close(writer->direct);
  if (writer->file >= 0) {
    if (!ek__process_is_child(&writer->process)) (void)unlink(writer->temporary);
    ek__file_close(writer->file); /* and its lock */
  }
  for (size_t i = 0; i < writer->count; i++) {
    if (writer->tensors != NULL) ek__free((char *)(uintptr_t)writer->tensors[i].entry.name);
    if (writer->parts != NULL) ek__checksum_free(writer->parts[i].sum);
  }
  for (size_t i = 0; i < writer->pair_count && writer->pairs != NULL; i++) {
    ek__free((char *)(uintptr_t)writer->pairs[i].key);
    ek__free((char *)(uintptr_t)writer->pairs[i].value);
  }
  ek__free(writer->header);
  ek__free(writer->pairs);
  ek__free(writer->parts);
  ek__free(writer->tensors);
  ek__free(writer->temporary);
  ek__free(writer->path);
  ek__free(writer);
}
