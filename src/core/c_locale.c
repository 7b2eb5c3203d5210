/*
 * c_locale.c - see c_locale.h. The locale object is made once and kept; the C library has that of
 * "C" ready, so making it takes no memory.
 */
#include "core/c_locale.h"

#include <pthread.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static locale_t c_locale;

static void make(void) { c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0); }

locale_t ek__c_locale_begin(void) {
  (void)pthread_once(&once, make);
  return uselocale(c_locale);
}

void ek__c_locale_end(locale_t before) { (void)uselocale(before); }
