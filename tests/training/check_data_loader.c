/*
 * check_data_loader.c - batches that are read ahead: which samples they have, errors, seeks, and a
 * loader that is misused.
 */
#include "ck_fork.h"
#include "ck_processes.h"

/* A sample is its own number, as i64 [], and i32 [3] of its negative as the target. */
struct numbers {
  ek_source base;
  int64_t fails_at; /* a sample that cannot be read while `fails` is above 0 */
  int fails;        /* changed by tests while no thread reads */
};

static ek_status read_numbers(const ek_source *self, const ek_source_request *request,
                              ek_tensor *tensors) {
  const struct numbers *of = (const struct numbers *)self;
  for (int64_t i = 0; i < request->count; i++) {
    const int64_t sample = request->samples[i];
    if (__atomic_load_n(&of->fails, __ATOMIC_RELAXED) > 0 && sample == of->fails_at) {
      return ek_error_set(EK_ERR_IO, "sample %lld is damaged", (long long)sample);
    }
    ((int64_t *)tensors[0].data)[i] = sample;
    for (int j = 0; j < 3; j++) ((int32_t *)tensors[1].data)[3 * i + j] = (int32_t)-sample;
  }
  return EK_OK;
}

static void free_numbers(ek_source *self) { free(self); }

static ek_status make_numbers(ek_source **source, int64_t samples) {
  static const ek_source_ops ops = {
      .size = sizeof ops, .kind = "numbers", .read = read_numbers, .free = free_numbers};
  static const ek_source_tensor tensors[] = {{EK_I64, 0, {0}}, {EK_I32, 1, {3}}};
  struct numbers *made = calloc(1, sizeof *made);
  ek_source_options options = EK_SOURCE_OPTIONS_INIT;
  if (made == NULL) return ek_error_set(EK_ERR_OUT_OF_MEMORY, "no memory");
  ck_assign(options, .samples = samples, .tensors = tensors, .seed = 9);
  *source = &made->base;
  return ek_source_init(*source, &ops, &options);
}

static ek_source *open_numbers(int64_t samples) {
  CK_OPENED(ek_source *, source, make_numbers(&source, samples));
  return source;
}

static ek_data_loader *open_loader(ek_source *source, const ek_data_loader_options *options) {
  CK_OPENED(ek_data_loader *, loader, ek_data_loader_open(&loader, source, NULL, options));
  return loader;
}

/* The rows of a batch are the samples from its position on. */
static void has_samples(const ek_batch *batch, const ek_source *source) {
  ck_assert(batch->input_count == 1 && batch->target_count == 1);
  ck_assert(batch->inputs[0].shape[0] == batch->rows && batch->targets[0].shape[0] == batch->rows);
  for (int64_t i = 0; i < batch->rows; i++) {
    CK_GOT(int64_t, sample, ek_source_at(&sample, NULL, source, batch->position + i));
    ck_assert(((const int64_t *)batch->inputs[0].data)[i] == sample);
    ck_assert(((const int32_t *)batch->targets[0].data)[3 * i + 2] == -sample);
  }
}

/* Pictures of 6 x 5, cropped and mirrored at random, with their number as the class. */
enum { PICTURES = 977, PIXELS = 6 * 5 };

static ek_source *open_pictures(void) {
  static uint8_t pictures[PICTURES * PIXELS];
  static int32_t classes[PICTURES];
  ek_image_options options = EK_IMAGE_OPTIONS_INIT;
  for (int32_t i = 0; i < PICTURES; i++) classes[i] = i;
  for (int i = 0; i < PICTURES * PIXELS; i++) pictures[i] = (uint8_t)(i * 7 % 251);
  CK_WITH(ek_image_arrays, arrays, EK_IMAGE_ARRAYS_INIT, .count = PICTURES, .height = 6, .width = 5,
          .channels = 1, .pictures = pictures, .classes = classes);
  ck_assign(options, .padding = 1, .crop[0] = 6, .crop[1] = 5, .augment = true, .seed = 9);
  CK_OPENED(ek_source *, source, ek_image_source_open_arrays(&source, &arrays, &options));
  return source;
}

