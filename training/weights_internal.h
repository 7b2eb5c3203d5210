/*
 * weights_internal.h - the names that a model's own table gives its weights.
 */
#ifndef EK_WEIGHTS_INTERNAL_H
#define EK_WEIGHTS_INTERNAL_H

#include <evenkeel/weights.h>

/* The names of the first module that has a table (ek_module_ops.weight_names), and its prefix where
 * the options have none; nothing if there is no such module. */
void ek__weights_own_names(ek_weights_options *options, const ek_data_parallel_model *model);

#endif /* EK_WEIGHTS_INTERNAL_H */
