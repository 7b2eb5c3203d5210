/*
 * check_mesh.c - the wire over sockets alone. Both ends are in this process, and one thread drives
 * them in turns, so that every order of events can be made; peers that are killed or stopped are
 * children.
 */
#define _GNU_SOURCE /* fork() and signals beside C11 */
#include "world/mesh.h"

#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ek_check.h"
#include "net_calls.h"

enum { KINDS = 3, ROUNDS = 20000 };
static const int families[KINDS] = {AF_INET, AF_INET6, AF_UNIX};

/* Two connected sockets; false if the machine has no such addresses. */
static bool connect_two(int pair[2], int family) {
  struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
  struct sockaddr_in four = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  struct sockaddr *address = family == AF_INET ? (struct sockaddr *)&four : (struct sockaddr *)&six;
  socklen_t size = family == AF_INET ? sizeof four : sizeof six;
  if (family == AF_UNIX) return socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0;
  const int listener = socket(family, SOCK_STREAM, 0);
  pair[0] = socket(family, SOCK_STREAM, 0);
  const bool works = bind(listener, address, size) == 0 && listen(listener, 1) == 0 &&
                     getsockname(listener, address, &size) == 0 &&
                     connect(pair[0], address, size) == 0 &&
                     (pair[1] = accept4(listener, NULL, NULL, 0)) >= 0;
  (void)close(listener);
  if (!works) (void)close(pair[0]);
  return works;
}

/* Wires of processes 0 and 1 of two, which are closed after a test. */
static struct ek__wire wires[2];

static bool open_two(int family) {
  int pair[2], bulk[2];
  if (!connect_two(pair, family)) return false;
  ck_assert(connect_two(bulk, family));
  for (size_t i = 0; i < 2; i++) {
    const int sockets[2] = {pair[i], pair[i]}, more[2] = {bulk[i], bulk[i]};
    ck_ok(ek__mesh_make(&wires[i], i, 2, sockets, more));
  }
  return true;
}

static void close_wire(struct ek__wire *wire) {
  wire->table->close(wire->self);
  wire->table = NULL;
}

enum { PERIOD = 251 * 256 }; /* of byte_of() */

static unsigned char byte_of(size_t from, size_t number, size_t at) {
  return (unsigned char)(from * 31 + number * 101 + at * 7 + at / 251);
}

/* Moves of both processes with each other: number i of one belongs to number i of the other. */
struct traffic {
  struct ek__move moves[2][2 * EK__MOVES];
  size_t count;
};
static struct traffic with;

static void *bytes_of(size_t from, size_t number, size_t count) {
  unsigned char *bytes = malloc(count + 1);
  for (size_t k = 0; k < count && k < PERIOD; k++) bytes[k] = byte_of(from, number, k);
  for (size_t k = PERIOD; k < count; k += PERIOD) {
    memcpy(bytes + k, bytes, count - k < PERIOD ? count - k : PERIOD);
  }
  return bytes;
}

static void add_move(size_t from_0, size_t from_1) {
  const size_t sizes[2] = {from_0, from_1}, i = with.count++;
  for (size_t p = 0; p < 2; p++) {
    with.moves[p][i] = (struct ek__move){.peer = 1 - p,
                                          .out = bytes_of(p, i, sizes[p]),
                                          .out_bytes = sizes[p],
                                          .in = calloc(1, sizes[1 - p] + 1),
                                          .in_bytes = sizes[1 - p]};
  }
}

static void begin_moves(size_t p) {
  for (size_t i = 0; i < with.count; i++) {
    ck_ok(wires[p].table->begin(wires[p].self, &with.moves[p][i]));
  }
}

/* Tests all moves of a process, the last one first; whether all are done. */
static ek_status test_moves(bool *all, struct ek__wire *wire, size_t p) {
  *all = true;
  for (size_t i = with.count; i-- > 0;) {
    EK_TRY(wire->table->test(wire->self, &with.moves[p][i]));
    *all = *all && with.moves[p][i].done;
  }
  return EK_OK;
}

