/*
 * check_cuda_kernels.c - the CUDA kernels that no operation of op.h reaches, by their launchers:
 * totals of several terms, the sum over pointers, and what launchers refuse.
 *
 * All others are tested where the CPU's are, in tests/op, on emulated devices in each order of
 * CUDA's threads and on GPUs. The launchers of cuda_kernels.h are called through CUDA's own runtime
 * interface, so that the same source runs on a GPU and on the stand-in of tests/cuemu.
 */
#include "backend/cpu/reference.h"
#include "backend/cuda/cuda_kernels.h"
#include "ek_check.h"

/* f32 and f64, each with arrays that begin at 16 bytes and with arrays that do not. ThreadSanitizer
 * takes a minute for what takes a second, and sees no more in four variants. */
enum { VARIANTS = CK_TSAN ? 2 : 4 };

/* A stream, and what variants differ in. */
struct rig {
  ek_type type;
  double unit;              /* 2^-24 or 2^-53 */
  int64_t shift;            /* elements that arrays are moved by */
  struct ek__types types;   /* both are type */
  struct ek__cuda_place at; /* these kernels read only its stream */
  struct ck_random random;
};

#define cuda_ok(call)                                                                              \
  do {                                                                                             \
    const cudaError_t error_ = (call);                                                             \
    ck_assert_msg(error_ == cudaSuccess, "%s: %s", #call, cudaGetErrorString(error_));             \
  } while (0)

static void close_stream(void *stream) { cuda_ok(cudaStreamDestroy(stream)); }
static void free_memory(void *memory) { cuda_ok(cudaFree(memory)); }

static struct rig open_rig(int variant) {
  static uint64_t stream = 0;
  struct rig rig = {.type = variant % 2 == 0 ? EK_F32 : EK_F64,
                    .unit = variant % 2 == 0 ? 0x1p-24 : 0x1p-53,
                    .shift = CK_TSAN ? variant : variant / 2 % 2,
                    .random = ck_random_start(1000 + stream++)};
  rig.types = ek__types_in(rig.type);
  cuda_ok(cudaStreamCreateWithFlags(&rig.at.stream, cudaStreamNonBlocking));
  ck_keep_by(rig.at.stream, close_stream);
  return rig;
}

static double *zeros(int64_t count) { return ck_array((size_t)count + 1, sizeof(double)); }

/* An allocation of exactly this size, so that a sanitizer sees one access too many. It starts as
 * NaN. The rig's stream does not wait for the default one. */
static void *device_memory(size_t bytes) {
  void *memory = NULL;
  cuda_ok(cudaMalloc(&memory, bytes > 0 ? bytes : 1));
  ck_keep_by(memory, free_memory);
  if (bytes > 0) cuda_ok(cudaMemset(memory, 0xFF, bytes));
  cuda_ok(cudaDeviceSynchronize());
  return memory;
}

/* A copy from pageable memory returns when it has been read, perhaps before it has arrived. */
static void send(void *to, const void *from, size_t size) {
  if (size > 0) cuda_ok(cudaMemcpy(to, from, size, cudaMemcpyHostToDevice));
  cuda_ok(cudaDeviceSynchronize());
}

static double *on_device(const double *values, int64_t count) {
  double *memory = device_memory((size_t)count * sizeof *values);
  send(memory, values, (size_t)count * sizeof *values);
  return memory;
}

static void fetch_bytes(const struct rig *rig, void *bytes, const void *device, size_t size) {
  cuda_ok(cudaStreamSynchronize(rig->at.stream));
  if (size > 0) cuda_ok(cudaMemcpy(bytes, device, size, cudaMemcpyDeviceToHost));
}

/* An array of the rig's type. */
static void *poison(const struct rig *rig, int64_t count) {
  const int64_t size = (int64_t)ek_type_size(rig->type);
  return (char *)device_memory((size_t)((rig->shift + count) * size)) + rig->shift * size;
}

/* The same, of numbers that f32 holds. */
static void *array_of(const struct rig *rig, const double *values, int64_t count) {
  void *array = poison(rig, count);
  float *single = ck_array((size_t)count + 1, sizeof *single);
  for (int64_t i = 0; i < count; i++) single[i] = (float)values[i];
  send(array, rig->type == EK_F32 ? (const void *)single : (const void *)values,
       (size_t)count * ek_type_size(rig->type));
  return array;
}

static double *fetch(const struct rig *rig, const void *array, int64_t count) {
  double *values = zeros(count);
  float *single = ck_array((size_t)count + 1, sizeof *single);
  fetch_bytes(rig, rig->type == EK_F32 ? (void *)single : (void *)values, array,
              (size_t)count * ek_type_size(rig->type));
  for (int64_t i = 0; i < count && rig->type == EK_F32; i++) values[i] = (double)single[i];
  return values;
}

/* Doubles on the device; each may be off by limit, relative to itself or to 1. */
static void check_doubles(const struct rig *rig, const char *what, const double *device,
                          const double *want, int64_t count, double limit) {
  double *got = zeros(count), *bound = zeros(count);
  fetch_bytes(rig, got, device, (size_t)count * sizeof *got);
  for (int64_t i = 0; i < count; i++) bound[i] = limit * fmax(1, fabs(want[i]));
  ck_within(what, got, want, bound, count);
}

/* ---- what is refused: nothing is queued ---- */

/* A type that is not computed is refused, and nothing is queued. */
CK_TEST(wrong_types) {
  const struct rig rig = open_rig(0);
  const struct ek__elementwise_args args = {.count = 1, .types = {EK_BF16, EK_BF16, false}};
  ck_assert_int_eq(ek__cuda_fill(&rig.at, &args), cudaErrorInvalidValue);
}

CK_LOOP(too_wide, 2) {
  const struct rig rig = open_rig(_i);
  const struct ek__attention_args args = {
      .batch = 1, .tokens = 1, .heads = 1, .kv_heads = 1, .head_width = 257, .types = rig.types};
  ck_assert_int_eq(ek__cuda_attention_forward(&rig.at, &args), cudaErrorInvalidValue);
  ck_assert_int_eq(ek__cuda_attention_backward(&rig.at, &args), cudaErrorInvalidValue);
}

/* ---- totals ---- */

CK_TEST(combine_totals) {
  for (int i = 0; i < 2 * 65; i++) {
    const size_t mark = ck_mark();
    struct rig rig = open_rig(0);
    const int64_t terms = i / 2;
    struct ek__combine_args args = {.terms = (size_t)terms, .divide = i % 2 == 0};
    double *totals = zeros(2 * terms), *scales = zeros(2 * terms), combined[2] = {0, 0};
    for (int64_t j = 0; j < terms; j++) {
      args.coefficients[j] = ck_random_uniform(&rig.random, 0, 1);
      totals[2 * j] = ck_random_uniform(&rig.random, 1, 2);
      totals[2 * j + 1] = (double)ck_random_integer(&rig.random, 0, 3);
    }
    for (int64_t j = 0; j < terms; j++) combined[1] = fmax(combined[1], totals[2 * j + 1]);
    for (int64_t j = 0; j < terms; j++) { /* 0 for a term of 0 samples, unless all are */
      const double d = totals[2 * j + 1];
      const double ratio = d == combined[1] ? 1 : d == 0 ? 0 : combined[1] / d;
      scales[2 * j] = args.coefficients[j] * (args.divide ? ratio : 1);
      combined[0] += scales[2 * j] * totals[2 * j];
    }
    if (!args.divide) combined[1] = 1;
    args.totals = on_device(totals, 2 * terms);
    args.scales = on_device(totals, 2 * terms);
    args.combined = on_device(combined, 2);
    cuda_ok(ek__cuda_combine_totals(&rig.at, &args));
    check_doubles(&rig, "combined", args.combined, combined, 2, 100 * 0x1p-53);
    check_doubles(&rig, "scales", args.scales, scales, 2 * terms, 4 * 0x1p-53);
    ck_release(mark);
  }
}

static const int64_t counts[] = {0, 1, 3, 4, 255, 1027, 5000};
enum { COUNTS = sizeof counts / sizeof counts[0] };

/* ---- reduce: integers, so that the sum is exact; and one whose order shows ---- */

/* sources, destinations, how many destinations are sources */
static const int reduces[][3] = {{1, 1, 1}, {2, 2, 2}, {4, 1, 0},
                                 {4, 6, 3}, {0, 2, 0}, {16, 16, 16}};
enum { REDUCES = sizeof reduces / sizeof reduces[0] };

static void check_reduce(struct rig *rig, const int *kind, int64_t n) {
  void *destinations[16];
  const void *sources[16];
  double *want = zeros(n), *whole = zeros(n);
  for (int s = 0; s < kind[0]; s++) {
    for (int64_t i = 0; i < n; i++) {
      whole[i] = (double)ck_random_integer(&rig->random, -1000, 1000);
      want[i] += whole[i];
    }
    void *array = array_of(rig, whole, n);
    sources[s] = array;
    if (s < kind[2]) destinations[s] = array;
  }
  for (int d = kind[2]; d < kind[1]; d++) destinations[d] = poison(rig, n);
  const struct ek__reduce_args args = {destinations,    sources, (size_t)kind[1],
                                       (size_t)kind[0], n,       rig->type};
  cuda_ok(ek__cuda_reduce(&rig->at, &args));
  for (int d = 0; d < kind[1]; d++) {
    ck_within("reduced", fetch(rig, destinations[d], n), want, NULL, n);
  }
}

CK_LOOP(reduce, VARIANTS) {
  for (int i = 0; i < REDUCES * COUNTS; i++) {
    if (!ck_part(i)) continue;
    const size_t mark = ck_mark();
    struct rig rig = open_rig(_i);
    check_reduce(&rig, reduces[i / COUNTS], counts[i % COUNTS]);
    ck_release(mark);
  }
}

/* (1 + u) + u is 1 and u + u + 1 is not: sources are added in their order. */
CK_LOOP(reduce_order, VARIANTS) {
  const struct rig rig = open_rig(_i);
  const double one = 1, u = rig.unit;
  const void *x[] = {array_of(&rig, &one, 1), array_of(&rig, &u, 1), array_of(&rig, &u, 1)};
  const void *const down[] = {x[2], x[1], x[0]};
  void *const y = poison(&rig, 1);
  struct ek__reduce_args args = {&y, x, 1, 3, 1, rig.type};
  cuda_ok(ek__cuda_reduce(&rig.at, &args));
  ck_assert_double_eq(*fetch(&rig, y, 1), 1);
  args.sources = down;
  cuda_ok(ek__cuda_reduce(&rig.at, &args));
  ck_assert_double_eq(*fetch(&rig, y, 1), 1 + 2 * u);
}

/* Without a GPU it is skipped. */
int main(void) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) {
    return ck_run(ck_suite("cuda_kernels", NULL, NULL));
  }
  printf("skipped: there is no GPU\n");
  return 77;
}
