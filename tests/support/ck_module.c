/*
 * ck_module.c - tests that every module must pass: see ck_module.h.
 */
#include "ck_module.h"

void ck_plain_free(ek_module *self) { free(self); }

ek_status ck_share_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                           ek_tensor *outputs) {
  (void)self, (void)pass;
  return ek_tensor_share(&outputs[0], &inputs[0]);
}

ek_module *ck_linear(int64_t in, int64_t out, bool bias) {
  CK_GOT(ek_module *, module, ek_linear_create(&module, in, out, bias));
  return module;
}

void ck_no_free(ek_module *self) { (void)self; }

ek_status ck_share_backward(const ek_module *self, ek_pass *pass, const ek_tensor *grad_outputs,
                            ek_tensor *grad_inputs) {
  (void)self, (void)pass;
  return grad_inputs == NULL ? EK_OK : ek_tensor_share(&grad_inputs[0], &grad_outputs[0]);
}

ek_status ck_around(ek_module **module, ek_module *inner,
                    ek_status (*outer)(ek_module **, ek_module *)) {
  const ek_status status = outer(module, inner);
  ek_module_free(inner);
  return status;
}

ek_status ck_plain_create(ek_module **module, const ek_module_ops *ops, size_t inputs,
                          size_t outputs) {
  *module = ck_module_new(sizeof **module, ops, inputs, outputs);
  return EK_OK;
}

ek_status ck_sequential(ek_module **module, ek_module **parts, size_t count,
                        const ek_sequential_options *options) {
  const ek_status status = ek_sequential_create_with(module, parts, count, options);
  for (size_t i = 0; i < count; i++) ek_module_free(parts[i]);
  return status;
}

ek_status ck_weighted_sum(ek_criterion **criterion, ek_criterion **terms,
                          const double *coefficients, size_t count) {
  const ek_status status = ek_weighted_sum_create(criterion, terms, coefficients, count);
  for (size_t i = 0; i < count; i++) ek_criterion_free(terms[i]);
  return status;
}

enum { PROBES_IN_PARTS = 8 };

/* ---- what the library checks ---- */

size_t ck_module_case_inputs(const struct ck_module_case *is, const ek_module *module) {
  size_t inputs = 0;
  while (inputs < CK_MODULE_TENSORS && is->input[inputs].rank > 0) inputs++;
  ck_assert_uint_eq(ek_module_inputs(module), inputs);
  return inputs;
}

void ck_module_case_check(const struct ck_module_case *is, ek_check check) {
  /* The others use one device at a time. */
  if (CK_TSAN && check != EK_CHECK_DEVICES) return;
  ek_check_input inputs[CK_MODULE_TENSORS] = {{0}};
  CK_WITH(ek_module_check_options, options, EK_MODULE_CHECK_OPTIONS_INIT, .probes = is->probes);
  /* On emulated devices: what differs between elements of a tensor is the kernels', which tests/op
   * compares. */
  if (ck_in_parts() && (options.probes == 0 || options.probes > PROBES_IN_PARTS)) {
    options.probes = PROBES_IN_PARTS;
  }
  ck_assign(options, .longest = is->longest, .depth = is->depth, .left_out = ~(1u << check),
            .saved = (int64_t)(is->saved * EK_MEMORY_UNIT));
  CK_OPENED(ek_module *, module, is->create(&module));
  const size_t count = ck_module_case_inputs(is, module);
  for (size_t i = 0; i < count; i++) {
    const struct ck_input *from = &is->input[i];
    inputs[i] = (ek_check_input){
        .type = from->type, .rank = from->rank, .low = from->low, .high = from->high};
    inputs[i].gap = from->gap;
    inputs[i].broadcast = from->type == 0 && from->rank == 1; /* one sample without its dimension */
    memcpy(inputs[i].shape, from->shape, sizeof from->shape);
  }
  const ek_status status = ek_module_check(module, ck_spec("cpu:2"), inputs, count, &options);
  ck_assert_msg(status == EK_OK, "%s: %s", is->name, ek_error_message());
}

void ck_has_parameter(const ek_replica *replica, const char *name, const char *shape) {
  char text[64] = "";
  CK_GOT(ek_parameter_info, info, ek_replica_find(&info, replica, name));
  for (int d = 0; d < info.value.rank; d++) {
    (void)snprintf(text + strlen(text), sizeof text - strlen(text), d == 0 ? "%lld" : " %lld",
                   (long long)info.value.shape[d]);
  }
  ck_assert_msg(strcmp(text, shape) == 0, "%s is %s, not %s", name, text, shape);
}
