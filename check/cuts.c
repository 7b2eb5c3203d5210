/*
 * cuts.c - the checks of a module in other types, with one row or none, and over several devices.
 */
#include "checks.h"

#include "device/types.h"

/* In another bed: a GPU may have no room for two groups. */
static ek_status check_type(struct ek__checker *c, struct ek__bed *bed,
                            const union ek__results *once, ek_type type, double allowed) {
  const struct ek__comparison near = {c, bed, EK__ALL, allowed, false};
  EK_TRY(ek__bed_close(bed, EK_OK));
  const ek_status opened = ek__bed_open(bed, c->module, c->devices, type, c->inputs, &c->options);
  if (opened == EK_ERR_UNSUPPORTED && type != EK_F32) return EK_OK; /* the devices do not have it */
  EK_TRY(opened);
  EK_TRY(ek__bed_prepare(bed));
  return ek__check_rerun(&near, bed, &ek__check_whole, once);
}

/* Each operation rounds what it gives, and before the first its inputs and parameters were rounded;
 * the next may hand on twice the error. */
static double half_rounding(const struct ek__checker *c, ek_type type) {
  return 2 * (c->options.depth + 2) * (type == EK_BF16 ? 0x1p-8 : 0x1p-11);
}

ek_status ek__check_types(struct ek__checker *c, struct ek__bed *bed, union ek__results *once) {
  static const ek_type halves[] = {EK_BF16, EK_F16};
  if (c->both) EK_TRY(check_type(c, bed, once, EK_F32, ek__check_rounding(c, EK_F32)));
  for (size_t i = 0; i < 2; i++) {
    if ((EK__TABLE_TYPES(ek_module_table(c->module)) >> halves[i] & 1u) == 0) continue;
    const ek_status status = check_type(c, bed, once, halves[i], half_rounding(c, halves[i]));
    if (status == EK_OK) continue;
    return ek_error_set(status, "in %s: %s", ek_type_name(halves[i]), ek_error_message());
  }
  return EK_OK;
}

/* A module that no device calls without rows may refuse to run without. */
static ek_status check_no_rows(struct ek__checker *c, struct ek__bed *bed,
                               const union ek__results *once) {
  struct ek__trial none = ek__check_whole;
  union ek__results got = {0}, zeros = {0};
  none.offsets = bed->offsets; /* zeros */
  none.empty = true;
  ek_status status = ek__check_run(&got, bed, &none);
  if (status != EK_OK) return status == EK_ERR_MISMATCH || bed->collective ? status : EK_OK;
  for (size_t i = 0; i < EK_MAX_TENSORS && status == EK_OK; i++) {
    const int64_t count = got.output[i].count;
    if (count == 0 || count == once->output[i].count) continue; /* or it has no rows at all */
    status = ek_error_set(EK_ERR_MISMATCH, "output %zu: %lld elements without rows", i,
                          (long long)count);
  }
  if (status == EK_OK) status = ek__bed_values(&zeros.gradient, got.gradient.count);
  const struct ek__comparison equal = {c, bed, EK__GRADIENTS, 0, false};
  if (status == EK_OK) status = ek__check_compare(&equal, &got, &zeros);
  ek__results_free(&got);
  ek__results_free(&zeros);
  return status;
}

ek_status ek__check_rows(struct ek__checker *c, struct ek__bed *bed, union ek__results *once) {
  const struct ek__comparison are_finite = {c, bed, EK__ALL, 0, true};
  struct ek__trial one = ek__check_whole;
  bool cut = false;
  for (size_t i = 0; i < ek_module_inputs(c->module); i++) cut = cut || !c->inputs[i].broadcast;
  if (!cut) return EK_OK;
  EK_TRY(check_no_rows(c, bed, once));
  for (size_t k = 1; k <= bed->devices; k++) bed->offsets[k] = 1;
  one.offsets = bed->offsets;
  return ek__check_rerun(&are_finite, bed, &one, once);
}

ek_status ek__check_devices(struct ek__checker *c, struct ek__bed *bed, union ek__results *once) {
  const struct ek__comparison equal = {c, bed, EK__ALL, ek__check_rounding(c, bed->type), false};
  struct ek__trial cut = ek__check_whole;
  const int64_t n = (int64_t)bed->devices, share = bed->samples / n, more = bed->samples % n;
  for (int64_t k = 0; k <= n; k++) bed->offsets[k] = k * share + (k < more ? k : more);
  cut.offsets = bed->offsets;
  cut.together = true;
  return ek__check_rerun(&equal, bed, &cut, once);
}
