/*
 * talk.c - conversations: how all processes come to the same end.
 *
 * The order is that of process numbers wherever processes differ: the error of the lowest process
 * that has failed counts, and topics are compared with that of process 0. All processes have the
 * same messages, so all of them find the same end.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/hash.h"
#include "core/sizes.h"
#include "world/world_struct.h"

/* All processes have the same: "evenkeel" in the byte order of the machine, and a version. */
#define MAGIC (UINT64_C(0x6c65656b6e657665) + 3)

/* Above these the bytes that go with the message, in all bits from RIDE on. */
enum { STOP = 1, WRITING = 2, RIDE = 8 };

/* Lines that are compared are cut here; lists of one process are refused from here on. */
enum { LONGEST_LINES = 1 << 20, LONGEST_LIST = 1 << 26 };

ek_status ek__world_note(ek_world *world, ek_status status) {
  world->failed = world->count;
  world->failure = status;
  ek__error_keep(world->told);
  return status;
}

/* The last conversation has failed in all processes, with the thread's last error. */
static ek_status failed(ek_world *world, ek_status status) {
  world->agreed = world->count;
  return ek__world_note(world, status);
}

static ek_status valid(int64_t status) {
  const bool known = status > EK_OK && status < 1000 &&
                     strcmp(ek_status_name((ek_status)status), "EK_ERR_UNKNOWN") != 0;
  return known && status != EK_ERR_ABORTED ? (ek_status)status : EK_ERR_UNAVAILABLE;
}

/* ---- one conversation ---- */

static ek_status swap_messages(ek_world *world, const struct ek__topic *topic) {
  size_t count = 0;
  world->own = (struct ek__message){.magic = MAGIC,
                                    .number = world->count,
                                    .kind = (uint32_t)topic->kind,
                                    .flags = (world->stop_asked ? STOP : 0) |
                                             (atomic_load(&world->writing_here) > 0 ? WRITING : 0) |
                                             (uint32_t)topic->bytes << RIDE,
                                    .busy = atomic_load(&world->busy)};
  memcpy(world->own.words, topic->words, sizeof world->own.words);
  world->heard[world->process] = world->own;
  ek__world_begin_deed(world, topic);
  for (size_t round = 0; round < world->processes; round++) {
    const size_t peer = ek__world_peer(world, round);
    if (peer == world->process) continue;
    struct ek__move *move = &world->moves[count];
    *move = (struct ek__move){.peer = peer,
                              .out = &world->own,
                              .out_bytes = sizeof world->own,
                              .in = &world->heard[peer],
                              .in_bytes = sizeof world->heard[peer]};
    EK_TRY(ek__world_move(world, move));
    world->list[count++] = move;
  }
  for (size_t i = 0; i < count && topic->bytes > 0; i++) {
    struct ek__move *move = &world->moves[world->processes + i];
    *move = (struct ek__move){
        .peer = world->list[i]->peer, .out = topic->out, .out_bytes = topic->bytes};
    EK_TRY(ek__world_move(world, move));
  }
  EK_TRY(ek__world_finish(world, world->list, count));
  ek__world_end_deed(world);
  world->count++;
  world->calls = 0;
  return EK_OK;
}

static bool is_alike(const struct ek__topic *topic, const struct ek__message *a,
                     const struct ek__message *b) {
  return a->kind == b->kind &&
         (a->kind != (uint32_t)topic->kind ||
          memcmp(a->words, b->words, topic->same * sizeof *a->words) == 0);
}

/* The bytes that go with the messages. A process that has another topic, or fails, has sent its own
 * all the same, and they may not stay in the wire. */
static ek_status receive_rides(ek_world *world, const struct ek__topic *topic) {
  char name[160];
  size_t count = 0, used = 0;
  for (size_t p = 0; p < world->processes; p++) {
    const size_t bytes = world->heard[p].flags >> RIDE;
    const bool wanted = bytes == topic->bytes && is_alike(topic, &world->heard[p], &world->own);
    if (p == world->process) continue;
    if (topic->bytes > 0) world->list[count++] = &world->moves[world->processes + used++];
    if (bytes > EK__RIDE) {
      return ek__world_break(world, ek_error_set(EK_ERR_UNAVAILABLE, "%s sent no valid message",
                                                 ek__world_name(name, sizeof name, world, p)));
    }
    if (bytes == 0) continue;
    struct ek__move *move = &world->moves[2 * world->processes + p];
    *move = (struct ek__move){.peer = p,
                              .in = wanted ? topic->in + p * bytes : world->refused,
                              .in_bytes = bytes};
    EK_TRY(ek__world_move(world, move));
    world->list[count++] = move;
  }
  return count == 0 ? EK_OK : ek__world_finish(world, world->list, count);
}

