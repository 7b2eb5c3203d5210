/*
 * cpu_convolve_onednn.c - convolutions in f32 and bf16 by oneDNN's primitives; compiled only with
 * oneDNN. cpu_kept_onednn.c keeps the primitives.
 *
 * The images are cut into pieces, by the shapes alone, and the pieces are dealt out to the threads
 * of the team in turn: each runs a primitive of one thread on its images. So results do not depend
 * on the number of threads. Fewer images than threads leave threads without work.
 *
 * Pictures stay as they are. Weights are reordered into the layout that the primitive wants, once
 * for all pieces, into the workspace. For dweight each piece has a partial result there, in the
 * primitive's own layout; they are added in order, and the sum is reordered.
 *
 * The layout is that which oneDNN prefers for the larger pieces; the smaller ones, if the pieces
 * are not equal, are made for it. Nothing is done where oneDNN has only plain loops, where it
 * computes wrong, where its layout does not fit in the workspace, where there is little to compute,
 * and where products over unfolded blocks (op/convolve_blocks.c) are faster. That is so with
 * oneDNN's code for AVX2, without groups:
 *   - of dweight for any shape: 60 to 79 of 100 GFLOP/s instead of 23 to 60, the less the deeper
 *   - of y with many weights, which are read from the third-level cache for each row of a picture:
 *     68 to 82 instead of 47 to 60; with strides from a quarter of them
 * (docs/results/2026-11-26-images.md).
 */
#include "backend/cpu/cpu_convolve.h"
#include "backend/cpu/cpu_kept.h"
#include "backend/cpu/cpu_primitive.h"

#include <stdio.h>
#include <string.h>

#include "core/error.h"

enum { A = EK__KEPT_A, B = EK__KEPT_B, BIAS = EK__KEPT_BIAS, C = EK__KEPT_C };
enum order { CONVOLVE, REORDER };

/* Multiplications below which no primitive is made, and of a piece at least. */
#define LEAST_WORK 1e5
#define LEAST_PIECE 1e6
#define MOST_PIECES 16
/* More weights than this are read too often by many pieces, and by each row of a picture. */
#define HEAVY_WEIGHTS (INT64_C(1) << 20)
#define FEW_PIECES 8

struct key { /* compared as bytes, so it has no gaps */
  struct ek__convolution shape;
  int64_t images; /* of the piece; shape has those of the larger ones */
  uint8_t result, order, type, bias, unused[4];
};
_Static_assert(sizeof(struct key) == sizeof(struct ek__convolution) + 16, "a gap");
_Static_assert(sizeof(struct key) <= 8 * EK__KEPT_WORDS, "no room for the key");

/* ---- making a primitive ---- */

static dnnl_data_type_t value_of(const struct key *key) {
  return key->type == EK_F32 ? dnnl_f32 : dnnl_bf16;
}

/* Of weights in the primitive's layout, and as they are outside. */
static dnnl_data_type_t weights_of(const struct key *key) {
  return key->result == EK__CONVOLVE_DWEIGHT ? dnnl_f32 : value_of(key);
}

static dnnl_status_t describe_picture(struct ek__filling *f, int i, const struct key *key,
                                      int64_t images, const int64_t size[2], int64_t channels) {
  const dnnl_dims_t sizes = {images, channels, size[0], size[1]};
  const dnnl_dims_t steps = {size[0] * size[1] * channels, 1, size[1] * channels, channels};
  return ek__kept_describe(f, i, 4, sizes, steps, value_of(key));
}

/* In the layout of outside, or that which the primitive chooses. */
static dnnl_status_t describe_weights(struct ek__filling *f, int i, const struct key *key,
                                      bool plain) {
  const struct ek__convolution *s = &key->shape;
  const int64_t in = s->channels / s->groups, out = s->out / s->groups;
  const int64_t taps = s->kernel[0] * s->kernel[1];
  const dnnl_dims_t sizes = {s->groups, out, in, s->kernel[0], s->kernel[1]};
  const dnnl_dims_t steps = {out * in * taps, in * taps, taps, s->kernel[1], 1};
  const int skip = s->groups == 1 ? 1 : 0;
  return ek__kept_describe(f, i, 5 - skip, sizes + skip, plain ? steps + skip : NULL,
                           weights_of(key));
}

