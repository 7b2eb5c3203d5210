/*
 * tensor.h - a tensor is a shape over a piece of memory.
 *
 * ek_tensor is a plain struct, made to be passed by pointer and kept by value. Tensors are dense
 * and row-major; a view of some rows or another shape is again a plain tensor. Memory on a device
 * is counted: ek_tensor_create(), ek_tensor_share(), ek_tensor_rows() and ek_tensor_reshape() give
 * a tensor that holds one reference, and ek_tensor_free() drops it. A struct copy (b = a) holds no
 * reference of its own: it is a loan, good as long as the original.
 *
 * A tensor whose `device` is NULL is in the host's memory, belongs to the caller, and is never
 * freed by the library; ek_tensor_host() makes one around an array of yours.
 *
 *     const int64_t shape[] = {32, 128};
 *     ek_tensor x = {0};
 *     EK_TRY(ek_tensor_create(&x, device, EK_MEMORY_INPUTS, EK_F32, 2, shape));
 *     const ek_status status = use(&x);
 *     ek_tensor_free(&x);
 *     return status;
 *
 * A tensor over memory that another library allocated on a device is made by ek_tensor_wrap().
 *
 * A struct of zeros is "no tensor": ek_tensor_exists() is false. A tensor may have no elements (a
 * shard without rows): it exists and holds no bytes. Its data is then an address without memory on
 * a device, and may be NULL on the host. A tensor that a module makes while it runs has holders
 * like any other, and must be freed before its group.
 */
#ifndef EVENKEEL_TENSOR_H
#define EVENKEEL_TENSOR_H

#include <evenkeel/device.h>

EK_BEGIN_DECLARATIONS

#define EK_MAX_RANK 8

/* The most tensors that go into one module or come out of it, and the most outputs or targets that
 * one criterion looks at. */
#define EK_MAX_TENSORS 16
/* A module with targets (module.h) has up to EK_MAX_TENSORS inputs more. */
#define EK_MAX_INPUTS (2 * EK_MAX_TENSORS)

typedef enum ek_type {
  EK_F32 = 1,
  EK_F64 = 2,
  EK_BF16 = 3, /* the upper half of an f32 */
  EK_F16 = 4,  /* IEEE 754 binary16 */
  EK_I32 = 5,
  EK_I64 = 6, /* storage only */
  /* Unsigned integers of tensors in host memory alone: tokens, classes, pixels. They are converted
   * on their way to a device (scatter.h). */
  EK_U8 = 8,
  EK_U16 = 9,
  EK_U32 = 10
} ek_type;

/* Sets of types, for what a module, a criterion, an optimizer or a device computes in. */
#define EK_TYPES_F32 (1u << EK_F32)
#define EK_TYPES_F64 (1u << EK_F64)
#define EK_TYPES_BF16 (1u << EK_BF16)
#define EK_TYPES_F16 (1u << EK_F16)

/* What modules compute in. The tensors of TF32 are f32; its products may round what they multiply
 * to 10 bits of mantissa. Every other precision has the number and the name of its type. */
typedef enum ek_precision {
  EK_PRECISION_DEFAULT = 0, /* of options: the precision of their `type`, or of the caller */
  EK_PRECISION_F32 = EK_F32,
  EK_PRECISION_F64 = EK_F64,
  EK_PRECISION_BF16 = EK_BF16,
  EK_PRECISION_F16 = EK_F16,
  EK_PRECISION_TF32 = 7 /* the number of no type */
} ek_precision;

/* Sets of precisions, of a device or for ek_advise(). */
#define EK_PRECISIONS_F32 (1u << EK_PRECISION_F32)
#define EK_PRECISIONS_F64 (1u << EK_PRECISION_F64)
#define EK_PRECISIONS_BF16 (1u << EK_PRECISION_BF16)
#define EK_PRECISIONS_F16 (1u << EK_PRECISION_F16)
#define EK_PRECISIONS_TF32 (1u << EK_PRECISION_TF32)

typedef struct ek_memory ek_memory; /* a counted piece of a device's arena */

