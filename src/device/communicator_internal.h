/*
 * communicator_internal.h - the table that a communicator is.
 *
 * All collectives go through one slot, `start`, with a description: queueing, checking and progress
 * are the same for all of them, and only the innermost copy or sum differs.
 */
#ifndef EK_COMMUNICATOR_INTERNAL_H
#define EK_COMMUNICATOR_INTERNAL_H

#include <evenkeel/communicator.h>

#include "device/device_internal.h"

struct ek__communicator_table {
  const char *name;
  /* (optional: false) collectives run even where one rank is the whole world. */
  bool runs_alone;
  /* Required: queues the collective for device number `rank`, on its worker thread. */
  ek_status (*start)(ek_communicator *self, ek_device *device,
                     const struct ek__collective *collective);
  /* (optional: the device works by itself) does the work that is ready. */
  ek_status (*progress)(ek_communicator *self, ek_device *device);
  /* (optional: collectives are complete when they were started) */
  ek_status (*wait)(ek_communicator *self, ek_device *device);
  /* (optional: as wait) how many collectives the device has started; waits for the first `number`
   * of them. */
  uint64_t (*started)(const ek_communicator *self, const ek_device *device);
  ek_status (*wait_for)(ek_communicator *self, ek_device *device, uint64_t number);
  /*
   * (optional: parts that one stream holds need not be in one order on all devices) returns when
   * all that the device has started is queued on its stream; called before the first collective of
   * another communicator. Each device starts the same ones in the same order, and so it queues
   * them.
   */
  ek_status (*settle)(ek_communicator *self, ek_device *device);
  /* (optional: nothing ever waits) */
  void (*abort)(ek_communicator *self);
  /* (optional: no stream hangs in a collective) called after an abort, of all communicators of the
   * group before `renew` of any; no worker runs. True if it cut a collective off. */
  bool (*unblock)(ek_communicator *self);
  /* (optional) renews it after an abort; no worker runs. */
  void (*renew)(ek_communicator *self);
  /* Required. */
  void (*close)(ek_communicator *self);
};

/* The first member of every communicator's struct. */
struct ek_communicator {
  struct ek__abortable abortable;
  const struct ek__communicator_table *table;
  ek_group *group;
  enum ek__reach reach;
  bool urgent;
};

/* ek_communicator_open() for another reach than the world. urgent: devices wait for each collective
 * at once. Between processes on the CPU it does not wait for the data of those of communicators
 * that are not. */
ek_status ek__communicator_open(ek_communicator **communicator, ek_group *group,
                                enum ek__reach reach, bool urgent);

/*
 * Starts a collective of `tensor`, as the public functions do; `what` has the other arguments. With
 * `more`, all devices start another collective of this communicator at once, before they wait for
 * anything. `about` is the number of its subject: different numbers on the devices are
 * EK_ERR_SHAPE, as different sizes are.
 */
ek_status ek__communicator_start(ek_communicator *communicator, ek_device *device,
                                 const ek_tensor *tensor, const struct ek__collective *what);

/*
 * The number of collectives that the device has started, which is the number of the last one; and
 * ek_communicator_wait() for a number and those before it, while later ones go on. Numbers start
 * again after an abort.
 */
uint64_t ek__communicator_started(const ek_communicator *communicator, const ek_device *device);
ek_status ek__communicator_wait_for(ek_communicator *communicator, ek_device *device,
                                    uint64_t number);

/* EK_ERR_TYPE for a type that is not summed, EK_ERR_UNSUPPORTED where the device does not compute
 * in it. */
ek_status ek__communicator_can_sum(const char *who, const ek_device *device, ek_type type);

/* For the devices of a group that reach each other's memory or have a link of their backend. */
ek_status ek__host_communicator_open(ek_communicator **communicator, ek_group *group,
                                     enum ek__reach reach, bool urgent);

#endif /* EK_COMMUNICATOR_INTERNAL_H */
