/*
 * ck_training.c - a model, its loss and its optimizer over a group: see ck_training.h.
 */
#include "ck_training.h"

/* ---- set-ups ---- */

struct ck_setup ck_setup_mode(const struct ck_workload *workload, const char *spec, ek_mode mode) {
  static const ek_data_parallel_model_options defaults = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  struct ck_setup setup = {.workload = workload, .spec = spec, .options = defaults};
  ck_assign(setup.options, .seed = 7, .broadcast_inputs = workload->sample.broadcast,
            .bucket_bytes = 256 /* several buckets even in small models */);
  setup.optimizer = ck_clipped_adamw;
  ck_ok(ek_data_parallel_model_options_set_mode(&setup.options, mode));
  return setup;
}

struct ck_setup ck_setup_own(ek_module *module, ek_criterion *criterion, const char *spec,
                             ek_mode mode) {
  static const ek_data_parallel_model_options defaults = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  struct ck_setup setup = {.spec = spec, .options = defaults, .optimizer = ck_plain_adamw};
  ck_assign(setup, .module = ck_keep(module), .criterion = ck_keep(criterion));
  ck_ok(ek_data_parallel_model_options_set_mode(&setup.options, mode));
  return setup;
}

struct ck_setup ck_setup_gpt(const ek_gpt_options *gpt, const ek_cross_entropy_options *loss,
                             const char *spec, ek_mode mode) {
  ek_criterion *criterion = NULL;
  CK_GOT(ek_module *, module, ek_gpt_create(&module, gpt));
  if (!gpt->fused_loss) ck_ok(ek_cross_entropy_create(&criterion, loss));
  return ck_setup_own(module, criterion, spec, mode);
}

static const struct {
  const char *name;
  ek_output_placement outputs;
  ek_state_placement state;
} placements[CK_PLACEMENTS] = {
    {"gather", EK_OUTPUTS_GATHER, EK_STATE_MASTER},
    {"balanced", EK_OUTPUTS_STAY, EK_STATE_MASTER},
    {"replicated", EK_OUTPUTS_STAY, EK_STATE_REPLICATED},
    {"sharded", EK_OUTPUTS_STAY, EK_STATE_SHARDED},
    {"sharded-gradients", EK_OUTPUTS_STAY, EK_STATE_SHARDED_GRADIENTS},
    {"fully-sharded", EK_OUTPUTS_STAY, EK_STATE_FULLY_SHARDED},
    {"gather with replicated state", EK_OUTPUTS_GATHER, EK_STATE_REPLICATED},
    {"gather with sharded state", EK_OUTPUTS_GATHER, EK_STATE_SHARDED}};

void ck_setup_place(struct ck_setup *setup, int placement) {
  setup->options.outputs = placements[placement].outputs;
  setup->options.state = placements[placement].state;
}

struct ck_setup ck_setup_at(const struct ck_workload *workload, const char *spec, int placement) {
  struct ck_setup setup = ck_setup_mode(workload, spec, EK_MODE_REPLICATED);
  ck_setup_place(&setup, placement);
  return setup;
}

const char *ck_placement_name(int placement) { return placements[placement].name; }

ek_precision ck_precision(void) {
  const char *text = getenv("EVENKEEL_TEST_PRECISION");
  if (text == NULL || *text == '\0') return EK_PRECISION_DEFAULT;
  ck_assert_msg(strcmp(text, "bf16") == 0 || strcmp(text, "f16") == 0,
                "EVENKEEL_TEST_PRECISION=%s: expected bf16 or f16", text);
  return strcmp(text, "f16") == 0 ? EK_PRECISION_F16 : EK_PRECISION_BF16;
}

void ck_setup_precision(struct ck_setup *setup) {
  static const ek_loss_scale none = {.kind = EK_LOSS_SCALE_NONE};
  if (ck_precision() == 0 || setup->options.type != EK_F32 || setup->options.precision != 0) return;
  setup->options.precision = ck_precision();
  if (setup->loss_scale == NULL) setup->loss_scale = &none;
}

ek_status ck_clipped_adamw(ek_optimizer **optimizer) {
  CK_WITH(ek_adamw_options, options, EK_ADAMW_OPTIONS_INIT, .learning_rate = 0.01,
          .clip_norm = 0.5);
  return ek_adamw_create(optimizer, &options);
}

