/*
 * check_tokens.c - files of tokens: which windows they have, how they are found, and files that are
 * damaged.
 */
#include "ek_check.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ck_folder.h"

static const char *folder;

static void make(void) { folder = ck_folder(); }

static const char *in_folder(const char *name) { return ck_file(folder, name); }

static const char *all_files(void) { return in_folder("*.bin"); }

/* Token i of a file is start + i; without a magic number the file has no header. */
static void write_tokens(const char *name, int32_t magic, int32_t version, ek_type type,
                         uint32_t start, int32_t count, int32_t claimed) {
  FILE *file = fopen(in_folder(name), "wb");
  int32_t header[256] = {magic, version, claimed};
  ck_assert_ptr_nonnull(file);
  if (magic != 0) ck_assert(fwrite(header, sizeof header, 1, file) == 1);
  for (int32_t i = 0; i < count; i++) {
    const uint32_t wide = start + (uint32_t)i;
    const uint16_t narrow = (uint16_t)wide;
    const void *token = type == EK_U16 ? (const void *)&narrow : (const void *)&wide;
    ck_assert(fwrite(token, ek_type_size(type), 1, file) == 1);
  }
  ck_assert(fclose(file) == 0);
}

static ek_tokens_options windows(int64_t sequence) {
  CK_WITH(ek_tokens_options, options, EK_TOKENS_OPTIONS_INIT, .sequence = sequence,
          .in_order = true);
  return options;
}

static ek_source *open_tokens(const ek_tokens_options *options) {
  CK_OPENED(ek_source *, source, ek_tokens_open(&source, all_files(), options));
  return source;
}

enum { MOST = 64, LONGEST = 16 };
static uint32_t input[MOST * LONGEST], target[MOST * LONGEST];
static int32_t document[MOST * LONGEST];

static ek_status read_windows(const ek_source *source, int64_t first, int64_t count) {
  ek_tensor tensors[3];
  const size_t tensor_count = ek_source_inputs(source) + ek_source_targets(source);
  const ek_source_tensor *row = ek_source_tensor_of(source, 0);
  const int64_t shape[] = {count, row->shape[0]};
  ck_ok(ek_tensor_host(&tensors[0], input, row->type, 2, shape));
  ck_ok(ek_tensor_host(&tensors[tensor_count - 1], target,
                       ek_source_tensor_of(source, tensor_count - 1)->type, 2, shape));
  if (tensor_count == 3) ck_ok(ek_tensor_host(&tensors[1], document, EK_I32, 2, shape));
  return ek_source_read(tensors, tensor_count, source, first, count);
}

static uint32_t at(const uint32_t *row, int64_t i, ek_type type) {
  return type == EK_U16 ? ((const uint16_t *)row)[i] : row[i];
}

/* Files of 13, 0, 5, 4 and 6 tokens in windows of 5: 2, 0, 0, 0 and 1 samples. */
CK_LOOP(windows_follow_each_other_in_each_file, 3) {
  static const int32_t counts[] = {13, 0, 5, 4, 6};
  const ek_type type = _i == 1 ? EK_U32 : EK_U16;
  for (size_t i = 0; i < 5; i++) {
    const char *name = ck_text("%zu.bin", i);
    write_tokens(name, _i == 2 ? 0 : _i == 1 ? 20240801 : 20240520, _i == 1 ? 7 : 1, type,
                 100 * (uint32_t)i + (_i == 1 ? 70000 : 0), counts[i], counts[i]);
  }
  const ek_tokens_options options = windows(5);
  ek_source *source = open_tokens(&options);
  ck_assert(ek_source_samples(source) == 3 && ek_source_tensor_of(source, 0)->type == type);
  ck_ok(read_windows(source, 0, 6));
  static const uint32_t starts[] = {0, 5, 400};
  for (int64_t i = 0; i < 30; i++) {
    const uint32_t token = starts[i / 5 % 3] + (uint32_t)(i % 5) + (_i == 1 ? 70000 : 0);
    ck_assert(at(input, i, type) == token && at(target, i, type) == token + 1);
  }
}

