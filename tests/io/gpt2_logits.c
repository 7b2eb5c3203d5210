/*
 * gpt2_logits.c FOLDER tied|untied PREFIX: loads FOLDER/model.safetensors, a small GPT-2 of the
 * package transformers, over three devices, reads FOLDER/tokens, writes its logits into
 * FOLDER/logits, and its weights into FOLDER/back.safetensors: for gpt2_logits.py, which made the
 * one and compares the other.
 */
#include <stdio.h>
#include <string.h>

#include <evenkeel/evenkeel.h>

enum { SAMPLES = 5, TOKENS = 32, VOCABULARY = 101, PATH = 512 };

static int32_t tokens[SAMPLES * TOKENS];
static float logits[SAMPLES * TOKENS * VOCABULARY];

static ek_status open_trainer(ek_trainer **trainer, bool untied) {
  ek_gpt_options o = EK_GPT_OPTIONS_INIT;
  ek_module *gpt = NULL;
  ek_criterion *loss = NULL;
  ek_optimizer *rule = NULL;
  ek_status status = EK_OK;
  o.vocabulary = VOCABULARY;
  o.sequence = TOKENS;
  o.width = 48;
  o.layers = 3;
  o.heads = 4;
  o.untied = untied;
  EK_TRY_GOTO(status, ek_gpt_create(&gpt, &o), cleanup);
  EK_TRY_GOTO(status, ek_cross_entropy_create(&loss, NULL), cleanup);
  EK_TRY_GOTO(status, ek_adamw_create(&rule, NULL), cleanup);
  status = ek_trainer_open(trainer, "cpu:3", gpt, loss, rule, NULL);
cleanup:
  ek_optimizer_free(rule);
  ek_criterion_free(loss);
  ek_module_free(gpt);
  return status;
}

static ek_status predict(ek_trainer *trainer) {
  const int64_t in_shape[] = {SAMPLES, TOKENS}, out_shape[] = {SAMPLES, TOKENS, VOCABULARY};
  ek_tensor in, out;
  ek_shards outputs = {0};
  EK_TRY(ek_tensor_host(&in, tokens, EK_I32, 2, in_shape));
  EK_TRY(ek_tensor_host(&out, logits, EK_F32, 3, out_shape));
  EK_TRY(ek_trainer_predict(&outputs, trainer, &in, 1));
  const ek_status status = ek_gather_host(&out, &outputs);
  ek_shards_free(&outputs);
  return status;
}

static ek_status run(ek_trainer *trainer, const char *folder, const char *prefix) {
  ek_weights_options options = EK_WEIGHTS_OPTIONS_INIT;
  char path[PATH];
  options.names = ek_gpt_hugging_face(&options.name_count);
  options.prefix = prefix;
  (void)snprintf(path, sizeof path, "%s/model.safetensors", folder);
  EK_TRY(ek_weights_load(ek_trainer_model(trainer), path, &options));
  EK_TRY(predict(trainer));
  (void)snprintf(path, sizeof path, "%s/back.safetensors", folder);
  return ek_weights_save(ek_trainer_model(trainer), path, &options);
}

/* All of the array, out of a file or into one. */
static int move(const char *folder, const char *name, const char *mode, void *data, size_t bytes) {
  char path[PATH];
  (void)snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, mode);
  if (file == NULL) return 0;
  const size_t done = mode[0] == 'r' ? fread(data, 1, bytes, file) : fwrite(data, 1, bytes, file);
  return fclose(file) == 0 && done == bytes;
}

int main(int argc, char **argv) {
  ek_trainer *trainer = NULL;
  if (argc != 4 || !move(argv[1], "tokens", "rb", tokens, sizeof tokens)) return 2;
  ek_status status = open_trainer(&trainer, strcmp(argv[2], "untied") == 0);
  if (status == EK_OK) status = run(trainer, argv[1], argv[3]);
  if (status != EK_OK) fprintf(stderr, "%s: %s\n", ek_status_name(status), ek_error_message());
  ek_trainer_free(trainer);
  if (status == EK_ERR_UNSUPPORTED) return 77;
  return status == EK_OK && move(argv[1], "logits", "wb", logits, sizeof logits) ? 0 : 1;
}
