/*
 * support_input.c - see fuzz_input.h.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "fuzz_input.h"

int64_t fuzz_int(struct fuzz_input *input, int64_t low, int64_t high) {
  const uint64_t last = (uint64_t)high - (uint64_t)low;
  uint64_t value = 0;
  for (uint64_t range = last; range > 0; range >>= 8) value = value << 8 | fuzz_byte(input);
  if (last != UINT64_MAX) value %= last + 1;
  return (int64_t)((uint64_t)low + value);
}

size_t fuzz_string(struct fuzz_input *input, char *text, size_t capacity) {
  size_t length = fuzz_byte(input), used = 0;
  while (length-- > 0 && used + 1 < capacity && fuzz_left(input) > 0) {
    const uint8_t byte = fuzz_byte(input);
    if (byte != 0) text[used++] = (char)byte;
  }
  text[used] = '\0';
  return used;
}

double fuzz_real(struct fuzz_input *input) {
  static const double special[] = {0.5,    1.0,       -1.0, 1e-8,      0.9,      1e30,
                                   -1e30,  0x1p-1074, NAN,  -HUGE_VAL, HUGE_VAL, 1.0 - 0x1p-53,
                                   0x1p63, 0x1p1023,  -0.0, 1e-300};
  const uint8_t byte = fuzz_byte(input);
  if (byte < 128) return byte;
  if (byte < 192) return (byte - 160) / 8.0;
  return special[byte % (sizeof special / sizeof special[0])];
}

void fuzz_fail(const char *file, int line, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "%s:%d: ", file, line);
  vfprintf(stderr, format, arguments);
  fprintf(stderr, "\n");
  va_end(arguments);
  abort();
}
