/*
 * model_folder.c - see evenkeel/model_folder.h. A family is a row of a table: the words of
 * model_type, and a function that turns config.json into the options of a module. What the function
 * does not ask for is compared afterwards: with the facts of the module that it made.
 */
#include <evenkeel/model_folder.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <errno.h>
#include <sys/stat.h>

#include <evenkeel/gpt.h>
#include <evenkeel/llama.h>

#include "core/alloc.h"
#include "core/c_locale.h"
#include "core/error.h"
#include "core/options.h"
#include "io/file.h"
#include "io/text_file.h"
#include "model_config.h"
#include "parallel/parallel_internal.h"
#include "weight_files.h"
#include "weights_internal.h"

enum { MOST_BLOCKS = 10000 };

/* ---- values of a configuration ---- */

static ek_status expected(const struct ek__config *config, const char *key, const char *what) {
  const struct ek__config_member *member = ek__config_find(config, key);
  if (member == NULL) {
    return ek_error_set(EK_ERR_CORRUPT, "%s has no %s, expected %s", config->path, key, what);
  }
  return ek_error_set(EK_ERR_CORRUPT, "%s: %s is %s, expected %s", config->path, key,
                      member->shown, what);
}

/* A number above 0; `otherwise` where there is none, unless it is 0. */
static ek_status read_number(double *value, const struct ek__config *config, const char *key,
                             double otherwise) {
  const struct ek__config_member *member = ek__config_find(config, key);
  *value = otherwise;
  if (member == NULL && otherwise > 0) return EK_OK;
  if (member == NULL || member->kind != EK__CONFIG_NUMBER || !(member->number > 0)) {
    return expected(config, key, "a number above 0");
  }
  *value = member->number;
  return EK_OK;
}

/* The same for a whole number. */
static ek_status read_size(int64_t *size, const struct ek__config *config, const char *key,
                           int64_t otherwise) {
  double value = 0;
  EK_TRY(read_number(&value, config, key, (double)otherwise));
  if (value > INT32_MAX || value != floor(value)) {
    return expected(config, key, "a whole number from 1 to 2147483647");
  }
  *size = (int64_t)value;
  return EK_OK;
}

/* Of layers or heads: a damaged file does not take all memory for the descriptions of blocks. */
static ek_status read_count(int *size, const struct ek__config *config, const char *key,
                            int otherwise) {
  int64_t value = 0;
  EK_TRY(read_size(&value, config, key, otherwise));
  if (value > MOST_BLOCKS) return expected(config, key, "a whole number from 1 to 10000");
  *size = (int)value;
  return EK_OK;
}

static ek_status read_flag(bool *flag, const struct ek__config *config, const char *key,
                           bool otherwise) {
  const struct ek__config_member *member = ek__config_find(config, key);
  *flag = otherwise;
  if (member == NULL) return EK_OK;
  if (member->kind != EK__CONFIG_BOOLEAN) return expected(config, key, "true or false");
  *flag = member->number != 0;
  return EK_OK;
}

/* The option, or where it is -1 the file's number. */
static ek_status read_dropout(double *p, const struct ek__config *config, const char *key,
                              const ek_model_folder_options *o) {
  const struct ek__config_member *member = ek__config_find(config, key);
  *p = o->attention_dropout;
  if (*p != -1) return EK_OK;
  *p = 0;
  if (member == NULL) return EK_OK;
  if (member->kind != EK__CONFIG_NUMBER || !(member->number >= 0 && member->number < 1)) {
    return expected(config, key, "a number from 0 to below 1");
  }
  *p = member->number;
  return EK_OK;
}

static bool has_word(const struct ek__config *config, const char *key, const char *word) {
  const struct ek__config_member *member = ek__config_find(config, key);
  return member != NULL && member->kind == EK__CONFIG_WORD && strcmp(member->word, word) == 0;
}

/* ---- families ---- */

