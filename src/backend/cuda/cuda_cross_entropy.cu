/*
 * cuda_cross_entropy.cu - cross-entropy of rows of logits: one pass over their memory forward, one
 * read and one write backward, in place; and both in one kernel, which reads them from memory once.
 *
 * A block takes a row. Forward keeps a running largest value and sum of exponentials in each thread
 * (Milakov and Gimelshein 2018), which is subtracted from every logit first, so that a common
 * offset costs no digits. A row need not start at a multiple of 16 bytes (50257 classes): elements
 * before the first such address and after the last are read one by one.
 *
 * The kernel of both copies a row into the block's memory (cuda_row.cuh), all of it or as much as
 * there is room for, and reads it there twice. As soon as a part of the row has become a gradient,
 * the same part of the block's next row is on its way. What has no room is read again, from L2 if
 * the GPU still has it there.
 *
 * Logits of 16 bits take an exponential of two instructions; other types that of CUDA's library.
 *
 * Floor in f32: forward 4 bytes a logit, backward 8, both in one 8. At 4.8 TB/s forward needs
 * 1.2e12 exponentials a second, a third of the rate of the special function units of 132
 * multiprocessors.
 */
#include "backend/cuda/cuda_row.cuh"
#include "backend/cuda/cuda_total.cuh"
#include "backend/formulas.h"

using namespace ek__cuda;

