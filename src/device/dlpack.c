/*
 * dlpack.c - tensors of other libraries, and tensors for them: see dlpack.h.
 *
 * An imported tensor is a wrapped one whose release gives the struct back. The other library may
 * use the memory for something else as soon as it has it back, on a stream that is not ordered with
 * ours, so the release waits for the compute stream first.
 *
 * An exported struct is the head of a record that has a tensor with its own reference, and the
 * arrays that the struct points to.
 */
#include <evenkeel/dlpack.h>

#include <stddef.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "device/device_internal.h"

/* The layout of DLManagedTensorVersioned where pointers have 64 bits. */
_Static_assert(sizeof(void *) != 8 || (sizeof(ek_dlpack) == 80 &&
                                       offsetof(ek_dlpack, flags) == 24 &&
                                       offsetof(ek_dlpack, tensor.device_type) == 40 &&
                                       offsetof(ek_dlpack, tensor.code) == 52 &&
                                       offsetof(ek_dlpack, tensor.byte_offset) == 72),
               "ek_dlpack has not the layout of DLPack 1");

enum { MAJOR = 1, MINOR = 0 };

/* The types that the standard names as tensor.h does. */
static const struct {
  ek_type type;
  uint8_t code, bits;
} types[] = {{EK_F32, EK_DLPACK_FLOAT, 32},   {EK_F64, EK_DLPACK_FLOAT, 64},
             {EK_F16, EK_DLPACK_FLOAT, 16},   {EK_BF16, EK_DLPACK_BFLOAT, 16},
             {EK_I32, EK_DLPACK_INT, 32},     {EK_I64, EK_DLPACK_INT, 64},
             {EK_U8, EK_DLPACK_UINT, 8},      {EK_U16, EK_DLPACK_UINT, 16},
             {EK_U32, EK_DLPACK_UINT, 32}};
enum { TYPES = sizeof types / sizeof types[0] };

static ek_status check_computes(const char *who, const ek_device *device) {
  EK__FAIL_IF(ek_device_counts_only(device), EK_ERR_UNSUPPORTED,
              "%s: %s has no memory that another library could use", who, ek_device_name(device));
  return EK_OK;
}

static int number_of(const ek_device *device) {
  const struct ek__backend *backend = ek__device_table(device);
  return backend->number == NULL ? 0 : backend->number(device);
}

/* ---- import ---- */

static ek_status check_head(const ek_dlpack *imported) {
  EK__FAIL_IF(imported->major != MAJOR, EK_ERR_INVALID_ARGUMENT,
              "ek_dlpack_import: version %u.%u of DLPack; expected %d", (unsigned)imported->major,
              (unsigned)imported->minor, MAJOR);
  EK__FAIL_IF((imported->flags & EK_DLPACK_READ_ONLY) != 0, EK_ERR_INVALID_ARGUMENT,
              "ek_dlpack_import: the memory is read-only; expected memory that may be written, "
              "such as a copy of it");
  EK__FAIL_IF(imported->tensor.rank < 0 || imported->tensor.rank > EK_MAX_RANK ||
                  (imported->tensor.rank > 0 && imported->tensor.shape == NULL),
              EK_ERR_INVALID_ARGUMENT,
              "ek_dlpack_import: rank %d is outside 0..%d, or shape is NULL",
              (int)imported->tensor.rank, EK_MAX_RANK);
  return EK_OK;
}

/* Memory that every GPU reaches has a number as well, which says nothing. */
static ek_status check_place(const ek_device *device, const ek_dlpack *imported) {
  const int type = ek__device_table(device)->dlpack_type, number = number_of(device);
  const int32_t theirs = imported->tensor.device_type;
  const bool shared = type == EK_DLPACK_CUDA &&
                      (theirs == EK_DLPACK_CUDA_HOST || theirs == EK_DLPACK_CUDA_MANAGED);
  EK__FAIL_IF(!shared && (theirs != type || imported->tensor.device_id != number),
              EK_ERR_INVALID_ARGUMENT,
              "ek_dlpack_import: the memory is on device %d of type %d; expected device %d of type "
              "%d, that of %s",
              (int)imported->tensor.device_id, (int)theirs, number, type, ek_device_name(device));
  return EK_OK;
}

static ek_status find_type(ek_type *type, const ek_dlpack *imported) {
  const unsigned code = imported->tensor.code, bits = imported->tensor.bits;
  for (size_t i = 0; i < TYPES; i++) {
    if (types[i].code != code || types[i].bits != bits || imported->tensor.lanes != 1) continue;
    *type = types[i].type;
    return EK_OK;
  }
  return ek_error_set(EK_ERR_TYPE,
                      "ek_dlpack_import: elements of code %u with %u bits and %u lanes have no "
                      "type here; expected those of f32, f64, bf16, f16, i32, i64",
                      code, bits, (unsigned)imported->tensor.lanes);
}

