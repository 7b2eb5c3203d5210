/*
 * weighted_sum.c - several losses for several outputs.
 *
 * The parts are any criteria, weighted sums among them, and the children "0", "1", ... of the sum.
 * A part with k terms of its own (1 except for weighted sums) takes the next k rows of the totals
 * and the next k coefficients, so that terms and coefficients of nested sums come out flat.
 */
#include <evenkeel/weighted_sum.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "module/layer_internal.h"

struct part {
  ek_criterion *criterion; /* a reference of its own */
  size_t outputs, targets,
      terms; /* how many it had when the sum was made: what it is laid out by */
};

struct weighted_sum {
  ek_criterion base;
  struct part *parts;
  size_t count;
  double coefficients[EK_MAX_TERMS];
};

static ek_status declare(const ek_module *self, ek_declaration *declaration) {
  const struct weighted_sum *w = (const struct weighted_sum *)self;
  for (size_t i = 0; i < w->count; i++) {
    const struct part *p = &w->parts[i];
    ek_module *child = &p->criterion->base;
    char name[24];
    EK__FAIL_IF(ek_module_inputs(child) != p->outputs + p->targets ||
                    ek_module_targets(child) != p->targets || ek_module_terms(child) != p->terms ||
                    ek_module_outputs(child) != 1,
                EK_ERR_STATE,
                "weighted_sum: the number of outputs, targets or terms of terms[%zu] (%s) changed "
                "after the sum was created",
                i, ek_module_kind(child));
    snprintf(name, sizeof name, "%zu", i);
    EK_TRY(ek_declare_module(declaration, name, child));
  }
  return EK_OK;
}

static ek_status forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                         ek_tensor *outputs) {
  const struct weighted_sum *w = (const struct weighted_sum *)self;
  const ek_tensor *output = inputs, *target = inputs + ek_criterion_outputs(&w->base);
  int64_t term = 0;
  EK_TRY(ek_pass_totals(&outputs[0], pass));
  for (size_t i = 0; i < w->count; i++) {
    const struct part *p = &w->parts[i];
    ek_tensor own[EK_MAX_INPUTS] = {{0}}, rows = {0}, totals[EK_MAX_TENSORS] = {{0}};
    ek_child_options options = EK_CHILD_OPTIONS_INIT;
    memcpy(own, output, p->outputs * sizeof *own);
    memcpy(own + p->outputs, target, p->targets * sizeof *own);
    EK_TRY(ek_tensor_rows(&rows, &outputs[0], term, (int64_t)p->terms));
    options.promise.totals = &rows;
    const ek_status status = ek_pass_child_forward_with(totals, pass, i, own, &options);
    ek_tensor_free(&totals[0]);
    ek_tensor_free(&rows);
    if (status != EK_OK) return status;
    output += p->outputs;
    target += p->targets;
    term += (int64_t)p->terms;
  }
  return EK_OK;
}

static ek_status backward(const ek_module *self, ek_pass *pass, const ek_tensor *grad_outputs,
                          ek_tensor *grad_inputs) {
  const struct weighted_sum *w = (const struct weighted_sum *)self;
  size_t output = ek_criterion_outputs(&w->base);
  int64_t term = (int64_t)ek_module_terms(self);
  for (size_t i = w->count; i-- > 0;) { /* backwards, because the parts share one stack */
    const struct part *p = &w->parts[i];
    ek_tensor scales = {0}, own[EK_MAX_INPUTS] = {{0}};
    output -= p->outputs;
    term -= (int64_t)p->terms;
    EK_TRY(ek_tensor_rows(&scales, &grad_outputs[0], term, (int64_t)p->terms));
    const ek_status status =
        ek_pass_child_backward(grad_inputs == NULL ? NULL : own, pass, i, &scales);
    ek_tensor_free(&scales);
    if (status != EK_OK) return status;
    if (grad_inputs != NULL) memcpy(grad_inputs + output, own, p->outputs * sizeof *own);
  }
  return EK_OK;
}

static void release(ek_module *self) {
  struct weighted_sum *w = (struct weighted_sum *)self;
  for (size_t i = 0; i < w->count; i++) ek_criterion_free(w->parts[i].criterion);
  ek__free(w->parts);
  ek__free(w);
}

/* Of a target of a part. */
static ek_type input_type(const ek_module *self, size_t input) {
  const struct weighted_sum *w = (const struct weighted_sum *)self;
  const size_t outputs = ek_criterion_outputs(&w->base);
  size_t target = input - outputs;
  if (input < outputs) return (ek_type)0;
  for (size_t i = 0; i < w->count; i++) {
    const struct part *p = &w->parts[i];
    if (target < p->targets) {
      return ek_module_input_type(&p->criterion->base, p->outputs + target);
    }
    target -= p->targets;
  }
  return (ek_type)0;
}

static const ek_module_ops ops = {EK__LAYER("weighted_sum", forward, backward, release),
                                  .parameters = declare, .input_type = input_type};

/* ---- creation ---- */

