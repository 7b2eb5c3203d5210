/*
 * process_training.c - parts of check_processes.c that train: see process_training.h.
 */
#include "process_training.h"

double hash_of_tensor(const ek_tensor *tensor) {
  return (double)(ck_hash(CK_HASH, tensor->data, ek_tensor_bytes(tensor)) >> 12);
}

/* Records a status, and whether the message has these words. */
static void record(struct ck_outcome *outcome, ek_status status, const char *words) {
  ck_outcome_add(outcome, (double)status);
  ck_outcome_add(outcome, status == EK_OK || strstr(ek_error_message(), words) != NULL);
}

/* ---- trainings ---- */

/* Some steps overflow and some do not. */
static const ek_loss_scale restless = {
    .kind = EK_LOSS_SCALE_DYNAMIC, .scale = 1 << 14, .growth = 64, .backoff = 0.5, .interval = 1};

/* Batch norm with the statistics of all devices of all processes, on pictures. */
enum { SIDE = 8, KINDS_OF_PICTURES = 3, IMAGE_WIDTH = 4 };

static ek_status resnet(ek_module **module) {
  CK_WITH(ek_batch_norm_options, norm, EK_BATCH_NORM_OPTIONS_INIT, .over = EK_BATCH_NORM_ALL);
  CK_WITH(ek_resnet_options, options, EK_RESNET_OPTIONS_INIT, .norm = &norm, .width = IMAGE_WIDTH,
          .classes = KINDS_OF_PICTURES, .small_pictures = true);
  return ek_resnet_create(module, &options);
}

CK_ENTROPY(cross_entropy, .reduction = reduction)

static const struct ck_workload pictures = {
    "pictures", resnet, cross_entropy, CK_SAMPLE(CK_ROW(SIDE, SIDE, 3), CK_LABELS(1)),
    KINDS_OF_PICTURES, false};

static const struct ck_workload *workload_of(const char *name) {
  return strcmp(name, pictures.name) == 0 ? &pictures : ck_workload(name);
}

