/*
 * relu.h - max(x, 0), element by element.
 */
#ifndef EVENKEEL_RELU_H
#define EVENKEEL_RELU_H

#include <evenkeel/module.h>

#ifdef __cplusplus
extern "C" {
#endif

EK_API EK_CHECKED ek_status ek_relu_create(ek_module **module);

#ifdef __cplusplus
}
#endif

#endif /* EVENKEEL_RELU_H */
