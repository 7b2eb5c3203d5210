/*
 * convert.c - checked entry point of include/evenkeel/convert.h.
 */
#include <evenkeel/convert.h>
#include <evenkeel/elementwise.h>

#include "op/op_internal.h"

ek_status ek_op_convert(ek_stream *stream, ek_tensor *y, const ek_tensor *x) {
  enum { Y, X, COUNT };
  struct ek__op op;
  struct ek__convert_args args = {0};
  const struct ek__operand operands[] = {[Y] = EK__WRITE(y, FLOAT, EK__IS(ALL, X), .to = &args.y),
                                         [X] = EK__READ(x, FLOAT, .to = &args.x)};
  EK_TRY(ek__op_begin(&op, "convert", stream, operands, COUNT, NULL));
  args.to = y->type;
  args.from = x->type;
  if (y->type == x->type) return ek_op_copy(stream, y, x);
  const bool f64 = y->type == EK_F64 || x->type == EK_F64;
  EK__FAIL_IF(f64 && y->type != EK_F32 && x->type != EK_F32, EK_ERR_UNSUPPORTED,
              "convert: y is %s and x is %s; f64 converts only from and to f32",
              ek_type_name(y->type), ek_type_name(x->type));
  args.count = ek__op_elements(&op, X);
  return op.kernels == NULL ? EK_OK : op.kernels->convert(stream, &args);
}
