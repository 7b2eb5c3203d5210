/*
 * presets.h - named shapes of a training run.
 */
#ifndef PROGRAMS_PRESETS_H
#define PROGRAMS_PRESETS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <evenkeel/module.h>
#include <evenkeel/recompute.h>

/* What a run trains: a model, a batch and how often. With `hidden` the model is ek_llama, else
 * ek_gpt, whose head is always tied here. With `image` samples are pictures of image x image
 * pixels, and the model is ek_resnet or, if it segments, ek_fcn: `layers` is then the depth,
 * `width` the channels of the first stage, `vocab` the number of classes, and `seq` is 1. */
struct shape {
  int64_t layers, width, heads, seq, vocab, batch;
  int64_t hidden, kv_heads, image;
  bool untied, segments;
  bool documents; /* a language model: a second input numbers the documents of a row */
  int64_t steps, warmup;
  bool keep_outputs;
  int64_t micro_batches; /* of a step; 0 and 1: the whole batch at once */
  ek_recompute recompute;
};

struct preset {
  const char *name;
  const char *text; /* one line for --help */
  struct shape shape;
};

/* The language model of a shape without pictures. `columns`: logits_columns of its options. */
ek_status shape_language_model(ek_module **module, const struct shape *shape, double dropout,
                               bool fused_loss, int64_t columns);

/* NULL: no preset has that name. The first of preset_at() is the default. */
const struct preset *preset_find(const char *name);
/* NULL after the last one. */
const struct preset *preset_at(size_t index);

#endif
