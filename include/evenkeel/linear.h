/*
 * linear.h - y = x W^T + b.
 *
 * Input [..., in], output [..., out]. Parameters: weight [out, in], bias [out] (if there is one).
 */
#ifndef EVENKEEL_LINEAR_H
#define EVENKEEL_LINEAR_H

#include <evenkeel/module.h>

EK_BEGIN_DECLARATIONS

/*
 * ek_linear_create() starts weight and bias uniform in +- 1 / sqrt(in), as torch.nn.Linear does;
 * ek_linear_create_with() starts the weight as given and the bias with zeros.
 */
EK_API EK_CHECKED ek_status ek_linear_create(ek_module **module, int64_t in, int64_t out,
                                             bool bias);
EK_API EK_CHECKED ek_status ek_linear_create_with(ek_module **module, int64_t in, int64_t out,
                                                  bool bias, ek_initializer weight);

/*
 * The same over longer rows: output [..., columns], columns >= out, of which the first `out` are y;
 * what is after them means nothing, and nothing is read there in its gradient. Parameters and
 * results are those of the dense layer. A GPU has faster products for rows that begin at multiples
 * of 16 bytes: `columns` is then ek_tensor_aligned_columns(out, type). EK_ERR_INVALID_ARGUMENT for
 * fewer than `out`.
 */
EK_API EK_CHECKED ek_status ek_linear_create_padded(ek_module **module, int64_t in, int64_t out,
                                                    bool bias, ek_initializer weight,
                                                    int64_t columns);

EK_END_DECLARATIONS

#endif /* EVENKEEL_LINEAR_H */
