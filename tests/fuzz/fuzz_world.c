/*
 * fuzz_world.c - what comes from outside while processes meet and talk: any bytes as frames of a
 * connection, as the hello of a process, as variables of launchers and as a list of nodes. For each
 * of them a second reader, written from the comments and not from the source, says what must come
 * out.
 *
 * The source of the rendezvous is a part of this file, because its hello is its own affair.
 */
#define _GNU_SOURCE /* setenv() and sockets beside C11 */
#include "world/rendezvous.c"

#include <stdlib.h>

#include "fuzz_training.h"
#include "world/environment.h"
#include "world/mpi_loader.h"

/* The library's reads two variables and is not under test. */
ek_status ek__mpi_started(const char **mpi, size_t *processes) {
  const char *count = getenv("PMI_SIZE");
  *mpi = count == NULL ? NULL : "mpich";
  *processes = count == NULL ? 0 : 2;
  return EK_OK;
}

/* ---- frames ---- */

enum { MOST_BYTES = 64, MAGIC = 0x656b6d31, DATA = 1, NOTICE = 2 };

struct frame {
  uint32_t magic, kind;
  uint64_t bytes;
};

/* What a reader of a stream that waits for one move of `wanted` bytes makes of it. */
struct reading {
  bool done, wrong;
  int notices;
};

static struct reading read_stream(const unsigned char *at, size_t left, size_t wanted) {
  struct reading it = {false, false, 0};
  struct frame frame;
  while (left >= sizeof frame) {
    memcpy(&frame, at, sizeof frame);
    const bool data = frame.kind == DATA && frame.bytes > 0;
    it.wrong =
        frame.magic != MAGIC || !(data || (frame.kind == NOTICE && frame.bytes == EK__NOTICE));
    if (it.wrong || (data && it.done)) return it; /* a second move has to wait */
    it.wrong = data && frame.bytes != wanted;
    if (it.wrong || left - sizeof frame < frame.bytes) return it;
    if (data) it.done = true;
    if (!data) it.notices++;
    at += sizeof frame + frame.bytes;
    left -= sizeof frame + (size_t)frame.bytes;
  }
  return it;
}

/* Frames that are right except for some bytes. */
static size_t make_stream(struct fuzz_input *input, unsigned char *stream, size_t room,
                          size_t wanted) {
  size_t used = 0;
  while (fuzz_left(input) > 0) {
    const int kind = fuzz_choice(input, 5);
    struct frame frame = {MAGIC, kind == 1 ? NOTICE : DATA, kind == 1 ? EK__NOTICE : wanted};
    if (kind == 2) frame.bytes = (uint64_t)fuzz_int(input, INT64_MIN, INT64_MAX);
    if (kind == 3) frame.magic ^= 1u << fuzz_choice(input, 64) % 64 / 2;
    if (kind == 4) frame = (struct frame){MAGIC, NOTICE, (uint64_t)fuzz_int(input, 0, 300)};
    const size_t body = kind == 1 ? EK__NOTICE : wanted;
    if (used + sizeof frame + body > room) break;
    memcpy(stream + used, &frame, sizeof frame);
    used += sizeof frame;
    memset(stream + used, fuzz_byte(input), body);
    used += body;
    if (fuzz_one_in(input, 4)) used -= (size_t)fuzz_choice(input, 16);
  }
  return used;
}

