/*
 * mpi_wire.c - the wire over MPI: MPI_Isend, MPI_Irecv and MPI_Test, on a communicator of its own.
 *
 * The file is compiled once for each MPI. No thread of ours calls MPI: its messages advance when
 * the thread that waits in a call of the library tests a move. So every level of MPI_Init_thread()
 * will do; with one below MPI_THREAD_SERIALIZED the program must call evenkeel from the thread that
 * initialised MPI, and every call of another thread is refused.
 *
 * MPI matches messages by sender, communicator and tag. A message has the number of the messages
 * that went before it to the same process as its tag: two moves that are under way at once cannot
 * be taken for each other, although a move that is longer than MPI's counts is cut, and sends each
 * part after the one before it. Bulk moves are counted apart and have a range of tags of their own.
 * Notices have a tag of their own and one receive is always posted.
 *
 * The program may call MPI_Finalize() too early. MPI frees the attributes of MPI_COMM_SELF first:
 * ours ends what is under way, and later calls are errors. MPI that was initialised here ends with
 * the last wire, unless a wire has failed or bytes are under way: MPI_Finalize() would wait for
 * processes that may not come.
 */
#include <mpi.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <evenkeel/version.h>

#include "core/loader.h"
#include "world/mpi_loader.h"

#ifndef EK__MPI_LARGEST
#define EK__MPI_LARGEST ((size_t)1 << 30) /* bytes of a message; MPI counts in int */
#endif

/* MPI_TAG_UB is 32767 at least. */
enum { TAGS = 1 << 13, NOTICE_TAG = 2 * TAGS };

enum { FLIGHTS = 2 * EK__MOVES };

/* Seconds that closing waits for what is under way. */
#define LAST_WAIT 1.0

#ifdef OPEN_MPI
#define THIS_MPI "Open MPI"
#else
#define THIS_MPI "MPICH"
#endif

#define FAIL(...) return host->error_set(__VA_ARGS__)

/* Bytes of a move in one direction. */
struct half {
  MPI_Request request; /* of the message that is under way */
  char *at;            /* of the message */
  size_t length;       /* of the message */
  size_t left;         /* with the message */
  unsigned number;     /* of the next message */
  bool bulk;
};

struct flight {
  struct ek__move *move; /* NULL: free */
  struct half out, in;
};

struct peer {
  unsigned sent[2], received[2]; /* messages so far, [1]: bulk; parts that follow are counted */
  struct flight flights[FLIGHTS];
  MPI_Request saying, hearing;
  char said[EK__NOTICE], heard[EK__NOTICE];
};

struct wire {
  MPI_Comm communicator;
  size_t process, processes;
  struct peer *peers;
  size_t cut; /* moves under way that are longer than a message */
  int key;    /* of the attribute */
  bool one_thread, failed, ended;
  pthread_t thread;
};

static const struct ek__module_host *host;
static bool initialised; /* by this module */
static size_t wires;

static ek_status check(struct wire *self, int error, const char *call) {
  char text[MPI_MAX_ERROR_STRING + 1] = "";
  int length = 0;
  if (error == MPI_SUCCESS) return EK_OK;
  if (self != NULL) self->failed = true;
  (void)MPI_Error_string(error, text, &length);
  FAIL(EK_ERR_IO, "%s: %s", call, text);
}

static ek_status usable(struct wire *self) {
  if (self->ended) {
    FAIL(EK_ERR_STATE, "the program called MPI_Finalize() before the world was closed");
  }
  if (self->failed) FAIL(EK_ERR_STATE, "MPI failed before");
  if (self->one_thread && !pthread_equal(self->thread, pthread_self())) {
    FAIL(EK_ERR_STATE, "MPI may not be called by this thread: it was initialised below "
                       "MPI_THREAD_SERIALIZED, and the world was opened by another thread");
  }
  return EK_OK;
}

/* ---- moves ---- */

