/*
 * wire.c - the wire over MPI alone, between the processes that mpirun has started.
 *
 *   wire LEVEL    initialises MPI with this level: single, funneled, serialized, multiple; the
 *                 program finalises MPI while the wire is open. "none": the module initialises MPI
 *                 and ends it, and a message of a wrong size ends the wire.
 *
 * It is compiled with the module's source, whose messages have LARGEST bytes at most, so that moves
 * are cut. The first expectation that does not hold ends all processes.
 */
#include <mpi.h>

#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <evenkeel/version.h>

#include "core/loader.h"
#include "world/mpi_loader.h"

enum { LARGEST = EK__MPI_LARGEST, ROUNDS = 12 };

static size_t process, processes;
static struct ek__wire wire;
static char message[512];
static int failing; /* which allocation fails; 0: none */

ek__module_entry ek_mpi_module;

static void expect(bool holds, const char *what, int line) {
  if (holds) return;
  (void)fprintf(stderr, "wire.c:%d: process %zu: %s (%s)\n", line, process, what, message);
  exit(1); /* mpirun ends the others */
}
#define EXPECT(condition) expect(condition, #condition, __LINE__)

/* ---- what the module gets of the library ---- */

static ek_status error_set(ek_status status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  return status;
}

static const char *error_message(void) { return message; }

static void log_line(ek_log_level level, const char *format, ...) { (void)level, (void)format; }

static void *allocate(size_t count, size_t size) {
  if (failing > 0 && --failing == 0) return NULL;
  return calloc(count, size);
}

static const struct ek__module_host host = {.size = sizeof host,
                                            .table_size = sizeof(struct ek__mpi_table),
                                            .version = EK_VERSION_STRING, .error_set = error_set,
                                            .error_message = error_message, .log = log_line,
                                            .calloc = allocate, .free = free};

static const struct ek__mpi_table *module(void) {
  const void *table = NULL;
  struct ek__module_host other = host;
  other.version = "0.0.0";
  EXPECT(ek_mpi_module(&table, &other) == EK_ERR_UNAVAILABLE && message[0] == '\0');
  EXPECT(ek_mpi_module(&table, &host) == EK_OK);
  const struct ek__mpi_table *mpi = table;
  EXPECT(mpi->wire_size == sizeof(struct ek__wire_table));
  return mpi;
}

/* ---- moves ---- */

/* Tests in this order until all are done. */
static ek_status finish(struct ek__move **moves, size_t count) {
  for (bool all = false; !all;) {
    all = true;
    for (size_t i = 0; i < count; i++) {
      EK_TRY(wire.table->test(wire.self, moves[i]));
      all = all && moves[i]->done;
    }
  }
  return EK_OK;
}

static char byte_of(size_t from, size_t to, int round, size_t number, size_t at) {
  return (char)(from * 31 + to * 17 + (size_t)round * 13 + number * 101 + at * 7 + at / 251);
}

/* Sizes that differ in the two directions and from move to move: none, odd, cut at each edge. */
static size_t size_of(size_t from, size_t to, int round, size_t number) {
  static const size_t sizes[] = {0,           1,           7,           LARGEST - 1,
                                 LARGEST,     LARGEST + 1, 2 * LARGEST, 2 * LARGEST + 3,
                                 5 * LARGEST, 33333,       0,           262144};
  return sizes[(from + 3 * to + (size_t)round + 5 * number) % (sizeof sizes / sizeof sizes[0])];
}

enum { MOVES = 2 * EK__MOVES }; /* half of them are bulk */

struct traffic {
  struct ek__move moves[MOVES];
};

static void begin_all(struct traffic *with, size_t peer, int round) {
  for (size_t k = 0; k < MOVES; k++) { /* the two kinds in turns, or one after the other */
    const size_t i = (process + (size_t)round) % 2 == 0 ? k : k % EK__MOVES * 2 + k / EK__MOVES;
    struct ek__move *move = &with->moves[i];
    *move = (struct ek__move){.peer = peer, .bulk = i % 2 == 1,
                              .out_bytes = size_of(process, peer, round, i),
                              .in_bytes = size_of(peer, process, round, i)};
    char *out = malloc(move->out_bytes + 1), *in = malloc(move->in_bytes + 1);
    for (size_t at = 0; at < move->out_bytes; at++) out[at] = byte_of(process, peer, round, i, at);
    memset(in, 0, move->in_bytes + 1);
    move->out = out;
    move->in = in;
    EXPECT(wire.table->begin(wire.self, move) == EK_OK);
  }
}

