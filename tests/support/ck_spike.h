/*
 * ck_spike.h - a module whose gradient goes wrong on one device, when a test says so.
 *
 *     ek_module *module = ck_spike(inner);    // owns the reference
 *     ck_spike_at(2, INFINITY);               // from now on device 2 multiplies with infinity
 *     ck_ok(ck_training_step(&training, &batch, &result));
 *     ck_spike_nowhere();
 *
 * It computes what the inner one does and stands in its place: names, masks and bits are the same.
 */
#ifndef CK_SPIKE_H
#define CK_SPIKE_H

#include "ck_workload.h"

ek_module *ck_spike(ek_module *inner);
/* The workload of this name with its module in a spike; of one name at a time. */
struct ck_workload ck_spiked(const char *name);

/* The gradient of output 0 is multiplied with `factor` on the device with this number. Of all
 * modules; between calls for their models. */
void ck_spike_at(size_t device, double factor);
void ck_spike_nowhere(void);

#endif /* CK_SPIKE_H */
