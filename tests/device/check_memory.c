/*
 * check_memory.c - the arena and the ledger: equal runs, exact caps; what was held at the peak; the
 * recorder; the table; failures at will. Where blocks land: tests/whole/check_first_fit.c.
 */
#include "ck_arena.h"

/* What the device keeps for itself, which the functions of the library count. */
static uint64_t own_bytes(const ek_device *device) {
  CK_GOT(ek_memory_usage, usage, ek_memory_stats(&usage, device));
  return usage.fixed_bytes;
}

/* ---- determinism and exact caps ---- */

enum { STEPS = 400 };

struct trace {
  uint64_t peak, offsets[STEPS];
};

/* A sequence of requests from a seed; the first failure ends it. */
static ek_status play(struct trace *trace, const char *spec, uint64_t seed) {
  CK_HELD(ek_group *, group, ck_open(spec, 1));
  ek_device *device = ek_group_device(group, 0);
  ek_tensor tensors[40] = {0};
  struct ck_random random = ck_random_start(seed);
  ek_status status = EK_OK;
  char *base = NULL;
  for (int step = 0; step < STEPS && status == EK_OK; step++) {
    ek_tensor *tensor = &tensors[ck_random_integer(&random, 0, 39)];
    const uint64_t bytes = (uint64_t)ck_random_integer(&random, 2, 100000);
    trace->offsets[step] = 0;
    if (ek_tensor_exists(tensor)) {
      ek_tensor_free(tensor);
      continue;
    }
    status = ck_take(tensor, device, EK_MEMORY_ACTIVATIONS, bytes);
    if (base == NULL) base = tensor->data;
    if (status == EK_OK) trace->offsets[step] = (uint64_t)((char *)tensor->data - base);
  }
  trace->peak = ck_usage(device).peak_bytes;
  for (int i = 0; i < 40; i++) ek_tensor_free(&tensors[i]);
  ck_no_memory_held(group);
  return status;
}

CK_LOOP(equal_runs_have_equal_addresses_and_peaks, 10) {
  static struct trace first, other;
  const uint64_t seed = (uint64_t)_i;
  ck_ok(play(&first, "cpu@300MiB", seed));
  const char *capped = ck_text("cpu@%" PRIu64, first.peak);
  const char *const specs[] = {"cpu@300MiB", "plan", "plan:3@1GiB", capped};
  for (int i = 0; i < 4; i++) {
    ck_ok(play(&other, specs[i], seed));
    ck_assert_uint_eq(other.peak, first.peak);
    ck_assert(memcmp(other.offsets, first.offsets, sizeof first.offsets) == 0);
  }
}

CK_LOOP(a_cap_is_exact_to_one_unit, 10) {
  static struct trace trace;
  const uint64_t seed = (uint64_t)_i;
  ck_ok(play(&trace, "plan", seed));
  const uint64_t peak = trace.peak;
  static const char *const backends[] = {"cpu", "plan"};
  for (int i = 0; i < 2; i++) {
    ck_ok(play(&trace, ck_text("%s@%" PRIu64, backends[i], peak), seed));
    for (int less = 0; less < 2; less++) {
      const char *spec = ck_text("%s@%" PRIu64, backends[i], peak - (less == 0 ? CK_UNIT : 1));
      ck_fails(play(&trace, spec, seed), EK_ERR_OUT_OF_MEMORY, "for activations");
    }
  }
}

CK_LOOP(out_of_memory_says_what_is_held, 2) {
  ek_device *device = ek_group_device(ck_open(_i == 0 ? "cpu:2@10MiB" : "plan:2@10MiB", 1), 1);
  ek_tensor a = {0}, c = {0};
  ck_ok(ck_take(&a, device, EK_MEMORY_PARAMETERS, 6 << 20));
  CK_OPENED(ek_tensor, b, ck_take(&b, device, EK_MEMORY_GRADIENTS, 3 << 19));
  ck_fails(ck_take(&c, device, EK_MEMORY_OPTIMIZER, 3 << 20), EK_ERR_OUT_OF_MEMORY,
           _i == 0 ? "cpu:1" : "plan:1");
  const double own = (double)own_bytes(device) / 1048576;
  const char *const parts[] = {"optimizer",
                               "3.00 MiB",
                               "3145728 bytes",
                               "2.50 MiB",
                               ck_text("capacity %.2f MiB", 10 + own),
                               ck_text("held %.2f MiB", 7.5 + own),
                               "parameters 6.00 MiB",
                               "gradients 1.50 MiB"};
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
    ck_assert_msg(ck_contains(ek_error_message(), parts[i]), "no \"%s\" in: %s", parts[i],
                  ek_error_message());
  }
  ck_assert(!ek_tensor_exists(&c));
  ck_assert_uint_eq(ck_usage(device).allocations, 2);
  ck_assert_uint_eq(ck_usage(device).current_bytes, 15 << 19);
  ek_tensor_free(&a);
  ck_kept(ck_take(&c, device, EK_MEMORY_OPTIMIZER, 3 << 20), c);
}

