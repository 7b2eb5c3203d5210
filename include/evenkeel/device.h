/*
 * device.h - devices and groups of devices.
 *
 * A device is a place with its own memory, its own queue of work and one worker thread. A group is
 * an ordered list of devices of one backend, opened from a string:
 *
 *     cpu:4            four logical CPU devices that share the machine's cores evenly
 *     cpu:4@512MiB     the same, each capped at 512 MiB (KiB MiB GiB TiB, KB MB GB TB, B)
 *     cpu              one CPU device with all cores
 *     plan:8@80GiB     eight devices that only count: no memory, no arithmetic, the same decisions,
 *                      hence the same peaks to the byte; "does it fit?" in milliseconds
 *     plan-cuda:8      the same, plus the workspace that each `cuda` device reserves
 *     cuda             every GPU of the machine, when the CUDA module is installed
 *     cuda:0-3         some of them; also cuda:0,2
 *     cuda:0x4@8GiB    four logical devices that share GPU 0, each capped at 8 GiB
 *     cuda:0x2,1x2     two on each of two GPUs
 *
 * Without a cap a CPU device may fill the machine's memory. In a container with a memory limit
 * (Linux control groups) the devices of a group share the free part of that limit evenly, except
 * for a sixteenth of it and 16 MiB, which are left to the rest of the process. A request that does
 * not fit then fails, and the process is not killed.
 *
 * Without a cap a CUDA device allocates an even share of its GPU's free memory when the group is
 * opened. So a second group on the same GPU needs caps.
 *
 * Work is queued on a device's streams and ordered by events. The CPU backend runs it at once, so a
 * program that is correct on an asynchronous device is correct on both. Unless a function says
 * otherwise, what it writes on a device is valid for work queued later on the same device's compute
 * stream, and for the host after ek_group_synchronize().
 *
 * These are all environment variables that the library reads. Set them before the program starts,
 * because changing the environment while threads run is not safe. The first two change how CPU
 * devices compute, and so the last bits of results; both are read once, when the first CPU device
 * of the process opens. An empty value counts as not set. With an unknown value no CPU device opens
 * (EK_ERR_INVALID_ARGUMENT).
 *
 *     EVENKEEL_ISA        baseline, avx2, avx512: the best instruction set that may be used.
 *                         Without it the best that the processor has is used.
 *     EVENKEEL_PRODUCTS   own, matmul, matmul-bf16: what computes matrix products. own: the
 *                         library's routine; oneDNN is never called. matmul: oneDNN's matmul
 *                         primitive for f32 as well. matmul-bf16: the primitive for bf16, without
 *                         checking its results first. Without it oneDNN computes f32, and bf16
 *                         where the processor has instructions for it and the check passes.
 *     EVENKEEL_CUDA_LINK  nccl: a group of one GPU sums by NCCL too, which it does not need, so
 *                         that NCCL can be tested on a machine with one GPU. Read each time a
 *                         `cuda` group opens; another value is EK_ERR_INVALID_ARGUMENT.
 *     EVENKEEL_CUDA_CUDNN
 *                         0: attention never uses cuDNN. Read at a group's first attention.
 *     EVENKEEL_CUDA_WARM  0: opening a `cuda` group loads no code and times nothing, for tools that
 *                         slow down each kernel. Code is then loaded in the first steps, epilogues
 *                         of products are not used, and a default capacity has no room for code.
 *     EVENKEEL_CUDA_REGIONS
 *                         1: each tensor on a GPU is a region of memory for compute-sanitizer,
 *                         which then sees its end, and what was not written. The program needs
 *                         CUDA_LAUNCH_BLOCKING=1 as well, since a tensor may be freed while work
 *                         that uses it is queued.
 *     NCCL_ALGO, NCCL_PROTO, NCCL_NVLS_ENABLE
 *                         read by NCCL. The library only asks whether they are set, each time it
 *                         opens a `deterministic` group of GPUs that cannot reach each other's
 *                         memory (ek_group_options); any value counts as set.
 *     OMPI_COMM_WORLD_SIZE, PMI_SIZE
 *                         set by mpirun of Open MPI and of MPICH: how many processes it started.
 *     RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
 *                         set by torchrun or by hand: the number of this process, how many there
 *                         are, and where process 0 is, which listens at MASTER_PORT.
 *     TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT, TORCHELASTIC_USE_AGENT_STORE
 *                         set by torchrun: which job this is. If the last one is True, torchrun
 *                         itself listens at MASTER_PORT, and the world takes another port.
 *     SLURM_PROCID, SLURM_NTASKS, SLURM_STEP_NODELIST, SLURM_JOB_NODELIST
 *                         set by srun: the number of this process, how many there are, and where
 *                         they are.
 *     SLURM_JOB_ID, SLURM_STEP_ID, SLURM_RESTART_COUNT
 *                         set by srun: which job this is.
 *     EVENKEEL_WORLD_FILE, EVENKEEL_WORLD_PROCESS, EVENKEEL_WORLD_PROCESSES
 *                         a path by which the processes of a world find each other, the number of
 *                         this one, and how many there are (world.h).
 *     EVENKEEL_WORLD_ADDRESS
 *                         an address, a name or a network interface that the other processes of a
 *                         world reach this one at.
 *     EVENKEEL_WORLD_PORT
 *                         the port at which process 0 waits for the others, instead of MASTER_PORT
 *                         or one that follows from the job.
 *     EVENKEEL_WORLD_TOKEN
 *                         any text that is the same in all processes of a job: a process with
 *                         another one is refused. Without it the job's own variables are taken.
 *
 * Libraries that it calls (CUDA, NCCL, oneDNN, MPI) read variables of their own,
 * CUDA_VISIBLE_DEVICES among them. The variables of evenkeel-bench are in docs/benchmark.md.
 */
