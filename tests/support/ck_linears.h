/*
 * ck_linears.h - the least that trains: two linear layers of one width, the mean squared error
 * between their outputs and their inputs, SGD, and a trainer on a group of devices with one thread
 * each. All of it is kept (ck_keep.h).
 */
#ifndef CK_LINEARS_H
#define CK_LINEARS_H

#include "ek_check.h"

enum { CK_LINEARS_SAMPLES = 6, CK_LINEARS_WIDTH = 64 /* at most */ };

struct ck_linears {
  int64_t width;
  ek_group *group;
  ek_module *module;
  ek_criterion *loss;
  ek_optimizer *rule;
  ek_trainer *trainer;
};

void ck_linears_open(struct ck_linears *it, const char *spec, int64_t width, ek_mode mode);
/* Computing in this precision (trainer.h). */
void ck_linears_open_in(struct ck_linears *it, const char *spec, int64_t width, ek_mode mode,
                        ek_precision precision);

/* A step on a batch of zeros. */
ek_status ck_linears_step(struct ck_linears *it);

#endif /* CK_LINEARS_H */
