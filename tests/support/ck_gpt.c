/*
 * ck_gpt.c - the formulas of gpt.h and llama.h in plain loops, one sample at a time: see ck_gpt.h.
 */
#include "ck_gpt.h"

struct reference {
  const struct ck_decoder *is;
  const ek_replica *replica;
  int64_t tokens;
  double *x; /* the residual stream, [tokens, width] */
};

static double *zeros(int64_t count) { return ck_array((size_t)count, sizeof(double)); }

static bool is_llama(const struct reference *r) { return r->is->theta != 0; }

/* Elements of a head, and of a token's q, k and v. */
static int64_t head_of(const struct reference *r) { return r->is->width / r->is->heads; }
static int64_t qkv_of(const struct reference *r) {
  return (r->is->heads + 2 * r->is->kv_heads) * head_of(r);
}

/* A parameter's values, which are kept; NULL if the replica has no such parameter. */
static const double *parameter(const struct reference *r, const char *prefix, const char *module,
                               const char *name) {
  ek_parameter_info info;
  const char *full = ck_text("%s%s.%s", prefix, module, name);
  if (ek_replica_find(&info, r->replica, full) != EK_OK) return NULL;
  double *values = zeros(ek_tensor_count(&info.value));
  ck_get(values, &info.value);
  return values;
}

/* Of the stream: a layer norm, or RMSNorm, which subtracts nothing. */
static const double *normal(const struct reference *r, const char *prefix, const char *module) {
  const double *weight = parameter(r, prefix, module, "weight");
  const double *bias = parameter(r, prefix, module, "bias");
  const int64_t width = r->is->width;
  double *y = zeros(r->tokens * width);
  for (int64_t t = 0; t < r->tokens; t++) {
    const double *x = r->x + t * width;
    double mean = 0, variance = 0;
    for (int64_t c = 0; c < width && !is_llama(r); c++) mean += x[c] / (double)width;
    for (int64_t c = 0; c < width; c++) variance += (x[c] - mean) * (x[c] - mean) / (double)width;
    for (int64_t c = 0; c < width; c++) {
      y[t * width + c] = (x[c] - mean) / sqrt(variance + 1e-5) * weight[c];
      if (!is_llama(r)) y[t * width + c] += bias[c];
    }
  }
  return y;
}

/* x W^T, and a bias if there is one. */
static double *product(const struct reference *r, const double *x, const char *prefix,
                       const char *module, int64_t in, int64_t out) {
  const double *weight = parameter(r, prefix, module, "weight");
  const double *bias = parameter(r, prefix, module, "bias");
  double *y = zeros(r->tokens * out);
  for (int64_t i = 0; i < r->tokens * out; i++) {
    y[i] = bias == NULL ? 0 : bias[i % out];
    for (int64_t k = 0; k < in; k++) y[i] += weight[i % out * in + k] * x[i / out * in + k];
  }
  return y;
}

/* Of each q and k the complex number of a pair times e^(i angle). */
static void turn(const struct reference *r, double *qkv) {
  const int64_t size = head_of(r), pairs = (r->is->heads + r->is->kv_heads) * size / 2;
  for (int64_t i = 0; i < r->tokens * pairs; i++) {
    const int64_t t = i / pairs, k = i % (size / 2);
    const double angle = (double)t * pow(r->is->theta, -2.0 * (double)k / (double)size);
    double *head = qkv + t * qkv_of(r) + i % pairs / (size / 2) * size;
    const double a = head[k], b = head[k + size / 2];
    head[k] = a * cos(angle) - b * sin(angle);
    head[k + size / 2] = b * cos(angle) + a * sin(angle);
  }
}

