/*
 * mesh.c - the wire over stream sockets: a connection between every two processes, and one more for
 * bulk moves.
 *
 * A connection carries frames: a header of 16 bytes, then the bytes of a move or of a notice. The
 * bytes go straight from and into the buffers of the moves. No header is believed before it is
 * checked: the first one that is wrong ends the connection.
 *
 * There is no thread. begin() sends what the system takes at once, test() goes on with the
 * connection of its move, and wait() sleeps until any connection can go on and then does so. A
 * process that does not begin its half of a move reads nothing beyond the header: the sender waits,
 * and notices that were sent after the move wait too. That is why a world has a second mesh for
 * notices (`watch`), which carries no moves.
 *
 * Bulk moves have connections of their own, because a connection delivers its bytes in order: what
 * is sent after megabytes would wait for them in the buffers of two machines, and for the process
 * that has no place for them yet. The system and the network share the link between connections,
 * and many of them prefer the one with few bytes. Notices and gone() are of the first connection.
 *
 * Buffers of moves are touched by begin(), test() and wait() alone. After an error, when the
 * buffers may be gone, notices and gone() still work: they stop at a frame of a move.
 *
 * A process that ends, in whatever way, closes its connections: the others see it at once. A
 * machine that vanishes closes nothing: then keepalive probes, or bytes that nothing acknowledges,
 * tell so after VANISHED seconds. A process that is stopped keeps its connections, and is seen by
 * the time limit alone.
 */
#define _GNU_SOURCE /* POLLRDHUP, struct tcp_info */
#include "world/mesh.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"

enum {
  MAGIC = 0x656b6d31, /* "ekm1" */
  DATA = 1,
  NOTICE = 2,
  NOTICES = 8, /* of one process, kept in each direction */
  VANISHED = 30,
  LAST_WAIT_MS = 1000 /* that closing waits for bytes that were sent before */
};
/* Bytes of one call: both directions and all connections get their turn. */
#define LARGEST_CALL ((size_t)4 << 20)

struct header {
  uint32_t magic, kind;
  uint64_t bytes;
};
_Static_assert(sizeof(struct header) == 16, "a header has another size");

/* Moves in the order in which they began, from the one that is under way. */
struct queue {
  struct ek__move *moves[EK__MOVES];
  size_t first, count;
};

struct notices {
  char texts[NOTICES][EK__NOTICE];
  size_t first, count;
};

/* One direction of a connection. */
struct stream {
  struct header header; /* of the frame that is under way */
  struct header next;   /* in: what came of the one after it */
  size_t header_done;   /* bytes of the header; out: 0 if no frame is under way */
  size_t notice_done;   /* bytes of the notice that is under way */
  struct queue moves;
  struct notices notices;
};

struct peer {
  int socket;
  struct stream out, in;
  bool full;    /* the system took no more bytes */
  bool hung_up; /* the other end has closed; bytes may still be there */
  bool ended;   /* nothing more comes or goes */
  char why[160];
};

struct mesh {
  size_t process, processes;
  size_t connections;   /* processes, or twice as many: then those for bulk moves follow */
  struct peer *peers;   /* of each connection; no socket: it would lead to this process */
  struct pollfd *polls; /* of each connection, and of `woken` */
  int woken;            /* readable after wake(); -1: there are no bulk moves */
  bool fresh;   /* a move has become complete since the last wait() */
  size_t tests; /* since the last look at all connections */
};

static void end(struct peer *peer, const char *format, ...) EK_PRINTF(2, 3);
static void end(struct peer *peer, const char *format, ...) {
  va_list arguments;
  if (peer->ended) return;
  va_start(arguments, format);
  (void)vsnprintf(peer->why, sizeof peer->why, format, arguments);
  va_end(arguments);
  peer->ended = true;
  peer->full = false;
  (void)shutdown(peer->socket, SHUT_RDWR); /* the other process sees it, too */
}

static struct ek__move *first_of(const struct queue *queue) { return queue->moves[queue->first]; }

/* A half of a move is done. */
static void pop(struct mesh *self, struct queue *queue) {
  const struct ek__move *move = first_of(queue);
  queue->first = (queue->first + 1) % EK__MOVES;
  queue->count--;
  if (move->used[0] < move->out_bytes || move->used[1] < move->in_bytes) return;
  self->fresh = true;
}

