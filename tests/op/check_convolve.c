/*
 * check_convolve.c - convolution against plain loops in long double.
 *
 * Bounds, u the unit roundoff of the type of sums, for a sum of n products in any order:
 *   (n + 3) u (|what is there before| + sum |products|)
 * doubled for the terms of second order; n counts the zeros of the padding and, for dx, those that
 * a stride puts between the pixels of dy. Where Winograd's algorithm may be taken n is the number
 * of channels, or for dweight of pixels, and
 *   (n + 12) u (|what is there before| + 16 sum |factor|)
 * over the weights, or for dweight dy, that meet the result; the other factor is at most 1
 * (docs/numerics.md).
 */
#include "ek_check.h"

struct shape {
  int64_t x[4], out;
  ek_convolution is;
};

/* kernel, stride, padding, dilation, groups */
#define IS(...)                                                                                    \
  { sizeof(ek_convolution), __VA_ARGS__ }

/* Kernels of one pixel, dense and with a stride; odd sizes; images that do not divide evenly;
 * groups; depthwise; more than a picture is wide; without images, pixels, results; two that do not
 * fit in one block, of x and of dy; without channels; narrower than a stride. */
static const struct shape shapes[] = {
    {{2, 5, 4, 3}, 7, IS({1, 1}, {1, 1}, {0, 0}, {1, 1}, 1)},
    {{2, 5, 4, 6}, 4, IS({1, 1}, {1, 1}, {0, 0}, {1, 1}, 2)},
    {{3, 6, 5, 8}, 5, IS({1, 1}, {2, 2}, {0, 0}, {1, 1}, 1)},
    {{2, 7, 6, 3}, 16, IS({3, 3}, {1, 1}, {1, 1}, {1, 1}, 1)},
    {{3, 8, 8, 16}, 32, IS({3, 3}, {1, 1}, {1, 1}, {1, 1}, 1)},
    {{19, 5, 5, 16}, 48, IS({3, 3}, {1, 1}, {1, 1}, {1, 1}, 1)},
    {{1, 9, 11, 5}, 3, IS({3, 2}, {2, 3}, {1, 0}, {1, 1}, 1)},
    {{2, 9, 8, 4}, 6, IS({3, 3}, {2, 1}, {2, 3}, {2, 3}, 2)},
    {{2, 6, 7, 12}, 12, IS({3, 3}, {1, 2}, {1, 1}, {1, 1}, 12)},
    {{1, 12, 12, 3}, 8, IS({7, 7}, {2, 2}, {3, 3}, {1, 1}, 1)},
    {{1, 2, 3, 2}, 3, IS({5, 4}, {1, 1}, {4, 3}, {1, 1}, 1)},
    {{1, 4, 4, 3}, 2, IS({2, 2}, {3, 3}, {0, 0}, {1, 1}, 1)},
    {{0, 4, 4, 3}, 2, IS({2, 2}, {1, 1}, {0, 0}, {1, 1}, 1)},
    {{2, 0, 3, 2}, 2, IS({3, 1}, {1, 1}, {2, 0}, {1, 1}, 1)},
    {{2, 3, 3, 2}, 0, IS({2, 2}, {1, 1}, {0, 0}, {1, 1}, 1)},
    {{1, 4, 4, 64}, 2, IS({7, 7}, {1, 1}, {28, 28}, {1, 1}, 1)},
    {{1, 54, 54, 2}, 64, IS({7, 7}, {9, 9}, {0, 0}, {1, 1}, 1)},
    {{2, 3, 2, 0}, 2, IS({2, 2}, {1, 1}, {0, 0}, {1, 1}, 1)},
    {{2, 7, 1, 34}, 50, IS({3, 3}, {1, 2}, {0, 1}, {1, 1}, 1)},
    {{2, 7, 6, 32}, 41, IS({3, 3}, {1, 1}, {1, 1}, {1, 1}, 1)},
    {{1, 10, 9, 33}, 32, IS({3, 3}, {1, 1}, {0, 1}, {2, 3}, 1)},
    {{1, 5, 4, 33}, 300, IS({3, 3}, {1, 1}, {2, 2}, {1, 1}, 1)},
    {{3, 20, 20, 32}, 32, IS({3, 3}, {1, 1}, {1, 1}, {1, 1}, 1)},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0], TILED = SHAPES - 4 };

