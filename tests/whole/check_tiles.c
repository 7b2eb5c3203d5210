/*
 * check_tiles.c - products and attention of bf16 on the matrix unit, and on tiles in plain C, which
 * are to give the same bits (src/backend/cpu/tiles).
 *
 * What makes products is decided once in a process, so a case is a process of its own, begun before
 * this one has used the library: it computes everything below and leaves the bits of it. The tests
 * that do not begin one run on plain tiles. Numbers are compared with a reference by check_products
 * and check_attend, which run on plain tiles as well.
 */
#include <evenkeel/evenkeel.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ek_check.h"

enum { PATIENCE = 300, MOST_BYTES = 4 << 20 };

struct outcome { /* of a process */
  ek_status status;
  int lines; /* of the log */
  char line[256];
  size_t bytes;
  unsigned char bits[MOST_BYTES];
};

static void take_line(void *context, ek_log_level level, const char *line) {
  struct outcome *outcome = context;
  if (level < EK_LOG_WARNING) return;
  outcome->lines++;
  (void)snprintf(outcome->line, sizeof outcome->line, "%s", line);
}

/* ---- numbers ---- */

enum numbers {
  USUAL,
  SPECIAL
}; /* special: subnormal ones, the smallest and the largest, infinity */

static uint32_t next(uint32_t *state) {
  *state = *state * 1664525u + 1013904223u;
  return *state >> 8;
}

/* The bits of a number of bf16: below 2 in size, or anything but NaN. */
static uint16_t draw(uint32_t *state, enum numbers numbers) {
  const uint32_t random = next(state);
  const uint16_t usual = (uint16_t)((random & 0x807Fu) | (112u + random / 256 % 16) << 7);
  if (numbers == USUAL || next(state) % 8 != 0) return usual;
  switch (random % 5) {
  case 0: return (uint16_t)(usual & 0x807Fu);                           /* subnormal, or 0 */
  case 1: return (uint16_t)((usual & 0x807Fu) | (1 + random % 4) << 7); /* the smallest */
  case 2: return (uint16_t)((usual & 0x807Fu) | (60u + random % 8) << 7);
  case 3: return (uint16_t)((usual & 0x807Fu) | 190u << 7);
  }
  return random % 64 == 4 ? (uint16_t)((usual & 0x8000u) | 0x7F80u) : usual;
}

enum { MOST_TENSORS = 8 };

struct bench { /* what one computation has */
  ek_device *device;
  ek_stream *stream;
  struct outcome *outcome;
  uint32_t state;
  enum numbers numbers;
  ek_tensor tensor[MOST_TENSORS];
  int count;
};

static ek_status make(ek_tensor **result, struct bench *bench, ek_type type, int rank,
                      const int64_t *shape) {
  ek_tensor *tensor = &bench->tensor[bench->count];
  EK_TRY(ek_tensor_create(tensor, bench->device, EK_MEMORY_INPUTS, type, rank, shape));
  bench->count++;
  const size_t words = ek_tensor_bytes(tensor) / 2;
  for (size_t i = 0; i < words; i++) { /* a CPU's memory is the host's */
    ((uint16_t *)tensor->data)[i] =
        type == EK_BF16 ? draw(&bench->state, bench->numbers) : (uint16_t)0;
  }
  *result = tensor;
  return EK_OK;
}

/* Which NaN it is, is nobody's promise. */
static void keep(struct bench *bench, const ek_tensor *tensor) {
  struct outcome *outcome = bench->outcome;
  const size_t bytes = ek_tensor_bytes(tensor), width = ek_type_size(tensor->type);
  if (outcome->bytes + bytes > MOST_BYTES) abort();
  unsigned char *to = outcome->bits + outcome->bytes;
  memcpy(to, tensor->data, bytes);
  for (size_t i = 0; i < bytes; i += width) {
    uint32_t bits = 0;
    memcpy((unsigned char *)&bits + (4 - width), to + i, width);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) memset(to + i, 0xFF, width);
  }
  outcome->bytes += bytes;
}

