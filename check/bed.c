/*
 * bed.c - runs a module on rows of generated inputs: see bed.h.
 */
#include "bed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <evenkeel/host_memory.h>
#include <evenkeel/memory.h>

#include "core/error.h"
#include "core/half.h"
#include "core/sizes.h"
#include "device/types.h"

/* ---- arrays of doubles ---- */

/* *pointer, to any kind of object, becomes `count` zeroed items of `size` bytes, for free(). */
static ek_status new_items(void *pointer, size_t count, size_t size) {
  void *memory = ek_host_memory_fails() ? NULL : calloc(count, size);
  EK__FAIL_IF(memory == NULL, EK_ERR_OUT_OF_MEMORY, "out of host memory for the check of a module");
  memcpy(pointer, &memory, sizeof memory); /* copied: it is no object of type void * */
  return EK_OK;
}

ek_status ek__bed_values(struct ek__values *values, int64_t count) {
  EK_TRY(new_items(&values->data, (size_t)count + 1, sizeof *values->data));
  values->count = count;
  return EK_OK;
}

static void free_values(struct ek__values *values) {
  free(values->data);
  *values = (struct ek__values){0};
}

enum { RESULTS = sizeof(union ek__results) / sizeof(struct ek__values) };

void ek__results_free(union ek__results *results) {
  for (size_t i = 0; i < RESULTS; i++) free_values(&results->all[i]);
}

/* A tensor's elements as they are in memory; the caller frees *data. */
static ek_status open_packed(void **data, ek_tensor *host, const ek_tensor *tensor) {
  EK_TRY(new_items(data, ek_tensor_bytes(tensor) + 1, 1));
  return ek_tensor_host(host, *data, tensor->type, tensor->rank, tensor->shape);
}

static float widen(uint16_t bits, ek_type type) {
  return type == EK_BF16 ? ek__bf16_widen((struct ek__bf16){bits})
                         : ek__f16_widen((struct ek__f16){bits});
}

static uint16_t narrow(float value, ek_type type) {
  return type == EK_BF16 ? ek__bf16_narrow(value).bits : ek__f16_narrow(value).bits;
}

ek_status ek__bed_read(double *values, const ek_tensor *tensor) {
  void *data = NULL;
  ek_tensor host;
  ek_status status = open_packed(&data, &host, tensor);
  if (status == EK_OK) status = ek_tensor_copy(&host, tensor);
  for (int64_t i = 0; status == EK_OK && i < ek_tensor_count(tensor); i++) {
    switch (tensor->type) {
    case EK_F32: values[i] = (double)((const float *)data)[i]; break;
    case EK_F64: values[i] = ((const double *)data)[i]; break;
    case EK_BF16:
    case EK_F16: values[i] = (double)widen(((const uint16_t *)data)[i], tensor->type); break;
    default: values[i] = (double)((const int32_t *)data)[i];
    }
  }
  free(data);
  return status;
}

static ek_status write_values(ek_tensor *tensor, const double *values) {
  void *data = NULL;
  ek_tensor host;
  ek_status status = open_packed(&data, &host, tensor);
  for (int64_t i = 0; status == EK_OK && i < ek_tensor_count(tensor); i++) {
    const float single = (float)values[i];
    switch (tensor->type) {
    case EK_F32: ((float *)data)[i] = single; break;
    case EK_F64: ((double *)data)[i] = values[i]; break;
    case EK_BF16:
    case EK_F16: ((uint16_t *)data)[i] = narrow(single, tensor->type); break;
    default: ((int32_t *)data)[i] = (int32_t)values[i];
    }
  }
  if (status == EK_OK) status = ek_tensor_copy(tensor, &host);
  free(data);
  return status;
}

static ek_status take_values(struct ek__values *values, const ek_tensor *tensor) {
  EK_TRY(ek__bed_values(values, ek_tensor_count(tensor)));
  return ek__bed_read(values->data, tensor);
}

/* ---- random numbers, by what they are for and the element's number ---- */

enum { STREAM_PARAMETERS, STREAM_INPUTS, STREAM_FACTORS = STREAM_INPUTS + EK__CHECK_INPUTS };

