/*
 * weights_config.c - see weights_config.h. The file is read once, in place (io/json.h); each member
 * is compared with the facts of every module that has some.
 */
#include "weights_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"
#include "io/file.h"
#include "io/json.h"

static const char memory_of[] = "a model's configuration";
static const char file_name[] = "config.json";
enum { MOST_BYTES = 1 << 24, SHOWN = 80 };

static const ek_fact *facts_of(const ek_module *module, size_t *count) {
  *count = 0;
  if (EK__TABLE_SLOT(ek_module_table(module), facts) == NULL) return NULL;
  return ek_module_table(module)->facts(module, count);
}

static bool has_facts(const struct ek__layout *layout) {
  size_t count = 0;
  for (const struct ek__node *node = layout->nodes; node != NULL; node = node->next) {
    if (facts_of(node->module, &count) != NULL && count > 0) return true;
  }
  return false;
}

/* ---- the text ---- */

struct text {
  char *path, *bytes; /* bytes NULL: there is no such file */
  size_t length;
};

static void close_text(struct text *text) {
  ek__free(text->bytes);
  ek__free(text->path);
}

static ek_status read_text(struct text *text) {
  uint64_t size = 0;
  int file = -1;
  ek_status status = ek__file_open(&file, &size, text->path);
  if (status == EK_ERR_NOT_FOUND) ek_error_clear();
  if (status != EK_OK) return status == EK_ERR_NOT_FOUND ? EK_OK : status;
  if (size > MOST_BYTES) {
    status = ek_error_set(EK_ERR_CORRUPT, "%s: %llu bytes are too large for a configuration",
                          text->path, (unsigned long long)size);
  }
  text->length = (size_t)size;
  if (status == EK_OK) status = ek__new(&text->bytes, text->length + 1, 1, memory_of);
  if (status == EK_OK) status = ek__file_read(file, text->path, text->bytes, text->length, 0);
  ek__file_close(file);
  return status;
}

static ek_status open_text(struct text *text, const char *beside) {
  const char *slash = strrchr(beside, '/');
  const size_t folder = slash == NULL ? 0 : (size_t)(slash - beside) + 1;
  EK_TRY(ek__new(&text->path, folder + sizeof file_name, 1, memory_of));
  memcpy(text->path, beside, folder);
  memcpy(text->path + folder, file_name, sizeof file_name);
  return read_text(text);
}

/* ---- values ---- */

struct value {
  enum { VALUE_NULL, VALUE_OTHER, VALUE_NUMBER, VALUE_BOOLEAN, VALUE_WORD } kind;
  double number;
  char shown[SHOWN]; /* for a message, with the quotes of a string */
  const char *word;
};

static bool read_value(struct value *value, struct ek__json *json) {
  const char next = ek__json_peek(json), *from = json->at;
  bool whole = false;
  int64_t integer = 0;
  char *word = NULL;
  *value = (struct value){.kind = next == '"'                              ? VALUE_WORD
                                  : next == 'n'                            ? VALUE_NULL
                                  : next == 't' || next == 'f'             ? VALUE_BOOLEAN
                                  : next == '-' || (next >= '0' && next <= '9') ? VALUE_NUMBER
                                                                           : VALUE_OTHER,
                          .number = next == 't'};
  if (value->kind == VALUE_WORD) {
    if (!ek__json_string(json, &word)) return false;
    value->word = word;
    (void)snprintf(value->shown, SHOWN, "\"%.64s\"", word);
    return true;
  }
  if (value->kind == VALUE_NUMBER ? !ek__json_number(json, &value->number)
                                  : !ek__json_value(json, &whole, &integer)) {
    return false;
  }
  const int length = (int)(json->at - from < 64 ? json->at - from : 64);
  (void)snprintf(value->shown, SHOWN, "%.*s", value->kind == VALUE_OTHER ? 0 : length, from);
  if (value->kind == VALUE_OTHER) {
    (void)snprintf(value->shown, SHOWN, "%s", next == '{' ? "an object" : "a list");
  }
  return true;
}

/* Whether `word` is one of those between bars. */
static bool is_one_of(const char *word, const char *words) {
  const size_t length = strlen(word);
  while (words != NULL) {
    const size_t next = strcspn(words, "|");
    if (next == length && memcmp(words, word, length) == 0) return true;
    words = words[next] == '|' ? words + next + 1 : NULL;
  }
  return false;
}

static bool agrees(const ek_fact *fact, const struct value *value) {
  if (value->kind == VALUE_NULL) return true;
  switch (fact->kind) {
    case EK_FACT_WORD: return value->kind == VALUE_WORD && is_one_of(value->word, fact->words);
    case EK_FACT_BOOLEAN: return value->kind == VALUE_BOOLEAN && value->number == fact->number;
    case EK_FACT_NUMBER: break;
  }
  return value->kind == VALUE_NUMBER &&
         fabs(value->number - fact->number) <= 1e-6 * fabs(fact->number);
}

static ek_status contradiction(const char *path, const ek_fact *fact, const struct value *value) {
  char wanted[SHOWN];
  if (fact->kind == EK_FACT_NUMBER) {
    (void)snprintf(wanted, SHOWN, "%.15g", fact->number);
  } else if (fact->kind == EK_FACT_BOOLEAN) {
    (void)snprintf(wanted, SHOWN, "%s", fact->number != 0 ? "true" : "false");
  } else {
    (void)snprintf(wanted, SHOWN, "\"%.*s\"", (int)strcspn(fact->words, "|"), fact->words);
  }
  return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                      "%s: %s is %s, but the model has %s: the weights belong to another model",
                      path, fact->key, value->shown, wanted);
}

static ek_status check_member(const struct ek__layout *layout, const char *path, const char *key,
                              const struct value *value) {
  for (const struct ek__node *node = layout->nodes; node != NULL; node = node->next) {
    size_t count = 0;
    const ek_fact *facts = facts_of(node->module, &count);
    for (size_t i = 0; i < count && facts != NULL; i++) {
      if (strcmp(facts[i].key, key) != 0 || agrees(&facts[i], value)) continue;
      return contradiction(path, &facts[i], value);
    }
  }
  return EK_OK;
}

static ek_status check_text(const struct ek__layout *layout, const struct text *text) {
  struct ek__json json = {text->bytes, text->bytes + text->length, false};
  struct value value;
  size_t seen = 0;
  char *key = NULL;
  bool good = ek__json_take(&json, '{');
  while (good && ek__json_member(&json, '}', &seen)) {
    good = ek__json_string(&json, &key) && ek__json_take(&json, ':') && read_value(&value, &json);
    if (good) EK_TRY(check_member(layout, text->path, key, &value));
  }
  if (good && ek__json_ends(&json)) return EK_OK;
  return ek_error_set(EK_ERR_CORRUPT,
                      "%s: it cannot be compared with the model: invalid JSON object at byte %zu",
                      text->path, (size_t)(json.at - text->bytes));
}

ek_status ek__config_check(const struct ek__layout *layout, const char *path) {
  struct text text = {0};
  if (!has_facts(layout)) return EK_OK;
  ek_status status = open_text(&text, path);
  if (status == EK_OK && text.bytes != NULL) status = check_text(layout, &text);
  close_text(&text);
  return status;
}
