/*
 * model_forward.c - the forward of a data-parallel model, in the model's thread.
 *
 * Checks a forward and lays it out (forward.h). The workers run it (rank.c). Then the outputs are
 * checked, and in mode gather their rows are copied to one device. Wrong arguments are found before
 * anything is lost; later failures drop the step.
 */
#include <stdatomic.h>
#include <string.h>

#include <evenkeel/gather.h>

#include "core/error.h"
#include "core/options.h"
#include "core/sizes.h"
#include "forward.h"
#include "module/pass_internal.h"

/* Forwards of all models of the process: no two have the same number, and none has 0. */
static _Atomic uint64_t forwards;

/* Sets the number of outputs, and gives that of inputs which a call takes: a forward, or a
 * prediction without targets. */
static size_t read_call(struct ek__forward *job, size_t inputs) {
  const ek_module *module = job->model->module;
  job->predict = ek_module_predictions(module) > 0 &&
                 inputs + ek_module_targets(module) == ek_module_inputs(module) &&
                 !job->options->gradient;
  job->output_count = job->predict ? ek_module_predictions(module) : ek_module_outputs(module);
  return job->predict ? inputs : ek_module_inputs(module);
}

static bool is_broadcast(const ek_data_parallel_model *model, size_t input) {
  return (model->options.broadcast_inputs >> input & 1) != 0;
}

/* Whether the pending forward has added to gradients that the step has accumulated: that cannot be
 * undone, so only its backward may follow, or the end of the step. */
static bool is_mixed(const ek_data_parallel_model *model) {
  bool added = false;
  EK__EACH_RANK(rank, &model->run) {
    for (size_t i = 0; i < rank->pass_count; i++) {
      added = added || ek__pass_has_added(rank->passes[i]);
    }
  }
  return added && model->step.stage == EK__STEP_ACCUMULATED;
}

static ek_status check_call(const struct ek__forward *job, size_t takes, size_t count) {
  const ek_data_parallel_model *model = job->model;
  EK_TRY(ek__model_check_step(job->model));
  EK_TRY(ek__layout_check(
      &model->run.ranks[0].replica->layout)); /* arrays are laid out by its counts */
  EK__FAIL_IF(count != takes, EK_ERR_INVALID_ARGUMENT, "forward: %s takes %zu inputs, not %zu",
              ek_module_kind(model->module), takes, count);
  EK__FAIL_IF(model->step.stage == EK__STEP_REDUCED && job->options->gradient, EK_ERR_STATE,
              "forward: the step's last backward has run; call the optimizer's step, or discard, "
              "first");
  EK__FAIL_IF(is_mixed(model), EK_ERR_STATE,
              "forward: the last forward added to the gradients of the step (gradient_in_forward); "
              "call its backward, or discard, first");
  return EK_OK;
}

static size_t first_target(const ek_data_parallel_model *model) {
  return ek_module_inputs(model->module) - ek_module_targets(model->module);
}

/* All inputs are cut alike, with one row for each sample, and targets at these samples. */
static ek_status check_cut(const struct ek__forward *job, size_t number) {
  const ek_data_parallel_model *model = job->model;
  const ek_shards *input = &job->inputs.shards[number], *lead = &job->inputs.shards[job->lead];
  const size_t bytes = (model->run.count + 1) * sizeof *input->offsets;
  EK__FAIL_IF(input->broadcast != is_broadcast(model, number), EK_ERR_INVALID_ARGUMENT,
              "forward: input number %zu is %s", number,
              input->broadcast ? "broadcast, and the model cuts it"
                               : "cut, and the model broadcasts it");
  if (input->broadcast) return EK_OK;
  const bool target = number >= first_target(model);
  EK__FAIL_IF(target && !ek__target_fits(input, lead), EK_ERR_SHAPE,
              "forward: input number %zu, a target, is not cut at the samples of input number %zu",
              number, job->lead);
  EK__FAIL_IF(
      !target && (input->offsets[0] != 0 || memcmp(input->offsets, lead->offsets, bytes) != 0 ||
                  memcmp(input->offsets, input->samples, bytes) != 0),
      EK_ERR_SHAPE,
      "forward: input number %zu is cut differently from number %zu (%lld rows, %lld), or does not "
      "have one row for each sample",
      number, job->lead, (long long)input->offsets[model->run.count],
      (long long)lead->offsets[model->run.count]);
  return EK_OK;
}

/* ---- outputs ---- */

