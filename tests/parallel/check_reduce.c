/*
 * check_reduce.c - sums of gradients, bucket by bucket, while backward runs.
 */
#include "ck_training.h"

enum { MOST = 6 };

struct bench {
  ek_group *group;
  size_t devices;
  ek_communicator *communicator;
  ek_module *module;
  ek_replica *replicas[MOST];
  ek_reducer *reducer;
  int64_t count; /* elements of the flat gradients */
};

static void open_bench(struct bench *b, const char *spec, const char *workload, ek_reduce_kind kind,
                       size_t bucket_bytes) {
  memset(b, 0, sizeof *b);
  b->group = ck_open(spec, 1);
  b->devices = ek_group_size(b->group);
  ck_kept(ek_communicator_open(&b->communicator, b->group), b->communicator);
  ck_kept(ck_workload(workload)->module(&b->module), b->module);
  for (size_t k = 0; k < b->devices; k++) {
    ck_kept(ek_replica_open(&b->replicas[k], ek_group_device(b->group, k), b->module, NULL),
            b->replicas[k]);
  }
  CK_WITH(ek_reducer_options, options, EK_REDUCER_OPTIONS_INIT, .kind = kind,
          .bucket_bytes = bucket_bytes);
  ck_kept(ek_reducer_open(&b->reducer, b->communicator, b->replicas, &options), b->reducer);
  b->count = ek_tensor_count(ek_replica_gradients(b->replicas[0]));
}

/* ---- layout ---- */

static const size_t bucket_sizes[] = {0, 1, 300, 2000, 1 << 20};
enum { SIZES = sizeof bucket_sizes / sizeof bucket_sizes[0] };

/* How many devices own each element of the flat buffer. */
static void owners(int *owned, const struct bench *b) {
  for (size_t i = 0; i < ek_reducer_bucket_count(b->reducer); i++) {
    for (size_t k = 0; k < b->devices; k++) {
      int64_t first = -1, last = -1;
      ck_ok(ek_reducer_range(&first, &last, b->reducer, i, k));
      ck_assert_int_le(0, first);
      ck_assert_int_le(first, last);
      ck_assert_int_le(last, b->count);
      ck_assert_int_eq(first % 16, 0); /* where vectors begin */
      for (int64_t e = first; e < last; e++) owned[e]++;
    }
  }
}

CK_LOOP(buckets_cover_the_flat_buffer, SIZES) {
  for (int kind = 0; kind < 3; kind++) {
    for (size_t w = 0; w < CK_WORKLOADS; w++) {
      CK_SCENE(struct bench, b, open_bench(&b, "cpu:5", ck_workloads[w].name, (ek_reduce_kind)kind,
                                           bucket_sizes[_i]));
      int *owned = ck_array((size_t)b.count, sizeof *owned);
      owners(owned, &b);
      const int wanted = kind == EK_REDUCE_TO_ALL ? (int)b.devices : 1;
      for (int64_t e = 0; e < b.count; e++) {
        if (owned[e] != wanted) ck_abort_msg("element %d has %d owners", (int)e, owned[e]);
      }
    }
  }
}

/* From the end to the beginning, each as large as was asked for, but the last. */
CK_LOOP(buckets_go_backwards, SIZES) {
  CK_SCENE(struct bench, b, open_bench(&b, "cpu:2", "gpt", EK_REDUCE_TO_ALL, bucket_sizes[_i]));
  const size_t buckets = ek_reducer_bucket_count(b.reducer);
  int64_t end = b.count;
  for (size_t i = 0; i < buckets; i++) {
    int64_t first = 0, last = 0;
    ck_ok(ek_reducer_range(&first, &last, b.reducer, i, 1));
    ck_assert_int_eq(last, end);
    if (i + 1 < buckets) ck_assert_uint_ge((uint64_t)(last - first) * 4, bucket_sizes[_i]);
    end = first;
  }
  ck_assert_int_eq(end, 0);
  const bool large = bucket_sizes[_i] == 0 || bucket_sizes[_i] >= 1 << 20;
  if (large) ck_assert_uint_eq(buckets, 1);
  if (bucket_sizes[_i] == 1) ck_assert_uint_eq(buckets, ek_replica_parameter_count(b.replicas[0]));
}

