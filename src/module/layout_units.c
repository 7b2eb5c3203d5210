/*
 * layout_units.c - the units of a layout, and the order in which a walk comes to them.
 */
#include "core/alloc.h"
#include "core/error.h"
#include "device/types.h"
#include "module/layout.h"

static const char memory_of[] = "a module's layout";

/* Numbers units in the order of their first parameters: *numbers has one per marked unit. A
 * parameter of no marked unit goes into the open one until that is large enough. */
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

/* Splits each unit into a trained and a frozen one; frozen units come after all trained ones, and a
 * unit without parameters is dropped. */
static ek_status part_units(struct ek__layout *layout) {
  const size_t count = layout->unit_count;
  size_t *trained = NULL; /* new numbers, and after them those of the frozen parts */
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

ek_status ek__layout_units(struct ek__layout *layout, size_t unit_bytes) {
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

ek_status ek__layout_stops(struct ek__layout *layout, struct ek__node *node) {
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
    EK_TRY(ek__layout_stops(layout, node->children[i]));
  }
  return EK_OK;
}
