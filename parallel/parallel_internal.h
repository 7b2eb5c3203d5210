/*
 * parallel_internal.h - a data-parallel model from the inside.
 *
 * A *rank* is what one device has of a run, and a worker's job gets its rank. The ranks of this
 * process are one array. ek__rank.number is the rank in the world; ek__rank.place is only the index
 * of the device's parts in ek_shards.
 *
 * Model, criterion and optimizer are handles. The model lists the state of its criteria (struct
 * ek__loss) and of its optimizer (struct ek__update). These structs have no pointer to the model or
 * to a handle: every pointer goes down, and no object asks the one above it.
 *
 * Whatever depends on the order of sums (a reproducible model has its own) is in a table of
 * functions, struct ek__reduction in reduction.h, which is chosen when the model opens.
 */
#ifndef EK_PARALLEL_INTERNAL_H
#define EK_PARALLEL_INTERNAL_H

#include <stdatomic.h>

#include <evenkeel/communicator.h>
#include <evenkeel/data_parallel_model.h>
#include <evenkeel/optimizer.h>
#include <evenkeel/pass.h>
#include <evenkeel/reduce.h>

#include "core/owner.h"
#include "device/conversion.h"
#include "device/device_internal.h"
#include "keeper.h"
#include "module/replica_internal.h"
#include "world/world_internal.h"

struct ek__lockstep;
struct ek__loss;
struct ek__loss_rank;
struct ek__reduction;
struct ek__tree;
struct ek__update;

/* The traits of a placement of the state: placement.c. */
struct ek__placement {
  ek_reduce_kind reduce;
  bool master;           /* rank 0 has the state, and the others get parameters from it */
  bool state_shares;     /* each device has the optimizer's state of its share of every bucket */
  bool gradient_shares;  /* the same of the gradients: keeper.h */
  bool parameter_shares; /* and of the parameters; buckets are units then */
};
enum { EK__PLACEMENTS = EK_STATE_FULLY_SHARDED + 1 };

/* Entries of the state that are numbers on the host: state.c. */
enum { EK__RUN_NUMBERS = 4 };

/* ---- ranks ---- */

/* Elements of the owner's that are updated alike. */
struct ek__range {
  struct ek__span span;
  size_t group; /* of the layout's */
  size_t whole; /* the parameter, if the rule takes it whole; or EK__NO_PARAMETER */
  int64_t states[EK_MAX_OPTIMIZER_STATES]; /* where they begin in those; -1: not kept */
};

struct ek__ranges {
  struct ek__range *list;
  size_t count, capacity;
};

/* The pieces of one rank, of a micro-batch with `all` samples in all processes: reduction.h. */
struct ek__pieces {
  size_t first, last;     /* numbers first .. last - 1, those with samples */
  size_t rounds;          /* those that the rank runs: others have no samples */
  int64_t begin, samples; /* of the rank: its first, and how many */
  int64_t all;
};

/* Samples first .. first + count - 1 of a micro-batch. */
struct ek__piece {
  size_t number; /* among those of the micro-batch, or of no sample: SIZE_MAX */
  int64_t first, count;
  const struct ek__pieces *of;
};

/* What a rank has of the optimizer: optimizer_pieces.c. */
struct ek__share {
  struct ek__rank *owner;    /* whose memory the worker updates: its own rank, or the master's */
  struct ek__ranges updates; /* of that memory */
  /* Elements of the rank's states: of all ranges that it owns and keeps them for. */
  int64_t owned[EK_MAX_OPTIMIZER_STATES];
  ek_tensor states[EK_MAX_OPTIMIZER_STATES];
  ek_tensor workspace;   /* of the rule, for any of its parameters that are taken whole */
  ek_tensor square_norm; /* f64, of the whole gradient */
  ek_tensor leaves;      /* f64, of the reduction `tree`: every piece of every bucket */
};