/* Twenty parameters of 1 MiB each. */
CK_TEST(sizes_of_buckets) {
  enum { LAYERS = 20, SIDE = 512 };
  static const struct {
    const char *spec;
    size_t bytes, first, second, count;
  } cases[] = {{"plan:2", 0, 4, 4, 8},       {"plan-cuda:2", 0, 1, 19, 2},
               {"plan:2", 8 << 20, 1, 8, 4}, {"plan-cuda:2", 4 << 20, 4, 4, 8},
               {"plan:2", 1, 1, 1, 20}};
  ek_module *layers[LAYERS];
  for (int i = 0; i < LAYERS; i++) {
    ck_kept(ek_linear_create(&layers[i], SIDE, SIDE, false), layers[i]);
  }
  CK_OPENED(ek_module *, module, ek_sequential_create(&module, layers, LAYERS));
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ek_group *group = ck_open_exactly(cases[i].spec, 1);
    ek_replica *replicas[2] = {NULL, NULL};
    CK_WITH(ek_reducer_options, options, EK_REDUCER_OPTIONS_INIT, .bucket_bytes = cases[i].bytes);
    CK_OPENED(ek_communicator *, communicator, ek_communicator_open(&communicator, group));
    for (size_t k = 0; k < 2; k++) {
      ck_kept(ek_replica_open(&replicas[k], ek_group_device(group, k), module, NULL), replicas[k]);
    }
    CK_OPENED(ek_reducer *, reducer, ek_reducer_open(&reducer, communicator, replicas, &options));
    ck_assert_uint_eq(ek_reducer_bucket_count(reducer), cases[i].count);
    for (size_t b = 0; b < 2; b++) {
      int64_t first = 0, last = 0;
      ck_ok(ek_reducer_range(&first, &last, reducer, b, 0));
      ck_assert_int_eq(last - first,
                       (int64_t)(b == 0 ? cases[i].first : cases[i].second) * SIDE * SIDE);
    }
  }
}

/* A table of 32 MiB that is complete last, and five parameters of 1 MiB: the sum of four of them
 * does not wait for the table. Of CPU devices those that are complete late wait for no other. */
CK_LOOP(a_large_parameter_has_a_bucket_of_its_own, 2) {
  static const struct {
    const char *spec;
    size_t count;
    int64_t mebibytes[5];
  } cases[] = {{"plan-cuda:1", 3, {1, 4, 32}}, {"plan:1", 5, {2, 1, 1, 1, 32}}};
  ek_module *layers[6];
  ek_replica *replica = NULL;
  ck_kept(ek_linear_create(&layers[0], 512, 16384, false), layers[0]);
  for (int i = 1; i < 6; i++) ck_kept(ek_linear_create(&layers[i], 512, 512, false), layers[i]);
  CK_OPENED(ek_module *, module, ek_sequential_create(&module, layers, 6));
  ek_group *group = ck_open_exactly(cases[_i].spec, 1);
  CK_OPENED(ek_communicator *, communicator, ek_communicator_open(&communicator, group));
  ck_kept(ek_replica_open(&replica, ek_group_device(group, 0), module, NULL), replica);
  CK_OPENED(ek_reducer *, reducer, ek_reducer_open(&reducer, communicator, &replica, NULL));
  ck_assert_uint_eq(ek_reducer_bucket_count(reducer), cases[_i].count);
  for (size_t b = 0; b < cases[_i].count; b++) {
    int64_t first = 0, last = 0;
    ck_ok(ek_reducer_range(&first, &last, reducer, b, 0));
    ck_assert_int_eq(last - first, cases[_i].mebibytes[b] << 18);
  }
}

