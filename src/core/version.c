/*
 * version.c - what the library was compiled as, for programs that load it.
 */
#include <evenkeel/version.h>

int ek_version(void) { return EK_VERSION; }

const char *ek_version_string(void) { return EK_VERSION_STRING; }
