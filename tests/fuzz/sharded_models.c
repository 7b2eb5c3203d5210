/*
 * sharded_models.c - see sharded_models.h.
 *
 * A body begins with a table of tokens. Its loss has a head of its own or shares the table. What is
 * frozen is a parameter of a wrapper, to which the body's is tied: no stock layer freezes anything.
 */
#include "sharded_models.h"

#include "tied_module.h"

enum { WIDTH = 4, MOST_LAYERS = 4, MOST_FROZEN = 8 };

/* Takes over the child. */
static ek_module *freeze(ek_module *child, unsigned mask) {
  const struct tied_parameters all = {NULL, MOST_FROZEN, mask, false};
  ek_module *module = NULL;
  FUZZ_OK(tied_module_create(&module, child, &all, ek_group_device(fuzz_group("plan:1", 1), 0)));
  return module;
}

/* ---- bodies ---- */

static ek_recompute read_recompute(struct fuzz_input *input) {
  static const ek_recompute policies[] = {{EK_RECOMPUTE_NONE, 0, 0},  {EK_RECOMPUTE_ALL, 0, 0},
                                          {EK_RECOMPUTE_EVERY, 1, 0}, {EK_RECOMPUTE_EVERY, 2, 0},
                                          {EK_RECOMPUTE_SQRT, 0, 0},  {EK_RECOMPUTE_CHEAP, 0, 0}};
  return policies[fuzz_choice(input, 6)];
}

/* Gives up the inner module. */
static ek_status wrap(ek_module **module, ek_module *inner,
                      ek_status (*create)(ek_module **module, ek_module *inner)) {
  const ek_status status = create(module, inner);
  ek_module_free(inner);
  return status;
}

static ek_status make_layer(ek_module **module, struct fuzz_input *input) {
  static const int64_t sizes[] = {WIDTH, 2 * WIDTH, WIDTH};
  ek_module *inner = NULL;
  const int pick = fuzz_choice(input, 9);
  switch (pick) {
  case 1: return ek_activation_create(module, EK_ACTIVATION_GELU);
  case 2: return ek_layer_norm_create(module, WIDTH, 1e-5);
  case 3: return ek_mlp_create(module, sizes, 3, EK_ACTIVATION_GELU);
  case 4: return ek_attention_create(module, WIDTH, 2);
  case 5: return ek_dropout_create(module, 0.25);
  case 6:
    EK_TRY(ek_linear_create(&inner, WIDTH, WIDTH, true));
    return wrap(module, inner, ek_residual_create);
  case 7:
    EK_TRY(ek_mlp_create(&inner, sizes, 3, EK_ACTIVATION_GELU));
    return wrap(module, inner, ek_recompute_create);
  default: return ek_linear_create(module, WIDTH, WIDTH, pick == 8);
  }
}

/* Tokens [rows, sequence] to [rows, sequence, WIDTH], or to logits. *source is the table's name. */
static ek_status make_body(ek_module **module, bool logits, const char **source,
                           struct fuzz_input *input) {
  ek_module *part[MOST_LAYERS + 2] = {NULL};
  ek_sequential_options options = EK_SEQUENTIAL_OPTIONS_INIT;
  size_t count = 1;
  ek_status status = EK_OK;
  const size_t layers = (size_t)fuzz_choice(input, MOST_LAYERS + 1);
  options.recompute = read_recompute(input);
  const bool positions = fuzz_one_in(input, 3);
  EK_TRY_GOTO(
      status,
      ek_embedding_create(&part[0], SHARDED_VOCABULARY, WIDTH, positions ? SHARDED_SEQUENCE : 0),
      cleanup);
  while (count <= layers) EK_TRY_GOTO(status, make_layer(&part[count++], input), cleanup);
  if (logits) {
    EK_TRY_GOTO(status, ek_linear_create(&part[count++], WIDTH, SHARDED_VOCABULARY, true), cleanup);
  }
  EK_TRY_GOTO(status, ek_sequential_create_with(module, part, count, &options), cleanup);
  const unsigned mask = fuzz_byte(input);
  *source = mask == 0 ? "0.weight" : "own0";
  if (mask != 0) *module = freeze(*module, mask);
cleanup:
  for (size_t i = 0; i < count; i++) ek_module_free(part[i]);
  return status;
}

