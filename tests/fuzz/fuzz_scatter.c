/*
 * fuzz_scatter.c - cuts of any number of rows over any number of devices with any options.
 *
 * ek_scatter_offsets() is held against a model that counts rows one device after the other, and for
 * weights against what a proportional cut must have. Small batches are then scattered, cut a second
 * time with several rows a sample, and gathered again.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "fuzz_training.h"

struct cut {
  int64_t rows;
  size_t count;
  bool with_options;
  ek_scatter_options options;
  int64_t sizes[FUZZ_MAX_DEVICES + 2];
  double weights[FUZZ_MAX_DEVICES + 2];
};

/* ---- decisions ---- */

static int64_t read_rows(struct fuzz_input *input) {
  static const int64_t special[] = {INT64_MAX, INT64_MAX - 1,    INT64_MIN,
                                    -1,        INT64_C(1) << 53, (INT64_C(1) << 62) + 1};
  const int pick = fuzz_choice(input, 16);
  if (pick < 8) return fuzz_byte(input) % 41;
  if (pick < 10) return fuzz_int(input, 0, INT64_MAX);
  if (pick < 14) return fuzz_int(input, 0, 1 << 20);
  return special[fuzz_choice(input, sizeof special / sizeof special[0])];
}

static void read_sizes(struct cut *cut, struct fuzz_input *input) {
  int64_t left = cut->rows;
  for (size_t i = 0; i < cut->count && i < FUZZ_MAX_DEVICES; i++) {
    const bool last = i + 1 == cut->count;
    cut->sizes[i] = last ? left : left > 0 ? fuzz_int(input, 0, left) : 0;
    left -= cut->sizes[i];
  }
  /* One that does not fit. */
  if (!fuzz_one_in(input, 4)) return;
  const size_t odd = fuzz_byte(input) % FUZZ_MAX_DEVICES;
  cut->sizes[odd] = read_rows(input);
}

static void read_weights(struct cut *cut, struct fuzz_input *input) {
  const bool any = fuzz_one_in(input, 4);
  for (size_t i = 0; i < cut->count && i < FUZZ_MAX_DEVICES; i++) {
    cut->weights[i] = any ? fuzz_real(input) : fuzz_byte(input) % 16;
  }
}

static void read_cut(struct cut *cut, struct fuzz_input *input) {
  static const size_t wrong_counts[] = {0, SIZE_MAX / 8, SIZE_MAX};
  static const size_t odd_sizes[] = {0, sizeof(ek_scatter_options) + 1, SIZE_MAX, 7,
                                     sizeof(size_t)};
  *cut = (struct cut){.options = EK_SCATTER_OPTIONS_INIT};
  cut->rows = read_rows(input);
  cut->count = 1 + (size_t)fuzz_choice(input, fuzz_one_in(input, 4) ? FUZZ_MAX_DEVICES : 5);
  if (fuzz_one_in(input, 32)) cut->count = wrong_counts[fuzz_choice(input, 3)];
  cut->with_options = fuzz_byte(input) % 8 != 7;
  const int kind = fuzz_choice(input, 16);
  cut->options.kind = (ek_scatter_kind)(kind == 15 ? fuzz_byte(input) : kind % 4);
  cut->options.ahead = fuzz_one_in(input, 4);
  if (cut->options.kind == EK_SCATTER_SIZES) read_sizes(cut, input);
  if (cut->options.kind == EK_SCATTER_WEIGHTS) read_weights(cut, input);
  if (cut->options.kind == EK_SCATTER_GRAINS) cut->options.grains = fuzz_byte(input) % 40;
  if (!fuzz_one_in(input, 16)) cut->options.sizes = cut->sizes;
  if (!fuzz_one_in(input, 16)) cut->options.weights = cut->weights;
  if (fuzz_one_in(input, 32)) {
    cut->options.size = odd_sizes[fuzz_choice(input, 5)];
    /* An old program's: nothing else is read. */
    if (cut->options.size == sizeof(size_t)) cut->options.kind = EK_SCATTER_EVEN;
  }
}

/* ---- the model ---- */

static bool legal_sizes(const struct cut *cut) {
  fuzz_wide total = 0;
  for (size_t i = 0; i < cut->count; i++) {
    if (cut->sizes[i] < 0) return false;
    total += cut->sizes[i];
  }
  return cut->options.sizes != NULL && total == cut->rows;
}

static bool legal_weights(const struct cut *cut) {
  bool some = false;
  for (size_t i = 0; i < cut->count; i++) {
    if (!isfinite(cut->weights[i]) || cut->weights[i] < 0) return false;
    some = some || cut->weights[i] > 0;
  }
  return cut->options.weights != NULL && some;
}

