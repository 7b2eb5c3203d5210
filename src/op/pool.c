/*
 * pool.c - checked entry points of include/evenkeel/pool.h.
 */
#include <evenkeel/pool.h>

#include <inttypes.h>

#include "core/options.h"
#include "core/sizes.h"
#include "op/op_internal.h"

static ek_status check_pair(const char *name, const char *of, const int64_t pair[2],
                            int64_t least) {
  EK__FAIL_IF(pair[0] < least || pair[1] < least || pair[0] > INT32_MAX || pair[1] > INT32_MAX,
              EK_ERR_INVALID_ARGUMENT,
              "%s: %s is %" PRId64 " x %" PRId64 ", expected %" PRId64 " to %d", name, of, pair[0],
              pair[1], least, INT32_MAX);
  return EK_OK;
}

static ek_status read_options(ek_pooling *o, const char *name, const ek_pooling *given) {
  EK_TRY(ek__options_read(o, sizeof *o, given, "ek_pooling"));
  EK_TRY(check_pair(name, "kernel", o->kernel, 1));
  EK_TRY(check_pair(name, "stride", o->stride, 1));
  EK_TRY(check_pair(name, "padding", o->padding, 0));
  EK_TRY(check_pair(name, "dilation", o->dilation, 1));
  EK__FAIL_IF(o->kernel[0] * o->kernel[1] > INT32_MAX, EK_ERR_INVALID_ARGUMENT,
              "%s: a kernel of %" PRId64 " x %" PRId64 " has more than %d pixels", name,
              o->kernel[0], o->kernel[1], INT32_MAX);
  for (int i = 0; i < 2; i++) {
    const int64_t reach = (o->kernel[i] - 1) * o->dilation[i] + 1;
    EK__FAIL_IF(o->padding[i] > reach / 2, EK_ERR_INVALID_ARGUMENT,
                "%s: padding is %" PRId64 ", expected at most half of the %" PRId64
                " pixels that a window spans",
                name, o->padding[i], reach);
  }
  return EK_OK;
}

/* ---- shapes ---- */

static ek_status fill_side(struct ek__window_side *side, const char *name, int64_t pixels,
                           const ek_pooling *o, int i) {
  const int64_t reach = (o->kernel[i] - 1) * o->dilation[i] + 1;
  int64_t padded = 0;
  EK__FAIL_IF(!ek__add(&padded, pixels, 2 * o->padding[i] + o->stride[i]), EK_ERR_OVERFLOW,
              "%s: the sizes do not fit in 63 bits", name);
  padded -= o->stride[i];
  EK__FAIL_IF(padded < reach, EK_ERR_SHAPE,
              "%s: x is %" PRId64 " %s with its padding, and a window %" PRId64, name, padded,
              i == 0 ? "high" : "wide", reach);
  *side = (struct ek__window_side){.pixels = pixels,
                                   .windows = (padded - reach) / o->stride[i] + 1,
                                   .kernel = o->kernel[i],
                                   .stride = o->stride[i],
                                   .padding = o->padding[i],
                                   .dilation = o->dilation[i],
                                   .count_padding = o->count_padding};
  const bool rest = (padded - reach) % o->stride[i] != 0;
  if (o->round_up && rest && side->windows * o->stride[i] < pixels + o->padding[i]) side->windows++;
  return EK_OK;
}

static ek_status check_picture(const char *name, const char *what, const int64_t shape[4]) {
  EK__FAIL_IF(shape[0] < 0 || shape[1] < 1 || shape[2] < 1 || shape[3] < 0, EK_ERR_SHAPE,
              "%s: %s is %" PRId64 " x %" PRId64 " x %" PRId64 " x %" PRId64
              ", expected pictures of at least one pixel",
              name, what, shape[0], shape[1], shape[2], shape[3]);
  return EK_OK;
}

static ek_status fill_sides(struct ek__window_args *args, const char *name, const int64_t x[4],
                            const ek_pooling *o) {
  EK_TRY(check_picture(name, "x", x));
  args->images = x[0];
  args->channels = x[3];
  EK_TRY(fill_side(&args->side[0], name, x[1], o, 0));
  return fill_side(&args->side[1], name, x[2], o, 1);
}

ek_status ek_pooling_shape(int64_t y_shape[4], const int64_t x_shape[4],
                           const ek_pooling *options) {
  ek_pooling o = EK_POOLING_INIT;
  struct ek__window_args args;
  EK__NOT_NULL("ek_pooling_shape", y_shape, x_shape);
  EK_TRY(read_options(&o, "pooling_shape", options));
  EK_TRY(fill_sides(&args, "pooling_shape", x_shape, &o));
  y_shape[0] = x_shape[0];
  y_shape[1] = args.side[0].windows;
  y_shape[2] = args.side[1].windows;
  y_shape[3] = x_shape[3];
  return EK_OK;
}

