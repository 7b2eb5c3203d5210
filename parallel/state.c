/*
 * state.c - the state of a model and its optimizer, by name; and gradients by name.
 *
 * An entry is looked up once, by its number or by its name. It then has the place of its values: in
 * the flat buffers of replicas, in the pieces that devices own of an optimizer's state
 * (optimizer_pieces.c), or in the model itself.
 */
#include <evenkeel/state.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/options.h"
#include "device/device_internal.h"
#include "device/place.h"
#include "device/types.h"
#include "optimizer_internal.h"

/* ---- entries ---- */

struct entry {
  ek_state_kind kind;
  /* The number of the parameter; for a kind without one, the index of its mark in torn.written. */
  size_t parameter;
  size_t state;           /* of the rule */
  ek_parameter_info info; /* of the parameter, on device 0 */
};

/* Numbers of the host, the last entries. Those of a dynamic loss scale come last. */
static const struct {
  const char *name;
  ek_state_kind kind;
  ek_type type;
} numbers[EK__RUN_NUMBERS] = {{"run/step", EK_STATE_KIND_STEP, EK_I64},
                              {"run/seed", EK_STATE_KIND_SEED, EK_I64},
                              {"run/loss_scale", EK_STATE_KIND_LOSS_SCALE, EK_F64},
                              {"run/good_steps", EK_STATE_KIND_GOOD_STEPS, EK_I64}};

static bool is_number(ek_state_kind kind) { return kind >= EK_STATE_KIND_STEP; }
static size_t number_of(ek_state_kind kind) { return (size_t)(kind - EK_STATE_KIND_STEP); }

static size_t numbers_of(const ek_data_parallel_model *model) {
  const bool dynamic =
      model->update != NULL && model->update->loss_scale.kind == EK_LOSS_SCALE_DYNAMIC;
  return dynamic ? (size_t)EK__RUN_NUMBERS : number_of(EK_STATE_KIND_LOSS_SCALE);
}

bool ek__state_is_scaler(const char *name) {
  for (size_t i = number_of(EK_STATE_KIND_LOSS_SCALE); i < EK__RUN_NUMBERS; i++) {
    if (strcmp(name, numbers[i].name) == 0) return true;
  }
  return false;
}

static size_t parameters_of(const ek_data_parallel_model *model) {
  return ek_replica_parameter_count(model->run.ranks[0].replica);
}

static size_t states_of(const ek_data_parallel_model *model) {
  return model->update == NULL ? 0 : model->update->state_count;
}

/* States of parameters. */
static size_t kept_of(const ek_data_parallel_model *model) {
  return model->update == NULL ? 0 : model->update->kept_count;
}

size_t ek_state_count(const ek_data_parallel_model *model) {
  if (model == NULL) return 0;
  return parameters_of(model) + kept_of(model) + numbers_of(model);
}

/* "adamw/m/": what stands before the parameter's name. */
static void prefix_of(char prefix[EK_STATE_NAME_SIZE], const ek_optimizer *rule, size_t state) {
  static const char *const digits[EK_MAX_OPTIMIZER_STATES] = {"0", "1", "2", "3"};
  const ek_optimizer_ops *ops = ek_optimizer_table(rule);
  const bool named = EK__TABLE_SLOT(ops, state_names) != NULL;
  (void)snprintf(prefix, EK_STATE_NAME_SIZE, "%.60s/%.60s/", ops->kind,
                 named ? ops->state_names[state] : digits[state]);
}

/* A parameter, a buffer, or a state of it. */
static ek_status of_parameter(struct entry *entry, const ek_data_parallel_model *model,
                              size_t parameter) {
  entry->parameter = parameter;
  EK_TRY(ek_replica_parameter(&entry->info, model->run.ranks[0].replica, parameter));
  if (entry->kind == EK_STATE_KIND_PARAMETER && entry->info.buffer) {
    entry->kind = EK_STATE_KIND_BUFFER;
  }
  return EK_OK;
}

