/*
 * check_weights.c - a model's weights in a file: its own names or another program's, transposed
 * where that one has them so; and nothing changes where the file does not fit.
 */
#include "ck_folder.h"
#include "ck_state.h"
#include "ck_training.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <evenkeel/gpt.h>
#include <evenkeel/host_memory.h>
#include <evenkeel/safetensors.h>
#include <evenkeel/weights.h>

static char folder[CK_FOLDER_SIZE], path[96];

static void make_folder(void) {
  ck_folder_make(folder);
  (void)snprintf(path, sizeof path, "%s/weights", folder);
}

static void remove_folder(void) {
  (void)unlink(path);
  ck_folder_remove(folder);
}

static void open_gpt(struct ck_training *t, int placement, uint64_t seed) {
  struct ck_setup setup = ck_setup_mode(ck_workload("gpt"), "cpu:3", EK_MODE_GATHER);
  ck_setup_place(&setup, placement);
  setup.options.seed = seed;
  ck_training_open(t, &setup);
}

static ek_weights_options hugging_face(const char *prefix) {
  ek_weights_options options = EK_WEIGHTS_OPTIONS_INIT;
  options.names = ek_gpt_hugging_face(&options.name_count);
  options.prefix = prefix;
  return options;
}

/* Left out where the library was built without files. */
static bool no_files(const struct ck_training *t) {
  return ck_no_files(ek_weights_save(t->model, path, NULL));
}

/* The parameters of both are the same to the bit. */
static void compare(const struct ck_training *a, const struct ck_training *b) {
  int64_t count = 0;
  double *got = ck_training_read(a, CK_VALUES, &count);
  double *want = ck_training_read(b, CK_VALUES, &count);
  ck_same_bits("weights", got, want, count);
  free(got);
  free(want);
}

START_TEST(weights_travel) {
  static const char *const prefixes[] = {NULL, "", "transformer."};
  struct ck_training from, to;
  const ek_weights_options options = hugging_face(prefixes[_i % 3]);
  open_gpt(&from, _i % CK_PLACEMENTS, 1);
  open_gpt(&to, (_i + 2) % CK_PLACEMENTS, 2);
  if (!no_files(&from)) {
    /* What Python's packages ask for. */
    ek_safetensors *file = NULL;
    ck_ok(ek_safetensors_open(&file, path));
    ck_assert_ptr_nonnull(ek_safetensors_value(file, "format"));
    ck_assert_str_eq(ek_safetensors_value(file, "format"), "pt");
    ek_safetensors_free(file);
    ck_ok(ek_weights_load(to.model, path, NULL));
    compare(&to, &from);
    ck_training_close(&to);
    open_gpt(&to, (_i + 2) % CK_PLACEMENTS, 3);
    ck_ok(ek_weights_save(from.model, path, &options));
    ck_ok(ek_weights_load(to.model, path, &options));
    compare(&to, &from);
  }
  ck_training_close(&from);
  ck_training_close(&to);
}
END_TEST

/* What the file has is what the other program's layout says. */
START_TEST(names_and_layout_are_theirs) {
  const ek_weights_options options = hugging_face("transformer.");
  struct ck_training t;
  ek_safetensors *file = NULL;
  open_gpt(&t, 3, 1);
  if (!no_files(&t)) {
    ck_ok(ek_weights_save(t.model, path, &options));
    ck_ok(ek_safetensors_open(&file, path));
    const ek_safetensors_entry *entry =
        ek_safetensors_find(file, "transformer.h.1.attn.c_attn.weight");
    ck_assert_ptr_nonnull(entry);
    ck_assert_int_eq(entry->like.shape[0], 8);
    ck_assert_int_eq(entry->like.shape[1], 24);
    float theirs[8 * 24], ours[24 * 8];
    ek_tensor host = entry->like;
    host.data = theirs;
    ck_ok(ek_safetensors_read(&host, file, entry->name));
    host = ck_like(&t, "blocks.1.attention.qkv.weight");
    host.data = ours;
    ck_ok(ek_state_read(&host, t.model, "blocks.1.attention.qkv.weight"));
    for (int i = 0; i < 8; i++) {
      for (int j = 0; j < 24; j++) ck_assert(theirs[i * 24 + j] == ours[j * 8 + i]);
    }
    for (size_t i = 0; i < ek_safetensors_count(file); i++) {
      ck_assert(strncmp(ek_safetensors_at(file, i)->name, "transformer.", 12) == 0);
      ck_assert_ptr_null(strstr(ek_safetensors_at(file, i)->name, "blocks"));
    }
    ek_safetensors_free(file);
    /* A file without the prefix is taken as well. */
    const ek_weights_options bare = hugging_face(NULL);
    ck_ok(ek_weights_save(t.model, path, &bare));
    ck_ok(ek_weights_load(t.model, path, &options));
  }
  ck_training_close(&t);
}
END_TEST

