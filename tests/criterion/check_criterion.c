/*
 * check_criterion.c - a criterion of a program's own through the table, with children; what a pass
 * gives it and when; what is refused.
 */
#include "ck_criterion.h"
#include "ck_own_criteria.h"

enum { COLUMNS = CK_ABSOLUTE_COLUMNS };

static const double some_weights[COLUMNS] = {0.5, 1.0, 2.0};

static ek_criterion *make(ek_reduction reduction) {
  return ck_absolute_error(some_weights, reduction, CK_NO_FAULT, NULL);
}

/* What most tests run: its mean, without kept outputs. */
static struct ck_loss *open_mean(struct ck_rig *rig) {
  return ck_loss_open(rig, make(EK_REDUCTION_MEAN), false);
}

/* ---- it works like the stock ones ---- */

CK_RIG_LOOP(a_criterion_of_our_own, CK_VARIANTS) {
  int freed = 0;
  const double outputs[] = {1, 2, 3, -1, -2, -3};
  const double targets[] = {2, 2.5, 1, -1.5, 0, 0};
  /* |y - t| = 1 0.5 2 | 0.5 2 3, weighted 0.5 0.5 4 | 0.25 2 6: exact in both types */
  const double want[] = {13.25, 7.0};
  const double gradient[] = {-1, -2, 4, 1, -2, -4}; /* sign * weight, twice */
  const double doubled = 2.0;
  ek_tensor *y = ck_tensor(rig, outputs, CK_SHAPE(2, COLUMNS));
  ek_tensor *t = ck_tensor(rig, targets, CK_SHAPE(2, COLUMNS));
  for (int keep = 0; keep < 2; keep++) {
    struct ck_loss *loss = ck_loss_open(
        rig, ck_absolute_error(some_weights, EK_REDUCTION_MEAN, CK_NO_FAULT, &freed), keep == 1);
    double totals[2];
    ck_set(y, outputs);
    ck_loss_forward(loss, y, t, totals);
    ck_within("totals", totals, want, NULL, 2);
    ck_loss_forward(loss, y, t, totals); /* what the first one saved is dropped */
    ck_loss_backward(loss, &doubled, NULL);
    ck_within("gradient", ck_read(rig, &loss->gradients[0]), gradient, NULL, 6);
    ck_assert_int_eq(loss->gradients[0].data == y->data, keep == 0);
    ck_loss_close(loss);
    ck_assert_int_eq(freed, keep + 1);
  }
}

/* Instead of the outputs at the end of forward, with the coefficient; backward gives it. */
CK_RIG_LOOP(the_gradient_in_forward, CK_VARIANTS) {
  const double outputs[] = {1, 2, 3}, targets[] = {2, 1, 1}, want[] = {5.5, 3.5};
  const double gradient[] = {-0.5, 1, 2}, halves[] = {-0.25, 0.5, 1}, half = 0.5, other = 64;
  ek_tensor *y = ck_tensor(rig, outputs, CK_SHAPE(1, COLUMNS));
  ek_tensor *t = ck_tensor(rig, targets, CK_SHAPE(1, COLUMNS));
  for (int scaled = 0; scaled < 2; scaled++) {
    ek_criterion *c = make(EK_REDUCTION_MEAN);
    if (scaled == 1) c->private_members.coefficients = &half;
    struct ck_loss *loss = ck_loss_open(rig, c, false);
    double totals[2];
    ck_set(y, outputs);
    CK_GOT(ek_memory_usage, before, ck_memory_stats(&before, rig->device));
    ck_loss_forward_gradient(loss, y, t, totals);
    CK_GOT(ek_memory_usage, after, ck_memory_stats(&after, rig->device));
    ck_assert_uint_lt(after.current_bytes, before.current_bytes + CK_ABSOLUTE_DROPPED);
    ck_within("totals", totals, want, NULL, 2);
    ck_within("outputs", ck_read(rig, y), scaled ? halves : gradient, NULL, 3);
    ck_loss_backward(loss, &other, NULL); /* the scale came in forward */
    ck_assert(loss->gradients[0].data == y->data);
    ck_within("gradient", ck_read(rig, &loss->gradients[0]), scaled ? halves : gradient, NULL, 3);
    ck_fails(ck_loss_try_backward(loss, NULL), EK_ERR_STATE, "backward has already run");
    ck_loss_drop(loss);
    /* Another forward is not bound by it, nor is one after a reset. */
    ck_set(y, outputs);
    ck_loss_forward_gradient(loss, y, t, NULL);
    ck_set(y, outputs);
    ck_loss_forward(loss, y, t, totals);
    ck_within("outputs", ck_read(rig, y), outputs, NULL, 3);
    ck_loss_backward(loss, NULL, NULL);
    ck_within("gradient", ck_read(rig, &loss->gradients[0]), gradient, NULL, 3);
    ck_loss_close(loss);
  }
}

