/*
 * parallel_internal.h - a data-parallel model from the inside, for its optimizer.
 */
#ifndef EK_PARALLEL_INTERNAL_H
#define EK_PARALLEL_INTERNAL_H

#include <stdatomic.h>

#include <evenkeel/communicator.h>
#include <evenkeel/data_parallel_model.h>
#include <evenkeel/pass.h>
#include <evenkeel/reduce.h>

#include "core/owner.h"
#include "device/conversion.h"
#include "device/device_internal.h"
#include "module/replica_internal.h"

/* What the gradients of the running step are. */
enum ek__step_stage {
  EK__STEP_EMPTY,       /* none */
  EK__STEP_ACCUMULATED, /* each device has its own sum */
  EK__STEP_REDUCED      /* the devices' sums are where the state placement wants them */
};

struct ek_data_parallel_optimizer;
struct ek__keeper;

/* What a placement of the state means: placement.c. */
struct ek__placement {
  ek_reduce_kind reduce;
  bool master;           /* device 0 has the state, and the others get parameters from it */
  bool state_shares;     /* each device has the optimizer's state of its part of every bucket */
  bool gradient_shares;  /* the same of the gradients: keeper.h */
  bool parameter_shares; /* and of the parameters; buckets are units then */
};
enum { EK__PLACEMENTS = EK_STATE_FULLY_SHARDED + 1 };

/* Entries of the state that are numbers of the host: state.c. */
enum { EK__RUN_NUMBERS = 4 };

/*
 * What gradients are multiplied with on their way: the scale of loss_scale.h over a unit, the least
 * power of two that is not below the number of targets. So a scale counts from the gradient of the
 * mean, though D is not known yet, and nothing is rounded.
 */
struct ek__scaling {
  double factor, unit;
};

struct ek_data_parallel_model {
  struct ek__owner owner; /* of the model, and of the criteria and optimizers opened for it */
  ek_group *group;
  size_t count;
  ek_module *module;
  ek_data_parallel_model_options options;
  ek_input_scaling *scalings; /* a copy of those of the options, or NULL */
  ek_communicator *communicator;
  ek_communicator *inner; /* for collectives of modules; NULL if none of them declares any */
  ek_replica **replicas;  /* one per device */
  ek_reducer *reducer;
  struct ek__keeper **keepers; /* one per device; NULL where replicas hold everything whole */
  struct ek_data_parallel_criterion *criteria; /* those that are open for it */
  ek_pass **passes;  /* of a forward whose backward has not come: one for each device, or as many
                      * as one may have grains (grains.h) */
  size_t pass_count; /* of all devices */
  struct ek__grain_memory *grain_memory; /* of each device, if it is reproducible: grains.h */
  ek_shards part_shapes[EK_MAX_TENSORS]; /* where the rows of the last forward's outputs lie */
  uint64_t last_forward;                 /* number of the last forward; its outputs carry it */
  uint64_t pending;                      /* the same while its backward may still come, else 0 */
  bool last_gradient;                    /* it was with gradient */
  double last_scale;                     /* that it was promised for its totals; 0: none */
  struct ek__scaling last_scaling;       /* part of last_scale, if it computes its loss itself */
  int64_t forward_samples;               /* rows of that forward, here */
  int64_t first_sample;                  /* of them, among the step's of all processes */
  int64_t batch_samples;                 /* of all processes */
  bool replicas_stale;                   /* state `master`: device 0 is ahead of the others */
  bool buffers_stale; /* a training forward has run: device 0's go to the others */
  bool reducing;      /* read by workers: this backward is the step's last */
  struct ek_data_parallel_optimizer *optimizer; /* the one that is open for it */

  /* The running step. */
  enum ek__step_stage stage;
  bool divided;               /* its gradients will be divided by D */
  struct ek__scaling scaling; /* that they were multiplied with, and will be divided by */
  int64_t step;               /* steps taken */
  bool running;               /* its totals come whole with each micro-batch */
  uint32_t micro_batches;     /* backwards so far */
  int64_t step_samples;       /* of its micro-batches so far, of all processes */
  ek_tensor *totals;          /* f64 {s, D}, the same on every device */
  /* (optional) asked before the update whether the gradients are what they should be. */
  ek_status (*before_update)(void *context);
  void *before_update_context;