/* All rows on one device, none on the others. */
static ek_status gather_output(ek_data_parallel_model *model, ek_shards *output, size_t index) {
  const size_t target = model->options.output_device;
  ek_shards whole;
  EK_TRY(ek_shards_create(&whole, output->group));
  for (size_t k = target; k < whole.count; k++) {
    whole.samples[k + 1] = output->samples[output->count];
  }
  ek_status status = EK_OK;
  EK_TRY_GOTO(status, ek_gather_move(&whole.parts[target], output, target, EK_MEMORY_OUTPUTS),
              cleanup);
  EK_TRY_GOTO(status, ek__parallel_apply_finish(&whole, NULL), cleanup);
  whole.private_members.forward = model->last.number;
  whole.private_members.output = index;
  *output = whole;
  return EK_OK;
cleanup:
  ek_shards_free(&whole);
  return status;
}

/* Each device's pass has seen whole samples; all of them must have as many rows. */
static ek_status check_rows(const ek_data_parallel_model *model, size_t index,
                            const ek_shards *output, const int64_t *begins) {
  size_t first = 0; /* the device that `per_sample` was seen on */
  int64_t per_sample = 0;
  for (size_t k = 0; k < output->count; k++) {
    const int64_t samples = begins[k + 1] - begins[k];
    if (output->parts[k].rank == 0) continue;
    EK__FAIL_IF(samples == 0 && output->parts[k].shape[0] > 0, EK_ERR_SHAPE,
                "%s, forward: output number %zu has %lld rows on %s, which "
                "has no samples",
                ek_module_kind(model->module), index, (long long)output->parts[k].shape[0],
                ek_device_name(ek_group_device(model->run.group, k)));
    if (samples == 0) continue;
    const int64_t rows = output->parts[k].shape[0] / samples;
    if (per_sample == 0) first = k, per_sample = rows;
    if (rows == per_sample) continue;
    return ek_error_set(EK_ERR_SHAPE,
                        "%s, forward: output number %zu has %lld rows per sample on %s and %lld "
                        "on %s",
                        ek_module_kind(model->module), index, (long long)per_sample,
                        ek_device_name(ek_group_device(model->run.group, first)), (long long)rows,
                        ek_device_name(ek_group_device(model->run.group, k)));
  }
  return EK_OK;
}

ek_status ek__forward_check(const struct ek__forward *job) {
  const bool totals = ek_module_is_criterion(job->model->module) && !job->predict;
  for (size_t i = 0; i < job->output_count && !totals; i++) {
    EK_TRY(check_rows(job->model, i, &job->outputs[i], job->inputs.shards[job->lead].samples));
  }
  return EK_OK;
}

/* Each rank has its part: sets the offsets of all parts, and gathers them in mode gather. */
static ek_status finish_outputs(const struct ek__forward *job) {
  ek_data_parallel_model *model = job->model;
  for (size_t i = 0; i < job->output_count; i++) {
    EK_TRY(ek__parallel_apply_finish(&job->outputs[i], NULL));
  }
  EK_TRY(ek__forward_check(job));
  const bool gather = model->options.outputs == EK_OUTPUTS_GATHER && !job->predict;
  for (size_t i = 0; i < job->output_count && gather; i++) {
    EK_TRY(gather_output(model, &job->outputs[i], i));
  }
  return EK_OK;
}

/* This call's samples among those of the batch, and of the step. The samples of several processes
 * are one batch, in the order of their ranks, unless the program says where they are. */
static ek_status find_place(struct ek__forward *job) {
  const ek_data_parallel_model *model = job->model;
  const size_t cut = first_target(model), count = job->inputs.count - cut;
  const int64_t samples = job->inputs.shards[job->lead].samples[model->run.count];
  const ek_tensor *sources = job->inputs.sources == NULL ? NULL : job->inputs.sources + cut;
  const bool given = job->options->batch_samples != 0;
  ek_world *world = ek__model_world(model);
  int64_t before = 0;
  int64_t all[] = {samples, ek__targets_most(sources, job->inputs.shards + cut, count, samples)};
  EK_TRY(ek__world_sum(world, model->step.taken, all, 2, &before));
  job->targets = all[1];
  const int64_t batch = given ? job->options->batch_samples : all[0];
  const int64_t first = given || world == NULL ? job->options->first_sample : before;
  EK__FAIL_IF(batch < samples || first < 0 || first > batch - samples, EK_ERR_INVALID_ARGUMENT,
              "forward: %lld samples starting at number %lld do not fit in a batch of "
              "%lld",
              (long long)samples, (long long)first, (long long)batch);
  EK__FAIL_IF(batch > INT64_MAX - model->step.samples, EK_ERR_OVERFLOW,
              "forward: the step's samples do not fit in 63 bits");
  job->next = (struct ek__last_forward){.gradient = job->options->gradient,
                                        .samples = samples,
                                        .first_sample = model->step.samples + first,
                                        .batch_samples = batch,
                                        .before = before,
                                        .all = all[0]};
  return EK_OK;
}

