/*
 * attend.c - checked entry points of include/evenkeel/attend.h.
 */
#include <evenkeel/attend.h>

#include <inttypes.h>

#include "core/options.h"
#include "op/op_internal.h"

enum { DQ, DK, DV, DOUT, Q, K, V, OUT, LSE, RANGES, COUNT };

/* The sizes, of out and of options; nothing overflows: each product is checked as a tensor's
 * size. */
static ek_status read_sizes(struct ek__attention_args *args, const struct ek__op *op,
                            const ek_attend_options *o) {
  const ek_tensor *out = op->operand[OUT].tensor;
  char text[EK__OP_SHAPE_TEXT];
  EK__FAIL_IF(o->heads <= 0, EK_ERR_INVALID_ARGUMENT, "%s: heads is %d but must be positive",
              op->name, o->heads);
  args->heads = o->heads;
  args->kv_heads = o->kv_heads == 0 ? o->heads : o->kv_heads;
  EK__FAIL_IF(args->kv_heads < 0 || args->heads % args->kv_heads != 0, EK_ERR_INVALID_ARGUMENT,
              "%s: %d heads are not a multiple of %d kv_heads", op->name, o->heads, o->kv_heads);
  EK__FAIL_IF(out->rank != 3 || out->shape[2] % o->heads != 0, EK_ERR_SHAPE,
              "%s: out is %s but must be B x T x a multiple of %d heads", op->name,
              ek__op_shape_text(text, out), o->heads);
  EK__FAIL_IF(out->shape[2] == 0 && out->shape[0] > 0 && out->shape[1] > 0, EK_ERR_SHAPE,
              "%s: out is %s, which has no channels", op->name, ek__op_shape_text(text, out));
  args->batch = out->shape[0];
  args->tokens = out->shape[1];
  args->head_width = out->shape[2] / o->heads;
  return EK_OK;
}

/* EK_ERR_SHAPE unless operand i, if there is one, is exactly d0 x d1 x d2, as operand j
 * requires. */
static ek_status check_cube(const struct ek__op *op, size_t i, size_t j, int64_t d0, int64_t d1,
                            int64_t d2) {
  const ek_tensor *t = op->operand[i].tensor;
  if (t == NULL) return EK_OK;
  if (t->rank == 3 && t->shape[0] == d0 && t->shape[1] == d1 && t->shape[2] == d2) return EK_OK;
  const ek_tensor wanted = {.rank = 3, .shape = {d0, d1, d2}};
  char t_text[EK__OP_SHAPE_TEXT], j_text[EK__OP_SHAPE_TEXT], wanted_text[EK__OP_SHAPE_TEXT];
  return ek_error_set(EK_ERR_SHAPE, "%s: %s is %s but %s is %s, which takes %s", op->name,
                      op->operand[i].name, ek__op_shape_text(t_text, t), op->operand[j].name,
                      ek__op_shape_text(j_text, op->operand[j].tensor),
                      ek__op_shape_text(wanted_text, &wanted));
}

/* Columns first .. first + count of rows of q, k or v, and the gradient of the same shape. */
struct columns {
  int64_t first, count, step;
};

static ek_status check_columns(struct columns *columns, const struct ek__op *op,
                               const struct ek__attention_args *args, size_t i, size_t gradient) {
  const ek_tensor *t = op->operand[i].tensor;
  char text[EK__OP_SHAPE_TEXT];
  EK__FAIL_IF(t->rank != 3 || t->shape[0] != args->batch || t->shape[1] != args->tokens,
              EK_ERR_SHAPE,
              "%s: %s is %s, expected %" PRId64 " x %" PRId64 " x columns, as out", op->name,
              op->operand[i].name, ek__op_shape_text(text, t), args->batch, args->tokens);
  columns->step = t->shape[2];
  EK__FAIL_IF(columns->first < 0 || columns->first > columns->step - columns->count, EK_ERR_SHAPE,
              "%s: %s is %s, expected at least %" PRId64 " columns from column %" PRId64 " on",
              op->name, op->operand[i].name, ek__op_shape_text(text, t), columns->count,
              columns->first);
  return check_cube(op, gradient, i, args->batch, args->tokens, columns->step);
}

/* Where two of the gradients are one tensor, each element is written by one of them. */
static ek_status check_apart(const struct ek__op *op, const struct columns *columns) {
  for (size_t i = 0; i < 3; i++) {
    for (size_t j = 0; j < i; j++) {
      const ek_tensor *a = op->operand[DQ + i].tensor, *b = op->operand[DQ + j].tensor;
      if (a == NULL || b == NULL || a->data != b->data || a->device != b->device) continue;
      EK__FAIL_IF(columns[i].first < columns[j].first + columns[j].count &&
                      columns[j].first < columns[i].first + columns[i].count,
                  EK_ERR_INVALID_ARGUMENT, "%s: the columns of %s and %s overlap in one tensor",
                  op->name, op->operand[DQ + i].name, op->operand[DQ + j].name);
    }
  }
  return EK_OK;
}

