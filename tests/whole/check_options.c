/*
 * check_options.c - the rule for structs that state their size (status.h), for every one of them.
 *
 * STRUCTS lists them all; tests/install/check_layout.sh compares the list with the headers. Each is
 * given to its function with its own size, with every size that is refused, and with every size
 * that an older program could have: then the bytes past that size are 0xFF, and must not be read.
 */
#include <unistd.h>

#include "ck_folder.h"
#include "ek_check.h"

/* What the functions need: two devices that count, and one of each thing. */
struct bench {
  ek_group *group;
  ek_module *module;
  ek_criterion *loss;
  ek_optimizer *rule;
  ek_data_parallel_model *model;
  ek_data_parallel_criterion *criterion;
  ek_communicator *communicator;
  ek_replica *replicas[2];
  ek_tensor input, target;
  float x[8], y[8];
};

static void bench_open(struct bench *b) {
  memset(b, 0, sizeof *b);
  b->group = ck_open_exactly("plan:2", 1);
  ck_kept(ek_linear_create(&b->module, 2, 2, true), b->module);
  ck_kept(ek_mean_squared_error_create(&b->loss, EK_REDUCTION_MEAN), b->loss);
  ck_kept(ek_sgd_create(&b->rule, NULL), b->rule);
  ck_kept(ek_data_parallel_model_open(&b->model, b->group, b->module, NULL), b->model);
  ck_kept(ek_data_parallel_criterion_open(&b->criterion, b->model, b->loss, NULL), b->criterion);
  ck_kept(ek_communicator_open(&b->communicator, b->group), b->communicator);
  for (size_t k = 0; k < 2; k++) {
    ck_kept(ek_replica_open(&b->replicas[k], ek_group_device(b->group, k), b->module, NULL),
            b->replicas[k]);
  }
  ck_ok(ek_tensor_host(&b->input, b->x, EK_F32, CK_SHAPE(4, 2)));
  ck_ok(ek_tensor_host(&b->target, b->y, EK_F32, CK_SHAPE(4, 2)));
}

/* ---- one call for each struct: `o` is the struct ---- */

/* Those that open one thing, which is freed. */
#define USE(options, type, call)                                                                   \
  static ek_status use_##options(struct bench *b, void *o) {                                       \
    type *made = NULL;                                                                             \
    (void)b;                                                                                       \
    const ek_status status = call;                                                                 \
    type##_free(made);                                                                             \
    return status;                                                                                 \
  }
USE(ek_group_options, ek_group, ek_group_open(&made, "plan:1", o))
USE(ek_world_options, ek_world, ek_world_open(&made, o))
USE(ek_world_gather, ek_world, ek_world_open_gather(&made, o, NULL))
USE(ek_data_parallel_model_options, ek_data_parallel_model,
    ek_data_parallel_model_open(&made, b->group, b->module, o))
USE(ek_data_parallel_criterion_options, ek_data_parallel_criterion,
    ek_data_parallel_criterion_open(&made, b->model, b->loss, o))
USE(ek_data_parallel_optimizer_options, ek_data_parallel_optimizer,
    ek_data_parallel_optimizer_open(&made, b->model, b->rule, o))
USE(ek_reducer_options, ek_reducer,
    ek_reducer_open(&made, b->communicator, b->replicas, o))
USE(ek_replica_options, ek_replica,
    ek_replica_open(&made, ek_group_device(b->group, 0), b->module, o))
