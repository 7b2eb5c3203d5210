/*
 * own_cuda.cu - a module with CUDA kernels of its own, trained on streams and memory of the
 * program's.
 *
 *     own_cuda [GPUS]     on the first GPUS of the machine (1)
 *
 * y = x w + b for each column is learned. The program has a stream for each GPU, which it gives to
 * the group: its own kernels and the library's run there in the order in which they are queued.
 * Batches are made by a kernel of the program's, in memory of cudaMalloc(), and never pass through
 * the host. docs/own-streams.md has the rules. Without a GPU the program says so and exits with 1.
 */
#include <cstdio>
#include <cstdlib>

#include <cuda_runtime.h>
#include <evenkeel/evenkeel.h>

enum { THREADS = 128, ROWS = 96, COLUMNS = 8, STEPS = 80, MOST_GPUS = 8 };

/* ---- kernels ---- */

__global__ void __launch_bounds__(THREADS)
    affine(float *y, const float *x, const float *w, const float *b, long long count) {
  const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
  if (i < count) y[i] = x[i] * w[i % COLUMNS] + b[i % COLUMNS];
}

__global__ void __launch_bounds__(THREADS)
    affine_input(float *dx, const float *dy, const float *w, long long count) {
  const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
  if (i < count) dx[i] = dy[i] * w[i % COLUMNS];
}

/* A thread for each column: the order of a sum is always the same. */
__global__ void __launch_bounds__(THREADS)
    affine_parameters(float *dw, float *db, const float *dy, const float *x, long long rows) {
  const int column = (int)threadIdx.x;
  if (column >= COLUMNS) return;
  for (long long r = 0; r < rows; r++) {
    dw[column] += dy[r * COLUMNS + column] * x[r * COLUMNS + column];
    db[column] += dy[r * COLUMNS + column];
  }
}

/* The program's own: samples in [-1, 1), and what is to be learned of them. */
__global__ void __launch_bounds__(THREADS) make_batch(float *x, float *target, unsigned step) {
  const unsigned i = blockIdx.x * THREADS + threadIdx.x;
  if (i >= ROWS * COLUMNS) return;
  const unsigned bits = (i * 2654435761u + step * 40503u) * 2246822519u;
  x[i] = (float)(bits >> 8) / 8388608.0f - 1;
  target[i] = x[i] * (float)(i % COLUMNS) + 0.5f;
}

static unsigned blocks(long long count) { return (unsigned)((count + THREADS - 1) / THREADS); }

/* ---- the module: its parameters are w and b ---- */

static float *floats(const ek_tensor *tensor) { return static_cast<float *>(tensor->data); }

static cudaStream_t stream_of(ek_pass *pass) {
  return static_cast<cudaStream_t>(ek_stream_native(ek_pass_stream(pass)));
}

static ek_status launched(void) {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return EK_OK;
  return ek_error_set(EK_ERR_INTERNAL, "affine: %s", cudaGetErrorString(error));
}

static ek_status affine_declare(const ek_module *, ek_declaration *declaration) {
  const int64_t shape[] = {COLUMNS};
  EK_TRY(ek_declare_parameter(declaration, "w", 1, shape, ek_initializer_ones()));
  return ek_declare_parameter(declaration, "b", 1, shape, ek_initializer_zeros());
}

/* Called on the worker of each GPU, which is the current one there. */
static ek_status affine_forward(const ek_module *, ek_pass *pass, const ek_tensor *inputs,
                                ek_tensor *outputs) {
  const ek_tensor *x = &inputs[0];
  const long long count = ek_tensor_count(x);
  ek_tensor w, b;
  EK_TRY(ek_pass_parameter(&w, pass, 0));
  EK_TRY(ek_pass_parameter(&b, pass, 1));
  EK_TRY(ek_pass_output(&outputs[0], pass, EK_F32, x->rank, x->shape));
  if (count > 0) {
    affine<<<blocks(count), THREADS, 0, stream_of(pass)>>>(floats(&outputs[0]), floats(x),
                                                           floats(&w), floats(&b), count);
    EK_TRY(launched());
  }
  return ek_pass_save(pass, x);
}

static ek_status affine_gradients(ek_pass *pass, const ek_tensor *dy, const ek_tensor *x,
                                  ek_tensor *dx) {
  const long long count = ek_tensor_count(x);
  ek_tensor w, dw, db;
  EK_TRY(ek_pass_parameter(&w, pass, 0));
  EK_TRY(ek_pass_gradient(&dw, nullptr, pass, 0));
  EK_TRY(ek_pass_gradient(&db, nullptr, pass, 1));
  if (count > 0) {
    affine_parameters<<<1, THREADS, 0, stream_of(pass)>>>(floats(&dw), floats(&db), floats(dy),
                                                          floats(x), count / COLUMNS);
    EK_TRY(launched());
  }
  EK_TRY(ek_pass_gradient_complete(pass, 0));
  EK_TRY(ek_pass_gradient_complete(pass, 1));
  if (dx == nullptr) return EK_OK; /* the gradient of the input is not needed */
  EK_TRY(ek_pass_output(dx, pass, EK_F32, x->rank, x->shape));
  if (count == 0) return EK_OK;
  affine_input<<<blocks(count), THREADS, 0, stream_of(pass)>>>(floats(dx), floats(dy), floats(&w),
                                                               count);
  return launched();
}

static ek_status affine_backward(const ek_module *, ek_pass *pass, const ek_tensor *grad_outputs,
                                 ek_tensor *grad_inputs) {
  ek_tensor x = {};
  EK_TRY(ek_pass_take(&x, pass));
  const ek_status status = affine_gradients(pass, &grad_outputs[0], &x, grad_inputs);
  ek_tensor_free(&x);
  return status;
}