/* The stride of a dimension of one element, or of a tensor without elements, leads nowhere. */
static ek_status check_strides(const ek_dlpack *imported) {
  const int64_t *shape = imported->tensor.shape, *strides = imported->tensor.strides;
  int64_t dense = 1;
  for (int i = 0; i < imported->tensor.rank; i++) {
    if (shape[i] == 0) return EK_OK;
  }
  for (int i = imported->tensor.rank - 1; i >= 0 && strides != NULL; i--) {
    EK__FAIL_IF(shape[i] != 1 && strides[i] != dense, EK_ERR_INVALID_ARGUMENT,
                "ek_dlpack_import: the stride of dimension %d is %lld; expected %lld, that of "
                "dense rows",
                i, (long long)strides[i], (long long)dense);
    dense *= shape[i];
  }
  return EK_OK;
}

struct import {
  ek_device *device;
  ek_dlpack *imported;
};

static void release(void *context) {
  struct import *import = context;
  /* An error is found again by the next call that waits. */
  const ek_status ignored = ek_stream_synchronize(
      ek_device_stream(import->device, EK_STREAM_COMPUTE));
  (void)ignored;
  if (import->imported->deleter != NULL) import->imported->deleter(import->imported);
  ek__free(import);
}

ek_status ek_dlpack_import(ek_tensor *tensor, ek_device *device, ek_dlpack *imported,
                           void *stream) {
  EK__FAIL_IF(tensor == NULL || device == NULL || imported == NULL, EK_ERR_INVALID_ARGUMENT,
              "ek_dlpack_import: tensor, device and imported may not be NULL");
  ek_type type = EK_F32;
  int64_t bytes = 0;
  EK_TRY(check_computes("ek_dlpack_import", device));
  EK_TRY(check_head(imported));
  EK_TRY(check_place(device, imported));
  EK_TRY(find_type(&type, imported));
  EK_TRY(ek__tensor_measure(&bytes, "ek_dlpack_import", type, imported->tensor.rank,
                            imported->tensor.shape));
  EK_TRY(check_strides(imported));
  char *data = imported->tensor.data;
  if (data != NULL) data += imported->tensor.byte_offset;
  const struct import made = {device, imported};
  struct import *import = NULL;
  ek_tensor result = {0};
  ek_status status = EK_OK;
  EK_TRY(ek__new_copy(&import, &made, sizeof made, "an imported tensor"));
  EK_TRY_GOTO(status,
              ek_stream_wait_native(ek_device_stream(device, EK_STREAM_COMPUTE), stream), cleanup);
  EK_TRY_GOTO(status,
              ek_tensor_wrap(&result, device, data, type, imported->tensor.rank,
                             imported->tensor.shape, release, import),
              cleanup);
  *tensor = result;
  return EK_OK;
cleanup:
  ek__free(import);
  return status;
}

/* ---- export ---- */

struct export {
  ek_dlpack head; /* first: what the other library gets */
  ek_tensor tensor;
  int64_t strides[EK_MAX_RANK];
};

static void delete(ek_dlpack *self) {
  struct export *export = self->manager;
  ek_tensor_free(&export->tensor);
  ek__free(export);
}

static void describe(struct export *export) {
  const ek_tensor *tensor = &export->tensor;
  int64_t dense = 1;
  for (int i = tensor->rank - 1; i >= 0; i--) {
    export->strides[i] = dense;
    dense *= tensor->shape[i];
  }
  export->head = (ek_dlpack){.major = MAJOR,
                             .minor = MINOR,
                             .manager = export,
                             .deleter = delete,
                             .tensor.data = tensor->data,
                             .tensor.device_type = EK_DLPACK_CPU,
                             .tensor.rank = tensor->rank,
                             .tensor.lanes = 1,
                             .tensor.shape = export->tensor.shape,
                             .tensor.strides = export->strides};
  for (size_t i = 0; i < TYPES; i++) {
    if (types[i].type != tensor->type) continue;
    export->head.tensor.code = types[i].code;
    export->head.tensor.bits = types[i].bits;
  }
  if (tensor->device == NULL) return;
  export->head.tensor.device_type = ek__device_table(tensor->device)->dlpack_type;
  export->head.tensor.device_id = number_of(tensor->device);
}

ek_status ek_dlpack_export(ek_dlpack **exported, const ek_tensor *tensor, void *stream) {
  EK__FAIL_IF(exported == NULL || !ek_tensor_exists(tensor), EK_ERR_INVALID_ARGUMENT,
              "ek_dlpack_export: exported or tensor is NULL, or the tensor is absent");
  struct export *export = NULL;
  ek_status status = EK_OK;
  EK_TRY(check_computes("ek_dlpack_export", tensor->device));
  EK_TRY(ek__new(&export, 1, sizeof *export, "an exported tensor"));
  EK_TRY_GOTO(status, ek_tensor_share(&export->tensor, tensor), cleanup);
  if (tensor->device != NULL) {
    EK_TRY_GOTO(status, ek_tensor_wait(tensor), cleanup);
    EK_TRY_GOTO(
        status,
        ek_stream_native_wait(stream, ek_device_stream(tensor->device, EK_STREAM_COMPUTE)),
        cleanup);
  }
  describe(export);
  *exported = &export->head;
  return EK_OK;
cleanup:
  ek_tensor_free(&export->tensor);
  ek__free(export);
  return status;
}