static ek_status entry_at(struct entry *entry, const ek_data_parallel_model *model, size_t index) {
  const size_t parameters = parameters_of(model);
  *entry = (struct entry){.kind = EK_STATE_KIND_PARAMETER};
  if (index < parameters) return of_parameter(entry, model, index);
  size_t rest = index - parameters;
  if (rest < kept_of(model)) {
    entry->kind = EK_STATE_KIND_OPTIMIZER;
    entry->state = model->update->kept[rest].state;
    return of_parameter(entry, model, model->update->kept[rest].parameter);
  }
  rest -= kept_of(model);
  entry->kind = numbers[rest].kind;
  entry->parameter = parameters + rest;
  return EK_OK;
}

/* The rest of `name` after the prefix of a state; NULL: it has another one. */
static const char *after_prefix(const char *name, const ek_optimizer *rule, size_t state) {
  char prefix[EK_STATE_NAME_SIZE];
  prefix_of(prefix, rule, state);
  const size_t length = strlen(prefix);
  return strncmp(name, prefix, length) == 0 ? name + length : NULL;
}

/* Of an optimizer's state, whose prefix is before `parameter`. States that are not kept for the
 * same parameters may have one name. */
static ek_status state_named(struct entry *entry, const ek_data_parallel_model *model,
                             const char *name, const char *parameter) {
  const ek_optimizer *rule = model->update->optimizer;
  const bool whole = ek__buckets_whole(&model->run.cut, entry->parameter);
  EK__FAIL_IF(entry->info.buffer || entry->info.frozen, EK_ERR_NOT_FOUND,
              "no state entry %s: %s is %s", name, parameter,
              entry->info.buffer ? "a buffer" : "frozen");
  for (size_t s = 0; s < states_of(model); s++) {
    if (after_prefix(name, rule, s) != parameter || !ek__rule_keeps(rule, s, whole)) continue;
    entry->state = s;
    return EK_OK;
  }
  return ek_error_set(EK_ERR_NOT_FOUND,
                      "no state entry %s: %s keeps it only for parameters that it %s", name,
                      ek_optimizer_kind(rule), whole ? "does not take whole" : "takes whole");
}

static ek_status entry_named(struct entry *entry, const ek_data_parallel_model *model,
                             const char *name) {
  *entry = (struct entry){.kind = EK_STATE_KIND_PARAMETER};
  const char *parameter = name;
  const size_t entries = ek_state_count(model);
  for (size_t i = 0; i < numbers_of(model); i++) {
    if (strcmp(name, numbers[i].name) != 0) continue;
    return entry_at(entry, model, entries - numbers_of(model) + i);
  }
  for (size_t s = 0; s < states_of(model); s++) {
    const char *rest = after_prefix(name, model->update->optimizer, s);
    if (rest == NULL) continue;
    entry->kind = EK_STATE_KIND_OPTIMIZER;
    parameter = rest;
  }
  size_t index = 0;
  EK_TRY(ek__layout_find(&index, &model->run.ranks[0].replica->layout, parameter));
  EK_TRY(of_parameter(entry, model, index));
  return entry->kind == EK_STATE_KIND_OPTIMIZER ? state_named(entry, model, name, parameter)
                                                : EK_OK;
}

static ek_tensor like_of(const struct entry *entry) {
  if (is_number(entry->kind)) return (ek_tensor){.type = numbers[number_of(entry->kind)].type};
  ek_tensor like = entry->info.value;
  like.data = NULL;
  like.device = NULL;
  return like;
}

static void describe(ek_state_info *info, const ek_data_parallel_model *model,
                     const struct entry *entry) {
  *info = (ek_state_info){
      .kind = entry->kind, .placement = EK_STATE_REPLICATED, .like = like_of(entry)};
  if (is_number(entry->kind)) {
    (void)snprintf(info->name, sizeof info->name, "%s", numbers[number_of(entry->kind)].name);
    return;
  }
  if (entry->kind == EK_STATE_KIND_OPTIMIZER || ek__placement(model)->master ||
      (entry->kind == EK_STATE_KIND_PARAMETER && ek__model_shares_masters(model))) {
    info->placement = model->options.state;
  }
  if (entry->kind == EK_STATE_KIND_OPTIMIZER) {
    prefix_of(info->name, model->update->optimizer, entry->state);
  }
  const size_t length = strlen(info->name);
  (void)snprintf(info->name + length, sizeof info->name - length, "%s", entry->info.name);
}

