/*
 * status.h - how every function of evenkeel reports an error.
 *
 * A function that can fail returns an ek_status. When it is not EK_OK, a message for people is kept
 * for the calling thread; ek_error_message() returns it until the next failure on that thread. The
 * message is written once, where the failure is seen, and is forwarded untouched by everything
 * above; a failure in a device's worker thread reaches the caller with the worker's own message.
 *
 *     ek_group *group = NULL;
 *     ek_status status = ek_group_open(&group, "cpu:4", NULL);
 *     if (status != EK_OK) {
 *       fprintf(stderr, "%s: %s\n", ek_status_name(status), ek_error_message());
 *       return 1;
 *     }
 *
 * Arguments have one order: results first (what the function writes through a pointer; on failure
 * it is left as it was), then the object that the function belongs to, then inputs, then numbers
 * and choices, then a callback and its context, and options last. What belongs to one argument
 * follows it: a count its array, the capacity of an array of results that count, a flag its matrix;
 * a shape is `rank, shape`. An argument that a function changes in place stands where an input
 * would.
 *
 * Two families begin otherwise. Operations (ek_op_...) begin with the stream on which they run. An
 * operation with more than eight arguments takes them in a struct, ek_..._args, whose members are
 * named; a member that is left out is 0 or NULL. Functions that a program writes for the library,
 * such as those of ek_module_ops, begin with the object or the context for which they are called,
 * then have inputs, and results last.
 *
 * Every ek_..._free() returns nothing and takes NULL. Where freeing may be refused, or finishes
 * work that may fail, a second function, ek_..._close() or ek_..._end(), does the same and returns
 * the status. The free is for clean-up: it sends the error to the log callback as a warning, and
 * leaves ek_error_message() as it was.
 *
 * Verbs: _open makes what holds devices, files or threads, and _create makes descriptions and
 * memory. _begin starts work that goes on after the call, and _end waits for it. Recorders _start
 * and _stop. _share takes another reference, and the last _free of an object frees it.
 *
 * Options, and the tables of functions of a module, criterion, optimizer or source of your own, are
 * structs whose first member is their `size`; EK_..._INIT (or sizeof) sets it. One rule holds for
 * all of them. A smaller size is that of an older program, whose struct ended there: members that
 * it lacks take their defaults. EK_ERR_INVALID_ARGUMENT for a size that is larger than the
 * library's own struct, or smaller than the member `size` itself (0: the struct was not
 * initialised).
 *
 * EK_..._INIT names every member, in order. That is C11 and C++20; g++ and clang++ accept it in
 * older C++ as an extension. Other languages, and other compilers of C++, call the function beside
 * each macro, such as ek_group_options_init(&options, sizeof options). It writes the same values
 * into a struct of `size` bytes, and returns EK_ERR_INVALID_ARGUMENT for NULL or a wrong size.
 *
 * Structs without a `size` are frozen: results that a call fills (ek_step_result, ek_memory_usage,
 * ...), small parts of options (ek_schedule, ek_loss_scale, ek_recompute, ...), and arguments of
 * operations. Their members, sizes and offsets stay the same within a major version of the library,
 * and so do the lengths of their arrays. Later additions get a struct and a function of their own.
 *
 * The first member of a program's own module, criterion, optimizer or source is a base (ek_module,
 * ek_criterion, ek_optimizer, ek_source), which the matching ek_..._init() fills in. Its members
 * are private to the library; functions return what a program may know of them. A base is not
 * frozen: the table of functions that goes with it states its size.
 *
 * The library never prints and never exits.
 */
#ifndef EVENKEEL_STATUS_H
#define EVENKEEL_STATUS_H

#include <evenkeel/export.h>

EK_BEGIN_DECLARATIONS

/* X(name, value, text) for every status. The values are part of the ABI. */
#define EK_STATUS_LIST(X)                                                                          \
  X(EK_OK, 0, "no error")                                                                          \
  X(EK_ERR_INVALID_ARGUMENT, 1, "an argument is not valid")                                        \
  X(EK_ERR_SHAPE, 2, "shapes do not fit together")                                                 \
  X(EK_ERR_TYPE, 3, "an element type is not the expected one")                                     \
  X(EK_ERR_DEVICE, 4, "a tensor is on the wrong device")                                           \
  X(EK_ERR_OVERFLOW, 5, "a size does not fit in 63 bits")                                          \
  X(EK_ERR_OUT_OF_MEMORY, 6, "a device or the host is out of memory")                              \
  X(EK_ERR_STATE, 7, "calls came in an order that makes no sense")                                 \
  X(EK_ERR_NOT_FOUND, 8, "no such name or file")                                                   \
  X(EK_ERR_UNAVAILABLE, 9, "the backend cannot be used on this machine")                           \
  X(EK_ERR_UNSUPPORTED, 10, "the operation is not available for this type or backend")             \
  X(EK_ERR_IO, 11, "the operating system refused to read or write")                                \
  X(EK_ERR_ABORTED, 12, "abandoned because another device failed")                                 \
  X(EK_ERR_INTERNAL, 13, "evenkeel broke a rule of its own")                                       \
  X(EK_ERR_TORN, 14,                                                                               \
    "an update failed halfway: the model must be opened again, or all of its state set")           \
  X(EK_ERR_NOT_FINITE, 15, "the loss or a gradient is NaN or infinite")                            \
  X(EK_ERR_OVERRUN, 16, "memory beside a tensor was overwritten")                                  \
  X(EK_ERR_MISMATCH, 17, "two results that must agree do not")                                    \
  X(EK_ERR_CORRUPT, 18, "a file is damaged, or is not what it should be")

typedef enum ek_status {
#define EK_STATUS_ENUM(name, value, text) name = value,
  EK_STATUS_LIST(EK_STATUS_ENUM)
#undef EK_STATUS_ENUM
} ek_status;

/* The identifier of a status ("EK_ERR_SHAPE"); "EK_ERR_UNKNOWN" for a value outside the list. */
EK_API const char *ek_status_name(ek_status status);

/* One line of English for a status; never NULL. */
EK_API const char *ek_status_text(ek_status status);

/*
 * The message of the last failure on this thread, "" if there was none. The pointer stays valid for
 * the life of the thread; its text is replaced by the next failure.
 */
EK_API const char *ek_error_message(void);

/* Forgets the message of this thread. */
EK_API void ek_error_clear(void);

/*
 * Sets this thread's message and returns `status`, so that a module of yours can write
 *
 *     return ek_error_set(EK_ERR_SHAPE, "mixer: expected %d columns", columns);
 *
 * A message longer than 4095 bytes is cut. `format` NULL gives the text of the status.
 */
EK_API ek_status ek_error_set(ek_status status, const char *format, ...) EK_PRINTF(2, 3);

/* Evaluates a call once and returns its status from the enclosing function if it failed. */
#define EK_TRY(expression)                                                                         \
  do {                                                                                             \
    const ek_status ek_try_status_ = (expression);                                                 \
    if (ek_try_status_ != EK_OK) return ek_try_status_;                                            \
  } while (0)

/* Evaluates a call once, stores its status, and jumps to `label` if it failed. */
#define EK_TRY_GOTO(status, expression, label)                                                     \
  do {                                                                                             \
    (status) = (expression);                                                                       \
    if ((status) != EK_OK) goto label;                                                             \
  } while (0)

EK_END_DECLARATIONS

#endif /* EVENKEEL_STATUS_H */
