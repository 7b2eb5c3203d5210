/*
 * check_products.c - the operations of products.h against plain loops in long double.
 *
 * Bound, with u the unit roundoff of the type and k the inner dimension:
 *   (k + 3) u (sum |a| |b| + |beta c| + |bias|): k products and k additions in any order, fused or
 *   not (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1), one rounding of beta
 *   c, one addition each for c and bias. Whole numbers whose sums stay below 2^24 are equal.
 *
 * Where GELU is joined to a product p with the bound e (L = 1.2 is above its largest slope, 1.129):
 *   GELU              L e + 8 u (|p| + e): see check_elementwise.c
 *   GELU backward     L e + u (|p| + e) (8 + 8 |x z'|), for the gradient p that comes in
 *   sums of n terms   their bounds added, and (n + 2) u (|beta old| + sum of the terms' sizes)
 * Of 16 bits u is that of f32, and what is stored between is rounded once: e and dpre's bound grow
 * by ck_rounding(). So does that of a product which cuBLASLt rounds before it adds beta c.
 */
#include "ck_product.h"

/* The last four: rows that are 2 KiB of f32 or twice that, or only so where they are padded; large
 * enough for our own product where there is oneDNN. */
static const int64_t sizes[][3] = {
    {0, 3, 4},     {3, 0, 4},    {3, 4, 0},     {0, 0, 0},      {1, 1, 1},      {1, 17, 5},
    {7, 1, 33},    {3, 5, 1},    {31, 47, 2},   {64, 64, 64},   {65, 33, 129},  {130, 97, 300},
    {130, 20, 63}, {1, 513, 257}, {200, 2, 77}, {40, 512, 33},  {1024, 33, 40}, {33, 40, 1021},
    {130, 130, 260}};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

/* A product of f64 is a plain loop over one row after the other: a long one has no other races, and
 * takes ThreadSanitizer seconds. */
static bool is_too_long(const struct ck_rig *rig, int64_t terms) {
  return CK_TSAN && rig->type == EK_F64 && terms > 100000;
}

/* Whole numbers, whose sums are exact in any order, or others. */
static double *numbers(struct ck_rig *rig, bool whole, int64_t count) {
  return whole ? ck_integers(rig, count, -9, 9) : ck_values(rig, count, -1, 1);
}

/* Bounds of a sum with c in 16 bits, which cuBLASLt rounds twice (docs/numerics.md): half a unit of
 * the product, for whole numbers too, whose bound was 0. */
static void allow_two_roundings(const struct ck_rig *rig, double *bound,
                                const struct ck_inner *inner, int64_t n, bool exact) {
  for (int64_t i = 0; i < n; i++) {
    const double before = exact ? 0 : bound[i];
    bound[i] = before + ck_rounding(rig, fabs((double)inner[i].sum) + before);
  }
}

static void check_matmul(struct ck_rig *rig, const struct ck_product *p,
                         const struct ck_inner *inner, bool exact) {
  const int64_t n = p->m * p->n;
  double *want = ck_zeros(rig, n), *bound = ck_zeros(rig, n);
  ck_product_finish(rig, want, bound, p, inner);
  if (ck_on_gpu() && p->beta != 0 && ek_type_size(rig->type) == 2) {
    allow_two_roundings(rig, bound, inner, n, exact);
    exact = false;
  }
  const int64_t a0 = p->transpose_a ? p->k : p->m, a1 = p->transpose_a ? p->m : p->k;
  const int64_t b0 = p->transpose_b ? p->n : p->k, b1 = p->transpose_b ? p->k : p->n;
  ek_tensor *a = ck_tensor(rig, p->a, CK_SHAPE(a0, a1));
  ek_tensor *b = ck_tensor(rig, p->b, CK_SHAPE(b0, b1));
  ek_tensor *c = ck_tensor(rig, p->beta == 0 ? NULL : p->c, CK_SHAPE(p->m, p->n));
  ek_tensor *again = ck_tensor(rig, p->beta == 0 ? NULL : p->c, CK_SHAPE(p->m, p->n));
  ck_ok(ek_op_matmul(rig->stream, c, a, p->transpose_a, b, p->transpose_b, p->beta));
  ck_ok(ek_op_matmul(rig->stream, again, a, p->transpose_a, b, p->transpose_b, p->beta));
  ck_fits(rig, "matmul", c, want, exact ? NULL : bound, n);
  ck_same_bits("matmul again", ck_read(rig, again), ck_read(rig, c), n);
}