static char *text_at(struct notices *notices, size_t number) {
  return notices->texts[(notices->first + number) % NOTICES];
}

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* ---- sending ---- */

/* Begins the next frame. Notices go first. False: there is none that may be sent. */
static bool next_frame(struct stream *out, bool moves) {
  if (out->notices.count > 0) {
    out->header = (struct header){MAGIC, NOTICE, EK__NOTICE};
    out->notice_done = 0;
    return true;
  }
  if (!moves || out->moves.count == 0) return false;
  out->header = (struct header){MAGIC, DATA, first_of(&out->moves)->out_bytes};
  return true;
}

/* What is left of the frame. */
static size_t rest_of(struct stream *out, struct iovec parts[2]) {
  char *header = (char *)&out->header;
  char *body = out->notices.texts[out->notices.first];
  size_t *done = &out->notice_done;
  if (out->header.kind == DATA) {
    body = (char *)(uintptr_t)first_of(&out->moves)->out;
    done = &first_of(&out->moves)->used[0];
  }
  parts[0] = (struct iovec){header + out->header_done, sizeof out->header - out->header_done};
  parts[1] = (struct iovec){body + *done, least(out->header.bytes - *done, LARGEST_CALL)};
  return parts[0].iov_len + parts[1].iov_len;
}

/* Takes account of bytes that were sent; the frame may be over then. */
static void count_sent(struct mesh *self, struct peer *peer, size_t sent) {
  struct stream *out = &peer->out;
  const size_t head = least(sent, sizeof out->header - out->header_done);
  size_t *done = out->header.kind == DATA ? &first_of(&out->moves)->used[0] : &out->notice_done;
  out->header_done += head;
  *done += sent - head;
  if (out->header_done < sizeof out->header || *done < out->header.bytes) return;
  out->header_done = 0;
  if (out->header.kind == DATA) {
    pop(self, &out->moves);
  } else {
    out->notices.first = (out->notices.first + 1) % NOTICES;
    out->notices.count--;
  }
}

static void send_some(struct mesh *self, struct peer *peer, bool moves) {
  struct stream *out = &peer->out;
  peer->full = false;
  while (!peer->ended) {
    struct iovec parts[2];
    if (out->header_done == 0 && !next_frame(out, moves)) return;
    if (out->header.kind == DATA && !moves) return;
    const struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    const size_t asked = rest_of(out, parts);
    const ssize_t sent = sendmsg(peer->socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) {
      count_sent(self, peer, (size_t)sent);
      if ((size_t)sent == asked) continue;
    } else if (errno == EINTR) {
      continue;
    } else if (errno != EAGAIN && errno != EWOULDBLOCK) {
      /* What it said before it ended is still to be read. */
      peer->hung_up = true;
    }
    peer->full = true;
    return;
  }
}

/* ---- receiving ---- */

/* Where the bytes of the frame go; false: they have to wait. */
static bool place_for(struct peer *peer, struct iovec *place, bool moves) {
  struct stream *in = &peer->in;
  if (in->header.kind == NOTICE) {
    if (in->notices.count == NOTICES) return false;
    char *text = text_at(&in->notices, in->notices.count);
    *place = (struct iovec){text + in->notice_done, EK__NOTICE - in->notice_done};
    return true;
  }
  if (!moves || in->moves.count == 0) return false;
  struct ek__move *move = first_of(&in->moves);
  if (in->header.bytes != move->in_bytes) {
    end(peer, "a message of %llu bytes came instead of one of %zu",
        (unsigned long long)in->header.bytes, move->in_bytes);
    return false;
  }
  char *to = move->in;
  *place = (struct iovec){to + move->used[1], move->in_bytes - move->used[1]};
  return true;
}

static bool is_right(const struct header *header) {
  return header->magic == MAGIC && ((header->kind == DATA && header->bytes > 0) ||
                                    (header->kind == NOTICE && header->bytes == EK__NOTICE));
}

