/*
 * log_internal.h - says a line to the program's log callback, if there is one.
 */
#ifndef EK_LOG_INTERNAL_H
#define EK_LOG_INTERNAL_H

#include <evenkeel/log.h>

void ek__log(ek_log_level level, const char *format, ...) EK_PRINTF(2, 3);

#endif /* EK_LOG_INTERNAL_H */
