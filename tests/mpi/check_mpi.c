/*
 * check_mpi.c - worlds that a program opens from its own MPI, under mpirun.
 *
 *   check_mpi LEVEL    initialises MPI with this level: single, funneled, serialized, multiple
 *
 * One device in each process. Trains in modes that are cut over the processes, with the bits of one
 * process that has all the devices, while the program uses MPI itself; then ends MPI too early. The
 * first expectation that does not hold ends all processes.
 */
#include <evenkeel/mpi.h>

#include "ck_training.h"

#ifdef OPEN_MPI
#define OWN "openmpi"
#define OTHER "mpich"
#else
#define OWN "mpich"
#define OTHER "openmpi"
#endif

enum { STEPS = 3, PER_DEVICE = 2 };

static int rank, size;

static void expect(bool holds, const char *what, int line) {
  if (holds) return;
  fprintf(stderr, "check_mpi.c:%d: process %d: %s (%s)\n", line, rank, what, ek_error_message());
  exit(1); /* mpirun ends the others */
}
#define EXPECT(condition) expect(condition, #condition, __LINE__)
#define EXPECT_ERROR(call, status, words)                                                          \
  EXPECT((call) == (status) && strstr(ek_error_message(), words) != NULL)

/* ---- what is refused ---- */

static void refusals(void) {
  ek_world *world = NULL;
  ek_world_options options = EK_WORLD_OPTIONS_INIT;
  MPI_Comm comm = MPI_COMM_WORLD;
  const size_t bytes = sizeof comm;
  EXPECT_ERROR(ek_world_open_communicator(&world, "lam", &comm, bytes, NULL),
               EK_ERR_INVALID_ARGUMENT, "unknown MPI \"lam\"; expected openmpi or mpich");
  EXPECT_ERROR(ek_world_open_communicator(&world, OWN, &comm, bytes + 1, NULL),
               EK_ERR_INVALID_ARGUMENT, "bytes; expected");
  EXPECT_ERROR(ek_world_open_communicator(&world, OWN, NULL, bytes, NULL), EK_ERR_INVALID_ARGUMENT,
               "communicator is NULL");
  EXPECT_ERROR(ek_world_open_mpi(NULL, comm, NULL), EK_ERR_INVALID_ARGUMENT, "world is NULL");
  EXPECT_ERROR(ek_world_open_mpi(&world, MPI_COMM_NULL, NULL), EK_ERR_INVALID_ARGUMENT,
               "MPI_COMM_NULL");
  options.source = "torchrun";
  EXPECT_ERROR(ek_world_open_mpi(&world, comm, &options), EK_ERR_INVALID_ARGUMENT,
               "options.source is \"torchrun\"");
  ck_assign(options, .source = NULL, .time_limit = -1);
  EXPECT_ERROR(ek_world_open_mpi(&world, comm, &options), EK_ERR_INVALID_ARGUMENT,
               "options.time_limit is -1");
  /* The other's module, if it is built, sees that this MPI is not its own. */
  EXPECT(ek_world_open_communicator(&world, OTHER, &comm, bytes, NULL) == EK_ERR_UNAVAILABLE);
  EXPECT(strstr(ek_error_message(), "the program uses another MPI") != NULL ||
         strstr(ek_error_message(), "is not installed") != NULL);
  EXPECT(world == NULL);
}

/* ---- training ---- */

struct run {
  struct ck_training training;
  ek_group *group;
};

static void open_run(struct run *run, ek_world *world, ek_mode mode) {
  ek_group_options options = EK_GROUP_OPTIONS_INIT;
  struct ck_setup setup = ck_setup_mode(ck_workload("gpt"), "", mode);
  char spec[16];
  snprintf(spec, sizeof spec, "cpu:%d", world == NULL ? size : 1);
  ck_assign(options, .threads_per_device = 1, .world = world);
  ck_assign(setup, .optimizer = ck_clipped_adamw, .options.seed = 5, .options.bucket_bytes = 4096);
  EXPECT(ek_group_open(&run->group, spec, &options) == EK_OK);
  EXPECT(ck_training_try(&run->training, &setup, run->group) == EK_OK);
}

static void close_run(struct run *run) {
  ck_training_free(&run->training);
  EXPECT(ek_group_close(run->group) == EK_OK);
}

