/*
 * check_model_folder.c - models in folders: what is written is read as the same model in every
 * mode, from one file or many; what is damaged or says something else is refused.
 */
#include "ck_folder.h"
#include "ck_gpt.h"
#include "ck_locale.h"
#include "ck_state.h"
#include "ck_training.h"

#include <unistd.h>

#include <sys/stat.h>

enum { VOCABULARY = 7, SEQUENCE = 5, WIDTH = 16, LAYERS = 2, HEADS = 4, KV_HEADS = 2 };

static char parent[CK_FOLDER_SIZE], folder[96];
static const char *const files[] = {"config.json",   "model.safetensors", "a.safetensors",
                                    "b.safetensors", "a again.safetensors",
                                    "model.safetensors.index.json"};

static const char *in_folder(const char *name) {
  static char path[160];
  (void)snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

static void make_parent(void) {
  ck_folder_make(parent);
  (void)snprintf(folder, sizeof folder, "%s/model", parent);
}

static void remove_parent(void) {
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) (void)unlink(in_folder(files[i]));
  (void)rmdir(folder);
  ck_folder_remove(parent);
}

static void write_file(const char *name, const char *text) {
  ck_write_file(in_folder(name), text, strlen(text));
}

/* ---- models ---- */

CK_GPT(make_gpt, ck_gpt_sizes(VOCABULARY, SEQUENCE, WIDTH, LAYERS, HEADS), .untied = true)

static ek_status make_llama_with(ek_module **module, const ek_rotary *rotary, bool bias,
                                 bool tied) {
  CK_WITH(ek_llama_options, options, EK_LLAMA_OPTIONS_INIT, .vocabulary = VOCABULARY,
          .sequence = SEQUENCE, .width = WIDTH, .hidden = 24, .layers = LAYERS, .heads = HEADS,
          .kv_heads = KV_HEADS, .epsilon = 1e-6, .rotary = rotary, .qkv_bias = bias, .tied = tied);
  return ek_llama_create(module, &options);
}

static ek_status make_llama(ek_module **module) {
  CK_WITH(ek_rotary, rotary, EK_ROTARY_INIT, .scaling = EK_ROTARY_LLAMA3, .theta = 12345.678,
          .factor = 8, .original = 4);
  return make_llama_with(module, &rotary, false, false);
}

static ek_status make_qwen(ek_module **module) {
  CK_WITH(ek_rotary, rotary, EK_ROTARY_INIT, .scaling = EK_ROTARY_LINEAR, .factor = 2.5);
  return make_llama_with(module, &rotary, true, true);
}

CK_CREATE_WITH(make_qwen3, ek_llama_options, EK_LLAMA_OPTIONS_INIT, ek_llama_create(module, &o),
               .vocabulary = VOCABULARY, .sequence = SEQUENCE, .width = WIDTH, .hidden = 24,
               .layers = LAYERS, .heads = HEADS, .kv_heads = KV_HEADS, .head_width = 6,
               .epsilon = 1e-6, .qk_norm = EK_QK_NORM_RMS)

static ek_status make_read(ek_module **module) {
  return ek_model_from_folder(module, folder, NULL);
}

CK_CREATE_WITH(make_fused, ek_model_folder_options, EK_MODEL_FOLDER_OPTIONS_INIT,
               ek_model_from_folder(module, folder, &o), .fused_loss = true,
               .recompute.kind = EK_RECOMPUTE_CHEAP)

typedef ek_status (*maker)(ek_module **module);
static const maker makers[] = {make_gpt, make_llama, make_qwen, make_qwen3};
enum { MAKERS = sizeof makers / sizeof *makers };

static void open_model(struct ck_training *t, maker make, const char *devices, int placement,
                       uint64_t seed) {
  CK_WITH(struct ck_workload, workload, *ck_workload("gpt"), .module = make);
  CK_WITH(struct ck_setup, setup, ck_setup_at(&workload, devices, placement), .options.seed = seed);
  ck_training_open(t, &setup);
}

/* ---- the way there and back ---- */