namespace {

/* sum = the sum of e^(x - largest): kept of a row for its gradient, with the sum of its weights if
 * targets are soft, a weight for each class of a row (SOFT). */
template <class S> struct normalizer { S largest, sum; };
template <class S> struct soft_normalizer : normalizer<S> { S weight; };

/* The weights of classes in a row, as a W: those of all classes, or these times soft targets. */
template <class T, class S, bool SOFT> struct class_weights {
  const S *weights; /* or NULL: 1 */
  template <class W> __device__ W at(int64_t c) const { return weights ? W(weights[c]) : W(1); }
};
template <class T, class S> struct class_weights<T, S, true> {
  class_weights<T, S, false> all;
  const T *row;
  S keep, share;
  template <class W> __device__ W at(int64_t c) const {
    return W(all.template at<S>(c) * (keep * S(row[c]) + share));
  }
};

template <class T, class S, bool SOFT> struct loss {
  S *losses;
  T *gradient;
  std::conditional_t<SOFT, soft_normalizer<S>, normalizer<S>> *normalizers;
  const T *logits;
  const std::conditional_t<SOFT, T, int32_t> *targets;
  const S *weights;
  const double *scale, *all_weights; /* all_weights: their sum, on the device, or NULL */
  const S *row_scale;
  int64_t rows, classes, columns, first_row;
  int32_t ignore_index;
  double smoothing;
  unsigned long long *bad;

  __device__ bool counts(int32_t target) const { /* neither ignored nor out of range */
    return target != ignore_index && target >= 0 && target < classes;
  }
  __device__ bool wrong(int32_t target) const { return target != ignore_index && !counts(target); }
  __device__ S weight(int64_t c) const { return weights ? weights[c] : S(1); }
  __device__ bool uneven() const { return SOFT || smoothing != 0.0; } /* more than one class */
  __device__ int32_t target(int64_t row) const {
    if constexpr (SOFT) {
      return -1;
    } else {
      return targets[row];
    }
  }
  __device__ class_weights<T, S, SOFT> weights_in(int64_t row) const {
    if constexpr (SOFT) {
      return {
          {weights}, targets + row * columns, S(1.0 - smoothing), S(smoothing / (double)classes)};
    } else {
      return {weights};
    }
  }
};

/* ---- forward ---- */

/* e^x of x <= 0, or of no number. For T of 16 bits it is off by 2.3 u abs(x) + 4 u, relative, and 0
 * below the smallest normal number. */
template <class T, class S> __device__ __forceinline__ S exp_below(S x) {
  if constexpr (sizeof(T) == 2) {
    return power_of_2(x * 1.44269504088896341f);
  } else {
    return exp(x);
  }
}

/* sum of e^(x - base), base the largest x so far, or 0 while that is -infinity. */
template <class S> struct running : normalizer<S> {
  using normalizer<S>::largest;
  using normalizer<S>::sum;
  __device__ static S base(S largest) { return largest == -S(INFINITY) ? S(0) : largest; }
  __device__ void rise(S value) {
    if (!(value > largest)) return; /* NaN does not rise; its exponential shows it */
    sum *= exp(largest - value);
    largest = value;
  }
  __device__ void merge(S other_largest, S other_sum) {
    const S most = other_largest > largest ? other_largest : largest, from = base(most);
    sum = sum * exp(largest - from) + other_sum * exp(other_largest - from);
    largest = most;
  }
};

/* One thread's part of a row; depth, the sum of w (base - x), and weight, that of w, in f64 and
 * only when several classes of a row have a weight; mass, that of soft targets' sizes. */
template <class T, class S, bool SOFT> struct row_terms {
  running<S> soft;
  double depth, weight, mass;
  class_weights<T, S, SOFT> weights;
  bool smooth;

  __device__ void deepen(S from, S to) { depth += weight * ((double)to - (double)from); }
  __device__ S rise(S value) {
    const S from = running<S>::base(soft.largest);
    if (!(value > soft.largest)) return from;
    soft.rise(value);
    if (smooth) deepen(from, value);
    return value;
  }
  __device__ void smoothed(S x, int64_t c, S base) {
    const double w = weights.template at<double>(c);
    if constexpr (SOFT) mass += fabs((double)S(weights.row[c]));
    if (w == 0.0) return; /* a class without weight may have an infinite logit */
    depth += w * ((double)base - (double)x);
    weight += w;
  }
  __device__ void one(T value, int64_t c) {
    const S x = S(value), base = rise(x);
    soft.sum += exp_below<T>(x - base);
    if (smooth) smoothed(x, c, base);
  }
  __device__ void many(const pack<T, PACK<T>> &p, int64_t c) {
    const pack<S, PACK<T>> x = widened<S>(p);
    S most = x.at[0];
    EK_UNROLL
    for (int j = 1; j < PACK<T>; j++) most = fmax(most, x.at[j]);
    const S base = rise(most);
    EK_UNROLL
    for (int j = 0; j < PACK<T>; j++) soft.sum += exp_below<T>(x.at[j] - base);
    if (!smooth) return;
    for (int j = 0; j < PACK<T>; j++) smoothed(x.at[j], c + j, base);
  }
};

/* Every thread gets the whole row's: each warp's first lane merges what all warps have. */
template <class S> __device__ running<S> block_merge(running<S> mine, running<S> *scratch) {
  const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  for (int stage = 0; stage < 2; stage++) {
    EK_UNROLL
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
      const S largest = __shfl_down_sync(ALL_LANES, mine.largest, distance);
      const S sum = __shfl_down_sync(ALL_LANES, mine.sum, distance);
      if (lane + distance < WARP) mine.merge(largest, sum);
    }
    if (stage == 1) break;
    __syncthreads();
    if (lane == 0) scratch[warp] = mine;
    __syncthreads();
    const running<S> none = {{-S(INFINITY), S(0)}};
    mine = lane < blockDim.x / WARP ? scratch[lane] : none;
  }
  mine.largest = __shfl_sync(ALL_LANES, mine.largest, 0);
  mine.sum = __shfl_sync(ALL_LANES, mine.sum, 0);
  return mine;
}

/* What a block finds out about a row: see row_terms. */
template <class S> struct row_sums {
  running<S> soft;
  double depth, weight;
};

