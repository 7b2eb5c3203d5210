/*
 * small_model.c FOLDER TOKENS: a folder with a small Llama, and a file of tokens with a rhythm that
 * it can learn, for check_fine_tune.sh.
 */
#include <stdint.h>
#include <stdio.h>

#include <evenkeel/evenkeel.h>

enum { COUNT = 4001, VOCABULARY = 32 };

static ek_status write_folder(const char *folder) {
  ek_llama_options options = EK_LLAMA_OPTIONS_INIT;
  ek_module *module = NULL;
  ek_group *group = NULL;
  ek_data_parallel_model *model = NULL;
  ek_status status = EK_OK;
  options.vocabulary = VOCABULARY;
  options.sequence = 16;
  options.width = 32;
  options.hidden = 64;
  options.layers = 2;
  options.heads = 4;
  options.kv_heads = 2;
  EK_TRY_GOTO(status, ek_llama_create(&module, &options), cleanup);
  EK_TRY_GOTO(status, ek_group_open(&group, "cpu:1", NULL), cleanup);
  EK_TRY_GOTO(status, ek_data_parallel_model_open(&model, group, module, NULL), cleanup);
  status = ek_model_to_folder(model, folder, NULL);
cleanup:
  ek_data_parallel_model_free(model);
  if (ek_group_close(group) != EK_OK && status == EK_OK) status = EK_ERR_STATE;
  ek_module_free(module);
  return status;
}

int main(int argc, char **argv) {
  uint16_t tokens[COUNT];
  if (argc != 3) return 2;
  const ek_status status = write_folder(argv[1]);
  if (status == EK_ERR_UNSUPPORTED) return 77; /* built without xxHash */
  if (status != EK_OK) {
    fprintf(stderr, "small_model: %s\n", ek_error_message());
    return 1;
  }
  for (int i = 0; i < COUNT; i++) tokens[i] = (uint16_t)(i * i % VOCABULARY);
  FILE *file = fopen(argv[2], "wb");
  const size_t written = file == NULL ? 0 : fwrite(tokens, sizeof *tokens, COUNT, file);
  return file != NULL && fclose(file) == 0 && written == COUNT ? 0 : 1;
}
