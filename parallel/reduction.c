/*
 * reduction.c - which reduction a model has: the one place that asks whether it is reproducible.
 */
#include "core/error.h"
#include "tree.h"

ek_status ek__reduction_choose(const struct ek__reduction **reduction,
                               const ek_data_parallel_model_options *options,
                               const ek_group *group) {
  const size_t grains = options->reproducible;
  *reduction = grains > 0 ? &ek__reduction_tree : &ek__reduction_sum;
  if (grains == 0) return EK_OK;
  EK__FAIL_IF(grains < ek_group_size(group) || grains > EK__MAX_GRAINS, EK_ERR_INVALID_ARGUMENT,
              "ek_data_parallel_model_open: reproducible is %zu, expected at least the %zu devices "
              "and at most %d",
              grains, ek_group_size(group), EK__MAX_GRAINS);
  EK__FAIL_IF(ek__group_world_size(group) != ek_group_size(group), EK_ERR_UNSUPPORTED,
              "ek_data_parallel_model_open: reproducible over several processes is not yet "
              "implemented");
  if (ek_group_is_deterministic(group)) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                      "ek_data_parallel_model_open: a reproducible model needs a group that was "
                      "opened with ek_group_options.deterministic");
}
