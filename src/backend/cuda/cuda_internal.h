/*
 * cuda_internal.h - shared by the parts of the CUDA backend.
 *
 * A group is a list of devices; each is on a GPU, which several of them may share. The objects of a
 * device (streams, events, the cuBLASLt handle, pinned memory) are made when the group is opened,
 * before its memory is taken, so that the memory they cost can be measured.
 *
 * Threads: a device's worker queues its work; other threads copy to and from it, and any thread may
 * wait for a stream. So members that copies use are under one of the device's mutexes, and the
 * others belong to the worker, to opening and to closing.
 */
#ifndef EK_CUDA_INTERNAL_H
#define EK_CUDA_INTERNAL_H

#include <cublasLt.h>
#include <pthread.h>
#include <stdatomic.h>

#include "backend/backend.h"
#include "backend/cuda/cuda_kernels.h"
#include "backend/cuda/cuda_workspace.h"
#include "core/loader.h"

/* What the library gave the module when it was loaded. */
extern const struct ek__module_host *ek__cuda_host;

struct ek__cuda_group;

struct ek__cuda_gpu {
  int physical;                /* CUDA's number */
  int shared_bytes;    /* what a block may have of shared memory */
  int model;           /* the same number: products take the same time */
  size_t first, count; /* its devices in the group */
  void *memory;        /* of all its devices */
  uint64_t bytes;
  uint64_t outside; /* what the GPU held beside it when it was taken */
  uint64_t before;  /* free memory before communicators were opened */
  uint64_t loaded;  /* what code and communicators took of that: cuda_warm.c */
  uint64_t reserve; /* what a default capacity leaves alone; 0 once a cap was given */
  void *scratch;    /* EK__CUDA_DEVICE_BYTES while the GPU is warmed up, else NULL */
  uint64_t peers;   /* GPUs of the group whose memory it reads: a bit for each by index */
};

struct ek__cuda_stream {
  struct ek__cuda_device *device;
  cudaStream_t handle;
  bool lent; /* the program's: ek_device_resources */
};

/* Beside those of ek_stream_kind: cuda_send.c. */
enum { EK__CUDA_COPIES = EK_STREAM_COMMUNICATION + 1, EK__CUDA_STREAMS };

/* Pinned memory on the way of copies, which all go on one stream. A batch of up to 8 MiB for a
 * device is on its way without a wait of the host. */
enum { EK__CUDA_STAGES = 4, EK__CUDA_STAGE_BYTES = 2 << 20 };
struct ek__cuda_stage {
  char *memory;
  cudaEvent_t passed; /* the copy that used it last is over */
  bool used;
};
struct ek__cuda_ring {
  struct ek__cuda_stage stages[EK__CUDA_STAGES];
  size_t next;
};

/* Marks in a stream: cuda_send.c. */
enum { EK__CUDA_MARKS = 8 };
struct ek__cuda_marks {
  _Atomic uint64_t made; /* the last number that was given */
  cudaEvent_t events[EK__CUDA_MARKS];
  uint64_t numbers[EK__CUDA_MARKS]; /* 0: not recorded */
};

/* Pinned: what kernels find wrong, and numbers that the host reads later (device/note.h). */
enum { EK__CUDA_NOTES = 254 };
struct ek__cuda_pinned {
  struct ek__cuda_bad bad;
  double notes[EK__CUDA_NOTES][2];
};

struct ek__cuda_device {
  struct ek__cuda_group *group;
  struct ek__cuda_gpu *gpu;
  size_t index;
  char name[32];
  uint64_t offset, capacity; /* its part of the GPU's memory */
  struct ek__cuda_stream streams[EK__CUDA_STREAMS];
  /* A worker's calls, for the thread that waits for it, and what that thread saw: cuda_watch.c. */
  _Atomic uint64_t calls_begun, calls_ended, beats;
  uint64_t changes_seen;
  double unchanged_since;
  struct ek__cuda_pinned *pinned;
  struct ek__cuda_bad *bad; /* pinned->bad: kernels report bad indices here */
  cublasLtHandle_t products;
  struct ek__cuda_products *plans; /* cuda_products.c */
  struct ek__cuda_cudnn *cudnn;    /* cuda_attend_cudnn.c; NULL before it is asked for */
  cudaEvent_t begin, end;          /* cuda_choice.c */
  char *workspace;                 /* EK__CUDA_DEVICE_BYTES: products, then kernels */
  struct nvtxMemHeap_v1 *heap;     /* its arena as a tool knows it: cuda_regions.c; mostly NULL */

