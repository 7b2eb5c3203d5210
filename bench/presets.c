/*
 * presets.c - the table of presets.
 */
#include "presets.h"

#include <string.h>

static const struct preset presets[] = {
    {"quick",
     "a small model, seconds (the default)",
     {.layers = 2,
      .width = 64,
      .heads = 4,
      .seq = 64,
      .vocab = 4096,
      .batch = 32,
      .steps = 5,
      .warmup = 3,
      .keep_outputs = false}},
    /* The output of one step is 32 x 250 x 40,000 x 4 B = 1.28 GB and its gradient as much again,
     * behind a trunk that costs next to nothing. */
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
      .warmup = 1,
      .keep_outputs = false}},
    {"gpt2-355m",
     "GPT-2 with 355 million parameters",
     {.layers = 24,
      .width = 1024,
      .heads = 16,
      .seq = 1024,
      .vocab = 50257,
      .batch = 8,
      .steps = 1,
      .warmup = 1,
      .keep_outputs = false}},
    {"gpt2-774m",
     "GPT-2 with 774 million parameters",
     {.layers = 36,
      .width = 1280,
      .heads = 20,
      .seq = 1024,
      .vocab = 50257,
      .batch = 8,
      .steps = 1,
      .warmup = 1,
      .keep_outputs = false}},
    {"gpt2-1.5b",
     "GPT-2 with 1.5 billion parameters",
     {.layers = 48,
      .width = 1600,
      .heads = 25,
      .seq = 1024,
      .vocab = 50257,
      .batch = 8,
      .steps = 1,
      .warmup = 1,
      .keep_outputs = false}},
    /* LLaMA's depth, width, heads, context and vocabulary on GPT-2's blocks: a feed-forward of 4 widths
     * with GELU has 2/3 of the parameters of three matrices of 8/3 each, and the head is tied. */
    {"llama-7b",
     "of the size of LLaMA 7B, for plan:8@80GiB",
     {.layers = 32,
      .width = 4096,
      .heads = 32,
      .seq = 2048,
      .vocab = 32000,
      .batch = 8,
      .steps = 1,
      .warmup = 1,
      .keep_outputs = false}},
    {"gpt3-175b",
     "GPT-3's shape, for plan:8@80GiB",
     {.layers = 96,
      .width = 12288,
      .heads = 96,
      .seq = 2048,
      .vocab = 50257,
      .batch = 8,
      .steps = 1,
      .warmup = 1,
      .keep_outputs = false}},
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
