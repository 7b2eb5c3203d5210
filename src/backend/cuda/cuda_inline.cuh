/*
 * cuda_inline.cuh - the instructions that are written by hand, because C++ has no words for them:
 * copies into shared memory that nobody waits for, and products of small matrices by a whole warp.
 *
 * On a GPU each is one instruction of PTX. A stand-in for the runtime defines the macros below in its
 * <cuda_runtime.h>, as it defines EK_LAUNCH, and so every kernel is one source: nothing above this
 * layer asks where it runs. A stand-in should let a copy arrive no sooner than it is waited for, and
 * refuse operands that were not rounded, so that it finds what a GPU would only get wrong at times.
 *
 *   EK_COPY_ASYNC(to, from, bytes, there)   EK_COPY_COMMIT()   EK_COPY_WAIT(groups)
 *   EK_ROUND_TF32(x)                        EK_MULTIPLY_TF32(d, a, b)
 */
#ifndef EK_CUDA_INLINE_CUH
#define EK_CUDA_INLINE_CUH

#include "backend/cuda/cuda_portable.cuh"

namespace ek__cuda {

/* ---- copies from the memory of the device to that of the block ---- */

/* Copies BYTES (4, 8 or 16, as both addresses are aligned), or zeros if nothing is `there`. It has
 * arrived, for this thread, when copy_wait() says so, and for the others behind a barrier after that. */
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

/* ---- products of a warp ---- */

/* To 10 bits behind the point, to nearest, ties away from zero; what a product takes as it is. */
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
                                              const unsigned (&b)[2]) {
#ifdef EK_MULTIPLY_TF32
  EK_MULTIPLY_TF32(d, a, b);
#else
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

} // namespace ek__cuda

#endif /* EK_CUDA_INLINE_CUH */
