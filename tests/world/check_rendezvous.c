/*
 * check_rendezvous.c - processes that find each other, which are threads here: each calls
 * ek__meet() and records what came of it. Strangers connect, and the system's calls fail.
 */
#define _GNU_SOURCE /* threads and sockets beside C11 */
#include "world/meetings.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ck_folder.h"
#include "ek_check.h"
#include "net_calls.h"

enum { MOST = 6 };

struct member {
  struct ek__meeting meeting;
  struct ek__by_name name;
  struct ek__by_file file;
  struct ek__by_gather gather;
  struct ek__wire wires[EK__WIRES];
  ek_status status;
  char message[1024];
  pthread_t thread;
  double seconds;
};

static void *meet(void *argument) {
  struct member *member = argument;
  const double begun = ek__clock();
  ek_error_clear();
  member->status = ek__meet(member->wires, &member->meeting);
  member->seconds = ek__clock() - begun;
  (void)snprintf(member->message, sizeof member->message, "%s", ek_error_message());
  return NULL;
}

static void start(struct member *member) {
  ck_assert_int_eq(pthread_create(&member->thread, NULL, meet, member), 0);
}

static void join(struct member *members, size_t count) {
  for (size_t p = 0; p < count; p++) ck_assert_int_eq(pthread_join(members[p].thread, NULL), 0);
}

static void all_meet(struct member *members, size_t count) {
  for (size_t p = 0; p < count; p++) start(&members[p]);
  join(members, count);
}

static struct ek__meeting meeting_of(size_t process, size_t processes, double limit) {
  return (struct ek__meeting){
      .process = process, .processes = processes, .wires = EK__WIRES, .limit = limit};
}

/* A port that is free now. */
static uint16_t free_port(void) {
  struct ek__place place = {.family = 4, .address = {127, 0, 0, 1}};
  CK_GOT(int, socket, ek__listen(&socket, &place));
  (void)close(socket);
  return place.port;
}

static void prepare_by_name(struct member *members, size_t count, const char *host, double limit) {
  const uint16_t port = free_port();
  for (size_t p = 0; p < count; p++) {
    members[p] = (struct member){.meeting = meeting_of(p, count, limit)};
    members[p].name = (struct ek__by_name){.host = host, .ports = {port}, .count = 1};
    ek__token_make(members[p].name.token, &(const char *){"the job"}, 1);
    ek__by_name(&members[p].meeting, &members[p].name);
  }
}

/* Every two have a connection, in the right place. */
static void check_wires(struct member *members, size_t count, size_t wires) {
  unsigned char notice[EK__NOTICE];
  for (size_t w = 0; w < wires; w++) {
    for (size_t p = 0; p < count; p++) {
      for (size_t k = 0; k < count; k++) {
        memset(notice, (int)(p * 16 + k), sizeof notice);
        const struct ek__wire *wire = &members[p].wires[w];
        ck_assert(k == p || wire->table->notify(wire->self, k, notice));
      }
    }
    for (size_t p = 0; p < count; p++) {
      for (size_t k = 0; k < count; k++) {
        const struct ek__wire *wire = &members[p].wires[w];
        bool got = k == p;
        for (int i = 0; i < 100000 && !got; i++) got = wire->table->noticed(wire->self, k, notice);
        ck_assert_msg(k == p || (got && notice[0] == k * 16 + p), "from %zu to %zu", k, p);
      }
    }
  }
}

static void close_all(struct member *members, size_t count, size_t wires) {
  for (size_t i = 0; i < count * wires; i++) {
    const struct ek__wire *wire = &members[i / wires].wires[i % wires];
    if (members[i / wires].status == EK_OK) wire->table->close(wire->self);
  }
}

static void all_are_well(struct member *members, size_t count) {
  for (size_t p = 0; p < count; p++) {
    ck_assert_msg(members[p].status == EK_OK, "process %zu: %s", p, members[p].message);
  }
  check_wires(members, count, EK__WIRES);
  close_all(members, count, EK__WIRES);
}