static void try_frames(struct fuzz_input *input) {
  static unsigned char stream[4096];
  unsigned char in[MOST_BYTES + 1] = {0}, notice[EK__NOTICE];
  int pair[2], notices = 0;
  struct ek__wire wire;
  const size_t wanted = (size_t)fuzz_int(input, 1, MOST_BYTES);
  struct ek__move move = {.peer = 1, .in = in, .in_bytes = wanted};
  const size_t piece = 1 + fuzz_byte(input);
  const size_t count = make_stream(input, stream, sizeof stream, wanted);
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) return;
  FUZZ_OK(ek__mesh_make(&wire, 0, 2, (const int[]){-1, pair[0]}, NULL));
  FUZZ_OK(wire.table->begin(wire.self, &move));
  ek_status status = EK_OK;
  for (size_t sent = 0; sent < count; sent += piece) {
    const size_t some = count - sent < piece ? count - sent : piece;
    (void)send(pair[1], stream + sent, some, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (status == EK_OK) status = wire.table->test(wire.self, &move);
    while (wire.table->noticed(wire.self, 1, notice)) notices++;
  }
  if (status == EK_OK) status = wire.table->test(wire.self, &move);
  while (wire.table->noticed(wire.self, 1, notice)) notices++;
  const struct reading it = read_stream(stream, count, wanted);
  FUZZ_EXPECT(move.done == it.done, "%zu bytes: done is %d", count, move.done);
  FUZZ_EXPECT(notices == it.notices, "%d notices instead of %d", notices, it.notices);
  FUZZ_EXPECT(status == EK_OK || (it.wrong && !it.done), "an error: %s", ek_error_message());
  FUZZ_EXPECT(!it.wrong || wire.table->gone(wire.self, 1), "a wrong stream goes on");
  FUZZ_EXPECT(in[wanted] == 0, "a byte after the end was written");
  (void)close(pair[1]);
  wire.table->close(wire.self);
}

/* ---- a hello ---- */

enum { PROCESSES = 4 };

static struct hello make_hello(struct fuzz_input *input) {
  struct hello hello = {.order = ORDER, .version = VERSION, .process = 2, .processes = PROCESSES};
  memcpy(hello.magic, hello_magic, sizeof hello.magic);
  hello.process = (uint64_t)fuzz_choice(input, PROCESSES + 2);
  hello.channel = (uint64_t)fuzz_choice(input, CHANNELS + 1);
  for (int i = fuzz_choice(input, 4); i > 0; i--) {
    const size_t at = (size_t)fuzz_byte(input) % sizeof hello;
    ((unsigned char *)&hello)[at] = fuzz_byte(input);
  }
  return hello;
}

static bool is_welcome(const struct hello *hello, size_t wires) {
  static const unsigned char none[EK__TOKEN];
  return memcmp(hello->magic, "ekhello", 8) == 0 && hello->order == 0x01020304 &&
         hello->version == VERSION && memcmp(hello->token, none, sizeof none) == 0 &&
         hello->processes == PROCESSES && hello->process > 0 && hello->process < PROCESSES &&
         hello->channel < (wires == EK__WIRES ? 3 : wires);
}

static void try_hello(struct fuzz_input *input) {
  const struct ek__meeting meeting = {
      .process = 0, .processes = PROCESSES, .wires = 1 + (size_t)fuzz_choice(input, EK__WIRES)};
  static struct meet self;
  int pair[2];
  struct guest *guest = &self.guests[0];
  self = (struct meet){.meeting = &meeting, .listener = -1};
  const struct hello hello = make_hello(input);
  const size_t first = (size_t)fuzz_byte(input) % sizeof hello;
  FUZZ_OK(allocate(&self, PROCESSES));
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0) {
    guest->socket = pair[0];
    (void)send(pair[1], &hello, first, MSG_NOSIGNAL);
    if (first > 0) receive_hello(&self, guest);
    (void)send(pair[1], (const char *)&hello + first, sizeof hello - first, MSG_NOSIGNAL);
    if (guest->socket >= 0) receive_hello(&self, guest);
    size_t members = 0;
    for (size_t i = 0; i < CHANNELS * PROCESSES; i++) {
      members += self.sockets[i / PROCESSES][i % PROCESSES] >= 0;
    }
    const bool welcome = is_welcome(&hello, meeting.wires);
    FUZZ_EXPECT(members == welcome, "%zu members, welcome %d", members, welcome);
    FUZZ_EXPECT(!welcome || self.sockets[hello.channel][hello.process] == pair[0],
                "in another place");
    (void)close(pair[1]);
  }
  clear(&self);
}

/* ---- a list of nodes ---- */

