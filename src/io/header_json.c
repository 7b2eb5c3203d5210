/*
 * header_json.c - header.h over jansson and xxHash.
 *
 * jansson refuses text that is not UTF-8, has a key twice or goes on behind its end. What is left
 * to check is that it says what a header says. All memory that reading takes is jansson's tree and
 * one table, both bounded by the length of the text.
 */
#define _GNU_SOURCE /* memmem */
#include "io/header.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sizes.h"

/* A checksum as text, and its place while it is not known. */
enum { DIGITS = 16 };
static const char zeros[] = "0000000000000000";

static const char metadata_key[] = "__metadata__", header_key[] = "evenkeel.xxh3",
                  tensor_key[] = "evenkeel.xxh3/";

/* Types of the format; those that the library has no name for are of type 0. */
static const struct {
  const char *name;
  ek_type type;
  uint64_t bits;
} types[] = {
    {"F32", EK_F32, 32}, {"F64", EK_F64, 64}, {"BF16", EK_BF16, 16}, {"F16", EK_F16, 16},
    {"I32", EK_I32, 32}, {"I64", EK_I64, 64}, {"I16", 0, 16},        {"I8", 0, 8},
    {"U64", 0, 64},      {"U32", 0, 32},      {"U16", 0, 16},        {"U8", 0, 8},
    {"BOOL", 0, 8},      {"F8_E4M3", 0, 8},   {"F8_E5M2", 0, 8},     {"F8_E8M0", 0, 8},
    {"F6_E2M3", 0, 6},   {"F6_E3M2", 0, 6},   {"F4", 0, 4},          {"C64", 0, 64},
};
enum { TYPES = sizeof types / sizeof *types };

/* ---- checksums ---- */

struct ek__checksum {
  void *block; /* what the state, which wants to be aligned, lies in */
  XXH3_state_t *state;
};

struct ek__checksum *ek__checksum_new(void) {
  struct ek__checksum *sum = ek__calloc(1, sizeof *sum);
  if (sum == NULL) return NULL;
  sum->block = ek__calloc(1, sizeof(XXH3_state_t) + 64);
  if (sum->block == NULL) {
    ek__free(sum);
    return NULL;
  }
  sum->state = (XXH3_state_t *)(((uintptr_t)sum->block + 63) & ~(uintptr_t)63);
  ek__checksum_begin(sum);
  return sum;
}

void ek__checksum_free(struct ek__checksum *sum) {
  if (sum != NULL) ek__free(sum->block);
  ek__free(sum);
}

void ek__checksum_begin(struct ek__checksum *sum) { (void)XXH3_64bits_reset(sum->state); }

void ek__checksum_add(struct ek__checksum *sum, const void *data, size_t bytes) {
  if (bytes > 0) (void)XXH3_64bits_update(sum->state, data, bytes);
}

uint64_t ek__checksum_end(const struct ek__checksum *sum) { return XXH3_64bits_digest(sum->state); }

/* False unless it is sixteen digits as the library writes them. */
static bool parse_checksum(uint64_t *checksum, const char *text) {
  uint64_t value = 0;
  for (size_t i = 0; i < DIGITS; i++) {
    const char *digits = "0123456789abcdef";
    const char *digit = text[i] == '\0' ? NULL : strchr(digits, text[i]);
    if (digit == NULL) return false;
    value = value << 4 | (uint64_t)(digit - digits);
  }
  *checksum = value;
  return true;
}

/* The digits of the header's own checksum, the only ones in a text; NULL if it has none. */
static const char *find_digits(const char *text, size_t length) {
  static const char before[] = "\"evenkeel.xxh3\":\"";
  const char *found = memmem(text, length, before, sizeof before - 1);
  if (found == NULL) return NULL;
  found += sizeof before - 1;
  return (size_t)(text + length - found) < DIGITS + 1 ? NULL : found;
}

static uint64_t sum_of_text(const char *text, size_t length, const char *digits) {
  XXH3_state_t state;
  const size_t before = (size_t)(digits - text);
  (void)XXH3_64bits_reset(&state);
  (void)XXH3_64bits_update(&state, text, before);
  (void)XXH3_64bits_update(&state, zeros, DIGITS);
  (void)XXH3_64bits_update(&state, digits + DIGITS, length - before - DIGITS);
  return XXH3_64bits_digest(&state);
}

/* ---- reading ---- */

