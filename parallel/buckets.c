/*
 * buckets.c - cuts the flat buffer of a replica into buckets, and each into shares.
 */
#include "buckets.h"

#include "core/alloc.h"
#include "core/sizes.h"
#include "module/replica_internal.h"

static void add_bucket(struct ek__buckets *buckets, int64_t first, int64_t last,
                       uint32_t parameters) {
  const size_t ranks = buckets->ranks, number = buckets->count++;
  struct ek__bucket *bucket = &buckets->list[number];
  int64_t *offsets = &buckets->offsets[number * (ranks + 1)];
  int64_t *places = &buckets->places[number * ranks];
  *bucket = (struct ek__bucket){first, last, parameters, offsets, places};
  for (size_t r = 0; r <= ranks; r++) {
    const size_t piece = (size_t)ek__even_begin((int64_t)buckets->pieces, r, ranks);
    offsets[r] = ek__part_begin(last - first, piece, buckets->pieces);
  }
  for (size_t r = 0; r < ranks && number > 0; r++) {
    places[r] = bucket[-1].places[r] + ek__bucket_share(&bucket[-1], r);
  }
}

/* Whether parameters number i - 1 and i of the order, the second at the beginning of a bucket so
 * far up to `end`, go into different ones. */
static bool ends(const struct ek__layout *layout, size_t i, int64_t end, size_t bytes) {
  const struct ek__parameter *p = &layout->parameters[layout->order[i]];
  if (i == 0 || i == layout->order_trained) return true;
  if (layout->unit_count > 0) return p->unit != layout->parameters[layout->order[i - 1]].unit;
  return (uint64_t)(end - p->offset) * ek_type_size(layout->type) >= bytes;
}

/* Parameters number begin .. i - 1 of the order, which end at `end`. */
static void cut(struct ek__buckets *buckets, const struct ek__layout *layout, size_t begin,
                size_t i, int64_t end, size_t bytes) {
  uint32_t members = 0;
  while (i-- > begin) {
    const int64_t first = layout->parameters[layout->order[i]].offset;
    buckets->of[layout->order[i]] = buckets->count;
    members++;
    if (!ends(layout, i, end, bytes)) continue;
    add_bucket(buckets, first, end, members);
    end = first;
    members = 0;
  }
}

ek_status ek__buckets_open(struct ek__buckets *buckets, const ek_replica *replica, size_t ranks,
                           size_t pieces, size_t bytes) {
  static const char memory_of[] = "the gradient buckets";
  const size_t parameters = replica->layout.parameter_count;
  *buckets = (struct ek__buckets){.ranks = ranks, .pieces = pieces, .parameters = parameters};
  EK_TRY(ek__new(&buckets->list, parameters, sizeof *buckets->list, memory_of));
  EK_TRY(ek__new(&buckets->offsets, parameters, (ranks + 1) * sizeof(int64_t), memory_of));
  EK_TRY(ek__new(&buckets->places, parameters, ranks * sizeof(int64_t), memory_of));
  EK_TRY(ek__new(&buckets->of, parameters, sizeof *buckets->of, memory_of));
  const struct ek__layout *layout = &replica->layout;
  for (size_t i = 0; i < parameters; i++) buckets->of[i] = SIZE_MAX;
  cut(buckets, layout, 0, layout->order_trained, layout->trained_count, bytes);
  buckets->trained = buckets->count;
  cut(buckets, layout, layout->order_trained, layout->order_count, layout->flat_count, bytes);
  return EK_OK;
}

void ek__buckets_close(struct ek__buckets *buckets) {
  ek__free(buckets->of);
  ek__free(buckets->places);
  ek__free(buckets->offsets);
  ek__free(buckets->list);
}

ek_tensor ek__flat_range(const ek_tensor *flat, int64_t first, int64_t count) {
  ek_tensor range = *flat;
  range.memory = NULL;
  range.rank = 1;
  range.shape[0] = count;
  if (range.data != NULL) {
    range.data = (char *)range.data + (size_t)first * ek_type_size(range.type);
  }
  return range;
}
