/*
 * recompute.c - a module that runs its child again in backward.
 *
 * Forward runs the child without saving and saves the child's inputs: references, no copies.
 * Backward takes them back, runs the child again, drops what it gives, and runs its backward. The
 * inputs are dropped before that, so that the child's backward finds them held as often as if it
 * stood there alone.
 */
#include <evenkeel/recompute.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <evenkeel/pass.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sizes.h"
#include "module/composite.h"
#include "module/layer_internal.h"

/* ---- policies ---- */

static const struct {
  const char *text;
  ek_recompute_kind kind;
} words[] = {{"none", EK_RECOMPUTE_NONE},
             {"sqrt", EK_RECOMPUTE_SQRT},
             {"all", EK_RECOMPUTE_ALL},
             {"cheap", EK_RECOMPUTE_CHEAP}};

static ek_status parse_every(ek_recompute *recompute, const char *text, const char *number) {
  size_t digits = strspn(number, "0123456789");
  if (digits > 0 && digits < 19 && number[digits] == '\0') {
    const long long every = strtoll(number, NULL, 10);
    if (every > 0) {
      *recompute = (ek_recompute){.kind = EK_RECOMPUTE_EVERY, .every = every};
      return EK_OK;
    }
  }
  return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                      "recompute: \"%s\": every=K needs a whole number above 0", text);
}

ek_status ek_recompute_parse(ek_recompute *recompute, const char *text) {
  EK__NOT_NULL("ek_recompute_parse", recompute, text);
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
    if (strcmp(text, words[i].text) != 0) continue;
    *recompute = (ek_recompute){.kind = words[i].kind};
    return EK_OK;
  }
  if (strncmp(text, "every=", 6) == 0) return parse_every(recompute, text, text + 6);
  uint64_t bytes = 0;
  const char *at = text;
  if (ek__size_read(&bytes, &at) == NULL && bytes >= EK_MEMORY_UNIT) {
    *recompute = (ek_recompute){.kind = EK_RECOMPUTE_BYTES, .bytes = bytes};
    return EK_OK;
  }
  return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                      "recompute: unknown policy \"%s\"; expected none, every=K, sqrt, all, cheap, "
                      "or a size such as 64MiB",
                      text);
}

ek_status ek__recompute_check(const char *who, const ek_recompute *recompute) {
  EK__FAIL_IF(recompute->kind == EK_RECOMPUTE_BYTES, EK_ERR_INVALID_ARGUMENT,
              "%s: recomputation to stay below a number of bytes must first be planned with "
              "ek_recompute_plan()",
              who);
  EK__FAIL_IF((unsigned)recompute->kind > EK_RECOMPUTE_BYTES, EK_ERR_INVALID_ARGUMENT,
              "%s: unknown recomputation %d", who, (int)recompute->kind);
  if (recompute->kind != EK_RECOMPUTE_EVERY || recompute->every > 0) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                      "%s: recomputation of every %lld modules, expected 1 or more", who,
                      (long long)recompute->every);
}

ek_recompute ek__recompute_within(const ek_recompute *recompute) {
  const bool cheap = recompute->kind == EK_RECOMPUTE_CHEAP;
  return cheap ? *recompute : (ek_recompute){.kind = EK_RECOMPUTE_NONE};
}

const char *ek_recompute_format(char text[EK_RECOMPUTE_TEXT], const ek_recompute *recompute) {
  (void)snprintf(text, EK_RECOMPUTE_TEXT, "unknown");
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
    if (words[i].kind == recompute->kind)
      (void)snprintf(text, EK_RECOMPUTE_TEXT, "%s", words[i].text);
  }
  if (recompute->kind == EK_RECOMPUTE_EVERY) {
    (void)snprintf(text, EK_RECOMPUTE_TEXT, "every=%lld", (long long)recompute->every);
  }
  if (recompute->kind == EK_RECOMPUTE_BYTES) {
    (void)snprintf(text, EK_RECOMPUTE_TEXT, "%llu", (unsigned long long)recompute->bytes);
  }
  return text;
}

static const ek_recompute by_cost[] = {{EK_RECOMPUTE_NONE, 0, 0},  {EK_RECOMPUTE_CHEAP, 0, 0},
                                       {EK_RECOMPUTE_EVERY, 1, 0}, {EK_RECOMPUTE_EVERY, 2, 0},
                                       {EK_RECOMPUTE_EVERY, 3, 0}, {EK_RECOMPUTE_EVERY, 4, 0},
                                       {EK_RECOMPUTE_SQRT, 0, 0},  {EK_RECOMPUTE_ALL, 0, 0}};
enum { CANDIDATES = sizeof by_cost / sizeof by_cost[0] };

const ek_recompute *ek__recompute_by_cost(size_t index) {
  return index < CANDIDATES ? &by_cost[index] : NULL;
}

