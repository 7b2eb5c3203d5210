/*
 * data_parallel_criterion.c - the loss where the outputs are, summed over the devices.
 *
 * Every device has a replica of the criterion, without gradients, unless the model computes its
 * loss itself. rank_loss.c has the forward. One all-reduce of a few numbers gives every device the
 * totals of all devices, without waiting for the host.
 *
 * Outputs carry the number of the forward that made them. The loss remembers that number, and its
 * backward, in criterion_backward.c, refuses the passes of any other forward. Its own passes are
 * dropped together with the forward of the model.
 */
#include <evenkeel/data_parallel_criterion.h>

#include <math.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"
#include "forward.h"

/* ---- opening and closing ---- */

static const char memory_of[] = "a data-parallel criterion";

/* f64 numbers, with as many dimensions as the first sizes that are not 0. */
static ek_status make(ek_tensor *numbers, const struct ek__rank *rank, int64_t a, int64_t b,
                      int64_t c) {
  const int64_t shape[] = {a, b, c};
  return ek_tensor_create(numbers, rank->device, EK_MEMORY_LOSS, EK_F64,
                          b == 0   ? 1
                          : c == 0 ? 2
                                   : 3,
                          shape);
}

static ek_status open_one(void *context, struct ek__rank *rank) {
  const ek_data_parallel_criterion *self = context;
  const ek_data_parallel_model *model = self->model;
  const struct ek__reduction *reduction = model->run.reduction;
  struct ek__loss *loss = (struct ek__loss *)(uintptr_t)&self->loss;
  const size_t leaves = reduction->whole ? 1 : reduction->most(model) * model->run.cut.ranks;
  const int64_t terms = (int64_t)loss->terms;
  struct ek__loss_rank *own = NULL;
  EK_TRY(ek__new(&own, 1, sizeof *own, memory_of));
  own->loss = loss;
  own->next = rank->losses;
  rank->losses = own;
  EK_TRY(ek__new(&own->passes, leaves, sizeof *own->passes, memory_of));
  own->pass_count = leaves;
  EK_TRY(make(&own->totals.sum, rank, terms, 2, 0));
  EK_TRY(make(&loss->combined[rank->place], rank, 2, 0, 0));
  EK_TRY(make(&own->scales, rank, terms, 2, 0));
  if (reduction->whole) {
    own->totals.leaves = own->totals.sum;
    own->totals.leaves.memory = NULL;
  } else {
    EK_TRY(make(&own->totals.leaves, rank, (int64_t)leaves, terms, 2));
  }
  if (ek__loss_keeps_terms(loss)) {
    EK_TRY(make(&own->step_totals, rank, terms, 2, 0));
    EK_TRY(make(&own->step_combined, rank, 2, 0, 0));
    EK_TRY(make(&own->step_scales, rank, terms, 2, 0));
  }
  const struct ek__loss_work work = {model, loss, rank, own, NULL, NULL};
  return loss->form->open == NULL ? EK_OK : loss->form->open(&work);
}

static ek_status check_open(ek_data_parallel_criterion **parallel,
                            const ek_data_parallel_model *model, const ek_criterion *criterion,
                            const ek_data_parallel_criterion_options *options) {
  EK__NOT_NULL("ek_data_parallel_criterion_open", parallel, model);
  if (!ek_module_is_criterion(model->module))
    EK__NOT_NULL("ek_data_parallel_criterion_open", criterion);
  EK__FAIL_IF(
      ek_module_is_criterion(model->module) && criterion != NULL, EK_ERR_INVALID_ARGUMENT,
      "ek_data_parallel_criterion_open: %s computes its loss itself: the criterion must be NULL",
      ek_module_kind(model->module));
  EK__FAIL_IF(options->keep_outputs && options->gradient_in_forward, EK_ERR_INVALID_ARGUMENT,
              "ek_data_parallel_criterion_open: keep_outputs and gradient_in_forward exclude each "
              "other: the latter overwrites the outputs");
  if (criterion == NULL) return EK_OK;
  EK_TRY(ek_criterion_check(criterion));
  EK__FAIL_IF(ek_criterion_outputs(criterion) != ek_module_outputs(model->module),
              EK_ERR_INVALID_ARGUMENT, "%s takes %zu outputs, but %s has %zu",
              ek_module_kind(&criterion->base), ek_criterion_outputs(criterion),
              ek_module_kind(model->module), ek_module_outputs(model->module));
  return EK_OK;
}