const struct training trainings[TRAININGS + INSIDE + ANY] = {
#define TRAIN(part_, workload_, mode_, ...)                                                        \
  {.part = part_, .workload = workload_, .mode = EK_MODE_##mode_, __VA_ARGS__}
#define IN(type) .precision = EK_PRECISION_##type
#define INSIDE_ONE .shard_over = EK_SHARD_PROCESS
    TRAIN("gpt", "gpt", REPLICATED, IN(DEFAULT)),
    TRAIN("mlp", "mlp", REPLICATED, .gradient_in_forward = true),
    TRAIN("mixer", "mixer", REPLICATED, IN(DEFAULT)),
    TRAIN("gpt bf16", "gpt", REPLICATED, IN(BF16)),
    TRAIN("gpt f16", "gpt", REPLICATED, IN(F16), .loss_scale = &restless,
          .gradient_in_forward = true),
    TRAIN("gpt sharded", "gpt", SHARDED, IN(DEFAULT)),
    TRAIN("mlp sharded-gradients", "mlp", SHARDED_GRADIENTS, IN(BF16)),
    TRAIN("gpt fully-sharded", "gpt", FULLY_SHARDED, IN(DEFAULT)),
    TRAIN("pictures", "pictures", REPLICATED, IN(DEFAULT)),
    TRAIN("pictures sharded", "pictures", SHARDED, IN(DEFAULT)),
    /* Shares within each process: other sums if it has several devices. */
    TRAIN("gpt sharded inside", "gpt", SHARDED, INSIDE_ONE, .gradient_in_forward = true),
    TRAIN("mlp sharded-gradients inside", "mlp", SHARDED_GRADIENTS, INSIDE_ONE, IN(BF16)),
    TRAIN("gpt fully-sharded inside", "gpt", FULLY_SHARDED, INSIDE_ONE, .muon = true),
    /* Whatever the processes and devices. */
    TRAIN("any gpt", "gpt", REPLICATED, .reproducible = 6),
    TRAIN("any gpt sharded", "gpt", SHARDED, IN(F16), .loss_scale = &restless,
          .reproducible = 4, .muon = true),
    TRAIN("any mlp sharded-gradients", "mlp", SHARDED_GRADIENTS, IN(BF16), .reproducible = 8),
    TRAIN("any gpt fully-sharded", "gpt", FULLY_SHARDED, .gradient_in_forward = true,
          .reproducible = 5, .muon = true),
    TRAIN("any pictures", "pictures", REPLICATED, .reproducible = 6),
    TRAIN("any pictures fully-sharded", "pictures", FULLY_SHARDED, .reproducible = 4)};

enum { STEPS = 4, MICRO_BATCHES = 2 };

/* Samples of each rank: uneven, none at all, and none in a whole process. */
static const int64_t sizes[STEPS * MICRO_BATCHES][RANKS] = {
    {2, 3, 1, 2}, {1, 1, 1, 1}, {0, 3, 2, 1}, {1, 0, 0, 2},
    {4, 1, 0, 0}, {0, 0, 2, 3}, {1, 2, 3, 4}, {3, 0, 1, 0}};

/* The same for reproducible models, whose processes have what their grains need. */
static const int64_t grain_samples[STEPS * MICRO_BATCHES] = {8, 4, 6, 3, 13, 1, 10, 2};

/* Numbers that all devices have, once for each of them. */
static void add_everywhere(struct ck_outcome *outcome, const struct ck_process *process,
                           const double *numbers, size_t count) {
  for (size_t i = 0; i < count; i++) {
    for (size_t k = 0; k < process->devices[process->number]; k++) {
      ck_outcome_add(outcome, numbers[i]);
    }
  }
}

static void add_hash(struct ck_outcome *outcome, const struct ck_process *process,
                     const ek_tensor *tensor) {
  const double hash = hash_of_tensor(tensor);
  add_everywhere(outcome, process, &hash, 1);
}

/* Those of each device. */
static void add_parameters(struct ck_outcome *outcome, const ek_data_parallel_model *model,
                           size_t devices) {
  for (size_t k = 0; k < devices; k++) {
    const ek_replica *replica = ek_data_parallel_model_replica(model, k);
    ck_outcome_add(outcome, hash_of_tensor(ek_replica_parameters(replica)));
  }
}

/* This process's samples of a micro-batch, which all processes make alike. */
static ek_status add_micro_batch(struct ck_outcome *outcome, struct ck_training *training,
                                 const struct ck_process *process, int number, bool accumulate) {
  int64_t first = 0, own = 0, all = 0;
  double loss = 0;
  ek_scatter_options scatter = EK_SCATTER_OPTIONS_INIT;
  for (size_t rank = 0; rank < process->world; rank++) {
    const size_t device = rank - process->first_rank; /* huge below the first */
    if (rank < process->first_rank) first += sizes[number][rank];
    if (device < process->devices[process->number]) own += sizes[number][rank];
    all += sizes[number][rank];
  }
  ck_assign(scatter, .kind = EK_SCATTER_SIZES, .sizes = &sizes[number][process->first_rank]);
  const size_t grains = training->setup.options.reproducible;
  if (grains > 0) {
    all = grain_samples[number];
    EK_TRY(ek_world_rows(&first, &own, training->group, all, grains));
  }
  struct ck_batch whole =
      ck_batch_make(training->setup.workload, EK_F32, all, 0.2, (uint64_t)number);
  const struct ck_batch batch = ck_batch_samples(&whole, first, own);
  const ek_status status =
      ck_training_backward(training, &batch, grains > 0 ? NULL : &scatter, accumulate, &loss);
  add_everywhere(outcome, process, &loss, 1);
  return status;
}

/* Running statistics of a model of pictures: its first norm's, and its last one's. */
static ek_status add_buffers(struct ck_outcome *outcome, const struct ck_training *training,
                             const struct ck_process *process) {
  static const char *const names[] = {"bn1.running_var", "layer4.1.bn2.running_mean"};
  static const int64_t widths[] = {IMAGE_WIDTH, 8 * IMAGE_WIDTH};
  for (int i = 0; i < 2; i++) {
    double numbers[8 * IMAGE_WIDTH];
    ek_tensor host;
    EK_TRY(ek_tensor_host(&host, numbers, EK_F64, 1, &widths[i]));
    EK_TRY(ek_state_read(&host, training->model, names[i]));
    add_everywhere(outcome, process, numbers, (size_t)widths[i]);
  }
  return EK_OK;
}

static ek_status train_steps(struct ck_outcome *outcome, struct ck_training *training,
                             const struct ck_process *process) {
  for (int step = 0; step < STEPS; step++) {
    ek_step_result result = {0};
    for (int i = 0; i < MICRO_BATCHES; i++) {
      EK_TRY(add_micro_batch(outcome, training, process, step * MICRO_BATCHES + i,
                             i + 1 < MICRO_BATCHES));
    }
    EK_TRY(ek_data_parallel_optimizer_step(&result, training->optimizer));
    const double numbers[] = {result.loss,         result.weight,  result.gradient_norm,
                              (double)result.step, result.skipped, result.loss_scale};
    add_everywhere(outcome, process, numbers, 6);
  }
  if (training->setup.workload == &pictures) EK_TRY(add_buffers(outcome, training, process));
  EK_TRY(ek_group_synchronize(training->group));
  add_parameters(outcome, training->model, process->devices[process->number]);
  return EK_OK;
}

void train(struct ck_outcome *outcome, const struct ck_process *process) {
  const struct training *it = trainings;
  struct ck_training training;
  while (strcmp(it->part, process->part) != 0) it++;
  /* One process has whole copies too, to compare with. */
  const bool inside = it->shard_over == EK_SHARD_PROCESS;
  struct ck_setup setup =
      ck_setup_mode(workload_of(it->workload), "",
                    inside && process->count == 1 ? EK_MODE_REPLICATED : it->mode);
  ck_assign(setup, .options.seed = 5, .options.precision = it->precision,
            .options.bucket_bytes = 4096 /* several */, .options.shard_over = it->shard_over,
            .options.reproducible = it->reproducible,
            .optimizer = it->muon ? ck_clipped_muon : ck_clipped_adamw,
            .loss_scale = it->loss_scale, .gradient_in_forward = it->gradient_in_forward);
  CK_PROCESS_GROUP(group, outcome, process, 0);
  if (ck_went(outcome, ck_training_try(&training, &setup, group))) {
    ck_went(outcome, train_steps(outcome, &training, process));
    ck_training_free(&training);
  }
}

/* ---- memory, and what is refused ---- */

/* Peaks of this process's devices, and what `plan` counts for them in the same place. */
void count_memory(struct ck_outcome *outcome, const struct ck_process *process) {
  ek_group *groups[2] = {NULL, NULL};
  const char *spec = ck_text("plan:%zu", process->devices[process->number]);
  CK_WITH(ek_group_options, options, EK_GROUP_OPTIONS_INIT, .first_rank = process->first_rank,
          .world_size = process->world);
  if (!ck_went(outcome, ck_process_open(&groups[0], process, 0))) return;
  ck_went(outcome, ek_group_open(&groups[1], spec, &options));
  for (int i = 0; i < 2 && outcome->status == EK_OK; i++) {
    const struct ck_setup setup = ck_setup_mode(ck_workload("gpt"), "", EK_MODE_SHARDED);
    const int64_t samples = (int64_t)process->devices[process->number];
    struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, samples, 0, 1);
    struct ck_training training;
    if (!ck_went(outcome, ck_training_try(&training, &setup, groups[i]))) break;
    ck_went(outcome, ck_training_step(&training, &batch, NULL));
    for (size_t k = 0; k < ek_group_size(groups[i]); k++) {
      ek_memory_usage usage = {0};
      ck_went(outcome, ek_memory_stats(&usage, ek_group_device(groups[i], k)));
      ck_outcome_add(outcome, (double)usage.peak_bytes);
      ck_outcome_add(outcome, (double)usage.at_peak[EK_MEMORY_COMMUNICATION]);
    }
    ck_training_free(&training);
  }
  ck_went(outcome, ek_group_close(groups[1]));
  ck_went(outcome, ek_group_close(groups[0]));
}

