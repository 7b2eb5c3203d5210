/*
 * check_fused_head.c - a head and its loss in one (linear_cross_entropy.h), alone in a pass: exact
 * gradients of small whole numbers, wherever they are computed, and single losses.
 */
#include "ek_check.h"

struct head {
  ek_replica *replica;
  ek_tensor scales; /* of reduction mean and sum */
};

static struct head head_open(struct ck_rig *rig, ek_criterion *criterion) {
  struct head h;
  const double scales[] = {0.5, 0};
  CK_WITH(ek_replica_options, o, EK_REPLICA_OPTIONS_INIT, .type = rig->type);
  ck_kept(ek_replica_open(&h.replica, rig->device, &criterion->base, &o), h.replica);
  h.scales = *ck_tensor_of(rig, EK_F64, scales, CK_SHAPE(1, 2));
  return h;
}

static void set_parameter(const struct head *h, const char *name, const double *values) {
  CK_GOT(ek_parameter_info, info, ek_replica_find(&info, h->replica, name));
  ck_set(&info.value, values);
}

static void get_gradient(double *values, const struct head *h, const char *name) {
  CK_GOT(ek_parameter_info, info, ek_replica_find(&info, h->replica, name));
  ck_get(values, &info.gradient);
}

/* How the gradient comes: in forward over h, in forward beside it, in backward. */
enum way { OVER, BESIDE, BACKWARD, WAYS };

/* Small whole numbers: all classes have the same logits, so that p is a quarter, and every sum is
 * exact. Blocks of 1 to 12 rows, and of all. */
CK_PART_LOOP(small_whole_numbers, WAYS * CK_VARIANTS) {
  enum { ROWS = 11, WIDTH = 3, CLASSES = 4, COLUMNS = 6 };
  struct ck_rig *rig = ck_rig_variant(_i / WAYS);
  const enum way way = (enum way)(_i % WAYS);
  double h[ROWS * WIDTH], t[ROWS], w[COLUMNS * WIDTH];
  struct ck_random random = ck_random_start(7);
  for (int i = 0; i < ROWS * WIDTH; i++) h[i] = (double)ck_random_integer(&random, -4, 4);
  for (int i = 0; i < ROWS; i++) t[i] = (double)ck_random_integer(&random, -1, CLASSES - 1);
  for (int i = 0; i < COLUMNS * WIDTH; i++) w[i] = i < CLASSES * WIDTH ? i % WIDTH - 1 : 5 - i;
  double want[COLUMNS * WIDTH] = {0}, weight = 0;
  for (int r = 0; r < ROWS; r++) {
    weight += t[r] >= 0;
    for (int c = 0; c < CLASSES && t[r] >= 0; c++) {
      const double g = 0.5 * (0.25 - (c == (int)t[r]));
      for (int k = 0; k < WIDTH; k++) want[c * WIDTH + k] += g * h[r * WIDTH + k];
    }
  }
  for (uint64_t block = 1; block <= ROWS + 1; block++) {
    const size_t mark = ck_mark();
    CK_WITH(ek_cross_entropy_options, loss, EK_CROSS_ENTROPY_OPTIONS_INIT, .ignore_index = -1,
            .classes = CLASSES);
    CK_WITH(ek_linear_cross_entropy_options, o, EK_LINEAR_CROSS_ENTROPY_OPTIONS_INIT, .loss = &loss,
            .logits_bytes = block * COLUMNS * ek_type_size(rig->type));
    CK_OPENED(ek_criterion *, criterion,
              ek_linear_cross_entropy_create(&criterion, WIDTH, COLUMNS, &o));
    struct head head = head_open(rig, criterion);
    set_parameter(&head, "weight", w);
    ek_tensor inputs[2] = {ck_upload(rig->device, rig->type, h, CK_SHAPE(ROWS, WIDTH)),
                           ck_upload(rig->device, EK_I32, t, CK_SHAPE(ROWS))};
    ek_tensor totals = {0}, gradients[2] = {{0}};
    CK_WITH(ek_pass_options, options, EK_PASS_OPTIONS_INIT,
            .promise.gradient_now = way == BACKWARD ? 0 : 0.5,
            .promise.overwrite_inputs = way == OVER);
    CK_OPENED(ek_pass *, pass, ek_pass_open(&pass, head.replica, &options));
    ck_kept(ek_pass_run_forward(&totals, pass, inputs), totals);
    ck_kept(ek_pass_run_backward(gradients, pass, &head.scales), gradients[0]);
    double got[2], dw[COLUMNS * WIDTH], zeros[ROWS * WIDTH] = {0};
    const double bound[] = {8 * rig->unit * ROWS, 0}, sums[] = {weight * log(4.0), weight};
    ck_get(got, &totals);
    ck_within("totals", got, sums, bound, 2);
    get_gradient(dw, &head, "weight");
    ck_within("dW", dw, want, NULL, COLUMNS * WIDTH);
    ck_within("dh", ck_read(rig, &gradients[0]), zeros, NULL, ROWS * WIDTH);
    ck_assert_int_eq(gradients[0].data == inputs[0].data, way == OVER);
    ck_assert(!ek_tensor_exists(&gradients[1]));
    ck_release(mark);
  }
}

