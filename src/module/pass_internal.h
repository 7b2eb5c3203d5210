/*
 * pass_internal.h - a pass from the inside: shared by pass.c, which runs modules, and contract.c,
 * which checks what they do.
 */
#ifndef EK_PASS_INTERNAL_H
#define EK_PASS_INTERNAL_H

#include "module/replica_internal.h"

enum ek__pass_stage {
  EK__PASS_OPENED,
  EK__PASS_RAN_FORWARD,
  EK__PASS_RAN_BACKWARD,
  EK__PASS_BROKEN
};

/* Type and shape of a tensor, without its memory. */
struct ek__extent {
  ek_type type;
  int rank;
  int64_t shape[EK_MAX_RANK];
};

/* The forward of a module whose backward has not come; only in a pass with gradient. */
struct ek__frame {
  const struct ek__node *node;
  size_t below, above; /* saved tensors when forward began, and when it ended */
  size_t extents;      /* where those of its inputs begin, and behind them of its outputs */
};

/* The module whose function runs; of the root while none does. */
struct ek__running {
  const struct ek__node *node;
  const struct ek__node *outer; /* NULL unless it has entered a child, which is `node` then */
  size_t floor;                 /* saved tensors below are not its own */
  size_t frames;                /* frames below are not its children's */
  bool workspace;               /* it has taken some, and this much was held before: */
  uint64_t workspace_before;
};

struct ek_pass {
  ek_replica *replica;
  ek_pass_options options;
  enum ek__pass_stage stage;
  struct ek__running running;
  ek_tensor *saved;
  size_t saved_count, saved_capacity;
  struct ek__frame *frames;
  size_t frame_count, frame_capacity;
  struct ek__extent *extents;
  size_t extent_count, extent_capacity;
  uint64_t named;    /* number of the thread's error that has the name of a module already */
  bool *touched;     /* per parameter of the replica */
  uint32_t *waiting; /* per parameter: users that have not said that they are done */
};

/* "No frame": the pass has no gradient, or somebody else did the module's forward. */
#define EK__NO_FRAME SIZE_MAX

/* Each of `count` tensors that a module or the runner hands over is there, and on the device. */
ek_status ek__check_tensors(const char *who, const ek_pass *pass, const ek_tensor *tensors,
                            size_t count);

/* Remembers the inputs of a forward that begins; *frame is its number, or EK__NO_FRAME. */
ek_status ek__frame_push(size_t *frame, ek_pass *pass, const struct ek__node *node,
                         const ek_tensor *inputs);
/* The last forward of `node` among the running module's children. */
size_t ek__frame_find(const ek_pass *pass, const struct ek__node *node);
/* Forgets the frame and those above it; what was saved since it began is dropped. */
void ek__frame_drop(ek_pass *pass, size_t frame);

/* What the running module's forward has given and left behind; its frame learns the outputs. */
ek_status ek__check_forward(ek_pass *pass, const struct ek__node *node, size_t frame,
                            const ek_tensor *inputs, ek_tensor *outputs);
/* What its caller hands to a backward, and that the stack is as its forward left it. */
ek_status ek__check_grad_outputs(const ek_pass *pass, size_t frame, const ek_tensor *grad_outputs);
/* What the backward has given and left behind. */
ek_status ek__check_backward(const ek_pass *pass, const struct ek__node *node, size_t frame,
                             const ek_tensor *grad_outputs, ek_tensor *grad_inputs);

/*
 * Puts the running module's path and kind before the message of a failure, unless a module within
 * it has done so. `before` is the thread's ek__error_number() when the function was called.
 */
void ek__name_failure(ek_pass *pass, const char *function, ek_status status, uint64_t before);

#endif /* EK_PASS_INTERNAL_H */
