/*
 * ck_spike.c - see ck_spike.h.
 */
#include "ck_spike.h"

#include "ck_parent.h"

static struct {
  bool on;
  size_t device;
  double factor;
} place;

void ck_spike_at(size_t device, double factor) {
  ck_assign(place, .on = true, .device = device, .factor = factor);
}

void ck_spike_nowhere(void) { place.on = false; }

CK_BACKWARD(spike) {
  ek_tensor given[EK_MAX_TENSORS] = {{0}};
  CK_FREED(tensor) made = {0};
  const ek_tensor *first = &grad_outputs[0];
  if (!place.on || ek_device_index(ek_pass_device(pass)) != place.device) {
    return ek_pass_child_backward(grad_inputs, pass, 0, grad_outputs);
  }
  memcpy(given, grad_outputs, ek_module_outputs(self) * sizeof *given);
  EK_TRY(ek_pass_workspace(&made, pass, first->type, first->rank, first->shape));
  EK_TRY(ek_op_scale(ek_pass_stream(pass), &made, first, place.factor));
  given[0] = made;
  return ek_pass_child_backward(grad_inputs, pass, 0, given);
}

static const ek_module_ops spike_ops = {
    CK_OPS("spike", ck_parent_forward, spike_backward, ck_parent_free),
    .parameters = ck_parent_wraps,
    .types = EK_TYPES_F32 | EK_TYPES_F64 | EK_TYPES_BF16 | EK_TYPES_F16};

ek_module *ck_spike(ek_module *inner) {
  return ck_parent_new(sizeof(struct ck_parent), &spike_ops, inner);
}

static const struct ck_workload *spiked; /* what the spiked ones compute */

static ek_status spiked_module(ek_module **module) {
  EK_TRY(spiked->module(module));
  *module = ck_spike(*module);
  return EK_OK;
}

struct ck_workload ck_spiked(const char *name) {
  spiked = ck_workload(name);
  CK_WITH(struct ck_workload, workload, *ck_workload(name), .module = spiked_module);
  return workload;
}
