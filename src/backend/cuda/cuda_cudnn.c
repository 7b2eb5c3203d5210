/*
 * cuda_cudnn.c - causal attention as a graph of one operation of cuDNN's.
 *
 *   S = scale Q K^T, masked;  lse = log sum exp S;  out = softmax(S) V
 *
 * The mask is a graph within the operation: a band, which keeps what is not right of the diagonal
 * and puts -infinity instead of the rest. lse is the natural logarithm, as our kernels have it, so
 * our backward follows either forward.
 */
#include "backend/cuda/cuda_cudnn.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The first with a mask in the operation, and the next that may have another interface. */
enum { LEAST_VERSION = 92100, NEXT_MAJOR = 100000 };

const char *ek__cudnn_load(struct ek__cudnn *library, const char *file) {
  const char *off = getenv("EVENKEEL_CUDA_CUDNN");
  if (off != NULL && strcmp(off, "0") == 0) return "EVENKEEL_CUDA_CUDNN is 0";
  void *opened = dlopen(file, RTLD_NOW | RTLD_LOCAL), *found = NULL;
  if (opened == NULL) return "it is not installed";
#define LOOK_UP(result, name, parameters)                                                          \
  if ((found = dlsym(opened, "cudnn" #name)) == NULL) return "it lacks cudnn" #name;               \
  memcpy(&library->name, &found, sizeof found); /* as POSIX has it */
  EK__CUDNN_LIST(LOOK_UP)
  const size_t version = library->GetVersion();
  return version < LEAST_VERSION || version >= NEXT_MAJOR ? "it is not 9.21 or a later 9" : NULL;
}

/* The numbers are of cuDNN's binary interface, in cudnn_graph.h. Those of attributes stand beside
 * the value that each is for; here are those of cudnnBackendDescriptorType_t, */
enum { ENGINE_CONFIG = 3, HEURISTIC, EXECUTION_PLAN, GRAPH = 15, VARIANT_PACK, TENSOR };
enum { ATTENTION = 41, BAND_MASK = 44 };
/* of cudnnBackendAttributeType_t, */
enum { OF_HANDLE = 0, OF_TYPE, OF_BOOLEAN, OF_INT64, OF_POINTER = 6, OF_HEURISTIC = 8 };
enum { OF_POINTWISE = 14, OF_DESCRIPTOR };
/* of types, a comparison, mode A of the heuristic and a status. */
enum { FLOAT = 0, HALF = 2, BFLOAT16 = 9, NOT_LESS = 303, BEST_FIRST = 3, NOT_SUPPORTED = 3000 };

struct attribute {
  int name, type;
  int64_t count;
  const void *values;
};

/* Nothing more is done after the first failure. */
static void *make(struct ek__cudnn_plan *p, int type) {
  void *made = NULL;
  if (p->status == 0) p->status = p->library->BackendCreateDescriptor(type, &made);
  return p->status == 0 ? p->made[p->count++] = made : NULL;
}

static void *describe(struct ek__cudnn_plan *p, int type, int count, const struct attribute *list) {
  void *made = make(p, type);
  for (const struct attribute *a = list; a < list + count && p->status == 0; a++) {
    p->status = p->library->BackendSetAttribute(made, a->name, a->type, a->count, a->values);
  }
  if (p->status == 0) p->status = p->library->BackendFinalize(made);
  return made;
}

static void get(struct ek__cudnn_plan *p, void *from, int name, int type, void *to) {
  int64_t count = 0;
  if (p->status == 0) p->status = p->library->BackendGetAttribute(from, name, type, 1, &count, to);
  if (p->status == 0 && count == 0) p->status = NOT_SUPPORTED; /* cuDNN crashes on an empty one */
}

/* Tensors, by the numbers that they have in a plan. The last two have no address. */
enum { Q = 1, K, V, OUT, LSE, SCALE, HIDDEN, SCORES, MASKED, TENSORS };

/* Of batch x heads x tokens x `last` elements, or of one. */
static void *make_tensor(struct ek__cudnn_plan *p, int tensor, const struct ek__attention_args *a) {
  const bool dense = tensor > OUT, virtual = tensor >= SCORES;
  const bool one = tensor == SCALE || tensor == HIDDEN;
  const int64_t rows[] = {0, a->q_step, a->k_step, a->v_step, a->heads * a->head_width};
  const int64_t last = !dense ? a->head_width : virtual ? a->tokens : 1;
  const int64_t row = dense ? last : rows[tensor], head = dense ? a->tokens * last : last;
  const int64_t sample = dense ? a->heads * head : a->tokens * row;
  const int64_t sizes[] = {a->batch, a->heads, a->tokens, last}, steps[] = {sample, head, row, 1};
  const int64_t ones[] = {1, 1, 1, 1}, number = tensor, alignment = 16;
  const int type = dense ? FLOAT : a->types.value == EK_BF16 ? BFLOAT16 : HALF;
  const struct attribute list[] = {
      {901, OF_TYPE, 1, &type},       {902, OF_INT64, 4, one ? ones : sizes},
      {906, OF_INT64, 1, &number},    {903, OF_INT64, 4, one ? ones : steps},
      {900, OF_INT64, 1, &alignment}, {907, OF_BOOLEAN, 1, &virtual},
      {908, OF_BOOLEAN, 1, &one}};
  return describe(p, TENSOR, 7, list);
}

static void *make_graph(struct ek__cudnn_plan *p, void *handle, void *operation) {
  const struct attribute list[] = {{801, OF_DESCRIPTOR, 1, &operation},
                                   {800, OF_HANDLE, 1, &handle}};
  return describe(p, GRAPH, 2, list);
}

static void *make_attention(struct ek__cudnn_plan *p, void *handle,
                            const struct ek__attention_args *args) {
  const int not_less = NOT_LESS; /* a row than a column that it sees */
  const int64_t before = SCORES, after = MASKED;
  void *t[TENSORS] = {NULL};
  for (int i = 1; i < TENSORS; i++) t[i] = make_tensor(p, i, args);
  const struct attribute band[] = {{3000, OF_DESCRIPTOR, 1, &t[SCORES]},
                                   {3005, OF_DESCRIPTOR, 1, &t[HIDDEN]},
                                   {3006, OF_DESCRIPTOR, 1, &t[MASKED]},
                                   {3007, OF_POINTWISE, 1, &not_less}};
  void *mask = make_graph(p, handle, describe(p, BAND_MASK, 4, band));
  const struct attribute list[] = {
      {2800, OF_DESCRIPTOR, 1, &t[Q]},   {2801, OF_DESCRIPTOR, 1, &t[K]},
      {2802, OF_DESCRIPTOR, 1, &t[V]},   {2803, OF_DESCRIPTOR, 1, &t[OUT]},
      {2804, OF_DESCRIPTOR, 1, &t[LSE]}, {2805, OF_DESCRIPTOR, 1, &t[SCALE]},
      {2811, OF_DESCRIPTOR, 1, &mask},   {2812, OF_INT64, 1, &before},
      {2813, OF_INT64, 1, &after}};
  return make_graph(p, handle, describe(p, ATTENTION, 9, list));
}

int ek__cudnn_plan_open(struct ek__cudnn_plan *plan, const struct ek__cudnn *library, void *handle,
                        const struct ek__attention_args *args) {
  const int mode = BEST_FIRST;
  *plan = (struct ek__cudnn_plan){.library = library};
  void *graph = make_attention(plan, handle, args);
  const struct attribute asked[] = {{201, OF_DESCRIPTOR, 1, &graph}, {200, OF_HEURISTIC, 1, &mode}};
  void *heuristic = describe(plan, HEURISTIC, 2, asked), *config = make(plan, ENGINE_CONFIG);
  get(plan, heuristic, 202, OF_DESCRIPTOR, &config);
  const struct attribute list[] = {{400, OF_HANDLE, 1, &handle}, {401, OF_DESCRIPTOR, 1, &config}};
  plan->plan = describe(plan, EXECUTION_PLAN, 2, list);
  get(plan, plan->plan, 402, OF_INT64, &plan->workspace);
  if (plan->status != 0) ek__cudnn_plan_close(plan);
  return plan->status;
}

void ek__cudnn_plan_close(struct ek__cudnn_plan *plan) {
  while (plan->count > 0) {
    (void)plan->library->BackendDestroyDescriptor(plan->made[--plan->count]);
  }
  plan->plan = NULL;
}

int ek__cudnn_plan_run(const struct ek__cudnn_plan *plan, void *handle,
                       const struct ek__attention_args *args, void *workspace) {
  static const int64_t numbers[] = {Q, K, V, OUT, LSE, SCALE, HIDDEN};
  const float scale = (float)(1 / sqrt((double)args->head_width)), hidden = -INFINITY;
  const void *at[] = {args->q, args->k, args->v, args->out, args->lse, &scale, &hidden};
  const struct attribute list[] = {{1000, OF_INT64, HIDDEN, numbers},
                                   {1001, OF_POINTER, HIDDEN, at},
                                   {1003, OF_POINTER, 1, &workspace}};
  struct ek__cudnn_plan once = {.library = plan->library};
  void *pack = describe(&once, VARIANT_PACK, 3, list);
  if (once.status == 0) once.status = plan->library->BackendExecute(handle, plan->plan, pack);
  ek__cudnn_plan_close(&once);
  return once.status;
}