/* From TILED on: by Winograd's algorithm, with pixels that fill no tile, with padding or without;
 * a dilation; kernels that do not fit in the workspace at once, either way; more tiles than are
 * taken at once. */
static bool is_tiled(const struct ck_rig *rig, const struct shape *s) {
  return s - shapes >= TILED && rig->type != EK_F64;
}

struct sizes {
  int64_t y[4], weight[4];
  int64_t xs, ys, weights;   /* elements */
  int64_t forward, backward; /* workspace */
};

static int64_t product_of(const int64_t *shape) {
  return shape[0] * shape[1] * shape[2] * shape[3];
}

static struct sizes sizes_of(const struct ck_rig *rig, const struct shape *s) {
  struct sizes z = {.weight = {s->out, s->x[3] / s->is.groups, s->is.kernel[0], s->is.kernel[1]}};
  ck_ok(ek_convolution_shape(z.y, s->x, s->out, &s->is));
  ck_ok(ek_convolution_workspace(&z.forward, &z.backward, s->x, s->out, rig->type, &s->is));
  ck_assign(z, .xs = product_of(s->x), .ys = product_of(z.y), .weights = product_of(z.weight));
  return z;
}

static ek_tensor *workspace_of(struct ck_rig *rig, int64_t elements) {
  return elements == 0 ? NULL : ck_poisoned_sums(rig, CK_SHAPE(elements));
}

struct sum_up { /* of the factors two are read */
  const double *x, *y, *weight;
  double *to, *size; /* sums of products, and of their magnitudes */
};
enum result { Y, DX, DWEIGHT };

CK_UNWATCHED static void add_to_one(double *to, double *size, const double *a, const double *b,
                                    int64_t b_step, int64_t count) {
  double sum = *to, total = *size;
  for (int64_t c = 0; c < count; c++) {
    sum += a[c] * b[c * b_step];
    total += fabs(a[c] * b[c * b_step]);
  }
  *to = sum, *size = total;
}

/* Adds every product of the formula to the result that it is a term of. */
CK_UNWATCHED static void add_products(const struct sum_up *sum, const struct shape *s,
                                      const struct sizes *z, enum result result) {
  const int64_t in = z->weight[1], outs = s->out / s->is.groups, kh = z->weight[2];
  const int64_t kw = z->weight[3], taps = kh * kw;
  for (int64_t pixel = 0; pixel < z->y[0] * z->y[1] * z->y[2]; pixel++) {
    const int64_t image = pixel / (z->y[1] * z->y[2]);
    for (int64_t tap = 0; tap < taps; tap++) {
      const int64_t i = pixel / z->y[2] % z->y[1] * s->is.stride[0] + tap / kw * s->is.dilation[0] -
                        s->is.padding[0];
      const int64_t j =
          pixel % z->y[2] * s->is.stride[1] + tap % kw * s->is.dilation[1] - s->is.padding[1];
      if (i < 0 || j < 0 || i >= s->x[1] || j >= s->x[2]) continue;
      const int64_t from = ((image * s->x[1] + i) * s->x[2] + j) * s->x[3];
      for (int64_t o = 0; o < s->out; o++) { /* the first term, and the steps to the next */
        const int64_t at[] = {pixel * s->out + o, from + o / outs * in, o * in * taps + tap};
        const double *a = result == Y ? sum->x + at[1] : sum->y + at[0];
        const double *b = result == DWEIGHT ? sum->x + at[1] : sum->weight + at[2];
        const int64_t step = result == DX ? 1 : taps, b_step = result == DX ? taps : 1;
        double *to = sum->to + at[result], *size = sum->size + at[result];
        if (result == Y) {
          add_to_one(to, size, a, b, taps, in);
          continue;
        }
        const double factor = *a;
        for (int64_t c = 0; c < in; c++) {
          to[c * step] += factor * b[c * b_step];
          size[c * step] += fabs(factor * b[c * b_step]);
        }
      }
    }
  }
}

