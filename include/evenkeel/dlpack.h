/*
 * dlpack.h - tensors of other libraries, and tensors for them, without a copy: DLPack.
 *
 * DLPack is the struct by which PyTorch, NumPy, CuPy, JAX and others hand each other tensors
 * (https://dmlc.github.io/dlpack/latest/). ek_dlpack has the layout of its
 * DLManagedTensorVersioned, version 1; a pointer to one may be cast to the other. In Python it is
 * what a capsule with the name "dltensor_versioned" holds; `tensor.__dlpack__(max_version=(1, 0))`
 * makes one:
 *
 *     ek_tensor x = {0};
 *     EK_TRY(ek_dlpack_import(&x, device, theirs, NULL));  // theirs is now evenkeel's to free
 *     const ek_status status = use(&x);
 *     ek_tensor_free(&x);                                  // calls theirs->deleter
 *     return status;
 *
 * Memory stays where it is, and neither side charges or frees the other's. docs/own-memory.md says
 * how streams, memory and another library fit together in one process.
 */
#ifndef EVENKEEL_DLPACK_H
#define EVENKEEL_DLPACK_H

#include <evenkeel/tensor.h>

EK_BEGIN_DECLARATIONS

/* Numbers of the standard, for `device_type` and `code`. */
enum {
  EK_DLPACK_CPU = 1,
  EK_DLPACK_CUDA = 2,
  EK_DLPACK_CUDA_HOST = 3,     /* pinned */
  EK_DLPACK_CUDA_MANAGED = 13, /* cudaMallocManaged() */
  EK_DLPACK_INT = 0,
  EK_DLPACK_UINT = 1,
  EK_DLPACK_FLOAT = 2,
  EK_DLPACK_BFLOAT = 4
};

/* Bits of `flags`. */
#define EK_DLPACK_READ_ONLY ((uint64_t)1)
#define EK_DLPACK_COPIED ((uint64_t)2)

/* The layout belongs to the standard and does not change. */
typedef struct ek_dlpack {
  uint32_t major, minor; /* of the standard: 1 and 0 */
  void *manager;         /* of the library that made it */
  void (*deleter)(struct ek_dlpack *self); /* may be NULL */
  uint64_t flags;
  struct {
    void *data;          /* the first element is byte_offset bytes after it */
    int32_t device_type; /* EK_DLPACK_CPU ... */
    int32_t device_id;   /* the number of the GPU */
    int32_t rank;
    uint8_t code, bits;  /* EK_DLPACK_FLOAT and 32: f32 */
    uint16_t lanes;      /* 1 */
    int64_t *shape;
    int64_t *strides;    /* in elements; NULL: dense and row-major */
    uint64_t byte_offset;
  } tensor;
} ek_dlpack;

/*
 * A tensor on `device` over the memory of another library. On success `imported` belongs to the
 * tensor: its deleter is called once, after the last reference was dropped and the work that the
 * device's compute stream then holds has ended, on the thread that dropped it, which waits for
 * that. After an error it is still the caller's.
 *
 * `stream` holds the work that fills the memory: a cudaStream_t, or NULL for CUDA's default stream.
 * The device's compute stream waits for it. `cpu` does not look at it.
 *
 * EK_ERR_INVALID_ARGUMENT  NULL; another major version than 1; memory of another device, or
 *                          read-only memory; strides of another layout than dense and row-major;
 *                          an address that cannot be wrapped (tensor.h)
 * EK_ERR_TYPE              a type of elements that tensors on devices do not have
 * EK_ERR_UNSUPPORTED       a device that only counts
 */
EK_API EK_CHECKED ek_status ek_dlpack_import(ek_tensor *tensor, ek_device *device,
                                             ek_dlpack *imported, void *stream);

/*
 * A struct for another library, with a reference of its own to the tensor's memory. The library
 * calls (*exported)->deleter when it has finished with it, from any thread; the group cannot be
 * closed before. The tensor keeps its own reference. A tensor in host memory holds no reference:
 * its array must live as long as the struct.
 *
 * `stream` is the stream on which the library will use the memory, a cudaStream_t of the device's
 * GPU, or NULL for CUDA's default stream; it waits for what the compute stream holds now. Before
 * the deleter is called, the library's work on the memory must have ended, or the compute stream
 * must have been made to wait for it (ek_stream_wait_native()).
 *
 * EK_ERR_INVALID_ARGUMENT  NULL, or no tensor
 * EK_ERR_OUT_OF_MEMORY     the host has no memory for the struct
 * EK_ERR_UNSUPPORTED       a device that only counts
 */
EK_API EK_CHECKED ek_status ek_dlpack_export(ek_dlpack **exported, const ek_tensor *tensor,
                                             void *stream);

EK_END_DECLARATIONS

#endif /* EVENKEEL_DLPACK_H */
