/*
 * check_cuda_epilogues.c - which products cuBLASLt is given whole, and by which of its algorithms,
 * and that it makes no difference.
 *
 * Values are the matter of check_products; here calls of cuBLASLt and launches of kernels are
 * counted, and products whose rows are not aligned. Runs on tests/cuemu: see CMakeLists.txt here.
 */
#include "ck_emulated.h"
#include "cublasLt.h"

#define SPEC "cuda:0@64MiB"
/* Of epilogues with GELU's matrix. */
#define AUX_BIT ((unsigned)CUBLASLT_EPILOGUE_GELU_AUX & ~(unsigned)CUBLASLT_EPILOGUE_GELU)

/* ---- one operation ---- */

enum { LINEAR_GELU, NO_PRE, BACKWARD, NO_BIAS, GRADIENTS, OPERATIONS };

/* GELU's matrix is rows x wide; what is summed has `wide` columns, too. */
static ek_status call(struct ck_rig *rig, int operation, int64_t rows, int64_t wide, bool off,
                      double beta) {
  enum { NARROW = 3 };
  const int64_t room = rows * wide + 1;
  ek_tensor pre = *ck_tensor(rig, ck_values(rig, room, -1, 1), CK_SHAPE(room));
  if (off) pre.data = (char *)pre.data + ek_type_size(pre.type); /* a view beside 16 bytes */
  pre.rank = 2;
  ck_assign(pre, .shape[0] = rows, .shape[1] = wide);
  ek_tensor *large = ck_poisoned(rig, CK_SHAPE(rows, wide));
  ek_tensor *small = ck_tensor(rig, ck_values(rig, rows * NARROW, -1, 1), CK_SHAPE(rows, NARROW));
  const bool gradient = operation == BACKWARD || operation == GRADIENTS;
  ek_tensor *bias = ck_tensor_of(rig, gradient ? rig->sum : rig->type, ck_values(rig, wide, -1, 1),
                                 CK_SHAPE(wide));
  const double *weights = ck_values(rig, wide * NARROW, -1, 1);
  ek_tensor *out_in = ck_tensor_of(rig, operation == GRADIENTS ? rig->sum : rig->type, weights,
                                   CK_SHAPE(wide, NARROW));
  ek_tensor *in_out = ck_tensor(rig, weights, CK_SHAPE(NARROW, wide));
  switch (operation) {
  case LINEAR_GELU: return ek_op_linear_gelu(rig->stream, large, &pre, small, out_in, bias);
  case NO_PRE: return ek_op_linear_gelu(rig->stream, large, NULL, small, out_in, bias);
  case BACKWARD:
    return ek_op_gelu_linear_backward(rig->stream, large, bias, small, in_out, &pre, beta);
  case NO_BIAS: return ek_op_gelu_linear_backward(rig->stream, large, NULL, small, in_out, &pre, 0);
  default: return ek_op_linear_gradients(rig->stream, out_in, bias, &pre, small, beta, beta);
  }
}

/* Products of f32 are TF32 here: in f32 GELU is always a kernel's. */
static struct ck_rig *open_rig(ek_type type) {
  struct ck_rig *rig = ck_rig_open(SPEC, type, 1);
  if (type == EK_F32) (void)ek_stream_allow_tf32(rig->stream, true);
  return rig;
}

/* After a first call, in which the shape may have been timed. */
static struct ck_counts count(int operation, ek_type type, int64_t rows, int64_t wide, bool off,
                              double beta) {
  struct ck_rig *rig = open_rig(type);
  ck_ok(call(rig, operation, rows, wide, off, 0));
  const struct ck_counts before = ck_counts_now();
  ck_ok(call(rig, operation, rows, wide, off, beta));
  const struct ck_counts since = ck_counts_since(before);
  ck_rig_close(rig);
  return since;
}

static const ek_type fused_types[] = {EK_F32, EK_BF16, EK_F16};
enum { FUSED_TYPES = sizeof fused_types / sizeof fused_types[0] };

/* Whether a kernel does a part of it: sums that cuBLASLt would round to 16 bits, and a GELU whose
 * input is not wanted, in 16 bits. */
static bool has_kernel(int operation, ek_type type) {
  return type != EK_F32 && (operation == BACKWARD || operation == NO_PRE);
}