CK_RIG_GRID(matmul, s, SIZES, t, 4) {
  static const double betas[2][3] = {{0.7, 0}, {0, 1, -2}};
  struct ck_product p = {.m = sizes[s][0], .n = sizes[s][1], .k = sizes[s][2]};
  if (is_too_long(rig, p.m * p.n * p.k)) return;
  p.transpose_a = (t & 1) != 0, p.transpose_b = (t & 2) != 0;
  for (int whole = 1; whole >= 0; whole--) {
    p.a = numbers(rig, whole, p.m * p.k), p.b = numbers(rig, whole, p.k * p.n);
    p.c = whole ? ck_integers(rig, p.m * p.n, -99, 99) : ck_values(rig, p.m * p.n, -1, 1);
    struct ck_inner *inner = ck_product_multiply(rig, &p);
    for (int i = 0; i < 2 + whole; i++) {
      p.beta = betas[whole][i];
      check_matmul(rig, &p, inner, whole);
    }
    free(inner);
  }
}

/* Larger than the blocks that a product is cut into, for each of several threads. Two elements of a
 * column of b are not 0, one in each of two blocks of k. */
CK_RIG_CASES(more_than_a_block, t, 4) {
  const int64_t m = 1100, n = 264, k = 260;
  const bool of_a = (t & 1) != 0, of_b = (t & 2) != 0; /* transposed */
  if (is_too_long(rig, m * n * k)) return;
  const double *a = ck_integers(rig, m * k, -9, 9), *old = ck_integers(rig, m * n, -99, 99);
  double *b = ck_zeros(rig, k * n), *want = ck_zeros(rig, m * n);
  for (int64_t j = 0; j < n; j++) {
    const int64_t at[2] = {j * 7 % 256, 256 + j % 4};
    for (int64_t e = 0; e < 2; e++) {
      b[of_b ? j * k + at[e] : at[e] * n + j] = (double)(1 + e);
      for (int64_t i = 0; i < m; i++) {
        want[i * n + j] += (double)(1 + e) * a[of_a ? at[e] * m + i : i * k + at[e]];
      }
    }
    for (int64_t i = 0; i < m; i++) want[i * n + j] += old[i * n + j];
  }
  ek_tensor *x = ck_tensor(rig, a, CK_SHAPE(of_a ? k : m, of_a ? m : k));
  ek_tensor *y = ck_tensor(rig, b, CK_SHAPE(of_b ? n : k, of_b ? k : n));
  ek_tensor *c = ck_tensor(rig, old, CK_SHAPE(m, n));
  ck_ok(ek_op_matmul(rig->stream, c, x, of_a, y, of_b, 1));
  ck_fits(rig, "matmul", c, want, NULL, m * n);
}

CK_RIG_GRID(linear, s, SIZES, pass, 3) {
  struct ck_product p = {.m = sizes[s][0], .n = sizes[s][1], .k = sizes[s][2], .transpose_b = true};
  const int64_t n = p.m * p.n;
  p.a = numbers(rig, pass < 2, p.m * p.k), p.b = numbers(rig, pass < 2, p.k * p.n);
  if (pass > 0) p.bias = ck_integers(rig, p.n, -99, 99);
  double *want = ck_zeros(rig, n), *bound = ck_zeros(rig, n);
  ck_product_reference(rig, want, bound, &p);
  ek_tensor *y = ck_poisoned(rig, CK_SHAPE(1, p.m, p.n));
  ek_tensor *x = ck_tensor(rig, p.a, CK_SHAPE(p.m, 1, p.k));
  ek_tensor *w = ck_tensor(rig, p.b, CK_SHAPE(p.n, p.k));
  ek_tensor *bias = p.bias == NULL ? NULL : ck_tensor(rig, p.bias, CK_SHAPE(p.n));
  ck_ok(ek_op_linear(rig->stream, y, x, w, bias));
  ck_fits(rig, "linear", y, want, pass < 2 ? NULL : bound, n);
}

/* ---- joined to GELU, and to sums of columns ---- */

