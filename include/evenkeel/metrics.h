/*
 * metrics.h - monitoring for long runs: a file for Prometheus and a line of JSON for each step.
 *
 *     EK_TRY(ek_metrics_open(&metrics, group, "run.prom", "run.jsonl"));
 *     ...                                                                    // for each step
 *     EK_TRY_GOTO(status, ek_metrics_put(metrics, "epoch", 3), cleanup); // when it changes
 *     EK_TRY_GOTO(status, ek_metrics_step(metrics, &result, tokens), cleanup);
 *   cleanup:
 *     ek_metrics_free(metrics);
 *     return status;
 *
 * The first is for the textfile collector of node_exporter, which reads *.prom in a folder. It is
 * written under another name and renamed, so that a reader finds the old file or the new one. The
 * second grows by a line for each step, in one write, so that it can be followed (tail -f) and is
 * complete if the program dies. Neither is synced to the disk: a power failure may lose the last
 * steps. Numbers have a decimal point in every locale.
 */
#ifndef EVENKEEL_METRICS_H
#define EVENKEEL_METRICS_H

#include <evenkeel/data_parallel_optimizer.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_metrics ek_metrics;

/* Named numbers of the program's own, and the longest name. */
#define EK_METRICS_NUMBERS 16
#define EK_METRICS_NAME_SIZE 40 /* with its terminating zero */

/*
 * `prometheus` and `lines` are names of files, or NULL for none. `lines` is appended to, and
 * created if it does not exist. If its last line was cut off (by a full disk, say), that line is
 * ended first. `lines` may be a pipe that a process reads: without a reader opening it is
 * EK_ERR_IO, and when the reader goes away a step's is; no signal is raised (SIGPIPE). The group
 * outlives the metrics. In a world of several processes each has files of its own, whose names get
 * its number: "run.jsonl" becomes "run.2.jsonl"; a pipe keeps its name. EK_ERR_IO, EK_ERR_NOT_FOUND
 * (a folder).
 */
EK_API EK_CHECKED ek_status ek_metrics_open(ek_metrics **metrics, ek_group *group,
                                            const char *prometheus, const char *lines);

/*
 * Records a step: its result, and its number of tokens (or samples, or whatever the program
 * counts). The time of a step is that since the previous call, or since opening. `result` NULL: the
 * step was refused or dropped. It counts as skipped, as do results with `skipped` (loss_scale.h)
 * and steps whose targets were all ignored. The line is written at once; the other file at most
 * once a second, and by ek_metrics_close(). Reads the ledgers and waits for no device. After an
 * error the figures are kept, and the next call writes them.
 *
 * A line, with null for what is not finite or was not computed, and the program's own numbers after
 * "skipped_steps", in the order in which their names first came:
 *   {"time": seconds since 1970, "step": N, "loss": X, "gradient_norm": X, "learning_rate": X,
 *    "tokens": N in all, "seconds": X, "tokens_per_second": X, "loss_scale": X, "skipped_steps": N,
 *    "epoch": X, "devices": [{"name": "cpu:0", "held_bytes": N, "peak_bytes": N}, ...]}
 * The metrics of the other file are evenkeel_step, _loss, _gradient_norm, _learning_rate,
 * _tokens_total, _tokens_per_second, _loss_scale, _skipped_steps_total,
 * _last_step_timestamp_seconds, _device_held_bytes{device} and _device_peak_bytes{device}; a number
 * of the program's own is evenkeel_NAME, a gauge.
 *
 * Among several processes a line also has "process", "busy_seconds", "slowest_process" and
 * "slowest_busy_seconds" before "devices", and each device its "rank"; the other file has the last
 * three, and all its metrics the label `process`. Busy is a process's busiest device, without
 * waiting for other devices, from the update before to this one (ek_world_busy()): where steps are
 * slow, the slowest process is the one that all others wait for.
 */
EK_API EK_CHECKED ek_status ek_metrics_step(ek_metrics *metrics, const ek_step_result *result,
                                            double tokens);

/*
 * Sets a number of the program's own (validation loss, accuracy, epoch, ...): each later step
 * writes it, and so does ek_metrics_close(). NaN and infinities are null in a line. A name is made
 * of lower-case letters, digits and underscores, begins with a letter, and differs from the names
 * that a line has by itself. EK_ERR_INVALID_ARGUMENT for another name, and for the 17th.
 */
EK_API EK_CHECKED ek_status ek_metrics_put(ek_metrics *metrics, const char *name, double value);

/*
 * For a run that goes on from a saved state: the number of tokens that it was trained on before,
 * from which the metrics count. Call it before the first step, with the number that belongs to the
 * state (usually its position times the tokens of a step), and not with that of the last line,
 * which may be of a later step. EK_ERR_STATE after a step; EK_ERR_INVALID_ARGUMENT for a number
 * below 0 or not finite.
 */
EK_API EK_CHECKED ek_status ek_metrics_resume(ek_metrics *metrics, double tokens);

/* Writes the last figures, and frees the metrics in any case. Returns the error of that write. NULL
 * is legal. */
EK_API EK_CHECKED ek_status ek_metrics_close(ek_metrics *metrics);
EK_API void ek_metrics_free(ek_metrics *metrics); /* the same, as a free: status.h */

EK_END_DECLARATIONS

#endif /* EVENKEEL_METRICS_H */
