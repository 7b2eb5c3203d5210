/*
 * tokens.h - files of tokens as a source (source.h).
 *
 * A sample is a window of `sequence` tokens as the input, and the token after each of them as the
 * target; windows follow each other without a gap, and none reaches from one file into the next.
 * So a file of n tokens has (n - 1) / sequence samples. Files are, each recognised by how it
 * begins:
 *
 *     llm.c, u16    256 numbers of i32: 20240520, 1, number of tokens; then u16
 *     llm.c, u32    256 numbers of i32: 20240801, 7, number of tokens; then u32
 *     raw           tokens alone, as nanoGPT writes them: u16, or u32 as options.raw says
 *
 * All numbers are little-endian. All files of a source have tokens of one type, which is that of
 * its tensors. They stay open, one descriptor each, and a sample is read from its place: files
 * larger than memory cost nothing, and any sample is as near as the first.
 */
#ifndef EVENKEEL_TOKENS_H
#define EVENKEEL_TOKENS_H

#include <evenkeel/source.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_tokens_options {
  size_t size;
  int64_t sequence;   /* tokens of a window: above 0 */
  int64_t vocabulary; /* a token that is not below it is EK_ERR_CORRUPT; 0: not looked at */
  ek_type raw;        /* of files without a header: EK_U16 or EK_U32 */
  /*
   * The token that ends a document, or -1. With it a sample has a second input, i32 [sequence]: the
   * number of each token's document, counted from 0 in every window; the ending token belongs to
   * its document. A model can keep documents apart by it.
   */
  int64_t document_end;
  /* With document_end: the target of an ending token, which is the first token of the next
   * document, is -100 instead, which ek_cross_entropy_create() ignores. Targets are i32 then, and a
   * token above INT32_MAX is EK_ERR_CORRUPT. */
  bool ignore_after_end;
  uint64_t seed; /* of the order */
  bool in_order; /* windows in the order of the files */
  const char *const *more; /* more patterns, in order; NULL: only the first pattern */
  size_t more_count;
} ek_tokens_options;
#define EK_TOKENS_OPTIONS_INIT                                                                     \
  {                                                                                                \
    .size = sizeof(ek_tokens_options), .sequence = 1024, .vocabulary = 0, .raw = EK_U16,           \
    .document_end = -1, .ignore_after_end = false, .seed = 0, .in_order = false, .more = NULL,     \
    .more_count = 0                                                                                \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_tokens_options_init(ek_tokens_options *options, size_t size);

/*
 * Opens the files that a pattern of the shell matches ("train.bin", "shard-*.bin",
 * "part[0-4].bin"), in the order of their names. `options` NULL: the defaults.
 * EK_ERR_NOT_FOUND         no file matches a pattern, or one has gone
 * EK_ERR_CORRUPT           a file is shorter or longer than its header says, or has no whole tokens
 * EK_ERR_TYPE              files have tokens of different types
 * EK_ERR_INVALID_ARGUMENT  options that make no sense; files without room for a window
 * EK_ERR_IO, EK_ERR_OUT_OF_MEMORY
 * A file that becomes shorter later, and a token outside of the vocabulary, are EK_ERR_CORRUPT of
 * ek_source_read(); the message names the file and the place.
 */
EK_API EK_CHECKED ek_status ek_tokens_open(ek_source **source, const char *pattern,
                                           const ek_tokens_options *options);

EK_END_DECLARATIONS

#endif /* EVENKEEL_TOKENS_H */