/* own: the target's logit, of a row that counts. */
template <class T, class S>
__device__ void put_loss(const loss<T, S, true> &a, int64_t row, S, const row_sums<S> &all) {
  const double log_sum = (double)log(all.soft.sum);
  a.normalizers[row] = {all.soft, (S)all.weight};
  a.losses[row] = all.weight == 0.0 ? S(0) : (S)(all.weight * log_sum + all.depth);
}

template <class T, class S>
__device__ void put_loss(const loss<T, S, false> &a, int64_t row, S own, const row_sums<S> &all) {
  const double log_sum = (double)log(all.soft.sum);
  const int32_t target = a.targets[row];
  a.normalizers[row] = all.soft;
  if (a.wrong(target)) report_bad(a.bad, a.first_row + row, target);
  double value = 0.0;
  if (a.counts(target)) {
    const double weight = (1.0 - a.smoothing) * (double)a.weight(target);
    value = ek__weigh(weight, log_sum - ((double)own - (double)all.soft.largest));
    if (a.smoothing != 0.0) {
      value += a.smoothing / (double)a.classes * (all.weight * log_sum + all.depth);
    }
  }
  a.losses[row] = (S)value;
}

/* The target's logit, for the first thread: it is on its way while the row is read, and it is there
 * before any thread writes over it. */
template <class T, class S, bool SOFT>
__device__ __forceinline__ S own_logit(const loss<T, S, SOFT> &a, int64_t row) {
  const int32_t target = a.target(row);
  return threadIdx.x == 0 && a.counts(target) ? S(a.logits[row * a.columns + target]) : S(0);
}

template <class T, class S, bool SOFT>
__device__ __forceinline__ row_terms<T, S, SOFT> no_terms(const loss<T, S, SOFT> &a, int64_t row) {
  return {{{-S(INFINITY), S(0)}}, 0.0, 0.0, 0.0, a.weights_in(row), a.uneven()};
}

template <class T, class S, bool SOFT>
__device__ __forceinline__ row_sums<S> sum_up_row(const loss<T, S, SOFT> &a,
                                                  row_terms<T, S, SOFT> &terms, running<S> *scratch,
                                                  double *sums) {
  row_sums<S> all = {block_merge(terms.soft, scratch), 0.0, 0.0};
  if (a.uneven()) {
    terms.deepen(running<S>::base(terms.soft.largest), all.soft.largest);
    all.depth = block_sum(terms.depth, sums);
    all.weight = block_sum(terms.weight, sums);
    if (SOFT && block_sum(terms.mass, sums) == 0.0) all.weight = 0.0;
  }
  return all;
}

constexpr int THREADS = 512;

template <class T, class S, bool SOFT>
__global__ void __launch_bounds__(THREADS) forward_kernel(loss<T, S, SOFT> a) {
  __shared__ running<S> scratch[WARP];
  __shared__ double sums[WARP];
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const S own = own_logit(a, row);
    row_terms<T, S, SOFT> terms = no_terms(a, row);
    row_of<T>(a.logits + row * a.columns, a.classes).each(terms);
    const row_sums<S> all = sum_up_row(a, terms, scratch, sums);
    if (threadIdx.x == 0) put_loss(a, row, own, all);
  }
}

template <class T, class S, bool SOFT> struct totals_of {
  static constexpr int sums = 2;
  double *totals;
  loss<T, S, SOFT> a;
  __device__ void add(double sum[], int64_t row) const {
    if constexpr (SOFT) {
      sum[0] += (double)a.losses[row];
      sum[1] += a.normalizers[row].weight == S(0) ? 0.0 : 1.0;
    } else {
      const int32_t target = a.targets[row];
      if (!a.counts(target)) return;
      sum[0] += (double)a.losses[row];
      sum[1] += (double)a.weight(target);
    }
  }
  __device__ void finish(const double sum[]) const {
    totals[0] = sum[0];
    totals[1] = sum[1];
  }
};

/* ---- backward ---- */

