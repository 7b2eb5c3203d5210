/*
 * flat.c - ranges of flat buffers, and a few numbers from a device.
 */
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

ek_status ek__read_numbers(double *numbers, int64_t count, const ek_tensor *tensor) {
  ek_tensor host;
  EK_TRY(ek_tensor_host(&host, numbers, EK_F64, 1, &count));
  return ek_tensor_copy(&host, tensor);
}
