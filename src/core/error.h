/*
 * error.h - the size of a message, for those who carry one from one thread to another, and how many
 * there were.
 */
#ifndef EK_ERROR_H
#define EK_ERROR_H

#include <stdint.h>

#define EK__MESSAGE_SIZE 4096

/* How often this thread has called ek_error_set(): whoever compares sees whether there is a new
 * message. */
uint64_t ek__error_number(void);

#endif /* EK_ERROR_H */
