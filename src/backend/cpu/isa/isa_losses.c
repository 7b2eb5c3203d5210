/*
 * isa_losses.c - losses and their gradients.
 *
 * Cross-entropy reads a row once from memory: in blocks that fit the first cache, the largest
 * element, then the sum of exponentials relative to it, with an online correction of the earlier
 * sum (Milakov and Gimelshein 2018). The gradient computes the exponentials again: one read and one
 * write, and it rounds once. The row's largest logit is always subtracted first, so that a common
 * offset costs no digits. Targets were checked before.
 */
#include "backend/cpu/isa/isa.h"
#include "backend/cpu/isa/vector_exp.h"

#include <math.h>

#define BLOCK 2048 /* elements of a row looked at together: 8 KiB */
#define NEAR 16384 /* elements of rows that stay in the second cache: 64 KiB */

static float block_largest(const value *x, int64_t n) {
  vec best[4] = {v_set(-INFINITY), v_set(-INFINITY), v_set(-INFINITY), v_set(-INFINITY)};
  int64_t i = 0;
  for (; i + 4 * W <= n; i += 4 * W) { /* NaN is passed over here and comes back by the sum */
    const struct pair v = x_load_pair(x + i), w = x_load_pair(x + i + 2 * W);
    best[0] = v_max(v.of[0], best[0]);
    best[1] = v_max(v.of[1], best[1]);
    best[2] = v_max(w.of[0], best[2]);
    best[3] = v_max(w.of[1], best[3]);
  }
  float best_of_all = v_largest(v_max(v_max(best[0], best[1]), v_max(best[2], best[3])));
  for (; i < n; i++) best_of_all = x_one(x + i) > best_of_all ? x_one(x + i) : best_of_all;
  return best_of_all;
}

static float block_exp_sum(const value *x, int64_t n, float largest) {
  vec sum0 = {0}, sum1 = {0};
  int64_t i = 0;
  for (; i + 2 * W <= n; i += 2 * W) {
    /* Memory would idle while exponentials are computed: fetch what the next block looks at. */
    x_fetch(x + i + (BLOCK - EK_AHEAD));
    x_fetch(x + i + W + (BLOCK - EK_AHEAD));
    const struct pair v = x_load_pair(x + i);
    sum0 += x_exp_below(v.of[0] - largest);
    sum1 += x_exp_below(v.of[1] - largest);
  }
  for (; i < n; i += W) { /* what is missing counts as e^-inf */
    const int64_t rest = n - i < W ? n - i : W;
    sum0 += x_exp_below(x_load_some(x + i, rest, -INFINITY) - largest);
  }
  return v_sum(sum0 + sum1);
}

/* m, the largest x of a row, and z, the sum of e^(x - m), which is 1 at least. Where m is infinite
 * z is no number, or 0 for a row of -inf: then its logarithm minus (x - m) is no number either. */
struct normalizer {
  float m, z;
};

static struct normalizer normalize_row(const value *x, int64_t classes) {
  float largest = -INFINITY, sum = 0.0f;
  for (int64_t i = 0; i < classes; i += BLOCK) {
    const int64_t n = classes - i < BLOCK ? classes - i : BLOCK;
    const float best = block_largest(x + i, n);
    if (best > largest) {
      sum *= expf(largest - best);
      largest = best;
    }
    /* -inf minus -inf is no number; a block of -inf adds nothing, but a NaN in it must show. */
    sum += block_exp_sum(x + i, n, largest > -INFINITY ? largest : 0.0f);
  }
  return (struct normalizer){largest, sum};
}

/* Sum over c of w[c] (m - x[c]); a class of weight 0 counts for nothing even where x is -inf.
 * Blocks are summed in f32 after a division by 4096 = 2^12, which keeps huge differences finite. */
