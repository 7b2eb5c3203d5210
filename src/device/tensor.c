/*
 * tensor.c - shapes over memory: making, sharing, viewing and copying.
 */
#include <evenkeel/tensor.h>

#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/sizes.h"
#include "device/arena.h"
#include "device/conversion.h"
#include "device/device_internal.h"
#include "device/fault_internal.h"
#include "device/track.h"
#include "device/types.h"

ek_status ek__tensor_measure(int64_t *bytes, const char *who, ek_type type, int rank,
                             const int64_t *shape) {
  EK__FAIL_IF(ek_type_size(type) == 0, EK_ERR_INVALID_ARGUMENT, "%s: unknown element type %d", who,
              (int)type);
  EK__FAIL_IF(rank < 0 || rank > EK_MAX_RANK || (rank > 0 && shape == NULL),
              EK_ERR_INVALID_ARGUMENT, "%s: rank %d is outside 0..%d, or shape is NULL", who, rank,
              EK_MAX_RANK);
  bool empty = false, overflow = false;
  int64_t total = (int64_t)ek_type_size(type);
  for (int i = 0; i < rank; i++) {
    EK__FAIL_IF(shape[i] < 0, EK_ERR_INVALID_ARGUMENT, "%s: size %lld of dimension %d is negative",
                who, (long long)shape[i], i);
    empty = empty || shape[i] == 0;
    overflow = overflow || (shape[i] > 0 && !ek__multiply(&total, total, shape[i]));
  }
  EK__FAIL_IF(overflow, EK_ERR_OVERFLOW, "%s: the sizes' product does not fit in 63 bits", who);
  *bytes = empty ? 0 : total;
  return EK_OK;
}

static void set_shape(ek_tensor *tensor, int rank, const int64_t *shape) {
  tensor->rank = rank;
  memset(tensor->shape, 0, sizeof tensor->shape);
  if (rank > 0) memcpy(tensor->shape, shape, (size_t)rank * sizeof *shape);
}

static ek_status check_device_type(const char *who, ek_type type) {
  EK__FAIL_IF(ek__type_is_unsigned(type), EK_ERR_TYPE,
              "%s: tensors of type %s exist only in host memory", who, ek_type_name(type));
  return EK_OK;
}

ek_status ek_tensor_create(ek_tensor *tensor, ek_device *device, ek_memory_category category,
                           ek_type type, int rank, const int64_t *shape) {
  EK__FAIL_IF(tensor == NULL || device == NULL || (unsigned)category >= EK_MEMORY_CATEGORIES,
              EK_ERR_INVALID_ARGUMENT,
              "ek_tensor_create: tensor or device is NULL, or the category is unknown");
  int64_t bytes = 0;
  EK_TRY(ek__tensor_measure(&bytes, "ek_tensor_create", type, rank, shape));
  EK_TRY(check_device_type("ek_tensor_create", type));
  ek_tensor result = {.device = device, .type = type};
  set_shape(&result, rank, shape);
  struct ek__arena *arena = ek__device_arena(device);
  /* A kernel that steps over rows of no elements computes addresses, and NULL + 0 is undefined. */
  result.data = arena->base;
  if (bytes > 0) {
    EK_TRY(ek__arena_take(&result.memory, arena, category, (uint64_t)bytes));
    result.data = result.memory->address;
    result.memory->whole = 0;
  } else {
    EK_TRY(ek__arena_take_none(&result.memory, arena));
  }
  *tensor = result;
  return EK_OK;
}

ek_status ek_tensor_host(ek_tensor *tensor, void *data, ek_type type, int rank,
                         const int64_t *shape) {
  EK__NOT_NULL("ek_tensor_host", tensor);
  int64_t bytes = 0;
  EK_TRY(ek__tensor_measure(&bytes, "ek_tensor_host", type, rank, shape));
  EK__FAIL_IF(bytes > 0 && data == NULL, EK_ERR_INVALID_ARGUMENT,
              "ek_tensor_host: data may not be NULL");
  ek_tensor result = {.data = data, .type = type};
  set_shape(&result, rank, shape);
  *tensor = result;
  return EK_OK;
}