/* ---- operands ---- */

static ek_status check_operand(const struct ek__op *op, size_t i, const int64_t shape[4]) {
  char is[EK__OP_SHAPE_TEXT], expected[EK__OP_SHAPE_TEXT];
  const ek_tensor *tensor = op->operand[i].tensor;
  ek_tensor wanted = {.rank = 4};
  if (tensor == NULL || ek__same_sizes(tensor->rank, tensor->shape, 4, shape)) return EK_OK;
  for (int d = 0; d < 4; d++) wanted.shape[d] = shape[d];
  return ek_error_set(EK_ERR_SHAPE, "%s: %s is %s, expected %s", op->name, op->operand[i].name,
                      ek__op_shape_text(is, tensor), ek__op_shape_text(expected, &wanted));
}

/* Operand `pictures` is x or dx, and `windows` y or dy. */
static ek_status check_pooling(struct ek__window_args *args, const struct ek__op *op,
                               size_t pictures, const size_t *windows, size_t count,
                               const ek_pooling *given) {
  ek_pooling o = EK_POOLING_INIT;
  char is[EK__OP_SHAPE_TEXT];
  const ek_tensor *x = op->operand[pictures].tensor;
  EK_TRY(read_options(&o, op->name, given));
  EK__FAIL_IF(args->kind == EK__WINDOW_AVERAGE && (o.dilation[0] != 1 || o.dilation[1] != 1),
              EK_ERR_INVALID_ARGUMENT, "%s: dilation is %" PRId64 " x %" PRId64 ", expected 1 x 1",
              op->name, o.dilation[0], o.dilation[1]);
  EK__FAIL_IF(x->rank != 4, EK_ERR_SHAPE, "%s: %s is %s, expected 4 dimensions", op->name,
              op->operand[pictures].name, ek__op_shape_text(is, x));
  EK_TRY(fill_sides(args, op->name, x->shape, &o));
  const int64_t shape[] = {x->shape[0], args->side[0].windows, args->side[1].windows, x->shape[3]};
  for (size_t i = 0; i < count; i++) EK_TRY(check_operand(op, windows[i], shape));
  return EK_OK;
}

/* ---- pooling ---- */

ek_status ek_op_max_pool_forward(ek_stream *stream, ek_tensor *y, ek_tensor *places,
                                 const ek_tensor *x, const ek_pooling *options) {
  enum { Y, PLACES, X, COUNT };
  static const size_t windows[] = {Y, PLACES};
  struct ek__op op;
  struct ek__window_args args = {.kind = EK__WINDOW_MAX};
  const struct ek__operand operands[] = {[Y] = EK__WRITE(y, VALUE, .to = &args.y),
                                         [PLACES] = EK__WRITE(places, I32, .to = &args.places),
                                         [X] = EK__READ(x, VALUE, .to = &args.x)};
  EK_TRY(ek__op_begin(&op, "max_pool_forward", stream, operands, COUNT, &args.types));
  EK_TRY(check_pooling(&args, &op, X, windows, 2, options));
  return op.kernels == NULL ? EK_OK : op.kernels->window_forward(stream, &args);
}

ek_status ek_op_max_pool_backward(ek_stream *stream, ek_tensor *dx, const ek_tensor *dy,
                                  const ek_tensor *places, const ek_pooling *options) {
  enum { DX, DY, PLACES, COUNT };
  static const size_t windows[] = {DY, PLACES};
  struct ek__op op;
  struct ek__window_args args = {.kind = EK__WINDOW_MAX};
  const struct ek__operand operands[] = {[DX] = EK__WRITE(dx, VALUE, .to = &args.y),
                                         [DY] = EK__READ(dy, VALUE, .to = &args.x),
                                         [PLACES] = EK__READ(places, I32, .to = &args.places)};
  EK_TRY(ek__op_begin(&op, "max_pool_backward", stream, operands, COUNT, &args.types));
  EK_TRY(check_pooling(&args, &op, DX, windows, 2, options));
  return op.kernels == NULL ? EK_OK : op.kernels->window_backward(stream, &args);
}

