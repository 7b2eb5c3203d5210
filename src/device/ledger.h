/*
 * ledger.h - the ledger's words: sizes and tables as text.
 */
#ifndef EK_LEDGER_H
#define EK_LEDGER_H

#include <evenkeel/memory.h>

/* "1.50 GiB"; returns `buffer`. */
const char *ek__ledger_size(char *buffer, size_t size, uint64_t bytes);

/* "parameters 1.0 MiB, outputs 2.0 GiB"; "nothing" if all are 0. Cut if it does not fit. */
void ek__ledger_describe(char *buffer, size_t size, const uint64_t bytes[EK_MEMORY_CATEGORIES]);

#endif /* EK_LEDGER_H */
