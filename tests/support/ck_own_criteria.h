/*
 * ck_own_criteria.h - criteria of a program's own, written against the public table alone.
 */
#ifndef CK_OWN_CRITERIA_H
#define CK_OWN_CRITERIA_H

#include "ek_check.h"

enum { CK_ABSOLUTE_COLUMNS = 3, CK_ABSOLUTE_DROPPED = 4096 };

/* What an absolute error can be told to do wrong; the totals of its own are only unusual. */
enum ck_fault {
  CK_NO_FAULT,
  CK_OWN_TOTALS,
  CK_NO_GRADIENT,
  CK_WRONG_GRADIENT,
  CK_TARGET_GRADIENT,
  CK_TAKES_TOO_MUCH,
  CK_FAILS_FORWARD,
  CK_FAILS_BACKWARD
};

/* s = sum of w[c] |y - t| over rows of CK_ABSOLUTE_COLUMNS, d = sum of w[c]. */
struct ck_absolute_error {
  ek_criterion base;
  const double *weights; /* of the columns */
  enum ck_fault fault;
  int *freed; /* counts how often it was freed; may be NULL */
};

/* `weights` are not copied. */
ek_criterion *ck_absolute_error(const double *weights, ek_reduction reduction, enum ck_fault fault,
                                int *freed);

/* Two absolute errors of two outputs, with reduction `sum`; `fault` is the second one's. */
ek_criterion *ck_pair(const double *first, const double *second, enum ck_fault fault);

#endif /* CK_OWN_CRITERIA_H */
