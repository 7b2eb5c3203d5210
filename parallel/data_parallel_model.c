/*
 * data_parallel_model.c - a module over all devices of a group: opening, closing, steps.
 *
 * Forward and backward are in model_forward.c and model_backward.c, state and gradients by name in
 * state.c, and updates that fail in model_step.c. The passes live from forward to backward. A
 * failure after work has begun drops them and the gradients that the step had accumulated; neither
 * forward nor backward writes parameters.
 */
#include <evenkeel/data_parallel_model.h>

#include <evenkeel/elementwise.h>
#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"
#include "device/between.h"
#include "device/communicator_internal.h"
#include "device/place.h"
#include "forward.h"
#include "tree.h"

/* ---- opening and closing ---- */

static ek_status check_options(ek_data_parallel_model_options *options, const ek_group *group,
                               const ek_module *module) {
  EK__FAIL_IF((unsigned)options->outputs > EK_OUTPUTS_GATHER ||
                  (unsigned)options->state >= EK__PLACEMENTS,
              EK_ERR_INVALID_ARGUMENT,
              "ek_data_parallel_model_open: unknown placement %d of outputs or %d of state",
              (int)options->outputs, (int)options->state);
  EK__FAIL_IF((unsigned)options->shard_over > EK_SHARD_PROCESS, EK_ERR_INVALID_ARGUMENT,
              "ek_data_parallel_model_open: unknown shard_over %d; expected EK_SHARD_WORLD or "
              "EK_SHARD_PROCESS",
              (int)options->shard_over);
  EK__FAIL_IF(options->output_device >= ek_group_size(group), EK_ERR_INVALID_ARGUMENT,
              "ek_data_parallel_model_open: no device number %zu", options->output_device);
  EK_TRY(ek__precision_read(&options->precision, options->type, ek_group_device(group, 0),
                            "ek_data_parallel_model_open"));
  EK_TRY(ek__gradient_type_read(&options->gradient_type, options->type, options->precision,
                                ek_group_device(group, 0), "ek_data_parallel_model_open"));
  EK__FAIL_IF(ek__group_world(group) != NULL &&
                  (options->outputs == EK_OUTPUTS_GATHER || options->state == EK_STATE_MASTER),
              EK_ERR_UNSUPPORTED,
              "ek_data_parallel_model_open: outputs that are gathered, or one master of the state, "
              "are within one process; between processes the mode is replicated or sharded in any "
              "way");
  EK_TRY(ek__module_check(module));
  EK__FAIL_IF(
      ek_module_targets(module) > 0 &&
          options->broadcast_inputs >> (ek_module_inputs(module) - ek_module_targets(module)) != 0,
      EK_ERR_INVALID_ARGUMENT,
      "ek_data_parallel_model_open: broadcast_inputs names a target; "
      "targets are always cut");
  EK__FAIL_IF(ek_module_is_criterion(module) && ek_module_outputs(module) > 1, EK_ERR_UNSUPPORTED,
              "ek_data_parallel_model_open: %s gives single losses; a model that computes its loss "
              "itself has reduction mean or sum",
              ek_module_kind(module));
  return EK_OK;
}

const struct ek__reduction *ek__reduction_of(const ek_data_parallel_model_options *options) {
  return options->reproducible > 0 ? &ek__reduction_tree : &ek__reduction_sum;
}

/* The order of sums is one over the world. */
static ek_status check_grains(const ek_data_parallel_model_options *options,
                              const ek_group *group) {
  const size_t grains = options->reproducible;
  EK__FAIL_IF(options->shard_over != EK_SHARD_WORLD, EK_ERR_UNSUPPORTED,
              "ek_data_parallel_model_open: a reproducible model has one order of sums over the "
              "world; shard_over must be EK_SHARD_WORLD");
  EK__FAIL_IF(grains < ek__group_world_size(group) || grains > EK__MAX_GRAINS,
              EK_ERR_INVALID_ARGUMENT,
              "ek_data_parallel_model_open: reproducible is %zu, expected at least the %zu devices "
              "and at most %d",
              grains, ek__group_world_size(group), EK__MAX_GRAINS);
  if (ek_group_is_deterministic(group)) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                      "ek_data_parallel_model_open: a reproducible model needs a group that was "
                      "opened with ek_group_options.deterministic");
}

