/*
 * ek_check.h - what all test programs share, on top of Check.
 *
 *     CK_TEST(add_works) {
 *       struct ck_rig *rig = ck_rig_variant(_i);
 *       double *a = ck_values(rig, 12, -1.0, 1.0);
 *       ek_tensor *ta = ck_tensor(rig, a, CK_SHAPE(3, 4));
 *       ek_tensor *y = ck_poisoned(rig, CK_SHAPE(3, 4));
 *       ck_ok(ek_op_scale(rig->stream, y, ta, 2.0));
 *       ...
 *     }
 *     CK_SUITE("add")
 *
 * It includes the whole library and what most tests need of C's own headers, for all of them.
 *
 * Environment:
 *   EVENKEEL_TEST_SEED     the seed of all generators; it is printed when a program starts
 *   EVENKEEL_TEST_DEVICES  the device string to test with instead of the default
 *   EVENKEEL_TEST_TIME_LIMIT  the `time_limit` of groups in seconds; without it the library's own
 *   EVENKEEL_TEST_PART     "1/3": of long loops every third case, beginning with number 1
 *   EVENKEEL_TEST_SHARE    "1/3": every third of all tests and cases; the three shares together are
 *                          all of them
 *   EVENKEEL_TEST_EVERY    1: if only one call in several fails, each of them does
 *   EVENKEEL_TEST_LIST     set: each test and its number of cases is printed, and nothing runs
 *   EVENKEEL_TEST_PRECISION  bf16 or f16: what models of f32 compute in where a test does not say
 *                          it (ck_training.h)
 */
#ifndef EK_CHECK_H
#define EK_CHECK_H

#include <check.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <evenkeel/evenkeel.h>

#include "ck_assign.h"
#include "ck_keep.h"

/* ---- who watches: gcc and clang say it each in its own way ---- */

#ifndef __has_feature
#define __has_feature(feature) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define CK_ASAN 1
#else
#define CK_ASAN 0
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#define CK_TSAN 1
#else
#define CK_TSAN 0
#endif

/* A test's own plain loop over its own arrays, which took most of the time under a sanitizer. */
#define CK_UNWATCHED                                                                               \
  __attribute__((no_sanitize("address"), no_sanitize("thread"), no_sanitize("undefined")))

/* ---- a program ---- */

/* Check's own writes a mark to a file for each assertion that holds, which only a parent process
 * reads, and which took half the time of tests that compare many numbers. */
#undef ck_assert_msg
#define ck_assert_msg(expr, ...)                                                                   \
  ((expr) ? (void)0                                                                                \
          : _ck_assert_failed(__FILE__, __LINE__, "Assertion '" #expr "' failed", __VA_ARGS__))

/*
 * A test is in the suite of its program by its name alone, and is a test case of that name:
 *
 *     CK_TEST(add_works) {...}
 *     CK_LOOP(every_mode, CK_MODES) {...}     for _i = 0 .. CK_MODES - 1
 *     CK_LOOP_FROM(some_modes, EK_MODE_SHARDED, CK_MODES) {...}
 *     CK_PART_LOOP(every_place, CK_PLACEMENTS) {...}
 *     CK_LOOP(in_bf16, ck_if_halves(3)) {...}
 *     CK_SUITE("add")                         main()
 */
#define CK_TEST(name) CK_LOOP(name, 1)

/* Functions of a module of the test's own: noun_parameters(), noun_forward(), noun_backward(). */
#define CK_PARAMETERS(noun)                                                                        \
  static ek_status noun##_parameters(const ek_module *self CK_ATTRIBUTE_UNUSED,                    \
                                     ek_declaration *declaration CK_ATTRIBUTE_UNUSED)
#define CK_FORWARD(noun)                                                                           \
  static ek_status noun##_forward(                                                                 \
      const ek_module *self CK_ATTRIBUTE_UNUSED, ek_pass *pass CK_ATTRIBUTE_UNUSED,                \
      const ek_tensor *inputs CK_ATTRIBUTE_UNUSED, ek_tensor *outputs CK_ATTRIBUTE_UNUSED)
