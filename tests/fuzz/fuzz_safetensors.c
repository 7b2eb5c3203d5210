/*
 * fuzz_safetensors.c - any bytes as a file of tensors: it is refused with a message that names it,
 * or every tensor of it is read into memory of its size.
 */
#define _GNU_SOURCE /* memfd_create */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <evenkeel/safetensors.h>

#define REQUIRE(condition)                                                                         \
  do {                                                                                             \
    if (!(condition)) abort();                                                                     \
  } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_all(const ek_safetensors *file, size_t size) {
  uint64_t held = 0;
  for (size_t i = 0; i < ek_safetensors_count(file); i++) {
    const ek_safetensors_entry *entry = ek_safetensors_at(file, i);
    REQUIRE(ek_safetensors_find(file, entry->name) == entry);
    if (entry->like.type == 0) continue;
    const size_t bytes = ek_tensor_bytes(&entry->like);
    held += bytes;
    REQUIRE(held <= size);
    ek_tensor host = entry->like;
    host.data = malloc(bytes + 1);
    REQUIRE(host.data != NULL);
    const ek_status status = ek_safetensors_read(&host, file, entry->name);
    REQUIRE(status == EK_OK || status == EK_ERR_CORRUPT);
    free(host.data);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  ek_safetensors *file = NULL;
  char path[64];
  const int memory = memfd_create("fuzz", MFD_CLOEXEC);
  REQUIRE(memory >= 0 && write(memory, data, size) == (ssize_t)size);
  (void)snprintf(path, sizeof path, "/proc/self/fd/%d", memory);
  ek_error_clear();
  const ek_status status = ek_safetensors_open(&file, path);
  if (status == EK_OK) {
    read_all(file, size);
  } else {
    REQUIRE(status == EK_ERR_CORRUPT || status == EK_ERR_UNSUPPORTED);
    REQUIRE(status == EK_ERR_UNSUPPORTED || strstr(ek_error_message(), path) != NULL);
  }
  ek_safetensors_free(file);
  (void)close(memory);
  return 0;
}
