/*
 * sources.c - what a world is opened from.
 *
 * Between processes that MPI has not started, sockets carry everything: one mesh has the data, and
 * a second one is the watch. A world over MPI has a watch as well, if one can be opened.
 */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/log_internal.h"
#include "core/options.h"
#include "world/environment.h"
#include "world/meetings.h"
#include "world/mpi_loader.h"
#include "world/world_internal.h"

EK__OPTIONS_INIT(ek_world_options, EK_WORLD_OPTIONS_INIT)
EK__OPTIONS_INIT(ek_world_gather, EK_WORLD_GATHER_INIT)

#define OPEN_LIMIT 120.0                        /* seconds */
#define WATCH_LIMIT 20.0                        /* for what a world can do without */
enum { FIRST_PORT = 15000, LAST_PORT = 30000 }; /* below those that systems give to connections */

static ek_status read_options(ek_world_options *o, const ek_world_options *options,
                              const char *who) {
  EK_TRY(ek__options_read(o, sizeof *o, options, "ek_world_options"));
  EK_TRY(ek__check_number(who, "options.open_limit", o->open_limit));
  EK_TRY(ek__check_number(who, "options.time_limit", o->time_limit));
  if (o->open_limit == 0) o->open_limit = OPEN_LIMIT;
  if (o->address == NULL) o->address = ek__started_address();
  return EK_OK;
}

static struct ek__meeting meeting_of(const struct ek__world_parts *parts,
                                     const ek_world_options *options) {
  return (struct ek__meeting){.process = parts->process,
                              .processes = parts->processes,
                              .wires = EK__WIRES,
                              .address = options->address,
                              .limit = options->open_limit};
}

static ek_status meet(struct ek__world_parts *parts, const struct ek__meeting *meeting) {
  struct ek__wire wires[EK__WIRES];
  EK_TRY(ek__meet(wires, meeting));
  parts->wire = wires[0];
  parts->watch = wires[1];
  return EK_OK;
}

/* ---- torchrun and Slurm, a file ---- */

/* A port is given, or the job's token chooses some that follow each other. */
static void choose_ports(struct ek__by_name *name, uint16_t given) {
  uint64_t number = 0;
  memcpy(&number, name->token, sizeof number);
  const uint64_t first = FIRST_PORT + number % (LAST_PORT - FIRST_PORT - EK__PORTS);
  name->count = given != 0 ? 1 : EK__PORTS;
  for (size_t i = 0; i < name->count; i++) {
    name->ports[i] = given != 0 ? given : (uint16_t)(first + i);
  }
}

static ek_status open_by_name(struct ek__world_parts *parts, const struct ek__started *started,
                              const ek_world_options *options) {
  struct ek__meeting meeting = meeting_of(parts, options);
  struct ek__by_name name = {.count = 0};
  const char *texts[EK__JOB_TEXTS];
  char room[256];
  uint16_t port = 0;
  EK_TRY(ek__started_host(&name.host, room, &port, started));
  const size_t count = ek__started_job(texts, started);
  ek__token_make(name.token, texts, count);
  choose_ports(&name, port);
  ek__by_name(&meeting, &name);
  return meet(parts, &meeting);
}

static ek_status open_by_file(struct ek__world_parts *parts, const ek_world_options *options) {
  struct ek__meeting meeting = meeting_of(parts, options);
  struct ek__by_file file = {.path = ek__started_file(), .token = ek__started_token()};
  ek__by_file(&meeting, &file);
  return meet(parts, &meeting);
}

/* ---- MPI ---- */

struct over_wire {
  const struct ek__wire *wire;
  size_t process, processes;
};

/* Every two processes move what they have to each other. It waits as MPI does: without a limit. */
static ek_status gather_over_wire(void *context, const void *mine, size_t bytes, void *all) {
  const struct over_wire *over = context;
  const struct ek__wire *wire = over->wire;
  struct ek__move *moves = NULL;
  EK_TRY(ek__new(&moves, over->processes, sizeof *moves, "the connections of a world"));
  ek_status status = EK_OK;
  for (size_t p = 0; p < over->processes && status == EK_OK; p++) {
    char *to = (char *)all + p * bytes;
    moves[p] =
        (struct ek__move){.peer = p, .out = mine, .out_bytes = bytes, .in = to, .in_bytes = bytes};
    if (p == over->process) {
      memcpy(to, mine, bytes);
    } else {
      status = wire->table->begin(wire->self, &moves[p]);
    }
  }
  for (size_t p = 0; p < over->processes && status == EK_OK;) {
    if (p == over->process || moves[p].done) {
      p++;
    } else {
      status = wire->table->test(wire->self, &moves[p]);
    }
  }
  ek__free(moves);
  return status;
}

