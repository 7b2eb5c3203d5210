/*
 * batch_norm.c - batch normalisation over a device's rows, over those of all devices, or frozen.
 *
 * Forward: the sums of x and x * x, an exchange for ALL, mean and rstd, y. It saves x, {mean, rstd}
 * and, for ALL, the number of rows of all devices. Backward: the sums of dy and dy * n, which are
 * the gradients of bias and weight, an exchange for ALL, dx. With running statistics mean and rstd
 * do not depend on x, and dx needs no sums.
 *
 * A result that is made again (`cheap` in recompute.h) has the statistics that are kept, without
 * another exchange.
 *
 * A device without rows adds zeros to the exchanges. The last number of the totals is that of rows.
 */
#include <evenkeel/batch_norm.h>

#include <inttypes.h>
#include <math.h>

#include <evenkeel/channel_norm.h>
#include <evenkeel/elementwise.h>

#include "core/error.h"
#include "core/options.h"
#include "module/layer_internal.h"

struct batch_norm {
  ek_module base;
  int64_t channels;
  ek_batch_norm_over over;
  double epsilon, momentum;
  bool affine, frozen, track;
  ek_initializer weight_start;
};

/* Numbers of parameters and buffers, in the order of declaration. */
enum { WEIGHT, BIAS, AFFINE };
enum { RUNNING_MEAN, RUNNING_VARIANCE, BATCHES };

static const struct batch_norm *norm_of(const ek_module *self) {
  return (const struct batch_norm *)self;
}

static ek_status batch_norm_parameters(const ek_module *self, ek_declaration *declaration) {
  const struct batch_norm *m = norm_of(self);
  const int64_t shape[] = {m->channels};
  const ek_initializer zeros = ek_initializer_zeros();
  ek_parameter_options options = EK_PARAMETER_OPTIONS_INIT;
  options.no_decay = true;
  options.frozen = m->frozen;
  if (m->affine) {
    EK_TRY(ek_declare_parameter_with(declaration, "weight", 1, shape, m->weight_start, &options));
    EK_TRY(ek_declare_parameter_with(declaration, "bias", 1, shape, zeros, &options));
  }
  if (!m->track) return EK_OK;
  EK_TRY(ek_declare_buffer(declaration, "running_mean", 1, shape, zeros));
  EK_TRY(ek_declare_buffer(declaration, "running_var", 1, shape, ek_initializer_ones()));
  return ek_declare_buffer(declaration, "num_batches_tracked", 0, NULL, zeros);
}

static ek_status buffer(ek_tensor *loan, ek_pass *pass, const struct batch_norm *m, size_t which) {
  return ek_pass_parameter(loan, pass, (m->affine ? (size_t)AFFINE : 0) + which);
}

/* Whether statistics are those of the rows that are there. */
static bool uses_batch(const struct batch_norm *m, const ek_pass *pass) {
  if (!m->track) return true;
  return ek_pass_is_training(pass) && m->over != EK_BATCH_NORM_FROZEN;
}

/* ---- sums over a device's rows, and over all devices ---- */

/* As many pieces as may be summed at the same time: at least 256 rows, at most 1 MiB of sums. */
static int64_t pieces_of(int64_t rows, int64_t channels) {
  const int64_t by_rows = rows / 256, by_memory = (INT64_C(1) << 16) / channels;
  const int64_t pieces = by_rows < by_memory ? by_rows : by_memory;
  return pieces < 1 ? 1 : pieces > 256 ? 256 : pieces;
}

/* Totals f64 [2 channels + 1]: the two sums as [2, channels], and the number of rows. */
struct totals {
  ek_tensor all, sums, rows;
};

static void free_totals(struct totals *totals) {
  ek_tensor_free(&totals->rows);
  ek_tensor_free(&totals->sums);
  ek_tensor_free(&totals->all);
}

static ek_status open_totals(struct totals *totals, ek_pass *pass, int64_t channels) {
  const int64_t size[] = {2 * channels + 1}, shape[] = {2, channels};
  ek_tensor flat = {0};
  *totals = (struct totals){.all = {0}};
  EK_TRY(ek_pass_workspace(&totals->all, pass, EK_F64, 1, size));
  ek_status status = ek_tensor_rows(&totals->rows, &totals->all, 2 * channels, 1);
  if (status == EK_OK) status = ek_tensor_rows(&flat, &totals->all, 0, 2 * channels);
  if (status == EK_OK) status = ek_tensor_reshape(&totals->sums, &flat, 2, shape);
  ek_tensor_free(&flat);
  if (status != EK_OK) free_totals(totals);
  return status;
}

