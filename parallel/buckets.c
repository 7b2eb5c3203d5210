/*
 * buckets.c - cuts the flat buffer of a replica into buckets, and each into shares.
 */
#include "buckets.h"

#include <string.h>

#include "core/alloc.h"
#include "core/options.h"
#include "core/sizes.h"
#include "device/device_internal.h"
#include "module/replica_internal.h"

static const char memory_of[] = "the gradient buckets";

/* Bytes: of more than the first, some buckets end at the second; of fewer, the last ones. */
enum { LARGE_BUCKET = 4 << 20, EARLY_BUCKET = 1 << 20 };

/* ---- pieces ---- */

/* The next piece of the bucket that is being made ends `end` elements after its beginning. */
static ek_status add_piece(struct ek__buckets *buckets, int64_t end) {
  EK_TRY(ek__grow(&buckets->pieces, &buckets->piece_capacity, buckets->piece_count + 1,
                  sizeof *buckets->pieces, memory_of));
  buckets->pieces[buckets->piece_count++] = end;
  return EK_OK;
}

/* Elements first .. last - 1 of the bucket, in equal pieces. */
static ek_status add_equal(struct ek__buckets *buckets, int64_t first, int64_t last) {
  for (size_t i = 1; i <= buckets->equal_pieces && first < last; i++) {
    EK_TRY(add_piece(buckets, first + ek__part_begin(last - first, i, buckets->equal_pieces)));
  }
  return EK_OK;
}

/* Of the bucket, whose parameters are the first in `order`. */
static ek_status add_pieces(struct ek__buckets *buckets, struct ek__bucket *bucket,
                            const struct ek__layout *layout, const size_t *order) {
  const int64_t size = bucket->last - bucket->first;
  int64_t begin = 0;
  bucket->piece = buckets->piece_count;
  for (size_t i = 0; i < bucket->parameters; i++) {
    if (!ek__buckets_whole(buckets, order[i])) continue;
    const int64_t first = layout->parameters[order[i]].offset - bucket->first;
    const int64_t end =
        i + 1 < bucket->parameters ? layout->parameters[order[i + 1]].offset - bucket->first : size;
    EK_TRY(add_equal(buckets, begin, first));
    EK_TRY(add_piece(buckets, end));
    begin = end;
  }
  EK_TRY(add_equal(buckets, begin, size));
  bucket->pieces = buckets->piece_count - bucket->piece;
  return EK_OK;
}

/* ---- shares ---- */

/* Fills the offsets of a bucket so that no rank has more than `most` elements of all buckets so
 * far: each rank in turn takes as many pieces as it can. False if pieces are left. */
static bool deal(const struct ek__buckets *buckets, const struct ek__bucket *bucket, int64_t most) {
  const int64_t *ends = &buckets->pieces[bucket->piece];
  int64_t begin = 0;
  size_t next = 0;
  bucket->offsets[0] = 0;
  for (size_t r = 0; r < buckets->ranks; r++) {
    while (next < bucket->pieces && buckets->loads[r] + ends[next] - begin <= most) next++;
    if (next > 0) begin = ends[next - 1];
    bucket->offsets[r + 1] = begin;
  }
  return next == bucket->pieces;
}

static void deal_whole(struct ek__buckets *buckets, const struct ek__bucket *bucket) {
  int64_t low = -1, high = 0; /* too few, and enough */
  for (size_t r = 0; r < buckets->ranks; r++) {
    if (buckets->loads[r] > high) high = buckets->loads[r];
  }
  high += bucket->last - bucket->first;
  while (low + 1 < high) {
    const int64_t middle = low + (high - low) / 2;
    if (deal(buckets, bucket, middle)) {
      high = middle;
    } else {
      low = middle;
    }
  }
  (void)deal(buckets, bucket, high);
  for (size_t r = 0; r < buckets->ranks; r++) {
    buckets->loads[r] += ek__bucket_share(bucket, r);
  }
}

