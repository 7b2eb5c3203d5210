/*
 * metrics.c - see metrics.h. All text is made in one buffer, taken when the metrics are opened.
 *
 * Files of lines are opened and written without blocking, which only a pipe notices: a reader that
 * stops to read must not stop the training.
 */
#include <evenkeel/metrics.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/c_locale.h"
#include "core/error.h"
#include "device/device_internal.h"
#include "io/file.h"
#include "io/text_file.h"

/* Bytes of a line, of a device in it, whose name has at most 31, and of a number of the program's
 * own. */
enum { LINE = 1024, LINE_DEVICE = 224, LINE_NUMBER = EK_METRICS_NAME_SIZE + 32 };

struct number {
  char name[EK_METRICS_NAME_SIZE];
  double value;
};

struct ek_metrics {
  ek_group *group;
  char *prometheus;
  int lines; /* a file, or -1 */
  char *lines_path;
  char *buffer;
  size_t size, used;
  double last, written; /* CLOCK_MONOTONIC, seconds */
  /* what is told */
  double time, loss, norm, rate, scale, seconds, tokens, per_second;
  int64_t step;
  uint64_t skipped;
  bool told;
  bool cut; /* the last line of the file has no end */
  struct number numbers[EK_METRICS_NUMBERS];
  size_t number_count;
  /* Among several processes: how long each was at work when the step before ended, and in the last
   * step this one and the one with the most work. */
  ek_world *world; /* NULL: there is one process */
  double *worked;
  double own_busy, most_busy;
  size_t slowest;
};