/* Keys that config.json of a GPT-2 lacks have the values of the one of 124M parameters. */
static ek_status read_gpt(ek_module **module, const struct ek__config *config,
                          const ek_model_folder_options *o) {
  ek_gpt_options gpt = EK_GPT_OPTIONS_INIT;
  bool tied = true;
  EK_TRY(read_size(&gpt.vocabulary, config, "vocab_size", gpt.vocabulary));
  EK_TRY(read_size(&gpt.sequence, config, "n_positions", gpt.sequence));
  EK_TRY(read_size(&gpt.width, config, "n_embd", gpt.width));
  EK_TRY(read_count(&gpt.layers, config, "n_layer", gpt.layers));
  EK_TRY(read_count(&gpt.heads, config, "n_head", gpt.heads));
  EK_TRY(read_flag(&tied, config, "tie_word_embeddings", tied));
  EK_TRY(read_dropout(&gpt.attention_dropout, config, "attn_pdrop", o));
  gpt.segments = o->segments;
  gpt.untied = !tied;
  gpt.dropout = o->dropout;
  gpt.recompute = o->recompute;
  gpt.fused_loss = o->fused_loss;
  gpt.loss = o->loss;
  gpt.logits_bytes = o->logits_bytes;
  gpt.logits_columns = o->logits_columns;
  return ek_gpt_create(module, &gpt);
}

static ek_status read_rotary(ek_rotary *rotary, const struct ek__config *config) {
  static const char type[] = "rope_scaling.rope_type";
  EK_TRY(read_number(&rotary->theta, config, "rope_theta", rotary->theta));
  const struct ek__config_member *member = ek__config_find(config, type);
  if (member == NULL) {
    member = ek__config_find(config, "rope_scaling.factor");
    return member == NULL ? EK_OK : expected(config, type, "\"default\", \"linear\" or \"llama3\"");
  }
  if (has_word(config, type, "default")) return EK_OK;
  rotary->scaling = has_word(config, type, "linear")   ? EK_ROTARY_LINEAR
                    : has_word(config, type, "llama3") ? EK_ROTARY_LLAMA3
                                                       : EK_ROTARY_PLAIN;
  EK__FAIL_IF(rotary->scaling == EK_ROTARY_PLAIN, EK_ERR_UNSUPPORTED,
              "%s: %s is %s, expected \"default\", \"linear\" or \"llama3\"", config->path, type,
              member->shown);
  EK_TRY(read_number(&rotary->factor, config, "rope_scaling.factor", 0));
  if (rotary->scaling == EK_ROTARY_LINEAR) return EK_OK;
  EK_TRY(read_number(&rotary->low_factor, config, "rope_scaling.low_freq_factor", 0));
  EK_TRY(read_number(&rotary->high_factor, config, "rope_scaling.high_freq_factor", 0));
  return read_size(&rotary->original, config, "rope_scaling.original_max_position_embeddings", 0);
}

/* A window says how far back a token sees. Rows that are not longer than it do not show it. */
static ek_status read_sequence(int64_t *sequence, const struct ek__config *config) {
  const bool mistral = has_word(config, "model_type", "mistral");
  int64_t window = 0;
  EK_TRY(read_size(sequence, config, "max_position_embeddings", 0));
  if (!mistral || ek__config_find(config, "sliding_window") == NULL) return EK_OK;
  EK_TRY(read_size(&window, config, "sliding_window", 0));
  if (window < *sequence) *sequence = window;
  return EK_OK;
}

