/*
 * header.h - the header of a safetensors file: read from its text, and written as text.
 *
 * The text is JSON: {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...,
 * "__metadata__": {"KEY": "VALUE", ...}}; offsets count from the end of the header. The library
 * writes and checks two additions, both as pairs of __metadata__: a checksum of each tensor, and
 * one of the header's text, computed with sixteen zeros in its own place.
 *
 * header_json.c reads, header_write.c writes, checksum.c sums with xxHash; without it
 * header_absent.c refuses.
 */
#ifndef EK_HEADER_H
#define EK_HEADER_H

#include <evenkeel/safetensors.h>

/* As the format's reference reader has it. */
#define EK__HEADER_LIMIT 100000000u

struct ek__file_tensor {
  ek_safetensors_entry entry; /* its name is the text's */
  const char *type_name;      /* as the file calls it: the text's */
  uint64_t first, bytes;      /* from the end of the header */
  uint64_t checksum;
  bool has_checksum;
};

struct ek__header {
  char *text;                      /* names, keys and values are in it */
  struct ek__file_tensor *tensors; /* in the order of their bytes */
  size_t count;
  ek_safetensors_pair *pairs; /* in the order of their keys */
  size_t pair_count;
  bool has_checksums; /* the header's own, and one of every tensor */
};

/*
 * Reads `length` bytes of text of the file `path`, with a NUL after them; `data` bytes follow them
 * in the file. Takes `text`, which is of ek__new(), also where it fails. EK_ERR_CORRUPT for what
 * the text says; EK_ERR_OUT_OF_MEMORY.
 */
ek_status ek__header_read(struct ek__header *header, const char *path, char *text, size_t length,
                          uint64_t data);
const char *ek__header_value(const struct ek__header *header, const char *key);
void ek__header_free(struct ek__header *header);

/*
 * Checks what a header will say, and gives the length of its text, which is a multiple of 8 and
 * depends on no checksum. EK_ERR_INVALID_ARGUMENT for names and pairs that cannot stand in one,
 * EK_ERR_TYPE, EK_ERR_OUT_OF_MEMORY.
 */
ek_status ek__header_length(size_t *length, const struct ek__file_tensor *tensors, size_t count,
                            const ek_safetensors_pair *pairs, size_t pair_count);
/* Writes that many bytes, of the same tensors and pairs. */
void ek__header_write(char *header, const struct ek__file_tensor *tensors, size_t count,
                      const ek_safetensors_pair *pairs, size_t pair_count);

/* ---- checksums of what comes in pieces ---- */

struct ek__checksum;

/* NULL if there is no memory. */
struct ek__checksum *ek__checksum_new(void);
void ek__checksum_free(struct ek__checksum *sum);
void ek__checksum_begin(struct ek__checksum *sum);
void ek__checksum_add(struct ek__checksum *sum, const void *data, size_t bytes);
uint64_t ek__checksum_end(const struct ek__checksum *sum);

#endif /* EK_HEADER_H */
