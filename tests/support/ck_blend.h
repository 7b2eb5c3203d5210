/*
 * ck_blend.h - a module of a program's own with two outputs, a broadcast input and a buffer.
 *
 * Inputs w [WIDTH] (the same on every device) and x [B, WIDTH]; parameters a, b [WIDTH] and a
 * buffer c [WIDTH] of halves:
 *     y0 = x * a * w + c        y1 = x + a * b
 */
#ifndef CK_BLEND_H
#define CK_BLEND_H

#include "ek_check.h"

enum { CK_BLEND_WIDTH = 6 };

ek_status ck_blend_create(ek_module **module);

#endif /* CK_BLEND_H */