/* A process with rows of another one's grains. */
void wrong_rows(struct ck_outcome *outcome, const struct ck_process *process) {
  struct ck_training training;
  struct ck_setup setup = ck_setup_mode(ck_workload("mlp"), "", EK_MODE_REPLICATED);
  struct ck_batch whole = ck_batch_make(setup.workload, EK_F32, 6, 0, 1);
  int64_t first = 0, count = 0;
  ck_assign(setup, .options.reproducible = 4, .optimizer = ck_clipped_adamw);
  CK_PROCESS_GROUP(group, outcome, process, 0);
  if (ck_went(outcome, ck_training_try(&training, &setup, group)) &&
      ck_went(outcome, ek_world_rows(&first, &count, group, 6, 4))) {
    const struct ck_batch other = ck_batch_samples(&whole, 0, process->number == 0 ? 2 : 4);
    const struct ck_batch batch = ck_batch_samples(&whole, first, count);
    record(outcome, ck_training_backward(&training, &other, NULL, false, NULL), "ek_world_rows");
    ck_went(outcome, ck_training_backward(&training, &batch, NULL, false, NULL));
    ck_training_free(&training);
  }
}

void differ_in_devices(struct ck_outcome *outcome, const struct ck_process *process) {
  struct ck_training training;
  struct ck_setup setup = ck_setup_mode(ck_workload("mlp"), "", EK_MODE_SHARDED);
  setup.options.shard_over = EK_SHARD_PROCESS;
  CK_PROCESS_GROUP(group, outcome, process, 0);
  ck_went(outcome, ck_training_try(&training, &setup, group));
}