/* Rows, in, out. Multiples of 8 columns are what cuBLASLt asks for; others take another way. */
static const int64_t joined[][3] = {{0, 3, 4},   {3, 0, 4},     {3, 4, 0},     {1, 1, 1},
                                    {1, 8, 16},  {7, 5, 33},    {31, 2, 48},   {64, 64, 64},
                                    {65, 8, 33}, {130, 32, 96}, {1, 257, 512}, {200, 77, 2}};
enum { JOINED = sizeof joined / sizeof joined[0] };
#define LARGEST_SLOPE 1.2

/* y[c] = beta y[c] + sum over r of x[r][c]; x has bounds of its own, or NULL. */
CK_UNWATCHED static void sum_reference(struct ck_rig *rig, double *want, double *bound, double beta,
                                       const double *old, const double *x, const double *x_bound,
                                       int64_t rows, int64_t columns) {
  for (int64_t c = 0; c < columns; c++) {
    long double sum = beta == 0 ? 0 : (long double)beta * old[c], size = fabsl(sum);
    bound[c] = 0;
    for (int64_t r = 0; r < rows; r++) {
      sum += x[r * columns + c];
      size += fabs(x[r * columns + c]);
      if (x_bound != NULL) bound[c] += x_bound[r * columns + c];
    }
    want[c] = (double)sum;
    bound[c] += (double)(rows + 2) * rig->unit * (double)size;
  }
}

CK_RIG_GRID(linear_gelu, s, JOINED, with_bias, 2) {
  const int64_t rows = joined[s][0], in = joined[s][1], out = joined[s][2];
  struct ck_product p = {.m = rows, .n = out, .k = in, .transpose_b = true};
  const int64_t n = rows * out;
  ck_assign(p, .a = ck_values(rig, rows * in, -1, 1), .b = ck_values(rig, out * in, -1, 1));
  if (with_bias) p.bias = ck_values(rig, out, -1, 1);
  double *want_pre = ck_zeros(rig, n), *pre_bound = ck_zeros(rig, n);
  double *want = ck_zeros(rig, n), *bound = ck_zeros(rig, n);
  ck_product_reference(rig, want_pre, pre_bound, &p);
  for (int64_t i = 0; i < n; i++) {
    const double error = pre_bound[i] + ck_rounding(rig, fabs(want_pre[i]) + pre_bound[i]);
    want[i] = (double)ck_gelu(want_pre[i]);
    bound[i] = LARGEST_SLOPE * error + 8 * rig->unit * (fabs(want_pre[i]) + error);
  }
  ek_tensor *x = ck_tensor(rig, p.a, CK_SHAPE(rows, 1, in));
  ek_tensor *w = ck_tensor(rig, p.b, CK_SHAPE(out, in));
  ek_tensor *bias = with_bias ? ck_tensor(rig, p.bias, CK_SHAPE(out)) : NULL;
  ek_tensor *pre = ck_poisoned(rig, CK_SHAPE(rows, out));
  ek_tensor *y = ck_poisoned(rig, CK_SHAPE(rows, out));
  ck_ok(ek_op_linear_gelu(rig->stream, y, pre, x, w, bias));
  ck_fits(rig, "pre", pre, want_pre, pre_bound, n);
  ck_fits(rig, "y", y, want, bound, n);
  ek_tensor *alone = ck_poisoned(rig, CK_SHAPE(rows, out));
  ck_ok(ek_op_linear_gelu(rig->stream, alone, NULL, x, w, bias));
  ck_fits(rig, "y without pre", alone, want, bound, n);
}