/* An address that no element of the type begins at would be a fault on some processors and GPUs. */
static ek_status check_address(const ek_device *device, const void *data, size_t bytes,
                               ek_type type) {
  if (bytes == 0) return EK_OK;
  EK__FAIL_IF(data == NULL, EK_ERR_INVALID_ARGUMENT, "ek_tensor_wrap: data may not be NULL");
  EK__FAIL_IF((uintptr_t)data % ek_type_size(type) != 0, EK_ERR_INVALID_ARGUMENT,
              "ek_tensor_wrap: %p is not a multiple of %zu bytes, the size of an element of type "
              "%s",
              data, ek_type_size(type), ek_type_name(type));
  const struct ek__backend *backend = ek__device_table(device);
  return backend->memory_check == NULL ? EK_OK : backend->memory_check(device, data);
}

ek_status ek_tensor_wrap(ek_tensor *tensor, ek_device *device, void *data, ek_type type, int rank,
                         const int64_t *shape, void (*release)(void *context), void *context) {
  EK__NOT_NULL("ek_tensor_wrap", tensor, device);
  int64_t bytes = 0;
  EK_TRY(ek__tensor_measure(&bytes, "ek_tensor_wrap", type, rank, shape));
  EK_TRY(check_device_type("ek_tensor_wrap", type));
  EK_TRY(check_address(device, data, (size_t)bytes, type));
  struct ek__arena *arena = ek__device_arena(device);
  ek_tensor result = {.data = data != NULL ? data : arena->base, .device = device, .type = type};
  set_shape(&result, rank, shape);
  EK_TRY(ek__arena_take_foreign(&result.memory, arena, result.data, (uint64_t)bytes, release,
                                context));
  *tensor = result;
  return EK_OK;
}

static ek_status check_pair(const char *who, const ek_tensor *result, const ek_tensor *source) {
  EK__FAIL_IF(result == NULL || !ek_tensor_exists(source), EK_ERR_INVALID_ARGUMENT,
              "%s: a tensor is NULL or absent", who);
  return EK_OK;
}

ek_status ek_tensor_share(ek_tensor *tensor, const ek_tensor *source) {
  EK_TRY(check_pair("ek_tensor_share", tensor, source));
  const ek_tensor result = *source;
  if (result.memory != NULL) {
    atomic_fetch_add_explicit(&result.memory->references, 1, memory_order_relaxed);
  }
  *tensor = result;
  return EK_OK;
}

ek_status ek_tensor_rows(ek_tensor *view, const ek_tensor *source, int64_t first, int64_t count) {
  EK_TRY(check_pair("ek_tensor_rows", view, source));
  EK__FAIL_IF(source->rank == 0, EK_ERR_SHAPE, "ek_tensor_rows: a scalar has no rows");
  EK__FAIL_IF(
      first < 0 || count < 0 || count > source->shape[0] || first > source->shape[0] - count,
      EK_ERR_INVALID_ARGUMENT, "ek_tensor_rows: rows %lld + %lld of a tensor with %lld rows",
      (long long)first, (long long)count, (long long)source->shape[0]);
  const size_t row_bytes = (size_t)ek_tensor_row_elements(source) * ek_type_size(source->type);
  ek_tensor result;
  EK_TRY(ek_tensor_share(&result, source));
  result.shape[0] = count;
  if (result.data != NULL) result.data = (char *)result.data + (size_t)first * row_bytes;
  *view = result;
  return EK_OK;
}

void ek__tensor_cut_from(const ek_tensor *tensor, int64_t first) {
  if (tensor->memory == NULL) return;
  tensor->memory->whole = (uintptr_t)tensor->data - (uintptr_t)first * ek_type_size(tensor->type);
}

int64_t ek__tensor_first(const ek_tensor *tensor) {
  if (tensor->memory == NULL || tensor->memory->whole == 0) return 0;
  const uintptr_t bytes = (uintptr_t)tensor->data - tensor->memory->whole;
  return (int64_t)(bytes / ek_type_size(tensor->type));
}

ek_status ek_tensor_reshape(ek_tensor *view, const ek_tensor *source, int rank,
                            const int64_t *shape) {
  EK_TRY(check_pair("ek_tensor_reshape", view, source));
  int64_t bytes = 0;
  EK_TRY(ek__tensor_measure(&bytes, "ek_tensor_reshape", source->type, rank, shape));
  EK__FAIL_IF((size_t)bytes != ek_tensor_bytes(source), EK_ERR_SHAPE,
              "ek_tensor_reshape: %lld elements cannot become %lld",
              (long long)ek_tensor_count(source),
              (long long)bytes / (long long)ek_type_size(source->type));
  ek_tensor result;
  EK_TRY(ek_tensor_share(&result, source));
  set_shape(&result, rank, shape);
  *view = result;
  return EK_OK;
}

