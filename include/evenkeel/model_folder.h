/*
 * model_folder.h - models as the package `transformers` keeps them: a folder with config.json and
 * model.safetensors, or several files and their index.
 *
 *     EK_TRY(ek_model_from_folder(&module, "llama-3-8b", NULL));          // config.json
 *     EK_TRY(ek_trainer_open(&trainer, "cuda", module, loss, rule, NULL));
 *     EK_TRY(ek_weights_load(ek_trainer_model(trainer), "llama-3-8b", NULL));
 *     EK_TRY(ek_model_to_folder(ek_trainer_model(trainer), "fine-tuned", NULL));
 *
 * The devices, the mode and the number of processes may be any. The weights go through 16 MiB of
 * host memory (weights.h), so a model needs no second copy of itself there.
 * AutoModelForCausalLM.from_pretrained() opens a folder that is written. Tokenizers are files of
 * their own: copy them.
 *
 * `model_type` says what a model is, and becomes
 *     gpt2                    ek_gpt (gpt.h)
 *     llama, mistral, qwen2,  ek_llama (llama.h); qwen2 with a bias of queries, keys and values,
 *     qwen3                   qwen3 with a norm of queries and keys; with a sliding window,
 *                             `sequence` is at most the window
 * Options that these modules do not have, such as another activation, a bias of the feed-forward
 * layers, or a scaling of positions other than linear and llama3, are refused: nothing is passed
 * over that would change a result. Dropout is the program's choice: what the file says is ignored,
 * unless attention_dropout is -1.
 */
#ifndef EVENKEEL_MODEL_FOLDER_H
#define EVENKEEL_MODEL_FOLDER_H

#include <evenkeel/cross_entropy.h>
#include <evenkeel/data_parallel_model.h>
#include <evenkeel/recompute.h>
#include <evenkeel/weights.h>

EK_BEGIN_DECLARATIONS

/* What config.json does not say; the members are those of ek_gpt_options and ek_llama_options. */
typedef struct ek_model_folder_options {
  size_t size;
  double dropout;
  ek_recompute recompute;
  bool fused_loss;
  const ek_cross_entropy_options *loss;
  uint64_t logits_bytes;
  int64_t logits_columns;
  double attention_dropout; /* -1: that of the file (attention_dropout, attn_pdrop) */
  bool segments;
} ek_model_folder_options;
#define EK_MODEL_FOLDER_OPTIONS_INIT                                                               \
  {                                                                                                \
    .size = sizeof(ek_model_folder_options), .dropout = 0.0,                                       \
    .recompute = {EK_RECOMPUTE_NONE, 0, 0}, .fused_loss = false, .loss = NULL,                     \
    .logits_bytes = 64u << 20, .logits_columns = 0, .attention_dropout = 0.0,                      \
    .segments = false                                                                              \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_model_folder_options_init(ek_model_folder_options *options,
                                                         size_t size);

/*
 * Makes the module that config.json describes. It reads no weights.
 * EK_ERR_NOT_FOUND         the folder has no config.json
 * EK_ERR_CORRUPT           it is not a JSON object, lacks a size, or has a word for a number
 * EK_ERR_UNSUPPORTED       its model_type, or its scaling of positions, is none of those above
 * EK_ERR_INVALID_ARGUMENT  it has something that the module does not do: the message names the key
 * and the errors of gpt.h and llama.h for sizes that do not fit
 */
EK_API EK_CHECKED ek_status ek_model_from_folder(ek_module **module, const char *folder,
                                                 const ek_model_folder_options *options);

/*
 * Writes config.json, of the facts that the model's module declares (ek_module_ops.facts), and
 * model.safetensors, with the names that it declares (ek_module_ops.weight_names), in the model's
 * type. `options` may ask for averages (averaged.h) and for other names; NULL: neither. Makes the
 * folder if it is not there. In a world, process 0 writes. Each of the two files
 * appears when it is complete, and replaces an old one.
 * EK_ERR_UNSUPPORTED  no module of the model declares names; or the model has no values (plan)
 * EK_ERR_STATE        the folder has model.safetensors.index.json: which weights are the model's
 *                     would be unclear
 */
EK_API EK_CHECKED ek_status ek_model_to_folder(const ek_data_parallel_model *model,
                                               const char *folder,
                                               const ek_weights_options *options);

EK_END_DECLARATIONS

#endif /* EVENKEEL_MODEL_FOLDER_H */
