/*
 * ck_module.c - tests that every module must pass: see ck_module.h.
 */
#include "ck_module.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct ck_module_case *all_cases;

static const char *one_device(void) { return test_devices("cpu:1"); }

/* ---- gradients against central differences ---- */

/* Step of the differences. */
#define H 1e-5

/*
 * The difference quotient is wrong by h^2 / 6 times the third derivative, which for the functions
 * and ranges in these tests stays below a few hundred times the gradient: 1e-8, relative. Rounding
 * adds the error of two losses over 2 h. A loss is the sum of R * output; each output carries some
 * units of 2^-53, eight of them are allowed, so this part is 8 * 2^-53 * sum |R * output| / h per
 * element.
 */
static void compare(const struct ck_bed *bed, const char *what, const double *got,
                    const double *want, int64_t count) {
  double difference = 0, size = 0;
  for (int64_t i = 0; i < count; i++) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    size += want[i] * want[i];
  }
  const double rounding = 8 * 0x1p-53 * bed->size / H * sqrt((double)count);
  ck_assert_msg(sqrt(difference) <= 1e-7 * sqrt(size) + rounding,
                "%s: gradient of %s is off by %.3g, its norm is %.3g, rounding explains %.3g",
                bed->is->name, what, sqrt(difference), sqrt(size), rounding);
}

/* x[first .. first + count) is moved element by element; `store` brings x to the device. */
static void differences(struct ck_bed *bed, const char *what, double *x,
                        void (*store)(struct ck_bed *bed, size_t index, const double *x),
                        size_t index, const double *gradient, int64_t count) {
  struct ck_random random = ck_random_start(99);
  const bool all = bed->is->probes == 0 || bed->is->probes >= count;
  const int64_t probes = all ? count : bed->is->probes;
  double *got = calloc((size_t)probes + 1, sizeof *got);
  double *want = calloc((size_t)probes + 1, sizeof *want);
  ck_assert(got != NULL && want != NULL);
  for (int64_t n = 0; n < probes; n++) {
    const int64_t i = all ? n : ck_random_integer(&random, 0, count - 1);
    const double kept = x[i], above = kept + H, below = kept - H;
    x[i] = above;
    store(bed, index, x);
    const double loss_above = ck_bed_loss(bed);
    x[i] = below;
    store(bed, index, x);
    want[n] = (loss_above - ck_bed_loss(bed)) / (above - below);
    got[n] = gradient[i];
    x[i] = kept;
  }
  store(bed, index, x);
  compare(bed, what, got, want, probes);
  free(got);
  free(want);
}

static void store_input(struct ck_bed *bed, size_t index, const double *x) {
  ck_set(&bed->input[index], x);
}

static void store_parameter(struct ck_bed *bed, size_t index, const double *x) {
  ek_parameter_info info;
  ck_ok(ek_replica_parameter(&info, bed->replica, index));
  ck_set(&info.value, x);
}

START_TEST(finite_differences) {
  struct ck_bed *bed = ck_bed_open(&all_cases[_i], EK_F64, one_device());
  struct ck_results *results = ck_bed_backward(bed, true);
  double *parameters = ck_bed_parameters(bed);
  for (size_t i = 0; i < ek_replica_parameter_count(bed->replica); i++) {
    ek_parameter_info info;
    ck_ok(ek_replica_parameter(&info, bed->replica, i));
    if (info.buffer) continue;
    differences(bed, info.name, parameters + info.offset, store_parameter, i,
                results->gradient + info.offset, ek_tensor_count(&info.value));
  }
  for (size_t i = 0; i < bed->inputs; i++) {
    if (results->grad_input[i] == NULL) continue;
    differences(bed, "an input", bed->value[i], store_input, i, results->grad_input[i],
                results->input_count[i]);
  }
  free(parameters);
  ck_results_free(results);
  ck_bed_close(bed);
}
END_TEST

/* ---- f32 against f64 ---- */

/*
 * A sum of k products is off by at most k u times the sum of their sizes, and for random terms that
 * sum is about sqrt(k) times the result. Eight more units are for what an operation does beside its
 * sum. Errors of operations one after the other add up.
 */
static double single_bound(const struct ck_module_case *is) {
  const double k = (double)is->longest;
  return is->depth * (k * sqrt(k) + 8) * 0x1p-24;
}

static void agree(const struct ck_module_case *is, const char *what, const double *got,
                  const double *want, int64_t count) {
  const double error = ck_rel_l2(got, want, count);
  ck_assert_msg(error <= single_bound(is), "%s: %s in f32 is off by %.3g, allowed is %.3g",
                is->name, what, error, single_bound(is));
}

