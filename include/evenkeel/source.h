/*
 * source.h - samples by number, in an order that needs no memory: where batches come from.
 *
 * A source has a number of samples, each one row of every input and target. It gives any of them at
 * any time. What is trained on is a sequence of positions 0, 1, 2, ...: with N samples, positions
 * e N to (e + 1) N - 1 are epoch e, in which every sample comes once. The order of an epoch is a
 * permutation that is a function of the seed and the epoch, computed sample by sample: nothing is
 * stored, and a run that goes on needs one number, its position. Positions do not depend on the
 * number of devices, of processes or of micro-batches, nor on the size of a batch.
 *
 * tokens.h opens files of tokens, image_source.h pictures. A source of a program's own is a struct
 * that begins with an ek_source, and a table with a function that fills rows. data_loader.h reads
 * any source ahead of a training step.
 *
 * The permutation is a Feistel network of eight rounds over the least power of two that has room
 * for N, whose rounds are ek_random_bits(); a result of N or more is permuted again (Black and
 * Rogaway, "Ciphers with arbitrary finite domains", 2002).
 *
 * A source belongs to any number of threads at a time: its functions change nothing in it.
 */
#ifndef EVENKEEL_SOURCE_H
#define EVENKEEL_SOURCE_H

#include <evenkeel/random.h>
#include <evenkeel/tensor.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_source ek_source;

/* One tensor of a sample: a batch of n samples has [n, shape...]. */
typedef struct ek_source_tensor {
  ek_type type; /* any, also those of host memory alone (u8, u16, u32) */
  int rank;     /* of one sample: 0 to EK_MAX_RANK - 1 */
  int64_t shape[EK_MAX_RANK];
} ek_source_tensor;

/* Samples that are wanted: all of one epoch, in this order. */
typedef struct ek_source_request {
  const int64_t *samples; /* numbers from 0 to the source's number of samples - 1 */
  int64_t count;          /* above 0 */
  /* For random numbers: the source's seed and, as `step`, the epoch. With the number of the sample
   * as `sample` of ek_random_bits(), a sample is cropped and turned in the same way wherever it is
   * computed, and in another way in each epoch. Stream 0 is the order's own: use others. */
  ek_random_key key;
} ek_source_request;

typedef struct ek_source_ops {
  size_t size;      /* sizeof(ek_source_ops) */
  const char *kind; /* for messages; lives as long as the source */
  /* Fills `tensors`, inputs and then targets, in host memory, with `count` rows each. Called by
   * several threads at the same time. After an error the tensors may hold anything. */
  ek_status (*read)(const ek_source *self, const ek_source_request *request, ek_tensor *tensors);
  void (*free)(ek_source *self); /* of the whole struct; when the last reference is dropped */
} ek_source_ops;

typedef struct ek_source_options {
  size_t size;
  int64_t samples;                 /* above 0 */
  size_t inputs, targets;          /* 1 to EK_MAX_TENSORS; 0 to EK_MAX_TENSORS */
  const ek_source_tensor *tensors; /* inputs, then targets; copied */
  uint64_t seed;                   /* of the order, and of what `read` draws */
  bool in_order;                   /* epochs are 0, 1, 2, ... without a permutation */
} ek_source_options;
#define EK_SOURCE_OPTIONS_INIT                                                                     \
  {                                                                                                \
    .size = sizeof(ek_source_options), .samples = 0, .inputs = 1, .targets = 1, .tensors = NULL,   \
    .seed = 0, .in_order = false                                                                   \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_source_options_init(ek_source_options *options, size_t size);

/* The first member of every source's struct; its members belong to the library. */
struct ek_source {
  struct ek__source_private {
    const ek_source_ops *ops;
    ek_source *of; /* a part's whole */
    int64_t samples, first;
    uint64_t seed;
    size_t inputs, targets;
    int references;
    bool in_order;
    ek_source_tensor tensors[EK_MAX_INPUTS];
  } private_members;
};

/*
 * Fills the base of a new source, which has one reference then. `ops` and what it points to live as
 * long as the source. EK_ERR_INVALID_ARGUMENT for NULL, a table without a function, and options
 * that make no sense; EK_ERR_OVERFLOW for a sample whose size does not fit.
 */
EK_API EK_CHECKED ek_status ek_source_init(ek_source *source, const ek_source_ops *ops,
                                           const ek_source_options *options);

/* Takes another reference and returns `source` (NULL for NULL). Safe from any thread. */
EK_API ek_source *ek_source_share(ek_source *source);
/* Drops a reference; the last one frees the source. NULL is legal. */
EK_API void ek_source_free(ek_source *source);

/*
 * Samples first to first + count - 1 of a source as a source with an order of its own, such as
 * those that are held out of training for validation. `whole` is shared. Of `options` only seed and
 * in_order are read; NULL: the whole's. EK_ERR_INVALID_ARGUMENT for samples that the source does
 * not have, and for none.
 */
EK_API EK_CHECKED ek_status ek_source_part_create(ek_source **part, ek_source *whole, int64_t first,
                                                  int64_t count, const ek_source_options *options);

EK_API const char *ek_source_kind(const ek_source *source); /* "" for NULL */
EK_API int64_t ek_source_samples(const ek_source *source);  /* 0 for NULL, and so below */
EK_API size_t ek_source_inputs(const ek_source *source);    /* tensors that are inputs */
EK_API size_t ek_source_targets(const ek_source *source);   /* and those that are targets */
/* One of the tensors, inputs and then targets; NULL for a number beyond them. */
EK_API const ek_source_tensor *ek_source_tensor_of(const ek_source *source, size_t index);

/* The sample at a position, and its epoch (`epoch` may be NULL). A position is 0 or more, and below
 * 2^32 epochs: else EK_ERR_INVALID_ARGUMENT. */
EK_API EK_CHECKED ek_status ek_source_at(int64_t *sample, int64_t *epoch, const ek_source *source,
                                         int64_t position);

/*
 * Reads the samples at positions first to first + count - 1, over the end of epochs as well, into
 * tensors in host memory: inputs, then targets, of the source's types, each with `count` rows of
 * the source's shape. Takes no memory for up to 256 samples at a time of one epoch, which are read
 * by one call of the source. EK_ERR_SHAPE, EK_ERR_TYPE; EK_ERR_INVALID_ARGUMENT for positions as
 * above; and what the source returns, after which the tensors may hold anything.
 */
EK_API EK_CHECKED ek_status ek_source_read(ek_tensor *tensors, size_t count_of_tensors,
                                           const ek_source *source, int64_t first, int64_t count);

EK_END_DECLARATIONS

#endif /* EVENKEEL_SOURCE_H */