static unsigned messages_of(size_t bytes) {
  return (unsigned)(bytes / EK__MPI_LARGEST + (bytes % EK__MPI_LARGEST != 0));
}

static ek_status post(struct wire *self, struct half *half, size_t peer, bool out) {
  const int tag = (int)(half->number++ % TAGS) + (half->bulk ? TAGS : 0);
  half->length = half->left < EK__MPI_LARGEST ? half->left : EK__MPI_LARGEST;
  const int count = (int)half->length;
  return out ? check(self,
                     MPI_Isend(half->at, count, MPI_BYTE, (int)peer, tag, self->communicator,
                               &half->request),
                     "MPI_Isend")
             : check(self,
                     MPI_Irecv(half->at, count, MPI_BYTE, (int)peer, tag, self->communicator,
                               &half->request),
                     "MPI_Irecv");
}

static ek_status advance(struct wire *self, struct half *half, size_t peer, bool out) {
  while (half->request != MPI_REQUEST_NULL) {
    MPI_Status status;
    int done = 0, got = 0;
    const char *call = out ? "MPI_Test of a message sent" : "MPI_Test of a message received";
    EK_TRY(check(self, MPI_Test(&half->request, &done, &status), call));
    if (!done) return EK_OK;
    if (!out) EK_TRY(check(self, MPI_Get_count(&status, MPI_BYTE, &got), "MPI_Get_count"));
    if (!out && (size_t)got != half->length) {
      self->failed = true;
      FAIL(EK_ERR_IO, "a message of %d bytes came instead of one of %zu", got, half->length);
    }
    half->at += half->length;
    half->left -= half->length;
    if (half->left > 0) EK_TRY(post(self, half, peer, out));
  }
  return EK_OK;
}

static bool is_cut(const struct ek__move *move) {
  return move->out_bytes > EK__MPI_LARGEST || move->in_bytes > EK__MPI_LARGEST;
}

static ek_status begin(void *data, struct ek__move *move) {
  struct wire *self = data;
  EK_TRY(usable(self));
  struct peer *peer = &self->peers[move->peer];
  struct flight *flight = peer->flights;
  unsigned *sent = &peer->sent[move->bulk], *received = &peer->received[move->bulk];
  size_t alike = 0;
  for (size_t i = FLIGHTS; i-- > 0;) {
    const struct ek__move *other = peer->flights[i].move;
    if (other == NULL) flight = &peer->flights[i];
    alike += other != NULL && other->bulk == move->bulk;
  }
  if (alike == EK__MOVES) {
    FAIL(EK_ERR_INTERNAL, "more than %d moves with one process", EK__MOVES);
  }
  *flight = (struct flight){
      .move = move,
      .out = {.request = MPI_REQUEST_NULL,
              .at = (char *)(uintptr_t)move->out,
              .left = move->out_bytes,
              .number = *sent,
              .bulk = move->bulk},
      .in = {.request = MPI_REQUEST_NULL,
             .at = move->in,
             .left = move->in_bytes,
             .number = *received,
             .bulk = move->bulk}};
  *sent += messages_of(move->out_bytes);
  *received += messages_of(move->in_bytes);
  move->done = false;
  move->requests[0] = flight;
  self->cut += is_cut(move);
  /* First the place for what comes: MPI need not keep it anywhere else. */
  if (move->in_bytes > 0) EK_TRY(post(self, &flight->in, move->peer, false));
  return move->out_bytes > 0 ? post(self, &flight->out, move->peer, true) : EK_OK;
}

static ek_status advance_move(struct wire *self, struct flight *flight) {
  EK_TRY(advance(self, &flight->in, flight->move->peer, false));
  return advance(self, &flight->out, flight->move->peer, true);
}

/* MPI itself advances all messages; only parts of moves that are cut have to be followed by the
 * next ones. */