static ek_status read_llama(ek_module **module, const struct ek__config *config,
                            const ek_model_folder_options *o) {
  ek_llama_options llama = EK_LLAMA_OPTIONS_INIT;
  ek_rotary rotary = EK_ROTARY_INIT;
  const bool plain = has_word(config, "model_type", "llama");
  const bool qwen3 = has_word(config, "model_type", "qwen3");
  EK_TRY(read_size(&llama.vocabulary, config, "vocab_size", 0));
  EK_TRY(read_sequence(&llama.sequence, config));
  EK_TRY(read_size(&llama.width, config, "hidden_size", 0));
  EK_TRY(read_size(&llama.hidden, config, "intermediate_size", 0));
  EK_TRY(read_count(&llama.layers, config, "num_hidden_layers", 0));
  EK_TRY(read_count(&llama.heads, config, "num_attention_heads", 0));
  EK_TRY(read_count(&llama.kv_heads, config, "num_key_value_heads", plain ? llama.heads : 0));
  EK_TRY(read_number(&llama.epsilon, config, "rms_norm_eps", 1e-6));
  EK_TRY(read_flag(&llama.tied, config, "tie_word_embeddings", false));
  EK_TRY(read_rotary(&rotary, config));
  EK_TRY(read_dropout(&llama.attention_dropout, config, "attention_dropout", o));
  if (qwen3 || ek__config_find(config, "head_dim") != NULL) {
    EK_TRY(read_size(&llama.head_width, config, "head_dim", 128));
  }
  llama.qk_norm = qwen3 ? EK_QK_NORM_RMS : EK_QK_NORM_NONE;
  llama.segments = o->segments;
  llama.qkv_bias = has_word(config, "model_type", "qwen2");
  llama.rotary = &rotary;
  llama.dropout = o->dropout;
  llama.recompute = o->recompute;
  llama.fused_loss = o->fused_loss;
  llama.loss = o->loss;
  llama.logits_bytes = o->logits_bytes;
  llama.logits_columns = o->logits_columns;
  return ek_llama_create(module, &llama);
}

static const struct family {
  const char *type;
  ek_status (*read)(ek_module **module, const struct ek__config *config,
                    const ek_model_folder_options *o);
} families[] = {
    {"gpt2", read_gpt}, {"llama", read_llama}, {"mistral", read_llama}, {"qwen2", read_llama},
    {"qwen3", read_llama}};

/* ---- reading ---- */

/* The facts are those of the whole model, which stands inside a module with its loss. */
static ek_status check_facts(const struct family *family, const struct ek__config *config) {
  const ek_model_folder_options plain = EK_MODEL_FOLDER_OPTIONS_INIT;
  ek_module *module = NULL;
  size_t count = 0;
  EK_TRY(family->read(&module, config, &plain));
  const ek_fact *facts = ek__config_facts(module, &count);
  const ek_status status = ek__config_agrees(config, facts, count);
  ek_module_free(module);
  return status;
}

static ek_status from_config(ek_module **module, const struct ek__config *config,
                             const ek_model_folder_options *o) {
  EK__FAIL_IF(config->text == NULL, EK_ERR_NOT_FOUND, "%s: no such file", config->path);
  const struct ek__config_member *type = ek__config_find(config, "model_type");
  for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
    if (!has_word(config, "model_type", families[i].type)) continue;
    EK_TRY(check_facts(&families[i], config));
    return families[i].read(module, config, o);
  }
  return ek_error_set(EK_ERR_UNSUPPORTED,
                      "%s: model_type is %s, expected gpt2, llama, mistral, qwen2 or "
                      "qwen3", config->path,
                      type == NULL ? "missing" : type->shown);
}

ek_status ek_model_from_folder(ek_module **module, const char *folder,
                               const ek_model_folder_options *options) {
  ek_model_folder_options o = EK_MODEL_FOLDER_OPTIONS_INIT;
  struct ek__config config = {0};
  char *inside = NULL;
  EK__NOT_NULL("ek_model_from_folder", module, folder);
  *module = NULL;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_model_folder_options"));
  EK_TRY(ek__path_in(&inside, folder, ""));
  ek_status status = ek__config_open(&config, inside);
  if (status == EK_OK) status = from_config(module, &config, &o);
  ek__config_close(&config);
  ek__free(inside);
  return status;
}

/* ---- writing ---- */

static void write_value(struct ek__text_file *file, const ek_fact *fact) {
  char text[EK__CONFIG_VALUE];
  ek__config_value(text, fact);
  if (fact->kind == EK_FACT_WORD) {
    ek__text_json(file, text);
  } else {
    ek__text_format(file, "%s", fact->kind == EK_FACT_AT_MOST ? "null" : text);
  }
}

