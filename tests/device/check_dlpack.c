/*
 * check_dlpack.c - tensors that come from another library and go to one; what is refused. The other
 * library's memory is that of a tensor of the group, which the devices under test can use.
 */
#include "ek_check.h"

static int deletions;
static void note_deletion(ek_dlpack *self) {
  deletions++;
  self->deleter = NULL;
}

/* A tensor of the group's device 0, and a struct of another library over its memory. */
struct theirs {
  ek_group *group;
  ek_device *device;
  ek_tensor owner;
  int64_t shape[8], strides[8];
  ek_dlpack head;
};

static void make_theirs(struct theirs *t) {
  double values[12];
  for (int i = 0; i < 12; i++) values[i] = i;
  ek_dlpack *like = NULL;
  *t = (struct theirs){.group = ck_open("cpu:2", 1)};
  t->device = ek_group_device(t->group, 0);
  t->owner = ck_upload(t->device, EK_F32, values, CK_SHAPE(3, 4));
  ck_ok(ek_dlpack_export(&like, &t->owner, NULL)); /* where it is */
  t->head = *like;
  like->deleter(like);
  t->shape[0] = 3, t->shape[1] = 4, t->strides[0] = 4, t->strides[1] = 1;
  ck_assign(t->head.tensor, .shape = t->shape, .strides = t->strides);
  t->head.deleter = note_deletion;
  deletions = 0;
}

CK_TEST(an_imported_tensor_is_their_memory) {
  double values[12];
  ek_tensor x = {0}, view = {0};
  CK_SET_UP(struct theirs, t, make_theirs(&t));
  ck_ok(ek_dlpack_import(&x, t.device, &t.head, NULL));
  ck_assert_ptr_eq(x.data, t.owner.data);
  ck_assert_int_eq(x.type, EK_F32);
  ck_assert_int_eq(x.shape[0] * 10 + x.shape[1], 34);
  ck_ok(ek_op_scale(ek_device_stream(t.device, EK_STREAM_COMPUTE), &x, &x, 2));
  ck_get(values, &t.owner);
  for (int i = 0; i < 12; i++) ck_assert_double_eq(values[i], 2 * i);
  ck_ok(ek_tensor_rows(&view, &x, 1, 1));
  ek_tensor_free(&x);
  ck_assert_int_eq(deletions, 0);
  ck_fails(ek_group_close(t.group), EK_ERR_STATE, "remain");
  ek_tensor_free(&view);
  ck_assert_int_eq(deletions, 1);
}

/* Strides of dimensions with one element are not looked at; NULL is dense; an offset is added. */
CK_TEST(forms_of_one_layout) {
  double values[4];
  CK_SET_UP(struct theirs, t, make_theirs(&t));
  t.head.tensor.rank = 3;
  t.shape[0] = 1, t.shape[1] = 1, t.shape[2] = 4;
  t.strides[0] = 77, t.strides[1] = -3, t.strides[2] = 1;
  t.head.tensor.byte_offset = 8 * sizeof(float);
  CK_GOT(ek_tensor, x, ek_dlpack_import(&x, t.device, &t.head, NULL));
  ck_get(values, &x);
  ck_assert_double_eq(values[0] * 10 + values[3], 91);
  ek_tensor_free(&x);
  ck_assign(t.head, .tensor.strides = NULL, .deleter = NULL);
  ck_ok(ek_dlpack_import(&x, t.device, &t.head, NULL));
  ek_tensor_free(&x);
  t.shape[1] = 0; /* no elements: nothing is at the address */
  t.head.tensor.data = NULL;
  ck_ok(ek_dlpack_import(&x, t.device, &t.head, NULL));
  ck_assert_int_eq(ek_tensor_count(&x), 0);
  ek_tensor_free(&x);
}

enum { BAD = 14 };
static const struct {
  ek_status status;
  const char *text;
} bad[BAD] = {{EK_ERR_INVALID_ARGUMENT, "version 2.0 of DLPack; expected 1"},
              {EK_ERR_INVALID_ARGUMENT, "read-only"},
              {EK_ERR_INVALID_ARGUMENT, "rank 9 is outside 0..8"},
              {EK_ERR_INVALID_ARGUMENT, "rank -1 is outside 0..8"},
              {EK_ERR_INVALID_ARGUMENT, "shape is NULL"},
              {EK_ERR_INVALID_ARGUMENT, "on device 0 of type 10"},
              {EK_ERR_INVALID_ARGUMENT, "on device 7 of type"},
              {EK_ERR_TYPE, "code 6 with 8 bits"},
              {EK_ERR_TYPE, "with 32 bits and 2 lanes"},
              {EK_ERR_TYPE, "exist only in host memory"},
              {EK_ERR_INVALID_ARGUMENT, "the stride of dimension 0 is 5; expected 4"},
              {EK_ERR_OVERFLOW, "63 bits"},
              {EK_ERR_INVALID_ARGUMENT, "is not a multiple of 4 bytes"},
              {EK_ERR_INVALID_ARGUMENT, "version 0.8 of DLPack; expected 1"}};