ek_status ck_clipped_muon(ek_optimizer **optimizer) {
  CK_FREED(optimizer) *adamw = NULL;
  CK_WITH(ek_muon_options, options, EK_MUON_OPTIONS_INIT, .learning_rate = 0.01, .clip_norm = 0.5);
  EK_TRY(ek_adamw_create(&adamw, NULL));
  return ek_muon_create(optimizer, adamw, &options);
}

ek_status ck_plain_adamw(ek_optimizer **optimizer) { return ek_adamw_create(optimizer, NULL); }

ek_status ck_plain_sgd(ek_optimizer **optimizer) { return ek_sgd_create(optimizer, NULL); }

/* ---- opening and closing ---- */

/* A module of the test's own is freed by the test. */
static void free_made(struct ck_training *training) {
  ek_optimizer_free(training->rule);
  if (training->setup.module != NULL) return;
  ek_criterion_free(training->criterion);
  ek_module_free(training->module);
}

void ck_training_free(struct ck_training *training) {
  ek_data_parallel_optimizer_free(training->optimizer);
  ek_data_parallel_criterion_free(training->loss);
  ek_data_parallel_model_free(training->model);
  free_made(training);
}

static ek_status join(struct ck_training *training) {
  ek_module *whole = NULL;
  EK_TRY(ek_with_criterion_create(&whole, training->module, training->criterion));
  ek_criterion_free(training->criterion);
  ek_module_free(training->module);
  training->criterion = NULL;
  training->module = whole;
  return EK_OK;
}

static ek_status make_parts(struct ck_training *training) {
  const struct ck_setup *setup = &training->setup;
  if (setup->module != NULL) {
    training->module = setup->module;
    training->criterion = setup->criterion;
  } else {
    EK_TRY(setup->workload->module(&training->module));
    EK_TRY(setup->workload->criterion(&training->criterion, setup->reduction));
    if (setup->own_loss) EK_TRY(join(training));
  }
  return setup->optimizer == NULL ? EK_OK : setup->optimizer(&training->rule);
}

static ek_status open_parts(struct ck_training *training) {
  const struct ck_setup *setup = &training->setup;
  CK_WITH(ek_data_parallel_criterion_options, loss, EK_DATA_PARALLEL_CRITERION_OPTIONS_INIT,
          .keep_outputs = setup->keep_outputs, .gradient_in_forward = setup->gradient_in_forward);
  EK_TRY(make_parts(training));
  CK_WITH(ek_data_parallel_model_options, options, setup->options, .optimizer = training->rule);
  EK_TRY(ek_data_parallel_model_open(&training->model, training->group, training->module,
                                     &options));
  EK_TRY(ek_data_parallel_criterion_open(&training->loss, training->model, training->criterion,
                                         &loss));
  if (training->rule == NULL) return EK_OK;
  ek_data_parallel_optimizer_options update = EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT;
  update.loss_scale = setup->loss_scale;
  return ek_data_parallel_optimizer_open(&training->optimizer, training->model, training->rule,
                                         &update);
}

ek_status ck_trainer_try(ek_trainer **trainer, const struct ck_setup *setup) {
  struct ck_training made = {.setup = *setup};
  ek_data_parallel_optimizer_options update = EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT;
  ck_setup_precision(&made.setup);
  ek_status status = make_parts(&made);
  CK_WITH(ek_group_options, threads, EK_GROUP_OPTIONS_INIT, .threads_per_device = 1);
  update.loss_scale = made.setup.loss_scale;
  CK_WITH(ek_trainer_options, options, EK_TRAINER_OPTIONS_INIT, .model = &made.setup.options,
          .group = setup->group, .micro_batches = setup->micro_batches);
  if (made.rule != NULL) options.optimizer = &update;
  if (setup->group == NULL) options.group_options = &threads;
  if (status == EK_OK) {
    status = ek_trainer_open(trainer, setup->group == NULL ? ck_spec(setup->spec) : NULL,
                             made.module, made.criterion, made.rule, &options);
  }
  if (status == EK_OK) ck_keep(*trainer);
  free_made(&made);
  return status;
}