static void deal_evenly(struct ek__buckets *buckets, const struct ek__bucket *bucket) {
  for (size_t r = 0; r <= buckets->ranks; r++) {
    const size_t piece = (size_t)ek__even_begin((int64_t)buckets->equal_pieces, r, buckets->ranks);
    bucket->offsets[r] = ek__part_begin(bucket->last - bucket->first, piece, buckets->equal_pieces);
  }
}

/* ---- buckets ---- */

/* Of the parameters that are the first in `order`. */
static ek_status add_bucket(struct ek__buckets *buckets, const struct ek__layout *layout,
                            const size_t *order, int64_t last, uint32_t parameters) {
  const size_t ranks = buckets->ranks, number = buckets->count++;
  struct ek__bucket *bucket = &buckets->list[number];
  *bucket = (struct ek__bucket){.first = layout->parameters[order[0]].offset,
                                .last = last,
                                .parameters = parameters,
                                .offsets = &buckets->offsets[number * (ranks + 1)],
                                .places = &buckets->places[number * ranks]};
  EK_TRY(add_pieces(buckets, bucket, layout, order));
  (buckets->whole != NULL ? deal_whole : deal_evenly)(buckets, bucket);
  for (size_t r = 0; r < ranks && number > 0; r++) {
    bucket->places[r] = bucket[-1].places[r] + ek__bucket_share(&bucket[-1], r);
  }
  return EK_OK;
}

/* Bytes of a parameter that is no bucket by itself; else 0. */
static uint64_t bytes_within(const struct ek__layout *layout, size_t i, size_t bytes) {
  const struct ek__parameter *p = &layout->parameters[layout->order[i]];
  const uint64_t own = (uint64_t)p->count * ek_type_size(layout->type);
  return own < bytes ? own : 0;
}

/* Whether parameters number i - 1 and i of the order, the second at the beginning of a bucket so
 * far up to `end`, go into different ones. first: it is the first bucket, whose sum may begin
 * early. left: bytes within the buckets to come, whose sums end after backward. */
static bool ends(const struct ek__layout *layout, size_t i, int64_t end, bool first, uint64_t left,
                 size_t bytes) {
  if (i == 0 || i == layout->order_trained) return true;
  const struct ek__parameter *p = &layout->parameters[layout->order[i]];
  const struct ek__parameter *before = &layout->parameters[layout->order[i - 1]];
  if (layout->unit_count > 0) return p->unit != before->unit;
  const size_t size = ek_type_size(layout->type);
  const uint64_t has = (uint64_t)(end - p->offset) * size;
  const bool alone = (uint64_t)before->count * size >= bytes;
  const bool early = bytes > LARGE_BUCKET ? first || alone : left < bytes;
  return has >= (early && bytes > EARLY_BUCKET ? EARLY_BUCKET : bytes);
}

/* Parameters number begin .. i - 1 of the order, which end at `end`. */
static ek_status cut(struct ek__buckets *buckets, const struct ek__layout *layout, size_t begin,
                     size_t i, int64_t end, size_t bytes) {
  uint32_t members = 0;
  uint64_t left = 0;
  for (size_t k = begin; k < i; k++) left += bytes_within(layout, k, bytes);
  while (i-- > begin) {
    const int64_t first = layout->parameters[layout->order[i]].offset;
    buckets->of[layout->order[i]] = buckets->count;
    members++;
    left -= bytes_within(layout, i, bytes);
    if (!ends(layout, i, end, buckets->count == 0, left, bytes)) continue;
    EK_TRY(add_bucket(buckets, layout, &layout->order[i], end, members));
    end = first;
    members = 0;
  }
  return EK_OK;
}

static bool has_decay(const struct ek__buckets *buckets, const struct ek__layout *layout,
                      size_t bucket) {
  for (size_t i = 0; i < layout->order_trained; i++) {
    const size_t parameter = layout->order[i];
    if (buckets->of[parameter] == bucket &&
        layout->parameters[parameter].group != EK__GROUP_NO_DECAY) {
      return true;
    }
  }
  return false;
}

