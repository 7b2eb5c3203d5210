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
#define NEXT(name, type, ...)                                                                      \
  static _Atomic(type (*)(__VA_ARGS__)) found;                                                     \
  type (*next)(__VA_ARGS__) = atomic_load(&found);                                                 \
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
  NEXT(sendmsg, ssize_t, int, const struct msghdr *, int)
  struct iovec byte;
  const int what = fate();
  if (what < 0) return -1;
  if (what == 0) return next(socket, message, flags);
  const struct msghdr cut = first_byte(message, &byte);
  return next(socket, &cut, flags);
}

ssize_t recvmsg(int socket, struct msghdr *message, int flags) {
  NEXT(recvmsg, ssize_t, int, struct msghdr *, int)
  struct iovec byte;
  const int what = fate();
  if (what < 0) return -1;
  if (what == 0) return next(socket, message, flags);
  struct msghdr cut = first_byte(message, &byte);
  return next(socket, &cut, flags);
}

ssize_t send(int socket, const void *bytes, size_t count, int flags) {
  NEXT(send, ssize_t, int, const void *, size_t, int)
  const int what = fate();
  return what < 0 ? -1 : next(socket, bytes, what == 0 || count == 0 ? count : 1, flags);
}

ssize_t recv(int socket, void *bytes, size_t count, int flags) {
  NEXT(recv, ssize_t, int, void *, size_t, int)
  const int what = fate();
  return what < 0 ? -1 : next(socket, bytes, what == 0 || count == 0 ? count : 1, flags);
}

int poll(struct pollfd *sockets, nfds_t count, int milliseconds) {
  NEXT(poll, int, struct pollfd *, nfds_t, int)
  return refused() ? -1 : next(sockets, count, milliseconds);
}

int setsockopt(int socket, int level, int name, const void *value, socklen_t size) {
  NEXT(setsockopt, int, int, int, int, const void *, socklen_t)
  return refused() ? -1 : next(socket, level, name, value, size);
}

int getsockopt(int socket, int level, int name, void *restrict value, socklen_t *restrict size) {
  NEXT(getsockopt, int, int, int, int, void *, socklen_t *)
  return refused() ? -1 : next(socket, level, name, value, size);
}

int ioctl(int file, unsigned long request, ...) {
  NEXT(ioctl, int, int, unsigned long, ...)
  va_list more;
  va_start(more, request);
  void *argument = va_arg(more, void *);
  va_end(more);
  return refused() ? -1 : next(file, request, argument);
}

int shutdown(int socket, int how) {
  NEXT(shutdown, int, int, int)
  return refused() ? -1 : next(socket, how);
}

int socket(int domain, int type, int protocol) {
  NEXT(socket, int, int, int, int)
  return refused() ? -1 : next(domain, type, protocol);
}

/* With _GNU_SOURCE glibc takes any kind of address, in a union of pointers. */
int bind(int socket, __CONST_SOCKADDR_ARG address, socklen_t size) {
  NEXT(bind, int, int, const struct sockaddr *, socklen_t)
  return refused() ? -1 : next(socket, address.__sockaddr__, size);
}

int listen(int socket, int backlog) {
  NEXT(listen, int, int, int)
  return refused() ? -1 : next(socket, backlog);
}

int accept4(int socket, __SOCKADDR_ARG address, socklen_t *restrict size, int flags) {
  NEXT(accept4, int, int, struct sockaddr *, socklen_t *, int)
  return refused() ? -1 : next(socket, address.__sockaddr__, size, flags);
}

int connect(int socket, __CONST_SOCKADDR_ARG address, socklen_t size) {
  NEXT(connect, int, int, const struct sockaddr *, socklen_t)
  return refused() ? -1 : next(socket, address.__sockaddr__, size);
}

int getsockname(int socket, __SOCKADDR_ARG address, socklen_t *restrict size) {
  NEXT(getsockname, int, int, struct sockaddr *, socklen_t *)
  return refused() ? -1 : next(socket, address.__sockaddr__, size);
}

int getifaddrs(struct ifaddrs **list) {
  NEXT(getifaddrs, int, struct ifaddrs **)
  return refused() ? -1 : next(list);
}

int getaddrinfo(const char *restrict host, const char *restrict service,
                const struct addrinfo *restrict hints, struct addrinfo **restrict result) {
  NEXT(getaddrinfo, int, const char *, const char *, const struct addrinfo *, struct addrinfo **)
  return refused() ? EAI_SYSTEM : next(host, service, hints, result);
}