/* A request one unit larger than the largest free block: both are 1.19 MiB. */
CK_TEST(out_of_memory_tells_sizes_apart) {
  ek_device *device = ek_group_device(ck_open_exactly("plan@1249792", 1), 0);
  ek_tensor tensor = {0};
  ck_fails(ck_take(&tensor, device, EK_MEMORY_INPUTS, 1250048), EK_ERR_OUT_OF_MEMORY,
           "out of memory: 1.19 MiB (1250048 bytes) for inputs, largest free block 1.19 MiB "
           "(1249792 bytes)");
}

CK_LOOP(huge_requests_fail_cleanly, 2) {
  ek_group *group = _i == 0 ? ck_open("cpu@1MiB", 1) : ck_open_exactly(CK_HUGE_PLAN, 1);
  ek_device *device = ek_group_device(group, 0);
  static const int64_t sizes[] = {INT64_C(1) << 60, (INT64_C(1) << 61) - 64,
                                  (INT64_C(1) << 61) - 1};
  ek_tensor tensor = {0};
  for (int i = 0; i < 3; i++) {
    const int64_t shape[] = {sizes[i]};
    ek_error_clear();
    const ek_status status = ek_tensor_create(&tensor, device, EK_MEMORY_INPUTS, EK_F32, 1, shape);
    ck_assert_int_eq(status, i < 2 ? EK_ERR_OUT_OF_MEMORY : EK_ERR_OVERFLOW);
    ck_assert(!ek_tensor_exists(&tensor));
  }
  ck_assert_uint_eq(ck_usage(device).peak_bytes, 0);
  ck_assert_uint_eq(ck_usage(device).allocations, 0);
}

/* ---- the peak ---- */

CK_TEST(holes_are_unused_at_the_peak_and_charge_reaches_back) {
  ek_device *device = ck_device("plan@1MiB");
  CK_GOT(ek_tensor, a, ck_take(&a, device, EK_MEMORY_INPUTS, 1000));
  CK_GOT(ek_tensor, b, ck_take(&b, device, EK_MEMORY_ACTIVATIONS, 512));
  ek_tensor_free(&a);
  CK_GOT(ek_tensor, c, ck_take(&c, device, EK_MEMORY_WORKSPACE, 2048));
  ek_memory_usage usage = ck_usage(device);
  ck_assert_uint_eq(usage.peak_bytes, 1024 + 512 + 2048);
  ck_assert_uint_eq(usage.unused_at_peak, 1024);
  ck_assert_uint_eq(usage.at_peak[EK_MEMORY_INPUTS], 0);
  ck_ok(ek_tensor_set_category(&c, EK_MEMORY_OUTPUTS));
  usage = ck_usage(device);
  ck_assert_uint_eq(usage.at_peak[EK_MEMORY_WORKSPACE], 0);
  ck_assert_uint_eq(usage.at_peak[EK_MEMORY_OUTPUTS], 2048);
  ek_tensor_free(&c);
  ck_ok(ck_take(&c, device, EK_MEMORY_LOSS, 100)); /* younger than the peak */
  ck_ok(ek_tensor_set_category(&c, EK_MEMORY_INPUTS));
  usage = ck_usage(device);
  ck_assert_uint_eq(usage.at_peak[EK_MEMORY_OUTPUTS], 2048);
  ck_assert_uint_eq(usage.at_peak[EK_MEMORY_INPUTS], 0);
  ck_assert_uint_eq(usage.current[EK_MEMORY_INPUTS], 256);
  ck_ok(ek_memory_reset_peak(device));
  usage = ck_usage(device);
  ck_assert_uint_eq(usage.peak_bytes, 1024 + 512);
  ck_assert_uint_eq(usage.unused_at_peak, 768);
  ck_assert_uint_eq(usage.at_peak[EK_MEMORY_INPUTS], 256);
  ek_tensor_free(&b);
  ek_tensor_free(&c);
  ck_ok(ek_memory_reset_peak(device));
  ck_assert_uint_eq(ck_usage(device).peak_bytes, 0);
}