/* Facts of one object follow each other. */
static void write_facts(struct ek__text_file *file, const ek_fact *facts, size_t count) {
  size_t outer = 0; /* the length of the name of the object that is open, with its point */
  ek__text_format(file, "{");
  for (size_t i = 0; i < count; i++) {
    const char *key = facts[i].key, *point = strchr(key, '.');
    const size_t length = point == NULL ? 0 : (size_t)(point - key) + 1;
    const bool goes_on = length == outer && length > 0 && i > 0 &&
                         strncmp(key, facts[i - 1].key, length) == 0;
    if (outer > 0 && !goes_on) ek__text_format(file, "\n  }");
    ek__text_format(file, i == 0 ? "\n" : ",\n");
    if (length > 0 && !goes_on) ek__text_format(file, "  \"%.*s\": {\n", (int)length - 1, key);
    outer = length;
    ek__text_format(file, "%s\"%s\": ", length > 0 ? "    " : "  ", key + length);
    write_value(file, &facts[i]);
  }
  ek__text_format(file, "%s\n}\n", outer > 0 ? "\n  }" : "");
}

static ek_status write_config(const char *folder, const ek_fact *facts, size_t count) {
  struct ek__text_file *file = NULL;
  char *path = NULL;
  EK_TRY(ek__path_in(&path, folder, "config.json"));
  ek_status status = ek__text_begin(&file, path);
  ek__free(path);
  EK_TRY(status);
  const locale_t before = ek__c_locale_begin();
  write_facts(file, facts, count);
  ek__c_locale_end(before);
  return ek__text_end(file, true);
}

/* A folder for the files of one model, which may have been there. */
static ek_status make_folder(const char *folder) {
  struct stat status;
  char *index = NULL;
  if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
    return ek__file_refused(folder, "cannot make the folder");
  }
  EK_TRY(ek__path_in(&index, folder, "model.safetensors.index.json"));
  const bool there = stat(index, &status) == 0;
  ek__free(index);
  EK__FAIL_IF(there, EK_ERR_STATE,
              "%s has model.safetensors.index.json of another model, expected a new folder",
              folder);
  return EK_OK;
}

/* The facts of the module whose names the weights have. */
static ek_status find_facts(const ek_fact **facts, size_t *count,
                            const ek_data_parallel_model *model) {
  const struct ek__layout *layout = &model->run.ranks[0].replica->layout;
  for (const struct ek__node *node = layout->nodes; node != NULL; node = node->next) {
    if (EK__TABLE_SLOT(ek_module_table(node->module), weight_names) == NULL) continue;
    *facts = ek__config_facts(node->module, count);
    if (*facts != NULL) return EK_OK;
    break;
  }
  return ek_error_set(EK_ERR_UNSUPPORTED,
                      "no module of the model declares its names and facts for a folder, expected "
                      "ek_module_ops.weight_names and facts");
}

static ek_status to_folder(const ek_data_parallel_model *model, const char *folder,
                           const ek_weights_options *options) {
  ek_weights_options o = EK_WEIGHTS_OPTIONS_INIT;
  const ek_fact *facts = NULL;
  size_t count = 0;
  char *path = NULL;
  EK__NOT_NULL("ek_model_to_folder", folder);
  EK__MODEL_ENTER(model, "ek_model_to_folder");
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_weights_options"));
  EK_TRY(find_facts(&facts, &count, model));
  if (o.names == NULL) ek__weights_own_names(&o, model);
  if (ek_world_process(ek__group_world(model->run.group)) == 0) {
    EK_TRY(make_folder(folder));
    EK_TRY(write_config(folder, facts, count));
  }
  EK_TRY(ek__path_in(&path, folder, "model.safetensors"));
  const ek_status status = ek_weights_save(model, path, &o);
  ek__free(path);
  return status;
}

ek_status ek_model_to_folder(const ek_data_parallel_model *model, const char *folder,
                             const ek_weights_options *options) {
  EK__NOT_NULL("ek_model_to_folder", model);
  EK__WORLD_CALL(ek__group_world(model->run.group), to_folder(model, folder, options));
}

EK__OPTIONS_INIT(ek_model_folder_options, EK_MODEL_FOLDER_OPTIONS_INIT)
