/*
 * check_half_steps.c - steps in bf16 and f16 that meet what is not finite, state that is touched in
 * the middle of them, inputs of every type, and weights that come in 16 bits.
 *
 * Everything here is exact: an undisturbed run has the same scale and makes the same steps.
 */
#include <unistd.h>

#include "ck_folder.h"
#include "ck_snapshot.h"
#include "ck_spike.h"
#include "ck_state.h"

enum { DEVICES = 3, SAMPLES = 7, HALVES = 2 };

static const ek_type halves[HALVES] = {EK_BF16, EK_F16};

/* A step that overflows leaves the scale as it is, so that the next rounds as it would have. */
static const ek_loss_scale steady = {
    .kind = EK_LOSS_SCALE_DYNAMIC, .scale = 16, .growth = 1, .backoff = 1, .interval = 1000};

static struct ck_setup setup_of(const struct ck_workload *workload, int placement, ek_type type) {
  struct ck_setup setup = ck_setup_at(workload, "cpu:3", placement);
  ck_assign(setup, .options.precision = (ek_precision)type, .loss_scale = &steady);
  return setup;
}

static void same_copies(const struct ck_training *got, const struct ck_training *want) {
  for (size_t k = 0; k < DEVICES; k++) {
    if (k > 0 && got->setup.options.state == EK_STATE_MASTER)
      break; /* theirs come with a forward */
    double *a = ck_training_copies(got, k), *b = ck_training_copies(want, k);
    ck_arrays_same("copies", a, b);
  }
}

/* ---- an overflow in one of three micro-batches ---- */

enum { PARTS = 3 };

/* The micro-batch number `bad` overflows on device `device`; -1: none. One with fewer samples than
 * devices. */
static ek_status step_in_parts(struct ck_training *t, uint64_t number, int bad, size_t device,
                               ek_step_result *result) {
  static const int64_t samples[PARTS] = {SAMPLES, 2, 4};
  ek_status status = EK_OK;
  for (int i = 0; i < PARTS && status == EK_OK; i++) {
    struct ck_batch batch =
        ck_batch_make(t->setup.workload, EK_F32, samples[i], 0.1, 10 * number + (uint64_t)i);
    if (i == bad) ck_spike_at(device, (double)INFINITY);
    status = ck_training_backward(t, &batch, NULL, i + 1 < PARTS, NULL);
    ck_spike_nowhere();
  }
  return status == EK_OK ? ek_data_parallel_optimizer_step(result, t->optimizer) : status;
}

CK_PART_LOOP(any_micro_batch_skips_the_step, ck_if_halves(CK_PLACEMENTS * HALVES)) {
  const struct ck_workload gpt = ck_spiked("gpt");
  const struct ck_setup setup = setup_of(&gpt, _i / HALVES, halves[_i % HALVES]);
  struct ck_training disturbed = ck_training_opened(&setup);
  struct ck_training other = ck_training_opened(&setup);
  for (uint64_t s = 0; s < PARTS; s++) {
    ek_step_result result, want;
    /* Device 0 has rows of every micro-batch. */
    ck_ok(step_in_parts(&disturbed, 50 + s, (int)s, s == 0 ? 2 : 0, &result));
    ck_assert(result.skipped && !result.finite && result.step == (int64_t)s);
    ck_ok(step_in_parts(&disturbed, s, -1, 0, &result));
    ck_ok(step_in_parts(&other, s, -1, 0, &want));
    ck_assert(!result.skipped && result.finite && result.step == (int64_t)s + 1);
    ck_assert(result.loss == want.loss && result.gradient_norm == want.gradient_norm);
    ck_snapshots_same("behind a step that was skipped", &disturbed, &other);
    same_copies(&disturbed, &other);
  }
}

/* ---- state between micro-batches ---- */

/* All of it is read, and written back as it is. */
static void touch_state(struct ck_training *t) {
  struct ck_state state = ck_state_take(t->model), again;
  ck_ok(ck_state_put(t->model, &state));
  again = ck_state_take(t->model);
  ck_state_same("written back", &again, &state);
}

static void go_back(struct ck_training *t, uint64_t number, bool accumulate) {
  struct ck_batch batch = ck_batch_make(t->setup.workload, EK_F32, SAMPLES, 0.1, number);
  ck_ok(ck_training_backward(t, &batch, NULL, accumulate, NULL));
}

/* With gradients of 16 bits: what a step has accumulated stays, and what can be read of it. A run
 * that begins with such a state goes on alike. */
