/*
 * check_safetensors.c - files of tensors: what is written is read, what others write too, and
 * nothing that is damaged is taken for whole.
 */
#include "ck_folder.h"
#include "ek_check.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TENSORS = 6, ELEMENTS = 6 };

static const char *folder, *path;

static void make_folder(void) {
  folder = ck_folder();
  path = ck_file(folder, "some.safetensors");
}

/* Left out where the library was built without files. */
static bool no_files(void) {
  ek_safetensors_writer *writer = NULL;
  const ek_status status = ek_safetensors_create(&writer, path, NULL, 0, NULL, 0);
  ek_safetensors_writer_free(writer);
  return ck_no_files(status);
}

/* Tests of a library with files. */
#define FILE_LOOP(name, cases)                                                                     \
  static void name##_with(int _i);                                                                 \
  CK_LOOP(name, cases) {                                                                           \
    if (!no_files()) name##_with(_i);                                                              \
  }                                                                                                \
  static void name##_with(int _i CK_ATTRIBUTE_UNUSED)

/* ---- a file of every type ---- */

static const float f32[ELEMENTS] = {1.5f, -2.0f, 0.0f, -0.0f, 3e38f, 1e-45f};
static const double f64[ELEMENTS] = {1.5, -2.0, 1e300, -0.0, 0.1, 5e-324};
static const uint16_t f16[ELEMENTS] = {0x3C00, 0xBC00, 0x0001, 0x7C00, 0x8000, 0x7BFF};
static const uint16_t bf16[ELEMENTS] = {0x3F80, 0xBF80, 0x0001, 0x7F80, 0x8000, 0x7F7F};
static const int32_t i32[ELEMENTS] = {0, -1, 2147483647, -2147483647 - 1, 4, 5};
static const int64_t i64[ELEMENTS] = {0, -1, INT64_MAX, INT64_MIN, 4, 5};

static const struct {
  const char *name;
  ek_type type;
  const void *data;
} written[TENSORS] = {
    {"blocks.0.weight", EK_F32, f32},
    {"double \"quoted\"", EK_F64, f64},
    {"half\\\x1f", EK_F16, f16},
    {"bfloat", EK_BF16, bf16},
    {"größe", EK_I32, i32},
    {"long", EK_I64, i64},
};

static size_t bytes_of(size_t i) { return ELEMENTS * ek_type_size(written[i].type); }

static void list_entries(ek_safetensors_entry *entries) {
  for (size_t i = 0; i < TENSORS; i++) {
    entries[i] = (ek_safetensors_entry){
        .name = written[i].name, .like = {.type = written[i].type, .rank = 2, .shape = {2, 3}}};
  }
}

static const ek_safetensors_pair pairs[] = {{"step", "12"}, {"who", "check \"safetensors\" \\\n"}};

/* In pieces of 5 bytes if asked to. */
static ek_status write_all(bool pieces) {
  ek_safetensors_entry entries[TENSORS];
  ek_safetensors_writer *writer = NULL;
  list_entries(entries);
  EK_TRY(ek_safetensors_create(&writer, path, entries, TENSORS, pairs, 2));
  ek_status status = EK_OK;
  for (size_t i = TENSORS; i-- > 0 && status == EK_OK;) {
    const size_t bytes = bytes_of(i), step = pieces ? 5 : bytes;
    for (size_t done = 0; done < bytes && status == EK_OK; done += step) {
      status = ek_safetensors_write(writer, i, (const char *)written[i].data + done,
                                    bytes - done < step ? bytes - done : step);
    }
  }
  if (status == EK_OK) status = ek_safetensors_finish(writer);
  ek_safetensors_writer_free(writer);
  return status;
}

static ek_status read_all(void) {
  ek_safetensors *file = NULL;
  EK_TRY(ek_safetensors_open(&file, path));
  ek_status status = EK_OK;
  for (size_t i = 0; i < TENSORS && status == EK_OK; i++) {
    char data[ELEMENTS * 8];
    ek_tensor host = {.data = data, .type = written[i].type, .rank = 1, .shape = {ELEMENTS}};
    memset(data, 0xA5, sizeof data);
    status = ek_safetensors_read(&host, file, written[i].name);
    if (status == EK_OK) ck_assert_mem_eq(data, written[i].data, bytes_of(i));
  }
  ek_safetensors_free(file);
  return status;
}