CK_RIG_GRID(gelu_linear_backward, s, JOINED, b, 3) {
  static const double betas[] = {0, 1, -0.5};
  const int64_t rows = joined[s][0], in = joined[s][2], out = joined[s][1]; /* wide: GELU's side */
  const double beta = betas[b];
  struct ck_product p = {.m = rows, .n = in, .k = out};
  const int64_t n = rows * in;
  ck_assign(p, .a = ck_values(rig, rows * out, -1, 1), .b = ck_values(rig, out * in, -1, 1));
  const double *pre = ck_values(rig, n, -4, 4), *old = ck_values(rig, in, -9, 9);
  double *want = ck_zeros(rig, n), *bound = ck_zeros(rig, n);
  double *want_sum = ck_zeros(rig, in), *sum_bound = ck_zeros(rig, in);
  double *stored = ck_zeros(rig, n); /* the bound of dpre as the sums see it */
  ck_product_reference(rig, want, bound, &p);
  for (int64_t i = 0; i < n; i++) {
    const double dz = (double)ck_gelu_inner_slope(pre[i]);
    bound[i] += ck_rounding(rig, fabs(want[i]) + bound[i]);
    bound[i] = LARGEST_SLOPE * bound[i] +
               rig->unit * (fabs(want[i]) + bound[i]) * (8 + 8 * fabs(pre[i]) * dz);
    want[i] = (double)(want[i] * ck_gelu_slope(pre[i]));
    stored[i] = bound[i] + ck_rounding(rig, fabs(want[i]) + bound[i]);
  }
  sum_reference(rig, want_sum, sum_bound, beta, old, want, stored, rows, in);
  ek_tensor *dy = ck_tensor(rig, p.a, CK_SHAPE(rows, out));
  ek_tensor *w = ck_tensor(rig, p.b, CK_SHAPE(out, in));
  ek_tensor *tpre = ck_tensor(rig, pre, CK_SHAPE(rows, in));
  ek_tensor *dbias = ck_sums(rig, beta == 0 ? NULL : old, CK_SHAPE(in));
  ek_tensor *dpre = ck_poisoned(rig, CK_SHAPE(rows, in)),
            *alone = ck_poisoned(rig, CK_SHAPE(rows, in));
  ck_ok(ek_op_gelu_linear_backward(rig->stream, dpre, dbias, dy, w, tpre, beta));
  ck_fits(rig, "dpre", dpre, want, bound, n);
  ck_fits(rig, "dbias", dbias, want_sum, sum_bound, in);
  ck_ok(ek_op_gelu_linear_backward(rig->stream, alone, NULL, dy, w, tpre, 0));
  ck_fits(rig, "dpre without dbias", alone, want, bound, n);
}

/* Whole numbers: everything is exact. */
CK_RIG_GRID(linear_gradients, s, JOINED, b, 5) {
  static const double betas[][2] = {{0, 0}, {1, 1}, {0, 1}, {1, 0}, {-2, 3}};
  const int64_t rows = joined[s][0], in = joined[s][1], out = joined[s][2];
  const double weight_beta = betas[b][0], bias_beta = betas[b][1];
  struct ck_product p = {.m = out, .n = in, .k = rows, .transpose_a = true, .beta = weight_beta};
  ck_assign(p, .a = ck_integers(rig, rows * out, -9, 9), .b = ck_integers(rig, rows * in, -9, 9),
            .c = ck_integers(rig, out * in, -99, 99));
  const double *old = ck_integers(rig, out, -99, 99);
  double *want = ck_zeros(rig, out * in), *bound = ck_zeros(rig, out * in);
  double *want_sum = ck_zeros(rig, out), *sum_bound = ck_zeros(rig, out);
  ck_product_reference(rig, want, bound, &p);
  sum_reference(rig, want_sum, sum_bound, bias_beta, old, p.a, NULL, rows, out);
  ek_tensor *dy = ck_tensor(rig, p.a, CK_SHAPE(rows, out));
  ek_tensor *x = ck_tensor(rig, p.b, CK_SHAPE(rows, in));
  ek_tensor *dw = ck_sums(rig, weight_beta == 0 ? NULL : p.c, CK_SHAPE(out, in));
  ek_tensor *alone = ck_sums(rig, weight_beta == 0 ? NULL : p.c, CK_SHAPE(out, in));
  ek_tensor *dbias = ck_sums(rig, bias_beta == 0 ? NULL : old, CK_SHAPE(out));
  ck_ok(ek_op_linear_gradients(rig->stream, dw, dbias, dy, x, weight_beta, bias_beta));
  ck_fits(rig, "dw", dw, want, NULL, out * in);
  ck_fits(rig, "dbias", dbias, want_sum, NULL, out);
  ck_ok(ek_op_linear_gradients(rig->stream, alone, NULL, dy, x, weight_beta, 0));
  ck_fits(rig, "dw without dbias", alone, want, NULL, out * in);
}

/* ---- rows that are longer than they need be ---- */

/* A matrix with `padding` more columns, which hold `filler`. */
static ek_tensor *wide(struct ck_rig *rig, const double *values, int64_t rows, int64_t columns,
                       int64_t padding, double filler) {
  const int64_t pitch = columns + padding;
  double *all = ck_zeros(rig, rows * pitch);
  for (int64_t i = 0; i < rows * pitch; i++) {
    const int64_t column = i % pitch;
    all[i] = column < columns ? values[i / pitch * columns + column] : filler;
  }
  return ck_tensor(rig, all, CK_SHAPE(rows, pitch));
}

