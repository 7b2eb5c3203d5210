/*
 * cudnn.c - cuDNN's graphs: descriptors that are checked, and a plan that is computed operation by
 * operation, as the graph says. So a graph that means something else than attention gives something
 * else, whatever it was written for.
 *
 * A descriptor keeps its attributes as bytes. Matrices are four-dimensional; a virtual tensor has
 * memory of its own, in f32, laid out by its strides, and a reshape is another view of the same
 * memory. What has to be given and what has not, alignments, sizes and types of attributes are
 * checked. A workspace is filled with rubbish first. Whether the real library has a kernel for a
 * graph is another question: tests/cuda/check_cudnn_graph.c.
 */
#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "internal.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, BAD_PARAM = 2000, NOT_SUPPORTED = 3000, EXECUTION_FAILED = 5000 };
enum { ENGINE_CONFIG = 3, HEURISTIC, PLAN, OPERATION_POINTWISE = 13, GRAPH = 15, PACK, TENSOR };
enum { OPERATION_MATMUL = 19, OPERATION_REDUCTION = 22, RESHAPE = 31 };
enum { T_FLOAT = 0, T_HALF = 2, T_INT32 = 4, T_BFLOAT16 = 9, T_BOOLEAN = 11 };
enum { ATTRIBUTES = 10, BYTES = 256, NUMBERS = 64, MOST = 32 };

struct attribute {
  int name, type;
  int64_t count;
  unsigned char bytes[BYTES];
};

struct descriptor {
  int type, attributes;
  bool final;
  struct attribute attribute[ATTRIBUTES];
};

struct context {
  int device;
  cudaStream_t stream;
};

/* ---- what a test asks for ---- */

static struct cuemu_cudnn wanted;
static bool is_set;
static atomic_ulong executions;

void cuemu_set_cudnn(const struct cuemu_cudnn *settings) {
  wanted = *settings;
  is_set = true;
  atomic_store(&executions, 0);
}

unsigned long cuemu_cudnn_executions(void) { return atomic_load(&executions); }

const char *cuemu_cudnn_name(void) {
  if (!is_set && getenv("CUEMU_CUDNN") != NULL) wanted = CUEMU_CUDNN_FAST;
  return wanted.installed == 0   ? "libno_such_library.so"
         : wanted.installed == 1 ? "libc.so.6" /* which has none of the functions */
                                 : CUEMU_LIBRARY;
}

size_t cudnnGetVersion(void) { return wanted.version; }

int cudnnCreate(void **handle) {
  if (wanted.no_handle || cuemu_enter() != cudaSuccess) return 1001;
  struct context *made = cuemu_new(sizeof *made);
  made->device = cuemu_current_device();
  cuemu_count(&cuemu_devices[made->device].handles_alive, 1);
  *handle = made;
  return SUCCESS;
}

int cudnnDestroy(void *handle) {
  cuemu_count(&cuemu_devices[((struct context *)handle)->device].handles_alive, -1);
  free(handle);
  return SUCCESS;
}

int cudnnSetStream(void *handle, void *stream) {
  ((struct context *)handle)->stream = stream;
  return SUCCESS;
}

/* ---- descriptors ---- */

int cudnnBackendCreateDescriptor(int type, void **made) {
  struct descriptor *d = cuemu_new(sizeof *d);
  d->type = type;
  *made = d;
  cuemu_count(&cuemu_devices[0].handles_alive, 1);
  return SUCCESS;
}

int cudnnBackendDestroyDescriptor(void *descriptor) {
  free(descriptor);
  cuemu_count(&cuemu_devices[0].handles_alive, -1);
  return SUCCESS;
}

/* Bytes of a value, by its attribute's type; 0: there is no such type here. */
static size_t size_of(int type) {
  switch (type) {
  case 0:
  case 3:
  case 6:
  case 15: return 8;
  case 2: return 1;
  case 1:
  case 8:
  case 14:
  case 18: return 4;
  default: return 0;
  }
}

int cudnnBackendSetAttribute(void *raw, int name, int type, int64_t count, const void *values) {
  struct descriptor *d = raw;
  const size_t bytes = size_of(type) * (size_t)count;
  if (d->final || d->attributes == ATTRIBUTES || bytes == 0 || bytes > BYTES) return BAD_PARAM;
  for (int64_t i = 0; type == 15 && i < count; i++) {
    const struct descriptor *of = ((struct descriptor *const *)values)[i];
    if (of == NULL || !of->final) return BAD_PARAM;
  }
  struct attribute *a = &d->attribute[d->attributes++];
  *a = (struct attribute){.name = name, .type = type, .count = count};
  memcpy(a->bytes, values, bytes);
  return SUCCESS;
}

static const struct attribute *find(const struct descriptor *d, int name) {
  for (int i = 0; i < d->attributes; i++) {
    if (d->attribute[i].name == name) return &d->attribute[i];
  }
  return NULL;
}