/* One call of cuBLASLt and nothing else; what is added to goes through one small kernel. */
CK_LOOP(one_call, FUSED_TYPES) {
  const ek_type type = fused_types[_i];
  for (int operation = 0; operation < OPERATIONS; operation++) {
    for (int beta = 0; beta < 2; beta++) {
      const bool adds = beta != 0 && (operation == BACKWARD || operation == GRADIENTS);
      const bool apart = has_kernel(operation, type);
      const struct ck_counts c = count(operation, type, 5, 16, false, beta);
      ck_counts_are(c, 1, adds || apart ? 1 : 0);
    }
  }
}

/* cuBLASLt's GELU is not close enough for f32. */
CK_RIG_TEST(f32_has_kernels_of_gelu, SPEC, EK_F32) {
  for (int operation = 0; operation < OPERATIONS; operation++) {
    const unsigned long wanted = operation == GRADIENTS ? 0 : operation == BACKWARD ? 2 : 1;
    ck_ok(call(rig, operation, 5, 16, false, 0));
    const struct ck_counts before = ck_counts_now();
    ck_ok(call(rig, operation, 5, 16, false, 0));
    ck_counts_are(ck_counts_since(before), 1, wanted);
  }
}

/* Widths that are no multiple of 8, and addresses beside 16 bytes, only where there is GELU's
 * matrix; f64 and empty products everywhere. */
CK_TEST(ineligible) {
  for (int operation = 0; operation < OPERATIONS; operation++) {
    const bool has_pre = operation != NO_PRE && operation != GRADIENTS;
    for (int64_t wide = 12; wide < 16; wide++) {
      const struct ck_counts odd = count(operation, EK_F32, 5, wide, false, 0);
      ck_assert_uint_eq(odd.products, 1);
      ck_assert_uint_eq(odd.launches > 0, has_pre);
    }
    ck_assert_uint_eq(count(operation, EK_F32, 5, 16, true, 0).launches > 0, has_pre);
    ck_assert_uint_gt(count(operation, EK_F64, 5, 16, false, 0).launches, 0);
    ck_assert_uint_eq(count(operation, EK_F32, 0, 16, false, 0).products, 0);
  }
}

/* What cuBLASLt has no algorithm for is done one by one, again and again, within a group; also a
 * bias. */
CK_LOOP(no_algorithm, 2 * FUSED_TYPES) {
  cuemu_set_epilogues(_i < FUSED_TYPES ? 4 : 0);
  for (int operation = 0; operation < OPERATIONS; operation++) {
    struct ck_rig *rig = open_rig(fused_types[_i % FUSED_TYPES]);
    for (int again = 0; again < 3; again++) {
      const struct ck_counts before = ck_counts_now();
      ck_ok(call(rig, operation, 5, 16, false, 1));
      ck_assert_uint_eq(ck_counts_now().products - before.products, 1);
      ck_assert_uint_gt(ck_counts_now().launches, before.launches);
    }
    ck_rig_close(rig);
  }
}

/* ---- epilogues that are slow ---- */

/* GELU of a product of `rows` x 16 in TF32, in a group of its own. */
static struct ck_counts first_call(int64_t rows, bool deterministic) {
  CK_WITH(ek_group_options, options, EK_GROUP_OPTIONS_INIT, .deterministic = deterministic);
  CK_SCOPED(ek_group *, group, ek_group_open(&group, SPEC, &options));
  ek_device *device = ek_group_device(group, 0);
  CK_HELD(ek_tensor, x, ck_upload(device, EK_F32, NULL, CK_SHAPE(rows, 3)));
  CK_HELD(ek_tensor, w, ck_upload(device, EK_F32, NULL, CK_SHAPE(16, 3)));
  CK_HELD(ek_tensor, bias, ck_upload(device, EK_F32, NULL, CK_SHAPE(16)));
  CK_HELD(ek_tensor, y, ck_upload(device, EK_F32, NULL, CK_SHAPE(rows, 16)));
  ek_stream *stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  (void)ek_stream_allow_tf32(stream, true);
  const struct ck_counts before = ck_counts_now();
  ck_ok(ek_op_linear_gelu(stream, &y, NULL, &x, &w, &bias));
  const struct ck_counts since = ck_counts_since(before);
  ck_ok(ek_group_synchronize(group));
  return since;
}