CK_TEST(raw_files_may_have_32_bits) {
  write_tokens("a.bin", 0, 0, EK_U32, 70000, 9, 0);
  CK_WITH(ek_tokens_options, options, windows(4), .raw = EK_U32);
  ek_source *source = open_tokens(&options);
  ck_ok(read_windows(source, 1, 1));
  ck_assert(ek_source_samples(source) == 2 && input[0] == 70004 && target[3] == 70008);
}

/* Patterns keep their order, whatever the names are. */
CK_TEST(files_of_several_patterns_follow_each_other) {
  write_tokens("a.bin", 0, 0, EK_U16, 100, 5, 0);
  write_tokens("b1.bin", 0, 0, EK_U16, 200, 5, 0);
  write_tokens("b2.bin", 0, 0, EK_U16, 300, 5, 0);
  const char *first = in_folder("b?.bin"), *more[] = {in_folder("a.bin")};
  CK_WITH(ek_tokens_options, options, windows(4), .more = more, .more_count = 1);
  CK_OPENED(ek_source *, source, ek_tokens_open(&source, first, &options));
  ck_assert(ek_source_samples(source) == 3);
  ck_ok(read_windows(source, 0, 3));
  static const uint32_t starts[] = {200, 300, 100};
  for (int64_t i = 0; i < 12; i++) {
    ck_assert(at(input, i, EK_U16) == starts[i / 4] + (uint32_t)(i % 4));
  }
  ek_source *none = NULL;
  more[0] = "/nowhere/at-all.bin";
  ck_fails(ek_tokens_open(&none, first, &options), EK_ERR_NOT_FOUND, "/nowhere/at-all.bin");
  more[0] = NULL;
  ck_invalid(ek_tokens_open(&none, first, &options), "pattern is NULL");
  options.more = NULL;
  ck_invalid(ek_tokens_open(&none, first, &options), "options.more is NULL");
  ck_assert_ptr_null(none);
}

CK_TEST(documents_are_numbered_in_each_window) {
  static const uint16_t tokens[] = {5, 9, 9, 4, 3, 9, 2, 1, 8, 9, 7, 6, 6};
  ck_write_file(in_folder("a.bin"), tokens, sizeof tokens);
  CK_WITH(ek_tokens_options, options, windows(6), .document_end = 9);
  ek_source *source = open_tokens(&options);
  ck_assert(ek_source_inputs(source) == 2 && ek_source_targets(source) == 1);
  ck_ok(read_windows(source, 0, 2));
  static const int32_t wanted[] = {0, 0, 1, 2, 2, 2, 0, 0, 0, 0, 1, 1};
  ck_assert_mem_eq(document, wanted, sizeof wanted);
}

/* The targets after 9 are ignored, the rest are the tokens that follow; in 16 and 32 bits. */
CK_LOOP(targets_after_an_ending_token_are_ignored, 2) {
  static const int32_t tokens[] = {5, 9, 9, 4, 3, 9, 2, 1, 8, 9, 7, 6, 6};
  static const int32_t wanted[] = {9, -100, -100, 3, 9, -100, 1, 8, 9, -100, 6, 6};
  uint16_t narrow[13];
  for (size_t i = 0; i < 13; i++) narrow[i] = (uint16_t)tokens[i];
  if (_i == 0)
    ck_write_file(in_folder("a.bin"), narrow, sizeof narrow);
  else ck_write_file(in_folder("a.bin"), tokens, sizeof tokens);
  CK_WITH(ek_tokens_options, options, windows(6), .raw = _i == 0 ? EK_U16 : EK_U32,
          .document_end = 9, .ignore_after_end = true);
  ek_source *source = open_tokens(&options);
  ck_assert(ek_source_tensor_of(source, 2)->type == EK_I32);
  ck_ok(read_windows(source, 0, 2));
  ck_assert_mem_eq(target, wanted, sizeof wanted);
  ck_assert(at(input, 5, options.raw) == 9 && at(input, 11, options.raw) == 6);
}

