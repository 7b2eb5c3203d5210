/*
 * tokens.c - files of tokens as a source.
 *
 * Each file knows the number of its first sample; a sample is found by halving. Both rows of a
 * sample are read from the file, the target one token further: the second read finds its pages in
 * the page cache, and no row is copied.
 */
#include <evenkeel/tokens.h>

#include <glob.h>
#include <inttypes.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"
#include "core/sizes.h"
#include "io/file.h"

enum { HEADER_NUMBERS = 256, HEADER = HEADER_NUMBERS * 4 };
enum { IGNORED = -100 }; /* a target: ek_cross_entropy_options.ignore_index by default */

/* The first numbers of llm.c's files. */
static const struct format {
  int32_t magic, version;
  ek_type type;
} formats[] = {{20240520, 1, EK_U16}, {20240801, 7, EK_U32}};

struct file {
  char *path;
  int file;
  uint64_t begin;        /* of the tokens, in bytes */
  int64_t tokens, first; /* its first sample */
  ek_type type;
};

struct tokens {
  ek_source base;
  ek_tokens_options options;
  ek_type type;
  size_t count;
  struct file files[]; /* flexible */
};

EK__OPTIONS_INIT(ek_tokens_options, EK_TOKENS_OPTIONS_INIT)

/* ---- opening ---- */

/* Host and file are little-endian, or the number is put together here. */
static int32_t number_at(const uint8_t *bytes) {
  const uint32_t value = (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
                         (uint32_t)bytes[3] << 24;
  return (int32_t)value;
}

static ek_status read_header(struct file *file, const struct format *format, const uint8_t *header,
                             uint64_t size) {
  const int32_t version = number_at(header + 4), tokens = number_at(header + 8);
  const uint64_t width = ek_type_size(format->type);
  EK__FAIL_IF(version != format->version, EK_ERR_UNSUPPORTED,
              "%s: version %" PRId32 " of tokens with magic number %" PRId32
              ", expected version %" PRId32,
              file->path, version, format->magic, format->version);
  EK__FAIL_IF(tokens < 0 || size < HEADER || size - HEADER != (uint64_t)tokens * width,
              EK_ERR_CORRUPT, "%s: %" PRIu64 " bytes; its header says %" PRId32
                              " tokens, which take %" PRIu64,
              file->path, size, tokens, tokens < 0 ? 0 : HEADER + (uint64_t)tokens * width);
  file->begin = HEADER;
  file->tokens = tokens;
  file->type = format->type;
  return EK_OK;
}

static ek_status open_file(struct file *file, const char *path, ek_type raw) {
  uint8_t header[12] = {0};
  uint64_t size = 0;
  file->file = -1;
  EK_TRY(ek__new_copy(&file->path, path, strlen(path) + 1, "the name of a file"));
  EK_TRY(ek__file_open(&file->file, &size, path));
  if (size >= sizeof header) {
    EK_TRY(ek__file_read(file->file, path, header, sizeof header, 0));
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
      if (number_at(header) == formats[i].magic) {
        return read_header(file, &formats[i], header, size);
      }
    }
  }
  EK__FAIL_IF(size % ek_type_size(raw) != 0, EK_ERR_CORRUPT,
              "%s: %" PRIu64 " bytes are not a whole number of %s tokens", path, size,
              ek_type_name(raw));
  file->tokens = (int64_t)(size / ek_type_size(raw));
  file->type = raw;
  return EK_OK;
}

static ek_status open_files(struct tokens *self, char *const *paths, size_t count,
                            int64_t *samples) {
  *samples = 0;
  for (size_t i = 0; i < count; i++) {
    struct file *file = &self->files[i];
    self->count = i + 1;
    EK_TRY(open_file(file, paths[i], self->options.raw));
    EK__FAIL_IF(file->type != self->files[0].type, EK_ERR_TYPE, "%s has %s tokens, and %s has %s",
                file->path, ek_type_name(file->type), self->files[0].path,
                ek_type_name(self->files[0].type));
    file->first = *samples;
    if (file->tokens > 0) *samples += (file->tokens - 1) / self->options.sequence;
  }
  self->type = self->files[0].type;
  return EK_OK;
}

static void free_tokens(ek_source *source) {
  struct tokens *self = (struct tokens *)source;
  for (size_t i = 0; i < self->count; i++) {
    if (self->files[i].file >= 0) ek__file_close(self->files[i].file);
    ek__free(self->files[i].path);
  }
  ek__free(self);
}

