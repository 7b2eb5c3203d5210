/*
 * writer.h - a writer of tensors from the inside, for callers that choose the place of bytes in the
 * file. ek_safetensors_write() is the two functions in one: sum the bytes, and put them.
 */
#ifndef EK_WRITER_H
#define EK_WRITER_H

#include <evenkeel/safetensors.h>

/* The place of entry number `index` in the file, and the number of entries before it: they are end
 * to end. From pages of memory that are alike (file.h) it is written fastest. */
uint64_t ek__safetensors_place(const ek_safetensors_writer *writer, size_t index);
size_t ek__safetensors_order(const ek_safetensors_writer *writer, size_t index);

/* Counts the next bytes of an entry as given. As ek_safetensors_write(), and nothing is written. */
ek_status ek__safetensors_sum(ek_safetensors_writer *writer, size_t index, const void *data,
                              size_t bytes);

/* Writes bytes of any entries to their place in the file. Thread-safe; the first failure is
 * kept. */
ek_status ek__safetensors_put(ek_safetensors_writer *writer, const void *data, size_t bytes,
                              uint64_t place);

/* As ek_safetensors_finish(). The file gets its name only after what is named here was read again
 * and found right, checksums included; EK_ERR_IO where it is not. */
enum ek__read_back { EK__READ_BACK_NOTHING, EK__READ_BACK_HEADER, EK__READ_BACK_ALL };
ek_status ek__safetensors_finish(ek_safetensors_writer *writer, enum ek__read_back back);

/* ---- one file of several processes ---- */

enum { EK__WRITER_TOKEN = 16 };

struct ek__writer_offer {
  const char *temporary;                 /* as this process sees the file */
  uint64_t begin;                        /* of the tensors in it */
  unsigned char token[EK__WRITER_TOKEN]; /* random */
};

const char *ek__safetensors_temporary(const ek_safetensors_writer *writer);
uint64_t ek__safetensors_begin(const ek_safetensors_writer *writer);

/* Writes a token into the file, for processes that may see it. The header takes its place. */
ek_status ek__safetensors_offer(const ek_safetensors_writer *writer, const void *token);

/* A writer for the same entries in the same order. Not *joined: the process does not see the file,
 * or may not write it; then the writer knows places alone. */
ek_status ek__safetensors_join(ek_safetensors_writer **writer, bool *joined,
                               const struct ek__writer_offer *offer,
                               const ek_safetensors_entry *entries, size_t count);

/* What a joined writer has put is on the disk. */
ek_status ek__safetensors_sync(ek_safetensors_writer *writer);

/* The checksum of an entry whose bytes were all given, to tell the process that created the file;
 * there the entry then counts as given. */
uint64_t ek__safetensors_sum_of(const ek_safetensors_writer *writer, size_t index);
void ek__safetensors_set_sum(ek_safetensors_writer *writer, size_t index, uint64_t sum);

/* Reads entries back and compares their checksums. EK_ERR_IO, EK_ERR_OUT_OF_MEMORY. */
ek_status ek__safetensors_compare(const ek_safetensors_writer *writer, const size_t *indices,
                                  size_t count);

#endif /* EK_WRITER_H */
