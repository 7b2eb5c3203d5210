/*
 * parse.c - the values of flags.
 */
#include "parse.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool parse_whole(int64_t *value, const char *text, int64_t least, int64_t most) {
  /* strtoll() would skip blanks and take a plus sign. */
  if (!isdigit((unsigned char)text[0]) && text[0] != '-') return false;
  char *end = NULL;
  errno = 0;
  const long long number = strtoll(text, &end, 10);
  if (errno != 0 || end == text || *end != '\0' || number < least || number > most) return false;
  *value = number;
  return true;
}

bool parse_real(double *value, const char *text, double least, double most) {
  if (!isdigit((unsigned char)text[0]) && text[0] != '.' && text[0] != '-') return false;
  char *end = NULL;
  errno = 0;
  const double number = strtod(text, &end);
  if (end == text || *end != '\0' || !isfinite(number)) return false;
  if (number < least || number > most) return false;
  *value = number;
  return true;
}

/* ---- several processes ---- */

bool parse_world(int64_t *processes, int64_t *devices, const char *text) {
  enum { MOST = 1 << 20 };
  char first[24] = "";
  const size_t length = strcspn(text, "x");
  if (text[length] != 'x' || length >= sizeof first) return false;
  memcpy(first, text, length);
  return parse_whole(processes, first, 1, MOST) &&
         parse_whole(devices, text + length + 1, 1, MOST / *processes);
}

struct unit {
  const char *name;
  double value;
};

/* A number above 0 and a unit, whole. */
static bool parse_quantity(double *value, const char *text, size_t length,
                           const struct unit *units) {
  char number[32] = "";
  size_t digits = strspn(text, "0123456789.");
  if (digits == 0 || digits >= sizeof number || digits > length) return false;
  memcpy(number, text, digits);
  for (; units->name != NULL; units++) {
    if (strlen(units->name) != length - digits) continue;
    if (memcmp(units->name, text + digits, length - digits) != 0) continue;
    if (!parse_real(value, number, 0, 1e15)) return false;
    *value *= units->value;
    return *value > 0;
  }
  return false;
}

