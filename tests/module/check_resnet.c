/*
 * check_resnet.c - ResNet: gradients, names, shapes.
 *
 * With frozen statistics a sample's results do not depend on the others, as every check of a module
 * wants; check_batch_norm.c has the statistics of a batch.
 */
#include "ck_module.h"

static ek_resnet_options small(int depth) {
  static ek_batch_norm_options frozen = EK_BATCH_NORM_OPTIONS_INIT;
  ek_resnet_options options = EK_RESNET_OPTIONS_INIT;
  frozen.over = EK_BATCH_NORM_FROZEN;
  ck_assign(options, .depth = depth, .classes = 3, .channels = 2, .width = 2, .norm = &frozen);
  return options;
}

#define RESNET(create, depth, ...)                                                                 \
  CK_CREATE_WITH(create, ek_resnet_options, small(depth), ek_resnet_create(module, &o), __VA_ARGS__)
RESNET(create_plain, 18, .small_pictures = true)
RESNET(create_bottleneck, 50, .recompute.kind = EK_RECOMPUTE_EVERY, .recompute.every = 2)
RESNET(create_cheap, 18, .small_pictures = true, .recompute.kind = EK_RECOMPUTE_CHEAP)

/* depth: three operations for each of 20 or 53 convolutions, forward and backward. Sizes with whose
 * random numbers no rounding to 16 bits crosses the edge of a ReLU, where gradients jump. */
static const struct ck_module_case cases[] = {
    CK_CASE_PROBED("18, small pictures", create_plain, 16 * 9, 120, UINT64_MAX, 3,
                   {0, 4, {3, 4, 3, 2}, -1, 1}),
    CK_CASE_PROBED("18, cheap", create_cheap, 16 * 9, 120, UINT64_MAX, 3,
                   {0, 4, {3, 4, 3, 2}, -1, 1}),
    CK_CASE_PROBED("50, recomputed", create_bottleneck, 64 * 9, 320, UINT64_MAX, 2,
                   {0, 4, {2, 7, 5, 2}, -1, 1}),
};
CK_MODULE_CASES(cases)

/* ---- names and numbers, as torchvision has them ---- */

static ek_replica *counted(ek_module *module) {
  ek_group *group = ck_open_exactly("plan:1", 1);
  CK_OPENED(ek_replica *, replica,
            ek_replica_open(&replica, ek_group_device(group, 0), module, NULL));
  return replica;
}

/* The numbers of parameters are those of torchvision's documentation of its weights. */
CK_LOOP(names_and_numbers_of_torchvision, 5) {
  static const int depths[] = {18, 34, 50, 101, 152};
  static const int64_t trained[] = {11689512, 21797672, 25557032, 44549160, 60192808};
  CK_WITH(ek_resnet_options, options, EK_RESNET_OPTIONS_INIT, .depth = depths[_i]);
  CK_OPENED(ek_module *, module, ek_resnet_create(&module, &options));
  ek_replica *replica = counted(module);
  int64_t count = 0;
  CK_EACH_PARAMETER(info, replica) {
    if (!info.buffer) count += ek_tensor_count(&info.value);
  }
  ck_assert_int_eq(count, trained[_i]);
  ck_has_parameter(replica, "conv1.weight", "64 3 7 7");
  ck_has_parameter(replica, "bn1.running_var", "64");
  ck_has_parameter(replica, "layer2.0.downsample.1.bias", depths[_i] < 50 ? "128" : "512");
  ck_has_parameter(replica, "layer4.1.conv2.weight", "512 512 3 3");
  if (depths[_i] >= 50) ck_has_parameter(replica, "layer1.0.downsample.0.weight", "256 64 1 1");
  ck_has_parameter(replica, "fc.weight", depths[_i] < 50 ? "1000 512" : "1000 2048");
}

/* ---- memory ---- */

/* What is held between forward and backward on a device that only counts. */
static uint64_t kept_by(int depth, ek_recompute_kind kind) {
  ek_resnet_options options = small(depth);
  ck_assign(options, .norm = NULL, .width = 8, .small_pictures = true, .recompute.kind = kind);
  CK_SCOPED(ek_module *, module, ek_resnet_create(&module, &options));
  CK_SCOPED(ek_group *, group, ek_group_open(&group, "plan:1", NULL));
  ek_device *device = ek_group_device(group, 0);
  CK_SCOPED(ek_replica *, replica, ek_replica_open(&replica, device, module, NULL));
  CK_SCOPED(ek_tensor, x,
            ek_tensor_create(&x, device, EK_MEMORY_INPUTS, EK_F32, CK_SHAPE(3, 16, 16, 2)));
  CK_SCOPED(ek_pass *, pass, ek_pass_open(&pass, replica, NULL));
  CK_SCOPED(ek_tensor, y, ek_pass_run_forward(&y, pass, &x));
  CK_GOT(ek_memory_usage, usage, ck_memory_stats(&usage, device));
  return usage.current[EK_MEMORY_ACTIVATIONS];
}

/* Of a ReLU after a batch norm only the convolution's result is kept: to the byte, as all sizes are
 * whole units of the arena. */
CK_LOOP(cheap_keeps_one_of_two, 2) {
  static const uint64_t blocks[2][4] = {{2, 2, 2, 2}, {3, 4, 6, 3}};
  const int depth = _i == 0 ? 18 : 50;
  uint64_t results = 4ull * 3 * 16 * 16 * 8; /* of the beginning */
  for (int stage = 0; stage < 4; stage++) {
    const uint64_t size = 16 >> stage, one = 4ull * 3 * size * size * (8u << stage);
    results += blocks[_i][stage] * (depth == 18 ? 1 : 2) * one;
    /* The first convolution of a block of three has not made the pictures smaller yet. */
    if (depth == 50 && stage > 0) results += 3 * one;
  }
  ck_assert_uint_eq(kept_by(depth, EK_RECOMPUTE_NONE) - kept_by(depth, EK_RECOMPUTE_CHEAP),
                    results);
}

/* ---- what is refused ---- */

CK_TEST(bad_options) {
  ek_module *module = NULL;
  ek_resnet_options bad = EK_RESNET_OPTIONS_INIT;
  ck_bad(bad, depth, 20, ek_resnet_create(&module, &bad), "depth is 20, expected 18");
  ck_bad(bad, classes, 0, ek_resnet_create(&module, &bad), "0 classes");
  bad.classes = 2;
  ck_bad(bad, width, 0, ek_resnet_create(&module, &bad), "width 0");
  ck_assert_ptr_null(module);
  ck_host_failures(create_plain);
}

CK_SUITE("resnet")
