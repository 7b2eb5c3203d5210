/*
 * ck_locale.c - see ck_locale.h.
 */
#include "ck_locale.h"

#include <locale.h>

#include "ek_check.h"

static char folder[] = "/tmp/evenkeel-locale-XXXXXX";

/* A command in the folder. */
static bool run(const char *what) {
  char command[512];
  (void)snprintf(command, sizeof command, "cd %s && %s", folder, what);
  return system(command) == 0;
}

bool ck_locale_comma(void) {
  (void)snprintf(folder, sizeof folder, "/tmp/evenkeel-locale-XXXXXX");
  ck_assert_ptr_nonnull(mkdtemp(folder));
  /* Only numbers are defined: localedef warns of the rest, and -c writes it all the same. */
  (void)run("printf 'LC_NUMERIC\\ndecimal_point \",\"\\nthousands_sep \"\"\\ngrouping -1\\n"
            "END LC_NUMERIC\\n' >source; localedef -c -i source ./comma >/dev/null 2>&1");
  if (setenv("LOCPATH", folder, 1) == 0 && setlocale(LC_NUMERIC, "comma") != NULL) {
    char text[8];
    (void)snprintf(text, sizeof text, "%.1f", 0.5);
    ck_assert_str_eq(text, "0,5");
    return true;
  }
  printf("skipped: localedef makes no locale here\n");
  ck_locale_end();
  return false;
}

void ck_locale_end(void) {
  (void)setlocale(LC_NUMERIC, "C");
  (void)unsetenv("LOCPATH");
  ck_assert(run("rm -r \"$PWD\""));
}