void refusals(struct ck_outcome *outcome, const struct ck_process *process) {
  struct ck_training training;
  CK_PROCESS_GROUP(group, outcome, process, 0);
  for (int mode = 0; mode < 2; mode++) {
    struct ck_setup setup = ck_setup_mode(ck_workload("mlp"), "", (ek_mode)mode);
    record(outcome, ck_training_try(&training, &setup, group), "process");
  }
}

/* ---- state ---- */

/* What all processes read of an entry. */
static void read_entry(struct ck_outcome *outcome, const struct ck_process *process,
                       const struct ck_training *training, const char *name) {
  static float values[4096], part[7];
  ek_state_info info;
  if (!ck_went(outcome, ek_state_find(&info, training->model, name))) return;
  CK_WITH(ek_tensor, host, info.like, .data = values);
  if (!ck_went(outcome, ek_state_read(&host, training->model, name))) return;
  add_hash(outcome, process, &host);
  host = (ek_tensor){.data = part, .type = EK_F32, .rank = 1, .shape = {7}};
  if (!ck_went(outcome, ek_state_read_range(&host, training->model, name, 3))) return;
  if (memcmp(part, values + 3, sizeof part) != 0) ck_went(outcome, EK_ERR_INTERNAL);
}

/* A parameter, its state, and its gradient between backward and update. */
static void read_state(struct ck_outcome *outcome, const struct ck_process *process,
                       ek_group *group, ek_mode mode, ek_precision precision) {
  static float values[4096];
  struct ck_setup setup = ck_setup_mode(ck_workload("mlp"), "", mode);
  struct ck_training training;
  ek_step_result result;
  struct ck_batch whole = ck_batch_make(setup.workload, EK_F32, 2 * (int64_t)process->world, 0, 1);
  const struct ck_batch batch =
      ck_batch_samples(&whole, 2 * (int64_t)process->first_rank,
                       2 * (int64_t)process->devices[process->number]);
  ek_state_info info;
  ck_assign(setup, .optimizer = ck_clipped_adamw, .options.precision = precision,
            .options.bucket_bytes = 1024);
  if (!ck_went(outcome, ck_training_try(&training, &setup, group))) return;
  if (ck_went(outcome, ck_training_step(&training, &batch, &result)) &&
      ck_went(outcome, ck_training_backward(&training, &batch, NULL, false, NULL)) &&
      ck_went(outcome, ek_state_entry(&info, training.model, 0))) {
    CK_WITH(ek_tensor, host, info.like, .data = values);
    ck_went(outcome, ek_data_parallel_model_gradient(&host, training.model, info.name));
    add_hash(outcome, process, &host);
    read_entry(outcome, process, &training, info.name);
    read_entry(outcome, process, &training, ck_state_name(&training, info.name, 0));
  }
  ck_training_free(&training);
}

