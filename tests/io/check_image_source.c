/*
 * check_image_source.c - pictures of files and arrays: their bytes, crops and mirroring that follow
 * from the sample's number, and files that are damaged.
 */
#include "ek_check.h"

#include <unistd.h>

#include "ck_folder.h"

static const char *folder, *path, *other;

static void make(void) {
  folder = ck_folder();
  path = ck_file(folder, "a.bin");
  other = ck_file(folder, "b.bin");
}

static uint8_t pictures[1 << 16];

/* A header and `count` bytes of the pictures. */
static void write_file(const char *name, const uint8_t *head, size_t head_bytes, size_t count) {
  CK_HELD(uint8_t *, bytes, ck_array(head_bytes + count, 1));
  memcpy(bytes, head, head_bytes);
  memcpy(bytes + head_bytes, pictures, count);
  ck_write_file(name, bytes, head_bytes + count);
}

static int32_t labels[64];

/* ---- arrays: pixel (v, h) of picture i has i, v, h in its channels, and class v * 16 + h ---- */

enum { COUNT = 20, HEIGHT = 5, WIDTH = 6, CHANNELS = 3 };
static uint8_t drawn[COUNT * HEIGHT * WIDTH * CHANNELS], drawn_maps[COUNT * HEIGHT * WIDTH];

static ek_source *open_drawn(const ek_image_options *options, bool with_maps) {
  ek_image_arrays arrays = EK_IMAGE_ARRAYS_INIT;
  for (int i = 0; i < COUNT * HEIGHT * WIDTH; i++) {
    const int picture = i / (HEIGHT * WIDTH), v = i / WIDTH % HEIGHT, h = i % WIDTH;
    drawn[3 * i] = (uint8_t)(picture + 1);
    drawn[3 * i + 1] = (uint8_t)v;
    drawn[3 * i + 2] = (uint8_t)h;
    drawn_maps[i] = (uint8_t)(v * 16 + h);
    labels[picture] = 1000 + picture;
  }
  ck_assign(arrays, .count = COUNT, .height = HEIGHT, .width = WIDTH, .pictures = drawn);
  if (with_maps) arrays.maps = drawn_maps;
  else arrays.classes = labels;
  CK_OPENED(ek_source *, source, ek_image_source_open_arrays(&source, &arrays, options));
  return source;
}

static void read_some(const ek_source *source, int64_t first, int64_t count, uint8_t *x, void *y) {
  ek_tensor tensors[2];
  for (size_t i = 0; i < 2; i++) {
    const ek_source_tensor *of = ek_source_tensor_of(source, i);
    int64_t shape[EK_MAX_RANK] = {count};
    for (int d = 0; d < of->rank; d++) shape[d + 1] = of->shape[d];
    ck_ok(ek_tensor_host(&tensors[i], i == 0 ? x : y, of->type, of->rank + 1, shape));
  }
  ck_ok(ek_source_read(tensors, 2, source, first, count));
}

CK_TEST(the_middle_is_taken) {
  CK_WITH(ek_image_options, options, EK_IMAGE_OPTIONS_INIT, .in_order = true, .crop[0] = 3,
          .crop[1] = 2);
  ek_source *source = open_drawn(&options, false);
  int32_t y[COUNT];
  read_some(source, 0, COUNT, pictures, y);
  for (int i = 0; i < COUNT * 6; i++) {
    ck_assert(pictures[3 * i] == i / 6 + 1 && y[i / 6] == 1000 + i / 6);
    ck_assert(pictures[3 * i + 1] == 1 + i / 2 % 3 && pictures[3 * i + 2] == 2 + i % 2);
  }
}

/* A crop is one rectangle, mirrored or not, and the same of picture and map. All places and both
 * sides come up, and the same ones again. */
