/*
 * layout_place.c - the order of parameters in the flat buffers, and their offsets.
 */
#include "core/alloc.h"
#include "core/error.h"
#include "core/sizes.h"
#include "module/layout.h"

static const char memory_of[] = "a module's layout";

/* Elements with the rows after a table; 0: they do not fit in 63 bits. */
static int64_t room_of(const struct ek__parameter *parameter, size_t table_rows) {
  const bool table = parameter->elementwise && parameter->rank == 2 && !parameter->buffer &&
                     parameter->shape[0] >= EK__TABLE_LEAST_ROWS;
  uint64_t rows = 0;
  int64_t room = 0;
  if (table_rows == 0 || !table) return parameter->count;
  const bool fits = ek__round_up(&rows, (uint64_t)parameter->shape[0], table_rows) &&
                    ek__multiply(&room, (int64_t)rows, parameter->shape[1]);
  return fits ? room : 0;
}

/* At the next multiple of `alignment`. */
static ek_status place_at(struct ek__parameter *parameter, int64_t *end, uint64_t alignment,
                          size_t table_rows) {
  uint64_t begin = 0, padded = 0;
  parameter->room = room_of(parameter, table_rows);
  if (parameter->room > 0 && ek__round_up(&begin, (uint64_t)*end, alignment) &&
      ek__round_up(&padded, (uint64_t)parameter->room, EK__FLAT_ALIGNMENT) &&
      ek__add(end, (int64_t)begin, (int64_t)padded) && *end <= INT64_MAX / 16) {
    parameter->offset = (int64_t)begin;
    return EK_OK;
  }
  return ek_error_set(EK_ERR_OVERFLOW, "the model's parameters do not fit in 63 bits");
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

ek_status ek__layout_place(struct ek__layout *layout) {
  EK_TRY(ek__new(&layout->order, layout->parameter_count, sizeof *layout->order, memory_of));
  EK_TRY(sort(layout));
  size_t unit = EK__NO_UNIT;
  for (size_t i = 0; i < layout->order_count; i++) {
    struct ek__parameter *p = &layout->parameters[layout->order[i]];
    const bool begins = layout->unit_count > 0 && p->unit != unit;
    EK_TRY(place_at(p, &layout->flat_count, begins ? EK__UNIT_ALIGNMENT : EK__FLAT_ALIGNMENT,
                    layout->table_rows));
    unit = p->unit;
    if (p->frozen) continue;
    layout->trained_count = layout->flat_count;
    layout->order_trained = i + 1;
  }
  for (size_t i = 0; i < layout->parameter_count; i++) {
    struct ek__parameter *p = &layout->parameters[i];
    if (p->buffer) EK_TRY(place_at(p, &layout->buffer_count, EK__FLAT_ALIGNMENT, 0));
  }
  return EK_OK;
}