USE(ek_pass_options, ek_pass, ek_pass_open(&made, b->replicas[0], o))
USE(ek_gpt_options, ek_module, ek_gpt_create(&made, o))
USE(ek_llama_options, ek_module, ek_llama_create(&made, o))
USE(ek_sequential_options, ek_module, ek_sequential_create_with(&made, &b->module, 1, o))
USE(ek_linear_options, ek_module, ek_linear_create_with(&made, 2, 3, o))
USE(ek_upsample_options, ek_module, ek_upsample_create(&made, o))
USE(ek_pooling, ek_module, ek_max_pool2d_create(&made, o))
USE(ek_batch_norm_options, ek_module, ek_batch_norm_create_with(&made, 2, o))
USE(ek_group_norm_options, ek_module, ek_group_norm_create_with(&made, 4, 2, o))
USE(ek_resnet_options, ek_module, ek_resnet_create(&made, o))
USE(ek_fcn_options, ek_module, ek_fcn_create(&made, o))
USE(ek_layer_norm_options, ek_module, ek_layer_norm_create_with(&made, 2, o))
USE(ek_conv2d_options, ek_module, ek_conv2d_create_with(&made, 2, 3, o))
USE(ek_embedding_options, ek_module, ek_embedding_create_with(&made, 2, 3, o))
USE(ek_attention_options, ek_module, ek_attention_create_with(&made, 4, 2, o))
USE(ek_swiglu_options, ek_module, ek_swiglu_create_with(&made, 2, 3, o))
USE(ek_cross_entropy_options, ek_criterion, ek_cross_entropy_create(&made, o))
static const ek_element_loss absolute = {EK_ELEMENT_LOSS_HUBER, 0, 1};
USE(ek_elementwise_loss_options, ek_criterion,
    ek_elementwise_loss_create_with(&made, &absolute, o))
USE(ek_linear_cross_entropy_options, ek_criterion, ek_linear_cross_entropy_create(&made, 3, 5, o))
USE(ek_sgd_options, ek_optimizer, ek_sgd_create(&made, o))
USE(ek_adamw_options, ek_optimizer, ek_adamw_create(&made, o))
USE(ek_muon_options, ek_optimizer, ek_muon_create(&made, b->rule, o))
USE(ek_with_criterion_options, ek_module,
    ek_with_criterion_create_with(&made, b->module, b->loss, o))

/* The options were taken if what follows, the look for a file, fails. */
static ek_status looked(ek_status status) { return status == EK_ERR_NOT_FOUND ? EK_OK : status; }

USE(ek_model_folder_options, ek_module, looked(ek_model_from_folder(&made, "/nobody/has/this", o)))
USE(ek_image_options, ek_source, looked(ek_image_source_open_idx(&made, "/nobody", "/nobody", o)))
USE(ek_tokens_options, ek_source, looked(ek_tokens_open(&made, "/nobody/has/this", o)))
USE(ek_image_arrays, ek_source, ek_image_source_open_arrays(&made, o, NULL))

/* Those that fill a struct of the caller's. */
#define FILL(options, type, call)                                                                  \
  static ek_status use_##options(struct bench *b, void *o) {                                       \
    type made;                                                                                     \
    (void)b;                                                                                       \
    return call;                                                                                   \
  }
struct speeds {
  double of[2];
};
FILL(ek_rotary, struct speeds, ek_rotary_speeds(made.of, 4, o))

static ek_status use_ek_attend_options(struct bench *b, void *o) {
  static const int64_t shape[3][3] = {{1, 2, 2}, {1, 1, 2}, {1, 2, 6}}; /* out, lse, qkv */
  ek_device *device = ek_group_device(b->group, 0);
  ek_tensor t[3] = {{0}};
  for (int i = 0; i < 3; i++) {
    ck_ok(ek_tensor_create(&t[i], device, EK_MEMORY_WORKSPACE, EK_F32, 3, shape[i]));
    ck_ok(ek_op_fill(ek_device_stream(device, EK_STREAM_COMPUTE), &t[i], 1));
  }
  const ek_status status = ek_op_attention_forward(ek_device_stream(device, EK_STREAM_COMPUTE),
                                                   &t[0], &t[1], &t[2], o);
  for (int i = 0; i < 3; i++) ek_tensor_free(&t[i]);
  return status;
}

static ek_status use_ek_convolution(struct bench *b, void *o) {
  const int64_t x[] = {1, 2, 3, 4};
  int64_t y[4];
  (void)b;
  return ek_convolution_shape(y, x, 5, o);
}

