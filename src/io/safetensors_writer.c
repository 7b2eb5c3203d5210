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
 *
 * Several processes may write one file. One of them creates it and ends it; the others look for it
 * under its temporary name, where a token that the first has written tells them that it is the same
 * file and not one of that name on another disk, and join it. Each puts its own bytes and syncs
 * them; checksums go to the first. Only that one gives the file its name or removes it, so a killed
 * process leaves what any killed save leaves.
 */
#include <evenkeel/safetensors.h>

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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
  uint64_t result; /* the checksum, where another process has summed: then `sum` is NULL */
};

struct ek_safetensors_writer {
  char *path, *temporary;
  int file;                        /* -1: not open */
  bool joined;                     /* another process has created the file, and ends it */
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

/* The order that the comparison gives. */
void ek__safetensors_order(size_t *order, const ek_safetensors_entry *entries, size_t count) {
  size_t next = 0;
  for (size_t size = 17; size-- > 0;) {
    for (size_t i = 0; i < count; i++) {
      if (ek_type_size(entries[i].like.type) == size) order[next++] = i;
    }
  }
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

enum {
  PREFIX = 8,
  READ_PIECE = 1 << 18
}; /* bytes: of the length of the header's text; of a read */

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

static ek_status prepare(ek_safetensors_writer *self, struct ek__writer_file *made,
                         const char *path, const ek_safetensors_entry *entries,
                         const ek_safetensors_pair *pairs) {
  const size_t length = strlen(path);
  EK_TRY(ek__process_watch());
  self->process = ek__process_this();
  EK_TRY(ek__new_copy(&self->path, path, length + 1, memory_of));
  EK_TRY(ek__new(&self->tensors, self->count, sizeof *self->tensors, memory_of));
  EK_TRY(ek__new(&self->parts, self->count, sizeof *self->parts, memory_of));
  EK_TRY(ek__new(&self->pairs, self->pair_count, sizeof *self->pairs, memory_of));
  EK_TRY(copy_all(self, entries, pairs));
  EK_TRY(make_header(self));
  if (made == NULL) {
    EK_TRY(ek__new(&self->temporary, 1, length + EK__FILE_BESIDE_SIZE, memory_of));
    EK_TRY(ek__file_create_beside(&self->file, self->temporary, path));
  } else {
    EK_TRY(ek__new_copy(&self->temporary, made->path, strlen(made->path) + 1, memory_of));
    self->file = made->file;
    made->file = -1;
  }
  self->direct = ek__file_open_direct(self->temporary);
  atomic_store(&self->usable, self->direct >= 0);
  return self->direct < 0
             ? EK_OK
             : ek__file_reserve(self->file, self->temporary, self->begin + self->bytes);
}

ek_status ek__safetensors_create(ek_safetensors_writer **writer, struct ek__writer_file *made,
                                 const char *path, const ek_safetensors_entry *entries,
                                 size_t count, const ek_safetensors_pair *pairs,
                                 size_t pair_count) {
  EK__NOT_NULL("ek_safetensors_create", writer, path);
  EK__FAIL_IF((entries == NULL && count > 0) || (pairs == NULL && pair_count > 0),
              EK_ERR_INVALID_ARGUMENT, "ek_safetensors_create: entries or pairs are NULL");
  ek_safetensors_writer *self = NULL;
  EK_TRY(ek__new(&self, 1, sizeof *self, memory_of));
  self->file = self->direct = -1;
  self->count = count;
  self->pair_count = pair_count;
  const ek_status status = prepare(self, made, path, entries, pairs);
  if (status == EK_OK) {
    *writer = self;
  } else {
    ek_safetensors_writer_free(self);
  }
  return status;
}

ek_status ek_safetensors_create(ek_safetensors_writer **writer, const char *path,
                                const ek_safetensors_entry *entries, size_t count,
                                const ek_safetensors_pair *pairs, size_t pair_count) {
  return ek__safetensors_create(writer, NULL, path, entries, count, pairs, pair_count);
}

/* ---- tensors ---- */

static uint64_t sum_of(const struct part *part) {
  return part->sum == NULL ? part->result : ek__checksum_end(part->sum);
}

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

ek_status ek_safetensors_write(ek_safetensors_writer *writer, size_t index, const void *data,
                               size_t bytes) {
  EK__NOT_NULL("ek_safetensors_write", writer);
  EK__FAIL_IF(index >= writer->count || (data == NULL && bytes > 0), EK_ERR_INVALID_ARGUMENT,
              "ek_safetensors_write: no tensor number %zu, or data is NULL", index);
  EK_TRY(check_open(writer));
  const struct part *part = &writer->parts[index];
  const uint64_t place = writer->begin + writer->tensors[part->tensor].first + part->given;
  EK_TRY(ek__safetensors_sum(writer, index, data, bytes));
  return ek__safetensors_put(writer, data, bytes, place);
}

/* ---- one file of several processes ---- */

enum { TOKEN_PLACE = PREFIX }; /* where the header's text will be: a length of 0 stays before it */

uint64_t ek__safetensors_begin(const ek_safetensors_writer *writer) { return writer->begin; }

ek_status ek__writer_file_offer(const struct ek__writer_file *made, const void *token) {
  EK_TRY(ek__file_write(made->file, made->path, token, EK__WRITER_TOKEN, TOKEN_PLACE));
  return ek__file_sync(made->file, made->path);
}

enum ek__writer_sight ek__writer_file_look(struct ek__writer_file *there, const void *token) {
  char found[EK__WRITER_TOKEN];
  struct stat read, written;
  uint64_t size = 0;
  int file = -1;
  enum ek__writer_sight sight = EK__SIGHT_READ;
  const ek_status opened = ek__file_open(&file, &size, there->path);
  if (opened != EK_OK) return opened == EK_ERR_NOT_FOUND ? EK__SIGHT_NONE : EK__SIGHT_READ;
  if (size < TOKEN_PLACE + sizeof found) {
    sight = EK__SIGHT_NONE;
  } else if (ek__file_read(file, there->path, found, sizeof found, TOKEN_PLACE) == EK_OK) {
    if (memcmp(found, token, sizeof found) != 0) sight = EK__SIGHT_NONE;
    if (sight != EK__SIGHT_NONE) there->file = ek__file_open_again(there->path);
  }
  if (there->file >= 0 && fstat(file, &read) == 0 && fstat(there->file, &written) == 0 &&
      read.st_dev == written.st_dev && read.st_ino == written.st_ino) {
    sight = EK__SIGHT_WRITE;
  }
  ek__file_close(file);
  return sight;
}

void ek__writer_file_close(struct ek__writer_file *made, bool remove) {
  if (made->file >= 0 && remove) (void)unlink(made->path);
  if (made->file >= 0) ek__file_close(made->file); /* and its lock */
  made->file = -1;
  ek__free(made->path);
  made->path = NULL;
}

static ek_status prepare_joined(ek_safetensors_writer *self, const char *path,
                                const ek_safetensors_entry *entries) {
  EK_TRY(ek__process_watch());
  self->process = ek__process_this();
  const size_t length = strlen(path) + 1;
  EK_TRY(ek__new_copy(&self->path, path, length, memory_of));
  EK_TRY(ek__new_copy(&self->temporary, path, length, memory_of));
  EK_TRY(ek__new(&self->tensors, self->count, sizeof *self->tensors, memory_of));
  EK_TRY(ek__new(&self->parts, self->count, sizeof *self->parts, memory_of));
  return copy_all(self, entries, NULL);
}

ek_status ek__safetensors_join(ek_safetensors_writer **writer, struct ek__writer_file *there,
                               uint64_t begin, const ek_safetensors_entry *entries, size_t count) {
  ek_safetensors_writer *self = NULL;
  EK_TRY(ek__new(&self, 1, sizeof *self, memory_of));
  self->file = self->direct = -1;
  self->joined = true;
  self->count = count;
  self->begin = begin;
  const ek_status status = prepare_joined(self, there->path, entries);
  if (status != EK_OK) {
    ek_safetensors_writer_free(self);
    return status;
  }
  self->file = there->file;
  there->file = -1;
  self->direct = ek__file_open_direct(self->temporary);
  atomic_store(&self->usable, self->direct >= 0);
  *writer = self;
  return EK_OK;
}

uint64_t ek__safetensors_sum_of(const ek_safetensors_writer *writer, size_t index) {
  return sum_of(&writer->parts[index]);
}

void ek__safetensors_set_sum(ek_safetensors_writer *writer, size_t index, uint64_t sum) {
  struct part *part = &writer->parts[index];
  ek__checksum_free(part->sum);
  part->sum = NULL;
  part->result = sum;
  part->given = writer->tensors[part->tensor].bytes;
}

ek_status ek__safetensors_sync(ek_safetensors_writer *writer) {
  EK_TRY(check_open(writer));
  const ek_status status = ek__file_sync(writer->file, writer->temporary);
  if (status != EK_OK) atomic_store(&writer->failed, true);
  return status;
}

static ek_status compare_sum(const ek_safetensors_writer *self, int file, size_t index,
                             struct ek__checksum *sum, char *buffer) {
  const struct part *part = &self->parts[index];
  const struct ek__file_tensor *tensor = &self->tensors[part->tensor];
  ek__checksum_begin(sum);
  for (uint64_t done = 0; done < tensor->bytes;) {
    const uint64_t left = tensor->bytes - done;
    const size_t bytes = left < READ_PIECE ? (size_t)left : READ_PIECE;
    EK_TRY(ek__file_read(file, self->temporary, buffer, bytes, self->begin + tensor->first + done));
    ek__checksum_add(sum, buffer, bytes);
    done += bytes;
  }
  if (ek__checksum_end(sum) == sum_of(part)) return EK_OK;
  return ek_error_set(EK_ERR_IO,
                      "reading the file back gives other bytes than were written: %s: tensor %s",
                      self->temporary, tensor->entry.name);
}

ek_status ek__safetensors_compare(const ek_safetensors_writer *writer, size_t first, size_t last) {
  uint64_t size = 0;
  int file = -1;
  char *buffer = NULL;
  struct ek__checksum *sum = NULL;
  ek_status status = EK_OK;
  EK_TRY(ek__file_open(&file, &size, writer->temporary));
  EK_TRY_GOTO(status, ek__new(&buffer, 1, READ_PIECE, "a piece of a file"), cleanup);
  sum = ek__checksum_new();
  if (sum == NULL) {
    status = ek_error_set(EK_ERR_OUT_OF_MEMORY, "out of host memory to read %s", writer->temporary);
  }
  for (size_t i = first; i < last && status == EK_OK; i++) {
    status = compare_sum(writer, file, i, sum, buffer);
  }
cleanup:
  ek__checksum_free(sum);
  ek__free(buffer);
  ek__file_close(file);
  return status;
}

/* ---- ending ---- */

static ek_status complete(ek_safetensors_writer *self) {
  EK_TRY(check_open(self));
  for (size_t i = 0; i < self->count; i++) {
    struct ek__file_tensor *tensor = &self->tensors[self->parts[i].tensor];
    EK__FAIL_IF(self->parts[i].given < tensor->bytes, EK_ERR_STATE, "%s: tensor %s is not complete",
                self->path, tensor->entry.name);
    tensor->checksum = sum_of(&self->parts[i]);
  }
  return EK_OK;
}

/* The reader takes it as it stands on the disk, with all of its checksums; or its header alone. */
static ek_status read_again(const ek_safetensors_writer *self, bool all) {
  ek_safetensors *file = NULL;
  ek_status status = ek_safetensors_open(&file, self->temporary);
  if (status == EK_OK && !ek_safetensors_has_checksums(file)) {
    status = ek_error_set(EK_ERR_CORRUPT, "%s: checksums are missing", self->temporary);
  }
  if (status == EK_OK && all) status = ek_safetensors_check(file);
  ek_safetensors_free(file);
  if (status != EK_ERR_CORRUPT) return status;
  return ek_error_set(EK_ERR_IO, "reading the file back gives other bytes than were written: %s",
                      ek_error_message());
}

ek_status ek__safetensors_finish(ek_safetensors_writer *writer, enum ek__read_back back) {
  EK_TRY(complete(writer));
  ek_status status = write_header(writer);
  if (status == EK_OK && back != EK__READ_BACK_NOTHING) {
    status = read_again(writer, back == EK__READ_BACK_ALL);
  }
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
  return ek__safetensors_finish(writer, EK__READ_BACK_NOTHING);
}

void ek_safetensors_writer_free(ek_safetensors_writer *writer) {
  if (writer == NULL) return;
  ek__file_close(writer->direct);
  if (writer->file >= 0) {
    if (!writer->joined && !ek__process_is_child(&writer->process)) (void)unlink(writer->temporary);
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
