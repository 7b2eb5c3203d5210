/*
 * group_norm.c - normalisation of groups of the channels of each sample.
 *
 * Each sample is a piece and a sample of channel_norm.h. Forward saves x and {mean, rstd}, [2, B,
 * C]: for each channel the numbers of its group.
 */
#include <evenkeel/group_norm.h>

#include <inttypes.h>
#include <math.h>

#include <evenkeel/channel_norm.h>

#include "core/error.h"
#include "core/options.h"
#include "module/layer_internal.h"

enum { WEIGHT, BIAS };

struct group_norm {
  ek_module base;
  int64_t channels, groups;
  double epsilon;
  bool affine, frozen;
  ek_initializer weight_start;
};

static const struct group_norm *norm_of(const ek_module *self) {
  return (const struct group_norm *)self;
}

static ek_status group_norm_parameters(const ek_module *self, ek_declaration *declaration) {
  const struct group_norm *m = norm_of(self);
  const int64_t shape[] = {m->channels};
  ek_parameter_options options = EK_PARAMETER_OPTIONS_INIT;
  options.no_decay = true;
  options.frozen = m->frozen;
  if (!m->affine) return EK_OK;
  EK_TRY(ek_declare_parameter_with(declaration, "weight", 1, shape, m->weight_start, &options));
  return ek_declare_parameter_with(declaration, "bias", 1, shape, ek_initializer_zeros(), &options);
}

/* The pixels of a sample; 0 where there are no samples. */
static double pixels(const struct group_norm *m, const ek_tensor *x) {
  if (x->shape[0] == 0) return 0;
  return (double)(ek_tensor_count(x) / x->shape[0] / m->channels);
}

/* Two arrays of samples x channels: `both` [2, B, C] in new memory, and views of its halves. */
struct pair {
  ek_tensor both, of[2];
};

static void free_pair(struct pair *pair) {
  ek_tensor_free(&pair->of[1]);
  ek_tensor_free(&pair->of[0]);
  ek_tensor_free(&pair->both);
}

static ek_status open_halves(struct pair *pair) {
  const int64_t *shape = pair->both.shape;
  for (int i = 0; i < 2; i++) {
    ek_tensor half = {0};
    EK_TRY(ek_tensor_rows(&half, &pair->both, i, 1));
    const ek_status status = ek_tensor_reshape(&pair->of[i], &half, 2, shape + 1);
    ek_tensor_free(&half);
    EK_TRY(status);
  }
  return EK_OK;
}

static ek_status sum_samples(ek_tensor *sums, ek_pass *pass, const struct group_norm *m,
                             const ek_tensor *x) {
  return ek_pass_workspace(sums, pass, EK_F64, 3, (int64_t[]){x->shape[0], 2, m->channels});
}

static ek_type sums_type(const ek_pass *pass) { return ek_type_of_sums(ek_pass_type(pass)); }

/* ---- forward ---- */

static ek_status measure(const struct group_norm *m, ek_pass *pass, const ek_tensor *x,
                         struct pair *statistics) {
  ek_stream *stream = ek_pass_stream(pass);
  ek_tensor sums = {0};
  EK_TRY(open_halves(statistics));
  EK_TRY(sum_samples(&sums, pass, m, x));
  ek_status status = ek_op_channel_moments(stream, &sums, x);
  if (status == EK_OK) {
    status = ek_op_channel_statistics(stream, &statistics->of[0], &statistics->of[1], &sums, NULL,
                                      pixels(m, x), m->groups, m->epsilon);
  }
  ek_tensor_free(&sums);
  return status;
}

static ek_status write_output(const struct group_norm *m, ek_pass *pass, const ek_tensor *x,
                              const struct pair *statistics, ek_tensor *y) {
  ek_tensor weight = {0}, bias = {0};
  EK_TRY(ek__layer_result(y, pass, x));
  if (!ek_pass_wants_outputs(pass)) return EK_OK;
  if (m->affine) EK_TRY(ek_pass_parameter(&weight, pass, WEIGHT));
  if (m->affine) EK_TRY(ek_pass_parameter(&bias, pass, BIAS));
  return ek_op_channel_norm_forward(ek_pass_stream(pass), y, x, &statistics->of[0],
                                    &statistics->of[1], m->affine ? &weight : NULL,
                                    m->affine ? &bias : NULL);
}

static ek_status group_norm_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                                    ek_tensor *outputs) {
  const struct group_norm *m = norm_of(self);
  const ek_tensor *x = &inputs[0];
  struct pair statistics = {.both = {0}};
  EK_TRY(ek__layer_check(pass, x, m->channels));
  EK__FAIL_IF(x->rank < 2, EK_ERR_SHAPE, "input has rank %d, expected 2 or more", x->rank);
  EK_TRY(ek_pass_output(&statistics.both, pass, sums_type(pass), 3,
                        (int64_t[]){2, x->shape[0], m->channels}));
  ek_status status = measure(m, pass, x, &statistics);
  EK_TRY_GOTO(status, write_output(m, pass, x, &statistics, &outputs[0]), cleanup);
  EK_TRY_GOTO(status, ek_pass_save(pass, x), cleanup);
  status = ek_pass_save(pass, &statistics.both);
cleanup:
  free_pair(&statistics);
  return status;
}

/* ---- backward ---- */

enum { SAVED_X, SAVED_STATISTICS, SAVED };

/* What one backward works with. */
struct slopes {
  const ek_tensor *dy, *x;
  struct pair statistics, averages;
  ek_tensor sums;
};

