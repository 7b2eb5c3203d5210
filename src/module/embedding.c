/*
 * embedding.c - rows of a learned table by index, plus a learned position.
 */
#include <evenkeel/embedding.h>

#include <inttypes.h>

#include <evenkeel/attend.h>
#include <evenkeel/elementwise.h>
#include <evenkeel/lookup.h>

#include "core/error.h"
#include "core/options.h"
#include "module/layer_internal.h"

enum { WEIGHT, POSITIONS };

/* Of GPT-2, for both tables. */
#define DEVIATION 0.02

struct embedding {
  ek_module base;
  int64_t entries, width, positions;
  bool segments;
  ek_parameter_options asked;
  ek_initializer weight_start, positions_start;
};

static ek_status embedding_parameters(const ek_module *self, ek_declaration *declaration) {
  const struct embedding *m = (const struct embedding *)self;
  const int64_t weight[] = {m->entries, m->width};
  EK_TRY(ek_declare_parameter_with(declaration, "weight", 2, weight, m->weight_start, &m->asked));
  if (m->positions == 0) return EK_OK;
  const int64_t positions[] = {m->positions, m->width};
  return ek_declare_parameter_with(declaration, "positions", 2, positions, m->positions_start,
                                   &m->asked);
}

/* Tokens of one sample; [B] is one token each. */
static int64_t tokens_of(const ek_tensor *index) { return index->rank == 2 ? index->shape[1] : 1; }

static ek_status check_index(const struct embedding *m, const ek_tensor *index) {
  EK__FAIL_IF(!ek_tensor_exists(index), EK_ERR_INVALID_ARGUMENT, "the input is missing");
  EK__FAIL_IF(index->type != EK_I32, EK_ERR_TYPE, "input is %s, expected i32",
              ek_type_name(index->type));
  EK__FAIL_IF(index->rank != 1 && index->rank != 2, EK_ERR_SHAPE,
              "input has rank %d, expected 1 or 2 (samples, tokens)", index->rank);
  EK__FAIL_IF(m->positions > 0 && tokens_of(index) > m->positions, EK_ERR_SHAPE,
              "samples have %" PRId64 " tokens, there are %" PRId64 " positions", tokens_of(index),
              m->positions);
  return EK_OK;
}

/* The places of tokens in their documents, for as long as a function runs. */
static ek_status places_of(ek_tensor *places, ek_pass *pass, const ek_tensor *segments) {
  EK_TRY(ek_pass_workspace(places, pass, EK_I32, 2, segments->shape));
  const ek_status status = ek_op_document_ranges(ek_pass_stream(pass), NULL, places, segments);
  if (status != EK_OK) ek_tensor_free(places);
  return status;
}

/* y += the positions of tokens in their documents. */
static ek_status add_positions(ek_pass *pass, ek_tensor *y, const ek_tensor *positions,
                               const ek_tensor *segments) {
  ek_tensor places = {0}, rows = {0};
  EK_TRY(places_of(&places, pass, segments));
  ek_status status = ek_pass_workspace(&rows, pass, y->type, y->rank, y->shape);
  if (status == EK_OK) {
    status = ek_op_lookup_forward(ek_pass_stream(pass), &rows, positions, &places, NULL, 1);
  }
  if (status == EK_OK) status = ek_op_add(ek_pass_stream(pass), y, y, &rows);
  ek_tensor_free(&rows);
  ek_tensor_free(&places);
  return status;
}

static ek_status embedding_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                                   ek_tensor *outputs) {
  const struct embedding *m = (const struct embedding *)self;
  const ek_tensor *index = &inputs[0];
  EK_TRY(check_index(m, index));
  if (m->segments) EK_TRY(ek__layer_check_segments(&inputs[1], index));

  ek_tensor weight = {0}, positions = {0};
  EK_TRY(ek_pass_parameter(&weight, pass, WEIGHT));
  if (m->positions > 0) EK_TRY(ek_pass_parameter(&positions, pass, POSITIONS));

  const int64_t tokens = tokens_of(index);
  int64_t shape[3] = {index->shape[0], m->width, m->width};
  if (index->rank == 2) shape[1] = tokens;
  const bool in_rows = m->positions > 0 && !m->segments;
  EK_TRY(ek_pass_output(&outputs[0], pass, ek_pass_type(pass), index->rank + 1, shape));
  EK_TRY(ek_op_lookup_forward(ek_pass_stream(pass), &outputs[0], &weight, index,
                              in_rows ? &positions : NULL, tokens > 0 ? tokens : 1));
  if (m->segments) {
    EK_TRY(add_positions(pass, &outputs[0], &positions, &inputs[1]));
    EK_TRY(ek_pass_save(pass, &inputs[1]));
  }
  return ek_pass_save(pass, index);
}