/* All have a watch, or none does. */
static ek_status open_watch(struct ek__world_parts *parts, const ek_world_options *options) {
  struct over_wire over = {&parts->wire, parts->process, parts->processes};
  struct ek__by_gather by = {
      .gather = gather_over_wire, .context = &over, .token = ek__started_token()};
  struct ek__meeting meeting = meeting_of(parts, options);
  struct ek__wire watch = {NULL, NULL};
  char *opened = NULL;
  bool all = true;
  if (parts->processes == 1) return EK_OK;
  EK_TRY(ek__new(&opened, parts->processes, 1, "the connections of a world"));
  meeting.wires = 1;
  if (meeting.limit > WATCH_LIMIT) meeting.limit = WATCH_LIMIT;
  ek__by_gather(&meeting, &by);
  const char own = ek__meet(&watch, &meeting) == EK_OK;
  if (!own) {
    ek__log(EK_LOG_WARNING, "world: no connections beside MPI: %s", ek_error_message());
  }
  const ek_status status = gather_over_wire(&over, &own, 1, opened);
  for (size_t p = 0; p < parts->processes; p++) all = all && opened[p] != 0;
  ek__free(opened);
  if (status == EK_OK && all) {
    parts->watch = watch;
    return EK_OK;
  }
  if (own) watch.table->close(watch.self);
  ek__log(EK_LOG_WARNING, "world: without connections beside MPI, a process that dies is "
                          "noticed only at the time limit");
  return status;
}

static ek_status open_mpi(struct ek__world_parts *parts, const char *mpi, const void *communicator,
                          size_t bytes, const ek_world_options *options) {
  EK_TRY(ek__mpi_open(&parts->wire, &parts->process, &parts->processes, mpi, communicator, bytes));
  const ek_status status = open_watch(parts, options);
  if (status != EK_OK) parts->wire.table->close(parts->wire.self);
  return status;
}

/* ---- opening ---- */

static ek_status open_source(struct ek__world_parts *parts, const struct ek__started *started,
                             const ek_world_options *options) {
  parts->source = started->source;
  if (strcmp(started->source, "mpi") == 0) return open_mpi(parts, NULL, NULL, 0, options);
  parts->process = started->process;
  parts->processes = started->processes;
  if (parts->processes == 1) return EK_OK;
  if (strcmp(started->source, "file") == 0) return open_by_file(parts, options);
  return open_by_name(parts, started, options);
}

ek_status ek_world_open(ek_world **world, const ek_world_options *options) {
  ek_world_options o = EK_WORLD_OPTIONS_INIT;
  struct ek__started started;
  struct ek__world_parts parts = {.processes = 1};
  EK__NOT_NULL("ek_world_open", world);
  EK_TRY(read_options(&o, options, "ek_world_open"));
  EK_TRY(ek__started_by(&started, o.source == NULL ? "auto" : o.source));
  parts.time_limit = o.time_limit;
  EK_TRY(open_source(&parts, &started, &o));
  return ek__world_make(world, &parts);
}

/* What all other ways of opening have in common. */
static ek_status begin_given(struct ek__world_parts *parts, ek_world_options *o,
                             const ek_world_options *options, const char *who, const char *source) {
  *o = (ek_world_options)EK_WORLD_OPTIONS_INIT;
  EK_TRY(read_options(o, options, who));
  EK__FAIL_IF(o->source != NULL, EK_ERR_INVALID_ARGUMENT,
              "%s: options.source is \"%.40s\"; the %s says which processes there are: expected "
              "NULL",
              who, o->source, source);
  *parts = (struct ek__world_parts){.processes = 1, .source = source, .time_limit = o->time_limit};
  return EK_OK;
}

ek_status ek_world_open_gather(ek_world **world, const ek_world_gather *gather,
                               const ek_world_options *options) {
  static const char who[] = "ek_world_open_gather";
  ek_world_gather g = EK_WORLD_GATHER_INIT;
  ek_world_options o;
  struct ek__world_parts parts;
  EK__NOT_NULL(who, world, gather);
  EK_TRY(begin_given(&parts, &o, options, who, "gather"));
  EK_TRY(ek__options_read(&g, sizeof g, gather, "ek_world_gather"));
  EK__FAIL_IF(g.processes == 0 || g.process >= g.processes, EK_ERR_INVALID_ARGUMENT,
              "%s: process is %zu and processes is %zu; expected a number below a count", who,
              g.process, g.processes);
  parts.process = g.process;
  parts.processes = g.processes;
  if (g.processes > 1) {
    struct ek__meeting meeting = meeting_of(&parts, &o);
    struct ek__by_gather by = {
        .gather = g.gather, .context = g.context, .token = ek__started_token()};
    EK__FAIL_IF(g.gather == NULL, EK_ERR_INVALID_ARGUMENT, "%s: gather.gather is NULL", who);
    ek__by_gather(&meeting, &by);
    EK_TRY(meet(&parts, &meeting));
  }
  return ek__world_make(world, &parts);
}

ek_status ek_world_open_communicator(ek_world **world, const char *mpi, const void *communicator,
                                     size_t bytes, const ek_world_options *options) {
  static const char who[] = "ek_world_open_communicator";
  ek_world_options o;
  struct ek__world_parts parts;
  EK__NOT_NULL(who, world, mpi, communicator);
  EK_TRY(begin_given(&parts, &o, options, who, "communicator"));
  EK_TRY(open_mpi(&parts, mpi, communicator, bytes, &o));
  return ek__world_make(world, &parts);
}
