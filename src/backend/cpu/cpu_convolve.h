/*
 * cpu_convolve.h - the ways in which the CPU backend computes a convolution before products over
 * unfolded blocks (op/convolve_blocks.c) do. *done, false before, stays false where a way has
 * nothing for the arguments; then nothing but the workspace has been written.
 */
#ifndef EK_CPU_CONVOLVE_H
#define EK_CPU_CONVOLVE_H

#include "backend/cpu/cpu_internal.h"

/* By Winograd's algorithm; in cpu_convolve_winograd.c. */
ek_status ek__cpu_convolve_winograd(bool *done, ek_stream *stream,
                                    const struct ek__convolve_args *args);
/* By oneDNN's primitive. */
ek_status ek__cpu_convolve_primitive(bool *done, ek_stream *stream,
                                     const struct ek__convolve_args *args);

#endif /* EK_CPU_CONVOLVE_H */
