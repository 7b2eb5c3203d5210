/*
 * note.h - a few numbers of a device that the host reads later, without waiting for what the device
 * has got to do after them.
 *
 * A note is written on the device's worker: that queues a copy into memory of the note's own, and
 * an event after it. It is read by the thread that orders the jobs of the group, which waits for
 * the event alone. Writing again drops what was not read.
 */
#ifndef EK_NOTE_H
#define EK_NOTE_H

#include <evenkeel/tensor.h>

struct ek__note;

enum { EK__NOTE_NUMBERS = 2 };

/* For a device of an open group; takes host memory alone. */
ek_status ek__note_open(struct ek__note **note, ek_device *device);
/* Waits for what was written and not read. NULL is legal. */
void ek__note_close(struct ek__note *note);

/* Queues on the compute stream that the note gets the tensor's numbers, at most EK__NOTE_NUMBERS of
 * f64. */
ek_status ek__note_write(struct ek__note *note, const ek_tensor *tensor);
bool ek__note_written(const struct ek__note *note); /* and not read since */
/* Waits until the numbers are there. They stay as they are on a device that only counts. */
ek_status ek__note_read(double *numbers, struct ek__note *note);

/* EK_OK, or an error that work of the group's devices which has ended has found, such as an index
 * outside of its table; it is forgotten then. Waits for nothing. */
ek_status ek__device_check_found(ek_device *device);

#endif /* EK_NOTE_H */
