/*
 * fine_tune.c FOLDER TOKENS OUT DEVICES SEQUENCE BATCH STEPS: trains a model of the package
 * transformers (GPT-2, Llama, Mistral, Qwen2) on files of tokens, and writes it as another folder:
 *
 *     fine_tune llama-3.2-1b 'notes-*.bin' tuned cuda 1024 16 300
 *
 * TOKENS are files as llm.c and nanoGPT have them (tokens.h). States go to OUT as well, so that a
 * run that was interrupted goes on when it is started again.
 */
#include <stdio.h>
#include <stdlib.h>

#include <evenkeel/evenkeel.h>

static bool show(void *context, const ek_run_event *event) {
  char line[160];
  (void)context;
  printf("%s\n", ek_run_line(line, sizeof line, event));
  return true;
}

static ek_status fine_tune(char **argv) {
  ek_model_folder_options model = EK_MODEL_FOLDER_OPTIONS_INIT;
  ek_adamw_options adamw = EK_ADAMW_OPTIONS_INIT;
  ek_tokens_options reading = EK_TOKENS_OPTIONS_INIT;
  ek_trainer_run_options run = EK_TRAINER_RUN_OPTIONS_INIT;
  ek_module *module = NULL;
  ek_optimizer *rule = NULL;
  ek_trainer *trainer = NULL;
  ek_source *text = NULL;
  ek_status status;
  model.fused_loss = true;
  adamw.learning_rate = 1e-4;
  adamw.clip_norm = 1;
  reading.sequence = atoll(argv[5]);
  run.batch = atoll(argv[6]);
  run.folder = argv[3];
  run.save_every = 100;
  run.report = show;
  EK_TRY_GOTO(status, ek_model_from_folder(&module, argv[1], &model), cleanup);
  EK_TRY_GOTO(status, ek_adamw_create(&rule, &adamw), cleanup);
  EK_TRY_GOTO(status, ek_trainer_open(&trainer, argv[4], module, NULL, rule, NULL), cleanup);
  EK_TRY_GOTO(status, ek_weights_load(ek_trainer_model(trainer), argv[1], NULL), cleanup);
  EK_TRY_GOTO(status, ek_tokens_open(&text, argv[2], &reading), cleanup);
  EK_TRY_GOTO(status, ek_trainer_run(NULL, trainer, text, atoll(argv[7]), &run), cleanup);
  status = ek_model_to_folder(ek_trainer_model(trainer), argv[3], NULL);
cleanup:
  ek_source_free(text);
  ek_trainer_free(trainer);
  ek_optimizer_free(rule);
  ek_module_free(module);
  return status;
}

int main(int argc, char **argv) {
  static const char usage[] = "expected FOLDER TOKENS OUT DEVICES SEQUENCE BATCH STEPS";
  const ek_status status = argc == 8 ? fine_tune(argv) : EK_ERR_INVALID_ARGUMENT;
  if (status != EK_OK) fprintf(stderr, "fine_tune: %s\n", argc == 8 ? ek_error_message() : usage);
  return status == EK_OK ? 0 : 1;
}
