/*
 * check_tensor.c - making, sharing, viewing, growing and copying tensors, and every wrong call.
 */
#include "ek_check.h"

static const ek_type types[] = {EK_F32, EK_F64, EK_BF16, EK_F16, EK_I32, EK_I64};
enum { TYPES = sizeof types / sizeof types[0] };

/* A spec for loops over both backends: 0 cpu, 1 plan. */
static ek_group *open_one_of(int number) {
  return ck_open(number == 0 ? "cpu:2@64MiB" : "plan:2@64MiB", 1);
}

static uint64_t held(const ek_device *device) {
  return ck_usage(device).current_bytes;
}

static ek_tensor made_on(ek_group *group, size_t number, int rank, const int64_t *shape) {
  ek_device *device = ek_group_device(group, number);
  CK_OPENED(ek_tensor, t, ek_tensor_create(&t, device, EK_MEMORY_INPUTS, EK_F32, rank, shape));
  return t;
}

CK_TEST(types_have_names_and_sizes) {
  static const char *const names[] = {"f32", "f64", "bf16", "f16", "i32", "i64"};
  static const size_t sizes[] = {4, 8, 2, 2, 4, 8};
  for (int i = 0; i < TYPES; i++) {
    ck_assert_str_eq(ek_type_name(types[i]), names[i]);
    ck_assert_uint_eq(ek_type_size(types[i]), sizes[i]);
  }
  ck_assert_uint_eq(ek_type_size((ek_type)0), 0);
  ck_assert_uint_eq(ek_type_size((ek_type)7), 0);
  ck_assert_ptr_nonnull(ek_type_name((ek_type)99));
}

CK_LOOP(create_says_what_it_is, 2) {
  ek_device *device = ek_group_device(open_one_of(_i), 1);
  for (int i = 0; i < TYPES; i++) {
    ek_tensor t = {0};
    ck_assert(!ek_tensor_exists(&t));
    ck_ok(ek_tensor_create(&t, device, EK_MEMORY_INPUTS, types[i], CK_SHAPE(3, 5, 7)));
    ck_assert(ek_tensor_exists(&t));
    ck_assert_ptr_eq(t.device, device);
    ck_assert_ptr_nonnull(t.data);
    ck_assert_int_eq(t.type, types[i]);
    ck_assert_int_eq(ek_tensor_count(&t), 105);
    ck_assert_uint_eq(ek_tensor_bytes(&t), 105 * ek_type_size(types[i]));
    ck_assert_int_eq(ek_tensor_row_elements(&t), 35);
    ck_assert_int_eq(ek_tensor_holders(&t), 1);
    ck_assert_uint_eq(held(device), (ek_tensor_bytes(&t) + 255) / 256 * 256);
    ek_tensor_free(&t);
    ck_assert(!ek_tensor_exists(&t));
    ck_assert_ptr_null(t.data);
  }
  CK_OPENED(ek_tensor, scalar, ek_tensor_create(&scalar, device, EK_MEMORY_LOSS, EK_F64, 0, NULL));
  ck_assert_int_eq(ek_tensor_count(&scalar), 1);
  ck_assert_int_eq(ek_tensor_row_elements(&scalar), 1);
  CK_OPENED(ek_tensor, row, ek_tensor_create(&row, device, EK_MEMORY_LOSS, EK_F64, CK_SHAPE(9)));
  ck_assert_int_eq(ek_tensor_row_elements(&row), 1);
  CK_OPENED(
      ek_tensor, deep,
      ek_tensor_create(&deep, device, EK_MEMORY_LOSS, EK_I32, CK_SHAPE(1, 2, 1, 2, 1, 2, 1, 2)));
  ck_assert_int_eq(ek_tensor_count(&deep), 16);
  ek_tensor_free(NULL);
}

CK_TEST(nothing_is_asked_of_nothing) {
  const ek_tensor none = {0};
  ck_assert(!ek_tensor_exists(NULL));
  ck_assert_int_eq(ek_tensor_count(NULL), 0);
  ck_assert_int_eq(ek_tensor_count(&none), 0);
  ck_assert_uint_eq(ek_tensor_bytes(NULL), 0);
  ck_assert_uint_eq(ek_tensor_bytes(&none), 0);
  ck_assert_int_eq(ek_tensor_row_elements(NULL), 0);
  ck_assert_int_eq(ek_tensor_holders(NULL), 0);
  ck_assert_int_eq(ek_tensor_holders(&none), 0);
  ck_assert(!ek_tensor_same_shape(NULL, &none));
  ck_assert(!ek_tensor_same_shape(&none, NULL));
}

