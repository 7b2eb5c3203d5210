/*
 * tile.h - the matrix unit: eight registers, tiles of 16 rows of 64 bytes, and one operation,
 *
 *   c[16][16] += a[16][32] b[32][16]        c in f32, a and b in bf16
 *
 * of which b lies in pairs: row p of its tile holds b[2p][j] and b[2p + 1][j] side by side for each
 * column j. Two versions with the same bits:
 *   EK_TILES_amx   Intel's AMX (TDPBF16PS)
 *   otherwise      plain C, so that what is built on tiles is tested on any processor
 *
 * What TDPBF16PS does, and the portable version step by step (Intel's Software Developer's Manual,
 * volume 2, TDPBF16PS): for each element of c two sums that begin at 0, of the even and of the odd
 * depths, each in order by fused multiply-add; then even + odd, and c + that. Every step rounds to
 * nearest even in f32; operands and results below the smallest normal number are 0 with their sign,
 * whatever the thread's MXCSR says; nothing traps. Which NaN comes out is not relied upon.
 *
 * A product of two numbers of bf16 has 16 digits and is exact in f64, and so is, within 53 digits,
 * its sum with a number of f32 wherever that matters: a term lost in f64 is far below half a unit
 * of the f32 result. So one rounding of the f64 sum is what the fused instruction does. It flushes
 * what is below 2^-126 after rounding to 24 digits, that is below 2^-126 - 2^-151; what lies
 * between is 2^-126 in f32's own rounding as well.
 *
 * Tiles belong to the thread, like vector registers, and so does their configuration. tile_open()
 * keeps the one that it finds and tile_close() puts it back, or releases the unit, so that other
 * users in the thread (oneDNN, the program) are not disturbed and no switch of threads saves 8 KiB
 * for nothing. The contents of tiles are lost, as any call may lose them by the ABI. In between no
 * foreign code is called.
 */
#ifndef EK_CPU_TILE_H
#define EK_CPU_TILE_H

#include "backend/cpu/isa/isa.h"

#define TILE_LINES 16 /* rows of a tile, and floats in a row */
#define TILE_DEPTH 32 /* numbers of bf16 in a row */
#define TILE_BYTES 1024

EK__CPU_TILE_FUNCTION_LIST(EK__ISA_PROTOTYPE)

#if defined(EK_TILES_amx)

/* What LDTILECFG reads and STTILECFG writes; palette 0 is none. */
struct tile_config {
  uint8_t palette, start_row, unused[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
_Static_assert(sizeof(struct tile_config) == 64, "the instructions' operand");

struct tile_unit {
  struct tile_config before; /* what was there */
};

/* Some compilers have these operations without the memory that they read and write. */
#define TILE_FENCE() __asm__ volatile("" ::: "memory")

static inline void tile_open(struct tile_unit *unit) {
  static const struct tile_config all = {.palette = 1,
                                         .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                                         .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
  __asm__ volatile("sttilecfg %0" : "=m"(unit->before));
  __asm__ volatile("ldtilecfg %0" : : "m"(all));
}

static inline void tile_close(struct tile_unit *unit) {
  if (unit->before.palette != 0) {
    __asm__ volatile("ldtilecfg %0" : : "m"(unit->before));
  } else {
    _tile_release();
  }
}

/* `number` is a constant; rows lie `step` bytes apart. */
#define TILE_FILE(name)
#define TILE_ZERO(name, number) _tile_zero(number)
#define TILE_LOAD(name, number, from, step) _tile_loadd(number, from, step)
#define TILE_STORE(name, number, to, step) _tile_stored(number, to, step)
#define TILE_DOT(name, c, a, b) _tile_dpbf16ps(c, a, b)

#else

struct tile_unit {
  char unused;
};
#define TILE_FENCE()
static inline void tile_open(struct tile_unit *unit) { (void)unit; }
static inline void tile_close(struct tile_unit *unit) { (void)unit; }

union tile_register {
  float sum[TILE_LINES][16];
  uint32_t pair[TILE_LINES][16];
};

/* Subnormal numbers are 0, with their sign. */
static inline float tile_operand(uint32_t upper_half) {
  const uint32_t sign = upper_half & 0x80000000u;
  return ek__f32_from_bits((upper_half & 0x7F800000u) != 0 ? upper_half : sign);
}

static inline float tile_rounded(double x) {
  const float near = (float)x;
  const uint32_t sign = ek__f32_bits(near) & 0x80000000u;
  return __builtin_fabs(x) < 0x1p-126 - 0x1p-151 ? ek__f32_from_bits(sign) : near;
}

static inline void tile_dot(union tile_register *c, const union tile_register *a,
                            const union tile_register *b) {
  float even_b[16][16], odd_b[16][16];
  for (int p = 0; p < 16; p++) {
    for (int j = 0; j < 16; j++) {
      even_b[p][j] = tile_operand(b->pair[p][j] << 16);
      odd_b[p][j] = tile_operand(b->pair[p][j] & 0xFFFF0000u);
    }
  }
  for (int i = 0; i < TILE_LINES; i++) {
    float even[16] = {0}, odd[16] = {0};
    for (int p = 0; p < 16; p++) {
      const double even_a = (double)tile_operand(a->pair[i][p] << 16);
      const double odd_a = (double)tile_operand(a->pair[i][p] & 0xFFFF0000u);
      for (int j = 0; j < 16; j++) {
        even[j] = tile_rounded(even_a * (double)even_b[p][j] + (double)even[j]);
        odd[j] = tile_rounded(odd_a * (double)odd_b[p][j] + (double)odd[j]);
      }
    }
    for (int j = 0; j < 16; j++) {
      const float sum = tile_rounded((double)even[j] + (double)odd[j]);
      const float old = tile_operand(ek__f32_bits(c->sum[i][j]));
      c->sum[i][j] = tile_rounded((double)old + (double)sum);
    }
  }
}

static inline void tile_load(union tile_register *to, const void *from, int64_t step) {
  for (int64_t i = 0; i < TILE_LINES; i++) {
    memcpy(to->sum[i], (const char *)from + i * step, sizeof to->sum[i]);
  }
}

static inline void tile_store(const union tile_register *from, void *to, int64_t step) {
  for (int64_t i = 0; i < TILE_LINES; i++) {
    memcpy((char *)to + i * step, from->sum[i], sizeof from->sum[i]);
  }
}

#define TILE_FILE(name) union tile_register name[8]
#define TILE_ZERO(name, number) memset(&(name)[number], 0, sizeof(name)[number])
#define TILE_LOAD(name, number, from, step) tile_load(&(name)[number], from, step)
#define TILE_STORE(name, number, to, step) tile_store(&(name)[number], to, step)
#define TILE_DOT(name, c, a, b) tile_dot(&(name)[c], &(name)[a], &(name)[b])

#endif

#endif /* EK_CPU_TILE_H */
