/*
 * check_cuda_epilogues.c - which products cuBLASLt is given whole, and by which of its algorithms,
 * and that it makes no difference.
 *
 * Values are the matter of check_products; here calls of cuBLASLt and launches of kernels are
 * counted, and products whose rows are not aligned. Runs on tests/cuemu: see CMakeLists.txt here.
 */
#include "ck_chained.h"
#include "ck_emulated.h"
#include "ck_gpt.h"
#include "ck_module.h"
#include "cublasLt.h"

#define SPEC "cuda:0@64MiB"
/* Of epilogues with GELU's matrix. */
#define AUX_BIT ((unsigned)CUBLASLT_EPILOGUE_GELU_AUX & ~(unsigned)CUBLASLT_EPILOGUE_GELU)

/* ---- one operation ---- */

enum operation { LINEAR_GELU, NO_PRE, BACKWARD, NO_BIAS, GRADIENTS, OPERATIONS };

struct counts {
  unsigned long products, launches;
};

static struct counts counts_now(void) {
  return (struct counts){cuemu_calls(0, CUEMU_BLAS), cuemu_calls(0, CUEMU_LAUNCH)};
}

static struct counts counts_since(struct counts before) {
  const struct counts now = counts_now();
  return (struct counts){now.products - before.products, now.launches - before.launches};
}