/* The device's parameters, as far as it holds them. */
static const ek_tensor *parameters(const struct run *run, size_t index) {
  return ek_replica_parameters(ek_data_parallel_model_replica(run->training.model, index));
}

/* What all processes sent in a step: gradients one way, and sums or parameters the other way, to
 * each process except their own. The totals of the step are the rest. */
static void sends_no_more(uint64_t sent, uint64_t parameter_bytes) {
  uint64_t all = 0;
  const uint64_t least = 2 * (uint64_t)(size - 1) * parameter_bytes;
  MPI_Allreduce(&sent, &all, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
  EXPECT(all >= least && (double)all <= 1.01 * (double)least);
}

static void has_bits_of_one_process(ek_world *world, ek_mode mode) {
  static uint64_t whole_bytes; /* of all parameters; replicated comes first */
  struct run all, part;
  open_run(&all, NULL, mode);
  open_run(&part, world, mode);
  for (int step = 0; step < STEPS; step++) {
    ek_step_result want = {0}, got = {0};
    struct ck_batch whole = ck_batch_make(ck_workload("gpt"), EK_F32, (int64_t)size * PER_DEVICE,
                                          0.2, (uint64_t)step);
    const struct ck_batch own = ck_batch_samples(&whole, (int64_t)rank * PER_DEVICE, PER_DEVICE);
    int one = 1, sum = 0;
    const uint64_t before = ek_world_sent(world);
    EXPECT(ck_training_step(&all.training, &whole, &want) == EK_OK);
    EXPECT(ck_training_step(&part.training, &own, &got) == EK_OK);
    EXPECT(memcmp(&want, &got, sizeof got) == 0);
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    EXPECT(sum == size);
    if (mode == EK_MODE_REPLICATED) whole_bytes = (uint64_t)ek_tensor_bytes(parameters(&part, 0));
    if (mode != EK_MODE_FULLY_SHARDED) sends_no_more(ek_world_sent(world) - before, whole_bytes);
  }
  const ek_tensor *want = parameters(&all, (size_t)rank), *got = parameters(&part, 0);
  EXPECT(ek_tensor_bytes(want) == ek_tensor_bytes(got));
  EXPECT(memcmp(want->data, got->data, (size_t)ek_tensor_bytes(got)) == 0);
  close_run(&part);
  close_run(&all);
}

/* MPI ends while a training is open: its next step is an error, and all can be closed. */
static void finalize_early(ek_world *world) {
  struct run part;
  struct ck_batch batch = ck_batch_make(ck_workload("gpt"), EK_F32, PER_DEVICE, 0.2, 0);
  open_run(&part, world, EK_MODE_REPLICATED);
  EXPECT(ck_training_step(&part.training, &batch, NULL) == EK_OK);
  MPI_Finalize();
  const ek_status status = ck_training_step(&part.training, &batch, NULL);
  EXPECT(status != EK_OK && strstr(ek_error_message(), "MPI_Finalize()") != NULL);
  close_run(&part);
  EXPECT(ek_world_close(world) == EK_OK);
}

int main(int argc, char **argv) {
  static const char *const names[] = {"single", "funneled", "serialized", "multiple"};
  static const ek_mode modes[] = {EK_MODE_REPLICATED, EK_MODE_SHARDED, EK_MODE_FULLY_SHARDED};
  const int levels[] = {MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED,
                        MPI_THREAD_MULTIPLE};
  int level = 0;
  ek_world *world = NULL;
  EXPECT(argc == 2);
  while (level < 3 && strcmp(names[level], argv[1]) != 0) level++;
  MPI_Init_thread(&argc, &argv, levels[level], &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  refusals();
  EXPECT(ek_world_open_mpi(&world, MPI_COMM_WORLD, NULL) == EK_OK);
  EXPECT(ek_world_process(world) == (size_t)rank && ek_world_processes(world) == (size_t)size);
  EXPECT(strstr(ek_world_source(world), "communicator, MPI") != NULL);
  for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
    has_bits_of_one_process(world, modes[i]);
  }
  EXPECT(ek_world_sent(world) > 0 && ek_world_received(world) > 0);
  finalize_early(world);
  return 0;
}
