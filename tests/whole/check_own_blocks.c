/*
 * check_own_blocks.c - decoders that are written from the public headers alone (ck_chained.h) are
 * the stock ones: the same bits, the same memory, planned and measured, and as many pieces of work
 * on the device.
 */

#include "ck_chained.h"
#include "ck_gpt.h"
#include "ck_training.h"

/* ---- the decoders ---- */

enum { GPT, LLAMA, FAMILIES };
static const char *const families[] = {"gpt", "llama"};

/* Of the workload "gpt" (ck_workload.h), too. */
enum { VOCABULARY = 13, TOKENS = 5, WIDTH = 8, HIDDEN = 20, LAYERS = 3, HEADS = 2, SAMPLES = 3 };

#define POLICY(kind, every)                                                                        \
  { EK_RECOMPUTE_##kind, every, 0 }
static const ek_recompute policies[] = {POLICY(NONE, 0),  POLICY(CHEAP, 0), POLICY(EVERY, 1),
                                        POLICY(EVERY, 2), POLICY(SQRT, 0),  POLICY(ALL, 0)};
enum { POLICIES = sizeof policies / sizeof *policies };

/* What is made now. */
static struct {
  int family;
  ek_recompute recompute;
  double dropout;
} now;

static ek_gpt_options gpt(void) {
  CK_WITH(ek_gpt_options, options, ck_gpt_sizes(VOCABULARY, TOKENS, WIDTH, LAYERS, HEADS),
          .dropout = now.dropout, .recompute = now.recompute);
  return options;
}

static ek_llama_options llama(void) {
  CK_WITH(ek_llama_options, options, EK_LLAMA_OPTIONS_INIT, .vocabulary = VOCABULARY,
          .sequence = TOKENS, .width = WIDTH, .hidden = HIDDEN, .layers = LAYERS, .heads = HEADS,
          .kv_heads = 1, .dropout = now.dropout, .recompute = now.recompute);
  return options;
}

static ek_status create_stock(ek_module **module) {
  const ek_gpt_options of_gpt = gpt();
  const ek_llama_options of_llama = llama();
  return now.family == GPT ? ek_gpt_create(module, &of_gpt) : ek_llama_create(module, &of_llama);
}

static ek_status create_own(ek_module **module) {
  const ek_gpt_options of_gpt = gpt();
  const ek_llama_options of_llama = llama();
  return now.family == GPT ? ck_chained_gpt_create(module, &of_gpt)
                           : ck_chained_llama_create(module, &of_llama);
}

/* ---- one pass ---- */

/* A decoder on one device. */
struct bed {
  ek_group *group;
  ek_device *device;
  ek_replica *replica;
  ek_tensor tokens;
};

static void open_bed(struct bed *bed, bool own, ek_precision precision, const char *spec) {
  double numbers[SAMPLES * TOKENS];
  ek_replica_options options = EK_REPLICA_OPTIONS_INIT;
  if (precision == EK_PRECISION_F64) options.type = EK_F64;
  options.precision = precision;
  bed->group = ck_open_exactly(spec, 1);
  bed->device = ek_group_device(bed->group, 0);
  CK_OPENED(ek_module *, module, (own ? create_own(&module) : create_stock(&module)));
  ck_kept(ek_replica_open(&bed->replica, bed->device, module, &options), bed->replica);
  ck_ok(ek_replica_refresh(bed->replica));
  for (int i = 0; i < SAMPLES * TOKENS; i++) numbers[i] = (i * 7) % VOCABULARY;
  bed->tokens = ck_upload(bed->device, EK_I32, numbers, CK_SHAPE(SAMPLES, TOKENS));
}

/* There and back, with the logits as their own gradients; *logits may be NULL. */
static ek_status there_and_back(const struct bed *bed, ek_tensor *logits) {
  CK_FREED(tensor) y = {0};
  CK_WITH(ek_pass_options, options, EK_PASS_OPTIONS_INIT, .seed = 5, .step = 3, .first_sample = 2);
  CK_SCOPED(ek_pass *, pass, ek_pass_open(&pass, bed->replica, &options));
  EK_TRY(ek_pass_run_forward(&y, pass, &bed->tokens));
  EK_TRY(ek_pass_run_backward(NULL, pass, &y));
  return logits == NULL ? EK_OK : ek_tensor_share(logits, &y);
}

/* Whether a pass asks for more than n pieces of work (fault.h). */
static bool takes_more(const struct bed *bed, uint64_t n) {
  ck_ok(ek_fault_at(bed->device, n + 1, EK_ERR_UNAVAILABLE));
  const ek_status status = there_and_back(bed, NULL);
  ck_ok(ek_fault_at(bed->device, 0, EK_OK));
  if (status != EK_OK) ck_assert_int_eq(status, EK_ERR_UNAVAILABLE);
  return status != EK_OK;
}

static uint64_t count_work(const struct bed *bed) {
  uint64_t least = 0, most = 1;
  for (; takes_more(bed, most); most *= 2) least = most + 1;
  while (least < most) {
    const uint64_t middle = least + (most - least) / 2;
    if (takes_more(bed, middle)) {
      least = middle + 1;
    } else {
      most = middle;
    }
  }
  return least;
}

/* What a pass gives and takes. */
struct cost {
  double *logits, *gradients;
  int64_t logit_count, gradient_count;
  ek_memory_usage usage;
  uint64_t allocations, work;
};

static void measure(struct cost *cost, const struct bed *bed) {
  const ek_tensor *gradients = ek_replica_gradients(bed->replica);
  CK_GOT(ek_memory_usage, before, ck_memory_stats(&before, bed->device));
  ck_ok(ek_memory_reset_peak(bed->device));
  CK_GOT(ek_tensor, logits, there_and_back(bed, &logits));
  ck_ok(ck_memory_stats(&cost->usage, bed->device));
  cost->allocations = cost->usage.allocations - before.allocations;
  cost->usage.allocations = 0; /* those before the pass are not compared */
  cost->logit_count = ek_tensor_count(&logits);
  cost->gradient_count = ek_tensor_count(gradients);
  cost->logits = ck_array((size_t)cost->logit_count, sizeof(double));
  cost->gradients = ck_array((size_t)cost->gradient_count, sizeof(double));
  if (!ek_device_counts_only(bed->device)) {
    ck_get(cost->logits, &logits);
    ck_get(cost->gradients, gradients);
  }
  ek_tensor_free(&logits);
}

/* Both on a device; *usage becomes the stock one's. With `count` their work is counted, in some
 * twenty passes. */
static void compare(const char *spec, ek_precision precision, bool count, ek_memory_usage *usage) {
  struct cost stock = {.work = 0}, own = {.work = 0};
  for (int which = 0; which < 2; which++) {
    CK_SCENE(struct bed, bed, open_bed(&bed, which == 1, precision, spec));
    measure(which == 1 ? &own : &stock, &bed);
    if (!count) continue;
    if (which == 0) stock.work = count_work(&bed);
    ck_assert_uint_gt(stock.work, LAYERS * 3 * 4); /* its products alone */
    ck_assert_msg(takes_more(&bed, stock.work - 1) && !takes_more(&bed, stock.work),
                  "%s on %s: not the stock one's %d pieces of work", families[now.family], spec,
                  (int)stock.work);
  }
  ck_same_peaks(families[now.family], &stock.usage, &own.usage, 1);
  ck_assert_uint_eq(own.usage.current_bytes, stock.usage.current_bytes);
  ck_assert_uint_eq(own.allocations, stock.allocations);
  ck_assert_int_eq(own.gradient_count, stock.gradient_count);
  ck_same_bits("logits", own.logits, stock.logits, stock.logit_count);
  ck_same_bits("gradients", own.gradients, stock.gradients, stock.gradient_count);
  *usage = stock.usage;
}

static const ek_precision precisions[] = {EK_PRECISION_F32, EK_PRECISION_F64, EK_PRECISION_BF16,
                                          EK_PRECISION_F16};
enum { PRECISIONS = sizeof precisions / sizeof *precisions };

/* Planned, too, and what is planned for both is what they take. */
CK_LOOP(the_same_as_stock, FAMILIES *PRECISIONS) {
  const ek_precision precision = precisions[_i / FAMILIES];
  const char *spec = test_devices("cpu:1");
  const bool planned_there = strncmp(spec, "cpu", 3) == 0;
  now.family = _i % FAMILIES;
  for (int policy = 0; policy < POLICIES; policy++) {
    ek_memory_usage planned, measured;
    ck_assign(now, .recompute = policies[policy], .dropout = policy % 2 == 0 ? 0.25 : 0);
    compare("plan:1@1GiB", precision, true, &planned);
    compare(spec, precision, planned_there || policy == _i % POLICIES, &measured);
    if (planned_there) ck_same_peaks(families[now.family], &planned, &measured, 1);
  }
}

/* ---- training ---- */

/* Where parameters are cut over devices; with EVENKEEL_TEST_PRECISION in 16 bits. */
CK_LOOP(they_train_alike, CK_PLACEMENTS *FAMILIES) {
  ck_assign(now, .family = _i % FAMILIES, .recompute = policies[_i / FAMILIES % POLICIES],
            .dropout = 0.25);
  ck_trains_alike(ck_workload("gpt"), create_stock, create_own, test_devices("cpu:2"),
                  _i / FAMILIES);
}

static void peaks(ek_memory_usage *usages, bool own, const char *spec, int placement) {
  CK_WITH(struct ck_workload, workload, *ck_workload("gpt"),
          .module = own ? create_own : create_stock);
  struct ck_setup setup = ck_setup_at(&workload, spec, placement);
  struct ck_batch batch = ck_batch_make(&workload, EK_F32, 7, 0, 1);
  setup.optimizer = ck_clipped_adamw;
  ck_measure(usages, &setup, spec, &batch, 2);
}

/* The peaks of every device in a run, planned and measured. */
CK_LOOP(they_have_the_same_peaks, CK_PLACEMENTS *FAMILIES) {
  enum { DEVICES = 3 };
  ek_memory_usage planned[DEVICES], stock[DEVICES], own[DEVICES];
  ck_assign(now, .family = _i % FAMILIES, .recompute = policies[(_i / FAMILIES + 3) % POLICIES],
            .dropout = 0.25);
  peaks(planned, true, "plan:3@1GiB", _i / FAMILIES);
  peaks(stock, false, "cpu:3", _i / FAMILIES);
  peaks(own, true, "cpu:3", _i / FAMILIES);
  ck_same_peaks("own", stock, own, DEVICES);
  ck_same_peaks("planned", planned, stock, DEVICES);
}

CK_SUITE("own blocks")