static ek_status use_ek_scatter_options(struct bench *b, void *o) {
  ek_shards shards = {0};
  int64_t offsets[3];
  EK_TRY(ek_scatter_offsets(offsets, 4, 2, o));
  ck_assert_int_eq(offsets[1], 2);
  EK_TRY(ek_scatter(&shards, b->group, &b->input, EK_MEMORY_INPUTS, o));
  ck_assert(!shards.private_members.ahead);
  ek_shards_free(&shards);
  /* Through the options of a forward it is the same struct, and the same rule. */
  CK_WITH(ek_forward_options, forward, EK_FORWARD_OPTIONS_INIT, .scatter = o);
  EK_TRY(ek_data_parallel_model_forward(&shards, b->model, &b->input, 1, &forward));
  ek_shards_free(&shards);
  return EK_OK;
}

static ek_status use_ek_forward_options(struct bench *b, void *o) {
  CK_FREED(shards) outputs = {0}, inputs = {0};
  EK_TRY(ek_data_parallel_model_forward(&outputs, b->model, &b->input, 1, o));
  ek_shards_free(&outputs);
  ck_ok(ek_scatter(&inputs, b->group, &b->input, EK_MEMORY_INPUTS, NULL));
  return ek_data_parallel_model_forward_shards(&outputs, b->model, &inputs, 1, o);
}

static ek_status use_ek_backward_options(struct bench *b, void *o) {
  ek_shards outputs = {0};
  ck_ok(ek_data_parallel_model_forward(&outputs, b->model, &b->input, 1, NULL));
  const ek_status status = ek_data_parallel_model_backward(b->model, &outputs, 1, o);
  ek_shards_free(&outputs);
  ck_ok(ek_data_parallel_model_discard(b->model));
  return status;
}

static ek_status use_ek_criterion_backward_options(struct bench *b, void *o) {
  ek_shards outputs = {0};
  ck_ok(ek_data_parallel_model_forward(&outputs, b->model, &b->input, 1, NULL));
  ck_ok(ek_data_parallel_criterion_forward(b->criterion, &outputs, 1, &b->target, 1));
  const ek_status status = ek_data_parallel_criterion_backward(b->criterion, o);
  ek_shards_free(&outputs);
  ck_ok(ek_data_parallel_model_discard(b->model));
  return status;
}

static ek_status use_ek_trainer_options(struct bench *b, void *o) {
  ek_trainer *trainer = NULL;
  const ek_status status = ek_trainer_open(&trainer, "plan:2", b->module, b->loss, b->rule, o);
  if (trainer != NULL) ck_ok(ek_trainer_close(trainer));
  return status;
}

static ek_status build_linear(void *context, const ek_settings *settings, ek_module **module,
                              ek_criterion **criterion) {
  (void)context;
  if (settings->fused_loss) return EK_ERR_UNSUPPORTED;
  EK_TRY(ek_linear_create(module, 2, 2, true));
  return ek_mean_squared_error_create(criterion, EK_REDUCTION_MEAN);
}

/* What no constant can hold is put in where the struct has room for it. */
static ek_status use_ek_advise_task(struct bench *b, void *o) {
  ek_advise_task *task = o;
  size_t count = 0;
  if (task->size >= offsetof(ek_advise_task, target_count)) {
    task->optimizer = b->rule;
    task->inputs = &b->input;
    task->targets = &b->target;
  }
  if (task->size >= sizeof(ek_advise_task)) task->modes = 1;
  const ek_status status = ek_advise(NULL, &count, 0, "plan:2", task);
  ck_assert(status != EK_OK || count > 0);
  return status;
}

static ek_status use_ek_checkpoint_options(struct bench *b, void *o) {
  const char *folder = ck_folder();
  (void)ck_state_file(folder, 0);
  const ek_status status = ek_checkpoint_save(b->model, folder, o);
  return status == EK_ERR_UNSUPPORTED ? EK_OK : status; /* counting devices, or no files */
}

