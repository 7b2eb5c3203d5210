/*
 * evenkeel-saving - what saving the state of a run costs.
 *
 *     evenkeel-saving FOLDER [DEVICES [PRESET [ROUNDS]]]
 *
 * A preset of evenkeel-bench (gpt2-124m) trains in mode sharded, on cpu:2. Each round (3) takes turns, so
 * that a drift of the machine's speed cancels:
 *
 *   plain   a file of as many bytes, from one warm buffer: written, and written and synced
 *   save    ek_trainer_save()
 *   steps   STEPS of them while nothing else happens
 *   behind  ek_trainer_begin_save(), then STEPS steps while its thread writes, then ek_trainer_end_save()
 *
 * FOLDER is made, and holds one state at the end. docs/benchmark.md says what is printed.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <evenkeel/evenkeel.h>

#include "presets.h"
#include "statistics.h"

enum { STEPS = 4, MOST_ROUNDS = 100, CHUNK = 1 << 20 };

struct run {
  const char *folder;
  ek_trainer *trainer;
  ek_tensor tokens, targets;
  uint64_t bytes; /* of a state */
};

struct round {
  double written, synced; /* the plain file, since its beginning */
  double save, snapshot, steps, behind, wait;
};

static ek_status refused(const char *what) {
  return ek_error_set(EK_ERR_IO, "%s: %s", what, strerror(errno));
}

static ek_status write_all(int file, const char *chunk, uint64_t bytes) {
  while (bytes > 0) {
    const size_t want = bytes < CHUNK ? (size_t)bytes : CHUNK;
    const ssize_t got = write(file, chunk, want);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return refused("write");
    bytes -= (uint64_t)got;
  }
  return EK_OK;
}

static ek_status write_plain(struct round *round, const struct run *run) {
  char path[PATH_MAX];
  if (snprintf(path, sizeof path, "%s/plain", run->folder) >= (int)sizeof path) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "the folder's name is too long");
  }
  char *chunk = malloc(CHUNK);
  if (chunk == NULL) return ek_error_set(EK_ERR_OUT_OF_MEMORY, "no memory for a buffer");
  memset(chunk, 7, CHUNK);
  const double start = clock_seconds();
  const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  ek_status status = file < 0 ? refused(path) : write_all(file, chunk, run->bytes);
  round->written = clock_seconds() - start;
  if (status == EK_OK && fsync(file) != 0) status = refused("fsync");
  round->synced = clock_seconds() - start;
  if (file >= 0) (void)close(file);
  (void)unlink(path);
  free(chunk);
  return status;
}

/* Waits for the devices: a step's result is asked for. */
static ek_status train(double *seconds, const struct run *run, int steps) {
  const double start = clock_seconds();
  for (int i = 0; i < steps; i++) {
    ek_step_result result;
    EK_TRY(ek_trainer_step(&result, run->trainer, &run->tokens, 1, &run->targets, 1));
  }
  *seconds = clock_seconds() - start;
  return EK_OK;
}

static const ek_checkpoint_options keep_one = {sizeof(ek_checkpoint_options), 0, 1, NULL, 0};

static ek_status measure(struct round *round, const struct run *run) {
  double start = 0;
  EK_TRY(write_plain(round, run));
  start = clock_seconds();
  EK_TRY(ek_trainer_save(run->trainer, run->folder, &keep_one));
  round->save = clock_seconds() - start;
  EK_TRY(train(&round->steps, run, STEPS));
  start = clock_seconds();
  EK_TRY(ek_trainer_begin_save(run->trainer, run->folder, &keep_one));
  round->snapshot = clock_seconds() - start;
  EK_TRY(train(&round->behind, run, STEPS));
  start = clock_seconds();
  EK_TRY(ek_trainer_end_save(run->trainer));
  round->wait = clock_seconds() - start;
  return EK_OK;
}

/* The first save warms up, and its file says how many bytes a state has. */
static ek_status warm_up(struct run *run) {
  ek_checkpoint_info info;
  struct stat file;
  double seconds = 0;
  EK_TRY(train(&seconds, run, 1));
  EK_TRY(ek_trainer_save(run->trainer, run->folder, &keep_one));
  EK_TRY(ek_checkpoint_latest(&info, run->folder));
  if (stat(info.path, &file) != 0) return refused(info.path);
  run->bytes = (uint64_t)file.st_size;
  return EK_OK;
}