ek_status ek_state_entry(ek_state_info *info, const ek_data_parallel_model *model, size_t index) {
  EK__FAIL_IF(info == NULL || index >= ek_state_count(model), EK_ERR_INVALID_ARGUMENT,
              "ek_state_entry: info or model is NULL, or no entry has number %zu", index);
  EK__MODEL_ENTER(model, "ek_state_entry");
  struct entry entry;
  EK_TRY(entry_at(&entry, model, index));
  describe(info, model, &entry);
  return EK_OK;
}

ek_status ek_state_find(ek_state_info *info, const ek_data_parallel_model *model,
                        const char *name) {
  EK__NOT_NULL("ek_state_find", info, model, name);
  EK__MODEL_ENTER(model, "ek_state_find");
  struct entry entry;
  EK_TRY(entry_named(&entry, model, name));
  describe(info, model, &entry);
  return EK_OK;
}

/* ---- copying ---- */

/* Between elements of a device and those of the host's tensor from `first` on. */
static ek_status copy_range(ek_tensor device, ek_tensor *host, int64_t first, bool write) {
  ek_tensor own = ek__flat_range(host, first, ek_tensor_count(&device));
  return write ? ek__tensor_copy_converted(&device, &own)
               : ek__tensor_copy_converted(&own, &device);
}

/* Between elements from `offset` on of the ranks' flat buffers and the host's tensor. If the
 * buffers are `cut`, each rank has its share of every bucket, at the place where a whole buffer has
 * it or (packed) end to end; else rank 0 is read, and all are written that have elements. */
static ek_status copy_flat(const ek_data_parallel_model *model,
                           const ek_tensor *(*flat)(const ek_replica *replica), bool cut,
                           bool packed, int64_t offset, ek_tensor *host, bool write) {
  const struct ek__buckets *buckets = &model->run.cut;
  const int64_t count = ek_tensor_count(host);
  for (size_t b = 0; b < (cut ? buckets->count : 1); b++) {
    for (size_t k = 0; k < (cut || write ? model->run.count : 1); k++) {
      const struct ek__rank *rank = &model->run.ranks[k];
      const ek_tensor *own = flat(rank->replica);
      const struct ek__span all = cut ? ek__bucket_span(&buckets->list[b], rank->share_number)
                                      : (struct ek__span){.count = ek_tensor_count(own)};
      const struct ek__span span = ek__span_within(all, offset, offset + count);
      if (span.count == 0) continue;
      EK_TRY(copy_range(ek__span_range(own, span, packed), host, span.first - offset, write));
    }
  }
  return EK_OK;
}

/* Of elements first, first + 1, ... of the flat copies: rounds a host tensor of masters; without
 * copies nothing is done. */
static ek_status write_copies(const ek_data_parallel_model *model, int64_t first,
                              const ek_tensor *host) {
  enum { CHUNK = 2048 };
  float masters[CHUNK];
  const int64_t all = ek_tensor_count(host);
  const bool shares = ek__placement(model)->parameter_shares;
  if (!ek__replica_is_mixed(model->run.ranks[0].replica)) return EK_OK;
  if (ek_device_counts_only(ek_group_device(model->run.group, 0))) return EK_OK;
  for (int64_t begin = 0; begin < all; begin += CHUNK) {
    const int64_t count = all - begin < CHUNK ? all - begin : CHUNK;
    ek_tensor values;
    const ek_tensor given = ek__flat_range(host, begin, count);
    ek__floats_convert(masters, EK_F32, given.data, given.type, count);
    EK_TRY(ek_tensor_host(&values, masters, EK_F32, 1, &count));
    EK_TRY(copy_flat(model, ek_replica_copies, shares, shares, first + begin, &values, true));
  }
  return EK_OK;
}

