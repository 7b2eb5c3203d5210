/*
 * ck_rerun.c - modules that run their child otherwise than they run themselves: see ck_rerun.h.
 */
#include "ck_rerun.h"

#include "ck_mirror.h"
#include "ck_parent.h"

struct rerun {
  struct ck_parent parent;
  enum ck_rerun_flaw flaw;
};

static void free_all(ek_tensor *tensors, size_t count) {
  for (size_t i = 0; i < count; i++) ek_tensor_free(&tensors[i]);
}

/* ---- rerun ---- */

CK_FORWARD(rerun) {
  const enum ck_rerun_flaw flaw = ((const struct rerun *)self)->flaw;
  CK_WITH(ek_child_options, options, EK_CHILD_OPTIONS_INIT, .save = false);
  if (flaw == CK_RERUN_IN_BF16) options.precision = EK_PRECISION_BF16;
  if (flaw == CK_RERUN_IN_F64) options.precision = EK_PRECISION_F64;
  EK_TRY(ek_pass_child_forward_with(outputs, pass, 0, inputs, &options));
  for (size_t i = 0; i < ek_module_inputs(self); i++) EK_TRY(ek_pass_save(pass, &inputs[i]));
  return EK_OK;
}

static ek_status run_again(const ek_module *self, ek_pass *pass, const ek_tensor *inputs) {
  const enum ck_rerun_flaw flaw = ((const struct rerun *)self)->flaw;
  ek_tensor outputs[EK_MAX_TENSORS] = {{0}}, shorter = inputs[0];
  if (flaw == CK_RERUN_NOT) return EK_OK;
  if (flaw == CK_RERUN_SHORTER) shorter.shape[0]--;
  for (int i = 0; i < (flaw == CK_RERUN_TWICE ? 2 : 1); i++) {
    EK_TRY(ek_pass_child_forward(outputs, pass, 0, flaw == CK_RERUN_SHORTER ? &shorter : inputs));
    free_all(outputs, ek_module_outputs(self));
  }
  return EK_OK;
}

CK_BACKWARD(rerun) {
  ek_tensor inputs[EK_MAX_TENSORS] = {{0}};
  ek_status status = EK_OK;
  for (size_t i = ek_module_inputs(self); i-- > 0 && status == EK_OK;) {
    status = ek_pass_take(&inputs[i], pass);
  }
  if (status == EK_OK) status = run_again(self, pass, inputs);
  free_all(inputs, ek_module_inputs(self));
  if (status != EK_OK || ((const struct rerun *)self)->flaw == CK_RERUN_NO_BACKWARD) return status;
  return ek_pass_child_backward(grad_inputs, pass, 0, grad_outputs);
}

CK_PARENT_OPS(rerun, .parameters = ck_parent_wraps, .types = EK_TYPES_F32 | EK_TYPES_F64);

ek_status ck_rerun_create(ek_module **module, ek_module *child) {
  return ck_rerun_create_wrong(module, child, CK_RERUN_RIGHT);
}

ek_status ck_rerun_create_wrong(ek_module **module, ek_module *child, enum ck_rerun_flaw flaw) {
  struct rerun *m = ck_parent_new(sizeof *m, &rerun_ops, ek_module_share(child));
  m->flaw = flaw;
  *module = &m->parent.base;
  return EK_OK;
}

/* ---- widen ---- */

/* A copy of x in another type. */
static ek_status convert(ek_tensor *y, ek_pass *pass, ek_type type, const ek_tensor *x) {
  EK_TRY(ek_pass_output(y, pass, type, x->rank, x->shape));
  CK_MIRRORS(m, 1, y, x);
  for (int64_t i = 0; i < ek_tensor_count(x); i++) ck_put(&m.host[0], i, ck_at(&m.host[1], i));
  return ck_mirrors_close(&m);
}

CK_FORWARD(widen) {
  CK_FREED(tensor) x = {0}, y = {0};
  CK_WITH(ek_child_options, options, EK_CHILD_OPTIONS_INIT, .precision = EK_PRECISION_F64);
  EK_TRY(convert(&x, pass, EK_F64, &inputs[0]));
  EK_TRY(ek_pass_child_forward_with(&y, pass, 0, &x, &options));
  ek_tensor_free(&x);
  return convert(&outputs[0], pass, ek_pass_type(pass), &y);
}

CK_BACKWARD(widen) {
  CK_FREED(tensor) dy = {0}, dx = {0};
  EK_TRY(convert(&dy, pass, EK_F64, &grad_outputs[0]));
  EK_TRY(ek_pass_child_backward(grad_inputs == NULL ? NULL : &dx, pass, 0, &dy));
  ek_tensor_free(&dy);
  return grad_inputs == NULL ? EK_OK : convert(&grad_inputs[0], pass, ek_pass_type(pass), &dx);
}

CK_PARENT_OPS(widen, .parameters = ck_parent_wraps, .types = EK_TYPES_F32 | EK_TYPES_F64);

ek_status ck_widen_create(ek_module **module, ek_module *child) {
  struct ck_parent *m = ck_parent_new(sizeof *m, &widen_ops, ek_module_share(child));
  *module = &m->base;
  return EK_OK;
}

/* ---- counter ---- */

CK_PARAMETERS(counter) {
  return ek_declare_buffer(declaration, "count", 1, (const int64_t[]){3}, ek_initializer_zeros());
}

CK_FORWARD(counter) {
  const int place = ek_pass_is_recomputing(pass) ? 2 : ek_pass_wants_gradient(pass) ? 0 : 1;
  ek_tensor count = {0};
  EK_TRY(ek_tensor_share(&outputs[0], &inputs[0]));
  EK_TRY(ek_pass_parameter(&count, pass, 0));
  CK_MIRRORS(m, 1, &count);
  ck_put(&m.host[0], place, ck_at(&m.host[0], place) + 1);
  return ck_mirrors_close(&m);
}

static const ek_module_ops counter_ops = {
    CK_OPS("counter", counter_forward, ck_share_backward, ck_plain_free),
    .parameters = counter_parameters, .types = EK_TYPES_F32 | EK_TYPES_F64};

ek_status ck_counter_create(ek_module **module) {
  return ck_plain_create(module, &counter_ops, 1, 1);
}
