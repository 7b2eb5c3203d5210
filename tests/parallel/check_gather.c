/*
 * check_gather.c - putting the parts of a tensor together again.
 */
#include "ek_check.h"

enum { DEVICES = 3, ROWS = 8, COLUMNS = 5 };

struct bench {
  ek_group *group;
  double values[ROWS * COLUMNS];
  float numbers[ROWS * COLUMNS];
  ek_shards shards; /* rows 3 3 2, or as `sizes` says */
};

static void open_bench(struct bench *b, const int64_t *sizes) {
  ek_scatter_options options = EK_SCATTER_OPTIONS_INIT;
  b->group = ck_open("cpu:3", 1);
  for (int i = 0; i < ROWS * COLUMNS; i++) b->values[i] = (double)(b->numbers[i] = (float)i + 0.5f);
  if (sizes != NULL) ck_assign(options, .kind = EK_SCATTER_SIZES, .sizes = sizes);
  memset(&b->shards, 0, sizeof b->shards);
  CK_GOT(ek_tensor, host, ek_tensor_host(&host, b->numbers, EK_F32, CK_SHAPE(ROWS, COLUMNS)));
  ck_ok(ek_scatter(&b->shards, b->group, &host, EK_MEMORY_ACTIVATIONS, &options));
}

static void close_bench(struct bench *b) {
  ek_shards_free(&b->shards);
  ck_no_memory_held(b->group);
  ek_group_free(b->group);
}

static void holds_all(const struct bench *b, const ek_tensor *whole, size_t device) {
  double got[ROWS * COLUMNS];
  ck_assert_ptr_eq(whole->device, ek_group_device(b->group, device));
  ck_assert_int_eq(whole->rank, 2);
  ck_assert_int_eq(whole->shape[0], ROWS);
  ck_assert_int_eq(whole->shape[1], COLUMNS);
  ck_get(got, whole);
  ck_same_bits("whole", got, b->values, (int64_t)ROWS * COLUMNS);
}

static const int64_t cuts[][DEVICES] = {{3, 3, 2}, {8, 0, 0}, {0, 0, 8}, {0, 5, 3}, {1, 0, 7}};
enum { CUTS = sizeof cuts / sizeof cuts[0] };

CK_LOOP(to_each_device, CUTS) {
  CK_SET_UP(struct bench, b, open_bench(&b, cuts[_i]));
  for (size_t device = 0; device < DEVICES; device++) {
    CK_SCOPED(ek_tensor, whole, ek_gather(&whole, &b.shards, device, EK_MEMORY_OUTPUTS));
    holds_all(&b, &whole, device);
    CK_GOT(ek_memory_usage, usage, ck_memory_stats(&usage, ek_group_device(b.group, device)));
    ck_assert_uint_eq(usage.current[EK_MEMORY_OUTPUTS], EK_MEMORY_UNIT);
  }
  float numbers[ROWS * COLUMNS] = {0};
  CK_GOT(ek_tensor, host, ek_tensor_host(&host, numbers, EK_F32, CK_SHAPE(ROWS * COLUMNS)));
  ck_ok(ek_gather_host(&host, &b.shards));
  ck_assert_mem_eq(numbers, b.numbers, sizeof numbers);
  close_bench(&b);
}

