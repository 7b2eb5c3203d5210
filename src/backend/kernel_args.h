/*
 * kernel_args.h - the arguments of kernels: a struct of plain pointers and sizes for each kind.
 *
 * Sizes may be zero; pointers may then be NULL. src/op has checked everything that it can.
 */
#ifndef EK_KERNEL_ARGS_H
#define EK_KERNEL_ARGS_H

#include <evenkeel/activation_list.h>
#include <evenkeel/random.h>
#include <evenkeel/tensor.h>

/* What the numbers of a call are: the same for f32 and f64; for values of 16 bits `sum` is f32. */
struct ek__types {
  ek_type value; /* activations, their gradients, and parameters as a layer sees them */
  ek_type sum;   /* arithmetic, and what is added up: statistics, losses, gradients of parameters */
  bool tf32;     /* products of f32 may take their operands with 10 bits of mantissa */
};

/* Those of values of a type. */
static inline struct ek__types ek__types_in(ek_type value) {
  const struct ek__types types = {value, value == EK_F64 ? EK_F64 : EK_F32, false};
  return types;
}
/* Those of a precision that has values, and the precision that they are. */
static inline struct ek__types ek__types_for(ek_precision precision) {
  const bool tf32 = precision == EK_PRECISION_TF32;
  struct ek__types types = ek__types_in(tf32 ? EK_F32 : (ek_type)precision);
  types.tf32 = tf32;
  return types;
}
static inline ek_precision ek__types_precision(const struct ek__types *types) {
  return types->tf32 ? EK_PRECISION_TF32 : (ek_precision)types->value;
}

/* ---- arguments of kernels; rows, columns and counts are in elements ----
 *
 * A void pointer is to values, unless the comment says that it is to sums.
 */

struct ek__matmul_args { /* c[m][n] = a' b' + beta c; a' is m x k, b' is k x n; row-major; no 0 */
  void *c;
  const void *a, *b;
  int64_t m, n, k;
  int64_t lda, ldb, ldc;         /* elements from one stored row to the next */
  bool transpose_a, transpose_b; /* a is stored k x m; b is stored n x k */
  double beta;
  const void *bias; /* n elements to be added to each row of c, or NULL */
  struct ek__types types;
  bool gradient; /* c is that of a weight, a sum */
};

/* What a backend may do to a product before its result is in memory, or with an operand that it
 * reads anyway. The plain kernels in the same order give the same: products.c. */
enum ek__epilogue {
  EK__EPILOGUE_GELU,          /* c becomes pre (with the bias, if any), then c = gelu(pre) */
  EK__EPILOGUE_GELU_BACKWARD, /* c = c * gelu'(pre); sums (+)= the columns of c */
  EK__EPILOGUE_SUMS           /* sums (+)= the rows of a' */
};

struct ek__fused_args {
  struct ek__matmul_args product; /* beta is 0 except for SUMS, bias NULL except for GELU */
  enum ek__epilogue epilogue;
  void *pre;        /* m x n: written by GELU, or NULL; read by GELU_BACKWARD */
  void *sums;       /* sums: n elements, or m for SUMS; NULL: none wanted, not for SUMS */
  double sums_beta; /* sums = sums_beta sums + .. */
};

struct ek__elementwise_args { /* which of them are used depends on the kernel */
  void *y;
  const void *a, *b;
  int64_t count;
  double value; /* fill, scale, lerp's weight, column_sum's beta */
  struct ek__types types;
};

struct
    ek__matrix_args { /* add_bias: y[r][c] += b[c]. column_sum: y[c] = value y[c] + sum a[r][c] */
  void *y;            /* column_sum: sums */
  const void *a, *b;
  int64_t rows, columns;
  int64_t pitch; /* elements from one row of the matrix to the next */
  double value;
  struct ek__types types;
};

struct ek__activation_args { /* forward: x += bias if any; y = f(x). backward: y = dy * f'(x) */
  ek_activation kind;        /* f */
  void *y, *x;               /* backward: x is what activation_list.h says is kept */
  const void *bias, *dy;
  const void *factor; /* gate: y = f(x) * factor; y = dy * factor * f'(x), dfactor = dy * f(x) */
  void *dfactor;
  int64_t rows, columns;
  struct ek__types types;
};

/* Public enumerations of src/op, by their numbers. */
enum ek__binary { EK__ADD, EK__SUBTRACT, EK__MULTIPLY, EK__DIVIDE };
enum ek__spread { EK__SPREAD_NONE, EK__SPREAD_ROWS, EK__SPREAD_COLUMNS };
enum ek__unary { EK__RSQRT, EK__EXP };

struct ek__binary_args { /* y = a OP b; y may be a, without spread b */
  enum ek__binary kind;
  enum ek__spread spread;
  void *y;
  const void *a, *b; /* b: with EK__SPREAD_ROWS sums */
  int64_t rows, columns;
  struct ek__types types;
};