static void failed(const struct member *member, ek_status status, const char *words) {
  ck_assert_msg(member->status == status && strstr(member->message, words) != NULL,
                "%s: %s, expected \"%s\"", ek_status_name(member->status), member->message, words);
}

/* ---- by name ---- */

static bool has_ipv6(void) {
  struct ek__place place = {.family = 6, .address = {[15] = 1}};
  int socket = -1;
  const bool has = ek__listen(&socket, &place) == EK_OK;
  if (has) (void)close(socket);
  return has;
}

CK_LOOP(all_find_each_other, MOST) {
  struct member members[MOST];
  const size_t count = (size_t)_i + 1;
  if (count == 3 && !has_ipv6()) return;
  prepare_by_name(members, count, count == 3 ? "::1" : "127.0.0.1", 20);
  for (size_t p = count; p-- > 0;) start(&members[p]);
  join(members, count);
  all_are_well(members, count);
}

/* The name means nothing here, or another machine: process 0 listens everywhere then. */
CK_TEST(the_name_is_an_address_of_none) {
  struct member members[2];
  prepare_by_name(members, 2, "192.0.2.1", 20); /* of no machine, by RFC 5737 */
  members[1].name.host = "127.0.0.1";
  all_meet(members, 2);
  all_are_well(members, 2);
}

CK_TEST(those_that_do_not_come_are_named) {
  struct member members[MOST];
  prepare_by_name(members, 6, "127.0.0.1", 0.5);
  start(&members[0]);
  start(&members[2]);
  ck_assert_int_eq(pthread_join(members[0].thread, NULL), 0);
  ck_assert_int_eq(pthread_join(members[2].thread, NULL), 0);
  const char *place = ck_text("127.0.0.1:%u: 1, 3 to 5", members[0].name.ports[0]);
  failed(&members[0], EK_ERR_UNAVAILABLE, place);
  failed(&members[2], EK_ERR_UNAVAILABLE, place);
}

CK_TEST(process_0_does_not_come) {
  struct member members[2];
  prepare_by_name(members, 2, "127.0.0.1", 0.3);
  start(&members[1]);
  join(&members[1], 1);
  failed(&members[1], EK_ERR_UNAVAILABLE, "has not reached process 0 after 0.3 seconds");
  ck_assert_double_lt(members[1].seconds, 5);
}

/* The others try the ports of the job in turn; a program that has the first one says nothing
 * useful. */
CK_TEST(a_port_that_another_program_has) {
  struct member members[3];
  struct ek__place place = {.family = 4, .address = {127, 0, 0, 1}};
  CK_GOT(int, other, ek__listen(&other, &place));
  prepare_by_name(members, 3, "127.0.0.1", 20);
  for (size_t p = 0; p < 3; p++) {
    ck_assign(members[p].name, .ports[1] = members[p].name.ports[0], .ports[0] = place.port,
              .count = 2);
    start(&members[p]);
  }
  for (int answered = 0; answered < 2;) { /* one connection of each of the two */
    const int guest = accept4(other, NULL, NULL, 0);
    if (guest < 0) continue;
    (void)send(guest, "220 mail.example.org ready for you\r\n", 36, MSG_NOSIGNAL);
    (void)close(guest);
    answered++;
  }
  join(members, 3);
  (void)close(other);
  all_are_well(members, 3);
}

CK_TEST(no_port_is_free) {
  struct member members[1];
  struct ek__place place = {.family = 4, .address = {127, 0, 0, 1}};
  prepare_by_name(members, 1, "127.0.0.1", 0.3);
  place.port = members[0].name.ports[0];
  CK_GOT(int, other, ek__listen(&other, &place));
  members[0].meeting.address = members[0].name.address = "127.0.0.1";
  members[0].meeting.processes = 2;
  all_meet(members, 1);
  (void)close(other);
  failed(&members[0], EK_ERR_UNAVAILABLE, "cannot listen at 127.0.0.1:");
}

/* ---- what is refused ---- */

