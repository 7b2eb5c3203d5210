/*
 * weights.h - the parameters and buffers of a model in files, to exchange with other programs.
 *
 *     EK_TRY(ek_weights_load(model, "gpt2", NULL));          // a folder of another program
 *
 *     ek_weights_options options = EK_WEIGHTS_OPTIONS_INIT;  // one file
 *     options.names = ek_gpt_hugging_face(&options.name_count);
 *     EK_TRY(ek_weights_load(model, "gpt2/model.safetensors", &options));
 *
 * The weights go through 16 MiB of host memory, piece after piece; of a matrix that the file has
 * transposed all is in host memory at once.
 * To save the state of a whole run and go on with it later, see checkpoint.h.
 */
#ifndef EVENKEEL_WEIGHTS_H
#define EVENKEEL_WEIGHTS_H

#include <evenkeel/data_parallel_model.h>
#include <evenkeel/weight_names.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_weights_options {
  size_t size;
  /* A tensor not in the table has the same name in both. NULL: the model's own names; for a folder
   * those that the model declares (ek_module_ops.weight_names), with their prefix. */
  const ek_weight_name *names;
  size_t name_count;
  /* Of the names in the file, except those that are `bare` in the table; at most 600 bytes. A load
   * takes names without it, too, and bare ones with it. NULL: "" */
  const char *prefix;
  /* A save only: instead of each parameter that is trained, the average of it that the optimizer
   * keeps (averaged.h). */
  bool average;
} ek_weights_options;
#define EK_WEIGHTS_OPTIONS_INIT                                                                    \
  {                                                                                                \
    .size = sizeof(ek_weights_options), .names = NULL, .name_count = 0, .prefix = NULL,            \
    .average = false                                                                               \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_weights_options_init(ek_weights_options *options, size_t size);

/*
 * Reads every parameter and buffer, in any floating type (safetensors.h has the conversion), on all
 * devices. Tensors of the file that the model does not have are skipped, except those of a deeper
 * model: blocks.2 where the model has blocks.0 and blocks.1. `path` is a file, or a folder with
 * model.safetensors, or with model.safetensors.index.json and the files that it names.
 * Names, shapes, types and checksums are compared before the first weight is written, so a file
 * that does not fit changes nothing; a file or a device that fails after that tears the model.
 * With a table of names, config.json in the file's folder, if there is one, must not contradict the
 * facts that modules declare (ek_module_ops.facts, as ek_gpt does): with another activation, say,
 * the results would be wrong without an error.
 * EK_ERR_MISMATCH          the file lacks one, or has it in another shape; it is that of a deeper
 *                          model; or it has a tensor under the name of a tied parameter, with
 *                          other numbers than the parameter's that it is tied to: the message
 *                          names it
 * EK_ERR_TYPE              the file has one in a type without fractions
 * EK_ERR_INVALID_ARGUMENT  config.json contradicts the model: the message names the key; `average`
 * EK_ERR_CORRUPT           config.json or the index is not a JSON object as it should be, or two
 *                          files of an index have the same tensor of the model
 * and the errors of safetensors.h
 */
EK_API EK_CHECKED ek_status ek_weights_load(ek_data_parallel_model *model, const char *path,
                                            const ek_weights_options *options);

/*
 * Writes the parameters and buffers in the model's type; the file appears once it is complete. Tied
 * parameters are written once, under the name of their source.
 * EK_ERR_STATE  `average` without an optimizer that keeps one, or before its first step
 * and the errors of state.h and safetensors.h
 */
EK_API EK_CHECKED ek_status ek_weights_save(const ek_data_parallel_model *model, const char *path,
                                            const ek_weights_options *options);

EK_END_DECLARATIONS

#endif /* EVENKEEL_WEIGHTS_H */
