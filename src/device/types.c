/*
 * types.c - element types and sets of them.
 */
#include "device/types.h"

#include <stdio.h>
#include <string.h>

#include "backend/backend.h"

size_t ek_type_size(ek_type type) { return ek__type_size(type); }

const char *ek_type_name(ek_type type) {
  switch (type) {
  case EK_F32: return "f32";
  case EK_F64: return "f64";
  case EK_BF16: return "bf16";
  case EK_F16: return "f16";
  case EK_I32: return "i32";
  case EK_I64: return "i64";
  }
  return "no type";
}

ek_status ek__types_check(unsigned types, ek_type type, const char *who) {
  if ((types >> type & 1u) != 0) return EK_OK;
  char text[64] = "";
  for (int i = EK_F32; i <= EK_F16; i++) { /* those that operations compute in */
    const size_t used = strlen(text);
    if ((types >> i & 1u) == 0) continue;
    (void)snprintf(text + used, sizeof text - used, "%s%s",
                   used == 0               ? ""
                   : types >> (i + 1) != 0 ? ", "
                                           : " and ",
                   ek_type_name((ek_type)i));
  }
  return ek_error_set(EK_ERR_UNSUPPORTED,
                      "%s computes in %s, not in %s; `types` of its table says so", who,
                      text[0] != '\0' ? text : "no type that there is", ek_type_name(type));
}

int64_t ek_tensor_aligned_columns(int64_t columns, ek_type type) {
  const int64_t size = (int64_t)ek__type_size(type), together = size == 0 ? 1 : 16 / size;
  const int64_t over = columns % together;
  if (size == 0) return 0;
  return over <= 0 || columns > INT64_MAX - together ? columns : columns - over + together;
}
