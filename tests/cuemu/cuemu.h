/*
 * cuemu.h - the control interface of cuemu, for tests only: settings, faults, counts, leaks.
 *
 * Settings are read from the environment when the first CUDA function is called:
 *
 *   CUEMU_DEVICES            4        number of devices, 0 to 16
 *   CUEMU_MEMORY             1GiB     memory of each device; bytes, or with KiB MiB GiB
 *   CUEMU_CONTEXT            2MiB     of it: what a context takes
 *   CUEMU_CODE               0        of it: each kernel and kind of product when first used
 *   CUEMU_NCCL               0        of it: a communicator, and again each kind of collective
 *   CUEMU_REFUSED            0        of what cudaMemGetInfo() calls free: cudaMalloc() refuses it
 *   CUEMU_DRIVER             13000    version of the driver; 0: there is none
 *   CUEMU_ARCH               90       compute capability: what a block may have of shared memory
 *   CUEMU_PEER               1        0: no device can read another one's memory
 *   CUEMU_BROKEN_PEER        0        1: CUDA says that it can, but what is read directly is NaN;
 *                                     only copies through the host, without peer access, are right
 *   CUEMU_ORDER              0        of CUDA threads and blocks: 0 forward, 1 backward, 2 random
 *   CUEMU_FIBER_PER_THREAD   0        1: never run two CUDA threads of a block on one stack (TSan)
 *   CUEMU_BLOCK_THREADS      1        2: a grid's blocks on two threads of the system (TSan)
 *   CUEMU_JITTER_US          0        wait up to so long before each operation of a stream
 *   CUEMU_NCCL_POLLS         1        how often a non-blocking NCCL call says ncclInProgress
 *   CUEMU_NCCL_VERSION       that of its header
 *   CUEMU_NCCL_CALL_US       0        what a call for a communicator takes at least
 *   CUEMU_LOAD_DRAINS        0        1: what is loaded at its first use (a kernel, a product of a
 *                                     shape) waits until the device is idle, one after the other
 *   CUEMU_FREE_BLOCKS        0        1: while memory is freed, which waits for all devices, no
 *                                     call of NCCL begins
 *   CUEMU_ALGORITHMS         1        offered by cuBLASLt's heuristic for a product, 1 to 4
 *   CUEMU_WARM               1        0: what is launched while cuemu_warming() is loaded and does
 *                                     not run
 *   CUEMU_LATE               0        a kernel that is first used on a device with this many bytes
 *                                     allocated ends the program; 0: it may
 *   CUEMU_NVTX               0        1: a tool listens to NVTX
 *   CUEMU_CUDNN                       1: cuDNN is installed, and faster than any kernel
 *   CUEMU_LAUNCHES                    a file that gets a line for each kernel ("kernel FILE PLACE",
 *                                     of its symbol), product and region of NVTX, as they are
 *                                     queued
 *   CUEMU_FAULT                       "fail kind device n [error]" or "hang kind device n",
 *                                     separated by commas; kinds as below in lower case:
 *                                     memory copy ...
 *
 * All functions may be called from any thread.
 */
#ifndef CUEMU_H
#define CUEMU_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { CUEMU_MAX_DEVICES = 16 };

struct cuemu_settings {
  int devices;
  size_t memory; /* bytes of each device; of them: */
  size_t context_bytes, code_bytes, nccl_bytes, refused_bytes;
  int driver;
  int arch; /* 75 80 86 87 89 90 100 120 */
  bool peer, broken_peer;
  int order;
  bool fiber_per_thread;
  int block_threads; /* 1 or 2 */
  unsigned jitter_us;
  int nccl_version;
  unsigned nccl_polls, nccl_call_us;
  bool load_drains, free_blocks, warm;
  size_t late_bytes;
  int algorithms;
};

enum cuemu_kind {
  CUEMU_MEMORY, /* cudaMalloc, cudaHostAlloc; counted when called */
  CUEMU_COPY,   /* copies and memsets; a failure is returned by the call */
  CUEMU_LAUNCH, /* kernel launches; a failure is returned by the launch */
  CUEMU_KERNEL, /* kernels as they run; a failure kills the device, as in CUDA */
  CUEMU_BLAS,   /* cuBLASLt products; a failure is returned by the call */
  CUEMU_NCCL,   /* NCCL set-up and collectives; a failure is returned by the call */
  CUEMU_KINDS
};

/* Settings may change only while nothing is alive on any device. */
void cuemu_get_settings(struct cuemu_settings *settings);
void cuemu_set_settings(const struct cuemu_settings *settings);
void cuemu_set_order(int order);

/* Begins or ends what the calling thread launches only to have it loaded: see CUEMU_WARM. */
void cuemu_warming(bool on);

/* The nth call of the kind from now (1: the next) on the device fails with the error, 0 for a
   likely one. Kernel faults, and any error that CUDA calls sticky, stay until cuemu_reset(). */
void cuemu_fail(int device, enum cuemu_kind kind, unsigned long nth, int error);

