/*
 * fuzz_device_strings.c - ek_group_open() over any text and any options.
 *
 * A second reader of the grammar in device.h, written from the header and not from the source, says
 * what must come out: refused, or a number of devices with their bytes. Only `cpu` and `plan` are
 * modelled; a `cuda` string may do what it likes but crash.
 */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "fuzz_training.h"

struct reading {
  bool modelled; /* not a cuda string */
  bool good;
  size_t devices;
  fuzz_wide bytes; /* 0: not given */
};

/* Takes `word` from the front of *text. */
static bool take(const char **text, const char *word) {
  const size_t length = strlen(word);
  if (strncmp(*text, word, length) != 0) return false;
  *text += length;
  return true;
}

/* A run of digits; stops counting when it is out of reach of everything. */
static bool take_digits(const char **text, fuzz_wide *value, int *count) {
  *value = 0;
  *count = 0;
  for (; **text >= '0' && **text <= '9'; (*text)++, (*count)++) {
    if (*value < (fuzz_wide)1 << 70) *value = *value * 10 + (**text - '0');
  }
  return *count > 0;
}

static fuzz_wide take_unit(const char **text) {
  static const struct {
    const char *name;
    uint64_t bytes;
  } units[] = {
      {"KiB", 1024}, {"MiB", 1048576}, {"GiB", UINT64_C(1) << 30}, {"TiB", UINT64_C(1) << 40},
      {"KB", 1000},  {"MB", 1000000},  {"GB", 1000000000},         {"TB", UINT64_C(1000000000000)},
      {"B", 1}};
  for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
    if (take(text, units[i].name)) return units[i].bytes;
  }
  return 1;
}

/* size = digits ["." digits] [unit]; digits past the sixth after the point do not count. */
static bool take_size(const char **text, fuzz_wide *bytes) {
  fuzz_wide whole = 0, fraction = 0;
  uint64_t scale = 1;
  int digits = 0;
  if (!take_digits(text, &whole, &digits)) return false;
  if (take(text, ".")) {
    const char *first = *text;
    fuzz_wide ignored = 0;
    if (!take_digits(text, &ignored, &digits)) return false;
    for (int i = 0; i < digits && i < 6; i++, scale *= 10) {
      fraction = fraction * 10 + (first[i] - '0');
    }
  }
  const fuzz_wide unit = take_unit(text);
  *bytes = whole * unit + fraction * unit / (fuzz_wide)scale;
  return *bytes >= EK_MEMORY_UNIT && *bytes <= INT64_MAX;
}

static struct reading read_spec(const char *text) {
  struct reading it = {.modelled = true, .devices = 1};
  if (!take(&text, "plan-cuda") && !take(&text, "plan") && !take(&text, "cpu")) {
    it.modelled = strncmp(text, "cuda", 4) != 0;
    return it;
  }
  if (take(&text, ":")) {
    fuzz_wide devices = 0;
    int digits = 0;
    if (!take_digits(&text, &devices, &digits)) return it;
    if (devices < 1 || devices > FUZZ_MAX_DEVICES) return it;
    it.devices = (size_t)devices;
  }
  if (take(&text, "@") && !take_size(&text, &it.bytes)) return it;
  it.good = *text == '\0';
  return it;
}

/* A message with the text and a caret below the place. */
static void check_message(const char *spec) {
  const char *message = ek_error_message();
  FUZZ_EXPECT(message[0] != '\0', "no message for \"%s\"", spec);
  if (strncmp(message, "device string: ", 15) != 0) return;
  const char *caret = strrchr(message, '\n');
  if (caret == NULL || strlen(message) >= 4000) return; /* a long string's message is cut */
  const char *end = strrchr(message, '^');
  FUZZ_EXPECT(end != NULL && end > caret, "no caret for \"%s\"", spec);
  const size_t column = (size_t)(end - caret) - 3; /* after the newline and two blanks */
  FUZZ_EXPECT(column <= strlen(spec), "the caret is behind the end of \"%s\"", spec);
}