/* GELU's matrix is rows x wide; what is summed has `wide` columns, too. */
static ek_status call(struct ck_rig *rig, enum operation operation, int64_t rows, int64_t wide,
                      bool off, double beta) {
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
static struct counts count(enum operation operation, ek_type type, int64_t rows, int64_t wide,
                           bool off, double beta) {
  struct ck_rig *rig = open_rig(type);
  ck_ok(call(rig, operation, rows, wide, off, 0));
  const struct counts before = counts_now();
  ck_ok(call(rig, operation, rows, wide, off, beta));
  const struct counts since = counts_since(before);
  ck_rig_close(rig);
  return since;
}

static const ek_type fused_types[] = {EK_F32, EK_BF16, EK_F16};
enum { FUSED_TYPES = sizeof fused_types / sizeof fused_types[0] };

/* Whether a kernel does a part of it: sums that cuBLASLt would round to 16 bits, and a GELU whose
 * input is not wanted, in 16 bits. */
static bool has_kernel(enum operation operation, ek_type type) {
  return type != EK_F32 && (operation == BACKWARD || operation == NO_PRE);
}

/* One call of cuBLASLt and nothing else; what is added to goes through one small kernel. */
CK_LOOP(one_call, FUSED_TYPES) {
  const ek_type type = fused_types[_i];
  for (int operation = 0; operation < OPERATIONS; operation++) {
    for (int beta = 0; beta < 2; beta++) {
      const bool adds = beta != 0 && (operation == BACKWARD || operation == GRADIENTS);
      const bool apart = has_kernel((enum operation)operation, type);
      const struct counts c = count((enum operation)operation, type, 5, 16, false, beta);
      ck_assert_uint_eq(c.products, 1);
      ck_assert_uint_eq(c.launches, adds || apart ? 1 : 0);
    }
  }
}

/* cuBLASLt's GELU is not close enough for f32. */
CK_RIG_TEST(f32_has_kernels_of_gelu, SPEC, EK_F32) {
  for (int operation = 0; operation < OPERATIONS; operation++) {
    const unsigned long wanted = operation == GRADIENTS ? 0 : operation == BACKWARD ? 2 : 1;
    ck_ok(call(rig, (enum operation)operation, 5, 16, false, 0));
    const struct counts before = counts_now();
    ck_ok(call(rig, (enum operation)operation, 5, 16, false, 0));
    ck_assert_uint_eq(counts_since(before).products, 1);
    ck_assert_uint_eq(counts_since(before).launches, wanted);
  }
}

/* Widths that are no multiple of 8, and addresses beside 16 bytes, only where there is GELU's
 * matrix; f64 and empty products everywhere. */
CK_TEST(ineligible) {
  for (int operation = 0; operation < OPERATIONS; operation++) {
    const bool has_pre = operation != NO_PRE && operation != GRADIENTS;
    for (int64_t wide = 12; wide < 16; wide++) {
      const struct counts odd = count((enum operation)operation, EK_F32, 5, wide, false, 0);
      ck_assert_uint_eq(odd.products, 1);
      ck_assert_uint_eq(odd.launches > 0, has_pre);
    }
    ck_assert_uint_eq(count((enum operation)operation, EK_F32, 5, 16, true, 0).launches > 0,
                      has_pre);
    ck_assert_uint_gt(count((enum operation)operation, EK_F64, 5, 16, false, 0).launches, 0);
    ck_assert_uint_eq(count((enum operation)operation, EK_F32, 0, 16, false, 0).products, 0);
  }
}

/* What cuBLASLt has no algorithm for is done one by one, again and again, within a group; also a
 * bias. */
CK_LOOP(no_algorithm, 2 * FUSED_TYPES) {
  cuemu_set_epilogues(_i < FUSED_TYPES ? 4 : 0);
  for (int operation = 0; operation < OPERATIONS; operation++) {
    struct ck_rig *rig = open_rig(fused_types[_i % FUSED_TYPES]);
    for (int again = 0; again < 3; again++) {
      const struct counts before = counts_now();
      ck_ok(call(rig, (enum operation)operation, 5, 16, false, 1));
      ck_assert_uint_eq(counts_now().products - before.products, 1);
      ck_assert_uint_gt(counts_now().launches, before.launches);
    }
    ck_rig_close(rig);
  }
}

/* ---- epilogues that are slow ---- */

/* GELU of a product of `rows` x 16 in TF32, in a group of its own. */
static struct counts first_call(int64_t rows, bool deterministic) {
  CK_WITH(ek_group_options, options, EK_GROUP_OPTIONS_INIT, .deterministic = deterministic);
  CK_SCOPED(ek_group *, group, ek_group_open(&group, SPEC, &options));
  ek_device *device = ek_group_device(group, 0);
  CK_HELD(ek_tensor, x, ck_upload(device, EK_F32, NULL, CK_SHAPE(rows, 3)));
  CK_HELD(ek_tensor, w, ck_upload(device, EK_F32, NULL, CK_SHAPE(16, 3)));
  CK_HELD(ek_tensor, bias, ck_upload(device, EK_F32, NULL, CK_SHAPE(16)));
  CK_HELD(ek_tensor, y, ck_upload(device, EK_F32, NULL, CK_SHAPE(rows, 16)));
  ek_stream *stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  (void)ek_stream_allow_tf32(stream, true);
  const struct counts before = counts_now();
  ck_ok(ek_op_linear_gelu(stream, &y, NULL, &x, &w, &bias));
  const struct counts since = counts_since(before);
  ck_ok(ek_group_synchronize(group));
  return since;
}

/* A shape is timed once in the process, two products each way, after one and before the one that
 * counts, and not in a deterministic group, which has no epilogue. */
CK_TEST(epilogues_are_timed) {
  for (int64_t rows = 11; rows < 13; rows++) {
    static const struct counts want[] = {{1, 1}, {6, 3}, {1, 0}, {1, 1}};
    for (int i = 0; i < 4; i++) {
      const struct counts c = first_call(rows, i % 3 == 0);
      ck_assert_uint_eq(c.products, want[i].products);
      ck_assert_uint_eq(c.launches, want[i].launches);
    }
  }
}

static const unsigned slow_ones[] = {
    CUBLASLT_EPILOGUE_GELU, (CUBLASLT_EPILOGUE_DGELU & ~AUX_BIT) | CUBLASLT_EPILOGUE_BGRADB};

/* An epilogue that was timed and lost is not used, in any type, and the others are. So it is later,
 * when it would be fast; another shape has it then. */
CK_LOOP(slow_epilogues_are_not_used, sizeof slow_ones / sizeof slow_ones[0]) {
  static const enum operation operations[] = {NO_PRE, LINEAR_GELU, BACKWARD, GRADIENTS};
  static const unsigned epilogues[] = {CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU,
                                       CUBLASLT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_BGRADB};
  for (int again = 0; again < 3; again++) {
    cuemu_set_slow(again == 0 ? slow_ones[_i] : 0);
    for (int type = 0; type < FUSED_TYPES; type++) {
      for (int i = 0; i < 4; i++) {
        const bool lost = (slow_ones[_i] & epilogues[i]) != 0 && again < 2;
        const bool apart = has_kernel(operations[i], fused_types[type]);
        const int64_t rows = again < 2 ? 21 + _i : 31 + _i;
        const struct counts c = count(operations[i], fused_types[type], rows, 16, false, 0);
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
      const unsigned long before = counts_now().products;
      ck_ok(ek_op_matmul(rig->stream, y, x, false, w, false, 0));
      const double *got = ck_read(rig, y);
      for (int i = 0; i < 4; i++) {
        const double *row = a + i / 2 * 3, *column = b + i % 2;
        ck_assert_double_eq(got[i], row[0] * column[0] + row[1] * column[2] + row[2] * column[4]);
      }
      if (again > 0) { /* else it is timed */
        ck_assert_uint_eq(counts_now().products - before, all && type > 1 ? 0 : 1);
      }
    }
    check_bias(rig);
    for (int operation = 0; operation < OPERATIONS && type != 1; operation++) {
      ck_ok(call(rig, (enum operation)operation, 5, 16, false, 1));
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
      ck_ok(call(rig, (enum operation)sizes, 1, 16, false, 1));
      ck_ok(ek_stream_synchronize(rig->stream));
    }
    ck_rig_close(rig);
  }
}

/* ---- a model ---- */

static ek_status create(ek_module **module) {
  return ek_mlp_create(module, (const int64_t[]){6, 16, 24, 5}, 4, EK_ACTIVATION_GELU);
}

static ek_status create_cheap(ek_module **module) {
  ek_module *layers[5];
  ek_sequential_options options = EK_SEQUENTIAL_OPTIONS_INIT;
  options.recompute.kind = EK_RECOMPUTE_CHEAP;
  for (int i = 0; i < 5; i++) {
    static const int64_t sizes[] = {6, 16, 24, 5};
    EK_TRY(i % 2 == 1 ? ek_activation_create(&layers[i], EK_ACTIVATION_GELU)
                      : ek_linear_create(&layers[i], sizes[i / 2], sizes[i / 2 + 1], true));
    ck_keep(layers[i]);
  }
  return ek_sequential_create_with(module, layers, 5, &options);
}

/* The second backward is counted: shapes are timed in the first. */
static struct ck_results *run_of(const struct ck_module_case *is, unsigned epilogues,
                                 struct counts *step, uint64_t *peak) {
  cuemu_set_epilogues(epilogues);
  struct ck_bed *bed = ck_bed_open(is, EK_F32, SPEC);
  (void)ck_bed_backward(bed, is->input->type != EK_I32);
  const struct counts before = counts_now();
  struct ck_results *results = ck_bed_backward(bed, is->input->type != EK_I32);
  *step = counts_since(before);
  CK_GOT(ek_memory_usage, usage, ek_memory_stats(&usage, bed->device));
  *peak = usage.peak_bytes;
  ck_bed_close(bed);
  cuemu_set_epilogues(~0u);
  return results;
}

static struct ck_results *run(ek_status (*create_one)(ek_module **), unsigned epilogues,
                              struct counts *step, uint64_t *peak) {
  const struct ck_module_case is = {
      .name = "6 16 24 5", .create = create_one, .input = {{0, 2, {70, 6}, -1, 1, 0}}};
  return run_of(&is, epilogues, step, peak);
}

/* Three linears: three products forward and six backward. There are two kernels of GELU forward and
 * two backward, since this is f32, and three sums of columns of two launches: the third of them is
 * fused, because no GELU is in its way. 1e-6 is 16 u: the order of sums differs. */
CK_TEST(model) {
  struct counts fused, plain;
  uint64_t fused_peak, plain_peak;
  struct ck_results *a = run(create, ~0u, &fused, &fused_peak);
  struct ck_results *b = run(create, 4, &plain, &plain_peak);
  ck_assert_uint_eq(fused.products, 9);
  ck_assert_uint_eq(fused.launches, 8);
  ck_assert_uint_eq(plain.products, 9);
  ck_assert_uint_eq(plain.launches, 10);
  ck_assert_uint_eq(fused_peak, plain_peak);
  ck_assert(ck_results_near(a, b, 1e-6));
}

/* What is made again is always a kernel's: two GELUs more. */
CK_TEST(cheap_recomputation_has_kernels) {
  struct counts step;
  uint64_t peak;
  (void)run(create_cheap, ~0u, &step, &peak);
  ck_assert_uint_eq(step.products, 9);
  ck_assert_uint_eq(step.launches, 10);
}

/* ---- rows of logits ---- */

enum { VOCABULARY = 37, WIDTH = 8, SAMPLES = 3, TOKENS = 5 };

static ek_tensor batch_of(int32_t tokens[SAMPLES * TOKENS]) {
  for (int i = 0; i < SAMPLES * TOKENS; i++) tokens[i] = i % VOCABULARY;
  CK_GOT(ek_tensor, batch, ek_tensor_host(&batch, tokens, EK_I32, CK_SHAPE(SAMPLES, TOKENS)));
  return batch;
}

/* Takes the module over. */
static ek_trainer *open_trainer(ek_module *module, bool fused_loss, ek_type type) {
  ek_criterion *loss = NULL;
  ek_data_parallel_model_options model_options = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  CK_WITH(ek_trainer_options, options, EK_TRAINER_OPTIONS_INIT, .model = &model_options);
  model_options.precision = (ek_precision)type;
  CK_WITH(ek_cross_entropy_options, entropy, EK_CROSS_ENTROPY_OPTIONS_INIT, .classes = VOCABULARY);
  if (!fused_loss) ck_ok(ek_cross_entropy_create(&loss, &entropy));
  CK_GOT(ek_optimizer *, optimizer, ek_sgd_create(&optimizer, NULL));
  CK_GOT(ek_trainer *, trainer, ek_trainer_open(&trainer, SPEC, module, loss, optimizer, &options));
  ek_optimizer_free(optimizer);
  ek_criterion_free(loss);
  ek_module_free(module);
  return trainer;
}

static ek_trainer *open_gpt(const ek_gpt_options *o, ek_type type) {
  CK_GOT(ek_module *, gpt, ek_gpt_create(&gpt, o));
  return open_trainer(gpt, o->fused_loss, type);
}

/* How many products of a step, forward, backward and update, have rows beside 16 bytes. */
static unsigned long unaligned_in_a_step(const ek_gpt_options *o, ek_type type) {
  int32_t tokens[SAMPLES * TOKENS];
  const ek_tensor batch = batch_of(tokens);
  ek_trainer *trainer = open_gpt(o, type);
  const unsigned long before = cuemu_counted(CUEMU_UNALIGNED_PRODUCTS);
  ck_ok(ek_trainer_step(NULL, trainer, &batch, 1, &batch, 1));
  const unsigned long after = cuemu_counted(CUEMU_UNALIGNED_PRODUCTS);
  ck_ok(ek_trainer_close(trainer));
  return after - before;
}

/* The head's product and its two ways back have an odd vocabulary: with whole logits all three. */
CK_TEST(rows_of_logits_are_aligned) {
  ek_gpt_options o = ck_gpt_sizes(VOCABULARY, TOKENS, WIDTH, 0, 1);
  for (int type = 0; type < FUSED_TYPES; type++) {
    ck_assign(o, .fused_loss = false, .logits_columns = 0);
    ck_assert_uint_eq(unaligned_in_a_step(&o, fused_types[type]), 3);
    o.logits_columns = ek_tensor_aligned_columns(VOCABULARY, fused_types[type]);
    ck_assert_uint_eq(unaligned_in_a_step(&o, fused_types[type]), 0);
    ck_assign(o, .logits_columns = 0, .fused_loss = true);
    ck_assert_uint_eq(unaligned_in_a_step(&o, fused_types[type]), 0);
  }
}

/* ---- before the first step ---- */

/* A step that was prepared for times nothing: it has the products of every later one. A step that
 * repeats describes nothing to cuBLASLt, and no step asks for shared memory that a kernel has. */
CK_LOOP(prepared_steps_time_nothing, 4) {
  enum { STEPS = 3 };
  int32_t tokens[SAMPLES * TOKENS];
  const ek_tensor batch = batch_of(tokens);
  unsigned long products[STEPS], described[STEPS], asked = 0;
  const int width = 16 * (_i + 1); /* shapes that the process has not seen */
  ek_gpt_options o = ck_gpt_sizes(VOCABULARY, TOKENS, width, 2, 2);
  ck_assign(o, .dropout = 0.25, .fused_loss = _i / 2 == 1);
  ck_emulate(algorithms, 4);
  ek_trainer *trainer = open_gpt(&o, EK_F32);
  if (_i % 2 == 1) ck_ok(ek_trainer_prepare(trainer, &batch, 1, &batch, 1));
  for (int i = 0; i < STEPS; i++) {
    const unsigned long before = counts_now().products, known = cuemu_counted(CUEMU_DESCRIPTIONS);
    const unsigned long attributes = cuemu_counted(CUEMU_ATTRIBUTE_CALLS);
    ck_ok(ek_trainer_step(NULL, trainer, &batch, 1, &batch, 1));
    asked += cuemu_counted(CUEMU_ATTRIBUTE_CALLS) - attributes;
    products[i] = counts_now().products - before;
    described[i] = cuemu_counted(CUEMU_DESCRIPTIONS) - known;
  }
  ck_assert_uint_eq(products[1], products[2]);
  ck_assert_uint_eq(asked, 0);
  ck_assert_uint_eq(described[1] + described[2] + (_i % 2 == 1 ? described[0] : 0), 0);
  if (_i % 2 == 0) ck_assert_uint_gt(described[0], 0);
  if (_i % 2 == 1)
    ck_assert_uint_eq(products[0], products[1]);
  else
    ck_assert_uint_gt(products[0], 2 * products[1]);
  ck_ok(ek_trainer_close(trainer));
}

/* ---- rows after a table ---- */

enum { TABLE = 8200, TABLE_STEPS = 3 };

/* A GPT with a table of 8200 tokens; a loss of whole logits knows nothing of rows after it. */
static ek_trainer *open_table(const char *spec, bool fused_loss, ek_mode mode, ek_type type,
                              ek_type gradient_type) {
  ek_data_parallel_model_options model = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  ek_criterion *loss = NULL;
  CK_WITH(ek_gpt_options, o, ck_gpt_sizes(TABLE, TOKENS, WIDTH, 1, 1), .fused_loss = fused_loss);
  ck_assign(model, .precision = (ek_precision)type, .gradient_type = gradient_type);
  ck_ok(ek_data_parallel_model_options_set_mode(&model, mode));
  CK_WITH(ek_trainer_options, options, EK_TRAINER_OPTIONS_INIT, .model = &model);
  CK_SCOPED(ek_module *, gpt, ek_gpt_create(&gpt, &o));
  if (!fused_loss) ck_ok(ek_cross_entropy_create(&loss, NULL));
  CK_SCOPED(ek_optimizer *, optimizer, ek_adamw_create(&optimizer, NULL));
  CK_GOT(ek_trainer *, trainer, ek_trainer_open(&trainer, spec, gpt, loss, optimizer, &options));
  ek_criterion_free(loss);
  return trainer;
}

static void train_table(ek_trainer *trainer, int steps) {
  int32_t tokens[SAMPLES * TOKENS], next[SAMPLES * TOKENS];
  for (int i = 0; i < SAMPLES * TOKENS; i++) {
    tokens[i] = i * 547 % TABLE;
    next[i] = (i * 911 + TABLE - 3) % TABLE;
  }
  CK_GOT(ek_tensor, input, ek_tensor_host(&input, tokens, EK_I32, CK_SHAPE(SAMPLES, TOKENS)));
  CK_GOT(ek_tensor, target, ek_tensor_host(&target, next, EK_I32, CK_SHAPE(SAMPLES, TOKENS)));
  for (int i = 0; i < steps; i++) ck_ok(ek_trainer_step(NULL, trainer, &input, 1, &target, 1));
}

/* All numbers of the state, end to end, of the type of the host; with `write` they are written. */
static int64_t table_state(double *values, ek_trainer *trainer, bool write) {
  ek_data_parallel_model *model = ek_trainer_model(trainer);
  int64_t total = 0;
  for (size_t i = 0; i < ek_state_count(model); i++) {
    ek_tensor host;
    CK_GOT(ek_state_info, info, ek_state_entry(&info, model, i));
    const ek_type type = info.like.type == EK_F32 ? EK_F64 : info.like.type;
    ck_ok(ek_tensor_host(&host, values + total, type, info.like.rank, info.like.shape));
    ck_ok(write ? ek_state_write(model, info.name, &host) : ek_state_read(&host, model, info.name));
    total += ek_tensor_count(&info.like);
  }
  return total;
}

enum { TABLE_STATE = 3 * (TABLE * WIDTH + 4096) };

static double *numbers(void) { return ck_array(TABLE_STATE, sizeof(double)); }

/* The head's products have the rows that follow the table, and no odd sizes, except that of a
 * gradient that the pass lends; the parameters and their states are those of a model whose products
 * have not, bit for bit. */
CK_LOOP(a_table_has_more_rows_for_products, FUSED_TYPES + 1) {
  const bool lends = _i == FUSED_TYPES;
  const ek_type type = lends ? EK_BF16 : fused_types[_i];
  double *values[2];
  int64_t count[2];
  for (int fused = 0; fused < 2; fused++) {
    ek_trainer *trainer =
        open_table(SPEC, fused == 1, EK_MODE_REPLICATED, type, lends ? EK_BF16 : EK_F32);
    const unsigned long before = cuemu_counted(CUEMU_UNEVEN_PRODUCTS);
    train_table(trainer, TABLE_STEPS);
    ck_assert_uint_eq(cuemu_counted(CUEMU_UNEVEN_PRODUCTS) - before, fused == 0 ? 3
                                                                     : lends    ? 1
                                                                                : 0);
    values[fused] = numbers();
    count[fused] = table_state(values[fused], trainer, false);
    ck_assert_int_le(count[fused], TABLE_STATE);
    ck_ok(ek_trainer_close(trainer));
  }
  ck_assert_int_eq(count[0], count[1]);
  ck_same_bits("the table", values[1], values[0], count[0]);
}

/* A step of NaN leaves NaN after the table, too. A state that is loaded clears that. */
CK_LOOP(a_state_clears_the_rows_after_a_table, 3) {
  static const ek_mode modes[] = {EK_MODE_REPLICATED, EK_MODE_SHARDED_GRADIENTS,
                                  EK_MODE_FULLY_SHARDED};
  double *saved = numbers(), *bad = numbers(), *values[2];
  int64_t count = 0;
  ek_trainer *trainer =
      open_table("cuda:0x2@64MiB", true, modes[_i], _i == 1 ? EK_BF16 : EK_F32, EK_F32);
  train_table(trainer, 1);
  count = table_state(saved, trainer, false);
  for (int again = 0; again < 2; again++) {
    memcpy(bad, saved, (size_t)count * sizeof *bad);
    bad[0] = NAN; /* the first token's, and so all of dx */
    if (again == 1) (void)table_state(bad, trainer, true);
    if (again == 1) train_table(trainer, 2);
    (void)table_state(saved, trainer, true);
    train_table(trainer, 1);
    values[again] = numbers();
    (void)table_state(values[again], trainer, false);
  }
  ck_assert_int_ne(isfinite(values[0][0]), 0);
  ck_same_bits("after NaN", values[1], values[0], count);
  ck_ok(ek_trainer_close(trainer));
}

/* Nor does a gradient keep what a step has left there, when a module begins it that knows only the
 * table's own rows. */
CK_TEST(a_gradient_begins_with_zeros_after_a_table) {
  enum { COUNT = 8256 * WIDTH };
  static double got[COUNT];
  ek_device *device = ek_group_device(ck_open_exactly(SPEC, 1), 0);
  CK_OPENED(ek_module *, table, ek_embedding_create(&table, TABLE, WIDTH, 0));
  CK_OPENED(ek_replica *, replica, ek_replica_open(&replica, device, table, NULL));
  ek_tensor gradients = *ek_replica_gradients(replica);
  ck_assert_int_eq(ek_tensor_count(&gradients), COUNT);
  ck_ok(ek_op_fill(ek_device_stream(device, EK_STREAM_COMPUTE), &gradients, NAN));
  CK_HELD(ek_tensor, tokens, ck_upload(device, EK_I32, (const double[]){7}, CK_SHAPE(1)));
  CK_OPENED(ek_pass *, pass, ek_pass_open(&pass, replica, NULL));
  CK_GOT(ek_tensor, output, ek_pass_run_forward(&output, pass, &tokens));
  ck_ok(ek_pass_run_backward(NULL, pass, &output));
  ek_tensor_free(&output);
  ck_get(got, &gradients);
  for (int i = 0; i < COUNT; i++) ck_assert_int_ne(isfinite(got[i]), 0);
}

/* GPT-2 124M: 47 rows more, 0.03 % of the parameters; no file has them. */
CK_TEST(rows_after_a_table_are_few) {
  uint64_t bytes[2];
  ek_gpt_options o = EK_GPT_OPTIONS_INIT;
  CK_OPENED(ek_module *, gpt, ek_gpt_create(&gpt, &o));
  for (int i = 0; i < 2; i++) {
    ek_replica *replica = NULL;
    ek_group *group = ck_open_exactly(i == 0 ? "plan:1" : "plan-cuda:1", 1);
    ck_kept(ek_replica_open(&replica, ek_group_device(group, 0), gpt, NULL), replica);
    bytes[i] = (uint64_t)ek_tensor_count(ek_replica_parameters(replica)) * 4;
    CK_GOT(ek_parameter_info, info, ek_replica_find(&info, replica, "tokens.weight"));
    ck_assert_int_eq(info.value.shape[0], 50257);
  }
  ck_assert_uint_eq(bytes[1] - bytes[0], (50304 - 50257) * 768 * 4);
}

/* ---- decoders from the public headers alone ---- */

enum { GPT, LLAMA, FAMILIES };

static ek_module *decoder_of(int family, bool own) {
  const ek_gpt_options gpt = ck_gpt_sizes(VOCABULARY, TOKENS, WIDTH, 2, 2);
  ek_llama_options llama = EK_LLAMA_OPTIONS_INIT;
  ek_module *made = NULL;
  ck_assign(llama, .vocabulary = VOCABULARY, .sequence = TOKENS, .width = WIDTH, .hidden = 24);
  llama.layers = llama.heads = 2;
  if (family == GPT) ck_ok(own ? ck_chained_gpt_create(&made, &gpt) : ek_gpt_create(&made, &gpt));
  if (family == LLAMA) {
    ck_ok(own ? ck_chained_llama_create(&made, &llama) : ek_llama_create(&made, &llama));
  }
  return made;
}

/* They make as many calls of cuBLASLt and launches of kernels in a step as the stock ones. */
CK_LOOP(decoders_of_ones_own, FAMILIES *FUSED_TYPES) {
  struct counts step[2];
  uint64_t peak[2];
  int32_t tokens[SAMPLES * TOKENS];
  const ek_tensor batch = batch_of(tokens);
  const int family = _i % FAMILIES;
  for (int own = 0; own < 2; own++) {
    ek_trainer *trainer =
        open_trainer(decoder_of(family, own), false, fused_types[_i / FAMILIES]);
    ek_memory_usage usage;
    ck_ok(ek_trainer_step(NULL, trainer, &batch, 1, &batch, 1)); /* times algorithms */
    const struct counts before = counts_now();
    ck_ok(ek_trainer_step(NULL, trainer, &batch, 1, &batch, 1));
    step[own] = counts_since(before);
    ck_ok(ek_memory_stats(&usage, ek_group_device(ek_trainer_group(trainer), 0)));
    peak[own] = usage.peak_bytes;
    ck_ok(ek_trainer_close(trainer));
  }
  /* Per layer four products or five, forward and twice back; once the head's. */
  ck_assert_uint_ge(step[0].products, 2 * (family == GPT ? 4 : 5) * 3 + 3);
  ck_assert_uint_eq(step[1].products, step[0].products);
  ck_assert_uint_eq(step[1].launches, step[0].launches);
  ck_assert_uint_eq(peak[1], peak[0]);
}

CK_EMULATED_SUITE("cuda epilogues")
