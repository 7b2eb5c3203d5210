/*
 * check_weights.c - a model's weights in a file: its own names or another program's, transposed
 * where that one has them so; and nothing changes where the file does not fit.
 */
#include "ck_folder.h"
#include "ck_gpt.h"
#include "ck_locale.h"
#include "ck_state.h"
#include "ck_training.h"

#include <unistd.h>

#include <sys/stat.h>

static const char *folder, *path, *config;

static void make_folder(void) {
  folder = ck_folder();
  path = ck_file(folder, "weights");
  config = ck_file(folder, "config.json");
}

static void open_gpt(struct ck_training *t, int placement, uint64_t seed) {
  struct ck_setup setup = ck_setup_at(ck_workload("gpt"), "cpu:3", placement);
  setup.options.seed = seed;
  ck_training_open(t, &setup);
}

static ek_weights_options hugging_face(const char *prefix) {
  ek_weights_options options = EK_WEIGHTS_OPTIONS_INIT;
  ck_assign(options, .names = ek_gpt_hugging_face(&options.name_count), .prefix = prefix);
  return options;
}

/* Left out where the library was built without files. */
static bool no_files(const struct ck_training *t) {
  return ck_no_files(ek_weights_save(t->model, path, NULL));
}

CK_LOOP(weights_travel, CK_PLACEMENTS) {
  static const char *const prefixes[] = {NULL, "", "transformer."};
  struct ck_training from, to;
  const ek_weights_options options = hugging_face(prefixes[_i % 3]);
  open_gpt(&from, _i % CK_PLACEMENTS, 1);
  open_gpt(&to, (_i + 2) % CK_PLACEMENTS, 2);
  if (no_files(&from)) return;
  /* What Python's packages ask for. */
  CK_GOT(ek_safetensors *, file, ek_safetensors_open(&file, path));
  ck_assert_ptr_nonnull(ek_safetensors_value(file, "format"));
  ck_assert_str_eq(ek_safetensors_value(file, "format"), "pt");
  ek_safetensors_free(file);
  ck_ok(ek_weights_load(to.model, path, NULL));
  ck_runs_agree(&to, &from, CK_VALUES, 0);
  ck_training_close(&to);
  open_gpt(&to, (_i + 2) % CK_PLACEMENTS, 3);
  ck_ok(ek_weights_save(from.model, path, &options));
  ck_ok(ek_weights_load(to.model, path, &options));
  ck_runs_agree(&to, &from, CK_VALUES, 0);
}

/* What the file has is what the other program's layout says. */
CK_TEST(names_and_layout_are_theirs) {
  const ek_weights_options options = hugging_face("transformer.");
  ek_safetensors *file = NULL;
  CK_SET_UP(struct ck_training, t, open_gpt(&t, 3, 1));
  if (no_files(&t)) return;
  ck_ok(ek_weights_save(t.model, path, &options));
  ck_ok(ek_safetensors_open(&file, path));
  const ek_safetensors_entry *entry =
      ek_safetensors_find(file, "transformer.h.1.attn.c_attn.weight");
  ck_assert_ptr_nonnull(entry);
  ck_assert_int_eq(entry->like.shape[0], 8);
  ck_assert_int_eq(entry->like.shape[1], 24);
  float theirs[8 * 24], ours[24 * 8];
  CK_WITH(ek_tensor, host, entry->like, .data = theirs);
  ck_ok(ek_safetensors_read(&host, file, entry->name));
  host = ck_like(&t, "blocks.1.attention.qkv.weight");
  host.data = ours;
  ck_ok(ek_state_read(&host, t.model, "blocks.1.attention.qkv.weight"));
  for (int i = 0; i < 8; i++) {
    for (int j = 0; j < 24; j++) ck_assert(theirs[i * 24 + j] == ours[j * 8 + i]);
  }
  for (size_t i = 0; i < ek_safetensors_count(file); i++) {
    ck_assert(strncmp(ek_safetensors_at(file, i)->name, "transformer.", 12) == 0);
    ck_assert_ptr_null(strstr(ek_safetensors_at(file, i)->name, "blocks"));
  }
  ek_safetensors_free(file);
  /* A file without the prefix is taken as well. */
  const ek_weights_options bare = hugging_face(NULL);
  ck_ok(ek_weights_save(t.model, path, &bare));
  ck_ok(ek_weights_load(t.model, path, &options));
}

