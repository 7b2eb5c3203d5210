/*
 * ck_workload.c - small models with criteria and batches: see ck_workload.h.
 */
#include "ck_workload.h"

#include "ck_blend.h"
#include "ck_gpt.h"
#include "ck_mixer.h"

enum { IGNORED = -100, MLP_INPUTS = 7, MLP_CLASSES = 5, GPT_LENGTH = 5, GPT_VOCABULARY = 13 };

/* ---- modules ---- */

static ek_status mlp_module(ek_module **module) {
  static const int64_t sizes[] = {MLP_INPUTS, 19, 9, MLP_CLASSES};
  return ek_mlp_create(module, sizes, 4, EK_ACTIVATION_GELU);
}

CK_GPT(gpt_module, ck_gpt_sizes(GPT_VOCABULARY, GPT_LENGTH, 8, 2, 2), .dropout = 0.25)

/* ---- criteria ---- */

CK_ENTROPY(cross_entropy, .ignore_index = IGNORED)

/* Class weights that single precision holds, so that both types compute the same loss. */
static ek_status weighted_cross_entropy(ek_criterion **criterion, ek_reduction reduction) {
  static const double weights[MLP_CLASSES] = {1, 0.5, 2, 0.25, 1.5};
  CK_WITH(ek_cross_entropy_options, options, EK_CROSS_ENTROPY_OPTIONS_INIT, .reduction = reduction,
          .ignore_index = IGNORED, .label_smoothing = 0.125, .class_weights = weights,
          .classes = MLP_CLASSES);
  return ek_cross_entropy_create(criterion, &options);
}

static ek_status squared_errors(ek_criterion **criterion, ek_reduction reduction, size_t count) {
  static const double coefficients[] = {1, 0.5, 0.25};
  ek_criterion *terms[3] = {NULL};
  ek_status status = EK_OK;
  for (size_t i = 0; i < count && status == EK_OK; i++) {
    status = ek_mean_squared_error_create(&terms[i], reduction);
  }
  if (status == EK_OK) return ck_weighted_sum(criterion, terms, coefficients, count);
  for (size_t i = 0; i < count; i++) ek_criterion_free(terms[i]);
  return status;
}

static ek_status two_errors(ek_criterion **criterion, ek_reduction reduction) {
  return squared_errors(criterion, reduction, 2);
}

static ek_status three_errors(ek_criterion **criterion, ek_reduction reduction) {
  return squared_errors(criterion, reduction, 3);
}

/* ---- workloads ---- */

const struct ck_workload ck_workloads[CK_WORKLOADS] = {
    {"mlp", mlp_module, weighted_cross_entropy, CK_SAMPLE(CK_ROW(MLP_INPUTS), CK_LABELS(1)),
     MLP_CLASSES, true},
    {"gpt", gpt_module, cross_entropy, CK_SAMPLE(CK_TOKENS(GPT_LENGTH), CK_LABELS(GPT_LENGTH)),
     GPT_VOCABULARY, true},
    {.name = "mixer", .module = ck_mixer_twice_create, .criterion = three_errors,
     .sample = {.inputs = 2, .targets = 3, .input = {CK_ROW(CK_MIXER_WIDTH), CK_LABELS(1)},
                .target = {CK_ROW(CK_MIXER_WIDTH), CK_ROW(CK_MIXER_WIDTH), CK_ROW(CK_MIXER_WIDTH)}},
     .classes = CK_MIXER_KINDS},
    {.name = "blend", .module = ck_blend_create, .criterion = two_errors,
     .sample = {.inputs = 2, .targets = 2,
                .input = {{.rank = 1, .shape = {CK_BLEND_WIDTH}}, CK_ROW(CK_BLEND_WIDTH)},
                .target = {CK_ROW(CK_BLEND_WIDTH), CK_ROW(CK_BLEND_WIDTH)}, .broadcast = 1}}};

const struct ck_workload *ck_workload(const char *name) {
  for (size_t i = 0; i < CK_WORKLOADS; i++) {
    if (strcmp(ck_workloads[i].name, name) == 0) return &ck_workloads[i];
  }
  ck_abort_msg("there is no workload %s", name);
}

/* ---- numbers ---- */

/* Of `samples` samples. */
static void fill(ek_tensor *tensor, ek_type type, int64_t samples, int64_t classes, double ignored,
                 struct ck_random *random) {
  tensor->shape[0] *= samples;
  if (tensor->type == 0) tensor->type = type;
  const int64_t count = ek_tensor_count(tensor);
  tensor->data = ck_array((size_t)count, 8);
  for (int64_t i = 0; i < count; i++) {
    if (tensor->type == EK_I32) {
      const bool skip = ck_random_uniform(random, 0, 1) < ignored;
      const int64_t value = ck_random_integer(random, 0, classes - 1);
      ((int32_t *)tensor->data)[i] = skip ? IGNORED : (int32_t)value;
      continue;
    }
    const float value = (float)ck_random_uniform(random, -1, 1);
    if (tensor->type == EK_F32) ((float *)tensor->data)[i] = value;
    if (tensor->type == EK_F64) ((double *)tensor->data)[i] = (double)value;
  }
}

struct ck_batch ck_batch_make(const struct ck_workload *workload, ek_type type, int64_t samples,
                              double ignored, uint64_t stream) {
  CK_WITH(struct ck_batch, batch, workload->sample, .samples = samples);
  struct ck_random random = ck_random_start(stream);
  for (size_t i = 0; i < batch.inputs; i++) {
    const bool whole = (batch.broadcast >> i & 1) != 0;
    fill(&batch.input[i], type, whole ? 1 : samples, workload->classes, 0, &random);
  }
  for (size_t i = 0; i < batch.targets; i++) {
    fill(&batch.target[i], type, samples, workload->classes, workload->ignores ? ignored : 0,
         &random);
  }
  return batch;
}

static ek_tensor part(const ek_tensor *tensor, int64_t samples, int64_t first, int64_t count) {
  ek_tensor result = *tensor;
  if (samples == 0) return result;
  const int64_t rows = tensor->shape[0] / samples; /* of one sample */
  ck_assign(result, .shape[0] = rows * count,
            .data = (char *)tensor->data + (size_t)(rows * first * ek_tensor_row_elements(tensor)) *
                                               ek_type_size(tensor->type));
  return result;
}

struct ck_batch ck_batch_samples(const struct ck_batch *batch, int64_t first, int64_t count) {
  CK_WITH(struct ck_batch, result, *batch, .samples = count);
  for (size_t i = 0; i < batch->inputs; i++) {
    if ((batch->broadcast >> i & 1) != 0) continue;
    result.input[i] = part(&batch->input[i], batch->samples, first, count);
  }
  for (size_t i = 0; i < batch->targets; i++) {
    result.target[i] = part(&batch->target[i], batch->samples, first, count);
  }
  return result;
}
