/*
 * cpu_matmul_choice.c - chooses the code for products of bf16: oneDNN's matmul primitive, or the
 * library's own product in f32. Attention's products are small and never use the primitive.
 *
 * oneDNN is used if the processor has instructions for bf16 and oneDNN has passed a test. The test
 * runs before the first product of bf16 in a process: products of small whole numbers, whose
 * results are exact, in every form that the library uses (either operand transposed or not; a
 * result of values, alone, with a bias, or added to c; a result of sums, alone or added), in shapes
 * with odd remainders and long sums, rows with gaps after them, a single row. All of c, gaps
 * included, must have the bits of our own product in f32. If one differs, or oneDNN fails to make
 * it, oneDNN is not used for bf16 for the life of the process, and the log says so. A failed
 * allocation decides nothing: the product fails with it, and the next one tests again.
 *
 * The test is not run when the first device is opened: a program that trains in f32 would wait for
 * about 80 products to be compiled, and keep their code.
 *
 * The environment can choose otherwise, for tests and comparisons: EVENKEEL_PRODUCTS (device.h). In
 * f32 the primitive is dnnl_sgemm() with more calls around it (docs/results has the figures);
 * "matmul" takes it nevertheless, so that it is tested on any processor. EVENKEEL_ISA below avx512
 * leaves no instructions for bf16 (cpu_dispatch.c).
 */
#include "backend/cpu/cpu_primitive.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/half.h"
#include "core/log_internal.h"
#include "core/process.h"

/* ---- what the environment says ---- */

static pthread_once_t looked = PTHREAD_ONCE_INIT;
static enum { AUTOMATIC, OWN, FORCED_BF16, FORCED_F32, UNKNOWN } wish;
static char unknown[32]; /* what was asked for; its beginning, where it is long */

static void look(void) {
  const char *products = getenv("EVENKEEL_PRODUCTS");
  if (products == NULL || *products == '\0') return;
  if (strcmp(products, "own") == 0) {
    wish = OWN;
  } else if (strcmp(products, "matmul-bf16") == 0) {
    wish = FORCED_BF16;
  } else if (strcmp(products, "matmul") == 0) {
    wish = FORCED_F32;
  } else {
    wish = UNKNOWN;
    (void)snprintf(unknown, sizeof unknown, "%s", products);
  }
}

ek_status ek__cpu_products_check_wish(void) {
  pthread_once(&looked, look);
  EK__FAIL_IF(wish == UNKNOWN, EK_ERR_INVALID_ARGUMENT,
              "EVENKEEL_PRODUCTS: unknown value \"%s\"; expected own, matmul, matmul-bf16",
              unknown);
  return EK_OK;
}

static atomic_bool given_up;

bool ek__cpu_products_are_own(void) {
  pthread_once(&looked, look);
  return wish == OWN || atomic_load_explicit(&given_up, memory_order_relaxed);
}

void ek__cpu_products_give_up_onednn(void) { atomic_store(&given_up, true); }

/* ---- the proof ---- */

static const char otherwise[] = "using the library's own routine for bf16";

enum { MOST_ROWS = 19, MOST_COLUMNS = 83, DEEPEST = 1056, MOST_GAP = 5 };
enum { A_ITEMS = (MOST_ROWS + MOST_GAP) * DEEPEST, B_ITEMS = (MOST_COLUMNS + MOST_GAP) * DEEPEST };

struct trial {
  int64_t m, n, k, gap; /* elements after each row */
};

/* Each is made by other code of oneDNN 2.6 where there is AMX: rows with gaps by its gemm, dense
 * ones on tiles, with rests and without, a single row without tiles. */
static const struct trial trials[] = {{MOST_ROWS, MOST_COLUMNS, 70, MOST_GAP},
                                      {MOST_ROWS, MOST_COLUMNS, 71, 0},
                                      {16, 48, DEEPEST, 0},
                                      {1, 80, 96, 0}};
enum { TRIALS = sizeof trials / sizeof trials[0] };

static const struct result {
  bool is_sum, bias;
  double beta;
} results[] = {{.beta = 0}, {.bias = true}, {.beta = 2}, {.is_sum = true}, {true, false, 1}};
enum { RESULTS = sizeof results / sizeof results[0] };

union numbers { /* all of c, by its type */
  struct ek__bf16 value[MOST_ROWS * (MOST_COLUMNS + MOST_GAP)];
  float sum[MOST_ROWS * (MOST_COLUMNS + MOST_GAP)];
};

struct operands {
  struct ek__bf16 a[A_ITEMS], b[B_ITEMS], bias[MOST_COLUMNS];
  union numbers want, got;
};

/* Whole numbers from -4 to 4, in no order that a product could mistake for another. Sums of DEEPEST
 * products of two stay below 2^15. */
static float draw(uint32_t *state) {
  *state = *state * 1664525u + 1013904223u;
  return (float)(int)((*state >> 16) % 9u) - 4.0f;
}

static void draw_values(struct ek__bf16 *to, int64_t count, uint32_t seed) {
  for (int64_t i = 0; i < count; i++) to[i] = ek__bf16_narrow(draw(&seed));
}

/* What c is before the product: NaN where it may not be read. */
static void fill_c(union numbers *c, const struct result *result) {
  uint32_t state = 4;
  const int64_t count = sizeof c->sum / sizeof c->sum[0];
  const float unread = ek__f32_from_bits(0x7FC00000u);
  for (int64_t i = 0; i < count; i++) {
    const float x = result->beta == 0.0 ? unread : draw(&state);
    if (result->is_sum) {
      c->sum[i] = x;
    } else {
      c->value[i] = ek__bf16_narrow(x);
    }
  }
}

