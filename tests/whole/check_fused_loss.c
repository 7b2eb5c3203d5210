/*
 * check_fused_loss.c - a GPT with a fused loss against one without: the same training, the same
 * names, the same logits, and a part of the memory. In a trainer it is one option and no criterion.
 */
#include "ck_gpt.h"
#include "ck_training.h"

enum { VOCABULARY = 37, CLASSES = 33, SEQUENCE = 6, MOST_SAMPLES = 9, STEPS = 3 };

struct setting {
  bool untied, weights;
  double dropout, smoothing;
  int layers;
};
static const struct setting settings[] = {{false, false, 0, 0, 2},
                                          {true, true, 0.2, 0.125, 1},
                                          {false, true, 0.2, 0, 1},
                                          {true, false, 0, 0.25, 0}};
enum { SETTINGS = sizeof settings / sizeof settings[0], MODES = 4 };

struct run {
  struct ck_setup setup;
  ek_group *group;
  ek_trainer *trainer;
};

static ek_cross_entropy_options criterion_options(const struct setting *s) {
  static double weights[CLASSES];
  ek_cross_entropy_options o = EK_CROSS_ENTROPY_OPTIONS_INIT;
  for (int i = 0; i < CLASSES; i++) weights[i] = i % 5 / 2.0;
  ck_assign(o, .ignore_index = -1, .label_smoothing = s->smoothing,
            .classes = CLASSES /* of a longer vocabulary */);
  if (s->weights) o.class_weights = weights;
  return o;
}

static void open_run(struct run *r, const struct setting *s, const char *spec, ek_mode mode,
                     bool fused) {
  const ek_cross_entropy_options loss = criterion_options(s);
  CK_WITH(ek_gpt_options, gpt, ck_gpt_sizes(VOCABULARY, SEQUENCE, 8, s->layers, 2),
          .untied = s->untied, .dropout = s->dropout, .fused_loss = fused);
  if (fused) ck_assign(gpt, .loss = &loss, .logits_bytes = 5 * VOCABULARY * 8);
  *r = (struct run){.setup = ck_setup_gpt(&gpt, &loss, spec, mode), .group = ck_open(spec, 1)};
  ck_assign(r->setup, .options.type = EK_F64, .options.seed = 3, .group = r->group,
            .micro_batches = mode == EK_MODE_SHARDED ? 3 : 1);
  r->trainer = ck_trainer_open(&r->setup);
}

static struct ck_gpt_batch batch_of(int64_t samples, uint64_t number) {
  return ck_gpt_batch(samples, SEQUENCE, VOCABULARY, CLASSES, number);
}

static int64_t read_parameter(double *values, const struct run *r, const char *name) {
  CK_GOT(ek_state_info, info, ek_state_find(&info, ek_trainer_model(r->trainer), name));
  info.like.data = values;
  ck_ok(ek_state_read(&info.like, ek_trainer_model(r->trainer), name));
  return ek_tensor_count(&info.like);
}

/* Both calls are the same for both models. */
static void train(struct run *r, double losses[STEPS + 1]) {
  static const int64_t samples[] = {7, 2, 9, 5}; /* fewer than devices, too */
  struct ck_gpt_batch b;
  ek_step_result result;
  for (int i = 0; i < STEPS; i++) {
    b = batch_of(samples[i], (uint64_t)i);
    ck_ok(ek_trainer_step(&result, r->trainer, &b.input, 1, &b.target, 1));
    losses[i] = result.loss;
  }
  b = batch_of(samples[STEPS], STEPS);
  ck_ok(ek_trainer_evaluate(&losses[STEPS], NULL, r->trainer, &b.input, 1, &b.target, 1));
}

/* The same training to the order of sums, over three devices in every mode: 1e-12 leaves ten
 * thousand roundings, AdamW divides by roots of squares that are not small. */