/* Biases and norms alone, the last trained bucket, are complete when the matrices before them are
 * (layout.h). */
static void join_last(struct ek__buckets *buckets, const struct ek__layout *layout) {
  if (layout->unit_count > 0 || buckets->trained < 2) return;
  const size_t last = buckets->trained - 1;
  buckets->list[last - 1].joined =
      has_decay(buckets, layout, last - 1) && !has_decay(buckets, layout, last);
}

ek_optimizer_parameter ek__rule_parameter(const ek_replica *replica, size_t parameter) {
  const struct ek__parameter *p = &replica->layout.parameters[parameter];
  ek_optimizer_parameter made = {
      .name = p->name, .rank = p->rank, .no_decay = p->no_decay, .elementwise = p->elementwise};
  memcpy(made.shape, p->shape, sizeof made.shape);
  return made;
}

bool ek__rule_takes(const ek_optimizer *rule, const ek_replica *replica, size_t parameter) {
  const struct ek__parameter *p = &replica->layout.parameters[parameter];
  const ek_optimizer_ops *ops = ek_optimizer_table(rule);
  if (p->buffer || p->frozen || EK__TABLE_SLOT(ops, takes_whole) == NULL) return false;
  const ek_optimizer_parameter asked = ek__rule_parameter(replica, parameter);
  return ops->takes_whole(rule, &asked);
}

size_t ek__bucket_bytes(size_t given, const ek_device *device) {
  const size_t own = ek__device_table(device)->bucket_bytes;
  return given > 0 ? given : own > 0 ? own : (size_t)4 << 20;
}

static ek_status find_whole(struct ek__buckets *buckets, const ek_replica *replica,
                            const ek_optimizer *rule) {
  bool any = false;
  if (rule == NULL || EK__TABLE_SLOT(ek_optimizer_table(rule), takes_whole) == NULL) return EK_OK;
  EK_TRY(ek__new(&buckets->whole, buckets->parameters, sizeof *buckets->whole, memory_of));
  for (size_t i = 0; i < buckets->parameters; i++) {
    buckets->whole[i] = ek__rule_takes(rule, replica, i);
    any = any || buckets->whole[i];
  }
  if (any) return ek__new(&buckets->loads, buckets->ranks, sizeof *buckets->loads, memory_of);
  ek__free(buckets->whole);
  buckets->whole = NULL;
  return EK_OK;
}

ek_status ek__buckets_open(struct ek__buckets *buckets, const ek_replica *replica, size_t ranks,
                           size_t pieces, size_t bytes, const ek_optimizer *rule) {
  const size_t parameters = replica->layout.parameter_count;
  *buckets = (struct ek__buckets){.ranks = ranks, .equal_pieces = pieces, .parameters = parameters};
  EK_TRY(ek__new(&buckets->list, parameters, sizeof *buckets->list, memory_of));
  EK_TRY(ek__new(&buckets->offsets, parameters, (ranks + 1) * sizeof(int64_t), memory_of));
  EK_TRY(ek__new(&buckets->places, parameters, ranks * sizeof(int64_t), memory_of));
  EK_TRY(ek__new(&buckets->of, parameters, sizeof *buckets->of, memory_of));
  const struct ek__layout *layout = &replica->layout;
  for (size_t i = 0; i < parameters; i++) buckets->of[i] = EK__NO_BUCKET;
  EK_TRY(find_whole(buckets, replica, rule));
  EK_TRY(cut(buckets, layout, 0, layout->order_trained, layout->trained_count, bytes));
  buckets->trained = buckets->count;
  join_last(buckets, layout);
  return cut(buckets, layout, layout->order_trained, layout->order_count, layout->flat_count,
             bytes);
}

void ek__buckets_close(struct ek__buckets *buckets) {
  ek__free(buckets->pieces);
  ek__free(buckets->loads);
  ek__free(buckets->whole);
  ek__free(buckets->of);
  ek__free(buckets->places);
  ek__free(buckets->offsets);
  ek__free(buckets->list);
}
