/*
 * utf8.h - text in UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF.
 */
#ifndef EK_UTF8_H
#define EK_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* The bytes of the character at `text`; 0 at the final NUL and where the bytes are not UTF-8. */
size_t ek__utf8_length(const char *text);

/* Whether all of a string is UTF-8. */
bool ek__utf8_is(const char *text);

#endif /* EK_UTF8_H */
