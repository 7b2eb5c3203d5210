/*
 * net_calls.h - the calls that a program makes of the system's sockets, counted, and one of them
 * refused or cut short. net_calls.c stands in front of the C library.
 */
#ifndef NET_CALLS_H
#define NET_CALLS_H

enum net_fault {
  NET_NONE,
  NET_RESET,  /* ECONNRESET */
  NET_MEMORY, /* ENOMEM */
  NET_INTR,   /* EINTR */
  NET_AGAIN,  /* EAGAIN */
  NET_SHORT,  /* one byte is sent or received; calls that move no bytes are left alone */
  NET_FAULTS
};

/* From now on calls are counted, and number `n` meets the fault; with `n`
 * negative, each call does from number -n on. */
void net_calls_begin(enum net_fault fault, int n);
/* Stops counting; how many there were. */
int net_calls_end(void);

#endif /* NET_CALLS_H */
