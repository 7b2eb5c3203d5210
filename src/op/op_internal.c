/*
 * op_internal.c - the checks that all operations share: see op_internal.h.
 */
#include "op/op_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/sizes.h"
#include "device/fault_internal.h"
#include "device/types.h"

const char *ek__op_shape_text(char text[EK__OP_SHAPE_TEXT], const ek_tensor *tensor) {
  if (tensor->rank == 0) {
    snprintf(text, EK__OP_SHAPE_TEXT, "one element");
    return text;
  }
  if (tensor->rank < 0 || tensor->rank > EK_MAX_RANK) { /* a struct that was filled by hand */
    snprintf(text, EK__OP_SHAPE_TEXT, "of rank %d", tensor->rank);
    return text;
  }
  size_t used = 0;
  for (int d = 0; d < tensor->rank && used < EK__OP_SHAPE_TEXT; d++) {
    const int wrote = snprintf(text + used, EK__OP_SHAPE_TEXT - used, "%s%" PRId64,
                               d == 0 ? "" : " x ", tensor->shape[d]);
    if (wrote < 0) break;
    used += (size_t)wrote;
  }
  return text;
}

/* A struct that a caller filled by hand may hold anything: nothing later looks at it again. */
static ek_status check_tensor(struct ek__op *op, size_t i) {
  const struct ek__operand *operand = &op->operand[i];
  const ek_tensor *t = operand->tensor;
  EK__FAIL_IF(t == NULL || !ek_tensor_exists(t), EK_ERR_INVALID_ARGUMENT, "%s: %s is %s", op->name,
              operand->name, t == NULL ? "NULL" : "an absent tensor");
  EK__FAIL_IF(t->rank < 0 || t->rank > EK_MAX_RANK, EK_ERR_INVALID_ARGUMENT,
              "%s: %s has rank %d, which is outside 0 .. %d", op->name, operand->name, t->rank,
              EK_MAX_RANK);
  int64_t rows = 1;
  const int64_t columns = t->rank == 0 ? 1 : t->shape[t->rank - 1];
  bool fits = true;
  char text[EK__OP_SHAPE_TEXT];
  for (int d = 0; d < t->rank; d++) {
    EK__FAIL_IF(t->shape[d] < 0, EK_ERR_INVALID_ARGUMENT, "%s: %s is %s, which has a negative size",
                op->name, operand->name, ek__op_shape_text(text, t));
    if (d < t->rank - 1) fits = fits && ek__multiply(&rows, rows, t->shape[d]);
  }
  int64_t elements = 0;
  int64_t bytes = 0;
  fits = fits && ek__multiply(&elements, rows, columns) &&
         ek__multiply(&bytes, elements, (int64_t)ek_type_size(t->type));
  EK__FAIL_IF(!fits, EK_ERR_OVERFLOW, "%s: %s is %s, whose bytes do not fit in 63 bits", op->name,
              operand->name, ek__op_shape_text(text, t));
  op->rows[i] = rows;
  op->columns[i] = columns;
  return EK_OK;
}

static ek_status check_device(const struct ek__op *op, size_t i, const ek_device *device) {
  const struct ek__operand *operand = &op->operand[i];
  const ek_tensor *t = operand->tensor;
  EK__FAIL_IF(t->device == NULL, EK_ERR_DEVICE,
              "%s: %s is in host memory, but the stream belongs to %s", op->name, operand->name,
              ek_device_name(device));
  /* Where all devices share one address space, a kernel reaches its group's other devices too. */
  const bool reachable =
      t->device == device || (ek__device_table(device)->shared_memory &&
                              ek_device_group(t->device) == ek_device_group(device));
  EK__FAIL_IF(!reachable, EK_ERR_DEVICE, "%s: %s is on %s%s, but the stream belongs to %s",
              op->name, operand->name, ek_device_name(t->device),
              ek_device_group(t->device) == ek_device_group(device) ? "" : " of another group",
              ek_device_name(device));
  EK__FAIL_IF(op->kernels != NULL && t->data == NULL && op->rows[i] != 0 && op->columns[i] != 0,
              EK_ERR_INVALID_ARGUMENT, "%s: %s has elements but no memory", op->name,
              operand->name);
  return EK_OK;
}

