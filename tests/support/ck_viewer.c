/*
 * ck_viewer.c - the two readers of a snapshot: see ck_viewer.h.
 */
#include "ck_viewer.h"

#include "ck_folder.h"
#include "ek_check.h"

/* ---- values ---- */

static struct ck_value *make_value(char kind) {
  struct ck_value *made = calloc(1, sizeof *made);
  ck_assert_ptr_nonnull(made);
  made->kind = kind;
  return made;
}

static void append(struct ck_value *to, struct ck_value *item) {
  if (to->first == NULL) to->first = item;
  if (to->last != NULL) to->last->next = item;
  to->last = item;
}

static void free_value(void *argument) {
  struct ck_value *value = argument;
  for (struct ck_value *item = value->first; item != NULL;) {
    struct ck_value *next = item->next;
    free_value(item);
    item = next;
  }
  free(value->text);
  free(value);
}

const struct ck_value *ck_value_find(const struct ck_value *dictionary, const char *key) {
  ck_assert(dictionary->kind == '{');
  for (const struct ck_value *k = dictionary->first; k != NULL; k = k->next->next) {
    if (strcmp(k->text, key) == 0) return k->next;
  }
  return NULL;
}

const struct ck_value *ck_value_get(const struct ck_value *dictionary, const char *key, char kind) {
  const struct ck_value *value = ck_value_find(dictionary, key);
  ck_assert_msg(value != NULL && value->kind == kind, "no %s, or of another kind", key);
  return value;
}

uint64_t ck_value_number(const struct ck_value *dictionary, const char *key) {
  return ck_value_get(dictionary, key, 0)->number;
}

const char *ck_value_text(const struct ck_value *dictionary, const char *key) {
  return ck_value_get(dictionary, key, '"')->text;
}

size_t ck_value_count(const struct ck_value *list) {
  size_t count = 0;
  for (const struct ck_value *item = list->first; item != NULL; item = item->next) count++;
  return count;
}

bool ck_value_same(const struct ck_value *a, const struct ck_value *b) {
  if (a->kind != b->kind || a->number != b->number) return false;
  if (a->kind == '"' && strcmp(a->text, b->text) != 0) return false;
  const struct ck_value *x = a->first, *y = b->first;
  for (; x != NULL && y != NULL; x = x->next, y = y->next) {
    if (!ck_value_same(x, y)) return false;
  }
  return x == y;
}

/* ---- the two readers ---- */

static struct ck_value *take_text(const char *from, size_t length) {
  struct ck_value *made = make_value('"');
  made->text = calloc(length + 1, 1);
  memcpy(made->text, from, length);
  return made;
}

static struct ck_value *read_json(const char **at) {
  *at += strspn(*at, ",: \n");
  if (**at == '"') { /* nothing here is escaped */
    const size_t length = strcspn(++*at, "\"\\");
    struct ck_value *made = take_text(*at, length);
    *at += length;
    ck_assert(*(*at)++ == '"');
    return made;
  }
  if (**at != '{' && **at != '[') {
    struct ck_value *made = make_value(0);
    char *end = NULL;
    made->number = strtoull(*at, &end, 10);
    ck_assert_msg(end > *at, "no value: %.20s", *at);
    *at = end;
    return made;
  }
  struct ck_value *made = make_value(*(*at)++);
  const char closing = made->kind == '{' ? '}' : ']';
  while (**at != closing) append(made, read_json(at));
  ++*at;
  return made;
}

static uint64_t little_endian(const unsigned char *from, int bytes) {
  uint64_t number = 0;
  for (int i = bytes; i-- > 0;) number = number << 8 | from[i];
  return number;
}

/* Of a pickle's opcodes those that a snapshot needs. */
static struct ck_value *read_pickle(const unsigned char *at, const unsigned char *end) {
  enum { DEPTH = 4096 };
  static struct ck_value *stack[DEPTH];
  static size_t marks[DEPTH];
  size_t depth = 0, marked = 0;
  ck_assert(at[0] == 0x80 && at[1] == 2);
  at += 2;
  while (at < end && *at != '.') {
    ck_assert(depth + 1 < DEPTH);
    const unsigned char opcode = *at++;
    if (opcode == '}' || opcode == ']') {
      stack[depth++] = make_value(opcode == '}' ? '{' : '[');
    } else if (opcode == '(') {
      marks[marked++] = depth;
    } else if (opcode == 'u' || opcode == 'e') {
      const size_t mark = marks[--marked];
      struct ck_value *to = stack[mark - 1];
      ck_assert(to->kind == (opcode == 'u' ? '{' : '[') &&
                (opcode == 'e' || (depth - mark) % 2 == 0));
      ck_assert(opcode == 'u' || depth - mark <= 1000);
      for (size_t i = mark; i < depth; i++) append(to, stack[i]);
      depth = mark;
    } else if (opcode == 'X') {
      const size_t length = (size_t)little_endian(at, 4);
      stack[depth++] = take_text((const char *)at + 4, length);
      at += 4 + length;
    } else {
      const int bytes = opcode == 'J' ? 4 : at[0];
      ck_assert_msg(opcode == 'J' || (opcode == 0x8a && bytes == 8), "opcode %#x", opcode);
      at += opcode == 0x8a;
      stack[depth] = make_value(0);
      stack[depth++]->number = little_endian(at, bytes);
      ck_assert(opcode != 'J' || stack[depth - 1]->number <= INT32_MAX); /* it has a sign */
      at += bytes;
    }
  }
  ck_assert(at + 1 == end && depth == 1 && marked == 0);
  return stack[0];
}

const struct ck_value *ck_read_snapshot(const char *path) {
  size_t length = 0;
  const char *text = ck_read_file(&length, path), *at = text;
  struct ck_value *value = NULL;
  ck_assert_msg(text != NULL, "%s is not there", path);
  if (text[0] == '{') {
    value = read_json(&at);
    ck_assert_str_eq(at, "\n");
  } else {
    value = read_pickle((const unsigned char *)text, (const unsigned char *)text + length);
  }
  ck_keep_by(value, free_value);
  return value;
}
