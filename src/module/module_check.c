/*
 * module_check.c - runs a module in many ways and compares: see module_check.h.
 *
 * The bed (check_bed.h) runs it; here is what is run and what must hold. Each check opens its own
 * bed, so that none finds what another one has left.
 *
 * Bounds (docs/numerics.md). A sum of k products is off by at most k u times the sum of their
 * sizes, for random terms about sqrt(k) times the result, and errors of operations one after the
 * other add up: depth (k sqrt(k) + 8) u. A difference quotient is off by h^2 / 6 times the third
 * derivative and by the rounding of two losses over 2 h.
 *
 * Longer than most files: a screen for each check, and what they share.
 */
#include <evenkeel/module_check.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <evenkeel/memory.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"
#include "device/types.h"
#include "module/check_bed.h"

const char *ek_check_name(ek_check check) {
  static const char *const names[EK_CHECKS] = {
#define NAME(identifier, name) [identifier] = name,
      EK_CHECK_LIST(NAME)
#undef NAME
  };
  return (unsigned)check < EK_CHECKS ? names[check] : "unknown";
}

struct checker {
  ek_module *module;
  const char *devices;
  const ek_check_input *inputs;
  ek_module_check_options options;
  ek_type type; /* f64 if the module computes in it */
  double worst; /* error of the check that runs, as a part of what is allowed */
  bool both;    /* it computes in f32 and in f64 */
};

static const struct ek__trial whole = {
    .training = true, .gradient = true, .backward = true, .grad_inputs = true, .step = 3};

/* ---- comparing ---- */

static double unit(ek_type type) { return type == EK_F64 ? 0x1p-53 : 0x1p-24; }

/* What rounding may do to a result, relative. */
static double rounding(const struct checker *c, ek_type type) {
  const double k = (double)c->options.longest;
  return c->options.depth * (k * sqrt(k) + 8) * unit(type);
}

/* The norm of got - want is at most `allowed` times that of want, plus `absolute`. The element with
 * the largest error is named, by its own number or by that in `numbers`. */
static ek_status agree(struct checker *c, const char *what, const double *got, const double *want,
                       int64_t count, const double *numbers, double allowed, double absolute) {
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

static ek_status all_finite(const char *what, const double *values, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    EK__FAIL_IF(!isfinite(values[i]), EK_ERR_MISMATCH, "%s, element %lld: %g; it was probably "
                                                       "never written",
                what, (long long)i, values[i]);
  }
  return EK_OK;
}

enum { WHAT = 64 + 512 }; /* a parameter's full name with words */

enum what { OUTPUTS = 1, GRAD_INPUTS = 2, GRADIENTS = 4, ALL = 7 };

/* Calls `each` for every array of two results, parameter by parameter. */
struct comparison {
  struct checker *c;
  const struct ek__bed *bed;
  enum what what;
  double allowed;
  bool finite; /* only `got` is looked at */
};

static ek_status compare_one(const struct comparison *by, const char *what, const double *got,
                             const double *want, int64_t count) {
  if (by->finite) return all_finite(what, got, count);
  return agree(by->c, what, got, want, count, NULL, by->allowed, 0);
}

static ek_status compare_values(const struct comparison *by, const char *what, size_t number,
                                const struct ek__values *got, const struct ek__values *want) {
  char words[WHAT];
  if (got->data == NULL && (by->finite || want->data == NULL)) return EK_OK;
  (void)snprintf(words, sizeof words, "%s %zu", what, number);
  EK__FAIL_IF(!by->finite && (got->data == NULL || want->data == NULL || got->count != want->count),
              EK_ERR_MISMATCH, "%s: %lld elements, expected %lld", words, (long long)got->count,
              (long long)want->count);
  return compare_one(by, words, got->data, want->data, got->count);
}

static bool has_gradient(const ek_parameter_info *info) { return !info->buffer && !info->frozen; }