/* x is what[A], y what[B], the bias what[BIAS]. */
static dnnl_status_t describe_pictures(struct ek__filling *f, const struct key *key,
                                       int64_t images) {
  const struct ek__convolution *s = &key->shape;
  const dnnl_dims_t sizes = {s->out}, steps = {1};
  ek__kept_forget(f, A);
  ek__kept_forget(f, B);
  dnnl_status_t status = describe_picture(f, A, key, images, s->in_size, s->channels);
  if (status == dnnl_success) status = describe_picture(f, B, key, images, s->out_size, s->out);
  ek__kept_forget(f, BIAS);
  if (status == dnnl_success && key->bias) {
    status = ek__kept_describe(f, BIAS, 1, sizes, steps, value_of(key));
  }
  return status;
}

struct geometry { /* of oneDNN: a dilation of 0 is none */
  dnnl_dims_t stride, dilation, padding;
};

static struct geometry geometry_of(const struct ek__convolution *s) {
  return (struct geometry){{s->stride[0], s->stride[1]},
                           {s->dilation[0] - 1, s->dilation[1] - 1},
                           {s->padding[0], s->padding[1]}};
}

/* Of the pictures as they are described. `hint` is that of the forward, for the ways back. */
static dnnl_status_t plan(dnnl_primitive_desc_t *pd, const struct ek__filling *f,
                          enum ek__convolve result, ek__memory_desc weights,
                          const_dnnl_primitive_desc_t hint) {
  const struct key *key = (const void *)f->place->key;
  const struct geometry g = geometry_of(&key->shape);
  ek__memory_desc x = ek__kept_what(f, A), y = ek__kept_what(f, B);
  ek__memory_desc bias = key->bias ? ek__kept_what(f, BIAS) : NULL;
  const dnnl_alg_kind_t direct = dnnl_convolution_direct;
  dnnl_engine_t engine = ek__kept_engine();
#if DNNL_VERSION_MAJOR >= 3
  switch (result) {
  case EK__CONVOLVE_DX:
    return dnnl_convolution_backward_data_primitive_desc_create(pd, engine, direct, x, weights, y,
                                                                g.stride, g.dilation, g.padding,
                                                                g.padding, hint, f->attributes);
  case EK__CONVOLVE_DWEIGHT:
    return dnnl_convolution_backward_weights_primitive_desc_create(
        pd, engine, direct, x, weights, NULL, y, g.stride, g.dilation, g.padding, g.padding, hint,
        f->attributes);
  case EK__CONVOLVE_Y: break;
  }
  return dnnl_convolution_forward_primitive_desc_create(pd, engine, dnnl_forward_training, direct,
                                                        x, weights, bias, y, g.stride, g.dilation,
                                                        g.padding, g.padding, f->attributes);
#else
  dnnl_convolution_desc_t what;
  dnnl_status_t status = dnnl_success;
  switch (result) {
  case EK__CONVOLVE_Y:
    status = dnnl_dilated_convolution_forward_desc_init(&what, dnnl_forward_training, direct, x,
                                                        weights, bias, y, g.stride, g.dilation,
                                                        g.padding, g.padding);
    break;
  case EK__CONVOLVE_DX:
    status = dnnl_dilated_convolution_backward_data_desc_init(
        &what, direct, x, weights, y, g.stride, g.dilation, g.padding, g.padding);
    break;
  case EK__CONVOLVE_DWEIGHT:
    status = dnnl_dilated_convolution_backward_weights_desc_init(
        &what, direct, x, weights, NULL, y, g.stride, g.dilation, g.padding, g.padding);
    break;
  }
  if (status != dnnl_success) return status;
  return dnnl_primitive_desc_create(pd, &what, f->attributes, engine, hint);
#endif
}

