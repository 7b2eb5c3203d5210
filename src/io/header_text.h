/*
 * header_text.h - shared by the reader and the writer of a header's text: its keys, its types, and
 * its own checksum, that of the text with sixteen zeros in the checksum's place.
 */
#ifndef EK_HEADER_TEXT_H
#define EK_HEADER_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <evenkeel/tensor.h>

#define EK__HEADER_PAIRS "__metadata__"
#define EK__HEADER_SUM "evenkeel.xxh3"
#define EK__HEADER_TENSOR_SUM "evenkeel.xxh3/" /* and the tensor's name */

/* A checksum as text, and its place while it is not known. */
enum { EK__HEADER_DIGITS = 16 };
#define EK__HEADER_NO_SUM "0000000000000000"

/* The format's name of a type that tensors have here; NULL for others. */
const char *ek__header_type(ek_type type);

/* The digits of the header's own checksum, the only ones in a text; NULL if it has none. */
char *ek__header_find_digits(char *text, size_t length);
/* The checksum of a text whose own digits are at `digits`, whatever they are. */
uint64_t ek__header_sum(const char *text, size_t length, const char *digits);
/* False unless `text` begins with sixteen digits as the library writes them. */
bool ek__header_parse_sum(uint64_t *checksum, const char *text);

#endif /* EK_HEADER_TEXT_H */
