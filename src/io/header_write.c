/*
 * header_write.c - writes the text of a header (header.h).
 *
 * The same functions make the text twice: first to count its bytes, then into memory that has been
 * allocated. So every error occurs before a byte of the file is written; the text that follows the
 * tensors takes no memory and cannot fail.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/utf8.h"
#include "io/header.h"
#include "io/header_text.h"

/* ---- checking ---- */

static ek_status check_name(const char *name) {
  if (name != NULL && name[0] != '\0' && strncmp(name, "__", 2) != 0 && ek__utf8_is(name)) {
    return EK_OK;
  }
  return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                      "a tensor in a file cannot have the name \"%.200s\": names are UTF-8, not "
                      "empty, and do not begin with \"__\"",
                      name == NULL ? "NULL" : name);
}

static ek_status check_pair(const ek_safetensors_pair *pair, size_t number) {
  if (strncmp(pair->key, EK__HEADER_SUM, sizeof EK__HEADER_SUM - 1) != 0 &&
      ek__utf8_is(pair->key) && ek__utf8_is(pair->value)) {
    return EK_OK;
  }
  return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                      "pair %zu of the header is not UTF-8, or its key is reserved for the library",
                      number);
}

static int by_text(const void *left, const void *right) {
  return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* Sorts the names; NULL if they all differ. */
static const char *find_twice(const char **names, size_t count) {
  if (count > 0) qsort(names, count, sizeof *names, by_text);
  for (size_t i = 1; i < count; i++) {
    if (strcmp(names[i - 1], names[i]) == 0) return names[i];
  }
  return NULL;
}

static ek_status check_all(const struct ek__file_tensor *tensors, size_t count,
                           const ek_safetensors_pair *pairs, size_t pair_count) {
  const char **names = NULL, *twice = NULL;
  for (size_t i = 0; i < count; i++) EK_TRY(check_name(tensors[i].entry.name));
  for (size_t i = 0; i < pair_count; i++) EK_TRY(check_pair(&pairs[i], i));
  EK_TRY(ek__new(&names, count > pair_count ? count : pair_count, sizeof *names,
                 "the names in a file"));
  ek_status status = EK_OK;
  for (size_t i = 0; i < count; i++) names[i] = tensors[i].entry.name;
  if ((twice = find_twice(names, count)) != NULL) {
    status = ek_error_set(EK_ERR_INVALID_ARGUMENT,
                          "two tensors of a file have the same name, \"%.200s\"", twice);
  }
  for (size_t i = 0; i < pair_count; i++) names[i] = pairs[i].key;
  if (status == EK_OK && (twice = find_twice(names, pair_count)) != NULL) {
    status = ek_error_set(EK_ERR_INVALID_ARGUMENT,
                          "two pairs of the header have the same key, \"%.200s\"", twice);
  }
  ek__free(names);
  return status;
}

/* ---- writing ---- */

/* Counts the bytes that are put, and writes them if there is a `to`. */
struct text {
  char *to;
  size_t length;
};

static void put(struct text *text, const char *bytes, size_t count) {
  if (text->to != NULL) memcpy(text->to + text->length, bytes, count);
  text->length += count;
}

static void put_words(struct text *text, const char *words) { put(text, words, strlen(words)); }

static void put_number(struct text *text, uint64_t number) {
  char digits[24];
  (void)snprintf(digits, sizeof digits, "%" PRIu64, number);
  put_words(text, digits);
}

/* The inside of a string. */
static void put_inside(struct text *text, const char *string) {
  for (; *string != '\0'; string++) {
    char escape[8];
    if (*string == '"' || *string == '\\') {
      put(text, "\\", 1);
      put(text, string, 1);
    } else if ((unsigned char)*string < 0x20) {
      (void)snprintf(escape, sizeof escape, "\\u%04x", (unsigned)*string);
      put_words(text, escape);
    } else {
      put(text, string, 1);
    }
  }
}

static void put_string(struct text *text, const char *string) {
  put(text, "\"", 1);
  put_inside(text, string);
  put(text, "\"", 1);
}

static void put_sum(struct text *text, const struct ek__file_tensor *tensor) {
  char digits[EK__HEADER_DIGITS + 8];
  put_words(text, ",\"" EK__HEADER_TENSOR_SUM);
  put_inside(text, tensor->entry.name);
  (void)snprintf(digits, sizeof digits, "\":\"%016" PRIx64 "\"", tensor->checksum);
  put_words(text, digits);
}

static void put_tensor(struct text *text, const struct ek__file_tensor *tensor) {
  const ek_tensor *like = &tensor->entry.like;
  put(text, ",", 1);
  put_string(text, tensor->entry.name);
  put_words(text, ":{\"dtype\":");
  put_string(text, ek__header_type(like->type));
  put_words(text, ",\"shape\":[");
  for (int i = 0; i < like->rank; i++) {
    if (i > 0) put(text, ",", 1);
    put_number(text, (uint64_t)like->shape[i]);
  }
  put_words(text, "],\"data_offsets\":[");
  put_number(text, tensor->first);
  put(text, ",", 1);
  put_number(text, tensor->first + tensor->bytes);
  put_words(text, "]}");
}

static void put_all(struct text *text, const struct ek__file_tensor *tensors, size_t count,
                    const ek_safetensors_pair *pairs, size_t pair_count) {
  put_words(text, "{\"" EK__HEADER_PAIRS "\":{\"" EK__HEADER_SUM "\":\"" EK__HEADER_NO_SUM "\"");
  for (size_t i = 0; i < pair_count; i++) {
    put(text, ",", 1);
    put_string(text, pairs[i].key);
    put(text, ":", 1);
    put_string(text, pairs[i].value);
  }
  for (size_t i = 0; i < count; i++) put_sum(text, &tensors[i]);
  put(text, "}", 1);
  for (size_t i = 0; i < count; i++) put_tensor(text, &tensors[i]);
  put(text, "}", 1);
  while (text->length % 8 != 0) put(text, " ", 1);
}

ek_status ek__header_length(size_t *length, const struct ek__file_tensor *tensors, size_t count,
                            const ek_safetensors_pair *pairs, size_t pair_count) {
  struct text text = {0};
  EK_TRY(check_all(tensors, count, pairs, pair_count));
  for (size_t i = 0; i < count; i++) {
    EK__FAIL_IF(ek__header_type(tensors[i].entry.like.type) == NULL, EK_ERR_TYPE,
                "tensor %.200s: files cannot hold type %s", tensors[i].entry.name,
                ek_type_name(tensors[i].entry.like.type));
  }
  put_all(&text, tensors, count, pairs, pair_count);
  EK__FAIL_IF(text.length > EK__HEADER_LIMIT, EK_ERR_INVALID_ARGUMENT,
              "the file's header would have %zu bytes; at most %u are possible", text.length,
              EK__HEADER_LIMIT);
  *length = text.length;
  return EK_OK;
}

void ek__header_write(char *header, const struct ek__file_tensor *tensors, size_t count,
                      const ek_safetensors_pair *pairs, size_t pair_count) {
  struct text text = {.to = header};
  char sum[EK__HEADER_DIGITS + 1];
  put_all(&text, tensors, count, pairs, pair_count);
  char *digits = ek__header_find_digits(header, text.length);
  (void)snprintf(sum, sizeof sum, "%016" PRIx64, ek__header_sum(header, text.length, digits));
  memcpy(digits, sum, EK__HEADER_DIGITS);
}
