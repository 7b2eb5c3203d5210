/*
 * embedding.h - rows of a learned table by index, plus a learned position.
 *
 * Input i32 [B, T] (or [B]), output [B, T, width]. Parameters: weight [entries, width] and, if
 * positions > 0, positions [positions, width], whose row t is added to token t of each sample; then
 * T <= positions. With `segments` there is a second input, i32 [B, T], and the rows of positions
 * begin again with each document, as in attention.h. Initial values are normal with standard
 * deviation 0.02 (GPT-2).
 */
#ifndef EVENKEEL_EMBEDDING_H
#define EVENKEEL_EMBEDDING_H

#include <evenkeel/module.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_embedding_options {
  size_t size;
  int64_t positions; /* 0: no position is added */
  bool frozen;       /* both tables are (ek_parameter_options) */
  bool no_decay;     /* both tables have no weight decay */
  const ek_initializer *weight_start;    /* copied, except for values; NULL: as above */
  const ek_initializer *positions_start; /* the same */
  bool segments;                         /* there is a second input */
} ek_embedding_options;
#define EK_EMBEDDING_OPTIONS_INIT                                                                  \
  {                                                                                                \
    .size = sizeof(ek_embedding_options), .positions = 0, .frozen = false, .no_decay = false,      \
    .weight_start = NULL, .positions_start = NULL, .segments = false                              \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_embedding_options_init(ek_embedding_options *options, size_t size);

/* With the default options, except for `positions`. */
EK_API EK_CHECKED ek_status ek_embedding_create(ek_module **module, int64_t entries, int64_t width,
                                                int64_t positions);

/* `options` NULL gives the defaults. EK_ERR_INVALID_ARGUMENT for a positions_start or
 * segments without positions. */
EK_API EK_CHECKED ek_status ek_embedding_create_with(ek_module **module, int64_t entries,
                                                     int64_t width,
                                                     const ek_embedding_options *options);

EK_END_DECLARATIONS

#endif /* EVENKEEL_EMBEDDING_H */