ek_trainer *ck_trainer_open(const struct ck_setup *setup) {
  CK_GOT(ek_trainer *, trainer, ck_trainer_try(&trainer, setup));
  return trainer;
}

static void keep_parts(const struct ck_training *training) {
  if (training->setup.module == NULL) {
    ck_keep(training->module);
    ck_keep(training->criterion);
  }
  ck_keep(training->rule);
  ck_keep(training->model);
  ck_keep(training->loss);
  ck_keep(training->optimizer);
}

ek_status ck_training_try(struct ck_training *training, const struct ck_setup *setup,
                          ek_group *group) {
  *training = (struct ck_training){.setup = *setup, .group = group};
  ck_setup_precision(&training->setup);
  const ek_status status = open_parts(training);
  if (status != EK_OK) {
    ck_training_free(training);
    memset(training, 0, sizeof *training);
  }
  if (status == EK_OK) keep_parts(training);
  return status;
}

void ck_training_open(struct ck_training *training, const struct ck_setup *setup) {
  ek_group *group = ck_open(setup->spec, 1);
  ck_ok(ck_training_try(training, setup, group));
  training->owns_group = true;
}

struct ck_training ck_training_opened(const struct ck_setup *setup) {
  CK_SET_UP(struct ck_training, training, ck_training_open(&training, setup));
  return training;
}

struct ck_training ck_training_of(struct ck_setup setup) {
  return ck_training_opened(&setup);
}

void ck_training_update_with(struct ck_training *training,
                             const ek_data_parallel_optimizer_options *options) {
  ek_data_parallel_optimizer_free(training->optimizer);
  training->optimizer = NULL;
  ck_kept(ek_data_parallel_optimizer_open(&training->optimizer, training->model, training->rule,
                                          options),
          training->optimizer);
}

void ck_training_close(struct ck_training *training) {
  ck_training_free(training);
  ck_no_memory_held(training->group);
  if (training->owns_group) ek_group_free(training->group);
  memset(training, 0, sizeof *training);
}

/* ---- steps ---- */

ek_status ck_training_backward(struct ck_training *training, const struct ck_batch *batch,
                               const ek_scatter_options *scatter, bool accumulate, double *loss) {
  ek_shards outputs[CK_BATCH_TENSORS] = {{0}};
  const size_t count = ek_module_outputs(training->module);
  ek_criterion_backward_options backward = EK_CRITERION_BACKWARD_OPTIONS_INIT;
  CK_WITH(ek_forward_options, forward, EK_FORWARD_OPTIONS_INIT, .scatter = scatter);
  backward.accumulate = accumulate;
  const bool own = training->criterion == NULL; /* then its inputs are the targets, too */
  ek_tensor inputs[2 * CK_BATCH_TENSORS];
  memcpy(inputs, batch->input, batch->inputs * sizeof *inputs);
  memcpy(inputs + batch->inputs, batch->target, batch->targets * sizeof *inputs);
  ek_status status = ek_data_parallel_model_forward(
      outputs, training->model, inputs, batch->inputs + (own ? batch->targets : 0), &forward);
  if (status == EK_OK) {
    status = ek_data_parallel_criterion_forward(training->loss, outputs, count, batch->target,
                                                own ? 0 : batch->targets);
  }
  if (status == EK_OK && loss != NULL) {
    status = ek_data_parallel_criterion_loss(loss, NULL, training->loss);
  }
  if (status == EK_OK) status = ek_data_parallel_criterion_backward(training->loss, &backward);
  for (size_t i = 0; i < count; i++) ek_shards_free(&outputs[i]);
  return status;
}

ek_status ck_training_step(struct ck_training *training, const struct ck_batch *batch,
                           ek_step_result *result) {
  EK_TRY(ck_training_backward(training, batch, NULL, false, NULL));
  return ek_data_parallel_optimizer_step(result, training->optimizer);
}

/* ---- memory ---- */

void ck_usages(ek_memory_usage *usages, const ek_group *group) {
  for (size_t k = 0; k < ek_group_size(group); k++) {
    ck_ok(ck_memory_stats(&usages[k], ek_group_device(group, k)));
  }
}