static double weighted_depth(const value *x, const float *w, int64_t classes, float m) {
  double total = 0.0;
  for (int64_t first = 0; first < classes; first += BLOCK) {
    const int64_t last = classes - first < BLOCK ? classes : first + BLOCK;
    vec sum = {0};
    for (int64_t i = first; i < last; i += W) {
      const int64_t n = last - i < W ? last - i : W;
      vec depth = n == W ? x_load(x + i) : x_load_some(x + i, n, m);
      depth = m * 0x1p-12f - depth * 0x1p-12f;
      if (w) {
        const vec weight = n == W ? v_load(w + i) : v_load_some(w + i, n, 0.0f);
        depth = (vec)((vec_i)(depth * weight) & (weight != 0.0f));
      }
      sum += depth;
    }
    total += (double)v_sum(sum);
  }
  return total * 0x1p12;
}

/* A row of soft targets: class c has the weight w[c] (t[c] keep + share). */
struct soft {
  const value *t;
  const float *w; /* or NULL: 1 */
  float keep, share;
};

static struct soft soft_row(const struct ek__loss_args *args, int64_t row) {
  const double smoothing = args->label_smoothing;
  return (struct soft){(const value *)args->targets + row * args->columns, args->class_weights,
                       (float)(1.0 - smoothing), (float)(smoothing / (double)args->classes)};
}

static inline vec soft_weights(const struct soft *s, int64_t i, int64_t n) {
  vec q = x_get(s->t + i, n) * s->keep + s->share;
  if (s->w) q *= v_get(s->w + i, n);
  return n == W ? q : v_first(n, q, v_set(0.0f));
}

static bool any_target(const struct soft *s, int64_t classes) {
  for (int64_t c = 0; c < classes; c++) {
    if (x_one(s->t + c) != 0.0f) return true;
  }
  return false;
}

/* The loss of a row, as weighted_depth() has it. *weight becomes the sum of the row's weights. */
static double soft_loss(const struct soft *s, const value *x, int64_t classes,
                        struct normalizer all, float *weight) {
  double depth = 0.0, weights = 0.0;
  for (int64_t first = 0; first < classes; first += BLOCK) {
    const int64_t last = classes - first < BLOCK ? classes : first + BLOCK;
    vec sum = {0}, sum_weights = {0};
    for (int64_t i = first; i < last; i += W) {
      const int64_t n = last - i < W ? last - i : W;
      const vec q = soft_weights(s, i, n),
                below = n == W ? x_load(x + i) : x_load_some(x + i, n, all.m);
      sum += v_choose(q == 0.0f, (vec){0}, (all.m * 0x1p-12f - below * 0x1p-12f) * q);
      sum_weights += q;
    }
    depth += (double)v_sum(sum);
    weights += (double)v_sum(sum_weights);
  }
  *weight = any_target(s, classes) ? (float)weights : 0.0f;
  return *weight == 0.0f ? 0.0 : weights * (double)logf(all.z) + depth * 0x1p12;
}

void EK_ISA_NAME(cross_entropy_forward)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__loss_job *job = raw;
  const struct ek__loss_args *args = job->args;
  const int64_t classes = args->classes, columns = args->columns;
  const int32_t *targets = args->targets;
  const float *weights = args->class_weights;
  const double smoothing = args->label_smoothing, share = smoothing / (double)classes;
  float *losses = args->losses;
  for (int64_t row = begin; row < end; row++) {
    const value *x = (const value *)args->outputs + row * columns;
    const struct normalizer all = normalize_row(x, classes);
    float *kept = (float *)args->normalizer + row * (args->soft ? 3 : 2);
    kept[0] = all.m;
    kept[1] = all.z;
    losses[row] = 0.0f;
    if (args->soft) {
      const struct soft soft = soft_row(args, row);
      losses[row] = (float)soft_loss(&soft, x, classes, all, &kept[2]);
      continue;
    }
    if (targets[row] == args->ignore_index) continue;
    const double log_z = (double)logf(all.z), own = (double)x_one(x + targets[row]) - (double)all.m;
    const double weight = (weights ? (double)weights[targets[row]] : 1.0) * (1.0 - smoothing);
    double loss = ek__weigh(weight, log_z - own);
    if (share != 0.0) {
      const double depth = weighted_depth(x, weights, classes, all.m);
      loss += share * (log_z * job->class_weight + depth);
    }
    losses[row] = (float)loss;
  }
}

