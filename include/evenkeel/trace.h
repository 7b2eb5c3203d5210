/*
 * trace.h - a timeline of what every device does, for Perfetto (https://ui.perfetto.dev) or
 * chrome://tracing.
 *
 *     EK_TRY(ek_trace_start(group, 0));
 *     ...                                                    // some steps
 *     EK_TRY(ek_trace_stop(group));
 *     EK_TRY(ek_trace_write(NULL, group, "trace.json"));
 *
 * Each device is a process with a track for its compute stream, one for its communication stream,
 * one for transfers, and counters of its memory by category. Spans on the compute track are
 * functions of modules by their path in the model (category "forward", "backward", "forward again"
 * for what is recomputed, "predict"), the update ("optimizer"), and what the program marks itself;
 * on the communication track collectives, each as long as this device worked on its own part; on
 * the track of transfers what moves between the host and devices, or between devices. On cpu a
 * collective of a few kilobytes is done by the last device that comes to it; on the others it has
 * no length.
 *
 * On devices that work at once (cpu, plan) the working thread reads the clock when a span begins
 * and ends. On cuda, which works later, a span of the compute or of the communication track begins
 * when the stream reaches the work that the span queued and ends when the stream has done it, by
 * CUDA events, to about a microsecond. Spans of its transfers are those of the call of the host; a
 * call that only queues (a copy between devices) ends before the copy does. Counters change when
 * memory is allocated and freed. On a cuda device that is when work is queued, and so before it is
 * done: peaks are those of the ledger, their times those of the host.
 *
 * A trace costs some tenths of a microsecond a span, and on cuda two events, each about a
 * microsecond of the host. It allocates nothing while it records. Without a trace a span costs a
 * call and a branch.
 *
 * Tools that listen to NVTX (nsys, ncu --nvtx --nvtx-include, compute-sanitizer) see the same spans
 * of cuda devices as ranges of the domain "evenkeel", whether a trace is recorded or not. A range
 * is the time in which the host queues the work.
 *
 * Start, stop and write a trace while the group is at rest, as when it is closed: no other thread
 * may be in a call on its devices.
 */
#ifndef EVENKEEL_TRACE_H
#define EVENKEEL_TRACE_H

#include <evenkeel/device.h>

EK_BEGIN_DECLARATIONS

/*
 * From now on every device of the group keeps its first `spans` spans (0: 16,384) and four times as
 * many changes of its memory; later ones are counted and dropped. Replaces an earlier trace.
 * EK_ERR_OUT_OF_MEMORY if the host has no memory for it (about 200 bytes a span); then nothing has
 * changed.
 */
EK_API EK_CHECKED ek_status ek_trace_start(ek_group *group, size_t spans);

/*
 * Waits for the devices, as ek_group_synchronize() does, and ends the recording, even if they
 * report an error. The trace is kept until the next start or the closing of the group. EK_ERR_STATE
 * if none runs.
 */
EK_API EK_CHECKED ek_status ek_trace_stop(ek_group *group);

typedef struct ek_trace_summary {
  uint64_t spans, counters;                 /* kept, on all devices */
  uint64_t spans_dropped, counters_dropped; /* found no room */
} ek_trace_summary;

/*
 * Writes the trace in the Trace Event Format (JSON): complete events ("X") in microseconds since
 * the start, counters ("C"), names of processes and threads ("M"). Spans of one track nest: what
 * overlaps otherwise, because several threads of the program were at work, goes to a track of its
 * own. In a world of several processes each writes its own devices, by their ranks, and the file's
 * name gets the process's number: "trace.json" becomes "trace.2.json". The file appears whole or
 * not at all, and replaces an old one. *summary may be NULL. EK_ERR_STATE without a trace or while
 * it runs; EK_ERR_IO, EK_ERR_NOT_FOUND.
 */
EK_API EK_CHECKED ek_status ek_trace_write(ek_trace_summary *summary, const ek_group *group,
                                           const char *path);

/* A span of a program's own, on a device's compute track. */
typedef struct ek_trace_span {
  void *span; /* the library's */
} ek_trace_span;

/*
 * Begins a span; `name` is copied, and cut after 79 bytes. Spans of one thread must nest. Costs a
 * branch if no trace runs. `device` may be NULL: nothing happens.
 */
EK_API ek_trace_span ek_trace_begin(ek_device *device, const char *name);
/* Ends it, once; also when the trace was stopped in between (on cuda the trace has it if the device
 * was waited for since), but not after the next start. */
EK_API void ek_trace_end(ek_trace_span span);

EK_END_DECLARATIONS

#endif /* EVENKEEL_TRACE_H */