/* The Python packages refuse a file whose header does not say `format`. */
START_TEST(the_header_says_the_format) {
  struct ck_training t;
  open_gpt(&t, 3, 1);
  if (!no_files(&t)) {
    char header[4096];
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    const size_t size = fread(header, 1, sizeof header - 1, file);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_uint_gt(size, 8);
    header[size] = '\0';
    ck_assert_ptr_nonnull(strstr(header + 8, "\"format\":\"pt\"")); /* behind its length */
  }
  ck_training_close(&t);
}
END_TEST

START_TEST(what_does_not_fit_changes_nothing) {
  const ek_weights_options options = hugging_face(NULL);
  struct ck_training t, other;
  const struct ck_setup mlp = ck_setup_mode(ck_workload("mlp"), "cpu:2", EK_MODE_SHARDED);
  open_gpt(&t, 1, 1);
  ck_training_open(&other, &mlp);
  if (!no_files(&other)) {
    struct ck_state before = ck_state_take(t.model);
    const ek_weights_options no_names = {sizeof no_names, NULL, 3, NULL};
    ck_fails(ek_weights_load(t.model, path, NULL), EK_ERR_MISMATCH, "has no tokens.weight");
    ck_fails(ek_weights_load(t.model, path, &options), EK_ERR_MISMATCH, "has no wte.weight, which");
    ck_fails(ek_weights_load(t.model, path, &no_names), EK_ERR_INVALID_ARGUMENT, "names is NULL");
    ck_fails(ek_weights_load(t.model, NULL, NULL), EK_ERR_INVALID_ARGUMENT, "path is NULL");
    ck_fails(ek_weights_load(t.model, folder, NULL), EK_ERR_IO, "no regular file");
    const ek_safetensors_entry entry = {"wte.weight", {.type = EK_F32, .rank = 1, .shape = {0}}};
    ek_safetensors_writer *writer = NULL;
    ck_ok(ek_safetensors_create(&writer, path, &entry, 1, NULL, 0));
    ck_ok(ek_safetensors_finish(writer));
    ek_safetensors_writer_free(writer);
    ck_fails(ek_weights_load(t.model, path, &options), EK_ERR_MISMATCH, "another shape");
    struct ck_state after = ck_state_take(t.model);
    ck_state_same("after refused files", &after, &before);
    ck_state_drop(&before);
    ck_state_drop(&after);
  }
  ck_training_close(&t);
  ck_training_close(&other);
}
END_TEST

START_TEST(every_allocation_fails_once) {
  const ek_weights_options options = hugging_face("transformer.");
  struct ck_training t;
  open_gpt(&t, 2, 1);
  if (!no_files(&t)) {
    ck_ok(ek_weights_save(t.model, path, &options));
    struct ck_state before = ck_state_take(t.model);
    for (uint64_t n = 1;; n++) {
      ek_host_memory_fail_at(n);
      const ek_status status = _i == 0 ? ek_weights_save(t.model, path, &options)
                                       : ek_weights_load(t.model, path, &options);
      ek_host_memory_fail_at(0);
      if (status == EK_OK) break;
      ck_assert_int_eq(status, EK_ERR_OUT_OF_MEMORY);
    }
    ck_ok(ek_weights_load(t.model, path, &options));
    struct ck_state after = ck_state_take(t.model);
    ck_state_same("after failures", &after, &before);
    ck_state_drop(&before);
    ck_state_drop(&after);
  }
  ck_training_close(&t);
}
END_TEST

static Suite *make_suite(void) {
  Suite *suite = suite_create("weights");
  TCase *tests = ck_case(suite, "weights");
  tcase_add_checked_fixture(tests, make_folder, remove_folder);
  tcase_add_loop_test(tests, weights_travel, 0, CK_PLACEMENTS);
  tcase_add_test(tests, names_and_layout_are_theirs);
  tcase_add_test(tests, the_header_says_the_format);
  tcase_add_test(tests, what_does_not_fit_changes_nothing);
  tcase_add_loop_test(tests, every_allocation_fails_once, 0, 2);
  return suite;
}

CK_MAIN(make_suite)