#ifndef EVENKEEL_DEVICE_H
#define EVENKEEL_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <evenkeel/export.h>
#include <evenkeel/memory.h>
#include <evenkeel/status.h>
#include <evenkeel/world.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_stream ek_stream;
typedef struct ek_event ek_event;

/*
 * What a program gives to one device of a group, instead of what the library would make. It stays
 * the program's, must outlive the group, and is used from ek_group_open() until the group is
 * closed.
 */
typedef struct ek_device_resources {
  /*
   * cuda: a cudaStream_t of the device's GPU, which becomes the device's compute stream, so that
   * the program's own kernels on it and the library's run in the order in which they are queued,
   * without an event. Two devices may not share one. Closing the group waits for it.
   * cudaStreamPerThread is another stream in each worker and is refused; so is a stream on `cpu`
   * and `plan`. NULL: a stream of the library's.
   */
  void *stream;
  /*
   * The memory of the device's tensors, at a multiple of EK_MEMORY_UNIT: its arena. All devices of
   * a group have it or none has. A cap in the device string must not be larger. On devices that
   * only count it is never touched. NULL: memory of the library's.
   */
  void *memory;
  uint64_t bytes; /* of `memory` */
} ek_device_resources;

typedef struct ek_group_options {
  size_t size;            /* sizeof(ek_group_options) */
  int threads_per_device; /* 0: the cores the process may use, divided evenly, at least 1 */
  bool deterministic;     /* nothing is chosen by timing or by the number of threads, see below */
  double time_limit;      /* cuda: seconds for a collective; 0: 600 */
  bool debug_memory;      /* new tensors are NaN, writes beside them are found, see below */
  size_t world_size;      /* devices of all processes that train together; 0: those of the group */
  size_t first_rank;      /* of them, the number of the group's device 0 */
  ek_world *world; /* the processes that open this group together (world.h), which must outlive it;
                      world_size, first_rank and time_limit follow from it; NULL: this one alone */
  const ek_device_resources *resources; /* one for each device; NULL: none */
  size_t resource_count;                /* the number of devices; 0 without `resources` */
} ek_group_options;
#define EK_GROUP_OPTIONS_INIT                                                                      \
  {                                                                                                \
    .size = sizeof(ek_group_options), .threads_per_device = 0, .deterministic = false,             \
    .time_limit = 0, .debug_memory = false, .world_size = 0, .first_rank = 0, .world = NULL,       \
    .resources = NULL, .resource_count = 0                                                         \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_group_options_init(ek_group_options *options, size_t size);

/*
 * A device has an index in its group, and a rank in the world: the devices of all processes that
 * train one model, process by process. Collectives, the shares of the state and the numbers of
 * samples count over the world. A group that spans several processes needs `world`. Without it only
 * a `plan` group may state world_size and first_rank: it counts what one process of such a world
 * takes.
 *
 * All processes open their groups at the same time, and then make the same calls in the same order,
 * each with its own samples of a batch. On `cpu` the devices of a process are added up first, so
 * that a process sends as much as with one device. In a `deterministic` group, and in 16 bits, sums
 * are taken in the order of the ranks instead: several processes then give the bits of one process
 * with all devices, and a process with M of W devices sends up to M times as much. On `cuda` NCCL
 * sums, and each device of the world must be a GPU of its own.
 *
 * An error in one process becomes an error of the same call in all processes, and the next call
 * works. The exception is an update that has begun: it may fail in one process alone, and then the
 * next call fails in all. After a process has died, or has not arrived within the world's time
 * limit, collectives of the group fail with EK_ERR_UNAVAILABLE in all processes; calls that need no
 * other process still work.
 */

/*
 * `deterministic`: on cpu products are cut by their shapes alone, so the number of threads changes
 * no bit; nor does the number of processes that the devices are in (above). On cuda the algorithms
 * of products are not chosen by timing, which could differ between two runs, and gradients are
 * summed by the communicator `peer`, in the order of the devices, also between different GPUs if
 * they reach each other's memory. If they do not, NCCL must be held to one algorithm: start the
 * program with NCCL_ALGO=Ring NCCL_PROTO=Simple NCCL_NVLS_ENABLE=0 in its environment, else
 * EK_ERR_UNSUPPORTED. The same machine then gives the same bits, summed in an order of NCCL's own.
 * Logical devices of one GPU always use `peer`.
 *
 * `debug_memory`: new tensors are filled with NaN (integers: 2147483647), so that a module which
 * reads memory that it has not written gives NaN, which ek_step_result.finite shows. Each tensor
 * is between two guards of EK_MEMORY_UNIT bytes, which are checked when its memory is freed and by
 * ek_group_synchronize(). An overwritten guard is EK_ERR_OVERRUN. ek_group_synchronize() returns it
 * at once. If a free finds it, the log callback gets the message, and the group's next call with a
 * status returns the error and does nothing else. The message names category, size, device and
 * place, and each tensor is reported once. Guards are charged with their tensor, also on devices
 * that only count: peaks are larger than without the option, and planned peaks still equal real
 * ones. The option costs a fill of every new tensor; on cuda also two waits for every free, and
 * batches are not copied while a step computes.
 */

/*
 * Opens the devices that `spec` names, 64 at most, and starts their workers. `options` NULL gives
 * the defaults. The caller owns *group and frees it with ek_group_close() or ek_group_free().
 * EK_ERR_INVALID_ARGUMENT  the string is wrong; the message shows where; or the processes' ranks
 *                          do not follow each other from 0 to the end of the world
 * EK_ERR_UNAVAILABLE       the backend cannot be used here; or another process was not reached
 * EK_ERR_OUT_OF_MEMORY     the host refused memory or threads
 */
EK_API EK_CHECKED ek_status ek_group_open(ek_group **group, const char *spec,
                                          const ek_group_options *options);

/*
 * Stops the workers and gives all memory back. NULL is legal. A group that is still needed stays as
 * it was:
 * EK_ERR_STATE  a tensor, shards, an event, a communicator or a model of the group was not freed;
 *               another thread is using the group; called on one of its workers; or in a child of
 *               the process that opened it, where there is nothing to stop
 */
EK_API EK_CHECKED ek_status ek_group_close(ek_group *group);
EK_API void ek_group_free(ek_group *group); /* the same, as a free: status.h */

EK_API size_t ek_group_size(const ek_group *group);                     /* 0 for NULL */
EK_API ek_device *ek_group_device(const ek_group *group, size_t index); /* NULL outside */
EK_API const char *ek_group_spec(const ek_group *group);                /* as it was opened */
EK_API bool ek_group_is_deterministic(const ek_group *group);           /* as it was opened */

/*
 * Called on the worker thread of `device`, which is number `index` of its group. Returns a status;
 * the message of a failure is the one of ek_error_set().
 */
typedef ek_status (*ek_apply_function)(void *context, ek_device *device, size_t index);

/*
 * Runs `function` on every device's worker at the same time and waits for all of them. Returns the
 * error of the lowest failing device, with that device's message after the words
 * "replica K on DEVICE: ". A device that gave up only because another one failed (EK_ERR_ABORTED)
 * does not count as failing while another does.
 *
 * Any thread may call it, several at once: jobs run one after the other in the order of the calls,
 * and each caller gets the result of its own. Not from a worker of the same group, and not in a
 * child of the process that opened the group: EK_ERR_STATE.
 */
EK_API EK_CHECKED ek_status ek_group_apply(ek_group *group, ek_apply_function function,
                                           void *context);

/* Waits until everything queued on all streams of the group is done. */
EK_API EK_CHECKED ek_status ek_group_synchronize(ek_group *group);

EK_API size_t ek_device_index(const ek_device *device);        /* its number in the group */
EK_API const char *ek_device_name(const ek_device *device);    /* "cpu:2" */
EK_API const char *ek_device_backend(const ek_device *device); /* "cpu", "plan", "cuda" */
/* The backend that plans for it: a group of "PLANNER:N" counts what N such devices take, and
 * computes nothing. "plan", or for `cuda` and `plan-cuda` devices "plan-cuda"; "" for NULL. */
EK_API const char *ek_device_planner(const ek_device *device);
EK_API ek_group *ek_device_group(const ek_device *device);     /* a loan */
EK_API int ek_device_threads(const ek_device *device);         /* threads that compute on it */
/* True if kernels only count (backend `plan`): nothing may be read from or written to memory. */
EK_API bool ek_device_counts_only(const ek_device *device);
/*
 * For a module that runs a loop of equal parts, such as blocks of rows: on a device that only
 * counts, one part can stand for all. Call ek_device_mark_work() before that part, and
 * ek_device_repeat_work() after it. If the latter returns true, it has counted the part's work
 * `times` more, and the module skips as many parts. On other devices, for NULL, and for times < 0
 * it returns false. Both are called on the device's worker; a second mark replaces the first.
 */
EK_API void ek_device_mark_work(ek_device *device);
EK_API bool ek_device_repeat_work(ek_device *device, int64_t times);
/* The types of values that operations compute in there, as a set of tensor.h: EK_TYPES_F32 | ... 0
 * for NULL. */
EK_API unsigned ek_device_types(const ek_device *device);
/* The precisions that they compute in, as a set of tensor.h: those of the types, and
 * EK_PRECISIONS_TF32 where products round to it if they are allowed to. 0 for NULL. */
EK_API unsigned ek_device_precisions(const ek_device *device);

/*
 * Called for the iterations begin .. end - 1 of a loop, for several such ranges at the same time.
 * Returns a status; the message of a failure is the one of ek_error_set().
 */
typedef ek_status (*ek_range_function)(void *context, int64_t begin, int64_t end);

/*
 * Runs a loop of your own over 0 .. count - 1 on the threads that compute on a CPU device: one
 * range for each, about equally long, cut by `count` and ek_device_threads() alone, so that results
 * repeat bit for bit. Returns when all ranges are done; of those that failed, the status and the
 * message of the first in the order of the loop. Ranges may not wait for each other. No memory is
 * allocated.
 *
 * Any thread may call it, also `function` itself: a caller that finds the device's threads busy
 * runs all ranges one after the other. They have stacks of 1 MiB.
 *
 * EK_ERR_INVALID_ARGUMENT  NULL (`context` may be), or a negative count
 * EK_ERR_UNSUPPORTED       the device does not compute on the host's threads (cuda)
 * On a device that only counts nothing is called.
 */
EK_API EK_CHECKED ek_status ek_device_parallel_for(ek_device *device, int64_t count,
                                                   ek_range_function function, void *context);

/* ---- streams and events ---- */

typedef enum ek_stream_kind { EK_STREAM_COMPUTE = 0, EK_STREAM_COMMUNICATION = 1 } ek_stream_kind;

/* A device's stream; NULL if the arguments make no sense. It lives as long as the device. */
EK_API ek_stream *ek_device_stream(const ek_device *device, ek_stream_kind kind);
/* The device of a stream, a loan. */
EK_API ek_device *ek_stream_device(const ek_stream *stream);
/* What the backend calls it: a cudaStream_t for `cuda`, NULL for `cpu` and `plan`. */
EK_API void *ek_stream_native(const ek_stream *stream);
/*
 * Whether products of f32, attention's too, may round what they multiply to 10 bits of mantissa
 * (TF32), as the tensor cores of a cuda device do; their sums stay f32. It concerns the operations
 * that are queued on the stream from now on, by the thread to which the stream belongs at the time.
 * Returns what was set before. A device that does not round so (ek_device_precisions()) computes in
 * f32.
 *
 * A new stream does not allow it, nor does the device's compute stream at the beginning of a job of
 * its worker; what the job allows ends with the job. When a function of a module begins, its pass
 * decides: by the option `precision` (replica.h), or by what the parent asked for
 * (ek_child_options.precision). What the function sets itself ends with the function, and does not
 * hold for its children and its backward. A module with kernels of its own calls
 * ek_stream_allows_tf32() with ek_pass_stream(). Both functions return false for NULL.
 */
EK_API bool ek_stream_allow_tf32(ek_stream *stream, bool allow);
EK_API bool ek_stream_allows_tf32(const ek_stream *stream);
/*
 * Order between a stream and one of the program's own: work that is queued on the first from now on
 * waits for the work that the second holds now. `native` is a cudaStream_t of the stream's GPU, or
 * NULL for CUDA's default stream. The host does not wait. On `cpu` and `plan`, where work is done
 * when it was queued, the calls do nothing. From any thread.
 */
EK_API EK_CHECKED ek_status ek_stream_wait_native(ek_stream *stream, void *native);
EK_API EK_CHECKED ek_status ek_stream_native_wait(void *native, ek_stream *stream);
/* Waits until the work queued on the stream is done. */
EK_API EK_CHECKED ek_status ek_stream_synchronize(ek_stream *stream);

/* An event marks a point in a stream of its device; the caller frees it. */
EK_API EK_CHECKED ek_status ek_event_create(ek_event **event, ek_device *device);
/* Moves the point after all work that is queued on `stream` now. */
EK_API EK_CHECKED ek_status ek_event_record(ek_event *event, ek_stream *stream);
/* Work queued on `stream` from now on waits for the last recorded point, if there is one. */
EK_API EK_CHECKED ek_status ek_stream_wait(ek_stream *stream, const ek_event *event);
/* Waits on the host until the work before the last recorded point is done. */
EK_API EK_CHECKED ek_status ek_event_synchronize(const ek_event *event);
/* Frees an event. NULL is legal. */
EK_API void ek_event_free(ek_event *event);

/* ---- the devices of this machine ---- */

typedef struct ek_device_description {
  char name[64];  /* "cpu", "cuda:0" */
  char text[256]; /* "Intel(R) Xeon(R), 2 cores, AVX-512, oneDNN" or why it cannot be used */
  bool available;
  int cores;             /* processors that the process may use; 0 where that means nothing */
  uint64_t memory_bytes; /* of the machine, or of its container; 0 where that means nothing */
} ek_device_description;

/*
 * Fills at most `capacity` descriptions, one or more per backend, available or not, and stores how
 * many there are in *count. `descriptions` may be NULL when `capacity` is 0.
 */
EK_API EK_CHECKED ek_status ek_device_list(ek_device_description *descriptions, size_t *count,
                                           size_t capacity);

EK_END_DECLARATIONS

#endif /* EVENKEEL_DEVICE_H */
