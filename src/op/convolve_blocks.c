/*
 * convolve_blocks.c - a convolution by matrix products, in blocks of pixels.
 *
 * A block is unfolded: for each pixel of the result a row with what the kernel sees from there, by
 * group, then by element of the kernel, then by channel, so that channels are copied as they are.
 * Then
 *     y       = unfolded x  times the weights, group by group, + bias
 *     dx      = unfolded dy times the weights turned round: dx is a convolution of dy, in which the
 *               stride spreads the pixels of dy. Every element is one sum and is rounded once, in
 *               any type; with strides above 1 the zeros between the pixels are multiplied too
 *     dweight = dy^T times unfolded x, summed over the blocks in order, in the type of sums
 * The weights are permuted first so that the product reads them by rows, and dweight last.
 *
 * Where the unfolded matrix would be the picture itself (a kernel of one pixel, every pixel, no
 * padding) there is no workspace and the products read and write the tensors.
 *
 * The workspace is the permuted weights (or sums of dweight), then the block. Its size and so the
 * order of all sums follow from the shapes and the type. It is also large enough for what a backend
 * with a convolution of its own needs there, in the types of such: the weights in its own layout,
 * of which channels may be padded to PADDED, or for dweight one for each chunk of the images, and
 * the sum. A dweight in f32 gets no more memory for that than the blocks need: where it would need
 * more, pixels are few and weights many, and the blocks are the better form.
 */
#include "op/convolve_internal.h"

#include "core/sizes.h"

#define MOST_BYTES ((int64_t)16 << 20) /* of a block of more than one row */
#define UNIT 256
#define PADDED 16
#define MOST_CHUNKS 16

/* Matrices of a result, the same for every group. */
struct matrices {
  int64_t rows;    /* of the unfolded matrix, of all blocks: pixels of dx, or else of y */
  int64_t seen;    /* channels of what is unfolded: of dy for dx, or else of x */
  int64_t columns; /* of the unfolded matrix */
  int64_t block;   /* rows at a time */
  int64_t weights, weight_size; /* elements of all groups, and bytes of one */
  size_t size;                  /* bytes of a value */
};

static int64_t taps_of(const struct ek__convolution *shape) {
  return shape->kernel[0] * shape->kernel[1];
}

static bool is_flat(const struct ek__convolution *shape) {
  for (int i = 0; i < 2; i++) {
    if (shape->kernel[i] != 1 || shape->stride[i] != 1 || shape->padding[i] != 0) return false;
  }
  return true;
}

/* False if a size does not fit. */
static bool measure(struct matrices *m, enum ek__convolve result,
                    const struct ek__convolution *shape, struct ek__types types) {
  const int64_t *pixels = result == EK__CONVOLVE_DX ? shape->in_size : shape->out_size;
  const bool sums = result == EK__CONVOLVE_DWEIGHT;
  int64_t taps = 0, row_bytes = 0;
  m->seen = result == EK__CONVOLVE_DX ? shape->out : shape->channels;
  m->size = ek__type_size(types.value);
  m->weight_size = (int64_t)ek__type_size(sums ? types.sum : types.value);
  if (!ek__multiply(&taps, shape->kernel[0], shape->kernel[1]) ||
      !ek__multiply(&m->rows, shape->images, pixels[0]) ||
      !ek__multiply(&m->rows, m->rows, pixels[1]) || !ek__multiply(&m->columns, m->seen, taps) ||
      !ek__multiply(&row_bytes, m->columns, (int64_t)m->size) ||
      !ek__multiply(&m->weights, shape->out, shape->channels / shape->groups) ||
      !ek__multiply(&m->weights, m->weights, taps)) {
    return false;
  }
  const int64_t most = row_bytes > 0 && row_bytes <= MOST_BYTES ? MOST_BYTES / row_bytes : 1;
  const int64_t blocks = m->rows / most + (m->rows % most != 0);
  m->block = blocks < 2 ? m->rows : m->rows / blocks + (m->rows % blocks != 0);
  return true;
}

/* Up to a multiple of UNIT. */
static bool area(int64_t *bytes, int64_t elements, int64_t size) {
  uint64_t whole = 0;
  if (!ek__multiply(bytes, elements, size) || !ek__round_up(&whole, (uint64_t)*bytes, UNIT) ||
      whole > INT64_MAX) {
    return false;
  }
  *bytes = (int64_t)whole;
  return true;
}

static bool padded(int64_t *channels) {
  uint64_t whole = 0;
  if (!ek__round_up(&whole, (uint64_t)*channels, PADDED) || whole > INT64_MAX) return false;
  *channels = (int64_t)whole;
  return true;
}

/* Of weights with padded channels, or padded groups where these have one channel each. */
static bool padded_area(int64_t *bytes, const struct ek__convolution *shape, int64_t size) {
  int64_t in = shape->channels / shape->groups, out = shape->out / shape->groups;
  int64_t groups = shape->groups;
  if (groups > 1 && in == 1 && out == 1 ? !padded(&groups) : !padded(&in) || !padded(&out)) {
    return false;
  }
  return ek__multiply(bytes, in, out) && ek__multiply(bytes, *bytes, groups) &&
         ek__multiply(bytes, *bytes, taps_of(shape)) && area(bytes, *bytes, size);
}