static double draw(const struct ek__bed *bed, uint32_t stream, int64_t element,
                   const ek_check_input *from) {
  double value = 0;
  for (uint32_t attempt = 0; attempt < 64; attempt++) {
    uint32_t bits[4];
    const ek_random_key key = {bed->options->seed, attempt, stream};
    ek_random_bits(key, (uint32_t)(element >> 32), (uint32_t)element, bits);
    const double unit = (double)ek_random_unit(bits[0]);
    if (from->type == EK_I32) return floor(from->low + unit * (from->high - from->low + 1));
    value = (double)(float)(from->low + unit * (from->high - from->low));
    if (fabs(value) >= from->gap) break;
  }
  return value;
}

/* Output 0 of a criterion has no rows: it is a sum over them, of {loss, weight} for each term. */
static bool is_totals(const struct ek__bed *bed, size_t output) {
  return output == 0 && ek_module_terms(bed->module) > 0;
}

/* The number, in the whole output, of the first element that comes from these rows. */
static int64_t first_element(const struct ek__bed *bed, size_t output, const ek_tensor *y,
                             int64_t first, int64_t rows) {
  const bool cut = rows > 0 && y->rank > 0 && !is_totals(bed, output);
  return cut ? ek_tensor_count(y) / rows * first : 0;
}

static double factor(const struct ek__bed *bed, size_t output, int64_t element) {
  static const ek_check_input range = {.low = -1, .high = 1};
  const bool unused = ek_module_outputs(bed->module) > 1 || element % 2 == 1;
  if (is_totals(bed, output) && unused) return 0;
  return draw(bed, STREAM_FACTORS + (uint32_t)output, element, &range);
}

/* ---- opening and closing ---- */

static ek_status make_inputs(struct ek__bed *bed) {
  for (size_t i = 0; i < ek_module_inputs(bed->module); i++) {
    const ek_check_input *from = &bed->inputs[i];
    int64_t count = 1;
    for (int d = 0; d < from->rank; d++) {
      EK__FAIL_IF(!ek__multiply(&count, count, from->shape[d]), EK_ERR_OVERFLOW,
                  "ek_module_check: input %zu is too large", i);
    }
    EK_TRY(ek__bed_values(&bed->input[i], count));
    for (int64_t k = 0; k < count; k++) {
      bed->input[i].data[k] = draw(bed, STREAM_INPUTS + (uint32_t)i, k, from);
    }
  }
  return EK_OK;
}

ek_status ek__bed_prepare(struct ek__bed *bed) {
  const ek_check_input range = {.low = bed->options->low, .high = bed->options->high};
  ek_replica *first = bed->parts[0].replica;
  EK_TRY(take_values(&bed->parameters, ek_replica_parameters(first)));
  if (!(range.low < range.high)) return EK_OK;
  for (size_t i = 0; i < ek_replica_parameter_count(first); i++) {
    ek_parameter_info info;
    EK_TRY(ek_replica_parameter(&info, first, i));
    for (int64_t k = 0; !info.buffer && k < ek_tensor_count(&info.value); k++) {
      bed->parameters.data[info.offset + k] = draw(bed, STREAM_PARAMETERS, info.offset + k, &range);
    }
  }
  for (size_t k = 0; k < bed->devices; k++) {
    ek_tensor flat = *ek_replica_parameters(bed->parts[k].replica);
    EK_TRY(write_values(&flat, bed->parameters.data));
    if (bed->precision != EK_PRECISION_DEFAULT) EK_TRY(ek_replica_refresh(bed->parts[k].replica));
  }
  return EK_OK;
}

static ek_status open_part(struct ek__bed *bed, size_t index) {
  struct ek__bed_part *part = &bed->parts[index];
  ek_replica_options options = EK_REPLICA_OPTIONS_INIT;
  options.type = bed->type;
  options.precision = bed->precision;
  options.seed = bed->options->seed;
  part->bed = bed;
  EK_TRY(
      ek_replica_open(&part->replica, ek_group_device(bed->group, index), bed->module, &options));
  EK_TRY(ek__bed_values(&part->seen, ek_tensor_count(ek_replica_parameters(part->replica))));
  return new_items(&part->completions, ek_replica_parameter_count(part->replica) + 1,
                   sizeof *part->completions);
}

