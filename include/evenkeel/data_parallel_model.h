/*
 * data_parallel_model.h - a module trained over all devices of a group.
 *
 *     mode         outputs and loss      parameters, gradients, optimizer state
 *     gather       on one device         master on device 0, broadcast and summed
 *     balanced     on their devices      the same
 *     replicated   on their devices      a full copy each, gradients all-reduced
 *     sharded      on their devices      parameters each, optimizer state 1/N each
 *     sharded-gradients                  the same, and gradients 1/N each: a bucket is whole from
 *                                        its first gradient until it was reduced (ZeRO-2)
 *     fully-sharded                      all of it 1/N each: parameters are gathered for the unit
 *                                        of modules that runs (ZeRO-3, FSDP)
 *
 * The two columns are independent options. All modes compute the same training, to rounding, as one
 * device would with the whole batch. Where gradients are sharded, each micro-batch is summed over
 * the devices by itself and added to each device's share of the step.
 *
 * The units of fully-sharded are the modules that declare themselves units (ek_declare_unit(); each
 * block of a GPT). Other modules are joined with their neighbours into units of bucket_bytes or
 * more. A device holds the unit that runs and gathers the one that is expected next, in the order
 * of declaration in forward and in the reverse order in backward. Every device runs the model, also
 * with inputs of no rows, and all devices must run the same modules in the same order. So a module
 * must not decide by the values or the number of its rows which children it runs, what it saves and
 * takes back, or when it says that a gradient is complete. If it does, all devices get EK_ERR_SHAPE
 * ("the devices called different collectives"); a library built with assertions finds more cases.
 *
 * A training step (forward, criterion, backward, optimizer) is a transaction: if any of them fails
 * before the update, parameters, optimizer state and random masks are as before the step, gradients
 * that the step had accumulated are dropped, and the step can be started again. Buffers that
 * modules write in a training forward (running statistics) may have changed.
 *
 * A failure inside the update itself (a device that dies, a rule of the program's own that returns
 * an error) may leave the update incomplete. The model is then torn: every later call for it, its
 * criteria and its optimizer returns EK_ERR_TORN, until the program has written all of its state
 * (state.h), or has freed and opened them again. Where devices run asynchronously (cuda), a later
 * call may be the one that detects the failure and returns it; the calls after that return
 * EK_ERR_TORN.
 *
 * On GPUs of several processes the failure of one model's call may cut off what another model of
 * the group has queued for a step that goes on. Its next call then returns EK_ERR_STATE in all
 * processes, the gradients that it has accumulated are dropped, and the step can be started again.
 *
 * A model, and the criteria and the optimizer opened for it, belong to one thread at a time, which
 * is not a worker: while one is in a function of theirs, another gets EK_ERR_STATE.
 */
#ifndef EVENKEEL_DATA_PARALLEL_MODEL_H
#define EVENKEEL_DATA_PARALLEL_MODEL_H

#include <evenkeel/module.h>
#include <evenkeel/optimizer.h>
#include <evenkeel/replica.h>
#include <evenkeel/scatter.h>

EK_BEGIN_DECLARATIONS

typedef enum ek_output_placement {
  EK_OUTPUTS_STAY = 0,  /* each part on its device */
  EK_OUTPUTS_GATHER = 1 /* all rows on output_device */
} ek_output_placement;

typedef enum ek_state_placement {
  EK_STATE_MASTER = 0,
  EK_STATE_REPLICATED = 1,
  EK_STATE_SHARDED = 2,
  EK_STATE_SHARDED_GRADIENTS = 3,
  EK_STATE_FULLY_SHARDED = 4
} ek_state_placement;

/* The devices over which the sharded placements cut the state, in a world of several processes. */
typedef enum ek_shard_over {
  EK_SHARD_WORLD = 0,  /* over the devices of all processes */
  EK_SHARD_PROCESS = 1 /* over those of each process: the processes have the same, and what is
                          gathered stays within them; all have the same number of devices */
} ek_shard_over;

