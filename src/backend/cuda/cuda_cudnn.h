/*
 * cuda_cudnn.h - the forward of causal attention by cuDNN: its functions, loaded at run time, and a
 * plan of one shape.
 *
 * No header of cuDNN is needed: what is called has few types, and its numbers (cuda_cudnn.c) are
 * part of cuDNN's binary interface. Nothing here needs CUDA.
 */
#ifndef EK_CUDA_CUDNN_H
#define EK_CUDA_CUDNN_H

#include "backend/kernel_args.h"

/* What is called of it: result, name without "cudnn", parameters. A status is 0 if all is well. */
#define EK__CUDNN_LIST(FUNCTION)                                                                   \
  FUNCTION(size_t, GetVersion, (void))                                                             \
  FUNCTION(int, Create, (void **handle))                                                           \
  FUNCTION(int, Destroy, (void *handle))                                                           \
  FUNCTION(int, SetStream, (void *handle, void *stream))                                           \
  FUNCTION(int, BackendCreateDescriptor, (int type, void **descriptor))                            \
  FUNCTION(int, BackendDestroyDescriptor, (void *descriptor))                                      \
  FUNCTION(int, BackendSetAttribute, (void *, int name, int type, int64_t, const void *values))    \
  FUNCTION(int, BackendGetAttribute, (void *, int name, int type, int64_t, int64_t *, void *to))   \
  FUNCTION(int, BackendFinalize, (void *descriptor))                                               \
  FUNCTION(int, BackendExecute, (void *handle, void *plan, void *pack))

#define EK__CUDNN_POINTER(result, name, parameters) result(*name) parameters;
struct ek__cudnn {
  EK__CUDNN_LIST(EK__CUDNN_POINTER)
};

struct ek__cudnn_plan {
  const struct ek__cudnn *library;
  void *plan;        /* one of made[]; NULL when closed */
  int64_t workspace; /* bytes that a run needs */
  int status, count;
  void *made[16]; /* as many as a plan takes */
};

/* Opens `file`, which stays loaded. Returns NULL, or why it cannot be used. */
const char *ek__cudnn_load(struct ek__cudnn *library, const char *file);

/* The plan that cuDNN thinks best for the sizes and steps of `args` on the handle's GPU. Returns
 * cuDNN's status; if that is not 0, the plan is closed. */
int ek__cudnn_plan_open(struct ek__cudnn_plan *plan, const struct ek__cudnn *library, void *handle,
                        const struct ek__attention_args *args);
void ek__cudnn_plan_close(struct ek__cudnn_plan *plan);
/* Queues it on the handle's stream. Returns cuDNN's status. */
int ek__cudnn_plan_run(const struct ek__cudnn_plan *plan, void *handle,
                       const struct ek__attention_args *args, void *workspace);

#endif /* EK_CUDA_CUDNN_H */