static ek_status open_communicator(struct ek__bed *bed) {
  ek_pass *pass = NULL;
  EK_TRY(ek_pass_open(&pass, bed->parts[0].replica, NULL));
  bed->collective = ek_pass_is_collective(pass);
  ek_pass_free(pass);
  return bed->collective ? ek_communicator_open(&bed->communicator, bed->group) : EK_OK;
}

ek_status ek__bed_open(struct ek__bed *bed, ek_module *module, const char *devices, ek_type type,
                       const ek_check_input *inputs, const ek_module_check_options *options) {
  ek_group_options group = EK_GROUP_OPTIONS_INIT;
  const bool half = ek__type_is_half(type);
  group.debug_memory = !bed->bare;
  *bed = (struct ek__bed){.module = module,
                          .bare = bed->bare,
                          .inputs = inputs,
                          .options = options,
                          .type = half ? EK_F32 : type,
                          .precision = half ? (ek_precision)type : EK_PRECISION_DEFAULT,
                          .samples = 1};
  EK_TRY(ek_group_open(&bed->group, devices, &group));
  bed->devices = ek_group_size(bed->group);
  EK_TRY(new_items(&bed->parts, bed->devices, sizeof *bed->parts));
  EK_TRY(new_items(&bed->offsets, bed->devices + 1, sizeof *bed->offsets));
  for (size_t i = ek_module_inputs(module); i-- > 0;) {
    if (!inputs[i].broadcast) bed->samples = inputs[i].shape[0];
  }
  for (size_t k = 0; k < bed->devices; k++) EK_TRY(open_part(bed, k));
  EK_TRY(open_communicator(bed));
  return make_inputs(bed);
}

ek_status ek__bed_close(struct ek__bed *bed, ek_status status) {
  ek_communicator_free(bed->communicator);
  for (size_t k = 0; bed->parts != NULL && k < bed->devices; k++) {
    ek_replica_free(bed->parts[k].replica);
    ek__results_free(&bed->parts[k].results);
    free_values(&bed->parts[k].seen);
    free(bed->parts[k].completions);
  }
  for (size_t i = 0; i < EK__CHECK_INPUTS; i++) free_values(&bed->input[i]);
  free_values(&bed->parameters);
  free(bed->parts);
  free(bed->offsets);
  if (status == EK_OK && bed->group != NULL) status = ek_group_synchronize(bed->group);
  char words[EK__MESSAGE_SIZE]; /* what was found first stays said */
  (void)snprintf(words, sizeof words, "%s", ek_error_message());
  const ek_status freed = ek_group_close(bed->group);
  if (status == EK_OK) {
    status = freed;
  } else {
    ek_error_set(status, "%s", words);
  }
  *bed = (struct ek__bed){0};
  return status;
}

ek_status ek__bed_store(struct ek__bed *bed, size_t index) {
  ek_parameter_info info;
  EK_TRY(ek_replica_parameter(&info, bed->parts[0].replica, index));
  return write_values(&info.value, bed->parameters.data + info.offset);
}

/* ---- one run on one device ---- */

struct tensors {
  ek_tensor x[EK__CHECK_INPUTS], dx[EK__CHECK_INPUTS], y[EK_MAX_TENSORS], dy[EK_MAX_TENSORS];
  ek_pass *pass;
};

/* This device's part of an input: from the first row on. */
static const double *rows_of(const struct ek__bed *bed, size_t input, int64_t first,
                             ek_tensor *shape) {
  const ek_check_input *from = &bed->inputs[input];
  *shape = (ek_tensor){.type = from->type == 0 ? bed->type : from->type, .rank = from->rank};
  memcpy(shape->shape, from->shape, sizeof shape->shape);
  if (from->broadcast || from->rank == 0) return bed->input[input].data;
  const int64_t multiple = from->shape[0] / bed->samples;
  return bed->input[input].data + first * multiple * ek_tensor_row_elements(shape);
}

static ek_status upload_inputs(struct tensors *t, const struct ek__bed *bed, ek_device *device,
                               int64_t first, int64_t count) {
  for (size_t i = 0; i < ek_module_inputs(bed->module); i++) {
    ek_tensor shape;
    const double *values = rows_of(bed, i, first, &shape);
    if (!bed->inputs[i].broadcast && shape.rank > 0) {
      shape.shape[0] = shape.shape[0] * count / bed->samples;
    }
    EK_TRY(
        ek_tensor_create(&t->x[i], device, EK_MEMORY_INPUTS, shape.type, shape.rank, shape.shape));
    EK_TRY(write_values(&t->x[i], values));
  }
  return EK_OK;
}

