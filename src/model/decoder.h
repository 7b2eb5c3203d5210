/*
 * decoder.h - the one builder of decoders: tables of tokens, blocks, a last norm, and a head or a
 * fused loss.
 *
 * A family (gpt.c, llama.c) is a form, which says what its blocks are made of and how their parts
 * are called, and a translation of its public options to sizes.
 */
#ifndef EK_DECODER_H
#define EK_DECODER_H

#include <evenkeel/attention.h>
#include <evenkeel/cross_entropy.h>
#include <evenkeel/recompute.h>

#include "module/composite.h"
#include "module/layer_internal.h"

/* The blocks of a family:
 *     s = x + attention(norm(x))    y = s + feed_forward(norm(s))
 * with a dropout before each addition if there is one. */
struct ek__decoder_form {
  const ek_module_ops *ops, *block_ops; /* EK__DECODER(), EK__DECODER_BLOCK() */
  const char *norms[2];                 /* names of a block's two norms */
  const ek_weight_names *names;         /* of the parameters in folders of weights */
  bool rms;  /* norms are RMSNorm without a bias, else layer norms */
  bool gate; /* the child "feed_forward" is a SwiGLU without biases; else there are the children
                "expand", "gelu" and "contract" */
};

/* The tables of a family's modules. */
#define EK__DECODER(kind)                                                                          \
  {                                                                                                \
    EK__LAYER(kind, ek__decoder_forward, ek__decoder_backward, ek__composite_free),                \
        .parameters = ek__decoder_parameters, .facts = ek__decoder_facts,                          \
        .input_type = ek__composite_input_type, .weight_names = ek__decoder_names                  \
  }
/* Of one that no other program's folder describes. */
#define EK__DECODER_APART(kind)                                                                    \
  {                                                                                                \
    EK__LAYER(kind, ek__decoder_forward, ek__decoder_backward, ek__composite_free),                \
        .parameters = ek__decoder_parameters, .input_type = ek__composite_input_type               \
  }
#define EK__DECODER_BLOCK(kind)                                                                    \
  {                                                                                                \
    EK__LAYER(kind, ek__composite_forward, ek__composite_backward, ek__composite_free),            \
        .parameters = ek__composite_parameters, .input_type = ek__composite_input_type,            \
        .chain = true                                                                              \
  }
ek_status ek__decoder_parameters(const ek_module *self, ek_declaration *declaration);
ek_status ek__decoder_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                              ek_tensor *outputs);
ek_status ek__decoder_backward(const ek_module *self, ek_pass *pass, const ek_tensor *grad_outputs,
                               ek_tensor *grad_inputs);
const ek_fact *ek__decoder_facts(const ek_module *self, size_t *count);
const ek_weight_names *ek__decoder_names(const ek_module *self);

#define EK__FACT_NUMBER(key, value) {(key), EK_FACT_NUMBER, (double)(value), NULL, false}
#define EK__FACT_BOOLEAN(key, value) {(key), EK_FACT_BOOLEAN, (value), NULL, false}
#define EK__FACT_WORD(key, words) {(key), EK_FACT_WORD, 0, (words), false}
#define EK__FACT_AT_MOST(key, value) {(key), EK_FACT_AT_MOST, (double)(value), NULL, false}
#define EK__FACT_WRITTEN(key, value) {(key), EK_FACT_NUMBER, (double)(value), NULL, true}

struct ek__decoder {
  int64_t vocabulary, sequence, width, hidden;
  int64_t positions; /* learned ones; 0: none */
  int layers, heads;
  double epsilon, dropout;
  ek_attention_options attention; /* except its deviations; segments: an input of the model */
  bool bias; /* of layer norms, "expand" and "contract" */
  bool untied;
  ek_recompute recompute;
  bool fused_loss;
  const ek_cross_entropy_options *loss;
  uint64_t logits_bytes;
  int64_t logits_columns;
};

enum { EK__DECODER_FACTS = 24 };

/* EK_ERR_INVALID_ARGUMENT for sizes that do not fit. */
ek_status ek__decoder_check(const struct ek__decoder_form *form, const struct ek__decoder *sizes);

/* Makes the model, of sizes that were checked; the facts are copied. */
ek_status ek__decoder_create(ek_module **module, const struct ek__decoder_form *form,
                             const struct ek__decoder *sizes, const ek_fact *facts, size_t count);

#endif /* EK_DECODER_H */
