/*
 * fault.h - a switch for tests that makes work on a device fail.
 *
 * Memory has switches of its own: ek_memory_fail_at() for a device's, ek_host_memory_fail_at() for
 * the host's. This one is for all other work of a device: operations, copies, collectives, events
 * and waiting for a stream. A program, or a module of its own, can be tested with each of these
 * calls failing once:
 *
 *     for (uint64_t n = 1;; n++) {
 *       EK_TRY(ek_fault_at(device, n, EK_ERR_UNAVAILABLE));
 *       const ek_status status = step();
 *       EK_TRY(ek_fault_at(device, 0, EK_OK));
 *       if (status == EK_OK) break;     // a step makes fewer calls than n
 *       ...                             // is everything as it was? does the next step work?
 *     }
 */
#ifndef EVENKEEL_FAULT_H
#define EVENKEEL_FAULT_H

#include <evenkeel/device.h>

EK_BEGIN_DECLARATIONS

/*
 * The n-th piece of work on `device` from now on (n = 1 is the next) is not done: the call that
 * asks for it returns `status`, once. n = 0 cancels this. May be called from any thread.
 * EK_ERR_INVALID_ARGUMENT for a device of NULL, or for n > 0 with EK_OK.
 */
EK_API EK_CHECKED ek_status ek_fault_at(ek_device *device, uint64_t n, ek_status status);

EK_END_DECLARATIONS

#endif /* EVENKEEL_FAULT_H */