static const struct descriptor *referred(const struct descriptor *d, int name) {
  const struct attribute *a = find(d, name);
  return a == NULL ? NULL : *(struct descriptor *const *)(const void *)a->bytes;
}

static int number(const struct descriptor *d, int name, int otherwise) {
  const struct attribute *a = find(d, name);
  int value = otherwise;
  if (a != NULL) memcpy(&value, a->bytes, size_of(a->type) < 4 ? 1 : 4);
  return a != NULL && a->type == 2 ? a->bytes[0] : value;
}

/* The attributes that one of its type must have, by name and type. */
static bool is_complete(const struct descriptor *d) {
  static const struct {
    int descriptor, name, type;
    int64_t count; /* -1: any */
  } required[] = {{TENSOR, 901, 1, 1},      {TENSOR, 902, 3, 4},   {TENSOR, 903, 3, 4},
                  {TENSOR, 906, 3, 1},      {TENSOR, 900, 3, 1},   {0, 0, 14, 1},
                  {0, 1, 1, 1},             {13, 750, 15, 1},      {13, 751, 15, 1},
                  {13, 753, 15, 1},         {18, 1500, 1, 1},      {19, 1520, 15, 1},
                  {19, 1521, 15, 1},        {19, 1522, 15, 1},     {19, 1523, 15, 1},
                  {21, 1600, 18, 1},        {21, 1601, 1, 1},      {22, 1610, 15, 1},
                  {22, 1611, 15, 1},        {22, 1612, 15, 1},     {RESHAPE, 2200, 15, 1},
                  {RESHAPE, 2201, 15, 1},   {GRAPH, 800, 0, 1},    {GRAPH, 801, 15, -1},
                  {HEURISTIC, 201, 15, 1},  {HEURISTIC, 200, 8, 1}, {PLAN, 400, 0, 1},
                  {PLAN, 401, 15, 1},       {PACK, 1000, 3, -1},   {PACK, 1001, 6, -1},
                  {PACK, 1003, 6, 1}};
  for (size_t i = 0; i < sizeof required / sizeof required[0]; i++) {
    if (required[i].descriptor != d->type) continue;
    const struct attribute *a = find(d, required[i].name);
    if (a == NULL || a->type != required[i].type) return false;
    if (required[i].count >= 0 && a->count != required[i].count) return false;
  }
  return true;
}

int cudnnBackendFinalize(void *raw) {
  struct descriptor *d = raw;
  if (d->final || !is_complete(d)) return BAD_PARAM;
  if (d->type == PLAN && wanted.no_plan) return NOT_SUPPORTED;
  d->final = true;
  return SUCCESS;
}

/* The samples of a graph: those of its first operation's result. */
static int64_t samples_of(const struct descriptor *graph) {
  const struct descriptor *first = referred(graph, 801);
  const struct descriptor *x = referred(first, first->type == OPERATION_MATMUL ? 1520 : 751);
  return ((const int64_t *)(const void *)find(x, 902)->bytes)[0];
}

int cudnnBackendGetAttribute(void *raw, int name, int type, int64_t room, int64_t *count,
                             void *values) {
  struct descriptor *d = raw;
  if (!d->final || room < 1) return BAD_PARAM;
  *count = 1;
  if (d->type == HEURISTIC && name == 202 && type == 15) {
    struct descriptor *config = ((struct descriptor **)values)[0];
    const struct descriptor *graph = referred(d, 201);
    if (wanted.no_engine) *count = 0;
    if (wanted.no_engine) return SUCCESS;
    if (config->type != ENGINE_CONFIG) return BAD_PARAM;
    const int status = cudnnBackendSetAttribute(config, 201, 15, 1, &graph);
    config->final = true;
    return status;
  }
  if (d->type != PLAN || name != 402 || type != 3) return BAD_PARAM;
  const struct descriptor *graph = referred(referred(d, 401), 201);
  *(int64_t *)values = 256 + (int64_t)wanted.workspace * samples_of(graph);
  return SUCCESS;
}

/* ---- a run ---- */

struct tensor {
  bool used, virtual;
  int type;
  int64_t size[4], step[4];
  void *data;
  float value; /* of a number that is given by value */
  bool owned;
};

struct operation {
  int kind, mode, axis, x, b, t, y;
};

struct run {
  struct tensor tensor[NUMBERS];
  struct operation operation[MOST];
  int count;
  void *workspace;
  size_t workspace_bytes;
  bool wrong;
  int time;
};

static int64_t last_of(const struct tensor *t) {
  int64_t last = 0;
  for (int i = 0; i < 4; i++) last += (t->size[i] - 1) * t->step[i];
  return last;
}

