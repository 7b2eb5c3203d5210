/*
 * checkpoint_internal.h - states in files: checkpoint.c writes them, checkpoint_load.c reads them,
 * checkpoint_folder.c knows the folder.
 */
#ifndef EK_CHECKPOINT_INTERNAL_H
#define EK_CHECKPOINT_INTERNAL_H

#include <evenkeel/checkpoint.h>

/* Keys of a file's pairs. A newer library whose files older ones must not read has another
 * format. */
#define EK__CHECKPOINT_FORMAT "1"
#define EK__CHECKPOINT_FORMAT_KEY "evenkeel.state"
#define EK__CHECKPOINT_VERSION_KEY "evenkeel.version"
#define EK__CHECKPOINT_POSITION_KEY "evenkeel.position"
#define EK__CHECKPOINT_SCHEDULE_KEY "evenkeel.schedule"

/* The prefix of the names of a program's extras: names of parameters have no slash. */
#define EK__CHECKPOINT_EXTRA "user/"

/* Room for the name of a state's file in its folder while it is written. */
enum { EK__CHECKPOINT_NAME_SIZE = 80 };

/* "FOLDER/step-NUMBER.safetensors", for a step >= 0. EK_ERR_INVALID_ARGUMENT if it is too long. */
ek_status ek__checkpoint_path(char path[EK_CHECKPOINT_PATH_SIZE], const char *folder, int64_t step);

/* The steps of the states in a folder, the last first; of ek__free(). A state is a regular file, or
 * a link to one, of a name that ek__checkpoint_path() gives. EK_ERR_NOT_FOUND, EK_ERR_IO,
 * EK_ERR_OUT_OF_MEMORY: never a list that lacks what could not be read. */
ek_status ek__checkpoint_list(int64_t **steps, size_t *count, const char *folder);

/* Makes the folder if it does not exist, and syncs it to the disk. */
ek_status ek__checkpoint_make_folder(const char *folder);

/* Whether a state of `step` that is saved with `keep` takes the place of one, or has others removed
 * afterwards. True where that cannot be found out. */
bool ek__checkpoint_replaces(const char *folder, int64_t step, size_t keep);

/* Removes all states up to `step`, which was just saved, except the last `keep`: states of later
 * steps belong to another run. Also removes files of killed saves. */
void ek__checkpoint_prune(const char *folder, int64_t step, size_t keep);

/* Waits until a save in the background has ended, and frees its memory; ek_checkpoint_end() still
 * returns the error of the save. In a world a call of all processes, and the status is that of
 * another call, in which one of them has failed. NULL is legal. */
ek_status ek__checkpoint_wait(ek_checkpoint_write *write);

/* If all processes have written their parts of such a save, process 0 begins to end the file; waits
 * for no disk. Called at the beginning of a call that all processes make; the status is that of
 * ek__checkpoint_wait(). NULL is legal. */
ek_status ek__checkpoint_go_on(ek_checkpoint_write *write);

#endif /* EK_CHECKPOINT_INTERNAL_H */