CK_TEST(crops_follow_from_the_sample) {
  enum { P = 1, H = 4, W = 5, EPOCHS = 60, N = EPOCHS * COUNT };
  static uint8_t x[N * H * W * 3], y[N * H * W], again[N * H * W * 3], y_again[N * H * W];
  int seen[HEIGHT + 2 * P - H + 1][WIDTH + 2 * P - W + 1][2] = {{{0}}}, differ = 0;
  CK_WITH(ek_image_options, options, EK_IMAGE_OPTIONS_INIT, .augment = true, .padding = P,
          .crop[0] = H, .crop[1] = W, .seed = 5);
  ek_source *source = open_drawn(&options, true);
  read_some(source, 0, N, x, y);
  for (int64_t i = 0; i < N; i++) {
    const uint8_t *at = x + i * H * W * 3, *map = y + i * H * W;
    const uint8_t *inner = at + (1 * W + 2) * 3; /* never of the padding */
    const int mirrored = inner[5] < inner[2];
    const int top = inner[1] - 1 + P, left = (mirrored ? inner[2] - 2 : inner[2] - 2) + P;
    CK_GOT(int64_t, sample, ek_source_at(&sample, NULL, source, i));
    seen[top][left][mirrored]++;
    for (int k = 0; k < H * W; k++) {
      const int v = top + k / W - P, h = left + (mirrored ? W - 1 - k % W : k % W) - P;
      const bool inside = v >= 0 && v < HEIGHT && h >= 0 && h < WIDTH;
      ck_assert(map[k] == (inside ? v * 16 + h : 255));
      ck_assert(at[3 * k] == (inside ? sample + 1 : 0));
      ck_assert(at[3 * k + 1] == (inside ? v : 0) && at[3 * k + 2] == (inside ? h : 0));
    }
    if (i >= COUNT) differ += memcmp(at, at - COUNT * H * W * 3, H * W * 3) != 0;
  }
  for (int t = 0; t < HEIGHT + 2 * P - H + 1; t++) {
    for (int l = 0; l < WIDTH + 2 * P - W + 1; l++) {
      ck_assert_msg(seen[t][l][0] > 10 && seen[t][l][1] > 10, "%d %d: %d and %d times", t, l,
                    seen[t][l][0], seen[t][l][1]);
    }
  }
  ck_assert_int_gt(differ, N / 2);
  for (int64_t i = 0; i < N; i += 7) { /* in other pieces */
    const int64_t count = N - i < 7 ? N - i : 7;
    read_some(source, i, count, again + i * H * W * 3, y_again + i * H * W);
  }
  ck_assert_mem_eq(x, again, sizeof x);
  ck_assert_mem_eq(y, y_again, sizeof y);
}

CK_TEST(a_scaling_of_mean_and_deviation) {
  const double mean[] = {0.5, 0.25}, deviation[] = {0.5, 2}, none[] = {1, 0}, tiny[] = {1, 1e-320};
  CK_GOT(ek_input_scaling, scaling, ek_image_scaling(&scaling, mean, deviation, 2));
  ck_assert(scaling.channels == 2);
  for (int c = 0; c < 2; c++) {
    for (int p = 0; p < 256; p += 51) {
      ck_assert_double_eq_tol(p * scaling.scale[c] + scaling.offset[c],
                              (p / 255.0 - mean[c]) / deviation[c], 1e-15);
    }
  }
  ck_invalid(ek_image_scaling(&scaling, mean, none, 2), "channel 1");
  ck_invalid(ek_image_scaling(&scaling, mean, tiny, 2), "channel 1");
  ck_invalid(ek_image_scaling(&scaling, mean, mean, 5), "5 channels");
  ck_invalid(ek_image_scaling(NULL, mean, mean, 1), "scaling is NULL");
}

/* ---- files ---- */

static const uint8_t four[] = {0, 0, 8, 3, 0, 0, 0, 4, 0, 0, 0, 2, 0, 0, 0, 3};
static const uint8_t four_classes[] = {0, 0, 8, 1, 0, 0, 0, 4, 9, 8, 7, 6};

static void write_idx(void) {
  for (int i = 0; i < 24; i++) pictures[i] = (uint8_t)(10 * i);
  write_file(path, four, sizeof four, 24);
  ck_write_file(other, four_classes, sizeof four_classes);
}

CK_TEST(mnist) {
  uint8_t x[24], y[4];
  CK_WITH(ek_image_options, options, EK_IMAGE_OPTIONS_INIT, .in_order = true);
  write_idx();
  CK_OPENED(ek_source *, source, ek_image_source_open_idx(&source, path, other, &options));
  const ek_source_tensor *of = ek_source_tensor_of(source, 0);
  ck_assert(ek_source_samples(source) == 4 && of->rank == 3 && of->shape[2] == 1);
  read_some(source, 0, 4, x, y);
  ck_assert_mem_eq(x, pictures, 24);
  ck_assert_mem_eq(y, four_classes + 8, 4);
}

static void idx_fails(ek_status wanted, const char *text) {
  ek_source *source = NULL;
  ck_fails(ek_image_source_open_idx(&source, path, other, NULL), wanted, text);
  ck_assert_ptr_null(source);
}

CK_TEST(damaged_idx_files) {
  uint8_t bad[sizeof four];
  idx_fails(EK_ERR_NOT_FOUND, "a.bin");
  write_idx();
  ck_assert(truncate(path, 39) == 0);
  idx_fails(EK_ERR_CORRUPT, "a.bin: 39 bytes; its header says 16 and 24 elements");
  ck_assert(truncate(path, 9) == 0);
  idx_fails(EK_ERR_CORRUPT, "a.bin: 9 bytes");
  ck_assert(truncate(path, 3) == 0);
  idx_fails(EK_ERR_CORRUPT, "a.bin: 3 bytes are too few for an IDX file");
  memcpy(bad, four, sizeof bad);
  bad[2] = 13;
  write_file(path, bad, sizeof bad, 24);
  idx_fails(EK_ERR_CORRUPT, "a.bin: begins with 00 00 0d 03");
  const uint8_t five_dimensions[24] = {0, 0, 8, 5};
  ck_write_file(path, five_dimensions, sizeof five_dimensions);
  idx_fails(EK_ERR_CORRUPT, "expected an IDX file of u8 (00 00 08) with 3 to 4 dimensions");
  write_idx();
  ck_assert(truncate(other, 11) == 0);
  idx_fails(EK_ERR_CORRUPT, "b.bin");
  const uint8_t three[] = {0, 0, 8, 1, 0, 0, 0, 3, 9, 8, 7};
  ck_write_file(other, three, sizeof three);
  idx_fails(EK_ERR_SHAPE, "has 4 pictures");
  memset(bad + 4, 0xFF, 12);
  bad[2] = 8;
  write_file(path, bad, sizeof bad, 24);
  idx_fails(EK_ERR_CORRUPT, "a.bin: 40 bytes");
}

