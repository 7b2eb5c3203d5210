/*
 * check_lookup.c - the operations of lookup.h against plain loops.
 *
 * Bounds, with u the unit roundoff of the type:
 *   lookup_forward       equal without positions (a copy); u |table + position| with them
 *   lookup_backward      equal: the header fixes the order of the additions, so a loop in the type
 *                        itself gives the same bits
 *   positions_backward   (n / period + 2) u (|beta old| + sum |dy|): additions in any order
 */
#include "ek_check.h"

/* entries, width, rows, period */
static const int64_t sizes[][4] = {{1, 1, 1, 1},        {5, 3, 0, 2},       {7, 0, 6, 3},
                                   {5, 17, 12, 4},      {100, 33, 300, 25}, {9, 64, 4096, 128},
                                   {40, 1100, 300, 30}, {1000, 16, 77, 77}};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

CK_RIG_CASES(forward, s, SIZES) {
  const int64_t entries = sizes[s][0], width = sizes[s][1], rows = sizes[s][2];
  const int64_t period = sizes[s][3], n = rows * width;
  double *table = ck_values(rig, entries * width, -1, 1);
  double *positions = ck_values(rig, (period + 1) * width, -1, 1);
  double *index = ck_integers(rig, rows, 0, entries - 1);
  double *copied = ck_zeros(rig, n), *sum = ck_zeros(rig, n), *bound = ck_zeros(rig, n);
  for (int64_t i = 0; i < n; i++) {
    copied[i] = table[(int64_t)index[i / width] * width + i % width];
    sum[i] = copied[i] + positions[i / width % period * width + i % width];
    bound[i] = rig->unit * fabs(sum[i]);
    if (rig->type == EK_F32) sum[i] = (double)(float)sum[i], bound[i] = 0;
  }
  ek_tensor *ttable = ck_tensor(rig, table, CK_SHAPE(entries, width));
  ek_tensor *tindex = ck_tensor_of(rig, EK_I32, index, CK_SHAPE(1, rows));
  ek_tensor *tpositions = ck_tensor(rig, positions, CK_SHAPE(period + 1, width));
  ek_tensor *y = ck_poisoned(rig, CK_SHAPE(1, rows, width));
  ck_ok(ek_op_lookup_forward(rig->stream, y, ttable, tindex, NULL, 0));
  ck_same_bits("rows", ck_read(rig, y), copied, n);
  ck_set(y, NULL);
  ck_ok(ek_op_lookup_forward(rig->stream, y, ttable, tindex, tpositions, period));
  ck_fits(rig, "rows with positions", y, sum, bound, n);
}

CK_RIG_CASES(backward_adds_in_order, s, SIZES) {
  const int64_t entries = sizes[s][0], width = sizes[s][1], rows = sizes[s][2];
  double *dtable = ck_values(rig, entries * width, -1, 1);
  double *dy = ck_values(rig, rows * width, -1, 1);
  double *index = ck_integers(rig, rows, 0, entries - 1);
  ek_tensor *tdtable = ck_sums(rig, dtable, CK_SHAPE(entries, width));
  for (int64_t i = 0; i < rows * width; i++) {
    double *to = &dtable[(int64_t)index[i / width] * width + i % width];
    *to = ck_round_to(rig->sum, *to + dy[i]); /* exact in double, or rounds once */
  }
  ck_ok(ek_op_lookup_backward(rig->stream, tdtable, ck_tensor(rig, dy, CK_SHAPE(rows, width)),
                              ck_tensor_of(rig, EK_I32, index, CK_SHAPE(rows))));
  ck_same_bits("dtable", ck_read(rig, tdtable), dtable, entries * width);
}

