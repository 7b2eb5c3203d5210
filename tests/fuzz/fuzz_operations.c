/*
 * fuzz_operations.c - calls of public operations with operands that may not fit.
 *
 * Every operand is a view into the middle of a larger block, between two guards. The input chooses
 * sizes (also 0), contents, and up to three misfits: another type, shape, rank or device, an
 * operand that is absent, a tensor used twice, two that overlap, a parameter out of range. Then
 *
 *   - a failure has a status and a message, and no byte of any operand has changed;
 *   - a success leaves guards and sources as they were;
 *   - the same call on operands that are apart, between other guards, gives the same bits: nothing
 *     is read that does not belong to the call, and a destination that may be a source may be it;
 *   - where the contents are tame, the call in f64, which other kernels compute, gives nearly the
 *     same; and of 16 bits the call in f32, with the same numbers;
 *   - columns that only make rows longer are not read, and written as the operation says;
 *   - `plan` says what `cpu` says.
 */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "operations.h"
#include "operations_piece.h"

enum { GUARD = 64 };

struct call {
  const struct operation *operation;
  struct parameters parameters;
  ek_group *group;
  ek_stream *stream;
  struct piece piece[MOST_OPERANDS];
  ek_tensor *t[MOST_OPERANDS]; /* NULL, or &piece[..].given */
  int same[MOST_OPERANDS];     /* the operand whose memory it uses, itself if its own */
  bool apart;                  /* no operand is in the memory of another */
  int64_t padded_from;         /* where the padding of rows begins; 0: none, or one unknown */
  bool tame;                   /* small finite contents and parameters */
};

/* ---- decisions: sizes, contents, parameters ---- */

static int64_t read_size(struct fuzz_input *input) {
  const uint8_t byte = fuzz_byte(input);
  return byte < 192 ? byte % 8 : byte % 70;
}

static struct sizes read_sizes(struct fuzz_input *input, bool heads) {
  struct sizes it;
  it.r = read_size(input);
  it.c = read_size(input);
  it.k = read_size(input);
  it.e = read_size(input);
  it.p = 1 + fuzz_choice(input, 5);
  it.b = fuzz_choice(input, 4);
  it.t = read_size(input);
  it.h = 1 + fuzz_choice(input, 4);
  it.j = fuzz_byte(input) % MOST_TERMS;
  const uint8_t padding = fuzz_byte(input);
  it.r -= it.r % it.p;
  if (heads) it.c = it.h * (it.c % 20);
  it.w = it.c + (it.c == 0 ? 0 : padding % 9);
  return it;
}

/* Rows of no columns, more than can be counted in any time; where no operand has rows alone. */
static void make_endless(struct sizes *sizes, const struct operation *operation) {
  for (int i = 0; i < operation->count; i++) {
    if (strchr(operation->operand[i].shape, 'C') == NULL) return;
  }
  sizes->r = INT64_C(1) << 58;
  sizes->c = 0;
}

static double read_parameter(struct fuzz_input *input, bool *tame) {
  const uint8_t byte = fuzz_byte(input);
  if (byte < 224) return (byte % 32) / 32.0;
  const double value = fuzz_real(input);
  *tame = *tame && fabs(value) <= 256;
  return value;
}

