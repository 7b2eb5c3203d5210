/*
 * presets.c - the table of presets, and the models of their shapes.
 */
#include "presets.h"

#include <string.h>

#include <evenkeel/gpt.h>
#include <evenkeel/llama.h>

/* One of the larger models of GPT-2, with its context and vocabulary. */
#define GPT2(layers_, width_, heads_)                                                              \
  {                                                                                                \
    .layers = (layers_), .width = (width_), .heads = (heads_), .seq = 1024, .vocab = 50257,        \
    .batch = 8, .steps = 1, .warmup = 1                                                            \
  }

/* Models of Llama's shape: one sample of `seq_` tokens for each of 8 devices. */
#define LLAMA(layers_, width_, hidden_, heads_, kv_heads_, seq_, vocab_, untied_)                  \
  {                                                                                                \
    .layers = (layers_), .width = (width_), .hidden = (hidden_), .heads = (heads_),                \
    .kv_heads = (kv_heads_), .seq = (seq_), .vocab = (vocab_), .untied = (untied_), .batch = 8,    \
    .steps = 1, .warmup = 1                                                                        \
  }

/* Pictures of three colours. */
#define IMAGES(layers_, image_, classes_, batch_, ...)                                             \
  {                                                                                                \
    .layers = (layers_), .width = 64, .heads = 1, .seq = 1, .vocab = (classes_),                   \
    .image = (image_), .batch = (batch_), .warmup = 1, __VA_ARGS__                                 \
  }

static const struct preset presets[] = {
    {"quick",
     "a small model that trains in seconds (the default)",
     {.layers = 2,
      .width = 64,
      .heads = 4,
      .seq = 64,
      .vocab = 4096,
      .batch = 32,
      .steps = 5,
      .warmup = 3}},
    /* The output of one step is 32 x 250 x 40,000 x 4 B = 1.28 GB and its gradient as much again,
     * after a trunk that costs next to nothing. */
    {"lm-40k",
     "40,000 words, 1.28 GB of logits, outputs kept",
     {.layers = 2,
      .width = 64,
      .heads = 4,
      .seq = 250,
      .vocab = 40000,
      .batch = 32,
      .steps = 2,
      .warmup = 1,
      .keep_outputs = true}},
    {"gpt2-124m",
     "GPT-2 with 124 million parameters",
     {.layers = 12,
      .width = 768,
      .heads = 12,
      .seq = 128,
      .vocab = 50257,
      .batch = 4,
      .steps = 3,
      .warmup = 1}},
    {"gpt2-355m", "GPT-2 with 355 million parameters", GPT2(24, 1024, 16)},
    {"gpt2-774m", "GPT-2 with 774 million parameters", GPT2(36, 1280, 20)},
    {"gpt2-1.5b", "GPT-2 with 1.5 billion parameters", GPT2(48, 1600, 25)},
    /* LLaMA's depth, width, heads, context and vocabulary on GPT-2's blocks: a feed-forward of 4
     * widths with GELU has 2/3 of the parameters of three matrices of 8/3 each, and the head is
     * tied. */
    {"llama-7b",
     "the size of LLaMA 7B, for plan:8@80GiB",
     {.layers = 32,
      .width = 4096,
      .heads = 32,
      .seq = 2048,
      .vocab = 32000,
      .batch = 8,
      .steps = 1,
      .warmup = 1}},
    {"llama-160m", "a Llama with 162 million parameters",
     LLAMA(12, 768, 3072, 12, 12, 2048, 32000, true)},
    {"llama-1b", "Llama 3.2 1B", LLAMA(16, 2048, 8192, 32, 8, 8192, 128256, false)},
    {"llama-8b", "Llama 3 8B, for plan:8@80GiB",
     LLAMA(32, 4096, 14336, 32, 8, 8192, 128256, true)},
    {"llama-70b", "Llama 3 70B, for plan:8@180GiB",
     LLAMA(80, 8192, 28672, 64, 8, 8192, 128256, true)},
    {"gpt3-175b",
     "GPT-3's shape, for plan:8@80GiB",
     {.layers = 96,
      .width = 12288,
      .heads = 96,
      .seq = 2048,
      .vocab = 50257,
      .batch = 8,
      .steps = 1,
      .warmup = 1}},
    {"resnet18", "ResNet-18 on 32 x 32 pictures of 10 classes, as CIFAR-10",
     IMAGES(18, 32, 10, 128, .steps = 3)},
    {"resnet50", "ResNet-50 on 224 x 224 pictures of 1,000 classes, as ImageNet",
     IMAGES(50, 224, 1000, 16, .steps = 1)},
    /* The output of one step is 16 x 480 x 480 x 150 x 4 B = 2.2 GB. */
    {"fcn50", "segmentation of 480 x 480 pictures into 150 classes, 2.2 GB of outputs, kept",
     IMAGES(50, 480, 150, 16, .steps = 1, .segments = true, .keep_outputs = true)},
};

const struct preset *preset_at(size_t index) {
  return index < sizeof presets / sizeof presets[0] ? &presets[index] : NULL;
}

const struct preset *preset_find(const char *name) {
  for (size_t i = 0; preset_at(i) != NULL; i++) {
    if (strcmp(presets[i].name, name) == 0) return &presets[i];
  }
  return NULL;
}

/* ---- models ---- */

static ek_status make_gpt(ek_module **module, const struct shape *shape, double dropout,
                          bool fused_loss, int64_t columns) {
  ek_gpt_options gpt = EK_GPT_OPTIONS_INIT;
  gpt.vocabulary = shape->vocab;
  gpt.sequence = shape->seq;
  gpt.width = shape->width;
  gpt.layers = (int)shape->layers;
  gpt.heads = (int)shape->heads;
  gpt.dropout = dropout;
  gpt.fused_loss = fused_loss;
  gpt.recompute = shape->recompute;
  gpt.logits_columns = columns;
  gpt.segments = shape->documents;
  return ek_gpt_create(module, &gpt);
}

static ek_status make_llama(ek_module **module, const struct shape *shape, double dropout,
                            bool fused_loss, int64_t columns) {
  ek_llama_options llama = EK_LLAMA_OPTIONS_INIT;
  llama.vocabulary = shape->vocab;
  llama.sequence = shape->seq;
  llama.width = shape->width;
  llama.hidden = shape->hidden;
  llama.layers = (int)shape->layers;
  llama.heads = (int)shape->heads;
  llama.kv_heads = (int)shape->kv_heads;
  llama.tied = !shape->untied;
  llama.dropout = dropout;
  llama.fused_loss = fused_loss;
  llama.recompute = shape->recompute;
  llama.logits_columns = columns;
  llama.segments = shape->documents;
  return ek_llama_create(module, &llama);
}

ek_status shape_language_model(ek_module **module, const struct shape *shape, double dropout,
                               bool fused_loss, int64_t columns) {
  return (shape->hidden > 0 ? make_llama : make_gpt)(module, shape, dropout, fused_loss, columns);
}