/* ---- losses ---- */

static ek_status make_fused(ek_module **module, struct fuzz_input *input) {
  ek_linear_cross_entropy_options head = EK_LINEAR_CROSS_ENTROPY_OPTIONS_INIT;
  ek_with_criterion_options options = EK_WITH_CRITERION_OPTIONS_INIT;
  ek_module *body = NULL;
  ek_criterion *criterion = NULL;
  const char *source = NULL;
  ek_status status = EK_OK;
  head.bias = fuzz_one_in(input, 2);
  if (fuzz_one_in(input, 2)) head.logits_bytes = 100; /* several blocks */
  const bool tied = fuzz_one_in(input, 2);
  EK_TRY_GOTO(status, make_body(&body, false, &source, input), cleanup);
  if (tied) options.tied = "weight", options.source = source;
  EK_TRY_GOTO(status, ek_linear_cross_entropy_create(&criterion, WIDTH, SHARDED_VOCABULARY, &head),
              cleanup);
  EK_TRY_GOTO(status, ek_with_criterion_create_with(module, body, criterion, &options), cleanup);
cleanup:
  ek_criterion_free(criterion);
  ek_module_free(body);
  return status;
}

static ek_status make_gpt(ek_module **module, bool fused, struct fuzz_input *input) {
  ek_gpt_options options = EK_GPT_OPTIONS_INIT;
  options.vocabulary = SHARDED_VOCABULARY;
  options.sequence = SHARDED_SEQUENCE;
  options.width = WIDTH;
  options.heads = 2;
  options.layers = fuzz_choice(input, 3);
  options.untied = fuzz_one_in(input, 2);
  options.dropout = fuzz_one_in(input, 4) ? 0.25 : 0;
  options.recompute = read_recompute(input);
  options.fused_loss = fused;
  return ek_gpt_create(module, &options);
}

static ek_status make_module(ek_module **module, bool *own_loss, struct fuzz_input *input) {
  const char *source = NULL;
  const int kind = fuzz_choice(input, 5);
  *own_loss = kind % 2 != 0 || kind == 4;
  switch (kind) {
  case 1: return make_fused(module, input);
  case 2: return make_gpt(module, false, input);
  case 3: return make_gpt(module, true, input);
  default: return make_body(module, true, &source, input);
  }
}

ek_status sharded_model(ek_module **module, ek_criterion **criterion, struct sharded_model *about,
                        struct fuzz_input *input) {
  ek_module *made = NULL, *whole = NULL;
  *criterion = NULL;
  EK_TRY(make_module(&made, &about->own_loss, input));
  ek_status status = EK_OK;
  if (ek_module_terms(made) == 0)
    EK_TRY_GOTO(status, ek_cross_entropy_create(criterion, NULL), cleanup);
  if (ek_module_terms(made) == 0 && about->own_loss) {
    EK_TRY_GOTO(status, ek_with_criterion_create(&whole, made, *criterion), cleanup);
    ek_criterion_free(*criterion);
    ek_module_free(made);
    *criterion = NULL;
    made = whole;
  }
  *module = made;
  return EK_OK;
cleanup:
  ek_criterion_free(*criterion);
  *criterion = NULL;
  ek_module_free(made);
  return status;
}

/* ---- batches ---- */

void sharded_batch(struct fuzz_batch *batch, struct sharded_memory *memory,
                   const struct sharded_model *about, int64_t rows, size_t number) {
  const int64_t shape[] = {rows, SHARDED_SEQUENCE};
  *batch = (struct fuzz_batch){.inputs = 1};
  for (int i = 0; i < SHARDED_MOST_ROWS * SHARDED_SEQUENCE; i++) {
    memory->tokens[i] = (int32_t)((7 * number + 3 * (size_t)i) % SHARDED_VOCABULARY);
    memory->targets[i] = (int32_t)((5 * number + 2 * (size_t)i + 1) % SHARDED_VOCABULARY);
  }
  ek_tensor *target =
      about->own_loss ? &batch->input[batch->inputs++] : &batch->target[batch->targets++];
  FUZZ_OK(ek_tensor_host(&batch->input[0], memory->tokens, EK_I32, 2, shape));
  FUZZ_OK(ek_tensor_host(target, memory->targets, EK_I32, 2, shape));
}