template <class T, class S, bool SOFT> struct row_gradient {
  T *to;
  class_weights<T, S, SOFT> weights;
  S largest, own, share, whole, scale; /* whole: what e^(x - largest) is multiplied with */
  int64_t target;
  bool ignored, wide;

  __device__ T value(S x, int64_t c) const {
    if (ignored) return T(S(0));
    const S taken = even() ? S(0) : share * weights.template at<S>(c);
    return T(scale * (exp_below<T>(x - largest) * whole - taken - (c == target ? own : S(0))));
  }
  /* Only the target's element differs from the softmax. */
  __device__ bool even() const { return !SOFT && share == S(0); }
  __device__ void one(T x, int64_t c) { to[c] = value(S(x), c); }
  __device__ __forceinline__ void many(const pack<T, PACK<T>> &p, int64_t c) {
    const pack<S, PACK<T>> x = widened<S>(p);
    pack<T, PACK<T>> result = {};
    if (!even()) {
      EK_UNROLL
      for (int j = 0; j < PACK<T>; j++) result.at[j] = value(x.at[j], c + j);
    } else if (!ignored) {
      const S factor = scale * whole;
      EK_UNROLL
      for (int j = 0; j < PACK<T>; j++) result.at[j] = T(exp_below<T>(x.at[j] - largest) * factor);
    }
    if (wide) {
      store<PACK<T>>(to + c, result);
    } else {
      for (int j = 0; j < PACK<T>; j++) to[c + j] = result.at[j];
    }
    if (!even() || (uint64_t)(target - c) >= PACK<T>) return;
    S at_target = x.at[0];
    EK_UNROLL
    for (int j = 1; j < PACK<T>; j++) at_target = c + j == target ? x.at[j] : at_target;
    to[target] = value(at_target, target);
  }
};

/* all_weights: the sum of all class weights where labels are smoothed, or of the row's own. */
template <class T, class S, bool SOFT>
__device__ __forceinline__ row_gradient<T, S, SOFT> gradient_of(const loss<T, S, SOFT> &a,
                                                                int64_t row,
                                                                const normalizer<S> &soft,
                                                                double all_weights, double scale) {
  const T *x = a.logits + row * a.columns;
  const int32_t target = a.target(row);
  const bool counts = SOFT ? all_weights != 0.0 : a.counts(target);
  const double own = counts && !SOFT ? (1.0 - a.smoothing) * (double)a.weight(target) : 0.0;
  const double share = SOFT ? 1.0 : a.smoothing / (double)a.classes;
  row_gradient<T, S, SOFT> g;
  g.to = a.gradient + row * a.columns;
  g.weights = a.weights_in(row);
  g.largest = soft.largest;
  g.own = (S)own;
  g.share = (S)share;
  g.whole = (S)((own + (share != 0.0 ? share * all_weights : 0.0)) / (double)soft.sum);
  g.scale = (S)scale;
  g.target = target;
  g.ignored = !counts;
  g.wide = reinterpret_cast<uintptr_t>(g.to) % 16 == reinterpret_cast<uintptr_t>(x) % 16;
  return g;
}

/* The columns after the classes. */
template <class T, class S, bool SOFT>
__device__ __forceinline__ void clear_rest(const loss<T, S, SOFT> &a, T *to) {
  for (int64_t c = a.classes + threadIdx.x; c < a.columns; c += blockDim.x) to[c] = T(S(0));
}

template <class T, class S, bool SOFT>
__global__ void __launch_bounds__(THREADS) backward_kernel(loss<T, S, SOFT> a) {
  const double factor = a.scale ? *a.scale : 1.0;
  double all_weights = a.all_weights ? *a.all_weights : (double)a.classes;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const int32_t target = a.target(row);
    if (!SOFT && a.wrong(target) && threadIdx.x == 0) report_bad(a.bad, a.first_row + row, target);
    const double scale = factor * (a.row_scale ? (double)a.row_scale[row] : 1.0);
    if constexpr (SOFT) all_weights = (double)a.normalizers[row].weight;
    auto g = gradient_of(a, row, a.normalizers[row], all_weights, scale);
    row_of<T>(a.logits + row * a.columns, a.classes).each(g);
    clear_rest(a, g.to);
  }
}

