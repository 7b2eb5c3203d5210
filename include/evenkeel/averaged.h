/*
 * averaged.h - any rule, with a running average of the weights that it makes: often a better model
 * than the last weights (Polyak and Juditsky 1992; torch.optim.swa_utils.get_ema_multi_avg_fn()).
 *
 *     status = ek_adamw_create(&adamw, NULL);
 *     if (status == EK_OK) status = ek_averaged_create(&rule, adamw, 0.999);
 *     ek_optimizer_free(adamw);                       // `rule` keeps a reference
 *
 * After the rule's update p of a step
 *     average = p                                     at the first step
 *     average = average + (1 - decay) (p - average)   after it
 * The average is a state of the optimizer, one number for each parameter, named
 * "adamw/average/NAME" in state.h: it is cut over the devices, planned and saved as the other
 * states are. A model with the averages instead of the last weights is written with
 * ek_weights_options.average (weights.h).
 */
#ifndef EVENKEEL_AVERAGED_H
#define EVENKEEL_AVERAGED_H

#include <evenkeel/optimizer.h>

EK_BEGIN_DECLARATIONS

/*
 * The new rule has the options, the rate and the clipping of `rule`, and keeps a reference to it.
 * 0 <= decay < 1: about the last 1 / (1 - decay) steps count.
 * EK_ERR_INVALID_ARGUMENT for another decay, and for a rule with EK_MAX_OPTIMIZER_STATES states, or
 * with a state that is called "average".
 */
EK_API EK_CHECKED ek_status ek_averaged_create(ek_optimizer **optimizer, ek_optimizer *rule,
                                               double decay);

EK_END_DECLARATIONS

#endif /* EVENKEEL_AVERAGED_H */