/* Gradients that were not written in this step hold anything. */
static ek_status spoil_gradients(const struct ek__bed_part *part) {
  struct ek__values nothing = {0};
  ek_status status = EK_OK;
  for (size_t i = 0; status == EK_OK && i < ek_replica_parameter_count(part->replica); i++) {
    ek_parameter_info info;
    EK_TRY(ek_replica_parameter(&info, part->replica, i));
    if (info.buffer || info.frozen) continue;
    const int64_t count = ek_tensor_count(&info.gradient);
    EK_TRY(ek__bed_values(&nothing, count));
    for (int64_t k = 0; k < count; k++) nothing.data[k] = NAN;
    status = write_values(&info.gradient, nothing.data);
    free_values(&nothing);
  }
  return status;
}

/* The outputs, the loss, and R as the gradient of the outputs. */
static ek_status take_outputs(struct tensors *t, struct ek__bed_part *part, ek_device *device,
                              int64_t first, int64_t rows) {
  const struct ek__bed *bed = part->bed;
  long double loss = 0, size = 0;
  for (size_t i = 0; i < ek_module_outputs(bed->module); i++) {
    const ek_tensor *y = &t->y[i];
    struct ek__values *values = &part->results.output[i], r = {0};
    EK_TRY(take_values(values, y));
    if (y->type == EK_I32) continue;
    const int64_t before = first_element(bed, i, y, first, rows);
    EK_TRY(ek__bed_values(&r, values->count));
    for (int64_t k = 0; k < values->count; k++) {
      r.data[k] = factor(bed, i, before + k);
      const long double term = (long double)values->data[k] * r.data[k];
      loss += term;
      size += fabsl(term);
    }
    ek_status status = EK_OK;
    if (bed->trial->backward) {
      status = ek_tensor_create(&t->dy[i], device, EK_MEMORY_OUTPUTS, y->type, y->rank, y->shape);
      if (status == EK_OK) status = write_values(&t->dy[i], r.data);
    }
    free_values(&r);
    EK_TRY(status);
  }
  part->loss = (double)loss;
  part->size = (double)size;
  return EK_OK;
}

static ek_status take_gradients(const struct tensors *t, struct ek__bed_part *part) {
  for (size_t i = 0; i < ek_module_inputs(part->bed->module); i++) {
    if (ek_tensor_exists(&t->dx[i])) EK_TRY(take_values(&part->results.grad_input[i], &t->dx[i]));
  }
  return take_values(&part->results.gradient, ek_replica_gradients(part->replica));
}

static ek_status same(const char *what, size_t number, const ek_tensor *tensor,
                      const double *before) {
  struct ek__values now = {0};
  EK_TRY(ek__bed_values(&now, ek_tensor_count(tensor)));
  ek_status status = ek__bed_read(now.data, tensor);
  for (int64_t k = 0; status == EK_OK && k < now.count; k++) {
    if (now.data[k] == before[k]) continue;
    status = ek_error_set(EK_ERR_MISMATCH, "%s %zu was written: element %lld was %.9g and is %.9g",
                          what, number, (long long)k, before[k], now.data[k]);
  }
  free_values(&now);
  return status;
}

/* Inputs, gradients of outputs and parameters are loans. */
static ek_status inspect(const struct tensors *t, const struct ek__bed_part *part, int64_t first,
                         int64_t rows) {
  const struct ek__bed *bed = part->bed;
  for (size_t i = 0; i < ek_module_inputs(bed->module); i++) {
    ek_tensor shape;
    EK_TRY(same("input", i, &t->x[i], rows_of(bed, i, first, &shape)));
  }
  for (size_t i = 0; i < ek_module_outputs(bed->module) && bed->trial->backward; i++) {
    if (!ek_tensor_exists(&t->dy[i])) continue;
    struct ek__values r = {0};
    const int64_t count = ek_tensor_count(&t->dy[i]);
    const int64_t before = first_element(bed, i, &t->dy[i], first, rows);
    EK_TRY(ek__bed_values(&r, count));
    for (int64_t k = 0; k < count; k++) r.data[k] = (double)(float)factor(bed, i, before + k);
    const ek_status status = same("gradient of output", i, &t->dy[i], r.data);
    free_values(&r);
    EK_TRY(status);
  }
  for (size_t i = 0; i < ek_replica_parameter_count(part->replica); i++) {
    ek_parameter_info info;
    EK_TRY(ek_replica_parameter(&info, part->replica, i));
    if (info.buffer) continue;
    EK_TRY(same(info.name, i, &info.value, bed->parameters.data + info.offset));
  }
  return EK_OK;
}

