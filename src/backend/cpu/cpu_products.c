/*
 * cpu_products.c - matrix products: cut for the device's team, along the longer side of the result.
 *
 * Each thread gets a piece; the rounding of an element depends on the shape of its piece. In a
 * deterministic group the pieces follow from the shape of the product alone and are dealt out to
 * the threads in turn: the same bits with any number of threads.
 *
 * One thread's part in f32 is ek__cpu_sgemm(): oneDNN's, or our own for shapes and processors for
 * which it is faster (cpu_sgemm_onednn.c) and in a library built without oneDNN (cpu_sgemm_own.c).
 * oneDNN runs with one thread, because two such products beat one of two threads in most shapes.
 * For 16-bit values it is our own product, which widens them as it packs, or for bf16 oneDNN's if
 * the processor has instructions for it (cpu_matmul_choice.c). In f64 it is a loop in plain C, for
 * gradient checks.
 */
#include <stdatomic.h>
#include <stdio.h>

#include "backend/cpu/cpu_internal.h"
#include "core/error.h"

/* Of a product that is cut by its shape: the most pieces, and the fewest multiplications of one. */
#define FIXED_PIECES 8
#define FIXED_LEAST 4e6

struct product {
  const struct ek__matmul_args *args;
  size_t size, c_size; /* of elements of a and b, and of c */
  bool by_rows;
  int pieces;
  /* The first failure of a piece, whose thread keeps its message to itself. */
  struct ek__cpu_failure failure;
};

/* A result of 16 bits is rounded once, with its bias. */
static bool joins_bias(const struct ek__matmul_args *args) {
  return ek__type_size(args->types.value) == 2;
}

/* By what the product is and not by how long rows are stored: padded rows are to give the bits of
 * dense ones. */
static bool collides(const struct ek__matmul_args *args) {
  const int64_t apart = 2048 / (int64_t)ek__type_size(args->types.value);
  return (args->transpose_a && args->m % apart == 0) ||
         (!args->transpose_b && args->n % apart == 0);
}

/* Rows i0 .. i1 - 1 and columns j0 .. j1 - 1 of c. */
static ek_status multiply(const struct product *product, int64_t i0, int64_t i1, int64_t j0,
                          int64_t j1) {
  const struct ek__matmul_args *args = product->args;
  const size_t size = product->size;
  struct ek__gemm gemm = {.c_is_sum = args->gradient,
                          .transpose_a = args->transpose_a,
                          .transpose_b = args->transpose_b,
                          .collides = collides(args),
                          .m = i1 - i0,
                          .n = j1 - j0,
                          .k = args->k,
                          .alpha = 1.0,
                          .lda = args->lda,
                          .ldb = args->ldb,
                          .beta = args->beta,
                          .ldc = args->ldc};
  if (args->bias != NULL && joins_bias(args)) {
    gemm.bias = (const char *)args->bias + (size_t)j0 * size;
  }
  gemm.a = (const char *)args->a + (size_t)(args->transpose_a ? i0 : i0 * args->lda) * size;
  gemm.b = (const char *)args->b + (size_t)(args->transpose_b ? j0 * args->ldb : j0) * size;
  gemm.c = (char *)args->c + (size_t)(i0 * args->ldc + j0) * product->c_size;
  bool done = false;
  EK_TRY(ek__cpu_matmul_primitive(&done, &gemm, args->types.value));
  if (done) return EK_OK;
  if (args->types.value == EK_F32) return ek__cpu_sgemm(&gemm);
  ek__cpu_functions(args->types)->product(&gemm, 0, gemm.m);
  return EK_OK;
}

static void multiply_piece(struct product *product, int piece) {
  const struct ek__matmul_args *args = product->args;
  int64_t begin = 0, end = 0;
  ek__team_piece(product->by_rows ? args->m : args->n, 16, piece, product->pieces, &begin, &end);
  if (begin >= end) return;
  ek__cpu_note(&product->failure, product->by_rows ? multiply(product, begin, end, 0, args->n)
                                                   : multiply(product, 0, args->m, begin, end));
}

static void multiply_part(void *raw, int part, int parts) {
  struct product *product = raw;
  for (int piece = part; piece < product->pieces; piece += parts) multiply_piece(product, piece);
}

/* The pieces of a product of `work` multiplications, whose longer side has `longest` units of 16:
 * for the threads of the team, or for any number of them. */
static int pieces_for(const struct ek__team *team, double work, int64_t longest) {
  const bool fixed = ek__team_is_fixed(team);
  int pieces = fixed ? FIXED_PIECES : ek__team_threads(team);
  if (fixed && work < FIXED_PIECES * FIXED_LEAST) pieces = (int)(work / FIXED_LEAST);
  if (work < 1e6) pieces = 1;
  if (pieces > longest) pieces = longest > 1 ? (int)longest : 1;
  return pieces < 1 ? 1 : pieces > EK__MAX_TEAM ? EK__MAX_TEAM : pieces;
}

static ek_status add_product(ek_stream *stream, const struct ek__matmul_args *args) {
  struct ek__team *team = ek__stream_backend(stream);
  struct product product = {.args = args,
                            .size = ek__type_size(args->types.value),
                            .c_size =
                                ek__type_size(args->gradient ? args->types.sum : args->types.value),
                            .by_rows = args->m >= args->n,
                            .failure = EK__CPU_NO_FAILURE};
  const double work = (double)args->m * (double)args->n * (double)args->k;
  const int64_t longest = (args->m > args->n ? args->m : args->n) / 16;
  const int threads = ek__team_threads(team);
  product.pieces = pieces_for(team, work, longest);
  ek__team_run_with_scratch(team, product.pieces < threads ? product.pieces : threads,
                            multiply_part, &product);
  return ek__cpu_failed(&product.failure);
}

ek_status ek__cpu_matmul(ek_stream *stream, const struct ek__matmul_args *args) {
  EK_TRY(add_product(stream, args));
  if (!args->bias || joins_bias(args)) return EK_OK;
  return ek__cpu_add_bias(stream, &(struct ek__matrix_args){.y = args->c,
                                                            .b = args->bias,
                                                            .rows = args->m,
                                                            .columns = args->n,
                                                            .pitch = args->ldc,
                                                            .types = args->types});
}