static void bound_sums(const struct ck_rig *rig, double *size, int64_t count, int64_t terms) {
  for (int64_t i = 0; i < count; i++) size[i] *= 2 * (double)(terms + 3) * rig->unit;
}

/* Makes `size`, the sums of magnitudes, the bound. `before` is what was there, or NULL for nothing;
 * `factor` are the weights, or dy for dweight. */
static void bound(struct ck_rig *rig, double *size, const double *before, const double *factor,
                  const struct shape *s, const struct sizes *z, enum result result) {
  const int64_t kernel = z->weight[1] * z->weight[2] * z->weight[3];
  const int64_t count = result == Y ? z->ys : result == DX ? z->xs : z->weights;
  const int64_t pixels = z->y[0] * z->y[1] * z->y[2];
  if (!is_tiled(rig, s)) {
    bound_sums(rig, size, count,
               result == Y    ? kernel
               : result == DX ? s->out / s->is.groups * z->weight[2] * z->weight[3]
                              : pixels);
    return;
  }
  const int64_t terms = result == Y ? s->x[3] : result == DX ? s->out : pixels;
  double *sums = ck_zeros(rig, s->x[3] + s->out);
  for (int64_t i = 0; i < (result == DWEIGHT ? z->ys : z->weights); i++) {
    sums[result == Y ? i / kernel : result == DX ? i / 9 % s->x[3] : i % s->out] += fabs(factor[i]);
  }
  for (int64_t i = 0; i < count; i++) {
    const double sum = sums[result == Y ? i % s->out : result == DX ? i % s->x[3] : i / kernel];
    size[i] = 2 * (double)(terms + 12) * rig->unit * ((before ? before[i] : 0) + 16 * sum);
  }
}

CK_RIG_CASES(forward, c, SHAPES) {
  const struct shape *s = &shapes[c];
  const struct sizes z = sizes_of(rig, s);
  const double *x = ck_values(rig, z.xs, -1, 1), *w = ck_values(rig, z.weights, -1, 1);
  const double *bias = ck_values(rig, s->out, -1, 1);
  ek_tensor *tx = ck_tensor(rig, x, 4, s->x), *tw = ck_tensor(rig, w, 4, z.weight);
  ek_tensor *tbias = ck_tensor(rig, bias, CK_SHAPE(s->out));
  for (int with = 0; with < 2; with++) {
    double *want = ck_zeros(rig, z.ys), *size = ck_zeros(rig, z.ys), *before = ck_zeros(rig, z.ys);
    for (int64_t i = 0; i < z.ys && with; i++) {
      want[i] = bias[i % s->out];
      size[i] = before[i] = fabs(want[i]);
    }
    add_products(&(struct sum_up){.x = x, .weight = w, .to = want, .size = size}, s, &z, Y);
    bound(rig, size, before, w, s, &z, Y);
    ek_tensor *y = ck_poisoned(rig, 4, z.y);
    ck_ok(ek_op_convolve_forward(rig->stream, y, workspace_of(rig, z.forward), tx, tw,
                                 with ? tbias : NULL, &s->is));
    ck_fits(rig, with ? "y with a bias" : "y", y, want, size, z.ys);
  }
}

struct backward {
  double *x, *w, *dy, *dweight, *dbias; /* the last two: what was there */
  ek_tensor *tx, *tw, *tdy, *workspace;
};

static struct backward make_backward(struct ck_rig *rig, const struct shape *s,
                                     const struct sizes *z) {
  struct backward b = {.x = ck_values(rig, z->xs, -1, 1), .w = ck_values(rig, z->weights, -1, 1),
                       .dy = ck_values(rig, z->ys, -1, 1),
                       .dweight = ck_values_of(rig, rig->sum, z->weights, -1, 1),
                       .dbias = ck_values_of(rig, rig->sum, s->out, -1, 1)};
  ck_assign(b, .tx = ck_tensor(rig, b.x, 4, s->x), .tw = ck_tensor(rig, b.w, 4, z->weight),
            .tdy = ck_tensor(rig, b.dy, 4, z->y), .workspace = workspace_of(rig, z->backward));
  return b;
}