static int64_t place(const struct tensor *t, const int64_t at[4]) {
  int64_t offset = 0; /* a size of 1 is spread */
  for (int i = 0; i < 4; i++) offset += (t->size[i] == 1 ? 0 : at[i]) * t->step[i];
  return offset;
}

static double get(const struct tensor *t, const int64_t at[4]) {
  const int64_t i = place(t, at);
  if (!t->virtual && t->type == T_BFLOAT16) {
    return cuemu_bfloat16_to_float(((const uint16_t *)t->data)[i]);
  }
  if (!t->virtual && t->type == T_HALF) return cuemu_half_to_float(((const uint16_t *)t->data)[i]);
  return ((const float *)t->data)[i];
}

static void put(struct tensor *t, const int64_t at[4], double value) {
  const int64_t i = place(t, at);
  const uint16_t bits = t->type == T_BFLOAT16 ? cuemu_float_to_bfloat16((float)value)
                        : t->type == T_HALF   ? cuemu_float_to_half((float)value)
                                              : 0;
  const bool half = t->type == T_BFLOAT16 || t->type == T_HALF;
  if (half && !t->virtual) {
    ((uint16_t *)t->data)[i] = bits;
  } else {
    ((float *)t->data)[i] = !half                   ? (float)value
                            : t->type == T_BFLOAT16 ? cuemu_bfloat16_to_float(bits)
                                                    : cuemu_half_to_float(bits);
  }
}

static double apply(const struct run *r, const struct operation *o, const int64_t at[4]) {
  const double x = get(&r->tensor[o->x], at);
  const double b = o->b == 0 ? 0 : get(&r->tensor[o->b], at);
  switch (o->mode) {
  case 0: return x + b;
  case 1: return x * b;
  case 6: return x / b;
  case 9: return x - b;
  case 13: return exp(x);
  case 15: return log(x);
  case 21: return x;
  case 303: return x >= b;
  case 501: return (double)at[o->axis];
  case 601: return get(&r->tensor[o->t], at) != 0 ? x : b;
  default: return NAN;
  }
}

static double sum_at(const struct run *r, const struct operation *o, const int64_t at[4]) {
  const bool product = o->kind == OPERATION_MATMUL;
  const struct tensor *x = &r->tensor[o->x];
  double sum = product || o->mode == 0 ? 0 : -INFINITY;
  for (int64_t k = 0; k < x->size[3]; k++) {
    const int64_t of_x[4] = {at[0], at[1], at[2], k}, of_b[4] = {at[0], at[1], k, at[3]};
    const double value = get(x, of_x);
    if (product) sum += value * get(&r->tensor[o->b], of_b);
    if (!product) sum = o->mode == 0 ? sum + value : fmax(sum, value);
  }
  return sum;
}

static void perform(struct run *r, const struct operation *o) {
  struct tensor *y = &r->tensor[o->y];
  int64_t at[4];
  if (o->kind == RESHAPE) { /* the same memory, read in another order */
    y->data = r->tensor[o->x].data;
    y->virtual = r->tensor[o->x].virtual;
    if (!y->virtual) y->type = r->tensor[o->x].type;
    return;
  }
  if (y->virtual) y->data = cuemu_new((size_t)(last_of(y) + 1) * sizeof(float));
  y->owned = y->virtual;
  for (at[0] = 0; at[0] < y->size[0]; at[0]++) {
    for (at[1] = 0; at[1] < y->size[1]; at[1]++) {
      for (at[2] = 0; at[2] < y->size[2]; at[2]++) {
        for (at[3] = 0; at[3] < y->size[3]; at[3]++) {
          put(y, at, o->kind == OPERATION_POINTWISE ? apply(r, o, at) : sum_at(r, o, at));
        }
      }
    }
  }
}

static cudaError_t run_graph(cudaStream_t stream, void *raw) {
  struct run *r = raw;
  stream->clock += (uint64_t)(int64_t)r->time;
  memset(r->workspace, 0xff, r->workspace_bytes);
  for (int i = 0; i < r->count; i++) perform(r, &r->operation[i]);
  struct tensor *last = &r->tensor[r->operation[r->count - 1].y];
  for (int64_t i = 0; r->wrong && i < last_of(last); i += 2) ((uint16_t *)last->data)[i] ^= 0x8000u;
  for (int i = 0; i < NUMBERS; i++) {
    if (r->tensor[i].owned) free(r->tensor[i].data);
  }
  return cudaSuccess;
}

/* ---- from descriptors ---- */

