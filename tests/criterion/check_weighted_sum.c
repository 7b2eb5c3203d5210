/*
 * check_weighted_sum.c - several losses for several outputs: against the terms computed one by one,
 * nested, over shards, by its memory; and the operation that puts their totals together.
 */
#include "ck_criterion.h"

static ek_criterion *squared(ek_reduction reduction) {
  CK_GOT(ek_criterion *, criterion, ek_mean_squared_error_create(&criterion, reduction));
  return ck_keep(criterion);
}

static ek_criterion *entropy(const double *weights, int64_t classes) {
  CK_WITH(ek_cross_entropy_options, o, EK_CROSS_ENTROPY_OPTIONS_INIT, .class_weights = weights,
          .classes = classes);
  CK_GOT(ek_criterion *, criterion, ek_cross_entropy_create(&criterion, &o));
  return ck_keep(criterion);
}

/* The sum takes over the references of its terms. */
static ek_criterion *sum_of(ek_criterion **terms, const double *coefficients, size_t count) {
  CK_GOT(ek_criterion *, criterion, ek_weighted_sum_create(&criterion, terms, coefficients, count));
  for (size_t i = 0; i < count; i++) ek_criterion_free(terms[i]);
  return ck_keep(criterion);
}

/* ---- a model of three outputs: logits, numbers, other logits ---- */

static const double weights_a[] = {0.5, 1, 2, 3}, weights_b[] = {1, 0.25, 4};
enum { ROWS = 10, PARTS = 3 };

struct data {
  ek_tensor outputs[PARTS], targets[PARTS];
  const double *values[PARTS];
  int64_t counts[PARTS];
};

static struct data make_data(struct ck_rig *rig) {
  struct data d = {.counts = {ROWS * 4, ROWS * 2, ROWS * 3}};
  for (int i = 0; i < PARTS; i++) d.values[i] = ck_values(rig, d.counts[i], -3, 3);
  d.outputs[0] = *ck_tensor(rig, d.values[0], CK_SHAPE(ROWS, 4));
  d.outputs[1] = *ck_tensor(rig, d.values[1], CK_SHAPE(ROWS, 2));
  d.outputs[2] = *ck_tensor(rig, d.values[2], CK_SHAPE(ROWS, 3));
  double *labels = ck_integers(rig, ROWS, 0, 3);
  labels[2] = labels[5] = -100; /* ignored, so that the weights d differ */
  d.targets[0] = *ck_tensor_of(rig, EK_I32, labels, CK_SHAPE(ROWS));
  d.targets[1] = *ck_tensor(rig, ck_values(rig, ROWS * 2, -3, 3), CK_SHAPE(ROWS, 2));
  d.targets[2] = *ck_tensor_of(rig, EK_I32, ck_integers(rig, ROWS, 0, 2), CK_SHAPE(ROWS));
  return d;
}

static ek_criterion *part_of(int i) {
  return i == 0   ? entropy(weights_a, 4)
         : i == 1 ? squared(EK_REDUCTION_MEAN)
                  : entropy(weights_b, 3);
}

enum { FLAT, NESTED_LAST, NESTED_FIRST, FORMS };

/* Three terms; or one of them, and a sum of the other two. */
static ek_criterion *whole(int form) {
  ek_criterion *parts[] = {part_of(0), part_of(1), part_of(2)};
  const double flat[] = {1.0, 0.5, -0.75}, outer[] = {1.0, 0.25}, inner[] = {2.0, -3.0};
  if (form == FLAT) return sum_of(parts, flat, 3);
  if (form == NESTED_FIRST) {
    ek_criterion *terms[] = {sum_of(parts, (const double[]){2.0, 1.0}, 2), parts[2]};
    return sum_of(terms, (const double[]){0.5, -0.75}, 2);
  }
  ek_criterion *terms[] = {parts[0], sum_of(&parts[1], inner, 2)};
  return sum_of(terms, outer, 2);
}

