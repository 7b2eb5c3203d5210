/*
 * model_folder.c FOLDER OUT DEVICES MODE: for model_folder.py, which made the folder with the
 * package transformers, and compares what is left in OUT: the logits of FOLDER/tokens, a folder
 * with the same model, the losses of ten steps of AdamW and a folder after them, and a folder after
 * one step of gradient descent at rate 1, from which the gradients follow.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <evenkeel/evenkeel.h>

enum { SAMPLES = 5, TOKENS = 32, VOCABULARY = 101, STEPS = 10, PATH = 512 };

static int32_t tokens[SAMPLES * TOKENS], targets[SAMPLES * TOKENS];
static float logits[SAMPLES * TOKENS * VOCABULARY];
static double losses[STEPS];
static const int64_t shape[] = {SAMPLES, TOKENS, VOCABULARY};
static const char *folder, *out, *devices, *mode;

static ek_status open_trainer(ek_trainer **trainer, ek_status (*make_rule)(ek_optimizer **rule)) {
  ek_data_parallel_model_options model = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  ek_trainer_options options = EK_TRAINER_OPTIONS_INIT;
  ek_mode parsed;
  ek_module *module = NULL;
  ek_criterion *loss = NULL;
  ek_optimizer *rule = NULL;
  ek_status status = EK_OK;
  options.model = &model;
  EK_TRY_GOTO(status, ek_mode_parse(&parsed, mode), cleanup);
  EK_TRY_GOTO(status, ek_data_parallel_model_options_set_mode(&model, parsed), cleanup);
  EK_TRY_GOTO(status, ek_model_from_folder(&module, folder, NULL), cleanup);
  EK_TRY_GOTO(status, ek_cross_entropy_create(&loss, NULL), cleanup);
  EK_TRY_GOTO(status, make_rule(&rule), cleanup);
  EK_TRY_GOTO(status, ek_trainer_open(trainer, devices, module, loss, rule, &options), cleanup);
  status = ek_weights_load(ek_trainer_model(*trainer), folder, NULL);
cleanup:
  ek_optimizer_free(rule);
  ek_criterion_free(loss);
  ek_module_free(module);
  return status;
}

static ek_status adamw(ek_optimizer **rule) {
  ek_adamw_options options = EK_ADAMW_OPTIONS_INIT;
  options.weight_decay = 0;
  return ek_adamw_create(rule, &options);
}

static ek_status descent(ek_optimizer **rule) {
  ek_sgd_options options = EK_SGD_OPTIONS_INIT;
  options.learning_rate = 1;
  return ek_sgd_create(rule, &options);
}

static ek_status predict(ek_trainer *trainer) {
  ek_tensor in, host;
  ek_shards outputs = {0};
  EK_TRY(ek_tensor_host(&in, tokens, EK_I32, 2, shape));
  EK_TRY(ek_tensor_host(&host, logits, EK_F32, 3, shape));
  EK_TRY(ek_trainer_predict(&outputs, trainer, &in, 1));
  const ek_status status = ek_gather_host(&host, &outputs);
  ek_shards_free(&outputs);
  return status;
}

static ek_status train(ek_trainer *trainer, int steps) {
  ek_tensor in, target;
  EK_TRY(ek_tensor_host(&in, tokens, EK_I32, 2, shape));
  EK_TRY(ek_tensor_host(&target, targets, EK_I32, 2, shape));
  for (int i = 0; i < steps; i++) {
    ek_step_result result;
    EK_TRY(ek_trainer_step(&result, trainer, &in, 1, &target, 1));
    losses[i] = result.loss;
  }
  return EK_OK;
}

static ek_status put(ek_trainer *trainer, const char *name) {
  char path[PATH];
  (void)snprintf(path, sizeof path, "%s/%s", out, name);
  return ek_model_to_folder(ek_trainer_model(trainer), path, NULL);
}

static ek_status run(void) {
  ek_trainer *first = NULL, *second = NULL;
  ek_status status = EK_OK;
  EK_TRY_GOTO(status, open_trainer(&first, descent), cleanup);
  EK_TRY_GOTO(status, train(first, 1), cleanup);
  EK_TRY_GOTO(status, put(first, "descended"), cleanup);
  EK_TRY_GOTO(status, open_trainer(&second, adamw), cleanup);
  EK_TRY_GOTO(status, predict(second), cleanup);
  EK_TRY_GOTO(status, put(second, "same"), cleanup);
  EK_TRY_GOTO(status, train(second, STEPS), cleanup);
  status = put(second, "trained");
cleanup:
  ek_trainer_free(second);
  ek_trainer_free(first);
  return status;
}

/* All of the array, out of a file or into one. */
static int move(const char *in, const char *name, const char *how, void *data, size_t bytes) {
  char path[PATH];
  (void)snprintf(path, sizeof path, "%s/%s", in, name);
  FILE *file = fopen(path, how);
  if (file == NULL) return 0;
  const size_t done = how[0] == 'r' ? fread(data, 1, bytes, file) : fwrite(data, 1, bytes, file);
  return fclose(file) == 0 && done == bytes;
}

int main(int argc, char **argv) {
  if (argc != 5) return 2;
  folder = argv[1];
  out = argv[2];
  devices = argv[3];
  mode = argv[4];
  if (!move(folder, "tokens", "rb", tokens, sizeof tokens) ||
      !move(folder, "targets", "rb", targets, sizeof targets)) {
    return 2;
  }
  const ek_status status = run();
  if (status != EK_OK) fprintf(stderr, "%s: %s\n", ek_status_name(status), ek_error_message());
  if (status == EK_ERR_UNSUPPORTED && strstr(ek_error_message(), "xxHash") != NULL) return 77;
  return status == EK_OK && move(out, "logits", "wb", logits, sizeof logits) &&
                 move(out, "losses", "wb", losses, sizeof losses)
             ? 0
             : 1;
}
