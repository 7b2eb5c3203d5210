/*
 * cuda_cross_entropy.cu - cross-entropy of rows of logits: one pass over their memory forward, one
 * read and one write backward, in place; and both in one kernel, which reads them from memory once.
 *
 * A block takes a row. Forward keeps a running largest value and sum of exponentials in each thread
 * (Milakov and Gimelshein 2018), and logits are only ever looked at below that, so that what they
 * have in common costs no digits. A row need not start at 16 bytes (50257 classes): what comes
 * before the first such address and after the last is taken one by one. Floor in f32: forward 4
 * bytes a logit, backward 8, both in one 8: a block comes back to its row while L2 still has it,
 * for which the rows under way may not be too many. At 4.8 TB/s forward wants 1.2e12 exponentials a
 * second, a third of what the special function units of 132 multiprocessors give.
 */
#include "backend/cuda/cuda_total.cuh"

using namespace ek__cuda;

namespace {

/* sum = the sum of e^(x - largest): what a row leaves behind for its gradient. */
template <class T> struct normalizer { T largest, sum; };

template <class T> struct loss {
  T *losses, *gradient;
  normalizer<T> *normalizers;
  const T *logits;
  const int32_t *targets;
  const T *weights;
  const double *scale, *all_weights; /* all_weights: their sum, on the device, or NULL */
  const T *row_scale;
  int64_t rows, classes, first_row;
  int32_t ignore_index;
  double smoothing;
  unsigned long long *bad;

  __device__ bool counts(int32_t target) const { /* neither ignored nor out of range */
    return target != ignore_index && target >= 0 && target < classes;
  }
  __device__ bool wrong(int32_t target) const { return target != ignore_index && !counts(target); }
  __device__ T weight(int64_t c) const { return weights ? weights[c] : T(1); }
};

/* ---- a row, 16 bytes at a time, by the threads of a block ---- */

/* f.one(value, c) for single elements, f.many(pack, c) for packs that start at class c. */
template <class T, class F>
__device__ __forceinline__ void each_class(const T *x, int64_t n, F &f) {
  constexpr int N = PACK<T>;
  const int64_t past = (int64_t)(reinterpret_cast<uintptr_t>(x) / sizeof(T) % N);
  const int64_t head = past == 0 ? 0 : N - past < n ? N - past : n;
  const int64_t packs = (n - head) / N, tail = head + packs * N;
  if (threadIdx.x < head) f.one(x[threadIdx.x], threadIdx.x);
  EK_UNROLL_BY(2)
  for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
    f.many(load<N>(x + head + i * N), head + i * N);
  }
  if (tail + threadIdx.x < n) f.one(x[tail + threadIdx.x], tail + threadIdx.x);
}

/* ---- forward ---- */

/* sum of e^(x - base), base the largest x so far, or 0 while that is -infinity. */
template <class T> struct running : normalizer<T> {
  using normalizer<T>::largest;
  using normalizer<T>::sum;
  __device__ static T base(T largest) { return largest == -T(INFINITY) ? T(0) : largest; }
  __device__ void rise(T value) {
    if (!(value > largest)) return; /* NaN does not rise; its exponential shows it */
    sum *= exp(largest - value);
    largest = value;
  }
  __device__ void merge(T other_largest, T other_sum) {
    const T most = other_largest > largest ? other_largest : largest, from = base(most);
    sum = sum * exp(largest - from) + other_sum * exp(other_largest - from);
    largest = most;
  }
};

/* One thread's part of a row; depth, the sum of w (base - x), and weight, that of w, in f64 and
 * only when labels are smoothed. */
template <class T> struct row_terms {
  running<T> soft;
  double depth, weight;
  const T *weights;
  bool smooth;

  __device__ void deepen(T from, T to) { depth += weight * ((double)to - (double)from); }
  __device__ T rise(T value) {
    const T from = running<T>::base(soft.largest);
    if (!(value > soft.largest)) return from;
    soft.rise(value);
    if (smooth) deepen(from, value);
    return value;
  }
  __device__ void smoothed(T x, int64_t c, T base) {
    const double w = weights ? (double)weights[c] : 1.0;
    if (w == 0.0) return; /* a class that counts for nothing may have an infinite logit */
    depth += w * ((double)base - (double)x);
    weight += w;
  }
  __device__ void one(T x, int64_t c) {
    const T base = rise(x);
    soft.sum += exp(x - base);
    if (smooth) smoothed(x, c, base);
  }
  __device__ void many(const pack<T, PACK<T>> &p, int64_t c) {
    T most = p.at[0];
    EK_UNROLL
    for (int j = 1; j < PACK<T>; j++) most = fmax(most, p.at[j]);
    const T base = rise(most);
    EK_UNROLL
    for (int j = 0; j < PACK<T>; j++) soft.sum += exp(p.at[j] - base);
    if (!smooth) return;
    for (int j = 0; j < PACK<T>; j++) smoothed(p.at[j], c + j, base);
  }
};

