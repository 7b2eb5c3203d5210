/*
 * log.h - the library's log.
 *
 * Without a callback nothing is logged. The callback may be called from any of the library's
 * threads, one call at a time; it must not call back into evenkeel. `line` has no newline and is
 * valid during the call only.
 */
#ifndef EVENKEEL_LOG_H
#define EVENKEEL_LOG_H

#include <evenkeel/export.h>

EK_BEGIN_DECLARATIONS

typedef enum ek_log_level { EK_LOG_DEBUG = 0, EK_LOG_INFO = 1, EK_LOG_WARNING = 2 } ek_log_level;

typedef void (*ek_log_callback)(void *context, ek_log_level level, const char *line);

/*
 * Sends lines of level `least` and above to `callback`, for the whole process; NULL stops them.
 * When it returns, the previous callback is not running and is not called again.
 */
EK_API void ek_log_set(ek_log_level least, ek_log_callback callback, void *context);

EK_END_DECLARATIONS

#endif /* EVENKEEL_LOG_H */
