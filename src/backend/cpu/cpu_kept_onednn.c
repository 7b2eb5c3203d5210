/*
 * cpu_kept_onednn.c - oneDNN's primitives that each thread keeps: see cpu_kept.h.
 *
 * A primitive is compiled for one shape. Each thread of a team keeps its last EK__KEPT_MOST of
 * them, with the objects that they run on and one piece of scratch memory for all, in its part of
 * the team's scratch (team.h): a step that has run before makes no primitive and takes no lock.
 * Code is shared: oneDNN caches shapes compiled by other threads. A shape that oneDNN does not
 * support is kept too, as a place without a primitive. One thread at a time makes a primitive,
 * because each writes oneDNN's cache (2.6: ThreadSanitizer reports a race of two).
 *
 * oneDNN (2.6) throws std::bad_alloc if an allocation fails; the border (cpu_onednn.c) turns that
 * into a status, and the operation fails with it. As in cpu_sgemm_onednn.c nothing is compiled
 * unless the system has just granted several times the memory needed, because oneDNN also writes
 * through null pointers of failed allocations. Each run of a primitive takes about 200 bytes from
 * the heap, in pieces of up to 104; so each run first requests several times that.
 */
#include "backend/cpu/cpu_kept.h"
#include "backend/cpu/cpu_primitive.h"

#include <pthread.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/process.h"

#define ALIGNMENT 4096
#define HEAP 4096

struct cache { /* of one thread of a team */
  uint64_t clock;
  dnnl_stream_t stream;
  void *scratch;
  size_t capacity; /* of scratch, in bytes */
  struct ek__kept places[EK__KEPT_MOST];
};

/* ---- of the process ---- */

static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER; /* held by a thread that makes */
static dnnl_engine_t engine; /* written once; read by threads that have opened a stream since */

dnnl_engine_t ek__kept_engine(void) { return engine; }

/* Opens the process's engine, and a stream of it. */
static int open_stream(void *arg) {
  dnnl_stream_t *stream = arg;
  const dnnl_status_t status =
      engine == NULL ? dnnl_engine_create(&engine, dnnl_cpu, 0) : dnnl_success;
  if (status != dnnl_success) return status;
  return dnnl_stream_create(stream, engine, dnnl_stream_default_flags);
}

/* In a child of fork() a thread that is not there may hold the lock: the child has one thread that
 * it was forked from, and goes on without. */
static bool lock_making(void) {
  if (ek__process_number() != 0) return pthread_mutex_trylock(&making) == 0;
  return pthread_mutex_lock(&making) == 0;
}

/* By one thread at a time. The lock covers the probe for memory too: otherwise another thread could
 * take, for its own primitive, what the system has just given. */
static ek_status make(int *status, ek__onednn_function *function, void *arg) {
  const bool locked = lock_making();
  ek_status result = ek__cpu_memory_probe(EK__CPU_CUSHION);
  if (result == EK_OK) result = ek__cpu_onednn(status, function, arg);
  if (locked) pthread_mutex_unlock(&making);
  return result;
}

/* ---- steps of making one ---- */

dnnl_status_t ek__kept_describe(struct ek__filling *filling, int i, int rank,
                                const dnnl_dims_t sizes, const dnnl_dim_t *steps,
                                dnnl_data_type_t type) {
  dnnl_memory_desc_t *what = &filling->what[i];
#if DNNL_VERSION_MAJOR >= 3
  return steps == NULL
             ? dnnl_memory_desc_create_with_tag(what, rank, sizes, type, dnnl_format_tag_any)
             : dnnl_memory_desc_create_with_strides(what, rank, sizes, type, steps);
#else
  return steps == NULL ? dnnl_memory_desc_init_by_tag(what, rank, sizes, type, dnnl_format_tag_any)
                       : dnnl_memory_desc_init_by_strides(what, rank, sizes, type, steps);
#endif
}

void ek__kept_forget(struct ek__filling *filling, int i) {
#if DNNL_VERSION_MAJOR >= 3
  if (filling->what[i] != NULL) (void)dnnl_memory_desc_destroy(filling->what[i]);
#endif
  memset(&filling->what[i], 0, sizeof filling->what[i]);
}

