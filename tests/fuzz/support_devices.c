/*
 * support_devices.c - see fuzz_devices.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz_devices.h"

enum { MOST_GROUPS = 32 };

static struct {
  ek_group *group;
  int threads;
} kept[MOST_GROUPS];
static size_t kept_count;

static void close_groups(void) {
  while (kept_count > 0) FUZZ_OK(ek_group_close(kept[--kept_count].group));
}

ek_group *fuzz_group(const char *spec, int threads) {
  for (size_t i = 0; i < kept_count; i++) {
    if (kept[i].threads == threads && strcmp(ek_group_spec(kept[i].group), spec) == 0) {
      return kept[i].group;
    }
  }
  if (kept_count == 0) atexit(close_groups);
  FUZZ_EXPECT(kept_count < MOST_GROUPS, "too many groups are kept");
  ek_group_options options = EK_GROUP_OPTIONS_INIT;
  options.threads_per_device = threads;
  FUZZ_OK(ek_group_open(&kept[kept_count].group, spec, &options));
  kept[kept_count].threads = threads;
  return kept[kept_count++].group;
}

void fuzz_expect_nothing_held(const ek_group *group) {
  for (size_t i = 0; i < ek_group_size(group); i++) {
    ek_memory_usage usage;
    FUZZ_OK(ek_memory_stats(&usage, ek_group_device(group, i)));
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++) {
      FUZZ_EXPECT(usage.current[c] == 0, "%s holds %llu bytes of %s",
                  ek_device_name(ek_group_device(group, i)), (unsigned long long)usage.current[c],
                  ek_memory_category_name((ek_memory_category)c));
    }
  }
}

void fuzz_expect_explained(ek_status status) {
  FUZZ_EXPECT(strcmp(ek_status_name(status), "EK_ERR_UNKNOWN") != 0, "a status of %d", (int)status);
  FUZZ_EXPECT(status == EK_OK || ek_error_message()[0] != '\0', "%s without a message",
              ek_status_name(status));
  FUZZ_EXPECT(status != EK_ERR_INTERNAL, "%s", ek_error_message());
}
