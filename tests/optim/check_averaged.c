/*
 * check_averaged.c - the running average of weights: its formula step after step, over devices in
 * every mode, through a saved state, and as the weights of a file.
 */
#include <unistd.h>

#include "ck_folder.h"
#include "ck_optimizer.h"
#include "ck_state.h"
#include "ck_training.h"

#define DECAY 0.75

static ek_optimizer *make_adamw(void) {
  CK_GOT(ek_optimizer *, rule, ek_adamw_create(&rule, NULL));
  return rule;
}

static ek_optimizer *averaged(ek_optimizer *rule, double decay) {
  CK_GOT(ek_optimizer *, made, ek_averaged_create(&made, rule, decay));
  ek_optimizer_free(rule);
  return made;
}

/* Numbers with few bits, so that all is exact: gradient descent at rate 1/2, decay 3/4. */
CK_RIG_LOOP(the_average_follows, CK_VARIANTS) {
  const double start[] = {1, -2, 3}, gradient[] = {4, 8, -16};
  double p[3] = {0}, average[3] = {0};
  CK_WITH(ek_sgd_options, sgd, EK_SGD_OPTIONS_INIT, .learning_rate = 0.5);
  CK_GOT(ek_optimizer *, rule, ek_sgd_create(&rule, &sgd));
  struct ck_range range = ck_range_open(rig, averaged(rule, DECAY), start, 3);
  ck_assert_uint_eq(ek_optimizer_states(range.optimizer), 1);
  for (int step = 0; step < 5; step++) {
    ck_range_step(&range, gradient, NULL);
    for (int i = 0; i < 3; i++) {
      p[i] = (step == 0 ? start[i] : p[i]) - 0.5 * gradient[i];
      average[i] = step == 0 ? p[i] : average[i] + (1 - DECAY) * (p[i] - average[i]);
    }
    ck_same_bits("parameters", ck_read(rig, range.parameters), p, 3);
    ck_same_bits("average", ck_read(rig, &range.states[0]), average, 3);
  }
}

CK_TEST(what_is_averaged_is_checked) {
  ek_optimizer *made = NULL, *adamw = make_adamw(), *once = NULL, *twice = NULL;
  ck_invalid(ek_averaged_create(NULL, adamw, 0.5), "optimizer is NULL");
  ck_invalid(ek_averaged_create(&made, NULL, 0.5), "rule is NULL");
  static const double decays[] = {-0.1, 1, 2, (double)NAN};
  for (size_t i = 0; i < sizeof decays / sizeof *decays; i++) {
    ck_invalid(ek_averaged_create(&made, adamw, decays[i]), "expected 0 <= decay < 1");
  }
  ck_kept(ek_averaged_create(&once, adamw, 0), once);
  ck_assert_str_eq(ek_optimizer_kind(once), "adamw");
  ck_assert_str_eq(ek_optimizer_table(once)->state_names[2], "average");
  ck_assert(ek_optimizer_learning_rate(once) == ek_optimizer_learning_rate(adamw));
  ck_invalid(ek_averaged_create(&twice, once, 0.5), "called average");
  ck_assert_ptr_null(made);
  ck_assert_ptr_null(twice);
  ek_optimizer_free(adamw);
}

/* ---- over devices ---- */

static ek_status make_rule(ek_optimizer **rule) {
  *rule = averaged(make_adamw(), DECAY);
  return EK_OK;
}

static void open_training(struct ck_training *t, int placement) {
  struct ck_setup setup = ck_setup_at(ck_workload("gpt"), "cpu:3", placement);
  setup.optimizer = make_rule;
  ck_training_open(t, &setup);
}

static void take_step(struct ck_training *t, int number) {
  const struct ck_batch batch = ck_batch_make(ck_workload("gpt"), EK_F32, 7, 0, (uint64_t)number);
  ck_ok(ck_training_step(t, &batch, NULL));
}

enum { COUNT = 13 * 8 };

static void read_entry(double out[COUNT], const struct ck_training *t, const char *name) {
  CK_GOT(ek_tensor, host, ek_tensor_host(&host, out, EK_F64, CK_SHAPE(COUNT)));
  ck_ok(ek_state_read(&host, t->model, name));
}

/* The state is the average of the weights that the steps have left, in every mode; a file gets it
 * in place of the weights. */
CK_LOOP(averages_of_a_model, CK_PLACEMENTS) {
  static const char weight[] = "tokens.weight", state[] = "adamw/average/tokens.weight";
  const char *path = ck_file(ck_folder(), "weights");
  struct ck_training t, other;
  double p[COUNT], average[COUNT] = {0}, got[COUNT];
  CK_WITH(ek_weights_options, options, EK_WEIGHTS_OPTIONS_INIT, .average = true);
  open_training(&t, _i);
  ck_fails(ek_weights_save(t.model, path, &options), EK_ERR_STATE, "no step was taken");
  ck_invalid(ek_weights_load(t.model, path, &options), "average applies to saves");
  for (int step = 0; step < 4; step++) {
    take_step(&t, step);
    read_entry(p, &t, weight);
    read_entry(got, &t, state);
    for (int i = 0; i < COUNT; i++) {
      const double before = average[i];
      average[i] = step == 0 ? p[i] : before + (1 - DECAY) * (p[i] - before);
      /* Three roundings to f32 a step, each damped by the decay: 3 / (1 - decay) of them. */
      const double bound = 12 * 0x1p-24 * (fabs(p[i]) + fabs(average[i]) + fabs(before));
      ck_assert_msg(fabs(got[i] - average[i]) <= (step == 0 ? 0 : bound), "%d: %g, not %g", i,
                    got[i], average[i]);
      average[i] = got[i];
    }
  }
  if (ck_no_files(ek_weights_save(t.model, path, &options))) return;
  open_training(&other, (_i + 1) % CK_PLACEMENTS);
  ck_ok(ek_weights_load(other.model, path, NULL));
  read_entry(p, &other, weight);
  ck_same_bits("weights of the file", p, average, COUNT);
}

/* A plain rule keeps none. */
CK_TEST(a_rule_without_averages) {
  CK_TRAINING(t, ck_setup_mode(ck_workload("gpt"), "cpu:2", EK_MODE_SHARDED),
              .optimizer = ck_plain_adamw);
  CK_WITH(ek_weights_options, options, EK_WEIGHTS_OPTIONS_INIT, .average = true);
  take_step(&t, 0);
  ck_fails(ek_weights_save(t.model, "weights", &options), EK_ERR_STATE, "keeps no average");
}

CK_SUITE("averaged")
