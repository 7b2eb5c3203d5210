/*
 * kernel_rig.h - what the tests of the CUDA kernels share: a stream, arrays that exist twice, and
 * how far apart they may be.
 *
 * The programs call the launchers of cuda_kernels.h through CUDA's own runtime interface, so that
 * the same source runs on a GPU and on the stand-in of tests/cuemu. The other side is the library's
 * reference in double precision (src/backend/cpu/reference_*.c), which takes the same argument
 * structs with host pointers.
 *
 * Variants: f32 and f64, each with arrays that begin at 16 bytes and with arrays that do not. Every
 * array is an allocation of exactly its size (and of the one element it is shifted by), so that a
 * sanitizer sees one access too many. What a kernel must write starts as NaN.
 *
 * Tolerances: ||got - want|| <= roundings u ||want||, with u the unit roundoff of the type and
 * `roundings` the longest chain of them behind one result: the operations of the formula, each
 * exp(), log() or division counted as 4, plus the length of a sum. It bounds the relative error of
 * a sum of one sign, n u; in a sum of mixed signs the result shrinks by sqrt(n) against its terms,
 * but so do the roundings, which have no common sign either. In an array of few elements all
 * results may be small by chance while their terms are not: where terms are of size 1, ||want||
 * counts as that of ones at least. One wrong element of a thousand, by its own size, is 3e-2 and
 * not to be overlooked; an element that was not written is NaN.
 */
#ifndef KERNEL_RIG_H
#define KERNEL_RIG_H

#include <check.h>

#include "backend/cpu/reference.h"
#include "backend/cuda/cuda_kernels.h"
#include "ek_check.h"

/* ThreadSanitizer takes a minute for what takes a second, and sees no more in four variants. */
#if defined(__SANITIZE_THREAD__)
enum { KR_VARIANTS = 2 };
#else
enum { KR_VARIANTS = 4 };
#endif
enum { KR_ARRAYS = 64 };

struct kr_rig {
  ek_type type;
  double unit;            /* 2^-24 or 2^-53 */
  int64_t shift;          /* elements that arrays are moved by */
  struct ek__types types; /* both are type */
  struct ek__cuda_place at;
  struct ck_random random;
  void *host[KR_ARRAYS], *device[KR_ARRAYS];
  int hosts, devices;
};

/* A device array of the rig's type and, in double precision, what the reference works on. */
struct kr_array {
  double *host;
  void *device;
  int64_t count;
};

/* main() of a program: without a GPU it says so and returns 77, which ctest counts as skipped. */
#define KR_MAIN(make_suite)                                                                        \
  int main(void) { return kr_run(make_suite); }
int kr_run(Suite *(*make_suite)(void));

struct kr_rig *kr_open(int variant);
/* Checks that no kernel saw a bad index, unless the test has taken that back. */
void kr_close(struct kr_rig *rig);

#define kr_ok(call)                                                                                \
  do {                                                                                             \
    const cudaError_t kr_error_ = (call);                                                          \
    ck_assert_msg(kr_error_ == cudaSuccess, "%s: %s", #call, cudaGetErrorString(kr_error_));       \
  } while (0)

/* Numbers of the type from low .. high, on both sides. */
struct kr_array kr_values(struct kr_rig *rig, int64_t count, double low, double high);
/* Zeros for the reference, NaN on the device. */
struct kr_array kr_poison(struct kr_rig *rig, int64_t count);
/* Zeros on the host only. */
double *kr_zeros(struct kr_rig *rig, int64_t count);
/* A copy on the device, of any type. */
void *kr_bytes(struct kr_rig *rig, const void *bytes, size_t size);
/* Sends what the host side holds to the device once more. */
void kr_send(struct kr_rig *rig, const struct kr_array *array);
/* Waits, and takes what the device holds. */
double *kr_fetch(struct kr_rig *rig, const struct kr_array *array);
void kr_fetch_bytes(struct kr_rig *rig, void *bytes, const void *device, size_t size);
/* Waits, gives what `bad` holds, and sets it back. */
struct ek__cuda_bad kr_bad(struct kr_rig *rig);
/* The word of `bad` for a row and the number found there. */
unsigned long long kr_bad_word(int64_t row, int32_t value);

/* Compares the two sides, with terms of size 1: see above. roundings 0: they must be equal. */
void kr_check(struct kr_rig *rig, const char *what, const struct kr_array *array, double roundings);
/* The same for results whose terms are smaller than 1. */
void kr_check_small(struct kr_rig *rig, const char *what, const struct kr_array *array,
                    double roundings);
/* The same for doubles on the device. */
void kr_check_doubles(struct kr_rig *rig, const char *what, const double *device,
                      const double *want, int64_t count, double limit);

#endif /* KERNEL_RIG_H */
