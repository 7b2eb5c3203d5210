/*
 * evenkeel-saving - what saving the state of a run costs.
 *
 *     evenkeel-saving FOLDER [DEVICES [PRESET [ROUNDS [SECONDS]]]]
 *
 * A preset of evenkeel-bench (gpt2-124m) trains in mode sharded, on cpu:2. Each round (3) takes
 * turns, so that a drift of the machine's speed cancels:
 *
 *   remove  the state that the folder has: a file system takes its time to give back blocks, which
 *           is no writing; a save that takes the place of a state, or keeps but the last, adds it
 *   save    ek_trainer_save(), into the folder without a state
 *   disk    a file of as many bytes from one warm buffer, past the page cache: one write at a time,
 *           and several into room that was reserved, which is what the disk can do
 *   cache   the same through the page cache: written, and written and synced
 *   steps   STEPS of them while nothing else happens
 *   behind  ek_trainer_save_begin(), then STEPS steps while its thread writes, then
 *           ek_trainer_save_end()
 *
 * No round begins that would end after SECONDS (120), if it took as long as the one before; the
 * first always runs. Seconds are of the clock and of the processor: the latter are the same on a
 * machine that has other work. FOLDER is made, or has no state yet, and holds one
 * at the end. docs/benchmark.md says what is printed.
 */
#define _GNU_SOURCE /* O_DIRECT, fallocate() */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <evenkeel/evenkeel.h>

#include "presets.h"
#include "statistics.h"

enum { STEPS = 2, MOST_ROUNDS = 100, PAGE = 4096, CHUNK = 8 << 20, AT_ONCE = 3 };

struct run {
  const char *folder;
  ek_trainer *trainer;
  ek_tensor tokens, targets;
  uint64_t bytes; /* of a state */
  char *chunk;    /* CHUNK bytes at a page */
};

struct times {
  double clock, processor;
};

struct round {
  double one, several, written, synced; /* plain files; the last two since the same beginning */
  double removal;                       /* of a state */
  struct times save, snapshot, steps, behind, wait;
  double first_step, first_behind;
};

static struct times now(void) { return (struct times){clock_seconds(), processor_seconds()}; }

static struct times since(struct times start) {
  const struct times t = now();
  return (struct times){t.clock - start.clock, t.processor - start.processor};
}

static ek_status refused(const char *what) {
  return ek_error_set(EK_ERR_IO, "%s: %s", what, strerror(errno));
}

/* ---- plain files ---- */

enum how { CACHE, ONE, SEVERAL };

struct plain {
  int file;
  const char *chunk;
  uint64_t bytes;
  atomic_uint_least64_t next;
  atomic_int error;
};

/* Direct writes want whole pages: the last one may be written further than the file is long. */
static void *write_chunks(void *arg) {
  struct plain *plain = arg;
  for (uint64_t at; (at = atomic_fetch_add(&plain->next, CHUNK)) < plain->bytes;) {
    const uint64_t left = (plain->bytes - at + PAGE - 1) / PAGE * PAGE, end = at + CHUNK;
    const uint64_t last = left < CHUNK ? at + left : end;
    while (at < last && atomic_load(&plain->error) == 0) {
      const ssize_t put = pwrite(plain->file, plain->chunk, (size_t)(last - at), (off_t)at);
      if (put > 0) at += (uint64_t)put;
      if (put == 0 || (put < 0 && errno != EINTR))
        atomic_store(&plain->error, put == 0 ? EIO : errno);
    }
  }
  return NULL;
}

static void write_with(struct plain *plain, int threads) {
  pthread_t others[AT_ONCE];
  int count = 0;
  for (; count < threads - 1; count++) {
    if (pthread_create(&others[count], NULL, write_chunks, plain) != 0) break;
  }
  (void)write_chunks(plain);
  for (int i = 0; i < count; i++) (void)pthread_join(others[i], NULL);
}

/* *written: without the sync; a file system without direct writes leaves both 0. */
static ek_status write_plain(double *written, double *synced, const struct run *run, enum how how) {
  char path[PATH_MAX];
  struct plain plain = {.file = -1, .chunk = run->chunk, .bytes = run->bytes};
  ek_status status = EK_OK;
  *written = *synced = 0;
  if (snprintf(path, sizeof path, "%s/plain", run->folder) >= (int)sizeof path) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "the folder's name is too long");
  }
  const double start = clock_seconds();
  plain.file =
      open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | (how == CACHE ? 0 : O_DIRECT), 0666);
  if (plain.file < 0 && errno == EINVAL && how != CACHE) goto cleanup;
  if (plain.file < 0) return refused(path);
  if (how == SEVERAL) (void)fallocate(plain.file, 0, 0, (off_t)run->bytes);
  write_with(&plain, how == SEVERAL ? AT_ONCE : 1);
  *written = clock_seconds() - start;
  errno = atomic_load(&plain.error);
  if (errno == EINVAL && how != CACHE) {
    *written = 0;
    goto cleanup;
  }
  if (errno != 0) status = refused("write");
  if (status == EK_OK && fsync(plain.file) != 0) status = refused("fsync");
  *synced = clock_seconds() - start;
