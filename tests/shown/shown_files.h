/*
 * shown_files.h - what headers show of states and files. A part of test_shown.c, as how_do_i.h.
 */
#ifndef SHOWN_FILES_H
#define SHOWN_FILES_H

static ek_status copy_state(const ek_data_parallel_model *from, ek_data_parallel_model *to) {
#include "state_1.inc"
  return EK_OK;
}

SHOWN(shown_state) { return copy_state(s->model, s->model); }

static ek_status write_file(const ek_safetensors_entry *entries, const float *const *data,
                            const size_t *bytes) {
  ek_safetensors_writer *writer = NULL;
  ek_status status = EK_OK;
#include "safetensors_2.inc"
  return status;
}

static ek_status read_file(float *numbers) {
  ek_status status = EK_OK;
  ek_tensor host;
#undef SHOWN_REST
#define SHOWN_REST                                                                                 \
  host = entry->like;                                                                              \
  host.data = numbers
#include "safetensors_1.inc"
#undef SHOWN_REST
#define SHOWN_REST ((void)0)
  return status;
}

SHOWN(shown_files) {
  static const float numbers[] = {1, 2, 3};
  const float *const data[] = {numbers, numbers + 1};
  const size_t bytes[] = {sizeof numbers, 2 * sizeof *numbers};
  float read[3];
  ek_safetensors_entry entries[] = {{"a", {.type = EK_F32, .rank = 1, .shape = {3}}},
                                    {"b", {.type = EK_F32, .rank = 2, .shape = {1, 2}}}};
  ek_status status = write_file(entries, data, bytes);
  if (status == EK_ERR_UNSUPPORTED) return EK_OK; /* built without */
  if (status == EK_OK) status = read_file(read);
  if (status == EK_OK) ck_assert(read[0] == 2.0f && read[1] == 3.0f);
  (void)remove("model.safetensors");
  return status;
}

static ek_status save_run(const ek_data_parallel_model *model, int64_t position) {
#include "checkpoint_1.inc"
  return EK_OK;
}

static ek_status save_sampler(const ek_data_parallel_model *model) {
  ek_checkpoint_options options = EK_CHECKPOINT_OPTIONS_INIT;
  int64_t numbers[4] = {1, 2, 3, 4};
#include "checkpoint_3.inc"
  return EK_OK;
}

static ek_status load_sampler(ek_tensor sampler) {
  ek_checkpoint_info info;
  ek_safetensors *file = NULL;
  EK_TRY(ek_checkpoint_latest(&info, "run"));
#include "checkpoint_4.inc"
  return status;
}

static ek_status load_run(ek_data_parallel_model *model, int64_t *where) {
  int64_t position = 0;
#include "checkpoint_2.inc"
  *where = position;
  return EK_OK;
}

static ek_status load_weights(ek_data_parallel_model *model) {
#include "weights_1.inc"
  return EK_OK;
}

/* The folder is not there, so the piece ends at its first line. */
static ek_status read_folder(ek_criterion *loss, ek_optimizer *rule) {
  ek_module *module = NULL;
  ek_trainer *trainer = NULL;
#include "model_folder_1.inc"
  return EK_OK;
}

static const char shown_state_file[] = "run/step-000000000000.safetensors";

/* Saved once: a load that failed halfway leaves a torn model, which the next load mends. */
SHOWN(shown_checkpoint) {
  int64_t position = 0;
  FILE *file = fopen(shown_state_file, "rb");
  int64_t numbers[4] = {0};
  const ek_tensor sampler = {.data = numbers, .type = EK_I64, .rank = 1, .shape = {4}};
  ek_status status = file == NULL ? save_sampler(s->model) : EK_OK;
  if (status == EK_OK && file == NULL) EK_TRY(load_sampler(sampler));
  if (file == NULL && status == EK_OK) {
    ck_assert_int_eq(numbers[3], 4);
    status = save_run(s->model, 17);
  }
  if (file != NULL) (void)fclose(file);
  if (status == EK_ERR_UNSUPPORTED) return EK_OK; /* built without */
  EK_TRY(status);
  EK_TRY(load_run(s->model, &position));
  const ek_status nobodys = load_weights(s->model);
  if (nobodys == EK_ERR_OUT_OF_MEMORY) return nobodys;
  ck_assert_int_eq(nobodys, EK_ERR_NOT_FOUND);
  const ek_status nowhere = read_folder(NULL, NULL);
  if (nowhere == EK_ERR_OUT_OF_MEMORY) return nowhere;
  ck_assert_int_eq(nowhere, EK_ERR_NOT_FOUND);
  ck_assert_int_eq(position, 17);
  return EK_OK;
}

static ek_status trace_steps(ek_group *group) {
#include "trace_1.inc"
  return EK_OK;
}

SHOWN(shown_trace) {
  const ek_status status = trace_steps(s->group);
  (void)remove("trace.json");
  return status;
}

static ek_status take_snapshots(ek_group *group) {
#include "memory_snapshot_1.inc"
  return EK_OK;
}

SHOWN(shown_snapshot) {
  const ek_status status = take_snapshots(s->group);
  ck_ok(ek_memory_snapshot_when_full(s->group, NULL));
  (void)remove("now.pickle");
  return status;
}

static ek_status watch_steps(ek_group *group) {
  ek_metrics *metrics = NULL;
  const ek_step_result result = {.step = 1};
  const double tokens = 7;
  ek_status status = EK_OK;
#include "metrics_1.inc"
}

SHOWN(shown_metrics) {
  const ek_status status = watch_steps(s->group);
  (void)remove("run.prom");
  (void)remove("run.jsonl");
  return status;
}

static ek_status step_on_files(ek_trainer *trainer) {
  const int steps = 2;
  ek_status status = EK_OK;
#include "data_loader_1.inc"
}

static ek_status run_on_files(ek_trainer *trainer) {
  ek_status status = EK_OK;
#include "trainer_run_1.inc"
}

/* A model of its own, on devices of its own. */
static ek_status train_on_files(ek_status (*train_so)(ek_trainer *trainer)) {
  CK_FREED(module) *gpt = NULL;
  CK_FREED(criterion) *loss = NULL;
  CK_FREED(optimizer) *sgd = NULL;
  SHOWN_TRAINER *trainer = NULL;
  uint16_t tokens[100];
  for (int i = 0; i < 100; i++) tokens[i] = (uint16_t)(i % VOCABULARY);
  ck_write_file("train-0.bin", tokens, sizeof tokens);
  EK_TRY(ek_gpt_create(&gpt, NULL));
  EK_TRY(ek_cross_entropy_create(&loss, NULL));
  EK_TRY(ek_sgd_create(&sgd, NULL));
  EK_TRY(ek_trainer_open(&trainer, "cpu:2", gpt, loss, sgd, NULL));
  return train_so(trainer);
}

SHOWN(shown_loader) {
  const ek_status status = train_on_files(step_on_files);
  (void)remove("train-0.bin");
  return status;
}

SHOWN(shown_run) {
  const ek_status status = train_on_files(run_on_files);
  (void)remove("train-0.bin");
  (void)remove("text-run/step-000000000005.safetensors");
  (void)remove("text-run");
  return status == EK_ERR_UNSUPPORTED ? EK_OK : status; /* built without files */
}

#endif /* SHOWN_FILES_H */
