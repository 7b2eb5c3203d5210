/*
 * placement.c - the placements of a model's state, and the names of the modes.
 *
 * A placement is a row of traits. All other code looks at traits, never at the placement itself.
 */
#include <string.h>

#include "core/error.h"
#include "core/options.h"
#include "parallel_internal.h"

static const struct ek__placement placements[EK__PLACEMENTS] = {
    [EK_STATE_MASTER] = {.reduce = EK_REDUCE_TO_FIRST, .master = true},
    [EK_STATE_REPLICATED] = {.reduce = EK_REDUCE_TO_ALL},
    [EK_STATE_SHARDED] = {.reduce = EK_REDUCE_SCATTER, .state_shares = true},
    [EK_STATE_SHARDED_GRADIENTS] = {.reduce = EK_REDUCE_SCATTER,
                                    .state_shares = true,
                                    .gradient_shares = true},
    [EK_STATE_FULLY_SHARDED] = {.reduce = EK_REDUCE_SCATTER,
                                .state_shares = true,
                                .gradient_shares = true,
                                .parameter_shares = true}};

const struct ek__placement *ek__placement(const ek_data_parallel_model *model) {
  return &placements[model->options.state];
}

bool ek__model_shares_masters(const ek_data_parallel_model *model) {
  const struct ek__placement *placement = ek__placement(model);
  return placement->parameter_shares ||
         (placement->state_shares && ek__type_is_half(ek_precision_type(model->options.precision)));
}

/* ---- modes ---- */

static const struct {
  const char *name;
  ek_output_placement outputs;
  ek_state_placement state;
} modes[] = {[EK_MODE_GATHER] = {"gather", EK_OUTPUTS_GATHER, EK_STATE_MASTER},
             [EK_MODE_BALANCED] = {"balanced", EK_OUTPUTS_STAY, EK_STATE_MASTER},
             [EK_MODE_REPLICATED] = {"replicated", EK_OUTPUTS_STAY, EK_STATE_REPLICATED},
             [EK_MODE_SHARDED] = {"sharded", EK_OUTPUTS_STAY, EK_STATE_SHARDED},
             [EK_MODE_SHARDED_GRADIENTS] = {"sharded-gradients", EK_OUTPUTS_STAY,
                                            EK_STATE_SHARDED_GRADIENTS},
             [EK_MODE_FULLY_SHARDED] = {"fully-sharded", EK_OUTPUTS_STAY, EK_STATE_FULLY_SHARDED}};

enum { MODES = sizeof modes / sizeof modes[0] };

const char *ek_mode_name(ek_mode mode) {
  return (unsigned)mode < MODES ? modes[mode].name : "unknown";
}

ek_status ek_mode_parse(ek_mode *mode, const char *name) {
  EK__NOT_NULL("ek_mode_parse", mode, name);
  for (unsigned i = 0; i < MODES; i++) {
    if (strcmp(modes[i].name, name) == 0) {
      *mode = (ek_mode)i;
      return EK_OK;
    }
  }
  return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                      "unknown mode \"%s\"; expected gather, balanced, replicated, sharded, "
                      "sharded-gradients or fully-sharded",
                      name);
}

ek_status ek_data_parallel_model_options_set_mode(ek_data_parallel_model_options *options,
                                                  ek_mode mode) {
  EK__FAIL_IF(options == NULL || (unsigned)mode >= MODES, EK_ERR_INVALID_ARGUMENT,
              "options is NULL, or mode %d is unknown", (int)mode);
  ek_data_parallel_model_options o = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_data_parallel_model_options"));
  EK__FAIL_IF(options->size < offsetof(ek_data_parallel_model_options, output_device),
              EK_ERR_INVALID_ARGUMENT,
              "ek_data_parallel_model_options.size is %zu, too small for a mode; initialise the "
              "struct",
              options->size);
  options->outputs = modes[mode].outputs;
  options->state = modes[mode].state;
  return EK_OK;
}
