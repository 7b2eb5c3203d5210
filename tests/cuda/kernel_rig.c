/*
 * kernel_rig.c - see kernel_rig.h.
 */
#include "kernel_rig.h"

static size_t element(const struct kr_rig *rig) { return rig->type == EK_F32 ? 4 : 8; }

int kr_run(const char *name) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) {
    return ck_run(ck_suite(name, NULL, NULL));
  }
  printf("skipped: there is no GPU\n");
  return 77;
}

struct kr_rig *kr_open(int variant) {
  static uint64_t stream = 0;
  struct kr_rig *rig = calloc(1, sizeof *rig);
  ck_assert_ptr_nonnull(rig);
  rig->type = variant % 2 == 0 ? EK_F32 : EK_F64;
  rig->types = ek__types_in(rig->type);
  rig->unit = variant % 2 == 0 ? 0x1p-24 : 0x1p-53;
  rig->shift = KR_VARIANTS == 2 ? variant : variant / 2 % 2;
  rig->random = ck_random_start(1000 + stream++);
  kr_ok(cudaStreamCreateWithFlags(&rig->at.stream, cudaStreamNonBlocking));
  return rig;
}

void kr_close(struct kr_rig *rig) {
  for (int i = 0; i < rig->devices; i++) kr_ok(cudaFree(rig->device[i]));
  for (int i = 0; i < rig->hosts; i++) free(rig->host[i]);
  kr_ok(cudaStreamDestroy(rig->at.stream));
  free(rig);
}

double *kr_zeros(struct kr_rig *rig, int64_t count) {
  ck_assert_int_lt(rig->hosts, KR_ARRAYS);
  double *array = calloc((size_t)count + 1, sizeof *array);
  ck_assert_ptr_nonnull(array);
  rig->host[rig->hosts++] = array;
  return array;
}

static void *device_memory(struct kr_rig *rig, size_t bytes) {
  void *memory = NULL;
  ck_assert_int_lt(rig->devices, KR_ARRAYS);
  kr_ok(cudaMalloc(&memory, bytes > 0 ? bytes : 1));
  if (bytes > 0) kr_ok(cudaMemset(memory, 0xFF, bytes));
  kr_ok(cudaDeviceSynchronize()); /* the rig's stream does not wait for the default one */
  rig->device[rig->devices++] = memory;
  return memory;
}

/* A copy from pageable memory returns when it has been read, perhaps before it has arrived, and the
 * rig's stream does not wait for the default one. */
static void send(void *to, const void *from, size_t size) {
  kr_ok(cudaMemcpy(to, from, size, cudaMemcpyHostToDevice));
  kr_ok(cudaDeviceSynchronize());
}

void *kr_bytes(struct kr_rig *rig, const void *bytes, size_t size) {
  void *memory = device_memory(rig, size);
  if (size > 0) send(memory, bytes, size);
  return memory;
}

struct kr_array kr_poison(struct kr_rig *rig, int64_t count) {
  char *memory = device_memory(rig, (size_t)(rig->shift + count) * element(rig));
  return (struct kr_array){kr_zeros(rig, count), memory + (size_t)rig->shift * element(rig), count};
}

void kr_send(struct kr_rig *rig, const struct kr_array *array) {
  if (array->count == 0) return;
  const size_t bytes = (size_t)array->count * element(rig);
  float *narrow = malloc(bytes);
  ck_assert_ptr_nonnull(narrow);
  for (int64_t i = 0; i < array->count && rig->type == EK_F32; i++) {
    narrow[i] = (float)array->host[i];
  }
  const void *from = rig->type == EK_F32 ? (const void *)narrow : (const void *)array->host;
  send(array->device, from, bytes);
  free(narrow);
}

struct kr_array kr_values(struct kr_rig *rig, int64_t count, double low, double high) {
  const struct kr_array array = kr_poison(rig, count);
  for (int64_t i = 0; i < count; i++) {
    const double value = ck_random_uniform(&rig->random, low, high);
    array.host[i] = rig->type == EK_F32 ? (double)(float)value : value;
  }
  kr_send(rig, &array);
  return array;
}

void kr_fetch_bytes(struct kr_rig *rig, void *bytes, const void *device, size_t size) {
  kr_ok(cudaStreamSynchronize(rig->at.stream));
  if (size > 0) kr_ok(cudaMemcpy(bytes, device, size, cudaMemcpyDeviceToHost));
}

double *kr_fetch(struct kr_rig *rig, const struct kr_array *array) {
  double *values = kr_zeros(rig, array->count);
  if (rig->type == EK_F64) {
    kr_fetch_bytes(rig, values, array->device, (size_t)array->count * sizeof *values);
    return values;
  }
  float *narrow = calloc((size_t)array->count + 1, sizeof *narrow);
  ck_assert_ptr_nonnull(narrow);
  kr_fetch_bytes(rig, narrow, array->device, (size_t)array->count * sizeof *narrow);
  for (int64_t i = 0; i < array->count; i++) values[i] = (double)narrow[i];
  free(narrow);
  return values;
}

void kr_check(struct kr_rig *rig, const char *what, const struct kr_array *array) {
  ck_within(what, kr_fetch(rig, array), array->host, NULL, array->count);
}

void kr_check_doubles(struct kr_rig *rig, const char *what, const double *device,
                      const double *want, int64_t count, double limit) {
  double *got = kr_zeros(rig, count), *bound = kr_zeros(rig, count);
  kr_fetch_bytes(rig, got, device, (size_t)count * sizeof *got);
  for (int64_t i = 0; i < count; i++) bound[i] = limit * fmax(1, fabs(want[i]));
  ck_within(what, got, want, bound, count);
}
