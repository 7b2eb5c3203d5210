/*
 * rank_loss.c - the loss of one rank's outputs, and its gradient.
 *
 * A rank with rows computes its totals {s, d} per term, in a pass for each of its pieces; a rank
 * without rows has zeros. The reduction adds these few numbers up over the ranks, at once or with
 * the update, and each rank combines the terms itself. With gradient_in_forward the outputs may
 * hold their gradients after forward, which the pass records. The outputs of a model that computes
 * its loss itself are the totals, without passes of a criterion.
 *
 * The gradients of a rank with several pieces overwrite its outputs, unless these are kept or have
 * another holder; those of one piece are made in memory of their own and copied to its rows.
 */
#include <string.h>

#include <evenkeel/elementwise.h>
#include <evenkeel/losses.h>

#include "core/error.h"
#include "forward.h"

/* ---- a module of its own ---- */

static ek_status open_replica(const struct ek__loss_work *work) {
  struct ek__loss_rank *own = work->own;
  ek_module *module = &work->loss->criterion->base;
  ek_replica_options options = EK_REPLICA_OPTIONS_INIT;
  options.type = work->model->options.type;
  options.precision = work->model->options.precision;
  options.gradients = false;
  EK_TRY(ek_replica_open(&own->replica, work->rank->device, module, &options));
  const bool collective = own->replica->layout.collective;
  if (!collective && ek_tensor_count(ek_replica_parameters(own->replica)) == 0) return EK_OK;
  return ek_error_set(EK_ERR_UNSUPPORTED,
                      "%s has %s: join it with the model by ek_with_criterion_create()",
                      ek_module_kind(module), collective ? "collectives of its own" : "parameters");
}

/* Rows of a piece, of outputs and targets. Views of outputs are loans, because outputs live until
 * backward is done: so the passes of other pieces do not count as holders of them. */
static ek_status take_rows(ek_tensor *rows, const ek_data_parallel_model *model,
                           const struct ek__piece *piece, const ek_tensor *part,
                           ek_memory_category category) {
  EK_TRY(ek__piece_rows(rows, model, piece, part, category));
  const bool view = category == EK_MEMORY_OUTPUTS && rows->memory == part->memory;
  if (model->run.reduction->whole || !view) return EK_OK;
  ek_tensor loan = *rows;
  ek_tensor_free(rows);
  loan.memory = NULL;
  *rows = loan;
  return EK_OK;
}

static ek_status open_pass(ek_pass **pass, const struct ek__loss_work *work,
                           const struct ek__piece *piece) {
  const ek_data_parallel_model *model = work->model;
  const struct ek__loss *loss = work->loss;
  const bool whole = model->run.reduction->whole;
  ek_pass_options options = EK_PASS_OPTIONS_INIT;
  options.gradient = loss->gradient;
  options.training = false;
  if (loss->forward == model->last.number) {
    options.first_sample = model->last.first_sample + piece->first;
  }
  /* A piece's outputs are rows of its rank's: it may not overwrite them. */
  options.promise.overwrite_inputs = !loss->options.keep_outputs && whole;
  options.promise.gradient_now =
      loss->with_gradient ? loss->coefficients[0] * loss->scaling.factor : 0;
  options.promise.totals = whole ? &work->own->totals.sum : NULL;
  return ek__rank_open_pass(pass, model, work->own->replica, NULL, &options);
}

static ek_status run_piece(const struct ek__loss_work *work, const struct ek__piece *piece) {
  const ek_data_parallel_model *model = work->model;
  const struct ek__loss *loss = work->loss;
  struct ek__loss_rank *own = work->own;
  ek_pass **pass = &own->passes[piece->number];
  ek_tensor inputs[EK_MAX_INPUTS] = {{0}}, results[EK_MAX_TENSORS] = {{0}};
  ek_tensor leaf = ek__totals_leaf(&own->totals, piece->number);
  ek_status status = EK_OK;
  for (size_t i = 0; i < loss->outputs + loss->targets; i++) {
    const bool output = i < loss->outputs;
    const ek_shards *from = output ? &loss->seen[i] : &work->targets[i - loss->outputs];
    const ek_tensor *part = &from->parts[work->rank->place];
    EK_TRY_GOTO(status, ek_tensor_wait(part), cleanup);
    EK_TRY_GOTO(
        status,
        take_rows(&inputs[i], model, piece, part, output ? EK_MEMORY_OUTPUTS : EK_MEMORY_INPUTS),
        cleanup);
  }
  EK_TRY_GOTO(status, open_pass(pass, work, piece), cleanup);
  EK_TRY_GOTO(status, ek_pass_run_forward(results, *pass, inputs), cleanup);
  if (!model->run.reduction->whole) { /* else the pass has them there */
    EK_TRY_GOTO(status, ek_op_copy(ek__rank_stream(work->rank), &leaf, &results[0]), cleanup);
  }
  if (loss->reduction == EK_REDUCTION_NONE) {
    EK_TRY_GOTO(status, ek__piece_append(&own->losses, &results[1], model, piece, EK_MEMORY_LOSS),
                cleanup);
  }
  if (loss->gradient) goto cleanup;
  ek_pass_free(*pass);
  *pass = NULL;
cleanup:
  for (size_t i = 0; i < EK_MAX_TENSORS; i++) ek_tensor_free(&results[i]);
  for (size_t i = 0; i < loss->outputs + loss->targets; i++) ek__piece_free(&inputs[i], model);
  return status;
}