static void stays(struct ck_rig *rig, struct ck_loss *loss, ek_tensor *y, const ek_tensor *t,
                  const double *outputs) {
  ck_loss_forward_gradient(loss, y, t, NULL);
  for (size_t i = 0; i < ek_criterion_outputs(loss->criterion); i++) {
    ck_within("outputs", ck_read(rig, &y[i]), outputs, NULL, 3);
  }
  ck_loss_backward(loss, NULL, NULL);
  ck_loss_close(loss);
}

/* Kept outputs, outputs that others hold, single losses, children, two terms: not in forward. */
CK_RIG_LOOP(the_gradient_waits_for_backward, CK_VARIANTS) {
  const double outputs[] = {1, 2, 3}, targets[] = {2, 1, 1};
  ek_tensor y[2] = {*ck_tensor(rig, outputs, CK_SHAPE(1, 3)),
                    *ck_tensor(rig, outputs, CK_SHAPE(1, 3))};
  ek_tensor t[2] = {*ck_tensor(rig, targets, CK_SHAPE(1, 3)),
                    *ck_tensor(rig, targets, CK_SHAPE(1, 3))};
  double scale = 0;
  struct ck_loss *loss = ck_loss_open(rig, make(EK_REDUCTION_MEAN), true);
  stays(rig, loss, y, t, outputs);

  loss = open_mean(rig);
  CK_GOT(ek_tensor, held, ek_tensor_share(&held, &y[0]));
  stays(rig, loss, y, t, outputs);
  ek_tensor_free(&held);

  loss = ck_loss_open(rig, make(EK_REDUCTION_NONE), false);
  stays(rig, loss, y, t, outputs);
  ck_set(&y[0], outputs);

  loss = ck_loss_open(rig, ck_pair(some_weights, some_weights, CK_NO_FAULT), false);
  stays(rig, loss, y, t, outputs);

  loss = open_mean(rig);
  ck_ok(ek_pass_open(&loss->pass, loss->replica, NULL));
  ck_assert(!ek_pass_gradient_now(&scale, loss->pass)); /* not in forward */
  ck_assert(!ek_pass_gradient_now(&scale, NULL));
}

CK_RIG_LOOP(single_losses, CK_VARIANTS) {
  const double outputs[] = {1, 2, 3}, targets[] = {2, 2.5, 1}, factors[] = {3, 0, 0.5};
  const double want[] = {0.5, 0.5, 4}, gradient[] = {-1.5, 0, 1};
  ek_tensor *y = ck_tensor(rig, outputs, CK_SHAPE(1, COLUMNS));
  ek_tensor *t = ck_tensor(rig, targets, CK_SHAPE(1, COLUMNS));
  struct ck_loss *loss = ck_loss_open(rig, make(EK_REDUCTION_NONE), false);
  ck_loss_forward(loss, y, t, NULL);
  ck_within("losses", ck_read(rig, &loss->losses), want, NULL, 3);

  const ek_tensor *few = ck_tensor(rig, factors, CK_SHAPE(2));
  const ek_tensor *strange =
      ck_tensor_of(rig, rig->type == EK_F32 ? EK_F64 : EK_F32, factors, CK_SHAPE(3));
  ck_fails(ck_loss_try_backward(loss, few), EK_ERR_SHAPE, "output number 1 is [2], expected [3]");
  ck_fails(ck_loss_try_backward(loss, strange), EK_ERR_TYPE, "output number 1");
  ck_loss_backward(loss, NULL, ck_tensor(rig, factors, CK_SHAPE(3)));
  ck_within("gradient", ck_read(rig, &loss->gradients[0]), gradient, NULL, 3);
}

