/*
 * ck_mixer.c - modules in plain C: see ck_mixer.h.
 */
#include "ck_mixer.h"

#include <stdlib.h>

/* ---- a module in plain C: two inputs (one of integers), two outputs ---- */

enum { N = CK_MIXER_WIDTH, KINDS = CK_MIXER_KINDS };

static double at(const ek_tensor *t, int64_t i) {
  return t->type == EK_F32 ? (double)((const float *)t->data)[i] : ((const double *)t->data)[i];
}

static void put(ek_tensor *t, int64_t i, double value) {
  if (t->type == EK_F32) {
    ((float *)t->data)[i] = (float)value;
  } else {
    ((double *)t->data)[i] = value;
  }
}

static ek_status mixer_parameters(const ek_module *self, ek_declaration *declaration) {
  static const int64_t shape[] = {KINDS, N};
  (void)self;
  return ek_declare_parameter(declaration, "table", 2, shape, ek_initializer_normal(0, 1));
}

static ek_status mixer_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                               ek_tensor *outputs) {
  const ek_tensor *x = &inputs[0], *kind = &inputs[1];
  ek_tensor table;
  (void)self;
  if (x->rank != 2 || x->shape[1] != N || kind->rank != 1 || kind->shape[0] != x->shape[0]) {
    return ek_error_set(EK_ERR_SHAPE, "mixer: expected [B, %d] and [B]", N);
  }
  EK_TRY(ek_pass_parameter(&table, pass, 0));
  EK_TRY(ek_pass_output(&outputs[0], pass, ek_pass_type(pass), 2, x->shape));
  EK_TRY(ek_pass_output(&outputs[1], pass, ek_pass_type(pass), 2, x->shape));
  for (int64_t i = 0; !ek_device_counts_only(ek_pass_device(pass)) && i < ek_tensor_count(x); i++) {
    const int64_t entry = ((const int32_t *)kind->data)[i / N] * N + i % N;
    put(&outputs[0], i, at(x, i) * at(&table, entry));
    put(&outputs[1], i, at(x, i) + at(&table, entry));
  }
  EK_TRY(ek_pass_save(pass, x));
  return ek_pass_save(pass, kind);
}

static void mixer_loops(const ek_tensor *x, const ek_tensor *kind, const ek_tensor *table,
                        ek_tensor *dtable, const ek_tensor *dy, ek_tensor *dx) {
  for (int64_t i = 0; i < ek_tensor_count(x); i++) {
    const int64_t entry = ((const int32_t *)kind->data)[i / N] * N + i % N;
    put(dtable, entry, at(dtable, entry) + at(&dy[0], i) * at(x, i) + at(&dy[1], i));
    if (dx != NULL) put(dx, i, at(&dy[0], i) * at(table, entry) + at(&dy[1], i));
  }
}

static ek_status mixer_gradients(ek_pass *pass, const ek_tensor *x, const ek_tensor *kind,
                                 const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  ek_tensor table, dtable;
  EK_TRY(ek_pass_parameter(&table, pass, 0));
  EK_TRY(ek_pass_gradient(&dtable, NULL, pass, 0)); /* zeroed the first time: it is added to */
  if (grad_inputs != NULL) {
    EK_TRY(ek_pass_output(&grad_inputs[0], pass, ek_pass_type(pass), 2, x->shape));
  }
  if (!ek_device_counts_only(ek_pass_device(pass))) {
    mixer_loops(x, kind, &table, &dtable, grad_outputs, grad_inputs);
  }
  return ek_pass_gradient_complete(pass, 0);
}

static ek_status mixer_backward(const ek_module *self, ek_pass *pass, const ek_tensor *grad_outputs,
                                ek_tensor *grad_inputs) {
  ek_tensor x = {0}, kind = {0};
  (void)self;
  ek_status status = ek_pass_take(&kind, pass);
  if (status == EK_OK) status = ek_pass_take(&x, pass);
  if (status == EK_OK) status = mixer_gradients(pass, &x, &kind, grad_outputs, grad_inputs);
  ek_tensor_free(&kind);
  ek_tensor_free(&x);
  return status;
}

static void plain_free(ek_module *self) { free(self); }

static const ek_module_ops mixer_ops = {.size = sizeof(ek_module_ops),
                                        .kind = "mixer",
                                        .parameters = mixer_parameters,
                                        .forward = mixer_forward,
                                        .backward = mixer_backward,
                                        .free = plain_free};

ek_status ck_mixer_create(ek_module **module) {
  ek_module *m = calloc(1, sizeof *m);
  if (m == NULL) return ek_error_set(EK_ERR_OUT_OF_MEMORY, "mixer: no memory");
  *module = m;
  return ek_module_init(m, &mixer_ops, 2, 2);
}

/* ---- a composite that uses one child twice, both outputs of one the inputs of the other ---- */

struct twice {
  ek_module base;
  ek_module *mixer;
};

static ek_status twice_parameters(const ek_module *self, ek_declaration *declaration) {
  EK_TRY(ek_declare_module(declaration, "first", ((const struct twice *)self)->mixer));
  EK_TRY(ek_declare_module(declaration, "second", ((const struct twice *)self)->mixer));
  return ek_declare_tie(declaration, "second.table", "first.table");
}

static ek_status twice_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                               ek_tensor *outputs) {
  (void)self;
  ek_tensor middle[2] = {{0}};
  EK_TRY(ek_pass_forward(pass, 0, inputs, middle));
  outputs[2] = middle[1];
  const ek_tensor second[2] = {middle[0], inputs[1]};
  const ek_status status = ek_pass_forward(pass, 1, second, outputs);
  ek_tensor_free(&middle[0]);
  return status;
}

static ek_status twice_backward(const ek_module *self, ek_pass *pass, const ek_tensor *grad_outputs,
                                ek_tensor *grad_inputs) {
  (void)self;
  ek_tensor middle[2] = {{0}};
  EK_TRY(ek_pass_backward(pass, 1, grad_outputs, middle));
  const ek_tensor first[2] = {middle[0], grad_outputs[2]};
  const ek_status status = ek_pass_backward(pass, 0, first, grad_inputs);
  ek_tensor_free(&middle[0]);
  return status;
}

static void twice_free(ek_module *self) {
  ek_module_free(((struct twice *)self)->mixer);
  free(self);
}

static const ek_module_ops twice_ops = {.size = sizeof(ek_module_ops),
                                        .kind = "twice",
                                        .parameters = twice_parameters,
                                        .forward = twice_forward,
                                        .backward = twice_backward,
                                        .free = twice_free};

ek_status ck_mixer_twice_create(ek_module **module) {
  struct twice *m = calloc(1, sizeof *m);
  if (m == NULL) return ek_error_set(EK_ERR_OUT_OF_MEMORY, "twice: no memory");
  EK_TRY(ck_mixer_create(&m->mixer));
  *module = &m->base;
  return ek_module_init(&m->base, &twice_ops, 2, 3);
}