/* A shape is timed once in the process, two products each way, after one and before the one that
 * counts, and not in a deterministic group, which has no epilogue. */
CK_TEST(epilogues_are_timed) {
  for (int64_t rows = 11; rows < 13; rows++) {
    static const struct ck_counts want[] = {{1, 1}, {6, 3}, {1, 0}, {1, 1}};
    for (int i = 0; i < 4; i++) {
      ck_counts_are(first_call(rows, i % 3 == 0), want[i].products, want[i].launches);
    }
  }
}

static const unsigned slow_ones[] = {
    CUBLASLT_EPILOGUE_GELU, (CUBLASLT_EPILOGUE_DGELU & ~AUX_BIT) | CUBLASLT_EPILOGUE_BGRADB};

/* An epilogue that was timed and lost is not used, in any type, and the others are. So it is later,
 * when it would be fast; another shape has it then. */
CK_LOOP(slow_epilogues_are_not_used, sizeof slow_ones / sizeof slow_ones[0]) {
  static const int operations[] = {NO_PRE, LINEAR_GELU, BACKWARD, GRADIENTS};
  static const unsigned epilogues[] = {CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU,
                                       CUBLASLT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_BGRADB};
  for (int again = 0; again < 3; again++) {
    cuemu_set_slow(again == 0 ? slow_ones[_i] : 0);
    for (int type = 0; type < FUSED_TYPES; type++) {
      for (int i = 0; i < 4; i++) {
        const bool lost = (slow_ones[_i] & epilogues[i]) != 0 && again < 2;
        const bool apart = has_kernel(operations[i], fused_types[type]);
        const int64_t rows = again < 2 ? 21 + _i : 31 + _i;
        const struct ck_counts c = count(operations[i], fused_types[type], rows, 16, false, 0);
        ck_assert_uint_eq(c.products, 1);
        if (!lost) ck_assert_uint_eq(c.launches, apart ? 1 : 0);
        if (lost) ck_assert_uint_ge(c.launches, operations[i] == BACKWARD ? 2 : 1);
      }
    }
  }
}

/* ---- several algorithms ---- */

/* The time of a product without the rest is 1000. */
static const struct {
  unsigned times[4], refused;
  bool deterministic;
  int chosen, timed;
} races[] = {{{9000, 5000, 1000, 7000}, 0, false, 2, 4},
             {{9000, 5000, 1000, 7000}, 4, false, 1, 3},
             {{9000, 5000, 1000, 7000}, 1, false, 2, 3},
             {{1000, 910, 1000, 1000}, 0, false, 0, 4}, /* too little */
             {{9000, 5000, 1000, 7000}, 0, true, 0, 0},
             {{9000, 5000, 1000, 7000}, 4, true, 0, 0}};

/* c = a a + beta c with whole numbers. Returns how many products it took; *chosen is the last
 * one's, if all are by the same. */
static unsigned long product(ek_device *device, int side, double beta, int *chosen) {
  unsigned long before[4], calls = 0;
  double values[32 * 32], got[32 * 32];
  for (int i = 0; i < side * side; i++) values[i] = i % 5 - 2;
  CK_HELD(ek_tensor, a, ck_upload(device, EK_F32, values, CK_SHAPE(side, side)));
  CK_HELD(ek_tensor, c, ck_upload(device, EK_F32, values, CK_SHAPE(side, side)));
  for (int i = 0; i < 4; i++) before[i] = cuemu_counted(CUEMU_BY_ALGORITHM + i);
  ck_ok(ek_op_matmul(ek_device_stream(device, EK_STREAM_COMPUTE), &c, &a, false, &a, false, beta));
  *chosen = -1;
  for (int i = 0; i < 4; i++) {
    const unsigned long more = cuemu_counted(CUEMU_BY_ALGORITHM + i) - before[i];
    if (more > 0) *chosen = *chosen < 0 ? i : -2;
    calls += more;
  }
  ck_get(got, &c);
  for (int i = 0; i < side * side; i++) {
    double want = beta * values[i];
    for (int k = 0; k < side; k++)
      want += values[i / side * side + k] * values[k * side + i % side];
    ck_assert_double_eq(got[i], want);
  }
  return calls;
}

