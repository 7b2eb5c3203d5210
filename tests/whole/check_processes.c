/*
 * check_processes.c - several processes on one machine: what they compute has the bits of one
 * process with all the devices, and what one of them suffers is an error in all.
 *
 * Each test runs a part in processes of their own (ck_processes.h), which record and do not assert.
 */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ck_folder.h"
#include "ck_mirror.h"
#include "ck_processes.h"
#include "ck_training.h"

/* Of the parts that end by a time limit, in seconds. */
#define SHORT_LIMIT (1.0 * (1 + CK_TSAN))

/* NCCL has memory of its own, which no plan counts; and a process that is late, or in another
 * collective, is seen by NCCL, at the time limit of the group. */
static bool on_gpus(void) { return getenv("EVENKEEL_TEST_PROCESSES") != NULL; }

static void fails_with(const struct ck_outcome *outcome, ek_status status, const char *words) {
  ck_assert_msg(outcome->whole && outcome->exit == 0, "ended with %d", outcome->exit);
  ck_assert_msg(outcome->status == status && strstr(outcome->message, words) != NULL,
                "%s: %s, expected %s and \"%s\"", ek_status_name(outcome->status), outcome->message,
                ek_status_name(status), words);
}

/* ---- collectives ---- */

enum { RANKS = 4, KINDS = 5, COUNTS = 3, TYPES = 5 };

static const ek_type types[TYPES] = {EK_F32, EK_F64, EK_BF16, EK_F16, EK_I32};
static const int64_t counts[COUNTS] = {1, 37, CK_TSAN ? 30001 : 300001};

/* A collective that all devices of a process run on tensors of their own. */
struct collective {
  ek_communicator *communicator;
  ek_tensor *tensors; /* one per device */
  const int64_t *offsets;
  int kind;
  size_t root;
};

static ek_status run_one(const struct collective *c, ek_device *device, ek_tensor *tensor) {
  switch (c->kind) {
  case 0: return ek_communicator_broadcast(c->communicator, device, tensor, c->root);
  case 1: return ek_communicator_reduce(c->communicator, device, tensor, c->root);
  case 2: return ek_communicator_all_reduce(c->communicator, device, tensor);
  case 3: return ek_communicator_reduce_scatter(c->communicator, device, tensor, c->offsets);
  default: return ek_communicator_all_gather(c->communicator, device, tensor, c->offsets);
  }
}

CK_JOB(run_collective) {
  const struct collective *c = context;
  EK_TRY(run_one(c, device, &c->tensors[index]));
  return ek_communicator_wait(c->communicator, device);
}

/* Bytes of a rank's tensor whose sums depend on their order: no NaN in any type of floats. */
static void fill(unsigned char *bytes, ek_type type, int64_t count, size_t rank) {
  uint32_t state = (uint32_t)(rank + 1) * 2654435761u;
  for (int64_t i = 0; i < count; i++) {
    state = state * 1664525u + 1013904223u;
    const float value = ((float)(state >> 8) / 8388608.0f - 1.0f) * (float)(1 + state % 7);
    const double wide = (double)value / 3.0;
    uint32_t word = 0;
    memcpy(&word, &value, sizeof word);
    /* Of f16: a sign, an exponent near 0 and random digits. */
    uint16_t half = (uint16_t)(type == EK_F16 ? 0x3000u + (word >> 10 & 0x8bffu) : word >> 16);
    switch (type) {
    case EK_F64: memcpy(bytes + i * 8, &wide, sizeof wide); break;
    case EK_BF16:
    case EK_F16: memcpy(bytes + i * 2, &half, sizeof half); break;
    default: memcpy(bytes + i * 4, &word, sizeof word);
    }
  }
}

/* Runs a job, and waits for what it has left on streams. */
static ek_status run_job(ek_group *group, ek_apply_function job, void *context) {
  EK_TRY(ek_group_apply(group, job, context));
  return ek_group_synchronize(group);
}

static double hash_of(const unsigned char *bytes, size_t count) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (size_t i = 0; i < count; i++) hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
  return (double)(hash >> 12);
}

/* One on each device. */
static ek_status make_tensors(ek_tensor *tensors, size_t devices, ek_group *group, ek_type type,
                              int64_t count) {
  for (size_t k = 0; k < devices; k++) {
    EK_TRY(ek_tensor_create(&tensors[k], ek_group_device(group, k), EK_MEMORY_INPUTS, type, 1,
                            &count));
  }
  return EK_OK;
}

