/*
 * header_json.c - reads the text of a header (header.h).
 *
 * The text is parsed in place (json.h): names and pairs are loans of it, and the only other memory
 * is two tables, whose lengths are bounded by that of the text. So a text is EK_ERR_CORRUPT only
 * for its contents, never for lack of memory.
 *
 * Tensors and pairs are sorted by name to find duplicates; tensors then by place.
 */
#include "io/header.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sizes.h"
#include "io/header_text.h"
#include "io/json.h"

static ek_status corrupt(const char *path, const char *tensor, const char *what) {
  return ek_error_set(EK_ERR_CORRUPT, "%s: %s%.200s%s%s", path, tensor == NULL ? "" : "tensor ",
                      tensor == NULL ? "" : tensor, tensor == NULL ? "" : ": ", what);
}

/* The text, while it is read. */
struct reader {
  struct ek__json json;
  const char *path, *begin;
  size_t tensor_room, pair_room;
  bool has_pairs;
};

static ek_status not_json(const struct reader *reader) {
  return ek_error_set(
      EK_ERR_CORRUPT,
      "%s: its header cannot be read: invalid JSON at byte %zu, or more than %d levels deep",
      reader->path, (size_t)(reader->json.at - reader->begin), EK__JSON_DEPTH);
}

static ek_status twice(const char *path, const char *what, const char *name) {
  return ek_error_set(EK_ERR_CORRUPT, "%s: its header cannot be read: %s \"%.200s\" occurs twice",
                      path, what, name);
}

/* Types of the format; a type that the library has no name for is 0. */
static const struct {
  const char *name;
  ek_type type;
  uint64_t bits;
} types[] = {
    {"F32", EK_F32, 32}, {"F64", EK_F64, 64}, {"BF16", EK_BF16, 16}, {"F16", EK_F16, 16},
    {"I32", EK_I32, 32}, {"I64", EK_I64, 64}, {"I16", 0, 16},        {"I8", 0, 8},
    {"U64", 0, 64},      {"U32", EK_U32, 32}, {"U16", EK_U16, 16},   {"U8", EK_U8, 8},
    {"BOOL", 0, 8},      {"F8_E4M3", 0, 8},   {"F8_E5M2", 0, 8},     {"F8_E8M0", 0, 8},
    {"F6_E2M3", 0, 6},   {"F6_E3M2", 0, 6},   {"F4", 0, 4},          {"C64", 0, 64},
};
enum { TYPES = sizeof types / sizeof *types };

const char *ek__header_type(ek_type type) {
  for (size_t i = 0; i < TYPES; i++) {
    if (types[i].type == type) return types[i].name;
  }
  return NULL;
}

/* The type, and how many bits an element has; 0 bits for a type that the library does not know. */
static uint64_t read_type(struct ek__file_tensor *tensor) {
  for (size_t i = 0; i < TYPES; i++) {
    if (strcmp(types[i].name, tensor->type_name) != 0) continue;
    tensor->entry.like.type = types[i].type;
    return types[i].bits;
  }
  return 0;
}

/* Passes over a list, of which `most` integers are kept in `numbers`, and over any other value.
 * *count: its members, -1 for what is no list. *product is of all, negative if one of them is no
 * size or they are too large. */
static void read_list(struct ek__json *json, int64_t *numbers, size_t most, int64_t *count,
                      int64_t *product) {
  bool whole = false;
  int64_t number = 0;
  size_t seen = 0;
  *count = -1;
  *product = 1;
  if (ek__json_peek(json) != '[') {
    (void)ek__json_value(json, &whole, &number);
    return;
  }
  (void)ek__json_take(json, '[');
  while (ek__json_member(json, ']', &seen) && ek__json_value(json, &whole, &number)) {
    if (!whole || number < 0 || *product < 0 || !ek__multiply(product, *product, number)) {
      *product = -1;
    }
    if (seen <= most) numbers[seen - 1] = number;
  }
  *count = (int64_t)seen;
}