static ek_status wrong_type(const struct ek__op *op, size_t i, const char *wanted) {
  return ek_error_set(EK_ERR_TYPE, "%s: %s is %s but must be %s", op->name, op->operand[i].name,
                      ek_type_name(op->operand[i].tensor->type), wanted);
}

/* That the type is one of its role; check_types() compares it with the others. */
static ek_status check_type(const struct ek__op *op, size_t i, const ek_device *device) {
  const struct ek__operand *operand = &op->operand[i];
  const ek_type type = operand->tensor->type;
  switch (operand->role) {
  case EK__ANY:
    if (ek__type_is_unsigned(type)) return wrong_type(op, i, "a type of tensors on devices");
    return ek_type_size(type) != 0 ? EK_OK : wrong_type(op, i, "a type of tensor.h");
  case EK__F64: return type == EK_F64 ? EK_OK : wrong_type(op, i, "f64");
  case EK__I32: return type == EK_I32 ? EK_OK : wrong_type(op, i, "i32");
  case EK__FLOAT:
    return ek__type_is_floating(type) ? EK_OK : wrong_type(op, i, "f32, f64, bf16 or f16");
  case EK__SUM: return type == EK_F32 || type == EK_F64 ? EK_OK : wrong_type(op, i, "f32 or f64");
  case EK__VALUE:
  case EK__EITHER: break;
  }
  if (!ek__type_is_floating(type)) return wrong_type(op, i, "f32, f64, bf16 or f16");
  if ((ek__device_table(device)->values >> type & 1u) != 0) return EK_OK;
  return ek_error_set(EK_ERR_UNSUPPORTED, "%s: %s is %s, a type that %s does not compute "
                                          "in", op->name,
                      operand->name, ek_type_name(type), ek_device_name(device));
}

/* The first value says the types of a call; without one the first of what may be one and is of 16
 * bits, or the first sum. */
static struct ek__types types_of(const struct ek__op *op, const ek_stream *stream) {
  ek_type first[EK__EITHER + 1] = {(ek_type)0};
  for (size_t i = op->count; i-- > 0;) {
    const struct ek__operand *operand = &op->operand[i];
    if (operand->tensor == NULL || operand->role > EK__EITHER) continue;
    if (operand->role == EK__EITHER && !ek__type_is_half(operand->tensor->type)) continue;
    first[operand->role] = operand->tensor->type;
  }
  const ek_type value = first[EK__VALUE] != 0    ? first[EK__VALUE]
                        : first[EK__EITHER] != 0 ? first[EK__EITHER]
                                                 : first[EK__SUM];
  struct ek__types types = ek__types_in(value);
  types.tf32 = value == EK_F32 && ek_stream_allows_tf32(stream);
  return types;
}

static ek_status check_types(struct ek__op *op, const ek_stream *stream) {
  op->types = types_of(op, stream);
  for (size_t i = 0; i < op->count; i++) {
    const struct ek__operand *operand = &op->operand[i];
    if (operand->tensor == NULL || operand->role > EK__EITHER) continue;
    const ek_type type = operand->tensor->type;
    const ek_type wanted = operand->role == EK__SUM ? op->types.sum : op->types.value;
    const bool fits = type == wanted || (operand->role == EK__EITHER && type == op->types.sum);
    if (!fits) return wrong_type(op, i, ek_type_name(wanted));
  }
  return EK_OK;
}

