/*
 * check_fcn.c - the fully convolutional network on a ResNet: gradients of both outputs, names.
 */
#include "ck_module.h"

static ek_status create_fcn(ek_module **module, bool auxiliary) {
  ek_batch_norm_options norm = EK_BATCH_NORM_OPTIONS_INIT;
  ek_resnet_options backbone = EK_RESNET_OPTIONS_INIT;
  norm.over = EK_BATCH_NORM_FROZEN; /* a sample's results do not depend on the others */
  backbone.channels = backbone.width = 2;
  backbone.norm = &norm;
  CK_WITH(ek_fcn_options, options, EK_FCN_OPTIONS_INIT, .classes = 3, .auxiliary = auxiliary,
          .dropout = 0, .backbone = &backbone);
  return ek_fcn_create(module, &options);
}
static ek_status create_segments(ek_module **module) { return create_fcn(module, true); }
static ek_status create_one_output(ek_module **module) { return create_fcn(module, false); }

/* depth: three operations for each of 24 convolutions, forward and backward. Sizes with whose
 * random numbers no rounding to 16 bits crosses the edge of a ReLU, where gradients jump. */
static const struct ck_module_case cases[] = {
    CK_CASE_PROBED("segmentation", create_segments, 16 * 9, 140, UINT64_MAX, 3,
                   {0, 4, {3, 5, 8, 2}, -1, 1}),
    CK_CASE_PROBED("segmentation, one output", create_one_output, 16 * 9, 140, UINT64_MAX, 3,
                   {0, 4, {2, 8, 8, 2}, -1, 1}),
};
CK_MODULE_CASES(cases)

/* ---- names, as torchvision has them ---- */

CK_TEST(names_of_a_segmentation) {
  CK_OPENED(ek_module *, module, ek_fcn_create(&module, NULL));
  ek_group *group = ck_open_exactly("plan:1", 1);
  CK_OPENED(ek_replica *, replica,
            ek_replica_open(&replica, ek_group_device(group, 0), module, NULL));
  ck_has_parameter(replica, "backbone.layer3.5.conv2.weight", "256 256 3 3");
  ck_has_parameter(replica, "classifier.0.weight", "512 2048 3 3");
  ck_has_parameter(replica, "classifier.1.running_mean", "512");
  ck_has_parameter(replica, "classifier.4.bias", "21");
  ck_has_parameter(replica, "aux_classifier.4.weight", "21 256 1 1");
}

/* ---- what is refused ---- */

CK_TEST(bad_options) {
  ek_module *module = NULL;
  ek_fcn_options bad = EK_FCN_OPTIONS_INIT;
  CK_WITH(ek_resnet_options, backbone, EK_RESNET_OPTIONS_INIT, .depth = 20);
  ck_bad(bad, backbone, &backbone, ek_fcn_create(&module, &bad), "depth is 20");
  ck_bad(bad, classes, -1, ek_fcn_create(&module, &bad), "-1 classes");
  bad.classes = 2;
  ck_bad(bad, dropout, 1, ek_fcn_create(&module, &bad), "p is 1");
  ck_assert_ptr_null(module);
  ck_host_failures(create_segments);
  ck_kept(create_segments(&module), module);
  ck_forward_fails(module, EK_ERR_SHAPE, "input has rank 2, expected 4", EK_F32, CK_SHAPE(2, 2));
}

CK_SUITE("fcn")