/* A write of a parameter also writes the copies that modules see. */
static ek_status copy_value(const ek_data_parallel_model *model, const struct entry *entry,
                            int64_t first, ek_tensor *host, bool write) {
  const bool shares = ek__model_shares_masters(model);
  const int64_t begin = entry->info.offset + first;
  if (entry->info.buffer) {
    return copy_flat(model, ek_replica_buffers, false, false, begin, host, write);
  }
  if (write) EK_TRY(write_copies(model, begin, host));
  return copy_flat(model, ek_replica_parameters, shares, shares, begin, host, write);
}

static ek_status copy_state(const ek_data_parallel_model *model, const struct entry *entry,
                            int64_t first, ek_tensor *host, bool write) {
  const bool copies = !ek__placement(model)->master && !ek__placement(model)->state_shares;
  const int64_t offset = entry->info.offset + first, count = ek_tensor_count(host);
  for (size_t k = 0; k < (copies && !write ? 1 : model->run.count); k++) {
    const struct ek__share *share = &model->run.ranks[k].share;
    const ek_tensor *flat = &share->owner->share.states[entry->state];
    for (size_t i = 0; i < share->updates.count; i++) {
      const struct ek__range *range = &share->updates.list[i];
      const struct ek__span span = ek__span_within(range->span, offset, offset + count);
      if (span.count == 0) continue;
      const int64_t at = range->states[entry->state] + span.first - range->span.first;
      EK_TRY(copy_range(ek__flat_range(flat, at, span.count), host, span.first - offset, write));
    }
  }
  return EK_OK;
}

/* Each of them has 8 bytes; a scaler's entries exist only with an optimizer. */
static ek_status copy_number(ek_data_parallel_model *model, const struct entry *entry,
                             ek_tensor *host, bool write) {
  void *number = NULL;
  switch (entry->kind) {
  case EK_STATE_KIND_SEED: number = &model->options.seed; break;
  case EK_STATE_KIND_LOSS_SCALE: number = &model->update->scaler.scale; break;
  case EK_STATE_KIND_GOOD_STEPS: number = &model->update->scaler.good_steps; break;
  default: number = &model->step.taken;
  }
  memcpy(write ? number : host->data, write ? host->data : number, sizeof(int64_t));
  return EK_OK;
}

/* All elements of the host's tensor, from number `first` of the entry on. */
static ek_status copy_entry(ek_data_parallel_model *model, const struct entry *entry, int64_t first,
                            ek_tensor *host, bool write) {
  if (is_number(entry->kind)) return copy_number(model, entry, host, write);
  return (entry->kind == EK_STATE_KIND_OPTIMIZER ? copy_state : copy_value)(model, entry, first,
                                                                            host, write);
}

/* ---- reading and writing ---- */

/* Whether other processes have shares of the model. */
static bool is_away(const ek_data_parallel_model *model) {
  return model->run.cut.ranks > model->run.count;
}

bool ek__state_is_cut(const ek_data_parallel_model *model, ek_state_kind kind) {
  if (!is_away(model) || is_number(kind) || kind == EK_STATE_KIND_BUFFER) return false;
  return kind == EK_STATE_KIND_OPTIMIZER ? ek__placement(model)->state_shares
                                         : ek__model_shares_masters(model);
}

/* ---- shares of other processes ---- */

/* The next span that a process has of elements offset .. end - 1 of the flat buffers, in the order
 * of the buckets; *number is 0 at first. False: there are no more. */
static bool next_span(struct ek__span *span, size_t *number, const ek_data_parallel_model *model,
                      size_t process, int64_t offset, int64_t end) {
  const struct ek__place *place = ek__group_place(model->run.group);
  const size_t first = ek__place_first_rank(place, process);
  const size_t ranks = ek__place_first_rank(place, process + 1) - first;
  while (*number < model->run.cut.count * ranks) {
    const struct ek__bucket *bucket = &model->run.cut.list[*number / ranks];
    const size_t rank = first + (*number)++ % ranks;
    *span = ek__span_within(ek__bucket_span(bucket, rank), offset, end);
    if (span->count > 0) return true;
  }
  return false;
}

