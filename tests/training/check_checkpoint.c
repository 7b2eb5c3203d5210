/*
 * check_checkpoint.c - the state of a run in files: what goes on from one equals what was never
 * stopped, what is damaged or another model's is refused, and nothing that fails loses anything.
 *
 * Where mode and devices are the same, a resumed run is the same to the bit; elsewhere the bounds
 * are those of check_state.c. What the system refuses is tests/faults/check_file_calls.c.
 */
#include "ck_folder.h"
#include "ck_gpt.h"
#include "ck_locale.h"
#include "ck_state.h"
#include "ck_training.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SAMPLES = 7, STEPS = 4, STOP = 2 };

static const char *folder, *states[STEPS + 1];

static void make_folder(void) {
  folder = ck_folder();
  for (int step = 0; step <= STEPS; step++) states[step] = ck_state_file(folder, step);
}

static struct ck_setup setup_of(const char *workload, int placement) {
  return ck_setup_at(ck_workload(workload), "cpu:3", placement);
}

static void go(struct ck_training *t, int first, int last) {
  for (int step = first; step < last; step++) {
    struct ck_batch batch =
        ck_batch_make(t->setup.workload, t->setup.options.type, SAMPLES, 0.2, (uint64_t)step + 50);
    ck_ok(ck_training_step(t, &batch, NULL));
  }
}

/* Left out where the library was built without files. */
static bool no_files(const struct ck_training *t) {
  return ck_no_files(ek_checkpoint_save(t->model, folder, NULL));
}

static bool exists(int step) { return access(states[step], F_OK) == 0; }

/* ---- resuming ---- */

/* `begun` runs to STOP, is saved, and goes on as `other` from the file. */
static void carry(const struct ck_setup *setup, const struct ck_setup *other, bool background) {
  struct ck_setup fresh = *other;
  fresh.options.seed = 12345; /* other initial values, and the masks of another run */
  CK_WITH(ek_checkpoint_options, options, EK_CHECKPOINT_OPTIONS_INIT, .position = INT64_MAX - 7);
  struct ck_training begun = ck_training_opened(setup);
  go(&begun, 0, STOP);
  if (no_files(&begun)) return;
  if (background) {
    ek_checkpoint_write *write = NULL;
    ck_ok(ek_checkpoint_begin(&write, begun.model, folder, &options));
    go(&begun, STOP, STEPS); /* what is written is what was there */
    ck_training_close(&begun);
    ck_ok(ek_checkpoint_end(write));
  } else {
    ck_ok(ek_checkpoint_save(begun.model, folder, &options));
    ck_training_close(&begun);
  }
  CK_HELD(struct ck_training, whole, ck_training_opened(setup));
  go(&whole, 0, STEPS);
  CK_HELD(struct ck_training, resumed, ck_training_opened(&fresh));
  CK_GOT(ek_checkpoint_info, info, ek_checkpoint_load(&info, resumed.model, folder));
  ck_assert_int_eq(info.step, STOP);
  ck_assert_int_eq(info.position, INT64_MAX - 7);
  ck_assert(info.has_schedule && info.schedule.kind == EK_SCHEDULE_CONSTANT);
  go(&resumed, STOP, STEPS);
  struct ck_state got = ck_state_take(resumed.model), want = ck_state_take(whole.model);
  if (strcmp(setup->spec, other->spec) == 0 && setup->options.state == other->options.state &&
      setup->options.outputs == other->options.outputs) {
    ck_state_same("resumed", &got, &want);
  } else {
    ck_state_close("resumed elsewhere", &got, &want, 1e-11);
  }
}

CK_PART_LOOP(a_run_goes_on_alike, 2 * CK_PLACEMENTS) {
  struct ck_setup setup = setup_of(_i % 2 == 0 ? "gpt" : "mlp", _i % CK_PLACEMENTS);
  carry(&setup, &setup, _i >= CK_PLACEMENTS);
}

CK_PART_LOOP(a_run_goes_on_elsewhere, CK_PLACEMENTS) {
  static const char *const specs[] = {"cpu:1", "cpu:2", "cpu:4", "cpu:5", "cpu:1", "cpu:2"};
  struct ck_setup setup = setup_of("gpt", _i), other = setup_of("gpt", (_i + 1) % CK_PLACEMENTS);
  setup.options.type = other.options.type = EK_F64;
  other.spec = specs[_i % 6];
  carry(&setup, &other, false);
}