CK_TEST(another_token_is_another_job) {
  struct member members[2];
  prepare_by_name(members, 2, "127.0.0.1", 0.5);
  members[0].meeting.limit = 1; /* it is there to the end */
  members[1].name.token[31] ^= 1;
  all_meet(members, 2);
  failed(&members[0], EK_ERR_UNAVAILABLE, "have not reached");
  failed(&members[1], EK_ERR_UNAVAILABLE, "it belongs to another job");
}

CK_TEST(another_number_of_processes) {
  struct member members[2];
  prepare_by_name(members, 2, "127.0.0.1", 0.5);
  members[1].meeting.processes = 3;
  all_meet(members, 2);
  failed(&members[1], EK_ERR_INVALID_ARGUMENT, "was started as one of 3, others as some of 2");
}

CK_TEST(a_number_that_is_there_already) {
  struct member members[4];
  prepare_by_name(members, 3, "127.0.0.1", 20);
  members[3] = members[1];
  members[3].meeting.context = &members[3].name;
  start(&members[0]);
  start(&members[1]);
  start(&members[3]);
  (void)usleep(300000); /* one of the two is refused, the other one waits for process 2 */
  start(&members[2]);
  join(members, 4);
  struct member *second = members[1].status == EK_OK ? &members[3] : &members[1];
  failed(second, EK_ERR_INVALID_ARGUMENT, "another process with the number 1 of 3");
  if (second == &members[1]) members[1] = members[3];
  all_are_well(members, 3);
}

/* Process 1 comes, gives up, and comes again. */
CK_TEST(a_number_that_comes_again) {
  struct member members[3], early[1];
  prepare_by_name(members, 3, "127.0.0.1", 20);
  early[0] = members[1];
  early[0].meeting.context = &early[0].name;
  early[0].meeting.limit = -4.5; /* it waits 0.5 s for the outcome */
  start(&members[0]);
  (void)usleep(100000);
  start(&early[0]);
  join(early, 1);
  failed(&early[0], EK_ERR_UNAVAILABLE, "process 0");
  start(&members[1]);
  start(&members[2]);
  join(members, 3);
  all_are_well(members, 3);
}

/* ---- strangers ---- */

/* Connects and sends some bytes; what it was answered, in bytes, if it waits for that. */
static int stranger(uint16_t port, const void *bytes, size_t count) {
  const struct ek__place place = {.family = 4, .address = {127, 0, 0, 1}, .port = port};
  const char *why = NULL;
  const int socket = ek__connect(&place, ek__clock() + 5, &why);
  if (socket >= 0 && count > 0) (void)send(socket, bytes, count, MSG_NOSIGNAL);
  return socket;
}

enum { IDLE = 150, NOISY = 60, HELLO = 96, CHANNEL_AT = 32 };

/* What process `p` says first, taken by a listener in place of process 0. */
static void take_hello(unsigned char hello[HELLO], const struct member *process) {
  struct ek__place place = {.family = 4, .address = {127, 0, 0, 1}};
  struct member member = *process;
  int listener = -1, guest = -1;
  ck_ok(ek__listen(&listener, &place));
  ck_assign(member.meeting, .context = &member.name, .limit = 0.5);
  member.name.ports[0] = place.port;
  start(&member);
  for (int i = 0; i < 5000 && (guest = accept(listener, NULL, NULL)) < 0; i++) (void)usleep(1000);
  ck_assert_int_ge(guest, 0);
  ck_assert_int_eq(fcntl(guest, F_SETFL, 0), 0);
  ck_assert_int_eq(recv(guest, hello, HELLO, MSG_WAITALL), HELLO);
  (void)close(guest);
  (void)close(listener);
  join(&member, 1);
}

/* Says a hello for one channel, and hears that it is welcome. */
static int say(uint16_t port, const unsigned char hello[HELLO], uint64_t channel) {
  unsigned char bytes[HELLO], answer[24];
  memcpy(bytes, hello, HELLO);
  memcpy(bytes + CHANNEL_AT, &channel, sizeof channel);
  const int socket = stranger(port, bytes, HELLO);
  ck_assert_int_ge(socket, 0);
  ck_assert_int_eq(fcntl(socket, F_SETFL, 0), 0);
  ck_assert_int_eq(recv(socket, answer, sizeof answer, MSG_WAITALL), sizeof answer);
  ck_assert_int_eq(answer[12], 1);
  return socket;
}