#define CK_BACKWARD(noun)                                                                          \
  static ek_status noun##_backward(                                                                \
      const ek_module *self CK_ATTRIBUTE_UNUSED, ek_pass *pass CK_ATTRIBUTE_UNUSED,                \
      const ek_tensor *grad_outputs CK_ATTRIBUTE_UNUSED,                                           \
      ek_tensor *grad_inputs CK_ATTRIBUTE_UNUSED)

/* A job of a group (parallel_apply.h), and the update of a rule of the test's own. */
#define CK_JOB(name)                                                                               \
  static ek_status name(void *context CK_ATTRIBUTE_UNUSED, ek_device *device CK_ATTRIBUTE_UNUSED,  \
                        size_t index CK_ATTRIBUTE_UNUSED)
#define CK_UPDATE(name)                                                                            \
  static ek_status name(const ek_optimizer *self CK_ATTRIBUTE_UNUSED,                              \
                        ek_stream *stream CK_ATTRIBUTE_UNUSED,                                     \
                        const ek_update *update CK_ATTRIBUTE_UNUSED)

/* The table `noun`_ops of a module of the test's own, whose functions are noun_forward(),
 * noun_backward() and noun_free(). The second form sets further members. */
#define CK_MODULE_OPS(noun) static const ek_module_ops noun##_ops = {CK_OPS_MEMBERS(noun)}
#define CK_MODULE_OPS_WITH(noun, ...)                                                              \
  static const ek_module_ops noun##_ops = {CK_OPS_MEMBERS(noun), __VA_ARGS__}
#define CK_OPS_MEMBERS(noun) CK_OPS(#noun, noun##_forward, noun##_backward, noun##_free)
/* The members of such a table with functions of other names. */
#define CK_OPS(kind_, forward_, backward_, free_)                                                  \
  .size = sizeof(ek_module_ops), .kind = kind_, .forward = forward_, .backward = backward_,        \
  .free = free_
/* The same of a module that has only itself to free, and what creates one without members. */
#define CK_PLAIN_OPS(noun, ...)                                                                    \
  static const ek_module_ops noun##_ops = {                                                        \
      CK_OPS(#noun, noun##_forward, noun##_backward, ck_plain_free), __VA_ARGS__}
void ck_plain_free(ek_module *self);
/* Of a module that is the test's own. */
void ck_no_free(ek_module *self);
/* y = x, which shares the memory, and its gradient. */
ek_status ck_share_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                           ek_tensor *outputs);
ek_status ck_share_backward(const ek_module *self, ek_pass *pass, const ek_tensor *grad_outputs,
                            ek_tensor *grad_inputs);
ek_status ck_plain_create(ek_module **module, const ek_module_ops *ops, size_t inputs,
                          size_t outputs);
/* A struct of `size` bytes, zeros, that begins with its ek_module. */
void *ck_module_new(size_t size, const ek_module_ops *ops, size_t inputs, size_t outputs);
ek_module *ck_linear(int64_t in, int64_t out, bool bias);
/* outer(module, inner); the reference of the inner one is given up. */
ek_status ck_around(ek_module **module, ek_module *inner,
                    ek_status (*outer)(ek_module **, ek_module *));
/* A sequential, and a weighted sum, of parts whose references they take over, also on failure;
 * `options` may be NULL. */
ek_status ck_sequential(ek_module **module, ek_module **parts, size_t count,
                        const ek_sequential_options *options);
ek_status ck_weighted_sum(ek_criterion **criterion, ek_criterion **terms,
                          const double *coefficients, size_t count);

