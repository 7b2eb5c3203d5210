/*
 * ck_locale.h - a locale with a decimal comma, as programs in much of Europe have it.
 */
#ifndef CK_LOCALE_H
#define CK_LOCALE_H

#include <stdbool.h>

/* Makes one in a folder of its own (localedef, which takes no other package) and lets the process
 * use it. False, and said, where it cannot be made. */
bool ck_locale_comma(void);
/* Back to "C", and the folder goes. */
void ck_locale_end(void);

#endif /* CK_LOCALE_H */
