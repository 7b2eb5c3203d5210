/*
 * mpi_loader.c - finds out which MPI is wanted, and loads the module for it.
 */
#include "world/mpi_loader.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/loader.h"

/* Open MPI loads plug-ins that need its own symbols. */
static struct ek__loadable modules[] = {{.name = "mpi",
                                         .title = "Open MPI",
                                         .file = "libevenkeel_mpi_openmpi.so",
                                         .entry = EK__MPI_ENTRY,
                                         .table_size = sizeof(struct ek__mpi_table),
                                         .global = true},
                                        {.name = "mpi",
                                         .title = "MPICH",
                                         .file = "libevenkeel_mpi_mpich.so",
                                         .entry = EK__MPI_ENTRY,
                                         .table_size = sizeof(struct ek__mpi_table),
                                         .global = true}};
static const char *const names[] = {"openmpi", "mpich"};
enum { MPIS = sizeof names / sizeof names[0] };

ek_status ek__mpi_started(const char **mpi, size_t *processes) {
  const char *const values[MPIS] = {getenv("OMPI_COMM_WORLD_SIZE"), getenv("PMI_SIZE")};
  const char *const variables[MPIS] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};
  *mpi = NULL;
  *processes = 0;
  EK__FAIL_IF(values[0] != NULL && values[1] != NULL, EK_ERR_INVALID_ARGUMENT,
              "mpi: the environment has both %s (Open MPI) and %s (MPICH), so it is not clear "
              "which mpirun started the program; unset the other's variables",
              variables[0], variables[1]);
  for (size_t i = 0; i < MPIS; i++) {
    if (values[i] == NULL) continue;
    char *end = NULL;
    const unsigned long count = strtoul(values[i], &end, 10);
    EK__FAIL_IF(count == 0 || count > 1048576 || *end != '\0', EK_ERR_INVALID_ARGUMENT,
                "mpi: %s is \"%s\"; expected a number of processes from 1 to 1048576", variables[i],
                values[i]);
    *mpi = names[i];
    *processes = count;
  }
  return EK_OK;
}

static ek_status choose(struct ek__loadable **module, const char *mpi) {
  for (size_t i = 0; i < MPIS; i++) {
    if (strcmp(mpi, names[i]) == 0) {
      *module = &modules[i];
      return EK_OK;
    }
  }
  return ek_error_set(EK_ERR_INVALID_ARGUMENT, "mpi: unknown MPI \"%s\"; expected %s or %s", mpi,
                      names[0], names[1]);
}

ek_status ek__mpi_open(struct ek__wire *wire, size_t *process, size_t *processes, const char *mpi,
                       const void *communicator, size_t bytes) {
  struct ek__loadable *module = NULL;
  const void *table = NULL;
  size_t started = 0, all = 0;
  const bool ask = mpi == NULL;
  if (ask) EK_TRY(ek__mpi_started(&mpi, &started));
  EK__FAIL_IF(mpi == NULL, EK_ERR_UNAVAILABLE,
              "mpi: the program was not started by mpirun: neither OMPI_COMM_WORLD_SIZE (Open MPI) "
              "nor PMI_SIZE (MPICH) is in the environment");
  EK_TRY(choose(&module, mpi));
  EK_TRY(ek__load(&table, module));
  const struct ek__mpi_table *entries = table;
  EK__FAIL_IF(entries->wire_size != sizeof(struct ek__wire_table), EK_ERR_UNAVAILABLE,
              "mpi: %s is of another version of evenkeel", module->file);
  EK_TRY(entries->open(wire, process, &all, communicator, bytes));
  const bool differs = ask && communicator == NULL && all != started;
  if (differs || all == 1) { /* one process needs no wire */
    wire->table->close(wire->self);
    *wire = (struct ek__wire){NULL, NULL};
  }
  if (differs) {
    return ek_error_set(EK_ERR_UNAVAILABLE,
                        "mpi: %s is the MPI of a world of %zu, but mpirun started %zu processes; "
                        "start the program with the mpirun of the MPI that it uses",
                        module->title, all, started);
  }
  *processes = all;
  return EK_OK;
}
