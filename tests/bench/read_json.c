/*
 * read_json.c - prints values of a JSON file, so that a shell script can look at them.
 *
 *     read_json FILE runs.0.devices.1.peak_bytes      the value
 *     read_json FILE 'runs#'                          how many elements or members it has
 *     read_json FILE                                  all: path, zero byte, value, zero byte; after
 *                                                     an array or object also its path with a "#",
 *                                                     and how many elements or members it has
 *
 * Exit code 1 if the file is not JSON or has no such value.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

enum { LONGEST = 512, DEEPEST = 128 }; /* bytes of a path and of one name */

static const json_t *step_into(const json_t *value, const char *name) {
  if (json_is_array(value)) return json_array_get(value, strtoul(name, NULL, 10));
  return json_object_get(value, name);
}

static void print_value(const json_t *value) {
  switch (json_typeof(value)) {
  case JSON_STRING: printf("%s", json_string_value(value)); return;
  case JSON_INTEGER: printf("%" JSON_INTEGER_FORMAT, json_integer_value(value)); return;
  case JSON_REAL: printf("%.17g", json_real_value(value)); return;
  case JSON_TRUE: printf("true"); return;
  case JSON_FALSE: printf("false"); return;
  case JSON_NULL: printf("null"); return;
  default: printf(json_is_array(value) ? "[...]" : "{...}"); return;
  }
}

static void print_all(json_t *value, const char *path) {
  char longer[LONGEST + DEEPEST];
  const char *name = NULL;
  json_t *member = NULL;
  size_t i = 0;
  if (strlen(path) >= LONGEST) return;
  if (path[0] != '\0') {
    printf("%s%c", path, 0);
    print_value(value);
    putchar(0);
  }
  if (json_is_object(value)) {
    printf("%s#%c%zu%c", path, 0, json_object_size(value), 0);
    json_object_foreach(value, name, member) {
      (void)snprintf(longer, sizeof longer, "%s%s%s", path, path[0] == '\0' ? "" : ".", name);
      print_all(member, longer);
    }
  } else if (json_is_array(value)) {
    printf("%s#%c%zu%c", path, 0, json_array_size(value), 0);
    json_array_foreach(value, i, member) {
      (void)snprintf(longer, sizeof longer, "%s%s%zu", path, path[0] == '\0' ? "" : ".", i);
      print_all(member, longer);
    }
  }
}

int main(int argc, char **argv) {
  if (argc != 2 && argc != 3) return 2;
  json_error_t error;
  json_t *root = json_load_file(argv[1], JSON_REJECT_DUPLICATES, &error);
  if (root == NULL) {
    fprintf(stderr, "%s:%d: %s\n", argv[1], error.line, error.text);
    return 1;
  }
  if (argc == 2) {
    print_all(root, "");
    json_decref(root);
    return 0;
  }
  char *path = argv[2];
  const size_t length = strlen(path);
  const int count = length > 0 && path[length - 1] == '#';
  if (count) path[length - 1] = '\0';
  const json_t *value = root;
  for (char *name = strtok(path, "."); name != NULL && value != NULL; name = strtok(NULL, ".")) {
    value = step_into(value, name);
  }
  if (value == NULL) {
    fprintf(stderr, "%s: no such value\n", argv[1]);
  } else if (count) {
    printf("%zu\n", json_is_array(value) ? json_array_size(value) : json_object_size(value));
  } else {
    print_value(value);
    putchar('\n');
  }
  json_decref(root);
  return value == NULL;
}