/* The Python packages refuse a file whose header does not say `format`. */
CK_TEST(the_header_says_the_format) {
  CK_SET_UP(struct ck_training, t, open_gpt(&t, 3, 1));
  if (no_files(&t)) return;
  size_t size = 0;
  const char *header = ck_read_file(&size, path);
  ck_assert_ptr_nonnull(header);
  ck_assert_uint_gt(size, 8);
  ck_assert_ptr_nonnull(strstr(header + 8, "\"format\":\"pt\"")); /* after its length */
}

CK_TEST(what_does_not_fit_changes_nothing) {
  const ek_weights_options options = hugging_face(NULL);
  const struct ck_setup mlp = ck_setup_mode(ck_workload("mlp"), "cpu:2", EK_MODE_SHARDED);
  CK_SET_UP(struct ck_training, t, open_gpt(&t, 1, 1));
  struct ck_training other = ck_training_opened(&mlp);
  if (no_files(&other)) return;
  struct ck_state before = ck_state_take(t.model);
  const ek_weights_options no_names = {sizeof no_names, NULL, 3, NULL, false};
  ck_fails(ek_weights_load(t.model, path, NULL), EK_ERR_MISMATCH, "has no tokens.weight");
  ck_fails(ek_weights_load(t.model, path, &options), EK_ERR_MISMATCH, "has no wte.weight, which");
  const ek_weight_name unnamed = {.file = NULL, .model = "tokens.weight"};
  const ek_weights_options one_name = {sizeof one_name, &unnamed, 1, NULL, false};
  ck_invalid(ek_weights_load(t.model, path, &no_names), "names is NULL");
  ck_invalid(ek_weights_load(t.model, path, &one_name), "row 0 of names has NULL");
  ck_invalid(ek_weights_load(t.model, NULL, NULL), "path is NULL");
  ck_fails(ek_weights_load(t.model, folder, NULL), EK_ERR_NOT_FOUND, "it has neither");
  const ek_safetensors_entry entry = {"wte.weight", {.type = EK_F32, .rank = 1, .shape = {0}}};
  ek_safetensors_writer *writer = NULL;
  ck_ok(ek_safetensors_create(&writer, path, &entry, 1, NULL, 0));
  ck_ok(ek_safetensors_finish(writer));
  ek_safetensors_writer_free(writer);
  ck_fails(ek_weights_load(t.model, path, &options), EK_ERR_MISMATCH, "another shape");
  ck_state_is("after refused files", t.model, &before);
}

/* ---- an untied head ---- */

enum { VOCABULARY = 7, SEQUENCE = 5, WIDTH = 8, LAYERS = 2, HEADS = 2, MOST_ROWS = 32 };

static ek_status make_gpt(ek_module **module, bool untied) {
  ek_gpt_options options = ck_gpt_sizes(VOCABULARY, SEQUENCE, WIDTH, LAYERS, HEADS);
  options.untied = untied;
  return ek_gpt_create(module, &options);
}
static ek_status make_tied(ek_module **module) { return make_gpt(module, false); }
static ek_status make_untied(ek_module **module) { return make_gpt(module, true); }

static void open_own(struct ck_training *t, ek_status (*make)(ek_module **module), uint64_t seed) {
  CK_WITH(struct ck_workload, workload, *ck_workload("gpt"), .module = make);
  struct ck_setup setup = ck_setup_mode(&workload, "cpu:2", EK_MODE_REPLICATED);
  setup.options.seed = seed;
  ck_training_open(t, &setup);
}

/* The head of an untied model is not left out in silence, by any table of names. A file where it
 * has the numbers of the table of tokens is that of a tied model. */