static ek_status run_pieces(const struct ek__loss_work *work) {
  const struct ek__pieces *pieces = &work->own->pieces;
  for (size_t i = 0; i < pieces->rounds; i++) {
    const struct ek__piece piece = work->model->run.reduction->piece(work->model, pieces, i);
    EK_TRY(run_piece(work, &piece));
  }
  return EK_OK;
}

/* The place for the gradient of all rows. */
static ek_status place_gradient(ek_tensor *gradient, const struct ek__loss *loss,
                                const ek_tensor *output) {
  const bool here = !loss->options.keep_outputs && ek_tensor_holders(output) == 1;
  if (here) return ek_tensor_share(gradient, output);
  return ek_tensor_create(gradient, output->device, EK_MEMORY_LOSS, output->type, output->rank,
                          output->shape);
}

static ek_status run_piece_backward(ek_tensor *gradients, const struct ek__loss_work *work,
                                    const struct ek__piece *piece) {
  const ek_data_parallel_model *model = work->model;
  ek_tensor given[] = {work->own->scales, {0}}, results[EK_MAX_INPUTS] = {{0}};
  ek_pass *pass = work->own->passes[piece->number];
  ek_status status = EK_OK;
  if (ek_tensor_exists(work->factors)) {
    EK_TRY_GOTO(status, take_rows(&given[1], model, piece, work->factors, EK_MEMORY_LOSS), cleanup);
  }
  EK_TRY_GOTO(status, ek_pass_run_backward(results, pass, given), cleanup);
  for (size_t i = 0; i < work->loss->outputs; i++) {
    if (model->run.reduction->whole) {
      gradients[i] = results[i];
      memset(&results[i], 0, sizeof results[i]);
    } else {
      EK_TRY_GOTO(status, ek__piece_put(&gradients[i], piece, &results[i]), cleanup);
    }
  }
cleanup:
  for (size_t i = 0; i < EK_MAX_INPUTS; i++) ek_tensor_free(&results[i]);
  ek__piece_free(&given[1], model);
  return status;
}

static ek_status run_pieces_backward(ek_tensor *gradients, const struct ek__loss_work *work) {
  const struct ek__reduction *reduction = work->model->run.reduction;
  const struct ek__loss *loss = work->loss;
  for (size_t i = 0; i < loss->outputs && !reduction->whole; i++) {
    EK_TRY(place_gradient(&gradients[i], loss, &loss->seen[i].parts[work->rank->place]));
  }
  for (size_t i = 0; i < work->own->pieces.rounds; i++) {
    const struct ek__piece piece = reduction->piece(work->model, &work->own->pieces, i);
    EK_TRY(run_piece_backward(gradients, work, &piece));
  }
  return EK_OK;
}

const struct ek__loss_form ek__loss_of_criterion = {
    .open = open_replica, .forward = run_pieces, .backward = run_pieces_backward};

/* ---- the model's own ---- */

/* The totals of its pieces are one after the other. */
static ek_status take_totals(const struct ek__loss_work *work) {
  const struct ek__pieces *pieces = &work->own->pieces;
  const struct ek__totals *totals = &work->own->totals;
  const int64_t size = ek_tensor_count(&totals->sum);
  const int64_t count = (int64_t)(pieces->last - pieces->first) * size;
  const ek_tensor *part = &work->loss->seen[0].parts[work->rank->place];
  if (count == 0) return EK_OK;
  EK__FAIL_IF(ek_tensor_count(part) != count, EK_ERR_SHAPE,
              "criterion forward: %lld numbers are not the totals of %zu pieces",
              (long long)ek_tensor_count(part), pieces->last - pieces->first);
  ek_tensor to = ek__flat_range(&totals->leaves, (int64_t)pieces->first * size, count);
  return ek_op_copy(ek__rank_stream(work->rank), &to, part);
}

static ek_status give_scales(ek_tensor *gradients, const struct ek__loss_work *work) {
  return ek_tensor_share(&gradients[0], &work->own->scales);
}

const struct ek__loss_form ek__loss_of_model = {
    .forward = take_totals, .backward = give_scales, .promises = true};

/* ---- forward ---- */

