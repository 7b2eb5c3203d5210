/*
 * check_module_state.c - what a module keeps on each device: opened and closed where, when, and in
 * which order, and given to the right use of it.
 */
#include <pthread.h>

#include "ek_check.h"

enum { MOST = 32 };

/* What a keeper made for one use on one device. */
struct state {
  int number; /* of its opening, from 0 */
  ek_device *device;
  pthread_t thread;
  int forwards, backwards;
};

/* y = x. Notes what happens to its states; shared by the devices. */
struct keeper {
  ek_module base;
  pthread_mutex_t mutex;
  int fail_at; /* number of the opening that fails, or -1 */
  int fail_on; /* index of the device whose openings fail, or -1 */
  int opened, closed, wrong;
  int order[MOST]; /* numbers of the states in the order of closing */
  struct state states[MOST];
};

static ek_status keeper_open(const ek_module *self, ek_device *device, void **state) {
  struct keeper *m = (struct keeper *)self;
  pthread_mutex_lock(&m->mutex);
  const int number = m->opened;
  const bool fails = number == m->fail_at || (int)ek_device_index(device) == m->fail_on;
  if (*state != NULL) m->wrong++;
  if (!fails) {
    m->states[number] = (struct state){number, device, pthread_self(), 0, 0};
    *state = &m->states[number];
    m->opened++;
  }
  pthread_mutex_unlock(&m->mutex);
  return fails ? ek_error_set(EK_ERR_IO, "no handle number %d", number) : EK_OK;
}

static void keeper_close(const ek_module *self, ek_device *device, void *state) {
  struct keeper *m = (struct keeper *)self;
  const struct state *s = state;
  pthread_mutex_lock(&m->mutex);
  m->order[m->closed++] = s->number;
  if (s->device != device || !pthread_equal(s->thread, pthread_self())) m->wrong++;
  pthread_mutex_unlock(&m->mutex);
}

CK_FORWARD(keeper) {
  struct state *s = ek_pass_state(pass);
  if (s->device != ek_pass_device(pass) || !pthread_equal(s->thread, pthread_self())) {
    return ek_error_set(EK_ERR_INTERNAL, "the state of another device");
  }
  s->forwards++;
  return ek_tensor_share(&outputs[0], &inputs[0]);
}

CK_BACKWARD(keeper) {
  struct state *s = ek_pass_state(pass);
  if (s->device != ek_pass_device(pass)) return EK_ERR_INTERNAL;
  s->backwards++;
  return grad_inputs == NULL ? EK_OK : ek_tensor_share(&grad_inputs[0], &grad_outputs[0]);
}

static void keeper_free(ek_module *self) {
  struct keeper *m = (struct keeper *)self;
  pthread_mutex_destroy(&m->mutex);
}

CK_MODULE_OPS_WITH(keeper, .open = keeper_open, .close = keeper_close);

static void keeper_init(struct keeper *m) {
  *m = (struct keeper){.fail_at = -1, .fail_on = -1};
  ck_assert_int_eq(pthread_mutex_init(&m->mutex, NULL), 0);
  ck_ok(ek_module_init(&m->base, &keeper_ops, 1, 1));
}

/* It three times, the last one deeper. */
static ek_module *three_uses(struct keeper *m) {
  ek_module *module = NULL;
  CK_SCOPED(ek_module *, inner, ek_sequential_create(&inner, (ek_module *[]){&m->base}, 1));
  ck_ok(ek_sequential_create(&module, (ek_module *[]){&m->base, &m->base, inner}, 3));
  return module;
}

static void finish(struct keeper *m, ek_module *module, ek_group *group) {
  ck_assert_int_eq(m->wrong, 0);
  ek_module_free(module);
  ek_module_free(&m->base);
  ck_no_memory_held(group);
  ek_group_free(group);
}

/* ---- one replica ---- */

