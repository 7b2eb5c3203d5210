/*
 * model_config.c - see model_config.h. The file is read once, in place (io/json.h), into a list of
 * its members, whose strings are loans of the text.
 */
#include "model_config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/c_locale.h"
#include "core/error.h"
#include "core/options.h"
#include "io/file.h"
#include "io/json.h"

static const char memory_of[] = "a model's configuration";
static const char file_name[] = "config.json";
enum { MOST_BYTES = 1 << 24 };

/* ---- the text ---- */

static ek_status read_text(size_t *length, struct ek__config *config) {
  uint64_t size = 0;
  int file = -1;
  ek_status status = ek__file_open(&file, &size, config->path);
  if (status == EK_ERR_NOT_FOUND) ek_error_clear();
  if (status != EK_OK) return status == EK_ERR_NOT_FOUND ? EK_OK : status;
  if (size > MOST_BYTES) {
    status = ek_error_set(EK_ERR_CORRUPT, "%s: %llu bytes are too large for a configuration",
                          config->path, (unsigned long long)size);
  }
  *length = (size_t)size;
  if (status == EK_OK) status = ek__new(&config->text, *length + 1, 1, memory_of);
  if (status == EK_OK) status = ek__file_read(file, config->path, config->text, *length, 0);
  ek__file_close(file);
  return status;
}

static ek_status name_file(struct ek__config *config, const char *beside) {
  const char *slash = strrchr(beside, '/');
  const size_t folder = slash == NULL ? 0 : (size_t)(slash - beside) + 1;
  EK_TRY(ek__new(&config->path, folder + sizeof file_name, 1, memory_of));
  memcpy(config->path, beside, folder);
  memcpy(config->path + folder, file_name, sizeof file_name);
  return EK_OK;
}

/* ---- members ---- */

static bool read_value(struct ek__config_member *member, struct ek__json *json) {
  const char next = ek__json_peek(json), *from = json->at;
  bool whole = false;
  int64_t integer = 0;
  char *word = NULL;
  member->kind = next == '"'                                    ? EK__CONFIG_WORD
                 : next == 'n'                                  ? EK__CONFIG_NULL
                 : next == 't' || next == 'f'                   ? EK__CONFIG_BOOLEAN
                 : next == '-' || (next >= '0' && next <= '9')  ? EK__CONFIG_NUMBER
                                                                : EK__CONFIG_OTHER;
  member->number = next == 't';
  if (member->kind == EK__CONFIG_WORD) {
    if (!ek__json_string(json, &word)) return false;
    member->word = word;
    (void)snprintf(member->shown, EK__CONFIG_SHOWN, "\"%.64s\"", word);
    return true;
  }
  if (member->kind == EK__CONFIG_NUMBER ? !ek__json_number(json, &member->number)
                                        : !ek__json_value(json, &whole, &integer)) {
    return false;
  }
  const int length = (int)(json->at - from < 64 ? json->at - from : 64);
  (void)snprintf(member->shown, EK__CONFIG_SHOWN, "%.*s",
                 member->kind == EK__CONFIG_OTHER ? 0 : length, from);
  if (member->kind == EK__CONFIG_OTHER) {
    (void)snprintf(member->shown, EK__CONFIG_SHOWN, "%s", next == '{' ? "an object" : "a list");
  }
  return true;
}

/* Members of an object, whose bracket is next. False for what is no JSON; *status for what else may
 * happen. */
static bool read_object(ek_status *status, struct ek__config *config, struct ek__json *json,
                        const char *outer) {
  size_t seen = 0;
  char *key = NULL;
  bool good = ek__json_take(json, '{');
  while (good && *status == EK_OK && ek__json_member(json, '}', &seen)) {
    good = ek__json_string(json, &key) && ek__json_take(json, ':');
    if (!good) break;
    *status = ek__grow(&config->members, &config->capacity, config->count + 1,
                       sizeof *config->members, memory_of);
    if (*status != EK_OK) break;
    struct ek__config_member *member = &config->members[config->count++];
    *member = (struct ek__config_member){.outer = outer, .key = key};
    if (outer == NULL && ek__json_peek(json) == '{') {
      member->kind = EK__CONFIG_OTHER;
      (void)snprintf(member->shown, EK__CONFIG_SHOWN, "an object");
      good = read_object(status, config, json, key);
    } else {
      good = read_value(member, json);
    }
  }
  return good && !json->bad;
}

ek_status ek__config_open(struct ek__config *config, const char *path) {
  size_t length = 0;
  ek_status status = EK_OK;
  *config = (struct ek__config){0};
  EK_TRY(name_file(config, path));
  EK_TRY(read_text(&length, config));
  if (config->text == NULL) return EK_OK;
  struct ek__json json = {config->text, config->text + length, false};
  const bool good = read_object(&status, config, &json, NULL);
  if (status != EK_OK || (good && ek__json_ends(&json))) return status;
  return ek_error_set(EK_ERR_CORRUPT,
                      "%s: it cannot be compared with the model: invalid JSON object at byte %zu",
                      config->path, (size_t)(json.at - config->text));
}

void ek__config_close(struct ek__config *config) {
  ek__free(config->members);
  ek__free(config->text);
  ek__free(config->path);
  *config = (struct ek__config){0};
}

/* Version 5 of the package transformers has rope_theta and rope_scaling in one object, and early
 * files of version 4 call the type of a scaling otherwise. */
