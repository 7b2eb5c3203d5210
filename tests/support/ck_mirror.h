/*
 * ck_mirror.h - tensors of any device in host memory, for modules in plain C.
 *
 *     struct ck_mirrors m = {0};
 *     ek_status status = ck_mirrors_open(&m, 1, (ek_tensor *[]){&y, &x}, 2);
 *     if (status == EK_OK) ck_put(&m.host[0], 0, 2 * ck_at(&m.host[1], 0));
 *     return ck_mirrors_close(&m, status);
 *
 * Safe in a worker thread: nothing asserts.
 */
#ifndef CK_MIRROR_H
#define CK_MIRROR_H

#include "ek_check.h"

enum { CK_MIRRORS = 12 };

struct ck_mirrors {
  ek_tensor host[CK_MIRRORS];
  ek_tensor *of[CK_MIRRORS];
  size_t count, written;
};

/* Copies of the tensors in host memory; those of devices that only count are zeros. */
ek_status ck_mirrors_open(struct ck_mirrors *mirrors, size_t written, ek_tensor *const *tensors,
                          size_t count);
/* If all went well, copies the first `written` back. Frees the copies in any case. */
ek_status ck_mirrors_close(struct ck_mirrors *mirrors, ek_status status);

/* Element i of a floating tensor in host memory. */
double ck_at(const ek_tensor *tensor, int64_t i);
void ck_put(ek_tensor *tensor, int64_t i, double value);

#endif /* CK_MIRROR_H */
