/*
 * gradients.c - the checks of a module's gradients: each is complete exactly once, backward adds to
 * it, and it agrees with differences of the module's loss.
 *
 * The error of a difference quotient is h^2 / 6 times the third derivative, plus the rounding of
 * two losses divided by 2 h (docs/numerics.md).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "checks.h"
#include "core/error.h"

ek_status ek__check_grad_inputs(struct ek__checker *c, struct ek__bed *bed,
                                union ek__results *once) {
  const struct ek__comparison equal = {c, bed, EK__OUTPUTS | EK__GRADIENTS, 0, false};
  struct ek__trial without = ek__check_whole;
  without.grad_inputs = false;
  return ek__check_rerun(&equal, bed, &without, once);
}

static ek_status on_complete(void *context, ek_pass *pass, size_t parameter) {
  struct ek__bed_part *part = context;
  ek_parameter_info info;
  (void)pass;
  EK_TRY(ek_replica_parameter(&info, part->replica, parameter));
  if (part->completions[parameter]++ > 0) return EK_OK;
  return ek__bed_read(part->seen.data + info.offset, &info.gradient);
}

ek_status ek__check_complete(struct ek__checker *c, struct ek__bed *bed, union ek__results *once) {
  struct ek__trial told = ek__check_whole;
  told.complete = on_complete;
  EK_TRY(ek__bed_run(bed, &told));
  const struct ek__bed_part *part = &bed->parts[0];
  for (size_t i = 0; i < ek_replica_parameter_count(part->replica); i++) {
    char words[EK__CHECK_WORDS];
    ek_parameter_info info;
    EK_TRY(ek_replica_parameter(&info, part->replica, i));
    EK__FAIL_IF(part->completions[i] != (ek__has_gradient(&info) ? 1 : 0), EK_ERR_MISMATCH,
                "%s was reported complete %d times, expected "
                "once",
                info.name, part->completions[i]);
    if (!ek__has_gradient(&info)) continue;
    (void)snprintf(words, sizeof words, "gradient of %s, when it was reported complete", info.name);
    EK_TRY(ek__check_agree(c, words, part->seen.data + info.offset,
                           once->gradient.data + info.offset, ek_tensor_count(&info.gradient), NULL,
                           0, 0));
  }
  return EK_OK;
}

/* The second sum may start from the first: its order, not its terms, is another one. */
ek_status ek__check_accumulate(struct ek__checker *c, struct ek__bed *bed,
                               union ek__results *once) {
  const struct ek__comparison twice = {c, bed, EK__GRADIENTS, ek__check_rounding(c, bed->type),
                                       false};
  struct ek__trial more = ek__check_whole;
  more.accumulate = true;
  for (int64_t i = 0; i < once->gradient.count; i++) once->gradient.data[i] *= 2;
  return ek__check_rerun(&twice, bed, &more, once);
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
  struct ek__trial forward = ek__check_whole;
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

static ek_status check_probe(struct ek__checker *c, struct ek__bed *bed,
                             const struct probe *probe) {
  const bool all = c->options.probes == 0 || c->options.probes >= probe->count;
  const int64_t probes = all ? probe->count : c->options.probes;
  const double h = bed->type == EK_F64 ? 1e-5 : 0x1p-8;
  const double allowed = bed->type == EK_F64 ? 1e-7 : 2e-3 + ek__check_rounding(c, EK_F32);
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
  const double absolute =
      8 * ek__check_unit(bed->type) * bed->parts[0].size / h * sqrt((double)probes);
  status =
      ek__check_agree(c, probe->what, got.data, want.data, probes, numbers.data, allowed, absolute);
cleanup:
  free(got.data);
  free(want.data);
  free(numbers.data);
  return status;
}

ek_status ek__check_differences(struct ek__checker *c, struct ek__bed *bed,
                                union ek__results *once) {
  char words[EK__CHECK_WORDS];
  for (size_t i = 0; i < ek_replica_parameter_count(bed->parts[0].replica); i++) {
    ek_parameter_info info;
    EK_TRY(ek_replica_parameter(&info, bed->parts[0].replica, i));
    if (!ek__has_gradient(&info)) continue;
    (void)snprintf(words, sizeof words, "gradient of %s against differences", info.name);
    EK_TRY(check_probe(c, bed,
                       &(struct probe){&bed->parameters, info.offset, ek_tensor_count(&info.value),
                                       true, i, once->gradient.data + info.offset, words}));
  }
  for (size_t i = 0; i < ek_module_inputs(bed->module); i++) {
    if (once->grad_input[i].data == NULL) continue;
    (void)snprintf(words, sizeof words, "gradient of input %zu against differences", i);
    EK_TRY(check_probe(c, bed,
                       &(struct probe){&bed->input[i], 0, bed->input[i].count, false, i,
                                       once->grad_input[i].data, words}));
  }
  return EK_OK;
}
