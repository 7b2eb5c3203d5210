/*
 * cuda_updates.cu - SGD and AdamW over flat ranges, and the square norm for clipping.
 *
 * What the gradient is multiplied with is on the device; each block works it out for itself, so
 * that no thread waits. Floor in f32, bytes an element: SGD 12, with momentum 20; AdamW 28; 2 more
 * for a copy of 16 bits, 2 less where the gradient is one; the square norm 4.
 */
#include "backend/cuda/cuda_total.cuh"
#include "backend/formulas.h"

using namespace ek__cuda;

namespace {

struct gradient_scale {
  const double *totals, *square_norm;
  double clip_norm;
};

/* Three arrays that change and one that is read; state may be NULL where F does not want it, and
 * copy, which p is written to as well. The gradient is `g`, or `g_value` of the type of the copy.
 */
template <class T, class S> struct arrays {
  S *p, *state0, *state1;
  T *copy;
  const S *g;
  const T *g_value;
  int64_t count;
};

template <int N, class T, class S>
__device__ __forceinline__ pack<S, N> gradient(const arrays<T, S> &a, int64_t i) {
  if constexpr (!std::is_same<T, S>::value) {
    if (a.g_value != NULL) return widened<S>(load<N>(a.g_value + i));
  }
  return load<N>(a.g + i);
}

/* F: f(&p, &state0, &state1, g) for one element; F::states and f.reads() of them are used. */
template <int N, class T, class S, class F>
__device__ __forceinline__ void update(const arrays<T, S> &a, const F &f, S factor, int64_t i) {
  pack<S, N> p = load<N>(a.p + i), state0 = {}, state1 = {};
  const pack<S, N> g = gradient<N>(a, i);
  if (F::states > 0 && f.reads()) state0 = load<N>(a.state0 + i);
  if (F::states > 1 && f.reads()) state1 = load<N>(a.state1 + i);
  EK_UNROLL
  for (int j = 0; j < N; j++) f(p.at[j], state0.at[j], state1.at[j], g.at[j] * factor);
  store<N>(a.p + i, p);
  if (a.copy != NULL) store<N>(a.copy + i, narrowed<T>(p));
  if (F::states > 0) store<N>(a.state0 + i, state0);
  if (F::states > 1) store<N>(a.state1 + i, state1);
}

template <class T, class S, int N, class F>
__global__ void __launch_bounds__(BLOCK) update_kernel(arrays<T, S> a, gradient_scale scale, F f) {
  __shared__ S shared_factor;
  if (threadIdx.x == 0) {
    shared_factor = (S)ek__gradient_factor(scale.totals, scale.square_norm, scale.clip_norm);
  }
  __syncthreads();
  const S factor = shared_factor;
  const int64_t packs = a.count / N;
  for (int64_t i = thread_index(); i < packs; i += thread_count()) {
    update<N>(a, f, factor, i * N);
  }
  const int64_t rest = packs * N + thread_index(); /* fewer than N, and than threads */
  if (rest < a.count) update<1>(a, f, factor, rest);
}

template <class T> struct plain_sgd {
  static constexpr int states = 0;
  T rate, decay;
  __device__ bool reads() const { return false; }
  __device__ void operator()(T &p, T &, T &, T g) const { p -= rate * (g + decay * p); }
};

template <class T> struct sgd_momentum {
  static constexpr int states = 1;
  T rate, decay, momentum, taken;
  bool nesterov, first;
  __device__ bool reads() const { return !first; }
  __device__ void operator()(T &p, T &buffer, T &, T g) const {
    g += decay * p;
    buffer = first ? g : momentum * buffer + taken * g;
    p -= rate * (nesterov ? g + momentum * buffer : buffer);
  }
};

template <class T> struct adam {
  static constexpr int states = 2;
  T beta1, beta2, rest1, rest2;
  T rate;          /* learning rate / correction1 */
  T root;          /* 1 / sqrt(correction2) */
  T epsilon, keep; /* keep: 1 - learning rate * decay if decoupled, else 1 */
  T decay;         /* added to the gradient: 0 if decoupled */
  bool first;
  __device__ bool reads() const { return !first; }
  __device__ void operator()(T &p, T &m, T &v, T g) const {
    if (decay != T(0)) g += decay * p;
    m = beta1 * m + rest1 * g; /* at the first step m and v are zero here, not read */
    v = beta2 * v + rest2 * g * g;
    p = keep * p - rate * m / (sqrt(v) * root + epsilon);
  }
};

/* Packs of sums: 16 bytes of what is most of it, and 8 of a copy of 16 bits. */
template <class T, class S, class F>
cudaError_t run(const struct ek__cuda_place *at, const struct ek__update_args *args, F f) {
  if (args->count <= 0) return cudaSuccess;
  const arrays<T, S> a = {as<S>(args->p),
                          as<S>(args->state0),
                          as<S>(args->state1),
                          as<T>(args->copy),
                          args->g_is_value ? NULL : as<S>(args->g),
                          args->g_is_value ? as<T>(args->g) : NULL,
                          args->count};
  const gradient_scale scale = {args->totals, args->square_norm, args->clip_norm};
  const bool wide = packed<PACK<S>>(a.p, a.g, a.g_value, a.copy, F::states > 0 ? a.state0 : NULL,
                                    F::states > 1 ? a.state1 : NULL);
  return launch_flat(wide, PACK<S>, update_kernel<T, S, PACK<S>, F>, update_kernel<T, S, 1, F>,
                     a.count, at->stream, a, scale, f);
}

template <class T> adam<T> adam_of(const struct ek__update_args *args) {
  adam<T> f = {};
  f.beta1 = (T)args->beta1;
  f.beta2 = (T)args->beta2;
  f.rest1 = (T)(1.0 - args->beta1);
  f.rest2 = (T)(1.0 - args->beta2);
  f.rate = (T)(args->learning_rate / args->correction1);
  f.root = (T)(1.0 / sqrt(args->correction2));
  f.epsilon = (T)args->epsilon;
  f.keep = (T)(args->decoupled ? 1.0 - args->learning_rate * args->weight_decay : 1.0);
  f.decay = args->decoupled ? T(0) : (T)args->weight_decay;
  f.first = args->first;
  return f;
}

template <class T, class S> struct square_sum {
  static constexpr int sums = 1;
  double *result;
  const T *x;
  double beta;
  __device__ void add(double sum[], int64_t i) const {
    const double value = (double)S(x[i]);
    sum[0] += value * value;
  }
  __device__ void finish(const double sum[]) const {
    *result = beta == 0.0 ? sum[0] : beta * *result + sum[0];
  }
};

template <class T, class S>
cudaError_t sgd(const struct ek__cuda_place *at, const struct ek__update_args *args) {
  const S rate = (S)args->learning_rate, decay = (S)args->weight_decay;
  if (!args->state0 || args->momentum == 0.0) return run<T, S>(at, args, plain_sgd<S>{rate, decay});
  return run<T, S>(at, args,
                   sgd_momentum<S>{rate, decay, (S)args->momentum, (S)(1.0 - args->dampening),
                                   args->nesterov, args->first});
}

template <class T, class S>
cudaError_t adamw(const struct ek__cuda_place *at, const struct ek__update_args *args) {
  return run<T, S>(at, args, adam_of<S>(args));
}

template <class T, class S>
cudaError_t square_norm(const struct ek__cuda_place *at, const struct ek__elementwise_args *args) {
  const square_sum<T, S> f = {static_cast<double *>(args->y), as<T>(args->a), args->value};
  return sum_up(at->stream, args->count, f, at->workspace);
}

} // namespace

EK_CUDA_LAUNCHER(sgd, update)
EK_CUDA_LAUNCHER(adamw, update)
EK_CUDA_LAUNCHER(square_norm, elementwise)