/* The rows of a batch are the pictures from its position on, cropped and mirrored as when they are
 * read alone: by the sample's number and the epoch. */
static void has_pictures(const ek_batch *batch, const ek_source *source) {
  for (int64_t i = 0; i < batch->rows; i++) {
    static const int64_t shape[] = {1, 6, 5, 1};
    uint8_t pixels[PIXELS];
    int32_t class = -1;
    int64_t sample = -1;
    ek_tensor alone[2];
    ck_ok(ek_tensor_host(&alone[0], pixels, EK_U8, 4, shape));
    ck_ok(ek_tensor_host(&alone[1], &class, EK_I32, 1, shape));
    ck_ok(ek_source_at(&sample, NULL, source, batch->position + i));
    ck_ok(ek_source_read(alone, 2, source, batch->position + i, 1));
    ck_assert(class == sample && ((const int32_t *)batch->targets[0].data)[i] == sample);
    ck_assert(memcmp(pixels, (const uint8_t *)batch->inputs[0].data + i * PIXELS, PIXELS) == 0);
  }
}

/* 1,000 runs in pieces: each goes on from the position of the one before, with another batch, other
 * threads and other batches ahead. No sample is left out or comes twice. */
CK_LOOP(a_run_in_pieces_has_every_sample_in_order, 2) {
  ek_source *source = _i == 0 ? open_numbers(977) : open_pictures();
  const ek_random_key key = {20261124, 0, 1};
  int64_t position = 0;
  for (uint32_t run = 0; run < 1000; run++) {
    uint32_t bits[4];
    ek_random_bits(key, run, 0, bits);
    CK_WITH(ek_data_loader_options, options, EK_DATA_LOADER_OPTIONS_INIT, .batch = 1 + bits[0] % 40,
            .position = position, .ahead = bits[1] % 4, .threads = 1 + bits[2] % 3);
    const size_t mark = ck_mark();
    ek_data_loader *loader = open_loader(source, &options);
    for (uint32_t step = bits[3] % 5; step > 0; step--) {
      CK_GOT(ek_batch, batch, ek_data_loader_next(&batch, loader));
      ck_assert(batch.position == position && batch.next == position + options.batch);
      (_i == 0 ? has_samples : has_pictures)(&batch, source);
      position = batch.next;
    }
    ck_release(mark);
  }
  ck_assert_int_gt(position, 20000);
}

/* ---- 1,000 runs in pieces, in other processes and on other devices each 100 ---- */

enum { RUNS = 1000, RUNS_OF_A_WORLD = 100, RUN_SAMPLES = 389 };

/* How run `run` reads; returns its number of batches. All processes draw the same. */
static uint32_t draw_run(ek_data_loader_options *options, uint32_t run) {
  uint32_t bits[4];
  ek_random_bits((ek_random_key){20261125, 0, 1}, run, 0, bits);
  *options = (ek_data_loader_options)EK_DATA_LOADER_OPTIONS_INIT;
  options->batch = 1 + bits[0] % 40;
  options->ahead = bits[1] % 4;
  options->threads = 1 + bits[2] % 2;
  options->micro_batches = 1 + bits[2] / 2 % 4;
  return bits[3] % 4;
}

static int64_t position_of(uint32_t run) {
  int64_t position = 0;
  for (uint32_t i = 0; i < run; i++) {
    ek_data_loader_options options;
    const int64_t steps = draw_run(&options, i);
    position += steps * options.batch;
  }
  return position;
}

/* Of many samples, a sum that tells which they are; sums of 40 bits are exact in f64. */
static double mark_of(int64_t sample, int64_t batch) {
  uint32_t bits[4];
  ek_random_bits((ek_random_key){77, (uint32_t)batch, 2}, (uint32_t)sample, 0, bits);
  return (double)((uint64_t)bits[0] << 8 | bits[1] >> 24);
}

