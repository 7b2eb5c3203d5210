/*
 * cpu_matmul_onednn.c - one thread's matrix product by oneDNN's matmul primitive; compiled only
 * with oneDNN. cpu_matmul_choice.c decides which products use it.
 *
 * A product of bf16 has its sums in f32, bias and c fused, and one rounding. oneDNN (2.6) has no
 * product for f16, and none for bf16 without AVX-512.
 *
 * A primitive is compiled for one shape. Each thread of a team keeps its last PLACES of them, with
 * the objects that they run on and one piece of scratch memory for all, in its part of the team's
 * scratch (team.h): a step that has run before makes no primitive and takes no lock. Code is
 * shared: oneDNN caches shapes compiled by other threads. A shape that oneDNN does not support is
 * kept too, as a place without a primitive. One thread at a time makes a primitive, because each
 * writes oneDNN's cache (2.6: ThreadSanitizer reports a race of two).
 *
 * oneDNN (2.6) throws std::bad_alloc if an allocation fails; the border (cpu_onednn.c) turns that
 * into a status, and the product fails with it. As in cpu_sgemm_onednn.c nothing is compiled unless
 * the system has just granted several times the memory needed, because oneDNN also writes through
 * null pointers of failed allocations. Each run of a primitive takes about 200 bytes from the heap,
 * in pieces of up to 104; so each run first requests several times that.
 *
 * Tested so far: all of this in f32 (oneDNN 2.6 on AVX2); in bf16 with a stand-in for a processor
 * that has instructions for it (tests/faults), and with oneDNN 2.6 itself on a
 * processor with AVX512-BF16 and on an emulated one with AMX
 * (docs/results/2026-11-22-amx-emulated.md).
 */
#include "backend/cpu/cpu_onednn.h"
#include "backend/cpu/cpu_primitive.h"

#include <pthread.h>
#include <string.h>

#include <oneapi/dnnl/dnnl.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/process.h"

enum { A, B, BIAS, C, SCRATCH, MEMORIES };
#define PLACES 64
#define ALIGNMENT 4096
#define HEAP 4096

struct shape { /* compared as bytes, so it has no gaps */
  int64_t m, n, k, lda, ldb, ldc;
  double beta;
  uint8_t type, transpose_a, transpose_b, c_is_sum, bias, unused[3];
};
_Static_assert(sizeof(struct shape) == 7 * 8 + 8, "a gap");

struct place {
  struct shape shape;
  uint64_t used;              /* when, by cache.clock; 0: empty */
  dnnl_primitive_t primitive; /* NULL: oneDNN has nothing for this shape */
  dnnl_memory_t memory[MEMORIES];
  size_t scratch; /* bytes */
};

struct cache { /* of one thread of a team */
  uint64_t clock;
  dnnl_stream_t stream;
  void *scratch;
  size_t capacity; /* of scratch, in bytes */
  struct place places[PLACES];
};

/* ---- of the process ---- */

static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER; /* held by a thread that makes */
static dnnl_engine_t engine; /* written once; read by threads that have opened a stream since */

bool ek__cpu_primitive_for_bf16(void) {
  return (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_bf16) ==
         dnnl_cpu_isa_avx512_core_bf16;
}

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

/* ---- oneDNN 3 gives descriptions as pointers, 2 as structs ---- */

static dnnl_status_t describe(dnnl_memory_desc_t *what, int64_t rows, int64_t columns,
                              int64_t row_step, int64_t column_step, dnnl_data_type_t type) {
  const dnnl_dims_t sizes = {rows, columns}, steps = {row_step, column_step};
#if DNNL_VERSION_MAJOR >= 3
  return dnnl_memory_desc_create_with_strides(what, 2, sizes, type, steps);
#else
  return dnnl_memory_desc_init_by_strides(what, 2, sizes, type, steps);
#endif
}

static dnnl_status_t add_sum(dnnl_post_ops_t ops, float beta) {
#if DNNL_VERSION_MAJOR >= 3
  return dnnl_post_ops_append_sum(ops, beta, 0, dnnl_data_type_undef);
#else
  return dnnl_post_ops_append_sum(ops, beta);
#endif
}

static dnnl_status_t plan(dnnl_primitive_desc_t *result, const dnnl_memory_desc_t *memory,
                          bool bias, const_dnnl_primitive_attr_t attributes) {
#if DNNL_VERSION_MAJOR >= 3
  return dnnl_matmul_primitive_desc_create(result, engine, memory[A], memory[B],
                                           bias ? memory[BIAS] : NULL, memory[C], attributes);
#else
  dnnl_matmul_desc_t matmul;
  const dnnl_status_t status = dnnl_matmul_desc_init(&matmul, &memory[A], &memory[B],
                                                     bias ? &memory[BIAS] : NULL, &memory[C]);
  if (status != dnnl_success) return status;
  return dnnl_primitive_desc_create(result, &matmul, attributes, engine, NULL);
#endif
}