/* Whether what came is of this protocol. If it is not, nothing after it can be. */
static ek_status check_messages(ek_world *world) {
  char name[160];
  bool writing = false;
  for (size_t p = 0; p < world->processes; p++) {
    const struct ek__message *heard = &world->heard[p];
    if (heard->magic != MAGIC) {
      return ek__world_break(
          world, ek_error_set(EK_ERR_UNAVAILABLE,
                              "%s does not follow this process's protocol: it has another library, "
                              "version or byte order, or bytes were lost",
                              ek__world_name(name, sizeof name, world, p)));
    }
    if (heard->number != world->count - 1) {
      return ek__world_break(world, ek_error_set(EK_ERR_UNAVAILABLE,
                                                 "%s is at conversation %" PRIu64 ", this process "
                                                 "at %" PRIu64,
                                                 ek__world_name(name, sizeof name, world, p),
                                                 heard->number, world->count - 1));
    }
    if ((heard->flags & STOP) != 0) atomic_store(&world->stop, true);
    if ((heard->flags & WRITING) != 0) writing = true;
  }
  world->writing = writing;
  return EK_OK;
}

/* All processes get the words of the one that has failed, and have its error. */
static ek_status take_failure(ek_world *world, size_t from, const char *why) {
  char text[EK__MESSAGE_SIZE] = "", name[160];
  const struct ek__message *heard = &world->heard[from];
  const ek_status status = valid(heard->words[0]);
  const int64_t length = heard->words[1];
  if (length < 0 || length >= EK__MESSAGE_SIZE) {
    return ek__world_break(world, ek_error_set(EK_ERR_UNAVAILABLE, "%s sent no valid message",
                                               ek__world_name(name, sizeof name, world, from)));
  }
  if (from == world->process) memcpy(text, why, (size_t)length);
  for (size_t round = 0; round < world->processes; round++) {
    const size_t peer = ek__world_peer(world, round);
    const size_t out = from == world->process ? (size_t)length : 0;
    const size_t in = from == peer ? (size_t)length : 0;
    if (peer != world->process) EK_TRY(ek__world_swap(world, peer, text, out, text, in));
  }
  text[length] = '\0';
  return failed(world, ek_error_set(status, "%s: %s",
                                    ek__world_name(name, sizeof name, world, from), text));
}

/* What a process is doing, by its message. */
static const char *say(char *text, size_t size, const struct ek__topic *topic,
                       const struct ek__message *message) {
  static const char *const doings[] = {[EK__TOPIC_OPENING] = "opening a world",
                                       [EK__TOPIC_GROUP] = "opening a group",
                                       [EK__TOPIC_SUM] = "in a forward or a criterion's forward",
                                       [EK__TOPIC_SHARE] = "opening a communicator",
                                       [EK__TOPIC_SAME] = "opening a model or an optimizer",
                                       [EK__TOPIC_AGREE] = "at the end of a call",
                                       [EK__TOPIC_COLLECTIVE] = "in a collective",
                                       [EK__TOPIC_FAILURE] = "failing"};
  const uint32_t kinds = sizeof doings / sizeof doings[0];
  const bool known = message->kind < kinds && doings[message->kind] != NULL;
  (void)snprintf(text, size, "%s", known ? doings[message->kind] : "doing something unknown");
  if (message->kind == (uint32_t)topic->kind) {
    if (topic->say != NULL) {
      topic->say(text, size, message->words);
    } else {
      (void)snprintf(text, size, "%s", topic->doing);
    }
  }
  return text;
}

static ek_status compare_topics(ek_world *world, const struct ek__topic *topic) {
  const struct ek__message *first = &world->heard[0];
  char name[160], theirs[160], own[160];
  for (size_t p = 1; p < world->processes; p++) {
    const struct ek__message *heard = &world->heard[p];
    if (is_alike(topic, first, heard)) continue;
    return failed(world,
                  ek_error_set(EK_ERR_SHAPE,
                               "the processes make different calls: %s is %s, process 0 is %s",
                               ek__world_name(name, sizeof name, world, p),
                               say(theirs, sizeof theirs, topic, heard),
                               say(own, sizeof own, topic, first)));
  }
  return EK_OK;
}

