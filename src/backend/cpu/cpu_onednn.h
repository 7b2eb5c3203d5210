/*
 * cpu_onednn.h - the border to oneDNN: the guards around its calls (cpu_onednn.c).
 */
#ifndef EK_CPU_ONEDNN_H
#define EK_CPU_ONEDNN_H

#include <evenkeel/status.h>

/* A function that calls oneDNN within the border; its result is a dnnl_status_t. It may be left
 * by an exception at any of its calls, so what it makes is kept in *arg. */
typedef int ek__onednn_function(void *arg);

/* *result is what function(arg) gives, or the status that means the same as what it threw.
 * EK_ERR_OUT_OF_MEMORY, with a message, if it was not called. */
ek_status ek__cpu_onednn(int *result, ek__onednn_function *function, void *arg);

/* cpu_onednn_catch.cc: function(arg), or one of the two statuses if that throws. */
int ek__cpu_onednn_catch(ek__onednn_function *function, void *arg, int no_memory, int other);

#endif /* EK_CPU_ONEDNN_H */
