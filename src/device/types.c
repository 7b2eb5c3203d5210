/*
 * types.c - sets of element types.
 */
#include "device/types.h"

ek_status ek__types_check(unsigned types, ek_type type, const char *who) {
  if ((types >> type & 1u) != 0) return EK_OK;
  const bool f32 = (types & EK_TYPES_F32) != 0, f64 = (types & EK_TYPES_F64) != 0;
  return ek_error_set(EK_ERR_UNSUPPORTED,
                      "%s computes in %s, not in %s; `types` of its table says so", who,
                      f32 && f64 ? "f32 and f64"
                      : f32      ? "f32"
                      : f64      ? "f64"
                                 : "no type that there is",
                      ek_type_name(type));
}
