/*
 * reference_channel_norm.c - f64 normalisation by channels in plain C (channel_norm.h).
 *
 * The variance is that of two sums, as the formula of the header says: with values of 53 bits it is
 * good to 2^-53 (mean / deviation)^2 (docs/numerics.md).
 */
#include "backend/cpu/reference.h"

static int64_t sample_of(const struct ek__channel_args *args, int64_t row) {
  return row / (args->rows / args->samples);
}

void ek__channel_moments_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__channel_args *args = raw;
  const int64_t channels = args->channels;
  const double *x = args->x;
  for (int64_t piece = begin; piece < end; piece++) {
    const int64_t first = ek__channel_piece(args, piece), last = ek__channel_piece(args, piece + 1);
    for (int64_t c = 0; c < channels; c++) {
      double sum = 0.0, squares = 0.0;
      for (int64_t row = first; row < last; row++) {
        const double v = x[row * channels + c];
        sum += v;
        squares += v * v;
      }
      args->sums[2 * piece * channels + c] = sum;
      args->sums[(2 * piece + 1) * channels + c] = squares;
    }
  }
}

void ek__channel_slopes_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__channel_args *args = raw;
  const int64_t channels = args->channels;
  const double *x = args->x, *dy = args->dy, *mean = args->mean, *rstd = args->rstd;
  for (int64_t piece = begin; piece < end; piece++) {
    const int64_t first = ek__channel_piece(args, piece), last = ek__channel_piece(args, piece + 1);
    for (int64_t c = 0; c < channels; c++) {
      const int64_t of = (args->samples == 1 ? 0 : piece) * channels + c;
      double g = 0.0, gn = 0.0;
      for (int64_t row = first; row < last; row++) {
        const int64_t at = row * channels + c;
        g += dy[at];
        gn += dy[at] * ((x[at] - mean[of]) * rstd[of]);
      }
      args->sums[2 * piece * channels + c] = g;
      args->sums[(2 * piece + 1) * channels + c] = gn;
    }
  }
}

void ek__channel_statistics_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__channel_args *args = raw;
  const int64_t width = args->channels / args->groups;
  for (int64_t i = begin; i < end; i++) {
    const int64_t sample = i / args->groups, first = i % args->groups * width;
    const struct ek__moments m = ek__group_moments(args, sample, first, width);
    for (int64_t c = first; c < first + width; c++) {
      ((double *)args->mean)[sample * args->channels + c] = m.mean;
      ((double *)args->rstd)[sample * args->channels + c] = ek__moments_rstd(m, args->epsilon);
    }
  }
}

void ek__channel_running_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__channel_args *args = raw;
  const double n = ek__channel_rows(args);
  double *mean = args->running_mean, *variance = args->running_variance, *batches = args->batches;
  if (n == 0.0) return;
  const double factor = args->momentum == 0.0 ? 1.0 / (*batches + 1.0) : args->momentum;
  for (int64_t c = begin; c < end; c++) {
    const struct ek__moments m = ek__moments_of(n, args->sums[c], args->sums[args->channels + c]);
    mean[c] += factor * (m.mean - mean[c]);
    if (!(n <= 1.0)) variance[c] += factor * (m.deviations / (n - 1.0) - variance[c]);
  }
  *batches += 1.0;
}

/* The averages of group number `i` of all samples. */
static void averages(const struct ek__channel_args *args, int64_t i) {
  const int64_t width = args->channels / args->groups, sample = i / args->groups;
  const int64_t first = i % args->groups * width;
  const double *sums = args->sums + 2 * sample * args->channels, *weight = args->weight;
  const double n = ek__channel_rows(args) * (double)width;
  double g = 0.0, gn = 0.0;
  for (int64_t c = first; c < first + width; c++) {
    const double w = weight ? weight[c] : 1.0;
    g += w * sums[c];
    gn += w * sums[args->channels + c];
  }
  for (int64_t c = first; c < first + width; c++) {
    const int64_t at = sample * args->channels + c;
    if (args->average_g) ((double *)args->average_g)[at] = n == 0.0 ? 0.0 : g / n;
    if (args->average_gn) ((double *)args->average_gn)[at] = n == 0.0 ? 0.0 : gn / n;
  }
}

void ek__channel_averages_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__channel_args *args = raw;
  const int64_t groups = args->samples * args->groups;
  double *dweight = args->dweight, *dbias = args->dbias;
  for (int64_t i = begin; i < end; i++) {
    if (i < groups) {
      averages(args, i);
      continue;
    }
    const int64_t c = i - groups;
    double g = 0.0, gn = 0.0;
    for (int64_t s = 0; s < args->samples; s++) {
      g += args->sums[2 * s * args->channels + c];
      gn += args->sums[(2 * s + 1) * args->channels + c];
    }
    if (dweight) {
      dweight[c] = gn + (args->weight_scale == 0.0 ? 0.0 : args->weight_scale * dweight[c]);
    }
    if (dbias) dbias[c] = g + (args->bias_scale == 0.0 ? 0.0 : args->bias_scale * dbias[c]);
  }
}

void ek__channel_norm_forward_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__channel_args *args = raw;
  const double *x = args->x, *mean = args->mean, *rstd = args->rstd;
  const double *weight = args->weight, *bias = args->bias;
  for (int64_t row = begin; row < end; row++) {
    for (int64_t c = 0; c < args->channels; c++) {
      const int64_t at = row * args->channels + c, of = sample_of(args, row) * args->channels + c;
      const double n = (x[at] - mean[of]) * rstd[of];
      ((double *)args->y)[at] = n * (weight ? weight[c] : 1.0) + (bias ? bias[c] : 0.0);
    }
  }
}

void ek__channel_norm_backward_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__channel_args *args = raw;
  const double *x = args->x, *dy = args->dy, *mean = args->mean, *rstd = args->rstd;
  const double *weight = args->weight, *g = args->average_g, *gn = args->average_gn;
  for (int64_t row = begin; row < end; row++) {
    for (int64_t c = 0; c < args->channels; c++) {
      const int64_t at = row * args->channels + c, of = sample_of(args, row) * args->channels + c;
      const double n = (x[at] - mean[of]) * rstd[of];
      const double slope = dy[at] * (weight ? weight[c] : 1.0);
      ((double *)args->y)[at] = rstd[of] * (slope - (g ? g[of] : 0.0) - n * (gn ? gn[of] : 0.0));
    }
  }
}
