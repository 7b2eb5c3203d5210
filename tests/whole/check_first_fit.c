/*
 * check_first_fit.c - where the arena puts its blocks, and what its ledger says of them: against
 * naive models that search as the header says, over and over.
 */
#include "ck_arena.h"

/* ---- the model: a row of intervals that is searched as the header says, and no faster ---- */

enum { BLOCKS = 96 };

struct model_block {
  bool used;
  uint64_t offset, bytes; /* rounded */
  uint64_t bytes_at_peak; /* what of it the peak counts */
  ek_memory_category category;
  ek_tensor tensor;
};

struct model {
  ek_device *device;
  uint64_t capacity;
  struct model_block blocks[BLOCKS];
  bool has_base;
  char *base; /* of offset 0 */
  uint64_t peak, at_peak[EK_MEMORY_CATEGORIES], made;
};

static bool is_free(const struct model *model, uint64_t first, uint64_t last) {
  if (last > model->capacity) return false;
  for (int i = 0; i < BLOCKS; i++) {
    const struct model_block *b = &model->blocks[i];
    if (b->used && b->offset < last && first < b->offset + b->bytes) return false;
  }
  return true;
}

/* The lowest place that has room: 0 or the end of a used block. UINT64_MAX: none. */
static uint64_t first_fit(const struct model *model, uint64_t bytes) {
  uint64_t best = is_free(model, 0, bytes) ? 0 : UINT64_MAX;
  for (int i = 0; i < BLOCKS; i++) {
    const struct model_block *b = &model->blocks[i];
    const uint64_t end = b->offset + b->bytes;
    if (b->used && end < best && is_free(model, end, end + bytes)) best = end;
  }
  return best;
}

static void model_peak(struct model *model, uint64_t end, bool always) {
  if (end <= model->peak && !always) return;
  model->peak = end;
  memset(model->at_peak, 0, sizeof model->at_peak);
  for (int i = 0; i < BLOCKS; i++) {
    struct model_block *b = &model->blocks[i];
    b->bytes_at_peak = b->used ? b->bytes : 0;
    if (b->used) model->at_peak[b->category] += b->bytes;
  }
}

static void model_take(struct model *model, struct model_block *block, ek_memory_category category,
                       uint64_t bytes) {
  const uint64_t place = first_fit(model, ck_rounded(bytes));
  const ek_status status = ck_take(&block->tensor, model->device, category, bytes);
  if (place == UINT64_MAX) {
    ck_assert_int_eq(status, EK_ERR_OUT_OF_MEMORY);
    return;
  }
  if (status != EK_OK) ck_abort_msg("%" PRIu64 " bytes: %s", bytes, ek_error_message());
  char *address = block->tensor.data;
  if (!model->has_base) model->base = address - place;
  model->has_base = true;
  if ((uint64_t)(address - model->base) != place || (uintptr_t)address % CK_UNIT != 0) {
    ck_abort_msg("%" PRIu64 " bytes are at %td, not at %" PRIu64, bytes, address - model->base,
                 place);
  }
  block->used = true;
  block->offset = place;
  block->bytes = ck_rounded(bytes);
  block->bytes_at_peak = 0;
  block->category = category;
  model->made++;
  model_peak(model, place + block->bytes, false);
}

static void model_free(struct model_block *block) {
  ek_tensor_free(&block->tensor);
  block->used = false;
}

static void model_grow(struct model *model, struct model_block *block, uint64_t more) {
  const int64_t rows = block->tensor.shape[0] + (int64_t)(more / 2);
  const uint64_t bytes = ck_rounded((uint64_t)rows * 2), end = block->offset + block->bytes;
  const bool fits = bytes == block->bytes || is_free(model, end, block->offset + bytes);
  const uint64_t before = block->bytes;
  bool grown = !fits;
  ck_ok(ek_tensor_grow(&grown, &block->tensor, rows));
  if (grown != fits) ck_abort_msg("growing to %" PRIu64 " bytes gave %d", bytes, grown);
  if (!grown) return;
  block->bytes = bytes;
  if (bytes != before) model->made++;
  model_peak(model, block->offset + bytes, false);
}

static void model_charge(struct model *model, struct model_block *block,
                         ek_memory_category category) {
  ck_ok(ek_tensor_set_category(&block->tensor, category));
  model->at_peak[block->category] -= block->bytes_at_peak;
  model->at_peak[category] += block->bytes_at_peak;
  block->category = category;
}

static void model_compare(const struct model *model) {
  const ek_memory_usage usage = ck_usage(model->device);
  uint64_t current[EK_MEMORY_CATEGORIES] = {0}, total = 0, counted = usage.unused_at_peak;
  for (int i = 0; i < BLOCKS; i++) {
    if (!model->blocks[i].used) continue;
    current[model->blocks[i].category] += model->blocks[i].bytes;
    total += model->blocks[i].bytes;
  }
  for (int c = 0; c < EK_MEMORY_CATEGORIES; c++) counted += usage.at_peak[c];
  if (memcmp(current, usage.current, sizeof current) != 0) ck_abort_msg("current differs");
  if (memcmp(model->at_peak, usage.at_peak, sizeof current) != 0) ck_abort_msg("at_peak differs");
  if (total != usage.current_bytes || model->peak != usage.peak_bytes ||
      counted != usage.peak_bytes || model->made != usage.allocations ||
      model->capacity != usage.capacity_bytes) {
    ck_abort_msg("held %" PRIu64 " of %" PRIu64 ", peak %" PRIu64 " of %" PRIu64 ", made %" PRIu64
                 " of %" PRIu64,
                 usage.current_bytes, total, usage.peak_bytes, model->peak, usage.allocations,
                 model->made);
  }
}