static void check_positions(struct ck_rig *rig, const double *dy, const double *old,
                            const int64_t *size, double beta, bool exact) {
  const int64_t width = size[1], rows = size[2], period = size[3], n = (period + 1) * width;
  double *want = ck_zeros(rig, n), *bound = ck_zeros(rig, n);
  for (int64_t i = 0; i < n; i++) {
    const bool beyond = i >= period * width; /* a longer table's last rows are left alone */
    const long double start = beyond ? old[i] : beta == 0 ? 0 : (long double)beta * old[i];
    long double sum = start, all = fabsl(start);
    for (int64_t r = i / width; !beyond && r < rows; r += period) {
      sum += dy[r * width + i % width];
      all += fabs(dy[r * width + i % width]);
    }
    want[i] = (double)sum;
    bound[i] = exact || beyond ? 0 : (double)(rows / period + 2) * rig->unit * (double)all;
  }
  double *start = ck_zeros(rig, n);
  for (int64_t i = 0; i < n; i++) start[i] = beta == 0 && i < period * width ? NAN : old[i];
  ek_tensor *dpositions = ck_sums(rig, start, CK_SHAPE(period + 1, width));
  ek_tensor *tdy = ck_tensor(rig, dy, CK_SHAPE(rows, width));
  ck_ok(ek_op_positions_backward(rig->stream, dpositions, tdy, period, beta));
  ck_fits(rig, "dpositions", dpositions, want, bound, n);
}

CK_RIG_CASES(positions_backward, s, SIZES) {
  const int64_t width = sizes[s][1], rows = sizes[s][2], period = sizes[s][3];
  double *old = ck_integers(rig, (period + 1) * width, -50, 50);
  for (int pass = 0; pass < 2; pass++) {
    const bool exact = pass == 0;
    const double *dy =
        exact ? ck_integers(rig, rows * width, -50, 50) : ck_values(rig, rows * width, -1, 1);
    check_positions(rig, dy, old, sizes[s], 0.0, exact);
    check_positions(rig, dy, old, sizes[s], 1.0, exact);
    check_positions(rig, dy, old, sizes[s], 0.3, false);
  }
}

static void check_bad_index(struct ck_rig *rig, int64_t entries, const double *index, int64_t rows,
                            const char *text) {
  ek_tensor *table = ck_poisoned(rig, CK_SHAPE(entries, 5));
  ek_tensor *y = ck_poisoned(rig, CK_SHAPE(rows, 5));
  ek_tensor *dtable = ck_poisoned_sums(rig, CK_SHAPE(entries, 5));
  ek_tensor *tindex = ck_tensor_of(rig, EK_I32, index, CK_SHAPE(rows));
  ck_invalid(ck_finish(ek_op_lookup_forward(rig->stream, y, table, tindex, NULL, 0), rig->stream),
             text);
  ck_invalid(ck_finish(ek_op_lookup_backward(rig->stream, dtable, y, tindex), rig->stream), text);
}

/* Of many bad positions the lowest is told, whoever comes first. */
CK_RIG_LOOP(lowest_bad_index_is_named, ck_variants()) {
  enum { ROWS = 1000, LOWEST = 333 };
  double index[ROWS];
  for (int i = 0; i < ROWS; i++) index[i] = i < LOWEST ? i % 2 : i % 7 - 9;
  check_bad_index(rig, 2, index, ROWS, "index -5 at position 333 of the batch");
}

