/*
 * small_model.c FOLDER TOKENS: a folder with a small Llama, and a file of tokens with a rhythm that
 * it can learn, for check_fine_tune.sh.
 */
#include "program.h"

enum { COUNT = 4001, VOCABULARY = 32 };

int main(int argc, char **argv) {
  ek_llama_options options = EK_LLAMA_OPTIONS_INIT;
  ek_module *module = NULL;
  ek_group *group = NULL;
  ek_data_parallel_model *model = NULL;
  uint16_t tokens[COUNT];
  if (argc != 3) return 2;
  options.vocabulary = VOCABULARY;
  options.sequence = 16;
  options.width = 32;
  options.hidden = 64;
  options.layers = 2;
  options.heads = 4;
  options.kv_heads = 2;
  OK(ek_llama_create(&module, &options));
  OK(ek_group_open(&group, "cpu:1", NULL));
  OK(ek_data_parallel_model_open(&model, group, module, NULL));
  OK(ek_model_to_folder(model, argv[1], NULL));
  ek_data_parallel_model_free(model);
  OK(ek_group_close(group));
  ek_module_free(module);
  for (int i = 0; i < COUNT; i++) tokens[i] = (uint16_t)(i * i % VOCABULARY);
  FILE *file = fopen(argv[2], "wb");
  REQUIRE(file != NULL);
  move(file, false, tokens, sizeof tokens);
  REQUIRE(fclose(file) == 0);
  return 0;
}
