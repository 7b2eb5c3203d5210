/*
 * data_loader.c - reads batches of a source ahead.
 *
 * Batch number n, counted from the last seek, goes into slot n modulo the number of slots. A slot
 * is EMPTY, then READING while a thread fills it, then FULL and, while the program has it, LENT;
 * or FAILED after an error, and RETURNED once the program has that. Threads take empty slots in the
 * order of batches. So `ahead` + 1 slots serve `ahead` batches that are read and one that is lent.
 *
 * Everything below `mutex` in the struct is read and written under it, except for the contents of
 * a slot: those belong to the thread that reads it while it is READING, and to the program while it
 * is lent. A seek waits until no thread reads, and makes all slots empty.
 *
 * Without threads (`ahead` 0) ek_data_loader_next() reads into the only slot itself.
 */
#include <evenkeel/data_loader.h>

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include <evenkeel/scatter.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"
#include "core/owner.h"
#include "core/process.h"
#include "core/sizes.h"
#include "core/thread.h"
#include "device/device_internal.h"
#include "trainer_internal.h"

enum { MOST_THREADS = 64, MOST_AHEAD = 1024 };

enum state { EMPTY, READING, FULL, FAILED, RETURNED, LENT };

struct slot {
  enum state state;
  char *memory; /* of all tensors of a batch; NULL where they have no bytes */
  ek_batch batch;
  ek_tensor tensors[EK_MAX_INPUTS];
  ek_status status; /* of FAILED, with its message */
  char message[EK__MESSAGE_SIZE];
};

struct ek_data_loader {
  struct ek__owner owner;
  struct ek__process process;
  ek_source *source;
  struct ek__trainer_cut cut;
  int64_t batch, end;
  int64_t most; /* rows of this process in any batch */
  size_t tensor_count, input_count;
  size_t offsets[EK_MAX_INPUTS]; /* of each tensor in a slot's memory */
  double waited;
  pthread_t threads[MOST_THREADS];
  size_t thread_count;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  int64_t start;             /* position of batch 0 */
  uint64_t begun, next;      /* batches that threads have begun, and that were lent */
  size_t reading;            /* threads that fill a slot */
  bool paused, ended;
  struct slot *lent; /* to the program, or NULL */
  size_t slot_count; /* constant */
  struct slot slots[]; /* flexible */
};

EK__OPTIONS_INIT(ek_data_loader_options, EK_DATA_LOADER_OPTIONS_INIT)

/* ---- which rows ---- */

/* The position of a batch, and its number of rows in all processes: 0 from `end` on. */
static void place_batch(int64_t *position, int64_t *rows, const ek_data_loader *self,
                        uint64_t number) {
  int64_t begin = 0;
  const bool fits = number <= INT64_MAX && ek__multiply(&begin, (int64_t)number, self->batch) &&
                    ek__add(&begin, begin, self->start);
  *position = fits ? begin : INT64_MAX;
  *rows = self->batch;
  if (self->end == 0) return;
  if (*position > self->end) *position = self->end;
  if (*rows > self->end - *position) *rows = self->end - *position;
}

/* This process's rows of one micro-batch, which begins at row `begin` of the batch. */
static ek_status own_rows(int64_t *first, int64_t *count, const struct ek__trainer_cut *cut,
                          int64_t rows, int64_t part) {
  const size_t parts = (size_t)cut->micro_batches;
  const int64_t begin = ek__even_begin(rows, (size_t)part, parts);
  const int64_t size = ek__even_begin(rows, (size_t)part + 1, parts) - begin;
  *first = 0;
  *count = size;
  if (cut->group != NULL) EK_TRY(ek_world_rows(first, count, cut->group, size, cut->grains));
  *first += begin;
  return EK_OK;
}

static bool alone(const struct ek__trainer_cut *cut) {
  return cut->group == NULL || ek__group_world_size(cut->group) == ek_group_size(cut->group);
}

/* This process has no more rows in a smaller batch, so slots for whole batches have room. */
static ek_status count_rows(int64_t *count, const struct ek__trainer_cut *cut, int64_t rows) {
  *count = rows;
  if (alone(cut)) return EK_OK;
  *count = 0;
  for (int64_t part = 0; part < cut->micro_batches; part++) {
    int64_t first = 0, own = 0;
    EK_TRY(own_rows(&first, &own, cut, rows, part));
    *count += own;
  }
  return EK_OK;
}

