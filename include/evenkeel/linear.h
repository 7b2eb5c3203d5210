/*
 * linear.h - y = x W^T + b.
 *
 * Input [..., in], output [..., out]. Parameters: weight [out, in], and bias [out] unless the
 * options turn it off.
 */
#ifndef EVENKEEL_LINEAR_H
#define EVENKEEL_LINEAR_H

#include <evenkeel/module.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_linear_options {
  size_t size;
  bool bias;     /* false: y = x W^T */
  bool frozen;   /* weight and bias are (ek_parameter_options) */
  bool no_decay; /* the weight has no weight decay either; the bias never has */
  const ek_initializer *weight_start; /* copied, except for values; NULL: uniform, +- 1/sqrt(in) */
  const ek_initializer *bias_start;   /* the same; NULL: as the weight if that is NULL, or zeros */
  int64_t columns;                    /* of the output, see below; 0: out */
  bool elementwise; /* the weight is (ek_parameter_options): of an output layer */
} ek_linear_options;
#define EK_LINEAR_OPTIONS_INIT                                                                     \
  {                                                                                                \
    .size = sizeof(ek_linear_options), .bias = true, .frozen = false, .no_decay = false,           \
    .weight_start = NULL, .bias_start = NULL, .columns = 0, .elementwise = false                   \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_linear_options_init(ek_linear_options *options, size_t size);

/* With the default options, except for `bias`: the initial values are those of torch.nn.Linear. */
EK_API EK_CHECKED ek_status ek_linear_create(ek_module **module, int64_t in, int64_t out,
                                             bool bias);

/*
 * `options` NULL gives the defaults.
 *
 * With columns > 0 rows of the output are longer: output [..., columns], columns >= out, of which
 * the first `out` are y. The columns after them mean nothing and are not read in the gradient.
 * Parameters and results are the same as without. A GPU has faster products for rows that begin at
 * multiples of 16 bytes: use `columns` = ek_tensor_aligned_columns(out, type).
 * EK_ERR_INVALID_ARGUMENT for sizes of 0 or less, for fewer columns than `out`, and for a
 * bias_start without bias.
 */
EK_API EK_CHECKED ek_status ek_linear_create_with(ek_module **module, int64_t in, int64_t out,
                                                  const ek_linear_options *options);

EK_END_DECLARATIONS

#endif /* EVENKEEL_LINEAR_H */