/* Marks of this process's samples in one batch. */
static ek_status read_batch(struct ck_outcome *outcome, ek_data_loader *loader, int64_t position) {
  ek_batch batch;
  double sum = 0;
  EK_TRY(ek_data_loader_next(&batch, loader));
  if (batch.position != position) return ek_error_set(EK_ERR_STATE, "a batch is at another place");
  for (int64_t i = 0; i < batch.inputs[0].shape[0]; i++) {
    sum += mark_of(((const int64_t *)batch.inputs[0].data)[i], position);
  }
  ck_outcome_add(outcome, sum);
  return EK_OK;
}

/* Runs first to first + RUNS_OF_A_WORLD - 1; the part's name is the number of the first. */
static ek_status read_runs(struct ck_outcome *outcome, const struct ck_process *process,
                           ek_group *group, ek_source *source) {
  const uint32_t first = (uint32_t)strtoul(process->part, NULL, 10);
  int64_t position = position_of(first);
  for (uint32_t run = first; run < first + RUNS_OF_A_WORLD; run++) {
    ek_data_loader_options options;
    ek_data_loader *loader = NULL;
    uint32_t steps = draw_run(&options, run);
    ck_assign(options, .position = position, .group = group);
    EK_TRY(ek_data_loader_open(&loader, source, NULL, &options));
    ek_status status = EK_OK;
    for (; steps > 0 && status == EK_OK; steps--, position += options.batch) {
      status = read_batch(outcome, loader, position);
    }
    ek_data_loader_free(loader);
    EK_TRY(status);
  }
  return EK_OK;
}

static void run_in_process(struct ck_outcome *outcome, const struct ck_process *process) {
  ek_group *group = NULL;
  ek_source *source = NULL;
  ek_status status = ck_process_open(&group, process, 0);
  if (status == EK_OK) status = make_numbers(&source, RUN_SAMPLES);
  if (status == EK_OK) status = read_runs(outcome, process, group, source);
  (void)ck_went(outcome, status);
  ek_source_free(source);
  ek_group_free(group);
}

/* The processes together have the samples of each batch, each once. */
static void has_all(const struct ck_outcome *outcomes, size_t processes, uint32_t first) {
  ek_source *source = open_numbers(RUN_SAMPLES);
  int64_t position = position_of(first);
  size_t batch = 0;
  for (uint32_t run = first; run < first + RUNS_OF_A_WORLD; run++) {
    ek_data_loader_options options;
    for (uint32_t steps = draw_run(&options, run); steps > 0; steps--, batch++) {
      double wanted = 0, got = 0;
      for (int64_t i = 0; i < options.batch; i++) {
        CK_GOT(int64_t, sample, ek_source_at(&sample, NULL, source, position + i));
        wanted += mark_of(sample, position);
      }
      for (size_t p = 0; p < processes; p++) got += outcomes[p].numbers[batch];
      ck_assert_msg(got == wanted, "run %u: the batch at %lld", run, (long long)position);
      position += options.batch;
    }
  }
  for (size_t p = 0; p < processes; p++) ck_assert_uint_eq(outcomes[p].count, batch);
}

CK_LOOP(runs_in_other_processes_have_every_sample, RUNS / RUNS_OF_A_WORLD) {
  static const size_t devices[][CK_PROCESSES] = {{1}, {2, 1}, {1, 1, 1}, {1, 3}, {1, 1, 2, 1}};
  static const size_t processes[] = {1, 2, 3, 2, 4};
  const size_t count = processes[_i % 5];
  const char *part = ck_text("%d", _i * RUNS_OF_A_WORLD);
  has_all(ck_processes_done(part, devices[_i % 5], count), count, (uint32_t)(_i * RUNS_OF_A_WORLD));
}