static ek_status corrupt(const char *path, const char *tensor, const char *what) {
  return ek_error_set(EK_ERR_CORRUPT, "%s: %s%.200s%s%s", path, tensor == NULL ? "" : "tensor ",
                      tensor == NULL ? "" : tensor, tensor == NULL ? "" : ": ", what);
}

/* The type, and how many bits an element has; 0 bits for a type that nobody here knows. */
static uint64_t read_type(struct ek__file_tensor *tensor) {
  for (size_t i = 0; i < TYPES; i++) {
    if (strcmp(types[i].name, tensor->type_name) != 0) continue;
    tensor->entry.like.type = types[i].type;
    return types[i].bits;
  }
  return 0;
}

static ek_status read_shape(struct ek__file_tensor *tensor, int64_t *elements, const char *path,
                            const json_t *shape) {
  ek_tensor *like = &tensor->entry.like;
  const size_t rank = json_array_size(shape);
  *elements = 1;
  if (!json_is_array(shape)) return corrupt(path, tensor->entry.name, "it has no shape");
  for (size_t i = 0; i < rank; i++) {
    const json_t *size = json_array_get(shape, i);
    if (!json_is_integer(size) || json_integer_value(size) < 0 ||
        !ek__multiply(elements, *elements, json_integer_value(size))) {
      return corrupt(path, tensor->entry.name,
                     "a size of its shape is none, or they are too large");
    }
    if (rank <= EK_MAX_RANK) like->shape[i] = json_integer_value(size);
  }
  like->rank = rank <= EK_MAX_RANK ? (int)rank : 0;
  if (rank > EK_MAX_RANK) like->type = 0;
  return EK_OK;
}

static ek_status read_tensor(struct ek__file_tensor *tensor, const char *path, const char *name,
                             const json_t *json, uint64_t data) {
  const json_t *offsets = json_object_get(json, "data_offsets");
  const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
  int64_t elements = 0, bits = 0;
  tensor->entry.name = name;
  tensor->type_name = json_string_value(json_object_get(json, "dtype"));
  if (name[0] == '\0') return corrupt(path, NULL, "a tensor has no name");
  if (tensor->type_name == NULL) return corrupt(path, name, "it has no type");
  const uint64_t width = read_type(tensor);
  EK_TRY(read_shape(tensor, &elements, path, json_object_get(json, "shape")));
  if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
      json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin) ||
      (uint64_t)json_integer_value(end) > data) {
    return corrupt(path, name, "its place is not inside the file");
  }
  tensor->first = (uint64_t)json_integer_value(begin);
  tensor->bytes = (uint64_t)json_integer_value(end) - tensor->first;
  if (width == 0) return EK_OK;
  if (!ek__multiply(&bits, elements, (int64_t)width) || bits % 8 != 0 ||
      (uint64_t)bits / 8 != tensor->bytes) {
    return corrupt(path, name, "its bytes are not as many as its shape and type have");
  }
  return EK_OK;
}

static int by_place(const void *left, const void *right) {
  const struct ek__file_tensor *a = left, *b = right;
  if (a->first != b->first) return a->first < b->first ? -1 : 1;
  return a->bytes == b->bytes ? 0 : a->bytes < b->bytes ? -1 : 1;
}

/* Every byte belongs to one tensor. */
static ek_status check_places(struct ek__header *header, const char *path, uint64_t data) {
  uint64_t end = 0;
  if (header->count > 0) qsort(header->tensors, header->count, sizeof *header->tensors, by_place);
  for (size_t i = 0; i < header->count; i++) {
    const struct ek__file_tensor *tensor = &header->tensors[i];
    if (tensor->first < end) {
      return corrupt(path, tensor->entry.name, "another tensor lies in the same bytes");
    }
    if (tensor->first > end) {
      return corrupt(path, tensor->entry.name, "bytes before it belong to no tensor");
    }
    end += tensor->bytes;
  }
  return end == data ? EK_OK : corrupt(path, NULL, "it is longer than its tensors");
}

static ek_status read_tensors(struct ek__header *header, const char *path, uint64_t data) {
  const char *name = NULL;
  json_t *value = NULL;
  json_t *tree = header->tree;
  header->tensors = ek__calloc(json_object_size(tree), sizeof *header->tensors);
  EK__FAIL_IF(header->tensors == NULL, EK_ERR_OUT_OF_MEMORY, "no host memory for the tensors of %s",
              path);
  json_object_foreach(tree, name, value) {
    if (strcmp(name, metadata_key) == 0) continue;
    EK_TRY(read_tensor(&header->tensors[header->count], path, name, value, data));
    header->count++;
  }
  return check_places(header, path, data);
}

