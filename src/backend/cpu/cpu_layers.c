/*
 * cpu_layers.c - kernels of layer normalisation, lookups, rotary positions and attention.
 */
#include "backend/cpu/cpu_internal.h"
#include "core/error.h"

/* ---- layer normalisation ---- */

EK__CPU_RANGE(layer_norm_forward, layer_norm, EK_OK, args->rows, ek__cpu_least_rows(args->width))

/* y = factor * y, or 0 without a look at y, which may be NULL. */
static void prepare_sum(ek_stream *stream, void *y, double factor, int64_t count, ek_type type) {
  const struct ek__elementwise_args args = {
      .y = y, .a = y, .count = count, .value = factor, .types = ek__types_in(type)};
  if (y == NULL) return;
  if (factor == 0.0) {
    (void)ek__cpu_fill(stream, &args);
  } else if (factor != 1.0) {
    (void)ek__cpu_scale(stream, &args);
  }
}

ek_status ek__cpu_layer_norm_backward(ek_stream *stream, const struct ek__layer_norm_args *args) {
  const struct ek__cpu_functions *functions = ek__cpu_functions(args->types);
  prepare_sum(stream, args->dgamma, args->gamma_scale, args->width, args->types.sum);
  prepare_sum(stream, args->dbeta, args->beta_scale, args->width, args->types.sum);
  const bool alone = ek__team_threads(ek__stream_backend(stream)) == 1;
  const bool columns = args->dgamma != NULL || args->dbeta != NULL;
  const struct ek__layer_norm_job job = {args, alone && columns};
  if (!alone && columns) { /* before dx is written, which may be dy */
    ek__cpu_range(stream, functions->layer_norm_columns, args, args->width,
                  ek__cpu_least_columns(args->rows));
  }
  if (job.add_columns || args->dx) {
    ek__cpu_range(stream, functions->layer_norm_backward, &job, args->rows,
                  ek__cpu_least_rows(args->width));
  }
  return EK_OK;
}

/* ---- normalisation by channels ---- */

/* Elements of a piece. */
static int64_t piece_size(const struct ek__channel_args *args) {
  return args->pieces > 0 ? args->rows / args->pieces * args->channels : 0;
}
static int64_t group_count(const struct ek__channel_args *args) {
  return args->channels > 0 ? args->samples * args->groups : 0;
}
static int64_t group_size(const struct ek__channel_args *args) {
  return args->channels / args->groups;
}

EK__CPU_RANGE(channel_moments, channel, EK_OK, args->pieces, ek__cpu_least_rows(piece_size(args)))
EK__CPU_RANGE(channel_slopes, channel, EK_OK, args->pieces, ek__cpu_least_rows(piece_size(args)))
EK__CPU_RANGE(channel_statistics, channel, EK_OK, group_count(args),
              ek__cpu_least_rows(group_size(args)))
/* One range: it reads and writes the number of batches. */
EK__CPU_RANGE(channel_running, channel, EK_OK, args->channels, args->channels + 1)
EK__CPU_RANGE(channel_averages, channel, EK_OK, group_count(args) + args->channels,
              ek__cpu_least_rows(group_size(args) + args->samples))
EK__CPU_RANGE(channel_norm_forward, channel, EK_OK, args->rows, ek__cpu_least_rows(args->channels))
EK__CPU_RANGE(channel_norm_backward, channel, EK_OK, args->rows, ek__cpu_least_rows(args->channels))

/* ---- lookups ---- */

static ek_status check_index(const struct ek__lookup_args *args) {
  for (int64_t i = 0; i < args->rows; i++) {
    EK__FAIL_IF(args->index[i] < 0 || args->index[i] >= args->entries, EK_ERR_INVALID_ARGUMENT,
                "lookup: index %d at position %lld of the batch is outside 0..%lld", args->index[i],
                (long long)(args->first + i), (long long)(args->entries - 1));
  }
  return EK_OK;
}

static int64_t repeats(const struct ek__lookup_args *args) {
  return args->period > 0 ? args->rows / args->period : 0;
}