CK_TEST(same_shape_means_type_rank_and_sizes) {
  float data[12] = {0};
  CK_GOT(ek_tensor, a, ek_tensor_host(&a, data, EK_F32, CK_SHAPE(3, 4)));
  CK_GOT(ek_tensor, b, ek_tensor_host(&b, data, EK_F32, CK_SHAPE(3, 4)));
  ck_assert(ek_tensor_same_shape(&a, &b));
  ck_ok(ek_tensor_host(&b, data, EK_I32, CK_SHAPE(3, 4)));
  ck_assert(!ek_tensor_same_shape(&a, &b));
  ck_ok(ek_tensor_host(&b, data, EK_F32, CK_SHAPE(4, 3)));
  ck_assert(!ek_tensor_same_shape(&a, &b));
  ck_ok(ek_tensor_host(&b, data, EK_F32, CK_SHAPE(3, 4, 1)));
  ck_assert(!ek_tensor_same_shape(&a, &b));
}

CK_LOOP(a_tensor_without_elements_exists_and_holds_nothing, 2) {
  ek_device *device = ek_group_device(open_one_of(_i), 0);
  CK_OPENED(ek_tensor, t, ek_tensor_create(&t, device, EK_MEMORY_INPUTS, EK_F32, CK_SHAPE(0, 5)));
  ck_assert(ek_tensor_exists(&t));
  ck_assert_int_eq(ek_tensor_count(&t), 0);
  ck_assert_uint_eq(ek_tensor_bytes(&t), 0);
  ck_assert_int_eq(ek_tensor_row_elements(&t), 5);
  ck_assert_int_eq(ek_tensor_holders(&t), 0);
  ck_assert_uint_eq(held(device), 0);
  CK_GOT(ek_tensor, host, ek_tensor_host(&host, NULL, EK_F32, CK_SHAPE(7, 0)));
  ck_ok(ek_tensor_copy(&t, &host));
  ck_ok(ek_tensor_copy(&host, &t));
  CK_GOT(ek_tensor, u, ek_tensor_rows(&u, &t, 0, 0));
  ck_ok(ek_tensor_reshape(&u, &t, CK_SHAPE(3, 0, 2)));
  ck_assert_int_eq(u.rank, 3);
  ck_ok(ek_tensor_share(&u, &t));
  ck_ok(ek_tensor_set_category(&u, EK_MEMORY_OUTPUTS));
  bool grown = true;
  ck_ok(ek_tensor_grow(&grown, &t, 3));
  ck_assert(!grown);
  ck_assert_int_eq(t.shape[0], 0);
  ek_tensor_free(&u);
}

/* ---- references ---- */

CK_LOOP(views_keep_the_memory_alive, 2) {
  ek_device *device = ek_group_device(open_one_of(_i), 0);
  CK_GOT(ek_tensor, t, ek_tensor_create(&t, device, EK_MEMORY_INPUTS, EK_F32, CK_SHAPE(100, 64)));
  CK_GOT(ek_tensor, shared, ek_tensor_share(&shared, &t));
  CK_GOT(ek_tensor, rows, ek_tensor_rows(&rows, &t, 10, 20));
  CK_GOT(ek_tensor, flat, ek_tensor_reshape(&flat, &rows, CK_SHAPE(1280)));
  ck_assert_int_eq(ek_tensor_holders(&t), 4);
  ck_assert(ek_tensor_same_shape(&t, &shared));
  ck_assert_ptr_eq(shared.data, t.data);
  ck_assert_ptr_eq(rows.data, (char *)t.data + 10 * 64 * 4);
  ck_assert_int_eq(rows.shape[0], 20);
  ck_assert_int_eq(rows.shape[1], 64);
  ck_assert_ptr_eq(flat.data, rows.data);
  ek_tensor_free(&t);
  ek_tensor_free(&shared);
  ek_tensor_free(&rows);
  ck_assert_int_eq(ek_tensor_holders(&flat), 1);
  ck_assert_uint_eq(held(device), 100 * 64 * 4);
  ek_tensor_free(&flat);
  ck_assert_uint_eq(held(device), 0);
}