static ek_status open_trainer(ek_trainer **trainer, const char *devices,
                              const struct shape *shape) {
  ek_module *gpt = NULL;
  ek_criterion *loss = NULL;
  ek_optimizer *adamw = NULL;
  ek_gpt_options model = EK_GPT_OPTIONS_INIT;
  ek_trainer_options options = EK_TRAINER_OPTIONS_INIT;
  ek_status status;
  model.vocabulary = shape->vocab;
  model.sequence = shape->seq;
  model.width = shape->width;
  model.layers = (int)shape->layers;
  model.heads = (int)shape->heads;
  options.mode = EK_MODE_SHARDED;
  EK_TRY_GOTO(status, ek_gpt_create(&gpt, &model), cleanup);
  EK_TRY_GOTO(status, ek_cross_entropy_create(&loss, NULL), cleanup);
  EK_TRY_GOTO(status, ek_adamw_create(&adamw, NULL), cleanup);
  EK_TRY_GOTO(status, ek_trainer_open(trainer, devices, gpt, loss, adamw, &options), cleanup);
cleanup:
  ek_optimizer_free(adamw);
  ek_criterion_free(loss);
  ek_module_free(gpt);
  return status;
}

static void print_line(const char *what, const struct round *rounds, size_t count,
                       double (*of)(const struct round *round), const char *unit) {
  double values[MOST_ROUNDS];
  for (size_t i = 0; i < count; i++) values[i] = of(&rounds[i]);
  const struct summary s = summarize(values, count);
  printf("%-58s %8.3f (%.3f .. %.3f)%s\n", what, s.median, s.min, s.max, unit);
}

static double written(const struct round *r) { return r->written; }
static double synced(const struct round *r) { return r->synced; }
static double save(const struct round *r) { return r->save; }
static double snapshot(const struct round *r) { return r->snapshot; }
static double step(const struct round *r) { return r->steps / STEPS; }
static double wait_for_end(const struct round *r) { return r->wait; }
static double speed(const struct round *r) { return r->synced / r->save; }
static double slower(const struct round *r) { return r->behind / r->steps; }

static void print(const struct round *rounds, size_t count, const struct run *run) {
  printf("a state of %.3f GB, %zu rounds: median (smallest .. largest)\n",
         (double)run->bytes * 1e-9, count);
  print_line("plain file, written", rounds, count, written, " s");
  print_line("plain file, written and synced", rounds, count, synced, " s");
  print_line("ek_trainer_save()", rounds, count, save, " s");
  print_line("its speed over that of the plain file, synced", rounds, count, speed, "");
  print_line("a step", rounds, count, step, " s");
  print_line("ek_trainer_begin_save(): the copy", rounds, count, snapshot, " s");
  print_line("steps behind it over steps alone", rounds, count, slower, "");
  print_line("ek_trainer_end_save(): what was left to wait for", rounds, count, wait_for_end, " s");
}

/* Token t of the batch, taken as one text; its target is the next one. */
static int32_t token(int64_t t, const struct shape *shape) {
  return (int32_t)((uint64_t)t * 7919 % (uint64_t)shape->vocab);
}

static ek_status work(struct run *run, const char *devices, const struct shape *shape,
                      size_t count) {
  static struct round rounds[MOST_ROUNDS];
  const int64_t sizes[] = {shape->batch, shape->seq};
  const int64_t tokens = shape->batch * shape->seq;
  int32_t *ids = malloc(2 * (size_t)tokens * sizeof *ids);
  ek_status status;
  if (ids == NULL) return ek_error_set(EK_ERR_OUT_OF_MEMORY, "no memory for a batch");
  for (int64_t t = 0; t < tokens; t++) {
    ids[t] = token(t, shape);
    ids[tokens + t] = token(t + 1, shape);
  }
  EK_TRY_GOTO(status, ek_tensor_host(&run->tokens, ids, EK_I32, 2, sizes), cleanup);
  EK_TRY_GOTO(status, ek_tensor_host(&run->targets, ids + tokens, EK_I32, 2, sizes), cleanup);
  EK_TRY_GOTO(status, open_trainer(&run->trainer, devices, shape), cleanup);
  EK_TRY_GOTO(status, warm_up(run), cleanup);
  for (size_t i = 0; i < count; i++) EK_TRY_GOTO(status, measure(&rounds[i], run), cleanup);
  print(rounds, count, run);
cleanup:
  if (ek_trainer_free(run->trainer) != EK_OK && status == EK_OK) status = EK_ERR_INTERNAL;
  free(ids);
  return status;
}

int main(int argc, char **argv) {
  const struct preset *preset = preset_find(argc > 3 ? argv[3] : "gpt2-124m");
  const long count = argc > 4 ? strtol(argv[4], NULL, 10) : 3;
  if (argc < 2 || argc > 5 || preset == NULL || count < 1 || count > MOST_ROUNDS) {
    fprintf(stderr, "usage: evenkeel-saving FOLDER [DEVICES [PRESET [ROUNDS]]]\n");
    return 2;
  }
  struct run run = {.folder = argv[1]};
  const ek_status status = work(&run, argc > 2 ? argv[2] : "cpu:2", &preset->shape, (size_t)count);
  if (status == EK_OK) return 0;
  fprintf(stderr, "evenkeel-saving: %s\n", ek_error_message());
  return 1;
}