/* Copies the counts that size arrays. */
static void describe(struct ek__loss *loss, ek_data_parallel_model *model,
                     ek_criterion *criterion) {
  const bool own = criterion == NULL;
  loss->form = own ? &ek__loss_of_model : &ek__loss_of_criterion;
  loss->criterion = ek_criterion_share(own ? ek_criterion_of(model->module) : criterion);
  loss->outputs = ek_module_outputs(model->module);
  loss->targets = own ? 0 : ek_module_targets(&criterion->base);
  loss->terms = ek_module_terms(&loss->criterion->base);
  loss->reduction = ek_criterion_reduction(loss->criterion);
  for (size_t i = 0; i < loss->terms; i++) {
    const double *coefficients = ek_criterion_coefficients(loss->criterion);
    loss->coefficients[i] = coefficients == NULL ? 1.0 : coefficients[i];
  }
}

static ek_status open_criterion(ek_data_parallel_criterion **parallel,
                                ek_data_parallel_model *model, ek_criterion *criterion,
                                const ek_data_parallel_criterion_options *options) {
  ek_data_parallel_criterion_options o = EK_DATA_PARALLEL_CRITERION_OPTIONS_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_data_parallel_criterion_options"));
  EK_TRY(check_open(parallel, model, criterion, &o));
  EK__MODEL_USE(model, "criterion open");
  ek_data_parallel_criterion *self = NULL;
  ek_input_scaling *scalings = NULL;
  EK_TRY(ek__new(&self, 1, sizeof *self, memory_of));
  self->model = model;
  describe(&self->loss, model, criterion);
  self->loss.next = model->losses;
  model->losses = &self->loss;
  ek_status status =
      ek__scalings_copy(&scalings, "ek_data_parallel_criterion_open", o.target_scaling,
                        o.target_scaling_count, self->loss.targets);
  self->loss.options = o;
  self->loss.options.target_scaling = scalings;
  if (status == EK_OK) {
    status = ek__new(&self->loss.combined, model->run.count, sizeof(ek_tensor), memory_of);
  }
  if (status == EK_OK) status = ek__ranks_apply(&model->run, open_one, self);
  if (status == EK_OK) status = ek__loss_same(model, &self->loss);
  if (status == EK_OK) {
    *parallel = self;
  } else {
    ek_data_parallel_criterion_free(self);
  }
  return status;
}

ek_status ek_data_parallel_criterion_open(ek_data_parallel_criterion **parallel,
                                          ek_data_parallel_model *model, ek_criterion *criterion,
                                          const ek_data_parallel_criterion_options *options) {
  EK__WORLD_CALL(ek__model_world(model), open_criterion(parallel, model, criterion, options));
}

void ek__loss_drop_forward(const ek_data_parallel_model *model, struct ek__loss *loss) {
  EK__EACH_RANK(rank, &model->run) {
    struct ek__loss_rank *own = ek__loss_of(rank, loss);
    if (own == NULL) continue;
    ek__passes_drop(own->passes, own->pass_count);
    ek_tensor_free(&own->losses);
  }
  loss->seen = NULL;
  loss->has_forward = false;
}

static void close_one(struct ek__rank *rank, const struct ek__loss *loss) {
  struct ek__loss_rank *own = ek__loss_of(rank, loss), **link = &rank->losses;
  if (own == NULL) return;
  while (*link != own) link = &(*link)->next;
  *link = own->next;
  ek_replica_free(own->replica);
  ek_tensor_free(&own->totals.leaves);
  ek_tensor_free(&own->step_scales);
  ek_tensor_free(&own->step_combined);
  ek_tensor_free(&own->step_totals);
  ek_tensor_free(&own->scales);
  ek_tensor_free(&loss->combined[rank->place]);
  ek_tensor_free(&own->totals.sum);
  ek__free(own->passes);
  ek__free(own);
}

