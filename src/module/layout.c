/*
 * layout.c - the walk through a module's declarations, and what they add up to.
 *
 * Declarations are checked when they are made and name what is wrong by its full name. Ties are
 * kept as aliases while the walk goes on; when it has ended, parameters that were tied to others
 * are dropped (drop_tied), patterns are applied (patterns.c), and the rest get their places
 * (place).
 */
#include "module/layout.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"
#include "core/sizes.h"
#include "core/utf8.h"
#include "device/types.h"

/* ---- declarations ---- */

struct ek_declaration {
  struct ek__layout *layout;
  struct ek__node *node;
  const char *path; /* of the node: "" or "blocks.0." */
  const char *kind;
  int depth;    /* of the node */
  size_t unit;  /* that it belongs to, or EK__NO_UNIT */
  ek_type type; /* that its children are to compute in, whatever it knows itself */
};

static const char memory_of[] = "a module's layout";

static ek_status full_name(char path[EK__PATH_SIZE], const ek_declaration *declaration,
                           const char *name) {
  const int length = snprintf(path, EK__PATH_SIZE, "%s%s", declaration->path, name);
  EK__FAIL_IF(length < 0 || length >= EK__PATH_SIZE, EK_ERR_INVALID_ARGUMENT,
              "%s: the name %s%.32s... is too long", declaration->kind, declaration->path, name);
  return EK_OK;
}

static const struct ek__parameter *declared(const struct ek__layout *layout, const char *path,
                                            size_t *index) {
  const struct ek__name *name = ek__names_find(&layout->names, path);
  if (name == NULL || name->value == EK__NO_PARAMETER) return NULL;
  *index = name->value;
  return &layout->parameters[name->value];
}

/* Checks a name and gives its full path, which no parameter and no module has yet. */
static ek_status check_name(char path[EK__PATH_SIZE], const ek_declaration *declaration,
                            const char *name) {
  EK__FAIL_IF(
      declaration == NULL || name == NULL || name[0] == '\0' || strpbrk(name, "./") != NULL,
      EK_ERR_INVALID_ARGUMENT,
      "%s: a declaration needs a name that is not empty and has no dot or slash, not \"%.64s\"",
      declaration == NULL ? "no declaration" : declaration->kind, name == NULL ? "" : name);
  EK__FAIL_IF(!ek__utf8_is(name) || strncmp(name, "__", 2) == 0, EK_ERR_INVALID_ARGUMENT,
              "%s: the name \"%.64s\" is not UTF-8 or begins with \"__\", which files of tensors "
              "keep for themselves",
              declaration->kind, name);
  EK_TRY(full_name(path, declaration, name));
  EK__FAIL_IF(ek__names_find(&declaration->layout->names, path) != NULL, EK_ERR_INVALID_ARGUMENT,
              "%s: the name %s is declared twice", declaration->kind, path);
  return EK_OK;
}

static ek_status check_parameter(int64_t *count, const ek_declaration *declaration,
                                 const char *path, int rank, const int64_t *shape) {
  EK__FAIL_IF(rank < 0 || rank > EK_MAX_RANK || (rank > 0 && shape == NULL),
              EK_ERR_INVALID_ARGUMENT, "%s: %s has rank %d or no shape", declaration->kind, path,
              rank);
  *count = 1;
  for (int i = 0; i < rank; i++) {
    EK__FAIL_IF(shape[i] <= 0, EK_ERR_INVALID_ARGUMENT, "%s: size %lld of dimension %d of %s",
                declaration->kind, (long long)shape[i], i, path);
    EK__FAIL_IF(!ek__multiply(count, *count, shape[i]) || *count > INT64_MAX / 16, EK_ERR_OVERFLOW,
                "%s: the sizes' product of %s does not fit in 63 bits", declaration->kind, path);
  }
  return EK_OK;
}

