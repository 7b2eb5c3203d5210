/*
 * cuda_cudnn_graph.c - attention as a graph of cuDNN's operations.
 *
 * cuDNN has no call for attention: a program describes the products, the mask and the softmax one
 * by one, and cuDNN knows the pattern and has one kernel for the whole. So the graphs below must be
 * written as cuDNN expects them: K and V as their transposes, the mask as a comparison of the row's
 * number with the column's, the rows' sums of dout times out as a tensor of its own.
 *
 *   forward    S = scale Q K^T, masked; lse = max + log sum exp(S - max); out = softmax(S) V
 *   backward   P = exp(S - lse), masked; delta = row sums of dout out; dV = P^T dout
 *              dS = scale P (dout V^T - delta); dK = dS^T Q; dQ = dS K
 *
 * lse is that of our kernels, the natural logarithm, so a forward and a backward may be of either
 * kind. dQ is added up in f32, in an order that no two runs share: a tensor in the workspace, as
 * delta is. Both are in front of the workspace that the plan asks for.
 *
 * A tensor's number in a plan is its number here plus one.
 */
#include "backend/cuda/cuda_cudnn.h"

#include <math.h>
#include <string.h>

/* ---- cuDNN's numbers: of its binary interface; cudnn_graph.h names them ---- */

/* cudnnBackendDescriptorType_t */
enum { POINTWISE_DESCRIPTOR = 0, ENGINE_CONFIG = 3, HEURISTIC = 4, EXECUTION_PLAN = 5 };
enum { OPERATION_POINTWISE = 13, OPERATION_GRAPH = 15, VARIANT_PACK = 16, TENSOR_DESCRIPTOR = 17 };
enum { MATMUL_DESCRIPTOR = 18, OPERATION_MATMUL = 19, REDUCTION_DESCRIPTOR = 21 };
enum { OPERATION_REDUCTION = 22, OPERATION_RESHAPE = 31 };

/* cudnnBackendAttributeName_t, by the descriptor that has them */
enum { POINTWISE_MODE = 0, POINTWISE_PRECISION = 1, POINTWISE_AXIS = 9 };
enum { POINTWISE_SELF = 750, POINTWISE_X, POINTWISE_B, POINTWISE_Y, POINTWISE_T = 758 };
enum { MATMUL_PRECISION = 1500, MATMUL_A = 1520, MATMUL_B, MATMUL_C, MATMUL_SELF };
enum { REDUCTION_OPERATOR = 1600, REDUCTION_PRECISION, REDUCTION_X = 1610, REDUCTION_Y };
enum { REDUCTION_SELF = 1612, RESHAPE_X = 2200, RESHAPE_Y };
enum { TENSOR_ALIGNMENT = 900, TENSOR_TYPE, TENSOR_SIZES, TENSOR_STEPS, TENSOR_NUMBER = 906 };
enum { TENSOR_VIRTUAL = 907, TENSOR_BY_VALUE = 908, GRAPH_HANDLE = 800, GRAPH_OPERATIONS };
enum { HEURISTIC_MODE = 200, HEURISTIC_GRAPH, HEURISTIC_RESULTS, HEURISTIC_PROPERTIES = 204 };
enum { PLAN_HANDLE = 400, PLAN_CONFIG, PLAN_WORKSPACE, PLAN_PROPERTIES = 407 };
enum { PACK_NUMBERS = 1000, PACK_POINTERS, PACK_WORKSPACE = 1003 };

/* cudnnBackendAttributeType_t */
enum { OF_HANDLE = 0, OF_TYPE = 1, OF_BOOLEAN = 2, OF_INT64 = 3, OF_POINTER = 6 };
enum { OF_HEURISTIC = 8, OF_POINTWISE = 14, OF_DESCRIPTOR = 15, OF_REDUCTION = 18 };

/* Types (VALUES stands for the type of the shape); pointwise modes; reductions; mode A of the
 * heuristic; statuses. */
