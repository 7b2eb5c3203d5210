/*
 * ck_gpt.c - a reference for gpt.h: see ck_gpt.h. One sample at a time; x is [tokens, width].
 */
#include "ck_gpt.h"

struct reference {
  const ek_replica *replica;
  const ek_gpt_options *options;
  int64_t tokens, width;
  double *x, *branch, *wide; /* the residual stream, a branch of it, room for 4 x width */
};

static double *room(int64_t count) {
  double *array = calloc((size_t)count, sizeof *array);
  ck_assert_ptr_nonnull(array);
  return array;
}

/* A parameter's values; the caller frees them. */
static double *parameter(const struct reference *r, const char *prefix, const char *name) {
  char full[96];
  snprintf(full, sizeof full, "%s%s", prefix, name);
  CK_GOT(ek_parameter_info, info, ek_replica_find(&info, r->replica, full));
  double *values = room(ek_tensor_count(&info.value));
  ck_get(values, &info.value);
  return values;
}

static void layer_norm(const struct reference *r, double *y, const char *prefix, const char *name) {
  char weight_name[32], bias_name[32];
  snprintf(weight_name, sizeof weight_name, "%s.weight", name);
  snprintf(bias_name, sizeof bias_name, "%s.bias", name);
  double *weight = parameter(r, prefix, weight_name), *bias = parameter(r, prefix, bias_name);
  for (int64_t t = 0; t < r->tokens; t++) {
    const double *x = r->x + t * r->width;
    double mean = 0, variance = 0;
    for (int64_t c = 0; c < r->width; c++) mean += x[c] / (double)r->width;
    for (int64_t c = 0; c < r->width; c++) variance += (x[c] - mean) * (x[c] - mean);
    const double deviation = sqrt(variance / (double)r->width + 1e-5);
    for (int64_t c = 0; c < r->width; c++) {
      y[t * r->width + c] = (x[c] - mean) / deviation * weight[c] + bias[c];
    }
  }
  free(weight);
  free(bias);
}

static void linear(const struct reference *r, double *y, const double *x, const char *prefix,
                   const char *name, int64_t in, int64_t out) {
  char weight_name[48], bias_name[48];
  snprintf(weight_name, sizeof weight_name, "%s.weight", name);
  snprintf(bias_name, sizeof bias_name, "%s.bias", name);
  double *weight = parameter(r, prefix, weight_name), *bias = parameter(r, prefix, bias_name);
  for (int64_t t = 0; t < r->tokens; t++) {
    for (int64_t o = 0; o < out; o++) {
      double sum = bias[o];
      for (int64_t i = 0; i < in; i++) sum += weight[o * in + i] * x[t * in + i];
      y[t * out + o] = sum;
    }
  }
  free(weight);
  free(bias);
}

/* One query of one head: y = sum over earlier tokens of softmax(q k / sqrt(width of a head)) v. */
static void attend(const struct reference *r, double *y, const double *qkv, int64_t t,
                   int64_t head) {
  const int64_t size = r->width / r->options->heads, at = head * size, step = 3 * r->width;
  double *weight = room(t + 1), sum = 0;
  for (int64_t s = 0; s <= t; s++) {
    double score = 0;
    for (int64_t c = 0; c < size; c++) {
      score += qkv[t * step + at + c] * qkv[s * step + r->width + at + c];
    }
    weight[s] = exp(score / sqrt((double)size));
    sum += weight[s];
  }
  for (int64_t c = 0; c < size; c++) {
    y[at + c] = 0;
    for (int64_t s = 0; s <= t; s++) {
      y[at + c] += weight[s] / sum * qkv[s * step + 2 * r->width + at + c];
    }
  }
  free(weight);
}

static void add_to_stream(struct reference *r) {
  for (int64_t i = 0; i < r->tokens * r->width; i++) r->x[i] += r->branch[i];
}

static void block(struct reference *r, const char *prefix) {
  double *normal = room(r->tokens * r->width);
  layer_norm(r, normal, prefix, "ln_1");
  linear(r, r->wide, normal, prefix, "attention.qkv", r->width, 3 * r->width);
  for (int64_t t = 0; t < r->tokens; t++) {
    for (int64_t head = 0; head < r->options->heads; head++) {
      attend(r, normal + t * r->width, r->wide, t, head);
    }
  }
  linear(r, r->branch, normal, prefix, "attention.projection", r->width, r->width);
  add_to_stream(r);

  layer_norm(r, normal, prefix, "ln_2");
  linear(r, r->wide, normal, prefix, "expand", r->width, 4 * r->width);
  for (int64_t i = 0; i < r->tokens * 4 * r->width; i++) {
    const double x = r->wide[i];
    r->wide[i] = x / 2 * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
  }
  linear(r, r->branch, r->wide, prefix, "contract", 4 * r->width, r->width);
  add_to_stream(r);
  free(normal);
}

static void embed(struct reference *r, const double *index) {
  double *table = parameter(r, "", "tokens.weight"), *places = parameter(r, "", "tokens.positions");
  for (int64_t i = 0; i < r->tokens * r->width; i++) {
    const int64_t token = (int64_t)index[i / r->width];
    r->x[i] = table[token * r->width + i % r->width] + places[i];
  }
  free(table);
  free(places);
}

static void head(struct reference *r, double *logits) {
  const int64_t vocabulary = r->options->vocabulary;
  double *weight = parameter(r, "", "head.weight");
  layer_norm(r, r->branch, "", "norm");
  for (int64_t t = 0; t < r->tokens; t++) {
    for (int64_t o = 0; o < vocabulary; o++) {
      double sum = 0;
      for (int64_t c = 0; c < r->width; c++) {
        sum += weight[o * r->width + c] * r->branch[t * r->width + c];
      }
      logits[t * vocabulary + o] = sum;
    }
  }
  free(weight);
}

void ck_gpt_forward(double *logits, const ek_replica *replica, const ek_gpt_options *options,
                    const double *index, int64_t samples, int64_t tokens) {
  const int64_t width = options->width;
  struct reference r = {
      replica, options, tokens, width, room(tokens * width), room(tokens * width),
      room(4 * tokens * width)};
  for (int64_t s = 0; s < samples; s++) {
    embed(&r, index + s * tokens);
    for (int i = 0; i < options->layers; i++) {
      char prefix[32];
      snprintf(prefix, sizeof prefix, "blocks.%d.", i);
      block(&r, prefix);
    }
    head(&r, logits + s * tokens * options->vocabulary);
  }
  free(r.x);
  free(r.branch);
  free(r.wide);
}

ek_gpt_options ck_gpt_sizes(int64_t vocabulary, int64_t sequence, int64_t width, int layers,
                            int heads) {
  CK_WITH(ek_gpt_options, options, EK_GPT_OPTIONS_INIT, .vocabulary = vocabulary,
          .sequence = sequence, .width = width, .layers = layers, .heads = heads);
  return options;
}

void ck_gpt_tokens(int32_t *x, int32_t *y, int64_t count, int64_t vocabulary, int64_t classes,
                   uint64_t number) {
  struct ck_random random = ck_random_start(number);
  for (int64_t i = 0; i < count; i++) {
    x[i] = (int32_t)ck_random_integer(&random, 0, vocabulary - 1);
    y[i] = (int32_t)ck_random_integer(&random, -1, classes - 1);
  }
}
