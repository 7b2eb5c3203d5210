/*
 * ck_bed.c - a module on one device with inputs and gradients of its outputs: see ck_module.h.
 */
#include "ck_module.h"

static double *zeros(int64_t count) { return ck_array((size_t)count, sizeof(double)); }

/* A number that f32 holds exactly. */
static double draw(struct ck_random *random, const struct ck_input *from) {
  if (from->type == EK_I32) {
    return (double)ck_random_integer(random, (int64_t)from->low, (int64_t)from->high);
  }
  double value = 0;
  do {
    value = (double)(float)ck_random_uniform(random, from->low, from->high);
  } while (fabs(value) < from->gap);
  return value;
}

static void make_inputs(struct ck_bed *bed, ek_type type, struct ck_random *random) {
  for (size_t i = 0; i < bed->inputs; i++) {
    const struct ck_input *from = &bed->is->input[i];
    int64_t count = 1;
    for (int d = 0; d < from->rank; d++) count *= from->shape[d];
    bed->value[i] = zeros(count);
    for (int64_t k = 0; k < count; k++) bed->value[i][k] = draw(random, from);
    bed->input[i] = ck_upload(bed->device, from->type == 0 ? type : from->type, bed->value[i],
                              from->rank, from->shape);
  }
}

static void make_parameters(struct ck_bed *bed, struct ck_random *random) {
  const struct ck_input range = {.low = -0.7, .high = 0.7};
  double *values = ck_bed_parameters(bed);
  CK_EACH_PARAMETER(info, bed->replica) {
    if (info.buffer) continue;
    for (int64_t k = 0; k < ek_tensor_count(&info.value); k++) {
      values[info.offset + k] = draw(random, &range);
    }
  }
  ck_bed_set_parameters(bed, values);
}

/* R has the shapes of the outputs, which a first forward tells. That is over before anything else
 * is made: the bed's memory has no holes. */
static void make_factors(struct ck_bed *bed, struct ck_random *random) {
  const struct ck_input range = {.low = -1.0, .high = 1.0};
  ek_tensor outputs[CK_MODULE_TENSORS] = {{0}}, shapes[CK_MODULE_TENSORS];
  CK_GOT(ek_pass *, pass, ek_pass_open(&pass, bed->replica, &bed->options));
  ck_ok(ek_pass_run_forward(outputs, pass, bed->input));
  memcpy(shapes, outputs, sizeof shapes);
  for (size_t i = 0; i < bed->outputs; i++) ek_tensor_free(&outputs[i]);
  ek_pass_free(pass);
  for (size_t i = 0; i < bed->outputs; i++) {
    if (shapes[i].type == EK_I32) continue;
    const int64_t count = ek_tensor_count(&shapes[i]);
    bed->factor[i] = zeros(count);
    for (int64_t k = 0; k < count; k++) bed->factor[i][k] = draw(random, &range);
    bed->grad_output[i] =
        ck_upload(bed->device, shapes[i].type, bed->factor[i], shapes[i].rank, shapes[i].shape);
  }
}

static void close_bed(void *bed) { ck_bed_close(bed); }

struct ck_bed *ck_bed_open(const struct ck_module_case *module_case, ek_type type,
                           const char *spec) {
  struct ck_bed *bed = calloc(1, sizeof *bed);
  ck_assert_ptr_nonnull(bed);
  bed->is = module_case;
  bed->group = ck_open(spec, 0);
  bed->device = ek_group_device(bed->group, 0);
  ck_ok(module_case->create(&bed->module));
  bed->inputs = ck_module_case_inputs(module_case, bed->module);
  bed->outputs = ek_module_outputs(bed->module);
  ck_assert_uint_le(bed->outputs, CK_MODULE_TENSORS);

  CK_WITH(ek_replica_options, options, EK_REPLICA_OPTIONS_INIT, .type = type);
  ck_ok(ek_replica_open(&bed->replica, bed->device, bed->module, &options));
  bed->options = (ek_pass_options)EK_PASS_OPTIONS_INIT;
  ck_assign(bed->options, .seed = 5, .step = 3, .first_sample = 2);

  struct ck_random random = ck_random_start(77);
  make_inputs(bed, type, &random);
  make_parameters(bed, &random);
  make_factors(bed, &random);
  ck_keep_by(bed, close_bed);
  return bed;
}

