/*
 * rank.c - forward and backward of one rank, on its worker: rows of its pieces, and a pass for each
 * of them.
 *
 * The passes stay with the rank until backward. If nothing else holds the first piece's output, its
 * memory becomes the beginning of the outputs of all pieces.
 *
 * If a rank has several pieces, only the first piece of the micro-batch changes buffers (running
 * statistics): every piece begins with the buffers from before the forward, and those that the
 * first piece leaves go to all ranks at the end.
 *
 * The reduction decides which pieces run back and how the gradients of the ranks are added up. A
 * rank without samples takes part in every collective with a gradient of zeros; if modules have
 * collectives of their own, it runs them without rows.
 */
#include <string.h>

#include <evenkeel/elementwise.h>

#include "core/error.h"
#include "forward.h"
#include "module/pass_internal.h"
#include "optimizer_internal.h"

struct work {
  struct ek__ranks *run;
  ek__rank_job *job;
  void *context;
};

static ek_status do_work(void *context, ek_device *device, size_t index) {
  const struct work *work = context;
  (void)device;
  return work->job(work->context, &work->run->ranks[index]);
}

ek_status ek__ranks_apply(struct ek__ranks *run, ek__rank_job *job, void *context) {
  struct work work = {run, job, context};
  return ek_group_apply(run->group, do_work, &work);
}

/* ---- rows of a piece ---- */

/* Rows of `whole`, or a copy of them, which exists after some failures. */
static ek_status take_rows(ek_tensor *rows, const ek_tensor *whole, int64_t first, int64_t count,
                           ek_memory_category category) {
  ek_tensor view = {0};
  EK_TRY(ek_tensor_rows(&view, whole, first, count));
  if ((uintptr_t)view.data % EK_MEMORY_UNIT == 0) {
    *rows = view;
    return EK_OK;
  }
  ek_status status =
      ek_tensor_create(rows, whole->device, category, view.type, view.rank, view.shape);
  if (status == EK_OK) {
    ek__tensor_cut_from(rows, ek__tensor_first(&view));
    status = ek_op_copy(ek_device_stream(whole->device, EK_STREAM_COMPUTE), rows, &view);
  }
  ek_tensor_free(&view);
  return status;
}

/* A tensor like `like` without rows. */
static ek_status no_rows(ek_tensor *rows, const ek_tensor *like, ek_memory_category category) {
  ek_tensor none = *like;
  none.shape[0] = 0;
  return ek_tensor_create(rows, like->device, category, none.type, none.rank, none.shape);
}

ek_status ek__piece_rows(ek_tensor *rows, const ek_data_parallel_model *model,
                         const struct ek__piece *piece, const ek_tensor *part,
                         ek_memory_category category) {
  if (model->run.reduction->whole) {
    *rows = *part;
    return EK_OK;
  }
  if (piece->count == 0) return no_rows(rows, part, category);
  const int64_t per_sample = part->shape[0] / piece->of->samples;
  return take_rows(rows, part, per_sample * (piece->first - piece->of->begin),
                   per_sample * piece->count, category);
}

void ek__piece_free(ek_tensor *rows, const ek_data_parallel_model *model) {
  if (!model->run.reduction->whole) ek_tensor_free(rows);
}

static bool fits(const ek_tensor *whole, const ek_tensor *part, int64_t rows) {
  ek_tensor like = *part;
  like.shape[0] = rows;
  return ek_tensor_same_shape(whole, &like);
}

ek_status ek__piece_put(const ek_tensor *whole, const struct ek__piece *piece,
                        const ek_tensor *part) {
  ek_tensor rows = {0};
  const int64_t per_sample = whole->shape[0] / piece->of->samples;
  EK_TRY(ek_tensor_rows(&rows, whole, per_sample * (piece->first - piece->of->begin),
                        per_sample * piece->count));
  ek_stream *stream = ek_device_stream(whole->device, EK_STREAM_COMPUTE);
  const ek_status status = rows.data == part->data ? EK_OK : ek_op_copy(stream, &rows, part);
  ek_tensor_free(&rows);
  return status;
}