void read_states(struct ck_outcome *outcome, const struct ck_process *process) {
  CK_PROCESS_GROUP(group, outcome, process, 0);
  read_state(outcome, process, group, EK_MODE_REPLICATED, EK_PRECISION_DEFAULT);
  read_state(outcome, process, group, EK_MODE_SHARDED, EK_PRECISION_BF16);
  read_state(outcome, process, group, EK_MODE_SHARDED_GRADIENTS, EK_PRECISION_DEFAULT);
  read_state(outcome, process, group, EK_MODE_FULLY_SHARDED, EK_PRECISION_DEFAULT);
}

/* Two steps and a save, by `begin` and `end` or at once; or a load of the last one, two steps and
 * the parameters that they make. Reproducible: any processes go on where others stopped. */
void save_or_load(struct ck_outcome *outcome, const struct ck_process *process) {
  const bool saves = strncmp(process->part, "save ", 5) == 0;
  ek_mode mode = EK_MODE_GATHER;
  while (strcmp(ek_mode_name(mode), process->part + 5) != 0) mode++;
  struct ck_training training;
  ek_checkpoint_info info = {.step = 0};
  ek_checkpoint_write *write = NULL;
  const char *folder = getenv(FOLDER_VARIABLE);
  CK_WITH(struct ck_setup, setup, ck_setup_mode(ck_workload("gpt"), "", mode),
          .optimizer = ck_clipped_muon, .options.reproducible = 4, .options.bucket_bytes = 4096,
          .options.seed = saves ? 5 : 6);
  CK_WITH(ek_checkpoint_options, options, EK_CHECKPOINT_OPTIONS_INIT, .position = 77, .keep = 1);
  CK_PROCESS_GROUP(group, outcome, process, 0);
  if (!ck_went(outcome, ck_training_try(&training, &setup, group))) return;
  if (!saves) ck_went(outcome, ek_checkpoint_load(&info, training.model, folder));
  for (int step = 0; step < 2 && outcome->status == EK_OK; step++) {
    int64_t first = 0, count = 0;
    ek_step_result result = {0};
    struct ck_batch whole =
        ck_batch_make(setup.workload, EK_F32, 8, 0.2, (uint64_t)(info.position + step));
    ck_went(outcome, ek_world_rows(&first, &count, group, 8, 4));
    const struct ck_batch batch = ck_batch_samples(&whole, first, count);
    ck_went(outcome, ck_training_step(&training, &batch, &result));
    ck_outcome_add(outcome, result.loss);
    if (saves && step == 0) {
      (void)(ck_went(outcome, ek_checkpoint_begin(&write, training.model, folder, &options)) &&
             ck_went(outcome, ek_checkpoint_end(write)));
    }
  }
  if (saves) ck_went(outcome, ek_checkpoint_save(training.model, folder, &options));
  ck_outcome_add(outcome, (double)info.position);
  ck_outcome_add(outcome, (double)info.step);
  ck_training_free(&training);
}