/* Sends the process's own spans to another one, and receives that one's: in place. */
static ek_status swap_spans(const ek_data_parallel_model *model, size_t peer, int64_t offset,
                            ek_tensor *host) {
  ek_world *world = ek__model_world(model);
  const size_t own = ek_world_process(world), size = ek_type_size(host->type);
  /* First what the lower of the two has. */
  for (size_t turn = 0; turn < 2; turn++) {
    const bool mine = (turn == 0) == (own < peer);
    struct ek__span span;
    size_t number = 0;
    while (next_span(&span, &number, model, mine ? own : peer, offset,
                     offset + ek_tensor_count(host))) {
      char *data = (char *)host->data + (size_t)(span.first - offset) * size;
      const size_t bytes = (size_t)span.count * size;
      EK_TRY(ek__world_swap(world, peer, data, mine ? bytes : 0, data, mine ? 0 : bytes));
    }
  }
  return EK_OK;
}

/* The host tensor of each process has its own spans and gets those of the others. `key` is the same
 * for the same entry. */
static ek_status gather_spans(const ek_data_parallel_model *model, const char *doing, int64_t key,
                              int64_t offset, ek_tensor *host) {
  ek_world *world = ek__model_world(model);
  const struct ek__topic topic = {
      .kind = EK__TOPIC_AGREE,
      .doing = doing,
      .same = 4,
      .words = {key, offset, ek_tensor_count(host), (int64_t)host->type}};
  const size_t own = ek_world_process(world);
  ek__world_lock(world);
  ek_status status = ek__world_talk(world, &topic, NULL);
  for (size_t round = 0; round < ek_world_processes(world) && status == EK_OK; round++) {
    const size_t peer = ek__world_peer(world, round);
    if (peer != own) status = swap_spans(model, peer, offset, host);
  }
  ek__world_unlock(world);
  return status;
}

/* Elements of an entry. If other processes have shares of it, all processes call this. */
static ek_status read_entry(const ek_data_parallel_model *model, const struct entry *entry,
                            int64_t first, ek_tensor *host) {
  ek_data_parallel_model *own = (ek_data_parallel_model *)(uintptr_t)model;
  EK_TRY(copy_entry(own, entry, first, host, false));
  if (!ek__state_is_cut(model, entry->kind)) return EK_OK;
  const int64_t key = (int64_t)(entry->parameter * EK_MAX_OPTIMIZER_STATES + entry->state) * 16 +
                      (int64_t)entry->kind;
  return gather_spans(model, "reading a state", key, entry->info.offset + first, host);
}

static ek_status check_host(const char *who, const char *name, const ek_tensor *like,
                            const ek_tensor *host) {
  EK__FAIL_IF(ek_tensor_exists(host) && host->type != like->type, EK_ERR_TYPE,
              "%s: %s is %s, the host tensor is %s", who, name, ek_type_name(like->type),
              ek_type_name(host->type));
  return ek__tensor_check_host(host, like, who, name);
}

/* Numbers of the host have one type; all other entries may be of any floating type. */
static ek_tensor like_for(const struct entry *entry, const ek_tensor *host) {
  ek_tensor like = like_of(entry);
  const bool converts = !is_number(entry->kind) && ek__type_is_floating(like.type);
  if (converts && ek__type_is_floating(host->type)) like.type = host->type;
  return like;
}

/* Which elements of an entry a call is about. */
struct range {
  const char *name;
  bool all;
  int64_t first; /* else: from this one on, as many as the host's tensor has */
};

/* Finds an entry, and checks that the host's tensor is like these elements. */
static ek_status entry_for(struct entry *entry, const char *who,
                           const ek_data_parallel_model *model, const struct range *range,
                           const ek_tensor *host) {
  EK_TRY(entry_named(entry, model, range->name));
  ek_tensor like = like_for(entry, host);
  if (!range->all) {
    EK__FAIL_IF(!ek_tensor_exists(host) || host->rank != 1 || host->shape[0] < 0 ||
                    range->first < 0 ||
                    range->first > ek_tensor_count(&like) - ek_tensor_count(host),
                EK_ERR_SHAPE, "%s: the range is outside the %lld elements of %s", who,
                (long long)ek_tensor_count(&like), range->name);
    like = ek__flat_range(&like, 0, ek_tensor_count(host));
  }
  return check_host(who, range->name, &like, host);
}

