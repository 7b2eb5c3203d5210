/*
 * ledger.c - categories and sizes as text.
 */
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

const char *ek__ledger_size(char *buffer, size_t size, uint64_t bytes) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = (double)bytes;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < sizeof units / sizeof units[0]) {
    value /= 1024;
    unit++;
  }
  snprintf(buffer, size, unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
  return buffer;
}

void ek__ledger_describe(char *buffer, size_t size, const uint64_t bytes[EK_MEMORY_CATEGORIES]) {
  size_t used = 0;
  snprintf(buffer, size, "nothing");
  for (size_t i = 0; i < EK_MEMORY_CATEGORIES && used < size; i++) {
    if (bytes[i] == 0) continue;
    char text[32];
    const int written = snprintf(buffer + used, size - used, "%s%s %s", used == 0 ? "" : ", ",
                                 category_names[i], ek__ledger_size(text, sizeof text, bytes[i]));
    if (written > 0) used += (size_t)written;
  }
}
