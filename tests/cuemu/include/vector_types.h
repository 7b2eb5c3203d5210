/*
 * vector_types.h - short vectors and dim3 with CUDA's names, sizes and alignments, for C and C++.
 */
#ifndef CUEMU_VECTOR_TYPES_H
#define CUEMU_VECTOR_TYPES_H

#define CUEMU_ALIGNED(bytes) __attribute__((aligned(bytes)))

/* The alignments are those of the hardware's accesses: a misplaced float4 is seen by UBSan. */
#define CUEMU_VECTORS(type, name, align2, align4)                                                  \
  typedef struct name##1 {                                                                         \
    type x;                                                                                        \
  }                                                                                                \
  name##1;                                                                                         \
  typedef struct CUEMU_ALIGNED(align2) name##2 {                                                   \
    type x, y;                                                                                     \
  }                                                                                                \
  name##2;                                                                                         \
  typedef struct name##3 {                                                                         \
    type x, y, z;                                                                                  \
  }                                                                                                \
  name##3;                                                                                         \
  typedef struct CUEMU_ALIGNED(align4) name##4 {                                                   \
    type x, y, z, w;                                                                               \
  }                                                                                                \
  name##4;

CUEMU_VECTORS(signed char, char, 2, 4)
CUEMU_VECTORS(unsigned char, uchar, 2, 4)
CUEMU_VECTORS(short, short, 4, 8)
CUEMU_VECTORS(unsigned short, ushort, 4, 8)
CUEMU_VECTORS(int, int, 8, 16)
CUEMU_VECTORS(unsigned int, uint, 8, 16)
CUEMU_VECTORS(long long, longlong, 16, 16)
CUEMU_VECTORS(unsigned long long, ulonglong, 16, 16)
CUEMU_VECTORS(float, float, 8, 16)
CUEMU_VECTORS(double, double, 16, 16)

typedef struct dim3 {
  unsigned int x, y, z;
#ifdef __cplusplus
  constexpr dim3(unsigned int a = 1, unsigned int b = 1, unsigned int c = 1) : x(a), y(b), z(c) {}
#endif
} dim3;

#endif
