/*
 * round_trip.c - reads every tensor of the file argv[1] and writes them all to argv[2], for
 * round_trip.py, which compares them by another program's eyes.
 */
#include "program.h"

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  ek_safetensors *file = NULL;
  ek_safetensors_writer *writer = NULL;
  OK(ek_safetensors_open(&file, argv[1]));
  const size_t count = ek_safetensors_count(file);
  ek_safetensors_entry *entries = calloc(count + 1, sizeof *entries);
  REQUIRE(entries != NULL);
  for (size_t i = 0; i < count; i++) entries[i] = *ek_safetensors_at(file, i);
  OK(ek_safetensors_create(&writer, argv[2], entries, count, NULL, 0));
  for (size_t i = 0; i < count; i++) {
    const size_t bytes = ek_tensor_bytes(&entries[i].like);
    ek_tensor host = entries[i].like;
    host.data = malloc(bytes + 1);
    REQUIRE(host.data != NULL);
    OK(ek_safetensors_read(&host, file, entries[i].name));
    OK(ek_safetensors_write(writer, i, host.data, bytes));
    free(host.data);
  }
  OK(ek_safetensors_finish(writer));
  ek_safetensors_writer_free(writer);
  free(entries);
  ek_safetensors_free(file);
  return 0;
}