void ek_data_parallel_criterion_free(ek_data_parallel_criterion *parallel) {
  if (parallel == NULL) return;
  ek_data_parallel_model *model = parallel->model;
  struct ek__loss *loss = &parallel->loss, **link = &model->losses;
  while (*link != loss) link = &(*link)->next;
  *link = loss->next;
  ek__loss_drop_forward(model, loss);
  EK__EACH_RANK(rank, &model->run) close_one(rank, loss);
  ek__free(loss->combined);
  ek_criterion_free(loss->criterion);
  ek__free((void *)(uintptr_t)loss->options.target_scaling);
  ek__free(parallel);
}

/* ---- forward ---- */

ek_status ek__loss_unchanged(const ek_data_parallel_model *model, const struct ek__loss *loss) {
  const struct ek__rank *rank = &model->run.ranks[0];
  const ek_replica *replica = ek__loss_of(rank, loss)->replica;
  return ek__layout_check(replica == NULL ? &rank->replica->layout : &replica->layout);
}

ek_status ek__loss_check_call(const ek_data_parallel_model *model, const struct ek__loss *loss,
                              size_t output_count, size_t target_count) {
  EK_TRY(ek__loss_unchanged(model, loss));
  EK__FAIL_IF(output_count != loss->outputs || target_count != loss->targets,
              EK_ERR_INVALID_ARGUMENT, "%s takes %zu outputs and %zu targets, not %zu and %zu",
              ek_module_kind(&loss->criterion->base), loss->outputs, loss->targets, output_count,
              target_count);
  return EK_OK;
}

/* These are all outputs of one forward, in order, none overwritten. Tensors made by the program
 * have the number 0. */
static ek_status check_outputs(const ek_data_parallel_model *model, const struct ek__loss *loss,
                               const ek_shards *outputs, size_t output_count, size_t target_count) {
  const struct ek__reduction *reduction = model->run.reduction;
  EK_TRY(ek__loss_check_call(model, loss, output_count, target_count));
  for (size_t i = 0; i < output_count; i++) {
    const struct ek__shards_private *origin = &outputs[i].private_members;
    EK__FAIL_IF(outputs[i].group != model->run.group, EK_ERR_DEVICE,
                "output number %zu is not of the model's group", i);
    EK_TRY(ek__shards_check("criterion forward: an output", &outputs[i]));
    EK__FAIL_IF(origin->forward != outputs[0].private_members.forward ||
                    (origin->forward != 0 && origin->output != i),
                EK_ERR_INVALID_ARGUMENT,
                "criterion forward: output number %zu is not output number %zu of the forward that "
                "produced output number 0",
                i, i);
    EK__FAIL_IF(origin->overwritten, EK_ERR_STATE,
                "criterion forward: output number %zu was overwritten by a criterion's gradient; "
                "run a new forward",
                i);
  }
  for (size_t k = 0; k < model->run.count; k++) {
    EK_TRY(ek__loss_check_rows(outputs, output_count, k));
  }
  if (reduction->check_cut == NULL) return EK_OK;
  return reduction->check_cut("criterion forward", model, &outputs[0], model->last.before,
                              model->last.all, false);
}

ek_status ek__loss_lay(struct ek__loss_forward *job, ek_data_parallel_model *model,
                       struct ek__loss *loss, const ek_shards *like, const ek_tensor *sources,
                       const ek_shards *cut, size_t count) {
  struct ek__given *targets = &job->targets;
  *job = (struct ek__loss_forward){.model = model,
                                   .loss = loss,
                                   .targets = {.what = "criterion forward: target",
                                               .module = &loss->criterion->base,
                                               .first = loss->outputs,
                                               .scalings = loss->options.target_scaling,
                                               .scaling_count = loss->options.target_scaling_count,
                                               .floating = model->options.type,
                                               .count = count,
                                               .sources = sources,
                                               .intakes = job->intakes}};
  for (size_t i = 0; i < count; i++) {
    EK_TRY(ek__given_lay(targets, i, model, cut == NULL ? NULL : &cut[i], like, false, NULL));
  }
  job->most = ek__targets_most(sources, targets->shards, count, like->samples[like->count]);
  return ek__world_sum(ek__model_world(model), model->step.taken, &job->most, 1, NULL);
}