CK_TEST(a_host_tensor_is_a_loan) {
  float data[6] = {1, 2, 3, 4, 5, 6};
  CK_GOT(ek_tensor, host, ek_tensor_host(&host, data, EK_F32, CK_SHAPE(3, 2)));
  ck_assert_ptr_null(host.device);
  ck_assert_int_eq(ek_tensor_holders(&host), 0);
  CK_GOT(ek_tensor, view, ek_tensor_share(&view, &host));
  ck_assert_ptr_eq(view.data, data);
  ck_ok(ek_tensor_rows(&view, &host, 2, 1));
  ck_assert_ptr_eq(view.data, data + 4);
  ck_ok(ek_tensor_reshape(&view, &host, CK_SHAPE(2, 3)));
  ck_ok(ek_tensor_set_category(&view, EK_MEMORY_OUTPUTS));
  bool grown = true;
  ck_ok(ek_tensor_grow(&grown, &view, 5));
  ck_assert(!grown);
  ek_tensor_free(&view);
  ek_tensor_free(&host);
  ck_assert(data[5] == 6);
}

/* ---- growing ---- */

CK_LOOP(growing_is_in_place_or_not_at_all, 2) {
  ek_device *device = ek_group_device(open_one_of(_i), 0);
  ek_tensor t = {0}, behind = {0}, view = {0};
  ck_ok(ek_tensor_create(&t, device, EK_MEMORY_INPUTS, EK_F32, CK_SHAPE(2, 64)));
  const double values[] = {[0] = 1, [127] = 128};
  if (_i == 0) ck_set(&t, values);
  CK_GOT(bool, grown, ek_tensor_grow(&grown, &t, 100));
  ck_assert(grown);
  ck_assert_int_eq(t.shape[0], 100);
  ck_assert_uint_eq(held(device), 100 * 256);
  if (_i == 0) {
    double kept[100 * 64];
    ck_get(kept, &t);
    ck_assert(kept[0] == 1 && kept[127] == 128);
  }
  ck_ok(ek_tensor_grow(&grown, &t, 100)); /* it is so already */
  ck_assert(grown);
  ck_ok(ek_tensor_share(&view, &t)); /* two holders */
  ck_ok(ek_tensor_grow(&grown, &t, 101));
  ck_assert(!grown);
  ek_tensor_free(&view);
  ck_ok(ek_tensor_create(&behind, device, EK_MEMORY_INPUTS, EK_F32, CK_SHAPE(1)));
  ck_ok(ek_tensor_grow(&grown, &t, 101)); /* no room */
  ck_assert(!grown);
  ck_assert_int_eq(t.shape[0], 100);
  ek_tensor_free(&behind);
  ck_ok(ek_tensor_grow(&grown, &t, INT64_C(1) << 50)); /* more than there is */
  ck_assert(!grown);
  ck_fails(ek_tensor_grow(&grown, &t, INT64_MAX), EK_ERR_OVERFLOW, "ek_tensor_grow");
  /* The first rows of a tensor whose other holder is gone: they do not cover the memory. */
  ck_ok(ek_tensor_rows(&view, &t, 0, 10));
  ek_tensor_free(&t);
  ck_ok(ek_tensor_grow(&grown, &view, 20));
  ck_assert(!grown);
  ck_assert_int_eq(view.shape[0], 10);
  ek_tensor_free(&view);
}

/* ---- copies ---- */

enum { COUNT = 100003 };

static void count_up(float *data, int64_t count, float from) {
  for (int64_t i = 0; i < count; i++) data[i] = from + (float)i;
}