cleanup:
  if (plain.file >= 0) (void)close(plain.file);
  (void)unlink(path);
  return status;
}

/* ---- training ---- */

/* Waits for the devices: a step's result is asked for. */
static ek_status train(struct times *all, double *first, const struct run *run, int steps) {
  const struct times start = now();
  for (int i = 0; i < steps; i++) {
    ek_step_result result;
    EK_TRY(ek_trainer_step(&result, run->trainer, &run->tokens, 1, &run->targets, 1));
    if (i == 0) *first = since(start).clock;
  }
  *all = since(start);
  return EK_OK;
}

static const ek_checkpoint_options keep_one = {.size = sizeof(ek_checkpoint_options), .keep = 1};

static ek_status remove_state(double *seconds, const struct run *run) {
  ek_checkpoint_info info;
  EK_TRY(ek_checkpoint_latest(&info, run->folder));
  const double start = clock_seconds();
  if (unlink(info.path) != 0) return refused(info.path);
  *seconds = clock_seconds() - start;
  return EK_OK;
}

static ek_status measure(struct round *round, const struct run *run) {
  double unsynced = 0;
  EK_TRY(remove_state(&round->removal, run));
  struct times start = now();
  EK_TRY(ek_trainer_save(run->trainer, run->folder, &keep_one));
  round->save = since(start);
  EK_TRY(write_plain(&unsynced, &round->several, run, SEVERAL));
  EK_TRY(write_plain(&unsynced, &round->one, run, ONE));
  EK_TRY(write_plain(&round->written, &round->synced, run, CACHE));
  EK_TRY(train(&round->steps, &round->first_step, run, STEPS));
  start = now();
  EK_TRY(ek_trainer_save_begin(run->trainer, run->folder, &keep_one));
  round->snapshot = since(start);
  EK_TRY(train(&round->behind, &round->first_behind, run, STEPS));
  start = now();
  EK_TRY(ek_trainer_save_end(run->trainer));
  round->wait = since(start);
  return EK_OK;
}

/* The first save warms up, and its file says how many bytes a state has. */
static ek_status warm_up(struct run *run) {
  ek_checkpoint_info info;
  struct stat file;
  struct times all;
  double first = 0;
  const ek_status found = ek_checkpoint_latest(&info, run->folder);
  if (found == EK_OK) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s: this folder already contains saved states; "
                                                 "expected an empty or new one",
                        run->folder);
  }
  EK_TRY(train(&all, &first, run, 1));
  EK_TRY(ek_trainer_save(run->trainer, run->folder, &keep_one));
  EK_TRY(ek_checkpoint_latest(&info, run->folder));
  if (stat(info.path, &file) != 0) return refused(info.path);
  run->bytes = (uint64_t)file.st_size;
  return EK_OK;
}

static ek_status open_trainer(ek_trainer **trainer, const char *devices,
                              const struct shape *shape) {
  ek_module *module = NULL;
  ek_criterion *loss = NULL;
  ek_optimizer *adamw = NULL;
  ek_trainer_options options = EK_TRAINER_OPTIONS_INIT;
  ek_data_parallel_model_options model_options = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  ek_status status;
  options.model = &model_options;
  model_options.state = EK_STATE_SHARDED;
  EK_TRY_GOTO(status, shape_language_model(&module, shape, 0, false, 0), cleanup);
  EK_TRY_GOTO(status, ek_cross_entropy_create(&loss, NULL), cleanup);
  EK_TRY_GOTO(status, ek_adamw_create(&adamw, NULL), cleanup);
  EK_TRY_GOTO(status, ek_trainer_open(trainer, devices, module, loss, adamw, &options), cleanup);
cleanup:
  ek_optimizer_free(adamw);
  ek_criterion_free(loss);
  ek_module_free(module);
  return status;
}

/* ---- what it says ---- */

static void print_line(const char *what, const struct round *rounds, size_t count,
                       double (*of)(const struct round *round), const char *unit) {
  double values[MOST_ROUNDS];
  for (size_t i = 0; i < count; i++) values[i] = of(&rounds[i]);
  const struct summary s = summarize(values, count);
  if (s.max > 0) {
    printf("%-58s %8.3f (%.3f .. %.3f)%s\n", what, s.median, s.min, s.max, unit);
  } else {
    printf("%-58s        - (this file system has none)\n", what);
  }
}

static double save(const struct round *r) { return r->save.clock; }
static double removal(const struct round *r) { return r->removal; }
static double save_work(const struct round *r) { return r->save.processor; }
static double one(const struct round *r) { return r->one; }
static double several(const struct round *r) { return r->several; }
static double written(const struct round *r) { return r->written; }
static double synced(const struct round *r) { return r->synced; }
static double to_several(const struct round *r) { return r->several / r->save.clock; }
static double to_one(const struct round *r) { return r->one / r->save.clock; }
static double to_cache(const struct round *r) { return r->synced / r->save.clock; }
static double step(const struct round *r) { return r->steps.clock / STEPS; }
static double snapshot(const struct round *r) { return r->snapshot.clock; }
static double snapshot_work(const struct round *r) { return r->snapshot.processor; }
static double first(const struct round *r) { return r->first_behind / r->first_step; }
static double slower(const struct round *r) { return r->behind.clock / r->steps.clock; }
static double processor(const struct round *r) {
  return (r->behind.processor + r->wait.processor) / r->steps.processor;
}
static double wait_for_end(const struct round *r) { return r->wait.clock; }

