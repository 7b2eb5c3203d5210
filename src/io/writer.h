/*
 * writer.h - a writer of tensors from the inside: for who cares where bytes go.
 */
#ifndef EK_WRITER_H
#define EK_WRITER_H

#include <evenkeel/safetensors.h>

/* Where entry number `index` begins in the file. From pages of memory that lie alike (file.h) it is
 * written fastest. */
uint64_t ek__safetensors_place(const ek_safetensors_writer *writer, size_t index);

#endif /* EK_WRITER_H */
