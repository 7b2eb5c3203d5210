/*
 * layout.c - what a module's declarations add up to, and what modules keep on a device.
 *
 * A layout is opened in steps: the walk (declare.c), groups of parameters (patterns.c), units
 * (layout_units.c) and places (layout_place.c).
 */
#include "module/layout.h"

#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"

/* ---- opening and closing ---- */

static ek_status settle(struct ek__layout *layout, size_t unit_bytes,
                        const ek_parameter_pattern *patterns, size_t pattern_count) {
  EK_TRY(ek__layout_drop_tied(layout));
  EK_TRY(ek__layout_group(layout, patterns, pattern_count));
  EK_TRY(ek__layout_units(layout, unit_bytes));
  if (unit_bytes > 0) EK_TRY(ek__layout_stops(layout, layout->root));
  return ek__layout_place(layout);
}

static void node_free(struct ek__node *node) {
  ek__free(node->children);
  ek__free(node->parameters);
  ek__free(node);
}

ek_status ek__layout_open(struct ek__layout *layout, ek_module *module, ek_type type,
                          ek_type precision, size_t unit_bytes, size_t table_rows,
                          const ek_parameter_pattern *patterns, size_t pattern_count) {
  memset(layout, 0, sizeof *layout);
  layout->type = type;
  layout->table_rows = table_rows;
  ek_status status = ek__layout_walk(layout, module, precision);
  if (status == EK_OK) status = settle(layout, unit_bytes, patterns, pattern_count);
  if (status != EK_OK) ek__layout_close(layout);
  return status;
}

void ek__layout_close(struct ek__layout *layout) {
  ek__names_close(&layout->names);
  ek__free(layout->stops);
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
  const ek_module_ops *ops = ek_module_table(node->module);
  if (EK__TABLE_SLOT(ops, open) != NULL) {
    layout->stateful = true;
    const uint64_t errors = ek__error_number();
    const ek_status status = ops->open(node->module, device, &node->state);
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
    const ek_module_ops *ops = ek_module_table(node->module);
    if (node->opened && EK__TABLE_SLOT(ops, close) != NULL) {
      ops->close(node->module, device, node->state);
    }
    node->opened = false;
  }
}

ek_status ek__layout_check(const struct ek__layout *layout) {
  for (const struct ek__node *node = layout->nodes; node != NULL; node = node->next) {
    const ek_module *m = node->module;
    if (ek_module_inputs(m) == node->inputs && ek_module_outputs(m) == node->outputs &&
        ek_module_targets(m) == node->targets && ek_module_terms(m) == node->terms &&
        ek_module_predictions(m) == node->predictions) {
      continue;
    }
    char path[EK__PATH_SIZE];
    return ek_error_set(EK_ERR_STATE,
                        "%s: a module's numbers may not change while it is open: inputs and "
                        "outputs are %zu and %zu (opened with %zu and %zu), targets and terms %zu "
                        "and %zu (opened with %zu and %zu)",
                        ek__node_path(path, node), ek_module_inputs(m), ek_module_outputs(m),
                        node->inputs, node->outputs, ek_module_targets(m), ek_module_terms(m),
                        node->targets, node->terms);
  }
  return EK_OK;
}
