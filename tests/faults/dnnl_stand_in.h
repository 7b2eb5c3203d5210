/*
 * dnnl_stand_in.h - oneDNN's products of bf16 on any processor, and their failures.
 *
 * A library in front of oneDNN (2): it says that the processor has instructions for bf16, and
 * plans, makes and runs matmul primitives of bf16 itself, by plain loops over what the descriptions
 * say. Everything else goes on to oneDNN. A program that is linked with it may write to
 * dnnl_stand_in; in one that is only started with it (LD_PRELOAD) all is right.
 */
#ifndef DNNL_STAND_IN_H
#define DNNL_STAND_IN_H

#include <stdatomic.h>

enum dnnl_stand_in_flaw {
  DNNL_RIGHT,
  DNNL_WRONG_NUMBER, /* the last element of c has one more */
  DNNL_WRONG_REST,   /* so too, but of dense rows and a c that is not of whole tiles of 16 by 16 */
  DNNL_WRONG_GAP,    /* the gap after the last row but one of c is written */
  DNNL_READS_C,      /* c is added where it may not be read */
  DNNL_NOTHING,      /* not implemented */
  DNNL_NO_PLAN,      /* a run-time error when it is planned, made, run */
  DNNL_NO_PRIMITIVE,
  DNNL_NO_RUN,
  DNNL_NO_MEMORY /* a lack of memory when it is made */
};

enum { DNNL_FORMS = 20, DNNL_EVERY_FORM = -1 };

struct dnnl_stand_in {
  int absent; /* the processor has none of it */
  enum dnnl_stand_in_flaw flaw;
  int form;              /* which has the flaw, or DNNL_EVERY_FORM: dnnl_stand_in_form() */
  atomic_int made, runs; /* primitives that were asked for, and calls of them */
  atomic_int spared;     /* primitives that are right before the flaw */
  atomic_int makers;     /* threads that make a primitive now */
  atomic_int overlaps;   /* primitives that were begun beside another */
};
extern struct dnnl_stand_in dnnl_stand_in;

/* 0 to 19: a turned + 2 b turned + 4 (c of bf16 alone, with a bias, added to; c of f32 alone, added
 * to). */
int dnnl_stand_in_form(int transpose_a, int transpose_b, int c_is_f32, int bias, int added);

#endif /* DNNL_STAND_IN_H */
