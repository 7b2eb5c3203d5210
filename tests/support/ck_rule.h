/*
 * ck_rule.h - an optimizer of a program's own that is no more than its update.
 */
#ifndef CK_RULE_H
#define CK_RULE_H

#include "ek_check.h"

/* Without states, with the rate 0.5 and no clipping, for f32: it says nothing of types. */
ek_status ck_rule_create(ek_optimizer **optimizer, const char *kind,
                         ek_status (*update)(const ek_optimizer *self, ek_stream *stream,
                                             const ek_update *update));

#endif /* CK_RULE_H */