CK_TEST(growing_twice_below_the_peak_keeps_its_record) {
  ek_device *device = ck_device("plan@1MiB");
  CK_OPENED(ek_tensor, a, ck_take(&a, device, EK_MEMORY_INPUTS, 256));
  CK_GOT(ek_tensor, b, ck_take(&b, device, EK_MEMORY_LOSS, 4096));
  ek_tensor_free(&b);
  for (int64_t rows = 256; rows <= 1024; rows *= 2) {
    CK_GOT(bool, grown, ek_tensor_grow(&grown, &a, rows));
    ck_assert(grown);
  }
  ck_ok(ek_tensor_set_category(&a, EK_MEMORY_OUTPUTS));
  const ek_memory_usage usage = ck_usage(device);
  ck_assert_uint_eq(usage.peak_bytes, 256 + 4096);
  ck_assert_uint_eq(usage.at_peak[EK_MEMORY_INPUTS], 0);
  ck_assert_uint_eq(usage.at_peak[EK_MEMORY_OUTPUTS], 256);
  ck_assert_uint_eq(usage.at_peak[EK_MEMORY_LOSS], 4096);
  ck_assert_uint_eq(usage.current[EK_MEMORY_OUTPUTS], 2048);
}

/* ---- failures at will ---- */

CK_LOOP(the_nth_allocation_fails_once, 2) {
  ek_group *group = ck_open(_i == 0 ? "cpu:2@1MiB" : "plan:2@1MiB", 1);
  ek_device *device = ek_group_device(group, 0);
  ek_tensor tensors[6] = {0}, other = {0};
  for (uint64_t n = 1; n <= 6; n++) {
    ck_ok(ek_memory_fail_at(device, n));
    ck_ok(ck_take(&other, ek_group_device(group, 1), EK_MEMORY_LOSS, 2)); /* not of this device */
    for (uint64_t i = 1; i <= 6; i++) {
      const ek_status status = ck_take(&tensors[i - 1], device, EK_MEMORY_COMMUNICATION, 1000);
      ck_assert_int_eq(status, i == n ? EK_ERR_OUT_OF_MEMORY : EK_OK);
      if (i == n) ck_assert(ck_contains(ek_error_message(), "communication"));
    }
    ck_assert_uint_eq(ck_usage(device).current_bytes, 5 * 1024);
    for (int i = 0; i < 6; i++) ek_tensor_free(&tensors[i]);
    ek_tensor_free(&other);
  }
  ck_ok(ek_memory_fail_at(device, 1));
  ck_ok(ek_memory_fail_at(device, 0));
  ck_ok(ck_take(&other, device, EK_MEMORY_LOSS, 2));
  ck_ok(ek_memory_fail_at(device, 1));
  bool grown = true;
  ck_fails(ek_tensor_grow(&grown, &other, 1000), EK_ERR_OUT_OF_MEMORY, "loss");
  ck_assert(grown); /* left as it was */
  ck_assert_int_eq(other.shape[0], 1);
  ek_tensor_free(&other);
}

/* ---- the recorder ---- */

