/*
 * round_gradients.c - gradients that modules add to where the replica keeps none of the type.
 *
 * The gradient of a frozen parameter is not kept. A module need not know that (ek_pass_trains()):
 * the pass lends it a gradient for as long as it adds to it.
 *
 * Other gradients may be kept in 16 bits. A module always sees an f32 gradient, so no module and no
 * kernel needs the other type, and a backward adds up in f32, however often it adds. The pass
 * allocates the f32 gradient when a module first asks for it, and begins with the step's gradient
 * so far, widened. When the last user is done, it is rounded once to where the replica or a lender
 * keeps it, and freed, before it counts as complete. So if modules say when they are done, only the
 * gradients of one module exist in f32 at a time, and those of parameters that are used more than
 * once, from the first use in backward to the last.
 */
#include <evenkeel/convert.h>

#include "core/alloc.h"
#include "core/error.h"
#include "module/pass_internal.h"

ek_status ek__kept_gradient(ek_tensor *gradient, const ek_pass *pass, size_t parameter) {
  if (pass->lender != NULL) return pass->lender->gradient(gradient, pass->lender, parameter);
  *gradient = ek__replica_gradient(pass->replica, parameter);
  return EK_OK;
}

/* It begins with what the step has so far. */
static ek_status take(ek_tensor *wide, ek_pass *pass, size_t parameter) {
  const struct ek__parameter *like = &pass->replica->layout.parameters[parameter];
  ek_tensor made = {0}, kept;
  EK_TRY(ek_tensor_create(&made, pass->replica->device, EK_MEMORY_GRADIENTS, pass->replica->type,
                          like->rank, like->shape));
  ek_status status = EK_OK;
  if (pass->touched[parameter]) {
    status = ek__kept_gradient(&kept, pass, parameter);
    if (status == EK_OK) status = ek_op_convert(ek__pass_stream(pass), &made, &kept);
  }
  if (status != EK_OK) {
    ek_tensor_free(&made);
  } else {
    *wide = made;
  }
  return status;
}

ek_status ek__wide_gradient(ek_tensor *gradient, ek_pass *pass, size_t parameter) {
  ek_tensor *wide = &pass->wide[parameter];
  if (!ek_tensor_exists(wide)) EK_TRY(take(wide, pass, parameter));
  *gradient = *wide;
  gradient->memory = NULL; /* a loan */
  return EK_OK;
}

ek_status ek__round_gradient(ek_pass *pass, size_t parameter) {
  ek_tensor kept;
  if (pass->wide == NULL || !ek_tensor_exists(&pass->wide[parameter])) return EK_OK;
  if (!pass->replica->layout.parameters[parameter].frozen) {
    EK_TRY(ek__kept_gradient(&kept, pass, parameter));
    EK_TRY(ek_op_convert(ek__pass_stream(pass), &kept, &pass->wide[parameter]));
  }
  ek_tensor_free(&pass->wide[parameter]);
  return EK_OK;
}

void ek__drop_wide_gradients(ek_pass *pass) {
  const size_t count = pass->wide == NULL ? 0 : pass->replica->layout.parameter_count;
  for (size_t i = 0; i < count; i++) ek_tensor_free(&pass->wide[i]);
}