static ek_status finish(void) {
  bool all[2] = {false, false};
  for (int round = 0; !all[0] || !all[1]; round++) {
    for (size_t p = 0; p < 2; p++) EK_TRY(test_moves(&all[p], &wires[p], p));
    if (round > ROUNDS) return ek_error_set(EK_ERR_ABORTED, "it hangs");
    if (round % 16 == 15) wires[0].table->wait(wires[0].self, 0.001);
  }
  return EK_OK;
}

static void check_bytes(void) {
  for (size_t p = 0; p < 2; p++) {
    for (size_t i = 0; i < with.count; i++) {
      const struct ek__move *move = &with.moves[p][i];
      const unsigned char *in = move->in;
      void *right = bytes_of(1 - p, i, move->in_bytes);
      const bool same = memcmp(in, right, move->in_bytes) == 0;
      free(right);
      ck_assert_msg(same, "move %zu of process %zu: bytes are wrong", i, p);
      ck_assert_msg(in[move->in_bytes] == 0, "a byte after the end was written");
    }
  }
}

static void drop_moves(void) {
  for (size_t i = 0; i < 2 * with.count; i++) {
    struct ek__move *move = &with.moves[i % 2][i / 2];
    free((void *)(uintptr_t)move->out);
    free(move->in);
  }
  with.count = 0;
}

static void close_two(void) {
  for (size_t p = 0; p < 2; p++) {
    if (wires[p].table != NULL) close_wire(&wires[p]);
  }
  drop_moves();
}

/* ---- moves ---- */

static const size_t sizes[] = {
    0, 1, 7, 16, 4095, 4096, 65537, 0, 262144, 1000003, 9 * 1024 * 1024 + 5};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

CK_LOOP(bytes_arrive_in_order, KINDS) {
  if (!open_two(families[_i])) return;
  for (size_t first = 0; first < SIZES; first++) {
    for (size_t i = 0; i < EK__MOVES; i++) {
      add_move(sizes[(first + i) % SIZES], sizes[(first + 3 * i + 1) % SIZES]);
    }
    begin_moves(first % 2);
    begin_moves(1 - first % 2);
    ck_ok(finish());
    check_bytes();
    drop_moves();
  }
}

/* Bulk moves are matched apart: process 1 begins its half of them in another place. */
CK_LOOP(bulk_moves_have_an_order_of_their_own, KINDS) {
  if (!open_two(families[_i])) return;
  for (size_t i = 0; i < 2 * EK__MOVES; i++) {
    add_move(sizes[(5 * i + 2) % SIZES], sizes[(3 * i + 1) % SIZES]);
    with.moves[0][i].bulk = with.moves[1][i].bulk = i % 2 == 1;
  }
  begin_moves(0);
  for (size_t i = 0; i < 2 * EK__MOVES; i++) {
    const size_t number = i < EK__MOVES ? 2 * i + 1 : 2 * (i - EK__MOVES);
    ck_ok(wires[1].table->begin(wires[1].self, &with.moves[1][number]));
  }
  ck_ok(finish());
  check_bytes();
}

/* Also while the other process has no place for it. */
CK_TEST(a_bulk_move_delays_no_other) {
  ck_assert(open_two(AF_INET));
  add_move((size_t)16 << 20, 0);
  add_move(100, 200);
  with.moves[0][0].bulk = with.moves[1][0].bulk = true;
  begin_moves(0);
  struct ek__move *small = &with.moves[1][1];
  ck_ok(wires[1].table->begin(wires[1].self, small));
  for (int round = 0; round < ROUNDS && !(small->done && with.moves[0][1].done); round++) {
    for (size_t p = 0; p < 2; p++) ck_ok(wires[p].table->test(wires[p].self, &with.moves[p][1]));
  }
  ck_assert(small->done && with.moves[0][1].done && !with.moves[0][0].done);
  ck_ok(wires[1].table->begin(wires[1].self, &with.moves[1][0]));
  ck_ok(finish());
  check_bytes();
}