static ek_status compare(const struct comparison *by, const union ek__results *got,
                         const union ek__results *want) {
  for (size_t i = 0; i < EK_MAX_TENSORS; i++) {
    if (by->what & OUTPUTS) {
      EK_TRY(compare_values(by, "output", i, &got->output[i], &want->output[i]));
    }
  }
  for (size_t i = 0; i < EK__CHECK_INPUTS; i++) {
    if (by->what & GRAD_INPUTS) {
      EK_TRY(compare_values(by, "gradient of input", i, &got->grad_input[i], &want->grad_input[i]));
    }
  }
  const ek_replica *replica = by->bed->parts[0].replica;
  for (size_t i = 0; (by->what & GRADIENTS) && i < ek_replica_parameter_count(replica); i++) {
    char words[WHAT];
    ek_parameter_info info;
    EK_TRY(ek_replica_parameter(&info, replica, i));
    if (!has_gradient(&info)) continue;
    (void)snprintf(words, sizeof words, "gradient of %s", info.name);
    EK_TRY(compare_one(by, words, got->gradient.data + info.offset,
                       want->gradient.data + info.offset, ek_tensor_count(&info.gradient)));
  }
  return EK_OK;
}

/* Runs it and takes what came out, put together. */
static ek_status run(union ek__results *results, struct ek__bed *bed,
                     const struct ek__trial *trial) {
  EK_TRY(ek__bed_run(bed, trial));
  return ek__bed_collect(results, bed);
}

/* Runs it and compares with what an earlier run gave. */
static ek_status run_and_compare(const struct comparison *by, struct ek__bed *bed,
                                 const struct ek__trial *trial, const union ek__results *want) {
  union ek__results got = {0};
  ek_status status = run(&got, bed, trial);
  if (status == EK_OK) status = compare(by, &got, want);
  ek__results_free(&got);
  return status;
}

/* ---- the checks: each gets a bed with parameters, and what a whole run gave ---- */

static ek_status check_start(struct checker *c, struct ek__bed *bed, union ek__results *once) {
  (void)once;
  struct ek__values first = {0}, other = {0};
  ek_status status = EK_OK;
  const int64_t count = ek_tensor_count(ek_replica_parameters(bed->parts[0].replica));
  EK_TRY_GOTO(status, ek__bed_values(&first, count), cleanup);
  EK_TRY_GOTO(status, ek__bed_values(&other, count), cleanup);
  EK_TRY_GOTO(status, ek__bed_read(first.data, ek_replica_parameters(bed->parts[0].replica)),
              cleanup);
  EK_TRY_GOTO(status, all_finite("initial values", first.data, count), cleanup);
  for (size_t k = 1; k < bed->devices; k++) {
    EK_TRY_GOTO(status, ek__bed_read(other.data, ek_replica_parameters(bed->parts[k].replica)),
                cleanup);
    EK_TRY_GOTO(
        status,
        agree(c, "initial values of another device", other.data, first.data, count, NULL, 0, 0),
        cleanup);
  }
cleanup:
  ek__free(first.data);
  ek__free(other.data);
  return status;
}

static ek_status check_repeat(struct checker *c, struct ek__bed *bed, union ek__results *once) {
  const struct comparison are_finite = {c, bed, ALL, 0, true}, equal = {c, bed, ALL, 0, false};
  struct ek__trial again = whole;
  again.inspect = true;
  EK_TRY(compare(&are_finite, once, once));
  return run_and_compare(&equal, bed, &again, once);
}

static ek_status check_grad_inputs(struct checker *c, struct ek__bed *bed,
                                   union ek__results *once) {
  const struct comparison equal = {c, bed, OUTPUTS | GRADIENTS, 0, false};
  struct ek__trial without = whole;
  without.grad_inputs = false;
  return run_and_compare(&equal, bed, &without, once);
}

static ek_status on_complete(void *context, ek_pass *pass, size_t parameter) {
  struct ek__bed_part *part = context;
  ek_parameter_info info;
  (void)pass;
  EK_TRY(ek_replica_parameter(&info, part->replica, parameter));
  if (part->completions[parameter]++ > 0) return EK_OK;
  return ek__bed_read(part->seen.data + info.offset, &info.gradient);
}