static void check_group(const ek_group *group, const char *spec, const struct reading *it) {
  FUZZ_EXPECT(strcmp(ek_group_spec(group), spec) == 0, "opened as \"%s\"", ek_group_spec(group));
  if (!it->modelled) return;
  FUZZ_EXPECT(it->good, "\"%s\" was taken", spec);
  FUZZ_EXPECT(ek_group_size(group) == it->devices, "\"%s\" has %zu devices", spec,
              ek_group_size(group));
  for (size_t i = 0; i < it->devices; i++) {
    ek_memory_usage usage;
    const ek_device *device = ek_group_device(group, i);
    FUZZ_EXPECT(ek_memory_stats(&usage, device) == EK_OK, "no ledger");
    FUZZ_EXPECT(it->bytes == 0 || usage.capacity_bytes == (uint64_t)it->bytes / 256 * 256 ||
                    usage.capacity_bytes == (uint64_t)it->bytes,
                "\"%s\" has a capacity of %llu", spec, (unsigned long long)usage.capacity_bytes);
  }
}

/* What the options may be; *legal tells whether a group may be opened with them. */
static ek_group_options read_options(struct fuzz_input *input, bool *legal) {
  static const int threads[] = {1, 0, 2, 3, -1, INT_MIN, INT_MAX, 1025};
  static const size_t sizes[] = {0, 1, sizeof(ek_group_options) + 1, SIZE_MAX, sizeof(size_t)};
  ek_group_options options = EK_GROUP_OPTIONS_INIT;
  const int pick = fuzz_choice(input, 8);
  options.threads_per_device = threads[pick];
  *legal = pick < 4;
  options.deterministic = fuzz_one_in(input, 2);
  options.time_limit = fuzz_one_in(input, 8) ? fuzz_real(input) : 0;
  *legal = *legal && options.time_limit >= 0 && options.time_limit <= 1e9;
  if (fuzz_one_in(input, 16)) {
    options.size = sizes[fuzz_choice(input, 5)];
    *legal = options.size == sizeof options.size; /* an old program's: nothing else is read */
  }
  return options;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct fuzz_input input = fuzz_input(data, size);
  ek_group_options options = EK_GROUP_OPTIONS_INIT;
  bool legal = true, with_options = fuzz_one_in(&input, 2);
  if (with_options) options = read_options(&input, &legal);
  char spec[256];
  size_t length = 0;
  while (fuzz_left(&input) > 0 && length + 1 < sizeof spec) {
    const char byte = (char)fuzz_byte(&input);
    if (byte != '\0') spec[length++] = byte;
  }
  spec[length] = '\0';

  const struct reading it = read_spec(spec);
  ek_group *const untouched = (ek_group *)(uintptr_t)16;
  ek_group *group = untouched;
  ek_error_clear();
  const ek_status status = ek_group_open(&group, spec, with_options ? &options : NULL);
  if (status != EK_OK) {
    FUZZ_EXPECT(group == untouched, "a failure wrote to *group");
    check_message(spec);
    if (legal && it.modelled && !it.good) {
      FUZZ_EXPECT(status == EK_ERR_INVALID_ARGUMENT, "\"%s\": %s", spec, ek_status_name(status));
    }
    /* What is right may still be more memory or more threads than there are. */
    FUZZ_EXPECT(!legal || !it.good || status == EK_ERR_OUT_OF_MEMORY, "\"%s\" was refused: %s",
                spec, ek_error_message());
    return 0;
  }
  FUZZ_EXPECT(legal, "the options of \"%s\" were taken", spec);
  check_group(group, spec, &it);
  FUZZ_EXPECT(ek_group_synchronize(group) == EK_OK, "cannot wait: %s", ek_error_message());
  FUZZ_OK(ek_group_close(group));
  return 0;
}
