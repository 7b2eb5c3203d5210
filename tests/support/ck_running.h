/*
 * ck_running.h - a module of a program's own whose buffers follow what it sees, with one parameter
 * of each group.
 *
 * For x [B, WIDTH]: y = scale * x + shift + offset, [WIDTH] each; shift is without decay and offset
 * frozen. In training buffers "mean" [WIDTH], of the rows, with momentum 1/4, and "batches" [1].
 */
#ifndef CK_RUNNING_H
#define CK_RUNNING_H

#include "ek_check.h"

enum { CK_RUNNING_WIDTH = 37 };

ek_status ck_running_create(ek_module **module);

#endif /* CK_RUNNING_H */