/* The frame has all its bytes. */
static void end_frame(struct mesh *self, struct peer *peer) {
  struct stream *in = &peer->in;
  if (in->header.kind == NOTICE) {
    in->notices.count++;
  } else {
    pop(self, &in->moves);
  }
  in->notice_done = 0;
  in->header_done = 0;
  in->header = in->next;
}

/* Takes account of bytes that came: first those of the frame, which wanted `place`, then those of
 * the next header. */
static void count_received(struct mesh *self, struct peer *peer, size_t place, size_t got) {
  struct stream *in = &peer->in;
  const size_t body = least(got, place);
  if (in->header_done == sizeof in->header) {
    *(in->header.kind == NOTICE ? &in->notice_done : &first_of(&in->moves)->used[1]) += body;
    if (body < place) return;
    end_frame(self, peer);
  }
  in->header_done += got - body;
  if (in->header_done == sizeof in->header && !is_right(&in->header)) {
    end(peer, "bytes came that are no message of evenkeel");
  }
}

static void receive_some(struct mesh *self, struct peer *peer, bool moves) {
  struct stream *in = &peer->in;
  while (!peer->ended) {
    struct iovec parts[2] = {
        {NULL, 0}, {(char *)&in->header + in->header_done, sizeof in->header - in->header_done}};
    if (in->header_done == sizeof in->header) {
      if (!place_for(peer, &parts[0], moves)) return;
      parts[1] = (struct iovec){&in->next, sizeof in->next};
    }
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    const size_t asked = parts[0].iov_len + parts[1].iov_len;
    const ssize_t got = recvmsg(peer->socket, &message, MSG_DONTWAIT);
    if (got > 0) {
      count_received(self, peer, parts[0].iov_len, (size_t)got);
      if ((size_t)got < asked) return; /* there is no more */
    } else if (got == 0) {
      end(peer, "the connection was closed");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (errno != EINTR) {
      end(peer, "the connection ended: %s", strerror(errno));
    }
  }
}

/* ---- moves ---- */

static void advance(struct mesh *self, struct peer *peer) {
  receive_some(self, peer, true);
  if (peer->out.header_done > 0 || peer->out.moves.count + peer->out.notices.count > 0) {
    send_some(self, peer, true);
  }
}

/* What a connection waits for; 0: nothing that could come. */
static short events_of(const struct peer *peer) {
  const struct stream *in = &peer->in;
  const bool waits =
      in->header_done < sizeof in->header ||
      (in->header.kind == NOTICE ? in->notices.count < NOTICES : in->moves.count > 0);
  if (peer->ended) return 0;
  return (short)((waits ? POLLIN : 0) | (peer->full && !peer->hung_up ? POLLOUT : 0) |
                 (peer->hung_up ? 0 : POLLRDHUP));
}

/* Waits until some connection can go on, and lets all that can. */
static void look_at_all(struct mesh *self, int milliseconds) {
  uint64_t woken = 0;
  self->tests = 0;
  for (size_t i = 0; i < self->connections; i++) {
    const struct peer *peer = &self->peers[i];
    const short events = peer->socket < 0 ? 0 : events_of(peer);
    self->polls[i] = (struct pollfd){.fd = events == 0 ? -1 : peer->socket, .events = events};
  }
  self->polls[self->connections] = (struct pollfd){.fd = self->woken, .events = POLLIN};
  if (poll(self->polls, self->connections + 1, milliseconds) <= 0) return;
  if (self->polls[self->connections].revents != 0) {
    (void)!read(self->woken, &woken, sizeof woken); /* it is not readable any more */
  }
  for (size_t i = 0; i < self->connections; i++) {
    const short seen = self->polls[i].revents;
    struct peer *peer = &self->peers[i];
    if (seen == 0) continue;
    if ((seen & (POLLRDHUP | POLLHUP | POLLERR)) != 0) peer->hung_up = true;
    advance(self, peer);
  }
}

static struct peer *peer_of(struct mesh *self, const struct ek__move *move) {
  return &self->peers[move->bulk ? self->processes + move->peer : move->peer];
}

static ek_status begin(void *data, struct ek__move *move) {
  struct mesh *self = data;
  EK__FAIL_IF(move->bulk && self->woken < 0, EK_ERR_INTERNAL, "a bulk move in a mesh without them");
  struct peer *peer = peer_of(self, move);
  struct queue *out = &peer->out.moves, *in = &peer->in.moves;
  EK__FAIL_IF(peer->ended, EK_ERR_IO, "%s", peer->why);
  EK__FAIL_IF(out->count == EK__MOVES || in->count == EK__MOVES, EK_ERR_INTERNAL,
              "more than %d moves with one process", EK__MOVES);
  move->used[0] = move->used[1] = 0;
  move->done = move->out_bytes == 0 && move->in_bytes == 0;
  if (move->out_bytes > 0) out->moves[(out->first + out->count++) % EK__MOVES] = move;
  if (move->in_bytes > 0) in->moves[(in->first + in->count++) % EK__MOVES] = move;
  if (move->out_bytes > 0 && !peer->full) send_some(self, peer, true);
  return EK_OK;
}

static bool is_complete(const struct ek__move *move) {
  return move->used[0] == move->out_bytes && move->used[1] == move->in_bytes;
}

static ek_status test(void *data, struct ek__move *move) {
  struct mesh *self = data;
  struct peer *peer = peer_of(self, move);
  if (move->done) return EK_OK;
  if (!is_complete(move)) advance(self, peer);
  /* Once in a round of tests, for a caller that never waits. */
  if (!is_complete(move) && ++self->tests >= self->connections) look_at_all(self, 0);
  if (is_complete(move)) {
    move->done = true;
    return EK_OK;
  }
  EK__FAIL_IF(peer->ended, EK_ERR_IO, "%s", peer->why);
  EK__FAIL_IF(peer->hung_up && move->used[1] == move->in_bytes, EK_ERR_IO,
              "the connection was closed before all bytes were sent");
  return EK_OK;
}

static void wait_for_some(void *data, double seconds) {
  struct mesh *self = data;
  const double milliseconds = seconds * 1e3;
  const bool fresh = self->fresh;
  self->fresh = false;
  if (fresh) return; /* perhaps what the caller waits for, after it tested that */
  look_at_all(self, milliseconds > 60e3 ? 60000 : (int)milliseconds + 1);
}

static void wake(void *data) {
  const struct mesh *self = data;
  const uint64_t one = 1;
  if (self->woken >= 0) (void)!write(self->woken, &one, sizeof one);
}

/* ---- processes that go ---- */

/* The machine of the other process is silent, though it should have acknowledged bytes. Of a
 * process that takes no more bytes the system acknowledges what it has. */
static bool has_vanished(int socket) {
  struct tcp_info info = {0};
  socklen_t size = sizeof info;
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
  return info.tcpi_unacked > 0 && info.tcpi_retransmits > 0 &&
         info.tcpi_last_ack_recv > VANISHED * 1000;
}

static bool gone(void *data, size_t number) {
  const struct mesh *self = data;
  struct peer *peer = &self->peers[number];
  if (peer->ended || peer->hung_up) return true;
  struct pollfd look = {.fd = peer->socket, .events = POLLRDHUP};
  if (poll(&look, 1, 0) > 0) peer->hung_up = true;
  if (!peer->hung_up && has_vanished(peer->socket)) {
    end(peer, "its machine has acknowledged nothing for %d seconds", VANISHED);
  }
  return peer->ended || peer->hung_up;
}

static bool notify(void *data, size_t number, const void *notice) {
  struct mesh *self = data;
  struct peer *peer = &self->peers[number];
  struct notices *notices = &peer->out.notices;
  if (peer->ended || peer->hung_up || notices->count == NOTICES) return false;
  memcpy(text_at(notices, notices->count), notice, EK__NOTICE);
  notices->count++;
  send_some(self, peer, false);
  return true;
}

static bool noticed(void *data, size_t number, void *notice) {
  struct mesh *self = data;
  struct peer *peer = &self->peers[number];
  struct notices *notices = &peer->in.notices;
  if (notices->count == 0) receive_some(self, peer, false);
  if (peer->out.notices.count > 0) send_some(self, peer, false);
  if (notices->count == 0) return false;
  memcpy(notice, text_at(notices, 0), EK__NOTICE);
  notices->first = (notices->first + 1) % NOTICES;
  notices->count--;
  return true;
}

/* ---- the end ---- */

/* Bytes that the other machine has not acknowledged. A connection that is closed while bytes from
 * the other process are unread is reset, and forgets them. A process that has closed its end needs
 * none. */
static bool has_unsent(struct mesh *self, size_t number) {
  int bytes = 0;
  const size_t process = number % self->processes;
  if (process == self->process || gone(self, process)) return false;
  return ioctl(self->peers[number].socket, SIOCOUTQ, &bytes) == 0 && bytes > 0;
}

static void close_all(const struct mesh *self) {
  for (size_t i = 0; i < self->connections && self->peers != NULL; i++) {
    if (self->peers[i].socket >= 0) (void)close(self->peers[i].socket);
  }
  if (self->woken >= 0) (void)close(self->woken);
}

static void close_mesh(void *data) {
  struct mesh *self = data;
  const struct timespec nap = {.tv_nsec = 1000000};
  for (size_t p = 0; p < self->processes; p++) {
    if (p != self->process) send_some(self, &self->peers[p], false);
  }
  size_t i = 0;
  for (int waited = 0; i < self->connections && waited < LAST_WAIT_MS; waited++) {
    while (i < self->connections && !has_unsent(self, i)) i++;
    if (i < self->connections) (void)nanosleep(&nap, NULL);
  }
  close_all(self);
  ek__free(self->polls);
  ek__free(self->peers);
  ek__free(self);
}

/* ---- opening ---- */

static const struct ek__wire_table table = {.size = sizeof table,
                                            .name = "sockets",
                                            .begin = begin,
                                            .test = test,
                                            .wait = wait_for_some,
                                            .wake = wake,
                                            .gone = gone,
                                            .notify = notify,
                                            .noticed = noticed,
                                            .close = close_mesh};

/* What a system or a kind of socket does not have is not needed for right results. */
static void prepare(int socket) {
  const struct {
    int level, name, value;
  } options[] = {{IPPROTO_TCP, TCP_NODELAY, 1},
                 {SOL_SOCKET, SO_KEEPALIVE, 1},
                 {IPPROTO_TCP, TCP_KEEPIDLE, VANISHED / 3},
                 {IPPROTO_TCP, TCP_KEEPINTVL, VANISHED / 6},
                 {IPPROTO_TCP, TCP_KEEPCNT, 4}};
  for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
    (void)setsockopt(socket, options[i].level, options[i].name, &options[i].value, sizeof(int));
  }
}

