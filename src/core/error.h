/*
 * error.h - messages from the inside: guards, the size of a message, for code that carries it from
 * one thread to another, the message of a program's function that failed, and the message for
 * arguments that are NULL.
 */
#ifndef EK_ERROR_H
#define EK_ERROR_H

#include <stddef.h>
#include <stdint.h>

#include <evenkeel/status.h>

#define EK__MESSAGE_SIZE 4096

/* How often this thread has called ek_error_set(): a changed number means a new message. */
uint64_t ek__error_number(void);

/* A function that failed with `status` may have left no message, or the thread may have that of an
 * older failure. Returns the message left since the thread's number was `before`, or the text of
 * the status. */
const char *ek__error_words(ek_status status, uint64_t before);

/* Puts `kind` before these words, unless they begin with it. */
void ek__error_name(const char *kind, ek_status status, uint64_t before);

/*
 * For a free, which returns nothing: the error of the function that returns a status goes to the
 * log, and the thread's last error stays unchanged.
 */
void ek__error_keep(char kept[EK__MESSAGE_SIZE]);
void ek__error_restore(const char kept[EK__MESSAGE_SIZE], ek_status freed);

/*
 * A guard: returns from the enclosing function with a status and its message if `condition` holds.
 * The arguments after it are those of ek_error_set() and are evaluated only then.
 */
#define EK__FAIL_IF(condition, ...)                                                                \
  do {                                                                                             \
    if (condition) return ek_error_set(__VA_ARGS__);                                               \
  } while (0)

/*
 * Returns EK_ERR_INVALID_ARGUMENT from the enclosing function if one of these pointers is NULL:
 * EK__NOT_NULL("ek_x", group, spec) says "ek_x: spec is NULL".
 */
#define EK__NOT_NULL(who, ...)                                                                     \
  do {                                                                                             \
    const void *const ek_given_[] = {__VA_ARGS__};                                                 \
    for (size_t ek_i_ = 0; ek_i_ < sizeof ek_given_ / sizeof *ek_given_; ek_i_++) {                \
      if (ek_given_[ek_i_] == NULL) return ek__null_error(who, #__VA_ARGS__, ek_i_);               \
    }                                                                                              \
  } while (0)

/* EK_ERR_INVALID_ARGUMENT: number `index` of these names, separated by ", ", is NULL. */
ek_status ek__null_error(const char *who, const char *names, size_t index);

#endif /* EK_ERROR_H */