CK_RIG_LOOP(children_have_their_own_constants, CK_VARIANTS) {
  const double other[COLUMNS] = {4, 8, 16};
  const double outputs[] = {1, 2, 3}, zeros[] = {0, 0, 0};
  const double want[] = {8.5, 3.5, 68, 28}; /* 0.5 + 2 + 6; 4 + 16 + 48 */
  const double first[] = {0.5, 1, 2}, second[] = {12, 24, 48}, scales[] = {1, 3};
  ek_tensor y[2] = {*ck_tensor(rig, outputs, CK_SHAPE(1, 3)),
                    *ck_tensor(rig, outputs, CK_SHAPE(1, 3))};
  ek_tensor t[2] = {*ck_tensor(rig, zeros, CK_SHAPE(1, 3)), *ck_tensor(rig, zeros, CK_SHAPE(1, 3))};
  struct ck_loss *loss = ck_loss_open(rig, ck_pair(some_weights, other, CK_NO_FAULT), false);
  double totals[4];
  ck_loss_forward(loss, y, t, totals);
  ck_within("totals", totals, want, NULL, 4);
  ck_loss_backward(loss, scales, NULL);
  ck_within("gradient 0", ck_read(rig, &loss->gradients[0]), first, NULL, 3);
  ck_within("gradient 1", ck_read(rig, &loss->gradients[1]), second, NULL, 3);
  ck_loss_close(loss);

  /* A gradient that was made before another child failed is freed. */
  loss = ck_loss_open(rig, ck_pair(some_weights, other, CK_FAILS_BACKWARD), false);
  ck_loss_forward(loss, y, t, NULL);
  ck_fails(ck_loss_try_backward(loss, NULL), EK_ERR_UNSUPPORTED, "second (absolute), backward");
  ck_assert(!ek_tensor_exists(&loss->gradients[0]) && !ek_tensor_exists(&loss->gradients[1]));
}

/* ---- constants ---- */

CK_RIG_LOOP(constants_take_the_type_of_the_model, CK_VARIANTS) {
  const double thirds[COLUMNS] = {1.0 / 3, 2.0 / 3, 1e-3};
  struct ck_loss *loss =
      ck_loss_open(rig, ck_absolute_error(thirds, EK_REDUCTION_MEAN, CK_NO_FAULT, NULL), false);
  double want[COLUMNS];
  CK_GOT(ek_parameter_info, info, ek_replica_find(&info, loss->replica, "weights"));
  ck_assert(info.buffer && info.value.type == rig->type && info.value.device == rig->device);
  for (int c = 0; c < COLUMNS; c++) want[c] = ck_round(rig, thirds[c]);
  ck_within("constant", ck_read(rig, &info.value), want, NULL, COLUMNS);
}

CK_RIG_TEST(bad_constants, NULL, EK_F32) {
  ek_criterion *criterion = ck_absolute_error(NULL, EK_REDUCTION_MEAN, CK_NO_FAULT, NULL);
  ek_replica *replica = NULL;
  ck_invalid(ek_replica_open(&replica, rig->device, &criterion->base, NULL),
             "the initial values of weights are NULL");
  const size_t terms[] = {0, EK_MAX_TERMS + 1};
  for (size_t i = 0; i < 2; i++) {
    criterion->base.private_members.terms = terms[i];
    ck_invalid(ek_criterion_check(criterion), "1 to 64 terms");
  }
  ck_invalid(ek_replica_open(&replica, rig->device, &criterion->base, NULL),
             "1 to 64 terms, not 65");
  ck_assert_ptr_null(replica);
  ck_assert_int_eq(criterion->base.private_members.references, 1);
  ek_criterion_free(criterion);
}

/* ---- where totals and gradients go ---- */

