/*
 * model_parameters.c - reads and writes the parameters and gradients of a data-parallel model by
 * name.
 */
#include <string.h>

#include <evenkeel/data_parallel_model.h>

#include "parallel_internal.h"

static ek_status check(const char *who, const ek_data_parallel_model *model, const char *name,
                       const ek_tensor *host) {
  if (model == NULL || name == NULL || host == NULL) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s: an argument is NULL", who);
  }
  return ek__model_check(model);
}

static ek_status check_host(const char *who, const ek_parameter_info *info, const ek_tensor *host) {
  if (!ek_tensor_exists(host) || host->device != NULL) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s: there is no host tensor for %s", who,
                        info->name);
  }
  if (host->type != info->value.type) {
    return ek_error_set(EK_ERR_TYPE, "%s: %s is %s, the host tensor is %s", who, info->name,
                        ek_type_name(info->value.type), ek_type_name(host->type));
  }
  if (ek_tensor_count(host) != ek_tensor_count(&info->value)) {
    return ek_error_set(EK_ERR_SHAPE, "%s: %s has %lld elements, the host tensor %lld", who,
                        info->name, (long long)ek_tensor_count(&info->value),
                        (long long)ek_tensor_count(host));
  }
  return EK_OK;
}

size_t ek_data_parallel_model_parameter_count(const ek_data_parallel_model *model) {
  return model == NULL ? 0 : ek_replica_parameter_count(model->replicas[0]);
}

const char *ek_data_parallel_model_parameter_name(const ek_data_parallel_model *model,
                                                  size_t index) {
  ek_parameter_info info;
  if (index >= ek_data_parallel_model_parameter_count(model)) return NULL;
  return ek_replica_parameter(&info, model->replicas[0], index) == EK_OK ? info.name : NULL;
}

ek_status ek_data_parallel_model_describe(ek_tensor *like, const ek_data_parallel_model *model,
                                          const char *name) {
  ek_parameter_info info;
  EK_TRY(check("describe", model, name, like));
  EK_TRY(ek_replica_find(&info, model->replicas[0], name));
  *like = info.value;
  like->data = NULL;
  like->device = NULL;
  return EK_OK;
}

ek_status ek_data_parallel_model_get(ek_tensor *host, const ek_data_parallel_model *model,
                                     const char *name) {
  ek_parameter_info info;
  EK_TRY(check("get", model, name, host));
  EK__MODEL_ENTER(model, "get");
  EK_TRY(ek_replica_find(&info, model->replicas[0], name));
  EK_TRY(check_host("get", &info, host));
  return ek_tensor_copy(host, &info.value);
}

ek_status ek_data_parallel_model_set(ek_data_parallel_model *model, const char *name,
                                     const ek_tensor *host) {
  ek_parameter_info info;
  EK_TRY(check("set", model, name, host));
  EK__MODEL_ENTER(model, "set");
  EK_TRY(ek_replica_find(&info, model->replicas[0], name));
  EK_TRY(check_host("set", &info, host));
  /* As with an update: a copy that fails may leave the devices apart. */
  ek__model_update_begins(model);
  for (size_t k = 0; k < model->count; k++) {
    EK_TRY(ek_replica_find(&info, model->replicas[k], name));
    EK_TRY(ek_tensor_copy(&info.value, host));
  }
  ek__model_update_ended(model);
  return EK_OK;
}

/* Elements first .. last - 1 of a flat buffer to their place in the host's. */
static ek_status read_range(ek_tensor *host, int64_t host_first, const ek_tensor *flat,
                            int64_t first, int64_t count) {
  const ek_tensor from = ek__flat_range(flat, first, count);
  ek_tensor to = ek__flat_range(host, host_first, count);
  return ek_tensor_copy(&to, &from);
}

ek_status ek__model_read_flat(const ek_data_parallel_model *model, const ek_tensor *const *flats,
                              bool whole, int64_t offset, ek_tensor *host) {
  const int64_t count = ek_tensor_count(host);
  if (ek_device_counts_only(ek_group_device(model->group, 0))) return EK_OK;
  if (model->options.state != EK_STATE_SHARDED) {
    return read_range(host, 0, flats[0], offset, count);
  }
  int64_t owned[EK_MAX_DEVICES] = {0}; /* elements of earlier buckets, per device */
  for (size_t b = 0; b < ek_reducer_bucket_count(model->reducer); b++) {
    for (size_t k = 0; k < model->count; k++) {
      int64_t first = 0, last = 0;
      EK_TRY(ek_reducer_range(&first, &last, model->reducer, b, k));
      const int64_t from = first > offset ? first : offset;
      const int64_t to = last < offset + count ? last : offset + count;
      if (from < to) {
        EK_TRY(read_range(host, from - offset, flats[k], whole ? from : owned[k] + from - first,
                          to - from));
      }
      owned[k] += last - first;
    }
  }
  return EK_OK;
}

/* What the optimizer would multiply with: 1 / D, or 1. */
static ek_status read_factor(double *factor, const ek_data_parallel_model *model) {
  double totals[2] = {0, 1};
  EK_TRY(ek__read_numbers(totals, 2, &model->totals[0]));
  *factor = !model->divided ? 1.0 : totals[1] == 0 ? 0.0 : 1.0 / totals[1];
  return EK_OK;
}

ek_status ek_data_parallel_model_gradient(ek_tensor *host, const ek_data_parallel_model *model,
                                          const char *name) {
  ek_parameter_info info;
  EK_TRY(check("gradient", model, name, host));
  EK__MODEL_ENTER(model, "gradient");
  EK_TRY(ek_replica_find(&info, model->replicas[0], name));
  if (info.buffer) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "gradient: %s is a buffer", info.name);
  }
  if (model->stage != EK__STEP_REDUCED) {
    return ek_error_set(EK_ERR_STATE, "gradient: the step's last backward has not run");
  }
  EK_TRY(check_host("gradient", &info, host));
  const ek_tensor *flats[EK_MAX_DEVICES];
  for (size_t k = 0; k < model->count; k++) flats[k] = ek_replica_gradients(model->replicas[k]);
  EK_TRY(ek__model_read_flat(model, flats, true, info.offset, host));
  double factor = 1;
  EK_TRY(read_factor(&factor, model));
  const int64_t count = ek_tensor_count(host);
  for (int64_t i = 0; i < count && factor != 1.0; i++) {
    if (host->type == EK_F32) {
      ((float *)host->data)[i] = (float)((double)((float *)host->data)[i] * factor);
    } else {
      ((double *)host->data)[i] *= factor;
    }
  }
  return EK_OK;
}
