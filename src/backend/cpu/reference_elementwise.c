/*
 * reference_elementwise.c - f64 operations on one element at a time and sums of columns, in plain
 * C; and the table of all f64 range functions.
 */
#include "backend/cpu/reference.h"

#include <math.h>

const struct ek__cpu_functions ek__cpu_functions_f64 = {
#define MEMBER(name, kind, cut) .name = ek__##name##_f64,
    EK__CPU_FUNCTION_LIST(MEMBER)};

void ek__fill_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__elementwise_args *args = raw;
  double *y = args->y;
  for (int64_t i = begin; i < end; i++) y[i] = args->value;
}

void ek__widen_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__elementwise_args *args = raw;
  const double *x = args->a;
  float *y = args->y;
  for (int64_t i = begin; i < end; i++) y[i] = (float)x[i];
}

void ek__narrow_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__elementwise_args *args = raw;
  const float *x = args->a;
  double *y = args->y;
  for (int64_t i = begin; i < end; i++) y[i] = (double)x[i];
}

void ek__add_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__elementwise_args *args = raw;
  const double *a = args->a, *b = args->b;
  double *y = args->y;
  for (int64_t i = begin; i < end; i++) y[i] = a[i] + b[i];
}

void ek__lerp_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__elementwise_args *args = raw;
  const double *a = args->a, *b = args->b;
  double *y = args->y;
  for (int64_t i = begin; i < end; i++) y[i] = a[i] + args->value * (b[i] - a[i]);
}

void ek__scale_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__elementwise_args *args = raw;
  const double *x = args->a;
  double *y = args->y;
  for (int64_t i = begin; i < end; i++) y[i] = x[i] * args->value;
}

static double combined(enum ek__binary kind, double a, double b) {
  switch (kind) {
  case EK__ADD: return a + b;
  case EK__SUBTRACT: return a - b;
  case EK__MULTIPLY: return a * b;
  case EK__DIVIDE: break;
  }
  return a / b;
}

void ek__binary_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__binary_args *args = raw;
  const double *a = args->a, *b = args->b;
  double *y = args->y;
  const int64_t columns = args->spread == EK__SPREAD_NONE ? 1 : args->columns;
  for (int64_t r = begin; r < end; r++) {
    for (int64_t c = 0; c < columns; c++) {
      const int64_t i = r * columns + c;
      y[i] = combined(args->kind, a[i], b[args->spread == EK__SPREAD_COLUMNS ? c : r]);
    }
  }
}

void ek__unary_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__unary_args *args = raw;
  const double *x = args->x;
  double *y = args->y;
  for (int64_t i = begin; i < end; i++) {
    const double v = x[i] + args->offset;
    y[i] = args->kind == EK__EXP ? exp(v) : 1.0 / sqrt(v);
  }
}

void ek__row_sum_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__row_args *args = raw;
  double *y = args->y;
  for (int64_t r = begin; r < end; r++) {
    const double *a = (const double *)args->a + r * args->columns;
    const double *b = args->b ? (const double *)args->b + r * args->columns : NULL;
    double sum = 0.0;
    for (int64_t c = 0; c < args->columns; c++) sum += b ? a[c] * b[c] : a[c];
    y[r] = args->mean ? sum / (double)args->columns : sum;
  }
}

void ek__softmax_forward_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__row_args *args = raw;
  for (int64_t r = begin; r < end; r++) {
    const double *x = (const double *)args->a + r * args->columns;
    double *y = (double *)args->y + r * args->columns;
    double largest = -(double)INFINITY, sum = 0.0;
    for (int64_t c = 0; c < args->columns; c++) largest = x[c] > largest ? x[c] : largest;
    for (int64_t c = 0; c < args->columns; c++) sum += exp(x[c] - largest);
    for (int64_t c = 0; c < args->columns; c++) y[c] = exp(x[c] - largest) / sum;
  }
}

void ek__softmax_backward_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__row_args *args = raw;
  for (int64_t r = begin; r < end; r++) {
    const double *dy = (const double *)args->a + r * args->columns;
    const double *y = (const double *)args->b + r * args->columns;
    double *dx = (double *)args->y + r * args->columns, sum = 0.0;
    for (int64_t c = 0; c < args->columns; c++) sum += dy[c] * y[c];
    for (int64_t c = 0; c < args->columns; c++) dx[c] = y[c] * (dy[c] - sum);
  }
}

void ek__add_bias_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__matrix_args *args = raw;
  const double *bias = args->b;
  for (int64_t row = begin; row < end; row++) {
    double *y = (double *)args->y + row * args->pitch;
    for (int64_t c = 0; c < args->columns; c++) y[c] += bias[c];
  }
}