/* Nothing is charged to `loss` that a runner has a place for; without one totals are new memory. */
CK_RIG_LOOP(totals_have_a_place, CK_VARIANTS) {
  const double outputs[] = {1, 2, 3}, targets[] = {2, 1, 1}, want[] = {5.5, 3.5};
  ek_tensor inputs[2] = {*ck_tensor(rig, outputs, CK_SHAPE(1, COLUMNS)),
                         *ck_tensor(rig, targets, CK_SHAPE(1, COLUMNS))};
  for (int own = 0; own < 2; own++) {
    ek_criterion *c =
        ck_absolute_error(some_weights, EK_REDUCTION_MEAN, own ? CK_OWN_TOTALS : CK_NO_FAULT, NULL);
    struct ck_loss *loss = ck_loss_open(rig, c, false);
    double totals[2];
    ck_loss_forward(loss, &inputs[0], &inputs[1], totals);
    ck_within("totals", totals, want, NULL, 2);
    ck_loss_drop(loss);
    ck_assert_uint_eq(ck_loss_bytes(rig), 0);
    CK_WITH(ek_pass_options, options, EK_PASS_OPTIONS_INIT, .gradient = false);
    CK_GOT(ek_pass *, pass, ek_pass_open(&pass, loss->replica, &options));
    CK_GOT(ek_tensor, made, ek_pass_run_forward(&made, pass, inputs));
    ek_pass_free(pass);
    ck_within("totals", ck_read(rig, &made), want, NULL, 2);
    ck_assert_uint_eq(ck_loss_bytes(rig), EK_MEMORY_UNIT);
    ek_tensor_free(&made);
    options.promise.totals = &inputs[0];
    ck_ok(ek_pass_open(&pass, loss->replica, &options));
    ck_fails(ek_pass_run_forward(&made, pass, inputs),
             rig->type == EK_F64 ? EK_ERR_SHAPE : EK_ERR_TYPE, "totals");
    ek_pass_free(pass);
    ck_loss_close(loss);
  }
}

/* Without leave the gradient is new memory, even if the input seems to have no other holder. */
CK_RIG_LOOP(inputs_are_not_overwritten_without_leave, CK_VARIANTS) {
  ek_tensor inputs[2] = {*ck_tensor(rig, some_weights, CK_SHAPE(1, COLUMNS)),
                         *ck_tensor(rig, some_weights, CK_SHAPE(1, COLUMNS))};
  struct ck_loss *loss = open_mean(rig);
  ck_ok(ek_pass_open(&loss->pass, loss->replica, NULL));
  ek_tensor gradients[2] = {{0}};
  CK_OPENED(ek_tensor, totals, ek_pass_run_forward(&totals, loss->pass, inputs));
  ck_set(&loss->scales, some_weights);
  ck_ok(ek_pass_run_backward(gradients, loss->pass, &loss->scales));
  ck_assert(gradients[0].data != inputs[0].data && !ek_tensor_exists(&gradients[1]));
  ck_within("outputs", ck_read(rig, &inputs[0]), ck_read(rig, &inputs[1]), NULL, COLUMNS);
  ek_tensor_free(&gradients[0]);
}

/* ---- order of calls ---- */

CK_RIG_TEST(only_inside_forward_or_backward, NULL, EK_F32) {
  struct ck_loss *loss = open_mean(rig);
  ek_tensor *x = ck_tensor(rig, some_weights, CK_SHAPE(1, 3)), taken = {0};
  ek_tensor target = *ck_tensor(rig, some_weights, CK_SHAPE(1, 3));
  ck_ok(ek_pass_open(&loss->pass, loss->replica, NULL));
  ck_fails(ek_pass_take(&taken, loss->pass), EK_ERR_STATE, "takes more");
  ck_fails(ek_pass_input_gradient(&taken, loss->pass, x), EK_ERR_STATE, "only possible during");
  ck_fails(ck_loss_try_backward(loss, NULL), EK_ERR_STATE, "no forward");
  ck_loss_forward(loss, x, &target, NULL);
  ck_loss_backward(loss, NULL, NULL);
  ck_fails(ck_loss_try_backward(loss, NULL), EK_ERR_STATE, "has already run");
  ck_loss_drop(loss);
  ck_loss_forward(loss, x, &target, NULL);
  ck_loss_drop(loss);
  ck_assert_uint_eq(ck_loss_bytes(rig), 0);

  CK_OPENED(ek_module *, relu, ek_activation_create(&relu, EK_ACTIVATION_RELU));
  CK_OPENED(ek_replica *, replica, ek_replica_open(&replica, rig->device, relu, NULL));
  CK_OPENED(ek_pass *, pass, ek_pass_open(&pass, replica, NULL));
  ck_fails(ek_pass_totals(&taken, pass), EK_ERR_STATE, "not a criterion");
}