static ek_status use_ek_weights_options(struct bench *b, void *o) {
  ek_status status = ek_weights_save(b->model, "/nobody/has/this", o);
  return status == EK_ERR_UNSUPPORTED || status == EK_ERR_NOT_FOUND ? EK_OK : status;
}

static ek_status use_ek_module_check_options(struct bench *b, void *o) {
  ek_check_input x = {.rank = b->input.rank, .low = -1, .high = 1};
  memcpy(x.shape, b->input.shape, sizeof x.shape);
  return ek_module_check(b->module, "plan:1", &x, 1, o);
}

/* A module that hands the struct on. */
struct caller {
  ek_module base;
  ek_module *child;
  void *child_options, *parameter_options;
  ek_chain *chain; /* instead of the child alone */
};

CK_PARAMETERS(caller) {
  const struct caller *m = (const struct caller *)self;
  EK_TRY(ek_declare_wrapped(declaration, m->child));
  return ek_declare_parameter_with(declaration, "unused", 0, NULL, ek_initializer_zeros(),
                                   m->parameter_options);
}

CK_FORWARD(caller) {
  const struct caller *m = (const struct caller *)self;
  if (m->chain != NULL) return ek_chain_forward(outputs, pass, inputs, m->chain);
  return ek_pass_child_forward_with(outputs, pass, 0, inputs, m->child_options);
}

static ek_status use_caller(const struct bench *b, struct caller *m) {
  static const ek_module_ops ops = {
      CK_OPS("caller", caller_forward, ck_share_backward, ck_no_free), /* no backward is run */
      .parameters = caller_parameters};
  ek_device *device = ek_group_device(b->group, 0);
  CK_FREED(replica) *replica = NULL;
  CK_FREED(pass) *pass = NULL;
  CK_FREED(tensor) x = ck_upload(device, EK_F32, NULL, CK_SHAPE(4, 2)), y = {0};
  m->child = b->module;
  ck_ok(ek_module_init(&m->base, &ops, 1, 1));
  EK_TRY(ek_replica_open(&replica, device, &m->base, NULL));
  EK_TRY(ek_pass_open(&pass, replica, NULL));
  return ek_pass_run_forward(&y, pass, &x);
}

static ek_status use_ek_child_options(struct bench *b, void *o) {
  return use_caller(b, &(struct caller){.child_options = o});
}

static ek_status use_ek_chain(struct bench *b, void *o) {
  return use_caller(b, &(struct caller){.chain = o});
}

static ek_status use_ek_parameter_options(struct bench *b, void *o) {
  return use_caller(b, &(struct caller){.parameter_options = o});
}

/* These are never called. */
CK_UPDATE(no_update) {
  return EK_ERR_INTERNAL;
}
static void no_optimizer_free(ek_optimizer *self) { (void)self; }

#define MODULE_OPS                                                                                 \
  { CK_OPS("none", ck_share_forward, ck_share_backward, ck_no_free) }
#define OPTIMIZER_OPS                                                                              \
  {                                                                                                \
    .size = sizeof(ek_optimizer_ops), .kind = "none", .update = no_update,                         \
    .free = no_optimizer_free                                                                      \
  }

static const ek_module_ops no_ops = MODULE_OPS;
FILL(ek_module_options, ek_module, ek_module_init_with(&made, &no_ops, o))
FILL(ek_criterion_options, ek_criterion, ek_criterion_init_with(&made, &no_ops, o))
FILL(ek_module_ops, ek_module, ek_module_init(&made, o, 1, 1))
FILL(ek_optimizer_ops, ek_optimizer, ek_optimizer_init(&made, o, 0, 0, 0))

/* ---- data ---- */

static ek_status no_read(const ek_source *self, const ek_source_request *request,
                         ek_tensor *tensors) {
  (void)self, (void)request, (void)tensors;
  return EK_OK;
}
static void no_source_free(ek_source *self) { (void)self; }

static const ek_source_tensor scalars[] = {{EK_F32, 0, {0}}, {EK_F32, 0, {0}}};
#define SOURCE_OPS                                                                                 \
  { .size = sizeof(ek_source_ops), .kind = "none", .read = no_read, .free = no_source_free }
