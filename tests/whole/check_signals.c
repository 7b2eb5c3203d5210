/*
 * check_signals.c - signals of the program change no result, wherever they are handled.
 *
 * A handler runs on the stack of the thread that it interrupts, and oneDNN (2.6) keeps data where
 * the kernel puts the handler's frame. So no handler may run on a thread of the library, nor on one
 * of the program's while it multiplies; and what the thread itself raises must reach its handler.
 * The devices are the CPU's: on a GPU nothing computes on the host.
 */
#define _GNU_SOURCE /* SYS_tgkill */
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include "ck_gpt.h"
#include "ck_training.h"

enum { DEVICES = 3, THREADS = 2, MOST_THREADS = 64, FRAME = 2048 };

/* ---- handlers ---- */

static pthread_t program_thread; /* the test's */
static atomic_int handled, on_others;

/* With a frame of its own below the kernel's. */
static void handle(int signal) {
  volatile char frame[FRAME];
  for (size_t i = 0; i < sizeof frame; i++) frame[i] = (char)(signal + 0x5A);
  atomic_fetch_add(&handled, 1);
  if (!pthread_equal(pthread_self(), program_thread)) atomic_fetch_add(&on_others, 1);
}

static const int storms[] = {SIGALRM, SIGPROF, SIGUSR1};
enum { STORMS = sizeof storms / sizeof storms[0] };

static const sigset_t *storm_set(sigset_t *set) {
  (void)sigemptyset(set);
  for (int i = 0; i < STORMS; i++) (void)sigaddset(set, storms[i]);
  return set;
}

/* ---- a thread that sends signals to all others of the process ---- */

static atomic_bool calm;

static void *send_signals(void *unused) {
  (void)unused;
  const long self = syscall(SYS_gettid), process = getpid();
  while (!atomic_load(&calm)) {
    DIR *tasks = opendir("/proc/self/task");
    const struct dirent *entry = NULL;
    while (tasks != NULL && (entry = readdir(tasks)) != NULL) {
      const long task = strtol(entry->d_name, NULL, 10);
      if (task > 0 && task != self) (void)syscall(SYS_tgkill, process, task, SIGUSR1);
    }
    if (tasks != NULL) (void)closedir(tasks);
    (void)usleep(20);
  }
  return NULL;
}

/* ---- storms ---- */

struct storm {
  struct sigaction before[STORMS];
  pthread_t sender;
};

static void set_timers(int microseconds) {
  const struct itimerval every = {{0, microseconds}, {0, microseconds}};
  ck_assert_int_eq(setitimer(ITIMER_REAL, &every, NULL), 0);
  ck_assert_int_eq(setitimer(ITIMER_PROF, &every, NULL), 0);
}

/* Timers at 1 kHz, which the kernel gives to a thread that runs, and signals to each thread. */
static void begin_storm(struct storm *storm) {
  struct sigaction action;
  sigset_t all, before;
  memset(&action, 0, sizeof action);
  ck_assign(action, .sa_handler = handle, .sa_flags = SA_RESTART);
  sigemptyset(&action.sa_mask);
  program_thread = pthread_self();
  atomic_store(&handled, 0);
  atomic_store(&on_others, 0);
  for (int i = 0; i < STORMS; i++) {
    ck_assert_int_eq(sigaction(storms[i], &action, &storm->before[i]), 0);
  }
  /* ThreadSanitizer's runtime (gcc 12) now and then leaves a thread that waits among many signals
   * with all of them blocked, in programs without evenkeel, too; so a storm begins without. */
  (void)pthread_sigmask(SIG_UNBLOCK, storm_set(&all), NULL);
  atomic_store(&calm, false);
  (void)sigfillset(&all); /* the sender is no thread of the library either */
  (void)pthread_sigmask(SIG_BLOCK, &all, &before);
  ck_assert_int_eq(pthread_create(&storm->sender, NULL, send_signals, NULL), 0);
  (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
  set_timers(1000);
}

static void end_storm(const struct storm *storm) {
  set_timers(0);
  atomic_store(&calm, true);
  (void)pthread_join(storm->sender, NULL);
  for (int i = 0; i < STORMS; i++) (void)sigaction(storms[i], &storm->before[i], NULL);
}

/* ---- masks of the library's threads ---- */

static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};

struct masks {
  atomic_int threads, right;
};

static ek_status look_at_mask(void *context, int64_t begin, int64_t end) {
  struct masks *masks = context;
  sigset_t set;
  (void)begin, (void)end;
  bool right = pthread_sigmask(SIG_BLOCK, NULL, &set) == 0;
  for (int signal = 1; signal <= SIGSYS; signal++) {
    bool caused = signal == SIGKILL || signal == SIGSTOP; /* nothing blocks them */
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) caused = caused || signal == own[i];
    right = right && (sigismember(&set, signal) == 1) == !caused;
  }
  right = right && sigismember(&set, SIGRTMIN) == 1 && sigismember(&set, SIGRTMAX) == 1;
  atomic_fetch_add(&masks->threads, 1);
  if (right) atomic_fetch_add(&masks->right, 1);
  return EK_OK;
}

CK_JOB(look_at_masks) {
  return ek_device_parallel_for(device, THREADS, look_at_mask, context);
}

CK_TEST(threads_of_the_library_block_what_can_be_blocked) {
  sigset_t before, after;
  ck_assert_int_eq(pthread_sigmask(SIG_BLOCK, NULL, &before), 0);
  ek_group *group = ck_open_exactly("cpu:3", THREADS);
  ck_assert_int_eq(pthread_sigmask(SIG_BLOCK, NULL, &after), 0);
  CK_GOT(struct masks, masks, ek_group_apply(group, look_at_masks, &masks));
  ck_assert_int_eq(atomic_load(&masks.threads), DEVICES * THREADS);
  ck_assert_int_eq(atomic_load(&masks.right), DEVICES * THREADS);
  for (int signal = 1; signal <= SIGRTMAX; signal++) {
    ck_assert_int_eq(sigismember(&before, signal), sigismember(&after, signal));
  }
}