CK_TEST(a_tied_model_takes_no_other_head) {
  struct ck_training from, to;
  float table[VOCABULARY * WIDTH], loaded[VOCABULARY * WIDTH];
  const ek_weights_options theirs = hugging_face("transformer.");
  const ek_weights_options *const both[] = {NULL, &theirs};
  open_own(&from, make_untied, 1);
  open_own(&to, make_tied, 2);
  if (no_files(&from)) return;
  struct ck_state before = ck_state_take(to.model);
  CK_WITH(ek_tensor, host, ck_like(&from, "tokens.weight"), .data = table);
  ck_ok(ek_state_read(&host, from.model, "tokens.weight"));
  for (size_t i = 0; i < 2; i++) {
    ck_ok(ek_weights_save(from.model, path, both[i]));
    ck_fails(ek_weights_load(to.model, path, both[i]), EK_ERR_MISMATCH,
             i == 0 ? "head.weight and tokens.weight differ"
                    : "lm_head.weight and transformer.wte.weight differ");
  }
  ck_state_is("after refused heads", to.model, &before);
  ck_ok(ek_state_write(from.model, "head.weight", &host));
  for (size_t i = 0; i < 2; i++) {
    ck_ok(ek_weights_save(from.model, path, both[i]));
    ck_ok(ek_weights_load(to.model, path, both[i]));
  }
  host.data = loaded;
  ck_ok(ek_state_read(&host, to.model, "head.weight"));
  ck_assert_mem_eq(loaded, table, sizeof table);
}

static ek_status make_shallow(ek_module **module) {
  const ek_gpt_options options = ck_gpt_sizes(VOCABULARY, SEQUENCE, WIDTH, LAYERS - 1, HEADS);
  return ek_gpt_create(module, &options);
}

CK_TEST(a_shallow_model_takes_no_deeper_file) {
  struct ck_training deep, shallow;
  const ek_weights_options theirs = hugging_face("transformer.");
  open_own(&deep, make_tied, 1);
  open_own(&shallow, make_shallow, 2);
  if (no_files(&deep)) return;
  struct ck_state before = ck_state_take(shallow.model);
  ck_ok(ek_weights_save(deep.model, path, NULL));
  ck_fails(ek_weights_load(shallow.model, path, NULL), EK_ERR_MISMATCH, "has no blocks.1");
  ck_ok(ek_weights_save(deep.model, path, &theirs));
  ck_fails(ek_weights_load(shallow.model, path, &theirs), EK_ERR_MISMATCH,
           "it has transformer.h.1.");
  ck_state_is("after refused files", shallow.model, &before);
}

/* Whether the file has this tensor. */
static bool file_has(const char *name) {
  CK_SCOPED(ek_safetensors *, file, ek_safetensors_open(&file, path));
  const bool found = ek_safetensors_find(file, name) != NULL;
  return found;
}

/* Hugging Face's head never has the prefix; files of earlier versions of this library had it. */
CK_TEST(a_head_of_its_own_has_no_prefix) {
  struct ck_training from, to;
  ek_weights_options options = hugging_face("transformer.");
  ek_weight_name earlier[MOST_ROWS];
  ck_assert_uint_le(options.name_count, MOST_ROWS);
  memcpy(earlier, options.names, options.name_count * sizeof *earlier);
  for (size_t i = 0; i < options.name_count; i++) earlier[i].bare = false;
  open_own(&from, make_untied, 1);
  open_own(&to, make_untied, 2);
  if (no_files(&from)) return;
  ck_ok(ek_weights_save(from.model, path, &options));
  ck_assert(file_has("lm_head.weight") && !file_has("transformer.lm_head.weight"));
  ck_assert(file_has("transformer.wte.weight"));
  ck_ok(ek_weights_load(to.model, path, &options));
  ck_runs_agree(&to, &from, CK_VALUES, 0);
  ck_training_close(&to);
  open_own(&to, make_untied, 3);
  CK_WITH(ek_weights_options, before, options, .names = earlier);
  ck_ok(ek_weights_save(from.model, path, &before));
  ck_assert(file_has("transformer.lm_head.weight"));
  ck_ok(ek_weights_load(to.model, path, &options));
  ck_runs_agree(&to, &from, CK_VALUES, 0);
  char prefix[700];
  memset(prefix, 'p', sizeof prefix);
  prefix[sizeof prefix - 1] = '\0';
  options.prefix = prefix;
  ck_invalid(ek_weights_load(to.model, path, &options), "at most 600");
  ck_invalid(ek_weights_save(to.model, path, &options), "at most 600");
}

/* ---- config.json beside the file ---- */