static void print(const struct round *rounds, size_t count, const struct run *run) {
  printf("a state of %.3f GB, %zu rounds: median (smallest .. largest)\n",
         (double)run->bytes * 1e-9, count);
  print_line("ek_trainer_save()", rounds, count, save, " s");
  print_line("processor time for it", rounds, count, save_work, " s");
  print_line("removing a state", rounds, count, removal, " s");
  print_line("plain file, several direct writes at once, synced", rounds, count, several, " s");
  print_line("plain file, one direct write at a time, synced", rounds, count, one, " s");
  print_line("plain file, page cache, written", rounds, count, written, " s");
  print_line("plain file, page cache, written and synced", rounds, count, synced, " s");
  print_line("speed of a save over several direct writes at once", rounds, count, to_several, "");
  print_line("speed of a save over one direct write at a time", rounds, count, to_one, "");
  print_line("speed of a save over the page cache, synced", rounds, count, to_cache, "");
  print_line("a step", rounds, count, step, " s");
  print_line("ek_trainer_save_begin(): the copy", rounds, count, snapshot, " s");
  print_line("processor time for it", rounds, count, snapshot_work, " s");
  print_line("first step during a save over first step alone", rounds, count, first, "");
  print_line("steps during a save over steps alone", rounds, count, slower, "");
  print_line("processor time for them and the writing, over alone", rounds, count, processor,
             "");
  print_line("ek_trainer_save_end(): the time left to wait", rounds, count, wait_for_end, " s");
}

/* Token t of the batch, taken as one text; its target is the next one. */
static int32_t token(int64_t t, const struct shape *shape) {
  return (int32_t)((uint64_t)t * 7919 % (uint64_t)shape->vocab);
}

static ek_status work(struct run *run, const char *devices, const struct shape *shape, size_t count,
                      double seconds) {
  static struct round rounds[MOST_ROUNDS];
  const double start = clock_seconds();
  const int64_t sizes[] = {shape->batch, shape->seq};
  const int64_t tokens = shape->batch * shape->seq;
  int32_t *ids = malloc(2 * (size_t)tokens * sizeof *ids);
  size_t done = 0;
  double last = 0;
  ek_status status = EK_OK;
  run->chunk = aligned_alloc(PAGE, CHUNK);
  if (ids == NULL || run->chunk == NULL) {
    EK_TRY_GOTO(status, ek_error_set(EK_ERR_OUT_OF_MEMORY, "out of memory for a batch"), cleanup);
  }
  memset(run->chunk, 7, CHUNK);
  for (int64_t t = 0; t < tokens; t++) {
    ids[t] = token(t, shape);
    ids[tokens + t] = token(t + 1, shape);
  }
  EK_TRY_GOTO(status, ek_tensor_host(&run->tokens, ids, EK_I32, 2, sizes), cleanup);
  EK_TRY_GOTO(status, ek_tensor_host(&run->targets, ids + tokens, EK_I32, 2, sizes), cleanup);
  EK_TRY_GOTO(status, open_trainer(&run->trainer, devices, shape), cleanup);
  EK_TRY_GOTO(status, warm_up(run), cleanup);
  for (; done < count; done++) {
    const double begin = clock_seconds();
    if (done > 0 && begin - start + last > seconds) break;
    EK_TRY_GOTO(status, measure(&rounds[done], run), cleanup);
    last = clock_seconds() - begin;
  }
  print(rounds, done, run);
cleanup:
  if (ek_trainer_close(run->trainer) != EK_OK && status == EK_OK) status = EK_ERR_INTERNAL;
  free(run->chunk);
  free(ids);
  return status;
}

int main(int argc, char **argv) {
  const struct preset *preset = preset_find(argc > 3 ? argv[3] : "gpt2-124m");
  const long count = argc > 4 ? strtol(argv[4], NULL, 10) : 3;
  const double seconds = argc > 5 ? strtod(argv[5], NULL) : 120;
  if (argc < 2 || argc > 6 || preset == NULL || preset->shape.image > 0 || count < 1 ||
      count > MOST_ROUNDS || !(seconds > 0)) {
    fprintf(stderr, "usage: evenkeel-saving FOLDER [DEVICES [PRESET [ROUNDS [SECONDS]]]]\n");
    return 2;
  }
  struct run run = {.folder = argv[1]};
  const ek_status status =
      work(&run, argc > 2 ? argv[2] : "cpu:2", &preset->shape, (size_t)count, seconds);
  if (status == EK_OK) return 0;
  fprintf(stderr, "evenkeel-saving: %s\n", ek_error_message());
  return 1;
}