/* Reduction `none`: losses of any shape, a factor for each; all of it against cross-entropy of the
 * logits that the module predicts. */
CK_LOOP(single_losses, CK_VARIANTS) {
  enum { WIDTH = 5, CLASSES = 9, ROWS = 8 };
  struct ck_rig *rig = ck_rig_variant(_i);
  CK_WITH(ek_cross_entropy_options, loss, EK_CROSS_ENTROPY_OPTIONS_INIT,
          .reduction = EK_REDUCTION_NONE, .label_smoothing = 0.25);
  CK_WITH(ek_linear_cross_entropy_options, o, EK_LINEAR_CROSS_ENTROPY_OPTIONS_INIT, .loss = &loss,
          .bias = true, .logits_bytes = 3 * CLASSES * ek_type_size(rig->type));
  CK_OPENED(ek_criterion *, criterion,
            ek_linear_cross_entropy_create(&criterion, WIDTH, CLASSES, &o));
  CK_OPENED(ek_criterion *, plain, ek_cross_entropy_create(&plain, &loss));
  struct head head = head_open(rig, criterion);
  const double *h = ck_values(rig, ROWS * WIDTH, -1, 1),
               *t = ck_integers(rig, ROWS, 0, CLASSES - 1);
  ek_tensor inputs[2] = {*ck_tensor(rig, h, CK_SHAPE(2, 4, WIDTH)),
                         *ck_tensor_of(rig, EK_I32, t, CK_SHAPE(2, 4))};
  const ek_tensor factors = *ck_tensor(rig, ck_values(rig, ROWS, -1, 1), CK_SHAPE(2, 4));
  ek_tensor logits[2] = {{0}}, results[2] = {{0}}, gradients[2] = {{0}};
  ek_pass_options options = EK_PASS_OPTIONS_INIT;
  options.promise.gradient_now = 3; /* not for single losses */
  CK_GOT(ek_pass *, pass, ek_pass_open(&pass, head.replica, &options));
  ck_ok(ek_pass_run_forward(results, pass, inputs));
  ck_assert_int_eq(results[1].rank, 2);
  const ek_tensor given[] = {head.scales, factors};
  ck_ok(ek_pass_run_backward(gradients, pass, given));
  ek_pass_free(pass);
  double dw[CLASSES * WIDTH], db[CLASSES], want_dw[CLASSES * WIDTH], want_db[CLASSES];
  get_gradient(dw, &head, "weight");
  get_gradient(db, &head, "bias");
  options.gradient = false;
  ck_ok(ek_pass_open(&pass, head.replica, &options));
  ck_ok(ek_pass_run_predict(logits, pass, inputs));
  ek_pass_free(pass);

  /* The same, apart. */
  CK_WITH(ek_replica_options, how, EK_REPLICA_OPTIONS_INIT, .type = rig->type);
  CK_OPENED(ek_replica *, other, ek_replica_open(&other, rig->device, &plain->base, &how));
  ek_tensor apart_inputs[2] = {logits[0], inputs[1]}, losses[2] = {{0}}, dlogits[2] = {{0}};
  ck_ok(ek_pass_open(&pass, other, NULL));
  ck_ok(ek_pass_run_forward(losses, pass, apart_inputs));
  ck_ok(ek_pass_run_backward(dlogits, pass, given));
  ek_pass_free(pass);
  const double bounds[ROWS] = {64 * rig->unit, 64 * rig->unit, 64 * rig->unit, 64 * rig->unit,
                               64 * rig->unit, 64 * rig->unit, 64 * rig->unit, 64 * rig->unit};
  ck_within("losses", ck_read(rig, &results[1]), ck_read(rig, &losses[1]), bounds, ROWS);
  ek_tensor *weight = ck_blank(rig, rig->type, CK_SHAPE(CLASSES, WIDTH));
  ek_tensor *bias = ck_blank(rig, rig->type, CK_SHAPE(CLASSES));
  ck_ok(ek_op_linear_gradients(rig->stream, weight, bias, &dlogits[0], &inputs[0], 0, 0));
  ck_get(want_dw, weight);
  ck_get(want_db, bias);
  ck_assert_double_le(ck_rel_l2(dw, want_dw, CLASSES * WIDTH), 64 * rig->unit);
  ck_assert_double_le(ck_rel_l2(db, want_db, CLASSES), 64 * rig->unit);
  ek_tensor *freed[] = {&logits[0], &results[0], &results[1], &gradients[0],
                        &losses[0], &losses[1],  &dlogits[0]};
  for (size_t i = 0; i < sizeof freed / sizeof *freed; i++) ek_tensor_free(freed[i]);
}

CK_SUITE("fused_head")