/* ---- filling a slot ---- */

static ek_tensor rows_of(const ek_tensor *tensor, int64_t first, int64_t count) {
  ek_tensor rows = *tensor;
  const size_t row = (size_t)ek_tensor_row_elements(tensor) * ek_type_size(tensor->type);
  rows.data = (char *)tensor->data + row * (size_t)first;
  rows.shape[0] = count;
  return rows;
}

static ek_status read_rows(const ek_data_loader *self, struct slot *slot, int64_t done,
                           int64_t position, int64_t count) {
  ek_tensor rows[EK_MAX_INPUTS];
  for (size_t i = 0; i < self->tensor_count; i++) {
    rows[i] = rows_of(&slot->tensors[i], done, count);
  }
  return ek_source_read(rows, self->tensor_count, self->source, position, count);
}

static ek_status describe(const ek_data_loader *self, struct slot *slot, int64_t rows) {
  for (size_t i = 0; i < self->tensor_count; i++) {
    const ek_source_tensor *of = ek_source_tensor_of(self->source, i);
    int64_t shape[EK_MAX_RANK] = {rows};
    for (int j = 0; j < of->rank; j++) shape[j + 1] = of->shape[j];
    EK_TRY(ek_tensor_host(&slot->tensors[i], slot->memory + self->offsets[i], of->type,
                          of->rank + 1, shape));
  }
  return EK_OK;
}

static ek_status fill(const ek_data_loader *self, struct slot *slot, uint64_t number) {
  int64_t position = 0, rows = 0, own = 0, done = 0;
  place_batch(&position, &rows, self, number);
  EK_TRY(count_rows(&own, &self->cut, rows));
  EK_TRY(describe(self, slot, own));
  slot->batch = (ek_batch){.inputs = slot->tensors,
                           .targets = slot->tensors + self->input_count,
                           .input_count = self->input_count,
                           .target_count = self->tensor_count - self->input_count,
                           .position = position,
                           .rows = rows,
                           .next = position + rows};
  if (alone(&self->cut)) return own == 0 ? EK_OK : read_rows(self, slot, 0, position, own);
  for (int64_t part = 0; part < self->cut.micro_batches; part++) {
    int64_t first = 0, count = 0;
    EK_TRY(own_rows(&first, &count, &self->cut, rows, part));
    if (count > 0) EK_TRY(read_rows(self, slot, done, position + first, count));
    done += count;
  }
  return EK_OK;
}

static enum state fill_slot(const ek_data_loader *self, struct slot *slot, uint64_t number) {
  const uint64_t before = ek__error_number();
  slot->status = fill(self, slot, number);
  if (slot->status == EK_OK) return FULL;
  (void)snprintf(slot->message, sizeof slot->message, "%s", ek__error_words(slot->status, before));
  return FAILED;
}

static struct slot *slot_of(ek_data_loader *self, uint64_t number) {
  return &self->slots[number % self->slot_count];
}

static void *read_main(void *arg) {
  ek_data_loader *self = arg;
  (void)pthread_mutex_lock(&self->mutex);
  while (!self->ended) {
    struct slot *slot = slot_of(self, self->begun);
    if (slot->state != EMPTY || self->paused) {
      (void)pthread_cond_wait(&self->changed, &self->mutex);
      continue;
    }
    const uint64_t number = self->begun++;
    slot->state = READING;
    self->reading++;
    (void)pthread_mutex_unlock(&self->mutex);
    const enum state state = fill_slot(self, slot, number);
    (void)pthread_mutex_lock(&self->mutex);
    slot->state = state;
    self->reading--;
    (void)pthread_cond_broadcast(&self->changed);
  }
  (void)pthread_mutex_unlock(&self->mutex);
  return NULL;
}

/* ---- opening and closing ---- */