static void *advanced(const struct ek__op *op, size_t i, int64_t elements) {
  const ek_tensor *t = op->operand[i].tensor;
  if (t == NULL || t->data == NULL || op->kernels == NULL) return NULL;
  return (char *)t->data + (size_t)elements * ek_type_size(t->type);
}

/* Where queries, keys and values are. */
static ek_status read_columns(struct ek__attention_args *args, const struct ek__op *op,
                              const ek_attend_options *o, bool packed) {
  const int64_t width = args->heads * args->head_width, shared = args->kv_heads * args->head_width;
  struct columns at[3] = {{packed ? 0 : o->q_column, width, 0},
                          {packed ? width : o->k_column, shared, 0},
                          {packed ? width + shared : o->v_column, shared, 0}};
  if (packed) {
    EK__FAIL_IF(o->q_column != 0 || o->k_column != 0 || o->v_column != 0, EK_ERR_INVALID_ARGUMENT,
                "%s: columns are given, but k and v are NULL: q has all three", op->name);
    EK_TRY(check_cube(op, Q, OUT, args->batch, args->tokens, width + 2 * shared));
  }
  /* Places after Q and DQ: whose tensors k and v are in. */
  const size_t k = packed ? 0 : 1, v = packed ? 0 : 2;
  EK_TRY(check_columns(&at[0], op, args, Q, DQ));
  EK_TRY(check_columns(&at[1], op, args, Q + k, DQ + k));
  EK_TRY(check_columns(&at[2], op, args, Q + v, DQ + v));
  EK_TRY(check_apart(op, at));
  args->q = advanced(op, Q, at[0].first);
  args->k = advanced(op, Q + k, at[1].first);
  args->v = advanced(op, Q + v, at[2].first);
  args->dq = advanced(op, DQ, at[0].first);
  args->dk = advanced(op, DQ + k, at[1].first);
  args->dv = advanced(op, DQ + v, at[2].first);
  args->q_step = at[0].step;
  args->k_step = at[1].step;
  args->v_step = at[2].step;
  return EK_OK;
}

/* Samples and blocks of four probabilities are 32-bit words of the random key: see random.h. */
static ek_status read_dropout(struct ek__attention_args *args, const struct ek__op *op,
                              const ek_attend_options *o) {
  const double words = 4294967296.0; /* 2^32 */
  EK__FAIL_IF(!(o->dropout >= 0.0 && o->dropout < 1.0), EK_ERR_INVALID_ARGUMENT,
              "%s: dropout is %g, which is outside 0 <= p < 1", op->name, o->dropout);
  args->dropout = o->dropout;
  args->key = o->key;
  args->first_sample = o->first_sample;
  if (o->dropout == 0.0) return EK_OK;
  EK__FAIL_IF(o->first_sample < 0 || (double)o->first_sample + (double)args->batch > words,
              EK_ERR_INVALID_ARGUMENT,
              "%s: first_sample is %" PRId64 " for %" PRId64
              " samples, but sample numbers are 0 .. 2^32 - 1",
              op->name, o->first_sample, args->batch);
  const double blocks = ((double)args->tokens + 3) / 4;
  EK__FAIL_IF((double)args->heads * (double)args->tokens * blocks > words, EK_ERR_UNSUPPORTED,
              "%s: dropout of %" PRId64 " heads x %" PRId64 " x %" PRId64
              " probabilities, which are more than 2^34",
              op->name, args->heads, args->tokens, args->tokens);
  return EK_OK;
}

/* Forward writes out and lse; backward reads them, and dout and the gradients are there. */
static ek_status attention(struct ek__operand *operands, ek_stream *stream, const char *name,
                           const ek_attend_options *options, bool backward) {
  ek_attend_options o = EK_ATTEND_OPTIONS_INIT;
  struct ek__op op;
  struct ek__attention_args args = {0};
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_attend_options"));
  const bool packed = o.k == NULL && o.v == NULL;
  operands[K].tensor = o.k;
  operands[V].tensor = o.v;
  if (backward) operands[DK].tensor = o.dk;
  if (backward) operands[DV].tensor = o.dv;
  for (size_t i = DK; i <= V; i++) {
    if (i != DK && i != DV && i != K && i != V) continue;
    operands[i].optional |= packed;
    EK__FAIL_IF(packed && operands[i].tensor != NULL, EK_ERR_INVALID_ARGUMENT,
                "%s: %s is given, but k and v are NULL: dq has all three", name, operands[i].name);
  }
  operands[DOUT].to = &args.dout;
  operands[OUT].to = &args.out;
  operands[LSE].to = &args.lse;
  operands[RANGES].tensor = o.ranges;
  operands[RANGES].to = &args.ranges;
  EK_TRY(ek__op_begin(&op, name, stream, operands, COUNT, &args.types));
  EK_TRY(read_sizes(&args, &op, &o));
  EK_TRY(read_columns(&args, &op, &o, packed));
  const int64_t batch = args.batch, tokens = args.tokens, width = args.head_width * args.heads;
  EK_TRY(check_cube(&op, DOUT, OUT, batch, tokens, width));
  EK_TRY(check_cube(&op, LSE, OUT, batch, args.heads, tokens));
  EK_TRY(check_cube(&op, RANGES, OUT, batch, tokens, 2));
  EK_TRY(read_dropout(&args, &op, &o));
  args.causal = o.causal;
  if (op.work != NULL) {
    /* T x T scores, of which a causal mask leaves half: two products forward; backward these, and
     * one more for each of their operands: the scores are made again. */
    ek__work_in(op.work, &op.types)->attention += (backward ? 5 : 2) * (o.causal ? 1 : 2) *
                                                  (double)batch * (double)tokens * (double)tokens *
                                                  (double)width;
  }
  if (op.kernels == NULL) return EK_OK;
  return backward ? op.kernels->attention_backward(stream, &args)
                  : op.kernels->attention_forward(stream, &args);
}