static void model_step(struct model *model, struct ck_random *random) {
  struct model_block *block = &model->blocks[ck_random_integer(random, 0, BLOCKS - 1)];
  const ek_memory_category category =
      (ek_memory_category)ck_random_integer(random, 0, EK_MEMORY_CATEGORIES - 1);
  const uint64_t bytes = 2 * (uint64_t)ck_random_integer(random, 1, 6000);
  const int64_t dice = ck_random_integer(random, 0, 99);
  if (!block->used) {
    model_take(model, block, category, bytes);
  } else if (dice < 45) {
    model_free(block);
  } else if (dice < 75) {
    model_grow(model, block, bytes / (dice < 60 ? 1 : 16) / 2 * 2);
  } else {
    model_charge(model, block, category);
  }
  if (dice == 99) {
    uint64_t end = 0;
    for (int i = 0; i < BLOCKS; i++) {
      const struct model_block *b = &model->blocks[i];
      if (b->used && b->offset + b->bytes > end) end = b->offset + b->bytes;
    }
    ck_ok(ek_memory_reset_peak(model->device));
    model_peak(model, end, true);
  }
}

CK_LOOP(the_arena_is_the_model, 4) {
  static const char *const specs[] = {"cpu@16MiB", "plan@16MiB", "cpu@150000", "plan@150000"};
  static struct model model;
  memset(&model, 0, sizeof model);
  ek_group *group = ck_open(specs[_i], 1);
  model.device = ek_group_device(group, 0);
  model.capacity = _i < 2 ? 16 << 20 : 150000 / CK_UNIT * CK_UNIT;
  struct ck_random random = ck_random_start((uint64_t)_i);
  for (int step = 0; step < 8000; step++) {
    model_step(&model, &random);
    model_compare(&model);
  }
  for (int i = 0; i < BLOCKS; i++) {
    if (model.blocks[i].used) model_free(&model.blocks[i]);
  }
  ck_no_memory_held(group);
  /* All has merged again: the whole capacity is one block. */
  CK_OPENED(ek_tensor, all, ck_take(&all, model.device, EK_MEMORY_INPUTS, model.capacity));
  ck_assert_ptr_eq(all.data, model.base);
}

/*
 * The same with thousands of holes: the model is one flag per unit, searched from the front. Every
 * second block is given back, in a random order, so that nothing merges at first; then blocks of
 * random sizes come and go.
 */
enum { MANY = 6000, UNITS = 4 * MANY };

static uint64_t first_run(const bool *used, uint64_t units) {
  uint64_t run = 0;
  for (uint64_t i = 0; i < UNITS; i++) {
    run = used[i] ? 0 : run + 1;
    if (run == units) return i + 1 - units;
  }
  return UINT64_MAX;
}

CK_TEST(thousands_of_holes) {
  static ek_tensor tensors[MANY];
  static bool used[UNITS];
  memset(tensors, 0, sizeof tensors);
  memset(used, 0, sizeof used);
  ek_group *group = ck_open_exactly("plan@6144000", 1); /* UNITS units */
  ek_device *device = ek_group_device(group, 0);
  struct ck_random random = ck_random_start(77);
  char *base = NULL;
  for (int step = 0; step < 4 * MANY; step++) {
    const bool filling = step < MANY, thinning = !filling && step < 2 * MANY;
    const int i = filling ? step : (int)ck_random_integer(&random, 0, MANY - 1);
    ek_tensor *tensor = &tensors[thinning ? i / 2 * 2 : i];
    if (ek_tensor_exists(tensor)) {
      const uint64_t first = (uint64_t)((char *)tensor->data - base) / CK_UNIT;
      memset(used + first, 0, ck_rounded(ek_tensor_bytes(tensor)) / CK_UNIT);
      ek_tensor_free(tensor);
      continue;
    }
    if (thinning) continue;
    const uint64_t units =
        filling ? (uint64_t)(step % 3) + 1 : (uint64_t)ck_random_integer(&random, 1, 5);
    const uint64_t place = first_run(used, units);
    const ek_status status = ck_take(tensor, device, EK_MEMORY_INPUTS, units * CK_UNIT);
    if (place == UINT64_MAX) {
      ck_assert_int_eq(status, EK_ERR_OUT_OF_MEMORY);
      continue;
    }
    ck_ok(status);
    if (base == NULL) base = tensor->data;
    if ((uint64_t)((char *)tensor->data - base) != place * CK_UNIT) {
      ck_abort_msg("step %d: %" PRIu64 " units are at %td, not at %" PRIu64, step, units,
                   ((char *)tensor->data - base) / CK_UNIT, place);
    }
    memset(used + place, 1, units);
  }
  for (int i = 0; i < MANY; i++) ek_tensor_free(&tensors[i]);
}

CK_SUITE("first fit")