CK_PART_LOOP(the_same_training, SETTINGS * MODES) {
  const struct setting *s = &settings[_i / MODES];
  static double table[2][VOCABULARY * 8], head[2][VOCABULARY * 8];
  double losses[2][STEPS + 1];
  int64_t count = 0;
  for (int fused = 0; fused < 2; fused++) {
    CK_SCENE(struct run, r, open_run(&r, s, "cpu:3", (ek_mode)(_i % MODES), fused == 1));
    train(&r, losses[fused]);
    count = read_parameter(table[fused], &r, "tokens.weight");
    read_parameter(head[fused], &r, "head.weight");
  }
  for (int i = 0; i <= STEPS; i++) {
    ck_assert_double_eq_tol(losses[1][i], losses[0][i], 1e-12 * losses[0][i]);
  }
  ck_assert_double_le(ck_rel_l2(table[1], table[0], count), 1e-10);
  ck_assert_double_le(ck_rel_l2(head[1], head[0], count), 1e-10);
}

/* What training starts with is the same bits, and so are the logits. */
CK_LOOP(the_same_logits, SETTINGS) {
  const struct setting *s = &settings[_i];
  static double logits[2][MOST_SAMPLES * SEQUENCE * VOCABULARY];
  struct ck_gpt_batch b = batch_of(7, 9);
  for (int fused = 0; fused < 2; fused++) {
    const int64_t shape[] = {7, SEQUENCE, VOCABULARY};
    CK_SCENE(struct run, r, open_run(&r, s, "cpu:3", EK_MODE_REPLICATED, fused == 1));
    CK_GOT(ek_shards, outputs, ek_trainer_predict(&outputs, r.trainer, &b.input, 1));
    CK_GOT(ek_tensor, host, ek_tensor_host(&host, logits[fused], EK_F64, 3, shape));
    ck_ok(ek_gather_host(&host, &outputs));
    CK_GOT(ek_memory_usage, usage, ck_memory_stats(&usage, ek_group_device(r.group, 0)));
    ck_assert_uint_ge(usage.current[EK_MEMORY_OUTPUTS], 3 * SEQUENCE * VOCABULARY * 8);
    ek_shards_free(&outputs);
  }
  ck_same_bits("logits", logits[1], logits[0], 7 * SEQUENCE * VOCABULARY);
}

/* Micro-batches through the parts of a trainer, of a batch that is evaluated in between. */
CK_TEST(micro_batches) {
  double losses[2], table[2][VOCABULARY * 8];
  const struct ck_gpt_batch first = batch_of(5, 20), second = batch_of(3, 21);
  for (int fused = 0; fused < 2; fused++) {
    ek_step_result result;
    CK_SCENE(struct run, r, open_run(&r, &settings[1], "cpu:2", EK_MODE_SHARDED, fused == 1));
    for (int k = 0; k < 2; k++) {
      const struct ck_gpt_batch *b = k == 0 ? &first : &second;
      const ek_tensor inputs[] = {b->input, b->target};
      ek_criterion_backward_options o = EK_CRITERION_BACKWARD_OPTIONS_INIT;
      ek_data_parallel_criterion *loss = ek_trainer_criterion(r.trainer);
      ek_data_parallel_model *model = ek_trainer_model(r.trainer);
      ek_shards outputs = {0};
      double evaluated = 0;
      o.accumulate = k == 0;
      ck_ok(ek_data_parallel_model_forward(&outputs, model, inputs, fused ? 2 : 1, NULL));
      ck_ok(
          ek_data_parallel_criterion_forward(loss, &outputs, 1, fused ? NULL : &b->target, !fused));
      if (fused && k == 1) {
        ck_fails(ek_trainer_evaluate(&evaluated, NULL, r.trainer, &b->input, 1, &b->target, 1),
                 EK_ERR_STATE, "call its backward, or discard, first");
      }
      ck_ok(ek_data_parallel_criterion_backward(loss, &o));
      ek_shards_free(&outputs);
      if (k == 0) {
        ck_ok(ek_trainer_evaluate(&evaluated, NULL, r.trainer, &b->input, 1, &b->target, 1));
      }
    }
    ck_ok(ek_data_parallel_optimizer_step(&result, ek_trainer_optimizer(r.trainer)));
    losses[fused] = result.loss;
    read_parameter(table[fused], &r, "tokens.weight");
  }
  ck_assert_double_eq_tol(losses[1], losses[0], 1e-12 * losses[0]);
  ck_assert_double_le(ck_rel_l2(table[1], table[0], VOCABULARY * 8), 1e-10);
}