/* Backward into these results, which may be NULL; those of parameters are scaled and added to. */
static ek_status go_back(struct ck_rig *rig, const struct shape *s, const struct backward *b,
                         ek_tensor *dx, ek_tensor *dweight, ek_tensor *dbias, double scale) {
  ek_convolve_backward_args args = {.dx = dx, .dweight = dweight, .dbias = dbias};
  args.workspace = b->workspace, args.options = &s->is;
  args.dy = b->tdy, args.x = b->tx, args.weight = b->tw;
  args.weight_beta = args.bias_beta = scale;
  return ek_op_convolve_backward(rig->stream, &args);
}

static void check_parameters(struct ck_rig *rig, const struct shape *s, const struct sizes *z,
                             const struct backward *b, double scale) {
  double *want = ck_zeros(rig, z->weights), *size = ck_zeros(rig, z->weights);
  double *before = ck_zeros(rig, z->weights);
  double *want_bias = ck_zeros(rig, s->out), *bias_size = ck_zeros(rig, s->out);
  for (int64_t i = 0; i < z->weights; i++) {
    want[i] = scale * b->dweight[i];
    size[i] = before[i] = fabs(want[i]);
  }
  for (int64_t o = 0; o < s->out; o++) {
    want_bias[o] = scale * b->dbias[o];
    bias_size[o] = fabs(want_bias[o]);
    for (int64_t i = o; i < z->ys; i += s->out) {
      want_bias[o] += b->dy[i];
      bias_size[o] += fabs(b->dy[i]);
    }
  }
  add_products(&(struct sum_up){.x = b->x, .y = b->dy, .to = want, .size = size}, s, z, DWEIGHT);
  bound(rig, size, before, b->dy, s, z, DWEIGHT);
  bound_sums(rig, bias_size, s->out, z->y[0] * z->y[1] * z->y[2]);
  ek_tensor *dweight = ck_sums(rig, scale == 0 ? NULL : b->dweight, 4, z->weight);
  ek_tensor *dbias = ck_sums(rig, scale == 0 ? NULL : b->dbias, CK_SHAPE(s->out));
  ck_ok(go_back(rig, s, b, NULL, dweight, dbias, scale));
  const double *got = ck_read(rig, dweight);
  ck_within("dweight", got, want, size, z->weights);
  ck_within("dbias", ck_read(rig, dbias), want_bias, bias_size, s->out);
}

CK_RIG_CASES(backward, c, SHAPES) {
  const struct shape *s = &shapes[c];
  const struct sizes z = sizes_of(rig, s);
  const struct backward b = make_backward(rig, s, &z);
  double *want = ck_zeros(rig, z.xs), *size = ck_zeros(rig, z.xs);
  add_products(&(struct sum_up){.y = b.dy, .weight = b.w, .to = want, .size = size}, s, &z, DX);
  bound(rig, size, NULL, b.w, s, &z, DX);
  ek_tensor *dx = ck_poisoned(rig, 4, s->x);
  ck_ok(go_back(rig, s, &b, dx, NULL, NULL, 0));
  ck_fits(rig, "dx", dx, want, size, z.xs);
  ek_tensor *without_x = ck_poisoned(rig, 4, s->x);
  CK_WITH(struct backward, without, b, .tx = NULL);
  ck_ok(go_back(rig, s, &without, without_x, NULL, NULL, 0));
  ck_same_bits("dx without x", ck_read(rig, without_x), ck_read(rig, dx), z.xs);
  check_parameters(rig, s, &z, &b, 0);
  check_parameters(rig, s, &z, &b, 0.5);
}

