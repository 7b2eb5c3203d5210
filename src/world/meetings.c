/*
 * meetings.c - the ways in which processes learn where process 0 is.
 */
#define _GNU_SOURCE /* O_CLOEXEC, getrandom() beside C11 */
#include "world/meetings.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/hash.h"

#define PORT_LIMIT 10.0 /* seconds that process 0 waits at most for a port that is not free */

/* ---- by name ---- */

/* Where process 0 listens: at the address that its name means, unless that is one of loopback,
 * which Debian gives a machine's own name, or none of its own (a service of Kubernetes). */
static ek_status own_place(struct ek__place *place, const struct ek__by_name *name) {
  struct ek__places found = {.count = 0};
  const bool local = strcmp(name->host, "localhost") == 0 || strcmp(name->host, "::1") == 0 ||
                     strncmp(name->host, "127.", 4) == 0;
  *place = (struct ek__place){.family = 0};
  if (name->address != NULL) return ek__place_own(place, name->address, 0);
  if (ek__places_find(&found, name->host, 0) != EK_OK) return EK_OK;
  for (size_t i = found.count; i-- > 0;) {
    if (ek__place_is_loopback(&found.places[i]) == local) *place = found.places[i];
  }
  return EK_OK;
}

static ek_status announce_by_name(void *context, int *listener, struct ek__place *place,
                                  unsigned char token[EK__TOKEN]) {
  const struct ek__by_name *name = context;
  const struct timespec nap = {.tv_nsec = 100000000};
  const double until = ek__clock() + (name->limit < PORT_LIMIT ? name->limit : PORT_LIMIT);
  ek_status status = EK_OK;
  memcpy(token, name->token, EK__TOKEN);
  EK_TRY(own_place(place, name));
  for (;;) {
    for (size_t i = 0; i < name->count; i++) {
      place->port = name->ports[i];
      status = ek__listen(listener, place);
      if (status == EK_OK) return EK_OK;
      if (errno == EADDRNOTAVAIL && name->address == NULL) *place = (struct ek__place){.family = 0};
    }
    if (ek__clock() > until) return status;
    (void)nanosleep(&nap, NULL);
  }
}

static ek_status find_by_name(void *context, struct ek__host *host) {
  const struct ek__by_name *name = context;
  memcpy(host->token, name->token, EK__TOKEN);
  for (size_t i = 0; i < name->count; i++) {
    EK_TRY(ek__places_find(&host->at, name->host, name->ports[i]));
  }
  return EK_OK;
}

void ek__by_name(struct ek__meeting *meeting, struct ek__by_name *name) {
  name->address = meeting->address;
  name->limit = meeting->limit;
  meeting->context = name;
  meeting->announce = announce_by_name;
  meeting->withdraw = NULL;
  meeting->find = find_by_name;
}

/* ---- by what process 0 says itself ---- */

/* Random bytes, and the job's token if there is one. */
static ek_status make_token(unsigned char token[EK__TOKEN]) {
  EK__FAIL_IF(getrandom(token, EK__TOKEN, 0) != EK__TOKEN, EK_ERR_IO, "world: getrandom: %s",
              strerror(errno));
  return EK_OK;
}

/* Listens on any port, and fills in at which addresses. */
static ek_status listen_anywhere(struct ek__host *host, int *listener, struct ek__place *place,
                                 const char *address) {
  *place = (struct ek__place){.family = 0};
  if (address != NULL) EK_TRY(ek__place_own(place, address, 0));
  EK_TRY(ek__listen(listener, place));
  host->at.count = 0;
  if (address == NULL) return ek__places_own(&host->at, place->port);
  host->at.places[host->at.count++] = *place;
  return EK_OK;
}

/* The token that connections show: of what process 0 has drawn, and of the job. */
static void mix_token(unsigned char token[EK__TOKEN], const unsigned char drawn[EK__TOKEN],
                      const char *job) {
  unsigned char of_job[EK__TOKEN];
  ek__token_make(of_job, &job, 1);
  for (size_t i = 0; i < EK__TOKEN; i++) token[i] = drawn[i] ^ of_job[i];
}

/* ---- by a file ---- */

struct file_content {
  char magic[8];
  uint32_t order, size;
  struct ek__host host;
  uint64_t sum;
};
static const char file_magic[8] = "ekworld";

static uint64_t sum_of(const struct file_content *content) {
  return ek__hash(EK__HASH_BEGIN, content, offsetof(struct file_content, sum));
}

static struct file_content content_of(const struct ek__host *host) {
  struct file_content content;
  memset(&content, 0, sizeof content);
  memcpy(content.magic, file_magic, sizeof content.magic);
  content.order = 0x01020304;
  content.size = sizeof content;
  content.host = *host;
  content.sum = sum_of(&content);
  return content;
}

/* Writes a file of this name, which must be new, so that it survives. errno says what failed. */
static bool write_new(const char *path, const struct file_content *content) {
  const int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return false;
  bool good = write(file, content, sizeof *content) == (ssize_t)sizeof *content;
  good = good && fsync(file) == 0;
  const int error = good ? 0 : errno;
  if (close(file) != 0 && good) return false;
  errno = error;
  return good;
}