FILE_LOOP(what_is_written_is_read, 2) {
  ck_ok(write_all(_i == 1));
  ck_ok(read_all());
  CK_SCOPED(ek_safetensors *, file, ek_safetensors_open(&file, path));
  ck_assert_uint_eq(ek_safetensors_count(file), TENSORS);
  ck_assert(ek_safetensors_has_checksums(file));
  ck_assert_str_eq(ek_safetensors_value(file, "who"), pairs[1].value);
  ck_assert_ptr_null(ek_safetensors_value(file, "nobody"));
  ck_assert_ptr_null(ek_safetensors_find(file, "nobody"));
  ck_assert_ptr_null(ek_safetensors_at(file, TENSORS));
  size_t size = 8;
  for (size_t i = 0; i < TENSORS; i++) { /* falling sizes of types */
    const ek_safetensors_entry *entry = ek_safetensors_at(file, i);
    ck_assert_ptr_eq(ek_safetensors_find(file, entry->name), entry);
    ck_assert_int_eq(entry->like.rank, 2);
    ck_assert_int_eq(entry->like.shape[1], 3);
    ck_assert_uint_le(ek_type_size(entry->like.type), size);
    size = ek_type_size(entry->like.type);
  }
}

/* ---- a file from elsewhere, byte for byte ---- */

static void put_file(const char *header, size_t data) {
  const uint64_t length = strlen(header);
  CK_HELD(uint8_t *, bytes, ck_array(8 + length + data, 1));
  for (size_t i = 0; i < 8; i++) bytes[i] = (uint8_t)(length >> 8 * i);
  memcpy(bytes + 8, header, length);
  for (size_t i = 0; i < data; i++) bytes[8 + length + i] = (uint8_t)i;
  ck_write_file(path, bytes, 8 + length + data);
}

FILE_LOOP(other_programs_files_are_read, 1) {
  int32_t data[4] = {0};
  ek_tensor host = {.data = data, .type = EK_I32, .rank = 1, .shape = {2}};
  put_file("{\"b\":{\"shape\":[0,7],\"data_offsets\":[8,8],\"dtype\":\"F32\"},\n"
           " \"a\":{\"dtype\":\"I32\",\"shape\":[2,1],\"data_offsets\":[0,8]},"
           "\"f8\":{\"dtype\":\"F8_E4M3\",\"shape\":[],\"data_offsets\":[8,9]}}      ",
           9);
  CK_SCOPED(ek_safetensors *, file, ek_safetensors_open(&file, path));
  ck_assert(!ek_safetensors_has_checksums(file));
  ck_ok(ek_safetensors_read(&host, file, "a"));
  ck_assert_int_eq(data[0], 0x03020100);
  ck_assert_int_eq(data[1], 0x07060504);
  ck_fails(ek_safetensors_read(&host, file, "f8"), EK_ERR_TYPE, "tensor f8: it is F8_E4M3");
  ck_fails(ek_safetensors_read(&host, file, "b"), EK_ERR_TYPE, "b");
  ck_fails(ek_safetensors_read(&host, file, "c"), EK_ERR_NOT_FOUND, "no tensor named c");
  host.shape[0] = 3;
  ck_fails(ek_safetensors_read(&host, file, "a"), EK_ERR_SHAPE, "tensor a has rank 2");
  host = (ek_tensor){.data = NULL, .type = EK_F32, .rank = 2, .shape = {0, 7}};
  ck_ok(ek_safetensors_read(&host, file, "b"));
}

#define T(name, type, shape, from, to)                                                             \
  "\"" name "\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":[" #from "," #to "]}"