/* ---- reading ---- */

static const struct file *file_of(const struct tokens *self, int64_t sample) {
  size_t low = 0, high = self->count; /* the last file whose first sample is not after it */
  while (high - low > 1) {
    const size_t middle = low + (high - low) / 2;
    if (self->files[middle].first <= sample) low = middle;
    else high = middle;
  }
  return &self->files[low];
}

static int64_t token_at(const void *row, int64_t i, ek_type type) {
  uint16_t narrow = 0;
  uint32_t wide = 0;
  if (type == EK_U16) memcpy(&narrow, (const char *)row + (size_t)i * sizeof narrow, sizeof narrow);
  else memcpy(&wide, (const char *)row + (size_t)i * sizeof wide, sizeof wide);
  return type == EK_U16 ? (int64_t)narrow : (int64_t)wide;
}

/* Reads tokens of a file into a row, and looks at them. */
static ek_status read_row(void *row, const struct tokens *self, const struct file *file,
                          int64_t first) {
  const uint64_t width = ek_type_size(self->type);
  const int64_t count = self->options.sequence, most = self->options.vocabulary;
  EK_TRY(ek__file_read(file->file, file->path, row, (size_t)count * width,
                       file->begin + (uint64_t)first * width));
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  for (int64_t i = 0; i < count; i++) {
    if (self->type == EK_U16) ((uint16_t *)row)[i] = __builtin_bswap16(((uint16_t *)row)[i]);
    else ((uint32_t *)row)[i] = __builtin_bswap32(((uint32_t *)row)[i]);
  }
#endif
  int64_t largest = 0;
  for (int64_t i = 0; i < count && most > 0; i++) {
    const int64_t token = token_at(row, i, self->type);
    largest = token > largest ? token : largest;
  }
  if (most == 0 || largest < most) return EK_OK;
  for (int64_t i = 0;; i++) {
    EK__FAIL_IF(token_at(row, i, self->type) >= most, EK_ERR_CORRUPT,
                "%s: token %" PRId64 " at place %" PRId64 " is outside of 0..%" PRId64, file->path,
                token_at(row, i, self->type), first + i, most - 1);
  }
}

static ek_type target_type(const struct tokens *self) {
  return self->options.ignore_after_end ? EK_I32 : self->type;
}

static void number_documents(int32_t *documents, const void *row, const struct tokens *self) {
  int32_t document = 0;
  for (int64_t i = 0; i < self->options.sequence; i++) {
    documents[i] = document;
    document += token_at(row, i, self->type) == self->options.document_end;
  }
}

/* Makes targets i32 in their place, from the last to the first, because they may become wider. */
static void ignore_after_end(char *targets, const char *inputs, const struct tokens *self) {
  for (int64_t i = self->options.sequence; i-- > 0;) {
    const bool ends = token_at(inputs, i, self->type) == self->options.document_end;
    const int32_t target = ends ? IGNORED : (int32_t)token_at(targets, i, self->type);
    memcpy(targets + (size_t)i * sizeof target, &target, sizeof target);
  }
}

static ek_status read_tokens(const ek_source *source, const ek_source_request *request,
                             ek_tensor *tensors) {
  const struct tokens *self = (const struct tokens *)source;
  const int64_t length = self->options.sequence;
  const size_t bytes = (size_t)length * ek_type_size(self->type);
  const size_t target_bytes = (size_t)length * ek_type_size(target_type(self));
  const bool documents = self->options.document_end >= 0;
  for (int64_t i = 0; i < request->count; i++) {
    const struct file *file = file_of(self, request->samples[i]);
    const int64_t first = (request->samples[i] - file->first) * length;
    char *input = (char *)tensors[0].data + (size_t)i * bytes;
    char *target = (char *)tensors[documents ? 2 : 1].data + (size_t)i * target_bytes;
    EK_TRY(read_row(input, self, file, first));
    EK_TRY(read_row(target, self, file, first + 1));
    if (documents) number_documents((int32_t *)tensors[1].data + i * length, input, self);
    if (self->options.ignore_after_end) ignore_after_end(target, input, self);
  }
  return EK_OK;
}

/* ---- a source ---- */

