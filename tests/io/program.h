/*
 * program.h - for the programs that scripts of this folder run.
 */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <stdio.h>
#include <stdlib.h>

#include <evenkeel/evenkeel.h>

/* What fails says why and ends the program; with 77, which skips the test, where the library was
 * built without files. */
#define OK(call)                                                                                   \
  do {                                                                                             \
    const ek_status status_ = (call);                                                              \
    if (status_ != EK_OK) {                                                                        \
      fprintf(stderr, "%s: %s: %s\n", #call, ek_status_name(status_), ek_error_message());         \
      _Exit(status_ == EK_ERR_UNSUPPORTED ? 77 : 1);                                               \
    }                                                                                              \
  } while (0)
#define REQUIRE(condition) OK((condition) ? EK_OK : ek_error_set(EK_ERR_IO, "is not so"))

/* All of the array, out of a file or into one. */
static inline void move(FILE *file, bool in, void *data, size_t bytes) {
  REQUIRE((in ? fread(data, 1, bytes, file) : fwrite(data, 1, bytes, file)) == bytes);
}

#endif /* PROGRAM_H */
