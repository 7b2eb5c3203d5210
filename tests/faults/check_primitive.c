/*
 * check_primitive.c - oneDNN's products of bf16 are taken where the processor has them and they are
 * right, and only there.
 *
 * dnnl_stand_in.c says that the processor has them, and makes them: right, or with a flaw in one
 * form. The library decides once in a process, so each case is a process of its own, begun before
 * this one has used the library. It multiplies small whole numbers, in each kind of product that
 * layers have, and says what came of it. Numbers must be right whatever oneDNN does.
 */
#include "ck_fork.h"
#include "dnnl_stand_in.h"

enum { ROWS = 5, IN = 7, OUT = 6 };

struct outcome {       /* of a process */
  ek_status status[2]; /* of all products, the first time and the second; of a group not opened */
  int wrong;           /* numbers */
  int made, runs;      /* the first time */
  int overlaps;        /* primitives that two threads made at once */
  int runs_later;      /* the second time, of RUNS_LATER where oneDNN is taken */
  int lines;           /* of the log */
  char line[256]; /* the last, or why no group opened */
};
enum { RUNS_LATER = 4 };

static void take_line(void *context, ek_log_level level, const char *line) {
  struct outcome *outcome = context;
  if (level < EK_LOG_WARNING) return;
  outcome->lines++;
  (void)snprintf(outcome->line, sizeof outcome->line, "%s", line);
}

/* ---- products of whole numbers ---- */

/* A number of bf16 with few digits is the upper half of an f32. */
static uint16_t bf16(int x) {
  const float wide = (float)x;
  uint32_t bits = 0;
  memcpy(&bits, &wide, sizeof bits);
  return (uint16_t)(bits >> 16);
}

static int number(int i, int j) { return (3 * i + 5 * j) % 7 - 3; }

struct matrix {
  ek_tensor tensor;
  int64_t rows, columns;
  ek_type type;
};

/* Element (i, j) is number(i, j). */
static ek_status make(struct matrix *matrix, ek_device *device, ek_type type, int64_t rows,
                      int64_t columns) {
  const int64_t shape[] = {rows, columns};
  *matrix = (struct matrix){.rows = rows, .columns = columns, .type = type};
  EK_TRY(ek_tensor_create(&matrix->tensor, device, EK_MEMORY_INPUTS, type, 2, shape));
  for (int64_t i = 0; i < rows * columns; i++) { /* a CPU's memory is the host's */
    const int x = number((int)(i / columns), (int)(i % columns));
    if (type == EK_F32) {
      ((float *)matrix->tensor.data)[i] = (float)x;
    } else {
      ((uint16_t *)matrix->tensor.data)[i] = bf16(x);
    }
  }
  return EK_OK;
}

static int wrong_at(const struct matrix *c, int64_t i, int64_t j, int want) {
  const int64_t at = i * c->columns + j;
  if (c->type == EK_F32) return ((const float *)c->tensor.data)[at] != (float)want;
  return ((const uint16_t *)c->tensor.data)[at] != bf16(want);
}

enum { X, W, BIAS, DY, Y, DX, DW, MORE, MATRICES };

static ek_status multiply(struct matrix *all, ek_stream *stream) {
  EK_TRY(ek_op_linear(stream, &all[Y].tensor, &all[X].tensor, &all[W].tensor, &all[BIAS].tensor));
  EK_TRY(ek_op_matmul(stream, &all[DX].tensor, &all[DY].tensor, false, &all[W].tensor, false, 0));
  EK_TRY(
      ek_op_linear_gradients(stream, &all[DW].tensor, NULL, &all[DY].tensor, &all[X].tensor, 1, 0));
  return ek_op_matmul(stream, &all[MORE].tensor, &all[DY].tensor, true, &all[DX].tensor, false, 2);
}

static int count_wrong(const struct matrix *all) {
  int wrong = 0, dx[ROWS][IN] = {{0}};
  for (int i = 0; i < ROWS; i++) {
    for (int j = 0; j < OUT; j++) {
      int sum = number(0, j);
      for (int p = 0; p < IN; p++) sum += number(i, p) * number(j, p);
      wrong += wrong_at(&all[Y], i, j, sum);
    }
    for (int j = 0; j < IN; j++) {
      for (int p = 0; p < OUT; p++) dx[i][j] += number(i, p) * number(p, j);
      wrong += wrong_at(&all[DX], i, j, dx[i][j]);
    }
  }
  for (int i = 0; i < OUT; i++) {
    for (int j = 0; j < IN; j++) {
      int dw = number(i, j), more = 2 * number(i, j);
      for (int p = 0; p < ROWS; p++) dw += number(p, i) * number(p, j);
      for (int p = 0; p < ROWS; p++) more += number(p, i) * dx[p][j];
      wrong += wrong_at(&all[DW], i, j, dw) + wrong_at(&all[MORE], i, j, more);
    }
  }
  return wrong;
}

