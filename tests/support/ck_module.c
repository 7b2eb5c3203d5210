/*
 * ck_module.c - tests that every module must pass: see ck_module.h.
 */
#include "ck_module.h"

#include <string.h>

#include <evenkeel/module_check.h>

enum { PROBES_IN_PARTS = 8 };

static const struct ck_module_case *all_cases;

static const char *one_device(void) { return test_devices("cpu:1"); }

/* ---- what the library checks ---- */

static ek_check check_of(int number) { return (ek_check)(number % EK_CHECKS); }

/* One check at a time, so that each has its line in a report. */
START_TEST(module_check) {
  /* The others use one device at a time. */
  if (CK_TSAN && check_of(_i) != EK_CHECK_DEVICES) return;
  const struct ck_module_case *is = &all_cases[_i / EK_CHECKS];
  ek_module_check_options options = EK_MODULE_CHECK_OPTIONS_INIT;
  ek_check_input inputs[CK_MODULE_TENSORS] = {{0}};
  ek_module *module = NULL;
  options.probes = is->probes;
  /* On emulated devices: what differs between elements of a tensor is the kernels', which tests/op
   * compares. */
  if (ck_in_parts() && (options.probes == 0 || options.probes > PROBES_IN_PARTS)) {
    options.probes = PROBES_IN_PARTS;
  }
  options.longest = is->longest;
  options.depth = is->depth;
  options.left_out = ~(1u << check_of(_i));
  for (size_t i = 0; i < is->inputs; i++) {
    const struct ck_input *from = &is->input[i];
    inputs[i] = (ek_check_input){
        .type = from->type, .rank = from->rank, .low = from->low, .high = from->high};
    inputs[i].gap = from->gap;
    inputs[i].broadcast = from->type == 0 && from->rank == 1; /* one sample without its dimension */
    memcpy(inputs[i].shape, from->shape, sizeof from->shape);
  }
  ck_ok(is->create(&module));
  const ek_status status = ek_module_check(module, ck_spec("cpu:2"), inputs, is->inputs, &options);
  ck_assert_msg(status == EK_OK, "%s: %s", is->name, ek_error_message());
  ek_module_free(module);
}
END_TEST

/* ---- memory ---- */

/* Tensors that share memory are counted once. */
static uint64_t held_by(const ek_tensor *tensors, size_t count, const struct ck_bed *bed) {
  uint64_t held = 0;
  for (size_t i = 0; i < count; i++) {
    bool known = false;
    for (size_t j = 0; j < i; j++) known = known || tensors[j].memory == tensors[i].memory;
    for (size_t j = 0; j < bed->inputs; j++) {
      known = known || bed->input[j].memory == tensors[i].memory;
    }
    for (size_t j = 0; j < bed->outputs; j++) {
      known = known || bed->grad_output[j].memory == tensors[i].memory;
    }
    if (!known) held += ck_units(&tensors[i]);
  }
  return held;
}

static void free_tensors(ek_tensor *tensors) {
  for (size_t i = 0; i < CK_MODULE_TENSORS; i++) ek_tensor_free(&tensors[i]);
}

START_TEST(memory) {
  struct ck_bed *bed = ck_bed_open(&all_cases[_i], EK_F32, one_device());
  const uint64_t before = ck_bed_held(bed);
  ek_pass *pass = NULL;
  ek_tensor outputs[CK_MODULE_TENSORS] = {{0}}, gradients[CK_MODULE_TENSORS] = {{0}};

  ek_pass_options options = bed->options;
  options.gradient = false;
  ck_ok(ek_pass_open(&pass, bed->replica, &options));
  ck_ok(ek_pass_run_forward(outputs, pass, bed->input));
  ck_assert_uint_eq(ck_bed_held(bed), before + held_by(outputs, bed->outputs, bed));
  free_tensors(outputs);
  ck_assert_uint_eq(ck_bed_held(bed), before);
  ek_pass_free(pass);

  ck_ok(ek_pass_open(&pass, bed->replica, &bed->options));
  ck_ok(ek_pass_run_forward(outputs, pass, bed->input));
  free_tensors(outputs);
  ck_ok(ek_pass_run_backward(gradients, pass, bed->grad_output));
  ck_assert_uint_eq(ck_bed_held(bed), before + held_by(gradients, bed->inputs, bed));
  free_tensors(gradients);
  ck_assert_uint_eq(ck_bed_held(bed), before);
  ek_pass_free(pass);

  /* A pass that is given up between forward and backward. */
  ck_ok(ek_pass_open(&pass, bed->replica, &bed->options));
  ck_ok(ek_pass_run_forward(outputs, pass, bed->input));
  free_tensors(outputs);
  ck_assert_uint_eq((ck_bed_held(bed) - before) / EK_MEMORY_UNIT, bed->is->saved);
  ek_pass_free(pass);
  ck_assert_uint_eq(ck_bed_held(bed), before);
  ck_bed_close(bed);
}
END_TEST

void ck_module_tests(Suite *suite, const struct ck_module_case *cases, int count) {
  all_cases = cases;
  TCase *tcase = ck_case(suite, "every module");
  tcase_add_loop_test(tcase, module_check, 0, count * EK_CHECKS);
  tcase_add_loop_test(tcase, memory, 0, count);
}
