/*
 * cross_entropy.h - cross-entropy of logits against class indices, or against probabilities.
 *
 * Output: logits [..., classes]. Target: i32, one per row; with soft_targets probabilities of the
 * logits' shape and type. losses.h has the formulas. The weight d is the sum of the class weights
 * of the targets that are not ignored or, of soft targets, the number of rows that are not all
 * zeros: the mean of torch.nn.CrossEntropyLoss in both cases.
 */
#ifndef EVENKEEL_CROSS_ENTROPY_H
#define EVENKEEL_CROSS_ENTROPY_H

#include <evenkeel/criterion.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_cross_entropy_options {
  size_t size;
  ek_reduction reduction;
  int32_t ignore_index;        /* targets equal to it are ignored */
  double label_smoothing;      /* 0 <= e <= 1 */
  const double *class_weights; /* `classes` of them, none negative, copied; NULL: all 1 */
  int64_t classes; /* leading columns of the logits that are classes; 0: all, without weights */
  bool soft_targets; /* a probability for each class; ignore_index has no meaning then */
} ek_cross_entropy_options;
#define EK_CROSS_ENTROPY_OPTIONS_INIT                                                              \
  {                                                                                                \
    .size = sizeof(ek_cross_entropy_options), .reduction = EK_REDUCTION_MEAN,                      \
    .ignore_index = -100, .label_smoothing = 0.0, .class_weights = NULL, .classes = 0,             \
    .soft_targets = false                                                                          \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_cross_entropy_options_init(ek_cross_entropy_options *options,
                                                          size_t size);

/* `options` NULL gives the defaults. EK_ERR_INVALID_ARGUMENT for values outside the ranges. */
EK_API EK_CHECKED ek_status ek_cross_entropy_create(ek_criterion **criterion,
                                                    const ek_cross_entropy_options *options);

EK_END_DECLARATIONS

#endif /* EVENKEEL_CROSS_ENTROPY_H */
