/*
 * sequential.c - modules one after the other.
 */
#include <evenkeel/sequential.h>

#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"
#include "module/composite.h"
#include "module/layer_internal.h"

static const ek_module_ops sequential_ops = {
    EK__LAYER("sequential", ek__composite_forward, ek__composite_backward, ek__composite_free),
    .parameters = ek__composite_parameters, .input_type = ek__composite_input_type, .chain = true};

ek_status ek__sequential_of(ek_module **module, struct ek__composite *m, ek_status status) {
  const size_t last = m->count - 1;
  const size_t inputs = status == EK_OK ? ek_module_inputs(m->children[0].module) : 0;
  const size_t outputs = status == EK_OK ? ek_module_outputs(m->children[last].module) : 0;
  return ek__composite_create(module, m, sizeof *m, &sequential_ops, inputs, outputs, status);
}

static ek_status check_modules(ek_module *const *modules, size_t count) {
  EK__FAIL_IF(modules == NULL || count == 0, EK_ERR_INVALID_ARGUMENT,
              "sequential: no modules, expected 1 or more");
  for (size_t i = 0; i < count; i++) {
    EK__FAIL_IF(modules[i] == NULL || ek_module_table(modules[i]) == NULL, EK_ERR_INVALID_ARGUMENT,
                "sequential: module %zu is NULL or not initialised", i);
    EK__FAIL_IF(i > 0 && ek_module_inputs(modules[i]) != ek_module_outputs(modules[i - 1]),
                EK_ERR_INVALID_ARGUMENT,
                "sequential: module %zu (%s) has %zu outputs, module %zu (%s) takes %zu", i - 1,
                ek_module_kind(modules[i - 1]), ek_module_outputs(modules[i - 1]), i,
                ek_module_kind(modules[i]), ek_module_inputs(modules[i]));
  }
  return EK_OK;
}

/* Children have what m->names holds, end to end, where they have names. */
static ek_status copy_names(struct ek__composite *m, const char *const *names, size_t count) {
  size_t bytes = 0;
  for (size_t i = 0; i < count && names != NULL; i++) {
    if (names[i] != NULL) bytes += strlen(names[i]) + 1;
  }
  if (bytes == 0) return EK_OK;
  EK_TRY(ek__new(&m->names, bytes, 1, "the names of a sequential"));
  char *at = m->names;
  for (size_t i = 0; i < count; i++) {
    if (names[i] == NULL) continue;
    const size_t length = strlen(names[i]) + 1;
    memcpy(at, names[i], length);
    m->children[i].name = at;
    at += length;
  }
  return EK_OK;
}

ek_status ek_sequential_create_with(ek_module **module, ek_module *const *modules, size_t count,
                                    const ek_sequential_options *options) {
  ek_sequential_options o = EK_SEQUENTIAL_OPTIONS_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_sequential_options"));
  EK_TRY(ek__recompute_check("sequential", &o.recompute));
  EK_TRY(check_modules(modules, count));
  ek_status status = EK_OK;
  struct ek__composite made = {.recompute = o.recompute, .unit = o.unit};
  for (size_t i = 0; i < count && status == EK_OK; i++) {
    status = ek__composite_add(&made, NULL, ek_module_share(modules[i]));
  }
  if (status == EK_OK) status = copy_names(&made, o.names, count);
  return ek__sequential_of(module, &made, status);
}

ek_status ek_sequential_create(ek_module **module, ek_module *const *modules, size_t count) {
  return ek_sequential_create_with(module, modules, count, NULL);
}

EK__OPTIONS_INIT(ek_sequential_options, EK_SEQUENTIAL_OPTIONS_INIT)
