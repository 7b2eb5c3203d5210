/*
 * replica.c - flat parameters, gradients and buffers of a module on one device.
 */
#include <evenkeel/replica.h>

#include <string.h>

#include <evenkeel/convert.h>
#include <evenkeel/elementwise.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"
#include "device/device_internal.h"
#include "device/types.h"
#include "module/replica_internal.h"

static ek_tensor view(const ek_tensor *flat, const struct ek__parameter *parameter, int64_t first) {
  ek_tensor result = *flat;
  result.memory = NULL;
  result.rank = parameter->rank;
  memcpy(result.shape, parameter->shape, sizeof result.shape);
  if (result.data != NULL) {
    result.data =
        (char *)result.data + (size_t)(parameter->offset - first) * ek_type_size(result.type);
  }
  return result;
}

ek_tensor ek__replica_view(const ek_tensor *flat, const ek_replica *replica, size_t parameter,
                           int64_t first) {
  return view(flat, &replica->layout.parameters[parameter], first);
}

ek_tensor ek__replica_value(const ek_replica *replica, size_t parameter) {
  const struct ek__parameter *p = &replica->layout.parameters[parameter];
  return view(p->buffer ? &replica->buffers : ek__replica_values(replica), p, 0);
}

/* The same, but of the parameter itself. */
static ek_tensor master_view(const ek_replica *replica, size_t parameter) {
  const struct ek__parameter *p = &replica->layout.parameters[parameter];
  return view(p->buffer ? &replica->buffers : &replica->parameters, p, 0);
}

ek_tensor ek__replica_gradient(const ek_replica *replica, size_t parameter) {
  return view(&replica->gradients, &replica->layout.parameters[parameter], 0);
}

static ek_status initialize(ek_replica *replica, uint64_t seed) {
  if (ek_device_counts_only(replica->device)) return EK_OK;
  for (size_t i = 0; i < replica->layout.parameter_count; i++) {
    ek_tensor value = master_view(replica, i);
    if (!replica->whole_parameters && !replica->layout.parameters[i].buffer) continue;
    EK_TRY(ek__initial_values(&value, &replica->layout.parameters[i], 0, seed, 1));
  }
  return EK_OK;
}

/* ---- opening and closing ---- */

/* Zeros, so that the padding between parameters takes part in sums without a trace. */
static ek_status create_flat(ek_tensor *flat, ek_replica *replica, ek_memory_category category,
                             int64_t count) {
  const ek_type type = category == EK_MEMORY_COPIES      ? ek_precision_type(replica->precision)
                       : category == EK_MEMORY_GRADIENTS ? replica->gradient_type
                                                         : replica->type;
  EK_TRY(ek_tensor_create(flat, replica->device, category, type, 1, &count));
  return ek_op_zero(ek_device_stream(replica->device, EK_STREAM_COMPUTE), flat);
}

ek_status ek__replica_hold_parameters(ek_replica *replica, int64_t count) {
  ek_tensor_free(&replica->parameters);
  EK_TRY(create_flat(&replica->parameters, replica, EK_MEMORY_PARAMETERS, count));
  if (replica->whole_values || !ek__replica_is_mixed(replica)) return EK_OK;
  ek_tensor_free(&replica->copies);
  return create_flat(&replica->copies, replica, EK_MEMORY_COPIES, count);
}

ek_status ek__replica_hold_gradients(ek_replica *replica, int64_t count) {
  return create_flat(&replica->gradients, replica, EK_MEMORY_GRADIENTS, count);
}

static ek_status check_device(ek_type type, const ek_device *device, const char *who) {
  if ((ek_device_types(device) >> type & 1u) != 0) return EK_OK;
  char types[EK__TYPES_TEXT];
  return ek_error_set(EK_ERR_UNSUPPORTED, "%s: %s computes in %s, not in %s", who,
                      ek_device_name(device), ek__types_text(types, ek_device_types(device)),
                      ek_type_name(type));
}

ek_status ek__precision_read(ek_precision *precision, ek_type type, const ek_device *device,
                             const char *who) {
  EK__FAIL_IF(type != EK_F32 && type != EK_F64, EK_ERR_INVALID_ARGUMENT,
              "%s: options.type is %s, expected f32 or f64", who, ek_type_name(type));
  if (*precision == EK_PRECISION_DEFAULT) *precision = (ek_precision)type;
  const ek_type values = ek_precision_type(*precision);
  const bool fits = values == type || (type == EK_F32 && ek__type_is_half(values));
  EK__FAIL_IF(!fits, EK_ERR_INVALID_ARGUMENT,
              "%s: options.precision is %s with parameters of %s, expected %s", who,
              ek_precision_name(*precision), ek_type_name(type),
              type == EK_F64 ? "f64" : "f32, tf32, bf16 or f16");
  return check_device(values, device, who);
}

