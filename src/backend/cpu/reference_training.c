/*
 * reference_training.c - f64 losses, optimizer updates and flat sums in plain C.
 */
#include "backend/cpu/reference.h"

#include <math.h>

#include "backend/formulas.h"

/* ---- losses ---- */

/* m, the largest of n logits, and z, the sum of e^(x - m). */
struct normalizer {
  double m, z;
};

static struct normalizer normalize_row(const double *x, int64_t n) {
  struct normalizer all = {-INFINITY, 0.0};
  for (int64_t i = 0; i < n; i++) all.m = fmax(all.m, x[i]); /* passes over NaN */
  for (int64_t i = 0; i < n; i++) all.z += exp(x[i] - all.m);
  return all;
}

static double weight_of(const struct ek__loss_args *args, int64_t c) {
  return args->class_weights ? ((const double *)args->class_weights)[c] : 1.0;
}

/* The weight of class c in a row of soft targets. */
static double soft_weight(const struct ek__loss_args *args, const double *t, int64_t c) {
  const double smoothing = args->label_smoothing;
  return weight_of(args, c) * ((1.0 - smoothing) * t[c] + smoothing / (double)args->classes);
}

/* The loss of a row of logits with soft targets; *weight: the sum of all weights, or 0. */
static double soft_loss(const struct ek__loss_args *args, const double *x, const double *t,
                        struct normalizer all, double *weight) {
  double loss = 0.0;
  bool counts = false;
  *weight = 0.0;
  for (int64_t c = 0; c < args->classes; c++) {
    const double q = soft_weight(args, t, c);
    counts |= t[c] != 0.0;
    *weight += q;
    loss += ek__weigh(q, log(all.z) - (x[c] - all.m));
  }
  if (!counts) *weight = 0.0;
  return *weight == 0.0 ? 0.0 : loss;
}

void ek__cross_entropy_forward_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__loss_args *args = ((const struct ek__loss_job *)raw)->args;
  const int32_t *targets = args->targets;
  const double smoothing = args->label_smoothing, share = smoothing / (double)args->classes;
  double *losses = args->losses;
  for (int64_t row = begin; row < end; row++) {
    const double *x = (const double *)args->outputs + row * args->columns;
    const struct normalizer all = normalize_row(x, args->classes);
    double *kept = (double *)args->normalizer + row * (args->soft ? 3 : 2);
    kept[0] = all.m;
    kept[1] = all.z;
    losses[row] = 0.0;
    if (args->soft) {
      const double *t = (const double *)args->targets + row * args->columns;
      losses[row] = soft_loss(args, x, t, all, &kept[2]);
      continue;
    }
    if (targets[row] == args->ignore_index) continue;
    const double log_z = log(all.z), weight = (1.0 - smoothing) * weight_of(args, targets[row]);
    double loss = ek__weigh(weight, log_z - (x[targets[row]] - all.m));
    for (int64_t c = 0; c < args->classes && share != 0.0; c++) {
      loss += ek__weigh(share * weight_of(args, c), log_z - (x[c] - all.m));
    }
    losses[row] = loss;
  }
}

static void soft_gradient(const struct ek__loss_job *job, int64_t row, double scale) {
  const struct ek__loss_args *args = job->args;
  const double *x = (const double *)args->outputs + row * args->columns;
  const double *t = (const double *)args->targets + row * args->columns;
  const double *kept = (const double *)args->normalizer + 3 * row;
  double *gradient = (double *)args->gradient + row * args->columns;
  for (int64_t c = 0; c < args->columns; c++) {
    const bool counts = kept[2] != 0.0 && c < args->classes;
    const double p = counts ? exp(x[c] - kept[0]) / kept[1] : 0.0;
    gradient[c] = counts ? scale * (p * kept[2] - soft_weight(args, t, c)) : 0.0;
  }
}

void ek__cross_entropy_backward_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__loss_job *job = raw;
  const struct ek__loss_args *args = job->args;
  const int32_t *targets = args->targets;
  const struct normalizer *normalizers = args->normalizer;
  const double *row_scale = args->row_scale;
  const double smoothing = args->label_smoothing, share = smoothing / (double)args->classes;
  for (int64_t row = begin; row < end; row++) {
    const double scale = job->factor * (row_scale ? row_scale[row] : 1.0);
    if (args->soft) {
      soft_gradient(job, row, scale);
      continue;
    }
    const double *x = (const double *)args->outputs + row * args->columns;
    double *gradient = (double *)args->gradient + row * args->columns;
    const struct normalizer all = normalizers[row];
    const bool ignored = targets[row] == args->ignore_index;
    const double own = ignored ? 0.0 : (1.0 - smoothing) * weight_of(args, targets[row]);
    for (int64_t c = 0; c < args->columns; c++) {
      const bool counts = !ignored && c < args->classes;
      double value = 0.0;
      if (counts) {
        value = exp(x[c] - all.m) / all.z * (own + share * job->class_weight);
        value -= share * weight_of(args, c) + (c == targets[row] ? own : 0.0);
      }
      gradient[c] = counts ? scale * value : 0.0;
    }
  }
}