enum { FLOAT = 0, HALF = 2, INT32 = 4, BFLOAT16 = 9, BOOLEAN = 11, VALUES = -1 };
enum { ADD = 0, MUL = 1, DIV = 6, SUB = 9, EXP = 13, LOG = 15, IDENTITY = 21 };
enum { NOT_LESS = 303, INDEX = 501, SELECT = 601 };
enum { SUM = 0, MAX = 3, BEST = 3, ALLOC_FAILED = 1003, NOT_SUPPORTED = 3000 };

/* ---- the graphs ---- */

enum layout {
  Q_ROWS, /* batch x heads x tokens x width, where the program has them */
  K_ROWS,
  V_ROWS,
  OUT_ROWS,
  K_TURNED, /* the same memory as batch x heads x width x tokens */
  V_TURNED,
  DENSE,         /* batch x heads x tokens x width, in this order */
  SCORES,        /* batch x heads x tokens x tokens */
  SCORES_TURNED, /* with the last two exchanged */
  LINES,         /* batch x heads x tokens x 1 */
  ONE
};

/* Tensors. An operation with 0 has no such operand. Tensors before SCORE have an address. */
enum tensor {
  Q = 1, K, V, V_T, OUT, LSE, DOUT, DQ, DK, DV, DELTA, DQ_SUM, SCALE, HIDDEN, UNIT,
  SCORE, SCALED, ROW, COLUMN, SEEN, SHIFTED, MASKED, LARGEST, EXPS, SUMS, LOGS, P, P_T,
  PRODUCTS, DOTS, DP, DP_LESS, DS_PLAIN, DS, DS_T, K_PLAIN, TENSORS
};

static const struct {
  enum layout layout;
  int type;
} tensors[TENSORS] = {
    [Q] = {Q_ROWS, VALUES},          [K] = {K_TURNED, VALUES},    [V] = {V_ROWS, VALUES},
    [V_T] = {V_TURNED, VALUES},      [OUT] = {OUT_ROWS, VALUES},  [LSE] = {LINES, FLOAT},
    [DOUT] = {OUT_ROWS, VALUES},     [DQ] = {Q_ROWS, VALUES},     [DK] = {K_ROWS, VALUES},
    [DV] = {V_ROWS, VALUES},         [DELTA] = {LINES, FLOAT},    [DQ_SUM] = {DENSE, FLOAT},
    [SCALE] = {ONE, FLOAT},          [HIDDEN] = {ONE, FLOAT},     [UNIT] = {ONE, FLOAT},
    [SCORE] = {SCORES, FLOAT},       [SCALED] = {SCORES, FLOAT},  [ROW] = {SCORES, INT32},
    [COLUMN] = {SCORES, INT32},      [SEEN] = {SCORES, BOOLEAN},  [SHIFTED] = {SCORES, FLOAT},
    [MASKED] = {SCORES, FLOAT},      [LARGEST] = {LINES, FLOAT},  [EXPS] = {SCORES, FLOAT},
    [SUMS] = {LINES, FLOAT},         [LOGS] = {LINES, FLOAT},     [P] = {SCORES, VALUES},
    [P_T] = {SCORES_TURNED, VALUES}, [PRODUCTS] = {DENSE, FLOAT}, [DOTS] = {LINES, FLOAT},
    [DP] = {SCORES, FLOAT},          [DP_LESS] = {SCORES, FLOAT}, [DS_PLAIN] = {SCORES, FLOAT},
    [DS] = {SCORES, FLOAT},          [DS_T] = {SCORES_TURNED, VALUES},
    [K_PLAIN] = {K_ROWS, FLOAT}};

enum kind { MATMUL, POINTWISE, REDUCTION, RESHAPE };

struct operation {
  enum kind kind;
  int mode;
  uint8_t x, b, t, y; /* y = x mode b; the mask of a choice is t */
  int64_t axis;       /* of INDEX */
};

