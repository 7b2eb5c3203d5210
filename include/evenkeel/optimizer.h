/*
 * optimizer.h - an update rule over flat ranges, as an immutable description.
 *
 * The state (momentum, moments) belongs to the ek_data_parallel_optimizer that runs the rule: flat
 * buffers of the ranges that a device owns. Stock rules: sgd.h, adamw.h.
 */
#ifndef EVENKEEL_OPTIMIZER_H
#define EVENKEEL_OPTIMIZER_H

#include <evenkeel/updates.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_optimizer ek_optimizer;

/* The most state buffers of one rule. */
#define EK_MAX_OPTIMIZER_STATES 4

/* One range on one device: all tensors have rank 1 and the same length. */
typedef struct ek_update {
  ek_tensor *parameters;
  const ek_tensor *gradients; /* of the parameters' type, or of 16 bits: `types` below */
  ek_tensor *states;          /* optimizer->states of them; not to be read at step 1 */
  int64_t step;               /* 1 for the first */
  bool no_decay; /* weight decay leaves these parameters alone (ek_parameter_options) */
  double learning_rate; /* of these parameters */
  ek_update_scale scale;
  double weight_decay; /* replaces the rule's own (ek_parameter_pattern); 0: the rule's own */
} ek_update;

/* The weight decay of an update by a rule whose own is `own`. */
static inline double ek_update_decay(const ek_update *update, double own) {
  return update->no_decay ? 0 : update->weight_decay > 0 ? update->weight_decay : own;
}

typedef struct ek_optimizer_ops {
  size_t size;
  const char *kind;
  /* Required. Queues the update on `stream`; may not fail for lack of memory. */
  ek_status (*update)(const ek_optimizer *self, ek_stream *stream, const ek_update *update);
  /* Required. */
  void (*free)(ek_optimizer *self);
  /* (optional) fallback: EK_TYPES_F32. The types that it updates, as a set: EK_TYPES_F32 |
   * EK_TYPES_F64. For a model of another type it is EK_ERR_UNSUPPORTED. A rule whose `gradients`
   * may be of 16 bits beside f32 parameters (gradient_type in data_parallel_model.h) has that type
   * in the set, too, as sgd and adamw have, and without it is EK_ERR_UNSUPPORTED for such a model.
   */
  unsigned types;
  /* (optional) fallback: "0", "1" ... What the states are called in the names of state.h ("m"), as
   * many as there are, without a slash; like `kind` at most 60 characters of each count. */
  const char *const *state_names;
  /* (optional) fallback: false. `update` hands scale.copy on to the operation that writes the
   * parameters, so that it writes what modules of 16 bits see in the same pass over memory. Where
   * it does not, the library rounds the parameters after the update, and scale.copy is NULL. */
  bool writes_copy;
  /* (optional) fallback: false. `update` obeys ek_update.weight_decay (ek_update_decay() has the
   * rule). Without it a model whose patterns ask for a weight decay is EK_ERR_UNSUPPORTED. */
  bool takes_decay;
} ek_optimizer_ops;

struct ek_optimizer {
  const ek_optimizer_ops *ops;
  size_t states;
  double learning_rate; /* where no schedule or other rate is given */
  double clip_norm;     /* 0: gradients are not clipped */
  int references;
};

/*
 * For a rule of the program's own: fills *optimizer, the first member of a struct of the program's,
 * with one reference. `states` is at most EK_MAX_OPTIMIZER_STATES, and the two numbers are finite
 * and not below 0: else EK_ERR_INVALID_ARGUMENT.
 */
EK_API EK_CHECKED ek_status ek_optimizer_init(ek_optimizer *optimizer, const ek_optimizer_ops *ops,
                                              size_t states, double learning_rate,
                                              double clip_norm);
/* One more reference to it, from any thread. Returns `optimizer`; NULL for NULL. */
EK_API ek_optimizer *ek_optimizer_share(ek_optimizer *optimizer);
/* Drops a reference; with the last one the optimizer is freed. NULL is legal. */
EK_API void ek_optimizer_free(ek_optimizer *optimizer);

EK_END_DECLARATIONS

#endif /* EVENKEEL_OPTIMIZER_H */
