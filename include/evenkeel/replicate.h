/*
 * replicate.h - makes replicas equal to the first one.
 */
#ifndef EVENKEEL_REPLICATE_H
#define EVENKEEL_REPLICATE_H

#include <evenkeel/communicator.h>
#include <evenkeel/replica.h>

EK_BEGIN_DECLARATIONS

/*
 * Copies the flat parameters and buffers of replicas[0] to all others: one broadcast for each flat
 * buffer, however many parameters there are. One replica per device of the communicator's group, in
 * order, of the same module and type.
 */
EK_API EK_CHECKED ek_status ek_replicate(ek_communicator *communicator, ek_group *group,
                                         ek_replica *const *replicas);

EK_END_DECLARATIONS

#endif /* EVENKEEL_REPLICATE_H */
