/*
 * rendezvous.c - from the place of process 0 to a connection between every two processes.
 *
 * Process 0 listens. Each of the others connects to it, opens a socket that listens at the address
 * of its own end of that connection, says so in its *hello*, and is *answered* at once. When all
 * have come, process 0 sends all of them the *outcome*: the places of all. Then each process
 * connects to those with lower numbers, and is connected to by the higher ones, with the same hello
 * and answer. Each pair has a connection for each channel: a wire has one, and where the watch is a
 * second wire, the first has one more for bulk moves. Nothing listens any more at the end.
 *
 * A hello is believed if its magic, version, byte order, token and number of processes are right.
 * A connection that says something else, or nothing for HELLO_LIMIT seconds, is closed, and the
 * socket listens on. A number that is there already is refused, unless the process that has it has
 * gone. The token keeps jobs apart; it does not protect against someone who can read the network.
 */
#define _GNU_SOURCE /* POLLRDHUP, accept4() */
#include "world/rendezvous.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "world/mesh.h"

enum { BULK = EK__WIRES, CHANNELS, GUESTS = 64, VERSION = 2, ORDER = 0x01020304 };
#define HELLO_LIMIT 5.0   /* seconds until a hello or an answer has come */
#define CONNECT_LIMIT 5.0 /* for one attempt */
#define GRACE 5.0         /* that process 0 gets to say who has not come */

static const char hello_magic[8] = "ekhello", answer_magic[8] = "ekanswr";

struct hello {
  char magic[8];
  uint32_t order, version;
  uint64_t process, processes;
  uint64_t channel;
  unsigned char token[EK__TOKEN];
  struct ek__place place; /* where its sender listens */
};

enum verdict {
  WELCOME = 1,
  OTHER_ORDER,
  OTHER_VERSION,
  OTHER_TOKEN,
  OTHER_COUNT,
  NO_NUMBER,
  TAKEN
};

struct answer {
  char magic[8];
  uint32_t order, verdict;
  uint64_t processes;
};

/* Of all processes, if it is EK_OK, the places follow. */
struct outcome {
  char magic[8];
  uint32_t order, status;
  char text[1008];
};

/* A connection that has not said its hello. */
struct guest {
  int socket; /* -1: none */
  double since;
  size_t got;
  struct hello hello;
};

struct meet {
  const struct ek__meeting *meeting;
  unsigned char token[EK__TOKEN];
  double deadline;
  int listener;             /* -1: none */
  struct ek__place place;   /* where it listens */
  int *sockets[CHANNELS];   /* of each process; -1: none */
  struct ek__place *places; /* of each process */
  struct pollfd *polls;     /* 1 + GUESTS + CHANNELS * processes */
  struct guest guests[GUESTS];
};

void ek__token_make(unsigned char token[EK__TOKEN], const char *const *texts, size_t count) {
  for (size_t part = 0; part < EK__TOKEN / 8; part++) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325) + part; /* FNV-1a; texts are told apart */
    for (size_t i = 0; i < count; i++) {
      const char *at = texts[i] == NULL ? "" : texts[i];
      do {
        hash = (hash ^ (unsigned char)*at) * UINT64_C(0x100000001b3);
        hash ^= hash >> 29;
      } while (*at++ != '\0');
    }
    memcpy(token + 8 * part, &hash, 8);
  }
}

static size_t channels_of(const struct ek__meeting *meeting) {
  return meeting->wires == EK__WIRES ? CHANNELS : meeting->wires;
}

static int milliseconds_until(double deadline) {
  const double left = deadline - ek__clock();
  return left <= 0 ? 0 : left > 1 ? 1000 : (int)(left * 1e3) + 1;
}

static void close_socket(int *socket) {
  if (*socket >= 0) (void)close(*socket);
  *socket = -1;
}