static dnnl_status_t add_sum(dnnl_post_ops_t ops, float beta) {
#if DNNL_VERSION_MAJOR >= 3
  return dnnl_post_ops_append_sum(ops, beta, 0, dnnl_data_type_undef);
#else
  return dnnl_post_ops_append_sum(ops, beta);
#endif
}

dnnl_status_t ek__kept_attributes(struct ek__filling *filling, double beta) {
  struct ek__filling *f = filling;
  dnnl_status_t status = dnnl_primitive_attr_create(&f->attributes);
  if (status != dnnl_success) return status;
  status = dnnl_primitive_attr_set_scratchpad_mode(f->attributes, dnnl_scratchpad_mode_user);
  if (status != dnnl_success || beta == 0.0) return status;
  status = dnnl_post_ops_create(&f->ops);
  if (status == dnnl_success) status = add_sum(f->ops, (float)beta);
  if (status == dnnl_success) status = dnnl_primitive_attr_set_post_ops(f->attributes, f->ops);
  return status;
}

bool ek__kept_is(const_dnnl_primitive_desc_t product, const char *beginning) {
  const char *name = NULL;
  const dnnl_status_t status =
      dnnl_primitive_desc_query(product, dnnl_query_impl_info_str, 0, (void *)&name);
  return status == dnnl_success && name != NULL &&
         strncmp(name, beginning, strlen(beginning)) == 0;
}

dnnl_status_t ek__kept_memory(struct ek__kept *place, int i, ek__memory_desc what) {
  return dnnl_memory_create(&place->memory[i], what, engine, DNNL_MEMORY_NONE);
}

dnnl_status_t ek__kept_finish(struct ek__filling *filling) {
  struct ek__kept *place = filling->place;
  ek__memory_desc what =
      dnnl_primitive_desc_query_md(filling->product, dnnl_query_scratchpad_md, 0);
  dnnl_status_t status = dnnl_success;
  place->scratch = what == NULL ? 0 : dnnl_memory_desc_get_size(what);
  if (place->scratch > 0) status = ek__kept_memory(place, EK__KEPT_SCRATCH, what);
  return status == dnnl_success ? dnnl_primitive_create(&place->primitive, filling->product)
                                : status;
}

static void drop(struct ek__filling *f) {
  if (f->product != NULL) (void)dnnl_primitive_desc_destroy(f->product);
  for (int i = 0; i < 2; i++) {
    if (f->other[i] != NULL) (void)dnnl_primitive_desc_destroy(f->other[i]);
  }
  if (f->attributes != NULL) (void)dnnl_primitive_attr_destroy(f->attributes);
  if (f->ops != NULL) (void)dnnl_post_ops_destroy(f->ops);
  for (int i = 0; i < EK__KEPT_DATA; i++) ek__kept_forget(f, i);
}

/* ---- places ---- */

static void clear(struct ek__kept *place) {
  if (place->primitive != NULL) (void)dnnl_primitive_destroy(place->primitive);
  for (int i = 0; i < EK__KEPT_MEMORIES; i++) {
    if (place->memory[i] != NULL) (void)dnnl_memory_destroy(place->memory[i]);
  }
  *place = (struct ek__kept){.used = 0};
}

static void close_cache(void *raw) {
  struct cache *cache = raw;
  for (int i = 0; i < EK__KEPT_MOST; i++) clear(&cache->places[i]);
  if (cache->stream != NULL) (void)dnnl_stream_destroy(cache->stream);
  ek__free(cache->scratch);
  ek__free(cache);
}

static ek_status failed(int status, const struct ek__kept *place) {
  const ek_status kind = status == dnnl_out_of_memory ? EK_ERR_OUT_OF_MEMORY : EK_ERR_INTERNAL;
  char name[EK__KEPT_TEXT];
  place->kind->name(name, place->key);
  return ek_error_set(kind, "%s: oneDNN failed with status %d", name, status);
}

static ek_status open_cache(struct cache **result) {
  struct ek__scratch *scratch = ek__team_scratch();
  if (scratch->kept == NULL) {
    EK_TRY(ek__new(&scratch->kept, 1, sizeof **result, "matrix products"));
    scratch->free_kept = close_cache;
  }
  struct cache *cache = *result = scratch->kept;
  if (cache->stream != NULL) return EK_OK;
  int status = dnnl_success;
  EK_TRY(make(&status, open_stream, &cache->stream));
  EK__FAIL_IF(status != dnnl_success, EK_ERR_OUT_OF_MEMORY,
              "oneDNN could not create a stream: "
              "status %d",
              status);
  return EK_OK;
}