CK_TEST(a_mesh_for_notices_has_no_bulk_moves) {
  int pair[2];
  char byte = 0;
  struct ek__move move = {.peer = 1, .in = &byte, .in_bytes = 1, .bulk = true};
  ck_assert(connect_two(pair, AF_UNIX));
  CK_GOT(struct ek__wire, wire, ek__mesh_make(&wire, 0, 2, (const int[]){-1, pair[0]}, NULL));
  ck_fails(wire.table->begin(wire.self, &move), EK_ERR_INTERNAL, "bulk");
  close_wire(&wire);
  (void)close(pair[1]);
}

/* The wait that is under way, or the next one. */
CK_TEST(waiting_is_ended_from_outside) {
  ck_assert(open_two(AF_INET));
  const double begun = ck_now();
  for (int i = 0; i < 3; i++) wires[0].table->wake(wires[0].self);
  wires[0].table->wait(wires[0].self, 30);
  ck_assert_double_lt(ck_now() - begun, 10);
  const double idle = ck_now();
  wires[0].table->wait(wires[0].self, 0.05); /* once */
  ck_assert_double_ge(ck_now() - idle, 0.049);
}

CK_TEST(a_large_move) {
  ck_assert(open_two(AF_INET));
  add_move((size_t)64 << 20, (size_t)64 << 20);
  begin_moves(0);
  begin_moves(1);
  ck_ok(finish());
  check_bytes();
}

/* wait() alone advances moves. After a move has become complete it comes back at once, because the
 * caller may have tested that one before; after that it sleeps, also while a move that is complete
 * has not been tested. */
CK_TEST(waiting_advances_all) {
  ck_assert(open_two(AF_INET));
  add_move(100, 200);
  begin_moves(0);
  begin_moves(1);
  const double begun = ck_now();
  while (with.moves[0][0].used[1] < 200) wires[0].table->wait(wires[0].self, 30);
  wires[0].table->wait(wires[0].self, 30);
  ck_assert_double_lt(ck_now() - begun, 10);
  const double complete = ck_now();
  wires[0].table->wait(wires[0].self, 0.05);
  ck_assert_double_ge(ck_now() - complete, 0.049);
  ck_ok(finish());
  const double idle = ck_now();
  wires[0].table->wait(wires[0].self, 0.05); /* and nothing to wait for takes that long */
  ck_assert_double_ge(ck_now() - idle, 0.049);
}

CK_TEST(too_many_moves_are_refused) {
  char byte = 0;
  ck_assert(open_two(AF_INET));
  for (int i = 0; i < EK__MOVES; i++) add_move(1, 1);
  begin_moves(0);
  struct ek__move more = {.peer = 1, .in = &byte, .in_bytes = 1};
  ck_fails(wires[0].table->begin(wires[0].self, &more), EK_ERR_INTERNAL, "more than 4");
  begin_moves(1);
  ck_ok(finish());
  check_bytes();
}

static const size_t unlike[][2] = {{1, 2}, {2, 1}, {100, 99}, {1000000, 1000001}};

CK_LOOP(sizes_that_differ_are_an_error_of_both, 4) {
  bool all = false;
  ck_assert(open_two(AF_INET));
  add_move(unlike[_i][0], 0);
  with.moves[1][0].in_bytes = unlike[_i][1];
  free(with.moves[1][0].in);
  with.moves[1][0].in = calloc(1, unlike[_i][1]);
  begin_moves(0);
  begin_moves(1);
  ek_status status = EK_OK;
  for (int i = 0; i < ROUNDS && status == EK_OK; i++) {
    (void)test_moves(&all, &wires[0], 0);
    status = test_moves(&all, &wires[1], 1);
  }
  ck_assert_int_eq(status, EK_ERR_IO);
  ck_assert_ptr_nonnull(strstr(ek_error_message(), "instead of one of"));
  ck_fails(wires[1].table->begin(wires[1].self, &with.moves[1][0]), EK_ERR_IO, "instead of one of");
  while (!wires[0].table->gone(wires[0].self, 1)) continue; /* the other one learns it */
}

/* ---- notices ---- */

