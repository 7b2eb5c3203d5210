/*
 * obedient.c - trains for ever as one process of a world, until a signal or an error: signals.sh
 * kills, stops and terminates such processes.
 *
 *     obedient SECONDS FOLDER
 *
 * SECONDS is the time limit of the world. It goes on from the last state in FOLDER, if there is
 * one, and prints "training from STEP" after its first step. SIGTERM in any process stops all after
 * the same step; they save a state in FOLDER and print "stopped after STEP". Evaluations and saves,
 * at once and in the background, go on between steps, so that signals meet these too. An error is
 * printed, with the seconds since the last good step.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <evenkeel/evenkeel.h>

enum { WIDTH = 64, ROWS = 8 };

static ek_world *world;

static void terminate(int signal) {
  (void)signal;
  ek_world_request_stop(world);
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static ek_status open_trainer(ek_trainer **trainer) {
  const int64_t sizes[] = {WIDTH, 4 * WIDTH, WIDTH};
  ek_module *module = NULL;
  ek_criterion *criterion = NULL;
  ek_optimizer *rule = NULL;
  ek_trainer_options options = EK_TRAINER_OPTIONS_INIT;
  ek_data_parallel_model_options model = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  ek_group_options group = EK_GROUP_OPTIONS_INIT;
  ek_status status = EK_OK;
  model.state = EK_STATE_SHARDED;
  group.threads_per_device = 1;
  options.group_options = &group;
  options.model = &model;
  options.world = world;
  EK_TRY_GOTO(status, ek_mlp_create(&module, sizes, 3, EK_ACTIVATION_GELU), cleanup);
  EK_TRY_GOTO(status, ek_mean_squared_error_create(&criterion, EK_REDUCTION_MEAN), cleanup);
  EK_TRY_GOTO(status, ek_adamw_create(&rule, NULL), cleanup);
  status = ek_trainer_open(trainer, "cpu:1", module, criterion, rule, &options);
cleanup:
  ek_optimizer_free(rule);
  ek_criterion_free(criterion);
  ek_module_free(module);
  return status;
}

static ek_status train(ek_trainer *trainer, const char *folder, double *last) {
  static float numbers[ROWS * WIDTH];
  const int64_t shape[] = {ROWS, WIDTH};
  ek_tensor batch;
  ek_step_result result = {.step = 0};
  ek_checkpoint_options saving = EK_CHECKPOINT_OPTIONS_INIT;
  ek_checkpoint_info info = {.step = 0};
  double loss = 0, weight = 0;
  saving.keep = 2;
  const ek_status loaded = ek_trainer_load(&info, trainer, folder);
  if (loaded != EK_OK && loaded != EK_ERR_NOT_FOUND) return loaded;
  for (int i = 0; i < ROWS * WIDTH; i++) numbers[i] = (float)(i % 17) / 17;
  EK_TRY(ek_tensor_host(&batch, numbers, EK_F32, 2, shape));
  while (!ek_world_stop_requested(world)) {
    EK_TRY(ek_trainer_step(&result, trainer, &batch, 1, &batch, 1));
    *last = now();
    if (result.step == info.step + 1) {
      printf("training from %lld\n", (long long)info.step);
      (void)fflush(stdout);
    }
    if (result.step % 16 == 0 && !ek_world_stop_requested(world)) {
      EK_TRY(ek_trainer_evaluate(&loss, &weight, trainer, &batch, 1, &batch, 1));
    }
    if (result.step % 64 == 0 && !ek_world_stop_requested(world)) {
      EK_TRY(ek_trainer_save(trainer, folder, &saving));
    }
    if (result.step % 64 == 32 && !ek_world_stop_requested(world)) {
      EK_TRY(ek_trainer_save_begin(trainer, folder, &saving));
    }
  }
  EK_TRY(ek_trainer_save(trainer, folder, &saving));
  printf("stopped after %lld\n", (long long)result.step);
  return EK_OK;
}

int main(int argc, char **argv) {
  struct sigaction action = {.sa_handler = terminate};
  ek_world_options options = EK_WORLD_OPTIONS_INIT;
  ek_trainer *trainer = NULL;
  double last = now();
  if (argc != 3) return 2;
  options.time_limit = atof(argv[1]);
  options.address = "127.0.0.1";
  ek_status status = ek_world_open(&world, &options);
  (void)sigaction(SIGTERM, &action, NULL);
  if (status == EK_OK) status = open_trainer(&trainer);
  if (status == EK_OK) status = train(trainer, argv[2], &last);
  if (status != EK_OK) {
    printf("%s after %.3f s: %s\n", ek_status_name(status), now() - last, ek_error_message());
  }
  ek_trainer_free(trainer);
  ek_world_free(world);
  return status == EK_OK ? 0 : 1;
}
