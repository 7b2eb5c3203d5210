/*
 * writer.h - a writer of tensors from the inside, for callers that choose the place of bytes in the
 * file. ek_safetensors_write() is the two functions in one: sum the bytes, and put them.
 */
#ifndef EK_WRITER_H
#define EK_WRITER_H

#include <evenkeel/safetensors.h>

/* How a writer lays entries out: end to end, entry number order[0] first. Entries that are given in
 * this order stay in it. From pages of memory that are alike (file.h) they are written fastest. */
void ek__safetensors_order(size_t *order, const ek_safetensors_entry *entries, size_t count);

/* Where the first entry is in the file. */
uint64_t ek__safetensors_begin(const ek_safetensors_writer *writer);

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

/* A file of ek__file_create_beside() that has no writer yet, or the same as another process sees
 * it. */
struct ek__writer_file {
  char *path;
  int file; /* -1: it is not open, or a writer has it */
};

/* Writes a random token into the file, for processes that may see it. The header takes its
 * place. */
ek_status ek__writer_file_offer(const struct ek__writer_file *made, const void *token);

/* Whether the file at there->path is the one with the token, and may be written: then it is open. A
 * file that cannot be read counts as that one: this process leaves it to the others. */
enum ek__writer_sight { EK__SIGHT_NONE, EK__SIGHT_READ, EK__SIGHT_WRITE };
enum ek__writer_sight ek__writer_file_look(struct ek__writer_file *there, const void *token);

/* Closes it, if no writer has it, and frees its path. */
void ek__writer_file_close(struct ek__writer_file *made, bool remove);

/* ek_safetensors_create() in a file that is there. */
ek_status ek__safetensors_create(ek_safetensors_writer **writer, struct ek__writer_file *made,
                                 const char *path, const ek_safetensors_entry *entries,
                                 size_t count, const ek_safetensors_pair *pairs,
                                 size_t pair_count);

/* A writer for the same entries in the same order, which begin at the same place. */
ek_status ek__safetensors_join(ek_safetensors_writer **writer, struct ek__writer_file *there,
                               uint64_t begin, const ek_safetensors_entry *entries, size_t count);

/* What a joined writer has put is on the disk. */
ek_status ek__safetensors_sync(ek_safetensors_writer *writer);

/* The checksum of an entry whose bytes were all given, to tell the process that created the file;
 * there the entry then counts as given. */
uint64_t ek__safetensors_sum_of(const ek_safetensors_writer *writer, size_t index);
void ek__safetensors_set_sum(ek_safetensors_writer *writer, size_t index, uint64_t sum);

/* Reads entries first .. last - 1 back and compares their checksums. EK_ERR_IO,
 * EK_ERR_OUT_OF_MEMORY. */
ek_status ek__safetensors_compare(const ek_safetensors_writer *writer, size_t first, size_t last);

#endif /* EK_WRITER_H */
