/*
 * together.c - what saving and loading cost several processes: evenkeel-saving-together.
 *
 *     mpirun -n P evenkeel-saving-together FOLDER [PRESET [ROUNDS [MB]]]
 *
 * or started in any other way that world.h knows. A model of a preset of evenkeel-bench (gpt2-124m)
 * has one device in each process, mode sharded. Each round (3) takes turns:
 *
 *   together  all processes save into FOLDER
 *   apart     process N saves into FOLDER.N, as if each had a disk of its own
 *   first     all but process 0 name a folder in which nothing can be made: process 0 writes all of
 *             it
 *
 * and each saved state is loaded again by the same processes from the same folders.
 *
 * With MB, each process writes at most MB megabytes in a second, as if it had a link of its own
 * to the file system; without, all of them share the disk of one machine. The file is removed
 * before each save. Each process prints the seconds of its saves, the bytes that
 * the system counts as written by it, the bytes that it has sent and received, and the seconds of
 * its loads and what it has sent for them. FOLDER and FOLDER.N are made or are empty, and one state
 * stays in each.
 */
#define _GNU_SOURCE /* RTLD_NEXT */
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <evenkeel/evenkeel.h>

#include "presets.h"
#include "statistics.h"

enum { MOST_ROUNDS = 100, PATH_SIZE = 4096 };

struct figures {
  double seconds[MOST_ROUNDS], processor[MOST_ROUNDS], load[MOST_ROUNDS];
  double written, sent, received, load_sent; /* of the last round, in MB */
};

/* ---- a link of its own ---- */

static double link_speed; /* bytes in a second; 0: no limit */
static double link_free;  /* when it has sent what it was given */
static pthread_mutex_t link_mutex = PTHREAD_MUTEX_INITIALIZER;

/* Stands in front of the C library's, for the library's writes. */
ssize_t pwrite(int file, const void *data, size_t bytes, off_t place) {
  static ssize_t (*next)(int, const void *, size_t, off_t);
  double until = 0;
  (void)pthread_mutex_lock(&link_mutex);
  if (next == NULL) *(void **)(void *)&next = dlsym(RTLD_NEXT, "pwrite");
  if (link_speed > 0) {
    const double now = clock_seconds();
    link_free = (link_free > now ? link_free : now) + (double)bytes / link_speed;
    until = link_free;
  }
  (void)pthread_mutex_unlock(&link_mutex);
  const ssize_t put = next(file, data, bytes, place);
  for (double left; until > 0 && (left = until - clock_seconds()) > 0;) {
    (void)usleep((useconds_t)(left * 1e6) + 1);
  }
  return put;
}

/* ---- training ---- */

static ek_status open_trainer(ek_trainer **trainer, ek_world *world, const struct shape *shape) {
  ek_module *module = NULL;
  ek_criterion *loss = NULL;
  ek_optimizer *adamw = NULL;
  ek_trainer_options options = EK_TRAINER_OPTIONS_INIT;
  ek_data_parallel_model_options model_options = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  ek_group_options group = EK_GROUP_OPTIONS_INIT;
  ek_status status = EK_OK;
  group.threads_per_device = 1;
  model_options.state = EK_STATE_SHARDED;
  options.model = &model_options;
  options.group_options = &group;
  options.world = world;
  EK_TRY_GOTO(status, shape_language_model(&module, shape, 0, false, 0), cleanup);
  EK_TRY_GOTO(status, ek_cross_entropy_create(&loss, NULL), cleanup);
  EK_TRY_GOTO(status, ek_adamw_create(&adamw, NULL), cleanup);
  EK_TRY_GOTO(status, ek_trainer_open(trainer, "cpu:1", module, loss, adamw, &options), cleanup);
cleanup:
  ek_optimizer_free(adamw);
  ek_criterion_free(loss);
  ek_module_free(module);
  return status;
}

/* Bytes that this process has made the system write; 0 where it does not say. */
static double written(void) {
  char line[128];
  double bytes = 0;
  FILE *file = fopen("/proc/self/io", "r");
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    if (strncmp(line, "write_bytes:", 12) == 0) bytes = strtod(line + 12, NULL);
  }
  if (file != NULL) (void)fclose(file);
  return bytes;
}