static ek_status collective_case(struct ck_outcome *outcome, const struct ck_process *process,
                                 ek_group *group, struct collective *c, ek_type type,
                                 int64_t count) {
  ek_tensor tensors[RANKS] = {{0}};
  ek_status status = EK_OK;
  const size_t bytes = (size_t)count * ek_type_size(type);
  const size_t devices = process->devices[process->number];
  c->tensors = tensors;
  EK_TRY_GOTO(status, make_tensors(tensors, devices, group, type, count), cleanup);
  for (size_t k = 0; k < devices; k++) fill(tensors[k].data, type, count, process->first_rank + k);
  EK_TRY_GOTO(status, run_job(group, run_collective, c), cleanup);
  for (size_t k = 0; k < devices; k++) ck_outcome_add(outcome, hash_of(tensors[k].data, bytes));
cleanup:
  for (size_t k = 0; k < devices; k++) ek_tensor_free(&tensors[k]);
  return status;
}

/* Parts of ranks: rising, with an empty one. */
static void cut(int64_t offsets[RANKS + 1], int64_t count, size_t ranks) {
  const int64_t squares = (int64_t)(ranks * ranks);
  for (size_t i = 0; i <= ranks; i++) offsets[i] = count * (int64_t)(i * i) / squares;
  if (ranks > 2) offsets[1] = 0;
}

static void all_collectives(struct ck_outcome *outcome, const struct ck_process *process) {
  struct collective c = {0};
  int64_t offsets[RANKS + 1];
  CK_PROCESS_GROUP(group, outcome, process, 0);
  if (ck_went(outcome, ek_communicator_open(&c.communicator, group))) {
    for (int i = 0; i < KINDS * TYPES * COUNTS && outcome->status == EK_OK; i++) {
      const ek_type type = types[i / KINDS % TYPES];
      const int64_t count = counts[i / KINDS / TYPES];
      ck_assign(c, .kind = i % KINDS, .root = process->world - 1, .offsets = offsets);
      cut(offsets, count, process->world);
      if (type == EK_I32 && c.kind > 0 && c.kind < 4) continue; /* sums of floats alone */
      ck_went(outcome, collective_case(outcome, process, group, &c, type, count));
    }
  }
  ek_communicator_free(c.communicator);
}

/* What the ranks of all processes have, against those of one process. Each outcome has `blocks`
 * times a number for each of its devices. */
static void ranks_agree(const struct ck_outcome *got, const size_t *devices, size_t count,
                        const struct ck_outcome *want, size_t ranks) {
  const size_t blocks = want->count / ranks;
  ck_assert_uint_gt(blocks, 0);
  for (size_t i = 0, first = 0; i < count; first += devices[i], i++) {
    ck_assert_uint_eq(got[i].count, blocks * devices[i]);
    for (size_t k = 0; k < got[i].count; k++) {
      const size_t block = k / devices[i], rank = first + k % devices[i];
      const double number = got[i].numbers[k], other = want->numbers[block * ranks + rank];
      ck_assert_msg(number == other || (isnan(number) && isnan(other)),
                    "block %zu of rank %zu is not that of one process", block, rank);
    }
  }
}

static const struct {
  size_t count, devices[CK_PROCESSES];
} places[] = {{2, {2, 2}}, {2, {1, 2}}, {2, {3, 1}}, {3, {1, 2, 1}}, {4, {1, 1, 1, 1}}};

enum { PLACES = sizeof places / sizeof places[0] };

static size_t world_of(int place) {
  size_t world = 0;
  for (size_t i = 0; i < places[place].count; i++) world += places[place].devices[i];
  return world;
}

/* A part in these processes, and in one process with all their devices. */
static void agrees_with_one_process(const char *part,
                                    void (*run)(struct ck_outcome *, const struct ck_process *),
                                    int place) {
  const size_t world = world_of(place), count = places[place].count;
  const struct ck_outcome *want = ck_processes_alone(part, run, world);
  const struct ck_outcome *got = ck_processes_done(part, places[place].devices, count);
  ranks_agree(got, places[place].devices, count, want, world);
}

CK_LOOP(collectives_have_the_bits_of_one_process, PLACES) {
  agrees_with_one_process("collectives", all_collectives, _i);
}

