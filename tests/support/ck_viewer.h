/*
 * ck_viewer.h - reads a memory snapshot, written as JSON or as a pickle, by a reader of each that
 * knows no more of them than PyTorch's viewer does.
 */
#ifndef CK_VIEWER_H
#define CK_VIEWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ck_value {
  char kind; /* { [ " or 0 for a number */
  uint64_t number;
  char *text;
  struct ck_value *first, *last, *next; /* items; of a dictionary keys and values in turns */
};

/* The file is there and nothing else is in it. The value is kept (ck_keep.h). */
const struct ck_value *ck_read_snapshot(const char *path);

/* NULL if the dictionary has no such key. */
const struct ck_value *ck_value_find(const struct ck_value *dictionary, const char *key);

/* It has, and of the kind. */
const struct ck_value *ck_value_get(const struct ck_value *dictionary, const char *key, char kind);
uint64_t ck_value_number(const struct ck_value *dictionary, const char *key);
const char *ck_value_text(const struct ck_value *dictionary, const char *key);

size_t ck_value_count(const struct ck_value *list);
bool ck_value_same(const struct ck_value *a, const struct ck_value *b);

#endif /* CK_VIEWER_H */