/* Numbers of 16 bits are scattered, gathered and broadcast as their bits. */
CK_LOOP(rows_of_16_bits, CUTS) {
  static const ek_type types[] = {EK_BF16, EK_F16};
  uint16_t numbers[ROWS * COLUMNS], got[ROWS * COLUMNS];
  for (int i = 0; i < ROWS * COLUMNS; i++) numbers[i] = (uint16_t)(i * 1861 + 7);
  ek_group *group = ck_open("cpu:3", 1);
  CK_WITH(ek_scatter_options, options, EK_SCATTER_OPTIONS_INIT, .kind = EK_SCATTER_SIZES,
          .sizes = cuts[_i]);
  for (int t = 0; t < 2; t++) {
    ek_tensor host, back, whole = {0};
    ck_ok(ek_tensor_host(&host, numbers, types[t], CK_SHAPE(ROWS, COLUMNS)));
    ck_ok(ek_tensor_host(&back, got, types[t], CK_SHAPE(ROWS, COLUMNS)));
    CK_GOT(ek_shards, shards, ek_scatter(&shards, group, &host, EK_MEMORY_INPUTS, &options));
    CK_SCOPED(ek_shards, all, ek_scatter_broadcast(&all, group, &host, EK_MEMORY_INPUTS));
    for (size_t device = 0; device < DEVICES; device++) {
      ck_ok(ek_gather(&whole, &shards, device, EK_MEMORY_OUTPUTS));
      ck_assert_int_eq(whole.type, types[t]);
      memset(got, 0, sizeof got);
      ck_ok(ek_tensor_copy(&back, &whole));
      ck_assert_mem_eq(got, numbers, sizeof got);
      ek_tensor_free(&whole);
      memset(got, 0, sizeof got);
      ck_ok(ek_tensor_copy(&back, &all.parts[device]));
      ck_assert_mem_eq(got, numbers, sizeof got);
    }
    memset(got, 0, sizeof got);
    ck_ok(ek_gather_host(&back, &shards));
    ck_assert_mem_eq(got, numbers, sizeof got);
    ck_ok(ek_gather_move(&whole, &shards, 0, EK_MEMORY_OUTPUTS));
    memset(got, 0, sizeof got);
    ck_ok(ek_tensor_copy(&back, &whole));
    ck_assert_mem_eq(got, numbers, sizeof got);
    ek_tensor_free(&whole);
  }
}

CK_LOOP(moving_frees_the_parts, CUTS) {
  for (size_t device = 0; device < DEVICES; device++) {
    CK_SET_UP(struct bench, b, open_bench(&b, cuts[_i]));
    const void *own = b.shards.parts[device].data;
    const bool in_place = cuts[_i][device] > 0 && b.shards.offsets[device] == 0;
    CK_GOT(ek_tensor, whole, ek_gather_move(&whole, &b.shards, device, EK_MEMORY_OUTPUTS));
    holds_all(&b, &whole, device);
    if (in_place) ck_assert_ptr_eq(whole.data, own);
    ck_assert_ptr_null(b.shards.group);
    for (size_t k = 0; k < DEVICES; k++) {
      CK_GOT(ek_memory_usage, usage, ck_memory_stats(&usage, ek_group_device(b.group, k)));
      ck_assert_uint_eq(usage.current_bytes, k == device ? EK_MEMORY_UNIT : 0);
      ck_assert_uint_eq(usage.current[EK_MEMORY_OUTPUTS], usage.current_bytes);
    }
    ek_tensor_free(&whole);
    close_bench(&b);
  }
}

/* A part that has another holder, or no room after it, is copied. */
CK_TEST(moving_keeps_what_others_hold) {
  CK_SET_UP(struct bench, b, open_bench(&b, cuts[0]));
  double got[3 * COLUMNS];
  CK_GOT(ek_tensor, held, ek_tensor_share(&held, &b.shards.parts[0]));
  CK_GOT(ek_tensor, whole, ek_gather_move(&whole, &b.shards, 0, EK_MEMORY_OUTPUTS));
  holds_all(&b, &whole, 0);
  ck_assert_ptr_ne(whole.data, held.data);
  ck_get(got, &held);
  ck_same_bits("held", got, b.values, (int64_t)3 * COLUMNS);
  ek_tensor_free(&held);
  ek_tensor_free(&whole);
  close_bench(&b);
}