static ek_status advance_others(struct wire *self) {
  for (size_t p = 0; p < self->processes; p++) {
    for (size_t i = 0; i < FLIGHTS; i++) {
      struct flight *flight = &self->peers[p].flights[i];
      if (flight->move != NULL && is_cut(flight->move)) EK_TRY(advance_move(self, flight));
    }
  }
  return EK_OK;
}

static ek_status test(void *data, struct ek__move *move) {
  struct wire *self = data;
  struct flight *flight = move->requests[0];
  if (move->done) return EK_OK;
  EK_TRY(usable(self));
  if (self->cut > 0) EK_TRY(advance_others(self));
  EK_TRY(advance_move(self, flight));
  if (flight->in.left == 0 && flight->out.left == 0) {
    flight->move = NULL;
    self->cut -= is_cut(move);
    move->requests[0] = NULL;
    move->done = true;
  }
  return EK_OK;
}

/* ---- notices ---- */

static int listen_to(struct wire *self, size_t peer) {
  struct peer *from = &self->peers[peer];
  return MPI_Irecv(from->heard, EK__NOTICE, MPI_BYTE, (int)peer, NOTICE_TAG, self->communicator,
                   &from->hearing);
}

static bool quiet(const struct wire *self) {
  return self->ended || self->failed ||
         (self->one_thread && !pthread_equal(self->thread, pthread_self()));
}