static ek_status run_pass(struct tensors *t, struct ek__bed_part *part, ek_device *device,
                          int64_t first, int64_t rows) {
  const struct ek__bed *bed = part->bed;
  const struct ek__trial *trial = bed->trial;
  ek_pass_options options = EK_PASS_OPTIONS_INIT;
  options.gradient = trial->gradient;
  options.training = trial->training;
  options.accumulate = trial->accumulate;
  options.seed = bed->options->seed;
  options.step = trial->step;
  options.first_sample = first;
  options.samples = rows;
  options.complete = trial->complete;
  options.communicator = trial->together ? bed->communicator : NULL;
  options.context = part;
  if (trial->gradient && !trial->accumulate) EK_TRY(spoil_gradients(part));
  if (trial->fail_at > 0) EK_TRY(ek_memory_fail_at(device, trial->fail_at));
  EK_TRY(ek_pass_open(&t->pass, part->replica, &options));
  EK_TRY(ek_pass_run_forward(t->y, t->pass, t->x));
  EK_TRY(take_outputs(t, part, device, first, rows));
  if (trial->backward) {
    EK_TRY(ek_pass_run_backward(trial->grad_inputs ? t->dx : NULL, t->pass, t->dy));
    EK_TRY(take_gradients(t, part));
  }
  if (!trial->inspect || ek_device_counts_only(device)) return EK_OK;
  return inspect(t, part, first, rows);
}

static ek_status held(uint64_t *bytes, const ek_device *device) {
  ek_memory_usage usage;
  EK_TRY(ek_memory_stats(&usage, device));
  *bytes = usage.current_bytes;
  return EK_OK;
}

static ek_status nothing_left(const ek_device *device, uint64_t before, const char *when) {
  uint64_t now = 0;
  EK_TRY(held(&now, device));
  if (now == before) return EK_OK;
  return ek_error_set(EK_ERR_MISMATCH, "%lld bytes are still held %s",
                      (long long)now - (long long)before, when);
}

/* Bytes that the outputs and all gradients need, each memory once, in addition to the inputs. */
static uint64_t needed(const struct tensors *t) {
  const struct {
    const ek_tensor *list;
    size_t count;
  } lists[] = {{t->x, EK__CHECK_INPUTS},
               {t->y, EK_MAX_TENSORS},
               {t->dy, EK_MAX_TENSORS},
               {t->dx, EK__CHECK_INPUTS}};
  const void *seen[2 * (EK__CHECK_INPUTS + EK_MAX_TENSORS)];
  size_t count = 0;
  uint64_t bytes = 0;
  for (size_t l = 0; l < sizeof lists / sizeof lists[0]; l++) {
    for (size_t i = 0; i < lists[l].count; i++) {
      const ek_tensor *tensor = &lists[l].list[i];
      bool known = tensor->memory == NULL;
      for (size_t k = 0; k < count; k++) known = known || seen[k] == tensor->memory;
      if (known) continue;
      seen[count++] = tensor->memory;
      const uint64_t units = (ek_tensor_bytes(tensor) + EK_MEMORY_UNIT - 1) / EK_MEMORY_UNIT;
      if (l > 0) bytes += units * EK_MEMORY_UNIT;
    }
  }
  return bytes;
}

/* Of a pass that keeps nothing more: an output that is a view of more memory holds all of it. */
static ek_status holds_no_more(const struct tensors *t, const ek_device *device, uint64_t before) {
  const uint64_t need = needed(t);
  uint64_t now = 0;
  EK_TRY(held(&now, device));
  if (now - before == need) return EK_OK;
  return ek_error_set(EK_ERR_MISMATCH,
                      "outputs and gradients hold %llu bytes, expected %llu, their own size",
                      (unsigned long long)(now - before), (unsigned long long)need);
}

