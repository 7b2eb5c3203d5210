/*
 * tied_module.c - see tied_module.h.
 */
#include "tied_module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <evenkeel/pass.h>
#include <evenkeel/replica.h>

struct tied_module {
  ek_module base;
  ek_module *child;
  struct tied_parameters tied;
  size_t count;
  struct {
    char name[64];
    int rank;
    int64_t shape[EK_MAX_RANK];
  } own[TIED_MOST];
};

static ek_status tied_parameters(const ek_module *self, ek_declaration *declaration) {
  const struct tied_module *m = (const struct tied_module *)self;
  char name[80], own[32];
  for (size_t i = 0; i < m->count; i++) {
    ek_parameter_options options = EK_PARAMETER_OPTIONS_INIT;
    options.frozen = !m->tied.by_path && (m->tied.mask >> i & 1u) != 0;
    (void)snprintf(own, sizeof own, "own%zu", i);
    EK_TRY(ek_declare_parameter_with(declaration, own, m->own[i].rank, m->own[i].shape,
                                     ek_initializer_uniform(-0.5, 0.5), &options));
  }
  EK_TRY(ek_declare_module(declaration, "inner", m->child));
  for (size_t i = 0; i < m->count; i++) {
    (void)snprintf(own, sizeof own, "own%zu", i);
    (void)snprintf(name, sizeof name, "inner.%s", m->own[i].name);
    const bool frozen = m->tied.by_path && (m->tied.mask >> i & 1u) != 0;
    if (frozen && i % 3 == 0) EK_TRY(ek_declare_frozen(declaration, name));
    EK_TRY(ek_declare_tie(declaration, name, own));
    if (frozen && i % 3 != 0) EK_TRY(ek_declare_frozen(declaration, i % 3 == 1 ? own : name));
  }
  return EK_OK;
}

static ek_status tied_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                              ek_tensor *outputs) {
  (void)self;
  return ek_pass_child_forward(outputs, pass, 0, inputs);
}

static ek_status tied_backward(const ek_module *self, ek_pass *pass, const ek_tensor *grad_outputs,
                               ek_tensor *grad_inputs) {
  (void)self;
  return ek_pass_child_backward(grad_inputs, pass, 0, grad_outputs);
}

static void tied_free(ek_module *self) {
  ek_module_free(((struct tied_module *)self)->child);
  free(self);
}

static const ek_module_ops tied_ops = {.size = sizeof(ek_module_ops), .kind = "frozen",
                                       .parameters = tied_parameters, .forward = tied_forward,
                                       .backward = tied_backward, .free = tied_free,
                                       .types = EK_TYPES_F32 | EK_TYPES_F64 | EK_TYPES_BF16 |
                                                EK_TYPES_F16};

static ek_status find_shapes(struct tied_module *m, const ek_replica *replica) {
  const size_t there = ek_replica_parameter_count(replica);
  const size_t wanted = m->tied.names == NULL && m->tied.count > there ? there : m->tied.count;
  for (; m->count < wanted; m->count++) {
    ek_parameter_info info;
    EK_TRY(m->tied.names == NULL ? ek_replica_parameter(&info, replica, m->count)
                                 : ek_replica_find(&info, replica, m->tied.names[m->count]));
    (void)snprintf(m->own[m->count].name, sizeof m->own[0].name, "%s", info.name);
    m->own[m->count].rank = info.value.rank;
    memcpy(m->own[m->count].shape, info.value.shape, sizeof info.value.shape);
  }
  return EK_OK;
}

ek_status tied_module_create(ek_module **module, ek_module *child,
                             const struct tied_parameters *tied, ek_device *device) {
  struct tied_module *m = calloc(1, sizeof *m);
  ek_replica *replica = NULL;
  if (m == NULL || tied->count > TIED_MOST) abort();
  m->child = child;
  m->tied = *tied;
  ek_status status = ek_replica_open(&replica, device, child, NULL);
  if (status == EK_OK) status = find_shapes(m, replica);
  ek_replica_free(replica);
  if (status == EK_OK) {
    status = ek_module_init(&m->base, &tied_ops, ek_module_inputs(child), ek_module_outputs(child));
  }
  if (status == EK_OK) *module = &m->base;
  if (status != EK_OK) free(m);
  return status;
}
