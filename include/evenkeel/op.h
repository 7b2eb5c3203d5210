/*
 * op.h - the operations that layers, criteria and optimizers are made of.
 *
 * Each family has a header of its own; this one holds the rules and includes them all. They are
 * public because the stock layers may use nothing that a layer of yours cannot.
 *
 * Rules for all operations
 *   - The first argument is the stream that the work is queued on; results are valid for work
 *     queued later on it. Every tensor must be on that stream's device: EK_ERR_DEVICE.
 *   - Destinations come next, and are tensors that exist already: an operation allocates nothing.
 *   - "rows x columns" reads a tensor as a matrix: its last dimension is the columns, all others
 *     together are the rows.
 *   - Activations, their gradients and parameters as a layer sees them are *values*: f32, f64, bf16
 *     or f16, all of one call alike. Statistics, losses, gradients of parameters and an optimizer's
 *     state are *sums*: f32, or f64 with values of f64. EK_ERR_TYPE for another mixture. Arithmetic
 *     is that of sums, and a result of 16 bits is rounded once, to nearest even, unless the
 *     function says more. EK_ERR_UNSUPPORTED where the device does not compute in it
 *     (ek_device_types). Products of f32 may be allowed to round what they multiply to 10 bits of
 *     mantissa: ek_stream_allow_tf32() in device.h.
 *     Sums over a long dimension are kept at least as wide as the type.
 *   - Wrong shapes are EK_ERR_SHAPE, NULL or absent tensors EK_ERR_INVALID_ARGUMENT; the message
 *     names the operation and both shapes, and nothing has been written.
 *   - The order of every sum is fixed by the shapes and the number of threads of the device: the
 *     same call gives the same bits.
 *   - Tensors without elements are legal. If no destination has elements, nothing is done; sums
 *     over no rows are 0.
 *   - NaN and infinities are not hidden: results are those of the formula in IEEE arithmetic. Zeros
 *     come only from formulas that select: ReLU, an ignored target, a later token.
 *   - A destination may not overlap a source unless the function says so.
 */
#ifndef EVENKEEL_OP_H
#define EVENKEEL_OP_H

#include <evenkeel/attend.h>
#include <evenkeel/channel_norm.h>
#include <evenkeel/convert.h>
#include <evenkeel/convolve.h>
#include <evenkeel/elementwise.h>
#include <evenkeel/lookup.h>
#include <evenkeel/losses.h>
#include <evenkeel/normalize.h>
#include <evenkeel/pool.h>
#include <evenkeel/products.h>
#include <evenkeel/rotary.h>
#include <evenkeel/rows.h>
#include <evenkeel/updates.h>

#endif /* EVENKEEL_OP_H */
