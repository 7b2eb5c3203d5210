/*
 * cuda_inline.cuh - instructions written by hand, because C++ cannot express them: asynchronous
 * copies into shared memory, small matrices read from there and multiplied by a whole warp, and
 * numbers that need not be exact to the last place.
 *
 * On a GPU each is one instruction of PTX. A stand-in for the runtime defines the macros below in
 * its <cuda_runtime.h>, as it defines EK_LAUNCH, and so every kernel has one source: no code above
 * this layer depends on where it runs. A stand-in should complete a copy no sooner than the wait
 * for it, and refuse operands that were not rounded, so that it finds errors that a GPU would show
 * only sometimes.
 *
 *   EK_COPY_ASYNC(to, from, bytes, there)   EK_COPY_COMMIT()   EK_COPY_WAIT(groups)
 *   EK_LOAD_MATRICES(x, row)                EK_LOAD_TRANSPOSED(x, row)
 *   EK_ROUND_TF32(x)                        EK_MULTIPLY_TF32(d, a, b)
 *   EK_MULTIPLY_BF16(d, a, b)               EK_MULTIPLY_F16(d, a, b)
 *   EK_POWER_OF_2(x)                        EK_RECIPROCAL(x)
 */
#ifndef EK_CUDA_INLINE_CUH
#define EK_CUDA_INLINE_CUH

#include "backend/cuda/cuda_portable.cuh"

namespace ek__cuda {

/* ---- copies from the memory of the device to that of the block ---- */

/* Copies BYTES (4, 8 or 16, as both addresses are aligned), or zeros if nothing is `there`. It has
 * arrived, for this thread, when copy_wait() says so, and for the others after a barrier after
 * that. */
template <int BYTES>
__device__ __forceinline__ void copy_async(void *to, const void *from, bool there) {
#ifdef EK_COPY_ASYNC
  EK_COPY_ASYNC(to, from, BYTES, there);
#else
  const unsigned target = (unsigned)__cvta_generic_to_shared(to);
  const size_t source = __cvta_generic_to_global(from);
  const int bytes = there ? BYTES : 0;
  if constexpr (BYTES == 16) { /* past L1: another block reads it from L2 */
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source),
                 "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(target), "l"(source),
                 "n"(BYTES), "r"(bytes)
                 : "memory");
  }
#endif
}

/* Ends a group of copies of this thread, which may be empty. */
__device__ __forceinline__ void copy_commit() {
#ifdef EK_COPY_COMMIT
  EK_COPY_COMMIT();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Waits until all but the last GROUPS groups of this thread have arrived. */
template <int GROUPS> __device__ __forceinline__ void copy_wait() {
#ifdef EK_COPY_WAIT
  EK_COPY_WAIT(GROUPS);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");
#endif
}

/* ---- matrices of a block's memory ---- */

/*
 * Four matrices of 8 rows of 16 bytes. Lane i says where row i % 8 of matrix i / 8 is, aligned to
 * 16 bytes, and gets a word of each: with g = lane / 4 and t = lane % 4 (PTX ISA, ldmatrix)
 *   load_matrices     word t of row g: an element of 32 bits, or two of 16
 *   load_transposed   of elements of 16 bits those of rows 2 t and 2 t + 1 in column g
 */
__device__ __forceinline__ void load_matrices(unsigned *x, const unsigned *row) {
#ifdef EK_LOAD_MATRICES
  EK_LOAD_MATRICES(x, row);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"((unsigned)__cvta_generic_to_shared(row))
               : "memory");
#endif
}

__device__ __forceinline__ void load_transposed(unsigned *x, const unsigned *row) {
#ifdef EK_LOAD_TRANSPOSED
  EK_LOAD_TRANSPOSED(x, row);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"((unsigned)__cvta_generic_to_shared(row))
               : "memory");
#endif
}

/* ---- numbers that are good to 2 units of the last place ---- */

/* 2^x, or 0 where that is below the smallest normal number: one instruction where exp2f(), which is
 * as exact above that (2 units of the last place), has four. */
__device__ __forceinline__ float power_of_2(float x) {
#ifdef EK_POWER_OF_2
  return EK_POWER_OF_2(x);
#else
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#endif
}

/* 1 / x, or 0 where that is below the smallest normal number: one instruction where a division has
 * ten. */
__device__ __forceinline__ float reciprocal(float x) {
#ifdef EK_RECIPROCAL
  return EK_RECIPROCAL(x);
#else
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#endif
}

/* ---- products of a warp ---- */

/* To 10 bits after the point, to nearest, ties away from zero; what a product takes as it is. */
__device__ __forceinline__ unsigned round_tf32(float x) {
#ifdef EK_ROUND_TF32
  return EK_ROUND_TF32(x);
#else
  unsigned result;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(result) : "f"(x));
  return result;
#endif
}

/*
 * d (16 x 8) += a (16 x 8) b (8 x 8), by all lanes of a warp. With g = lane / 4 and t = lane % 4 a
 * lane has (PTX ISA, mma.m16n8k8 with .tf32):
 *   a: rows g, g + 8, g, g + 8; columns t, t, t + 4, t + 4
 *   b: rows t, t + 4; column g
 *   d: rows g, g, g + 8, g + 8; columns 2 t, 2 t + 1, 2 t, 2 t + 1
 */
__device__ __forceinline__ void multiply_tf32(float (&d)[4], const unsigned (&a)[4],
                                              const unsigned *b) {
#ifdef EK_MULTIPLY_TF32
  EK_MULTIPLY_TF32(d, a, b);
#else
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

/*
 * d (16 x 8) += a (16 x 16) b (16 x 8) of numbers of 16 bits, two in a word, the first in its lower
 * half. A lane has (PTX ISA, mma.m16n8k16), beside d as above, for each word the place of its first
 * number; the second is in the next column of a, the next row of b:
 *   a: rows g, g + 8, g, g + 8; columns 2 t, 2 t, 2 t + 8, 2 t + 8
 *   b: rows 2 t, 2 t + 8; column g
 */
__device__ __forceinline__ void multiply_bf16(float (&d)[4], const unsigned (&a)[4],
                                              const unsigned *b) {
#ifdef EK_MULTIPLY_BF16
  EK_MULTIPLY_BF16(d, a, b);
#else
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

__device__ __forceinline__ void multiply_f16(float (&d)[4], const unsigned (&a)[4],
                                             const unsigned *b) {
#ifdef EK_MULTIPLY_F16
  EK_MULTIPLY_F16(d, a, b);
#else
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

} // namespace ek__cuda

#endif /* EK_CUDA_INLINE_CUH */
