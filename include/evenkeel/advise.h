/*
 * advise.h - which settings fit the devices, the fastest first.
 *
 * Every combination of a mode, a recomputation, a loss that is whole or fused, and a number of
 * micro-batches gives the same training; so does a precision of fewer bits, to rounding, which is a
 * choice if the program asks for it. ek_advise() plans a step with each combination on `plan`
 * devices like the given ones (device.h), so that the peaks are those of the real step to the byte,
 * and predicts the seconds of a step from what the plan has counted.
 *
 *     static ek_status build(void *context, const ek_settings *settings, ek_module **module,
 *                            ek_criterion **criterion) {
 *       ek_gpt_options gpt = *(const ek_gpt_options *)context;
 *       gpt.recompute = settings->recompute;
 *       gpt.fused_loss = settings->fused_loss;
 *       EK_TRY(ek_gpt_create(module, &gpt));
 *       return gpt.fused_loss ? EK_OK : ek_cross_entropy_create(criterion, NULL);
 *     }
 *
 *     static ek_status open_best(ek_trainer **trainer, const char *devices, ek_gpt_options *gpt,
 *                                ek_optimizer *adamw, const ek_tensor *tokens,
 *                                const ek_tensor *targets) {
 *       ek_module *module = NULL;
 *       ek_criterion *criterion = NULL;
 *       ek_advice best;
 *       size_t count = 0;
 *       ek_advise_task task = EK_ADVISE_TASK_INIT;
 *       ek_trainer_options options = EK_TRAINER_OPTIONS_INIT;
 *       ek_data_parallel_model_options model = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
 *       task.build = build;
 *       task.context = gpt;
 *       task.optimizer = adamw;
 *       task.inputs = tokens;
 *       task.targets = targets;
 *       task.input_count = task.target_count = 1;
 *       EK_TRY(ek_advise(&best, &count, 1, devices, &task));
 *       EK_TRY(ek_data_parallel_model_options_set_mode(&model, best.settings.mode));
 *       model.precision = best.settings.precision;
 *       model.shard_over = best.settings.shard_over;
 *       options.model = &model;
 *       options.micro_batches = best.settings.micro_batches;
 *       ek_status status = build(gpt, &best.settings, &module, &criterion);
 *       if (status == EK_OK) {
 *         status = ek_trainer_open(trainer, devices, module, criterion, adamw, &options);
 *       }
 *       ek_module_free(module);
 *       ek_criterion_free(criterion);
 *       return status;
 *     }
 */
#ifndef EVENKEEL_ADVISE_H
#define EVENKEEL_ADVISE_H

#include <evenkeel/recompute.h>
#include <evenkeel/trainer.h>

EK_BEGIN_DECLARATIONS

/* Settings that give the same training, to rounding. */
typedef struct ek_settings {
  ek_mode mode;
  ek_recompute recompute; /* never BYTES */
  bool fused_loss;        /* linear_cross_entropy.h */
  int64_t micro_batches;  /* 1 or more */
  ek_precision precision; /* of the model: data_parallel_model.h */
  ek_shard_over shard_over; /* likewise; EK_SHARD_WORLD unless there are several processes */
} ek_settings;

/*
 * Makes the module and the criterion that a trainer gets with these settings; the two are the
 * caller's then, and the criterion stays NULL for a model that computes its loss itself. Mode and
 * micro-batches are the trainer's matter. EK_ERR_UNSUPPORTED says that a model has no such form (no
 * fused loss, not this recomputation): these settings are left out. Other errors end the search.
 */
typedef ek_status (*ek_advise_build)(void *context, const ek_settings *settings, ek_module **module,
                                     ek_criterion **criterion);