struct ek__rank {
  struct ek__keeper keeper; /* the first member */
  ek_device *device;
  size_t number;       /* among all ranks of the world */
  size_t share_number; /* among those that state is cut over: `number`, or in the process */
  size_t place;        /* of its parts in the shards of this process */
  ek_replica *replica;
  /* The sums of its gradients with those of the other ranks. `sums` are those of the backward that
   * runs now, one of `rounds`: one for each piece in lockstep, else one. */
  struct ek__sums *sums, *rounds;
  size_t round_count;
  struct ek__tree *tree;     /* memory of the reduction `tree`: tree.h */
  struct ek__lockstep *lockstep; /* of its pieces; NULL: they run one after the other */
  ek_tensor totals;          /* f64 {s, D} of the step, the same on every rank */
  ek_pass **passes;          /* of a forward whose backward has not come: one for each piece */
  size_t pass_count;
  bool reducing; /* this backward is the step's last: sums begin as it runs */
  /* Of the last forward; the outputs are without their memory. */
  struct ek__pieces pieces;
  ek_tensor outputs[EK_MAX_TENSORS];
  struct ek__share share;
  struct ek__loss_rank *losses; /* of all criteria: forward.h */
};

/* Rows of a part of a tensor: a scalar is one, what does not exist has none. */
static inline int64_t ek__part_rows(const ek_tensor *part) {
  return !ek_tensor_exists(part) ? 0 : part->rank == 0 ? 1 : part->shape[0];
}

/* The elements of a span, of a buffer that has all, or (packed) a rank's shares end to end. */
static inline ek_tensor ek__span_range(const ek_tensor *flat, struct ek__span span, bool packed) {
  return ek__flat_range(flat, packed ? span.place : span.first, span.count);
}

static inline ek_stream *ek__rank_stream(const struct ek__rank *rank) {
  return ek_device_stream(rank->device, EK_STREAM_COMPUTE);
}

struct ek__ranks {
  ek_group *group;
  ek_communicator *communicator;
  /* Of shares: sums of gradients, and gathers and norms of what was summed. Both are `communicator`
   * where shares are over the world. */
  ek_communicator *sums, *gathers;
  /* The message in which the processes agree on an update has the {s, D} of ranks, and the squares
   * of their gradients, to be added up, instead of collectives: agreement.c. */
  bool totals_ride, norms_ride;
  ek_communicator *inner; /* for collectives of modules; NULL if none of them declares any */
  const struct ek__reduction *reduction;
  struct ek__buckets cut; /* of the flat gradients, over the ranks of the world */
  struct ek__rank *ranks; /* of this process */
  size_t count;
  bool replicas_stale; /* state `master`: rank 0 is ahead of the others */
  bool buffers_stale;  /* a training forward has run: the buffers of rank 0 go to the others */
};

/* There may be none, in a model that could not be opened. */
static inline struct ek__rank *ek__ranks_end(const struct ek__ranks *run) {
  return run->ranks == NULL ? NULL : run->ranks + run->count;
}

#define EK__EACH_RANK(rank, run)                                                                   \
  for (struct ek__rank *rank = (run)->ranks; rank != ek__ranks_end(run); rank++)

/* A job of the ranks of this process, each on its worker. Returns the error of the first that
 * fails. In rank.c. */
typedef ek_status ek__rank_job(void *context, struct ek__rank *rank);
ek_status ek__ranks_apply(struct ek__ranks *run, ek__rank_job *job, void *context);

/* ---- forwards and steps ---- */

/* The state of the gradients of the running step. */
enum ek__step_stage {
  EK__STEP_EMPTY,       /* none */
  EK__STEP_ACCUMULATED, /* each rank has its own sum */
  EK__STEP_REDUCED      /* the sum over the ranks is where the state placement wants it */
};

/*
 * The factor of gradients in backward: the scale of loss_scale.h divided by a unit, the least power
 * of two that is not below the number of targets. So the scale is relative to the gradient of the
 * mean, though D is not known yet, and nothing is rounded.
 */
struct ek__scaling {
  double factor, unit;
};

struct ek__last_forward {
  uint64_t number;            /* its outputs carry it */
  uint64_t pending;           /* the same while its backward may still come, else 0 */
  bool gradient;              /* it was with gradient */
  double scale;               /* that it was promised for its totals; 0: none */
  struct ek__scaling scaling; /* a factor of `scale`, if the model computes its loss itself */
  int64_t samples;            /* here */
  int64_t first_sample;       /* of them, among the step's of all processes */
  int64_t batch_samples;      /* of all processes */
  int64_t before, all;        /* of this forward: in processes before this one, and in all */
};