#define CK_LOOP(name, cases) CK_LOOP_FROM(name, 0, cases)
#define CK_LOOP_FROM(name, first, end)                                                             \
  static void name##_fn(int _i);                                                                   \
  static int name##_first(void) { return (int)(first); }                                           \
  static int name##_end(void) { return (int)(end); }                                               \
  __attribute__((constructor)) static void name##_register(void) {                                 \
    static const TTest test = {#name, name##_fn, __FILE__, __LINE__};                              \
    static struct ck_registered registered = {&test, name##_first, name##_end, NULL};             \
    ck_register(&registered);                                                                      \
  }                                                                                                \
  static void name##_fn(int _i CK_ATTRIBUTE_UNUSED)
/* A loop that runs only the part that EVENKEEL_TEST_PART asks for: ck_part(). */
#define CK_PART_LOOP(name, cases)                                                                  \
  static void name##_part(int _i);                                                                 \
  CK_LOOP(name, cases) {                                                                           \
    if (ck_part(_i)) name##_part(_i);                                                              \
  }                                                                                                \
  static void name##_part(int _i CK_ATTRIBUTE_UNUSED)
#define CK_SUITE(name) CK_SUITE_WITH(name, NULL, NULL)
/* The same with a function before and one after each test. */
#define CK_SUITE_WITH(name, set_up, tear_down)                                                     \
  int main(void) { return ck_run(ck_suite(name, set_up, tear_down)); }

struct ck_registered {
  const TTest *test;
  int (*first)(void);
  int (*end)(void);
  struct ck_registered *next;
};
void ck_register(struct ck_registered *test);
/* The tests that are registered, in the order of their lines; what each of them kept is freed after
 * it (ck_keep.h). The two functions may be NULL. */
Suite *ck_suite(const char *name, void (*set_up)(void), void (*tear_down)(void));

/* Runs a suite in this process (no fork: threads and sanitizers) and returns the exit code. */
int ck_run(Suite *suite);

/* Whether case `number` of a long loop is in the part that EVENKEEL_TEST_PART asks for. */
bool ck_part(int number);

/* Whether EVENKEEL_TEST_DEVICES is about GPUs. */
bool ck_on_gpu(void);

/* ck_part() of a short loop: a CPU runs all of it, and the orders of a GPU's threads share it. */
bool ck_gpu_part(int number);

/* Whether long loops are run in parts: what a case repeats may then be shorter as well. */
bool ck_in_parts(void);

/* Of the calls that may fail one in several does; EVENKEEL_TEST_EVERY says another number, 1 for
 * each. */
uint64_t ck_every(uint64_t usual);

/* ---- statuses ---- */

#define ck_ok(expression)                                                                          \
  do {                                                                                             \
    const ek_status ck_status_ = (expression);                                                     \
    ck_assert_msg(ck_status_ == EK_OK, "%s gave %s: %s", #expression, ek_status_name(ck_status_),  \
                  ek_error_message());                                                             \
  } while (0)

/* The call must fail with this status and a message that contains `text`. */
#define ck_fails(expression, wanted, text)                                                         \
  do {                                                                                             \
    ek_error_clear();                                                                              \
    const ek_status ck_status_ = (expression);                                                     \
    ck_assert_msg(ck_status_ == (wanted), "%s gave %s, not " #wanted ": %s", #expression,          \
                  ek_status_name(ck_status_), ek_error_message());                                 \
    ck_assert_msg(ck_contains(ek_error_message(), (text)), "%s: \"%s\" does not contain \"%s\"",   \
                  #expression, ek_error_message(), (text));                                        \
  } while (0)

/* The usual case: a wrong argument. */
#define ck_invalid(expression, text) ck_fails(expression, EK_ERR_INVALID_ARGUMENT, text)

/* The call must fail like that while a member of a struct, which is good otherwise, is `value`. */
#define ck_bad(good, member, value, expression, text)                                              \
  ck_bad_with(EK_ERR_INVALID_ARGUMENT, good, member, value, expression, text)
#define ck_bad_with(status, good, member, value, expression, text)                                 \
  do {                                                                                             \
    const __typeof__(good) ck_good_ = (good);                                                      \
    (good).member = (value);                                                                       \
    ck_fails(expression, status, text);                                                            \
    (good) = ck_good_;                                                                             \
  } while (0)

/*
 * Whether the call fails if the next allocation of the host does, or of the device: numbers 1, 2
 * and so on in turn, until none is left that fails. A failure must be EK_ERR_OUT_OF_MEMORY and have
 * a message.
 *
 *     uint64_t n = 0;
 *     while (ck_host_fails(&n, ek_x_open(&x))) ck_assert_ptr_null(x);
 *     ck_assert_uint_gt(n, 3);     how often it was called: one more than the failures
 */
#define ck_host_fails(n, call) (ck_fail_host(n), ck_host_failed((n), (call), #call))
#define ck_device_fails(n, device, call)                                                           \
  (ck_fail_device((n), (device)), ck_device_failed((n), (device), (call), #call))
void ck_fail_host(uint64_t *n);
bool ck_host_failed(const uint64_t *n, ek_status status, const char *call);
void ck_fail_device(uint64_t *n, ek_device *device);
bool ck_device_failed(const uint64_t *n, ek_device *device, ek_status status, const char *call);

/* Whether `part` occurs in `text`. While GPUs are under test, its "cpu:1" or "plan:1" is any GPU.
 */
bool ck_contains(const char *text, const char *part);

/* What an operation gave; where it was only queued, what the wait for its stream gives. */
ek_status ck_finish(ek_status status, ek_stream *stream);

/* Seconds of a clock that only goes forward. */
double ck_now(void);

/* FNV-1a of some bytes; of more of them from the hash of the first. */
#define CK_HASH UINT64_C(0xcbf29ce484222325)
uint64_t ck_hash(uint64_t hash, const void *bytes, uint64_t count);

/* What is known of parameter number `index`, and a loop over all of a replica's: `info` is that of
 * each in turn. The loop has no `break`. */
ek_parameter_info ck_parameter(const ek_replica *replica, size_t index);
#define CK_EACH_PARAMETER(info, replica)                                                           \
  for (size_t info##_at = 0; info##_at < ek_replica_parameter_count(replica); info##_at++)         \
    for (ek_parameter_info info = ck_parameter((replica), info##_at), *info##_once = &info;        \
         info##_once != NULL; info##_once = NULL)

/* ---- random numbers ---- */

struct ck_random {
  uint64_t state;
};

uint64_t ck_seed(void);
/* A generator of its own for each `stream`; equal seeds and streams give equal numbers. */
struct ck_random ck_random_start(uint64_t stream);
uint64_t ck_random_next(struct ck_random *random);
double ck_random_uniform(struct ck_random *random, double low, double high);
int64_t ck_random_integer(struct ck_random *random, int64_t low, int64_t high); /* both included */

/* ---- devices ---- */

/*
 * EVENKEEL_TEST_DEVICES, or `spec` where it is not set. GPUs without a cap get one: a group without
 * takes all the memory there is, and many tests hold two groups.
 */
const char *test_devices(const char *spec);

/*
 * `spec` said for the devices under test. With EVENKEEL_TEST_DEVICES=cuda:0x2,1x2 "cpu:3@1MiB" is
 * three devices on the GPUs 0, 0 and 1, of 1 MiB each beside what a GPU keeps for itself, and
 * "plan:3@1MiB" the same counted; every other string is as it was. Without a cap a GPU gets
 * CK_DEFAULT_CAP bytes. Eight results of a thread live at a time.
 */
#define CK_DEFAULT_CAP (UINT64_C(64) << 20)
const char *ck_spec(const char *spec);

/* Opens ck_spec(spec); threads 0 takes the default. */
ek_group *ck_open(const char *spec, int threads);
/* Whether groups are deterministic that these functions open from now on in this test. */
void ck_deterministic(bool on);

/* The same where devices are GPUs, for tests that compare the bits of two modes: cuBLASLt's
 * algorithms, which are chosen by time there, differ with the alignment of the operands. */
void ck_deterministic_on_gpu(void);
/* Opens `spec` whatever is under test; and with a time limit in seconds. */
ek_group *ck_open_exactly(const char *spec, int threads);
ek_group *ck_open_limited(const char *spec, double time_limit);
/* Device 0 of a group that is opened for it, with one thread. */
ek_device *ck_device(const char *spec);

/* Whether the devices under test compute in bf16 and f16. */
bool ck_has_halves(void);
/* The number of cases, or 0 where they do not. */
int ck_if_halves(int cases);

/* A rank and a shape for the two parameters `int rank, const int64_t *shape`. */
#define CK_SHAPE(...)                                                                              \
  (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]) { __VA_ARGS__ }

/* The usage of a device without what a GPU keeps for itself, as if that did not exist. */
ek_status ck_memory_stats(ek_memory_usage *usage, const ek_device *device);

/* The same, of a call that must succeed. */
ek_memory_usage ck_usage(const ek_device *device);

/* No device of the group holds a byte; and how many bytes all of them hold. */
void ck_no_memory_held(const ek_group *group);
uint64_t ck_bytes_held(const ek_group *group);

/* The most devices that a device string may name. */
#define CK_MAX_DEVICES 64

/* A tensor on a device from doubles (NULL: every byte 0xFF, which is NaN in floating types), which
 * is kept (ck_keep.h). */
ek_tensor ck_upload(ek_device *device, ek_type type, const double *values, int rank,
                    const int64_t *shape);
/* Overwrites a tensor of a floating type or i32; NULL poisons it. */
void ck_set(ek_tensor *tensor, const double *values);
/* Copies such a tensor into `values`, or into an array that is kept. */
void ck_get(double *values, const ek_tensor *tensor);
double *ck_got(const ek_tensor *tensor);
/* It begins with just these numbers. */
#define ck_holds(tensor, ...)                                                                      \
  ck_within(#tensor, ck_got(tensor), (const double[]){__VA_ARGS__}, NULL,                          \
            (int64_t)(sizeof((const double[]){__VA_ARGS__}) / sizeof(double)))
/* data[i] = x, in host memory, of a type of whole numbers. */
void ck_put_integer(void *data, ek_type type, int64_t i, int64_t x);

/* ---- comparisons ---- */

/* GELU by its formula, x / 2 (1 + tanh(z)), its slope, and that of z. */
long double ck_gelu(long double x);
long double ck_gelu_slope(long double x);
long double ck_gelu_inner_slope(long double x);

/* ||got - want|| / ||want||; 0 if both are zero. */
double ck_rel_l2(const double *got, const double *want, int64_t count);

/*
 * |got[i] - want[i]| <= bound[i] for all i (bound NULL: equal). NaN must meet NaN, and an infinity
 * the same infinity.
 */
void ck_within(const char *what, const double *got, const double *want, const double *bound,
               int64_t count);

/* Every number is the same, bit for bit. */
void ck_same_bits(const char *what, const double *a, const double *b, int64_t count);

/* The same two of arrays that are kept (ck_array()), which must have equally many elements. */
double ck_arrays_off(const double *got, const double *want);
void ck_arrays_same(const char *what, const double *a, const double *b);

/*
 * ---- the rig: one device, and all that a test makes on it ----
 *
 * Under AddressSanitizer memory after a tensor of a rig may not be touched, by an operation of
 * the CPU or a kernel on emulated devices: it is the unused rest of its memory, and a gap.
 */

enum { CK_RIG_TENSORS = 64, CK_RIG_ARRAYS = 256 };

struct ck_rig {
  const char *spec; /* of the group, as it was asked for, and its threads */
  int threads;
  ek_group *group;
  ek_device *device;
  ek_stream *stream;
  ek_type type;   /* f32, f64, bf16 or f16: of the tensors it makes, values */
  ek_type sum;    /* of sums: f64 with values of f64, else f32 */
  double unit;    /* unit roundoff of the arithmetic, that of sums: 2^-24 or 2^-53 */
  double operand; /* with TF32 the relative rounding of what products multiply, 2^-11; else 0 */
  int64_t shift;  /* elements between the beginning of memory and a tensor: 0 or 1 */
  struct ck_random random;
  ek_tensor tensor[CK_RIG_TENSORS], gap[CK_RIG_TENSORS];
  void *array[CK_RIG_ARRAYS];
  size_t tensors, arrays;
  uintptr_t ghosts; /* the address of the next ghost */
  ek_group **place; /* where the group stays for rigs of later tests, or NULL */
};

/*
 * Opens device 0 of a group: `spec` as it is, or test_devices("cpu:1") if it is NULL. If nothing
 * failed on it, the group stays open when the rig is closed, until the test ends, and the next rig
 * that asks for the same one takes it: to open a group takes longer than most operations.
 */
struct ck_rig *ck_rig_open(const char *spec, ek_type type, int threads);

/*
 * For loop tests over 0 .. CK_VARIANTS - 1: f32 and f64; one thread and memory that is aligned to
 * EK_MEMORY_UNIT, two threads and tensors that begin one element after it, as rows of others do.
 * Over 0 .. ck_variants() - 1: the same followed by bf16 and f16, where the devices under test
 * compute in these.
 */
enum { CK_VARIANTS = 4 };
int ck_variants(void);
/* Frees the groups of variants, which stay open from test to test; ck_run() calls it. */
void ck_rigs_end(void);
/* Whether a variant takes case `number` of a long loop, and ck_part(). Those of 16 bits, which
 * share their code with f32, halve the cases between one thread and two. */
bool ck_turn(int variant, int number);
struct ck_rig *ck_rig_variant(int variant);
/* A loop over 0 .. variants - 1, each test with its rig. */
#define CK_RIG_LOOP(name, variants)                                                                \
  static void name##_on(int _i, struct ck_rig *rig);                                               \
  CK_LOOP(name, variants) { name##_on(_i, ck_rig_variant(_i)); }                                   \
  static void name##_on(int _i CK_ATTRIBUTE_UNUSED, struct ck_rig *rig)
/* For each variant a test of several cases, number `c`, each with a new rig, if it is its turn. */
#define CK_RIG_CASES(name, c, cases)                                                               \
  static void name##_on(int c, struct ck_rig *rig);                                                \
  CK_LOOP(name, ck_variants()) {                                                                   \
    for (int c = 0; c < (cases); c++) {                                                            \
      if (!ck_turn(_i, c)) continue;                                                               \
      struct ck_rig *rig = ck_rig_variant(_i);                                                     \
      name##_on(c, rig);                                                                           \
      ck_rig_close(rig);                                                                           \
    }                                                                                              \
  }                                                                                                \
  static void name##_on(int c, struct ck_rig *rig)
/* The same of each pair of `a` and `b`, which parts mix. */
#define CK_RIG_GRID(name, a, as, b, bs)                                                            \
  static void name##_on(int a, int b, struct ck_rig *rig);                                         \
  CK_LOOP(name, ck_variants()) {                                                                   \
    for (int c = 0; c < (as) * (bs); c++) {                                                        \
      if (!ck_turn(_i, 7 * (c / (bs)) + c % (bs))) continue;                                       \
      struct ck_rig *rig = ck_rig_variant(_i);                                                     \
      name##_on(c / (bs), c % (bs), rig);                                                          \
      ck_rig_close(rig);                                                                           \
    }                                                                                              \
  }                                                                                                \
  static void name##_on(int a, int b, struct ck_rig *rig)
/* A test with the rig of ck_rig_open(), of one thread. */
#define CK_RIG_TEST(name, spec, type)                                                              \
  static void name##_on(struct ck_rig *rig);                                                       \
  CK_TEST(name) { name##_on(ck_rig_open((spec), (type), 1)); }                                     \
  static void name##_on(struct ck_rig *rig)
/* f32 on devices that may multiply in TF32, tensors `shift` elements after the beginning. */
struct ck_rig *ck_rig_tf32(int64_t shift);

/* Frees all of it and checks that the devices hold nothing; so does the end of the test. */
void ck_rig_close(struct ck_rig *rig);

/* The value as the rig's type holds it. */
double ck_round(const struct ck_rig *rig, double value);
/* As any floating type does: to nearest, ties to even. */
double ck_round_to(ek_type type, double value);
/* The number of a type of 16 bits that these are, by its definition. */
double ck_half(ek_type type, uint16_t bits);

/* Arrays of the rig: zeros; numbers of the rig's type from low .. high; whole numbers. */
double *ck_zeros(struct ck_rig *rig, int64_t count);
double *ck_values(struct ck_rig *rig, int64_t count, double low, double high);
double *ck_values_of(struct ck_rig *rig, ek_type type, int64_t count, double low, double high);
double *ck_integers(struct ck_rig *rig, int64_t count, int64_t low, int64_t high);

/* Tensors of the rig: from values, of another type, filled with NaN, only allocated. */
ek_tensor *ck_tensor(struct ck_rig *rig, const double *values, int rank, const int64_t *shape);
ek_tensor *ck_tensor_of(struct ck_rig *rig, ek_type type, const double *values, int rank,
                        const int64_t *shape);
ek_tensor *ck_poisoned(struct ck_rig *rig, int rank, const int64_t *shape);
/* The same two for sums. */
ek_tensor *ck_sums(struct ck_rig *rig, const double *values, int rank, const int64_t *shape);
ek_tensor *ck_poisoned_sums(struct ck_rig *rig, int rank, const int64_t *shape);
ek_tensor *ck_blank(struct ck_rig *rig, ek_type type, int rank, const int64_t *shape);
/* Only for devices that count: claims elements of up to 2^63 bytes, and holds nothing. */
ek_tensor *ck_ghost(struct ck_rig *rig, ek_type type, int rank, const int64_t *shape);

/* What a tensor holds, in an array of the rig. */
double *ck_read(struct ck_rig *rig, const ek_tensor *tensor);

/* What one rounding to the rig's type of 16 bits may add to an error, for a number of this size; 0
 * for other types. */
double ck_rounding(const struct ck_rig *rig, double size);

/*
 * ck_within() for what a tensor of the rig holds. A number of 16 bits must be what the type makes
 * of some number in want[i] +- bound[i], so bounds are those of the arithmetic before the one
 * rounding of the result: docs/numerics.md.
 */
void ck_fits(struct ck_rig *rig, const char *what, const ek_tensor *tensor, const double *want,
             const double *bound, int64_t count);

/* ---- gradients ---- */

/*
 * Central differences with h = 1e-6 at `probes` random places of a tensor x (all of them if there
 * are fewer), of `value` after each `call`, which must succeed: the relative L2 error of the
 * gradient there must be at most 1e-6. For f64 only; x is then as it was.
 *
 * Why 1e-6: with a value of size 1 evaluated to a few units of 2^-53, the quotient has an absolute
 * error of about 2^-53 / h = 1e-10, and the third derivative adds h^2 / 6 = 1e-13. Gradients in the
 * tests are of size 1e-3 or more.
 */
#define ck_gradient(rig, what, x, gradient, probes, call, value)                                   \
  do {                                                                                             \
    struct ck_differences ck_of_ = ck_differences_start((rig), (x), (gradient), (probes));         \
    while (ck_differences_more(&ck_of_)) {                                                         \
      ck_ok(call);                                                                                 \
      ck_differences_take(&ck_of_, (value));                                                       \
    }                                                                                              \
    ck_differences_end(&ck_of_, (what));                                                           \
  } while (0)
struct ck_differences {
  struct ck_rig *rig;
  ek_tensor *x;
  double *values, *gradient, *got, *want;
  bool all;
  int64_t probes, calls, place;
  double kept, above, step; /* of the place: what was there, and one side */
};
struct ck_differences ck_differences_start(struct ck_rig *rig, ek_tensor *x,
                                           const ek_tensor *gradient, int64_t probes);
bool ck_differences_more(struct ck_differences *d);
void ck_differences_take(struct ck_differences *d, double value);
void ck_differences_end(struct ck_differences *d, const char *what);

/* The weighted sum of what a tensor holds: a scalar function of an operation's result. */
double ck_weighed(const ek_tensor *tensor, const double *weights);

/* A device that only counts, with all the room it can have. */
#define CK_HUGE_PLAN "plan:1@1024TiB"

#endif /* EK_CHECK_H */
