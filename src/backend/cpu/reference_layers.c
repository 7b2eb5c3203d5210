/*
 * reference_layers.c - f64 layer normalisation, lookups, attention and matrix products in plain C.
 */
#include "backend/cpu/reference.h"

#include <math.h>
#include <string.h>

/* ---- layer normalisation ---- */

void ek__layer_norm_forward_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__layer_norm_args *args = raw;
  const int64_t width = args->width;
  const double *gamma = args->gamma, *beta = args->beta;
  for (int64_t row = begin; row < end; row++) {
    const double *x = (const double *)args->x + row * width;
    double *y = (double *)args->y + row * width;
    double mean = 0.0, variance = 0.0;
    if (args->residual) {
      const double *residual = (const double *)args->residual + row * width;
      double *sum = (double *)args->sum + row * width;
      for (int64_t i = 0; i < width; i++) sum[i] = x[i] + residual[i];
      x = sum;
    }
    for (int64_t i = 0; args->mean && i < width; i++) mean += x[i];
    mean /= (double)width;
    for (int64_t i = 0; i < width; i++) variance += (x[i] - mean) * (x[i] - mean);
    const double rstd = 1.0 / sqrt(variance / (double)width + args->epsilon);
    for (int64_t i = 0; i < width; i++) {
      y[i] = (x[i] - mean) * rstd * gamma[i] + (beta != NULL ? beta[i] : 0.0);
    }
    if (args->mean) ((double *)args->mean)[row] = mean;
    ((double *)args->rstd)[row] = rstd;
  }
}

/* Without means they are 0. */
static double norm_mean(const struct ek__layer_norm_args *args, int64_t row) {
  return args->mean ? ((const double *)args->mean)[row] : 0.0;
}

/* Adds row `row` of dy n and dy to columns begin .. end - 1. */
static void add_norm_columns(const struct ek__layer_norm_args *args, int64_t row, int64_t begin,
                             int64_t end) {
  const double *dy = (const double *)args->dy + row * args->width;
  const double *x = (const double *)args->x + row * args->width;
  const double mean = norm_mean(args, row), rstd = ((const double *)args->rstd)[row];
  double *dgamma = args->dgamma, *dbeta = args->dbeta;
  for (int64_t i = begin; i < end; i++) {
    if (dgamma != NULL) dgamma[i] += dy[i] * (x[i] - mean) * rstd;
    if (dbeta != NULL) dbeta[i] += dy[i];
  }
}

static void norm_dx(const struct ek__layer_norm_args *args, int64_t row) {
  const int64_t width = args->width;
  const double *dy = (const double *)args->dy + row * width;
  const double *x = (const double *)args->x + row * width, *gamma = args->gamma;
  const double mean = norm_mean(args, row), rstd = ((const double *)args->rstd)[row];
  const double *residual = args->residual ? (const double *)args->residual + row * width : NULL;
  double *dx = (double *)args->dx + row * width;
  double average_g = 0.0, average_gn = 0.0;
  for (int64_t i = 0; i < width; i++) {
    if (args->mean) average_g += dy[i] * gamma[i];
    average_gn += dy[i] * gamma[i] * (x[i] - mean) * rstd;
  }
  average_g /= (double)width;
  average_gn /= (double)width;
  for (int64_t i = 0; i < width; i++) {
    const double n = (x[i] - mean) * rstd;
    const double value = rstd * (dy[i] * gamma[i] - average_g - n * average_gn);
    dx[i] = residual ? residual[i] + value : value;
  }
}

void ek__layer_norm_backward_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__layer_norm_job *job = raw;
  for (int64_t row = begin; row < end; row++) {
    if (job->add_columns) add_norm_columns(job->args, row, 0, job->args->width);
    if (job->args->dx) norm_dx(job->args, row);
  }
}

void ek__layer_norm_columns_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__layer_norm_args *args = raw;
  for (int64_t row = 0; row < args->rows; row++) add_norm_columns(args, row, begin, end);
}

/* ---- lookups ---- */

void ek__lookup_forward_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__lookup_args *args = raw;
  const double *table = args->table, *positions = args->positions;
  double *y = args->y;
  for (int64_t row = begin; row < end; row++) {
    for (int64_t i = 0; i < args->width; i++) {
      const double value = table[args->index[row] * args->width + i];
      y[row * args->width + i] =
          positions ? value + positions[row % args->period * args->width + i] : value;
    }
  }
}

void ek__lookup_backward_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__lookup_args *args = raw;
  const double *dy = args->table;
  double *dtable = args->y;
  for (int64_t row = 0; row < args->rows; row++) {
    for (int64_t i = begin; i < end; i++) {
      dtable[args->index[row] * args->width + i] += dy[row * args->width + i];
    }
  }
}

void ek__positions_backward_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__lookup_args *args = raw;
  const double *dy = args->table;
  for (int64_t position = begin; position < end; position++) {
    double *y = (double *)args->y + position * args->width;
    for (int64_t i = 0; i < args->width; i++) {
      double sum = 0.0;
      for (int64_t row = position; row < args->rows; row += args->period) {
        sum += dy[row * args->width + i];
      }
      y[i] = args->beta == 0.0 ? sum : args->beta * y[i] + sum;
    }
  }
}

