/*
 * isa_updates.c - optimizer updates and sums over flat ranges. All are bound by memory, so each
 * does its work in one pass; the pass that writes the parameters also writes the copy that layers
 * see.
 */
#include "backend/cpu/isa/isa.h"

#include <math.h>

/*
 * Where a gradient becomes 0 and stays 0, as that of a rare token's row, its moments shrink by a
 * constant factor until they are below the smallest normal number. There they would stay, because
 * 0.9 of four units rounds to four, and there most processors take several times as long. So what
 * an update computes below it is 0 (docs/numerics.md). What it reads there is taken as it is, which
 * the conversion of f16 needs. Gives what end_flush() sets again.
 */
static inline unsigned begin_flush(void) {
#if defined(__SSE2__)
  const unsigned mode = _mm_getcsr();
  _mm_setcsr(mode | _MM_FLUSH_ZERO_ON);
  return mode;
#else
  return 0;
#endif
}

static inline void end_flush(unsigned mode) {
#if defined(__SSE2__)
  _mm_setcsr(mode);
#else
  (void)mode;
#endif
}

static inline vec gradient_at(const struct ek__update_args *args, int64_t i, int64_t n) {
  return args->g_is_value ? x_get((const value *)args->g + i, n)
                          : v_get((const float *)args->g + i, n);
}

void EK_ISA_NAME(sgd)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__update_job *job = raw;
  const struct ek__update_args *args = job->args;
  float *p = args->p, *buffer = args->momentum != 0.0 ? args->state0 : NULL;
  value *copy = args->copy;
  const float factor = (float)job->factor, decay = (float)args->weight_decay;
  const float rate = (float)args->learning_rate, momentum = (float)args->momentum;
  const float taken = (float)(1.0 - args->dampening);
  const unsigned mode = begin_flush();
  V_EACH(begin, end, {
    const vec old = v_get(p + i, n);
    vec g = gradient_at(args, i, n) * factor + old * decay;
    if (buffer) {
      const vec b = args->first ? g : v_get(buffer + i, n) * momentum + g * taken;
      v_put(buffer + i, b, n);
      g = args->nesterov ? g + b * momentum : b;
    }
    const vec next = old - g * rate;
    v_put(p + i, next, n);
    if (copy) x_put(copy + i, next, n);
  });
  end_flush(mode);
}

struct adam {
  float factor, beta1, beta2, rest1, rest2;
  float rate;          /* learning rate / correction1 */
  float root;          /* 1 / sqrt(correction2) */
  float epsilon, keep; /* keep: 1 - learning rate * decay if decoupled, else 1 */
  float decay;         /* added to the gradient: 0 if decoupled */
};

/* Writes m, v and p, and gives p. */
static inline vec adam_step(const struct adam *adam, float *p, float *m, float *v, vec g, int64_t n,
                            bool first) {
  v_fetch(p);
  v_fetch(m);
  v_fetch(v);
  const vec old = v_get(p, n);
  vec gradient = g * adam->factor;
  if (adam->decay != 0.0f) gradient += old * adam->decay;
  vec mean = gradient * adam->rest1, square = gradient * gradient * adam->rest2;
  if (!first) {
    mean += v_get(m, n) * adam->beta1;
    square += v_get(v, n) * adam->beta2;
  }
  v_put(m, mean, n);
  v_put(v, square, n);
  const vec step = mean * adam->rate / (v_sqrt(square) * adam->root + adam->epsilon);
  const vec next = old * adam->keep - step;
  v_put(p, next, n);
  return next;
}

void EK_ISA_NAME(adamw)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__update_job *job = raw;
  const struct ek__update_args *args = job->args;
  const size_t g_size = args->g_is_value ? sizeof(value) : sizeof(float);
  const double keep = args->decoupled ? 1.0 - args->learning_rate * args->weight_decay : 1.0;
  const struct adam adam = {.factor = (float)job->factor,
                            .beta1 = (float)args->beta1,
                            .beta2 = (float)args->beta2,
                            .rest1 = (float)(1.0 - args->beta1),
                            .rest2 = (float)(1.0 - args->beta2),
                            .rate = (float)(args->learning_rate / args->correction1),
                            .root = (float)(1.0 / sqrt(args->correction2)),
                            .epsilon = (float)args->epsilon,
                            .keep = (float)keep,
                            .decay = args->decoupled ? 0.0f : (float)args->weight_decay};
  float *p = args->p, *m = args->state0, *v = args->state1;
  value *copy = args->copy;
  const unsigned mode = begin_flush();
  int64_t i = begin;
  if (copy) { /* two vectors at a time, for the sake of the copy */
    for (; i + 2 * W <= end; i += 2 * W) {
      struct pair next;
      X_BOTH({
        const int64_t at = i + j * W;
        __builtin_prefetch((const char *)args->g + g_size * (size_t)(at + EK_AHEAD));
        next.of[j] =
            adam_step(&adam, p + at, m + at, v + at, gradient_at(args, at, W), W, args->first);
      });
      x_put_ordered(copy + i, next, 2 * W);
    }
  }
  for (; i < end; i += W) {
    const int64_t n = end - i < W ? end - i : W;
    __builtin_prefetch((const char *)args->g + g_size * (size_t)(i + EK_AHEAD));
    const vec g = gradient_at(args, i, n);
    const vec next = adam_step(&adam, p + i, m + i, v + i, g, n, args->first);
    if (copy) x_put(copy + i, next, n);
  }
  end_flush(mode);
}

void EK_ISA_NAME(square_norm)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__norm_job *job = raw;
  const value *x = job->x;
  for (int64_t index = begin; index < end; index++) {
    const int64_t first = index * job->chunk;
    const int64_t last = job->count - first < job->chunk ? job->count : first + job->chunk;
    vec_d sum0 = {0}, sum1 = {0};
    double rest = 0.0;
    int64_t i = first;
    for (; i + W <= last; i += W) {
      x_fetch(x + i);
      vec_d a, b;
      v_widen(x_load(x + i), &a, &b);
      sum0 += a * a;
      sum1 += b * b;
    }
    for (; i < last; i++) rest += (double)x_one(x + i) * (double)x_one(x + i);
    job->partials[index] = v_sum_d(sum0 + sum1) + rest;
  }
}

/* All destinations get every sum while it is in a register; one pass over every source. */
void EK_ISA_NAME(reduce)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__reduce_args *args = raw;
  const value *const *sources = (const value *const *)args->sources;
  value *const *destinations = (value *const *)args->destinations;
  int64_t i = begin;
  for (; i + 4 * W <= end; i += 4 * W) {
    struct pair sum[2] = {{{{0}}}};
    for (size_t s = 0; s < args->source_count; s++) {
      for (int k = 0; k < 2; k++) {
        const value *source = sources[s] + i + k * 2 * W;
        x_fetch(source);
        x_fetch(source + W);
        const struct pair v = x_load_pair(source);
        X_BOTH(sum[k].of[j] = s == 0 ? v.of[j] : sum[k].of[j] + v.of[j]);
      }
    }
    for (size_t d = 0; d < args->destination_count; d++) {
      for (int k = 0; k < 2; k++) x_store_pair(destinations[d] + i + k * 2 * W, sum[k]);
    }
  }
  for (; i < end; i++) {
    float sum = args->source_count > 0 ? x_one(sources[0] + i) : 0.0f;
    for (size_t s = 1; s < args->source_count; s++) sum += x_one(sources[s] + i);
    for (size_t d = 0; d < args->destination_count; d++) x_set(destinations[d] + i, sum);
  }
}
