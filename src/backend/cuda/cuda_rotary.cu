/*
 * cuda_rotary.cu - rotary position embedding, and the places of documents in rows of tokens.
 *
 * A thread turns one pair of each head of a token, with one sine and one cosine for all of them.
 * Floor in f32: 8 bytes an element. The place within a turn is computed in double, three
 * operations for all heads, the rest in the type of sums, whose sinpi() and cospi() need no
 * reduction.
 */
#include "backend/cuda/cuda_portable.cuh"

using namespace ek__cuda;

namespace {

struct turns {
  double at[EK__MOST_PAIRS];
};

__device__ __forceinline__ void sine_of(float half_turns, float *sine, float *cosine) {
  sincospif(half_turns, sine, cosine);
}
__device__ __forceinline__ void sine_of(double half_turns, double *sine, double *cosine) {
  sincospi(half_turns, sine, cosine);
}

template <class T, class S>
__global__ void __launch_bounds__(BLOCK)
    rotary_kernel(T *x, const int32_t *positions, int64_t rows, int64_t tokens, int64_t columns,
                  int64_t heads, int64_t pairs, turns turns) {
  for (walk at(pairs); at.row < rows; at.next()) {
    const int64_t position = positions ? positions[at.row] : at.row % tokens;
    const double place = double(position) * turns.at[at.column];
    S sine, cosine;
    sine_of(S(2.0 * (place - rint(place))), &sine, &cosine);
    T *pair = x + at.row * columns + at.column;
    for (int64_t head = 0; head < heads; head++, pair += 2 * pairs) {
      const S a = S(pair[0]), b = S(pair[pairs]);
      pair[0] = T(a * cosine - b * sine);
      pair[pairs] = T(a * sine + b * cosine);
    }
  }
}

template <class T, class S>
cudaError_t rotary(const struct ek__cuda_place *at, const struct ek__rotary_args *args) {
  const int64_t rows = args->samples * args->tokens, pairs = args->head_width / 2;
  if (rows <= 0 || pairs <= 0) return cudaSuccess;
  turns turns;
  memcpy(turns.at, args->turns, sizeof turns.at);
  return launch(rotary_kernel<T, S>, blocks_for(rows * pairs), BLOCK, at->stream, as<T>(args->x),
                args->positions, rows, args->tokens, args->columns, args->heads, pairs, turns);
}

} // namespace

EK_CUDA_LAUNCHER(rotary, rotary)

/* ---- places of documents: attend.h ---- */

namespace {

/*
 * A block has one row of tokens, a thread a run of them. Where the document of the run's first
 * token begins, and where that of its last ends, is looked for outside of the run only if it goes
 * on there: each thread says where in its run the last document begins and the first one ends, and
 * reads what the threads before and after it said.
 */
__global__ void __launch_bounds__(BLOCK) documents_kernel(const struct ek__documents_args args) {
  __shared__ int64_t begins[BLOCK], ends[BLOCK]; /* -1: the document goes through the whole run */
  const int64_t tokens = args.tokens, length = (tokens + BLOCK - 1) / BLOCK;
  const int64_t first = threadIdx.x * length;
  const int64_t last = first + length < tokens ? first + length : tokens;
  for (int64_t sample = blockIdx.x; sample < args.samples; sample += gridDim.x) {
    const int32_t *const segments = args.segments + sample * tokens;
    const auto opens = [&](int64_t i) { return i == 0 || segments[i] != segments[i - 1]; };
    int64_t begin = -1, end = -1;
    for (int64_t i = first; i < last; i++) {
      if (!opens(i)) continue;
      begin = i;
      if (end < 0) end = i;
    }
    begins[threadIdx.x] = begin;
    ends[threadIdx.x] = end;
    __syncthreads();
    int64_t open = 0, next = tokens; /* the document at hand, and where the one after it begins */
    for (int t = (int)threadIdx.x - 1; t >= 0 && first < last; t--) {
      if (begins[t] < 0) continue;
      open = begins[t];
      break;
    }
    for (int t = (int)threadIdx.x + 1; t < BLOCK && first < last; t++) {
      if (ends[t] < 0) continue;
      next = ends[t];
      break;
    }
    int64_t close = -1; /* of the document at hand */
    for (int64_t i = first; i < last; i++) {
      if (opens(i)) open = i;
      if (close <= i) {
        for (close = i + 1; close < last && !opens(close);) close++;
        if (close == last && (last == tokens || !opens(last))) close = next;
      }
      const bool padding = segments[i] < 0;
      const int64_t at = sample * tokens + i;
      if (args.ranges) args.ranges[2 * at] = (int32_t)(padding ? i : open);
      if (args.ranges) args.ranges[2 * at + 1] = (int32_t)(padding ? i : close);
      if (args.positions) args.positions[at] = (int32_t)(padding ? 0 : i - open);
    }
    __syncthreads();
  }
}

} // namespace

extern "C" cudaError_t ek__cuda_document_ranges(const struct ek__cuda_place *at,
                                                const struct ek__documents_args *args) {
  if (args->samples <= 0 || args->tokens <= 0) return cudaSuccess;
  const int64_t blocks = args->samples < MOST_BLOCKS ? args->samples : MOST_BLOCKS;
  return launch(documents_kernel, (unsigned)blocks, BLOCK, at->stream, *args);
}
