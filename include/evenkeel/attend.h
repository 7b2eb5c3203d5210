/*
 * attend.h - self-attention, causal or not, over rows that may hold several documents and padding.
 *
 * See op.h for the rules that hold for all operations.
 */
#ifndef EVENKEEL_ATTEND_H
#define EVENKEEL_ATTEND_H

#include <evenkeel/random.h>
#include <evenkeel/tensor.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_attend_options {
  size_t size;
  int heads;    /* of queries, > 0 */
  int kv_heads; /* of keys and values, a divisor of heads; 0: as many */
  bool causal;  /* a query sees no later key */
  const ek_tensor *k, *v; /* keys and values, in tensors of their own; NULL, both: in q */
  ek_tensor *dk, *dv;     /* of a backward, their gradients; NULL where k and v are */
  /* The columns of their tensors at which queries, keys and values begin, where k and v are
   * given. */
  int64_t q_column, k_column, v_column;
  const ek_tensor *ranges; /* of documents: ek_op_document_ranges(); NULL: a row is one document */
  /* Of probabilities: 0 <= dropout < 1, with the bits of (key, first_sample + sample): random.h. */
  double dropout;
  ek_random_key key;
  int64_t first_sample;
} ek_attend_options;
#define EK_ATTEND_OPTIONS_INIT                                                                     \
  {                                                                                                \
    .size = sizeof(ek_attend_options), .heads = 1, .kv_heads = 0, .causal = true, .k = NULL,       \
    .v = NULL, .dk = NULL, .dv = NULL, .q_column = 0, .k_column = 0, .v_column = 0,                \
    .ranges = NULL, .dropout = 0.0, .key = {0, 0, 0}, .first_sample = 0                            \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_attend_options_init(ek_attend_options *options, size_t size);

/*
 * out = dropout(softmax(Q K^T / sqrt(D), mask)) V for each sample and head (Vaswani et al. 2017).
 *   q     B x T x C: heads D columns from q_column on are the queries, D to a head
 *   k, v  B x T x any: kv_heads D columns from k_column and v_column on are the keys and values.
 *         Both NULL: q is B x T x (heads + 2 kv_heads) D and has all three, one after the other
 *   out   B x T x heads D, which says D
 *   lse   B x heads x T, of the type of sums: the logarithm of each row's sum of exponentials, for
 *         the backward
 * Where there are fewer kv_heads, heads / kv_heads neighbouring queries share keys and values
 * (Ainslie et al. 2023). A query sees the keys of its document, with `causal` up to its own; a
 * token outside of all documents sees nothing and is seen by none: its out and lse are 0.
 * Probability (head h, query i, key j) of a sample is kept if the random number (random.h) with the
 * index (h T + i) x 4 ceil(T / 4) + j is not below `dropout`, and divided by 1 - dropout; lse is
 * that of all. The B x heads x T x T matrix is never held: scores live in tiles of fixed size with
 * an online softmax (Milakov and Gimelshein 2018; Dao et al. 2022), and tiles in which nothing is
 * seen are not computed.
 * EK_ERR_UNSUPPORTED for a dropout with heads x T x ceil(T / 4) above 2^32.
 */
EK_API EK_CHECKED ek_status ek_op_attention_forward(ek_stream *stream, ek_tensor *out,
                                                    ek_tensor *lse, const ek_tensor *q,
                                                    const ek_attend_options *options);

/*
 * dq, dk, dv (overwritten in the columns that belong to queries, keys and values) from dout; the
 * tiles are computed again from q, k, v, out and lse, and the same probabilities dropped. Each of
 * dq, dk, dv has the shape of its operand, and dk and dv are NULL where k and v are. Any of them
 * may be one tensor where their columns are apart. Gradients of shared keys and values are added up
 * over their heads in order; those of tokens outside of all documents are 0.
 */
EK_API EK_CHECKED ek_status ek_op_attention_backward(ek_stream *stream, ek_tensor *dq,
                                                     const ek_tensor *dout, const ek_tensor *q,
                                                     const ek_tensor *out, const ek_tensor *lse,
                                                     const ek_attend_options *options);

/*
 * The places of documents in rows of tokens. Neighbours with the same number are a document; a
 * negative number is padding, outside of all documents. So two runs of one number are two
 * documents, and any numbers are legal.
 *   segments   i32 B x T
 *   ranges     i32 B x T x 2: the first token of a token's document, and the one after its last,
 *              counted in the row; both are the token's own number where it is padding
 *   positions  i32 B x T: a token's number in its document, 0 where it is padding (ek_op_rotary())
 * ranges and positions may each be NULL.
 */
EK_API EK_CHECKED ek_status ek_op_document_ranges(ek_stream *stream, ek_tensor *ranges,
                                                  ek_tensor *positions, const ek_tensor *segments);

EK_END_DECLARATIONS

#endif /* EVENKEEL_ATTEND_H */
