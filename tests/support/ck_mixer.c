/*
 * ck_mixer.c - modules in plain C: see ck_mixer.h.
 */
#include "ck_mixer.h"

#include "ck_mirror.h"

/* ---- a module in plain C: two inputs (one of integers), two outputs ---- */

enum { N = CK_MIXER_WIDTH, KINDS = CK_MIXER_KINDS };

CK_PARAMETERS(mixer) {
  static const int64_t shape[] = {KINDS, N};
  return ek_declare_parameter(declaration, "table", 2, shape, ek_initializer_normal(0, 1));
}

CK_FORWARD(mixer) {
  const ek_tensor *x = &inputs[0], *kind = &inputs[1];
  ek_tensor table, loans[2] = {inputs[0], inputs[1]};
  if (x->rank != 2 || x->shape[1] != N || kind->rank != 1 || kind->shape[0] != x->shape[0]) {
    return ek_error_set(EK_ERR_SHAPE, "expected [B, %d] and [B]", N);
  }
  EK_TRY(ek_pass_parameter(&table, pass, 0));
  EK_TRY(ek_pass_output(&outputs[0], pass, ek_pass_type(pass), 2, x->shape));
  EK_TRY(ek_pass_output(&outputs[1], pass, ek_pass_type(pass), 2, x->shape));
  struct ck_mirrors m;
  const ek_status status = ck_mirrors_open(
      &m, 2, (ek_tensor *[]){&outputs[0], &outputs[1], &table, &loans[0], &loans[1]}, 5);
  for (int64_t i = 0; status == EK_OK && i < ek_tensor_count(x); i++) {
    const int64_t entry = ((const int32_t *)m.host[4].data)[i / N] * N + i % N;
    ck_put(&m.host[0], i, ck_at(&m.host[3], i) * ck_at(&m.host[2], entry));
    ck_put(&m.host[1], i, ck_at(&m.host[3], i) + ck_at(&m.host[2], entry));
  }
  EK_TRY(ck_mirrors_close(&m, status));
  EK_TRY(ek_pass_save(pass, x));
  return ek_pass_save(pass, kind);
}

/* dtable, dx, table, x, dy0, dy1, kind */
static void mixer_loops(struct ck_mirrors *m, bool inputs) {
  ek_tensor *dtable = &m->host[0], *dx = &m->host[1];
  const ek_tensor *table = &m->host[2], *x = &m->host[3], *dy = &m->host[4];
  for (int64_t i = 0; i < ek_tensor_count(x); i++) {
    const int64_t entry = ((const int32_t *)m->host[6].data)[i / N] * N + i % N;
    const double dy0 = ck_at(&dy[0], i), dy1 = ck_at(&dy[1], i);
    ck_put(dtable, entry, ck_at(dtable, entry) + dy0 * ck_at(x, i) + dy1);
    if (inputs) ck_put(dx, i, dy0 * ck_at(table, entry) + dy1);
  }
}

static ek_status mixer_gradients(ek_pass *pass, ek_tensor *x, ek_tensor *kind,
                                 const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  ek_tensor table, dtable, dy[2] = {grad_outputs[0], grad_outputs[1]};
  EK_TRY(ek_pass_parameter(&table, pass, 0));
  EK_TRY(ek_pass_gradient(&dtable, NULL, pass, 0)); /* zeroed the first time: it is added to */
  if (grad_inputs != NULL) {
    EK_TRY(ek_pass_output(&grad_inputs[0], pass, ek_pass_type(pass), 2, x->shape));
  }
  ek_tensor *dx = grad_inputs != NULL ? &grad_inputs[0] : &dtable; /* then only in its place */
  struct ck_mirrors m;
  const ek_status status =
      ck_mirrors_open(&m, grad_inputs != NULL ? 2 : 1,
                      (ek_tensor *[]){&dtable, dx, &table, x, &dy[0], &dy[1], kind}, 7);
  if (status == EK_OK) mixer_loops(&m, grad_inputs != NULL);
  EK_TRY(ck_mirrors_close(&m, status));
  return ek_pass_gradient_complete(pass, 0);
}

CK_BACKWARD(mixer) {
  ek_tensor x = {0}, kind = {0};
  ek_status status = ek_pass_take(&kind, pass);
  if (status == EK_OK) status = ek_pass_take(&x, pass);
  if (status == EK_OK) status = mixer_gradients(pass, &x, &kind, grad_outputs, grad_inputs);
  ek_tensor_free(&kind);
  ek_tensor_free(&x);
  return status;
}

static void plain_free(ek_module *self) { free(self); }

static const ek_module_ops mixer_ops = {CK_OPS("mixer", mixer_forward, mixer_backward, plain_free),
                                        .parameters = mixer_parameters,
                                        .types = EK_TYPES_F32 | EK_TYPES_F64};

ek_status ck_mixer_create(ek_module **module) {
  *module = ck_module_new(sizeof **module, &mixer_ops, 2, 2);
  return EK_OK;
}

/* ---- a composite that uses one child twice, both outputs of one the inputs of the other ---- */

struct twice {
  ek_module base;
  ek_module *mixer;
};

CK_PARAMETERS(twice) {
  EK_TRY(ek_declare_module(declaration, "first", ((const struct twice *)self)->mixer));
  EK_TRY(ek_declare_module(declaration, "second", ((const struct twice *)self)->mixer));
  return ek_declare_tie(declaration, "second.table", "first.table");
}

CK_FORWARD(twice) {
  ek_tensor middle[2] = {{0}};
  EK_TRY(ek_pass_child_forward(middle, pass, 0, inputs));
  outputs[2] = middle[1];
  const ek_tensor second[2] = {middle[0], inputs[1]};
  const ek_status status = ek_pass_child_forward(outputs, pass, 1, second);
  ek_tensor_free(&middle[0]);
  return status;
}

CK_BACKWARD(twice) {
  ek_tensor middle[2] = {{0}};
  EK_TRY(ek_pass_child_backward(middle, pass, 1, grad_outputs));
  const ek_tensor first[2] = {middle[0], grad_outputs[2]};
  const ek_status status = ek_pass_child_backward(grad_inputs, pass, 0, first);
  ek_tensor_free(&middle[0]);
  return status;
}

static void twice_free(ek_module *self) {
  ek_module_free(((struct twice *)self)->mixer);
  free(self);
}

CK_MODULE_OPS_WITH(twice, .parameters = twice_parameters, .types = EK_TYPES_F32 | EK_TYPES_F64);

ek_status ck_mixer_twice_create(ek_module **module) {
  struct twice *m = calloc(1, sizeof *m);
  if (m == NULL) return ek_error_set(EK_ERR_OUT_OF_MEMORY, "twice: no memory");
  EK_TRY(ck_mixer_create(&m->mixer));
  *module = &m->base;
  return ek_module_init(&m->base, &twice_ops, 2, 3);
}