  pthread_mutex_t mutex;
  bool mutex_open;
  cudaEvent_t ready, passed; /* of copies between devices: cuda_copy.c */
  struct ek__cuda_ring ring; /* of copies on the compute stream */
  bool noted[EK__CUDA_NOTES]; /* those of pinned->notes that are in use */

  pthread_mutex_t send_mutex; /* the rest of this struct: cuda_send.c */
  bool send_mutex_open;
  struct ek__cuda_ring sending;
  struct ek__cuda_marks used, arrived; /* in the compute stream; in that of copies */
  uint64_t awaited;                    /* the mark of `arrived` that the compute stream waits for */
};

struct ek__cuda_group {
  size_t count, gpu_count;
  struct ek__cuda_gpu *gpus; /* that the devices are on */
  ek_group_options options;
  struct ek__members members;
  double time_limit; /* seconds */
  bool nccl;         /* collectives go through NCCL, else over the memory of all */
  /* A wait that took too long: work is stuck on a stream, and nothing more is waited for until NCCL
   * has been made new. Text and status belong to failure_mutex. */
  atomic_bool stuck;
  pthread_mutex_t failure_mutex;
  char failure[512];
  ek_status failure_status;
  struct ek__cuda_clique *cliques; /* NCCL's communicators: under failure_mutex */
  struct ek__cuda_clique *spare;   /* one of them that was not asked for yet */
  struct ek__cuda_device devices[];
};

/* ---- cuda_errors.c: every error of CUDA and its libraries in words ---- */

/* Host memory, all zero; NULL with EK_ERR_OUT_OF_MEMORY set. */
void *ek__cuda_new(size_t size, const char *what);
/* EK_OK, or an error that names device, `call` and what CUDA says. */
ek_status ek__cuda_check(const struct ek__cuda_device *device, cudaError_t error, const char *call);
ek_status ek__cuda_check_blas(const struct ek__cuda_device *device, cublasStatus_t status,
                              const char *call);
/* EK_ERR_ABORTED: of a device that has to do without a peer. */
ek_status ek__cuda_given_up(void);
/* True for an error after which every call of CUDA in this process gives the same one, for any
 * GPU. */
bool ek__cuda_is_final(cudaError_t error);
/* Before there are devices. */
ek_status ek__cuda_check_gpu(int physical, cudaError_t error, const char *call);