ek_status ek__piece_append(ek_tensor *whole, ek_tensor *part, const ek_data_parallel_model *model,
                           const struct ek__piece *piece, ek_memory_category category) {
  if (model->run.reduction->whole) {
    *whole = *part;
    memset(part, 0, sizeof *part);
    return EK_OK;
  }
  EK__FAIL_IF(part->rank == 0, EK_ERR_UNSUPPORTED,
              "a reproducible model cannot put together outputs that are one scalar for each "
              "grain");
  const int64_t per_sample = part->shape[0] / piece->count, all = per_sample * piece->of->samples;
  if (!ek_tensor_exists(whole)) {
    bool grown = false;
    EK_TRY(ek_tensor_grow(&grown, part, all));
    if (grown) {
      *whole = *part;
      memset(part, 0, sizeof *part);
      return EK_OK;
    }
    int64_t shape[EK_MAX_RANK];
    memcpy(shape, part->shape, sizeof shape);
    shape[0] = all;
    EK_TRY(ek_tensor_create(whole, part->device, category, part->type, part->rank, shape));
  }
  EK__FAIL_IF(!fits(whole, part, all), EK_ERR_SHAPE,
              "a grain gives another type, other dimensions or another number of rows per sample "
              "(%lld) than the first grain of the device",
              (long long)per_sample);
  EK_TRY(ek__piece_put(whole, piece, part));
  ek_tensor_free(part);
  return EK_OK;
}

/* ---- buffers ---- */

/* Copies of a rank's buffers; structs of zeros if nothing may write them, or in lockstep, where
 * each piece has its own. */
struct buffers {
  ek_tensor before, first;
};

static ek_status keep(ek_tensor *copy, const ek_tensor *flat) {
  EK_TRY(ek_tensor_create(copy, flat->device, EK_MEMORY_WORKSPACE, flat->type, flat->rank,
                          flat->shape));
  return ek_op_copy(ek_device_stream(flat->device, EK_STREAM_COMPUTE), copy, flat);
}

bool ek__forward_keeps_buffers(const struct ek__forward *job) {
  return !job->model->run.reduction->whole && job->options->training && !job->predict &&
         job->model->run.ranks[0].replica->layout.buffer_count > 0;
}

static ek_status after_piece(struct buffers *buffers, const struct ek__rank *rank, size_t number) {
  if (!ek_tensor_exists(&buffers->before)) return EK_OK;
  ek_tensor flat = *ek_replica_buffers(rank->replica);
  if (number == 0) EK_TRY(keep(&buffers->first, &flat));
  return ek_op_copy(ek__rank_stream(rank), &flat, &buffers->before);
}

static ek_status share_buffers(const struct buffers *buffers, const struct ek__forward *job,
                               const struct ek__rank *rank) {
  if (!ek__forward_keeps_buffers(job)) return EK_OK;
  ek_communicator *communicator = job->model->run.communicator;
  ek_tensor flat = *ek_replica_buffers(rank->replica);
  if (ek_tensor_exists(&buffers->first)) {
    EK_TRY(ek_op_copy(ek__rank_stream(rank), &flat, &buffers->first));
  }
  EK_TRY(ek_communicator_broadcast(communicator, rank->device, &flat, 0));
  return ek_communicator_wait(communicator, rank->device);
}

/* ---- a piece ---- */

static ek_status tell_sums(void *context, ek_pass *pass, size_t parameter) {
  struct ek__rank *rank = context;
  (void)pass;
  return rank->reducing ? ek__sums_complete(rank->sums, rank, parameter) : EK_OK;
}

ek_status ek__rank_open_pass(ek_pass **pass, const ek_data_parallel_model *model,
                             ek_replica *replica, struct ek__rank *lends,
                             ek_pass_options *options) {
  options->seed = model->options.seed;
  options->step = (uint32_t)model->step.taken;
  const bool lent = lends != NULL && lends->keeper.lender.gradient != NULL;
  return ek__pass_open(pass, replica, options, lent ? &lends->keeper.lender : NULL);
}

static ek_status open_pass(ek_pass **pass, const struct ek__forward *job, struct ek__rank *rank,
                           const struct ek__piece *piece) {
  const ek_data_parallel_model *model = job->model;
  const bool shares = ek__placement(model)->gradient_shares;
  const bool whole = model->run.reduction->whole;
  ek_pass_options o = EK_PASS_OPTIONS_INIT;
  o.gradient = job->options->gradient;
  o.training = job->options->training;
  /* Gradients of which the ranks keep shares begin anew with each micro-batch. */
  o.accumulate = whole && model->step.stage != EK__STEP_EMPTY && !shares;
  o.first_sample = model->last.first_sample + piece->first;
  o.samples = piece->count;
  o.complete = whole || shares ? tell_sums : NULL;
  o.context = rank;
  o.communicator = model->run.inner;
  o.promise.gradient_now = model->last.scale;
  EK_TRY(ek__rank_open_pass(pass, model, rank->replica, rank, &o));
  (*pass)->exchange = ek__lockstep_exchange(rank);
  return EK_OK;
}

