/*
 * operations_piece.c - see operations_piece.h.
 */
#include "operations_piece.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- pieces ---- */

int64_t count_of(const struct piece *piece) {
  int64_t count = 1;
  for (int d = 0; d < piece->rank; d++) count *= piece->shape[d];
  return count;
}

static ek_tensor host_view(void *bytes, ek_type type, int64_t count) {
  ek_tensor host;
  FUZZ_OK(ek_tensor_host(&host, bytes, type, 1, &count));
  return host;
}

void upload(const ek_tensor *tensor, void *bytes) {
  const ek_tensor host = host_view(bytes, tensor->type, ek_tensor_count(tensor));
  ek_tensor to = *tensor;
  FUZZ_OK(ek_tensor_copy(&to, &host));
}

void download(void *bytes, const ek_tensor *tensor) {
  ek_tensor host = host_view(bytes, tensor->type, ek_tensor_count(tensor));
  FUZZ_OK(ek_tensor_copy(&host, tensor));
}

void make_piece(struct piece *piece, ek_device *device, uint8_t filling) {
  static unsigned char bytes[MOST_BYTES];
  const int64_t count = count_of(piece), all = count + 2 * piece->guard;
  FUZZ_OK(ek_tensor_create(&piece->block, device, EK_MEMORY_WORKSPACE, piece->type, 1, &all));
  FUZZ_EXPECT(ek_tensor_bytes(&piece->block) <= sizeof bytes,
              "the harness made too large a tensor");
  memset(bytes, filling, ek_tensor_bytes(&piece->block));
  upload(&piece->block, bytes);
  ek_tensor flat = {0};
  FUZZ_OK(ek_tensor_rows(&flat, &piece->block, piece->guard, count));
  FUZZ_OK(ek_tensor_reshape(&piece->tensor, &flat, piece->rank, piece->shape));
  ek_tensor_free(&flat);
  piece->given = piece->tensor;
}

void free_piece(struct piece *piece) {
  ek_tensor_free(&piece->tensor);
  ek_tensor_free(&piece->block);
}

void *copy_block(const struct piece *piece) {
  void *bytes = malloc(ek_tensor_bytes(&piece->block) + 1);
  FUZZ_EXPECT(bytes != NULL, "the harness has no memory");
  download(bytes, &piece->block);
  return bytes;
}

size_t size_before(const struct piece *piece) {
  return (size_t)piece->guard * ek_type_size(piece->type);
}

/* ---- numbers ---- */

uint16_t half_of(ek_type type, double value) {
  const int digits = type == EK_BF16 ? 7 : 10, bias = type == EK_BF16 ? 127 : 15;
  int power = 0;
  const double part = frexp(fabs(value), &power); /* 0.5 .. 1, or 0 */
  if (part == 0) return 0;
  const int fraction = (int)ldexp(2 * part - 1, digits);
  return (uint16_t)((value < 0 ? 0x8000 : 0) | (power - 1 + bias) << digits | fraction);
}

static double value_of(ek_type type, uint16_t bits) {
  const int digits = type == EK_BF16 ? 7 : 10, bias = type == EK_BF16 ? 127 : 15;
  const int power = (bits & 0x7fff) >> digits, fraction = bits & ((1 << digits) - 1);
  const double size = power == 2 * bias + 1 ? (fraction == 0 ? HUGE_VAL : NAN)
                      : power == 0          ? ldexp(fraction, 1 - bias - digits)
                                   : ldexp((1 << digits) + fraction, power - bias - digits);
  return (bits & 0x8000) != 0 ? -size : size;
}

double element_of(ek_type type, const void *bytes, int64_t n) {
  float single;
  double number;
  uint16_t half;
  switch (type) {
  case EK_F32: memcpy(&single, (const char *)bytes + 4 * n, 4); return (double)single;
  case EK_F64: memcpy(&number, (const char *)bytes + 8 * n, 8); return number;
  default: memcpy(&half, (const char *)bytes + 2 * n, 2); return value_of(type, half);
  }
}