/* A shape is timed once in the process, also for other devices and groups; sums take what was
 * found. */
CK_LOOP(the_fastest_algorithm, sizeof races / sizeof races[0]) {
  const int side = 21 + _i;
  ek_group_options options = EK_GROUP_OPTIONS_INIT;
  options.deterministic = races[_i].deterministic;
  ck_emulate(algorithms, 4);
  cuemu_set_algorithm_times(races[_i].times);
  cuemu_refuse(0, races[_i].refused);
  for (int again = 0; again < 2; again++) {
    int chosen = 0;
    CK_SCOPED(ek_group *, group, ek_group_open(&group, "cuda:0x2@48MiB", &options));
    for (size_t k = 0; k < 2; k++) {
      ek_device *device = ek_group_device(group, k);
      const unsigned long calls = product(device, side, 0, &chosen);
      const bool first = again == 0 && k == 0 && races[_i].timed > 0;
      ck_assert_uint_eq(calls, first ? 2 * (unsigned long)races[_i].timed + 1 : 1);
      for (int beta = 0; beta < 2; beta++) {
        ck_assert_uint_eq(product(device, side, beta, &chosen), 1);
        ck_assert_int_eq(chosen, races[_i].chosen);
      }
    }
  }
}

/* What only adds is not timed: what it would be timed on is needed. */
CK_TEST(a_sum_is_not_timed) {
  int chosen = 0;
  ck_emulate(algorithms, 4);
  cuemu_set_algorithm_times(races[0].times);
  ek_device *device = ck_rig_open(SPEC, EK_F32, 1)->device;
  ck_assert_uint_eq(product(device, 29, 1, &chosen), 1);
  ck_assert_int_eq(chosen, 0);
  ck_assert_uint_gt(product(device, 29, 0, &chosen), 1);
  ck_assert_uint_eq(product(device, 29, 0, &chosen), 1);
  ck_assert_int_eq(chosen, 2);
}

/* ---- a heuristic that is wrong ---- */

static const struct {
  unsigned by_heuristic, by_product; /* algorithms that it says do not work, and that do not */
} wrong[] = {{0, 1}, {1, 0}, {3, 4}, {~0u, 0}, {0, ~0u}, {5, 10}};

/* y = x w^T + bias: 257 + 3 is 260 and 257 - 1 is 256 in bf16 too, where 257 is 256. */
static void check_bias(struct ck_rig *rig) {
  const double x[] = {16, 1, 1}, w[] = {16, 1, 0, 16, 0, 1}, bias[] = {3, -1};
  ek_tensor *y = ck_poisoned(rig, CK_SHAPE(1, 2));
  ck_ok(ek_op_linear(rig->stream, y, ck_tensor(rig, x, CK_SHAPE(1, 3)),
                     ck_tensor(rig, w, CK_SHAPE(2, 3)), ck_tensor(rig, bias, CK_SHAPE(2))));
  const double *got = ck_read(rig, y);
  ck_assert_double_eq(got[0], 260);
  ck_assert_double_eq(got[1], 256);
}

/* The next algorithm has its turn, and what was refused is not asked for again; where none is left,
 * the library chooses for a plain product, but not for one of 16 bits, and kernels do the rest. */
CK_LOOP(refused_algorithms, sizeof wrong / sizeof wrong[0]) {
  static const ek_type types[] = {EK_F32, EK_F64, EK_BF16, EK_F16};
  const bool all = ((wrong[_i].by_heuristic | wrong[_i].by_product) & 15) == 15; /* of four */
  ck_emulate(algorithms, 4);
  cuemu_refuse(wrong[_i].by_heuristic, wrong[_i].by_product);
  for (int type = 0; type < 4; type++) {
    struct ck_rig *rig = ck_rig_open(SPEC, types[type], 1);
    const double *a = ck_integers(rig, 6, -4, 4), *b = ck_integers(rig, 6, -4, 4);
    ek_tensor *x = ck_tensor(rig, a, CK_SHAPE(2, 3)), *w = ck_tensor(rig, b, CK_SHAPE(3, 2));
    ek_tensor *y = ck_poisoned(rig, CK_SHAPE(2, 2));
    for (int again = 0; again < 3; again++) {
      const unsigned long before = ck_counts_now().products;
      ck_ok(ek_op_matmul(rig->stream, y, x, false, w, false, 0));
      const double *got = ck_read(rig, y);
      for (int i = 0; i < 4; i++) {
        const double *row = a + i / 2 * 3, *column = b + i % 2;
        ck_assert_double_eq(got[i], row[0] * column[0] + row[1] * column[2] + row[2] * column[4]);
      }
      if (again > 0) { /* else it is timed */
        ck_assert_uint_eq(ck_counts_now().products - before, all && type > 1 ? 0 : 1);
      }
    }
    check_bias(rig);
    for (int operation = 0; operation < OPERATIONS && type != 1; operation++) {
      ck_ok(call(rig, operation, 5, 16, false, 1));
      ck_ok(ek_stream_synchronize(rig->stream));
    }
    ck_rig_close(rig);
  }
}

