/*
 * ck_mixer.c - modules in plain C: see ck_mixer.h.
 */
#include "ck_mixer.h"

#include "ck_mirror.h"
#include "ck_parent.h"

/* ---- a module in plain C: two inputs (one of integers), two outputs ---- */

enum { N = CK_MIXER_WIDTH, KINDS = CK_MIXER_KINDS };

CK_PARAMETERS(mixer) {
  static const int64_t shape[] = {KINDS, N};
  return ek_declare_parameter(declaration, "table", 2, shape, ek_initializer_normal(0, 1));
}

CK_FORWARD(mixer) {
  const ek_tensor *x = &inputs[0], *kind = &inputs[1];
  ek_tensor table;
  if (x->rank != 2 || x->shape[1] != N || kind->rank != 1 || kind->shape[0] != x->shape[0]) {
    return ek_error_set(EK_ERR_SHAPE, "expected [B, %d] and [B]", N);
  }
  EK_TRY(ek_pass_parameter(&table, pass, 0));
  EK_TRY(ek_pass_output(&outputs[0], pass, ek_pass_type(pass), 2, x->shape));
  EK_TRY(ek_pass_output(&outputs[1], pass, ek_pass_type(pass), 2, x->shape));
  CK_MIRRORS(m, 2, &outputs[0], &outputs[1], &table, x, kind);
  for (int64_t i = 0; i < ek_tensor_count(x); i++) {
    const int64_t entry = ((const int32_t *)m.host[4].data)[i / N] * N + i % N;
    ck_put(&m.host[0], i, ck_at(&m.host[3], i) * ck_at(&m.host[2], entry));
    ck_put(&m.host[1], i, ck_at(&m.host[3], i) + ck_at(&m.host[2], entry));
  }
  EK_TRY(ck_mirrors_close(&m));
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

CK_BACKWARD(mixer) {
  CK_FREED(tensor) x = {0}, kind = {0};
  ek_tensor table, dtable, *dx = &dtable; /* then only in its place */
  EK_TRY(ek_pass_take(&kind, pass));
  EK_TRY(ek_pass_take(&x, pass));
  EK_TRY(ek_pass_parameter(&table, pass, 0));
  EK_TRY(ek_pass_gradient(&dtable, NULL, pass, 0)); /* zeroed the first time: it is added to */
  if (grad_inputs != NULL) {
    dx = &grad_inputs[0];
    EK_TRY(ek_pass_output(dx, pass, ek_pass_type(pass), 2, x.shape));
  }
  const size_t written = grad_inputs != NULL ? 2 : 1;
  CK_MIRRORS(m, written, &dtable, dx, &table, &x, &grad_outputs[0], &grad_outputs[1], &kind);
  mixer_loops(&m, grad_inputs != NULL);
  EK_TRY(ck_mirrors_close(&m));
  return ek_pass_gradient_complete(pass, 0);
}

CK_PLAIN_OPS(mixer, .parameters = mixer_parameters, .types = EK_TYPES_F32 | EK_TYPES_F64);

ek_status ck_mixer_create(ek_module **module) { return ck_plain_create(module, &mixer_ops, 2, 2); }

/* ---- a composite that uses one child twice, both outputs of one the inputs of the other ---- */

CK_PARAMETERS(twice) {
  EK_TRY(ek_declare_module(declaration, "first", ck_child(self, 0)));
  EK_TRY(ek_declare_module(declaration, "second", ck_child(self, 0)));
  return ek_declare_tie(declaration, "second.table", "first.table");
}

CK_FORWARD(twice) {
  ek_tensor middle[2] = {{0}};
  EK_TRY(ek_pass_child_forward(middle, pass, 0, inputs));
  CK_FREED(tensor) first = middle[0];
  outputs[2] = middle[1];
  return ek_pass_child_forward(outputs, pass, 1, (const ek_tensor[]){first, inputs[1]});
}

CK_BACKWARD(twice) {
  ek_tensor middle[2] = {{0}};
  EK_TRY(ek_pass_child_backward(middle, pass, 1, grad_outputs));
  CK_FREED(tensor) first = middle[0];
  return ek_pass_child_backward(grad_inputs, pass, 0, (const ek_tensor[]){first, grad_outputs[2]});
}

CK_PARENT_OPS(twice, .parameters = twice_parameters, .types = EK_TYPES_F32 | EK_TYPES_F64);

ek_status ck_mixer_twice_create(ek_module **module) {
  struct ck_parent *m = ck_module_new(sizeof *m, &twice_ops, 2, 3);
  *module = &m->base;
  return ck_mixer_create(&m->children[0]);
}