void ek__loss_begin(struct ek__loss_forward *job, ek_shards *outputs, bool gradient) {
  struct ek__loss *loss = job->loss;
  ek__loss_drop_forward(job->model, loss);
  loss->seen = outputs;
  loss->forward = outputs[0].private_members.forward;
  loss->gradient = gradient;
  loss->scaling = (struct ek__scaling){1, 1};
  if (gradient) {
    const int64_t targets = loss->reduction == EK_REDUCTION_MEAN ? job->most : 0;
    loss->scaling =
        loss->form->promises ? job->model->last.scaling : ek__model_scaling(job->model, targets);
  }
  loss->with_gradient = gradient && loss->options.gradient_in_forward && !loss->form->promises &&
                        job->model->run.reduction->whole;
  loss->has_loss = false;
  for (size_t i = 0; i < loss->outputs; i++) {
    outputs[i].private_members.overwritten = loss->with_gradient;
  }
}

static ek_status run(struct ek__loss_forward *job, ek_shards *outputs) {
  ek_data_parallel_model *model = job->model;
  struct ek__loss *loss = job->loss;
  const uint64_t forward = outputs[0].private_members.forward;
  const bool gradient = model->last.pending != 0 && forward == model->last.pending;
  ek__loss_begin(job, outputs, gradient);
  const ek_status status = ek__ranks_apply(&model->run, ek__rank_loss_forward, job);
  loss->has_forward = loss->has_loss = status == EK_OK;
  if (status == EK_OK) return EK_OK;
  ek__loss_drop_forward(model, loss);
  ek__model_end_step(model, false);
  return status;
}

static ek_status run_call(ek_data_parallel_criterion *parallel, ek_shards *outputs,
                          size_t output_count, const ek_tensor *tensors, const ek_shards *shards,
                          size_t target_count) {
  const void *targets = shards == NULL ? (const void *)tensors : shards;
  EK__NOT_NULL("criterion forward", parallel, outputs);
  if (target_count > 0) EK__NOT_NULL("criterion forward", targets);
  ek_data_parallel_model *model = parallel->model;
  EK__MODEL_ENTER(model, "criterion forward");
  EK_TRY(ek__model_check_step(model));
  EK_TRY(check_outputs(model, &parallel->loss, outputs, output_count, target_count));
  struct ek__loss_forward job;
  ek_status status =
      ek__loss_lay(&job, model, &parallel->loss, outputs, tensors, shards, target_count);
  if (status == EK_OK) status = run(&job, outputs);
  ek__given_free(&job.targets);
  return status;
}

static ek_world *world_of(const ek_data_parallel_criterion *parallel) {
  return parallel == NULL ? NULL : ek__model_world(parallel->model);
}

ek_status ek_data_parallel_criterion_forward(ek_data_parallel_criterion *parallel,
                                             ek_shards *model_outputs, size_t output_count,
                                             const ek_tensor *targets, size_t target_count) {
  EK__WORLD_CALL(world_of(parallel),
                 run_call(parallel, model_outputs, output_count, targets, NULL, target_count));
}

ek_status ek_data_parallel_criterion_forward_shards(ek_data_parallel_criterion *parallel,
                                                    ek_shards *model_outputs, size_t output_count,
                                                    const ek_shards *targets, size_t target_count) {
  EK__WORLD_CALL(world_of(parallel),
                 run_call(parallel, model_outputs, output_count, NULL, targets, target_count));
}

/* ---- the loss ---- */