static void try_nodes(struct fuzz_input *input) {
  static const char letters[] = "n7[]-,0.z";
  char list[128], host[32];
  size_t used = 0;
  const size_t room = 1 + (size_t)fuzz_choice(input, sizeof host);
  while (fuzz_left(input) > 0 && used + 1 < sizeof list) {
    list[used++] = letters[fuzz_choice(input, sizeof letters - 1)];
  }
  list[used] = '\0';
  if (!ek__first_host(host, room, list)) return;
  FUZZ_EXPECT(*host != '\0' && strlen(host) < room, "\"%s\" of \"%s\"", host, list);
  FUZZ_EXPECT(strpbrk(host, "[],") == NULL, "\"%s\" of \"%s\"", host, list);
  if (strpbrk(list, "[]") != NULL) return;
  FUZZ_EXPECT(strcspn(list, ",") == strlen(host) && strncmp(list, host, strlen(host)) == 0,
              "\"%s\" of \"%s\"", host, list);
}

/* ---- variables ---- */

static const char *const names[] = {
    "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_NODELIST",
    "SLURM_JOB_ID", "PMI_SIZE", "EVENKEEL_WORLD_FILE", "EVENKEEL_WORLD_PROCESS",
    "EVENKEEL_WORLD_PROCESSES", "EVENKEEL_WORLD_PORT"};
enum { NAMES = sizeof names / sizeof names[0] };

static void set_variables(struct fuzz_input *input) {
  static const char *const values[] = {NULL, "0", "1", "2", "4", "29500", "True", "n[1-2]", ""};
  for (int i = 0; i < NAMES; i++) {
    char text[24];
    const int pick = fuzz_choice(input, 10);
    const char *value = pick < 9 ? values[pick] : text;
    if (pick == 9) (void)fuzz_string(input, text, sizeof text);
    (void)unsetenv(names[i]);
    if (value != NULL) (void)setenv(names[i], value, 1);
  }
}

static void check_number(const char *name, size_t number) {
  const char *value = getenv(name);
  FUZZ_EXPECT(value != NULL && *value != '\0' && strtoull(value, NULL, 10) == number,
              "%s is %s, not %zu", name, value == NULL ? "not set" : value, number);
}

static void try_variables(struct fuzz_input *input) {
  static const char *const sources[] = {"auto", "none", "mpi", "torchrun", "slurm", "file", "x"};
  struct ek__started started;
  char room[256];
  const char *host = NULL, *texts[EK__JOB_TEXTS];
  uint16_t port = 0;
  const char *source = sources[fuzz_choice(input, 7)];
  set_variables(input);
  ek_error_clear();
  const ek_status status = ek__started_by(&started, source);
  if (status != EK_OK) {
    FUZZ_EXPECT(*ek_error_message() != '\0', "no message");
    FUZZ_EXPECT(status == EK_ERR_INVALID_ARGUMENT || status == EK_ERR_UNAVAILABLE, "%s",
                ek_status_name(status));
    return;
  }
  FUZZ_EXPECT(strcmp(source, "x") != 0, "an unknown source was taken");
  FUZZ_EXPECT(strcmp(source, "auto") == 0 || strcmp(source, started.source) == 0,
              "%s instead of %s", started.source, source);
  FUZZ_EXPECT(started.processes > 0 &&
                  (started.process == SIZE_MAX || started.process < started.processes),
              "%zu of %zu", started.process, started.processes);
  const bool torchrun = strcmp(started.source, "torchrun") == 0;
  if (!torchrun && strcmp(started.source, "slurm") != 0) return;
  check_number(torchrun ? "RANK" : "SLURM_PROCID", started.process);
  check_number(torchrun ? "WORLD_SIZE" : "SLURM_NTASKS", started.processes);
  const ek_status found = ek__started_host(&host, room, &port, &started);
  FUZZ_EXPECT(found == EK_OK || found == EK_ERR_INVALID_ARGUMENT, "%s", ek_status_name(found));
  FUZZ_EXPECT(found != EK_OK || *host != '\0', "no host");
  FUZZ_EXPECT(ek__started_job(texts, &started) <= EK__JOB_TEXTS, "too many texts");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct fuzz_input input = fuzz_input(data, size);
  switch (fuzz_choice(&input, 4)) {
  case 0: try_frames(&input); break;
  case 1: try_hello(&input); break;
  case 2: try_nodes(&input); break;
  default: try_variables(&input); break;
  }
  return 0;
}
