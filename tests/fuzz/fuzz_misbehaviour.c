/*
 * fuzz_misbehaviour.c - a step in which a module, a criterion or an update rule breaks its
 * contract.
 *
 * A good step, one with the misdeed, and further good ones, on `cpu` or `plan`. The step with the
 * misdeed may be refused or, where the misdeed is harmless, taken; then
 *
 *   - a refusal has a status and a message, and a plain mistake is refused;
 *   - what was refused before the update has changed nothing, and the steps that follow give the
 *     bits of a run without it;
 *   - what failed inside the update makes the model refuse every later step;
 *   - when all is freed, the devices hold nothing.
 *
 * misbehaviour_construction.c makes modules, criteria and rules with counts and slots that cannot
 * be.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "misbehaviour_parts.h"

enum { MOST_ROWS = 6, MOST_DEVICES = 4 };

struct scene {
  size_t devices;
  bool on_plan, alone, with_child;
  struct fuzz_setup setup;
  int64_t rows;
  enum place place;
  enum misdeed misdeed;
  unsigned troubled;
};

static struct scene read_scene(struct fuzz_input *input) {
  struct scene scene = {0};
  scene.devices = 1 + (size_t)fuzz_choice(input, MOST_DEVICES);
  scene.on_plan = fuzz_one_in(input, 4);
  scene.alone = fuzz_one_in(input, 2);
  scene.with_child = fuzz_one_in(input, 2);
  scene.setup = fuzz_setup(input);
  scene.rows = 1 + fuzz_choice(input, MOST_ROWS);
  scene.place = (enum place)fuzz_choice(input, PLACES);
  scene.misdeed = (enum misdeed)fuzz_choice(input, MISDEEDS);
  scene.troubled = fuzz_byte(input);
  return scene;
}

/* Does nothing good come of it, whatever follows? */
static bool must_fail(const struct scene *scene) {
  switch (scene->misdeed) {
  case FAILS:
  case FAILS_SILENTLY:
  case ODD_STATUS: return true;
  case NO_MEMORY:
    if (scene->on_plan) return false; /* nothing is read there */
    break;
  case MISSING:
  case OTHER_TYPE:
  case FEWER_ROWS:
  case ON_THE_HOST:
  case ODD_STRUCT: break;
  case TAKES_MORE: return scene->place != PLACE_UPDATE;
  default: return false;
  }
  /* Of what goes into the model no gradient is wanted. */
  return scene->place == PLACE_FORWARD || scene->place == PLACE_LOSS_BACKWARD ||
         (scene->place == PLACE_BACKWARD && !scene->alone);
}

/* ---- a training ---- */

static ek_module *make_model(const struct scene *scene) {
  ek_module *odd = NULL, *part[3] = {NULL}, *whole = NULL;
  FUZZ_OK(misbehaving_module(&odd, scene->with_child));
  if (scene->alone) return odd;
  FUZZ_OK(ek_linear_create(&part[0], WIDTH, WIDTH, true));
  part[1] = odd;
  FUZZ_OK(ek_linear_create(&part[2], WIDTH, WIDTH, true));
  FUZZ_OK(ek_sequential_create(&whole, part, 3));
  for (size_t i = 0; i < 3; i++) ek_module_free(part[i]);
  return whole;
}

static void open_scene(struct fuzz_training *training, const struct scene *scene) {
  *training = (struct fuzz_training){
      .group = fuzz_devices(scene->on_plan ? "plan" : "cpu", scene->devices)};
  training->module = make_model(scene);
  FUZZ_OK(misbehaving_criterion(&training->criterion));
  FUZZ_OK(misbehaving_rule(&training->rule));
  FUZZ_OK(fuzz_training_open(training, &scene->setup));
}

static ek_status step_result(struct fuzz_training *training, const struct scene *scene, int number,
                             ek_step_result *result) {
  static double x[MOST_ROWS * WIDTH], t[MOST_ROWS * WIDTH];
  static float x32[MOST_ROWS * WIDTH], t32[MOST_ROWS * WIDTH];
  const bool wide = scene->setup.model.type == EK_F64;
  for (int i = 0; i < MOST_ROWS * WIDTH; i++) {
    x[i] = (i * 5 + number * 3) % 7 - 3;
    t[i] = (i * 3 + number) % 5 - 2;
    x32[i] = (float)x[i];
    t32[i] = (float)t[i];
  }
  const int64_t shape[] = {scene->rows, WIDTH};
  struct fuzz_batch batch = {.inputs = 1, .targets = 1};
  const ek_type type = scene->setup.model.type;
  FUZZ_OK(ek_tensor_host(&batch.input[0], wide ? (void *)x : (void *)x32, type, 2, shape));
  FUZZ_OK(ek_tensor_host(&batch.target[0], wide ? (void *)t : (void *)t32, type, 2, shape));
  ek_error_clear();
  return fuzz_training_step(training, &batch, 1, result);
}

