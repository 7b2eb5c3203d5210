/*
 * check_parallel_apply.c - the same forward on every device at once.
 */
#include "ck_blend.h"

enum { DEVICES = 3, N = CK_BLEND_WIDTH };

/* Replicas of a blend with equal values, a pass on each, inputs w (broadcast) and x (cut). */
struct bench {
  ek_group *group;
  ek_module *module;
  ek_replica *replicas[DEVICES];
  ek_pass *passes[DEVICES];
  ek_shards inputs[2], outputs[2];
  float w[N], x[7 * N];
};

static void open_bench(struct bench *b, int64_t rows) {
  memset(b, 0, sizeof *b);
  b->group = ck_open("cpu:3", 1);
  ck_kept(ck_blend_create(&b->module), b->module);
  for (size_t k = 0; k < DEVICES; k++) {
    ek_device *device = ek_group_device(b->group, k);
    ck_kept(ek_replica_open(&b->replicas[k], device, b->module, NULL), b->replicas[k]);
    ck_kept(ek_pass_open(&b->passes[k], b->replicas[k], NULL), b->passes[k]);
  }
  for (int i = 0; i < N; i++) b->w[i] = (float)(i + 1);
  for (int i = 0; i < 7 * N; i++) b->x[i] = (float)i * 0.25f;
  ek_tensor w, x;
  ck_ok(ek_tensor_host(&w, b->w, EK_F32, CK_SHAPE(N)));
  ck_ok(ek_tensor_host(&x, b->x, EK_F32, CK_SHAPE(rows, N)));
  ck_kept(ek_scatter_broadcast(&b->inputs[0], b->group, &w, EK_MEMORY_INPUTS), b->inputs[0]);
  ck_kept(ek_scatter(&b->inputs[1], b->group, &x, EK_MEMORY_INPUTS, NULL), b->inputs[1]);
}

static double parameter(const struct bench *b, const char *name, int64_t i) {
  double values[N];
  CK_GOT(ek_parameter_info, info, ek_replica_find(&info, b->replicas[0], name));
  ck_get(values, &info.value);
  return values[i];
}

/* Both outputs of every device, in order, with the rows where x had them. */
CK_LOOP(outputs_in_order, 8) {
  const int64_t rows = _i;
  CK_SET_UP(struct bench, b, open_bench(&b, rows));
  if (rows < DEVICES) { /* a device without rows needs no pass */
    ek_pass_free(b.passes[2]);
    b.passes[2] = NULL;
  }
  ck_ok(ek_parallel_apply(b.outputs, 2, b.passes, b.inputs, 2));
  for (size_t o = 0; o < 2; o++) {
    ck_keep(b.outputs[o]);
    ck_assert_uint_eq(b.outputs[o].count, DEVICES);
    for (size_t k = 0; k < DEVICES; k++) {
      const ek_tensor *part = &b.outputs[o].parts[k];
      const int64_t first = b.inputs[1].offsets[k], count = b.inputs[1].offsets[k + 1] - first;
      ck_assert_int_eq(b.outputs[o].offsets[k], first);
      ck_assert_int_eq(b.outputs[o].samples[k + 1], b.inputs[1].samples[k + 1]);
      ck_assert_ptr_eq(part->device, ek_group_device(b.group, k));
      ck_assert_int_eq(part->shape[0], count);
      double got[8 * N];
      ck_assert_int_le(count, 8);
      ck_get(got, part);
      for (int64_t i = 0; i < count * N; i++) {
        const double x = (double)b.x[first * N + i], a = parameter(&b, "a", i % N);
        const double want =
            o == 0 ? x * a * (double)b.w[i % N] + 0.5 : x + a * parameter(&b, "b", i % N);
        ck_assert_double_eq_tol(got[i], want, 1e-5);
      }
    }
  }
}

CK_TEST(errors_leave_nothing) {
  CK_SET_UP(struct bench, b, open_bench(&b, 7));
  ek_shards wrong[2] = {b.inputs[1], b.inputs[0]}; /* swapped */
  ck_fails(ek_parallel_apply(b.outputs, 2, b.passes, wrong, 2), EK_ERR_SHAPE,
           "replica 0 on cpu:0: blend");
  ck_assert_ptr_null(b.outputs[0].group);
  for (size_t k = 0; k < DEVICES; k++) { /* a pass that failed is only good to be freed */
    ek_pass_free(b.passes[k]);
    ck_kept(ek_pass_open(&b.passes[k], b.replicas[k], NULL), b.passes[k]);
  }
  ck_ok(ek_memory_fail_at(ek_group_device(b.group, 1), 2));
  ck_fails(ek_parallel_apply(b.outputs, 2, b.passes, b.inputs, 2), EK_ERR_OUT_OF_MEMORY,
           "replica 1 on cpu:1");
  ck_assert_ptr_null(b.outputs[0].group);
}

CK_TEST(wrong_arguments_are_refused) {
  CK_SET_UP(struct bench, b, open_bench(&b, 7));
  ek_shards none[2] = {{0}};
  ek_pass *missing[DEVICES] = {b.passes[0], NULL, b.passes[2]};
  const ek_status bad = EK_ERR_INVALID_ARGUMENT;
  ck_assert_int_eq(ek_parallel_apply(NULL, 2, b.passes, b.inputs, 2), bad);
  ck_assert_int_eq(ek_parallel_apply(b.outputs, 2, NULL, b.inputs, 2), bad);
  ck_assert_int_eq(ek_parallel_apply(b.outputs, 2, b.passes, NULL, 2), bad);
  ck_invalid(ek_parallel_apply(b.outputs, 2, b.passes, b.inputs, 0), "0 inputs");
  ck_invalid(ek_parallel_apply(b.outputs, 99, b.passes, b.inputs, 2), "99 outputs");
  ck_invalid(ek_parallel_apply(b.outputs, 2, b.passes, none, 2), "the shards are NULL or empty");
  ck_invalid(ek_parallel_apply(b.outputs, 1, b.passes, b.inputs, 2), "2 outputs");
  ck_invalid(ek_parallel_apply(b.outputs, 2, b.passes, b.inputs, 1), "2 inputs");
  ck_invalid(ek_parallel_apply(b.outputs, 2, missing, b.inputs, 2),
             "replica 1 on cpu:1: ek_parallel_apply: a pass is NULL");
}

CK_SUITE("apply")
