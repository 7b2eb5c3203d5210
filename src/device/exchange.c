/*
 * exchange.c - a wire over a program's function: a move is done when it has begun.
 */
#include "device/exchange.h"

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"

struct exchange {
  ek_exchange given;
  double limit;
};

ek_status ek__exchange_read(ek_exchange *exchange, const ek_exchange *given) {
  *exchange = (ek_exchange)EK_EXCHANGE_INIT;
  EK_TRY(ek__options_read(exchange, sizeof *exchange, given, "ek_exchange"));
  if (exchange->processes == 0) exchange->processes = 1;
  EK__FAIL_IF(exchange->processes > 1 && exchange->swap == NULL, EK_ERR_INVALID_ARGUMENT,
              "ek_group_open: options.exchange has no function `swap`");
  EK__FAIL_IF(exchange->processes > 1048576 || exchange->process >= exchange->processes,
              EK_ERR_INVALID_ARGUMENT,
              "ek_group_open: options.exchange: process number %zu of %zu; expected 0 to "
              "processes - 1, and at most 1048576 processes",
              exchange->process, exchange->processes);
  return EK_OK;
}

static ek_status begin(void *self, struct ek__move *move) {
  const struct exchange *e = self;
  ek_error_clear();
  const uint64_t before = ek__error_number();
  const ek_status status = e->given.swap(e->given.context, move->peer, move->out, move->out_bytes,
                                         move->in, move->in_bytes, e->limit);
  if (status != EK_OK) {
    return ek_error_set(status, "the exchange of bytes failed: %s",
                        ek__error_words(status, before));
  }
  move->done = true;
  return EK_OK;
}

static ek_status test(void *self, struct ek__move *move) {
  (void)self;
  (void)move;
  return EK_OK;
}

static bool notify(void *self, size_t peer, const void *notice) {
  (void)self;
  (void)peer;
  (void)notice;
  return false;
}

static bool noticed(void *self, size_t peer, void *notice) {
  (void)self;
  (void)peer;
  (void)notice;
  return false;
}

static void close_exchange(void *self) { ek__free(self); }

static const struct ek__wire_table table = {.size = sizeof table,
                                            .name = "exchange",
                                            .begin = begin,
                                            .test = test,
                                            .notify = notify,
                                            .noticed = noticed,
                                            .close = close_exchange};

ek_status ek__exchange_world(ek_world **world, const ek_exchange *exchange, double time_limit) {
  struct exchange *self = NULL;
  EK_TRY(ek__new(&self, 1, sizeof *self, "an exchange"));
  self->given = *exchange;
  self->limit = time_limit;
  const struct ek__world_parts parts = {.process = exchange->process,
                                        .processes = exchange->processes,
                                        .source = "options.exchange",
                                        .wire = {&table, self},
                                        .time_limit = time_limit};
  return ek__world_make(world, &parts);
}
