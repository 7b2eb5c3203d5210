/*
 * ck_workload.h - small models with criteria and batches, for tests of data parallelism.
 *
 *     mlp       an ek_mlp with cross-entropy
 *     gpt       an ek_gpt with dropout; T targets for each sample
 *     mixer     a program's own: two inputs (one of integers), three outputs, three losses
 *     blend     a program's own: two outputs, a broadcast input and a buffer
 */
#ifndef CK_WORKLOAD_H
#define CK_WORKLOAD_H

#include "ek_check.h"

enum { CK_WORKLOADS = 4, CK_BATCH_TENSORS = 4 };

/* A batch in host memory. */
struct ck_batch {
  int64_t samples;
  size_t inputs, targets;
  ek_tensor input[CK_BATCH_TENSORS], target[CK_BATCH_TENSORS];
  uint64_t broadcast; /* bit i: input i is not cut */
};

struct ck_workload {
  const char *name;
  ek_status (*module)(ek_module **module);
  ek_status (*criterion)(ek_criterion **criterion, ek_reduction reduction);
  struct ck_batch sample; /* types and shapes of one; ck_batch_make() makes the numbers */
  int64_t classes;        /* integers are 0 .. classes - 1 */
  bool ignores;           /* targets can be ignored */
};

/* A sample of one input and one target, and tensors of a sample: a row, a row of integers, and so
 * many integers. Without a type it is that of the batch. */
#define CK_SAMPLE(input_, target_)                                                                 \
  { .inputs = 1, .targets = 1, .input = {input_}, .target = {target_} }
#define CK_ROW(...)                                                                                \
  {                                                                                                \
    .rank = 1 + (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),                         \
    .shape = {1, __VA_ARGS__}                                                                      \
  }
#define CK_TOKENS(count)                                                                           \
  { .type = EK_I32, .rank = 2, .shape = {1, count} }
#define CK_LABELS(count)                                                                           \
  { .type = EK_I32, .rank = 1, .shape = {count} }

extern const struct ck_workload ck_workloads[CK_WORKLOADS];

/* The one with this name. */
const struct ck_workload *ck_workload(const char *name);

/* Equal arguments give equal numbers, and f32 and f64 hold the same ones. A target is ignored with
 * probability `ignored`. Its arrays are kept (ck_keep.h). */
struct ck_batch ck_batch_make(const struct ck_workload *workload, ek_type type, int64_t samples,
                              double ignored, uint64_t stream);

/* Some samples of a batch, a loan. */
struct ck_batch ck_batch_samples(const struct ck_batch *batch, int64_t first, int64_t count);

#endif /* CK_WORKLOAD_H */