/* The training to be planned. 0 and NULL are the defaults unless a comment says otherwise. */
typedef struct ek_advise_task {
  size_t size;
  ek_advise_build build;   /* required */
  void *context;           /* for build */
  ek_optimizer *optimizer; /* required */
  /* A batch, as ek_trainer_step() gets it; inputs are required. Nothing is read but types and
   * shapes. */
  const ek_tensor *inputs, *targets;
  size_t target_count, input_count;
  /* How a trainer will be opened. The mode and the placements of model, micro_batches, and, where
   * `precisions` is not 0, model->precision are what is searched for: they do not count. */
  const ek_trainer_options *trainer;
  uint64_t modes; /* bit m: mode m may be chosen; 0: every mode */
  /* Precisions that may be chosen, such as EK_PRECISIONS_F32 | EK_PRECISIONS_BF16; 0: the
   * trainer's alone. Those that the devices do not compute in (ek_device_precisions()) are left
   * out; EK_ERR_UNSUPPORTED if none is left. */
  unsigned precisions;
  /*
   * How many processes train together, each with devices, a batch and a machine like these; 0: as
   * many as trainer->group, or its options, have. No other process is asked. The link is that of
   * each process to the others: the bytes that it sends in a second, 0 for what it sends between
   * its devices; and the seconds until a byte arrives.
   */
  size_t processes;
  double link_bytes, link_seconds;
} ek_advise_task;
#define EK_ADVISE_TASK_INIT                                                                        \
  {                                                                                                \
    .size = sizeof(ek_advise_task), .build = NULL, .context = NULL, .optimizer = NULL,             \
    .inputs = NULL, .targets = NULL, .target_count = 0, .input_count = 0, .trainer = NULL,         \
    .modes = 0, .precisions = 0, .processes = 0, .link_bytes = 0, .link_seconds = 0                \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_advise_task_init(ek_advise_task *options, size_t size);

typedef struct ek_advice {
  ek_settings settings;
  bool fits;
  uint64_t peak_bytes;    /* of the fullest device, from its opening on, over any number of steps */
  size_t fullest;         /* which one that is */
  uint64_t missing_bytes; /* of the device that lacks most, or of the host's memory; 0 if it fits */
  /*
   * The predicted time of a step: the work that the plan has counted for the slowest device, over
   * fixed rates for the kind of device (operations of products, operations of attention and bytes
   * of all operations, each for f32, tf32 and 16 bits; bytes between devices; calls:
   * docs/memory.md). The rates are not those of this machine: compare these numbers only with each
   * other. Of several processes it includes exchange_seconds.
   */
  double seconds;
  /* Bytes that a process sends to others in a step: what ek_world_sent() grows by. Of cuda devices,
   * whose bytes NCCL sends, as much as with one device in each process. */
  uint64_t sent_bytes;
  /* The part of `seconds` for these: sent_bytes over the link, and for each collective the times
   * that the processes wait for the link. Nothing of it is hidden by work. */
  double exchange_seconds;
} ek_advice;

/*
 * Plans the task on `devices`, a device string, or on task->trainer->group, and fills at most
 * `capacity` choices, the fastest first; of equal ones (to a thousandth) the one with less memory.
 * *count becomes how many there are. For each mode and each loss these are the recomputations of
 * ek_recompute_plan(), in the order of what they cost, with the fewest micro-batches that fit (or a
 * few more, where these are cut more evenly), up to the first that needs none: what costs more is
 * a choice only if it needs fewer. `choices` may be NULL when `capacity` is 0.
 *
 * A choice fits when no device's peak is above its capacity and, on cpu devices, all peaks together
 * are not above the memory there is.
 *
 * EK_ERR_OUT_OF_MEMORY  nothing fits: the message says what comes nearest and how much that lacks,
 *                       and it is the one choice (*count is 1, fits false). Else *count is 0: the
 *                       host's memory has failed
 * Errors of build, of opening devices and of a step on them are forwarded. Steps are planned with
 * the batch cut evenly, as a trainer cuts it; plans take no memory of the devices.
 */
EK_API EK_CHECKED ek_status ek_advise(ek_advice *choices, size_t *count, size_t capacity,
                                      const char *devices, const ek_advise_task *task);

/*
 * Plans a step with the given settings, as ek_advise() does with each of its choices; the
 * task's modes and precisions do not count. Of several processes it is the first one. A step that
 * does not fit is not an error: advice->fits is false. Errors as ek_advise(); EK_ERR_UNSUPPORTED
 * for a mode that is not possible between processes.
 */
EK_API EK_CHECKED ek_status ek_plan_step(ek_advice *advice, const char *devices,
                                         const ek_advise_task *task, const ek_settings *settings);

EK_END_DECLARATIONS

#endif /* EVENKEEL_ADVISE_H */
