/*
 * write_behind.c - see write_behind.h.
 *
 * Pieces are a ring: the caller takes and puts them in order; threads begin them in order and end
 * them in any order. The numbers of pieces put and begun are counted; a piece is free again when
 * its earlier contents have been written. After a failure nothing more is written.
 */
#include "io/write_behind.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/thread.h"
#include "io/file.h"
#include "io/writer.h"

/* Two pieces are filled, or wait, while as many as there are threads are written. */
enum { THREADS = 3, PIECES = THREADS + 2 };

struct piece {
  const char *data;
  size_t bytes;
  uint64_t place;
  bool busy; /* put, and not yet written */
};

struct ek__write_behind {
  ek_safetensors_writer *file;
  char *memory, *first; /* `first`: of the first piece, at a page */
  size_t size;
  struct piece pieces[PIECES];
  pthread_t threads[THREADS];
  size_t thread_count;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  uint64_t put, begun; /* how many of them so far */
  bool ended;          /* no more will be put */
  ek_status status;    /* the first failure, with its message */
  char message[EK__MESSAGE_SIZE];
};

static void *write_main(void *arg) {
  struct ek__write_behind *self = arg;
  (void)pthread_mutex_lock(&self->mutex);
  for (;;) {
    while (self->begun == self->put && !self->ended) {
      (void)pthread_cond_wait(&self->changed, &self->mutex);
    }
    if (self->begun == self->put) break;
    struct piece *piece = &self->pieces[self->begun++ % PIECES];
    if (self->status == EK_OK) {
      (void)pthread_mutex_unlock(&self->mutex);
      const ek_status status =
          ek__safetensors_put(self->file, piece->data, piece->bytes, piece->place);
      (void)pthread_mutex_lock(&self->mutex);
      if (status != EK_OK && self->status == EK_OK) {
        self->status = status;
        (void)snprintf(self->message, sizeof self->message, "%s", ek_error_message());
      }
    }
    piece->busy = false;
    (void)pthread_cond_broadcast(&self->changed);
  }
  (void)pthread_mutex_unlock(&self->mutex);
  return NULL;
}

static ek_status start(struct ek__write_behind *self) {
  EK__FAIL_IF(self->size > SIZE_MAX / PIECES, EK_ERR_OVERFLOW, "pieces of a file are too large");
  EK_TRY(ek__file_pages(&self->memory, &self->first, self->size * PIECES, "pieces of a file"));
  for (; self->thread_count < THREADS; self->thread_count++) {
    EK_TRY(
        ek__thread_start(&self->threads[self->thread_count], EK__HELPER_STACK, write_main, self));
  }
  return EK_OK;
}

ek_status ek__write_behind_begin(struct ek__write_behind **behind, ek_safetensors_writer *file,
                                 size_t piece) {
  struct ek__write_behind *self = NULL;
  EK_TRY(ek__new(&self, 1, sizeof *self, "pieces of a file"));
  self->file = file;
  self->size = piece;
  (void)pthread_mutex_init(&self->mutex, NULL);
  (void)pthread_cond_init(&self->changed, NULL);
  const ek_status status = start(self);
  if (status != EK_OK) return ek__write_behind_end(self, status);
  *behind = self;
  return EK_OK;
}

char *ek__write_behind_take(struct ek__write_behind *behind) {
  const size_t number = (size_t)(behind->put % PIECES);
  (void)pthread_mutex_lock(&behind->mutex);
  while (behind->pieces[number].busy && behind->status == EK_OK) {
    (void)pthread_cond_wait(&behind->changed, &behind->mutex);
  }
  const bool good = behind->status == EK_OK;
  (void)pthread_mutex_unlock(&behind->mutex);
  return good ? behind->first + number * behind->size : NULL;
}

void ek__write_behind_put(struct ek__write_behind *behind, const char *data, size_t bytes,
                          uint64_t place) {
  (void)pthread_mutex_lock(&behind->mutex);
  behind->pieces[behind->put++ % PIECES] =
      (struct piece){.data = data, .bytes = bytes, .place = place, .busy = true};
  (void)pthread_cond_broadcast(&behind->changed);
  (void)pthread_mutex_unlock(&behind->mutex);
}

ek_status ek__write_behind_end(struct ek__write_behind *behind, ek_status status) {
  (void)pthread_mutex_lock(&behind->mutex);
  behind->ended = true;
  (void)pthread_cond_broadcast(&behind->changed);
  (void)pthread_mutex_unlock(&behind->mutex);
  for (size_t i = 0; i < behind->thread_count; i++) (void)pthread_join(behind->threads[i], NULL);
  if (status == EK_OK && behind->status != EK_OK) {
    status = ek_error_set(behind->status, "%s", behind->message);
  }
  (void)pthread_cond_destroy(&behind->changed);
  (void)pthread_mutex_destroy(&behind->mutex);
  ek__free(behind->memory);
  ek__free(behind);
  return status;
}