static bool take(struct ek__wire *wire, size_t from, unsigned char first) {
  unsigned char got[EK__NOTICE], want[EK__NOTICE];
  memset(want, first, sizeof want);
  for (int i = 0; i < ROUNDS; i++) {
    if (wire->table->noticed(wire->self, from, got)) return memcmp(got, want, sizeof got) == 0;
  }
  return false;
}

static void give(struct ek__wire *wire, size_t to, unsigned char first) {
  unsigned char text[EK__NOTICE];
  memset(text, first, sizeof text);
  ck_assert(wire->table->notify(wire->self, to, text));
}

CK_LOOP(notices_pass_between_moves, KINDS) {
  char text[EK__NOTICE];
  if (!open_two(families[_i])) return;
  add_move(70000, 50000);
  add_move(3000000, 1);
  give(&wires[0], 1, 1);
  begin_moves(0); /* more than the system takes at once */
  give(&wires[0], 1, 2);
  give(&wires[1], 0, 3);
  begin_moves(1);
  give(&wires[1], 0, 4);
  ck_ok(finish());
  check_bytes();
  ck_assert(take(&wires[1], 0, 1));
  ck_assert(take(&wires[1], 0, 2));
  ck_assert(take(&wires[0], 1, 3));
  ck_assert(take(&wires[0], 1, 4));
  ck_assert(!wires[0].table->noticed(wires[0].self, 1, text));
}

/* A process that reads none does not hold up the one that sends: that is refused at some point,
 * and no notice is lost or out of order. */
CK_TEST(notices_that_are_not_taken) {
  unsigned char text[EK__NOTICE] = {0};
  int sent = 0;
  ck_assert(open_two(AF_INET));
  for (; sent < 1000000; sent++) {
    memcpy(text, &sent, sizeof sent);
    if (!wires[0].table->notify(wires[0].self, 1, text)) break;
  }
  ck_assert_int_lt(sent, 1000000);
  for (int i = 0; i < sent; i++) {
    int number = -1;
    for (int k = 0; k < ROUNDS && !wires[1].table->noticed(wires[1].self, 0, text); k++) {
      (void)wires[0].table->noticed(wires[0].self, 1, text); /* goes on sending */
    }
    memcpy(&number, text, sizeof number);
    ck_assert_int_eq(number, i);
  }
}

/* What was sent before a process closes its wire arrives: the last notice, and bytes of moves. */
CK_LOOP(the_last_words_arrive, KINDS) {
  if (!open_two(families[_i])) return;
  add_move(50000, 0);
  begin_moves(0);
  CK_GOT(bool, all, test_moves(&all, &wires[0], 0));
  ck_assert(all);
  give(&wires[1], 0, 8); /* not read by the one that closes */
  give(&wires[0], 1, 9);
  close_wire(&wires[0]);
  begin_moves(1);
  for (int i = 0; i < ROUNDS && !with.moves[1][0].done; i++) ck_ok(test_moves(&all, &wires[1], 1));
  ck_assert(all);
  ck_assert(take(&wires[1], 0, 9));
  ck_assert(wires[1].table->gone(wires[1].self, 0));
  ck_assert_mem_eq(with.moves[1][0].in, with.moves[0][0].out, 50000);
}

/* ---- peers that end or stop ---- */

/* Process 1 in a child, which begins a move of 64 MiB each way and goes on until it is killed. */
static pid_t start_child(struct ek__wire *wire) {
  int pair[2];
  bool all = false;
  ck_assert(connect_two(pair, AF_INET));
  const pid_t child = fork();
  ck_assert_int_ge(child, 0);
  const size_t p = child == 0 ? 1 : 0;
  const int sockets[2] = {pair[p], pair[p]};
  (void)close(pair[1 - p]);
  if (ek__mesh_make(wire, p, 2, sockets, NULL) != EK_OK) abort();
  if (child > 0) return child;
  if (wire->table->begin(wire->self, &with.moves[1][0]) != EK_OK) _exit(1);
  for (;;) {
    if (test_moves(&all, wire, 1) != EK_OK) _exit(2);
    wire->table->wait(wire->self, 0.01);
  }
}

static void stop_child(pid_t child, int signal) {
  (void)kill(child, signal);
  (void)waitpid(child, NULL, WUNTRACED);
}

