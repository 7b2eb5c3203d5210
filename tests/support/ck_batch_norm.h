/*
 * ck_batch_norm.h - batch normalisation with statistics of the whole batch: a module of a program's
 * own with collectives, in plain C over copies in host memory.
 *
 * For x [B, C]: y = weight * (x - mean) / sqrt(variance + 1/8) + bias, over all rows of all
 * devices. Parameters "weight", "bias" [C]; buffers "mean", "variance" [C], running ones with
 * momentum 1/4, and "batches" [1]. Outside of training the running ones are used, without a
 * collective.
 *
 * Sums are f64: over whole numbers they are exact, and the same for any number of devices.
 */
#ifndef CK_BATCH_NORM_H
#define CK_BATCH_NORM_H

#include "ek_check.h"

ek_status ck_batch_norm_create(ek_module **module, int64_t channels);

/* The same, but its table does not say that it is collective. */
ek_status ck_batch_norm_create_undeclared(ek_module **module, int64_t channels);

/* For x [B, C] the scalar sum over the device's own elements, minus the mean of these sums over all
 * devices: a scalar output, in which a device without rows has a part. */
ek_status ck_spread_create(ek_module **module);

#endif /* CK_BATCH_NORM_H */