static ek_status open_replica(void *context, struct ek__rank *rank) {
  ek_data_parallel_model *model = context;
  const struct ek__placement *placement = ek__placement(model);
  ek_replica_options options = EK_REPLICA_OPTIONS_INIT;
  const bool mixed = ek__type_is_half(ek_precision_type(model->options.precision));
  struct ek__replica_parts parts = {.masters = ek__model_shares_masters(model) ? EK__MASTERS_SHARED
                                               : placement->master && mixed    ? EK__MASTERS_FIRST
                                                                               : EK__MASTERS_WHOLE};
  options.type = model->options.type;
  options.precision = model->options.precision;
  options.gradient_type = model->options.gradient_type;
  options.seed = model->options.seed;
  options.patterns = model->options.patterns;
  options.pattern_count = model->options.pattern_count;
  options.gradients = !placement->gradient_shares;
  options.initialize = rank->number == 0;
  parts.none = parts.masters == EK__MASTERS_FIRST && !options.initialize;
  parts.shared_values = placement->parameter_shares;
  /* If sums are the same for any number of ranks, so are the buckets in every mode. */
  if (parts.shared_values || !model->run.reduction->whole) {
    parts.unit_bytes = model->options.bucket_bytes;
  }
  EK_TRY(ek__replica_open_parts(&rank->replica, rank->device, model->module, &options, &parts));
  const int64_t shape[] = {2};
  EK_TRY(ek_tensor_create(&rank->totals, rank->device, EK_MEMORY_LOSS, EK_F64, 1, shape));
  return ek_op_zero(ek__rank_stream(rank), &rank->totals);
}

static const char memory_of[] = "a data-parallel model";

/* Of what is not taken whole, for each rank: small ones make up for large matrices. Any number
 * gives equal shares where nothing is taken whole. */
enum { PIECES = 8 };

static ek_status open_sums(const ek_data_parallel_model *model, struct ek__rank *rank,
                           size_t count) {
  const struct ek__ranks *run = &model->run;
  const bool shares = ek__placement(model)->gradient_shares;
  const struct ek__sums like = {.communicator = run->sums,
                                .cut = &run->cut,
                                .device = rank->device,
                                .replica = rank->replica,
                                .kind = ek__placement(model)->reduce,
                                .queue = shares ? run->reduction->queue : NULL};
  EK_TRY(ek__new(&rank->rounds, count, sizeof *rank->rounds, memory_of));
  rank->sums = rank->rounds;
  rank->round_count = count;
  for (size_t i = 0; i < count; i++) EK_TRY(ek__sums_open(&rank->rounds[i], &like));
  return EK_OK;
}

/* Host memory, when the replicas are open. */
static ek_status open_cut(ek_data_parallel_model *model) {
  struct ek__ranks *run = &model->run;
  const struct ek__placement *placement = ek__placement(model);
  const size_t ranks = ek_communicator_world_size(run->gathers);
  const size_t pieces = run->reduction->whole ? PIECES * ranks : model->options.reproducible;
  EK_TRY(ek__buckets_open(&run->cut, run->ranks[0].replica, ranks, pieces,
                          model->options.bucket_bytes, model->options.optimizer));
  const size_t most = run->reduction->most(model);
  EK__EACH_RANK(rank, run) {
    EK_TRY(open_sums(model, rank, run->inner != NULL ? most : 1));
    if (placement->gradient_shares) ek__keeper_open(rank, run->gathers);
    if (placement->parameter_shares) EK_TRY(ek__keeper_lend_values(rank));
    EK_TRY(ek__new(&rank->passes, most, sizeof *rank->passes, memory_of));
    rank->pass_count = most;
  }
  return ek__new(&model->torn.written,
                 ek_replica_parameter_count(run->ranks[0].replica) + EK__RUN_NUMBERS,
                 sizeof *model->torn.written, memory_of);
}