static ek_status write_averages(const struct group_norm *m, ek_pass *pass, struct slopes *s,
                                const ek_tensor *weight, bool with_averages) {
  ek_tensor dweight = {0}, dbias = {0};
  double weight_beta = 0, bias_beta = 0;
  const bool trains[] = {m->affine && ek_pass_trains(pass, WEIGHT),
                         m->affine && ek_pass_trains(pass, BIAS)};
  if (trains[0]) EK_TRY(ek_pass_gradient(&dweight, &weight_beta, pass, WEIGHT));
  if (trains[1]) EK_TRY(ek_pass_gradient(&dbias, &bias_beta, pass, BIAS));
  EK_TRY(ek_op_channel_averages(
      ek_pass_stream(pass),
      &(ek_channel_averages_args){.average_g = with_averages ? &s->averages.of[0] : NULL,
                                  .average_gn = with_averages ? &s->averages.of[1] : NULL,
                                  .dweight = trains[0] ? &dweight : NULL,
                                  .dbias = trains[1] ? &dbias : NULL,
                                  .sums = &s->sums,
                                  .weight = weight,
                                  .host_rows = pixels(m, s->x),
                                  .groups = m->groups,
                                  .weight_beta = weight_beta,
                                  .bias_beta = bias_beta}));
  if (m->affine) EK_TRY(ek_pass_gradient_complete(pass, WEIGHT));
  return m->affine ? ek_pass_gradient_complete(pass, BIAS) : EK_OK;
}

static ek_status write_gradients(const struct group_norm *m, ek_pass *pass, struct slopes *s,
                                 ek_tensor *dx) {
  ek_stream *stream = ek_pass_stream(pass);
  const ek_tensor *mean = &s->statistics.of[0], *rstd = &s->statistics.of[1];
  ek_tensor weight = {0};
  if (m->affine) EK_TRY(ek_pass_parameter(&weight, pass, WEIGHT));
  const ek_tensor *factor = m->affine ? &weight : NULL;
  EK_TRY(open_halves(&s->statistics));
  EK_TRY(sum_samples(&s->sums, pass, m, s->x));
  EK_TRY(ek_op_channel_slopes(stream, &s->sums, s->dy, s->x, mean, rstd));
  if (dx != NULL) {
    EK_TRY(
        ek_pass_workspace(&s->averages.both, pass, sums_type(pass), 3, s->statistics.both.shape));
    EK_TRY(open_halves(&s->averages));
  }
  EK_TRY(write_averages(m, pass, s, factor, dx != NULL));
  if (dx == NULL) return EK_OK;
  EK_TRY(ek__layer_result(dx, pass, s->x));
  return ek_op_channel_norm_backward(
      stream, &(ek_channel_norm_backward_args){.dx = dx,
                                               .dy = s->dy,
                                               .x = s->x,
                                               .mean = mean,
                                               .rstd = rstd,
                                               .weight = factor,
                                               .average_g = &s->averages.of[0],
                                               .average_gn = &s->averages.of[1]});
}

static ek_status group_norm_backward(const ek_module *self, ek_pass *pass,
                                     const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  ek_tensor saved[SAVED];
  EK_TRY(ek__layer_take(saved, pass, SAVED));
  struct slopes s = {.dy = &grad_outputs[0],
                     .x = &saved[SAVED_X],
                     .statistics = {.both = saved[SAVED_STATISTICS]}};
  const ek_status status = write_gradients(norm_of(self), pass, &s, grad_inputs);
  ek_tensor_free(&s.sums);
  free_pair(&s.averages);
  free_pair(&s.statistics);
  ek_tensor_free(&saved[SAVED_X]);
  return status;
}

static const ek_module_ops group_norm_ops = {
    EK__LAYER("group_norm", group_norm_forward, group_norm_backward, ek__layer_free),
    .parameters = group_norm_parameters, .cheap = true};

ek_status ek_group_norm_create_with(ek_module **module, int64_t channels, int64_t groups,
                                    const ek_group_norm_options *options) {
  ek_group_norm_options o = EK_GROUP_NORM_OPTIONS_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_group_norm_options"));
  EK__FAIL_IF(channels <= 0, EK_ERR_INVALID_ARGUMENT,
              "group_norm: channels is %" PRId64 ", expected above 0", channels);
  EK__FAIL_IF(groups <= 0 || channels % groups != 0, EK_ERR_INVALID_ARGUMENT,
              "group_norm: groups is %" PRId64 ", expected a divisor of the %" PRId64 " channels",
              groups, channels);
  EK__FAIL_IF(!(o.epsilon > 0) || isinf(o.epsilon), EK_ERR_INVALID_ARGUMENT,
              "group_norm: epsilon is %g, expected above 0", o.epsilon);
  EK__FAIL_IF(o.weight_start != NULL && !o.affine, EK_ERR_INVALID_ARGUMENT,
              "group_norm: weight_start is given, but affine is false");
  const struct group_norm made = {.channels = channels,
                                  .groups = groups,
                                  .epsilon = o.epsilon,
                                  .affine = o.affine,
                                  .frozen = o.frozen,
                                  .weight_start = o.weight_start == NULL ? ek_initializer_ones()
                                                                         : *o.weight_start};
  return ek__layer_create(module, &made, sizeof made, &group_norm_ops, 1, 1);
}

ek_status ek_group_norm_create(ek_module **module, int64_t channels, int64_t groups) {
  return ek_group_norm_create_with(module, channels, groups, NULL);
}

EK__OPTIONS_INIT(ek_group_norm_options, EK_GROUP_NORM_OPTIONS_INIT)