/* Every thread gets the whole row's: each warp's first lane merges what all warps have. */
template <class T> __device__ running<T> block_merge(running<T> mine, running<T> *scratch) {
  const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  for (int stage = 0; stage < 2; stage++) {
    EK_UNROLL
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
      const T largest = __shfl_down_sync(ALL_LANES, mine.largest, distance);
      const T sum = __shfl_down_sync(ALL_LANES, mine.sum, distance);
      if (lane + distance < WARP) mine.merge(largest, sum);
    }
    if (stage == 1) break;
    __syncthreads();
    if (lane == 0) scratch[warp] = mine;
    __syncthreads();
    const running<T> none = {{-T(INFINITY), T(0)}};
    mine = lane < blockDim.x / WARP ? scratch[lane] : none;
  }
  mine.largest = __shfl_sync(ALL_LANES, mine.largest, 0);
  mine.sum = __shfl_sync(ALL_LANES, mine.sum, 0);
  return mine;
}

/* What a block finds out about a row: see row_terms. */
template <class T> struct row_sums {
  running<T> soft;
  double depth, weight;
};

/* weight * term, where 0 times an infinite term is 0. NaN shows. */
__device__ __forceinline__ double weigh(double weight, double term) {
  return weight == 0.0 && isinf(term) ? 0.0 : weight * term;
}

template <class T>
__device__ void put_loss(const loss<T> &a, int64_t row, const T *x, const row_sums<T> &all) {
  const double log_sum = (double)log(all.soft.sum);
  const int32_t target = a.targets[row];
  a.normalizers[row] = all.soft;
  if (a.wrong(target)) report_bad(a.bad, a.first_row + row, target);
  double value = 0.0;
  if (a.counts(target)) {
    const double own = (1.0 - a.smoothing) * (double)a.weight(target);
    value = weigh(own, log_sum - ((double)x[target] - (double)all.soft.largest));
    if (a.smoothing != 0.0) {
      value += a.smoothing / (double)a.classes * (all.weight * log_sum + all.depth);
    }
  }
  a.losses[row] = (T)value;
}

template <class T>
__device__ __forceinline__ row_sums<T> sum_row(const loss<T> &a, const T *x, running<T> *scratch,
                                               double *sums) {
  row_terms<T> terms = {{{-T(INFINITY), T(0)}}, 0.0, 0.0, a.weights, a.smoothing != 0.0};
  each_class(x, a.classes, terms);
  row_sums<T> all = {block_merge(terms.soft, scratch), 0.0, 0.0};
  if (a.smoothing != 0.0) {
    terms.deepen(running<T>::base(terms.soft.largest), all.soft.largest);
    all.depth = block_sum(terms.depth, sums);
    all.weight = block_sum(terms.weight, sums);
  }
  return all;
}

template <class T> __global__ void __launch_bounds__(512) forward_kernel(loss<T> a) {
  __shared__ running<T> scratch[WARP];
  __shared__ double sums[WARP];
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T *x = a.logits + row * a.classes;
    const row_sums<T> all = sum_row(a, x, scratch, sums);
    if (threadIdx.x == 0) put_loss(a, row, x, all);
  }
}

template <class T> struct totals_of {
  static constexpr int sums = 2;
  double *totals;
  loss<T> a;
  __device__ void add(double sum[], int64_t row) const {
    const int32_t target = a.targets[row];
    if (!a.counts(target)) return;
    sum[0] += (double)a.losses[row];
    sum[1] += (double)a.weight(target);
  }
  __device__ void finish(const double sum[]) const {
    totals[0] = sum[0];
    totals[1] = sum[1];
  }
};

/* ---- backward ---- */