FILE_LOOP(what_does_not_fit_is_refused, 1) {
  static const struct {
    const char *header;
    size_t data;
    const char *says;
  } files[] = {
      {"", 4, "not a safetensors file"},
      {"[]", 0, "not a safetensors file"},
      {"{", 0, "its header cannot be read"},
      {"{} x", 0, "its header cannot be read"},
      {"{\"a\":{}}", 0, "tensor a: it has no type"},
      {"{\"a\":3}", 0, "tensor a: it has no type"},
      {"{\"\":{\"dtype\":\"F32\"}}", 0, "a tensor has no name"},
      {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "tensor a: it has no shape"},
      {"{" T("a", "F32", "[1]", 0, 5) "}", 5, "tensor a: its byte length does not match"},
      {"{" T("a", "F4", "[3]", 0, 1) "}", 1, "tensor a: its byte length"}, /* 12 bits */
      {"{" T("a", "F32", "[-1]", 0, 4) "}", 4, "tensor a: a dimension of its shape"},
      {"{" T("a", "F32", "[1.0]", 0, 4) "}", 4, "tensor a: a dimension of its shape"},
      {"{" T("a", "F32", "[4294967296,4294967296]", 0, 0) "}", 0, "tensor a: a dimension"},
      {"{" T("a", "F32", "[4611686018427387904]", 0, 0) "}", 0, "tensor a: its byte"},
      {"{" T("a", "F32", "[1]", 0, 4) "}", 3, "tensor a: its byte range"},
      {"{" T("a", "F32", "[1]", 4, 0) "}", 4, "tensor a: its byte range"},
      {"{" T("a", "F32", "[1]", -4, 0) "}", 4, "tensor a: its byte range"},
      {"{" T("a", "F32", "[1]", 0, 99999999999999999999) "}", 4, "its header cannot be read"},
      {"{" T("a", "F32", "[1]", 0, 4) "," T("a", "F32", "[1]", 4, 8) "}", 8, "cannot be read"},
      {"{" T("a", "F32", "[1]", 0, 4) "," T("b", "F32", "[1]", 2, 6) "}", 6, "overlaps another"},
      {"{" T("a", "F32", "[1]", 0, 4) "," T("b", "F32", "[1]", 5, 9) "}", 9, "belong to no tensor"},
      {"{" T("a", "F32", "[1]", 4, 8) "}", 8, "belong to no tensor"},
      {"{" T("a", "F32", "[1]", 0, 4) "}", 5, "longer than its tensors"},
      {"{" T("a", "NEW", "[1]", 0, 4) ",\"__metadata__\":[]}", 4, "is not an object"},
      {"{\"__metadata__\":{\"k\":1}}", 0, "is not a string"},
      {"{\"__metadata__\":{\"evenkeel.xxh3\":\"0123\"}}", 0, "its checksum differs"},
      {"{\"__metadata__\":{\"evenkeel.xxh3\":\"0123456789abcdef\"}}", 0, "its checksum differs"},
      {"{\"__metadata__\":{\"evenkeel.xxh2\":\"\",\"evenkeel.xxh3/a\":\"\"}}", 0,
       "not of its header"},
      {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "\"__metadata__\" occurs twice"},
      {"{\"__metadata__\":{\"k\":\"1\",\"j\":\"\",\"k\":\"2\"}}", 0, "\"k\" occurs twice"},
      {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", 0, "\"dtype\" occurs twice"},
      {"{\"\xff\":{}}", 0, "its header cannot be read"},
      {"{\"\xed\xa0\x80\":{}}", 0, "invalid JSON at byte 2"},
      {"{\"a\nb\":{}}", 0, "its header cannot be read"},
      {"{\"a\\u0000\":{}}", 0, "its header cannot be read"},
      {"{\"a\\ud800\":{}}", 0, "its header cannot be read"},
      {"{\"a\\udc00\":{}}", 0, "its header cannot be read"},
      {"{\"a\\x\":{}}", 0, "its header cannot be read"},
      {"{\"__metadata__\":{},}", 0, "its header cannot be read"},
      {"{,\"a\":{}}", 0, "its header cannot be read"},
      {"{\"a\" {}}", 0, "its header cannot be read"},
      {"{\"a\":{\"x\":[1,]}}", 0, "its header cannot be read"},
      {"{\"a\":{\"x\":[1 2]}}", 0, "its header cannot be read"},
      {"{\"a\":{\"x\":[1}}}", 0, "its header cannot be read"},
      {"{\"a\":{\"x\":{\"y\"}}}", 0, "its header cannot be read"},
      {"{\"a\":{\"x\":01}}", 0, "its header cannot be read"},
      {"{\"a\":{\"x\":-}}", 0, "its header cannot be read"},
      {"{\"a\":{\"x\":1.}}", 0, "its header cannot be read"},
      {"{\"a\":{\"x\":1e}}", 0, "its header cannot be read"},
      {"{\"a\":{\"x\":nul}}", 0, "its header cannot be read"},
      {"{\"a\":{\"x\":[[", 0, "its header cannot be read"},
  };
  ek_safetensors *file = NULL;
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    put_file(files[i].header, files[i].data);
    ck_fails(ek_safetensors_open(&file, path), EK_ERR_CORRUPT, files[i].says);
    ck_assert(ck_contains(ek_error_message(), path));
    ck_assert_ptr_null(file);
  }
}