static ek_status weight_gradient(ek_pass *pass, const ek_tensor *dy, const ek_tensor *index) {
  ek_tensor gradient = {0};
  if (ek_pass_trains(pass, WEIGHT)) {
    EK_TRY(ek_pass_gradient(&gradient, NULL, pass, WEIGHT)); /* only some rows are added to */
    EK_TRY(ek_op_lookup_backward(ek_pass_stream(pass), &gradient, dy, index));
  }
  return ek_pass_gradient_complete(pass, WEIGHT);
}

static ek_status positions_gradient(const struct embedding *m, ek_pass *pass, const ek_tensor *dy,
                                    int64_t tokens) {
  /* Samples shorter than the table leave its last rows alone: these must have been zeroed. */
  const bool all_rows = tokens == m->positions;
  ek_tensor gradient = {0};
  double beta = 1;
  if (ek_pass_trains(pass, POSITIONS)) {
    EK_TRY(ek_pass_gradient(&gradient, all_rows ? &beta : NULL, pass, POSITIONS));
    EK_TRY(ek_op_positions_backward(ek_pass_stream(pass), &gradient, dy, tokens > 0 ? tokens : 1,
                                    beta));
  }
  return ek_pass_gradient_complete(pass, POSITIONS);
}

/* Of places in documents any row of the table may be used any number of times. */
static ek_status places_gradient(ek_pass *pass, const ek_tensor *dy, const ek_tensor *segments) {
  ek_tensor gradient = {0}, places = {0};
  if (ek_pass_trains(pass, POSITIONS)) {
    EK_TRY(ek_pass_gradient(&gradient, NULL, pass, POSITIONS));
    EK_TRY(places_of(&places, pass, segments));
    const ek_status status =
        ek_op_lookup_backward(ek_pass_stream(pass), &gradient, dy, &places);
    ek_tensor_free(&places);
    EK_TRY(status);
  }
  return ek_pass_gradient_complete(pass, POSITIONS);
}

static ek_status embedding_backward(const ek_module *self, ek_pass *pass,
                                    const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  (void)grad_inputs; /* indices have no gradient */
  const struct embedding *m = (const struct embedding *)self;
  ek_tensor index = {0}, segments = {0};
  EK_TRY(ek_pass_take(&index, pass));
  const int64_t tokens = tokens_of(&index);
  ek_status status = weight_gradient(pass, &grad_outputs[0], &index);
  ek_tensor_free(&index);
  if (status == EK_OK && m->segments) status = ek_pass_take(&segments, pass);
  if (status == EK_OK && m->positions > 0) {
    status = m->segments ? places_gradient(pass, &grad_outputs[0], &segments)
                         : positions_gradient(m, pass, &grad_outputs[0], tokens);
  }
  ek_tensor_free(&segments);
  return status;
}

static ek_type embedding_input_type(const ek_module *self, size_t input) {
  (void)self, (void)input;
  return EK_I32;
}

static const ek_module_ops embedding_ops = {
    EK__LAYER("embedding", embedding_forward, embedding_backward, ek__layer_free),
    .parameters = embedding_parameters, .input_type = embedding_input_type};

ek_status ek_embedding_create_with(ek_module **module, int64_t entries, int64_t width,
                                   const ek_embedding_options *options) {
  ek_embedding_options o = EK_EMBEDDING_OPTIONS_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_embedding_options"));
  EK__FAIL_IF(entries <= 0 || width <= 0 || o.positions < 0, EK_ERR_INVALID_ARGUMENT,
              "embedding: %" PRId64 " entries of width %" PRId64 " and %" PRId64
              " positions, expected sizes above 0",
              entries, width, o.positions);
  EK__FAIL_IF((o.positions_start != NULL || o.segments) && o.positions == 0,
              EK_ERR_INVALID_ARGUMENT, "embedding: %s, but positions is 0",
              o.segments ? "there are segments" : "positions_start is given");
  const ek_initializer start = ek_initializer_normal(0.0, DEVIATION);
  const struct embedding made = {
      .entries = entries,
      .width = width,
      .positions = o.positions,
      .segments = o.segments,
      .asked = {.size = sizeof made.asked,
                .frozen = o.frozen,
                .no_decay = o.no_decay,
                .elementwise = true},
      .weight_start = o.weight_start == NULL ? start : *o.weight_start,
      .positions_start = o.positions_start == NULL ? start : *o.positions_start};
  return ek__layer_create(module, &made, sizeof made, &embedding_ops, o.segments ? 2 : 1, 1);
}

ek_status ek_embedding_create(ek_module **module, int64_t entries, int64_t width,
                              int64_t positions) {
  ek_embedding_options options = EK_EMBEDDING_OPTIONS_INIT;
  options.positions = positions;
  return ek_embedding_create_with(module, entries, width, &options);
}

EK__OPTIONS_INIT(ek_embedding_options, EK_EMBEDDING_OPTIONS_INIT)
