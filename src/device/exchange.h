/*
 * exchange.h - a world over a program's function that exchanges bytes (ek_exchange in device.h).
 */
#ifndef EK_EXCHANGE_H
#define EK_EXCHANGE_H

#include "device/device_internal.h"
#include "world/world_internal.h"

/* A program's struct, which may be NULL, checked: one process has processes == 1. */
ek_status ek__exchange_read(ek_exchange *exchange, const ek_exchange *given);

ek_status ek__exchange_world(ek_world **world, const ek_exchange *exchange, double time_limit);

#endif /* EK_EXCHANGE_H */