static void peaks(uint64_t bytes[3], uint64_t logits[3], const char *spec, ek_mode mode,
                  bool fused) {
  double losses[STEPS + 1];
  ek_memory_usage usage;
  CK_SCENE(struct run, r, open_run(&r, &settings[0], spec, mode, fused));
  train(&r, losses);
  for (size_t k = 0; k < 3; k++) {
    ck_ok(ck_memory_stats(&usage, ek_group_device(r.group, k)));
    bytes[k] = usage.peak_bytes;
    logits[k] = usage.at_peak[EK_MEMORY_OUTPUTS] + usage.at_peak[EK_MEMORY_LOSS];
  }
}

/* Planned to the byte in every mode; logits are a block of five rows and not the device's 18. */
CK_LOOP(memory, MODES) {
  uint64_t whole[3], real[3], planned[3], logits[3], unused[3];
  const ek_mode mode = (ek_mode)_i;
  peaks(whole, unused, "cpu:3", mode, false);
  peaks(planned, unused, "plan:3", mode, true);
  peaks(real, logits, "cpu:3", mode, true);
  for (size_t k = 0; k < 3; k++) {
    ck_assert_uint_eq(real[k], planned[k]);
    ck_assert_uint_le(real[k], whole[k]);
    ck_assert_uint_le(logits[k], 5 * VOCABULARY * 8 + 18 * 8 * 8 + 12 * EK_MEMORY_UNIT);
  }
}

/* The names of all that is state are those of the model without. */
CK_LOOP(the_same_names, SETTINGS) {
  struct run r[2];
  for (int fused = 0; fused < 2; fused++) {
    open_run(&r[fused], &settings[_i], "plan:2", EK_MODE_SHARDED, fused == 1);
  }
  const ek_replica *a = ek_data_parallel_model_replica(ek_trainer_model(r[0].trainer), 0);
  const ek_replica *b = ek_data_parallel_model_replica(ek_trainer_model(r[1].trainer), 0);
  size_t buffers = 0;
  CK_EACH_PARAMETER(one, b) {
    if (one.buffer) {
      buffers++;
      continue;
    }
    CK_GOT(ek_parameter_info, other, ek_replica_find(&other, a, one.name));
    ck_assert_int_eq(one.offset, other.offset);
    ck_assert(one.no_decay == other.no_decay);
  }
  ck_assert_uint_eq(buffers, settings[_i].weights);
  ck_assert_uint_eq(ek_replica_parameter_count(b) - buffers, ek_replica_parameter_count(a));
}

CK_TEST(refused) {
  const ek_cross_entropy_options loss = criterion_options(&settings[0]);
  const double nan_weight = (double)NAN;
  ek_cross_entropy_options bad = loss;
  ek_module *module = NULL;
  CK_WITH(ek_gpt_options, gpt, EK_GPT_OPTIONS_INIT, .vocabulary = VOCABULARY);
  ck_bad(gpt, loss, &loss, ek_gpt_create(&module, &gpt), "the loss is not fused");
  gpt.fused_loss = true;
  ck_bad(gpt, logits_bytes, 0, ek_gpt_create(&module, &gpt), "logits_bytes is 0");
  gpt.loss = &bad;
  bad.reduction = EK_REDUCTION_NONE;
  ck_invalid(ek_gpt_create(&module, &gpt), "reduction none");
  bad = loss;
  ck_assign(bad, .class_weights = &nan_weight, .classes = 1);
  ck_invalid(ek_gpt_create(&module, &gpt), "class_weights[0]");
  ck_assert_ptr_null(module);
  gpt.loss = &loss;
  uint64_t n = 0;
  while (ck_host_fails(&n, ek_gpt_create(&module, &gpt))) ck_assert_ptr_null(module);
  ck_keep(module);

  /* A criterion beside it would be a second loss. */
  ek_trainer *trainer = NULL;
  CK_SET_UP(struct run, r, open_run(&r, &settings[0], "plan:1", EK_MODE_REPLICATED, true));
  CK_OPENED(ek_criterion *, criterion, ek_cross_entropy_create(&criterion, NULL));
  CK_OPENED(ek_optimizer *, rule, ek_adamw_create(&rule, NULL));
  ck_invalid(ek_trainer_open(&trainer, "plan:1", r.setup.module, criterion, rule, NULL),
             "computes its loss itself");
}

CK_SUITE("fused_loss")
