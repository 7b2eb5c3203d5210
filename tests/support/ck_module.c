/*
 * ck_module.c - tests that every module must pass: see ck_module.h.
 */
#include "ck_module.h"

#include <string.h>

#include <evenkeel/memory.h>
#include <evenkeel/module_check.h>

enum { PROBES_IN_PARTS = 8 };

static const struct ck_module_case *all_cases;

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
  options.saved = (int64_t)(is->saved * EK_MEMORY_UNIT);
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

void ck_module_tests(Suite *suite, const struct ck_module_case *cases, int count) {
  all_cases = cases;
  TCase *tcase = ck_case(suite, "every module");
  tcase_add_loop_test(tcase, module_check, 0, count * EK_CHECKS);
}