struct ek__unary_args { /* y = f(x + offset); y may be x */
  enum ek__unary kind;
  void *y;
  const void *x;
  int64_t count;
  double offset;
  struct ek__types types;
};

struct ek__row_args {
  void *y; /* row_sum: sums. softmax: y, which may be a; backward: dx, which may be a or b */
  const void *a, *b; /* row_sum: b may be NULL. softmax_backward: dy and y */
  int64_t rows, columns;
  bool mean;
  struct ek__types types;
};

struct ek__dropout_args {
  void *y;
  const void *x;
  int64_t samples, per_sample, first_sample;
  double p;
  ek_random_key key;
  struct ek__types types;
};

struct ek__layer_norm_args {
  void *y;
  void *mean, *rstd;    /* sums: forward writes, backward reads; mean NULL: 0, an RMSNorm */
  void *sum;            /* forward: written and normalised in place of x, if there is a residual */
  const void *residual; /* or NULL: added to x by forward, to dx by backward */
  const void *x, *gamma;
  const void *beta; /* or NULL: zeros */
  void *dx;             /* backward writes; may be NULL */
  void *dgamma, *dbeta; /* sums: backward writes; each may be NULL */
  const void *dy;
  double epsilon, gamma_scale, beta_scale;
  int64_t rows, width;
  struct ek__types types;
};

/*
 * channel_norm.h. Rows are cut into `samples` equal runs, and into `pieces`; a group is
 * channels / groups neighbours. Statistics and averages are samples x channels.
 */
struct ek__channel_args {
  void *y; /* forward: y; backward: dx, which may be dy */
  const void *x, *dy;
  const void *weight, *bias;    /* each may be NULL */
  void *mean, *rstd;            /* sums */
  void *average_g, *average_gn; /* sums; each may be NULL */
  void *dweight, *dbias;        /* sums; each may be NULL */
  void *running_mean, *running_variance, *batches; /* sums */
  double *sums;        /* pieces x 2 x channels */
  const double *count; /* rows of a sample, on the device; NULL: host_count */
  double host_count, epsilon, momentum, weight_scale, bias_scale;
  int64_t rows, channels, samples, pieces, groups;
  struct ek__types types;
};

struct ek__lookup_args {
  void *y;           /* forward: y; backward: sums, dtable or dpositions */
  const void *table; /* forward: table; backward: dy */
  const int32_t *index;
  const void *positions; /* or NULL */
  int64_t rows, width, entries, period;
  int64_t first; /* in the batch, of the first index: for messages */
  double beta;   /* positions_backward */
  struct ek__types types;
};

enum { EK__MOST_PAIRS = 128 }; /* EK_ROTARY_MOST_PAIRS */

/* Of x, samples x tokens x columns, the first heads x head_width columns. */
struct ek__rotary_args {
  void *x;
  int64_t samples, tokens, columns, heads, head_width;
  const int32_t *positions;     /* samples x tokens; NULL: a token's number in its sample */
  double turns[EK__MOST_PAIRS]; /* of a pair, per token */
  struct ek__types types;
};

/* q, k, v point to the first element of the first head; rows are q_step .. v_step elements apart,
 * in dq, dk, dv too. */
struct ek__attention_args {
  void *out; /* forward writes; backward reads */
  void *lse; /* sums: the same */
  void *dq, *dk, *dv; /* backward writes */
  const void *q, *k, *v, *dout;
  const int32_t *ranges; /* batch x tokens x 2, or NULL */
  int64_t q_step, k_step, v_step;
  int64_t batch, tokens, heads, kv_heads, head_width;
  bool causal;
  double dropout;
  ek_random_key key;
  int64_t first_sample;
  struct ek__types types;
};

struct ek__documents_args { /* attend.h, ek_op_document_ranges() */
  int32_t *ranges, *positions; /* each may be NULL */
  const int32_t *segments;
  int64_t samples, tokens;
};

/* Sizes of a convolution that has been checked. Pairs are of height and width. */
struct ek__convolution {
  int64_t images, channels, out, groups;
  int64_t in_size[2], out_size[2]; /* of x, and of y */
  int64_t kernel[2], stride[2], padding[2], dilation[2];
};

enum ek__convolve { EK__CONVOLVE_Y, EK__CONVOLVE_DX, EK__CONVOLVE_DWEIGHT };

struct ek__convolve_args {
  enum ek__convolve result;
  void *to;           /* y, dx, or dweight (sums) */
  const void *x, *dy; /* y: x. dx: dy. dweight: both */
  const void *weight; /* not for dweight */
  const void *bias;   /* y: or NULL */
  double scale;       /* dweight = scale dweight + .. */
  char *workspace;
  int64_t workspace_bytes;
  int64_t chunks; /* of images, for partial sums of dweight that fit in there */
  const struct ek__convolution *shape;
  struct ek__types types;
};

/*
 * Rows of a matrix, one for each pixel of a result: what the kernel sees from there, as
 * y[row][group][ky][kx][channel]. Element (ky, kx) is pixel
 *     (result pixel * step + (ky, kx) * dilation - offset) / spread
 * of x, or zeros where that is outside of the picture or no whole number.
 */