/* MPI keeps a message of this size until the receiver asks for it. */
static bool notify(void *data, size_t peer, const void *notice) {
  struct wire *self = data;
  struct peer *to = &self->peers[peer];
  int done = 0;
  if (quiet(self)) return false;
  if (MPI_Test(&to->saying, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || !done) return false;
  memcpy(to->said, notice, EK__NOTICE);
  return MPI_Isend(to->said, EK__NOTICE, MPI_BYTE, (int)peer, NOTICE_TAG, self->communicator,
                   &to->saying) == MPI_SUCCESS;
}

static bool noticed(void *data, size_t peer, void *notice) {
  struct wire *self = data;
  struct peer *from = &self->peers[peer];
  int done = 0;
  if (quiet(self) || from->hearing == MPI_REQUEST_NULL) return false;
  if (MPI_Test(&from->hearing, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || !done) return false;
  memcpy(notice, from->heard, EK__NOTICE);
  (void)listen_to(self, peer); /* none is heard any more if it fails */
  return true;
}

/* ---- the end ---- */

/* The requests of a peer, one after the other. */
enum { REQUESTS = 2 + 2 * FLIGHTS };

static MPI_Request *request_of(struct peer *peer, size_t i) {
  if (i < 2) return i == 0 ? &peer->hearing : &peer->saying;
  struct flight *flight = &peer->flights[i / 2 - 1];
  return i % 2 == 0 ? &flight->in.request : &flight->out.request;
}

static bool tested(struct wire *self) {
  bool all = true;
  for (size_t i = 0; i < self->processes * REQUESTS; i++) {
    int done = 0;
    (void)MPI_Test(request_of(&self->peers[i / REQUESTS], i % REQUESTS), &done, MPI_STATUS_IGNORE);
    all = all && done;
  }
  return all;
}

/* MPI calls it when the attribute is freed, by us or by MPI_Finalize(). */
static int end(MPI_Comm comm, int key, void *attribute, void *extra) {
  struct wire *self = attribute;
  (void)comm, (void)key, (void)extra;
  for (size_t i = 0; i < self->processes * REQUESTS; i += 2) { /* receives */
    MPI_Request *request = request_of(&self->peers[i / REQUESTS], i % REQUESTS);
    if (*request != MPI_REQUEST_NULL) (void)MPI_Cancel(request);
  }
  for (const double until = MPI_Wtime() + LAST_WAIT; !tested(self) && MPI_Wtime() < until;) {}
  for (size_t i = 0; i < self->processes * REQUESTS; i++) {
    MPI_Request *request = request_of(&self->peers[i / REQUESTS], i % REQUESTS);
    if (*request != MPI_REQUEST_NULL) (void)MPI_Request_free(request);
  }
  (void)MPI_Comm_free(&self->communicator);
  self->ended = true;
  return MPI_SUCCESS;
}

static bool under_way(const struct wire *self) {
  for (size_t i = 0; i < self->processes * FLIGHTS; i++) {
    if (self->peers[i / FLIGHTS].flights[i % FLIGHTS].move != NULL) return true;
  }
  return false;
}

static void close_wire(void *data) {
  struct wire *self = data;
  const bool well = !self->ended && !self->failed && !under_way(self);
  wires--;
  if (!self->ended) {
    (void)MPI_Comm_delete_attr(MPI_COMM_SELF, self->key);
    (void)MPI_Comm_free_keyval(&self->key);
  }
  if (initialised && wires == 0 && well) (void)MPI_Finalize();
  host->free(self->peers);
  host->free(self);
}

/* ---- opening ---- */

static const struct ek__wire_table table = {.size = sizeof table,
                                            .name = "MPI (" THIS_MPI ")",
                                            .begin = begin,
                                            .test = test,
                                            .notify = notify,
                                            .noticed = noticed,
                                            .close = close_wire};

/* MPI is initialised, and this thread may call it. */
static ek_status ready(bool *one_thread, bool given) {
  int begun = 0, ended = 0, level = 0, main = 0;
  (void)MPI_Finalized(&ended);
  (void)MPI_Initialized(&begun);
  if (ended) {
    FAIL(EK_ERR_STATE, "mpi: MPI has ended in this process and cannot begin again%s",
         initialised ? ": it was initialised for an earlier world and ended with it; call "
                       "MPI_Init() in the program"
                     : "");
  }
  if (!begun && given) FAIL(EK_ERR_STATE, "mpi: MPI is not initialised; call MPI_Init() first");
  if (!begun) {
    EK_TRY(check(NULL, MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level),
                 "MPI_Init_thread"));
    /* MPICH gives errors of MPI_Test() to the handler of MPI_COMM_WORLD, whatever communicator the
     * message is in. If the program initialised MPI, that handler is the program's choice. */
    (void)MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    initialised = true;
  }
  EK_TRY(check(NULL, MPI_Query_thread(&level), "MPI_Query_thread"));
  EK_TRY(check(NULL, MPI_Is_thread_main(&main), "MPI_Is_thread_main"));
  *one_thread = level < MPI_THREAD_SERIALIZED;
  if (*one_thread && !main) {
    FAIL(EK_ERR_STATE, "mpi: MPI was initialised below MPI_THREAD_SERIALIZED; open the world in "
                       "the thread that called MPI_Init()");
  }
  return EK_OK;
}

/* A communicator of our own, whose errors are returned. */
static ek_status duplicate(struct wire *self, MPI_Comm of) {
  MPI_Errhandler before = MPI_ERRHANDLER_NULL;
  int between = 0, rank = 0, size = 0;
  if (of == MPI_COMM_NULL) FAIL(EK_ERR_INVALID_ARGUMENT, "mpi: the communicator is MPI_COMM_NULL");
  EK_TRY(check(NULL, MPI_Comm_test_inter(of, &between), "MPI_Comm_test_inter"));
  if (between) {
    FAIL(EK_ERR_INVALID_ARGUMENT,
         "mpi: the communicator is one between two groups; expected one of a single group");
  }
  EK_TRY(check(NULL, MPI_Comm_get_errhandler(of, &before), "MPI_Comm_get_errhandler"));
  (void)MPI_Comm_set_errhandler(of, MPI_ERRORS_RETURN);
  const int error = MPI_Comm_dup(of, &self->communicator);
  (void)MPI_Comm_set_errhandler(of, before);
  if (before != MPI_ERRORS_ARE_FATAL && before != MPI_ERRORS_RETURN) {
    (void)MPI_Errhandler_free(&before);
  }
  EK_TRY(check(NULL, error, "MPI_Comm_dup"));
  (void)MPI_Comm_set_errhandler(self->communicator, MPI_ERRORS_RETURN);
  (void)MPI_Comm_rank(self->communicator, &rank);
  (void)MPI_Comm_size(self->communicator, &size);
  self->process = (size_t)rank;
  self->processes = (size_t)size;
  return EK_OK;
}

/* *wire stays NULL if there is no memory. */
static ek_status prepare(struct wire **wire, const struct wire *made) {
  struct wire *self = host->calloc(1, sizeof *self);
  struct peer *peers = host->calloc(made->processes, sizeof *peers);
  if (self == NULL || peers == NULL) {
    host->free(self);
    host->free(peers);
    FAIL(EK_ERR_OUT_OF_MEMORY, "no host memory for a world");
  }
  *self = *made;
  self->peers = peers;
  *wire = self;
  for (size_t i = 0; i < self->processes * REQUESTS; i++) {
    *request_of(&peers[i / REQUESTS], i % REQUESTS) = MPI_REQUEST_NULL;
  }
  EK_TRY(check(self, MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, end, &self->key, NULL),
               "MPI_Comm_create_keyval"));
  for (size_t p = 0; p < self->processes; p++) {
    if (p != self->process) EK_TRY(check(self, listen_to(self, p), "MPI_Irecv"));
  }
  return check(self, MPI_Comm_set_attr(MPI_COMM_SELF, self->key, self), "MPI_Comm_set_attr");
}

