/*
 * cuda_nccl_library.h - NCCL, loaded at run time.
 *
 * The module is not linked with NCCL and works without it. Only cuda_clique.c and cuda_nccl.c
 * call it, after ek__cuda_nccl_missing() has said NULL.
 */
#ifndef EK_CUDA_NCCL_LIBRARY_H
#define EK_CUDA_NCCL_LIBRARY_H

#include <nccl.h>

/* What is called of it, without the prefix. */
#define EK__NCCL_LIST(FUNCTION)                                                                    \
  FUNCTION(GetVersion)                                                                             \
  FUNCTION(GetErrorString)                                                                         \
  FUNCTION(GetLastError)                                                                           \
  FUNCTION(GetUniqueId)                                                                            \
  FUNCTION(CommInitRankConfig)                                                                     \
  FUNCTION(CommGetAsyncError)                                                                      \
  FUNCTION(CommFinalize)                                                                           \
  FUNCTION(CommDestroy)                                                                            \
  FUNCTION(CommAbort)                                                                              \
  FUNCTION(GroupStart)                                                                             \
  FUNCTION(GroupEnd)                                                                               \
  FUNCTION(Broadcast)                                                                              \
  FUNCTION(Reduce)                                                                                 \
  FUNCTION(AllReduce)                                                                              \
  FUNCTION(ReduceScatter)                                                                          \
  FUNCTION(AllGather)

/* typeof, which gcc and clang have: so each pointer has the type that nccl.h gives the function. */
#define EK__NCCL_POINTER(name) __typeof__(nccl##name) *name;
struct ek__nccl {
  EK__NCCL_LIST(EK__NCCL_POINTER)
};

extern struct ek__nccl ek__nccl;

#endif /* EK_CUDA_NCCL_LIBRARY_H */