/* <y(table), dy> is linear in table, and lookup_backward is its slope. */
CK_RIG_TEST(gradients_by_differences, NULL, EK_F64) {
  ek_tensor *table = ck_tensor(rig, ck_values(rig, 5 * 3, -1, 1), CK_SHAPE(5, 3));
  ek_tensor *positions = ck_tensor(rig, ck_values(rig, 4 * 3, -1, 1), CK_SHAPE(4, 3));
  ek_tensor *index = ck_tensor_of(rig, EK_I32, ck_integers(rig, 12, 0, 4), CK_SHAPE(12));
  const double *dy = ck_values(rig, 12 * 3, -1, 1);
  ek_tensor *tdy = ck_tensor(rig, dy, CK_SHAPE(12, 3)), *y = ck_poisoned(rig, CK_SHAPE(12, 3));
  ek_tensor *dtable = ck_tensor(rig, ck_zeros(rig, 15), CK_SHAPE(5, 3));
  ek_tensor *dpositions = ck_poisoned(rig, CK_SHAPE(4, 3));
  ck_ok(ek_op_lookup_backward(rig->stream, dtable, tdy, index));
  ck_ok(ek_op_positions_backward(rig->stream, dpositions, tdy, 4, 0));
  for (int i = 0; i < 2; i++) {
    ck_gradient(rig, i == 0 ? "table" : "positions", i == 0 ? table : positions,
                i == 0 ? dtable : dpositions, 99,
                ek_op_lookup_forward(rig->stream, y, table, index, positions, 4),
                ck_weighed(y, dy));
  }
}

CK_LOOP(bad_index_is_named, ck_variants()) {
  static const double wrong[] = {-1, 7, 2147483647, -2147483647 - 1};
  for (int w = 0; w < 4; w++) {
    struct ck_rig *rig = ck_rig_variant(_i);
    const char *text =
        ck_text("lookup: index %.0f at position 3 of the batch is outside", wrong[w]);
    /* The first of two is told. */
    check_bad_index(rig, 7, (const double[]){0, 6, 3, wrong[w], 8}, 5, text);
    ck_rig_close(rig);
  }
}

/* ---- wrong arguments ---- */

CK_RIG_TEST(bad_periods, NULL, EK_F32) {
  double *zero = ck_zeros(rig, 6);
  ek_stream *s = rig->stream;
  ek_tensor *y = ck_poisoned(rig, CK_SHAPE(6, 3)), *table = ck_poisoned(rig, CK_SHAPE(5, 3));
  ek_tensor *index = ck_tensor_of(rig, EK_I32, zero, CK_SHAPE(6));
  ek_tensor *positions = ck_poisoned(rig, CK_SHAPE(2, 3));
  ck_invalid(ek_op_lookup_forward(s, y, table, index, positions, 0), "lookup_forward: period is 0");
  ck_fails(ek_op_lookup_forward(s, y, table, index, positions, 4), EK_ERR_SHAPE,
           "lookup_forward: period 4 does not divide 6 rows");
  ck_fails(ek_op_lookup_forward(s, y, table, index, positions, 3), EK_ERR_SHAPE,
           "lookup_forward: positions is 2 x 3 but must be at least 3 x 3");
  ck_invalid(ek_op_positions_backward(s, positions, y, -1, 0), "positions_backward: period is -1");
  ck_fails(ek_op_positions_backward(s, positions, y, 6, 0), EK_ERR_SHAPE,
           "positions_backward: dpositions is 2 x 3 but must be at least 6 x 3");
}

CK_RIG_TEST(huge_sizes, CK_HUGE_PLAN, EK_F32) {
  const int64_t rows = (INT64_C(1) << 32) + 2, width = 4096;
  ek_stream *s = rig->stream;
  ek_tensor *y = ck_ghost(rig, EK_F32, CK_SHAPE(rows, width));
  ek_tensor *table = ck_ghost(rig, EK_F32, CK_SHAPE(rows / 2, width));
  ek_tensor *index = ck_ghost(rig, EK_I32, CK_SHAPE(rows));
  ck_ok(ek_op_lookup_forward(s, y, table, index, table, rows / 2));
  ck_ok(ek_op_lookup_backward(s, table, y, index));
  ck_ok(ek_op_positions_backward(s, table, y, rows / 2, 0));
  ek_tensor *short_index = ck_ghost(rig, EK_I32, CK_SHAPE(2));
  ck_fails(ek_op_lookup_forward(s, y, table, short_index, NULL, 0), EK_ERR_SHAPE,
           "lookup_forward: y is 4294967298 x 4096 but index and table make 2 x 4096");
}

CK_SUITE("lookup")