static ek_status add_totals(const struct ek__loss_work *work, bool late) {
  const struct ek__reduction *reduction = work->model->run.reduction;
  const struct ek__loss *loss = work->loss;
  const int64_t *samples = loss->seen[0].samples;
  struct ek__loss_rank *own = work->own;
  ek_stream *stream = ek__rank_stream(work->rank);
  const double factor = loss->scaling.factor;
  reduction->pieces(&own->pieces, work->model, work->rank, samples, false);
  EK_TRY(ek__loss_has_rows(loss->seen, work->rank->place) ? loss->form->forward(work)
                                                          : ek_op_zero(stream, &own->totals.sum));
  if (!late) EK_TRY(reduction->totals(work->model, work->rank, &own->totals, samples));
  EK_TRY(ek_op_combine_totals(stream, &loss->combined[work->rank->place], &own->scales,
                              &own->totals.sum, loss->coefficients,
                              loss->reduction == EK_REDUCTION_MEAN));
  return factor == 1 ? EK_OK : ek_op_scale(stream, &own->scales, &own->scales, factor);
}

ek_status ek__loss_check_rows(const ek_shards *outputs, size_t count, size_t place) {
  const bool rows = ek__loss_has_rows(outputs, place);
  for (size_t i = 0; i < count; i++) {
    EK__FAIL_IF(ek__loss_has_rows(&outputs[i], place) != rows, EK_ERR_SHAPE,
                "output number %zu is on other devices than number 0", i);
  }
  return EK_OK;
}

ek_status ek__rank_loss_forward(void *context, struct ek__rank *rank) {
  const struct ek__loss_forward *job = context;
  const struct ek__loss_work work = {
      job->model, job->loss, rank, ek__loss_of(rank, job->loss), job->targets.shards, NULL};
  ek_status status = ek__given_cut(&job->targets, rank);
  if (status == EK_OK) {
    status = ek__loss_check_rows(job->loss->seen, job->loss->outputs, rank->place);
  }
  if (status == EK_OK) status = add_totals(&work, job->late);
  ek__given_give_back(&job->targets, rank);
  return status;
}

/* ---- backward ---- */

/* The gradient of single losses: the factors, times the coefficient and the loss scale. */
static ek_status make_factors(ek_tensor *made, const struct ek__loss *loss,
                              const struct ek__rank *rank, const ek_tensor *factors) {
  const ek_tensor *losses = &ek__loss_of(rank, loss)->losses;
  const double coefficient = loss->coefficients[0] * loss->scaling.factor;
  ek_tensor given = {0};
  if (factors != NULL) {
    EK__FAIL_IF(ek_tensor_count(factors) != ek_tensor_count(losses), EK_ERR_SHAPE,
                "criterion backward: %lld factors for %lld losses",
                (long long)ek_tensor_count(factors), (long long)ek_tensor_count(losses));
    EK_TRY(ek_tensor_reshape(&given, factors, losses->rank, losses->shape));
    if (coefficient == 1) {
      *made = given;
      return EK_OK;
    }
  }
  ek_status status = ek_tensor_create(made, rank->device, EK_MEMORY_LOSS, losses->type,
                                      losses->rank, losses->shape);
  if (status == EK_OK) {
    status = factors == NULL ? ek_op_fill(ek__rank_stream(rank), made, coefficient)
                             : ek_op_scale(ek__rank_stream(rank), made, &given, coefficient);
  }
  ek_tensor_free(&given);
  return status;
}

/* Several terms: adds this micro-batch to the step (criterion_backward.c). */
static ek_status add_terms(const struct ek__loss *loss, const struct ek__rank *rank) {
  struct ek__loss_rank *own = ek__loss_of(rank, loss);
  ek_stream *stream = ek__rank_stream(rank);
  ek_tensor *step = &own->step_totals, *combined = &own->step_combined;
  const ek_tensor *totals = &own->totals.sum;
  EK_TRY(loss->micro_batches == 0 ? ek_op_copy(stream, step, totals)
                                  : ek_op_add(stream, step, step, totals));
  if (loss->weights_given) {
    EK_TRY(ek_op_combine_totals(stream, combined, &own->scales, totals, loss->given_scales, false));
  }
  return ek_op_combine_totals(stream, combined, &own->step_scales, step, loss->coefficients, true);
}

ek_status ek__rank_loss_backward(ek_tensor *gradients, const struct ek__backward *job,
                                 const struct ek__rank *rank) {
  struct ek__loss *loss = job->loss;
  const ek_tensor *factors = job->factors == NULL ? NULL : &job->factors->parts[rank->place];
  ek_tensor made = {0};
  const struct ek__loss_work work = {job->model, loss, rank, ek__loss_of(rank, loss), NULL, &made};
  ek_status status = EK_OK;
  if (ek__loss_keeps_terms(loss)) EK_TRY(add_terms(loss, rank));
  if (!loss->form->promises && !ek__loss_has_rows(loss->seen, rank->place)) return EK_OK;
  if (loss->reduction == EK_REDUCTION_NONE) {
    EK_TRY_GOTO(status, make_factors(&made, loss, rank, factors), cleanup);
  }
  status = loss->form->backward(gradients, &work);
cleanup:
  ek_tensor_free(&made);
  return status;
}