CK_TEST(each_use_has_a_state) {
  CK_SET_UP(struct keeper, m, keeper_init(&m));
  ek_module *module = three_uses(&m);
  ek_group *group = ck_open("cpu:1", 1);
  ek_device *device = ek_group_device(group, 0);
  ek_replica *replicas[2] = {NULL, NULL};
  for (int r = 0; r < 2; r++) ck_ok(ek_replica_open(&replicas[r], device, module, NULL));
  ck_assert_int_eq(m.opened, 6);
  ek_tensor x = ck_upload(device, EK_F32, (const double[]){1, 2}, CK_SHAPE(1, 2)), y = {0};
  CK_GOT(ek_pass *, pass, ek_pass_open(&pass, replicas[1], NULL));
  ck_assert_ptr_null(ek_pass_state(pass)); /* of the sequential */
  ck_assert_ptr_null(ek_pass_state(NULL));
  ck_ok(ek_pass_run_forward(&y, pass, &x));
  ck_ok(ek_pass_run_backward(NULL, pass, &y));
  for (int i = 0; i < 6; i++) {
    ck_assert_int_eq(m.states[i].forwards, i >= 3);
    ck_assert_int_eq(m.states[i].backwards, i >= 3);
  }
  ek_pass_free(pass);
  ek_tensor_free(&x);
  ek_tensor_free(&y);
  for (int r = 0; r < 2; r++) ek_replica_free(replicas[r]);
  ck_assert_int_eq(m.closed, 6);
  for (int i = 0; i < 6; i++) ck_assert_int_eq(m.order[i], i < 3 ? 2 - i : 8 - i);
  finish(&m, module, group);
}

/* What was opened before a failure is closed, the last one first. */
CK_LOOP(open_fails, 3) {
  static const char *const messages[] = {"0 (keeper), open: no handle number 0",
                                         "1 (keeper), open: no handle number 1",
                                         "2.0 (keeper), open: no handle number 2"};
  CK_SET_UP(struct keeper, m, keeper_init(&m));
  m.fail_at = _i;
  ek_module *module = three_uses(&m);
  ek_group *group = ck_open("cpu:1", 1);
  ek_replica *replica = NULL;
  ck_fails(ek_replica_open(&replica, ek_group_device(group, 0), module, NULL), EK_ERR_IO,
           messages[_i]);
  ck_assert_ptr_null(replica);
  ck_assert_int_eq(m.closed, _i);
  for (int i = 0; i < _i; i++) ck_assert_int_eq(m.order[i], _i - 1 - i);
  finish(&m, module, group);
}

/* ---- a data-parallel model ---- */

static void forward_and_backward(ek_data_parallel_model *model) {
  float values[14] = {1, 2, 3};
  CK_GOT(ek_tensor, x, ek_tensor_host(&x, values, EK_F32, 2, (const int64_t[]){7, 2}));
  CK_SCOPED(ek_shards, y, ek_data_parallel_model_forward(&y, model, &x, 1, NULL));
  ck_ok(ek_data_parallel_model_backward(model, &y, 1, NULL));
}

CK_TEST(on_the_workers) {
  CK_SET_UP(struct keeper, m, keeper_init(&m));
  ek_module *module = three_uses(&m);
  ek_group *group = ck_open("cpu:3", 1);
  CK_GOT(ek_data_parallel_model *, model, ek_data_parallel_model_open(&model, group, module, NULL));
  ck_assert_int_eq(m.opened, 9);
  forward_and_backward(model);
  for (int i = 0; i < 9; i++) {
    ck_assert_int_eq(m.states[i].forwards, 1);
    ck_assert_int_eq(m.states[i].backwards, 1);
    ck_assert(!pthread_equal(m.states[i].thread, pthread_self()));
  }
  ek_data_parallel_model_free(model);
  ck_assert_int_eq(m.closed, 9);
  finish(&m, module, group);
}

CK_LOOP(open_fails_on_one_device, 3) {
  CK_SET_UP(struct keeper, m, keeper_init(&m));
  m.fail_on = _i;
  ek_module *module = three_uses(&m);
  ek_group *group = ck_open("cpu:3", 1);
  ek_data_parallel_model *model = NULL;
  ck_fails(ek_data_parallel_model_open(&model, group, module, NULL), EK_ERR_IO,
           "0 (keeper), open: no handle number");
  ck_assert_ptr_null(model);
  ck_assert_int_eq(m.opened, 6);
  ck_assert_int_eq(m.closed, 6);
  finish(&m, module, group);
}

CK_SUITE("module_state")