/* A power of two: as many as fit in MOST_BYTES, but two if there are as many images. */
int64_t ek__convolve_chunks(const struct ek__convolution *shape) {
  int64_t chunks = MOST_CHUNKS, one = 0;
  if (!padded_area(&one, shape, sizeof(float))) return 1;
  while (chunks > 2 && one > MOST_BYTES / chunks) chunks /= 2;
  while (chunks > 1 && chunks > shape->images) chunks /= 2;
  return chunks;
}

/* The workspace that a backend with its own form may need. */
static bool own_bytes(int64_t *bytes, enum ek__convolve result, const struct ek__convolution *shape,
                      const struct matrices *m) {
  int64_t sum = 0;
  if (!padded_area(bytes, shape, m->weight_size)) return false;
  if (result != EK__CONVOLVE_DWEIGHT) return true;
  return ek__multiply(bytes, *bytes, ek__convolve_chunks(shape)) &&
         area(&sum, m->weights, m->weight_size) && ek__add(bytes, *bytes, sum);
}

bool ek__convolve_bytes(int64_t *bytes, enum ek__convolve result,
                        const struct ek__convolution *shape, struct ek__types types) {
  struct matrices m;
  int64_t weights = 0, unfolded = 0, own = 0;
  if (!measure(&m, result, shape, types)) return false;
  *bytes = 0;
  if (is_flat(shape)) return true;
  if (!area(&weights, m.weights, m.weight_size) || !ek__multiply(&unfolded, m.block, m.columns) ||
      !area(&unfolded, unfolded, (int64_t)m.size) || !ek__add(bytes, weights, unfolded)) {
    return false;
  }
  if (types.value != EK_F32 && types.value != EK_BF16) return true;
  if (!own_bytes(&own, result, shape, &m)) return false;
  const bool either = result == EK__CONVOLVE_DWEIGHT && types.value == EK_F32;
  if (own > *bytes && !either) *bytes = own;
  return true;
}

/* ---- the steps ---- */

struct running {
  const struct ek__kernels *kernels;
  ek_stream *stream;
  const struct ek__convolve_args *args;
  struct matrices m;
  bool flat;
  void *weights;  /* permuted */
  char *unfolded; /* the block */
};

/* Weights as [group][out][ky][kx][channel], or for dx [group][channel][ky][kx][out], with the
 * kernel turned round. */
static ek_status permute_weights(const struct running *r) {
  const struct ek__convolution *s = r->args->shape;
  const int64_t taps = taps_of(s), in = s->channels / s->groups, out = s->out / s->groups;
  const char *weight = r->args->weight;
  struct ek__permute_args permute = {.y = r->weights, .x = weight, .types = r->args->types};
  if (r->args->result == EK__CONVOLVE_DX) {
    permute.x = weight + (size_t)(taps - 1) * r->m.size;
    const int64_t size[4] = {s->groups, in, taps, out},
                  step[4] = {out * in * taps, taps, -1, in * taps};
    memcpy(permute.size, size, sizeof size);
    memcpy(permute.step, step, sizeof step);
  } else {
    const int64_t size[4] = {s->groups, out, taps, in},
                  step[4] = {out * in * taps, in * taps, 1, taps};
    memcpy(permute.size, size, sizeof size);
    memcpy(permute.step, step, sizeof step);
  }
  return r->kernels->permute(r->stream, &permute);
}

/* dweight = scale dweight + the sums, which are [out][ky][kx][channel]. */
static ek_status add_weights(const struct running *r) {
  const struct ek__convolution *s = r->args->shape;
  const int64_t taps = taps_of(s), in = s->channels / s->groups;
  const struct ek__permute_args permute = {.y = r->args->to,
                                           .x = r->weights,
                                           .size = {1, s->out, in, taps},
                                           .step = {0, taps * in, 1, in},
                                           .value = r->args->scale,
                                           .types = ek__types_in(r->args->types.sum)};
  return r->kernels->permute(r->stream, &permute);
}

static ek_status unfold(const struct running *r, int64_t first, int64_t rows) {
  const struct ek__convolution *s = r->args->shape;
  const bool back = r->args->result == EK__CONVOLVE_DX;
  const int64_t *from = back ? s->out_size : s->in_size, *to = back ? s->in_size : s->out_size;
  struct ek__unfold_args unfold = {.y = r->unfolded,
                                   .x = back ? r->args->dy : r->args->x,
                                   .first = first,
                                   .rows = rows,
                                   .height = from[0],
                                   .width = from[1],
                                   .channels = r->m.seen,
                                   .groups = s->groups,
                                   .out_height = to[0],
                                   .out_width = to[1],
                                   .types = r->args->types};
  for (int i = 0; i < 2; i++) {
    unfold.kernel[i] = s->kernel[i];
    unfold.dilation[i] = s->dilation[i];
    unfold.step[i] = back ? 1 : s->stride[i];
    unfold.spread[i] = back ? s->stride[i] : 1;
    unfold.offset[i] = back ? (s->kernel[i] - 1) * s->dilation[i] - s->padding[i] : s->padding[i];
  }
  return r->kernels->unfold(r->stream, &unfold);
}

