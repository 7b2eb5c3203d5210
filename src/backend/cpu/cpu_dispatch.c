/*
 * cpu_dispatch.c - which range functions run: by element type, and for f32 by what the processor
 * and the operating system support.
 *
 * EVENKEEL_ISA=baseline, avx2 or avx512 takes at most that one, so that tests can run every set on
 * one machine. The choice is made once per process.
 */
#include "backend/cpu/reference.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

extern const struct ek__cpu_functions ek__cpu_functions_baseline;
#ifdef EK_HAVE_ISA_AVX2
extern const struct ek__cpu_functions ek__cpu_functions_avx2;
#endif
#ifdef EK_HAVE_ISA_AVX512
extern const struct ek__cpu_functions ek__cpu_functions_avx512;
#endif

struct choice {
  const struct ek__cpu_functions *functions;
  const char *name;
};

static pthread_once_t chosen = PTHREAD_ONCE_INIT;
static struct choice choice;

static bool allowed(const char *isa) {
  const char *most = getenv("EVENKEEL_ISA");
  if (!most || !*most) return true;
  if (strcmp(most, "baseline") == 0) return false;
  if (strcmp(most, "avx2") == 0) return strcmp(isa, "avx2") == 0;
  return true;
}

static void choose(void) {
  choice = (struct choice){&ek__cpu_functions_baseline, "baseline"};
#ifdef EK_HAVE_ISA_AVX2
  if (allowed("avx2") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    choice = (struct choice){&ek__cpu_functions_avx2, "AVX2"};
  }
#endif
#ifdef EK_HAVE_ISA_AVX512
  if (allowed("avx512") && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma")) {
    choice = (struct choice){&ek__cpu_functions_avx512, "AVX-512"};
  }
#endif
  (void)allowed;
}

/* Values and sums have one type in both tables: see struct ek__types. */
const struct ek__cpu_functions *ek__cpu_functions(struct ek__types types) {
  if (types.value == EK_F64) return &ek__cpu_functions_f64;
  pthread_once(&chosen, choose);
  return choice.functions;
}

const char *ek__cpu_isa_name(void) {
  pthread_once(&chosen, choose);
  return choice.name;
}
