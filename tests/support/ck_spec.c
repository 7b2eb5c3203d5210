/*
 * ck_spec.c - the device strings of tests, said again for the GPUs under test: see ek_check.h.
 */
#include "ek_check.h"

enum { MOST_GPUS = 64, SPEC_BYTES = 512, SPECS = 8 };

/* What EVENKEEL_TEST_DEVICES says; NULL if it says nothing about GPUs. */
static const char *gpus_under_test(void) {
  const char *text = getenv("EVENKEEL_TEST_DEVICES");
  return text != NULL && strncmp(text, "cuda", 4) == 0 ? text : NULL;
}

/* "cuda:0x2,1" -> 0 0 1, "cuda:0-2" -> 0 1 2; a bare "cuda" is GPU 0. */
static size_t list_gpus(int gpus[MOST_GPUS], const char *text) {
  size_t count = 0;
  const char *at = text + 4;
  while (*at == ':' || *at == ',') {
    char *end = NULL;
    const long first = strtol(at + 1, &end, 10);
    long last = first, copies = 1;
    if (*end == '-') last = strtol(end + 1, &end, 10);
    if (*end == 'x') copies = strtol(end + 1, &end, 10);
    for (long gpu = first; gpu <= last; gpu++) {
      for (long i = 0; i < copies && count < MOST_GPUS; i++) gpus[count++] = (int)gpu;
    }
    at = end;
  }
  if (count == 0) gpus[count++] = 0;
  return count;
}

ek_status ck_memory_stats(ek_memory_usage *usage, const ek_device *device) {
  EK_TRY(ek_memory_stats(usage, device));
  const uint64_t fixed = usage->fixed_bytes;
  if (fixed == 0) return EK_OK;
  usage->capacity_bytes -= fixed;
  usage->current_bytes -= fixed;
  usage->peak_bytes -= fixed;
  usage->current[EK_MEMORY_WORKSPACE] -= fixed;
  usage->at_peak[EK_MEMORY_WORKSPACE] -= fixed;
  usage->allocations--;
  return EK_OK;
}

/* ---- names of devices in messages ---- */

static size_t digits(const char *text) { return strspn(text, "0123456789"); }

/* How much of `text` is the name of a GPU or of a device that counts for one; 0 if it is none. */
static size_t gpu_name(const char *text) {
  static const char *const backends[] = {"cuda:", "plan-cuda:"};
  for (size_t i = 0; i < 2; i++) {
    const size_t length = strlen(backends[i]);
    if (strncmp(text, backends[i], length) != 0 || digits(text + length) == 0) continue;
    const char *end = text + length + digits(text + length);
    if (*end == '#') end += 1 + digits(end + 1);
    return (size_t)(end - text);
  }
  return 0;
}

/* How much of `part` is the name that a test wrote for a device. */
static size_t written_name(const char *part) {
  const size_t length = strncmp(part, "cpu:", 4) == 0 ? 4 : strncmp(part, "plan:", 5) == 0 ? 5 : 0;
  return length == 0 || digits(part + length) == 0 ? 0 : length + digits(part + length);
}

static bool begins_with(const char *text, const char *part) {
  while (*part != '\0') {
    const size_t written = written_name(part), found = written == 0 ? 0 : gpu_name(text);
    if (found == 0 && *text != *part) return false;
    text += found == 0 ? 1 : found;
    part += found == 0 ? 1 : written;
  }
  return true;
}

bool ck_contains(const char *text, const char *part) {
  if (gpus_under_test() == NULL) return strstr(text, part) != NULL;
  do {
    if (begins_with(text, part)) return true;
  } while (*text++ != '\0');
  return false;
}

/* ---- device strings ---- */

/* What a GPU keeps for itself: it comes on top of the caps that tests ask for. */
static uint64_t fixed_bytes(int gpu) {
  static uint64_t known;
  if (known != 0) return known;
  char spec[64];
  (void)snprintf(spec, sizeof spec, "cuda:%d@64MiB", gpu);
  CK_GOT(ek_group *, group, ek_group_open(&group, spec, NULL));
  CK_GOT(ek_memory_usage, usage, ek_memory_stats(&usage, ek_group_device(group, 0)));
  ek_group_free(group);
  return known = usage.fixed_bytes;
}

static uint64_t size_of(const char *text) {
  static const struct {
    const char *name;
    uint64_t bytes;
  } units[] = {{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", UINT64_C(1) << 40}};
  char *end = NULL;
  const uint64_t number = strtoull(text, &end, 10);
  for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
    if (strcmp(end, units[i].name) == 0) return number * units[i].bytes;
  }
  ck_assert_msg(*end == '\0' || strcmp(end, "B") == 0, "a test asks for \"%s\" of memory", text);
  return number;
}

/* "0x2,1x1" for the first `count` of the GPUs, from the beginning again if they do not suffice. */
static void put_gpus(char *text, size_t size, const int *gpus, size_t known, size_t count) {
  size_t uses[MOST_GPUS] = {0}, used = 0;
  for (size_t i = 0; i < count; i++) uses[gpus[i % known]]++;
  for (size_t gpu = 0; gpu < MOST_GPUS; gpu++) {
    if (uses[gpu] == 0) continue;
    used += (size_t)snprintf(text + used, size - used, "%c%zux%zu", used == 0 ? ':' : ',', gpu,
                             uses[gpu]);
  }
}

const char *ck_spec(const char *spec) {
  static _Thread_local char specs[SPECS][SPEC_BYTES];
  static _Thread_local size_t next;
  const char *under_test = gpus_under_test();
  const bool plan = strncmp(spec, "plan", 4) == 0 && strncmp(spec, "plan-", 5) != 0;
  if (strcmp(spec, CK_HUGE_PLAN) == 0) return spec; /* there is no more */
  if (under_test == NULL || (!plan && strncmp(spec, "cpu", 3) != 0)) return spec;
  int gpus[MOST_GPUS];
  const size_t known = list_gpus(gpus, under_test);
  const char *number = strchr(spec, ':'), *cap = strchr(spec, '@');
  const size_t count = number == NULL ? 1 : strtoul(number + 1, NULL, 10);
  char devices[SPEC_BYTES / 2] = "";
  if (plan) {
    (void)snprintf(devices, sizeof devices, ":%zu", count);
  } else {
    put_gpus(devices, sizeof devices, gpus, known, count);
  }
  char *text = specs[next++ % SPECS];
  (void)snprintf(text, SPEC_BYTES, "%s%s", plan ? "plan-cuda" : "cuda", devices);
  const size_t used = strlen(text);
  if (cap != NULL || !plan) {
    const uint64_t bytes = cap != NULL ? size_of(cap + 1) : CK_DEFAULT_CAP;
    (void)snprintf(text + used, SPEC_BYTES - used, "@%" PRIu64 "B", bytes + fixed_bytes(gpus[0]));
  }
  return text;
}