/* ---- what a thread raises itself ---- */

static char *closed_page;
static size_t page_size;

static void open_page(int signal) {
  (void)signal;
  (void)mprotect(closed_page, page_size, PROT_READ | PROT_WRITE);
}

CK_JOB(touch_page) {
  *(volatile char *)closed_page = 7;
  return EK_OK;
}

CK_TEST(a_fault_reaches_the_programs_handler) {
  struct sigaction action, before;
  page_size = (size_t)sysconf(_SC_PAGESIZE);
  closed_page = mmap(NULL, page_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ck_assert(closed_page != MAP_FAILED);
  memset(&action, 0, sizeof action);
  action.sa_handler = open_page;
  sigemptyset(&action.sa_mask);
  ek_group *group = ck_open_exactly("cpu:1", 1);
  ck_assert_int_eq(sigaction(SIGSEGV, &action, &before), 0);
  const ek_status status = ek_group_apply(group, touch_page, NULL);
  ck_assert_int_eq(sigaction(SIGSEGV, &before, NULL), 0);
  ck_ok(status);
  ck_assert_int_eq(closed_page[0], 7);
  ck_ok(ek_group_close(group));
  (void)munmap(closed_page, page_size);
}

/* ---- training in a storm ---- */

enum { VOCABULARY = 5000, LENGTH = 4, WIDTH = 64, SAMPLES = 9, STEPS = CK_TSAN ? 4 : 25 };

static ek_status make_model(ek_module **module) {
  const ek_gpt_options options = ck_gpt_sizes(VOCABULARY, LENGTH, WIDTH, 2, 2);
  return ek_gpt_create(module, &options);
}

static double *train(const struct ck_setup *setup) {
  return ck_values_after(setup, ck_open_exactly("cpu:3", THREADS), STEPS, SAMPLES);
}

CK_LOOP(a_training_in_a_storm_has_the_same_bits, CK_MODES) {
  struct ck_workload workload = *ck_workload("gpt"); /* few rows, a wide output */
  static const struct ck_batch sample = CK_SAMPLE(CK_TOKENS(LENGTH), CK_LABELS(LENGTH));
  ck_assign(workload, .module = make_model, .sample = sample, .classes = VOCABULARY);
  struct ck_setup setup = ck_setup_mode(&workload, "cpu:3", (ek_mode)_i);
  setup.optimizer = ck_clipped_adamw;
  double *want = train(&setup);
  CK_SET_UP(struct storm, storm, begin_storm(&storm));
  double *got = train(&setup);
  end_storm(&storm);
  ck_assert_int_gt(atomic_load(&handled), 0);
  if (!CK_TSAN) ck_assert_int_eq(atomic_load(&on_others), 0); /* its runtime has threads, too */
  ck_arrays_same("parameters", got, want);
}

/* ---- products on the program's own thread in a storm ---- */

enum { ROWS = 12, INNER = 256, COLUMNS = 256, PRODUCTS = CK_TSAN ? 100 : 5000 };

CK_LOOP(a_product_of_the_programs_thread_has_the_same_bits, THREADS) {
  static double values[INNER * COLUMNS], want[ROWS * COLUMNS], got[ROWS * COLUMNS];
  for (size_t i = 0; i < INNER * COLUMNS; i++) values[i] = (double)(i * 7 % 19) - 9;
  ek_group *group = ck_open_exactly("cpu:1", _i + 1);
  ek_device *device = ek_group_device(group, 0);
  ek_stream *stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  ek_tensor a = ck_upload(device, EK_F32, values, CK_SHAPE(ROWS, INNER));
  ek_tensor b = ck_upload(device, EK_F32, values, CK_SHAPE(INNER, COLUMNS));
  ek_tensor c = ck_upload(device, EK_F32, NULL, CK_SHAPE(ROWS, COLUMNS));
  for (int64_t i = 0; i < ROWS; i++) { /* whole numbers: exact */
    for (int64_t j = 0; j < COLUMNS; j++) {
      double sum = 0;
      for (int64_t p = 0; p < INNER; p++) sum += values[i * INNER + p] * values[p * COLUMNS + j];
      want[i * COLUMNS + j] = sum;
    }
  }
  sigset_t mask, now;
  ck_assert_int_eq(pthread_sigmask(SIG_BLOCK, NULL, &mask), 0);
  CK_SET_UP(struct storm, storm, begin_storm(&storm));
  ek_status status = EK_OK;
  int wrong = 0;
  for (int i = 0; i < PRODUCTS && status == EK_OK && wrong == 0; i++) {
    status = ek_op_matmul(stream, &c, &a, false, &b, false, 0);
    ck_get(got, &c);
    wrong = memcmp(got, want, sizeof got) != 0;
  }
  end_storm(&storm);
  ck_ok(status);
  ck_assert_int_eq(wrong, 0);
  ck_assert_int_gt(atomic_load(&handled), 0);
  ck_assert_int_eq(pthread_sigmask(SIG_BLOCK, NULL, &now), 0);
  for (int signal = 1; signal <= SIGRTMAX && !CK_TSAN; signal++) { /* see begin_storm() */
    ck_assert_int_eq(sigismember(&mask, signal), sigismember(&now, signal));
  }
}

CK_SUITE("signals")