/* Removes states and parts of states. */
static void remove_states(const char *folder) {
  DIR *entries = opendir(folder);
  for (struct dirent *entry; entries != NULL && (entry = readdir(entries)) != NULL;) {
    if (strncmp(entry->d_name, "step-", 5) == 0) (void)unlinkat(dirfd(entries), entry->d_name, 0);
  }
  if (entries != NULL) (void)closedir(entries);
}

static ek_status save(struct figures *figures, size_t round, ek_trainer *trainer, ek_world *world,
                      const char *folder) {
  const double bytes = written();
  double sent = (double)ek_world_sent(world);
  const double received = (double)ek_world_received(world);
  remove_states(folder);
  double start = clock_seconds();
  const double work = processor_seconds();
  EK_TRY(ek_trainer_save(trainer, folder, NULL));
  figures->seconds[round] = clock_seconds() - start;
  figures->processor[round] = processor_seconds() - work;
  figures->written = (written() - bytes) * 1e-6;
  figures->sent = ((double)ek_world_sent(world) - sent) * 1e-6;
  figures->received = ((double)ek_world_received(world) - received) * 1e-6;
  sent = (double)ek_world_sent(world);
  start = clock_seconds();
  EK_TRY(ek_trainer_load(NULL, trainer, folder));
  figures->load[round] = clock_seconds() - start;
  figures->load_sent = ((double)ek_world_sent(world) - sent) * 1e-6;
  return EK_OK;
}

static void print(const char *what, const struct figures *figures, size_t rounds, size_t process) {
  const struct summary clock = summarize(figures->seconds, rounds);
  const struct summary work = summarize(figures->processor, rounds);
  printf("process %zu, %s: %.3f s (%.3f .. %.3f), processor %.3f s, written %.1f MB, sent %.1f MB, "
         "received %.1f MB; load %.3f s, sent %.1f MB\n",
         process, what, clock.median, clock.min, clock.max, work.median, figures->written,
         figures->sent, figures->received, summarize(figures->load, rounds).median,
         figures->load_sent);
}

static ek_status measure(ek_world *world, const char *folder, const struct shape *shape,
                         size_t rounds) {
  static struct figures together, apart, first;
  char own[PATH_SIZE];
  const size_t process = ek_world_process(world);
  const char *alone = process == 0 ? folder : "/dev/null";
  ek_trainer *trainer = NULL;
  ek_status status = EK_OK;
  (void)snprintf(own, sizeof own, "%s.%zu", folder, process);
  EK_TRY(open_trainer(&trainer, world, shape));
  for (size_t i = 0; i < rounds && status == EK_OK; i++) {
    status = save(&together, i, trainer, world, folder);
    if (status == EK_OK) status = save(&apart, i, trainer, world, own);
    if (status == EK_OK) status = save(&first, i, trainer, world, alone);
  }
  if (status == EK_OK) {
    print("together", &together, rounds, process);
    print("apart", &apart, rounds, process);
    print("process 0 alone", &first, rounds, process);
  }
  ek_trainer_free(trainer);
  return status;
}

int main(int argc, char **argv) {
  const struct preset *preset = preset_find(argc > 2 ? argv[2] : "gpt2-124m");
  const long rounds = argc > 3 ? strtol(argv[3], NULL, 10) : 3;
  ek_world *world = NULL;
  if (argc > 4) link_speed = strtod(argv[4], NULL) * 1e6;
  if (argc < 2 || argc > 5 || preset == NULL || preset->shape.image > 0 || rounds < 1 ||
      rounds > MOST_ROUNDS) {
    fprintf(stderr, "usage: evenkeel-saving-together FOLDER [PRESET [ROUNDS [MB]]]\n");
    return 2;
  }
  ek_status status = ek_world_open(&world, NULL);
  if (status == EK_OK) status = measure(world, argv[1], &preset->shape, (size_t)rounds);
  if (status != EK_OK) fprintf(stderr, "evenkeel-saving-together: %s\n", ek_error_message());
  ek_world_free(world);
  return status == EK_OK ? 0 : 1;
}
