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
#include "criterion_internal.h"

static struct ek__loss_rank *own_of(const struct ek__loss *loss, const struct ek__rank *rank) {
  return &loss->ranks[rank->place];
}

/* ---- a module of its own ---- */

static ek_status open_replica(const ek_data_parallel_model *model, const struct ek__loss *loss,
                              struct ek__loss_rank *own, const struct ek__rank *rank) {
  const ek_module *module = &loss->criterion->base;
  ek_replica_options options = EK_REPLICA_OPTIONS_INIT;
  options.type = model->options.type;
  options.precision = model->options.precision;
  options.gradients = false;
  EK_TRY(ek_replica_open(&own->replica, rank->device, &loss->criterion->base, &options));
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

static ek_status open_pass(ek_pass **pass, const ek_data_parallel_model *model,
                           const struct ek__loss *loss, struct ek__loss_rank *own,
                           const struct ek__piece *piece) {
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
  options.promise.totals = whole ? &own->totals.sum : NULL;
  return ek__rank_open_pass(pass, model, own->replica, NULL, &options);
}

static ek_status run_piece(const ek_data_parallel_model *model, struct ek__loss *loss,
                           const struct ek__rank *rank, const ek_shards *targets,
                           const struct ek__piece *piece) {
  struct ek__loss_rank *own = own_of(loss, rank);
  ek_pass **pass = &own->passes[piece->number];
  ek_tensor inputs[EK_MAX_INPUTS] = {{0}}, results[EK_MAX_TENSORS] = {{0}};
  ek_tensor leaf = ek__totals_leaf(&own->totals, piece->number);
  ek_status status = EK_OK;
  for (size_t i = 0; i < loss->outputs + loss->targets; i++) {
    const bool output = i < loss->outputs;
    const ek_shards *from = output ? &loss->seen[i] : &targets[i - loss->outputs];
    EK_TRY_GOTO(status, ek_tensor_wait(&from->parts[rank->place]), cleanup);
    EK_TRY_GOTO(status,
                take_rows(&inputs[i], model, piece, &from->parts[rank->place],
                          output ? EK_MEMORY_OUTPUTS : EK_MEMORY_INPUTS),
                cleanup);
  }
  EK_TRY_GOTO(status, open_pass(pass, model, loss, own, piece), cleanup);
  EK_TRY_GOTO(status, ek_pass_run_forward(results, *pass, inputs), cleanup);
  if (!model->run.reduction->whole) { /* else the pass has them there */
    EK_TRY_GOTO(status, ek_op_copy(ek__rank_stream(rank), &leaf, &results[0]), cleanup);
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

static ek_status run_pieces(const ek_data_parallel_model *model, struct ek__loss *loss,
                            const struct ek__rank *rank, const ek_shards *targets) {
  const struct ek__pieces *pieces = &own_of(loss, rank)->pieces;
  for (size_t i = 0; i < pieces->rounds; i++) {
    const struct ek__piece piece = model->run.reduction->piece(model, pieces, i);
    EK_TRY(run_piece(model, loss, rank, targets, &piece));
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

static ek_status run_piece_backward(ek_tensor *gradients, const ek_data_parallel_model *model,
                                    struct ek__loss *loss, const struct ek__rank *rank,
                                    const ek_tensor *factors, const struct ek__piece *piece) {
  struct ek__loss_rank *own = own_of(loss, rank);
  ek_tensor given[] = {own->scales, {0}}, results[EK_MAX_INPUTS] = {{0}};
  ek_status status = EK_OK;
  if (ek_tensor_exists(factors)) {
    EK_TRY_GOTO(status, take_rows(&given[1], model, piece, factors, EK_MEMORY_LOSS), cleanup);
  }
  EK_TRY_GOTO(status, ek_pass_run_backward(results, own->passes[piece->number], given), cleanup);
  for (size_t i = 0; i < loss->outputs; i++) {
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

static ek_status run_pieces_backward(ek_tensor *gradients, const ek_data_parallel_model *model,
                                     struct ek__loss *loss, const struct ek__rank *rank,
                                     const ek_tensor *factors) {
  const struct ek__reduction *reduction = model->run.reduction;
  const struct ek__pieces *pieces = &own_of(loss, rank)->pieces;
  for (size_t i = 0; i < loss->outputs && !reduction->whole; i++) {
    EK_TRY(place_gradient(&gradients[i], loss, &loss->seen[i].parts[rank->place]));
  }
  for (size_t i = 0; i < pieces->rounds; i++) {
    const struct ek__piece piece = reduction->piece(model, pieces, i);
    EK_TRY(run_piece_backward(gradients, model, loss, rank, factors, &piece));
  }
  return EK_OK;
}

const struct ek__loss_form ek__loss_of_criterion = {
    .open = open_replica, .forward = run_pieces, .backward = run_pieces_backward};

/* ---- the model's own ---- */

/* The totals of its pieces are one after the other. */
static ek_status take_totals(const ek_data_parallel_model *model, struct ek__loss *loss,
                             const struct ek__rank *rank, const ek_shards *targets) {
  (void)targets, (void)model;
  const struct ek__pieces *pieces = &own_of(loss, rank)->pieces;
  const struct ek__totals *totals = &own_of(loss, rank)->totals;
  const int64_t size = ek_tensor_count(&totals->sum);
  const int64_t count = (int64_t)(pieces->last - pieces->first) * size;
  const ek_tensor *part = &loss->seen[0].parts[rank->place];
  if (count == 0) return EK_OK;
  EK__FAIL_IF(ek_tensor_count(part) != count, EK_ERR_SHAPE,
              "criterion forward: %lld numbers are not the totals of %zu pieces",
              (long long)ek_tensor_count(part), pieces->last - pieces->first);
  ek_tensor to = ek__flat_range(&totals->leaves, (int64_t)pieces->first * size, count);
  return ek_op_copy(ek__rank_stream(rank), &to, part);
}

static ek_status give_scales(ek_tensor *gradients, const ek_data_parallel_model *model,
                             struct ek__loss *loss, const struct ek__rank *rank,
                             const ek_tensor *factors) {
  (void)model, (void)factors;
  return ek_tensor_share(&gradients[0], &own_of(loss, rank)->scales);
}

const struct ek__loss_form ek__loss_of_model = {
    .forward = take_totals, .backward = give_scales, .promises = true};

/* ---- forward ---- */

static ek_status add_totals(const struct ek__loss_forward *job, const struct ek__rank *rank) {
  const ek_data_parallel_model *model = job->model;
  const struct ek__reduction *reduction = model->run.reduction;
  struct ek__loss *loss = job->loss;
  struct ek__loss_rank *own = own_of(loss, rank);
  const int64_t *samples = loss->seen[0].samples;
  reduction->pieces(&own->pieces, model, rank, samples, false);
  if (ek__loss_has_rows(loss->seen, rank->place)) {
    EK_TRY(loss->form->forward(model, loss, rank, job->targets.shards));
  } else {
    EK_TRY(ek_op_zero(ek__rank_stream(rank), &own->totals.sum));
  }
  if (!job->late) EK_TRY(reduction->totals(model, rank, &own->totals, samples));
  EK_TRY(ek_op_combine_totals(ek__rank_stream(rank), &loss->combined[rank->place], &own->scales,
                              &own->totals.sum, loss->coefficients,
                              loss->reduction == EK_REDUCTION_MEAN));
  const double factor = loss->scaling.factor;
  return factor == 1 ? EK_OK
                     : ek_op_scale(ek__rank_stream(rank), &own->scales, &own->scales, factor);
}

ek_status ek__loss_check_rows(const ek_shards *outputs, size_t count, size_t place) {
  const bool rows = ek__loss_has_rows(outputs, place);
  for (size_t i = 0; i < count; i++) {
    EK__FAIL_IF(ek__loss_has_rows(&outputs[i], place) != rows, EK_ERR_SHAPE,
                "output number %zu is on other devices than number 0", i);
  }
  return EK_OK;
}

ek_status ek__rank_loss_forward(const struct ek__loss_forward *job, const struct ek__rank *rank) {
  ek_status status = ek__given_cut(&job->targets, rank);
  if (status == EK_OK) {
    status = ek__loss_check_rows(job->loss->seen, job->loss->outputs, rank->place);
  }
  if (status == EK_OK) status = add_totals(job, rank);
  ek__given_give_back(&job->targets, rank);
  return status;
}

/* ---- backward ---- */

/* The gradient of single losses: the factors, times the coefficient and the loss scale. */
static ek_status make_factors(ek_tensor *made, const struct ek__loss *loss,
                              const struct ek__rank *rank, const ek_tensor *factors) {
  const ek_tensor *losses = &own_of(loss, rank)->losses;
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

ek_status ek__rank_loss_backward(ek_tensor *gradients, const ek_data_parallel_model *model,
                                 struct ek__loss *loss, const struct ek__rank *rank,
                                 const ek_tensor *factors) {
  const bool rows = ek__loss_has_rows(loss->seen, rank->place);
  ek_tensor made = {0};
  ek_status status = EK_OK;
  if (ek__loss_keeps_terms(loss)) EK_TRY(ek__terms_add(loss, rank));
  if (loss->form->promises) return loss->form->backward(gradients, model, loss, rank, NULL);
  if (!rows) return EK_OK;
  if (loss->reduction == EK_REDUCTION_NONE) {
    EK_TRY_GOTO(status, make_factors(&made, loss, rank, factors), cleanup);
  }
  status = loss->form->backward(gradients, model, loss, rank, &made);
cleanup:
  ek_tensor_free(&made);
  return status;
}
