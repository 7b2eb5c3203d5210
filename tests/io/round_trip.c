/*
 * round_trip.c - reads every tensor of the file argv[1] and writes them all to argv[2], for
 * round_trip.py, which compares them by another program's eyes.
 */
#include <stdio.h>
#include <stdlib.h>

#include <evenkeel/safetensors.h>

static ek_status copy_tensor(ek_safetensors_writer *writer, const ek_safetensors *file, size_t i) {
  const ek_safetensors_entry *entry = ek_safetensors_at(file, i);
  const size_t bytes = ek_tensor_bytes(&entry->like);
  ek_tensor host = entry->like;
  host.data = malloc(bytes + 1);
  if (host.data == NULL) return EK_ERR_OUT_OF_MEMORY;
  ek_status status = ek_safetensors_read(&host, file, entry->name);
  if (status == EK_OK) status = ek_safetensors_write(writer, i, host.data, bytes);
  free(host.data);
  return status;
}

static ek_status copy_file(const char *from, const char *to) {
  ek_safetensors *file = NULL;
  ek_safetensors_writer *writer = NULL;
  EK_TRY(ek_safetensors_open(&file, from));
  const size_t count = ek_safetensors_count(file);
  ek_safetensors_entry *entries = calloc(count + 1, sizeof *entries);
  ek_status status = entries == NULL ? EK_ERR_OUT_OF_MEMORY : EK_OK;
  for (size_t i = 0; i < count && status == EK_OK; i++) entries[i] = *ek_safetensors_at(file, i);
  if (status == EK_OK) status = ek_safetensors_create(&writer, to, entries, count, NULL, 0);
  for (size_t i = 0; i < count && status == EK_OK; i++) status = copy_tensor(writer, file, i);
  if (status == EK_OK) status = ek_safetensors_finish(writer);
  ek_safetensors_writer_free(writer);
  free(entries);
  ek_safetensors_free(file);
  return status;
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  const ek_status status = copy_file(argv[1], argv[2]);
  if (status == EK_OK) return 0;
  fprintf(stderr, "%s: %s\n", ek_status_name(status), ek_error_message());
  return status == EK_ERR_UNSUPPORTED ? 77 : 1;
}