/* torch warns that it unsqueezes scalars: here too they become a vector. */
CK_TEST(scalars_become_a_vector) {
  ek_group *group = ck_open("cpu:3", 1);
  CK_GOT(ek_shards, shards, ek_shards_create(&shards, group));
  for (size_t k = 0; k < DEVICES; k++) {
    const double value = (double)k + 0.25;
    shards.parts[k] = ck_upload(ek_group_device(group, k), EK_F64, &value, 0, NULL);
    shards.offsets[k + 1] = shards.samples[k + 1] = (int64_t)k + 1;
  }
  for (int move = 0; move < 2; move++) {
    ek_tensor whole = {0};
    double got[DEVICES];
    if (move == 0) ck_ok(ek_gather(&whole, &shards, 1, EK_MEMORY_OUTPUTS));
    if (move == 1) ck_ok(ek_gather_move(&whole, &shards, 0, EK_MEMORY_OUTPUTS));
    ck_assert_int_eq(whole.rank, 1);
    ck_assert_int_eq(whole.shape[0], DEVICES);
    ck_get(got, &whole);
    for (size_t k = 0; k < DEVICES; k++) ck_assert_double_eq(got[k], (double)k + 0.25);
    ek_tensor_free(&whole);
  }
}

/* Rounded once: what is just above the middle of two numbers goes up, also where a rounding to f32
 * on the way would give the middle. Expected: bits of bf16 and of f16. */
static const struct {
  double value;
  uint16_t bf16, f16;
} rounded[] = {
    {1, 0x3F80, 0x3C00}, {1 + 0x1p-8, 0x3F80, 0x3C04}, {1 + 0x1p-8 + 0x1p-40, 0x3F81, 0x3C04},
    {-1 - 0x1p-11 - 0x1p-40, 0xBF80, 0xBC01}, {1 + 0x1p-11, 0x3F80, 0x3C00},
    {65519.99999999999, 0x4780, 0x7BFF}, {1e300, 0x7F80, 0x7C00}, {-INFINITY, 0xFF80, 0xFC00},
    {0x1p-25 + 0x1p-60, 0x3300, 0x0001}, {-0.0, 0x8000, 0x8000}};
enum { ROUNDED = sizeof rounded / sizeof *rounded };

CK_TEST(into_other_floating_types) {
  ek_group *group = ck_open("cpu:3", 1);
  enum { MANY = 3000 }; /* more than a piece for each device */
  static double values[MANY], back[MANY];
  static float singles[MANY];
  static uint16_t halves[MANY];
  for (int i = 0; i < MANY; i++) values[i] = rounded[i % ROUNDED].value;
  CK_GOT(ek_tensor, host, ek_tensor_host(&host, values, EK_F64, CK_SHAPE(MANY)));
  CK_GOT(ek_shards, shards, ek_scatter(&shards, group, &host, EK_MEMORY_INPUTS, NULL));
  CK_GOT(ek_tensor, to, ek_tensor_host(&to, singles, EK_F32, CK_SHAPE(MANY)));
  ck_ok(ek_gather_host(&to, &shards));
  for (int i = 0; i < MANY; i++) {
    const float want = (float)values[i];
    ck_assert_mem_eq(&singles[i], &want, sizeof want);
  }
  for (int f16 = 0; f16 < 2; f16++) {
    ck_ok(ek_tensor_host(&to, halves, f16 ? EK_F16 : EK_BF16, CK_SHAPE(MANY / 2, 2)));
    ck_ok(ek_gather_host(&to, &shards));
    for (int i = 0; i < MANY; i++) {
      ck_assert_uint_eq(halves[i], f16 ? rounded[i % ROUNDED].f16 : rounded[i % ROUNDED].bf16);
    }
  }
  ek_shards_free(&shards);
  for (int i = 0; i < MANY; i++) halves[i] = (uint16_t)(0x3F80 + i % 16); /* 1 + i/128 */
  ck_ok(ek_tensor_host(&host, halves, EK_BF16, CK_SHAPE(MANY)));
  ck_ok(ek_scatter(&shards, group, &host, EK_MEMORY_INPUTS, NULL));
  ck_ok(ek_tensor_host(&to, back, EK_F64, CK_SHAPE(MANY)));
  ck_ok(ek_gather_host(&to, &shards));
  for (int i = 0; i < MANY; i++) ck_assert(back[i] == 1 + i % 16 / 128.0);
  ck_ok(ek_tensor_host(&to, halves, EK_F16, CK_SHAPE(MANY)));
  ck_ok(ek_gather_host(&to, &shards));
  for (int i = 0; i < MANY; i++) ck_assert_int_eq(halves[i], 0x3C00 + 8 * (i % 16));
  ek_shards_free(&shards);
}

