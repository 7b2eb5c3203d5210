/*
 * parallel_apply.h - the same forward on every device at once.
 */
#ifndef EVENKEEL_PARALLEL_APPLY_H
#define EVENKEEL_PARALLEL_APPLY_H

#include <evenkeel/pass.h>
#include <evenkeel/scatter.h>

EK_BEGIN_DECLARATIONS

/*
 * Runs the forward of passes[k] on device k with part k of every input. `outputs` (one per output
 * of the module, overwritten) get the results in order, with the samples of the first input that is
 * not broadcast. A device whose inputs have no rows runs nothing (passes[k] may be NULL) and has a
 * part without rows. On failure the outputs stay as they were, and the error is that of
 * ek_group_apply(): the lowest device's, with its message.
 */
EK_API EK_CHECKED ek_status ek_parallel_apply(ek_shards *outputs, size_t output_count,
                                              ek_pass *const *passes, const ek_shards *inputs,
                                              size_t input_count);

EK_END_DECLARATIONS

#endif /* EVENKEEL_PARALLEL_APPLY_H */
