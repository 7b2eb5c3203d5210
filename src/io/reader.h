/*
 * reader.h - a file of tensors from the inside, for several processes that read it.
 */
#ifndef EK_READER_H
#define EK_READER_H

#include <evenkeel/safetensors.h>

/* ek_safetensors_check() of every `of`-th tensor, from number `index` on. */
ek_status ek__safetensors_check_some(const ek_safetensors *file, size_t index, size_t of);

/* *header: a hash of the checksum in the file's header; files with the same one were written with
 * the same bytes. *place: processes of one host with the same one have the same file open.
 * EK_ERR_IO. */
ek_status ek__safetensors_identify(uint64_t *header, uint64_t *place, const ek_safetensors *file);

#endif /* EK_READER_H */