static void clear(struct bench *bench) {
  for (int i = 0; i < bench->count; i++) ek_tensor_free(&bench->tensor[i]);
  bench->count = 0;
}

/* ---- what is computed ---- */

static ek_status products(struct bench *bench, const int64_t *size) {
  const int64_t m = size[0], n = size[1], k = size[2];
  for (int turned = 0; turned < 4; turned++) {
    const bool ta = (turned & 1) != 0, tb = (turned & 2) != 0;
    ek_tensor *a = NULL, *b = NULL, *c = NULL, *sums = NULL;
    EK_TRY(make(&a, bench, EK_BF16, CK_SHAPE(ta ? k : m, ta ? m : k)));
    EK_TRY(make(&b, bench, EK_BF16, CK_SHAPE(tb ? n : k, tb ? k : n)));
    EK_TRY(make(&c, bench, EK_BF16, CK_SHAPE(m, n)));
    EK_TRY(ek_op_matmul(bench->stream, c, a, ta, b, tb, turned == 3 ? 1.0 : 0.0));
    keep(bench, c);
    if (ta && !tb) {
      EK_TRY(make(&sums, bench, EK_F32, CK_SHAPE(m, n)));
      EK_TRY(ek_op_linear_gradients(bench->stream, sums, 0, NULL, 0, a, b));
      EK_TRY(ek_op_linear_gradients(bench->stream, sums, 1, NULL, 0, a, b));
      keep(bench, sums);
    }
    clear(bench);
  }
  return EK_OK;
}

static ek_status attention(struct bench *bench, const int64_t *size) {
  const int64_t samples = size[0], tokens = size[1], heads = size[2], width = size[3];
  const int64_t channels = heads * width;
  ek_tensor *qkv = NULL, *out = NULL, *lse = NULL, *dout = NULL, *dqkv = NULL;
  EK_TRY(make(&qkv, bench, EK_BF16, CK_SHAPE(samples, tokens, 3 * channels)));
  EK_TRY(make(&out, bench, EK_BF16, CK_SHAPE(samples, tokens, channels)));
  EK_TRY(make(&lse, bench, EK_F32, CK_SHAPE(samples, heads, tokens)));
  EK_TRY(make(&dout, bench, EK_BF16, CK_SHAPE(samples, tokens, channels)));
  EK_TRY(make(&dqkv, bench, EK_BF16, CK_SHAPE(samples, tokens, 3 * channels)));
  EK_TRY(ek_op_attention_forward(bench->stream, out, lse, qkv, (int)heads));
  EK_TRY(ek_op_attention_backward(bench->stream, dqkv, dout, qkv, out, lse, (int)heads));
  keep(bench, out);
  keep(bench, lse);
  keep(bench, dqkv);
  clear(bench);
  return EK_OK;
}

static const int64_t shapes[][3] = {{1, 1, 1}, {5, 47, 70}, {37, 33, 530}, {100, 290, 64}};
static const int64_t attentions[][4] = {{2, 70, 2, 32}, {1, 150, 1, 64}, {1, 40, 1, 100}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };
enum { ATTENTIONS = sizeof attentions / sizeof attentions[0] };

static ek_status compute_all(struct bench *bench) {
  for (int i = 0; i < 2 * SHAPES; i++) {
    bench->numbers = i < SHAPES ? USUAL : SPECIAL;
    EK_TRY(products(bench, shapes[i % SHAPES]));
  }
  bench->numbers = USUAL;
  for (int i = 0; i < ATTENTIONS; i++) EK_TRY(attention(bench, attentions[i]));
  return EK_OK;
}

/* What a program has configured for itself, where it has. */
static bool has_configuration;