typedef struct ek_tensor {
  void *data;        /* first element; an address without memory on a `plan` device */
  ek_memory *memory; /* what it holds a reference of; NULL on the host */
  ek_device *device; /* NULL: the host */
  ek_type type;
  int rank;                   /* 0: one element */
  int64_t shape[EK_MAX_RANK]; /* outermost first */
} ek_tensor;

/* The most channels of a scaling. */
#define EK_MAX_CHANNELS 4

/* How u8 and u16 of host memory become floating (scatter.h): y = x * scale[c] + offset[c] for
 * channel c, computed in f64 and rounded once. Numbers are finite. */
typedef struct ek_input_scaling {
  int64_t channels; /* 1: one pair for all; or the size of the last dimension. 0: no scaling */
  double scale[EK_MAX_CHANNELS], offset[EK_MAX_CHANNELS];
} ek_input_scaling;

/* Bytes of one element; 0 for a number outside the list. */
EK_API size_t ek_type_size(ek_type type);
/* "f32", "bf16", ...; "no type" for any other number. */
EK_API const char *ek_type_name(ek_type type);
/* The type of sums over numbers of a floating type, of statistics and losses: f64 for f64, f32 for
 * the others. */
EK_API ek_type ek_type_of_sums(ek_type type);
/* The type of the tensors of modules that compute in a precision: EK_F32 for EK_PRECISION_TF32. 0
 * for EK_PRECISION_DEFAULT and any other number. */
EK_API ek_type ek_precision_type(ek_precision precision);
/* "f32", "tf32", ...; "no precision" for any other number. */
EK_API const char *ek_precision_name(ek_precision precision);

/* The least number of columns, `columns` or more, with which every row of a matrix of values begins
 * at a multiple of 16 bytes if the first does; 0 for a value outside the list. */
EK_API int64_t ek_tensor_aligned_columns(int64_t columns, ek_type type);

/*
 * A new tensor on `device`, its elements undefined, charged to `category`.
 * EK_ERR_INVALID_ARGUMENT  NULL, negative sizes, an unknown type or rank
 * EK_ERR_TYPE              u8, u16 and u32, which are types of host memory
 * EK_ERR_OVERFLOW          the product of the sizes does not fit
 * EK_ERR_OUT_OF_MEMORY     the device is full; the message names device, category, request, and the
 *                          table of what is held
 */
EK_API EK_CHECKED ek_status ek_tensor_create(ek_tensor *tensor, ek_device *device,
                                             ek_memory_category category, ek_type type, int rank,
                                             const int64_t *shape);

/*
 * A tensor on `device` over memory of the program's or of another library: on `cuda` memory of its
 * GPU, managed memory, or pinned memory of the host; on `cpu` any memory. On devices that only
 * count the memory is never touched. It is not charged to the ledger, and no content is copied.
 *
 * The first reference is the caller's. `release` (NULL: nothing is to do) is called with `context`
 * once, when the last reference to the tensor and its views is dropped, by the thread that drops
 * it. Work that uses the memory may then still be queued on the device's compute stream: free the
 * memory in the order of that stream, as cudaFreeAsync() does with ek_stream_native(), or wait for
 * the stream first. After an error `release` is not called.
 *
 * The memory must be filled by work that the device's compute stream has waited for
 * (ek_stream_wait_native() in device.h), or by the host.
 * EK_ERR_INVALID_ARGUMENT  NULL; as ek_tensor_create(); an address that is not a multiple of the
 *                          size of an element, or that the device cannot use
 * EK_ERR_TYPE, EK_ERR_OVERFLOW  as ek_tensor_create()
 * EK_ERR_OUT_OF_MEMORY     the host has no memory for the record
 */
EK_API EK_CHECKED ek_status ek_tensor_wrap(ek_tensor *tensor, ek_device *device, void *data,
                                           ek_type type, int rank, const int64_t *shape,
                                           void (*release)(void *context), void *context);

