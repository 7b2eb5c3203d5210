/*
 * file.h - files of the system: whole reads and writes at a place, and a new file that replaces an
 * old one. Every message names the file and the error of the system.
 */
#ifndef EK_FILE_H
#define EK_FILE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <evenkeel/status.h>
#include <evenkeel/world.h>

/* The error of a call of the system that has just failed, by errno: EK_ERR_NOT_FOUND,
 * EK_ERR_OUT_OF_MEMORY, EK_ERR_IO. */
ek_status ek__file_refused(const char *path, const char *what);

/* Opens a file that there is, and says how long it is. EK_ERR_NOT_FOUND, EK_ERR_IO. */
ek_status ek__file_open(int *file, uint64_t *size, const char *path);
void ek__file_close(int file);

/*
 * Makes a new file beside `path`, which is to take its place: `path`.tmp, or `path`.1.tmp and so on
 * where that name is taken. A folder, a pipe or a device (/dev/null) keeps its place: EK_ERR_IO. It
 * follows no link and opens nothing that is there. The process has a lock (flock) on the file while
 * it is open, so that others see that it is being written; a file without one, which a killed
 * process left, is removed. `name` has room for the path and EK__FILE_BESIDE_SIZE bytes.
 * EK_ERR_NOT_FOUND, EK_ERR_IO.
 */
enum { EK__FILE_BESIDE_SIZE = sizeof ".99.tmp" };
ek_status ek__file_create_beside(int *file, char *name, const char *path);
/* Removes a regular file that no process has locked; true if it did. */
bool ek__file_remove_stale(const char *path);

/*
 * The name that a process of a world gives to a file of its own: its number stands before the last
 * extension, "run.jsonl" becomes "run.2.jsonl". A world of one process (NULL is one), and a name of
 * something that is no regular file, such as a pipe, keep the name. *name goes to ek__free().
 */
ek_status ek__file_of_process(char **name, const char *path, const ek_world *world);

/* A second descriptor for writing of a file that there is, by its name; -1 and errno. Follows no
 * link. */
int ek__file_open_again(const char *path);
/* What was written is on the disk. EK_ERR_IO. */
ek_status ek__file_sync(int file, const char *path);
/* Syncs the folder that has the entry `path`. EK_ERR_IO. */
ek_status ek__file_sync_folder(const char *path);

/* EK_ERR_CORRUPT if the file ends before. */
ek_status ek__file_read(int file, const char *path, void *data, size_t bytes, uint64_t place);
ek_status ek__file_write(int file, const char *path, const void *data, size_t bytes,
                         uint64_t place);

/*
 * Writes past the page cache, so that a large write costs no copy and little processor time:
 * file_direct.c. `direct` is a second descriptor of the file, or -1. *usable says whether direct
 * writes may be tried, and becomes false if the file system does not support them.
 * Large page-aligned ranges are written directly; the rest goes through the page cache.
 */
enum { EK__FILE_PAGE = 4096 };
int ek__file_open_direct(const char *path);
/* `bytes` bytes of host memory from *first on, which is at a page; *memory goes to ek__free().
 * EK_ERR_OVERFLOW, EK_ERR_OUT_OF_MEMORY; `what` is it for. */
ek_status ek__file_pages(char **memory, char **first, uint64_t bytes, const char *what);
/* Room on the disk for all bytes of a file, before they come: then writes do not wait for each
 * other to make the file longer, and a full disk says so at once. No error where the file system
 * has nothing of it, or for a few bytes. EK_ERR_IO. */
ek_status ek__file_reserve(int file, const char *path, uint64_t bytes);
ek_status ek__file_write_pages(int file, int direct, atomic_bool *usable, const char *path,
                               const void *data, size_t bytes, uint64_t place);

/*
 * Ends a file of ek__file_create_beside(), which is called `from`: closes it and gives it the name
 * `to`. With `sync` the file and its folder are synced, and a power failure leaves the old file or
 * the new one. In an error before the renaming `from` is removed and `to` is the old file; only a
 * failed sync of the folder comes after it. EK_ERR_NOT_FOUND, EK_ERR_OUT_OF_MEMORY, EK_ERR_IO.
 */
ek_status ek__file_replace(int file, const char *from, const char *to, bool sync);

#endif /* EK_FILE_H */