typedef enum ek_mode {
  EK_MODE_GATHER = 0,
  EK_MODE_BALANCED = 1,
  EK_MODE_REPLICATED = 2,
  EK_MODE_SHARDED = 3,
  EK_MODE_SHARDED_GRADIENTS = 4,
  EK_MODE_FULLY_SHARDED = 5
} ek_mode;

EK_API const char *ek_mode_name(ek_mode mode); /* "gather"; "unknown" outside the list */
/* EK_ERR_INVALID_ARGUMENT for an unknown name. */
EK_API EK_CHECKED ek_status ek_mode_parse(ek_mode *mode, const char *name);

typedef struct ek_data_parallel_model_options {
  size_t size;
  ek_output_placement outputs;
  ek_state_placement state;
  size_t output_device;      /* for EK_OUTPUTS_GATHER */
  ek_type type;              /* of parameters: EK_F32, or EK_F64 for checks */
  uint64_t seed;             /* initial values and random masks */
  uint64_t broadcast_inputs; /* bit i: input i goes whole to every device */
  /* Of the gradient reduction, and of units that are not marked; 0: 25 MiB on CUDA devices, on
   * others 4 MiB. See ek_reducer_options. */
  size_t bucket_bytes;
  /*
   * Not 0: the same bits for any number of devices from 1 to this many (256 at most), in every
   * mode. The batch of every forward is cut into this number of *grains*, whose sizes differ by at
   * most one, larger first; each is computed by itself, and what is added over samples is added
   * over the grains along one fixed tree (docs/numerics.md). Two runs agree if they have the same
   * `reproducible`, bucket_bytes, seed and type, micro-batches of the same sizes, and devices of
   * one kind. The group must be opened with ek_group_options.deterministic. The option costs memory
   * for partial sums (docs/memory.md) and speed.
   *
   * Leave scattering to forward, or cut shards with EK_SCATTER_GRAINS. A module sees the rows of
   * one grain at a time, so statistics over its rows (batch normalisation) are those of a grain,
   * unless it adds them up by ek_pass_all_reduce(); buffers that it writes are those of grain 0.
   * Gradients are not computed in a forward. If modules have collectives
   * (ek_module_ops.collective), the grains of a device advance together from one collective to the
   * next: each has a thread, and one thread runs at a time. The device then holds the gradients of
   * all its grains. In a world the devices are those of all processes, and a batch is that of all
   * of them: each process gives the rows of its devices' grains, ek_world_rows(), and has
   * EK_ERR_SHAPE for others.
   */
  size_t reproducible;
  /*
   * The precision that modules of this model compute in: by default that of `type`; with f32 also
   * TF32, BF16 or F16.
   *
   * In TF32 all tensors and all memory are those of f32. Products, including those of attention,
   * may round their factors to 10 bits of mantissa in forward and backward, as the tensor cores of
   * cuda devices do; their sums, and everything else, are f32. A device that does not round so
   * (ek_device_precisions(), a CPU) gives what f32 gives, bit for bit.
   *
   * In 16 bits parameters are f32 *masters*, with the optimizer's state, and modules see copies of
   * 16 bits, which the update writes; so activations, outputs and their gradients are of 16 bits.
   * Statistics, losses, norms, buffers and, except for `gradient_type`, gradients of parameters are
   * f32 or f64 as before. A floating input or target in f32 is rounded on its way into the module.
   * A module that declares f32 alone runs between casts (module.h).
   *
   *     mode                          of a parameter, on each of N devices: bytes, with AdamW
   *     gather, balanced              2, gradient 4; on the first 4 + 8 more
   *     replicated                    2 + 4 + 8, gradient 4
   *     sharded                       2 + 12/N, gradient 4
   *     sharded-gradients             2 + 12/N + 4/N
   *     fully-sharded                 (2 + 12 + 4)/N
   *
   * State by name and files have the masters, so a run goes on in another precision.
   * EK_ERR_UNSUPPORTED, before anything is allocated, for devices that do not compute in 16 bits
   * (ek_device_types()); EK_ERR_INVALID_ARGUMENT beside parameters of f64.
   */
  ek_precision precision;
  /*
   * The type of the gradients of parameters that devices keep and sum: 0 for `type`, or, with f32,
   * EK_BF16 or EK_F16: the type of the precision, or either of the two if that is f32 or tf32.
   * Halves the memory and the traffic of gradients: 2 instead of 4 bytes in the table above.
   * Modules still add to f32 gradients, and the sum of a backward is rounded once, when the
   * gradient is complete; the f32 gradients of one module at a time, and of parameters that are
   * used twice, need memory of their own (docs/memory.md). Sums over the devices are made in f32
   * and rounded once, except that NCCL rounds each addition (communicator.h). Micro-batches are
   * added up in f32 and rounded for each of them; norms and updates compute in f32 or f64.
   * Gradients in f16 want a loss scale and have one by default (data_parallel_optimizer.h). State,
   * files and gradients by name are f32 as before. EK_ERR_INVALID_ARGUMENT for types that do not go
   * together, EK_ERR_UNSUPPORTED for devices that do not compute in it.
   */
  ek_type gradient_type;
  /*
   * Read when the model opens: parameters that are frozen, or that have a learning rate or a weight
   * decay of their own, by name (ek_parameter_pattern in module.h). A parameter that is frozen by a
   * pattern is, to the bit and the byte, one that its module declares frozen. Errors of patterns:
   * ek_replica_open().
   */
  const ek_parameter_pattern *patterns;
  size_t pattern_count;
  /*
   * How inputs of u8 and u16 in host memory become numbers of `type`, such as pixels: one for each
   * of the first inputs (targets of the module count as inputs), copied. An input that has one with
   * channels is such integers in every forward: EK_ERR_TYPE for others. The others' integers become
   * what the module declares (ek_module_input_type()).
   */
  const ek_input_scaling *input_scaling;
  size_t input_scaling_count;
  /*
   * With EK_SHARD_PROCESS gradients are added up within each process first, and then over the
   * processes, (a + b) + (c + d), so other bits come out than over the world; gradients of 16 bits
   * are rounded after each of the two. Between processes a step sends what `replicated` sends with
   * one device in each. EK_ERR_INVALID_ARGUMENT if the processes have different numbers of devices;
   * EK_ERR_UNSUPPORTED with `reproducible`.
   */
  ek_shard_over shard_over;
  /*
   * The rule that the optimizer of this model will have, a loan until the model is open: needed for
   * a rule that takes parameters whole (muon.h), because what devices have shares of is then cut
   * between these parameters. Other rules change nothing. ek_trainer_open() gives its own.
   */
  const ek_optimizer *optimizer;
} ek_data_parallel_model_options;
#define EK_DATA_PARALLEL_MODEL_OPTIONS_INIT                                                        \
  {                                                                                                \
    .size = sizeof(ek_data_parallel_model_options), .outputs = EK_OUTPUTS_STAY,                    \
    .state = EK_STATE_REPLICATED, .output_device = 0, .type = EK_F32, .seed = 0,                   \
    .broadcast_inputs = 0, .bucket_bytes = 0, .reproducible = 0,                                   \
    .precision = EK_PRECISION_DEFAULT, .gradient_type = (ek_type)0, .patterns = NULL,              \
    .pattern_count = 0, .input_scaling = NULL, .input_scaling_count = 0,                           \
    .shard_over = EK_SHARD_WORLD, .optimizer = NULL                                                \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status
ek_data_parallel_model_options_init(ek_data_parallel_model_options *options, size_t size);

/* Sets the two placements of a mode and leaves the rest. */
EK_API EK_CHECKED ek_status
ek_data_parallel_model_options_set_mode(ek_data_parallel_model_options *options, ek_mode mode);

typedef struct ek_data_parallel_model ek_data_parallel_model;

/* `options` NULL gives the defaults (mode replicated). Keeps a reference to the module. The group
 * must outlive the model. EK_ERR_UNSUPPORTED for modes gather and balanced between processes. */
EK_API EK_CHECKED ek_status
ek_data_parallel_model_open(ek_data_parallel_model **model, ek_group *group, ek_module *module,
                            const ek_data_parallel_model_options *options);
EK_API void ek_data_parallel_model_free(ek_data_parallel_model *model);

/* The group it was opened on, a loan. */
EK_API ek_group *ek_data_parallel_model_group(const ek_data_parallel_model *model);
/* Number `index` of the replicas, a loan; NULL outside. */
EK_API ek_replica *ek_data_parallel_model_replica(const ek_data_parallel_model *model,
                                                  size_t index);

typedef struct ek_forward_options {
  size_t size;
  const ek_scatter_options *scatter; /* NULL: even */
  bool gradient;                     /* a backward follows */
  bool training;                     /* dropout is on */
  /*
   * Where several models share one batch: its number of samples (0: this call's are all) and which
   * of them is the first here. Random masks are those of the whole. With 0 the batch of
   * several processes is theirs together, in the order of their ranks: they all call forward.
   */
  int64_t batch_samples, first_sample;
} ek_forward_options;
#define EK_FORWARD_OPTIONS_INIT                                                                    \
  {                                                                                                \
    .size = sizeof(ek_forward_options), .scatter = NULL, .gradient = true, .training = true,       \
    .batch_samples = 0, .first_sample = 0                                                          \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_forward_options_init(ek_forward_options *options, size_t size);

/*
 * Scatters the inputs (host tensors, or on a device of the group), converts integers of host memory
 * on their way (scatter.h), runs the module, and gives one ek_shards per output of the module, in
 * order. The caller owns them and frees them after backward. They carry the number of this forward.
 * `outputs` is overwritten without freeing what it held, and on failure is left as it was. In mode
 * gather only the part of output_device has rows. At least one input must be scattered, and
 * scattered inputs must have equal numbers of rows; inputs that are targets (module.h) may have a
 * multiple of that, and are cut at the same samples. A forward without a backward is dropped by the
 * next forward.
 *
 * Without gradient the targets of a module that predicts (module.h) may be left out: the outputs
 * are then its predictions, on their devices in every mode.
 */
EK_API EK_CHECKED ek_status ek_data_parallel_model_forward(ek_shards *outputs,
                                                           ek_data_parallel_model *model,
                                                           const ek_tensor *inputs,
                                                           size_t input_count,
                                                           const ek_forward_options *options);

/*
 * The same with inputs that are on their devices already, so that the next batch travels while this
 * one computes. The results are the same, bit for bit.
 *
 *     ek_shards x[2] = {{0}}, t[2] = {{0}}, outputs = {0};   // this batch and the next, in turns
 *     ek_scatter_options early = EK_SCATTER_OPTIONS_INIT;
 *     early.ahead = true;
 *     ek_status status;
 *     EK_TRY_GOTO(status, ek_scatter(&x[0], group, &inputs[0], EK_MEMORY_INPUTS, &early), cleanup);
 *     EK_TRY_GOTO(status, ek_scatter_like(&t[0], &x[0], &targets[0], EK_MEMORY_INPUTS), cleanup);
 *     for (int i = 0; i < steps; i++) {
 *       ek_shards *const xi = &x[i % 2], *const ti = &t[i % 2];
 *       if (i + 1 < steps) {
 *         // before this step's work: memory that is free now waits for the last step at most
 *         ek_shards *const xn = &x[(i + 1) % 2], *const tn = &t[(i + 1) % 2];
 *         EK_TRY_GOTO(status, ek_scatter(xn, group, &inputs[i + 1], EK_MEMORY_INPUTS, &early),
 *                     cleanup);
 *         EK_TRY_GOTO(status, ek_scatter_like(tn, xn, &targets[i + 1], EK_MEMORY_INPUTS), cleanup);
 *       }
 *       EK_TRY_GOTO(status, ek_data_parallel_model_forward_shards(&outputs, model, xi, 1, NULL),
 *                   cleanup);
 *       EK_TRY_GOTO(status,
 *                   ek_data_parallel_criterion_forward_shards(criterion, &outputs, 1, ti, 1),
 *                   cleanup);
 *       ek_shards_free(xi);
 *       ek_shards_free(ti);
 *       EK_TRY_GOTO(status, ek_data_parallel_criterion_backward(criterion, NULL), cleanup);
 *       EK_TRY_GOTO(status, ek_data_parallel_optimizer_step(NULL, optimizer), cleanup);
 *       ek_shards_free(&outputs);
 *     }
 *   cleanup:
 *     for (int k = 0; k < 2; k++) {
 *       ek_shards_free(&x[k]);
 *       ek_shards_free(&t[k]);
 *     }
 *     ek_shards_free(&outputs);
 *     return status;
 *
 * inputs: one ek_shards of the model's group per input, a row for each sample, all with the same
 * cut; whole on every device (ek_scatter_broadcast) where broadcast_inputs says so. They stay the
 * caller's, who may free them when this returns. options->scatter is NULL. EK_ERR_SHAPE for a cut
 * that does not fit, EK_ERR_DEVICE for a part that is elsewhere; nothing is lost then.
 */
EK_API EK_CHECKED ek_status ek_data_parallel_model_forward_shards(
    ek_shards *outputs, ek_data_parallel_model *model, const ek_shards *inputs, size_t input_count,
    const ek_forward_options *options);

typedef struct ek_backward_options {
  size_t size;
  /*
   * Another micro-batch of the same step follows: gradients are added up, and summed over the
   * devices after the last one. Random masks and the weight go on as in one large batch.
   */
  bool accumulate;
  /*
   * One f64 tensor {s, D} per device, the same on all: the loss's sum and weight over all devices,
   * as ek_data_parallel_criterion_totals() gives them. The gradients of a step are divided by the
   * sum of its D. NULL: {0, 0}, and nothing is divided.
   */
  const ek_tensor *totals;
  bool sum; /* the loss is a sum: totals give the loss of the step, but nothing is divided */
  /* The totals are those of the whole step so far, this micro-batch included: they replace the
   * earlier ones instead of being added. The same in all micro-batches of a step. */
  bool running;
  /*
   * A power of two (loss_scale.h) by which the program has multiplied these gradients; the update
   * divides by it. The same in all micro-batches of a step. 0: none, as 1.
   */
  double loss_scale;
} ek_backward_options;
#define EK_BACKWARD_OPTIONS_INIT                                                                   \
  {                                                                                                \
    .size = sizeof(ek_backward_options), .accumulate = false, .totals = NULL, .sum = false,        \
    .running = false, .loss_scale = 0                                                              \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_backward_options_init(ek_backward_options *options, size_t size);

/*
 * Backward of the last forward from the gradients of its outputs, one ek_shards per output, laid
 * out as forward gave them. ek_data_parallel_criterion_backward() calls it; a program with a loss
 * of its own calls it directly. Gradients of the same step are all divided or all not: else
 * EK_ERR_STATE. EK_ERR_STATE too for shards that are outputs of another forward than the last.
 */
EK_API EK_CHECKED ek_status ek_data_parallel_model_backward(ek_data_parallel_model *model,
                                                            const ek_shards *gradients,
                                                            size_t count,
                                                            const ek_backward_options *options);

/* Drops what was accumulated since the last step. */
EK_API EK_CHECKED ek_status ek_data_parallel_model_discard(ek_data_parallel_model *model);

/*
 * Reads the gradient of a step, summed over all devices and micro-batches and divided by D and by
 * the loss scale, between the last backward of the step and the optimizer, into host memory as
 * ek_state_read() does. EK_ERR_STATE at other times, EK_ERR_INVALID_ARGUMENT for a buffer or a
 * frozen parameter, which have none.
 */
EK_API EK_CHECKED ek_status ek_data_parallel_model_gradient(ek_tensor *host,
                                                            const ek_data_parallel_model *model,
                                                            const char *name);

EK_END_DECLARATIONS

#endif /* EVENKEEL_DATA_PARALLEL_MODEL_H */