static const struct operation forward[] = {
    {MATMUL, 0, Q, K, 0, SCORE, 0},
    {POINTWISE, MUL, SCORE, SCALE, 0, SCALED, 0},
    {POINTWISE, INDEX, SCALED, 0, 0, ROW, 2},
    {POINTWISE, INDEX, SCALED, 0, 0, COLUMN, 3},
    {POINTWISE, NOT_LESS, ROW, COLUMN, 0, SEEN, 0},
    {POINTWISE, SELECT, SCALED, HIDDEN, SEEN, MASKED, 0},
    {REDUCTION, MAX, MASKED, 0, 0, LARGEST, 0},
    {POINTWISE, SUB, MASKED, LARGEST, 0, SHIFTED, 0},
    {POINTWISE, EXP, SHIFTED, 0, 0, EXPS, 0},
    {REDUCTION, SUM, EXPS, 0, 0, SUMS, 0},
    {POINTWISE, LOG, SUMS, 0, 0, LOGS, 0},
    {POINTWISE, ADD, LARGEST, LOGS, 0, LSE, 0},
    {POINTWISE, DIV, EXPS, SUMS, 0, P, 0},
    {MATMUL, 0, P, V, 0, OUT, 0},
};

static const struct operation backward[] = {
    {POINTWISE, MUL, DOUT, OUT, 0, PRODUCTS, 0},
    {REDUCTION, SUM, PRODUCTS, 0, 0, DOTS, 0},
    {POINTWISE, MUL, DOTS, UNIT, 0, DELTA, 0}, /* 1 where nothing is dropped */
    {MATMUL, 0, Q, K, 0, SCORE, 0},
    {POINTWISE, MUL, SCORE, SCALE, 0, SCALED, 0},
    {POINTWISE, SUB, SCALED, LSE, 0, SHIFTED, 0},
    {POINTWISE, INDEX, SHIFTED, 0, 0, ROW, 2},
    {POINTWISE, INDEX, SHIFTED, 0, 0, COLUMN, 3},
    {POINTWISE, NOT_LESS, ROW, COLUMN, 0, SEEN, 0},
    {POINTWISE, SELECT, SHIFTED, HIDDEN, SEEN, MASKED, 0},
    {POINTWISE, EXP, MASKED, 0, 0, EXPS, 0},
    {RESHAPE, 0, EXPS, 0, 0, P_T, 0},
    {MATMUL, 0, P_T, DOUT, 0, DV, 0},
    {MATMUL, 0, DOUT, V_T, 0, DP, 0},
    {POINTWISE, SUB, DP, DELTA, 0, DP_LESS, 0},
    {POINTWISE, MUL, DP_LESS, EXPS, 0, DS_PLAIN, 0},
    {POINTWISE, MUL, DS_PLAIN, SCALE, 0, DS, 0},
    {RESHAPE, 0, DS, 0, 0, DS_T, 0},
    {MATMUL, 0, DS_T, Q, 0, DK, 0},
    {RESHAPE, 0, K, 0, 0, K_PLAIN, 0},
    {MATMUL, 0, DS, K_PLAIN, 0, DQ_SUM, 0},
    {POINTWISE, IDENTITY, DQ_SUM, 0, 0, DQ, 0},
};
enum { MOST_OPERATIONS = sizeof backward / sizeof backward[0] };

/* ---- descriptors ---- */

/* A plan that is being made: nothing more is done after the first failure. */
struct making {
  struct ek__cudnn_plan *plan;
  int status;
  void *tensor[TENSORS];
};

static void *make(struct making *m, int type) {
  void *made = NULL;
  if (m->status != 0) return NULL;
  m->status = m->plan->count == EK__CUDNN_DESCRIPTORS
                  ? ALLOC_FAILED
                  : m->plan->library->BackendCreateDescriptor(type, &made);
  if (m->status == 0) m->plan->made[m->plan->count++] = made;
  return m->status == 0 ? made : NULL;
}

static void set(struct making *m, void *descriptor, int name, int type, int64_t count,
                const void *values) {
  if (m->status != 0) return;
  m->status = m->plan->library->BackendSetAttribute(descriptor, name, type, count, values);
}