static ek_status make_all_and_multiply(int *wrong, ek_device *device) {
  struct matrix all[MATRICES];
  memset(all, 0, sizeof all);
  ek_status status = EK_OK;
  const int64_t sizes[MATRICES][2] = {
      [X] = {ROWS, IN},  [W] = {OUT, IN},   [BIAS] = {1, OUT}, [DY] = {ROWS, OUT},
      [Y] = {ROWS, OUT}, [DX] = {ROWS, IN}, [DW] = {OUT, IN},  [MORE] = {OUT, IN}};
  for (int i = 0; i < MATRICES && status == EK_OK; i++) {
    status = make(&all[i], device, i == DW ? EK_F32 : EK_BF16, sizes[i][0], sizes[i][1]);
  }
  if (status == EK_OK) status = multiply(all, ek_device_stream(device, EK_STREAM_COMPUTE));
  if (status == EK_OK) *wrong += count_wrong(all);
  for (int i = 0; i < MATRICES; i++) ek_tensor_free(&all[i].tensor);
  return status;
}

/* ---- a process of its own ---- */

CK_JOB(on_device) {
  int *wrong = context;
  return make_all_and_multiply(&wrong[index], device);
}

static void live(struct outcome *outcome, const char *spec) {
  ek_group *group = NULL;
  CK_WITH(ek_group_options, options, EK_GROUP_OPTIONS_INIT, .threads_per_device = 1);
  ek_log_set(EK_LOG_WARNING, take_line, outcome);
  outcome->status[0] = ek_group_open(&group, spec, &options);
  if (outcome->status[0] != EK_OK) { /* all other numbers are 0 */
    (void)snprintf(outcome->line, sizeof outcome->line, "%s", ek_error_message());
    _exit(0);
  }
  for (int i = 0; i < 2; i++) {
    int wrong[4] = {0};
    const int runs = atomic_load(&dnnl_stand_in.runs);
    outcome->status[i] = ek_group_apply(group, on_device, wrong);
    for (int device = 0; device < 4; device++) outcome->wrong += wrong[device];
    if (i == 0) outcome->made = atomic_load(&dnnl_stand_in.made);
    if (i == 0) outcome->runs = atomic_load(&dnnl_stand_in.runs);
    outcome->overlaps = atomic_load(&dnnl_stand_in.overlaps);
    if (i == 1) outcome->runs_later = atomic_load(&dnnl_stand_in.runs) - runs;
  }
  _exit(ek_group_close(group) == EK_OK ? 0 : 2);
}

static struct outcome run_on(const char *spec, enum dnnl_stand_in_flaw flaw, int form,
                             const char *variable, const char *value) {
  int code = -1;
  struct outcome *shared = ck_shared(sizeof *shared);
  if (ck_forked(&code)) {
    ck_assign(dnnl_stand_in, .flaw = flaw, .form = form);
    (void)unsetenv("EVENKEEL_PRODUCTS");
    (void)unsetenv("EVENKEEL_ISA");
    if (variable != NULL) (void)setenv(variable, value, 1);
    live(shared, spec);
  }
  ck_assert_msg(code == 0, "flaw %d, form %d: exit %d", (int)flaw, form, code);
  ck_assert_msg(shared->wrong == 0, "flaw %d, form %d: %d wrong", (int)flaw, form, shared->wrong);
  return *shared;
}

static struct outcome run_with(enum dnnl_stand_in_flaw flaw, int form) {
  return run_on("cpu:1", flaw, form, NULL, NULL);
}

static void all_went_well(const struct outcome *outcome) {
  ck_assert_int_eq(outcome->status[0], EK_OK);
  ck_assert_int_eq(outcome->status[1], EK_OK);
}

/* ---- cases ---- */

CK_TEST(right_products_are_taken) {
  const struct outcome outcome = run_with(DNNL_RIGHT, DNNL_EVERY_FORM);
  all_went_well(&outcome);
  ck_assert_int_eq(outcome.runs_later, RUNS_LATER);
  ck_assert_int_ge(outcome.made, DNNL_FORMS + RUNS_LATER);
  ck_assert_int_eq(outcome.lines, 0);
}

/* All devices begin at once, one of them proves; then each makes its primitives, and no two do at
 * once. */
CK_TEST(they_are_proven_once) {
  const struct outcome one = run_with(DNNL_RIGHT, DNNL_EVERY_FORM);
  const struct outcome four = run_on("cpu:4", DNNL_RIGHT, DNNL_EVERY_FORM, NULL, NULL);
  all_went_well(&four);
  ck_assert_int_eq(four.runs_later, 4 * RUNS_LATER);
  ck_assert_int_eq(four.runs - 4 * RUNS_LATER, one.runs - RUNS_LATER);
  ck_assert_int_eq(four.overlaps, 0);
}