struct ek__step {
  enum ek__step_stage stage;
  bool divided;               /* its gradients will be divided by D */
  struct ek__scaling scaling; /* that they were multiplied with, and will be divided by */
  int64_t taken;              /* steps taken before it */
  bool running;               /* its totals come whole with each micro-batch */
  bool norm;                  /* the ranks have the norm of its gradient */
  struct ek__loss *late;      /* whose last totals are to be added up with the update, or NULL */
  uint32_t micro_batches;     /* backwards so far */
  int64_t samples;            /* of its micro-batches so far, of all processes */
};

/* Whether the update is whole: model_step.c. */
struct ek__torn {
  atomic_bool updating;   /* set by workers, cleared by the model's thread */
  atomic_bool cut;        /* work that was queued for the step that goes on may be lost */
  _Atomic uint64_t tears; /* how often it tore */
  uint64_t mended;        /* how many of them are over */
  uint64_t *written;      /* per parameter and buffer, and number of `run` */
  uint64_t mending;       /* the tear that entries are being written after */
  size_t written_count;   /* entries since then */
  struct ek__abortable watch;
};

struct ek_data_parallel_model {
  struct ek__owner owner; /* of the model, and of the criteria and optimizers opened for it */
  ek_module *module;
  ek_data_parallel_model_options options; /* the scalings are a copy; no patterns */
  struct ek__ranks run;
  struct ek__last_forward last;
  struct ek__step step;
  struct ek__torn torn;
  struct ek__loss *losses;   /* of the criteria that are open for it: forward.h */
  struct ek__update *update; /* of the optimizer that is open for it: optimizer_internal.h */
};

/* The world of the model's processes; NULL for one process, or no model. */
static inline ek_world *ek__model_world(const ek_data_parallel_model *model) {
  return model == NULL ? NULL : ek__group_world(model->run.group);
}

/* Used first in every public function for a model, its criteria and its optimizer: EK_ERR_STATE
 * while another thread is in one of them. */
#define EK__MODEL_ENTER(model, who)                                                                \
  EK__OWNER_ENTER((struct ek__owner *)(uintptr_t) & (model)->owner, who, "the model")
/* The same, and EK_ERR_TORN for a model whose update failed halfway. */
#define EK__MODEL_USE(model, who)                                                                  \
  EK__MODEL_ENTER(model, who);                                                                     \
  EK_TRY(ek__model_check(model))

/* ---- agreement.c: what all processes must have alike; nothing where there is one ---- */

ek_status ek__model_same(const ek_data_parallel_model *model);
ek_status ek__loss_same(const ek_data_parallel_model *model, const struct ek__loss *loss);
ek_status ek__update_same(const ek_data_parallel_model *model, const struct ek__update *update);

/* ---- scatter.c ---- */

/* The first row of a rank, in a batch of `rows` rows that is cut into grains. */
int64_t ek__grains_begin(int64_t rows, size_t grains, size_t rank, size_t ranks);

/* ---- placement.c ---- */

const struct ek__placement *ek__placement(const ek_data_parallel_model *model);

/* Whether each device has a share of the parameters that are updated. */
bool ek__model_shares_masters(const ek_data_parallel_model *model);

/* ---- replicate.c: parameters that ranks give each other ---- */

/* ek_replicate() of one rank, on its worker; and of its buffers alone. */
ek_status ek__replicate_rank(ek_communicator *communicator, ek_device *device, ek_replica *replica);
ek_status ek__replicate_buffers(ek_communicator *communicator, ek_device *device,
                                ek_replica *replica);

/* On a rank's worker: a replica whose masters are shared gets its own. */
ek_status ek__masters_open(const ek_data_parallel_model *model, const struct ek__rank *own);
/* On a rank's worker: gathers each bucket of the values that modules see from the shares of all
 * ranks; with `frozen` the buckets of frozen parameters as well. */
ek_status ek__masters_share(const ek_data_parallel_model *model, const struct ek__rank *own,
                            bool frozen);

/* ---- model_step.c ---- */

