/*
 * replicate.h - makes replicas equal to the first one.
 */
#ifndef EVENKEEL_REPLICATE_H
#define EVENKEEL_REPLICATE_H

#include <evenkeel/communicator.h>
#include <evenkeel/replica.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Copies the flat parameters and buffers of replicas[0] to all others: one broadcast for each flat
 * buffer, however many parameters there are. One replica per device of the communicator's group, in
 * order, of the same module and type.
 */
EK_API EK_CHECKED ek_status ek_replicate(ek_communicator *communicator, ek_group *group,
                                         ek_replica *const *replicas);

#ifdef __cplusplus
}
#endif

#endif /* EVENKEEL_REPLICATE_H */