#define SOURCE_OPTIONS                                                                             \
  {                                                                                                \
    .size = sizeof(ek_source_options), .samples = 1, .inputs = 1, .targets = 1, .tensors = scalars \
  }
static const ek_source_ops source_ops = SOURCE_OPS;
static const ek_source_options source_options = SOURCE_OPTIONS;
FILL(ek_source_ops, ek_source, ek_source_init(&made, o, &source_options))
FILL(ek_source_options, ek_source, ek_source_init(&made, &source_ops, o))

#define DATA_LOADER_OPTIONS                                                                        \
  { .size = sizeof(ek_data_loader_options), .batch = 1, .threads = 1 }

static ek_status use_ek_data_loader_options(struct bench *b, void *o) {
  (void)b;
  CK_GOT(ek_source, source, ek_source_init(&source, &source_ops, &source_options));
  CK_FREED(data_loader) *loader = NULL;
  return ek_data_loader_open(&loader, &source, NULL, o);
}

static const uint8_t dots[8];
static const int32_t no_classes[2];
#define IMAGE_ARRAYS                                                                               \
  {                                                                                                \
    .size = sizeof(ek_image_arrays), .count = 2, .height = 2, .width = 2, .channels = 1,           \
    .pictures = dots, .classes = no_classes                                                        \
  }

#define TRAINER_RUN_OPTIONS                                                                        \
  { .size = sizeof(ek_trainer_run_options), .batch = 1, .threads = 1 }

static ek_status use_ek_trainer_run_options(struct bench *b, void *o) {
  CK_GOT(ek_source, source, ek_source_init(&source, &source_ops, &source_options));
  CK_SCOPED(ek_trainer *, trainer,
            ek_trainer_open(&trainer, "plan:2", b->module, b->loss, b->rule, NULL));
  const ek_status status = ek_trainer_run(NULL, trainer, &source, 0, o);
  return status;
}

/*
 * X(struct, initial value, the smallest size that does). Of options every size from that of the
 * member `size` on; of a table every one that holds the functions without which it is none.
 */
#define ADVISE_TASK                                                                                \
  { .size = sizeof(ek_advise_task), .build = build_linear, .input_count = 1, .target_count = 1 }