CK_LOOP(the_recorder_keeps_the_timeline, 2) {
  ek_device *device = ck_device(_i == 0 ? "cpu@1MiB" : "plan@1MiB");
  const ek_memory_event *e = NULL;
  size_t count = 99, dropped = 99;
  ck_fails(ek_memory_record_stop(&e, &count, &dropped, device), EK_ERR_STATE,
           ek_device_name(device));
  ck_assert_uint_eq(count, 99);
  CK_GOT(ek_tensor, a, ck_take(&a, device, EK_MEMORY_INPUTS, 1000));
  ck_ok(ek_memory_record_start(device, 5));
  CK_GOT(ek_tensor, b, ck_take(&b, device, EK_MEMORY_LOSS, 300));
  ck_ok(ek_tensor_set_category(&b, EK_MEMORY_OUTPUTS));
  ck_ok(ek_tensor_set_category(&b, EK_MEMORY_OUTPUTS)); /* no change, no event */
  CK_GOT(bool, grown, ek_tensor_grow(&grown, &b, 300));
  ek_tensor_free(&a);
  ek_tensor_free(&b);
  ck_ok(ck_take(&a, device, EK_MEMORY_INPUTS, 2));
  ek_tensor_free(&a);
  ck_ok(ek_memory_record_stop(&e, &count, &dropped, device));
  static const struct {
    int64_t delta;
    uint64_t current, height;
    ek_memory_category category, before;
    uint64_t block;
  } want[] = {{512, 1536, 1536, EK_MEMORY_LOSS, EK_MEMORY_LOSS, 512},
              {0, 1536, 1536, EK_MEMORY_OUTPUTS, EK_MEMORY_LOSS, 512},
              {256, 1792, 1792, EK_MEMORY_OUTPUTS, EK_MEMORY_OUTPUTS, 768},
              {-1024, 768, 1792, EK_MEMORY_INPUTS, EK_MEMORY_INPUTS, 1024},
              {-768, 0, 0, EK_MEMORY_OUTPUTS, EK_MEMORY_OUTPUTS, 768}};
  ck_assert_uint_eq(count, 5);
  ck_assert_uint_eq(dropped, 2);
  for (size_t i = 0; i < count; i++) {
    ck_assert_int_eq(e[i].delta_bytes, want[i].delta);
    ck_assert_uint_eq(e[i].current_bytes, want[i].current + own_bytes(device));
    ck_assert_uint_eq(e[i].height_bytes, want[i].height + own_bytes(device));
    ck_assert_int_eq(e[i].category, want[i].category);
    ck_assert_int_eq(e[i].before, want[i].before);
    ck_assert_uint_eq(e[i].block_bytes, want[i].block);
    ck_assert_uint_ge(e[i].nanoseconds, i == 0 ? 0 : e[i - 1].nanoseconds);
    ck_assert_uint_lt(e[i].nanoseconds, UINT64_C(600000000000));
  }
  ck_fails(ek_memory_record_stop(&e, &count, NULL, device), EK_ERR_STATE, "recording");
  ck_ok(ek_memory_record_start(device, 0));
  ck_ok(ek_memory_record_start(device, 3)); /* replaces it */
  ck_ok(ek_memory_record_stop(&e, &count, NULL, device));
  ck_assert_uint_eq(count, 0);
}

/* ---- text, and wrong arguments ---- */

CK_TEST(the_table_fits_exactly) {
  ek_group *group = ck_open_exactly("plan:3@1GiB", 1);
  CK_OPENED(ek_tensor, tensor,
            ck_take(&tensor, ek_group_device(group, 2), EK_MEMORY_OUTPUTS, 5 << 20));
  size_t needed = 0, again = 0;
  ck_ok(ek_memory_format(NULL, &needed, 0, group));
  ck_assert_uint_gt(needed, 100);
  char *text = ck_array(needed, 1), *cut = ck_array(needed, 1);
  ck_ok(ek_memory_format(text, &again, needed, group));
  ck_assert_uint_eq(again, needed);
  ck_assert_uint_eq(strlen(text), needed - 1);
  ck_assert_int_eq(text[needed - 2], '\n');
  static const char *const parts[] = {"plan:0", "plan:2", "5.00 MiB", "1.00 GiB", "unused", "peak"};
  for (size_t i = 0; i < 6; i++) ck_assert(ck_contains(text, parts[i]));
  for (int c = 0; c < EK_MEMORY_CATEGORIES; c++) {
    ck_assert(ck_contains(text, ek_memory_category_name((ek_memory_category)c)));
  }
  for (size_t size = 1; size < needed; size++) {
    memset(cut, '#', needed);
    ck_ok(ek_memory_format(cut, size % 2 ? &again : NULL, size, group));
    if (again != needed || cut[size - 1] != '\0' || strncmp(cut, text, size - 1) != 0 ||
        cut[size] != '#') {
      ck_abort_msg("wrong in a buffer of %zu", size);
    }
  }
}

