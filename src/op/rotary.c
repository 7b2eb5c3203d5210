/*
 * rotary.c - checked entry points of include/evenkeel/rotary.h.
 *
 * Kernels get speeds in turns per token: a position times a speed is then reduced to a part of one
 * turn by a subtraction, which is exact.
 */
#include <evenkeel/rotary.h>

#include <inttypes.h>
#include <math.h>

#include "core/options.h"
#include "op/op_internal.h"

#define TURN 6.283185307179586476925286766559 /* radians */

_Static_assert((int)EK_ROTARY_MOST_PAIRS == (int)EK__MOST_PAIRS, "pairs");

static ek_status check_head_width(const char *name, int64_t head_width) {
  EK__FAIL_IF(head_width < 0 || head_width % 2 != 0 || head_width > 2 * EK_ROTARY_MOST_PAIRS,
              EK_ERR_INVALID_ARGUMENT,
              "%s: head_width is %" PRId64 ", expected an even number from 0 to %d", name,
              head_width, 2 * EK_ROTARY_MOST_PAIRS);
  return EK_OK;
}

ek_status ek_op_rotary(ek_stream *stream, ek_tensor *x, const ek_tensor *positions, int heads,
                       int64_t head_width, const double *speeds, bool back) {
  enum { X, POSITIONS, COUNT };
  struct ek__op op;
  struct ek__rotary_args args = {.heads = heads, .head_width = head_width};
  const struct ek__operand operands[] = {
      [X] = EK__WRITE(x, VALUE, .to = &args.x),
      [POSITIONS] = EK__MAY_READ(positions, I32, .to = &args.positions)};
  EK_TRY(ek__op_begin(&op, "rotary", stream, operands, COUNT, &args.types));
  EK__FAIL_IF(x->rank != 3, EK_ERR_SHAPE,
              "rotary: x has rank %d, expected 3 (samples, tokens, columns)", x->rank);
  if (positions != NULL) {
    EK_TRY(ek__op_matrix(&op, POSITIONS, x->shape[0], x->shape[1], "samples x tokens"));
  }
  EK__FAIL_IF(heads < 0, EK_ERR_INVALID_ARGUMENT, "rotary: %d heads, expected 0 or more", heads);
  EK_TRY(check_head_width("rotary", head_width));
  args.samples = x->shape[0];
  args.tokens = x->shape[1];
  args.columns = x->shape[2];
  EK__FAIL_IF(heads * head_width > args.columns, EK_ERR_SHAPE,
              "rotary: x has %" PRId64 " columns, expected at least %d heads x %" PRId64,
              args.columns, heads, head_width);
  EK__FAIL_IF(speeds == NULL && head_width > 0, EK_ERR_INVALID_ARGUMENT, "rotary: speeds is NULL");
  for (int64_t i = 0; i < head_width / 2; i++) {
    EK__FAIL_IF(!isfinite(speeds[i]), EK_ERR_INVALID_ARGUMENT,
                "rotary: speeds[%" PRId64 "] is %g, expected a finite number", i, speeds[i]);
    args.turns[i] = (back ? -speeds[i] : speeds[i]) / TURN;
  }
  return op.kernels == NULL || heads * head_width == 0 ? EK_OK : op.kernels->rotary(stream, &args);
}

/* ---- speeds ---- */

static ek_status check_rotary(const ek_rotary *r) {
  EK__FAIL_IF(!(r->theta > 0) || isinf(r->theta), EK_ERR_INVALID_ARGUMENT,
              "rotary: theta is %g, expected above 0", r->theta);
  EK__FAIL_IF(r->scaling < EK_ROTARY_PLAIN || r->scaling > EK_ROTARY_LLAMA3,
              EK_ERR_INVALID_ARGUMENT, "rotary: scaling is %d, expected 0 to %d", (int)r->scaling,
              (int)EK_ROTARY_LLAMA3);
  if (r->scaling == EK_ROTARY_PLAIN) return EK_OK;
  EK__FAIL_IF(!(r->factor > 0) || isinf(r->factor), EK_ERR_INVALID_ARGUMENT,
              "rotary: factor is %g, expected above 0", r->factor);
  if (r->scaling == EK_ROTARY_LINEAR) return EK_OK;
  EK__FAIL_IF(!(r->low_factor > 0) || !(r->high_factor > r->low_factor) || isinf(r->high_factor),
              EK_ERR_INVALID_ARGUMENT,
              "rotary: low_factor is %g and high_factor %g, expected 0 < low_factor < high_factor",
              r->low_factor, r->high_factor);
  EK__FAIL_IF(r->original <= 0, EK_ERR_INVALID_ARGUMENT,
              "rotary: original is %" PRId64 ", expected above 0", r->original);
  return EK_OK;
}

static double scaled(const ek_rotary *r, double speed) {
  if (r->scaling == EK_ROTARY_PLAIN) return speed;
  if (r->scaling == EK_ROTARY_LINEAR) return speed / r->factor;
  const double turns = (double)r->original * speed / TURN; /* in `original` tokens */
  const double kept = (turns - r->low_factor) / (r->high_factor - r->low_factor);
  const double part = kept < 0 ? 0 : kept > 1 ? 1 : kept;
  return (1 - part) * speed / r->factor + part * speed;
}

ek_status ek_rotary_speeds(double *speeds, int64_t head_width, const ek_rotary *rotary) {
  ek_rotary r = EK_ROTARY_INIT;
  EK_TRY(ek__options_read(&r, sizeof r, rotary, "ek_rotary"));
  EK_TRY(check_rotary(&r));
  EK_TRY(check_head_width("rotary", head_width));
  EK__FAIL_IF(speeds == NULL && head_width > 0, EK_ERR_INVALID_ARGUMENT, "rotary: speeds is NULL");
  for (int64_t i = 0; i < head_width / 2; i++) {
    speeds[i] = scaled(&r, pow(r.theta, -2.0 * (double)i / (double)head_width));
  }
  return EK_OK;
}

EK__OPTIONS_INIT(ek_rotary, EK_ROTARY_INIT)
