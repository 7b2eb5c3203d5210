/*
 * ck_snapshot.h - everything of a training that a failed step must leave as it was.
 *
 *     struct ck_snapshot before = ck_snapshot_take(&training);
 *     ... a step that fails ...
 *     ck_snapshot_is("what failed", &training, &before);
 */
#ifndef CK_SNAPSHOT_H
#define CK_SNAPSHOT_H

#include "ck_training.h"

enum { CK_SNAPSHOT_DEVICES = 8 };

struct ck_snapshot {
  size_t devices;
  double *states[2]; /* of AdamW, all parameters one after the other; NULL before the first step */
  double *parameters[CK_SNAPSHOT_DEVICES]; /* each replica's own */
  uint64_t held[CK_SNAPSHOT_DEVICES]; /* bytes */
};

/* Waits for the devices. The training has an optimizer; its states are read if it has two. The
 * arrays are kept (ck_keep.h). */
struct ck_snapshot ck_snapshot_take(const struct ck_training *training);

/*
 * Bit for bit. With a master the other devices' parameters are copies that the next forward makes
 * anew, so they are left out.
 */
void ck_snapshot_same(const char *what, const struct ck_snapshot *a, const struct ck_snapshot *b);
/* The training is still as it was, and two trainings are the same. */
void ck_snapshot_is(const char *what, const struct ck_training *training,
                    const struct ck_snapshot *want);
void ck_snapshots_same(const char *what, const struct ck_training *got,
                       const struct ck_training *want);

/* Whether the model is torn; if so, every call for it must say so, in the same words. */
bool ck_training_is_torn(struct ck_training *training);

#endif /* CK_SNAPSHOT_H */