static ek_status step(struct fuzz_training *training, const struct scene *scene, int number) {
  ek_step_result result;
  return step_result(training, scene, number, &result);
}

static void expect_state(const struct fuzz_training *training, const unsigned char *expected,
                         size_t size, const char *when) {
  size_t now = 0;
  unsigned char *state = fuzz_training_state(training, &now);
  FUZZ_EXPECT(now == size && memcmp(state, expected, size) == 0, "another state %s", when);
  free(state);
}

/* What failed inside the update: no later step passes over what it left. */
static void after_update(struct fuzz_training *training, const struct scene *scene) {
  for (int i = 0; i < 2; i++) {
    const ek_status status = step(training, scene, 1 + i);
    fuzz_expect_explained(status);
    FUZZ_EXPECT(status == EK_ERR_TORN, "after an update that failed: %s", ek_status_name(status));
  }
}

/* What failed before it: as if it had not been. */
static void after_refusal(struct fuzz_training *training, const struct scene *scene,
                          const unsigned char *before, size_t size) {
  struct fuzz_training other;
  expect_state(training, before, size, "after a step that was refused");
  open_scene(&other, scene);
  for (int i = 0; i < 2; i++) FUZZ_OK(step(&other, scene, i));
  FUZZ_OK(step(training, scene, 1));
  unsigned char *expected = fuzz_training_state(&other, &size);
  if (!scene->on_plan) expect_state(training, expected, size, "two steps later");
  free(expected);
  fuzz_training_close(&other);
}

/* An infinity is seen where the loss has it, and in the gradient if a check reads it. */
static void expect_not_finite(const struct scene *scene, ek_status status,
                              const ek_step_result *result) {
  const ek_data_parallel_optimizer_options *options = &scene->setup.optimizer;
  const bool in_loss = scene->place == PLACE_FORWARD || scene->place == PLACE_LOSS;
  if (scene->on_plan || scene->place == PLACE_UPDATE) return; /* seen in the next step's loss */
  if (options->refuse_not_finite) {
    FUZZ_EXPECT(status == EK_ERR_NOT_FINITE, "infinity was not refused: %s",
                ek_status_name(status));
    return;
  }
  FUZZ_EXPECT(status == EK_OK, "infinity: %s", ek_error_message());
  FUZZ_EXPECT(!result->finite || (!in_loss && !options->gradient_norm),
              "infinity, and the step says that all is finite");
}

static void try_scene(struct fuzz_input *input) {
  const struct scene scene = read_scene(input);
  struct fuzz_training training;
  size_t size = 0;
  atomic_store(&trouble.done, false);
  trouble.misdeed = NO_MISDEED;
  open_scene(&training, &scene);
  FUZZ_OK(step(&training, &scene, 0));
  unsigned char *before = fuzz_training_state(&training, &size);

  trouble.place = scene.place;
  trouble.devices = scene.troubled;
  trouble.misdeed = scene.misdeed;
  ek_step_result result = {0};
  const ek_status status = step_result(&training, &scene, 1, &result);
  trouble.misdeed = NO_MISDEED;
  /* A status that only the caller's own code knows is forwarded as it is. */
  if (scene.misdeed != ODD_STATUS) fuzz_expect_explained(status);
  const bool done = atomic_load(&trouble.done);
  FUZZ_EXPECT(done || status == EK_OK, "nothing was wrong, and yet: %s", ek_error_message());
  FUZZ_EXPECT(!done || !must_fail(&scene) || status != EK_OK, "misdeed %d at %d was taken",
              (int)scene.misdeed, (int)scene.place);
  if (done && scene.misdeed == INFINITIES) expect_not_finite(&scene, status, &result);
  if (status != EK_OK && scene.place == PLACE_UPDATE) {
    after_update(&training, &scene);
  } else if (status != EK_OK) {
    after_refusal(&training, &scene, before, size);
  } else {
    fuzz_expect_explained(step(&training, &scene, 2));
  }
  free(before);
  fuzz_training_close(&training);
  misbehaviour_clean();
  fuzz_expect_nothing_held(training.group);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct fuzz_input input = fuzz_input(data, size);
  if (fuzz_one_in(&input, 3)) {
    misbehaviour_construction(&input);
  } else {
    try_scene(&input);
  }
  return 0;
}
