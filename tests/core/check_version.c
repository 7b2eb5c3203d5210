/*
 * check_version.c - the library at run time says which version it is.
 */
#include "ek_check.h"

/* The tests are built with the library, so the two versions are one. */
CK_TEST(library_and_headers_agree) {
  ck_assert_int_eq(ek_version(), EK_VERSION);
  ck_assert_str_eq(ek_version_string(), EK_VERSION_STRING);
}

CK_TEST(string_and_number_agree) {
  char text[32];
  const int version = ek_version();
  snprintf(text, sizeof text, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
  ck_assert_str_eq(ek_version_string(), text);
  ck_assert_int_lt(EK_VERSION_NUMBER(0, 1, 99), EK_VERSION_NUMBER(0, 2, 0));
  ck_assert_int_lt(EK_VERSION_NUMBER(0, 99, 99), EK_VERSION_NUMBER(1, 0, 0));
}

CK_SUITE("version")