static ek_status check_complete(struct checker *c, struct ek__bed *bed, union ek__results *once) {
  struct ek__trial told = whole;
  told.complete = on_complete;
  EK_TRY(ek__bed_run(bed, &told));
  const struct ek__bed_part *part = &bed->parts[0];
  for (size_t i = 0; i < ek_replica_parameter_count(part->replica); i++) {
    char words[WHAT];
    ek_parameter_info info;
    EK_TRY(ek_replica_parameter(&info, part->replica, i));
    EK__FAIL_IF(part->completions[i] != (has_gradient(&info) ? 1 : 0), EK_ERR_MISMATCH,
                "%s was reported complete %d times, expected "
                "once", info.name, part->completions[i]);
    if (!has_gradient(&info)) continue;
    (void)snprintf(words, sizeof words, "gradient of %s, when it was reported complete",
                   info.name);
    EK_TRY(agree(c, words, part->seen.data + info.offset, once->gradient.data + info.offset,
                 ek_tensor_count(&info.gradient), NULL, 0, 0));
  }
  return EK_OK;
}

/* The second sum may start from the first: its order, not its terms, is another one. */
static ek_status check_accumulate(struct checker *c, struct ek__bed *bed, union ek__results *once) {
  const struct comparison twice = {c, bed, GRADIENTS, rounding(c, bed->type), false};
  struct ek__trial more = whole;
  more.accumulate = true;
  for (int64_t i = 0; i < once->gradient.count; i++) once->gradient.data[i] *= 2;
  return run_and_compare(&twice, bed, &more, once);
}

static bool has_buffers(const ek_replica *replica) {
  return ek_tensor_count(ek_replica_buffers(replica)) > 0;
}

static ek_status check_evaluation(struct checker *c, struct ek__bed *bed, union ek__results *once) {
  const struct comparison equal = {c, bed, OUTPUTS, rounding(c, bed->type), false};
  struct ek__trial without = whole;
  without.gradient = without.backward = without.grad_inputs = false;
  EK_TRY(run_and_compare(&equal, bed, &without, once));
  struct ek__trial other_numbers = without;
  other_numbers.step++;
  const ek_status random = run_and_compare(&equal, bed, &other_numbers, once);
  if (random == EK_ERR_MISMATCH || has_buffers(bed->parts[0].replica)) return EK_OK;
  EK_TRY(random);
  without.training = false;
  return run_and_compare(&equal, bed, &without, once);
}

/* ---- gradients against differences ---- */

struct probe {
  struct ek__values *values; /* on the host: they are moved */
  int64_t first, count;
  bool parameter;
  size_t index;
  const double *gradient;
  const char *what;
};

static ek_status loss(double *value, struct ek__bed *bed, const struct probe *probe) {
  struct ek__trial forward = whole;
  forward.gradient = forward.backward = forward.grad_inputs = false;
  if (probe->parameter) EK_TRY(ek__bed_store(bed, probe->index));
  EK_TRY(ek__bed_run(bed, &forward));
  *value = bed->parts[0].loss;
  return EK_OK;
}

/* x + h in the type, or x's neighbour where that is x itself: of large numbers neither is a step of
 * exactly h, so the quotient is over the way from one to the other. */
static double moved(double x, double h, bool narrow) {
  const double there = narrow ? (double)(float)(x + h) : x + h;
  if (there != x) return there;
  return narrow ? (double)nextafterf((float)x, (float)copysign(INFINITY, h))
                : nextafter(x, copysign(INFINITY, h));
}

static ek_status difference(double *want, struct ek__bed *bed, const struct probe *probe,
                            int64_t element, double h) {
  double *x = &probe->values->data[probe->first + element], above = 0, below = 0;
  const double kept = *x;
  const bool narrow = bed->type == EK_F32;
  const double high = moved(kept, h, narrow), low = moved(kept, -h, narrow);
  *x = high;
  EK_TRY(loss(&above, bed, probe));
  *x = low;
  EK_TRY(loss(&below, bed, probe));
  *x = kept;
  *want = (above - below) / (high - low);
  return probe->parameter ? ek__bed_store(bed, probe->index) : EK_OK;
}

