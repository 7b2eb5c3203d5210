/*
 * types.h - sets of element types: what a module, a criterion or an optimizer computes in.
 */
#ifndef EK_TYPES_H
#define EK_TYPES_H

#include <evenkeel/tensor.h>

#include "core/options.h"

/* Of a table of functions: what it declares, f32 where it declares nothing. */
#define EK__TABLE_TYPES(table)                                                                     \
  (EK__TABLE_HAS(table, types) && (table)->types != 0 ? (table)->types : EK_TYPES_F32)

/* EK_ERR_UNSUPPORTED unless `type` is one of `types`, which `who` computes in. */
ek_status ek__types_check(unsigned types, ek_type type, const char *who);

#endif /* EK_TYPES_H */
