/*
 * conversion.c - integers of host memory as other numbers: see conversion.h.
 *
 * One loop for each pair of types, over a piece. It only notes whether any number was out of range;
 * if so, a second loop looks for the first one.
 */
#include "device/conversion.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "device/types.h"

bool ek__conversion_exists(ek_type from, ek_type to) {
  if (to == EK_I32 || to == EK_I64) return ek__type_is_integer(from);
  return (to == EK_F32 || to == EK_F64) && (from == EK_U8 || from == EK_U16);
}

/* A number of the host's, which may be at any address. */
static int64_t number_at(const char *data, ek_type type, int64_t i) {
  uint8_t u8 = 0;
  uint16_t u16 = 0;
  uint32_t u32 = 0;
  int32_t i32 = 0;
  int64_t i64 = 0;
#define READ(number) memcpy(&(number), data + i * (int64_t)sizeof(number), sizeof(number))
  switch (type) {
  case EK_U8: READ(u8); return u8;
  case EK_U16: READ(u16); return u16;
  case EK_U32: READ(u32); return u32;
  case EK_I32: READ(i32); return i32;
  case EK_I64: READ(i64); return i64;
  case EK_F32:
  case EK_F64:
  case EK_BF16:
  case EK_F16: break;
  }
  return 0;
}

/* `bad` of x: whether it is out of range of To. */
#define INTEGERS(name, From, To, bad)                                                              \
  static bool name(To *to, const char *from, int64_t count) {                                      \
    bool wrong = false;                                                                            \
    for (int64_t i = 0; i < count; i++) {                                                          \
      From x;                                                                                      \
      memcpy(&x, from + i * (int64_t)sizeof x, sizeof x);                                          \
      to[i] = (To)x;                                                                               \
      wrong |= (bad);                                                                              \
    }                                                                                              \
    return wrong;                                                                                  \
  }
INTEGERS(u8_to_i32, uint8_t, int32_t, false)
INTEGERS(u16_to_i32, uint16_t, int32_t, false)
INTEGERS(u32_to_i32, uint32_t, int32_t, x > INT32_MAX)
INTEGERS(i64_to_i32, int64_t, int32_t, x > INT32_MAX || x < INT32_MIN)
INTEGERS(u8_to_i64, uint8_t, int64_t, false)
INTEGERS(u16_to_i64, uint16_t, int64_t, false)
INTEGERS(u32_to_i64, uint32_t, int64_t, false)
INTEGERS(i32_to_i64, int32_t, int64_t, false)

static bool to_i32(int32_t *to, const char *from, int64_t count, ek_type type) {
  switch (type) {
  case EK_U8: return u8_to_i32(to, from, count);
  case EK_U16: return u16_to_i32(to, from, count);
  case EK_U32: return u32_to_i32(to, from, count);
  default: return i64_to_i32(to, from, count);
  }
}

static bool to_i64(int64_t *to, const char *from, int64_t count, ek_type type) {
  switch (type) {
  case EK_U8: return u8_to_i64(to, from, count);
  case EK_U16: return u16_to_i64(to, from, count);
  case EK_U32: return u32_to_i64(to, from, count);
  default: return i32_to_i64(to, from, count);
  }
}

/* Two statements: the product is rounded to f64, then the sum. */
#define SCALED(name, From, To)                                                                     \
  static void name(To *to, const char *from, int64_t count, const ek_input_scaling *scaling,       \
                   int64_t channel) {                                                              \
    for (int64_t i = 0; i < count; i++) {                                                          \
      From x;                                                                                      \
      memcpy(&x, from + i * (int64_t)sizeof x, sizeof x);                                          \
      const double product = (double)x * scaling->scale[channel];                                  \
      const double sum = product + scaling->offset[channel];                                       \
      to[i] = (To)sum;                                                                             \
      if (++channel == scaling->channels) channel = 0;                                             \
    }                                                                                              \
  }
SCALED(u8_to_f32, uint8_t, float)
SCALED(u16_to_f32, uint16_t, float)
SCALED(u8_to_f64, uint8_t, double)
SCALED(u16_to_f64, uint16_t, double)