ek_status ek_op_attention_forward(ek_stream *stream, ek_tensor *out, ek_tensor *lse,
                                  const ek_tensor *q, const ek_attend_options *options) {
  const ek_tensor *const k = NULL, *const v = NULL; /* of the options */
  struct ek__operand operands[COUNT] = {
      [DQ] = {.name = "dq", .optional = true},   [DK] = {.name = "dk", .optional = true},
      [DV] = {.name = "dv", .optional = true},   [DOUT] = {.name = "dout", .optional = true},
      [Q] = EK__READ(q, VALUE),                  [K] = EK__READ(k, VALUE),
      [V] = EK__READ(v, VALUE),                  [OUT] = EK__WRITE(out, VALUE),
      [LSE] = EK__WRITE(lse, SUM),               [RANGES] = {.name = "ranges",
                                                             .role = EK__I32,
                                                             .optional = true}};
  return attention(operands, stream, "attention_forward", options, false);
}

ek_status ek_op_attention_backward(ek_stream *stream, ek_tensor *dq, const ek_tensor *dout,
                                   const ek_tensor *q, const ek_tensor *out, const ek_tensor *lse,
                                   const ek_attend_options *options) {
  const ek_tensor *const k = NULL, *const v = NULL; /* of the options, as dk and dv */
  ek_tensor *const dk = NULL, *const dv = NULL;
  const unsigned gradients = EK__OPERAND(DQ) | EK__OPERAND(DK) | EK__OPERAND(DV);
  struct ek__operand operands[COUNT] = {
      [DQ] = EK__WRITE(dq, VALUE, .may_be = gradients),
      [DK] = EK__WRITE(dk, VALUE, .may_be = gradients),
      [DV] = EK__WRITE(dv, VALUE, .may_be = gradients),
      [DOUT] = EK__READ(dout, VALUE),
      [Q] = EK__READ(q, VALUE),
      [K] = EK__READ(k, VALUE),
      [V] = EK__READ(v, VALUE),
      [OUT] = EK__READ(out, VALUE),
      [LSE] = EK__READ(lse, SUM),
      [RANGES] = {.name = "ranges", .role = EK__I32, .optional = true}};
  return attention(operands, stream, "attention_backward", options, true);
}

ek_status ek_op_document_ranges(ek_stream *stream, ek_tensor *ranges, ek_tensor *positions,
                                const ek_tensor *segments) {
  enum { D_RANGES, D_POSITIONS, D_SEGMENTS, D_COUNT };
  struct ek__op op;
  struct ek__documents_args args = {0};
  const struct ek__operand operands[] = {
      [D_RANGES] = EK__MAY_WRITE(ranges, I32, .to = &args.ranges),
      [D_POSITIONS] =
          EK__MAY_WRITE(positions, I32, EK__IS(SAME, D_SEGMENTS), .to = &args.positions),
      [D_SEGMENTS] = EK__READ(segments, I32, .to = &args.segments)};
  EK_TRY(ek__op_begin(&op, "document_ranges", stream, operands, D_COUNT, NULL));
  EK__FAIL_IF(segments->rank != 2 || segments->shape[1] > INT32_MAX, EK_ERR_SHAPE,
              "document_ranges: segments has rank %d, expected 2 (samples, tokens) with fewer than "
              "2^31 tokens",
              segments->rank);
  args.samples = segments->shape[0];
  args.tokens = segments->shape[1];
  EK_TRY(check_cube(&op, D_RANGES, D_SEGMENTS, args.samples, args.tokens, 2));
  return op.kernels == NULL ? EK_OK : op.kernels->document_ranges(stream, &args);
}

EK__OPTIONS_INIT(ek_attend_options, EK_ATTEND_OPTIONS_INIT)