static dnnl_status_t make_memory(dnnl_memory_t *result, const dnnl_memory_desc_t *what) {
#if DNNL_VERSION_MAJOR >= 3
  return dnnl_memory_create(result, *what, engine, DNNL_MEMORY_NONE);
#else
  return dnnl_memory_create(result, what, engine, DNNL_MEMORY_NONE);
#endif
}

static dnnl_status_t make_scratch(struct place *place, const_dnnl_primitive_desc_t product) {
#if DNNL_VERSION_MAJOR >= 3
  const_dnnl_memory_desc_t what =
      dnnl_primitive_desc_query_md(product, dnnl_query_scratchpad_md, 0);
#else
  const dnnl_memory_desc_t *what =
      dnnl_primitive_desc_query_md(product, dnnl_query_scratchpad_md, 0);
#endif
  place->scratch = what == NULL ? 0 : dnnl_memory_desc_get_size(what);
  if (place->scratch == 0) return dnnl_success;
  return dnnl_memory_create(&place->memory[SCRATCH], what, engine, DNNL_MEMORY_NONE);
}

static void forget(dnnl_memory_desc_t *what) {
#if DNNL_VERSION_MAJOR >= 3
  for (int i = A; i <= C; i++) {
    if (what[i] != NULL) (void)dnnl_memory_desc_destroy(what[i]);
  }
#else
  (void)what;
#endif
}

/* ---- a place ---- */

static void clear(struct place *place) {
  if (place->primitive != NULL) (void)dnnl_primitive_destroy(place->primitive);
  for (int i = 0; i < MEMORIES; i++) {
    if (place->memory[i] != NULL) (void)dnnl_memory_destroy(place->memory[i]);
  }
  *place = (struct place){.used = 0};
}

static dnnl_status_t describe_all(dnnl_memory_desc_t *what, const struct shape *s) {
  const dnnl_data_type_t value = s->type == EK_F32 ? dnnl_f32 : dnnl_bf16;
  const dnnl_data_type_t result = s->c_is_sum ? dnnl_f32 : value;
  const int64_t ta = s->transpose_a, tb = s->transpose_b;
  dnnl_status_t status = describe(&what[A], s->m, s->k, ta ? 1 : s->lda, ta ? s->lda : 1, value);
  if (status == dnnl_success) {
    status = describe(&what[B], s->k, s->n, tb ? 1 : s->ldb, tb ? s->ldb : 1, value);
  }
  if (status == dnnl_success && s->bias) status = describe(&what[BIAS], 1, s->n, s->n, 1, value);
  if (status == dnnl_success) status = describe(&what[C], s->m, s->n, s->ldc, 1, result);
  return status;
}

/* Its plain loops are no product for a step. */
static bool is_fast(const_dnnl_primitive_desc_t product) {
  const char *name = NULL;
  const dnnl_status_t status =
      dnnl_primitive_desc_query(product, dnnl_query_impl_info_str, 0, (void *)&name);
  return status == dnnl_success && name != NULL && strncmp(name, "ref", 3) != 0;
}

struct filling { /* what fill() makes, for drop() if an exception leaves it */
  struct place *place;
  dnnl_memory_desc_t what[SCRATCH];
  dnnl_post_ops_t ops;
  dnnl_primitive_attr_t attributes;
  dnnl_primitive_desc_t product;
};

static dnnl_status_t set_attributes(struct filling *f, double beta) {
  dnnl_status_t status = dnnl_primitive_attr_create(&f->attributes);
  if (status != dnnl_success) return status;
  status = dnnl_primitive_attr_set_scratchpad_mode(f->attributes, dnnl_scratchpad_mode_user);
  if (status != dnnl_success || beta == 0.0) return status;
  status = dnnl_post_ops_create(&f->ops);
  if (status == dnnl_success) status = add_sum(f->ops, (float)beta);
  if (status == dnnl_success) status = dnnl_primitive_attr_set_post_ops(f->attributes, f->ops);
  return status;
}

/* Leaves a place without a primitive where oneDNN has nothing. */
static int fill(void *arg) {
  struct filling *f = arg;
  struct place *place = f->place;
  const bool bias = place->shape.bias;
  dnnl_status_t status = describe_all(f->what, &place->shape);
  if (status == dnnl_success) status = set_attributes(f, place->shape.beta);
  if (status == dnnl_success) status = plan(&f->product, f->what, bias, f->attributes);
  if (status == dnnl_unimplemented) return dnnl_success;
  if (status == dnnl_success && !is_fast(f->product)) return dnnl_success;
  for (int i = A; i <= C && status == dnnl_success; i++) {
    if (i != BIAS || bias) status = make_memory(&place->memory[i], &f->what[i]);
  }
  if (status == dnnl_success) status = make_scratch(place, f->product);
  if (status == dnnl_success) status = dnnl_primitive_create(&place->primitive, f->product);
  return status;
}