static ek_status check_initializer(const ek_declaration *declaration, const char *path,
                                   const ek_initializer *initializer) {
  EK__FAIL_IF((unsigned)initializer->kind > EK_INITIALIZER_VALUES, EK_ERR_INVALID_ARGUMENT,
              "%s: there is no initializer %d for %s", declaration->kind, (int)initializer->kind,
              path);
  if (initializer->kind != EK_INITIALIZER_VALUES || initializer->values != NULL) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s: the initial values of %s are NULL",
                      declaration->kind, path);
}

/* The node's next parameter is number `parameter` of the layout. */
static ek_status add_number(struct ek__node *node, size_t parameter) {
  EK_TRY(ek__grow(&node->parameters, &node->parameter_capacity, node->parameter_count + 1,
                  sizeof *node->parameters, memory_of));
  node->parameters[node->parameter_count++] = parameter;
  return EK_OK;
}

/* `given` has what of a parameter does not follow from name and shape. */
static ek_status declare(ek_declaration *declaration, const char *name, int rank,
                         const int64_t *shape, struct ek__parameter given) {
  char path[EK__PATH_SIZE];
  EK_TRY(check_name(path, declaration, name));
  EK_TRY(check_parameter(&given.count, declaration, path, rank, shape));
  EK_TRY(check_initializer(declaration, path, &given.initializer));
  struct ek__layout *layout = declaration->layout;
  EK_TRY(ek__grow(&layout->parameters, &layout->parameter_capacity, layout->parameter_count + 1,
                  sizeof *layout->parameters, memory_of));
  EK_TRY(ek__names_add(&given.name, &layout->names, path, layout->parameter_count));
  given.rank = rank;
  given.users = 1;
  given.alias = layout->parameter_count;
  given.unit = declaration->unit;
  given.owner = declaration->node->number;
  if (rank > 0) memcpy(given.shape, shape, (size_t)rank * sizeof *shape);
  layout->parameters[layout->parameter_count] = given;
  return add_number(declaration->node, layout->parameter_count++);
}

ek_status ek_declare_parameter_with(ek_declaration *declaration, const char *name, int rank,
                                    const int64_t *shape, ek_initializer initializer,
                                    const ek_parameter_options *options) {
  ek_parameter_options o = EK_PARAMETER_OPTIONS_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_parameter_options"));
  return declare(declaration, name, rank, shape,
                 (struct ek__parameter){
                     .initializer = initializer, .no_decay = o.no_decay, .frozen = o.frozen});
}

ek_status ek_declare_parameter(ek_declaration *declaration, const char *name, int rank,
                               const int64_t *shape, ek_initializer initializer) {
  return ek_declare_parameter_with(declaration, name, rank, shape, initializer, NULL);
}

ek_status ek_declare_buffer(ek_declaration *declaration, const char *name, int rank,
                            const int64_t *shape, ek_initializer initializer) {
  return declare(declaration, name, rank, shape,
                 (struct ek__parameter){.initializer = initializer, .buffer = true});
}

static ek_status node_create(struct ek__node **node, struct ek__layout *layout, ek_module *module) {
  EK_TRY(ek__module_check(module));
  struct ek__node *made = NULL;
  EK_TRY(ek__new(&made, 1, sizeof *made, memory_of));
  made->module = module;
  made->inputs = module->inputs;
  made->outputs = module->outputs;
  made->targets = module->targets;
  made->terms = module->terms;
  made->predictions = module->predictions;
  made->unit = EK__NO_UNIT;
  made->stop = EK__NO_UNIT;
  made->number = layout->walked++;
  made->next = layout->nodes;
  layout->nodes = made;
  *node = made;
  return EK_OK;
}

static void node_free(struct ek__node *node) {
  ek__free(node->children);
  ek__free(node->parameters);
  ek__free(node);
}