ek_status ek_recompute_plan(ek_recompute *recompute, uint64_t *peak, uint64_t bytes,
                            ek_recompute_peak plan, void *context) {
  EK__NOT_NULL("ek_recompute_plan", recompute);
  EK__FAIL_IF(plan == NULL, EK_ERR_INVALID_ARGUMENT, "ek_recompute_plan: plan is NULL");
  uint64_t least = UINT64_MAX;
  char text[EK_RECOMPUTE_TEXT];
  size_t nearest = 0;
  for (size_t i = 0; i < CANDIDATES; i++) {
    uint64_t found = 0;
    const ek_status status = plan(context, &by_cost[i], &found);
    if (status == EK_ERR_OUT_OF_MEMORY) continue;
    EK_TRY(status);
    if (found < least) least = found, nearest = i;
    if (found <= bytes) break;
  }
  *recompute = by_cost[nearest];
  if (peak != NULL) *peak = least;
  if (least <= bytes) return EK_OK;
  EK__FAIL_IF(least == UINT64_MAX, EK_ERR_OUT_OF_MEMORY,
              "recompute: no policy fits the plan devices");
  char room[32], needed[32];
  return ek_error_set(EK_ERR_OUT_OF_MEMORY,
                      "recompute: nothing fits %s; %s comes nearest, with %s",
                      ek__size_text(room, sizeof room, bytes),
                      ek_recompute_format(text, &by_cost[nearest]),
                      ek__size_text(needed, sizeof needed, least));
}

/* ---- one module ---- */

struct recompute {
  ek_module base;
  ek_module *inner;
};
enum { INNER };

static ek_module *inner_of(const ek_module *self) {
  return ((const struct recompute *)self)->inner;
}

static ek_status recompute_parameters(const ek_module *self, ek_declaration *declaration) {
  return ek_declare_wrapped(declaration, inner_of(self));
}

static void recompute_formula(const ek_module *self, ek_formula *formula) {
  ek_module_formula(formula, inner_of(self));
}

static ek_type recompute_input_type(const ek_module *self, size_t input) {
  return ek_module_input_type(inner_of(self), input);
}

static ek_status recompute_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                                   ek_tensor *outputs) {
  ek_child_options options = EK_CHILD_OPTIONS_INIT;
  options.save = false;
  options.unread = !ek_pass_wants_outputs(pass);
  EK_TRY(ek_pass_child_forward_with(outputs, pass, INNER, inputs, &options));
  for (size_t i = 0; i < ek_module_inputs(self); i++) EK_TRY(ek_pass_save(pass, &inputs[i]));
  return EK_OK;
}

static ek_status run_again(const ek_module *self, ek_pass *pass) {
  ek_tensor inputs[EK_MAX_INPUTS], outputs[EK_MAX_TENSORS] = {{0}};
  ek_child_options options = EK_CHILD_OPTIONS_INIT;
  options.unread = true;
  EK_TRY(ek__layer_take(inputs, pass, ek_module_inputs(self)));
  const ek_status status = ek_pass_child_forward_with(outputs, pass, INNER, inputs, &options);
  ek__free_all(outputs, ek_module_outputs(self));
  ek__free_all(inputs, ek_module_inputs(self));
  return status;
}

static ek_status recompute_backward(const ek_module *self, ek_pass *pass,
                                    const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  EK_TRY(run_again(self, pass));
  return ek_pass_child_backward(grad_inputs, pass, INNER, grad_outputs);
}

static void recompute_free(ek_module *self) {
  ek_module_free(inner_of(self));
  ek__free(self);
}

static const ek_module_ops recompute_ops = {
    EK__LAYER("recompute", recompute_forward, recompute_backward, recompute_free),
    .parameters = recompute_parameters, .formula = recompute_formula,
    .input_type = recompute_input_type};

ek_status ek_recompute_create(ek_module **module, ek_module *inner) {
  EK__NOT_NULL("recompute", module);
  EK__FAIL_IF(inner == NULL || ek_module_table(inner) == NULL, EK_ERR_INVALID_ARGUMENT,
              "recompute: the inner module is NULL or not initialised");
  EK__FAIL_IF(ek_module_is_criterion(inner), EK_ERR_INVALID_ARGUMENT,
              "recompute: %s is a criterion; recompute the model before it", ek_module_kind(inner));
  EK__FAIL_IF(ek_module_targets(inner) >= ek_module_inputs(inner), EK_ERR_INVALID_ARGUMENT,
              "recompute: %s has %zu inputs, %zu of them targets", ek_module_kind(inner),
              ek_module_inputs(inner), ek_module_targets(inner));
  struct recompute made = {.inner = inner};
  ek_module_options o = EK_MODULE_OPTIONS_INIT;
  o.inputs = ek_module_inputs(inner) - ek_module_targets(inner);
  o.outputs = ek_module_outputs(inner);
  o.targets = ek_module_targets(inner);
  EK_TRY(ek_module_init_with(&made.base, &recompute_ops, &o));
  EK_TRY(ek__new_copy(module, &made, sizeof made, "recompute"));
  ek_module_share(inner);
  return EK_OK;
}