/* Goes on until `bytes` have come. */
static void receive(struct ek__wire *wire, struct ek__move *move, size_t bytes) {
  while (move->used[1] < bytes) {
    ck_ok(wire->table->test(wire->self, move));
    wire->table->wait(wire->self, 0.01);
  }
}

/* In the midst of a move, after part `_i` of it. */
CK_LOOP(a_peer_that_is_killed, 4) {
  struct ek__wire wire;
  add_move((size_t)64 << 20, (size_t)64 << 20);
  const pid_t child = start_child(&wire);
  struct ek__move *move = &with.moves[0][0];
  ck_ok(wire.table->begin(wire.self, move));
  receive(&wire, move, (size_t)_i * 5000000);
  ck_assert(!wire.table->gone(wire.self, 1));
  const double killed = ck_now();
  stop_child(child, SIGKILL);
  ek_status status = EK_OK;
  while (status == EK_OK && ck_now() < killed + 30) { /* what it had sent comes first */
    status = wire.table->test(wire.self, move);
    if (status == EK_OK) wire.table->wait(wire.self, 1);
  }
  ck_assert_int_eq(status, EK_ERR_IO);
  ck_assert_ptr_nonnull(strstr(ek_error_message(), "connection"));
  ck_assert(!move->done && wire.table->gone(wire.self, 1));
  ck_assert_double_lt(ck_now() - killed, 5);
  ck_assert(!wire.table->notify(wire.self, 1, move->out));
  const double idle = ck_now();
  wire.table->wait(wire.self, 0.02); /* a connection that has ended wakes nothing up again */
  ck_assert_double_ge(ck_now() - idle, 0.019);
  close_wire(&wire);
}

CK_TEST(a_peer_that_is_stopped) {
  struct ek__wire wire;
  add_move((size_t)64 << 20, (size_t)64 << 20);
  const pid_t child = start_child(&wire);
  struct ek__move *move = &with.moves[0][0];
  ck_ok(wire.table->begin(wire.self, move));
  receive(&wire, move, 1000000);
  stop_child(child, SIGSTOP);
  const double stopped = ck_now();
  for (size_t before = 0; before < move->used[0] + move->used[1];) { /* what the system has moves */
    before = move->used[0] + move->used[1];
    wire.table->wait(wire.self, 0.2);
    ck_ok(wire.table->test(wire.self, move));
    ck_assert(!move->done && !wire.table->gone(wire.self, 1) && ck_now() < stopped + 30);
  }
  (void)kill(child, SIGCONT);
  while (!move->done) {
    ck_ok(wire.table->test(wire.self, move));
    wire.table->wait(wire.self, 0.01);
  }
  stop_child(child, SIGKILL);
  ck_assert_mem_eq(move->in, with.moves[1][0].out, move->in_bytes);
  close_wire(&wire);
}

/* ---- hostile peers ---- */

struct header {
  uint32_t magic, kind;
  uint64_t bytes;
};

static const struct header wrong[] = {
    {0, 1, 8},          {0x656b6d31, 0, 8},          {0x656b6d31, 3, 8},
    {0x656b6d31, 1, 0}, {0x656b6d31, 1, UINT64_MAX}, {0x656b6d31, 1, 9},
    {0x656b6d31, 2, 8}, {0x656b6d31, 2, UINT64_MAX}, {0x316d6b65, 0x1000000, 8}};

/* A header in pieces of any length, and rubbish in its place. */
CK_LOOP(headers_that_are_wrong, 9) {
  int pair[2];
  char in[8] = {0};
  struct ek__move move = {.peer = 1, .in = in, .in_bytes = sizeof in};
  ck_assert(connect_two(pair, AF_INET));
  CK_GOT(struct ek__wire, wire, ek__mesh_make(&wire, 0, 2, (const int[]){-1, pair[0]}, NULL));
  ck_ok(wire.table->begin(wire.self, &move));
  for (size_t k = 0; k < sizeof(struct header); k++) {
    ck_assert_int_eq(send(pair[1], (const char *)&wrong[_i] + k, 1, MSG_NOSIGNAL), 1);
    if (k + 1 < sizeof(struct header)) ck_ok(wire.table->test(wire.self, &move));
  }
  ek_status status = EK_OK;
  for (int i = 0; i < ROUNDS && status == EK_OK; i++) status = wire.table->test(wire.self, &move);
  ck_assert_int_eq(status, EK_ERR_IO);
  ck_assert_ptr_nonnull(strstr(ek_error_message(), "came"));
  ck_assert(!move.done && in[0] == 0);
  close_wire(&wire);
  (void)close(pair[1]);
}

