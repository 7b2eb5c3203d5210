/*
 * folders.c - see folders.h.
 */
#include "folders.h"

#include <errno.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH = 4096 };

static ek_status join(char path[PATH], const char *folder, const char *name) {
  const int length = snprintf(path, PATH, "%s/%s", folder, name);
  if (length > 0 && length < PATH) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%.100s...: the name is too long", folder);
}

/* A folder that is there can be written to, or the one that it will be in. */
static ek_status check_folder(const char *flag, const char *folder) {
  char copy[PATH];
  struct stat status;
  if (folder == NULL) return EK_OK;
  if ((size_t)snprintf(copy, sizeof copy, "%s", folder) >= sizeof copy) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s: the name is too long", flag);
  }
  const bool there = stat(folder, &status) == 0;
  if (there && !S_ISDIR(status.st_mode)) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s %s is a file, expected a folder", flag,
                        folder);
  }
  const char *where = there ? folder : dirname(copy);
  if (access(where, W_OK | X_OK) == 0) return EK_OK;
  return ek_error_set(errno == ENOENT ? EK_ERR_NOT_FOUND : EK_ERR_IO, "%s %s: %s: %s", flag, folder,
                      where, strerror(errno));
}

static bool same_folder(const char *left, const char *right) {
  struct stat a, b;
  return stat(left, &a) == 0 && stat(right, &b) == 0 && a.st_dev == b.st_dev &&
         a.st_ino == b.st_ino;
}

ek_status folders_check(const struct settings *s) {
  char path[PATH];
  EK_TRY(check_folder("--save", s->save));
  EK_TRY(check_folder("--best", s->best));
  EK_TRY(check_folder("--out", s->out));
  if (s->save != NULL && s->best != NULL && same_folder(s->save, s->best)) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "--save %s and --best %s are the same folder",
                        s->save, s->best);
  }
  if (s->out == NULL) return EK_OK;
  if (s->from_folder && same_folder(s->out, s->model)) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "--out %s is the folder of --model, which a run does not overwrite",
                        s->out);
  }
  EK_TRY(join(path, s->out, "model.safetensors.index.json"));
  if (access(path, F_OK) != 0) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                      "--out %s has a model in several files; expected an empty or a new folder",
                      s->out);
}

static ek_status copy_file(const char *to, const char *from) {
  char block[1 << 14];
  ek_status status = EK_OK;
  FILE *in = fopen(from, "rb");
  if (in == NULL && errno == ENOENT) return EK_OK;
  if (in == NULL) return ek_error_set(EK_ERR_IO, "%s: %s", from, strerror(errno));
  FILE *out = fopen(to, "wbx");
  if (out == NULL && errno != EEXIST) {
    status = ek_error_set(EK_ERR_IO, "%s: %s", to, strerror(errno));
  }
  while (out != NULL && status == EK_OK) {
    const size_t count = fread(block, 1, sizeof block, in);
    if (ferror(in)) status = ek_error_set(EK_ERR_IO, "%s cannot be read", from);
    else if (count == 0) break;
    else if (fwrite(block, 1, count, out) != count) {
      status = ek_error_set(EK_ERR_IO, "%s: %s", to, strerror(errno));
    }
  }
  if (out != NULL && fclose(out) != 0 && status == EK_OK) {
    status = ek_error_set(EK_ERR_IO, "%s: %s", to, strerror(errno));
  }
  if (out != NULL && status != EK_OK) (void)unlink(to); /* no half of a file stays */
  (void)fclose(in);
  return status;
}

ek_status folders_copy_tokenizer(const char *out, const char *from) {
  static const char *const names[] = {"tokenizer.json",     "tokenizer_config.json",
                                      "tokenizer.model",    "special_tokens_map.json",
                                      "added_tokens.json",  "vocab.json",
                                      "merges.txt",         "chat_template.jinja",
                                      "generation_config.json"};
  char source[PATH], target[PATH];
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    EK_TRY(join(source, from, names[i]));
    EK_TRY(join(target, out, names[i]));
    EK_TRY(copy_file(target, source));
  }
  return EK_OK;
}

ek_status folders_open_metrics(ek_metrics **metrics, ek_group *group, const char *prefix) {
  char prometheus[PATH], lines[PATH];
  const int length = snprintf(prometheus, sizeof prometheus, "%s.prom", prefix);
  (void)snprintf(lines, sizeof lines, "%s.jsonl", prefix);
  if (length < 0 || (size_t)length + 1 >= sizeof prometheus) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "--metrics: the name is too long");
  }
  return ek_metrics_open(metrics, group, prometheus, lines);
}