/* A plan has no numbers: the host's stay as they are. */
CK_TEST(a_plan_converts_nothing) {
  ek_group *group = ck_open("plan:2", 1);
  float values[4] = {1, 2, 3, 4};
  double kept[4] = {5, 6, 7, 8};
  CK_GOT(ek_tensor, host, ek_tensor_host(&host, values, EK_F32, CK_SHAPE(4)));
  CK_GOT(ek_tensor, to, ek_tensor_host(&to, kept, EK_F64, CK_SHAPE(4)));
  CK_OPENED(ek_shards, shards, ek_scatter(&shards, group, &host, EK_MEMORY_INPUTS, NULL));
  ck_ok(ek_gather_host(&to, &shards));
  for (int i = 0; i < 4; i++) ck_assert(kept[i] == 5 + i);
}

CK_TEST(no_rows_at_all) {
  ek_group *group = ck_open("cpu:3", 1);
  float none[1] = {0};
  CK_GOT(ek_tensor, host, ek_tensor_host(&host, none, EK_F32, CK_SHAPE(0, 4)));
  CK_OPENED(ek_shards, shards, ek_scatter(&shards, group, &host, EK_MEMORY_INPUTS, NULL));
  CK_OPENED(ek_tensor, whole, ek_gather(&whole, &shards, 2, EK_MEMORY_OUTPUTS));
  ck_assert_int_eq(whole.shape[0], 0);
  ck_assert_int_eq(whole.shape[1], 4);
  ck_ok(ek_gather_host(&host, &shards));
}

/* Replaces the part of a device by one of another shape. */
static void replace(struct bench *b, size_t k, ek_type type, int rank, const int64_t *shape) {
  ek_tensor_free(&b->shards.parts[k]);
  ck_ok(ek_tensor_create(&b->shards.parts[k], ek_group_device(b->group, k), EK_MEMORY_OUTPUTS, type,
                         rank, shape));
}

CK_TEST(parts_that_do_not_fit_are_refused) {
  CK_SET_UP(struct bench, b, open_bench(&b, cuts[0]));
  ek_tensor whole = {.rank = -3}, host;
  float numbers[ROWS * COLUMNS] = {0};
  ck_ok(ek_tensor_host(&host, numbers, EK_F32, CK_SHAPE(ROWS, COLUMNS)));
  for (int i = 0; i < 4; i++) {
    if (i == 0) replace(&b, 1, EK_F32, CK_SHAPE(3, COLUMNS + 1));
    if (i == 1) replace(&b, 1, EK_F32, CK_SHAPE(3));
    if (i == 2) replace(&b, 1, EK_F32, CK_SHAPE(3, COLUMNS, 1));
    if (i == 3) replace(&b, 1, EK_F64, CK_SHAPE(3, COLUMNS));
    ck_fails(ek_gather(&whole, &b.shards, 0, EK_MEMORY_OUTPUTS), EK_ERR_SHAPE, "cpu:1");
    ck_fails(ek_gather_host(&host, &b.shards), EK_ERR_SHAPE, "cpu:1");
  }
  ck_fails(ek_gather_move(&whole, &b.shards, 0, EK_MEMORY_OUTPUTS), EK_ERR_SHAPE, "cpu:1");
  ck_assert_int_eq(whole.rank, -3);
  close_bench(&b); /* move took the parts over although it failed */
}