void ck_same_peaks(const char *what, const ek_memory_usage *planned, const ek_memory_usage *real,
                   size_t devices) {
  for (size_t k = 0; k < devices; k++) {
    ck_assert_msg(planned[k].peak_bytes == real[k].peak_bytes,
                  "%s: device %zu peaks at %" PRIu64 " bytes, planned were %" PRIu64, what, k,
                  real[k].peak_bytes, planned[k].peak_bytes);
    uint64_t sum = real[k].unused_at_peak;
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++) {
      ck_assert_msg(planned[k].at_peak[c] == real[k].at_peak[c],
                    "%s: device %zu has %" PRIu64 " bytes of %s, planned were %" PRIu64, what, k,
                    real[k].at_peak[c], ek_memory_category_name((ek_memory_category)c),
                    planned[k].at_peak[c]);
      sum += real[k].at_peak[c];
    }
    ck_assert_uint_eq(planned[k].unused_at_peak, real[k].unused_at_peak);
    ck_assert_uint_eq(planned[k].allocations, real[k].allocations);
    ck_assert_uint_eq(sum, real[k].peak_bytes);
  }
}

void ck_measure(ek_memory_usage *usages, const struct ck_setup *setup, const char *spec,
                const struct ck_batch *batch, int micro_batches) {
  CK_WITH(struct ck_setup, there, *setup, .spec = spec);
  struct ck_training training = ck_training_opened(&there);
  for (int step = 0; step < 2; step++) {
    for (int i = 1; i < micro_batches; i++) {
      ck_ok(ck_training_backward(&training, batch, NULL, true, NULL));
    }
    ck_ok(ck_training_step(&training, batch, NULL));
  }
  ck_usages(usages, training.group);
  ck_training_close(&training);
}

/* ---- numbers ---- */

ek_tensor ck_like(const struct ck_training *training, const char *name) {
  ek_state_info info;
  ck_ok(ek_state_find(&info, training->model, name));
  return info.like;
}

const char *ck_state_name(const struct ck_training *training, const char *parameter, int state) {
  static char name[EK_STATE_NAME_SIZE];
  const ek_optimizer_ops *ops = ek_optimizer_table(training->rule);
  (void)snprintf(name, sizeof name, "%s/%s/%s", ops->kind, ops->state_names[state], parameter);
  return name;
}

static ek_status read_one(const struct ck_training *training, enum ck_numbers numbers,
                          const char *name, ek_tensor *host) {
  switch (numbers) {
  case CK_VALUES:
  case CK_BUFFERS: return ek_state_read(host, training->model, name);
  case CK_GRADIENTS: return ek_data_parallel_model_gradient(host, training->model, name);
  case CK_STATE_0:
  case CK_STATE_1:
    return ek_state_read(host, training->model,
                         ck_state_name(training, name, numbers == CK_STATE_1));
  }
  return ek_error_set(EK_ERR_INTERNAL, "no such numbers");
}

static void read_parameter(double *values, const struct ck_training *training,
                           enum ck_numbers numbers, const char *name, int64_t count) {
  ek_tensor host = ck_like(training, name);
  float *single = calloc((size_t)count, sizeof *single);
  ck_assert_ptr_nonnull(single);
  host.data = host.type == EK_F32 ? (void *)single : (void *)values;
  ck_ok(read_one(training, numbers, name, &host));
  for (int64_t i = 0; host.type == EK_F32 && i < count; i++) values[i] = (double)single[i];
  free(single);
}

double *ck_training_read(const struct ck_training *training, enum ck_numbers numbers) {
  const ek_replica *replica = ek_data_parallel_model_replica(training->model, 0);
  int64_t total = 0;
  CK_EACH_PARAMETER(info, replica) {
    if (info.buffer == (numbers == CK_BUFFERS)) total += ek_tensor_count(&info.value);
  }
  double *all = ck_array((size_t)total, sizeof *all), *next = all;
  CK_EACH_PARAMETER(info, replica) {
    if (info.buffer != (numbers == CK_BUFFERS)) continue;
    const int64_t size = ek_tensor_count(&info.value);
    if (numbers == CK_VALUES || numbers == CK_BUFFERS || !info.frozen) {
      read_parameter(next, training, numbers, info.name, size);
    }
    next += size;
  }
  return all;
}