/* What is summed: x alone, or slopes with the other three. */
struct summed {
  const ek_tensor *x, *dy, *mean, *rstd;
};

static ek_status sum_into(ek_tensor *sums, ek_pass *pass, const struct summed *of) {
  ek_stream *stream = ek_pass_stream(pass);
  if (of->dy == NULL) return ek_op_channel_moments(stream, sums, of->x);
  return ek_op_channel_slopes(stream, sums, of->dy, of->x, of->mean, of->rstd);
}

static ek_status sum_rows(struct totals *totals, ek_pass *pass, const struct summed *of,
                          int64_t channels) {
  const int64_t rows = ek_tensor_count(of->x) / channels, pieces = pieces_of(rows, channels);
  if (pieces == 1) return sum_into(&totals->sums, pass, of);
  ek_tensor parts = {0}, flat = {0};
  EK_TRY(ek_pass_workspace(&parts, pass, EK_F64, 3, (int64_t[]){pieces, 2, channels}));
  ek_status status = EK_OK;
  EK_TRY_GOTO(status, sum_into(&parts, pass, of), cleanup);
  EK_TRY_GOTO(status, ek_tensor_reshape(&flat, &parts, 2, (int64_t[]){pieces, 2 * channels}),
              cleanup);
  status = ek_op_column_sum(ek_pass_stream(pass), &totals->sums, &flat, 0);
cleanup:
  ek_tensor_free(&flat);
  ek_tensor_free(&parts);
  return status;
}

/* ---- forward ---- */

static ek_status measure(const struct batch_norm *m, ek_pass *pass, const ek_tensor *x,
                         struct totals *totals, ek_tensor *mean, ek_tensor *rstd) {
  ek_stream *stream = ek_pass_stream(pass);
  const double rows = (double)(ek_tensor_count(x) / m->channels);
  const bool all = m->over == EK_BATCH_NORM_ALL;
  EK_TRY(sum_rows(totals, pass, &(struct summed){.x = x}, m->channels));
  if (all) {
    EK_TRY(ek_op_fill(stream, &totals->rows, rows));
    EK_TRY(ek_pass_all_reduce(pass, &totals->all));
  }
  const ek_tensor *count = all ? &totals->rows : NULL;
  EK_TRY(ek_op_channel_statistics(stream, mean, rstd, &totals->sums, count, rows, m->channels,
                                  m->epsilon));
  if (!m->track || !ek_pass_is_training(pass) || ek_pass_is_recomputing(pass)) return EK_OK;
  ek_tensor running_mean = {0}, running_variance = {0}, batches = {0};
  EK_TRY(buffer(&running_mean, pass, m, RUNNING_MEAN));
  EK_TRY(buffer(&running_variance, pass, m, RUNNING_VARIANCE));
  EK_TRY(buffer(&batches, pass, m, BATCHES));
  return ek_op_channel_running(stream, &running_mean, &running_variance, &batches, &totals->sums,
                               count, rows, m->momentum);
}

static ek_status take_running(const struct batch_norm *m, ek_pass *pass, ek_tensor *mean,
                              ek_tensor *rstd) {
  ek_tensor running_mean = {0}, running_variance = {0}, flat = {0};
  ek_stream *stream = ek_pass_stream(pass);
  EK_TRY(buffer(&running_mean, pass, m, RUNNING_MEAN));
  EK_TRY(buffer(&running_variance, pass, m, RUNNING_VARIANCE));
  EK_TRY(ek_tensor_reshape(&flat, mean, 1, &m->channels));
  ek_status status = ek_op_copy(stream, &flat, &running_mean);
  ek_tensor_free(&flat);
  EK_TRY(status);
  EK_TRY(ek_tensor_reshape(&flat, rstd, 1, &m->channels));
  status = ek_op_unary(stream, &flat, &running_variance, EK_UNARY_RSQRT, m->epsilon);
  ek_tensor_free(&flat);
  return status;
}