void ek__column_sum_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__matrix_args *args = raw;
  const double *x = args->a;
  double *y = args->y;
  for (int64_t c = begin; c < end; c++) {
    double sum = 0.0;
    for (int64_t row = 0; row < args->rows; row++) sum += x[row * args->pitch + c];
    y[c] = args->value == 0.0 ? sum : args->value * y[c] + sum;
  }
}

/* ---- activations: <name>(x), and <name>_back(dy, what is kept) ---- */

static double relu(double x) { return x < 0.0 ? 0.0 : x; } /* NaN stays */
static double relu_back(double dy, double y) { return y > 0.0 ? dy : y <= 0.0 ? 0.0 : y; }

static const double root_2_over_pi = 0.79788456080286535588;

/* s = 1 / (1 + e^(-2u)) = (1 + tanh(u)) / 2 */
static double gelu_share(double x) {
  return 1.0 / (1.0 + exp(-2.0 * root_2_over_pi * (x + 0.044715 * x * x * x)));
}

static double gelu(double x) { return x * gelu_share(x); }
static double gelu_back(double dy, double any) {
  /* Beyond 40 the slope is 0 or 1, and nothing here overflows. NaN goes through, and an infinite x,
   * whose result forward may have been no number, becomes one. */
  const double x = (any < -40.0 ? -40.0 : any > 40.0 ? 40.0 : any) + (any - any);
  const double s = gelu_share(x);
  const double slope = root_2_over_pi * (1.0 + 3.0 * 0.044715 * x * x);
  return dy * (s + x * s * (1.0 - s) * 2.0 * slope);
}

static double silu(double x) { return x / (1.0 + exp(-x)); }
static double silu_back(double dy, double x) {
  /* f' = s (1 + x (1 - s)) with s = 1 / (1 + e^-x), and 1 - s = 1 / (1 + e^x) */
  return dy * (1.0 / (1.0 + exp(-x))) * (1.0 + x / (1.0 + exp(x)));
}

static const struct {
  double (*forward)(double x), (*backward)(double dy, double kept);
  bool keeps_result;
} activations[] = {
#define RESULT true
#define INPUT false
#define ROW(NAME, name, kept) [EK_ACTIVATION_##NAME] = {name, name##_back, kept},
    EK_ACTIVATION_LIST(ROW)};

void ek__activation_forward_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__activation_args *args = raw;
  const double *bias = args->bias;
  const int64_t per_item = bias ? args->columns : 1;
  double *x = args->x, *y = args->y;
  for (int64_t i = begin * per_item; i < end * per_item; i++) {
    if (bias) x[i] += bias[i % per_item];
    y[i] = activations[args->kind].forward(x[i]);
  }
}

void ek__activation_backward_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__activation_args *args = raw;
  const double *dy = args->dy, *kept = args->x;
  double *dx = args->y;
  for (int64_t i = begin; i < end; i++) dx[i] = activations[args->kind].backward(dy[i], kept[i]);
}

void ek__gate_forward_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__activation_args *args = raw;
  const double *x = args->x, *factor = args->factor;
  double *y = args->y;
  for (int64_t i = begin; i < end; i++) y[i] = activations[args->kind].forward(x[i]) * factor[i];
}

void ek__gate_backward_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__activation_args *args = raw;
  const double *x = args->x, *factor = args->factor, *dy = args->dy;
  double *dx = args->y, *dfactor = args->dfactor;
  for (int64_t i = begin; i < end; i++) {
    const double y = activations[args->kind].forward(x[i]), slope = dy[i];
    const double kept = activations[args->kind].keeps_result ? y : x[i];
    dx[i] = activations[args->kind].backward(slope * factor[i], kept);
    dfactor[i] = slope * y;
  }
}

void ek__dropout_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__dropout_args *args = raw;
  const double *x = args->x;
  double *y = args->y;
  uint32_t bits[4] = {0};
  int64_t known = -1; /* the block of the sample that bits belong to, once there is one */
  for (int64_t i = begin; i < end; i++) {
    const int64_t sample = i / args->per_sample, element = i % args->per_sample;
    if (element == 0 || element / 4 != known) {
      known = element / 4;
      ek_random_bits(args->key, (uint32_t)(args->first_sample + sample), (uint32_t)known, bits);
    }
    const bool keep = (double)ek_random_unit(bits[element % 4]) >= args->p;
    y[i] = keep ? x[i] / (1.0 - args->p) : x[i] * 0.0;
  }
}
