/*
 * cpu_amx.c - asks the processor for AMX and the kernel for permission to use it.
 *
 * The tiles are 8 KiB of state a thread. Linux (5.16) gives them to a process that asks, for all
 * its threads, those that run already among them, and for the children of fork(). It refuses where
 * a thread has an alternate stack for signals that is too small to keep them (sigaltstack()), where
 * a filter of system calls is in the way, or before 5.16; then the library does without. A thread
 * takes its 8 KiB from the kernel when it uses a tile for the first time.
 *
 * What the library is built on is asked for as well: eight tiles of 16 rows of 64 bytes.
 */
#include "backend/cpu/cpu_amx.h"

#include <stddef.h>

#define OSXSAVE (1u << 27)       /* leaf 1, ecx */
#define AMX_BF16 (1u << 22)      /* leaf 7, edx */
#define AMX_TILE (1u << 24)      /* leaf 7, edx */
#define PALETTES 0x1Du           /* leaf; part 1 is palette 1 */
#define TILE_CONFIG (1ull << 17) /* XCR0 */
#define TILE_DATA (1ull << 18)   /* XCR0 */

static bool has_instructions(const struct ek__amx_system *system) {
  enum { EAX, EBX, ECX, EDX };
  unsigned r[4] = {0};
  if (!system->cpuid(1, 0, r) || (r[ECX] & OSXSAVE) == 0) return false;
  if (!system->cpuid(7, 0, r) || (r[EDX] & AMX_BF16) == 0 || (r[EDX] & AMX_TILE) == 0) return false;
  if (!system->cpuid(PALETTES, 0, r) || r[EAX] < 1 || !system->cpuid(PALETTES, 1, r)) return false;
  const bool bytes = r[EAX] == (1024u << 16 | 8192u); /* of a tile, of all */
  const bool rows = (r[ECX] & 0xFFFFu) == 16;
  return bytes && rows && r[EBX] == (8u << 16 | 64u); /* tiles, bytes of a row */
}

bool ek__amx_is_there(const struct ek__amx_system *system) {
  const uint64_t both = TILE_CONFIG | TILE_DATA;
  return has_instructions(system) && (system->enabled() & both) == both && system->permit();
}

#if defined(__x86_64__) && defined(__linux__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* asm/prctl.h, which may be older. */
#define GET_PERMISSIONS 0x1022
#define ASK_PERMISSION 0x1023
#define TILE_DATA_NUMBER 18

static bool ask_processor(unsigned leaf, unsigned part, unsigned r[4]) {
  return __get_cpuid_count(leaf, part, &r[0], &r[1], &r[2], &r[3]) != 0;
}

static uint64_t read_xcr0(void) {
  uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t)high << 32 | low;
}

/* The program may have asked before, and forbidden asking since. */
static bool ask_kernel(void) {
  uint64_t permitted = 0;
  if (syscall(SYS_arch_prctl, ASK_PERMISSION, TILE_DATA_NUMBER) == 0) return true;
  if (syscall(SYS_arch_prctl, GET_PERMISSIONS, &permitted) != 0) return false;
  return (permitted & TILE_DATA) != 0;
}

const struct ek__amx_system ek__amx_this_system = {ask_processor, read_xcr0, ask_kernel};

#else

static bool ask_nobody(unsigned leaf, unsigned part, unsigned r[4]) {
  (void)leaf, (void)part, (void)r;
  return false;
}

const struct ek__amx_system ek__amx_this_system = {ask_nobody, NULL, NULL};

#endif
