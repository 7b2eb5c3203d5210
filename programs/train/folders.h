/*
 * folders.h - what a run leaves on the disk, and whether it can.
 */
#ifndef TRAIN_FOLDERS_H
#define TRAIN_FOLDERS_H

#include "settings.h"

/* Whether --out, --save and --best can be written at the end of a long run. EK_ERR_INVALID_ARGUMENT
 * where the command line should be another one; EK_ERR_IO, EK_ERR_NOT_FOUND. */
ek_status folders_check(const struct settings *settings);

/* Copies the files of the tokenizer, where there are any, between folders of models; what is there
 * already stays. */
ek_status folders_copy_tokenizer(const char *out, const char *from);

/* PREFIX.prom and PREFIX.jsonl. */
ek_status folders_open_metrics(ek_metrics **metrics, ek_group *group, const char *prefix);

#endif