/* `type`: what the parent was to compute in. */
static ek_status walk(struct ek__layout *layout, struct ek__node *node, const char *path, int depth,
                      size_t unit, ek_type type) {
  char where[EK__PATH_SIZE];
  const unsigned types = EK__TABLE_TYPES(node->module->ops);
  const ek_type own = ek__types_choose(types, type);
  ek_declaration declaration = {layout, node, path, node->module->ops->kind, depth, unit, type};
  node->holder = (struct ek__holder){layout, node->path, node->module->ops->kind};
  EK_TRY(ek__types_check(types, own, ek__node_path(where, node)));
  layout->collective = layout->collective || ek__is_collective(node->module);
  if (node->module->ops->parameters == NULL) return EK_OK;
  return node->module->ops->parameters(node->module, &declaration);
}

static ek_status add_child(struct ek__node **made, ek_declaration *declaration, ek_module *child) {
  struct ek__node *node = declaration->node;
  EK_TRY(ek__grow(&node->children, &node->child_capacity, node->child_count + 1,
                  sizeof *node->children, memory_of));
  EK_TRY(node_create(made, declaration->layout, child));
  node->children[node->child_count++] = *made;
  return EK_OK;
}

ek_status ek_declare_module(ek_declaration *declaration, const char *name, ek_module *child) {
  char path[EK__PATH_SIZE], below[EK__PATH_SIZE];
  EK_TRY(check_name(path, declaration, name));
  EK__FAIL_IF(child == NULL, EK_ERR_INVALID_ARGUMENT, "%s: the child %s is NULL", declaration->kind,
              path);
  const int length = snprintf(below, sizeof below, "%s.", path);
  EK__FAIL_IF(length < 0 || (size_t)length >= sizeof below, EK_ERR_INVALID_ARGUMENT,
              "%s: the name %s is too long; does a module hold itself?", declaration->kind, path);
  struct ek__layout *layout = declaration->layout;
  struct ek__node *made = NULL;
  const char *kept = NULL;
  EK_TRY(ek__names_add(&kept, &layout->names, path, EK__NO_PARAMETER));
  EK_TRY(add_child(&made, declaration, child));
  made->path = kept;
  made->stream = layout->node_count++;
  return walk(layout, made, below, declaration->depth + 1, declaration->unit, declaration->type);
}

ek_status ek_declare_wrapped(ek_declaration *declaration, ek_module *child) {
  EK__FAIL_IF(declaration == NULL || child == NULL, EK_ERR_INVALID_ARGUMENT,
              "ek_declare_wrapped: an argument is NULL");
  struct ek__node *node = declaration->node, *made = NULL;
  EK__FAIL_IF(node->child_count > 0 || declaration->depth >= EK__PATH_SIZE / 2,
              EK_ERR_INVALID_ARGUMENT,
              node->child_count > 0 ? "%s: it has children, and wraps another one"
                                    : "%s: it is wrapped too often; does a module hold itself?",
              declaration->kind);
  EK_TRY(add_child(&made, declaration, child));
  made->path = node->path;
  made->stream = node->stream;
  EK_TRY(walk(declaration->layout, made, declaration->path, declaration->depth + 1,
              declaration->unit, declaration->type));
  for (size_t i = 0; i < made->parameter_count; i++) EK_TRY(add_number(node, made->parameters[i]));
  return EK_OK;
}

ek_status ek_declare_unit(ek_declaration *declaration) {
  EK__NOT_NULL("ek_declare_unit", declaration);
  struct ek__node *node = declaration->node;
  EK__FAIL_IF(node->parameter_count > 0 || node->child_count > 0 || node->unit != EK__NO_UNIT,
              EK_ERR_INVALID_ARGUMENT, "%s: a unit is declared first, and once", declaration->kind);
  node->unit = declaration->unit = declaration->layout->marked++;
  return EK_OK;
}

static size_t resolve(const struct ek__layout *layout, size_t index) {
  while (layout->parameters[index].alias != index) index = layout->parameters[index].alias;
  return index;
}

