/*
 * products.c - matrix products and attention, as a block of the smallest GPT-2 calls them.
 *
 * Bytes are those of the operands, each read or written once, and floating-point operations those
 * of the formula: two for each multiplication of a product; of attention's scores those that are
 * seen.
 */
#include "kernels.h"

/* Its width, that of its feed-forward part, its heads, and its longest sequence. */
enum { WIDTH = 768, INNER = 4 * WIDTH, HEADS = 12, SEQUENCE = 1024 };

/* Operands of all of them, by what they are. */
enum { NARROW, WIDE, PRE, WEIGHT, BIAS, WEIGHT_GRADIENT, BIAS_GRADIENT };
enum { QKV, OUT, DOUT, DQKV, LSE };

static ek_status call_linear(struct bed *bed) {
  ek_tensor *o = bed->operands;
  return ek_op_linear(bed->stream, &o[WIDE], &o[NARROW], &o[WEIGHT], &o[BIAS]);
}

static ek_status call_linear_gelu(struct bed *bed) {
  ek_tensor *o = bed->operands;
  return ek_op_linear_gelu(bed->stream, &o[WIDE], &o[PRE], &o[NARROW], &o[WEIGHT], &o[BIAS]);
}

static ek_status call_linear_dx(struct bed *bed) {
  ek_tensor *o = bed->operands;
  return ek_op_matmul(bed->stream, &o[NARROW], &o[WIDE], false, &o[WEIGHT], false, 0);
}

static ek_status call_linear_dw(struct bed *bed) {
  ek_tensor *o = bed->operands;
  return ek_op_linear_gradients(bed->stream, &o[WEIGHT_GRADIENT], &o[BIAS_GRADIENT], &o[WIDE],
                                &o[NARROW], 0, 0);
}

/* Through the layer after GELU, whose weight is WIDTH x INNER: the same memory. */
static ek_status call_gelu_linear_backward(struct bed *bed) {
  ek_tensor *o = bed->operands;
  const int64_t shape[] = {WIDTH, INNER};
  ek_tensor weight = {0};
  ek_status status = ek_tensor_reshape(&weight, &o[WEIGHT], 2, shape);
  if (status == EK_OK) {
    status = ek_op_gelu_linear_backward(bed->stream, &o[WIDE], &o[BIAS_GRADIENT], &o[NARROW],
                                        &weight, &o[PRE], 0);
  }
  ek_tensor_free(&weight);
  return status;
}

static const ek_attend_options attended = {
    .size = sizeof attended, .heads = HEADS, .causal = true};

static ek_status call_attention_forward(struct bed *bed) {
  ek_tensor *o = bed->operands;
  return ek_op_attention_forward(bed->stream, &o[OUT], &o[LSE], &o[QKV], &attended);
}

static ek_status call_attention_backward(struct bed *bed) {
  ek_tensor *o = bed->operands;
  return ek_op_attention_backward(bed->stream, &o[DQKV], &o[DOUT], &o[QKV],
                                  &o[OUT], &o[LSE], &attended);
}

static ek_status open_product(struct bed *bed) {
  const int64_t narrow[] = {bed->tokens, WIDTH}, wide[] = {bed->tokens, INNER};
  const int64_t weight[] = {INNER, WIDTH}, bias[] = {INNER};
  ek_tensor *o = bed->operands;
  EK_TRY(bed_values(&o[NARROW], bed, 2, narrow));
  EK_TRY(bed_values(&o[WIDE], bed, 2, wide));
  EK_TRY(bed_values(&o[PRE], bed, 2, wide));
  EK_TRY(bed_values(&o[WEIGHT], bed, 2, weight));
  EK_TRY(bed_values(&o[BIAS], bed, 1, bias));
  EK_TRY(bed_sums(&o[WEIGHT_GRADIENT], bed, 2, weight));
  EK_TRY(bed_sums(&o[BIAS_GRADIENT], bed, 1, bias));
  bed->rows = bed->tokens;
  bed->columns = INNER;
  bed->flops = 2.0 * (double)bed->tokens * WIDTH * INNER;
  bed->bytes = (double)ek_type_size(bed->type) *
               ((double)bed->tokens * (WIDTH + INNER) + (double)WIDTH * INNER + INNER);
  return EK_OK;
}

/* One tensor of tokens x INNER more than the product has. */
static ek_status open_with_gelu(struct bed *bed) {
  EK_TRY(open_product(bed));
  bed->bytes += (double)ek_type_size(bed->type) * (double)bed->tokens * INNER;
  return EK_OK;
}

/* The gradients of the parameters are sums. */
static ek_status open_gradients(struct bed *bed) {
  EK_TRY(open_product(bed));
  bed->bytes += (4.0 - (double)ek_type_size(bed->type)) * INNER * (WIDTH + 1.0);
  return EK_OK;
}

static ek_status open_attention(struct bed *bed, double tensors, double products) {
  const int64_t length = bed->tokens < SEQUENCE ? bed->tokens : SEQUENCE;
  const int64_t batch = bed->tokens / length;
  const int64_t qkv[] = {batch, length, 3 * WIDTH}, out[] = {batch, length, WIDTH};
  const int64_t lse[] = {batch, HEADS, length};
  ek_tensor *o = bed->operands;
  EK_TRY(bed_values(&o[QKV], bed, 3, qkv));
  EK_TRY(bed_values(&o[OUT], bed, 3, out));
  EK_TRY(bed_values(&o[DOUT], bed, 3, out));
  EK_TRY(bed_values(&o[DQKV], bed, 3, qkv));
  EK_TRY(bed_sums(&o[LSE], bed, 3, lse));
  EK_TRY(call_attention_forward(bed)); /* backward wants the lse that belongs to qkv */
  bed->rows = batch * length;
  bed->columns = 3 * WIDTH;
  /* Of the scores of a row those up to its own token are seen. */
  bed->flops = products * (double)batch * (double)length * ((double)length + 1) * WIDTH;
  bed->bytes =
      (double)(batch * length) * (tensors * WIDTH * (double)ek_type_size(bed->type) + 4.0 * HEADS);
  return EK_OK;
}

/* q, k, v and out; two products. */
static ek_status open_attention_forward(struct bed *bed) { return open_attention(bed, 4, 2); }
/* q, k, v, out, dout, dq, dk, dv; five products. */
static ek_status open_attention_backward(struct bed *bed) { return open_attention(bed, 8, 5); }

static const struct kernel products[] = {
    {.name = "linear", .open = open_product, .call = call_linear},
    {.name = "linear_gelu", .open = open_with_gelu, .call = call_linear_gelu},
    {.name = "linear_dx", .open = open_product, .call = call_linear_dx},
    {.name = "linear_dw", .open = open_gradients, .call = call_linear_dw},
    {.name = "gelu_linear_backward", .open = open_with_gelu, .call = call_gelu_linear_backward},
    {.name = "attention_forward", .open = open_attention_forward, .call = call_attention_forward},
    {.name = "attention_backward",
     .open = open_attention_backward,
     .call = call_attention_backward},
};

int64_t product_elements(int64_t tokens) { return INNER * (tokens < WIDTH ? WIDTH : tokens); }

const struct kernel *product_at(size_t index) {
  return index < sizeof products / sizeof products[0] ? &products[index] : NULL;
}
