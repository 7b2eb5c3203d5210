/*
 * tokenizer.h - text as ids below a vocabulary's size.
 *
 *     vocab > 256     ids 0..255 are the bytes; the others are the most frequent words of the text,
 *                     the most frequent first. What is no such word is written byte by byte.
 *     vocab = 256     the bytes
 *     vocab < 256     the bytes that occur, numbered in their order; if they are too many, the most
 *                     frequent vocab - 1 of them, and the last id for all others
 *
 * A word is a run of letters (every byte above 127 counts as one) or of digits, with one blank
 * before it if there is one, or a run of one other byte: "the", " the", "1991", "----". Ids can be
 * turned back into the text exactly, except in the last case. A text with fewer words than the
 * vocabulary has room for leaves the highest ids unused.
 *
 * Why not byte-pair merges: the benchmark needs real ids with a real distribution, learnt in the
 * time of one read; how few tokens a text takes makes no difference to it.
 */
#ifndef BENCH_TOKENIZER_H
#define BENCH_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

struct tokenizer;

/* Keeps pointers into `bytes`, which must outlive it. vocab >= 1. */
struct tokenizer *tokenizer_learn(const unsigned char *bytes, size_t length, int64_t vocab);
void tokenizer_free(struct tokenizer *tokenizer);

/* How many ids there are: the largest is one less. At least 1. */
int32_t tokenizer_kinds(const struct tokenizer *tokenizer);

/* `ids` has room for one id per byte; returns how many it took. */
size_t tokenizer_encode(const struct tokenizer *tokenizer, int32_t *ids, const unsigned char *bytes,
                        size_t length);

/* The bytes of an id: a loan, *length of them; NULL for an id there is not or that stands for many.
 */
const unsigned char *tokenizer_decode(const struct tokenizer *tokenizer, int32_t id,
                                      size_t *length);

#endif