/* The ways back ask for the forward that they belong to, in values. */
static dnnl_status_t plan_hint(struct ek__filling *f, const struct key *key) {
  if (key->result == EK__CONVOLVE_Y) return dnnl_success;
  struct key forward = *key;
  forward.result = EK__CONVOLVE_Y;
  ek__kept_forget(f, C);
  const dnnl_status_t status = describe_weights(f, C, &forward, false);
  if (status != dnnl_success) return status;
  return plan(&f->other[0], f, EK__CONVOLVE_Y, ek__kept_what(f, C), NULL);
}

/* f->other[1] becomes the convolution of the larger pieces, in the layout that oneDNN prefers. */
static dnnl_status_t plan_larger(struct ek__filling *f, const struct key *key) {
  dnnl_status_t status = ek__kept_attributes(f, 0);
  if (status == dnnl_success) status = describe_pictures(f, key, key->shape.images);
  if (status == dnnl_success) status = plan_hint(f, key);
  if (status != dnnl_success) return status;
  ek__kept_forget(f, C);
  status = describe_weights(f, C, key, false);
  if (status != dnnl_success) return status;
  return plan(&f->other[1], f, (enum ek__convolve)key->result, ek__kept_what(f, C), f->other[0]);
}

static ek__memory_desc special_layout(const struct ek__filling *f, const struct key *key) {
  const bool sums = key->result == EK__CONVOLVE_DWEIGHT;
  return dnnl_primitive_desc_query_md(f->other[1],
                                      sums ? dnnl_query_diff_weights_md : dnnl_query_weights_md, 0);
}

/* The weights into the primitive's layout, or out of it. */
static dnnl_status_t make_reorder(struct ek__filling *f, const struct key *key) {
  const bool out = key->result == EK__CONVOLVE_DWEIGHT;
  ek__kept_forget(f, C);
  dnnl_status_t status = describe_weights(f, C, key, true);
  if (status != dnnl_success) return status;
  ek__memory_desc plain = ek__kept_what(f, C), special = special_layout(f, key);
  ek__memory_desc from = out ? special : plain, to = out ? plain : special;
  status = dnnl_reorder_primitive_desc_create(&f->product, from, ek__kept_engine(), to,
                                              ek__kept_engine(), f->attributes);
  if (status == dnnl_success) status = ek__kept_memory(f->place, A, from);
  if (status == dnnl_success) status = ek__kept_memory(f->place, C, to);
  if (status == dnnl_success) status = ek__kept_finish(f);
  return status;
}

/* Whether products over unfolded blocks are faster than this primitive. */
static bool is_slower(const struct key *key, const_dnnl_primitive_desc_t product) {
  const struct ek__convolution *s = &key->shape;
  const int64_t weights = s->out * s->channels * s->kernel[0] * s->kernel[1];
  const bool strided = s->stride[0] * s->stride[1] > 1;
  if (key->type != EK_F32 || s->groups != 1 || !ek__kept_is(product, "jit:avx2")) return false;
  if (key->result != EK__CONVOLVE_Y) return key->result == EK__CONVOLVE_DWEIGHT;
  return weights >= (strided ? HEAVY_WEIGHTS / 4 : HEAVY_WEIGHTS);
}

/*
 * Whether oneDNN 2.6.3 computes this wrong, or writes past the scratch memory that it asks for:
 *   - dweight of 1 x 1 with strides, in f32 on AVX2 and in bf16 on AVX-512, writes past it
 *   - in bf16 dweight and dx on AVX-512 without AMX are wrong for some shapes
 *   - y in bf16 by its batches of products writes past it, and is wrong once
 *   - dweight with AMX is wrong with dilated rows, and where a picture is narrower than a stride
 * Found with random shapes (docs/results/2026-11-26-onednn.md), which found nothing in what
 * is left. Later versions were not looked at.
 */
static bool is_wrong(const struct key *key, const_dnnl_primitive_desc_t product) {
  const struct ek__convolution *s = &key->shape;
  const bool sums = key->result == EK__CONVOLVE_DWEIGHT;
  if (sums && ek__kept_is(product, "jit_1x1")) return true;
  if (key->type != EK_BF16) return false;
  if (ek__kept_is(product, "jit_bf16") || ek__kept_is(product, "brg")) return true;
  const bool rare = s->dilation[0] > 1 || s->in_size[1] < s->stride[1];
  return sums && rare && ek__kept_is(product, "jit:avx512_core_amx");
}

