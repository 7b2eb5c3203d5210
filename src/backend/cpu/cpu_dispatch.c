/*
 * cpu_dispatch.c - chooses the range functions: by the type of values and, except for f64, by the
 * instruction sets that the processor and the operating system support.
 *
 * EVENKEEL_ISA (device.h) takes at most the set that it names, so that tests can run every set on
 * one machine; without it the best set is chosen. The choice is made once per process.
 */
#include "backend/cpu/cpu_isa.h"
#include "backend/cpu/reference.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif

/* An instruction set: its tables, by the type of values. */
struct isa {
  enum ek__cpu_isa isa;
  const char *name;
  const struct ek__cpu_functions *f32, *bf16, *f16;
};

#define DECLARE(isa)                                                                               \
  extern const struct ek__cpu_functions ek__cpu_functions_##isa##_f32,                             \
      ek__cpu_functions_##isa##_bf16, ek__cpu_functions_##isa##_f16;
#define ISA(number, name, isa)                                                                     \
  {                                                                                                \
    number, name, &ek__cpu_functions_##isa##_f32, &ek__cpu_functions_##isa##_bf16,                 \
        &ek__cpu_functions_##isa##_f16                                                             \
  }

DECLARE(baseline)
#ifdef EK_HAVE_ISA_AVX2
DECLARE(avx2)
#endif
#ifdef EK_HAVE_ISA_AVX512
DECLARE(avx512)
#endif

/* ---- EVENKEEL_ISA ---- */

static const char *const order[] = {"baseline", "avx2", "avx512"};
enum { LEVELS = sizeof order / sizeof order[0] };

static pthread_once_t looked = PTHREAD_ONCE_INIT;
static int most = LEVELS; /* the highest level that is allowed */
static char unknown[32];  /* what was asked for; its beginning, where it is long */

static int level(const char *isa) {
  int i = 0;
  while (i < LEVELS && strcmp(isa, order[i]) != 0) i++;
  return i;
}

static void look(void) {
  const char *isa = getenv("EVENKEEL_ISA");
  if (isa == NULL || *isa == '\0') return;
  most = level(isa);
  if (most == LEVELS) (void)snprintf(unknown, sizeof unknown, "%s", isa);
}

ek_status ek__cpu_isa_check_wish(void) {
  pthread_once(&looked, look);
  EK__FAIL_IF(*unknown != '\0', EK_ERR_INVALID_ARGUMENT,
              "EVENKEEL_ISA: unknown value \"%s\"; expected baseline, avx2, avx512", unknown);
  return EK_OK;
}

bool ek__cpu_isa_is_allowed(const char *isa) {
  pthread_once(&looked, look);
  return level(isa) <= most;
}

/* ---- the choice ---- */

static pthread_once_t chosen = PTHREAD_ONCE_INIT;
static struct isa choice;

#ifdef EK_HAVE_ISA_AVX2
/* Not every compiler has a name for it. */
static bool has_f16c(void) {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

static void choose(void) {
  choice = (struct isa)ISA(EK__ISA_BASELINE, "baseline", baseline);
#ifdef EK_HAVE_ISA_AVX2
  if (ek__cpu_isa_is_allowed("avx2") && __builtin_cpu_supports("avx2") &&
      __builtin_cpu_supports("fma") && has_f16c()) {
    choice = (struct isa)ISA(EK__ISA_AVX2, "AVX2", avx2);
  }
#endif
#ifdef EK_HAVE_ISA_AVX512
  if (ek__cpu_isa_is_allowed("avx512") && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma")) {
    choice = (struct isa)ISA(EK__ISA_AVX512, "AVX-512", avx512);
  }
#endif
}

const struct ek__cpu_functions *ek__cpu_functions(struct ek__types types) {
  pthread_once(&chosen, choose);
  switch (types.value) {
  case EK_F64: return &ek__cpu_functions_f64;
  case EK_BF16: return choice.bf16;
  case EK_F16: return choice.f16;
  case EK_F32:
  case EK_I32:
  case EK_I64:
  case EK_U8:
  case EK_U16:
  case EK_U32: break;
  }
  return choice.f32;
}

enum ek__cpu_isa ek__cpu_isa(void) {
  pthread_once(&chosen, choose);
  return choice.isa;
}

const char *ek__cpu_isa_name(void) {
  pthread_once(&chosen, choose);
  return choice.name;
}
