/*
 * convolve.c - checked entry points of include/evenkeel/convolve.h.
 */
#include <evenkeel/convolve.h>

#include <inttypes.h>

#include "core/options.h"
#include "core/sizes.h"
#include "op/convolve_internal.h"

static ek_status too_large(const char *name) {
  return ek_error_set(EK_ERR_OVERFLOW, "%s: the sizes do not fit in 63 bits", name);
}

/* ---- what it is ---- */

static ek_status check_pair(const char *name, const char *of, const int64_t pair[2],
                            int64_t least) {
  EK__FAIL_IF(pair[0] < least || pair[1] < least, EK_ERR_INVALID_ARGUMENT,
              "%s: %s is %" PRId64 " x %" PRId64 ", expected at least %" PRId64, name, of, pair[0],
              pair[1], least);
  return EK_OK;
}

static ek_status read_options(ek_convolution *o, const char *name, const ek_convolution *given) {
  EK_TRY(ek__options_read(o, sizeof *o, given, "ek_convolution"));
  EK_TRY(check_pair(name, "kernel", o->kernel, 1));
  EK_TRY(check_pair(name, "stride", o->stride, 1));
  EK_TRY(check_pair(name, "padding", o->padding, 0));
  EK_TRY(check_pair(name, "dilation", o->dilation, 1));
  EK__FAIL_IF(o->groups < 1, EK_ERR_INVALID_ARGUMENT,
              "%s: groups is %" PRId64 ", expected at least 1", name, o->groups);
  return EK_OK;
}

/* The size of y in one direction. */
static ek_status result_size(int64_t *result, const char *name, int64_t size,
                             const ek_convolution *o, int i) {
  int64_t reach = 0, padded = 0;
  if (!ek__multiply(&reach, o->kernel[i] - 1, o->dilation[i]) || !ek__add(&reach, reach, 1) ||
      !ek__multiply(&padded, o->padding[i], 2) || !ek__add(&padded, padded, size)) {
    return too_large(name);
  }
  EK__FAIL_IF(padded < reach, EK_ERR_SHAPE,
              "%s: x is %" PRId64 " %s with its padding, and the kernel %" PRId64, name, padded,
              i == 0 ? "high" : "wide", reach);
  *result = (padded - reach) / o->stride[i] + 1;
  return EK_OK;
}

static ek_status fill_shape(struct ek__convolution *shape, const char *name, const int64_t x[4],
                            int64_t out, const ek_convolution *o) {
  EK__FAIL_IF(x[0] < 0 || x[1] < 0 || x[2] < 0 || x[3] < 0 || out < 0, EK_ERR_SHAPE,
              "%s: x is %" PRId64 " x %" PRId64 " x %" PRId64 " x %" PRId64 " and y has %" PRId64
              " channels; expected sizes from 0 up",
              name, x[0], x[1], x[2], x[3], out);
  EK__FAIL_IF(x[3] % o->groups != 0 || out % o->groups != 0, EK_ERR_SHAPE,
              "%s: %" PRId64 " groups do not divide %" PRId64 " and %" PRId64 " channels", name,
              o->groups, x[3], out);
  *shape =
      (struct ek__convolution){.images = x[0], .channels = x[3], .out = out, .groups = o->groups};
  for (int i = 0; i < 2; i++) {
    shape->in_size[i] = x[1 + i];
    shape->kernel[i] = o->kernel[i];
    shape->stride[i] = o->stride[i];
    shape->padding[i] = o->padding[i];
    shape->dilation[i] = o->dilation[i];
    EK_TRY(result_size(&shape->out_size[i], name, x[1 + i], o, i));
  }
  return EK_OK;
}

ek_status ek_convolution_shape(int64_t y_shape[4], const int64_t x_shape[4], int64_t out,
                               const ek_convolution *options) {
  ek_convolution o = EK_CONVOLUTION_INIT;
  struct ek__convolution shape;
  EK__FAIL_IF(y_shape == NULL || x_shape == NULL, EK_ERR_INVALID_ARGUMENT,
              "convolution_shape: a shape is NULL");
  EK_TRY(read_options(&o, "convolution_shape", options));
  EK_TRY(fill_shape(&shape, "convolution_shape", x_shape, out, &o));
  y_shape[0] = shape.images;
  y_shape[1] = shape.out_size[0];
  y_shape[2] = shape.out_size[1];
  y_shape[3] = out;
  return EK_OK;
}