CK_LOOP(models_travel, CK_PLACEMENTS *MAKERS) {
  struct ck_training from, to;
  const int placement = _i % CK_PLACEMENTS;
  const bool comma = _i % 2 == 1 && ck_locale_comma();
  open_model(&from, makers[_i / CK_PLACEMENTS], "cpu:3", placement, 1);
  if (!ck_no_files(ek_model_to_folder(from.model, folder, NULL))) {
    open_model(&to, make_read, "cpu:2", (placement + 2) % CK_PLACEMENTS, 2);
    ck_ok(ek_weights_load(to.model, folder, NULL));
    ck_runs_agree(&to, &from, CK_VALUES, 0);
    /* The folder of the model that was read is the same again. */
    ck_ok(ek_model_to_folder(to.model, folder, NULL));
    ck_ok(ek_weights_load(from.model, folder, NULL));
    ck_runs_agree(&to, &from, CK_VALUES, 0);
  }
  if (comma) ck_locale_end();
}

static ek_module *read_module(const ek_model_folder_options *options) {
  CK_GOT(ek_module *, module, ek_model_from_folder(&module, folder, options));
  return module;
}

/* A module with its loss has the same parameters, and its folder is the model's. */
CK_TEST(a_fused_loss_is_the_programs_choice) {
  CK_SET_UP(struct ck_training, from, open_model(&from, make_qwen, "cpu:2", 2, 1));
  if (ck_no_files(ek_model_to_folder(from.model, folder, NULL))) return;
  ek_data_parallel_model *model = NULL;
  float there[VOCABULARY * WIDTH], back[VOCABULARY * WIDTH];
  CK_SCOPED(ek_module *, module, make_fused(&module));
  ck_assert_uint_eq(ek_module_targets(module), 1);
  ck_ok(ek_data_parallel_model_open(&model, from.group, module, NULL));
  ck_ok(ek_weights_load(model, folder, NULL));
  ck_ok(ek_model_to_folder(model, folder, NULL));
  CK_GOT(ek_tensor, host, ek_tensor_host(&host, back, EK_F32, CK_SHAPE(VOCABULARY, WIDTH)));
  ck_ok(ek_state_read(&host, model, "tokens.weight"));
  ck_ok(ek_tensor_host(&host, there, EK_F32, CK_SHAPE(VOCABULARY, WIDTH)));
  ck_ok(ek_state_read(&host, from.model, "tokens.weight"));
  ck_assert_int_eq(memcmp(there, back, sizeof there), 0);
  ek_data_parallel_model_free(model);
}

/* ---- many files ---- */

/* Every second tensor of model.safetensors into another file. */
static void write_half(const ek_safetensors *from, const char *name, size_t first) {
  enum { MOST = 64 };
  ek_safetensors_entry entries[MOST];
  size_t count = 0;
  for (size_t i = first; i < ek_safetensors_count(from); i += 2) {
    ck_assert_uint_lt(count, MOST);
    entries[count++] = *ek_safetensors_at(from, i);
  }
  CK_SCOPED(ek_safetensors_writer *, writer,
            ek_safetensors_create(&writer, in_folder(name), entries, count, NULL, 0));
  for (size_t i = 0; i < count; i++) {
    ek_tensor host = entries[i].like;
    host.data = ck_array(1, ek_tensor_bytes(&host));
    ck_ok(ek_safetensors_read(&host, from, entries[i].name));
    ck_ok(ek_safetensors_write(writer, i, host.data, ek_tensor_bytes(&host)));
  }
  ck_ok(ek_safetensors_finish(writer));
}

static const char two_files[] =
    "{\"metadata\": {\"total_size\": 1},\n \"weight_map\": {\"x\": \"a.safetensors\",\n"
    "  \"y\": \"b.safetensors\", \"z\": \"a.safetensors\"}}";

static void split(void) {
  CK_GOT(ek_safetensors *, file, ek_safetensors_open(&file, in_folder("model.safetensors")));
  write_half(file, "a.safetensors", 0);
  write_half(file, "b.safetensors", 1);
  ck_assert_int_eq(symlink("a.safetensors", in_folder("a again.safetensors")), 0);
  ek_safetensors_free(file);
  write_file("model.safetensors.index.json", two_files);
  ck_assert_int_eq(unlink(in_folder("model.safetensors")), 0);
}

