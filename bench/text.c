/*
 * text.c - reads files as bytes and cuts batches out of their tokens.
 */
#include "text.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <evenkeel/evenkeel.h>

#include "terminal.h"
#include "tokenizer.h"

#define LARGEST_FILE (UINT64_C(1) << 30)

static const char licences[] = "/usr/share/common-licenses";

/* For a machine that has none of the licences. */
static const char own_text[] =
    "A ship on an even keel draws the same water forward and aft. Load all of the cargo over the "
    "bow, and the stern comes out of the water while the bow goes under; the ship has room left, "
    "and yet it cannot take another crate. So it is with devices that train a network together. "
    "If one of them gathers every output and computes the loss, it is full while the others are "
    "almost empty, and the batch is no larger than what that one can hold.\n"
    "Leave each part of the output where it was made. Cut the targets as the inputs were cut, and "
    "compute the loss beside the output. Add up the sums and the weights, and divide once: what "
    "comes out is the loss of the whole batch, and not the mean of several means. What is still "
    "uneven then is the state of the training itself, the parameters, their gradients and the "
    "moments of the optimizer; keep a copy on every device, or a part of it on each.\n";

static void add_bytes(struct text *text, const char *name, const void *bytes, size_t length) {
  text->bytes = need_more(text->bytes, text->length + length, 1);
  memcpy(text->bytes + text->length, bytes, length);
  text->length += length;
  text->names = need_more(text->names, text->name_count + 1, sizeof *text->names);
  text->names[text->name_count++] = need_copy(name, strlen(name));
}

/* The content of a stream up to its end; false with a message. */
static bool read_stream(struct text *text, const char *path, FILE *file) {
  struct stat about;
  if (fstat(fileno(file), &about) == 0 && S_ISDIR(about.st_mode)) {
    say_error("%s is a directory, not a file of text", path);
    return false;
  }
  unsigned char *bytes = NULL;
  size_t length = 0, room = 0;
  while (!feof(file) && !ferror(file) && length <= LARGEST_FILE) {
    if (length == room) {
      room = room * 2 + 65536;
      bytes = need_more(bytes, room, 1);
    }
    length += fread(bytes + length, 1, room - length, file);
  }
  const bool failed = ferror(file) != 0;
  if (failed) {
    say_error("cannot read %s: %s", path, strerror(errno));
  } else if (length > LARGEST_FILE) {
    say_error("%s is larger than 1 GiB", path);
  } else if (length == 0) {
    say_error("%s is empty", path);
  } else {
    add_bytes(text, path, bytes, length);
  }
  free(bytes);
  return !failed && length > 0 && length <= LARGEST_FILE;
}

static bool read_file(struct text *text, const char *path) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) {
    say_error("cannot open %s: %s", path, strerror(errno));
    return false;
  }
  const bool good = read_stream(text, path, file);
  fclose(file);
  return good;
}

/* Links are left out: they name the same texts again. */
static int is_plain_file(const struct dirent *entry) {
  char path[sizeof licences + sizeof entry->d_name + 1];
  struct stat about;
  snprintf(path, sizeof path, "%s/%s", licences, entry->d_name);
  return lstat(path, &about) == 0 && S_ISREG(about.st_mode) && about.st_size > 0 &&
         (uint64_t)about.st_size <= LARGEST_FILE;
}

static bool read_licences(struct text *text) {
  struct dirent **entries = NULL;
  const int count = scandir(licences, &entries, is_plain_file, alphasort);
  bool good = true;
  for (int i = 0; i < count; i++) {
    char path[sizeof licences + sizeof entries[i]->d_name + 1];
    snprintf(path, sizeof path, "%s/%s", licences, entries[i]->d_name);
    good = good && read_file(text, path);
    free(entries[i]);
  }
  free(entries);
  return good;
}

bool text_read(struct text *text, const char *const *paths, size_t count) {
  memset(text, 0, sizeof *text);
  bool good = true;
  for (size_t i = 0; i < count && good; i++) good = read_file(text, paths[i]);
  if (count == 0) good = read_licences(text);
  if (good && text->length == 0) add_bytes(text, "built-in", own_text, sizeof own_text - 1);
  if (!good) text_free(text);
  return good;
}

void text_tokenize(struct text *text, int64_t vocab) {
  free(text->tokens);
  struct tokenizer *tokenizer = tokenizer_learn(text->bytes, text->length, vocab);
  text->tokens = need_more(NULL, text->length, sizeof *text->tokens);
  text->token_count = tokenizer_encode(tokenizer, text->tokens, text->bytes, text->length);
  text->token_kinds = tokenizer_kinds(tokenizer);
  tokenizer_free(tokenizer);
}

void text_batch(const struct text *text, int32_t *inputs, int32_t *targets, int64_t batch,
                int64_t seq, uint64_t seed, int64_t step) {
  const ek_random_key key = {seed, (uint32_t)step, 0};
  for (int64_t b = 0; b < batch; b++) {
    uint32_t bits[4];
    ek_random_bits(key, (uint32_t)b, 0, bits);
    size_t at = (((uint64_t)bits[0] << 32) | bits[1]) % text->token_count;
    for (int64_t t = 0; t < seq; t++) {
      inputs[b * seq + t] = text->tokens[at];
      at = at + 1 == text->token_count ? 0 : at + 1;
      targets[b * seq + t] = text->tokens[at];
    }
  }
}

void text_free(struct text *text) {
  for (size_t i = 0; i < text->name_count; i++) free(text->names[i]);
  free(text->names);
  free(text->bytes);
  free(text->tokens);
  memset(text, 0, sizeof *text);
}
