/*
 * weighted_sum.c - several losses for several outputs.
 *
 * The parts are any criteria, weighted sums among them. A part with k terms of its own (1 but for
 * weighted sums) takes the next k rows of the totals, the next k scales and coefficients, and the
 * next constants, so that terms and coefficients of nested sums come out flat.
 */
#include <evenkeel/weighted_sum.h>

#include <math.h>

#include "core/alloc.h"
#include "criterion_pass.h"

struct part {
  ek_criterion *criterion; /* a reference of its own */
  struct ek__criterion_counts counts;
  size_t output, target, term, constant; /* where its own begin */
};

struct weighted_sum {
  ek_criterion base;
  struct part *parts;
  size_t count;
  double coefficients[EK_MAX_TERMS];
  ek_tensor constants[EK_MAX_CONSTANTS]; /* copies of the parts': loans */
};

static ek_status forward(const ek_criterion *self, ek_criterion_pass *pass,
                         const ek_tensor *outputs, const ek_tensor *targets, ek_tensor *totals) {
  const struct weighted_sum *w = (const struct weighted_sum *)self;
  for (size_t i = 0; i < w->count; i++) {
    const struct part *p = &w->parts[i];
    ek_tensor own = {0};
    EK_TRY(ek__criterion_unchanged(p->criterion, &p->counts));
    EK_TRY(ek_tensor_rows(&own, totals, (int64_t)p->term, (int64_t)p->counts.terms));
    const ek_status status = ek_criterion_pass_forward(
        pass, p->criterion, p->constant, outputs + p->output, targets + p->target, &own);
    ek_tensor_free(&own);
    if (status != EK_OK) return status;
  }
  return EK_OK;
}

static ek_status backward(const ek_criterion *self, ek_criterion_pass *pass,
                          const ek_tensor *outputs, const ek_tensor *targets,
                          const ek_tensor *scales, ek_tensor *gradients) {
  const struct weighted_sum *w = (const struct weighted_sum *)self;
  /* Backwards, because the parts share one stack. */
  for (size_t i = w->count; i-- > 0;) {
    const struct part *p = &w->parts[i];
    ek_tensor own = {0};
    EK_TRY(ek__criterion_unchanged(p->criterion, &p->counts));
    EK_TRY(ek_tensor_rows(&own, scales, (int64_t)p->term, (int64_t)p->counts.terms));
    const ek_status status =
        ek_criterion_pass_backward(pass, p->criterion, p->constant, outputs + p->output,
                                   targets + p->target, &own, gradients + p->output);
    ek_tensor_free(&own);
    if (status != EK_OK) return status;
  }
  return EK_OK;
}

static void release(ek_criterion *self) {
  struct weighted_sum *w = (struct weighted_sum *)self;
  for (size_t i = 0; i < w->count; i++) ek_criterion_free(w->parts[i].criterion);
  ek__free(w->parts);
  ek__free(w);
}

static const ek_criterion_ops ops = {.size = sizeof(ek_criterion_ops),
                                     .kind = "weighted_sum",
                                     .forward = forward,
                                     .backward = backward,
                                     .free = release,
                                     .types = EK_TYPES_F32 | EK_TYPES_F64};

/* ---- creation ---- */

static ek_status check_part(const ek_criterion *part, size_t index, ek_reduction reduction,
                            double coefficient) {
  struct ek__criterion_counts counts;
  if (part == NULL) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "weighted_sum: terms[%zu] is NULL", index);
  }
  EK_TRY(ek__criterion_count(&counts, part));
  if (part->reduction == EK_REDUCTION_NONE) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "weighted_sum: terms[%zu] (%s) has reduction none, expected mean or sum",
                        index, part->ops->kind);
  }
  if (part->reduction != reduction) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "weighted_sum: terms[%zu] (%s) has reduction %s, but terms[0] has %s",
                        index, part->ops->kind,
                        part->reduction == EK_REDUCTION_SUM ? "sum" : "mean",
                        reduction == EK_REDUCTION_SUM ? "sum" : "mean");
  }
  if (!isfinite(coefficient)) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "weighted_sum: coefficients[%zu] is %g, expected a finite number", index,
                        coefficient);
  }
  return EK_OK;
}

