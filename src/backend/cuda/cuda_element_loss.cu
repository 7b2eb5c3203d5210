/*
 * cuda_element_loss.cu - losses of elements with their gradients, and the sum of a loss's terms.
 *
 * Floor in f32: forward 8 bytes an element (12 with losses), backward 12 (16 with element scales);
 * 4 more with weights.
 */
#include "backend/cuda/cuda_total.cuh"
#include "backend/formulas.h"

using namespace ek__cuda;

namespace {

/* A loss and its slope by y, in the type of sums. */
struct terms {
  int64_t kind; /* enum ek__element_loss: a struct of a kernel's arguments has no gaps */
  double width, steepness;
  template <class S> __device__ __forceinline__ S binary(S y, S t) const {
    const S both = log1p(exp(-fabs(y))), more = S(steepness) - S(1);
    const S loss = (y > S(0) ? y : S(0)) - y * t + both;
    return more == S(0) ? loss : loss + more * t * (both + (y < S(0) ? -y : S(0)));
  }
  template <class S> __device__ __forceinline__ S loss(S y, S t) const {
    const S d = y - t, size = fabs(d), edge = S(width);
    if (kind == EK__LOSS_SQUARED) return d * d;
    if (kind == EK__LOSS_BINARY) return binary(y, t);
    if (kind == EK__LOSS_DIVERGENCE) return t == S(0) ? S(0) : t * (log(t) - y);
    if (kind == EK__LOSS_LOG_DIVERGENCE) return exp(t) == S(0) ? S(0) : exp(t) * -d;
    if (size >= edge) return S(steepness) * (size - S(0.5) * edge);
    return S(steepness) * (S(0.5) * d * d / edge);
  }
  template <class S> __device__ __forceinline__ S slope(S y, S t) const {
    const S d = y - t, edge = S(width);
    if (kind == EK__LOSS_SQUARED) return S(2) * d;
    if (kind == EK__LOSS_DIVERGENCE) return -t;
    if (kind == EK__LOSS_LOG_DIVERGENCE) return -exp(t);
    if (kind == EK__LOSS_BINARY) {
      return S(1) / (S(1) + exp(-y)) - t - (S(steepness) - S(1)) * t / (S(1) + exp(y));
    }
    if (fabs(d) < edge) return S(steepness) * (d / edge);
    return S(steepness) * (d > S(0) ? S(1) : d < S(0) ? S(-1) : d);
  }
};

terms terms_of(const struct ek__loss_args *args) {
  return {args->kind, args->width, args->steepness};
}

template <class T, class S> struct elements {
  static constexpr int sums = 2;
  double *totals;
  S *losses;
  const T *y, *target, *weights;
  int64_t unit;
  terms is;
  __device__ void add(double sum[], int64_t i) const {
    const S w = weights ? S(weights[i]) : S(1);
    const S l = w == S(0) ? S(0) : w * is.loss(S(y[i]), S(target[i]));
    if (losses) losses[i] = l;
    sum[0] += (double)l;
    sum[1] += (double)w;
  }
  __device__ void finish(const double sum[]) const {
    totals[0] = sum[0];
    totals[1] = sum[1] / (double)unit;
  }
};

template <class T, class S> struct gradient {
  T *to;
  const T *y, *target, *weights;
  const S *element_scale;
  const double *scale;
  int64_t count;
  terms is;
};

template <class T, class S, int N>
__global__ void __launch_bounds__(BLOCK) gradient_kernel(gradient<T, S> a) {
  const double factor = a.scale ? *a.scale : 1.0;
  for (int64_t i = thread_index() * N; i < a.count; i += thread_count() * N) {
    const pack<T, N> y = load<N>(a.y + i), target = load<N>(a.target + i);
    pack<S, N> scale = {};
    pack<T, N> result, weight = {};
    if (a.element_scale) scale = load<N>(a.element_scale + i);
    if (a.weights) weight = load<N>(a.weights + i);
    EK_UNROLL
    for (int j = 0; j < N; j++) {
      const S all = (S)(a.element_scale ? factor * (double)scale.at[j] : factor);
      const S w = a.weights ? S(weight.at[j]) : S(1);
      const S slope = w == S(0) ? S(0) : w * a.is.slope(S(y.at[j]), S(target.at[j]));
      result.at[j] = T(all * slope);
    }
    store<N>(a.to + i, result);
  }
}

template <class T, class S>
cudaError_t element_loss_forward(const struct ek__cuda_place *at,
                                 const struct ek__loss_args *args) {
  const elements<T, S> f = {args->totals,          as<S>(args->losses),  as<T>(args->outputs),
                            as<T>(args->targets), as<T>(args->weights), args->columns,
                            terms_of(args)};
  return sum_up(at->stream, args->rows, f, at->workspace);
}

template <class T, class S>
cudaError_t element_loss_backward(const struct ek__cuda_place *at,
                                  const struct ek__loss_args *args) {
  if (args->rows <= 0) return cudaSuccess;
  const gradient<T, S> a = {as<T>(args->gradient), as<T>(args->outputs),   as<T>(args->targets),
                            as<T>(args->weights),  as<S>(args->row_scale), args->scale,
                            args->rows,            terms_of(args)};
  const bool wide =
      a.count % PACK<T> == 0 && aligned(a.to, a.y, a.target, a.weights, a.element_scale);
  return launch_flat(wide, PACK<T>, gradient_kernel<T, S, PACK<T>>, gradient_kernel<T, S, 1>,
                     a.count, at->stream, a);
}

/* ---- the terms of a loss: a handful of numbers, one thread ---- */

__global__ void __launch_bounds__(1) combine_kernel(const struct ek__combine_args args) {
  ek__combine_terms(&args);
}

} // namespace

EK_CUDA_LAUNCHER(element_loss_forward, loss)
EK_CUDA_LAUNCHER(element_loss_backward, loss)

extern "C" cudaError_t ek__cuda_combine_totals(const struct ek__cuda_place *at,
                                               const struct ek__combine_args *args) {
  if (args->terms > sizeof args->coefficients / sizeof args->coefficients[0]) {
    return cudaErrorInvalidValue;
  }
  return launch(combine_kernel, 1, 1, at->stream, *args);
}