  /* Whether the update is whole: model_torn.c. */
  atomic_bool updating;   /* set by workers, cleared by the model's thread */
  _Atomic uint64_t tears; /* how often it tore */
  uint64_t mended;        /* so many of them are over */
  uint64_t *written;      /* per parameter and buffer, and number of `run`: model_torn.c */
  uint64_t mending;       /* the tear that entries are being written after */
  size_t written_count;   /* entries since then */
  struct ek__abortable watch;
};

/* Among the first lines of every public function that works on a model or on what was opened for
 * it: EK_ERR_STATE while another thread is in one of them. */
#define EK__MODEL_ENTER(model, who)                                                                \
  EK__OWNER_ENTER((struct ek__owner *)(uintptr_t) & (model)->owner, who, "the model")
/* The same, and EK_ERR_TORN for a model whose update failed halfway. */
#define EK__MODEL_USE(model, who)                                                                  \
  EK__MODEL_ENTER(model, who);                                                                     \
  EK_TRY(ek__model_check(model))

/* ---- placement.c ---- */

const struct ek__placement *ek__placement(const ek_data_parallel_model *model);

/* Whether each device has a share of the parameters that are updated; and, with copies for the
 * modules, the replica's word for who has them. */
bool ek__model_shares_masters(const ek_data_parallel_model *model);
enum ek__masters ek__model_masters(const ek_data_parallel_model *model);

/* ---- masters.c: parameters of which modules see copies ---- */

/* On a device's worker, when the reducer is open: a replica whose masters are shared gets its
 * own. */
ek_status ek__masters_open(ek_data_parallel_model *model, ek_device *device, size_t index);
/* On a device's worker: everybody gets everybody's part of each bucket of what modules see, that is
 * trained, or of frozen parameters as well. */
ek_status ek__masters_share(const ek_data_parallel_model *model, ek_device *device, size_t index,
                            bool frozen);

/* ---- model_torn.c ---- */

/* EK_ERR_TORN, with the one sentence there is for it, if an update failed halfway; else EK_OK. */
ek_status ek__model_check(const ek_data_parallel_model *model);
/* Called before anybody writes parameters or state, and when all that was asked for is queued. */
void ek__model_update_begins(ek_data_parallel_model *model);
void ek__model_update_ended(ek_data_parallel_model *model);
/* All of its state is about to be written: until the last entry is, the model is torn. */
void ek__model_tear(ek_data_parallel_model *model);
/*
 * A write of an entry of the state (state.c) begins: *tear becomes the number of the tear that it
 * mends a part of, 0 for a good model. It has ended well; *written is the entry's own.
 */
void ek__model_write_begins(uint64_t *tear, ek_data_parallel_model *model);
void ek__model_write_ended(ek_data_parallel_model *model, uint64_t tear, uint64_t *written,
                           size_t entries);
/* From now on failures of the group's jobs are watched; until the second call. */
void ek__model_watch(ek_data_parallel_model *model);
void ek__model_unwatch(ek_data_parallel_model *model);

/* ---- shards.c ---- */

/* EK_ERR_INVALID_ARGUMENT for NULL and zero structs, EK_ERR_STATE for a copy of freed shards. */
ek_status ek__shards_check(const char *who, const ek_shards *shards);
/* Makes a part without rows, of the type and other dimensions of `like`, or of any (NULL). */
ek_status ek__shards_empty_part(ek_shards *shards, size_t index, const ek_tensor *like);
/* Copies offsets and samples, of shards of the same group. */
void ek__shards_cut_like(ek_shards *shards, const ek_shards *like);

/* ---- scatter.c: ek_scatter() in two steps ---- */

/* Checks everything and cuts; the parts do not exist yet. `who` begins the messages. */
ek_status ek__scatter_lay(ek_shards *shards, const char *who, ek_group *group,
                          const ek_tensor *source, bool broadcast,
                          const ek_scatter_options *options);
/* The same at the samples of `like`. */
ek_status ek__scatter_lay_like(ek_shards *shards, const char *who, const ek_shards *like,
                               const ek_tensor *source);
/* Makes the parts at the offsets of the shards, which keep what there is if it fails. */
/* `intake`: what integers of host memory become; NULL: what they are. */
ek_status ek__scatter_fill(ek_shards *shards, const ek_tensor *source, ek_memory_category category,
                           const struct ek__conversion *intake);
/*
 * What the parts of a source become, in intake->to: `type` where that is for integers and the
 * source has such in host memory, and its own type otherwise; with 0 unsigned integers become i32.
 * EK_ERR_TYPE for a source that cannot become the floating `type`.
 */
