/*
 * utf8.c - see utf8.h.
 */
#include "core/utf8.h"

size_t ek__utf8_length(const char *text) {
  const unsigned char *bytes = (const unsigned char *)text, first = bytes[0];
  if (first < 0x80) return first == '\0' ? 0 : 1;
  const size_t length = first >= 0xc2 && first <= 0xdf   ? 2
                        : first >= 0xe0 && first <= 0xef ? 3
                        : first >= 0xf0 && first <= 0xf4 ? 4
                                                         : 0;
  const unsigned char least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned char most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  if (length == 0 || bytes[1] < least || bytes[1] > most) return 0;
  for (size_t i = 2; i < length; i++) {
    if (bytes[i] < 0x80 || bytes[i] > 0xbf) return 0;
  }
  return length;
}

bool ek__utf8_is(const char *text) {
  for (size_t length; (length = ek__utf8_length(text)) > 0;) text += length;
  return *text == '\0';
}