static const struct {
  const char *text, *word;
  ek_status status;
} indexes[] = {
    {"", "byte 0", EK_ERR_CORRUPT},
    {"{\"weight_map\": {\"x\": \"a.safetensors\"}", "invalid JSON", EK_ERR_CORRUPT},
    {"{\"weight_map\": {\"x\": \"a.safetensors\"}} 1", "invalid JSON", EK_ERR_CORRUPT},
    {"{\"weight_map\": {\"x\": 1}}", "invalid JSON", EK_ERR_CORRUPT},
    {"{\"weight_map\": [\"a.safetensors\"]}", "invalid JSON", EK_ERR_CORRUPT},
    {"{\"weight_map\": {}}", "names no file", EK_ERR_CORRUPT},
    {"{\"metadata\": {}}", "names no file", EK_ERR_CORRUPT},
    {"{\"weight_map\": {\"x\": \"\"}}", "has \"\", expected the name", EK_ERR_CORRUPT},
    {"{\"weight_map\": {\"x\": \"..\"}}", "has \"..\"", EK_ERR_CORRUPT},
    {"{\"weight_map\": {\"x\": \"../a.safetensors\"}}", "../a.safetensors", EK_ERR_CORRUPT},
    {"{\"weight_map\": {\"x\": \"/etc/passwd\"}}", "/etc/passwd", EK_ERR_CORRUPT},
    {"{\"weight_map\": {\"x\": \"c.safetensors\"}}", "c.safetensors", EK_ERR_NOT_FOUND},
    {"{\"weight_map\": {\"x\": \"config.json\"}}", "config.json", EK_ERR_CORRUPT},
    {"{\"weight_map\": {\"x\": \"a.safetensors\"}}", "has no ", EK_ERR_MISMATCH},
    {"{\"weight_map\": {\"x\": \"a.safetensors\", \"y\": \"b.safetensors\",\n"
     "  \"z\": \"a again.safetensors\"}}",
     "two of its files have ", EK_ERR_CORRUPT}};

CK_TEST(many_files_are_one) {
  struct ck_training from, to;
  open_model(&from, make_llama, "cpu:2", 3, 1);
  open_model(&to, make_llama, "cpu:3", 1, 2);
  if (ck_no_files(ek_model_to_folder(from.model, folder, NULL))) return;
  split();
  struct ck_state before = ck_state_take(to.model);
  for (size_t i = 0; i < sizeof indexes / sizeof *indexes; i++) {
    write_file("model.safetensors.index.json", indexes[i].text);
    ck_fails(ek_weights_load(to.model, folder, NULL), indexes[i].status, indexes[i].word);
  }
  ck_state_is("after refused indexes", to.model, &before);
  ck_fails(ek_model_to_folder(to.model, folder, NULL), EK_ERR_STATE, "index.json of another model");
  write_file("model.safetensors.index.json", two_files);
  ck_ok(ek_weights_load(to.model, folder, NULL));
  ck_runs_agree(&to, &from, CK_VALUES, 0);
}

/* ---- configurations ---- */

#define LLAMA(more)                                                                                \
  "{\"model_type\": \"llama\", \"vocab_size\": 7, \"max_position_embeddings\": 5,"                 \
  " \"hidden_size\": 16, \"intermediate_size\": 24, \"num_hidden_layers\": 2,"                     \
  " \"num_attention_heads\": 4" more "}"