CK_LOOP(equals_its_terms_one_by_one, FORMS * CK_VARIANTS) {
  struct ck_rig *rig = ck_rig_variant(_i / FORMS);
  struct data d = make_data(rig);
  ek_criterion *criterion = whole(_i % FORMS);
  ck_assert_uint_eq(ek_criterion_outputs(criterion), 3);
  ck_assert_uint_eq(ek_module_targets(&criterion->base), 3);
  ck_assert_uint_eq(ek_module_terms(&criterion->base), 3);
  const double coefficients[] = {1.0, 0.5, -0.75}; /* products of exact numbers */
  ck_within("coefficients", ek_criterion_coefficients(criterion), coefficients, NULL, 3);

  struct ck_loss *loss = ck_loss_open(rig, criterion, true);
  const double scales[] = {0.3, -1.25, 2.0};
  double totals[6];
  ck_loss_forward(loss, d.outputs, d.targets, totals);
  ck_loss_backward(loss, scales, NULL);
  for (int i = 0; i < PARTS; i++) {
    struct ck_loss *alone = ck_loss_open(rig, part_of(i), true);
    double own[2];
    ck_loss_forward(alone, &d.outputs[i], &d.targets[i], own);
    ck_same_bits("totals", &totals[2 * i], own, 2);
    ck_loss_backward(alone, &scales[i], NULL);
    ck_same_bits("gradient", ck_read(rig, &loss->gradients[i]), ck_read(rig, &alone->gradients[0]),
                 d.counts[i]);
    ck_loss_close(alone);
  }
}

CK_RIG_LOOP(every_output_is_placed_for_itself, CK_VARIANTS) {
  struct data d = make_data(rig);
  struct ck_loss *kept = ck_loss_open(rig, whole(NESTED_LAST), true);
  ck_loss_forward(kept, d.outputs, d.targets, NULL);
  ck_loss_backward(kept, NULL, NULL);
  const double *want[PARTS];
  for (int i = 0; i < PARTS; i++) want[i] = ck_read(rig, &kept->gradients[i]);
  ck_loss_close(kept);

  struct ck_loss *loss = ck_loss_open(rig, whole(NESTED_LAST), false);
  CK_OPENED(ek_tensor, other,
            ek_tensor_share(&other, &d.outputs[1])); /* that one may not be overwritten */
  const uint64_t before = ck_loss_bytes(rig);
  ck_loss_forward(loss, d.outputs, d.targets, NULL);
  ck_loss_backward(loss, NULL, NULL);
  ck_assert_uint_eq(ck_loss_bytes(rig) - before, EK_MEMORY_UNIT); /* 20 numbers: one unit */
  for (int i = 0; i < PARTS; i++) {
    ck_assert_int_eq(loss->gradients[i].data == d.outputs[i].data, i != 1);
    ck_same_bits("gradient", ck_read(rig, &loss->gradients[i]), want[i], d.counts[i]);
  }
  ck_same_bits("output", ck_read(rig, &other), d.values[1], d.counts[1]);
}

CK_RIG_LOOP(out_of_memory, CK_VARIANTS) {
  struct data d = make_data(rig);
  ek_criterion *part = squared(EK_REDUCTION_SUM), *criterion = NULL;
  const double one = 1;
  for (uint64_t n = 1; n <= 2; n++) {
    ek_host_memory_fail_at(n);
    ck_fails(ek_weighted_sum_create(&criterion, &part, &one, 1), EK_ERR_OUT_OF_MEMORY,
             "weighted_sum");
  }
  ek_host_memory_fail_at(0);
  ck_assert_int_eq(part->base.private_members.references, 1);
  criterion = whole(NESTED_LAST);
  ck_loss_failures(rig, criterion, d.outputs, d.targets);
}

/* ---- putting totals together ---- */

/* combined and scales of the operation. */
static void combine(struct ck_rig *rig, double *combined, double *scales, const double *totals,
                    const double *coefficients, int64_t terms, bool divide) {
  ek_tensor *c = ck_tensor_of(rig, EK_F64, NULL, CK_SHAPE(2));
  ek_tensor *s = ck_tensor_of(rig, EK_F64, NULL, CK_SHAPE(terms, 2));
  const ek_tensor *t = ck_tensor_of(rig, EK_F64, totals, CK_SHAPE(terms, 2));
  ck_ok(ek_op_combine_totals(rig->stream, c, s, t, coefficients, divide));
  ck_get(combined, c);
  const double *pairs = ck_read(rig, s);
  for (int64_t j = 0; j < terms; j++) {
    scales[j] = pairs[2 * j];
    ck_assert(pairs[2 * j + 1] == 0);
  }
}

