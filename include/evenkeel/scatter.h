/*
 * scatter.h - puts one tensor on all devices as shards, cut along dimension 0.
 *
 *     even     sizes differ by at most one, larger first (9 rows over 4 devices: 3 2 2 2)
 *     chunk    ceil(rows / n) each while rows remain, as torch.chunk does (9 over 4: 3 3 3 0)
 *     sizes    given by the caller; their sum must be the number of rows
 *     weights  proportional to the given weights, for unequal devices, by largest remainder
 *     grains   the batch is cut evenly into grains, and the grains are dealt out evenly in order:
 *              what a reproducible model wants (data_parallel_model.h)
 *
 * With fewer rows than devices the remaining devices get shards without rows.
 *
 * Integers in host memory may be of any type that a data set has: u8, u16, u32, i32 or i64. They
 * are converted while they are copied to the devices, without further memory:
 *
 *     u8, u16, u32, i64   to i32, in which the stock modules take tokens and classes; or to i64
 *     u8, u16             to f32 or f64: x * scale + offset, with a scale and an offset for all, or
 *                         for each channel (the last dimension)
 *
 * A number that does not fit is EK_ERR_INVALID_ARGUMENT; the message has the number of the element
 * in the given tensor. On `plan` devices no values are read.
 */
#ifndef EVENKEEL_SCATTER_H
#define EVENKEEL_SCATTER_H

#include <evenkeel/shards.h>

EK_BEGIN_DECLARATIONS

typedef enum ek_scatter_kind {
  EK_SCATTER_EVEN = 0,
  EK_SCATTER_CHUNK = 1,
  EK_SCATTER_SIZES = 2,
  EK_SCATTER_WEIGHTS = 3,
  EK_SCATTER_GRAINS = 4
} ek_scatter_kind;

typedef struct ek_scatter_options {
  size_t size;
  ek_scatter_kind kind;
  const int64_t *sizes;  /* one per device, for `sizes` */
  const double *weights; /* one per device, for `weights`: finite, >= 0, not all 0 */
  /*
   * Returns before the rows have arrived, so that the next batch is copied while this one computes.
   * Call ek_shards_wait() before anything uses the shards; ek_data_parallel_model_forward_shards()
   * and ek_data_parallel_criterion_forward_shards() do so themselves. The results are the same. On
   * cpu, where a copy is done at once, the option makes no difference.
   */
  bool ahead;
  size_t grains; /* for `grains`: at least 1 */
  /*
   * What integers in host memory become on the devices: EK_I32 or EK_I64, or EK_F32 or EK_F64 from
   * u8 and u16. 0: u8, u16 and u32 become i32, the others stay what they are.
   */
  ek_type type;
  const ek_input_scaling *scaling; /* for EK_F32 and EK_F64; NULL: x itself */
} ek_scatter_options;
#define EK_SCATTER_OPTIONS_INIT                                                                    \
  {                                                                                                \
    .size = sizeof(ek_scatter_options), .kind = EK_SCATTER_EVEN, .sizes = NULL, .weights = NULL,   \
    .ahead = false, .grains = 0, .type = (ek_type)0, .scaling = NULL                               \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_scatter_options_init(ek_scatter_options *options, size_t size);

/*
 * The cut of `rows` over `count` devices: offsets[0 .. count]. Pure arithmetic. `options` NULL:
 * even. EK_ERR_INVALID_ARGUMENT for a wrong sum of sizes, a negative size, weights that make no
 * sense.
 */
EK_API EK_CHECKED ek_status ek_scatter_offsets(int64_t *offsets, int64_t rows, size_t count,
                                               const ek_scatter_options *options);

/*
 * Computes which rows of a batch belong to this process, if all processes of a world know the batch
 * and its `rows` rows are cut evenly over the devices of all: *first to *first + *count - 1.
 * grains: 0, or `reproducible` of the model that gets the batch, which needs exactly these rows.
 * Without a world these are all rows. A trainer with micro-batches gets the process's rows of the
 * first micro-batch, then those of the second, and so on: cut the batch into micro-batches first
 * (evenly, larger ones first), and then each of them with this function.
 */
EK_API EK_CHECKED ek_status ek_world_rows(int64_t *first, int64_t *count, const ek_group *group,
                                          int64_t rows, size_t grains);

/*
 * Puts every device's rows on it, charged to `category`. The source is on the host or on a device
 * of the group; a part that is on its device already is a view, not a copy. Host memory may be
 * written again when the call returns. A scalar (rank 0) cannot be cut: EK_ERR_SHAPE. EK_ERR_TYPE
 * for a source that cannot become options->type. On failure nothing is left behind.
 */
EK_API EK_CHECKED ek_status ek_scatter(ek_shards *shards, ek_group *group, const ek_tensor *source,
                                       ek_memory_category category,
                                       const ek_scatter_options *options);

/*
 * The same at the sample boundaries of `like`: rows that belong to the same samples go to the same
 * device. The number of rows must be a multiple of the number of samples (B * T targets against B
 * inputs): else EK_ERR_SHAPE. `ahead` is as in `like`; u8, u16 and u32 become i32.
 */
EK_API EK_CHECKED ek_status ek_scatter_like(ek_shards *shards, const ek_shards *like,
                                            const ek_tensor *source, ek_memory_category category);

/* The whole tensor on every device: `broadcast` is set, offsets and samples stay 0. u8, u16 and u32
 * become i32. */
EK_API EK_CHECKED ek_status ek_scatter_broadcast(ek_shards *shards, ek_group *group,
                                                 const ek_tensor *source,
                                                 ek_memory_category category);

EK_END_DECLARATIONS

#endif /* EVENKEEL_SCATTER_H */
