/*
 * module.h - what a model is: a table of functions and an immutable description.
 *
 * A module holds no tensors. Its parameters live in replicas (replica.h), one per device, and reach
 * it through the pass (pass.h) that it is called with. The same module is called on several devices
 * at the same time, so its functions read `self` and touch nothing but `pass`.
 *
 * The stock layers (layers.h, gpt.h, mlp.h) are built on this table and use nothing else. A model
 * of your own plugs in the same way:
 *
 *     typedef struct scale_module { ek_module base; int64_t width; } scale_module;   // base first
 *
 *     static ek_status scale_parameters(const ek_module *self, ek_declaration *d) {
 *       const int64_t shape[] = {((const scale_module *)self)->width};
 *       return ek_declare_parameter(d, "factor", 1, shape, ek_initializer_ones());
 *     }
 *     static const ek_module_ops scale_ops = {
 *       .size = sizeof(ek_module_ops), .kind = "scale", .parameters = scale_parameters,
 *       .forward = scale_forward, .backward = scale_backward, .free = scale_free};
 *
 *     ek_status scale_create(ek_module **module, int64_t width) {
 *       scale_module *m = calloc(1, sizeof *m);
 *       if (m == NULL) return ek_error_set(EK_ERR_OUT_OF_MEMORY, "scale: no memory");
 *       m->width = width;
 *       const ek_status status = ek_module_init(&m->base, &scale_ops, 1, 1);
 *       if (status == EK_OK) *module = &m->base;
 *       else free(m);
 *       return status;
 *     }
 *
 * When a function of the table fails, the path of the module in the model and its kind are put
 * before the message, once: "blocks.3.mlp.0 (linear), forward: input has 5 columns, expected 6". So
 * a message of your own need not name its module.
 *
 * docs/own-model.md walks through a whole one.
 */
#ifndef EVENKEEL_MODULE_H
#define EVENKEEL_MODULE_H

#include <evenkeel/activation_list.h>
#include <evenkeel/tensor.h>
#include <evenkeel/weight_names.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_module ek_module;
typedef struct ek_declaration ek_declaration;
typedef struct ek_pass ek_pass;

typedef enum ek_formula_kind {
  EK_FORMULA_NONE = 0,
  EK_FORMULA_ACTIVATION = 1, /* y = the activation of x, element by element */
  EK_FORMULA_LINEAR = 2,     /* y = x W^T + b */
  EK_FORMULA_NORM = 3,       /* y = the layer norm of x over its last dimension (normalize.h) */
  EK_FORMULA_RMS_NORM = 4    /* the same without a mean: RMSNorm */
} ek_formula_kind;

/* What a module of one input x and one output y computes. */
typedef struct ek_formula {
  ek_formula_kind kind;
  ek_activation activation;
  /* Numbers of parameters: of LINEAR W [out, in] and b [out], of NORM and RMS_NORM gamma [columns]
   * and beta [columns]. */
  size_t weight, bias;
  bool has_bias;
  double epsilon; /* of NORM and RMS_NORM */
} ek_formula;

typedef enum ek_fact_kind {
  EK_FACT_NUMBER = 0,
  EK_FACT_BOOLEAN = 1,
  EK_FACT_WORD = 2,
  EK_FACT_AT_MOST = 3 /* a number that is not above the file's; written as null: no limit */
} ek_fact_kind;

/* What a configuration file beside a model's weights must say of it, if it says anything. */
typedef struct ek_fact {
  const char *key; /* in the file: "n_head", or "rope_scaling.factor" in an object */
  ek_fact_kind kind;
  double number;     /* or 0 and 1 for false and true; compared to six digits */
  const char *words; /* those that mean the same, with bars between them: "gelu_new|gelu_fast" */
  bool only_written; /* in a file that is written; one that is read may say something else */
} ek_fact;