/* Frees all but the inputs; then the device holds what it held before. */
static ek_status finish(struct tensors *t, struct ek__bed_part *part, const ek_device *device,
                        uint64_t before, ek_status status) {
  const struct ek__trial *trial = part->bed->trial;
  const bool nothing_saved = trial->backward || !trial->gradient;
  if (status == EK_OK && part->bed->bare && nothing_saved) {
    status = holds_no_more(t, device, before);
  }
  for (size_t i = 0; i < EK__CHECK_INPUTS; i++) ek_tensor_free(&t->dx[i]);
  for (size_t i = 0; i < EK_MAX_TENSORS; i++) {
    ek_tensor_free(&t->dy[i]);
    ek_tensor_free(&t->y[i]);
  }
  if (status == EK_OK && nothing_saved) {
    status = nothing_left(device, before,
                          trial->backward ? "after backward, by the pass"
                                          : "by a pass without gradient");
  }
  if (status == EK_OK && !nothing_saved) {
    status = held(&part->saved, device);
    part->saved -= before;
  }
  ek_pass_free(t->pass);
  return status;
}

static ek_status run_part(void *context, ek_device *device, size_t index) {
  struct ek__bed *bed = context;
  const struct ek__trial *trial = bed->trial;
  struct ek__bed_part *part = &bed->parts[index];
  const int64_t *offsets = trial->offsets;
  const int64_t first = offsets != NULL ? offsets[index] : index == 0 ? 0 : bed->samples;
  const int64_t rows = (offsets != NULL ? offsets[index + 1] : bed->samples) - first;
  ek__results_free(&part->results);
  part->loss = part->size = 0;
  const bool asked = (trial->empty && index == 0) || (trial->together && bed->collective);
  if (rows == 0 && !asked) return EK_OK;
  struct tensors t = {0};
  uint64_t before = 0;
  ek_status status = upload_inputs(&t, bed, device, first, rows);
  if (status == EK_OK) status = held(&before, device);
  if (status == EK_OK) {
    status = finish(&t, part, device, before, run_pass(&t, part, device, first, rows));
    if (trial->fail_at > 0 && ek_memory_fail_at(device, 0) != EK_OK) status = EK_ERR_INTERNAL;
    const ek_status left = status == EK_OK || status == EK_ERR_OUT_OF_MEMORY
                               ? nothing_left(device, before, "after the pass was freed")
                               : status;
    if (left != EK_OK) status = left;
  }
  for (size_t i = 0; i < EK__CHECK_INPUTS; i++) ek_tensor_free(&t.x[i]);
  return status;
}

ek_status ek__bed_run(struct ek__bed *bed, const struct ek__trial *trial) {
  bed->trial = trial;
  return ek_group_apply(bed->group, run_part, bed);
}

/* ---- results of several devices ---- */

/* Whether result number `index` is a sum over the devices, and not a part of the rows on each. */
static bool adds(const struct ek__bed *bed, size_t index) {
  if (index < EK_MAX_TENSORS) return is_totals(bed, index);
  index -= EK_MAX_TENSORS;
  return index == EK__CHECK_INPUTS || bed->inputs[index].broadcast;
}

static ek_status join(struct ek__values *all, const struct ek__bed *bed, size_t index) {
  const bool add = adds(bed, index);
  int64_t count = 0, at = 0;
  for (size_t k = 0; k < bed->devices; k++) {
    const struct ek__values *part = &bed->parts[k].results.all[index];
    if (part->data != NULL) count = add ? part->count : count + part->count;
  }
  EK_TRY(ek__bed_values(all, count));
  for (size_t k = 0; k < bed->devices; k++) {
    const struct ek__values *part = &bed->parts[k].results.all[index];
    for (int64_t i = 0; i < part->count; i++) all->data[at + i] += part->data[i];
    if (!add) at += part->count;
  }
  return EK_OK;
}

ek_status ek__bed_collect(union ek__results *results, struct ek__bed *bed) {
  ek_status status = EK_OK;
  memset(results, 0, sizeof *results);
  for (size_t i = 0; i < RESULTS && status == EK_OK; i++) {
    if (bed->parts[0].results.all[i].data != NULL) status = join(&results->all[i], bed, i);
  }
  if (status != EK_OK) ek__results_free(results);
  return status;
}