/* How a reproducible model cuts a batch: into the grains of this process, which are a run of those
 * of all processes. */
static ek_status cut_grains(ek_scatter_options *scatter, const struct ek__forward *job) {
  const struct ek__ranks *run = &job->model->run;
  const int64_t grains = (int64_t)job->model->options.reproducible;
  const size_t first = run->ranks[0].number, last = first + run->count;
  EK__FAIL_IF(job->options->scatter != NULL, EK_ERR_INVALID_ARGUMENT,
              "forward: a reproducible model cuts its batches itself: options.scatter must be "
              "NULL");
  scatter->kind = EK_SCATTER_GRAINS;
  scatter->grains = (size_t)(ek__even_begin(grains, last, run->cut.ranks) -
                             ek__even_begin(grains, first, run->cut.ranks));
  return EK_OK;
}

/* Checks shards, or decides how inputs are cut and converted; the parts are made later. */
static ek_status lay_inputs(struct ek__forward *job, const ek_shards *cut) {
  const ek_data_parallel_model *model = job->model;
  const size_t targets = first_target(model);
  struct ek__given *inputs = &job->inputs;
  ek_scatter_options grains = EK_SCATTER_OPTIONS_INIT;
  const ek_scatter_options *scatter = job->options->scatter;
  if (!model->run.reduction->whole && cut == NULL) {
    EK_TRY(cut_grains(&grains, job));
    scatter = &grains;
  }
  while (job->lead < targets && is_broadcast(model, job->lead)) job->lead++;
  EK__FAIL_IF(job->lead == targets, EK_ERR_INVALID_ARGUMENT,
              "forward: every input is broadcast; one must be cut");
  for (size_t i = 0; i < inputs->count; i++) {
    const ek_shards *like = cut == NULL && i >= targets ? &inputs->shards[job->lead] : NULL;
    EK_TRY(ek__given_lay(inputs, i, model, cut == NULL ? NULL : &cut[i], like,
                         is_broadcast(model, i), scatter));
    EK_TRY(check_cut(job, i));
  }
  return EK_OK;
}

/* The model decides the conversion of integers. */
static ek_status check_scatter(const ek_scatter_options *options) {
  ek_scatter_options o = EK_SCATTER_OPTIONS_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_scatter_options"));
  EK__FAIL_IF(o.type != 0 || o.scaling != NULL, EK_ERR_INVALID_ARGUMENT,
              "forward: options.scatter has a type or a scaling; types and scalings of inputs come "
              "from the module and the model's options.input_scaling");
  return EK_OK;
}

ek_status ek__forward_lay(struct ek__forward *job, ek_data_parallel_model *model,
                          const ek_tensor *sources, const ek_shards *cut, size_t count,
                          const ek_forward_options *options) {
  *job = (struct ek__forward){.model = model,
                              .options = options,
                              .inputs = {.what = "forward: input",
                                         .module = model->module,
                                         .scalings = model->options.input_scaling,
                                         .scaling_count = model->options.input_scaling_count,
                                         .floating = model->options.type,
                                         .sources = sources,
                                         .intakes = job->intakes}};
  EK_TRY(check_call(job, read_call(job, count), count));
  job->inputs.count = count; /* none before: what was refused has nothing to free */
  EK__FAIL_IF(cut != NULL && options->scatter != NULL, EK_ERR_INVALID_ARGUMENT,
              "forward: shards are already cut, so options.scatter must be NULL");
  EK_TRY(check_scatter(options->scatter));
  EK_TRY(lay_inputs(job, cut));
  EK_TRY(find_place(job));
  if (model->run.reduction->check_cut == NULL) return EK_OK;
  return model->run.reduction->check_cut("forward", model, &job->inputs.shards[job->lead],
                                         job->next.before, job->next.all, true);
}

/* ---- running it ---- */

static bool has_buffers(const ek_data_parallel_model *model) {
  return ek_tensor_count(ek_replica_buffers(model->run.ranks[0].replica)) > 0;
}