static ek_status check_options(const ek_data_loader_options *o, const ek_trainer *trainer) {
  EK__FAIL_IF(o->batch <= 0, EK_ERR_INVALID_ARGUMENT,
              "ek_data_loader_open: options.batch is %" PRId64 ", expected above 0", o->batch);
  EK__FAIL_IF(o->position < 0 || o->end < 0 || (o->end > 0 && o->end < o->position),
              EK_ERR_INVALID_ARGUMENT,
              "ek_data_loader_open: positions %" PRId64 " to %" PRId64
              ", expected 0 or more, and an end after the first",
              o->position, o->end);
  EK__FAIL_IF(
      o->ahead > MOST_AHEAD || o->threads < 1 || o->threads > MOST_THREADS, EK_ERR_INVALID_ARGUMENT,
      "ek_data_loader_open: %zu batches ahead and %zu threads, expected 0 to %d and 1 to %d",
      o->ahead, o->threads, MOST_AHEAD, MOST_THREADS);
  EK__FAIL_IF(
      trainer != NULL && (o->group != NULL || o->micro_batches != 0 || o->grains != 0),
      EK_ERR_INVALID_ARGUMENT,
      "ek_data_loader_open: options.group, micro_batches and grains are the trainer's, which is "
      "given");
  EK__FAIL_IF(o->micro_batches < 0, EK_ERR_INVALID_ARGUMENT,
              "ek_data_loader_open: options.micro_batches is %" PRId64 ", expected 0 or more",
              o->micro_batches);
  return EK_OK;
}

/* The place of each tensor in the memory of a slot, and the size of a slot. */
static ek_status lay_out(ek_data_loader *self, int64_t *bytes) {
  *bytes = 0;
  for (size_t i = 0; i < self->tensor_count; i++) {
    const ek_source_tensor *of = ek_source_tensor_of(self->source, i);
    int64_t size = (int64_t)ek_type_size(of->type);
    bool fits = ek__multiply(&size, size, self->most);
    for (int j = 0; j < of->rank; j++) fits = fits && ek__multiply(&size, size, of->shape[j]);
    self->offsets[i] = (size_t)*bytes;
    fits = fits && ek__add(&size, size, 63) && ek__add(bytes, *bytes, size / 64 * 64);
    EK__FAIL_IF(!fits, EK_ERR_OVERFLOW, "ek_data_loader_open: the bytes of a batch do not fit");
  }
  return EK_OK;
}

static ek_status start(ek_data_loader *self, size_t threads) {
  int64_t bytes = 0;
  EK_TRY(count_rows(&self->most, &self->cut, self->batch));
  EK_TRY(lay_out(self, &bytes));
  for (size_t i = 0; i < self->slot_count; i++) {
    EK_TRY(ek__new(&self->slots[i].memory, 1, (size_t)bytes, "batches that are read ahead"));
  }
  if (threads > self->slot_count - 1) threads = self->slot_count - 1;
  for (; self->thread_count < threads; self->thread_count++) {
    EK_TRY(ek__thread_start(&self->threads[self->thread_count], EK__WORKER_STACK, read_main, self));
  }
  return EK_OK;
}

ek_status ek_data_loader_open(ek_data_loader **loader, ek_source *source, const ek_trainer *trainer,
                         const ek_data_loader_options *options) {
  ek_data_loader_options o = EK_DATA_LOADER_OPTIONS_INIT;
  EK__NOT_NULL("ek_data_loader_open", loader, source, options);
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_data_loader_options"));
  EK_TRY(check_options(&o, trainer));
  EK_TRY(ek__process_watch());
  ek_data_loader *self = NULL;
  EK_TRY(ek__new(&self, 1, sizeof *self + (o.ahead + 1) * sizeof self->slots[0], "a loader"));
  self->process = ek__process_this();
  self->source = ek_source_share(source);
  self->cut =
      (struct ek__trainer_cut){o.group, o.micro_batches < 1 ? 1 : o.micro_batches, o.grains};
  if (trainer != NULL) self->cut = ek__trainer_cut(trainer);
  self->batch = o.batch;
  self->end = o.end;
  self->start = o.position;
  self->input_count = ek_source_inputs(source);
  self->tensor_count = self->input_count + ek_source_targets(source);
  self->slot_count = o.ahead + 1;
  (void)pthread_mutex_init(&self->mutex, NULL);
  (void)pthread_cond_init(&self->changed, NULL);
  const ek_status status = start(self, o.threads);
  if (status != EK_OK) {
    ek_data_loader_free(self);
    return status;
  }
  *loader = self;
  return EK_OK;
}