/* Calls a function of CUDA: its error names the device, or the GPU, and the function. */
#define EK__CUDA(device, function, ...) ek__cuda_check((device), function(__VA_ARGS__), #function)
#define EK__CUDA_GPU(number, function, ...)                                                        \
  ek__cuda_check_gpu((number), function(__VA_ARGS__), #function)

/* ---- cuda_current.c: a thread's current GPU ---- */

/* Makes the device's GPU the thread's current one. */
ek_status ek__cuda_enter(const struct ek__cuda_device *device);
/* For a slot: what to put back; puts it back and gives `status`. */
int ek__cuda_current(void);
ek_status ek__cuda_leave(int before, ek_status status);
/* The thread is the device's worker from now on. */
void ek__cuda_worker_begins(ek_device *device);

/* ---- cuda_list.c: what there is ---- */

/* EK_ERR_UNAVAILABLE with the reason if no GPU can be used; else how many there are. */
ek_status ek__cuda_count(int *count);
ek_status ek__cuda_describe(ek_device_description *descriptions, size_t capacity, size_t *count);
ek_status ek__cuda_resolve(struct ek__device_spec *spec);

/* ---- cuda_group.c, cuda_device.c: opening and closing ---- */

ek_status ek__cuda_group_open(void **native, const struct ek__device_spec *spec,
                              const ek_group_options *options, const struct ek__members *members);
void ek__cuda_group_close(void *native);
/* Everything of a device but its memory. */
ek_status ek__cuda_device_prepare(struct ek__cuda_device *device);
void ek__cuda_device_discard(struct ek__cuda_device *device);

/* ---- cuda_peers.c: GPUs that read each other's memory ---- */

/* Most GPUs of a group. */
#define EK__CUDA_MOST_GPUS 64

/* Lets every GPU of the group read the memory of each other one where CUDA says that it can, and
 * sets `peers`. */
ek_status ek__cuda_peers_open(struct ek__cuda_group *group);
/* Takes back what does not work; *all: it works between all of them. Copies between GPUs go through
 * the host otherwise, also where NCCL has ways of its own. Uses the GPUs' scratch. */
ek_status ek__cuda_peers_check(bool *all, struct ek__cuda_group *group);

/* ---- cuda_warm.c: what is loaded later, loaded now ---- */

/* Loads the code of the group's GPUs, which have their scratch from now on until
 * ek__cuda_warm_link() succeeds, or ek__cuda_warm_end(). */
ek_status ek__cuda_warm(struct ek__cuda_group *group);
/* When it is known whether the group uses NCCL: loads that. Sets `loaded` and `reserve`. */
ek_status ek__cuda_warm_link(struct ek__cuda_group *group);
void ek__cuda_warm_end(struct ek__cuda_gpu *gpu);
/* The GPU was reset. */
void ek__cuda_warm_forget(int physical);

/* ---- cuda_choice.c: what is faster ---- */

/* Of the time of what is there anyway: less than that is worth another way. */
#define EK__CUDA_CLEARLY 0.95F

/* Queues something; *done is false where it cannot be done so, and nothing is queued. */
typedef ek_status ek__cuda_timed(bool *done, void *what);

/* What an algorithm may depend on; no padding, so that it is compared as bytes. */
struct ek__cuda_shape {
  int64_t m, n, k, lda, ldb, ldc;
  /* Of attention, whose sizes are batch, tokens and head width, and the steps of q, k and v; 0 for
   * a product. */
  int64_t heads;
  uint16_t precision, result; /* of the product; the type of c */
  uint32_t transpose_a, transpose_b, has_beta, epilogue;
  uint32_t align_a, align_b, align_c, align_vector, align_aux;
};

/* One of the algorithms that the heuristic offers for a product, the best first, or of the ways to
 * do attention; `of` is for the code that runs it. */
struct ek__cuda_candidate {
  int number;
  void *of;
};

/* How many of them are timed. */
#define EK__CUDA_TIMED_CANDIDATES 4

/* The number of the candidate to take, of `count`. At first use `run` runs some of them, each
 * several times, if `shape` has no beta. */
ek_status ek__cuda_choose(int *number, const struct ek__cuda_stream *stream,
                          const struct ek__cuda_shape *shape, int count, ek__cuda_timed *run,
                          struct ek__cuda_candidate *candidate);

struct ek__cuda_product;
/*
 * Whether a product with an epilogue, which `run` queues, is clearly faster than what->other. Both
 * are timed at the first product of a shape, if it repeats; until then, and where the table is
 * full, the answer is no. Alignments beyond 16 bytes do not matter.
 */
ek_status ek__cuda_prefer(bool *wins, const struct ek__cuda_stream *stream,
                          const struct ek__cuda_shape *shape, ek__cuda_timed *run, void *of,
                          const struct ek__cuda_product *what);

/* ---- cuda_memory.c: the memory of the GPUs ---- */

/* Takes the memory of the GPU's devices in one piece and cuts it; `capacity` 0: an even part of
 * what is free except for the reserve. */
ek_status ek__cuda_memory_open(struct ek__cuda_group *group, struct ek__cuda_gpu *gpu,
                               uint64_t capacity);
/* What the device costs beside its arena: its part of what the GPU holds. */
ek_status ek__cuda_memory_outside(ek_memory_outside *outside, const ek_device *device);

/* ---- cuda_stream.c: streams, events, what a wait asks them ---- */

/* Seconds since some moment. */
double ek__cuda_now(void);
/* Lets some time pass between two looks at work that goes on; `asked` counts the looks. */
void ek__cuda_pause(unsigned asked);
/* cudaErrorNotReady if the stream holds work that is not done. */
cudaError_t ek__cuda_query(const struct ek__cuda_stream *stream);
/* `error`, which CUDA forgets if it is cudaErrorNotReady: that is an answer, and the next launch
 * would otherwise find it and take it for its own error. */
cudaError_t ek__cuda_answer(cudaError_t error);
/* Ends all waiting for the group: keeps `reason` if it is the first, and returns the error that
 * every later wait returns. */
ek_status ek__cuda_give_up(struct ek__cuda_group *group, const char *reason);
/* An error if a wait of the group took too long: what it waited for is not there. */
ek_status ek__cuda_check_stuck(struct ek__cuda_group *group);
/* An error if a GPU of the group has died: what it computed last may have reached the others. */
ek_status ek__cuda_check_gpus(const struct ek__cuda_group *group);
/* The slots stream_join and memory_check. */
ek_status ek__cuda_stream_join(ek_stream *stream, void *native, bool reverse);
ek_status ek__cuda_memory_check(const ek_device *device, const void *address);
ek_status ek__cuda_stream_open(void **native, ek_device *device, ek_stream_kind kind, int threads);
void ek__cuda_stream_close(void *native);
void *ek__cuda_stream_handle(void *native);
ek_status ek__cuda_event_open(void **native, ek_device *device);
void ek__cuda_event_close(void *native);
/* cuda_marks.c */
ek_status ek__cuda_marks_open(void **native, ek_device *device, size_t count);
void ek__cuda_marks_close(void *native);
void ek__cuda_mark(void *native, size_t index, ek_stream *stream);
bool ek__cuda_mark_time(uint64_t *nanoseconds, void *native, size_t index);
ek_status ek__cuda_event_record(void *event, ek_stream *stream);
ek_status ek__cuda_stream_wait(ek_stream *stream, void *event);

/* ---- cuda_wait.c: waits, for the group's time limit at most ---- */

/* Waits until the stream has passed everything it holds. */
ek_status ek__cuda_finish(const struct ek__cuda_stream *stream, const char *what);
ek_status ek__cuda_finish_event(const struct ek__cuda_device *device, cudaEvent_t event,
                                const char *what);
/* Waits for the collectives that the device has queued, or until another device's worker has
 * failed: EK_ERR_ABORTED, since its own may never be queued. */
ek_status ek__cuda_finish_collectives(const struct ek__cuda_device *device, const char *what);
/* Waits for the collectives that the device has queued, if NCCL does them: before code is loaded
 * beside a step. */
ek_status ek__cuda_let_collectives_end(const struct ek__cuda_device *device);
/* To call after a wait: an error if a GPU of the group has died, or if a kernel of any of its
 * devices has reported a bad index, which is then forgotten. */
ek_status ek__cuda_check_group(struct ek__cuda_group *group);
ek_status ek__cuda_event_synchronize(void *event, ek_device *device);
/* The slot check_found. */
ek_status ek__cuda_check_found(ek_device *device);
ek_status ek__cuda_stream_synchronize(ek_stream *stream);

/* ---- cuda_copy.c ---- */

ek_status ek__cuda_upload(ek_stream *stream, void *to, const struct ek__host_bytes *host,
                          size_t bytes);
ek_status ek__cuda_download(ek_stream *stream, void *host, const void *from, size_t bytes);
/* The slots note_open, note_close and note_write. */
ek_status ek__cuda_note_open(void **memory, ek_device *device);
void ek__cuda_note_close(void *memory, ek_device *device);
ek_status ek__cuda_note_write(ek_stream *stream, void *memory, const void *from, size_t bytes);
/* The host's bytes to the device, through the stages of a ring that belongs to the stream. Their
 * mutex is held. */
ek_status ek__cuda_upload_pieces(const struct ek__cuda_stream *stream, struct ek__cuda_ring *ring,
                                 char *to, const struct ek__host_bytes *host, size_t bytes);
ek_status ek__cuda_between(ek_stream *stream, void *to, ek_device *source, const void *from,
                           size_t bytes);

/* ---- cuda_send.c ---- */

uint64_t ek__cuda_ticket(const ek_device *device);
ek_status ek__cuda_send(uint64_t *arrival, ek_device *device, void *to,
                        const struct ek__host_bytes *host, size_t bytes, uint64_t ticket);
ek_status ek__cuda_arrive(ek_device *device, uint64_t arrival);

/* ---- cuda_launch.c, cuda_products.c, cuda_epilogues.c ---- */

/* The type of c. */
static inline ek_type ek__cuda_result_type(const struct ek__matmul_args *args) {
  return args->gradient ? args->types.sum : args->types.value;
}
static inline bool ek__cuda_is_half(ek_type type) { return type == EK_BF16 || type == EK_F16; }

/* ek__cuda_slot_<name> of every kernel. */
#define EK__CUDA_SLOT_PROTOTYPE(name, arguments) ek_status ek__cuda_slot_##name arguments;
#define EK__CUDA_SLOT_KERNEL(name, kind, cut) EK__CUDA_SLOT_PROTOTYPE(name, EK__ARGS(kind))
#define EK__CUDA_NOTHING(name, arguments)
EK__SLOT_LIST(EK__CUDA_SLOT_PROTOTYPE, EK__CUDA_SLOT_PROTOTYPE, EK__CUDA_NOTHING,
              EK__CUDA_SLOT_KERNEL)

/* A product and what cuBLASLt does with it. Its matrices are ours read by columns: what is a row to
 * it is a column of c. */
struct ek__cuda_product {
  const struct ek__matmul_args *args; /* the bias is read from `vector` alone */
  cublasLtEpilogue_t epilogue;
  const void *vector; /* the bias, or where its gradient goes; or NULL */
  const void *aux;    /* m x n, what GELU gets: written forward, read backward; or NULL */
  bool untimed;       /* the heuristic's first algorithm will do */
  ek__cuda_timed *other; /* does the same without the epilogue, given `with`; or NULL */
  void *with;
  bool repeats; /* it reads nothing that it writes */
};

/* *done is false if cuBLASLt has no algorithm, or none that is safe for the vector's alignment, or
 * if `other` is faster: then nothing was queued that matters. No size is 0. A vector is of the type
 * of c, as cuBLASLt has it, and so is aux. */
ek_status ek__cuda_multiply(bool *done, const struct ek__cuda_stream *stream,
                            const struct ek__cuda_product *what);

ek_status ek__cuda_products_open(struct ek__cuda_device *device);
void ek__cuda_products_close(struct ek__cuda_device *device);
/* Queues a product of each kind there is, on numbers at `memory`, which need no certain value. */
ek_status ek__cuda_products_warm(const struct ek__cuda_stream *stream, void *memory);

/* ---- cuda_attend_cudnn.c ---- */

/* *done: it is queued. Else cuDNN does not do it, or more slowly. */
ek_status ek__cuda_attend_by_cudnn(bool *done, const struct ek__cuda_stream *stream,
                                   const struct ek__attention_args *args);
void ek__cuda_cudnn_close(struct ek__cuda_device *device);

/* ---- cuda_ranges.c: NVTX; the slots listens, range_begin, range_end ---- */

bool ek__cuda_listens(void);
void ek__cuda_range_begin(const char *name);
void ek__cuda_range_end(void);
/* NVTX's domain of this library, an nvtxDomainHandle_t; NULL if no tool listens. */
struct nvtxDomainRegistration_st *ek__cuda_domain(void);

/* ---- cuda_regions.c: NVTX's regions of memory; the slots block_taken, block_given ---- */

/* Of a device's own arena; nothing happens where no tool asks for it. */
void ek__cuda_heap_open(struct ek__cuda_device *device, const void *base, uint64_t bytes);
void ek__cuda_heap_close(struct ek__cuda_device *device);
void ek__cuda_block_taken(const ek_device *device, const void *address, uint64_t bytes);
void ek__cuda_block_given(const ek_device *device, const void *address);

/* ---- cuda_gate.c ---- */

/* Around calls that may wait for all GPUs: in between no rank of NCCL in this process has a part of
 * a collective on its GPU that others have not, unless that takes longer than the limit. */
void ek__cuda_gate_close(double time_limit);
void ek__cuda_gate_open(void);

/* ---- cuda_watch.c ---- */

/* A slot's call of CUDA begins, goes on, and ends with its status. */
static inline void ek__cuda_call_begins(struct ek__cuda_device *device) {
  atomic_fetch_add(&device->calls_begun, 1);
}
static inline void ek__cuda_call_goes_on(struct ek__cuda_device *device) {
  atomic_fetch_add(&device->beats, 1);
}
static inline ek_status ek__cuda_call_ends(struct ek__cuda_device *device, ek_status status) {
  atomic_fetch_add(&device->calls_ended, 1);
  return status;
}
/* Called again and again by the thread that waits for the workers: an error if one is stuck; its
 * stuck call has been ended. `ended`: see backend.h. */
ek_status ek__cuda_watch(void *group, ek_status ended);

/* ---- cuda_nccl_library.c ---- */

/* NULL if there is NCCL, else why not; the text lives until the thread asks again. */
const char *ek__cuda_nccl_missing(void);

/* ---- cuda_clique.c, cuda_nccl.c: NULL where it was built without NCCL ---- */

extern const struct ek__link *const ek__cuda_nccl;
/* Opens a communicator before one is asked for, and runs each collective on the scratch of the
 * GPUs; the first caller that asks gets it. */
ek_status ek__cuda_nccl_warm(struct ek__cuda_group *group);
/* Closes it if it was not asked for. */
void ek__cuda_nccl_end(struct ek__cuda_group *group);
/* True if NCCL has seen an error that no call has returned; what it was is written into `text`.
 * Called with the group's failure_mutex held. */
bool ek__cuda_nccl_failed(const struct ek__cuda_group *group, char *text, size_t size);
/* True from the failure of a job until the communicators are made new for the next one. */
bool ek__cuda_nccl_aborted(struct ek__cuda_group *group);

/* ---- small things ---- */

static inline struct ek__cuda_stream *ek__cuda_stream_of(const ek_stream *stream) {
  return ek__stream_backend(stream);
}

/* Of EK__CUDA_KERNEL_BYTES, for what runs on the device's compute stream. */
static inline void *ek__cuda_kernel_workspace(const struct ek__cuda_device *device) {
  return device->workspace + EK__CUDA_PRODUCT_BYTES;
}

/* Where a kernel works that is queued on a stream of a device. */
static inline struct ek__cuda_place ek__cuda_place_on(const struct ek__cuda_stream *stream) {
  const struct ek__cuda_device *device = stream->device;
  return (struct ek__cuda_place){stream->handle, ek__cuda_kernel_workspace(device), device->bad,
                                 device->gpu->physical, device->gpu->shared_bytes};
}

/* A product whose rows are as long as its sizes say. */
static inline struct ek__matmul_args ek__cuda_dense(struct ek__matmul_args args) {
  args.lda = args.transpose_a ? args.m : args.k;
  args.ldb = args.transpose_b ? args.k : args.n;
  args.ldc = args.n;
  return args;
}

static inline struct ek__cuda_device *ek__cuda_device_of(const ek_device *device) {
  return ek__device_native(device);
}

#endif /* EK_CUDA_INTERNAL_H */
