/*
 * header_absent.c - header.h where the library is built without jansson or xxHash: there are no
 * files.
 */
#include "io/header.h"

#include "core/error.h"

static ek_status refuse(void) {
  return ek_error_set(EK_ERR_UNSUPPORTED,
                      "evenkeel was built without jansson or xxHash: it has no files");
}

ek_status ek__header_read(struct ek__header *header, const char *path, const char *text,
                          size_t length, uint64_t data) {
  (void)header, (void)path, (void)text, (void)length, (void)data;
  return refuse();
}

const char *ek__header_value(const struct ek__header *header, const char *key) {
  (void)header, (void)key;
  return NULL;
}

void ek__header_free(struct ek__header *header) { (void)header; }

ek_status ek__header_write(char **text, size_t *length, const struct ek__file_tensor *tensors,
                           size_t count, const ek_safetensors_pair *pairs, size_t pair_count) {
  (void)text, (void)length, (void)tensors, (void)count, (void)pairs, (void)pair_count;
  return refuse();
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