struct ck_bed *ck_bed_of(ek_status (*create)(ek_module **), ek_type type, struct ck_input input) {
  struct ck_module_case *is = ck_array(1, sizeof *is);
  *is = (struct ck_module_case){.create = create, .input = {input}};
  return ck_bed_open(is, type, test_devices("cpu:1"));
}

void ck_results_same(const struct ck_results *got, const struct ck_results *want) {
  ck_assert_int_eq(got->parameters, want->parameters);
  ck_same_bits("y", got->output[0], want->output[0], want->output_count[0]);
  if (want->grad_input[0] != NULL) {
    ck_same_bits("dx", got->grad_input[0], want->grad_input[0], want->input_count[0]);
  }
  ck_same_bits("gradients", got->gradient, want->gradient, want->parameters);
}

bool ck_results_near(const struct ck_results *got, const struct ck_results *want, double allowed) {
  return got->parameters == want->parameters &&
         ck_rel_l2(got->output[0], want->output[0], want->output_count[0]) <= allowed &&
         ck_rel_l2(got->grad_input[0], want->grad_input[0], want->input_count[0]) <= allowed &&
         ck_rel_l2(got->gradient, want->gradient, want->parameters) <= allowed;
}

void ck_deviates(const ek_replica *replica, const char *name, double deviation) {
  CK_GOT(ek_parameter_info, info, ek_replica_find(&info, replica, name));
  const int64_t count = ek_tensor_count(&info.value);
  double squares = 0, *values = zeros(count);
  ck_get(values, &info.value);
  for (int64_t i = 0; i < count; i++) squares += values[i] * values[i];
  const double found = sqrt(squares / (double)count);
  /* The deviation of n samples is off by about 1 / sqrt(2 n), relative. */
  ck_assert_msg(fabs(found - deviation) <= 5 * deviation / sqrt(2.0 * (double)count), "%s: %g",
                name, found);
}

void ck_bed_close(struct ck_bed *bed) {
  ck_forget(bed);
  for (size_t i = 0; i < CK_MODULE_TENSORS; i++) {
    ek_tensor_free(&bed->input[i]);
    ek_tensor_free(&bed->grad_output[i]);
  }
  ek_replica_free(bed->replica);
  ek_module_free(bed->module);
  ck_no_memory_held(bed->group);
  ek_group_free(bed->group);
  free(bed);
}

void ck_bed_forward(struct ck_bed *bed) {
  CK_WITH(ek_pass_options, options, bed->options, .gradient = false);
  ek_tensor outputs[CK_MODULE_TENSORS] = {{0}};
  CK_SCOPED(ek_pass *, pass, ek_pass_open(&pass, bed->replica, &options));
  ck_ok(ek_pass_run_forward(outputs, pass, bed->input));
  for (size_t i = 0; i < bed->outputs; i++) ek_tensor_free(&outputs[i]);
}

static double *take_values(ek_tensor *tensor, int64_t *count) {
  *count = ek_tensor_count(tensor);
  double *values = zeros(*count);
  ck_get(values, tensor);
  ek_tensor_free(tensor);
  return values;
}

/* What was in the gradients before must not matter; their padding stays zero. */
static void poison_gradients(struct ck_bed *bed) {
  CK_EACH_PARAMETER(info, bed->replica) {
    if (!info.buffer && !info.frozen) ck_set(&info.gradient, NULL);
  }
}

