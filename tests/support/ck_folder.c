/*
 * ck_folder.c - see ck_folder.h.
 */
#include "ck_folder.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ek_check.h"

void ck_folder_make(char folder[CK_FOLDER_SIZE]) {
  (void)snprintf(folder, CK_FOLDER_SIZE, "%s/evenkeel-XXXXXX",
                 access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
  ck_assert_ptr_nonnull(mkdtemp(folder));
}

void ck_folder_remove(const char *folder) {
  ck_assert_msg(rmdir(folder) == 0, "%s is not empty: a file was left behind", folder);
}

static void remove_folder(void *folder) { ck_folder_remove(folder); }

char *ck_folder(void) {
  char *folder = ck_array(1, CK_FOLDER_SIZE);
  ck_folder_make(folder);
  ck_keep_by(folder, remove_folder);
  return folder;
}

static void remove_file(void *path) { (void)unlink(path); }

const char *ck_file(const char *folder, const char *name) {
  const size_t size = strlen(folder) + strlen(name) + 2;
  char *path = ck_array(1, size);
  (void)snprintf(path, size, "%s/%s", folder, name);
  ck_keep_by(path, remove_file);
  return path;
}

const char *ck_state_file(const char *folder, int step) {
  char name[64];
  (void)snprintf(name, sizeof name, "step-%012d.safetensors", step);
  return ck_file(folder, name);
}

void ck_write_file(const char *path, const void *bytes, size_t size) {
  FILE *file = fopen(path, "wb");
  ck_assert_msg(file != NULL, "%s", path);
  ck_assert_uint_eq(fwrite(bytes, 1, size, file), size);
  ck_assert_int_eq(fclose(file), 0);
}

char *ck_read_file(size_t *size, const char *path) {
  struct stat about;
  FILE *file = fopen(path, "rb");
  if (file == NULL) return NULL;
  ck_assert_int_eq(fstat(fileno(file), &about), 0);
  const size_t bytes = (size_t)about.st_size;
  char *text = ck_array(bytes + 1, 1);
  ck_assert_uint_eq(fread(text, 1, bytes, file), bytes);
  ck_assert_int_eq(fclose(file), 0);
  if (size != NULL) *size = bytes;
  return text;
}

int ck_folder_entries(const char *folder) {
  int count = -2; /* . and .. */
  DIR *list = opendir(folder);
  ck_assert_ptr_nonnull(list);
  while (readdir(list) != NULL) count++;
  (void)closedir(list);
  return count;
}

bool ck_no_files(ek_status status) {
  if (status != EK_ERR_UNSUPPORTED) {
    ck_ok(status);
    return false;
  }
  puts("built without xxHash: left out");
  return true;
}