/* ---- workspace ---- */

/* The elements for those results of which a bit is set. */
static ek_status elements_for(int64_t *elements, const char *name, unsigned results,
                              const struct ek__convolution *shape, struct ek__types types) {
  const int64_t size = (int64_t)ek__type_size(types.sum);
  *elements = 0;
  for (unsigned result = EK__CONVOLVE_Y; result <= EK__CONVOLVE_DWEIGHT; result++) {
    int64_t bytes = 0;
    if ((results >> result & 1u) == 0) continue;
    if (!ek__convolve_bytes(&bytes, (enum ek__convolve)result, shape, types))
      return too_large(name);
    const int64_t needed = bytes / size + (bytes % size != 0);
    if (needed > *elements) *elements = needed;
  }
  return EK_OK;
}

ek_status ek_convolution_workspace(int64_t *forward, int64_t *backward, const int64_t x_shape[4],
                                   int64_t out, ek_type type, const ek_convolution *options) {
  static const char name[] = "convolution_workspace";
  ek_convolution o = EK_CONVOLUTION_INIT;
  struct ek__convolution shape;
  int64_t elements[2] = {0, 0};
  EK__FAIL_IF(forward == NULL || backward == NULL || x_shape == NULL, EK_ERR_INVALID_ARGUMENT,
              "%s: a result or the shape is NULL", name);
  EK__FAIL_IF(type != EK_F32 && type != EK_F64 && type != EK_BF16 && type != EK_F16, EK_ERR_TYPE,
              "%s: values are %s, expected a floating type", name, ek_type_name(type));
  EK_TRY(read_options(&o, name, options));
  EK_TRY(fill_shape(&shape, name, x_shape, out, &o));
  EK_TRY(elements_for(&elements[0], name, 1u << EK__CONVOLVE_Y, &shape, ek__types_in(type)));
  EK_TRY(elements_for(&elements[1], name, 1u << EK__CONVOLVE_DX | 1u << EK__CONVOLVE_DWEIGHT,
                      &shape, ek__types_in(type)));
  *forward = elements[0];
  *backward = elements[1];
  return EK_OK;
}

static ek_status check_workspace(struct ek__convolve_args *args, const struct ek__op *op,
                                 size_t workspace, unsigned results) {
  int64_t needed = 0;
  EK_TRY(elements_for(&needed, op->name, results, args->shape, op->types));
  args->workspace_bytes = needed * (int64_t)ek__type_size(op->types.sum);
  args->chunks = ek__convolve_chunks(args->shape);
  const bool given = op->operand[workspace].tensor != NULL;
  const int64_t has = given ? ek__op_elements(op, workspace) : 0;
  EK__FAIL_IF(has < needed, EK_ERR_SHAPE,
              "%s: workspace has %" PRId64 " elements, expected at least %" PRId64, op->name, has,
              needed);
  return EK_OK;
}

/* ---- operands ---- */

static ek_status check_operand(const struct ek__op *op, size_t i, int rank, const int64_t *shape) {
  char is[EK__OP_SHAPE_TEXT], expected[EK__OP_SHAPE_TEXT];
  const ek_tensor *tensor = op->operand[i].tensor;
  ek_tensor wanted = {.rank = rank};
  if (tensor == NULL || ek__same_sizes(tensor->rank, tensor->shape, rank, shape)) return EK_OK;
  memcpy(wanted.shape, shape, (size_t)rank * sizeof *shape);
  return ek_error_set(EK_ERR_SHAPE, "%s: %s is %s, expected %s", op->name, op->operand[i].name,
                      ek__op_shape_text(is, tensor), ek__op_shape_text(expected, &wanted));
}

/* Places of the operands in a table. dweight, which may be absent, has the shape of weight. */
struct places {
  size_t x, y, weight, dweight, bias;
};

