/*
 * trainer_bench.h - a trainer of a workload with a batch for it, and what several tests of
 * check_trainer.c do with one.
 */
#ifndef TRAINER_BENCH_H
#define TRAINER_BENCH_H

#include "ck_state.h"
#include "ck_training.h"

enum { SAMPLES = 7, STEPS = 3 };

struct bench {
  struct ck_setup setup; /* of ck_training_opened(), too */
  struct ck_batch batch;
  ek_trainer *trainer;
};

/* The parts of a workload on cpu:3, or of case `number` of a long loop over workloads and modes,
 * which bench_open() makes, opens and frees; and both. */
struct bench bench_of(const char *workload, ek_mode mode);
struct bench bench_at(int number);
ek_status bench_try(struct bench *b);
void bench_open(struct bench *b);
struct bench bench_opened(const char *workload, ek_mode mode);
/* The same parts, but the test keeps the module: for a trainer without a criterion. */
void bench_own_module(struct bench *b);

/* Calls of the trainer with the batch. */
#define BENCH(b)                                                                                   \
  (b)->trainer, (b)->batch.input, (b)->batch.inputs, (b)->batch.target, (b)->batch.targets
#define bench_step(b, result) ek_trainer_step(result, BENCH(b))
#define bench_begin(b) ek_trainer_step_begin(BENCH(b))
#define bench_prepare(b) ek_trainer_prepare(BENCH(b))
#define bench_evaluate(b, loss, weight) ek_trainer_evaluate(loss, weight, BENCH(b))
#define bench_predict(b, outputs)                                                                  \
  ek_trainer_predict(outputs, (b)->trainer, (b)->batch.input, (b)->batch.inputs)
#define bench_held(b) ck_bytes_held(ek_trainer_group((b)->trainer))

/* The same loss, weight, norm and step, and finite; and those of the next step by hand. */
void same_result(const ek_step_result *got, const ek_step_result *want);
void same_step(const ek_step_result *got, struct ck_training *t, const struct bench *b);

/* All elements of all parts, row after row; kept. */
float *rows_of(const ek_shards *shards, int64_t *count);
/* An evaluation and a prediction in parts have the loss of all terms, the weight and the rows of
 * the whole batch's, and leave nothing on the devices. */
void parts_are_alike(struct bench *parts, struct bench *whole);

/* Peaks of all devices, and the largest of a step. */
struct peaks {
  uint64_t step[4], evaluate[4], predict[4], host[4];
};
/* Of a GPT with this batch in micro-batches. capped: the devices have no room for all outputs of a
 * prediction, only the host has. The trainer is closed. */
uint64_t run_for_peaks(struct peaks *peaks, struct bench *b, const char *spec, bool capped);

/* What fails, and in which call. */
enum failure { WORK, DEVICE_MEMORY, HOST_MEMORY, FAILURES };
enum call { STEP, PREPARING, TWO_CALLS };
/* Calls of a step, or of what comes before one, fail in turn, one in `stride`, of work and on GPUs
 * fewer: everything is as it was, or the model is torn. The trainer is opened and closed. */
void fail_at_each(struct bench *b, enum failure what, uint64_t stride, enum call call);

#endif /* TRAINER_BENCH_H */