/* Whole numbers, and a scale of 1: every sum is exact, in f32 with any algorithm. */
CK_LOOP(whole_numbers, SHAPES - TILED) {
  if (!ck_gpu_part(_i)) return;
  const struct shape *s = &shapes[TILED + _i];
  struct ck_rig *rig = ck_rig_open(NULL, EK_F32, 2);
  const struct sizes z = sizes_of(rig, s);
  const double *x = ck_integers(rig, z.xs, -3, 3), *w = ck_integers(rig, z.weights, -3, 3);
  const double *dy = ck_integers(rig, z.ys, -3, 3), *bias = ck_integers(rig, s->out, -9, 9);
  double *want[3] = {ck_zeros(rig, z.ys), ck_zeros(rig, z.xs), ck_integers(rig, z.weights, -9, 9)};
  double *size = ck_zeros(rig, z.xs + z.ys + z.weights);
  ek_tensor *y = ck_poisoned(rig, 4, z.y), *dx = ck_poisoned(rig, 4, s->x);
  ek_tensor *dweight = ck_sums(rig, want[2], 4, z.weight), *tx = ck_tensor(rig, x, 4, s->x);
  ek_tensor *tw = ck_tensor(rig, w, 4, z.weight), *tdy = ck_tensor(rig, dy, 4, z.y);
  for (int64_t i = 0; i < z.ys; i++) want[Y][i] = bias[i % s->out];
  for (enum result result = Y; result <= DWEIGHT; result++) {
    add_products(&(struct sum_up){.x = x, .y = dy, .weight = w, .to = want[result], .size = size},
                 s, &z, result);
  }
  ck_ok(ek_op_convolve_forward(rig->stream, y, workspace_of(rig, z.forward), tx, tw,
                               ck_tensor(rig, bias, CK_SHAPE(s->out)), &s->is));
  const struct backward b = {
      .tx = tx, .tw = tw, .tdy = tdy, .workspace = workspace_of(rig, z.backward)};
  ck_ok(go_back(rig, s, &b, dx, dweight, NULL, 1));
  ck_same_bits("y", ck_read(rig, y), want[Y], z.ys);
  ck_same_bits("dx", ck_read(rig, dx), want[DX], z.xs);
  ck_same_bits("dweight", ck_read(rig, dweight), want[DWEIGHT], z.weights);
}

/* ---- finite differences ---- */

CK_LOOP(finite_differences, 3) {
  if (!ck_gpu_part(_i)) return;
  static const char *const names[] = {"dx", "dweight", "dbias"};
  const int64_t most = ck_on_gpu() ? 10 : 40; /* which of them is wrong the other cases say */
  struct ck_rig *rig = ck_rig_open(NULL, EK_F64, 1);
  const struct shape *s = &shapes[6 + _i];
  const struct sizes z = sizes_of(rig, s);
  const struct backward b = make_backward(rig, s, &z);
  ek_tensor *y = ck_poisoned(rig, 4, z.y), *workspace = workspace_of(rig, z.forward);
  ek_tensor *in[] = {b.tx, b.tw, ck_tensor(rig, b.dbias, CK_SHAPE(s->out))};
  ek_tensor *d[] = {ck_poisoned(rig, 4, s->x), ck_poisoned(rig, 4, z.weight),
                    ck_poisoned(rig, CK_SHAPE(s->out))};
  ck_ok(go_back(rig, s, &b, d[0], d[1], d[2], 0));
  for (int k = 0; k < 3; k++) {
    ck_gradient(rig, names[k], in[k], d[k], most,
                ek_op_convolve_forward(rig->stream, y, workspace, in[0], in[1], in[2], &s->is),
                ck_weighed(y, b.dy));
  }
}

/* ---- the number of threads ---- */