ek_status ek_declare_tie(ek_declaration *declaration, const char *name, const char *source) {
  EK__NOT_NULL("ek_declare_tie", declaration, name, source);
  char path[EK__PATH_SIZE], source_path[EK__PATH_SIZE];
  EK_TRY(full_name(path, declaration, name));
  EK_TRY(full_name(source_path, declaration, source));
  struct ek__layout *layout = declaration->layout;
  size_t to = 0, from = 0;
  const struct ek__parameter *a = declared(layout, path, &to);
  const struct ek__parameter *b = declared(layout, source_path, &from);
  EK__FAIL_IF(a == NULL || b == NULL, EK_ERR_NOT_FOUND,
              "%s: cannot tie %s to %s: %s was not declared before", declaration->kind, path,
              source_path, a == NULL ? path : source_path);
  from = resolve(layout, from);
  EK__FAIL_IF(resolve(layout, to) != to || from == to, EK_ERR_INVALID_ARGUMENT,
              "%s: %s is tied already", declaration->kind, path);
  EK__FAIL_IF(a->buffer != b->buffer || !ek__same_sizes(a->rank, a->shape, b->rank, b->shape),
              EK_ERR_SHAPE, "%s: cannot tie %s to %s: their shapes differ", declaration->kind, path,
              source_path);
  layout->parameters[to].alias = from;
  layout->parameters[from].users += layout->parameters[to].users;
  return EK_OK;
}

/* ---- the layout ---- */

static void renumber(const struct ek__layout *layout, const size_t *numbers) {
  for (const struct ek__node *node = layout->nodes; node != NULL; node = node->next) {
    for (size_t i = 0; i < node->parameter_count; i++) {
      node->parameters[i] = numbers[node->parameters[i]];
    }
  }
}

/* Numbers units in the order of their first parameters: *numbers has one per marked unit. What
 * nobody has marked goes into the open one until that is large enough. */
static void number_units(struct ek__layout *layout, size_t *numbers, size_t unit_bytes) {
  const size_t element = ek_type_size(layout->type);
  size_t open = EK__NO_UNIT, owner = 0;
  uint64_t bytes = 0;
  for (size_t i = 0; i < layout->marked; i++) numbers[i] = EK__NO_UNIT;
  for (size_t i = 0; i < layout->parameter_count; i++) {
    struct ek__parameter *p = &layout->parameters[i];
    if (p->buffer) continue;
    if (p->unit == EK__NO_UNIT) {
      if (bytes >= unit_bytes && p->owner != owner) open = EK__NO_UNIT;
      if (open == EK__NO_UNIT) open = layout->unit_count++, bytes = 0;
      p->unit = open;
      owner = p->owner;
      bytes += (uint64_t)p->count * element;
    } else {
      size_t *number = &numbers[p->unit];
      if (*number == EK__NO_UNIT) *number = layout->unit_count++;
      p->unit = *number;
    }
  }
  for (struct ek__node *node = layout->nodes; node != NULL; node = node->next) {
    if (node->unit != EK__NO_UNIT) node->unit = numbers[node->unit];
  }
}

/* Each unit becomes one of what is trained and one of what is frozen, behind all of the former; one
 * without parameters does not exist. */
static ek_status part_units(struct ek__layout *layout) {
  const size_t count = layout->unit_count;
  size_t *trained = NULL; /* new numbers, and behind them those of the frozen parts */
  EK_TRY(ek__new(&trained, 2 * count, sizeof *trained, memory_of));
  size_t *frozen = trained + count, next = 0;
  for (size_t i = 0; i < 2 * count; i++) trained[i] = EK__NO_UNIT;
  for (size_t i = 0; i < layout->parameter_count; i++) {
    const struct ek__parameter *p = &layout->parameters[i];
    if (!p->buffer) (p->frozen ? frozen : trained)[p->unit] = 0;
  }
  for (size_t i = 0; i < 2 * count; i++) {
    if (i == count) layout->unit_trained = next;
    if (trained[i] != EK__NO_UNIT) trained[i] = next++;
  }
  layout->unit_count = next;
  for (size_t i = 0; i < layout->parameter_count; i++) {
    struct ek__parameter *p = &layout->parameters[i];
    if (!p->buffer) p->unit = (p->frozen ? frozen : trained)[p->unit];
  }
  for (struct ek__node *node = layout->nodes; node != NULL; node = node->next) {
    if (node->unit == EK__NO_UNIT) continue;
    const bool any = trained[node->unit] != EK__NO_UNIT;
    node->unit = (any ? trained : frozen)[node->unit];
  }
  ek__free(trained);
  return EK_OK;
}

