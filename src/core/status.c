/*
 * status.c - names of statuses and the thread's last message.
 */
#include <evenkeel/status.h>

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/log_internal.h"

static _Thread_local char last_message[EK__MESSAGE_SIZE];
static _Thread_local uint64_t message_number;

const char *ek_status_name(ek_status status) {
  switch (status) {
#define NAME(name, value, text)                                                                    \
  case name: return #name;
    EK_STATUS_LIST(NAME)
#undef NAME
  }
  return "EK_ERR_UNKNOWN";
}

const char *ek_status_text(ek_status status) {
  switch (status) {
#define TEXT(name, value, text)                                                                    \
  case name: return text;
    EK_STATUS_LIST(TEXT)
#undef TEXT
  }
  return "unknown status";
}

const char *ek_error_message(void) { return last_message; }

void ek_error_clear(void) { last_message[0] = '\0'; }

uint64_t ek__error_number(void) { return message_number; }

ek_status ek_error_set(ek_status status, const char *format, ...) {
  message_number++;
  if (format == NULL) {
    snprintf(last_message, sizeof last_message, "%s", ek_status_text(status));
    return status;
  }
  /* Formatted into a copy first: the arguments may point into the old message. */
  char text[EK__MESSAGE_SIZE];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  snprintf(last_message, sizeof last_message, "%s", text);
  return status;
}

const char *ek__error_words(ek_status status, uint64_t before) {
  const bool silent = message_number == before || last_message[0] == '\0';
  return silent ? ek_status_text(status) : last_message;
}

void ek__error_name(const char *kind, ek_status status, uint64_t before) {
  const char *words = ek__error_words(status, before);
  if (words == last_message && strncmp(words, kind, strlen(kind)) == 0) return;
  ek_error_set(status, "%s: %s", kind, words);
}

void ek__error_keep(char kept[EK__MESSAGE_SIZE]) { memcpy(kept, last_message, EK__MESSAGE_SIZE); }

void ek__error_restore(const char kept[EK__MESSAGE_SIZE], ek_status freed) {
  if (freed == EK_OK) return;
  ek__log(EK_LOG_WARNING, "%s", last_message);
  memcpy(last_message, kept, EK__MESSAGE_SIZE);
}

ek_status ek__null_error(const char *who, const char *names, size_t index) {
  for (size_t i = 0; i < index; i++) names += strcspn(names, ",") + 2;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s: %.*s is NULL", who, (int)strcspn(names, ","),
                      names);
}
