/*
 * cpu_kept.h - oneDNN's primitives that a thread keeps, and the steps of making one; included by
 * sources that are compiled only with oneDNN.
 *
 * A kind says how a primitive is made from a key: what is computed, all sizes included. Keys are
 * compared as bytes, so they have no gaps.
 */
#ifndef EK_CPU_KEPT_H
#define EK_CPU_KEPT_H

#include "backend/cpu/cpu_onednn.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <oneapi/dnnl/dnnl.h>

/* What a primitive runs on: two operands, perhaps a vector, a result. */
enum { EK__KEPT_A, EK__KEPT_B, EK__KEPT_BIAS, EK__KEPT_C, EK__KEPT_DATA };
enum { EK__KEPT_SCRATCH = EK__KEPT_DATA, EK__KEPT_MEMORIES };
enum { EK__KEPT_WORDS = 24, EK__KEPT_TEXT = 128 };

struct ek__kept_kind {
  int names[EK__KEPT_DATA]; /* DNNL_ARG_.. */
  size_t words;             /* of a key, 8 bytes each, at most EK__KEPT_WORDS */
  /* dnnl_status_t, as of cpu_onednn.h; the argument is a struct ek__filling. A place is left
   * without a primitive where oneDNN has nothing. */
  ek__onednn_function *fill;
  /* What it is, for messages, into EK__KEPT_TEXT characters. */
  void (*name)(char *text, const void *key);
};

struct ek__kept {
  const struct ek__kept_kind *kind; /* NULL: empty */
  uint64_t key[EK__KEPT_WORDS];
  uint64_t used;              /* when, by the clock of its thread */
  dnnl_primitive_t primitive; /* NULL: oneDNN has nothing for this key */
  dnnl_memory_t memory[EK__KEPT_MEMORIES];
  size_t scratch; /* bytes */
  size_t special; /* bytes of an operand that is in a layout of the primitive's own; or 0 */
};

struct ek__filling { /* what fill() makes, to be dropped if an exception leaves it */
  struct ek__kept *place;
  dnnl_memory_desc_t what[EK__KEPT_DATA]; /* zeroed at first */
  dnnl_post_ops_t ops;
  dnnl_primitive_attr_t attributes;
  dnnl_primitive_desc_t product, other[2];
};

/* ---- for fill(): oneDNN 3 gives descriptions as pointers, 2 as structs ---- */

#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t ek__memory_desc;
#else
typedef const dnnl_memory_desc_t *ek__memory_desc;
#endif

/* Of element i of filling->what; NULL where it is empty in oneDNN 3. */
static inline ek__memory_desc ek__kept_what(const struct ek__filling *filling, int i) {
#if DNNL_VERSION_MAJOR >= 3
  return filling->what[i];
#else
  return &filling->what[i];
#endif
}

dnnl_engine_t ek__kept_engine(void);
/* With `steps` NULL the layout is the primitive's choice. */
dnnl_status_t ek__kept_describe(struct ek__filling *filling, int i, int rank,
                                const dnnl_dims_t sizes, const dnnl_dim_t *steps,
                                dnnl_data_type_t type);
/* Element i of filling->what is described anew; what it was is dropped. */
void ek__kept_forget(struct ek__filling *filling, int i);
/* filling->attributes: scratch memory is the caller's, and the result is added to beta c. */
dnnl_status_t ek__kept_attributes(struct ek__filling *filling, double beta);
/* Whether oneDNN's name of what computes it begins so: "ref" are plain loops, which are nothing for
 * a step. */
bool ek__kept_is(const_dnnl_primitive_desc_t product, const char *beginning);
dnnl_status_t ek__kept_memory(struct ek__kept *place, int i, ek__memory_desc what);
/* Its scratch and the primitive itself, of filling->product; the last step. */
dnnl_status_t ek__kept_finish(struct ek__filling *filling);

/* ---- on a thread that has scratch (team.h) ---- */

/* The place of the key. It lasts until the thread has asked for EK__KEPT_MOST others. */
ek_status ek__kept_find(const struct ek__kept **place, const struct ek__kept_kind *kind,
                        const void *key);
/* What the place has no memory for is not looked at. */
ek_status ek__kept_run(const struct ek__kept *place, void *const data[EK__KEPT_DATA]);
enum { EK__KEPT_MOST = 192 };

#endif /* EK_CPU_KEPT_H */
