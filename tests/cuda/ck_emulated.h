/*
 * ck_emulated.h - tests on emulated GPUs: what one of them sets, arms or leaves behind no other one
 * meets.
 */
#ifndef CK_EMULATED_H
#define CK_EMULATED_H

#include "cuemu.h"
#include "ek_check.h"

/* The settings that a test finds. */
static struct cuemu_settings ck_given;

static inline void ck_emulated_begin(void) { cuemu_get_settings(&ck_given); }

/* Frees what the test kept, ends hangs and faults, and fails if anything is alive. */
static inline void ck_emulated_end(void) {
  char text[512] = "";
  cuemu_reset();
  ck_release_all();
  ck_assert_msg(cuemu_leaks(text, sizeof text) == 0, "%s", text);
  cuemu_set_epilogues(~0u);
  cuemu_set_slow(0);
  cuemu_set_algorithm_times((const unsigned[4]){0});
  cuemu_refuse(0, 0);
  cuemu_call_ones_invalid(false);
  cuemu_set_cudnn(&(struct cuemu_cudnn){0});
  cuemu_set_settings(&ck_given);
}

#define CK_EMULATED_SUITE(name) CK_SUITE_WITH(name, ck_emulated_begin, ck_emulated_end)

/* Of the program's own calls. */
#define cuda_ok(call) ck_assert_int_eq(call, cudaSuccess)

/* Changes one setting until the test ends; while nothing is alive. */
#define ck_emulate(member, value)                                                                  \
  do {                                                                                             \
    struct cuemu_settings ck_changed_;                                                             \
    cuemu_get_settings(&ck_changed_);                                                              \
    ck_changed_.member = (value);                                                                  \
    cuemu_set_settings(&ck_changed_);                                                              \
  } while (0)

/* Calls of cuBLASLt for products, and launches of kernels. */
struct ck_counts {
  unsigned long products, launches;
};

static inline struct ck_counts ck_counts_now(void) {
  return (struct ck_counts){cuemu_calls(0, CUEMU_BLAS), cuemu_calls(0, CUEMU_LAUNCH)};
}

static inline struct ck_counts ck_counts_since(struct ck_counts before) {
  const struct ck_counts now = ck_counts_now();
  return (struct ck_counts){now.products - before.products, now.launches - before.launches};
}

static inline void ck_counts_are(struct ck_counts got, unsigned long products,
                                 unsigned long launches) {
  ck_assert_uint_eq(got.products, products);
  ck_assert_uint_eq(got.launches, launches);
}

#endif /* CK_EMULATED_H */
