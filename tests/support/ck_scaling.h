/*
 * ck_scaling.h - trainings with a loss scale, and the step of one that overflows.
 *
 *     const struct ck_workload mlp = ck_spiked("mlp");
 *     const ek_loss_scale rule = ck_scaling_dynamic(1024, 2000);
 *     const struct ck_setup setup = ck_scaling_setup(&mlp, placement, &rule);
 *     struct ck_training training = ck_training_opened(&setup);
 *     ck_scaling_overflow(&training, device, number, false, true);
 */
#ifndef CK_SCALING_H
#define CK_SCALING_H

#include "ck_snapshot.h"
#include "ck_spike.h"
#include "ck_state.h"

enum { CK_SCALING_DEVICES = 3, CK_SCALING_SAMPLES = 7 };

/* On as many devices, in one of the placements. */
struct ck_setup ck_scaling_setup(const struct ck_workload *workload, int placement,
                                 const ek_loss_scale *loss_scale);

ek_loss_scale ck_scaling_fixed(double scale);
ek_loss_scale ck_scaling_dynamic(double scale, int64_t interval);

/* A step of two micro-batches, or of one. */
ek_status ck_scaling_step(struct ck_training *t, uint64_t number, bool two, ek_step_result *result);

/* The same step was taken, except for the scale. */
void ck_scaling_same_results(const ek_step_result *got, const ek_step_result *want);

/* An entry of the state, and the scale, which the optimizer says as well. */
int64_t ck_scaling_number(const struct ck_training *t, const char *name);
ek_status ck_scaling_write(struct ck_training *t, const char *name, ek_type type, void *value);
double ck_scaling_scale(const struct ck_training *t);

/* A step that overflows on one device, with a dynamic scale: nothing has changed but that. */
void ck_scaling_overflow(struct ck_training *t, size_t device, uint64_t number, bool two,
                         bool with_result);

#endif /* CK_SCALING_H */
