/*
 * cpu_training.c - kernels of losses, optimizer updates and flat sums.
 *
 * Totals are added up in f64, in the order of rows or chunks, by the calling thread; so they do not
 * depend on the number of threads.
 */
#include "backend/cpu/cpu_internal.h"
#include "core/error.h"

static double element(const void *p, int64_t i, ek_type type) {
  return type == EK_F64 ? ((const double *)p)[i] : (double)((const float *)p)[i];
}

/* ---- cross-entropy ---- */

static ek_status check_targets(const struct ek__loss_args *args) {
  const int32_t *targets = args->targets;
  for (int64_t i = 0; i < args->rows && !args->soft; i++) {
    if (targets[i] == args->ignore_index) continue;
    EK__FAIL_IF(targets[i] < 0 || targets[i] >= args->classes, EK_ERR_INVALID_ARGUMENT,
                "cross_entropy: target %d at row %lld of the batch is outside 0..%lld", targets[i],
                (long long)(args->first_row + i), (long long)(args->classes - 1));
  }
  return EK_OK;
}

static struct ek__loss_job loss_job(const struct ek__loss_args *args, double factor) {
  struct ek__loss_job job = {.args = args, .factor = factor};
  if (args->label_smoothing != 0.0) {
    job.class_weight = (double)args->classes;
    if (args->class_weights) {
      job.class_weight = 0.0;
      for (int64_t c = 0; c < args->classes; c++) {
        job.class_weight += element(args->class_weights, c, args->types.sum);
      }
    }
  }
  return job;
}

/* What a row counts in d. */
static double row_weight(const struct ek__loss_args *args, int64_t row) {
  if (args->soft) return element(args->normalizer, 3 * row + 2, args->types.sum) == 0.0 ? 0.0 : 1.0;
  const int32_t target = ((const int32_t *)args->targets)[row];
  if (target == args->ignore_index) return 0.0;
  return args->class_weights ? element(args->class_weights, target, args->types.sum) : 1.0;
}

static void total_losses(const struct ek__loss_args *args) {
  double sum = 0.0, weight = 0.0;
  for (int64_t row = 0; row < args->rows; row++) { /* the loss of one that is ignored is 0 */
    sum += element(args->losses, row, args->types.sum);
    weight += row_weight(args, row);
  }
  args->totals[0] = sum;
  args->totals[1] = weight;
}

static ek_status cross_entropy(ek_stream *stream, const struct ek__loss_args *args,
                               ek__range_function *function, double factor, bool totals) {
  EK_TRY(check_targets(args));
  const struct ek__loss_job job = loss_job(args, factor);
  ek__cpu_range(stream, function, &job, args->rows, ek__cpu_least_rows(args->classes));
  if (totals) total_losses(args);
  return EK_OK;
}

EK__CPU_RUN(cross_entropy_forward, loss, cross_entropy, 1.0, true)
EK__CPU_RUN(cross_entropy_backward, loss, cross_entropy, args->scale ? *args->scale : 1.0, false)
EK__CPU_RUN(cross_entropy_gradient, loss, cross_entropy, args->host_scale, true)

/* ---- losses of elements ---- */

static double sum_of(const double *partials, int64_t count, int64_t chunk, int64_t step) {
  double sum = 0.0;
  for (int64_t i = 0; i * chunk < count; i++) sum += partials[i * step];
  return sum;
}

static int64_t chunks_of(int64_t count, int64_t chunk) { return (count + chunk - 1) / chunk; }

ek_status ek__cpu_element_loss_forward(ek_stream *stream, const struct ek__loss_args *args) {
  double partials[2 * EK__MAX_CHUNKS];
  const struct ek__loss_job job = {
      .args = args, .partials = partials, .chunk = ek__cpu_chunk(args->rows)};
  ek__cpu_range(stream, ek__cpu_functions(args->types)->element_loss_forward, &job,
                chunks_of(args->rows, job.chunk), ek__cpu_least_rows(job.chunk));
  args->totals[0] = sum_of(partials, args->rows, job.chunk, 2);
  args->totals[1] = sum_of(partials + 1, args->rows, job.chunk, 2) / (double)args->columns;
  return EK_OK;
}

ek_status ek__cpu_element_loss_backward(ek_stream *stream, const struct ek__loss_args *args) {
  const struct ek__loss_job job = {.args = args, .factor = args->scale ? *args->scale : 1.0};
  ek__cpu_range(stream, ek__cpu_functions(args->types)->element_loss_backward, &job, args->rows,
                EK__CPU_LEAST);
  return EK_OK;
}

ek_status ek__cpu_combine_totals(ek_stream *stream, const struct ek__combine_args *args) {
  (void)stream;
  ek__combine_terms(args);
  return EK_OK;
}

/* ---- updates ---- */

static ek_status update(ek_stream *stream, const struct ek__update_args *args,
                        ek__range_function *function, double factor) {
  const struct ek__update_job job = {args, factor};
  ek__cpu_range(stream, function, &job, args->count, EK__CPU_LEAST);
  return EK_OK;
}

EK__CPU_RUN(sgd, update, update,
            ek__gradient_factor(args->totals, args->square_norm, args->clip_norm))
EK__CPU_RUN(adamw, update, update,
            ek__gradient_factor(args->totals, args->square_norm, args->clip_norm))

ek_status ek__cpu_square_norm(ek_stream *stream, const struct ek__elementwise_args *args) {
  double partials[EK__MAX_CHUNKS];
  double *result = args->y;
  const struct ek__norm_job job = {.x = args->a,
                                   .count = args->count,
                                   .chunk = ek__cpu_chunk(args->count),
                                   .partials = partials};
  ek__cpu_range(stream, ek__cpu_functions(args->types)->square_norm, &job,
                chunks_of(args->count, job.chunk), ek__cpu_least_rows(job.chunk));
  const double sum = sum_of(partials, args->count, job.chunk, 1);
  *result = args->value == 0.0 ? sum : args->value * *result + sum;
  return EK_OK;
}

ek_status ek__cpu_reduce(ek_stream *stream, const struct ek__reduce_args *args) {
  ek__cpu_range(stream, ek__cpu_functions(ek__types_in(args->type))->reduce, args, args->count,
                EK__CPU_LEAST);
  return EK_OK;
}