/* y, dx and dweight, one after the other, of device 0 of a group of its own. */
static void compute_all(double *to, ek_type type, int threads, const struct shape *s,
                        const struct sizes *z, const double *values) {
  CK_WITH(ek_group_options, options, EK_GROUP_OPTIONS_INIT, .threads_per_device = threads,
          .deterministic = true);
  CK_OPENED(ek_group *, group, ek_group_open(&group, test_devices("cpu:1"), &options));
  ek_device *device = ek_group_device(group, 0);
  ek_stream *stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  const int64_t most = z->forward > z->backward ? z->forward : z->backward;
  ek_tensor x = ck_upload(device, type, values, 4, s->x);
  ek_tensor weight = ck_upload(device, type, values, 4, z->weight);
  ek_tensor dy = ck_upload(device, type, values, 4, z->y);
  ek_tensor y = ck_upload(device, type, NULL, 4, z->y);
  ek_tensor dx = ck_upload(device, type, NULL, 4, s->x);
  ek_tensor dweight = ck_upload(device, EK_F32, NULL, 4, z->weight);
  ek_tensor workspace = ck_upload(device, EK_F32, NULL, 1, &most);
  ck_ok(ek_op_convolve_forward(stream, &y, &workspace, &x, &weight, NULL, &s->is));
  ek_convolve_backward_args args = {.dx = &dx, .dweight = &dweight, .workspace = &workspace};
  args.dy = &dy, args.x = &x, args.weight = &weight, args.options = &s->is;
  ck_ok(ek_op_convolve_backward(stream, &args));
  ck_get(to, &y);
  ck_get(to + z->ys, &dx);
  ck_get(to + z->ys + z->xs, &dweight);
}

/* The same bits with any number of threads: a convolution is cut by its shape. A GPU has no such
 * number, and repeats once. */
CK_LOOP(any_number_of_threads, ck_has_halves() ? 4 : 2) {
  if (!ck_gpu_part(_i)) return;
  const struct shape *s = &shapes[_i % 2 == 0 ? 5 : SHAPES - 1];
  struct ck_rig *rig = ck_rig_open(NULL, _i < 2 ? EK_F32 : EK_BF16, 1);
  const struct sizes z = sizes_of(rig, s);
  const int64_t count = z.ys + z.xs + z.weights;
  const double *values = ck_values(rig, count, -1, 1);
  double *want = ck_zeros(rig, count), *got = ck_zeros(rig, count);
  compute_all(want, rig->type, 1, s, &z, values);
  for (int threads = 2; threads <= (ck_on_gpu() ? 2 : 5); threads++) {
    compute_all(got, rig->type, threads, s, &z, values);
    ck_same_bits("y, dx, dweight", got, want, count);
  }
}

/* Each request for host memory fails once, in primitives that are made and that run: the call says
 * so, and the next one is right. */
CK_LOOP(without_host_memory, 6) {
  if (!ck_gpu_part(_i)) return;
  const struct shape *s = &shapes[_i < 3 ? 5 : TILED];
  const enum result which = (enum result)(_i % 3);
  struct ck_rig *rig = ck_rig_open(NULL, EK_F32, 2);
  const struct sizes z = sizes_of(rig, s);
  const struct backward b = make_backward(rig, s, &z);
  ek_tensor *results[] = {ck_poisoned(rig, 4, z.y), ck_poisoned(rig, 4, s->x),
                          ck_poisoned_sums(rig, 4, z.weight)};
  ek_tensor *workspace = workspace_of(rig, z.forward), *result = results[which];
  double *first = NULL;
  for (int round = 0; round < 2; round++) { /* in the second all that is made is there */
    uint64_t n = 0;
    while (ck_host_fails(&n, which == Y ? ek_op_convolve_forward(rig->stream, result, workspace,
                                                                 b.tx, b.tw, NULL, &s->is)
                                        : go_back(rig, s, &b, which == DX ? result : NULL,
                                                  which == DWEIGHT ? result : NULL, NULL, 0))) {
    }
    double *got = ck_read(rig, result);
    if (round == 1) ck_same_bits("after failures", got, first, ek_tensor_count(result));
    first = got;
  }
}

/* ---- sizes and mistakes ---- */

CK_TEST(shapes_follow_the_formula) {
  static const struct {
    int64_t size;
    ek_convolution is;
    int64_t want;
  } known[] = {{224, IS({7, 7}, {2, 2}, {3, 3}, {1, 1}, 1), 112},
               {32, IS({3, 3}, {1, 1}, {1, 1}, {1, 1}, 1), 32},
               {56, IS({1, 1}, {2, 2}, {0, 0}, {1, 1}, 1), 28},
               {60, IS({3, 3}, {1, 1}, {4, 4}, {4, 4}, 1), 60},
               {5, IS({2, 2}, {2, 2}, {0, 0}, {1, 1}, 1), 2}};
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    int64_t y[4];
    ck_ok(ek_convolution_shape(y, (const int64_t[]){2, known[i].size, known[i].size, 3}, 9,
                               &known[i].is));
    ck_assert_int_eq(y[0], 2);
    ck_assert_int_eq(y[1], known[i].want);
    ck_assert_int_eq(y[2], known[i].want);
    ck_assert_int_eq(y[3], 9);
  }
}

