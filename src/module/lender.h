/*
 * lender.h - where a pass finds values and gradients that its replica does not hold whole.
 *
 * A data-parallel model whose devices hold a part of each parameter, or of its gradient, gives its
 * passes a lender: a table of functions and what they work on. Without one a pass takes everything
 * from the replica's flat buffers.
 *
 * Values are lent to nodes: from `enter` to `leave` those of the node's own parameters, and of its
 * unit, are there. Pairs of them are nested like the functions of modules.
 */
#ifndef EK_LENDER_H
#define EK_LENDER_H

#include "module/layout.h"

/* How a module's function uses values. */
enum ek__way { EK__WAY_FORWARD, EK__WAY_AGAIN, EK__WAY_BACKWARD };

struct ek__lender {
  /* Required. A view, without a reference, of a parameter's whole gradient; undefined at first,
   * except for the elements between parameters, which are zeros. It stays until the pass has
   * reported the gradient as complete. */
  ek_status (*gradient)(ek_tensor *gradient, struct ek__lender *self, size_t parameter);

  /* These four, or none: the replica has the values. They may run collectives, so every device must
   * come to the same nodes in the same order. */

  /* After a failed enter there is no leave. */
  ek_status (*enter)(struct ek__lender *self, const struct ek__node *node, enum ek__way way);
  void (*leave)(struct ek__lender *self, const struct ek__node *node);
  /* Of a node that was entered. The view names its memory, without a reference, so that sharing the
   * view keeps the memory. */
  ek_status (*value)(ek_tensor *value, struct ek__lender *self, size_t parameter);
  /* A forward or backward of a pass has ended; `last`: nothing of the pass follows. */
  ek_status (*rest)(struct ek__lender *self, bool last);
};

#endif /* EK_LENDER_H */