static ek_status open_wire(struct ek__wire *wire, size_t *process, size_t *processes,
                           const void *communicator, size_t bytes) {
  bool one_thread = false;
  MPI_Comm of = MPI_COMM_WORLD;
  if (communicator != NULL && bytes != sizeof of) {
    FAIL(EK_ERR_INVALID_ARGUMENT, "mpi: the communicator has %zu bytes; expected the %zu of %s",
         bytes, sizeof of, THIS_MPI);
  }
  EK_TRY(ready(&one_thread, communicator != NULL));
  if (communicator != NULL) memcpy(&of, communicator, sizeof of);
  struct wire *self = NULL, made = {.one_thread = one_thread, .thread = pthread_self()};
  /* Before anything that can fail here alone: the others wait in it without a limit. */
  EK_TRY(duplicate(&made, of));
  const ek_status status = prepare(&self, &made);
  if (status != EK_OK) {
    if (self != NULL) (void)end(MPI_COMM_SELF, 0, self, NULL);
    if (self == NULL) (void)MPI_Comm_free(&made.communicator);
    if (self != NULL) host->free(self->peers);
    host->free(self);
    return status;
  }
  wires++;
  *process = self->process;
  *processes = self->processes;
  *wire = (struct ek__wire){&table, self};
  return EK_OK;
}

static const struct ek__mpi_table entries = {.wire_size = sizeof(struct ek__wire_table),
                                             .open = open_wire};

EK_API ek__module_entry ek_mpi_module;

ek_status ek_mpi_module(const void **given, const struct ek__module_host *from) {
  char version[8192] = ""; /* the longest of any MPI */
  int length = 0;
  if (from->size != sizeof *from || from->table_size != sizeof entries ||
      strcmp(from->version, EK_VERSION_STRING) != 0) {
    return EK_ERR_UNAVAILABLE;
  }
  host = from;
  /* A program that is linked with another MPI has its functions found before ours. */
  (void)MPI_Get_library_version(version, &length);
#ifdef OPEN_MPI
  const bool same = strncmp(version, THIS_MPI, strlen(THIS_MPI)) == 0;
#else
  const bool same = strncmp(version, "Open MPI", strlen("Open MPI")) != 0;
#endif
  if (!same) {
    version[strcspn(version, ",\n")] = '\0';
    FAIL(EK_ERR_UNAVAILABLE, "mpi: this is the module for %s, and the program uses another MPI: %s",
         THIS_MPI, version);
  }
  *given = &entries;
  return EK_OK;
}