static const char *at(const void *base, int64_t elements, size_t size) {
  return (const char *)base + (size_t)elements * size;
}

/* Of one group: rows of y or dx. The weights of dx are read by rows, those of the flat case where
 * they are. */
static ek_status multiply_pixels(const struct running *r, int64_t first, int64_t rows,
                                 int64_t group) {
  const struct ek__convolve_args *args = r->args;
  const struct ek__convolution *s = args->shape;
  const bool back = args->result == EK__CONVOLVE_DX;
  const size_t size = r->m.size;
  const int64_t made = back ? s->channels : s->out, n = made / s->groups;
  const int64_t k = r->m.columns / s->groups;
  const void *picture = at(back ? args->dy : args->x, first * r->m.seen, size);
  const struct ek__matmul_args product = {
      .c = (void *)(uintptr_t)at(args->to, first * made + group * n, size),
      .a = at(r->flat ? picture : r->unfolded, group * k, size),
      .b = at(r->flat ? args->weight : r->weights, group * n * k, size),
      .m = rows,
      .n = n,
      .k = k,
      .lda = r->m.columns,
      .ldb = back && r->flat ? n : k,
      .ldc = made,
      .transpose_b = !(back && r->flat),
      .bias = args->bias != NULL ? at(args->bias, group * n, size) : NULL,
      .types = args->types};
  return r->kernels->matmul(r->stream, &product);
}

static ek_status multiply_weights(const struct running *r, int64_t first, int64_t rows,
                                  int64_t group) {
  const struct ek__convolve_args *args = r->args;
  const struct ek__convolution *s = args->shape;
  const int64_t m = s->out / s->groups, n = r->m.columns / s->groups;
  const void *picture = at(args->x, first * r->m.seen, r->m.size);
  void *sums = r->flat ? args->to : r->weights;
  const struct ek__matmul_args product = {
      .c = (void *)(uintptr_t)at(sums, group * m * n, (size_t)r->m.weight_size),
      .a = at(args->dy, first * s->out + group * m, r->m.size),
      .b = at(r->flat ? picture : r->unfolded, group * n, r->m.size),
      .m = m,
      .n = n,
      .k = rows,
      .lda = s->out,
      .ldb = r->m.columns,
      .ldc = n,
      .transpose_a = true,
      .beta = first > 0 ? 1
              : r->flat ? args->scale
                        : 0,
      .gradient = true,
      .types = args->types};
  return r->kernels->matmul(r->stream, &product);
}

static ek_status run_blocks(const struct running *r) {
  const bool weights = r->args->result == EK__CONVOLVE_DWEIGHT;
  for (int64_t first = 0; first < r->m.rows; first += r->m.block) {
    const int64_t rest = r->m.rows - first, rows = rest < r->m.block ? rest : r->m.block;
    if (!r->flat) EK_TRY(unfold(r, first, rows));
    for (int64_t group = 0; group < r->args->shape->groups; group++) {
      EK_TRY(weights ? multiply_weights(r, first, rows, group)
                     : multiply_pixels(r, first, rows, group));
    }
  }
  return EK_OK;
}

/* dweight without a pixel to add. */
static ek_status scale_weights(const struct running *r) {
  const struct ek__elementwise_args args = {.y = r->args->to,
                                            .a = r->args->to,
                                            .count = r->m.weights,
                                            .value = r->args->scale,
                                            .types = ek__types_in(r->args->types.sum)};
  return r->args->scale == 0 ? r->kernels->fill(r->stream, &args)
                             : r->kernels->scale(r->stream, &args);
}

static ek_status by_blocks(const struct ek__kernels *kernels, ek_stream *stream,
                           const struct ek__convolve_args *args) {
  struct running r = {kernels, stream, args, .flat = is_flat(args->shape)};
  const bool weights = args->result == EK__CONVOLVE_DWEIGHT;
  int64_t before = 0;
  if (!measure(&r.m, args->result, args->shape, args->types) ||
      !area(&before, r.m.weights, r.m.weight_size)) {
    return ek_error_set(EK_ERR_OVERFLOW, "convolve: the sizes do not fit in 63 bits");
  }
  if (weights && r.m.rows == 0) return scale_weights(&r);
  if (!r.flat) {
    r.weights = args->workspace;
    r.unfolded = args->workspace + before;
    if (!weights) EK_TRY(permute_weights(&r));
  }
  EK_TRY(run_blocks(&r));
  return weights && !r.flat ? add_weights(&r) : EK_OK;
}

ek_status ek__convolve(const struct ek__kernels *kernels, ek_stream *stream,
                       const struct ek__convolve_args *args) {
  bool done = false;
  if (kernels->convolve != NULL && !is_flat(args->shape) && args->shape->images > 0) {
    EK_TRY(kernels->convolve(&done, stream, args));
  }
  return done ? EK_OK : by_blocks(kernels, stream, args);
}
