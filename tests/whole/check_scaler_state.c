/*
 * check_scaler_state.c - what a run has made of its loss scale is part of its state: by name, and
 * in files, from which another process goes on.
 *
 * Scales are powers of two, so everything here is exact.
 */
#include <signal.h>

#include "ck_folder.h"
#include "ck_fork.h"
#include "ck_scaling.h"

/* ---- state ---- */

CK_PART_LOOP(the_scaler_is_state, CK_MODES) {
  const struct ck_workload mlp = ck_spiked("mlp");
  const ek_loss_scale rule = ck_scaling_dynamic(1024, 3), constant = ck_scaling_fixed(8);
  const struct ck_setup setup = ck_scaling_setup(&mlp, _i, &rule),
                        plain = ck_scaling_setup(&mlp, _i, &constant);
  ek_state_info info;
  double bad[] = {3, 0, -1, (double)NAN, 0x1p65};
  int64_t less = -1, two = 2;
  struct ck_training a = ck_training_opened(&setup);
  struct ck_training b = ck_training_opened(&setup);
  struct ck_training without = ck_training_opened(&plain);
  ck_assert_uint_eq(ek_state_count(a.model), ek_state_count(without.model) + 2);
  ck_fails(ek_state_find(&info, without.model, "run/loss_scale"), EK_ERR_NOT_FOUND, "loss_scale");
  ck_ok(ek_state_find(&info, a.model, "run/loss_scale"));
  ck_assert(info.kind == EK_STATE_KIND_LOSS_SCALE && info.like.type == EK_F64);
  ck_ok(ek_state_entry(&info, a.model, ek_state_count(a.model) - 1));
  ck_assert_str_eq(info.name, "run/good_steps");
  ck_assert(info.kind == EK_STATE_KIND_GOOD_STEPS && info.like.type == EK_I64);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    ck_invalid(ck_scaling_write(&a, "run/loss_scale", EK_F64, &bad[i]), "power of two");
  }
  ck_invalid(ck_scaling_write(&a, "run/good_steps", EK_I64, &less), "-1");
  ck_fails(ck_scaling_write(&a, "run/good_steps", EK_F64, &bad[0]), EK_ERR_TYPE, "i64");
  /* A run that was carried over goes on with its scale. */
  ck_ok(ck_scaling_step(&a, 0, false, NULL));
  ck_scaling_overflow(&a, 1, 1, false, true);
  ck_ok(ck_scaling_step(&a, 2, false, NULL));
  struct ck_state state = ck_state_take(a.model);
  ck_ok(ck_state_put(b.model, &state));
  ck_assert_double_eq(ck_scaling_scale(&b), 512);
  ck_assert_int_eq(ck_scaling_number(&b, "run/good_steps"), 1);
  for (uint64_t i = 3; i < 5; i++) {
    ck_ok(ck_scaling_step(&a, i, true, NULL));
    ck_ok(ck_scaling_step(&b, i, true, NULL));
  }
  ck_assert_double_eq(ck_scaling_scale(&b), 1024);
  ck_snapshots_same("carried over", &b, &a);
  /* Written in the middle of a step, it is the next step's. */
  struct ck_batch batch = ck_batch_make(&mlp, EK_F32, CK_SCALING_SAMPLES, 0, 8);
  double scale = 0x1p-5;
  ck_ok(ck_training_backward(&a, &batch, NULL, true, NULL));
  ck_ok(ck_training_backward(&b, &batch, NULL, true, NULL));
  ck_ok(ck_scaling_write(&a, "run/loss_scale", EK_F64, &scale));
  ck_ok(ck_scaling_write(&a, "run/good_steps", EK_I64, &two));
  CK_GOT(ek_step_result, result, ck_training_step(&a, &batch, &result));
  ck_ok(ck_training_step(&b, &batch, NULL));
  ck_assert_double_eq(result.loss_scale, 1024);
  ck_assert_double_eq(ck_scaling_scale(&a), 0x1p-4);
  ck_snapshots_same("written in a step", &a, &b);
}

/* ---- files ---- */

static const char *folder;