/* Ownership counts ranks: each of three processes of two devices has the cut of one with six. */
CK_LOOP(ranges_count_over_the_world, SIZES) {
  struct bench whole;
  open_bench(&whole, "cpu:6", "gpt", EK_REDUCE_SCATTER, bucket_sizes[_i]);
  const size_t buckets = ek_reducer_bucket_count(whole.reducer);
  for (size_t first_rank = 0; first_rank < 6; first_rank += 2) {
    CK_WITH(ek_group_options, options, EK_GROUP_OPTIONS_INIT, .world_size = 6,
            .first_rank = first_rank);
    ek_replica *replicas[2] = {NULL, NULL};
    ek_reducer *reducer = NULL;
    CK_SCOPED(ek_group *, group, ek_group_open(&group, "plan:2", &options));
    CK_SCOPED(ek_communicator *, communicator, ek_communicator_open(&communicator, group));
    for (size_t k = 0; k < 2; k++) {
      ck_ok(ek_replica_open(&replicas[k], ek_group_device(group, k), whole.module, NULL));
    }
    for (int kind = 0; kind < 3; kind++) {
      CK_WITH(ek_reducer_options, cut, EK_REDUCER_OPTIONS_INIT, .kind = (ek_reduce_kind)kind,
              .bucket_bytes = bucket_sizes[_i]);
      ck_ok(ek_reducer_open(&reducer, communicator, replicas, &cut));
      ck_assert_uint_eq(ek_reducer_bucket_count(reducer), buckets);
      for (size_t i = 0; i < buckets * 6; i++) {
        int64_t first = -1, last = -1, want_first = -2, want_last = -2;
        ck_ok(ek_reducer_range(&first, &last, reducer, i / 6, i % 6));
        ck_ok(ek_reducer_range(&want_first, &want_last, whole.reducer, i / 6, i % 6));
        if (kind == EK_REDUCE_TO_FIRST) ck_assert_int_eq(first == last, i % 6 != 0);
        if (kind != EK_REDUCE_SCATTER) continue;
        ck_assert_int_eq(first, want_first);
        ck_assert_int_eq(last, want_last);
      }
      ck_invalid(ek_reducer_range(&(int64_t){0}, &(int64_t){0}, reducer, 0, 6), "rank 6");
      ek_reducer_free(reducer);
    }
    for (size_t k = 0; k < 2; k++) ek_replica_free(replicas[k]);
  }
}

/* ---- sums ---- */

/* Gradients are small whole numbers, so that their sum is exact: device k has k + 1 + e % 7. */
static void fill(struct bench *b) {
  double *values = ck_array((size_t)b->count, sizeof *values);
  for (size_t k = 0; k < b->devices; k++) {
    for (int64_t e = 0; e < b->count; e++) values[e] = (double)(k + 1) + (double)(e % 7);
    ek_tensor flat = *ek_replica_gradients(b->replicas[k]);
    ck_set(&flat, values);
  }
}

struct round {
  struct bench *bench;
  bool complete; /* say of every parameter that it is complete, last to first */
  size_t fails;  /* this device gives up after one parameter; MOST: none */
};

CK_JOB(run_round) {
  const struct round *round = context;
  struct bench *b = round->bench;
  EK_TRY(ek_reducer_begin(b->reducer, device));
  for (size_t i = ek_replica_parameter_count(b->replicas[index]); round->complete && i-- > 0;) {
    ek_parameter_info info;
    EK_TRY(ek_replica_parameter(&info, b->replicas[index], i));
    if (!info.buffer) EK_TRY(ek_reducer_complete(b->reducer, device, i));
    if (index == round->fails) return ek_error_set(EK_ERR_IO, "the test gives up");
  }
  return ek_reducer_end(b->reducer, device);
}

static void has_sums(const struct bench *b, ek_reduce_kind kind) {
  const double n = (double)b->devices;
  for (size_t k = 0; k < b->devices; k++) {
    const double *got = ck_got(ek_replica_gradients(b->replicas[k]));
    for (size_t i = 0; i < ek_reducer_bucket_count(b->reducer); i++) {
      int64_t first = 0, last = 0;
      ck_ok(ek_reducer_range(&first, &last, b->reducer, i, k));
      for (int64_t e = first; e < last; e++) {
        const double want = n * (n + 1) / 2 + n * (double)(e % 7);
        if (got[e] != want) ck_abort_msg("kind %d: [%d] is %g, not %g", kind, (int)e, got[e], want);
      }
    }
  }
}

