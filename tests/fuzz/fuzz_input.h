/*
 * fuzz_input.h - random bytes as decisions, and how a harness says that something is wrong.
 *
 * A harness takes one decision after the other from its input; past the end of the input every
 * decision is 0. So every input is a legal one, short inputs are simple cases, and make 0 the
 * plainest choice when you add one. One decision a statement: C does not say which of two arguments
 * or initializers is evaluated first, and an input must mean the same for every compiler.
 */
#ifndef FUZZ_INPUT_H
#define FUZZ_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* For models whose sums must not wrap around. gcc and clang have it, ISO C has not. */
__extension__ typedef __int128 fuzz_wide;

/* The most devices that a device string may name. */
#define FUZZ_MAX_DEVICES 64

struct fuzz_input {
  const uint8_t *at, *end;
};

static inline struct fuzz_input fuzz_input(const uint8_t *data, size_t size) {
  return (struct fuzz_input){data, size == 0 ? data : data + size};
}

static inline size_t fuzz_left(const struct fuzz_input *input) {
  return (size_t)(input->end - input->at);
}

static inline uint8_t fuzz_byte(struct fuzz_input *input) {
  return input->at < input->end ? *input->at++ : 0;
}

/* One of low .. high, both included; takes as many bytes as the range has. */
int64_t fuzz_int(struct fuzz_input *input, int64_t low, int64_t high);

/* One of 0 .. count - 1. */
static inline int fuzz_choice(struct fuzz_input *input, int count) {
  return fuzz_byte(input) % count;
}

/* True once in `count` decisions; false past the end of the input. */
static inline bool fuzz_one_in(struct fuzz_input *input, int count) {
  return fuzz_byte(input) % count == count - 1;
}

/* Fills `text` with at most capacity - 1 bytes, none of them NUL, and a final NUL. */
size_t fuzz_string(struct fuzz_input *input, char *text, size_t capacity);

/* 0, small whole numbers, fractions, and the numbers that break things: NaN, infinities, huge. */
double fuzz_real(struct fuzz_input *input);

/* Prints what is wrong and ends the program, so that libFuzzer keeps the input. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4), noreturn))
#endif
void fuzz_fail(const char *file, int line, const char *format, ...);

#define FUZZ_EXPECT(condition, ...)                                                                \
  do {                                                                                             \
    if (!(condition)) fuzz_fail(__FILE__, __LINE__, __VA_ARGS__);                                  \
  } while (0)

#endif /* FUZZ_INPUT_H */