/* gradient[c] = factor e^(x[c] - m) - share w[c], of which `own` is taken at the target. */
struct slope {
  float m, factor, share, own;
  const float *weights; /* or NULL: 1 */
};

/* x, or a NaN that x_put_pair() may store: m and factor may be any. */
static float numeric(float x) { return x == x ? x : NAN; }

/* Without smoothing share is 0. */
static void plain_gradient(value *gradient, const value *x, int64_t classes,
                           const struct slope *slope) {
  const float m = numeric(slope->m);
  const struct exp_times times = x_exp_times(numeric(slope->factor));
  X_PAIRS(0, classes, {
    struct pair v = x_get_pair(x + i, n);
    X_BOTH(v.of[j] = x_exp_below_times(v.of[j] - m, &times));
    x_put_pair(gradient + i, v, n);
  });
}

static void smoothed_gradient(value *gradient, const value *x, int64_t classes,
                              const struct slope *slope) {
  const float m = slope->m, share = slope->share;
  const struct exp_times times = x_exp_times(slope->factor);
  X_PAIRS(0, classes, {
    struct pair v = x_get_ordered(x + i, n), part = {{v_set(1.0f), v_set(1.0f)}};
    if (slope->weights) part = v_get_pair(slope->weights + i, n);
    X_BOTH(v.of[j] = x_exp_below_times(v.of[j] - m, &times) - part.of[j] * share);
    x_put_ordered(gradient + i, v, n);
  });
}

/* The target's element is computed by itself, or it would be rounded twice; x may be gradient. */
static void row_gradient(value *gradient, const value *x, int64_t classes,
                         const struct slope *slope, int64_t target) {
  const float weight = slope->weights ? slope->weights[target] : 1.0f;
  const float p = x_exp_below(v_set(x_one(x + target) - slope->m))[0] * slope->factor;
  const float at_target = p - weight * slope->share - slope->own;
  if (slope->share == 0.0f) {
    plain_gradient(gradient, x, classes, slope);
  } else {
    smoothed_gradient(gradient, x, classes, slope);
  }
  x_set(gradient + target, at_target);
}

static void soft_gradient(const struct ek__loss_args *args, int64_t row, double scale) {
  const value *x = (const value *)args->outputs + row * args->columns;
  value *gradient = (value *)args->gradient + row * args->columns;
  const float *kept = (const float *)args->normalizer + 3 * row, m = kept[0];
  const int64_t classes = kept[2] == 0.0f ? 0 : args->classes; /* 0: it is ignored */
  const struct soft soft = soft_row(args, row);
  const struct exp_times times = x_exp_times((float)(scale * (double)kept[2] / (double)kept[1]));
  V_EACH(0, classes, {
    const vec q = soft_weights(&soft, i, n) * (float)scale;
    x_put(gradient + i, x_exp_below_times(x_get(x + i, n) - m, &times) - q, n);
  });
  memset(gradient + classes, 0, (size_t)(args->columns - classes) * sizeof *gradient);
}