struct ck_results *ck_bed_backward(struct ck_bed *bed, bool grad_inputs) {
  struct ck_results *results = ck_array(1, sizeof *results);
  ek_tensor outputs[CK_MODULE_TENSORS] = {{0}}, gradients[CK_MODULE_TENSORS] = {{0}};
  if (!bed->options.accumulate) poison_gradients(bed);
  CK_GOT(ek_pass *, pass, ek_pass_open(&pass, bed->replica, &bed->options));
  ck_ok(ek_pass_run_forward(outputs, pass, bed->input));
  for (size_t i = 0; i < bed->outputs; i++) {
    results->output[i] = take_values(&outputs[i], &results->output_count[i]);
  }
  ck_ok(ek_pass_run_backward(grad_inputs ? gradients : NULL, pass, bed->grad_output));
  for (size_t i = 0; i < bed->inputs && grad_inputs; i++) {
    ck_assert_msg(ek_tensor_exists(&gradients[i]) == (bed->input[i].type != EK_I32),
                  "%s: input %zu", bed->is->name, i);
    if (!ek_tensor_exists(&gradients[i])) continue;
    ck_assert(ek_tensor_same_shape(&gradients[i], &bed->input[i]));
    results->grad_input[i] = take_values(&gradients[i], &results->input_count[i]);
  }
  ek_pass_free(pass);
  const ek_tensor *flat = ek_replica_gradients(bed->replica);
  results->parameters = ek_tensor_count(flat);
  results->gradient = zeros(results->parameters);
  if (results->parameters > 0) ck_get(results->gradient, flat);
  return results;
}

double *ck_bed_parameters(struct ck_bed *bed) {
  const ek_tensor *flat = ek_replica_parameters(bed->replica);
  double *values = zeros(ek_tensor_count(flat));
  if (ek_tensor_count(flat) > 0) ck_get(values, flat);
  return values;
}

void ck_bed_set_parameters(struct ck_bed *bed, const double *values) {
  ek_tensor flat = *ek_replica_parameters(bed->replica);
  if (ek_tensor_count(&flat) > 0) ck_set(&flat, values);
}

void ck_bed_set(struct ck_bed *bed, const char *name, const double *values) {
  CK_GOT(ek_parameter_info, info, ek_replica_find(&info, bed->replica, name));
  ck_set(&info.value, values);
}

void ck_forward_fails(ek_module *module, ek_status wanted, const char *text, ek_type type, int rank,
                      const int64_t *shape) {
  CK_HELD(ek_group *, group, ck_open("cpu:1", 1));
  ek_tensor input = {0}, outputs[CK_MODULE_TENSORS] = {{0}};
  CK_GOT(ek_replica *, replica, ek_replica_open(&replica, ek_group_device(group, 0), module, NULL));
  CK_GOT(ek_pass *, pass, ek_pass_open(&pass, replica, NULL));
  ck_ok(ek_tensor_create(&input, ek_group_device(group, 0), EK_MEMORY_INPUTS, type, rank, shape));
  double *nothing = zeros(ek_tensor_count(&input));
  ck_set(&input, nothing);
  ck_fails(ek_pass_run_forward(outputs, pass, &input), wanted, text);
  for (size_t i = 0; i < CK_MODULE_TENSORS; i++) ck_assert(!ek_tensor_exists(&outputs[i]));
  ek_tensor_free(&input);
  ek_pass_free(pass);
  ek_replica_free(replica);
  ck_no_memory_held(group);
}

void ck_replica_fails(ek_module *module, const char *spec, ek_status wanted, const char *text) {
  CK_HELD(ek_group *, group, ck_open(spec, 1));
  ek_replica *replica = NULL;
  ck_fails(ek_replica_open(&replica, ek_group_device(group, 0), module, NULL), wanted, text);
  ck_assert_ptr_null(replica);
  ck_no_memory_held(group);
}

void ck_host_failures(ek_status (*create)(ek_module **module)) {
  ek_module *module = NULL;
  uint64_t n = 0;
  while (ck_host_fails(&n, create(&module))) ck_assert_ptr_null(module);
  ck_assert_ptr_nonnull(module);
  ek_module_free(module);
}

uint64_t ck_bed_held(const struct ck_bed *bed) {
  CK_GOT(ek_memory_usage, usage, ck_memory_stats(&usage, bed->device));
  return usage.current_bytes;
}

uint64_t ck_units(const ek_tensor *tensor) {
  const uint64_t bytes = ek_tensor_bytes(tensor);
  return (bytes + EK_MEMORY_UNIT - 1) / EK_MEMORY_UNIT * EK_MEMORY_UNIT;
}
