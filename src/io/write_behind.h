/*
 * write_behind.h - threads that write pieces of a file while the caller fills the next ones.
 *
 * A disk that gets one write at a time waits while the next one is copied and summed, and one write
 * alone does not keep most disks busy. So several pieces are written at once. Their number is
 * fixed: the caller takes, fills and puts them in turns, and waits only if all are being written.
 */
#ifndef EK_WRITE_BEHIND_H
#define EK_WRITE_BEHIND_H

#include <stddef.h>
#include <stdint.h>

#include <evenkeel/safetensors.h>

struct ek__write_behind;

/* Pieces of `piece` bytes, whole pages. The writer is a loan, and stays until the end. */
ek_status ek__write_behind_begin(struct ek__write_behind **behind, ek_safetensors_writer *file,
                                 size_t piece);

/* Memory for a piece, from the beginning of a page on; waits until there is some. NULL when a write
 * has failed: the end says which. */
char *ek__write_behind_take(struct ek__write_behind *behind);

/* Of what was taken last, `bytes` bytes from `data` on are those of the file from `place` on. */
void ek__write_behind_put(struct ek__write_behind *behind, const char *data, size_t bytes,
                          uint64_t place);

/* Waits until everything is written, and frees it. `status` is what the caller has come to: a
 * failure of its own stays, with its message; else the first one of a write is returned. */
ek_status ek__write_behind_end(struct ek__write_behind *behind, ek_status status);

#endif /* EK_WRITE_BEHIND_H */