/* Each head of each token: the sum over earlier tokens of softmax(q k / sqrt(size)) v. */
static const double *attend(const struct reference *r, const double *qkv) {
  const int64_t size = head_of(r), step = qkv_of(r), heads = r->is->heads, kv = r->is->kv_heads;
  double *y = zeros(r->tokens * r->is->width), *weight = zeros(r->tokens);
  for (int64_t i = 0; i < r->tokens * heads; i++) {
    const int64_t t = i / heads, h = i % heads;
    const double *q = qkv + t * step + h * size, *k = qkv + (heads + h / (heads / kv)) * size;
    double sum = 0;
    for (int64_t s = 0; s <= t; s++) {
      double score = 0;
      for (int64_t c = 0; c < size; c++) score += q[c] * k[s * step + c];
      sum += weight[s] = exp(score / sqrt((double)size));
    }
    for (int64_t c = 0; c < size; c++) {
      for (int64_t s = 0; s <= t; s++) {
        y[i * size + c] += weight[s] / sum * k[kv * size + s * step + c];
      }
    }
  }
  return y;
}

static void add_to_stream(struct reference *r, const double *branch) {
  for (int64_t i = 0; i < r->tokens * r->is->width; i++) r->x[i] += branch[i];
}

static void block(struct reference *r, const char *prefix) {
  const bool llama = is_llama(r);
  const int64_t width = r->is->width, hidden = r->is->hidden;
  const double *x = normal(r, prefix, llama ? "attention_norm" : "ln_1");
  double *qkv = product(r, x, prefix, "attention.qkv", width, qkv_of(r));
  if (llama) turn(r, qkv);
  add_to_stream(r, product(r, attend(r, qkv), prefix, "attention.projection", width, width));

  x = normal(r, prefix, llama ? "feed_forward_norm" : "ln_2");
  double *h = product(r, x, prefix, llama ? "feed_forward.gate" : "expand", width, hidden);
  const double *up = llama ? product(r, x, prefix, "feed_forward.up", width, hidden) : NULL;
  for (int64_t i = 0; i < r->tokens * hidden; i++) {
    h[i] = llama ? h[i] / (1 + exp(-h[i])) * up[i] : (double)ck_gelu(h[i]);
  }
  add_to_stream(r, product(r, h, prefix, llama ? "feed_forward.down" : "contract", hidden, width));
}

double *ck_decoder_logits(const struct ck_decoder *is, const ek_replica *replica,
                          const double *index, int64_t samples, int64_t tokens) {
  const int64_t width = is->width, each = tokens * is->vocabulary;
  struct reference r = {is, replica, tokens, zeros(tokens * width)};
  const double *table = parameter(&r, "", "tokens", "weight");
  const double *places = parameter(&r, "", "tokens", "positions");
  double *logits = zeros(samples * each);
  for (int64_t s = 0; s < samples; s++, index += tokens) {
    for (int64_t i = 0; i < tokens * width; i++) {
      r.x[i] = table[(int64_t)index[i / width] * width + i % width];
      if (places != NULL) r.x[i] += places[i];
    }
    for (int i = 0; i < is->layers; i++) block(&r, ck_text("blocks.%d.", i));
    const double *last = product(&r, normal(&r, "", "norm"), "", "head", width, is->vocabulary);
    memcpy(logits + s * each, last, (size_t)each * sizeof *last);
  }
  return logits;
}

ek_gpt_options ck_gpt_sizes(int64_t vocabulary, int64_t sequence, int64_t width, int layers,
                            int heads) {
  CK_WITH(ek_gpt_options, options, EK_GPT_OPTIONS_INIT, .vocabulary = vocabulary,
          .sequence = sequence, .width = width, .layers = layers, .heads = heads);
  return options;
}

struct ck_gpt_batch ck_gpt_batch(int64_t samples, int64_t sequence, int64_t vocabulary,
                                 int64_t classes, uint64_t number) {
  const size_t count = (size_t)(samples * sequence);
  struct ck_gpt_batch b = {ck_array(count, sizeof *b.x), ck_array(count, sizeof *b.y), {0}, {0}};
  struct ck_random random = ck_random_start(number);
  for (size_t i = 0; i < count; i++) {
    b.x[i] = (int32_t)ck_random_integer(&random, 0, vocabulary - 1);
    b.y[i] = (int32_t)ck_random_integer(&random, -1, classes - 1);
  }
  ck_ok(ek_tensor_host(&b.input, b.x, EK_I32, CK_SHAPE(samples, sequence)));
  ck_ok(ek_tensor_host(&b.target, b.y, EK_I32, CK_SHAPE(samples, sequence)));
  return b;
}