CK_TEST(copies_go_in_all_directions) {
  ek_group *group = ck_open("cpu:2@64MiB", 2);
  float *from = ck_array(COUNT, sizeof *from), *to = ck_array(COUNT, sizeof *to);
  count_up(from, COUNT, 1);
  CK_GOT(ek_tensor, source, ek_tensor_host(&source, from, EK_F32, CK_SHAPE(COUNT)));
  ek_tensor sink; /* only the count matters */
  ck_ok(ek_tensor_host(&sink, to, EK_F32, CK_SHAPE(COUNT, 1)));
  ek_tensor first = made_on(group, 0, CK_SHAPE(COUNT));
  ek_tensor second = made_on(group, 1, CK_SHAPE(1, COUNT));
  ek_tensor again = made_on(group, 1, CK_SHAPE(COUNT));
  ck_ok(ek_tensor_copy(&first, &source));
  ck_ok(ek_tensor_copy(&second, &first));
  ck_ok(ek_tensor_copy(&again, &second));
  ck_ok(ek_tensor_copy(&again, &again));
  ck_ok(ek_tensor_copy(&sink, &again));
  ck_assert(memcmp(from, to, COUNT * sizeof *from) == 0);
  memset(to, 0, COUNT * sizeof *to);
  ck_ok(ek_tensor_copy(&sink, &source));
  ck_assert(memcmp(from, to, COUNT * sizeof *from) == 0);
}

CK_TEST(made_from_another) {
  ek_group *group = ck_open(test_devices("cpu:2@64MiB"), 1);
  ek_device *device = ek_group_device(group, ek_group_size(group) - 1);
  float from[24], to[24] = {0};
  count_up(from, 24, 5);
  for (int ahead = 0; ahead < 2; ahead++) {
    ek_tensor source, sink, first = {0}, second = {0}, empty, made = {0};
    ck_ok(ek_tensor_host(&source, from, EK_F32, CK_SHAPE(4, 6)));
    ck_ok(ek_tensor_host(&sink, to, EK_F32, CK_SHAPE(4, 6)));
    ck_ok(ek_tensor_create_from(&first, device, EK_MEMORY_INPUTS, &source, ahead == 1));
    ck_assert(ek_tensor_same_shape(&first, &source));
    ck_assert_ptr_eq(first.device, device);
    ck_ok(ek_tensor_create_from(&second, ek_group_device(group, 0), EK_MEMORY_LOSS, &first,
                                ahead == 1));
    ck_ok(ek_tensor_wait(&second));
    CK_GOT(ek_memory_usage, usage, ek_memory_stats(&usage, second.device));
    ck_assert_uint_eq(usage.current[EK_MEMORY_LOSS], EK_MEMORY_UNIT);
    memset(to, 0, sizeof to);
    ck_ok(ek_tensor_copy(&sink, &second));
    ck_assert_mem_eq(to, from, sizeof to);
    ck_ok(ek_tensor_host(&empty, from, EK_F32, CK_SHAPE(0, 6)));
    ck_ok(ek_tensor_create_from(&made, device, EK_MEMORY_INPUTS, &empty, ahead == 1));
    ck_assert(ek_tensor_exists(&made) && made.memory == NULL);
    ck_assert_ptr_nonnull(made.data); /* kernels compute with it: NULL + 0 is undefined */
    ck_ok(ek_tensor_wait(&made));
    ck_ok(ek_tensor_wait(&source)); /* the host's are there */
    ek_tensor_free(&first);
    ek_tensor_free(&second);
    ek_tensor_free(&made);
    ck_no_memory_held(group);
  }
}

CK_TEST(wrong_copies_into_new_tensors) {
  ek_group *group = ck_open("plan:1@64KiB", 1), *other = ck_open("plan:1", 1);
  ek_device *device = ek_group_device(group, 0);
  float data[4] = {0};
  const ek_tensor nothing = {0}, foreign = made_on(other, 0, CK_SHAPE(4));
  ek_tensor host, made = {0};
  ck_ok(ek_tensor_host(&host, data, EK_F32, CK_SHAPE(4)));
  ck_invalid(ek_tensor_create_from(NULL, device, EK_MEMORY_INPUTS, &host, true),
             "ek_tensor_create_from");
  ck_invalid(ek_tensor_create_from(&made, device, EK_MEMORY_INPUTS, &nothing, true),
             "ek_tensor_create_from");
  ck_invalid(ek_tensor_create_from(&made, NULL, EK_MEMORY_INPUTS, &host, true), "ek_tensor_create");
  ck_fails(ek_tensor_create_from(&made, device, EK_MEMORY_INPUTS, &foreign, true), EK_ERR_DEVICE,
           "different groups");
  ck_ok(ek_memory_fail_at(device, 1));
  ck_fails(ek_tensor_create_from(&made, device, EK_MEMORY_INPUTS, &host, true),
           EK_ERR_OUT_OF_MEMORY, "inputs");
  ck_assert(!ek_tensor_exists(&made));
  ck_no_memory_held(group);
  ck_invalid(ek_tensor_wait(NULL), "ek_tensor_wait");
  ck_invalid(ek_tensor_wait(&nothing), "ek_tensor_wait");
}

