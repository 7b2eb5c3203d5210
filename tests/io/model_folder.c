/*
 * model_folder.c FOLDER OUT DEVICES MODE: for model_folder.py, which made the folder with the
 * package transformers, and compares what is left in OUT: the logits of FOLDER/tokens, a folder
 * with the same model, the losses of ten steps of AdamW and a folder after them, and a folder after
 * one step of gradient descent at rate 1, from which the gradients follow.
 */
#include "program.h"

enum { SAMPLES = 5, TOKENS = 32, VOCABULARY = 101, STEPS = 10, PATH = 512 };

static int32_t tokens[SAMPLES * TOKENS], targets[SAMPLES * TOKENS];
static float logits[SAMPLES * TOKENS * VOCABULARY];
static double losses[STEPS];
static const int64_t shape[] = {SAMPLES, TOKENS, VOCABULARY};
static const char *folder, *out, *devices, *mode;

/* Takes over the rule. */
static ek_trainer *open_trainer(ek_optimizer *rule) {
  ek_data_parallel_model_options model = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  ek_trainer_options options = EK_TRAINER_OPTIONS_INIT;
  ek_mode parsed;
  ek_module *module = NULL;
  ek_criterion *loss = NULL;
  ek_trainer *trainer = NULL;
  options.model = &model;
  OK(ek_mode_parse(&parsed, mode));
  OK(ek_data_parallel_model_options_set_mode(&model, parsed));
  OK(ek_model_from_folder(&module, folder, NULL));
  OK(ek_cross_entropy_create(&loss, NULL));
  OK(ek_trainer_open(&trainer, devices, module, loss, rule, &options));
  ek_optimizer_free(rule);
  ek_criterion_free(loss);
  ek_module_free(module);
  OK(ek_weights_load(ek_trainer_model(trainer), folder, NULL));
  return trainer;
}

static ek_optimizer *adamw(void) {
  ek_optimizer *rule = NULL;
  ek_adamw_options options = EK_ADAMW_OPTIONS_INIT;
  options.weight_decay = 0;
  OK(ek_adamw_create(&rule, &options));
  return rule;
}

static ek_optimizer *descent(void) {
  ek_optimizer *rule = NULL;
  ek_sgd_options options = EK_SGD_OPTIONS_INIT;
  options.learning_rate = 1;
  OK(ek_sgd_create(&rule, &options));
  return rule;
}

static void predict(ek_trainer *trainer) {
  ek_tensor in, host;
  ek_shards outputs = {0};
  OK(ek_tensor_host(&in, tokens, EK_I32, 2, shape));
  OK(ek_tensor_host(&host, logits, EK_F32, 3, shape));
  OK(ek_trainer_predict(&outputs, trainer, &in, 1));
  OK(ek_gather_host(&host, &outputs));
  ek_shards_free(&outputs);
}

static void train(ek_trainer *trainer, int steps) {
  ek_tensor in, target;
  OK(ek_tensor_host(&in, tokens, EK_I32, 2, shape));
  OK(ek_tensor_host(&target, targets, EK_I32, 2, shape));
  for (int i = 0; i < steps; i++) {
    ek_step_result result;
    OK(ek_trainer_step(&result, trainer, &in, 1, &target, 1));
    losses[i] = result.loss;
  }
}

static void put(ek_trainer *trainer, const char *name) {
  char path[PATH];
  (void)snprintf(path, sizeof path, "%s/%s", out, name);
  OK(ek_model_to_folder(ek_trainer_model(trainer), path, NULL));
}

static void move_file(const char *where, const char *name, bool in, void *data, size_t bytes) {
  char path[PATH];
  (void)snprintf(path, sizeof path, "%s/%s", where, name);
  FILE *file = fopen(path, in ? "rb" : "wb");
  REQUIRE(file != NULL);
  move(file, in, data, bytes);
  REQUIRE(fclose(file) == 0);
}

int main(int argc, char **argv) {
  if (argc != 5) return 2;
  folder = argv[1];
  out = argv[2];
  devices = argv[3];
  mode = argv[4];
  move_file(folder, "tokens", true, tokens, sizeof tokens);
  move_file(folder, "targets", true, targets, sizeof targets);
  ek_trainer *trainer = open_trainer(descent());
  train(trainer, 1);
  put(trainer, "descended");
  ek_trainer_free(trainer);
  trainer = open_trainer(adamw());
  predict(trainer);
  put(trainer, "same");
  train(trainer, STEPS);
  put(trainer, "trained");
  ek_trainer_free(trainer);
  move_file(out, "logits", false, logits, sizeof logits);
  move_file(out, "losses", false, losses, sizeof losses);
  return 0;
}
