/*
 * stacks_modules.c - see stacks_modules.h.
 *
 * One layer in sixteen gets a width that does not fit, so that models which cannot run are there
 * too.
 */
#include "stacks_modules.h"

#include <string.h>

enum { MOST_WIDTH = 12, MOST_LAYERS = 4, MOST_DEPTH = 3 };

static int64_t read_width(struct fuzz_input *input) { return 1 + fuzz_choice(input, MOST_WIDTH); }

static ek_status make_stack(ek_module **module, int64_t *width, bool rank_3, int depth,
                            struct fuzz_input *input);

static ek_status make_mlp(ek_module **module, int64_t *width, struct fuzz_input *input) {
  int64_t sizes[3] = {*width};
  sizes[1] = read_width(input);
  sizes[2] = read_width(input);
  const size_t count = 2 + (size_t)fuzz_choice(input, 2);
  *width = sizes[count - 1];
  return ek_mlp_create(module, sizes, count, (ek_activation)fuzz_choice(input, 2));
}

/* What is inside must give what it got: a stack of its own with a last layer that sees to it. */
static ek_status make_residual(ek_module **module, int64_t *width, bool rank_3, int depth,
                               struct fuzz_input *input) {
  ek_module *part[2] = {NULL}, *inner = NULL;
  int64_t within = *width;
  ek_status status = EK_OK;
  EK_TRY_GOTO(status, make_stack(&part[0], &within, rank_3, depth + 1, input), cleanup);
  EK_TRY_GOTO(status, ek_linear_create(&part[1], within, *width, true), cleanup);
  EK_TRY_GOTO(status, ek_sequential_create(&inner, part, 2), cleanup);
  EK_TRY_GOTO(status, ek_residual_create(module, inner), cleanup);
cleanup:
  ek_module_free(inner);
  ek_module_free(part[0]);
  ek_module_free(part[1]);
  return status;
}

static ek_status make_attention(ek_module **module, int64_t *width, struct fuzz_input *input) {
  int heads = 1 + fuzz_choice(input, 3);
  while (*width % heads != 0) heads--;
  return ek_attention_create(module, *width, heads);
}

static ek_status make_layer(ek_module **module, int64_t *width, bool rank_3, int depth,
                            struct fuzz_input *input) {
  ek_layer_norm_options norm = EK_LAYER_NORM_OPTIONS_INIT;
  int64_t in = *width;
  const int pick = fuzz_choice(input, 9);
  if (fuzz_one_in(input, 16)) in = read_width(input); /* perhaps a misfit */
  switch (pick) {
  case 1: return ek_activation_create(module, EK_ACTIVATION_GELU);
  case 2: return ek_activation_create(module, EK_ACTIVATION_RELU);
  case 3: return ek_dropout_create(module, fuzz_choice(input, 4) / 4.0);
  case 4:
    norm.bias = in % 2 == 0;
    return ek_layer_norm_create_with(module, in, &norm);
  case 5: return make_mlp(module, width, input);
  case 6:
    if (depth < MOST_DEPTH) return make_residual(module, width, rank_3, depth, input);
    return ek_activation_create(module, EK_ACTIVATION_GELU);
  case 7:
    if (rank_3) return make_attention(module, width, input);
    return ek_activation_create(module, EK_ACTIVATION_RELU);
  case 8:
    if (depth < MOST_DEPTH) return make_stack(module, width, rank_3, depth + 1, input);
    return ek_activation_create(module, EK_ACTIVATION_GELU);
  default:
    *width = read_width(input);
    return ek_linear_create(module, in, *width, fuzz_one_in(input, 2));
  }
}

static ek_status make_stack(ek_module **module, int64_t *width, bool rank_3, int depth,
                            struct fuzz_input *input) {
  ek_module *layer[MOST_LAYERS] = {NULL};
  const size_t count = 1 + (size_t)fuzz_choice(input, MOST_LAYERS);
  ek_status status = EK_OK;
  for (size_t i = 0; i < count; i++) {
    EK_TRY_GOTO(status, make_layer(&layer[i], width, rank_3, depth, input), cleanup);
  }
  EK_TRY_GOTO(status, ek_sequential_create(module, layer, count), cleanup);
cleanup:
  for (size_t i = 0; i < count; i++) ek_module_free(layer[i]);
  return status;
}

static ek_status make_gpt(ek_module **module, struct stack_shape *shape, struct fuzz_input *input) {
  ek_gpt_options options = EK_GPT_OPTIONS_INIT;
  options.vocabulary = shape->vocabulary;
  options.sequence = shape->sequence;
  options.heads = 1 + fuzz_choice(input, 3);
  options.width = options.heads * (1 + fuzz_choice(input, 4));
  options.layers = fuzz_choice(input, 3);
  options.dropout = fuzz_one_in(input, 4) ? 0.25 : 0;
  options.untied = fuzz_one_in(input, 2);
  shape->width = shape->vocabulary;
  return ek_gpt_create(module, &options);
}