static dnnl_status_t make_convolution(struct ek__filling *f, const struct key *key) {
  const bool back = key->result == EK__CONVOLVE_DX;
  const bool sums = key->result == EK__CONVOLVE_DWEIGHT;
  ek__memory_desc special = special_layout(f, key);
  dnnl_status_t status = describe_pictures(f, key, key->images);
  if (status == dnnl_success) {
    status = plan(&f->product, f, (enum ek__convolve)key->result, special, f->other[0]);
  }
  const_dnnl_primitive_desc_t made = f->product;
  if (status == dnnl_success &&
      (ek__kept_is(made, "ref") || is_wrong(key, made) || is_slower(key, made))) {
    return dnnl_unimplemented;
  }
  ek__memory_desc x = ek__kept_what(f, A), y = ek__kept_what(f, B);
  if (status == dnnl_success) status = ek__kept_memory(f->place, A, back ? y : x);
  if (status == dnnl_success) status = ek__kept_memory(f->place, B, sums ? y : special);
  if (status == dnnl_success && key->bias) {
    status = ek__kept_memory(f->place, BIAS, ek__kept_what(f, BIAS));
  }
  if (status == dnnl_success) {
    status = ek__kept_memory(f->place, C, sums ? special : back ? x : y);
  }
  f->place->special = dnnl_memory_desc_get_size(special);
  if (status == dnnl_success) status = ek__kept_finish(f);
  return status;
}

static int fill(void *arg) {
  struct ek__filling *f = arg;
  const struct key *key = (const void *)f->place->key;
  dnnl_status_t status = plan_larger(f, key);
  if (status == dnnl_success) {
    status = key->order == REORDER ? make_reorder(f, key) : make_convolution(f, key);
  }
  if (status == dnnl_unimplemented) return dnnl_success; /* a place without a primitive */
  return status;
}

static void name(char *text, const void *raw) {
  const struct key *key = raw;
  const struct ek__convolution *s = &key->shape;
  (void)snprintf(text, EK__KEPT_TEXT, "convolve %lld x %lld x %lld x %lld by %lld x %lld",
                 (long long)key->images, (long long)s->in_size[0], (long long)s->in_size[1],
                 (long long)s->channels, (long long)s->kernel[0], (long long)s->kernel[1]);
}

#define KIND(...)                                                                                  \
  { .names = {__VA_ARGS__}, .words = sizeof(struct key) / 8, .fill = fill, .name = name }
static const struct ek__kept_kind kinds[] = {
    [EK__CONVOLVE_Y] = KIND(DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DST),
    [EK__CONVOLVE_DX] = KIND(DNNL_ARG_DIFF_DST, DNNL_ARG_WEIGHTS, 0, DNNL_ARG_DIFF_SRC),
    [EK__CONVOLVE_DWEIGHT] = KIND(DNNL_ARG_SRC, DNNL_ARG_DIFF_DST, 0, DNNL_ARG_DIFF_WEIGHTS)};
static const struct ek__kept_kind reorder = KIND(DNNL_ARG_FROM, 0, 0, DNNL_ARG_TO);

/* ---- a convolution ---- */

struct job {
  const struct ek__convolve_args *args;
  struct key key; /* of the larger pieces */
  int64_t pieces;
  bool ready;     /* the primitives are there, and the weights */
  size_t special; /* bytes of weights in the primitive's layout, up to a multiple of 256 */
  char *plain;    /* dweight: the sum in the layout of outside */
  struct ek__cpu_failure failure;
};

static int64_t pieces_for(const struct ek__convolve_args *args, double work) {
  const struct ek__convolution *s = args->shape;
  if (args->result == EK__CONVOLVE_DWEIGHT) return args->chunks;
  const int64_t weights = s->out * (s->channels / s->groups) * s->kernel[0] * s->kernel[1];
  int64_t most = weights > HEAVY_WEIGHTS ? FEW_PIECES : MOST_PIECES;
  if (work / LEAST_PIECE < (double)most) most = (int64_t)(work / LEAST_PIECE);
  return most < 1 ? 1 : most < s->images ? most : s->images;
}

