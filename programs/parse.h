/*
 * parse.h - the values of flags: whole numbers, ratios, lists. No output; false for bad text.
 */
#ifndef PROGRAMS_PARSE_H
#define PROGRAMS_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <evenkeel/evenkeel.h>

/* A whole decimal number in [least, most], nothing around it. */
bool parse_whole(int64_t *value, const char *text, int64_t least, int64_t most);

/* A finite number in [least, most], nothing around it. */
bool parse_real(double *value, const char *text, double least, double most);

/* "16x8": 16 processes with 8 devices each, at most 2^20 devices in all. */
bool parse_world(int64_t *processes, int64_t *devices, const char *text);

/* "25GB/s" or "100Gbit/s,5us": bytes in a second; and seconds until a byte arrives, 0 if they are
 * not given. Units: B or bit, with k, M, G, T for powers of 1000; s, ms, us, ns. */
bool parse_link(double *bytes, double *seconds, const char *text);

/* A number below 2^63, which is what JSON readers take, decimal or 0x... */
bool parse_seed(uint64_t *value, const char *text);

/*
 * `unknown mode "gahter"; expected gather, balanced, ...; did you mean gather?`: the question only
 * if one of the words, a list that NULL ends, is near. Returns `text`.
 */
#define UNKNOWN_TEXT 512
const char *unknown_word(char text[UNKNOWN_TEXT], const char *what, const char *word,
                         const char *const *words);

/*
 * "gather,balanced" or "all". Each mode once. `modes` has room for BENCH_MODES. On failure `bad`
 * gets the word that is wrong.
 */
#define BENCH_MODES 6
extern const char *const mode_words[]; /* for unknown_word() */
bool parse_modes(ek_mode modes[BENCH_MODES], size_t *count, const char *text, char bad[64]);

/* What numbers a run computes in; tf32 are f32 whose products are rounded more. */
enum precision { PRECISION_F32, PRECISION_TF32, PRECISION_BF16, PRECISION_F16, BENCH_PRECISIONS };
const char *precision_text(enum precision precision);  /* "bf16" */
ek_precision precision_value(enum precision precision); /* that modules compute in */
extern const char *const precision_words[];           /* for unknown_word() */
/* "f32,bf16". Each once. On failure `bad` gets the word that is wrong. */
bool parse_precisions(enum precision precisions[BENCH_PRECISIONS], size_t *count, const char *text,
                      char bad[64]);

/* Of one group; the benchmark runs on no more. */
#define BENCH_MAX_DEVICES 64

/* "even", "chunk", "sizes=3,3,2", "weights=1,0.5". */
struct scatter {
  ek_scatter_kind kind;
  size_t count; /* of sizes or weights */
  int64_t sizes[BENCH_MAX_DEVICES];
  double weights[BENCH_MAX_DEVICES];
};
bool parse_scatter(struct scatter *scatter, const char *text);

/* The library's form of it; points into `scatter`. */
ek_scatter_options scatter_options(const struct scatter *scatter);

#endif