static ek_status check_options(const ek_tokens_options *o) {
  int64_t bytes = 0;
  EK__FAIL_IF(o->sequence <= 0 || !ek__multiply(&bytes, o->sequence, 8), EK_ERR_INVALID_ARGUMENT,
              "ek_tokens_open: options.sequence is %" PRId64 ", expected above 0", o->sequence);
  EK__FAIL_IF(o->vocabulary < 0, EK_ERR_INVALID_ARGUMENT,
              "ek_tokens_open: options.vocabulary is %" PRId64 ", expected 0 or more",
              o->vocabulary);
  EK__FAIL_IF(o->raw != EK_U16 && o->raw != EK_U32, EK_ERR_INVALID_ARGUMENT,
              "ek_tokens_open: options.raw is %s, expected u16 or u32", ek_type_name(o->raw));
  EK__FAIL_IF(o->more == NULL && o->more_count > 0, EK_ERR_INVALID_ARGUMENT,
              "ek_tokens_open: options.more is NULL, expected %zu patterns", o->more_count);
  EK__FAIL_IF(o->document_end < -1, EK_ERR_INVALID_ARGUMENT,
              "ek_tokens_open: options.document_end is %" PRId64 ", expected a token or -1",
              o->document_end);
  EK__FAIL_IF(o->ignore_after_end && o->document_end < 0, EK_ERR_INVALID_ARGUMENT,
              "ek_tokens_open: options.ignore_after_end needs options.document_end");
  return EK_OK;
}

static ek_status init(struct tokens *self, const char *pattern, int64_t samples) {
  static const ek_source_ops ops = {
      .size = sizeof ops, .kind = "tokens", .read = read_tokens, .free = free_tokens};
  const ek_source_tensor row = {self->type, 1, {self->options.sequence}};
  const ek_source_tensor numbers = {EK_I32, 1, {self->options.sequence}};
  const bool documents = self->options.document_end >= 0;
  const ek_source_tensor targets = {target_type(self), 1, {self->options.sequence}};
  const ek_source_tensor tensors[] = {row, documents ? numbers : targets, targets};
  ek_source_options options = EK_SOURCE_OPTIONS_INIT;
  EK__FAIL_IF(samples == 0, EK_ERR_INVALID_ARGUMENT,
              "%s: no file has the %" PRId64 " tokens that a window and its targets take", pattern,
              self->options.sequence + 1);
  options.samples = samples;
  options.inputs = documents ? 2 : 1;
  options.tensors = tensors;
  options.seed = self->options.seed;
  options.in_order = self->options.in_order;
  return ek_source_init(&self->base, &ops, &options);
}

static ek_status make(ek_source **source, const char *pattern, const ek_tokens_options *options,
                      char *const *paths, size_t count) {
  struct tokens *self = NULL;
  int64_t samples = 0;
  EK_TRY(ek__new(&self, 1, sizeof *self + count * sizeof self->files[0], "files of tokens"));
  self->options = *options;
  if (options->ignore_after_end && (options->vocabulary == 0 || options->vocabulary > INT32_MAX)) {
    self->options.vocabulary = (int64_t)INT32_MAX + 1;
  }
  ek_status status = open_files(self, paths, count, &samples);
  if (status == EK_OK) status = init(self, pattern, samples);
  if (status == EK_OK) *source = &self->base;
  if (status != EK_OK) free_tokens(&self->base);
  return status;
}

/* The files that a pattern matches, after those that were found before. */
static ek_status match(glob_t *found, const char *pattern) {
  EK__NOT_NULL("ek_tokens_open", pattern);
  const int failure = glob(pattern, GLOB_ERR | GLOB_APPEND, NULL, found);
  EK__FAIL_IF(failure == GLOB_NOMATCH, EK_ERR_NOT_FOUND, "%s: no such file", pattern);
  EK__FAIL_IF(failure == GLOB_NOSPACE, EK_ERR_OUT_OF_MEMORY, "no host memory for names of files");
  EK__FAIL_IF(failure != 0, EK_ERR_IO, "%s: its folder cannot be read", pattern);
  return EK_OK;
}

ek_status ek_tokens_open(ek_source **source, const char *pattern,
                         const ek_tokens_options *options) {
  ek_tokens_options o = EK_TOKENS_OPTIONS_INIT;
  glob_t found = {0}; /* GLOB_APPEND adds to none */
  EK__NOT_NULL("ek_tokens_open", source, pattern);
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_tokens_options"));
  EK_TRY(check_options(&o));
  ek_status status = match(&found, pattern);
  for (size_t i = 0; i < o.more_count && status == EK_OK; i++) status = match(&found, o.more[i]);
  if (status == EK_OK) status = make(source, pattern, &o, found.gl_pathv, found.gl_pathc);
  globfree(&found);
  return status;
}