static ek_status write_file(const struct ek__by_file *file) {
  char path[4096];
  uint64_t number = 0;
  const struct file_content content = content_of(&file->host);
  memcpy(&number, file->host.token, sizeof number);
  const int length =
      snprintf(path, sizeof path, "%s.%016llx", file->path, (unsigned long long)number);
  EK__FAIL_IF(length < 0 || (size_t)length >= sizeof path, EK_ERR_INVALID_ARGUMENT,
              "world: EVENKEEL_WORLD_FILE is too long");
  if (write_new(path, &content) && rename(path, file->path) == 0) return EK_OK;
  const int error = errno;
  (void)unlink(path);
  return ek_error_set(EK_ERR_IO, "world: cannot write %s: %s", file->path, strerror(error));
}

/* False: there is no whole file, and errno may say why. */
static bool read_file(struct ek__host *host, const char *path) {
  struct file_content content;
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const ssize_t got = read(file, &content, sizeof content);
  (void)close(file);
  errno = 0;
  if (got != (ssize_t)sizeof content || content.size != sizeof content ||
      content.order != 0x01020304)
    return false;
  if (memcmp(content.magic, file_magic, sizeof content.magic) != 0) return false;
  if (content.sum != sum_of(&content) || content.host.at.count > EK__PLACES) return false;
  *host = content.host;
  return true;
}

static ek_status announce_by_file(void *context, int *listener, struct ek__place *place,
                                  unsigned char token[EK__TOKEN]) {
  struct ek__by_file *file = context;
  EK_TRY(make_token(file->host.token));
  EK_TRY(listen_anywhere(&file->host, listener, place, file->address));
  mix_token(token, file->host.token, file->token);
  return write_file(file);
}

static ek_status find_by_file(void *context, struct ek__host *host) {
  const struct ek__by_file *file = context;
  EK__FAIL_IF(!read_file(host, file->path), EK_ERR_NOT_FOUND,
              "world: process 0 has not written %s: %s", file->path,
              errno == 0 ? "the file is no file of a world" : strerror(errno));
  mix_token(host->token, host->token, file->token);
  return EK_OK;
}

/* Unless another job has written it since. */
static void withdraw_file(void *context) {
  const struct ek__by_file *file = context;
  struct ek__host host;
  if (read_file(&host, file->path) && memcmp(host.token, file->host.token, EK__TOKEN) == 0) {
    (void)unlink(file->path);
  }
}

void ek__by_file(struct ek__meeting *meeting, struct ek__by_file *file) {
  file->address = meeting->address;
  meeting->context = file;
  meeting->announce = announce_by_file;
  meeting->withdraw = withdraw_file;
  meeting->find = find_by_file;
}

/* ---- by a function that gathers ---- */

struct gathered {
  uint64_t magic, process, processes, listens;
  struct ek__host host; /* of process 0 */
};
enum { GATHERED = 0x656b6761 };

/* What process 0 says comes to all. */
static ek_status gather(struct ek__by_gather *by, bool listens) {
  struct gathered mine = {.magic = GATHERED,
                          .process = by->process,
                          .processes = by->processes,
                          .listens = listens,
                          .host = by->host};
  struct gathered *all = NULL;
  EK_TRY(ek__new(&all, by->processes, sizeof *all, "what the processes of a world gather"));
  const uint64_t before = ek__error_number();
  ek_status status = by->gather(by->context, &mine, sizeof mine, all);
  if (status != EK_OK) ek__error_name("world: gather", status, before);
  for (size_t p = 0; p < by->processes && status == EK_OK; p++) {
    if (all[p].magic != GATHERED || all[p].process != p || all[p].processes != by->processes) {
      status = ek_error_set(EK_ERR_INVALID_ARGUMENT,
                            "world: gather: number %zu of what was gathered is not what process "
                            "%zu of %zu gave",
                            p, p, by->processes);
    }
  }
  if (status == EK_OK && all[0].host.at.count > EK__PLACES) all[0].listens = 0;
  if (status == EK_OK && by->process > 0) {
    by->host = all[0].host;
    if (all[0].listens == 0) status = ek_error_set(EK_ERR_IO, "world: process 0 cannot listen");
  }
  by->gathered = true;
  ek__free(all);
  return status;
}

static ek_status announce_by_gather(void *context, int *listener, struct ek__place *place,
                                    unsigned char token[EK__TOKEN]) {
  struct ek__by_gather *by = context;
  char message[512];
  ek_status status = make_token(by->host.token);
  if (status == EK_OK) status = listen_anywhere(&by->host, listener, place, by->address);
  mix_token(token, by->host.token, by->token);
  (void)snprintf(message, sizeof message, "%s", ek_error_message());
  const ek_status gathered = gather(by, status == EK_OK); /* the others wait in it */
  return status == EK_OK ? gathered : ek_error_set(status, "%s", message);
}

static ek_status find_by_gather(void *context, struct ek__host *host) {
  struct ek__by_gather *by = context;
  if (!by->gathered) EK_TRY(gather(by, false));
  *host = by->host;
  mix_token(host->token, host->token, by->token);
  return EK_OK;
}

void ek__by_gather(struct ek__meeting *meeting, struct ek__by_gather *by) {
  by->process = meeting->process;
  by->processes = meeting->processes;
  by->address = meeting->address;
  by->gathered = false;
  memset(&by->host, 0, sizeof by->host);
  meeting->context = by;
  meeting->announce = announce_by_gather;
  meeting->withdraw = NULL;
  meeting->find = find_by_gather;
}