static void read_parameters(struct call *call, const struct sizes *sizes,
                            struct fuzz_input *input) {
  static const int64_t odd[] = {0, -1, INT64_MIN, INT64_MAX, 1 << 20, 3};
  static const int odd_heads[] = {0, -1, INT_MIN, INT_MAX, 1 << 20, 3};
  struct parameters *p = &call->parameters;
  for (size_t i = 0; i < 6; i++) p->real[i] = read_parameter(input, &call->tame);
  p->chance = read_parameter(input, &call->tame);
  p->epsilon = 1e-3 + read_parameter(input, &call->tame);
  p->period = sizes->p;
  p->step = 1 + fuzz_byte(input) % 4;
  p->classes = sizes->w > sizes->c ? sizes->c : 0;
  p->heads = (int)sizes->h;
  p->activation = (ek_activation)fuzz_choice(input, 3);
  p->ignore_index = fuzz_one_in(input, 2) ? 0 : -100;
  for (size_t i = 0; i < 3; i++) p->flag[i] = fuzz_one_in(input, 2);
  p->key.seed = fuzz_byte(input);
  p->key.step = fuzz_byte(input);
  p->key.stream = fuzz_byte(input);
  for (size_t i = 0; i < MOST_TERMS; i++) p->coefficients[i] = 1 + (double)(i % 5) / 4;
  if (!fuzz_one_in(input, 16)) return;
  const int pick = fuzz_choice(input, 8);
  p->without_terms = pick == 5;
  if (pick == 6) p->classes = odd[fuzz_choice(input, 6)];
  if (pick == 7) p->activation = (ek_activation)odd_heads[fuzz_choice(input, 6)];
  if (pick == 0) p->period = odd[fuzz_choice(input, 6)];
  if (pick == 1) p->step = odd[fuzz_choice(input, 6)];
  if (pick == 2) p->first_sample = odd[fuzz_choice(input, 6)];
  if (pick == 3) p->heads = odd_heads[fuzz_choice(input, 6)];
  if (pick == 4) p->ignore_index = fuzz_one_in(input, 2) ? INT32_MIN : INT32_MAX;
}

/* ---- operands ---- */

/* Small numbers out of the input, repeated with a drift when they end. */
static void fill_content(struct call *call, int i, const struct sizes *sizes,
                         struct fuzz_input *input) {
  static unsigned char bytes[MOST_BYTES];
  const struct operand *operand = &call->operation->operand[i];
  const struct piece *piece = &call->piece[i];
  const int64_t count = count_of(piece);
  const uint8_t start = fuzz_byte(input), stride = fuzz_byte(input);
  const int64_t below = operand->index_below != 0 ? operation_size(sizes, operand->index_below) : 0;
  const bool wild = fuzz_one_in(input, 16);
  if (wild) call->tame = false;
  for (int64_t n = 0; n < count; n++) {
    const uint8_t byte = (uint8_t)(start + stride * n + n / 7);
    double value = ((int)(byte % 33) - 16) / 8.0;
    if (operand->not_negative) value = fabs(value);
    if (wild && n % 5 == 0) value = fuzz_real(input);
    const int32_t index = wild && n % 5 == 0 ? (int32_t)fuzz_int(input, INT32_MIN, INT32_MAX)
                          : below > 0        ? (int32_t)(byte % below)
                                             : 0;
    const float single = (float)value;
    const uint16_t half = wild && n % 5 == 0 ? (uint16_t)index : half_of(piece->type, value);
    switch (piece->type) {
    case EK_F32: memcpy(bytes + 4 * n, &single, 4); break;
    case EK_F64: memcpy(bytes + 8 * n, &value, 8); break;
    case EK_I32: memcpy(bytes + 4 * n, &index, 4); break;
    default: memcpy(bytes + 2 * n, &half, 2); break;
    }
  }
  upload(&piece->tensor, bytes);
}

static void describe_piece(struct call *call, int i, ek_type type, const struct sizes *sizes) {
  const struct operand *operand = &call->operation->operand[i];
  struct piece *piece = &call->piece[i];
  piece->type = operand->type != 0                    ? operand->type
                : operand->fuzzed != 0                ? operand->fuzzed
                : operand->sum && is_half(type)       ? EK_F32
                                                      : type;
  piece->rank = operand_shape(piece->shape, operand, sizes);
}

/* ---- misfits ---- */

/* Before the operand is made: it will be a legal tensor, but perhaps not a fitting one. */
static void change_description(struct piece *piece, struct fuzz_input *input) {
  static const ek_type types[] = {EK_F32, EK_F64, EK_BF16, EK_F16, EK_I32};
  const bool endless = piece->shape[0] > MOST_BYTES; /* stays without elements */
  switch (endless ? 0 : fuzz_choice(input, 5)) {
  case 0: piece->type = types[fuzz_choice(input, 5)]; break;
  case 1: /* a size */
    if (piece->rank > 0) {
      const int d = fuzz_choice(input, piece->rank);
      piece->shape[d] = read_size(input);
    }
    break;
  case 2: /* one more dimension of 1, which often fits */
    if (piece->rank == EK_MAX_RANK) break;
    memmove(piece->shape + 1, piece->shape, (size_t)piece->rank * sizeof piece->shape[0]);
    piece->shape[0] = 1;
    piece->rank++;
    break;
  case 3: /* all in one row */
    piece->shape[0] = count_of(piece);
    piece->rank = 1;
    break;
  case 4: /* a scalar */ piece->rank = 0; break;
  }
}