static void set_number(struct making *m, void *descriptor, int name, int type, int value) {
  set(m, descriptor, name, type, 1, &value);
}

static void refer(struct making *m, void *descriptor, int name, void *to) {
  set(m, descriptor, name, OF_DESCRIPTOR, 1, &to);
}

static void finish(struct making *m, void *descriptor) {
  if (m->status == 0) m->status = m->plan->library->BackendFinalize(descriptor);
}

static void swap(int64_t *a) {
  const int64_t kept = a[2];
  a[2] = a[3];
  a[3] = kept;
}

static void measure(int64_t size[4], int64_t step[4], enum layout layout,
                    const struct ek__cudnn_shape *s) {
  const bool lines = layout == LINES, scores = layout == SCORES || layout == SCORES_TURNED;
  const int64_t last = lines ? 1 : scores ? s->tokens : s->width;
  const int64_t row = layout == Q_ROWS                           ? s->q_step
                      : layout == K_ROWS || layout == K_TURNED ? s->k_step
                      : layout == V_ROWS || layout == V_TURNED ? s->v_step
                                                               : s->heads * s->width;
  const int64_t sizes[4] = {s->batch, s->heads, s->tokens, last};
  const int64_t apart[4] = {s->tokens * row, s->width, row, 1};
  const int64_t dense[4] = {s->heads * s->tokens * last, s->tokens * last, last, 1};
  memcpy(size, sizes, sizeof sizes);
  memcpy(step, lines || scores || layout == DENSE ? dense : apart, sizeof apart);
  if (layout == K_TURNED || layout == V_TURNED || layout == SCORES_TURNED) {
    swap(size);
    swap(step);
  }
  for (int i = 0; i < 4 && layout == ONE; i++) size[i] = step[i] = 1;
}

static void make_tensor(struct making *m, int number) {
  const struct ek__cudnn_shape *s = &m->plan->shape;
  const int type = tensors[number].type, values = s->bf16 ? BFLOAT16 : HALF;
  const int64_t alignment = 16, unique = number;
  const bool virtual = number >= SCORE, by_value = tensors[number].layout == ONE;
  int64_t size[4], step[4];
  if (number == 0 || m->tensor[number] != NULL) return;
  void *t = m->tensor[number] = make(m, TENSOR_DESCRIPTOR);
  measure(size, step, tensors[number].layout, s);
  set_number(m, t, TENSOR_TYPE, OF_TYPE, type == VALUES ? values : type);
  set(m, t, TENSOR_SIZES, OF_INT64, 4, size);
  set(m, t, TENSOR_STEPS, OF_INT64, 4, step);
  set(m, t, TENSOR_NUMBER, OF_INT64, 1, &unique);
  set(m, t, TENSOR_ALIGNMENT, OF_INT64, 1, &alignment);
  set(m, t, TENSOR_VIRTUAL, OF_BOOLEAN, 1, &virtual);
  set(m, t, TENSOR_BY_VALUE, OF_BOOLEAN, 1, &by_value);
  finish(m, t);
}

/* What an operation does, which is a descriptor of its own. */
static void *make_mode(struct making *m, const struct operation *o) {
  if (o->kind == RESHAPE) return NULL;
  if (o->kind == MATMUL) {
    void *product = make(m, MATMUL_DESCRIPTOR);
    set_number(m, product, MATMUL_PRECISION, OF_TYPE, FLOAT);
    finish(m, product);
    return product;
  }
  const bool reduces = o->kind == REDUCTION;
  void *mode = make(m, reduces ? REDUCTION_DESCRIPTOR : POINTWISE_DESCRIPTOR);
  set_number(m, mode, reduces ? REDUCTION_OPERATOR : POINTWISE_MODE,
             reduces ? OF_REDUCTION : OF_POINTWISE, o->mode);
  set_number(m, mode, reduces ? REDUCTION_PRECISION : POINTWISE_PRECISION, OF_TYPE,
             o->mode == NOT_LESS ? BOOLEAN : FLOAT);
  if (o->axis != 0) set(m, mode, POINTWISE_AXIS, OF_INT64, 1, &o->axis);
  finish(m, mode);
  return mode;
}