CK_PART_LOOP(state_in_the_middle_of_a_step, ck_if_halves(CK_PLACEMENTS * HALVES)) {
  struct ck_setup setup = setup_of(ck_workload("gpt"), _i / HALVES, halves[_i % HALVES]);
  setup.options.gradient_type = ek_precision_type(setup.options.precision);
  struct ck_training disturbed = ck_training_opened(&setup);
  struct ck_training other = ck_training_opened(&setup);
  for (uint64_t s = 0; s < 2; s++) {
    go_back(&disturbed, 30 + s, true);
    touch_state(&disturbed);
    go_back(&disturbed, 40 + s, false);
    go_back(&other, 30 + s, true);
    go_back(&other, 40 + s, false);
    ck_runs_agree(&disturbed, &other, CK_GRADIENTS, 0);
    touch_state(&disturbed);
    ck_runs_agree(&disturbed, &other, CK_GRADIENTS, 0);
    ck_ok(ek_data_parallel_optimizer_step(NULL, disturbed.optimizer));
    ck_ok(ek_data_parallel_optimizer_step(NULL, other.optimizer));
    ck_snapshots_same("behind a step whose state was touched", &disturbed, &other);
    same_copies(&disturbed, &other);
  }
  setup.options.seed++; /* which the state has, too */
  struct ck_training third = ck_training_opened(&setup);
  struct ck_state state = ck_state_take(disturbed.model);
  ck_ok(ck_state_put(third.model, &state));
  struct ck_training *both[] = {&third, &other};
  for (int k = 0; k < 2; k++) {
    go_back(both[k], 50, false);
    ck_ok(ek_data_parallel_optimizer_step(NULL, both[k]->optimizer));
  }
  ck_snapshots_same("from a state", &third, &other);
}

/* ---- NaN in the data ---- */

CK_PART_LOOP(a_refused_step_leaves_all, ck_if_halves(CK_MODES * HALVES)) {
  struct ck_setup setup = setup_of(ck_workload("mlp"), _i / HALVES, halves[_i % HALVES]);
  const ek_loss_scale none = {.kind = EK_LOSS_SCALE_NONE};
  struct ck_training t[2];
  CK_WITH(ek_data_parallel_optimizer_options, options, EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT,
          .refuse_not_finite = true, .loss_scale = &none);
  for (int k = 0; k < 2; k++) {
    t[k] = ck_training_opened(&setup);
    ck_training_update_with(&t[k], &options);
  }
  for (uint64_t s = 0; s < 2; s++) {
    struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, SAMPLES, 0.1, s);
    struct ck_batch bad = ck_batch_make(setup.workload, EK_F32, SAMPLES, 0.1, s);
    ek_step_result result = {.step = -1}, want;
    ((float *)bad.input[0].data)[11] = s == 0 ? NAN : HUGE_VALF;
    ck_fails(ck_training_step(&t[0], &bad, &result), EK_ERR_NOT_FINITE, "without an update");
    ck_assert_int_eq(result.step, -1);
    ck_ok(ck_training_step(&t[0], &batch, &result));
    ck_ok(ck_training_step(&t[1], &batch, &want));
    ck_assert(result.loss == want.loss && result.finite);
    ck_snapshots_same("behind a step that was refused", &t[0], &t[1]);
    same_copies(&t[0], &t[1]);
  }
}

/* ---- inputs of every type ---- */

/* Gives a batch's floating input another type, with the same numbers as far as that has them. */
static void retype(struct ck_batch *batch, ek_type type, ek_device *device) {
  const float *from = batch->input[0].data;
  const int64_t count = ek_tensor_count(&batch->input[0]);
  double *values = ck_array((size_t)count, sizeof *values);
  for (int64_t i = 0; i < count; i++) values[i] = (double)from[i];
  ek_tensor made = ck_upload(device, type, values, batch->input[0].rank, batch->input[0].shape);
  void *bytes = ck_array(1, ek_tensor_bytes(&made) + 1);
  CK_GOT(ek_tensor, host, ek_tensor_host(&host, bytes, type, made.rank, made.shape));
  ck_ok(ek_tensor_copy(&host, &made));
  ek_tensor_free(&made);
  ck_assign(batch->input[0], .type = type, .data = bytes);
}

/* f32 is rounded as the caller would; any other type than that of the modules is refused, whatever
 * they compute in, and nothing is lost. */
