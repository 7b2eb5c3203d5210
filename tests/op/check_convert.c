/*
 * check_convert.c - conversions between types, against their definition in double precision.
 *
 * All of it is exact: ck_round_to() rounds by arithmetic and not by bits. Numbers travel as bits,
 * so that NaN, its sign and both zeros are seen.
 */
#include "ek_check.h"

enum { ALL = 1 << 16 };

static const ek_type halves[] = {EK_BF16, EK_F16};

/* y = x on the rig's device, both as bytes of the host. */
static void convert(struct ck_rig *rig, ek_type to, void *y, ek_type from, const void *x,
                    int64_t count) {
  ek_tensor *ty = ck_blank(rig, to, CK_SHAPE(count)), *tx = ck_blank(rig, from, CK_SHAPE(count));
  CK_GOT(ek_tensor, host, ek_tensor_host(&host, (void *)(uintptr_t)x, from, 1, &count));
  ck_ok(ek_tensor_copy(tx, &host));
  ck_ok(ek_op_convert(rig->stream, ty, tx));
  ck_ok(ek_tensor_host(&host, y, to, 1, &count));
  ck_ok(ek_tensor_copy(&host, ty));
}

/* Every number to f32 is exact, and back is itself; NaN is quiet then, with its sign. */
CK_LOOP(all_numbers_there_and_back, 4) {
  const ek_type type = halves[_i % 2];
  struct ck_rig *rig = ck_rig_variant(_i / 2 * 2);
  uint16_t *all = malloc(ALL * sizeof *all), *back = malloc(ALL * sizeof *back);
  float *wide = ck_array(ALL, sizeof *wide);
  ck_assert(all != NULL && back != NULL && wide != NULL);
  for (int i = 0; i < ALL; i++) all[i] = (uint16_t)i;
  convert(rig, EK_F32, wide, type, all, ALL);
  convert(rig, type, back, EK_F32, wide, ALL);
  const int quiet = type == EK_BF16 ? 0x40 : 0x200;
  for (int i = 0; i < ALL; i++) {
    const double want = ck_half(type, all[i]);
    ck_assert_msg(isnan(want)
                      ? isnan(wide[i])
                      : (double)wide[i] == want && (signbit(wide[i]) != 0) == (i >= ALL / 2),
                  "%s %04x is %g, not %g", ek_type_name(type), i, (double)wide[i], want);
    if (isnan(want)) { /* what a NaN carries is a machine's own */
      ck_assert_msg(isnan(ck_half(type, back[i])) && (back[i] & quiet) != 0, "%04x", back[i]);
    } else {
      ck_assert_msg(back[i] == i, "%s %04x comes back as %04x", ek_type_name(type), i, back[i]);
    }
  }
  free(all);
  free(back);
}

/* Numbers of f32 to 16 bits, each as its definition says. */
static void check_narrowed(struct ck_rig *rig, ek_type type, const float *x, int64_t count) {
  CK_HELD(uint16_t *, y, ck_array((size_t)count, sizeof *y));
  convert(rig, type, y, EK_F32, x, count);
  for (int64_t i = 0; i < count; i++) {
    const double want = ck_round_to(type, (double)x[i]), got = ck_half(type, y[i]);
    ck_assert_msg(
        isnan(want) ? isnan(got) : got == want && (signbit(got) != 0) == (signbit(want) != 0),
        "%a is %a (%04x) in %s, not %a", (double)x[i], got, y[i], ek_type_name(type), want);
  }
}

/* Between each two neighbours: the tie, and the next numbers of f32 on both sides of it. The last
 * tie is above the largest number. */
CK_LOOP(ties_go_to_the_even_one, 4) {
  enum { EACH = 3, FINITE = ALL / 2 };
  const ek_type type = halves[_i % 2];
  struct ck_rig *rig = ck_rig_variant(_i / 2 * 2);
  float *x = ck_array(2 * EACH * FINITE, sizeof *x);
  int64_t n = 0;
  for (int i = 0; isfinite(ck_half(type, (uint16_t)i)); i++) {
    const double low = ck_half(type, (uint16_t)i), before = ck_half(type, (uint16_t)(i - 1));
    const double next = ck_half(type, (uint16_t)(i + 1));
    const float tie = (float)(isinf(next) ? low + (low - before) / 2 : (low + next) / 2);
    const float near[EACH] = {nextafterf(tie, 0), tie, nextafterf(tie, HUGE_VALF)};
    for (int k = 0; k < EACH; k++) {
      x[n++] = near[k];
      x[n++] = -near[k];
    }
  }
  check_narrowed(rig, type, x, n);
}

