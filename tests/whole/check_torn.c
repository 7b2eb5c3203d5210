/*
 * check_torn.c - every call of a step fails once, on each device and in each mode, and it is never
 * silent: either parameters, optimizer state and every replica are what they were, bit for bit, and
 * the step that is tried again equals an undisturbed one; or the model is torn and says so to every
 * later call, with one status and one sentence, until all of its state was written: then it goes on
 * like the undisturbed one.
 *
 * tests/cuda/check_cuda_faults.c does the same with the failures of emulated GPUs.
 */
#include "ck_rule.h"
#include "ck_snapshot.h"
#include "ck_state.h"

enum { DEVICES = 3, SAMPLES = 7 };

#if CK_TSAN
enum { STRIDE = 7 };
#elif CK_ASAN
enum { STRIDE = 3 };
#else
enum { STRIDE = 1 };
#endif

/* Opening takes long on GPUs; another seed begins elsewhere. */
static uint64_t stride(void) {
  return ck_on_gpu() ? 11 * STRIDE : STRIDE;
}

/* ---- each piece of work ---- */

struct count {
  int kept, torn;
};

/* One step in which piece n of a device's work fails; false when a step has fewer. */
static bool fails_at(struct ck_training *t, const struct ck_batch *batch, size_t device, uint64_t n,
                     struct count *count) {
  ek_step_result result = {.step = -1};
  const char *where = ck_text("piece %d of device %d", (int)n, (int)device);
  struct ck_snapshot before = ck_snapshot_take(t);
  ck_ok(ek_fault_at(ek_group_device(t->group, device), n, EK_ERR_UNAVAILABLE));
  const ek_status status = ck_training_step(t, batch, &result);
  ck_ok(ek_fault_at(ek_group_device(t->group, device), 0, EK_OK));
  if (status != EK_OK) {
    ck_assert_msg(status == EK_ERR_UNAVAILABLE, "%s gave %s: %s", where, ek_status_name(status),
                  ek_error_message());
    ck_assert_msg(ck_contains(ek_error_message(), "requested by a test"), "%s: %s", where,
                  ek_error_message());
    ck_assert_int_eq(result.step, -1);
    if (ck_training_is_torn(t)) {
      count->torn++;
    } else {
      ck_snapshot_is(where, t, &before);
      count->kept++;
    }
  }
  return status != EK_OK;
}

/* Writing all of its state makes a torn model good. */
static void mend(struct ck_training *t, const struct ck_state *state) {
  ck_ok(ck_state_put(t->model, state));
  ck_state_is("mended", t->model, state);
}

/* `disturbed` is mended when it is torn; `other` is never disturbed. */
static void every_piece(const struct ck_setup *setup, const struct ck_batch *batch, size_t device,
                        struct count *count) {
  CK_HELD(struct ck_training, disturbed, ck_training_opened(setup));
  CK_HELD(struct ck_training, other, ck_training_opened(setup));
  ck_ok(ck_training_step(&disturbed, batch, NULL));
  ck_ok(ck_training_step(&other, batch, NULL));
  bool failed = true;
  for (uint64_t n = 1 + ck_seed() % stride(); failed; n += stride()) {
    const int torn = count->torn;
    struct ck_state state = ck_state_take(disturbed.model);
    failed = fails_at(&disturbed, batch, device, n, count);
    if (count->torn > torn) mend(&disturbed, &state);
    if (failed) ck_ok(ck_training_step(&disturbed, batch, NULL));
    ck_ok(ck_training_step(&other, batch, NULL));
    ck_snapshots_same("retried step", &disturbed, &other);
  }
  ck_states_same("in the end", disturbed.model, other.model);
}

CK_PART_LOOP(each_piece_of_work, 2 * CK_PLACEMENTS) {
  const ek_loss_scale loss_scale = EK_LOSS_SCALE_INIT; /* a failure is none of its good steps */
  struct ck_setup setup = ck_setup_at(ck_workload(_i % 2 == 0 ? "mlp" : "mixer"), "cpu:3", _i / 2);
  if (_i % 2 == 0) setup.loss_scale = &loss_scale;
  struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, SAMPLES, 0.2, 31);
  struct count count = {0, 0};
  for (size_t device = 0; device < DEVICES; device++) every_piece(&setup, &batch, device, &count);
  if (stride() == 1) {
    ck_assert_int_gt(count.kept, 50);
    ck_assert_int_gt(count.torn, 0);
  }
}

/* ---- an update rule that fails ---- */

static struct {
  size_t device; /* on which it fails */
  int64_t step;
  bool half; /* half of the range is written before it fails */
} mood;

static ek_status moody_update(const ek_optimizer *self, ek_stream *stream, const ek_update *u) {
  const bool fails =
      u->step == mood.step && ek_device_index(ek_stream_device(stream)) == mood.device;
  const ek_sgd_terms terms = {.learning_rate = 0.5, .first = true};
  ek_tensor p = *u->parameters, g = *u->gradients;
  (void)self;
  if (fails && mood.half) p.shape[0] = g.shape[0] = p.shape[0] / 2;
  if (!fails || mood.half) EK_TRY(ek_op_sgd(stream, &p, NULL, &g, &terms, &u->scale));
  return fails ? ek_error_set(EK_ERR_IO, "the rule is in a mood") : EK_OK;
}

static ek_status moody_create(ek_optimizer **optimizer) {
  return ck_rule_create(optimizer, "moody", moody_update);
}

