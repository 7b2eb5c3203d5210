/*
 * cuda_workspace.h - what a plan has to know of CUDA devices: the types that they compute in, the
 * part of its arena that each keeps for itself, and the size of buckets.
 *
 * Fixed, and not what a GPU would like best, so that a machine without one can plan with it. No
 * CUDA header is needed to read it.
 */
#ifndef EK_CUDA_WORKSPACE_H
#define EK_CUDA_WORKSPACE_H

#include <stdint.h>

#include <evenkeel/tensor.h>

/* Of values. */
#define EK__CUDA_VALUES (EK_TYPES_F32 | EK_TYPES_F64 | EK_TYPES_BF16 | EK_TYPES_F16)

/* cuBLASLt: as NVIDIA advises for Hopper; older GPUs want 4 MiB and lose nothing. */
#define EK__CUDA_PRODUCT_BYTES ((uint64_t)32 << 20)
/* Our own kernels: cuda_kernels.h, EK__CUDA_WORKSPACE. */
#define EK__CUDA_KERNEL_BYTES ((uint64_t)4 << 20)
#define EK__CUDA_DEVICE_BYTES (EK__CUDA_PRODUCT_BYTES + EK__CUDA_KERNEL_BYTES)

/* A bucket of gradients: a collective of NCCL takes some ten microseconds of the host, and a link
 * its full speed, from here on. */
#define EK__CUDA_BUCKET_BYTES ((uint64_t)25 << 20)

/* Rows of a table of tokens: whole tiles of a product, and pieces of 128 bytes of 16 bits each. */
#define EK__CUDA_TABLE_ROWS 64

#endif /* EK_CUDA_WORKSPACE_H */