double *ck_training_model(const struct ck_training *training) {
  const double *values = ck_training_read(training, CK_VALUES);
  const double *buffers = ck_training_read(training, CK_BUFFERS);
  const size_t count = (size_t)ck_count(values), more = (size_t)ck_count(buffers);
  double *all = ck_array(count + more, sizeof *all);
  memcpy(all, values, count * sizeof *all);
  memcpy(all + count, buffers, more * sizeof *all);
  return all;
}

size_t ck_training_errors(double errors[CK_MOST_PARAMETERS], const struct ck_training *training,
                          const double *got, const double *want) {
  const ek_replica *replica = ek_data_parallel_model_replica(training->model, 0);
  int64_t first = 0;
  size_t known = 0;
  CK_EACH_PARAMETER(info, replica) {
    if (info.buffer) continue;
    ck_assert_uint_lt(known, CK_MOST_PARAMETERS);
    errors[known++] = ck_rel_l2(got + first, want + first, ek_tensor_count(&info.value));
    first += ek_tensor_count(&info.value);
  }
  return known;
}

void ck_training_compare(const char *what, const struct ck_training *training, const double *got,
                         const double *want, double tolerance, const double *tolerances) {
  double errors[CK_MOST_PARAMETERS];
  const size_t known = ck_training_errors(errors, training, got, want);
  for (size_t i = 0; i < known; i++) {
    const double allowed = tolerances == NULL ? tolerance : tolerances[i];
    ck_assert_msg(errors[i] <= allowed, "%s: parameter %zu of %s is off by %.3g, allowed are %.3g",
                  what, i, training->setup.workload->name, errors[i], allowed);
  }
}

void ck_runs_agree(const struct ck_training *got, const struct ck_training *want,
                   enum ck_numbers what, double tolerance) {
  static const char *const names[] = {"values", "gradients", "first state", "second state"};
  double *a = ck_training_read(got, what), *b = ck_training_read(want, what);
  if (tolerance == 0) {
    ck_arrays_same(names[what], a, b);
  } else {
    ck_training_compare(names[what], got, a, b, tolerance, NULL);
  }
  ck_drop(a);
  ck_drop(b);
}

/* What all of a training's devices have whole: what modules see, and masters where they are not
 * cut. */
static void same_on_devices(const struct ck_training *training,
                            const ek_tensor *(*flat_of)(const ek_replica *replica)) {
  double *values[2] = {NULL, NULL};
  for (size_t k = 0; k < ek_group_size(training->group); k++) {
    const ek_tensor *flat = flat_of(ek_data_parallel_model_replica(training->model, k));
    values[k == 0 ? 0 : 1] = ck_got(flat);
    if (k == 0) continue;
    ck_same_bits("parameters of a replica", values[1], values[0], ek_tensor_count(flat));
    ck_drop(values[1]);
  }
  ck_drop(values[0]);
}

double *ck_training_copies(const struct ck_training *training, size_t device) {
  return ck_got(ek_replica_copies(ek_data_parallel_model_replica(training->model, device)));
}

static void same_rounded(const double *copies, const ek_tensor *masters, ek_type type) {
  ck_assert_int_eq(masters->type, EK_F32);
  double *want = ck_got(masters);
  for (int64_t i = 0; i < ck_count(want); i++) want[i] = ck_round_to(type, want[i]);
  ck_arrays_same("copies", copies, want);
  ck_drop(want);
}

/* Masters in shares, too. */
static void same_as_state(const double *copies, const struct ck_training *training) {
  const ek_replica *replica = ek_data_parallel_model_replica(training->model, 0);
  CK_EACH_PARAMETER(info, replica) {
    if (info.buffer) continue;
    const int64_t count = ek_tensor_count(&info.value);
    CK_HELD(float *, master, ck_array((size_t)count + 1, sizeof *master));
    CK_GOT(ek_tensor, host, ek_tensor_host(&host, master, EK_F32, 1, &count));
    ck_ok(ek_state_read(&host, training->model, info.name));
    for (int64_t j = 0; j < count; j++) {
      const double want =
          ck_round_to(ek_precision_type(training->setup.options.precision), (double)master[j]);
      ck_assert_msg(copies[info.offset + j] == want, "%s[%" PRId64 "]", info.name, j);
    }
  }
}