static bool overlaps(const ek_tensor *a, const ek_tensor *b) {
  /* Different devices are different memory; `plan` may give them equal addresses. */
  if (a->device != b->device) return false;
  const uintptr_t a_first = (uintptr_t)a->data, b_first = (uintptr_t)b->data;
  const size_t a_bytes = ek_tensor_bytes(a), b_bytes = ek_tensor_bytes(b);
  if (a_bytes == 0 || b_bytes == 0) return false;
  return a_first <= b_first ? b_first - a_first < a_bytes : a_first - b_first < b_bytes;
}

/* A destination may overlap no other operand, but may be the ones that its table row names. */
static ek_status check_overlap(const struct ek__op *op, size_t i) {
  const struct ek__operand *y = &op->operand[i];
  for (size_t j = 0; j < op->count; j++) {
    const struct ek__operand *x = &op->operand[j];
    if (j == i || x->tensor == NULL || !overlaps(y->tensor, x->tensor)) continue;
    const bool itself = y->tensor->data == x->tensor->data &&
                        ek_tensor_bytes(y->tensor) == ek_tensor_bytes(x->tensor);
    const bool allowed =
        ((y->may_be & EK__OPERAND(j)) != 0) || (x->written && (x->may_be & EK__OPERAND(i)) != 0);
    if (itself && allowed) continue;
    char y_text[EK__OP_SHAPE_TEXT], x_text[EK__OP_SHAPE_TEXT];
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s: %s (%s) overlaps %s (%s)%s", op->name,
                        y->name, ek__op_shape_text(y_text, y->tensor), x->name,
                        ek__op_shape_text(x_text, x->tensor),
                        allowed ? " and is not the same tensor" : "");
  }
  return EK_OK;
}

/* A kernel would walk over the rows of 2^58 x 0 for nothing. An empty operand that is reduced into
 * something, such as a bias gradient of no rows, has a destination with elements. */
static bool nothing_to_write(const struct ek__op *op) {
  for (size_t i = 0; i < op->count; i++) {
    const struct ek__operand *y = &op->operand[i];
    if (y->written && y->tensor != NULL && ek__op_elements(op, i) > 0) return false;
  }
  return true;
}

static ek_status check_same(const struct ek__op *op, size_t i, size_t j) {
  if (op->rows[i] == op->rows[j] && op->columns[i] == op->columns[j]) return EK_OK;
  char i_text[EK__OP_SHAPE_TEXT], j_text[EK__OP_SHAPE_TEXT];
  return ek_error_set(EK_ERR_SHAPE, "%s: %s is %s but %s is %s", op->name, op->operand[i].name,
                      ek__op_shape_text(i_text, op->operand[i].tensor), op->operand[j].name,
                      ek__op_shape_text(j_text, op->operand[j].tensor));
}

static ek_status check_exactly(const struct ek__op *op, size_t i, int64_t elements) {
  char text[EK__OP_SHAPE_TEXT];
  if (ek__op_elements(op, i) == elements) return EK_OK;
  return ek_error_set(EK_ERR_SHAPE, "%s: %s is %s but must have exactly %" PRId64 " elements",
                      op->name, op->operand[i].name, ek__op_shape_text(text, op->operand[i].tensor),
                      elements);
}

static ek_status check_size(const struct ek__op *op, size_t i) {
  const size_t j = op->operand[i].of;
  switch (op->operand[i].size) {
  case EK__SIZE_ANY: break;
  case EK__SIZE_SAME: return check_same(op, i, j);
  case EK__SIZE_ALL: return ek__op_fits(op, i, ek__op_elements(op, j), j);
  case EK__SIZE_ROW: return ek__op_fits(op, i, op->columns[j], j);
  case EK__SIZE_COLUMN: return ek__op_fits(op, i, op->rows[j], j);
  case EK__SIZE_EXACTLY: return check_exactly(op, i, (int64_t)j);
  }
  return EK_OK;
}

