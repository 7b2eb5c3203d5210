/*
 * safetensors.h - tensors in files that other programs read and write as well.
 *
 * A file in the format safetensors is a short JSON header (names, types, shapes, offsets, and pairs
 * of strings for the writer's own use) followed by the bytes of the tensors, little-endian, rows
 * first: https://huggingface.co/docs/safetensors. Reading:
 *
 *     ek_safetensors *file = NULL;
 *     EK_TRY(ek_safetensors_open(&file, "model.safetensors"));
 *     for (size_t i = 0; i < ek_safetensors_count(file) && status == EK_OK; i++) {
 *       const ek_safetensors_entry *entry = ek_safetensors_at(file, i);
 *       ...                                    // entry->name, entry->like.shape
 *       status = ek_safetensors_read(&host, file, entry->name);
 *     }
 *     ek_safetensors_free(file);
 *
 * Writing: name all tensors first, then write them in any order; the file appears when finished:
 *
 *     EK_TRY(ek_safetensors_create(&writer, "model.safetensors", entries, 2, NULL, 0));
 *     for (size_t i = 0; i < 2 && status == EK_OK; i++) {
 *       status = ek_safetensors_write(writer, i, data[i], bytes[i]);
 *     }
 *     if (status == EK_OK) status = ek_safetensors_finish(writer);
 *     ek_safetensors_writer_free(writer);      // not finished: leaves nothing behind
 *
 * A file that the library writes carries a checksum (XXH3, 64 bits) of each tensor and one of the
 * header, as pairs of the header: "evenkeel.xxh3/NAME" and "evenkeel.xxh3". Other programs ignore
 * them. Checksums in a file are compared: that of the header when the file is opened, that of a
 * tensor whenever it is read. A file with checksums of tensors but not of its header is refused.
 *
 * Files are not trusted. Opening checks every length, name, type, shape and offset, that no two
 * tensors share a byte, and that every byte belongs to a tensor; any fault is EK_ERR_CORRUPT, with
 * the file and the tensor in the message. Opening allocates memory for the header alone, which
 * cannot be longer than the file; if that fails, the error is EK_ERR_OUT_OF_MEMORY, never
 * EK_ERR_CORRUPT. A header may nest 64 levels deep.
 *
 * Functions return EK_ERR_UNSUPPORTED if the library was built without xxHash.
 */
#ifndef EVENKEEL_SAFETENSORS_H
#define EVENKEEL_SAFETENSORS_H

#include <evenkeel/tensor.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_safetensors ek_safetensors;
typedef struct ek_safetensors_writer ek_safetensors_writer;

typedef struct ek_safetensors_entry {
  const char *name; /* UTF-8, not empty */
  ek_tensor like;   /* its type and shape, as a host tensor without data */
} ek_safetensors_entry;

typedef struct ek_safetensors_pair {
  const char *key, *value; /* UTF-8 */
} ek_safetensors_pair;

/* ---- reading ---- */

/*
 * Opens a file and checks all of its header. Threads may read tensors of one file at once.
 * EK_ERR_NOT_FOUND  there is no such file
 * EK_ERR_IO         the system refuses to read it
 * EK_ERR_CORRUPT    it is not a safetensors file, or it is damaged
 * EK_ERR_OUT_OF_MEMORY
 */
EK_API EK_CHECKED ek_status ek_safetensors_open(ek_safetensors **file, const char *path);
EK_API void ek_safetensors_free(ek_safetensors *file);

/* Tensors, in the order of their bytes; 0 for NULL. */
EK_API size_t ek_safetensors_count(const ek_safetensors *file);
/* A loan for the life of the file; NULL if `index` is out of range. Type 0 stands for a type that
 * the library does not have. */
EK_API const ek_safetensors_entry *ek_safetensors_at(const ek_safetensors *file, size_t index);
/* NULL: no tensor has this name. */
EK_API const ek_safetensors_entry *ek_safetensors_find(const ek_safetensors *file,
                                                       const char *name);
