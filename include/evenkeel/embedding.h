/*
 * embedding.h - rows of a learned table by index, plus a learned position.
 *
 * Input i32 [B, T] (or [B]), output [B, T, width]. Parameters: weight [entries, width] and, if
 * positions > 0, positions [positions, width], added to token t of each sample; T <= positions
 * then. Initial values are normal with standard deviation 0.02 (GPT-2).
 */
#ifndef EVENKEEL_EMBEDDING_H
#define EVENKEEL_EMBEDDING_H

#include <evenkeel/module.h>

EK_BEGIN_DECLARATIONS

/* positions 0: no position is added. */
EK_API EK_CHECKED ek_status ek_embedding_create(ek_module **module, int64_t entries, int64_t width,
                                                int64_t positions);

EK_END_DECLARATIONS

#endif /* EVENKEEL_EMBEDDING_H */
