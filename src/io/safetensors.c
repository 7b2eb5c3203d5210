/*
 * safetensors.c - tensors out of a file.
 *
 * The file stays open and is read by offset, so that threads do not disturb each other; it is not
 * mapped, because a mapped file that becomes shorter would end the process. A tensor of the host
 * tensor's type is read straight into its memory; another is converted in pieces that fit into a
 * processor's cache. The checksum is updated with each piece.
 */
#include <evenkeel/safetensors.h>

#include <string.h>
#include <sys/stat.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/hash.h"
#include "device/device_internal.h"
#include "device/types.h"
#include "io/file.h"
#include "io/header.h"
#include "io/header_text.h"
#include "io/reader.h"

enum { PIECE = 1 << 18 }; /* bytes; a multiple of every type's size */

struct ek_safetensors {
  char *path;
  int file;
  uint64_t begin; /* of the tensors' bytes */
  struct ek__header header;
};

/* ---- opening ---- */

static ek_status read_header(ek_safetensors *self, uint64_t size) {
  uint8_t prefix[8];
  uint64_t length = 0;
  EK__FAIL_IF(size < sizeof prefix, EK_ERR_CORRUPT,
              "%s: not a safetensors file: it is too short", self->path);
  EK_TRY(ek__file_read(self->file, self->path, prefix, sizeof prefix, 0));
  for (size_t i = 0; i < sizeof prefix; i++) length |= (uint64_t)prefix[i] << 8 * i;
  EK__FAIL_IF(length > EK__HEADER_LIMIT || length > size - sizeof prefix, EK_ERR_CORRUPT,
              "%s: not a safetensors file, or truncated: a header of %llu bytes in a file of %llu",
              self->path, (unsigned long long)length, (unsigned long long)size);
  char *text = NULL;
  EK_TRY(ek__new(&text, 1, (size_t)length + 1, "the header of a file"));
  self->begin = sizeof prefix + length;
  const ek_status status =
      ek__file_read(self->file, self->path, text, (size_t)length, sizeof prefix);
  if (status != EK_OK) {
    ek__free(text);
    return status;
  }
  return ek__header_read(&self->header, self->path, text, (size_t)length, size - self->begin);
}

ek_status ek_safetensors_open(ek_safetensors **file, const char *path) {
  uint64_t size = 0;
  EK__NOT_NULL("ek_safetensors_open", file, path);
  ek_safetensors *self = NULL;
  EK_TRY(ek__new(&self, 1, sizeof *self, "a file"));
  ek_status status = EK_OK;
  self->file = -1;
  EK_TRY_GOTO(status, ek__new_copy(&self->path, path, strlen(path) + 1, "a file"), cleanup);
  EK_TRY_GOTO(status, ek__file_open(&self->file, &size, path), cleanup);
  EK_TRY_GOTO(status, read_header(self, size), cleanup);
  *file = self;
  return EK_OK;
cleanup:
  ek_safetensors_free(self);
  return status;
}

void ek_safetensors_free(ek_safetensors *file) {
  if (file == NULL) return;
  ek__header_free(&file->header);
  ek__file_close(file->file);
  ek__free(file->path);
  ek__free(file);
}

/* ---- what is in it ---- */

size_t ek_safetensors_count(const ek_safetensors *file) {
  return file == NULL ? 0 : file->header.count;
}

const ek_safetensors_entry *ek_safetensors_at(const ek_safetensors *file, size_t index) {
  return index < ek_safetensors_count(file) ? &file->header.tensors[index].entry : NULL;
}

static const struct ek__file_tensor *find(const ek_safetensors *file, const char *name) {
  for (size_t i = 0; i < ek_safetensors_count(file) && name != NULL; i++) {
    const struct ek__file_tensor *tensor = &file->header.tensors[i];
    if (strcmp(tensor->entry.name, name) == 0) return tensor;
  }
  return NULL;
}

const ek_safetensors_entry *ek_safetensors_find(const ek_safetensors *file, const char *name) {
  const struct ek__file_tensor *tensor = find(file, name);
  return tensor == NULL ? NULL : &tensor->entry;
}

const char *ek_safetensors_value(const ek_safetensors *file, const char *key) {
  return file == NULL || key == NULL ? NULL : ek__header_value(&file->header, key);
}

bool ek_safetensors_has_checksums(const ek_safetensors *file) {
  return file != NULL && file->header.has_checksums;
}

/* ---- reading ---- */

static ek_status check_host(const ek_tensor *host, const ek_safetensors *file,
                            const struct ek__file_tensor *tensor) {
  const ek_tensor *like = &tensor->entry.like;
  const bool turned =
      ek__type_is_floating(like->type) && (host->type == EK_F32 || host->type == EK_F64);
  EK__FAIL_IF(like->type == 0 || (ek_tensor_exists(host) && host->type != like->type && !turned),
              EK_ERR_TYPE,
              "%s: tensor %s: it is %s, or has more than %d dimensions, and "
              "cannot be read as %s",
              file->path, tensor->entry.name, tensor->type_name, EK_MAX_RANK,
              ek_type_name(host->type));
  return ek__tensor_check_host(host, like, file->path, tensor->entry.name);
}

/* `all` bytes from byte `first` of the tensor on, piece after piece, through `buffer` if there is
 * one; `host` NULL: for the checksum alone. */