/* The tensors of forward that backward takes back, in the order of saving; COUNT only for ALL. */
enum { SAVED_X, SAVED_STATISTICS, SAVED_COUNT, SAVED };

static ek_status save_count(ek_pass *pass, const struct totals *totals) {
  ek_tensor count = {0};
  EK_TRY(ek_pass_output(&count, pass, EK_F64, 1, (int64_t[]){1}));
  ek_status status = ek_op_copy(ek_pass_stream(pass), &count, &totals->rows);
  if (status == EK_OK) status = ek_pass_save(pass, &count);
  ek_tensor_free(&count);
  return status;
}

static ek_status write_output(const struct batch_norm *m, ek_pass *pass, const ek_tensor *x,
                              const ek_tensor *mean, const ek_tensor *rstd, ek_tensor *y) {
  ek_tensor weight = {0}, bias = {0};
  EK_TRY(ek__layer_result(y, pass, x));
  if (!ek_pass_wants_outputs(pass)) return EK_OK;
  if (m->affine) EK_TRY(ek_pass_parameter(&weight, pass, WEIGHT));
  if (m->affine) EK_TRY(ek_pass_parameter(&bias, pass, BIAS));
  return ek_op_channel_norm_forward(ek_pass_stream(pass), y, x, mean, rstd,
                                    m->affine ? &weight : NULL, m->affine ? &bias : NULL);
}

/* Again, with the statistics of the first time. */
static ek_status output_again(const struct batch_norm *m, ek_pass *pass, const ek_tensor *x,
                              const ek_tensor *statistics, ek_tensor *y) {
  ek_tensor mean = {0}, rstd = {0};
  EK_TRY(ek_tensor_rows(&mean, statistics, 0, 1));
  ek_status status = ek_tensor_rows(&rstd, statistics, 1, 1);
  if (status == EK_OK) status = write_output(m, pass, x, &mean, &rstd, y);
  ek_tensor_free(&rstd);
  ek_tensor_free(&mean);
  return status;
}

static ek_status batch_norm_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                                    ek_tensor *outputs) {
  const struct batch_norm *m = norm_of(self);
  const ek_tensor *x = &inputs[0];
  ek_tensor kept, statistics = {0}, mean = {0}, rstd = {0};
  struct totals totals = {.all = {0}};
  const bool batch = uses_batch(m, pass);
  EK_TRY(ek__layer_check(pass, x, m->channels));
  if (ek_pass_kept(&kept, pass, SAVED_STATISTICS)) {
    return output_again(m, pass, x, &kept, &outputs[0]);
  }
  EK_TRY(ek_pass_output(&statistics, pass, ek_type_of_sums(ek_pass_type(pass)), 2,
                        (int64_t[]){2, m->channels}));
  ek_status status = EK_OK;
  EK_TRY_GOTO(status, ek_tensor_rows(&mean, &statistics, 0, 1), cleanup);
  EK_TRY_GOTO(status, ek_tensor_rows(&rstd, &statistics, 1, 1), cleanup);
  if (batch) {
    EK_TRY_GOTO(status, open_totals(&totals, pass, m->channels), cleanup);
    EK_TRY_GOTO(status, measure(m, pass, x, &totals, &mean, &rstd), cleanup);
  } else {
    EK_TRY_GOTO(status, take_running(m, pass, &mean, &rstd), cleanup);
  }
  EK_TRY_GOTO(status, write_output(m, pass, x, &mean, &rstd, &outputs[0]), cleanup);
  EK_TRY_GOTO(status, ek_pass_save(pass, x), cleanup);
  EK_TRY_GOTO(status, ek_pass_save(pass, &statistics), cleanup);
  if (batch && m->over == EK_BATCH_NORM_ALL) status = save_count(pass, &totals);
cleanup:
  free_totals(&totals);
  ek_tensor_free(&rstd);
  ek_tensor_free(&mean);
  ek_tensor_free(&statistics);
  return status;
}

/* ---- backward ---- */