static double work_of(const struct ek__convolution *s) {
  return (double)s->images * (double)s->out_size[0] * (double)s->out_size[1] * (double)s->out *
         (double)(s->channels / s->groups) * (double)s->kernel[0] * (double)s->kernel[1];
}

/* The images of a piece; the first ones are larger by one where the pieces are not equal. */
static int64_t first_of(const struct job *job, int64_t piece) {
  const int64_t images = job->args->shape->images, rest = images % job->pieces;
  return images / job->pieces * piece + (piece < rest ? piece : rest);
}

static struct key key_of(const struct job *job, int64_t images) {
  struct key key = job->key;
  key.images = images;
  return key;
}

static ek_status find(const struct ek__kept **place, const struct job *job, int64_t images) {
  const struct key key = key_of(job, images);
  return ek__kept_find(place, &kinds[job->args->result], &key);
}

static ek_status run_reorder(const struct job *job, const void *from, void *to) {
  const struct ek__kept *place = NULL;
  struct key key = job->key;
  void *const data[EK__KEPT_DATA] = {[A] = (void *)(uintptr_t)from, [C] = to};
  key.order = REORDER;
  EK_TRY(ek__kept_find(&place, &reorder, &key));
  EK__FAIL_IF(place->primitive == NULL, EK_ERR_INTERNAL, "convolve: oneDNN has no reorder");
  return ek__kept_run(place, data);
}

/* Whether oneDNN has all that the job needs; if so the weights are where the pieces read them. */
static ek_status prepare(struct job *job) {
  const struct ek__convolve_args *args = job->args;
  const struct ek__kept *place = NULL;
  bool good = false;
  EK_TRY(ek__cpu_primitive_is_good(&good, args->types.value));
  if (!good) return EK_OK;
  for (int64_t smaller = 0; smaller < 2; smaller++) {
    const int64_t piece = smaller * (job->pieces - 1);
    EK_TRY(find(&place, job, first_of(job, piece + 1) - first_of(job, piece)));
    if (place->primitive == NULL) return EK_OK;
  }
  const bool sums = args->result == EK__CONVOLVE_DWEIGHT;
  const int64_t whole = ((int64_t)place->special + 255) / 256 * 256;
  const int64_t plain = sums ? args->shape->out * (args->shape->channels / args->shape->groups) *
                                   args->shape->kernel[0] * args->shape->kernel[1] * 4
                             : 0;
  if (whole * (sums ? job->pieces : 1) + plain > args->workspace_bytes) return EK_OK;
  job->special = (size_t)whole;
  job->plain = args->workspace + (size_t)job->pieces * job->special;
  if (!sums) EK_TRY(run_reorder(job, args->weight, args->workspace));
  job->ready = true;
  return EK_OK;
}

static const char *pictures(const void *base, int64_t first, const int64_t size[2],
                            int64_t channels, size_t bytes) {
  return (const char *)base + (size_t)(first * size[0] * size[1] * channels) * bytes;
}

static ek_status run_piece(const struct job *job, int64_t piece) {
  const struct ek__convolve_args *args = job->args;
  const struct ek__convolution *s = args->shape;
  const size_t bytes = ek__type_size(args->types.value);
  const bool back = args->result == EK__CONVOLVE_DX, sums = args->result == EK__CONVOLVE_DWEIGHT;
  const int64_t first = first_of(job, piece);
  const struct ek__kept *place = NULL;
  const void *x = pictures(back ? args->to : args->x, first, s->in_size, s->channels, bytes);
  const void *y = pictures(back || sums ? args->dy : args->to, first, s->out_size, s->out, bytes);
  const void *weights = args->workspace + (sums ? (size_t)piece * job->special : 0);
  void *const data[EK__KEPT_DATA] = {[A] = (void *)(uintptr_t)(back ? y : x),
                                     [B] = (void *)(uintptr_t)(sums ? y : weights),
                                     [BIAS] = (void *)(uintptr_t)args->bias,
                                     [C] = (void *)(uintptr_t)(sums   ? weights
                                                               : back ? x
                                                                      : y)};
  EK_TRY(find(&place, job, first_of(job, piece + 1) - first));
  EK__FAIL_IF(place->primitive == NULL, EK_ERR_INTERNAL, "convolve: oneDNN has no such piece");
  return ek__kept_run(place, data);
}

