/*
 * attend.c - checked entry points of include/evenkeel/attend.h.
 */
#include <evenkeel/attend.h>

#include "op/op_internal.h"

/* The sizes of B x T x (heads + 2 kv_heads) D; the division is checked, so nothing overflows. */
static ek_status read_sizes(struct ek__attention_args *args, const struct ek__op *op,
                            const ek_tensor *qkv, int heads, int kv_heads) {
  char text[EK__OP_SHAPE_TEXT];
  EK__FAIL_IF(heads <= 0, EK_ERR_INVALID_ARGUMENT, "%s: heads is %d but must be positive", op->name,
              heads);
  EK__FAIL_IF(kv_heads <= 0 || heads % kv_heads != 0, EK_ERR_INVALID_ARGUMENT,
              "%s: %d heads are not a multiple of %d kv_heads", op->name, heads, kv_heads);
  const int64_t all = (int64_t)heads + 2 * (int64_t)kv_heads;
  EK__FAIL_IF(qkv->rank != 3 || qkv->shape[2] % all != 0, EK_ERR_SHAPE,
              "%s: qkv is %s but must be B x T x a multiple of %d + 2 x %d heads", op->name,
              ek__op_shape_text(text, qkv), heads, kv_heads);
  EK__FAIL_IF(qkv->shape[2] == 0 && qkv->shape[0] > 0 && qkv->shape[1] > 0, EK_ERR_SHAPE,
              "%s: qkv is %s, which has no channels", op->name, ek__op_shape_text(text, qkv));
  args->batch = qkv->shape[0];
  args->tokens = qkv->shape[1];
  args->head_width = qkv->shape[2] / all;
  return EK_OK;
}

/* EK_ERR_SHAPE unless operand i is exactly d0 x d1 x d2, as operand j (qkv) requires. */
static ek_status check_cube(const struct ek__op *op, size_t i, size_t j, int64_t d0, int64_t d1,
                            int64_t d2) {
  const ek_tensor *t = op->operand[i].tensor;
  if (t->rank == 3 && t->shape[0] == d0 && t->shape[1] == d1 && t->shape[2] == d2) return EK_OK;
  const ek_tensor wanted = {.rank = 3, .shape = {d0, d1, d2}};
  char t_text[EK__OP_SHAPE_TEXT], j_text[EK__OP_SHAPE_TEXT], wanted_text[EK__OP_SHAPE_TEXT];
  return ek_error_set(EK_ERR_SHAPE, "%s: %s is %s but %s is %s, which takes %s", op->name,
                      op->operand[i].name, ek__op_shape_text(t_text, t), op->operand[j].name,
                      ek__op_shape_text(j_text, op->operand[j].tensor),
                      ek__op_shape_text(wanted_text, &wanted));
}

/* Forward writes out and lse; backward reads them, and dqkv and dout are there. */
static ek_status attention(ek_stream *stream, const char *name, const ek_tensor *dqkv,
                           const ek_tensor *dout, const ek_tensor *qkv, const ek_tensor *out,
                           const ek_tensor *lse, int heads, int kv_heads,
                           bool backward) {
  enum { DQKV, DOUT, QKV, OUT, LSE, COUNT };
  struct ek__op op;
  struct ek__attention_args args = {.heads = heads, .kv_heads = kv_heads == 0 ? heads : kv_heads};
  const struct ek__operand operands[] = {
      [DQKV] = EK__WRITE(dqkv, VALUE, .to = &args.dqkv, .optional = !backward),
      [DOUT] = EK__READ(dout, VALUE, .to = &args.dout, .optional = !backward),
      [QKV] = EK__READ(qkv, VALUE, .to = &args.qkv),
      [OUT] = EK__READ(out, VALUE, .to = &args.out, .written = !backward),
      [LSE] = EK__READ(lse, SUM, .to = &args.lse, .written = !backward)};
  EK_TRY(ek__op_begin(&op, name, stream, operands, COUNT, &args.types));
  EK_TRY(read_sizes(&args, &op, qkv, heads, (int)args.kv_heads));
  const int64_t batch = args.batch, tokens = args.tokens, channels = args.head_width * heads;
  if (backward) EK_TRY(check_cube(&op, DQKV, QKV, batch, tokens, qkv->shape[2]));
  if (backward) EK_TRY(check_cube(&op, DOUT, QKV, batch, tokens, channels));
  EK_TRY(check_cube(&op, OUT, QKV, batch, tokens, channels));
  EK_TRY(check_cube(&op, LSE, QKV, batch, heads, tokens));
  if (op.work != NULL) {
    /* Half of T x T scores: two products forward; backward these, and one more for each of their
     * operands: the scores are made again. */
    ek__work_in(op.work, &op.types)->attention +=
        (backward ? 5 : 2) * (double)batch * (double)tokens * (double)tokens * (double)channels;
  }
  if (op.kernels == NULL) return EK_OK;
  return backward ? op.kernels->attention_backward(stream, &args)
                  : op.kernels->attention_forward(stream, &args);
}

ek_status ek_op_attention_forward(ek_stream *stream, ek_tensor *out, ek_tensor *lse,
                                  const ek_tensor *qkv, int heads, int kv_heads) {
  return attention(stream, "attention_forward", NULL, NULL, qkv, out, lse, heads, kv_heads, false);
}

ek_status ek_op_attention_backward(ek_stream *stream, ek_tensor *dqkv, const ek_tensor *dout,
                                   const ek_tensor *qkv, const ek_tensor *out, const ek_tensor *lse,
                                   int heads, int kv_heads) {
  return attention(stream, "attention_backward", dqkv, dout, qkv, out, lse, heads, kv_heads, true);
}
