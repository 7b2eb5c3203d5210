/*
 * check_schedule.c - learning rates at the corners, between them, and for bad arguments.
 */
#include "ek_check.h"

#include <unistd.h>

CK_TEST(constant) {
  CK_GOT(ek_schedule, s, ek_schedule_constant(&s, 0.25));
  const int64_t steps[] = {INT64_MIN, -1, 0, 1, 1000000, INT64_MAX};
  for (size_t i = 0; i < 6; i++) ck_assert(ek_schedule_rate(&s, steps[i]) == 0.25);
  ck_ok(ek_schedule_constant(&s, 0.0));
  ck_assert(ek_schedule_rate(&s, 3) == 0.0);
}

CK_TEST(corners) {
  CK_GOT(ek_schedule, s, ek_schedule_warmup_cosine(&s, 8.0, 2.0, 4, 12));
  ck_assert(ek_schedule_rate(&s, -5) == 2.0); /* counts as step 0 */
  const double warmup[] = {2.0, 4.0, 6.0, 8.0};
  for (int i = 0; i < 4; i++) ck_assert(ek_schedule_rate(&s, i) == warmup[i]);
  ck_assert(ek_schedule_rate(&s, 4) == 8.0); /* the cosine begins at its top */
  /* Half way down cos is 0; pi / 2 in double is off by 6e-17. */
  ck_assert(fabs(ek_schedule_rate(&s, 8) - 5.0) <= 4e-15);
  ck_assert(fabs(ek_schedule_rate(&s, 6) - (2.0 + 3.0 * (1.0 + sqrt(0.5)))) <= 4e-15);
  ck_assert(ek_schedule_rate(&s, 11) > 2.0);
  const int64_t late[] = {12, 13, 1000000, INT64_MAX};
  for (int i = 0; i < 4; i++) ck_assert(ek_schedule_rate(&s, late[i]) == 2.0);

  ck_ok(ek_schedule_warmup_cosine(&s, 1.0, 0.0, 0, 1)); /* one step, no warmup */
  ck_assert(ek_schedule_rate(&s, 0) == 1.0);
  ck_assert(ek_schedule_rate(&s, 1) == 0.0);
  ck_ok(ek_schedule_warmup_cosine(&s, 0.5, 0.5, 1, 9)); /* flat after the first */
  for (int i = 0; i < 10; i++) ck_assert(ek_schedule_rate(&s, i) == 0.5);
  ck_ok(ek_schedule_warmup_cosine(&s, 1.0, 0.0, INT64_MAX - 1, INT64_MAX));
  ck_assert(ek_schedule_rate(&s, INT64_MAX - 1) == 1.0);
  ck_assert(ek_schedule_rate(&s, INT64_MAX) == 0.0);
}

/* A short run ends while its rate rises, and the floor comes after it. */
CK_TEST(shorter_than_its_warmup) {
  for (int64_t total = 1; total <= 8; total++) {
    CK_GOT(ek_schedule, s, ek_schedule_warmup_cosine(&s, 4.0, 0.25, 8, total));
    for (int64_t step = 0; step < total; step++) {
      ck_assert(ek_schedule_rate(&s, step) == 0.5 * (double)(step + 1));
    }
    ck_assert(ek_schedule_rate(&s, total) == 0.25);
  }
}

CK_TEST(formula_and_order) {
  struct ck_random random = ck_random_start(1);
  const double pi = acos(-1.0);
  for (int round = 0; round < 50; round++) {
    const int64_t warmup = ck_random_integer(&random, 0, 40);
    const int64_t total = warmup + ck_random_integer(&random, 1, 200);
    const double floor = ck_random_uniform(&random, 0, 1);
    const double peak = floor + ck_random_uniform(&random, 0, 2);
    CK_GOT(ek_schedule, s, ek_schedule_warmup_cosine(&s, peak, floor, warmup, total));
    double before = -1.0;
    for (int64_t step = 0; step < total + 3; step++) {
      const double rate = ek_schedule_rate(&s, step);
      const double done = (double)(step - warmup) / (double)(total - warmup);
      const double want = step < warmup  ? peak * (double)(step + 1) / (double)warmup
                          : step < total ? floor + (peak - floor) * (1 + cos(pi * done)) / 2
                                         : floor;
      /* Three roundings of numbers up to 3. */
      ck_assert_msg(fabs(rate - want) <= 3 * 3 * 0x1p-53, "step %d of %d: %.17g, not %.17g",
                    (int)step, (int)total, rate, want);
      ck_assert(rate >= 0.0 && rate <= peak);
      if (step < warmup) ck_assert(rate > before);
      if (step > warmup) ck_assert(rate <= before && rate >= floor);
      before = rate;
    }
  }
}