START_TEST(single) {
  const struct ck_module_case *is = &all_cases[_i];
  struct ck_bed *narrow = ck_bed_open(is, EK_F32, one_device());
  struct ck_bed *wide = ck_bed_open(is, EK_F64, one_device());
  struct ck_results *got = ck_bed_backward(narrow, true);
  struct ck_results *want = ck_bed_backward(wide, true);
  for (size_t i = 0; i < narrow->outputs; i++) {
    agree(is, "an output", got->output[i], want->output[i], want->output_count[i]);
  }
  for (size_t i = 0; i < narrow->inputs; i++) {
    if (want->grad_input[i] == NULL) continue;
    agree(is, "a gradient of an input", got->grad_input[i], want->grad_input[i],
          want->input_count[i]);
  }
  for (size_t i = 0; i < ek_replica_parameter_count(wide->replica); i++) {
    ek_parameter_info info;
    ck_ok(ek_replica_parameter(&info, wide->replica, i));
    if (info.buffer) continue;
    agree(is, info.name, got->gradient + info.offset, want->gradient + info.offset,
          ek_tensor_count(&info.value));
  }
  ck_results_free(got);
  ck_results_free(want);
  ck_bed_close(narrow);
  ck_bed_close(wide);
}
END_TEST

/* ---- the protocol of gradients ---- */

struct completions {
  const ek_replica *replica;
  int count[256];
  double *value[256];
};

static ek_status on_complete(void *context, ek_pass *pass, size_t parameter) {
  (void)pass;
  struct completions *seen = context;
  ck_assert_uint_lt(parameter, 256);
  if (seen->count[parameter]++ > 0) return EK_OK;
  ek_parameter_info info;
  ck_ok(ek_replica_parameter(&info, seen->replica, parameter));
  seen->value[parameter] = calloc((size_t)ek_tensor_count(&info.gradient) + 1, sizeof(double));
  ck_assert_ptr_nonnull(seen->value[parameter]);
  ck_get(seen->value[parameter], &info.gradient);
  return EK_OK;
}

static void check_completions(struct completions *seen, const struct ck_results *results,
                              const char *name) {
  for (size_t i = 0; i < ek_replica_parameter_count(seen->replica); i++) {
    ek_parameter_info info;
    ck_ok(ek_replica_parameter(&info, seen->replica, i));
    ck_assert_msg(seen->count[i] == (info.buffer ? 0 : 1), "%s: %s was complete %d times", name,
                  info.name, seen->count[i]);
    if (info.buffer) continue;
    ck_within(info.name, seen->value[i], results->gradient + info.offset, NULL,
              ek_tensor_count(&info.gradient));
    free(seen->value[i]);
  }
}

START_TEST(protocol) {
  const struct ck_module_case *is = &all_cases[_i];
  struct ck_bed *bed = ck_bed_open(is, EK_F64, one_device());
  struct completions seen = {.replica = bed->replica};
  bed->options.complete = on_complete;
  bed->options.context = &seen;
  struct ck_results *once = ck_bed_backward(bed, true);
  check_completions(&seen, once, is->name);
  bed->options.complete = NULL;

  struct ck_results *again = ck_bed_backward(bed, false);
  ck_within("gradient without grad_inputs", again->gradient, once->gradient, NULL,
            once->parameters);

  bed->options.accumulate = true;
  struct ck_results *twice = ck_bed_backward(bed, true);
  for (int64_t i = 0; i < once->parameters; i++) once->gradient[i] *= 2;
  /* The second sum may start from the first: its order, not its terms, is another one. */
  const double error = ck_rel_l2(twice->gradient, once->gradient, once->parameters);
  ck_assert_msg(error <= single_bound(is) * 0x1p-29, "%s: two backwards do not add: %.3g", is->name,
                error);
  ck_results_free(once);
  ck_results_free(again);
  ck_results_free(twice);
  ck_bed_close(bed);
}
END_TEST

/* ---- initial values ---- */

static ek_replica *start_on(ek_device *device, ek_module *module, uint64_t seed) {
  ek_replica_options options = EK_REPLICA_OPTIONS_INIT;
  options.seed = seed;
  ek_replica *replica = NULL;
  ck_ok(ek_replica_open(&replica, device, module, &options));
  return replica;
}

