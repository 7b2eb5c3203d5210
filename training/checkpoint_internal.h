/*
 * checkpoint_internal.h - states in files: checkpoint.c writes them, checkpoint_find.c finds and
 * checks them, checkpoint_load.c reads them, checkpoint_folder.c knows the folder.
 */
#ifndef EK_CHECKPOINT_INTERNAL_H
#define EK_CHECKPOINT_INTERNAL_H

#include <inttypes.h>

#include <evenkeel/checkpoint.h>
#include <evenkeel/safetensors.h>
#include <evenkeel/state.h>

/* Keys of a file's pairs. A newer library whose files older ones must not read has another
 * format. */
#define EK__CHECKPOINT_FORMAT "1"
#define EK__CHECKPOINT_FORMAT_KEY "evenkeel.state"
#define EK__CHECKPOINT_VERSION_KEY "evenkeel.version"
#define EK__CHECKPOINT_POSITION_KEY "evenkeel.position"
#define EK__CHECKPOINT_SCHEDULE_KEY "evenkeel.schedule"

/* The prefix of the names of a program's extras: names of parameters have no slash. */
#define EK__CHECKPOINT_EXTRA "user/"

/* Of a part: its number, how many there are, and the number of the save. Under the same key with
 * "/N" the process that wrote part N, and its host. */
#define EK__CHECKPOINT_PART_KEY "evenkeel.part"
#define EK__CHECKPOINT_PART_FORMAT "%" PRIu32 " of %" PRIu32 " of %016" PRIx64
enum { EK__CHECKPOINT_WRITER_SIZE = 128 };

/* Room for the name of a state's file in its folder while it is written. */
enum { EK__CHECKPOINT_NAME_SIZE = 96 };

/* A file of a state, by its name. Compared and sent as bytes, so it has no gaps. */
struct ek__state_name {
  int64_t step;         /* 0 or more */
  uint64_t save;        /* of a part: a random number, the same for all parts of a save; else 0 */
  uint32_t part, parts; /* from 1; 1 of 1 is the whole state */
  uint64_t waits;       /* 1: a part that may be alone yet */
};

/* "FOLDER/step-NUMBER.safetensors", or of a part. EK_ERR_INVALID_ARGUMENT if it is too long. */
ek_status ek__checkpoint_path(char path[EK_CHECKPOINT_PATH_SIZE], const char *folder,
                              const struct ek__state_name *name);

/* What the name of a file says, and what follows it in *rest; false for other names. */
bool ek__checkpoint_name(struct ek__state_name *name, const char **rest, const char *text);

/* The files of states in a folder, the last steps first; of ek__free(). Such a file is a regular
 * file, or a link to one, of a name that ek__checkpoint_path() gives. EK_ERR_NOT_FOUND, EK_ERR_IO,
 * EK_ERR_OUT_OF_MEMORY: never a list that lacks what could not be read. */
ek_status ek__checkpoint_list(struct ek__state_name **names, size_t *count, const char *folder);
/* Whether two files are of one state. */
static inline bool ek__checkpoint_is_of(const struct ek__state_name *name,
                                        const struct ek__state_name *state) {
  return name->step == state->step && name->save == state->save && name->parts == state->parts;
}
/* Into the order of such a list. In it the files of one state are neighbours: */
void ek__checkpoint_sort(struct ek__state_name *names, size_t count);
/* how many they are, of which `names` is the first; */
size_t ek__checkpoint_same(const struct ek__state_name *names, size_t count);
/* and the first part that is not among them, or 0. */
uint32_t ek__checkpoint_missing(const struct ek__state_name *names, size_t same);

/* Makes the folder if it does not exist, and syncs it to the disk. */
ek_status ek__checkpoint_make_folder(const char *folder);

/* What stays in a folder after a save: `keep` and `only` of ek_checkpoint_options. */
struct ek__state_stay {
  size_t keep;
  bool only;
};

/* Whether a state that is saved takes the place of one, or has others removed afterwards. True
 * where that cannot be found out. */
bool ek__checkpoint_replaces(const char *folder, const struct ek__state_name *saved,
                             const struct ek__state_stay *stay);

/* Removes all states up to the one that was just saved, except the last `keep`: states of later
 * steps belong to another run, and go with `only`. Which states are whole is looked up in `all`, a
 * list of all processes' files, or, NULL, in the folder alone. Also removes files of killed
 * saves. */
void ek__checkpoint_prune(const char *folder, const struct ek__state_name *saved,
                          const struct ek__state_stay *stay, const struct ek__state_name *all,
                          size_t all_count);

/* A part, and all others, are on the disks: it waits no longer. EK_ERR_IO. */
ek_status ek__checkpoint_commit(const char *folder, const struct ek__state_name *saved);

/* ---- reading: checkpoint_find.c ---- */

/* The files of one state that this process sees, whole and checked. */
struct ek__state_files {
  ek_world *world; /* or NULL */
  const char *path;
  bool in_folder;               /* `path` is one, whatever there is */
  bool alone;                   /* `path` is a file with a whole state */
  char *folder;                 /* in which the files are */
  struct ek__state_name *names; /* of this process's folder; */
  size_t name_count;
  struct ek__state_name *all; /* of all processes, */
  size_t *ends;               /* in bytes */
  struct ek__state_file *list;
  size_t count;
  char message[EK_CHECKPOINT_PATH_SIZE]; /* of the first damage that this process has found */
};

struct ek__state_file {
  ek_safetensors *file;
  uint32_t part;
  uint64_t place; /* reader.h */
  char path[EK_CHECKPOINT_PATH_SIZE];
};

/*
 * Finds the last whole state in the folder `path`, or the one in the file `path`, over the folders
 * of all processes of a world: that which process 0 sees, or, if it sees none, the next process.
 * Every byte is checked, on each host once. A call of all processes. `files`: zeros, except world,
 * path and in_folder; goes to ek__state_files_close(), also after an error. Without one of these
 * the process has nothing of the state. EK_ERR_NOT_FOUND, EK_ERR_CORRUPT, EK_ERR_MISMATCH,
 * EK_ERR_IO, EK_ERR_OUT_OF_MEMORY.
 */
ek_status ek__state_files_open(struct ek__state_files *files);
void ek__state_files_close(struct ek__state_files *files);

/* The file that has an entry, or NULL. */
const struct ek__state_file *ek__state_file_of(const struct ek__state_files *files,
                                               const char *name);

/* What a file says of the run. Its step is in one part alone. */
ek_status ek__checkpoint_describe(ek_checkpoint_info *info, const ek_safetensors *file,
                                  const char *path);

/* A number of `run`, which is one that a run can have. */
ek_status ek__checkpoint_number(void *number, const ek_safetensors *file, const char *path,
                                const char *name, ek_state_kind kind);

/* ---- saving in the background: checkpoint.c ---- */

/* Waits until a save in the background has ended, and frees its memory; ek_checkpoint_end() still
 * returns the error of the save. In a world a call of all processes, and the status is that of
 * another call, in which one of them has failed. NULL is legal. */
ek_status ek__checkpoint_wait(ek_checkpoint_write *write);

/* If all processes have written their parts of such a save, process 0 begins to end the file; waits
 * for no disk. Called at the beginning of a call that all processes make; the status is that of
 * ek__checkpoint_wait(). NULL is legal. */
ek_status ek__checkpoint_go_on(ek_checkpoint_write *write);

#endif /* EK_CHECKPOINT_INTERNAL_H */
