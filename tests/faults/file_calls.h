/*
 * file_calls.h - the calls that a program makes of the system's files, counted, one of them
 * refused, or the process killed in front of it. file_calls.c stands in front of the C library.
 */
#ifndef FILE_CALLS_H
#define FILE_CALLS_H

enum file_fault {
  FILE_NONE = 0,
  FILE_EIO,
  FILE_ENOSPC,
  FILE_KILL,
  FILE_EINVAL,
  FILE_EINTR,
  FILE_SHORT, /* a read or a write does half of its bytes */
  FILE_FLIP,  /* a write changes a bit, and says that all is well */
  FILE_GONE,  /* what is opened is not there */
  FILE_FAULTS
};
extern const char *const file_fault_names[FILE_FAULTS];

/* From now on calls are counted, and number `n` meets the fault. */
void file_calls_begin(enum file_fault fault, int n);
/* Stops counting; how many there were. */
int file_calls_end(void);
/* What was called, one letter a call: (o)pen, (w)rite, (s)ync of a file, (f)older's sync, (r)ename,
 * (c)lose, (u)nlink, (m)kdir, (l)ist, the next (e)ntry, stat (t), room for a file (a), read (p). */
const char *file_calls_sequence(void);

#endif /* FILE_CALLS_H */
