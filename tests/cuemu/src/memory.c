/*
 * memory.c - device memory and pinned host memory.
 *
 * Device memory is host memory from malloc, so that AddressSanitizer sees accesses beside it. It
 * is charged in units of 512 bytes against the device's size. New memory is filled with 0xff, which
 * reads as NaN: a kernel that relies on zeroes is found out. Allocations larger than POISON_LIMIT,
 * the arenas of a backend, are pages of the system that read as zeros and end, except for their
 * alignment, at a page without access: filling them, or letting a sanitizer mark them, would cost
 * more than most tests.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define UNIT ((size_t)512)
#define POISON_LIMIT ((size_t)1 << 20)
#define ALIGNMENT ((size_t)256)
#define PAGE ((size_t)4096)

struct allocation {
  struct allocation *next;
  char *memory;
  size_t bytes, charged;
  int device; /* -1: pinned host memory */
};

static struct allocation *allocations; /* few: a backend makes one arena for a device */
static unsigned long host_allocations;

static void add(void *memory, size_t bytes, size_t charged, int device) {
  struct allocation *a = cuemu_new(sizeof(*a));
  *a = (struct allocation){NULL, memory, bytes, charged, device};
  cuemu_lock();
  a->next = allocations;
  allocations = a;
  if (device < 0) host_allocations++;
  cuemu_unlock();
}

/* Takes the allocation that begins at the pointer off the list; host or device memory as asked. */
static struct allocation *take(const void *pointer, bool host) {
  cuemu_lock();
  struct allocation **link = &allocations;
  while (*link && ((*link)->memory != pointer || ((*link)->device < 0) != host)) {
    link = &(*link)->next;
  }
  struct allocation *a = *link;
  if (a) {
    *link = a->next;
    if (host) {
      host_allocations--;
    } else {
      cuemu_devices[a->device].used -= a->charged;
      cuemu_devices[a->device].allocations--;
    }
  }
  cuemu_unlock();
  return a;
}

enum cuemu_place cuemu_find(const void *pointer, size_t bytes, int *device, bool *whole) {
  const char *p = pointer;
  enum cuemu_place place = CUEMU_PAGEABLE;
  *device = -1;
  *whole = true;
  cuemu_lock();
  for (struct allocation *a = allocations; a; a = a->next) {
    if (p < a->memory || p >= a->memory + a->bytes) continue;
    place = a->device < 0 ? CUEMU_PINNED : CUEMU_ON_DEVICE;
    *device = a->device;
    *whole = bytes <= (size_t)(a->memory + a->bytes - p);
    break;
  }
  cuemu_unlock();
  return place;
}

bool cuemu_reaches(int device, int other) {
  if (device == other || other < 0) return true;
  cuemu_lock();
  const bool enabled = cuemu_devices[device].peers >> other & 1;
  cuemu_unlock();
  return enabled;
}

/* A small number with what the stack had in the gap after it, as of an enum in a struct, looks like
 * an address of which the lower half is small. Tensors begin at multiples of 256. */
static bool is_number(const char *p) {
  const uint32_t low = (uint32_t)(uintptr_t)p;
  return low > 0 && low < 256;
}

const void *cuemu_find_stranger(int device, const void *bytes, size_t size) {
  const void *stranger = NULL;
  cuemu_lock();
  const unsigned peers = cuemu_devices[device].peers | 1u << device;
  for (const struct allocation *a = allocations; a && !stranger; a = a->next) {
    if (a->device < 0 || peers >> a->device & 1) continue;
    for (size_t i = 0; i + sizeof(char *) <= size && !stranger; i += sizeof(char *)) {
      const char *p;
      memcpy(&p, (const char *)bytes + i, sizeof(p));
      if (p >= a->memory && p < a->memory + a->bytes && !is_number(p)) stranger = p;
    }
  }
  cuemu_unlock();
  return stranger;
}