/* Is another operand in the memory of operand i? */
static bool lent(const struct call *call, int i) {
  for (int k = 0; k < call->operation->count; k++) {
    if (k != i && call->same[k] == i) return true;
  }
  return false;
}

/* Changes a struct after it was made. One in whose memory another begins a little later is left
 * alone: without it that one would write into its guards, by right. */
static void change_struct(struct call *call, int i, struct fuzz_input *input) {
  static const int64_t sizes[] = {-1, INT64_MIN, INT64_MAX, INT64_C(1) << 61};
  static const int ranks[] = {-1, EK_MAX_RANK + 1, INT_MIN, INT_MAX};
  ek_tensor *given = &call->piece[i].given;
  if (lent(call, i)) return;
  switch (fuzz_choice(input, 7)) {
  case 0: call->t[i] = NULL; break;
  case 1: memset(given, 0, sizeof *given); break;
  case 2: given->rank = ranks[fuzz_choice(input, 4)]; break;
  case 3: /* bytes that do not fit in 63 bits, or a negative size */
    given->rank = 2;
    given->shape[0] = sizes[fuzz_choice(input, 4)];
    given->shape[1] = 4;
    break;
  case 4: /* host memory */
    given->device = NULL;
    given->memory = NULL;
    break;
  case 5: given->type = (ek_type)(fuzz_one_in(input, 2) ? 0 : EK_I64 + 1 + fuzz_byte(input)); break;
  case 6: /* elements without memory; one without elements has an address, see tensor.h */
    if (ek_tensor_count(given) > 0) given->data = NULL;
    break;
  }
}

/* Operand i is where another one is, exactly or a little after it. */
static void change_place(struct call *call, int i, struct fuzz_input *input) {
  const int j = fuzz_choice(input, call->operation->count);
  const struct piece *other = &call->piece[j];
  if (i == j || call->t[i] == NULL || call->t[j] == NULL || !ek_tensor_exists(&other->given))
    return;
  if (call->same[i] != i || call->same[j] != j || lent(call, i)) return;
  ek_tensor given = other->tensor;
  if (fuzz_one_in(input, 3)) {
    const int64_t shift = 1 + fuzz_byte(input) % 2;
    if (count_of(other) != count_of(&call->piece[i]) || count_of(other) <= shift) return;
    given.data = (char *)given.data + ek_type_size(given.type) * (size_t)shift;
    call->apart = false;
  }
  call->piece[i].given = given;
  call->same[i] = j;
}

/* ---- what must be true ---- */

/* The first destination that is in the memory of operand i. */
static int destination_in(const struct call *call, int i) {
  for (int k = 0; k < call->operation->count; k++) {
    if (call->t[k] != NULL && call->same[k] == i && call->operation->operand[k].written) return k;
  }
  return -1;
}

/* On a failure nothing changed; on success only the elements of destinations. */
static void check_unchanged(const struct call *call, void *const *before, ek_status status) {
  for (int i = 0; i < call->operation->count; i++) {
    const struct piece *piece = &call->piece[i];
    const size_t all = ek_tensor_bytes(&piece->block), guard = size_before(piece);
    const char *why = status == EK_OK ? "a success" : ek_status_name(status);
    unsigned char *after = copy_block(piece);
    if (status != EK_OK || destination_in(call, i) < 0) {
      FUZZ_EXPECT(memcmp(before[i], after, all) == 0, "%s: %s of %s changed", why,
                  call->operation->operand[i].name, call->operation->name);
    } else {
      FUZZ_EXPECT(
          memcmp(before[i], after, guard) == 0 &&
              memcmp((unsigned char *)before[i] + all - guard, after + all - guard, guard) == 0,
          "%s of %s: written outside", call->operation->operand[i].name, call->operation->name);
    }
    free(after);
  }
}

