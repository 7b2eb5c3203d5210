/*
 * value_file.h - a file with one value made of dictionaries, lists, strings and numbers, written as
 * the calls come: as JSON, or as a pickle of protocol 2 with only the opcodes that other programs'
 * readers of snapshots know.
 *
 * In a dictionary a key, a string, comes before each value.
 */
#ifndef EK_VALUE_FILE_H
#define EK_VALUE_FILE_H

#include <stdint.h>

#include "io/text_file.h"

enum { EK__VALUE_DEPTH = 16 };

struct ek__value_file {
  struct ek__text_file *file;
  bool pickle;
  size_t depth;
  struct ek__value_level {
    bool list;
    size_t said; /* keys and values */
  } levels[EK__VALUE_DEPTH];
};

ek_status ek__value_begin(struct ek__value_file *file, const char *path, bool pickle);
void ek__value_string(struct ek__value_file *file, const char *text);
void ek__value_number(struct ek__value_file *file, uint64_t number); /* below 2^53 */
void ek__value_open(struct ek__value_file *file, bool list);
void ek__value_close(struct ek__value_file *file);
/* As ek__text_end(), without a sync, and ek__text_drop(). */
ek_status ek__value_end(struct ek__value_file *file);
void ek__value_drop(struct ek__value_file *file);

/* A key and its value. */
void ek__value_put_string(struct ek__value_file *file, const char *key, const char *text);
void ek__value_put_number(struct ek__value_file *file, const char *key, uint64_t number);
void ek__value_put_open(struct ek__value_file *file, const char *key, bool list);

#endif /* EK_VALUE_FILE_H */