static ek_status check_probe(struct checker *c, struct ek__bed *bed, const struct probe *probe) {
  const bool all = c->options.probes == 0 || c->options.probes >= probe->count;
  const int64_t probes = all ? probe->count : c->options.probes;
  const double h = bed->type == EK_F64 ? 1e-5 : 0x1p-8;
  const double allowed = bed->type == EK_F64 ? 1e-7 : 2e-3 + rounding(c, EK_F32);
  struct ek__values got = {0}, want = {0}, numbers = {0};
  ek_status status = EK_OK;
  EK_TRY_GOTO(status, ek__bed_values(&got, probes), cleanup);
  EK_TRY_GOTO(status, ek__bed_values(&numbers, probes), cleanup);
  EK_TRY_GOTO(status, ek__bed_values(&want, probes), cleanup);
  for (int64_t n = 0; n < probes; n++) { /* evenly, from the first to the last */
    const int64_t i = all ? n
                          : (int64_t)((double)n / (double)(probes - 1 + (probes == 1)) *
                                      (double)(probe->count - 1));
    EK_TRY_GOTO(status, difference(&want.data[n], bed, probe, i, h), cleanup);
    got.data[n] = probe->gradient[i];
    numbers.data[n] = (double)i;
  }
  /* A loss is a sum of R * output, each good to some units: eight are allowed. */
  const double absolute = 8 * unit(bed->type) * bed->parts[0].size / h * sqrt((double)probes);
  status = agree(c, probe->what, got.data, want.data, probes, numbers.data, allowed, absolute);
cleanup:
  ek__free(got.data);
  ek__free(want.data);
  ek__free(numbers.data);
  return status;
}

static ek_status check_differences(struct checker *c, struct ek__bed *bed,
                                   union ek__results *once) {
  char words[WHAT];
  for (size_t i = 0; i < ek_replica_parameter_count(bed->parts[0].replica); i++) {
    ek_parameter_info info;
    EK_TRY(ek_replica_parameter(&info, bed->parts[0].replica, i));
    if (!has_gradient(&info)) continue;
    (void)snprintf(words, sizeof words, "gradient of %s against differences", info.name);
    EK_TRY(check_probe(c, bed,
                       &(struct probe){&bed->parameters, info.offset, ek_tensor_count(&info.value),
                                       true, i, once->gradient.data + info.offset, words}));
  }
  for (size_t i = 0; i < bed->module->inputs; i++) {
    if (once->grad_input[i].data == NULL) continue;
    (void)snprintf(words, sizeof words, "gradient of input %zu against differences", i);
    EK_TRY(check_probe(c, bed,
                       &(struct probe){&bed->input[i], 0, bed->input[i].count, false, i,
                                       once->grad_input[i].data, words}));
  }
  return EK_OK;
}

/* ---- types, rows, devices, memory ---- */

/* In another bed: a GPU may have no room for two groups. */
static ek_status check_type(struct checker *c, struct ek__bed *bed, const union ek__results *once,
                            ek_type type, double allowed) {
  const struct comparison near = {c, bed, ALL, allowed, false};
  EK_TRY(ek__bed_close(bed, EK_OK));
  const ek_status opened = ek__bed_open(bed, c->module, c->devices, type, c->inputs, &c->options);
  if (opened == EK_ERR_UNSUPPORTED && type != EK_F32) return EK_OK; /* the devices do not have it */
  EK_TRY(opened);
  EK_TRY(ek__bed_prepare(bed));
  return run_and_compare(&near, bed, &whole, once);
}

/* Each operation rounds what it gives, and before the first its inputs and parameters were rounded;
 * the next may hand on twice the error. */
static double half_rounding(const struct checker *c, ek_type type) {
  return 2 * (c->options.depth + 2) * (type == EK_BF16 ? 0x1p-8 : 0x1p-11);
}

static ek_status check_types(struct checker *c, struct ek__bed *bed, union ek__results *once) {
  static const ek_type halves[] = {EK_BF16, EK_F16};
  if (c->both) EK_TRY(check_type(c, bed, once, EK_F32, rounding(c, EK_F32)));
  for (size_t i = 0; i < 2; i++) {
    if ((EK__TABLE_TYPES(c->module->ops) >> halves[i] & 1u) == 0) continue;
    const ek_status status = check_type(c, bed, once, halves[i], half_rounding(c, halves[i]));
    if (status == EK_OK) continue;
    return ek_error_set(status, "in %s: %s", ek_type_name(halves[i]), ek_error_message());
  }
  return EK_OK;
}

