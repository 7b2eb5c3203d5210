/*
 * replicate.h - makes replicas equal to the first one.
 */
#ifndef EVENKEEL_REPLICATE_H
#define EVENKEEL_REPLICATE_H

#include <evenkeel/communicator.h>
#include <evenkeel/replica.h>

EK_BEGIN_DECLARATIONS

/*
 * Copies the parameters and buffers of rank 0 to all other ranks, with one broadcast for each flat
 * buffer. `replicas` has one replica for each device of the communicator's group, in the order of
 * the devices, all of one module and type.
 * EK_ERR_DEVICE            a replica is missing, or on another device
 * EK_ERR_INVALID_ARGUMENT  NULL, or replicas of different modules or types
 */
EK_API EK_CHECKED ek_status ek_replicate(ek_communicator *communicator,
                                         ek_replica *const *replicas);

EK_END_DECLARATIONS

#endif /* EVENKEEL_REPLICATE_H */