CK_RIG_TEST(combining, NULL, EK_F64) {
  double combined[2], scales[3];
  const double totals[] = {6, 4, 10, 8, 5, 0}, c[] = {2, 0.5, 7};
  /* D = 8: 8 * (2 * 6 / 4 + 0.5 * 10 / 8) = 29; the third term has no weight */
  const double want[] = {29, 8}, want_scales[] = {4, 0.5, 0};
  combine(rig, combined, scales, totals, c, 3, true);
  ck_within("combined", combined, want, NULL, 2);
  ck_within("scales", scales, want_scales, NULL, 3);
  /* sum: 12 + 5 + 35 */
  const double added[] = {52, 1};
  combine(rig, combined, scales, totals, c, 3, false);
  ck_within("combined", combined, added, NULL, 2);
  ck_within("scales", scales, c, NULL, 3);
  /* one ordinary loss passes bit for bit */
  const double ordinary[] = {0.1, 3}, one = 1;
  combine(rig, combined, scales, ordinary, &one, 1, true);
  ck_same_bits("combined", combined, ordinary, 2);
  ck_same_bits("scale", scales, &one, 1);
  /* everything ignored */
  const double nothing[] = {0, 0, 0, 0}, zeros[] = {0, 0};
  combine(rig, combined, scales, nothing, c, 2, true);
  ck_within("combined", combined, zeros, NULL, 2);
  ck_within("scales", scales, c, NULL, 2);
  /* targets that all weigh nothing, and losses of them by label smoothing: for other micro-batches
   */
  const double weightless[] = {3, 0, 4, 0}, kept[] = {2 * 3 + 0.5 * 4, 0};
  combine(rig, combined, scales, weightless, c, 2, true);
  ck_within("combined", combined, kept, NULL, 2);
  ck_within("scales", scales, c, NULL, 2);
  /* a loss that is not a number may not hide */
  const double broken[] = {(double)NAN, 2, 1, 2};
  combine(rig, combined, scales, broken, c, 2, true);
  ck_assert(isnan(combined[0]) && combined[1] == 2);
  /* neither may a weight, wherever it stands, nor the loss of a term without weight */
  for (int j = 0; j < 3; j++) {
    double lost[] = {1, 2, 1, 3, 1, 0};
    lost[2 * j + (j < 2)] = NAN;
    combine(rig, combined, scales, lost, c, 3, true);
    ck_assert(isnan(combined[0]) && (j == 2 || isnan(combined[1])));
  }
  const double alone[] = {1, NAN};
  combine(rig, combined, scales, alone, c, 1, true);
  ck_assert(isnan(combined[0] / combined[1]));
}

CK_RIG_TEST(combining_refuses, NULL, EK_F64) {
  const double c[65] = {0};
  ek_tensor *two = ck_poisoned(rig, CK_SHAPE(2)), *scales = ck_poisoned(rig, CK_SHAPE(2, 2));
  ek_tensor *three = ck_poisoned(rig, CK_SHAPE(3)), *terms = ck_poisoned(rig, CK_SHAPE(2, 2));
  ek_tensor *wide = ck_poisoned(rig, CK_SHAPE(2, 3)), *many = ck_poisoned(rig, CK_SHAPE(65, 2));
  ek_tensor *more = ck_poisoned(rig, CK_SHAPE(65, 2)), *one = ck_poisoned(rig, CK_SHAPE(1, 2));
  ek_tensor *narrow = ck_tensor_of(rig, EK_F32, NULL, CK_SHAPE(2));
  ek_stream *s = rig->stream;
  ck_invalid(ek_op_combine_totals(NULL, two, scales, terms, c, true), "combine_totals: stream");
  ck_invalid(ek_op_combine_totals(s, NULL, scales, terms, c, true), "combined is NULL");
  ck_invalid(ek_op_combine_totals(s, two, NULL, terms, c, true), "scales is NULL");
  ck_invalid(ek_op_combine_totals(s, two, scales, NULL, c, true), "totals is NULL");
  ck_invalid(ek_op_combine_totals(s, two, scales, terms, NULL, true), "coefficients is NULL");
  ck_fails(ek_op_combine_totals(s, three, scales, terms, c, true), EK_ERR_SHAPE, "combined is 3");
  ck_fails(ek_op_combine_totals(s, two, one, terms, c, true), EK_ERR_SHAPE, "scales is 1 x 2");
  ck_fails(ek_op_combine_totals(s, two, scales, wide, c, true), EK_ERR_SHAPE, "totals is 2 x 3");
  ck_fails(ek_op_combine_totals(s, two, more, many, c, true), EK_ERR_SHAPE, "65 terms");
  ck_fails(ek_op_combine_totals(s, narrow, scales, terms, c, true), EK_ERR_TYPE, "f32");
  ek_tensor overlapping = *terms;
  ck_invalid(ek_op_combine_totals(s, two, &overlapping, terms, c, true), "overlaps");
}

