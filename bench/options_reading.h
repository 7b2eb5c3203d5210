/*
 * options_reading.h - options while they are read: options_parse.c has the flags, options_finish.c
 * what their values are together.
 */
#ifndef BENCH_OPTIONS_READING_H
#define BENCH_OPTIONS_READING_H

#include <argp.h>

#include "options.h"

/* A whole-number flag of the shape. */
struct shape_flag {
  const char *name;
  size_t offset;
  int64_t least, most;
};
enum { SHAPE_FLAGS = 12, SHAPE_BATCH = 5 };
extern const struct shape_flag shape_flags[SHAPE_FLAGS];

/* Options as they are read: with marks for what was said. */
struct reading {
  struct options *options;
  const char *modes_text, *precision_text;
  bool said[SHAPE_FLAGS], said_keep;
};

/* Ends the program: `words` are what the flag takes, and `word` is another one. */
void refuse_word(struct argp_state *state, const char *flag, const char *what, const char *word,
                 const char *const *words);

/* When all flags were read: applies the preset, and looks at how the values fit together. */
void finish_training(struct reading *reading, struct argp_state *state);

#endif
