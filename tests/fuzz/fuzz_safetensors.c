/*
 * fuzz_safetensors.c - any bytes as a file of tensors: it is refused with a message that names it,
 * or every tensor of it is read into memory of its size. Bytes that begin as an object of JSON are
 * also config.json beside a GPT's weights, and alone: these are loaded, and a module is made of it,
 * or both are refused with a message that names that file; and they are the index of a folder.
 */
#define _GNU_SOURCE /* memfd_create */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <evenkeel/adamw.h>
#include <evenkeel/gpt.h>
#include <evenkeel/model_folder.h>
#include <evenkeel/safetensors.h>
#include <evenkeel/trainer.h>
#include <evenkeel/weights.h>

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

/* ---- a configuration ---- */

static struct {
  char folder[64], config[96], weights[96], parts[96], index[128];
  ek_trainer *trainer;
  ek_weights_options options;
  bool no_files;
} bed;

static void close_bed(void) {
  ek_trainer_free(bed.trainer);
  (void)unlink(bed.config);
  (void)unlink(bed.index);
  (void)rmdir(bed.parts);
  (void)unlink(bed.weights);
  (void)rmdir(bed.folder);
}

/* Once: a small GPT, and its weights in a folder. */
static void open_bed(void) {
  ek_gpt_options gpt = EK_GPT_OPTIONS_INIT;
  ek_trainer_options options = EK_TRAINER_OPTIONS_INIT;
  ek_module *module = NULL;
  ek_optimizer *rule = NULL;
  gpt.vocabulary = 7;
  gpt.sequence = 5;
  gpt.width = 8;
  gpt.layers = 1;
  gpt.heads = 2;
  gpt.fused_loss = true;
  (void)snprintf(bed.folder, sizeof bed.folder, "/tmp/evenkeel-fuzz-XXXXXX");
  REQUIRE(mkdtemp(bed.folder) != NULL);
  (void)snprintf(bed.config, sizeof bed.config, "%s/config.json", bed.folder);
  (void)snprintf(bed.weights, sizeof bed.weights, "%s/model.safetensors", bed.folder);
  (void)snprintf(bed.parts, sizeof bed.parts, "%s/parts", bed.folder);
  (void)snprintf(bed.index, sizeof bed.index, "%s/model.safetensors.index.json", bed.parts);
  REQUIRE(mkdir(bed.parts, 0700) == 0);
  REQUIRE(ek_gpt_create(&module, &gpt) == EK_OK && ek_adamw_create(&rule, NULL) == EK_OK);
  REQUIRE(ek_trainer_open(&bed.trainer, "cpu:1", module, NULL, rule, &options) == EK_OK);
  ek_optimizer_free(rule);
  ek_module_free(module);
  bed.options = (ek_weights_options)EK_WEIGHTS_OPTIONS_INIT;
  bed.options.names = ek_gpt_hugging_face(&bed.options.name_count);
  const ek_status saved =
      ek_weights_save(ek_trainer_model(bed.trainer), bed.weights, &bed.options);
  bed.no_files = saved == EK_ERR_UNSUPPORTED; /* built without xxHash */
  REQUIRE(saved == EK_OK || bed.no_files);
  REQUIRE(atexit(close_bed) == 0);
}

static void write_file(const char *path, const uint8_t *data, size_t size) {
  FILE *file = fopen(path, "wb");
  REQUIRE(file != NULL && fwrite(data, 1, size, file) == size && fclose(file) == 0);
}

/* A module of it, or a message; modules of any size are only descriptions. */
static void make_module(void) {
  ek_module *module = NULL;
  ek_error_clear();
  const ek_status status = ek_model_from_folder(&module, bed.folder, NULL);
  REQUIRE((status == EK_OK) == (module != NULL));
  REQUIRE(status == EK_OK || ek_error_message()[0] != '\0');
  ek_module_free(module);
}

/* No file that it may name is there. */
static void load_indexed(const uint8_t *data, size_t size) {
  write_file(bed.index, data, size);
  ek_error_clear();
  const ek_status status = ek_weights_load(ek_trainer_model(bed.trainer), bed.parts, NULL);
  REQUIRE(status == EK_ERR_CORRUPT || status == EK_ERR_NOT_FOUND || status == EK_ERR_IO);
}

static void load_beside(const uint8_t *data, size_t size) {
  if (bed.trainer == NULL) open_bed();
  if (bed.no_files) return;
  write_file(bed.config, data, size);
  make_module();
  load_indexed(data, size);
  ek_error_clear();
  const ek_status status =
      ek_weights_load(ek_trainer_model(bed.trainer), bed.weights, &bed.options);
  REQUIRE(status == EK_OK || status == EK_ERR_INVALID_ARGUMENT || status == EK_ERR_CORRUPT);
  REQUIRE(status == EK_OK || strstr(ek_error_message(), bed.config) != NULL);
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
  if (size > 0 && data[0] == '{') load_beside(data, size);
  return 0;
}