/* ---- both ---- */

template <class T, class S, bool SOFT>
__global__ void __launch_bounds__(THREADS)
    gradient_kernel(loss<T, S, SOFT> a, room has, double scale) {
  __shared__ running<S> scratch[WARP];
  __shared__ double sums[WARP];
  EK_DYNAMIC_SHARED(T, slots);
  const kept_row<T> kept = {slots, has};
  int64_t row = blockIdx.x;
  if (row >= a.rows) return;
  row_of<T> here(a.logits + row * a.columns, a.classes);
  for (int i = 0; i < PARTS; i++) kept.fetch(here, i);
  for (int64_t next; row < a.rows; row = next) {
    next = row + gridDim.x;
    const S own = own_logit(a, row);
    row_terms<T, S, SOFT> terms = no_terms(a, row);
    here.each_single(terms);
    for (int i = 0; i < PARTS; i++) {
      kept.wait_for(i);
      kept.each_pack(here, i, terms);
    }
    here.each_pack(has.kept, terms);
    const row_sums<S> all = sum_up_row(a, terms, scratch, sums);
    if (threadIdx.x == 0) put_loss(a, row, own, all);
    auto g = gradient_of(a, row, all.soft, all.weight, scale);
    const row_of<T> after(a.logits + next * a.columns, a.classes);
    here.each_single(g);
    for (int i = 0; i < PARTS; i++) {
      kept.each_pack(here, i, g);
      if (next < a.rows) kept.fetch(after, i);
    }
    here.each_pack(has.kept, g);
    clear_rest(a, g.to);
    here = after;
  }
}

template <class S> struct weights_of {
  static constexpr int sums = 1;
  double *sum_of_all;
  const S *weights;
  __device__ void add(double sum[], int64_t c) const { sum[0] += (double)weights[c]; }
  __device__ void finish(const double sum[]) const { *sum_of_all = sum[0]; }
};

/* ---- launching ---- */

template <class T, class S, bool SOFT>
loss<T, S, SOFT> loss_of(const struct ek__cuda_place *at, const struct ek__loss_args *args) {
  loss<T, S, SOFT> a = {};
  a.losses = as<S>(args->losses);
  a.normalizers = static_cast<decltype(a.normalizers)>(args->normalizer);
  a.gradient = as<T>(args->gradient);
  a.logits = as<T>(args->outputs);
  a.targets = static_cast<decltype(a.targets)>(args->targets);
  a.weights = as<S>(args->class_weights);
  a.scale = args->scale;
  a.row_scale = as<S>(args->row_scale);
  a.rows = args->rows;
  a.classes = args->classes;
  a.columns = args->columns;
  a.first_row = args->first_row;
  a.ignore_index = args->ignore_index;
  a.smoothing = args->label_smoothing;
  a.bad = &at->bad->target;
  return a;
}

/* f(a) for the loss of soft targets, or of hard ones. */
template <class T, class S, class F>
cudaError_t with_loss(const struct ek__cuda_place *at, const struct ek__loss_args *args, F f) {
  return args->soft ? f(loss_of<T, S, true>(at, args)) : f(loss_of<T, S, false>(at, args));
}

/* Enough threads for two packs each, in whole warps. */
unsigned threads_for(int64_t classes, int pack_size) {
  const int64_t threads = (classes + 2 * pack_size - 1) / (2 * pack_size);
  const int64_t whole = (threads + WARP - 1) / WARP * WARP;
  return (unsigned)(whole < (int64_t)WARP ? WARP : whole > THREADS ? THREADS : whole);
}

