/*
 * c_locale.h - numbers in files look the same whatever locale the program has chosen.
 *
 * printf() and scanf() take the decimal point from the thread's locale. Code that formats or reads
 * floating numbers of a file therefore stands between these two calls. Only the calling thread is
 * concerned, and nothing is allocated.
 */
#ifndef EK_C_LOCALE_H
#define EK_C_LOCALE_H

#include <locale.h>

/* The thread formats as in the locale "C" from now on. Returns what ek__c_locale_end() needs. */
locale_t ek__c_locale_begin(void);
void ek__c_locale_end(locale_t before);

#endif /* EK_C_LOCALE_H */
