/*
 * lender.h - where a pass finds values and gradients that its replica does not hold whole.
 *
 * A data-parallel model whose devices hold a part of each parameter, or of its gradient, gives its
 * passes a lender: a table of functions and what they work on. Without one a pass takes everything
 * from the replica's flat buffers.
 */
#ifndef EK_LENDER_H
#define EK_LENDER_H

#include "module/layout.h"

struct ek__lender {
  /* Required. A view, without a reference, of a parameter's whole gradient; undefined at first, but
   * for the elements between parameters, which are zeros. It stays until the pass has said that the
   * gradient is complete. */
  ek_status (*gradient)(ek_tensor *gradient, struct ek__lender *self, size_t parameter);
};

#endif /* EK_LENDER_H */