static ek_status read_pieces(ek_tensor *host, const ek_safetensors *file,
                             const struct ek__file_tensor *tensor, uint64_t first, uint64_t all,
                             struct ek__checksum *sum, char *buffer) {
  const ek_type type = tensor->entry.like.type;
  const uint64_t begin = file->begin + tensor->first + first;
  if (sum != NULL) ek__checksum_begin(sum);
  for (uint64_t done = 0; done < all;) {
    const size_t bytes = all - done < PIECE ? (size_t)(all - done) : PIECE;
    char *to = buffer == NULL ? (char *)host->data + done : buffer;
    EK_TRY(ek__file_read(file->file, file->path, to, bytes, begin + done));
    if (sum != NULL) ek__checksum_add(sum, to, bytes);
    if (host != NULL && buffer != NULL) {
      const uint64_t size = ek_type_size(type);
      ek__floats_convert((char *)host->data + done / size * ek_type_size(host->type), host->type,
                         buffer, type, (int64_t)(bytes / size));
    }
    done += bytes;
  }
  if (sum == NULL || ek__checksum_end(sum) == tensor->checksum) return EK_OK;
  return ek_error_set(EK_ERR_CORRUPT,
                      "%s: tensor %s: damaged: its checksum differs",
                      file->path, tensor->entry.name);
}

/* The buffer of a copy, if one is wanted, and its checksum. */
static ek_status open_passage(struct ek__checksum **sum, char **buffer, const ek_safetensors *file,
                              bool buffered, bool summed) {
  *sum = NULL;
  if (buffered) EK_TRY(ek__new(buffer, 1, PIECE, "a piece of a file"));
  if (summed) *sum = ek__checksum_new();
  if (!summed || *sum != NULL) return EK_OK;
  ek__free(*buffer);
  return ek_error_set(EK_ERR_OUT_OF_MEMORY, "out of host memory to read %s", file->path);
}

ek_status ek_safetensors_read(ek_tensor *host, const ek_safetensors *file, const char *name) {
  EK__NOT_NULL("ek_safetensors_read", host, file, name);
  const struct ek__file_tensor *tensor = find(file, name);
  struct ek__checksum *sum = NULL;
  char *buffer = NULL;
  EK__FAIL_IF(tensor == NULL, EK_ERR_NOT_FOUND, "%s: no tensor named %s", file->path, name);
  EK_TRY(check_host(host, file, tensor));
  EK_TRY(open_passage(&sum, &buffer, file, host->type != tensor->entry.like.type,
                      tensor->has_checksum));
  const ek_status status = read_pieces(host, file, tensor, 0, tensor->bytes, sum, buffer);
  ek__checksum_free(sum);
  ek__free(buffer);
  return status;
}

ek_status ek_safetensors_read_part(ek_tensor *host, const ek_safetensors *file, const char *name,
                                   int64_t first) {
  EK__NOT_NULL("ek_safetensors_read_part", host, file, name);
  const struct ek__file_tensor *tensor = find(file, name);
  struct ek__checksum *sum = NULL;
  char *buffer = NULL;
  EK__FAIL_IF(tensor == NULL, EK_ERR_NOT_FOUND, "%s: no tensor named %s", file->path, name);
  const ek_tensor *like = &tensor->entry.like;
  EK__FAIL_IF(!ek_tensor_exists(host) || host->rank != 1 || first < 0 ||
                  first > ek_tensor_count(like) - ek_tensor_count(host),
              EK_ERR_SHAPE, "%s: tensor %s: the range is outside its %lld elements", file->path,
              name, (long long)ek_tensor_count(like));
  struct ek__file_tensor part = *tensor;
  part.entry.like.rank = 1;
  part.entry.like.shape[0] = host->shape[0];
  EK_TRY(check_host(host, file, &part));
  EK_TRY(open_passage(&sum, &buffer, file, host->type != like->type, false));
  const uint64_t size = ek_type_size(like->type);
  const ek_status status = read_pieces(host, file, tensor, (uint64_t)first * size,
                                       (uint64_t)host->shape[0] * size, NULL, buffer);
  ek__free(buffer);
  return status;
}

ek_status ek__safetensors_check_some(const ek_safetensors *file, size_t index, size_t of) {
  struct ek__checksum *sum = NULL;
  char *buffer = NULL;
  EK_TRY(open_passage(&sum, &buffer, file, true, true));
  ek_status status = EK_OK;
  for (size_t i = index; i < file->header.count && status == EK_OK; i += of) {
    const struct ek__file_tensor *tensor = &file->header.tensors[i];
    status = read_pieces(NULL, file, tensor, 0, tensor->bytes,
                         tensor->has_checksum ? sum : NULL, buffer);
  }
  ek__checksum_free(sum);
  ek__free(buffer);
  return status;
}

ek_status ek_safetensors_check(const ek_safetensors *file) {
  EK__NOT_NULL("ek_safetensors_check", file);
  return ek__safetensors_check_some(file, 0, 1);
}

ek_status ek__safetensors_identify(uint64_t *header, uint64_t *place, const ek_safetensors *file) {
  struct stat about;
  const char *digits = ek_safetensors_value(file, EK__HEADER_SUM);
  *header = digits == NULL ? 0 : ek__hash(EK__HASH_BEGIN, digits, strlen(digits));
  if (fstat(file->file, &about) != 0) return ek__file_refused(file->path, "cannot be examined");
  const uint64_t numbers[] = {(uint64_t)about.st_dev, (uint64_t)about.st_ino,
                              (uint64_t)about.st_size, (uint64_t)about.st_ctim.tv_sec,
                              (uint64_t)about.st_ctim.tv_nsec};
  *place = ek__hash(EK__HASH_BEGIN, numbers, sizeof numbers);
  return EK_OK;
}