/* The header's entry of a tensor. */
struct entry {
  char *type;
  int64_t shape[EK_MAX_RANK], rank, elements;
  int64_t offsets[2], offset_count, offset_product;
};

/* Member `key` of a tensor. */
static ek_status read_member(struct entry *entry, bool seen[3], struct reader *reader,
                             const char *key) {
  static const char *const keys[] = {"dtype", "shape", "data_offsets"};
  struct ek__json *json = &reader->json;
  int64_t number = 0;
  bool whole = false;
  for (size_t i = 0; i < 3; i++) {
    if (strcmp(key, keys[i]) != 0) continue;
    if (seen[i]) return twice(reader->path, "member", key);
    seen[i] = true;
    if (i == 0 && ek__json_peek(json) == '"') (void)ek__json_string(json, &entry->type);
    if (i == 0 && entry->type != NULL) return EK_OK;
    if (i == 1) read_list(json, entry->shape, EK_MAX_RANK, &entry->rank, &entry->elements);
    if (i == 2) {
      read_list(json, entry->offsets, 2, &entry->offset_count, &entry->offset_product);
    }
    if (i > 0) return EK_OK;
  }
  (void)ek__json_value(json, &whole, &number);
  return EK_OK;
}

static ek_status read_members(struct entry *entry, struct reader *reader) {
  struct ek__json *json = &reader->json;
  bool seen[3] = {false, false, false}, whole = false;
  int64_t number = 0;
  size_t count = 0;
  char *key = NULL;
  *entry = (struct entry){.rank = -1, .offset_count = -1};
  if (ek__json_peek(json) != '{') {
    (void)ek__json_value(json, &whole, &number);
    return EK_OK;
  }
  (void)ek__json_take(json, '{');
  while (ek__json_member(json, '}', &count)) {
    if (!ek__json_string(json, &key) || !ek__json_take(json, ':')) break;
    EK_TRY(read_member(entry, seen, reader, key));
  }
  return EK_OK;
}

/* Whether it says what a tensor's entry says, and fits to `data` bytes. */
static ek_status check_entry(struct ek__file_tensor *tensor, const struct entry *entry,
                             const char *path, uint64_t data) {
  const char *name = tensor->entry.name;
  ek_tensor *like = &tensor->entry.like;
  int64_t bits = 0;
  if (name[0] == '\0') return corrupt(path, NULL, "a tensor has no name");
  if (entry->type == NULL) return corrupt(path, name, "it has no type");
  tensor->type_name = entry->type;
  const uint64_t width = read_type(tensor);
  if (entry->rank < 0) return corrupt(path, name, "it has no shape");
  if (entry->elements < 0) {
    return corrupt(path, name,
                   "a dimension of its shape is not a whole number >= 0, or the shape is too "
                   "large");
  }
  like->rank = entry->rank <= EK_MAX_RANK ? (int)entry->rank : 0;
  for (int i = 0; i < like->rank; i++) like->shape[i] = entry->shape[i];
  if (entry->rank > EK_MAX_RANK) like->type = 0;
  if (entry->offset_count != 2 || entry->offset_product < 0 ||
      entry->offsets[1] < entry->offsets[0] || (uint64_t)entry->offsets[1] > data) {
    return corrupt(path, name, "its byte range is outside the file");
  }
  tensor->first = (uint64_t)entry->offsets[0];
  tensor->bytes = (uint64_t)entry->offsets[1] - tensor->first;
  if (width == 0) return EK_OK;
  if (!ek__multiply(&bits, entry->elements, (int64_t)width) || bits % 8 != 0 ||
      (uint64_t)bits / 8 != tensor->bytes) {
    return corrupt(path, name, "its byte length does not match its shape and type");
  }
  return EK_OK;
}

static ek_status read_tensor(struct ek__header *header, struct reader *reader, const char *name,
                             uint64_t data) {
  struct entry entry;
  EK_TRY(ek__grow(&header->tensors, &reader->tensor_room, header->count + 1,
                  sizeof *header->tensors, "the tensors of a file"));
  struct ek__file_tensor *tensor = &header->tensors[header->count];
  tensor->entry.name = name;
  EK_TRY(read_members(&entry, reader));
  if (reader->json.bad) return EK_OK;
  header->count++;
  return check_entry(tensor, &entry, reader->path, data);
}