/* Refused for its length, before memory is taken for it; the file has as many bytes. */
FILE_LOOP(no_header_is_that_long, 1) {
  enum { LONGEST = 100000000 };
  ek_safetensors *file = NULL;
  for (int more = 0; more < 2; more++) {
    put_file("", 0);
    const uint32_t length = LONGEST + (uint32_t)more;
    const int bytes = open(path, O_WRONLY);
    const uint8_t prefix[] = {(uint8_t)length, (uint8_t)(length >> 8), (uint8_t)(length >> 16),
                              (uint8_t)(length >> 24)};
    ck_assert_int_eq(pwrite(bytes, prefix, sizeof prefix, 0), sizeof prefix);
    ck_assert_int_eq(ftruncate(bytes, (off_t)length + 8), 0);
    ck_assert_int_eq(close(bytes), 0);
    ck_fails(ek_safetensors_open(&file, path), EK_ERR_CORRUPT,
             more ? "a header of 100000001 bytes" : "not a safetensors file");
  }
}

/* A tensor of more dimensions than the library has is there, and cannot be read as anything. */
FILE_LOOP(nine_dimensions_are_too_many, 1) {
  float number = 0;
  ek_tensor host = {.data = &number, .type = EK_F32};
  put_file("{" T("a", "F32", "[1,1,1,1,1,1,1,1,1]", 0, 4) "," T("b", "F32", "[]", 4, 8) "}", 8);
  CK_SCOPED(ek_safetensors *, file, ek_safetensors_open(&file, path));
  ck_ok(ek_safetensors_read(&host, file, "b"));
  ck_fails(ek_safetensors_read(&host, file, "a"), EK_ERR_TYPE, "more than 8 dimensions");
}

/* Other members may hold anything that is JSON. */
FILE_LOOP(what_others_add_is_passed_over, 1) {
  put_file("{ \"gr\\u00f6\\u00DFe \\ud83d\\ude00\\n\\/\" : {\"dtype\":\"U8\",\"more\":[{}, [] "
           ",{\"a\":[1,-0.5e+3,"
           "{\"b\":null}],\"c\":{}},true,false,\"x\\\"\"],\"shape\":[2],\"data_offsets\":[0,2],"
           "\"z\":-0},"
           "\"__metadata__\":{\"k\":\"\\u00e9\\t\"}}\n",
           2);
  CK_SCOPED(ek_safetensors *, file, ek_safetensors_open(&file, path));
  ck_assert_uint_eq(ek_safetensors_count(file), 1);
  ck_assert_str_eq(ek_safetensors_at(file, 0)->name, "größe \xf0\x9f\x98\x80\n/");
  ck_assert_str_eq(ek_safetensors_value(file, "k"), "é\t");
}

/* ---- small stacks ---- */

enum { STACK = 24 << 10, BEHIND = 256 << 10, MARK = 0x5C, LEVELS = 50000 };

static ek_status opened_apart;

static void *open_apart(void *unused) {
  ek_safetensors *file = NULL;
  (void)unused;
  opened_apart = ek_safetensors_open(&file, path);
  ek_safetensors_free(file);
  return NULL;
}

/* The bytes of its stack that a thread has written to, by a pattern that was there before. */
static size_t stack_used_by(void *(*function)(void *)) {
  pthread_attr_t attributes;
  pthread_t thread;
  unsigned char *stack = aligned_alloc(4096, BEHIND);
  ck_assert_ptr_nonnull(stack);
  memset(stack, MARK, BEHIND);
  ck_assert_int_eq(pthread_attr_init(&attributes), 0);
  ck_assert_int_eq(pthread_attr_setstack(&attributes, stack, BEHIND), 0);
  ck_assert_int_eq(pthread_create(&thread, &attributes, function, NULL), 0);
  ck_assert_int_eq(pthread_join(thread, NULL), 0);
  (void)pthread_attr_destroy(&attributes);
  size_t untouched = 0;
  while (untouched < BEHIND && stack[untouched] == MARK) untouched++;
  free(stack);
  return BEHIND - untouched;
}

