/*
 * checkpoint_internal.h - states in files: checkpoint.c writes them, checkpoint_load.c reads them,
 * checkpoint_folder.c knows the folder.
 */
#ifndef EK_CHECKPOINT_INTERNAL_H
#define EK_CHECKPOINT_INTERNAL_H

#include <evenkeel/checkpoint.h>

/* Keys of a file's pairs. A newer library that writes what older ones must not read has another
 * format. */
#define EK__CHECKPOINT_FORMAT "1"
#define EK__CHECKPOINT_FORMAT_KEY "evenkeel.state"
#define EK__CHECKPOINT_VERSION_KEY "evenkeel.version"
#define EK__CHECKPOINT_POSITION_KEY "evenkeel.position"
#define EK__CHECKPOINT_SCHEDULE_KEY "evenkeel.schedule"

/* What names of a program's extras begin with: no parameter's does, which has no slash. */
#define EK__CHECKPOINT_EXTRA "user/"

/* "FOLDER/step-NUMBER.safetensors", for a step >= 0. EK_ERR_INVALID_ARGUMENT if it is too long. */
ek_status ek__checkpoint_path(char path[EK_CHECKPOINT_PATH_SIZE], const char *folder, int64_t step);

/* The steps of the states in a folder, the last first; of ek__free(). EK_ERR_NOT_FOUND,
 * EK_ERR_IO. */
ek_status ek__checkpoint_list(int64_t **steps, size_t *count, const char *folder);

/* Makes the folder if it is not there. */
ek_status ek__checkpoint_make_folder(const char *folder);

/* Of the states up to `step`, which was just saved, takes away all but the last `keep`: those of
 * later steps are another run's. And what was left of saves that were killed. */
void ek__checkpoint_prune(const char *folder, int64_t step, size_t keep);

#endif /* EK_CHECKPOINT_INTERNAL_H */
