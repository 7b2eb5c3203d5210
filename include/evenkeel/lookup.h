/*
 * lookup.h - rows of a table by index, and the sum of their gradients.
 *
 * See op.h for the rules that hold for all operations.
 */
#ifndef EVENKEEL_LOOKUP_H
#define EVENKEEL_LOOKUP_H

#include <evenkeel/tensor.h>

EK_BEGIN_DECLARATIONS

/*
 * y[i] = table[index[i]] (+ positions[i % period], if positions is not NULL).
 *   index      i32, n elements          table      entries x width
 *   y          n x width                positions  at least `period` x width; period divides n
 * A table without entries is EK_ERR_SHAPE unless n is 0.
 * An index outside 0 .. entries - 1 is EK_ERR_INVALID_ARGUMENT, and the message names its position.
 * A backend that runs operations later than the call reports the error, with the lowest position of
 * all calls, when the stream is waited for; its row of y is zeros, and its row of dy is not added.
 * For indices that ek_scatter() has cut, the position is the one in the whole batch.
 */
EK_API EK_CHECKED ek_status ek_op_lookup_forward(ek_stream *stream, ek_tensor *y,
                                                 const ek_tensor *table, const ek_tensor *index,
                                                 const ek_tensor *positions, int64_t period);

/* dtable[index[i]] += dy[i] for i = 0, 1, ... in this order; other rows stay as they are. */
EK_API EK_CHECKED ek_status ek_op_lookup_backward(ek_stream *stream, ek_tensor *dtable,
                                                  const ek_tensor *dy, const ek_tensor *index);

/* dpositions[p] = beta * dpositions[p] + sum of dy[i] over i with i % period == p, p < period. */
EK_API EK_CHECKED ek_status ek_op_positions_backward(ek_stream *stream, ek_tensor *dpositions,
                                                     const ek_tensor *dy, int64_t period,
                                                     double beta);

EK_END_DECLARATIONS

#endif /* EVENKEEL_LOOKUP_H */
