/*
 * weight_names.h - names of a model's parameters in the files of other programs.
 */
#ifndef EVENKEEL_WEIGHT_NAMES_H
#define EVENKEEL_WEIGHT_NAMES_H

#include <stdbool.h>
#include <stddef.h>

/*
 * One row of a table: "%d" in both names stands for the same number, such as that of a block.
 * Several rows with the same `model` make one tensor of the model of several in the file. Their
 * rows follow each other in the order of the table, as queries, keys and values of an attention do.
 */
typedef struct ek_weight_name {
  const char *file;  /* the name in the file, as "h.%d.attn.c_attn.weight" */
  const char *model; /* the name in the model, as "blocks.%d.attention.qkv.weight" */
  bool transposed;   /* [in, out] in the file, [out, in] in the model */
  bool bare;         /* in the file it never has the prefix of ek_weights_options */
  /* Of several rows with the same `model`: its part of the tensor's rows is in proportion to this
   * fact of the model (ek_module_ops.facts), as "num_key_value_heads"; NULL: to 1. */
  const char *share;
} ek_weight_name;

/* The names of a model in the files of the program that its configuration is from. */
typedef struct ek_weight_names {
  const ek_weight_name *rows;
  size_t count;
  const char *prefix; /* as in ek_weights_options */
} ek_weight_names;

#endif /* EVENKEEL_WEIGHT_NAMES_H */