static void is_refused(enum dnnl_stand_in_flaw flaw, int form) {
  const struct outcome outcome = run_with(flaw, form);
  all_went_well(&outcome);
  ck_assert_msg(outcome.runs_later == 0, "flaw %d, form %d: taken", (int)flaw, form);
  ck_assert_msg(outcome.lines == 1 && strstr(outcome.line, "own routine for bf16") != NULL,
                "flaw %d, form %d: %d lines, %s", (int)flaw, form, outcome.lines, outcome.line);
}

CK_LOOP(one_wrong_form_and_none_is_taken, DNNL_FORMS) { is_refused(DNNL_WRONG_NUMBER, _i); }

CK_LOOP(wrong_where_tiles_end, DNNL_FORMS) { is_refused(DNNL_WRONG_REST, _i); }

CK_LOOP(wrong_elsewhere, DNNL_FORMS) {
  is_refused(DNNL_WRONG_GAP, _i);
  const int result = _i / 4; /* the third and the last read c */
  if (result != 2 && result != 4) is_refused(DNNL_READS_C, _i);
}

CK_LOOP(failures, 3) {
  static const enum dnnl_stand_in_flaw flaws[] = {DNNL_NO_PLAN, DNNL_NO_PRIMITIVE, DNNL_NO_RUN};
  is_refused(flaws[_i], DNNL_EVERY_FORM);
  is_refused(flaws[_i], 6);
}

/* The product says so, and the next one tries again. */
CK_LOOP(a_lack_of_memory_decides_nothing, 3) {
  const struct outcome outcome = run_with(DNNL_NO_MEMORY, 4 * _i + 1);
  ck_assert_int_eq(outcome.status[0], EK_ERR_OUT_OF_MEMORY);
  ck_assert_int_eq(outcome.status[1], EK_OK);
  ck_assert_int_ge(outcome.runs_later, RUNS_LATER);
  ck_assert_int_eq(outcome.lines, 0);
}

/* What oneDNN has nothing for is our own; the rest is not. */
CK_TEST(forms_that_it_has_not) {
  const struct outcome outcome =
      run_with(DNNL_NOTHING, dnnl_stand_in_form(0, 1, 0, 1, 0)); /* a linear's */
  all_went_well(&outcome);
  ck_assert_int_eq(outcome.runs_later, RUNS_LATER - 1);
}

static struct outcome wish(const char *variable, const char *value) {
  const struct outcome outcome = run_on("cpu:1", DNNL_RIGHT, DNNL_EVERY_FORM, variable, value);
  all_went_well(&outcome);
  return outcome;
}

CK_TEST(wishes_of_the_environment) {
  ck_assert_int_eq(wish("EVENKEEL_PRODUCTS", "own").made, 0);
  ck_assert_int_eq(wish("EVENKEEL_ISA", "avx2").made, 0);
  ck_assert_int_eq(wish("EVENKEEL_PRODUCTS", "matmul").runs_later, RUNS_LATER);
  dnnl_stand_in.absent = 1; /* here, and so in what begins here */
  ck_assert_int_eq(wish("EVENKEEL_PRODUCTS", "").made, 0);
  const struct outcome forced = wish("EVENKEEL_PRODUCTS", "matmul-bf16");
  dnnl_stand_in.absent = 0;
  ck_assert_int_eq(forced.runs, RUNS_LATER);
  ck_assert_int_eq(forced.runs_later, RUNS_LATER);
}

/* Among them is the value that chose the library's own tiles until 23 November 2026. */
CK_LOOP(unknown_wishes_open_nothing, 5) {
  static const struct {
    const char *variable, *value, *expected;
  } cases[] = {{"EVENKEEL_PRODUCTS", "tiles", "own, matmul, matmul-bf16"},
               {"EVENKEEL_PRODUCTS", "Own", "own, matmul, matmul-bf16"},
               {"EVENKEEL_PRODUCTS", "matmul ", "own, matmul, matmul-bf16"},
               {"EVENKEEL_PRODUCTS", "matmul-f16", "own, matmul, matmul-bf16"},
               {"EVENKEEL_ISA", "AVX2", "baseline, avx2, avx512"}};
  const char *variable = cases[_i].variable, *value = cases[_i].value;
  const char *want =
      ck_text("%s: unknown value \"%s\"; expected %s", variable, value, cases[_i].expected);
  const struct outcome outcome = run_on("cpu:2", DNNL_RIGHT, DNNL_EVERY_FORM, variable, value);
  ck_assert_int_eq(outcome.status[0], EK_ERR_INVALID_ARGUMENT);
  ck_assert_msg(strstr(outcome.line, want) != NULL, "%s", outcome.line);
}

CK_SUITE("primitive")