CK_LOOP(sums_are_right, 3) {
  for (size_t size = 0; size < SIZES; size++) {
    for (int complete = 0; complete < 2; complete++) {
      CK_SCENE(struct bench, b,
               open_bench(&b, "cpu:5", "gpt", (ek_reduce_kind)_i, bucket_sizes[size]));
      struct round round = {&b, complete == 1, MOST};
      for (int again = 0; again < 2; again++) {
        fill(&b);
        ck_ok(ek_group_apply(b.group, run_round, &round));
        has_sums(&b, (ek_reduce_kind)_i);
        const size_t early = complete == 1 ? ek_reducer_bucket_count(b.reducer) : 0;
        for (size_t k = 0; k < b.devices; k++) {
          ck_assert_uint_eq(ek_reducer_overlapped(b.reducer, k), early);
        }
      }
    }
  }
}

/* One device fails when it has queued some: no other waits for it, and the next round works. */
CK_LOOP(a_failure_frees_the_others, 3) {
  for (size_t victim = 0; victim < 3; victim++) {
    CK_SCENE(struct bench, b, open_bench(&b, "cpu:3", "mlp", (ek_reduce_kind)_i, 1));
    struct round round = {&b, true, victim};
    const char *text = ck_text("replica %zu on cpu:%zu: the test gives up", victim, victim);
    ck_fails(ek_group_apply(b.group, run_round, &round), EK_ERR_IO, text);
    round.fails = MOST;
    fill(&b);
    ck_ok(ek_group_apply(b.group, run_round, &round));
    has_sums(&b, (ek_reduce_kind)_i);
  }
}

/* ---- a real backward ---- */

static ek_status tell(void *context, ek_pass *pass, size_t parameter) {
  struct bench *b = context;
  return ek_reducer_complete(b->reducer, ek_pass_device(pass), parameter);
}

CK_JOB(train) {
  struct bench *b = context;
  CK_FREED(pass) *pass = NULL;
  CK_FREED(tensor) tokens = {0}, logits = {0};
  CK_WITH(ek_pass_options, options, EK_PASS_OPTIONS_INIT, .complete = tell, .context = b);
  EK_TRY(ek_reducer_begin(b->reducer, device));
  EK_TRY(ek_pass_open(&pass, b->replicas[index], &options));
  EK_TRY(ek_tensor_create(&tokens, device, EK_MEMORY_INPUTS, EK_I32, CK_SHAPE(2, 5)));
  EK_TRY(ek_op_zero(ek_device_stream(device, EK_STREAM_COMPUTE), &tokens));
  EK_TRY(ek_pass_run_forward(&logits, pass, &tokens));
  EK_TRY(ek_pass_run_backward(NULL, pass, &logits)); /* any gradient will do */
  return ek_reducer_end(b->reducer, device);
}

/* With small buckets all but what waits for the tied table are on their way before backward ends.
 */
CK_TEST(reduction_overlaps_backward) {
  CK_SCENE(struct bench, b, open_bench(&b, "cpu:2", "gpt", EK_REDUCE_TO_ALL, 256));
  ck_ok(ek_group_apply(b.group, train, &b));
  const size_t buckets = ek_reducer_bucket_count(b.reducer);
  ck_assert_uint_gt(buckets, 5);
  for (size_t k = 0; k < 2; k++) {
    ck_assert_uint_gt(ek_reducer_overlapped(b.reducer, k), buckets / 2);
    ck_assert_uint_le(ek_reducer_overlapped(b.reducer, k), buckets);
  }
}

/* ---- wrong use ---- */

CK_JOB(misuse) {
  struct bench *b = context;
  if (index != 0) return EK_OK;
  if (ek_reducer_complete(b->reducer, device, 1) != EK_ERR_INVALID_ARGUMENT) { /* blend's buffer */
    return ek_error_set(EK_ERR_INTERNAL, "a buffer was complete");
  }
  if (ek_reducer_complete(b->reducer, device, 3) != EK_ERR_INVALID_ARGUMENT) {
    return ek_error_set(EK_ERR_INTERNAL, "a parameter too many was complete");
  }
  EK_TRY(ek_reducer_begin(b->reducer, device));
  EK_TRY(ek_reducer_complete(b->reducer, device, 2));
  return ek_reducer_complete(b->reducer, device, 2); /* twice */
}