/* What is read there must be short; what is written there is lost. */
void cuemu_break_peers(int device, void *bytes, size_t size) {
  static char *nowhere;
  enum { NOWHERE = 64 << 10 };
  cuemu_lock();
  if (!nowhere) nowhere = memset(cuemu_new(NOWHERE), 0xff, NOWHERE);
  for (const struct allocation *a = allocations; a; a = a->next) {
    if (a->device < 0 || a->device == device) continue;
    for (size_t i = 0; i + sizeof(char *) <= size; i += sizeof(char *)) {
      const char *p;
      memcpy(&p, (const char *)bytes + i, sizeof(p));
      if (p < a->memory || p >= a->memory + a->bytes || is_number(p)) continue;
      memcpy((char *)bytes + i, &nowhere, sizeof(nowhere));
    }
  }
  cuemu_unlock();
}

unsigned long cuemu_host_allocations(void) {
  cuemu_lock();
  unsigned long count = host_allocations;
  cuemu_unlock();
  return count;
}

/* ---- device memory ---- */

static bool charge(int device, size_t bytes) {
  struct cuemu_device *d = &cuemu_devices[device];
  cuemu_lock();
  bool fits = bytes <= cuemu_settings.memory && d->used <= cuemu_settings.memory - bytes;
  if (fits) {
    d->used += bytes;
    d->allocations++;
    if (d->used > d->peak) d->peak = d->used;
  }
  cuemu_unlock();
  return fits;
}

/* How many pages' bytes a large allocation has, without the last page, and where it begins
 * there. */
static size_t mapped(size_t bytes) { return (bytes + PAGE - 1) & ~(PAGE - 1); }
static size_t place(size_t bytes) {
  return mapped(bytes) - ((bytes + ALIGNMENT - 1) & ~(ALIGNMENT - 1));
}

static void *take_host_memory(size_t bytes) {
  void *memory = NULL;
  if (bytes <= POISON_LIMIT) {
    if (posix_memalign(&memory, ALIGNMENT, bytes)) return NULL;
    return memset(memory, 0xff, bytes);
  }
  const size_t whole = mapped(bytes);
  memory = mmap(NULL, whole + PAGE, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return NULL;
  if (mprotect((char *)memory + whole, PAGE, PROT_NONE)) abort();
  return (char *)memory + place(bytes);
}

static void give_host_memory(struct allocation *a) {
  if (a->bytes <= POISON_LIMIT) {
    free(a->memory);
  } else if (munmap(a->memory - place(a->bytes), mapped(a->bytes) + PAGE)) {
    abort();
  }
  free(a);
}

cudaError_t cudaMalloc(void **pointer, size_t bytes) {
  CUEMU_TRY(cuemu_enter());
  int device = cuemu_current_device();
  int fault = cuemu_call(device, CUEMU_MEMORY);
  *pointer = NULL;
  if (fault) return cuemu_result((cudaError_t)fault);
  if (!bytes) return cudaSuccess;
  size_t charged = (bytes + UNIT - 1) & ~(UNIT - 1);
  size_t free_bytes, total;
  cudaError_t error = cudaMemGetInfo(&free_bytes, &total);
  if (error != cudaSuccess) return error;
  const size_t refused = cuemu_settings.refused_bytes;
  free_bytes -= free_bytes < refused ? free_bytes : refused;
  if (charged < bytes || charged > free_bytes || !charge(device, charged)) {
    return cuemu_result(cudaErrorMemoryAllocation);
  }
  void *memory = take_host_memory(bytes);
  if (!memory) {
    cuemu_lock();
    cuemu_devices[device].used -= charged;
    cuemu_devices[device].allocations--;
    cuemu_unlock();
    return cuemu_result(cudaErrorMemoryAllocation);
  }
  add(memory, bytes, charged, device);
  *pointer = memory;
  return cudaSuccess;
}

/* CUDA frees with the context to itself, when the device and its peers are idle. */
static pthread_rwlock_t context = PTHREAD_RWLOCK_INITIALIZER;

void cuemu_pass_context(void) {
  if (!cuemu_settings.free_blocks) return;
  pthread_rwlock_rdlock(&context);
  pthread_rwlock_unlock(&context);
}

static void drain_all(int device) {
  if (!cuemu_settings.free_blocks) {
    if (device >= 0) cuemu_drain_device(device);
    return;
  }
  pthread_rwlock_wrlock(&context);
  for (int i = 0; i < cuemu_settings.devices; i++) cuemu_drain_device(i);
  pthread_rwlock_unlock(&context);
}

cudaError_t cudaFree(void *pointer) {
  cudaError_t error = cuemu_enter();
  if (!pointer) return cuemu_result(error);
  int device;
  bool whole;
  if (cuemu_find(pointer, 0, &device, &whole) != CUEMU_ON_DEVICE) {
    return cuemu_result(error != cudaSuccess ? error : cudaErrorInvalidValue);
  }
  drain_all(device);
  struct allocation *a = take(pointer, false);
  if (!a) return cuemu_result(error != cudaSuccess ? error : cudaErrorInvalidValue);
  give_host_memory(a);
  return cuemu_result(error != cudaSuccess ? error : cuemu_sticky(device));
}

/* Without a pool that keeps memory: what is freed is free when the stream comes to it. */
cudaError_t cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t stream) {
  *pointer = NULL;
  if (cuemu_stream_device(stream) != cuemu_current_device()) {
    return cuemu_result(cudaErrorInvalidValue);
  }
  return cudaMalloc(pointer, bytes);
}