/* Sums of small integers are exact in any order. */
static void fill_whole(ek_tensor *tensor, size_t rank) {
  for (int64_t i = 0; i < tensor->shape[0]; i++) {
    ck_put(tensor, i, (double)(rank + 1) * (double)(i % 7));
  }
}

/* Elements that are wrong: first .. last - 1 are the sum over the ranks, the others have stayed. */
static double wrong_sums(const ek_tensor *tensor, size_t rank, int64_t first, int64_t last,
                         size_t ranks) {
  double wrong = 0;
  for (int64_t i = 0; i < tensor->shape[0]; i++) {
    const size_t times = i >= first && i < last ? ranks * (ranks + 1) / 2 : rank + 1;
    wrong += ck_at(tensor, i) != (double)times * (double)(i % 7);
  }
  return wrong;
}

static ek_status folded_case(struct ck_outcome *outcome, const struct ck_process *process,
                             ek_group *group, struct collective *c, ek_type type, int64_t count) {
  ek_tensor tensors[RANKS] = {{0}};
  ek_status status = EK_OK;
  const size_t devices = process->devices[process->number];
  c->tensors = tensors;
  EK_TRY_GOTO(status, make_tensors(tensors, devices, group, type, count), cleanup);
  for (size_t k = 0; k < devices; k++) fill_whole(&tensors[k], process->first_rank + k);
  EK_TRY_GOTO(status, run_job(group, run_collective, c), cleanup);
  for (size_t k = 0; k < devices; k++) {
    const size_t rank = process->first_rank + k;
    const bool cut_up = c->kind == 3, none = c->kind == 1 && rank != c->root;
    const int64_t first = cut_up ? c->offsets[rank] : 0;
    const int64_t last = cut_up ? c->offsets[rank + 1] : none ? 0 : count;
    ck_outcome_add(outcome, wrong_sums(&tensors[k], rank, first, last, process->world));
  }
cleanup:
  for (size_t k = 0; k < devices; k++) ek_tensor_free(&tensors[k]);
  return status;
}

/* reduce, all_reduce and reduce_scatter, where the devices of a process are added up first. */
static void folded_sums(struct ck_outcome *outcome, const struct ck_process *process) {
  ek_group *group = NULL;
  struct collective c = {.root = process->world - 1};
  int64_t offsets[RANKS + 1];
  if (!ck_went(outcome, ck_process_open_folding(&group, process, 0))) return;
  if (ck_went(outcome, ek_communicator_open(&c.communicator, group))) {
    for (int i = 0; i < 3 * 2 * COUNTS && outcome->status == EK_OK; i++) {
      ck_assign(c, .kind = 1 + i % 3, .offsets = offsets);
      cut(offsets, counts[i / 6], process->world);
      ck_went(outcome, folded_case(outcome, process, group, &c, types[i / 3 % 2], counts[i / 6]));
    }
  }
  ek_communicator_free(c.communicator);
  ck_went(outcome, ek_group_close(group));
}

CK_LOOP(devices_of_a_process_are_added_up_first, PLACES) {
  struct ck_outcome *outcomes = ck_processes_done("folded", places[_i].devices, places[_i].count);
  for (size_t p = 0; p < places[_i].count; p++) {
    ck_assert_uint_eq(outcomes[p].count, 18 * places[_i].devices[p]);
    for (size_t k = 0; k < outcomes[p].count; k++) ck_assert_double_eq(outcomes[p].numbers[k], 0);
  }
}

/* ---- training ---- */

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