/* The piece's rows of every input. */
static ek_status take_inputs(ek_tensor *inputs, const struct ek__forward *job,
                             const struct ek__rank *rank, const struct ek__piece *piece) {
  for (size_t i = 0; i < job->inputs.count; i++) {
    const ek_tensor *part = &job->inputs.shards[i].parts[rank->place];
    EK_TRY(ek_tensor_wait(part));
    if (job->inputs.shards[i].broadcast && !job->model->run.reduction->whole) {
      EK_TRY(ek_tensor_share(&inputs[i], part));
      continue;
    }
    EK_TRY(ek__piece_rows(&inputs[i], job->model, piece, part, EK_MEMORY_INPUTS));
  }
  return EK_OK;
}

/* The totals of a model that computes its loss itself: [terms, 2] of pieces [piece, terms, 2]. */
static ek_status append_totals(ek_tensor *whole, ek_tensor *part, const struct ek__piece *piece) {
  const int64_t count = ek_tensor_count(part), row = (int64_t)(piece->number - piece->of->first);
  const int64_t shape[3] = {(int64_t)(piece->of->last - piece->of->first), part->shape[0],
                            part->shape[1]};
  if (!ek_tensor_exists(whole)) {
    EK_TRY(ek_tensor_create(whole, part->device, EK_MEMORY_OUTPUTS, part->type, 3, shape));
  }
  ek_tensor to = ek__flat_range(whole, row * count, count);
  EK_TRY(ek_op_copy(ek_device_stream(part->device, EK_STREAM_COMPUTE), &to, part));
  ek_tensor_free(part);
  return EK_OK;
}

/* A piece without samples leaves only its pass: a scalar would count as a row. */
static ek_status keep_outputs(const struct ek__forward *job, struct ek__rank *rank,
                              const struct ek__piece *piece, ek_tensor *outputs) {
  const bool totals = ek_module_is_criterion(job->model->module) && !job->predict;
  const bool whole = job->model->run.reduction->whole;
  for (size_t i = 0; i < job->output_count; i++) {
    ek_tensor *to = &job->outputs[i].parts[rank->place], *shape = &rank->outputs[i];
    if (piece->count == 0) {
      if (!ek_tensor_exists(to)) *shape = outputs[i];
      if (whole && outputs[i].rank > 0) EK_TRY(ek_tensor_share(to, &outputs[i]));
    } else {
      EK_TRY(totals && !whole
                 ? append_totals(to, &outputs[i], piece)
                 : ek__piece_append(to, &outputs[i], job->model, piece, EK_MEMORY_OUTPUTS));
      *shape = *to;
    }
    shape->memory = NULL;
    shape->data = NULL;
    if (!totals || shape->rank < 3) continue;
    shape->rank = 2; /* of each piece: all have the same gradient */
    memmove(shape->shape, shape->shape + 1, 2 * sizeof *shape->shape);
  }
  return EK_OK;
}

static ek_status run_piece(const struct ek__forward *job, struct ek__rank *rank, ek_pass **pass,
                           const struct ek__piece *piece) {
  ek_tensor inputs[EK_MAX_INPUTS] = {{0}}, outputs[EK_MAX_TENSORS] = {{0}};
  ek_status status = EK_OK;
  EK_TRY_GOTO(status, take_inputs(inputs, job, rank, piece), cleanup);
  EK_TRY_GOTO(status, open_pass(pass, job, rank, piece), cleanup);
  EK_TRY_GOTO(status,
              (job->predict ? ek_pass_run_predict : ek_pass_run_forward)(outputs, *pass, inputs),
              cleanup);
  if (!job->options->gradient) {
    ek_pass_free(*pass);
    *pass = NULL;
  }
  status = keep_outputs(job, rank, piece, outputs);
cleanup:
  for (size_t i = 0; i < job->output_count; i++) ek_tensor_free(&outputs[i]);
  for (size_t i = 0; i < job->inputs.count; i++) ek__piece_free(&inputs[i], job->model);
  return status;
}

struct forward_of {
  const struct ek__forward *job;
  struct ek__rank *rank;
  struct buffers buffers;
};

static ek_status run_round(void *context, size_t round) {
  struct forward_of *own = context;
  struct ek__rank *rank = own->rank;
  const ek_data_parallel_model *model = own->job->model;
  const struct ek__piece piece = model->run.reduction->piece(model, &rank->pieces, round);
  const ek_status status = run_piece(own->job, rank, &rank->passes[round], &piece);
  const ek_status kept = after_piece(&own->buffers, rank, piece.number);
  EK_TRY(status);
  return kept;
}