static const struct {
  const char *text, *word; /* of the message; NULL: it is a model */
  ek_status status;
} configs[] = {
    {LLAMA(""), NULL, EK_OK},
    {LLAMA(", \"num_key_value_heads\": null, \"rope_scaling\": null"), NULL, EK_OK},
    {LLAMA(", \"head_dim\": 4, \"hidden_act\": \"silu\", \"attention_bias\": false"), NULL, EK_OK},
    {LLAMA(", \"rope_parameters\": {\"rope_theta\": 5e5, \"rope_type\": \"default\"}"), NULL,
     EK_OK},
    {LLAMA(", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}"), NULL, EK_OK},
    {"{\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_embd\": 8, \"n_head\": 2}", NULL, EK_OK},
    {"", "byte 0", EK_ERR_CORRUPT},
    {"{}", "model_type is missing, expected gpt2, llama, mistral, qwen2 or qwen3",
     EK_ERR_UNSUPPORTED},
    {"{\"model_type\": \"bloom\"}", "model_type is \"bloom\"", EK_ERR_UNSUPPORTED},
    {"{\"model_type\": 2}", "model_type is 2", EK_ERR_UNSUPPORTED},
    {"{\"model_type\": \"llama\"}", "has no vocab_size, expected a number", EK_ERR_CORRUPT},
    {"{\"model_type\": \"gpt2\", \"n_layer\": \"12\"}", "n_layer is \"12\"", EK_ERR_CORRUPT},
    {"{\"model_type\": \"gpt2\", \"n_layer\": 0}", "n_layer is 0", EK_ERR_CORRUPT},
    {"{\"model_type\": \"gpt2\", \"n_layer\": 1.5}", "expected a whole number", EK_ERR_CORRUPT},
    {"{\"model_type\": \"gpt2\", \"n_layer\": 2e9}", "from 1 to 10000", EK_ERR_CORRUPT},
    {"{\"model_type\": \"gpt2\", \"n_embd\": 1e300}", "from 1 to 2147483647", EK_ERR_CORRUPT},
    {"{\"model_type\": \"gpt2\", \"n_head\": 7}", "not a multiple of 7", EK_ERR_INVALID_ARGUMENT},
    {"{\"model_type\": \"gpt2\", \"n_inner\": 7}", "n_inner is 7", EK_ERR_INVALID_ARGUMENT},
    {"{\"model_type\": \"gpt2\", \"tie_word_embeddings\": 1}", "expected true", EK_ERR_CORRUPT},
    {LLAMA(", \"head_dim\": 8"), NULL, EK_OK},
    {LLAMA(", \"head_dim\": 7"), "head_width is 7, expected an even", EK_ERR_INVALID_ARGUMENT},
    {LLAMA(", \"mlp_bias\": true"), "mlp_bias is true", EK_ERR_INVALID_ARGUMENT},
    {LLAMA(", \"num_key_value_heads\": 3"), "3", EK_ERR_INVALID_ARGUMENT},
    {LLAMA(", \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2}"),
     "rope_type is \"yarn\", expected \"default\", \"linear\" or \"llama3\"", EK_ERR_UNSUPPORTED},
    {LLAMA(", \"rope_scaling\": {\"factor\": 2}"), "has no rope_scaling.rope_type", EK_ERR_CORRUPT},
    {LLAMA(", \"rope_scaling\": {\"rope_type\": \"linear\"}"), "has no rope_scaling.factor",
     EK_ERR_CORRUPT},
    {LLAMA(", \"rope_scaling\": {\"rope_type\": \"default\", \"rope_type\": \"linear\", "
           "\"factor\": -2}"),
     "factor is -2", EK_ERR_CORRUPT},
};

CK_TEST(configurations_are_models_or_refused) {
  ck_assert_int_eq(mkdir(folder, 0700), 0);
  ek_module *module = NULL;
  ck_fails(ek_model_from_folder(NULL, folder, NULL), EK_ERR_INVALID_ARGUMENT, "module is NULL");
  ck_fails(ek_model_from_folder(&module, NULL, NULL), EK_ERR_INVALID_ARGUMENT, "folder is NULL");
  ck_fails(ek_model_from_folder(&module, folder, NULL), EK_ERR_NOT_FOUND, "config.json");
  for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
    write_file("config.json", configs[i].text);
    if (configs[i].status == EK_OK) {
      ek_module_free(read_module(NULL));
      continue;
    }
    ck_fails(ek_model_from_folder(&module, folder, NULL), configs[i].status, configs[i].word);
    ck_assert_ptr_null(module);
  }
}

static double fact_of(const ek_module *module, const char *key) {
  size_t count = 0;
  const ek_fact *facts = ek_module_table(module)->facts(module, &count);
  for (size_t i = 0; i < count; i++) {
    if (strcmp(facts[i].key, key) == 0) return facts[i].number;
  }
  return -1;
}