CK_TEST(wrong_use_is_refused) {
  CK_SCENE(struct bench, b, open_bench(&b, "cpu:2", "blend", EK_REDUCE_TO_ALL, 1));
  ek_device *device = ek_group_device(b.group, 0);
  ck_fails(ek_group_apply(b.group, misuse, &b), EK_ERR_STATE, "already complete");
  int64_t first = 0, last = 0;
  const ek_status bad = EK_ERR_INVALID_ARGUMENT;
  ck_assert_int_eq(ek_reducer_range(NULL, &last, b.reducer, 0, 0), bad);
  ck_assert_int_eq(ek_reducer_range(&first, NULL, b.reducer, 0, 0), bad);
  ck_assert_int_eq(ek_reducer_range(&first, &last, NULL, 0, 0), bad);
  ck_invalid(ek_reducer_range(&first, &last, b.reducer, 2, 0), "bucket 2");
  ck_invalid(ek_reducer_range(&first, &last, b.reducer, 0, 2), "rank 2");
  ck_assert_int_eq(ek_reducer_begin(NULL, device), bad);
  ck_assert_int_eq(ek_reducer_begin(b.reducer, NULL), bad);
  ck_assert_int_eq(ek_reducer_complete(NULL, device, 0), bad);
  ck_assert_int_eq(ek_reducer_end(b.reducer, NULL), bad);
  ek_group *other = ck_open("cpu:2", 1);
  ck_invalid(ek_reducer_begin(b.reducer, ek_group_device(other, 0)), "not one of its");
  ek_group_free(other);
  ck_assert_uint_eq(ek_reducer_bucket_count(NULL), 0);
  ck_assert_uint_eq(ek_reducer_overlapped(NULL, 0), 0);
  ck_assert_uint_eq(ek_reducer_overlapped(b.reducer, 2), 0);
  ek_reducer_free(NULL);
}

CK_TEST(wrong_openings_are_refused) {
  CK_SCENE(struct bench, b, open_bench(&b, "cpu:2", "mlp", EK_REDUCE_TO_ALL, 1));
  ek_reducer *made = NULL;
  ek_replica *list[] = {b.replicas[0], NULL}, *bare[2] = {NULL, NULL};
  const ek_status bad = EK_ERR_INVALID_ARGUMENT;
  ck_assert_int_eq(ek_reducer_open(NULL, b.communicator, b.replicas, NULL), bad);
  ck_assert_int_eq(ek_reducer_open(&made, NULL, b.replicas, NULL), bad);
  ck_assert_int_eq(ek_reducer_open(&made, b.communicator, NULL, NULL), bad);
  ck_fails(ek_reducer_open(&made, b.communicator, list, NULL), EK_ERR_DEVICE, "number 1");
  list[1] = b.replicas[0];
  ck_fails(ek_reducer_open(&made, b.communicator, list, NULL), EK_ERR_DEVICE, "number 1");
  CK_WITH(ek_reducer_options, options, EK_REDUCER_OPTIONS_INIT, .kind = (ek_reduce_kind)7);
  ck_invalid(ek_reducer_open(&made, b.communicator, b.replicas, &options), "kind");
  options.size = 1;
  ck_invalid(ek_reducer_open(&made, b.communicator, b.replicas, &options),
             "ek_reducer_options.size is 1");
  CK_WITH(ek_replica_options, without, EK_REPLICA_OPTIONS_INIT, .gradients = false);
  for (size_t k = 0; k < 2; k++) {
    ck_ok(ek_replica_open(&bare[k], ek_group_device(b.group, k), b.module, &without));
  }
  ck_fails(ek_reducer_open(&made, b.communicator, bare, NULL), EK_ERR_STATE, "no gradients");
  for (size_t k = 0; k < 2; k++) ek_replica_free(bare[k]);
  ck_assert_ptr_null(made);
}

CK_SUITE("reduce")
