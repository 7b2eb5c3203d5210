/*
 * ck_mirror.c - tensors of any device in host memory: see ck_mirror.h.
 */
#include "ck_mirror.h"

static ek_status open_one(struct ck_mirrors *mirrors, const ek_tensor *tensor) {
  if (mirrors->count == CK_MIRRORS_MOST) return ek_error_set(EK_ERR_INTERNAL, "mirror: too many");
  ek_tensor *host = &mirrors->host[mirrors->count];
  void *data = calloc(1, ek_tensor_bytes(tensor) + 1);
  if (data == NULL) return ek_error_set(EK_ERR_OUT_OF_MEMORY, "mirror: no host memory");
  mirrors->of[mirrors->count++] = tensor;
  EK_TRY(ek_tensor_host(host, data, tensor->type, tensor->rank, tensor->shape));
  return ek_tensor_copy(host, tensor);
}

static ek_status close_all(struct ck_mirrors *mirrors, ek_status status) {
  for (size_t i = 0; i < mirrors->count; i++) {
    if (status == EK_OK && i < mirrors->written) {
      status = ek_tensor_copy((ek_tensor *)(uintptr_t)mirrors->of[i], &mirrors->host[i]);
    }
    free(mirrors->host[i].data);
  }
  return status;
}

ek_status ck_mirrors_open(struct ck_mirrors *mirrors, size_t written,
                          const ek_tensor *const *tensors) {
  *mirrors = (struct ck_mirrors){.written = written};
  for (; *tensors != NULL; tensors++) {
    const ek_status status = open_one(mirrors, *tensors);
    if (status != EK_OK) return close_all(mirrors, status);
  }
  return EK_OK;
}

ek_status ck_mirrors_close(struct ck_mirrors *mirrors) { return close_all(mirrors, EK_OK); }

double ck_at(const ek_tensor *tensor, int64_t i) {
  return tensor->type == EK_F32 ? (double)((const float *)tensor->data)[i]
                                : ((const double *)tensor->data)[i];
}

void ck_put(ek_tensor *tensor, int64_t i, double value) {
  if (tensor->type == EK_F32) {
    ((float *)tensor->data)[i] = (float)value;
  } else {
    ((double *)tensor->data)[i] = value;
  }
}
