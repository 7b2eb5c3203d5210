/*
 * value_file.c - see value_file.h. The opcodes are those of Python's pickletools.
 */
#include "io/value_file.h"

#include <inttypes.h>
#include <string.h>

#include "core/utf8.h"

/* A reader may push what is appended at once as arguments of one call. */
enum { APPENDED_AT_ONCE = 1000 };

static void put(const struct ek__value_file *file, const char *text) {
  ek__text_bytes(file->file, text, strlen(text));
}

static void put_little_endian(const struct ek__value_file *file, uint64_t number, size_t bytes) {
  unsigned char little[8];
  for (size_t i = 0; i < bytes; i++) little[i] = (unsigned char)(number >> (8 * i));
  ek__text_bytes(file->file, little, bytes);
}

/* The separator of two values. */
static void separate(struct ek__value_file *file) {
  if (file->depth == 0) return;
  struct ek__value_level *level = &file->levels[file->depth - 1];
  const size_t before = level->said++;
  if (before == 0) return;
  if (file->pickle) {
    if (level->list && before % APPENDED_AT_ONCE == 0) put(file, "e(");
  } else {
    put(file, !level->list && before % 2 == 1 ? ":" : level->list && file->depth < 4 ? ",\n" : ",");
  }
}

ek_status ek__value_begin(struct ek__value_file *file, const char *path, bool pickle) {
  *file = (struct ek__value_file){.pickle = pickle};
  EK_TRY(ek__text_begin(&file->file, path));
  if (pickle) put(file, "\x80\x02");
  return EK_OK;
}

static size_t utf8_length(const char *text) {
  size_t bytes = 0;
  for (size_t length; *text != '\0'; text += length > 0 ? length : 1) {
    length = ek__utf8_length(text);
    bytes += length > 0 ? length : 3;
  }
  return bytes;
}

void ek__value_string(struct ek__value_file *file, const char *text) {
  separate(file);
  if (!file->pickle) {
    ek__text_json(file->file, text);
    return;
  }
  put(file, "X");
  put_little_endian(file, utf8_length(text), 4);
  for (size_t length; *text != '\0'; text += length > 0 ? length : 1) {
    length = ek__utf8_length(text);
    ek__text_bytes(file->file, length > 0 ? text : "\xef\xbf\xbd", length > 0 ? length : 3);
  }
}

void ek__value_number(struct ek__value_file *file, uint64_t number) {
  separate(file);
  if (!file->pickle) {
    ek__text_format(file->file, "%" PRIu64, number);
  } else if (number <= INT32_MAX) {
    put(file, "J");
    put_little_endian(file, number, 4);
  } else {
    put(file, "\x8a\x08");
    put_little_endian(file, number, 8);
  }
}

void ek__value_open(struct ek__value_file *file, bool list) {
  separate(file);
  file->levels[file->depth++] = (struct ek__value_level){.list = list};
  put(file, file->pickle ? (list ? "](" : "}(") : list ? "[" : "{");
}

void ek__value_close(struct ek__value_file *file) {
  const bool list = file->levels[--file->depth].list;
  put(file, file->pickle ? (list ? "e" : "u") : list ? "]" : "}");
}

ek_status ek__value_end(struct ek__value_file *file) {
  put(file, file->pickle ? "." : "\n");
  return ek__text_end(file->file, false);
}

void ek__value_drop(struct ek__value_file *file) { ek__text_drop(file->file); }

void ek__value_put_string(struct ek__value_file *file, const char *key, const char *text) {
  ek__value_string(file, key);
  ek__value_string(file, text);
}

void ek__value_put_number(struct ek__value_file *file, const char *key, uint64_t number) {
  ek__value_string(file, key);
  ek__value_number(file, number);
}

void ek__value_put_open(struct ek__value_file *file, const char *key, bool list) {
  ek__value_string(file, key);
  ek__value_open(file, list);
}
