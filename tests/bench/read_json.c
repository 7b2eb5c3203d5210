/*
 * read_json.c - prints one value of a JSON file, so that a shell script can look at it.
 *
 *     read_json FILE runs.0.devices.1.peak_bytes      the value
 *     read_json FILE 'runs#'                          how many elements or members it has
 *
 * Exit code 1 if the file is not JSON or has no such value.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

static const json_t *step_into(const json_t *value, const char *name) {
  if (json_is_array(value)) return json_array_get(value, strtoul(name, NULL, 10));
  return json_object_get(value, name);
}

static void print_value(const json_t *value) {
  switch (json_typeof(value)) {
  case JSON_STRING: printf("%s\n", json_string_value(value)); return;
  case JSON_INTEGER: printf("%" JSON_INTEGER_FORMAT "\n", json_integer_value(value)); return;
  case JSON_REAL: printf("%.17g\n", json_real_value(value)); return;
  case JSON_TRUE: puts("true"); return;
  case JSON_FALSE: puts("false"); return;
  case JSON_NULL: puts("null"); return;
  default: puts(json_is_array(value) ? "[...]" : "{...}"); return;
  }
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  json_error_t error;
  json_t *root = json_load_file(argv[1], JSON_REJECT_DUPLICATES, &error);
  if (root == NULL) {
    fprintf(stderr, "%s:%d: %s\n", argv[1], error.line, error.text);
    return 1;
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
  }
  json_decref(root);
  return value == NULL;
}