/* What they have together; each sum stays small, because each part's own counts are. */
static ek_status check_sum(const char *what, size_t count, size_t most) {
  if (count <= most) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                      "weighted_sum: the terms have more than %zu %s together", most, what);
}

/* Checks each part, and that together they do not have too much of anything. */
static ek_status check_parts(ek_criterion *const *parts, const double *coefficients, size_t count) {
  if (parts == NULL || coefficients == NULL) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "weighted_sum: %s is NULL",
                        parts == NULL ? "terms" : "coefficients");
  }
  if (count == 0) return ek_error_set(EK_ERR_INVALID_ARGUMENT, "weighted_sum: there are no terms");
  struct ek__criterion_counts sum = {0};
  for (size_t i = 0; i < count; i++) {
    EK_TRY(check_part(parts[i], i, parts[0] == NULL ? EK_REDUCTION_MEAN : parts[0]->reduction,
                      coefficients[i]));
    EK_TRY(check_sum("terms", sum.terms += parts[i]->terms, EK_MAX_TERMS));
    EK_TRY(check_sum("constants", sum.constants += parts[i]->constant_count, EK_MAX_CONSTANTS));
    EK_TRY(check_sum("outputs", sum.outputs += parts[i]->outputs, EK_MAX_TENSORS));
    EK_TRY(check_sum("targets", sum.targets += parts[i]->targets, EK_MAX_TENSORS));
  }
  return EK_OK;
}

/* Appends a part to those that are there; the base counts how much of everything they take. */
static ek_status append(struct weighted_sum *w, ek_criterion *criterion, double coefficient) {
  ek_criterion *base = &w->base;
  for (size_t j = 0; j < criterion->terms; j++) {
    const double inner = criterion->coefficients == NULL ? 1.0 : criterion->coefficients[j];
    if (!isfinite(coefficient * inner)) {
      return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                          "weighted_sum: coefficients[%zu] times %g of the nested %s is not finite",
                          w->count, inner, criterion->ops->kind);
    }
    w->coefficients[base->terms + j] = coefficient * inner;
  }
  struct ek__criterion_counts counts;
  EK_TRY(ek__criterion_count(&counts, criterion));
  for (size_t j = 0; j < counts.constants; j++) {
    w->constants[base->constant_count + j] = criterion->constants[j];
  }
  w->parts[w->count++] = (struct part){.criterion = ek_criterion_share(criterion),
                                       .counts = counts,
                                       .output = base->outputs,
                                       .target = base->targets,
                                       .term = base->terms,
                                       .constant = base->constant_count};
  base->outputs += criterion->outputs;
  base->targets += criterion->targets;
  base->terms += criterion->terms;
  base->constant_count += criterion->constant_count;
  return EK_OK;
}

static ek_status fill(struct weighted_sum *w, ek_criterion *const *parts,
                      const double *coefficients, size_t count) {
  EK_TRY(ek_criterion_init(&w->base, &ops, 1, 0, parts[0]->reduction));
  w->base.outputs = 0;
  w->base.terms = 0;
  w->base.coefficients = w->coefficients;
  w->base.constants = w->constants;
  for (size_t i = 0; i < count; i++) EK_TRY(append(w, parts[i], coefficients[i]));
  return EK_OK;
}

ek_status ek_weighted_sum_create(ek_criterion **criterion, ek_criterion *const *terms,
                                 const double *coefficients, size_t count) {
  if (criterion == NULL) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "weighted_sum: criterion is NULL");
  }
  EK_TRY(check_parts(terms, coefficients, count));
  struct weighted_sum *w = ek__calloc(1, sizeof *w);
  if (w == NULL) {
    return ek_error_set(EK_ERR_OUT_OF_MEMORY, "weighted_sum: the host has no memory");
  }
  ek_status status = EK_ERR_OUT_OF_MEMORY;
  w->parts = ek__calloc(count, sizeof *w->parts);
  if (w->parts == NULL) {
    status = ek_error_set(EK_ERR_OUT_OF_MEMORY, "weighted_sum: the host has no memory");
  } else {
    status = fill(w, terms, coefficients, count);
  }
  if (status != EK_OK) {
    release(&w->base);
    return status;
  }
  *criterion = &w->base;
  return EK_OK;
}
