/*
 * check_random.c - the generator against the published answers, and what a program relies on:
 * every part of the key counts, and a unit number is in [0, 1).
 */
#include "ek_check.h"

/* Known answers for philox4x32-10 from the Random123 distribution. Counter words are block, sample,
 * stream, step; key words are the low and the high half of the seed. */
static const struct {
  uint32_t counter[4], key[2], answer[4];
} vectors[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

static ek_random_key key_of(const uint32_t counter[4], const uint32_t key[2]) {
  return (ek_random_key){
      .seed = (uint64_t)key[1] << 32 | key[0], .step = counter[3], .stream = counter[2]};
}

CK_LOOP(bits_are_the_published_answers, (int)(sizeof vectors / sizeof vectors[0])) {
  uint32_t bits[4] = {0};
  ek_random_bits(key_of(vectors[_i].counter, vectors[_i].key), vectors[_i].counter[1],
                 vectors[_i].counter[0], bits);
  for (int i = 0; i < 4; i++) ck_assert_uint_eq(bits[i], vectors[_i].answer[i]);
}

CK_TEST(every_bit_of_the_key_changes_about_half_of_the_bits) {
  const ek_random_key key = {.seed = UINT64_C(0x0123456789abcdef), .step = 17, .stream = 5};
  uint32_t base[4];
  ek_random_bits(key, 3, 2, base);
  for (int bit = 0; bit < 192; bit++) {
    ek_random_key other = key;
    uint32_t sample = 3, block = 2;
    if (bit < 64)
      other.seed ^= UINT64_C(1) << bit;
    else if (bit < 96)
      other.step ^= UINT32_C(1) << (bit - 64);
    else if (bit < 128)
      other.stream ^= UINT32_C(1) << (bit - 96);
    else if (bit < 160)
      sample ^= UINT32_C(1) << (bit - 128);
    else block ^= UINT32_C(1) << (bit - 160);
    uint32_t bits[4];
    ek_random_bits(other, sample, block, bits);
    int changed = 0;
    for (int i = 0; i < 4; i++) changed += __builtin_popcount(bits[i] ^ base[i]);
    /* 128 fair coins: outside 30..98 with a probability below 1e-8. */
    ck_assert_msg(changed >= 30 && changed <= 98, "bit %d of the key changes %d bits", bit,
                  changed);
  }
}

CK_TEST(a_unit_number_is_at_least_0_and_below_1) {
  ck_assert(ek_random_unit(0) == 0.0f);
  ck_assert(ek_random_unit(UINT32_MAX) == 1.0f - 0x1p-24f);
  ck_assert(ek_random_unit(UINT32_MAX) < 1.0f);
  ck_assert(ek_random_unit(UINT32_C(1) << 31) == 0.5f);
  for (uint32_t i = 0; i < 32; i++) {
    const uint32_t bits = UINT32_C(1) << i;
    ck_assert(ek_random_unit(bits) == (float)(bits >> 8) * 0x1p-24f);
    ck_assert(ek_random_unit(bits - 1) <= ek_random_unit(bits));
  }
}

CK_TEST(unit_numbers_are_even) {
  enum { BLOCKS = 1 << 18, CELLS = 64 };
  static int cells[CELLS];
  memset(cells, 0, sizeof cells);
  double sum = 0;
  bool inside = true;
  const ek_random_key key = {.seed = ck_seed(), .step = 1, .stream = 2};
  for (uint32_t block = 0; block < BLOCKS; block++) {
    uint32_t bits[4];
    ek_random_bits(key, 0, block, bits);
    for (int i = 0; i < 4; i++) {
      const float unit = ek_random_unit(bits[i]);
      inside = inside && unit >= 0.0f && unit < 1.0f;
      if (!inside) break;
      sum += (double)unit;
      cells[(int)(unit * CELLS)]++;
    }
  }
  ck_assert(inside);
  const double count = 4.0 * BLOCKS;
  /* Six standard deviations: sqrt(count / 12) of the sum, sqrt(count / CELLS) of a cell. */
  ck_assert_double_le(fabs(sum - count / 2), 6 * sqrt(count / 12));
  for (int i = 0; i < CELLS; i++) {
    ck_assert_double_le(fabs(cells[i] - count / CELLS), 6 * sqrt(count / CELLS));
  }
}

CK_SUITE("random")
