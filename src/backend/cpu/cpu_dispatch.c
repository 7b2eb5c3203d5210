/*
 * cpu_dispatch.c - chooses the range functions that run: by the type of values and, except for f64,
 * by what the processor and the operating system support.
 *
 * EVENKEEL_ISA=baseline, avx2 or avx512 takes at most that one, so that tests can run every set on
 * one machine; without it the best there is. The choice is made once per process.
 */
#include "backend/cpu/cpu_isa.h"
#include "backend/cpu/reference.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

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

static pthread_once_t chosen = PTHREAD_ONCE_INIT;
static struct isa choice;

/* From the least on; what is not among them is above all. */
static int level(const char *isa) {
  static const char *const order[] = {"baseline", "avx2", "avx512"};
  enum { LEVELS = sizeof order / sizeof order[0] };
  for (int i = 0; i < LEVELS; i++) {
    if (strcmp(isa, order[i]) == 0) return i;
  }
  return LEVELS;
}

bool ek__cpu_isa_is_allowed(const char *isa) {
  const char *most = getenv("EVENKEEL_ISA");
  return !most || level(isa) <= level(most);
}

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
