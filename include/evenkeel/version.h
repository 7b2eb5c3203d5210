/*
 * version.h - the version of these headers, and of the library that runs.
 *
 * A program is compiled against one version (the macros) and may load another one (the functions).
 * Versions that differ in the last number alone are compatible: `ek_version() / 100` is then
 * `EK_VERSION / 100`. Before 1.0 another minor version may have other functions, structs and
 * tables, and the program must be compiled again. An options struct of a newer library (a larger
 * one) is refused at run time in any case.
 */
#ifndef EVENKEEL_VERSION_H
#define EVENKEEL_VERSION_H

#include <evenkeel/export.h>

EK_BEGIN_DECLARATIONS

/* The build reads the version from here; it is written nowhere else. */
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

/* EK_VERSION and EK_VERSION_STRING of the library at run time; the string is static. */
EK_API int ek_version(void);
EK_API const char *ek_version_string(void);

EK_END_DECLARATIONS

#endif /* EVENKEEL_VERSION_H */