static ek_status read_range(ek_tensor *host, const char *who, const ek_data_parallel_model *model,
                            const struct range *range) {
  const char *name = range->name;
  EK__NOT_NULL(who, host, model, name);
  EK__MODEL_USE(model, who);
  struct entry entry;
  EK_TRY(entry_for(&entry, who, model, range, host));
  return read_entry(model, &entry, range->first, host);
}

/* Reading is a call of all processes where other ones have shares. */
static ek_world *world_of_reading(const ek_data_parallel_model *model) {
  return model != NULL && is_away(model) ? ek__model_world(model) : NULL;
}

ek_status ek_state_read(ek_tensor *host, const ek_data_parallel_model *model, const char *name) {
  const struct range range = {.name = name, .all = true};
  EK__WORLD_CALL(world_of_reading(model), read_range(host, "ek_state_read", model, &range));
}

ek_status ek_state_read_range(ek_tensor *host, const ek_data_parallel_model *model,
                              const char *name, int64_t first) {
  const struct range range = {.name = name, .first = first};
  EK__WORLD_CALL(world_of_reading(model), read_range(host, "ek_state_read_range", model, &range));
}

/* ---- without a conversation: what a save needs ---- */

ek_status ek__state_read_own(ek_tensor *host, const ek_data_parallel_model *model, size_t index,
                             int64_t first) {
  struct entry entry;
  EK_TRY(entry_at(&entry, model, index));
  return copy_entry((ek_data_parallel_model *)(uintptr_t)model, &entry, first, host, false);
}

/* Copies that modules see are whole on every device where parameters are not cut. */
bool ek__state_needs_spans(const ek_data_parallel_model *model, ek_state_kind kind) {
  const bool copies = kind == EK_STATE_KIND_PARAMETER &&
                      ek__replica_is_mixed(model->run.ranks[0].replica) &&
                      !ek__placement(model)->parameter_shares;
  return ek__state_is_cut(model, kind) && !copies;
}

bool ek__state_next_span(int64_t *first, int64_t *count, struct ek__state_spans *spans) {
  struct entry entry;
  struct ek__span span;
  if (entry_at(&entry, spans->model, spans->index) != EK_OK) return false;
  const int64_t offset = entry.info.offset, begin = offset + spans->first;
  const int64_t end = begin + spans->count;
  if (!next_span(&span, &spans->number, spans->model, spans->process, begin, end)) return false;
  *first = span.first - offset;
  *count = span.count;
  return true;
}

ek_status ek__state_check_number(ek_state_kind kind, const void *value) {
  int64_t number = 0;
  if (!is_number(kind) || kind == EK_STATE_KIND_SEED) return EK_OK;
  if (kind == EK_STATE_KIND_LOSS_SCALE) {
    ek_loss_scale scale = {.kind = EK_LOSS_SCALE_STATIC};
    memcpy(&scale.scale, value, sizeof scale.scale);
    return ek_loss_scale_check(&scale);
  }
  memcpy(&number, value, sizeof number);
  if (number >= 0 && number < INT64_MAX) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s cannot be %" PRId64,
                      numbers[number_of(kind)].name, number);
}

/* Zeros after a table (layout.h). */
static ek_status write_room(ek_data_parallel_model *model, const struct entry *entry) {
  enum { CHUNK = 2048 };
  float zeros[CHUNK] = {0};
  const struct ek__layout *layout = &model->run.ranks[0].replica->layout;
  const struct ek__parameter *p = &layout->parameters[entry->parameter];
  for (int64_t first = p->count; first < p->room; first += CHUNK) {
    const int64_t count = p->room - first < CHUNK ? p->room - first : CHUNK;
    ek_tensor host;
    EK_TRY(ek_tensor_host(&host, zeros, EK_F32, 1, &count));
    EK_TRY(copy_entry(model, entry, first, &host, true));
  }
  return EK_OK;
}