/* Describes an array of the caller's as a tensor in host memory. `data` NULL only if empty. */
EK_API EK_CHECKED ek_status ek_tensor_host(ek_tensor *tensor, void *data, ek_type type, int rank,
                                           const int64_t *shape);

/* A second reference to the same elements. Of a host tensor: a loan. */
EK_API EK_CHECKED ek_status ek_tensor_share(ek_tensor *tensor, const ek_tensor *source);

/* Rows first .. first + count - 1 of dimension 0 as a view with a reference of its own. */
EK_API EK_CHECKED ek_status ek_tensor_rows(ek_tensor *view, const ek_tensor *source, int64_t first,
                                           int64_t count);

/* The same elements in another shape of equal size, with a reference of its own. */
EK_API EK_CHECKED ek_status ek_tensor_reshape(ek_tensor *view, const ek_tensor *source, int rank,
                                              const int64_t *shape);

/* Drops the reference and makes the struct zero. NULL and zero structs are legal. */
EK_API void ek_tensor_free(ek_tensor *tensor);

EK_API bool ek_tensor_exists(const ek_tensor *tensor);   /* false for NULL and for zeros */
EK_API int64_t ek_tensor_count(const ek_tensor *tensor); /* number of elements */
EK_API size_t ek_tensor_bytes(const ek_tensor *tensor);  /* bytes of its elements */
/* Elements of one row of dimension 0 (1 for a rank-0 or rank-1 tensor). */
EK_API int64_t ek_tensor_row_elements(const ek_tensor *tensor);
/* The number of references to the memory of a tensor; 0 for a host or empty tensor. */
EK_API int ek_tensor_holders(const ek_tensor *tensor);
/* True if type, rank and shape are equal. */
EK_API bool ek_tensor_same_shape(const ek_tensor *a, const ek_tensor *b);

/*
 * Charges the memory of a tensor to another category, from its allocation on, for example when a
 * module's result turns out to be the model's output. Nothing moves.
 */
EK_API EK_CHECKED ek_status ek_tensor_set_category(ek_tensor *tensor, ek_memory_category category);

/*
 * Makes the tensor's memory longer in place so that dimension 0 becomes `rows`, keeping what it
 * holds. *grown tells whether there was free room directly after it; if not, nothing changed. Only
 * for a tensor that covers all of its memory and is its only holder: else *grown is false.
 */
EK_API EK_CHECKED ek_status ek_tensor_grow(bool *grown, ek_tensor *tensor, int64_t rows);

/*
 * Copies host to device, device to host, device to device (of one group) or host to host; types and
 * numbers of elements must be equal. The host side is complete when the call returns; between
 * devices the copy is queued on the destination's compute stream, after what was queued on the
 * source's. On a `plan` device nothing is copied and host memory is left as it was.
 */
EK_API EK_CHECKED ek_status ek_tensor_copy(ek_tensor *destination, const ek_tensor *source);

/*
 * A new tensor with the type, shape and content of `source`, which is on the host or on a device of
 * the group: ek_tensor_create() and ek_tensor_copy() in one. Content from the host does not wait
 * for work that was queued on the device before: a device that queues its work (cuda) copies it on
 * a stream of its own. With `ahead` the compute stream does not wait for the copy either, so that
 * it overlaps with a step: call ek_tensor_wait() before queueing anything that uses the tensor. On
 * failure nothing is left behind.
 */
EK_API EK_CHECKED ek_status ek_tensor_create_from(ek_tensor *tensor, ek_device *device,
                                                  ek_memory_category category,
                                                  const ek_tensor *source, bool ahead);

/*
 * Makes the compute stream of the tensor's device wait for content that was sent ahead, also
 * through other views of it; the host does not wait. Legal for every tensor, any number of times;
 * ek_tensor_copy() does it for both of its tensors. EK_ERR_INVALID_ARGUMENT for no tensor.
 */
EK_API EK_CHECKED ek_status ek_tensor_wait(const ek_tensor *tensor);

EK_END_DECLARATIONS

#endif /* EVENKEEL_TENSOR_H */