static ek_status check_shapes(struct ek__convolution *shape, const struct ek__op *op,
                              const struct places *in, const ek_convolution *given) {
  ek_convolution o = EK_CONVOLUTION_INIT;
  const ek_tensor *x = op->operand[in->x].tensor, *weight = op->operand[in->weight].tensor;
  EK_TRY(read_options(&o, op->name, given));
  EK__FAIL_IF(x->rank != 4 || weight->rank != 4, EK_ERR_SHAPE,
              "%s: x has %d dimensions and weight %d, expected 4 each", op->name, x->rank,
              weight->rank);
  EK_TRY(fill_shape(shape, op->name, x->shape, weight->shape[0], &o));
  const int64_t weights[] = {shape->out, shape->channels / shape->groups, o.kernel[0], o.kernel[1]};
  const int64_t pixels[] = {shape->images, shape->out_size[0], shape->out_size[1], shape->out};
  EK_TRY(check_operand(op, in->weight, 4, weights));
  EK_TRY(check_operand(op, in->dweight, 4, weights));
  EK_TRY(check_operand(op, in->bias, 1, &shape->out));
  return check_operand(op, in->y, 4, pixels);
}

/* A device that only counts has seen the products then. */
static void count_products(const struct ek__op *op, const struct ek__convolution *shape,
                           unsigned products) {
  if (op->work == NULL) return;
  const double pixels =
      (double)shape->images * (double)shape->out_size[0] * (double)shape->out_size[1];
  const double weights = (double)shape->out * (double)(shape->channels / shape->groups) *
                         (double)shape->kernel[0] * (double)shape->kernel[1];
  ek__work_in(op->work, &op->types)->products += 2.0 * products * pixels * weights;
}

/* Without channels of x. */
static ek_status only_bias(const struct ek__op *op, ek_stream *stream,
                           const struct ek__convolve_args *args) {
  const struct ek__convolution *shape = args->shape;
  const int64_t rows = shape->images * shape->out_size[0] * shape->out_size[1];
  const struct ek__elementwise_args zeros = {
      .y = args->to, .count = rows * shape->out, .types = args->types};
  const struct ek__matrix_args bias = {.y = args->to,
                                       .b = args->bias,
                                       .rows = rows,
                                       .columns = shape->out,
                                       .pitch = shape->out,
                                       .types = args->types};
  EK_TRY(op->kernels->fill(stream, &zeros));
  return args->bias == NULL ? EK_OK : op->kernels->add_bias(stream, &bias);
}

ek_status ek_op_convolve_forward(ek_stream *stream, ek_tensor *y, ek_tensor *workspace,
                                 const ek_tensor *x, const ek_tensor *weight, const ek_tensor *bias,
                                 const ek_convolution *options) {
  enum { Y, WORKSPACE, X, WEIGHT, BIAS, COUNT };
  static const struct places in = {X, Y, WEIGHT, WEIGHT, BIAS};
  struct ek__op op;
  struct ek__convolution shape;
  struct ek__convolve_args args = {.result = EK__CONVOLVE_Y, .shape = &shape};
  const struct ek__operand operands[] = {[Y] = EK__WRITE(y, VALUE, .to = &args.to),
                                         [WORKSPACE] =
                                             EK__MAY_WRITE(workspace, SUM, .to = &args.workspace),
                                         [X] = EK__READ(x, VALUE, .to = &args.x),
                                         [WEIGHT] = EK__READ(weight, VALUE, .to = &args.weight),
                                         [BIAS] = EK__MAY_READ(bias, VALUE, .to = &args.bias)};
  EK_TRY(ek__op_begin(&op, "convolve_forward", stream, operands, COUNT, &args.types));
  EK_TRY(check_shapes(&shape, &op, &in, options));
  EK_TRY(check_workspace(&args, &op, WORKSPACE, 1u << EK__CONVOLVE_Y));
  count_products(&op, &shape, 1);
  if (op.kernels == NULL || ek__op_elements(&op, Y) == 0) return EK_OK;
  return shape.channels == 0 ? only_bias(&op, stream, &args)
                             : ek__convolve(op.kernels, stream, &args);
}

/* ---- backward ---- */

