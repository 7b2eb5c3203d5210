/*
 * ck_bad_inputs.h - wrong arguments, one operation at a time.
 */
#ifndef CK_BAD_INPUTS_H
#define CK_BAD_INPUTS_H

#include "operations.h"

/*
 * Calls the operation on a group of two devices with each operand in turn NULL, absent, on the
 * host, on a foreign device, of a wrong type, of a wrong shape, damaged, and overlapping each other
 * one. Each call must fail as op.h says, name the operation, and write nothing; nothing is held
 * after.
 */
void ck_bad_inputs(const struct operation *operation, const char *spec);

#endif /* CK_BAD_INPUTS_H */
