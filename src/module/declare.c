/*
 * declare.c - the walk through a module's declarations (module.h).
 *
 * A declaration is checked when it is made; messages have its full name. A tie is an alias while
 * the walk goes on. After the walk ek__layout_drop_tied() drops the parameters that are tied to
 * others. It also freezes what was frozen by path: only then is it known what each name stands for.
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

struct ek_declaration {
  struct ek__layout *layout;
  struct ek__node *node;
  const char *path; /* of the node: "" or "blocks.0." */
  const char *kind;
  int depth;    /* of the node */
  size_t first; /* parameter that the module could declare */
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
      "%s: a declared name may not be empty or contain a dot or slash, and this is \"%.64s\"",
      declaration == NULL ? "declaration is NULL" : declaration->kind, name == NULL ? "" : name);
  EK__FAIL_IF(!ek__utf8_is(name) || strncmp(name, "__", 2) == 0, EK_ERR_INVALID_ARGUMENT,
              "%s: the name \"%.64s\" is not UTF-8, or begins with \"__\", which is reserved in "
              "tensor files",
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
                "%s: the number of elements of %s does not fit in 63 bits",
                declaration->kind, path);
  }
  return EK_OK;
}

static ek_status check_initializer(const ek_declaration *declaration, const char *path,
                                   const ek_initializer *initializer) {
  EK__FAIL_IF((unsigned)initializer->kind > EK_INITIALIZER_VALUES, EK_ERR_INVALID_ARGUMENT,
              "%s: unknown initializer %d for %s", declaration->kind, (int)initializer->kind,
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

/* `given` has the properties of a parameter other than name and shape. */
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
                 (struct ek__parameter){.initializer = initializer,
                                        .no_decay = o.no_decay,
                                        .frozen = o.frozen,
                                        .elementwise = o.elementwise});
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
  made->inputs = ek_module_inputs(module);
  made->outputs = ek_module_outputs(module);
  made->targets = ek_module_targets(module);
  made->terms = ek_module_terms(module);
  made->predictions = ek_module_predictions(module);
  made->unit = EK__NO_UNIT;
  made->stop = EK__NO_UNIT;
  made->number = layout->walked++;
  made->next = layout->nodes;
  layout->nodes = made;
  *node = made;
  return EK_OK;
}

/* ---- nodes ---- */

const char *ek__node_path(char path[EK__PATH_SIZE], const struct ek__node *node) {
  const char *kind = ek_module_kind(node->module);
  if (node->path == NULL) return kind;
  snprintf(path, EK__PATH_SIZE, "%s (%s)", node->path, kind);
  return path;
}

/* `type`: what the parent was to compute in. */
static ek_status walk(struct ek__layout *layout, struct ek__node *node, const char *path, int depth,
                      size_t unit, ek_type type) {
  char where[EK__PATH_SIZE];
  const unsigned types = EK__TABLE_TYPES(ek_module_table(node->module));
  const ek_type own = ek__types_choose(types, type);
  ek_declaration declaration = {.layout = layout,
                                .node = node,
                                .path = path,
                                .kind = ek_module_kind(node->module),
                                .depth = depth,
                                .first = layout->parameter_count,
                                .unit = unit,
                                .type = type};
  node->holder = (struct ek__holder){layout, node->path, ek_module_kind(node->module)};
  EK_TRY(ek__types_check(types, own, ek__node_path(where, node)));
  layout->collective = layout->collective || ek__is_collective(node->module);
  if (layout->mixer == NULL && ek__mixes_samples(node->module)) layout->mixer = node->module;
  if (ek_module_table(node->module)->parameters == NULL) return EK_OK;
  return ek_module_table(node->module)->parameters(node->module, &declaration);
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
              "%s: the name %s is too long; does a module contain itself?",
              declaration->kind, path);
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
              node->child_count > 0 ? "%s: a module with children cannot also wrap another module"
                                    : "%s: wrapped too many times; does a module contain itself?",
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
              EK_ERR_INVALID_ARGUMENT,
              "%s: a unit must be declared once, before anything else", declaration->kind);
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
              "%s: cannot tie %s to %s: %s must be declared first", declaration->kind, path,
              source_path, a == NULL ? path : source_path);
  from = resolve(layout, from);
  EK__FAIL_IF(resolve(layout, to) != to || from == to, EK_ERR_INVALID_ARGUMENT,
              "%s: %s is already tied", declaration->kind, path);
  EK__FAIL_IF(a->buffer != b->buffer || !ek__same_sizes(a->rank, a->shape, b->rank, b->shape),
              EK_ERR_SHAPE, "%s: cannot tie %s to %s: their shapes differ", declaration->kind, path,
              source_path);
  layout->parameters[to].alias = from;
  layout->parameters[from].users += layout->parameters[to].users;
  return EK_OK;
}