CK_TEST(copies_into_rows_leave_the_others) {
  const double zeros[30] = {0};
  float rows[6] = {1, 2, 3, 4, 5, 6};
  double got[30];
  ek_tensor t = ck_upload(ck_device("cpu:1@1MiB"), EK_F32, zeros, CK_SHAPE(10, 3)), host;
  CK_OPENED(ek_tensor, view, ek_tensor_rows(&view, &t, 4, 2));
  ck_ok(ek_tensor_host(&host, rows, EK_F32, CK_SHAPE(2, 3)));
  ck_ok(ek_tensor_copy(&view, &host));
  ck_get(got, &t);
  for (int i = 0; i < 30; i++) ck_assert(got[i] == (i >= 12 && i < 18 ? i - 11 : 0));
}

CK_TEST(overlapping_host_arrays_may_be_copied) {
  float data[100], want[90];
  count_up(data, 100, 0);
  memcpy(want, data, sizeof want);
  CK_GOT(ek_tensor, from, ek_tensor_host(&from, data, EK_F32, CK_SHAPE(90)));
  CK_GOT(ek_tensor, to, ek_tensor_host(&to, data + 10, EK_F32, CK_SHAPE(90)));
  ck_ok(ek_tensor_copy(&to, &from));
  ck_assert(memcmp(data + 10, want, sizeof want) == 0);
}

CK_TEST(plan_copies_leave_host_memory_alone) {
  ek_group *group = ck_open("plan:2", 1);
  float data[4] = {1, 2, 3, 4};
  const float before[4] = {1, 2, 3, 4};
  ek_tensor host, a = made_on(group, 0, CK_SHAPE(4)), b = made_on(group, 1, CK_SHAPE(4));
  ck_ok(ek_tensor_host(&host, data, EK_F32, CK_SHAPE(4)));
  ck_assert(ek_device_counts_only(a.device));
  ck_ok(ek_tensor_copy(&a, &host));
  ck_ok(ek_tensor_copy(&b, &a));
  ck_ok(ek_tensor_copy(&host, &b));
  ck_assert(memcmp(data, before, sizeof data) == 0);
}

/* ---- large sizes ---- */

CK_TEST(large_tensors_are_nothing_special) {
  ek_device *device = ek_group_device(ck_open_exactly(CK_HUGE_PLAN, 1), 0);
  ek_tensor t = {0}, view = {0};
  ck_ok(ek_tensor_create(&t, device, EK_MEMORY_OUTPUTS, EK_F32, CK_SHAPE(32, 2048, 151936)));
  ck_assert_int_eq(ek_tensor_count(&t), INT64_C(32) * 2048 * 151936);
  ck_assert_uint_eq(ek_tensor_bytes(&t), UINT64_C(32) * 2048 * 151936 * 4);
  ck_assert_int_eq(ek_tensor_row_elements(&t), INT64_C(2048) * 151936);
  ck_assert_uint_eq(held(device), ek_tensor_bytes(&t));
  ck_ok(ek_tensor_rows(&view, &t, 31, 1));
  ck_assert_uint_eq((uintptr_t)view.data - (uintptr_t)t.data, UINT64_C(31) * 2048 * 151936 * 4);
  ek_tensor_free(&view);
  ck_ok(ek_tensor_reshape(&view, &t, CK_SHAPE(65536, 151936)));
  ek_tensor_free(&view);
  ek_tensor_free(&t);
  for (int64_t n = (INT64_C(1) << 31) - 1; n <= (INT64_C(1) << 31) + 1; n++) {
    ck_ok(ek_tensor_create(&t, device, EK_MEMORY_OUTPUTS, EK_F64, CK_SHAPE(n)));
    ck_assert_int_eq(ek_tensor_count(&t), n);
    ck_assert_uint_eq(held(device), ((uint64_t)n * 8 + 255) / 256 * 256);
    ek_tensor_free(&t);
  }
}