static void check_all(struct traffic *with, size_t peer, int round) {
  for (size_t i = 0; i < MOVES; i++) {
    const struct ek__move *move = &with->moves[i];
    const char *in = move->in;
    for (size_t k = 0; k < move->in_bytes; k++) {
      EXPECT(in[k] == byte_of(peer, process, round, i, k));
    }
    EXPECT(in[move->in_bytes] == 0);
    free((void *)(uintptr_t)move->out);
    free(move->in);
  }
}

/* As many moves as may be under way, with every process at once, tested from the last to the first
 * in every other round. */
static void moves(bool own_mpi) {
  struct traffic *with = calloc(processes, sizeof *with);
  struct ek__move **order = calloc(processes * MOVES, sizeof *order);
  const size_t count = (processes - 1) * MOVES;
  for (int round = 0; round < ROUNDS; round++) {
    size_t next = 0;
    for (size_t peer = 0; peer < processes; peer++) {
      if (peer == process) continue;
      begin_all(&with[peer], peer, round);
      for (size_t i = 0; i < MOVES; i++, next++) {
        order[round % 2 == 0 ? next : count - 1 - next] = &with[peer].moves[i];
      }
    }
    EXPECT(finish(order, count) == EK_OK);
    for (size_t peer = 0; peer < processes; peer++) {
      if (peer != process) check_all(&with[peer], peer, round);
    }
    if (own_mpi) { /* the program's own use of MPI does not disturb, nor is it disturbed */
      int sum = 0, one = (int)process + 1;
      MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
      EXPECT(sum == (int)(processes * (processes + 1) / 2));
    }
  }
  free(order);
  free(with);
}

/* ---- notices ---- */

static void swap_byte(size_t peer) {
  char in = 0;
  struct ek__move move = {.peer = peer, .out = "x", .out_bytes = 1, .in = &in, .in_bytes = 1};
  struct ek__move *one = &move;
  EXPECT(wire.table->begin(wire.self, &move) == EK_OK && finish(&one, 1) == EK_OK && in == 'x');
}

/* Three to each of the others, which come in order and do not mix with moves. */
static void notices(void) {
  char notice[EK__NOTICE], got[EK__NOTICE];
  for (size_t peer = 0; peer < processes; peer++) {
    for (int i = 0; i < 3 && peer != process; i++) {
      memset(notice, (int)(process * 10) + i, sizeof notice);
      while (!wire.table->notify(wire.self, peer, notice)) continue;
    }
  }
  for (size_t peer = 0; peer < processes; peer++) {
    if (peer == process) continue;
    swap_byte(peer);
    for (int i = 0; i < 3; i++) {
      while (!wire.table->noticed(wire.self, peer, got)) continue;
      memset(notice, (int)(peer * 10) + i, sizeof notice);
      EXPECT(memcmp(got, notice, sizeof got) == 0);
    }
    EXPECT(!wire.table->noticed(wire.self, peer, got));
  }
}

/* ---- misuse ---- */

static void *call_from_here(void *result) {
  char in = 0;
  struct ek__move move = {.peer = (process + 1) % processes, .in = &in, .in_bytes = 1};
  *(ek_status *)result = wire.table->begin(wire.self, &move);
  return NULL;
}

/* Below MPI_THREAD_SERIALIZED another thread is refused, and nothing is lost. */
static void wrong_thread(void) {
  pthread_t thread;
  ek_status status = EK_OK;
  EXPECT(pthread_create(&thread, NULL, call_from_here, &status) == 0);
  EXPECT(pthread_join(thread, NULL) == 0);
  EXPECT(status == EK_ERR_STATE && strstr(message, "MPI_THREAD_SERIALIZED") != NULL);
}

static ek_status open_given(const struct ek__mpi_table *mpi, MPI_Comm of, size_t bytes) {
  return mpi->open(&wire, &process, &processes, &of, bytes);
}

/* A communicator of the program's has its own order of processes; a wrong one is refused. */
static void communicators(const struct ek__mpi_table *mpi) {
  MPI_Comm reversed, between, half;
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  EXPECT(open_given(mpi, MPI_COMM_NULL, sizeof(MPI_Comm)) == EK_ERR_INVALID_ARGUMENT);
  EXPECT(open_given(mpi, MPI_COMM_WORLD, sizeof(MPI_Comm) + 1) == EK_ERR_INVALID_ARGUMENT);
  MPI_Comm_split(MPI_COMM_WORLD, rank == 0, rank, &half);
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, rank == 0, 1, &between);
  EXPECT(open_given(mpi, between, sizeof between) == EK_ERR_INVALID_ARGUMENT);
  MPI_Comm_free(&between);
  MPI_Comm_free(&half);
  MPI_Comm_split(MPI_COMM_WORLD, 0, size - rank, &reversed);
  EXPECT(open_given(mpi, reversed, sizeof reversed) == EK_OK);
  MPI_Comm_free(&reversed); /* the wire has its own */
  EXPECT(process == (size_t)(size - 1 - rank) && processes == (size_t)size);
  notices();
  moves(false);
  wire.table->close(wire.self);
}