static void free_in_order(void *pointer) {
  struct allocation *a = take(pointer, false);
  if (a) give_host_memory(a);
}

cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream) {
  CUEMU_TRY(cuemu_enter());
  int device;
  bool whole;
  if (cuemu_find(pointer, 0, &device, &whole) != CUEMU_ON_DEVICE) {
    return cuemu_result(cudaErrorInvalidValue);
  }
  cuemu_enqueue(stream, -1, NULL, free_in_order, pointer);
  return cudaSuccess;
}

void cuemu_free_device_memory(int device) {
  for (;;) {
    cuemu_lock();
    struct allocation *a = allocations;
    while (a && a->device != device) a = a->next;
    void *memory = a ? a->memory : NULL;
    cuemu_unlock();
    if (!memory) break;
    a = take(memory, false);
    if (a) give_host_memory(a);
  }
  cuemu_lock();
  cuemu_devices[device].peers = 0;
  cuemu_unlock();
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes,
                                     const void *pointer) {
  CUEMU_TRY(cuemu_enter());
  static const cudaMemoryType types[] = {[CUEMU_PAGEABLE] = cudaMemoryTypeUnregistered,
                                         [CUEMU_PINNED] = cudaMemoryTypeHost,
                                         [CUEMU_ON_DEVICE] = cudaMemoryTypeDevice};
  bool whole;
  int device;
  const enum cuemu_place place = cuemu_find(pointer, 1, &device, &whole);
  *attributes = (cudaPointerAttributes){
      .type = types[place],
      .device = place == CUEMU_PINNED ? cuemu_current_device() : device,
      .devicePointer = place == CUEMU_PAGEABLE ? NULL : (void *)(uintptr_t)pointer,
      .hostPointer = place == CUEMU_ON_DEVICE ? NULL : (void *)(uintptr_t)pointer};
  return cuemu_result(cudaSuccess);
}

/* ---- pinned host memory ---- */

cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned int flags) {
  CUEMU_TRY(cuemu_enter());
  *pointer = NULL;
  int fault = cuemu_call(cuemu_current_device(), CUEMU_MEMORY);
  if (fault) return cuemu_result((cudaError_t)fault);
  unsigned known = cudaHostAllocPortable | cudaHostAllocMapped;
  if (flags & ~known) return cuemu_result(cudaErrorInvalidValue);
  if (!bytes) return cudaSuccess;
  void *memory = NULL;
  if (posix_memalign(&memory, 4096, bytes)) return cuemu_result(cudaErrorMemoryAllocation);
  if (bytes <= POISON_LIMIT) memset(memory, 0xff, bytes);
  add(memory, bytes, 0, -1);
  *pointer = memory;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void *pointer) {
  cudaError_t error = cuemu_enter();
  if (!pointer) return cuemu_result(error);
  drain_all(-1);
  struct allocation *a = take(pointer, true);
  if (!a) return cuemu_result(error != cudaSuccess ? error : cudaErrorInvalidValue);
  free(a->memory);
  free(a);
  return cuemu_result(error);
}