void EK_ISA_NAME(cross_entropy_backward)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__loss_job *job = raw;
  const struct ek__loss_args *args = job->args;
  const int64_t classes = args->classes, columns = args->columns;
  const int32_t *targets = args->targets;
  const float *weights = args->class_weights, *row_scale = args->row_scale;
  for (int64_t row = begin; row < end; row++) {
    const value *x = (const value *)args->outputs + row * columns;
    value *gradient = (value *)args->gradient + row * columns;
    const double scale = job->factor * (row_scale ? (double)row_scale[row] : 1.0);
    if (args->soft) {
      soft_gradient(args, row, scale);
      continue;
    }
    if (targets[row] == args->ignore_index) {
      memset(gradient, 0, (size_t)columns * sizeof *gradient);
      continue;
    }
    const double own =
        (weights ? (double)weights[targets[row]] : 1.0) * (1.0 - args->label_smoothing) * scale;
    const double share = args->label_smoothing / (double)classes * scale;
    const struct normalizer all = ((const struct normalizer *)args->normalizer)[row];
    const double whole = own + share * job->class_weight; /* what the row's softmax is times */
    const struct slope slope = {all.m, (float)(whole / (double)all.z), (float)share, (float)own,
                                weights};
    row_gradient(gradient, x, classes, &slope, targets[row]);
    memset(gradient + classes, 0, (size_t)(columns - classes) * sizeof *gradient);
  }
}

/* Rows are read again while they are in the cache; several short ones, so that the gradient of one
 * does not wait for its logarithm. */
void EK_ISA_NAME(cross_entropy_gradient)(const void *raw, int64_t begin, int64_t end) {
  const int64_t classes = ((const struct ek__loss_job *)raw)->args->classes;
  const int64_t rows = classes < NEAR ? NEAR / (classes + 1) + 1 : 1;
  for (int64_t first = begin; first < end; first += rows) {
    const int64_t last = end - first < rows ? end : first + rows;
    EK_ISA_NAME(cross_entropy_forward)(raw, first, last);
    EK_ISA_NAME(cross_entropy_backward)(raw, first, last);
  }
}

/* log(1 + e^-abs(y)). Each lane by the C library: it costs more than the loop. */
static inline vec softness(vec y) {
  float x[W];
  v_store(x, y);
  for (int j = 0; j < W; j++) x[j] = log1pf(expf(-fabsf(x[j])));
  return v_load(x);
}

static inline vec logarithm(vec t) {
  float x[W];
  v_store(x, t);
  for (int j = 0; j < W; j++) x[j] = logf(x[j]);
  return v_load(x);
}

/* `kind` is a constant where this is inlined. A NaN stays one: v_min() and v_max() give the
 * second. */
static inline vec loss_of(const struct ek__loss_args *args, enum ek__element_loss kind, vec y,
                          vec t) {
  const vec d = y - t, none = {0};
  const float width = (float)args->width, steepness = (float)args->steepness;
  if (kind == EK__LOSS_SQUARED) return d * d;
  if (kind == EK__LOSS_DIVERGENCE) return v_choose(t == 0.0f, none, t * (logarithm(t) - y));
  if (kind == EK__LOSS_LOG_DIVERGENCE) {
    const vec p = x_exp(t);
    return v_choose(p == 0.0f, none, p * -d);
  }
  if (kind == EK__LOSS_BINARY) {
    const vec both = softness(y), loss = v_max(none, y) - y * t + both;
    return steepness == 1.0f ? loss : loss + (steepness - 1.0f) * t * (both + v_max(none, -y));
  }
  const vec size = v_max(d, -d);
  if (width == 0.0f) return steepness * size;
  const vec inner = v_min(size, v_set(width));
  return steepness * (inner * (size - 0.5f * inner) / width);
}

static inline vec slope_of(const struct ek__loss_args *args, enum ek__element_loss kind, vec y,
                           vec t) {
  const vec d = y - t;
  const float width = (float)args->width, steepness = (float)args->steepness;
  if (kind == EK__LOSS_SQUARED) return 2.0f * d;
  if (kind == EK__LOSS_DIVERGENCE) return -t;
  if (kind == EK__LOSS_LOG_DIVERGENCE) return -x_exp(t);
  if (kind == EK__LOSS_BINARY) {
    const vec slope = 1.0f / (1.0f + x_exp(-y)) - t;
    return steepness == 1.0f ? slope : slope - (steepness - 1.0f) * t / (1.0f + x_exp(y));
  }
  const vec sign = v_choose(d > 0.0f, v_set(1.0f), v_choose(d < 0.0f, v_set(-1.0f), d));
  if (width == 0.0f) return steepness * sign;
  const vec small = v_max(v_set(-1.0f), v_min(v_set(1.0f), d / width));
  return steepness * small;
}