static void count_bytes(const struct ek__op *op) {
  double largest = 0;
  ek_type type = op->types.value; /* of the largest */
  for (size_t i = 0; i < op->count; i++) {
    const struct ek__operand *operand = &op->operand[i];
    if (operand->tensor == NULL || operand->picked) continue;
    const double own =
        (double)ek__op_elements(op, i) * (double)ek__type_size(operand->tensor->type);
    ek__work_of(op->work, operand->tensor->type)->bytes += operand->written ? 2 * own : own;
    if (own <= largest) continue;
    largest = own;
    type = operand->tensor->type;
  }
  /* As much of it as the rows that go there, or come from there. */
  for (size_t i = 0; i < op->count; i++) {
    const struct ek__operand *operand = &op->operand[i];
    if (operand->picked) {
      ek__work_of(op->work, type)->bytes += operand->written ? 2 * largest : largest;
    }
  }
  op->work->calls++;
}

ek_status ek__op_begin(struct ek__op *op, const char *name, ek_stream *stream,
                       const struct ek__operand *operands, size_t count, struct ek__types *types) {
  *op = (struct ek__op){.name = name, .count = count, .operand = operands};
  EK__FAIL_IF(count > EK__OP_MAX_OPERANDS, EK_ERR_INTERNAL, "%s: too many operands", name);
  EK__FAIL_IF(stream == NULL, EK_ERR_INVALID_ARGUMENT, "%s: stream is NULL", name);
  const ek_device *device = ek_stream_device(stream);
  EK_TRY(ek__fault_point(device, name));
  op->kernels = ek__device_table(device)->kernels;
  for (size_t i = 0; i < count; i++) {
    if (operands[i].optional && operands[i].tensor == NULL) continue;
    EK_TRY(check_tensor(op, i));
    EK_TRY(check_device(op, i, device));
    EK_TRY(check_type(op, i, device));
    /* `to` is the address of a pointer to any kind of object: copied, not dereferenced. */
    void *const data = operands[i].tensor->data;
    if (operands[i].to != NULL) memcpy(operands[i].to, &data, sizeof data);
  }
  EK_TRY(check_types(op, stream));
  for (size_t i = 0; i < count; i++) {
    if (operands[i].written && operands[i].tensor != NULL) EK_TRY(check_overlap(op, i));
  }
  for (size_t i = 0; i < count; i++) {
    if (operands[i].tensor != NULL) EK_TRY(check_size(op, i));
  }
  if (nothing_to_write(op)) {
    op->kernels = NULL;
  } else if ((op->work = ek__device_work(device)) != NULL) {
    count_bytes(op);
  }
  if (types != NULL) *types = op->types;
  return EK_OK;
}

int64_t ek__op_elements(const struct ek__op *op, size_t i) { return op->rows[i] * op->columns[i]; }

ek_status ek__op_fits(const struct ek__op *op, size_t i, int64_t elements, size_t j) {
  if (op->operand[i].tensor == NULL || ek__op_elements(op, i) == elements) return EK_OK;
  char i_text[EK__OP_SHAPE_TEXT], j_text[EK__OP_SHAPE_TEXT];
  return ek_error_set(EK_ERR_SHAPE, "%s: %s is %s but %s is %s, which takes %" PRId64 " elements",
                      op->name, op->operand[i].name,
                      ek__op_shape_text(i_text, op->operand[i].tensor), op->operand[j].name,
                      ek__op_shape_text(j_text, op->operand[j].tensor), elements);
}

ek_status ek__op_matrix(const struct ek__op *op, size_t i, int64_t rows, int64_t columns,
                        const char *what) {
  if (op->rows[i] == rows && op->columns[i] == columns) return EK_OK;
  return ek_error_set(EK_ERR_SHAPE,
                      "%s: %s is %" PRId64 " x %" PRId64 " but %s %" PRId64 " x %" PRId64, op->name,
                      op->operand[i].name, op->rows[i], op->columns[i], what, rows, columns);
}

ek_status ek__op_between(const char *who, const char *name, double value, double low, double high) {
  if (value >= low && value <= high) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s: %s is %g, which is outside %g .. %g", who, name,
                      value, low, high);
}