typedef struct ek_module_ops {
  size_t size;      /* sizeof(ek_module_ops) */
  const char *kind; /* "linear"; used in messages */

  /* (optional) fallback: no parameters and no children. Declares them, always the same ones. */
  ek_status (*parameters)(const ek_module *self, ek_declaration *declaration);

  /*
   * Required. Reads `inputs` (loans, ek_module_inputs(self) of them) and fills `outputs`
   * (ek_module_outputs(self) structs of zeros) with tensors that hold a reference:
   * ek_pass_output(), or a share of an input. Saves what backward needs with ek_pass_save(). On
   * failure it may leave outputs that it has made; the caller frees them.
   *
   * When it returns, every output must exist, be on the pass's device and, except integers and the
   * totals of a criterion, have the pass's type; workspace must be freed. In a pass with gradient
   * the outputs of the whole model must be floating, and their rows (dimension 0; scalars and
   * totals have no rows) a multiple of the samples. A violation is an error that names the module.
   */
  ek_status (*forward)(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                       ek_tensor *outputs);

  /*
   * Required. Takes back what forward saved, in reverse order, with ek_pass_take(); adds into the
   * gradients of its parameters; fills grad_inputs (NULL: none is wanted) with one new tensor for
   * each floating input that is not a target, of its type and shape. Inputs of integers and targets
   * keep their structs of zeros. grad_outputs are loans and must not be written. It takes back all
   * that its forward saved and nothing else, and frees its workspace: this is checked when it
   * returns.
   */
  ek_status (*backward)(const ek_module *self, ek_pass *pass, const ek_tensor *grad_outputs,
                        ek_tensor *grad_inputs);

  /*
   * Required. Frees the description itself, after the last reference is gone, and drops its
   * references to children. A child without another reference is freed after this has returned, so
   * deep nesting needs no stack.
   */
  void (*free)(ek_module *self);

  /*
   * (optional) fallback: EK_TYPES_F32. The set of types that forward and backward compute in, such
   * as EK_TYPES_F32 | EK_TYPES_BF16. ek_pass_type() tells which one a call computes in: the type of
   * floating inputs and outputs, of their gradients and of parameters. Gradients of parameters, and
   * buffers, have the type of sums (ek_type_of_sums()). Opening a model in a type that one of its
   * modules does not know is EK_ERR_UNSUPPORTED, with the name of the module, and a floating input
   * of another type is EK_ERR_TYPE before forward is called. So a kernel that reads every tensor as
   * floats never sees doubles.
   *
   * In a model of 16 bits a module that knows f32 alone runs in f32: the library widens its inputs
   * and parameters, rounds its outputs, and converts the gradients the other way. The ledger
   * charges that memory to activations and copies. The set holds for the module alone: its children
   * run in 16 bits if they know them, between casts too. A module that wants a child to run in f32
   * asks for it (ek_child_options.precision).
   */
  unsigned types;

  /*
   * (optional) fallback: no state. Makes the state that this module keeps on one device for other
   * libraries that it calls: handles, graphs, caches. Called once for each use of the module in
   * each replica, parents first, in the thread that opens the replica (for a data-parallel model,
   * the device's worker). *state is NULL at first; ek_pass_state() gives it to forward and backward
   * of that use, and close frees it; two threads never use it at the same time. Memory that the
   * function takes from the device counts as held until close.
   */
  ek_status (*open)(const ek_module *self, ek_device *device, void **state);

  /*
   * (optional) fallback: nothing. Called for each open that succeeded, in the reverse order, when
   * the replica is freed, and when a later open fails: in the thread that does so, or on the
   * device's worker for a data-parallel model.
   */
  void (*close)(const ek_module *self, ek_device *device, void *state);

  /*
   * (optional) fallback: false. Forward or backward call ek_pass_all_reduce(). A data-parallel
   * model with such a module runs on every device. On a device without rows its inputs have no
   * rows: forward and backward must call the same collectives there, outputs have no rows (a scalar
   * is dropped), and nothing is added to gradients.
   *
   * If the model is `reproducible`, a device has several passes at the same time. Each runs on a
   * thread of its own, for the device's worker, and one of them at a time: while one is in
   * ek_pass_all_reduce(), the others run up to the same call. What a module keeps outside of its
   * pass (its state, variables of a thread) is then not what it was before the call.
   */
  bool collective;

  /*
   * (optional) fallback: no formula. Fills a struct of zeros with the formula that this module
   * computes, if it does nothing else. A chain (chain.h) may then do its work together with that of
   * a neighbour, and call neither forward nor backward. A module that stands in for its child and
   * adds nothing to it gives the child's formula, by ek_module_formula().
   */
  void (*formula)(const ek_module *self, ek_formula *formula);

  /*
   * (optional) fallback: false. Forward costs bandwidth and no products, and backward needs its one
   * input and little else, as with a norm or an activation; with ek_pass_kept() no collectives. A
   * container that recomputes what is cheap (recompute.h) then makes the output again instead of
   * keeping it for a module that saves it.
   */
  bool cheap;

  /*
   * (optional) fallback: no predictions. For a module with targets: computes its results without
   * them, such as logits where forward gives a loss. Reads the inputs that are not targets and
   * fills as many outputs as the module has predictions, as forward does; nothing is saved for a
   * backward.
   */
  ek_status (*predict)(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                       ek_tensor *outputs);

  /*
   * (optional) fallback: no facts. Returns a table that config.json beside a file of weights must
   * agree with (weights.h), and its length; the table lives as long as the module. Saved states
   * keep it, and agree with it when they are loaded (checkpoint.h). It needs only facts that the
   * shapes of the parameters do not show, such as the number of heads.
   */
  const ek_fact *(*facts)(const ek_module *self, size_t *count);

  /*
   * (optional) fallback: 0. EK_I32 or EK_I64: the type of integers that forward takes as input
   * number `input` (targets are the last inputs). A program may then give a data-parallel model or
   * criterion integers of any type in host memory; they are converted to this one on their way
   * (scatter.h). With 0, u8, u16 and u32 become i32, and i64 stays. A module that hands an input to
   * a child gives the child's type, by ek_module_input_type().
   */
  ek_type (*input_type)(const ek_module *self, size_t input);

  /*
   * (optional) fallback: false. In training the result of a sample depends on the other samples
   * that forward sees, as with statistics of a batch. A trainer that cuts batches into
   * micro-batches then logs one warning (log.h), because the module sees fewer samples.
   */
  bool mixes_samples;

  /*
   * (optional) fallback: no names. For a module that is a whole model: the names of its parameters
   * in files of the program whose configuration the facts describe (weights.h, model_folder.h). The
   * table lives as long as the module.
   */
  const ek_weight_names *(*weight_names)(const ek_module *self);

  /*
   * (optional) fallback: false. Forward does nothing but ek_chain_forward() (chain.h), from the
   * module's inputs to its outputs. Of two such modules that are neighbours in a chain, the second
   * may then compute the last addition of the first, together with a norm that it begins with.
   */
  bool chain;

  /*
   * (optional) fallback: backward does everything. The part of a backward that was given to
   * ek_pass_postpone(): adds into the gradients of parameters. `kept` are loans of the tensors that
   * were given, in their order. Nothing is saved any more; workspace is freed when it returns.
   */
  ek_status (*backward_later)(const ek_module *self, ek_pass *pass, const ek_tensor *kept);
} ek_module_ops;