/* What has an address is in the pack, and nothing else is. */
static bool add_tensor(struct run *r, int *own, const struct descriptor *d) {
  int64_t unique = 0;
  *own = 0;
  if (d == NULL) return true;
  memcpy(&unique, find(d, 906)->bytes, sizeof unique);
  if (unique < 1 || unique >= NUMBERS || d->type != TENSOR) return false;
  struct tensor *t = &r->tensor[*own = (int)unique];
  if (t->used) return true;
  t->used = true;
  t->virtual = number(d, 907, 0) != 0;
  t->type = number(d, 901, 0);
  memcpy(t->size, find(d, 902)->bytes, sizeof t->size);
  memcpy(t->step, find(d, 903)->bytes, sizeof t->step);
  if (t->virtual != (t->data == NULL)) return false;
  const bool aligned = (uintptr_t)t->data % (uintptr_t)number(d, 900, 1) == 0;
  if (number(d, 908, 0) == 0) return aligned;
  memcpy(&t->value, t->data, sizeof t->value); /* the host's, which may change it */
  t->data = &t->value;
  return true;
}

/* Sizes that fit: a matrix product's, or each 1 or that of the result. */
static bool fits(const struct run *r, const struct operation *o) {
  const int64_t *x = r->tensor[o->x].size, *b = r->tensor[o->b].size, *y = r->tensor[o->y].size;
  if (o->kind == OPERATION_MATMUL) {
    return x[0] == y[0] && x[1] == y[1] && x[2] == y[2] && b[3] == y[3] && x[3] == b[2];
  }
  for (int i = 0; i < 4 && o->kind == OPERATION_POINTWISE; i++) {
    if (x[i] != y[i] || (o->b != 0 && b[i] != 1 && b[i] != y[i])) return false;
  }
  return o->kind != OPERATION_REDUCTION || (x[2] == y[2] && y[3] == 1);
}

static bool add_operation(struct run *r, const struct descriptor *d) {
  static const int names[][6] = {{OPERATION_POINTWISE, 751, 752, 758, 753, 750},
                                 {OPERATION_MATMUL, 1520, 1521, 0, 1522, 1523},
                                 {OPERATION_REDUCTION, 1610, -1, 0, 1611, 1612},
                                 {RESHAPE, 2200, -1, 0, 2201, -1}};
  const int *name = names[0];
  for (int i = 0; i < 4; i++) name = names[i][0] == d->type ? names[i] : name;
  struct operation *o = &r->operation[r->count++];
  const struct descriptor *mode = referred(d, name[5]);
  const struct descriptor *t = d->type == OPERATION_POINTWISE ? referred(d, 758) : NULL;
  o->kind = d->type;
  if (mode != NULL && d->type != OPERATION_MATMUL) {
    o->mode = number(mode, d->type == OPERATION_REDUCTION ? 1600 : 0, 0);
    o->axis = d->type == OPERATION_POINTWISE ? number(mode, 9, 0) : 0;
  }
  return add_tensor(r, &o->x, referred(d, name[1])) && add_tensor(r, &o->b, referred(d, name[2])) &&
         add_tensor(r, &o->t, t) && add_tensor(r, &o->y, referred(d, name[4])) && fits(r, o);
}

static bool describe(struct run *r, const struct descriptor *plan, const struct descriptor *pack) {
  const struct attribute *numbers = find(pack, 1000), *pointers = find(pack, 1001);
  const struct descriptor *graph = referred(referred(plan, 401), 201);
  const struct attribute *operations = find(graph, 801);
  if (numbers->count != pointers->count || operations->count > MOST) return false;
  for (int64_t i = 0; i < numbers->count; i++) {
    const int64_t own = ((const int64_t *)(const void *)numbers->bytes)[i];
    if (own < 1 || own >= NUMBERS) return false;
    r->tensor[own].data = ((void *const *)(const void *)pointers->bytes)[i];
  }
  for (int64_t i = 0; i < operations->count; i++) {
    if (!add_operation(r, ((struct descriptor *const *)(const void *)operations->bytes)[i])) {
      fprintf(stderr, "cuemu: cuDNN: operation %d of a graph\n", (int)i);
      return false;
    }
  }
  memcpy(&r->workspace, find(pack, 1003)->bytes, sizeof r->workspace);
  r->workspace_bytes = 256 + wanted.workspace * (size_t)samples_of(graph);
  return true;
}

int cudnnBackendExecute(void *handle, void *plan, void *pack) {
  struct context *context = handle;
  const unsigned long number_of_call = atomic_fetch_add(&executions, 1) + 1;
  if (wanted.fails_at != 0 && number_of_call >= wanted.fails_at) return EXECUTION_FAILED;
  if (!((struct descriptor *)plan)->final || !((struct descriptor *)pack)->final) return BAD_PARAM;
  struct run *r = cuemu_new(sizeof *r);
  r->wrong = wanted.wrong;
  r->time = wanted.time;
  if (!describe(r, plan, pack)) {
    free(r);
    return BAD_PARAM;
  }
  cuemu_enqueue(context->stream, CUEMU_KERNEL, run_graph, free, r);
  return SUCCESS;
}