void ek_tensor_free(ek_tensor *tensor) {
  if (tensor == NULL) return;
  if (tensor->memory != NULL) ek__arena_drop(tensor->memory);
  memset(tensor, 0, sizeof *tensor);
}

bool ek_tensor_exists(const ek_tensor *tensor) {
  return tensor != NULL && ek_type_size(tensor->type) != 0;
}

int64_t ek_tensor_count(const ek_tensor *tensor) {
  if (!ek_tensor_exists(tensor)) return 0;
  int64_t count = 1;
  for (int i = 0; i < tensor->rank; i++) {
    if (tensor->shape[i] == 0) return 0;
    count *= tensor->shape[i];
  }
  return count;
}

size_t ek_tensor_bytes(const ek_tensor *tensor) {
  return ek_tensor_exists(tensor) ? (size_t)ek_tensor_count(tensor) * ek_type_size(tensor->type)
                                  : 0;
}

int64_t ek_tensor_row_elements(const ek_tensor *tensor) {
  int64_t count = 1;
  if (tensor == NULL) return 0;
  for (int i = 1; i < tensor->rank; i++) count *= tensor->shape[i];
  return count;
}

int ek_tensor_holders(const ek_tensor *tensor) {
  if (tensor == NULL || tensor->memory == NULL) return 0;
  return atomic_load_explicit(&tensor->memory->references, memory_order_acquire);
}

bool ek_tensor_same_shape(const ek_tensor *a, const ek_tensor *b) {
  return a != NULL && b != NULL && a->type == b->type &&
         ek__same_sizes(a->rank, a->shape, b->rank, b->shape);
}

ek_status ek__tensor_check_host(const ek_tensor *host, const ek_tensor *like, const char *who,
                                const char *name) {
  const int64_t count = ek_tensor_count(like), given = ek_tensor_count(host);
  EK__FAIL_IF(!ek_tensor_exists(host) || host->device != NULL || (host->data == NULL && given > 0),
              EK_ERR_INVALID_ARGUMENT, "%s: the host tensor for %s is NULL", who, name);
  if (ek__same_sizes(host->rank, host->shape, like->rank, like->shape)) return EK_OK;
  if (host->rank == 1 && given == count) return EK_OK;
  return ek_error_set(EK_ERR_SHAPE,
                      "%s: tensor %s has rank %d and %lld elements, the host tensor rank %d and "
                      "%lld, or another shape",
                      who, name, like->rank, (long long)count, host->rank, (long long)given);
}

ek_status ek_tensor_set_category(ek_tensor *tensor, ek_memory_category category) {
  EK__FAIL_IF(!ek_tensor_exists(tensor) || (unsigned)category >= EK_MEMORY_CATEGORIES,
              EK_ERR_INVALID_ARGUMENT,
              "ek_tensor_set_category: the tensor is NULL or absent, or the category is unknown");
  if (tensor->memory != NULL) ek__arena_charge(tensor->memory, category);
  return EK_OK;
}

/* A view of some rows may begin where its memory begins, and still not be all of it. */
static bool covers_its_memory(const ek_tensor *tensor) {
  uint64_t rounded = 0;
  return tensor->memory != NULL && tensor->memory->bytes > 0 &&
         tensor->data == tensor->memory->address &&
         ek__round_up(&rounded, ek_tensor_bytes(tensor), EK_MEMORY_UNIT) &&
         rounded == ek__arena_room(tensor->memory);
}

ek_status ek_tensor_grow(bool *grown, ek_tensor *tensor, int64_t rows) {
  EK__FAIL_IF(
      grown == NULL || !ek_tensor_exists(tensor) || tensor->rank == 0 || rows < tensor->shape[0],
      EK_ERR_INVALID_ARGUMENT, "ek_tensor_grow: the tensor is NULL, absent or a scalar, or rows is "
                               "below its number of rows");
  int64_t shape[EK_MAX_RANK];
  memcpy(shape, tensor->shape, sizeof shape);
  shape[0] = rows;
  int64_t bytes = 0;
  EK_TRY(ek__tensor_measure(&bytes, "ek_tensor_grow", tensor->type, tensor->rank, shape));
  bool extended = false;
  if (covers_its_memory(tensor) && ek_tensor_holders(tensor) == 1) {
    EK_TRY(ek__arena_extend(&extended, tensor->memory, (uint64_t)bytes));
  }
  if (extended) tensor->shape[0] = rows;
  *grown = extended;
  return EK_OK;
}