/* Process 1 comes, dies and comes again; between its two connections process 2 comes. */
CK_TEST(what_comes_again_comes_in_parts) {
  struct member members[3];
  unsigned char hello[HELLO], outcome[8];
  prepare_by_name(members, 3, "127.0.0.1", 5); /* process 0 waits for process 1 to the end */
  members[2].meeting.limit = 3; /* it does not reach process 1, which listens nowhere */
  const uint16_t port = members[0].name.ports[0];
  take_hello(hello, &members[1]);
  start(&members[0]);
  (void)usleep(100000);
  const int early[2] = {say(port, hello, 0), say(port, hello, 1)};
  (void)close(early[0]);
  (void)close(early[1]);
  const int first = say(port, hello, 0);
  start(&members[2]);
  (void)usleep(200000);
  const int second = say(port, hello, 1);
  ck_assert_int_eq(recv(first, outcome, sizeof outcome, MSG_WAITALL), sizeof outcome);
  (void)close(first);
  (void)close(second);
  ck_assert_int_eq(pthread_join(members[0].thread, NULL), 0);
  ck_assert_int_eq(pthread_join(members[2].thread, NULL), 0);
  close_all(members, 1, EK__WIRES);
}

CK_TEST(strangers_do_not_disturb) {
  struct member members[3];
  int idle[IDLE];
  unsigned char bytes[512];
  prepare_by_name(members, 3, "127.0.0.1", 30);
  const uint16_t port = members[0].name.ports[0];
  start(&members[0]);
  while ((idle[0] = stranger(port, NULL, 0)) < 0) continue; /* it listens now */
  for (int i = 1; i < IDLE; i++)
    idle[i] = stranger(port, "ekhello", (size_t)(i % 9 == 8 ? 8 : i % 9));
  for (int i = 0; i < NOISY; i++) {
    for (size_t k = 0; k < sizeof bytes; k++) bytes[k] = (unsigned char)rand();
    if (i % 3 == 0) memcpy(bytes, "ekhello", 8); /* and then rubbish */
    const int socket = stranger(port, bytes, i % 5 == 0 ? (size_t)(i % 100) : sizeof bytes);
    if (socket >= 0) (void)close(socket);
  }
  start(&members[1]);
  start(&members[2]);
  join(members, 3);
  for (int i = 0; i < IDLE; i++) {
    if (idle[i] >= 0) (void)close(idle[i]);
  }
  all_are_well(members, 3);
}

/* ---- by a file ---- */

static void prepare_by_file(struct member *members, size_t count, const char *path, double limit) {
  for (size_t p = 0; p < count; p++) {
    members[p] = (struct member){.meeting = meeting_of(p, count, limit)};
    members[p].file = (struct ek__by_file){.path = path, .token = "the job"};
    ek__by_file(&members[p].meeting, &members[p].file);
  }
}

static void write_rubbish(const char *path, size_t bytes) {
  char rubbish[5000];
  memset(rubbish, 'x', sizeof rubbish);
  ck_write_file(path, rubbish, bytes);
}

/* What is there before: nothing, rubbish, what a job wrote that has ended. */
CK_LOOP(a_file_and_what_an_earlier_job_left, 4) {
  struct member members[3], old[1];
  const char *folder = ck_folder(), *path = ck_file(folder, "world");
  if (_i == 1) write_rubbish(path, 0);
  if (_i == 2) write_rubbish(path, 5000);
  if (_i == 3) { /* killed: it had no time to remove it */
    prepare_by_file(old, 1, path, 0.1);
    ck_assign(old[0].meeting, .processes = 2, .withdraw = NULL);
    start(&old[0]);
    join(old, 1);
    failed(&old[0], EK_ERR_UNAVAILABLE, "have not reached");
    ck_assert_int_eq(access(path, F_OK), 0);
  }
  prepare_by_file(members, 3, path, 20);
  start(&members[1]);
  start(&members[2]);
  (void)usleep(100000); /* they read what is there */
  start(&members[0]);
  join(members, 3);
  all_are_well(members, 3);
  ck_assert_int_eq(ck_folder_entries(folder), 0);
}

