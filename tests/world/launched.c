/*
 * launched.c - a program for every launcher: opens the world that started it, without a flag, adds
 * up a number over all processes, and prints "PROCESS of PROCESSES by SOURCE: SUM".
 *
 *   launched [SECONDS]    that long is waited for the others, 20 without it
 */
#include <stdio.h>
#include <stdlib.h>

#include <evenkeel/communicator.h>
#include <evenkeel/evenkeel.h>

struct sum {
  ek_communicator *communicator;
  ek_tensor tensor;
};

static ek_status add(void *context, ek_device *device, size_t index) {
  struct sum *sum = context;
  (void)index;
  EK_TRY(ek_communicator_all_reduce(sum->communicator, device, &sum->tensor));
  return ek_communicator_wait(sum->communicator, device);
}

static ek_status run(ek_world *world) {
  ek_group_options options = EK_GROUP_OPTIONS_INIT;
  ek_group *group = NULL;
  struct sum sum = {.communicator = NULL};
  ek_status status = EK_OK;
  const int64_t one = 1;
  options.world = world;
  options.threads_per_device = 1;
  EK_TRY(ek_group_open(&group, "cpu:1", &options));
  EK_TRY_GOTO(status, ek_communicator_open(&sum.communicator, group), cleanup);
  EK_TRY_GOTO(
      status,
      ek_tensor_create(&sum.tensor, ek_group_device(group, 0), EK_MEMORY_INPUTS, EK_F32, 1, &one),
      cleanup);
  *(float *)sum.tensor.data = (float)(ek_world_process(world) + 1);
  EK_TRY_GOTO(status, ek_group_apply(group, add, &sum), cleanup);
  printf("%zu of %zu by %s: %g\n", ek_world_process(world), ek_world_processes(world),
         ek_world_source(world), (double)*(float *)sum.tensor.data);
cleanup:
  ek_tensor_free(&sum.tensor);
  ek_communicator_free(sum.communicator);
  ek_group_free(group);
  return status;
}

int main(int argc, char **argv) {
  ek_world *world = NULL;
  ek_world_options options = EK_WORLD_OPTIONS_INIT;
  options.open_limit = argc > 1 ? strtod(argv[1], NULL) : 20;
  ek_status status = ek_world_open(&world, &options);
  if (status == EK_OK) status = run(world);
  if (status != EK_OK)
    fprintf(stderr, "launched: %s: %s\n", ek_status_name(status), ek_error_message());
  ek_world_free(world);
  return status != EK_OK;
}