static bool legal(const struct cut *cut) {
  if (cut->rows < 0 || cut->count == 0 || cut->count > FUZZ_MAX_DEVICES) return false;
  if (!cut->with_options) return true;
  if (cut->options.size != sizeof cut->options) return cut->options.size == sizeof(size_t);
  switch (cut->options.kind) {
  case EK_SCATTER_EVEN:
  case EK_SCATTER_CHUNK: return true;
  case EK_SCATTER_SIZES: return legal_sizes(cut);
  case EK_SCATTER_WEIGHTS: return legal_weights(cut);
  case EK_SCATTER_GRAINS: return cut->options.grains > 0;
  }
  return false;
}

/* Of `count` things the first of part number `part` of `parts`; larger parts come first. */
static fuzz_wide even(fuzz_wide count, fuzz_wide part, fuzz_wide parts) {
  const fuzz_wide rest = count % parts;
  return count / parts * part + (part < rest ? part : rest);
}

/* Rows of device i; never called for weights. */
static int64_t expected_rows(const struct cut *cut, size_t i) {
  const fuzz_wide rows = cut->rows, count = (fuzz_wide)cut->count, at = (fuzz_wide)i;
  const ek_scatter_kind kind = cut->with_options ? cut->options.kind : EK_SCATTER_EVEN;
  if (kind == EK_SCATTER_SIZES) return cut->sizes[i];
  if (kind == EK_SCATTER_GRAINS) {
    const fuzz_wide grains = (fuzz_wide)cut->options.grains;
    return (int64_t)(even(rows, even(grains, at + 1, count), grains) -
                     even(rows, even(grains, at, count), grains));
  }
  if (kind == EK_SCATTER_EVEN) return (int64_t)(rows / count + (at < rows % count));
  const fuzz_wide chunk = (rows + count - 1) / count, left = rows - chunk * at;
  return (int64_t)(left <= 0 ? 0 : left < chunk ? left : chunk);
}

/* By largest remainder: less than one row from the exact share, and 0 for a weight of 0. */
static void check_weights(const struct cut *cut, const int64_t *offsets) {
  long double sum = 0;
  for (size_t i = 0; i < cut->count; i++) sum += (long double)cut->weights[i];
  const long double rounding = 1e-14L * (long double)cut->rows; /* some units of a double */
  for (size_t i = 0; i < cut->count; i++) {
    const long double share = (long double)cut->rows * ((long double)cut->weights[i] / sum);
    const long double off = (long double)(offsets[i + 1] - offsets[i]) - share;
    FUZZ_EXPECT(cut->weights[i] > 0 || offsets[i + 1] == offsets[i],
                "device %zu of weight 0 has %lld rows", i,
                (long long)(offsets[i + 1] - offsets[i]));
    FUZZ_EXPECT(fabsl(off) < 1 + rounding, "device %zu is %Lg rows off its share %Lg", i, off,
                share);
  }
}

static void check_offsets(const struct cut *cut, const int64_t *offsets) {
  FUZZ_EXPECT(offsets[0] == 0 && offsets[cut->count] == cut->rows, "%lld .. %lld of %lld rows",
              (long long)offsets[0], (long long)offsets[cut->count], (long long)cut->rows);
  for (size_t i = 0; i < cut->count; i++) {
    FUZZ_EXPECT(offsets[i] <= offsets[i + 1], "device %zu has less than no rows", i);
  }
  if (cut->with_options && cut->options.kind == EK_SCATTER_WEIGHTS) {
    check_weights(cut, offsets);
    return;
  }
  for (size_t i = 0; i < cut->count; i++) {
    const int64_t wanted = expected_rows(cut, i);
    FUZZ_EXPECT(offsets[i + 1] - offsets[i] == wanted, "device %zu has %lld rows and not %lld", i,
                (long long)(offsets[i + 1] - offsets[i]), (long long)wanted);
  }
}

/* True if the cut is one that can be made. */
static bool try_offsets(const struct cut *cut) {
  int64_t offsets[FUZZ_MAX_DEVICES + 1];
  for (size_t i = 0; i <= FUZZ_MAX_DEVICES; i++) offsets[i] = -7;
  ek_error_clear();
  const ek_status status =
      ek_scatter_offsets(offsets, cut->rows, cut->count, cut->with_options ? &cut->options : NULL);
  FUZZ_EXPECT((status == EK_OK) == legal(cut), "%s: %s", ek_status_name(status),
              ek_error_message());
  if (status == EK_OK) {
    check_offsets(cut, offsets);
    return true;
  }
  fuzz_expect_explained(status);
  FUZZ_EXPECT(status == EK_ERR_INVALID_ARGUMENT, "%s", ek_status_name(status));
  for (size_t i = 0; i <= FUZZ_MAX_DEVICES; i++) {
    FUZZ_EXPECT(offsets[i] == -7, "a failure wrote offset %zu", i);
  }
  return false;
}