#define OLDEST(type, last) (offsetof(type, last) + sizeof(((type *)NULL)->last))
#define OPTIONS(X)                                                                                 \
  X(ek_group_options, EK_GROUP_OPTIONS_INIT, sizeof(size_t))                                       \
  X(ek_world_options, EK_WORLD_OPTIONS_INIT, sizeof(size_t))                                       \
  X(ek_world_gather, EK_WORLD_GATHER_INIT, sizeof(size_t))                                         \
  X(ek_scatter_options, EK_SCATTER_OPTIONS_INIT, sizeof(size_t))                                   \
  X(ek_data_parallel_model_options, EK_DATA_PARALLEL_MODEL_OPTIONS_INIT, sizeof(size_t))           \
  X(ek_forward_options, EK_FORWARD_OPTIONS_INIT, sizeof(size_t))                                   \
  X(ek_backward_options, EK_BACKWARD_OPTIONS_INIT, sizeof(size_t))                                 \
  X(ek_data_parallel_criterion_options, EK_DATA_PARALLEL_CRITERION_OPTIONS_INIT, sizeof(size_t))   \
  X(ek_weights_options, EK_WEIGHTS_OPTIONS_INIT, sizeof(size_t))                                   \
  X(ek_model_folder_options, EK_MODEL_FOLDER_OPTIONS_INIT, sizeof(size_t))                         \
  X(ek_checkpoint_options, EK_CHECKPOINT_OPTIONS_INIT, sizeof(size_t))                             \
  X(ek_criterion_backward_options, EK_CRITERION_BACKWARD_OPTIONS_INIT, sizeof(size_t))             \
  X(ek_data_parallel_optimizer_options, EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT, sizeof(size_t))   \
  X(ek_trainer_options, EK_TRAINER_OPTIONS_INIT, sizeof(size_t))                                   \
  X(ek_reducer_options, EK_REDUCER_OPTIONS_INIT, sizeof(size_t))                                   \
  X(ek_replica_options, EK_REPLICA_OPTIONS_INIT, sizeof(size_t))                                   \
  X(ek_module_check_options, EK_MODULE_CHECK_OPTIONS_INIT, sizeof(size_t))                         \
  X(ek_pass_options, EK_PASS_OPTIONS_INIT, sizeof(size_t))                                         \
  X(ek_child_options, EK_CHILD_OPTIONS_INIT, sizeof(size_t))                                       \
  X(ek_parameter_options, EK_PARAMETER_OPTIONS_INIT, sizeof(size_t))                               \
  X(ek_gpt_options, EK_GPT_OPTIONS_INIT, sizeof(size_t))                                           \
  X(ek_llama_options, EK_LLAMA_OPTIONS_INIT, sizeof(size_t))                                       \
  X(ek_sequential_options, EK_SEQUENTIAL_OPTIONS_INIT, sizeof(size_t))                             \
  X(ek_chain, EK_CHAIN_INIT, sizeof(size_t))                                                       \
  X(ek_module_options, EK_MODULE_OPTIONS_INIT, sizeof(size_t))                                     \
  X(ek_criterion_options, EK_CRITERION_OPTIONS_INIT, sizeof(size_t))                               \
  X(ek_linear_options, EK_LINEAR_OPTIONS_INIT, sizeof(size_t))                                     \
  X(ek_upsample_options, EK_UPSAMPLE_OPTIONS_INIT, sizeof(size_t))                                 \
  X(ek_pooling, EK_POOLING_INIT, sizeof(size_t))                                                   \
  X(ek_batch_norm_options, EK_BATCH_NORM_OPTIONS_INIT, sizeof(size_t))                             \
  X(ek_group_norm_options, EK_GROUP_NORM_OPTIONS_INIT, sizeof(size_t))                             \
  X(ek_resnet_options, EK_RESNET_OPTIONS_INIT, sizeof(size_t))                                     \
  X(ek_fcn_options, EK_FCN_OPTIONS_INIT, sizeof(size_t))                                           \
  X(ek_layer_norm_options, EK_LAYER_NORM_OPTIONS_INIT, sizeof(size_t))                             \
  X(ek_rotary, EK_ROTARY_INIT, sizeof(size_t))                                                     \
  X(ek_convolution, EK_CONVOLUTION_INIT, sizeof(size_t))                                           \
  X(ek_conv2d_options, EK_CONV2D_OPTIONS_INIT, sizeof(size_t))                                     \
  X(ek_embedding_options, EK_EMBEDDING_OPTIONS_INIT, sizeof(size_t))                               \
  X(ek_attention_options, EK_ATTENTION_OPTIONS_INIT, sizeof(size_t))                               \
  X(ek_attend_options, EK_ATTEND_OPTIONS_INIT, sizeof(size_t))                                     \
  X(ek_swiglu_options, EK_SWIGLU_OPTIONS_INIT, sizeof(size_t))                                     \
  X(ek_cross_entropy_options, EK_CROSS_ENTROPY_OPTIONS_INIT, sizeof(size_t))                       \
  X(ek_elementwise_loss_options, EK_ELEMENTWISE_LOSS_OPTIONS_INIT, sizeof(size_t))                 \
  X(ek_linear_cross_entropy_options, EK_LINEAR_CROSS_ENTROPY_OPTIONS_INIT, sizeof(size_t))         \
  X(ek_tokens_options, EK_TOKENS_OPTIONS_INIT, sizeof(size_t))                                     \
  X(ek_image_options, EK_IMAGE_OPTIONS_INIT, sizeof(size_t))                                       \
  X(ek_with_criterion_options, EK_WITH_CRITERION_OPTIONS_INIT, sizeof(size_t))                     \
  X(ek_sgd_options, EK_SGD_OPTIONS_INIT, sizeof(size_t))                                           \
  X(ek_adamw_options, EK_ADAMW_OPTIONS_INIT, sizeof(size_t))                                       \
  X(ek_muon_options, EK_MUON_OPTIONS_INIT, sizeof(size_t))
