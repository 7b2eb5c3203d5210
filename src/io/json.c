/*
 * json.c - see json.h.
 *
 * A decoded string is never longer than the text that it came from, so its NUL takes the place of
 * its closing quote or of a byte before it. The brackets that a skipped value has open are bits of
 * one word: 1 for an object.
 */
#include "io/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/c_locale.h"
#include "core/utf8.h"

static bool fail(struct ek__json *json) {
  json->bad = true;
  return false;
}

char ek__json_peek(struct ek__json *json) {
  while (!json->bad && json->at < json->end && strchr(" \t\r\n", *json->at) != NULL &&
         *json->at != '\0') {
    json->at++;
  }
  return json->bad || json->at == json->end ? '\0' : *json->at;
}

bool ek__json_take(struct ek__json *json, char bracket) {
  if (ek__json_peek(json) != bracket) return fail(json);
  json->at++;
  return true;
}

bool ek__json_member(struct ek__json *json, char closing, size_t *seen) {
  const char next = ek__json_peek(json);
  if (next == closing && !json->bad) {
    json->at++;
    return false;
  }
  if ((*seen)++ > 0) return ek__json_take(json, ',');
  return next == '\0' ? fail(json) : true;
}

bool ek__json_ends(struct ek__json *json) {
  (void)ek__json_peek(json);
  return !json->bad && json->at == json->end;
}

/* ---- strings ---- */

/* Four digits of a \u; -1: they are not. */
static int32_t read_unit(struct ek__json *json) {
  int32_t unit = 0;
  for (int i = 0; i < 4; i++, json->at++) {
    const char *digits = "0123456789abcdef0123456789ABCDEF";
    const char *digit = *json->at == '\0' ? NULL : strchr(digits, *json->at);
    if (digit == NULL) return -1;
    unit = unit * 16 + (int32_t)((digit - digits) % 16);
  }
  return unit;
}

static char *put_character(char *to, int32_t code) {
  static const struct {
    int32_t below;
    unsigned char mark;
  } lengths[] = {{0x80, 0}, {0x800, 0xc0}, {0x10000, 0xe0}, {0x110000, 0xf0}};
  int more = 0;
  while (code >= lengths[more].below) more++;
  *to++ = (char)(lengths[more].mark | code >> 6 * more);
  while (more-- > 0) *to++ = (char)(0x80 | (code >> 6 * more & 0x3f));
  return to;
}

/* After "\u". NULL for what is no character: half a pair of surrogates, or NUL. */
static char *read_code(struct ek__json *json, char *to) {
  int32_t code = read_unit(json);
  if (code >= 0xd800 && code < 0xdc00 && strncmp(json->at, "\\u", 2) == 0) {
    json->at += 2;
    const int32_t low = read_unit(json);
    code = low < 0xdc00 || low > 0xdfff ? -1 : 0x10000 + (code - 0xd800) * 0x400 + low - 0xdc00;
  }
  return code <= 0 || (code >= 0xd800 && code <= 0xdfff) ? NULL : put_character(to, code);
}

