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

/* As ek_safetensors_finish(). With `read_back` the file gets its name only after it was read again
 * and its header and all checksums were found right; EK_ERR_IO where they are not. */
ek_status ek__safetensors_finish(ek_safetensors_writer *writer, bool read_back);

#endif /* EK_WRITER_H */
