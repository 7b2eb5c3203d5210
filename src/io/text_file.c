/*
 * text_file.c - see text_file.h.
 */
#include "io/text_file.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/utf8.h"
#include "io/file.h"

enum { BUFFER = 1 << 16, PIECE = 1024 };

struct ek__text_file {
  int file;
  char *path, *temporary;
  size_t used;
  uint64_t place;
  ek_status status; /* of the first write that failed; its message stands */
  char buffer[BUFFER];
};

static void free_file(struct ek__text_file *file) {
  ek__free(file->path);
  ek__free(file->temporary);
  ek__free(file);
}

ek_status ek__text_begin(struct ek__text_file **file, const char *path) {
  struct ek__text_file *result = NULL;
  const size_t length = strlen(path) + 1;
  ek_status status = EK_OK;
  EK_TRY(ek__new(&result, 1, sizeof *result, "a file"));
  result->file = -1;
  EK_TRY_GOTO(status, ek__new_copy(&result->path, path, length, "a file"), cleanup);
  EK_TRY_GOTO(status, ek__new(&result->temporary, length + EK__FILE_BESIDE_SIZE, 1, "a file"),
              cleanup);
  EK_TRY_GOTO(status, ek__file_create_beside(&result->file, result->temporary, path), cleanup);
  *file = result;
  return EK_OK;
cleanup:
  free_file(result);
  return status;
}

static void flush(struct ek__text_file *file) {
  if (file->status == EK_OK && file->used > 0) {
    file->status =
        ek__file_write(file->file, file->temporary, file->buffer, file->used, file->place);
  }
  file->place += file->used;
  file->used = 0;
}

void ek__text_bytes(struct ek__text_file *file, const void *bytes, size_t count) {
  if (file->used + count > BUFFER) flush(file);
  memcpy(file->buffer + file->used, bytes, count);
  file->used += count;
}

void ek__text_format(struct ek__text_file *file, const char *format, ...) {
  char piece[PIECE];
  va_list arguments;
  va_start(arguments, format);
  const int length = vsnprintf(piece, sizeof piece, format, arguments);
  va_end(arguments);
  if (length > 0) ek__text_bytes(file, piece, (size_t)length < PIECE ? (size_t)length : PIECE - 1);
}

void ek__text_json(struct ek__text_file *file, const char *text) {
  ek__text_bytes(file, "\"", 1);
  while (*text != '\0') {
    const unsigned char byte = (unsigned char)*text;
    const size_t length = ek__utf8_length(text);
    if (byte == '"' || byte == '\\') {
      ek__text_format(file, "\\%c", byte);
    } else if (byte < 0x20 || byte == 0x7f) {
      ek__text_format(file, "\\u%04x", byte);
    } else if (length > 0) {
      ek__text_bytes(file, text, length);
    } else {
      ek__text_bytes(file, "\\ufffd", 6);
    }
    text += length > 0 ? length : 1;
  }
  ek__text_bytes(file, "\"", 1);
}

void ek__text_drop(struct ek__text_file *file) {
  (void)unlink(file->temporary); /* while it has the lock: later the name may be another's */
  ek__file_close(file->file);
  free_file(file);
}

ek_status ek__text_end(struct ek__text_file *file, bool sync) {
  flush(file);
  const ek_status written = file->status;
  if (written != EK_OK) {
    ek__text_drop(file);
    return written;
  }
  const ek_status status = ek__file_replace(file->file, file->temporary, file->path, sync);
  free_file(file);
  return status;
}