static ek_status read_pairs(struct ek__header *header, struct reader *reader) {
  struct ek__json *json = &reader->json;
  char *key = NULL, *value = NULL;
  size_t seen = 0;
  if (reader->has_pairs) return twice(reader->path, "member", EK__HEADER_PAIRS);
  reader->has_pairs = true;
  if (ek__json_peek(json) != '{') {
    return corrupt(reader->path, NULL, "__metadata__ is not an object");
  }
  (void)ek__json_take(json, '{');
  while (ek__json_member(json, '}', &seen)) {
    if (!ek__json_string(json, &key) || !ek__json_take(json, ':')) break;
    if (ek__json_peek(json) != '"') {
      return corrupt(reader->path, NULL, "a value of __metadata__ is not a string");
    }
    if (!ek__json_string(json, &value)) break;
    EK_TRY(ek__grow(&header->pairs, &reader->pair_room, header->pair_count + 1,
                    sizeof *header->pairs, "the pairs of a file"));
    header->pairs[header->pair_count++] = (ek_safetensors_pair){key, value};
  }
  return EK_OK;
}

/* All of it, in the order of the text. */
static ek_status read_text(struct ek__header *header, struct reader *reader, uint64_t data) {
  struct ek__json *json = &reader->json;
  char *name = NULL;
  size_t seen = 0;
  (void)ek__json_take(json, '{');
  while (ek__json_member(json, '}', &seen)) {
    if (!ek__json_string(json, &name) || !ek__json_take(json, ':')) break;
    EK_TRY(strcmp(name, EK__HEADER_PAIRS) == 0 ? read_pairs(header, reader)
                                               : read_tensor(header, reader, name, data));
  }
  return ek__json_ends(json) ? EK_OK : not_json(reader);
}

/* ---- what it says as a whole ---- */

static int by_key(const void *left, const void *right) {
  return strcmp(((const ek_safetensors_pair *)left)->key,
                ((const ek_safetensors_pair *)right)->key);
}

static int by_name(const void *left, const void *right) {
  return strcmp(((const struct ek__file_tensor *)left)->entry.name,
                ((const struct ek__file_tensor *)right)->entry.name);
}

static int by_place(const void *left, const void *right) {
  const struct ek__file_tensor *a = left, *b = right;
  if (a->first != b->first) return a->first < b->first ? -1 : 1;
  return a->bytes == b->bytes ? 0 : a->bytes < b->bytes ? -1 : 1;
}

/* Leaves the pairs in the order of their keys. */
static ek_status check_names(struct ek__header *header, const char *path) {
  if (header->count > 0) qsort(header->tensors, header->count, sizeof *header->tensors, by_name);
  if (header->pair_count > 0) {
    qsort(header->pairs, header->pair_count, sizeof *header->pairs, by_key);
  }
  for (size_t i = 1; i < header->count; i++) {
    if (by_name(&header->tensors[i - 1], &header->tensors[i]) == 0) {
      return twice(path, "tensor", header->tensors[i].entry.name);
    }
  }
  for (size_t i = 1; i < header->pair_count; i++) {
    if (by_key(&header->pairs[i - 1], &header->pairs[i]) == 0) {
      return twice(path, "key", header->pairs[i].key);
    }
  }
  return EK_OK;
}

/* Every byte belongs to one tensor. */
static ek_status check_places(struct ek__header *header, const char *path, uint64_t data) {
  uint64_t end = 0;
  if (header->count > 0) qsort(header->tensors, header->count, sizeof *header->tensors, by_place);
  for (size_t i = 0; i < header->count; i++) {
    const struct ek__file_tensor *tensor = &header->tensors[i];
    if (tensor->first < end) {
      return corrupt(path, tensor->entry.name, "it overlaps another tensor");
    }
    if (tensor->first > end) {
      return corrupt(path, tensor->entry.name, "the bytes before it belong to no tensor");
    }
    end += tensor->bytes;
  }
  return end == data ? EK_OK : corrupt(path, NULL, "the file is longer than its tensors");
}

