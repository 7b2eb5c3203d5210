/*
 * pool2d.h - the largest or the mean number of windows over pictures, as modules.
 *
 * One input [B, H, W, C], one output: [B, H', W', C] as ek_pooling_shape() says, or [B, C] of the
 * mean over the whole picture. pool.h has the formulas.
 */
#ifndef EVENKEEL_POOL2D_H
#define EVENKEEL_POOL2D_H

#include <evenkeel/module.h>
#include <evenkeel/pool.h>

EK_BEGIN_DECLARATIONS

/* The caller owns *module, which has one reference. `options` is copied; NULL: windows of 2 x 2
 * side by side. EK_ERR_INVALID_ARGUMENT for options outside of their ranges. */
EK_API EK_CHECKED ek_status ek_max_pool2d_create(ek_module **module, const ek_pooling *options);
EK_API EK_CHECKED ek_status ek_average_pool2d_create(ek_module **module, const ek_pooling *options);

/* The mean of each channel over the picture: [B, H, W, C] becomes [B, C]. */
EK_API EK_CHECKED ek_status ek_global_average_pool_create(ek_module **module);

EK_END_DECLARATIONS

#endif /* EVENKEEL_POOL2D_H */