CK_LOOP(products_that_do_not_fit, 2) {
  ek_device *device = ek_group_device(open_one_of(_i), 0);
  ek_tensor t = {0};
  const ek_tensor none = {0};
  float x = 0;
  const int64_t big = INT64_C(1) << 31;
#define OVERFLOWS(...)                                                                             \
  do {                                                                                             \
    ck_fails(ek_tensor_create(&t, device, EK_MEMORY_INPUTS, EK_F32, CK_SHAPE(__VA_ARGS__)),        \
             EK_ERR_OVERFLOW, "ek_tensor_create");                                                 \
    ck_fails(ek_tensor_host(&t, &x, EK_F32, CK_SHAPE(__VA_ARGS__)), EK_ERR_OVERFLOW,               \
             "ek_tensor_host");                                                                    \
  } while (0)
  OVERFLOWS(big, big);
  OVERFLOWS(big, big, 2);
  OVERFLOWS(INT64_MAX);
  OVERFLOWS(INT64_C(1) << 61);
  OVERFLOWS(INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX);
  OVERFLOWS(INT64_C(1) << 32, INT64_C(1) << 32); /* 2^64: it wraps to nothing */
#undef OVERFLOWS
  ck_assert(memcmp(&t, &none, sizeof t) == 0);
  ck_assert_uint_eq(held(device), 0);
}

/* ---- wrong arguments ---- */

CK_LOOP(wrong_makers, 2) {
  ek_device *device = ek_group_device(open_one_of(_i), 0);
  const int64_t shape[] = {2, 3}, negative[] = {2, -1};
  const ek_status wrong = EK_ERR_INVALID_ARGUMENT;
  const ek_memory_category inputs = EK_MEMORY_INPUTS;
  ek_tensor t = {0};
  float x[6];
  ck_invalid(ek_tensor_create(NULL, device, inputs, EK_F32, 2, shape), "create");
  ck_invalid(ek_tensor_create(&t, NULL, inputs, EK_F32, 2, shape), "create");
  ck_assert_int_eq(ek_tensor_create(&t, device, EK_MEMORY_CATEGORIES, EK_F32, 2, shape), wrong);
  ck_assert_int_eq(ek_tensor_create(&t, device, (ek_memory_category)-1, EK_F32, 2, shape), wrong);
  ck_assert_int_eq(ek_tensor_create(&t, device, inputs, (ek_type)0, 2, shape), wrong);
  ck_assert_int_eq(ek_tensor_create(&t, device, inputs, (ek_type)7, 2, shape), wrong);
  ck_assert_int_eq(ek_tensor_create(&t, device, inputs, EK_F32, -1, shape), wrong);
  ck_assert_int_eq(ek_tensor_create(&t, device, inputs, EK_F32, 9, shape), wrong);
  ck_assert_int_eq(ek_tensor_create(&t, device, inputs, EK_F32, 1, NULL), wrong);
  ck_invalid(ek_tensor_create(&t, device, inputs, EK_F32, 2, negative), "dimension 1");
  ck_assert_int_eq(ek_tensor_host(NULL, x, EK_F32, 2, shape), wrong);
  ck_assert_int_eq(ek_tensor_host(&t, NULL, EK_F32, 2, shape), wrong);
  ck_assert_int_eq(ek_tensor_host(&t, x, (ek_type)7, 2, shape), wrong);
  ck_assert_int_eq(ek_tensor_host(&t, x, EK_F32, 9, shape), wrong);
  ck_assert_int_eq(ek_tensor_host(&t, x, EK_F32, 2, NULL), wrong);
  ck_assert_int_eq(ek_tensor_host(&t, x, EK_F32, 2, negative), wrong);
  ck_assert(!ek_tensor_exists(&t));
}

