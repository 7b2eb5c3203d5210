/*
 * check_amx.c - a matrix unit is there only where the processor, the operating system's registers
 * and the kernel's permission all say so, and is asked for in this order.
 *
 * The source of the library that asks is compiled in: it takes who is asked, which here is the
 * test.
 */
#include "ek_check.h"

/* src/backend/cpu/cpu_amx.h */
struct ek__amx_system {
  bool (*cpuid)(unsigned leaf, unsigned part, unsigned registers[4]);
  uint64_t (*enabled)(void);
  bool (*permit)(void);
};
extern const struct ek__amx_system ek__amx_this_system;
bool ek__amx_is_there(const struct ek__amx_system *system);

/* What the processor says, as Sapphire Rapids does; leaf 0 of none. */
static struct answer {
  unsigned leaf, part, registers[4];
} answers[] = {{1, 0, {0, 0, 1u << 27, 0}},
               {7, 0, {0, 0, 0, 1u << 22 | 1u << 24 | 1u << 25}},
               {0x1D, 0, {1, 0, 0, 0}},
               {0x1D, 1, {1024u << 16 | 8192u, 8u << 16 | 64u, 16, 0}}};
enum { ANSWERS = sizeof answers / sizeof answers[0] };

static uint64_t xcr0;
static bool permits;
static int asked_registers, asked_kernel;

static bool cpuid(unsigned leaf, unsigned part, unsigned registers[4]) {
  for (int i = 0; i < ANSWERS; i++) {
    if (answers[i].leaf != leaf || answers[i].part != part) continue;
    for (int r = 0; r < 4; r++) registers[r] = answers[i].registers[r];
    return true;
  }
  return false;
}

static uint64_t enabled(void) {
  asked_registers++;
  return xcr0;
}

static bool permit(void) {
  asked_kernel++;
  return permits;
}

/* Whether there is one, and whether registers and kernel were asked. */
static bool look(int registers, int kernel) {
  static const struct ek__amx_system system = {cpuid, enabled, permit};
  asked_registers = asked_kernel = 0;
  const bool is_there = ek__amx_is_there(&system);
  ck_assert_int_eq(asked_registers, registers);
  ck_assert_int_eq(asked_kernel, kernel);
  return is_there;
}

static void all_is_well(void) {
  xcr0 = 0x602E7; /* x87 to AVX-512, and both parts of the tiles */
  permits = true;
}

START_TEST(all_say_yes) {
  all_is_well();
  ck_assert(look(1, 1));
}
END_TEST

/* One bit after the other, or number, is missing; what comes behind it is not asked. */
START_TEST(the_processor_says_no) {
  static const struct {
    int answer, number;
    unsigned instead;
  } changes[] = {{0, 2, 0},          {1, 3, 1u << 22},       {1, 3, 1u << 24},       {2, 0, 0},
                 {3, 0, 512u << 16}, {3, 1, 8u << 16 | 32u}, {3, 1, 4u << 16 | 64u}, {3, 2, 8}};
  all_is_well();
  for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
    unsigned *place = &answers[changes[i].answer].registers[changes[i].number];
    const unsigned before = *place;
    *place = changes[i].instead;
    ck_assert_msg(!look(0, 0), "change %d", (int)i);
    *place = before;
  }
  for (int i = 0; i < ANSWERS; i++) {
    const unsigned before = answers[i].leaf;
    answers[i].leaf = 0;
    ck_assert_msg(!look(0, 0), "leaf %d", i);
    answers[i].leaf = before;
  }
  ck_assert(look(1, 1));
}
END_TEST

START_TEST(the_system_says_no) {
  all_is_well();
  xcr0 = 0xE7;
  ck_assert(!look(1, 0));
  xcr0 = 0x200E7;
  ck_assert(!look(1, 0));
  xcr0 = 0x400E7;
  ck_assert(!look(1, 0));
}
END_TEST

START_TEST(the_kernel_refuses) {
  all_is_well();
  permits = false;
  ck_assert(!look(1, 1));
  permits = true;
  ck_assert(look(1, 1));
}
END_TEST

/* Where /proc/cpuinfo has it, and with permission; once more is no harm. */
START_TEST(this_processor) {
  const bool is_there = ek__amx_is_there(&ek__amx_this_system);
  if (!ck_has_amx()) ck_assert(!is_there);
  ck_assert_int_eq(is_there, ek__amx_is_there(&ek__amx_this_system));
}
END_TEST

static Suite *make_suite(void) {
  Suite *suite = suite_create("amx");
  TCase *values = ck_case(suite, "values");
  tcase_add_test(values, all_say_yes);
  tcase_add_test(values, the_processor_says_no);
  tcase_add_test(values, the_system_says_no);
  tcase_add_test(values, the_kernel_refuses);
  tcase_add_test(values, this_processor);
  return suite;
}

CK_MAIN(make_suite)