/* What package transformers writes for this model. */
static const char agreed[] =
    "{\n  \"activation_function\": \"gelu_new\", \"architectures\": [\"GPT2LMHeadModel\"],\n"
    "  \"attn_pdrop\": 0.1, \"layer_norm_epsilon\": 1e-05, \"model_type\": \"gpt2\",\n"
    "  \"n_ctx\": 5, \"n_embd\": 8, \"n_head\": 2, \"n_inner\": null, \"n_layer\": 2,\n"
    "  \"n_positions\": 5, \"scale_attn_by_inverse_layer_idx\": false,\n"
    "  \"scale_attn_weights\": true, \"task_specific_params\": {\"a\": {\"b\": [1, {}]}},\n"
    "  \"tie_word_embeddings\": true, \"use_cache\": true, \"vocab_size\": 7\n}\n";

static const struct {
  const char *text, *word; /* of the message; NULL: it is loaded */
  ek_status status;
} configs[] = {
    {agreed, NULL, EK_OK},
    {"{}", NULL, EK_OK},
    {" {\"who\": \"another program\"} ", NULL, EK_OK},
    {"{\"activation_function\": \"gelu_pytorch_tanh\"}", NULL, EK_OK},
    {"{\"layer_norm_epsilon\": 0.00001, \"n_inner\": 32}", NULL, EK_OK},
    {"{\"layer_norm_epsilon\": 9.999999747378752e-06}", NULL, EK_OK}, /* of an f32 */
    {"{\"n_head\": 2.0, \"n_embd\": 8e0}", NULL, EK_OK},
    {"{\"activation_function\": \"gelu\"}",
     "activation_function is \"gelu\", but the model has \"gelu_new\"", EK_ERR_INVALID_ARGUMENT},
    {"{\"activation_function\": \"gelu_ne\"}", "gelu_ne", EK_ERR_INVALID_ARGUMENT},
    {"{\"activation_function\": 1}", "is 1, but", EK_ERR_INVALID_ARGUMENT},
    {"{\"activation_function\": [\"gelu_new\"]}", "is a list, but", EK_ERR_INVALID_ARGUMENT},
    {"{\"layer_norm_epsilon\": 1e-06}", "layer_norm_epsilon is 1e-06, but the model has 1e-05",
     EK_ERR_INVALID_ARGUMENT},
    {"{\"layer_norm_epsilon\": \"1e-05\"}", "layer_norm_epsilon", EK_ERR_INVALID_ARGUMENT},
    {"{\"n_head\": 4}", "n_head is 4, but the model has 2", EK_ERR_INVALID_ARGUMENT},
    {"{\"n_head\": true}", "n_head is true", EK_ERR_INVALID_ARGUMENT},
    {"{\"n_layer\": 3}", "n_layer is 3", EK_ERR_INVALID_ARGUMENT},
    {"{\"n_embd\": 9}", "n_embd is 9", EK_ERR_INVALID_ARGUMENT},
    {"{\"n_inner\": 31}", "n_inner is 31", EK_ERR_INVALID_ARGUMENT},
    {"{\"vocab_size\": 8}", "vocab_size is 8", EK_ERR_INVALID_ARGUMENT},
    {"{\"n_positions\": 6}", "n_positions is 6", EK_ERR_INVALID_ARGUMENT},
    {"{\"tie_word_embeddings\": false}", "tie_word_embeddings is false, but the model has true",
     EK_ERR_INVALID_ARGUMENT},
    {"{\"scale_attn_weights\": false}", "scale_attn_weights", EK_ERR_INVALID_ARGUMENT},
    {"{\"scale_attn_by_inverse_layer_idx\": true}", "inverse_layer_idx", EK_ERR_INVALID_ARGUMENT},
    {"{\"model_type\": \"imagegpt\"}", "model_type is \"imagegpt\"", EK_ERR_INVALID_ARGUMENT},
    {"{\"n_head\": 2, \"n_head\": 3}", "n_head is 3", EK_ERR_INVALID_ARGUMENT},
    {"", "cannot be compared", EK_ERR_CORRUPT},
    {"[]", "cannot be compared", EK_ERR_CORRUPT},
    {"{\"n_head\": 2", "cannot be compared", EK_ERR_CORRUPT},
    {"{\"n_head\": 2} 3", "cannot be compared", EK_ERR_CORRUPT},
    {"{\"n_head\": 02}", "cannot be compared", EK_ERR_CORRUPT},
    {"{\"n_head\": 0x2}", "cannot be compared", EK_ERR_CORRUPT},
    {"{\"n_head\": 1e999}", "cannot be compared", EK_ERR_CORRUPT},
    {"{\"n_head\": 2.}", "cannot be compared", EK_ERR_CORRUPT},
    {"{\"n_head\": nan}", "cannot be compared", EK_ERR_CORRUPT},
    {"{\"n_head\" 2}", "cannot be compared", EK_ERR_CORRUPT},
};
enum { CONFIGS = sizeof configs / sizeof *configs };

