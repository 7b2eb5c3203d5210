/*
 * check_cuda_limits.c - GPUs that lack what others have: groups open all the same, and what a GPU
 * cannot do is an error of the call that asks for it.
 *
 * Runs on tests/cuemu: see CMakeLists.txt here.
 */
#include "ck_emulated.h"

#define SPEC "cuda:0@64MiB"

/* Attention of one head, forward and backward, to the end of the work. */
static ek_status attend(struct ck_rig *rig, int64_t width) {
  enum { TOKENS = 3 };
  ek_tensor *qkv =
      ck_tensor(rig, ck_values(rig, TOKENS * 3 * width, -1, 1), CK_SHAPE(1, TOKENS, 3 * width));
  ek_tensor *dout =
      ck_tensor(rig, ck_values(rig, TOKENS * width, -1, 1), CK_SHAPE(1, TOKENS, width));
  ek_tensor *out = ck_poisoned(rig, CK_SHAPE(1, TOKENS, width));
  ek_tensor *lse = ck_poisoned_sums(rig, CK_SHAPE(1, 1, TOKENS));
  ek_tensor *dqkv = ck_poisoned(rig, CK_SHAPE(1, TOKENS, 3 * width));
  EK_TRY(ek_op_attention_forward(rig->stream, out, lse, qkv, NULL));
  EK_TRY(ek_op_attention_backward(rig->stream, dqkv, dout, qkv, out, lse, NULL));
  return ek_stream_synchronize(rig->stream);
}

/* The kernels have tiles for 99 KiB, which is what all GPUs from sm_80 on have at least. */
static const int architectures[] = {75, 80, 86, 90, 120};

/* What does not fit is refused by name; what it had taken is intact, and the next width works. */
CK_LOOP(shared_memory, sizeof architectures / sizeof architectures[0]) {
  static const ek_type types[] = {EK_F32, EK_F64, EK_BF16, EK_F16};
  ck_emulate(arch, architectures[_i]);
  for (int type = 0; type < 4; type++) {
    struct ck_rig *rig = ck_rig_open(SPEC, types[type], 1);
    int refused = 0;
    for (int64_t width = 32; width <= 256; width *= 2) {
      const ek_status status = attend(rig, width);
      if (status == EK_OK) continue;
      refused++;
      ck_assert_msg(status == EK_ERR_UNSUPPORTED, "%s", ek_error_message());
      ck_assert_msg(ck_contains(ek_error_message(), "shared memory"), "%s", ek_error_message());
    }
    ck_assert_msg((refused > 0) == (architectures[_i] < 80), "architecture %d", architectures[_i]);
    ck_assert_int_lt(refused, 4);
    ck_ok(attend(rig, 32));
    ck_rig_close(rig);
  }
}

CK_EMULATED_SUITE("cuda limits")
