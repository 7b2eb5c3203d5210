/*
 * all_reduce.c - the bus bandwidth of ek_communicator_all_reduce() between processes, beside
 * MPI_Allreduce of the MPI that it is compiled with. Takes turns: one call of each, again and
 * again.
 *
 *   mpirun -n P evenkeel-all-reduce-MPI [LARGEST] [ROUNDS] [sockets]
 *
 * With `sockets` evenkeel's bytes go over TCP; MPI_Allgather opens the connections. For sizes from
 * 1 MiB to LARGEST (256) MiB of f32, one device in each process. Bus bandwidth is
 * bytes / seconds * 2 (P - 1) / P, as nccl-tests defines it, of the median of ROUNDS (11); a round
 * has CALLS calls one after the other, each for a tensor of its own, and ends when the slowest
 * process has ended them. Ours are made by one job, as those of a training step are: beginning a
 * job is no part of a sum. `each` waits for a call before it makes the next one, as MPI_Allreduce
 * does; `once` waits for all of them together, as a training step and nccl-tests do.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <evenkeel/communicator.h>
#include <evenkeel/device.h>
#include <evenkeel/mpi.h>

enum { MAX_ROUNDS = 1000, CALLS = 4 };

enum way { MPI, EACH, ONCE, WAYS };

struct bench {
  ek_group *group;
  ek_communicator *communicator;
  ek_tensor tensors[CALLS];
  enum way way;
  int process, processes;
};

static ek_status all_reduce(void *context, ek_device *device, size_t index) {
  struct bench *bench = context;
  (void)index;
  for (int i = 0; i < CALLS; i++) {
    EK_TRY(ek_communicator_all_reduce(bench->communicator, device, &bench->tensors[i]));
    if (bench->way == EACH) EK_TRY(ek_communicator_wait(bench->communicator, device));
  }
  return ek_communicator_wait(bench->communicator, device);
}

static ek_status calls(struct bench *bench, enum way way, int count) {
  bench->way = way;
  if (way != MPI) return ek_group_apply(bench->group, all_reduce, bench);
  for (int i = 0; i < CALLS; i++) {
    MPI_Allreduce(MPI_IN_PLACE, bench->tensors[i].data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
  return EK_OK;
}

static int compare(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* One size: the median of each way, in seconds of a call. */
static ek_status measure(double medians[WAYS], struct bench *bench, int64_t count, int rounds) {
  static double seconds[WAYS][MAX_ROUNDS];
  for (int i = 0; i < CALLS; i++) {
    memset(bench->tensors[i].data, 0, (size_t)count * sizeof(float));
  }
  for (int round = -1; round < rounds; round++) { /* the first is not counted */
    for (int way = 0; way < WAYS; way++) {
      MPI_Barrier(MPI_COMM_WORLD);
      double time = -MPI_Wtime(), longest = 0;
      EK_TRY(calls(bench, (enum way)way, (int)count));
      time += MPI_Wtime();
      MPI_Allreduce(&time, &longest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
      if (round >= 0) seconds[way][round] = longest / CALLS;
    }
  }
  for (int way = 0; way < WAYS; way++) {
    qsort(seconds[way], (size_t)rounds, sizeof seconds[way][0], compare);
    medians[way] = seconds[way][rounds / 2];
  }
  return EK_OK;
}

static ek_status measure_size(struct bench *bench, int64_t mib, int rounds) {
  const double factor = 2.0 * (bench->processes - 1) / bench->processes / 1e9;
  const int64_t bytes = mib << 20, count = bytes / (int64_t)sizeof(float);
  double medians[WAYS] = {0}, rates[WAYS];
  ek_status status = EK_OK;
  for (int i = 0; i < CALLS && status == EK_OK; i++) {
    status = ek_tensor_create(&bench->tensors[i], ek_group_device(bench->group, 0),
                              EK_MEMORY_GRADIENTS, EK_F32, 1, &count);
  }
  if (status == EK_OK) status = measure(medians, bench, count, rounds);
  for (int i = 0; i < CALLS; i++) ek_tensor_free(&bench->tensors[i]);
  EK_TRY(status);
  for (int way = 0; way < WAYS; way++) rates[way] = (double)bytes * factor / medians[way];
  if (bench->process == 0) {
    printf("%8d %14.3f %14.3f %8.2f %14.3f %8.2f\n", (int)mib, rates[MPI], rates[EACH],
           rates[EACH] / rates[MPI], rates[ONCE], rates[ONCE] / rates[MPI]);
  }
  return EK_OK;
}

static ek_status run(struct bench *bench, int64_t largest, int rounds) {
  if (bench->process == 0) {
    printf("%8s %14s %14s %8s %14s %8s\n", "MiB", "MPI GB/s", "each GB/s", "ratio", "once GB/s",
           "ratio");
  }
  for (int64_t mib = 1; mib <= largest; mib *= 4) EK_TRY(measure_size(bench, mib, rounds));
  return EK_OK;
}

static ek_status gather(void *context, const void *mine, size_t bytes, void *all) {
  (void)context;
  MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, MPI_COMM_WORLD);
  return EK_OK;
}

static ek_status open_world(ek_world **world, const struct bench *bench, bool sockets) {
  ek_world_gather by = EK_WORLD_GATHER_INIT;
  by.process = (size_t)bench->process;
  by.processes = (size_t)bench->processes;
  by.gather = gather;
  return sockets ? ek_world_open_gather(world, &by, NULL)
                 : ek_world_open_mpi(world, MPI_COMM_WORLD, NULL);
}

int main(int argc, char **argv) {
  struct bench bench = {0};
  ek_world *world = NULL;
  ek_group_options options = EK_GROUP_OPTIONS_INIT;
  ek_status status;
  MPI_Init(&argc, &argv);
  const int64_t largest = argc > 1 ? atoll(argv[1]) : 256;
  const int rounds = argc > 2 ? atoi(argv[2]) : 11;
  const bool sockets = argc > 3 && strcmp(argv[3], "sockets") == 0;
  if (largest < 1 || rounds < 1 || rounds > MAX_ROUNDS || (argc > 3 && !sockets)) {
    fprintf(stderr, "usage: mpirun -n P %s [LARGEST] [ROUNDS] [sockets]\n", argv[0]);
    return 2;
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &bench.process);
  MPI_Comm_size(MPI_COMM_WORLD, &bench.processes);
  options.threads_per_device = 1;
  EK_TRY_GOTO(status, open_world(&world, &bench, sockets), cleanup);
  options.world = world;
  EK_TRY_GOTO(status, ek_group_open(&bench.group, "cpu:1", &options), cleanup);
  EK_TRY_GOTO(status, ek_communicator_open(&bench.communicator, bench.group), cleanup);
  EK_TRY_GOTO(status, run(&bench, largest, rounds), cleanup);
cleanup:
  if (status != EK_OK) fprintf(stderr, "%s\n", ek_error_message());
  ek_communicator_free(bench.communicator);
  ek_group_free(bench.group);
  ek_world_free(world);
  if (status != EK_OK) MPI_Abort(MPI_COMM_WORLD, 1);
  MPI_Finalize();
  return 0;
}