#define STRUCTS(X)                                                                                 \
  OPTIONS(X)                                                                                       \
  X(ek_advise_task, ADVISE_TASK, OLDEST(ek_advise_task, input_count))                              \
  X(ek_source_options, SOURCE_OPTIONS, OLDEST(ek_source_options, tensors))                         \
  X(ek_source_ops, SOURCE_OPS, OLDEST(ek_source_ops, free))                                        \
  X(ek_data_loader_options, DATA_LOADER_OPTIONS, OLDEST(ek_data_loader_options, batch))            \
  X(ek_trainer_run_options, TRAINER_RUN_OPTIONS, OLDEST(ek_trainer_run_options, batch))            \
  X(ek_image_arrays, IMAGE_ARRAYS, OLDEST(ek_image_arrays, classes))                               \
  X(ek_module_ops, MODULE_OPS, OLDEST(ek_module_ops, free))                                        \
  X(ek_optimizer_ops, OPTIMIZER_OPS, OLDEST(ek_optimizer_ops, free))

/* Their first values; nothing follows them. */
#define INITIAL(type, init, oldest) static const type initial_##type = init;
STRUCTS(INITIAL)

static const struct row {
  const char *name;
  const void *initial;
  size_t size, oldest;
  ek_status (*use)(struct bench *b, void *o);
} rows[] = {
#define ROW(type, init, oldest) {#type, &initial_##type, sizeof(type), oldest, use_##type},
    STRUCTS(ROW)};

enum { ROWS = sizeof rows / sizeof rows[0] };

/* A heap block of exactly the struct's size, so that a sanitizer sees reads past it. */
static void *made(const struct row *row, size_t stated) {
  unsigned char *o = malloc(row->size);
  ck_assert_ptr_nonnull(o);
  memset(o, 0xFF, row->size);
  const size_t given = stated < row->size ? stated : row->size;
  memcpy(o, row->initial, given);
  memcpy(o, &stated, sizeof stated);
  return o;
}

/* Each EK_..._INIT has a function that writes the same bytes, of a struct of any size that is
 * legal, and nothing after them. */
#define INITIALS(X)                                                                                \
  OPTIONS(X)                                                                                       \
  X(ek_advise_task, EK_ADVISE_TASK_INIT, 0)                                                        \
  X(ek_source_options, EK_SOURCE_OPTIONS_INIT, 0)                                                  \
  X(ek_data_loader_options, EK_DATA_LOADER_OPTIONS_INIT, 0)                                        \
  X(ek_trainer_run_options, EK_TRAINER_RUN_OPTIONS_INIT, 0)                                        \
  X(ek_image_arrays, EK_IMAGE_ARRAYS_INIT, 0)
#define MACRO(type, init, oldest) static const type macro_##type = init;
INITIALS(MACRO)
#define FUNCTION(type, init, oldest)                                                               \
  static ek_status init_##type(void *o, size_t size) { return type##_init(o, size); }
INITIALS(FUNCTION)

static const struct initial {
  const char *name;
  const void *macro;
  size_t size;
  ek_status (*init)(void *o, size_t size);
} initials[] = {
#define INITIAL_ROW(type, init, oldest) {#type, &macro_##type, sizeof(type), init_##type},
    INITIALS(INITIAL_ROW)};

enum { INITIAL_COUNT = sizeof initials / sizeof initials[0] };