/* The sockets are in their places, or closed. */
static ek_status prepare_all(struct mesh *self, const int *sockets, const int *bulk) {
  const size_t processes = self->processes;
  for (size_t i = 0; i < self->connections; i++) {
    const bool own = i % processes == self->process;
    const int socket = own ? -1 : i < processes ? sockets[i] : bulk[i - processes];
    if (!own && self->peers == NULL) (void)close(socket);
    if (!own && self->peers != NULL) prepare(socket);
    if (self->peers != NULL) self->peers[i].socket = socket;
  }
  EK__FAIL_IF(self->peers == NULL || self->polls == NULL, EK_ERR_OUT_OF_MEMORY,
              "no host memory for a world");
  if (bulk == NULL) return EK_OK;
  self->woken = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  EK__FAIL_IF(self->woken < 0, EK_ERR_IO, "world: eventfd: %s", strerror(errno));
  return EK_OK;
}

ek_status ek__mesh_make(struct ek__wire *wire, size_t process, size_t processes,
                        const int *sockets, const int *bulk) {
  struct mesh none = {0}, *self = ek__calloc(1, sizeof *self);
  const size_t connections = bulk == NULL ? processes : 2 * processes;
  if (self != NULL) {
    self->peers = ek__calloc(connections, sizeof *self->peers);
    self->polls = ek__calloc(connections + 1, sizeof *self->polls);
  }
  struct mesh *made = self == NULL ? &none : self;
  made->process = process;
  made->processes = processes;
  made->connections = connections;
  made->woken = -1;
  const ek_status status = prepare_all(made, sockets, bulk);
  if (status == EK_OK) {
    *wire = (struct ek__wire){&table, self};
    return EK_OK;
  }
  close_all(made);
  ek__free(made->polls);
  ek__free(made->peers);
  ek__free(self);
  return status;
}
