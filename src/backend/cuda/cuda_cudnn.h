/*
 * cuda_cudnn.h - cuDNN's fused attention: its functions, loaded at run time, and a plan of it.
 *
 * No header of cuDNN is needed: what is called has few types, and its numbers (cuda_cudnn_graph.c)
 * are part of cuDNN's binary interface. tests/cuda/check_cudnn_graph.c makes plans with the real
 * library, where it is. Nothing here needs CUDA.
 */
#ifndef EK_CUDA_CUDNN_H
#define EK_CUDA_CUDNN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What is called of it: result, name without "cudnn", parameters. A status is 0 if all is well. */
#define EK__CUDNN_LIST(FUNCTION)                                                                   \
  FUNCTION(size_t, GetVersion, (void))                                                             \
  FUNCTION(int, Create, (void **handle))                                                           \
  FUNCTION(int, Destroy, (void *handle))                                                           \
  FUNCTION(int, SetStream, (void *handle, void *stream))                                           \
  FUNCTION(int, BackendCreateDescriptor, (int type, void **descriptor))                            \
  FUNCTION(int, BackendDestroyDescriptor, (void *descriptor))                                      \
  FUNCTION(int, BackendSetAttribute,                                                               \
           (void *descriptor, int name, int type, int64_t count, const void *values))              \
  FUNCTION(int, BackendGetAttribute,                                                               \
           (void *descriptor, int name, int type, int64_t room, int64_t *count, void *values))     \
  FUNCTION(int, BackendFinalize, (void *descriptor))                                               \
  FUNCTION(int, BackendExecute, (void *handle, void *plan, void *pointers))

#define EK__CUDNN_POINTER(result, name, parameters) result(*name) parameters;
struct ek__cudnn {
  EK__CUDNN_LIST(EK__CUDNN_POINTER)
};

/* Causal attention of 16 bits, of `batch` samples whose rows of q, k and v, and of their
 * gradients, are a step of elements apart; `out` and its gradient have heads x width columns, lse
 * is batch x heads x tokens. The width is a multiple of 8 and at most 128, a step a multiple of 8.
 * No padding: it is compared as bytes. */
struct ek__cudnn_shape {
  int64_t batch, tokens, heads, width, q_step, k_step, v_step;
  int32_t bf16, backward; /* else f16; else forward */
};

/* Where the tensors of a shape are: all aligned to 16 bytes. Those of backward are NULL forward. */
struct ek__cudnn_operands {
  const void *q, *k, *v, *dout;
  void *out, *lse, *dq, *dk, *dv;
  void *workspace; /* aligned to 256 bytes */
};

enum { EK__CUDNN_DESCRIPTORS = 128, EK__CUDNN_NO_ROOM = 1003 /* cuDNN's for memory */ };

struct ek__cudnn_plan {
  const struct ek__cudnn *library;
  struct ek__cudnn_shape shape;
  uint64_t workspace; /* bytes */
  void *plan;         /* one of made[] */
  int count;
  void *made[EK__CUDNN_DESCRIPTORS];
};

/* Describes the attention of `shape`, and finalises the first plan of the heuristic that cuDNN has
 * for a GPU: that of `handle`, or, where that is NULL, that of `properties`, a descriptor. Not 0:
 * cuDNN's status where it has none; `plan` is then empty. */
int ek__cudnn_plan_open(struct ek__cudnn_plan *plan, const struct ek__cudnn *library,
                        const struct ek__cudnn_shape *shape, void *handle, void *properties);
void ek__cudnn_plan_close(struct ek__cudnn_plan *plan);
/* Queues it on the handle's stream. */
int ek__cudnn_plan_run(const struct ek__cudnn_plan *plan, void *handle,
                       const struct ek__cudnn_operands *at);

#endif /* EK_CUDA_CUDNN_H */