/* An earlier job that still waits, with another token, gets none of the new one's processes. */
CK_TEST(a_file_of_a_job_that_still_waits) {
  struct member members[2], old[1];
  const char *folder = ck_folder(), *path = ck_file(folder, "world");
  prepare_by_file(old, 1, path, 1);
  ck_assign(old[0], .meeting.processes = 2, .file.token = "an earlier job");
  start(&old[0]);
  while (access(path, F_OK) != 0) continue;
  prepare_by_file(members, 2, path, 20);
  start(&members[1]);
  (void)usleep(100000);
  start(&members[0]);
  join(members, 2);
  join(old, 1);
  failed(&old[0], EK_ERR_UNAVAILABLE, "have not reached");
  all_are_well(members, 2);
  ck_assert_int_eq(ck_folder_entries(folder), 0);
}

CK_TEST(a_file_that_cannot_be_written) {
  struct member members[2];
  prepare_by_file(members, 2, "/nonexistent/folder/world", 0.3);
  all_meet(members, 2);
  failed(&members[0], EK_ERR_IO, "cannot write /nonexistent/folder/world: No such file");
  failed(&members[1], EK_ERR_UNAVAILABLE, "process 0 has not written /nonexistent/folder/world");
}

/* ---- by a function ---- */

struct meeting_place {
  pthread_barrier_t barrier;
  char *all;
  size_t bytes;
  atomic_int calls;
  int wrong; /* 1: fails in process 1; 2: in another order */
};
struct gatherer {
  struct meeting_place *place;
  size_t process, processes;
};

static ek_status gather(void *context, const void *mine, size_t bytes, void *all) {
  const struct gatherer *of = context;
  struct meeting_place *place = of->place;
  const size_t at = place->wrong == 2 ? of->processes - 1 - of->process : of->process;
  (void)atomic_fetch_add(&place->calls, 1);
  if (pthread_barrier_wait(&place->barrier) == PTHREAD_BARRIER_SERIAL_THREAD) {
    place->all = calloc(of->processes, bytes);
  }
  (void)pthread_barrier_wait(&place->barrier);
  memcpy(place->all + at * bytes, mine, bytes);
  (void)pthread_barrier_wait(&place->barrier);
  memcpy(all, place->all, of->processes * bytes);
  if (pthread_barrier_wait(&place->barrier) == PTHREAD_BARRIER_SERIAL_THREAD) free(place->all);
  if (place->wrong == 1 && of->process == 1) return ek_error_set(EK_ERR_IO, "the line is dead");
  return EK_OK;
}

static void meet_by_gather(struct member *members, size_t count, int wrong, const char *address) {
  struct meeting_place place = {.wrong = wrong};
  struct gatherer gatherers[MOST];
  ck_assert_int_eq(pthread_barrier_init(&place.barrier, NULL, (unsigned)count), 0);
  for (size_t p = 0; p < count; p++) {
    gatherers[p] = (struct gatherer){&place, p, count};
    members[p] = (struct member){.meeting = meeting_of(p, count, wrong == 0 ? 20 : 0.5)};
    members[p].meeting.address = address;
    members[p].gather = (struct ek__by_gather){.gather = gather, .context = &gatherers[p]};
    ek__by_gather(&members[p].meeting, &members[p].gather);
    start(&members[p]);
  }
  join(members, count);
  ck_assert_int_eq(atomic_load(&place.calls), (int)count);
  pthread_barrier_destroy(&place.barrier);
}

