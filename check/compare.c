/*
 * compare.c - compares the results of two runs of a module: see checks.h.
 *
 * Bounds (docs/numerics.md). The error of a sum of k products is at most k u times the sum of their
 * sizes, which for random terms is about sqrt(k) times the result. Errors of successive operations
 * add up: depth (k sqrt(k) + 8) u.
 */
#include <math.h>
#include <stdio.h>

#include "checks.h"
#include "core/error.h"

const struct ek__trial ek__check_whole = {
    .training = true, .gradient = true, .backward = true, .grad_inputs = true, .step = 3};

double ek__check_unit(ek_type type) { return type == EK_F64 ? 0x1p-53 : 0x1p-24; }

double ek__check_rounding(const struct ek__checker *c, ek_type type) {
  const double k = (double)c->options.longest;
  return c->options.depth * (k * sqrt(k) + 8) * ek__check_unit(type);
}

ek_status ek__check_agree(struct ek__checker *c, const char *what, const double *got,
                          const double *want, int64_t count, const double *numbers, double allowed,
                          double absolute) {
  double difference = 0, size = 0, largest = -1;
  int64_t worst = 0;
  for (int64_t i = 0; i < count; i++) {
    const double off = fabs(got[i] - want[i]);
    difference += off * off;
    size += want[i] * want[i];
    if (off > largest || isnan(off)) {
      largest = isnan(off) ? INFINITY : off;
      worst = i;
    }
  }
  const double bound = allowed * sqrt(size) + absolute, error = sqrt(difference);
  if (error <= bound) {
    if (bound > 0 && error / bound > c->worst) c->worst = error / bound;
    return EK_OK;
  }
  return ek_error_set(EK_ERR_MISMATCH,
                      "%s, element %lld: %.9g, expected %.9g (off by %.3g in all, allowed %.3g)",
                      what, (long long)(numbers == NULL ? (double)worst : numbers[worst]),
                      got[worst], want[worst], error, bound);
}

ek_status ek__check_finite(const char *what, const double *values, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    EK__FAIL_IF(!isfinite(values[i]), EK_ERR_MISMATCH,
                "%s, element %lld: %g; it was probably "
                "never written",
                what, (long long)i, values[i]);
  }
  return EK_OK;
}

static ek_status compare_one(const struct ek__comparison *by, const char *what, const double *got,
                             const double *want, int64_t count) {
  if (by->finite) return ek__check_finite(what, got, count);
  return ek__check_agree(by->c, what, got, want, count, NULL, by->allowed, 0);
}

static ek_status compare_values(const struct ek__comparison *by, const char *what, size_t number,
                                const struct ek__values *got, const struct ek__values *want) {
  char words[EK__CHECK_WORDS];
  if (got->data == NULL && (by->finite || want->data == NULL)) return EK_OK;
  (void)snprintf(words, sizeof words, "%s %zu", what, number);
  EK__FAIL_IF(!by->finite && (got->data == NULL || want->data == NULL || got->count != want->count),
              EK_ERR_MISMATCH, "%s: %lld elements, expected %lld", words, (long long)got->count,
              (long long)want->count);
  return compare_one(by, words, got->data, want->data, got->count);
}

bool ek__has_gradient(const ek_parameter_info *info) { return !info->buffer && !info->frozen; }

ek_status ek__check_compare(const struct ek__comparison *by, const union ek__results *got,
                            const union ek__results *want) {
  for (size_t i = 0; i < EK_MAX_TENSORS; i++) {
    if (by->what & EK__OUTPUTS) {
      EK_TRY(compare_values(by, "output", i, &got->output[i], &want->output[i]));
    }
  }
  for (size_t i = 0; i < EK__CHECK_INPUTS; i++) {
    if (by->what & EK__GRAD_INPUTS) {
      EK_TRY(compare_values(by, "gradient of input", i, &got->grad_input[i], &want->grad_input[i]));
    }
  }
  const ek_replica *replica = by->bed->parts[0].replica;
  for (size_t i = 0; (by->what & EK__GRADIENTS) && i < ek_replica_parameter_count(replica); i++) {
    char words[EK__CHECK_WORDS];
    ek_parameter_info info;
    EK_TRY(ek_replica_parameter(&info, replica, i));
    if (!ek__has_gradient(&info)) continue;
    (void)snprintf(words, sizeof words, "gradient of %s", info.name);
    EK_TRY(compare_one(by, words, got->gradient.data + info.offset,
                       want->gradient.data + info.offset, ek_tensor_count(&info.gradient)));
  }
  return EK_OK;
}

ek_status ek__check_run(union ek__results *results, struct ek__bed *bed,
                        const struct ek__trial *trial) {
  EK_TRY(ek__bed_run(bed, trial));
  return ek__bed_collect(results, bed);
}

ek_status ek__check_rerun(const struct ek__comparison *by, struct ek__bed *bed,
                          const struct ek__trial *trial, const union ek__results *want) {
  union ek__results got = {0};
  ek_status status = ek__check_run(&got, bed, trial);
  if (status == EK_OK) status = ek__check_compare(by, &got, want);
  ek__results_free(&got);
  return status;
}
