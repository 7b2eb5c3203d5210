/*
 * ck_op_calls.h - operations with their operands, for ck_bad_inputs(): the long lists.
 */
#ifndef CK_OP_CALLS_H
#define CK_OP_CALLS_H

#include "ek_check.h"

enum { CK_ELEMENTWISE_CALLS = 19, CK_ROWS_CALLS = 4, CK_LOSSES_CALLS = 5, CK_PRODUCTS_CALLS = 8 };
extern const struct ck_operation ck_elementwise_calls[CK_ELEMENTWISE_CALLS];
extern const struct ck_operation ck_rows_calls[CK_ROWS_CALLS];
extern const struct ck_operation ck_losses_calls[CK_LOSSES_CALLS];
extern const struct ck_operation ck_products_calls[CK_PRODUCTS_CALLS];

#endif /* CK_OP_CALLS_H */