/* The device memory of a rank besides its replica. */
static ek_status open_rank(void *context, struct ek__rank *rank) {
  ek_data_parallel_model *model = context;
  if (ek__placement(model)->gradient_shares) {
    const struct ek__buckets *cut = &model->run.cut;
    EK_TRY(ek__replica_hold_gradients(rank->replica,
                                      ek__buckets_share(cut, cut->trained, rank->share_number)));
  }
  if (ek__model_shares_masters(model)) {
    EK_TRY(ek__masters_open(model, rank));
    if (!ek__placement(model)->parameter_shares) EK_TRY(ek__masters_share(model, rank, true));
  }
  if (model->run.reduction->open != NULL) EK_TRY(model->run.reduction->open(model, rank));
  return ek__replicate_rank(model->run.communicator, rank->device, rank->replica);
}

/* Whether state is cut over the devices of each process, and there are several. */
static bool shards_inside(const ek_data_parallel_model *model) {
  const ek_group *group = model->run.group;
  return model->options.shard_over == EK_SHARD_PROCESS && ek__placement(model)->state_shares &&
         ek__group_world_size(group) > ek_group_size(group);
}

static ek_status open_ranks(ek_data_parallel_model *model) {
  struct ek__ranks *run = &model->run;
  EK_TRY(ek_communicator_open(&run->communicator, run->group));
  run->sums = run->gathers = run->communicator;
  if (shards_inside(model)) {
    EK_TRY(ek__communicator_open(&run->sums, run->group, EK__REACH_SHARES, false));
    EK_TRY(ek__communicator_open(&run->gathers, run->group, EK__REACH_PROCESS, false));
  }
  run->totals_ride =
      ek__between_in_host(run->group) && ek__group_world_size(run->group) > run->count;
  /* A reproducible model has a tree of norms; shares inside a process have the same in all. */
  run->norms_ride =
      run->totals_ride && run->reduction->whole && run->gathers == run->communicator;
  EK_TRY(ek__new(&run->ranks, run->count, sizeof *run->ranks, memory_of));
  EK__EACH_RANK(rank, run) {
    rank->place = (size_t)(rank - run->ranks);
    rank->device = ek_group_device(run->group, rank->place);
    rank->number = ek_communicator_first_rank(run->communicator) + rank->place;
    rank->share_number = ek_communicator_first_rank(run->gathers) + rank->place;
  }
  return EK_OK;
}

static ek_status open_parts(ek_data_parallel_model *model) {
  struct ek__ranks *run = &model->run;
  EK_TRY(open_ranks(model));
  ek__model_watch(model);
  EK_TRY(ek__ranks_apply(run, open_replica, model));
  if (run->ranks[0].replica->layout.collective) {
    EK_TRY(ek__communicator_open(&run->inner, run->group, EK__REACH_WORLD, true));
  }
  EK_TRY(open_cut(model));
  EK_TRY(ek__model_same(model));
  EK_TRY(ek__ranks_apply(run, open_rank, model));
  return ek__world_agree(ek__group_world(run->group), "opening a model", 0);
}