void ek__cross_entropy_gradient_f64(const void *raw, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; row++) { /* the row stays in the cache */
    ek__cross_entropy_forward_f64(raw, row, row + 1);
    ek__cross_entropy_backward_f64(raw, row, row + 1);
  }
}

void ek__element_loss_forward_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__loss_job *job = raw;
  const double *y = job->args->outputs, *target = job->args->targets, *weights = job->args->weights;
  double *losses = job->args->losses;
  for (int64_t index = begin; index < end; index++) {
    double sum = 0.0, weight = 0.0;
    for (int64_t i = index * job->chunk; i < (index + 1) * job->chunk && i < job->args->rows; i++) {
      const double w = weights ? weights[i] : 1.0;
      const double l = w == 0.0 ? 0.0 : w * ek__element_loss(job->args, y[i], target[i]);
      if (losses) losses[i] = l;
      sum += l;
      weight += w;
    }
    job->partials[2 * index] = sum;
    job->partials[2 * index + 1] = weight;
  }
}

void ek__element_loss_backward_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__loss_job *job = raw;
  const double *y = job->args->outputs, *target = job->args->targets, *weights = job->args->weights;
  const double *element_scale = job->args->row_scale;
  double *gradient = job->args->gradient;
  for (int64_t i = begin; i < end; i++) {
    const double w = weights ? weights[i] : 1.0;
    const double scale = job->factor * (element_scale ? element_scale[i] : 1.0) * w;
    gradient[i] = w == 0.0 ? 0.0 : scale * ek__element_slope(job->args, y[i], target[i]);
  }
}

/* ---- updates ---- */

void ek__sgd_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__update_job *job = raw;
  const struct ek__update_args *args = job->args;
  double *p = args->p, *copy = args->copy, *buffer = args->momentum != 0.0 ? args->state0 : NULL;
  const double *gradient = args->g;
  for (int64_t i = begin; i < end; i++) {
    double g = gradient[i] * job->factor + args->weight_decay * p[i];
    if (buffer) {
      const double b = args->first ? g : args->momentum * buffer[i] + (1.0 - args->dampening) * g;
      buffer[i] = b;
      g = args->nesterov ? g + args->momentum * b : b;
    }
    p[i] -= args->learning_rate * g;
    if (copy) copy[i] = p[i];
  }
}

void ek__adamw_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__update_job *job = raw;
  const struct ek__update_args *args = job->args;
  const double rate = args->learning_rate / args->correction1, root = sqrt(args->correction2);
  double *p = args->p, *copy = args->copy, *m = args->state0, *v = args->state1;
  const double *gradient = args->g;
  for (int64_t i = begin; i < end; i++) {
    double g = gradient[i] * job->factor;
    if (!args->decoupled) g += args->weight_decay * p[i];
    m[i] = (args->first ? 0.0 : args->beta1 * m[i]) + (1.0 - args->beta1) * g;
    v[i] = (args->first ? 0.0 : args->beta2 * v[i]) + (1.0 - args->beta2) * g * g;
    if (args->decoupled) p[i] -= args->learning_rate * args->weight_decay * p[i];
    p[i] -= rate * m[i] / (sqrt(v[i]) / root + args->epsilon);
    if (copy) copy[i] = p[i];
  }
}

void ek__square_norm_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__norm_job *job = raw;
  const double *x = job->x;
  for (int64_t index = begin; index < end; index++) {
    double sum = 0.0;
    for (int64_t i = index * job->chunk; i < (index + 1) * job->chunk && i < job->count; i++) {
      sum += x[i] * x[i];
    }
    job->partials[index] = sum;
  }
}

void ek__reduce_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__reduce_args *args = raw;
  for (int64_t i = begin; i < end; i++) {
    double sum = args->source_count > 0 ? ((const double *)args->sources[0])[i] : 0.0;
    for (size_t s = 1; s < args->source_count; s++) sum += ((const double *)args->sources[s])[i];
    for (size_t d = 0; d < args->destination_count; d++) {
      ((double *)args->destinations[d])[i] = sum;
    }
  }
}