/* The checksums of the tensors, where the file has them. */
static ek_status read_tensor_sums(struct ek__header *header, const char *path) {
  size_t longest = 0;
  for (size_t i = 0; i < header->count; i++) {
    const size_t length = strlen(header->tensors[i].entry.name);
    if (length > longest) longest = length;
  }
  char *key = ek__calloc(1, sizeof EK__HEADER_TENSOR_SUM + longest);
  EK__FAIL_IF(key == NULL, EK_ERR_OUT_OF_MEMORY, "out of host memory to open %s", path);
  memcpy(key, EK__HEADER_TENSOR_SUM, sizeof EK__HEADER_TENSOR_SUM);
  header->has_checksums = true;
  for (size_t i = 0; i < header->count; i++) {
    struct ek__file_tensor *tensor = &header->tensors[i];
    memcpy(key + sizeof EK__HEADER_TENSOR_SUM - 1, tensor->entry.name,
           strlen(tensor->entry.name) + 1);
    const char *digits = ek__header_value(header, key);
    tensor->has_checksum = digits != NULL && ek__header_parse_sum(&tensor->checksum, digits);
    header->has_checksums = header->has_checksums && tensor->has_checksum;
  }
  ek__free(key);
  return EK_OK;
}

/* `sum` is that of the text before it was read, whose checksum is `said`, or NULL. */
static ek_status check_sums(struct ek__header *header, const char *path, uint64_t sum,
                            const char *said) {
  const char *own = ek__header_value(header, EK__HEADER_SUM);
  uint64_t checksum = 0;
  for (size_t i = 0; i < header->pair_count && own == NULL; i++) {
    if (strncmp(header->pairs[i].key, EK__HEADER_TENSOR_SUM, sizeof EK__HEADER_TENSOR_SUM - 1) != 0)
      continue;
    return corrupt(path, NULL, "it has checksums of its tensors but not of its header");
  }
  if (own == NULL) return EK_OK;
  if (said == NULL || strcmp(own, said) != 0 || !ek__header_parse_sum(&checksum, own) ||
      checksum != sum) {
    return corrupt(path, NULL, "the header is damaged: its checksum differs");
  }
  return read_tensor_sums(header, path);
}

ek_status ek__header_read(struct ek__header *header, const char *path, char *text, size_t length,
                          uint64_t data) {
  struct reader reader = {.json = {text, text + length, false}, .path = path, .begin = text};
  const char *digits = ek__header_find_digits(text, length);
  char said[EK__HEADER_DIGITS + 1] = "";
  *header = (struct ek__header){.text = text};
  if (digits != NULL) memcpy(said, digits, EK__HEADER_DIGITS);
  const uint64_t sum = digits == NULL ? 0 : ek__header_sum(text, length, digits);
  ek_status status = text[0] == '{' ? EK_OK : corrupt(path, NULL, "not a safetensors file");
  if (status == EK_OK) status = read_text(header, &reader, data);
  if (status == EK_OK) status = check_names(header, path);
  if (status == EK_OK) status = check_places(header, path, data);
  if (status == EK_OK) status = check_sums(header, path, sum, digits == NULL ? NULL : said);
  if (status != EK_OK) ek__header_free(header);
  return status;
}

const char *ek__header_value(const struct ek__header *header, const char *key) {
  const ek_safetensors_pair wanted = {key, NULL};
  if (header->pair_count == 0) return NULL;
  const ek_safetensors_pair *pair =
      bsearch(&wanted, header->pairs, header->pair_count, sizeof *header->pairs, by_key);
  return pair == NULL ? NULL : pair->value;
}

void ek__header_free(struct ek__header *header) {
  ek__free(header->tensors);
  ek__free(header->pairs);
  ek__free(header->text);
  *header = (struct ek__header){0};
}
