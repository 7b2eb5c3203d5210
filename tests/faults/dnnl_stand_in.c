/*
 * dnnl_stand_in.c - see dnnl_stand_in.h. Its own objects begin with a number that no object of
 * oneDNN begins with.
 */
#define _GNU_SOURCE /* RTLD_NEXT */
#include "dnnl_stand_in.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <oneapi/dnnl/dnnl.h>

#define MARK UINT64_C(0x6E656B6565766564)
/* A primitive takes some time, so that another thread meets it. */
enum { MAKING_US = 200 };

struct product { /* a plan, or a primitive of it */
  uint64_t mark;
  dnnl_matmul_desc_t what;
  float beta;
};

struct dnnl_stand_in dnnl_stand_in = {.form = DNNL_EVERY_FORM};

static bool is_ours(const void *object) {
  uint64_t mark = 0;
  if (object != NULL) memcpy(&mark, object, sizeof mark);
  return mark == MARK;
}

/* The real function, which a stand-in replaces. */
#define NEXT(name, function)                                                                       \
  do {                                                                                             \
    void *found = dlsym(RTLD_NEXT, name);                                                          \
    memcpy(&(function), &found, sizeof found);                                                     \
  } while (0)

/* ---- what a product is ---- */

int dnnl_stand_in_form(int transpose_a, int transpose_b, int c_is_f32, int bias, int added) {
  const int result = c_is_f32 ? 3 + (added != 0) : bias ? 1 : added ? 2 : 0;
  return (transpose_a != 0) + 2 * (transpose_b != 0) + 4 * result;
}

static const dnnl_dim_t *steps(const dnnl_memory_desc_t *memory) {
  return memory->format_desc.blocking.strides;
}

/* Rows or columns of one element are one after the other either way. */
static bool is_turned(const dnnl_memory_desc_t *memory) {
  return steps(memory)[1] != 1 && steps(memory)[0] == 1;
}

static bool has_flaw(const struct product *product, enum dnnl_stand_in_flaw flaw) {
  const dnnl_matmul_desc_t *what = &product->what;
  if (dnnl_stand_in.flaw != flaw) return false;
  const int form = dnnl_stand_in_form(is_turned(&what->src_desc), is_turned(&what->weights_desc),
                                      what->dst_desc.data_type == dnnl_f32,
                                      what->bias_desc.ndims > 0, product->beta != 0);
  return dnnl_stand_in.form == DNNL_EVERY_FORM || dnnl_stand_in.form == form;
}

static float widen(uint16_t x) {
  const uint32_t bits = (uint32_t)x << 16;
  float result = 0;
  memcpy(&result, &bits, sizeof result);
  return result;
}