static ek_status find_wrong(const struct ek__conversion *c, int64_t first, int64_t count) {
  for (int64_t i = first; i < first + count; i++) {
    const int64_t x = number_at(c->data, c->from, i);
    if (x >= INT32_MIN && x <= INT32_MAX) continue;
    const long long place = (long long)(c->first + i);
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "%s: element %lld (row %lld) is %lld, which does not fit in %s", c->who,
                        place, c->per_row > 0 ? place / c->per_row : 0, (long long)x,
                        ek_type_name(c->to));
  }
  return EK_OK;
}

ek_status ek__conversion_make(const void *context, void *to, size_t first, size_t count) {
  const struct ek__conversion *c = context;
  const int64_t size = (int64_t)ek_type_size(c->to);
  const int64_t begin = (int64_t)first / size, n = (int64_t)count / size;
  const char *from = (const char *)c->data + begin * (int64_t)ek_type_size(c->from);
  if (c->to == EK_I32) return to_i32(to, from, n, c->from) ? find_wrong(c, begin, n) : EK_OK;
  if (c->to == EK_I64) {
    (void)to_i64(to, from, n, c->from);
    return EK_OK;
  }
  const int64_t channel = (c->first + begin) % c->scaling.channels;
  if (c->to == EK_F32) {
    (c->from == EK_U8 ? u8_to_f32 : u16_to_f32)(to, from, n, &c->scaling, channel);
  } else {
    (c->from == EK_U8 ? u8_to_f64 : u16_to_f64)(to, from, n, &c->scaling, channel);
  }
  return EK_OK;
}

/* ---- what integers become ---- */

static ek_status check_scaling(const char *who, const ek_tensor *source,
                               const ek_input_scaling *scaling) {
  const int64_t last = source->rank == 0 ? 1 : source->shape[source->rank - 1];
  EK_TRY(ek__input_scaling_check(who, scaling));
  EK__FAIL_IF(scaling->channels != 1 && scaling->channels != last, EK_ERR_SHAPE,
              "%s: its scaling has %lld channels, but its last dimension is %lld", who,
              (long long)scaling->channels, (long long)last);
  return EK_OK;
}

ek_status ek__input_scaling_check(const char *who, const ek_input_scaling *scaling) {
  EK__FAIL_IF(scaling->channels < 1 || scaling->channels > EK_MAX_CHANNELS, EK_ERR_INVALID_ARGUMENT,
              "%s: a scaling has %lld channels, expected 1 to %d", who,
              (long long)scaling->channels, EK_MAX_CHANNELS);
  for (int64_t c = 0; c < scaling->channels; c++) {
    EK__FAIL_IF(!isfinite(scaling->scale[c]) || !isfinite(scaling->offset[c]),
                EK_ERR_INVALID_ARGUMENT, "%s: scale %g or offset %g of channel %lld is not finite",
                who, scaling->scale[c], scaling->offset[c], (long long)c);
  }
  return EK_OK;
}

ek_status ek__conversion_choose(struct ek__conversion *conversion, const char *who,
                                const ek_tensor *source, ek_type type,
                                const ek_input_scaling *scaling) {
  const bool floating = type == EK_F32 || type == EK_F64;
  const bool integer = source->device == NULL && ek__type_is_integer(source->type);
  *conversion = (struct ek__conversion){.to = type};
  (void)snprintf(conversion->who, sizeof conversion->who, "%s", who);
  if (type == 0) conversion->to = ek__type_is_unsigned(source->type) ? EK_I32 : source->type;
  if (floating) {
    EK__FAIL_IF(!integer || !ek__conversion_exists(source->type, type), EK_ERR_TYPE,
                "%s is %s%s; only u8 and u16 in host memory are scaled to %s", who,
                ek_type_name(source->type), source->device == NULL ? "" : " on a device",
                ek_type_name(type));
    conversion->scaling = (ek_input_scaling){.channels = 1, .scale = {1}};
    if (scaling == NULL) return EK_OK;
    conversion->scaling = *scaling;
    return check_scaling(who, source, scaling);
  }
  EK__FAIL_IF(scaling != NULL, EK_ERR_INVALID_ARGUMENT, "%s: a scaling gives f32 or f64, not %s",
              who, type == 0 ? "the type 0" : ek_type_name(type));
  if (!integer) conversion->to = source->type;
  return EK_OK;
}