/* The nth operation of the kind from now that runs on a stream of the device does not end: a
   collective until its communicator is aborted, all others until cuemu_release(). */
void cuemu_hang(int device, enum cuemu_kind kind, unsigned long nth);
void cuemu_release(void);

/* The nth call of the kind from now waits until the device is idle, as a call of CUDA may that
 * needs the context for itself. */
void cuemu_stall(int device, enum cuemu_kind kind, unsigned long nth);

enum {
  CUEMU_STAGED_COPIES,   /* between devices without peer access, which go through the host */
  CUEMU_NCCL_LAUNCHES,   /* calls of NCCL that queued collectives, a group counts once */
  CUEMU_NCCL_OVERLAPS,   /* two threads in NCCL for one communicator at the same time */
  CUEMU_ATTRIBUTE_CALLS, /* of cudaFuncSetAttribute() and cudaDeviceGetAttribute() */
  CUEMU_EVENT_WAITS,  /* of the host, for events that have ended: queries that gave cudaSuccess */
  CUEMU_DESCRIPTIONS, /* of products and matrices, that were made */
  /* Products for which cuBLASLt's heuristic was asked: with a matrix whose rows (columns, to it)
   * do not begin at multiples of 16 bytes; with a size above 4096 that is no multiple of 64. */
  CUEMU_UNALIGNED_PRODUCTS,
  CUEMU_UNEVEN_PRODUCTS,
  CUEMU_BY_ALGORITHM, /* the first of four: products by the algorithm with this number */
  CUEMU_COUNTED = CUEMU_BY_ALGORITHM + 4
};

/* Since the last reset; `what` is one of these. */
unsigned long cuemu_counted(int what);

/* The config.maxCTAs of the communicator that was made last; INT_MIN: it was left undefined. */
int cuemu_nccl_most_ctas(void);

unsigned cuemu_hanging(void); /* streams that hang now */

/* Calls of the kind since the last reset, failed ones too. */
unsigned long cuemu_calls(int device, enum cuemu_kind kind);

/* Epilogues of cuBLASLt with other bits than these have no algorithm; ~0u: all have. */
void cuemu_set_epilogues(unsigned bits);

/* Epilogues of cuBLASLt with any of these bits take long, as events measure it. */
void cuemu_set_slow(unsigned bits);

/* How long each of the four algorithms of cuBLASLt takes beside the others, as events measure it,
 * in nanoseconds. */
void cuemu_set_algorithm_times(const unsigned nanoseconds[4]);

/* Algorithms of cuBLASLt, a bit for each by number: those that the heuristic offers and marks as
 * useless, which are an error of the code that takes them, and those that it marks as good and the
 * product then refuses. */
void cuemu_refuse(unsigned by_heuristic, unsigned by_product);

/* The heuristic answers CUBLAS_STATUS_INVALID_VALUE for a product with an epilogue one of whose
 * sizes is 1. */
void cuemu_call_ones_invalid(bool invalid);

/* What the tool of NVTX has heard, "evenkeel: name name ..."; nothing without CUEMU_NVTX. Returns
 * its length. And how many ranges the calling thread is in. */
size_t cuemu_heard(char *text, size_t size);
int cuemu_range_depth(void);

/* Heaps and regions of memory that NVTX's tool knows now, and regions that it was ever told. */
struct cuemu_regions {
  unsigned long heaps, regions, registered;
};
void cuemu_regions(struct cuemu_regions *now);

/* cuDNN, which is not there where nothing is said. */
enum cuemu_cudnn_wrong { CUEMU_WRONG_NOTHING, CUEMU_WRONG_OUT, CUEMU_WRONG_LSE };
struct cuemu_cudnn {
  size_t version;         /* 92600: 9.26.0; 0: it cannot be used */
  int time;               /* nanoseconds more than an operation takes, as events measure it */
  size_t workspace;       /* bytes */
  unsigned long fails_at; /* that execution and the later ones fail; 0: none */
  bool no_handle, no_engine, no_plan;
  enum cuemu_cudnn_wrong wrong; /* every second sign of out is changed; lse is 1 % larger */
};
#define CUEMU_CUDNN_FAST ((struct cuemu_cudnn){.version = 92600, .workspace = 256, .time = -900})
void cuemu_set_cudnn(const struct cuemu_cudnn *settings);
unsigned long cuemu_cudnn_executions(void); /* since it was set */

/* Forgets faults, counts and sticky errors, and releases what hangs. Memory and streams stay. */
void cuemu_reset(void);

struct cuemu_usage {
  size_t bytes, peak_bytes; /* device memory that was allocated */
  size_t hidden_bytes;      /* code and communicators */
  unsigned long allocations, host_allocations, streams, events, blas_handles, communicators;
};

/* Host allocations are not a device's: they are told for every device. */
void cuemu_usage(int device, struct cuemu_usage *usage);

/* How many objects of all kinds are alive; says which in `text` if it is not NULL. */
unsigned long cuemu_leaks(char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