static ek_status make_units(struct ek__layout *layout, size_t unit_bytes) {
  size_t *numbers = NULL;
  if (unit_bytes == 0) {
    for (size_t i = 0; i < layout->parameter_count; i++) layout->parameters[i].unit = 0;
    for (struct ek__node *node = layout->nodes; node != NULL; node = node->next) {
      node->unit = EK__NO_UNIT;
    }
    return EK_OK;
  }
  EK_TRY(ek__new(&numbers, layout->marked, sizeof *numbers, memory_of));
  number_units(layout, numbers, unit_bytes);
  ek__free(numbers);
  return part_units(layout);
}

/* The first unit that a node needs, or EK__NO_UNIT. */
static size_t first_unit(const struct ek__layout *layout, const struct ek__node *node) {
  if (node->unit != EK__NO_UNIT) return node->unit;
  for (size_t i = 0; i < node->parameter_count; i++) {
    const struct ek__parameter *p = &layout->parameters[node->parameters[i]];
    if (!p->buffer) return p->unit;
  }
  return EK__NO_UNIT;
}

static ek_status number_stops(struct ek__layout *layout, struct ek__node *node) {
  const size_t unit = first_unit(layout, node);
  if (unit != EK__NO_UNIT) {
    if (layout->stop_count == 0 || layout->stops[layout->stop_count - 1] != unit) {
      EK_TRY(ek__grow(&layout->stops, &layout->stop_capacity, layout->stop_count + 1,
                      sizeof *layout->stops, memory_of));
      layout->stops[layout->stop_count++] = unit;
    }
    node->stop = layout->stop_count - 1;
  }
  for (size_t i = 0; i < node->child_count; i++) {
    EK_TRY(number_stops(layout, node->children[i]));
  }
  return EK_OK;
}

/* At the next multiple of `alignment`. */
static ek_status place_at(struct ek__parameter *parameter, int64_t *end, uint64_t alignment) {
  uint64_t begin = 0, padded = 0;
  if (ek__round_up(&begin, (uint64_t)*end, alignment) &&
      ek__round_up(&padded, (uint64_t)parameter->count, EK__FLAT_ALIGNMENT) &&
      ek__add(end, (int64_t)begin, (int64_t)padded) && *end <= INT64_MAX / 16) {
    parameter->offset = (int64_t)begin;
    return EK_OK;
  }
  return ek_error_set(EK_ERR_OVERFLOW, "the model's parameters do not fit in 63 bits");
}

static void add_run(struct ek__layout *layout, int64_t first, size_t group) {
  if (layout->run_count > 0 && layout->runs[layout->run_count - 1].group == group) return;
  layout->runs[layout->run_count++] = (struct ek__run){first, group};
}

/* Sorts parameters by unit, then by group, and keeps their order otherwise: `count` buckets of each
 * pass are filled in the order of `from`. */
static ek_status sort_by(size_t *to, const size_t *from, const struct ek__layout *layout,
                         size_t count, bool by_unit) {
  size_t *ends = NULL;
  EK_TRY(ek__new(&ends, count + 1, sizeof *ends, memory_of));
  for (size_t i = 0; i < layout->order_count; i++) {
    const struct ek__parameter *p = &layout->parameters[from[i]];
    ends[(by_unit ? p->unit : p->group) + 1]++;
  }
  for (size_t i = 0; i < count; i++) ends[i + 1] += ends[i];
  for (size_t i = 0; i < layout->order_count; i++) {
    const struct ek__parameter *p = &layout->parameters[from[i]];
    to[ends[by_unit ? p->unit : p->group]++] = from[i];
  }
  ek__free(ends);
  return EK_OK;
}