static ek_status read_pairs(const struct ek__header *header, const char *path) {
  const json_t *pairs = json_object_get(header->tree, metadata_key);
  const char *key = NULL;
  json_t *value = NULL;
  if (pairs == NULL) return EK_OK;
  if (!json_is_object(pairs)) return corrupt(path, NULL, "__metadata__ holds no pairs");
  json_object_foreach((json_t *)(uintptr_t)pairs, key, value) {
    if (!json_is_string(value)) return corrupt(path, NULL, "a value of __metadata__ is no string");
  }
  return EK_OK;
}

/* Those of the tensors, as far as there are any. */
static ek_status read_tensor_sums(struct ek__header *header, const char *path) {
  size_t longest = 0;
  for (size_t i = 0; i < header->count; i++) {
    const size_t length = strlen(header->tensors[i].entry.name);
    if (length > longest) longest = length;
  }
  char *key = ek__calloc(1, sizeof tensor_key + longest);
  EK__FAIL_IF(key == NULL, EK_ERR_OUT_OF_MEMORY, "no host memory to open %s", path);
  memcpy(key, tensor_key, sizeof tensor_key);
  header->has_checksums = true;
  for (size_t i = 0; i < header->count; i++) {
    struct ek__file_tensor *tensor = &header->tensors[i];
    memcpy(key + sizeof tensor_key - 1, tensor->entry.name, strlen(tensor->entry.name) + 1);
    const char *digits = ek__header_value(header, key);
    tensor->has_checksum = digits != NULL && parse_checksum(&tensor->checksum, digits);
    header->has_checksums = header->has_checksums && tensor->has_checksum;
  }
  ek__free(key);
  return EK_OK;
}

static ek_status read_checksums(struct ek__header *header, const char *path, const char *text,
                                size_t length) {
  const char *own = ek__header_value(header, header_key);
  const char *digits = find_digits(text, length);
  uint64_t checksum = 0;
  if (own == NULL) return EK_OK;
  if (digits == NULL || strlen(own) != DIGITS || memcmp(own, digits, DIGITS) != 0 ||
      !parse_checksum(&checksum, own) || checksum != sum_of_text(text, length, digits)) {
    return corrupt(path, NULL, "the header is not as it was written: its checksum differs");
  }
  return read_tensor_sums(header, path);
}

ek_status ek__header_read(struct ek__header *header, const char *path, const char *text,
                          size_t length, uint64_t data) {
  json_error_t error;
  *header = (struct ek__header){0};
  if (length == 0 || text[0] != '{') return corrupt(path, NULL, "this is no safetensors file");
  header->tree = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
  EK__FAIL_IF(header->tree == NULL,
              json_error_code(&error) == json_error_out_of_memory ? EK_ERR_OUT_OF_MEMORY
                                                                  : EK_ERR_CORRUPT,
              "%s: its header cannot be read: %s", path, error.text);
  ek_status status = read_tensors(header, path, data);
  if (status == EK_OK) status = read_pairs(header, path);
  if (status == EK_OK) status = read_checksums(header, path, text, length);
  if (status != EK_OK) ek__header_free(header);
  return status;
}

const char *ek__header_value(const struct ek__header *header, const char *key) {
  return json_string_value(json_object_get(json_object_get(header->tree, metadata_key), key));
}

void ek__header_free(struct ek__header *header) {
  json_decref(header->tree);
  ek__free(header->tensors);
  *header = (struct ek__header){0};
}

/* ---- writing ---- */

/* Takes `value`; false where JSON cannot hold it, or there is no memory. */
static bool put(json_t *object, const char *key, json_t *value) {
  return json_object_set_new(object, key, value) == 0;
}

static bool put_tensor(json_t *tree, const struct ek__file_tensor *tensor) {
  const ek_tensor *like = &tensor->entry.like;
  const char *type = NULL;
  json_t *shape = json_array(), *json = json_object();
  for (size_t i = 0; i < TYPES && type == NULL; i++) {
    if (types[i].type == like->type) type = types[i].name;
  }
  bool fits = shape != NULL && json != NULL && type != NULL;
  for (int i = 0; fits && i < like->rank; i++) {
    fits = json_array_append_new(shape, json_integer(like->shape[i])) == 0;
  }
  fits = fits && put(json, "dtype", json_string(type)) && put(json, "shape", json_incref(shape)) &&
         put(json, "data_offsets",
             json_pack("[I,I]", (json_int_t)tensor->first,
                       (json_int_t)(tensor->first + tensor->bytes))) &&
         put(tree, tensor->entry.name, json_incref(json));
  json_decref(shape);
  json_decref(json);
  return fits;
}

