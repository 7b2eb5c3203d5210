/*
 * muon.c - Muon for matrices, beside another rule for everything else.
 *
 * State 0 is Muon's momentum, which matrices have alone; the others are those of the other rule,
 * which matrices have not. Everything is made of public operations on one workspace, whose parts
 * have the same places in it wherever the matrix is: so a matrix gets the same bits on any device.
 */
#include <evenkeel/muon.h>

#include <math.h>
#include <string.h>

#include <evenkeel/elementwise.h>
#include <evenkeel/products.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"
#include "device/types.h"

struct muon {
  ek_optimizer base;
  ek_optimizer *other;
  ek_muon_options options;
  double other_rate; /* relative to Muon's */
  ek_optimizer_ops ops;
  const char *names[EK_MAX_OPTIMIZER_STATES];
};

enum { MOMENTUM, OTHERS }; /* states */

static const char momentum_name[] = "momentum";

/* ---- the workspace ---- */

/* Elements in multiples of this keep vectors aligned. */
enum { ALIGNMENT = 64 };

/* The direction and its next iterate [rows, columns], s and its square [least, least], and numbers
 * in f64. */
struct work {
  ek_tensor x, y, gram, square, divisor, norm;
};

static int64_t padded(int64_t count) { return (count + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

/* A view of elements from *used on, which goes on after it. */
static ek_tensor take(const ek_tensor *workspace, int64_t *used, ek_type type, int rank,
                      int64_t rows, int64_t columns) {
  ek_tensor view = *workspace;
  view.memory = NULL;
  view.type = type;
  view.rank = rank;
  view.shape[0] = rows;
  view.shape[1] = columns;
  if (view.data != NULL) {
    view.data = (char *)view.data + (size_t)*used * ek_type_size(workspace->type);
  }
  *used += padded(rows * columns);
  return view;
}

static int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t workspace_of(const ek_optimizer *self, const ek_optimizer_parameter *parameter) {
  const int64_t rows = parameter->shape[0], columns = parameter->shape[1];
  const int64_t least = lesser(rows, columns);
  (void)self;
  return 2 * padded(rows * columns) + 2 * padded(least * least) + 2 * ALIGNMENT;
}

static void lay_out(struct work *work, const ek_tensor *workspace, const ek_tensor *matrix) {
  const int64_t rows = matrix->shape[0], columns = matrix->shape[1];
  const int64_t least = lesser(rows, columns);
  const ek_type type = workspace->type;
  int64_t used = 0;
  work->x = take(workspace, &used, type, 2, rows, columns);
  work->y = take(workspace, &used, type, 2, rows, columns);
  work->gram = take(workspace, &used, type, 2, least, least);
  work->square = take(workspace, &used, type, 2, least, least);
  work->divisor = take(workspace, &used, EK_F64, 1, 2, 1);
  work->norm = take(workspace, &used, EK_F64, 1, 1, 1);
}

/* ---- a matrix ---- */

/* y = -rate * x * (the factor of an update), in the type of y. */
static ek_status put(ek_stream *stream, ek_tensor *y, const ek_tensor *x, double rate,
                     const ek_update_scale *scale) {
  const ek_sgd_terms terms = {.learning_rate = rate};
  EK_TRY(ek_op_zero(stream, y));
  return ek_op_sgd(stream, y, NULL, x, &terms, scale);
}

/* x becomes the direction u, and the momentum that of this step. */
static ek_status find_direction(const struct muon *m, ek_stream *stream, const ek_update *update,
                                ek_tensor *x) {
  ek_tensor *momentum = &update->states[MOMENTUM];
  ek_update_scale scale = update->scale;
  scale.copy = NULL;
  EK_TRY(put(stream, x, update->gradients, -1, &scale));
  if (update->step <= 1) EK_TRY(ek_op_zero(stream, momentum));
  EK_TRY(ek_op_lerp(stream, momentum, momentum, x, 1 - m->options.momentum));
  return m->options.nesterov ? ek_op_lerp(stream, x, x, momentum, m->options.momentum)
                             : ek_op_copy(stream, x, momentum);
}

/*
 * y = x / max(|x|, epsilon). The factor of an update that divides by d and clips to epsilon / d is
 * 1 / d, or epsilon / d / (|x| / d + 1e-6) where that is less; so it is 1 / max(|x|, epsilon) times
 * epsilon / d, if d is so small that 1e-6 is nothing beside epsilon / d.
 */
static ek_status normalize(ek_stream *stream, struct work *work, double epsilon) {
  const double large = 0x1p60, d = epsilon / large;
  const ek_update_scale scale = {
      .totals = &work->divisor, .square_norm = &work->norm, .clip_norm = large};
  EK_TRY(ek_op_fill(stream, &work->divisor, d));
  EK_TRY(ek_op_square_norm(stream, &work->norm, &work->x, 0));
  return put(stream, &work->y, &work->x, -1 / large, &scale);
}

static void swap(ek_tensor *a, ek_tensor *b) {
  const ek_tensor kept = *a;
  *a = *b;
  *b = kept;
}

/* x becomes a x + (b s + c s s) x. */
static ek_status iterate(ek_stream *stream, struct work *work, const double coefficients[3]) {
  const double a = coefficients[0], b = coefficients[1], c = coefficients[2];
  ek_tensor *x = &work->x, *y = &work->y, *s = &work->gram, *polynomial = &work->square;
  const bool wide = x->shape[0] <= x->shape[1];
  EK_TRY(ek_op_matmul(stream, s, x, !wide, x, wide, 0));
  EK_TRY(ek_op_matmul(stream, polynomial, s, false, s, false, 0));
  EK_TRY(ek_op_scale(stream, polynomial, polynomial, c));
  EK_TRY(ek_op_scale(stream, s, s, b));
  EK_TRY(ek_op_add(stream, polynomial, polynomial, s));
  EK_TRY(ek_op_copy(stream, y, x));
  EK_TRY(wide ? ek_op_matmul(stream, y, polynomial, false, x, false, a)
              : ek_op_matmul(stream, y, x, false, polynomial, false, a));
  swap(x, y);
  return EK_OK;
}

static double factor_of(ek_muon_factor factor, int64_t rows, int64_t columns) {
  const double m = (double)rows, n = (double)columns;
  return factor == EK_MUON_ORIGINAL ? sqrt(fmax(1, m / n)) : 0.2 * sqrt(fmax(m, n));
}

static ek_status update_matrix(const struct muon *m, ek_stream *stream, const ek_update *update) {
  const int64_t *shape = update->parameters->shape;
  const double factor = factor_of(m->options.factor, shape[0], shape[1]);
  struct work work;
  EK__FAIL_IF(update->workspace == NULL || update->parameters->rank != 2, EK_ERR_INVALID_ARGUMENT,
              "muon: update->workspace is NULL, or %s is no matrix", update->whole->name);
  lay_out(&work, update->workspace, update->parameters);
  EK_TRY(find_direction(m, stream, update, &work.x));
  EK_TRY(normalize(stream, &work, m->options.epsilon));
  swap(&work.x, &work.y);
  for (int i = 0; i < m->options.iterations; i++) {
    EK_TRY(iterate(stream, &work, m->options.coefficients));
  }
  const ek_sgd_terms terms = {.learning_rate = update->learning_rate * factor,
                              .weight_decay =
                                  ek_update_decay(update, m->options.weight_decay) / factor};
  const ek_update_scale scale = {.copy = update->scale.copy};
  return ek_op_sgd(stream, update->parameters, NULL, &work.x, &terms, &scale);
}

/* ---- the rule ---- */

static ek_status update_any(const ek_optimizer *self, ek_stream *stream, const ek_update *update) {
  const struct muon *m = (const struct muon *)self;
  EK__FAIL_IF(update == NULL || update->states == NULL, EK_ERR_INVALID_ARGUMENT, "muon: %s is NULL",
              update == NULL ? "update" : "update->states");
  if (update->whole != NULL) return update_matrix(m, stream, update);
  ek_update rest = *update;
  rest.states = &update->states[OTHERS];
  rest.learning_rate *= m->other_rate;
  return ek_optimizer_table(m->other)->update(m->other, stream, &rest);
}

static bool takes_whole(const ek_optimizer *self, const ek_optimizer_parameter *parameter) {
  (void)self;
  return parameter->rank == 2 && !parameter->elementwise;
}

static bool keeps(const ek_optimizer *self, size_t state, bool whole) {
  const ek_optimizer *other = ((const struct muon *)self)->other;
  if (whole || state == MOMENTUM) return whole && state == MOMENTUM;
  const ek_optimizer_ops *ops = ek_optimizer_table(other);
  return EK__TABLE_SLOT(ops, keeps) == NULL || ops->keeps(other, state - OTHERS, false);
}

static void release(ek_optimizer *self) {
  ek_optimizer_free(((struct muon *)self)->other);
  ek__free(self);
}

/* ---- making it ---- */

static ek_status check_options(const ek_muon_options *o) {
  EK__FAIL_IF(!(o->learning_rate > 0 && isfinite(o->learning_rate)), EK_ERR_INVALID_ARGUMENT,
              "muon: learning_rate is %g, expected a number > 0", o->learning_rate);
  EK__FAIL_IF(!(o->momentum >= 0 && o->momentum < 1), EK_ERR_INVALID_ARGUMENT,
              "muon: momentum is %g, expected 0 <= momentum < 1", o->momentum);
  EK__FAIL_IF(!(o->epsilon > 0 && isfinite(o->epsilon)), EK_ERR_INVALID_ARGUMENT,
              "muon: epsilon is %g, expected a number > 0", o->epsilon);
  EK__FAIL_IF(o->iterations < 1 || o->iterations > 99, EK_ERR_INVALID_ARGUMENT,
              "muon: iterations is %d, expected 1 to 99", o->iterations);
  EK__FAIL_IF((unsigned)o->factor > EK_MUON_MATCH_RMS_ADAMW, EK_ERR_INVALID_ARGUMENT,
              "muon: unknown factor %d; expected EK_MUON_ORIGINAL or EK_MUON_MATCH_RMS_ADAMW",
              (int)o->factor);
  for (int i = 0; i < 3; i++) {
    EK__FAIL_IF(!isfinite(o->coefficients[i]), EK_ERR_INVALID_ARGUMENT,
                "muon: coefficient number %d is %g", i, o->coefficients[i]);
  }
  return ek__check_number("muon", "weight_decay", o->weight_decay);
}

static ek_status check_other(const ek_optimizer *other) {
  const ek_optimizer_ops *ops = ek_optimizer_table(other);
  EK__FAIL_IF(ek_optimizer_states(other) > EK_MAX_OPTIMIZER_STATES - OTHERS,
              EK_ERR_INVALID_ARGUMENT, "muon: the rule %s has %zu states, expected at most %d",
              ops->kind, ek_optimizer_states(other), EK_MAX_OPTIMIZER_STATES - OTHERS);
  EK__FAIL_IF(EK__TABLE_SLOT(ops, takes_whole) != NULL, EK_ERR_INVALID_ARGUMENT,
              "muon: the rule %s takes parameters whole, expected one that does not", ops->kind);
  EK__FAIL_IF(ek_optimizer_clip_norm(other) > 0, EK_ERR_INVALID_ARGUMENT,
              "muon: the rule %s has clip_norm %g; the whole gradient is clipped by "
              "ek_muon_options.clip_norm",
              ops->kind, ek_optimizer_clip_norm(other));
  return EK_OK;
}

/* "momentum", then the names of the other rule's states, or the numbers that stand for them. */
static void name_states(struct muon *made) {
  static const char *const numbers[EK_MAX_OPTIMIZER_STATES] = {"0", "1", "2", "3"};
  const ek_optimizer_ops *other = ek_optimizer_table(made->other);
  const bool named = EK__TABLE_SLOT(other, state_names) != NULL;
  made->names[MOMENTUM] = momentum_name;
  for (size_t i = 0; i < ek_optimizer_states(made->other); i++) {
    made->names[OTHERS + i] = named ? other->state_names[i] : numbers[i];
  }
}

ek_status ek_muon_create(ek_optimizer **optimizer, ek_optimizer *elementwise,
                         const ek_muon_options *options) {
  struct muon *made = NULL;
  ek_muon_options o = EK_MUON_OPTIONS_INIT;
  EK__NOT_NULL("muon", optimizer, elementwise);
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_muon_options"));
  EK_TRY(check_options(&o));
  EK_TRY(check_other(elementwise));
  EK_TRY(ek__new(&made, 1, sizeof *made, "muon"));
  made->other = elementwise;
  made->options = o;
  made->other_rate = ek_optimizer_learning_rate(elementwise) / o.learning_rate;
  const ek_optimizer_ops *other = ek_optimizer_table(elementwise);
  made->ops =
      (ek_optimizer_ops){.size = sizeof made->ops,
                         .kind = "muon",
                         .update = update_any,
                         .free = release,
                         .types = EK__TABLE_TYPES(other), /* no operation here knows fewer */
                         .state_names = made->names,
                         .writes_copy = EK__TABLE_SLOT(other, writes_copy),
                         .takes_decay = EK__TABLE_SLOT(other, takes_decay),
                         .takes_whole = takes_whole,
                         .workspace = workspace_of,
                         .keeps = keeps};
  name_states(made);
  const ek_status status =
      ek_optimizer_init(&made->base, &made->ops, OTHERS + ek_optimizer_states(elementwise),
                        o.learning_rate, o.clip_norm);
  if (status != EK_OK) {
    ek__free(made);
    return status;
  }
  (void)ek_optimizer_share(elementwise);
  *optimizer = &made->base;
  return EK_OK;
}

EK__OPTIONS_INIT(ek_muon_options, EK_MUON_OPTIONS_INIT)
