/*
 * optimizer.h - an update rule over flat ranges, as an immutable description.
 *
 * The state (momentum, moments) belongs to the ek_data_parallel_optimizer that runs the rule: flat
 * buffers of the ranges that a device owns. Stock rules: sgd.h, adamw.h, muon.h; and averaged.h
 * around any of them. A flat range also has the elements between parameters: zeros, whose gradients
 * and states are zeros, and which an update leaves zeros.
 *
 * A rule may take some parameters *whole*, with their shapes, instead of in flat ranges that end
 * anywhere: muon.h multiplies matrices. Then one device updates all of such a parameter, and where
 * state is cut over devices they are cut between these parameters, so that each device has about as
 * many elements. A model has to know such a rule when it opens
 * (ek_data_parallel_model_options.optimizer).
 */
#ifndef EVENKEEL_OPTIMIZER_H
#define EVENKEEL_OPTIMIZER_H

#include <evenkeel/updates.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_optimizer ek_optimizer;

/* The most state buffers of one rule. */
#define EK_MAX_OPTIMIZER_STATES 4

/* A parameter that a rule may take whole. */
typedef struct ek_optimizer_parameter {
  const char *name; /* full name, "blocks.0.attention.weight" */
  int rank;
  int64_t shape[EK_MAX_RANK];
  bool no_decay, elementwise; /* ek_parameter_options, ek_parameter_pattern */
} ek_optimizer_parameter;

/* One range on one device, all tensors of rank 1 and the same length; or one parameter that the
 * rule takes whole, all tensors of its shape. */
typedef struct ek_update {
  ek_tensor *parameters;
  const ek_tensor *gradients; /* of the parameters' type, or of 16 bits: `types` below */
  ek_tensor *states; /* ek_optimizer_states() of them; must not be read at step 1. A struct of
                      * zeros for a state that the rule does not keep here (`keeps`) */
  int64_t step;               /* 1 for the first */
  bool no_decay; /* no weight decay for these parameters (ek_parameter_options) */
  double learning_rate; /* of these parameters */
  ek_update_scale scale;
  double weight_decay; /* replaces the rule's own (ek_parameter_pattern); 0: the rule's own */
  const ek_optimizer_parameter *whole; /* the parameter; NULL: a range */
  ek_tensor *workspace; /* for `whole`: rank 1, of the parameters' type, undefined elements, from a
                         * multiple of EK_MEMORY_UNIT on; NULL if the rule asks for none */
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
   * EK_TYPES_F64. With a model of another type it is EK_ERR_UNSUPPORTED. For gradients of 16 bits
   * with f32 parameters (gradient_type in data_parallel_model.h) the set must have that type too,
   * as those of sgd and adamw do; otherwise such a model is EK_ERR_UNSUPPORTED. */
  unsigned types;
  /* (optional) fallback: "0", "1" ... The names of the states ("m") in the names of state.h, one
   * for each state, without a slash. As with `kind`, the first 60 characters of each count. */
  const char *const *state_names;
  /* (optional) fallback: false. `update` passes scale.copy to the operation that writes the
   * parameters, so that the 16-bit copies are written in the same pass over memory. Otherwise the
   * library rounds the parameters after the update, and scale.copy is NULL. */
  bool writes_copy;
  /* (optional) fallback: false. `update` obeys ek_update.weight_decay (ek_update_decay() has the
   * rule). Without it a model whose patterns ask for a weight decay is EK_ERR_UNSUPPORTED. */
  bool takes_decay;
  /* (optional) fallback: none, so that every update is of a flat range. Whether the rule takes this
   * parameter whole. Asked when a model opens and when its optimizer does, from one thread; the
   * answer must depend on nothing but the rule and the parameter. */
  bool (*takes_whole)(const ek_optimizer *self, const ek_optimizer_parameter *parameter);
  /* (optional) fallback: 0. Elements of workspace for a parameter that the rule takes whole. Each
   * device takes the most of any of its parameters when the optimizer opens. */
  int64_t (*workspace)(const ek_optimizer *self, const ek_optimizer_parameter *parameter);
  /* (optional) fallback: true. Whether state number `state` exists for parameters that the rule
   * takes whole (`whole`), or for all others. No memory is taken for a state that does not, and it
   * is no entry in state.h. */
  bool (*keeps)(const ek_optimizer *self, size_t state, bool whole);
} ek_optimizer_ops;

/*
 * The first member of every rule's struct. ek_optimizer_init() fills it in and nothing writes it
 * afterwards. Its members belong to the library: read them with the functions below.
 */
struct ek_optimizer {
  struct ek__optimizer_private {
    const ek_optimizer_ops *ops;
    size_t states;
    double learning_rate, clip_norm;
    int references;
  } private_members;
};

/* What ek_optimizer_init() was given; for NULL, NULL, "" and 0. */
EK_API const ek_optimizer_ops *ek_optimizer_table(const ek_optimizer *optimizer);
EK_API const char *ek_optimizer_kind(const ek_optimizer *optimizer); /* ops.kind */
EK_API size_t ek_optimizer_states(const ek_optimizer *optimizer);
EK_API double ek_optimizer_learning_rate(const ek_optimizer *optimizer);
EK_API double ek_optimizer_clip_norm(const ek_optimizer *optimizer);

/*
 * For a rule of your own: fills *optimizer, the first member of your struct, with one reference.
 * `ops` must stay valid for its life. `states` must be at most EK_MAX_OPTIMIZER_STATES, and the two
 * numbers finite and not below 0: otherwise EK_ERR_INVALID_ARGUMENT. `learning_rate` applies unless
 * the data-parallel optimizer has a schedule or another rate; with `clip_norm` 0 gradients are not
 * clipped.
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