/* Two shards of 7 and 3 rows, their totals added and combined, against the whole: each row's loss
 * and gradient are the same numbers, so the loss differs by the order of ten additions per term and
 * the gradient by the rounding of its scale. */
CK_RIG_LOOP(uneven_shards_make_the_whole, CK_VARIANTS) {
  struct data d = make_data(rig);
  struct ck_loss *loss = ck_loss_open(rig, whole(FLAT), true);
  double once[6], parts[6] = {0}, part[6];
  ck_loss_forward(loss, d.outputs, d.targets, once);
  const int64_t first[] = {0, 7}, count[] = {7, 3};
  for (int k = 0; k < 2; k++) {
    ek_tensor outputs[PARTS] = {{0}}, targets[PARTS] = {{0}};
    for (int i = 0; i < PARTS; i++) {
      ck_ok(ek_tensor_rows(&outputs[i], &d.outputs[i], first[k], count[k]));
      ck_ok(ek_tensor_rows(&targets[i], &d.targets[i], first[k], count[k]));
    }
    ck_loss_forward(loss, outputs, targets, part);
    for (int i = 0; i < 6; i++) parts[i] += part[i];
    for (int i = 0; i < PARTS; i++) {
      ek_tensor_free(&outputs[i]);
      ek_tensor_free(&targets[i]);
    }
  }
  double whole_loss[2], whole_scales[3], shard_loss[2], shard_scales[3];
  const double *c = ek_criterion_coefficients(loss->criterion);
  combine(rig, whole_loss, whole_scales, once, c, 3, true);
  combine(rig, shard_loss, shard_scales, parts, c, 3, true);
  double bound[3], size = 0;
  for (int i = 0; i < 3; i++) size += fabs(c[i] * once[2 * i] / once[2 * i + 1]) * whole_loss[1];
  bound[0] = 2 * ROWS * rig->unit * size;
  bound[1] = 0; /* the weights are sums of exact numbers */
  ck_within("loss", shard_loss, whole_loss, bound, 2);
  bound[0] = bound[1] = bound[2] = 0;
  ck_within("scales", shard_scales, whole_scales, bound, 3);
}

/* ---- what is refused ---- */

