/*
 * mpi.h - opens a world from an MPI communicator of the program's.
 *
 * The only header that needs <mpi.h>, and the only one that evenkeel.h does not include. A program
 * includes it beside evenkeel.h and is compiled with its MPI (mpicc); the library itself does not
 * link MPI and loads a module for the MPI of the program: Open MPI, or MPICH and those with its
 * ABI. The world is opened after MPI_Init() and freed before MPI_Finalize().
 *
 * The library duplicates the communicator, so that its messages and the program's do not mix, and
 * calls MPI only inside the program's own calls, in the same thread. Every level of
 * MPI_Init_thread() will do; below MPI_THREAD_SERIALIZED the world is opened and used by the thread
 * that called MPI_Init(). What MPI reports on the duplicate becomes an error of the call; MPICH
 * gives errors of messages to the handler of MPI_COMM_WORLD instead, which ends the program unless
 * the program sets another one. If the program calls MPI_Finalize() while the world is open, later
 * calls that need other processes are errors.
 */
#ifndef EVENKEEL_MPI_H
#define EVENKEEL_MPI_H

#include <mpi.h>

#include <evenkeel/world.h>

/*
 * All processes of the communicator call it, and are numbered as in it. The communicator stays the
 * program's, which may free it. Errors: as ek_world_open_communicator(), which this calls with the
 * MPI that the program is compiled with.
 */
static inline EK_CHECKED ek_status ek_world_open_mpi(ek_world **world, MPI_Comm communicator,
                                                     const ek_world_options *options) {
#if defined(OPEN_MPI)
  static const char mpi[] = "openmpi";
#elif defined(MPICH_VERSION) || defined(I_MPI_VERSION)
  static const char mpi[] = "mpich";
#else
#error "evenkeel has no module for this MPI; expected Open MPI, MPICH or one with MPICH's ABI"
#endif
  return ek_world_open_communicator(world, mpi, &communicator, sizeof communicator, options);
}

#endif /* EVENKEEL_MPI_H */
