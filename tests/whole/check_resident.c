/*
 * check_resident.c - the ledger tells the truth: what the system says the process holds grows and
 * shrinks by what the ledger says, on a run that really touches 1 GiB on two CPU devices.
 *
 * Sanitizers keep shadow memory of their own, so there the test only says that it was left out.
 */
#include "ek_check.h"

#include <unistd.h>

#define MIB ((int64_t)1 << 20)
enum { DEVICES = 2, TENSORS = 37 }; /* of 1 GiB / 74: no multiple of a page */

/* Private and anonymous pages: resident less shared. Negative where the system does not tell. */
static int64_t resident(void) {
  long long pages = 0, shared = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (file == NULL) return -1;
  const int fields = fscanf(file, "%*d %lld %lld", &pages, &shared);
  (void)fclose(file);
  return fields == 2 ? (pages - shared) * sysconf(_SC_PAGESIZE) : -1;
}

static int64_t available(void) {
  return (int64_t)sysconf(_SC_AVPHYS_PAGES) * sysconf(_SC_PAGESIZE);
}

static bool left_out(void) {
  const char *why = (CK_ASAN || CK_TSAN)       ? "a sanitizer keeps shadow memory"
                    : resident() < 0           ? "there is no /proc/self/statm"
                    : available() < 1536 * MIB ? "less than 1.5 GiB are free"
                                               : NULL;
  if (why != NULL) printf("check_resident: left out: %s\n", why);
  return why != NULL;
}

struct run {
  ek_tensor tensors[DEVICES][TENSORS];
  int64_t rows;
};

CK_JOB(fill_all) {
  struct run *run = context;
  for (int i = 0; i < TENSORS; i++) {
    ek_tensor *tensor = &run->tensors[index][i];
    EK_TRY(ek_tensor_create(tensor, device, EK_MEMORY_ACTIVATIONS, EK_F32, 1, &run->rows));
    EK_TRY(ek_op_fill(ek_device_stream(device, EK_STREAM_COMPUTE), tensor, 1.5));
  }
  return EK_OK;
}

static int64_t on_ledgers(const ek_group *group) {
  int64_t total = 0;
  for (size_t i = 0; i < DEVICES; i++) {
    CK_GOT(ek_memory_usage, usage, ck_memory_stats(&usage, ek_group_device(group, i)));
    ck_assert_uint_eq(usage.current_bytes, usage.peak_bytes);
    total += (int64_t)usage.current_bytes;
  }
  return total;
}

/* Equal to 2 % of what the ledger says. */
static void agree(const char *what, int64_t grown, int64_t ledger, int64_t scale) {
  const int64_t difference = grown > ledger ? grown - ledger : ledger - grown;
  ck_assert_msg(difference <= scale / 50,
                "%s: the process grew by %" PRId64 " bytes, the ledger says %" PRId64, what, grown,
                ledger);
}

CK_LOOP(the_process_holds_what_the_ledger_says, 2) {
  if (left_out()) return;
  static struct run run;
  run.rows = 1024 * MIB / (DEVICES * TENSORS) / 4;
  const int64_t before = resident();
  ek_group *group = ck_open_exactly("cpu:2@600MiB", 1);
  agree("opened", resident() - before, 0, 1024 * MIB); /* a capacity costs nothing */
  ck_ok(ek_group_apply(group, fill_all, &run));
  const int64_t ledger = on_ledgers(group);
  ck_assert_int_ge(ledger, 1024 * MIB - TENSORS * DEVICES * 8);
  agree("filled", resident() - before, ledger, ledger);
  for (size_t d = 0; d < DEVICES; d++) {
    for (int i = 0; i < TENSORS; i++) ek_tensor_free(&run.tensors[d][i]);
  }
  ck_no_memory_held(group);
  ek_group_free(group);
  agree("closed", resident() - before, 0, ledger);
}

CK_SUITE("resident")
