/*
 * convert.h - numbers of one type as numbers of another.
 *
 * See op.h for the rules that hold for all operations.
 */
#ifndef EVENKEEL_CONVERT_H
#define EVENKEEL_CONVERT_H

#include <evenkeel/tensor.h>

EK_BEGIN_DECLARATIONS

/*
 * y = x in the type of y: f32, bf16 and f16 in any direction, and f64 from and to f32; any other
 * pair of floating types is EK_ERR_UNSUPPORTED. Equal numbers of elements. Rounds once, to nearest,
 * ties to even: a value half a unit or more above the largest number of the type becomes infinite,
 * and one below its smallest normal number becomes subnormal. NaN stays NaN. Every device converts,
 * even one that does not compute in the types (ek_device_types()).
 */
EK_API EK_CHECKED ek_status ek_op_convert(ek_stream *stream, ek_tensor *y, const ek_tensor *x);

EK_END_DECLARATIONS

#endif /* EVENKEEL_CONVERT_H */