CK_LOOP(the_end_makes_the_last_batch_smaller, 3) {
  ek_source *source = open_numbers(50);
  CK_WITH(ek_data_loader_options, options, EK_DATA_LOADER_OPTIONS_INIT, .batch = 7, .position = 40,
          .end = 57, .ahead = (size_t)_i);
  ek_data_loader *loader = open_loader(source, &options);
  static const int64_t rows[] = {7, 7, 3, 0, 0};
  for (size_t i = 0; i < 5; i++) {
    CK_GOT(ek_batch, batch, ek_data_loader_next(&batch, loader));
    ck_assert(batch.rows == rows[i]);
    has_samples(&batch, source);
    ck_assert(batch.next == (i < 2 ? 47 + 7 * (int64_t)i : 57));
  }
  ck_ok(ek_data_loader_seek(loader, 56));
  CK_GOT(ek_batch, batch, ek_data_loader_next(&batch, loader));
  ck_assert(batch.rows == 1 && batch.position == 56);
  ck_invalid(ek_data_loader_seek(loader, 58), "position 58");
  ck_invalid(ek_data_loader_seek(loader, -1), "position -1");
}

CK_LOOP(a_batch_that_cannot_be_read_is_tried_again, 4) {
  ek_source *source = open_numbers(60);
  struct numbers *numbers = (struct numbers *)source;
  ck_ok(ek_source_at(&numbers->fails_at, NULL, source, 17));
  __atomic_store_n(&numbers->fails, 1, __ATOMIC_RELAXED);
  CK_WITH(ek_data_loader_options, options, EK_DATA_LOADER_OPTIONS_INIT, .batch = 5,
          .ahead = (size_t)_i, .threads = 2);
  ek_data_loader *loader = open_loader(source, &options);
  ek_batch batch;
  for (int i = 0; i < 3; i++) ck_ok(ek_data_loader_next(&batch, loader));
  for (int i = 0; i < 3; i++) {
    ck_fails(ek_data_loader_next(&batch, loader), EK_ERR_IO, "numbers: sample");
  }
  __atomic_store_n(&numbers->fails, 0, __ATOMIC_RELAXED);
  for (int i = 3; i < 9; i++) {
    ck_ok(ek_data_loader_next(&batch, loader));
    ck_assert(batch.position == 5 * i);
    has_samples(&batch, source);
  }
}

/* A slot that waits in vain for a batch would end in the time limit of the test. */
CK_TEST(seeks_at_any_time) {
  ek_source *source = open_numbers(60);
  CK_WITH(ek_data_loader_options, options, EK_DATA_LOADER_OPTIONS_INIT, .batch = 4, .ahead = 3,
          .threads = 3);
  ek_data_loader *loader = open_loader(source, &options);
  for (int64_t i = 0; i < 200; i++) {
    ek_batch batch;
    ck_ok(ek_data_loader_seek(loader, i * 37 % 501));
    for (int64_t step = 0; step < i % 6; step++) {
      ck_ok(ek_data_loader_next(&batch, loader));
      ck_assert(batch.position == i * 37 % 501 + 4 * step);
      has_samples(&batch, source);
    }
  }
  ck_assert(ek_data_loader_waited(loader) >= 0 && ek_data_loader_waited(NULL) == 0);
}

/* The loader knows how its trainer cuts a batch; alone, a process has all rows. */
CK_TEST(a_trainer_steps_on_batches) {
  ek_source *source = open_numbers(64);
  CK_WITH(ek_gpt_options, gpt, EK_GPT_OPTIONS_INIT, .vocabulary = 64, .sequence = 1, .width = 8,
          .heads = 2, .layers = 1);
  CK_SCOPED(ek_module *, module, ek_gpt_create(&module, &gpt));
  CK_SCOPED(ek_criterion *, loss, ek_cross_entropy_create(&loss, NULL));
  CK_SCOPED(ek_optimizer *, sgd, ek_sgd_create(&sgd, NULL));
  CK_WITH(ek_trainer_options, trainer_options, EK_TRAINER_OPTIONS_INIT, .micro_batches = 2);
  CK_OPENED(ek_trainer *, trainer,
            ek_trainer_open(&trainer, "cpu:3", module, loss, sgd, &trainer_options));
  CK_WITH(ek_data_loader_options, options, EK_DATA_LOADER_OPTIONS_INIT, .batch = 7);
  CK_OPENED(ek_data_loader *, loader, ek_data_loader_open(&loader, source, trainer, &options));
  for (int i = 0; i < 4; i++) {
    CK_GOT(ek_batch, batch, ek_data_loader_next(&batch, loader));
    has_samples(&batch, source);
    const int64_t shape[] = {batch.rows, 1};
    CK_GOT(ek_tensor, tokens, ek_tensor_host(&tokens, batch.inputs[0].data, EK_I64, 2, shape));
    CK_GOT(ek_tensor, targets, ek_tensor_host(&targets, batch.inputs[0].data, EK_I64, 2, shape));
    CK_GOT(ek_step_result, result, ek_trainer_step(&result, trainer, &tokens, 1, &targets, 1));
    ck_assert(result.finite);
  }
  options.micro_batches = 2;
  ek_data_loader *other = NULL;
  ck_invalid(ek_data_loader_open(&other, source, trainer, &options), "are the trainer's");
}