/* Whether a parameter's full name is this path, or is within the module of this path. */
static bool is_within(const char *name, const char *path) {
  const size_t length = strlen(path);
  if (length == 0 || strncmp(name, path, length) != 0) return length == 0;
  return path[length - 1] == '.' || name[length] == '.' || name[length] == '\0';
}

static ek_status refuse_to_freeze(const ek_declaration *declaration, const char *path) {
  const char *nearest = ek__layout_nearest(declaration->layout, path, declaration->path);
  EK__FAIL_IF(nearest == NULL, EK_ERR_NOT_FOUND,
              "%s: cannot freeze \"%.128s\": nothing is declared before it", declaration->kind,
              path);
  return ek_error_set(EK_ERR_NOT_FOUND,
                      "%s: cannot freeze \"%.128s\": no parameter or module of this name is "
                      "declared before; the nearest name is \"%.128s\"",
                      declaration->kind, path, nearest);
}

ek_status ek_declare_frozen(ek_declaration *declaration, const char *path) {
  EK__NOT_NULL("ek_declare_frozen", declaration, path);
  struct ek__layout *layout = declaration->layout;
  char whole[EK__PATH_SIZE];
  EK_TRY(full_name(whole, declaration, path));
  if (path[0] != '\0') {
    const struct ek__name *name = ek__names_find(&layout->names, whole);
    const bool parameter = name != NULL && name->value != EK__NO_PARAMETER;
    if (name == NULL || (parameter && name->value < declaration->first)) {
      return refuse_to_freeze(declaration, whole);
    }
    EK__FAIL_IF(parameter && layout->parameters[name->value].buffer, EK_ERR_INVALID_ARGUMENT,
                "%s: cannot freeze %s: it is a buffer, which is never trained", declaration->kind,
                whole);
  }
  for (size_t i = declaration->first; i < layout->parameter_count; i++) {
    struct ek__parameter *p = &layout->parameters[i];
    p->held = p->held || (!p->buffer && is_within(p->name, whole));
  }
  return EK_OK;
}

ek_status ek__layout_walk(struct ek__layout *layout, ek_module *module, ek_type type) {
  EK_TRY(node_create(&layout->root, layout, module));
  layout->root->stream = layout->node_count++;
  return walk(layout, layout->root, "", 0, EK__NO_UNIT, type);
}

/* ---- what was declared ---- */

ek_status ek__layout_find(size_t *parameter, const struct ek__layout *layout, const char *name) {
  if (declared(layout, name, parameter) != NULL) return EK_OK;
  return ek_error_set(EK_ERR_NOT_FOUND, "no parameter is named \"%s\"", name);
}

static void renumber(const struct ek__layout *layout, const size_t *numbers) {
  for (const struct ek__node *node = layout->nodes; node != NULL; node = node->next) {
    for (size_t i = 0; i < node->parameter_count; i++) {
      node->parameters[i] = numbers[node->parameters[i]];
    }
  }
}

ek_status ek__layout_drop_tied(struct ek__layout *layout) {
  const size_t count = layout->parameter_count;
  size_t *numbers = NULL;
  EK_TRY(ek__new(&numbers, count, sizeof *numbers, memory_of));
  size_t kept = 0;
  for (size_t i = 0; i < count; i++) {
    if (layout->parameters[i].alias == i) numbers[i] = kept++;
  }
  for (size_t i = 0; i < count; i++) {
    const size_t source = resolve(layout, i);
    if (layout->parameters[i].held) layout->parameters[source].frozen = true;
    numbers[i] = numbers[source];
  }
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