CK_TEST(refused) {
  ek_criterion *mean = squared(EK_REDUCTION_MEAN), *sum = squared(EK_REDUCTION_SUM);
  ek_criterion *none = squared(EK_REDUCTION_NONE), *w = NULL;
  ek_criterion *terms[EK_MAX_TERMS + 1];
  double c[EK_MAX_TERMS + 1];
  for (size_t i = 0; i <= EK_MAX_TERMS; i++) {
    terms[i] = mean;
    c[i] = 1;
  }
  ck_invalid(ek_weighted_sum_create(NULL, terms, c, 2), "criterion is NULL");
  ck_invalid(ek_weighted_sum_create(&w, NULL, c, 2), "terms is NULL");
  ck_invalid(ek_weighted_sum_create(&w, terms, NULL, 2), "coefficients is NULL");
  ck_invalid(ek_weighted_sum_create(&w, terms, c, 0), "no terms");
  ck_invalid(ek_weighted_sum_create(&w, terms, c, EK_MAX_TENSORS + 1), "more than 16 outputs");
  mean->base.private_members.terms = 5; /* as a criterion of a program's own may have */
  ck_invalid(ek_weighted_sum_create(&w, terms, c, 13), "more than 64 terms");
  mean->base.private_members.terms = 0;
  ck_invalid(ek_weighted_sum_create(&w, terms, c, 1), "1 to 64 terms");
  ck_assign(mean->base.private_members, .terms = 1, .inputs = 1 /* the target */);
  ck_invalid(ek_weighted_sum_create(&w, terms, c, 1), "1 to 16 outputs");
  ck_assign(mean->base.private_members, .inputs = 10, .targets = 9);
  ck_invalid(ek_weighted_sum_create(&w, terms, c, 2), "more than 16 targets");
  ck_assign(mean->base.private_members, .inputs = 2, .targets = 1);
  terms[1] = NULL;
  ck_invalid(ek_weighted_sum_create(&w, terms, c, 2), "terms[1] is NULL");
  ck_invalid(ek_weighted_sum_create(&w, &terms[1], c, 1), "terms[0] is NULL");
  terms[1] = sum;
  ck_invalid(ek_weighted_sum_create(&w, terms, c, 2), "has reduction sum, but terms[0] has mean");
  terms[1] = none;
  ck_invalid(ek_weighted_sum_create(&w, terms, c, 2), "reduction none");
  ck_invalid(ek_weighted_sum_create(&w, &terms[1], c, 1), "reduction none");
  terms[1] = mean;
  const double bad[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
  for (size_t i = 0; i < 3; i++) {
    c[1] = bad[i];
    ck_invalid(ek_weighted_sum_create(&w, terms, c, 2), "coefficients[1]");
  }
  c[1] = 1;
  ck_assert_ptr_null(w);
  ck_assert_int_eq(mean->base.private_members.references, 1);

  /* As many as there may be, one more through nesting, and a product that overflows. */
  ck_ok(ek_weighted_sum_create(&w, terms, c, EK_MAX_TENSORS));
  ck_assert_uint_eq(ek_module_terms(&w->base), EK_MAX_TENSORS);
  ck_assert_int_eq(mean->base.private_members.references, 1 + EK_MAX_TENSORS);
  ek_criterion *more[] = {mean, w}, *outer = NULL;
  ck_invalid(ek_weighted_sum_create(&outer, more, c, 2), "16 outputs");
  ek_criterion_free(w);
  ck_assert_int_eq(mean->base.private_members.references, 1);
  const double huge = 1e200;
  ck_ok(ek_weighted_sum_create(&w, terms, &huge, 1));
  ck_invalid(ek_weighted_sum_create(&outer, &w, &huge, 1), "not finite");
  ck_assert_ptr_null(outer);
  ck_assert_int_eq(w->base.private_members.references, 1);
  ek_criterion_free(w);

  /* As many terms with constants as one likes. */
  ek_criterion *weighted = entropy(weights_a, 4);
  for (size_t i = 0; i < EK_MAX_TENSORS; i++) terms[i] = weighted;
  ck_ok(ek_weighted_sum_create(&w, terms, c, EK_MAX_TENSORS));
  ek_criterion_free(w);
}

/* Outputs, then targets: classes are whole numbers, of whichever part, also of a nested one. */
CK_TEST(targets_keep_the_types_of_their_parts) {
  const double ones[] = {1, 1};
  ek_criterion *inner[] = {squared(EK_REDUCTION_MEAN), entropy(NULL, 0)};
  ek_criterion *outer[] = {sum_of(inner, ones, 2), squared(EK_REDUCTION_MEAN)};
  ek_criterion *sum = sum_of(outer, ones, 2);
  const ek_type wanted[] = {0, 0, 0, 0, EK_I32, 0};
  ck_assert_uint_eq(ek_module_inputs(&sum->base), 6);
  for (size_t i = 0; i < 6; i++) ck_assert_int_eq(ek_module_input_type(&sum->base, i), wanted[i]);
}

CK_SUITE("weighted_sum")