CK_TEST(faults_of_a_criterion_leave_nothing) {
  static const struct {
    enum ck_fault fault;
    ek_status status;
    const char *text;
  } cases[] = {{CK_NO_GRADIENT, EK_ERR_STATE, "input number 0 was not given"},
               {CK_WRONG_GRADIENT, EK_ERR_SHAPE, "input number 0 is [1], expected [1 x 3]"},
               {CK_TARGET_GRADIENT, EK_ERR_STATE, "number 1 was given, but the input is a target"},
               {CK_TAKES_TOO_MUCH, EK_ERR_STATE, "takes more tensors back than it saved"},
               {CK_FAILS_FORWARD, EK_ERR_UNSUPPORTED, "absolute, forward: absolute: no"},
               {CK_FAILS_BACKWARD, EK_ERR_UNSUPPORTED, "absolute, backward: absolute: not back"}};
  struct ck_rig *rig = ck_rig_open(NULL, EK_F32, 1);
  ek_tensor *x = ck_tensor(rig, some_weights, CK_SHAPE(1, 3));
  ek_tensor *t = ck_tensor(rig, some_weights, CK_SHAPE(1, 3));
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct ck_loss *loss = ck_loss_open(
        rig, ck_absolute_error(some_weights, EK_REDUCTION_MEAN, cases[i].fault, NULL), false);
    if (cases[i].fault == CK_FAILS_FORWARD) {
      ck_fails(ck_loss_try_forward(loss, x, t, true), cases[i].status, cases[i].text);
      ck_fails(ck_loss_try_forward(loss, x, t, false), cases[i].status, cases[i].text);
    } else {
      ck_loss_forward(loss, x, t, NULL);
      ck_fails(ck_loss_try_backward(loss, NULL), cases[i].status, cases[i].text);
      ck_assert(!ek_tensor_exists(&loss->gradients[0]));
    }
    ck_fails(ck_loss_try_backward(loss, NULL), EK_ERR_STATE, "ek_pass_run_backward");
    ck_loss_drop(loss);
    ck_assert_uint_eq(ck_loss_bytes(rig), 0);
    ck_loss_close(loss);
  }
}

CK_RIG_LOOP(out_of_memory, CK_VARIANTS) {
  ek_tensor *x = ck_tensor(rig, some_weights, CK_SHAPE(1, 3));
  ek_tensor *t = ck_tensor(rig, some_weights, CK_SHAPE(1, 3));
  ek_criterion *criterion = make(EK_REDUCTION_NONE);
  ck_loss_failures(rig, criterion, x, t);
  ek_criterion_free(criterion);
}

/* ---- what is refused ---- */

CK_TEST(bad_bases) {
  ek_criterion c;
  ek_criterion *made = make(EK_REDUCTION_MEAN);
  ek_module_ops ops = *ek_module_table(&made->base);
  ek_criterion_free(made);
  const ek_module_ops good = ops;
  ck_invalid(ek_criterion_init(NULL, &ops, 1, 1, EK_REDUCTION_MEAN), "criterion is NULL");
  ck_invalid(ek_criterion_init(&c, NULL, 1, 1, EK_REDUCTION_MEAN), "ops is NULL");
  ck_bad(ops, size, sizeof ops + 1, ek_criterion_init(&c, &ops, 1, 1, EK_REDUCTION_MEAN), "size");
  ck_bad(ops, kind, NULL, ek_criterion_init(&c, &ops, 1, 1, EK_REDUCTION_MEAN), "kind");
  ck_bad(ops, forward, NULL, ek_criterion_init(&c, &ops, 1, 1, EK_REDUCTION_MEAN), "ops.forward");
  ck_bad(ops, backward, NULL, ek_criterion_init(&c, &ops, 1, 1, EK_REDUCTION_MEAN), "ops.backward");
  ck_bad(ops, free, NULL, ek_criterion_init(&c, &ops, 1, 1, EK_REDUCTION_MEAN), "ops.free");
  ck_invalid(ek_criterion_init(&c, &good, 0, 1, EK_REDUCTION_MEAN),
             "has 1 to 16 outputs of a model, not 0");
  ck_invalid(ek_criterion_init(&c, &good, 1, 1, (ek_reduction)-1), "reduction");
  ck_ok(ek_criterion_init(&c, &good, 2, 0, EK_REDUCTION_SUM));
  ck_assert_uint_eq(ek_criterion_outputs(&c), 2);
  ck_assert_uint_eq(ek_module_outputs(&c.base), 1);
  ck_assert_uint_eq(ek_module_terms(&c.base), 1);
  ck_assert_ptr_null(ek_criterion_coefficients(&c));
  ck_assert_int_eq(c.base.private_members.references, 1);
  ck_ok(ek_criterion_init(&c, &good, 2, 3, EK_REDUCTION_NONE));
  ck_assert_uint_eq(ek_module_inputs(&c.base), 5);
  ck_assert_uint_eq(ek_module_targets(&c.base), 3);
  ck_assert_uint_eq(ek_module_outputs(&c.base), 2);
  ck_bad(c, base.private_members.outputs, 1, ek_criterion_check(&c), "2 to 2 results");

  const double halves[] = {0.5, 0.5, 0.5};
  ck_ok(ek_criterion_init_with(&c, &good, NULL));
  ck_assert(ek_module_inputs(&c.base) == 2 && ek_module_targets(&c.base) == 1 &&
            ek_module_terms(&c.base) == 1);
  ck_assert_ptr_eq(ek_criterion_of(&c.base), &c);
  CK_WITH(ek_criterion_options, options, EK_CRITERION_OPTIONS_INIT, .terms = 3,
          .coefficients = halves);
  ck_ok(ek_criterion_init_with(&c, &good, &options));
  ck_assert_uint_eq(ek_module_terms(&c.base), 3);
  ck_assert_ptr_eq(ek_criterion_coefficients(&c), halves);
  options.predictions = 1; /* without the slot */
  ck_invalid(ek_criterion_init_with(&c, &good, &options), "0 to 0 predictions, not 1");
  options.predictions = 0;
  ck_bad(options, terms, EK_MAX_TERMS + 1, ek_criterion_init_with(&c, &good, &options),
         "1 to 64 terms, not 65");
  ck_bad(options, terms, 0, ek_criterion_init_with(&c, &good, &options), "1 to 64 terms, not 0");
  ck_invalid(ek_criterion_check(NULL), "NULL");
}