static ek_status write_range(ek_data_parallel_model *model, const char *who,
                             const struct range *range, const ek_tensor *host) {
  const char *name = range->name;
  EK__NOT_NULL(who, model, name, host);
  EK__MODEL_ENTER(model, who);
  struct entry entry;
  uint64_t tear = 0;
  EK_TRY(entry_for(&entry, who, model, range, host));
  EK_TRY(ek__state_check_number(entry.kind, host->data));
  ek_tensor from = *host;
  ek__model_write_begins(&tear, model);
  EK_TRY(copy_entry(model, &entry, range->first, &from, true));
  const ek_tensor like = like_of(&entry);
  const bool whole = range->all || range->first + ek_tensor_count(host) == ek_tensor_count(&like);
  if (whole && !is_number(entry.kind)) EK_TRY(write_room(model, &entry));
  uint64_t *written = entry.kind == EK_STATE_KIND_OPTIMIZER
                          ? &model->update->written[entry.state * parameters_of(model)]
                          : model->torn.written;
  ek__model_write_ended(model, whole ? tear : 0, &written[entry.parameter], ek_state_count(model));
  return EK_OK;
}

ek_status ek_state_write(ek_data_parallel_model *model, const char *name, const ek_tensor *host) {
  const struct range range = {.name = name, .all = true};
  return write_range(model, "ek_state_write", &range, host);
}

ek_status ek_state_write_range(ek_data_parallel_model *model, const char *name,
                               const ek_tensor *host, int64_t first) {
  const struct range range = {.name = name, .first = first};
  return write_range(model, "ek_state_write_range", &range, host);
}

/* ---- gradients ---- */

/* The factor that the optimizer would use: 1 / D, or 1, divided by the loss scale. */
static ek_status read_factor(double *factor, const ek_data_parallel_model *model) {
  double totals[2] = {0, 1};
  EK_TRY(ek__read_numbers(totals, 2, &model->run.ranks[0].totals));
  *factor = !model->step.divided ? 1.0 : totals[1] == 0 ? 0.0 : 1.0 / totals[1];
  *factor /= model->step.scaling.factor;
  return EK_OK;
}

/* In the type of the host's tensor, whatever gradients are kept in. Of sharded gradients each
 * device has its share of every bucket, of others device 0 has all. */
static ek_status gradient(ek_tensor *host, const ek_data_parallel_model *model, const char *name) {
  const struct ek__placement *placement = ek__placement(model);
  EK__NOT_NULL("gradient", name, host);
  EK__MODEL_ENTER(model, "gradient");
  EK_TRY(ek__model_check_kept(model));
  ek_parameter_info info;
  EK_TRY(ek_replica_find(&info, model->run.ranks[0].replica, name));
  EK__FAIL_IF(info.buffer || info.frozen, EK_ERR_INVALID_ARGUMENT, "gradient: %s is %s", info.name,
              info.buffer ? "a buffer" : "frozen");
  EK__FAIL_IF(model->step.stage != EK__STEP_REDUCED, EK_ERR_STATE,
              "gradient: the step's last backward has not run");
  EK_TRY(check_host("gradient", name, &info.value, host));
  EK_TRY(copy_flat(model, ek_replica_gradients, placement->state_shares, placement->gradient_shares,
                   info.offset, host, false));
  if (placement->state_shares && is_away(model)) {
    EK_TRY(gather_spans(model, "reading a gradient", -1, info.offset, host));
  }
  double factor = 1;
  EK_TRY(read_factor(&factor, model));
  if (ek_device_counts_only(ek_group_device(model->run.group, 0))) return EK_OK;
  const int64_t count = ek_tensor_count(host);
  for (int64_t i = 0; i < count && factor != 1.0; i++) {
    if (host->type == EK_F32) {
      ((float *)host->data)[i] = (float)((double)((float *)host->data)[i] * factor);
    } else {
      ((double *)host->data)[i] *= factor;
    }
  }
  return EK_OK;
}

ek_status ek_data_parallel_model_gradient(ek_tensor *host, const ek_data_parallel_model *model,
                                          const char *name) {
  EK__NOT_NULL("gradient", model);
  EK__WORLD_CALL(ek__placement(model)->state_shares ? world_of_reading(model) : NULL,
                 gradient(host, model, name));
}