void ck_training_copies_are_right(const struct ck_training *training) {
  const ek_type type = ek_precision_type(training->setup.options.precision);
  const ek_state_placement state = training->setup.options.state;
  const bool ordered = state != EK_STATE_SHARDED && state != EK_STATE_SHARDED_GRADIENTS;
  const size_t devices = state == EK_STATE_MASTER ? 1 : ek_group_size(training->group);
  double *first = NULL;
  for (size_t k = 0; k < devices; k++) {
    const ek_replica *replica = ek_data_parallel_model_replica(training->model, k);
    ck_assert_int_eq(ek_replica_copies(replica)->type, type);
    double *copies = ck_training_copies(training, k);
    if (ordered) same_rounded(copies, ek_replica_parameters(replica), type);
    if (k > 0 && state != EK_STATE_FULLY_SHARDED) ck_arrays_same("devices", copies, first);
    if (k == 0) {
      first = copies;
    } else {
      ck_drop(copies);
    }
  }
  if (state != EK_STATE_FULLY_SHARDED) same_as_state(first, training);
  ck_drop(first);
}

void ck_training_replicas_agree(const struct ck_training *training) {
  const ek_data_parallel_model_options *options = &training->setup.options;
  const bool copies =
      options->precision == EK_PRECISION_BF16 || options->precision == EK_PRECISION_F16;
  if (options->state == EK_STATE_FULLY_SHARDED) return;
  if (copies) same_on_devices(training, ek_replica_copies);
  if (!copies || options->state == EK_STATE_REPLICATED) {
    same_on_devices(training, ek_replica_parameters);
  }
}

double *ck_values_after(const struct ck_setup *setup, ek_group *group, int steps, int64_t samples) {
  CK_GOT(struct ck_training, training, ck_training_try(&training, setup, group));
  for (int i = 0; i < steps; i++) {
    struct ck_batch batch =
        ck_batch_make(setup->workload, setup->options.type, samples, 0.1, (uint64_t)i);
    ck_ok(ck_training_step(&training, &batch, NULL));
  }
  double *values = ck_training_read(&training, CK_VALUES);
  ck_training_close(&training);
  ck_ok(ek_group_close(group));
  return values;
}

double *ck_trained(const struct ck_workload *workload, ek_status (*create)(ek_module **module),
                   const char *spec, int placement) {
  struct ck_workload other = *workload;
  if (create != NULL) other.module = create;
  struct ck_setup setup = ck_setup_at(&other, spec, placement);
  struct ck_training training = ck_training_opened(&setup);
  for (uint64_t step = 0; step < 3; step++) {
    struct ck_batch first = ck_batch_make(&other, EK_F32, 7, 0.1, 2 * step);
    struct ck_batch second = ck_batch_make(&other, EK_F32, 2, 0.1, 2 * step + 1);
    ck_ok(ck_training_backward(&training, &first, NULL, true, NULL));
    ck_ok(ck_training_step(&training, &second, NULL));
  }
  double *values = ck_training_read(&training, CK_VALUES);
  ck_training_close(&training);
  return values;
}

void ck_trains_alike(const struct ck_workload *workload, ek_status (*want)(ek_module **),
                     ek_status (*got)(ek_module **), const char *spec, int placement) {
  double *a = ck_trained(workload, want, spec, placement);
  double *b = ck_trained(workload, got, spec, placement);
  ck_arrays_same("parameters with recomputation", b, a);
}

void ck_scatter_random(struct ck_scatter *scatter, ek_scatter_kind kind, int64_t rows, size_t count,
                       struct ck_random *random) {
  *scatter = (struct ck_scatter){.options = EK_SCATTER_OPTIONS_INIT};
  scatter->options.kind = kind;
  int64_t left = rows;
  for (size_t i = 0; i < count; i++) {
    scatter->sizes[i] = i + 1 == count ? left : ck_random_integer(random, 0, left);
    left -= scatter->sizes[i];
    scatter->weights[i] = (double)ck_random_integer(random, i == 0 ? 1 : 0, 3);
  }
  if (kind == EK_SCATTER_SIZES) scatter->options.sizes = scatter->sizes;
  if (kind == EK_SCATTER_WEIGHTS) scatter->options.weights = scatter->weights;
}