static ek_status parameter_gradients(ek_pass *pass, const struct totals *totals) {
  ek_tensor dweight = {0}, dbias = {0};
  double weight_beta = 0, bias_beta = 0;
  const bool weight = ek_pass_trains(pass, WEIGHT), bias = ek_pass_trains(pass, BIAS);
  if (weight) EK_TRY(ek_pass_gradient(&dweight, &weight_beta, pass, WEIGHT));
  if (bias) EK_TRY(ek_pass_gradient(&dbias, &bias_beta, pass, BIAS));
  EK_TRY(ek_op_channel_averages(ek_pass_stream(pass),
                                &(ek_channel_averages_args){.dweight = weight ? &dweight : NULL,
                                                            .dbias = bias ? &dbias : NULL,
                                                            .sums = &totals->sums,
                                                            .groups = 1,
                                                            .weight_beta = weight_beta,
                                                            .bias_beta = bias_beta}));
  EK_TRY(ek_pass_gradient_complete(pass, WEIGHT));
  return ek_pass_gradient_complete(pass, BIAS);
}

/* What backward has of forward; `averages` [2, channels] is NULL where dx needs none. */
struct taken {
  ek_tensor saved[SAVED], mean, rstd, averages, average_g, average_gn;
};

static void free_taken(struct taken *taken) {
  ek_tensor_free(&taken->average_gn);
  ek_tensor_free(&taken->average_g);
  ek_tensor_free(&taken->averages);
  ek_tensor_free(&taken->rstd);
  ek_tensor_free(&taken->mean);
  ek__free_all(taken->saved, SAVED);
}

/* The averages over the rows of all devices, which is where the second exchange is. */
static ek_status average(const struct batch_norm *m, ek_pass *pass, struct taken *t,
                         struct totals *totals, const ek_tensor *weight) {
  const bool all = m->over == EK_BATCH_NORM_ALL;
  const double rows = (double)(ek_tensor_count(&t->saved[SAVED_X]) / m->channels);
  EK_TRY(ek_pass_workspace(&t->averages, pass, t->mean.type, 2, (int64_t[]){2, m->channels}));
  EK_TRY(ek_tensor_rows(&t->average_g, &t->averages, 0, 1));
  EK_TRY(ek_tensor_rows(&t->average_gn, &t->averages, 1, 1));
  if (all) EK_TRY(ek_pass_all_reduce(pass, &totals->sums));
  return ek_op_channel_averages(
      ek_pass_stream(pass), &(ek_channel_averages_args){.average_g = &t->average_g,
                                                        .average_gn = &t->average_gn,
                                                        .sums = &totals->sums,
                                                        .rows = all ? &t->saved[SAVED_COUNT] : NULL,
                                                        .weight = weight,
                                                        .host_rows = rows,
                                                        .groups = m->channels});
}

static ek_status write_gradients(const struct batch_norm *m, ek_pass *pass, struct taken *t,
                                 struct totals *totals, const ek_tensor *dy, ek_tensor *dx) {
  const ek_tensor *x = &t->saved[SAVED_X];
  const bool batch = uses_batch(m, pass);
  const bool trains = m->affine && (ek_pass_trains(pass, WEIGHT) || ek_pass_trains(pass, BIAS));
  ek_tensor weight = {0};
  if (m->affine) EK_TRY(ek_pass_parameter(&weight, pass, WEIGHT));
  const ek_tensor *factor = m->affine ? &weight : NULL;
  if (trains || (batch && dx != NULL)) {
    const struct summed of = {x, dy, &t->mean, &t->rstd};
    EK_TRY(open_totals(totals, pass, m->channels));
    EK_TRY(sum_rows(totals, pass, &of, m->channels));
  }
  if (trains) EK_TRY(parameter_gradients(pass, totals));
  if (dx == NULL) return EK_OK;
  if (batch) EK_TRY(average(m, pass, t, totals, factor));
  EK_TRY(ek__layer_result(dx, pass, x));
  return ek_op_channel_norm_backward(
      ek_pass_stream(pass),
      &(ek_channel_norm_backward_args){.dx = dx,
                                       .dy = dy,
                                       .x = x,
                                       .mean = &t->mean,
                                       .rstd = &t->rstd,
                                       .weight = factor,
                                       .average_g = batch ? &t->average_g : NULL,
                                       .average_gn = batch ? &t->average_gn : NULL});
}

