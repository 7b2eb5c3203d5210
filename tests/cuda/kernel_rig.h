/*
 * kernel_rig.h - for tests of CUDA kernels by their launchers: a stream, and arrays that exist
 * twice.
 *
 * The programs call the launchers of cuda_kernels.h through CUDA's own runtime interface, so that
 * the same source runs on a GPU and on the stand-in of tests/cuemu. The other side is
 * computed by the test, in double precision.
 *
 * Variants: f32 and f64, each with arrays that begin at 16 bytes and with arrays that do not. Every
 * array is an allocation of exactly its size (and of the one element it is shifted by), so that a
 * sanitizer sees one access too many. What a kernel must write starts as NaN.
 */
#ifndef KERNEL_RIG_H
#define KERNEL_RIG_H

#include "backend/cpu/reference.h"
#include "backend/cuda/cuda_kernels.h"
#include "ek_check.h"

/* ThreadSanitizer takes a minute for what takes a second, and sees no more in four variants. */
#if CK_TSAN
enum { KR_VARIANTS = 2 };
#else
enum { KR_VARIANTS = 4 };
#endif
enum { KR_ARRAYS = 64 };

struct kr_rig {
  ek_type type;
  double unit;              /* 2^-24 or 2^-53 */
  int64_t shift;            /* elements that arrays are moved by */
  struct ek__types types;   /* both are type */
  struct ek__cuda_place at; /* of which these kernels want the stream alone */
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
#define KR_SUITE(name)                                                                             \
  int main(void) { return kr_run(name); }
int kr_run(const char *name);

struct kr_rig *kr_open(int variant);
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
/* The two sides must be equal. */
void kr_check(struct kr_rig *rig, const char *what, const struct kr_array *array);
/* Doubles on the device; each may be off by limit, relative to itself or to 1. */
void kr_check_doubles(struct kr_rig *rig, const char *what, const double *device,
                      const double *want, int64_t count, double limit);

#endif /* KERNEL_RIG_H */