/* Parameters without buffers: unit by unit, in a unit group by group, in a group as declared. */
static ek_status sort(struct ek__layout *layout) {
  const size_t units = layout->unit_count == 0 ? 1 : layout->unit_count;
  size_t *grouped = NULL;
  for (size_t i = 0; i < layout->parameter_count; i++) {
    if (!layout->parameters[i].buffer) layout->order[layout->order_count++] = i;
  }
  EK_TRY(ek__new(&grouped, layout->order_count, sizeof *grouped, memory_of));
  ek_status status = sort_by(grouped, layout->order, layout, layout->group_count + 1, false);
  if (status == EK_OK) status = sort_by(layout->order, grouped, layout, units, true);
  ek__free(grouped);
  return status;
}

/* Gives every parameter its place. */
static ek_status place(struct ek__layout *layout) {
  EK_TRY(ek__new(&layout->order, layout->parameter_count, sizeof *layout->order, memory_of));
  EK_TRY(ek__new(&layout->runs, layout->parameter_count, sizeof *layout->runs, memory_of));
  EK_TRY(sort(layout));
  size_t unit = EK__NO_UNIT;
  for (size_t i = 0; i < layout->order_count; i++) {
    struct ek__parameter *p = &layout->parameters[layout->order[i]];
    const bool begins = layout->unit_count > 0 && p->unit != unit;
    EK_TRY(place_at(p, &layout->flat_count, begins ? EK__UNIT_ALIGNMENT : EK__FLAT_ALIGNMENT));
    add_run(layout, p->offset, p->group);
    unit = p->unit;
    if (p->frozen) continue;
    layout->trained_count = layout->flat_count;
    layout->order_trained = i + 1;
  }
  for (size_t i = 0; i < layout->parameter_count; i++) {
    struct ek__parameter *p = &layout->parameters[i];
    if (p->buffer) EK_TRY(place_at(p, &layout->buffer_count, EK__FLAT_ALIGNMENT));
  }
  return EK_OK;
}

/* Drops the parameters that were tied to others; their names then stand for those. */
static ek_status drop_tied(struct ek__layout *layout) {
  const size_t count = layout->parameter_count;
  size_t *numbers = NULL;
  EK_TRY(ek__new(&numbers, count, sizeof *numbers, memory_of));
  size_t kept = 0;
  for (size_t i = 0; i < count; i++) {
    if (layout->parameters[i].alias == i) numbers[i] = kept++;
  }
  for (size_t i = 0; i < count; i++) numbers[i] = numbers[resolve(layout, i)];
  for (size_t i = 0; i < layout->names.capacity; i++) {
    struct ek__name *name = &layout->names.places[i];
    if (name->name != NULL && name->value != EK__NO_PARAMETER) name->value = numbers[name->value];
  }
  kept = 0;
  for (size_t i = 0; i < count; i++) {
    if (layout->parameters[i].alias == i) layout->parameters[kept++] = layout->parameters[i];
  }
  layout->parameter_count = kept;
  renumber(layout, numbers);
  ek__free(numbers);
  return EK_OK;
}

static ek_status settle(struct ek__layout *layout, size_t unit_bytes,
                        const ek_parameter_pattern *patterns, size_t pattern_count) {
  EK_TRY(drop_tied(layout));
  EK_TRY(ek__layout_group(layout, patterns, pattern_count));
  EK_TRY(make_units(layout, unit_bytes));
  if (unit_bytes > 0) EK_TRY(number_stops(layout, layout->root));
  return place(layout);
}