/* Runs of training, by the names of their parts. */
static const struct training {
  const char *part, *workload;
  ek_mode mode;
  ek_precision precision;
  const ek_loss_scale *loss_scale;
  bool gradient_in_forward;
  ek_shard_over shard_over;
  size_t reproducible;
  bool muon;
} trainings[] = {
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

enum { ALL = sizeof trainings / sizeof trainings[0], ANY = 6, INSIDE = 3 };
enum { TRAININGS = ALL - INSIDE - ANY };
enum { STEPS = 4, MICRO_BATCHES = 2 };

/* Samples of each rank: uneven, none at all, and none in a whole process. */
static const int64_t sizes[STEPS * MICRO_BATCHES][RANKS] = {
    {2, 3, 1, 2}, {1, 1, 1, 1}, {0, 3, 2, 1}, {1, 0, 0, 2},
    {4, 1, 0, 0}, {0, 0, 2, 3}, {1, 2, 3, 4}, {3, 0, 1, 0}};

/* The same for reproducible models, whose processes have what their grains need. */
static const int64_t grain_samples[STEPS * MICRO_BATCHES] = {8, 4, 6, 3, 13, 1, 10, 2};

static void add_everywhere(struct ck_outcome *outcome, const struct ck_process *process,
                           double number) {
  for (size_t k = 0; k < process->devices[process->number]; k++) ck_outcome_add(outcome, number);
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
  add_everywhere(outcome, process, loss);
  return status;
}

/* Running statistics of a model of pictures: its first norm's, and its last one's. */
static ek_status add_buffers(struct ck_outcome *outcome, const struct ck_training *training,
                             const struct ck_process *process) {
  static const char *const names[] = {"bn1.running_var", "layer4.1.bn2.running_mean"};
  static const int64_t widths[] = {IMAGE_WIDTH, 8 * IMAGE_WIDTH};
  for (int i = 0; i < 2; i++) {
    float numbers[8 * IMAGE_WIDTH];
    ek_tensor host;
    EK_TRY(ek_tensor_host(&host, numbers, EK_F32, 1, &widths[i]));
    EK_TRY(ek_state_read(&host, training->model, names[i]));
    for (int64_t k = 0; k < widths[i]; k++) add_everywhere(outcome, process, (double)numbers[k]);
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
    for (size_t i = 0; i < 6; i++) add_everywhere(outcome, process, numbers[i]);
  }
  if (training->setup.workload == &pictures) EK_TRY(add_buffers(outcome, training, process));
  EK_TRY(ek_group_synchronize(training->group));
  for (size_t k = 0; k < process->devices[process->number]; k++) {
    const ek_replica *replica = ek_data_parallel_model_replica(training->model, k);
    const ek_tensor *flat = ek_replica_parameters(replica);
    ck_outcome_add(outcome, hash_of(flat->data, (size_t)ek_tensor_bytes(flat)));
  }
  return EK_OK;
}

static void train(struct ck_outcome *outcome, const struct ck_process *process) {
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

/* The first in all places, the others in two of them. */
CK_LOOP(training_has_the_bits_of_one_process, PLACES + 2 * (TRAININGS - 1)) {
  const int more = _i - PLACES;
  if (more < 0) {
    agrees_with_one_process(trainings[0].part, train, _i);
  } else {
    agrees_with_one_process(trainings[1 + more / 2].part, train, 1 + more % 2 * 2);
  }
}

/* ---- memory ---- */

/* Peaks of this process's devices, and what `plan` counts for them in the same place. */
static void count_memory(struct ck_outcome *outcome, const struct ck_process *process) {
  ek_group *groups[2] = {NULL, NULL};
  char spec[32];
  (void)snprintf(spec, sizeof spec, "plan:%zu", process->devices[process->number]);
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

CK_TEST(memory_is_what_plan_counts) {
  if (on_gpus()) return;
  const size_t devices[] = {1, 2};
  struct ck_outcome *outcomes = ck_processes_done("memory", devices, 2);
  for (size_t i = 0; i < 2; i++) {
    ck_assert_uint_eq(outcomes[i].count, 4 * devices[i]);
    for (size_t k = 0; k < 2 * devices[i]; k++) {
      ck_assert_double_eq(outcomes[i].numbers[k], outcomes[i].numbers[2 * devices[i] + k]);
      ck_assert_double_gt(outcomes[i].numbers[k], 0);
    }
  }
}

/* Only the order of sums differs: numbers of the steps are close (each is a sum of thousands of
 * roundings of 2^-24, or of 2^-8 in bf16), and all processes have the same. */
CK_LOOP(shares_inside_processes, 2 * INSIDE) {
  const struct training *it = &trainings[TRAININGS + _i / 2];
  const size_t count = _i % 2 == 0 ? 4 : 2, each = 4 / count, even[] = {each, each, each, each};
  const double tolerance = it->precision == EK_PRECISION_BF16 ? 0.05 : 1e-4;
  const struct ck_outcome *want = ck_processes_alone(it->part, train, 4);
  const struct ck_outcome *outcomes = ck_processes_done(it->part, even, count);
  ck_assert_uint_eq(outcomes[0].count, want->count / count);
  for (size_t i = 0; i + each < outcomes[0].count; i++) { /* without the hashes of parameters */
    const double own = outcomes[0].numbers[i], other = want->numbers[i / each * 4];
    for (size_t p = 1; p < count; p++) {
      ck_assert_msg(own == outcomes[p].numbers[i], "number %zu: %g and %g", i, own,
                    outcomes[p].numbers[i]);
    }
    ck_assert_msg(fabs(own - other) <= tolerance * fmax(1, fabs(other)),
                  "number %zu: %.9g, not %.9g", i, own, other);
  }
}

/* Losses, norms and parameters of one device, of four, and of processes that have them in any way.
 * The hash of parameters is of all shares of a process together. */
CK_LOOP(reproducible_over_any_processes, ANY * PLACES) {
  const struct training *it = &trainings[TRAININGS + INSIDE + _i / PLACES];
  const int place = _i % PLACES;
  const size_t *devices = places[place].devices, count = places[place].count;
  const struct ck_outcome *want = ck_processes_alone(it->part, train, 1);
  const struct ck_outcome *outcomes = ck_processes_done(it->part, devices, count);
  for (size_t p = 0; p < count; p++) {
    ck_assert_uint_eq(outcomes[p].count, want->count * devices[p]);
    for (size_t i = 0; i < outcomes[p].count; i++) {
      const bool hash = i / devices[p] + 1 == want->count;
      const double own = outcomes[p].numbers[i], other = want->numbers[i / devices[p]];
      if (hash && it->mode == EK_MODE_FULLY_SHARDED) continue; /* of a share */
      if (hash && it->precision != EK_PRECISION_DEFAULT) continue; /* masters are shares */
      ck_assert_msg(own == other || (isnan(own) && isnan(other)),
                    "process %zu, number %zu: %.17g, not %.17g", p, i, own, other);
    }
  }
}

/* A process with rows of another one's grains. */
static void wrong_rows(struct ck_outcome *outcome, const struct ck_process *process) {
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
    const ek_status status = ck_training_backward(&training, &other, NULL, false, NULL);
    ck_outcome_add(outcome, (double)status);
    ck_outcome_add(outcome, strstr(ek_error_message(), "ek_world_rows") != NULL);
    ck_went(outcome, ck_training_backward(&training, &batch, NULL, false, NULL));
    ck_training_free(&training);
  }
}

CK_TEST(rows_of_other_grains_are_refused) {
  const size_t devices[] = {1, 1};
  struct ck_outcome *outcomes = ck_processes_done("wrong rows", devices, 2);
  for (size_t p = 0; p < 2; p++) {
    ck_assert_uint_eq(outcomes[p].count, 2);
    ck_assert_int_eq((ek_status)outcomes[p].numbers[0], EK_ERR_SHAPE);
    ck_assert_double_eq(outcomes[p].numbers[1], 1);
  }
}

static void differ_in_devices(struct ck_outcome *outcome, const struct ck_process *process) {
  struct ck_training training;
  struct ck_setup setup = ck_setup_mode(ck_workload("mlp"), "", EK_MODE_SHARDED);
  setup.options.shard_over = EK_SHARD_PROCESS;
  CK_PROCESS_GROUP(group, outcome, process, 0);
  ck_went(outcome, ck_training_try(&training, &setup, group));
}

CK_TEST(shares_inside_need_as_many_devices_everywhere) {
  const size_t devices[] = {1, 2};
  struct ck_outcome *outcomes = ck_processes_outcomes("differ in devices", devices, 2);
  for (size_t i = 0; i < 2; i++) {
    fails_with(&outcomes[i], EK_ERR_INVALID_ARGUMENT, "the same number of devices");
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
  add_everywhere(outcome, process, hash_of(host.data, (size_t)ek_tensor_bytes(&host)));
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
    add_everywhere(outcome, process, hash_of(host.data, (size_t)ek_tensor_bytes(&host)));
    read_entry(outcome, process, &training, info.name);
    read_entry(outcome, process, &training, ck_state_name(&training, info.name, 0));
  }
  ck_training_free(&training);
}

static void read_states(struct ck_outcome *outcome, const struct ck_process *process) {
  CK_PROCESS_GROUP(group, outcome, process, 0);
  read_state(outcome, process, group, EK_MODE_REPLICATED, EK_PRECISION_DEFAULT);
  read_state(outcome, process, group, EK_MODE_SHARDED, EK_PRECISION_BF16);
  read_state(outcome, process, group, EK_MODE_SHARDED_GRADIENTS, EK_PRECISION_DEFAULT);
  read_state(outcome, process, group, EK_MODE_FULLY_SHARDED, EK_PRECISION_DEFAULT);
}

CK_LOOP(state_and_gradients_are_whole, PLACES) {
  agrees_with_one_process("read states", read_states, _i);
}

/* ---- files of a run ---- */

#define FOLDER_VARIABLE "CK_PROCESSES_FOLDER"

/* Two steps and a save, by `begin` and `end` or at once; or a load of the last one, two steps and
 * the parameters that they make. Reproducible: any processes go on where others stopped. */
static void save_or_load(struct ck_outcome *outcome, const struct ck_process *process) {
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

CK_LOOP(a_run_goes_on_in_other_processes, PLACES) {
  static const char *const savers[] = {"save sharded", "save fully-sharded"};
  static const char *const loaders[] = {"load replicated", "load sharded-gradients"};
  const int next = (_i + 1) % PLACES;
  const char *folder = ck_folder();
  ck_assert_int_eq(setenv(FOLDER_VARIABLE, folder, 1), 0);
  (void)ck_processes_done(savers[_i % 2], places[_i].devices, places[_i].count);
  const struct ck_outcome *want = ck_processes_alone("load replicated", save_or_load, 1);
  ck_assert_double_eq(want->numbers[2], 77);
  ck_assert_double_eq(want->numbers[3], 2);
  const struct ck_outcome *outcomes =
      ck_processes_done(loaders[_i % 2], places[next].devices, places[next].count);
  for (size_t p = 0; p < places[next].count; p++) {
    ck_assert_uint_eq(outcomes[p].count, want->count);
    for (size_t i = 0; i < want->count; i++) {
      ck_assert_msg(outcomes[p].numbers[i] == want->numbers[i], "number %zu of process %zu", i, p);
    }
  }
  /* The last one alone was kept. */
  ck_assert_int_eq(unlink(ck_state_file(folder, 2)), 0);
}

/* ---- what is refused ---- */

/* Records a status, and whether the message has these words. */
static void record(struct ck_outcome *outcome, ek_status status, const char *words) {
  ck_outcome_add(outcome, (double)status);
  ck_outcome_add(outcome, status == EK_OK || strstr(ek_error_message(), words) != NULL);
}

static void refusals(struct ck_outcome *outcome, const struct ck_process *process) {
  struct ck_training training;
  CK_PROCESS_GROUP(group, outcome, process, 0);
  for (int mode = 0; mode < 2; mode++) {
    struct ck_setup setup = ck_setup_mode(ck_workload("mlp"), "", (ek_mode)mode);
    record(outcome, ck_training_try(&training, &setup, group), "process");
  }
}

CK_TEST(what_needs_one_process_is_refused) {
  const ek_status no = EK_ERR_UNSUPPORTED;
  const ek_status want[] = {no, no}; /* gather, balanced */
  const size_t devices[] = {1, 2}, count = sizeof want / sizeof want[0];
  struct ck_outcome *outcomes = ck_processes_done("refusals", devices, 2);
  for (size_t i = 0; i < 2 * count; i++) {
    const struct ck_outcome *outcome = &outcomes[i / count];
    ck_assert_uint_eq(outcome->count, 2 * count);
    ck_assert_msg((ek_status)outcome->numbers[2 * (i % count)] == want[i % count] &&
                      outcome->numbers[2 * (i % count) + 1] == 1,
                  "number %zu in process %zu: %s", i % count, i / count,
                  ek_status_name((ek_status)outcome->numbers[2 * (i % count)]));
  }
}

/* ---- failures ---- */

enum disaster { DIES, HANGS, STOPS, FAILS, OTHER_COLLECTIVE, DISASTERS };

static const char *const disasters[] = {"dies", "hangs", "stops", "fails", "other collective"};

struct failing_job {
  struct collective collective;
  const struct ck_process *process;
  enum disaster disaster;
  bool second; /* the first round went well everywhere */
};

/* The whole process, which another one continues. */
static void stop_for(unsigned seconds) {
  const pid_t self = getpid(), other = fork();
  if (other == 0) {
    sleep(seconds);
    (void)kill(self, SIGCONT);
    _exit(0);
  }
  (void)kill(self, SIGSTOP);
  (void)waitpid(other, NULL, 0);
}

/* Process 1 does it, on its last device, when the first job has gone well. */
CK_JOB(meet_disaster) {
  struct failing_job *job = context;
  struct collective c = job->collective;
  const bool victim =
      job->second && job->process->number == 1 && index + 1 == job->process->devices[1];
  if (victim && job->disaster == DIES) (void)raise(SIGKILL);
  if (victim && job->disaster == STOPS) stop_for((unsigned)(3 * SHORT_LIMIT + 1));
  if (victim && job->disaster == HANGS) sleep((unsigned)(SHORT_LIMIT + 1));
  if (victim && job->disaster == FAILS) return ek_error_set(EK_ERR_SHAPE, "a victim's own words");
  if (job->second && job->process->number == 1 && job->disaster == OTHER_COLLECTIVE) c.kind = 0;
  EK_TRY(run_one(&c, device, &c.tensors[index]));
  return ek_communicator_wait(c.communicator, device);
}

/* After the error: the next collective works, or has the same error if a process is lost. */
static void look_after(struct ck_outcome *outcome, ek_group *group, struct failing_job *job) {
  const ek_status again = run_job(group, run_collective, &job->collective);
  ck_outcome_add(outcome, (double)again);
  const char *why = strstr(outcome->message, "process "); /* a replica's name may come before it */
  ck_outcome_add(outcome, again == EK_OK || strstr(ek_error_message(), why) != NULL);
}

static void disaster(struct ck_outcome *outcome, const struct ck_process *process) {
  enum disaster kind = DIES;
  while (strcmp(disasters[kind], process->part) != 0) kind++;
  ek_group *group = NULL;
  ek_tensor tensors[RANKS] = {{0}};
  const int64_t count = 100000;
  struct failing_job job = {.process = process, .disaster = kind};
  job.collective = (struct collective){.tensors = tensors, .kind = 2};
  if (!ck_went(outcome, ck_process_open(&group, process, SHORT_LIMIT))) return;
  bool well = ck_went(outcome, ek_communicator_open(&job.collective.communicator, group));
  for (size_t k = 0; k < process->devices[process->number] && well; k++) {
    well = ck_went(outcome,
                   ek_tensor_create(&tensors[k], ek_group_device(group, k), EK_MEMORY_INPUTS,
                                    EK_F32, 1, &count));
    if (well) memset(tensors[k].data, 0, (size_t)count * sizeof(float));
  }
  well = well && ck_went(outcome, run_job(group, meet_disaster, &job));
  job.second = true;
  if (well && ck_went(outcome, run_job(group, meet_disaster, &job))) {
    outcome->status = EK_ERR_INTERNAL;
    (void)snprintf(outcome->message, sizeof outcome->message, "nothing failed");
  }
  if (well) look_after(outcome, group, &job);
  for (size_t k = 0; k < RANKS; k++) ek_tensor_free(&tensors[k]);
  ek_communicator_free(job.collective.communicator);
  const ek_status freed = ek_group_close(group);
  ck_outcome_add(outcome, (double)freed);
}

/* It has failed as it should, in time, has gone on if no process is lost, and could be freed. */
static void has_ended(const struct ck_outcome *outcome, ek_status status, const char *words,
                      ek_status next) {
  fails_with(outcome, status, words);
  ck_assert_double_lt(outcome->seconds, 4 * SHORT_LIMIT + 5);
  ck_assert_uint_eq(outcome->count, 3);
  ck_assert_int_eq((ek_status)outcome->numbers[0], next);
  ck_assert_double_eq(outcome->numbers[1], 1);
  ck_assert_int_eq((ek_status)outcome->numbers[2], EK_OK);
}

CK_LOOP(an_error_in_one_process_is_one_in_all, 2 * DISASTERS) {
  static const struct {
    ek_status own, others;
    const char *said, *heard;
    ek_status next;
  } expected[DISASTERS] = {
      [DIES] = {EK_OK, EK_ERR_UNAVAILABLE, "", "process 1 on ", EK_ERR_UNAVAILABLE},
      [HANGS] = {EK_ERR_UNAVAILABLE, EK_ERR_UNAVAILABLE, "process 1 on ", "process 1 on ",
                 EK_ERR_UNAVAILABLE},
      [STOPS] = {EK_ERR_UNAVAILABLE, EK_ERR_UNAVAILABLE, "process 1 on ", "gave no sign of life",
                 EK_ERR_UNAVAILABLE},
      [FAILS] = {EK_ERR_SHAPE, EK_ERR_SHAPE, "process 1 on", "a victim's own words", EK_OK},
      [OTHER_COLLECTIVE] = {EK_ERR_SHAPE, EK_ERR_SHAPE, "in a broadcast of 100000 f32",
                            "process 0 is in an all_reduce of 100000 f32", EK_OK}};
  const enum disaster kind = (enum disaster)(_i / 2);
  const bool waits = kind == HANGS || kind == STOPS; /* a case of seconds is seen once */
  const size_t devices[] = {2, 2, 1}, count = 2 + (size_t)_i % 2;
  if (waits && count == 2) return;
  if (on_gpus() && kind != DIES && kind != FAILS) return;
  struct ck_outcome *outcomes = ck_processes_outcomes(disasters[kind], devices, count);
  for (size_t i = 0; i < count; i++) {
    if (i != 1) {
      has_ended(&outcomes[i], expected[kind].others, expected[kind].heard, expected[kind].next);
    } else if (kind == DIES) {
      ck_assert_int_eq(WTERMSIG(outcomes[i].exit), SIGKILL);
    } else {
      has_ended(&outcomes[i], expected[kind].own, expected[kind].said, expected[kind].next);
    }
  }
}

/* ---- a trainer, and a model that computes its loss itself ---- */

enum { PARTS = 2 };

static ek_status open_trainer(ek_trainer **trainer, ek_group *group) {
  CK_FREED(module) *module = NULL, *joined = NULL;
  CK_FREED(criterion) *criterion = NULL;
  CK_FREED(optimizer) *rule = NULL;
  CK_WITH(ek_data_parallel_model_options, model_options, EK_DATA_PARALLEL_MODEL_OPTIONS_INIT,
          .precision = EK_PRECISION_F16);
  CK_WITH(ek_data_parallel_optimizer_options, optimizer_options,
          EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT, .loss_scale = &restless);
  CK_WITH(ek_trainer_options, options, EK_TRAINER_OPTIONS_INIT, .group = group,
          .model = &model_options, .optimizer = &optimizer_options, .micro_batches = PARTS);
  EK_TRY(ck_workload("gpt")->module(&module));
  EK_TRY(ck_workload("gpt")->criterion(&criterion, EK_REDUCTION_MEAN));
  EK_TRY(ek_with_criterion_create(&joined, module, criterion));
  EK_TRY(ck_clipped_adamw(&rule));
  return ek_trainer_open(trainer, NULL, joined, NULL, rule, &options);
}

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
    for (size_t i = 0; i < 5; i++) add_everywhere(outcome, process, numbers[i]);
  }
  for (size_t k = 0; k < process->devices[process->number]; k++) {
    const ek_data_parallel_model *model = ek_trainer_model(trainer);
    const ek_tensor *flat = ek_replica_parameters(ek_data_parallel_model_replica(model, k));
    ck_outcome_add(outcome, hash_of(flat->data, (size_t)ek_tensor_bytes(flat)));
  }
  return EK_OK;
}

static void use_trainer(struct ck_outcome *outcome, const struct ck_process *process) {
  CK_PROCESS_GROUP(group, outcome, process, 0);
  ek_trainer *trainer = NULL;
  if (ck_went(outcome, open_trainer(&trainer, group))) {
    ck_went(outcome, trainer_steps(outcome, trainer, process));
  }
  ck_went(outcome, ek_trainer_close(trainer));
}

CK_LOOP(a_trainer_has_the_bits_of_one_process, PLACES) {
  agrees_with_one_process("trainer", use_trainer, _i);
}

static const struct ck_part parts[] = {
    {"collectives", all_collectives}, {"folded", folded_sums}, {"wrong rows", wrong_rows},
    {"differ in devices", differ_in_devices}, {"trainer", use_trainer}, {"memory", count_memory},
    {"read states", read_states}, {"save sharded", save_or_load},
    {"save fully-sharded", save_or_load}, {"load replicated", save_or_load},
    {"load sharded-gradients", save_or_load}, {"refusals", refusals}, {"dies", disaster},
    {"hangs", disaster}, {"fails", disaster}, {"other collective", disaster}, {"stops", disaster},
    {NULL, train}};

CK_PARTS_SUITE("processes", parts)