/* One process has no memory; the others open their ends, and can close them. */
static void no_memory(const struct ek__mpi_table *mpi) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (int i = 1; i <= 2; i++) {
    failing = rank == 0 ? i : 0;
    const ek_status status = open_given(mpi, MPI_COMM_WORLD, sizeof(MPI_Comm));
    failing = 0;
    EXPECT(status == (rank == 0 ? EK_ERR_OUT_OF_MEMORY : EK_OK));
    if (status == EK_OK) wire.table->close(wire.self);
  }
}

/* The program ends MPI while a move waits for a message that never comes. */
static void finalize_early(void) {
  static char in[100], notice[EK__NOTICE];
  struct ek__move move = {.peer = (process + 1) % processes, .in = in, .in_bytes = sizeof in};
  EXPECT(wire.table->begin(wire.self, &move) == EK_OK);
  MPI_Finalize();
  EXPECT(wire.table->test(wire.self, &move) == EK_ERR_STATE);
  EXPECT(strstr(message, "MPI_Finalize()") != NULL && !move.done);
  EXPECT(wire.table->begin(wire.self, &move) == EK_ERR_STATE);
  EXPECT(!wire.table->notify(wire.self, 0, notice) && !wire.table->noticed(wire.self, 0, notice));
  wire.table->close(wire.self);
}

/* Process 1 sends to process 0 more or less than that expects. */
static void wrong_size(size_t sent, size_t expected) {
  static char out[100], in[100];
  struct ek__move move = {.peer = 1 - process};
  struct ek__move *one = &move;
  if (process > 1) return;
  if (process == 0) move.in = in, move.in_bytes = expected;
  if (process == 1) move.out = out, move.out_bytes = sent;
  EXPECT(wire.table->begin(wire.self, &move) == EK_OK);
  const ek_status status = finish(&one, 1);
  EXPECT(process == 1 || status == EK_ERR_IO);
  EXPECT(process == 1 || wire.table->begin(wire.self, &move) == EK_ERR_STATE);
}

/* MPI of the module's own: wires that follow each other, and after the last one none. */
static void module_initialises(const struct ek__mpi_table *mpi, size_t expected) {
  struct ek__wire first;
  int flag = 0;
  EXPECT(mpi->open(&wire, &process, &processes, &process, sizeof(MPI_Comm)) == EK_ERR_STATE);
  EXPECT(strstr(message, "MPI_Init()") != NULL);
  EXPECT(mpi->open(&wire, &process, &processes, NULL, 0) == EK_OK);
  EXPECT(processes == expected);
  first = wire;
  EXPECT(mpi->open(&wire, &process, &processes, NULL, 0) == EK_OK);
  moves(false);
  wrong_size(19, 20);
  wire.table->close(wire.self);
  EXPECT(MPI_Finalized(&flag) == MPI_SUCCESS && !flag);
  EXPECT(mpi->open(&wire, &process, &processes, NULL, 0) == EK_OK);
  wrong_size(21, 20);
  wire.table->close(wire.self);
  wire = first;
  moves(false);
  wire.table->close(wire.self);
  EXPECT(MPI_Finalized(&flag) == MPI_SUCCESS && flag);
  EXPECT(mpi->open(&wire, &process, &processes, NULL, 0) == EK_ERR_STATE);
  EXPECT(strstr(message, "ended with it") != NULL);
}

int main(int argc, char **argv) {
  static const char *const names[] = {"single", "funneled", "serialized", "multiple"};
  const int levels[] = {MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED,
                        MPI_THREAD_MULTIPLE};
  const struct ek__mpi_table *mpi = module();
  int level = 0;
  EXPECT(argc == 3);
  if (strcmp(argv[1], "none") == 0) {
    module_initialises(mpi, strtoul(argv[2], NULL, 10));
    return 0;
  }
  while (level < 3 && strcmp(names[level], argv[1]) != 0) level++;
  MPI_Init_thread(&argc, &argv, levels[level], &level);
  communicators(mpi);
  no_memory(mpi);
  EXPECT(open_given(mpi, MPI_COMM_WORLD, sizeof(MPI_Comm)) == EK_OK);
  if (level < MPI_THREAD_SERIALIZED) wrong_thread();
  notices();
  moves(true);
  finalize_early();
  return 0;
}