/* `why`: of a failure. The lock is held. */
static ek_status talk(ek_world *world, const struct ek__topic *topic, const char *why) {
  EK_TRY(ek__world_check(world));
  EK_TRY(swap_messages(world, topic));
  EK_TRY(check_messages(world));
  EK_TRY(receive_rides(world, topic));
  size_t from = world->processes; /* the first with an error of its own; else the first */
  for (size_t p = world->processes; p-- > 0;) {
    if (world->heard[p].kind != EK__TOPIC_FAILURE) continue;
    if (from == world->processes || world->heard[p].words[0] != EK_ERR_ABORTED ||
        world->heard[from].words[0] == EK_ERR_ABORTED) {
      from = p;
    }
  }
  if (from < world->processes) return take_failure(world, from, why);
  EK_TRY(compare_topics(world, topic));
  for (size_t p = 0; p < world->processes; p++) {
    memcpy(world->words + p * EK__TOPIC_WORDS, world->heard[p].words, sizeof world->heard[p].words);
  }
  return EK_OK;
}

ek_status ek__world_talk(ek_world *world, const struct ek__topic *topic, const int64_t **heard) {
  if (world == NULL) return EK_OK;
  ek__world_lock(world);
  const ek_status status = talk(world, topic, NULL);
  if (heard != NULL) *heard = world->words;
  ek__world_unlock(world);
  return status;
}

/* ---- what is said ---- */

static void say_step(char *text, size_t size, const int64_t *words) {
  (void)snprintf(text, size, "in a call of step %" PRId64, words[0]);
}

ek_status ek__world_sum(ek_world *world, int64_t step, int64_t *numbers, size_t count,
                        int64_t *before) {
  struct ek__topic topic = {.kind = EK__TOPIC_SUM,
                            .doing = "in a forward",
                            .say = say_step,
                            .same = 1,
                            .words = {step}};
  int64_t sums[EK__TOPIC_WORDS] = {0};
  if (before != NULL) *before = 0;
  if (world == NULL) return EK_OK;
  memcpy(topic.words + 1, numbers, count * sizeof *numbers);
  ek__world_lock(world);
  ek_status status = talk(world, &topic, NULL);
  for (size_t p = 0; p < world->processes && status == EK_OK; p++) {
    const int64_t *words = world->words + p * EK__TOPIC_WORDS + 1;
    if (p == world->process && before != NULL) *before = sums[0];
    for (size_t i = 0; i < count && status == EK_OK; i++) {
      if (words[i] >= 0 && ek__add(&sums[i], sums[i], words[i])) continue;
      status = failed(world, ek_error_set(EK_ERR_OVERFLOW,
                                          "the processes' samples do not fit in 63 bits"));
    }
  }
  ek__world_unlock(world);
  if (status == EK_OK) memcpy(numbers, sums, count * sizeof *numbers);
  return status;
}

/* The bytes of one process to all others; the lock is held. */
static ek_status from_one(ek_world *world, size_t from, void *bytes, size_t count) {
  const bool mine = world->process == from;
  for (size_t round = 0; round < world->processes; round++) {
    const size_t peer = ek__world_peer(world, round);
    if (peer == world->process || (peer != from && !mine)) continue;
    EK_TRY(ek__world_swap(world, peer, bytes, mine ? count : 0, bytes, mine ? 0 : count));
  }
  return EK_OK;
}

ek_status ek__world_share_from(ek_world *world, size_t from, void *bytes, size_t count) {
  const struct ek__topic topic = {.kind = EK__TOPIC_SHARE,
                                  .doing = "opening a communicator",
                                  .same = 2,
                                  .words = {(int64_t)count, (int64_t)from}};
  if (world == NULL) return EK_OK;
  ek__world_lock(world);
  ek_status status = talk(world, &topic, NULL);
  if (status == EK_OK) status = from_one(world, from, bytes, count);
  ek__world_unlock(world);
  return status;
}

ek_status ek__world_share(ek_world *world, void *bytes, size_t count) {
  return ek__world_share_from(world, 0, bytes, count);
}

