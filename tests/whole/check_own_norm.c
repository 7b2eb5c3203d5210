/*
 * check_own_norm.c - the RMSNorm of docs/own-model.md, which is made of public operations alone:
 * what holds for every module, in all types, by differences, in a plan; and against plain loops.
 *
 * Bounds of the loops, in f64, relative to the L2 norm: a mean over W columns rounds (W + 3) u, the
 * root and what is multiplied 8 u more; the gradient of the weight adds R rows, and dx has a second
 * mean. Twice (W + R + 16) u is above all of it.
 */
#include "ck_module.h"
#include "shown/rms_norm.h"

#define EPSILON 1e-3

static ek_status create_six(ek_module **module) { return rms_norm_create(module, 6, EPSILON); }
static ek_status create_wide(ek_module **module) { return rms_norm_create(module, 72, EPSILON); }

static const struct ck_module_case cases[] = {
    CK_CASE("4 x 6", create_six, 6, 8, 2, {0, 2, {4, 6}, -2, 2}),
    CK_CASE("2 x 3 x 6", create_six, 6, 8, 2, {0, 3, {2, 3, 6}, 1, 3}),
    CK_CASE_PROBED("5 x 72", create_wide, 72, 8, 7, 60, {0, 2, {5, 72}, -1, 1})};
CK_MODULE_CASES(cases)
enum { CASES = sizeof cases / sizeof *cases, MOST = 5 * 72 };

static void loops(double *y, double *dx, double *dweight, const double *x, const double *weight,
                  const double *dy, int64_t rows, int64_t width) {
  for (int64_t c = 0; c < width; c++) dweight[c] = 0;
  for (int64_t r = 0; r < rows; r++, x += width, y += width, dx += width, dy += width) {
    double squares = 0, inner = 0;
    for (int64_t c = 0; c < width; c++) squares += x[c] * x[c];
    const double rstd = 1 / sqrt(squares / (double)width + EPSILON);
    for (int64_t c = 0; c < width; c++) inner += dy[c] * weight[c] * x[c] * rstd;
    for (int64_t c = 0; c < width; c++) {
      const double normal = x[c] * rstd;
      y[c] = normal * weight[c];
      dx[c] = rstd * (dy[c] * weight[c] - normal * inner / (double)width);
      dweight[c] += dy[c] * normal;
    }
  }
}

CK_LOOP(as_plain_loops, CASES) {
  struct ck_bed *bed = ck_bed_open(&cases[_i], EK_F64, test_devices("cpu:1"));
  double *weight = ck_bed_parameters(bed), y[MOST], dx[MOST], dweight[MOST];
  struct ck_results *got = ck_bed_backward(bed, true);
  const int64_t count = got->output_count[0], width = _i == 2 ? 72 : 6, rows = count / width;
  const double bound = 2 * (double)(width + rows + 16) * 0x1p-53;
  loops(y, dx, dweight, bed->value[0], weight, bed->factor[0], rows, width);
  ck_assert_double_le(ck_rel_l2(got->output[0], y, count), bound);
  ck_assert_double_le(ck_rel_l2(got->grad_input[0], dx, count), bound);
  ck_assert_double_le(ck_rel_l2(got->gradient, dweight, width), bound);
  ck_bed_close(bed);
}

CK_SUITE("own_norm")