static ek_status fill_or_clear(struct ek__kept *place) {
  struct ek__filling filling = {.place = place};
  int status = dnnl_success;
  ek_status result = make(&status, place->kind->fill, &filling);
  drop(&filling);
  if (result == EK_OK && status == dnnl_success) return EK_OK;
  if (result == EK_OK) result = failed(status, place);
  clear(place);
  return result;
}

/* The place of the key; for a new key the one least recently used. */
ek_status ek__kept_find(const struct ek__kept **result, const struct ek__kept_kind *kind,
                        const void *key) {
  struct cache *cache = NULL;
  EK_TRY(open_cache(&cache));
  struct ek__kept *oldest = &cache->places[0], *found = NULL;
  for (int i = 0; i < EK__KEPT_MOST && found == NULL; i++) {
    struct ek__kept *place = &cache->places[i];
    if (place->used < oldest->used) oldest = place;
    if (place->kind == kind && memcmp(place->key, key, kind->words * 8) == 0) found = place;
  }
  if (found == NULL) {
    clear(oldest);
    oldest->kind = kind;
    memcpy(oldest->key, key, kind->words * 8);
    EK_TRY(fill_or_clear(oldest));
    found = oldest;
  }
  found->used = ++cache->clock;
  *result = found;
  return EK_OK;
}

/* ---- running one ---- */

static ek_status need_scratch(struct cache *cache, size_t bytes) {
  if (bytes <= cache->capacity) return EK_OK;
  ek__free(cache->scratch);
  cache->scratch = NULL;
  cache->capacity = 0;
  EK_TRY(ek__new(&cache->scratch, 1, bytes + ALIGNMENT, "matrix products"));
  cache->capacity = bytes;
  return EK_OK;
}

/* The heap has what oneDNN is about to take. */
static ek_status need_heap(void) {
  void *probe = NULL;
  EK_TRY(ek__new(&probe, 1, HEAP, "matrix products"));
  ek__free(probe);
  return EK_OK;
}

struct running {
  const struct ek__kept *place;
  dnnl_stream_t stream;
  void *data[EK__KEPT_MEMORIES];
};

static int execute(void *arg) {
  const struct running *r = arg;
  dnnl_exec_arg_t arguments[EK__KEPT_MEMORIES];
  dnnl_status_t status = dnnl_success;
  int count = 0;
  for (int i = 0; i < EK__KEPT_MEMORIES && status == dnnl_success; i++) {
    const int name = i == EK__KEPT_SCRATCH ? DNNL_ARG_SCRATCHPAD : r->place->kind->names[i];
    if (r->place->memory[i] == NULL) continue;
    arguments[count++] = (dnnl_exec_arg_t){name, r->place->memory[i]};
    status = dnnl_memory_set_data_handle(r->place->memory[i], r->data[i]);
  }
  if (status != dnnl_success) return status;
  return dnnl_primitive_execute(r->place->primitive, r->stream, count, arguments);
}

ek_status ek__kept_run(const struct ek__kept *place, void *const data[EK__KEPT_DATA]) {
  struct cache *cache = ek__team_scratch()->kept;
  EK_TRY(need_scratch(cache, place->scratch));
  EK_TRY(need_heap());
  const uintptr_t scratch = ((uintptr_t)cache->scratch + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  struct running running = {.place = place, .stream = cache->stream};
  memcpy(running.data, data, EK__KEPT_DATA * sizeof *data);
  running.data[EK__KEPT_SCRATCH] = (void *)scratch;
  int status = dnnl_success;
  EK_TRY(ek__cpu_onednn(&status, execute, &running));
  return status == dnnl_success ? EK_OK : failed(status, place);
}

void ek__cpu_primitive_forget(void) {
  struct ek__scratch *scratch = ek__team_scratch();
  if (scratch->kept != NULL) scratch->free_kept(scratch->kept);
  scratch->kept = NULL;
}
