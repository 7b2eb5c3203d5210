/*
 * team.h - the threads that compute on one CPU device: fork, run the parts, join.
 *
 * A team of n threads is the thread that calls plus n - 1 helpers. ek__team_run() calls
 * function(arg, part, parts) once for every part, part 0 on the calling thread, and returns when
 * all are done. The work of a part follows from (part, parts) alone, so results repeat bit for bit.
 *
 * Any thread may run a team; while one does, others do all their parts themselves. Parts may not
 * wait for each other. With one thread, or one part, a run is a plain call.
 *
 * Tiles that are too large for a stack are in scratch memory; every thread of a team has its own.
 * Functions that need it are run by ek__team_run_with_scratch(), which waits for other callers.
 */
#ifndef EK_CPU_TEAM_H
#define EK_CPU_TEAM_H

#include <stdbool.h>
#include <stdint.h>

#include <evenkeel/status.h>

struct ek__team;

typedef void ek__team_function(void *arg, int part, int parts);

/* threads >= 1. EK_ERR_OUT_OF_MEMORY if the host refuses memory or threads. */
ek_status ek__team_open(struct ek__team **team, int threads);
/* Stops and joins the helpers. NULL is legal. */
void ek__team_close(struct ek__team *team);

/* What one thread needs at a time; a product may be part of attention. Pages that nothing of 16
 * bits touches cost nothing. */
struct ek__scratch {
  _Alignas(64) char panels[354 << 10]; /* isa_products.c */
  union {                              /* attention's products are not of 16 bits */
    struct {                           /* theirs, of 16 bits */
      _Alignas(64) char sums[512 << 10];
      _Alignas(64) char lines[2096 << 10]; /* isa_products.c */
    };
    _Alignas(64) char tiles[1216 << 10]; /* isa_attend.c; in f32 the first 256 KiB */
    _Alignas(64) char matrices[2608 << 10]; /* cpu_convolve_winograd.c, whose products are of f32 */
  };
  void *kept; /* cpu_kept_onednn.c: NULL at first, given to free_kept() when the team closes */
  void (*free_kept)(void *kept);
};

int ek__team_threads(const struct ek__team *team);

/* Whether what is computed may depend on the number of threads, to rounding. It may at first;
 * called once, before the first run. */
void ek__team_fix(struct ek__team *team);
bool ek__team_is_fixed(const struct ek__team *team);

/* 1 <= parts <= threads. */
void ek__team_run(struct ek__team *team, int parts, ek__team_function *function, void *arg);
void ek__team_run_with_scratch(struct ek__team *team, int parts, ek__team_function *function,
                               void *arg);
/* Of the calling thread, while it runs a part of ek__team_run_with_scratch(). */
struct ek__scratch *ek__team_scratch(void);

/*
 * The piece of 0 .. count - 1 that belongs to a part. Pieces begin at multiples of `grain`, so that
 * two threads do not write to one cache line and vectors stay whole.
 */
static inline void ek__team_piece(int64_t count, int64_t grain, int part, int parts, int64_t *begin,
                                  int64_t *end) {
  const int64_t grains = count / grain + (count % grain != 0);
  const int64_t share = grains / parts, more = grains % parts;
  const int64_t first = share * part + (part < more ? part : more);
  const int64_t last = first + share + (part < more);
  *begin = first * grain < count ? first * grain : count;
  *end = last * grain < count ? last * grain : count;
}

#endif /* EK_CPU_TEAM_H */