CK_LOOP(functions_give_what_the_macros_give, INITIAL_COUNT) {
  const struct initial *it = &initials[_i];
  char *got = ck_array(it->size + 1, 1), *want = ck_array(it->size + 1, 1);
  for (size_t size = sizeof size; size <= it->size; size++) {
    memset(want, 0xA5, it->size + 1);
    memset(got, 0xA5, it->size + 1);
    memcpy(want, it->macro, size);
    memcpy(want, &size, sizeof size);
    ck_ok(it->init(got, size));
    ck_assert_msg(memcmp(got, want, it->size + 1) == 0, "%s with size %zu", it->name, size);
  }
  memcpy(want, got, it->size + 1);
  const size_t wrong[] = {0, sizeof(size_t) - 1, it->size + 1, SIZE_MAX};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    ck_invalid(it->init(got, wrong[i]), it->name);
  }
  ck_invalid(it->init(NULL, it->size), "options is NULL");
  ck_assert_mem_eq(got, want, it->size + 1);
}

CK_TEST(a_loss_scale_is_initialised_by_a_function) {
  static const ek_loss_scale macro = EK_LOSS_SCALE_INIT;
  ek_loss_scale got;
  memset(&got, 0, sizeof got);
  ek_loss_scale_init(&got);
  ck_assert(got.kind == macro.kind && got.scale == macro.scale && got.growth == macro.growth &&
            got.backoff == macro.backoff && got.interval == macro.interval);
}

CK_LOOP(the_own_size_is_taken, ROWS) {
  CK_SET_UP(struct bench, b, bench_open(&b));
  void *o = made(&rows[_i], rows[_i].size);
  ck_ok(rows[_i].use(&b, o));
  free(o);
}

/* Members that end where they ended; what follows is not the older program's. */
CK_LOOP(an_older_size_takes_defaults, ROWS) {
  CK_SET_UP(struct bench, b, bench_open(&b));
  const struct row *row = &rows[_i];
  for (size_t size = row->oldest; size < row->size; size += sizeof(int)) {
    void *o = made(row, size);
    const ek_status status = row->use(&b, o);
    ck_assert_msg(status == EK_OK, "%s with size %zu of %zu: %s", row->name, size, row->size,
                  ek_error_message());
    free(o);
  }
}

CK_LOOP(other_sizes_are_refused, ROWS) {
  CK_SET_UP(struct bench, b, bench_open(&b));
  const struct row *row = &rows[_i];
  const size_t sizes[] = {0, 1, sizeof(size_t) - 1, row->size + 1, 2 * row->size, SIZE_MAX};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    const char *text = ck_text("%s.size is %zu, expected %zu", row->name, sizes[i], row->size);
    void *o = made(row, row->size);
    memcpy(o, &sizes[i], sizeof sizes[i]);
    ck_invalid(row->use(&b, o), text);
    free(o);
  }
}

CK_LOOP(a_struct_without_what_it_must_have_is_refused, ROWS) {
  CK_SET_UP(struct bench, b, bench_open(&b));
  const struct row *row = &rows[_i];
  for (size_t size = sizeof(size_t); size < row->oldest; size += sizeof(void *)) {
    void *o = made(row, size);
    const char *text = strstr(row->name, "_ops") == NULL && row->use != use_ek_advise_task
                           ? "expected"
                           : "is missing";
    ck_invalid(row->use(&b, o), text);
    free(o);
  }
}

CK_TEST(a_mode_is_set_by_the_same_rule) {
  ek_data_parallel_model_options o = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  const size_t own = sizeof o;
  o.size = offsetof(ek_data_parallel_model_options, output_device);
  ck_ok(ek_data_parallel_model_options_set_mode(&o, EK_MODE_GATHER));
  ck_assert_int_eq(o.outputs, EK_OUTPUTS_GATHER);
  ck_assert_int_eq(o.state, EK_STATE_MASTER);
  const size_t refused[] = {0, own + 1, offsetof(ek_data_parallel_model_options, state)};
  for (size_t i = 0; i < 3; i++) {
    o.size = refused[i];
    ck_invalid(ek_data_parallel_model_options_set_mode(&o, EK_MODE_SHARDED),
               "ek_data_parallel_model_options.size");
    ck_assert_int_eq(o.state, EK_STATE_MASTER);
  }
}

CK_SUITE("options")
