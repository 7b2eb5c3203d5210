/*
 * module_check.c - runs a module in many ways and compares: see module_check.h.
 *
 * The bed (bed.h) runs the module; checks.h declares the checks. This file decides which checks
 * run, in which order and type. The checker uses the library as any program does, through its
 * exported functions: it is a library of its own, evenkeel_check, for the tests of a program.
 */
#include <evenkeel/module_check.h>

#include "checks.h"
#include "core/error.h"
#include "core/options.h"

const char *ek_check_name(ek_check check) {
  static const char *const names[EK_CHECKS] = {
#define NAME(identifier, name) [identifier] = name,
      EK_CHECK_LIST(NAME)
#undef NAME
  };
  return (unsigned)check < EK_CHECKS ? names[check] : "unknown";
}

static const struct {
  ek_status (*run)(struct ek__checker *c, struct ek__bed *bed, union ek__results *once);
  bool initial; /* with the initial values, before anything has run */
} checks[EK_CHECKS] = {
    [EK_CHECK_START] = {ek__check_start, true},
    [EK_CHECK_REPEAT] = {ek__check_repeat, false},
    [EK_CHECK_GRAD_INPUTS] = {ek__check_grad_inputs, false},
    [EK_CHECK_COMPLETE] = {ek__check_complete, false},
    [EK_CHECK_ACCUMULATE] = {ek__check_accumulate, false},
    [EK_CHECK_EVALUATION] = {ek__check_evaluation, false},
    [EK_CHECK_DIFFERENCES] = {ek__check_differences, false},
    [EK_CHECK_TYPES] = {ek__check_types, false},
    [EK_CHECK_ROWS] = {ek__check_rows, false},
    [EK_CHECK_DEVICES] = {ek__check_devices, false},
    [EK_CHECK_MEMORY] = {ek__check_memory, false},
    [EK_CHECK_PLAN] = {ek__check_plan, true},
};

static ek_status run_check(struct ek__checker *c, ek_check check) {
  struct ek__bed bed = {0};
  union ek__results once = {0};
  c->worst = 0;
  ek_status status = ek__bed_open(&bed, c->module, c->devices, c->type, c->inputs, &c->options);
  if (status == EK_OK && !checks[check].initial) status = ek__bed_prepare(&bed);
  if (status == EK_OK && !checks[check].initial)
    status = ek__check_run(&once, &bed, &ek__check_whole);
  if (status == EK_OK) status = checks[check].run(c, &bed, &once);
  ek__results_free(&once);
  return ek__bed_close(&bed, status);
}

/* Names the check and the module that failed; an error of the module's own keeps its words. */
static ek_status name_check(const struct ek__checker *c, ek_check check, ek_status status) {
  return ek_error_set(status, "module check (%s) of %s: %s", ek_check_name(check),
                      ek_module_kind(c->module), ek_error_message());
}

/* f64 if the module computes in it: differences say more there. */
static ek_status find_type(struct ek__checker *c) {
  struct ek__bed bed = {0};
  c->type = EK_F64;
  ek_status wide = ek__bed_open(&bed, c->module, c->devices, EK_F64, c->inputs, &c->options);
  wide = ek__bed_close(&bed, wide);
  if (wide != EK_OK && wide != EK_ERR_UNSUPPORTED) return wide;
  ek_status narrow = ek__bed_open(&bed, c->module, c->devices, EK_F32, c->inputs, &c->options);
  narrow = ek__bed_close(&bed, narrow);
  if (wide != EK_OK) c->type = EK_F32;
  c->both = wide == EK_OK && narrow == EK_OK;
  return wide == EK_OK ? EK_OK : narrow;
}

static ek_status check_input(const ek_check_input *input, size_t number, int64_t samples) {
  const char *why = NULL;
  if (input->type != 0 && input->type != EK_I32 && input->type != EK_F32 && input->type != EK_F64) {
    why = "has a type that the check cannot fill";
  } else if (input->rank < 0 || input->rank > EK_MAX_RANK) {
    why = "has an unsupported rank";
  } else if (!input->broadcast && (input->rank == 0 || input->shape[0] % samples != 0)) {
    why = "has a number of rows that is not a multiple of the first input's";
  } else if (!(input->low <= input->high)) {
    why = "has an empty range from low to high";
  }
  for (int d = 0; why == NULL && d < input->rank; d++) {
    if (input->shape[d] < 1) why = "has a size below 1";
  }
  if (why == NULL) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT, "ek_module_check: input %zu %s", number, why);
}

static ek_status check_arguments(const ek_module *module, const char *devices,
                                 const ek_check_input *inputs, size_t count) {
  EK__FAIL_IF(module == NULL || devices == NULL || inputs == NULL ||
                  count != ek_module_inputs(module),
              EK_ERR_INVALID_ARGUMENT,
              "ek_module_check: an argument is NULL, or the number of inputs is not the module's");
  int64_t samples = 1;
  for (size_t i = count; i-- > 0;) {
    if (!inputs[i].broadcast && inputs[i].rank > 0 && inputs[i].shape[0] > 0) {
      samples = inputs[i].shape[0];
    }
  }
  for (size_t i = 0; i < count; i++) EK_TRY(check_input(&inputs[i], i, samples));
  return EK_OK;
}

ek_status ek_module_check(ek_module *module, const char *devices, const ek_check_input *inputs,
                          size_t count, const ek_module_check_options *options) {
  struct ek__checker c = {.module = module, .devices = devices, .inputs = inputs};
  c.options = (ek_module_check_options)EK_MODULE_CHECK_OPTIONS_INIT;
  EK_TRY(check_arguments(module, devices, inputs, count));
  EK_TRY(ek__options_read(&c.options, sizeof c.options, options, "ek_module_check_options"));
  EK__FAIL_IF(c.options.probes < 0 || c.options.longest < 1 || c.options.depth < 1,
              EK_ERR_INVALID_ARGUMENT,
              "ek_module_check: options.probes is %lld, longest is %lld, depth is %d",
              (long long)c.options.probes, (long long)c.options.longest, c.options.depth);
  EK_TRY(find_type(&c));
  for (int i = 0; i < EK_CHECKS; i++) {
    if (c.options.left_out >> i & 1) continue;
    const ek_status status = run_check(&c, (ek_check)i);
    if (status != EK_OK) return name_check(&c, (ek_check)i, status);
    if (c.options.report != NULL) c.options.report(c.options.context, (ek_check)i, c.worst);
  }
  return EK_OK;
}

EK__OPTIONS_INIT(ek_module_check_options, EK_MODULE_CHECK_OPTIONS_INIT)