/* ---- the folder ---- */

CK_TEST(the_last_few_are_kept) {
  const struct ck_setup setup = setup_of("mlp", 1);
  ek_checkpoint_info info;
  const char *notes = ck_file(folder, "notes");
  struct ck_training t = ck_training_opened(&setup);
  ck_fails(ek_checkpoint_latest(&info, folder), EK_ERR_NOT_FOUND, "contains no saved state");
  ck_assert_int_eq(close(open(notes, O_WRONLY | O_CREAT, 0600)), 0);
  CK_WITH(ek_checkpoint_options, options, EK_CHECKPOINT_OPTIONS_INIT, .keep = 2);
  for (int step = 0; step <= STEPS; step++) {
    if (no_files(&t)) return;
    ck_ok(ek_checkpoint_save(t.model, folder, &options));
    go(&t, step, step + 1);
  }
  for (int step = 0; step <= STEPS; step++) ck_assert_int_eq(exists(step), step > STEPS - 2);
  ck_ok(ek_checkpoint_latest(&info, folder));
  ck_assert_int_eq(info.step, STEPS);
  /* A run that begins anew in the folder keeps what it saves, and leaves later steps alone. */
  struct ck_training anew = ck_training_opened(&setup);
  options.keep = 1;
  for (int step = 0; step < 2; step++) {
    ck_ok(ek_checkpoint_save(anew.model, folder, &options));
    go(&anew, step, step + 1);
  }
  ck_assert(!exists(0) && exists(1) && exists(STEPS - 1) && exists(STEPS));
  options.only = true;
  ck_ok(ek_checkpoint_save(anew.model, folder, &options));
  ck_assert(!exists(1) && exists(2) && !exists(STEPS - 1) && !exists(STEPS));
  ck_assert_int_eq(access(notes, F_OK), 0);
}

/* Flips a bit, `offset` bytes from the end. */
static void damage(int step, off_t offset) {
  unsigned char byte = 0;
  const int file = open(states[step], O_RDWR);
  const off_t at = lseek(file, 0, SEEK_END) - offset;
  ck_assert_int_eq(pread(file, &byte, 1, at), 1);
  byte ^= 0x10;
  ck_assert_int_eq(pwrite(file, &byte, 1, at), 1);
  ck_assert_int_eq(close(file), 0);
}

CK_TEST(damaged_states_are_passed_over) {
  ek_checkpoint_info info;
  struct ck_training t = ck_training_of(setup_of("mlp", 3));
  if (no_files(&t)) return;
  go(&t, 0, 1);
  ck_ok(ek_checkpoint_save(t.model, folder, NULL));
  go(&t, 1, 2);
  ck_ok(ek_checkpoint_save(t.model, folder, NULL));
  struct ck_state before = ck_state_take(t.model);
  damage(2, 1);
  const char *path = states[2];
  ck_fails(ek_checkpoint_load(NULL, t.model, path), EK_ERR_CORRUPT, "checksum differs");
  ck_fails(ek_checkpoint_load(NULL, t.model, path), EK_ERR_CORRUPT, path);
  ck_ok(ek_checkpoint_latest(&info, folder));
  ck_assert_int_eq(info.step, 1);
  damage(1, 1);
  damage(0, 1);
  ck_fails(ek_checkpoint_load(NULL, t.model, folder), EK_ERR_NOT_FOUND, "is damaged");
  ck_state_is("after refused files", t.model, &before);
}

/* ---- states of others ---- */

/* A file that says it is a state of `format`, with one tensor. */
static void put_state(const char *path, const char *format, const char *name, ek_type type) {
  const ek_safetensors_pair pairs[] = {{"evenkeel.state", format}, {"evenkeel.position", "0"}};
  const ek_safetensors_entry entries[] = {{"run/step", {.type = EK_I64}},
                                          {name, {.type = type, .rank = 1, .shape = {1}}}};
  CK_SCOPED(ek_safetensors_writer *, writer,
            ek_safetensors_create(&writer, path, entries, 2, pairs, 2));
  const int64_t zero = 0;
  ck_ok(ek_safetensors_write(writer, 0, &zero, 8));
  ck_ok(ek_safetensors_write(writer, 1, &zero, ek_type_size(type)));
  ck_ok(ek_safetensors_finish(writer));
}