CK_TEST(a_token_that_a_target_cannot_hold_is_refused) {
  write_tokens("a.bin", 0, 0, EK_U32, INT32_MAX - 4u, 9, 0);
  CK_WITH(ek_tokens_options, options, windows(4), .raw = EK_U32, .document_end = 9);
  ck_ok(read_windows(open_tokens(&options), 1, 1));
  options.ignore_after_end = true;
  ek_source *source = open_tokens(&options);
  ck_ok(read_windows(source, 0, 1));
  ck_fails(read_windows(source, 1, 1), EK_ERR_CORRUPT,
           "token 2147483648 at place 5 is outside of 0..2147483647");
}

/* ---- what is refused ---- */

static void refused(const ek_tokens_options *options, ek_status status, const char *text) {
  ek_source *source = NULL;
  ek_error_clear();
  const ek_status got = ek_tokens_open(&source, all_files(), options);
  ck_assert_msg(got == status && strstr(ek_error_message(), text) != NULL, "%s: %s, not %s: %s",
                ek_status_name(got), ek_error_message(), ek_status_name(status), text);
  ck_assert_ptr_null(source);
}

CK_TEST(damaged_files_are_named) {
  const ek_tokens_options options = windows(4);
  refused(&options, EK_ERR_NOT_FOUND, "/*.bin: no such file");
  write_tokens("a.bin", 20240520, 1, EK_U16, 0, 20, 21);
  refused(&options, EK_ERR_CORRUPT,
          "a.bin: 1064 bytes; its header says 21 tokens, which take 1066");
  write_tokens("a.bin", 20240520, 1, EK_U16, 0, 20, 19);
  refused(&options, EK_ERR_CORRUPT, "its header says 19 tokens");
  write_tokens("a.bin", 20240520, 1, EK_U16, 0, 20, -1);
  refused(&options, EK_ERR_CORRUPT, "its header says -1 tokens");
  write_tokens("a.bin", 20240520, 2, EK_U16, 0, 20, 20);
  refused(&options, EK_ERR_UNSUPPORTED, "a.bin: version 2");
  write_tokens("a.bin", 20240801, 1, EK_U32, 0, 20, 20);
  refused(&options, EK_ERR_UNSUPPORTED, "expected version 7");
  write_tokens("a.bin", 20240520, 1, EK_U16, 0, 20, 20);
  ck_assert(truncate(in_folder("a.bin"), 600) == 0);
  refused(&options, EK_ERR_CORRUPT, "a.bin: 600 bytes");
  ck_assert(truncate(in_folder("a.bin"), 11) == 0);
  refused(&options, EK_ERR_CORRUPT, "a.bin: 11 bytes are not a whole number of u16 tokens");
  write_tokens("a.bin", 20240520, 1, EK_U16, 0, 20, 20);
  write_tokens("b.bin", 20240801, 7, EK_U32, 0, 20, 20);
  refused(&options, EK_ERR_TYPE, "b.bin has u32 tokens");
  ck_assert(unlink(in_folder("b.bin")) == 0);
  const ek_tokens_options wide = windows(20);
  refused(&wide, EK_ERR_INVALID_ARGUMENT, "no file has the 21 tokens");
}

CK_TEST(a_file_that_changes_later) {
  write_tokens("a.bin", 20240520, 1, EK_U16, 0, 41, 41);
  CK_WITH(ek_tokens_options, options, windows(4), .vocabulary = 30);
  ek_source *source = open_tokens(&options);
  ck_ok(read_windows(source, 0, 7));
  ck_fails(read_windows(source, 7, 1), EK_ERR_CORRUPT,
           "a.bin: token 30 at place 30 is outside of 0..29");
  options.vocabulary = 32;
  ck_fails(read_windows(open_tokens(&options), 7, 1), EK_ERR_CORRUPT,
           "a.bin: token 32 at place 32 is outside of 0..31");
  ck_assert(truncate(in_folder("a.bin"), 1024 + 30) == 0);
  ck_ok(read_windows(source, 0, 3));
  ck_fails(read_windows(source, 3, 1), EK_ERR_CORRUPT, "a.bin");
}