CK_LOOP(wrong_views, 2) {
  ek_group *group = open_one_of(_i);
  const ek_status wrong = EK_ERR_INVALID_ARGUMENT;
  const ek_tensor none = {0};
  ek_tensor v = {0};
  bool grown = true;
  ek_tensor t = made_on(group, 0, CK_SHAPE(4, 3)), scalar = made_on(group, 0, 0, NULL);
  ck_assert_int_eq(ek_tensor_share(NULL, &t), wrong);
  ck_assert_int_eq(ek_tensor_share(&v, NULL), wrong);
  ck_assert_int_eq(ek_tensor_share(&v, &none), wrong);
  ck_assert_int_eq(ek_tensor_rows(NULL, &t, 0, 1), wrong);
  ck_assert_int_eq(ek_tensor_rows(&v, &none, 0, 1), wrong);
  ck_fails(ek_tensor_rows(&v, &scalar, 0, 1), EK_ERR_SHAPE, "scalar");
  static const int64_t rows[][2] = {{-1, 1}, {0, 5}, {4, 1}, {1, -1}, {INT64_MAX, INT64_MAX},
                                    {5, 0}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    ck_assert_int_eq(ek_tensor_rows(&v, &t, rows[i][0], rows[i][1]), wrong);
  }
  ck_assert_int_eq(ek_tensor_reshape(NULL, &t, CK_SHAPE(12)), wrong);
  ck_assert_int_eq(ek_tensor_reshape(&v, NULL, CK_SHAPE(12)), wrong);
  ck_assert_int_eq(ek_tensor_reshape(&v, &t, 9, t.shape), wrong);
  ck_assert_int_eq(ek_tensor_reshape(&v, &t, CK_SHAPE(-3, -4)), wrong);
  ck_fails(ek_tensor_reshape(&v, &t, CK_SHAPE(13)), EK_ERR_SHAPE, "12 elements");
  ck_fails(ek_tensor_reshape(&v, &t, CK_SHAPE(0)), EK_ERR_SHAPE, "12 elements");
  ck_fails(ek_tensor_reshape(&v, &t, CK_SHAPE(INT64_MAX, 12)), EK_ERR_OVERFLOW, "reshape");
  ck_assert_int_eq(ek_tensor_set_category(NULL, EK_MEMORY_LOSS), wrong);
  ck_assert_int_eq(ek_tensor_set_category(&v, EK_MEMORY_LOSS), wrong);
  ck_assert_int_eq(ek_tensor_set_category(&t, EK_MEMORY_CATEGORIES), wrong);
  ck_assert_int_eq(ek_tensor_grow(NULL, &t, 5), wrong);
  ck_assert_int_eq(ek_tensor_grow(&grown, NULL, 5), wrong);
  ck_assert_int_eq(ek_tensor_grow(&grown, &v, 5), wrong);
  ck_assert_int_eq(ek_tensor_grow(&grown, &t, 3), wrong);
  ck_assert_int_eq(ek_tensor_grow(&grown, &scalar, 3), wrong);
  ck_assert(grown);
  ck_assert(memcmp(&v, &none, sizeof v) == 0);
  ck_assert_int_eq(ek_tensor_holders(&t), 1);
}

CK_LOOP(wrong_copies, 2) {
  ek_group *group = open_one_of(_i), *other = open_one_of(_i);
  ek_tensor host, ints, longer, none = {0};
  float data[12] = {0}, more[13] = {0};
  ek_tensor t = made_on(group, 0, CK_SHAPE(4, 3)), foreign = made_on(other, 0, CK_SHAPE(4, 3));
  ck_ok(ek_tensor_host(&host, data, EK_F32, CK_SHAPE(12)));
  ck_ok(ek_tensor_host(&ints, data, EK_I32, CK_SHAPE(12)));
  ck_ok(ek_tensor_host(&longer, more, EK_F32, CK_SHAPE(13)));
  ck_invalid(ek_tensor_copy(NULL, &host), "ek_tensor_copy");
  ck_invalid(ek_tensor_copy(&t, NULL), "ek_tensor_copy");
  ck_invalid(ek_tensor_copy(&none, &host), "ek_tensor_copy");
  ck_invalid(ek_tensor_copy(&t, &none), "ek_tensor_copy");
  ck_fails(ek_tensor_copy(&t, &ints), EK_ERR_TYPE, "i32 cannot become f32");
  ck_fails(ek_tensor_copy(&t, &longer), EK_ERR_SHAPE, "13 elements cannot become 12");
  ck_fails(ek_tensor_copy(&longer, &t), EK_ERR_SHAPE, "12 elements cannot become 13");
  ck_fails(ek_tensor_copy(&t, &foreign), EK_ERR_DEVICE, "different groups");
}

/* ---- memory that is not the library's ---- */

static int releases;
static void note_release(void *context) { releases += *(const int *)context; }

