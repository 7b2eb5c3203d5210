/*
 * attend.h - causal self-attention.
 *
 * See op.h for the rules that hold for all operations.
 */
#ifndef EVENKEEL_ATTEND_H
#define EVENKEEL_ATTEND_H

#include <evenkeel/tensor.h>

EK_BEGIN_DECLARATIONS

/*
 * out = softmax(Q K^T / sqrt(head width), causal) V for each sample and head (Vaswani et al. 2017).
 *   qkv   B x T x (heads + 2 kv_heads) D: of each token the queries of all heads, then the keys of
 *         all kv_heads, then their values, each D wide
 *   out   B x T x heads D
 *   lse   B x heads x T, of the type of sums: the logarithm of each row's sum of exponentials, for
 *         the backward
 * heads must be a multiple of kv_heads; kv_heads = 0 stands for heads. Where there are fewer
 * kv_heads, heads / kv_heads neighbouring queries share keys and values (Ainslie et al. 2023). The
 * B x heads x T x T matrix is never held: scores live in tiles
 * of fixed size with an online softmax (Milakov and Gimelshein 2018; Dao et al. 2022).
 */
EK_API EK_CHECKED ek_status ek_op_attention_forward(ek_stream *stream, ek_tensor *out,
                                                    ek_tensor *lse, const ek_tensor *qkv,
                                                    int heads, int kv_heads);

/* dqkv (overwritten) from dout; the tiles are computed again from qkv, out and lse. Gradients of
 * shared keys and values are added up over their heads in order. */
EK_API EK_CHECKED ek_status ek_op_attention_backward(ek_stream *stream, ek_tensor *dqkv,
                                                     const ek_tensor *dout, const ek_tensor *qkv,
                                                     const ek_tensor *out, const ek_tensor *lse,
                                                     int heads, int kv_heads);

EK_END_DECLARATIONS

#endif /* EVENKEEL_ATTEND_H */