static ek_status batch_norm_backward(const ek_module *self, ek_pass *pass,
                                     const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  const struct batch_norm *m = norm_of(self);
  const bool counts = uses_batch(m, pass) && m->over == EK_BATCH_NORM_ALL;
  struct taken t = {.saved = {{0}}};
  struct totals totals = {.all = {0}};
  EK_TRY(ek__layer_take(t.saved, pass, counts ? SAVED : SAVED - 1));
  ek_status status = EK_OK;
  EK_TRY_GOTO(status, ek_tensor_rows(&t.mean, &t.saved[SAVED_STATISTICS], 0, 1), cleanup);
  EK_TRY_GOTO(status, ek_tensor_rows(&t.rstd, &t.saved[SAVED_STATISTICS], 1, 1), cleanup);
  status = write_gradients(m, pass, &t, &totals, &grad_outputs[0], grad_inputs);
cleanup:
  free_totals(&totals);
  free_taken(&t);
  return status;
}

/* ---- the description ---- */

static const ek_module_ops frozen_ops = {
    EK__LAYER("batch_norm", batch_norm_forward, batch_norm_backward, ek__layer_free),
    .parameters = batch_norm_parameters, .cheap = true};
static const ek_module_ops shard_ops = {
    EK__LAYER("batch_norm", batch_norm_forward, batch_norm_backward, ek__layer_free),
    .parameters = batch_norm_parameters, .cheap = true, .mixes_samples = true};
static const ek_module_ops all_ops = {
    EK__LAYER("batch_norm", batch_norm_forward, batch_norm_backward, ek__layer_free),
    .parameters = batch_norm_parameters, .cheap = true, .collective = true, .mixes_samples = true};

static ek_status check_options(int64_t channels, const ek_batch_norm_options *o) {
  EK__FAIL_IF(channels <= 0, EK_ERR_INVALID_ARGUMENT,
              "batch_norm: channels is %" PRId64 ", expected above 0", channels);
  EK__FAIL_IF(!(o->epsilon > 0) || isinf(o->epsilon), EK_ERR_INVALID_ARGUMENT,
              "batch_norm: epsilon is %g, expected above 0", o->epsilon);
  EK__FAIL_IF(!(o->momentum <= 1), EK_ERR_INVALID_ARGUMENT,
              "batch_norm: momentum is %g, expected at most 1; 0 or less is the average over all "
              "batches",
              o->momentum);
  EK__FAIL_IF((unsigned)o->over > (unsigned)EK_BATCH_NORM_FROZEN, EK_ERR_INVALID_ARGUMENT,
              "batch_norm: over is %d, expected a value of ek_batch_norm_over", (int)o->over);
  EK__FAIL_IF(o->over == EK_BATCH_NORM_FROZEN && !o->track, EK_ERR_INVALID_ARGUMENT,
              "batch_norm: over is EK_BATCH_NORM_FROZEN, which needs the running statistics, but "
              "track is false");
  EK__FAIL_IF(o->weight_start != NULL && !o->affine, EK_ERR_INVALID_ARGUMENT,
              "batch_norm: weight_start is given, but affine is false");
  return EK_OK;
}

ek_status ek_batch_norm_create_with(ek_module **module, int64_t channels,
                                    const ek_batch_norm_options *options) {
  ek_batch_norm_options o = EK_BATCH_NORM_OPTIONS_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_batch_norm_options"));
  EK_TRY(check_options(channels, &o));
  const struct batch_norm made = {.channels = channels,
                                  .over = o.over,
                                  .epsilon = o.epsilon,
                                  .momentum = o.momentum < 0 ? 0 : o.momentum,
                                  .affine = o.affine,
                                  .frozen = o.frozen,
                                  .track = o.track,
                                  .weight_start = o.weight_start == NULL ? ek_initializer_ones()
                                                                         : *o.weight_start};
  static const ek_module_ops *const tables[] = {[EK_BATCH_NORM_SHARD] = &shard_ops,
                                                [EK_BATCH_NORM_ALL] = &all_ops,
                                                [EK_BATCH_NORM_FROZEN] = &frozen_ops};
  return ek__layer_create(module, &made, sizeof made, tables[o.over], 1, 1);
}

ek_status ek_batch_norm_create(ek_module **module, int64_t channels) {
  return ek_batch_norm_create_with(module, channels, NULL);
}

EK__OPTIONS_INIT(ek_batch_norm_options, EK_BATCH_NORM_OPTIONS_INIT)