static void drop(struct filling *f) {
  if (f->product != NULL) (void)dnnl_primitive_desc_destroy(f->product);
  if (f->attributes != NULL) (void)dnnl_primitive_attr_destroy(f->attributes);
  if (f->ops != NULL) (void)dnnl_post_ops_destroy(f->ops);
  forget(f->what);
}

/* ---- of one thread ---- */

static void close_cache(void *raw) {
  struct cache *cache = raw;
  for (int i = 0; i < PLACES; i++) clear(&cache->places[i]);
  if (cache->stream != NULL) (void)dnnl_stream_destroy(cache->stream);
  ek__free(cache->scratch);
  ek__free(cache);
}

static ek_status failed(int status, const struct shape *s) {
  const ek_status kind = status == dnnl_out_of_memory ? EK_ERR_OUT_OF_MEMORY : EK_ERR_INTERNAL;
  return ek_error_set(kind, "matmul %lld x %lld x %lld: oneDNN failed with status "
                            "%d", (long long)s->m,
                      (long long)s->n, (long long)s->k, status);
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
  EK__FAIL_IF(status != dnnl_success, EK_ERR_OUT_OF_MEMORY, "oneDNN could not create a stream: "
                                                            "status %d",
              status);
  return EK_OK;
}

static ek_status fill_or_clear(struct place *place) {
  const struct shape shape = place->shape;
  struct filling filling = {.place = place};
  int status = dnnl_success;
  const ek_status called = make(&status, fill, &filling);
  drop(&filling);
  if (called == EK_OK && status == dnnl_success) return EK_OK;
  clear(place);
  return called != EK_OK ? called : failed(status, &shape);
}

/* The place of the shape; for a new shape the one least recently used. */
static ek_status find(struct place **result, struct cache *cache, const struct shape *shape) {
  struct place *oldest = &cache->places[0], *found = NULL;
  for (int i = 0; i < PLACES && found == NULL; i++) {
    struct place *place = &cache->places[i];
    if (place->used < oldest->used) oldest = place;
    if (place->used > 0 && memcmp(&place->shape, shape, sizeof *shape) == 0) found = place;
  }
  if (found == NULL) {
    clear(oldest);
    oldest->shape = *shape;
    EK_TRY(fill_or_clear(oldest));
    found = oldest;
  }
  found->used = ++cache->clock;
  *result = found;
  return EK_OK;
}

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
  const struct place *place;
  dnnl_stream_t stream;
  void *data[MEMORIES];
};

static int execute(void *arg) {
  static const int names[] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DST,
                              DNNL_ARG_SCRATCHPAD};
  const struct running *r = arg;
  dnnl_exec_arg_t arguments[MEMORIES];
  dnnl_status_t status = dnnl_success;
  int count = 0;
  for (int i = 0; i < MEMORIES && status == dnnl_success; i++) {
    if (r->place->memory[i] == NULL) continue;
    arguments[count++] = (dnnl_exec_arg_t){names[i], r->place->memory[i]};
    status = dnnl_memory_set_data_handle(r->place->memory[i], r->data[i]);
  }
  if (status != dnnl_success) return status;
  return dnnl_primitive_execute(r->place->primitive, r->stream, count, arguments);
}

static ek_status run(struct cache *cache, const struct place *place, const struct ek__gemm *g) {
  EK_TRY(need_scratch(cache, place->scratch));
  EK_TRY(need_heap());
  const uintptr_t scratch = ((uintptr_t)cache->scratch + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  struct running running = {place,
                            cache->stream,
                            {(void *)(uintptr_t)g->a, (void *)(uintptr_t)g->b,
                             (void *)(uintptr_t)g->bias, g->c, (void *)scratch}};
  int status = dnnl_success;
  EK_TRY(ek__cpu_onednn(&status, execute, &running));
  return status == dnnl_success ? EK_OK : failed(status, &place->shape);
}

ek_status ek__cpu_primitive_multiply(bool *done, const struct ek__gemm *g, ek_type type) {
  const struct shape shape = {.m = g->m,
                              .n = g->n,
                              .k = g->k,
                              .lda = g->lda,
                              .ldb = g->ldb,
                              .ldc = g->ldc,
                              .beta = g->beta,
                              .type = (uint8_t)type,
                              .transpose_a = g->transpose_a,
                              .transpose_b = g->transpose_b,
                              .c_is_sum = g->c_is_sum,
                              .bias = g->bias != NULL};
  struct cache *cache = NULL;
  struct place *place = NULL;
  EK_TRY(open_cache(&cache));
  EK_TRY(find(&place, cache, &shape));
  if (place->primitive == NULL) return EK_OK;
  EK_TRY(run(cache, place, g));
  *done = true;
  return EK_OK;
}

void ek__cpu_primitive_forget(void) {
  struct ek__scratch *scratch = ek__team_scratch();
  if (scratch->kept != NULL) scratch->free_kept(scratch->kept);
  scratch->kept = NULL;
}