static ek_status open_model(ek_data_parallel_model **model, ek_group *group, ek_module *module,
                            const ek_data_parallel_model_options *options) {
  ek_data_parallel_model_options o = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  EK__NOT_NULL("ek_data_parallel_model_open", model, module);
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_data_parallel_model_options"));
  EK_TRY(check_options(&o, group, module));
  if (ek_module_is_criterion(module))
    o.outputs = EK_OUTPUTS_STAY; /* totals have no rows to gather */
  o.bucket_bytes = ek__bucket_bytes(o.bucket_bytes, ek_group_device(group, 0));
  const struct ek__reduction *reduction = ek__reduction_of(&o);
  if (!reduction->whole) EK_TRY(check_grains(&o, group));
  ek_data_parallel_model *result = NULL;
  ek_input_scaling *scalings = NULL;
  EK_TRY(ek__new(&result, 1, sizeof *result, memory_of));
  result->run.group = group;
  result->run.count = ek_group_size(group);
  result->run.reduction = reduction;
  result->module = ek_module_share(module);
  ek_status status = ek__scalings_copy(&scalings, "ek_data_parallel_model_open", o.input_scaling,
                                       o.input_scaling_count, ek_module_inputs(module));
  result->options = o;
  result->options.input_scaling = scalings;
  if (status == EK_OK) status = open_parts(result);
  result->options.patterns = NULL; /* the caller's */
  result->options.pattern_count = 0;
  result->options.optimizer = NULL;
  if (status == EK_OK) {
    *model = result;
  } else {
    ek_data_parallel_model_free(result);
  }
  return status;
}

ek_status ek_data_parallel_model_open(ek_data_parallel_model **model, ek_group *group,
                                      ek_module *module,
                                      const ek_data_parallel_model_options *options) {
  EK__NOT_NULL("ek_data_parallel_model_open", group);
  EK__WORLD_CALL(ek__group_world(group), open_model(model, group, module, options));
}

static ek_status free_replica(void *context, struct ek__rank *rank) {
  (void)context;
  ek_replica_free(rank->replica);
  rank->replica = NULL;
  return EK_OK;
}

/* On the workers where modules keep state, which is closed where it was opened. */
static void free_replicas(struct ek__ranks *run) {
  bool stateful = false;
  EK__EACH_RANK(rank, run) {
    stateful = stateful || (rank->replica != NULL && rank->replica->layout.stateful);
  }
  /* Refused in a child of fork(), which has no workers. */
  const ek_status status = stateful ? ek__ranks_apply(run, free_replica, NULL) : EK_OK;
  (void)status;
  EK__EACH_RANK(rank, run) ek_replica_free(rank->replica);
}

void ek_data_parallel_model_free(ek_data_parallel_model *model) {
  if (model == NULL) return;
  struct ek__ranks *run = &model->run;
  ek__model_drop_forward(model);
  EK__EACH_RANK(rank, run) {
    if (run->reduction->close != NULL) run->reduction->close(rank);
    ek__keeper_close(rank);
    for (size_t i = 0; i < rank->round_count; i++) ek__sums_close(&rank->rounds[i]);
    ek__free(rank->rounds);
    ek_tensor_free(&rank->totals);
    ek__free(rank->passes);
  }
  ek__buckets_close(&run->cut);
  free_replicas(run);
  ek__model_unwatch(model);
  ek__free(run->ranks);
  ek_communicator_free(run->inner);
  if (run->gathers != run->communicator) ek_communicator_free(run->gathers);
  if (run->sums != run->communicator) ek_communicator_free(run->sums);
  ek_communicator_free(run->communicator);
  ek__free(model->torn.written);
  ek__free((void *)(uintptr_t)model->options.input_scaling);
  ek_module_free(model->module);
  ek__free(model);
}

ek_group *ek_data_parallel_model_group(const ek_data_parallel_model *model) {
  return model == NULL ? NULL : model->run.group;
}

ek_replica *ek_data_parallel_model_replica(const ek_data_parallel_model *model, size_t index) {
  return model == NULL || index >= model->run.count ? NULL : model->run.ranks[index].replica;
}

/* ---- the step ---- */

ek_status ek_data_parallel_model_discard(ek_data_parallel_model *model) {
  EK__NOT_NULL("ek_data_parallel_model_discard", model);
  EK__MODEL_USE(model, "discard");
  ek__model_end_step(model, false);
  return EK_OK;
}

EK__OPTIONS_INIT(ek_data_parallel_model_options, EK_DATA_PARALLEL_MODEL_OPTIONS_INIT)
EK__OPTIONS_INIT(ek_forward_options, EK_FORWARD_OPTIONS_INIT)
EK__OPTIONS_INIT(ek_backward_options, EK_BACKWARD_OPTIONS_INIT)