/* ---- rotary positions ---- */

void ek__rotary_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__rotary_args *args = raw;
  const int64_t pairs = args->head_width / 2;
  for (int64_t row = 0; row < args->samples * args->tokens; row++) {
    const int64_t token = row % args->tokens;
    const int64_t position = args->positions != NULL ? args->positions[row] : token;
    if (token < begin || token >= end) continue;
    double *x = (double *)args->x + row * args->columns;
    for (int64_t i = 0; i < pairs; i++) {
      const double turns = (double)position * args->turns[i];
      const double angle = 6.283185307179586476925286766559 * (turns - rint(turns));
      for (int64_t head = 0; head < args->heads; head++) {
        double *a = x + head * args->head_width + i, *b = a + pairs;
        const double turned = *a * cos(angle) - *b * sin(angle);
        *b = *a * sin(angle) + *b * cos(angle);
        *a = turned;
      }
    }
  }
}

/* ---- attention: every score is computed where it is needed, none is kept ---- */

struct head {
  const double *q, *k, *v, *dout;
  double *dq, *dk, *dv, *out, *lse;
  int64_t sample, number, out_step;
  double scale;
  const struct ek__attention_args *args;
};

static struct head head_of(const struct ek__attention_args *args, int64_t index) {
  const int64_t sample = index / args->heads, number = index % args->heads;
  const int64_t width = args->head_width, row = sample * args->tokens;
  const int64_t kv = number / (args->heads / args->kv_heads) * width;
  const int64_t out_step = args->heads * width, at = row * out_step + number * width;
  const int64_t q = row * args->q_step + number * width;
  const int64_t k = row * args->k_step + kv, v = row * args->v_step + kv;
  struct head head = {.sample = sample, .number = number, .out_step = out_step, .args = args};
  head.scale = 1.0 / sqrt((double)width);
  head.q = (const double *)args->q + q;
  head.k = (const double *)args->k + k;
  head.v = (const double *)args->v + v;
  head.out = (double *)args->out + at;
  head.lse = (double *)args->lse + index * args->tokens;
  if (args->dq) {
    head.dq = (double *)args->dq + q;
    head.dk = (double *)args->dk + k;
    head.dv = (double *)args->dv + v;
    head.dout = (const double *)args->dout + at;
  }
  return head;
}

/* The keys that query i sees: those from first on before last. */
struct span {
  int64_t first, last;
};

static struct span seen_by(const struct head *head, int64_t i) {
  const struct ek__attention_args *args = head->args;
  struct span span = {0, args->tokens};
  if (args->ranges) {
    const int32_t *range = args->ranges + 2 * (head->sample * args->tokens + i);
    span = (struct span){range[0], range[1]};
  }
  if (args->causal && span.last > i + 1) span.last = i + 1;
  return span;
}

/* What dropout makes of probability i, j: 0 or 1 / (1 - p). */
static double kept(const struct head *head, int64_t i, int64_t j) {
  const struct ek__attention_args *args = head->args;
  uint32_t bits[4];
  if (args->dropout == 0) return 1;
  const int64_t row = head->number * args->tokens + i;
  ek_random_bits(args->key, (uint32_t)(args->first_sample + head->sample),
                 (uint32_t)(row * ((args->tokens + 3) / 4) + j / 4), bits);
  return (double)ek_random_unit(bits[j % 4]) >= args->dropout ? 1 / (1 - args->dropout) : 0;
}

static double dot(const double *a, const double *b, int64_t n) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
  return sum;
}

static void add_times(double *y, double factor, const double *x, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] += factor * x[i];
}

static double score(const struct head *head, int64_t i, int64_t j) {
  const struct ek__attention_args *args = head->args;
  return head->scale *
         dot(head->q + i * args->q_step, head->k + j * args->k_step, args->head_width);
}

static void attend_token(const struct head *head, int64_t i) {
  const int64_t width = head->args->head_width;
  const struct span span = seen_by(head, i);
  double largest = -INFINITY, sum = 0.0;
  for (int64_t j = span.first; j < span.last; j++) largest = fmax(largest, score(head, i, j));
  double *out = head->out + i * head->out_step;
  memset(out, 0, (size_t)width * sizeof *out);
  head->lse[i] = 0;
  if (span.first >= span.last) return;
  for (int64_t j = span.first; j < span.last; j++) {
    const double e = exp(score(head, i, j) - largest);
    sum += e;
    add_times(out, e * kept(head, i, j), head->v + j * head->args->v_step, width);
  }
  for (int64_t c = 0; c < width; c++) out[c] /= sum;
  head->lse[i] = largest + log(sum);
}

void ek__attention_forward_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__attention_job *job = raw;
  for (int64_t index = begin; index < end; index++) {
    const struct head head = head_of(job->args, index);
    for (int64_t i = 0; i < job->args->tokens; i++) attend_token(&head, i);
  }
}

