/*
 * activation_list.h - the pointwise activations: one row each.
 *
 * The operations (elementwise.h), the module (activation.h) and the choices of an MLP (mlp.h) are
 * made from a row. The formulas are written once for each kind of arithmetic: plain C in double
 * precision (reference_elementwise.c), vectors of floats (isa_activation.c), CUDA
 * (cuda_activation.cu); a row without its formulas does not compile.
 */
#ifndef EVENKEEL_ACTIVATION_LIST_H
#define EVENKEEL_ACTIVATION_LIST_H

/*
 * X(NAME, name, kept): the gradient is computed from `kept`, INPUT (x) or RESULT (y), which a
 * module saves. The values of the enum follow the order of the rows and are part of the ABI.
 *   relu  max(x, 0); NaN stays NaN. Its gradient is dy where y > 0, NaN where y is NaN, else 0
 *   gelu  in its tanh form (Hendrycks and Gimpel 2016):
 *         x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). Its gradient is NaN for an infinite x
 *   silu  x / (1 + e^-x), also called swish (Elfwing, Uchibe and Doya 2017). NaN for x = -infinity,
 *         its gradient for any infinite x
 */
#define EK_ACTIVATION_LIST(X)                                                                      \
  X(RELU, relu, RESULT)                                                                            \
  X(GELU, gelu, INPUT)                                                                             \
  X(SILU, silu, INPUT)

typedef enum ek_activation {
#define EK_ACTIVATION_ENUM(NAME, name, kept) EK_ACTIVATION_##NAME,
  EK_ACTIVATION_LIST(EK_ACTIVATION_ENUM)
#undef EK_ACTIVATION_ENUM
} ek_activation;

#endif /* EVENKEEL_ACTIVATION_LIST_H */
