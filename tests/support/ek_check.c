/*
 * ek_check.c - programs, random numbers, devices and comparisons for the tests: see ek_check.h.
 */
#include "ek_check.h"

#include <malloc.h>
#include <time.h>

/* ---- a program ---- */

/* Arrays that come and go keep their pages. glibc would give large ones back each time, and the
 * kernel would clear them for the next one: a fifth of the time of tests that compare much. */
static void keep_pages(void) {
#ifdef M_MMAP_THRESHOLD
  (void)mallopt(M_MMAP_THRESHOLD, 32 << 20);
  (void)mallopt(M_TRIM_THRESHOLD, 256 << 20);
#endif
}

int ck_run(Suite *suite) {
  if (getenv("EVENKEEL_TEST_LIST") != NULL) return EXIT_SUCCESS; /* add_cases() has written it */
  keep_pages();
  printf("EVENKEEL_TEST_SEED=%" PRIu64 "\n", ck_seed());
  fflush(stdout);
  SRunner *runner = srunner_create(suite);
  srunner_set_fork_status(runner, getenv("CK_FORK") == NULL ? CK_NOFORK : CK_FORK_GETENV);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  const char *wanted = getenv("CK_RUN_CASE"); /* read by Check, which takes any name */
  if (wanted != NULL && srunner_ntests_run(runner) == 0) {
    (void)fprintf(stderr, "CK_RUN_CASE: there is no test \"%s\"\n", wanted);
    failed++;
  }
  srunner_free(runner);
  ck_rigs_end();
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* Whether `number` is in the part that an environment variable asks for; shifted: each round of
 * parts begins with the next one. */
static bool is_asked_for(const char *variable, int number, bool shifted) {
  const char *text = getenv(variable);
  int part = 0, parts = 1;
  if (text != NULL && (sscanf(text, "%d/%d", &part, &parts) != 2 || part >= parts || part < 0)) {
    (void)fprintf(stderr, "%s is \"%s\", expected such as \"1/3\"\n", variable, text);
    abort();
  }
  return (number + (shifted ? number / parts : 0)) % parts == part;
}

bool ck_part(int number) { return is_asked_for("EVENKEEL_TEST_PART", number, false); }

bool ck_on_gpu(void) { return strncmp(test_devices("cpu:1"), "cuda", 4) == 0; }

bool ck_gpu_part(int number) { return !ck_on_gpu() || ck_part(number); }

bool ck_in_parts(void) { return getenv("EVENKEEL_TEST_PART") != NULL; }

uint64_t ck_every(uint64_t usual) {
  const char *text = getenv("EVENKEEL_TEST_EVERY");
  const uint64_t every = text != NULL ? strtoull(text, NULL, 10) : usual;
  return every == 0 ? 1 : every;
}

/* The cases of a test that are in the share of EVENKEEL_TEST_SHARE. They are numbered through the
 * program. Each round of shares begins one further than the last, so that a share does not meet the
 * same two of six modes in every loop. */
static void add_cases(TCase *tcase, const TTest *test, int first, int end) {
  static int number;
  if (getenv("EVENKEEL_TEST_LIST") != NULL) printf("%s %d\n", test->name, end - first);
  for (int i = first; i < end; i++) {
    if (is_asked_for("EVENKEEL_TEST_SHARE", number++, true)) {
      _tcase_add_test(tcase, test, 0, 0, i, i + 1);
    }
  }
}

/* Constructors may run in any order. */
static struct ck_registered *registered;

void ck_register(struct ck_registered *test) {
  struct ck_registered **place = &registered;
  while (*place != NULL && (*place)->test->line < test->test->line) place = &(*place)->next;
  test->next = *place;
  *place = test;
}

Suite *ck_suite(const char *name, void (*set_up)(void), void (*tear_down)(void)) {
  Suite *suite = suite_create(name);
  for (struct ck_registered *test = registered; test != NULL; test = test->next) {
    TCase *tcase = tcase_create(test->test->name);
    tcase_add_checked_fixture(tcase, ck_keep_nothing, ck_release_all);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    suite_add_tcase(suite, tcase);
    add_cases(tcase, test->test, test->first(), test->end());
  }
  return suite;
}

ek_status ck_finish(ek_status status, ek_stream *stream) {
  return status == EK_OK ? ek_stream_synchronize(stream) : status;
}

double ck_now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

uint64_t ck_hash(uint64_t hash, const void *bytes, uint64_t count) {
  const unsigned char *byte = bytes;
  for (uint64_t i = 0; i < count; i++) hash = (hash ^ byte[i]) * UINT64_C(0x100000001b3);
  return hash;
}

/* ---- random numbers: SplitMix64 (Steele, Lea, Flood 2014) ---- */

uint64_t ck_seed(void) {
  const char *text = getenv("EVENKEEL_TEST_SEED");
  return text != NULL && *text != '\0' ? strtoull(text, NULL, 10) : UINT64_C(20240229);
}

struct ck_random ck_random_start(uint64_t stream) {
  struct ck_random random = {ck_seed() * UINT64_C(0x9E3779B97F4A7C15) + stream};
  ck_random_next(&random);
  return random;
}

uint64_t ck_random_next(struct ck_random *random) {
  uint64_t z = (random->state += UINT64_C(0x9E3779B97F4A7C15));
  z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
  return z ^ (z >> 31);
}

double ck_random_uniform(struct ck_random *random, double low, double high) {
  return low + (high - low) * ((double)(ck_random_next(random) >> 11) * 0x1p-53);
}

int64_t ck_random_integer(struct ck_random *random, int64_t low, int64_t high) {
  const uint64_t span = (uint64_t)(high - low) + 1;
  return low + (int64_t)(ck_random_next(random) % span);
}

/* ---- devices ---- */

const char *test_devices(const char *spec) {
  static char capped[128];
  const char *text = getenv("EVENKEEL_TEST_DEVICES");
  if (text == NULL || *text == '\0') return spec;
  if (strncmp(text, "cuda", 4) != 0 || strchr(text, '@') != NULL) return text;
  (void)snprintf(capped, sizeof capped, "%s@100MiB", text);
  return capped;
}

static bool deterministic;

static void set_random(void *ignored) {
  (void)ignored;
  deterministic = false;
}

void ck_deterministic(bool on) {
  static char any;
  if (on && !deterministic) ck_keep_by(&any, set_random);
  deterministic = on;
}

void ck_deterministic_on_gpu(void) { ck_deterministic(ck_on_gpu()); }

ek_group *ck_open_exactly(const char *spec, int threads) {
  const char *limit = getenv("EVENKEEL_TEST_TIME_LIMIT");
  CK_WITH(ek_group_options, options, EK_GROUP_OPTIONS_INIT, .threads_per_device = threads,
          .time_limit = limit == NULL ? 0 : strtod(limit, NULL), .deterministic = deterministic);
  CK_GOT(ek_group *, group, ek_group_open(&group, spec, &options));
  ck_assert_ptr_nonnull(group);
  return ck_keep(group);
}

ek_group *ck_open(const char *spec, int threads) { return ck_open_exactly(ck_spec(spec), threads); }

ek_group *ck_open_limited(const char *spec, double time_limit) {
  CK_WITH(ek_group_options, options, EK_GROUP_OPTIONS_INIT, .time_limit = time_limit);
  CK_OPENED(ek_group *, group, ek_group_open(&group, spec, &options));
  return group;
}

ek_device *ck_device(const char *spec) { return ek_group_device(ck_open(spec, 1), 0); }

bool ck_has_halves(void) {
  static unsigned types; /* they all have f32 */
  if (types == 0) {
    ek_group *group = ck_open("cpu:1", 1);
    types = ek_device_types(ek_group_device(group, 0));
    ck_ok(ek_group_close(group));
  }
  return (types & EK_TYPES_BF16) != 0 && (types & EK_TYPES_F16) != 0;
}

int ck_if_halves(int cases) { return ck_has_halves() ? cases : 0; }

ek_memory_usage ck_usage(const ek_device *device) {
  CK_GOT(ek_memory_usage, usage, ck_memory_stats(&usage, device));
  return usage;
}

void ck_no_memory_held(const ek_group *group) {
  for (size_t i = 0; i < ek_group_size(group); i++) {
    const ek_memory_usage usage = ck_usage(ek_group_device(group, i));
    ck_assert_msg(usage.current_bytes == 0, "%s still holds %" PRIu64 " bytes",
                  ek_device_name(ek_group_device(group, i)), usage.current_bytes);
  }
}

uint64_t ck_bytes_held(const ek_group *group) {
  uint64_t bytes = 0;
  for (size_t k = 0; k < ek_group_size(group); k++) {
    bytes += ck_usage(ek_group_device(group, k)).current_bytes;
  }
  return bytes;
}

/* ---- tensors ---- */

/* Numbers of 16 bits by their definition, in plain arithmetic, apart from the library's. */
struct format {
  int digits, least, most; /* of the significand; exponents of numbers 2^e <= x < 2^(e+1) */
};

CK_UNWATCHED static struct format format_of(ek_type type) {
  return type == EK_BF16 ? (struct format){8, -126, 127} : (struct format){11, -14, 15};
}

/* 2^n, and the n of 2^n <= |x| < 2^(n+1), of normal numbers of f64; of smaller ones it is less than
 * any here. The functions of math.h took half the time of tests of 16 bits. */
CK_UNWATCHED static double power(int n) {
  const uint64_t bits = (uint64_t)(n + 1023) << 52;
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

CK_UNWATCHED static int exponent_of(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return (int)(bits >> 52 & 0x7FF) - 1023;
}

/* Beside 1.5 x 2^52 units a number of f64 has no digit below a unit: the addition rounds, to
 * even. */
CK_UNWATCHED double ck_round_to(ek_type type, double value) {
  if (type == EK_F32) return (double)(float)value;
  if (type != EK_BF16 && type != EK_F16) return value;
  if (value == 0 || !isfinite(value)) return value;
  const struct format format = format_of(type);
  const int own = exponent_of(value), exponent = own < format.least ? format.least : own;
  if (exponent > format.most) return copysign(HUGE_VAL, value);
  const volatile double large = 1.5 * power(52 + exponent - format.digits + 1);
  const double rounded = (value + large) - large;
  return copysign(exponent_of(rounded) > format.most ? HUGE_VAL : rounded, value);
}

/* Of a number that the type has. */
CK_UNWATCHED static uint16_t encode(ek_type type, double value) {
  const struct format format = format_of(type);
  const int fraction = format.digits - 1;
  const unsigned sign = signbit(value) ? 0x8000u : 0u;
  const unsigned top = (unsigned)(format.most - format.least + 2) << fraction;
  if (isnan(value)) return (uint16_t)(sign | top | 1u << (fraction - 1));
  if (isinf(value)) return (uint16_t)(sign | top);
  if (value == 0) return (uint16_t)sign;
  const int own = exponent_of(value), exponent = own < format.least ? format.least : own;
  /* The first digit of a normal number, which is not kept, adds 1 to the exponent. */
  const unsigned digits = (unsigned)(fabs(value) * power(fraction - exponent));
  return (uint16_t)(sign | (((unsigned)(exponent - format.least) << fraction) + digits));
}

CK_UNWATCHED double ck_half(ek_type type, uint16_t bits) {
  const struct format format = format_of(type);
  const int fraction = format.digits - 1, above = bits >> fraction & ((1 << (15 - fraction)) - 1);
  const double digits = bits & ((1 << fraction) - 1), sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (above == format.most - format.least + 2) return digits == 0 ? sign * HUGE_VAL : NAN;
  const double whole = above == 0 ? digits : digits + (1 << fraction);
  return sign * whole * power((above == 0 ? 1 : above) - 1 + format.least - fraction);
}

/* The elements as the type has them in memory; the caller frees them. */
CK_UNWATCHED static void *pack(const ek_tensor *tensor, const double *values) {
  const int64_t count = ek_tensor_count(tensor);
  const size_t bytes = ek_tensor_bytes(tensor);
  const ek_type type = tensor->type;
  const bool half = ek_type_size(type) == 2;
  void *data = malloc(bytes == 0 ? 1 : bytes);
  ck_assert_ptr_nonnull(data);
  memset(data, 0xFF, bytes);
  for (int64_t i = 0; values != NULL && i < count; i++) {
    if (type == EK_F32) ((float *)data)[i] = (float)values[i];
    if (type == EK_F64) ((double *)data)[i] = values[i];
    if (type == EK_I32) ((int32_t *)data)[i] = (int32_t)values[i];
    if (half) ((uint16_t *)data)[i] = encode(type, ck_round_to(type, values[i]));
  }
  return data;
}

void ck_set(ek_tensor *tensor, const double *values) {
  void *data = pack(tensor, values);
  CK_GOT(ek_tensor, host, ek_tensor_host(&host, data, tensor->type, tensor->rank, tensor->shape));
  ck_ok(ek_tensor_copy(tensor, &host));
  free(data);
}

ek_tensor ck_upload(ek_device *device, ek_type type, const double *values, int rank,
                    const int64_t *shape) {
  ek_tensor tensor = {0};
  ck_ok(ek_tensor_create(&tensor, device, EK_MEMORY_WORKSPACE, type, rank, shape));
  ck_set(&tensor, values);
  return ck_keep(tensor);
}

CK_UNWATCHED void ck_get(double *values, const ek_tensor *tensor) {
  void *data = pack(tensor, NULL);
  CK_GOT(ek_tensor, host, ek_tensor_host(&host, data, tensor->type, tensor->rank, tensor->shape));
  ck_ok(ek_tensor_copy(&host, tensor));
  const int64_t count = ek_tensor_count(tensor);
  const ek_type type = tensor->type;
  const bool half = ek_type_size(type) == 2;
  for (int64_t i = 0; i < count; i++) {
    if (type == EK_F32) values[i] = (double)((const float *)data)[i];
    if (type == EK_F64) values[i] = ((const double *)data)[i];
    if (type == EK_I32) values[i] = (double)((const int32_t *)data)[i];
    if (half) values[i] = ck_half(type, ((const uint16_t *)data)[i]);
  }
  free(data);
}

double *ck_got(const ek_tensor *tensor) {
  double *values = ck_array((size_t)ek_tensor_count(tensor), sizeof *values);
  ck_get(values, tensor);
  return values;
}

void ck_put_integer(void *data, ek_type type, int64_t i, int64_t x) {
  switch (type) {
  case EK_U8: ((uint8_t *)data)[i] = (uint8_t)x; break;
  case EK_U16: ((uint16_t *)data)[i] = (uint16_t)x; break;
  case EK_U32: ((uint32_t *)data)[i] = (uint32_t)x; break;
  case EK_I32: ((int32_t *)data)[i] = (int32_t)x; break;
  default: ((int64_t *)data)[i] = x; break;
  }
}

/* ---- modules, and failing allocations ---- */

void *ck_module_new(size_t size, const ek_module_ops *ops, size_t inputs, size_t outputs) {
  ek_module *module = calloc(1, size);
  ck_assert_ptr_nonnull(module);
  ck_ok(ek_module_init(module, ops, inputs, outputs));
  return module;
}

/* A call that takes more allocations than these never ends. */
enum { MOST_ALLOCATIONS = 100000 };

static bool has_failed(const uint64_t *n, ek_status status, const char *where, const char *call) {
  if (status == EK_OK) return false;
  ck_assert_msg(status == EK_ERR_OUT_OF_MEMORY && ek_error_message()[0] != '\0',
                "%s, allocation %" PRIu64 " of %s: %s: %s", call, *n, where, ek_status_name(status),
                ek_error_message());
  ck_assert_msg(*n < MOST_ALLOCATIONS, "%s never succeeds", call);
  return true;
}

void ck_fail_host(uint64_t *n) {
  ek_error_clear();
  ek_host_memory_fail_at(++*n);
}

bool ck_host_failed(const uint64_t *n, ek_status status, const char *call) {
  ek_host_memory_fail_at(0);
  return has_failed(n, status, "the host", call);
}

void ck_fail_device(uint64_t *n, ek_device *device) {
  ek_error_clear();
  ck_ok(ek_memory_fail_at(device, ++*n));
}

bool ck_device_failed(const uint64_t *n, ek_device *device, ek_status status, const char *call) {
  ck_ok(ek_memory_fail_at(device, 0));
  return has_failed(n, status, ek_device_name(device), call);
}

ek_parameter_info ck_parameter(const ek_replica *replica, size_t index) {
  CK_GOT(ek_parameter_info, info, ek_replica_parameter(&info, replica, index));
  return info;
}

/* ---- comparisons ---- */

static const long double root_two_over_pi = 0.79788456080286535587989211986876373695L;

static long double gelu_tanh(long double x) {
  return tanhl(root_two_over_pi * (x + 0.044715L * x * x * x));
}

long double ck_gelu(long double x) { return x / 2 * (1 + gelu_tanh(x)); }

long double ck_gelu_inner_slope(long double x) {
  return root_two_over_pi * (1 + 3 * 0.044715L * x * x);
}

long double ck_gelu_slope(long double x) {
  const long double t = gelu_tanh(x);
  return (1 + t) / 2 + x / 2 * (1 - t * t) * ck_gelu_inner_slope(x);
}

CK_UNWATCHED double ck_rel_l2(const double *got, const double *want, int64_t count) {
  long double difference = 0, size = 0;
  for (int64_t i = 0; i < count; i++) {
    difference += ((long double)got[i] - want[i]) * ((long double)got[i] - want[i]);
    size += (long double)want[i] * want[i];
  }
  if (difference == 0) return 0;
  return size == 0 ? HUGE_VAL : (double)sqrtl(difference / size);
}

CK_UNWATCHED void ck_within(const char *what, const double *got, const double *want,
                            const double *bound, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    const double allowed = bound == NULL ? 0.0 : bound[i];
    const bool fits = isnan(want[i])   ? isnan(got[i])
                      : isinf(want[i]) ? got[i] == want[i]
                                       : fabs(got[i] - want[i]) <= allowed;
    ck_assert_msg(fits, "%s[%" PRId64 "] of %" PRId64 " is %.17g, not %.17g +- %.3g", what, i,
                  count, got[i], want[i], allowed);
  }
}

double ck_rounding(const struct ck_rig *rig, double size) {
  if (ek_type_size(rig->type) != 2) return 0;
  const struct format format = format_of(rig->type);
  return ldexp(fabs(size), -format.digits) + ldexp(1, format.least - format.digits);
}

CK_UNWATCHED void ck_fits(struct ck_rig *rig, const char *what, const ek_tensor *tensor,
                          const double *want, const double *bound, int64_t count) {
  const double *got = ck_read(rig, tensor);
  if (ek_type_size(tensor->type) != 2) {
    ck_within(what, got, want, bound, count);
    return;
  }
  for (int64_t i = 0; i < count; i++) {
    const double allowed = bound == NULL ? 0.0 : bound[i];
    const double low = ck_round_to(tensor->type, want[i] - allowed);
    const double high = ck_round_to(tensor->type, want[i] + allowed);
    const bool fits = isnan(want[i])   ? isnan(got[i])
                      : isinf(want[i]) ? got[i] == want[i]
                                       : low <= got[i] && got[i] <= high;
    ck_assert_msg(fits, "%s[%" PRId64 "] of %" PRId64 " is %.17g, not %.17g +- %.3g in %s", what, i,
                  count, got[i], want[i], allowed, ek_type_name(tensor->type));
  }
}

CK_UNWATCHED void ck_same_bits(const char *what, const double *a, const double *b, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    ck_assert_msg(memcmp(&a[i], &b[i], sizeof a[i]) == 0,
                  "%s[%" PRId64 "] of %" PRId64 ": %a and %a", what, i, count, a[i], b[i]);
  }
}

double ck_arrays_off(const double *got, const double *want) {
  ck_assert_int_eq(ck_count(got), ck_count(want));
  return ck_rel_l2(got, want, ck_count(want));
}

void ck_arrays_same(const char *what, const double *a, const double *b) {
  ck_assert_int_eq(ck_count(a), ck_count(b));
  ck_same_bits(what, a, b, ck_count(b));
}
