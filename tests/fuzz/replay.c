/*
 * replay.c - the main program of a harness without libFuzzer.
 *
 *     fuzz_X PATH...               runs it over files, and over all files of folders in the order
 *                                  of their names
 *     fuzz_X --random COUNT SEED   runs it over random inputs, each in a process of its own; those
 *                                  that break something are written to fuzz_X-SEED in the working
 *                                  folder, to be run again by their names
 *
 * A harness that finds something ends the program itself (fuzz_fail(), a sanitizer, a signal, or
 * the alarm where it hangs); the name of the file is printed before it runs, so that the last one
 * printed is the one to look at.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fuzz_input.h"

enum { MOST_BYTES = 1 << 20, RANDOM_BYTES = 64, SECONDS = 60 /* for one input */ };

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
  /* A copy of exactly this size, so that a sanitizer sees a read past the end. */
  uint8_t *copy = malloc(size + (size == 0));
  if (copy == NULL) return false;
  memcpy(copy, bytes, size);
  (void)alarm(SECONDS);
  LLVMFuzzerTestOneInput(copy, size);
  (void)alarm(0);
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

/* ---- random inputs ---- */

static void fill_random(uint8_t *bytes, uint64_t seed) {
  for (int i = 0; i < RANDOM_BYTES; i++) { /* splitmix64 */
    uint64_t z = (seed << 16) + (uint64_t)(i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    bytes[i] = (uint8_t)((z ^ (z >> 31)) >> 24);
  }
}

static void keep(const char *program, uint64_t seed, const uint8_t *bytes) {
  char path[512];
  const char *slash = strrchr(program, '/');
  (void)snprintf(path, sizeof path, "%s-%llu", slash == NULL ? program : slash + 1,
                 (unsigned long long)seed);
  FILE *file = fopen(path, "wb");
  if (file == NULL || fwrite(bytes, 1, RANDOM_BYTES, file) != RANDOM_BYTES) perror(path);
  if (file != NULL) fclose(file);
  printf("failed: %s\n", path);
}

/* A child for each, before any thread runs here: what ends it, a hang included, ends it alone. */
static int run_random(const char *program, uint64_t count, uint64_t first) {
  uint64_t failed = 0;
  for (uint64_t seed = first; seed < first + count; seed++) {
    uint8_t bytes[RANDOM_BYTES];
    int status = 0;
    fill_random(bytes, seed);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      (void)alarm(SECONDS);
      LLVMFuzzerTestOneInput(bytes, sizeof bytes);
      exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
      keep(program, seed, bytes);
      failed++;
    }
  }
  printf("%llu of %llu random inputs from seed %llu on failed\n", (unsigned long long)failed,
         (unsigned long long)count, (unsigned long long)first);
  return failed > 0;
}

int main(int argc, char **argv) {
  long total = 0;
  if (argc == 4 && strcmp(argv[1], "--random") == 0) {
    return run_random(argv[0], strtoull(argv[2], NULL, 10), strtoull(argv[3], NULL, 10));
  }
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