static void *make_operation(struct making *m, const struct operation *o) {
  static const struct {
    int type, self, x, b, t, y;
  } names[] = {
      [MATMUL] = {OPERATION_MATMUL, MATMUL_SELF, MATMUL_A, MATMUL_B, 0, MATMUL_C},
      [POINTWISE] = {OPERATION_POINTWISE, POINTWISE_SELF, POINTWISE_X, POINTWISE_B, POINTWISE_T,
                     POINTWISE_Y},
      [REDUCTION] = {OPERATION_REDUCTION, REDUCTION_SELF, REDUCTION_X, 0, 0, REDUCTION_Y},
      [RESHAPE] = {OPERATION_RESHAPE, 0, RESHAPE_X, 0, 0, RESHAPE_Y}};
  void *mode = make_mode(m, o);
  const int number[] = {o->x, o->b, o->t, o->y};
  const int name[] = {names[o->kind].x, names[o->kind].b, names[o->kind].t, names[o->kind].y};
  for (int i = 0; i < 4; i++) make_tensor(m, number[i]);
  void *made = make(m, names[o->kind].type);
  if (mode != NULL) refer(m, made, names[o->kind].self, mode);
  for (int i = 0; i < 4; i++) {
    if (number[i] != 0) refer(m, made, name[i], m->tensor[number[i]]);
  }
  finish(m, made);
  return made;
}

static void *make_graph(struct making *m, void *handle) {
  const bool back = m->plan->shape.backward != 0;
  const struct operation *list = back ? backward : forward;
  const int count = back ? MOST_OPERATIONS : (int)(sizeof forward / sizeof forward[0]);
  void *operations[MOST_OPERATIONS];
  for (int i = 0; i < count; i++) operations[i] = make_operation(m, &list[i]);
  void *graph = make(m, OPERATION_GRAPH);
  set(m, graph, GRAPH_OPERATIONS, OF_DESCRIPTOR, count, operations);
  if (handle != NULL) set(m, graph, GRAPH_HANDLE, OF_HANDLE, 1, &handle);
  finish(m, graph);
  return graph;
}

/* ---- plans ---- */

/* Of what a plan of cuDNN's needs, and in front of it: dQ in f32, and delta. */
static uint64_t dq_bytes(const struct ek__cudnn_shape *s) {
  const int64_t elements = s->batch * s->heads * s->tokens * s->width;
  return s->backward ? (uint64_t)elements * sizeof(float) : 0;
}

static uint64_t own_bytes(const struct ek__cudnn_shape *s) {
  const uint64_t lines = (uint64_t)(s->batch * s->heads * s->tokens) * sizeof(float);
  return s->backward ? (dq_bytes(s) + lines + 255) / 256 * 256 : 0;
}

/* The heuristic's configurations in its order, until one can be made. */
static void choose(struct making *m, void *graph, void *handle, void *properties) {
  enum { CONFIGS = 8 };
  const struct ek__cudnn *library = m->plan->library;
  void *config[CONFIGS], *heuristic = make(m, HEURISTIC);
  int64_t count = 0, workspace = 0;
  refer(m, heuristic, HEURISTIC_GRAPH, graph);
  set_number(m, heuristic, HEURISTIC_MODE, OF_HEURISTIC, BEST);
  if (handle == NULL) refer(m, heuristic, HEURISTIC_PROPERTIES, properties);
  finish(m, heuristic);
  for (int i = 0; i < CONFIGS; i++) config[i] = make(m, ENGINE_CONFIG);
  if (m->status != 0) return;
  m->status = library->BackendGetAttribute(heuristic, HEURISTIC_RESULTS, OF_DESCRIPTOR, CONFIGS,
                                           &count, config);
  if (m->status == 0 && count == 0) m->status = NOT_SUPPORTED;
  for (int64_t i = 0; i < count && i < CONFIGS; i++) {
    m->status = 0;
    void *plan = m->plan->plan = make(m, EXECUTION_PLAN);
    if (handle != NULL) set(m, plan, PLAN_HANDLE, OF_HANDLE, 1, &handle);
    if (handle == NULL) refer(m, plan, PLAN_PROPERTIES, properties);
    refer(m, plan, PLAN_CONFIG, config[i]);
    finish(m, plan);
    if (m->status != 0) continue;
    m->status =
        library->BackendGetAttribute(plan, PLAN_WORKSPACE, OF_INT64, 1, &count, &workspace);
    m->plan->workspace = own_bytes(&m->plan->shape) + (uint64_t)workspace;
    return;
  }
}