static void make_folder(void) {
  folder = ck_folder();
  for (int step = 0; step < 10; step++) (void)ck_state_file(folder, step);
}

enum { POSITIONS = 7, KILLED_AT = 5 };

/* Batch number 2 and 3 overflow. The position in the data is the program's, and goes on. */
static void course(struct ck_training *t, int64_t first, int64_t last, bool save) {
  ek_checkpoint_options options = EK_CHECKPOINT_OPTIONS_INIT;
  for (int64_t position = first; position < last; position++) {
    if (position == 2 || position == 3) ck_spike_at(1, (double)INFINITY);
    ck_ok(ck_scaling_step(t, (uint64_t)position, position % 2 == 0, NULL));
    ck_spike_nowhere();
    options.position = position + 1;
    if (save) ck_ok(ek_checkpoint_save(t->model, folder, &options));
  }
}

/* A process is killed after a few steps; another goes on from what it has left. In f32 and f16. */
CK_PART_LOOP(a_run_that_was_killed, (ck_has_halves() ? 2 : 1) * CK_MODES) {
  if (CK_TSAN || ck_on_gpu()) return; /* neither can start threads in a child of fork() */
  const struct ck_workload gpt = ck_spiked("gpt");
  const ek_loss_scale rule = ck_scaling_dynamic(0x1p10, 2);
  struct ck_setup setup = ck_scaling_setup(&gpt, _i % CK_MODES, &rule);
  int ended = 0;
  if (_i >= CK_MODES) {
    ck_assign(setup.options, .precision = EK_PRECISION_F16, .gradient_type = EK_F16);
  }
  struct ck_training whole = ck_training_opened(&setup);
  if (ck_no_files(ek_checkpoint_save(whole.model, folder, NULL))) return;
  if (ck_forked(&ended)) {
    struct ck_training begun = ck_training_opened(&setup);
    course(&begun, 0, KILLED_AT, true);
    (void)raise(SIGKILL);
  }
  ck_assert_int_eq(ended, CK_KILLED + SIGKILL);
  course(&whole, 0, POSITIONS, false);
  struct ck_training resumed = ck_training_opened(&setup);
  CK_GOT(ek_checkpoint_info, info, ek_checkpoint_load(&info, resumed.model, folder));
  ck_assert_int_eq(info.step, KILLED_AT - 2);
  ck_assert_int_eq(info.position, KILLED_AT);
  course(&resumed, info.position, POSITIONS, false);
  ck_states_same("resumed", resumed.model, whole.model);
  ck_assert_double_eq(ck_scaling_scale(&resumed), 0x1p10); /* grown, halved twice, grown */
}

/* Files of runs without a scaler, and runs without one. */
CK_PART_LOOP(with_and_without, CK_MODES) {
  const ek_loss_scale rule = ck_scaling_dynamic(1024, 3), constant = ck_scaling_fixed(8);
  struct ck_training scaled = ck_training_of(ck_scaling_setup(ck_workload("mlp"), _i, &rule));
  struct ck_training without = ck_training_of(ck_scaling_setup(ck_workload("mlp"), _i, &constant));
  course(&without, 0, 1, false);
  if (ck_no_files(ek_checkpoint_save(without.model, folder, NULL))) return;
  course(&scaled, 0, 3, false);
  ck_ok(ek_checkpoint_load(NULL, scaled.model, folder));
  ck_snapshots_same("a file without a scaler", &scaled, &without);
  ck_assert_double_eq(ck_scaling_scale(&scaled), 1024);
  ck_assert_int_eq(ck_scaling_number(&scaled, "run/good_steps"), 0);
  course(&scaled, 1, 5, false);
  ck_assert_double_eq(ck_scaling_scale(&scaled), 2048);
  ck_ok(ek_checkpoint_save(scaled.model, folder, NULL));
  ck_ok(ek_checkpoint_load(NULL, without.model, folder));
  ck_snapshots_same("a file with a scaler", &without, &scaled);
  ck_assert_double_eq(ek_data_parallel_optimizer_loss_scale(without.optimizer), 8);
}

CK_SUITE_WITH("scaler state", make_folder, NULL)