CK_LOOP(a_function_gathers, 3) {
  static const char *const addresses[] = {NULL, "127.0.0.1", "lo"};
  struct member members[4];
  meet_by_gather(members, 4, 0, addresses[_i]);
  all_are_well(members, 4);
}

CK_TEST(a_function_that_fails) {
  struct member members[3];
  meet_by_gather(members, 3, 1, NULL);
  failed(&members[1], EK_ERR_IO, "world: gather: the line is dead");
  failed(&members[0], EK_ERR_UNAVAILABLE, ": 1");
  meet_by_gather(members, 3, 2, NULL);
  failed(&members[0], EK_ERR_INVALID_ARGUMENT, "is not what process 0 of 3 gave");
}

/* Nothing to listen at: all learn it. */
CK_TEST(an_address_that_is_none) {
  struct member members[3];
  meet_by_gather(members, 3, 0, "no.such.interface.invalid");
  failed(&members[0], EK_ERR_INVALID_ARGUMENT, "not a network interface of this machine");
  failed(&members[1], EK_ERR_IO, "process 0 cannot listen");
  failed(&members[2], EK_ERR_IO, "process 0 cannot listen");
}

/* ---- the system ---- */

/* Two processes meet, or give up with a message soon after the limit; how many calls they made. */
static int meet_with(enum net_fault fault, int n) {
  struct member members[2];
  prepare_by_name(members, 2, "127.0.0.1", fault == NET_NONE ? 20 : 0.2);
  net_calls_begin(fault, n);
  all_meet(members, 2);
  const int calls = net_calls_end();
  for (size_t p = 0; p < 2; p++) {
    ck_assert_msg(members[p].status == EK_OK || (fault != NET_NONE && *members[p].message != '\0'),
                  "call %d: %s", n, members[p].message);
    ck_assert_msg(members[p].seconds < 12, "call %d: %g s", n, members[p].seconds);
  }
  close_all(members, 2, EK__WIRES);
  return calls;
}

CK_LOOP_FROM(each_call_of_the_system_fails_once, NET_RESET, NET_FAULTS) {
  const int every = (int)ck_every(5), calls = meet_with(NET_NONE, 0);
  ck_assert_int_gt(calls, 40);
  for (int n = 1 + _i % every; n <= calls; n += every) (void)meet_with((enum net_fault)_i, n);
  (void)meet_with(NET_NONE, 0);
}

CK_TEST(no_memory) {
  for (uint64_t n = 1; n < 12; n++) {
    struct member members[1];
    prepare_by_name(members, 1, "127.0.0.1", 5);
    ek_host_memory_fail_at(n);
    (void)meet(&members[0]);
    ek_host_memory_fail_at(0);
    if (members[0].status != EK_OK) failed(&members[0], EK_ERR_OUT_OF_MEMORY, "memory");
    close_all(members, 1, EK__WIRES);
    if (members[0].status == EK_OK) ck_assert_uint_ge(n, 5);
  }
}

/* ---- lists of nodes ---- */

static const struct {
  const char *list, *first;
} lists[] = {
    {"node7", "node7"}, {"node7,node9", "node7"}, {"n[003-010,12],m7", "n003"}, {"n[3,5]", "n3"},
    {"rack[1-2]n[07-12]", "rack1n07"}, {"gpu-a-[1-4]", "gpu-a-1"},
    {"a.b.example.org", "a.b.example.org"}, {"", NULL}, {",", NULL}, {"n[1-2", NULL}, {"n]1", NULL},
    {"n[[1]]", NULL}, {"[]", NULL}};

CK_LOOP(the_first_host_of_a_list, sizeof lists / sizeof lists[0]) {
  char host[32], tight[32];
  const bool found = ek__first_host(host, sizeof host, lists[_i].list);
  ck_assert_int_eq(found, lists[_i].first != NULL);
  if (!found) return;
  ck_assert_str_eq(host, lists[_i].first);
  ck_assert(ek__first_host(tight, strlen(host) + 1, lists[_i].list));
  ck_assert(!ek__first_host(tight, strlen(host), lists[_i].list));
}

CK_SUITE("rendezvous")