template <class T> struct row_gradient {
  T *to;
  const T *weights;
  T largest, own, share, whole, scale; /* whole: what e^(x - largest) is multiplied with */
  int64_t target;
  bool ignored, wide;

  __device__ T value(T x, int64_t c) const {
    if (ignored) return T(0);
    const T taken = share * (weights ? weights[c] : T(1)) + (c == target ? own : T(0));
    return scale * (exp(x - largest) * whole - taken);
  }
  __device__ void one(T x, int64_t c) { to[c] = value(x, c); }
  __device__ void many(const pack<T, PACK<T>> &p, int64_t c) {
    pack<T, PACK<T>> result;
    EK_UNROLL
    for (int j = 0; j < PACK<T>; j++) result.at[j] = value(p.at[j], c + j);
    if (wide) {
      store<PACK<T>>(to + c, result);
    } else {
      for (int j = 0; j < PACK<T>; j++) to[c + j] = result.at[j];
    }
  }
};

/* all_weights: the sum of all class weights where labels are smoothed. */
template <class T>
__device__ __forceinline__ void put_gradient(const loss<T> &a, int64_t row,
                                             const normalizer<T> &soft, double all_weights,
                                             double scale) {
  const T *x = a.logits + row * a.classes;
  const int32_t target = a.targets[row];
  const bool counts = a.counts(target);
  const double own = counts ? (1.0 - a.smoothing) * (double)a.weight(target) : 0.0;
  const double share = a.smoothing / (double)a.classes;
  row_gradient<T> g;
  g.to = a.gradient + row * a.classes;
  g.weights = a.weights;
  g.largest = soft.largest;
  g.own = (T)own;
  g.share = (T)share;
  g.whole = (T)((own + (share != 0.0 ? share * all_weights : 0.0)) / (double)soft.sum);
  g.scale = (T)scale;
  g.target = target;
  g.ignored = !counts;
  g.wide = reinterpret_cast<uintptr_t>(g.to) % 16 == reinterpret_cast<uintptr_t>(x) % 16;
  each_class(x, a.classes, g);
}

template <class T> __global__ void __launch_bounds__(512) backward_kernel(loss<T> a) {
  const double factor = a.scale ? *a.scale : 1.0;
  const double all_weights = a.all_weights ? *a.all_weights : (double)a.classes;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const int32_t target = a.targets[row];
    if (a.wrong(target) && threadIdx.x == 0) report_bad(a.bad, a.first_row + row, target);
    const double scale = factor * (a.row_scale ? (double)a.row_scale[row] : 1.0);
    put_gradient(a, row, a.normalizers[row], all_weights, scale);
  }
}

/* ---- both ---- */

constexpr int GRADIENT_THREADS = 1024;

/* Thread 0 has read the target's logit before anybody writes over it. */
template <class T>
__global__ void __launch_bounds__(GRADIENT_THREADS) gradient_kernel(loss<T> a, double scale) {
  __shared__ running<T> scratch[WARP];
  __shared__ double sums[WARP];
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T *x = a.logits + row * a.classes;
    const row_sums<T> all = sum_row(a, x, scratch, sums);
    if (threadIdx.x == 0) put_loss(a, row, x, all);
    __syncthreads();
    put_gradient(a, row, all.soft, all.weight, scale);
  }
}

template <class T> struct weights_of {
  static constexpr int sums = 1;
  double *sum_of_all;
  const T *weights;
  __device__ void add(double sum[], int64_t c) const { sum[0] += (double)weights[c]; }
  __device__ void finish(const double sum[]) const { *sum_of_all = sum[0]; }
};

/* ---- launching ---- */

template <class T> loss<T> loss_of(const struct ek__loss_args *args, struct ek__cuda_bad *bad) {
  loss<T> a = {};
  a.losses = static_cast<T *>(args->losses);
  a.normalizers = static_cast<normalizer<T> *>(args->normalizer);
  a.gradient = static_cast<T *>(args->gradient);
  a.logits = static_cast<const T *>(args->outputs);
  a.targets = static_cast<const int32_t *>(args->targets);
  a.weights = static_cast<const T *>(args->class_weights);
  a.scale = args->scale;
  a.row_scale = static_cast<const T *>(args->row_scale);
  a.rows = args->rows;
  a.classes = args->classes;
  a.first_row = args->first_row;
  a.ignore_index = args->ignore_index;
  a.smoothing = args->label_smoothing;
  a.bad = &bad->target;
  return a;
}