struct backward {
  struct ek__convolve_args args; /* what is common to all of them */
  void *dx, *dweight, *dbias;
  double bias_beta;
};

static ek_status sum_bias(const struct ek__op *op, ek_stream *stream, const struct backward *b) {
  const struct ek__convolution *shape = b->args.shape;
  const struct ek__matrix_args sum = {.y = b->dbias,
                                      .a = b->args.dy,
                                      .rows =
                                          shape->images * shape->out_size[0] * shape->out_size[1],
                                      .columns = shape->out,
                                      .pitch = shape->out,
                                      .value = b->bias_beta,
                                      .types = b->args.types};
  return op->kernels->column_sum(stream, &sum);
}

/* The parameters first, as elsewhere; each only if it has elements. */
static ek_status run_backward(const struct ek__op *op, ek_stream *stream, struct backward *b,
                              bool dx) {
  const struct ek__convolution *shape = b->args.shape;
  if (shape->out > 0 && b->dbias != NULL) EK_TRY(sum_bias(op, stream, b));
  if (shape->out > 0 && shape->channels > 0 && b->dweight != NULL) {
    b->args.result = EK__CONVOLVE_DWEIGHT;
    b->args.to = b->dweight;
    EK_TRY(ek__convolve(op->kernels, stream, &b->args));
  }
  if (!dx) return EK_OK;
  b->args.result = EK__CONVOLVE_DX;
  b->args.to = b->dx;
  if (shape->out > 0) return ek__convolve(op->kernels, stream, &b->args);
  const struct ek__elementwise_args zeros = {.y = b->dx,
                                             .count = shape->images * shape->in_size[0] *
                                                      shape->in_size[1] * shape->channels,
                                             .types = b->args.types};
  return op->kernels->fill(stream, &zeros);
}

ek_status ek_op_convolve_backward(ek_stream *stream, const ek_convolve_backward_args *args) {
  enum { DX, DWEIGHT, DBIAS, WORKSPACE, DY, X, WEIGHT, COUNT };
  EK__NOT_NULL("convolve_backward", args);
  const bool with_dx = args->dx != NULL, with_dweight = args->dweight != NULL;
  const struct places in = {args->x != NULL ? X : DX, DY, WEIGHT, DWEIGHT, DBIAS};
  struct ek__op op;
  struct ek__convolution shape;
  struct backward b = {.args = {.scale = args->weight_beta, .shape = &shape},
                       .bias_beta = args->bias_beta};
  const struct ek__operand operands[] = {
      [DX] = EK__MAY_WRITE_OF(args, dx, VALUE, .to = &b.dx),
      [DWEIGHT] = EK__MAY_WRITE_OF(args, dweight, SUM, .to = &b.dweight),
      [DBIAS] = EK__MAY_WRITE_OF(args, dbias, SUM, .to = &b.dbias),
      [WORKSPACE] = EK__MAY_WRITE_OF(args, workspace, SUM, .to = &b.args.workspace),
      [DY] = EK__READ_OF(args, dy, VALUE, .to = &b.args.dy),
      [X] = EK__READ_OF(args, x, VALUE, .to = &b.args.x, .optional = with_dx && !with_dweight),
      [WEIGHT] = EK__READ_OF(args, weight, VALUE, .to = &b.args.weight)};
  EK_TRY(ek__op_begin(&op, "convolve_backward", stream, operands, COUNT, &b.args.types));
  EK_TRY(check_shapes(&shape, &op, &in, args->options));
  if (args->x != NULL) EK_TRY(check_operand(&op, DX, 4, args->x->shape));
  const unsigned results =
      (with_dx ? 1u << EK__CONVOLVE_DX : 0) | (with_dweight ? 1u << EK__CONVOLVE_DWEIGHT : 0);
  EK_TRY(check_workspace(&b.args, &op, WORKSPACE, results));
  count_products(&op, &shape, (with_dx ? 1u : 0) + (with_dweight ? 1u : 0));
  if (op.kernels == NULL) return EK_OK;
  return run_backward(&op, stream, &b, with_dx && ek__op_elements(&op, DX) > 0);
}

EK__OPTIONS_INIT(ek_convolution, EK_CONVOLUTION_INIT)