/* How many bytes each process has; the lock is held. */
static ek_status count_all(ek_world *world, const char *doing, size_t bytes, size_t *ends) {
  const struct ek__topic topic = {
      .kind = EK__TOPIC_AGREE, .doing = doing, .words = {(int64_t)bytes}};
  int64_t end = 0;
  EK_TRY(talk(world, &topic, NULL));
  for (size_t p = 0; p < world->processes; p++) {
    const int64_t count = world->words[p * EK__TOPIC_WORDS];
    if (count < 0 || count > LONGEST_LIST || !ek__add(&end, end, count)) {
      return ek__world_break(world, ek_error_set(EK_ERR_UNAVAILABLE,
                                                 "process %zu sent no valid message", p));
    }
    ends[p] = (size_t)end;
  }
  return EK_OK;
}

/* Each process has its own bytes in their place in `all`; the lock is held. */
static ek_status from_each(ek_world *world, char *all, const size_t *ends) {
  const size_t own = world->process, begin = own == 0 ? 0 : ends[own - 1];
  for (size_t round = 0; round < world->processes; round++) {
    const size_t peer = ek__world_peer(world, round), first = peer == 0 ? 0 : ends[peer - 1];
    if (peer == own) continue;
    EK_TRY(ek__world_swap(world, peer, all + begin, ends[own] - begin, all + first,
                          ends[peer] - first));
  }
  return EK_OK;
}

ek_status ek__world_gather(void *all, size_t *ends, ek_world *world, const char *doing,
                           const void *own, size_t bytes) {
  const size_t me = world == NULL ? 0 : world->process;
  const size_t processes = world == NULL ? 1 : world->processes;
  char *made = NULL;
  EK__FAIL_IF(bytes > LONGEST_LIST, EK_ERR_OVERFLOW, "%s: too much to compare", doing);
  ek__world_lock(world);
  ek_status status = EK_OK;
  ends[0] = bytes;
  if (processes > 1) status = count_all(world, doing, bytes, ends);
  if (status == EK_OK) status = ek__new(&made, ends[processes - 1], 1, "what the processes have");
  if (status == EK_OK && bytes > 0) memcpy(made + ends[me] - bytes, own, bytes);
  if (status == EK_OK && ends[processes - 1] > 0) {
    status = ek__world_agree(world, doing, 0); /* there is memory in all */
    if (status == EK_OK && processes > 1) status = from_each(world, made, ends);
  }
  ek__world_unlock(world);
  if (status == EK_OK) {
    memcpy(all, &made, sizeof made);
  } else {
    ek__free(made);
  }
  return status;
}

ek_status ek__world_tell(ek_world *world, const struct ek__topic *topic, void *all,
                         const size_t *ends) {
  const size_t room = (EK__TOPIC_WORDS - topic->same) * sizeof *topic->words, own = world->process;
  const size_t begin = own == 0 ? 0 : ends[own - 1];
  struct ek__topic told = *topic;
  size_t most = 0;
  for (size_t p = 0; p < world->processes; p++) {
    const size_t bytes = ends[p] - (p == 0 ? 0 : ends[p - 1]);
    if (bytes > most) most = bytes;
  }
  if (most <= room) memcpy(told.words + topic->same, (char *)all + begin, ends[own] - begin);
  ek__world_lock(world);
  ek_status status = talk(world, &told, NULL);
  if (status == EK_OK && most > room) status = from_each(world, all, ends);
  for (size_t p = 0; p < world->processes && status == EK_OK && most <= room; p++) {
    const size_t first = p == 0 ? 0 : ends[p - 1];
    memcpy((char *)all + first, world->words + p * EK__TOPIC_WORDS + topic->same, ends[p] - first);
  }
  ek__world_unlock(world);
  return status;
}

ek_status ek__world_agree(ek_world *world, const char *doing, int64_t step) {
  if (world == NULL || world->processes == 1) return EK_OK;
  return ek__world_agree_on(world, doing, step, NULL, 0, NULL);
}

ek_status ek__world_agree_on(ek_world *world, const char *doing, int64_t step,
                             const int64_t *numbers, size_t count, const int64_t **heard) {
  struct ek__topic topic = {
      .kind = EK__TOPIC_AGREE, .doing = doing, .say = say_step, .same = 1, .words = {step}};
  if (count > 0) memcpy(topic.words + 1, numbers, count * sizeof *numbers);
  return ek__world_talk(world, &topic, heard);
}

ek_status ek__world_compare(ek_world *world, int64_t number, bool *same) {
  const int64_t *heard = NULL;
  ek__world_lock(world);
  const ek_status status =
      ek__world_agree_on(world, "recovering from an error", 0, &number, 1, &heard);
  *same = status == EK_OK;
  for (size_t p = 0; p < world->processes && *same; p++) {
    *same = heard[p * EK__TOPIC_WORDS + 1] == number;
  }
  ek__world_unlock(world);
  return status;
}

