/*
 * fuzz_devices.h - groups of devices for harnesses, and what must be true of them afterwards.
 */
#ifndef FUZZ_DEVICES_H
#define FUZZ_DEVICES_H

#include <evenkeel/evenkeel.h>

#include "fuzz_input.h"

/* A call that must not fail. */
#define FUZZ_OK(call)                                                                              \
  do {                                                                                             \
    const ek_status fuzz_status_ = (call);                                                         \
    FUZZ_EXPECT(fuzz_status_ == EK_OK, "%s: %s: %s", #call, ek_status_name(fuzz_status_),          \
                ek_error_message());                                                               \
  } while (0)

/* The group that `spec` names with `threads` per device. Opened once and kept until the program
 * ends, because threads take longer to start than most inputs to run: hold nothing on it when an
 * input is done. */
ek_group *fuzz_group(const char *spec, int threads);

/* Every byte that was taken on the group was given back. */
void fuzz_expect_nothing_held(const ek_group *group);

/* A failure has a status from the list and a message. */
void fuzz_expect_explained(ek_status status);

#endif /* FUZZ_DEVICES_H */