/* Whether operand i has padding, in rows of which only the first columns count. */
static bool has_padding(const struct call *call, int i) {
  const char *shape = call->operation->operand[i].shape;
  return call->padded_from > 0 && strcmp(shape, "RW") == 0;
}

/* The padding of row r of the operand at `elements`. */
static unsigned char *padding_of(const struct call *call, int i, void *elements, int64_t r) {
  const struct piece *piece = &call->piece[i];
  const int64_t from = r * piece->shape[1] + call->padded_from;
  return (unsigned char *)elements + (size_t)from * ek_type_size(piece->type);
}

static size_t padding_size(const struct call *call, int i) {
  const struct piece *piece = &call->piece[i];
  return (size_t)(piece->shape[1] - call->padded_from) * ek_type_size(piece->type);
}

static void check_padding(const struct call *call, void *const *before) {
  for (int i = 0; i < call->operation->count; i++) {
    const int k = destination_in(call, i);
    if (k < 0 || !has_padding(call, i) || !has_padding(call, k)) continue;
    const size_t guard = size_before(&call->piece[i]), size = padding_size(call, i);
    unsigned char *after = copy_block(&call->piece[i]), *old = calloc(size + 1, 1);
    FUZZ_EXPECT(old != NULL, "the harness has no memory");
    for (int64_t r = 0; r < call->piece[i].shape[0]; r++) {
      if (!call->operation->operand[k].zero_padding) {
        memcpy(old, padding_of(call, i, (char *)before[i] + guard, r), size);
      }
      FUZZ_EXPECT(memcmp(padding_of(call, i, after + guard, r), old, size) == 0,
                  "the padding of %s of %s has changed, or is not 0",
                  call->operation->operand[k].name, call->operation->name);
    }
    free(after);
    free(old);
  }
}

/* Makes NaN of all padding that is not a destination: no kernel may read it. */
static void spoil_padding(const struct call *call) {
  static unsigned char bytes[MOST_BYTES];
  for (int i = 0; i < call->operation->count; i++) {
    if (!has_padding(call, i) || call->operation->operand[i].written) continue;
    const struct piece *piece = &call->piece[i];
    download(bytes, &piece->tensor);
    for (int64_t r = 0; r < piece->shape[0]; r++) {
      memset(padding_of(call, i, bytes, r), 0xff, padding_size(call, i));
    }
    upload(&piece->tensor, bytes);
  }
}

/* The same call with every operand in a block of its own; with `type` f64 what is f32 is f64, and
 * with f32 what has 16 bits is f32. EK_I32: all as it is. */
static void make_apart(struct call *other, const struct call *call, void *const *before,
                       ek_type type) {
  static unsigned char bytes[MOST_BYTES];
  *other = *call;
  for (int i = 0; i < call->operation->count; i++) {
    const struct piece *source = &call->piece[call->same[i]];
    struct piece *piece = &other->piece[i];
    const int64_t count = count_of(source);
    *piece = *source;
    piece->block = piece->tensor = (ek_tensor){0};
    if (type == EK_F64 && piece->type == EK_F32) piece->type = type;
    if (type == EK_F32 && is_half(piece->type)) piece->type = type;
    piece->guard = 16; /* so that the guard after an operand is at another distance */
    make_piece(piece, call->piece[i].block.device, 0x5a);
    const char *from = (const char *)before[call->same[i]] + size_before(source);
    if (piece->type == source->type) {
      memcpy(bytes, from, (size_t)count * ek_type_size(piece->type));
    } else {
      for (int64_t n = 0; n < count; n++) {
        const double value = element_of(source->type, from, n);
        const float single = (float)value;
        if (type == EK_F64) memcpy(bytes + 8 * n, &value, 8);
        if (type == EK_F32) memcpy(bytes + 4 * n, &single, 4);
      }
    }
    upload(&piece->tensor, bytes);
    other->same[i] = i;
    other->t[i] = call->t[i] == NULL ? NULL : &piece->given;
  }
}