static bool put_checksum(json_t *pairs, const char *name, uint64_t checksum) {
  char digits[DIGITS + 1];
  (void)snprintf(digits, sizeof digits, "%016" PRIx64, checksum);
  const size_t size = sizeof tensor_key + strlen(name);
  char *key = ek__calloc(1, size);
  const bool fits = key != NULL && snprintf(key, size, "%s%s", tensor_key, name) > 0 &&
                    put(pairs, key, json_string(digits));
  ek__free(key);
  return fits;
}

/* NULL if it cannot be made. */
static json_t *make_tree(const struct ek__file_tensor *tensors, size_t count,
                         const ek_safetensors_pair *pairs, size_t pair_count) {
  json_t *tree = json_object(), *metadata = json_object();
  bool fits = tree != NULL && metadata != NULL && put(tree, metadata_key, json_incref(metadata)) &&
              put(metadata, header_key, json_string(zeros));
  for (size_t i = 0; fits && i < pair_count; i++) {
    fits = put(metadata, pairs[i].key, json_string(pairs[i].value));
  }
  for (size_t i = 0; fits && i < count; i++) {
    fits = put_checksum(metadata, tensors[i].entry.name, tensors[i].checksum) &&
           put_tensor(tree, &tensors[i]);
  }
  json_decref(metadata);
  if (fits) return tree;
  json_decref(tree);
  return NULL;
}

static ek_status check_name(const char *name) {
  json_t *text = name == NULL ? NULL : json_string(name);
  const bool usable = text != NULL && name[0] != '\0' && strncmp(name, "__", 2) != 0;
  json_decref(text);
  if (usable) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                      "a tensor in a file cannot be called \"%.200s\": a name is UTF-8, not empty, "
                      "and does not begin with \"__\"",
                      name == NULL ? "NULL" : name);
}

static ek_status check_pairs(const ek_safetensors_pair *pairs, size_t count) {
  for (size_t i = 0; i < count; i++) {
    json_t *key = json_string(pairs[i].key), *value = json_string(pairs[i].value);
    const bool usable = key != NULL && value != NULL &&
                        strncmp(pairs[i].key, header_key, sizeof header_key - 1) != 0;
    json_decref(key);
    json_decref(value);
    if (usable) continue;
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "pair %zu of the header is not UTF-8, or its key is the library's own", i);
  }
  return EK_OK;
}

ek_status ek__header_write(char **text, size_t *length, const struct ek__file_tensor *tensors,
                           size_t count, const ek_safetensors_pair *pairs, size_t pair_count) {
  for (size_t i = 0; i < count; i++) EK_TRY(check_name(tensors[i].entry.name));
  EK_TRY(check_pairs(pairs, pair_count));
  json_t *tree = make_tree(tensors, count, pairs, pair_count);
  const size_t size = tree == NULL ? 0 : json_dumpb(tree, NULL, 0, JSON_COMPACT);
  const size_t tensors_named = json_object_size(tree);
  const size_t padded = (size + 7) & ~(size_t)7;
  char *bytes = size == 0 ? NULL : ek__calloc(1, padded + 1);
  if (bytes != NULL) {
    memset(bytes, ' ', padded);
    (void)json_dumpb(tree, bytes, padded, JSON_COMPACT);
  }
  json_decref(tree);
  EK__FAIL_IF(bytes == NULL, EK_ERR_OUT_OF_MEMORY, "no host memory for a file's header");
  if (tensors_named != count + 1 || padded > EK__HEADER_LIMIT) {
    ek__free(bytes);
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, tensors_named != count + 1
                                                     ? "two tensors of a file have the same name"
                                                     : "a file's header would be too long");
  }
  char *digits = (char *)(uintptr_t)find_digits(bytes, padded);
  char sum[DIGITS + 1];
  (void)snprintf(sum, sizeof sum, "%016" PRIx64, sum_of_text(bytes, padded, digits));
  memcpy(digits, sum, DIGITS);
  *text = bytes;
  *length = padded;
  return EK_OK;
}
