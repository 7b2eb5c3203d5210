/*
 * error.h - messages from the inside: the size of one, for those who carry it from one thread to
 * another, and what a function of a program's own has said when it failed.
 */
#ifndef EK_ERROR_H
#define EK_ERROR_H

#include <stdint.h>

#include <evenkeel/status.h>

#define EK__MESSAGE_SIZE 4096

/* How often this thread has called ek_error_set(): whoever compares sees whether there is a new
 * message. */
uint64_t ek__error_number(void);

/* A function that failed with `status` may have left no message, or an older failure's. Gives the
 * one it has left since the thread's number was `before`, or the status's text. */
const char *ek__error_words(ek_status status, uint64_t before);

/* Lets these words begin with `kind`, unless they do. */
void ek__error_name(const char *kind, ek_status status, uint64_t before);

#endif /* EK_ERROR_H */