ek_status ek_op_average_pool_forward(ek_stream *stream, ek_tensor *y, const ek_tensor *x,
                                     const ek_pooling *options) {
  enum { Y, X, COUNT };
  static const size_t windows[] = {Y};
  struct ek__op op;
  struct ek__window_args args = {.kind = EK__WINDOW_AVERAGE};
  const struct ek__operand operands[] = {[Y] = EK__WRITE(y, VALUE, .to = &args.y),
                                         [X] = EK__READ(x, VALUE, .to = &args.x)};
  EK_TRY(ek__op_begin(&op, "average_pool_forward", stream, operands, COUNT, &args.types));
  EK_TRY(check_pooling(&args, &op, X, windows, 1, options));
  return op.kernels == NULL ? EK_OK : op.kernels->window_forward(stream, &args);
}

ek_status ek_op_average_pool_backward(ek_stream *stream, ek_tensor *dx, const ek_tensor *dy,
                                      const ek_pooling *options) {
  enum { DX, DY, COUNT };
  static const size_t windows[] = {DY};
  struct ek__op op;
  struct ek__window_args args = {.kind = EK__WINDOW_AVERAGE};
  const struct ek__operand operands[] = {[DX] = EK__WRITE(dx, VALUE, .to = &args.y),
                                         [DY] = EK__READ(dy, VALUE, .to = &args.x)};
  EK_TRY(ek__op_begin(&op, "average_pool_backward", stream, operands, COUNT, &args.types));
  EK_TRY(check_pooling(&args, &op, DX, windows, 1, options));
  return op.kernels == NULL ? EK_OK : op.kernels->window_backward(stream, &args);
}

/* ---- another size ---- */

static struct ek__window_side bilinear_side(int64_t pixels, int64_t windows, bool align_corners) {
  struct ek__window_side side = {.pixels = pixels, .windows = windows};
  if (align_corners) {
    if (windows > 1) side.scale = (double)(pixels - 1) / (double)(windows - 1);
  } else {
    side.scale = (double)pixels / (double)windows;
    side.shift = 0.5 * side.scale - 0.5;
  }
  return side;
}

static ek_status check_resampling(struct ek__window_args *args, const struct ek__op *op,
                                  size_t pictures, size_t windows, bool align_corners) {
  const ek_tensor *x = op->operand[pictures].tensor, *y = op->operand[windows].tensor;
  EK__FAIL_IF(x->rank != 4 || y->rank != 4, EK_ERR_SHAPE,
              "%s: %s has %d dimensions and %s %d, expected 4 each", op->name,
              op->operand[pictures].name, x->rank, op->operand[windows].name, y->rank);
  EK_TRY(check_picture(op->name, op->operand[pictures].name, x->shape));
  EK_TRY(check_picture(op->name, op->operand[windows].name, y->shape));
  const int64_t wanted[] = {x->shape[0], y->shape[1], y->shape[2], x->shape[3]};
  EK_TRY(check_operand(op, windows, wanted));
  args->images = x->shape[0];
  args->channels = x->shape[3];
  for (int i = 0; i < 2; i++) {
    args->side[i] = bilinear_side(x->shape[1 + i], y->shape[1 + i], align_corners);
  }
  return EK_OK;
}

ek_status ek_op_resample_forward(ek_stream *stream, ek_tensor *y, const ek_tensor *x,
                                 bool align_corners) {
  enum { Y, X, COUNT };
  struct ek__op op;
  struct ek__window_args args = {.kind = EK__WINDOW_BILINEAR};
  const struct ek__operand operands[] = {[Y] = EK__WRITE(y, VALUE, .to = &args.y),
                                         [X] = EK__READ(x, VALUE, .to = &args.x)};
  EK_TRY(ek__op_begin(&op, "resample_forward", stream, operands, COUNT, &args.types));
  EK_TRY(check_resampling(&args, &op, X, Y, align_corners));
  return op.kernels == NULL ? EK_OK : op.kernels->window_forward(stream, &args);
}

ek_status ek_op_resample_backward(ek_stream *stream, ek_tensor *dx, const ek_tensor *dy,
                                  bool align_corners) {
  enum { DX, DY, COUNT };
  struct ek__op op;
  struct ek__window_args args = {.kind = EK__WINDOW_BILINEAR};
  const struct ek__operand operands[] = {[DX] = EK__WRITE(dx, VALUE, .to = &args.y),
                                         [DY] = EK__READ(dy, VALUE, .to = &args.x)};
  EK_TRY(ek__op_begin(&op, "resample_backward", stream, operands, COUNT, &args.types));
  EK_TRY(check_resampling(&args, &op, DX, DY, align_corners));
  return op.kernels == NULL ? EK_OK : op.kernels->window_backward(stream, &args);
}

EK__OPTIONS_INIT(ek_pooling, EK_POOLING_INIT)