/* Run twice: in the locale "C", and in one whose decimal point is a comma. */
CK_LOOP(a_config_beside_it_agrees_or_nothing_is_loaded, 2) {
  const ek_weights_options options = hugging_face("transformer.");
  CK_SET_UP(struct ck_training, t, open_own(&t, make_tied, 1));
  if (no_files(&t)) return;
  ck_ok(ek_weights_save(t.model, path, &options));
  struct ck_state before = ck_state_take(t.model);
  const bool comma = _i == 1 && ck_locale_comma();
  for (size_t i = 0; i < CONFIGS; i++) {
    ck_write_file(config, configs[i].text, strlen(configs[i].text));
    const ek_status status = ek_weights_load(t.model, path, &options);
    ck_assert_msg(status == configs[i].status, "%s: %s %s", configs[i].text, ek_status_name(status),
                  ek_error_message());
    if (status == EK_OK) continue;
    ck_assert_msg(strstr(ek_error_message(), configs[i].word) != NULL &&
                      strstr(ek_error_message(), config) != NULL,
                  "%s: %s", configs[i].text, ek_error_message());
  }
  if (comma) ck_locale_end();
  ck_state_is("after refused configurations", t.model, &before);
}

/* The module of the facts is a child then. */
static void refuse_fused(ek_group *group, const ek_weights_options *options) {
  ek_gpt_options gpt = ck_gpt_sizes(VOCABULARY, SEQUENCE, WIDTH, LAYERS, HEADS);
  gpt.fused_loss = true;
  CK_SCOPED(ek_module *, module, ek_gpt_create(&module, &gpt));
  CK_SCOPED(ek_data_parallel_model *, model,
            ek_data_parallel_model_open(&model, group, module, NULL));
  ck_invalid(ek_weights_load(model, path, options), "n_head is 4");
}

/* Only where names are another program's; and a fused loss changes nothing of it. */
CK_TEST(which_loads_look_at_a_config) {
  static const char other[] = "{\"n_head\": 4}";
  const ek_weights_options options = hugging_face(NULL);
  CK_SET_UP(struct ck_training, t, open_own(&t, make_tied, 1));
  if (no_files(&t)) return;
  ck_write_file(config, other, strlen(other));
  ck_ok(ek_weights_load(t.model, path, NULL));
  ck_ok(ek_weights_save(t.model, path, &options));
  ck_invalid(ek_weights_load(t.model, path, &options), "n_head is 4");
  ck_ok(ek_weights_save(t.model, path, &options)); /* a save does not look */
  refuse_fused(t.group, &options);
  ck_write_file(config, "{\"n_head\": 2}\0", 15);
  ck_fails(ek_weights_load(t.model, path, &options), EK_ERR_CORRUPT, "byte 13");
  ck_assert_int_eq(unlink(config), 0);
  ck_assert_int_eq(mkdir(config, 0700), 0);
  ck_fails(ek_weights_load(t.model, path, &options), EK_ERR_IO, "not a regular file");
  ck_assert_int_eq(rmdir(config), 0);
  ck_ok(ek_weights_load(t.model, path, &options));
}

CK_LOOP(every_allocation_fails_once, 2) {
  const ek_weights_options options = hugging_face("transformer.");
  CK_SET_UP(struct ck_training, t, open_gpt(&t, 2, 1));
  if (no_files(&t)) return;
  ck_ok(ek_weights_save(t.model, path, &options));
  ck_write_file(config, "{\"n_head\": 2}", 13);
  struct ck_state before = ck_state_take(t.model);
  uint64_t n = 0;
  while (ck_host_fails(&n, _i == 0 ? ek_weights_save(t.model, path, &options)
                                   : ek_weights_load(t.model, path, &options))) {
  }
  ck_ok(ek_weights_load(t.model, path, &options));
  ck_state_is("after failures", t.model, &before);
}

CK_SUITE_WITH("weights", make_folder, NULL)