/* A module that no device calls without rows may refuse to run without. */
static ek_status check_no_rows(struct checker *c, struct ek__bed *bed,
                               const union ek__results *once) {
  struct ek__trial none = whole;
  union ek__results got = {0}, zeros = {0};
  none.offsets = bed->offsets; /* zeros */
  none.empty = true;
  ek_status status = run(&got, bed, &none);
  if (status != EK_OK) return status == EK_ERR_MISMATCH || bed->collective ? status : EK_OK;
  for (size_t i = 0; i < EK_MAX_TENSORS && status == EK_OK; i++) {
    const int64_t count = got.output[i].count;
    if (count == 0 || count == once->output[i].count) continue; /* or it has no rows at all */
    status = ek_error_set(EK_ERR_MISMATCH, "output %zu: %lld elements without rows", i,
                          (long long)count);
  }
  if (status == EK_OK) status = ek__bed_values(&zeros.gradient, got.gradient.count);
  const struct comparison equal = {c, bed, GRADIENTS, 0, false};
  if (status == EK_OK) status = compare(&equal, &got, &zeros);
  ek__results_free(&got);
  ek__results_free(&zeros);
  return status;
}

static ek_status check_rows(struct checker *c, struct ek__bed *bed, union ek__results *once) {
  const struct comparison are_finite = {c, bed, ALL, 0, true};
  struct ek__trial one = whole;
  bool cut = false;
  for (size_t i = 0; i < c->module->inputs; i++) cut = cut || !c->inputs[i].broadcast;
  if (!cut) return EK_OK;
  EK_TRY(check_no_rows(c, bed, once));
  for (size_t k = 1; k <= bed->devices; k++) bed->offsets[k] = 1;
  one.offsets = bed->offsets;
  return run_and_compare(&are_finite, bed, &one, once);
}

static ek_status check_devices(struct checker *c, struct ek__bed *bed, union ek__results *once) {
  const struct comparison equal = {c, bed, ALL, rounding(c, bed->type), false};
  struct ek__trial cut = whole;
  const int64_t n = (int64_t)bed->devices, share = bed->samples / n, more = bed->samples % n;
  for (int64_t k = 0; k <= n; k++) bed->offsets[k] = k * share + (k < more ? k : more);
  cut.offsets = bed->offsets;
  cut.together = true;
  return run_and_compare(&equal, bed, &cut, once);
}

/* Runs in which each allocation fails once; what is left behind the bed has seen. */
static ek_status check_failures(struct ek__bed *bed) {
  struct ek__trial fails = whole;
  for (fails.fail_at = 1;; fails.fail_at++) {
    const ek_status status = ek__bed_run(bed, &fails);
    if (status == EK_OK || status == EK_ERR_MISMATCH) return status;
    if (status == EK_ERR_OUT_OF_MEMORY) continue;
    return ek_error_set(EK_ERR_MISMATCH, "allocation %llu fails, but the module returns %s: %s",
                        (unsigned long long)fails.fail_at, ek_status_name(status),
                        ek_error_message());
  }
}

static ek_status check_memory(struct checker *c, struct ek__bed *bed, union ek__results *once) {
  struct ek__trial given_up = whole, forward = whole;
  (void)c, (void)once;
  given_up.backward = given_up.grad_inputs = false;
  forward.gradient = forward.backward = forward.grad_inputs = false;
  EK_TRY(ek__bed_run(bed, &forward));
  EK_TRY(ek__bed_run(bed, &given_up));
  return check_failures(bed);
}

/* ---- plan ---- */

enum { MOST_EVENTS = 1 << 16 };

/* What device 0 of a new group takes for one run. */
static ek_status record(struct ek__bed *bed, const ek_memory_event **events, size_t *count,
                        ek_memory_usage *usage, const struct checker *c, const char *devices) {
  EK_TRY(ek__bed_open(bed, c->module, devices, c->type, c->inputs, &c->options));
  ek_device *device = ek_group_device(bed->group, 0);
  EK_TRY(ek_memory_record_start(device, MOST_EVENTS));
  EK_TRY(ek__bed_run(bed, &whole));
  EK_TRY(ek_memory_record_stop(events, count, NULL, device));
  return ek_memory_stats(usage, device);
}