ek_status ek_tensor_wait(const ek_tensor *tensor) {
  EK__FAIL_IF(!ek_tensor_exists(tensor), EK_ERR_INVALID_ARGUMENT,
              "ek_tensor_wait: tensor is NULL");
  if (tensor->memory == NULL || tensor->memory->arrival == 0) return EK_OK;
  return ek__device_table(tensor->device)->arrive(tensor->device, tensor->memory->arrival);
}

/* A span of the device's transfers; NULL where no trace runs. */
static struct ek__track_span *begin_copy(const ek_device *device, const char *name, size_t bytes) {
  struct ek__track_span *span = ek__track_span_begin(device, EK__LANE_TRANSFERS, "copy", bytes);
  if (span != NULL) ek__track_span_name(span, name);
  return span;
}

/* If work is done at once, the calling thread does it, so it must be on that thread's own stream:
 * several workers may copy to or from one device at the same time. */
static ek_stream *copying_stream(ek_device *device, ek_device *caller) {
  const bool own = ek__device_table(device)->shared_memory && caller != NULL;
  return ek_device_stream(own ? caller : device, EK_STREAM_COMPUTE);
}

struct download {
  ek_stream *stream;
  const ek_tensor *to, *from;
  size_t bytes;
};

static ek_status download(void *context) {
  const struct download *it = context;
  const struct ek__backend *backend = ek__device_table(it->from->device);
  return backend->download(it->stream, it->to->data, it->from->data, it->bytes);
}

static ek_status move_bytes(ek_device *device, const ek_tensor *to, const ek_tensor *from,
                            size_t bytes) {
  const struct ek__backend *backend = ek__device_table(device);
  ek_device *caller = ek__group_worker_device(ek_device_group(device));
  ek_stream *stream = copying_stream(device, caller);
  if (to->device == NULL) {
    struct download it = {stream, to, from, bytes};
    return backend->download == NULL ? EK_OK : ek__group_await(device, download, &it);
  }
  if (from->device == NULL) {
    const struct ek__host_bytes host = {.data = from->data};
    return backend->upload == NULL ? EK_OK : backend->upload(stream, to->data, &host, bytes);
  }
  if (backend->between != NULL) {
    return backend->between(stream, to->data, from->device, from->data, bytes);
  }
  struct ek__work *work = ek__device_work(caller != NULL ? caller : device);
  if (work != NULL) work->moved += (double)bytes;
  return EK_OK;
}

static ek_status copy_bytes(const ek_tensor *to, const ek_tensor *from, size_t bytes) {
  ek_device *device = to->device != NULL ? to->device : from->device;
  if (device == NULL) {
    memmove(to->data, from->data, bytes); /* the caller's arrays may overlap */
    return EK_OK;
  }
  EK_TRY(ek__fault_point(device, "copy"));
  struct ek__track_span *span = begin_copy(device,
                                           to->device == NULL     ? "device to host"
                                           : from->device == NULL ? "host to device"
                                                                  : "device to device",
                                           bytes);
  const ek_status status = move_bytes(device, to, from, bytes);
  ek__track_span_end(span);
  return status;
}

ek_status ek_tensor_copy(ek_tensor *destination, const ek_tensor *source) {
  EK_TRY(check_pair("ek_tensor_copy", destination, source));
  EK__FAIL_IF(!ek_tensor_exists(destination), EK_ERR_INVALID_ARGUMENT,
              "ek_tensor_copy: the destination is NULL or absent");
  EK__FAIL_IF(destination->type != source->type, EK_ERR_TYPE, "ek_tensor_copy: %s cannot become %s",
              ek_type_name(source->type), ek_type_name(destination->type));
  EK__FAIL_IF(ek_tensor_count(destination) != ek_tensor_count(source), EK_ERR_SHAPE,
              "ek_tensor_copy: %lld elements cannot become %lld",
              (long long)ek_tensor_count(source), (long long)ek_tensor_count(destination));
  EK__FAIL_IF(destination->device != NULL && source->device != NULL &&
                  ek_device_group(destination->device) != ek_device_group(source->device),
              EK_ERR_DEVICE, "ek_tensor_copy: %s and %s are of different groups",
              ek_device_name(source->device), ek_device_name(destination->device));
  const size_t bytes = ek_tensor_bytes(source);
  if (bytes == 0 || destination->data == source->data) return EK_OK;
  EK_TRY(ek_tensor_wait(destination));
  EK_TRY(ek_tensor_wait(source));
  return copy_bytes(destination, source, bytes);
}