/* Pieces without samples are run for their collectives alone. */
static ek_status run_pieces(struct forward_of *own) {
  const struct ek__forward *job = own->job;
  struct ek__rank *rank = own->rank;
  const bool lockstep = rank->lockstep != NULL;
  job->model->run.reduction->pieces(&rank->pieces, job->model, rank,
                                    job->inputs.shards[job->lead].samples, true);
  memset(rank->outputs, 0, sizeof rank->outputs);
  if (ek__forward_keeps_buffers(job)) {
    EK_TRY(lockstep ? ek__lockstep_copy_buffers(rank, rank->pieces.rounds)
                    : keep(&own->buffers.before, ek_replica_buffers(rank->replica)));
  }
  return ek__rounds_run(&(struct ek__rounds){job->model, rank, rank->pieces.rounds,
                                             lockstep ? ek__lockstep_buffers : NULL, run_round,
                                             own});
}

/* ---- a rank ---- */

ek_status ek__rank_forward(void *context, struct ek__rank *rank) {
  const struct ek__forward *job = context;
  struct forward_of own = {.job = job, .rank = rank};
  ek_status status = EK_OK;
  EK_TRY_GOTO(status, ek__given_cut(&job->inputs, rank), cleanup);
  if (job->replicate || job->renew) {
    EK_TRY_GOTO(status,
                (job->replicate ? ek__replicate_rank : ek__replicate_buffers)(
                    job->model->run.communicator, rank->device, rank->replica),
                cleanup);
  }
  EK_TRY_GOTO(status, run_pieces(&own), cleanup);
  ek__lockstep_free_buffers(rank);
  status = share_buffers(&own.buffers, job, rank);
cleanup:
  ek__lockstep_free_buffers(rank);
  ek_tensor_free(&own.buffers.before);
  ek_tensor_free(&own.buffers.first);
  ek__given_give_back(&job->inputs, rank);
  return status;
}

/* ---- backward ---- */

static ek_status add_totals(const struct ek__backward *job, struct ek__rank *rank,
                            const ek_tensor *more) {
  ek_stream *stream = ek__rank_stream(rank);
  ek_tensor *totals = &rank->totals;
  if (job->model->step.stage == EK__STEP_EMPTY || job->running) {
    return more == NULL ? ek_op_zero(stream, totals) : ek_op_copy(stream, totals, more);
  }
  return more == NULL ? EK_OK : ek_op_add(stream, totals, totals, more);
}

/* The piece's rows of every gradient. The totals of a model that computes its loss itself have the
 * same gradient for all pieces. */
static ek_status take_gradients(ek_tensor *rows, bool *loans, const ek_data_parallel_model *model,
                                const struct ek__rank *rank, const struct ek__piece *piece,
                                const ek_tensor *gradients) {
  const bool whole = model->run.reduction->whole;
  for (size_t i = 0; i < ek_module_outputs(model->module); i++) {
    const ek_tensor *output = &rank->outputs[i];
    if (ek_module_is_criterion(model->module)) {
      rows[i] = gradients[i];
      loans[i] = true;
    } else if (piece->count == 0 && output->rank > 0) {
      rows[i] = *output; /* without elements, it needs no memory */
      rows[i].shape[0] = 0;
      loans[i] = true;
    } else if (piece->count == 0) {
      EK_TRY(ek_tensor_create(&rows[i], rank->device, EK_MEMORY_LOSS, output->type, 0, NULL));
      EK_TRY(ek_op_zero(ek__rank_stream(rank), &rows[i]));
    } else {
      EK_TRY(ek__piece_rows(&rows[i], model, piece, &gradients[i], EK_MEMORY_LOSS));
      loans[i] = whole;
    }
  }
  return EK_OK;
}

ek_status ek__rank_backward_piece(const ek_data_parallel_model *model, struct ek__rank *rank,
                                  size_t round, const ek_tensor *gradients) {
  const struct ek__piece piece = model->run.reduction->piece(model, &rank->pieces, round);
  ek_tensor rows[EK_MAX_TENSORS] = {{0}};
  bool loans[EK_MAX_TENSORS] = {false};
  ek_status status = take_gradients(rows, loans, model, rank, &piece, gradients);
  if (status == EK_OK) status = ek_pass_run_backward(NULL, rank->passes[round], rows);
  for (size_t i = 0; i < ek_module_outputs(model->module); i++) {
    if (!loans[i]) ek_tensor_free(&rows[i]);
  }
  if (model->run.reduction->whole) return status;
  ek_pass_free(rank->passes[round]);
  rank->passes[round] = NULL;
  return status;
}

ek_status ek__rank_backward(const struct ek__backward *job, struct ek__rank *rank,
                            const ek_tensor *gradients, const ek_tensor *totals) {
  const struct ek__update *update = job->model->update;
  EK_TRY(add_totals(job, rank, totals));
  if (rank->place == 0 && update != NULL) EK_TRY(ek__note_write(update->forward, &rank->totals));
  return job->model->run.reduction->backward(job, rank, gradients);
}
