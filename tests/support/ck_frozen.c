/*
 * ck_frozen.c - see ck_frozen.h.
 */
#include "ck_frozen.h"

#include "tied_module.h"

static ek_module *create(ek_module *child, const struct tied_parameters *tied) {
  CK_HELD(ek_group *, group, ck_open_exactly("plan:1", 1));
  CK_GOT(ek_module *, module, tied_module_create(&module, child, tied, ek_group_device(group, 0)));
  return module;
}

ek_module *ck_frozen_create(ek_module *child, const char *const *names, size_t count,
                            unsigned mask) {
  return create(child, &(struct tied_parameters){names, count, mask, false});
}

ek_module *ck_frozen_by_path(ek_module *child, const char *const *names, size_t count,
                             unsigned mask) {
  return create(child, &(struct tied_parameters){names, count, mask, true});
}

/* What is frozen of the layer that is being made. */
static struct {
  ek_status (*create)(ek_module **);
  unsigned mask;
} pair;

static ek_status create_pair(ek_module **module) {
  static const char *const names[] = {"weight", "bias"};
  ek_module *layer = NULL;
  EK_TRY(pair.create(&layer));
  *module = ck_frozen_create(layer, names, 2, pair.mask);
  return EK_OK;
}

void ck_frozen_pair(ek_status (*create_layer)(ek_module **), unsigned mask, const double *weight,
                    const double *bias, struct ck_input input) {
  static const char *const own[] = {"own0", "own1"};
  struct ck_results *results[2];
  double *gradients[2][2];
  pair.create = create_layer;
  for (int k = 0; k < 2; k++) {
    pair.mask = k == 0 ? 0 : mask;
    struct ck_bed *bed = ck_bed_of(create_pair, EK_F32, input);
    const ek_memory_event *events = NULL;
    ck_bed_set(bed, own[0], weight);
    ck_bed_set(bed, own[1], bias);
    ck_ok(ek_memory_record_start(bed->device, 256));
    results[k] = ck_bed_backward(bed, true);
    CK_GOT(size_t, events_seen, ek_memory_record_stop(&events, &events_seen, NULL, bed->device));
    ck_assert_uint_gt(events_seen, 0);
    for (size_t i = 0; i < events_seen; i++) {
      ck_assert_int_ne(events[i].category, EK_MEMORY_GRADIENTS);
    }
    for (unsigned p = 0; p < 2; p++) {
      CK_GOT(ek_parameter_info, info, ek_replica_find(&info, bed->replica, own[p]));
      const int64_t count = ek_tensor_count(&info.value);
      gradients[k][p] = ck_array((size_t)count, sizeof(double));
      ck_assert_int_eq(info.frozen, pair.mask >> p & 1u);
      if (info.frozen) continue;
      ck_get(gradients[k][p], &info.gradient);
      ck_same_bits("trained", gradients[k][p], gradients[0][p], count);
    }
    ck_bed_close(bed);
  }
  ck_same_bits("dx", results[1]->grad_input[0], results[0]->grad_input[0],
               results[0]->input_count[0]);
}