/* ---- shapes and addresses that cuBLASLt takes badly ---- */

/* `count` whole numbers in a view that begins one element after a multiple of 16 bytes. */
static ek_tensor *off_by_one(struct ck_rig *rig, ek_type type, const double *values,
                             int64_t count) {
  double *more = ck_values(rig, count + 1, 0, 0);
  for (int64_t i = 0; i < count; i++) more[i + 1] = values[i];
  ek_tensor *view = ck_tensor_of(rig, type, more, CK_SHAPE(count + 1));
  view->data = (char *)view->data + ek_type_size(type);
  view->shape[0] = count;
  return view;
}

/* y = x w^T + bias, and the bias's gradient sums + the columns of y, both off by an element. */
static void check_linear(struct ck_rig *rig, int64_t rows, int64_t in, int64_t out) {
  const double *x = ck_integers(rig, rows * in, -4, 4), *w = ck_integers(rig, out * in, -4, 4);
  const double *bias = ck_integers(rig, out, -4, 4), *old = ck_integers(rig, out, -4, 4);
  ek_tensor *y = ck_poisoned(rig, CK_SHAPE(rows, out));
  ek_tensor *from = ck_tensor(rig, x, CK_SHAPE(rows, in));
  ek_tensor *dw = ck_tensor_of(rig, rig->sum, ck_values(rig, out * in, 0, 0), CK_SHAPE(out, in));
  ek_tensor *sums = off_by_one(rig, rig->sum, old, out);
  double want[64] = {0};
  ck_ok(ek_op_linear(rig->stream, y, from, ck_tensor(rig, w, CK_SHAPE(out, in)),
                     off_by_one(rig, rig->type, bias, out)));
  ck_ok(ek_op_linear_gradients(rig->stream, dw, sums, y, from, 0, 1));
  const double *got = ck_read(rig, y);
  for (int64_t i = 0; i < rows * out; i++) {
    double sum = bias[i % out];
    for (int64_t k = 0; k < in; k++) sum += x[i / out * in + k] * w[i % out * in + k];
    ck_assert_double_eq(got[i], sum);
    want[i % out] += sum;
  }
  got = ck_read(rig, sums);
  for (int64_t i = 0; i < out; i++) ck_assert_double_eq(got[i], old[i] + want[i]);
}

CK_LOOP(vectors_that_are_not_aligned, FUSED_TYPES) {
  struct ck_rig *rig = ck_rig_open(SPEC, fused_types[_i], 1);
  check_linear(rig, 3, 5, 16);
  check_linear(rig, 2, 8, 7);
}

/* A linear layer with one output is such a product: every regression has one. */
CK_LOOP(sizes_of_one, 2 * FUSED_TYPES) {
  cuemu_call_ones_invalid(_i / FUSED_TYPES == 1);
  for (int64_t sizes = 0; sizes < 8; sizes++) {
    struct ck_rig *rig = ck_rig_open(SPEC, fused_types[_i % FUSED_TYPES], 1);
    check_linear(rig, sizes % 2 * 3 + 1, sizes / 2 % 2 * 4 + 1, sizes / 4 * 15 + 1);
    if (sizes < OPERATIONS) {
      ck_ok(call(rig, (int)sizes, 1, 16, false, 1));
      ck_ok(ek_stream_synchronize(rig->stream));
    }
    ck_rig_close(rig);
  }
}

CK_EMULATED_SUITE("cuda epilogues")