bool parse_link(double *bytes, double *seconds, const char *text) {
  static const struct unit rates[] = {{"B/s", 1},
                                      {"kB/s", 1e3},
                                      {"MB/s", 1e6},
                                      {"GB/s", 1e9},
                                      {"TB/s", 1e12},
                                      {"bit/s", 1 / 8.0},
                                      {"kbit/s", 1e3 / 8},
                                      {"Mbit/s", 1e6 / 8},
                                      {"Gbit/s", 1e9 / 8},
                                      {"Tbit/s", 1e12 / 8},
                                      {NULL, 0}};
  static const struct unit times[] = {
      {"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}, {NULL, 0}};
  const size_t length = strcspn(text, ",");
  *seconds = 0;
  if (!parse_quantity(bytes, text, length, rates)) return false;
  const char *rest = text + length;
  return *rest == '\0' || parse_quantity(seconds, rest + 1, strlen(rest + 1), times);
}

bool parse_seed(uint64_t *value, const char *text) {
  if (!isdigit((unsigned char)text[0])) return false;
  char *end = NULL;
  errno = 0;
  const bool hexadecimal = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
  const unsigned long long number = strtoull(text, &end, hexadecimal ? 16 : 10);
  if (errno != 0 || end == text || *end != '\0' || number > INT64_MAX) return false;
  *value = number;
  return true;
}

/* ---- words that are not known ---- */

enum { LONGEST_WORD = 63 };

static size_t least_of(size_t a, size_t b, size_t c) {
  const size_t ab = a < b ? a : b;
  return ab < c ? ab : c;
}

/* How many letters are to be put in, taken out or replaced, or neighbours exchanged; capitals count
 * as small letters. Both words have at most LONGEST_WORD. */
static size_t distance(const char *from, const char *to) {
  size_t rows[3][LONGEST_WORD + 1]; /* of the two letters before, of the one before, of this one */
  const size_t from_length = strlen(from), to_length = strlen(to);
  for (size_t j = 0; j <= to_length; j++) rows[1][j] = j;
  for (size_t i = 1; i <= from_length; i++) {
    rows[2][0] = i;
    for (size_t j = 1; j <= to_length; j++) {
      const int a = tolower((unsigned char)from[i - 1]), b = tolower((unsigned char)to[j - 1]);
      rows[2][j] = least_of(rows[1][j] + 1, rows[2][j - 1] + 1, rows[1][j - 1] + (a != b));
      if (i > 1 && j > 1 && tolower((unsigned char)from[i - 2]) == b &&
          tolower((unsigned char)to[j - 2]) == a && rows[0][j - 2] + 1 < rows[2][j]) {
        rows[2][j] = rows[0][j - 2] + 1;
      }
    }
    memcpy(rows[0], rows[1], sizeof rows[0]);
    memcpy(rows[1], rows[2], sizeof rows[1]);
  }
  return rows[1][to_length];
}

/* The word that is nearest, if a third of its letters at most is wrong; else the only one that
 * begins as `word` does; else NULL. */
static const char *nearest_word(const char *word, const char *const *words) {
  const char *nearest = NULL, *longer = NULL;
  size_t least = SIZE_MAX, begin_alike = 0;
  if (strlen(word) > LONGEST_WORD) return NULL;
  for (size_t i = 0; words[i] != NULL; i++) {
    if (strlen(words[i]) > LONGEST_WORD) continue;
    const size_t away = distance(word, words[i]);
    if (away < least && away * 3 <= strlen(words[i])) {
      least = away;
      nearest = words[i];
    }
    if (word[0] == '\0' || strncmp(words[i], word, strlen(word)) != 0) continue;
    longer = words[i];
    begin_alike++;
  }
  return nearest != NULL ? nearest : begin_alike == 1 ? longer : NULL;
}

const char *unknown_word(char text[UNKNOWN_TEXT], const char *what, const char *word,
                         const char *const *words) {
  const char *nearest = nearest_word(word, words);
  int used =
      snprintf(text, UNKNOWN_TEXT, "unknown %s \"%.*s\"; expected", what, LONGEST_WORD, word);
  for (size_t i = 0; words[i] != NULL && used < UNKNOWN_TEXT; i++) {
    used += snprintf(text + used, UNKNOWN_TEXT - (size_t)used, "%s %s", i > 0 ? "," : "", words[i]);
  }
  if (nearest != NULL && used < UNKNOWN_TEXT) {
    (void)snprintf(text + used, UNKNOWN_TEXT - (size_t)used, "; did you mean %s?", nearest);
  }
  return text;
}

/* ---- lists ---- */

/*
 * Copies the next item of a list up to a comma into `item` and moves *text past it; false at the
 * end of the list. An item that does not fit is cut, which makes it a word that nothing accepts.
 */
static bool next_item(const char **text, char item[64]) {
  if (*text == NULL) return false;
  const char *comma = strchr(*text, ',');
  size_t length = comma == NULL ? strlen(*text) : (size_t)(comma - *text);
  if (length > 63) length = 63;
  memcpy(item, *text, length);
  item[length] = '\0';
  *text = comma == NULL ? NULL : comma + 1;
  return true;
}

const char *const mode_words[] = {"gather",  "balanced",          "replicated",
                                  "sharded", "sharded-gradients", "fully-sharded",
                                  "all",     NULL};

bool parse_modes(ek_mode modes[BENCH_MODES], size_t *count, const char *text, char bad[64]) {
  if (strcmp(text, "all") == 0) {
    text = "gather,balanced,replicated,sharded,sharded-gradients,fully-sharded";
  }
  bool seen[BENCH_MODES] = {false};
  *count = 0;
  while (next_item(&text, bad)) {
    ek_mode mode;
    if (ek_mode_parse(&mode, bad) != EK_OK) return false;
    if ((size_t)mode >= BENCH_MODES || seen[mode]) return false;
    seen[mode] = true;
    modes[(*count)++] = mode;
  }
  return true;
}

const char *const precision_words[] = {"f32", "tf32", "bf16", "f16", NULL};

const char *precision_text(enum precision precision) { return precision_words[precision]; }

ek_precision precision_value(enum precision precision) {
  static const ek_precision precisions[BENCH_PRECISIONS] = {EK_PRECISION_F32, EK_PRECISION_TF32,
                                                            EK_PRECISION_BF16, EK_PRECISION_F16};
  return precisions[precision];
}

bool parse_precisions(enum precision precisions[BENCH_PRECISIONS], size_t *count, const char *text,
                      char bad[64]) {
  bool seen[BENCH_PRECISIONS] = {false};
  *count = 0;
  while (next_item(&text, bad)) {
    enum precision precision = PRECISION_F32;
    while (precision < BENCH_PRECISIONS && strcmp(bad, precision_text(precision)) != 0) precision++;
    if (precision == BENCH_PRECISIONS || seen[precision]) return false;
    seen[precision] = true;
    precisions[(*count)++] = precision;
  }
  return *count > 0;
}

bool parse_scatter(struct scatter *scatter, const char *text) {
  memset(scatter, 0, sizeof *scatter);
  if (strcmp(text, "even") == 0) return true;
  scatter->kind = EK_SCATTER_CHUNK;
  if (strcmp(text, "chunk") == 0) return true;
  if (strncmp(text, "sizes=", 6) == 0) {
    scatter->kind = EK_SCATTER_SIZES;
    text += 6;
  } else if (strncmp(text, "weights=", 8) == 0) {
    scatter->kind = EK_SCATTER_WEIGHTS;
    text += 8;
  } else {
    return false;
  }
  double sum = 0;
  char item[64];
  while (next_item(&text, item)) {
    const size_t i = scatter->count;
    if (i == BENCH_MAX_DEVICES) return false;
    const bool good = scatter->kind == EK_SCATTER_SIZES
                          ? parse_whole(&scatter->sizes[i], item, 0, INT64_C(1) << 40)
                          : parse_real(&scatter->weights[i], item, 0, 1e300);
    if (!good) return false;
    sum += (double)scatter->sizes[i] + scatter->weights[i];
    scatter->count++;
  }
  return sum > 0;
}

ek_scatter_options scatter_options(const struct scatter *scatter) {
  ek_scatter_options options = EK_SCATTER_OPTIONS_INIT;
  options.kind = scatter->kind;
  if (scatter->kind == EK_SCATTER_SIZES) options.sizes = scatter->sizes;
  if (scatter->kind == EK_SCATTER_WEIGHTS) options.weights = scatter->weights;
  return options;
}
