/*
 * tokenizer.c - frequent words over bytes.
 *
 * Words are counted in an open-addressing hash table of slices of the text, sorted by frequency
 * (ties by their bytes, so that the ids do not depend on the table), and the first ones get ids.
 */
#include "tokenizer.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "terminal.h"

struct word {
  const unsigned char *start;
  size_t length;
  size_t count;
  int32_t id; /* -1: has none */
};

struct tokenizer {
  int32_t byte_ids[256];
  unsigned char bytes[256]; /* bytes[id] for ids of single bytes */
  int32_t byte_kinds;       /* ids below this are bytes */
  bool others;              /* the last of them stands for several */
  struct word *words;       /* the hash table; length 0: free */
  size_t room, used;
  const struct word **by_id; /* words[id - byte_kinds] */
  int32_t word_kinds;
};

static bool is_letter(unsigned char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c > 127;
}

static bool is_digit(unsigned char c) { return c >= '0' && c <= '9'; }

/* The length of the word at the start of `text`, at least 1. */
static size_t word_length(const unsigned char *text, size_t length) {
  size_t i = 0;
  if (text[0] == ' ' && length > 1 && (is_letter(text[1]) || is_digit(text[1]))) i = 1;
  const unsigned char first = text[i];
  size_t end = i + 1;
  if (is_letter(first)) {
    while (end < length && is_letter(text[end])) end++;
  } else if (is_digit(first)) {
    while (end < length && is_digit(text[end])) end++;
  } else {
    while (end < length && text[end] == first) end++;
    /* The last blank of a run belongs to the word after it. */
    if (first == ' ' && end - i > 1 && end < length &&
        (is_letter(text[end]) || is_digit(text[end]))) {
      end--;
    }
  }
  return end;
}

static size_t hash(const unsigned char *text, size_t length) {
  uint64_t value = UINT64_C(14695981039346656037); /* FNV-1a */
  for (size_t i = 0; i < length; i++) value = (value ^ text[i]) * UINT64_C(1099511628211);
  return (size_t)(value ^ (value >> 32));
}

/* The slot of a word, or the free one where it belongs. */
static struct word *find(const struct tokenizer *tokenizer, const unsigned char *text,
                         size_t length) {
  for (size_t i = hash(text, length);; i++) {
    struct word *word = &tokenizer->words[i & (tokenizer->room - 1)];
    if (word->length == 0) return word;
    if (word->length == length && memcmp(word->start, text, length) == 0) return word;
  }
}

static void make_room(struct tokenizer *tokenizer) {
  if (tokenizer->used * 2 < tokenizer->room) return;
  struct word *old = tokenizer->words;
  const size_t old_room = tokenizer->room;
  tokenizer->room = old_room == 0 ? 4096 : old_room * 2;
  tokenizer->words = need_memory(tokenizer->room, sizeof *old);
  for (size_t i = 0; i < old_room; i++) {
    if (old[i].length > 0) *find(tokenizer, old[i].start, old[i].length) = old[i];
  }
  free(old);
}

static void count_words(struct tokenizer *tokenizer, const unsigned char *bytes, size_t length) {
  for (size_t at = 0; at < length;) {
    const size_t size = word_length(bytes + at, length - at);
    make_room(tokenizer);
    struct word *word = find(tokenizer, bytes + at, size);
    if (word->length == 0) {
      *word = (struct word){.start = bytes + at, .length = size, .id = -1};
      tokenizer->used++;
    }
    word->count++;
    at += size;
  }
}

static int compare_words(const void *left, const void *right) {
  const struct word *a = *(struct word *const *)left, *b = *(struct word *const *)right;
  if (a->count != b->count) return a->count < b->count ? 1 : -1;
  const int order = memcmp(a->start, b->start, a->length < b->length ? a->length : b->length);
  if (order != 0) return order;
  return (a->length > b->length) - (a->length < b->length);
}

