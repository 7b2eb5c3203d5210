/*
 * criterion_pass.c - opens a pass of a criterion: over what a device has, or over a grain of it.
 */
#include "criterion_internal.h"

ek_status ek__criterion_open_pass(ek_pass **pass, const ek_data_parallel_criterion *self,
                                  size_t index, int64_t first, const ek_tensor *totals) {
  const ek_data_parallel_model *model = self->model;
  ek_pass_options options = EK_PASS_OPTIONS_INIT;
  options.gradient = self->gradient;
  options.training = false;
  options.seed = model->options.seed;
  options.step = (uint32_t)model->step;
  if (self->forward == model->last_forward) options.first_sample = model->first_sample + first;
  /* A grain's outputs are rows of what its device has: not left to it. */
  options.overwrite_inputs = !self->options.keep_outputs && model->options.reproducible == 0;
  options.gradient_now = self->with_gradient ? self->coefficients[0] * self->scaling.factor : 0;
  options.totals = totals;
  return ek_pass_open(pass, self->devices[index].replica, &options);
}
