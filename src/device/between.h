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
 * as with one device in each process. */
struct ek__traffic ek__between_traffic(const ek_group *group, enum ek__reach reach,
                                       const struct ek__collective *what);

/* For the devices of a group with a world; the reach is the world or EK__REACH_SHARES. */
ek_status ek__between_open(struct ek__between **between, ek_group *group, enum ek__reach reach);
void ek__between_close(struct ek__between *between);

/* One collective of communicator number `communicator`: data[k] is the memory of device k. Called
 * by the one thread that talks to other processes, when all devices of the group have arrived. */
ek_status ek__between_run(struct ek__between *between, uint64_t communicator,
                          const struct ek__collective *what, void *const *data);

#endif /* EK_BETWEEN_H */