/* Gives ids from `first` on to the most frequent words of more than one byte. */
static void number_words(struct tokenizer *tokenizer, int32_t first, int64_t vocab) {
  struct word **sorted = need_memory(tokenizer->used, sizeof(struct word *));
  size_t count = 0;
  for (size_t i = 0; i < tokenizer->room; i++) {
    if (tokenizer->words[i].length > 1) sorted[count++] = &tokenizer->words[i];
  }
  qsort(sorted, count, sizeof(struct word *), compare_words);
  const int64_t wanted = vocab - first;
  if ((uint64_t)wanted < count) count = (size_t)wanted;
  tokenizer->by_id = need_memory(count, sizeof(struct word *));
  for (size_t i = 0; i < count; i++) {
    sorted[i]->id = first + (int32_t)i;
    tokenizer->by_id[i] = sorted[i];
  }
  tokenizer->word_kinds = (int32_t)count;
  free(sorted);
}

/* Fewer ids than bytes: the most frequent ones have their own, in the order of their values. */
static void number_few_bytes(struct tokenizer *tokenizer, const unsigned char *bytes, size_t length,
                             int32_t vocab) {
  size_t counts[256] = {0};
  int32_t distinct = 0;
  for (size_t i = 0; i < length; i++) distinct += counts[bytes[i]]++ == 0;
  tokenizer->others = distinct > vocab;
  const int32_t own = tokenizer->others ? vocab - 1 : distinct;
  bool chosen[256] = {false};
  for (int32_t n = 0; n < own; n++) {
    int best = -1;
    for (int c = 0; c < 256; c++) {
      if (!chosen[c] && counts[c] > 0 && (best < 0 || counts[c] > counts[best])) best = c;
    }
    if (best >= 0) chosen[best] = true;
  }
  int32_t id = 0;
  for (int c = 0; c < 256; c++) {
    tokenizer->byte_ids[c] = vocab - 1;
    if (!chosen[c]) continue;
    tokenizer->bytes[id] = (unsigned char)c;
    tokenizer->byte_ids[c] = id++;
  }
  tokenizer->byte_kinds = tokenizer->others ? vocab : own;
}

struct tokenizer *tokenizer_learn(const unsigned char *bytes, size_t length, int64_t vocab) {
  struct tokenizer *tokenizer = need_memory(1, sizeof *tokenizer);
  if (vocab < 256) {
    number_few_bytes(tokenizer, bytes, length, (int32_t)vocab);
    return tokenizer;
  }
  for (int c = 0; c < 256; c++) {
    tokenizer->byte_ids[c] = c;
    tokenizer->bytes[c] = (unsigned char)c;
  }
  tokenizer->byte_kinds = 256;
  if (vocab > 256) {
    count_words(tokenizer, bytes, length);
    number_words(tokenizer, 256, vocab);
  }
  return tokenizer;
}

void tokenizer_free(struct tokenizer *tokenizer) {
  if (tokenizer == NULL) return;
  free(tokenizer->words);
  free(tokenizer->by_id);
  free(tokenizer);
}

int32_t tokenizer_kinds(const struct tokenizer *tokenizer) {
  const int32_t kinds = tokenizer->byte_kinds + tokenizer->word_kinds;
  return kinds > 0 ? kinds : 1;
}

size_t tokenizer_encode(const struct tokenizer *tokenizer, int32_t *ids, const unsigned char *bytes,
                        size_t length) {
  size_t count = 0;
  for (size_t at = 0; at < length;) {
    const size_t size = tokenizer->room > 0 ? word_length(bytes + at, length - at) : 1;
    const struct word *word = size > 1 ? find(tokenizer, bytes + at, size) : NULL;
    if (word != NULL && word->length > 0 && word->id >= 0) {
      ids[count++] = word->id;
    } else {
      for (size_t i = 0; i < size; i++) ids[count++] = tokenizer->byte_ids[bytes[at + i]];
    }
    at += size;
  }
  return count;
}

const unsigned char *tokenizer_decode(const struct tokenizer *tokenizer, int32_t id,
                                      size_t *length) {
  *length = 0;
  if (id < 0 || id >= tokenizer_kinds(tokenizer)) return NULL;
  if (id < tokenizer->byte_kinds) {
    if (tokenizer->others && id == tokenizer->byte_kinds - 1) return NULL;
    *length = 1;
    return &tokenizer->bytes[id];
  }
  const struct word *word = tokenizer->by_id[id - tokenizer->byte_kinds];
  *length = word->length;
  return word->start;
}