/* The block has an end, whatever the pictures. */
CK_TEST(workspace_is_bounded) {
  const ek_convolution is = IS({3, 3}, {1, 1}, {1, 1}, {1, 1}, 1);
  int64_t forward = 0, backward = 0, last = 0;
  for (int64_t images = 1; images < INT64_C(1) << 20; images *= 4) {
    ck_ok(ek_convolution_workspace(&forward, &backward, (const int64_t[]){images, 224, 224, 64}, 64,
                                   EK_F32, &is));
    ck_assert_int_le(4 * forward, (16 << 20) + 64 * 64 * 9 * 4 + 512);
    ck_assert_int_le(4 * backward, (16 << 20) + 64 * 64 * 9 * 4 + 512);
    last = forward;
  }
  ck_assert_int_gt(4 * last, 15 << 20);
  const ek_convolution plain = EK_CONVOLUTION_INIT;
  ck_ok(ek_convolution_workspace(&forward, &backward, (const int64_t[]){8, 224, 224, 64}, 64,
                                 EK_F32, &plain));
  ck_assert_int_eq(forward, 0);
  ck_assert_int_eq(backward, 0);
}

CK_RIG_TEST(workspace_too_small, NULL, EK_F32) {
  const struct shape *s = &shapes[4];
  const struct sizes z = sizes_of(rig, s);
  const struct backward b = make_backward(rig, s, &z);
  ek_tensor *y = ck_poisoned(rig, 4, z.y), *dx = ck_poisoned(rig, 4, s->x);
  ck_fails(ek_op_convolve_forward(rig->stream, y, NULL, b.tx, b.tw, NULL, &s->is), EK_ERR_SHAPE,
           "convolve_forward: workspace has 0 elements, expected at least");
  ck_fails(ek_op_convolve_forward(rig->stream, y, workspace_of(rig, z.forward - 1), b.tx, b.tw,
                                  NULL, &s->is),
           EK_ERR_SHAPE, "workspace");
  CK_WITH(struct backward, without, b, .workspace = NULL);
  ck_fails(go_back(rig, s, &without, dx, NULL, NULL, 0), EK_ERR_SHAPE,
           "convolve_backward: workspace has 0 elements");
}

