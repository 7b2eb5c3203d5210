/*
 * upsample.h - pictures of another height and width, by bilinear means, as a module.
 *
 * One input [B, H, W, C], one output [B, H', W', C]. pool.h has the formula.
 */
#ifndef EVENKEEL_UPSAMPLE_H
#define EVENKEEL_UPSAMPLE_H

#include <stdbool.h>

#include <evenkeel/module.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_upsample_options {
  size_t size;
  int64_t to[2];      /* height and width of the output; 0: `factor` times those of the input */
  int64_t factor;     /* above 0 */
  bool align_corners; /* the corners of output and input are the same pixels */
} ek_upsample_options;
#define EK_UPSAMPLE_OPTIONS_INIT                                                                   \
  {                                                                                                \
    .size = sizeof(ek_upsample_options), .to = {0, 0}, .factor = 2, .align_corners = false         \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_upsample_options_init(ek_upsample_options *options, size_t size);

/* The caller owns *module, which has one reference; `options` NULL gives the defaults.
 * EK_ERR_INVALID_ARGUMENT for sizes below 0, and one that is 0 alone. */
EK_API EK_CHECKED ek_status ek_upsample_create(ek_module **module,
                                               const ek_upsample_options *options);

EK_END_DECLARATIONS

#endif /* EVENKEEL_UPSAMPLE_H */
