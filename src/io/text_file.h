/*
 * text_file.h - a text file that appears whole or not at all: it is written through a buffer under
 * another name, and renamed at the end. ek__file_create_beside() gives each writer a name of its
 * own, so that threads and processes may write one path at the same time: the last to end wins.
 */
#ifndef EK_TEXT_FILE_H
#define EK_TEXT_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include <evenkeel/export.h>
#include <evenkeel/status.h>

struct ek__text_file;

ek_status ek__text_begin(struct ek__text_file **file, const char *path);

/* Errors are reported at the end. A piece has at most 1,023 bytes. */
void ek__text_format(struct ek__text_file *file, const char *format, ...) EK_PRINTF(2, 3);
/* Writes a JSON string with its quotes; characters outside ASCII and control characters are
 * escaped, and bytes that are not UTF-8 become U+FFFD. */
void ek__text_json(struct ek__text_file *file, const char *text);

/* Writes `count` bytes unchanged, 64 KiB at most. */
void ek__text_bytes(struct ek__text_file *file, const void *bytes, size_t count);

/* Writes the rest, renames the file, and frees it; after an error the old file is unchanged.
 * `sync`: the file is then on the disk; otherwise a power failure may lose it. */
ek_status ek__text_end(struct ek__text_file *file, bool sync);
/* Frees it; the old file is as it was. */
void ek__text_drop(struct ek__text_file *file);

#endif /* EK_TEXT_FILE_H */
