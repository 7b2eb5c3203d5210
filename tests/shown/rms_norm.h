/*
 * rms_norm.h - the RMSNorm of docs/own-model.md, with what the page leaves out. Of
 * tests/whole/check_own_norm.c, which runs it.
 */
#ifndef RMS_NORM_H
#define RMS_NORM_H

#include <stdlib.h>

#include <evenkeel/op.h>
#include <evenkeel/pass.h>

struct rms_norm {
  ek_module base;
  int64_t width;
  double epsilon;
};

static ek_status rms_norm_parameters(const ek_module *self, ek_declaration *declaration) {
  const int64_t shape[] = {((const struct rms_norm *)self)->width};
  return ek_declare_parameter(declaration, "weight", 1, shape, ek_initializer_ones());
}

#include "own_model_20.inc"

#include "own_model_21.inc"

#include "own_model_22.inc"

static void rms_norm_free(ek_module *self) { free(self); }

static const ek_module_ops rms_norm_ops = {.size = sizeof(ek_module_ops), .kind = "rms_norm",
                                           .parameters = rms_norm_parameters,
                                           .forward = rms_norm_forward,
                                           .backward = rms_norm_backward, .free = rms_norm_free,
                                           .types = EK_TYPES_F32 | EK_TYPES_F64 | EK_TYPES_BF16 |
                                                    EK_TYPES_F16};

static ek_status rms_norm_create(ek_module **module, int64_t width, double epsilon) {
  struct rms_norm *m = calloc(1, sizeof *m);
  if (m == NULL) return ek_error_set(EK_ERR_OUT_OF_MEMORY, "rms_norm: no memory");
  *m = (struct rms_norm){.width = width, .epsilon = epsilon};
  const ek_status status = ek_module_init(&m->base, &rms_norm_ops, 1, 1);
  if (status == EK_OK) {
    *module = &m->base;
  } else {
    free(m);
  }
  return status;
}

#endif /* RMS_NORM_H */