static double now(clockid_t clock) {
  struct timespec time;
  clock_gettime(clock, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* ---- opening ---- */

/* Whether what is in the file, which may not be readable, ends in the middle of a line. */
static bool is_cut(const char *path, off_t size) {
  char last = '\n';
  const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file >= 0 && size > 0 && pread(file, &last, 1, size - 1) != 1) last = '\n';
  ek__file_close(file);
  return last != '\n';
}

static ek_status open_lines(ek_metrics *self, const char *path) {
  struct stat about;
  do {
    self->lines = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
  } while (self->lines < 0 && errno == EINTR);
  if (self->lines < 0) {
    return ek__file_refused(path, errno == ENXIO ? "cannot be opened: no process reads this pipe"
                                                 : "cannot be opened");
  }
  if (fstat(self->lines, &about) == 0 && S_ISREG(about.st_mode)) {
    self->cut = is_cut(path, about.st_size);
  }
  return EK_OK;
}

static ek_status open_files(ek_metrics *self, const char *prometheus, const char *lines) {
  self->size = LINE + LINE_NUMBER * EK_METRICS_NUMBERS + LINE_DEVICE * ek_group_size(self->group);
  EK_TRY(ek__new(&self->buffer, self->size, 1, "metrics"));
  if (prometheus != NULL) {
    EK_TRY(ek__new_copy(&self->prometheus, prometheus, strlen(prometheus) + 1, "metrics"));
    /* So that a wrong name is an error now, and not after an hour. */
    struct ek__text_file *file = NULL;
    EK_TRY(ek__text_begin(&file, prometheus));
    ek__text_drop(file);
  }
  if (lines == NULL) return EK_OK;
  EK_TRY(ek__new_copy(&self->lines_path, lines, strlen(lines) + 1, "metrics"));
  return open_lines(self, lines);
}

static ek_status enter_world(ek_metrics *self) {
  self->world = ek__group_world(self->group);
  if (self->world == NULL) return EK_OK;
  const size_t processes = ek_world_processes(self->world);
  EK_TRY(ek__new(&self->worked, processes, sizeof *self->worked, "metrics"));
  for (size_t p = 0; p < processes; p++) self->worked[p] = ek_world_busy(self->world, p);
  return EK_OK;
}

/* Each process with files of its own. */
static ek_status open_own_files(ek_metrics *self, const char *prometheus, const char *lines) {
  char *names[2] = {NULL, NULL};
  ek_status status = enter_world(self);
  if (status == EK_OK && prometheus != NULL) {
    status = ek__file_of_process(&names[0], prometheus, self->world);
  }
  if (status == EK_OK && lines != NULL) {
    status = ek__file_of_process(&names[1], lines, self->world);
  }
  if (status == EK_OK) status = open_files(self, names[0], names[1]);
  ek__free(names[0]);
  ek__free(names[1]);
  return status;
}

static void free_metrics(ek_metrics *self) {
  ek__free(self->worked);
  ek__file_close(self->lines);
  ek__free(self->lines_path);
  ek__free(self->prometheus);
  ek__free(self->buffer);
  ek__free(self);
}

ek_status ek_metrics_open(ek_metrics **metrics, ek_group *group, const char *prometheus,
                          const char *lines) {
  EK__NOT_NULL("ek_metrics_open", metrics, group);
  ek_metrics *self = NULL;
  EK_TRY(ek__new(&self, 1, sizeof *self, "metrics"));
  self->group = group;
  self->lines = -1;
  self->last = now(CLOCK_MONOTONIC);
  self->loss = self->norm = self->rate = self->scale = self->per_second = (double)NAN;
  const ek_status status = open_own_files(self, prometheus, lines);
  if (status != EK_OK) {
    free_metrics(self);
    return status;
  }
  *metrics = self;
  return EK_OK;
}

/* ---- a line of JSON ---- */

static void add(ek_metrics *self, const char *format, ...) EK_PRINTF(2, 3);
static void add(ek_metrics *self, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int length =
      vsnprintf(self->buffer + self->used, self->size - self->used, format, arguments);
  va_end(arguments);
  if (length > 0) self->used += (size_t)length;
}

static void add_number(ek_metrics *self, const char *key, double value) {
  if (isfinite(value)) {
    add(self, "\"%s\": %.17g, ", key, value);
  } else {
    add(self, "\"%s\": null, ", key);
  }
}

static ek_status make_line(ek_metrics *self) {
  self->used = 0;
  if (self->cut) add(self, "\n");
  add(self, "{\"time\": %.3f, \"step\": %lld, ", self->time, (long long)self->step);
  add_number(self, "loss", self->loss);
  add_number(self, "gradient_norm", self->norm);
  add_number(self, "learning_rate", self->rate);
  add_number(self, "tokens", self->tokens);
  add_number(self, "seconds", self->seconds);
  add_number(self, "tokens_per_second", self->per_second);
  add_number(self, "loss_scale", self->scale);
  add(self, "\"skipped_steps\": %llu, ", (unsigned long long)self->skipped);
  for (size_t i = 0; i < self->number_count; i++) {
    add_number(self, self->numbers[i].name, self->numbers[i].value);
  }
  if (self->world != NULL) {
    add(self, "\"process\": %zu, ", ek_world_process(self->world));
    add_number(self, "busy_seconds", self->own_busy);
    add(self, "\"slowest_process\": %zu, ", self->slowest);
    add_number(self, "slowest_busy_seconds", self->most_busy);
  }
  add(self, "\"devices\": [");
  for (size_t k = 0; k < ek_group_size(self->group); k++) {
    const ek_device *device = ek_group_device(self->group, k);
    ek_memory_usage usage;
    EK_TRY(ek_memory_stats(&usage, device));
    add(self, "%s{", k > 0 ? ", " : "");
    if (self->world != NULL) add(self, "\"rank\": %zu, ", ek__group_first_rank(self->group) + k);
    add(self, "\"name\": \"%s\", \"held_bytes\": %llu, \"peak_bytes\": %llu}",
        ek_device_name(device), (unsigned long long)usage.current_bytes,
        (unsigned long long)usage.peak_bytes);
  }
  add(self, "]}\n");
  EK__FAIL_IF(self->used >= self->size, EK_ERR_INTERNAL, "metrics: a line is too long");
  return EK_OK;
}

/* write() that raises no SIGPIPE for a pipe without a reader: the signal is blocked and removed. */
static ssize_t write_quietly(int file, const char *data, size_t bytes) {
  sigset_t pipe, pending, before;
  (void)sigemptyset(&pipe);
  (void)sigaddset(&pipe, SIGPIPE);
  (void)sigpending(&pending);
  const bool was_pending = sigismember(&pending, SIGPIPE) == 1;
  (void)pthread_sigmask(SIG_BLOCK, &pipe, &before);
  ssize_t written;
  do {
    written = write(file, data, bytes);
  } while (written < 0 && errno == EINTR);
  const int error = errno;
  if (written < 0 && error == EPIPE && !was_pending) {
    const struct timespec now = {0};
    while (sigtimedwait(&pipe, NULL, &now) < 0 && errno == EINTR) continue;
  }
  (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
  errno = error;
  return written;
}

/* One write, which the system does not interleave with those of other processes. */
static ek_status write_line(ek_metrics *self) {
  if (self->lines < 0) return EK_OK;
  EK_TRY(make_line(self));
  const ssize_t written = write_quietly(self->lines, self->buffer, self->used);
  if (written < 0) return ek__file_refused(self->lines_path, "cannot be written");
  if (written > 0) self->cut = (size_t)written != self->used;
  EK__FAIL_IF((size_t)written != self->used, EK_ERR_IO, "%s: only part of a line was written",
              self->lines_path);
  return EK_OK;
}

/* ---- the file for Prometheus ---- */

static void put_metric(const ek_metrics *self, struct ek__text_file *file, const char *name,
                       const char *type, const char *help, double value) {
  ek__text_format(file, "# HELP evenkeel_%s %s\n# TYPE evenkeel_%s %s\nevenkeel_%s", name, help,
                  name, type, name);
  if (self->world != NULL) {
    ek__text_format(file, "{process=\"%zu\"}", ek_world_process(self->world));
  }
  if (isnan(value)) {
    ek__text_format(file, " NaN\n");
  } else if (isinf(value)) {
    ek__text_format(file, value > 0 ? " +Inf\n" : " -Inf\n");
  } else {
    ek__text_format(file, " %.17g\n", value);
  }
}

/* Names of devices have no characters that need escaping in a label. */
static ek_status put_devices(const ek_metrics *self, struct ek__text_file *file, bool peak) {
  const ek_group *group = self->group;
  const char *name = peak ? "peak" : "held";
  ek__text_format(file,
                  "# HELP evenkeel_device_%s_bytes Memory of a device, %s.\n"
                  "# TYPE evenkeel_device_%s_bytes gauge\n",
                  name, peak ? "at its peak" : "held now", name);
  for (size_t k = 0; k < ek_group_size(group); k++) {
    const ek_device *device = ek_group_device(group, k);
    ek_memory_usage usage;
    EK_TRY(ek_memory_stats(&usage, device));
    ek__text_format(file, "evenkeel_device_%s_bytes{device=\"%s\"", name, ek_device_name(device));
    if (self->world != NULL) {
      ek__text_format(file, ",process=\"%zu\"", ek_world_process(self->world));
    }
    ek__text_format(file, "} %llu\n",
                    (unsigned long long)(peak ? usage.peak_bytes : usage.current_bytes));
  }
  return EK_OK;
}

static ek_status write_prometheus(ek_metrics *self) {
  if (self->prometheus == NULL) return EK_OK;
  struct ek__text_file *file = NULL;
  EK_TRY(ek__text_begin(&file, self->prometheus));
  put_metric(self, file, "step", "gauge", "Steps of the run so far.", (double)self->step);
  put_metric(self, file, "loss", "gauge", "Loss of the last step.", self->loss);
  put_metric(self, file, "gradient_norm", "gauge", "Norm of the last gradient, before clipping.",
             self->norm);
  put_metric(self, file, "learning_rate", "gauge", "Learning rate of the last step.", self->rate);
  put_metric(self, file, "tokens_total", "counter", "Tokens that the run has trained on.",
             self->tokens);
  put_metric(self, file, "tokens_per_second", "gauge", "Tokens a second in the last step.",
             self->per_second);
  put_metric(self, file, "loss_scale", "gauge", "The loss scale of the last step.", self->scale);
  put_metric(self, file, "skipped_steps_total", "counter", "Steps that changed nothing.",
             (double)self->skipped);
  put_metric(self, file, "last_step_timestamp_seconds", "gauge", "When the last step ended.",
             self->time);
  if (self->world != NULL) {
    put_metric(self, file, "busy_seconds", "gauge",
               "Work of this process in the last step, without waiting.", self->own_busy);
    put_metric(self, file, "slowest_process", "gauge", "The process with most work in that step.",
               (double)self->slowest);
    put_metric(self, file, "slowest_busy_seconds", "gauge", "Its work.", self->most_busy);
  }
  for (size_t i = 0; i < self->number_count; i++) {
    const struct number *it = &self->numbers[i];
    put_metric(self, file, it->name, "gauge", "A number of the program's own.", it->value);
  }
  ek_status status = put_devices(self, file, false);
  if (status == EK_OK) status = put_devices(self, file, true);
  if (status != EK_OK) {
    ek__text_drop(file);
    return status;
  }
  return ek__text_end(file, false);
}

/* ---- a step ---- */

/* The busy times of all processes in the last step; of equal ones the first is the slowest. */
static void take_work(ek_metrics *self) {
  self->most_busy = -1;
  for (size_t p = 0; p < ek_world_processes(self->world); p++) {
    const double worked = ek_world_busy(self->world, p), busy = worked - self->worked[p];
    self->worked[p] = worked;
    if (p == ek_world_process(self->world)) self->own_busy = busy;
    if (busy <= self->most_busy) continue;
    self->most_busy = busy;
    self->slowest = p;
  }
}

static void take(ek_metrics *self, const ek_step_result *result, double tokens) {
  const double time = now(CLOCK_MONOTONIC);
  self->time = now(CLOCK_REALTIME);
  self->seconds = time - self->last;
  self->last = time;
  self->tokens += tokens;
  self->per_second = tokens / self->seconds;
  self->told = true;
  if (self->world != NULL) take_work(self);
  if (result == NULL || result->empty || result->skipped) self->skipped++;
  if (result == NULL) return;
  self->step = result->step;
  self->loss = result->loss;
  self->norm = result->gradient_norm < 0 ? (double)NAN : result->gradient_norm;
  self->rate = result->learning_rate;
  self->scale = result->loss_scale;
}

static ek_status write_both(ek_metrics *metrics) {
  EK_TRY(write_line(metrics));
  if (metrics->written > 0 && metrics->last - metrics->written < 1) return EK_OK;
  EK_TRY(write_prometheus(metrics));
  metrics->written = metrics->last;
  return EK_OK;
}

ek_status ek_metrics_step(ek_metrics *metrics, const ek_step_result *result, double tokens) {
  EK__NOT_NULL("ek_metrics_step", metrics);
  EK__FAIL_IF(!isfinite(tokens) || tokens < 0, EK_ERR_INVALID_ARGUMENT,
              "ek_metrics_step: %g tokens, expected a number >= 0", tokens);
  take(metrics, result, tokens);
  const locale_t before = ek__c_locale_begin();
  const ek_status status = write_both(metrics);
  ek__c_locale_end(before);
  return status;
}

/* ---- what the program says ---- */

/* The names of a line and of the metrics of the other file. */
static bool is_taken(const char *name) {
  static const char *const names[] = {"time",
                                      "step",
                                      "loss",
                                      "gradient_norm",
                                      "learning_rate",
                                      "tokens",
                                      "tokens_total",
                                      "seconds",
                                      "tokens_per_second",
                                      "loss_scale",
                                      "skipped_steps",
                                      "skipped_steps_total",
                                      "last_step_timestamp_seconds",
                                      "process",
                                      "busy_seconds",
                                      "slowest_process",
                                      "slowest_busy_seconds",
                                      "devices",
                                      "device_held_bytes",
                                      "device_peak_bytes"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    if (strcmp(name, names[i]) == 0) return true;
  }
  return false;
}

static ek_status check_name(const char *name) {
  const size_t length = strlen(name);
  const bool legal =
      strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == length && *name >= 'a';
  EK__FAIL_IF(!legal || length >= EK_METRICS_NAME_SIZE, EK_ERR_INVALID_ARGUMENT,
              "ek_metrics_put: \"%.60s\" is not a valid name of a number; expected a lower-case "
              "letter, then lower-case letters, digits and underscores, at most %d in all",
              name, EK_METRICS_NAME_SIZE - 1);
  EK__FAIL_IF(is_taken(name), EK_ERR_INVALID_ARGUMENT,
              "ek_metrics_put: \"%s\" is a name that the library uses; choose another", name);
  return EK_OK;
}

ek_status ek_metrics_put(ek_metrics *metrics, const char *name, double value) {
  EK__NOT_NULL("ek_metrics_put", metrics, name);
  EK_TRY(check_name(name));
  size_t i = 0;
  while (i < metrics->number_count && strcmp(metrics->numbers[i].name, name) != 0) i++;
  EK__FAIL_IF(i == EK_METRICS_NUMBERS, EK_ERR_INVALID_ARGUMENT,
              "ek_metrics_put: \"%s\" would be number %d; at most %d are possible", name,
              EK_METRICS_NUMBERS + 1, EK_METRICS_NUMBERS);
  struct number *it = &metrics->numbers[i];
  it->value = value;
  if (i < metrics->number_count) return EK_OK;
  memcpy(it->name, name, strlen(name) + 1);
  metrics->number_count++;
  return EK_OK;
}

ek_status ek_metrics_resume(ek_metrics *metrics, double tokens) {
  EK__NOT_NULL("ek_metrics_resume", metrics);
  EK__FAIL_IF(!isfinite(tokens) || tokens < 0, EK_ERR_INVALID_ARGUMENT,
              "ek_metrics_resume: %g tokens, expected a number >= 0", tokens);
  EK__FAIL_IF(metrics->told, EK_ERR_STATE,
              "ek_metrics_resume: steps have already been counted; call it before the first one");
  metrics->tokens = tokens;
  return EK_OK;
}

/* ---- the end ---- */

ek_status ek_metrics_close(ek_metrics *metrics) {
  if (metrics == NULL) return EK_OK;
  const locale_t before = ek__c_locale_begin();
  const ek_status status = metrics->told ? write_prometheus(metrics) : EK_OK;
  ek__c_locale_end(before);
  free_metrics(metrics);
  return status;
}

void ek_metrics_free(ek_metrics *metrics) {
  char before[EK__MESSAGE_SIZE];
  ek__error_keep(before);
  ek__error_restore(before, ek_metrics_close(metrics));
}
