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
  for (size_t r = 0; r <= ranks; r++) offsets[r] = ek__part_begin(last - first, r, ranks);
  for (size_t r = 0; r < ranks && number > 0; r++) {
    places[r] = bucket[-1].places[r] + ek__bucket_share(&bucket[-1], r);
  }
}

static void cut(struct ek__buckets *buckets, const struct ek__layout *layout, size_t element,
                size_t bytes) {
  const size_t parameters = layout->parameter_count;
  int64_t end = layout->flat_count;
  uint32_t members = 0;
  for (size_t place = EK__GROUPS * parameters; place-- > 0;) {
    const size_t i = place % parameters;
    const struct ek__parameter *p = &layout->parameters[i];
    if (p->buffer) buckets->of[i] = SIZE_MAX; /* it is in none */
    if (p->buffer || ek__group_of(p->no_decay, p->frozen) != place / parameters) continue;
    buckets->of[i] = buckets->count;
    members++;
    if ((uint64_t)(end - p->offset) * element < bytes && p->offset > 0) continue;
    add_bucket(buckets, p->offset, end, members);
    end = p->offset;
    members = 0;
  }
}

ek_status ek__buckets_open(struct ek__buckets *buckets, const ek_replica *replica, size_t ranks,
                           size_t bytes) {
  static const char memory_of[] = "the gradient buckets";
  const size_t parameters = replica->layout.parameter_count;
  *buckets = (struct ek__buckets){.ranks = ranks};
  EK_TRY(ek__new(&buckets->list, parameters, sizeof *buckets->list, memory_of));
  EK_TRY(ek__new(&buckets->offsets, parameters, (ranks + 1) * sizeof(int64_t), memory_of));
  EK_TRY(ek__new(&buckets->places, parameters, ranks * sizeof(int64_t), memory_of));
  EK_TRY(ek__new(&buckets->of, parameters, sizeof *buckets->of, memory_of));
  cut(buckets, &replica->layout, ek_type_size(replica->type), bytes);
  return EK_OK;
}

void ek__buckets_close(struct ek__buckets *buckets) {
  ek__free(buckets->of);
  ek__free(buckets->places);
  ek__free(buckets->offsets);
  ek__free(buckets->list);
}