static ek_status compare_events(const ek_memory_event *real, size_t real_count,
                                const ek_memory_event *plan, size_t plan_count) {
  for (size_t i = 0; i < real_count || i < plan_count; i++) {
    static const ek_memory_event none = {.category = EK_MEMORY_CATEGORIES};
    const ek_memory_event *r = i < real_count ? &real[i] : &none;
    const ek_memory_event *p = i < plan_count ? &plan[i] : &none;
    if (r->delta_bytes == p->delta_bytes && r->category == p->category) continue;
    return ek_error_set(
        EK_ERR_MISMATCH,
        "step %zu of the ledger is %lld bytes of %s, but on a plan device %lld bytes of %s", i,
        (long long)r->delta_bytes, ek_memory_category_name(r->category), (long long)p->delta_bytes,
        ek_memory_category_name(p->category));
  }
  return EK_OK;
}

static ek_status check_plan(struct checker *c, struct ek__bed *bed, union ek__results *once) {
  struct ek__bed real = {0}, plan = {0};
  const ek_memory_event *events[2] = {NULL, NULL};
  size_t counts[2] = {0, 0};
  ek_memory_usage usage[2];
  char devices[32];
  (void)once;
  const bool cuda = strcmp(ek_device_backend(ek_group_device(bed->group, 0)), "cuda") == 0;
  (void)snprintf(devices, sizeof devices, "%s:%zu", cuda ? "plan-cuda" : "plan", bed->devices);
  ek_status status = ek__bed_close(bed, EK_OK);
  if (status == EK_OK) status = record(&real, &events[0], &counts[0], &usage[0], c, c->devices);
  if (status == EK_OK) status = record(&plan, &events[1], &counts[1], &usage[1], c, devices);
  if (status == EK_OK) status = compare_events(events[0], counts[0], events[1], counts[1]);
  if (status == EK_OK && usage[0].peak_bytes != usage[1].peak_bytes) {
    status = ek_error_set(EK_ERR_MISMATCH, "the peak is %llu bytes, but %llu on a plan device",
                          (unsigned long long)usage[0].peak_bytes,
                          (unsigned long long)usage[1].peak_bytes);
  }
  status = ek__bed_close(&plan, status);
  return ek__bed_close(&real, status);
}

/* ---- all of them ---- */

static const struct {
  ek_status (*run)(struct checker *c, struct ek__bed *bed, union ek__results *once);
  bool initial; /* with the initial values, before anything has run */
} checks[EK_CHECKS] = {
    [EK_CHECK_START] = {check_start, true},
    [EK_CHECK_REPEAT] = {check_repeat, false},
    [EK_CHECK_GRAD_INPUTS] = {check_grad_inputs, false},
    [EK_CHECK_COMPLETE] = {check_complete, false},
    [EK_CHECK_ACCUMULATE] = {check_accumulate, false},
    [EK_CHECK_EVALUATION] = {check_evaluation, false},
    [EK_CHECK_DIFFERENCES] = {check_differences, false},
    [EK_CHECK_TYPES] = {check_types, false},
    [EK_CHECK_ROWS] = {check_rows, false},
    [EK_CHECK_DEVICES] = {check_devices, false},
    [EK_CHECK_MEMORY] = {check_memory, false},
    [EK_CHECK_PLAN] = {check_plan, true},
};

static ek_status run_check(struct checker *c, ek_check check) {
  struct ek__bed bed = {0};
  union ek__results once = {0};
  c->worst = 0;
  ek_status status = ek__bed_open(&bed, c->module, c->devices, c->type, c->inputs, &c->options);
  if (status == EK_OK && !checks[check].initial) status = ek__bed_prepare(&bed);
  if (status == EK_OK && !checks[check].initial) status = run(&once, &bed, &whole);
  if (status == EK_OK) status = checks[check].run(c, &bed, &once);
  ek__results_free(&once);
  return ek__bed_close(&bed, status);
}

/* What failed, in which check and module; an error of the module's own keeps its words. */
static ek_status name_check(const struct checker *c, ek_check check, ek_status status) {
  return ek_error_set(status, "module check (%s) of %s: %s", ek_check_name(check),
                      c->module->ops->kind, ek_error_message());
}

/* f64 if the module computes in it: differences say more there. */
static ek_status find_type(struct checker *c) {
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
  EK__FAIL_IF(
      module == NULL || devices == NULL || inputs == NULL || count != module->inputs,
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
  struct checker c = {.module = module, .devices = devices, .inputs = inputs};
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