/* The step fails; the model is torn, whichever device it was; a fresh one goes on. */
CK_LOOP(a_rule_that_fails, CK_MODES * DEVICES * 2) {
  ck_assign(mood, .device = (size_t)_i % DEVICES, .step = 2, .half = _i / DEVICES % 2 == 1);
  const ek_mode mode = (ek_mode)(_i / DEVICES / 2);
  struct ck_setup setup = ck_setup_mode(ck_workload("mlp"), "cpu:3", mode);
  setup.optimizer = moody_create;
  struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, SAMPLES, 0.2, 32);
  struct ck_training t = ck_training_opened(&setup);
  ck_ok(ck_training_step(&t, &batch, NULL));
  /* With a master on GPUs device 0 alone updates. */
  const ek_status status = ck_training_step(&t, &batch, NULL);
  const bool alone = setup.options.state == EK_STATE_MASTER && mood.device != 0;
  if (status == EK_OK) {
    ck_assert(alone && strcmp(ek_device_backend(ek_group_device(t.group, 0)), "cuda") == 0);
  } else {
    ck_assert_int_eq(status, EK_ERR_IO);
    ck_assert(ck_contains(ek_error_message(), "moody: the rule is in a mood"));
    ck_assert(ck_training_is_torn(&t));
  }
  ck_training_close(&t);
  t = ck_training_opened(&setup);
  ck_ok(ck_training_step(&t, &batch, NULL));
}

/* ---- writing state ---- */

/* Any entry that is missing keeps it torn, also when another was written twice; a second tear asks
 * for all of them again. */
static void mend_in_part(struct ck_training *t, const struct ck_state *state) {
  for (size_t missing = 0; missing < state->count; missing++) {
    for (size_t i = 0; i < state->count; i++) {
      if (i != missing) ck_ok(ek_state_write(t->model, state->info[i].name, &state->host[i]));
    }
    ck_assert(ck_training_is_torn(t));
    if (missing + 1 == state->count) break;
    const ek_tensor *host = &state->host[missing == 0];
    ck_ok(ek_fault_at(ek_group_device(t->group, 0), 1, EK_ERR_UNAVAILABLE));
    ck_fails(ek_state_write(t->model, state->info[missing == 0].name, host), EK_ERR_UNAVAILABLE,
             "copy");
  }
  const size_t last = state->count - 1;
  ck_ok(ek_state_write(t->model, state->info[last].name, &state->host[last]));
  ck_state_is("mended", t->model, state);
}

/* The copy to device 1 fails when device 0 has it: torn. A wrong call changes nothing. */
CK_TEST(set_fails_halfway) {
  struct ck_setup setup = ck_setup_mode(ck_workload("mlp"), "cpu:3", EK_MODE_REPLICATED);
  float numbers[7 * 19] = {1};
  struct ck_training t = ck_training_opened(&setup);
  struct ck_state state = ck_state_take(t.model);
  CK_WITH(ek_tensor, host, ck_like(&t, "0.weight"), .data = numbers);
  ck_fails(ek_state_write(t.model, "0.wait", &host), EK_ERR_NOT_FOUND, "0.wait");
  ck_assert(!ck_training_is_torn(&t));
  ck_ok(ek_fault_at(ek_group_device(t.group, 1), 1, EK_ERR_UNAVAILABLE));
  ck_fails(ek_state_write(t.model, "0.weight", &host), EK_ERR_UNAVAILABLE, "copy");
  ck_assert(ck_training_is_torn(&t));
  mend_in_part(&t, &state);
}

/* What was written of an optimizer does not count when it has been freed. */
CK_TEST(the_optimizer_is_freed) {
  CK_TRAINING(t, ck_setup_mode(ck_workload("mlp"), "cpu:3", EK_MODE_REPLICATED),
              .optimizer = ck_clipped_adamw);
  struct ck_state state = ck_state_take(t.model);
  ck_ok(ek_fault_at(ek_group_device(t.group, 1), 1, EK_ERR_UNAVAILABLE));
  ck_fails(ek_state_write(t.model, state.info[0].name, &state.host[0]), EK_ERR_UNAVAILABLE, "copy");
  for (size_t i = 0; i < state.count; i++) {
    if (state.info[i].kind != EK_STATE_KIND_OPTIMIZER) continue;
    ck_ok(ek_state_write(t.model, state.info[i].name, &state.host[i]));
  }
  ek_data_parallel_optimizer_free(t.optimizer);
  t.optimizer = NULL;
  for (size_t i = 0; i < state.count; i++) {
    if (state.info[i].kind == EK_STATE_KIND_OPTIMIZER) continue;
    ck_fails(ek_data_parallel_model_discard(t.model), EK_ERR_TORN, "halfway");
    ck_ok(ek_state_write(t.model, state.info[i].name, &state.host[i]));
  }
  ck_ok(ek_data_parallel_model_discard(t.model));
}

/* ---- a failure of another thread's job on the same group leaves a finished update alone ---- */

CK_JOB(refuse) {
  return index == 1 ? ek_error_set(EK_ERR_IO, "not this one") : EK_OK;
}

CK_LOOP(a_foreign_failure, CK_MODES) {
  struct ck_setup setup = ck_setup_mode(ck_workload("mlp"), "cpu:3", (ek_mode)_i);
  struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, SAMPLES, 0.2, 33);
  struct ck_training t = ck_training_opened(&setup);
  struct ck_training other = ck_training_opened(&setup);
  for (int step = 0; step < 3; step++) {
    ck_ok(ck_training_step(&t, &batch, NULL));
    ck_fails(ek_group_apply(t.group, refuse, NULL), EK_ERR_IO, "not this one");
    ck_assert(!ck_training_is_torn(&t));
    ck_ok(ck_training_step(&other, &batch, NULL));
  }
  ck_snapshots_same("with failures between the steps", &t, &other);
}

CK_SUITE("torn")
