/*
 * commands.h - the subcommands. Each writes its report and returns the program's exit code.
 */
#ifndef BENCH_COMMANDS_H
#define BENCH_COMMANDS_H

#include "options.h"
#include "run.h"

enum exit_code run_memory(const struct options *options);
enum exit_code run_max_batch(const struct options *options);
enum exit_code run_step(const struct options *options);
enum exit_code run_techniques(const struct options *options);
enum exit_code run_fit(const struct options *options);
enum exit_code run_devices(const struct options *options);

/* ---- what they share ---- */

/*
 * Looks at everything that can be wrong before time is spent: device strings, the scatter, the
 * files to write, the data; fills `text`. Says what is wrong.
 */
enum exit_code prepare(struct text *text, const struct options *options);

/* Of that the files, so that an hour's result is not lost to a folder that does not exist. */
bool prepare_outputs(const struct options *options);

/* The task of one mode on one of the device strings; `text` as prepare() filled it. */
struct task make_task(const struct options *options, const struct text *text, const char *spec,
                      ek_mode mode, enum precision precision);

/*
 * Compares the measured losses of all runs that ended with those of the first in their precision.
 * Says who disagrees: EXIT_DISAGREE; a loss that is not finite is EXIT_ERROR.
 */
enum exit_code compare_losses(const struct run *runs, size_t count, const struct options *options);

/* The code that counts, of two: see enum exit_code. */
enum exit_code worse(enum exit_code left, enum exit_code right);

#endif
