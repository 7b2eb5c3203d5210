/*
 * ck_biased.h - a loss that learns, and a model and a loss as one module.
 */
#ifndef CK_BIASED_H
#define CK_BIASED_H

#include "ek_check.h"

enum { CK_BIASED_COLUMNS = 4 };

/* (y + b - t)^2 with a bias b for each column. `early`: it computes gradients in forward where it
 * can; else in backward, over what forward has saved. */
ek_criterion *ck_biased_with(bool early, ek_reduction reduction);
ek_criterion *ck_biased(void);

/* Takes over the references; what it makes is kept. */
ek_module *ck_together(ek_module *model, ek_criterion *criterion);

#endif /* CK_BIASED_H */