/* The operation over a dense matrix and over the wide one; on the CPU all bits are the same. */
static void same(struct ck_rig *rig, const char *what, ek_tensor *dense, ek_tensor *padded,
                 int64_t rows, int64_t columns, bool bits) {
  const int64_t pitch = padded->shape[1];
  const double *a = ck_read(rig, dense), *b = ck_read(rig, padded);
  for (int64_t i = 0; i < rows; i++) {
    if (bits) {
      ck_same_bits(what, b + i * pitch, a + i * columns, columns);
    } else {
      ck_within(what, b + i * pitch, a + i * columns, NULL, columns);
    }
    for (int64_t c = columns; c < pitch; c++) ck_assert_double_eq(b[i * pitch + c], 77);
  }
}

static void check_padded(struct ck_rig *rig, const int64_t size[3], int64_t padding, bool exact) {
  const int64_t rows = size[0], in = size[1], out = size[2];
  const double *bits[4]; /* x, w, bias, dy */
  const int64_t counts[] = {rows * in, out * in, out, rows * out};
  for (int i = 0; i < 4; i++) bits[i] = numbers(rig, exact, counts[i]);
  double *zeros = ck_zeros(rig, rows * out);
  ek_tensor *x = ck_tensor(rig, bits[0], CK_SHAPE(rows, in));
  ek_tensor *w = ck_tensor(rig, bits[1], CK_SHAPE(out, in));
  ek_tensor *bias = ck_tensor(rig, bits[2], CK_SHAPE(out));
  ek_tensor *dy = ck_tensor(rig, bits[3], CK_SHAPE(rows, out));
  ek_tensor *wide_dy = wide(rig, bits[3], rows, out, padding, NAN); /* not read */
  ek_tensor *y = ck_poisoned(rig, CK_SHAPE(rows, out));
  ek_tensor *wide_y = wide(rig, zeros, rows, out, padding, 77); /* not written */
  for (int i = 0; i < 2; i++) {
    ck_ok(ek_op_linear(rig->stream, y, x, w, i == 0 ? bias : NULL));
    ck_ok(ek_op_linear(rig->stream, wide_y, x, w, i == 0 ? bias : NULL));
    same(rig, "y", y, wide_y, rows, out, !exact);
    ek_tensor *dw[2], *dbias[2], *dx[2];
    for (int k = 0; k < 2; k++) {
      dw[k] = ck_sums(rig, bits[1], CK_SHAPE(out, in));
      dbias[k] = ck_sums(rig, bits[2], CK_SHAPE(out));
      dx[k] = ck_poisoned(rig, CK_SHAPE(rows, in));
    }
    ck_ok(ek_op_linear_gradients(rig->stream, dw[0], i == 0 ? dbias[0] : NULL, dy, x, i, 1));
    ck_ok(ek_op_linear_gradients(rig->stream, dw[1], i == 0 ? dbias[1] : NULL, wide_dy, x, i, 1));
    ck_ok(ek_op_matmul(rig->stream, dx[0], dy, false, w, false, 0));
    ck_ok(ek_op_linear_backward(rig->stream, dx[1], wide_dy, w));
    same(rig, "dw", dw[0], dw[1], out, in, !exact);
    same(rig, "dx", dx[0], dx[1], rows, in, !exact);
    ck_within("dbias", ck_read(rig, dbias[1]), ck_read(rig, dbias[0]), NULL, out);
    /* dbias alone: the sums of the columns, of which the padding has none. */
    ck_ok(ek_op_column_sum(rig->stream, dbias[0], dy, i));
    ck_ok(ek_op_linear_gradients(rig->stream, NULL, dbias[1], wide_dy, NULL, 0, i));
    if (i == 0) ck_same_bits("dbias alone", ck_read(rig, dbias[1]), ck_read(rig, dbias[0]), out);
  }
}

