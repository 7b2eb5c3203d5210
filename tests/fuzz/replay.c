/*
 * replay.c - the main program of a harness without libFuzzer: runs it over files and over all files
 * of folders, in the order of their names.
 *
 * A harness that finds something ends the program itself (fuzz_fail(), a sanitizer, a signal); the
 * name of the file is printed before it runs, so that the last one printed is the one to look at.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fuzz_input.h"

enum { MOST_BYTES = 1 << 20 };

/* False if the file cannot be read. */
static bool run_file(const char *path) {
  static uint8_t bytes[MOST_BYTES];
  FILE *file = fopen(path, "rb");
  if (file == NULL) {
    perror(path);
    return false;
  }
  const size_t size = fread(bytes, 1, sizeof bytes, file);
  fclose(file);
  printf("%s\n", path);
  fflush(stdout);
  /* A copy of exactly this size, so that a sanitizer sees a read behind the end. */
  uint8_t *copy = malloc(size + (size == 0));
  if (copy == NULL) return false;
  memcpy(copy, bytes, size);
  LLVMFuzzerTestOneInput(copy, size);
  free(copy);
  return true;
}

static int visible(const struct dirent *entry) { return entry->d_name[0] != '.'; }

/* The number of files that were run; -1 if one could not be. */
static long run_folder(const char *path) {
  struct dirent **entries = NULL;
  const int count = scandir(path, &entries, visible, alphasort);
  bool good = count >= 0;
  for (int i = 0; i < count; i++) {
    char name[4096];
    snprintf(name, sizeof name, "%s/%s", path, entries[i]->d_name);
    good = run_file(name) && good;
    free(entries[i]);
  }
  free(entries);
  return good ? count : -1;
}

int main(int argc, char **argv) {
  long total = 0;
  for (int i = 1; i < argc; i++) {
    struct stat about;
    const bool folder = stat(argv[i], &about) == 0 && S_ISDIR(about.st_mode);
    const long runs = folder ? run_folder(argv[i]) : (run_file(argv[i]) ? 1 : -1);
    if (runs < 0) return 1;
    total += runs;
  }
  printf("%ld inputs\n", total);
  return total > 0 ? 0 : 1;
}