ek_status ek__criterion_add_totals(double *totals, const ek_data_parallel_criterion *self) {
  const struct ek__loss_rank *first = ek__loss_of(&self->model->run.ranks[0], &self->loss);
  double read[2 * EK_MAX_TERMS];
  for (size_t i = 0; i < 2 * self->loss.terms; i++) read[i] = NAN; /* of `plan` devices */
  EK_TRY(ek__read_numbers(read, 2 * (int64_t)self->loss.terms, &first->totals.sum));
  for (size_t i = 0; i < 2 * self->loss.terms; i++) totals[i] += read[i];
  return EK_OK;
}

double ek__criterion_loss_of(double *weight, const ek_data_parallel_criterion *self,
                             const double *totals) {
  double loss = 0, most = 0;
  for (size_t i = 0; i < self->loss.terms; i++) {
    const double s = totals[2 * i], d = totals[2 * i + 1];
    const bool divided = self->loss.reduction == EK_REDUCTION_MEAN;
    if (!divided || d != 0) loss += self->loss.coefficients[i] * s / (divided ? d : 1);
    most = fmax(most, d);
  }
  if (weight != NULL) *weight = most;
  return loss;
}

ek_status ek_data_parallel_criterion_loss(double *loss, double *weight,
                                          ek_data_parallel_criterion *parallel) {
  EK__NOT_NULL("criterion loss", loss, parallel);
  EK__MODEL_ENTER(parallel->model, "criterion loss");
  EK_TRY(ek__model_check_kept(parallel->model));
  EK__FAIL_IF(!parallel->loss.has_loss, EK_ERR_STATE,
              "criterion loss: no forward has run before it");
  double combined[2] = {NAN, NAN}, totals[2 * EK_MAX_TERMS] = {0};
  EK_TRY(ek__read_numbers(combined, 2, &parallel->loss.combined[0]));
  EK_TRY(ek__criterion_add_totals(totals, parallel));
  (void)ek__criterion_loss_of(weight, parallel, totals);
  const bool mean = parallel->loss.reduction == EK_REDUCTION_MEAN;
  *loss = !mean ? combined[0] : combined[1] == 0 ? 0.0 : combined[0] / combined[1];
  return EK_OK;
}

ek_status ek_data_parallel_criterion_losses(ek_shards *losses,
                                            ek_data_parallel_criterion *parallel) {
  EK__NOT_NULL("criterion losses", losses, parallel);
  EK__MODEL_ENTER(parallel->model, "criterion losses");
  EK_TRY(ek__model_check_kept(parallel->model));
  EK__FAIL_IF(!parallel->loss.has_forward || parallel->loss.reduction != EK_REDUCTION_NONE,
              EK_ERR_STATE, "criterion losses: no forward with reduction `none` has run before it");
  EK_TRY(ek__shards_check("criterion losses: the outputs", parallel->loss.seen));
  const ek_tensor none = {.type = parallel->model->options.type, .rank = 1};
  const ek_shards *seen = parallel->loss.seen;
  ek_shards made;
  EK_TRY(ek__shards_create_like(&made, seen));
  ek_status status = EK_OK;
  EK__EACH_RANK(rank, &parallel->model->run) {
    if (!ek__loss_has_rows(seen, rank->place) || status != EK_OK) continue;
    status = ek_tensor_share(&made.parts[rank->place], &ek__loss_of(rank, &parallel->loss)->losses);
  }
  if (status == EK_OK) status = ek__parallel_apply_finish(&made, &none);
  if (status == EK_OK) {
    *losses = made;
  } else {
    ek_shards_free(&made);
  }
  return status;
}

const ek_tensor *ek_data_parallel_criterion_totals(const ek_data_parallel_criterion *parallel) {
  return parallel == NULL ? NULL : parallel->loss.combined;
}

EK__OPTIONS_INIT(ek_data_parallel_criterion_options, EK_DATA_PARALLEL_CRITERION_OPTIONS_INIT)
EK__OPTIONS_INIT(ek_criterion_backward_options, EK_CRITERION_BACKWARD_OPTIONS_INIT)
