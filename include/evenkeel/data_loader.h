/*
 * data_loader.h - batches of a source (source.h), read ahead by threads while a step computes.
 *
 *     ek_source *text = NULL;
 *     ek_data_loader *loader = NULL;
 *     ek_tokens_options tokens = EK_TOKENS_OPTIONS_INIT;
 *     ek_data_loader_options options = EK_DATA_LOADER_OPTIONS_INIT;
 *     tokens.sequence = 4;
 *     options.batch = 64;
 *     EK_TRY_GOTO(status, ek_tokens_open(&text, "train-*.bin", &tokens), cleanup);
 *     EK_TRY_GOTO(status, ek_data_loader_open(&loader, text, trainer, &options), cleanup);
 *     for (int i = 0; i < steps; i++) {
 *       ek_batch batch;
 *       EK_TRY_GOTO(status, ek_data_loader_next(&batch, loader), cleanup);
 *       EK_TRY_GOTO(status, ek_trainer_step(NULL, trainer, batch.inputs, batch.input_count,
 *                                           batch.targets, batch.target_count), cleanup);
 *       options.position = batch.next;   // where a run that is interrupted goes on
 *     }
 *   cleanup:
 *     ek_data_loader_free(loader);
 *     ek_source_free(text);
 *     return status;
 *
 * Batch after batch, the samples are those at the source's positions, none left out and none twice.
 * In a world of several processes each loader reads the rows of its own process, in the order in
 * which the trainer wants them: options.batch counts the rows of all.
 *
 * Memory for `ahead` + 1 batches is taken when the loader opens; ek_data_loader_next() takes none.
 * A step sends from it, so nothing is copied between the source and the device's upload.
 *
 * A loader belongs to one thread at a time: another gets EK_ERR_STATE. So does a child of fork(),
 * which has none of its threads.
 */
#ifndef EVENKEEL_DATA_LOADER_H
#define EVENKEEL_DATA_LOADER_H

#include <evenkeel/source.h>
#include <evenkeel/trainer.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_data_loader ek_data_loader;

typedef struct ek_data_loader_options {
  size_t size;
  int64_t batch;    /* rows of a batch, over all devices and processes: above 0 */
  int64_t position; /* of the first row of the first batch */
  int64_t end;      /* position after the last row: the last batch may be smaller; 0: none */
  size_t ahead;     /* batches that are read while one is used; 0: ek_data_loader_next() reads */
  size_t threads;   /* that read, 1 to 64, each a batch at a time; no more than `ahead` start */
  /* For a program that opens the parts of a trainer itself; with a trainer all three are 0. */
  ek_group *group;       /* outlives the loader; NULL: this process reads all rows */
  int64_t micro_batches; /* into which it cuts a batch; 0 and 1: one */
  size_t grains;         /* ek_data_parallel_model_options.reproducible */
} ek_data_loader_options;
#define EK_DATA_LOADER_OPTIONS_INIT                                                                \
  {                                                                                                \
    .size = sizeof(ek_data_loader_options), .batch = 0, .position = 0, .end = 0, .ahead = 2,       \
    .threads = 1, .group = NULL, .micro_batches = 0, .grains = 0                                   \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_data_loader_options_init(ek_data_loader_options *options,
                                                        size_t size);

/* A batch in host memory: loans, good until the next call with this loader. */
typedef struct ek_batch {
  const ek_tensor *inputs, *targets; /* with this process's rows, perhaps none */
  size_t input_count, target_count;
  int64_t position; /* of its first row */
  int64_t rows;     /* of all processes; 0: `end` was reached, and the tensors have no rows */
  int64_t next;     /* position after its last row */
} ek_batch;

/*
 * Opens a loader and begins to read. The source is shared; the trainer, of which the rows depend,
 * outlives the loader, and may be NULL. EK_ERR_INVALID_ARGUMENT for numbers that make no sense;
 * EK_ERR_OUT_OF_MEMORY.
 */
EK_API EK_CHECKED ek_status ek_data_loader_open(ek_data_loader **loader, ek_source *source,
                                                const ek_trainer *trainer,
                                                const ek_data_loader_options *options);

/*
 * The next batch; waits for it if it is not read yet. After an error of the source the loader
 * stays where it was: the next call reads the same batch again.
 */
EK_API EK_CHECKED ek_status ek_data_loader_next(ek_batch *batch, ek_data_loader *loader);

/* Goes on from another position, 0 or more; what was read ahead is dropped. */
EK_API EK_CHECKED ek_status ek_data_loader_seek(ek_data_loader *loader, int64_t position);

/* Seconds that ek_data_loader_next() has waited for batches since the loader was opened: how much
 * slower training is because of reading. 0 for NULL. */
EK_API double ek_data_loader_waited(const ek_data_loader *loader);

/* Ends the threads and frees the batches. NULL is legal. */
EK_API void ek_data_loader_free(ek_data_loader *loader);

EK_END_DECLARATIONS

#endif /* EVENKEEL_DATA_LOADER_H */
