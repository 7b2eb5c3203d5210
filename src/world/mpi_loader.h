/*
 * mpi_loader.h - the wire over MPI, which is a module for each MPI (core/loader.h): they are
 * compiled for different types and are not interchangeable.
 */
#ifndef EK_MPI_LOADER_H
#define EK_MPI_LOADER_H

#include "world/wire.h"

/* What a module gives. */
struct ek__mpi_table {
  size_t wire_size; /* sizeof(struct ek__wire_table) */
  /* `communicator` points to an MPI_Comm of `bytes` bytes; NULL: all processes that mpirun has
   * started, and MPI is initialised if it is not. All processes of the communicator call it. */
  ek_status (*open)(struct ek__wire *wire, size_t *process, size_t *processes,
                    const void *communicator, size_t bytes);
};
#define EK__MPI_ENTRY "ek_mpi_module"

/* Which mpirun started this process, by its environment: *mpi is "openmpi", "mpich" or NULL (none),
 * and *processes how many it started. EK_ERR_INVALID_ARGUMENT: the variables contradict each
 * other. */
ek_status ek__mpi_started(const char **mpi, size_t *processes);

/*
 * Opens a wire. `mpi` is "openmpi" or "mpich"; NULL: by the environment. `communicator` as above.
 * Loads the module. EK_ERR_UNAVAILABLE: it cannot be loaded, or MPI has not all processes that
 * mpirun has started. EK_ERR_STATE: MPI has ended, or may not be called by this thread.
 */
ek_status ek__mpi_open(struct ek__wire *wire, size_t *process, size_t *processes, const char *mpi,
                       const void *communicator, size_t bytes);

#endif /* EK_MPI_LOADER_H */