/* A window hides keys from rows that are longer than it, so there are no such rows. */
CK_TEST(a_sliding_window_bounds_the_sequence) {
  ck_assert_int_eq(mkdir(folder, 0700), 0);
  for (int window = 3; window < 8; window += 4) {
    const char *text =
        ck_text("{\"model_type\": \"mistral\", \"vocab_size\": 7, \"hidden_size\": 16,"
                " \"max_position_embeddings\": 5, \"intermediate_size\": 24,"
                " \"num_hidden_layers\": 1, \"num_attention_heads\": 4,"
                " \"num_key_value_heads\": 2, \"sliding_window\": %d}",
                window);
    write_file("config.json", text);
    ek_module *module = read_module(NULL);
    ck_assert(fact_of(module, "max_position_embeddings") == (window < 5 ? window : 5));
    ek_module_free(module);
  }
}

/* Weights of a model with a window are not those of a model for longer rows. */
CK_TEST(a_sliding_window_bounds_what_takes_its_weights) {
  CK_SET_UP(struct ck_training, t, open_model(&t, make_llama, "cpu:1", 1, 1));
  if (ck_no_files(ek_model_to_folder(t.model, folder, NULL))) return;
  for (int window = SEQUENCE - 1; window <= SEQUENCE; window++) {
    write_file("config.json", ck_text("{\"model_type\": \"mistral\", \"sliding_window\": %d}",
                                      window));
    if (window >= SEQUENCE) {
      ck_ok(ek_weights_load(t.model, folder, NULL));
    } else {
      ck_invalid(ek_weights_load(t.model, folder, NULL),
                 "sliding_window is 4, but the model has up to 5");
    }
  }
}

/* ---- models of a program's own ---- */

CK_TEST(a_model_without_names_has_no_folder) {
  const struct ck_setup setup = ck_setup_mode(ck_workload("mlp"), "cpu:2", EK_MODE_REPLICATED);
  struct ck_training t = ck_training_opened(&setup);
  ck_fails(ek_model_to_folder(NULL, folder, NULL), EK_ERR_INVALID_ARGUMENT, "model is NULL");
  ck_fails(ek_model_to_folder(t.model, NULL, NULL), EK_ERR_INVALID_ARGUMENT, "folder is NULL");
  ck_fails(ek_model_to_folder(t.model, folder, NULL), EK_ERR_UNSUPPORTED, "weight_names");
}

static const ek_weight_name shared[] = {
    {"up.%d", "blocks.%d.expand.weight", false, false, NULL},
    {"down.%d", "blocks.%d.expand.weight", false, false, NULL},
};
static const ek_weight_name by_fact[] = {
    {"q.%d", "blocks.%d.attention.qkv.weight", false, false, "n_head"},
    {"kv.%d", "blocks.%d.attention.qkv.weight", false, false, "n_layer"},
};
static const ek_weight_name unknown[] = {
    {"q.%d", "blocks.%d.attention.qkv.weight", false, false, "n_heads"},
    {"kv.%d", "blocks.%d.attention.qkv.weight", false, false, NULL},
};
static const ek_weight_name uneven[] = {
    {"a", "tokens.weight", false, false, NULL},
    {"b", "tokens.weight", false, false, NULL},
};
static const ek_weight_name turned[] = {
    {"a", "tokens.weight", true, false, NULL},
    {"b", "tokens.weight", false, false, NULL},
};

