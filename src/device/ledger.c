/*
 * ledger.c - categories and sizes as text.
 */
#include "core/sizes.h"
#include "device/ledger.h"

#include <stdio.h>

static const char *const category_names[EK_MEMORY_CATEGORIES] = {
#define NAME(identifier, name) [identifier] = name,
    EK_MEMORY_CATEGORY_LIST(NAME)
#undef NAME
};

const char *ek_memory_category_name(ek_memory_category category) {
  if ((unsigned)category >= EK_MEMORY_CATEGORIES) return "unknown";
  return category_names[category];
}

void ek__ledger_describe(char *buffer, size_t size, const uint64_t bytes[EK_MEMORY_CATEGORIES]) {
  size_t used = 0;
  snprintf(buffer, size, "nothing");
  for (size_t i = 0; i < EK_MEMORY_CATEGORIES && used < size; i++) {
    if (bytes[i] == 0) continue;
    char text[32];
    const int written = snprintf(buffer + used, size - used, "%s%s %s", used == 0 ? "" : ", ",
                                 category_names[i], ek__size_text(text, sizeof text, bytes[i]));
    if (written > 0) used += (size_t)written;
  }
}
