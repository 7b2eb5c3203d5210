/*
 * ledger.h - formats the ledger: tables as text.
 */
#ifndef EK_LEDGER_H
#define EK_LEDGER_H

#include <evenkeel/memory.h>

/* "parameters 1.0 MiB, outputs 2.0 GiB"; "nothing" if all are 0. Cut if it does not fit. */
void ek__ledger_describe(char *buffer, size_t size, const uint64_t bytes[EK_MEMORY_CATEGORIES]);

#endif /* EK_LEDGER_H */