static void prepare_part(void *raw, int part, int parts) {
  (void)part, (void)parts;
  struct job *job = raw;
  ek__cpu_note(&job->failure, prepare(job));
}

static void run_part(void *raw, int part, int parts) {
  struct job *job = raw;
  for (int64_t piece = part; piece < job->pieces; piece += parts) {
    ek__cpu_note(&job->failure, run_piece(job, piece));
  }
}

/* ---- dweight ---- */

static void add_partials(const void *raw, int64_t begin, int64_t end) {
  const struct job *job = raw;
  float *sum = (float *)(void *)job->args->workspace;
  for (int64_t piece = 1; piece < job->pieces; piece++) {
    const float *partial =
        (const float *)(const void *)(job->args->workspace + (size_t)piece * job->special);
    for (int64_t i = begin; i < end; i++) sum[i] += partial[i];
  }
}

static void reorder_part(void *raw, int part, int parts) {
  struct job *job = raw;
  const bool added = job->args->scale != 0;
  (void)part, (void)parts;
  ek__cpu_note(&job->failure,
               run_reorder(job, job->args->workspace, added ? job->plain : job->args->to));
}

static ek_status finish_sums(ek_stream *stream, struct job *job) {
  const struct ek__convolve_args *args = job->args;
  const struct ek__convolution *s = args->shape;
  struct ek__elementwise_args sum = {.y = args->to,
                                     .a = args->to,
                                     .b = job->plain,
                                     .count = s->out * (s->channels / s->groups) * s->kernel[0] *
                                              s->kernel[1],
                                     .value = args->scale,
                                     .types = ek__types_in(args->types.sum)};
  ek__cpu_range(stream, add_partials, job, (int64_t)(job->special / sizeof(float)), EK__CPU_LEAST);
  ek__team_run_with_scratch(ek__stream_backend(stream), 1, reorder_part, job);
  if (job->failure.status != EK_OK || args->scale == 0) return EK_OK;
  if (args->scale != 1) EK_TRY(ek__cpu_scale(stream, &sum));
  return ek__cpu_add(stream, &sum);
}

ek_status ek__cpu_convolve_primitive(bool *done, ek_stream *stream,
                                     const struct ek__convolve_args *args) {
  struct ek__team *team = ek__stream_backend(stream);
  struct job job = {.args = args, .failure = EK__CPU_NO_FAILURE};
  const double work = work_of(args->shape);
  if (args->types.value != EK_F32 && args->types.value != EK_BF16) return EK_OK;
  if (work < LEAST_WORK || ek__cpu_products_are_own()) return EK_OK;
  job.pieces = pieces_for(args, work);
  job.key = (struct key){.shape = *args->shape,
                         .result = (uint8_t)args->result,
                         .type = (uint8_t)args->types.value,
                         .bias = args->bias != NULL};
  job.key.shape.images = first_of(&job, 1);
  ek__team_run_with_scratch(team, 1, prepare_part, &job);
  if (job.failure.status == EK_OK && !job.ready) return EK_OK;
  if (job.failure.status == EK_OK) {
    const int threads = ek__team_threads(team);
    ek__team_run_with_scratch(team, job.pieces < threads ? (int)job.pieces : threads, run_part,
                              &job);
  }
  if (job.failure.status == EK_OK && args->result == EK__CONVOLVE_DWEIGHT) {
    EK_TRY(finish_sums(stream, &job));
  }
  EK_TRY(ek__cpu_failed(&job.failure));
  *done = true;
  return EK_OK;
}
