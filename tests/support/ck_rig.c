/*
 * ck_rig.c - one device and all that a test makes on it; finite differences: see ek_check.h.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ek_check.h"

struct ck_rig *ck_rig_open(const char *spec, ek_type type, int threads) {
  static uint64_t stream = 0; /* every rig draws other numbers */
  struct ck_rig *rig = calloc(1, sizeof *rig);
  ck_assert_ptr_nonnull(rig);
  rig->group = ck_open(spec != NULL ? spec : test_devices("cpu:1"), threads);
  rig->device = ek_group_device(rig->group, 0);
  rig->stream = ek_device_stream(rig->device, EK_STREAM_COMPUTE);
  ck_assert_ptr_nonnull(rig->stream);
  rig->type = type;
  rig->unit = type == EK_F32 ? 0x1p-24 : 0x1p-53;
  rig->random = ck_random_start(stream++);
  return rig;
}

struct ck_rig *ck_rig_variant(int variant) {
  return ck_rig_open(NULL, variant % 2 == 0 ? EK_F32 : EK_F64, 1 + variant / 2);
}

void ck_rig_close(struct ck_rig *rig) {
  for (size_t i = 0; i < rig->tensors; i++) ek_tensor_free(&rig->tensor[i]);
  for (size_t i = 0; i < rig->arrays; i++) free(rig->array[i]);
  ck_no_memory_held(rig->group);
  ek_group_free(rig->group);
  free(rig);
}

double ck_round(const struct ck_rig *rig, double value) {
  return rig->type == EK_F32 ? (double)(float)value : value;
}

double *ck_zeros(struct ck_rig *rig, int64_t count) {
  ck_assert_msg(rig->arrays < CK_RIG_ARRAYS, "the rig has no room for another array");
  double *array = calloc((size_t)count + 1, sizeof *array);
  ck_assert_ptr_nonnull(array);
  rig->array[rig->arrays++] = array;
  return array;
}

double *ck_values(struct ck_rig *rig, int64_t count, double low, double high) {
  double *array = ck_zeros(rig, count);
  for (int64_t i = 0; i < count; i++) {
    array[i] = ck_round(rig, ck_random_uniform(&rig->random, low, high));
  }
  return array;
}

double *ck_integers(struct ck_rig *rig, int64_t count, int64_t low, int64_t high) {
  double *array = ck_zeros(rig, count);
  for (int64_t i = 0; i < count; i++) {
    array[i] = (double)ck_random_integer(&rig->random, low, high);
  }
  return array;
}

ek_tensor *ck_blank(struct ck_rig *rig, ek_type type, int rank, const int64_t *shape) {
  ck_assert_msg(rig->tensors < CK_RIG_TENSORS, "the rig has no room for another tensor");
  ek_tensor *tensor = &rig->tensor[rig->tensors++];
  ck_ok(ek_tensor_create(tensor, rig->device, EK_MEMORY_WORKSPACE, type, rank, shape));
  return tensor;
}

ek_tensor *ck_ghost(struct ck_rig *rig, ek_type type, int rank, const int64_t *shape) {
  ck_assert(ek_device_counts_only(rig->device));
  ck_assert_msg(rig->tensors < CK_RIG_TENSORS, "the rig has no room for another tensor");
  ek_tensor *tensor = &rig->tensor[rig->tensors++];
  *tensor = (ek_tensor){.device = rig->device, .type = type, .rank = rank};
  memcpy(tensor->shape, shape, (size_t)rank * sizeof *shape);
  tensor->data = (void *)(rig->ghosts += 256); /* never read; apart, so that none overlap */
  rig->ghosts += ek_tensor_bytes(tensor);
  return tensor;
}

ek_tensor *ck_tensor_of(struct ck_rig *rig, ek_type type, const double *values, int rank,
                        const int64_t *shape) {
  ek_tensor *tensor = ck_blank(rig, type, rank, shape);
  ck_set(tensor, values);
  return tensor;
}

ek_tensor *ck_tensor(struct ck_rig *rig, const double *values, int rank, const int64_t *shape) {
  return ck_tensor_of(rig, rig->type, values, rank, shape);
}

ek_tensor *ck_poisoned(struct ck_rig *rig, int rank, const int64_t *shape) {
  return ck_tensor_of(rig, rig->type, NULL, rank, shape);
}

double *ck_read(struct ck_rig *rig, const ek_tensor *tensor) {
  double *array = ck_zeros(rig, ek_tensor_count(tensor));
  ck_get(array, tensor);
  return array;
}

double ck_weighed(const ek_tensor *tensor, const double *weights) {
  const int64_t count = ek_tensor_count(tensor);
  double *values = malloc(((size_t)count + 1) * sizeof *values);
  ck_assert_ptr_nonnull(values);
  ck_get(values, tensor);
  long double sum = 0;
  for (int64_t i = 0; i < count; i++) sum += (long double)values[i] * weights[i];
  free(values);
  return (double)sum;
}

void ck_gradient(struct ck_rig *rig, const char *what, ck_function function, void *context,
                 double *x, const double *gradient, int64_t count, int64_t probes) {
  const double h = 1e-6;
  ck_assert_int_eq(rig->type, EK_F64);
  const bool all = probes >= count;
  if (all) probes = count;
  double *got = ck_zeros(rig, probes);
  double *want = ck_zeros(rig, probes);
  for (int64_t n = 0; n < probes; n++) {
    const int64_t i = all ? n : ck_random_integer(&rig->random, 0, count - 1);
    const double kept = x[i];
    x[i] = kept + h;
    const double above = function(context, x);
    const double step_above = x[i] - kept; /* h as it was rounded */
    x[i] = kept - h;
    const double below = function(context, x);
    const double step_below = kept - x[i];
    x[i] = kept;
    want[n] = (above - below) / (step_above + step_below);
    got[n] = gradient[i];
  }
  const double error = ck_rel_l2(got, want, probes);
  ck_assert_msg(error <= 1e-6, "%s: the gradient is off by %.3g (relative)", what, error);
}
