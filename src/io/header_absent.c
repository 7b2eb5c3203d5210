/*
 * header_absent.c - header.h in a library built without xxHash: every file is refused.
 */
#include "io/header.h"

#include "core/alloc.h"
#include "core/error.h"

static ek_status refuse(void) {
  return ek_error_set(EK_ERR_UNSUPPORTED,
                      "evenkeel was built without xxHash and therefore cannot read or write tensor "
                      "files");
}

ek_status ek__header_read(struct ek__header *header, const char *path, char *text, size_t length,
                          uint64_t data) {
  (void)header, (void)path, (void)length, (void)data;
  ek__free(text);
  return refuse();
}

const char *ek__header_value(const struct ek__header *header, const char *key) {
  (void)header, (void)key;
  return NULL;
}

void ek__header_free(struct ek__header *header) { (void)header; }

ek_status ek__header_length(size_t *length, const struct ek__file_tensor *tensors, size_t count,
                            const ek_safetensors_pair *pairs, size_t pair_count) {
  (void)length, (void)tensors, (void)count, (void)pairs, (void)pair_count;
  return refuse();
}

void ek__header_write(char *header, const struct ek__file_tensor *tensors, size_t count,
                      const ek_safetensors_pair *pairs, size_t pair_count) {
  (void)header, (void)tensors, (void)count, (void)pairs, (void)pair_count;
}

struct ek__checksum *ek__checksum_new(void) {
  return NULL;
}

void ek__checksum_free(struct ek__checksum *sum) { (void)sum; }

void ek__checksum_begin(struct ek__checksum *sum) { (void)sum; }

void ek__checksum_add(struct ek__checksum *sum, const void *data, size_t bytes) {
  (void)sum, (void)data, (void)bytes;
}

uint64_t ek__checksum_end(const struct ek__checksum *sum) {
  (void)sum;
  return 0;
}