/* The end of a connection in the middle of a header or of the bytes. */
CK_LOOP(messages_that_are_cut, 24) {
  int pair[2];
  char in[8] = {0};
  struct ek__move move = {.peer = 1, .in = in, .in_bytes = sizeof in};
  const struct header right = {0x656b6d31, 1, 8};
  char frame[24] = "";
  memcpy(frame, &right, sizeof right);
  ck_assert(connect_two(pair, AF_INET));
  CK_GOT(struct ek__wire, wire, ek__mesh_make(&wire, 0, 2, (const int[]){-1, pair[0]}, NULL));
  ck_ok(wire.table->begin(wire.self, &move));
  ck_assert_int_eq(send(pair[1], frame, (size_t)_i, MSG_NOSIGNAL), _i);
  (void)close(pair[1]);
  ek_status status = EK_OK;
  for (int i = 0; i < ROUNDS && status == EK_OK; i++) status = wire.table->test(wire.self, &move);
  ck_assert_int_eq(status, EK_ERR_IO);
  close_wire(&wire);
}

/* ---- the system ---- */

static ek_status try_traffic(const int pair[2]) {
  unsigned char text[EK__NOTICE] = {7};
  ek_status status = ek__mesh_make(&wires[0], 0, 2, (const int[]){-1, pair[0]}, NULL);
  if (status != EK_OK) (void)close(pair[1]);
  EK_TRY(status);
  status = ek__mesh_make(&wires[1], 1, 2, (const int[]){pair[1], -1}, NULL);
  if (status != EK_OK) close_wire(&wires[0]);
  EK_TRY(status);
  add_move(100000, 33);
  add_move(1, 5000000);
  (void)wires[0].table->notify(wires[0].self, 1, text);
  begin_moves(0);
  for (size_t i = 0; i < 2 && status == EK_OK; i++) {
    status = wires[1].table->begin(wires[1].self, &with.moves[1][i]);
  }
  if (status == EK_OK) status = finish();
  if (status == EK_OK) check_bytes();
  if (status == EK_OK) (void)wires[1].table->noticed(wires[1].self, 0, text);
  (void)wires[0].table->gone(wires[0].self, 1);
  close_two();
  return status;
}

/* Every call meets every fault once; what only interrupts, delays or shortens costs nothing. */
CK_LOOP_FROM(each_call_of_the_system_fails_once, NET_RESET, NET_FAULTS) {
  int calls = 0;
  for (int n = 1; n <= calls || n == 1; n++) {
    if (n > 60 && n % 7 != 0) continue;
    int pair[2];
    ck_assert(connect_two(pair, AF_INET));
    net_calls_begin((enum net_fault)_i, n);
    const ek_status status = try_traffic(pair);
    calls = net_calls_end();
    ck_assert_msg(status == EK_OK || (status == EK_ERR_IO && _i < NET_INTR), "call %d: %s: %s", n,
                  ek_status_name(status), ek_error_message());
    if (calls > 400) calls = 400;
  }
  ck_assert_int_gt(calls, 20);
}

CK_TEST(bytes_one_by_one) {
  ck_assert(open_two(AF_INET));
  add_move(300, 77);
  add_move(1, 0);
  net_calls_begin(NET_SHORT, -1);
  begin_moves(0);
  give(&wires[0], 1, 5);
  begin_moves(1);
  const ek_status status = finish();
  (void)net_calls_end();
  ck_ok(status);
  check_bytes();
  ck_assert(take(&wires[1], 0, 5));
}

CK_SUITE_WITH("mesh", NULL, close_two)
