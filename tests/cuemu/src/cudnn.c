/*
 * cudnn.c - cuDNN's attention: descriptors that are checked, and a plan that is computed as its
 * graph says. So a graph that means something else than causal attention gives something else.
 *
 * A descriptor keeps its attributes as bytes. What has to be given and what has not, alignments,
 * sizes and types of attributes are checked. A workspace is filled with rubbish first. Whether the
 * real library takes a graph is another question: tests/cuda/check_cudnn_graph.c.
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
enum { ENGINE_CONFIG = 3, HEURISTIC, PLAN, GRAPH = 15, PACK, TENSOR, ATTENTION = 41, BAND = 44 };
enum { T_FLOAT = 0, T_HALF = 2, T_BFLOAT16 = 9, NOT_LESS = 303 };
enum { ATTRIBUTES = 10, BYTES = 64 };

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

size_t cudnnGetVersion(void) {
  if (!is_set && getenv("CUEMU_CUDNN") != NULL) wanted = CUEMU_CUDNN_FAST;
  return wanted.version;
}

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
  case 14: return 4;
  default: return 0;
  }
}

int cudnnBackendSetAttribute(void *raw, int name, int type, int64_t count, const void *values) {
  struct descriptor *d = raw;
  const size_t bytes = size_of(type) * (size_t)count;
  if (d->final || d->attributes == ATTRIBUTES || bytes == 0 || bytes > BYTES) return BAD_PARAM;
  for (int64_t i = 0; type == 15 && i < count; i++) {
    const struct descriptor *of = ((struct descriptor *const *)values)[i];
    if (of != NULL && of->type == ENGINE_CONFIG && !of->final) abort(); /* the real one crashes */
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

/* An integer of 1, 4 or 8 bytes; 0 where it is not given. */
static int64_t number(const struct descriptor *d, int name) {
  const struct attribute *a = find(d, name);
  const size_t size = a == NULL ? 0 : size_of(a->type);
  int64_t value = 0;
  if (a != NULL) memcpy(&value, a->bytes, size); /* of a little-endian machine, none is negative */
  return value;
}

/* The attributes that one of its type must have, by name and type. */
static bool is_complete(const struct descriptor *d) {
  static const struct {
    int descriptor, name, type;
    int64_t count; /* -1: any */
  } required[] = {{TENSOR, 900, 3, 1},      {TENSOR, 901, 1, 1},      {TENSOR, 902, 3, 4},
                  {TENSOR, 903, 3, 4},      {TENSOR, 906, 3, 1},      {BAND, 3000, 15, 1},
                  {BAND, 3005, 15, 1},      {BAND, 3006, 15, 1},      {BAND, 3007, 14, 1},
                  {ATTENTION, 2800, 15, 1}, {ATTENTION, 2801, 15, 1}, {ATTENTION, 2802, 15, 1},
                  {ATTENTION, 2803, 15, 1}, {ATTENTION, 2804, 15, 1}, {ATTENTION, 2805, 15, 1},
                  {ATTENTION, 2811, 15, 1}, {ATTENTION, 2812, 3, 1},  {ATTENTION, 2813, 3, 1},
                  {GRAPH, 800, 0, 1},       {GRAPH, 801, 15, 1},      {HEURISTIC, 200, 8, 1},
                  {HEURISTIC, 201, 15, 1},  {PLAN, 400, 0, 1},        {PLAN, 401, 15, 1},
                  {PACK, 1000, 3, -1},      {PACK, 1001, 6, -1},      {PACK, 1003, 6, 1}};
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
  *(int64_t *)values = (int64_t)wanted.workspace;
  return SUCCESS;
}

/* ---- a run ---- */

struct tensor {
  bool virtual, by_value;
  int type;
  int64_t number, size[4], step[4];
  void *data;
  float value; /* of one that is given by value */
};

struct run {
  struct tensor q, k, v, out, lse, scale, before, hidden, after;
  int comparison;
  void *workspace;
  size_t workspace_bytes;
  enum cuemu_cudnn_wrong wrong;
  int time;
};

static int64_t place(const struct tensor *t, const int64_t at[4]) {
  int64_t offset = 0;
  for (int i = 0; i < 4; i++) offset += at[i] * t->step[i];
  return offset;
}

static double get(const struct tensor *t, int64_t b, int64_t h, int64_t i, int64_t d) {
  const uint16_t bits = ((const uint16_t *)t->data)[place(t, (const int64_t[4]){b, h, i, d})];
  return t->type == T_BFLOAT16 ? cuemu_bfloat16_to_float(bits) : cuemu_half_to_float(bits);
}

/* The exponentials of a row's scores, and their sum's logarithm. */
static double score(const struct run *r, double *p, int64_t b, int64_t h, int64_t i) {
  double sum = 0;
  for (int64_t j = 0; j < r->k.size[2]; j++) {
    double s = 0;
    for (int64_t d = 0; d < r->q.size[3]; d++) s += get(&r->q, b, h, i, d) * get(&r->k, b, h, j, d);
    const bool kept = r->comparison == NOT_LESS ? i >= j : i < j;
    p[j] = exp(kept ? s * (double)r->scale.value : (double)r->hidden.value);
    sum += p[j];
  }
  return log(sum);
}