CK_PART_LOOP(inputs_of_every_type, ck_if_halves(CK_MODES * 3)) {
  static const ek_type types[] = {EK_F32, EK_F64, EK_BF16, EK_F16};
  const ek_type precision = _i % 3 == 2 ? EK_F32 : halves[_i % 3];
  const struct ck_setup setup = setup_of(ck_workload("mlp"), _i / 3, precision);
  struct ck_training t = ck_training_opened(&setup);
  struct ck_training other = ck_training_opened(&setup);
  for (int k = 0; k < 4; k++) {
    struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, SAMPLES, 0.1, 3), same = batch;
    retype(&batch, types[k], ek_group_device(t.group, 0));
    const ek_status status = ck_training_step(&t, &batch, NULL);
    if (types[k] == EK_F32 || types[k] == precision) {
      ck_assert_msg(status == EK_OK, "%s: %s", ek_type_name(types[k]), ek_error_message());
      ck_ok(ck_training_step(&other, &same, NULL));
    } else {
      ck_assert_msg(status == EK_ERR_TYPE &&
                        ck_contains(ek_error_message(), ek_type_name(types[k])),
                    "%s into %s: %s, %s", ek_type_name(types[k]), ek_type_name(precision),
                    ek_status_name(status), ek_error_message());
    }
    ck_snapshots_same(ek_type_name(types[k]), &t, &other);
  }
}

/* ---- weights of 16 bits ---- */

static const char *folder, *path;

static void make_folder(void) {
  folder = ck_folder();
  path = ck_file(folder, "weights");
}

/* Half precision, as other programs save it. */
static ek_status write_halves(const struct ck_training *t, ek_type type) {
  enum { MOST = 64 };
  ek_safetensors_entry entries[MOST];
  static ek_state_info info[MOST];
  ek_safetensors_writer *writer = NULL;
  size_t count = 0;
  const double *values = ck_training_read(t, CK_VALUES);
  for (size_t i = 0; i < ek_state_count(t->model); i++) {
    ck_ok(ek_state_entry(&info[count], t->model, i));
    if (info[count].kind != EK_STATE_KIND_PARAMETER) continue;
    entries[count] = (ek_safetensors_entry){info[count].name, info[count].like};
    entries[count].like.type = type;
    ck_assert_uint_lt(++count, MOST);
  }
  EK_TRY(ek_safetensors_create(&writer, path, entries, count, NULL, 0));
  for (size_t i = 0; i < count; i++) {
    const int64_t n = ek_tensor_count(&info[i].like);
    uint16_t *bytes = ck_array((size_t)n, sizeof *bytes);
    ek_tensor made = ck_upload(ek_group_device(t->group, 0), type, values, 1, &n);
    CK_GOT(ek_tensor, half, ek_tensor_host(&half, bytes, type, 1, &n));
    ck_ok(ek_tensor_copy(&half, &made));
    ek_tensor_free(&made);
    ck_ok(ek_safetensors_write(writer, i, bytes, 2 * (size_t)n));
    values += n;
  }
  const ek_status status = ek_safetensors_finish(writer);
  ek_safetensors_writer_free(writer);
  return status;
}

/* Into masters they come as they are, into copies of another type rounded once more; and training
 * goes on like that of a model to which they were written by name. */
CK_PART_LOOP(weights_in_halves, ck_if_halves(CK_MODES * HALVES)) {
  const ek_type type = halves[_i % HALVES];
  const struct ck_setup setup = setup_of(ck_workload("gpt"), _i / HALVES, halves[_i / 2 % HALVES]);
  CK_TRAINING(source, setup, .options.precision = EK_PRECISION_F32, .options.seed = 99);
  struct ck_training t = ck_training_opened(&setup);
  if (ck_no_files(write_halves(&source, type))) return;
  ck_ok(ek_weights_load(t.model, path, NULL));
  double *got = ck_training_read(&t, CK_VALUES);
  double *want = ck_training_read(&source, CK_VALUES);
  for (int64_t i = 0; i < ck_count(want); i++) want[i] = ck_round_to(type, want[i]);
  ck_arrays_same("masters", got, want);
  CK_HELD(struct ck_training, other, ck_training_opened(&setup));
  struct ck_state state = ck_state_take(t.model);
  ck_ok(ck_state_put(other.model, &state));
  same_copies(&t, &other);
  struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, SAMPLES, 0.1, 3);
  ck_ok(ck_training_step(&t, &batch, NULL));
  ck_ok(ck_training_step(&other, &batch, NULL));
  ck_snapshots_same("with weights of 16 bits", &t, &other);
}

CK_SUITE_WITH("half steps", make_folder, NULL)
