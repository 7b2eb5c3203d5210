/*
 * between.h - collectives between processes whose devices compute in the memory of the host.
 */
#ifndef EK_BETWEEN_H
#define EK_BETWEEN_H

#include "device/communicator_internal.h"
#include "device/place.h"

struct ek__between;

/* The memory that every device of a group in a larger world has for it, whether the devices compute
 * or count: one tensor for each. */
ek_status ek__between_reserve(ek_tensor *buffers, ek_group *group, enum ek__reach reach);

/* Whether a group that counts plans for devices that compute in the memory of the host: NCCL has
 * memory of its own for the way to other processes. */
bool ek__between_in_host(const ek_group *group);

/* What a process sends to the others in one collective. */
struct ek__traffic {
  uint64_t bytes;
  unsigned halves; /* of the collective: see between.c */
};

/* Of a group that counts, whose processes have as many devices each as it has. Through NCCL as much
 * as with one device in each process. urgent: of the communicator. */
struct ek__traffic ek__between_traffic(const ek_group *group, enum ek__reach reach, bool urgent,
                                       const struct ek__collective *what);

/* For the devices of a group with a world; the reach is the world or EK__REACH_SHARES. The data of
 * a communicator that is not `urgent` moves as bulk. */
ek_status ek__between_open(struct ek__between **between, ek_group *group, enum ek__reach reach,
                           bool urgent);
void ek__between_close(struct ek__between *between);

/*
 * One collective, by the one thread that talks to other processes, with the lock of the world. All
 * processes meet, when all devices of the group have arrived. After that their data moves, of one
 * collective after the other: it begins, and advances by what can be done without waiting until it
 * is done, or finishes in one call. data[k], the memory of device k, is in use until then, as are
 * the offsets.
 */
ek_status ek__between_meet(struct ek__between *between, uint64_t communicator,
                           const struct ek__collective *what, void *const *data);
ek_status ek__between_begin(struct ek__between *between, const struct ek__collective *what,
                            void *const *data);
ek_status ek__between_advance(struct ek__between *between, struct ek__bulk *bulk, bool *done);
ek_status ek__between_finish(struct ek__between *between);
/* Whether the sums of the last one were made. A failure leaves no move out; ek__place_fail() has
 * it. */
bool ek__between_went_well(const struct ek__between *between);

#endif /* EK_BETWEEN_H */