/* However deep a header nests, the caller's stack has room for it. */
CK_TEST(nesting_takes_no_stack) {
  static char header[2 * LEVELS + 64];
  static const int levels[] = {1, 60, 2000, LEVELS};
  if (no_files() || CK_ASAN || CK_TSAN) return;
  for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
    char *to = header + sprintf(header, "{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":"
                                        "[0,0],\"x\":");
    memset(to, '[', (size_t)levels[i]);
    memset(to + levels[i], ']', (size_t)levels[i]);
    (void)strcpy(to + 2 * levels[i], "}}");
    put_file(header, 0);
    const size_t used = stack_used_by(open_apart);
    ck_assert_int_eq(opened_apart, i < 2 ? EK_OK : EK_ERR_CORRUPT);
    ck_assert_msg(used < STACK, "%d levels: %zu bytes of the stack", levels[i], used);
  }
}

FILE_LOOP(what_cannot_be_opened_says_why, 1) {
  ek_safetensors *file = NULL;
  ek_safetensors_writer *writer = NULL;
  ck_fails(ek_safetensors_open(&file, path), EK_ERR_NOT_FOUND, "No such file");
  ck_fails(ek_safetensors_open(&file, folder), EK_ERR_IO, "not a regular file");
  ck_invalid(ek_safetensors_open(&file, NULL), "path is NULL");
  ck_assert_int_eq(mkfifo(path, 0600), 0);
  ck_fails(ek_safetensors_open(&file, path), EK_ERR_IO, "not a regular file");
  ck_fails(ek_safetensors_create(&writer, path, NULL, 0, NULL, 0), EK_ERR_IO,
           "not a regular file"); /* nor would a file of weights replace /dev/null */
  ck_assert_int_eq(unlink(path), 0);
  ck_fails(ek_safetensors_create(&writer, ck_file(folder, "none/a"), NULL, 0, NULL, 0),
           EK_ERR_NOT_FOUND, "none/a.tmp");
  ck_ok(ek_safetensors_create(&writer, path, NULL, 0, NULL, 0));
  ck_assert_int_eq(mkdir(path, 0700), 0);
  ck_fails(ek_safetensors_finish(writer), EK_ERR_IO, "cannot be given this name");
  ck_fails(ek_safetensors_finish(writer), EK_ERR_STATE, "finished");
  ek_safetensors_writer_free(writer);
  ck_assert_int_eq(rmdir(path), 0);
  ek_safetensors_writer_free(NULL);
  ek_safetensors_free(NULL);
  ck_assert_uint_eq(ek_safetensors_count(NULL), 0);
  ck_assert_ptr_null(ek_safetensors_find(NULL, "a"));
}

FILE_LOOP(a_file_is_not_there_before_it_is_whole, 1) {
  ek_safetensors_entry entries[TENSORS];
  ek_safetensors_writer *writer = NULL;
  const char byte = 0;
  list_entries(entries);
  ck_ok(ek_safetensors_create(&writer, path, entries, TENSORS, NULL, 0));
  ck_invalid(ek_safetensors_write(writer, TENSORS, &byte, 1), "number 6");
  ck_invalid(ek_safetensors_write(writer, 0, NULL, 1), "data is NULL");
  ck_fails(ek_safetensors_write(writer, 0, &byte, 25), EK_ERR_SHAPE, "more bytes were written");
  ck_ok(ek_safetensors_write(writer, 0, f32, sizeof f32));
  ck_fails(ek_safetensors_write(writer, 0, &byte, 1), EK_ERR_SHAPE, "more bytes were written");
  ck_fails(ek_safetensors_finish(writer), EK_ERR_STATE, "is not complete");
  ck_assert_int_ne(access(path, F_OK), 0);
  ek_safetensors_writer_free(writer);
  ck_ok(write_all(false)); /* an old file stays until there is a new one */
  ck_ok(ek_safetensors_create(&writer, path, entries, TENSORS, NULL, 0));
  ck_ok(read_all());
  ek_safetensors_writer_free(writer);
  ck_ok(read_all());
  entries[3].name = entries[0].name;
  ck_invalid(ek_safetensors_create(&writer, path, entries, TENSORS, NULL, 0), "the same name");
  const char *const bad[] = {"", "__metadata__", "\xff", NULL};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    entries[3].name = bad[i];
    ck_invalid(ek_safetensors_create(&writer, path, entries, TENSORS, NULL, 0), "name");
  }
  const ek_safetensors_pair own = {"evenkeel.xxh3/x", ""}, same[] = {pairs[0], pairs[1], pairs[0]};
  ck_invalid(ek_safetensors_create(&writer, path, NULL, 0, same, 3),
             "two pairs of the header have the same key, \"step\"");
  ck_invalid(ek_safetensors_create(&writer, path, NULL, 0, &own, 1), "reserved");
  ck_ok(read_all());
}