/* Enough threads for two packs each, in whole warps. */
unsigned threads_for(int64_t classes, int pack_size, int64_t most = 512) {
  const int64_t threads = (classes + 2 * pack_size - 1) / (2 * pack_size);
  const int64_t whole = (threads + WARP - 1) / WARP * WARP;
  return (unsigned)(whole < (int64_t)WARP ? WARP : whole > most ? most : whole);
}

unsigned blocks_of(int64_t rows) { return (unsigned)(rows < 0x7FFFFFFF ? rows : 0x7FFFFFFF); }

template <class T>
cudaError_t forward(cudaStream_t stream, const struct ek__loss_args *args, void *workspace,
                    struct ek__cuda_bad *bad) {
  const loss<T> a = loss_of<T>(args, bad);
  if (a.rows > 0) {
    EK_LAUNCH(forward_kernel<T>, blocks_of(a.rows), threads_for(a.classes, PACK<T>), 0, stream, a);
    const cudaError_t status = cudaGetLastError();
    if (status != cudaSuccess) return status;
  }
  return sum_up(stream, a.rows, totals_of<T>{args->totals, a}, workspace);
}

template <class T>
cudaError_t backward(cudaStream_t stream, const struct ek__loss_args *args, void *workspace,
                     struct ek__cuda_bad *bad) {
  loss<T> a = loss_of<T>(args, bad);
  if (a.rows <= 0 || a.classes <= 0) return cudaSuccess;
  if (a.weights && a.smoothing != 0.0) { /* behind the partial sums of sum_up() */
    double *all = static_cast<double *>(workspace) + MOST_PARTIALS;
    a.all_weights = all;
    const cudaError_t status = sum_up(stream, a.classes, weights_of<T>{all, a.weights}, workspace);
    if (status != cudaSuccess) return status;
  }
  EK_LAUNCH(backward_kernel<T>, blocks_of(a.rows), threads_for(a.classes, PACK<T>), 0, stream, a);
  return cudaGetLastError();
}

/* Rows under way: half of an L2 of 50 MB, but one for each of 132 multiprocessors at least. */
unsigned gradient_blocks(int64_t rows, int64_t row_bytes) {
  constexpr int64_t NEAR = (int64_t)24 << 20, LEAST = 132;
  const int64_t fit = row_bytes > 0 ? NEAR / row_bytes / LEAST * LEAST : rows;
  const int64_t blocks = fit < LEAST ? LEAST : fit;
  return blocks_of(rows < blocks ? rows : blocks);
}

template <class T>
cudaError_t gradient(cudaStream_t stream, const struct ek__loss_args *args, void *workspace,
                     struct ek__cuda_bad *bad) {
  const loss<T> a = loss_of<T>(args, bad);
  if (a.rows > 0) {
    EK_LAUNCH(gradient_kernel<T>, gradient_blocks(a.rows, a.classes * (int64_t)sizeof(T)),
              threads_for(a.classes, PACK<T>, GRADIENT_THREADS), 0, stream, a, args->host_scale);
    const cudaError_t status = cudaGetLastError();
    if (status != cudaSuccess) return status;
  }
  return sum_up(stream, a.rows, totals_of<T>{args->totals, a}, workspace);
}

} // namespace

extern "C" cudaError_t ek__cuda_cross_entropy_forward(cudaStream_t stream,
                                                      const struct ek__loss_args *args,
                                                      void *workspace, struct ek__cuda_bad *bad) {
  return with_type(
      args->type, [&](auto zero) { return forward<decltype(zero)>(stream, args, workspace, bad); });
}

extern "C" cudaError_t ek__cuda_cross_entropy_backward(cudaStream_t stream,
                                                       const struct ek__loss_args *args,
                                                       void *workspace, struct ek__cuda_bad *bad) {
  return with_type(args->type, [&](auto zero) {
    return backward<decltype(zero)>(stream, args, workspace, bad);
  });
}

extern "C" cudaError_t ek__cuda_cross_entropy_gradient(cudaStream_t stream,
                                                       const struct ek__loss_args *args,
                                                       void *workspace, struct ek__cuda_bad *bad) {
  return with_type(args->type, [&](auto zero) {
    return gradient<decltype(zero)>(stream, args, workspace, bad);
  });
}