ek_status ek__gradient_type_read(ek_type *gradient_type, ek_type type, ek_precision precision,
                                 const ek_device *device, const char *who) {
  if (*gradient_type == 0) *gradient_type = type;
  if (*gradient_type == type) return EK_OK;
  const ek_type values = ek_precision_type(precision);
  const bool fits = type == EK_F32 && ek__type_is_half(*gradient_type) &&
                    (values == EK_F32 || values == *gradient_type);
  EK__FAIL_IF(!fits, EK_ERR_INVALID_ARGUMENT,
              "%s: options.gradient_type is %s, but parameters are %s and modules compute in %s; "
              "expected %s",
              who, ek_type_name(*gradient_type), ek_type_name(type), ek_precision_name(precision),
              type == EK_F64      ? "f64"
              : values == EK_BF16 ? "f32 or bf16"
              : values == EK_F16  ? "f32 or f16"
                                  : "f32, bf16 or f16");
  return check_device(*gradient_type, device, who);
}

ek_status ek_replica_open(ek_replica **replica, ek_device *device, ek_module *module,
                          const ek_replica_options *options) {
  static const struct ek__replica_parts all = {.masters = EK__MASTERS_WHOLE};
  return ek__replica_open_parts(replica, device, module, options, &all);
}

static ek_status create_buffers(ek_replica *replica, bool gradients) {
  const int64_t all = replica->layout.flat_count, buffers = replica->layout.buffer_count;
  const bool copies = ek__replica_is_mixed(replica) && replica->whole_values;
  EK_TRY(create_flat(&replica->parameters, replica, EK_MEMORY_PARAMETERS,
                     replica->whole_parameters ? all : 0));
  EK_TRY(create_flat(&replica->copies, replica, EK_MEMORY_COPIES, copies ? all : 0));
  EK_TRY(create_flat(&replica->buffers, replica, EK_MEMORY_PARAMETERS, buffers));
  return create_flat(&replica->gradients, replica, EK_MEMORY_GRADIENTS,
                     gradients ? replica->layout.trained_count : 0);
}

ek_status ek__replica_open_parts(ek_replica **replica, ek_device *device, ek_module *module,
                                 const ek_replica_options *options,
                                 const struct ek__replica_parts *parts) {
  ek_replica_options o = EK_REPLICA_OPTIONS_INIT;
  EK__NOT_NULL("ek_replica_open", replica, device, module);
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_replica_options"));
  EK_TRY(ek__precision_read(&o.precision, o.type, device, "ek_replica_open"));
  EK_TRY(ek__gradient_type_read(&o.gradient_type, o.type, o.precision, device, "ek_replica_open"));
  ek_replica *result = NULL;
  EK_TRY(ek__new(&result, 1, sizeof *result, "a replica"));
  result->device = device;
  result->type = o.type;
  result->precision = o.precision;
  result->gradient_type = o.gradient_type;
  result->masters = parts->masters;
  result->whole_parameters = parts->masters != EK__MASTERS_SHARED && !parts->none;
  result->whole_values = !parts->shared_values;
  result->whole_gradients = o.gradients;
  result->module = ek_module_share(module);
  ek_status status = EK_OK;
  EK_TRY_GOTO(status,
              ek__layout_open(&result->layout, module, o.type, ek_precision_type(o.precision),
                              parts->unit_bytes, ek__device_table(device)->table_rows, o.patterns,
                              o.pattern_count),
              cleanup);
  EK_TRY_GOTO(status, create_buffers(result, o.gradients), cleanup);
  if (o.initialize) EK_TRY_GOTO(status, initialize(result, o.seed), cleanup);
  if (o.initialize && result->whole_parameters) {
    EK_TRY_GOTO(status, ek_replica_refresh(result), cleanup);
  }
  EK_TRY_GOTO(status, ek__layout_open_states(&result->layout, device), cleanup);
  *replica = result;
  return EK_OK;
cleanup:
  ek_replica_free(result);
  return status;
}

