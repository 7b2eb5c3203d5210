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

/* What fails is said at the end. A piece has at most 1,023 bytes. */
void ek__text_format(struct ek__text_file *file, const char *format, ...) EK_PRINTF(2, 3);
/* As a string of JSON, with its quotes; bytes that are not ASCII, and controls, as they must be:
 * what is not UTF-8 becomes U+FFFD. */
void ek__text_json(struct ek__text_file *file, const char *text);

/* So many bytes as they are, 64 KiB at most. */
void ek__text_bytes(struct ek__text_file *file, const void *bytes, size_t count);

/* Writes the rest, gives the file its name, and frees it; in an error the old file is as it was.
 * `sync`: it is on the disk then, else a power failure may take it. */
ek_status ek__text_end(struct ek__text_file *file, bool sync);
/* Frees it; the old file is as it was. */
void ek__text_drop(struct ek__text_file *file);

#endif /* EK_TEXT_FILE_H */