/*
 * The first member of every module's struct. ek_module_init() fills it in and nothing writes it
 * afterwards. Its members belong to the library: read them with the functions below.
 */
struct ek_module {
  struct ek__module_private {
    const ek_module_ops *ops;
    size_t inputs, outputs, targets, terms, predictions;
    bool criterion;
    int references;
    ek_module *next;
  } private_members;
};

/* What ek_module_init() was given; NULL has no table, no kind and no tensors. */
EK_API const ek_module_ops *ek_module_table(const ek_module *module);
EK_API const char *ek_module_kind(const ek_module *module);   /* ops.kind; "" for NULL */
EK_API size_t ek_module_inputs(const ek_module *module);      /* with the targets */
EK_API size_t ek_module_outputs(const ek_module *module);
EK_API size_t ek_module_targets(const ek_module *module);     /* the last ones of the inputs */
EK_API size_t ek_module_predictions(const ek_module *module); /* that predict gives */
/* Of the base of a criterion (criterion.h): that it is one, and its rows of totals, else 0. */
EK_API bool ek_module_is_criterion(const ek_module *module);
EK_API size_t ek_module_terms(const ek_module *module);

/* The most terms of a criterion. */
#define EK_MAX_TERMS 64

/* What goes into a module and comes out of it. */
typedef struct ek_module_options {
  size_t size;
  size_t inputs;      /* without targets: 1 to EK_MAX_TENSORS */
  size_t outputs;     /* 1 to EK_MAX_TENSORS */
  size_t targets;     /* inputs after these: 0 to EK_MAX_TENSORS */
  size_t predictions; /* of predict: 0 to EK_MAX_TENSORS; 0 without that slot or without targets */
} ek_module_options;
#define EK_MODULE_OPTIONS_INIT                                                                     \
  {                                                                                                \
    .size = sizeof(ek_module_options), .inputs = 1, .outputs = 1, .targets = 0, .predictions = 0   \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_module_options_init(ek_module_options *options, size_t size);

/*
 * Fills the base of a new module with one reference. `ops` must stay valid for the module's life.
 * `options` NULL gives the defaults, one input and one output.
 * EK_ERR_INVALID_ARGUMENT for NULL, a required slot that is missing, or counts out of range.
 */
EK_API EK_CHECKED ek_status ek_module_init_with(ek_module *module, const ek_module_ops *ops,
                                                const ek_module_options *options);

/* With the default options, except for `inputs` and `outputs`. */
EK_API EK_CHECKED ek_status ek_module_init(ek_module *module, const ek_module_ops *ops,
                                           size_t inputs, size_t outputs);

/* Takes another reference and returns `module` (NULL for NULL). Safe from any thread. */
EK_API ek_module *ek_module_share(ek_module *module);

/* Drops a reference; the last one frees the module, and then its children. NULL is legal. */
EK_API void ek_module_free(ek_module *module);

/* The formula of a module; kind EK_FORMULA_NONE if it declares none, or has several inputs or
 * outputs. */
EK_API void ek_module_formula(ek_formula *formula, const ek_module *module);

/* The type that a module declares for an input; 0 if it declares none, or has no such input. */
EK_API ek_type ek_module_input_type(const ek_module *module, size_t input);

/* ---- declaring, inside `parameters` ---- */

typedef enum ek_initializer_kind {
  EK_INITIALIZER_CONSTANT = 0,
  EK_INITIALIZER_NORMAL = 1,
  EK_INITIALIZER_UNIFORM = 2,
  EK_INITIALIZER_VALUES = 3
} ek_initializer_kind;

/* constant: a. normal: mean a, standard deviation b. uniform: in [a, b). values: these. */
typedef struct ek_initializer {
  ek_initializer_kind kind;
  double a, b;
  const double *values;
} ek_initializer;

static inline ek_initializer ek_initializer_constant(double value) {
  const ek_initializer initializer = {EK_INITIALIZER_CONSTANT, value, 0, NULL};
  return initializer;
}
static inline ek_initializer ek_initializer_zeros(void) { return ek_initializer_constant(0); }
static inline ek_initializer ek_initializer_ones(void) { return ek_initializer_constant(1); }
static inline ek_initializer ek_initializer_normal(double mean, double deviation) {
  const ek_initializer initializer = {EK_INITIALIZER_NORMAL, mean, deviation, NULL};
  return initializer;
}
static inline ek_initializer ek_initializer_uniform(double low, double high) {
  const ek_initializer initializer = {EK_INITIALIZER_UNIFORM, low, high, NULL};
  return initializer;
}
/* One value for each element of the parameter, row by row, converted to its type. A loan: the array
 * must live as long as the module. */
static inline ek_initializer ek_initializer_values(const double *values) {
  const ek_initializer initializer = {EK_INITIALIZER_VALUES, 0, 0, values};
  return initializer;
}

/*
 * Declares the module's next parameter, of the pass's floating type; the first is number 0. Random
 * values depend on the replica's seed and on the parameter's full name
 * ("blocks.3.attention.weight") alone. Names are UTF-8, have no dot and no slash, do not begin
 * with "__" (files of tensors use such names) and are unique within the module; the string is
 * copied. EK_ERR_INVALID_ARGUMENT for other names.
 */
EK_API EK_CHECKED ek_status ek_declare_parameter(ek_declaration *declaration, const char *name,
                                                 int rank, const int64_t *shape,
                                                 ek_initializer initializer);

/* How an optimizer treats a parameter. For tied parameters the options of the source hold. */
typedef struct ek_parameter_options {
  size_t size;
  bool no_decay; /* weight decay leaves it alone: biases and weights of norms */
  bool frozen;   /* it has no gradient: no update changes it */
  /* A rule that takes whole matrices (muon.h) updates it as it updates what is no matrix: tables of
   * embeddings, and the weight of an output layer, whose rows belong to tokens or classes. */
  bool elementwise;
} ek_parameter_options;
#define EK_PARAMETER_OPTIONS_INIT                                                                  \
  { .size = sizeof(ek_parameter_options), .no_decay = false, .frozen = false, .elementwise = false }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_parameter_options_init(ek_parameter_options *options, size_t size);

/*
 * Settings for parameters by name, which a program gives when it opens a model (options of
 * replica.h and data_parallel_model.h). A pattern is compared with full names
 * ("encoder.0.weight"). `*` matches any characters, dots included, or none, and `?` matches one
 * character. A tied parameter matches under the name of its source and under its other names.
 * Buffers match nothing.
 *
 *     static const ek_parameter_pattern patterns[] = {
 *       {.pattern = "encoder.*", .frozen = true},
 *       {.pattern = "head.*", .rate_scale = 10, .weight_decay = 0.1},
 *       {.pattern = "*.bias", .no_decay = true}};
 *
 * If several patterns match a parameter, the last one applies, alone: here "head.bias" has the
 * plain learning rate, and "encoder.0.bias" is trained. A parameter that its module declares frozen
 * stays frozen. A weight decay of a pattern also applies to parameters that are declared without
 * decay.
 */
typedef struct ek_parameter_pattern {
  const char *pattern;
  bool frozen;         /* as if the module had declared it: no gradient, no state, no update */
  bool no_decay;       /* as if the module had declared it */
  bool elementwise;    /* the same */
  double rate_scale;   /* factor of the learning rate; 0: 1 */
  double weight_decay; /* replaces that of the optimizer's options; 0: that one */
} ek_parameter_pattern;

/* The same with options; NULL gives the defaults. */
EK_API EK_CHECKED ek_status ek_declare_parameter_with(ek_declaration *declaration, const char *name,
                                                      int rank, const int64_t *shape,
                                                      ek_initializer initializer,
                                                      const ek_parameter_options *options);

/*
 * Declares a buffer: numbered with the parameters in one sequence and read with
 * ek_pass_parameter(), but without gradient and not touched by optimizers. A training forward may
 * write its own replica's; device 0's is what all devices see at the next forward.
 */
EK_API EK_CHECKED ek_status ek_declare_buffer(ek_declaration *declaration, const char *name,
                                              int rank, const int64_t *shape,
                                              ek_initializer initializer);

/* Declares the next child; the first is number 0. The child must live as long as the module. */
EK_API EK_CHECKED ek_status ek_declare_module(ek_declaration *declaration, const char *name,
                                              ek_module *child);

/*
 * Declares child number 0 for a module that stands in for its child, such as one that runs
 * it again in backward: the names of its parameters, their initial values and its random numbers
 * are as if the child stood there alone. The child's parameters are the module's too, and take its
 * next numbers. EK_ERR_INVALID_ARGUMENT if there is a child already.
 */
EK_API EK_CHECKED ek_status ek_declare_wrapped(ek_declaration *declaration, ek_module *child);

/*
 * Makes the module, with all of its children, a unit: in mode fully-sharded (data_parallel_model.h)
 * its parameters are gathered when one of its functions begins and released when it has returned. A
 * unit should hold parameters that are used at about the same time, such as those of a block of a
 * decoder. A unit within it is separate, and so are frozen parameters beside trained ones, which
 * are gathered for the module that has them. Other modes ignore it. EK_ERR_INVALID_ARGUMENT if the
 * module has declared anything before.
 */
EK_API EK_CHECKED ek_status ek_declare_unit(ek_declaration *declaration);

/*
 * Makes two parameters one: from now on `name` stands for the memory of `source`. Both are paths
 * from this module ("head.weight", "tokens.weight"), both declared before, of the same shape.
 * Initial values and options are the source's. The gradient is the sum over both uses and is
 * complete when all users have said so.
 */
EK_API EK_CHECKED ek_status ek_declare_tie(ek_declaration *declaration, const char *name,
                                           const char *source);

/*
 * Freezes what this module has declared before under a path from it: a parameter ("head.weight"),
 * or a child with all that is in it ("blocks.0", but not "blocks.01"); "" is everything. The
 * parameters are then frozen as if they were declared so (ek_parameter_options). A tied parameter
 * is frozen if any of its names is, whether the tie is declared before this or after. A child
 * without parameters has nothing to freeze, which is no error, and buffers are not affected.
 * EK_ERR_NOT_FOUND    no parameter or child of that path; the message has the nearest name
 * EK_ERR_INVALID_ARGUMENT  the path of a buffer
 */
EK_API EK_CHECKED ek_status ek_declare_frozen(ek_declaration *declaration, const char *path);

EK_END_DECLARATIONS

#endif /* EVENKEEL_MODULE_H */