ek_status ek_parameter_count(ek_parameter_totals *totals, ek_module *module,
                             const ek_parameter_pattern *patterns, size_t pattern_count) {
  EK__NOT_NULL("ek_parameter_count", totals, module);
  struct ek__layout layout;
  const bool f32 = (EK__TABLE_TYPES(ek_module_table(module)) & EK_TYPES_F32) != 0;
  const ek_type type = f32 ? EK_F32 : EK_F64;
  EK_TRY(ek__layout_open(&layout, module, type, type, 0, 0, patterns, pattern_count));
  *totals = (ek_parameter_totals){0};
  for (size_t i = 0; i < layout.parameter_count; i++) {
    const struct ek__parameter *p = &layout.parameters[i];
    if (p->buffer) {
      totals->buffers += p->count;
    } else {
      totals->parameters += p->count;
      totals->trained += p->frozen ? 0 : p->count;
    }
  }
  ek__layout_close(&layout);
  return EK_OK;
}

void ek_replica_free(ek_replica *replica) {
  if (replica == NULL) return;
  ek__layout_close_states(&replica->layout, replica->device);
  while (replica->spares != NULL) {
    struct ek__spare *spare = replica->spares;
    replica->spares = spare->next;
    spare->free(spare);
  }
  ek_tensor_free(&replica->gradients);
  ek_tensor_free(&replica->buffers);
  ek_tensor_free(&replica->copies);
  ek_tensor_free(&replica->parameters);
  ek__holders_forget(replica->device, &replica->layout);
  ek__layout_close(&replica->layout);
  ek_module_free(replica->module);
  ek__free(replica);
}

ek_status ek_replica_refresh(ek_replica *replica) {
  EK__NOT_NULL("ek_replica_refresh", replica);
  if (!ek__replica_is_mixed(replica)) return EK_OK;
  EK__FAIL_IF(ek_tensor_count(&replica->copies) != ek_tensor_count(&replica->parameters),
              EK_ERR_STATE, "ek_replica_refresh: the replica holds only a part of its parameters");
  return ek_op_convert(ek_device_stream(replica->device, EK_STREAM_COMPUTE), &replica->copies,
                       &replica->parameters);
}

/* ---- reading ---- */

ek_device *ek_replica_device(const ek_replica *replica) {
  return replica == NULL ? NULL : replica->device;
}

ek_module *ek_replica_module(const ek_replica *replica) {
  return replica == NULL ? NULL : replica->module;
}

ek_type ek_replica_type(const ek_replica *replica) {
  return replica == NULL ? (ek_type)0 : replica->type;
}

ek_precision ek_replica_precision(const ek_replica *replica) {
  return replica == NULL ? EK_PRECISION_DEFAULT : replica->precision;
}

const ek_tensor *ek_replica_parameters(const ek_replica *replica) {
  return replica == NULL ? NULL : &replica->parameters;
}

const ek_tensor *ek_replica_gradients(const ek_replica *replica) {
  return replica == NULL ? NULL : &replica->gradients;
}

const ek_tensor *ek_replica_buffers(const ek_replica *replica) {
  return replica == NULL ? NULL : &replica->buffers;
}

const ek_tensor *ek_replica_copies(const ek_replica *replica) {
  return replica == NULL ? NULL : &replica->copies;
}

size_t ek_replica_parameter_count(const ek_replica *replica) {
  return replica == NULL ? 0 : replica->layout.parameter_count;
}

ek_status ek_replica_parameter(ek_parameter_info *info, const ek_replica *replica, size_t index) {
  EK__FAIL_IF(info == NULL || replica == NULL || index >= replica->layout.parameter_count,
              EK_ERR_INVALID_ARGUMENT,
              "ek_replica_parameter: info or replica is NULL, or no parameter has number %zu",
              index);
  const struct ek__parameter *parameter = &replica->layout.parameters[index];
  *info = (ek_parameter_info){.name = parameter->name,
                              .value = master_view(replica, index),
                              .offset = parameter->offset,
                              .buffer = parameter->buffer,
                              .no_decay = parameter->no_decay,
                              .frozen = parameter->frozen,
                              .rate_scale = 1,
                              .elementwise = parameter->elementwise};
  if (!parameter->buffer && !parameter->frozen) {
    info->rate_scale = replica->layout.groups[parameter->group].rate_scale;
    info->weight_decay = replica->layout.groups[parameter->group].weight_decay;
  }
  if (!replica->whole_parameters && !parameter->buffer) info->value.data = NULL;
  if (!parameter->buffer && !parameter->frozen && replica->whole_gradients) {
    info->gradient = ek__replica_gradient(replica, index);
  }
  return EK_OK;
}

ek_status ek_replica_find(ek_parameter_info *info, const ek_replica *replica, const char *name) {
  EK__NOT_NULL("ek_replica_find", info, replica, name);
  size_t index = 0;
  EK_TRY(ek__layout_find(&index, &replica->layout, name));
  return ek_replica_parameter(info, replica, index);
}

EK__OPTIONS_INIT(ek_replica_options, EK_REPLICA_OPTIONS_INIT)