/* Two files of 3 and 2 records, of 1 or 2 classes. */
CK_LOOP(cifar, 2) {
  const size_t record = 3072 + 1 + (size_t)_i;
  static uint8_t x[5 * 3072];
  uint8_t y[5];
  for (size_t i = 0; i < 5 * record; i++) pictures[i] = (uint8_t)(i * 7 + i / 251);
  ck_write_file(path, pictures, 3 * record);
  ck_write_file(other, pictures + 3 * record, 2 * record);
  const char *pattern = ck_file(folder, "*.bin");
  CK_WITH(ek_image_options, options, EK_IMAGE_OPTIONS_INIT, .in_order = true);
  CK_OPENED(ek_source *, source, ek_image_source_open_cifar(&source, pattern, _i == 1, &options));
  ck_assert(ek_source_samples(source) == 5);
  read_some(source, 0, 5, x, y);
  for (size_t i = 0; i < 5; i++) {
    const uint8_t *at = pictures + i * record;
    ck_assert(y[i] == at[_i]);
    for (size_t k = 0; k < 3072; k++) {
      ck_assert(x[i * 3072 + k] == at[1 + (size_t)_i + k % 3 * 1024 + k / 3]);
    }
  }
  ck_assert(truncate(other, (off_t)record) == 0);
  ek_tensor tensors[2];
  const int64_t shape[] = {5, 32, 32, 3};
  ck_ok(ek_tensor_host(&tensors[0], x, EK_U8, 4, shape));
  ck_ok(ek_tensor_host(&tensors[1], y, EK_U8, 1, shape));
  ck_fails(ek_source_read(tensors, 2, source, 0, 5), EK_ERR_CORRUPT, "b.bin");
  ck_assert(truncate(other, (off_t)record + 1) == 0);
  ek_source *none = NULL;
  ck_fails(ek_image_source_open_cifar(&none, pattern, _i == 1, NULL), EK_ERR_CORRUPT,
           "are not a whole number of records");
  ck_fails(ek_image_source_open_cifar(&none, "/nobody/*", _i == 1, NULL), EK_ERR_NOT_FOUND,
           "/nobody/*: no such file");
}

/* ---- what is refused ---- */

CK_TEST(options_that_make_no_sense) {
  ek_image_options o = EK_IMAGE_OPTIONS_INIT;
  ek_source *source = NULL;
  CK_WITH(ek_image_arrays, arrays, EK_IMAGE_ARRAYS_INIT, .count = 2);
  arrays.height = arrays.width = 4;
  arrays.pictures = pictures;
#define OPEN ek_image_source_open_arrays(&source, &arrays, &o)
  ck_invalid(OPEN, "either classes or maps");
  arrays.classes = labels;
  ck_bad(arrays, maps, pictures, OPEN, "either classes or maps");
  ck_bad_with(EK_ERR_SHAPE, o, crop[0], 5, OPEN, "crop is 5 x 0; pictures are 4 x 4");
  ck_bad(o, crop[0], -1, OPEN, "expected 0 or more");
  ck_bad(o, padding, -1, OPEN, "padding is -1");
  ck_bad(arrays, width, 0, OPEN, "expected sizes above 0");
  arrays.width = arrays.height = INT64_MAX / 2;
  ck_fails(OPEN, EK_ERR_OVERFLOW, "63 bits");
#undef OPEN
  ck_invalid(ek_image_source_open_arrays(&source, NULL, NULL), "arrays is NULL");
  ck_invalid(ek_image_source_open_idx(&source, NULL, other, NULL), "pictures is NULL");
  ck_invalid(ek_image_source_open_cifar(NULL, path, false, NULL), "source is NULL");
  ck_assert_ptr_null(source);
}

CK_TEST(no_memory) {
  write_idx();
  ek_source *source = NULL;
  uint64_t n = 0;
  while (ck_host_fails(&n, ek_image_source_open_idx(&source, path, other, NULL))) {
    ck_assert_ptr_null(source);
  }
  ck_assert_uint_ge(n, 3);
  ck_keep(source);
  uint8_t x[24], y[4];
  ek_host_memory_fail_at(1); /* reading takes none */
  read_some(source, 0, 4, x, y);
  ek_host_memory_fail_at(0);
}

CK_SUITE_WITH("image_source", make, NULL)