static void use_one_name(const char **outer, const char **key) {
  if (*outer != NULL && strcmp(*outer, "rope_parameters") == 0) {
    *outer = strcmp(*key, "rope_theta") == 0 ? NULL : "rope_scaling";
  }
  if (*outer != NULL && strcmp(*outer, "rope_scaling") == 0 && strcmp(*key, "type") == 0) {
    *key = "rope_type";
  }
}

static bool is_called(const struct ek__config_member *member, const char *name) {
  const char *outer = member->outer, *key = member->key;
  use_one_name(&outer, &key);
  if (outer == NULL) return strcmp(key, name) == 0;
  const size_t length = strlen(outer);
  return strncmp(name, outer, length) == 0 && name[length] == '.' &&
         strcmp(name + length + 1, key) == 0;
}

const struct ek__config_member *ek__config_find(const struct ek__config *config, const char *name) {
  for (size_t i = config->count; i > 0; i--) {
    const struct ek__config_member *member = &config->members[i - 1];
    if (is_called(member, name)) return member->kind == EK__CONFIG_NULL ? NULL : member;
  }
  return NULL;
}

/* ---- facts ---- */

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

static bool agrees(const ek_fact *fact, const struct ek__config_member *member) {
  if (member->kind == EK__CONFIG_NULL) return true;
  switch (fact->kind) {
    case EK_FACT_WORD:
      return member->kind == EK__CONFIG_WORD && is_one_of(member->word, fact->words);
    case EK_FACT_BOOLEAN:
      return member->kind == EK__CONFIG_BOOLEAN && member->number == fact->number;
    case EK_FACT_AT_MOST:
      return member->kind == EK__CONFIG_NUMBER && fact->number <= member->number;
    case EK_FACT_NUMBER: break;
  }
  return member->kind == EK__CONFIG_NUMBER &&
         fabs(member->number - fact->number) <= 1e-6 * fabs(fact->number);
}

void ek__config_value(char text[EK__CONFIG_VALUE], const ek_fact *fact) {
  const locale_t before = ek__c_locale_begin();
  if (fact->kind == EK_FACT_WORD) {
    (void)snprintf(text, EK__CONFIG_VALUE, "%.*s", (int)strcspn(fact->words, "|"), fact->words);
  } else if (fact->kind == EK_FACT_BOOLEAN) {
    (void)snprintf(text, EK__CONFIG_VALUE, "%s", fact->number != 0 ? "true" : "false");
  } else {
    (void)snprintf(text, EK__CONFIG_VALUE, "%.15g", fact->number);
    if (strtod(text, NULL) != fact->number) {
      (void)snprintf(text, EK__CONFIG_VALUE, "%.17g", fact->number);
    }
  }
  ek__c_locale_end(before);
}

static ek_status contradiction(const char *path, const ek_fact *fact,
                               const struct ek__config_member *member) {
  char wanted[EK__CONFIG_VALUE];
  const char *quote = fact->kind == EK_FACT_WORD ? "\"" : "";
  ek__config_value(wanted, fact);
  return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                      "%s: %s is %s, but the model has %s%s%s%s: the weights belong to another "
                      "model",
                      path, fact->key, member->shown,
                      fact->kind == EK_FACT_AT_MOST ? "up to " : "", quote, wanted, quote);
}

ek_status ek__config_agrees(const struct ek__config *config, const ek_fact *facts, size_t count) {
  for (size_t m = 0; m < config->count; m++) {
    for (size_t i = 0; i < count; i++) {
      if (facts[i].only_written || !is_called(&config->members[m], facts[i].key)) continue;
      if (!agrees(&facts[i], &config->members[m])) {
        return contradiction(config->path, &facts[i], &config->members[m]);
      }
    }
  }
  return EK_OK;
}

const ek_fact *ek__config_facts(const ek_module *module, size_t *count) {
  *count = 0;
  if (EK__TABLE_SLOT(ek_module_table(module), facts) == NULL) return NULL;
  return ek_module_table(module)->facts(module, count);
}

bool ek__config_next_fact(struct ek__fact_at *at, const struct ek__layout *layout) {
  at->index++;
  if (at->fact == NULL) *at = (struct ek__fact_at){.node = layout->nodes};
  for (; at->node != NULL; at->node = at->node->next, at->index = 0) {
    size_t count = 0;
    const ek_fact *facts = ek__config_facts(at->node->module, &count);
    if (facts == NULL || at->index >= count) continue;
    at->fact = &facts[at->index];
    return true;
  }
  return false;
}

static bool is_in_states(const struct ek__fact_at *at) {
  if (at->fact->only_written || at->fact->kind == EK_FACT_AT_MOST) return false;
  for (size_t i = 1; i <= at->index; i++) {
    if (strcmp(at->fact[-(ptrdiff_t)i].key, at->fact->key) == 0) return false;
  }
  return true;
}

bool ek__config_next_state_fact(struct ek__state_fact *fact, const struct ek__layout *layout) {
  while (ek__config_next_fact(&fact->at, layout)) {
    const char *path = fact->at.node->path;
    if (!is_in_states(&fact->at)) continue;
    const int length = snprintf(fact->key, sizeof fact->key, EK__STATE_FACT_KEY "%s%s%s",
                                path == NULL ? "" : path, path == NULL ? "" : ".",
                                fact->at.fact->key);
    if (length >= (int)sizeof fact->key) continue;
    ek__config_value(fact->value, fact->at.fact);
    return true;
  }
  return false;
}

ek_status ek__config_check(const struct ek__config *config, const struct ek__layout *layout) {
  for (struct ek__fact_at at = {0}; ek__config_next_fact(&at, layout);) {
    EK_TRY(ek__config_agrees(config, at.fact, 1));
  }
  return EK_OK;
}