/* ---- damage ---- */

/* A good file's bytes, and room for one more. */
static uint8_t *make_image(size_t *size) {
  ck_ok(write_all(false));
  return (uint8_t *)ck_read_file(size, path);
}

/* Refused with the file's name: also where the key of the header's checksum is not what it was. */
static void damaged(void) {
  ek_safetensors *file = NULL;
  ek_error_clear();
  ek_status status = ek_safetensors_open(&file, path);
  ek_safetensors_free(file);
  if (status == EK_OK) {
    status = read_all();
    ck_ok(ek_safetensors_open(&file, path));
    ck_assert(ek_safetensors_has_checksums(file));
    ck_assert_int_eq(ek_safetensors_check(file), status);
    ek_safetensors_free(file);
  }
  ck_assert_msg(status == EK_ERR_CORRUPT, "%s: %s", ek_status_name(status), ek_error_message());
  ck_assert(ck_contains(ek_error_message(), path));
}

FILE_LOOP(every_bit_is_guarded, 1) {
  size_t size = 0;
  uint8_t *image = make_image(&size);
  for (size_t bit = 0; bit < 8 * size; bit++) {
    if (!ck_part((int)bit)) continue;
    image[bit / 8] ^= (uint8_t)(1u << bit % 8);
    ck_write_file(path, image, size);
    damaged();
    image[bit / 8] ^= (uint8_t)(1u << bit % 8);
  }
  ck_write_file(path, image, size);
  ck_ok(read_all());
}

FILE_LOOP(every_length_is_guarded, 1) {
  size_t whole = 0;
  const uint8_t *image = make_image(&whole);
  for (size_t size = 0; size <= whole + 1; size++) {
    if (size == whole) continue;
    ck_write_file(path, image, size);
    damaged();
  }
}

/* Nothing is read outside, and nothing that was damaged comes through. */
FILE_LOOP(headers_are_read_without_belief, 1) {
  struct ck_random random = ck_random_start(1);
  size_t size = 0;
  const uint8_t *image = make_image(&size);
  uint8_t *copy = ck_array(size, 1);
  const int64_t header = 8 + image[0] + 256 * image[1];
  for (int i = 0; i < 10000; i++) {
    if (!ck_part(i)) continue;
    memcpy(copy, image, size);
    for (int64_t n = ck_random_integer(&random, 1, 4); n > 0; n--) {
      static const char likely[] = "{}[]\",:0123456789-e.";
      const size_t at = (size_t)ck_random_integer(&random, 0, header - 1);
      copy[at] = ck_random_integer(&random, 0, 1) == 0
                     ? (uint8_t)likely[ck_random_integer(&random, 0, sizeof likely - 2)]
                     : (uint8_t)ck_random_next(&random);
    }
    if (memcmp(copy, image, size) == 0) continue;
    ck_write_file(path, copy, size);
    damaged();
  }
}

/* ---- numbers ---- */

