/*
 * types.h - sets of element types that a module, a criterion or an optimizer computes in; and
 * 16-bit numbers on the host.
 */
#ifndef EK_TYPES_H
#define EK_TYPES_H

#include <evenkeel/tensor.h>

#include "core/options.h"

/* Of a table of functions: what it declares, f32 where it declares nothing. */
#define EK__TABLE_TYPES(table)                                                                     \
  (EK__TABLE_SLOT(table, types) != 0 ? (table)->types : EK_TYPES_F32)

/* Fits "f32, f64, bf16 and f16". */
enum { EK__TYPES_TEXT = 64 };
/* Writes the names of those that operations compute in, and returns text. */
const char *ek__types_text(char text[EK__TYPES_TEXT], unsigned types);

/* EK_ERR_UNSUPPORTED unless `type` is one of `types`, which `who` computes in. */
ek_status ek__types_check(unsigned types, ek_type type, const char *who);

static inline bool ek__type_is_half(ek_type type) { return type == EK_BF16 || type == EK_F16; }
static inline bool ek__type_is_floating(ek_type type) {
  return type == EK_F32 || type == EK_F64 || ek__type_is_half(type);
}

/* Types of tensors in host memory alone. */
static inline bool ek__type_is_unsigned(ek_type type) {
  return type == EK_U8 || type == EK_U16 || type == EK_U32;
}
static inline bool ek__type_is_integer(ek_type type) {
  return type == EK_I32 || type == EK_I64 || ek__type_is_unsigned(type);
}

/* Bits of bf16 or f16 as numbers, and back, rounded as core/half.h says. */
void ek__halves_widen(float *to, const uint16_t *from, int64_t count, ek_type type);
void ek__halves_round(uint16_t *to, const float *from, int64_t count, ek_type type);

/* Elements in host memory from one floating type to another: widened, or rounded once to nearest,
 * ties to even. Neither needs to be aligned; they do not overlap. */
void ek__floats_convert(void *to, ek_type to_type, const void *from, ek_type from_type,
                        int64_t count);

/* The type that code which computes in `types` runs in where the others compute in `type`: f32
 * between casts where that is of 16 bits, and only f32 is known. */
ek_type ek__types_choose(unsigned types, ek_type type);

#endif /* EK_TYPES_H */