/* ---- what is refused ---- */

CK_TEST(numbers_that_make_no_sense) {
  ek_source *source = open_numbers(8);
  ek_data_loader *loader = NULL;
  ek_batch batch;
  CK_WITH(ek_data_loader_options, good, EK_DATA_LOADER_OPTIONS_INIT, .batch = 2);
#define BAD(member, value, text)                                                                   \
  ck_bad(good, member, value, ek_data_loader_open(&loader, source, NULL, &good), text)
  BAD(batch, 0, "options.batch is 0");
  BAD(batch, -3, "options.batch is -3");
  BAD(position, -1, "positions -1");
  BAD(end, -1, "positions 0 to -1");
  BAD(ahead, 1025, "1025 batches ahead");
  BAD(threads, 0, "0 threads");
  BAD(threads, 65, "65 threads");
  BAD(micro_batches, -1, "micro_batches is -1");
#undef BAD
  ck_bad_with(EK_ERR_OVERFLOW, good, batch, INT64_MAX / 4,
              ek_data_loader_open(&loader, source, NULL, &good), "do not fit");
  ck_invalid(ek_data_loader_open(NULL, source, NULL, &good), "loader is NULL");
  ck_invalid(ek_data_loader_open(&loader, NULL, NULL, &good), "source is NULL");
  ck_invalid(ek_data_loader_open(&loader, source, NULL, NULL), "options is NULL");
  ck_assert_ptr_null(loader);
  loader = open_loader(source, &good);
  ck_invalid(ek_data_loader_next(NULL, loader), "batch is NULL");
  ck_invalid(ek_data_loader_next(&batch, NULL), "loader is NULL");
  ck_invalid(ek_data_loader_seek(NULL, 0), "loader is NULL");
  ek_data_loader_free(NULL);
}

CK_TEST(no_memory_and_no_threads) {
  ek_source *source = open_numbers(8);
  CK_WITH(ek_data_loader_options, options, EK_DATA_LOADER_OPTIONS_INIT, .batch = 2, .threads = 2);
  ek_data_loader *loader = NULL;
  uint64_t n = 0;
  while (ck_host_fails(&n, ek_data_loader_open(&loader, source, NULL, &options))) {
    ck_assert_ptr_null(loader);
  }
  ck_assert_uint_ge(n, 6); /* the loader, three batches, two threads */
  ck_keep(loader);
  CK_GOT(ek_batch, batch, ek_data_loader_next(&batch, loader));
  ek_host_memory_fail_at(1); /* a batch takes none */
  for (int i = 0; i < 8; i++) ck_ok(ek_data_loader_next(&batch, loader));
  ek_host_memory_fail_at(0);
}

CK_TEST(a_child_of_fork_is_refused) {
  ek_source *source = open_numbers(8);
  CK_WITH(ek_data_loader_options, options, EK_DATA_LOADER_OPTIONS_INIT, .batch = 2);
  ek_data_loader *loader = open_loader(source, &options);
  int code = -1;
  if (ck_forked(&code)) {
    ek_batch batch;
    const bool good = ek_data_loader_next(&batch, loader) == EK_ERR_STATE &&
                      ek_data_loader_seek(loader, 0) == EK_ERR_STATE;
    _exit(good ? 0 : 1);
  }
  ck_assert_int_eq(code, 0);
}

static const struct ck_part parts[] = {{NULL, run_in_process}};

CK_PARTS_SUITE("data_loader", parts)