struct ek__unfold_args {
  void *y;
  const void *x;
  int64_t first, rows; /* row 0 of y is that of result pixel `first`, counted over all images */
  int64_t height, width, channels, groups; /* of x */
  int64_t out_height, out_width;
  int64_t kernel[2], step[2], spread[2], dilation[2], offset[2];
  struct ek__types types;
};

/* y, dense with four dimensions: y[i] = value y[i] + x[sum of i step]. Without value y is not
 * read. */
struct ek__permute_args {
  void *y;
  const void *x;
  int64_t size[4], step[4];
  double value;
  struct ek__types types;
};

/* What a window makes of its pixels: the largest, their mean, or a mean of the four around a
 * place. */
enum ek__window { EK__WINDOW_MAX, EK__WINDOW_AVERAGE, EK__WINDOW_BILINEAR };

struct ek__window_side { /* of pictures and windows, in one direction: windows.h */
  int64_t pixels, windows;
  int64_t kernel, stride, padding, dilation; /* not of BILINEAR */
  int64_t count_padding;                     /* of AVERAGE: 1 or 0 */
  double scale, shift;                       /* of BILINEAR: window i is at i scale + shift */
};

struct ek__window_args { /* backward: y is dx, x is dy */
  enum ek__window kind;
  void *y;
  const void *x;
  int32_t *places; /* MAX: forward writes, backward reads */
  int64_t images, channels;
  struct ek__window_side side[2]; /* vertical, horizontal */
  struct ek__types types;
};

/* Losses of an output and a target, element by element, by the numbers of losses.h. */
enum ek__element_loss {
  EK__LOSS_SQUARED,
  EK__LOSS_HUBER,
  EK__LOSS_BINARY,
  EK__LOSS_DIVERGENCE,
  EK__LOSS_LOG_DIVERGENCE
};

struct ek__loss_args {
  enum ek__element_loss kind; /* of element_loss */
  double width, steepness;    /* of HUBER; BINARY has the second */
  void *losses; /* sums. cross-entropy: rows; element by element: count, or NULL */
  void *normalizer; /* sums. cross-entropy only: rows x {m, z}, or with soft {m, z, W} */
  double *totals;   /* {s, d}, overwritten */
  void *gradient;   /* backward; may alias outputs */
  const void *outputs;
  const void *targets; /* cross-entropy: int32_t; else, and if soft: the type of outputs */
  bool soft;           /* cross-entropy: targets are rows x columns */
  const void *class_weights; /* sums, or NULL */
  const void *weights;       /* of element_loss: the type of outputs, or NULL */
  const double *scale;       /* on the device, or NULL */
  double host_scale;         /* cross_entropy_gradient only, in place of scale and row_scale */
  const void *row_scale;     /* sums, or NULL */
  int64_t rows, classes; /* element by element: rows = count */
  int64_t columns;   /* of outputs and gradient; those after `classes` are ignored. Element by
                        element: those that count as one in d */
  int64_t first_row; /* in the batch, of the first target: for messages */
  int32_t ignore_index;
  double label_smoothing;
  struct ek__types types;
};

struct ek__convert_args { /* y = x: one of them f32, or both of 16 bits */
  void *y;
  const void *x;
  int64_t count;
  ek_type to, from;
};

struct ek__combine_args { /* losses.h, ek_op_combine_totals() */
  double *combined, *scales;
  const double *totals;
  double coefficients[64];
  size_t terms;
  bool divide;
};

struct ek__update_args {     /* all pointers are to sums, except for copy and perhaps g */
  void *p, *state0, *state1; /* SGD: momentum (or NULL); AdamW: m, v */
  const void *g;
  bool g_is_value;
  void *copy; /* of p, in values; or NULL */
  int64_t count;
  const double *totals;      /* {s, d} or NULL */
  const double *square_norm; /* or NULL */
  double clip_norm;
  double learning_rate, weight_decay;
  double momentum, dampening;      /* SGD */
  double beta1, beta2, epsilon;    /* AdamW */
  double correction1, correction2; /* AdamW: 1 - beta^step */
  bool nesterov, decoupled, first;
  struct ek__types types;
};

struct ek__reduce_args { /* every destination[j][i] = sum over s of sources[s][i], s in order */
  void *const *destinations;
  const void *const *sources; /* destinations may be among them, at the same position */
  size_t destination_count, source_count;
  int64_t count;
  ek_type type; /* of values: numbers of 16 bits are added up in f32 */
};

/* Bytes of one element; 0 for a value outside the list. */
static inline size_t ek__type_size(ek_type type) {
  switch (type) {
  case EK_F32:
  case EK_U32:
  case EK_I32: return 4;
  case EK_F64:
  case EK_I64: return 8;
  case EK_U16:
  case EK_BF16:
  case EK_F16: return 2;
  case EK_U8: return 1;
  }
  return 0;
}

#endif /* EK_KERNEL_ARGS_H */