static void attend_token_backward(const struct head *head, int64_t i) {
  const struct ek__attention_args *args = head->args;
  const int64_t width = args->head_width;
  const double *dout = head->dout + i * head->out_step;
  const double delta = dot(dout, head->out + i * head->out_step, width);
  const struct span span = seen_by(head, i);
  for (int64_t j = span.first; j < span.last; j++) {
    const double p = exp(score(head, i, j) - head->lse[i]), keep = kept(head, i, j);
    const double dp = keep * dot(dout, head->v + j * args->v_step, width);
    const double ds = p * (dp - delta) * head->scale;
    add_times(head->dv + j * args->v_step, p * keep, dout, width);
    add_times(head->dk + j * args->k_step, ds, head->q + i * args->q_step, width);
    add_times(head->dq + i * args->q_step, ds, head->k + j * args->k_step, width);
  }
}

/* Of a range of the heads of keys: their gradients are added up over the queries' heads. */
void ek__attention_backward_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__attention_job *job = raw;
  const struct ek__attention_args *args = job->args;
  const int64_t group = args->heads / args->kv_heads;
  const size_t bytes = (size_t)args->head_width * sizeof(double);
  for (int64_t index = begin * group; index < end * group; index++) {
    const struct head head = head_of(args, index);
    for (int64_t i = 0; i < args->tokens; i++) {
      memset(head.dq + i * args->q_step, 0, bytes);
      if (index % group != 0) continue;
      memset(head.dk + i * args->k_step, 0, bytes);
      memset(head.dv + i * args->v_step, 0, bytes);
    }
    for (int64_t i = 0; i < args->tokens; i++) attend_token_backward(&head, i);
  }
}

/* ---- matrix products ---- */

#define BLOCK 64

/* A row of c += factor b, in the order of the steps: four of them each time that c is read. */
static void add_steps(double *c, int64_t n, const double *factor, const double *b, int64_t ldb,
                      int64_t steps) {
  int64_t p = 0;
  for (; p + 4 <= steps; p += 4) {
    const double *b0 = b + p * ldb, *b1 = b0 + ldb, *b2 = b1 + ldb, *b3 = b2 + ldb;
    const double f0 = factor[p], f1 = factor[p + 1], f2 = factor[p + 2], f3 = factor[p + 3];
    for (int64_t j = 0; j < n; j++) c[j] = c[j] + f0 * b0[j] + f1 * b1[j] + f2 * b2[j] + f3 * b3[j];
  }
  for (; p < steps; p++) {
    for (int64_t j = 0; j < n; j++) c[j] += factor[p] * b[p * ldb + j];
  }
}

/* The same of b transposed: four columns of c beside each other. */
static void add_steps_transposed(double *c, int64_t n, const double *factor, const double *b,
                                 int64_t ldb, int64_t steps) {
  int64_t j = 0;
  for (; j + 4 <= n; j += 4) {
    const double *b0 = b + j * ldb, *b1 = b0 + ldb, *b2 = b1 + ldb, *b3 = b2 + ldb;
    double c0 = c[j], c1 = c[j + 1], c2 = c[j + 2], c3 = c[j + 3];
    for (int64_t p = 0; p < steps; p++) {
      const double f = factor[p];
      c0 += f * b0[p], c1 += f * b1[p], c2 += f * b2[p], c3 += f * b3[p];
    }
    c[j] = c0, c[j + 1] = c1, c[j + 2] = c2, c[j + 3] = c3;
  }
  for (; j < n; j++) {
    double sum = c[j];
    for (int64_t p = 0; p < steps; p++) sum += factor[p] * b[j * ldb + p];
    c[j] = sum;
  }
}

/* c += alpha a' b' for `steps` of k, from `first` on. */
static void add_products(const struct ek__gemm *g, int64_t begin, int64_t end, int64_t first,
                         int64_t steps) {
  const double *a = g->a, *b = g->b;
  double factor[BLOCK];
  for (int64_t i = begin; i < end; i++) {
    double *c = (double *)g->c + i * g->ldc;
    for (int64_t p = 0; p < steps; p++) {
      const int64_t k = first + p;
      factor[p] = g->alpha * (g->transpose_a ? a[k * g->lda + i] : a[i * g->lda + k]);
    }
    if (g->transpose_b) {
      add_steps_transposed(c, g->n, factor, b + first, g->ldb, steps);
    } else {
      add_steps(c, g->n, factor, b + first * g->ldb, g->ldb, steps);
    }
  }
}

void ek__product_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__gemm *g = raw;
  for (int64_t i = begin; i < end; i++) {
    double *c = (double *)g->c + i * g->ldc;
    for (int64_t j = 0; j < g->n; j++) c[j] = g->beta == 0.0 ? 0.0 : g->beta * c[j];
  }
  for (int64_t p = 0; p < g->k; p += BLOCK) {
    add_products(g, begin, end, p, BLOCK < g->k - p ? BLOCK : g->k - p);
  }
}