CK_RIG_GRID(padded, s, SIZES, wider, 2) {
  const int64_t *size = sizes[s];
  const bool cpu = strcmp(ek_device_backend(ek_stream_device(rig->stream)), "cpu") == 0;
  if (is_too_long(rig, size[0] * size[1] * size[2])) return;
  /* Of 16 bits a bias that is joined or not shows; what joins it on CUDA depends on the rows. */
  if (cpu || ek_type_size(rig->type) > 2) check_padded(rig, size, wider * 3 + 1, true);
  if (cpu && !ck_onednn_primitive(rig->type)) check_padded(rig, size, wider * 3, false);
}

/* On CUDA a long side whose rows begin at vectors, and which is not made of them, is cut: the
 * result's columns, the gradient's rows, and the terms of dx. */
CK_RIG_LOOP(sides_of_almost_whole_vectors, ck_variants()) {
  static const int64_t size[3] = {5, 16, 1033};
  const int64_t pitch = ek_tensor_aligned_columns(size[2], rig->type);
  if (ek_type_size(rig->type) > 2) check_padded(rig, size, pitch - size[2], true);
}

/* The rows that are asked for, and those that no addition can make longer. */
CK_TEST(aligned_columns) {
  static const int64_t cases[][4] = {/* columns, and what they become: f32, f64, bf16 */
                                     {0, 0, 0, 0},
                                     {1, 4, 2, 8},
                                     {4, 4, 4, 8},
                                     {50257, 50260, 50258, 50264},
                                     {INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    ck_assert_int_eq(ek_tensor_aligned_columns(cases[i][0], EK_F32), cases[i][1]);
    ck_assert_int_eq(ek_tensor_aligned_columns(cases[i][0], EK_F64), cases[i][2]);
    ck_assert_int_eq(ek_tensor_aligned_columns(cases[i][0], EK_BF16), cases[i][3]);
  }
  ck_assert_int_eq(ek_tensor_aligned_columns(5, (ek_type)0), 0);
}

/* GELU(x w^T + bias) v^T as a function of w and of bias. */
struct two_layers {
  ek_stream *stream;
  ek_tensor *x, *w, *bias, *v, *pre, *h, *y;
};

static ek_status two_layers_forward(const struct two_layers *l) {
  EK_TRY(ek_op_linear_gelu(l->stream, l->h, l->pre, l->x, l->w, l->bias));
  return ek_op_linear(l->stream, l->y, l->h, l->v, NULL);
}

CK_RIG_TEST(gradients_by_differences, NULL, EK_F64) {
  enum { ROWS = 5, IN = 3, HIDDEN = 8, OUT = 2 };
  const double *dy = ck_values(rig, ROWS * OUT, -1, 1);
  struct two_layers l = {
      .stream = rig->stream,
      .x = ck_tensor(rig, ck_values(rig, ROWS * IN, -1, 1), CK_SHAPE(ROWS, IN)),
      .w = ck_tensor(rig, ck_values(rig, HIDDEN * IN, -1, 1), CK_SHAPE(HIDDEN, IN)),
      .bias = ck_tensor(rig, ck_values(rig, HIDDEN, -1, 1), CK_SHAPE(HIDDEN)),
      .v = ck_tensor(rig, ck_values(rig, OUT * HIDDEN, -1, 1), CK_SHAPE(OUT, HIDDEN)),
      .pre = ck_poisoned(rig, CK_SHAPE(ROWS, HIDDEN)),
      .h = ck_poisoned(rig, CK_SHAPE(ROWS, HIDDEN)), .y = ck_poisoned(rig, CK_SHAPE(ROWS, OUT))};
  ek_tensor *dpre = ck_poisoned(rig, CK_SHAPE(ROWS, HIDDEN));
  ek_tensor *dw = ck_poisoned(rig, CK_SHAPE(HIDDEN, IN));
  ek_tensor *dbias = ck_poisoned(rig, CK_SHAPE(HIDDEN));
  ek_tensor *tdy = ck_tensor(rig, dy, CK_SHAPE(ROWS, OUT));
  ck_ok(two_layers_forward(&l));
  ck_ok(ek_op_gelu_linear_backward(rig->stream, dpre, dbias, tdy, l.v, l.pre, 0));
  ck_ok(ek_op_linear_gradients(rig->stream, dw, NULL, dpre, l.x, 0, 0));
  ck_gradient(rig, "weight", l.w, dw, HIDDEN * IN, two_layers_forward(&l), ck_weighed(l.y, dy));
  ck_gradient(rig, "bias", l.bias, dbias, HIDDEN, two_layers_forward(&l), ck_weighed(l.y, dy));
}

/* beta 0 must not read c, also where there is nothing to add up. */
CK_RIG_LOOP(empty_inner_dimension, ck_variants()) {
  const double three[6] = {3, 3, 3, 3, 3, 3}, six[6] = {6, 6, 6, 6, 6, 6}, zero[6] = {0};
  const double bias[3] = {1, 2, 3}, rows[6] = {1, 2, 3, 1, 2, 3};
  ek_tensor *a = ck_poisoned(rig, CK_SHAPE(2, 0)), *b = ck_poisoned(rig, CK_SHAPE(3, 0));
  ek_tensor *c = ck_tensor(rig, three, CK_SHAPE(2, 3));
  ck_ok(ek_op_matmul(rig->stream, c, a, false, b, true, 2.0));
  ck_fits(rig, "2 c", c, six, NULL, 6);
  ck_set(c, NULL);
  ck_ok(ek_op_matmul(rig->stream, c, a, false, b, true, 0.0));
  ck_fits(rig, "0 c", c, zero, NULL, 6);
  ck_set(c, NULL);
  ck_ok(ek_op_linear(rig->stream, c, a, b, ck_tensor(rig, bias, CK_SHAPE(3))));
  ck_fits(rig, "bias alone", c, rows, NULL, 6);
}

/* ---- wrong arguments ---- */

CK_RIG_TEST(messages_show_both_shapes, NULL, EK_F32) {
  ek_stream *s = rig->stream;
  ek_tensor *a = ck_poisoned(rig, CK_SHAPE(3, 2)), *b = ck_poisoned(rig, CK_SHAPE(2, 5));
  ek_tensor *c = ck_poisoned(rig, CK_SHAPE(3, 4));
  ck_fails(ek_op_matmul(s, c, a, false, b, false, 0), EK_ERR_SHAPE,
           "matmul: c is 3 x 4 but a' b' is 3 x 5");
  ck_fails(ek_op_matmul(s, c, a, true, b, false, 0), EK_ERR_SHAPE,
           "matmul: a' is 2 x 3 but b' is 2 x 5");
  ck_fails(ek_op_matmul(s, c, a, false, b, true, 0), EK_ERR_SHAPE,
           "matmul: a' is 3 x 2 but b' is 5 x 2");
  ck_fails(ek_op_linear(s, c, a, b, NULL), EK_ERR_SHAPE, "linear: x is 3 x 2 but w is 2 x 5");
  ck_fails(ek_op_linear_gelu(s, c, NULL, a, b, NULL), EK_ERR_SHAPE,
           "linear_gelu: x is 3 x 2 but w is 2 x 5");
  ck_invalid(ek_op_gelu_linear_backward(s, c, NULL, a, b, c, 0),
             "gelu_linear_backward: dpre (3 x 4) overlaps pre (3 x 4)");
  ck_fails(ek_op_gelu_linear_backward(s, ck_poisoned(rig, CK_SHAPE(3, 4)), NULL, a, b, c, 0),
           EK_ERR_SHAPE, "gelu_linear_backward: pre is 3 x 4 but dy w is 3 x 5");
  ck_fails(ek_op_linear_gradients(s, c, NULL, a, b, 0, 0), EK_ERR_SHAPE,
           "linear_gradients: dy is 3 x 2 but x is 2 x 5");
  ek_tensor *w = ck_poisoned(rig, CK_SHAPE(5, 2));
  ck_fails(ek_op_linear(s, c, a, w, NULL), EK_ERR_SHAPE, "linear: y is 3 x 4 but x w^T is 3 x 5");
  ck_fails(ek_op_linear_gelu(s, ck_poisoned(rig, CK_SHAPE(3, 6)), NULL, a, w, NULL), EK_ERR_SHAPE,
           "linear_gelu: y is 3 x 6 but x w^T is 3 x 5");
  ck_fails(ek_op_linear_backward(s, ck_poisoned(rig, CK_SHAPE(3, 2)), c, w), EK_ERR_SHAPE,
           "linear_backward: dy is 3 x 4 but w is 5 x 2");
  ck_fails(ek_op_linear_gradients(s, w, NULL, c, a, 0, 0), EK_ERR_SHAPE,
           "linear_gradients: dw is 5 x 2 but dy^T x is 4 x 2");
  ck_fails(ek_op_linear_gradients(s, NULL, ck_poisoned(rig, CK_SHAPE(5)), c, NULL, 0, 0),
           EK_ERR_SHAPE, "linear_gradients: dbias is 5 but dy is 3 x 4, which takes 4 elements");
  ck_invalid(ek_op_linear_gradients(s, NULL, NULL, c, a, 0, 0), "linear_gradients: dbias is NULL");
}

/* Rows and columns of 2^31 and more, and a result that comes close to 2^63 bytes. */
CK_RIG_TEST(huge_sizes, CK_HUGE_PLAN, EK_F32) {
  const int64_t m = INT64_C(1) << 30, n = INT64_C(1) << 30;
  ek_stream *s = rig->stream;
  ek_tensor *a = ck_ghost(rig, EK_F32, CK_SHAPE(m, 2)), *b = ck_ghost(rig, EK_F32, CK_SHAPE(2, n));
  ek_tensor *c = ck_ghost(rig, EK_F32, CK_SHAPE(m, n));
  ck_ok(ek_op_matmul(s, c, a, false, b, false, 0));
  ck_fails(ek_op_matmul(s, c, a, false, b, true, 0), EK_ERR_SHAPE, "matmul");
  ek_tensor *long_b = ck_ghost(rig, EK_F32, CK_SHAPE(2, 4 * n));
  ck_fails(ek_op_matmul(s, c, a, false, long_b, false, 0), EK_ERR_SHAPE,
           "a' b' is 1073741824 x 4294967296");
  ek_tensor *vocabulary = ck_ghost(rig, EK_F32, CK_SHAPE(151936, 1024));
  ek_tensor *x = ck_ghost(rig, EK_F32, CK_SHAPE(32, 2048, 1024));
  ek_tensor *logits = ck_ghost(rig, EK_F32, CK_SHAPE(32, 2048, 151936));
  ck_ok(ek_op_linear(s, logits, x, vocabulary, NULL));
  ck_ok(ek_op_linear_gelu(s, logits, NULL, x, vocabulary, NULL));
  ck_ok(ek_op_linear_gradients(s, vocabulary, NULL, logits, x, 1, 0));
  ck_ok(ek_op_gelu_linear_backward(s, ck_ghost(rig, EK_F32, CK_SHAPE(32, 2048, 1024)), NULL, logits,
                                   vocabulary, x, 0));
  CK_WITH(ek_tensor, endless, *c, .shape[1] = INT64_C(1) << 33);
  ck_fails(ek_op_matmul(s, &endless, a, false, b, false, 0), EK_ERR_OVERFLOW, "matmul");
}

/* ---- threads that meet shapes at the same time ---- */

enum { SHAPES = 12 };

/* Ones, so that each element is the inner dimension. */
CK_JOB(multiply_shapes) {
  ek_stream *stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  bool *right = context;
  for (int64_t i = 0; i < SHAPES; i++) {
    const int64_t m = 160 + 16 * i, n = 112, k = 96 + i;
    const int64_t shapes[3][2] = {{m, k}, {k, n}, {m, n}};
    ek_tensor t[3] = {{0}};
    ek_status status = EK_OK;
    for (int j = 0; j < 3 && status == EK_OK; j++) {
      status = ek_tensor_create(&t[j], device, EK_MEMORY_WORKSPACE, EK_F32, 2, shapes[j]);
      if (status == EK_OK) status = ek_op_fill(stream, &t[j], 1);
    }
    if (status == EK_OK) status = ek_op_matmul(stream, &t[2], &t[0], false, &t[1], false, 0);
    const float *c = t[2].data;
    for (int64_t j = 0; j < m * n && status == EK_OK; j++) {
      right[index] = right[index] && c[j] == (float)k;
    }
    for (int j = 0; j < 3; j++) ek_tensor_free(&t[j]);
    EK_TRY(status);
  }
  return EK_OK;
}

/* Two devices of two threads each: what a thread keeps of oneDNN's it makes for itself. */
CK_TEST(new_shapes_on_several_threads) {
  bool right[2] = {true, true};
  ek_group *group = ck_open_exactly("cpu:2", 2);
  ck_ok(ek_group_apply(group, multiply_shapes, right));
  ck_assert(right[0] && right[1]);
}

CK_SUITE("products")
