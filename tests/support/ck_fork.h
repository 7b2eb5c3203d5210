/*
 * ck_fork.h - a test that goes on in a child of fork().
 *
 *     int code;
 *     if (ck_forked(&code)) _exit(call_it() == EK_ERR_STATE ? 0 : 1);
 *     ck_assert_int_eq(code, 0);
 */
#ifndef CK_FORK_H
#define CK_FORK_H

#include <unistd.h>

#include "ek_check.h"

enum { CK_KILLED = 1000 };

/* True in the child, which has a minute to call _exit(). False in the parent, once the child has
 * ended: with what it gave, or CK_KILLED and the number of the signal that ended it. */
bool ck_forked(int *code);

/* Memory that is the child's as well: zeros, and the same for each call. */
void *ck_shared(size_t bytes);

#endif /* CK_FORK_H */