/* Everything that a tied model wants is in the state of an untied one. */
CK_GPT(make_untied, ck_gpt_sizes(13, 5, 8, 2, 2), .untied = true)
CK_TEST(a_tied_model_takes_no_untied_state) {
  CK_WITH(struct ck_workload, workload, *ck_workload("gpt"), .module = make_untied);
  const struct ck_setup untied = ck_setup_at(&workload, "cpu:3", 1), tied = setup_of("gpt", 1);
  struct ck_training from = ck_training_opened(&untied), to = ck_training_opened(&tied);
  go(&from, 0, 1);
  if (no_files(&from)) return;
  struct ck_state before = ck_state_take(to.model);
  ck_fails(ek_checkpoint_load(NULL, to.model, folder), EK_ERR_MISMATCH, "the model ties it to");
  ck_state_is("after a refused state", to.model, &before);
  ek_data_parallel_optimizer_free(to.optimizer);
  to.optimizer = NULL;
  ck_fails(ek_checkpoint_load(NULL, to.model, folder), EK_ERR_MISMATCH, "head.weight is in the");
}

/* Heads show in no shape. A child's facts have its path before them. */
static int heads;
static ek_status make_llama(ek_module **module) {
  CK_WITH(ek_llama_options, o, EK_LLAMA_OPTIONS_INIT, .vocabulary = 13, .sequence = 5, .width = 8,
          .hidden = 6, .layers = 2, .heads = heads, .kv_heads = 1, .head_width = 2,
          .epsilon = 0.1875);
  return ek_llama_create(module, &o);
}
static ek_status make_inside(ek_module **module) {
  const ek_gpt_options o = ck_gpt_sizes(13, 5, 8, 2, heads);
  ek_module *gpt = NULL;
  EK_TRY(ek_gpt_create(&gpt, &o));
  const ek_status status = ek_sequential_create(module, &gpt, 1);
  ek_module_free(gpt);
  return status;
}

static struct ck_training with_heads(bool inside, int number) {
  CK_WITH(struct ck_workload, workload, *ck_workload("gpt"),
          .module = inside ? make_inside : make_llama);
  const struct ck_setup setup = ck_setup_at(&workload, "cpu:2", 2);
  heads = number;
  return ck_training_opened(&setup);
}

CK_TEST(other_heads_are_another_model) {
  struct ck_training from = with_heads(true, 2), to = with_heads(true, 4);
  struct ck_training again = with_heads(true, 2);
  if (no_files(&from)) return;
  ck_ok(ek_checkpoint_save(from.model, folder, NULL));
  struct ck_state before = ck_state_take(to.model);
  ck_fails(ek_checkpoint_load(NULL, to.model, folder), EK_ERR_MISMATCH,
           "0.n_head is 2 in the file, expected 4");
  ck_state_is("after a refused state", to.model, &before);
  ck_ok(ek_checkpoint_load(NULL, again.model, folder));
}

/* The number 0.1875 is one of the facts; case 0 writes them with a comma about, case 1 reads. */
CK_LOOP(facts_in_another_locale, 2) {
  struct ck_training from = with_heads(false, 4), to = with_heads(false, 4);
  if (no_files(&from) || (_i == 0 && !ck_locale_comma())) return;
  ck_ok(ek_checkpoint_save(from.model, folder, NULL));
  if (_i == 0) ck_locale_end();
  if (_i == 1 && !ck_locale_comma()) return;
  ck_ok(ek_checkpoint_load(NULL, to.model, folder));
  if (_i == 1) ck_locale_end();
}