int ek__cudnn_plan_open(struct ek__cudnn_plan *plan, const struct ek__cudnn *library,
                        const struct ek__cudnn_shape *shape, void *handle, void *properties) {
  struct making m = {.plan = plan};
  *plan = (struct ek__cudnn_plan){.library = library, .shape = *shape};
  choose(&m, make_graph(&m, handle), handle, properties);
  if (m.status != 0) ek__cudnn_plan_close(plan);
  return m.status;
}

void ek__cudnn_plan_close(struct ek__cudnn_plan *plan) {
  while (plan->count > 0) {
    (void)plan->library->BackendDestroyDescriptor(plan->made[--plan->count]);
  }
  plan->plan = NULL;
}

int ek__cudnn_plan_run(const struct ek__cudnn_plan *plan, void *handle,
                       const struct ek__cudnn_operands *at) {
  const struct ek__cudnn *library = plan->library;
  const struct ek__cudnn_shape *s = &plan->shape;
  const float scale = (float)(1.0 / sqrt((double)s->width)), hidden = -INFINITY, unit = 1;
  char *const own = at->workspace, *const theirs = own + own_bytes(s);
  const void *const all[SCORE] = {
      [Q] = at->q,      [K] = at->k,        [V] = at->v,         [V_T] = at->v,
      [OUT] = at->out,  [LSE] = at->lse,    [DOUT] = at->dout,   [DQ] = at->dq,
      [DK] = at->dk,    [DV] = at->dv,      [DQ_SUM] = own,      [DELTA] = own + dq_bytes(s),
      [SCALE] = &scale, [HIDDEN] = &hidden, [UNIT] = &unit};
  static const uint8_t of_forward[] = {Q, K, V, OUT, LSE, SCALE, HIDDEN};
  static const uint8_t of_backward[] = {Q,  K,  V_T,   OUT,    LSE,   DOUT,   DQ,
                                        DK, DV, DELTA, DQ_SUM, SCALE, HIDDEN, UNIT};
  const uint8_t *list = s->backward ? of_backward : of_forward;
  const int count = s->backward ? (int)sizeof of_backward : (int)sizeof of_forward;
  const void *pointers[sizeof of_backward];
  int64_t numbers[sizeof of_backward];
  void *pack = NULL;
  for (int i = 0; i < count; i++) {
    numbers[i] = list[i];
    pointers[i] = all[list[i]];
  }
  int status = library->BackendCreateDescriptor(VARIANT_PACK, &pack);
  if (status != 0) return status;
  status = library->BackendSetAttribute(pack, PACK_NUMBERS, OF_INT64, count, numbers);
  if (status == 0) {
    status = library->BackendSetAttribute(pack, PACK_POINTERS, OF_POINTER, count, pointers);
  }
  if (status == 0) {
    status = library->BackendSetAttribute(pack, PACK_WORKSPACE, OF_POINTER, 1, &theirs);
  }
  if (status == 0) status = library->BackendFinalize(pack);
  if (status == 0) status = library->BackendExecute(handle, plan->plan, pack);
  (void)library->BackendDestroyDescriptor(pack);
  return status;
}