static void attend(const struct run *r, double *p, int64_t b, int64_t h, int64_t i) {
  const double lse = score(r, p, b, h, i);
  for (int64_t d = 0; d < r->v.size[3]; d++) {
    double sum = 0;
    for (int64_t j = 0; j < r->v.size[2]; j++) sum += p[j] * get(&r->v, b, h, j, d);
    const float y = (float)(sum / exp(lse)) * (r->wrong == CUEMU_WRONG_OUT && d % 2 == 0 ? -1 : 1);
    ((uint16_t *)r->out.data)[place(&r->out, (const int64_t[4]){b, h, i, d})] =
        r->out.type == T_BFLOAT16 ? cuemu_float_to_bfloat16(y) : cuemu_float_to_half(y);
  }
  ((float *)r->lse.data)[place(&r->lse, (const int64_t[4]){b, h, i, 0})] =
      (float)lse * (r->wrong == CUEMU_WRONG_LSE ? 1.01F : 1);
}

static cudaError_t run_graph(cudaStream_t stream, void *raw) {
  struct run *r = raw;
  const int64_t *size = r->q.size;
  double *p = cuemu_new((size_t)r->k.size[2] * sizeof *p);
  stream->clock += (uint64_t)(int64_t)r->time;
  memset(r->workspace, 0xff, r->workspace_bytes);
  for (int64_t b = 0; b < size[0]; b++) {
    for (int64_t h = 0; h < size[1]; h++) {
      for (int64_t i = 0; i < size[2]; i++) attend(r, p, b, h, i);
    }
  }
  free(p);
  return cudaSuccess;
}

/* ---- from descriptors ---- */

/* One that has an address is in the pack, and no other is. */
static bool read_tensor(struct tensor *t, const struct descriptor *d,
                        const struct descriptor *pack) {
  if (d->type != TENSOR) return false;
  const struct attribute *numbers = find(pack, 1000), *pointers = find(pack, 1001);
  t->number = number(d, 906);
  t->virtual = number(d, 907) != 0;
  t->by_value = number(d, 908) != 0;
  t->type = (int)number(d, 901);
  memcpy(t->size, find(d, 902)->bytes, sizeof t->size);
  memcpy(t->step, find(d, 903)->bytes, sizeof t->step);
  for (int64_t i = 0; i < numbers->count; i++) {
    if (((const int64_t *)(const void *)numbers->bytes)[i] != t->number) continue;
    t->data = ((void *const *)(const void *)pointers->bytes)[i];
  }
  if (t->virtual != (t->data == NULL)) return false;
  if (t->by_value) memcpy(&t->value, t->data, sizeof t->value); /* the host may change it */
  return t->by_value || (uintptr_t)t->data % (uintptr_t)number(d, 900) == 0;
}

/* batch x heads x tokens x the last size. */
static bool is(const struct tensor *t, int type, const int64_t size[4], int64_t last) {
  return t->type == type && !t->by_value && t->size[0] == size[0] && t->size[1] == size[1] &&
         t->size[2] == size[2] && t->size[3] == last;
}

static bool is_number(const struct tensor *t) {
  return t->type == T_FLOAT && t->by_value &&
         t->size[0] * t->size[1] * t->size[2] * t->size[3] == 1;
}

static bool fits(const struct run *r) {
  const int64_t *size = r->q.size;
  const int type = r->q.type;
  return (type == T_HALF || type == T_BFLOAT16) && is(&r->q, type, size, size[3]) &&
         is(&r->k, type, size, size[3]) && is(&r->v, type, size, size[3]) &&
         is(&r->out, type, size, size[3]) && is(&r->lse, T_FLOAT, size, 1) &&
         is(&r->before, T_FLOAT, size, size[2]) && is(&r->after, T_FLOAT, size, size[2]) &&
         r->before.virtual && r->after.virtual && is_number(&r->scale) && is_number(&r->hidden);
}

static bool describe(struct run *r, const struct descriptor *plan, const struct descriptor *pack) {
  const struct descriptor *operation = referred(referred(referred(plan, 401), 201), 801);
  if (operation->type != ATTENTION || find(pack, 1000)->count != find(pack, 1001)->count)
    return false;
  const struct descriptor *band = referred(referred(operation, 2811), 801);
  if (band->type != BAND) return false;
  struct tensor *tensors[] = {&r->q, &r->k, &r->v, &r->out, &r->lse, &r->scale};
  for (int i = 0; i < 6; i++) {
    if (!read_tensor(tensors[i], referred(operation, 2800 + i), pack)) return false;
  }
  r->comparison = (int)number(band, 3007);
  memcpy(&r->workspace, find(pack, 1003)->bytes, sizeof r->workspace);
  r->workspace_bytes = wanted.workspace;
  return read_tensor(&r->before, referred(band, 3000), pack) &&
         read_tensor(&r->hidden, referred(band, 3005), pack) &&
         read_tensor(&r->after, referred(band, 3006), pack) && fits(r) &&
         r->before.number == number(operation, 2812) && r->after.number == number(operation, 2813);
}

int cudnnBackendExecute(void *handle, void *plan, void *pack) {
  struct context *context = handle;
  const unsigned long number_of_call = atomic_fetch_add(&executions, 1) + 1;
  if (wanted.fails_at != 0 && number_of_call >= wanted.fails_at) {
    (void)cudaSetDevice(-1); /* a failure leaves an error of CUDA */
    return EXECUTION_FAILED;
  }
  if (!((struct descriptor *)plan)->final || !((struct descriptor *)pack)->final) return BAD_PARAM;
  struct run *r = cuemu_new(sizeof *r);
  r->wrong = wanted.wrong;
  r->time = wanted.time;
  if (!describe(r, plan, pack)) {
    fprintf(stderr, "cuemu: cuDNN: this graph is not attention, or is not given what it needs\n");
    free(r);
    return BAD_PARAM;
  }
  cuemu_enqueue(context->stream, CUEMU_KERNEL, run_graph, free, r);
  return SUCCESS;
}