unsigned blocks_of(int64_t rows) { return (unsigned)(rows < 0x7FFFFFFF ? rows : 0x7FFFFFFF); }

/* A block takes about 8 rows, so that the next one can be on its way; fewer where two blocks on
 * each of 132 multiprocessors would not have a row each. */
unsigned gradient_blocks(int64_t rows) {
  constexpr int64_t EACH = 8, LEAST = 2 * 132;
  const int64_t blocks = (rows + EACH - 1) / EACH;
  return blocks_of(blocks > LEAST ? blocks : rows < LEAST ? rows : LEAST);
}

template <class T, class S, bool SOFT>
cudaError_t add_totals(const struct ek__cuda_place *at, const loss<T, S, SOFT> &a, double *totals) {
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) return status;
  return sum_up(at->stream, a.rows, totals_of<T, S, SOFT>{totals, a}, at->workspace);
}

template <class T, class S, bool SOFT>
cudaError_t forward(const struct ek__cuda_place *at, const struct ek__loss_args *args,
                    const loss<T, S, SOFT> &a) {
  if (a.rows > 0) {
    EK_LAUNCH((forward_kernel<T, S, SOFT>), blocks_of(a.rows), threads_for(a.classes, PACK<T>), 0,
              at->stream, a);
  }
  return add_totals(at, a, args->totals);
}

template <class T, class S, bool SOFT>
cudaError_t backward(const struct ek__cuda_place *at, loss<T, S, SOFT> a) {
  if (a.rows <= 0 || a.classes <= 0) return cudaSuccess;
  if (!SOFT && a.weights && a.smoothing != 0.0) { /* after the partial sums of sum_up() */
    double *all = static_cast<double *>(at->workspace) + MOST_PARTIALS;
    a.all_weights = all;
    const cudaError_t status =
        sum_up(at->stream, a.classes, weights_of<S>{all, a.weights}, at->workspace);
    if (status != cudaSuccess) return status;
  }
  return launch(backward_kernel<T, S, SOFT>, blocks_of(a.rows), threads_for(a.classes, PACK<T>),
                at->stream, a);
}

template <class T, class S, bool SOFT>
cudaError_t gradient(const struct ek__cuda_place *at, const struct ek__loss_args *args,
                     const loss<T, S, SOFT> &a) {
  const unsigned threads = threads_for(a.classes, PACK<T>);
  const room has = room_for<T>(at, a.classes, (int)threads);
  const cudaError_t status =
      grant(at, reinterpret_cast<const void *>(&gradient_kernel<T, S, SOFT>), bytes_for_packs(at));
  if (status != cudaSuccess) return status;
  if (a.rows > 0) {
    EK_LAUNCH((gradient_kernel<T, S, SOFT>), gradient_blocks(a.rows), threads,
              (size_t)has.kept * PACK_SIZE<T>, at->stream, a, has, args->host_scale);
  }
  return add_totals(at, a, args->totals);
}

template <class T, class S>
cudaError_t cross_entropy_forward(const struct ek__cuda_place *at,
                                  const struct ek__loss_args *args) {
  return with_loss<T, S>(at, args, [&](const auto &a) { return forward(at, args, a); });
}

template <class T, class S>
cudaError_t cross_entropy_backward(const struct ek__cuda_place *at,
                                   const struct ek__loss_args *args) {
  return with_loss<T, S>(at, args, [&](const auto &a) { return backward(at, a); });
}

template <class T, class S>
cudaError_t cross_entropy_gradient(const struct ek__cuda_place *at,
                                   const struct ek__loss_args *args) {
  return with_loss<T, S>(at, args, [&](const auto &a) { return gradient(at, args, a); });
}

} // namespace

EK_CUDA_LAUNCHER(cross_entropy_forward, loss)
EK_CUDA_LAUNCHER(cross_entropy_backward, loss)
EK_CUDA_LAUNCHER(cross_entropy_gradient, loss)
