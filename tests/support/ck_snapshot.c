/*
 * ck_snapshot.c - what a failed step must leave as it was: see ck_snapshot.h.
 */
#include "ck_snapshot.h"

static bool has_master(const struct ck_training *training) {
  return training->setup.options.state == EK_STATE_MASTER;
}

struct ck_snapshot ck_snapshot_take(const struct ck_training *training) {
  struct ck_snapshot shot = {.devices = ek_group_size(training->group)};
  ck_assert_uint_le(shot.devices, CK_SNAPSHOT_DEVICES);
  const bool stepped = ek_data_parallel_optimizer_steps(training->optimizer) > 0;
  for (int i = 0; i < 2 && stepped && ek_optimizer_states(training->rule) == 2; i++) {
    shot.states[i] = ck_training_read(training, i == 0 ? CK_STATE_0 : CK_STATE_1);
  }
  for (size_t k = 0; k < shot.devices; k++) {
    CK_GOT(ek_memory_usage, usage, ck_memory_stats(&usage, ek_group_device(training->group, k)));
    shot.held[k] = usage.current_bytes;
    if (k > 0 && has_master(training)) continue;
    shot.parameters[k] =
        ck_got(ek_replica_parameters(ek_data_parallel_model_replica(training->model, k)));
  }
  return shot;
}

void ck_snapshot_same(const char *what, const struct ck_snapshot *a, const struct ck_snapshot *b) {
  for (int i = 0; i < 2; i++) {
    ck_assert((a->states[i] == NULL) == (b->states[i] == NULL));
    if (a->states[i] != NULL) ck_arrays_same(what, a->states[i], b->states[i]);
  }
  for (size_t k = 0; k < a->devices; k++) {
    if (a->parameters[k] != NULL) ck_arrays_same(what, a->parameters[k], b->parameters[k]);
    ck_assert_msg(a->held[k] == b->held[k], "%s: device %zu holds %llu bytes, before %llu", what, k,
                  (unsigned long long)a->held[k], (unsigned long long)b->held[k]);
  }
}

/* ---- torn ---- */

enum { CALLS = 8 };

static ek_status call(struct ck_training *t, int which) {
  static double numbers[1 << 16];
  ek_shards outputs[CK_BATCH_TENSORS] = {{0}};
  CK_GOT(ek_state_info, info, ek_state_entry(&info, t->model, 0));
  CK_WITH(ek_tensor, host, info.like, .data = numbers);
  CK_HELD(struct ck_batch, batch, ck_batch_make(t->setup.workload, EK_F32, 5, 0, 1));
  double loss = 0;
  ek_data_parallel_optimizer *optimizer = NULL;
  ek_status status = EK_OK;
  switch (which) {
  case 0:
    status = ek_data_parallel_model_forward(outputs, t->model, batch.input, batch.inputs, NULL);
    break;
  case 1: status = ek_data_parallel_model_backward(t->model, outputs, 1, NULL); break;
  case 2: status = ek_state_read(&host, t->model, info.name); break;
  case 3: status = ek_data_parallel_model_discard(t->model); break;
  case 4: status = ek_data_parallel_criterion_backward(t->loss, NULL); break;
  case 5: status = ek_data_parallel_criterion_loss(&loss, NULL, t->loss); break;
  case 6: status = ek_data_parallel_optimizer_step(NULL, t->optimizer); break;
  case 7:
    status = ek_data_parallel_optimizer_open(&optimizer, t->model, t->rule, NULL);
    ek_data_parallel_optimizer_free(optimizer);
    break;
  }
  for (size_t i = 0; i < CK_BATCH_TENSORS; i++) ek_shards_free(&outputs[i]);
  return status;
}

void ck_snapshot_is(const char *what, const struct ck_training *training,
                    const struct ck_snapshot *want) {
  CK_HELD(struct ck_snapshot, snapshot, ck_snapshot_take(training));
  ck_snapshot_same(what, &snapshot, want);
}

void ck_snapshots_same(const char *what, const struct ck_training *got,
                       const struct ck_training *want) {
  CK_HELD(struct ck_snapshot, snapshot, ck_snapshot_take(want));
  ck_snapshot_is(what, got, &snapshot);
}

bool ck_training_is_torn(struct ck_training *training) {
  char sentence[512] = "";
  if (call(training, 3) != EK_ERR_TORN) return false; /* a discard loses nothing here */
  strncpy(sentence, ek_error_message(), sizeof sentence - 1);
  for (int i = 0; i < CALLS; i++) {
    const ek_status status = call(training, i);
    ck_assert_msg(status == EK_ERR_TORN, "call %d of a torn model gave %s: %s", i,
                  ek_status_name(status), ek_error_message());
    ck_assert_str_eq(ek_error_message(), sentence);
  }
  return true;
}
