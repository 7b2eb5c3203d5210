/*
 * ck_visitor.h - a module that does its child's work, and tests what that gives it.
 */
#ifndef CK_VISITOR_H
#define CK_VISITOR_H

#include "ek_check.h"

/*
 * x W^T for x [B, 3], where W is the weight of its child, a linear that never runs. A parameter of
 * its own, "own" [5], takes no part.
 */
ek_status ck_visitor_create(ek_module **module);

/* Two of them one after the other. */
ek_status ck_visitors_create(ek_module **module);

#endif /* CK_VISITOR_H */