FILE_LOOP(numbers_of_16_bits_are_widened_exactly, 4) {
  enum { ALL = 5 << 16 }; /* each one five times: read in more pieces than one */
  const ek_type type = _i % 2 == 0 ? EK_F16 : EK_BF16, wide = _i < 2 ? EK_F32 : EK_F64;
  const ek_safetensors_entry entry = {"all", {.type = type, .rank = 1, .shape = {ALL}}};
  uint16_t *numbers = ck_array(ALL, sizeof *numbers);
  double *read = ck_array(ALL, sizeof *read);
  for (int i = 0; i < ALL; i++) numbers[i] = (uint16_t)i;
  CK_GOT(ek_safetensors_writer *, writer, ek_safetensors_create(&writer, path, &entry, 1, NULL, 0));
  ck_ok(ek_safetensors_write(writer, 0, numbers, ALL * sizeof *numbers));
  ck_ok(ek_safetensors_finish(writer));
  ek_safetensors_writer_free(writer);
  CK_SCOPED(ek_safetensors *, file, ek_safetensors_open(&file, path));
  ek_tensor host = {.data = read, .type = wide, .rank = 1, .shape = {ALL}};
  ck_ok(ek_safetensors_read(&host, file, "all"));
  for (int i = 0; i < ALL; i++) {
    const double want = ck_half(type, (uint16_t)i);
    const double got = wide == EK_F64 ? read[i] : (double)((float *)(void *)read)[i];
    ck_assert_msg(isnan(want) ? isnan(got) : memcmp(&got, &want, sizeof got) == 0,
                  "%s %04x: %g, not %g", ek_type_name(type), (unsigned)i, got, want);
  }
}

FILE_LOOP(f64_becomes_the_nearest_f32, 1) {
  float read[ELEMENTS];
  double wide[ELEMENTS];
  ck_ok(write_all(false));
  CK_SCOPED(ek_safetensors *, file, ek_safetensors_open(&file, path));
  ek_tensor host = {.data = read, .type = EK_F32, .rank = 2, .shape = {2, 3}};
  ck_ok(ek_safetensors_read(&host, file, "double \"quoted\""));
  for (int i = 0; i < ELEMENTS; i++) ck_assert(read[i] == (float)f64[i]);
  host = (ek_tensor){.data = wide, .type = EK_F64, .rank = 2, .shape = {2, 3}};
  ck_ok(ek_safetensors_read(&host, file, "blocks.0.weight"));
  for (int i = 0; i < ELEMENTS; i++) ck_assert(wide[i] == (double)f32[i]);
  ck_fails(ek_safetensors_read(&host, file, "long"), EK_ERR_TYPE, "tensor long: it is I64");
}

FILE_LOOP(a_part_is_read, 1) {
  static const char name[] = "blocks.0.weight";
  double wide[ELEMENTS];
  ck_ok(write_all(false));
  CK_SCOPED(ek_safetensors *, file, ek_safetensors_open(&file, path));
  for (int first = 0; first <= ELEMENTS; first++) {
    for (int count = 0; count <= ELEMENTS - first; count++) {
      ek_tensor host = {.data = wide, .type = EK_F64, .rank = 1, .shape = {count}};
      for (int i = 0; i < ELEMENTS; i++) wide[i] = -77;
      ck_ok(ek_safetensors_read_part(&host, file, name, first));
      for (int i = 0; i < ELEMENTS; i++) {
        ck_assert(wide[i] == (i < count ? (double)f32[first + i] : -77));
      }
    }
  }
  ek_tensor host = {.data = wide, .type = EK_F64, .rank = 1, .shape = {2}};
  ck_fails(ek_safetensors_read_part(&host, file, name, ELEMENTS - 1), EK_ERR_SHAPE,
           "the range is outside its 6 elements");
  ck_fails(ek_safetensors_read_part(&host, file, name, -1), EK_ERR_SHAPE, "outside");
  ck_fails(ek_safetensors_read_part(&host, file, name, INT64_MAX), EK_ERR_SHAPE, "outside");
  ck_fails(ek_safetensors_read_part(&host, file, "who", 0), EK_ERR_NOT_FOUND, "named who");
  ck_invalid(ek_safetensors_read_part(NULL, file, name, 0), "host is NULL");
  ck_fails(ek_safetensors_read_part(&host, file, "long", 0), EK_ERR_TYPE, "long");
  host = (ek_tensor){.data = wide, .type = EK_F64, .rank = 2, .shape = {2, 1}};
  ck_fails(ek_safetensors_read_part(&host, file, name, 0), EK_ERR_SHAPE, "");
}

/* ---- memory that is not there ---- */

FILE_LOOP(every_allocation_fails_once, 1) {
  uint64_t n = 0;
  while (ck_host_fails(&n, write_all(true))) ck_assert_int_ne(access(path, F_OK), 0);
  n = 0;
  while (ck_host_fails(&n, read_all())) {
  }
}

CK_SUITE_WITH("safetensors", make_folder, NULL)
