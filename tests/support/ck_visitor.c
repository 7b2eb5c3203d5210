/*
 * ck_visitor.c - a module that does its child's work: see ck_visitor.h.
 */
#include "ck_visitor.h"

#include "ck_parent.h"

CK_PARAMETERS(visitor) {
  EK_TRY(ek_declare_parameter(declaration, "own", 1, (const int64_t[]){5}, ek_initializer_ones()));
  return ek_declare_module(declaration, "child", ck_child(self, 0));
}

CK_FORWARD(visitor) {
  ek_tensor t = {0};
  const uint32_t own_stream = ek_pass_random(pass).stream;
  ck_fails(ek_pass_child_leave(pass), EK_ERR_STATE, "the module has not entered a child");
  ck_fails(ek_pass_child_enter(pass, 1), EK_ERR_INVALID_ARGUMENT, "no child number 1");
  const bool wanted = ek_pass_wants_outputs(pass);
  CK_WITH(ek_child_options, options, EK_CHILD_OPTIONS_INIT, .unread = true);
  EK_TRY(ek_pass_child_enter_with(pass, 0, NULL, &options));
  ck_assert(!ek_pass_wants_outputs(pass));
  ck_fails(ek_pass_child_enter(pass, 0), EK_ERR_STATE, "the module is already in a child");
  ck_fails(ek_pass_parameter(&t, pass, 1), EK_ERR_INVALID_ARGUMENT, "no parameter number 1");
  ck_assert_uint_ne(ek_pass_random(pass).stream, own_stream);
  EK_TRY(ek_pass_parameter(&t, pass, 0));
  ck_assert_int_eq(t.rank, 2);
  EK_TRY(ek_pass_output(&outputs[0], pass, inputs[0].type, 2, inputs[0].shape));
  EK_TRY(ek_op_linear(ek_pass_stream(pass), &outputs[0], &inputs[0], &t, NULL));
  EK_TRY(ek_pass_child_leave(pass));
  ck_assert(ek_pass_wants_outputs(pass) == wanted);
  ck_assert_uint_eq(ek_pass_random(pass).stream, own_stream);
  EK_TRY(ek_pass_parameter(&t, pass, 0));
  ck_assert_int_eq(t.rank, 1);
  return ek_pass_save(pass, &inputs[0]);
}

/* Returns without leaving, which must not matter to whoever called. */
CK_BACKWARD(visitor) {
  CK_FREED(tensor) x = {0};
  ek_tensor t;
  double beta = 0;
  EK_TRY(ek_pass_child_enter(pass, 0));
  EK_TRY(ek_pass_take(&x, pass));
  EK_TRY(ek_pass_gradient(&t, &beta, pass, 0));
  EK_TRY(ek_op_linear_gradients(ek_pass_stream(pass), &t, NULL, &grad_outputs[0], &x, beta, 0));
  ek_tensor_free(&x);
  EK_TRY(ek_pass_gradient_complete(pass, 0));
  if (grad_inputs == NULL) return EK_OK;
  EK_TRY(ek_pass_parameter(&t, pass, 0));
  EK_TRY(ek_pass_output(&grad_inputs[0], pass, t.type, 2, grad_outputs[0].shape));
  return ek_op_matmul(ek_pass_stream(pass), &grad_inputs[0], &grad_outputs[0], false, &t, false, 0);
}

CK_PARENT_OPS(visitor, .parameters = visitor_parameters, .types = EK_TYPES_F32 | EK_TYPES_F64);

ek_status ck_visitor_create(ek_module **module) {
  CK_GOT(ek_module *, child, ek_linear_create(&child, 3, 3, false));
  struct ck_parent *m = ck_parent_new(sizeof *m, &visitor_ops, child);
  *module = &m->base;
  return EK_OK;
}

ek_status ck_visitors_create(ek_module **module) {
  CK_SCOPED(ek_module *, visitor, ck_visitor_create(&visitor));
  ck_ok(ek_sequential_create(module, (ek_module *[]){visitor, visitor}, 2));
  return EK_OK;
}
