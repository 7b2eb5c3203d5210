/*
 * check_joined_loss.c - a model and its loss as one module (with_criterion.h): predictions and ties
 * that do not fit.
 */
#include "ck_biased.h"
#include "ck_workload.h"

enum { IN = 3, OUT = CK_BIASED_COLUMNS };

static ek_module *linear(void) { return ck_linear(IN, OUT, true); }

static ek_status gives_nothing(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                               ek_tensor *outputs) {
  (void)self, (void)pass, (void)inputs, (void)outputs;
  return EK_OK;
}

static ek_status predict(ek_tensor *y, const ek_tensor *x, ek_module *module, bool gradient) {
  CK_WITH(ek_pass_options, options, EK_PASS_OPTIONS_INIT, .gradient = gradient);
  CK_SCOPED(ek_replica *, replica, ek_replica_open(&replica, x->device, module, NULL));
  CK_SCOPED(ek_pass *, pass, ek_pass_open(&pass, replica, &options));
  return ek_pass_run_predict(y, pass, x);
}

/* What predicts says so, does so, and in a pass without gradient. */
CK_TEST(predictions_that_do_not_fit) {
  static ek_module_ops ops; /* modules are freed after the test */
  ek_criterion *criterion = ck_keep(ck_biased()), *silent = ck_biased();
  ops = *ek_module_table(&silent->base);
  ops.predict = gives_nothing;
  ck_assign(silent->base.private_members, .ops = &ops, .predictions = 1);
  ek_module *whole = ck_together(linear(), silent), *plain = ck_together(linear(), ck_biased());
  ek_device *device = ck_device("cpu:1");
  ek_replica *replica = NULL;
  ek_tensor y = {0}, x = ck_upload(device, EK_F32, NULL, CK_SHAPE(2, IN));
  criterion->base.private_members.predictions = 1; /* without the slot */
  ck_invalid(ek_replica_open(&replica, device, &criterion->base, NULL),
             "0 to 0 predictions, not 1");
  criterion->base.private_members.predictions = 0;
  ck_fails(predict(&y, &x, &criterion->base, false), EK_ERR_UNSUPPORTED,
           "biased has no predictions");
  ck_fails(predict(&y, &x, whole, true), EK_ERR_STATE, "or is with gradient");
  ck_fails(predict(&y, &x, whole, false), EK_ERR_STATE,
           "criterion (biased), predict: it did not set output number 0");
  ck_kept(predict(&y, &x, plain, false), y); /* what the model gives */
  ck_assert_int_eq(y.shape[1], OUT);
}

/* A tie reaches into both; its names are copied, and have an end. */
CK_TEST(ties_that_do_not_fit) {
  static char longer[200];
  ek_module *model = linear(), *module = NULL;
  ek_criterion *criterion = ck_keep(ck_biased());
  ek_with_criterion_options o = EK_WITH_CRITERION_OPTIONS_INIT;
  ek_group *group = ck_open("plan:1", 1);
  ek_replica *replica = NULL;
  memset(longer, 'x', sizeof longer - 1);
  ck_bad(o, source, "bias", ek_with_criterion_create_with(&module, model, criterion, &o),
         "both options");
  o.tied = "bias";
  ck_invalid(ek_with_criterion_create_with(&module, model, criterion, &o), "both options");
  o.source = longer;
  ck_invalid(ek_with_criterion_create_with(&module, model, criterion, &o), "is too long");
  o.source = "nobody";
  ck_ok(ek_with_criterion_create_with(&module, model, criterion, &o));
  ck_fails(ek_replica_open(&replica, ek_group_device(group, 0), module, NULL), EK_ERR_NOT_FOUND,
           "nobody must be declared first");
  ek_module_free(module);
  char name[] = "loss", source[] = "bias";
  ck_assign(o, .name = name, .source = source);
  ck_ok(ek_with_criterion_create_with(&module, model, criterion, &o));
  memset(name, 0, sizeof name);
  memset(source, 0, sizeof source);
  ck_kept(ek_replica_open(&replica, ek_group_device(group, 0), module, NULL), replica);
  CK_GOT(ek_parameter_info, one, ek_replica_find(&one, replica, "bias"));
  CK_GOT(ek_parameter_info, other, ek_replica_find(&other, replica, "loss.bias"));
  ck_assert_int_eq(one.offset, other.offset);
  ek_module_free(module);
  ek_module_free(model);
}

/* The gradient of several terms is not begun in forward, whatever a criterion was opened with: a
 * program may give one of its own. */
CK_TEST(several_terms_wait_for_backward) {
  const struct ck_workload *mixer = ck_workload("mixer");
  struct ck_batch batch = ck_batch_make(mixer, EK_F32, 6, 0, 3);
  ek_tensor inputs[EK_MAX_INPUTS];
  ek_group *group = ck_open("cpu:2", 1);
  ek_data_parallel_model_options options = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  ek_data_parallel_criterion_options in_forward = EK_DATA_PARALLEL_CRITERION_OPTIONS_INIT;
  in_forward.gradient_in_forward = true;
  options.broadcast_inputs = mixer->sample.broadcast;
  CK_OPENED(ek_module *, model, mixer->module(&model));
  CK_OPENED(ek_criterion *, criterion, mixer->criterion(&criterion, EK_REDUCTION_MEAN));
  CK_OPENED(ek_module *, whole, ek_with_criterion_create(&whole, model, criterion));
  ck_assert_uint_gt(ek_module_terms(whole), 1);
  memcpy(inputs, batch.input, batch.inputs * sizeof *inputs);
  memcpy(inputs + batch.inputs, batch.target, batch.targets * sizeof *inputs);
  CK_OPENED(ek_data_parallel_model *, parallel,
            ek_data_parallel_model_open(&parallel, group, whole, &options));
  CK_OPENED(ek_data_parallel_criterion *, loss,
            ek_data_parallel_criterion_open(&loss, parallel, NULL, &in_forward));
  CK_OPENED(ek_shards, totals,
            ek_data_parallel_model_forward(&totals, parallel, inputs, batch.inputs + batch.targets,
                                           NULL));
  ck_ok(ek_data_parallel_model_backward(parallel, &totals, 1, NULL));
}

CK_SUITE("joined_loss")
