/*
 * net_calls.c - sendmsg() and others, counted: see net_calls.h.
 */
#define _GNU_SOURCE /* RTLD_NEXT, accept4() */
#include "net_calls.h"

#include <dlfcn.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_int counting, calls;
static enum net_fault wanted;
static int at;

void net_calls_begin(enum net_fault fault, int n) {
  wanted = fault;
  at = n;
  atomic_store(&calls, 0);
  atomic_store(&counting, 1);
}

int net_calls_end(void) {
  atomic_store(&counting, 0);
  return atomic_load(&calls);
}

/* Counts a call; whether it meets the fault. */
static int met(void) {
  if (!atomic_load(&counting)) return 0;
  const int number = atomic_fetch_add(&calls, 1) + 1;
  return wanted != NET_NONE && (at < 0 ? number >= -at : number == at);
}

/* The same of a call that cannot be cut short; sets errno. */
static int refused(void) {
  static const int errors[NET_FAULTS] = {
      [NET_RESET] = ECONNRESET, [NET_MEMORY] = ENOMEM, [NET_INTR] = EINTR, [NET_AGAIN] = EAGAIN};
  if (!met() || wanted == NET_SHORT) return 0;
  errno = errors[wanted];
  return 1;
}

/* The C library's own function of this name; threads may look for it at once. */
#define NEXT(name)                                                                                 \
  static _Atomic(__typeof__(&name)) found;                                                         \
  __typeof__(&name) next = atomic_load(&found);                                                    \
  if (next == NULL) {                                                                              \
    *(void **)(void *)&next = dlsym(RTLD_NEXT, #name);                                             \
    atomic_store(&found, next);                                                                    \
  }

/* A message with the first byte of another one. */
static struct msghdr first_byte(const struct msghdr *message, struct iovec *byte) {
  struct msghdr copy = *message;
  *byte = message->msg_iov[0].iov_len > 0 ? message->msg_iov[0] : message->msg_iov[1];
  if (byte->iov_len > 1) byte->iov_len = 1;
  copy.msg_iov = byte;
  copy.msg_iovlen = 1;
  return copy;
}

/* Of a message: -1 refused, 1 cut short, 0 neither. */
static int fate(void) {
  if (wanted != NET_SHORT) return refused() ? -1 : 0;
  return met();
}

ssize_t sendmsg(int socket, const struct msghdr *message, int flags) {
  NEXT(sendmsg)
  struct iovec byte;
  const int what = fate();
  if (what < 0) return -1;
  if (what == 0) return next(socket, message, flags);
  const struct msghdr cut = first_byte(message, &byte);
  return next(socket, &cut, flags);
}

ssize_t recvmsg(int socket, struct msghdr *message, int flags) {
  NEXT(recvmsg)
  struct iovec byte;
  const int what = fate();
  if (what < 0) return -1;
  if (what == 0) return next(socket, message, flags);
  struct msghdr cut = first_byte(message, &byte);
  return next(socket, &cut, flags);
}

ssize_t send(int socket, const void *bytes, size_t count, int flags) {
  NEXT(send)
  const int what = fate();
  return what < 0 ? -1 : next(socket, bytes, what == 0 || count == 0 ? count : 1, flags);
}

ssize_t recv(int socket, void *bytes, size_t count, int flags) {
  NEXT(recv)
  const int what = fate();
  return what < 0 ? -1 : next(socket, bytes, what == 0 || count == 0 ? count : 1, flags);
}

/* A whole function: the next one's, unless it is refused. */
#define CALL(name, parameters, arguments)                                                          \
  int name parameters {                                                                            \
    NEXT(name)                                                                                     \
    return refused() ? -1 : next arguments;                                                        \
  }

CALL(poll, (struct pollfd * sockets, nfds_t count, int milliseconds),
     (sockets, count, milliseconds))
CALL(setsockopt, (int socket, int level, int option, const void *value, socklen_t size),
     (socket, level, option, value, size))
CALL(getsockopt,
     (int socket, int level, int option, void *restrict value, socklen_t *restrict size),
     (socket, level, option, value, size))

int ioctl(int file, unsigned long request, ...) {
  NEXT(ioctl)
  va_list more;
  va_start(more, request);
  void *argument = va_arg(more, void *);
  va_end(more);
  return refused() ? -1 : next(file, request, argument);
}

CALL(shutdown, (int socket, int how), (socket, how))
CALL(socket, (int domain, int type, int protocol), (domain, type, protocol))

CALL(bind, (int socket, __CONST_SOCKADDR_ARG address, socklen_t size), (socket, address, size))
CALL(listen, (int socket, int backlog), (socket, backlog))
CALL(accept4, (int socket, __SOCKADDR_ARG address, socklen_t *restrict size, int flags),
     (socket, address, size, flags))
CALL(connect, (int socket, __CONST_SOCKADDR_ARG address, socklen_t size), (socket, address, size))
CALL(getsockname, (int socket, __SOCKADDR_ARG address, socklen_t *restrict size),
     (socket, address, size))
CALL(getifaddrs, (struct ifaddrs * *list), (list))

int getaddrinfo(const char *restrict host, const char *restrict service,
                const struct addrinfo *restrict hints, struct addrinfo **restrict result) {
  NEXT(getaddrinfo)
  return refused() ? EAI_SYSTEM : next(host, service, hints, result);
}
