/*
 * criterion_pass.h - the inside of ek_criterion_pass: shared by criterion.c, what a criterion sees
 * of it, and criterion_pass.c, what its runner does with it. Criteria themselves do not include
 * this.
 */
#ifndef EK_CRITERION_PASS_H
#define EK_CRITERION_PASS_H

#include <evenkeel/criterion.h>

enum ek__criterion_phase {
  EK__CRITERION_IDLE = 0, /* there is no forward to go back from */
  EK__CRITERION_IN_FORWARD,
  EK__CRITERION_FORWARD_DONE,
  EK__CRITERION_IN_BACKWARD
};

/*
 * How much of everything a criterion has. They are members that a program can write at any time,
 * and arrays are laid out by them: so they are checked and copied where arrays are made, and
 * compared where these are used.
 */
struct ek__criterion_counts {
  size_t outputs, targets, terms, constants;
};

/* EK_ERR_INVALID_ARGUMENT unless all are within their bounds; *counts may then be relied on. */
ek_status ek__criterion_count(struct ek__criterion_counts *counts, const ek_criterion *criterion);

/* EK_ERR_STATE unless they are what they were. */
ek_status ek__criterion_unchanged(const ek_criterion *criterion,
                                  const struct ek__criterion_counts *counts);

struct ek_criterion_pass {
  ek_criterion *criterion; /* a reference of its own */
  struct ek__criterion_counts counts;
  ek_device *device;
  ek_stream *stream;
  ek_type type;
  bool keep_outputs;
  bool gradient_allowed; /* this forward may write the gradients over the outputs */
  bool gradient_written; /* and the criterion has said that it does */
  enum ek__criterion_phase phase;

  /* The criterion whose function runs, and where its constants begin; `criterion` in between. */
  const ek_criterion *running;
  int depth; /* of it: 0 for `criterion` */
  size_t first_constant;
  ek_tensor constants[EK_MAX_CONSTANTS];

  const ek_tensor *outputs; /* during forward */
  ek_tensor *saved;         /* a stack */
  size_t saved_count, saved_capacity;

  ek_tensor losses;         /* of the last forward, if it handed them over */
  const ek_tensor *factors; /* during a backward that has them, else NULL */
};

#endif /* EK_CRITERION_PASS_H */