CK_TEST(other_states_are_refused) {
  const struct ck_setup setup = setup_of("mlp", 2), other = setup_of("gpt", 2);
  ek_checkpoint_info info;
  const char *path = states[0];
  struct ck_training t = ck_training_opened(&setup);
  struct ck_training u = ck_training_opened(&other);
  ck_assert_int_eq(ek_checkpoint_end(NULL), EK_OK);
  if (no_files(&t)) return;
  go(&t, 0, 1);
  struct ck_state before = ck_state_take(t.model);
  ck_ok(ek_checkpoint_save(u.model, folder, NULL));
  ck_fails(ek_checkpoint_load(NULL, t.model, folder), EK_ERR_MISMATCH, "not a state of this");
  put_state(path, "2", "x", EK_F32);
  ck_fails(ek_checkpoint_load(NULL, t.model, path), EK_ERR_UNSUPPORTED, "format 2");
  put_state(path, "1", "x", EK_F32);
  ck_fails(ek_checkpoint_load(NULL, t.model, path), EK_ERR_MISMATCH, "is missing");
  ck_fails(ek_checkpoint_load(NULL, t.model, "/nobody/has/this"), EK_ERR_NOT_FOUND, "nobody");
  ck_invalid(ek_checkpoint_load(NULL, t.model, NULL), "path is NULL");
  ck_invalid(ek_checkpoint_save(t.model, NULL, NULL), "folder is NULL");
  ck_fails(ek_checkpoint_save(t.model, path, NULL), EK_ERR_IO, "not a directory; states");
  ck_fails(ek_checkpoint_save(t.model, "/nobody/has/this", NULL), EK_ERR_NOT_FOUND, "nobody");
  ck_state_is("after refused files", t.model, &before);
  go(&t, 1, 2);
  /* Without an optimizer the weights alone are taken. */
  ck_ok(ek_checkpoint_save(t.model, folder, NULL));
  ek_data_parallel_optimizer_free(t.optimizer);
  t.optimizer = NULL;
  ck_ok(ek_checkpoint_load(&info, t.model, folder));
  ck_assert_int_eq(info.step, 2);
}

/* Copies a state, with 8 other bytes for one entry, another position, and a schedule that lacks its
 * last number. */
static void forge(const char *to, const char *from, const char *name, const void *number,
                  const char *position) {
  enum { MOST = 64 };
  ek_safetensors_entry entries[MOST];
  const ek_safetensors_pair pairs[] = {{"evenkeel.state", "1"},
                                       {"evenkeel.position", position},
                                       {"evenkeel.schedule", "0 0x1p-3 0x0p+0 0"}};
  CK_SCOPED(ek_safetensors *, file, ek_safetensors_open(&file, from));
  const size_t count = ek_safetensors_count(file);
  ck_assert_uint_le(count, MOST);
  for (size_t i = 0; i < count; i++) entries[i] = *ek_safetensors_at(file, i);
  CK_SCOPED(ek_safetensors_writer *, writer,
            ek_safetensors_create(&writer, to, entries, count, pairs, 3));
  for (size_t i = 0; i < count; i++) {
    ek_tensor host = entries[i].like;
    const size_t bytes = ek_tensor_bytes(&host);
    void *data = host.data = ck_array(1, bytes + 1);
    ck_ok(ek_safetensors_read(&host, file, entries[i].name));
    if (strcmp(entries[i].name, name) == 0) memcpy(data, number, sizeof(int64_t));
    ck_ok(ek_safetensors_write(writer, i, data, bytes));
  }
  ck_ok(ek_safetensors_finish(writer));
}

/* Whole files, with checksums that are right, whose numbers no run has: seen before anything is
 * written, so the model is good and what it was. */
CK_TEST(numbers_out_of_range_are_refused) {
  ek_checkpoint_info info;
  const char *good = states[1], *bad = states[2];
  const int64_t one = 1, below = -1, last = INT64_MAX;
  const double three = 3, nothing = NAN;
  const ek_loss_scale dynamic = EK_LOSS_SCALE_INIT;
  CK_TRAINING(t, setup_of("mlp", 2), .loss_scale = &dynamic);
  if (no_files(&t)) return;
  go(&t, 0, 1);
  ck_ok(ek_checkpoint_save(t.model, folder, NULL));
  go(&t, 1, 2);
  struct ck_state before = ck_state_take(t.model);
  const struct {
    const char *name, *position, *text;
    const void *number;
  } cases[] = {{"run/step", "0", "run/step cannot be -1", &below},
               {"run/step", "0", "run/step cannot be 9223372036854775807", &last},
               {"run/good_steps", "0", "run/good_steps cannot be -1", &below},
               {"run/loss_scale", "0", "loss scale: scale is 3", &three},
               {"run/loss_scale", "0", "loss scale: scale is", &nothing},
               {"run/step", "9223372036854775808", "no valid position", &one},
               {"run/step", "1x", "no valid position", &one}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    forge(bad, good, cases[i].name, cases[i].number, cases[i].position);
    ck_fails(ek_checkpoint_load(&info, t.model, bad), EK_ERR_CORRUPT, cases[i].text);
    ck_fails(ek_checkpoint_load(&info, t.model, bad), EK_ERR_CORRUPT, bad);
    ck_state_is("after a refused number", t.model, &before);
  }
  forge(bad, good, "run/step", &last, "0");
  ck_ok(ek_checkpoint_latest(&info, folder)); /* passed over */
  ck_assert_int_eq(info.step, 1);
  go(&t, 2, 3);
  ck_ok(ek_checkpoint_load(&info, t.model, folder));
  forge(bad, good, "run/step", &one, "-7");
  ck_ok(ek_checkpoint_load(&info, t.model, bad));
  ck_assert(info.position == -7 && !info.has_schedule);
}