ek_status ek__intake_choose(struct ek__conversion *intake, const char *who, const ek_tensor *source,
                            ek_type type, const ek_input_scaling *scaling);
ek_status ek__scaling_check(const char *who, const ek_input_scaling *scaling);

/*
 * The same for inputs of a model and targets of a criterion: as its scaling says, which makes them
 * `floating`, or what the module declares (ek_module_input_type()). `scalings`: one for each of the
 * first `count`.
 */
struct ek__intakes {
  const ek_module *module;
  size_t first; /* the number, among the module's inputs, of what is number 0 here */
  const ek_input_scaling *scalings;
  size_t count;
  ek_type floating;
};
ek_status ek__intake_of(struct ek__conversion *intake, const char *who,
                        const struct ek__intakes *intakes, size_t number, const ek_tensor *source);
/* A copy of a program's scalings, which were checked; ek__free() it. */
ek_status ek__scalings_copy(ek_input_scaling **copy, const char *who,
                            const ek_input_scaling *scalings, size_t count, size_t most);

/* ---- parallel_apply.c: ek_parallel_apply() with arguments that were checked, into scratch that a
 * failure may leave as it likes ---- */

/* `predict`: what the modules predict, in the place of their forwards. */
ek_status ek__parallel_apply(ek_shards *made, size_t output_count, ek_pass *const *passes,
                             const ek_shards *inputs, size_t input_count, bool predict);
/* Row offsets from the parts; a device that did no work gets a part without rows. `lead`: the input
 * whose samples these are. */
ek_status ek__parallel_apply_finish(ek_shards *output, const ek_shards *lead);

/* ---- model_backward.c ---- */

/* ek_data_parallel_model_backward() in the model's thread; gradients of a criterion, which have the
 * scale that forward was promised. unit: of their loss scale. */
ek_status ek__model_backward(ek_data_parallel_model *model, const ek_shards *gradients,
                             size_t count, const ek_backward_options *options, double unit);
/* Brings the step's gradients to stage reduced. EK_ERR_STATE if there are none. */
ek_status ek__model_reduce(ek_data_parallel_model *model);

/* The loss scale of a micro-batch with so many targets, 0 for a loss that is not divided: that of
 * the running step, or else of the next. */
struct ek__scaling ek__model_scaling(const ek_data_parallel_model *model, int64_t targets);
/* The same of a forward of these inputs, `lead` the first that is cut, of a model that computes its
 * loss itself; without a criterion, 1. */
struct ek__scaling ek__model_own_scaling(const ek_data_parallel_model *model,
                                         const ek_shards *inputs, size_t lead);
/* The scale of the totals that a criterion of the model has promised its forwards, last_scaling
 * included; 0: none. */
double ek__model_scale(const ek_data_parallel_model *model);
/* The most elements that any of these targets has over all devices, and no fewer than samples; they
 * are tensors that are still to be cut, or shards (NULL: tensors). */
int64_t ek__targets_most(const ek_tensor *tensors, const ek_shards *shards, size_t count,
                         int64_t samples);

/* Drops the passes of a forward whose backward has not come. */
void ek__model_drop_forward(ek_data_parallel_model *model);

/* The step is over: the next one begins. `taken` if parameters were updated. */
void ek__model_end_step(ek_data_parallel_model *model, bool taken);

/* Its optimizer is being freed: the run is over, the next one begins with step 0. */
void ek__model_lose_optimizer(ek_data_parallel_model *model);

/* Elements first .. first + count - 1 of a flat buffer, a loan. */
ek_tensor ek__flat_range(const ek_tensor *flat, int64_t first, int64_t count);

/* Between a device and the host; where their types, floating ones, differ, element for element
 * (ek__floats_convert()), in pieces on the stack. On a `plan` device nothing is copied. */
ek_status ek__copy_converted(ek_tensor *destination, const ek_tensor *source);

/* ---- given_shards.c ---- */

/* Whether a target is cut at the samples of `like`, whole samples each. */
bool ek__target_fits(const ek_shards *target, const ek_shards *like);
/* Whether shards are of the model's group, each part on its device and as long as its cut; and,
 * if `like` is not NULL, a target that fits it. `what` and `number` begin messages. */
ek_status ek__given_check(const char *what, size_t number, const ek_data_parallel_model *model,
                          const ek_shards *given, const ek_shards *like);

/* Copies a few f64 of a device to the host. */
ek_status ek__read_numbers(double *numbers, int64_t count, const ek_tensor *tensor);

#endif /* EK_PARALLEL_INTERNAL_H */