ek_status ek__world_spread(ek_world *world, uint64_t began, ek_status status) {
  char why[EK__MESSAGE_SIZE];
  (void)snprintf(why, sizeof why, "%s", ek_error_message());
  const struct ek__topic topic = {.kind = EK__TOPIC_FAILURE,
                                  .doing = "failing",
                                  .words = {(int64_t)status, (int64_t)strlen(why)}};
  ek__world_lock(world);
  ek__world_warn(world, began, false);
  const ek_status agreed = talk(world, &topic, why);
  ek__world_unlock(world);
  return agreed;
}

/* ---- the same lines everywhere ---- */

/* The first line in which they differ; both may be without an end. */
static ek_status first_difference(const char *doing, const char *own, const char *theirs) {
  size_t line = 0;
  for (size_t i = 0; own[i] == theirs[i] && own[i] != '\0'; i++) {
    if (own[i] == '\n') line = i + 1;
  }
  const int length = (int)strcspn(own + line, "\n"), other = (int)strcspn(theirs + line, "\n");
  return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                      "%s: the processes differ: this one has \"%.*s\", process 0 has \"%.*s\"",
                      doing, length, own + line, other, theirs + line);
}

/* Process 0 shows its lines; the lock is held. */
static ek_status compare_lines(ek_world *world, const char *doing, const char *lines,
                               size_t length) {
  char *theirs = NULL;
  ek_status status = ek__new(&theirs, length + 1, 1, "the options of a process");
  /* A process without memory for them takes part all the same: nothing may stay in the wire. */
  if (status != EK_OK) return ek__world_break(world, status);
  if (world->process == 0) memcpy(theirs, lines, length);
  status = from_one(world, 0, theirs, length);
  if (status == EK_OK && world->process != 0 && strcmp(lines, theirs) != 0) {
    status = first_difference(doing, lines, theirs);
    ek__free(theirs);
    return ek__world_spread(world, world->count, status);
  }
  ek__free(theirs);
  return status == EK_OK ? ek__world_agree(world, doing, 0) : status;
}

ek_status ek__world_same(ek_world *world, const char *doing, const char *lines) {
  if (world == NULL) return EK_OK;
  const size_t length = strlen(lines);
  EK__FAIL_IF(length > LONGEST_LINES, EK_ERR_OVERFLOW, "%s: too much to compare", doing);
  const uint64_t hash = ek__hash(EK__HASH_BEGIN, lines, length);
  struct ek__topic topic = {.kind = EK__TOPIC_SAME, .doing = doing};
  memcpy(&topic.words[0], &hash, sizeof hash);
  topic.words[1] = (int64_t)length;
  ek__world_lock(world);
  ek_status status = talk(world, &topic, NULL);
  bool differ = false;
  for (size_t p = 1; p < world->processes && status == EK_OK; p++) {
    const int64_t *words = world->words + p * EK__TOPIC_WORDS;
    if (memcmp(words, world->words, 2 * sizeof *words) != 0) differ = true;
  }
  if (differ) {
    const int64_t shown = world->words[1];
    status =
        shown < 0 || shown > LONGEST_LINES
            ? ek__world_break(world, ek_error_set(EK_ERR_UNAVAILABLE,
                                                  "%s: process 0 sent no valid message", doing))
            : compare_lines(world, doing, lines, (size_t)shown);
  }
  ek__world_unlock(world);
  return status;
}

void ek__lines_add(struct ek__lines *lines, const char *format, ...) {
  char line[1024];
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  if (lines->status != EK_OK) return;
  const size_t length = strlen(line), wanted = lines->used + length + 2;
  if (wanted > lines->room) {
    lines->status = ek__grow(&lines->text, &lines->room, 2 * wanted, 1, "the options of a process");
    if (lines->status != EK_OK) return;
  }
  memcpy(lines->text + lines->used, line, length);
  lines->used += length;
  lines->text[lines->used++] = '\n';
  lines->text[lines->used] = '\0';
}

ek_status ek__lines_same(struct ek__lines *lines, ek_world *world, const char *doing) {
  ek_status status = lines->status;
  if (status == EK_OK) status = ek__world_same(world, doing, lines->text);
  ek__free(lines->text);
  return status;
}
