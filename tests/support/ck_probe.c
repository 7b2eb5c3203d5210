/*
 * ck_probe.c - a module that runs functions of a test: see ck_probe.h.
 */
#include "ck_probe.h"

/* ---- the module ---- */

CK_PARAMETERS(probe) {
  static const int64_t shape[] = {2};
  EK_TRY(ek_declare_parameter(declaration, "a", 1, shape, ek_initializer_ones()));
  EK_TRY(ek_declare_parameter(declaration, "b", 1, shape, ek_initializer_ones()));
  return ek_declare_buffer(declaration, "c", 1, shape, ek_initializer_constant(7));
}

CK_FORWARD(probe) {
  const struct ck_probe_module *m = (const struct ck_probe_module *)self;
  EK_TRY(ek_tensor_share(&outputs[0], &inputs[0]));
  return m->forward == NULL ? EK_OK : m->forward(pass, &inputs[0]);
}

CK_BACKWARD(probe) {
  const struct ck_probe_module *m = (const struct ck_probe_module *)self;
  if (grad_inputs != NULL) EK_TRY(ek_tensor_share(&grad_inputs[0], &grad_outputs[0]));
  return m->backward == NULL ? EK_OK : m->backward(pass, &grad_outputs[0]);
}

CK_PLAIN_OPS(probe, .parameters = probe_parameters, .types = EK_TYPES_F32 | EK_TYPES_F64);

/* ---- a pass over it ---- */

static void close_probe(void *probe) {
  struct ck_probe *s = probe;
  ek_tensor_free(&s->x); /* which y and dx may share */
  ek_tensor_free(&s->y);
  ek_tensor_free(&s->dx);
  ek_pass_free(s->pass);
  ek_replica_free(s->replica);
  ek_module_free(&s->probe->base);
  free(s);
}

struct ck_probe *ck_probe_open(ek_status (*forward)(ek_pass *pass, const ek_tensor *x),
                               ek_status (*backward)(ek_pass *pass, const ek_tensor *dy)) {
  struct ck_probe *s = calloc(1, sizeof *s);
  ck_assert_ptr_nonnull(s);
  s->group = ck_open("cpu:1", 1);
  s->device = ek_group_device(s->group, 0);
  s->probe = calloc(1, sizeof *s->probe);
  ck_assert_ptr_nonnull(s->probe);
  s->probe->forward = forward;
  s->probe->backward = backward;
  ck_ok(ek_module_init(&s->probe->base, &probe_ops, 1, 1));
  ck_ok(ek_replica_open(&s->replica, s->device, &s->probe->base, NULL));
  ck_ok(ek_pass_open(&s->pass, s->replica, NULL));
  s->x = ck_upload(s->device, EK_F32, (const double[]){3, 4}, CK_SHAPE(1, 2));
  ck_keep_by(s, close_probe);
  return s;
}

void ck_probe_pass(struct ck_probe *s, const ek_pass_options *options) {
  ek_pass_free(s->pass);
  ck_ok(ek_pass_open(&s->pass, s->replica, options));
}