START_TEST(start) {
  ek_group *group = ck_open("cpu:2", 1);
  ek_module *module = NULL;
  ck_ok(all_cases[_i].create(&module));
  ek_replica *first = start_on(ek_group_device(group, 0), module, 11);
  ek_replica *second = start_on(ek_group_device(group, 1), module, 11);
  const int64_t count = ek_tensor_count(ek_replica_parameters(first));
  ck_assert_int_eq(count, ek_tensor_count(ek_replica_parameters(second)));
  if (count > 0) {
    double *a = calloc((size_t)count, sizeof *a), *b = calloc((size_t)count, sizeof *b);
    ck_assert(a != NULL && b != NULL);
    ck_get(a, ek_replica_parameters(first));
    ck_get(b, ek_replica_parameters(second));
    ck_within("initial values", b, a, NULL, count);
    for (int64_t i = 0; i < count; i++) ck_assert(isfinite(a[i]));
    free(a);
    free(b);
  }
  ek_replica_free(first);
  ek_replica_free(second);
  ek_module_free(module);
  ck_no_memory_held(group);
  ek_group_free(group);
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

/* One forward and backward in which allocation `n` fails; false when there are fewer. */
static bool fail_at(struct ck_bed *bed, uint64_t n) {
  ek_pass *pass = NULL;
  ek_tensor outputs[CK_MODULE_TENSORS] = {{0}}, gradients[CK_MODULE_TENSORS] = {{0}};
  ck_ok(ek_pass_open(&pass, bed->replica, &bed->options));
  ck_ok(ek_memory_fail_at(bed->device, n));
  ek_error_clear();
  ek_status status = ek_pass_run_forward(outputs, pass, bed->input);
  for (size_t i = 0; status != EK_OK && i < CK_MODULE_TENSORS; i++) {
    ck_assert(!ek_tensor_exists(&outputs[i]));
  }
  if (status == EK_OK) status = ek_pass_run_backward(gradients, pass, bed->grad_output);
  ck_assert(status == EK_OK || status == EK_ERR_OUT_OF_MEMORY);
  ck_assert(status == EK_OK || strlen(ek_error_message()) > 0);
  ck_ok(ek_memory_fail_at(bed->device, 0));
  free_tensors(gradients);
  free_tensors(outputs);
  ek_pass_free(pass);
  return status != EK_OK;
}

START_TEST(failures) {
  struct ck_bed *bed = ck_bed_open(&all_cases[_i], EK_F32, one_device());
  const uint64_t before = ck_bed_held(bed);
  uint64_t n = 1;
  while (fail_at(bed, n)) {
    ck_assert_uint_eq(ck_bed_held(bed), before);
    ck_assert_uint_lt(n, 2000);
    n++;
  }
  ck_bed_close(bed);
}
END_TEST

START_TEST(plan) {
  const char *specs[] = {"cpu:1", "plan:1"};
  ek_memory_usage usage[2];
  for (size_t k = 0; k < 2; k++) {
    struct ck_bed *bed = ck_bed_open(&all_cases[_i], EK_F32, specs[k]);
    ek_tensor outputs[CK_MODULE_TENSORS] = {{0}}, gradients[CK_MODULE_TENSORS] = {{0}};
    ek_pass *pass = NULL;
    ck_ok(ek_pass_open(&pass, bed->replica, &bed->options));
    ck_ok(ek_pass_run_forward(outputs, pass, bed->input));
    ck_ok(ek_pass_run_backward(gradients, pass, bed->grad_output));
    ck_ok(ck_memory_stats(&usage[k], bed->device));
    free_tensors(outputs);
    free_tensors(gradients);
    ek_pass_free(pass);
    ck_bed_close(bed);
  }
  ck_assert_uint_eq(usage[0].peak_bytes, usage[1].peak_bytes);
  ck_assert_uint_eq(usage[0].allocations, usage[1].allocations);
  ck_assert_mem_eq(usage[0].at_peak, usage[1].at_peak, sizeof usage[0].at_peak);
}
END_TEST

void ck_module_tests(Suite *suite, const struct ck_module_case *cases, int count) {
  all_cases = cases;
  TCase *tcase = ck_case(suite, "every module");
  tcase_add_loop_test(tcase, finite_differences, 0, count);
  tcase_add_loop_test(tcase, single, 0, count);
  tcase_add_loop_test(tcase, protocol, 0, count);
  tcase_add_loop_test(tcase, start, 0, count);
  tcase_add_loop_test(tcase, memory, 0, count);
  tcase_add_loop_test(tcase, failures, 0, count);
  tcase_add_loop_test(tcase, plan, 0, count);
}
