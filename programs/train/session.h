/*
 * session.h - one call of evenkeel-train: data, devices, the run, the folder that it leaves.
 */
#ifndef TRAIN_SESSION_H
#define TRAIN_SESSION_H

#include "settings.h"

/* Says what is wrong, and returns the program's exit code. The world is a loan. */
enum exit_code session_run(const struct settings *settings, ek_world *world);

#endif