/* A training forward may write the buffers of its replica, so they go out before the next forward,
 * whatever that is for. */
void ek__forward_ran(const struct ek__forward *job) {
  struct ek__ranks *run = &job->model->run;
  run->replicas_stale = false;
  run->buffers_stale =
      has_buffers(job->model) && job->options->training && !ek__forward_keeps_buffers(job);
}

/* The scaling of the gradient of a model that computes its loss itself, and the scale of its totals
 * that a criterion promises. */
static void promise(struct ek__last_forward *last, const ek_data_parallel_model *model,
                    int64_t targets) {
  const struct ek__loss *loss = model->losses;
  last->scaling = (struct ek__scaling){1, 1};
  while (loss != NULL && !loss->form->promises) loss = loss->next;
  if (loss == NULL) return;
  last->scaling = ek__model_scaling(model, loss->reduction == EK_REDUCTION_MEAN ? targets : 0);
  /* The forwards of all pieces come before the first backward: their gradients would mix. */
  if (!last->gradient || !model->run.reduction->whole) return;
  while (loss != NULL && !(loss->terms == 1 && loss->options.gradient_in_forward)) {
    loss = loss->next;
  }
  if (loss != NULL) last->scale = loss->coefficients[0] * last->scaling.factor;
}

ek_status ek__forward_begin(struct ek__forward *job, ek_shards *outputs) {
  ek_data_parallel_model *model = job->model;
  const ek_forward_options *options = job->options;
  ek__model_drop_forward(model);
  model->last = job->next;
  model->last.number = atomic_fetch_add(&forwards, 1) + 1;
  promise(&model->last, model, job->targets);
  job->replicate = model->run.replicas_stale;
  job->renew = model->run.buffers_stale;
  if (options->training && has_buffers(model)) model->run.buffers_stale = true;
  job->outputs = outputs;
  memset(outputs, 0, job->output_count * sizeof *outputs);
  for (size_t i = 0; i < job->output_count; i++) {
    EK_TRY(ek__shards_create_like(&outputs[i], &job->inputs.shards[job->lead]));
    outputs[i].private_members.forward = model->last.number;
    outputs[i].private_members.output = i;
  }
  return EK_OK;
}

static ek_status run(struct ek__forward *job, ek_shards *made) {
  ek_data_parallel_model *model = job->model;
  EK_TRY(ek__forward_begin(job, made));
  EK_TRY(ek__ranks_apply(&model->run, ek__rank_forward, job));
  ek__forward_ran(job);
  EK_TRY(finish_outputs(job));
  if (!job->options->gradient) ek__model_drop_forward(model);
  model->last.pending = job->options->gradient ? model->last.number : 0;
  return EK_OK;
}

static ek_status run_call(ek_shards *outputs, ek_data_parallel_model *model, const ek_tensor *whole,
                          const ek_shards *cut, size_t count, const ek_forward_options *options) {
  ek_forward_options o = EK_FORWARD_OPTIONS_INIT;
  const void *inputs = whole == NULL ? (const void *)cut : whole;
  struct ek__forward job;
  ek_shards made[EK_MAX_TENSORS] = {{0}};
  EK__NOT_NULL("forward", model, outputs, inputs);
  EK__MODEL_ENTER(model, "forward");
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_forward_options"));
  ek_status status = ek__forward_lay(&job, model, whole, cut, count, &o);
  if (status == EK_OK) {
    status = run(&job, made);
    if (status != EK_OK) ek__model_end_step(model, false);
    if (status == EK_OK) memcpy(outputs, made, job.output_count * sizeof *made);
    for (size_t i = 0; i < job.output_count && status != EK_OK; i++) ek_shards_free(&made[i]);
  }
  ek__given_free(&job.inputs);
  return status;
}

ek_status ek_data_parallel_model_forward(ek_shards *outputs, ek_data_parallel_model *model,
                                         const ek_tensor *inputs, size_t input_count,
                                         const ek_forward_options *options) {
  EK__WORLD_CALL(ek__model_world(model),
                 run_call(outputs, model, inputs, NULL, input_count, options));
}

ek_status ek_data_parallel_model_forward_shards(ek_shards *outputs, ek_data_parallel_model *model,
                                                const ek_shards *inputs, size_t input_count,
                                                const ek_forward_options *options) {
  EK__WORLD_CALL(ek__model_world(model),
                 run_call(outputs, model, NULL, inputs, input_count, options));
}
