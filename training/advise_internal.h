/*
 * advise_internal.h - one plan, for the search over them (advise.c).
 */
#ifndef EK_ADVISE_INTERNAL_H
#define EK_ADVISE_INTERNAL_H

#include <evenkeel/advise.h>

#include "device/device_internal.h"

/* Rates of a device's work, per second; `call` is in seconds. */
struct ek__rates {
  struct ek__arithmetic wide, tf32, half;
  double moved, call;
};

/* The devices that are planned for. */
struct ek__advise_place {
  char spec[32];      /* of devices like them that count */
  size_t count;       /* of devices */
  int threads;        /* of each */
  uint64_t *capacity; /* of each */
  uint64_t together;  /* what all of them may hold; 0: there is no such limit */
  double at_once;     /* how many compute at the same time */
  struct ek__rates rates;
  size_t world, first_rank; /* of the devices of all processes */
  double link_bytes, link_seconds;
  unsigned precisions; /* that the devices compute in */
  int64_t samples;     /* of the batch */
};

struct ek__advise_plan {
  ek_advice advice;
  /* Missing bytes of what is held between steps: no recomputation or micro-batches make it less. */
  uint64_t lacking;
  uint64_t room; /* free bytes at the peak where there are fewest; 0 if it does not fit */
};

/* Plans a step with the settings. EK_ERR_UNSUPPORTED if the program's model has no such form. */
ek_status ek__advise_plan(struct ek__advise_plan *plan, const struct ek__advise_place *place,
                          const ek_advise_task *task, const ek_settings *settings);

#endif /* EK_ADVISE_INTERNAL_H */