#ifdef __x86_64__
struct configuration {
  _Alignas(64) uint8_t palette_and_rest[16];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static const struct configuration wanted = {{1}, {32, 64, 16}, {3, 16, 5}};

static void configure(void) { __asm__ volatile("ldtilecfg %0" : : "m"(wanted)); }

static bool is_configured(void) {
  struct configuration now;
  __asm__ volatile("sttilecfg %0" : "=m"(now));
  __asm__ volatile("tilerelease");
  return memcmp(&now, &wanted, sizeof now) == 0;
}
#else
static void configure(void) {}
static bool is_configured(void) { return true; }
#endif

/* Threads are there before the unit is asked for. */
static void compute(struct outcome *outcome) {
  ek_group *group = NULL;
  ek_group_options options = EK_GROUP_OPTIONS_INIT;
  options.threads_per_device = 3;
  ek_log_set(take_line, outcome, EK_LOG_WARNING);
  outcome->status = ek_group_open(&group, "cpu:1", &options);
  if (outcome->status != EK_OK) return;
  ek_device *device = ek_group_device(group, 0);
  struct bench bench = {.device = device,
                        .stream = ek_device_stream(device, EK_STREAM_COMPUTE),
                        .outcome = outcome,
                        .state = 1};
  if (has_configuration) { /* with the permission that a first product has asked for */
    outcome->status = products(&bench, shapes[0]);
    configure();
  }
  if (outcome->status == EK_OK) outcome->status = compute_all(&bench);
  if (has_configuration && !is_configured()) outcome->status = EK_ERR_INTERNAL;
  clear(&bench);
  if (outcome->status == EK_OK) outcome->status = ek_group_free(group);
}

/* ---- in a process of its own ---- */

static void small_stack_for_signals(void) {
  static char stack[4096]; /* enough for the registers of AVX-512 */
  const stack_t small = {.ss_sp = stack, .ss_size = sizeof stack};
  if (sigaltstack(&small, NULL) != 0) _exit(3);
}

/* Freed by release(). */
static struct outcome *in_process(const char *products_by, const char *isa, void (*before)(void)) {
  struct outcome *outcome =
      mmap(NULL, sizeof *outcome, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert(outcome != MAP_FAILED);
  (void)fflush(NULL);
  int state = -1;
  const pid_t pid = fork();
  if (pid == 0) {
    (void)alarm(PATIENCE);
    (void)setenv("EVENKEEL_PRODUCTS", products_by, 1);
    (void)setenv("EVENKEEL_ISA", isa, 1);
    if (before != NULL) before();
    compute(outcome);
    _exit(0);
  }
  ck_assert(pid > 0 && waitpid(pid, &state, 0) == pid);
  ck_assert_msg(WIFEXITED(state) && WEXITSTATUS(state) == 0, "%s %s: %x", products_by, isa,
                (unsigned)state);
  ck_assert_int_eq(outcome->status, EK_OK);
  ck_assert_msg(outcome->lines == 0, "%s %s: %s", products_by, isa, outcome->line);
  ck_assert(outcome->bytes > 0);
  return outcome;
}

static bool are_same(const struct outcome *a, const struct outcome *b) {
  return a->bytes == b->bytes && memcmp(a->bits, b->bits, a->bytes) == 0;
}

static void release(struct outcome *outcome) { (void)munmap(outcome, sizeof *outcome); }

START_TEST(the_unit_has_the_bits_of_plain_tiles) {
  if (!ck_has_amx()) return;
  struct outcome *plain = in_process("tiles", "", NULL), *unit = in_process("own", "", NULL);
  size_t first = 0;
  while (first < plain->bytes && plain->bits[first] == unit->bits[first]) first++;
  ck_assert_msg(are_same(plain, unit), "byte %d of %d", (int)first, (int)plain->bytes);
  struct outcome *without = in_process("own", "avx512", NULL);
  ck_assert(!are_same(without, unit)); /* so that something was shown */
  release(plain), release(unit), release(without);
}
END_TEST

/* The kernel does not give tiles to a process whose signals could not keep them. */
START_TEST(without_permission_there_is_no_unit) {
  if (!ck_has_amx()) return;
  struct outcome *without = in_process("own", "avx512", NULL);
  struct outcome *refused = in_process("own", "", small_stack_for_signals);
  ck_assert(are_same(without, refused));
  release(without), release(refused);
}
END_TEST

static void use_tiles_myself(void) { has_configuration = true; }

START_TEST(a_configuration_of_tiles_is_put_back) {
  if (!ck_has_amx()) return;
  release(in_process("own", "", use_tiles_myself));
}
END_TEST

/* In a child that begins when the parent has used tiles, with threads and all. */
static void use_the_library(void) {
  static struct outcome mine;
  compute(&mine);
  if (mine.status != EK_OK) _exit(4);
  const pid_t pid = fork();
  int state = -1;
  if (pid == 0) return;
  if (pid < 0 || waitpid(pid, &state, 0) != pid) _exit(5);
  _exit(WIFEXITED(state) ? WEXITSTATUS(state) : 6);
}

START_TEST(a_child_of_fork_has_the_same_bits) {
  const char *by = ck_has_amx() ? "own" : "tiles";
  struct outcome *parent = in_process(by, "", NULL);
  struct outcome *child = in_process(by, "", use_the_library);
  ck_assert(are_same(parent, child));
  release(parent), release(child);
}
END_TEST

/* ---- on plain tiles: places and threads ---- */

static double *part(struct ck_rig *rig, const double *x, int64_t columns, int64_t i0, int64_t rows,
                    int64_t j0, int64_t count) {
  double *result = ck_zeros(rig, rows * count);
  for (int64_t i = 0; i < rows; i++) {
    memcpy(result + i * count, x + (i0 + i) * columns + j0, (size_t)count * sizeof *x);
  }
  return result;
}

/* Longer than a block of the sum; by several threads, and a part of it by one. */
START_TEST(elements_of_products_know_no_place) {
  const int64_t m = 130, n = 300, k = 600, i0 = 37, j0 = 19, rows = 40, columns = 50;
  struct ck_rig *many = ck_rig_open("cpu:1", EK_BF16, 3), *one = ck_rig_open("cpu:1", EK_BF16, 1);
  const double *a = ck_values(many, m * k, -1, 1), *b = ck_values(many, k * n, -1, 1);
  ek_tensor *c = ck_poisoned(many, CK_SHAPE(m, n));
  ek_tensor *d = ck_poisoned(one, CK_SHAPE(rows, columns));
  ck_ok(ek_op_matmul(many->stream, c, ck_tensor(many, a, CK_SHAPE(m, k)), false,
                     ck_tensor(many, b, CK_SHAPE(k, n)), false, 0));
  ek_tensor *some_a = ck_tensor(one, part(one, a, k, i0, rows, 0, k), CK_SHAPE(rows, k));
  ek_tensor *some_b = ck_tensor(one, part(one, b, n, 0, k, j0, columns), CK_SHAPE(k, columns));
  ck_ok(ek_op_matmul(one->stream, d, some_a, false, some_b, false, 0));
  ck_same_bits("a part", ck_read(one, d), part(many, ck_read(many, c), n, i0, rows, j0, columns),
               rows * columns);
  ck_rig_close(one);
  ck_rig_close(many);
}
END_TEST

/* Head h of sample s of x, of `parts` times heads. */
static double *head_of(struct ck_rig *rig, const double *x, const int64_t *size, int64_t s,
                       int64_t h, int64_t parts) {
  const int64_t tokens = size[1], heads = size[2], width = size[3];
  double *result = ck_zeros(rig, tokens * parts * width);
  for (int64_t t = 0; t < tokens; t++) {
    for (int64_t p = 0; p < parts; p++) {
      memcpy(result + (t * parts + p) * width,
             x + (((s * tokens + t) * parts + p) * heads + h) * width, (size_t)width * sizeof *x);
    }
  }
  return result;
}

struct attended {
  const double *out, *dqkv;
};

static struct attended attend(struct ck_rig *rig, const double *qkv, const double *dout,
                              const int64_t *size) {
  const int64_t b = size[0], t = size[1], c = size[2] * size[3];
  ek_tensor *in = ck_tensor(rig, qkv, CK_SHAPE(b, t, 3 * c));
  ek_tensor *out = ck_poisoned(rig, CK_SHAPE(b, t, c));
  ek_tensor *lse = ck_poisoned_sums(rig, CK_SHAPE(b, size[2], t));
  ek_tensor *dqkv = ck_poisoned(rig, CK_SHAPE(b, t, 3 * c));
  ck_ok(ek_op_attention_forward(rig->stream, out, lse, in, (int)size[2]));
  ek_tensor *slope = ck_tensor(rig, dout, CK_SHAPE(b, t, c));
  ck_ok(ek_op_attention_backward(rig->stream, dqkv, slope, in, out, lse, (int)size[2]));
  return (struct attended){ck_read(rig, out), ck_read(rig, dqkv)};
}

START_TEST(heads_know_no_place) {
  static const int64_t size[] = {2, 140, 2, 48}, alone[] = {1, 140, 1, 48};
  const int64_t n = 2 * 140 * 2 * 48, own = 140 * 48;
  struct ck_rig *many = ck_rig_open("cpu:1", EK_BF16, 3);
  const double *qkv = ck_values(many, 3 * n, -1, 1), *dout = ck_values(many, n, -1, 1);
  const struct attended all = attend(many, qkv, dout, size);
  for (int64_t i = 0; i < 4; i++) {
    struct ck_rig *one = ck_rig_open("cpu:1", EK_BF16, 1);
    const struct attended it = attend(one, head_of(one, qkv, size, i / 2, i % 2, 3),
                                      head_of(one, dout, size, i / 2, i % 2, 1), alone);
    ck_same_bits("out", it.out, head_of(one, all.out, size, i / 2, i % 2, 1), own);
    ck_same_bits("dqkv", it.dqkv, head_of(one, all.dqkv, size, i / 2, i % 2, 3), 3 * own);
    ck_rig_close(one);
  }
  ck_rig_close(many);
}
END_TEST

/* ---- on plain tiles: special numbers ---- */

/* The sum of k products as f32: x w over rows of dw = x^T w. */
static double sum_of(const double *x, const double *w, int64_t k) {
  struct ck_rig *rig = ck_rig_open("cpu:1", EK_BF16, 1);
  ek_tensor *sum = ck_poisoned_sums(rig, CK_SHAPE(1, 1));
  ck_ok(ek_op_linear_gradients(rig->stream, sum, 0, NULL, 0, ck_tensor(rig, x, CK_SHAPE(k, 1)),
                               ck_tensor(rig, w, CK_SHAPE(k, 1))));
  const double result = ck_read(rig, sum)[0];
  ck_rig_close(rig);
  return result;
}

/* As TDPBF16PS: even and odd depths by themselves, ties to even, nothing subnormal. */
START_TEST(sums_are_those_of_the_unit) {
  const double one[4] = {1, 1, 1, 1};
  const double small = 0x1p-24, tiny = 0x1p-130, large = 0x1p100, inf = HUGE_VAL;
  ck_assert_double_eq(sum_of((double[]){1, 0, small, 0}, one, 4), 1);
  ck_assert_double_eq(sum_of((double[]){1, small, 0, small}, one, 4), 1 + 0x1p-23);
  ck_assert_double_eq(sum_of((double[]){1, small, small, 0}, one, 4), 1);
  ck_assert_double_eq(sum_of((double[]){tiny, 0}, (double[]){large, 0}, 2), 0);
  ck_assert_double_eq(sum_of((double[]){0x1p-126, 0}, (double[]){large, 0}, 2), 0x1p-26);
  ck_assert_double_eq(sum_of((double[]){0x1p-70, 1}, (double[]){0x1p-60, 2}, 2), 2);
  ck_assert_double_eq(sum_of((double[]){0x1p-70, 0}, (double[]){0x1p-60, 0}, 2), 0);
  ck_assert_double_eq(sum_of((double[]){0, 0x1p-70}, (double[]){0, 0x1p-60}, 2), 0);
  const double twice[2][4] = {{0, 0x1p-64, 0, 0x1p-64}, {0, 0x1p-63, 0, 0x1p-63}};
  ck_assert_double_eq(sum_of(twice[0], twice[1], 4), 0);
  ck_assert_double_eq(sum_of((double[]){0x1p-63, 0}, (double[]){0x1p-63, 0}, 2), 0x1p-126);
  ck_assert_double_eq(sum_of((double[]){0x1.FCp-127, 0}, one, 2), 0);
  ck_assert(isnan(sum_of((double[]){inf, 0}, (double[]){0, 0}, 2)));
  ck_assert(isnan(sum_of((double[]){inf, -inf}, one, 2)));
  ck_assert(isnan(sum_of((double[]){NAN, 1}, one, 2)));
  ck_assert(sum_of((double[]){inf, 1}, one, 2) == inf);
  ck_assert(sum_of((double[]){0x1p127, 0, 0x1p127, 0}, one, 4) == inf);
  /* 2^128 - 2^127 in one step has no end in between */
  ck_assert_double_eq(sum_of((double[]){-0x1p127, 0, 0x1p64, 0}, (double[]){1, 0, 0x1p64, 0}, 4),
                      0x1p127);
}
END_TEST

/* A NaN, or infinity, in one row of a leaves the others alone, where tiles are filled up too; whole
 * blocks of the sum, and not. */
START_TEST(rows_keep_their_nan) {
  static const int64_t depths[] = {33, 512, 1024};
  const int64_t m = 18, n = 35, k = depths[_i];
  struct ck_rig *rig = ck_rig_open("cpu:1", EK_BF16, 1);
  double *a = ck_integers(rig, m * k, -4, 4), *b = ck_integers(rig, k * n, 1, 4);
  double *want = ck_zeros(rig, m * n);
  for (int64_t i = 0; i < m * n; i++) {
    for (int64_t p = 0; p < k; p++) want[i] += a[i / n * k + p] * b[p * n + i % n];
    want[i] = ck_round(rig, want[i]);
  }
  a[3 * k + 32] = NAN;
  a[17 * k] = HUGE_VAL;
  ek_tensor *c = ck_poisoned(rig, CK_SHAPE(m, n));
  ck_ok(ek_op_matmul(rig->stream, c, ck_tensor(rig, a, CK_SHAPE(m, k)), false,
                     ck_tensor(rig, b, CK_SHAPE(k, n)), false, 0));
  const double *got = ck_read(rig, c);
  for (int64_t i = 0; i < m * n; i++) {
    if (i / n == 3) {
      ck_assert(isnan(got[i]));
    } else {
      ck_assert_msg(i / n == 17 ? got[i] == HUGE_VAL : got[i] == want[i], "%d", (int)i);
    }
  }
  ck_rig_close(rig);
}
END_TEST

/* Cases that begin processes come first: they inherit a library that has decided nothing. */
static Suite *make_suite(void) {
  Suite *suite = suite_create("tiles");
  TCase *processes = ck_case(suite, "processes");
  tcase_add_test(processes, the_unit_has_the_bits_of_plain_tiles);
  tcase_add_test(processes, without_permission_there_is_no_unit);
  tcase_add_test(processes, a_configuration_of_tiles_is_put_back);
  tcase_add_test(processes, a_child_of_fork_has_the_same_bits);
  TCase *plain = ck_case(suite, "plain tiles");
  tcase_add_test(plain, elements_of_products_know_no_place);
  tcase_add_test(plain, heads_know_no_place);
  tcase_add_test(plain, sums_are_those_of_the_unit);
  tcase_add_loop_test(plain, rows_keep_their_nan, 0, 3);
  (void)setenv("EVENKEEL_PRODUCTS", "tiles", 1);
  (void)unsetenv("EVENKEEL_TEST_DEVICES"); /* tiles are the processor's, whatever is under test */
  return suite;
}

CK_MAIN(make_suite)