static ek_status check_part(const ek_criterion *part, size_t index, ek_reduction reduction,
                            double coefficient) {
  EK__FAIL_IF(part == NULL, EK_ERR_INVALID_ARGUMENT, "weighted_sum: terms[%zu] is NULL", index);
  EK_TRY(ek_criterion_check(part));
  const char *kind = ek_module_kind(&part->base);
  EK__FAIL_IF(ek_criterion_reduction(part) == EK_REDUCTION_NONE, EK_ERR_INVALID_ARGUMENT,
              "weighted_sum: terms[%zu] (%s) has reduction none, expected mean or sum", index,
              kind);
  EK__FAIL_IF(ek_criterion_reduction(part) != reduction, EK_ERR_INVALID_ARGUMENT,
              "weighted_sum: terms[%zu] (%s) has reduction %s, but terms[0] has %s", index, kind,
              ek_criterion_reduction(part) == EK_REDUCTION_SUM ? "sum" : "mean",
              reduction == EK_REDUCTION_SUM ? "sum" : "mean");
  EK__FAIL_IF(!isfinite(coefficient), EK_ERR_INVALID_ARGUMENT,
              "weighted_sum: coefficients[%zu] is %g, expected a finite number", index,
              coefficient);
  return EK_OK;
}

/* Their counts together; each sum stays small, because the counts of each part are. */
static ek_status check_sum(const char *what, size_t count, size_t most) {
  if (count <= most) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                      "weighted_sum: the terms together have more than %zu %s", most, what);
}

/* Checks each part, and that together they do not have too much of anything. `all` becomes what
 * they have together. */
static ek_status check_parts(ek_criterion_options *all, ek_criterion *const *parts,
                             const double *coefficients, size_t count) {
  EK__FAIL_IF(count == 0, EK_ERR_INVALID_ARGUMENT, "weighted_sum: no terms, expected 1 or more");
  all->outputs = all->targets = all->terms = 0;
  for (size_t i = 0; i < count; i++) {
    EK_TRY(check_part(parts[i], i,
                      parts[0] == NULL ? EK_REDUCTION_MEAN : ek_criterion_reduction(parts[0]),
                      coefficients[i]));
    EK_TRY(check_sum("terms", all->terms += ek_module_terms(&parts[i]->base), EK_MAX_TERMS));
    EK_TRY(check_sum("outputs", all->outputs += ek_criterion_outputs(parts[i]), EK_MAX_TENSORS));
    EK_TRY(
        check_sum("targets", all->targets += ek_module_targets(&parts[i]->base), EK_MAX_TENSORS));
  }
  all->reduction = ek_criterion_reduction(parts[0]);
  return EK_OK;
}

/* Appends a part to those that are there; its terms begin with number `first`. */
static ek_status append(struct weighted_sum *w, ek_criterion *criterion, double coefficient,
                        size_t first) {
  const struct part part = {.criterion = criterion,
                            .outputs = ek_criterion_outputs(criterion),
                            .targets = ek_module_targets(&criterion->base),
                            .terms = ek_module_terms(&criterion->base)};
  for (size_t j = 0; j < part.terms; j++) {
    const double inner = ek_criterion_coefficients(criterion) == NULL
                             ? 1.0
                             : ek_criterion_coefficients(criterion)[j];
    EK__FAIL_IF(!isfinite(coefficient * inner), EK_ERR_INVALID_ARGUMENT,
                "weighted_sum: coefficients[%zu] times %g of the nested %s is not finite", w->count,
                inner, ek_module_kind(&criterion->base));
    w->coefficients[first + j] = coefficient * inner;
  }
  w->parts[w->count] = part;
  ek_criterion_share(w->parts[w->count++].criterion);
  return EK_OK;
}

static ek_status fill(struct weighted_sum *w, ek_criterion_options *all,
                      ek_criterion *const *parts, const double *coefficients, size_t count) {
  size_t first = 0;
  all->coefficients = w->coefficients;
  EK_TRY(ek_criterion_init_with(&w->base, &ops, all));
  for (size_t i = 0; i < count; i++) {
    EK_TRY(append(w, parts[i], coefficients[i], first));
    first += ek_module_terms(&parts[i]->base);
  }
  return EK_OK;
}

ek_status ek_weighted_sum_create(ek_criterion **criterion, ek_criterion *const *terms,
                                 const double *coefficients, size_t count) {
  EK__NOT_NULL("weighted_sum", criterion, terms, coefficients);
  ek_criterion_options all = EK_CRITERION_OPTIONS_INIT;
  EK_TRY(check_parts(&all, terms, coefficients, count));
  struct weighted_sum *w = NULL;
  EK_TRY(ek__new(&w, 1, sizeof *w, "weighted_sum"));
  ek_status status = ek__new(&w->parts, count, sizeof *w->parts, "weighted_sum");
  if (status == EK_OK) status = fill(w, &all, terms, coefficients, count);
  if (status != EK_OK) {
    release(&w->base.base);
    return status;
  }
  *criterion = &w->base;
  return EK_OK;
}