CK_TEST(options_that_make_no_sense) {
  write_tokens("a.bin", 0, 0, EK_U16, 0, 20, 20);
  ek_source *source = NULL;
  ek_tokens_options bad;
#define BAD(member, value, text)                                                                   \
  bad = windows(4);                                                                                \
  bad.member = (value);                                                                            \
  refused(&bad, EK_ERR_INVALID_ARGUMENT, text)
  BAD(sequence, 0, "sequence is 0");
  BAD(sequence, INT64_MAX, "sequence is");
  BAD(vocabulary, -1, "vocabulary is -1");
  BAD(raw, EK_I32, "raw is i32, expected u16 or u32");
  BAD(document_end, -2, "document_end is -2");
  BAD(ignore_after_end, true, "ignore_after_end needs options.document_end");
#undef BAD
  ck_invalid(ek_tokens_open(NULL, "a", NULL), "source is NULL");
  ck_invalid(ek_tokens_open(&source, NULL, NULL), "pattern is NULL");
}

CK_TEST(no_memory) {
  write_tokens("a.bin", 0, 0, EK_U16, 0, 20, 20);
  write_tokens("b.bin", 0, 0, EK_U16, 0, 20, 20);
  const ek_tokens_options options = windows(4);
  ek_source *source = NULL;
  uint64_t n = 0;
  while (ck_host_fails(&n, ek_tokens_open(&source, all_files(), &options))) {
    ck_assert_ptr_null(source);
  }
  ck_assert_uint_ge(n, 3);
  ck_keep(source);
  ek_host_memory_fail_at(1); /* reading takes none */
  ck_ok(read_windows(source, 0, 5));
  ek_host_memory_fail_at(0);
}

/* Random bytes after each magic number, and none: a file is refused or read, within its bytes. */
CK_TEST(random_files_are_refused_or_read) {
  const ek_random_key key = {20261124, 0, 1};
  int read = 0;
  for (uint32_t i = 0; i < 300; i++) {
    uint32_t bits[4], bytes[512];
    ek_random_bits(key, i, 0, bits);
    const size_t size = bits[0] % sizeof bytes;
    for (uint32_t j = 0; j < 128; j++) ek_random_bits(key, i, j + 1, &bytes[4 * j]);
    if (bits[1] % 3 != 0) bytes[0] = bits[1] % 3 == 1 ? 20240520 : 20240801;
    if (bits[2] % 4 != 0) bytes[1] = bits[1] % 3 == 1 ? 1 : 7;
    if (bits[3] % 4 != 0 && size > 1024)
      bytes[2] = (uint32_t)(size - 1024) / (bits[1] % 3 == 1 ? 2 : 4);
    ck_write_file(in_folder("a.bin"), bytes, size);
    const ek_tokens_options options = windows(8);
    ek_source *source = NULL;
    if (ek_tokens_open(&source, all_files(), &options) != EK_OK) continue;
    const int64_t samples = ek_source_samples(source);
    ck_ok(read_windows(source, 0, samples < MOST ? samples : MOST));
    ck_ok(read_windows(source, samples - 1, 1));
    ek_source_free(source);
    read++;
  }
  ck_assert_msg(read > 20, "only %d of 300 files were read", read);
}

/* 100 files of a sparse gigabyte: the last sample is as near as the first. */
CK_TEST(any_sample_of_100_gigabytes_is_near) {
  enum { FILES = 100 };
  for (int i = 0; i < FILES; i++) {
    const int file = open(in_folder(ck_text("%03d.bin", i)), O_WRONLY | O_CREAT, 0600);
    ck_assert(file >= 0 && ftruncate(file, (off_t)1 << 30) == 0 && close(file) == 0);
  }
  CK_WITH(ek_tokens_options, options, windows(16), .in_order = false);
  ek_source *source = open_tokens(&options);
  ck_assert(ek_source_samples(source) == FILES * (((INT64_C(1) << 29) - 1) / 16));
  double longest = 0;
  for (int64_t i = 0; i < 1000; i++) {
    const double before = ck_now();
    ck_ok(read_windows(source, i * 3141592, 1));
    longest = fmax(longest, ck_now() - before);
  }
  printf("the longest of 1,000 random samples took %.3f ms\n", 1e3 * longest);
}

CK_SUITE_WITH("tokens", make, NULL)