/* ---- the parts ---- */

enum { MOST_ROWS = 40, PER_SAMPLE = 3, MOST_COLUMNS = 4 };

static void expect_same(const ek_tensor *whole, const ek_shards *shards, ek_group *group) {
  static unsigned char bytes[MOST_ROWS * PER_SAMPLE * MOST_COLUMNS * 8];
  ek_tensor host;
  memset(bytes, 0xee, sizeof bytes);
  FUZZ_OK(ek_tensor_host(&host, bytes, whole->type, whole->rank, whole->shape));
  FUZZ_OK(ek_gather_host(&host, shards));
  if (ek_device_counts_only(ek_group_device(group, 0))) return;
  FUZZ_EXPECT(ek_tensor_bytes(whole) == 0 ||
                  memcmp(bytes, whole->data, ek_tensor_bytes(whole)) == 0,
              "what was gathered is not what was scattered");
}

/* The rows again, from a device of the group, cut like the first time. */
static void scatter_like(const ek_shards *shards, const ek_tensor *whole, ek_group *group,
                         struct fuzz_input *input) {
  ek_tensor source = *whole;
  ek_shards like = {0};
  const bool from_device = fuzz_one_in(input, 2);
  if (from_device) {
    ek_device *device = ek_group_device(group, fuzz_byte(input) % ek_group_size(group));
    FUZZ_OK(ek_tensor_create_from(&source, device, EK_MEMORY_INPUTS, whole, false));
  }
  FUZZ_OK(ek_scatter_like(&like, shards, &source, EK_MEMORY_INPUTS));
  FUZZ_OK(ek_shards_wait(&like));
  for (size_t i = 0; i < like.count; i++) {
    FUZZ_EXPECT(like.samples[i] == shards->samples[i], "device %zu has other samples", i);
  }
  expect_same(whole, &like, group);
  ek_shards_free(&like);
  if (from_device) ek_tensor_free(&source);
}

static void try_parts(const struct cut *cut, struct fuzz_input *input) {
  static const ek_type types[] = {EK_F32, EK_F64, EK_BF16, EK_F16, EK_I32};
  static unsigned char bytes[MOST_ROWS * PER_SAMPLE * MOST_COLUMNS * 8];
  ek_group *group = fuzz_devices(fuzz_one_in(input, 4) ? "plan" : "cpu", cut->count);
  const ek_type type = types[fuzz_choice(input, 5)];
  int64_t shape[] = {cut->rows, fuzz_choice(input, MOST_COLUMNS + 1)};
  const int rank = 1 + fuzz_choice(input, 2);
  const ek_memory_category category =
      (ek_memory_category)(fuzz_one_in(input, 16) ? fuzz_byte(input) : EK_MEMORY_INPUTS);
  for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(i * 37 + 11);

  ek_tensor whole;
  ek_shards shards = {0};
  FUZZ_OK(ek_tensor_host(&whole, bytes, type, rank, shape));
  ek_error_clear();
  const ek_status status =
      ek_scatter(&shards, group, &whole, category, cut->with_options ? &cut->options : NULL);
  if (status != EK_OK) {
    fuzz_expect_explained(status);
    FUZZ_EXPECT(category >= EK_MEMORY_CATEGORIES, "%s", ek_error_message());
    FUZZ_EXPECT(shards.count == 0 && shards.group == NULL, "a failure wrote to the shards");
  } else {
    FUZZ_EXPECT(category < EK_MEMORY_CATEGORIES || cut->rows == 0 || ek_tensor_bytes(&whole) == 0,
                "category %d was taken", (int)category);
    FUZZ_OK(ek_shards_wait(&shards));
    expect_same(&whole, &shards, group);
    shape[0] *= 1 + fuzz_choice(input, PER_SAMPLE);
    FUZZ_OK(ek_tensor_host(&whole, bytes, type, rank, shape));
    scatter_like(&shards, &whole, group, input);
    ek_shards_free(&shards);
  }
  fuzz_expect_nothing_held(group);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct fuzz_input input = fuzz_input(data, size);
  struct cut cut;
  read_cut(&cut, &input);
  if (try_offsets(&cut) && cut.rows <= MOST_ROWS && cut.count <= 5) try_parts(&cut, &input);
  return 0;
}