static void affine_free(ek_module *self) { free(self); }

static ek_status affine_create(ek_module **module) {
  static ek_module_ops ops = {};
  ops.size = sizeof ops;
  ops.kind = "affine";
  ops.parameters = affine_declare;
  ops.forward = affine_forward;
  ops.backward = affine_backward;
  ops.free = affine_free;
  ops.types = EK_TYPES_F32;
  ek_module *made = static_cast<ek_module *>(calloc(1, sizeof *made));
  if (made == nullptr) return ek_error_set(EK_ERR_OUT_OF_MEMORY, "affine: out of memory");
  const ek_status status = ek_module_init(made, &ops, 1, 1);
  if (status != EK_OK) {
    free(made);
    return status;
  }
  *module = made;
  return EK_OK;
}

/* ---- training ---- */

struct program {
  int gpus;
  cudaStream_t streams[MOST_GPUS];
  void *memory[2]; /* of the batch on GPU 0: x, targets */
  ek_group *group;
  ek_module *module;
  ek_criterion *loss;
  ek_optimizer *sgd;
  ek_trainer *trainer;
  ek_tensor x, target;
};

static ek_status check(cudaError_t error) {
  return error == cudaSuccess ? EK_OK
                              : ek_error_set(EK_ERR_UNAVAILABLE, "%s", cudaGetErrorString(error));
}

static ek_status open_streams(struct program *p) {
  for (int i = 0; i < p->gpus; i++) {
    EK_TRY(check(cudaSetDevice(i)));
    EK_TRY(check(cudaStreamCreateWithFlags(&p->streams[i], cudaStreamNonBlocking)));
  }
  EK_TRY(check(cudaSetDevice(0)));
  for (int i = 0; i < 2; i++) {
    EK_TRY(check(cudaMalloc(&p->memory[i], ROWS * COLUMNS * sizeof(float))));
  }
  return EK_OK;
}

static ek_status open_group(struct program *p) {
  ek_device_resources resources[MOST_GPUS] = {};
  ek_group_options options = EK_GROUP_OPTIONS_INIT;
  char spec[32];
  (void)snprintf(spec, sizeof spec, "cuda:0-%d@64MiB", p->gpus - 1);
  for (int i = 0; i < p->gpus; i++) resources[i].stream = p->streams[i];
  options.resources = resources;
  options.resource_count = (size_t)p->gpus;
  return ek_group_open(&p->group, spec, &options);
}

static ek_status open_training(struct program *p) {
  const int64_t shape[] = {ROWS, COLUMNS};
  ek_trainer_options options = EK_TRAINER_OPTIONS_INIT;
  ek_sgd_options sgd = EK_SGD_OPTIONS_INIT;
  ek_device *first = ek_group_device(p->group, 0);
  sgd.learning_rate = 1;
  options.group = p->group;
  EK_TRY(affine_create(&p->module));
  EK_TRY(ek_mean_squared_error_create(&p->loss, EK_REDUCTION_MEAN));
  EK_TRY(ek_sgd_create(&p->sgd, &sgd));
  EK_TRY(ek_trainer_open(&p->trainer, nullptr, p->module, p->loss, p->sgd, &options));
  EK_TRY(ek_tensor_wrap(&p->x, first, p->memory[0], EK_F32, 2, shape, nullptr, nullptr));
  return ek_tensor_wrap(&p->target, first, p->memory[1], EK_F32, 2, shape, nullptr, nullptr);
}

static ek_status train(struct program *p, double *first, double *last) {
  EK_TRY(open_streams(p));
  EK_TRY(open_group(p));
  EK_TRY(open_training(p));
  const cudaStream_t first_stream = p->streams[0];
  for (unsigned i = 0; i < STEPS; i++) {
    ek_step_result result;
    EK_TRY(check(cudaSetDevice(0)));
    make_batch<<<blocks(ROWS * COLUMNS), THREADS, 0, first_stream>>>(floats(&p->x),
                                                                     floats(&p->target), i);
    EK_TRY(launched());
    EK_TRY(ek_trainer_step(&result, p->trainer, &p->x, 1, &p->target, 1));
    *last = result.loss;
    if (i == 0) *first = *last;
    if (i % 20 == 0 || i + 1 == STEPS) printf("step %2u  loss %.6f\n", i + 1, *last);
  }
  return EK_OK;
}

static void close_all(struct program *p) {
  ek_tensor_free(&p->target);
  ek_tensor_free(&p->x);
  ek_trainer_free(p->trainer);
  ek_optimizer_free(p->sgd);
  ek_criterion_free(p->loss);
  ek_module_free(p->module);
  ek_group_free(p->group);
  for (int i = 0; i < 2; i++) (void)cudaFree(p->memory[i]);
  for (int i = 0; i < p->gpus; i++) {
    if (p->streams[i] != nullptr) (void)cudaStreamDestroy(p->streams[i]);
  }
}

int main(int argc, char **argv) {
  struct program program = {};
  double first = 0, last = 0;
  program.gpus = argc > 1 ? atoi(argv[1]) : 1;
  if (program.gpus < 1 || program.gpus > MOST_GPUS) {
    fprintf(stderr, "usage: own_cuda [GPUS], from 1 to %d\n", MOST_GPUS);
    return 2;
  }
  const ek_status status = train(&program, &first, &last);
  if (status != EK_OK) fprintf(stderr, "%s: %s\n", ek_status_name(status), ek_error_message());
  close_all(&program);
  if (status != EK_OK) return 1;
  if (!(last < 0.01 * first)) {
    fprintf(stderr, "the loss did not fall\n");
    return 1;
  }
  return 0;
}