CK_TEST(stable_then_down) {
  static const double want[] = {2, 4, 6, 8, 8, 8, 8, 6.5, 5, 3.5, 2, 2};
  CK_GOT(ek_schedule, s, ek_schedule_warmup_stable(&s, 8, 2, 4, 4, 10));
  for (int i = 0; i < 12; i++) ck_assert(ek_schedule_rate(&s, i) == want[i]);
  ck_ok(ek_schedule_warmup_stable(&s, 8, 0, 2, 8, 10)); /* linear from the end of the warm-up */
  for (int i = 2; i < 11; i++) ck_assert(ek_schedule_rate(&s, i) == (double)(10 - i));
  ck_ok(ek_schedule_warmup_stable(&s, 8, 1, 0, 0, 3)); /* no decay */
  ck_assert(ek_schedule_rate(&s, 2) == 8 && ek_schedule_rate(&s, 3) == 1);
  ck_ok(ek_schedule_warmup_stable(&s, 1, 0, 0, INT64_MAX, INT64_MAX));
  ck_assert(ek_schedule_rate(&s, 0) == 1 && ek_schedule_rate(&s, INT64_MAX) == 0);
}

CK_TEST(down_by_steps) {
  CK_GOT(ek_schedule, s, ek_schedule_steps(&s, 16, 0.5, 3, 3));
  static const double want[] = {16, 16, 16, 8, 8, 8, 4, 4, 4, 3, 3};
  for (int i = 0; i < 11; i++) ck_assert(ek_schedule_rate(&s, i) == want[i]);
  ck_assert(ek_schedule_rate(&s, INT64_MAX) == 3);
}

/* Rates of torch.optim.lr_scheduler.OneCycleLR(max_lr=1, total_steps=10, pct_start=0.3) of PyTorch
 * 2.15. */
CK_TEST(one_cycle_of_torch) {
  static const double want[] = {0.040000000000000036, 0.52, 1.0,
                               0.9504846320134737, 0.8117456539497631, 0.6112620219362893,
                               0.38874197806371075, 0.18825834605023697, 0.049519367986526286,
                               4e-06};
  CK_GOT(ek_schedule, s, ek_schedule_one_cycle(&s, 0.04, 1, 0.04 / 1e4, 3, 10));
  for (int i = 0; i < 10; i++) {
    ck_assert_msg(fabs(ek_schedule_rate(&s, i) - want[i]) <= 4e-16, "step %d: %.17g, not %.17g", i,
                  ek_schedule_rate(&s, i), want[i]);
  }
  ck_assert(ek_schedule_rate(&s, 2) == 1 && ek_schedule_rate(&s, 99) == 0.04 / 1e4);
  ck_ok(ek_schedule_one_cycle(&s, 0.5, 1, 0, 1, 2)); /* begins at its peak */
  ck_assert(ek_schedule_rate(&s, 0) == 1 && ek_schedule_rate(&s, 1) == 0);
}

CK_TEST(others_are_refused) {
  ek_schedule s = {.peak = 3.5}, unknown = {.kind = (ek_schedule_kind)9};
  ck_invalid(ek_schedule_warmup_stable(&s, 1, 0, 4, 7, 10),
             "decay is 7, expected 0 to total - warmup = 6");
  ck_invalid(ek_schedule_warmup_stable(&s, 1, 0, 4, -1, 10), "decay is -1");
  ck_invalid(ek_schedule_warmup_stable(&s, 1, 2, 4, 1, 10), "floor is 2");
  ck_invalid(ek_schedule_steps(&s, 1, 0.5, 0, 0), "period is 0");
  ck_invalid(ek_schedule_steps(&s, 1, 1.5, 1, 0), "factor 1.5");
  ck_invalid(ek_schedule_steps(&s, 1, (double)NAN, 1, 0), "factor");
  ck_invalid(ek_schedule_one_cycle(&s, 2, 1, 0, 3, 10), "first is 2");
  ck_invalid(ek_schedule_one_cycle(&s, 0, 1, 0, 0, 10), "warmup is 0");
  ck_invalid(ek_schedule_one_cycle(&s, 0, 1, 0, 10, 10), "warmup is 10");
  ck_invalid(ek_schedule_check(&unknown), "unknown kind 9");
  ck_invalid(ek_schedule_check(NULL), "schedule is NULL");
  ck_invalid(ek_schedule_function(&s, NULL, NULL), "function");
  ck_assert(s.peak == 3.5);
}

