/*
 * check_shards.c - shards filled by hand, copies of the struct, and whose they are.
 */
#include "ek_check.h"

enum { DEVICES = 3 };

static void one_number_each(ek_shards *shards) {
  for (size_t k = 0; k < DEVICES; k++) {
    const double value = (double)k;
    shards->parts[k] = ck_upload(ek_group_device(shards->group, k), EK_F64, &value, CK_SHAPE(1));
    shards->offsets[k + 1] = shards->samples[k + 1] = (int64_t)k + 1;
  }
}

CK_TEST(filled_by_hand) {
  ek_group *group = ck_open("cpu:3", 1);
  ek_shards shards = {0};
  ck_assert_uint_le(sizeof shards, 80); /* part of what programs are compiled against */
  for (int again = 0; again < 2; again++) {
    ck_ok(ek_shards_create(&shards, group));
    ck_assert_ptr_eq(shards.group, group);
    ck_assert_uint_eq(shards.count, DEVICES);
    ck_assert(!shards.broadcast && !shards.private_members.ahead &&
              !shards.private_members.overwritten);
    ck_assert_uint_eq(shards.private_members.forward, 0);
    for (size_t k = 0; k <= DEVICES; k++) {
      if (k < DEVICES) ck_assert(!ek_tensor_exists(&shards.parts[k]));
      ck_assert_int_eq(shards.offsets[k], 0);
      ck_assert_int_eq(shards.samples[k], 0);
    }
    one_number_each(&shards);
    ck_ok(ek_shards_wait(&shards));
    ck_fails(ek_group_close(group), EK_ERR_STATE, "tensors remain");
    ek_shards_free(&shards);
    ck_assert_ptr_null(shards.group);
    ck_assert_ptr_null(shards.parts);
    ck_no_memory_held(group);
  }
  ck_ok(ek_shards_create(&shards, group));
  ck_fails(ek_group_close(group), EK_ERR_STATE, "shards of the group were not freed");
  ek_shards_free(&shards);
}

CK_TEST(nothing_is_legal) {
  ek_group *group = ck_open("cpu:1", 1);
  ek_shards none = {0};
  ek_shards_free(NULL);
  ek_shards_free(&none);
  ck_ok(ek_shards_wait(&none));
  ck_invalid(ek_shards_wait(NULL), "ek_shards_wait");
  ck_invalid(ek_shards_create(NULL, group), "NULL");
  ck_invalid(ek_shards_create(&none, NULL), "NULL");
  ck_assert_ptr_null(none.group);
}

/* A copy is the same shards; what was freed through one is not freed through the other, also when
 * its block has gone to other shards. */
CK_TEST(copies_of_the_struct) {
  ek_group *group = ck_open("cpu:3", 1);
  CK_GOT(ek_shards, shards, ek_shards_create(&shards, group));
  one_number_each(&shards);
  ek_shards copy = shards, second = shards;
  ck_assert_ptr_eq(copy.parts, shards.parts);
  ek_shards_free(&copy);
  ck_no_memory_held(group);
  ck_fails(ek_shards_wait(&shards), EK_ERR_STATE, "freed through a copy");
  CK_GOT(ek_shards, other, ek_shards_create(&other, group));
  ck_assert_ptr_eq(other.parts, shards.parts);
  one_number_each(&other);
  ck_fails(ek_shards_wait(&shards), EK_ERR_STATE, "freed through a copy");
  ek_shards_free(&shards);
  ek_shards_free(&second);
  ck_assert_ptr_null(shards.group);
  ck_ok(ek_shards_wait(&other));
  for (size_t k = 0; k < DEVICES; k++) {
    double got = -1;
    ck_assert_int_eq(ek_tensor_holders(&other.parts[k]), 1);
    ck_get(&got, &other.parts[k]);
    ck_assert_double_eq(got, (double)k);
  }
  ek_shards_free(&other);
}

/* What has come back is lent again, first of all, and clean. */
CK_TEST(blocks_are_lent_again) {
  ek_group *group = ck_open("cpu:3", 1);
  ek_shards held[4] = {{0}};
  const void *blocks[4];
  for (size_t i = 0; i < 4; i++) {
    ck_ok(ek_shards_create(&held[i], group));
    memset(held[i].offsets, 0x5A, (DEVICES + 1) * sizeof *held[i].offsets);
    blocks[i] = held[i].parts;
    for (size_t j = 0; j < i; j++) ck_assert_ptr_ne(blocks[i], blocks[j]);
  }
  for (size_t i = 0; i < 4; i++) ek_shards_free(&held[i]);
  for (size_t round = 0; round < 100; round++) {
    ck_ok(ek_shards_create(&held[round % 4], group));
    bool known = false;
    for (size_t j = 0; j < 4; j++) known = known || held[round % 4].parts == blocks[j];
    ck_assert(known);
    ck_assert_int_eq(held[round % 4].offsets[DEVICES], 0);
    if (round % 4 == 3) {
      for (size_t i = 0; i < 4; i++) ek_shards_free(&held[i]);
    }
  }
}

CK_SUITE("shards")
