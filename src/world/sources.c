/*
 * sources.c - what a world is opened from.
 */
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/options.h"
#include "world/mpi_loader.h"
#include "world/world_internal.h"

EK__OPTIONS_INIT(ek_world_options, EK_WORLD_OPTIONS_INIT)

struct source {
  const char *name;
  /* Whether the environment has it. EK_ERR_INVALID_ARGUMENT: it is incomplete or contradicts
   * itself. */
  ek_status (*started)(bool *has);
  ek_status (*open)(struct ek__world_parts *parts, const ek_world_options *options);
};

static ek_status mpi_started(bool *has) {
  const char *mpi = NULL;
  size_t processes = 0;
  EK_TRY(ek__mpi_started(&mpi, &processes));
  *has = mpi != NULL;
  return EK_OK;
}

static ek_status mpi_open(struct ek__world_parts *parts, const ek_world_options *options) {
  (void)options;
  return ek__mpi_open(&parts->wire, &parts->process, &parts->processes, NULL, NULL, 0);
}

static const struct source sources[] = {{"mpi", mpi_started, mpi_open}};
enum { SOURCES = sizeof sources / sizeof sources[0] };

/* NULL: one process. */
static ek_status choose(const struct source **source, const char *name) {
  const bool none = strcmp(name, "none") == 0, any = strcmp(name, "auto") == 0;
  *source = NULL;
  for (size_t i = 0; i < SOURCES && !none; i++) {
    bool has = strcmp(name, sources[i].name) == 0;
    if (any) EK_TRY(sources[i].started(&has));
    if (!has) continue;
    EK__FAIL_IF(*source != NULL, EK_ERR_INVALID_ARGUMENT,
                "ek_world_open: the environment has both %s and %s; options.source says which one "
                "started the program",
                (*source)->name, sources[i].name);
    *source = &sources[i];
  }
  EK__FAIL_IF(*source == NULL && !none && !any, EK_ERR_INVALID_ARGUMENT,
              "ek_world_open: unknown source \"%s\"; expected auto, mpi, none", name);
  return EK_OK;
}

static ek_status read_options(ek_world_options *o, const ek_world_options *options,
                              const char *who) {
  EK_TRY(ek__options_read(o, sizeof *o, options, "ek_world_options"));
  EK_TRY(ek__check_number(who, "options.open_limit", o->open_limit));
  return ek__check_number(who, "options.time_limit", o->time_limit);
}

ek_status ek_world_open(ek_world **world, const ek_world_options *options) {
  ek_world_options o = EK_WORLD_OPTIONS_INIT;
  const struct source *source = NULL;
  struct ek__world_parts parts = {.processes = 1, .source = "none"};
  EK__NOT_NULL("ek_world_open", world);
  EK_TRY(read_options(&o, options, "ek_world_open"));
  EK_TRY(choose(&source, o.source == NULL ? "auto" : o.source));
  parts.time_limit = o.time_limit;
  if (source != NULL) {
    parts.source = source->name;
    EK_TRY(source->open(&parts, &o));
  }
  return ek__world_make(world, &parts);
}

ek_status ek_world_open_communicator(ek_world **world, const char *mpi, const void *communicator,
                                     size_t bytes, const ek_world_options *options) {
  ek_world_options o = EK_WORLD_OPTIONS_INIT;
  struct ek__world_parts parts = {.source = "communicator"};
  EK__NOT_NULL("ek_world_open_communicator", world, mpi, communicator);
  EK_TRY(read_options(&o, options, "ek_world_open_communicator"));
  EK__FAIL_IF(o.source != NULL, EK_ERR_INVALID_ARGUMENT,
              "ek_world_open_communicator: options.source is \"%s\"; the communicator says which "
              "processes there are: expected NULL",
              o.source);
  parts.time_limit = o.time_limit;
  EK_TRY(ek__mpi_open(&parts.wire, &parts.process, &parts.processes, mpi, communicator, bytes));
  return ek__world_make(world, &parts);
}
