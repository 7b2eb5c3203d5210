/*
 * checkpoint.h - the state of a training run in files, from which it goes on as if it had not
 * stopped: on other devices, in another mode, after a crash.
 *
 *     ek_checkpoint_options options = EK_CHECKPOINT_OPTIONS_INIT;
 *     options.position = position;       // of the program in its data
 *     options.keep = 3;
 *     EK_TRY(ek_checkpoint_save(model, "run", &options));
 *
 * and in another process, with the model and its optimizer open:
 *
 *     ek_checkpoint_info info;
 *     EK_TRY(ek_checkpoint_load(&info, model, "run"));
 *     position = info.position;
 *
 * A state is one file, FOLDER/step-NUMBER.safetensors: every entry of state.h by its name (the
 * parameters under theirs, so that any program that reads the format can take them), checksums of
 * all, and the position. The file appears when it is whole and on the disk (safetensors.h), so the
 * folder holds whole states only, also after a crash or a loss of power. Before a save removes or
 * replaces an older state it reads its own file again and compares the header and all checksums.
 * Saves may overlap, also those of one model in the background. If they are of one step, the state
 * of the save that ends last stays. A folder belongs to one run: the
 * last state is that of the highest step. A file with another name, or that is not a regular file,
 * does not count as a state and is left alone. The name of step N has twelve digits, or more
 * without a leading zero. FOLDER/step-NUMBER.safetensors.tmp and .safetensors.K.tmp are files of
 * saves that are under way; the next save removes those of processes that were killed.
 *
 * In a world of several processes (world.h) all processes make these calls, each with its own path
 * of the folder. Process 0 says what is saved: position, `keep` and extras are its own.
 *
 * Processes that share a folder write one file in it, each a region, all at the same time. If all
 * do, the file is that of one process, byte for byte. If folders are on disks of several machines,
 * each of them gets a file. Where each process has all of the state (mode replicated, or shares
 * inside processes), that is the whole state on each disk. In other modes it is a part, whole
 * entries and all extras, with the name
 *
 *     step-000000000012-00001-of-00002-RANDOM.safetensors     RANDOM: 16 digits, those of the save
 *
 * and a load needs all parts, each seen by some process, or copied into one folder. A part that
 * ends in ".waiting" is whole as well; the save that wrote it was killed before all parts were
 * there, or just after. A process that cannot write into a folder that it shares leaves that to the
 * others.
 *
 * A load takes the last whole state in the folder of process 0, or, if it has none, of the next
 * process that has one. Each process reads the files that it sees; what it does not see, another
 * one sends. Any number of processes, in any mode, reads what any other number has written. Files
 * of one name that are not of one save are EK_ERR_MISMATCH. A part that is missing is EK_ERR_IO,
 * also if there are older states: the message says which process wrote it, on which host.
 *
 * A file gets its name after all regions are on the disk: whichever process is killed, and
 * whenever, there are whole states. Where each disk gets the whole state, a save that fails on one
 * may have succeeded on others. The world must outlive a save in the background.
 *
 * state.h says when a run goes on bit for bit as if uninterrupted, and when only to rounding.
 */
#ifndef EVENKEEL_CHECKPOINT_H
#define EVENKEEL_CHECKPOINT_H

#include <evenkeel/data_parallel_model.h>
#include <evenkeel/schedule.h>

EK_BEGIN_DECLARATIONS

/* The longest path of a state, with a final NUL. */
#define EK_CHECKPOINT_PATH_SIZE 4096

/*
 * A tensor that a program saves with the state, such as that of a sampler or of a shuffle. It is in
 * host memory, of any type, and in the file as "user/NAME":
 *
 *     const int64_t four[] = {4};
 *     ek_checkpoint_extra sampler = {.name = "sampler"};
 *     EK_TRY(ek_tensor_host(&sampler.value, numbers, EK_I64, 1, four));
 *     options.extras = &sampler;
 *     options.extra_count = 1;
 *     EK_TRY(ek_checkpoint_save(model, "run", &options));
 *
 * A load skips it, and the program reads it from the file that was loaded (safetensors.h):
 *
 *     EK_TRY(ek_safetensors_open(&file, info.path));
 *     const ek_status status = ek_safetensors_read(&sampler, file, "user/sampler");
 *     ek_safetensors_free(file);
 */
typedef struct ek_checkpoint_extra {
  const char *name; /* of its own: not empty */
  ek_tensor value;
} ek_checkpoint_extra;