/* EK_ERR_TORN if an update failed halfway; else EK_OK. */
ek_status ek__model_check(const ek_data_parallel_model *model);
/* The same, and EK_ERR_STATE if numbers that were computed last may have been cut off. */
ek_status ek__model_check_kept(const ek_data_parallel_model *model);
/* The same in calls of all processes that go on with a step: it ends with that error. */
ek_status ek__model_check_step(ek_data_parallel_model *model);
/* Called before parameters or state are written, and when all writes are queued. */
void ek__model_update_begins(ek_data_parallel_model *model);
void ek__model_update_ended(ek_data_parallel_model *model);
/* All of its state is about to be written: until the last entry is, the model is torn. */
void ek__model_tear(ek_data_parallel_model *model);
/*
 * Called when a write of an entry of the state (state.c) begins: sets *tear to the number of the
 * tear that it helps to mend, 0 for a good model. And when it has ended well; *written belongs to
 * the entry.
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
/* Shards of the same samples, without parts and offsets. */
ek_status ek__shards_create_like(ek_shards *shards, const ek_shards *like);
/* ---- scatter.c ---- */

/* Makes the parts at the offsets of the shards, which stay as they are if it fails. `intake`: the
 * conversion of integers in host memory; NULL: none. */
ek_status ek__scatter_fill(const ek_shards *shards, const ek_tensor *source,
                           ek_memory_category category, const struct ek__conversion *intake);

/*
 * Tensors that a call was given: whole ones, which the ranks cut, or shards of the program's. Whole
 * ones are converted (ek__conversion_choose()) by their scaling, which makes them `floating`, or to
 * the type that the module declares (ek_module_input_type()).
 */
struct ek__given {
  const char *what; /* begins messages */
  const ek_module *module;
  size_t first; /* the number, among the module's inputs, of what is number 0 here */
  const ek_input_scaling *scalings; /* of the first `scaling_count` */
  size_t scaling_count;
  ek_type floating;
  size_t count;
  const ek_tensor *sources;        /* NULL for shards */
  ek_shards shards[EK_MAX_INPUTS]; /* loans; of whole ones without their parts */
  struct ek__conversion *intakes;  /* a loan, with room for `count` */
};
/* Checks tensor number `number`: shards, or (`cut` is NULL) a whole one. It also decides how the
 * whole one is cut, at the samples of `like` unless that is NULL, and converted. */
ek_status ek__given_lay(struct ek__given *given, size_t number, const ek_data_parallel_model *model,
                        const ek_shards *cut, const ek_shards *like, bool broadcast,
                        const ek_scatter_options *options);
/* On a rank's worker: makes its parts; and frees those that it has made. */
ek_status ek__given_cut(const struct ek__given *given, const struct ek__rank *rank);
void ek__given_give_back(const struct ek__given *given, const struct ek__rank *rank);
void ek__given_free(struct ek__given *given);

/* A copy of a program's scalings, which were checked; ek__free() it. */
ek_status ek__scalings_copy(ek_input_scaling **copy, const char *who,
                            const ek_input_scaling *scalings, size_t count, size_t most);

/* ---- parallel_apply.c ---- */

/* Row offsets from the parts; a device that did no work gets a part without rows, like the others'
 * or, if none exists, like `like`, which may be NULL. */
ek_status ek__parallel_apply_finish(ek_shards *output, const ek_tensor *like);

/* ---- model_backward.c ---- */

/* The loss scale of a micro-batch with this number of targets in all processes (0: its loss is not
 * divided): that of the running step, or else of the next. */
struct ek__scaling ek__model_scaling(const ek_data_parallel_model *model, int64_t targets);
/* The number of elements of the largest of these targets over all devices, or `samples` if that is
 * more. The targets are tensors that are not cut yet, or shards (NULL: tensors). */
int64_t ek__targets_most(const ek_tensor *tensors, const ek_shards *shards, size_t count,
                         int64_t samples);

/* Drops the passes of a forward whose backward has not come: those of a list, or all. */
void ek__passes_drop(ek_pass **passes, size_t count);
void ek__model_drop_forward(ek_data_parallel_model *model);

/* Ends the step and begins the next. `taken`: parameters were updated. */
void ek__model_end_step(ek_data_parallel_model *model, bool taken);

/* Ends the run when its optimizer is freed: the next one begins with step 0. */
void ek__model_lose_update(ek_data_parallel_model *model);

/* Whether a target is cut at the samples of `like`, whole samples each. */
bool ek__target_fits(const ek_shards *target, const ek_shards *like);

#endif /* EK_PARALLEL_INTERNAL_H */