ek_status ek__layout_open(struct ek__layout *layout, ek_module *module, ek_type type,
                          ek_type precision, size_t unit_bytes,
                          const ek_parameter_pattern *patterns, size_t pattern_count) {
  memset(layout, 0, sizeof *layout);
  layout->type = type;
  ek_status status = node_create(&layout->root, layout, module);
  if (status == EK_OK) {
    layout->root->stream = layout->node_count++;
    status = walk(layout, layout->root, "", 0, EK__NO_UNIT, precision);
  }
  if (status == EK_OK) status = settle(layout, unit_bytes, patterns, pattern_count);
  if (status != EK_OK) ek__layout_close(layout);
  return status;
}

void ek__layout_close(struct ek__layout *layout) {
  ek__names_close(&layout->names);
  ek__free(layout->stops);
  ek__free(layout->runs);
  ek__free(layout->groups);
  ek__free(layout->order);
  ek__free(layout->parameters);
  while (layout->nodes != NULL) {
    struct ek__node *node = layout->nodes;
    layout->nodes = node->next;
    node_free(node);
  }
  memset(layout, 0, sizeof *layout);
}

/* ---- what modules keep on the device ---- */

static ek_status open_state(struct ek__layout *layout, struct ek__node *node, ek_device *device) {
  const ek_module_ops *ops = node->module->ops;
  if (EK__TABLE_HAS(ops, open) && ops->open != NULL) {
    layout->stateful = true;
    const uint64_t errors = ek__error_number();
    const ek_status status = ops->open(node->module, &node->state, device);
    if (status != EK_OK) {
      char path[EK__PATH_SIZE];
      return ek_error_set(status, "%s, open: %s", ek__node_path(path, node),
                          ek__error_words(status, errors));
    }
    node->opened = true;
  }
  for (size_t i = 0; i < node->child_count; i++) {
    EK_TRY(open_state(layout, node->children[i], device));
  }
  return EK_OK;
}

ek_status ek__layout_open_states(struct ek__layout *layout, ek_device *device) {
  const ek_status status = open_state(layout, layout->root, device);
  if (status != EK_OK) ek__layout_close_states(layout, device);
  return status;
}

void ek__layout_close_states(struct ek__layout *layout, ek_device *device) {
  for (struct ek__node *node = layout->nodes; node != NULL; node = node->next) {
    const ek_module_ops *ops = node->module->ops;
    if (node->opened && EK__TABLE_HAS(ops, close) && ops->close != NULL) {
      ops->close(node->module, node->state, device);
    }
    node->opened = false;
  }
}

ek_status ek__layout_check(const struct ek__layout *layout) {
  for (const struct ek__node *node = layout->nodes; node != NULL; node = node->next) {
    const ek_module *m = node->module;
    if (m->inputs == node->inputs && m->outputs == node->outputs && m->targets == node->targets &&
        m->terms == node->terms && m->predictions == node->predictions) {
      continue;
    }
    char path[EK__PATH_SIZE];
    return ek_error_set(EK_ERR_STATE,
                        "%s: inputs or outputs were changed to %zu and %zu after it was opened "
                        "with %zu and %zu, targets and terms to %zu and %zu from %zu and %zu",
                        ek__node_path(path, node), m->inputs, m->outputs, node->inputs,
                        node->outputs, m->targets, m->terms, node->targets, node->terms);
  }
  return EK_OK;
}

const char *ek__node_path(char path[EK__PATH_SIZE], const struct ek__node *node) {
  const char *kind = node->module->ops->kind;
  if (node->path == NULL) return kind;
  snprintf(path, EK__PATH_SIZE, "%s (%s)", node->path, kind);
  return path;
}

ek_status ek__layout_find(size_t *parameter, const struct ek__layout *layout, const char *name) {
  if (declared(layout, name, parameter) != NULL) return EK_OK;
  return ek_error_set(EK_ERR_NOT_FOUND, "there is no parameter named \"%s\"", name);
}
