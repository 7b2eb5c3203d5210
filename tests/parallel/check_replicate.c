/*
 * check_replicate.c - making replicas equal to the first one.
 */
#include "ck_blend.h"

enum { DEVICES = 4 };

struct bench {
  ek_group *group;
  ek_communicator *communicator;
  ek_module *module;
  ek_replica *replicas[DEVICES];
};

static void open_bench(struct bench *b, ek_type type) {
  b->group = ck_open("cpu:4", 1);
  ck_kept(ek_communicator_open(&b->communicator, b->group), b->communicator);
  ck_kept(ck_blend_create(&b->module), b->module);
  for (size_t k = 0; k < DEVICES; k++) {
    CK_WITH(ek_replica_options, options, EK_REPLICA_OPTIONS_INIT, .type = type,
            .seed = k /* all different */);
    ck_kept(ek_replica_open(&b->replicas[k], ek_group_device(b->group, k), b->module, &options),
            b->replicas[k]);
  }
}

static bool equal(const ek_tensor *a, const ek_tensor *b) {
  return memcmp(ck_got(a), ck_got(b), (size_t)ek_tensor_count(a) * sizeof(double)) == 0;
}

CK_LOOP(all_become_the_first, 2) {
  CK_SET_UP(struct bench, b, open_bench(&b, _i == 0 ? EK_F32 : EK_F64));
  ek_tensor buffers = *ek_replica_buffers(b.replicas[0]);
  const double marks[16] = {9, 8, 7, 6, 5, 4, 3, 2, 1};
  ck_set(&buffers, marks);
  double *before = ck_got(ek_replica_parameters(b.replicas[0]));
  for (size_t k = 1; k < DEVICES; k++) {
    ck_assert(!equal(ek_replica_parameters(b.replicas[k]), ek_replica_parameters(b.replicas[0])));
  }
  ck_ok(ek_replicate(b.communicator, b.replicas));
  for (size_t k = 1; k < DEVICES; k++) {
    ck_assert(equal(ek_replica_parameters(b.replicas[k]), ek_replica_parameters(b.replicas[0])));
    ck_assert(equal(ek_replica_buffers(b.replicas[k]), ek_replica_buffers(b.replicas[0])));
  }
  double *after = ck_got(ek_replica_parameters(b.replicas[0]));
  ck_same_bits("the first", after, before, ek_tensor_count(ek_replica_parameters(b.replicas[0])));
}

CK_TEST(wrong_replicas_are_refused) {
  CK_SET_UP(struct bench, b, open_bench(&b, EK_F32));
  ek_replica *list[DEVICES], *other = NULL, *wide = NULL;
  const int64_t sizes[] = {2, 2};
  CK_SCOPED(ek_module *, module, ek_mlp_create(&module, sizes, 2, EK_ACTIVATION_RELU));
  ck_kept(ek_replica_open(&other, ek_group_device(b.group, 2), module, NULL), other);
  CK_WITH(ek_replica_options, options, EK_REPLICA_OPTIONS_INIT, .type = EK_F64);
  ck_kept(ek_replica_open(&wide, ek_group_device(b.group, 2), b.module, &options), wide);
  memcpy(list, b.replicas, sizeof list);
  ck_invalid(ek_replicate(NULL, list), "ek_replicate");
  ck_invalid(ek_replicate(b.communicator, NULL), "ek_replicate");
  list[2] = NULL;
  ck_fails(ek_replicate(b.communicator, list), EK_ERR_DEVICE, "number 2");
  list[2] = b.replicas[1];
  ck_fails(ek_replicate(b.communicator, list), EK_ERR_DEVICE, "number 2");
  list[2] = other;
  ck_invalid(ek_replicate(b.communicator, list), "number 2");
  list[2] = wide;
  ck_invalid(ek_replicate(b.communicator, list), "number 2");
  ek_group *elsewhere = ck_open("cpu:4", 1);
  CK_OPENED(ek_communicator *, other_group, ek_communicator_open(&other_group, elsewhere));
  ck_assert_ptr_eq(ek_communicator_group(other_group), elsewhere);
  ck_assert_ptr_null(ek_communicator_group(NULL));
  ck_fails(ek_replicate(other_group, b.replicas), EK_ERR_DEVICE, "number 0");
}

CK_SUITE("replicate")
