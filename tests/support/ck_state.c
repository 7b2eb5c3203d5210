/*
 * ck_state.c - all of a training's state in host memory: see ck_state.h.
 */
#include "ck_state.h"

struct ck_state ck_state_take(const ek_data_parallel_model *model) {
  struct ck_state state = {.count = ek_state_count(model)};
  state.info = ck_array(state.count, sizeof *state.info);
  state.host = ck_array(state.count, sizeof *state.host);
  for (size_t i = 0; i < state.count; i++) {
    ck_ok(ek_state_entry(&state.info[i], model, i));
    state.host[i] = state.info[i].like;
    state.host[i].data = ck_array(ek_tensor_bytes(&state.host[i]), 1);
    ck_ok(ek_state_read(&state.host[i], model, state.info[i].name));
  }
  return state;
}

ek_status ck_state_put(ek_data_parallel_model *model, const struct ck_state *state) {
  for (size_t i = state->count; i-- > 0;) {
    EK_TRY(ek_state_write(model, state->info[i].name, &state->host[i]));
  }
  return EK_OK;
}

static void same_entries(const char *what, const struct ck_state *a, const struct ck_state *b) {
  ck_assert_msg(a->count == b->count, "%s: %zu entries and %zu", what, a->count, b->count);
  for (size_t i = 0; i < a->count; i++) {
    ck_assert_msg(strcmp(a->info[i].name, b->info[i].name) == 0 &&
                      a->info[i].kind == b->info[i].kind &&
                      ek_tensor_same_shape(&a->host[i], &b->host[i]),
                  "%s: entry %s is not entry %s", what, a->info[i].name, b->info[i].name);
  }
}

void ck_state_same(const char *what, const struct ck_state *a, const struct ck_state *b) {
  same_entries(what, a, b);
  for (size_t i = 0; i < a->count; i++) {
    ck_assert_msg(memcmp(a->host[i].data, b->host[i].data, ek_tensor_bytes(&a->host[i])) == 0,
                  "%s: %s differs", what, a->info[i].name);
  }
}

void ck_state_is(const char *what, const ek_data_parallel_model *model,
                 const struct ck_state *want) {
  CK_HELD(struct ck_state, state, ck_state_take(model));
  ck_state_same(what, &state, want);
}

void ck_states_same(const char *what, const ek_data_parallel_model *got,
                    const ek_data_parallel_model *want) {
  CK_HELD(struct ck_state, state, ck_state_take(want));
  ck_state_is(what, got, &state);
}

static double *doubles(const ek_tensor *host) {
  const int64_t count = ek_tensor_count(host);
  double *values = ck_array((size_t)count, sizeof *values);
  for (int64_t i = 0; i < count; i++) {
    values[i] = host->type == EK_F32   ? (double)((float *)host->data)[i]
                : host->type == EK_F64 ? ((double *)host->data)[i]
                                       : (double)((int64_t *)host->data)[i];
  }
  return values;
}

void ck_state_close(const char *what, const struct ck_state *got, const struct ck_state *want,
                    double allowed) {
  same_entries(what, got, want);
  for (size_t i = 0; i < got->count; i++) {
    double *a = doubles(&got->host[i]), *b = doubles(&want->host[i]);
    const double error = ck_rel_l2(a, b, ek_tensor_count(&got->host[i]));
    double most = got->info[i].kind == EK_STATE_KIND_OPTIMIZER ? 10 * allowed : allowed;
    if (got->host[i].type == EK_I64) most = 0;
    ck_assert_msg(error <= most, "%s: %s is off by %.3g, allowed are %.3g", what, got->info[i].name,
                  error, most);
    ck_drop(a);
    ck_drop(b);
  }
}