CK_TEST(bad_options) {
  static const struct {
    ek_convolution is;
    ek_status wanted;
    const char *text;
  } bad[] = {
#define BAD(status, text, ...) {IS(__VA_ARGS__), EK_ERR_##status, text}
      BAD(INVALID_ARGUMENT, "kernel is 3 x 0, expected at least 1", {3, 0}, {1, 1}, {1, 1}, {1, 1},
          2),
      BAD(INVALID_ARGUMENT, "stride is -1 x 1, expected at least 1", {3, 3}, {-1, 1}, {1, 1},
          {1, 1}, 2),
      BAD(INVALID_ARGUMENT, "padding is -1 x 1, expected at least 0", {3, 3}, {1, 1}, {-1, 1},
          {1, 1}, 2),
      BAD(INVALID_ARGUMENT, "dilation is 1 x 0, expected at least 1", {3, 3}, {1, 1}, {1, 1},
          {1, 0}, 2),
      BAD(INVALID_ARGUMENT, "groups is 0, expected at least 1", {3, 3}, {1, 1}, {1, 1}, {1, 1}, 0),
      BAD(SHAPE, "3 groups do not divide 6 and 4 channels", {3, 3}, {1, 1}, {1, 1}, {1, 1}, 3),
      BAD(SHAPE, "x is 10 high with its padding, and the kernel 11", {11, 3}, {1, 1}, {1, 1},
          {1, 1}, 2),
      BAD(OVERFLOW, "63 bits", {3, 3}, {1, 1}, {1, 1}, {1, INT64_MAX / 2 + 1}, 2),
      BAD(OVERFLOW, "63 bits", {3, 3}, {1, 1}, {1, INT64_MAX / 2}, {1, 1}, 2),
  };
  int64_t y[4] = {-7, -7, -7, -7}, forward = -7, backward = -7;
  const int64_t x[] = {2, 8, 8, 6};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    ck_fails(ek_convolution_shape(y, x, 4, &bad[i].is), bad[i].wanted, bad[i].text);
    ck_fails(ek_convolution_workspace(&forward, &backward, x, 4, EK_F32, &bad[i].is),
             bad[i].wanted, bad[i].text);
    ck_assert_int_eq(y[0], -7);
    ck_assert_int_eq(forward, -7);
  }
  ck_invalid(ek_convolution_shape(y, NULL, 4, NULL), "NULL");
  ck_fails(ek_convolution_shape(y, (const int64_t[]){1, 2, 2, -1}, 4, NULL), EK_ERR_SHAPE,
           "sizes from 0 up");
  ck_fails(
      ek_convolution_workspace(&forward, &backward, (const int64_t[]){1, 2, 2, 2}, 4, EK_I32, NULL),
      EK_ERR_TYPE, "i32");
}

/* Operands that do not fit each other: the rest is check_op's. */
CK_RIG_TEST(bad_operands, NULL, EK_F32) {
  const struct shape *s = &shapes[4];
  const struct sizes z = sizes_of(rig, s);
  const struct backward b = make_backward(rig, s, &z);
  ek_tensor *y = ck_poisoned(rig, 4, z.y), *flat = ck_poisoned(rig, CK_SHAPE(z.xs));
  ek_tensor *workspace = workspace_of(rig, z.forward);
  ck_fails(ek_op_convolve_forward(rig->stream, y, workspace, flat, b.tw, NULL, &s->is),
           EK_ERR_SHAPE, "convolve_forward: x has 1 dimensions and weight 4, expected 4 each");
  ck_fails(ek_op_convolve_forward(rig->stream, y, workspace, b.tx, b.tw, NULL, NULL), EK_ERR_SHAPE,
           "weight is 32 x 16 x 3 x 3, expected 32 x 16 x 1 x 1");
  ek_tensor *dw = ck_poisoned_sums(rig, 4, z.weight);
  CK_WITH(struct backward, without, b, .tx = NULL);
  ck_invalid(go_back(rig, s, &without, NULL, dw, NULL, 0), "convolve_backward: x is NULL");
  ck_invalid(ek_op_convolve_backward(rig->stream, NULL), "args is NULL");
  ck_fails(go_back(rig, s, &b, flat, NULL, NULL, 0), EK_ERR_SHAPE,
           "dx is 3072, expected 3 x 8 x 8 x 16");
  ek_tensor *low = ck_poisoned(rig, CK_SHAPE(3, 7, 8, 32));
  ck_fails(ek_op_convolve_forward(rig->stream, low, workspace, b.tx, b.tw, NULL, &s->is),
           EK_ERR_SHAPE, "y is 3 x 7 x 8 x 32, expected 3 x 8 x 8 x 32");
}

/* A device that only counts takes pictures of any size. */
CK_RIG_TEST(plans, CK_HUGE_PLAN, EK_F32) {
  const struct shape s = {{4096, 1024, 1024, 256}, 256, IS({3, 3}, {1, 1}, {1, 1}, {1, 1}, 1)};
  const struct sizes z = sizes_of(rig, &s);
  ek_tensor *workspace = ck_ghost(rig, EK_F32, CK_SHAPE(z.forward));
  ck_ok(ek_op_convolve_forward(rig->stream, ck_ghost(rig, EK_F32, 4, z.y), workspace,
                               ck_ghost(rig, EK_F32, 4, s.x), ck_ghost(rig, EK_F32, 4, z.weight),
                               NULL, &s.is));
}

CK_SUITE("convolve")
