/*
 * text.h - the text that is trained on, as bytes and as tokens.
 */
#ifndef BENCH_TEXT_H
#define BENCH_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct text {
  unsigned char *bytes; /* all files, one after the other */
  size_t length;
  char **names; /* of the files */
  size_t name_count;
  int32_t *tokens; /* NULL until text_tokenize() */
  size_t token_count;
  int32_t token_kinds; /* ids are below this */
};

/*
 * Reads the files; without any, the licences in /usr/share/common-licenses, else a short text of
 * the program's own. A file that cannot be read, is empty or is larger than 1 GiB is an error,
 * which is said: false.
 */
bool text_read(struct text *text, const char *const *paths, size_t count);

/* Cuts the text into tokens with ids below `vocab` (tokenizer.h). */
void text_tokenize(struct text *text, int64_t vocab);

/*
 * Fills one batch: inputs[b][t] and the token after it, targets[b][t]. Sample b of step s starts at
 * a place that depends on (seed, s, b) alone; after the end the text begins again, so that it may
 * be shorter than a sample.
 */
void text_batch(const struct text *text, int32_t *inputs, int32_t *targets, int64_t batch,
                int64_t seq, uint64_t seed, int64_t step);

void text_free(struct text *text);

#endif