typedef struct ek_checkpoint_options {
  size_t size;
  int64_t position; /* of the program in its data; given back by a load */
  size_t keep;      /* after a save only the last `keep` states up to its step stay; 0: all */
  const ek_checkpoint_extra *extras; /* read before the call returns; NULL if there are none */
  size_t extra_count;
  bool only; /* a save removes all other states, those of later steps too: a folder of the best */
} ek_checkpoint_options;
#define EK_CHECKPOINT_OPTIONS_INIT                                                                 \
  {                                                                                                \
    .size = sizeof(ek_checkpoint_options), .position = 0, .keep = 0, .extras = NULL,               \
    .extra_count = 0, .only = false                                                                \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_checkpoint_options_init(ek_checkpoint_options *options, size_t size);

typedef struct ek_checkpoint_info {
  /* The file, or the first part that this process sees; if it sees none, as another process has
   * it. */
  char path[EK_CHECKPOINT_PATH_SIZE];
  int64_t step, position;
  /* An optimizer was open, with a schedule that is no function of the program's: to compare with or
   * to go on with. */
  bool has_schedule;
  ek_schedule schedule;
} ek_checkpoint_info;

/*
 * Writes all of the state. Makes the folder if it is not there. Call it between steps: what a step
 * has accumulated is not saved. A save that fails leaves the folder's states and the model as they
 * were, and training may go on. With `keep` or `only`, or if the folder already has a state of this
 * step, the new file is read back once.
 * EK_ERR_IO           the system refuses: a full disk, a path that is a file, a folder that cannot
 *                     be written; or the disk does not hold the bytes that were written to it
 * EK_ERR_OUT_OF_MEMORY  host memory or a thread was refused
 * EK_ERR_NOT_FOUND    the folder cannot be made, because the one that it is in is not there
 * EK_ERR_INVALID_ARGUMENT  an extra has no name, that of another, one that is not UTF-8, or is not
 *                     in host memory; a step of INT64_MAX, which no load takes
 * EK_ERR_TORN         the model's last update failed halfway
 * EK_ERR_UNSUPPORTED  `plan` devices have no state to save
 */
EK_API EK_CHECKED ek_status ek_checkpoint_save(const ek_data_parallel_model *model,
                                               const char *folder,
                                               const ek_checkpoint_options *options);

/*
 * The same in the background: copies the state into host memory (as many bytes as the file has, or
 * in a world as this process's region of it) and returns; a thread of its own writes the file. The
 * model may go on, or be freed meanwhile. ek_checkpoint_end() waits until the file is written,
 * returns the result, and frees *write; NULL is legal. In a world of several processes the file
 * gets its name in ek_checkpoint_end(), a call of all of them; a trainer's also after the first
 * step for which all processes have written their regions.
 * In a child of fork() it returns EK_ERR_STATE and frees the child's copy; the parent's save goes
 * on.
 */
typedef struct ek_checkpoint_write ek_checkpoint_write;
EK_API EK_CHECKED ek_status ek_checkpoint_begin(ek_checkpoint_write **write,
                                                const ek_data_parallel_model *model,
                                                const char *folder,
                                                const ek_checkpoint_options *options);
EK_API EK_CHECKED ek_status ek_checkpoint_end(ek_checkpoint_write *write);

/*
 * Finds the last state in a folder whose bytes are those that were written. States with wrong bytes
 * are skipped; a state that cannot be read is an error, even if there are older ones.
 * EK_ERR_NOT_FOUND  no folder, or no state in it that is whole
 * EK_ERR_IO         the folder or a state cannot be read, or the last state lacks a part: move its
 *                   files away to go on from the state before it
 * EK_ERR_OUT_OF_MEMORY
 */
EK_API EK_CHECKED ek_status ek_checkpoint_latest(ek_checkpoint_info *info, const char *folder);

/*
 * Reads a state into a model and its optimizer: `path` is a file, or a folder, of which it takes
 * the last state; of a part the others in its folder count as well. The file may come from other
 * devices, another mode, another type (f32, f64).
 * Without an optimizer the model takes what it has and passes over the rest. A dynamic loss scale
 * that the file does not have begins anew; one that the model does not have is passed over. *info
 * may be NULL. Everything is looked at before anything is written; a failure after that leaves the
 * model torn, and a second load mends it.
 * EK_ERR_NOT_FOUND  no such file, or no whole state in the folder
 * EK_ERR_CORRUPT    a damaged file
 * EK_ERR_IO, EK_ERR_OUT_OF_MEMORY  as for ek_checkpoint_latest()
 * EK_ERR_MISMATCH   a state of another model or rule, or of a run with other parameters frozen; the
 *                   message names the first difference. A model is another one if a fact that its
 *                   modules declare (ek_module_ops.facts: the number of heads, a rotary base) has
 *                   another value. Or processes see different states under one name
 * EK_ERR_UNSUPPORTED  a state of a newer library
 */
EK_API EK_CHECKED ek_status ek_checkpoint_load(ek_checkpoint_info *info,
                                               ek_data_parallel_model *model, const char *path);

EK_END_DECLARATIONS

#endif /* EVENKEEL_CHECKPOINT_H */