static void free_pieces(struct call *call) {
  for (int i = 0; i < call->operation->count; i++) free_piece(&call->piece[i]);
}

static void check_bits(const struct call *call, const struct call *other) {
  static unsigned char left[MOST_BYTES], right[MOST_BYTES];
  for (int i = 0; i < call->operation->count; i++) {
    const int k = destination_in(call, i);
    if (k < 0) continue;
    download(left, &call->piece[i].tensor);
    download(right, &other->piece[k].tensor);
    FUZZ_EXPECT(memcmp(left, right, ek_tensor_bytes(&call->piece[i].tensor)) == 0,
                "%s of %s has other bits when the operands lie apart",
                call->operation->operand[k].name, call->operation->name);
  }
}

/* One type against a wider one: only that it is the same computation, tests/op has the tolerances.
 * A number of 16 bits is one of 2^8 between two powers of two, and rounded thrice at most. */
static void check_nearly(const struct call *call, const struct call *other, double allowed) {
  static unsigned char left[MOST_BYTES], right[MOST_BYTES];
  for (int i = 0; i < call->operation->count; i++) {
    const int k = destination_in(call, i);
    const ek_type type = call->piece[i].type, wide = k < 0 ? type : other->piece[k].type;
    if (k < 0 || (type != EK_F32 && !is_half(type))) continue;
    const int64_t count = count_of(&call->piece[i]);
    double largest = 1;
    download(left, &call->piece[i].tensor);
    download(right, &other->piece[k].tensor);
    for (int64_t n = 0; n < count; n++) largest = fmax(largest, fabs(element_of(wide, right, n)));
    for (int64_t n = 0; n < count; n++) {
      const double got = element_of(type, left, n), want = element_of(wide, right, n);
      FUZZ_EXPECT(!isfinite(want) || largest > (type == EK_F16 ? 6e4 : 1e6) ||
                      fabs(got - want) <= allowed * largest,
                  "%s of %s is %g in %s and %g in %s", call->operation->operand[k].name,
                  call->operation->name, got, ek_type_name(type), want, ek_type_name(wide));
    }
  }
}

static bool has_halves(const struct call *call) {
  for (int i = 0; i < call->operation->count; i++) {
    if (is_half(call->piece[i].type)) return true;
  }
  return false;
}

static void check_again(const struct call *call, void *const *before) {
  static struct call other;
  make_apart(&other, call, before, EK_I32);
  spoil_padding(&other);
  FUZZ_OK(call->operation->call(call->stream, other.t, &call->parameters));
  check_bits(call, &other);
  free_pieces(&other);
  if (!call->tame || !call->apart) return;
  const bool halves = has_halves(call); /* beside others of f32: it takes those of f32 alone */
  make_apart(&other, call, before, halves ? EK_F32 : EK_F64);
  FUZZ_OK(call->operation->call(call->stream, other.t, &call->parameters));
  check_nearly(call, &other, halves ? 5e-2 : 1e-2);
  free_pieces(&other);
}

/* Hand-written structs name a device of `plan` instead of theirs. */
static void check_plan(const struct call *call, ek_status expected) {
  static struct call other;
  ek_group *group = fuzz_group("plan:2", 1);
  other = *call;
  for (int i = 0; i < call->operation->count; i++) {
    struct piece *piece = &other.piece[i];
    const size_t index = ek_device_index(call->piece[i].block.device);
    piece->block = piece->tensor = (ek_tensor){0};
    make_piece(piece, ek_group_device(group, index), 0);
  }
  for (int i = 0; i < call->operation->count; i++) {
    const struct piece *source = &call->piece[call->same[i]];
    struct piece *piece = &other.piece[i];
    const ptrdiff_t shift = (char *)call->piece[i].given.data - (char *)source->tensor.data;
    void *data = call->piece[i].given.data == NULL
                     ? NULL
                     : (char *)other.piece[call->same[i]].tensor.data + shift;
    ek_device *device =
        call->piece[i].given.device == NULL ? NULL : other.piece[call->same[i]].tensor.device;
    piece->given = call->piece[i].given;
    piece->given.data = data;
    piece->given.device = device;
    other.t[i] = call->t[i] == NULL ? NULL : &piece->given;
  }
  ek_stream *stream = ek_device_stream(ek_group_device(group, 0), EK_STREAM_COMPUTE);
  const ek_status status =
      call->operation->call(call->stream == NULL ? NULL : stream, other.t, &call->parameters);
  free_pieces(&other);
  fuzz_expect_nothing_held(group);
  /* Only devices with kernels see an index that is outside, or elements without memory. */
  FUZZ_EXPECT(status == expected || expected == EK_ERR_INVALID_ARGUMENT,
              "%s: %s on plan and %s on cpu", call->operation->name, ek_status_name(status),
              ek_status_name(expected));
}