/* On every backend: memory of another tensor stands for the program's. */
CK_LOOP(a_wrapped_tensor_is_no_copy, 2) {
  static const int one = 1;
  ek_group *group = open_one_of(_i);
  ek_device *device = ek_group_device(group, 0);
  const double values[] = {1, 2, 3, 4, 5, 6};
  double got[2] = {5, 6};
  ek_tensor owner = made_on(group, 0, CK_SHAPE(3, 2));
  ck_set(&owner, values);
  const uint64_t before = held(device);
  ek_tensor x = {0}, view = {0};
  bool grown = true;
  releases = 0;
  ck_ok(ek_tensor_wrap(&x, device, owner.data, EK_F32, CK_SHAPE(3, 2), note_release,
                       (void *)(uintptr_t)&one));
  ck_assert_uint_eq(held(device), before);
  ck_assert_int_eq(ek_tensor_holders(&x), 1);
  ck_ok(ek_tensor_set_category(&x, EK_MEMORY_OUTPUTS));
  ck_assert_uint_eq(held(device), before);
  ck_ok(ek_tensor_grow(&grown, &x, 4));
  ck_assert(!grown);
  ck_ok(ek_tensor_rows(&view, &x, 2, 1));
  ek_tensor_free(&x);
  if (!ek_device_counts_only(device)) ck_get(got, &view);
  ck_assert_double_eq(got[0] * 10 + got[1], 56);
  ck_assert_int_eq(releases, 0);
  ck_fails(ek_group_close(group), EK_ERR_STATE, "remain");
  ek_tensor_free(&view);
  ck_assert_int_eq(releases, 1);
}

CK_TEST(a_wrapped_tensor_that_is_refused) {
  static const int one = 1;
  ek_group *group = ck_open("cpu:1", 1);
  ek_device *device = ek_group_device(group, 0);
  char *data = made_on(group, 0, CK_SHAPE(4)).data;
  void *context = (void *)(uintptr_t)&one;
  const int64_t shape[] = {2}, negative[] = {-1}, large[] = {INT64_MAX};
  ek_tensor x = {0};
  releases = 0;
#define REFUSED(tensor, device, data, type, rank, shape, status, text)                             \
  ck_fails(ek_tensor_wrap(tensor, device, data, type, rank, shape, note_release, context), status, \
           text)
  REFUSED(NULL, device, data, EK_F32, 1, shape, EK_ERR_INVALID_ARGUMENT, "NULL");
  REFUSED(&x, NULL, data, EK_F32, 1, shape, EK_ERR_INVALID_ARGUMENT, "NULL");
  REFUSED(&x, device, NULL, EK_F32, 1, shape, EK_ERR_INVALID_ARGUMENT, "data may not be NULL");
  REFUSED(&x, device, data + 2, EK_F32, 1, shape, EK_ERR_INVALID_ARGUMENT, "multiple of 4 bytes");
  REFUSED(&x, device, data, (ek_type)77, 1, shape, EK_ERR_INVALID_ARGUMENT, "element type 77");
  REFUSED(&x, device, data, EK_F32, 9, shape, EK_ERR_INVALID_ARGUMENT, "rank 9");
  REFUSED(&x, device, data, EK_F32, 1, negative, EK_ERR_INVALID_ARGUMENT, "negative");
  REFUSED(&x, device, data, EK_F32, 1, large, EK_ERR_OVERFLOW, "63 bits");
  REFUSED(&x, device, data, EK_U8, 1, shape, EK_ERR_TYPE, "only in host memory");
#undef REFUSED
  ck_assert(!ek_tensor_exists(&x));
  ck_assert_int_eq(releases, 0);
}

CK_TEST(a_wrapped_tensor_without_elements_is_released_as_well) {
  static const int one = 1;
  ek_device *device = ek_group_device(ck_open("cpu:1", 1), 0);
  releases = 0;
  CK_GOT(ek_tensor, x,
         ek_tensor_wrap(&x, device, NULL, EK_F32, CK_SHAPE(0, 3), note_release,
                        (void *)(uintptr_t)&one));
  ck_assert_ptr_nonnull(x.data);
  ek_tensor_free(&x);
  ck_assert_int_eq(releases, 1);
  ck_ok(ek_tensor_wrap(&x, device, NULL, EK_F32, CK_SHAPE(0, 3), NULL, NULL));
  ek_tensor_free(&x);
}

CK_SUITE("tensor")
