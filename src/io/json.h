/*
 * json.h - reads JSON from a text in memory: strings are decoded in place, so that reading takes no
 * memory and cannot fail for lack of it, and nothing recurses.
 *
 *     if (ek__json_take(&json, '{')) {
 *       for (size_t n = 0; ek__json_member(&json, '}', &n);) {
 *         ... ek__json_string(&json, &key), ek__json_take(&json, ':'), one value
 *       }
 *     }
 *
 * Text that is not JSON sets `bad`, which stays set; every later call then does nothing and gives
 * false. A value that nests more than EK__JSON_DEPTH levels deep is bad as well.
 */
#ifndef EK_JSON_H
#define EK_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { EK__JSON_DEPTH = 64 };

struct ek__json {
  char *at, *end; /* what is left; *end is NUL */
  bool bad;
};

/* The next byte that is no white space; NUL at the end. */
char ek__json_peek(struct ek__json *json);
/* Passes over one of {}[]:, which must be next. */
bool ek__json_take(struct ek__json *json, char bracket);
/* After an opening bracket: true if another member comes, after its comma; false after the
 * closing one. *seen counts the members and begins with 0. */
bool ek__json_member(struct ek__json *json, char closing, size_t *seen);

/* A string, decoded; a loan of the text. */
bool ek__json_string(struct ek__json *json, char **string);
/* A number; what is too large for a double is bad. The same in every locale. */
bool ek__json_number(struct ek__json *json, double *number);
/* Any value; *whole says whether it is an integer that fits, which is *number then. */
bool ek__json_value(struct ek__json *json, bool *whole, int64_t *number);
/* Whether nothing but white space is left. */
bool ek__json_ends(struct ek__json *json);

#endif /* EK_JSON_H */