CK_TEST(references) {
  int freed = 0;
  ek_criterion *c = ck_absolute_error(some_weights, EK_REDUCTION_MEAN, CK_NO_FAULT, &freed);
  ck_assert_ptr_null(ek_criterion_share(NULL));
  ek_criterion_free(NULL);
  ck_assert_ptr_eq(ek_criterion_share(c), c);
  struct ck_rig *rig = ck_rig_open(NULL, EK_F32, 1);
  CK_GOT(ek_replica *, replica, ek_replica_open(&replica, rig->device, &c->base, NULL));
  ek_criterion_free(c);
  ek_criterion_free(c);
  ck_assert_int_eq(freed, 0); /* the replica holds it */
  ek_replica_free(replica);
  ck_assert_int_eq(freed, 1);
}

CK_RIG_TEST(bad_tensors, "cpu:2", EK_F32) {
  struct ck_loss *loss = open_mean(rig);
  ek_tensor *x = ck_tensor(rig, some_weights, CK_SHAPE(1, 3)), t = {0};
  ek_tensor none = {0}, host;
  float numbers[3] = {0};
  ck_ok(ek_tensor_host(&host, numbers, EK_F32, CK_SHAPE(1, 3)));
  ek_tensor far = ck_upload(ek_group_device(rig->group, 1), EK_F32, NULL, CK_SHAPE(1, 3));
  ek_tensor *flat = ck_tensor_of(rig, EK_F64, NULL, CK_SHAPE(2));
  ck_invalid(ck_loss_try_forward(loss, &none, x, false), "tensor number 0");
  ck_fails(ck_loss_try_forward(loss, x, &host, false), EK_ERR_DEVICE, "host memory");
  ck_fails(ck_loss_try_forward(loss, x, &far, false), EK_ERR_DEVICE, "cpu:1");

  ck_loss_forward(loss, x, x, NULL);
  ek_tensor scales = loss->scales;
  loss->scales = *flat;
  ck_fails(ck_loss_try_backward(loss, NULL), EK_ERR_SHAPE, "output number 0 is [2]");
  loss->scales = none;
  ck_invalid(ck_loss_try_backward(loss, NULL), "number 0");
  loss->scales = scales;
  ck_loss_backward(loss, NULL, NULL); /* nothing was lost by all that */
  const ek_status statuses[] = {ek_pass_totals(&t, NULL),
                                ek_pass_totals(NULL, loss->pass),
                                ek_pass_input_gradient(&t, NULL, x),
                                ek_pass_input_gradient(NULL, loss->pass, x),
                                ek_pass_input_gradient(&t, loss->pass, NULL),
                                ek_pass_input_gradient(&t, loss->pass, &none)};
  for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++) {
    ck_assert_int_eq(statuses[i], EK_ERR_INVALID_ARGUMENT);
  }
}

CK_SUITE("criterion")