CK_TEST(refused) {
  const double bad[] = {-1e-9, (double)NAN, (double)INFINITY};
  ek_schedule s = {.peak = 3.5};
  ck_invalid(ek_schedule_constant(NULL, 1), "schedule is NULL");
  ck_invalid(ek_schedule_warmup_cosine(NULL, 1, 0, 1, 2), "NULL");
  for (size_t i = 0; i < 3; i++) {
    ck_invalid(ek_schedule_constant(&s, bad[i]), "rate is");
    ck_invalid(ek_schedule_warmup_cosine(&s, bad[i], 0, 1, 2), "peak");
    ck_invalid(ek_schedule_warmup_cosine(&s, 1, bad[i], 1, 2), "floor");
  }
  ck_invalid(ek_schedule_warmup_cosine(&s, 1, 1.5, 1, 2), "floor <= peak");
  ck_invalid(ek_schedule_warmup_cosine(&s, 1, 0, -1, 2), "warmup is -1");
  ck_invalid(ek_schedule_warmup_cosine(&s, 1, 0, 0, 0), "total 0");
  ck_assert(s.peak == 3.5); /* left as it was */
  ck_assert(ek_schedule_rate(NULL, 1) == 0.0);
  for (int kind = EK_SCHEDULE_CONSTANT; kind <= EK_SCHEDULE_FUNCTION + 1; kind++) {
    const ek_schedule bare = {.kind = (ek_schedule_kind)kind}; /* no period, no function */
    ck_assert(ek_schedule_rate(&bare, 1) == 0.0);
  }
}

/* ---- a function of the program's ---- */

struct asked {
  int64_t calls, last;
  double bad; /* given for step 2 until it is 0 */
};

static double falling(int64_t step, void *context) {
  struct asked *asked = context;
  asked->calls++;
  asked->last = step;
  if (step == 2 && asked->bad != 0) return asked->bad;
  return 0.5 / (double)(step + 1);
}

/* Asked once for each step; a bad answer fails the step and changes nothing; no state has it. */
CK_LOOP(a_function_gives_rates, 3) {
  static const double bad[] = {(double)NAN, -1.0, (double)INFINITY};
  struct asked asked = {.bad = bad[_i]};
  const float x[4] = {1, 2, 3, 4}, y[4] = {2, 4, 6, 8};
  const int64_t shape[] = {4, 1}, sizes[] = {1, 1};
  ek_tensor inputs, targets;
  ek_step_result result;
  CK_GOT(ek_schedule, schedule, ek_schedule_function(&schedule, falling, &asked));
  ck_assert(ek_schedule_rate(&schedule, 4) == 0.1 && asked.calls == 1);
  ck_ok(ek_tensor_host(&inputs, (void *)(uintptr_t)x, EK_F32, 2, shape));
  ck_ok(ek_tensor_host(&targets, (void *)(uintptr_t)y, EK_F32, 2, shape));
  ek_data_parallel_optimizer_options update = EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT;
  update.schedule = &schedule;
  CK_WITH(ek_trainer_options, options, EK_TRAINER_OPTIONS_INIT, .optimizer = &update);
  CK_OPENED(ek_module *, line, ek_mlp_create(&line, sizes, 2, EK_ACTIVATION_GELU));
  CK_OPENED(ek_criterion *, loss, ek_mean_squared_error_create(&loss, EK_REDUCTION_MEAN));
  CK_OPENED(ek_optimizer *, adamw, ek_adamw_create(&adamw, NULL));
  CK_OPENED(ek_trainer *, trainer,
            ek_trainer_open(&trainer, ck_spec("cpu:2"), line, loss, adamw, &options));
  for (int64_t i = 0; i < 2; i++) {
    ck_ok(ek_trainer_step(&result, trainer, &inputs, 1, &targets, 1));
    ck_assert(result.learning_rate == 0.5 / (double)(i + 1));
    ck_assert(asked.calls == 2 + i && asked.last == i);
  }
  ck_invalid(ek_trainer_step(&result, trainer, &inputs, 1, &targets, 1), "gives");
  asked.bad = 0;
  ck_ok(ek_trainer_step(&result, trainer, &inputs, 1, &targets, 1));
  ck_assert(result.step == 3 && result.learning_rate == 0.5 / 3);
  const char *folder = ck_text("schedule-%d-%ld", _i, (long)getpid());
  const ek_status saved = ek_trainer_save(trainer, folder, NULL);
  if (saved == EK_ERR_UNSUPPORTED) return; /* built without files */
  ck_ok(saved);
  CK_GOT(ek_checkpoint_info, info, ek_checkpoint_latest(&info, folder));
  ck_assert(!info.has_schedule);
  (void)remove(info.path);
  (void)remove(folder);
}

CK_SUITE("schedule")