/* The whole goes back, and the parts stay. */
CK_TEST(a_copy_fails) {
  CK_SET_UP(struct bench, b, open_bench(&b, cuts[0]));
  ek_tensor whole = {.rank = -3};
  CK_GOT(ek_memory_usage, before, ck_memory_stats(&before, ek_group_device(b.group, 0)));
  ck_ok(ek_fault_at(ek_group_device(b.group, 1), 1, EK_ERR_UNAVAILABLE));
  ck_fails(ek_gather(&whole, &b.shards, 0, EK_MEMORY_OUTPUTS), EK_ERR_UNAVAILABLE, "");
  ck_ok(ek_fault_at(ek_group_device(b.group, 1), 0, EK_OK));
  ck_assert_uint_eq(ck_usage(ek_group_device(b.group, 0)).current_bytes, before.current_bytes);
  ck_assert_int_eq(whole.rank, -3);
  ck_ok(ek_gather(&whole, &b.shards, 0, EK_MEMORY_OUTPUTS));
  holds_all(&b, &whole, 0);
  ek_tensor_free(&whole);
  close_bench(&b);
}

CK_TEST(wrong_arguments_are_refused) {
  CK_SET_UP(struct bench, b, open_bench(&b, cuts[0]));
  ek_shards none = {0}, hollow = {0};
  ck_ok(ek_shards_create(&hollow, b.group));
  ek_tensor whole = {0}, host, small, wrong, on_device = b.shards.parts[0];
  double numbers[ROWS * COLUMNS] = {0};
  const ek_memory_category c = EK_MEMORY_OUTPUTS;
  ck_ok(ek_tensor_host(&host, numbers, EK_F32, CK_SHAPE(ROWS, COLUMNS)));
  ck_ok(ek_tensor_host(&small, numbers, EK_F32, CK_SHAPE(ROWS - 1, COLUMNS)));
  ck_ok(ek_tensor_host(&wrong, numbers, EK_I32, CK_SHAPE(ROWS, COLUMNS)));
  ck_invalid(ek_gather(NULL, &b.shards, 0, c), "NULL");
  ck_invalid(ek_gather(&whole, NULL, 0, c), "NULL");
  ck_invalid(ek_gather(&whole, &b.shards, DEVICES, c), "has number 3");
  ck_invalid(ek_gather(&whole, &none, 0, c), "has number 0");
  ck_invalid(ek_gather(&whole, &hollow, 0, c), "empty");
  ck_invalid(ek_gather(&whole, &b.shards, 0, (ek_memory_category)77), "category");
  ck_invalid(ek_gather_move(&whole, &hollow, DEVICES, c), "number 3");
  ck_assert_ptr_null(hollow.group); /* taken over, whatever was wrong */
  ck_invalid(ek_gather_move(NULL, &hollow, 0, c), "NULL");
  ck_invalid(ek_gather_move(&whole, NULL, 0, c), "NULL");
  ck_invalid(ek_gather_host(&host, NULL), "shards are NULL");
  ck_invalid(ek_gather_host(&host, &none), "shards are NULL");
  ck_invalid(ek_gather_host(NULL, &b.shards), "tensor in host memory");
  ck_invalid(ek_gather_host(&on_device, &b.shards), "tensor in host memory");
  ck_fails(ek_gather_host(&wrong, &b.shards), EK_ERR_TYPE, "i32");
  ck_fails(ek_gather_host(&small, &b.shards), EK_ERR_SHAPE, "40 elements, the host tensor has 35");
  ck_ok(ek_memory_fail_at(ek_group_device(b.group, 1), 1));
  ck_fails(ek_gather(&whole, &b.shards, 1, c), EK_ERR_OUT_OF_MEMORY, "cpu:1");
  ck_assert(!ek_tensor_exists(&whole));
  ck_ok(ek_memory_fail_at(ek_group_device(b.group, 1), 1));
  ck_fails(ek_gather_move(&whole, &b.shards, 1, c), EK_ERR_OUT_OF_MEMORY, "cpu:1");
  ck_no_memory_held(b.group);
  close_bench(&b);
}

CK_SUITE("gather")
