/*
 * metrics.h - figures of a long run for those who watch it: a file for Prometheus and a line of
 * JSON for each step.
 *
 *     EK_TRY(ek_metrics_open(&metrics, group, "run.prom", "run.jsonl"));
 *     ...                                                                    // for each step
 *     EK_TRY_GOTO(status, ek_metrics_step(metrics, &result, tokens), cleanup);
 *   cleanup:
 *     ek_metrics_free(metrics);
 *     return status;
 *
 * The first is for the textfile collector of node_exporter, which reads *.prom in a folder: it is
 * written under another name and renamed, so that a reader finds the old file or the new one. The
 * second grows by a line a step, in one write, so that it can be followed (tail -f) and survives
 * the program. Neither is synced to the disk: what a power failure takes is said by the next step.
 */
#ifndef EVENKEEL_METRICS_H
#define EVENKEEL_METRICS_H

#include <evenkeel/data_parallel_optimizer.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_metrics ek_metrics;

/*
 * `prometheus` and `lines` are names of files, or NULL for none; `lines` is appended to, and made
 * if it is not there. The group outlives the metrics. EK_ERR_IO, EK_ERR_NOT_FOUND (a folder).
 */
EK_API EK_CHECKED ek_status ek_metrics_open(ek_metrics **metrics, ek_group *group,
                                            const char *prometheus, const char *lines);

/*
 * Tells of a step: what it gave, and how many tokens (or samples, or whatever the program counts)
 * it took; the time of a step is that since the call before, or since opening. `result` NULL: the
 * step was refused or dropped, which counts as skipped, as does one that says so itself
 * (loss_scale.h) or whose targets were all ignored. The line is written at once; the other file at
 * most once a second, and by ek_metrics_free().
 * Reads the ledgers and waits for no device. In an error the figures are kept, and the next call
 * writes them.
 *
 * A line, with null for what is not finite or was not computed:
 *   {"time": seconds since 1970, "step": N, "loss": X, "gradient_norm": X, "learning_rate": X,
 *    "tokens": N in all, "seconds": X, "tokens_per_second": X, "loss_scale": X, "skipped_steps": N,
 *    "devices": [{"name": "cpu:0", "held_bytes": N, "peak_bytes": N}, ...]}
 * The metrics of the other file are evenkeel_step, _loss, _gradient_norm, _learning_rate,
 * _tokens_total, _tokens_per_second, _loss_scale, _skipped_steps_total,
 * _last_step_timestamp_seconds, _device_held_bytes{device} and _device_peak_bytes{device}.
 */
EK_API EK_CHECKED ek_status ek_metrics_step(ek_metrics *metrics, const ek_step_result *result,
                                            double tokens);

/* Writes the last state and frees it in any case. The error is of that writing. NULL is legal. */
EK_API ek_status ek_metrics_free(ek_metrics *metrics);

EK_END_DECLARATIONS

#endif /* EVENKEEL_METRICS_H */