/* w x, and 0 where w is: such an element does not count, whatever it is. */
static inline vec weighted(vec w, vec x) { return v_choose(w == 0.0f, (vec){0}, w * x); }

static inline __attribute__((always_inline)) void
sum_chunks(const struct ek__loss_job *job, enum ek__element_loss kind, int64_t begin, int64_t end) {
  const value *y = job->args->outputs, *target = job->args->targets, *weights = job->args->weights;
  float *losses = job->args->losses;
  const int64_t count = job->args->rows;
  for (int64_t index = begin; index < end; index++) {
    const int64_t first = index * job->chunk;
    const int64_t last = count - first < job->chunk ? count : first + job->chunk;
    double sum = 0.0, weight = weights ? 0.0 : (double)(last - first);
    for (int64_t i = first; i < last;) { /* f32 sums of at most BLOCK elements */
      const int64_t stop = last - i < BLOCK ? last : i + BLOCK;
      vec part = {0}, part_weight = {0};
      for (; i < stop; i += W) {
        const int64_t n = stop - i < W ? stop - i : W;
        vec l = loss_of(job->args, kind, x_get(y + i, n), x_get(target + i, n));
        if (weights) {
          const vec w = x_get(weights + i, n);
          l = weighted(w, l);
          part_weight += w;
        } else if (kind == EK__LOSS_BINARY || kind == EK__LOSS_LOG_DIVERGENCE) {
          l = v_first(n, l, v_set(0.0f)); /* of zeros it is not 0 */
        }
        part += l;
        if (losses) v_put(losses + i, l, n);
      }
      i = stop;
      sum += (double)v_sum(part);
      weight += (double)v_sum(part_weight);
    }
    job->partials[2 * index] = sum;
    job->partials[2 * index + 1] = weight;
  }
}

static inline __attribute__((always_inline)) void write_slopes(const struct ek__loss_job *job,
                                                               enum ek__element_loss kind,
                                                               int64_t begin, int64_t end) {
  const value *y = job->args->outputs, *target = job->args->targets, *weights = job->args->weights;
  const float *element_scale = job->args->row_scale;
  const float factor = (float)job->factor;
  value *gradient = job->args->gradient;
  V_EACH(begin, end, {
    vec slope = slope_of(job->args, kind, x_get(y + i, n), x_get(target + i, n)) * factor;
    if (weights) slope = weighted(x_get(weights + i, n), slope);
    x_put(gradient + i, element_scale ? slope * v_get(element_scale + i, n) : slope, n);
  });
}

#define FOR_EACH_KIND(function)                                                                    \
  const struct ek__loss_job *job = raw;                                                            \
  switch (job->args->kind) {                                                                       \
  case EK__LOSS_SQUARED: function(job, EK__LOSS_SQUARED, begin, end); break;                       \
  case EK__LOSS_HUBER: function(job, EK__LOSS_HUBER, begin, end); break;                           \
  case EK__LOSS_BINARY: function(job, EK__LOSS_BINARY, begin, end); break;                         \
  case EK__LOSS_DIVERGENCE: function(job, EK__LOSS_DIVERGENCE, begin, end); break;                 \
  case EK__LOSS_LOG_DIVERGENCE: function(job, EK__LOSS_LOG_DIVERGENCE, begin, end); break;         \
  }

void EK_ISA_NAME(element_loss_forward)(const void *raw, int64_t begin, int64_t end) {
  FOR_EACH_KIND(sum_chunks)
}

void EK_ISA_NAME(element_loss_backward)(const void *raw, int64_t begin, int64_t end) {
  FOR_EACH_KIND(write_slopes)
}
