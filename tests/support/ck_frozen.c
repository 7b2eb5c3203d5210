/*
 * ck_frozen.c - see ck_frozen.h.
 */
#include "ck_frozen.h"

#include "ek_check.h"

struct frozen {
  ek_module base;
  ek_module *child;
  size_t count;
  unsigned mask;
  bool by_path;
  struct {
    const char *name;
    int rank;
    int64_t shape[EK_MAX_RANK];
  } own[CK_MOST_FROZEN];
};

CK_PARAMETERS(frozen) {
  const struct frozen *m = (const struct frozen *)self;
  char name[EK_STATE_NAME_SIZE], own[32];
  for (size_t i = 0; i < m->count; i++) {
    ek_parameter_options options = EK_PARAMETER_OPTIONS_INIT;
    options.frozen = !m->by_path && (m->mask >> i & 1u) != 0;
    (void)snprintf(own, sizeof own, "own%zu", i);
    EK_TRY(ek_declare_parameter_with(declaration, own, m->own[i].rank, m->own[i].shape,
                                     ek_initializer_uniform(-0.5, 0.5), &options));
  }
  EK_TRY(ek_declare_module(declaration, "inner", m->child));
  for (size_t i = 0; i < m->count; i++) {
    (void)snprintf(own, sizeof own, "own%zu", i);
    (void)snprintf(name, sizeof name, "inner.%s", m->own[i].name);
    const bool frozen = m->by_path && (m->mask >> i & 1u) != 0;
    if (frozen && i % 3 == 0) EK_TRY(ek_declare_frozen(declaration, name));
    EK_TRY(ek_declare_tie(declaration, name, own));
    if (frozen && i % 3 != 0) EK_TRY(ek_declare_frozen(declaration, i % 3 == 1 ? own : name));
  }
  return EK_OK;
}

CK_FORWARD(frozen) { return ek_pass_child_forward(outputs, pass, 0, inputs); }

CK_BACKWARD(frozen) { return ek_pass_child_backward(grad_inputs, pass, 0, grad_outputs); }

static void frozen_free(ek_module *self) {
  ek_module_free(((struct frozen *)self)->child);
  free(self);
}

CK_MODULE_OPS_WITH(frozen, .parameters = frozen_parameters,
                   .types = EK_TYPES_F32 | EK_TYPES_F64 | EK_TYPES_BF16 | EK_TYPES_F16);

/* Their shapes, from a replica that only counts. */
static void find_shapes(struct frozen *m) {
  ek_group *group = ck_open_exactly("plan:1", 1);
  ek_replica *replica = NULL;
  ck_ok(ek_replica_open(&replica, ek_group_device(group, 0), m->child, NULL));
  for (size_t i = 0; i < m->count; i++) {
    ek_parameter_info info;
    ck_ok(ek_replica_find(&info, replica, m->own[i].name));
    m->own[i].rank = info.value.rank;
    memcpy(m->own[i].shape, info.value.shape, sizeof m->own[i].shape);
  }
  ek_replica_free(replica);
  ck_ok(ek_group_close(group));
}

static ek_module *create(ek_module *child, const char *const *names, size_t count, unsigned mask,
                         bool by_path) {
  struct frozen *m = calloc(1, sizeof *m);
  ck_assert(m != NULL && count <= CK_MOST_FROZEN);
  m->child = child;
  m->count = count;
  m->mask = mask;
  m->by_path = by_path;
  for (size_t i = 0; i < count; i++) m->own[i].name = names[i];
  find_shapes(m);
  ck_ok(ek_module_init(&m->base, &frozen_ops, ek_module_inputs(child), ek_module_outputs(child)));
  return &m->base;
}

ek_module *ck_frozen_create(ek_module *child, const char *const *names, size_t count,
                            unsigned mask) {
  return create(child, names, count, mask, false);
}

ek_module *ck_frozen_by_path(ek_module *child, const char *const *names, size_t count,
                             unsigned mask) {
  return create(child, names, count, mask, true);
}