/* Fills a tensor that nothing has used yet from host memory. */
static ek_status fill_new(ek_tensor *tensor, const struct ek__host_bytes *host, bool ahead) {
  ek_device *device = tensor->device;
  const struct ek__backend *backend = ek__device_table(device);
  const size_t bytes = ek_tensor_bytes(tensor);
  if (bytes == 0) return EK_OK;
  EK_TRY(ek__fault_point(device, "copy"));
  struct ek__track_span *span = begin_copy(device, "host to device", bytes);
  ek_status status = EK_OK;
  if (backend->send != NULL && tensor->memory->guard == 0) {
    status = backend->send(&tensor->memory->arrival, device, tensor->data, host, bytes,
                           tensor->memory->ticket);
    if (status == EK_OK && !ahead) status = ek_tensor_wait(tensor);
  } else if (backend->upload != NULL) { /* with guards after the NaNs of the compute stream */
    ek_device *caller = ek__group_worker_device(ek_device_group(device));
    status = backend->upload(copying_stream(device, caller), tensor->data, host, bytes);
  }
  ek__track_span_end(span);
  return status;
}

static ek_status created(ek_tensor *tensor, ek_tensor *made, ek_status status) {
  if (status != EK_OK) {
    ek_tensor_free(made);
    return status;
  }
  *tensor = *made;
  return EK_OK;
}

ek_status ek_tensor_create_from(ek_tensor *tensor, ek_device *device, ek_memory_category category,
                                const ek_tensor *source, bool ahead) {
  EK_TRY(check_pair("ek_tensor_create_from", tensor, source));
  ek_tensor result = {0};
  const struct ek__host_bytes host = {.data = source->data};
  EK_TRY(ek_tensor_create(&result, device, category, source->type, source->rank, source->shape));
  return created(tensor, &result,
                 source->device != NULL ? ek_tensor_copy(&result, source)
                                        : fill_new(&result, &host, ahead));
}

ek_status ek__tensor_create_converted(ek_tensor *tensor, ek_device *device,
                                      ek_memory_category category, const ek_tensor *source,
                                      const struct ek__conversion *conversion, bool ahead) {
  ek_tensor result = {0};
  struct ek__conversion here = *conversion;
  here.data = source->data;
  here.from = source->type;
  const struct ek__host_bytes host = {NULL, ek__conversion_make, &here};
  EK_TRY(ek_tensor_create(&result, device, category, here.to, source->rank, source->shape));
  return created(tensor, &result, fill_new(&result, &host, ahead));
}

/* ---- copies of another type ---- */

ek_tensor ek__flat_range(const ek_tensor *flat, int64_t first, int64_t count) {
  ek_tensor range = {.device = flat->device, .type = flat->type, .rank = 1, .shape = {count}};
  if (flat->data != NULL) {
    range.data = (char *)flat->data + (size_t)first * ek_type_size(flat->type);
  }
  return range;
}

ek_status ek__read_numbers(double *numbers, int64_t count, const ek_tensor *tensor) {
  ek_tensor host;
  EK_TRY(ek_tensor_host(&host, numbers, EK_F64, 1, &count));
  return ek_tensor_copy(&host, tensor);
}

ek_status ek__tensor_copy_converted(ek_tensor *destination, const ek_tensor *source) {
  enum { PIECE = 1024 };
  double piece[PIECE];
  if (destination->type == source->type) return ek_tensor_copy(destination, source);
  const bool up = source->device == NULL;
  const int64_t all = ek_tensor_count(source);
  if (ek_device_counts_only(up ? destination->device : source->device)) return EK_OK;
  for (int64_t first = 0; first < all; first += PIECE) {
    const int64_t count = all - first < PIECE ? all - first : PIECE;
    ek_tensor to = ek__flat_range(destination, first, count), through;
    const ek_tensor from = ek__flat_range(source, first, count);
    EK_TRY(ek_tensor_host(&through, piece, up ? to.type : from.type, 1, &count));
    if (up) ek__floats_convert(piece, to.type, from.data, from.type, count);
    EK_TRY(up ? ek_tensor_copy(&to, &through) : ek_tensor_copy(&through, &from));
    if (!up) ek__floats_convert(to.data, to.type, piece, from.type, count);
  }
  return EK_OK;
}