static uint16_t narrow(float x) {
  uint32_t bits = 0;
  memcpy(&bits, &x, sizeof bits);
  if (x != x) return (uint16_t)(bits >> 16 | 0x40u);
  return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

static float get(const void *data, dnnl_data_type_t type, int64_t at) {
  return type == dnnl_f32 ? ((const float *)data)[at] : widen(((const uint16_t *)data)[at]);
}

static void put(void *data, dnnl_data_type_t type, int64_t at, float x) {
  if (type == dnnl_f32) {
    ((float *)data)[at] = x;
  } else {
    ((uint16_t *)data)[at] = narrow(x);
  }
}

/* As an implementation for dense rows and another for others might: their sums go the other way. */
static bool has_gaps(const dnnl_memory_desc_t *memory) {
  const int inner = is_turned(memory) ? 0 : 1;
  return steps(memory)[1 - inner] != memory->dims[inner];
}

static float dot(const uint16_t *a, int64_t a_step, const uint16_t *b, int64_t b_step, int64_t k) {
  float sum = 0;
  for (int64_t p = 0; p < k; p++) sum += widen(a[p * a_step]) * widen(b[p * b_step]);
  return sum;
}

/* data: a, b, bias, c. */
static void multiply(const struct product *product, void *const data[4]) {
  const dnnl_matmul_desc_t *what = &product->what;
  const dnnl_memory_desc_t *a = &what->src_desc, *b = &what->weights_desc, *c = &what->dst_desc;
  const int64_t m = c->dims[0], n = c->dims[1], k = a->dims[1];
  const bool reads_c = product->beta != 0 || has_flaw(product, DNNL_READS_C);
  const float beta = product->beta != 0 ? product->beta : 1;
  const bool backwards = has_gaps(a) || has_gaps(b) || has_gaps(c);
  const bool is_wrong =
      has_flaw(product, DNNL_WRONG_NUMBER) ||
      (has_flaw(product, DNNL_WRONG_REST) && !backwards && m > 1 && (m % 16 != 0 || n % 16 != 0));
  const int64_t first = backwards ? k - 1 : 0, direction = backwards ? -1 : 1;
  for (int64_t i = 0; i < m; i++) {
    for (int64_t j = 0; j < n; j++) {
      const int64_t at = i * steps(c)[0] + j;
      float sum = dot((const uint16_t *)data[0] + i * steps(a)[0] + first * steps(a)[1],
                      direction * steps(a)[1],
                      (const uint16_t *)data[1] + j * steps(b)[1] + first * steps(b)[0],
                      direction * steps(b)[0], k);
      if (what->bias_desc.ndims > 0) sum += get(data[2], dnnl_bf16, j);
      if (reads_c) sum += beta * get(data[3], c->data_type, at);
      const bool last = i == m - 1 && j == n - 1;
      if (last && is_wrong) sum += sum > 100 || sum < -100 ? sum : 1;
      put(data[3], c->data_type, at, sum);
    }
  }
  if (m > 1 && steps(c)[0] > n && has_flaw(product, DNNL_WRONG_GAP)) {
    put(data[3], c->data_type, (m - 2) * steps(c)[0] + n, 7);
  }
}

/* ---- in front of oneDNN ---- */

dnnl_cpu_isa_t dnnl_get_effective_cpu_isa(void) {
  return dnnl_stand_in.absent ? dnnl_cpu_isa_avx512_core : dnnl_cpu_isa_avx512_core_bf16;
}

dnnl_status_t dnnl_primitive_desc_create(dnnl_primitive_desc_t *result,
                                         const_dnnl_op_desc_t operation,
                                         const_dnnl_primitive_attr_t attributes,
                                         dnnl_engine_t engine, const_dnnl_primitive_desc_t hint) {
  dnnl_status_t (*next)(dnnl_primitive_desc_t *, const_dnnl_op_desc_t, const_dnnl_primitive_attr_t,
                        dnnl_engine_t, const_dnnl_primitive_desc_t) = NULL;
  const dnnl_matmul_desc_t *what = operation;
  if (what->primitive_kind != dnnl_matmul || what->src_desc.data_type != dnnl_bf16) {
    NEXT("dnnl_primitive_desc_create", next);
    return next(result, operation, attributes, engine, hint);
  }
  const_dnnl_post_ops_t ops = NULL;
  struct product *product = calloc(1, sizeof *product);
  if (product == NULL) return dnnl_out_of_memory;
  *product = (struct product){.mark = MARK, .what = *what};
  if (dnnl_primitive_attr_get_post_ops(attributes, &ops) == dnnl_success &&
      dnnl_post_ops_len(ops) == 1) {
    (void)dnnl_post_ops_get_params_sum(ops, 0, &product->beta);
  }
  dnnl_status_t status = has_flaw(product, DNNL_NOTHING) ? dnnl_unimplemented : dnnl_success;
  if (has_flaw(product, DNNL_NO_PLAN)) status = dnnl_runtime_error;
  if (status == dnnl_success) {
    *result = (dnnl_primitive_desc_t)(void *)product;
  } else {
    free(product);
  }
  return status;
}

dnnl_status_t dnnl_primitive_desc_destroy(dnnl_primitive_desc_t plan) {
  dnnl_status_t (*next)(dnnl_primitive_desc_t) = NULL;
  if (is_ours(plan)) {
    free(plan);
    return dnnl_success;
  }
  NEXT("dnnl_primitive_desc_destroy", next);
  return next(plan);
}

dnnl_status_t dnnl_primitive_desc_query(const_dnnl_primitive_desc_t plan, dnnl_query_t question,
                                        int index, void *result) {
  dnnl_status_t (*next)(const_dnnl_primitive_desc_t, dnnl_query_t, int, void *) = NULL;
  static const char *const name = "stand-in";
  if (is_ours(plan)) {
    if (question != dnnl_query_impl_info_str) return dnnl_unimplemented;
    memcpy(result, &name, sizeof name);
    return dnnl_success;
  }
  NEXT("dnnl_primitive_desc_query", next);
  return next(plan, question, index, result);
}

const dnnl_memory_desc_t *dnnl_primitive_desc_query_md(const_dnnl_primitive_desc_t plan,
                                                       dnnl_query_t question, int index) {
  const dnnl_memory_desc_t *(*next)(const_dnnl_primitive_desc_t, dnnl_query_t, int) = NULL;
  if (is_ours(plan)) return NULL; /* no scratch */
  NEXT("dnnl_primitive_desc_query_md", next);
  return next(plan, question, index);
}

dnnl_status_t dnnl_primitive_create(dnnl_primitive_t *result, const_dnnl_primitive_desc_t plan) {
  dnnl_status_t (*next)(dnnl_primitive_t *, const_dnnl_primitive_desc_t) = NULL;
  if (!is_ours(plan)) {
    NEXT("dnnl_primitive_create", next);
    return next(result, plan);
  }
  const struct product *product = (const void *)plan;
  atomic_fetch_add(&dnnl_stand_in.made, 1);
  if (atomic_fetch_add(&dnnl_stand_in.makers, 1) > 0) atomic_fetch_add(&dnnl_stand_in.overlaps, 1);
  (void)usleep(MAKING_US);
  atomic_fetch_sub(&dnnl_stand_in.makers, 1);
  if (has_flaw(product, DNNL_NO_PRIMITIVE)) return dnnl_runtime_error;
  if (has_flaw(product, DNNL_NO_MEMORY) && atomic_fetch_sub(&dnnl_stand_in.spared, 1) <= 0) {
    dnnl_stand_in.flaw = DNNL_RIGHT;
    return dnnl_out_of_memory;
  }
  struct product *copy = malloc(sizeof *copy);
  if (copy == NULL) return dnnl_out_of_memory;
  *copy = *product;
  *result = (dnnl_primitive_t)(void *)copy;
  return dnnl_success;
}

dnnl_status_t dnnl_primitive_destroy(dnnl_primitive_t primitive) {
  dnnl_status_t (*next)(dnnl_primitive_t) = NULL;
  if (is_ours(primitive)) {
    free(primitive);
    return dnnl_success;
  }
  NEXT("dnnl_primitive_destroy", next);
  return next(primitive);
}

dnnl_status_t dnnl_primitive_execute(const_dnnl_primitive_t primitive, dnnl_stream_t stream,
                                     int count, const dnnl_exec_arg_t *arguments) {
  dnnl_status_t (*next)(const_dnnl_primitive_t, dnnl_stream_t, int, const dnnl_exec_arg_t *) = NULL;
  static const int names[] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DST};
  void *data[4] = {NULL};
  if (!is_ours(primitive)) {
    NEXT("dnnl_primitive_execute", next);
    return next(primitive, stream, count, arguments);
  }
  const struct product *product = (const void *)primitive;
  atomic_fetch_add(&dnnl_stand_in.runs, 1);
  if (has_flaw(product, DNNL_NO_RUN)) return dnnl_runtime_error;
  for (int i = 0; i < count; i++) {
    for (int j = 0; j < 4; j++) {
      if (arguments[i].arg != names[j]) continue;
      const dnnl_status_t status = dnnl_memory_get_data_handle(arguments[i].memory, &data[j]);
      if (status != dnnl_success) return status;
    }
  }
  multiply(product, data);
  return dnnl_success;
}
