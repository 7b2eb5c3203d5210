/*
 * ck_criterion.h - a criterion on the device of a rig, with its totals, scales and gradients.
 */
#ifndef CK_CRITERION_H
#define CK_CRITERION_H

#include "ek_check.h"

enum { CK_LOSS_OUTPUTS = 4 };

struct ck_loss {
  ek_criterion *criterion;
  ek_replica *replica;
  ek_pass *pass; /* of the last forward */
  bool keep_outputs;
  ek_tensor totals, scales, losses; /* losses: of the last forward with reduction `none` */
  ek_tensor gradients[CK_LOSS_OUTPUTS];
};

/* Opens a replica of the rig's type; the loss owns `criterion` from now on, and is kept
 * (ck_keep.h). */
struct ck_loss *ck_loss_open(struct ck_rig *rig, ek_criterion *criterion, bool keep_outputs);

/* Frees all of it, and the criterion; so does the end of the test. */
void ck_loss_close(struct ck_loss *loss);

/* Forward; the totals {s, d} of each term go to `totals` (NULL: not wanted). */
void ck_loss_forward(struct ck_loss *loss, const ek_tensor *outputs, const ek_tensor *targets,
                     double *totals);

/* The same, and the criterion may write the gradients over the outputs. */
void ck_loss_forward_gradient(struct ck_loss *loss, const ek_tensor *outputs,
                              const ek_tensor *targets, double *totals);

/* What both do, with what comes of it; `now`: the gradients may be written. */
ek_status ck_loss_try_forward(struct ck_loss *loss, const ek_tensor *outputs,
                              const ek_tensor *targets, bool now);

/* Backward with one scale per term (NULL: all 1); the gradients of before are freed first. */
void ck_loss_backward(struct ck_loss *loss, const double *scales, const ek_tensor *factors);

/* The same with the scales that there are. */
ek_status ck_loss_try_backward(struct ck_loss *loss, const ek_tensor *factors);

/* Drops the gradients and the pass, so that only the caller holds the outputs. */
void ck_loss_drop(struct ck_loss *loss);

/* Bytes that the rig's device holds now in category `loss`. */
uint64_t ck_loss_bytes(const struct ck_rig *rig);

/* ck_gradient() of s of the first term, by the first output. */
void ck_loss_gradient(struct ck_rig *rig, struct ck_loss *loss, ek_tensor *outputs,
                      const ek_tensor *targets, int64_t probes);

/*
 * Runs open, forward and backward with the first device allocation failing, then the second, and so
 * on until all is well; then the same for the memory of the host. Each failure must be
 * EK_ERR_OUT_OF_MEMORY and leave nothing behind. The criterion stays the caller's.
 */
void ck_loss_failures(struct ck_rig *rig, ek_criterion *criterion, const ek_tensor *outputs,
                      const ek_tensor *targets);

#endif /* CK_CRITERION_H */
