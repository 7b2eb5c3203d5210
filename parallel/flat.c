/*
 * flat.c - ranges of flat buffers, and copies between a device and the host.
 */
#include "device/types.h"
#include "parallel_internal.h"

ek_tensor ek__flat_range(const ek_tensor *flat, int64_t first, int64_t count) {
  ek_tensor range = *flat;
  range.memory = NULL;
  range.rank = 1;
  range.shape[0] = count;
  if (range.data != NULL) {
    range.data = (char *)range.data + (size_t)first * ek_type_size(range.type);
  }
  return range;
}

ek_status ek__copy_converted(ek_tensor *destination, const ek_tensor *source) {
  enum { PIECE = 1024 };
  double piece[PIECE];
  if (destination->type == source->type) return ek_tensor_copy(destination, source);
  const bool up = source->device == NULL;
  const int64_t all = ek_tensor_count(source);
  if (ek_device_counts_only(up ? destination->device : source->device)) return EK_OK;
  for (int64_t first = 0; first < all; first += PIECE) {
    const int64_t count = all - first < PIECE ? all - first : PIECE;
    ek_tensor to = ek__flat_range(destination, first, count), through;
    ek_tensor from = ek__flat_range(source, first, count);
    EK_TRY(ek_tensor_host(&through, piece, up ? to.type : from.type, 1, &count));
    if (up) ek__floats_convert(piece, to.type, from.data, from.type, count);
    EK_TRY(up ? ek_tensor_copy(&to, &through) : ek_tensor_copy(&through, &from));
    if (!up) ek__floats_convert(to.data, to.type, piece, from.type, count);
  }
  return EK_OK;
}

ek_status ek__read_numbers(double *numbers, int64_t count, const ek_tensor *tensor) {
  ek_tensor host;
  EK_TRY(ek_tensor_host(&host, numbers, EK_F64, 1, &count));
  return ek_tensor_copy(&host, tensor);
}