/* Several tensors of a file are one of the model: 4 to 2 by heads and layers, and half and half. */
CK_TEST(tensors_are_made_of_several) {
  struct ck_training from, to;
  ek_safetensors *file = NULL;
  CK_WITH(ek_weights_options, options, EK_WEIGHTS_OPTIONS_INIT, .name_count = 2);
  open_model(&from, make_gpt, "cpu:3", 4, 1);
  open_model(&to, make_gpt, "cpu:1", 0, 2);
  options.names = by_fact;
  ck_assert_int_eq(mkdir(folder, 0700), 0);
  const char *path = in_folder("a.safetensors");
  if (!ck_no_files(ek_weights_save(from.model, path, &options))) {
    ck_ok(ek_safetensors_open(&file, path));
    const ek_safetensors_entry *q = ek_safetensors_find(file, "q.1");
    const ek_safetensors_entry *kv = ek_safetensors_find(file, "kv.1");
    ck_assert(q != NULL && q->like.shape[0] == 32 && q->like.shape[1] == WIDTH);
    ck_assert(kv != NULL && kv->like.shape[0] == 16 && kv->like.shape[1] == WIDTH);
    float rows[48 * WIDTH], part[16 * WIDTH];
    CK_GOT(ek_tensor, host, ek_tensor_host(&host, rows, EK_F32, CK_SHAPE(48, WIDTH)));
    ck_ok(ek_state_read(&host, from.model, "blocks.1.attention.qkv.weight"));
    ck_ok(ek_tensor_host(&host, part, EK_F32, CK_SHAPE(16, WIDTH)));
    ck_ok(ek_safetensors_read(&host, file, "kv.1"));
    ck_assert_int_eq(memcmp(part, rows + 32 * WIDTH, sizeof part), 0);
    ek_safetensors_free(file);
    ck_ok(ek_weights_load(to.model, path, &options));
    ck_runs_agree(&to, &from, CK_VALUES, 0);
    options.names = shared;
    ck_fails(ek_weights_load(to.model, path, &options), EK_ERR_MISMATCH, "has no blocks.0");
    ck_ok(ek_weights_save(from.model, path, &options));
    ck_ok(ek_weights_load(to.model, path, &options));
    ck_runs_agree(&to, &from, CK_VALUES, 0);
  }
  options.names = unknown;
  ck_fails(ek_weights_save(from.model, path, &options), EK_ERR_INVALID_ARGUMENT, "by n_heads, but");
  options.names = uneven;
  ck_fails(ek_weights_save(from.model, path, &options), EK_ERR_MISMATCH,
           "tokens.weight has 7 rows");
  options.names = turned;
  ck_fails(ek_weights_save(from.model, path, &options), EK_ERR_INVALID_ARGUMENT, "is transposed");
}

/* ---- failures ---- */

CK_LOOP(every_allocation_fails_once, 3) {
  CK_SET_UP(struct ck_training, t, open_model(&t, make_qwen, "cpu:2", 4, 1));
  if (ck_no_files(ek_model_to_folder(t.model, folder, NULL))) return;
  if (_i == 1) split();
  struct ck_state before = ck_state_take(t.model);
  ek_module *module = NULL;
  uint64_t n = 0;
  while (ck_host_fails(&n, _i == 0   ? ek_model_from_folder(&module, folder, NULL)
                           : _i == 1 ? ek_weights_load(t.model, folder, NULL)
                                     : ek_model_to_folder(t.model, folder, NULL))) {
    ck_assert_ptr_null(module);
  }
  ck_keep(module);
  ck_ok(ek_weights_load(t.model, folder, NULL));
  ck_state_is("after failures", t.model, &before);
}

/* A file in place of the folder, and one that has become shorter. */
CK_TEST(folders_that_are_none) {
  CK_SET_UP(struct ck_training, t, open_model(&t, make_llama, "cpu:2", 2, 1));
  if (ck_no_files(ek_model_to_folder(t.model, folder, NULL))) return;
  struct ck_state before = ck_state_take(t.model);
  ck_fails(ek_model_to_folder(t.model, in_folder("config.json"), NULL), EK_ERR_IO, "config.json");
  ck_fails(ek_model_to_folder(t.model, in_folder("no/folder"), NULL), EK_ERR_NOT_FOUND,
           "no/folder");
  ck_fails(ek_weights_load(t.model, in_folder("config.json"), NULL), EK_ERR_CORRUPT, "");
  ck_assert_int_eq(truncate(in_folder("model.safetensors"), 4000), 0);
  ck_fails(ek_weights_load(t.model, folder, NULL), EK_ERR_CORRUPT, "model.safetensors");
  ck_state_is("after refused folders", t.model, &before);
}

CK_SUITE_WITH("model folder", make_parent, remove_parent)