/* ---- what a program adds ---- */

/* One extra is longer than the pieces in which a state is written. */
CK_LOOP(extras_come_back, 2) {
  enum { LONG = 300000 };
  int64_t numbers[3] = {INT64_MIN, -1, INT64_MAX}, got[3] = {0};
  float nothing[1] = {0};
  float *longer = ck_array(2 * LONG, sizeof *longer), *read = longer + LONG;
  ek_checkpoint_extra extras[3] = {
      {"sampler", {.data = numbers, .type = EK_I64, .rank = 1, .shape = {3}}},
      {"empty", {.data = nothing, .type = EK_F32, .rank = 1, .shape = {0}}},
      {"long", {.data = longer, .type = EK_F32, .rank = 1, .shape = {LONG}}}};
  ek_tensor host = {.data = got, .type = EK_I64, .rank = 1, .shape = {3}};
  CK_WITH(ek_checkpoint_options, options, EK_CHECKPOINT_OPTIONS_INIT, .extras = extras,
          .extra_count = 3);
  ek_checkpoint_write *write = NULL;
  ek_checkpoint_info info;
  ek_safetensors *file = NULL;
  struct ck_training t = ck_training_of(setup_of("mlp", 2));
  if (no_files(&t)) return;
  for (int i = 0; i < LONG; i++) longer[i] = (float)i;
  go(&t, 0, 1);
  if (_i == 0) ck_ok(ek_checkpoint_save(t.model, folder, &options));
  if (_i == 1) ck_ok(ek_checkpoint_begin(&write, t.model, folder, &options));
  numbers[0] = 0; /* they were read */
  ck_ok(ek_checkpoint_end(write));
  ck_ok(ek_checkpoint_load(&info, t.model, folder));
  ck_ok(ek_safetensors_open(&file, info.path));
  ck_ok(ek_safetensors_read(&host, file, "user/sampler"));
  ck_assert(got[0] == INT64_MIN && got[1] == -1 && got[2] == INT64_MAX);
  ck_assert_ptr_nonnull(ek_safetensors_find(file, "user/empty"));
  host = (ek_tensor){.data = read, .type = EK_F32, .rank = 1, .shape = {LONG}};
  ck_ok(ek_safetensors_read(&host, file, "user/long"));
  for (int i = 0; i < LONG; i++) ck_assert(read[i] == (float)i);
  options.extra_count = 2;
  ek_safetensors_free(file);
  extras[1].name = "sampler";
  ck_invalid(ek_checkpoint_save(t.model, folder, &options), "same name");
  extras[1].name = "\xff";
  ck_invalid(ek_checkpoint_save(t.model, folder, &options), "not valid");
  extras[1].name = "";
  ck_invalid(ek_checkpoint_save(t.model, folder, &options), "1 to 640");
  extras[1] = (ek_checkpoint_extra){"x", {.type = EK_F32, .rank = 1, .shape = {1}}};
  ck_invalid(ek_checkpoint_save(t.model, folder, &options), "host memory");
  ck_bad(options, extras, NULL, ek_checkpoint_save(t.model, folder, &options), "extras");
  ck_ok(ek_checkpoint_load(NULL, t.model, folder));
}

/* A state is read in another locale than it was written in: 0 with a comma first, 1 last. */
CK_LOOP(a_schedule_in_another_locale, 2) {
  const double rate = 0.0625 * 1.5; /* has digits after the point in "%a" and "%g" */
  ek_checkpoint_info info;
  struct ck_training t = ck_training_of(setup_of("mlp", 2));
  ck_ok(ek_data_parallel_optimizer_set_learning_rate(t.optimizer, rate));
  if (no_files(&t) || (_i == 0 && !ck_locale_comma())) return;
  ck_ok(ek_checkpoint_save(t.model, folder, NULL));
  if (_i == 0) ck_locale_end();
  if (_i == 1 && !ck_locale_comma()) return;
  ck_ok(ek_checkpoint_load(&info, t.model, folder));
  ck_assert(info.has_schedule);
  ck_assert_double_eq(info.schedule.peak, rate);
  if (_i == 1) ck_locale_end();
}