CK_LOOP(any_bits, 8) {
  enum { COUNT = 1000000, PARTS = 4 };
  const ek_type type = halves[_i % 2];
  if (!ck_part(_i / 2)) return;
  struct ck_rig *rig = ck_rig_variant(_i / 2 % 2 * 2);
  float *x = ck_array(COUNT / PARTS, sizeof *x);
  for (int64_t i = 0; i < COUNT / PARTS; i++) {
    const uint32_t bits = (uint32_t)ck_random_next(&rig->random);
    memcpy(&x[i], &bits, sizeof bits);
  }
  check_narrowed(rig, type, x, COUNT / PARTS);
}

/* All pairs over all lengths up to some vectors, so that every remainder of a loop is met. */
CK_LOOP(all_pairs, 32) {
  static const ek_type types[] = {EK_F32, EK_F64, EK_BF16, EK_F16};
  const ek_type to = types[_i % 4], from = types[_i / 4 % 4];
  const bool possible = to == from || to == EK_F32 || from == EK_F32 ||
                        (ek_type_size(to) == 2 && ek_type_size(from) == 2);
  for (int64_t n = 0; n < 70; n++) {
    if (!ck_part((int)n)) continue;
    struct ck_rig *rig = ck_rig_variant(_i / 16 * 2);
    double *x = ck_values(rig, n, -70000, 70000), *want = ck_zeros(rig, n);
    for (int64_t i = 0; i < n; i++) {
      x[i] = ck_round_to(from, i % 3 == 0 ? x[i] : x[i] * 1e-9);
      want[i] = ck_round_to(to, x[i]);
    }
    ek_tensor *tx = ck_tensor_of(rig, from, x, CK_SHAPE(n));
    ek_tensor *y = ck_tensor_of(rig, to, NULL, CK_SHAPE(1, n));
    if (possible) {
      ck_ok(ek_op_convert(rig->stream, y, tx));
      ck_same_bits("convert", ck_read(rig, y), want, n);
    } else {
      ck_fails(ek_op_convert(rig->stream, y, tx), EK_ERR_UNSUPPORTED, "convert: y is ");
    }
    ck_rig_close(rig);
  }
}

CK_LOOP(large_ones_by_several_threads, 2) {
  const ek_type type = halves[_i];
  struct ck_rig *rig = ck_rig_variant(2);
  const int64_t n = 100003;
  double *x = ck_values(rig, n, -3, 3), *want = ck_zeros(rig, n);
  for (int64_t i = 0; i < n; i++) want[i] = ck_round_to(type, x[i]);
  ek_tensor *y = ck_tensor_of(rig, type, NULL, CK_SHAPE(n));
  ck_ok(ek_op_convert(rig->stream, y, ck_tensor(rig, x, CK_SHAPE(n))));
  ck_same_bits("narrow", ck_read(rig, y), want, n);
  ek_tensor *other = ck_tensor_of(rig, halves[1 - _i], NULL, CK_SHAPE(n));
  ck_ok(ek_op_convert(rig->stream, other, y));
  for (int64_t i = 0; i < n; i++) want[i] = ck_round_to(halves[1 - _i], want[i]);
  ck_same_bits("to the other", ck_read(rig, other), want, n);
}

CK_RIG_TEST(huge_sizes, CK_HUGE_PLAN, EK_F32) {
  const int64_t big = (INT64_C(1) << 32) + 1;
  ck_ok(ek_op_convert(rig->stream, ck_blank(rig, EK_BF16, CK_SHAPE(3, big)),
                      ck_blank(rig, EK_F32, CK_SHAPE(big, 3))));
}

CK_SUITE("convert")