static void spoil(struct theirs *t, int which) {
  ek_dlpack *head = &t->head;
  if (which == 0) head->major = 2;
  if (which == 1) head->flags = EK_DLPACK_READ_ONLY;
  if (which == 2) head->tensor.rank = 9;
  if (which == 3) head->tensor.rank = -1;
  if (which == 4) head->tensor.shape = NULL;
  if (which == 5) head->tensor.device_type = 10;
  if (which == 6) head->tensor.device_id = 7;
  if (which == 7) head->tensor.code = 6, head->tensor.bits = 8;
  if (which == 8) head->tensor.lanes = 2;
  if (which == 9) head->tensor.code = EK_DLPACK_UINT, head->tensor.bits = 8;
  if (which == 10) t->strides[0] = 5;
  if (which == 11) t->shape[0] = t->shape[1] = INT64_C(1) << 40;
  if (which == 12) head->tensor.byte_offset = 2;
  if (which == 13) head->major = 0, head->minor = 8; /* which knew no struct with a version */
}

/* What is refused stays the caller's. */
CK_LOOP(what_is_refused, BAD) {
  ek_tensor x = {0};
  CK_SET_UP(struct theirs, t, make_theirs(&t));
  if (_i == 9) t.strides[0] = 4;
  spoil(&t, _i);
  ck_fails(ek_dlpack_import(&x, t.device, &t.head, NULL), bad[_i].status, bad[_i].text);
  ck_assert(!ek_tensor_exists(&x));
  ck_assert_int_eq(deletions, 0);
  ck_assert(t.head.deleter == note_deletion);
}

CK_TEST(null_and_devices_that_only_count) {
  ek_tensor x = {0}, counted = {0};
  ek_dlpack *out = NULL;
  CK_SET_UP(struct theirs, t, make_theirs(&t));
  ek_device *counts = ek_group_device(ck_open_exactly("plan:1", 1), 0);
  ck_invalid(ek_dlpack_import(NULL, t.device, &t.head, NULL), "NULL");
  ck_invalid(ek_dlpack_import(&x, NULL, &t.head, NULL), "NULL");
  ck_invalid(ek_dlpack_import(&x, t.device, NULL, NULL), "NULL");
  ck_fails(ek_dlpack_import(&x, counts, &t.head, NULL), EK_ERR_UNSUPPORTED, "has no memory");
  ck_invalid(ek_dlpack_export(NULL, &t.owner, NULL), "NULL");
  ck_invalid(ek_dlpack_export(&out, &x, NULL), "absent");
  ck_kept(ek_tensor_create(&counted, counts, EK_MEMORY_INPUTS, EK_F32, CK_SHAPE(2)), counted);
  ck_fails(ek_dlpack_export(&out, &counted, NULL), EK_ERR_UNSUPPORTED, "has no memory");
}

static const struct {
  ek_type type;
  int code, bits;
} types[] = {{EK_F32, EK_DLPACK_FLOAT, 32}, {EK_F64, EK_DLPACK_FLOAT, 64},
             {EK_F16, EK_DLPACK_FLOAT, 16}, {EK_BF16, EK_DLPACK_BFLOAT, 16},
             {EK_I32, EK_DLPACK_INT, 32},   {EK_I64, EK_DLPACK_INT, 64}};

/* There and back on each type; the struct keeps the memory when the tensor is gone. */
CK_LOOP(an_exported_tensor_comes_back, sizeof types / sizeof types[0]) {
  ek_group *group = ck_open("cpu:2", 1);
  ek_device *device = ek_group_device(group, 1);
  ek_tensor x = {0}, y = {0};
  ck_ok(ek_tensor_create(&x, device, EK_MEMORY_OUTPUTS, types[_i].type, CK_SHAPE(2, 3, 5)));
  CK_GOT(ek_dlpack *, out, ek_dlpack_export(&out, &x, NULL));
  ck_assert_int_eq(out->major * 10 + out->minor, 10);
  ck_assert_int_eq(out->tensor.code * 100 + out->tensor.bits,
                   types[_i].code * 100 + types[_i].bits);
  ck_assert_int_eq(out->tensor.rank, 3);
  ck_assert_int_eq(out->tensor.strides[0] * 100 + out->tensor.strides[1] * 10 +
                       out->tensor.strides[2], 1551);
  ck_assert_int_eq(ek_tensor_holders(&x), 2);
  const void *data = x.data;
  ek_tensor_free(&x);
  ck_ok(ek_dlpack_import(&y, device, out, NULL));
  ck_assert_ptr_eq(y.data, data);
  ck_assert_int_eq(y.type, types[_i].type);
  ck_assert_uint_eq(ek_tensor_bytes(&y), 30 * ek_type_size(types[_i].type));
  ek_tensor_free(&y); /* their deleter is ours */
}

/* Host memory is described; rank 0 has no strides to read. */
CK_TEST(host_memory_is_exported) {
  float value = 3;
  CK_GOT(ek_tensor, host, ek_tensor_host(&host, &value, EK_F32, 0, NULL));
  CK_GOT(ek_dlpack *, out, ek_dlpack_export(&out, &host, NULL));
  ck_assert_int_eq(out->tensor.device_type, EK_DLPACK_CPU);
  ck_assert_int_eq(out->tensor.rank, 0);
  ck_assert_ptr_eq(out->tensor.data, &value);
  out->deleter(out);
}

CK_SUITE("dlpack")
