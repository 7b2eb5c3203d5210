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

EK_END_DECLARATIONS

#endif /* EVENKEEL_LINEAR_H */
