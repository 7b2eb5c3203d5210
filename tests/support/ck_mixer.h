/*
 * ck_mixer.h - modules of a program's own, in plain C over raw pointers, without any ek_op.
 */
#ifndef CK_MIXER_H
#define CK_MIXER_H

#include "ek_check.h"

enum { CK_MIXER_WIDTH = 3, CK_MIXER_KINDS = 4 };

/*
 * Two inputs, two outputs. For rows x [B, WIDTH] and i32 kinds k [B], with a parameter
 * table [KINDS, WIDTH]:
 *     y0 = x * table[k]        y1 = x + table[k]
 */
ek_status ck_mixer_create(ek_module **module);

/*
 * One mixer used twice, with its two tables tied: y0 of the first is x of the second. The outputs
 * are y0 and y1 of the second and y1 of the first.
 */
ek_status ck_mixer_twice_create(ek_module **module);

#endif /* CK_MIXER_H */
