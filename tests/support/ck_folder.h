/*
 * ck_folder.h - a folder for the files of a test.
 */
#ifndef CK_FOLDER_H
#define CK_FOLDER_H

#include <stdbool.h>
#include <stddef.h>

#include <evenkeel/status.h>

enum { CK_FOLDER_SIZE = 64 };

/* Makes an empty one: where it can be, in memory. */
void ck_folder_make(char folder[CK_FOLDER_SIZE]);

/* Removes it; the test fails if a file was left behind. */
void ck_folder_remove(const char *folder);

/* One that goes when the test ends, and the path of a file in it, which goes before it if it is
 * there; the test fails if another file was left behind. */
char *ck_folder(void);
const char *ck_file(const char *folder, const char *name);
/* The same of the state that is saved after a step. */
const char *ck_state_file(const char *folder, int step);

/* A file of these bytes. */
void ck_write_file(const char *path, const void *bytes, size_t size);
/* Its bytes, kept, and a zero byte after them; NULL if it is not there. *size may be NULL. */
char *ck_read_file(size_t *size, const char *path);

/* How many files and folders are in it. */
int ck_folder_entries(const char *folder);

/* True, and said, where the library was built without files; else `status` must be EK_OK. */
bool ck_no_files(ek_status status);

#endif /* CK_FOLDER_H */