EK__CPU_RANGE(lookup_forward, lookup, check_index(args), args->rows,
              ek__cpu_least_rows(args->width))
EK__CPU_RANGE(lookup_backward, lookup, check_index(args), args->width,
              ek__cpu_least_columns(args->rows))
EK__CPU_RANGE(positions_backward, lookup, EK_OK, args->period,
              ek__cpu_least_rows(args->width *(repeats(args) + 1)))

/* ---- attention ---- */

EK__CPU_RANGE(rotary, rotary, EK_OK, args->tokens,
              ek__cpu_least_rows(args->samples *args->heads *args->head_width))

/* What ek_op_document_ranges() writes: a wrong one would lead outside of the row. */
static ek_status check_ranges(const struct ek__attention_args *args) {
  for (int64_t i = 0; args->ranges != NULL && i < args->batch * args->tokens; i++) {
    const int64_t token = i % args->tokens, begin = args->ranges[2 * i];
    const int64_t end = args->ranges[2 * i + 1];
    const bool padding = begin == token && end == token;
    const bool opens = begin == token && end > token && end <= args->tokens;
    const bool goes_on = token > 0 && begin < token && begin == args->ranges[2 * i - 2] &&
                         end == args->ranges[2 * i - 1] && end > token;
    EK__FAIL_IF(!padding && !opens && !goes_on, EK_ERR_INVALID_ARGUMENT,
                "attention: the document of token %lld of sample %lld has the range %lld to %lld, "
                "which is not what ek_op_document_ranges() gives",
                (long long)token, (long long)(i / args->tokens), (long long)begin, (long long)end);
  }
  return EK_OK;
}

static ek_status attend(ek_stream *stream, const struct ek__attention_args *args, bool backward) {
  const struct ek__cpu_functions *own = ek__cpu_functions(args->types);
  ek__range_function *function = backward ? own->attention_backward : own->attention_forward;
  if (args->tokens == 0 || args->head_width == 0) return EK_OK;
  EK__FAIL_IF(ek__type_size(args->types.value) == 2 && args->head_width > EK__CPU_WIDEST_HALF_HEAD,
              EK_ERR_UNSUPPORTED,
              "attention: heads are %lld wide; 16-bit attention on the CPU supports at most %d",
              (long long)args->head_width, EK__CPU_WIDEST_HALF_HEAD);
  EK_TRY(check_ranges(args));
  atomic_int status = EK_OK;
  const struct ek__attention_job job = {args, ek__cpu_sgemm, &status};
  const int64_t heads = backward ? args->kv_heads : args->heads;
  ek__cpu_range_with_scratch(stream, function, &job, args->batch * heads);
  const ek_status result = (ek_status)atomic_load(&status);
  return result == EK_OK ? EK_OK : ek_error_set(result, "attention: a matrix product failed");
}

ek_status ek__cpu_attention_forward(ek_stream *stream, const struct ek__attention_args *args) {
  return attend(stream, args, false);
}

ek_status ek__cpu_attention_backward(ek_stream *stream, const struct ek__attention_args *args) {
  return attend(stream, args, true);
}

ek_status ek__cpu_document_ranges(ek_stream *stream, const struct ek__documents_args *args) {
  const int64_t tokens = args->tokens;
  (void)stream;
  for (int64_t sample = 0; sample < args->samples; sample++) {
    const int32_t *segments = args->segments + sample * tokens;
    int32_t *ranges = args->ranges ? args->ranges + 2 * sample * tokens : NULL;
    int32_t *positions = args->positions ? args->positions + sample * tokens : NULL;
    for (int64_t begin = 0, end = 0; begin < tokens; begin = end) {
      for (end = begin + 1; end < tokens && segments[end] == segments[begin];) end++;
      const bool padding = segments[begin] < 0;
      for (int64_t i = begin; i < end; i++) {
        if (ranges) ranges[2 * i] = (int32_t)(padding ? i : begin);
        if (ranges) ranges[2 * i + 1] = (int32_t)(padding ? i : end);
        if (positions) positions[i] = (int32_t)(padding ? 0 : i - begin);
      }
    }
  }
  return EK_OK;
}
