/*
 * weight_files.h - the files that a path to weights means: one file, or a folder with
 * model.safetensors, or, without it, with model.safetensors.index.json and the files that it names.
 */
#ifndef EK_WEIGHT_FILES_H
#define EK_WEIGHT_FILES_H

#include <stdbool.h>
#include <stddef.h>

#include <evenkeel/safetensors.h>

struct ek__weight_files {
  char *path; /* of the file or of the index, for messages */
  ek_safetensors **files;
  size_t count, capacity;
};

bool ek__is_folder(const char *path);
/* folder/name, for ek__free(). */
ek_status ek__path_in(char **path, const char *folder, const char *name);

/*
 * Opens them all, with the errors of safetensors.h: close it in any case. An index that is not
 * JSON, has no weight_map, or names something outside its folder is EK_ERR_CORRUPT.
 */
ek_status ek__weight_files_open(struct ek__weight_files *set, const char *path);
void ek__weight_files_close(struct ek__weight_files *set);

/* Compares the checksums of those files that carry them. */
ek_status ek__weight_files_check(const struct ek__weight_files *set);

/* The file that has the tensor, and its entry, NULL if no file has it. EK_ERR_CORRUPT if two files
 * of an index have it: which of them a reader takes would depend on the reader. */
ek_status ek__weight_files_find(const ek_safetensors_entry **entry, const ek_safetensors **file,
                                const struct ek__weight_files *set, const char *name);

#endif /* EK_WEIGHT_FILES_H */
