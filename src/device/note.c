/*
 * note.c - numbers that the host reads later.
 *
 * A backend that queues copies gives the memory for them (pinned, on a GPU); where a copy is done
 * when its call returns, the note has the numbers itself.
 */
#include <string.h>

#include "backend/backend.h"
#include "core/alloc.h"
#include "core/error.h"
#include "device/device_internal.h"
#include "device/fault_internal.h"
#include "device/note.h"

struct ek__note {
  ek_device *device;
  ek_event *there;
  double *memory; /* the backend's, or `own` */
  double own[EK__NOTE_NUMBERS];
  int64_t count; /* written and not read; 0: nothing */
};

static bool waits(const struct ek__note *note) { return note->memory != note->own; }

ek_status ek__note_open(struct ek__note **note, ek_device *device) {
  const struct ek__backend *backend = ek__device_table(device);
  struct ek__note *made = NULL;
  void *memory = NULL;
  EK_TRY(ek__new(&made, 1, sizeof *made, "a note of a device"));
  made->device = device;
  made->memory = made->own;
  ek_status status = EK_OK;
  if (backend->note_open != NULL) {
    EK_TRY_GOTO(status, backend->note_open(&memory, device), cleanup);
    made->memory = memory;
    EK_TRY_GOTO(status, ek_event_create(&made->there, device), cleanup);
  }
  *note = made;
  return EK_OK;
cleanup:
  ek__note_close(made);
  return status;
}

static ek_status wait_for_note(void *note) {
  return ek_event_synchronize(((const struct ek__note *)note)->there);
}

void ek__note_close(struct ek__note *note) {
  if (note == NULL) return;
  /* Its memory may be another note's next. A child of fork() has no devices to wait for. */
  if (waits(note) && !ek__group_of_parent(ek_device_group(note->device))) {
    if (note->count > 0 && ek__group_await(note->device, wait_for_note, note) != EK_OK) {
      note->count = 0;
    }
    ek__device_table(note->device)->note_close(note->memory, note->device);
  }
  ek_event_free(note->there);
  ek__free(note);
}

ek_status ek__note_write(struct ek__note *note, const ek_tensor *tensor) {
  const struct ek__backend *backend = ek__device_table(note->device);
  ek_stream *stream = ek_device_stream(note->device, EK_STREAM_COMPUTE);
  const size_t bytes = ek_tensor_bytes(tensor);
  note->count = 0;
  EK_TRY(ek__fault_point(note->device, "copy"));
  if (waits(note)) {
    EK_TRY(backend->note_write(stream, note->memory, tensor->data, bytes));
    EK_TRY(ek_event_record(note->there, stream));
  } else if (backend->download != NULL) {
    EK_TRY(backend->download(stream, note->memory, tensor->data, bytes));
  }
  note->count = ek_tensor_count(tensor);
  return EK_OK;
}

bool ek__note_written(const struct ek__note *note) { return note->count > 0; }

ek_status ek__note_read(double *numbers, struct ek__note *note) {
  const size_t bytes = (size_t)note->count * sizeof *numbers;
  if (waits(note)) EK_TRY(ek__group_await(note->device, wait_for_note, note));
  note->count = 0;
  if (!ek_device_counts_only(note->device)) memcpy(numbers, note->memory, bytes);
  return EK_OK;
}

ek_status ek__device_check_found(ek_device *device) {
  const struct ek__backend *backend = ek__device_table(device);
  return backend->check_found == NULL ? EK_OK : backend->check_found(device);
}
