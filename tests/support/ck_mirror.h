/*
 * ck_mirror.h - tensors of any device in host memory, for modules in plain C.
 *
 *     CK_MIRRORS(m, 1, &y, x);
 *     ck_put(&m.host[0], 0, 2 * ck_at(&m.host[1], 0));
 *     return ck_mirrors_close(&m);
 *
 * Safe in a worker thread: nothing asserts.
 */
#ifndef CK_MIRROR_H
#define CK_MIRROR_H

#include "ek_check.h"

enum { CK_MIRRORS_MOST = 12 };

struct ck_mirrors {
  ek_tensor host[CK_MIRRORS_MOST];
  const ek_tensor *of[CK_MIRRORS_MOST];
  size_t count, written;
};

/* Declares copies of the tensors in host memory; those of devices that only count are zeros. In a
 * function that gives a status back: EK_TRY. */
#define CK_MIRRORS(name, written, ...)                                                             \
  struct ck_mirrors name;                                                                          \
  EK_TRY(ck_mirrors_open(&name, written, (const ek_tensor *const[]){__VA_ARGS__, NULL}))
ek_status ck_mirrors_open(struct ck_mirrors *mirrors, size_t written,
                          const ek_tensor *const *tensors);
/* Copies the first `written` back, and frees the copies. */
ek_status ck_mirrors_close(struct ck_mirrors *mirrors);

/* Element i of a floating tensor in host memory. */
double ck_at(const ek_tensor *tensor, int64_t i);
void ck_put(ek_tensor *tensor, int64_t i, double value);

#endif /* CK_MIRROR_H */
