/*
 * weight_names.h - names of a model's parameters in the files of other programs.
 */
#ifndef EVENKEEL_WEIGHT_NAMES_H
#define EVENKEEL_WEIGHT_NAMES_H

#include <stdbool.h>

/* One row of a table: "%d" in both stands for the same number, such as that of a block. */
typedef struct ek_weight_name {
  const char *file;  /* the name in the file, as "h.%d.attn.c_attn.weight" */
  const char *model; /* the name in the model, as "blocks.%d.attention.qkv.weight" */
  bool transposed;   /* [in, out] in the file, [out, in] in the model */
  bool bare;         /* in the file it never has the prefix of ek_weights_options */
} ek_weight_name;

#endif /* EVENKEEL_WEIGHT_NAMES_H */
