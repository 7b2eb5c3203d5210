/*
 * version.h - the version of these headers.
 */
#ifndef EVENKEEL_VERSION_H
#define EVENKEEL_VERSION_H

/* The one place where the version is written down; the build reads it from here. */
#define EK_VERSION_MAJOR 0
#define EK_VERSION_MINOR 1
#define EK_VERSION_PATCH 0

/* clang-format off */

/* One number to compare in #if: EK_VERSION >= EK_VERSION_NUMBER(0, 1, 0). */
#define EK_VERSION_NUMBER(major, minor, patch) ((major) * 10000 + (minor) * 100 + (patch))
#define EK_VERSION EK_VERSION_NUMBER(EK_VERSION_MAJOR, EK_VERSION_MINOR, EK_VERSION_PATCH)

/* "0.1.0" */
#define EK_VERSION_STRING EK_VERSION_JOIN_(EK_VERSION_MAJOR, EK_VERSION_MINOR, EK_VERSION_PATCH)
#define EK_VERSION_JOIN_(major, minor, patch) \
  EK_VERSION_TEXT_(major) "." EK_VERSION_TEXT_(minor) "." EK_VERSION_TEXT_(patch)
#define EK_VERSION_TEXT_(x) #x
/* clang-format on */

#endif /* EVENKEEL_VERSION_H */
