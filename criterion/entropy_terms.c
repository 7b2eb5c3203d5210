/*
 * entropy_terms.c - the options of cross-entropy: checked, copied, and given to operations.
 */
#include "entropy_terms.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"

static ek_status check_weights(const char *kind, const ek_cross_entropy_options *o) {
  if (o->class_weights == NULL) return EK_OK;
  EK__FAIL_IF(o->classes <= 0, EK_ERR_INVALID_ARGUMENT,
              "%s: class_weights is given, but classes is %" PRId64, kind, o->classes);
  for (int64_t i = 0; i < o->classes; i++) {
    EK__FAIL_IF(!(o->class_weights[i] >= 0.0 && isfinite(o->class_weights[i])),
                EK_ERR_INVALID_ARGUMENT,
                "%s: class_weights[%" PRId64 "] is %g, expected a number >= 0", kind, i,
                o->class_weights[i]);
  }
  return EK_OK;
}

static ek_status check_options(const char *kind, const ek_cross_entropy_options *o) {
  EK__FAIL_IF(!(o->label_smoothing >= 0.0 && o->label_smoothing <= 1.0), EK_ERR_INVALID_ARGUMENT,
              "%s: label_smoothing is %g, expected 0 <= e <= 1", kind, o->label_smoothing);
  EK__FAIL_IF(o->classes < 0, EK_ERR_INVALID_ARGUMENT, "%s: classes is %" PRId64, kind, o->classes);
  return check_weights(kind, o);
}

ek_status ek__entropy_open(struct ek__entropy *entropy, ek_reduction *reduction, bool *soft,
                           const char *kind, const ek_cross_entropy_options *options) {
  ek_cross_entropy_options o = EK_CROSS_ENTROPY_OPTIONS_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_cross_entropy_options"));
  EK_TRY(check_options(kind, &o));
  EK__FAIL_IF(soft == NULL && o.soft_targets, EK_ERR_INVALID_ARGUMENT,
              "%s: soft_targets is set, expected class indices", kind);
  if (soft != NULL) *soft = o.soft_targets;
  *entropy = (struct ek__entropy){
      .ignore_index = o.ignore_index, .label_smoothing = o.label_smoothing, .classes = o.classes};
  if (o.class_weights != NULL) {
    EK_TRY(ek__new_copy(&entropy->weights, o.class_weights,
                        (size_t)o.classes * sizeof *entropy->weights, kind));
  }
  *reduction = o.reduction;
  return EK_OK;
}

void ek__entropy_close(struct ek__entropy *entropy) { ek__free(entropy->weights); }

ek_status ek__entropy_declare(const struct ek__entropy *entropy, ek_declaration *declaration) {
  if (entropy->weights == NULL) return EK_OK;
  return ek_declare_buffer(declaration, "class_weights", 1, &entropy->classes,
                           ek_initializer_values(entropy->weights));
}

ek_status ek__entropy_terms(ek_cross_entropy_terms *terms, ek_tensor *weights,
                            const struct ek__entropy *entropy, ek_pass *pass, size_t index,
                            int64_t columns) {
  *terms = (ek_cross_entropy_terms){.ignore_index = entropy->ignore_index,
                                    .label_smoothing = entropy->label_smoothing,
                                    .classes = entropy->classes};
  EK__FAIL_IF(entropy->classes > columns, EK_ERR_SHAPE,
              "the logits have %" PRId64 " columns, but there are %" PRId64 " classes", columns,
              entropy->classes);
  if (entropy->weights == NULL) return EK_OK;
  EK_TRY(ek_pass_parameter(weights, pass, index));
  terms->class_weights = weights;
  return EK_OK;
}