/* Small sizes beside large ones are seen, and all lines end in one column. */
CK_LOOP(the_table_is_aligned, 3) {
  static const char *const specs[] = {"plan:2@1024TiB", "plan-cuda:11@300GiB", "plan:3@256B"};
  ek_group *group = ck_open_exactly(specs[_i], 1);
  CK_OPENED(ek_tensor, tensor, ck_take(&tensor, ek_group_device(group, 1), EK_MEMORY_LOSS, 256));
  char text[8192];
  ck_ok(ek_memory_format(text, NULL, sizeof text, group));
  const char *loss = strstr(text, "\nloss ");
  ck_assert_ptr_nonnull(loss);
  ck_assert_msg(strstr(loss, " 256 B") < strchr(loss + 1, '\n'), "no 256 bytes in\n%s", text);
  const size_t width = (size_t)(strchr(text, '\n') - text);
  for (const char *line = text; *line != '\0'; line += width + 1) {
    ck_assert_msg(strcspn(line, "\n") == width, "columns are broken in\n%s", text);
  }
}

/* Memory outside the arena exists on a GPU only; there its figures agree. */
CK_TEST(outside_is_measured) {
  ek_group *group = ck_open(test_devices("cpu:2"), 0);
  uint64_t capacities = 0, now = 0, left = 0, total = 0;
  for (size_t k = 0; k < ek_group_size(group); k++) {
    const ek_device *device = ek_group_device(group, k);
    const ek_memory_usage usage = ck_usage(device);
    ek_memory_outside outside;
    memset(&outside, 0xFF, sizeof outside);
    ck_ok(ek_memory_measure_outside(&outside, device));
    ck_assert_uint_eq(outside.opening_bytes, usage.outside_bytes);
    capacities += usage.capacity_bytes + own_bytes(device);
    now += outside.now_bytes;
    left += outside.free_bytes;
    total += outside.total_bytes;
    if (strcmp(ek_device_backend(device), "cuda") != 0) {
      ck_assert_uint_eq(outside.opening_bytes + outside.now_bytes + outside.reserve_bytes, 0);
    }
  }
  if (total > 0) ck_assert_uint_eq(total, left + capacities + now);
  ek_memory_outside none;
  ck_invalid(ek_memory_measure_outside(NULL, ek_group_device(group, 0)),
             "ek_memory_measure_outside");
  ck_invalid(ek_memory_measure_outside(&none, NULL), "ek_memory_measure_outside");
}

CK_TEST(wrong_arguments) {
  ek_group *group = ck_open("plan@1MiB", 1);
  ek_device *device = ek_group_device(group, 0);
  ek_memory_usage usage;
  const ek_memory_event *events = NULL;
  size_t count = 0;
  char text[8];
  ck_invalid(ek_memory_stats(NULL, device), "ek_memory_stats");
  ck_invalid(ck_memory_stats(&usage, NULL), "ek_memory_stats");
  ck_invalid(ek_memory_reset_peak(NULL), "reset_peak");
  ck_invalid(ek_memory_fail_at(NULL, 1), "fail_at");
  ck_invalid(ek_memory_format(text, NULL, 8, NULL), "format");
  ck_invalid(ek_memory_format(NULL, NULL, 8, group), "format");
  ck_invalid(ek_memory_record_start(NULL, 8), "record_start");
  ck_invalid(ek_memory_record_stop(&events, &count, NULL, NULL), "stop");
  ck_invalid(ek_memory_record_stop(NULL, &count, NULL, device), "stop");
  ck_invalid(ek_memory_record_stop(&events, NULL, NULL, device), "stop");
  ck_assert_str_eq(ek_memory_category_name(EK_MEMORY_PARAMETERS), "parameters");
  ck_assert_str_eq(ek_memory_category_name(EK_MEMORY_WORKSPACE), "workspace");
  ck_assert_str_eq(ek_memory_category_name(EK_MEMORY_CATEGORIES), "unknown");
  ck_assert_str_eq(ek_memory_category_name((ek_memory_category)-1), "unknown");
}

CK_SUITE("memory")