/* ---- one call ---- */

static void read_call(struct call *call, struct fuzz_input *input) {
  *call = (struct call){.apart = true, .tame = true};
  call->operation = &operations[fuzz_byte(input) % operation_count];
  call->group = fuzz_group("cpu:2", 1 + fuzz_choice(input, 3));
  ek_device *device = ek_group_device(call->group, 0);
  call->stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  static const ek_type types[] = {EK_F32, EK_BF16, EK_F32, EK_F64, EK_F32, EK_F16, EK_F32, EK_F64};
  const ek_type type = types[fuzz_choice(input, 8)];
  struct sizes sizes = read_sizes(input, strncmp(call->operation->name, "attention", 9) == 0);
  if (fuzz_one_in(input, 32)) make_endless(&sizes, call->operation);
  read_parameters(call, &sizes, input);
  const int count = call->operation->count;
  for (int i = 0; i < count; i++) describe_piece(call, i, type, &sizes);
  const int misfits = fuzz_choice(input, 8);
  const bool padded = misfits != 1 && misfits != 2 && call->parameters.classes == sizes.c;
  if (padded) call->padded_from = sizes.c;
  if (misfits == 1 || misfits == 2) {
    change_description(&call->piece[fuzz_choice(input, count)], input);
  }
  for (int i = 0; i < count; i++) {
    const bool elsewhere = misfits == 3 && fuzz_one_in(input, 8);
    call->piece[i].guard = GUARD;
    make_piece(&call->piece[i], ek_group_device(call->group, elsewhere), 0xa5);
    fill_content(call, i, &sizes, input);
    call->same[i] = i;
    call->t[i] = &call->piece[i].given;
    if (call->operation->operand[i].optional && fuzz_one_in(input, 2)) call->t[i] = NULL;
  }
  if (misfits == 2 || misfits == 4 || misfits == 5) {
    change_place(call, fuzz_choice(input, count), input);
  }
  if (misfits == 5 || misfits == 6) {
    call->apart = false; /* cannot be built again from its description */
    change_struct(call, fuzz_choice(input, count), input);
  }
  if (misfits == 7 && fuzz_one_in(input, 8)) call->stream = NULL;
}

static void try_call(struct fuzz_input *input) {
  static struct call call;
  void *before[MOST_OPERANDS];
  read_call(&call, input);
  for (int i = 0; i < call.operation->count; i++) before[i] = copy_block(&call.piece[i]);
  ek_error_clear();
  const ek_status status = call.operation->call(call.stream, call.t, &call.parameters);
  fuzz_expect_explained(status);
  check_unchanged(&call, before, status);
  if (status == EK_OK) check_padding(&call, before);
  if (status == EK_OK && call.apart) check_again(&call, before);
  check_plan(&call, status);
  for (int i = 0; i < call.operation->count; i++) free(before[i]);
  free_pieces(&call);
  fuzz_expect_nothing_held(call.group);
}

/* Several calls an input: so the few inputs that are kept reach most of what there is. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  enum { MOST_CALLS = 8 };
  struct fuzz_input input = fuzz_input(data, size);
  for (int i = 0; i < MOST_CALLS && (i == 0 || fuzz_left(&input) > 0); i++) try_call(&input);
  return 0;
}