/* ---- a trainer, and a model that computes its loss itself ---- */

enum { PARTS = 2 };

/* A process's samples of a batch of PARTS samples for each rank: micro-batch m of all processes
 * together is that of one process. */
static struct ck_batch own_samples(const struct ck_batch *whole, const struct ck_process *process) {
  const int64_t own = (int64_t)process->devices[process->number];
  struct ck_batch result = ck_batch_make(ck_workload("gpt"), EK_F32, PARTS * own, 0, 1);
  for (int64_t m = 0; m < PARTS; m++) {
    const int64_t from = m * (int64_t)process->world + (int64_t)process->first_rank;
    const struct ck_batch source = ck_batch_samples(whole, from, own);
    const struct ck_batch to = ck_batch_samples(&result, m * own, own);
    for (size_t i = 0; i < to.inputs; i++) {
      memcpy(to.input[i].data, source.input[i].data, (size_t)ek_tensor_bytes(&to.input[i]));
    }
    for (size_t i = 0; i < to.targets; i++) {
      memcpy(to.target[i].data, source.target[i].data, (size_t)ek_tensor_bytes(&to.target[i]));
    }
  }
  return result;
}

/* A step in one call, or in two; *loss: of its last micro-batch. */
static ek_status trainer_step(ek_step_result *result, double *loss, ek_trainer *trainer,
                              const struct ck_batch *batch, bool begin) {
  EK_TRY((begin ? ek_trainer_step_begin(trainer, batch->input, batch->inputs, batch->target,
                                        batch->targets)
                : ek_trainer_step(result, trainer, batch->input, batch->inputs, batch->target,
                                  batch->targets)));
  if (begin) EK_TRY(ek_trainer_step_end(result, trainer));
  return ek_data_parallel_criterion_loss(loss, NULL, ek_trainer_criterion(trainer));
}

/* Steps, and then a loss without gradient. */
static ek_status trainer_steps(struct ck_outcome *outcome, ek_trainer *trainer,
                               const struct ck_process *process) {
  const struct ck_workload *workload = ck_workload("gpt");
  for (int step = 0; step <= STEPS; step++) {
    struct ck_batch whole =
        ck_batch_make(workload, EK_F32, PARTS * (int64_t)process->world, 0.2, (uint64_t)step);
    struct ck_batch batch = own_samples(&whole, process);
    ek_step_result result = {0};
    double loss = 0;
    const ek_status status =
        step < STEPS ? trainer_step(&result, &loss, trainer, &batch, step % 2 == 1)
                     : ek_trainer_evaluate(&result.loss, &result.weight, trainer, batch.input,
                                           batch.inputs, batch.target, batch.targets);
    EK_TRY(status);
    const double numbers[] = {result.loss, result.weight, result.gradient_norm, result.loss_scale,
                              loss};
    add_everywhere(outcome, process, numbers, 5);
  }
  add_parameters(outcome, ek_trainer_model(trainer), process->devices[process->number]);
  return EK_OK;
}

void use_trainer(struct ck_outcome *outcome, const struct ck_process *process) {
  CK_PROCESS_GROUP(group, outcome, process, 0);
  ek_trainer *trainer = NULL;
  CK_WITH(struct ck_setup, setup, ck_setup_mode(ck_workload("gpt"), "", EK_MODE_REPLICATED),
          .options.precision = EK_PRECISION_F16, .options.bucket_bytes = 0, .own_loss = true,
          .loss_scale = &restless, .group = group, .micro_batches = PARTS);
  if (ck_went(outcome, ck_trainer_try(&trainer, &setup))) {
    ck_went(outcome, trainer_steps(outcome, trainer, process));
  }
  ck_went(outcome, ek_trainer_close(trainer));
}