/* *exact, if oneDNN has this product at all: c is as by our own in f32. */
static ek_status try_product(bool *exact, struct operands *o, const struct trial *t,
                             const struct result *result, bool transpose_a, bool transpose_b) {
  bool done = false;
  struct ek__gemm g = {.c_is_sum = result->is_sum,
                       .bias = result->bias ? o->bias : NULL,
                       .transpose_a = transpose_a,
                       .transpose_b = transpose_b,
                       .m = t->m,
                       .n = t->n,
                       .k = t->k,
                       .alpha = 1.0,
                       .a = o->a,
                       .lda = (transpose_a ? t->m : t->k) + t->gap,
                       .b = o->b,
                       .ldb = (transpose_b ? t->k : t->n) + t->gap,
                       .beta = result->beta,
                       .c = &o->got,
                       .ldc = t->n + t->gap};
  fill_c(&o->got, result);
  memcpy(&o->want, &o->got, sizeof o->want);
  EK_TRY(ek__cpu_primitive_multiply(&done, &g, EK_BF16));
  if (!done) return EK_OK;
  g.c = &o->want;
  ek__cpu_functions(ek__types_in(EK_BF16))->product(&g, 0, g.m);
  *exact = *exact && memcmp(&o->want, &o->got, sizeof o->want) == 0;
  return EK_OK;
}

/* Form `number` of all, in each shape. */
static ek_status try_form(bool *exact, struct operands *operands, int number) {
  const bool transpose_a = (number & 1) != 0, transpose_b = (number & 2) != 0;
  const struct result *result = &results[number / 4];
  for (int i = 0; i < TRIALS && *exact; i++) {
    EK_TRY(try_product(exact, operands, &trials[i], result, transpose_a, transpose_b));
    if (*exact) continue;
    ek__log(EK_LOG_WARNING,
            "oneDNN's product of bf16 is wrong for %d x %d x %d, a %s, b %s, c %s%s, beta %g: %s",
            (int)trials[i].m, (int)trials[i].n, (int)trials[i].k,
            transpose_a ? "turned" : "plain", transpose_b ? "turned" : "plain",
            result->is_sum ? "f32" : "bf16", result->bias ? " with a bias" : "", result->beta,
            otherwise);
  }
  return EK_OK;
}

static ek_status prove(bool *exact) {
  struct operands *operands = NULL;
  EK_TRY(ek__new(&operands, 1, sizeof *operands, "matrix products"));
  ek_status status = EK_OK;
  draw_values(operands->a, A_ITEMS, 1);
  draw_values(operands->b, B_ITEMS, 2);
  draw_values(operands->bias, MOST_COLUMNS, 3);
  *exact = true;
  for (int form = 0; form < 4 * RESULTS && status == EK_OK && *exact; form++) {
    status = try_form(exact, operands, form);
  }
  ek__free(operands);
  ek__cpu_primitive_forget();
  return status;
}

static bool is_there(void) {
  return ek__cpu_isa_is_allowed("avx512") && ek__cpu_primitive_for_bf16();
}

/* Once for all threads; the others wait. In a child of fork() the mutex may be held by a thread
 * that is not there: a thread that cannot have it at once makes the proof by itself, with the same
 * result. */
static ek_status is_proven(bool *yes) {
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  static atomic_int known; /* 0: not yet, 1: it is proven, -1: it is not */
  if (atomic_load_explicit(&known, memory_order_acquire) == 0) {
    bool exact = is_there();
    const bool alone = ek__process_number() == 0 ? pthread_mutex_lock(&mutex) == 0
                                                 : pthread_mutex_trylock(&mutex) == 0;
    ek_status status = EK_OK;
    if (exact && atomic_load(&known) == 0) status = prove(&exact);
    if (status != EK_OK && status != EK_ERR_OUT_OF_MEMORY) {
      ek__log(EK_LOG_WARNING, "%s: %s", ek_error_message(), otherwise);
      ek_error_clear();
      exact = false;
      status = EK_OK;
    }
    if (status == EK_OK && atomic_load(&known) == 0) atomic_store(&known, exact ? 1 : -1);
    if (alone) pthread_mutex_unlock(&mutex);
    EK_TRY(status);
  }
  *yes = atomic_load(&known) > 0;
  return EK_OK;
}

/* ---- the choice ---- */

ek_status ek__cpu_primitive_is_good(bool *yes, ek_type type) {
  *yes = type == EK_F32 && !ek__cpu_products_are_own();
  if (type != EK_BF16 || ek__cpu_products_are_own()) return EK_OK;
  *yes = wish == FORCED_BF16;
  return *yes ? EK_OK : is_proven(yes);
}

ek_status ek__cpu_matmul_primitive(bool *done, const struct ek__gemm *gemm, ek_type type) {
  bool yes = false;
  if (ek__cpu_products_are_own()) return EK_OK;
  if (type == EK_F32) yes = wish == FORCED_F32;
  if (type == EK_BF16) yes = wish == FORCED_BF16;
  if (type == EK_BF16 && (wish == AUTOMATIC || wish == FORCED_F32)) EK_TRY(is_proven(&yes));
  return yes ? ek__cpu_primitive_multiply(done, gemm, type) : EK_OK;
}
