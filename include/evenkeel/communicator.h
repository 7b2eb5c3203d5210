/*
 * communicator.h - collectives between the devices of a group.
 *
 * Device k of the group has the rank first_rank + k of world_size: a communicator may lead to the
 * devices of other processes too (device.h, ek_group_options). Roots and offsets count ranks.
 *
 * Every device calls the same collectives in the same order, each on its own worker thread (inside
 * ek_group_apply()). A call queues the work on the device's communication stream, after what its
 * compute stream holds so far, and returns; the tensors must stay untouched until
 * ek_communicator_wait(), which makes the compute stream wait for all of the device's collectives.
 *
 * Sums are taken in the order of the ranks, at the width of the type: the same call gives the
 * same bits. In a world of several processes those of a process may be added up first (device.h).
 * Numbers of 16 bits are added up in f32, and the sum is rounded once. Tensors are f32,
 * f64, bf16 or f16 (broadcast and all-gather: any type), with equal numbers of elements on all
 * devices; a difference is EK_ERR_SHAPE on every device. A sum in a type that the devices do not
 * compute in (ek_device_types()) is EK_ERR_UNSUPPORTED.
 *
 * A group may have several communicators. With `nccl` all devices must start the collectives of all
 * communicators in the same order: they share one stream, on which each waits for its peers, so two
 * in different orders wait until the group's time limit: EK_ERR_UNAVAILABLE. `host` and `peer` take
 * any order within one process; between processes the order must be the same on all devices.
 *
 * All devices must call the same collectives, and wait for their own. If a device has left its
 * function without a collective that another device waits for, `host` and `peer` end the wait
 * within about a second: EK_ERR_SHAPE. `nccl` gives up after the group's time limit:
 * EK_ERR_UNAVAILABLE.
 *
 * When a device's function fails inside ek_group_apply(), the group aborts its communicators: peers
 * that wait return EK_ERR_ABORTED. Afterwards the communicator is reset.
 */
#ifndef EVENKEEL_COMMUNICATOR_H
#define EVENKEEL_COMMUNICATOR_H

#include <evenkeel/tensor.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_communicator ek_communicator;

/*
 * Opens the group's best communicator: `host` for cpu devices; for cuda `nccl` between different
 * GPUs or `peer` (logical devices, or what ek_group_options.deterministic asks for); for plan one
 * that counts. `nccl` sums in an order of its own, and rounds numbers of 16 bits at every addition.
 */
EK_API EK_CHECKED ek_status ek_communicator_open(ek_communicator **communicator, ek_group *group);
EK_API void ek_communicator_free(ek_communicator *communicator);
/* The group that it was opened for, a loan; NULL for NULL. */
EK_API ek_group *ek_communicator_group(const ek_communicator *communicator);
/* Its kind: "host", "nccl", "peer", or "count" for plan; "" for NULL. */
EK_API const char *ek_communicator_name(const ek_communicator *communicator);
EK_API size_t ek_communicator_first_rank(const ek_communicator *communicator); /* 0 for NULL */
EK_API size_t ek_communicator_world_size(const ek_communicator *communicator); /* 0 for NULL */

/* The tensor of every rank becomes that of rank `root`. */
EK_API EK_CHECKED ek_status ek_communicator_broadcast(ek_communicator *communicator,
                                                      ek_device *device, ek_tensor *tensor,
                                                      size_t root);
/* The root's tensor becomes the sum of all; the others' stay. */
EK_API EK_CHECKED ek_status ek_communicator_reduce(ek_communicator *communicator, ek_device *device,
                                                   ek_tensor *tensor, size_t root);
/* The tensor of every rank becomes the sum of all. */
EK_API EK_CHECKED ek_status ek_communicator_all_reduce(ek_communicator *communicator,
                                                       ek_device *device, ek_tensor *tensor);
/*
 * Elements offsets[r] .. offsets[r+1] - 1 of rank r become the sum over all ranks; its other
 * elements stay. `offsets` has one entry more than there are ranks, starts with 0, does not fall,
 * ends with the number of elements, is the same on all ranks, and is read before the call returns.
 */
EK_API EK_CHECKED ek_status ek_communicator_reduce_scatter(ek_communicator *communicator,
                                                           ek_device *device, ek_tensor *tensor,
                                                           const int64_t *offsets);
/* Every rank gets elements offsets[r] .. offsets[r+1] - 1 of rank r, for every r. */
EK_API EK_CHECKED ek_status ek_communicator_all_gather(ek_communicator *communicator,
                                                       ek_device *device, ek_tensor *tensor,
                                                       const int64_t *offsets);

/* Starts queued work that is ready, without waiting. Cheap; legal at any time. */
EK_API EK_CHECKED ek_status ek_communicator_progress(ek_communicator *communicator,
                                                     ek_device *device);
/* The device's compute stream waits for all collectives that the device has queued. */
EK_API EK_CHECKED ek_status ek_communicator_wait(ek_communicator *communicator, ek_device *device);

/* Gives up: calls that wait, and later ones, return EK_ERR_ABORTED. From any thread. */
EK_API void ek_communicator_abort(ek_communicator *communicator);

EK_END_DECLARATIONS

#endif /* EVENKEEL_COMMUNICATOR_H */
