/*
 * error.h - the size of a message, for those who carry one from one thread to another.
 */
#ifndef EK_ERROR_H
#define EK_ERROR_H

#define EK__MESSAGE_SIZE 4096

#endif /* EK_ERROR_H */