/* The value of a pair of the header, a loan for the life of the file; NULL: no such pair. */
EK_API const char *ek_safetensors_value(const ek_safetensors *file, const char *key);
/* Whether header and tensors carry the library's checksums. */
EK_API bool ek_safetensors_has_checksums(const ek_safetensors *file);

/*
 * Reads a tensor into host memory of its shape, or flat: rank 1 with as many elements. Numbers in
 * f16, bf16, f32 and f64 are converted to a host tensor of f32 or f64 (exactly; f64 to f32 rounds
 * to nearest, ties to even); any other type must be that of the host tensor. After a failure the
 * contents of the host memory are undefined.
 * EK_ERR_NOT_FOUND   no such tensor
 * EK_ERR_TYPE, EK_ERR_SHAPE  the host tensor does not fit
 * EK_ERR_CORRUPT     the bytes differ from those written, or the file has become shorter
 */
EK_API EK_CHECKED ek_status ek_safetensors_read(ek_tensor *host, const ek_safetensors *file,
                                                const char *name);

/*
 * Elements first, first + 1, ... of a tensor, row after row, as many as a host tensor of rank 1
 * has: a large tensor in pieces. The same conversions and errors, and EK_ERR_SHAPE for a range that
 * the tensor does not have. No checksum is compared: ek_safetensors_check() does it for the file.
 */
EK_API EK_CHECKED ek_status ek_safetensors_read_part(ek_tensor *host, const ek_safetensors *file,
                                                     const char *name, int64_t first);

/* Reads all bytes of the file and compares the checksums that it carries. EK_ERR_CORRUPT. */
EK_API EK_CHECKED ek_status ek_safetensors_check(const ek_safetensors *file);

/* ---- writing ---- */

/*
 * Begins a file that will replace `path` when it is finished. Until then its bytes are in a new
 * file `path`.tmp, or `path`.1.tmp and so on if another writer has that name. A file that a killed
 * process left under such a name is removed; a link, a pipe or a folder there is left alone, and
 * the next name taken. Of two writers to one path, the last to finish wins. Entries and pairs are
 * copied. Tensors are laid out by falling size of their type, so that all are aligned.
 * EK_ERR_INVALID_ARGUMENT  a name is empty, not UTF-8, twice there, or begins with "__"; a key or a
 *                          value is not UTF-8, or a key is twice there
 * EK_ERR_IO                the system refuses to write there; `path` is a folder, pipe or device
 */
EK_API EK_CHECKED ek_status ek_safetensors_create(ek_safetensors_writer **writer, const char *path,
                                                  const ek_safetensors_entry *entries, size_t count,
                                                  const ek_safetensors_pair *pairs,
                                                  size_t pair_count);

/*
 * Writes the next `bytes` of tensor `index`, which may come in pieces. Different threads may write
 * different tensors at once. After a failure the file cannot be finished.
 * EK_ERR_SHAPE  more bytes than the tensor has
 */
EK_API EK_CHECKED ek_status ek_safetensors_write(ek_safetensors_writer *writer, size_t index,
                                                 const void *data, size_t bytes);

/*
 * Writes the header, syncs the file, renames it to `path` and syncs the folder, in this order. A
 * reader finds at `path` either the old file or all of the new one, even after a loss of power.
 * EK_ERR_STATE  a tensor is not complete, a write has failed, or the file is already finished
 * EK_ERR_IO     the system refused; `path` is unchanged, unless the message says that only the
 *               folder could not be synced
 */
EK_API EK_CHECKED ek_status ek_safetensors_finish(ek_safetensors_writer *writer);

/* Frees the writer, and removes an unfinished file. NULL is legal. In a child of fork() it leaves
 * the file to the parent; the other calls return EK_ERR_STATE there. */
EK_API void ek_safetensors_writer_free(ek_safetensors_writer *writer);

EK_END_DECLARATIONS

#endif /* EVENKEEL_SAFETENSORS_H */