void ek_data_loader_free(ek_data_loader *loader) {
  if (loader == NULL) return;
  if (!ek__process_is_child(&loader->process)) {
    (void)pthread_mutex_lock(&loader->mutex);
    loader->ended = true;
    (void)pthread_cond_broadcast(&loader->changed);
    (void)pthread_mutex_unlock(&loader->mutex);
    for (size_t i = 0; i < loader->thread_count; i++) (void)pthread_join(loader->threads[i], NULL);
    (void)pthread_cond_destroy(&loader->changed);
    (void)pthread_mutex_destroy(&loader->mutex);
  }
  for (size_t i = 0; i < loader->slot_count; i++) ek__free(loader->slots[i].memory);
  ek_source_free(loader->source);
  ek__free(loader);
}

/* ---- batches ---- */

static double seconds_now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* Waits until the slot of the next batch is FULL or FAILED; a batch whose failure has been returned
 * is read again here. Under the mutex. */
static void wait_for(ek_data_loader *self, struct slot *slot) {
  const double began = seconds_now();
  if (self->thread_count == 0 || slot->state == RETURNED) {
    slot->state = READING;
    (void)pthread_mutex_unlock(&self->mutex);
    const enum state state = fill_slot(self, slot, self->next);
    (void)pthread_mutex_lock(&self->mutex);
    slot->state = state;
  }
  while (slot->state != FULL && slot->state != FAILED) {
    (void)pthread_cond_wait(&self->changed, &self->mutex);
  }
  self->waited += seconds_now() - began;
}

ek_status ek_data_loader_next(ek_batch *batch, ek_data_loader *loader) {
  EK__NOT_NULL("ek_data_loader_next", batch, loader);
  EK_TRY(ek__process_check(&loader->process, "ek_data_loader_next"));
  EK__OWNER_ENTER(&loader->owner, "ek_data_loader_next", "the loader");
  struct slot *slot = slot_of(loader, loader->next);
  (void)pthread_mutex_lock(&loader->mutex);
  if (loader->lent != NULL) loader->lent->state = EMPTY;
  loader->lent = NULL;
  (void)pthread_cond_broadcast(&loader->changed);
  if (slot->state != FULL) wait_for(loader, slot);
  const bool good = slot->state == FULL;
  slot->state = good ? LENT : RETURNED;
  if (good) loader->lent = slot;
  if (good) loader->next++;
  (void)pthread_mutex_unlock(&loader->mutex);
  if (!good) return ek_error_set(slot->status, "%s", slot->message);
  *batch = slot->batch;
  return EK_OK;
}

ek_status ek_data_loader_seek(ek_data_loader *loader, int64_t position) {
  EK__NOT_NULL("ek_data_loader_seek", loader);
  EK_TRY(ek__process_check(&loader->process, "ek_data_loader_seek"));
  EK__OWNER_ENTER(&loader->owner, "ek_data_loader_seek", "the loader");
  EK__FAIL_IF(position < 0 || (loader->end > 0 && position > loader->end), EK_ERR_INVALID_ARGUMENT,
              "ek_data_loader_seek: position %" PRId64
              ", expected 0 or more, and no more than the end",
              position);
  (void)pthread_mutex_lock(&loader->mutex);
  loader->paused = true;
  while (loader->reading > 0) (void)pthread_cond_wait(&loader->changed, &loader->mutex);
  for (size_t i = 0; i < loader->slot_count; i++) loader->slots[i].state = EMPTY;
  loader->lent = NULL;
  loader->start = position;
  loader->begun = 0;
  loader->next = 0;
  loader->paused = false;
  (void)pthread_cond_broadcast(&loader->changed);
  (void)pthread_mutex_unlock(&loader->mutex);
  return EK_OK;
}

double ek_data_loader_waited(const ek_data_loader *loader) {
  return loader == NULL ? 0 : loader->waited;
}