static ek_status make_embedded(ek_module **module, struct stack_shape *shape,
                               struct fuzz_input *input) {
  ek_module *part[2] = {NULL};
  ek_status status = EK_OK;
  shape->width = read_width(input);
  EK_TRY_GOTO(status,
              ek_embedding_create(&part[0], shape->vocabulary, shape->width,
                                  fuzz_one_in(input, 2) ? shape->sequence : 0),
              cleanup);
  EK_TRY_GOTO(status, make_stack(&part[1], &shape->width, true, 0, input), cleanup);
  EK_TRY_GOTO(status, ek_sequential_create(module, part, 2), cleanup);
cleanup:
  ek_module_free(part[0]);
  ek_module_free(part[1]);
  return status;
}

ek_status stack_module(ek_module **module, struct stack_shape *shape, struct fuzz_input *input) {
  const int kind = fuzz_choice(input, 4);
  *shape = (struct stack_shape){.tokens = kind >= 2};
  shape->vocabulary = 1 + fuzz_choice(input, 16);
  if (kind != 0) shape->sequence = 1 + fuzz_choice(input, 6);
  if (kind == 3) return make_gpt(module, shape, input);
  if (kind == 2) return make_embedded(module, shape, input);
  shape->input_width = shape->width = read_width(input);
  return make_stack(module, &shape->width, kind == 1, 0, input);
}

/* ---- losses and rules ---- */

ek_status stack_criterion(ek_criterion **criterion, bool *classes, const struct stack_shape *shape,
                          struct fuzz_input *input) {
  static const double weights[MOST_WIDTH + 16] = {1, 0.5, 2, 0, 1, 3};
  const ek_reduction reduction = (ek_reduction)fuzz_choice(input, 2);
  *classes = fuzz_one_in(input, 2);
  if (!*classes) return ek_mean_squared_error_create(criterion, reduction);
  ek_cross_entropy_options options = EK_CROSS_ENTROPY_OPTIONS_INIT;
  options.reduction = reduction;
  options.ignore_index = 0;
  options.label_smoothing = fuzz_choice(input, 3) / 4.0;
  if (fuzz_one_in(input, 4)) {
    options.class_weights = weights;
    options.classes = shape->width;
  }
  return ek_cross_entropy_create(criterion, &options);
}

ek_status stack_rule(ek_optimizer **rule, struct fuzz_input *input) {
  const double clip_norm = fuzz_one_in(input, 2) ? 0.5 : 0;
  if (fuzz_one_in(input, 2)) {
    ek_adamw_options options = EK_ADAMW_OPTIONS_INIT;
    options.clip_norm = clip_norm;
    options.coupled = fuzz_one_in(input, 2);
    return ek_adamw_create(rule, &options);
  }
  ek_sgd_options options = EK_SGD_OPTIONS_INIT;
  options.clip_norm = clip_norm;
  options.momentum = fuzz_choice(input, 3) / 4.0;
  options.nesterov = options.momentum > 0 && fuzz_one_in(input, 2);
  return ek_sgd_create(rule, &options);
}

/* ---- batches ---- */

static void fill(ek_tensor *tensor, double *memory, ek_type type, int rank, const int64_t *shape,
                 int64_t below, uint8_t start) {
  FUZZ_OK(ek_tensor_host(tensor, memory, type, rank, shape));
  const int64_t count = ek_tensor_count(tensor);
  FUZZ_EXPECT(count <= STACK_MOST_ELEMENTS, "the harness made too large a batch");
  for (int64_t i = 0; i < count; i++) {
    const uint8_t byte = (uint8_t)(start + 29 * i + i / 5);
    const int32_t whole = (int32_t)(byte % (below > 0 ? below : 1));
    const double value = ((int)(byte % 17) - 8) / 4.0;
    const float single = (float)value;
    if (type == EK_I32) memcpy((char *)memory + 4 * i, &whole, 4);
    if (type == EK_F32) memcpy((char *)memory + 4 * i, &single, 4);
    if (type == EK_F64) memcpy((char *)memory + 8 * i, &value, 8);
  }
}

void stack_batch(struct fuzz_batch *batch, struct stack_memory *memory,
                 const struct stack_shape *shape, bool classes, ek_type type,
                 struct fuzz_input *input) {
  const int64_t rows = fuzz_byte(input) % (STACK_MOST_ROWS + 1);
  const uint8_t start = fuzz_byte(input);
  const bool rank_3 = shape->sequence > 0;
  const int64_t in[] = {rows, rank_3 ? shape->sequence : shape->input_width, shape->input_width};
  *batch = (struct fuzz_batch){.inputs = 1, .targets = 1};
  fill(&batch->input[0], memory->input, shape->tokens ? EK_I32 : type,
       shape->tokens ? 2 : 2 + rank_3, in, shape->vocabulary, start);
  const int64_t out[] = {rows, rank_3 ? shape->sequence : shape->width, shape->width};
  if (classes) {
    fill(&batch->target[0], memory->target, EK_I32, 1 + rank_3, out, shape->width,
         (uint8_t)(start + 5));
  } else {
    fill(&batch->target[0], memory->target, type, 2 + rank_3, out, 0, (uint8_t)(start + 5));
  }
}