/* After a backslash. */
static char *read_escape(struct ek__json *json, char *to) {
  static const char letters[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
  const char *letter = *json->at == '\0' ? NULL : strchr(letters, *json->at);
  if (*json->at == 'u') {
    json->at++;
    return read_code(json, to);
  }
  if (letter == NULL) return NULL;
  json->at++;
  *to++ = values[letter - letters];
  return to;
}

bool ek__json_string(struct ek__json *json, char **string) {
  if (!ek__json_take(json, '"')) return false;
  char *to = *string = json->at;
  while (*json->at != '"') {
    const size_t length = ek__utf8_length(json->at);
    if (length == 0 || (unsigned char)*json->at < 0x20) return fail(json);
    if (*json->at == '\\') {
      json->at++;
      to = read_escape(json, to);
      if (to == NULL) return fail(json);
    } else {
      memmove(to, json->at, length);
      to += length;
      json->at += length;
    }
  }
  json->at++;
  *to = '\0';
  return true;
}

/* ---- other values ---- */

static size_t pass_digits(struct ek__json *json) {
  const char *from = json->at;
  while (*json->at >= '0' && *json->at <= '9') json->at++;
  return (size_t)(json->at - from);
}

/* As JSON has numbers: no leading zero, and digits on both sides of a point. */
static bool read_number(struct ek__json *json, bool *whole, int64_t *number) {
  const bool negative = *json->at == '-';
  if (negative) json->at++;
  const char *digits = json->at;
  const size_t count = pass_digits(json);
  int64_t value = 0;
  if (count == 0 || (count > 1 && *digits == '0')) return fail(json);
  *whole = true;
  for (size_t i = 0; i < count && *whole; i++) {
    const int digit = negative ? '0' - digits[i] : digits[i] - '0';
    *whole =
        !__builtin_mul_overflow(value, 10, &value) && !__builtin_add_overflow(value, digit, &value);
  }
  if (!*whole) return fail(json); /* more digits than a reader can have meant */
  *number = value;
  if (*json->at == '.') {
    json->at++;
    *whole = false;
    if (pass_digits(json) == 0) return fail(json);
  }
  if (*json->at == 'e' || *json->at == 'E') {
    json->at++;
    *whole = false;
    if (*json->at == '+' || *json->at == '-') json->at++;
    if (pass_digits(json) == 0) return fail(json);
  }
  return true;
}

bool ek__json_number(struct ek__json *json, double *number) {
  bool whole = false;
  int64_t integer = 0;
  char *end = NULL;
  const char next = ek__json_peek(json), *from = json->at;
  if (json->bad || (next != '-' && (next < '0' || next > '9'))) return fail(json);
  if (!read_number(json, &whole, &integer)) return false;
  const locale_t before = ek__c_locale_begin();
  *number = strtod(from, &end);
  ek__c_locale_end(before);
  return (end == json->at && isfinite(*number)) || fail(json);
}

static bool read_word(struct ek__json *json) {
  static const char *const words[] = {"true", "false", "null"};
  for (size_t i = 0; i < 3; i++) {
    const size_t length = strlen(words[i]);
    if (strncmp(json->at, words[i], length) != 0) continue;
    json->at += length;
    return true;
  }
  return fail(json);
}

/* One value that holds no others. */
static bool read_leaf(struct ek__json *json, bool *whole, int64_t *number) {
  char *string = NULL;
  const char next = ek__json_peek(json);
  *whole = false;
  if (json->bad) return false;
  if (next == '"') return ek__json_string(json, &string);
  return next == '-' || (next >= '0' && next <= '9') ? read_number(json, whole, number)
                                                     : read_word(json);
}

/* The brackets that are open, the innermost in the lowest bit. */
struct nest {
  uint64_t objects;
  int depth;
};

/* The first member of an object or a list, or its end. */
static bool open_bracket(struct ek__json *json, struct nest *nest) {
  if (nest->depth == EK__JSON_DEPTH) return fail(json);
  nest->objects = nest->objects << 1 | (*json->at == '{');
  nest->depth++;
  json->at++;
  return true;
}

/* Passes what stands between values: keys, commas, brackets that close. True: a value is next; it
 * is the `first` after its bracket, or follows another. */
static bool go_to_value(struct ek__json *json, struct nest *nest, bool first) {
  char *key = NULL;
  while (nest->depth > 0) {
    const bool object = nest->objects & 1;
    size_t seen = first ? 0 : 1;
    if (ek__json_member(json, object ? '}' : ']', &seen)) {
      return !object || (ek__json_string(json, &key) && ek__json_take(json, ':'));
    }
    if (json->bad) return false;
    nest->objects >>= 1;
    nest->depth--;
    first = false;
  }
  return false;
}

bool ek__json_value(struct ek__json *json, bool *whole, int64_t *number) {
  struct nest nest = {0, 0};
  bool opened = false;
  *whole = false;
  *number = 0;
  do {
    const char next = ek__json_peek(json);
    opened = next == '{' || next == '[';
    const bool outermost = nest.depth == 0 && !opened;
    if (opened ? !open_bracket(json, &nest) : !read_leaf(json, whole, number)) return false;
    if (outermost) return true;
    *whole = false;
  } while (go_to_value(json, &nest, opened));
  return !json->bad;
}