/* ---- where a state cannot go ---- */

/* Each has a sentence of its own, and training goes on. */
CK_TEST(folders_that_cannot_be_written) {
  const char *path = states[1], *below = ck_file(path, "x");
  struct ck_training t = ck_training_of(setup_of("mlp", 2));
  if (no_files(&t)) return;
  go(&t, 0, 1);
  ck_ok(ek_checkpoint_save(t.model, folder, NULL));
  const struct {
    const char *folder, *text;
  } cases[] = {{path, "not a directory; states are saved into a directory"},
               {below, "the folder cannot be created: Not a directory"},
               {"/nobody/has/this", "the folder cannot be created: No such file or directory"},
               {"/proc/self", "cannot be created"}, /* root's folders, too, have limits */
               {"", "the folder cannot be created"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    ek_checkpoint_write *write = NULL;
    ek_status status = ek_checkpoint_save(t.model, cases[i].folder, NULL);
    ck_assert_msg(status == EK_ERR_IO || status == EK_ERR_NOT_FOUND, "%s: %s", cases[i].folder,
                  ek_status_name(status));
    ck_assert_msg(strstr(ek_error_message(), cases[i].text) != NULL, "%s", ek_error_message());
    status = ek_checkpoint_begin(&write, t.model, cases[i].folder, NULL);
    ck_assert(status == EK_ERR_IO || status == EK_ERR_NOT_FOUND);
    ck_assert_msg(strstr(ek_error_message(), cases[i].text) != NULL, "%s", ek_error_message());
    go(&t, 1 + (int)i, 2 + (int)i);
  }
}

CK_TEST(devices_that_count_have_no_state) {
  CK_TRAINING(t, setup_of("mlp", 3), .spec = "plan:3");
  ck_fails(ek_checkpoint_save(t.model, folder, NULL), EK_ERR_UNSUPPORTED, "plan devices");
}

/* ---- failures ---- */

/* Every allocation and every piece of a device's work fails once, in a save and in a load. */
static ek_status save_or_load(struct ck_training *t, int how) {
  ek_checkpoint_write *write = NULL;
  if (how == 0) return ek_checkpoint_save(t->model, folder, NULL);
  if (how == 1) return ek_checkpoint_load(NULL, t->model, folder);
  EK_TRY(ek_checkpoint_begin(&write, t->model, folder, NULL));
  return ek_checkpoint_end(write);
}

CK_PART_LOOP(failures_lose_nothing, 6) {
  struct ck_training t = ck_training_of(setup_of("mlp", _i % 2 == 0 ? 3 : 1));
  const int how = _i / 2;
  go(&t, 0, 1);
  if (no_files(&t)) return;
  struct ck_state before = ck_state_take(t.model);
  int failures = 0;
  for (int memory = 0; memory < 2; memory++) {
    for (uint64_t n = 1; n < 1000; n++) {
      ek_device *device = ek_group_device(t.group, n % 3);
      if (memory) ek_host_memory_fail_at(n);
      if (!memory) ck_ok(ek_fault_at(device, (n + 2) / 3, EK_ERR_UNAVAILABLE));
      const ek_status status = save_or_load(&t, how);
      ek_host_memory_fail_at(0);
      ck_ok(ek_fault_at(device, 0, EK_OK));
      if (status == EK_OK && n > 60) break;
      ck_assert(status == EK_OK || status == (memory ? EK_ERR_OUT_OF_MEMORY : EK_ERR_UNAVAILABLE));
      failures += status != EK_OK;
      if (how == 1 && status != EK_OK) ck_ok(ek_checkpoint_load(NULL, t.model, folder));
    }
  }
  ck_assert_int_gt(failures, 20);
  ck_state_is("after failures", t.model, &before);
  if (t.setup.options.state != EK_STATE_MASTER) ck_training_replicas_agree(&t);
  ck_ok(ek_checkpoint_load(NULL, t.model, folder));
}

CK_SUITE_WITH("checkpoint", make_folder, NULL)
