/*
 * check_keep.c - the list of what a test keeps (ck_keep.h): the order in which it is freed, and
 * what a test frees itself.
 */
#include "ek_check.h"

static int order[8], released;

static void release_number(void *number) { order[released++] = *(int *)number; }

CK_TEST(newest_first_and_down_to_a_mark) {
  int numbers[] = {0, 1, 2, 3};
  const size_t start = ck_mark();
  released = 0;
  ck_keep_by(&numbers[0], release_number);
  ck_keep_by(&numbers[1], release_number);
  const size_t mark = ck_mark();
  ck_keep_by(&numbers[2], release_number);
  ck_keep_by(&numbers[3], release_number);
  ck_forget(&numbers[0]);
  ck_release(mark - 1);
  ck_assert_int_eq(released, 2);
  ck_assert(order[0] == 3 && order[1] == 2);
  ck_release(start);
  ck_assert_int_eq(released, 3);
  ck_assert_int_eq(order[2], 1);
}

/* Of two references to one memory either may be freed by hand. */
CK_LOOP(what_a_test_frees_itself_is_not_freed_again, 2) {
  ek_group *group = ck_open("cpu:2", 1);
  ek_device *device = ek_group_device(group, 0);
  CK_OPENED(ek_module *, linear, ek_linear_create(&linear, 3, 4, true));
  CK_OPENED(ek_tensor, x, ek_tensor_create(&x, device, EK_MEMORY_WORKSPACE, EK_F32, CK_SHAPE(3)));
  CK_OPENED(ek_tensor, same, ek_tensor_share(&same, &x));
  ck_assert_uint_eq(ck_mark(), 4);
  ck_fails(ek_group_close(group), EK_ERR_STATE, "remain");
  ck_assert_uint_eq(ck_mark(), 4);
  ek_tensor_free(_i == 0 ? &x : &same);
  ek_module_free(linear);
  ck_assert_uint_eq(ck_mark(), 2);
}

CK_SUITE("keep")
