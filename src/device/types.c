/*
 * types.c - element types, sets of them, and numbers of 16 bits on the host.
 */
#include "device/types.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "backend/backend.h"
#include "core/half.h"

size_t ek_type_size(ek_type type) { return ek__type_size(type); }

const char *ek_type_name(ek_type type) {
  switch (type) {
  case EK_F32: return "f32";
  case EK_F64: return "f64";
  case EK_BF16: return "bf16";
  case EK_F16: return "f16";
  case EK_I32: return "i32";
  case EK_I64: return "i64";
  case EK_U8: return "u8";
  case EK_U16: return "u16";
  case EK_U32: return "u32";
  }
  return "no type";
}

ek_type ek_type_of_sums(ek_type type) { return ek__types_in(type).sum; }

ek_type ek_precision_type(ek_precision precision) {
  switch (precision) {
  case EK_PRECISION_TF32: return EK_F32;
  case EK_PRECISION_F32:
  case EK_PRECISION_F64:
  case EK_PRECISION_BF16:
  case EK_PRECISION_F16: return (ek_type)precision;
  case EK_PRECISION_DEFAULT: break;
  }
  return (ek_type)0;
}

const char *ek_precision_name(ek_precision precision) {
  if (precision == EK_PRECISION_TF32) return "tf32";
  const ek_type type = ek_precision_type(precision);
  return type == 0 ? "no precision" : ek_type_name(type);
}

const char *ek__types_text(char text[EK__TYPES_TEXT], unsigned types) {
  types &= (EK_TYPES_F16 << 1) - 1;
  (void)snprintf(text, EK__TYPES_TEXT, "no known type");
  size_t used = 0;
  for (int i = EK_F32; i <= EK_F16; i++) { /* those that operations compute in */
    if ((types >> i & 1u) == 0) continue;
    (void)snprintf(text + used, EK__TYPES_TEXT - used, "%s%s",
                   used == 0               ? ""
                   : types >> (i + 1) != 0 ? ", "
                                           : " and ",
                   ek_type_name((ek_type)i));
    used = strlen(text);
  }
  return text;
}

ek_status ek__types_check(unsigned types, ek_type type, const char *who) {
  if ((types >> type & 1u) != 0) return EK_OK;
  char text[EK__TYPES_TEXT];
  return ek_error_set(EK_ERR_UNSUPPORTED,
                      "%s computes in %s, not in %s (member `types` of its table)", who,
                      ek__types_text(text, types), ek_type_name(type));
}

void ek__halves_widen(float *to, const uint16_t *from, int64_t count, ek_type type) {
  for (int64_t i = 0; i < count; i++) {
    to[i] = type == EK_BF16 ? ek__bf16_widen((struct ek__bf16){from[i]})
                            : ek__f16_widen((struct ek__f16){from[i]});
  }
}

void ek__halves_round(uint16_t *to, const float *from, int64_t count, ek_type type) {
  for (int64_t i = 0; i < count; i++) {
    to[i] = type == EK_BF16 ? ek__bf16_narrow(from[i]).bits : ek__f16_narrow(from[i]).bits;
  }
}

static double float_at(const char *from, ek_type type, int64_t i) {
  uint16_t bits = 0;
  float single = 0;
  double value = 0;
  if (ek__type_is_half(type)) {
    memcpy(&bits, from + i * 2, sizeof bits);
    ek__halves_widen(&single, &bits, 1, type);
    return (double)single;
  }
  if (type == EK_F32) {
    memcpy(&single, from + i * 4, sizeof single);
    return (double)single;
  }
  memcpy(&value, from + i * 8, sizeof value);
  return value;
}

/* Of the two floats next to an inexact number the one with an odd last bit: rounding it to 16 bits
 * gives what rounding the number itself gives, because f32 has more than two bits more. */
static float round_to_odd(double value) {
  float single = (float)value;
  if (isnan(value) || (double)single == value) return single;
  if (fabs((double)single) > fabs(value)) single = nextafterf(single, 0.0f);
  uint32_t bits = 0;
  memcpy(&bits, &single, sizeof bits);
  bits |= 1u;
  memcpy(&single, &bits, sizeof bits);
  return single;
}

void ek__floats_convert(void *to, ek_type to_type, const void *from, ek_type from_type,
                        int64_t count) {
  char *place = to;
  const size_t size = ek_type_size(to_type);
  for (int64_t i = 0; i < count; i++, place += size) {
    const double value = float_at(from, from_type, i);
    const float single = ek__type_is_half(to_type) ? round_to_odd(value) : (float)value;
    uint16_t half = 0;
    if (ek__type_is_half(to_type)) ek__halves_round(&half, &single, 1, to_type);
    memcpy(place,
           to_type == EK_F64   ? (const void *)&value
           : to_type == EK_F32 ? (const void *)&single
                               : (const void *)&half,
           size);
  }
}

ek_type ek__types_choose(unsigned types, ek_type type) {
  return ek__type_is_half(type) && (types >> type & 1u) == 0 && (types & EK_TYPES_F32) != 0 ? EK_F32
                                                                                            : type;
}

int64_t ek_tensor_aligned_columns(int64_t columns, ek_type type) {
  const int64_t size = (int64_t)ek__type_size(type);
  const int64_t together = size == 0 ? 1 : 16 / size;
  const int64_t over = columns % together;
  if (size == 0) return 0;
  return over <= 0 || columns > INT64_MAX - together ? columns : columns - over + together;
}
