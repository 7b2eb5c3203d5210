/*
 * address.c - addresses of processes, for IPv4 and IPv6 alike.
 */
#define _GNU_SOURCE /* SOCK_CLOEXEC, getifaddrs() beside C11 */
#include "world/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "core/error.h"

union address {
  struct sockaddr any;
  struct sockaddr_in four;
  struct sockaddr_in6 six;
  struct sockaddr_storage room;
};

double ek__clock(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* ---- places as the system has them ---- */

static socklen_t address_of(union address *address, const struct ek__place *place) {
  memset(address, 0, sizeof *address);
  if (place->family == 4) {
    address->four.sin_family = AF_INET;
    address->four.sin_port = htons(place->port);
    memcpy(&address->four.sin_addr, place->address, 4);
    return sizeof address->four;
  }
  address->six.sin6_family = AF_INET6;
  address->six.sin6_port = htons(place->port);
  address->six.sin6_scope_id = place->scope;
  memcpy(&address->six.sin6_addr, place->address, 16);
  return sizeof address->six;
}

/* False for an address of another family. IPv4 within IPv6 is IPv4. */
static bool place_of(struct ek__place *place, const struct sockaddr *address) {
  union address at;
  *place = (struct ek__place){.family = 0};
  if (address == NULL) return false;
  if (address->sa_family == AF_INET) {
    memcpy(&at.four, address, sizeof at.four);
    place->family = 4;
    place->port = ntohs(at.four.sin_port);
    memcpy(place->address, &at.four.sin_addr, 4);
    return true;
  }
  if (address->sa_family != AF_INET6) return false;
  memcpy(&at.six, address, sizeof at.six);
  const bool mapped = IN6_IS_ADDR_V4MAPPED(&at.six.sin6_addr);
  place->family = mapped ? 4 : 6;
  place->port = ntohs(at.six.sin6_port);
  place->scope = mapped ? 0 : at.six.sin6_scope_id;
  memcpy(place->address, (const char *)&at.six.sin6_addr + (mapped ? 12 : 0), mapped ? 4 : 16);
  return true;
}

const char *ek__place_text(char text[EK__PLACE_TEXT], const struct ek__place *place) {
  char words[INET6_ADDRSTRLEN] = "?";
  if (place->family == 0) {
    (void)snprintf(text, EK__PLACE_TEXT, "any address, port %u", place->port);
    return text;
  }
  (void)inet_ntop(place->family == 4 ? AF_INET : AF_INET6, place->address, words, sizeof words);
  (void)snprintf(text, EK__PLACE_TEXT, place->family == 4 ? "%s:%u" : "[%s]:%u", words,
                 place->port);
  return text;
}

bool ek__place_is_loopback(const struct ek__place *place) {
  static const unsigned char six[16] = {[15] = 1};
  return place->family == 4   ? place->address[0] == 127
         : place->family == 6 ? memcmp(place->address, six, sizeof six) == 0
                              : false;
}

bool ek__place_of_socket(struct ek__place *place, int socket) {
  union address address;
  socklen_t size = sizeof address;
  memset(&address, 0, sizeof address);
  if (getsockname(socket, &address.any, &size) != 0) return false;
  const bool known = place_of(place, &address.any);
  place->port = 0;
  return known;
}

/* ---- finding ---- */

static void append(struct ek__places *places, const struct ek__place *place) {
  if (places->count < EK__PLACES) places->places[places->count++] = *place;
}

ek_status ek__places_find(struct ek__places *places, const char *host, uint16_t port) {
  const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
  struct addrinfo *found = NULL;
  const int error = getaddrinfo(host, NULL, &hints, &found);
  EK__FAIL_IF(error != 0, EK_ERR_NOT_FOUND, "world: the address of \"%s\" is not known: %s", host,
              error == EAI_SYSTEM ? strerror(errno) : gai_strerror(error));
  for (const struct addrinfo *at = found; at != NULL; at = at->ai_next) {
    struct ek__place place;
    if (!place_of(&place, at->ai_addr)) continue;
    place.port = port;
    append(places, &place);
  }
  freeaddrinfo(found);
  return EK_OK;
}

bool ek__first_host(char *host, size_t size, const char *list) {
  size_t used = 0;
  bool inside = false, skips = false; /* in brackets, and there after the first number */
  for (; *list != '\0' && (inside || *list != ','); list++) {
    if (*list == '[' || *list == ']') {
      if (inside == (*list == '[')) return false;
      inside = *list == '[';
      skips = false;
    } else if (inside && (*list == '-' || *list == ',')) {
      skips = true;
    } else if (!skips) {
      if (used + 1 >= size) return false;
      host[used++] = *list;
    }
  }
  if (used == 0 || inside) return false;
  host[used] = '\0';
  return true;
}

ek_status ek__places_own(struct ek__places *places, uint16_t port) {
  struct ifaddrs *list = NULL;
  EK__FAIL_IF(getifaddrs(&list) != 0, EK_ERR_UNAVAILABLE, "world: getifaddrs: %s", strerror(errno));
  for (int loopback = 0; loopback < 2; loopback++) {
    for (const struct ifaddrs *at = list; at != NULL; at = at->ifa_next) {
      struct ek__place place;
      const bool is_loopback = (at->ifa_flags & IFF_LOOPBACK) != 0;
      if ((at->ifa_flags & IFF_UP) == 0 || is_loopback != loopback) continue;
      /* A link-local address means something else on another machine. */
      if (!place_of(&place, at->ifa_addr) || place.scope != 0) continue;
      place.port = port;
      append(places, &place);
    }
  }
  freeifaddrs(list);
  return EK_OK;
}

static void prefer(struct ek__place *best, const struct ek__place *place, uint16_t family) {
  if (best->family == 0 || (best->family != family && place->family == family)) *best = *place;
}

ek_status ek__place_own(struct ek__place *place, const char *text, uint16_t family) {
  struct ifaddrs *list = NULL;
  struct ek__places named = {.count = 0};
  *place = (struct ek__place){.family = 0};
  EK__FAIL_IF(getifaddrs(&list) != 0, EK_ERR_UNAVAILABLE, "world: getifaddrs: %s", strerror(errno));
  for (const struct ifaddrs *at = list; at != NULL; at = at->ifa_next) {
    struct ek__place found;
    if (strcmp(at->ifa_name, text) == 0 && place_of(&found, at->ifa_addr)) {
      prefer(place, &found, family);
    }
  }
  freeifaddrs(list);
  if (place->family != 0) return EK_OK;
  EK__FAIL_IF(ek__places_find(&named, text, 0) != EK_OK, EK_ERR_INVALID_ARGUMENT,
              "world: the address \"%s\" is not a network interface of this machine, a name or an "
              "address",
              text);
  for (size_t i = 0; i < named.count; i++) prefer(place, &named.places[i], family);
  EK__FAIL_IF(place->family == 0, EK_ERR_INVALID_ARGUMENT,
              "world: \"%s\" has no IPv4 or IPv6 address", text);
  return EK_OK;
}

/* ---- sockets ---- */

static ek_status refused(int socket, const char *call, const struct ek__place *place) {
  char text[EK__PLACE_TEXT];
  const int error = errno;
  if (socket >= 0) (void)close(socket);
  errno = error;
  return ek_error_set(EK_ERR_UNAVAILABLE, "world: cannot listen at %s: %s: %s",
                      ek__place_text(text, place), call, strerror(error));
}

ek_status ek__listen(int *made, struct ek__place *place) {
  static const int yes = 1, no = 0;
  union address address;
  socklen_t size = address_of(&address, place); /* of no family: every address of IPv6 */
  const int type = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
  int listener = socket(address.any.sa_family, type, 0);
  if (listener < 0 && place->family == 0 && errno == EAFNOSUPPORT) { /* no IPv6 here */
    memset(&address, 0, sizeof address);
    address.four.sin_family = AF_INET;
    address.four.sin_port = htons(place->port);
    size = sizeof address.four;
    listener = socket(AF_INET, type, 0);
  }
  if (listener < 0) return refused(listener, "socket", place);
  (void)setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (place->family == 0 && address.any.sa_family == AF_INET6) {
    (void)setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
  }
  if (bind(listener, &address.any, size) != 0) return refused(listener, "bind", place);
  if (listen(listener, SOMAXCONN) != 0) return refused(listener, "listen", place);
  struct ek__place bound;
  size = sizeof address;
  if (getsockname(listener, &address.any, &size) != 0 || !place_of(&bound, &address.any)) {
    return refused(listener, "getsockname", place);
  }
  place->port = bound.port;
  *made = listener;
  return EK_OK;
}

/* Waits until a connection is made; 0 or the number of an error. */
static int wait_for_connection(int made, double deadline) {
  for (;;) {
    struct pollfd wait = {.fd = made, .events = POLLOUT};
    const double left = deadline - ek__clock();
    int error = 0;
    socklen_t size = sizeof error;
    const int ready = poll(&wait, 1, left > 60 ? 60000 : left < 0 ? 0 : (int)(left * 1e3) + 1);
    if (ready < 0 && errno != EINTR) return errno;
    if (ready <= 0 && left < 0) return ETIMEDOUT;
    if (ready <= 0) continue;
    return getsockopt(made, SOL_SOCKET, SO_ERROR, &error, &size) != 0 ? errno : error;
  }
}

int ek__connect(const struct ek__place *place, double deadline, const char **why) {
  union address address;
  const socklen_t size = address_of(&address, place);
  const int made = socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  int error = 0;
  if (made < 0) error = errno;
  if (error == 0 && connect(made, &address.any, size) != 0) {
    error = errno == EINPROGRESS || errno == EINTR ? wait_for_connection(made, deadline) : errno;
  }
  if (error == 0) return made;
  if (made >= 0) (void)close(made);
  *why = strerror(error);
  return -1;
}