static bool has_hung_up(int socket) {
  struct pollfd look = {.fd = socket, .events = POLLRDHUP};
  return poll(&look, 1, 0) > 0 && (look.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

/* Both wait until the deadline at most; false, with errno, where the connection ends. */
static bool send_all(int socket, const void *bytes, size_t count, double deadline) {
  for (size_t done = 0; done < count;) {
    const ssize_t sent =
        send(socket, (const char *)bytes + done, count - done, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) done += (size_t)sent;
    if (sent > 0 || (sent < 0 && errno == EINTR)) continue;
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return false;
    struct pollfd wait = {.fd = socket, .events = POLLOUT};
    errno = ETIMEDOUT;
    if (ek__clock() >= deadline) return false;
    (void)poll(&wait, 1, milliseconds_until(deadline));
  }
  return true;
}

static bool receive_all(int socket, void *bytes, size_t count, double deadline) {
  for (size_t done = 0; done < count;) {
    const ssize_t got = recv(socket, (char *)bytes + done, count - done, MSG_DONTWAIT);
    if (got > 0) done += (size_t)got;
    if (got > 0 || (got < 0 && errno == EINTR)) continue;
    if (got == 0) errno = ECONNRESET;
    if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) return false;
    struct pollfd wait = {.fd = socket, .events = POLLIN};
    errno = ETIMEDOUT;
    if (ek__clock() >= deadline) return false;
    (void)poll(&wait, 1, milliseconds_until(deadline));
  }
  return true;
}

/* ---- those that come ---- */

static enum verdict judge(struct meet *self, const struct hello *hello) {
  const struct ek__meeting *meeting = self->meeting;
  unsigned char differs = 0;
  if (hello->order != ORDER) return OTHER_ORDER;
  if (hello->version != VERSION) return OTHER_VERSION;
  for (size_t i = 0; i < EK__TOKEN; i++) differs |= hello->token[i] ^ self->token[i];
  if (differs != 0) return OTHER_TOKEN;
  if (hello->processes != meeting->processes) return OTHER_COUNT;
  if (hello->process <= meeting->process || hello->process >= meeting->processes) return NO_NUMBER;
  if (hello->channel >= channels_of(meeting)) return NO_NUMBER;
  int *socket = &self->sockets[hello->channel][hello->process];
  if (*socket >= 0 && !has_hung_up(*socket)) return TAKEN;
  close_socket(socket);
  return WELCOME;
}

static void receive_hello(struct meet *self, struct guest *guest) {
  struct hello *hello = &guest->hello;
  const ssize_t got =
      recv(guest->socket, (char *)hello + guest->got, sizeof *hello - guest->got, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  if (got > 0) guest->got += (size_t)got;
  const size_t begun = guest->got < sizeof hello->magic ? guest->got : sizeof hello->magic;
  if (got <= 0 || memcmp(hello->magic, hello_magic, begun) != 0) {
    close_socket(&guest->socket);
    return;
  }
  if (guest->got < sizeof *hello) return;
  struct answer answer = {.order = ORDER, .processes = self->meeting->processes};
  memcpy(answer.magic, answer_magic, sizeof answer.magic);
  answer.verdict = judge(self, hello);
  const bool sent = send(guest->socket, &answer, sizeof answer, MSG_DONTWAIT | MSG_NOSIGNAL) ==
                    (ssize_t)sizeof answer;
  if (sent && answer.verdict == WELCOME) {
    self->sockets[hello->channel][hello->process] = guest->socket;
    if (hello->channel == 0) self->places[hello->process] = hello->place;
    guest->socket = -1;
  }
  close_socket(&guest->socket);
}

/* Takes all connections that there are. The oldest guest leaves where there is no room. */
static void accept_guests(struct meet *self) {
  for (;;) {
    struct guest *free = &self->guests[0];
    const int socket = accept4(self->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket < 0) return;
    for (size_t i = 1; i < GUESTS && free->socket >= 0; i++) {
      struct guest *guest = &self->guests[i];
      if (guest->socket < 0 || guest->since < free->since) free = guest;
    }
    close_socket(&free->socket);
    *free = (struct guest){.socket = socket, .since = ek__clock()};
  }
}

/* Waits for connections and hellos, once. `watched`: the others must stay; *left becomes one that
 * has not, if there is one. */
static void receive_guests(struct meet *self, bool watched, size_t *left) {
  const size_t processes = self->meeting->processes;
  struct pollfd *polls = self->polls, *members = polls + 1 + GUESTS;
  const size_t count = 1 + GUESTS + (watched ? CHANNELS * processes : 0);
  polls[0] = (struct pollfd){.fd = self->listener, .events = POLLIN};
  for (size_t i = 0; i < GUESTS; i++) {
    if (ek__clock() - self->guests[i].since > HELLO_LIMIT) close_socket(&self->guests[i].socket);
    polls[1 + i] = (struct pollfd){.fd = self->guests[i].socket, .events = POLLIN};
  }
  for (size_t i = 0; i < CHANNELS * processes && watched; i++) {
    const int socket = self->sockets[i / processes][i % processes];
    members[i] = (struct pollfd){.fd = socket, .events = POLLRDHUP};
  }
  if (poll(polls, count, milliseconds_until(self->deadline)) <= 0) return;
  for (size_t i = 0; i < GUESTS; i++) {
    if (polls[1 + i].revents != 0) receive_hello(self, &self->guests[i]);
  }
  if (polls[0].revents != 0) accept_guests(self);
  for (size_t i = 0; i < CHANNELS * processes && watched; i++) {
    if (members[i].revents != 0) *left = i % processes;
  }
}

static bool has_come(const struct meet *self, size_t process) {
  for (size_t c = 0; c < channels_of(self->meeting); c++) {
    if (self->sockets[c][process] < 0) return false;
  }
  return true;
}

static bool have_come(const struct meet *self) {
  for (size_t p = self->meeting->process + 1; p < self->meeting->processes; p++) {
    if (!has_come(self, p)) return false;
  }
  return true;
}

/* "2, 5 to 7" */
static void write_missing(char *text, size_t size, const struct meet *self) {
  const size_t processes = self->meeting->processes;
  size_t used = 0;
  for (size_t p = self->meeting->process + 1; p < processes && used < size; p++) {
    if (has_come(self, p)) continue;
    size_t last = p;
    while (last + 1 < processes && !has_come(self, last + 1)) last++;
    used += (size_t)snprintf(text + used, size - used, last > p + 1 ? "%s%zu to %zu" : "%s%zu",
                             used == 0 ? "" : ", ", p, last);
    if (last > p + 1) p = last;
  }
}

/* Forgets connections whose other end has gone; whether all have come and stayed. A process that
 * comes again replaces its connections one after another, so each counts for itself. */
static bool have_stayed(struct meet *self) {
  for (size_t p = 1; p < self->meeting->processes; p++) {
    for (size_t c = 0; c < channels_of(self->meeting); c++) {
      int *socket = &self->sockets[c][p];
      if (*socket >= 0 && has_hung_up(*socket)) close_socket(socket);
    }
  }
  return have_come(self);
}

static ek_status wait_for_others(struct meet *self, bool watched) {
  char missing[256] = "", text[EK__PLACE_TEXT];
  const struct ek__meeting *meeting = self->meeting;
  size_t left = meeting->processes;
  bool all = false;
  while (!all && left == meeting->processes && ek__clock() < self->deadline) {
    all = have_come(self) && (watched || have_stayed(self));
    if (!all) receive_guests(self, watched, &left);
  }
  if (all) return EK_OK;
  EK__FAIL_IF(left < meeting->processes, EK_ERR_UNAVAILABLE,
              "world: process %zu gave up while the connections were opened", left);
  write_missing(missing, sizeof missing, self);
  return ek_error_set(EK_ERR_UNAVAILABLE,
                      "world: after %g seconds these of %zu processes have not reached process "
                      "%zu at %s: %s",
                      meeting->limit, meeting->processes, meeting->process,
                      ek__place_text(text, &self->place), missing);
}

/* ---- going to others ---- */

/* EK_OK with *socket -1: not now, `why` says why. */
static ek_status say_hello(int *socket, const struct meet *self, size_t channel, char *why,
                           size_t size) {
  const struct ek__meeting *meeting = self->meeting;
  struct hello hello = {.order = ORDER,
                        .version = VERSION,
                        .process = meeting->process,
                        .processes = meeting->processes,
                        .channel = channel,
                        .place = self->place};
  struct answer answer;
  const double deadline = ek__clock() + HELLO_LIMIT;
  memcpy(hello.magic, hello_magic, sizeof hello.magic);
  memcpy(hello.token, self->token, sizeof hello.token);
  if (!send_all(*socket, &hello, sizeof hello, deadline) ||
      !receive_all(*socket, &answer, sizeof answer, deadline)) {
    (void)snprintf(why, size, "no answer: %s", strerror(errno));
    close_socket(socket);
    return EK_OK;
  }
  const bool known = memcmp(answer.magic, answer_magic, sizeof answer.magic) == 0;
  const enum verdict verdict = known ? (enum verdict)answer.verdict : 0;
  if (verdict == WELCOME) return EK_OK;
  close_socket(socket);
  if (!known || verdict == OTHER_TOKEN) {
    (void)snprintf(why, size, known ? "it belongs to another job" : "it is another program");
    return EK_OK;
  }
  EK__FAIL_IF(answer.order != ORDER, EK_ERR_UNSUPPORTED,
              "world: process %zu has another byte order", meeting->process);
  EK__FAIL_IF(verdict == OTHER_VERSION, EK_ERR_UNAVAILABLE,
              "world: process %zu has another version of evenkeel", meeting->process);
  EK__FAIL_IF(verdict == OTHER_COUNT, EK_ERR_INVALID_ARGUMENT,
              "world: process %zu was started as one of %zu, others as some of %llu",
              meeting->process, meeting->processes, (unsigned long long)answer.processes);
  return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                      "world: there is another process with the number %zu of %zu",
                      meeting->process, meeting->processes);
}

static ek_status listen_beside(struct meet *self, int socket) {
  if (self->listener >= 0) return EK_OK;
  struct ek__place place;
  EK__FAIL_IF(!ek__place_of_socket(&place, socket), EK_ERR_IO, "world: getsockname: %s",
              strerror(errno));
  if (self->meeting->address != NULL) {
    EK_TRY(ek__place_own(&self->place, self->meeting->address, place.family));
  } else {
    self->place = place;
  }
  return ek__listen(&self->listener, &self->place);
}

/* One attempt at one place. */
static ek_status try_place(int *socket, struct meet *self, const struct ek__place *place,
                           size_t channel, char *why, size_t size) {
  char text[EK__PLACE_TEXT], reason[96] = "";
  const char *refused = NULL;
  double deadline = ek__clock() + CONNECT_LIMIT;
  if (deadline > self->deadline) deadline = self->deadline;
  *socket = ek__connect(place, deadline, &refused);
  if (*socket < 0) {
    (void)snprintf(why, size, "%s: %s", ek__place_text(text, place), refused);
    return EK_OK;
  }
  ek_status status = listen_beside(self, *socket);
  if (status == EK_OK) status = say_hello(socket, self, channel, reason, sizeof reason);
  if (status != EK_OK) close_socket(socket);
  if (*socket < 0) (void)snprintf(why, size, "%s: %s", ek__place_text(text, place), reason);
  return status;
}

static void pause_before(int attempt) {
  const long milliseconds = attempt < 5 ? 10L << attempt : 300;
  const struct timespec nap = {.tv_nsec = milliseconds * 1000000};
  (void)nanosleep(&nap, NULL);
}

/* Process 0: every place that it may be at, again and again. */
static ek_status go_to_first(struct meet *self) {
  const struct ek__meeting *meeting = self->meeting;
  char why[256] = "";
  for (int attempt = 0; attempt == 0 || ek__clock() < self->deadline; attempt++) {
    struct ek__host host = {.at = {.count = 0}};
    if (attempt > 0) pause_before(attempt);
    const ek_status found = meeting->find(meeting->context, &host);
    if (found == EK_ERR_NOT_FOUND) {
      (void)snprintf(why, sizeof why, "%s", ek_error_message());
    } else {
      EK_TRY(found);
    }
    memcpy(self->token, host.token, sizeof self->token);
    for (size_t i = 0; i < host.at.count; i++) {
      bool all = true;
      for (size_t c = 0; c < channels_of(meeting) && all; c++) {
        EK_TRY(try_place(&self->sockets[c][0], self, &host.at.places[i], c, why, sizeof why));
        all = self->sockets[c][0] >= 0;
      }
      if (all) return EK_OK;
      for (size_t c = 0; c < CHANNELS; c++) close_socket(&self->sockets[c][0]);
      close_socket(&self->listener); /* it is beside the connection that is no more */
    }
  }
  return ek_error_set(EK_ERR_UNAVAILABLE,
                      "world: process %zu has not reached process 0 after %g seconds; last: %s",
                      meeting->process, meeting->limit, why);
}

static ek_status go_to(struct meet *self, size_t process, size_t channel) {
  char why[256] = "";
  int *socket = &self->sockets[channel][process];
  for (int attempt = 0; attempt == 0 || ek__clock() < self->deadline; attempt++) {
    if (attempt > 0) pause_before(attempt);
    if (has_hung_up(self->sockets[0][0])) {
      return ek_error_set(EK_ERR_UNAVAILABLE,
                          "world: process 0 gave up while process %zu tried to "
                          "reach process %zu at %s",
                          self->meeting->process, process, why);
    }
    EK_TRY(try_place(socket, self, &self->places[process], channel, why, sizeof why));
    if (*socket >= 0) return EK_OK;
  }
  return ek_error_set(EK_ERR_UNAVAILABLE,
                      "world: process %zu cannot reach process %zu: %s; if that is not the address "
                      "for it, set EVENKEEL_WORLD_ADDRESS in process %zu to a network interface "
                      "that the others reach",
                      self->meeting->process, process, why, process);
}

/* ---- the outcome ---- */

/* Loopback means another machine on each of them. */
static ek_status check_places(const struct meet *self) {
  char text[EK__PLACE_TEXT], other[EK__PLACE_TEXT];
  for (size_t p = 2; p < self->meeting->processes; p++) {
    EK__FAIL_IF(ek__place_is_loopback(&self->places[1]) != ek__place_is_loopback(&self->places[p]),
                EK_ERR_UNAVAILABLE,
                "world: process 1 would be reached at %s and process %zu at %s: on some machine "
                "the name of process 0's host is an address of loopback; give an address that all "
                "reach instead, or set EVENKEEL_WORLD_ADDRESS in each process",
                ek__place_text(text, &self->places[1]), p, ek__place_text(other, &self->places[p]));
  }
  return EK_OK;
}

/* Tells all that have come. A process that cannot be told sees the end of its connection. */
static void tell(struct meet *self, ek_status status) {
  const size_t processes = self->meeting->processes;
  struct outcome outcome = {.order = ORDER, .status = (uint32_t)status};
  memcpy(outcome.magic, answer_magic, sizeof outcome.magic);
  if (status != EK_OK) {
    (void)snprintf(outcome.text, sizeof outcome.text, "%s", ek_error_message());
  }
  const double deadline = ek__clock() + GRACE;
  for (size_t p = 1; p < processes; p++) {
    const int socket = self->sockets[0][p];
    if (socket < 0 || !send_all(socket, &outcome, sizeof outcome, deadline)) continue;
    if (status != EK_OK) continue;
    (void)send_all(socket, self->places, processes * sizeof *self->places, deadline);
  }
}

static ek_status hear(struct meet *self) {
  const size_t processes = self->meeting->processes;
  const int socket = self->sockets[0][0];
  struct outcome outcome = {.status = EK_OK};
  const double deadline = self->deadline + GRACE;
  EK__FAIL_IF(!receive_all(socket, &outcome, sizeof outcome, deadline), EK_ERR_UNAVAILABLE,
              "world: process 0 did not report whether all processes have arrived: %s",
              strerror(errno));
  EK__FAIL_IF(memcmp(outcome.magic, answer_magic, sizeof outcome.magic) != 0 ||
                  outcome.order != ORDER,
              EK_ERR_UNAVAILABLE, "world: process 0 sent an invalid message");
  outcome.text[sizeof outcome.text - 1] = '\0';
  EK__FAIL_IF(outcome.status != EK_OK, EK_ERR_UNAVAILABLE, "%s", outcome.text);
  EK__FAIL_IF(!receive_all(socket, self->places, processes * sizeof *self->places, deadline),
              EK_ERR_UNAVAILABLE, "world: process 0 did not send the addresses of the others: %s",
              strerror(errno));
  return EK_OK;
}

/* ---- all of it ---- */

static ek_status meet_as_first(struct meet *self) {
  const struct ek__meeting *meeting = self->meeting;
  EK_TRY(meeting->announce(meeting->context, &self->listener, &self->place, self->token));
  ek_status status = wait_for_others(self, false);
  if (meeting->withdraw != NULL) meeting->withdraw(meeting->context);
  if (status == EK_OK) status = check_places(self);
  tell(self, status);
  return status;
}

static ek_status meet_as_other(struct meet *self) {
  const struct ek__meeting *meeting = self->meeting;
  EK_TRY(go_to_first(self));
  EK_TRY(hear(self));
  self->deadline = ek__clock() + meeting->limit;
  for (size_t p = 1; p < meeting->process; p++) {
    for (size_t c = 0; c < channels_of(meeting); c++) EK_TRY(go_to(self, p, c));
  }
  return wait_for_others(self, true);
}

static ek_status allocate(struct meet *self, size_t processes) {
  static const char what[] = "the connections of a world";
  for (size_t i = 0; i < GUESTS; i++) self->guests[i].socket = -1;
  for (size_t c = 0; c < CHANNELS; c++) {
    EK_TRY(ek__new(&self->sockets[c], processes, sizeof(int), what));
    for (size_t p = 0; p < processes; p++) self->sockets[c][p] = -1;
  }
  EK_TRY(ek__new(&self->places, processes, sizeof *self->places, what));
  return ek__new(&self->polls, 1 + GUESTS + CHANNELS * processes, sizeof *self->polls, what);
}

/* Closes all that is left. */
static void clear(struct meet *self) {
  for (size_t i = 0; i < GUESTS; i++) close_socket(&self->guests[i].socket);
  close_socket(&self->listener);
  for (size_t c = 0; c < CHANNELS; c++) {
    for (size_t p = 0; p < self->meeting->processes && self->sockets[c] != NULL; p++) {
      close_socket(&self->sockets[c][p]);
    }
    ek__free(self->sockets[c]);
  }
  ek__free(self->places);
  ek__free(self->polls);
}

static ek_status make_wires(struct ek__wire *wires, struct meet *self) {
  const struct ek__meeting *meeting = self->meeting;
  for (size_t c = 0; c < meeting->wires; c++) {
    int *bulk = c == 0 && meeting->wires == EK__WIRES ? self->sockets[BULK] : NULL;
    const ek_status status = ek__mesh_make(&wires[c], meeting->process, meeting->processes,
                                           self->sockets[c], bulk);
    for (size_t p = 0; p < meeting->processes; p++) {
      self->sockets[c][p] = -1;
      if (bulk != NULL) bulk[p] = -1;
    }
    if (status == EK_OK) continue;
    if (c > 0) wires[0].table->close(wires[0].self);
    return status;
  }
  return EK_OK;
}

ek_status ek__meet(struct ek__wire *wires, const struct ek__meeting *meeting) {
  struct meet *self = NULL;
  EK_TRY(ek__new(&self, 1, sizeof *self, "the connections of a world"));
  self->meeting = meeting;
  self->listener = -1;
  self->deadline = ek__clock() + meeting->limit;
  ek_status status = allocate(self, meeting->processes);
  if (status == EK_OK) {
    status = meeting->process == 0 ? meet_as_first(self) : meet_as_other(self);
  }
  if (status == EK_OK) status = make_wires(wires, self);
  clear(self);
  ek__free(self);
  return status;
}
